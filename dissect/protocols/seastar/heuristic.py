"""Whether a conversation is Seastar RPC: the magic of the negotiation, or frames that chain where that was not captured."""

from __future__ import annotations

from ...model import Verdict
from ..protocol import DetectionView
from . import MAGIC, NAME
from .dictionaries import dictionaries
from .frame_chains import (
    FAR,
    LEAP,
    RULED_OUT,
    Ends,
    Fit,
    fit,
    may_follow,
    possible,
    rule_out,
    within,
)
from .layouts import CONNECTION_ID, STREAM_PARENT
from .terms import GREETING, UNKNOWN, SeastarFraming, read_offer

CHAIN = 4
"""Frames of one side that are certain where the other side is missing."""
ALONE = 8
"""Frames of one side that are certain where the other side fits nothing so far."""
BACKED = 2
"""Frames of one side that are certain where frames of the other side fit."""
NEEDED = 2
"""Frames of one side that make a chain, where the last is too long to be ever examined completely."""
SURE, UNSURE = 0.92, 0.7

SHORTEST = 4
"""Bytes of the shortest frame."""

LATEST = 2 * FAR
"""Segments of each side that are looked at each time, the latest ones."""

GUESSES = UNKNOWN.framings(None)


def heuristic(view: DetectionView) -> Verdict | None:
    for side in (0, 1):
        runs = view.sides[side].runs
        if runs and runs[0][0] == 0 and runs[0][1].startswith(MAGIC):
            return Verdict(NAME, 1.0, ('begins with "SSTARRPC"',), client=_client(view, side))
    if any(side.from_start and side.runs and side.runs[0][0] == 0 for side in view.sides):
        # The first bytes of either side are here, and are another protocol's (or the magic is not yet complete).
        return None
    return _guess(view)


def _client(view: DetectionView, side: int) -> int | None:
    """Who is the client when `side` begins with a negotiation frame."""
    if view.from_start:
        return 0
    data = view.sides[side].runs[0][1]
    if len(data) >= GREETING:
        features = read_offer(data).features
        if STREAM_PARENT in features:
            return side
        if CONNECTION_ID in features:
            return 1 - side
    return None


def _guess(view: DetectionView) -> Verdict | None:
    found = [one for side in (0, 1) if (one := _chain(view, side)) is not None]
    if not found:
        return None
    side, framing, chain = found[0]
    if len(found) == 1 and not chain.proof and chain.frames < ALONE and view.ends():
        # Large frames span more segments than a chain may that stands alone; small ones may be many, if not in so few segments
        backed = _chain(view, 1 - side, BACKED)
        if backed is not None:
            found.append(backed)
        else:
            found = [_chain(view, side, ALONE) or found[0]]
    if len(found) == 2:
        kinds = {framing.kind for _, framing, _ in found}
        if len(kinds) == 1 or len({framing.codec for _, framing, _ in found}) > 1:
            return None
        (number, asking, asked), (_, _, answered) = sorted(found, key=lambda one: one[1].kind)
        if not _may_answer(view, number, asking, asked, answered):
            return None
    else:
        side, framing, chain = found[0]
        silent = not view.sides[1 - side].runs
        few = chain.frames < (2 if chain.proof else CHAIN if silent else ALONE)
        if few and not (silent and framing.kind == "request" and view.ends()):
            return None
    evidence = tuple(
        f"no negotiation, but {one.frames} frames chain as {kind} from the start of a segment to the end of one" for _, kind, one in found
    )
    sure = len(found) == 2 or chain.proof or chain.frames >= CHAIN
    return Verdict(NAME, SURE if sure else UNSURE, evidence, client=side if framing.kind == "request" else 1 - side)


def _may_answer(view: DetectionView, number: int, asking: SeastarFraming, asked: Fit, answered: Fit) -> bool:
    """Whether the first answer may be to one of the requests of this side, behind the first few that chain, as many may have been sent
    ahead; or to one that was lost."""
    lacking = len(view.sides[number].runs) > 1
    while abs(answered.first_id) > abs(asked.last_id) + (LEAP if lacking else asked.frames):
        longer = _chain(view, number, 2 * asked.frames)
        if longer is None or longer[1] != asking:
            return False
        asked = longer[2]
    return True


def _chain(view: DetectionView, number: int, frames: int = 0) -> tuple[int, SeastarFraming, Fit] | None:
    """The side, and the first framing in which enough frames end with a segment; `frames`: how many these are, else the segments tell."""
    side, work_budget = view.sides[number], view.work_budget
    # By the place of a segment start: the framings that its first header leaves possible, whatever follows
    known = view.known.setdefault((NAME, number), {})
    for index, (position, data) in enumerate(side.runs):
        starts = [start - position for start in side.segments if start - position < len(data)] if index == 0 else [0]
        end = len(data)
        first = 0 if len(starts) <= LATEST or view.ends() else len(starts) - LATEST
        work_budget.spend(8 * (len(starts) - first))
        for segment in range(first, len(starts)):
            start = starts[segment]
            if end - start < SHORTEST:
                continue
            framings = known.get(position + start)
            if framings is None:
                framings = possible(known, position + start, GUESSES, data, start, end, work_budget)
            if framings is None:
                return None
            if not framings:
                continue
            ends = Ends(starts, segment, end, frames)
            bound = ends.last
            left = within(framings, data, start, bound)
            large, unpack_with = frames or NEEDED, dictionaries(view.dictionaries)
            tried = [(one, fit(one, data, start, bound, ends, work_budget, large=large, dictionaries=unpack_with)) for one in left]
            found = [
                (framing, one)
                for framing, one in tried
                if one is not None and one is not RULED_OUT and may_follow(framing, data, one.end, end, one.last_id)
            ]
            if found:
                return number, *min(found, key=lambda one: one[1].doubt)
            gone = [framing for framing, one in tried if one is RULED_OUT]
            if gone:
                rule_out(known, position + start, gone)
    return None
