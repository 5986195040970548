"""What a capture says, as it is compared: conversations of lines and flows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from .values import Alias

CLIENT, SERVER = 0, 1

GAP = "gap"
"""The kind, and the name, of bytes that belong to no message; the reason stands in `outcome`."""

NOTES, FAULT = "@notes", "@fault"
"""The fields of a message's notes and its fault."""


class Line(msgspec.Struct, eq=False):
    """One message or gap. `fields` by path."""

    side: int
    name: str
    kind: str
    outcome: str | None
    """Of a response how it answers; of a request that it was "unanswered" or "superseded"; of a gap its reason."""
    fields: dict[str, Any] = {}
    labels: dict[str, str] = {}
    """What values mean, by path; not compared."""
    request: Line | None = None
    responses: list[Line] = []
    lane: str = ""
    """Lines of one side and lane have an order."""
    packet: int | None = None
    latency_ns: int | None = None
    at: int | None = None
    """Its line in the golden file."""


class Total(msgspec.Struct, eq=False):
    """What messages of one name carry together."""

    side: int
    name: str
    by: str
    form: str
    fields: dict[str, Any] = {}
    labels: dict[str, str] = {}
    items: list[Any] = []
    """Fields by path, or merged runs of integers where `form` is "set"."""
    packets: list[int | None] = []
    """Where each item is, as far as that is known."""
    numbers: dict[int, int | None] = {}
    """The packet of each integer of a set, where that is known of a capture."""
    packet: int | None = None
    at: int | None = None
    ats: list[int] = []
    """The lines of its items in the golden file."""


class GoldenConversation(msgspec.Struct, eq=False):
    """One conversation, its lines in the order of the capture or of the file."""

    protocol: str
    layout: str | None
    roles: bool
    """Whether it is known which side is the client; else side 0 began."""
    ends: tuple[Alias, Alias]
    """Of the client and the server, or of the first and the second to speak."""
    lines: list[Line] = []
    flows: list[Total] = []
    at: int | None = None
    packet: int | None = None

    @property
    def title(self) -> str:
        """What it is called: by its client."""
        return "".join(map(str, self.ends[CLIENT]))

    def parts(self) -> list[Line | Total]:
        return [*self.lines, *self.flows]


class Transcript(msgspec.Struct, eq=False):
    """What a capture says, or what a golden file says it should."""

    conversations: list[GoldenConversation] = []
    unread: list[str] = []
    """What the conversations in TLS are of which nothing could be read; not compared."""
    only: frozenset[str] = frozenset()
    """ "handshake", "names", or both: what of the capture is there at all."""
    heartbeats: bool = False


def ordered(lines: Sequence[Line]) -> list[Line]:
    """The lines of both sides in an order that their own orders and the pairs make certain: a line of the server stands as soon as it
    can, and a response never before its request."""
    client = deque([one for one in lines if one.side == CLIENT])
    # A client speaks first
    order: dict[Line, None] = {client.popleft(): None} if client else {}
    for line in [one for one in lines if one.side == SERVER]:
        while line.request is not None and client and line.request not in order:
            order[client.popleft()] = None
        order[line] = None
    return [*order, *client]


def unpair(lines: Sequence[Line]) -> None:
    """Part responses from requests that stand behind them in that order, or on their own side: no side answers itself, whatever a damaged
    capture says, and a golden file could not express it."""
    parted = True
    while parted:
        parted = False
        paired = [(line, line.request) for line in lines if line.request is not None]
        place = dict(zip(ordered(lines), count())) if paired else {}
        for line, request in paired:
            if request.side == line.side or place.get(request, len(place)) > place[line]:
                request.responses.remove(line)
                line.request, line.lane = None, line.name if line.lane == line.name else ""
                parted = True
