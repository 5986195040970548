"""Statistics of a run: files, commands, streams, intervals. Bounded, except for a row per file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .conversation.processes import group_of
from .credit import Course, CreditAccounts, SubscriptionRow
from .model import ConversationRow, Ending, Gap, Message, Packet, Record
from .protocols import PROTOCOLS
from .protocols.protocol import Traffic
from .protocols.records import rfc3339
from .quota import drop_oldest

GROUPS, INTERVALS = 1_000, 4_096
"""Limits: commands or streams, and intervals; with more intervals, each becomes twice as long."""

NAMES = 100
"""Message names per interval."""

OTHERS = "(others)"
"""Stands for everything beyond a limit."""

CONSUMERS = 1_000
"""Consumers with a row."""

ASKED = 4_096
"""Polls that are remembered until they are answered."""


class ConsumerRow(msgspec.Struct, tag_field="record", tag="consumer"):
    """How far a consumer is behind a partition."""

    v: int
    time: str
    time_ns: int
    conversation: int
    protocol: str
    stream: str
    partition: int
    consumer: str
    offset: int
    current_offset: int
    lag: int
    largest_lag: int
    largest_lag_time: str
    largest_lag_time_ns: int


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
    subscriptions_left_out: int
    polls_left_out: int
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
    # Only if messages are counted by them
    process: str | msgspec.UnsetType | None = msgspec.UNSET
    pid: int | str | msgspec.UnsetType | None = msgspec.UNSET
    container: str | msgspec.UnsetType | None = msgspec.UNSET
    pod: str | msgspec.UnsetType | None = msgspec.UNSET
    namespace: str | msgspec.UnsetType | None = msgspec.UNSET
    host: str | msgspec.UnsetType | None = msgspec.UNSET


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
    """Counts records and packets. `complete`: no record is left out; otherwise there are no rows of subscriptions, as one that is left
    out may grant credit. `separate`: each file is a capture of its own."""

    def __init__(
        self,
        interval_ns: int | None = None,
        complete: bool = True,
        separate: bool = False,
        draws: bool = False,
        by: str | None = None,
    ) -> None:
        """`draws`: keep the credit of the first subscriptions over time. `by`: count commands by this of the client's process, too."""
        self.interval_ns = interval_ns
        self._complete, self._separate, self._by = complete, separate, by
        self._total = TotalRow(1, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})
        self._files: dict[int, FileRow] = {}
        self._commands: dict[tuple[Any, ...], CommandRow] = {}
        self._streams: dict[tuple[Any, ...], StreamRow] = {}
        self._cells: dict[int, CountRow] = {}
        self.credit = CreditAccounts(draws)
        self._consumers: dict[tuple[Any, ...], ConsumerRow] = {}
        self._polls: dict[int, str] = {}
        """By message number who asks for messages."""
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
                    if not record.in_frame:
                        self.credit.lose(record.conversation)
                case Ending():
                    self.credit.end(record.conversation, record.time_ns)

    def _message(self, message: Message) -> None:
        total, size = self._total, message.size
        total.messages += 1
        total.message_bytes += size
        total.refused += message.outcome == "refused"
        total.faults += message.fault is not None
        key: tuple[Any, ...] = (message.protocol, message.name, message.kind, message.sender)
        if self._by is not None:
            key = *key, _behind(message, self._by)
        if key not in self._commands and len(self._commands) >= GROUPS:
            key = (message.protocol, OTHERS, message.kind, message.sender)
        row = self._commands.get(key)
        if row is None:
            row = self._commands[key] = CommandRow(1, key[0], key[1], key[2], key[3], 0, 0, None)
            if self._by is not None:
                setattr(row, self._by, key[4] if len(key) > 4 else None)
        row.count += 1
        row.bytes += size
        traffic_of = self._traffic.get(message.protocol)
        traffic = None if traffic_of is None else traffic_of(message)
        if traffic_of is not None:
            self.credit.add(message, traffic)
        if traffic is not None:
            self._take(message, traffic)
        if self.interval_ns is not None:
            cell = self._cell(message.time_ns)
            cell.messages += 1
            cell.bytes += size
            _add(cell.commands, message.name, 1)
            left = self.credit.outstanding
            cell.credit, cell.credit_bytes = left.get("chunks", 0), left.get("bytes", 0)
            if traffic is not None:
                cell.published += traffic.published
                cell.delivered += traffic.delivered

    def _take(self, message: Message, traffic: Traffic) -> None:
        if traffic.consumer is not None:
            self._polls[message.number] = traffic.consumer
            drop_oldest(self._polls, ASKED)
        elif message.request in self._polls:
            self._polled(message, self._polls.pop(message.request), traffic)
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

    def _polled(self, message: Message, consumer: str, traffic: Traffic) -> None:
        """Hold the last message that a consumer got against the last of the partition."""
        offset, current, stream, partition = traffic.offset, traffic.committed, message.stream, traffic.partition
        if offset is None or current is None or stream is None or partition is None:
            return
        key = message.conversation, consumer, stream, partition
        row, lag = self._consumers.get(key), max(0, current - offset)
        if row is None:
            row = ConsumerRow(1, "", 0, message.conversation, message.protocol, stream, partition, consumer, 0, 0, 0, -1, "", 0)
            if len(self._consumers) >= CONSUMERS:
                self._total.polls_left_out += 1
                return
            self._consumers[key] = row
        row.time, row.time_ns, row.offset, row.current_offset, row.lag = message.time, message.time_ns, offset, current, lag
        if lag > row.largest_lag:
            row.largest_lag, row.largest_lag_time, row.largest_lag_time_ns = lag, message.time, message.time_ns

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
        total.subscriptions_left_out = self.credit.left_out if self._complete else 0
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

    def subscriptions(self) -> list[SubscriptionRow]:
        """Return the subscriptions in their order. Open ones end with the capture, or with their file if files are separate."""
        last = max((one.time_ns + one.duration_ns for one in self._files.values()), default=0)

        def end_ns(file: int) -> int:
            own = self._files.get(file) if self._separate else None
            return last if own is None else own.time_ns + own.duration_ns

        self.credit.finish(end_ns)
        return self.credit.rows() if self._complete else []

    def courses(self) -> list[Course]:
        """The credit of the first subscriptions over time."""
        return self.credit.courses() if self._complete else []

    def consumers(self) -> list[ConsumerRow]:
        """By stream, partition and name."""
        return sorted(self._consumers.values(), key=lambda row: (row.stream, row.partition, row.consumer, row.conversation))

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


def _behind(message: Message, name: str) -> str | int | None:
    """Return the value of this name for the process behind the client."""
    sender = message.sender
    client = None if sender is None else message.src if sender == "client" else message.dst
    return group_of(message.processes, client, name)


def _add(counts: dict[str, int], name: str, count: int) -> None:
    name = name if name in counts or len(counts) < NAMES else OTHERS
    counts[name] = counts.get(name, 0) + count


def _greatest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
