"""Wires capture, reassembly, detection, dissectors and pairing together; prints nothing and opens nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from dissect.capture.files import part
from dissect.capture.link import LinkParser
from dissect.capture.merge import merge
from dissect.detect import BY_NAME, Detector, forced
from dissect.errors import CaptureError
from dissect.model import Chunk, ConversationRow, Hole, Options, PacketBatch, Record, SegmentBatch, Verdict
from dissect.pair import Link, Pairer
from dissect.protocols import PROTOCOLS
from dissect.protocols.aligned import cut_aligned
from dissect.protocols.base import END, Context, Cut, Dissector, Emitted, Tally, records_of, rfc3339
from dissect.tcp.conversations import CROWDED, IDLE, Conversation, Conversations, Delivery, Stretch

PART = 256
"""Packets whose records are made and handed on at once: as long as they fit in the processor's cache, all that happens to them is fast."""

PART_CONVERSATIONS = 24
"""The least packets of a part for each conversation, which all are looked at for each."""

AGE_NS = 500_000_000
"""How often a capture without an end looks for what has become old."""

UNANSWERED = {IDLE: "timeout", CROWDED: "limit"}
"""Why requests stay open in conversations that are forgotten."""


class Source(Protocol):
    """What packets come from: a file, a pipe or an interface."""

    def batches(self, rows: int | None = None) -> Iterator[PacketBatch]: ...


class Counters(Tally):
    """What this run has read and made of it."""

    packets: int = 0


class Tracked(msgspec.Struct):
    """One conversation as the inspector knows it; the row of the `conversations` view is made from it."""

    tcp: Conversation
    verdict: Verdict | None = None
    detector: Detector | None = None
    dissector: Dissector | None = None
    pairer: Pairer | None = None
    tally: Tally = msgspec.field(default_factory=Tally)
    limit_hits: int = 0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    client: int | None = None
    done: bool = False


