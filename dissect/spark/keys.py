"""What tells conversations apart: both endpoints, and where captures of different networks are kept separate, the network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dissect.tcp.conversations import mix

UNUSED = slice(37, 40)
"""Bytes of a flow (see `SegmentBatch`) that say nothing."""

NETWORKS = 1 << 24
"""So many networks have a number of their own in them."""


def flow_ids(flow: NDArray[np.uint8]) -> NDArray[np.int64]:
    """One number for each flow; two flows may share it."""
    mixed = mix(flow.view(np.uint64))
    mixed ^= mixed >> np.uint64(32)
    return np.asarray(mixed.view(np.int64))


def of_network(flow: NDArray[np.uint8], network: int) -> NDArray[np.uint8]:
    """The flows of a network that others do not know of; 0 is the one of all captures that are not kept separate."""
    flow = np.ascontiguousarray(flow)
    if network:
        flow = flow.copy()
        flow[:, UNUSED] = np.frombuffer(network.to_bytes(3, "big"), np.uint8)
    return flow
