"""Frames of ScyllaDB's SCYLLA_V3, built from its description; nothing here is used by the code it tests.

zstd is packed by its library, LZ4 by a small matcher, as no library at hand packs blocks that refer to a dictionary.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from hashlib import sha256
from struct import pack
from uuid import UUID

RAW, LZ4, ZSTD = range(3)
NOTHING, UPDATE, COMMIT = range(3)
REACH = 65_535

zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def crc(data: bytes) -> int:
    """CRC-32C from 0 without the final inversion."""
    state = 0
    for byte in data:
        state = _BYTE[(state ^ byte) & 255] ^ state >> 8
    return state


def _bits(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 * (value & 1))
    return value


_BYTE = [_bits(value) for value in range(256)]


def varint(value: int) -> bytes:
    """As many trailing zero bits in the first byte as there are further bytes, then the number."""
    width = max(1, -(-value.bit_length() // 7))
    return (value << width | 1 << (width - 1)).to_bytes(width, "little")


def lz4_block(data: bytes, before: bytes = b"") -> bytes:
    """One LZ4 block; matches may begin in `before`. The last five bytes are literals, and no match begins in the last twelve."""
    before = before[-REACH:]
    text, base = before + data, len(before)
    places: dict[bytes, int] = {text[at : at + 4]: at for at in range(max(0, base - 3))}
    out, literal, at = bytearray(), base, base
    while at < len(text) - 12:
        found = places.get(text[at : at + 4])
        places[text[at : at + 4]] = at
        if found is None or at - found > REACH:
            at += 1
            continue
        size = 4
        while at + size < len(text) - 5 and text[found + size] == text[at + size]:
            size += 1
        out += _sequence(text[literal:at], at - found, size)
        at += size
        literal = at
    return bytes(out + _sequence(text[literal:], 0, 4))


def _sequence(literals: bytes, distance: int, size: int) -> bytes:
    counts = len(literals), size - 4
    token = bytes((min(counts[0], 15) << 4 | min(counts[1], 15),))
    first, second = (b"\xff" * ((n - 15) // 255) + bytes(((n - 15) % 255,)) if n >= 15 else b"" for n in counts)
    return token + first + literals + (distance.to_bytes(2, "little") + second if distance else b"")


def lz4(message: bytes, dictionary: bytes = b"", sizes: Sequence[int] = (65_535, 1)) -> bytes:
    """Blocks of these unpacked sizes in turn."""
    out, at, turn = b"", 0, 0
    while at < len(message):
        size = sizes[turn % len(sizes)]
        block = lz4_block(message[at : at + size], dictionary[-REACH:] + message[:at])
        out += varint(len(block)) + block
        at += size
        turn += 1
    return out


def zstandard(message: bytes, dictionary: bytes = b"") -> bytes:
    names = zstd.CompressionParameter
    options = {names.content_size_flag: 0, names.dict_id_flag: 0, names.checksum_flag: 0, names.window_log: 17}
    known = zstd.ZstdDict(dictionary, is_raw=not dictionary.startswith(b"\x37\xa4\x30\xec")) if dictionary else None
    packer = zstd.ZstdCompressor(options=options, zstd_dict=known)
    # in two steps, as one alone may leave out the window
    packed = packer.compress(message[:1]) + packer.compress(message[1:], packer.FLUSH_FRAME)
    assert packed[:5] == b"\x28\xb5\x2f\xfd\x00"
    return bytes(packed[4:])


def half(
    action: int = NOTHING, epoch: int = 0, allowed: int = 0, dictionary: bytes = b"", origin: str | None = None, timestamp: int = 0
) -> bytes:
    """One half of a control block."""
    named = sha256(dictionary).digest() if dictionary else bytes(32)
    return pack("<BQB", action, epoch, allowed) + UUID(origin or "0" * 32).bytes[::-1] + pack("<Q", timestamp) + named


def frame(
    message: bytes,
    method: int = RAW,
    *,
    control: bytes = b"",
    checksum: bool | int = True,
    dictionary: bytes = b"",
    packed: bytes | None = None,
) -> bytes:
    """A frame with its length; `checksum`: False for none, or a wrong one."""
    if packed is None:
        packed = message if method == RAW or not message else lz4(message, dictionary) if method == LZ4 else zstandard(message, dictionary)
    header = method | 0x40 * (checksum is not False) | 0x80 * bool(control)
    summed = b"" if checksum is False else pack("<I", crc(message) if checksum is True else checksum)
    body = bytes((header,)) + summed + control + packed
    return pack("<I", len(body)) + body


def history(seed: int = 7, size: int = 100_000) -> bytes:
    """Text like that in messages of a cluster, as a dictionary in no format of its own."""
    words = [b"system_auth", b"role_permissions", b"keyspace1", b"standard1", b"replication_factor", b"SimpleStrategy", b"10.0.0.%d"]
    out, state = bytearray(), seed
    while len(out) < size:
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        word = words[(state >> 16) % len(words)]
        out += (word % (state >> 8 & 255) if b"%" in word else word) + pack("<I", state)
    return bytes(out[:size])


def trained(seed: int = 7) -> bytes:
    """A dictionary in zstd's own format."""
    text = history(seed, 60_000)
    samples = [text[at : at + 200] for at in range(0, len(text), 200)]
    return bytes(zstd.train_dict(samples, 8_000).dict_content)
