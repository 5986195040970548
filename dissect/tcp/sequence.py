"""Sequence numbers live on a circle of 2^32."""

from __future__ import annotations

MASK = 0xFFFF_FFFF

NEAR = 16 << 20
"""Bytes a sender may well be ahead of, or an old copy behind, what was captured: the largest usual receive window."""

FAR = 1 << 30
"""Bytes beyond which a segment cannot belong to the byte stream: no window is larger (65,535 scaled by 2^14)."""


def distance(a: int, b: int) -> int:
    """Steps from a to b, negative when b is behind a."""
    return ((b - a + 0x8000_0000) & MASK) - 0x8000_0000
