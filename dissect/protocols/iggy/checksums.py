"""Checksums and counts that Apache Iggy's frames carry twice: what does not agree becomes a note."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from struct import Struct
from zlib import crc32

from xxhash import xxh3_64_intdigest

from .layout_versions import RANK

Check = Callable[[bytes, int, int, int], list[str]]
"""`check(data, start, body, end)`: notes on the frame data[start:end], whose body begins at `body`. The frame has been decoded before,
so its lengths hold."""

Digest = Callable[[bytes], int]

SHOWN = 5
"""Limit of wrong checksums of a frame that are reported one by one."""

_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q").unpack_from
_LENGTHS = Struct("<Q40xII").unpack_from
_BATCH = Struct("<24xQQQI").unpack_from
_FRAME = Struct("<Q24xII").unpack_from

CHECKED_OPERATIONS = frozenset((1, 3, *range(128, 150)))


@cache
def checks(code: int | None, layout: str, asks: bool) -> Check | None:
    """The check of a command's frames; None where there is nothing to check."""
    rank = RANK[layout]
    sent, polled = code == 101 and asks, code == 100 and not asks
    if rank >= RANK["V4"]:
        head = 16 if layout == "V4" else 40
        return _sent_v4 if sent else partial(_polled_v4, head=head) if polled else None
    if polled and rank < RANK["L7"]:
        return _polled_l0
    # seen of V2 and V3: the checksum of a polled message is that of the message as V4 has it, with deltas that this form does not carry
    if not (sent and rank >= RANK["L7"]) and not (polled and rank < RANK["V1"]):
        return None
    head, digest = (64 if rank >= RANK["L9"] else 56), (crc32 if layout == "L7" else xxh3_64_intdigest)
    return partial(_sent if sent else _polled, head=head, digest=digest)


def request_checksum(data: bytes, start: int, end: int) -> list[str]:
    """Of the body of a request in the 256-byte framing from V2 to V4; one that fills all 16 bytes is of a kind not known (V5)."""
    low, high = _U64(data, start + 144)[0], _U64(data, start + 152)[0]
    if data[start + 176] not in CHECKED_OPERATIONS or high or not low:
        return []
    computed = xxh3_64_intdigest(data[start + 256 : end])
    return [] if computed == low else [f"request_checksum is {low}, XXH3-64 of the body {computed}"]


def _several(wrong: list[str]) -> list[str]:
    if len(wrong) > SHOWN:
        return [*wrong[:SHOWN], f"checksum of {len(wrong) - SHOWN} more messages wrong"]
    return wrong


def _polled_l0(data: bytes, start: int, body: int, end: int) -> list[str]:
    wrong: list[str] = []
    at = body + 16
    index = 0
    while at < end:
        checksum, headers = _U32(data, at + 33)[0], _U32(data, at + 37)[0]
        at += 41 + headers
        size = _U32(data, at)[0]
        at += 4
        computed = crc32(data[at : at + size])
        if computed != checksum:
            wrong.append(f"messages[{index}]: checksum is {checksum}, CRC-32 of the payload {computed}")
        at += size
        index += 1
    return _several(wrong)


def _ends(data: bytes, at: int, end: int, head: int) -> Iterator[tuple[int, int]]:
    """Where each message begins and ends."""
    while at < end:
        _, headers, payload = _LENGTHS(data, at)
        after = at + head + headers + payload
        yield at, after
        at = after


def _wrong(data: bytes, ends: Iterable[tuple[int, int]], digest: Digest) -> list[str]:
    wrong: list[str] = []
    for index, (at, after) in enumerate(ends):
        (checksum,) = _U64(data, at)
        # producers leave it to the server
        if checksum and checksum != (computed := digest(data[at + 8 : after])):
            wrong.append(f"messages[{index}]: checksum is {checksum}, computed {computed}")
    return _several(wrong)


def _polled(data: bytes, start: int, body: int, end: int, head: int, digest: Digest) -> list[str]:
    return _wrong(data, _ends(data, body + 16, end, head), digest)


def _metadata(data: bytes, body: int, end: int) -> tuple[int, int, list[str]]:
    """The count of a send request, the position of its indexes, and notes on the length before the count."""
    at = body + 4
    for _ in range(2):
        at += 2 + data[at + 1]
    at += 2 + data[at + 1]
    length = _U32(data, body)[0]
    notes = [] if length == at - body else [f"metadata_length is {length}, its fields take {at - body} bytes"]
    return _U32(data, at)[0], at + 4, notes


def _sent(data: bytes, start: int, body: int, end: int, head: int, digest: Digest) -> list[str]:
    count, at, notes = _metadata(data, body, end)
    first = at + 16 * count
    ends = list(_ends(data, first, end, head))
    notes += _wrong(data, ends, digest)
    for index, (_, after) in enumerate(ends[:count]):
        position = _U32(data, at + 16 * index + 4)[0]
        if position != after - first:
            notes.append(f"indexes[{index}]: position is {position}, the message ends at {after - first}")
    if len(ends) != count:
        notes.append(f"{count} indexes, {len(ends)} messages")
    return notes


def _sent_v4(data: bytes, start: int, body: int, end: int) -> list[str]:
    count, at, notes = _metadata(data, body, end)
    return [*notes, *_batches(data, at, end, count)]


def _polled_v4(data: bytes, start: int, body: int, end: int, head: int) -> list[str]:
    return _batches(data, body + head, end, _U32(data, body + 12)[0])


def _batches(data: bytes, at: int, end: int, expected: int) -> list[str]:
    wrong: list[str] = []
    notes: list[str] = []
    total = index = 0
    while at < end:
        first = at
        _origin, length, checksum, count = _BATCH(data, at)
        parts = [data[at : at + 40], data[at + 48 : at + 52]]
        at += 256
        for place in range(count):
            own, headers, payload = _FRAME(data, at)
            after = at + 48 + headers + payload
            computed = xxh3_64_intdigest(data[at + 8 : after])
            if computed != own:
                wrong.append(f"batches[{index}].messages[{place}]: checksum is {own}, XXH3-64 of the rest {computed}")
            parts.append(data[at : at + 8])
            at = after
        computed = xxh3_64_intdigest(b"".join(parts))
        if computed != checksum:
            notes.append(f"batches[{index}]: batch_checksum is {checksum}, computed {computed}")
        if length != at - first:
            notes.append(f"batches[{index}]: batch_length is {length}, its bytes are {at - first}")
        total += count
        index += 1
    if total != expected:
        notes.append(f"count is {expected}, the batches hold {total} messages")
    return [*notes, *_several(wrong)]


def replicated_batch(data: bytes, body: int, end: int) -> list[str]:
    """Check the batch that a Prepare of send_messages carries."""
    return _batches(data, body, end, _U32(data, body + 48)[0])
