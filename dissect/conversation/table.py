"""All conversations of a run: sends each segment to its conversation and enforces the limits on all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec

from ..capture.ends import back, endpoints, ends_between
from ..capture.selection import ConversationSpan
from ..detect import TOO_FEW
from ..errors import Report, describe_exception
from ..model import END, ConversationRow, Options, Segment, SideData
from ..pair.pairer import KEYS_COUNTED, asked_since
from ..protocols import BY_NAME, PORTS, PROTOCOLS
from ..protocols.records import LARGE, ORDER_KEY, Event
from ..tcp.assembler import ACK, ACKED_TIME_NS, SYN, TcpStream
from .conversation import (
    CROWDED,
    IDLE,
    NOTHING,
    Conversation,
    closed,
    is_unused,
    patience_ns,
    ports_of,
    report,
    report_early,
    row_of,
    stop_deferring,
    stream_bytes,
)
from .run_state import SharedState

EPOCH, SEGMENT = 1 << 18, 64
"""Bytes between two checks of the totals over all conversations, and the bytes a segment counts besides its data."""

TARGET_SHARE = 0.75
"""The share of a limit to go back to once it is exceeded, as finding the oldest means looking at all."""

FEW_KEYS = LARGE // 12 // KEYS_COUNTED + 2
"""Units that a message which is not large adds to the open requests at most."""


def is_related(protocol: str | None) -> bool:
    """Return whether rows of this protocol depend on other conversations: then they are complete when all are known."""
    return protocol is not None and BY_NAME[protocol].loaded.relate is not None


Step = tuple[Conversation, SideData | bool, Segment]
"""The bytes that a segment brought to a conversation; True if none, False if `Conversation.feed` has not processed it yet."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[(int, int, *get_type_hints(ConversationRow).values())]).decode  # type: ignore[misc]


class ForgottenCounts(msgspec.Struct):
    """Counts of conversations for the closing line, also of those whose rows were dropped."""

    conversations: int = 0
    limit_hits: int = 0
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Conversations of no known protocol that carried bytes, by name."""
    ports: set[int] = msgspec.field(default_factory=set)
    """Ports of known protocols among the unrecognised conversations."""
    examples: dict[tuple[Any, ...], ConversationRow] = msgspec.field(default_factory=dict)
    """The first row by protocol and such ports."""

    def add(self, row: ConversationRow) -> None:
        """Count a conversation by its row."""
        ports = [int(end.rpartition(":")[2]) for end in (row.endpoints if row.server is None else (row.server,))]
        missing = self._count(row.protocol, row.name, ports, any(row.bytes), row.limit_hits)
        if missing is not None:
            self.examples[missing] = row

    def add_conversation(self, one: Conversation) -> None:
        """Count a conversation; its row is made only as an example."""
        verdict, limit_hits = one.verdict or TOO_FEW, one.limit_hits + one.tcp.limit_hits
        unread = verdict.protocol is None and any(stream_bytes(one))
        missing = self._count(verdict.protocol, verdict.name, ports_of(one), unread, limit_hits)
        if missing is not None:
            self.examples.update((missing, row) for row in _row(one, 0))

    def _count(
        self, protocol: str | None, name: str | None, ports: Iterable[int], carried: bool, limit_hits: int
    ) -> tuple[Any, ...] | None:
        """Count a conversation; return the key of its example if that is missing."""
        self.conversations += 1
        self.limit_hits += limit_hits
        known = PORTS.intersection(ports)
        if protocol is not None:
            kind = protocol, *sorted(known)
            return None if kind in self.examples else kind
        if carried:
            # There may be very many
            self.unread[name or "unknown"] = self.unread.get(name or "unknown", 0) + 1
            self.ports.update(known if name is None else ())
        return None


class PackedRows:
    """Serialised rows by conversation; their numbers are set when they are read."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str | None, bytes]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: ConversationRow, order: int, file: int) -> None:
        """Keep the row of a conversation whose first packet is `order`, in this file."""
        self._rows[row.conversation] = row.protocol, _encode((order, file, *msgspec.structs.astuple(row)))

    def protocols(self) -> dict[int, str | None]:
        """Return the protocol by conversation."""
        return {index: protocol for index, (protocol, _) in self._rows.items()}

    def row(self, index: int, number: int) -> ConversationRow:
        """Return the row of a conversation."""
        row = ConversationRow(*_decode(self._rows[index][1])[2:])
        row.number = number
        return row

    def flow(self, index: int, separate: bool) -> ConversationSpan:
        """Return what identifies the packets of a conversation."""
        order, file, *values = _decode(self._rows[index][1])
        return ConversationSpan(index, ConversationRow(*values).endpoints, order, file if separate else 0)


