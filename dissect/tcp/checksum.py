"""Whether the TCP checksum of a segment is right (RFC 9293, section 3.1)."""

from __future__ import annotations

from ..model import Segment

LARGEST = 9_216
"""No frame carries more bytes: a larger segment was put together by the machine that captured it, and its checksum means nothing."""

PROTOCOL = 6

IPV4_ENDS = 16
"""The `ends` of a segment are no longer than this with addresses of IPv4, whatever follows them."""


def is_checkable(segment: Segment) -> bool:
    """Return whether the checksum of a segment shows anything: all of it was captured, as it was sent."""
    return segment.wire == len(segment.data) <= LARGEST


def is_right(segment: Segment) -> bool:
    """Return whether the checksum of a segment is right, or shows nothing."""
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
    """A number with the same remainder as these bytes; of long ones that of their quarters takes less time."""
    size = len(data)
    if size < 512:
        return int.from_bytes(data, "little")
    two = size >> 1 & ~1
    one, three = two >> 1 & ~1, two + (two >> 1 & ~1)
    parts = data[:one], data[one:two], data[two:three], data[three:]
    return sum([int.from_bytes(part, "little") for part in parts])
