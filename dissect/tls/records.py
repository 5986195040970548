"""What can be told of a record without its keys: type, version and length."""

from __future__ import annotations

CHANGE, ALERT, MESSAGE, DATA, HEARTBEAT = 20, 21, 22, 23, 24

LARGEST = (1 << 14) + 2048
"""Bytes of a record behind its header."""


def sane(data: bytes, at: int) -> bool:
    """Whether the five bytes at `at` may be the header of a record."""
    return CHANGE <= data[at] <= HEARTBEAT and data[at + 1] == 3 and data[at + 2] <= 4 and (data[at + 3] << 8 | data[at + 4]) <= LARGEST


def begins(data: bytes) -> bool | None:
    """Whether bytes begin a TLS connection, with a ClientHello or ServerHello; None: it may be, more bytes will tell."""
    if data[:1] != b"\x16"[: len(data)]:
        return False
    versions = range(5)
    pattern = ((MESSAGE,), (3,), versions, range(0x49), range(256), (1, 2), (0, 1), range(256), range(256), (3,), versions)
    if any(byte not in allowed for byte, allowed in zip(data, pattern, strict=False)):
        return False
    if len(data) < len(pattern):
        return None
    return 6 <= int.from_bytes(data[3:5], "big") <= LARGEST and int.from_bytes(data[6:9], "big") >= 38


def alert(data: bytes) -> bool:
    """Whether bytes begin with an alert in the clear."""
    return len(data) >= 7 and data[:2] == b"\x15\3" and data[2] <= 4 and data[3:5] == b"\0\2" and data[5] in (1, 2)


def sealed(data: bytes) -> bool:
    """Whether bytes may begin with a sealed record, of which there is nothing but its header to tell that; what follows has to fit."""
    if len(data) < 2 * 5 + 16 or data[:3] != b"\x17\3\3" or not sane(data, 0):
        return False
    end = 5 + (data[3] << 8 | data[4])
    return end >= len(data) - 4 or (data[end] in (ALERT, DATA) and data[end + 1 : end + 3] == b"\3\3")
