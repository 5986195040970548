"""Reads in the background, filters what was read, and reads messages again with all that is in them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from threading import Event, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from cramjam import zstd

from streamdump.entries import Entries, Waiting
from streamdump.errors import CaptureError, Report, StreamdumpError, describe_exception
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Entry, Finding, Message, Options, Packet, Record
from streamdump.render.clock import Clock
from streamdump.render.summary import Lines
from streamdump.render.terminal import PLAIN
from streamdump.session import Session

from ..live import LiveRun
from ..run import FileRun, about
from ..showing import Shown as Looks
from ..showing import text_settings
from .index import SHORT, TEXT, PacketIndex, RecordIndex, Row, Shown

if TYPE_CHECKING:
    from streamdump.filter import Filter

EVERY = 512
"""Messages of a conversation from one snapshot of it to the next, at least."""

ROOM = 100
"""The approximate bytes of snapshots for each message, before they are packed: 250 take as long as the message itself."""

FIRST = 64
"""The records of a screen, which is shown before more is read."""

LIVE = 1_000_000
"""Records of an interface that are kept at most; in `MOST`, findings and rows of conversations of any capture."""

MOST = 100_000

NEAR = 20_000
"""Records of a conversation among which a response is looked for."""

ENOUGH = 3.0
"""Seconds that the reading has to end."""

PAUSE = 0.05
"""Seconds until what waits for more to be read looks again."""


class Reader:
    """Reads all that a run has to read in a thread of its own, and remembers it packed."""

    def __init__(self, run: FileRun | LiveRun, options: Options, clock: Clock) -> None:
        inspector = run.inspector
        self.run, self.options, self.clock = run, options, clock
        self.live = isinstance(run, LiveRun)
        self.packets = PacketIndex(inspector.link, run.readers if isinstance(run, FileRun) else ())
        self.records = RecordIndex()
        self.findings: list[Finding] = []
        self.files = run.files()
        """By conversation the capture that it begins in, where there are several."""
        self.warned: list[str] = []
        self.done = False
        self._rows: list[ConversationRow] = []
        self._asked = self.progress is None
        """Whether rows are made while more is read: always of pipes and interfaces, where no packet may come for long after the request."""
        self._complete = False
        self.since: Clock | None = None
        """Counts from the message that is marked, where such times are wanted."""
        self.marked: int | None = None
        self.shown = Event()
        """Set once the first screen is."""
        run.holds_reports = True
        run.say = self.warned.append
        inspector.begins.append(clock.begin)
        inspector.read_with(self.packets, self.packets.begin)
        self._lines = Lines(**text_settings(Looks(), options, PLAIN, None, inspector))
        self._snapshots: dict[int, list[tuple[int, int, bytes]]] = {}
        """By conversation: how many records there were, how many packets, and the conversation as it was then."""
        self._due: dict[int, int] = {}
        self._again = 0.0
        self._stopping = False
        self._thread = Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, wait_all: bool = False) -> None:
        """Read no further, unless `wait_all`, and wait until that is so."""
        self._stopping = not wait_all
        self.shown.set()
        if isinstance(self.run, LiveRun):
            self.run.live.stop()
        # A pipe may be silent for ever
        self._thread.join(None if wait_all else ENOUGH)
        if not (wait_all or self._thread.is_alive()):
            self.packets.close()

    @property
    def progress(self) -> float | None:
        """How much was read, from 0 to 1; None if the total is unknown."""
        readers = self.run.readers if isinstance(self.run, FileRun) else ()
        totals = [one.bytes_total or 0 for one in readers]
        return 1.0 if self.done else sum(one.bytes_read for one in readers) / sum(totals) if all(totals) and totals else None

    @property
    def rows(self) -> list[ConversationRow]:
        """The conversations by first packet, `MOST` at most: as of a moment ago while more is read. They are made only if asked for."""
        self._asked = True
        if self.done and not self._complete:
            self._rows, self._complete = self._made(), True
        return self._rows

    @property
    def conversations(self) -> int:
        """How many there are."""
        return len(self.run.inspector.table)

    @property
    def problem(self) -> str:
        """What could not be read, as far as that is known."""
        errors = [*self.run.errors, *self.run.inspector.errors]
        lines = [*self.warned, *[str(one).removeprefix(f"{(one.file or '').rpartition('/')[0]}/") for one in errors]]
        return f"! {lines[0]}{f' (and {len(lines) - 1} more, listed at the end)' if len(lines) > 1 else ''}" if lines else ""

    def answer(self, index: int) -> int | None:
        """The index of the request of a response, or of the response to a request, if it is near."""
        one: Any = self.records.row(index).record
        if one.number and getattr(one, "request", None) is not None:
            return int(one.request) - 1
        of = self.records.of.get(one.conversation, array("I"))
        first = bisect_right(of, index)
        return next((at for at in of[first : first + NEAR] if getattr(self.records.row(at).record, "request", None) == one.number), None)

    def full(self, index: int) -> Shown:
        """A record with all that is in it, read again; `CaptureError` where that is not there any more."""
        row = self.records.row(index)
        if type(row.record) is not Message:
            return row.record
        known = self._snapshots.get(row.record.conversation, [])
        at = bisect_right(known, index, key=lambda one: one[0])
        found = (self._find(row, known[at - 1]) if at else None) or self._find(row, None)
        if found is None:
            raise CaptureError(f"message {row.record.number} cannot be read again")
        found.number, found.request, found.processes = row.record.number, row.record.request, row.record.processes
        return found

    def said(self, index: int) -> Row:
        """A row with all that its record says, of which only the beginning may be kept."""
        row = self.records.row(index)
        if type(row.record) is not Message or len(row.text) not in (SHORT, TEXT):
            return row
        mark, name, _, text = self._lines.content(self.full(index))
        return row._replace(mark=mark, name=name, text=text)

    def entries(self, index: int, most: int) -> list[Entry]:
        """Return the first user messages of a message, with what became of them as far as its conversation shows, which is read again."""
        wanted: Any = self.records.row(index).record
        options = replace(self.options, findings=False, entries=True, bytes_as="raw")
        inspector = Inspector([_Again(View(self, wanted.conversation, follows=False))], options, finite=True, keys=self.run.inspector.keys)
        inspector.read_with(inspector.link, lambda segment: wanted.conversation)
        found, met = Entries(inspector.run.answers), False

        def left() -> Iterator[Waiting]:
            nonlocal met
            for batch in inspector.batches():
                met = met or any(type(one) is Message and is_same(one, wanted) for one in batch)
                yield from found.feed(batch)
                if met and not any(is_same(one, wanted) for one in found.waiting()):
                    return
            yield from found.rest(not self.done)

        for one in left():
            entries = found.entries(one)
            if is_same(one.carrier.message, wanted):
                return list(islice(entries, most))
            # Which offsets came before
            deque(entries, 0)
        return []

    def _find(self, row: Row, known: tuple[int, int, bytes] | None) -> Message | None:
        """Read a message again, from a snapshot of its conversation or from its beginning."""
        wanted, keys = row.record, self.run.inspector.keys
        options = replace(self.options, detail=True, findings=False)
        if known is None:
            session = Session(options, keys, index=lambda segment: wanted.conversation)
        else:
            session = Session.restore(bytes(zstd.decompress(known[2])), options, keys)
        link = type(self.packets.link)()
        for order, packet in self.packets.again(0 if known is None else known[1], row.until, frozenset((wanted.conversation,))):
            segment = link.segment(packet, order)
            emitted = [] if segment is None else session.feed(segment)
            for one, *_ in session.linked(emitted) if emitted else ():
                if type(one) is Message and is_same(one, wanted):
                    return one
        return next((one for one, *_ in session.linked(session.finish()) if type(one) is Message and is_same(one, wanted)), None)

    # In the thread

    def _read(self) -> None:
        try:
            self.run.each(self._take)
            if not self._stopping:
                self.files = self.run.files()
        except StreamdumpError as error:
            self.warned.append(str(error))
        except Exception as error:
            self.run.inspector.reports.append(Report(describe_exception(error), "nothing after it was read"))
        self.done = True

    def _take(self, batch: list[Record]) -> bool:
        """Remember these records; whether that is enough."""
        records, inspector = self.records, self.run.inspector
        until, due, ripe = inspector.counters.packets, self._due, set[int]()
        self._lines.learn(batch)
        for record in batch:
            if type(record) is Finding:
                if self.live or len(self.findings) < MOST:
                    self.findings.append(record)
                continue
            try:
                mark, name, _, text = self._lines.content(record)
            except Exception as error:
                what = describe_exception(error)
                self.run.inspector.reports.append(about(record, what))
                mark, name, text = "!", "", f"internal error: {what}"
            records.add(record, mark, name, text, until, self._lines.late(record))  # type: ignore[arg-type]
            if type(record) is Message:
                due[record.conversation] = count = due.get(record.conversation, 0) + 1
                if count >= EVERY:
                    ripe.add(record.conversation)
        for one in ripe:
            self._keep(one, until)
        if self.live:
            self._forget()
        if monotonic() > self._again:
            self._conversations()
        if len(records) >= FIRST:
            self.shown.wait(1)
        return self._stopping

    def _keep(self, conversation: int, until: int) -> None:
        """Take a snapshot of a conversation, the later the next the larger this one is."""
        ends, data, packed = self.packets.ends.get(conversation), None, b""
        try:
            data = None if ends is None else self.run.inspector.session.snapshot_of(ends)
            packed = b"" if data is None else bytes(zstd.compress(data, 3))
        except Exception as error:
            self.run.inspector.reports.append(Report(describe_exception(error), "its messages are decoded again from its start"))
        if packed:
            self._snapshots.setdefault(conversation, []).append((len(self.records), until, packed))
        self._due[conversation] = EVERY - max(EVERY, len(data or b"") // ROOM)

    def _forget(self) -> None:
        """Forget the oldest part of a capture without an end."""
        records, table = self.records, self.run.inspector.table

        def known(conversation: int) -> bool:
            return table.get(conversation) is not None

        first = records.first
        records.drop(LIVE)
        if records.first != first:
            self.packets.drop(records.row(records.first).until - MOST)
            self.packets.forget(known)
            self._due = {one: count for one, count in self._due.items() if known(one)}
            every = records.of.items()
            records.of = {one: some[bisect_left(some, records.first) :] for one, some in every if some[-1] >= records.first}
            self._snapshots = {one: some for one, some in self._snapshots.items() if one in records.of}
            del self.findings[:-MOST]

    def _conversations(self) -> None:
        """Note the current state of the conversations, which is slow if there are many."""
        started = monotonic()
        self.files = self.run.files()
        if self._asked:
            self._rows = self._made()
        self._again = monotonic() + max(0.5, 20 * (monotonic() - started))

    def _made(self) -> list[ConversationRow]:
        return list(islice((row for some in self.run.inspector.each_rows() for row in some), MOST))


def is_same(one: Message, wanted: Shown) -> bool:
    """Whether a message is the one that is wanted, by its place in what its sender sent."""
    return type(wanted) is Message and (one.src, one.position, one.name) == (wanted.src, wanted.position, wanted.name)


class View(Sequence[int]):
    """The records shown: all, or those of a conversation, or the ones among them that a filter keeps. A thread looks for them."""

    def __init__(self, reader: Reader, conversation: int | None = None, asked: Filter | None = None, follows: bool = True) -> None:
        """`follows`: records read later belong to it, too."""
        self.reader, self.conversation, self.asked, self.follows = reader, conversation, asked, follows
        self.done = asked is None
        self.looked = 0
        """The number of records examined."""
        self.failed: str | None = None
        self.stopped = False
        """Nothing is looked for any more."""
        self._found = array("I")
        if asked is not None:
            Thread(target=self._look, daemon=True).start()

    def __len__(self) -> int:
        some, first = self._some()
        return len(some) - first

    def __getitem__(self, at: Any) -> Any:
        """The index of the record that stands there, or those of a slice from a place to another; as records of a live capture are
        forgotten at any moment, the last one where there are fewer."""
        some, first = self._some()
        return some[at.start + first : at.stop + first] if isinstance(at, slice) else some[min(at + first, len(some) - 1)]

    def __iter__(self) -> Iterator[int]:
        return iter(self[0 : len(self)])

    def full(self, options: Options) -> Iterator[tuple[int, Shown]]:
        """Their indexes, and the records with all that is in them, read again."""
        records, whose = self.reader.records, self.conversation
        inspector = Inspector([_Again(self)], options, finite=True, keys=self.reader.run.inspector.keys)
        if whose is not None:
            inspector.read_with(inspector.link, lambda segment: whose)
        # The n-th message is the n-th that was read first, while other records depend on when that was
        messages = (one for one in inspector.records() if type(one) is Message)
        for index, row in records.each(self.each()):
            record = row.record
            if type(record) is Message:
                found = next(messages, None)
                if found is None or not is_same(found, record):
                    raise CaptureError(f"packets from message {record.number} on are no longer kept")
                found.number, found.request, found.conversation = record.number, record.request, record.conversation
                found.processes = record.processes
                record = found
            yield index, record

    def each(self) -> Iterator[int]:
        """The indexes of those among which it looks, as they come."""
        every, reader = View(self.reader, self.conversation), self.reader
        while not self.stopped:
            end = reader.done or not self.follows
            for index in every[self.looked : len(every)]:
                self.looked += 1
                yield index
                if self.stopped:
                    return
            if end:
                return
            sleep(PAUSE)

    def _some(self) -> tuple[Sequence[int], int]:
        """Their indexes, and from where on these are still kept."""
        records = self.reader.records
        every: Sequence[int] = range(len(records)) if self.conversation is None else records.of.get(self.conversation, ())
        some = every if self.asked is None else self._found
        return some, bisect_left(some, records.first) if records.first else 0

    def _look(self) -> None:
        asked, records = self.asked, self.reader.records
        assert asked is not None
        try:
            some: Iterator[tuple[int, Shown]] = ((index, row.record) for index, row in records.each(self.each()))
            if asked.reads_fields:
                some = self.full(replace(self.reader.options, findings=False, wanted=asked.wanted))
            for index, record in some:
                if asked.keeps(record):
                    self._found.append(index)
        except Exception as error:
            self.failed = str(error) if isinstance(error, StreamdumpError) else describe_exception(error)
        self.done = True


class _Again:
    """All packets, or those of a conversation, once more."""

    name = "packets"

    def __init__(self, view: View) -> None:
        self._view = view

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]:
        view, packets, first = self._view, self._view.reader.packets, 0
        whose = None if view.conversation is None else frozenset((view.conversation,))
        while not view.stopped:
            end, last = view.reader.done or not view.follows, len(packets)
            again = packets.again(first, last, whose)
            while batch := [packet for _, packet in islice(again, 256)]:
                yield batch
            first = last
            if end:
                return
            sleep(PAUSE)
