"""Dissects packets of some conversations, with the very same engine as a plain run.

A plain run processes all packets in merged order. So does a task that reads all packets of its conversations itself (`tasks.dissected`);
other conversations are rows sorted by conversation (`dissect`), which are processed one after the other. The engine makes every message
depend on the packets of its own conversation only, so both results are equal. What depends on others:

- *order of packets*: by capture time (the latest so far of their file, as files are merged), file and number; inside a task their index in
  that order replaces the index in the complete run, since only packets of one conversation are ever compared;
- *packets of cooked captures that come twice* and *IP fragments*: one task reads a file with such packets (`splits.plan`), so they are
  compared with those of the same file, and of files that the task merges with it;
- *bytes that wait, or of no known protocol yet, and open requests, over all conversations* (`waiting_total`, `undecided_total`,
  `open_total`): a task has one conversation open at a time, so there is no such limit, or fewer of them than a plain run; one that never
  reaches these limits, which its `limit_hits` count, has the same result;
- *bytes that frames unpack to beyond what their own conversation may* (`UnpackPool`): of a task together, not of the run;
- *times at the end* of conversations that are still open: the plan knows when the captures end (`ends_ns`);
- *what conversations show of each other* (parents, an Iggy server's layout) is added when all rows are there (`relate`).

Packets may also come in several lots, each later than the one before: the state of open conversations is then carried in rows of
their own from one lot to the next.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import groupby, islice
from operator import itemgetter
from struct import Struct
from typing import Any, Protocol, cast

import msgspec

from ..capture.blocks import UNREADABLE
from ..capture.ends import split
from ..capture.icmp_dns import IcmpError
from ..diagnose.across import ACROSS_KEPT
from ..diagnose.engine import CLOSES, SPEAKS, UNUSED, Diagnoser, Step
from ..diagnose.network import NetworkEvidence
from ..diagnose.rules import Closed
from ..diagnose.zero_window import Windows
from ..entries import Entries, Waiting
from ..errors import CaptureError, ForeignState, Report
from ..inspector import BLOCK, BLOCK_BYTES
from ..model import UNTIMED, ConversationRow, Entry, Finding, Message, Options, Segment
from ..protocols.records import Event
from ..quota import UnpackPool
from ..session import Linked, Session
from ..tls.keys import KeyLog, logged
from . import storage
from .keys import key_of
from .ordered import Row
from .rows import EARLIEST, LATEST, Owners, segment_in

NO_TOTAL = 1 << 62

HELD_RECORDS, HELD_BYTES, HELD_UNPACKED = 256, 16 << 20, 1 << 22
"""Records, bytes of rows to be carried, and unpacked bytes from which on results are handed on: steps are fast while records fit in the
processor's cache."""


class PointOf(Protocol):
    """Where files were captured, by index."""

    def get(self, file: int, /) -> str | None:
        """Of a file."""


MessageEntries = tuple[Message, Iterable[Entry]]
"""A message and its user messages, which are made as they are read: those of one conversation have to be read in order."""


QuotedError = tuple[int, int, int, IcmpError]
"""The time of the packet, the index of its file and its number there."""

ErrorsOf = Mapping[int, Sequence[QuotedError]]
"""The errors of ICMP about segments of each `flow_id`, the last first; 0: all of them."""


class CaptureFacts(msgspec.Struct):
    """What conversations depend on beyond their own packets."""

    until: int | None = None
    """More packets will come; the capture time up to which all are there by now. None where no more will come."""
    ends_ns: dict[int, int] = msgspec.field(default_factory=dict)
    """When the captures end (`SharedState.ends_ns`)."""
    points: PointOf = msgspec.field(default_factory=dict[int, str])
    """Where files were captured, by index."""
    errors: ErrorsOf = msgspec.field(default_factory=dict)
    """What ICMP reports."""


Place = tuple[int, int, int]
"""The latest time so far, and the file and the number of the packet that made something certain."""


