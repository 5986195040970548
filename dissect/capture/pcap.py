"""Reads pcap files of both byte orders, with microseconds or nanoseconds.

After the I-D draft-ietf-opsawg-pcap and what libpcap writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissect.capture.blocks import Blocks
from dissect.capture.columns import gather
from dissect.errors import CaptureError
from dissect.model import PacketBatch

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
"""How long a record may be: as the snap length says, but at least `ALWAYS`, since many writers name less than they write."""

HEADER = 24
RECORD = 16


def read_packets(blocks: Blocks, links: dict[int, None]) -> Iterator[PacketBatch]:
    """The packets of a file whose magic is one of `MAGICS`; its link type goes into `links`."""
    block = blocks.read(HEADER)
    if len(block) < HEADER:
        raise blocks.error(f"cut off in the file header: {len(block)} of {HEADER} bytes", 0)
    order, unit = MAGICS[block[:4]]
    major, minor, snap, network = struct.unpack_from(order + "HH8xII", block, 4)
    if major != 2:
        raise blocks.error(f"pcap version {major}.{minor} is not known", 4)
    link = network & 0x03FF_FFFF  # above are flags and the length of the frame check sequence
    links[link] = None
    limit = size_limit(snap)
    header = np.dtype([("seconds", order + "u4"), ("fraction", order + "u4"), ("captured", order + "u4"), ("wire", order + "u4")])
    unpack = struct.Struct(order + "I").unpack_from

    base, buffer, at = 0, block, HEADER  # base: the buffer's position in the file
    while True:
        # Everything that waits is the lengths: the loop walks along them and the end of the buffer ends it.
        lengths: list[int] = []
        add = lengths.append
        here = at + 8
        try:
            while True:
                add(here)
                here += unpack(buffer, here)[0] + RECORD
        except struct.error:
            lengths.pop()
        rest = here - 8
        if rest > len(buffer):  # the last record reaches beyond the buffer
            rest = lengths.pop() - 8
        if lengths:
            offset = np.array(lengths, np.int64)
            offset -= 8
            columns = gather(buffer, offset, header)
            captured = columns["captured"].astype(np.int64)
            if int(captured.max()) > limit:
                stop = int(np.flatnonzero(captured > limit)[0])
                rest = int(offset[stop])
                offset, columns, captured = offset[:stop], columns[:stop], captured[:stop]
            if len(offset):
                first = blocks.packets + 1
                blocks.packets += len(offset)
                yield _batch(buffer, offset + RECORD, columns, captured, first, unit, link)
        base += rest
        left = buffer[rest:]
        need = RECORD - len(left)
        if need <= 0:
            size = unpack(left, 8)[0]
            if size > limit:
                raise blocks.error(f"packet {blocks.packets + 1} says it has {size} bytes, more than any packet", base)
            need = RECORD + size - len(left)
        try:
            block = blocks.read(need)
        except CaptureError as error:
            raise blocks.located(error, base) from error
        if not block:
            if left:
                raise blocks.error(f"cut off in packet {blocks.packets + 1}: {need} bytes are missing", base)
            return
        buffer, at, block = left + block if left else block, 0, b""  # twice the bytes would be held else


def _batch(
    buffer: bytes, offset: NDArray[np.int64], columns: NDArray[Any], captured: NDArray[np.int64], first: int, unit: int, link: int
) -> PacketBatch:
    """The packets whose bytes begin at `offset`, the first one is number `first`; a fraction of a second counts `unit` ns."""
    time_ns = columns["seconds"].astype(np.int64)
    time_ns *= 1_000_000_000
    fraction = columns["fraction"].astype(np.int64)
    time_ns += fraction if unit == 1 else fraction * unit
    return PacketBatch(
        buffer,
        time_ns,
        np.arange(first, first + len(offset), dtype=np.int64),
        np.zeros(len(offset), np.int32),
        offset,
        captured,
        np.maximum(captured, columns["wire"]),
        np.full(len(offset), link, np.int32),
    )


def size_limit(snap: int) -> int:
    """How long a record may say it is; 0 stands for no snap length."""
    return min(max(snap or LARGEST, ALWAYS), LARGEST)
