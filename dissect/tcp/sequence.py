"""Arithmetic of sequence numbers, which wrap at 2^32."""

from __future__ import annotations

MASK = 0xFFFF_FFFF

NEAR = 16 << 20
"""Bytes that a sender may be ahead of the capture, or an old copy behind it: the largest usual receive window."""

FAR = 1 << 30
"""Bytes beyond which a segment cannot belong to the byte stream: the largest window (65,535 scaled by 2^14)."""


def distance(a: int, b: int) -> int:
    """Return the steps from a to b, negative if b is behind a."""
    return ((b - a + 0x8000_0000) & MASK) - 0x8000_0000
