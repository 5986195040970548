"""Decompresses gzip, zstd, lz4, xz and bzip2 as the bytes arrive, without waiting for more input than needed."""

from __future__ import annotations

import bz2
import contextlib
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from .. import lz4
from ..errors import CaptureError, MissingCodec
from ..zstd import ZSTD_CODEC
from .blocks import PIECE, Damaged, RawInput

GZIP = bytes.fromhex("1f8b")
BZIP2 = b"BZh"
XZ = bytes.fromhex("fd377a585a00")
ZSTD = bytes.fromhex("28b52ffd")
LZ4 = bytes.fromhex("04224d18")
LZ4_LEGACY = bytes.fromhex("02214c18")
SKIPPED = tuple(bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60))
"""Magic numbers of skippable zstd and lz4 frames."""

FIRST_PIECE = 1 << 7
GZIP_PIECE = 1 << 14
"""Input of one call. gzip can expand it 1,000 times, all at once. The first piece of a member is small, as a file can have a million
empty members and surplus input is copied each time."""

OUTPUT = 1 << 12
"""Output limit of one call, where supported. It is small, as a call that finds damage discards its output."""

XZ_MEMORY = 256 << 20
ZSTD_WINDOW = 27
"""Memory limits for decompression, that of zstd as a power of two; `xz -9` needs 65 MiB, `zstd --long` 128 MiB."""

TOO_MUCH = ("Memory usage limit", "requires too much memory")
"""Error texts of xz and zstd for more memory."""
UNLIMITED = {"xz": (XZ_MEMORY, "xz -dc"), "zstd": (1 << ZSTD_WINDOW, "zstd -dc --long=31")}
"""The limit in bytes, and a command without it."""

LZ4_BLOCKS = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
LZ4_MATCH = 9
"""The smallest block that can refer to earlier bytes: each block ends with five literals."""


def packing(raw: RawInput) -> Iterator[bytes] | None:
    """The unpacked pieces of a packed input, None where it is not packed."""
    magic = raw.peek(6)
    if magic.startswith(GZIP):
        return _gzip(raw)
    if magic.startswith(BZIP2):
        return _members(raw, "bzip2", BZIP2, bz2.BZ2Decompressor)
    if magic == XZ:
        return _members(raw, "xz", XZ, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY))
    if magic[:4] in (ZSTD, LZ4, *SKIPPED):
        return _frames(raw)
    if magic.startswith(LZ4_LEGACY):
        raise CaptureError("is compressed in the legacy lz4 format, which is not supported; use lz4 -dc FILE | streamdump -", raw.name)
    return None


def _gzip(raw: RawInput) -> Iterator[bytes]:
    more = True
    while more:
        unpacker = zlib.decompressobj(31)
        size = FIRST_PIECE
        while not unpacker.eof:
            data = _some(raw, size, "gzip")
            before = zlib.decompressobj(31) if size == FIRST_PIECE else unpacker.copy()
            try:
                piece = unpacker.decompress(data)
            except zlib.error as error:
                yield from _until_error(before, data)
                raise Damaged(f"the gzip data is damaged: {error}") from error
            if piece:
                yield piece
            size = GZIP_PIECE
        raw.push_back(len(unpacker.unused_data))
        more = _another(raw, "gzip", GZIP)


def _until_error(unpacker: Any, data: bytes) -> Iterator[bytes]:
    """Yield the output before the error, which a single call would discard."""
    with contextlib.suppress(zlib.error):
        for at in range(len(data)):
            if piece := unpacker.decompress(data[at : at + 1]):
                yield piece