class Past(msgspec.Struct):
    """What is still known of conversations whose rows were dropped; live only."""

    conversations: int = 0
    limit_hits: int = 0
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Those of no known protocol that carried bytes, by what they are."""


class Inspector:
    """Reads packets and yields records in the order of their release packet."""

    def __init__(self, inputs: Sequence[Source], options: Options | None = None, rows: int | None = None) -> None:
        """`rows` forces batches of so many packets, which changes nothing but the speed."""
        self.options = options or Options()
        self.inputs = inputs
        self.batch_rows = rows
        self.counters = Counters()
        self.errors: list[CaptureError] = []
        self.link = LinkParser()
        self.conversations: list[Tracked] = []
        self.past = Past()
        self._tcp = Conversations(self.options)
        self._links: list[Link] = []
        self._number = 0
        self._aged_ns = 0

    def records(self) -> Iterator[Record]:
        """The records one by one."""
        for batch in self.batches():
            yield from batch

    def batches(self, packets: int | None = None) -> Iterator[list[Record]]:
        """The records of each batch of packets; `packets`: stop after so many of them."""
        for batch in self._packets():
            if packets is not None and self.counters.packets + len(batch) > packets:
                batch = part(batch, 0, packets - self.counters.packets)
            if len(batch):
                yield from self._parts(batch)
            if packets is not None and self.counters.packets >= packets:
                break
        yield self.finish()

    def take(self, batch: PacketBatch) -> list[Record]:
        """The records that these packets complete."""
        return [record for part in self._parts(batch) for record in part]

    def _parts(self, batch: PacketBatch) -> Iterator[list[Record]]:
        """The records that these packets complete, a part of the packets after the other."""
        counters = self.counters
        begin = counters.packets
        segments = self.link.segments(batch, begin)
        counters.packets += len(batch)
        yield from self.take_segments(segments, begin, counters.packets)

    def take_segments(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        """The records that the segments of the packets from `begin` to `end` complete, in parts."""
        cuts: list[Cut] = []
        apart: list[Delivery] = []
        aligned: dict[type[Dissector], list[Delivery]] = {}
        joined: list[Delivery] = []
        for delivery in self._tcp.feed_unjoined(segments):
            tracked: Tracked | None = delivery.conversation.state
            dissector = None if tracked is None else tracked.dissector
            ready = dissector is not None and dissector.aligned and delivery.closed is None and dissector.at_rest(begin)
            if ready and all(type(item) is Stretch for item in delivery.items):
                aligned.setdefault(type(dissector), []).append(delivery)  # type: ignore[arg-type]
            else:
                joined.append(delivery)
        for alike in aligned.values():
            found, refused = cut_aligned([(delivery.conversation.state.dissector, delivery.items) for delivery in alike])  # type: ignore[misc]
            cuts += found
            joined += [alike[index] for index in refused]
        for delivery in joined:
            self._cut(delivery)
            dissector = delivery.conversation.state.dissector
            plain = dissector is None or dissector.is_plain()
            if dissector is not None and plain:
                cuts += dissector.take_cuts()
            if delivery.closed is not None or not plain:
                apart.append(delivery)
        cuts.sort(key=itemgetter(0))
        done = 0
        step = max(PART, PART_CONVERSATIONS * len(apart))
        for order in range(begin + step, end + step, step):
            # Nothing is certain later than its batch, but a frame lost here would be lost without a word
            stop = bisect_left(cuts, (order,), done) if order < end else len(cuts)
            # Nothing here may hold the records while the next ones are made
            yield self._part(cuts[done:stop], apart, order)
            done = stop

    def _part(self, cuts: list[Cut], apart: list[Delivery], order: int) -> list[Record]:
        """The records of these frames, and of the conversations `apart` those that were certain before the packet `order`."""
        emitted = records_of(cuts)
        if apart:
            for delivery in apart:
                emitted += self._emit(delivery, order)
            emitted.sort(key=_place)
        return self._hand_out(emitted)

    def finish(self) -> list[Record]:
        """What is left at the end of the capture."""
        emitted: list[Emitted] = []
        for delivery in self._tcp.finish():
            emitted += self._deliver(delivery)
        emitted.sort(key=itemgetter(0, 1, 2, 3))
        return self._hand_out(emitted)

    def age(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None = None) -> list[Record]:
        """For a capture without an end: the requests that were not answered in time, and what conversations end with that are
        forgotten. `now_ns` is a time up to which all packets were given; `leaving` gets the rows that are dropped."""
        if now_ns - self._aged_ns < AGE_NS:
            return []
        self._aged_ns = now_ns
        options, order = self.options, self.counters.packets
        emitted: list[Emitted] = []
        for tracked in self.conversations:
            if tracked.pairer is not None and tracked.pairer.open:
                late = tracked.pairer.expire(now_ns - options.answer_time_ns, order)
                tracked.tally.unanswered += len(late)
                self.counters.unanswered += len(late)
                emitted += late
        for delivery in self._tcp.evict(now_ns, options.idle_time_ns, options.closed_time_ns, options.tracked_limit, order):
            emitted += self._deliver(delivery)
        self._drop_rows(now_ns, leaving)
        emitted.sort(key=itemgetter(0, 1, 2, 3))
        return self._hand_out(emitted)

    def rows(self, related: bool = True) -> list[ConversationRow]:
        """The conversations so far, by first packet; without those that `age` dropped. `related`: with what they tell of each other."""
        before = self.past.conversations + 1
        rows = [_row(number, tracked) for number, tracked in enumerate(sorted(self.conversations, key=lambda one: one.tcp.index), before)]
        if related:
            relate(rows)
        return rows

    def _drop_rows(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None) -> None:
        """Drop what is kept of conversations that ended, when they did long ago or there are too many."""
        done = [tracked for tracked in self.conversations if tracked.done]
        done.sort(key=lambda tracked: tracked.tcp.last[3])
        spare = len(self.conversations) - self.options.tracked_limit
        before = now_ns - self.options.closed_time_ns
        gone = [tracked for index, tracked in enumerate(done) if index < spare or tracked.tcp.last[3] <= before]
        if not gone:
            return
        left = {id(tracked) for tracked in gone}
        self.conversations = [tracked for tracked in self.conversations if id(tracked) not in left]
        past = self.past
        rows = [_row(past.conversations + number, tracked) for number, tracked in enumerate(gone, 1)]
        past.conversations += len(gone)
        for row in rows:
            past.limit_hits += row.limit_hits
            if row.protocol is None and any(row.bytes):
                name = row.name or "unknown"
                past.unread[name] = past.unread.get(name, 0) + 1
        if leaving is not None:
            leaving(rows)

    def _packets(self) -> Iterator[PacketBatch]:
        if len(self.inputs) == 1:
            try:
                yield from self.inputs[0].batches(self.batch_rows)
            except CaptureError as error:
                self.errors.append(error)
        else:
            yield from merge(self.inputs, self.errors, self.batch_rows)

    def _deliver(self, delivery: Delivery) -> list[Emitted]:
        self._cut(delivery)
        return self._emit(delivery, END + 1)

    def _cut(self, delivery: Delivery) -> None:
        """Let the conversation's dissector, once there is one, cut what was delivered into frames."""
        tracked: Tracked | None = delivery.conversation.state
        if tracked is None:
            tracked = self._begin(delivery.conversation)
        items: list[Chunk | Hole] = [item.chunk() if isinstance(item, Stretch) else item for item in delivery.items]
        if tracked.detector is not None:
            items = self._detect(tracked, items)
        if tracked.dissector is not None and items:
            tracked.dissector.cut(items)

    def _emit(self, delivery: Delivery, order: int) -> list[Emitted]:
        """The records of a conversation that were certain before this packet."""
        tracked: Tracked = delivery.conversation.state
        dissector, closed = tracked.dissector, delivery.closed
        emitted: list[Emitted] = []
        if dissector is not None:
            emitted = dissector.emit_before(order)
            if emitted:
                emitted = self._pair(tracked, emitted)
        if closed is not None and closed < order and not tracked.done:
            emitted += self._close(tracked, closed)
        return emitted

    def _begin(self, conversation: Conversation) -> Tracked:
        tracked = Tracked(conversation, client=0 if conversation.syn else None)
        conversation.state = tracked
        self.conversations.append(tracked)
        verdict = forced(conversation.ports, conversation.syn, self.options)
        if verdict is not None:
            self._decide(tracked, verdict)
        else:
            tracked.detector = Detector(conversation.ports, conversation.syn, self.options.undecided_limit)
        return tracked

    def _detect(self, tracked: Tracked, items: list[Chunk | Hole]) -> list[Chunk | Hole]:
        """The bytes to dissect once the protocol is known, none of them certain before the packet that told it."""
        detector = tracked.detector
        assert detector is not None
        found = detector.add(items)
        if found is None:
            return []
        return self._start(tracked, detector, *found)

    def _start(self, tracked: Tracked, detector: Detector, verdict: Verdict, release: int) -> list[Chunk | Hole]:
        tracked.detector = None
        tracked.limit_hits += detector.limited
        self._decide(tracked, verdict)
        if tracked.dissector is None:
            return []
        for item in detector.items:
            if isinstance(item, Chunk):
                item.releases = [max(one, release) for one in item.releases]
            else:
                item.release = max(item.release, release)
        return detector.items

    def _decide(self, tracked: Tracked, verdict: Verdict) -> None:
        tracked.verdict = verdict
        if verdict.protocol is None:
            return
        conversation = tracked.tcp
        if tracked.client is None:
            tracked.client = verdict.client
        protocol = BY_NAME[verdict.protocol]
        context = Context(
            conversation.index,
            conversation.endpoints,
            conversation.ports,
            tracked.client,
            conversation.syn,
            verdict,
            self.options,
            self.counters,
        )
        dissector = protocol.dissector(context)
        tracked.dissector = dissector
        tracked.facts = dissector.facts
        tracked.tally = dissector.tally
        options = self.options
        tracked.pairer = Pairer(
            dissector.reuse,
            options.open_limit,
            options.exchanges,
            self._links,
            protocol.paired,
            conversation.syn,
            protocol.unanswered,
            (dissector.tally, self.counters),
        )
        if dissector.is_plain():
            dissector.pairer = tracked.pairer

    def _close(self, tracked: Tracked, release: int) -> list[Emitted]:
        emitted: list[Emitted] = []
        if tracked.detector is not None:
            detector = tracked.detector
            items = self._start(tracked, detector, detector.finish(), release)
            if tracked.dissector is not None:
                emitted += self._pair(tracked, tracked.dissector.feed(items))
        dissector, pairer = tracked.dissector, tracked.pairer
        if dissector is not None and pairer is not None:
            conversation = tracked.tcp
            emitted += self._pair(tracked, dissector.close(release, conversation.last))
            reason = "capture ended" if conversation.open else UNANSWERED.get(conversation.ended, "closed")
            ended = pairer.close(release, reason, conversation.last[3])
            tracked.tally.unanswered += len(ended)
            self.counters.unanswered += len(ended)
            emitted += ended
            tracked.client = dissector.client
            tracked.limit_hits += pairer.limit_hits
            tracked.dissector = tracked.pairer = None
        tracked.done = True
        return emitted

    def _pair(self, tracked: Tracked, emitted: list[Emitted]) -> list[Emitted]:
        dissector, pairer = tracked.dissector, tracked.pairer
        assert dissector is not None and pairer is not None
        return emitted if dissector.pairer is pairer else pairer.run(emitted)

    def _hand_out(self, emitted: list[Emitted]) -> list[Record]:
        records: list[Record] = [one[4] for one in emitted]
        for number, record in enumerate(records, self._number + 1):
            record.number = number
        self._number += len(records)
        for record, request, response in self._links:
            record.request = request.number
            if response is not None:
                record.response = response.number  # type: ignore[union-attr]
        self._links.clear()
        return records


