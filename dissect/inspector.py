"""Wires capture, reassembly, detection, dissectors and pairing together; prints nothing and opens nothing."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from dissect.capture.files import part
from dissect.capture.link import LinkParser, SeparateFiles
from dissect.capture.merge import merge
from dissect.capture.pick import Flow
from dissect.detect import BY_NAME, Detector, Suspicion, forced, neighbour
from dissect.diagnose.rules import Closed
from dissect.diagnose.windows import Windows
from dissect.errors import CaptureError, Failure, InternalError, Report, bug
from dissect.model import (
    Chunk,
    ConversationRow,
    Ending,
    Exchange,
    Gap,
    Hole,
    Message,
    Options,
    PacketBatch,
    Pair,
    Record,
    SegmentBatch,
    Verdict,
)
from dissect.pair import BEHIND, KEYS_COUNTED, Link, Pairer
from dissect.protocols import PROTOCOLS
from dissect.protocols.aligned import cut_aligned
from dissect.protocols.base import Dissector
from dissect.protocols.behaviour import Handshake
from dissect.protocols.flow import END, Range
from dissect.protocols.protocol import Context, Tally
from dissect.protocols.records import GAP, LARGE, NONE, SENDERS, Cut, Emitted, count_gap, records_of, rfc3339
from dissect.tcp.conversations import CROWDED, IDLE, REUSED, Conversation, Conversations, Delivery, Detour, Stretch, until
from dissect.tls.gate import Carried, Gate
from dissect.tls.keys import KeyLog

if TYPE_CHECKING:
    from dissect.diagnose.engine import Diagnoser

BEGIN_KEPT = 64
"""So many bytes of each side are kept for the diagnosis."""

PART = 256
"""Packets whose records are made and handed on at once: as long as they fit in the processor's cache, all that happens to them is fast."""

PART_CONVERSATIONS = 24
"""The least packets of a part for each conversation, which all are looked at for each."""

EPOCH, SEGMENT = 1 << 18, 64
"""After so many bytes, of which a segment counts some more than it carries, the totals over all conversations are looked at: at the same
packets however these come in batches."""

LAST = 1_024
"""Records that are handed on at once at the end."""

KEPT_OF_TOTAL = 0.75
"""What is left of a total that was passed: finding what is oldest means looking at all."""

FEW_KEYS = LARGE // 12 // KEYS_COUNTED + 2
"""The most that one message which is not large adds to the open requests, as they are counted."""

KEY_BYTES = 8 * KEYS_COUNTED
"""The least bytes for each of what a large message adds."""

AGE_NS = 500_000_000
"""How often a capture without an end looks for what has become old."""

UNANSWERED = {IDLE: "timeout", CROWDED: "limit"}
"""Why requests stay open in conversations that are forgotten."""


class Source(Protocol):
    """What packets come from: a file, a pipe or an interface."""

    name: str

    def batches(self, rows: int | None = None) -> Iterator[PacketBatch]: ...


class Counters(Tally):
    """What this run has read and made of it."""

    packets: int = 0
    by_server: int = 0
    """Conversations that the server ended."""
    unconnected: int = 0
    """Connections that were refused or never answered."""
    broken_off: int = 0
    """Handshakes in the middle of which the server ended the conversation."""
    failures: int = 0
    """Bugs of ours that cost something."""


class Tracked(msgspec.Struct):
    """One conversation as the inspector knows it; the row of the `conversations` view is made from it."""

    tcp: Conversation
    carried: Carried = msgspec.field(default_factory=Carried)
    """Its TLS, between reassembly and detection."""
    verdict: Verdict | None = None
    detector: Detector | None = None
    suspicion: Suspicion | None = None
    """As long as a protocol that was asked for may turn out to be another."""
    dissector: Dissector | None = None
    pairer: Pairer | None = None
    tally: Tally = msgspec.field(default_factory=Tally)
    limit_hits: int = 0
    open: int = 0
    """Requests that had no response at the end."""
    facts: dict[str, Any] | None = None
    """Those of its dissector."""
    step: str | None = None
    """How far its handshake had come at the end."""
    midway: bool = False
    """In the middle of it, and nothing that was refused tells why."""
    client: int | None = None
    whole: bool = False
    """Side 0 is the client, and both byte streams begin where it began."""
    done: bool = False
    told: bool = False
    """Its ending was handed on already."""
    begun: tuple[bytes, bytes] = (b"", b"")
    """The first bytes of each side, where a diagnosis is asked for and the protocol is known."""
    failure: str | None = None
    """An exception came: what it was. Nothing was dissected from there on."""
    missed: Sequence[Range] = ()
    """The bytes that were not, where the protocol is known: a gap at the end says so."""
    detour: str | None = None
    """An exception came in a short cut, which is not taken any more."""
    rowless: bool = False
    """An exception came as its row was made."""


