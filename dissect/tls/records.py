"""Checks of records without their keys: type, version and length."""

from __future__ import annotations

CHANGE, ALERT, MESSAGE, DATA, HEARTBEAT = 20, 21, 22, 23, 24

FIRST_BYTES = bytes([ALERT]), bytes([MESSAGE]), bytes([DATA])
"""How a connection may begin for `begins`, `alert` and `sealed`."""

LARGEST = (1 << 14) + 2048
"""Maximum bytes of a record after its header."""


def sane(data: bytes, at: int) -> bool:
    """Return whether the five bytes at `at` may be the header of a record."""
    return CHANGE <= data[at] <= HEARTBEAT and data[at + 1] == 3 and data[at + 2] <= 4 and (data[at + 3] << 8 | data[at + 4]) <= LARGEST


def begins(data: bytes) -> bool | None:
    """Return whether bytes start a TLS connection with a ClientHello or ServerHello; None if more bytes are needed."""
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
    """Return whether bytes start with an alert in the clear."""
    return len(data) >= 7 and data[:2] == b"\x15\3" and data[2] <= 4 and data[3:5] == b"\0\2" and data[5] in (1, 2)


def sealed(data: bytes) -> bool:
    """Return whether bytes may start with an encrypted record, judging by its header and the next one."""
    if len(data) < 2 * 5 + 16 or data[:3] != b"\x17\3\3" or not sane(data, 0):
        return False
    end = 5 + (data[3] << 8 | data[4])
    return end >= len(data) - 4 or (data[end] in (ALERT, DATA) and data[end + 1 : end + 3] == b"\3\3")
