"""Wires capture, reassembly, detection, dissectors and pairing together; prints nothing and opens nothing."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from dissect.capture.link import LinkParser, SeparateFiles
from dissect.capture.merge import merge
from dissect.capture.pick import Flow
from dissect.conversation.endings import Endings
from dissect.conversation.memory import Memory, Past
from dissect.conversation.reading import Reading
from dissect.conversation.run import Counters, Outbox, Reports
from dissect.conversation.totals import Totals
from dissect.conversation.tracked import Tracked
from dissect.diagnose.rules import Closed
from dissect.diagnose.windows import Windows
from dissect.errors import CaptureError, InternalError, Report, bug
from dissect.model import (
    ConversationRow,
    Ending,
    Exchange,
    Message,
    Options,
    PacketBatch,
    Record,
    SegmentBatch,
)
from dissect.protocols.aligned import cut_aligned
from dissect.protocols.base import Dissector
from dissect.protocols.flow import END
from dissect.protocols.records import PLACE, Cut, Emitted, by_conversation, records_of
from dissect.tcp.conversations import Conversation, Conversations, Delivery, Detour, Stretch
from dissect.tls.gate import Gate
from dissect.tls.keys import KeyLog

if TYPE_CHECKING:
    from dissect.diagnose.engine import Diagnoser

PART = 256
"""Packets whose records are made and handed on at once: as long as they fit in the processor's cache, all that happens to them is fast."""

PART_CONVERSATIONS = 24
"""The least packets of a part for each conversation, which all are looked at for each."""

LAST = 1_024
"""Records that are handed on at once at the end."""

AGE_NS = 500_000_000
"""How often a capture without an end looks for what has become old."""


class Source(Protocol):
    """What packets come from: a file, a pipe or an interface."""

    name: str

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[PacketBatch]: ...


