"""ScyllaDB's compression SCYLLA_V3: the head of a frame, and the three ways to pack the message after it.

A frame does not depend on those before it, only on a dictionary. No unpacked size is on the wire, so a limit takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from ...crc32c import crc32c
from ...lz4 import REACH, unpack_block
from ...quota import UnpackQuota
from ...zstd import codec
from .compression import Unpackable, unpack_head
from .dictionaries import Dictionary
from .layouts import ALGORITHM, CHECKSUM, CONTROL, CONTROL_SIZE, LZ4_METHOD, METHODS, RAW, ZSTD

_u32 = Struct("<I").unpack_from

BLOCK: Final = 65_535
"""What an LZ4 block unpacks to at most."""

ZSTD_MAGIC = bytes.fromhex("28b52ffd")
"""In front of the zstd frames of files; ScyllaDB leaves it out."""

WINDOW: Final = 20
"""The largest window of a zstd frame, as a power of two. ScyllaDB's is 17."""

STEP: Final = 1 << 16
"""Bytes that zstd unpacks before the quota is asked again."""


class Unreadable(Unpackable):
    """Packed bytes that no dictionary makes readable."""


class Head(NamedTuple):
    """The head of a frame: the algorithm, the checksum if there is one, where the control block begins (0 if there is none), and the packed
    bytes. Offsets count from the frame."""

    method: int
    checksum: int | None
    control: int
    packed: int

    @property
    def raw_at(self) -> int | None:
        """Where the message begins in the frame if it is not packed."""
        return self.packed if self.method == RAW else None

    def fits(self, message: bytes) -> bool:
        """Return whether the checksum, if there is one, is that of `message`."""
        return self.checksum is None or self.checksum == crc32c(message)


def head_size(header: int) -> int:
    """Return the size of a head with these bits, the length of the frame included."""
    return 5 + 4 * bool(header & CHECKSUM) + CONTROL_SIZE * bool(header & CONTROL)


def head_of(data: bytes, at: int, end: int) -> Head | None:
    """Return the head of the frame that begins at `at`, None if its bytes before `end` contain no complete one."""
    if end - at < 5:
        return None
    header = data[at + 4]
    method, size = header & ALGORITHM, head_size(header)
    if method not in METHODS or end - at < size:
        return None
    checksum = _u32(data, at + 5)[0] if header & CHECKSUM else None
    return Head(method, checksum, size - CONTROL_SIZE if header & CONTROL else 0, size)


def blocks(data: bytes, start: int, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the LZ4 blocks in data[at:end]: where the size of each stands, and where it begins and ends. Offsets of errors count from
    `start`."""
    while at < end:
        first = data[at]
        width = (first & -first).bit_length()
        if not 1 <= width <= 5 or width > end - at:
            raise Unreadable(at - start, "this is no size of an LZ4 block")
        size = int.from_bytes(data[at : at + width], "little") >> width
        begin = at + width
        if not 0 < size <= end - begin:
            raise Unreadable(at - start, f"LZ4 block of {size} bytes, {end - begin} left")
        yield at, begin, begin + size
        at = begin + size


def unpack(head: Head, data: bytes, start: int, end: int, dictionary: Dictionary | None, limit: int, quota: UnpackQuota) -> bytes:
    """Return the message in the frame data[start:end]; raises Unpackable. `quota` is charged also for what was unpacked in vain."""
    at = start + head.packed
    if head.method == RAW or at == end:
        return data[at:end]
    unpacked = _lz4 if head.method == LZ4_METHOD else _zstd
    return unpacked(data, start, at, end, dictionary, limit, quota)


def _lz4(data: bytes, start: int, at: int, end: int, dictionary: Dictionary | None, limit: int, quota: UnpackQuota) -> bytes:
    found = bytearray()
    for _, begin, stop in blocks(data, start, at, end):
        packed = data[begin:stop]
        try:
            # Most refer to nothing before them, and then any history gives the same
            piece = unpack_block(packed, b"", BLOCK)
        except ValueError:
            before = bytes(found[-REACH:])
            if dictionary is not None and len(before) < REACH:
                before = dictionary.tail[-(REACH - len(before)) :] + before
            try:
                piece = unpack_block(packed, before, BLOCK)
            except ValueError as error:
                raise Unpackable(begin - start, f"not an LZ4 block of up to {BLOCK} bytes") from error
        found += piece
        _spend(quota, len(piece), len(found), limit)
    return bytes(found)


def _zstd(data: bytes, start: int, at: int, end: int, dictionary: Dictionary | None, limit: int, quota: UnpackQuota) -> bytes:
    zstd = codec()
    options = {int(zstd.DecompressionParameter.window_log_max): WINDOW}
    try:
        unpacker = zstd.ZstdDecompressor(zstd_dict=None if dictionary is None else dictionary.zstd, options=options)
        feed, pieces, size = ZSTD_MAGIC + data[at:end], [], 0
        while not unpacker.eof:
            piece = unpacker.decompress(feed, min(STEP, quota.left + 1))
            if not piece and not unpacker.eof:
                raise Unpackable(end - start, "the zstd data ends early")
            feed = b""
            pieces.append(piece)
            size += len(piece)
            _spend(quota, len(piece), size, limit)
    except (zstd.ZstdError, ValueError) as error:
        # "Unable to decompress Zstandard data: ..."
        reason = str(error).rpartition(": ")[2].lower()
        raise Unpackable(at - start, f"not zstd data: {reason}") from error
    if unpacker.unused_data:
        raise Unreadable(end - start - len(unpacker.unused_data), "bytes behind the zstd data")
    return b"".join(pieces)


def _spend(quota: UnpackQuota, size: int, total: int, limit: int) -> None:
    if not quota.spend(size) or total > limit:
        raise Unreadable(4, f"{total} unpacked bytes or more are over the limit of {limit} bytes")


def beginning(head: Head, data: bytes, start: int, end: int, dictionary: Dictionary | None) -> bytes:
    """Return the first bytes of the message of a frame of which only data[start:end] is there, as many as that gives."""
    at = start + head.packed
    if head.method == RAW:
        return data[at:end]
    if head.method == ZSTD or at >= end:
        return b""
    width = (data[at] & -data[at]).bit_length()
    return unpack_head(data[at + width : end], b"" if dictionary is None else dictionary.tail)


def messages(head: Head, data: bytes, start: int, end: int, known: Sequence[Dictionary], limit: int, quota: UnpackQuota) -> Iterator[bytes]:
    """Yield what the frame data[start:end] may hold: unpacked without a dictionary and with each of `known`, if the checksum is right.
    Raises Unreadable for bytes that are not a frame."""
    for dictionary in (None, *known) if head.method != RAW else (None,):
        try:
            message = unpack(head, data, start, end, dictionary, limit, quota)
        except Unreadable:
            raise
        except Unpackable:
            continue
        if head.fits(message):
            yield message
    if head.method == LZ4_METHOD:
        # whether the blocks end where the frame does
        for _ in blocks(data, start, start + head.packed, end):
            pass
