"""LZ4 blocks that may refer to bytes unpacked before them."""

from __future__ import annotations

REACH = 65_535
"""How far back a match can refer."""


def unpack_block(packed: bytes, before: bytes, size: int, room: bytearray | None = None) -> bytes:
    """Return an unpacked block of at most `size` bytes; raises ValueError. `room`: a buffer of `size` + REACH + 4 bytes to use.

    The codec has no parameter for earlier bytes (`before`), so a sequence in front of the block writes these: the last four bytes and all
    others as literals, then, as no sequence ends with literals, a match that copies the last four to their place.
    """
    import cramjam

    skip = 0
    if before:
        before = before.rjust(4, b"\0")
        skip = len(before) + 4
        rest = len(before) - 15
        more = b"" if rest < 0 else b"\xff" * (rest // 255) + bytes((rest % 255,))
        token = bytes((min(len(before), 15) << 4,))
        packed = b"".join((token, more, before[-4:], before[:-4], len(before).to_bytes(2, "little"), packed))
    if room is None:
        room = bytearray(skip + size)
    try:
        end = cramjam.lz4.decompress_block_into(packed, room, output_len=skip + size)
    except (cramjam.DecompressionError, ValueError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return bytes(memoryview(room)[skip:end])
