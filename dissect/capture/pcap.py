"""Reads pcap files of both byte orders, with microseconds or nanoseconds.

After the I-D draft-ietf-opsawg-pcap and what libpcap writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..errors import CaptureError
from ..model import Packet
from .blocks import Blocks

MAGICS: dict[bytes, tuple[str, int]] = {
    bytes.fromhex("d4c3b2a1"): ("<", 1000),
    bytes.fromhex("a1b2c3d4"): (">", 1000),
    bytes.fromhex("4d3cb2a1"): ("<", 1),
    bytes.fromhex("a1b23c4d"): (">", 1),
}
"""Byte order and nanoseconds of a unit of the time's fraction, by the first four bytes."""

MODIFIED = (bytes.fromhex("34cdb2a1"), bytes.fromhex("a1b2cd34"))

LARGEST = 256 << 20
ALWAYS = 16 << 20
"""Return the maximum length of a record: the snap length, but at least `ALWAYS`, since many writers exceed it."""

HEADER = 24
RECORD = 16


def read_packets(blocks: Blocks) -> Iterator[list[Packet]]:
    """The packets of a file whose magic is one of `MAGICS`."""
    buffer = blocks.read(HEADER)
    if len(buffer) < HEADER:
        raise blocks.error(f"cut off in the file header after {len(buffer)} of {HEADER} bytes", 0)
    order, unit = MAGICS[buffer[:4]]
    major, minor, snap, network = struct.unpack_from(order + "HH8xII", buffer, 4)
    if major != 2:
        raise blocks.error(f"pcap version {major}.{minor} is not supported", 4)
    link = network & 0x03FF_FFFF  # above are flags and the length of the frame check sequence
    limit = size_limit(snap)
    unpack = struct.Struct(order + "4I").unpack_from

    base, at, number = 0, HEADER, blocks.packets  # base: the buffer's position in the file
    while True:
        packets: list[Packet] = []
        end = len(buffer)
        # Not `while at + RECORD <= end`: Python 3.11 adapts a loop only at a jump without a condition
        while True:
            start = at + RECORD
            if start > end:
                missing, size = start - end, 0
                break
            seconds, fraction, size, wire = unpack(buffer, at)
            missing = start + size - end
            # As a record, the header of another file is an empty packet
            if missing > 0 or size > limit or (not size and buffer[at : at + 4] in MAGICS):
                break
            number += 1
            time_ns = seconds * 1_000_000_000 + fraction * unit
            packets.append(Packet(buffer, time_ns, number, 0, start, size, wire if wire > size else size, link))
            at = start + size
        if packets:
            blocks.packets = number
            blocks.place(buffer, base)
            yield packets
        base += at
        if size > limit:
            raise blocks.error(f"packet {number + 1} claims {size} bytes, more than a packet can have", base)
        if missing <= 0:
            raise blocks.error("another capture was appended to it; give each as a file of its own", base)
        left = buffer[at:]
        try:
            block = blocks.read(missing)
        except CaptureError as error:
            raise blocks.located(error, base) from error
        if not block:
            if left:
                raise blocks.error(f"cut off in packet {number + 1}: {missing} bytes are missing", base)
            return
        buffer, at, block = left + block if left else block, 0, b""  # twice the bytes would be held else


def size_limit(snap: int) -> int:
    """Return the maximum length of a record; a snap length of 0 means none."""
    return min(max(snap or LARGEST, ALWAYS), LARGEST)
