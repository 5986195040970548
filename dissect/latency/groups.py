"""Exchanges by group: counts, outcomes, latencies, the slowest, and the same by interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from operator import attrgetter

import msgspec

from ..conversation.processes import group_of
from ..model import PROCESS_KEYS, Message, Pair
from ..protocols import PROTOCOLS
from ..protocols.records import rfc3339
from .records import SlowRow
from .sketch import Sketch

GROUPS = 1_000
"""The default limit of groups; exchanges of further groups are counted together, by protocol."""

CELLS = 4_096
"""The limit of groups by interval; beyond it, the intervals are doubled."""

SLOWEST = 10

Key = tuple[Hashable, ...]
"""The protocol and a value per criterion; beyond the limit the protocol alone."""


def end_of(pair: Pair, client: bool) -> str | None:
    """Return the endpoint of the client, or of the server; None if unknown."""
    request, response = pair.request, pair.response
    asks = request.sender
    if asks is None and response is not None and response.sender is not None:
        asks = "server" if response.sender == "client" else "client"
    return None if asks is None else request.src if (asks == "client") == client else request.dst


def _behind(pair: Pair, name: str) -> Hashable:
    """Return the value of this name for the process behind the client."""
    processes = pair.request.processes
    return None if processes is None else group_of(processes, end_of(pair, True), name)


_PARTS: dict[str, Callable[[Pair], Hashable]] = {
    "command": attrgetter("request.name"),
    "conversation": attrgetter("request.conversation"),
    "server": partial(end_of, client=False),
    "client": partial(end_of, client=True),
    "stream": attrgetter("request.stream"),
}
_PROCESS_PARTS = {name: partial(_behind, name=name) for name in PROCESS_KEYS}
BY = (*_PARTS, "verb", *PROCESS_KEYS)
"""What exchanges can be grouped by, besides their protocol."""


class LatencyGroup(msgspec.Struct):
    """Exchanges that are counted together. `reasons`: requests without a response, by reason or `superseded`."""

    answered: int = 0
    refused: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    latency: Sketch = msgspec.field(default_factory=Sketch)
    handler: Sketch = msgspec.field(default_factory=Sketch)
    """The server's own time, from responses that contain it; `network` is the rest of their latency."""
    network: Sketch = msgspec.field(default_factory=Sketch)
    bound: Sketch = msgspec.field(default_factory=Sketch)
    """The time until the last byte of an answered request was acknowledged: an upper bound of the network's share."""
    ends: tuple[str, str] | None = None
    """Client and server of a conversation."""

    @property
    def unanswered(self) -> int:
        """Requests without a response."""
        return sum(self.reasons.values())

    @property
    def count(self) -> int:
        """All requests."""
        return self.answered + self.refused + self.unanswered

    def _sketches(self) -> tuple[Sketch, ...]:
        return self.latency, self.handler, self.network, self.bound

    def merge(self, other: LatencyGroup) -> None:
        """Add the counts of another group."""
        self.answered += other.answered
        self.refused += other.refused
        for reason, number in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + number
        for mine, more in zip(self._sketches(), other._sketches(), strict=True):
            # Most groups of a minute have latencies only
            if more:
                mine.merge(more)
        self.ends = self.ends or other.ends

    def note(
        self, outcome: str, reason: str | None, latency_ns: int | None, handler_ns: int | None, acknowledged_ns: int | None = None
    ) -> None:
        """Count an exchange, whose acknowledgement came `acknowledged_ns` after its request."""
        if outcome == "refused":
            self.refused += 1
        elif outcome == "answered":
            self.answered += 1
        else:
            why = reason or outcome
            self.reasons[why] = self.reasons.get(why, 0) + 1
        if latency_ns is None:
            return
        self.latency.add(latency_ns)
        if acknowledged_ns is not None:
            self.bound.add(acknowledged_ns)
        if handler_ns is not None:
            self.handler.add(handler_ns)
            self.network.add(latency_ns - handler_ns)


