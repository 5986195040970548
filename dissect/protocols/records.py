"""Frames, their meaning, and events: records with what ordering and pairing need."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from time import gmtime, strftime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from ..model import Fault, Gap, SideData, Span, StreamGap, Unreadable
from .protocol import Tally


class Role(IntEnum):
    """The part of a message in pairing."""

    NONE = 0
    REQUEST = 1
    RESPONSE = 2
    REQUESTS = 3
    """A request with several keys, each of which is answered."""
    RESPONSES = 4
    """A response to several such keys."""
    PARTIAL_RESPONSE = 5
    """Leaves the request open."""
    GAP = 6
    """Missing bytes, or a message whose content cannot be read: it may hold any request or response."""
    OPTIONAL_RESPONSE = 7
    """A request that gets a response only on an error, so none is reported missing: the newest with its key replaces the older."""


NONE, REQUEST, RESPONSE, REQUESTS, RESPONSES, PARTIAL_RESPONSE, GAP, OPTIONAL_RESPONSE = Role

SENDERS: dict[int | None, tuple[Any, Any]] = {None: (None, None), 0: ("client", "server"), 1: ("server", "client")}
"""The sender of each side, by the side of the client."""

LOST, SKIPPED = "bytes lost", "bytes skipped"
"""Why a request has no response if that may be among missing bytes."""

SECOND = 1_000_000_000

LARGE = 1_024
"""Bytes from which on a remembered message is compacted when it was released."""


class Decoded(NamedTuple):
    """The meaning of a frame: parts of its `Message`, and its part in pairing. `key` is common to a request and its response; `spans`
    are needed if details are requested; `stream` is the stream or topic that the frame, or an earlier declaration, names; a response gets
    that of its request."""

    name: str
    kind: Any
    id: int | str | None
    fields: dict[str, Any]
    outcome: str | None = None
    notes: Any = ()
    fault: Fault | None = None
    role: Role = NONE
    key: Any = None
    spans: list[Span] | None = None
    stream: str | None = None


DecodedTuple = tuple[
    str, Any, "int | str | None", dict[str, Any], "str | None", Any, "Fault | None", Role, Any, "list[Span] | None", "str | None"
]
"""The members of `Decoded` as a tuple, which takes a fifth of the time to make."""


class Damage(NamedTuple):
    """Missing bytes of a frame: its size in the byte stream, and why ("1448 bytes lost").

    `end_captured`: the packet with its last byte was captured, though the snap length may have cut that byte.
    """

    size: int
    reason: str
    end_captured: bool = True


class Event(msgspec.Struct, gc=False):
    """A record with what ordering and pairing need; records that became certain together are sorted by `order`, `rank` (client first)
    and `position`."""

    order: int
    rank: int
    position: int
    record: Any
    role: Role
    key: Hashable
    first_time: int
    end_captured: bool = True
    """Whether the packet with the last byte was captured."""
    packet: tuple[int, int] | None = None
    """Of a gap: file and number of the packet whose time it has."""


class Frame(msgspec.Struct, gc=False):
    """One frame, not decoded yet."""

    side: int
    position: int
    data: bytes
    """A buffer that contains the frame from `start` to `end`."""
    start: int
    end: int
    damage: Damage | None
    order: int
    """The order of the completing packet, or a later one that completed an earlier part of its byte stream."""
    began: int
    """The order of its first packet."""
    first: int | None
    """The number of its first packet; None if that is in an earlier file."""
    number: int
    file: int
    first_time: int
    time_ns: int

    @property
    def spread(self) -> bool:
        """Whether several packets brought its bytes."""
        return self.first != self.number

    @property
    def size(self) -> int:
        """Its bytes in the byte stream, including missing ones."""
        return self.end - self.start if self.damage is None else self.damage.size

    def alone(self) -> Frame:
        """Return a copy with its own bytes only, so that it can be kept."""
        return replace(self, data=self.data[self.start : self.end], start=0, end=self.end - self.start)


class FrameGap(msgspec.Struct, gc=False):
    """Bytes of a byte stream that are in no frame, or (`in_frame`) missing in one. `size` is None if unknown."""

    side: int
    position: int
    size: int | None
    reason: Literal["lost", "cut", "skipped"]
    in_frame: bool
    order: int
    number: int
    file: int
    time_ns: int


HANDED_ON: list[Event] = []
"""Stands for the events of a packet once they are released; never modified."""

ORDER_KEY = attrgetter("order", "rank", "position")
"""Sorts events that became certain together."""


def count_gap(tally: Tally, gap: Gap, count: int = 1) -> None:
    """Count a gap; `count` -1 takes it back."""
    tally.gaps += count
    if gap.size is not None and (not gap.in_frame or gap.reason != "skipped"):
        tally.gap_bytes += count * gap.size


def count_fault(tally: Tally, fault: Fault, count: int = 1) -> None:
    """Count a message with a fault; `count` -1 takes it back."""
    tally.faults += count
    tally.unreadable += count * (type(fault) is Unreadable)


def in_order(items: list[SideData | StreamGap]) -> list[SideData | StreamGap]:
    """Return items of both sides sorted by packet; each side keeps the order of its byte stream."""
    latest = [-1, -1]
    keys = []
    for item in items:
        latest[item.side] = max(latest[item.side], item.order)
        keys.append((latest[item.side], item.side))
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


def straighten(rows: list[Any], sides: Iterable[int]) -> None:
    """Raise the order of items, so that those of each side keep the order of its byte stream even if a later part was captured first."""
    latest = [-1, -1]
    for index, side in enumerate(sides):
        order = rows[index].order
        if order < latest[side]:
            rows[index] = replace(rows[index], order=latest[side])
        else:
            latest[side] = order


def rfc3339(time_ns: int) -> str:
    """Return UTC in RFC 3339 with nine decimals."""
    global _latest
    begin_ns, text = _latest
    fraction = time_ns - begin_ns
    if not 0 <= fraction < SECOND:
        fraction = time_ns % SECOND
        text = _second_text(time_ns // SECOND)
        _latest = time_ns - fraction, text
    return f"{text}{str(fraction).zfill(9)}Z"


_latest = 0, "1970-01-01T00:00:00."
"""The second of the latest text, and its text."""


@lru_cache(64)
def _second_text(second: int) -> str:
    """Return RFC 3339 up to the decimal point; times outside the years 1 to 9999 are clamped."""
    second = min(max(second, -62_135_596_800), 253_402_300_799)
    return strftime("%Y-%m-%dT%H:%M:%S.", gmtime(second)).rjust(20, "0")
