"""Connections that a capture has twice: before and behind NAT, where addresses or ports differ and all else is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from ..model import Message

CONNECTIONS_KEPT, COPIES_KEPT = 4_096, 4
"""Connections remembered by their sequence numbers, and copies of each, at most. More copies mean that the numbers are not random."""

MESSAGES_COMPARED, SIZE_COMPARED = 32, 2_048
"""The first messages of each side are compared, without the fields of larger ones."""

DRAWN = 1 << 16
"""Hosts draw their first sequence number from 32 bits. Smaller ones were probably chosen, and other connections may have the same."""

NEAR_NS = 1_000_000_000
"""Copies of such a connection begin no further apart."""

Numbers = tuple[int, int]
"""The sequence numbers of SYN and SYN-ACK."""


class Opened(NamedTuple):
    """A connection of which both were captured; `packet` is the SYN, `content` stands for what both sides said."""

    client: str
    server: str
    protocol: str
    time_ns: int
    packet: int
    ttls: tuple[tuple[int, ...], ...]
    content: tuple[int, ...]

    def is_copy(self, other: Opened, drawn: bool) -> bool:
        """Whether another connection with the same sequence numbers is this one, elsewhere; `drawn`: they were drawn at random."""
        if self.server == other.server and self.client.rpartition(":")[0] == other.client.rpartition(":")[0]:
            return False  # no NAT changes the port of the client alone
        forwarded = self.ttls != other.ttls and abs(self.time_ns - other.time_ns) <= NEAR_NS
        return self.content == other.content and (drawn or forwarded)


class Copies:
    """Remembers connections by their sequence numbers."""

    def __init__(self) -> None:
        self._opened: dict[Numbers, list[Opened]] = {}

    def add(self, numbers: Numbers, opened: Opened) -> None:
        """Note a connection."""
        found = self._opened.get(numbers)
        if found is None and len(self._opened) < CONNECTIONS_KEPT:
            found = self._opened[numbers] = []
        if found is not None and len(found) <= COPIES_KEPT:
            found.append(opened)

    def found(self) -> list[list[Opened]]:
        """The copies of each connection that was captured several times, in the order of their times."""
        groups = []
        for numbers, found in self._opened.items():
            first, *others = sorted(found, key=lambda one: (one.time_ns, one.packet, one.server))
            drawn = min(numbers) >= DRAWN
            if 0 < len(others) < COPIES_KEPT and all(first.is_copy(one, drawn) for one in others):
                groups.append([first, *others])
        return sorted(groups, key=lambda group: (group[0].time_ns, group[0].packet, group[0].server))

    def seen(self) -> list[Any]:
        """All of it, as plain data."""
        return [[*numbers, *one] for numbers, found in self._opened.items() for one in found]

    def merge(self, seen: Iterable[Any]) -> None:
        """Add the connections of another `Copies`."""
        for *numbers, client, server, protocol, time_ns, packet, ttls, content in seen:
            one, two = numbers
            self.add((one, two), Opened(client, server, protocol, time_ns, packet, tuple(map(tuple, ttls)), tuple(content)))


def content_of(before: int, message: Message) -> int:
    """What stands for the messages of a side up to this one; `before`: up to the one before it."""
    fields = message.fields if message.size <= SIZE_COMPARED else None
    return crc32(msgspec.json.encode((message.name, message.position, message.size, fields)), before)


def causes(groups: list[list[Opened]]) -> Iterator[tuple[str, tuple[int, ...], Opened]]:
    """Yield one finding about all copies: the cause, the packets that show it, and the last copy that it names."""
    if not groups:
        return
    first, *_, last = groups[0]
    counts = {len(group) for group in groups}
    often = "several times" if len(counts) > 1 else "twice" if counts == {2} else f"{counts.pop()} times"
    pair = f"{first.client} > {first.server} and {last.client} > {last.server}"
    cause = f"{pair} are one connection, captured on both sides of NAT: its messages are counted {often}"
    if len(groups) > 1:
        cause = f"{len(groups):,} connections were captured on both sides of NAT, as {pair}: their messages are counted {often}"
    yield cause, tuple(one.packet for group in groups for one in group), last
