"""What bytes become: frames, what they mean, and records with what ordering and pairing need of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from time import gmtime, strftime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from ..model import Fault, Gap, SideData, Span, StreamGap
from .protocol import Tally


class Role(IntEnum):
    """What a message does for pairing."""

    NONE = 0
    REQUEST = 1
    RESPONSE = 2
    REQUESTS = 3
    """A request with a list of keys, each of which is answered."""
    RESPONSES = 4
    """A response to such keys."""
    PARTIAL_RESPONSE = 5
    """Leaves the request open."""
    GAP = 6
    """No message: missing bytes."""
    OPTIONAL_RESPONSE = 7
    """A request that is answered in trouble only, so that no response is missed: the newest with its key replaces the older."""


NONE, REQUEST, RESPONSE, REQUESTS, RESPONSES, PARTIAL_RESPONSE, GAP, OPTIONAL_RESPONSE = Role

SENDERS: dict[int | None, tuple[Any, Any]] = {None: (None, None), 0: ("client", "server"), 1: ("server", "client")}
"""By the client's side, what each side is."""

LOST, SKIPPED = "bytes lost", "bytes skipped"
"""Why a request has no response where it may be among bytes that are not here."""

SECOND = 1_000_000_000

LARGE = 1_024
"""From this size on what is remembered of a message is made smaller as soon as it was handed on."""


class Decoded(NamedTuple):
    """What a frame means: the parts of its `Message`, and what it does for pairing. `key` is what a request and
    its response have in common; `spans` are wanted where details are; `stream` is the stream, or whatever messages go to, that it names, as
    far as it, or what was declared before, shows; a response gets that of its request."""

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
"""The members of `Decoded`: a tuple of them is made in a fifth of the time."""


class Damage(NamedTuple):
    """Bytes are missing in a frame: its true `size`, and why (`reason`: "1448 bytes lost").

    `end_captured`: the packet with its last byte was captured, though the snap length may have cut that byte.
    """

    size: int
    reason: str
    end_captured: bool = True


class Event(msgspec.Struct, gc=False):
    """A record with what ordering and pairing need; those that one packet made certain are sorted by completing packet, client first,
    position."""

    order: int
    rank: int
    position: int
    record: Any
    role: Role
    key: Hashable
    first_time: int
    end_captured: bool = True
    """Whether the time of the message is that of its last byte."""


class Frame(msgspec.Struct, gc=False):
    """One frame, still bytes."""

    side: int
    position: int
    data: bytes
    """What holds the frame, from `start` to `end`."""
    start: int
    end: int
    damage: Damage | None
    order: int
    """Of the packet that completed it, or of a later part of its byte stream that came earlier."""
    began: int
    """The order of the packet with which it began."""
    first: int | None
    """The number of the first packet; None where it lies in an earlier file."""
    number: int
    file: int
    first_time: int
    time_ns: int

    @property
    def spread(self) -> bool:
        """Whether several packets brought bytes of it."""
        return self.first != self.number

    @property
    def size(self) -> int:
        """Its bytes in the byte stream, missing ones included."""
        return self.end - self.start if self.damage is None else self.damage.size

    def alone(self) -> Frame:
        """A copy that holds its own bytes only, so that it can be kept."""
        return replace(self, data=self.data[self.start : self.end], start=0, end=self.end - self.start)


class FrameGap(msgspec.Struct, gc=False):
    """Bytes of a byte stream that are in no frame, or (`in_frame`) are missing in one. `size` is None where nobody knows it."""

    side: int
    position: int
    size: int | None
    reason: Literal["lost", "cut", "skipped"]
    in_frame: bool
    order: int
    time_ns: int


HANDED_ON: list[Event] = []
"""In the place of the records of a packet when they were handed on; nobody adds to it."""

ORDER_KEY = attrgetter("order", "rank", "position")
"""Where a record stands among those that became certain with it."""


def count_gap(tally: Tally, gap: Gap, count: int = 1) -> None:
    """Count a gap; or no longer, with -1."""
    tally.gaps += count
    if gap.size is not None and (not gap.in_frame or gap.reason != "skipped"):
        tally.gap_bytes += count * gap.size


def in_order(items: list[SideData | StreamGap]) -> list[SideData | StreamGap]:
    """What both sides sent in the order of its packets, though each side keeps the order of its byte stream."""
    latest = [-1, -1]
    keys = []
    for item in items:
        latest[item.side] = max(latest[item.side], item.order)
        keys.append((latest[item.side], item.side))
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


def straighten(rows: list[Any], sides: Iterable[int]) -> None:
    """Let what one packet made certain keep the order of its byte stream, though the later part may have been captured first."""
    latest = [-1, -1]
    for index, side in enumerate(sides):
        order = rows[index].order
        if order < latest[side]:
            rows[index] = replace(rows[index], order=latest[side])
        else:
            latest[side] = order


def rfc3339(time_ns: int) -> str:
    """UTC with nine decimals."""
    # The digits of a larger number are had in half the time that padding takes
    return f"{_second_text(time_ns // SECOND)}{str(time_ns % SECOND + SECOND)[1:]}Z"


@lru_cache(64)
def _second_text(second: int) -> str:
    """RFC 3339 up to the decimal point; a time outside the years that has is clamped to their ends."""
    second = min(max(second, -62_135_596_800), 253_402_300_799)
    return strftime("%Y-%m-%dT%H:%M:%S.", gmtime(second)).rjust(20, "0")