def _members(raw: RawInput, what: str, magic: bytes, make: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the content of consecutive xz or bzip2 streams."""
    more = True
    while more:
        yield from _member(raw, what, make(), OSError, lzma.LZMAError)
        more = _another(raw, what, magic)


def _member(raw: RawInput, what: str, unpacker: Any, *wrong: type[Exception]) -> Iterator[bytes]:
    size = FIRST_PIECE
    while not unpacker.eof:
        data = b""
        if unpacker.needs_input:
            data = _some(raw, size, what)
            size = PIECE
        try:
            piece = unpacker.decompress(data, OUTPUT)
        except wrong as error:
            if any(text in str(error) for text in TOO_MUCH):
                most, command = UNLIMITED[what]
                raise Damaged(
                    f"the {what} data needs more than {most >> 20} MiB of memory to decompress; use {command} FILE | streamdump -"
                ) from error
            raise Damaged(f"the {what} data is damaged: {error}") from error
        if piece:
            yield piece
    raw.push_back(len(unpacker.unused_data))


def _another(raw: RawInput, what: str, magic: bytes) -> bool:
    """Return whether another stream follows; zero bytes may pad to a block size between streams and at the end."""
    if raw.peek(len(magic)) == magic:
        return True
    size = FIRST_PIECE
    while (following := raw.peek(size if raw.ready() else 1)) and not following.strip(b"\0"):
        raw.read_compressed(len(following))
        size = PIECE
    if not following:
        return False
    raw.read_compressed(len(following) - len(following.lstrip(b"\0")))
    if raw.peek(len(magic)) != magic:
        raise Damaged(f"other data follows the {what} data")
    return True


def _frames(raw: RawInput) -> Iterator[bytes]:
    """Yield the content of consecutive zstd and lz4 frames."""
    zstd = scratch = None
    while magic := raw.peek(4):
        if magic in SKIPPED:
            size = int.from_bytes(_exactly(raw, 8, "packed")[4:], "little")
            while size:
                size -= len(_some(raw, min(size, PIECE), "packed"))
        elif magic == ZSTD:
            if zstd is None:
                zstd = _codec(ZSTD_CODEC, "zstd")
                bounded = {int(zstd.DecompressionParameter.window_log_max): ZSTD_WINDOW}
            yield from _member(raw, "zstd", zstd.ZstdDecompressor(options=bounded), zstd.ZstdError)
        elif magic == LZ4:
            if scratch is None:
                scratch = bytearray(lz4.REACH + 4 + max(LZ4_BLOCKS.values()))
            yield from _lz4(raw, scratch)
        else:
            raise Damaged("other data follows the compressed data")


def _lz4(raw: RawInput, scratch: bytearray) -> Iterator[bytes]:
    """Yield the blocks of one frame, decompressed into `scratch`. Blocks before a wrong checksum have been yielded by then."""
    _codec("cramjam", "lz4")
    xxhash = _codec("xxhash", "lz4")
    flags, sizes = descriptor = _exactly(raw, 6, "lz4")[4:]
    largest = LZ4_BLOCKS.get(sizes >> 4 & 7)
    if flags >> 6 != 1 or largest is None or flags & 1:
        raise Damaged("the lz4 data has an unknown version or needs a dictionary")
    linked, block_sum, content_size, content_sum = not flags & 0x20, flags & 0x10, flags & 0x08, flags & 0x04
    if content_size:
        descriptor += _exactly(raw, 8, "lz4")
    if _exactly(raw, 1, "lz4")[0] != xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF:
        raise Damaged("the lz4 data is damaged: the checksum of a frame's header is wrong")
    content = xxhash.xxh32()
    window = b""
    while (size := int.from_bytes(_exactly(raw, 4, "lz4"), "little")) != 0:
        stored, size = size >> 31, size & 0x7FFF_FFFF
        if size > largest:
            raise Damaged(f"the lz4 data is damaged: a block of {size} bytes")
        block = _exactly(raw, size, "lz4")
        if block_sum:
            _lz4_check(raw, xxhash.xxh32_intdigest(block), "block")
        if not stored:
            try:
                block = lz4.unpack_block(block, window if size >= LZ4_MATCH else b"", largest, scratch)
            except ValueError as error:
                raise Damaged(f"the lz4 data is damaged: {error}") from error
        if block:
            yield block
        if content_sum:
            content.update(block)
        if linked:
            window = (window + block)[-lz4.REACH :]
    if content_sum:
        _lz4_check(raw, content.intdigest(), "frame")


def _lz4_check(raw: RawInput, checksum: int, what: str) -> None:
    if int.from_bytes(_exactly(raw, 4, "lz4"), "little") != checksum:
        raise Damaged(f"the lz4 data is damaged: the checksum of a {what} is wrong")


def _codec(package: str, what: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingCodec(f"is compressed with {what}; reading it needs the package {package}") from error


def _some(raw: RawInput, size: int, what: str) -> bytes:
    data = raw.read_compressed(size)
    if not data:
        raise Damaged(f"the {what} data is cut off")
    return data


def _exactly(raw: RawInput, size: int, what: str) -> bytes:
    parts = []
    while size:
        parts.append(_some(raw, size, what))
        size -= len(parts[-1])
    return b"".join(parts)
