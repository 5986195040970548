"""Statistics of a run: files, commands, streams, intervals. Bounded, except for a row per file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from .model import ConversationRow, Ending, Gap, Message, Packet, Record
from .protocols import PROTOCOLS
from .protocols.protocol import Traffic
from .protocols.records import rfc3339

GROUPS, INTERVALS = 1_000, 4_096
"""Limits: commands or streams, and intervals; with more intervals, each becomes twice as long."""

NAMES = 100
"""Message names per interval."""

OTHERS = "(others)"
"""Stands for everything beyond a limit."""

CREDITED = 65_536
"""Conversations whose credit is tracked."""

ASKED = 4_096
"""Grants of credit remembered until the server may have refused them."""


class Grant(NamedTuple):
    """Credit that a client grants in a conversation: to which subscription, and in what unit. `begins`: with a new subscription, which is
    not `counted` before it is accepted if there is one with its id."""

    conversation: int
    subscription: int
    unit: str
    credit: int
    begins: bool
    counted: bool


class FileRow(msgspec.Struct, tag_field="record", tag="file"):
    """One input."""

    v: int
    file: int
    name: str
    time: str
    time_ns: int
    duration_ns: int
    packets: int
    bytes: int


class TotalRow(msgspec.Struct, tag_field="record", tag="total"):
    """The totals of a run."""

    v: int
    time: str
    time_ns: int
    duration_ns: int
    packets: int
    bytes: int
    conversations: int
    messages: int
    message_bytes: int
    refused: int
    faults: int
    gaps: int
    gap_bytes: int
    unread: dict[str, int]


class CommandRow(msgspec.Struct, tag_field="record", tag="command"):
    """Messages of one name, kind and sender."""

    v: int
    protocol: str
    name: str
    kind: str
    sender: str | None
    count: int
    bytes: int
    per_second: float | None


class StreamRow(msgspec.Struct, tag_field="record", tag="stream"):
    """Messages published to and delivered from a stream or partition."""

    v: int
    protocol: str
    stream: str
    partition: int | None
    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    offset: int | None = None
    committed: int | None = None
    behind: int | None = None


class CountRow(msgspec.Struct, tag_field="record", tag="count"):
    """Messages in one interval."""

    v: int
    time: str
    time_ns: int
    interval_ns: int
    messages: int = 0
    bytes: int = 0
    published: int = 0
    delivered: int = 0
    credit: int = 0
    credit_bytes: int = 0
    commands: dict[str, int] = {}


class Stats:
    """Counts records and packets."""

    def __init__(self, interval_ns: int | None = None) -> None:
        self.interval_ns = interval_ns
        self._total = TotalRow(1, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})
        self._files: dict[int, FileRow] = {}
        self._commands: dict[tuple[Any, ...], CommandRow] = {}
        self._streams: dict[tuple[Any, ...], StreamRow] = {}
        self._cells: dict[int, CountRow] = {}
        self._credit: dict[int, dict[int, tuple[str, int]]] = {}
        """The unit of credit, and how much is left, by conversation and subscription."""
        self._outstanding: dict[str, int] = {}
        """The sum of what is left, by unit."""
        self._asked: dict[int, Grant] = {}
        """By message number the last grants of credit."""
        self._traffic = {one.name: one.loaded.traffic for one in PROTOCOLS if one.loaded.traffic is not None}

    def watch(self, packets: list[Packet]) -> None:
        """Count packets, of any protocol."""
        for packet in packets:
            one = self._files.get(packet.file)
            if one is None:
                one = self._files[packet.file] = FileRow(1, packet.file, "", "", packet.time_ns, 0, 0, 0)
            one.packets += 1
            one.bytes += packet.wire
            end = max(one.time_ns + one.duration_ns, packet.time_ns)
            one.time_ns = min(one.time_ns, packet.time_ns)
            one.duration_ns = end - one.time_ns

    def add(self, records: Iterable[Record]) -> None:
        """Count these records."""
        for record in records:
            match record:
                case Message():
                    self._message(record)
                case Gap():
                    self._total.gaps += 1
                    self._total.gap_bytes += record.size or 0
                case Ending():
                    self._forget(record.conversation)

    def _message(self, message: Message) -> None:
        total, size = self._total, message.size
        total.messages += 1
        total.message_bytes += size
        total.refused += message.outcome == "refused"
        total.faults += message.fault is not None
        key: tuple[Any, ...] = (message.protocol, message.name, message.kind, message.sender)
        if key not in self._commands and len(self._commands) >= GROUPS:
            key = (message.protocol, OTHERS, message.kind, message.sender)
        row = self._commands.setdefault(key, CommandRow(1, key[0], key[1], key[2], key[3], 0, 0, None))
        row.count += 1
        row.bytes += size
        traffic_of = self._traffic.get(message.protocol)
        traffic = None if traffic_of is None else traffic_of(message)
        if message.request in self._asked:
            self._answered(self._asked.pop(message.request), message.outcome == "refused")
        if traffic is not None:
            self._take(message, traffic)
        if self.interval_ns is not None:
            cell = self._cell(message.time_ns)
            cell.messages += 1
            cell.bytes += size
            _add(cell.commands, message.name, 1)
            cell.credit, cell.credit_bytes = self._outstanding.get("chunks", 0), self._outstanding.get("bytes", 0)
            if traffic is not None:
                cell.published += traffic.published
                cell.delivered += traffic.delivered

    def _take(self, message: Message, traffic: Traffic) -> None:
        if traffic.subscription is not None:
            self._give(message, traffic.subscription, traffic)
        if not (traffic.published or traffic.delivered or traffic.committed is not None):
            return
        key = (message.protocol, message.stream or "-", traffic.partition)
        if key not in self._streams and len(self._streams) >= GROUPS:
            key = (message.protocol, OTHERS, None)
        row = self._streams.setdefault(key, StreamRow(1, *key))
        row.published += traffic.published
        row.delivered += traffic.delivered
        row.published_bytes += message.size if traffic.published else 0
        row.delivered_bytes += message.size if traffic.delivered else 0
        row.offset = _greatest(row.offset, traffic.offset)
        row.committed = _greatest(row.committed, traffic.committed)
        if row.offset is not None and row.committed is not None:
            row.behind = max(0, row.committed - row.offset)

    def _give(self, message: Message, subscription: int, traffic: Traffic) -> None:
        left = self._credit.setdefault(message.conversation, {})
        known = left.get(subscription)
        if traffic.credit is None:
            self._set(left, subscription, None)
        elif traffic.begins:
            ((unit, credit),) = traffic.credit.items()
            if known is None:
                self._set(left, subscription, (unit, credit))
            self._ask(message.number, Grant(message.conversation, subscription, unit, credit, True, known is None))
        elif known is not None and known[0] in traffic.credit:
            unit, before = known
            credit = traffic.credit[unit]
            self._set(left, subscription, (unit, before + credit))
            if message.sender == "client":
                self._ask(message.number, Grant(message.conversation, subscription, unit, credit, False, True))
        if len(self._credit) > CREDITED:
            self._forget(next(iter(self._credit)))

    def _ask(self, number: int, grant: Grant) -> None:
        self._asked[number] = grant
        if len(self._asked) > ASKED:
            del self._asked[next(iter(self._asked))]

    def _answered(self, grant: Grant, refused: bool) -> None:
        """Take back a grant that the server refused, or count that of a new subscription with the id of another one."""
        left = self._credit.get(grant.conversation, {})
        unit, before = left.get(grant.subscription, ("", 0))
        if grant.begins and refused == grant.counted:
            self._set(left, grant.subscription, None if refused else (grant.unit, grant.credit))
        elif refused and not grant.begins and unit == grant.unit:
            self._set(left, grant.subscription, (unit, before - grant.credit))

    def _set(self, left: dict[int, tuple[str, int]], subscription: int, credit: tuple[str, int] | None) -> None:
        """Set what is left to a subscription; None: it ends."""
        for one, sign in ((left.pop(subscription, None), -1), (credit, 1)):
            if one is not None:
                unit, number = one
                self._outstanding[unit] = self._outstanding.get(unit, 0) + sign * max(0, number)
        if credit is not None:
            left[subscription] = credit

    def _forget(self, conversation: int) -> None:
        left = self._credit.pop(conversation, {})
        for subscription in list(left):
            self._set(left, subscription, None)

    def _cell(self, time_ns: int) -> CountRow:
        assert self.interval_ns is not None
        at = time_ns // self.interval_ns * self.interval_ns
        cell = self._cells.get(at)
        if cell is None:
            cell = self._cells[at] = CountRow(1, rfc3339(at), at, self.interval_ns)
            if len(self._cells) > INTERVALS:
                self.widen_to(INTERVALS // 2)
                return self._cell(time_ns)
        return cell

    def widen_to(self, most: int) -> None:
        """Double the intervals until at most `most` lie between the first and the last."""
        while self.interval_ns is not None and self._cells and (max(self._cells) - min(self._cells)) // self.interval_ns >= most:
            self.interval_ns *= 2
            cells, self._cells = self._cells, {}
            for at in sorted(cells):
                cell, old = self._cell(at), cells[at]
                for name in ("messages", "bytes", "published", "delivered"):
                    setattr(cell, name, getattr(cell, name) + getattr(old, name))
                cell.credit, cell.credit_bytes = old.credit, old.credit_bytes
                for name, count in old.commands.items():
                    _add(cell.commands, name, count)

    # What it comes to

    def files(self, names: Sequence[str]) -> list[FileRow]:
        """The inputs of which packets came."""
        found = [one for _, one in sorted(self._files.items())]
        for one in found:
            one.name, one.time = names[one.file], rfc3339(one.time_ns)
        return found

    def total(self, rows: Iterable[ConversationRow]) -> TotalRow:
        """All of it; `rows` are the conversations."""
        total, files = self._total, self._files.values()
        total.time_ns = min((one.time_ns for one in files), default=0)
        total.time = rfc3339(total.time_ns)
        total.duration_ns = max((one.time_ns + one.duration_ns for one in files), default=0) - total.time_ns
        total.packets, total.bytes = sum(one.packets for one in files), sum(one.bytes for one in files)
        for row in rows:
            total.conversations += 1
            if row.protocol is None and any(row.bytes):
                _add(total.unread, row.name or "unknown", sum(row.bytes))
        return total

    def commands(self, duration_ns: int) -> list[CommandRow]:
        """By protocol, the most frequent first."""
        for row in self._commands.values():
            row.per_second = round(row.count * 1e9 / duration_ns, 3) if duration_ns > 0 else None
        return sorted(self._commands.values(), key=lambda row: (row.protocol, -row.count, row.name, row.kind, str(row.sender)))

    def streams(self) -> list[StreamRow]:
        """By protocol and name."""
        return sorted(self._streams.values(), key=lambda row: (row.protocol, row.stream, -1 if row.partition is None else row.partition))

    def series(self) -> list[CountRow]:
        """Return the intervals from the first to the last, including empty ones."""
        if self.interval_ns is None or not self._cells:
            return []
        self.widen_to(INTERVALS)
        made: list[CountRow] = []
        for at in range(min(self._cells), max(self._cells) + 1, self.interval_ns):
            cell = self._cells.get(at)
            if cell is None:
                cell = CountRow(1, rfc3339(at), at, self.interval_ns, credit=made[-1].credit, credit_bytes=made[-1].credit_bytes)
            made.append(cell)
        return made


def _add(counts: dict[str, int], name: str, count: int) -> None:
    name = name if name in counts or len(counts) < NAMES else OTHERS
    counts[name] = counts.get(name, 0) + count


def _greatest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
