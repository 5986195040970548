"""The key of conversations: both endpoints, and where captures of different networks are kept separate, the network."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from ..capture.ends import network_key, split

NETWORKS = 1 << 24
"""Limit of networks that have a number of their own in a key."""

NETWORK = slice(37, 40)
"""Where its number is in a flow."""

Key = tuple[int, bytes, bool]
"""A number of a flow, which two may share; the flow; and whether its higher endpoint sends."""


@lru_cache(1 << 14)
def key_of(ends: bytes) -> Key:
    """The key of a segment with these `ends`: a flow is address, port, address, port, IP version, network, the lower endpoint first."""
    source, target, sport, dport, network = split(ends)
    pad = bytes(16 - len(source))
    one, two = source + pad + sport, target + pad + dport
    reverse = one > two
    flow = (two + one if reverse else one + two) + (b"\x04" if len(source) == 4 else b"\x06") + (network or bytes(3))
    return int.from_bytes(blake2b(flow, digest_size=8).digest(), "big", signed=True), flow, reverse


@lru_cache(1 << 14)
def ends_of(flow: bytes, reverse: bool) -> bytes:
    """The `ends` of a segment with this flow."""
    size = 4 if flow[36] == 4 else 16
    one, two = (flow[18:36], flow[:18]) if reverse else (flow[:18], flow[18:36])
    return one[:size] + two[:size] + one[16:] + two[16:] + network_key(network_of(flow))


def network_of(flow: bytes) -> int:
    """The number of a flow's network."""
    return int.from_bytes(flow[NETWORK], "big")
