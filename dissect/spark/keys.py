"""What tells conversations apart: both endpoints, and where captures of different networks are kept separate, the network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dissect.capture.link import UNUSED, of_network
from dissect.tcp.conversations import mix

__all__ = ["NETWORKS", "UNUSED", "flow_ids", "of_network"]

NETWORKS = 1 << 24
"""So many networks have a number of their own in them."""


def flow_ids(flow: NDArray[np.uint8]) -> NDArray[np.int64]:
    """One number for each flow; two flows may share it."""
    mixed = mix(flow.view(np.uint64))
    mixed ^= mixed >> np.uint64(32)
    return np.asarray(mixed.view(np.int64))
