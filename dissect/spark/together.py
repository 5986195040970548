"""What rows of several parts show together: conversations of each other, exchanges by the minute, and findings of several conversations.

A part leaves such rows as *frames*, in a file that its receipt names. When all parts are there the frames of each server come together:
in a shuffle by server where there are many, else in the driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa

from ..conversation.table import relate
from ..diagnose.engine import CLOSES, UNUSED, Diagnoser, Step
from ..diagnose.network import NetworkEvidence
from ..diagnose.rules import Closed
from ..errors import Report
from ..latency.groups import LatencyGroup
from ..model import ConversationRow, Exchange
from ..session import Linked
from ..tls.facts import TlsFacts
from . import storage
from .blocks import Runs
from .latencies import values_of
from .tables import ends_of

_CLOSED = msgspec.msgpack.Decoder(Closed)

MINUTE_NS = 60_000_000_000

NOTED = 1 << 15
"""Exchanges that are noted at a time."""

FEW = 64
"""A group of fewer exchanges is left as they are, since a sketch of them would be slower and larger; it may leave several frames."""

SLOWEST = 5
"""Exchanges of a part, and of a run, that are remembered as its slowest."""

BUCKET = 8 << 20
"""Bytes of frames that come together in one place, about; decoded, they need ten times as much."""

RELATED, LATENCY, SLOW, OVERVIEW, ROWS, STEP = range(6)
"""What a frame holds."""

EXCHANGES = ("src", "dst", "protocol", "name", "id", "latency_ns")


GroupKey = tuple[int, str, str, str | None]
"""Minute, protocol, command and server."""

Note = tuple[str, str | None, int | None]
"""Of an exchange: outcome, reason and latency."""


class Minute(NamedTuple):
    """Exchanges of one command with one server in one minute: a row of table `latency`."""

    time_ns: int
    protocol: str
    name: str
    server: str | None
    values: tuple[Any, ...]


class Frames:
    """What a part leaves, written to a file."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self._noted = 0
        self._notes: defaultdict[GroupKey, list[Note]] = defaultdict(list)
        self._slowest: list[tuple[int, dict[str, Any]]] = []

    def leave(self, server: str | None, kind: int, value: Any) -> None:
        """Leave a frame for those of this server."""
        data = msgspec.msgpack.encode((server or "", kind, value))
        self.out.write(len(data).to_bytes(4, "little") + data)

    def count(self, exchanges: Sequence[Linked]) -> None:
        """Count exchanges, and remember the slowest."""
        for linked, (_, server) in zip(exchanges, ends_of(exchanges), strict=True):
            one: Any = linked[0]
            key = one.time_ns // MINUTE_NS * MINUTE_NS, one.protocol, one.name, server
            self._notes[key].append((one.outcome, one.reason, one.latency_ns))
            if one.latency_ns is not None and (len(self._slowest) < SLOWEST or one.latency_ns > self._slowest[-1][0]):
                self._slowest = slowest([*self._slowest, (one.latency_ns, _row(one))])
        self._noted += len(exchanges)
        if self._noted >= NOTED:
            self._let_go()

    def close(self) -> None:
        """All that is left."""
        self._let_go()
        for one in self._slowest:
            self.leave(None, SLOW, one)

    def _let_go(self) -> None:
        for key, notes in self._notes.items():
            self.leave(key[-1], LATENCY, (*key, notes if len(notes) < FEW else _counted(LatencyGroup(), notes).pack()))
        self._notes.clear()
        self._noted = 0


def _row(one: Exchange) -> dict[str, Any]:
    return {name: getattr(one, name) for name in EXCHANGES}


def slowest(some: Iterable[Any]) -> list[Any]:
    """The slowest of some exchanges, the slowest first."""
    return nlargest(SLOWEST, some, key=lambda one: one[0])


def _counted(group: LatencyGroup, found: bytes | list[Note]) -> LatencyGroup:
    """A group that counts what a frame has, too."""
    if isinstance(found, bytes):
        group.merge(LatencyGroup.unpack(found))
    else:
        for outcome, reason, latency_ns in found:
            group.note(outcome, reason, latency_ns, None)
    return group


def frames(name: str) -> Iterator[bytes]:
    """The frames of a file."""
    with storage.open_input(name) as stream:
        while size := stream.read(4):
            yield stream.read(int.from_bytes(size, "little"))


def by_server(count: int, name: str) -> Iterator[tuple[int, bytes]]:
    """The frames of a file for `count` buckets."""
    for data in frames(name):
        yield crc32(msgspec.msgpack.decode(data)[0].encode()) % count, data


