"""Statistics of a run: files, commands, streams, intervals. Bounded, except for a row per file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from .model import ConversationRow, Ending, Gap, Message, Packet, Record
from .protocols import PROTOCOLS
from .protocols.protocol import STALL_NS, Traffic
from .protocols.records import rfc3339

GROUPS, INTERVALS = 1_000, 4_096
"""Limits: commands or streams, and intervals; with more intervals, each becomes twice as long."""

NAMES = 100
"""Message names per interval."""

OTHERS = "(others)"
"""Stands for everything beyond a limit."""

CREDITED = 65_536
"""Subscriptions whose credit is tracked, and conversations with them."""

ASKED = 4_096
"""Grants of credit remembered until the server may have refused them, and polls until they are answered."""

SUBSCRIPTIONS, CONSUMERS, STALLS = 1_000, 1_000, 100
"""Limits: subscriptions and consumers with a row, and stalls that a row lists."""

COURSES, CHANGES = 20, 1_000
"""Subscriptions whose credit is kept over time, and places of each; with more, every second one is kept."""


class Grant(NamedTuple):
    """Credit that a client grants. `begins`: with a new subscription, which is not `counted` before it is accepted if there is one with its
    id."""

    subscription: Subscription
    credit: int
    begins: bool
    counted: bool


class Stall(msgspec.Struct):
    """A time in which a subscription had no credit."""

    time: str
    time_ns: int
    duration_ns: int
    side: Literal["client"]
    waiting: bool | None
    ended: bool


class SubscriptionRow(msgspec.Struct, tag_field="record", tag="subscription"):
    """The credit of a subscription."""

    v: int
    time: str
    time_ns: int
    conversation: int
    protocol: str
    stream: str | None
    subscription: int
    unit: str
    granted: int
    used: int
    chunks: int
    outstanding: int | None
    complete: bool
    stalls: int
    stalled_ns: int
    longest_ns: int
    listed: list[Stall]


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


class Course(msgspec.Struct):
    """The credit of a subscription over time: the time, the credit left, and whether that was after a chunk. `every`: the number of changes
    from one place to the next."""

    row: SubscriptionRow
    places: list[tuple[int, int, bool]] = []
    every: int = 1
    changes: int = 0

    def add(self, time_ns: int, left: int, delivered: bool) -> None:
        """The credit has changed."""
        if self.row.complete and self.changes % self.every == 0:
            self.places.append((time_ns, left, delivered))
            if len(self.places) >= CHANGES:
                del self.places[1::2]
                self.every *= 2
        self.changes += 1


class Subscription(msgspec.Struct):
    """What the server may still send, and since when nothing."""

    row: SubscriptionRow
    left: int
    empty_ns: int | None = None
    """When the credit was used up."""
    waiting: bool | None = None
    """Whether the server had reported more by then."""
    over: Stall | None = None
    """The stall that a Credit has ended unless it is refused."""
    lists: int = 0
    """The number of stalls that the row lists at most."""
    course: Course | None = None

    def deliver(self, credit: int, time_ns: int, waiting: bool | None) -> None:
        """The server delivers a chunk; `waiting`: whether it has more."""
        self._count()
        self.row.chunks += 1
        self.row.used -= credit
        self.left += credit
        if self.left < 0 and self.row.unit == "chunks":
            # Servers never do: there is credit that the capture does not show
            self.doubt()
        if self.empty_ns is None:
            self.waiting = waiting
            self.drained(time_ns)

    def grant(self, credit: int, time_ns: int) -> None:
        """The client grants more."""
        self.row.granted += credit
        self.left += credit
        if self.left > 0 and self.empty_ns is not None:
            self.over, self.empty_ns = self._stall(time_ns, True), None
        self.drained(time_ns)

    def withdraw(self, credit: int, time_ns: int) -> None:
        """The server refused a grant."""
        self.row.granted -= credit
        self.left -= credit
        if self.left <= 0 and self.over is not None:
            self.empty_ns, self.over = self.over.time_ns, None
        self.drained(time_ns)

    def drained(self, time_ns: int) -> None:
        """Note the time if there is no credit."""
        if self.left <= 0 and self.empty_ns is None and self.row.complete:
            self.empty_ns = time_ns

    def doubt(self) -> None:
        """Something is missing: what credit there is, is unknown from now on."""
        self.row.complete, self.empty_ns, self.over = False, None, None

    def end(self, time_ns: int) -> None:
        """It ends, or what was captured of it does."""
        self._count()
        if self.empty_ns is not None:
            self.over, self.empty_ns = self._stall(time_ns, False), None
            self._count()
        self.row.outstanding = self.left if self.row.complete else None
        if self.course is not None and self.row.complete:
            self.course.places.append((time_ns, self.left, False))

    def _stall(self, until_ns: int, ended: bool) -> Stall:
        assert self.empty_ns is not None
        begin_ns = self.empty_ns
        return Stall(rfc3339(begin_ns), begin_ns, max(0, until_ns - begin_ns), "client", self.waiting, ended)

    def _count(self) -> None:
        row, stall = self.row, self.over
        self.over = None
        if stall is not None and stall.duration_ns >= STALL_NS:
            row.stalls += 1
            row.stalled_ns += stall.duration_ns
            row.longest_ns = max(row.longest_ns, stall.duration_ns)
            if len(row.listed) < self.lists:
                row.listed.append(stall)


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

    def __init__(self, interval_ns: int | None = None, complete: bool = True, separate: bool = False) -> None:
        self.interval_ns = interval_ns
        self._complete, self._separate = complete, separate
        self._total = TotalRow(1, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})
        self._files: dict[int, FileRow] = {}
        self._commands: dict[tuple[Any, ...], CommandRow] = {}
        self._streams: dict[tuple[Any, ...], StreamRow] = {}
        self._cells: dict[int, CountRow] = {}
        self._credit: dict[int, dict[int, Subscription]] = {}
        """By conversation and subscription."""
        self.draws = False
        """Whether to keep the credit of subscriptions over time."""
        self._tracked = 0
        self._lossy: dict[int, None] = {}
        """Conversations of which something is missing."""
        self._last: dict[int, int] = {}
        """The file of the last message of conversations with subscriptions."""
        self._subscriptions: dict[int, Subscription] = {}
        """By identity those with a row, in the order in which they began."""
        self._consumers: dict[tuple[Any, ...], ConsumerRow] = {}
        self._polls: dict[int, str] = {}
        """By message number who asks for messages."""
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
                    if not record.in_frame:
                        self._lose(record.conversation)
                case Ending():
                    self._forget(record.conversation, record.time_ns)
                    self._lossy.pop(record.conversation, None)

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
            self._answered(self._asked.pop(message.request), message.outcome == "refused", message.time_ns)
        if message.fault is not None and traffic_of is not None:
            self._lose(message.conversation)
        if message.conversation in self._credit:
            self._last[message.conversation] = message.file
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
        if traffic.ends is not None:
            self._end_all(message.conversation, traffic.ends, message.time_ns)
        if traffic.consumer is not None:
            self._polls[message.number] = traffic.consumer
            if len(self._polls) > ASKED:
                del self._polls[next(iter(self._polls))]
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

    def _give(self, message: Message, subscription: int, traffic: Traffic) -> None:
        time_ns = message.time_ns
        if traffic.credit is None:
            self._set(message.conversation, subscription, None, time_ns)
            return
        known = self._credit.get(message.conversation, {}).get(subscription)
        if traffic.begins:
            ((unit, credit),) = traffic.credit.items()
            complete = message.conversation not in self._lossy
            row = SubscriptionRow(
                1,
                message.time,
                time_ns,
                message.conversation,
                message.protocol,
                message.stream,
                subscription,
                unit,
                credit,
                0,
                0,
                None,
                complete,
                0,
                0,
                0,
                [],
            )
            made = Subscription(row, credit)
            if known is None:
                self._set(message.conversation, subscription, made, time_ns)
            self._ask(message.number, Grant(made, credit, True, known is None))
        elif known is not None and known.row.unit in traffic.credit:
            credit, before = traffic.credit[known.row.unit], known.left
            if message.sender == "client":
                known.grant(credit, time_ns)
                self._ask(message.number, Grant(known, credit, False, True))
            else:
                more = None if traffic.offset is None or traffic.committed is None else traffic.committed > traffic.offset
                known.deliver(credit, time_ns, more)
            self._change(known, before, time_ns, message.sender != "client")

    def _ask(self, number: int, grant: Grant) -> None:
        self._asked[number] = grant
        if len(self._asked) > ASKED:
            del self._asked[next(iter(self._asked))]

    def _answered(self, grant: Grant, refused: bool, time_ns: int) -> None:
        """Take back a grant that the server refused, or count that of a new subscription with the id of another one."""
        made = grant.subscription
        conversation, ident = made.row.conversation, made.row.subscription
        if not grant.begins:
            if refused and self._credit.get(conversation, {}).get(ident) is made:
                before = made.left
                made.withdraw(grant.credit, time_ns)
                self._change(made, before, time_ns, False)
        elif not refused and not grant.counted:
            self._set(conversation, ident, made, time_ns)
        elif not refused:
            made.drained(time_ns)
        elif grant.counted:
            self._set(conversation, ident, None, time_ns)
            if self._subscriptions.pop(id(made), None) is None:
                self._total.subscriptions_left_out -= self._complete

    def _set(self, conversation: int, subscription: int, made: Subscription | None, time_ns: int) -> None:
        """A subscription ends; `made`: a new one with its id begins."""
        known = self._credit.get(conversation, {}).pop(subscription, None)
        if known is not None:
            self._tracked -= 1
            known.end(time_ns)
            self._count(known.row.unit, -max(0, known.left))
        if made is None:
            return
        self._credit.setdefault(conversation, {})[subscription] = made
        self._count(made.row.unit, max(0, made.left))
        self._tracked += 1
        if len(self._subscriptions) < SUBSCRIPTIONS:
            self._subscriptions[id(made)] = made
            made.lists = STALLS
            if self.draws and len(self._subscriptions) <= COURSES:
                made.course = Course(made.row)
                made.course.add(time_ns, made.left, False)
        else:
            self._total.subscriptions_left_out += self._complete
        if max(len(self._credit), self._tracked) > CREDITED:
            oldest = next(iter(self._credit))
            self._lose(oldest)
            self._forget(oldest, time_ns)

    def _change(self, one: Subscription, before: int, time_ns: int, delivered: bool) -> None:
        self._count(one.row.unit, max(0, one.left) - max(0, before))
        if one.course is not None:
            one.course.add(time_ns, one.left, delivered)

    def _count(self, unit: str, credit: int) -> None:
        self._outstanding[unit] = self._outstanding.get(unit, 0) + credit

    def _end_all(self, conversation: int, stream: str, time_ns: int) -> None:
        """Those of a stream end."""
        for subscription, one in list(self._credit.get(conversation, {}).items()):
            if one.row.stream == stream:
                self._set(conversation, subscription, None, time_ns)

    def _lose(self, conversation: int) -> None:
        """Something of this conversation is missing, which may be credit."""
        self._lossy[conversation] = None
        if len(self._lossy) > CREDITED:
            del self._lossy[next(iter(self._lossy))]
        for one in self._credit.get(conversation, {}).values():
            one.doubt()

    def _forget(self, conversation: int, time_ns: int) -> None:
        for subscription in list(self._credit.get(conversation, {})):
            self._set(conversation, subscription, None, time_ns)
        self._credit.pop(conversation, None)
        self._last.pop(conversation, None)

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

    def subscriptions(self) -> list[SubscriptionRow]:
        """In the order in which they began. Those that have not ended do with the capture, or their file if files are separate."""
        last = max((one.time_ns + one.duration_ns for one in self._files.values()), default=0)
        for conversation, file in list(self._last.items()):
            own = self._files.get(file) if self._separate else None
            self._forget(conversation, last if own is None else own.time_ns + own.duration_ns)
        return [one.row for one in self._subscriptions.values()] if self._complete else []

    def courses(self) -> list[Course]:
        """The credit of the first subscriptions over time."""
        return [one.course for one in self._subscriptions.values() if one.course is not None] if self._complete else []

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


def _add(counts: dict[str, int], name: str, count: int) -> None:
    name = name if name in counts or len(counts) < NAMES else OTHERS
    counts[name] = counts.get(name, 0) + count


def _greatest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