def relate(rows: list[ConversationRow]) -> None:
    """Adds to conversations what others tell: an Iggy server's layout, a Seastar stream's parent."""
    for protocol in PROTOCOLS:
        if protocol.relate is not None:
            protocol.relate([row for row in rows if row.protocol == protocol.name])


def _place(one: Emitted) -> tuple[int, int]:
    """Where a record stands among those of other conversations."""
    return one[0], one[4].conversation


def _row(number: int, tracked: Tracked) -> ConversationRow:
    tcp = tracked.tcp
    verdict = tracked.verdict or Verdict(None, 0.0, ("not enough bytes yet",))
    facts = dict(tracked.facts)
    client, tally = tracked.client, tracked.tally
    return ConversationRow(
        1,
        number,
        rfc3339(tcp.first[3]),
        tcp.first[3],
        tcp.latest[3] - tcp.first[3],
        tcp.index,
        tcp.endpoints,
        None if client is None else tcp.endpoints[client],
        None if client is None else tcp.endpoints[1 - client],
        verdict.protocol,
        verdict.name,
        verdict.confidence,
        verdict.evidence,
        facts.pop("layout", verdict.layout),
        tuple(facts.pop("candidates", verdict.candidates)),
        (tcp.packets[0], tcp.packets[1]),
        (tcp.stream_bytes[0], tcp.stream_bytes[1]),
        tally.messages,
        tally.faults,
        tally.gaps,
        tally.gap_bytes,
        tally.unanswered,
        tcp.retransmissions,
        tcp.ended,
        tracked.limit_hits + tcp.limit_hits,
        facts,
    )