class Together:
    """Frames of the same servers."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.related: list[ConversationRow] = []
        self.files: dict[int, int] = {}
        """The file of the first packet of each of these."""
        self.rows: list[tuple[str, bytes]] = []
        """Rows of tables that are small in each part."""
        self.slowest: list[tuple[int, dict[str, Any]]] = []
        self.commands: defaultdict[tuple[str, str], LatencyGroup] = defaultdict(LatencyGroup)
        self._groups: defaultdict[GroupKey, LatencyGroup] = defaultdict(LatencyGroup)
        self.overviews: list[Any] = []
        """What rules go by that look at several conversations, of each task."""
        self.reports: list[Report] = []
        """Reports of bugs of ours."""
        self._steps = Steps()
        for data in blocks:
            _, kind, value = msgspec.msgpack.decode(data)
            if kind == RELATED:
                row, file = value
                self.related.append(msgspec.convert(row, ConversationRow))
                self.files[self.related[-1].conversation] = file
            elif kind == LATENCY:
                minute, protocol, name, server, found = value
                _counted(self._groups[minute, protocol, name, server], found)
            elif kind == ROWS:
                self.rows.append(tuple(value))
            elif kind == SLOW:
                self.slowest = slowest([*self.slowest, tuple(value)])
            elif kind == STEP:
                self._steps.add(*value)
            else:
                self.overviews.append(value)
        for (_, protocol, name, _), group in self._groups.items():
            self.commands[protocol, name].merge(group)
        self.related.sort(key=lambda row: (row.time_ns, row.conversation))

    def relate(self, before: Sequence[ConversationRow]) -> list[Report]:
        """Add to conversations what others show, also those `before`; return reports of bugs."""
        return [Report(what, "conversations lack what others tell of them") for what in relate([*before, *self.related])]

    def minutes(self) -> list[Minute]:
        """The rows of table `latency`."""
        return [Minute(*key, values_of(group)) for key, group in sorted(self._groups.items(), key=lambda one: str(one[0]))]

    def findings(self, ports: set[int]) -> list[Linked]:
        """The findings in the state that servers keep across connections, which adds to the overviews."""
        found = self._steps.findings(ports)
        self.files |= self._steps.files
        self.overviews.append(self._steps.diagnoser.overview.seen())
        self.reports = self._steps.diagnoser.reports
        return found


def findings_of(network: NetworkEvidence, overviews: Iterable[Any], reports: list[Report]) -> list[Linked]:
    """The findings of several conversations together; `reports` gets those of bugs of ours."""
    diagnoser = Diagnoser()
    diagnoser.overview.network = network
    for one in overviews:
        diagnoser.overview.merge(one)
    found = diagnoser.finish()
    reports += diagnoser.reports
    return [(one, None, None, None) for one in found]


STEPS_HELD = 1 << 12
"""Steps that are made columns at a time."""

BY_PLACE = ("merge_ns", "file", "number", "at")
STEPS = pa.schema([*((name, pa.int64()) for name in BY_PLACE), ("step", pa.binary())])


class Steps:
    """Steps of what servers keep across connections, to be put in the order of their times, however many there are."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}
        """The file of the first packet of each conversation that has findings."""
        self.diagnoser = Diagnoser()
        self._runs = Runs(BY_PLACE)
        self._rows: list[tuple[Any, ...]] = []

    def add(self, place: Sequence[int], file: int, step: Sequence[Any]) -> None:
        """Add a step."""
        data = msgspec.msgpack.encode((file, step))
        self._rows.append((*place, data))
        if len(self._rows) >= STEPS_HELD:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._runs.add_rows(pa.RecordBatch.from_arrays([pa.array(one) for one in zip(*self._rows, strict=True)], schema=STEPS))
            self._rows.clear()

    def findings(self, ports: set[int]) -> list[Linked]:
        """What they show."""
        self._flush()
        return [(one, None, None, None) for one in self.diagnoser.replay(self._ordered(), ports)]

    def _ordered(self) -> Iterator[Step]:
        for batch in self._runs.merged():
            for data in batch.column("step").to_pylist():
                file, step = msgspec.msgpack.decode(data)
                self.files[step[1]] = file
                found = Step(*step)
                yield found._replace(step=_closed(found.step)) if found.rule in (CLOSES, UNUSED) else found


def _closed(data: bytes) -> Closed:
    """The end of a conversation that was written as plain data."""
    closed = _CLOSED.decode(data)
    closed.tls = closed.tls and msgspec.convert(closed.tls, TlsFacts)
    return closed
