"""Connects capture, reassembly, detection, protocols and pairing; opens and prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from .capture.files import CaptureReader
from .capture.link import LinkParser, SeparateFiles
from .capture.merge import PacketSource, merge
from .capture.selection import ConversationSpan
from .conversation.conversation import patience_ns
from .conversation.processes import ProcessSources
from .conversation.run_state import EVERY, AcknowledgedPairs
from .conversation.table import ForgottenCounts, Timers
from .errors import CaptureError, InternalError, Report, describe_exception
from .model import END, ConversationRow, Ending, Exchange, Message, Options, Packet, Record, Segment
from .protocols.records import Event
from .session import Session
from .tls.keys import EmbeddedKeys, KeyLog

if TYPE_CHECKING:
    from .diagnose.engine import Diagnoser

BLOCK = 64
"""Packets that pass each step together: their bytes fit in the processor's cache."""

BLOCK_BYTES = 1 << 18
"""Bytes of packets that pass each step together, or one packet: they may unpack to hundreds of times as many."""

BLOCK_UNPACKED = 1 << 22
"""Bytes that packets may unpack to before fewer of them pass each step together."""

PART = 256
"""Records released together, which fit in the processor's cache."""

LAST = 1_024
"""Records released together at the end of the capture."""

SLOTS, LAG = 8, 14
"""Slots per second in which the progress of a pipe is noted, and the slots until an ending by one side is reported."""

AGE_NS = 500_000_000
"""How often `age` works, in capture time."""


class NamedSource(PacketSource, Protocol):
    """A file, a pipe or an interface."""

    name: str


