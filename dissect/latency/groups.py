"""Exchanges by group: how many there were, how they ended, how long they took, the slowest of them, and all that by interval."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappush, heappushpop
from typing import Any

import msgspec

from streamdump.latency.sketch import Sketch
from streamdump.model import Message, Pair
from streamdump.protocols import PROTOCOLS

BY = ("command", "conversation", "server", "client", "stream", "verb")
"""What exchanges can be grouped by, besides their protocol."""

GROUPS = 1_000
"""The usual limit on the number of groups; exchanges of further ones are counted together, by protocol."""

CELLS = 4_096
"""Groups by interval that are kept: when there are more, two intervals each become one."""

SLOWEST = 10

Key = tuple[Hashable, ...]
"""The protocol and a value for each thing that is grouped by; of what is beyond the limit the protocol alone."""


class LatencyGroup(msgspec.Struct):
    """Exchanges that are counted together. `reasons`: of requests without a response, and how often; `superseded` is one."""

    answered: int = 0
    refused: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    latency: Sketch = msgspec.field(default_factory=Sketch)
    handler: Sketch | None = None
    """How long the server worked, of those responses that say so, and in `network` what remains of their latency."""
    network: Sketch | None = None
    bound: Sketch = msgspec.field(default_factory=Sketch)
    """How long it took until the last byte of requests that were answered was acknowledged: the network's share is not more."""
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

    def merge(self, other: LatencyGroup) -> None:
        """All that another group counted."""
        self.answered += other.answered
        self.refused += other.refused
        for reason, number in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + number
        self.latency.merge(other.latency)
        self.bound.merge(other.bound)
        if other.handler is not None and other.network is not None:
            handler, network = self._split()
            handler.merge(other.handler)
            network.merge(other.network)
        self.ends = self.ends or other.ends

    def pack(self) -> bytes:
        """What was counted as bytes, for `unpack`."""
        sketches = [None if one is None else one.pack() for one in (self.latency, self.handler, self.network, self.bound)]
        return msgspec.msgpack.encode((self.answered, self.refused, self.reasons, sketches))

    @classmethod
    def unpack(cls, data: bytes) -> LatencyGroup:
        """The group that `pack` made bytes of."""
        answered, refused, reasons, sketches = msgspec.msgpack.decode(data)
        latency, handler, network, bound = [None if one is None else Sketch.unpack(one) for one in sketches]
        return cls(answered, refused, reasons, latency or Sketch(), handler, network, bound or Sketch())

    def note(
        self, outcome: str, reason: str | None, latency_ns: int | None, handler_ns: int | None, acknowledged_ns: int | None = None
    ) -> None:
        """One more exchange, and how long after its request the acknowledgement came."""
        if latency_ns is None:
            why = reason or outcome
            self.reasons[why] = self.reasons.get(why, 0) + 1
            return
        if outcome == "refused":
            self.refused += 1
        else:
            self.answered += 1
        self.latency.add(latency_ns)
        if acknowledged_ns is not None:
            self.bound.add(acknowledged_ns)
        if handler_ns is not None:
            handler, network = self._split()
            handler.add(handler_ns)
            network.add(latency_ns - handler_ns)

    def _split(self) -> tuple[Sketch, Sketch]:
        if self.handler is None or self.network is None:
            self.handler, self.network = Sketch(), Sketch()
        return self.handler, self.network


class Slow(msgspec.Struct, frozen=True):
    """One exchange among the slowest; `packets` are those of the request's and the response's bytes, with the inputs they are in."""

    latency_ns: int
    request: Message
    response: Message


