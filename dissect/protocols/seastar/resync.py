"""Finding the way back into frames, after a loss or where the beginning was not captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..buffer import ReceiveBuffer
from ..work_budget import STEP
from .dictionaries import Dictionary
from .frame_chains import (
    FAR,
    LARGE_SEGMENT,
    RULED_OUT,
    SPREAD,
    fit,
    inside,
    likely,
    needed,
    possible,
    rule_out,
    within,
)
from .negotiation_frames import SideTerms
from .terms import SeastarFraming

LATEST = 4
"""Segments in which frames are searched for that begin anywhere."""


class SearchWindow(NamedTuple):
    """The bytes to search: data[at:end], which ends with the segment of number `segment`, and after which `missing` bytes are missing."""

    data: bytes
    at: int
    end: int
    segment: int
    missing: int


FrameStart = tuple[bool, int, SeastarFraming | None]
"""Whether frames begin at a place (else none begins before it), and in the framing that was guessed if it was not known."""


class FrameSearch:
    """Where frames of `one` side begin, and in which framing if that is not known. Of frames longer than `limit` nothing is unpacked,
    and none is believed without its end."""

    def __init__(
        self, one: SideTerms, other: SideTerms, buffer: ReceiveBuffer, limit: int, dictionaries: Sequence[Dictionary] = ()
    ) -> None:
        self.one = one
        self.other = other
        self.buffer = buffer
        self.work_budget = buffer.work_budget
        self.limit = limit
        self.dictionaries = dictionaries

    def find(self, data: bytes, at: int, end: int, final: bool, candidates: tuple[SeastarFraming, ...]) -> FrameStart:
        """Looks for the next frame as `Dissector.resync` must; `candidates`: the framings that the side may have."""
        one, buffer = self.one, self.buffer
        base = buffer.base
        look = SearchWindow(data, at, end, buffer.segment(base + end - 1), buffer.missing if final else 0)
        certain = one.begins is not None and one.begins - base == at and one.framing is None
        found, going = self._from_a_segment(look, certain, candidates)
        if found is None and one.framing is not None and going and one.inferred is None:
            # Who sends one message after the other begins few of them with a segment
            begin = max(at, buffer.starts[max(look.segment - LATEST + 1, 0)] - base)
            place = inside(one.framing, data, begin, end, one.last_id, self.work_budget)
            found = None if place is None else (True, place, None)
        if found is not None:
            return found
        keep = max(at, buffer.starts[look.segment - FAR + 2] - base if look.segment >= FAR - 1 else at)
        for position in [known for known in one.possible if known < base + keep and not (certain and known == one.begins)]:
            del one.possible[position]
        return False, at if certain else keep, None

    def _from_a_segment(self, look: SearchWindow, certain: bool, candidates: tuple[SeastarFraming, ...]) -> tuple[FrameStart | None, bool]:
        """The start of a segment from which there are frames, and whether it may be looked on.

        `certain`: that a frame begins at `look.at`, be it in the middle of a segment.
        """
        one, base = self.one, self.buffer.base
        framing = one.framing
        first = max(0, look.segment - FAR + 1)
        behind = enumerate(self.buffer.starts[first : look.segment + 1], first)
        # (start, segments from there to the end)
        starts = [(start - base, look.segment + 1 - number) for number, start in behind if start - base >= look.at]
        if certain and starts[:1] != [(look.at, look.segment + 1 - first)]:
            starts.insert(0, (look.at, 1))
        going = self.work_budget.spend(8 * STEP + 8 * len(starts))
        for start, segments in starts:
            ruled = [framing] if framing else one.possible.get(base + start)
            if ruled is None:
                ruled = possible(one.possible, base + start, candidates, look.data, start, look.end, self.work_budget)
            if ruled is None:
                return None, False
            if not ruled:
                continue
            if not going or not (going := self.work_budget.spend(2 * STEP)):
                break
            if framing is not None:
                if self._goes_on(framing, look, start):
                    return (True, start, None), True
                continue
            need = 1 if certain and start == look.at else needed(segments, look.end - start)
            left = within([known for known in ruled if known in candidates], look.data, start, look.end, look.missing)
            found, gone = self._guess(left, look, start, need, segments)
            if gone:
                rule_out(one.possible, base + start, gone)
            if found is not None:
                return (True, start, found), True
        return None, going

    def _goes_on(self, framing: SeastarFraming, look: SearchWindow, start: int) -> bool:
        """Whether frames from `start` end where the look does."""
        previous = self.one.last_id
        found = fit(
            framing,
            look.data,
            start,
            look.end,
            {look.end: 1, look.end + look.missing: 1},
            self.work_budget,
            known=True,
            previous=previous,
            missing=look.missing,
            limit=self.limit,
            large=1,
            longest=self.limit,
            dictionaries=self.dictionaries,
        )
        if found is None or found is RULED_OUT:
            return False
        if previous is not None or found.frames > 1 or found.proof:
            return True
        # Without an id to compare with, one frame with a large one is chance, or with a timeout of millions of years.
        return abs(found.first_id) <= SPREAD and bool(likely((framing,), look.data, start, look.end))

    def _guess(
        self, candidates: list[SeastarFraming], look: SearchWindow, start: int, need: int, segments: int
    ) -> tuple[SeastarFraming | None, list[SeastarFraming]]:
        """The framing in which frames from `start` end where the window does, over `segments`, if one is sound enough, and the
        framings that are ruled out there for good.

        `need`: how many frames make a guess.
        """
        other = self.other.framing
        sure = other is not None or self.one.offer is not None or self.other.offer is not None
        # The other side asks. One of several small segments may well end where a frame does not.
        answers = other is not None and other.kind == "request"
        spread = segments > 1 and look.end - start < segments * LARGE_SEGMENT
        doubtful: list[SeastarFraming] = []
        gone: list[SeastarFraming] = []
        for alone in (True, False):
            guesses: list[tuple[tuple[bool, int], SeastarFraming]] = []
            for candidate in candidates:
                # One frame will do where these certainly are frames and no other framing fits.
                enough = 1 if answers and candidate.kind == "response" and not spread else need
                found = fit(
                    candidate,
                    look.data,
                    start,
                    look.end,
                    {look.end: enough, look.end + look.missing: enough},
                    self.work_budget,
                    proof_will_do=sure and alone,
                    missing=look.missing,
                    limit=self.limit,
                    large=int(other is not None),
                    longest=self.limit,
                    dictionaries=self.dictionaries,
                )
                if found is RULED_OUT:
                    gone.append(candidate)
                    continue
                if found is None or (answers and candidate.kind == "response" and not self._asked(found.last_id)):
                    continue
                if (found.proof and alone) or (found.frames > 1 and candidate.kind != "stream"):
                    guesses.append((found.doubt, candidate))
                else:
                    doubtful.append(candidate)
            if len(guesses) < 2:
                break
            # What proves one framing may prove another too (any frame unpacks): then only more frames tell.
            candidates = [candidate for _, candidate in guesses]
        if guesses:
            return min(guesses, key=lambda one: one[0])[1], gone
        return doubtful[0] if len(doubtful) == 1 else None, gone

    def _asked(self, ident: int) -> bool:
        """Whether a response with this msg_id may answer what the other side has asked so far."""
        last = self.other.last_id
        return last is None or abs(ident) <= abs(last)