class Inspector:
    """Reads packets and yields records in the order of the packets that completed them."""

    def __init__(
        self,
        inputs: Sequence[NamedSource],
        options: Options | None = None,
        rows: int | None = None,
        *,
        finite: bool = False,
        keeps_rows: bool = True,
        keys: KeyLog | None = None,
    ) -> None:
        """`rows`: packets per batch, which only changes the speed. `finite`: the capture has an end; `age` must not be called.
        `keeps_rows`: then keep even the rows of forgotten conversations. `keys`: the TLS keys, if not those of `options`."""
        self.options = options or Options()
        self.keys = KeyLog(self.options.keylog) if keys is None else keys
        self.inputs = inputs
        self.batch_rows = rows
        self._embedded = {
            file: EmbeddedKeys(one) for file, one in enumerate(inputs) if isinstance(one, CaptureReader) and one.format == "pcapng"
        }
        self.keys.embedded += self._embedded.values()
        self.session = Session(self.options, self.keys, finite, keeps_rows)
        self.run, self.table = self.session.run, self.session.table
        self._processes = ProcessSources(inputs, self.run, self.table)
        if not finite:
            self.table.timers = Timers(self.options)
        self.counters = self.run.counters
        self.errors: list[CaptureError] = []
        self.reports = self.run.reports
        """Reports of internal errors; the consumer clears the list."""
        self.link = SeparateFiles() if self.options.separate else LinkParser()
        self.asked: dict[int, tuple[Message, Ending | None]] = {}
        """By number of the last released exchanges without a response: the request, and the ending of the conversation."""
        if self.options.findings:
            from .diagnose.engine import Diagnoser
            from .diagnose.zero_window import Windows

            self.run.diagnoser = Diagnoser(separate=self.options.separate)
            self.run.windows = Windows()
            self.table.watchers.append(self.run.windows.feed)
            self.link.aside = self.run.diagnoser.overview.network.read
        if self.options.pairs:
            self.run.pairs = AcknowledgedPairs()
            self.table.watchers.append(self.run.pairs.feed)
        if self._embedded:
            self.table.watchers.append(self._read_keys)
        self.begins: list[Callable[[int], None]] = []
        """Called with the time of the first packet before any record is released: relative times count from it."""
        self.watch: Callable[[list[Packet]], None] | None = None
        """Called with all packets as they are read."""
        self._number = 0
        self._aged_ns = 0
        self._pipes = False
        self._read_ns: dict[int, int] = {}
        """By slot of a pipe: the time of the last packet read."""

    @property
    def diagnoser(self) -> Diagnoser | None:
        return self.run.diagnoser

    @property
    def forgotten(self) -> ForgottenCounts:
        return self.table.forgotten

    def read_with(self, link: LinkParser, index: Callable[[Segment], int]) -> None:
        """Parse packets with `link`, and number conversations by their first segments with `index`; call it before reading."""
        self.link, self.table.index = link, index
        link.aside = None if self.diagnoser is None else self.diagnoser.overview.network.read

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        for batch in self.batches():
            yield from batch

    def batches(self, packets: int | None = None) -> Iterator[list[Record]]:
        """Yield the records, some at a time; `packets`: stop after this number of packets."""
        try:
            for batch in self._packets():
                if packets is not None:
                    batch = batch[: packets - self.counters.packets]
                yield from self._parts(batch)
                if self._pipes and (records := self.report_ends()):
                    yield records
                if packets is not None and self.counters.packets >= packets:
                    break
        except Exception as error:
            self.reports.add(Report(describe_exception(error), f"nothing was read after packet {self.counters.packets}"))
        yield from self._finish()

    def process(self, batch: list[Packet]) -> list[Record]:
        """Return the records that these packets complete."""
        return [record for part in self._parts(batch) for record in part]

    def _parts(self, batch: list[Packet]) -> Iterator[list[Record]]:
        """Yield the records that these packets complete, some at a time."""
        self._forget_handed_out()
        self._note_times(batch)
        self.keys.poll(self.counters.packets)
        parse, feed, counters = self.link.segment, self.table.feed, self.counters
        if self.watch is not None:
            self.watch(batch)
        emitted: list[Event] = []
        order = counters.packets
        try:
            rows, at = block(batch), 0
            while at < len(batch):
                segments: list[Segment] = []
                before = self.run.unpack_pool.unpacked
                try:
                    for packet in batch[at : at + rows]:
                        segment = parse(packet, order)
                        order += 1
                        if segment is not None:
                            segments.append(segment)
                finally:
                    # Do not lose the packets before one that fails
                    counters.packets = order
                    named = self._processes.waiting()
                    if named:
                        self._processes.note(batch[at : at + rows], segments)
                    emitted += feed(segments)
                    if named:
                        self._processes.settle()
                if self.table.created:
                    self._processes.begin(self.table.created)
                at += rows
                unpacked = self.run.unpack_pool.unpacked - before
                if unpacked > BLOCK_UNPACKED:
                    rows = max(1, rows * BLOCK_UNPACKED // unpacked)
                if len(emitted) >= PART or rows < BLOCK:
                    yield self._hand_out(emitted)
                    emitted = []
        except Exception:
            yield self._hand_out(emitted)
            raise
        self._processes.ask_host()
        yield self._hand_out(emitted)

    def _read_keys(self, segment: Segment) -> None:
        """Read the keys that a capture contains before a segment."""
        if segment.file in self._embedded:
            self._embedded[segment.file].read(self.keys, segment.number, segment.order)

    def _note_times(self, batch: list[Packet]) -> None:
        """Store the times of the first packet and of the last one so far, of the capture or of each file."""
        if self.begins and (timed := next((packet for packet in batch if not packet.untimed), None)) is not None:
            for begin in self.begins:
                begin(timed.time_ns)
            self.begins.clear()
        if batch and self._pipes:
            slot = int(monotonic() * SLOTS)
            self._read_ns[slot] = max(batch[-1].time_ns, self._read_ns.get(slot, 0))
        if self.options.separate:
            self.run.ends_ns |= {packet.file: packet.time_ns for packet in batch}
        elif batch:
            self.run.ends_ns[EVERY] = batch[-1].time_ns

    def finish(self, now_ns: int | None = None) -> list[Record]:
        """Return the last records at the end of the capture; `now_ns`: the current time, for an interface."""
        if now_ns is not None:
            self.run.ends_ns[EVERY] = now_ns
        return [record for part in self._finish() for record in part]

    def _finish(self) -> Iterator[list[Record]]:
        """Yield the last records in parts: there may be many connections without bytes."""
        for source in self.inputs:
            for _, text in getattr(source, "secrets", None) or ():
                self.keys.add(text, END)
        self.keys.ended = True
        self._processes.finish()
        self.asked.clear()
        every = self._number_all(self.table.finish())
        for at in range(0, len(every), LAST):
            yield self._diagnose(every[at : at + LAST])
        if self.diagnoser is not None:
            yield self._hand_out(self.table.unused(self.diagnoser.ports))
            self.diagnoser.overview.end_ns = max([self.diagnoser.overview.end_ns, *self.run.ends_ns.values()])
            yield self._of_processes(self.diagnoser.finish())

    def age(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None = None) -> list[Record]:
        """Return, for a capture without an end, the requests not answered in time and the last records of forgotten conversations.
        `now_ns`: all packets up to this time were processed; `leaving` gets the rows that are dropped."""
        if now_ns - self._aged_ns < AGE_NS:
            return []
        self._aged_ns = now_ns
        self._forget_handed_out()
        self.keys.poll(self.counters.packets)
        self.run.ends_ns[EVERY] = now_ns
        self._processes.ask_host()
        records = self._hand_out(self.table.age(now_ns, self.counters.packets))
        if self.diagnoser is not None:
            records += self._of_processes(self.diagnoser.age(now_ns))
        self.table.drop(now_ns, leaving)
        return records

    def watch_pipes(self, meanwhile: Callable[[list[Record]], None]) -> None:
        """Report endings by one side two seconds later if an input is a pipe, which may stay open: `meanwhile` gets these records while no
        packet arrives; otherwise `batches` yields them among the others."""
        pipes: list[Any] = [one for one in self.inputs if getattr(one, "is_pipe", False)]
        self._pipes = bool(pipes)
        if pipes:
            self.table.timers = Timers(self.options, ends_only=True)
        for one in pipes:
            one.while_silent(lambda: meanwhile(self.report_ends()))

    def report_ends(self) -> list[Record]:
        """Return the endings of conversations that one side ended two seconds ago, by the time at which the pipe was read."""
        before = int(monotonic() * SLOTS) - LAG
        old = [self._read_ns.pop(slot) for slot in [*self._read_ns] if slot <= before]
        if not old:
            return []
        self._forget_handed_out()
        return self._hand_out(self.table.age(max(old) + patience_ns(self.options), self.counters.packets))

    def raise_errors(self) -> None:
        """Raise `CaptureError` for a damaged input, or `InternalError` if there are reports; call it when all was read."""
        if self.errors:
            raise self.errors[0]
        if self.reports:
            raise InternalError([report.text(self.inputs[report.file or 0].name) for report in self.reports])

    def rows(self, related: bool = True) -> list[ConversationRow]:
        """Return the conversations so far, by first packet; without those that `age` dropped. `related`: completed by one another."""
        return [row for rows in self.each_rows(related) for row in rows]

    def each_rows(self, related: bool = True) -> Iterator[list[ConversationRow]]:
        """Yield the same rows, some at a time."""
        return self.table.rows(related)

    def flows(self) -> Iterator[ConversationSpan]:
        """Yield what identifies the packets of each conversation; not after `age` has dropped some."""
        return self.table.flows()

    def _packets(self) -> Iterator[list[Packet]]:
        if len(self.inputs) == 1:
            try:
                yield from self.inputs[0].batches(self.batch_rows)
            except CaptureError as error:
                self.errors.append(error)
        else:
            yield from merge(self.inputs, self.errors, self.batch_rows)

    def _forget_handed_out(self) -> None:
        """Clear what belongs to the records released last."""
        self.asked.clear()
        self.run.forget_emitted()

    def _of_processes(self, findings: list[Record]) -> list[Record]:
        """Return these records, findings with the processes of their conversations."""
        if self.run.processes:
            self.run.processes.complete_findings(findings)
        return findings

    def _hand_out(self, emitted: list[Event]) -> list[Record]:
        return self._diagnose(self._number_all(emitted))

    def _number_all(self, emitted: list[Event]) -> list[Any]:
        """Return the records of these events, numbered and linked, and the ends of conversations for the diagnosis."""
        if self.run.processes:
            self.run.processes.complete(emitted)
        every: list[Any] = [one.record for one in emitted]
        records = every
        if self.diagnoser is not None:
            from .diagnose.rules import Closed

            # The ends of conversations are for the diagnosis alone, and have no number
            records = [one for one in every if type(one) is not Closed]
        for number, record in enumerate(records, self._number + 1):
            record.number = number
        self._number += len(records)
        endings: dict[int, Ending] | None = None
        for record, asked, response in self.run.links:
            record.request = asked.record.number
            if response is not None:
                record.response = response.number  # type: ignore[union-attr]
            elif type(record) is Exchange:
                if endings is None:
                    endings = self.run.early_endings | {one.conversation: one for one in records if type(one) is Ending}
                self.asked[record.number] = asked.record, endings.get(record.conversation)
        self.run.links.clear()
        self.run.compact()
        return every

    def _diagnose(self, every: list[Any]) -> list[Record]:
        """Return these records, each followed by the findings that it completes, without the ends of conversations."""
        if self.diagnoser is None:
            return every
        records = self._of_processes(self.diagnoser.feed(every))
        self.reports += self.diagnoser.reports
        self.diagnoser.reports.clear()
        return records


def block(batch: list[Packet]) -> int:
    """Return the number of these packets that pass each step together."""
    size = batch[-1].offset - batch[0].offset if batch else 0
    # The packets of several files are not in one buffer, but then there are few of each
    return BLOCK if size < BLOCK_BYTES else max(1, min(BLOCK, BLOCK_BYTES * len(batch) // size))