class Latencies:
    """Groups of exchanges. Memory is bounded by the number of groups and intervals."""

    def __init__(
        self, by: Sequence[str] = ("command",), *, interval_ns: int | None = None, slowest: int = SLOWEST, groups: int = GROUPS
    ) -> None:
        """`interval_ns`: keep a series, too, with intervals of this initial length. `slowest`: exchanges to remember."""
        self.by = tuple(by)
        self.interval_ns = interval_ns
        self.groups: dict[Key, LatencyGroup] = {}
        self.series: dict[tuple[int, Key], LatencyGroup] = {}
        """By start of the interval, and group."""
        self.limit = groups
        self.beyond = 0
        """Exchanges of groups beyond the limit."""
        self._slowest = slowest
        self._slow: list[tuple[int, int, SlowRow]] = []
        self._slow_from_ns = -math.inf if slowest else math.inf
        """The lowest latency among the slowest, once there are enough."""
        self._server_time_ns = {one.name: one.loaded.server_time_ns for one in PROTOCOLS if one.loaded.server_time_ns is not None}
        self._verbs = {one.name: one.loaded.verb for one in PROTOCOLS if one.loaded.verb is not None}
        parts = _PARTS | _PROCESS_PARTS | {"verb": self._verb}
        self._parts = [parts[one] for one in self.by]

    def add(self, pairs: Iterable[Pair]) -> None:
        """Count these exchanges."""
        groups, server_time_ns = self.groups, self._server_time_ns
        for pair in pairs:
            request, response, latency_ns = pair.request, pair.response, pair.latency_ns
            protocol = request.protocol
            key: Key = (protocol, *[part(pair) for part in self._parts])
            group = groups.get(key)
            if group is None:
                key, group = self._begin(key, pair)
            handler_ns = None if response is None or protocol not in server_time_ns else server_time_ns[protocol](response)
            ended = pair.outcome, pair.reason, latency_ns, handler_ns, pair.acknowledged_ns
            group.note(*ended)
            if response is not None and latency_ns is not None and latency_ns >= self._slow_from_ns:
                self._remember(latency_ns, self._verb(pair), request, response)
            if self.interval_ns is not None:
                ended_with = pair.exchange if response is None else response
                self._cell((request if ended_with is None else ended_with).time_ns, key).note(*ended)

    def slowest(self) -> list[SlowRow]:
        """Return the slowest exchanges, the slowest first."""
        return [one for _, _, one in sorted(self._slow, key=lambda one: one[:2], reverse=True)]

    def widen_to(self, most: int) -> None:
        """Double the intervals until at most `most` lie between the first and the last."""
        while self.interval_ns is not None and self.series:
            times = [at for at, _ in self.series]
            if (max(times) - min(times)) // self.interval_ns < most:
                return
            self._widen()

    def forget_series(self) -> None:
        """Drop the series."""
        self.interval_ns = None
        self.series = {}

    def _begin(self, key: Key, pair: Pair) -> tuple[Key, LatencyGroup]:
        """Create and return the key and group of the first exchange of a group."""
        if len(self.groups) >= self.limit:
            self.beyond += 1
            key = key[:1]
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = LatencyGroup()
            if "conversation" in self.by and len(key) > 1:
                client, server = end_of(pair, True), end_of(pair, False)
                group.ends = (client, server) if client is not None and server is not None else None
        return key, group

    def _remember(self, latency_ns: int, verb: str | None, request: Message, response: Message) -> None:
        row = SlowRow(
            1,
            rfc3339(response.time_ns),
            response.time_ns,
            request.conversation,
            request.src,
            request.dst,
            request.protocol,
            request.name,
            verb,
            request.id,
            request.number,
            response.number,
            response.outcome,
            response.file,
            request.packets,
            response.packets,
            latency_ns,
        )
        heappush(self._slow, (latency_ns, -request.number, row))
        if len(self._slow) > self._slowest:
            heappop(self._slow)
        if len(self._slow) == self._slowest:
            self._slow_from_ns = self._slow[0][0]

    def _cell(self, time_ns: int, key: Key) -> LatencyGroup:
        assert self.interval_ns is not None
        place = time_ns // self.interval_ns * self.interval_ns, key
        cell = self.series.get(place)
        if cell is None:
            cell = self.series[place] = LatencyGroup()
        while len(self.series) > max(CELLS, len(self.groups)):
            self._widen()
            cell = self.series[time_ns // self.interval_ns * self.interval_ns, key]
        return cell

    def _widen(self) -> None:
        """Double the intervals."""
        assert self.interval_ns is not None
        self.interval_ns *= 2
        series, self.series = self.series, {}
        for (at, key), cell in series.items():
            place = at // self.interval_ns * self.interval_ns, key
            if place in self.series:
                self.series[place].merge(cell)
            else:
                self.series[place] = cell

    def _verb(self, pair: Pair) -> str | None:
        verb_of = self._verbs.get(pair.request.protocol)
        return None if verb_of is None else verb_of(pair.request)