class TaskResults(msgspec.Struct):
    """What some packets made certain."""

    records: list[Linked] = msgspec.field(default_factory=list)
    entries: list[MessageEntries] = msgspec.field(default_factory=list)
    conversations: list[ConversationRow] = msgspec.field(default_factory=list)
    carry: list[tuple[int, bytes]] = msgspec.field(default_factory=list)
    """Open conversations, which `rows.STATES` describes, to be given together with the packets of the next lot."""
    reports: list[Report] = msgspec.field(default_factory=list)
    """Reports of bugs of streamdump."""
    unpacked: int = 0
    """Bytes that were unpacked for these records."""
    suspected: ConversationRow | None = None
    """The first conversation that was read as it was asked for, but holds a login of another protocol."""
    files: dict[int, int] = msgspec.field(default_factory=dict)
    """The file of the first packet of each conversation that these are of."""
    overview: Sequence[Any] | None = None
    """At the end what the rules go by that look at several conversations (`Overview.seen`)."""
    ports: set[int] = msgspec.field(default_factory=set)
    """Of servers that speak a protocol of ours."""
    steps: list[tuple[tuple[int, int, int, int], int, Step]] = msgspec.field(default_factory=list)
    """Of what servers keep across connections, each with its `Place` and a number that rises in a task, which sort it, and the file of its
    conversation."""


def key_log(names: tuple[str, ...]) -> KeyLog:
    """The key logs, and captures that hold some, of these names, read once by a process as long as they stay as they are."""
    return _key_log(tuple((name, storage.status(name)) for name in names))


@lru_cache(1)
def _key_log(found: tuple[tuple[str, storage.Status | None], ...]) -> KeyLog:
    log = KeyLog([str(path) for name, _ in found if (path := storage.local(name)) is not None])
    for name, status in found:
        # One that is gone has nothing to say, whether it was here or in a store
        if storage.local(name) is None and status is not None:
            _add(log, name)
    return log


def _add(log: KeyLog, name: str) -> None:
    """Add the keys in a capture of a store, up to where it is damaged."""
    try:
        for text in logged(storage.open_packets(name)):
            log.add(text)
    except CaptureError as error:
        if error.reason.startswith(UNREADABLE):
            raise


def conversation_id(first: Segment, point: str | None) -> int:
    """The number of a conversation: 63 bits of a digest of its first packet, so that runs over other files, or the same packets in other
    files, give the same one. Of networks that are kept separate, the `point` is part of it."""
    source, target, sport, dport, network = split(first.ends)
    # Only the number distinguishes packets without times
    time = first.number if first.flags & UNTIMED else first.time_ns
    content = PLACE.pack(time, first.seq, first.ack, first.flags, first.wire)
    identity = b"".join((source, target, sport, dport, content, (point or "").encode("utf-8", "surrogateescape") if network else b""))
    return int.from_bytes(blake2b(identity, digest_size=8).digest(), "big") >> 1


PLACE = Struct("<qIIHI")


def message_id(one: Message) -> str:
    """The identity of a message: its conversation, the side that sent it, and its position in that byte stream."""
    return f"{one.conversation}{'-1-' if one.src > one.dst else '-0-'}{one.position}"


def number_of(order: int, one: Message) -> int:
    """A number for a message that rises with `order`, and that `id_of` makes its `message_id` of."""
    return order << 128 | one.conversation << 64 | one.position << 1 | (one.src > one.dst)


def id_of(number: int) -> str:
    """The `message_id` of the message with this number."""
    return f"{number >> 64 & WORD}-{number & 1}-{(number & WORD) >> 1}"


WORD = (1 << 64) - 1


def dissect(rows: Iterable[Row], options: Options, facts: CaptureFacts) -> Iterator[TaskResults]:
    """What sorted rows say that hold all packets of their conversations.

    Where more packets will come, nothing ends because the rows do, and `TaskResults.carry` has what has to be given with the next ones.
    """
    # What rules remember of open conversations is not carried
    findings = options.findings and facts.until is None
    options = replace(options, waiting_total=NO_TOTAL, undecided_total=NO_TOTAL, open_total=NO_TOTAL, findings=findings)
    opened = Dissection(options, facts)
    for flow_id, same in groupby(rows, itemgetter(0)):
        while some := list(islice(same, BLOCK)):
            found = []
            for _, merge_ns, _, _, data in some:
                if merge_ns == EARLIEST:
                    yield from opened.carried(flow_id, data)
                else:
                    found.append(segment_in(data))
            if found:
                owners = {id(segment): owner for segment, owner in found if owner is not None}
                yield from opened.feed(flow_id, [segment for segment, _ in found], owners)
    yield from opened.end()


@cache
def _freeze() -> None:
    """Once in a process, leave the objects of loaded modules out of all collections: each of these would take 35 ms for them."""
    gc.collect()
    gc.freeze()


def _prepare() -> None:
    # Conversations refer to each other: those of the task before would wait here for a collection that hardly ever comes
    _freeze()
    gc.collect()
    gc.set_threshold(200_000, 50, 50)