def forget_ns(tcp: TcpStream, options: Options) -> int:
    """Return when a conversation is forgotten if no packet arrives: soon after a RST, which a live user waits to see."""
    if tcp.open and tcp.closed is None:
        return tcp.last[3] + options.idle_time_ns
    return tcp.last[3] + (patience_ns(options) if tcp.reset else options.closed_time_ns)


class Timers:
    """The next time to check each conversation, so that not all have to be checked again and again."""

    def __init__(self, options: Options, ends_only: bool = False) -> None:
        """`ends_only`: for a pipe, which has an end: only the first FIN or RST of a conversation matters."""
        self.options = options
        self.ends_only = ends_only
        self._times: list[tuple[int, int]] = []
        """A heap; a conversation may have outdated entries, which are ignored."""
        self._set: dict[int, int] = {}

    def set(self, conversation: Conversation, time_ns: int) -> None:
        """Check the conversation at this time, or at the earlier one already set."""
        index = conversation.index
        if time_ns < self._set.get(index, time_ns + 1):
            self._set[index] = time_ns
            heappush(self._times, (time_ns, index))

    def set_next(self, conversation: Conversation, now_ns: int) -> None:
        """Set the next time when something may become certain without a packet."""
        tcp, pairer, answer_ns = conversation.tcp, conversation.pairer, self.options.answer_time_ns
        times = [] if self.ends_only else [forget_ns(tcp, self.options), now_ns + answer_ns]
        if pairer is not None and not self.ends_only:
            times += [asked_ns + answer_ns for asked_ns in asked_since(pairer, now_ns - answer_ns)]
        if tcp.end is not None and not (conversation.reported_early or conversation.ended):
            times.append(tcp.end.time_ns + patience_ns(self.options))
        if times:
            self.set(conversation, max(min(times), now_ns + 1))

    def due(self, now_ns: int) -> list[int]:
        """Return the indexes of the conversations to check now, and remove their times."""
        found: list[int] = []
        while self._times and self._times[0][0] <= now_ns:
            time_ns, index = heappop(self._times)
            if self._set.get(index) == time_ns:
                del self._set[index]
                found.append(index)
        return sorted(found)


