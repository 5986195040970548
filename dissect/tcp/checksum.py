"""Whether the TCP checksum of a segment is right (RFC 9293, section 3.1)."""

from __future__ import annotations

from ..model import Segment

LARGEST = 9_216
"""Bytes of the largest frame: a larger segment was merged by the capturing machine, and its checksum means nothing."""

PROTOCOL = 6

IPV4_ENDS = 16
"""Bytes that limit the `ends` of a segment with IPv4 addresses."""


def is_checkable(segment: Segment) -> bool:
    """Return whether a segment was captured completely and as sent, so that its checksum can be verified."""
    return segment.wire == len(segment.data) <= LARGEST


def is_right(segment: Segment) -> bool:
    """Return whether the checksum of a segment is right, or cannot be verified."""
    buffer, at, data = segment.buffer, segment.addresses, segment.data
    if not buffer:
        return not segment.damaged
    if not is_checkable(segment):
        return True
    start = at + (8 if len(segment.ends) < IPV4_ENDS else 32)
    size = (buffer[start + 12] >> 2 & 0x3C) + len(data)
    # Sums of 16 bits with carry are remainders of 65,535, in either byte order; the addresses are in front of the segment
    return (_number(buffer[at : start + size]) + (size + PROTOCOL << 8)) % 65_535 == 0


def _number(data: bytes) -> int:
    """Return a number with the same remainder as these bytes; summing the quarters of long ones is faster."""
    size = len(data)
    if size < 512:
        return int.from_bytes(data, "little")
    two = size >> 1 & ~1
    one, three = two >> 1 & ~1, two + (two >> 1 & ~1)
    parts = data[:one], data[one:two], data[two:three], data[three:]
    return sum([int.from_bytes(part, "little") for part in parts])
