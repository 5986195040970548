"""Finds packets that an "any" capture has twice: once as sent and once as received, or once per interface they pass."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.model import PacketBatch

Ints = NDArray[np.int64]

NEAR_NS = 1_000_000
NEAR_PACKETS = 4096
"""Two sightings of a packet lie no further apart than this, in time and in cooked packets between them."""

HEAD = 64
WEIGHTS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)
WEIGHTS = np.concatenate([WEIGHTS, WEIGHTS ^ np.uint64(0x5555_5555_5555_5554)])


class Sighting(msgspec.Struct):
    """A packet that counts, and the packet types with which it was seen."""

    mark: int
    time_ns: int
    number: int
    types: set[int]


class Duplicates:
    """Remembers the IP packets of the last millisecond of Linux cooked captures.

    The same IP packet with another packet type is the same packet seen elsewhere; with the same packet type it was sent again.
    """

    MADE_OF = ()

    def __init__(self) -> None:
        self._seen: dict[bytes, Sighting] = {}
        self._number = 0
        self._latest = -(1 << 62)

    def find(self, batch: PacketBatch, ip: Ints, room: Ints, kind: Ints, place: Ints) -> Ints | None:
        """The rows that repeat an earlier packet; `place` is the packet type, negative for rows that are not to be looked at."""
        rows = _cooked(room, kind, place)
        if not len(rows):
            return None
        time_ns = batch.time_ns[rows]
        latest = np.maximum(np.maximum.accumulate(time_ns), self._latest)
        first = self._number
        self._number += len(rows)
        self._latest = int(latest[-1])
        marks = _marks(batch.buffer, ip[rows], room[rows])
        # Only packets that are alike in their first bytes are compared; those near the end are kept for the next batch.
        look = (time_ns >= self._latest - NEAR_NS) & (np.arange(len(rows)) >= len(rows) - NEAR_PACKETS)
        order = np.argsort(marks, kind="stable")
        same = marks[order[1:]] == marks[order[:-1]]
        look[order[1:][same]] = True
        look[order[:-1][same]] = True
        if self._seen:
            look |= np.isin(marks, np.array([one.mark for one in self._seen.values()], np.uint64))
        again = [
            row
            for at, row, now, mark, newest in zip(
                *(column[look].tolist() for column in (np.arange(len(rows)), rows, time_ns, marks, latest)), strict=True
            )
            if self._repeats(_key(batch.buffer, int(ip[row]), int(room[row])), mark, first + at, now, newest, int(place[row]))
        ]
        self.forget()
        return np.array(again, np.int64) if again else None

    def again(self, digest: bytes, time_ns: int, place: int) -> bool:
        """`find` for one packet after the other, of which only the digest is at hand."""
        number = self._number
        self._number += 1
        self._latest = max(self._latest, time_ns)
        repeats = self._repeats(digest, 0, number, time_ns, self._latest, place)
        if number % NEAR_PACKETS == 0:
            self.forget()
        return repeats

    def forget(self) -> None:
        """Drop what is too old for any packet to repeat it."""
        oldest, lowest = self._latest - NEAR_NS, self._number - NEAR_PACKETS
        self._seen = {key: one for key, one in self._seen.items() if one.time_ns >= oldest and one.number >= lowest}

    def _repeats(self, key: bytes, mark: int, number: int, time_ns: int, latest: int, place: int) -> bool:
        known = self._seen.get(key)
        if (
            known is not None
            and place not in known.types
            and abs(time_ns - known.time_ns) <= NEAR_NS
            and known.time_ns >= latest - NEAR_NS
            and known.number > number - NEAR_PACKETS
        ):
            known.types.add(place)
            return True
        self._seen[key] = Sighting(mark, time_ns, number, {place})
        return False


class Sightings(NamedTuple):
    """Packets that `Duplicates` looks at: rows of a batch, packet types and digests."""

    rows: Ints
    types: Ints
    digests: list[bytes]


def sightings(batch: PacketBatch, ip: Ints, room: Ints, kind: Ints, place: Ints) -> Sightings:
    """What `Duplicates.again` has to know of a batch whose packets are compared with those of other batches elsewhere."""
    rows = _cooked(room, kind, place)
    digests = [_key(batch.buffer, at, size) for at, size in zip(ip[rows].tolist(), room[rows].tolist(), strict=True)]
    return Sightings(rows, place[rows], digests)


def _cooked(room: Ints, kind: Ints, place: Ints) -> Ints:
    return np.flatnonzero((place >= 0) & (room > 0) & ((kind == 0x0800) | (kind == 0x86DD)))


def _key(buffer: bytes, ip: int, room: int) -> bytes:
    """A digest of the captured part of an IP packet, without what may follow it in the frame."""
    if buffer[ip] >> 4 == 4:
        size = int.from_bytes(buffer[ip + 2 : ip + 4], "big")
    else:
        size = int.from_bytes(buffer[ip + 4 : ip + 6], "big")
        size = size + 40 if size else 0
    return blake2b(buffer[ip : ip + min(size or room, room)], digest_size=16).digest()


def _marks(buffer: bytes, ip: Ints, room: Ints) -> NDArray[np.uint64]:
    """A number for each packet, equal for packets that are equal in their first bytes."""
    head = np.zeros((len(ip), HEAD), np.uint8)
    inside = ip <= len(buffer) - HEAD
    if len(buffer) >= HEAD:
        view: NDArray[Any] = np.ndarray((len(buffer) - HEAD + 1,), f"V{HEAD}", buffer, 0, (1,))
        head[inside] = view[ip[inside]].view(np.uint8).reshape(-1, HEAD)
    for row in np.flatnonzero(~inside).tolist():  # at most the last few of a buffer
        start = int(ip[row])
        rest = buffer[start : start + HEAD]
        head[row, : len(rest)] = np.frombuffer(rest, np.uint8)
    # What follows a short packet in the buffer is not part of it.
    head[np.arange(HEAD) >= np.minimum(room, HEAD)[:, None]] = 0
    return np.asarray((head.view("<u8").astype(np.uint64) * WEIGHTS).sum(axis=1, dtype=np.uint64))
