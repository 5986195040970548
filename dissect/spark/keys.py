"""The key of conversations: both endpoints, and where captures of different networks are kept separate, the network."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from ..capture.ends import split

NETWORKS = 1 << 24
"""Limit of networks that have a number of their own in a key."""


@lru_cache(1 << 14)
def key_of(ends: bytes) -> int:
    """A number for both directions of a flow with these `ends`, which two flows may share."""
    source, target, sport, dport, network = split(ends)
    one, two = sorted((source + sport, target + dport))
    return int.from_bytes(blake2b(one + two + network, digest_size=8).digest(), "big", signed=True)