class Dissection:
    """The conversations of the `flow_id` at hand, and what was made of them and those before. Segments that are in the order of a plain
    run, and hold all packets of their conversations, have one `flow_id` together."""

    def __init__(self, options: Options, facts: CaptureFacts) -> None:
        _prepare()
        # Not when the first key is wanted, since a store that fails is no reason to go on without
        self._keys = key_log(options.keylog)
        self.results = TaskResults()
        self._held = 0
        """Bytes in rows to be carried."""
        self._options = replace(options, exchanges=True)
        self._facts = facts
        self._steps: list[Step] = []
        self._diagnoser = Diagnoser(self._steps) if options.findings else None
        self._places: list[Place] = []
        """Where what was emitted became certain, while the capture goes on."""
        self._coming: list[QuotedError] = []
        """Errors of ICMP about the conversations at hand that are yet to come, the first of them last."""
        self._latest_ns = EARLIEST
        self._stepped = 0
        self._spoke: dict[str, Place] = {}
        """By server, the place of the first step that names the protocol that it speaks."""
        self._unpack_pool = UnpackPool()
        self._order = 0
        """Records so far, where these have numbers."""
        self._files: dict[int, int] = {}
        """The file of the first packet of each conversation at hand."""
        self._networks: dict[int, int] = {}
        """And the network."""
        self._flow_id: int | None = None
        self._session: Session | None = None
        self._single = BLOCK
        """Segments that are still fed one by one, since those after one with compressed data may unpack to as much."""
        self._emitted: list[Event] = []
        self._carried = b""
        """What was carried of these conversations, while no packet needs it."""

    @property
    def full(self) -> bool:
        """Whether what became certain is to be handed on."""
        records = len(self._emitted) + len(self.results.records)
        return records >= HELD_RECORDS or self._held >= HELD_BYTES or self.results.unpacked >= HELD_UNPACKED

    def carried(self, flow_id: int, data: bytes) -> Iterator[TaskResults]:
        """Process a row that was carried; yield results that are to be handed on. `data`: when the conversations have to be processed again
        even if no packet comes, and their state."""
        if flow_id == self._flow_id and (self._carried or self._session is not None):
            raise ForeignState(f"there are two of the conversations {flow_id}")
        self.close()
        self._flow_id, self._carried = flow_id, data
        if self._facts.until is None or DUE.unpack_from(data)[0] <= self._facts.until:
            self._restore()
        if self.full:
            yield from self.made()

    def feed(self, flow_id: int, segments: Sequence[Segment], owners: Owners) -> Iterator[TaskResults]:
        """Process packets; yield results that are to be handed on. Packets that share a `flow_id` share a session."""
        if flow_id != self._flow_id:
            self.close()
        session = self._session or (self._restore() if self._carried else self._begin(flow_id))
        counters = session.run.counters
        block: list[Segment] = []
        size = 0
        for segment in segments:
            _, number, file, time_ns = segment.mark
            if self._coming and self._coming[-1][:3] < (time_ns, file, number):
                self._take_errors(session, (time_ns, file, number))
            segment.mark = counters.packets, number, file, time_ns
            counters.packets += 1
            block.append(segment)
            size += len(segment.data)
            owner = owners.get(id(segment)) if owners else None
            # The rules need the place of each segment
            alone = owner is not None or self._diagnoser is not None or self._single
            if alone or size >= BLOCK_BYTES or len(block) >= BLOCK:
                self._feed(session, block)
                block, size = [], 0
                if owner is not None:
                    session.run.processes.note(owner, segment, session.table.get(segment.ends))
                if self.full:
                    yield from self.made()
        if block:
            self._feed(session, block)
        if self.full:
            yield from self.made()

    def _begin(self, flow_id: int) -> Session:
        session = self._session = Session(self._options, self._keys, index=self._number)
        session.run.unpack_pool = self._unpack_pool
        self._flow_id = flow_id
        if self._diagnoser is not None:
            session.run.diagnoser, session.run.windows = self._diagnoser, Windows()
            self._coming = list(self._facts.errors.get(flow_id, ()))
        return session

    def _feed(self, session: Session, block: list[Segment]) -> None:
        if session.run.windows is not None:
            session.run.windows.feed(block[-1])
        found = session.table.feed(block)
        self._emitted += found
        pool = session.run.unpack_pool
        self._single = max(self._single - len(block), 0)
        if pool.unpacked:
            self.results.unpacked += pool.unpacked
            self._single = BLOCK
            pool.unpacked = 0
        if self._diagnoser is not None:
            segment = block[-1]
            self._latest_ns = max(self._latest_ns, segment.time_ns)
            self._places += [(self._latest_ns, segment.file, segment.number)] * len(found)

    def _take_errors(self, session: Session, until: Place) -> None:
        """Process the errors of ICMP that came before this place."""
        counters = session.run.counters
        while self._coming and self._coming[-1][:3] < until:
            assert self._diagnoser is not None
            time_ns, file, number, error = self._coming.pop()
            self._diagnoser.overview.network.error(error, b"", (counters.packets, number, file, time_ns))
            counters.packets += 1

    def _restore(self) -> Session:
        session = self._session = Session.restore(self._carried[DUE.size :], self._options, self._keys)
        self._carried = b""
        session.table.index = self._number
        self._files = {one.index: one.tcp.first[2] for one in session.table.conversations}
        return session

    def _number(self, first: Segment) -> int:
        """The number of the conversation that begins with this segment."""
        number = conversation_id(first, self._facts.points.get(first.file))
        # The same packet again, at the same time, after the end of a conversation
        while number in self._files:
            number += 1
        self._files[number] = first.file
        self._networks[number] = int.from_bytes(split(first.ends)[4], "big")
        return number

    def made(self) -> Iterator[TaskResults]:
        """What became certain so far."""
        if self._session is not None:
            self._take(self._session)
        results = self.results
        if any(getattr(results, name) for name in results.__struct_fields__):
            self.results = TaskResults()
            self._held = 0
            yield results

    def close(self) -> None:
        """No more rows of these conversations will come."""
        session = self._session
        if self._carried:
            self._carry(self._carried)
        elif session is not None:
            if self._facts.until is None:
                session.run.ends_ns = self._facts.ends_ns
                self._take_errors(session, END_OF_CAPTURE)
                self._emitted += session.finish()
                self._leave([one for some in session.table.rows(related=False) for one in some])
                self._take(session)
                for entries in (session.run.entries or {}).values():
                    self._release(entries, entries.rest())
                if self._diagnoser is not None:
                    self._emitted += session.table.unused(None)
                    self._take(session)
            else:
                emitted, gone = session.forget(self._facts.until, session.run.counters.packets)
                self._emitted += emitted
                self._leave(gone)
                self._take(session)
                self._carry_entries(session, gone)
                due = session.table.due()
                if due is not None:
                    session.table.index = None
                    self._carry(DUE.pack(min(due, LATEST)) + session.snapshot())
        self._session, self._carried = None, b""
        self._files, self._networks = {}, {}
        self._latest_ns = EARLIEST

    def end(self) -> Iterator[TaskResults]:
        """No more rows will come."""
        self.close()
        if self._diagnoser is not None:
            self._diagnoser.overview.end_ns = max([self._diagnoser.overview.end_ns, *self._facts.ends_ns.values()])
            self.results.overview = failed, later, sent, *_ = self._diagnoser.overview.seen()
            for one in (*failed, *later):
                one["shown"] = [shown._replace(message=shown.message and id_of(shown.message)) for shown in one["shown"]]
            self.results.ports = self._diagnoser.ports
            for _, finding in sent:
                finding["messages"] = list(map(id_of, finding["messages"]))
        yield from self.made()

    def _leave(self, rows: list[ConversationRow]) -> None:
        self.results.conversations += rows
        self._place(row.conversation for row in rows)

    def _place(self, conversations: Iterable[int | None]) -> None:
        self.results.files.update({one: self._files[one] for one in conversations if one is not None})

    def _take(self, session: Session) -> None:
        results, run = self.results, session.run
        linked = session.linked(self._emitted)
        self._place({one[0].conversation for one in linked})
        if self._diagnoser is not None or run.entries is not None:
            self._give_numbers(linked)
        if run.entries is not None:
            self._entries(session, linked)
        results.records += linked if self._diagnoser is None else self._diagnosed(linked, self._diagnoser)
        results.reports += run.reports
        results.suspected = earliest((results.suspected, run.suspected))
        run.suspected = None
        run.reports.clear()
        self._emitted = []

    def _give_numbers(self, linked: list[Linked]) -> None:
        """Give records numbers that rise, and of which the `message_id` of a message can be made."""
        for order, (record, request, response, _) in enumerate(cast(list[tuple[Any, Any, Any, Any]], linked), self._order):
            if type(record) is not Closed:
                record.number = number_of(order, record) if type(record) is Message else order << 128
            if request is not None:
                record.request = request.number
            if response is not None:
                record.response = response.number
        self._order += len(linked)

    def _entries(self, session: Session, linked: list[Linked]) -> None:
        """Add the user messages whose fate is known with these records. Each conversation is read by itself, so that the result does not
        depend on which conversations a task reads."""
        every, answers = session.run.entries, session.run.answers
        assert every is not None and answers is not None
        groups: defaultdict[Any, list[Any]] = defaultdict(list)
        for record, *_ in linked:
            groups[record.conversation].append(record)
        for answer in answers:
            every.setdefault(answer.request.conversation, Entries([])).answers.append(answer)
        answers.clear()
        for conversation, records in groups.items():
            entries = every.setdefault(conversation, Entries([]))
            self._release(entries, entries.feed(records))

    def _release(self, entries: Entries, left: Iterable[Waiting]) -> None:
        found = [(one.carrier.message, entries.entries(one)) for one in left]
        self._place({message.conversation for message, _ in found})
        self.results.entries += found

    def _carry_entries(self, session: Session, gone: list[ConversationRow]) -> None:
        """Add the user messages of conversations that were forgotten; what others wait for comes with later packets."""
        every = session.run.entries
        if every is not None:
            for row in gone:
                if (entries := every.pop(row.conversation, None)) is not None:
                    self._release(entries, entries.rest())
            # Which offsets were delivered is known, and carried, once they are made
            self.results.entries = [(message, list(some)) for message, some in self.results.entries]

    def _diagnosed(self, linked: list[Linked], diagnoser: Diagnoser) -> list[Linked]:
        """These records and what the rules find, which name messages by their `message_id`."""
        records: list[Any] = [one[0] for one in linked]
        # Later ones may go by them as they are
        found = [
            msgspec.structs.replace(one, messages=list(map(id_of, one.messages))) for one in diagnoser.feed(records) if type(one) is Finding
        ]
        before = self._order - len(records)
        ends = {one.conversation: at for at, one in enumerate(records) if type(one) is Closed}
        for one in self._steps:
            self._stepped += 1
            at = ends[one.conversation] if one.message is None else (one.message >> 128) - before
            place = self._places[at] if at < len(self._places) else AT_LAST if one.rule == UNUSED else _end(records[at])
            if one.rule == SPEAKS and self._spoke_before(one.server or "", place):
                continue
            step = msgspec.msgpack.encode(one.step) if one.rule in (CLOSES, UNUSED) else one.step
            named = _named(one._replace(message=None, network=self._networks[one.conversation], step=step))
            self.results.steps.append(((*place, self._stepped), self._files[one.conversation], named))
        self._steps.clear()
        self._places.clear()
        diagnoser.summaries.clear()
        self.results.reports += diagnoser.reports
        diagnoser.reports.clear()
        return [
            *(one for one, record in zip(linked, records, strict=True) if type(record) is not Closed),
            *((one, None, None, None) for one in found),
        ]

    def _spoke_before(self, server: str, place: Place) -> bool:
        """Return whether an earlier step named the protocol that a server speaks, which counts; note this one if not."""
        before = self._spoke.get(server)
        if before is not None and before <= place:
            return True
        if before is not None or len(self._spoke) < ACROSS_KEPT:
            self._spoke[server] = place
        return False

    def _carry(self, data: bytes) -> None:
        assert self._flow_id is not None
        self.results.carry.append((self._flow_id, data))
        self._held += len(data)


