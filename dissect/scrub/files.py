"""The packets of a capture in a file of the same format that can be changed in place: without comments, names of machines and keys.

Packed input is written unpacked. What cannot be read of a damaged file is left out.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from array import array
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..capture import pcap, pcapng
from ..capture.blocks import Blocks, RawInput
from ..capture.files import open_capture
from ..capture.unpack import packing
from ..errors import CaptureError

PIECE = 1 << 20
STATISTICS = 5

KEPT: dict[int, frozenset[int]] = {
    pcapng.SECTION: frozenset(),
    pcapng.INTERFACE: frozenset((8, 9, 13, 14)),  # speed, resolution of times, frame check sequence, offset of times
    pcapng.ENHANCED: frozenset((2, 4, 5, 6)),  # flags, packets dropped, id, queue
    pcapng.OBSOLETE: frozenset((2,)),
    STATISTICS: frozenset((2, 3, 4, 5, 6, 7, 8)),  # counts and times of interface statistics
}
"""The options that stay, by type of block: numbers, no text. Other blocks are left out: names of machines, keys, unknown blocks."""

OPTIONS_AT = {pcapng.SECTION: 24, pcapng.INTERFACE: 16, STATISTICS: 20}
"""Where options begin in blocks that hold no packet."""

NUMBER = 8
"""Bytes of the longest number of an option."""


class CaptureCopy(NamedTuple):
    """A copy of a capture: where each packet's bytes begin in it, and how many there are; `left_out` blocks and options, `error` why
    reading ended early."""

    offsets: array[int]
    sizes: array[int]
    left_out: int
    error: CaptureError | None


def spooled(stream: BinaryIO) -> BinaryIO:
    """Return the data of a pipe as a temporary file without a name, which can be read twice."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(stream, file, PIECE)
    file.seek(0)
    return file


def copied(source: str | Path | BinaryIO, target: BinaryIO, name: str) -> CaptureCopy:
    """Write the packets of `source` to `target`; raise `CaptureError` for other files."""
    count, error = _count(source, name)
    with Path(source).open("rb") if isinstance(source, str | Path) else nullcontext(source) as stream:
        stream.seek(0)
        raw = RawInput(stream, name)
        reader = _Bytes(Blocks(raw, packing(raw)))
        copy = _pcap if reader.peek(4) in pcap.MAGICS else _pcapng
        return copy(reader, target, count, error)


def _count(source: str | Path | BinaryIO, name: str) -> tuple[int, CaptureError | None]:
    """How many packets can be read, as everything that reads the capture counts them."""
    reader = open_capture(source, name=name)
    try:
        deque(reader.batches(), 0)
    except CaptureError as error:
        return reader.packets, error
    return reader.packets, None


class _Bytes:
    """Reads exact numbers of bytes."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._data = b""
        self._at = 0

    def peek(self, size: int) -> bytes:
        if len(self._data) - self._at < size:
            rest = self._data[self._at :]
            try:
                more = self._blocks.read(size - len(rest))
            except CaptureError:
                # the count of packets says how far to go
                more = b""
            self._data, self._at = rest + more, 0
        return self._data[self._at : self._at + size]

    def read(self, size: int) -> bytes:
        data = self.peek(size)
        self._at += len(data)
        return data


def _pcap(reader: _Bytes, target: BinaryIO, count: int, error: CaptureError | None) -> CaptureCopy:
    header = reader.read(pcap.HEADER)
    order, _ = pcap.MAGICS[header[:4]]
    unpack = struct.Struct(order + "8xI4x").unpack
    offsets, sizes = array("q"), array("q")
    target.write(header)
    at = len(header)
    for _ in range(count):
        record = reader.read(pcap.RECORD)
        (size,) = unpack(record)
        target.write(record)
        target.write(reader.read(size))
        offsets.append(at + pcap.RECORD)
        sizes.append(size)
        at += pcap.RECORD + size
    return CaptureCopy(offsets, sizes, 0, error)


def _pcapng(reader: _Bytes, target: BinaryIO, count: int, error: CaptureError | None) -> CaptureCopy:
    offsets, sizes = array("q"), array("q")
    order = "<"
    snap: int | None = None
    at = left_out = 0
    while len(reader.peek(12)) == 12 and (error is None or len(offsets) < count):
        head = reader.peek(12)
        if head[:4] == pcapng.MAGIC:
            order = pcapng.BYTE_ORDERS.get(head[8:12], order)
        kind, size = struct.unpack(order + "II", head[:8])
        size = pcapng.filled(size)
        block = reader.read(size)
        if len(block) < max(size, 12):
            break
        if kind == pcapng.INTERFACE and snap is None:
            (snap,) = struct.unpack_from(order + "I", block, 12)
        body, place, captured = _body(order, kind, block, snap or 0)
        if body is None:
            left_out += 1
            continue
        kept, gone = _options(order, kind, block, body)
        if captured >= 0:
            # what fills a packet up may be left over from anything
            end = place - 8 + captured
            left = len(kept) - end if kind == pcapng.SIMPLE else -captured & 3
            kept = kept[:end] + bytes(left) + kept[end + left :]
        left_out += gone
        total = len(kept) + 12
        if captured >= 0:
            offsets.append(at + place)
            sizes.append(captured)
        target.write(struct.pack(order + "II", kind, total) + kept + struct.pack(order + "I", total))
        at += total
        if kind == pcapng.SECTION:
            snap = None
    return CaptureCopy(offsets, sizes, left_out, error)


def _body(order: str, kind: int, block: bytes, snap: int) -> tuple[int | None, int, int]:
    """Where the options of a block begin (None: the block goes), where its packet is, and how many bytes that has (-1: none)."""
    if kind in OPTIONS_AT:
        return OPTIONS_AT[kind], 0, -1
    if kind in (pcapng.ENHANCED, pcapng.OBSOLETE):
        (captured,) = struct.unpack_from(order + "I", block, 20)
        return 28 + (captured + 3 & ~3), 28, captured
    if kind == pcapng.SIMPLE:
        (wire,) = struct.unpack_from(order + "I", block, 8)
        captured = min(wire, len(block) - 16, snap or wire)
        return len(block) - 4, 12, captured
    return None, 0, -1


def _options(order: str, kind: int, block: bytes, at: int) -> tuple[bytes, int]:
    """The block without its type, length and the options that go; how many those are."""
    start = bytearray(block[8:at])
    if kind == pcapng.SECTION:
        # its length is not that of before
        struct.pack_into(order + "q", start, 8, -1)
    if kind == pcapng.SIMPLE:
        return bytes(start), 0
    kept: list[bytes] = []
    gone = 0
    for code, value in pcapng.each_option(block[at:-4], order, len(block)):
        if code in KEPT[kind] and len(value) <= NUMBER:
            kept.append(struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) & 3))
        else:
            gone += 1
    if kept:
        kept.append(bytes(4))
    return bytes(start) + b"".join(kept), gone
