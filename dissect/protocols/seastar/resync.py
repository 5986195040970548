"""Finding the way back into frames, after a loss or where the beginning was not captured."""

from __future__ import annotations

from typing import NamedTuple

from dissect.protocols.effort import STEP
from dissect.protocols.seastar.framing import (
    FAR,
    LARGE_SEGMENT,
    LIKELY,
    LONGEST_HEADER,
    RULED_OUT,
    SPREAD,
    fit,
    inside,
    likely,
    needed,
    within,
)
from dissect.protocols.seastar.layouts import MAGIC
from dissect.protocols.seastar.negotiation import EXPECTED, Negotiating
from dissect.protocols.seastar.terms import Framing

LATEST = 4
"""In so many segments frames are looked for that begin anywhere."""


class Look(NamedTuple):
    """What is looked at: data[at:end], which ends with the segment of number `segment`, and behind which `missing` bytes are missing."""

    data: bytes
    at: int
    end: int
    segment: int
    missing: int


class Resuming(Negotiating):
    """Where frames begin, and in which framing if that is not known."""

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        one, flow = self.sides[side], self.flows[side]
        if one.greeting == EXPECTED:
            head = data[at : min(end, at + len(MAGIC))]
            if head == MAGIC:
                return True, at
            if head and MAGIC.startswith(head) and not final:
                return False, at
            self._miss(side)
            if one.framing is None:
                self._settle()
        look = Look(data, at, end, flow.segment(flow.base + end - 1), flow.missing if final else 0)
        certain = one.begins is not None and one.begins - flow.base == at and one.framing is None
        place, going = self._from_a_segment(side, look, certain)
        if place is None and one.framing is not None and going and one.inferred is None:
            # Who sends one message after the other begins few of them with a segment
            begin = max(at, flow.starts[max(look.segment - LATEST + 1, 0)] - flow.base)
            place = inside(one.framing, data, begin, end, one.last_id, flow.effort)
        if place is not None:
            one.strict = True
            return True, place
        behind = flow.starts[look.segment - FAR + 2] - flow.base if look.segment >= FAR - 1 else at
        keep = max(at, behind)
        for position in [known for known in one.possible if known < flow.base + keep and not (certain and known == one.begins)]:
            del one.possible[position]
        return False, at if certain else keep

    def _from_a_segment(self, side: int, look: Look, certain: bool) -> tuple[int | None, bool]:
        """The start of a segment from which there are frames, and whether it may be looked on.

        `certain`: that a frame begins at `look.at`, be it in the middle of a segment.
        """
        one, flow = self.sides[side], self.flows[side]
        framing = one.framing
        first = max(0, look.segment - FAR + 1)
        behind = enumerate(flow.starts[first : look.segment + 1], first)
        # (start, segments from there to the end)
        starts = [(start - flow.base, look.segment + 1 - number) for number, start in behind if start - flow.base >= look.at]
        if certain and starts[:1] != [(look.at, look.segment + 1 - first)]:
            starts.insert(0, (look.at, 1))
        candidates = self.candidates(side, self.terms()) if framing is None else (framing,)
        going = flow.effort.spend(8 * STEP + 8 * len(starts))
        for start, segments in starts:
            ruled = [framing] if framing is not None else self._possible(side, candidates, look, start)
            if ruled is None:
                return None, False
            if not ruled:
                continue
            if not going or not (going := flow.effort.spend(2 * STEP)):
                break
            if framing is not None:
                if self._goes_on(side, framing, look, start):
                    return start, True
                continue
            need = 1 if certain and start == look.at else needed(segments, look.end - start)
            left = within([known for known in ruled if known in candidates], look.data, start, look.end, look.missing)
            found, gone = self._guess(side, left, look, start, need, segments)
            if gone and flow.base + start in one.possible:
                one.possible[flow.base + start] = [known for known in ruled if known not in gone]
            if found is not None:
                self._adopt(side, found)
                self._describe()
                self._settle()
                return start, True
        return None, going

    def _possible(self, side: int, candidates: tuple[Framing, ...], look: Look, start: int) -> list[Framing] | None:
        """The framings that the header at `start` leaves possible; None if there is no effort left to look."""
        possible, flow = self.sides[side].possible, self.flows[side]
        ruled = possible.get(flow.base + start)
        if ruled is None:
            if not flow.effort.spend(LIKELY):
                return None
            ruled = likely(candidates, look.data, start, look.end)
            if look.end - start >= LONGEST_HEADER:
                # what is ruled out now is so for every later end
                possible[flow.base + start] = ruled
        return ruled

    def _goes_on(self, side: int, framing: Framing, look: Look, start: int) -> bool:
        """Whether frames from `start` end where the look does."""
        ends = {look.end: 1, look.end + look.missing: 1}
        previous, limit = self.sides[side].last_id, self.options.frame_limit
        effort = self.flows[side].effort
        found = fit(framing, look.data, start, look.end, ends, effort, known=True, previous=previous, missing=look.missing, limit=limit)
        if found is None or found is RULED_OUT:
            return False
        if previous is not None or found.frames > 1 or found.proof:
            return True
        # Without an id to compare with, one frame with a large one is chance, or with a timeout of millions of years.
        return abs(found.first_id) <= SPREAD and bool(likely((framing,), look.data, start, look.end))

    def _guess(
        self, side: int, candidates: list[Framing], look: Look, start: int, need: int, segments: int
    ) -> tuple[Framing | None, list[Framing]]:
        """The framing in which frames from `start` end where the look does, over so many segments, if one is sound enough, and those that
        are ruled out there for good.

        `need`: so many frames make a guess.
        """
        limit, effort = self.options.frame_limit, self.flows[side].effort
        other = self.sides[1 - side].framing
        sure = other is not None or any(one.offer is not None for one in self.sides)
        # The other side asks. One of several small segments may well end where a frame does not.
        answers = other is not None and other.kind == "request"
        spread = segments > 1 and look.end - start < segments * LARGE_SEGMENT
        doubtful: list[Framing] = []
        gone: list[Framing] = []
        guesses: list[tuple[tuple[bool, int], Framing]] = []
        alone = True
        while True:
            for candidate in candidates:
                # One frame will do where these certainly are frames and no other framing fits.
                enough = 1 if answers and candidate.kind == "response" and not spread else need
                ends = {look.end: enough, look.end + look.missing: enough}
                will_do = sure and alone
                found = fit(candidate, look.data, start, look.end, ends, effort, proof_will_do=will_do, missing=look.missing, limit=limit)
                if found is RULED_OUT:
                    gone.append(candidate)
                    continue
                if found is None or (answers and candidate.kind == "response" and not self._asked(1 - side, found.last_id)):
                    continue
                if (found.proof and alone) or (found.frames > 1 and candidate.kind != "stream"):
                    guesses.append((found.doubt, candidate))
                else:
                    doubtful.append(candidate)
            if len(guesses) < 2 or not alone:
                break
            # What proves one framing may prove another too (any frame unpacks): then only more frames tell.
            candidates = [candidate for _, candidate in guesses]
            guesses = []
            alone = False
        if guesses:
            return min(guesses, key=lambda one: one[0])[1], gone
        return doubtful[0] if len(doubtful) == 1 else None, gone

    def _asked(self, side: int, ident: int) -> bool:
        """Whether a response with this msg_id may answer what `side` has asked so far."""
        last = self.sides[side].last_id
        return last is None or abs(ident) <= abs(last)
