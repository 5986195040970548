"""Finds packets that an "any" capture has twice: once as sent and once as received, or once per interface they pass."""

from __future__ import annotations

import msgspec

NEAR_NS = 1_000_000
NEAR_PACKETS = 4096
"""Two sightings of a packet lie no further apart than this, in time and in cooked packets between them."""


class Sighting(msgspec.Struct, gc=False):
    """A packet that counts, and the places where it was seen."""

    time_ns: int
    number: int
    places: set[int]


class Duplicates:
    """Remembers the IP packets of the last millisecond of Linux cooked captures.

    The same IP packet at another place (`place`) is the same packet seen elsewhere; at the same place it was sent again.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, Sighting] = {}
        self._number = 0
        self._latest = -(1 << 62)

    def again(self, digest: bytes, time_ns: int, place: int) -> bool:
        """Return whether the next packet repeats an earlier one."""
        number = self._number
        self._number = number + 1
        self._latest = latest = max(self._latest, time_ns)
        if number % NEAR_PACKETS == 0:
            self.forget()
        known = self._seen.get(digest)
        if (
            known is not None
            and place not in known.places
            and abs(time_ns - known.time_ns) <= NEAR_NS
            and known.time_ns >= latest - NEAR_NS
            and known.number > number - NEAR_PACKETS
        ):
            known.places.add(place)
            return True
        self._seen[digest] = Sighting(time_ns, number, {place})
        return False

    def forget(self) -> None:
        """Drop packets that are too old to be repeated."""
        oldest, lowest = self._latest - NEAR_NS, self._number - NEAR_PACKETS
        self._seen = {key: one for key, one in self._seen.items() if one.time_ns >= oldest and one.number >= lowest}


def place_of(kind: int, interface: int) -> int:
    """Return where a packet was seen, by packet type and interface, in 31 bits: a bridge, a bond, a VLAN and the interfaces below see it
    in the same direction."""
    return (interface & 0x7F_FFFF) << 8 | kind


def digest(buffer: bytes, ip: int, available: int) -> bytes:
    """Of the captured part of an IP packet, without what may follow it in the frame."""
    from hashlib import blake2b

    if buffer[ip] >> 4 == 4:
        size = int.from_bytes(buffer[ip + 2 : ip + 4], "big")
    else:
        size = int.from_bytes(buffer[ip + 4 : ip + 6], "big")
        size = size + 40 if size else 0
    return blake2b(buffer[ip : ip + min(size or available, available)], digest_size=16).digest()
