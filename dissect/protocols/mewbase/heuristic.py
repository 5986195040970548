"""How sure it is that a conversation speaks mewbase."""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final

from ...bson import UNREADABLE, read
from ...model import Verdict
from ..protocol import DetectionView
from ..work_budget import STEP
from .framing import FRAME, HEADS, LONGEST_HEAD, NO, ODD_LIMIT, READ, SHORTEST, TYPE, YES, candidates
from .layouts import BY_NAME, CLIENT

SCANNED: Final = 1 << 18
"""Bytes of a conversation without its beginning that are searched for a frame."""

LARGEST: Final = 1 << 28

MONGODB: Final = frozenset((1, 1000, 2001, 2002, 2003, 2004, 2005, 2006, 2007, 2010, 2011, 2012, 2013))
"""Operations of MongoDB's protocol, which has lengths like ours and carries the user's BSON documents."""

_INT32 = Struct("<i").unpack_from

Evidence = tuple[float, str, str | None]
"""Confidence, what it rests on, the frame type."""


def heuristic(view: DetectionView) -> Verdict | None:
    best: Verdict | None = None
    for side, seen in enumerate(view.sides):
        if not seen.runs:
            continue
        evidence = _beginning(view, side)
        if not seen.from_start and (evidence is None or evidence[0] < 0.5):
            evidence = _middle(view, side) or evidence
        if evidence is None or (best is not None and evidence[0] <= best.confidence):
            continue
        confidence, text, name = evidence
        client = None if name is None else side if BY_NAME[name].side == CLIENT else 1 - side
        best = Verdict("mewbase", confidence, (text,), client=client)
    return best


def _beginning(view: DetectionView, side: int) -> Evidence | None:
    """The run as frames from its first byte on; little evidence where it is only a fitting prefix."""
    data, from_start = view.sides[side].runs[0][1], view.sides[side].from_start
    have = len(data)
    if have < 5:
        return None
    size = _INT32(data, 0)[0]
    start = data[4:10]
    if not TYPE.startswith(start) or (start != TYPE and not SHORTEST - 4 <= size <= LARGEST):
        return _other_order(view, side, size)
    if have < 14:
        return 0.3, f"{have} bytes fit the beginning of a frame", None
    length = _INT32(data, 10)[0]
    if not 1 < length <= 64:
        return None
    text = data[14 : 14 + length]
    if len(text) < length:
        fits = any(name.startswith(text) and len(name) + 1 == length for name in map(str.encode, BY_NAME))
        return (0.4, f"{have} bytes fit the beginning of a frame", None) if fits else None
    if text[-1]:
        return None
    name = text[:-1].decode("ascii", "replace")
    if name not in BY_NAME:
        return (0.6, f"frames with the unknown type {name}", None) if name.isprintable() and _first(view, side, size)[0] else None
    rest = data[14 + length : 21 + length]
    if not FRAME.startswith(rest):
        return _other_order(view, side, size)
    if have < 25 + length:
        return 0.7, f"begins with type {name}", name
    inner = _INT32(data, 21 + length)[0]
    if 22 + length + inner - size not in (0, 4):
        return 0.6, f"begins with a {name} frame whose lengths do not agree", name
    text_ = f"{'first frame' if from_start else 'begins with a frame'}: {name}, {size} bytes, both lengths agree"
    return 0.99 if name in ("CONNECT", "RESPONSE") and from_start else 0.95, text_, name


def _first(view: DetectionView, side: int, size: int) -> tuple[bool, str | None]:
    """Whether the first bytes are a document {type, frame} and nothing else, and its type if that is known and it has a frame.

    The document is read once, when it is there.
    """
    key = ("mewbase", "first", side)
    if key in view.known:
        found: tuple[bool, str | None] = view.known[key]
        return found
    data = view.sides[side].runs[0][1]
    if len(data) < size or not view.work_budget.spend(READ * size):
        return False, None
    try:
        document = read(data, 0, size)
    except UNREADABLE:
        document = {}
    name, framed = document.get("type"), type(document.get("frame")) is dict
    known = name if type(name) is str and name in BY_NAME and framed else None
    view.known[key] = found = (framed and document.keys() == {"type", "frame"}, known)
    return found


def _other_order(view: DetectionView, side: int, size: int) -> Evidence | None:
    """A foreign program may write the fields of a frame in another order, or others beside them."""
    if not 5 <= size <= ODD_LIMIT:
        return None
    _, name = _first(view, side, size)
    return None if name is None else (0.95, f"begins with a document that has the type {name} and a frame", name)


def _middle(view: DetectionView, side: int) -> Evidence | None:
    """The first frame of a run that begins somewhere: its head, and the next frame behind it."""
    origin, data = view.sides[side].runs[0]
    starts = [start - origin for start in view.sides[side].segments]
    if len(data) < SHORTEST or any(_mongodb(data, start) for start in starts[:16]):
        return None
    end = len(data)
    # No frame begins before this, whatever follows
    key = ("mewbase", "middle", side)
    begin = ruled_out = view.known.get(key, 0)
    best: Evidence | None = None
    limit = min(end, SCANNED)
    view.work_budget.spend(limit - begin >> 4)
    for at, answer, size in candidates(data, begin, limit, end, True, None):
        if not view.work_budget.spend(3 * STEP):
            break
        if answer == NO and best is None and end - at >= LONGEST_HEAD:
            ruled_out = at + 1
        if answer == YES:
            name = HEADS[data[at + 4 : at + 21 + data[at + 10]]].name
            place = bisect_left(starts, at)
            at_start = place < len(starts) and starts[place] == at
            following = at + size
            if following + 10 <= end:
                confidence, rest = 0.95, "the next frame follows"
            elif following == end:
                confidence, rest = (0.92, "a segment of its own") if at_start else (0.85, "ends with the data")
            else:
                confidence, rest = (0.8, "begins a segment") if at_start else (0.4, "not yet complete")
            if best is None or confidence > best[0]:
                best = confidence, f"{name} at byte {at}, {size} bytes, both lengths agree, {rest}", name
            if confidence >= 0.9:
                return best
    view.known[key] = ruled_out
    return best


def _mongodb(data: bytes, at: int) -> bool:
    return len(data) >= at + 16 and _INT32(data, at)[0] >= 16 and _INT32(data, at + 12)[0] in MONGODB
