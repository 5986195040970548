"""Unpacking of Seastar's two stock compressions; `scylla.py` has ScyllaDB's.

Both carry raw LZ4 blocks (no LZ4 frame header). Nothing is carried over from one frame to the next. Sizes are compared before anything is
allocated.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ...lz4 import REACH, unpack_block

_u32 = Struct("<I").unpack_from

LZ4 = "LZ4"
LZ4_FRAGMENTED = "LZ4_FRAGMENTED"
SCYLLA_V3 = "SCYLLA_V3"

CHUNK = 32_768
"""What every chunk of LZ4_FRAGMENTED but the last unpacks to."""

LAST_CHUNK = 0x8000_0000
"""The bit of a chunk header that marks the last chunk."""

SMALLEST_MATCHED = 13
"""LZ4 packs fewer bytes than this as literals only."""

HEAD = 64
"""Bytes that hold the header of any frame."""

RATIO = 255
"""An LZ4 block unpacks to less than this many times its size, give or take a few bytes."""


class Unpackable(Exception):
    """Packed bytes that do not unpack: `offset` in the frame (its length prefix included) and the reason."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset = offset
        self.reason = reason
        super().__init__(f"{reason} at byte {offset}")


class Oversize(Unpackable):
    """A frame that says it unpacks to `size` bytes, which are too many."""

    def __init__(self, size: int, reason: str) -> None:
        super().__init__(4, reason)
        self.size = size


class CompressedBlock(NamedTuple):
    """One packed block of a frame: its header and block in the frame, and the size it unpacks to."""

    header: int
    start: int
    end: int
    unpacked: int
    last: bool


def chunks(algorithm: str, data: bytes, start: int, end: int, limit: int) -> list[CompressedBlock]:
    """The blocks of the compressed frame data[start:end], whose first four bytes are its length; none: an empty frame.

    Offsets count from `start`. What does not add up raises Unpackable, and so does what would unpack to more than `limit` bytes: a
    frame may be nothing but the headers of chunks.
    """
    size = end - start
    if size < 8:
        return []
    if algorithm == LZ4:
        unpacked = _u32(data, start + 4)[0]
        if not unpacked:
            raise Unpackable(4, "an unpacked size of 0 is an error that closes the connection")
        _limit(unpacked, limit)
        return [CompressedBlock(4, 8, size, unpacked, True)]
    found: list[CompressedBlock] = []
    at, total = 4, 0
    while True:
        if size - at < 4:
            raise Unpackable(at, f"chunk header needs 4 bytes, {size - at} left")
        head = _u32(data, start + at)[0]
        if head >= LAST_CHUNK:
            unpacked = head - LAST_CHUNK
            if not unpacked and not total:
                return []
            _limit(total + unpacked, limit)
            found.append(CompressedBlock(at, at + 4, size, unpacked, True))
            return found
        if head > size - at - 4:
            raise Unpackable(at, f"chunk of {head} bytes, {size - at - 4} left")
        total += CHUNK
        if total <= limit:
            found.append(CompressedBlock(at, at + 4, at + 4 + head, CHUNK, False))
        at += 4 + head


def _limit(total: int, limit: int) -> None:
    if total > limit:
        raise Oversize(total, f"{total} unpacked bytes are over the limit of {limit} bytes")


def unpack(blocks: list[CompressedBlock], data: bytes, start: int) -> bytes:
    """The unpacked bytes of a frame that begins at data[start]."""
    pieces: list[bytes] = []
    before = b""
    for block in blocks:
        piece = _block(block, data, start, before)
        pieces.append(piece)
        before = (before + piece)[-REACH:]
    return b"".join(pieces)


def _block(block: CompressedBlock, data: bytes, start: int, before: bytes) -> bytes:
    """One block, which may refer to the bytes unpacked `before` it."""
    packed = data[start + block.start : start + block.end]
    size = block.unpacked
    if not size:
        return b""
    if size > RATIO * len(packed) + 64:
        raise Unpackable(block.header, f"{len(packed)} bytes cannot unpack to {size}")
    try:
        unpacked = unpack_block(packed, before if size >= SMALLEST_MATCHED else b"", size)
    except ValueError as error:
        raise Unpackable(block.start, "not an LZ4 block of this size") from error
    if len(unpacked) != size:
        raise Unpackable(block.start, f"unpacks to {len(unpacked)} bytes, not {size}")
    return unpacked


def unpack_head(packed: bytes, before: bytes = b"") -> bytes:
    """The first unpacked bytes of a block of which only the beginning is available, or as many as that gives; it may refer to `before`."""
    out = bytearray(before)
    at, size, skip = 0, len(packed), len(before)
    while at < size and len(out) - skip < HEAD:
        token = packed[at]
        at += 1
        count, at, complete = _count(packed, at, token >> 4)
        if not complete:
            break
        out += packed[at : at + min(count, HEAD)]
        at += count
        if at + 2 > size:
            break
        distance = packed[at] | packed[at + 1] << 8
        at += 2
        if not 0 < distance <= len(out):
            break
        count, at, complete = _count(packed, at, token & 15)
        if not complete:
            break
        for _ in range(min(count + 4, HEAD)):
            out.append(out[-distance])
    return bytes(out[skip : skip + HEAD])


def _count(packed: bytes, at: int, count: int) -> tuple[int, int, bool]:
    """A number of bytes of which a token says so much; where what follows it begins, and whether all of it is there."""
    more = 255 if count == 15 else 0
    while more == 255:
        if at >= len(packed):
            return count, at, False
        more = packed[at]
        count += more
        at += 1
    return count, at, True
