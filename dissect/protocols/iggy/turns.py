"""Apache Iggy: when the turn of each frame comes, as some wait: for bytes of the other side, or for the layout to be told."""

from __future__ import annotations

from collections import deque

from dissect.errors import Failure, bug
from dissect.protocols.flow import END, Mark, Range
from dissect.protocols.iggy import frames
from dissect.protocols.iggy.candidates import WEIGHED_SIZE, Given, reading_of, unlike
from dissect.protocols.iggy.frames import HEADER
from dissect.protocols.iggy.framing import Framing
from dissect.protocols.iggy.waiting import UNSURE, Waiting
from dissect.protocols.protocol import Context
from dissect.protocols.records import Cut, Emitted, is_broken, range_of

HELD_FRAMES, HELD_BYTES = 256, 1 << 20
"""So much of a conversation waits for its layout; then it is decoded with the likeliest one, and says so."""

EARLY_FRAMES = 64
"""So many responses wait for a request that the capture shows later; then requests are not waited for any more."""


class Failed(Exception):
    """Raised where a frame failed whose `failure` is known, so that nothing else is looked at."""


class Turns(Framing):
    """Hands on the frames of both sides, each when it is certain what it answers and how it is read."""

    DERIVED = ("made", "at")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.waiting = Waiting(self.layouts, self.client or 0, context.syn)
        self.made: list[Emitted] = []
        """The records that `emit` has made so far."""
        self.at: Cut | None = None
        """The frame that is looked at."""
        self.pending: dict[tuple[int, int], int] = {}
        """Frames that wait, whatever for: their ends by side and position."""
        self.held: list[tuple[Cut, Given]] = []
        """What waits for the layout to be told."""
        self.held_bytes = 0
        self.assumed = False
        """Whether nothing waits for that any more."""
        self.early: list[Cut] = []
        """Responses that wait for a request that the capture shows later."""
        self.patient = True
        self.doubted: deque[Cut] = deque()
        """What the server sent behind a gap: the client may have lost a request as well, which shows with its next bytes only."""
        self.doubted_bytes = 0
        self.hasty = False
        """Whether more came than may wait."""
        self.given: Given | None = None
        """What is known of the frame that is decoded next, and whether the layouts differ about it."""
        self.differ = False

    def lost(self, side: int) -> None:
        self.waiting.trust.lose()

    def emit(self, cuts: list[Cut]) -> list[Emitted]:
        made = self.made = []
        at, count = 0, len(cuts)
        try:
            while at < count and self.failure is None:
                # Whoever is answered, requests stay what they are
                if not self.early and not self.doubted and not self.waiting.trust.believes:
                    stop = self._plain_until(cuts, at)
                    if stop > at:
                        if self.waiting.trust.unsure:
                            self.hasty = False
                            self.waiting.trust.hear(max(cut.order for cut in cuts[at:stop]))
                        made += super().emit(cuts[at:stop] if stop - at < count else cuts)
                        at = stop
                        continue
                cut = cuts[at]
                at += 1
                if is_broken(cut):
                    made += super().emit([cut])
                    break
                whole = range_of(cut)
                if whole is not None:
                    self.pending[whole[:2]] = whole[2]
                self._emit_one(cut)
        except Exception as error:
            cut = cuts[at - 1]
            self.failure = self.failure or Failure(bug(error), cut.release, cut.number, cut.file)
            if self.at is cut:
                self._save(cut.release)
        if self.failure is not None:
            self.drop(cuts[at:])
        return made

    def _put(self, cut: Cut) -> None:
        """Make the record of a frame."""
        self.made += super().emit([cut])
        if self.failure is not None:
            raise Failed
        self.pending.pop((cut.side, cut.position), None)

    def _save(self, release: int) -> None:
        """Make records of the frames that wait, which all came before the one that failed."""
        failure, self.failure, self.given = self.failure, None, None
        try:
            self._stop_waiting(release)
        except Exception as error:
            self.failure or bug(error)
        self.failure = failure

    def missed(self) -> list[Range]:
        self.unsent += [(side, start, end) for (side, start), end in self.pending.items()]
        return super().missed()

    def close(self, release: int, last: Mark) -> list[Emitted]:
        emitted = super().close(release, last)
        if self.failure is None:
            self.made = emitted
            try:
                self._stop_waiting(release)
            except Exception as error:
                self.failure = self.failure or Failure(bug(error), release, last[1], last[2])
        return emitted

    def _emit_one(self, cut: Cut) -> None:
        side, data, start, end = cut.side, cut.data, cut.start, cut.end
        self.at = cut
        if side != self.client:
            if self.doubted or self._doubts(cut):
                self._doubt(cut)
            else:
                self._emit_answer(cut)
            return
        if data is None and cut.damage[1]:
            self._put(cut)
            return
        self.hasty = False
        if data is None:
            # answers that wait for their requests go on waiting: those behind the gap come now
            self.waiting.trust.lose_asks(cut.order)
            self._stop_doubting(cut.release, cut.order)
            self._put(cut)
            return
        self.layouts.hear_framing(side)
        self._stop_doubting(cut.release, cut.order)
        while self.waiting.trust.unsure and self.early and self.early[0].order < cut.order:
            self._place_early(cut.release)
        self.at = cut
        self._place(cut, self.waiting.ask(data, start, end, cut.order, cut.damage))
        self.waiting.trust.hear(cut.order)
        self._stop_doubting(cut.release)
        # after a loss they go on waiting until every request that was sent before them is here
        while self.early and self.waiting.open and not self.waiting.trust.unsure:
            self._place_early(cut.release)

    def _emit_answer(self, cut: Cut) -> None:
        side, data, start, end = cut.side, cut.data, cut.start, cut.end
        self.at = cut
        if self.hasty:
            # one that is missing may follow any of the requests seen so far
            self.waiting.trust.lose_asks(cut.order)
        if data is None:
            if cut.damage[1]:
                self._put(cut)
                return
            self._give_up_early(cut.release)
            certain = self.waiting.lose_answers(start, cut.order, self.layouts.long[side])
            self._put(cut)
            if certain:
                self.waiting.trust.regain()
            return
        self.layouts.hear_framing(side)
        if self.early and self.waiting.trust.unsure:
            self._give_up_early(cut.release)
            self._emit_answer(cut)
            return
        if not self.waiting.open and self.patient and not self.waiting.trust.unsure and self.waiting.expects(data, start, end):
            self.early.append(cut.alone())
            if len(self.early) > EARLY_FRAMES:
                self.patient = False
                self._give_up_early(cut.release)
            return
        self._place(cut, self.waiting.answer(data, start, end, cut.order, cut.damage))

    def _doubts(self, cut: Cut) -> bool:
        return not self.hasty and self.waiting.trust.doubts(cut.order)

    def _doubt(self, cut: Cut) -> None:
        """Let what the server sent wait for the next bytes of the client."""
        data, start, end = cut.data, cut.start, cut.end
        if data is not None:
            cut = cut.alone()
            self.doubted_bytes += end - start
        self.doubted.append(cut)
        self.hasty = len(self.doubted) > EARLY_FRAMES or self.doubted_bytes > HELD_BYTES
        if self.hasty:
            self._stop_doubting(cut.release)

    def _stop_doubting(self, release: int, before: int = 0) -> None:
        """Go on with what waited for bytes of the client: with what came `before` a packet, or with what there is no doubt about."""
        while self.doubted and (self.doubted[0].order < before if before else not self._doubts(self.doubted[0])):
            cut = self.doubted.popleft()
            self.doubted_bytes -= cut.end if cut.data is not None else 0
            self._emit_answer(cut.later(release))

    def _place_early(self, release: int) -> None:
        """Place the first of the responses that came before their requests."""
        early = self.at = self.early.pop(0)
        self._place(early.later(release), self.waiting.answer(early.data, early.start, early.end, early.order, early.damage))

    def _give_up_early(self, release: int) -> None:
        """Responses whose request does not come."""
        while self.early:
            self._place_early(release)

    def _stop_waiting(self, release: int) -> None:
        """Decode what is held with the likeliest layout."""
        self.waiting.trust.hear(END)
        self._stop_doubting(release)
        self._give_up_early(release)
        self.assumed = True
        self._release(release)

    def _place(self, cut: Cut, given: Given) -> None:
        """Emit one frame, or hold it until its layout is known; with it all that waited for what it tells."""
        differ = False
        data, start, end = cut.data, cut.start, cut.end
        if not self.layouts.settled and self.layouts.long[cut.side] and cut.damage is None:
            possible = frames.header_layouts(data, start, end, cut.side == self.client)
            if self.layouts.keep(cut, given, tuple(layout for layout in self.layouts.candidates if layout in possible)):
                self._release(cut.release)
                self.at = cut
        if not self.layouts.settled:
            tables = self.layouts.by_table(cut.side, data, start, end, given)
            if len(tables) > 1:
                readings = {table: reading_of(table, data, start, end, cut.damage) for table in tables}
                if cut.damage is None and not self._misleads(cut, given) and self.layouts.narrow(cut, given, tables, readings):
                    self._release(cut.release)
                    self.at = cut
                kept = {table: reading for table, reading in readings.items() if tables[table][0] in self.layouts.candidates}
                differ = unlike(kept, data, start, end, cut.damage)
                if not differ and cut.side != self.client and cut.damage is None and end - start <= WEIGHED_SIZE:
                    self.layouts.remember(given.code, data[start:end])
            if not self.assumed and (differ or self._asked_by_held(given)):
                self.held.append((cut.alone(), given))
                self.held_bytes += end - start
                if len(self.held) > HELD_FRAMES or self.held_bytes > HELD_BYTES:
                    self.assumed = True
                    self.facts["undecided"] = "more frames waited for the layout than are kept"
                    self._release(cut.release)
                return
        self.given, self.differ = given, differ
        self._put(cut)

    def _release(self, release: int) -> None:
        """Emit what was held and need not be any more."""
        held, self.held, self.held_bytes = self.held, [], 0
        for cut, given in held:
            self.at = cut
            differ = not self.layouts.settled and self.layouts.differs(cut, given)
            if not self.assumed and (differ or self._asked_by_held(given)):
                self.held.append((cut, given))
                self.held_bytes += cut.end
                continue
            self.given, self.differ = given, differ
            self._put(cut.later(release))

    def _asked_by_held(self, given: Given) -> bool:
        """Whether the request that this answers is held."""
        return given.number is not None and any(given.number == before.number for _, before in self.held)

    def _misleads(self, cut: Cut, given: Given) -> bool:
        """Whether nothing should be told of the layouts from this frame.

        What answers another request tells a wrong layout, and an answer without a body fits nearly anything.
        """
        if cut.side == self.client:
            return False
        bare = cut.end - cut.start <= (HEADER if self.layouts.long[cut.side] else 8)
        return self.layouts.mismatch or UNSURE in given.notes or (self.waiting.trust.believes and bare)

    def _plain_until(self, cuts: list[Cut], at: int) -> int:
        """Where the frames end that wait for nothing, and that nothing waits for."""
        if self.layouts.settled:
            return self.waiting.ordinary(cuts, at)
        return self.waiting.alike(cuts, at, {given.number for _, given in self.held})
