"""CRC-32C as ScyllaDB computes it: reflected polynomial 0x82f63b78, initial value 0, no final inversion."""

from __future__ import annotations

from collections.abc import Iterator

_FEW = 128
"""Bytes for which a loop is not slower than a call of the codec, which costs 12 µs however few they are."""

_PIECE = 65_536 - 4
_ONES = 0xFFFF_FFFF


def _remainders() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F6_3B78 if value & 1 else 0)
        yield value


_TABLE = tuple(_remainders())
_BY_HIGH_BYTE = {value >> 24: index for index, value in enumerate(_TABLE)}


def crc32c(data: bytes) -> int:
    """Return the checksum of `data`; of no bytes it is 0.

    Snappy's framing format stores the usual CRC-32C (initial value and result inverted) of each 64 KiB, so its codec computes most of it in
    C: 0.2 ms per MiB, where a loop takes 90 ms.
    """
    crc = 0
    if len(data) <= _FEW:
        for byte in data:
            crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
        return crc
    import cramjam

    for at in range(0, len(data), _PIECE):
        framed = bytes(memoryview(cramjam.snappy.compress(_leading_to(crc) + data[at : at + _PIECE]))[14:18])
        masked = (int.from_bytes(framed, "little") - 0xA282_EAD8) & _ONES
        crc = (masked >> 17 | masked << 15) & _ONES ^ _ONES
    return crc


def _leading_to(crc: int) -> bytes:
    """Return the four bytes that turn the usual initial value into `crc`."""
    for _ in range(4):
        index = _BY_HIGH_BYTE[crc >> 24]
        crc = (crc ^ _TABLE[index]) << 8 & _ONES | index
    return (crc ^ _ONES).to_bytes(4, "little")