DUE = Struct("<q")

END_OF_CAPTURE: Place = (LATEST, 0, 0)
AT_LAST: Place = (LATEST, LATEST, 0)


def _end(record: Any) -> Place:
    """The place of what becomes certain with the end of the capture: of conversations, that of their first packet."""
    if type(record) is not Closed:
        return END_OF_CAPTURE
    _, number, file, time_ns = record.first
    return LATEST, time_ns, file << 40 | number


def _named(value: Any) -> Any:
    """The same data with the `message_id` of messages instead of their numbers, which are larger than all others."""
    if isinstance(value, Step):
        return Step(*map(_named, value))
    if type(value) in (list, tuple):
        return [_named(one) for one in value]
    return id_of(value) if type(value) is int and value > WORD else value


def errors_of(network: NetworkEvidence) -> ErrorsOf:
    """What ICMP reports, for tasks."""
    found: defaultdict[int, list[QuotedError]] = defaultdict(list)
    for ends, errors in network.errors.items():
        for (_, number, file, time_ns), error in errors:
            for flow_id in (0, key_of(ends)):
                found[flow_id].append((time_ns, file, number, error))
    return {flow_id: sorted(errors, reverse=True) for flow_id, errors in found.items()}


def earliest(rows: Iterable[ConversationRow | None]) -> ConversationRow | None:
    """Of some conversations the one that began first."""
    return min((row for row in rows if row is not None), key=lambda row: (row.time_ns, row.conversation), default=None)