class Latencies:
    """Groups of exchanges. What is kept does not grow with them, but for the bounded number of groups and of intervals."""

    def __init__(
        self, by: Sequence[str] = ("command",), *, interval_ns: int | None = None, slowest: int = SLOWEST, groups: int = GROUPS
    ) -> None:
        """`interval_ns`: keep a series, too, by intervals of that length at first. `slowest`: so many exchanges are remembered."""
        self.by = tuple(by)
        self.interval_ns = interval_ns
        self.wanted_ns = interval_ns
        self.groups: dict[Key, LatencyGroup] = {}
        self.series: dict[tuple[int, Key], LatencyGroup] = {}
        """By the beginning of an interval and a group."""
        self.limit = groups
        self.beyond = 0
        """Exchanges of groups beyond the limit."""
        self._slowest = slowest
        self._slow: list[tuple[int, int, Slow]] = []
        self._worked = {one.name: one.worked for one in PROTOCOLS if one.worked is not None}
        self._verbs = {one.name: one.verb for one in PROTOCOLS if one.verb is not None}
        self._parts: list[Callable[[Pair], Hashable]] = [getattr(self, f"_{one}") for one in self.by]

    def take(self, pairs: Iterable[Pair]) -> None:
        """Count these exchanges."""
        groups, worked = self.groups, self._worked
        plain = self.by == ("command",)
        for pair in pairs:
            request, response, latency_ns = pair.request, pair.response, pair.latency_ns
            protocol = request.protocol
            key: Key = (protocol, request.name) if plain else (protocol, *[part(pair) for part in self._parts])
            group = groups.get(key)
            if group is None:
                key, group = self._begin(key, pair)
            handler_ns = None
            if response is not None and protocol in worked:
                handler_ns = worked[protocol](response)
            ended = pair.outcome, pair.reason, latency_ns, handler_ns, pair.acknowledged_ns
            group.note(*ended)
            if latency_ns is not None and response is not None:
                slow = self._slow
                if len(slow) < self._slowest or (slow and latency_ns >= slow[0][0]):
                    self._remember(latency_ns, request, response)
            if self.interval_ns is not None:
                told = pair.exchange if response is None else response
                self._cell((request if told is None else told).time_ns, key).note(*ended)

    def slowest(self) -> list[Slow]:
        """The slowest exchanges, the slowest first."""
        return [one for _, _, one in sorted(self._slow, key=lambda one: one[:2], reverse=True)]

    def widen_to(self, most: int) -> None:
        """Make intervals longer until no more than so many lie between the first and the last."""
        while self.interval_ns is not None and self.series:
            times = [at for at, _ in self.series]
            if (max(times) - min(times)) // self.interval_ns < most:
                return
            self._widen()

    def forget_series(self) -> None:
        """Drops the series, so that none is shown."""
        self.interval_ns = self.wanted_ns = None
        self.series = {}

    def _begin(self, key: Key, pair: Pair) -> tuple[Key, LatencyGroup]:
        """The group of an exchange that is the first of its group."""
        if len(self.groups) >= self.limit:
            self.beyond += 1
            key = key[:1]
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = LatencyGroup()
            if "conversation" in self.by and len(key) > 1:
                client, server = self._client(pair), self._server(pair)
                group.ends = (client, server) if client is not None and server is not None else None
        return key, group

    def _remember(self, latency_ns: int, request: Message, response: Message) -> None:
        one = (latency_ns, -request.number, Slow(latency_ns, _bare(request), _bare(response)))
        if len(self._slow) < self._slowest:
            heappush(self._slow, one)
        else:
            heappushpop(self._slow, one)

    def _cell(self, time_ns: int, key: Key) -> LatencyGroup:
        assert self.interval_ns is not None
        at = time_ns // self.interval_ns * self.interval_ns
        cell = self.series.get((at, key))
        if cell is None:
            cell = self.series[at, key] = LatencyGroup()
            while len(self.series) > max(CELLS, len(self.groups)):
                self._widen()
                at = at // self.interval_ns * self.interval_ns
            cell = self.series[at, key]
        return cell

    def _widen(self) -> None:
        """Make one interval of two."""
        assert self.interval_ns is not None
        self.interval_ns *= 2
        series: dict[tuple[int, Key], LatencyGroup] = {}
        for (at, key), cell in self.series.items():
            place = at // self.interval_ns * self.interval_ns, key
            if place in series:
                series[place].merge(cell)
            else:
                series[place] = cell
        self.series = series

    # What is grouped by

    def _command(self, pair: Pair) -> str:
        return pair.request.name

    def _conversation(self, pair: Pair) -> int:
        return pair.request.conversation

    def _client(self, pair: Pair) -> str | None:
        return _end(pair, True)

    def _server(self, pair: Pair) -> str | None:
        return _end(pair, False)

    def _stream(self, pair: Pair) -> str | None:
        return pair.request.stream

    def _verb(self, pair: Pair) -> str | None:
        tell = self._verbs.get(pair.request.protocol)
        return None if tell is None else tell(pair.request)


def _end(pair: Pair, client: bool) -> str | None:
    """The endpoint of the client, or of the server; None where nobody knows which is which."""
    request, response = pair.request, pair.response
    asks = request.sender
    if asks is None and response is not None and response.sender is not None:
        asks = "server" if response.sender == "client" else "client"
    if asks is None:
        return None
    return request.src if (asks == "client") == client else request.dst


def _bare(message: Message) -> Message:
    """A message without what it says, which may be large."""
    fields: dict[str, Any] = {}
    return msgspec.structs.replace(message, fields=fields, notes=(), fault=None, raw=None, spans=None)
