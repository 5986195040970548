"""What tells conversations apart: both endpoints, and where captures of different networks are kept separate, the network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FACTORS = np.array(
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x85EB_CA77_C2B2_AE63, 0x27D4_EB2F_1656_67C5], np.uint64
)

UNUSED = slice(37, 40)
"""Bytes of a flow (see `SegmentBatch`) that say nothing."""

NETWORKS = 1 << 24
"""So many networks have a number of their own in them."""


def flow_ids(flow: NDArray[np.uint8]) -> NDArray[np.int64]:
    """One number for each flow; two flows may share it."""
    words = flow.view(np.uint64)
    mixed = words[:, 0] * _FACTORS[0]
    for column in range(1, 5):
        mixed ^= mixed >> np.uint64(29)
        mixed += words[:, column] * _FACTORS[column]
    mixed ^= mixed >> np.uint64(32)
    return np.asarray(mixed.view(np.int64))


def of_network(flow: NDArray[np.uint8], network: int) -> NDArray[np.uint8]:
    """The flows of a network that others do not know of; 0 is the one of all captures that are not kept separate."""
    flow = np.ascontiguousarray(flow)
    if network:
        flow = flow.copy()
        flow[:, UNUSED] = np.frombuffer(network.to_bytes(3, "big"), np.uint8)
    return flow