class Past(msgspec.Struct):
    """What is still known of conversations whose rows were dropped; live only."""

    conversations: int = 0
    limit_hits: int = 0
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Those of no known protocol that carried bytes, by what they are."""


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
        self.gate = Gate(self.options, self.keys)
        self.inputs = inputs
        self.batch_rows = rows
        self.counters = Counters()
        self.errors: list[CaptureError] = []
        self.reports: list[Report] = []
        """What to tell of bugs of ours; whoever tells it empties this."""
        self.link = SeparateFiles() if self.options.separate else LinkParser()
        self.asked: dict[int, tuple[Message, Ending | None]] = {}
        """By the number of an exchange without a response, of those handed on last: the request, and what ended the conversation."""
        self.broken_off: dict[int, str] = {}
        """By conversation, of those that ended last: how far the handshake had come in the middle of which the server left."""
        self.conversations: list[Tracked] = []
        self.past = Past()
        self.suspected: ConversationRow | None = None
        """The first conversation that was read as it was asked for, but holds a login of another protocol: its fact `looks_like`."""
        self.diagnoser: Diagnoser | None = None
        """Says what went wrong, where `Options.findings` asks for it."""
        self._windows = Windows()
        if self.options.findings:
            from dissect.diagnose.engine import Diagnoser

            self.diagnoser = Diagnoser()
        self._tcp = Conversations(self.options, bare)
        self._ports = frozenset(port for protocol in PROTOCOLS for port in protocol.ports) | {one[0] for one in self.options.decode_as}
        # By conversation: when the last message came, and the packet of the first FIN or RST, behind which none counts.
        self._latest: dict[int, int] = {}
        self._over: dict[int, int] = {}
        self._links: list[Link] = []
        self._large: list[tuple[Pairer, Emitted]] = []
        self._pairs: list[Pair] | None = [] if self.options.pairs else None
        self._number = 0
        self._aged_ns = 0
        self._told: set[Report] = set()
        # What the epochs are told by, and by conversation those whose protocol is not known yet, and those with requests
        self._fed = 0
        self._detecting: dict[int, Tracked] = {}
        self._paired: dict[int, Tracked] = {}
        # No more requests can be open than this, and with which record that was found
        self._opened = 0
        self._counted = 0

    def records(self) -> Iterator[Record]:
        """The records one by one."""
        for batch in self.batches():
            yield from batch

    def batches(self, packets: int | None = None) -> Iterator[list[Record]]:
        """The records of each batch of packets; `packets`: stop after so many of them."""
        self.keys.expecting |= any(getattr(one, "format", None) == "pcapng" for one in self.inputs)
        try:
            for batch in self._packets():
                self.gate.take_secrets(self.inputs, batch, self.counters.packets)
                if packets is not None and self.counters.packets + len(batch) > packets:
                    batch = part(batch, 0, packets - self.counters.packets)
                if len(batch):
                    yield from self._parts(batch)
                if packets is not None and self.counters.packets >= packets:
                    break
        except Exception as error:
            self._report(Report(bug(error), f"nothing was read behind packet {self.counters.packets}"))
        yield from self._finish()

    def take(self, batch: PacketBatch) -> list[Record]:
        """The records that these packets complete."""
        return [record for part in self._parts(batch) for record in part]

    def _parts(self, batch: PacketBatch) -> Iterator[list[Record]]:
        """The records that these packets complete, a part of the packets after the other."""
        counters = self.counters
        self.asked.clear()
        self.broken_off.clear()
        begin = counters.packets
        segments = self.link.segments(batch, begin)
        counters.packets += len(batch)
        yield from self.take_segments(segments, begin, counters.packets)

    def pairs(self) -> list[Pair]:
        """With `Options.pairs`, the exchanges that ended with the records handed on since this was called last."""
        found: list[Pair] = []
        if self._pairs:
            late: list[Pair] = []
            for one in self._pairs:
                response = one.response
                told = one.request.number and (response is None or response.number)
                (found if told else late).append(one)
            # Pairers hold this very list
            self._pairs[:] = late
        return found

    def take_segments(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        """The records that the segments of the packets from `begin` to `end` complete, in parts."""
        self.keys.poll(begin)
        if self.diagnoser is not None:
            self._windows.look(segments)
        fed = self._fed + np.cumsum(segments.length + SEGMENT)
        epochs = (np.flatnonzero(np.diff(fed // EPOCH, prepend=self._fed // EPOCH))).tolist()
        ends = [*(row for row in epochs if row), len(segments)]
        for low, high in zip([0, *ends], ends, strict=False):
            if low or epochs[:1] == [0]:
                late = self._relieve(int(segments.order[low]) - 1, int(segments.time_ns[low]))
                if late:
                    yield self._hand_out(late)
            if high:
                self._fed = int(fed[high - 1])
            stop = int(segments.order[high]) if high < len(segments) else end
            yield from self._take_epoch(segments.rows(low, high), begin, stop)
            begin = stop

    def _take_epoch(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        if not self.gate.crowded(segments):
            yield from self._take_segments(segments, begin, end)
            return
        for row, order in enumerate(segments.order.tolist()):
            yield from self._take_segments(segments.rows(row, row + 1), order, order + 1)
            for delivery in self.gate.surplus(order):
                yield self._hand_out(self._deliver(delivery, order))

    def _take_segments(self, segments: SegmentBatch, begin: int, end: int) -> Iterator[list[Record]]:
        cuts: list[Cut] = []
        apart: list[Delivery] = []
        aligned: dict[type[Dissector], list[Delivery]] = {}
        joined: list[Delivery] = []
        for delivery in self.gate.woken(self._tcp.feed_unjoined(segments)):
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
            self._cut(delivery, end)
            dissector = delivery.conversation.state.dissector
            plain = dissector is None or dissector.is_plain()
            if dissector is not None and plain:
                cuts += dissector.take_cuts()
            if delivery.closed is not None or not plain:
                apart.append(delivery)
                if delivery.closed is not None and delivery.closed < begin and not any(delivery.conversation.stream_bytes):
                    # It was kept as its packets then
                    delivery.conversation.state.told = True
        apart += self._bare_over(begin)
        cuts.sort(key=itemgetter(0))
        done = 0
        step = max(PART, PART_CONVERSATIONS * len(apart))
        for order in range(begin + step, end + step, step):
            # Nothing is certain later than its batch, but a frame lost here would be lost without a word
            stop = bisect_left(cuts, (order,), done) if order < end else len(cuts)
            # Nothing here may hold the records while the next ones are made
            yield self._part(cuts, done, stop, apart, order)
            done = stop
        self._report_detours()

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
                ended = self._fail(tracked, dissector)
                place = bisect_right(emitted, ended[0][0], key=itemgetter(0)) if ended else 0
                emitted[place:place] = ended
        if apart:
            for delivery in apart:
                emitted += self._emit(delivery, order)
            emitted.sort(key=_place)
        return self._hand_out(emitted)

    def finish(self) -> list[Record]:
        """What is left at the end of the capture."""
        return [record for part in self._finish() for record in part]

    def _finish(self) -> Iterator[list[Record]]:
        """The same in parts: of the connections that carried nothing there may be many."""
        emitted: list[Emitted] = []
        self.gate.take_secrets(self.inputs, None, self.counters.packets)
        self.keys.expecting = False
        for delivery in self.gate.woken(self._tcp.finish(), END):
            emitted += self._deliver(delivery, END, True)
        emitted.sort(key=PLACE)
        rest = heapq.merge(emitted, self._bare_endings(), key=PLACE)
        while part := list(islice(rest, LAST)):
            self.asked.clear()
            yield self._hand_out(part)
        if self.diagnoser is not None:
            yield self._hand_out(self._bare_ends(self.diagnoser.ports() - self._ports))
            yield self.diagnoser.finish()

    def _bare_over(self, begin: int) -> list[Delivery]:
        """The connections to known ports that carried nothing and have ended since the packet `begin`."""
        return [one for key in self._tcp.bare_over() if (one := self._bare(key)) is not None and one.closed in range(begin, END)]

    def _bare_endings(self) -> Iterator[Emitted]:
        """How the others ended, by their last packets."""
        for key in self._tcp.bare_keys():
            delivery = self._bare(key)
            if delivery is not None and delivery.closed == END:
                yield from self._ended(delivery.conversation.state, END)

    def _bare_ends(self, ports: frozenset[int]) -> list[Emitted]:
        """For the diagnosis alone, the connections that carried nothing to ports on which others spoke a protocol of ours."""
        emitted: list[Emitted] = []
        for _, key in self._tcp.bare() if ports else ():
            if self._tcp.is_between(key, ports):
                conversation = self._tcp.bare_delivery(key).conversation
                tracked = Tracked(conversation, client=0 if conversation.syn else None)
                place = (END, conversation.last[0], BEHIND + 2, 0)
                emitted.append((*place, self._closed(tracked), NONE, None, conversation.last[3]))  # type: ignore[arg-type]
        emitted.sort(key=PLACE)
        return emitted

    def _bare(self, key: bytes) -> Delivery | None:
        """A connection to a known port that carried nothing."""
        try:
            if not self._tcp.is_between(key, self._ports):
                return None
            delivery = self._tcp.bare_delivery(key)
            delivery.conversation.state = Tracked(delivery.conversation, client=0)
        except Exception as error:
            self._report_once(Report(bug(error), "the ending of a connection is missing"))
            return None
        return delivery

    def age(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None = None) -> list[Record]:
        """For a capture without an end: the requests that were not answered in time, and what conversations end with that are
        forgotten. `now_ns` is a time up to which all packets were given; `leaving` gets the rows that are dropped."""
        if now_ns - self._aged_ns < AGE_NS:
            return []
        self._aged_ns = now_ns
        self.asked.clear()
        self.broken_off.clear()
        options, order = self.options, self.counters.packets
        emitted: list[Emitted] = []
        if self.keys.poll(order):
            for delivery in self.gate.woken([]):
                emitted += self._deliver(delivery, order)
        for tracked in self.conversations:
            if tracked.pairer is not None and tracked.pairer.open:
                try:
                    late = tracked.pairer.expire(now_ns, options.answer_time_ns, order)
                except Exception as error:
                    emitted += self._give_up(tracked, bug(error), order)
                    continue
                tracked.tally.unanswered += len(late)
                self.counters.unanswered += len(late)
                emitted += late
        for delivery in self._tcp.evict(now_ns, options.idle_time_ns, options.closed_time_ns, options.tracked_limit, order):
            emitted += self._deliver(delivery, order, True)
        for delivery in self.gate.stale(now_ns - options.closed_time_ns, order):
            emitted += self._deliver(delivery, order)
        emitted.sort(key=PLACE)
        records = self._hand_out(emitted)
        self._drop_rows(now_ns, leaving)
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
        known = sorted(self.conversations, key=lambda one: one.tcp.index)
        others = self._tcp.bare() if bare else []
        number = self.past.conversations + 1
        told: list[ConversationRow] = []
        places = []
        for at, tracked in enumerate(known):
            places.append(bisect_left(others, (tracked.tcp.index,)))
            if tracked.verdict is not None and tracked.verdict.protocol is not None:
                told += self._rows([tracked], number + at + places[-1])
        if related:
            for what in relate(told):
                self._report_once(Report(what, "conversations lack what others tell of them"))
        done = 0
        ready = iter(told)
        following = next(ready, None)
        for at, tracked in enumerate(known):
            yield from self._bare_rows(others, done, places[at], number + at)
            done = places[at]
            if following is not None and following.conversation == tracked.tcp.index:
                yield [following]
                following = next(ready, None)
            elif tracked.verdict is None or tracked.verdict.protocol is None:
                # Others have nothing to tell of it, and there may be very many
                yield self._rows([tracked], number + at + places[at])
        yield from self._bare_rows(others, done, len(others), number + len(known))

    def _bare_rows(self, others: list[tuple[int, bytes]], begin: int, end: int, number: int) -> Iterator[list[ConversationRow]]:
        for index in range(begin, end):
            try:
                delivery = self._tcp.bare_delivery(others[index][1])
                tracked = Tracked(delivery.conversation, client=0 if delivery.conversation.syn else None, whole=delivery.conversation.syn)
                self._begin(tracked)
                self._close(tracked, END)
                yield [_row(number + index, tracked)]
            except Exception as error:
                self._report_once(Report(bug(error), "the row of a conversation is missing"))

    def flows(self) -> Iterator[Flow]:
        """What tells the packets of each conversation; not after `age` has dropped some."""
        for tracked in self.conversations:
            yield self._flow(tracked.tcp)
        for _, key in self._tcp.bare():
            yield self._flow(self._tcp.bare_delivery(key).conversation)

    def _flow(self, conversation: Conversation) -> Flow:
        order, _, file, _ = conversation.first
        return Flow(conversation.index, conversation.endpoints, order, file if self.options.separate else 0)

    def count(self) -> int:
        """How many conversations there are, those that `age` dropped among them."""
        return self.past.conversations + len(self.conversations) + len(self._tcp.bare())

    def _rows(self, conversations: list[Tracked], number: int) -> list[ConversationRow]:
        """The rows of these conversations, numbered from `number` on."""
        rows = []
        for index, tracked in enumerate(conversations):
            try:
                rows.append(_row(number + index, tracked))
            except Exception as error:
                what = bug(error)
                if not tracked.rowless:
                    tracked.rowless = True
                    self._report(self._about(tracked, Failure(what, 0), "its row is missing"))
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
        for tracked in gone:
            self.gate.inside.pop(tracked.tcp.index, None)
            self._latest.pop(tracked.tcp.index, None)
            self._over.pop(tracked.tcp.index, None)
        self.conversations = [tracked for tracked in self.conversations if id(tracked) not in left]
        past = self.past
        rows = self._rows(gone, past.conversations + 1)
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

    def _deliver(self, delivery: Delivery, order: int, final: bool = False) -> list[Emitted]:
        """The records of what is delivered at the packet `order`, outside of a batch."""
        self._cut(delivery, order + 1, final)
        return self._emit(delivery, END + 1)

    def _cut(self, delivery: Delivery, end: int, final: bool = False) -> None:
        """Let the conversation's dissector, once there is one, cut what was delivered into frames. Packets below `end` have been seen;
        `final`: what has ended does not wait for keys."""
        tracked: Tracked | None = delivery.conversation.state
        if tracked is None:
            tracked = Tracked(delivery.conversation, client=0 if delivery.conversation.syn else None, whole=delivery.conversation.syn)
            delivery.conversation.state = tracked
            self.conversations.append(tracked)
        elif not delivery.items and delivery.failure is None and tracked.carried.stage is None:
            return
        items, failure = _joined(delivery.items, delivery.failure)
        try:
            if tracked.verdict is None and tracked.detector is None and tracked.failure is None:
                self._begin(tracked)
            if not tracked.carried.plain:
                items, torn = self.gate.take(tracked.carried, delivery, items, end, final)
                failure = min((one for one in (failure, torn) if one is not None), key=_release, default=None)
                self._learn(tracked, tracked.carried)
            self._cut_items(tracked, items, failure)
        except Exception as error:
            self._break_off(tracked, Failure(bug(error), *_where(tracked, items)))
        if failure is not None:
            self._break_off(tracked, failure)
        if delivery.conversation.end is not None and tracked.dissector is not None:
            self._over[delivery.conversation.index] = delivery.conversation.end.order

    def _cut_items(self, tracked: Tracked, items: list[Chunk | Hole], failure: Failure | None) -> None:
        if tracked.detector is not None:
            items = self._detect(tracked, items)
            if tracked.detector is not None and failure is not None:
                # No more bytes will come
                items = self._start(tracked, tracked.detector, tracked.detector.finish(), failure.release)
        if tracked.suspicion is not None:
            self._suspect(tracked, tracked.suspicion, items)
        if tracked.dissector is not None and items:
            self._keep_begin(tracked, items)
            tracked.dissector.cut(items)

    def _keep_begin(self, tracked: Tracked, items: list[Chunk | Hole]) -> None:
        """Keep the first bytes of each side, which may tell what they are where they are no frames."""
        if self.diagnoser is None or min(map(len, tracked.begun)) >= BEGIN_KEPT:
            return
        begun = list(tracked.begun)
        for item in items:
            have = len(begun[item.side])
            if isinstance(item, Chunk) and item.position == have < BEGIN_KEPT:
                begun[item.side] += item.data[: BEGIN_KEPT - have]
        tracked.begun = begun[0], begun[1]

    def _emit(self, delivery: Delivery, order: int) -> list[Emitted]:
        """The records of a conversation that were certain before this packet."""
        tracked: Tracked = delivery.conversation.state
        dissector, closed = tracked.dissector, delivery.closed
        emitted: list[Emitted] = []
        if dissector is not None:
            emitted = self._made(tracked, dissector, lambda: dissector.emit_before(order), order)
        if closed is not None and closed < order and not tracked.done:
            emitted += self._close(tracked, closed)
        return emitted

    def _made(self, tracked: Tracked, dissector: Dissector, make: Callable[[], list[Emitted]], order: int) -> list[Emitted]:
        """What `make` gives, paired; the end of the conversation if an exception came before the packet `order`."""
        emitted: list[Emitted] = []
        try:
            emitted = make()
            if emitted:
                emitted = self._pair(tracked, dissector, emitted)
        except Exception as error:
            if dissector.failure is None:
                dissector.failure = Failure(bug(error), *_where(tracked, ()))
            dissector.drop_made(emitted)
            emitted = []
        if dissector.failure is not None and dissector.failure.release < order:
            emitted += self._fail(tracked, dissector)
        return emitted

    # What an exception costs

    def _break_off(self, tracked: Tracked, failure: Failure) -> None:
        """An exception came: let the dissector end with what was certain before, or look for no protocol any more."""
        dissector = tracked.dissector
        if dissector is not None:
            dissector.break_off(failure)
        elif tracked.failure is None:
            if tracked.verdict is None:
                tracked.verdict = Verdict(None, 0.0, ("an internal error came as it was looked for",))
            if tracked.verdict.protocol is not None:
                tracked.missed = [(0, 0, END), (1, 0, END)]
            tracked.detector = None
            self._detecting.pop(tracked.tcp.index, None)
            self._tell(tracked, failure)

    def _give_up(self, tracked: Tracked, what: str, release: int) -> list[Emitted]:
        """An exception came in what ends a conversation, or its requests."""
        dissector = tracked.dissector
        assert dissector is not None
        last = tracked.tcp.last
        dissector.failure = dissector.failure or Failure(what, release, last[1], last[2])
        return self._fail(tracked, dissector)

    def _fail(self, tracked: Tracked, dissector: Dissector) -> list[Emitted]:
        """End the dissection of a conversation whose dissector has failed, and with it the requests that are open."""
        pairer, failure = tracked.pairer, dissector.failure
        assert pairer is not None and failure is not None
        tracked.dissector = tracked.pairer = None
        tracked.client, tracked.step = dissector.client, pairer.handshake.step
        tracked.missed = dissector.missed()
        tracked.limit_hits += dissector.limit_hits + pairer.limit_hits
        self._paired.pop(tracked.tcp.index, None)
        self._tell(tracked, failure)
        try:
            ended = pairer.fail(failure.release, dissector.untold)
        except Exception as error:
            bug(error)
            return []
        tracked.open = pairer.left
        tracked.tally.unanswered += len(ended)
        self.counters.unanswered += len(ended)
        return ended

    def _tell(self, tracked: Tracked, failure: Failure) -> None:
        place = "" if failure.number is None else f", packet {failure.number}{f' of file {failure.file}' if failure.file else ''}"
        # Where in the code depends on how much was read at once
        tracked.failure = f"{failure.what.partition(' ')[0]}{place}"
        self._report(self._about(tracked, failure, "what follows in it is skipped"))

    def _gaps(self, tracked: Tracked, release: int) -> list[Emitted]:
        """What was not dissected of a conversation that has ended."""
        emitted: list[Emitted] = []
        missed: list[list[tuple[int, int]]] = [[], []]
        reach = tracked.carried.reach() or tuple(one.stream for one in tracked.tcp.sides)
        for side, start, end in tracked.missed:
            missed[side].append((start, min(end, reach[side])))
        tallies = (tracked.tally, self.counters)
        order, _, _, time_ns = tracked.tcp.last
        for side, ranges in enumerate(missed):
            source, target = tracked.tcp.endpoints[side], tracked.tcp.endpoints[1 - side]
            for start, end in _united(ranges):
                sender = SENDERS[tracked.client][side]
                assert tracked.verdict is not None and tracked.verdict.protocol is not None
                head = (1, 0, rfc3339(time_ns), time_ns, tracked.tcp.index, source, target, sender, tracked.verdict.protocol)
                gap = Gap(*head, start, end - start, "skipped", False)
                for tally in tallies:
                    tally.records += 1
                count_gap(tallies, gap)
                emitted.append((release, order, side ^ (tracked.client or 0), start, gap, GAP, None, time_ns))  # type: ignore[arg-type]
        tracked.missed = ()
        emitted.sort(key=itemgetter(0, 1, 2, 3))
        return emitted

    def _report(self, report: Report) -> None:
        self.counters.failures += 1
        self.reports.append(report)

    def _report_once(self, report: Report) -> None:
        """For what is done again and again."""
        if report not in self._told:
            self._told.add(report)
            self._report(report)

    def _report_detours(self) -> None:
        """Tell of exceptions that cost nothing, unless they cost the conversation its dissection by now."""
        tcp = self._tcp
        for failure in tcp.lost:
            self._report(Report(failure.what, "this packet was passed over", failure.number, failure.file))
        for what, conversation in tcp.detours:
            tracked: Tracked | None = None if conversation is None else conversation.state
            if tracked is None:
                self._report_once(Report(what, "nothing is lost, the long way was taken"))
            elif tracked.detour is None and tracked.failure is None:
                tracked.detour = what
                self._report(self._about(tracked, Failure(what, 0), "nothing is lost, the long way was taken"))
        tcp.lost.clear()
        tcp.detours.clear()

    def _about(self, tracked: Tracked, failure: Failure, cost: str) -> Report:
        one, two = tracked.tcp.endpoints if tracked.client != 1 else tracked.tcp.endpoints[::-1]
        protocol = tracked.verdict.protocol if tracked.verdict is not None else None
        between = f"{one} {'-' if tracked.client is None else '>'} {two}{f' {protocol}' if protocol else ''}"
        return Report(failure.what, cost, failure.number, failure.file, tracked.tcp.index, between)

    # Which protocol

    def _learn(self, tracked: Tracked, carried: Carried) -> None:
        """Note what TLS tells of a conversation, whatever is said in it."""
        if tracked.client is None:
            tracked.client = carried.client
        if carried.unread is not None:
            tracked.verdict = carried.unread
        elif carried.read and tracked.dissector is not None:
            tracked.verdict = tracked.dissector.context.verdict
        elif carried.read and tracked.detector is not None:
            tracked.verdict = None
            tracked.detector.syn = tracked.whole = tracked.whole or carried.whole

    def _begin(self, tracked: Tracked) -> None:
        conversation = tracked.tcp
        verdict = forced(conversation.ports, conversation.syn, self.options)
        if verdict is not None:
            self._decide(tracked, verdict)
            if verdict.protocol is not None and not self.options.show_secrets:
                tracked.suspicion = Suspicion(verdict.protocol, conversation.ports, conversation.syn)
        else:
            tracked.detector = Detector(conversation.ports, conversation.syn, self.options.undecided_limit)
            self._detecting[conversation.index] = tracked

    def _suspect(self, tracked: Tracked, suspicion: Suspicion, items: list[Chunk | Hole]) -> None:
        """Look whether a conversation speaks what was asked for."""
        protocol, done = suspicion.add(items)
        if protocol is not None:
            assert tracked.facts is not None
            tracked.facts["looks_like"] = f"a login of {protocol}"
            if self.suspected is None:
                self.suspected = _row(0, tracked)
        if done:
            tracked.suspicion = None

    def _detect(self, tracked: Tracked, items: list[Chunk | Hole]) -> list[Chunk | Hole]:
        """The bytes to dissect once the protocol is known, none of them certain before the packet that told it."""
        detector = tracked.detector
        assert detector is not None
        found = detector.add(items)
        if found is None:
            return []
        return self._start(tracked, detector, *found)

    def _start(self, tracked: Tracked, detector: Detector, verdict: Verdict, release: int) -> list[Chunk | Hole]:
        self._decide(tracked, verdict)
        tracked.detector = None
        self._detecting.pop(tracked.tcp.index, None)
        tracked.limit_hits += detector.limited
        if tracked.dissector is None:
            return []
        self._keep_begin(tracked, detector.items)
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
            tracked.whole,
            verdict,
            self.options,
            self.counters,
        )
        dissector = protocol.dissector(context)
        options = self.options
        pairer = Pairer(
            dissector.reuse,
            options.open_limit,
            options.exchanges,
            self._links,
            protocol.paired,
            tracked.whole,
            protocol.unanswered,
            (dissector.tally, self.counters),
            self._large,
            self._pairs,
            Handshake(protocol.behaviour, tracked.whole),
        )
        if dissector.pairs_at_once():
            dissector.pairer = pairer
        tracked.dissector, tracked.pairer = dissector, pairer
        tracked.facts, tracked.tally = dissector.facts, dissector.tally
        self._paired[conversation.index] = tracked
        if self.diagnoser is not None:
            self.diagnoser.begin(conversation.index, verdict.protocol, tracked.whole)

    def _close(self, tracked: Tracked, release: int) -> list[Emitted]:
        emitted: list[Emitted] = []
        tracked.done = True
        if tracked.detector is not None:
            detector, items = tracked.detector, []
            try:
                items = self._start(tracked, detector, detector.finish(), release)
            except Exception as error:
                self._break_off(tracked, Failure(bug(error), *_where(tracked, ())))
            begun = tracked.dissector
            if begun is not None:
                emitted += self._made(tracked, begun, lambda: begun.feed(items), END + 1)
        dissector, pairer, conversation = tracked.dissector, tracked.pairer, tracked.tcp
        if dissector is not None:
            dissector.over = conversation.over
            emitted += self._made(tracked, dissector, lambda: dissector.close(release, conversation.last), END + 1)
        if tracked.dissector is not None and pairer is not None:
            reason = "capture ended" if conversation.open else UNANSWERED.get(conversation.ended, "closed")
            try:
                ended = pairer.close(release, reason, conversation.last[3], conversation.last[0])
            except Exception as error:
                emitted += self._give_up(tracked, bug(error), release)
            else:
                unanswered = sum(isinstance(one[4], Exchange) and one[4].outcome == "unanswered" for one in ended)
                tracked.tally.unanswered += unanswered
                self.counters.unanswered += unanswered
                emitted += ended
                tracked.open = pairer.left
                tracked.step, tracked.midway = pairer.handshake.step, pairer.handshake.midway
                tracked.client = tracked.dissector.client
                tracked.limit_hits += tracked.dissector.limit_hits + pairer.limit_hits
                tracked.dissector = tracked.pairer = None
                self._paired.pop(conversation.index, None)
        tracked.limit_hits += tracked.carried.limit_hits
        tracked.verdict = tracked.carried.unread or tracked.verdict
        if tracked.missed and tracked.verdict is not None and tracked.verdict.protocol is not None:
            emitted += self._gaps(tracked, release)
        return emitted + self._ended(tracked, release)

    def _ending(self, tracked: Tracked, release: int) -> list[Emitted]:
        """How a conversation ended, or a connection to a known port that never carried a byte, if it did."""
        tcp, end, client = tracked.tcp, tracked.tcp.end, tracked.client
        protocol = tracked.verdict.protocol if tracked.verdict is not None else None
        empty = not any(tcp.stream_bytes)
        if tracked.told or (not (tcp.syn and tcp.ports[1] in self._ports) if empty else protocol is None):
            return []
        side, how, time_ns = client or 0, "forgotten", tcp.last[3]
        if end is not None:
            side, how, time_ns = end.side, end.how if empty or end.how != "refused" else "RST", end.time_ns
        elif empty and not tcp.packets[1] and tcp.ended != REUSED:
            how = "no answer"
        elif tcp.ended not in UNANSWERED:
            return []
        source, target = tcp.endpoints[side], tcp.endpoints[1 - side]
        head = (1, 0, rfc3339(time_ns), time_ns, tcp.index, source, target, SENDERS[client][side], None if empty else protocol)
        if tracked.midway and tracked.step is not None and how in ("FIN", "RST") and SENDERS[client][side] == "server":
            self.counters.broken_off += 1
            self.broken_off[tcp.index] = tracked.step
        ending = Ending(*head, how, None, tracked.open, tracked.tally.refused)  # type: ignore[arg-type]
        return [(release, tcp.last[0], BEHIND + 1, 0, ending, NONE, None, time_ns)]  # type: ignore[list-item]

    def _ended(self, tracked: Tracked, release: int) -> list[Emitted]:
        """The same, and where findings are asked for, all else that is known at the end."""
        emitted = self._ending(tracked, release)
        if self.diagnoser is not None and not tracked.told:
            order, time_ns = tracked.tcp.last[0], tracked.tcp.last[3]
            emitted.append((release, order, BEHIND + 2, 0, self._closed(tracked), NONE, None, time_ns))  # type: ignore[arg-type]
        return emitted

    def _closed(self, tracked: Tracked) -> Any:
        """The end of a conversation, for the diagnosis."""
        from dissect.diagnose.ends import closed_of
        from dissect.tls.troubles import troubles

        told = tracked.carried.told()
        verdict = tracked.verdict or Verdict(None, 0.0, ("not enough bytes yet",))
        stopped = self._windows.of(tracked.tcp)
        return closed_of(
            tracked.tcp,
            verdict,
            tracked.client,
            self._expected(tracked.tcp.ports),
            told,
            troubles(told) if told else {},
            stopped,
            tracked.failure,
            tracked.facts or {},
            tracked.begun,
            (neighbour(tracked.begun[0], tracked.whole), neighbour(tracked.begun[1], tracked.whole)),
        )

    def _expected(self, ports: tuple[int, int]) -> str | None:
        """The protocol that these ports are asked or known to be for."""
        for port, name, _ in self.options.decode_as:
            if port in ports:
                return name
        return next((protocol.name for protocol in PROTOCOLS if set(protocol.ports) & set(ports)), None)

    def _pair(self, tracked: Tracked, dissector: Dissector, emitted: list[Emitted]) -> list[Emitted]:
        pairer = tracked.pairer
        assert pairer is not None
        if dissector.pairer is pairer:
            return emitted
        out: list[Emitted] = []
        try:
            pairer.run(emitted, out)
        except Exception as error:
            what = bug(error)
            dissector.fail_made(what, emitted, out, pairer)
        return out

    def _hand_out(self, emitted: list[Emitted]) -> list[Record]:
        every: list[Any] = self._timed(emitted)
        records: list[Record] = every
        if self.diagnoser is not None:
            # The ends of conversations are told to it alone, and have no number
            records = [one for one in every if type(one) is not Closed]
        for number, record in enumerate(records, self._number + 1):
            record.number = number
        self._number += len(records)
        endings: dict[int, Ending] | None = None
        for record, request, response in self._links:
            record.request = request.number
            if response is not None:
                record.response = response.number  # type: ignore[union-attr]
            elif type(record) is Exchange:
                if endings is None:
                    endings = {one.conversation: one for one in records if type(one) is Ending}
                self.asked[record.number] = request, endings.get(record.conversation)
        self._links.clear()
        for pairer, one in self._large:
            # What was handed on need not be remembered whole
            if one[4].number:
                self._opened += one[4].size // KEY_BYTES
                try:
                    pairer.lighten(one)
                except Exception as error:
                    self._report_once(Report(bug(error), "more is remembered than is needed"))
        self._large.clear()
        if self.diagnoser is not None:
            records = self.diagnoser.take(every)
            self.reports += self.diagnoser.reports
            self.diagnoser.reports.clear()
        return records

    def _timed(self, emitted: list[Emitted]) -> list[Record]:
        """These records, the endings among them with how long no message had come."""
        latest, over = self._latest, self._over
        records: list[Record] = [one[4] for one in emitted]
        if not over and Ending not in set(map(type, records)):
            for record in records:
                # Messages that waited for others are older than these
                if type(record) is Message and record.time_ns > latest.get(record.conversation, 0):
                    latest[record.conversation] = record.time_ns
            return records
        for one in emitted:
            record = one[4]
            if type(record) is Message:
                if one[1] <= over.get(record.conversation, END) and record.time_ns > latest.get(record.conversation, 0):
                    latest[record.conversation] = record.time_ns
            elif type(record) is Ending:
                last = latest.pop(record.conversation, None)
                over.pop(record.conversation, None)
                record.quiet_ns = None if last is None else record.time_ns - last
                # Here, as rows of what carried nothing are made by ending it once more
                self.counters.by_server += record.protocol is not None and record.sender == "server"
                self.counters.unconnected += record.how in ("refused", "no answer")
        return records

    def _relieve(self, release: int, time_ns: int) -> list[Emitted]:
        """Keep to the totals over all conversations; the records that this makes certain with the packet `release`, at this time."""
        options = self.options
        emitted: list[Emitted] = []
        undecided = sum([tracked.detector.cost for tracked in self._detecting.values() if tracked.detector is not None])
        if undecided > options.undecided_total:
            for _, tracked in sorted(self._detecting.items(), key=itemgetter(0)):
                if tracked.detector is not None and tracked.detector.cost:
                    undecided -= tracked.detector.cost
                    emitted += self._decide_now(tracked, tracked.detector, release)
                if undecided <= KEPT_OF_TOTAL * options.undecided_total:
                    break
        self._opened += FEW_KEYS * (self._number - self._counted)
        self._counted = self._number
        if self._opened > options.open_total:
            paired = [(tracked, tracked.pairer) for tracked in self._paired.values() if tracked.pairer is not None]
            self._opened = sum([pairer.weight() for _, pairer in paired])
            while self._opened > options.open_total:
                orders = sorted([order for _, pairer in paired for order in pairer.orders()])
                until = orders[int(len(orders) * (1 - KEPT_OF_TOTAL * options.open_total / self._opened))]
                for tracked, pairer in paired:
                    try:
                        emitted += pairer.drop(until, release, time_ns)
                    except Exception as error:
                        emitted += self._give_up(tracked, bug(error), release)
                paired = [(tracked, pairer) for tracked, pairer in paired if tracked.pairer is pairer]
                self._opened = sum([pairer.weight() for _, pairer in paired])
        emitted.sort(key=_place)
        return emitted

    def _decide_now(self, tracked: Tracked, detector: Detector, release: int) -> list[Emitted]:
        """Say what an undecided conversation speaks though more bytes may tell; the records of those that came."""
        items: list[Chunk | Hole] = []
        detector.limited = True
        try:
            items = self._start(tracked, detector, detector.finish(), release)
        except Exception as error:
            self._break_off(tracked, Failure(bug(error), *_where(tracked, ())))
        dissector = tracked.dissector
        return [] if dissector is None else self._made(tracked, dissector, lambda: dissector.feed(items), release + 1)


def relate(rows: list[ConversationRow]) -> list[str]:
    """Adds to conversations what others tell: an Iggy server's layout, a Seastar stream's parent. Returns what to report of exceptions."""
    failed = []
    for protocol in PROTOCOLS:
        if protocol.relate is not None:
            try:
                protocol.relate([row for row in rows if row.protocol == protocol.name])
            except Exception as error:
                failed.append(bug(error))
    return failed


def _joined(items: list[Chunk | Hole | Stretch], failure: Failure | None) -> tuple[list[Chunk | Hole], Failure | None]:
    """What was delivered with all bytes joined, up to the first exception; there may be one already."""
    found: list[Chunk | Hole] = []
    broken = set()
    for item in items:
        if item.side in broken:
            continue
        try:
            found.append(item.chunk() if isinstance(item, Stretch) else item)
        except Exception as error:
            assert isinstance(item, Stretch)
            broken.add(item.side)
            some, torn = _joined_singly(item, bug(error))
            found += some
            if failure is None or torn.release < failure.release:
                failure = torn
    return found if failure is None else [part for item in found if (part := until(item, failure.release)) is not None], failure


def _joined_singly(stretch: Stretch, what: str) -> tuple[list[Chunk], Failure]:
    """What an exception came with as it was joined, segment by segment up to the one that raises it."""
    found: list[Chunk] = []
    for row in stretch.rows():
        try:
            found.append(row.chunk())
        except Exception as error:
            return found, Failure(bug(error), *row.packet())
    return found, Failure(what, *row.packet())


def _where(tracked: Tracked, items: Iterable[Chunk | Hole]) -> tuple[int, int, int]:
    """When an exception came, as order, number and file of a packet: that with which it is looked for a protocol, or, where no single one
    can be blamed, the first of these, or else the conversation's last."""
    if tracked.detector is not None:
        at = tracked.detector.at
        for item in tracked.detector.items:
            if isinstance(item, Chunk) and at in item.releases:
                index = item.releases.index(at)
                return at, item.numbers[index], item.files[index]
    first = [
        (item.release, item.number, item.file) if isinstance(item, Hole) else (item.releases[0], item.numbers[0], item.files[0])
        for item in items
    ]
    return min(first, default=tracked.tcp.last[:3])


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in ranges that neither touch each other nor are empty."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def _release(failure: Failure) -> int:
    return failure.release


PLACE = itemgetter(0, 1, 2, 3)
"""Where a record stands at the end."""


def _place(one: Emitted) -> tuple[int, int]:
    """Where a record stands among those of other conversations."""
    return one[0], one[4].conversation


def _row(number: int, tracked: Tracked) -> ConversationRow:
    tcp = tracked.tcp
    verdict = tracked.verdict or Verdict(None, 0.0, ("not enough bytes yet",))
    step = tracked.step if tracked.pairer is None else tracked.pairer.handshake.step
    facts = {**(tracked.facts or {}), **({} if step is None else {"handshake": step}), **tracked.carried.row()}
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
        tally.refused,
        tally.unanswered,
        tcp.retransmissions,
        tcp.out_of_order,
        tcp.how(client),
        tracked.limit_hits + tcp.limit_hits,
        tracked.failure,
        facts,
    )
