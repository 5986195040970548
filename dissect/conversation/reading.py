"""What becomes of the bytes of a conversation: its protocol is told, frames are cut, records made and paired, and it comes to its end.

An exception costs one conversation: what was certain before counts, and the rest of it is a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from dissect.conversation.endings import UNANSWERED, Endings
from dissect.conversation.run import Counters, Outbox, Reports
from dissect.conversation.tracked import Tracked
from dissect.detect import BY_NAME, Detector, Suspicion, forced
from dissect.errors import Failure, bug
from dissect.model import Chunk, ConversationRow, Exchange, Head, Options, StreamGap, Verdict
from dissect.pair import Pairer
from dissect.protocols.base import Dissector
from dissect.protocols.behaviour import Handshake
from dissect.protocols.flow import END
from dissect.protocols.protocol import Context
from dissect.protocols.records import Emitted
from dissect.tcp.conversations import Delivery, Stretch, until
from dissect.tls.gate import Gate

if TYPE_CHECKING:
    from dissect.diagnose.engine import Diagnoser


class Reading:
    """Takes what was delivered of conversations, and gives their records."""

    def __init__(
        self,
        options: Options,
        gate: Gate,
        counters: Counters,
        reports: Reports,
        outbox: Outbox,
        endings: Endings,
        diagnoser: Diagnoser | None,
    ) -> None:
        self.gate = gate
        self.endings = endings
        self.suspected: ConversationRow | None = None
        """The first conversation that was read as it was asked for, but holds a login of another protocol: its fact `looks_like`."""
        self.detecting: dict[int, Tracked] = {}
        """Those whose protocol is not known yet."""
        self.paired: dict[int, Tracked] = {}
        """Those with requests."""
        # A rule may look at what nobody asked for
        self._options = replace(options, wanted=None) if options.findings else options
        self._counters = counters
        self._reports = reports
        self._outbox = outbox
        self._diagnoser = diagnoser

    def cut(self, tracked: Tracked, delivery: Delivery, end: int, final: bool = False) -> None:
        """Let the conversation's dissector, once there is one, cut what was delivered into frames. Packets below `end` have been seen;
        `final`: what has ended does not wait for keys."""
        new = tracked.verdict is None and tracked.detector is None and tracked.failure is None
        if not new and not delivery.items and delivery.failure is None and tracked.carried.stage is None:
            return
        items, failure = _joined(delivery.items, delivery.failure)
        try:
            if new:
                self.begin(tracked)
            if not tracked.carried.plain:
                items, torn = self.gate.take(tracked.carried, delivery, items, end, final)
                failure = min((one for one in (failure, torn) if one is not None), key=attrgetter("release"), default=None)
                tracked.learn()
            self._cut(tracked, items, failure)
        except Exception as error:
            self._break_off(tracked, Failure(bug(error), *tracked.where(items)))
        if failure is not None:
            self._break_off(tracked, failure)
        if delivery.conversation.end is not None and tracked.dissector is not None:
            self._outbox.over[delivery.conversation.index] = delivery.conversation.end.order

    def _cut(self, tracked: Tracked, items: list[Chunk | StreamGap], failure: Failure | None) -> None:
        detector = tracked.detector
        if detector is not None:
            # None of the bytes to dissect is certain before the packet that told the protocol
            found = detector.add(items)
            if found is None and failure is not None:
                # No more bytes will come
                found = detector.finish(), failure.release
            items = [] if found is None else self._start(tracked, detector, *found)
        if tracked.suspicion is not None:
            self._suspect(tracked, tracked.suspicion, items)
        if tracked.dissector is not None and items:
            if self._diagnoser is not None:
                tracked.keep_begin(items)
            tracked.dissector.cut(items)

    def emit(self, tracked: Tracked, closed: int | None, order: int) -> list[Emitted]:
        """The records that were certain before this packet; `closed`: the one that ended the conversation."""
        dissector = tracked.dissector
        emitted: list[Emitted] = []
        if dissector is not None:
            emitted = self._made(tracked, dissector, lambda: dissector.emit_before(order), order)
        if closed is not None and closed < order and not tracked.done:
            emitted += self.close(tracked, closed)
        return emitted

    def close(self, tracked: Tracked, release: int) -> list[Emitted]:
        """What a conversation ends with, which the packet `release` tells."""
        tracked.done = True
        emitted = [] if tracked.detector is None else self._decided(tracked, tracked.detector, release, END + 1)
        dissector, pairer, conversation = tracked.dissector, tracked.pairer, tracked.tcp
        if dissector is not None:
            dissector.over = conversation.over
            emitted += self._made(tracked, dissector, lambda: dissector.close(release, conversation.last), END + 1)
        if tracked.dissector is not None and pairer is not None:
            reason = "capture ended" if conversation.open else UNANSWERED.get(conversation.ended, "closed")
            try:
                ended = pairer.close(release, reason, conversation.last[3], conversation.last[0])
            except Exception as error:
                emitted += self.give_up(tracked, bug(error), release)
            else:
                self._settle(tracked, sum(isinstance(one.record, Exchange) and one.record.outcome == "unanswered" for one in ended))
                emitted += ended
        tracked.limit_hits += tracked.carried.limit_hits
        tracked.verdict = tracked.carried.unread or tracked.verdict
        return emitted + tracked.gaps(release, self._counters) + self.endings.of(tracked, release)

    def decide_now(self, tracked: Tracked, detector: Detector, release: int) -> list[Emitted]:
        """Say what an undecided conversation speaks though more bytes may tell; the records of those that came."""
        detector.limited = True
        return self._decided(tracked, detector, release, release + 1)

    def _decided(self, tracked: Tracked, detector: Detector, release: int, order: int) -> list[Emitted]:
        """The records of the bytes that came, though more of them may tell another protocol."""
        items: list[Chunk | StreamGap] = []
        try:
            items = self._start(tracked, detector, detector.finish(), release)
        except Exception as error:
            self._break_off(tracked, Failure(bug(error), *tracked.where()))
        dissector = tracked.dissector
        return [] if dissector is None else self._made(tracked, dissector, lambda: dissector.feed(items), order)

    def _made(self, tracked: Tracked, dissector: Dissector, make: Callable[[], list[Emitted]], order: int) -> list[Emitted]:
        """What `make` gives, paired; the end of the conversation if an exception came before the packet `order`."""
        emitted: list[Emitted] = []
        try:
            emitted = make()
            if emitted and dissector.pairer is None:
                emitted = self._pair(tracked, dissector, emitted)
        except Exception as error:
            if dissector.failure is None:
                dissector.failure = Failure(bug(error), *tracked.where())
            dissector.drop_made(emitted)
            emitted = []
        if dissector.failure is not None and dissector.failure.release < order:
            emitted += self.fail(tracked, dissector)
        return emitted

    def _pair(self, tracked: Tracked, dissector: Dissector, emitted: list[Emitted]) -> list[Emitted]:
        pairer = tracked.pairer
        assert pairer is not None
        out: list[Emitted] = []
        try:
            pairer.run(emitted, out)
        except Exception as error:
            dissector.fail_made(bug(error), emitted, out, pairer)
        return out

    # What an exception costs

    def give_up(self, tracked: Tracked, what: str, release: int) -> list[Emitted]:
        """An exception came in what ends a conversation, or its requests."""
        dissector = tracked.dissector
        assert dissector is not None
        last = tracked.tcp.last
        dissector.failure = dissector.failure or Failure(what, release, last[1], last[2])
        return self.fail(tracked, dissector)

    def fail(self, tracked: Tracked, dissector: Dissector) -> list[Emitted]:
        """End the dissection of a conversation whose dissector has failed, and with it the requests that are open."""
        pairer, failure = tracked.pairer, dissector.failure
        assert pairer is not None and failure is not None
        tracked.missed = dissector.missed()
        ended: list[Emitted] = []
        try:
            ended = pairer.fail(failure.release, dissector.untold)
        except Exception as error:
            bug(error)
        self._settle(tracked, len(ended))
        self._tell(tracked, failure)
        return ended

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
            self.detecting.pop(tracked.tcp.index, None)
            self._tell(tracked, failure)

    def _tell(self, tracked: Tracked, failure: Failure) -> None:
        place = "" if failure.number is None else f", packet {failure.number}{f' of file {failure.file}' if failure.file else ''}"
        # Where in the code depends on how much was read at once
        tracked.failure = f"{failure.what.partition(' ')[0]}{place}"
        self._reports.add(tracked.report(failure, "what follows in it is skipped"))

    def _settle(self, tracked: Tracked, unanswered: int) -> None:
        tracked.tally.unanswered += unanswered
        self._counters.unanswered += unanswered
        tracked.settle()
        self.paired.pop(tracked.tcp.index, None)

    # Which protocol

    def begin(self, tracked: Tracked) -> None:
        """The first bytes, or the end, of a conversation."""
        conversation = tracked.tcp
        verdict = forced(conversation.ports, conversation.syn, self._options)
        if verdict is not None:
            self._decide(tracked, verdict)
            if verdict.protocol is not None and not self._options.show_secrets:
                tracked.suspicion = Suspicion(verdict.protocol, conversation.ports, conversation.syn)
        else:
            tracked.detector = Detector(conversation.ports, conversation.syn, self._options.undecided_limit)
            self.detecting[conversation.index] = tracked

    def _suspect(self, tracked: Tracked, suspicion: Suspicion, items: list[Chunk | StreamGap]) -> None:
        """Look whether a conversation speaks what was asked for."""
        protocol, done = suspicion.add(items)
        if protocol is not None:
            assert tracked.facts is not None
            tracked.facts["looks_like"] = f"a login of {protocol}"
            if self.suspected is None:
                self.suspected = tracked.row(0)
        if done:
            tracked.suspicion = None

    def _start(self, tracked: Tracked, detector: Detector, verdict: Verdict, release: int) -> list[Chunk | StreamGap]:
        self._decide(tracked, verdict)
        tracked.detector = None
        self.detecting.pop(tracked.tcp.index, None)
        tracked.limit_hits += detector.limited
        if tracked.dissector is None:
            return []
        if self._diagnoser is not None:
            tracked.keep_begin(detector.items)
        for item in detector.items:
            if isinstance(item, StreamGap):
                item.release = max(item.release, release)
            elif item.releases and item.releases[0] < release:
                item.releases = [max(one, release) for one in item.releases]
        return detector.items

    def _decide(self, tracked: Tracked, verdict: Verdict) -> None:
        tracked.verdict = verdict
        if verdict.protocol is None:
            return
        conversation, options, outbox = tracked.tcp, self._options, self._outbox
        if tracked.client is None:
            tracked.client = verdict.client
        protocol = BY_NAME[verdict.protocol]
        if options.wanted is not None and not options.wanted(Head(verdict.protocol, conversation.index, *conversation.endpoints)):
            options = replace(options, bodies=False, detail=False)
        context = Context(
            conversation.index,
            conversation.endpoints,
            conversation.ports,
            tracked.client,
            tracked.whole,
            verdict,
            options,
            self._counters,
        )
        dissector = protocol.dissector(context)
        pairer = Pairer(
            dissector.reuse,
            options.open_limit,
            options.exchanges,
            outbox.links,
            protocol.paired,
            tracked.whole,
            protocol.unanswered,
            (dissector.tally, self._counters),
            outbox.large,
            outbox.pairs,
            Handshake(protocol.behaviour, tracked.whole),
        )
        if dissector.pairs_at_once():
            dissector.pairer = pairer
        tracked.dissector, tracked.pairer = dissector, pairer
        tracked.facts, tracked.tally = dissector.facts, dissector.tally
        self.paired[conversation.index] = tracked
        if self._diagnoser is not None:
            self._diagnoser.begin(conversation.index, verdict.protocol, tracked.whole)


def _joined(items: list[Chunk | StreamGap | Stretch], failure: Failure | None) -> tuple[list[Chunk | StreamGap], Failure | None]:
    """What was delivered with all bytes joined, up to the first exception; there may be one already."""
    found: list[Chunk | StreamGap] = []
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