class ConversationTable:
    """Sends each segment to its conversation."""

    def __init__(
        self, run: SharedState, finite: bool = False, keeps_rows: bool = True, index: Callable[[Segment], int] | None = None
    ) -> None:
        """`finite`: the capture has an end, and `age` is not called; `keeps_rows`: then keep the rows of conversations that are removed,
        otherwise `forgotten` counts them. `index`: the number of a conversation by its first segment; without it they are counted."""
        self.run = run
        self._by_index: dict[int, Conversation] = {}
        self._keeps_rows = keeps_rows
        self.packed = PackedRows()
        self.forgotten = ForgottenCounts()
        self._by_ends: dict[bytes, tuple[Conversation, int]] = {}
        self.timers: Timers | None = None
        """When `age` checks which conversation, if it is called."""
        self._count = 0
        self.index = index
        self._most = run.options.tracked_limit if finite else None
        self.watchers: list[Callable[[Segment], None]] = []
        """Called with each segment before its records are made."""
        self.created: list[tuple[Conversation, bytes]] | None = None
        """New conversations, with the ends of segments from side 0 to side 1, if not None; the consumer clears it."""
        self._left = EPOCH
        """Bytes left until the totals are checked."""
        self._opened = 0
        """Upper bound of the open requests, computed when `_counted` records had been made."""
        self._counted = 0

    @property
    def conversations(self) -> list[Conversation]:
        """The conversations that are not forgotten, by first packet."""
        return [*self._by_index.values()]

    def feed(self, segments: Iterable[Segment]) -> list[Event]:
        """Return the records that these segments complete, in their order.

        First the bytes of all segments are put in order, then their records are made, as repeating one step is faster. A conversation
        that is not steady is fed when records are made; a segment that may affect others waits until all before it are done.
        """
        emitted: list[Event] = []
        steps: list[Step] = []
        find, left = self._by_ends.get, self._left
        # Watchers see every segment; conversations waiting for keys continue with the next one
        every = bool(self.watchers or self.run.tls_manager.waiting)
        for segment in segments:
            left -= len(segment.data) + SEGMENT
            if left <= 0:
                emitted += self._make(steps)
                emitted += self._enforce_totals(segment)
                left = left % EPOCH or EPOCH
            found = find(segment.ends)
            if found is None:
                emitted += self._make(steps)
                found = self._create(segment)
            conversation, side = found
            if not conversation.steady:
                steps.append((conversation, False, segment))
                continue
            try:
                item = conversation.tcp.follow(segment, side)
            except Exception as error:
                emitted += self._make(steps)
                emitted += conversation.fail(error, segment.mark, segment, side)
                continue
            if item is not True or every:
                steps.append((conversation, item, segment))
            if item is False:
                emitted += self._make(steps)
        self._left = left
        return emitted + self._make(steps)

    def _make(self, steps: list[Step]) -> list[Event]:
        """Return the records of these steps, and clear them."""
        emitted: list[Event] = []
        waiting = self.run.tls_manager.waiting
        for conversation, item, segment in steps:
            for watch in self.watchers:
                watch(segment)
            mine = self._feed(segment) if item is False else NOTHING if item is True else conversation.parse(item)
            emitted += self._resume_tls(mine, segment.order) if waiting else mine
        steps.clear()
        return emitted

    def _feed(self, segment: Segment) -> list[Event]:
        """Return the records that a segment completes, even if it begins a conversation."""
        conversation, side = self._by_ends.get(segment.ends) or self._create(segment)
        mine = conversation.feed(segment, side)
        if mine is None:
            mine = conversation.finish(segment.order)
            conversation, side = self._create(segment)
            mine = mine + (conversation.feed(segment, side) or [])
        if self.timers is not None and conversation.tcp.end is not None:
            self.timers.set(conversation, segment.time_ns)
        run = self.run
        if run.pool.total > run.pool.total_limit:
            mine = mine + self._enforce_pool(segment.order)
        return mine

    def finish(self) -> list[Event]:
        """Return the last records at the end of the capture."""
        emitted: list[Event] = []
        for conversation in self._by_index.values():
            if not conversation.done:
                emitted += conversation.finish(END)
        self._by_ends.clear()
        emitted.sort(key=ORDER_KEY)
        return emitted

    def unused(self, ports: set[int] | None) -> list[Event]:
        """Return the ends of conversations on these ports (None: on any) that never carried a byte, for the diagnosis."""
        found = [closed(one) for one in self._by_index.values() if (ports is None or ports.intersection(ports_of(one))) and is_unused(one)]
        return sorted(found, key=ORDER_KEY)

    def age(self, now_ns: int, current: int) -> list[Event]:
        """Return what becomes certain as time passes: requests that were not answered in time, and the ends of conversations that were idle
        for long or that one side ended; for a pipe only the latter."""
        options, timers = self.run.options, self.timers
        assert timers is not None
        due = [self._by_index[index] for index in timers.due(now_ns) if index in self._by_index]
        if timers.ends_only:
            ends = [record for one in due for record in one.guard(current, report_early, one, now_ns, True)]
            for one in due:
                timers.set_next(one, now_ns)
            return sorted(ends, key=ORDER_KEY)
        emitted = self._resume_tls([], current)
        for conversation in due:
            if conversation.tcp.defers and now_ns - conversation.tcp.clock >= ACKED_TIME_NS:
                emitted += conversation.guard(current, stop_deferring, conversation, current)
            pairer = conversation.pairer
            if pairer is not None and pairer.open:
                late = conversation.guard(current, pairer.expire, now_ns, options.answer_time_ns)
                if conversation.pairer is pairer:
                    conversation.tally.unanswered += len(late)
                    self.run.counters.unanswered += len(late)
                emitted += late
        emitted += self._forget([one for one in due if now_ns >= forget_ns(one.tcp, options)], IDLE, current)
        emitted += self._enforce_tracked_limit(current)
        for one in due:
            emitted += one.guard(current, report_early, one, now_ns)
            if now_ns < forget_ns(one.tcp, options):
                timers.set_next(one, now_ns)
        emitted += _resume(self._by_index, self.run.tls_manager.stale(now_ns - options.closed_time_ns, current), current)
        emitted.sort(key=ORDER_KEY)
        return emitted

    def forget(self, now_ns: int, current: int) -> list[Event]:
        """Return the last records of conversations that are forgotten: those idle for long, and the oldest of too many."""
        options = self.run.options
        old = [one for one, _ in self._by_ends.values() if now_ns >= forget_ns(one.tcp, options)]
        return self._forget(list(dict.fromkeys(old)), IDLE, current) + self._enforce_tracked_limit(current)

    def due(self) -> int | None:
        """Return when `forget` or `drop` has to be called next if no packet arrives; None if no conversation is left."""
        options = self.run.options
        times = [forget_ns(one.tcp, options) for one, _ in self._by_ends.values()]
        times += [one.tcp.last[3] + options.closed_time_ns for one in self._by_index.values() if one.done]
        return min(times, default=None)

    def drop(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None) -> None:
        """Remove conversations that ended long ago, or the oldest of too many; `leaving` gets their rows."""
        options = self.run.options
        done = [one for one in self._by_index.values() if one.done]
        done.sort(key=lambda one: one.tcp.last[3])
        spare = len(self._by_index) - options.tracked_limit
        before = now_ns - options.closed_time_ns
        gone = [one for index, one in enumerate(done) if index < spare or one.tcp.last[3] <= before]
        if not gone:
            return
        rows = [row for at, one in enumerate(gone) for row in _row(one, self.forgotten.conversations + 1 + at)]
        for row in rows:
            self.forgotten.add(row)
        self.forgotten.conversations += len(gone) - len(rows)
        self._remove(gone)
        if leaving is not None:
            leaving(rows)

    def rows(self, related: bool) -> Iterator[list[ConversationRow]]:
        """Yield the rows of all, by first packet, some at a time; `related`: with what they reveal about each other."""
        known: dict[int, Conversation | str | None] = {**self._by_index}
        known.update(self.packed.protocols())
        number = self.forgotten.conversations + 1

        def known_row(index: int, at: int) -> list[ConversationRow]:
            one = known[index]
            return _row(one, number + at) if isinstance(one, Conversation) else [self.packed.row(index, number + at)]

        related_rows: dict[int, list[ConversationRow]] = {}
        for at, index in enumerate(sorted(known)):
            one = known[index]
            # Others reveal nothing about the rest, and there may be very many
            if related and is_related(one.protocol if isinstance(one, Conversation) else one):
                related_rows[index] = known_row(index, at)
        for what in relate([row for rows in related_rows.values() for row in rows]) if related_rows else ():
            self.run.reports.once(Report(what, "conversations lack what others tell of them"))
        for at, index in enumerate(sorted(known)):
            rows = related_rows.pop(index, None)
            yield known_row(index, at) if rows is None else rows

    def flows(self) -> Iterator[ConversationSpan]:
        """Yield what identifies the packets of each conversation; not after `drop`."""
        separate = self.run.options.separate
        for tcp in [one.tcp for one in self._by_index.values()]:
            order, _, file, _ = tcp.first
            yield ConversationSpan(tcp.index, tcp.endpoints, order, file if separate else 0)
        for index in self.packed.protocols():
            yield self.packed.flow(index, separate)

    def get(self, key: int | bytes) -> Conversation | None:
        """Return a conversation that is not forgotten, by its number or by the ends of its next segment."""
        if isinstance(key, int):
            return self._by_index.get(key)
        return self._by_ends[key][0] if key in self._by_ends else None

    def alone(self, ends: bytes) -> ConversationTable | None:
        """Return a table with only the conversation whose segments have these ends, to serialise it; None if none is open."""
        pairs = {one: self._by_ends[one] for one in (ends, back(ends)) if one in self._by_ends}
        if ends not in pairs or pairs[ends][0].done:
            return None
        table, conversation = copy(self), pairs[ends][0]
        table._by_index, table._by_ends = {conversation.index: conversation}, pairs
        table.packed, table.forgotten, table.index, table.watchers = PackedRows(), ForgottenCounts(), None, []
        table.created = None
        return table

    def __len__(self) -> int:
        """Return the number of conversations, including forgotten ones."""
        return self.forgotten.conversations + len(self.packed) + len(self._by_index)

    # One conversation

    def _create(self, segment: Segment) -> tuple[Conversation, int]:
        """Create the conversation that begins with a segment; return it with the side of the sender."""
        ends = segment.ends
        # The sender of a SYN-ACK is the server
        side = int(segment.flags & (SYN | ACK) == SYN | ACK)
        one, two = endpoints(back(ends) if side else ends)
        index = self._count if self.index is None else self.index(segment)
        self._count += 1
        tcp = TcpStream((one[0], two[0]), (one[1], two[1]), segment.mark, index, self.run.pool)
        old = self._by_ends.get(ends)
        if old is not None:
            tcp.streams[side].follow(old[0].tcp.streams[old[1]])
            tcp.streams[1 - side].follow(old[0].tcp.streams[1 - old[1]])
        conversation = self._by_index[index] = Conversation(self.run, tcp)
        if self.timers is not None:
            self.timers.set_next(conversation, segment.time_ns)
        if self.created is not None:
            self.created.append((conversation, back(ends) if side else ends))
        self._by_ends[back(ends)] = conversation, 1 - side
        found = self._by_ends[ends] = conversation, side
        return found

    # Limits on all conversations together

    def _enforce_totals(self, segment: Segment) -> list[Event]:
        """Enforce the limits on the totals before a segment; return the records completed by that."""
        run, before = self.run, segment.order - 1
        emitted: list[Event] = []
        limit = run.options.undecided_total
        undecided = sum([one.detector.cost for one in run.detecting.values() if one.detector is not None])
        if undecided > limit:
            for _, one in sorted(run.detecting.items()):
                if one.detector is not None and one.detector.cost:
                    undecided -= one.detector.cost
                    emitted += one.guard(before, one.decide, before)
                if undecided <= TARGET_SHARE * limit:
                    break
        if run.tls_manager.waiting:
            emitted += _resume(self._by_index, run.tls_manager.stale(segment.time_ns - run.options.closed_time_ns, before), before)
        made = run.counters.records
        self._opened += FEW_KEYS * (made - self._counted) + run.keys
        self._counted, run.keys = made, 0
        if self._opened > run.options.open_total:
            emitted += self._drop_requests(before, segment.time_ns)
        emitted.sort(key=lambda one: one.record.conversation)
        if self._most is not None and len(self._by_index) > self._most:
            crowd = self._enforce_tracked_limit(before)
            crowd.sort(key=ORDER_KEY)
            emitted += crowd
            self._pack()
        return emitted

    def _drop_requests(self, current: int, time_ns: int) -> list[Event]:
        limit, emitted = self.run.options.open_total, list[Event]()
        paired = [(one, one.pairer) for one in self.run.paired.values() if one.pairer is not None]
        self._opened = sum([pairer.weight() for _, pairer in paired])
        while self._opened > limit:
            orders = sorted([order for _, pairer in paired for order in pairer.orders()])
            until = orders[int(len(orders) * (1 - TARGET_SHARE * limit / self._opened))]
            for one, pairer in paired:
                emitted += one.guard(current, pairer.drop, until, time_ns)
            paired = [(one, pairer) for one, pairer in paired if one.pairer is pairer]
            self._opened = sum([pairer.weight() for _, pairer in paired])
        return emitted

    def _enforce_pool(self, current: int) -> list[Event]:
        """Release what has waited longest for missing bytes until the total is within its limit."""
        emitted: list[Event] = []
        while (longest := self.run.pool.longest_waiting()) is not None:
            stream, tcp = longest
            one = self._by_index[tcp.index]
            emitted += one.guard(current, one.relieve, current, stream)
        emitted.sort(key=lambda one: one.record.conversation)
        return emitted

    def _resume_tls(self, emitted: list[Event], current: int) -> list[Event]:
        """Return these records with those of conversations whose TLS need not wait for keys any longer."""
        resumed = self.run.tls_manager.resumed(current)
        if not resumed:
            return emitted
        emitted = [*emitted, *_resume(self._by_index, resumed, current)]
        emitted.sort(key=lambda one: one.record.conversation)
        return emitted

    def _enforce_tracked_limit(self, current: int) -> list[Event]:
        """If there are too many conversations, forget those that ended, then those idle longest; return their records."""
        most = self.run.options.tracked_limit
        # Each has an entry per direction
        if len(self._by_ends) <= 2 * most:
            return []
        held = list({one for one, _ in self._by_ends.values()})
        # A tenth more than needed, as sorting for each new conversation would be slow
        held.sort(key=lambda one: (one.tcp.open, one.tcp.last[3], one.tcp.last[0]))
        return self._forget(held[: len(held) - most + most // 10], CROWDED, current)

    def _forget(self, conversations: list[Conversation], why: str, current: int) -> list[Event]:
        """Return the last records of these; packets between their endpoints now begin others."""
        for one in conversations:
            for ends in ends_between(one.tcp.endpoints, one.tcp.first[2] if self.run.options.separate else 0):
                # Another conversation may use its ports
                if ends in self._by_ends and self._by_ends[ends][0] is one:
                    del self._by_ends[ends]
        return [record for one in sorted(conversations, key=attrgetter("index")) if not one.done for record in one.finish(current, why)]

    def _pack(self) -> None:
        """Replace conversations that have ended by their rows or counts, unless their packets may still arrive."""
        known = {id(one) for one, _ in self._by_ends.values()}
        gone = []
        for one in self._by_index.values():
            # Conflicts between files are reported at the end
            if one.done and id(one) not in known and one.tcp.other_file is None:
                for row in _row(one, 0):
                    if self._keeps_rows:
                        self.packed.add(row, one.tcp.first[0], one.tcp.first[2])
                    else:
                        self.forgotten.add(row)
                gone.append(one)
        self._remove(gone)
        limit = self.run.options.tracked_limit
        self._most = max(limit, len(self._by_index) + limit // 10)

    def _remove(self, gone: list[Conversation]) -> None:
        """Remove all state of these conversations."""
        for one in gone:
            self.run.tls_manager.inside.pop(one.index, None)
            self.run.early_endings.pop(one.index, None)
            self.run.processes.pop(one.index, None)
            del self._by_index[one.index]


def counts_of(table: ConversationTable) -> ForgottenCounts:
    """Return the counts of all conversations, by first packet after those whose rows were dropped."""
    found, known = deepcopy(table.forgotten), dict(table._by_index)
    for index in sorted({*known, *table.packed.protocols()}):
        if index in known:
            found.add_conversation(known[index])
        else:
            found.add(table.packed.row(index, 0))
    return found


def _row(one: Conversation, number: int) -> list[ConversationRow]:
    """Return the row of a conversation; empty if that raised an exception, which is reported once."""
    try:
        return [row_of(one, number)]
    except Exception as error:
        what = describe_exception(error)
        if not one.row_failed:
            one.row_failed = True
            one.run.reports.add(report(one, what, "its row is missing"))
        return []


def _resume(conversations: Mapping[int, Conversation], resumed: Iterable[int], current: int) -> list[Event]:
    """Return the records of conversations whose TLS stops waiting for keys with the packet `current`."""
    ones = [conversations[index] for index in resumed]
    return [record for one in ones for record in one.guard(current, one.go_on, [], current)]


def relate(rows: list[ConversationRow]) -> list[str]:
    """Add what other conversations reveal: an Iggy server's layout, a Seastar stream's parent. Return descriptions of exceptions."""
    failed = []
    for protocol in PROTOCOLS:
        mine = [row for row in rows if row.protocol == protocol.name]
        if mine and protocol.loaded.relate is not None:
            try:
                protocol.loaded.relate(mine)
            except Exception as error:
                failed.append(describe_exception(error))
    return failed
