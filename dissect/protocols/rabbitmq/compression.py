"""Sub-batches unpacked: never beyond the size they declare, and never beyond a limit."""

from __future__ import annotations

import zlib
from struct import error as struct_error

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

COMPRESSIONS = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

UNPACKED_LIMIT = 32 << 20
"""Bytes unpacked from one frame. A client may send 1 MiB a frame unless the server is configured otherwise."""

_SNAPPY_STREAM = b"\xff\x06\x00\x00sNaPpY"


class NotUnpacked(Exception):
    """A sub-batch that cannot be unpacked; the text gives the reason."""


def unpack(compression: int, data: bytes, size: int) -> bytes:
    """`data` unpacked, at most `size` bytes."""
    name = COMPRESSIONS.get(compression)
    if name is None:
        raise NotUnpacked(f"compression {compression} is not known")
    try:
        if compression == GZIP:
            return _gunzip(data, size)
        return _with_cramjam(compression, data, size)
    except ImportError as missing:
        raise NotUnpacked(f"{name}: no codec is installed") from missing
    except (zlib.error, struct_error, ValueError, OSError) as wrong:
        raise NotUnpacked(f"{name}: {wrong}") from wrong


def _gunzip(data: bytes, size: int) -> bytes:
    unpacker = zlib.decompressobj(31)
    # One byte more than allowed distinguishes a bomb from a batch of exactly that size.
    unpacked = unpacker.decompress(data, size + 1)
    if len(unpacked) > size:
        raise ValueError(f"unpacks to more than the {size} bytes declared")
    if not unpacker.eof:
        raise ValueError("the compressed data is cut off")
    return unpacked


def _with_cramjam(compression: int, data: bytes, size: int) -> bytes:
    import cramjam

    target = bytearray(size)
    try:
        if compression == LZ4:
            written = cramjam.lz4.decompress_into(data, target)
        elif compression == ZSTD:
            written = cramjam.zstd.decompress_into(data, target)
        elif data[:10] == _SNAPPY_STREAM:
            written = cramjam.snappy.decompress_into(data, target)
        else:
            if cramjam.snappy.decompress_raw_len(data) > size:
                raise ValueError(f"unpacks to more than the {size} bytes declared")
            written = cramjam.snappy.decompress_raw_into(data, target)
    except cramjam.DecompressionError as wrong:
        if "failed to write whole buffer" in str(wrong):
            raise ValueError(f"unpacks to more than the {size} bytes declared") from wrong
        raise ValueError(str(wrong)) from wrong
    return bytes(memoryview(target)[:written])