class Inspector:
    """Reads packets and yields records in the order of their release packet."""

    def __init__(
        self,
        inputs: Sequence[Source],
        options: Options | None = None,
        rows: int | None = None,
        *,
        bare: bool = False,
        keys: KeyLog | None = None,
    ) -> None:
        """`rows` forces batches of so many packets, which changes nothing but the speed. `bare`: the capture has an end, so what carried
        nothing may be kept as its packets until then; `age` must not be called. `keys`: of TLS, if not those of `options`."""
        self.options = options or Options()
        self.keys = KeyLog(self.options.keylog) if keys is None else keys
        self.inputs = inputs
        self.batch_rows = rows
        self.counters = Counters()
        self.errors: list[CaptureError] = []
        self.reports = Reports(self.counters)
        """What to tell of bugs of ours; whoever tells it empties this."""
        self.link = SeparateFiles() if self.options.separate else LinkParser()
        self.asked: dict[int, tuple[Message, Ending | None]] = {}
        """By the number of an exchange without a response, of those handed on last: the request, and what ended the conversation."""
        self.conversations: list[Tracked] = []
        self.past = Past()
        self.diagnoser: Diagnoser | None = None
        """Says what went wrong, where `Options.findings` asks for it."""
        self._windows: Windows | None = None
        if self.options.findings:
            from dissect.diagnose.engine import Diagnoser

            self.diagnoser = Diagnoser()
            self._windows = Windows()
        self._bare = bare
        self._tcp = Conversations(self.options, bare)
        self.outbox = Outbox(pairs=[] if self.options.pairs else None)
        self._number = 0
        self._aged_ns = 0
        self._wire()

    def _wire(self) -> None:
        """Let those that do the work share what there is."""
        gate = Gate(self.options, self.keys)
        self.endings = Endings(self.options, self.counters, self._windows)
        self.reading = Reading(self.options, gate, self.counters, self.reports, self.outbox, self.endings, self.diagnoser)
        self.memory = Memory(self.options, self._bare, self.conversations, self.past, self._tcp, self.reading, self.outbox, self.reports)
        self._totals = Totals(self.options, self.reading, self.outbox)

    def records(self) -> Iterator[Record]:
        """The records one by one."""
        for batch in self.batches():
            yield from batch

    def batches(self, packets: int | None = None) -> Iterator[list[Record]]:
        """The records of each batch of packets; `packets`: stop after so many of them."""
        self.keys.expecting |= any(getattr(one, "format", None) == "pcapng" for one in self.inputs)
        try:
            for batch in self._packets():
                self.reading.gate.take_secrets(self.inputs, batch, self.counters.packets)
                if packets is not None and self.counters.packets + len(batch) > packets:
                    batch = batch.rows(0, packets - self.counters.packets)
                if len(batch):
                    yield from self._parts(batch)
                if packets is not None and self.counters.packets >= packets:
                    break
        except Exception as error:
            self.reports.add(Report(bug(error), f"nothing was read behind packet {self.counters.packets}"))
        yield from self._finish()

    def take(self, batch: PacketBatch) -> list[Record]:
        """The records that these packets complete."""
        return [record for part in self._parts(batch) for record in part]

    def _parts(self, batch: PacketBatch) -> Iterator[list[Record]]:
        """The records that these packets complete, a part of the packets after the other."""
        counters = self.counters
        self.asked.clear()
        self.endings.broken_off.clear()
        begin = counters.packets
        segments = self.link.segments(batch, begin)
        counters.packets += len(batch)
        yield from self.take_segments(segments, begin, counters.packets)

    def take_segments(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        """The records that the segments of the packets from `begin` to `end` complete, in parts."""
        self.keys.poll(begin)
        if self._windows is not None:
            self._windows.look(segments)
        for low, high, late in self._totals.epochs(segments):
            if late:
                before = int(segments.order[low]) - 1
                emitted = self._totals.relieve(before, int(segments.time_ns[low]), self._number)
                if self.memory.crowded():
                    emitted += self._crowd(before)
                if emitted:
                    yield self._hand_out(emitted)
            stop = int(segments.order[high]) if high < len(segments) else end
            yield from self._take_epoch(segments.rows(low, high), begin, stop)
            begin = stop

    def _take_epoch(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        if not self.reading.gate.crowded(segments):
            yield from self._take_segments(segments, begin, end)
            return
        for row, order in enumerate(segments.order.tolist()):
            yield from self._take_segments(segments.rows(row, row + 1), order, order + 1)
            for delivery in self.reading.gate.surplus(order):
                yield self._hand_out(self._deliver(delivery, order))

    def _take_segments(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        cuts: list[Cut] = []
        apart: list[Delivery] = []
        aligned: dict[type[Dissector], list[Delivery]] = {}
        joined: list[Delivery] = []
        for delivery in self.reading.gate.woken(self._tcp.feed_unjoined(segments)):
            tracked: Tracked | None = delivery.conversation.state
            quick = tracked is not None and tracked.detour is None and tracked.carried.stage is None
            dissector = tracked.dissector if tracked is not None and quick else None
            ready = dissector is not None and dissector.aligned and delivery.closed is None and delivery.failure is None
            ready = ready and tracked is not None and (tracked.suspicion is None or tracked.suspicion.idle(delivery.items))
            try:
                ready = ready and dissector.at_rest(begin)  # type: ignore[union-attr]
            except Exception as error:
                self._tcp.detours.append(Detour(bug(error), delivery.conversation))
                ready = False
            if ready and all(type(item) is Stretch for item in delivery.items):
                aligned.setdefault(type(dissector), []).append(delivery)  # type: ignore[arg-type]
            else:
                joined.append(delivery)
        for alike in aligned.values():
            joined += self._cut_aligned(alike, cuts)
        for delivery in joined:
            tracked = self._tracked(delivery.conversation)
            self.reading.cut(tracked, delivery, end)
            dissector = tracked.dissector
            plain = dissector is None or dissector.is_plain()
            if dissector is not None and plain:
                cuts += dissector.take_cuts()
            if delivery.closed is not None or not plain:
                apart.append(delivery)
                if delivery.closed is not None and delivery.closed < begin and not any(delivery.conversation.stream_bytes):
                    # It was kept as its packets then
                    tracked.told = True
        apart += self.memory.unused.over(begin)
        cuts.sort(key=itemgetter(0))
        done = 0
        step = max(PART, PART_CONVERSATIONS * len(apart))
        for order in range(begin + step, end + step, step):
            # Nothing is certain later than its batch, but a frame lost here would be lost without a word
            stop = bisect_left(cuts, (order,), done) if order < end else len(cuts)
            # Nothing here may hold the records while the next ones are made
            yield self._part(cuts, done, stop, apart, order)
            done = stop
        self.reports.detours(self._tcp)

    def _cut_aligned(self, alike: list[Delivery], cuts: list[Cut]) -> list[Delivery]:
        """Cut by column what can be; returns what has to be cut otherwise."""
        found: list[tuple[Dissector, Any]] = [(delivery.conversation.state.dissector, delivery.items) for delivery in alike]
        try:
            some, counts = cut_aligned(found)
        except Exception as error:
            if len(alike) > 1:
                return [left for delivery in alike for left in self._cut_aligned([delivery], cuts)]
            self._tcp.detours.append(Detour(bug(error), alike[0].conversation))
            return alike
        cuts += some
        for (dissector, stretches), count in zip(found, counts, strict=True):
            if count is not None:
                dissector.pass_over(stretches, count)
        return [delivery for delivery, count in zip(alike, counts, strict=True) if count is None]

    def _part(self, cuts: list[Cut], done: int, stop: int, apart: list[Delivery], order: int) -> list[Record]:
        """The records of the frames from `done` to `stop`, and of the conversations `apart` those that were certain before the packet
        `order`. What comes behind is taken out of `cuts` where an exception ended its conversation."""
        failed: list[Dissector] = []
        emitted = records_of(cuts[done:stop], failed)
        if failed:
            gone = {id(dissector) for dissector in failed}
            rest = cuts[stop:]
            cuts[stop:] = [cut for cut in rest if id(cut.dissector) not in gone]
            for dissector in failed:
                own = [cut for cut in rest if cut.dissector is dissector]
                dissector.drop(own)
                dissector.count(-len(own))
                (tracked,) = (one for one in self.conversations if one.dissector is dissector)
                ended = self.reading.fail(tracked, dissector)
                place = bisect_right(emitted, ended[0].release, key=itemgetter(0)) if ended else 0
                emitted[place:place] = ended
        if apart:
            for delivery in apart:
                emitted += self.reading.emit(delivery.conversation.state, delivery.closed, order)
            emitted.sort(key=by_conversation)
        return self._hand_out(emitted)

    def finish(self) -> list[Record]:
        """What is left at the end of the capture."""
        return [record for part in self._finish() for record in part]

    def _finish(self) -> Iterator[list[Record]]:
        """The same in parts: of the connections that carried nothing there may be many."""
        emitted: list[Emitted] = []
        self.reading.gate.take_secrets(self.inputs, None, self.counters.packets)
        self.keys.expecting = False
        for delivery in self.reading.gate.woken(self._tcp.finish(), END):
            emitted += self._deliver(delivery, END, True)
        emitted.sort(key=PLACE)
        rest = heapq.merge(emitted, self.memory.unused.endings(), key=PLACE)
        while part := list(islice(rest, LAST)):
            self.asked.clear()
            yield self._hand_out(part)
        if self.diagnoser is not None:
            yield self._hand_out(self.memory.unused.ends(self.diagnoser.ports() - self.endings.ports))
            yield self.diagnoser.finish()

    def age(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None = None) -> list[Record]:
        """For a capture without an end: the requests that were not answered in time, and what conversations end with that are
        forgotten. `now_ns` is a time up to which all packets were given; `leaving` gets the rows that are dropped."""
        if now_ns - self._aged_ns < AGE_NS:
            return []
        self._aged_ns = now_ns
        self.asked.clear()
        self.endings.broken_off.clear()
        options, order = self.options, self.counters.packets
        emitted: list[Emitted] = []
        if self.keys.poll(order):
            for delivery in self.reading.gate.woken([]):
                emitted += self._deliver(delivery, order)
        for tracked in self.conversations:
            if tracked.pairer is not None and tracked.pairer.open:
                try:
                    late = tracked.pairer.expire(now_ns, options.answer_time_ns, order)
                except Exception as error:
                    emitted += self.reading.give_up(tracked, bug(error), order)
                    continue
                tracked.tally.unanswered += len(late)
                self.counters.unanswered += len(late)
                emitted += late
        for delivery in self._tcp.evict(now_ns, options.idle_time_ns, options.closed_time_ns, options.tracked_limit, order):
            emitted += self._deliver(delivery, order, True)
        for conversation in self._tcp.half_over():
            try:
                ahead = self.endings.ahead(self._tracked(conversation), now_ns, order)
            except Exception as error:
                self.reports.once(Report(bug(error), "how a conversation ended is told when it is over"))
                continue
            self.outbox.ahead.update({one.record.conversation: one.record for one in ahead if type(one.record) is Ending})
            emitted += ahead
        for delivery in self.reading.gate.stale(now_ns - options.closed_time_ns, order):
            emitted += self._deliver(delivery, order)
        emitted.sort(key=PLACE)
        records = self._hand_out(emitted)
        self.memory.drop(now_ns, leaving)
        return records

    def complain(self) -> None:
        """Raise what was wrong, once all that can be read was read: `CaptureError` for a damaged input, else `InternalError`."""
        if self.errors:
            raise self.errors[0]
        if self.reports:
            raise InternalError([report.text(self.inputs[report.file or 0].name) for report in self.reports])

    def rows(self, related: bool = True) -> list[ConversationRow]:
        """The conversations so far, by first packet; without those that `age` dropped. `related`: with what they tell of each other."""
        return [row for rows in self.each_rows(related) for row in rows]

    def each_rows(self, related: bool = True, bare: bool = True) -> Iterator[list[ConversationRow]]:
        """The same, some at a time; `bare`: also those that carried nothing and were kept as their packets."""
        return self.memory.rows(related, bare)

    def flows(self) -> Iterator[Flow]:
        """What tells the packets of each conversation; not after `age` has dropped some."""
        return self.memory.flows()

    def count(self) -> int:
        """How many conversations there are, those that `age` dropped among them."""
        return self.memory.count()

    def _crowd(self, order: int) -> list[Emitted]:
        """End those that were silent the longest."""
        deliveries, left = self._tcp.crowd(self.options.tracked_limit, order)
        emitted = [one for delivery in deliveries for one in self._deliver(delivery, order, True)]
        self.memory.pack(left)
        emitted.sort(key=PLACE)
        return emitted

    def _packets(self) -> Iterator[PacketBatch]:
        if len(self.inputs) == 1:
            try:
                yield from self.inputs[0].batches(self.batch_rows)
            except CaptureError as error:
                self.errors.append(error)
        else:
            yield from merge(self.inputs, self.errors, self.batch_rows)

    def _deliver(self, delivery: Delivery, order: int, final: bool = False) -> list[Emitted]:
        """The records of what is delivered at the packet `order`, outside of a batch."""
        tracked = self._tracked(delivery.conversation)
        self.reading.cut(tracked, delivery, order + 1, final)
        return self.reading.emit(tracked, delivery.closed, END + 1)

    def _tracked(self, conversation: Conversation) -> Tracked:
        tracked: Tracked | None = conversation.state
        if tracked is None:
            tracked = conversation.state = Tracked.of(conversation)
            self.conversations.append(tracked)
        return tracked

    def _hand_out(self, emitted: list[Emitted]) -> list[Record]:
        every: list[Any] = self.outbox.timed(emitted, self.counters)
        records: list[Record] = every
        if self.diagnoser is not None:
            # The ends of conversations are told to it alone, and have no number
            records = [one for one in every if type(one) is not Closed]
        for number, record in enumerate(records, self._number + 1):
            record.number = number
        self._number += len(records)
        endings: dict[int, Ending] | None = None
        for record, request, response in self.outbox.links:
            record.request = request.number
            if response is not None:
                record.response = response.number  # type: ignore[union-attr]
            elif type(record) is Exchange:
                if endings is None:
                    endings = self.outbox.ahead | {one.conversation: one for one in records if type(one) is Ending}
                self.asked[record.number] = request, endings.get(record.conversation)
        self.outbox.links.clear()
        self.outbox.lighten(self.reports)
        if self.diagnoser is not None:
            records = self.diagnoser.take(every)
            self.reports += self.diagnoser.reports
            self.diagnoser.reports.clear()
        return records
