"""Whether a conversation speaks Apache Iggy: there is no magic number, so frames must chain and decode."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from ...model import Verdict
from ..protocol import DetectionView, SideView
from ..records import Damage
from ..work_budget import STEP, WorkBudget
from . import frames, replica_framing
from .candidates import fits as fits_so_far
from .commands import BY_CODE
from .frames import EVICTION, REPLY, REQUEST, U32, U32_U32
from .layout_versions import CLASSIC, LONG
from .resync import READ, find_long, fits, long_header, may_be_long, request_size, response_size, sends

PORT = 8090

FRAMES = 12
"""Limit of frames examined on each side."""

SHORTEST = 8
"""Bytes of the shortest request."""

HAS_PARAMETERS = 3
"""The weight of a request of 14 bytes or more."""

CUT = 2
"""Limit of requests with a gap that count, if their lengths lead to the next."""

BEGINNING = 16
"""The bytes that identify a request if the rest is missing."""

_CUT_OFF = Damage(0, "cut by the snap length")

LED = 2
"""The number of 256-byte headers with gaps that must lead from one to the next."""

RUNS = 4
"""Limit of runs without a gap examined for a 256-byte header."""


CONFIDENCE = ((5, 1, 0.97), (3, 1, 0.92), (2, 2, 0.92), (6, 0, 0.85), (0, 1, 0.6), (3, 0, 0.55), (0, 0, 0.45))
"""Confidence in the classic framing, by weight of requests and number of responses."""


class _Requests(NamedTuple):
    """Requests that chain from some point: how many of them decode and how far, the weight of these, and the codes of all for the other
    side; how many do not decode, whether the last one ends with the bytes or goes on behind them, and whether one is proof: it has
    parameters, or the port, and is all that the side sent, or goes on as none but it would."""

    good: int
    weight: int
    codes: tuple[int, ...]
    layouts: tuple[str, ...]
    extent: str = "to the last byte"
    bad: int = 0
    ends: bool = False
    alone: bool = False


class _Responses(NamedTuple):
    """How many responses fit requests, whether the bytes are no responses at all, and whether the last one ends with the bytes."""

    chained: int
    bad: bool
    ends: bool


_NO_REQUESTS = _Requests(0, 0, (), CLASSIC)


def heuristic(view: DetectionView) -> Verdict | None:
    """The verdict on a conversation, or None where nothing speaks for Apache Iggy."""
    replicas = replica_framing.verdict(view)
    if replicas is not None:
        return replicas
    best: Verdict | None = None
    for client in (0,) if view.from_start else (0, 1):
        for weigh in (_long, _classic):
            verdict = weigh(view, client)
            if verdict is not None and (best is None or verdict.confidence > best.confidence):
                best = verdict
    return best


def _long(view: DetectionView, client: int) -> Verdict | None:
    """Probe the 256-byte framing: its header is as good as a magic number, and shows the direction."""
    sides = ((client, (REQUEST,), "client"), (1 - client, (REPLY, EVICTION), "server"))
    if all(len(one.runs) > 1 for one in view.sides):
        # A snap length cuts each header; where the sizes lead from one to the next, and both sides agree, it takes no more of them
        cut = [_led(view.sides[side], kinds, view.work_budget) for side, kinds, _ in sides]
        if min(cut) and max(cut) >= LED:
            evidence = f"{cut[0]} headers of 256 bytes of the client and {cut[1]} of the server, of which not all was captured"
            return _says(0.95, client, evidence)
    for side, kinds, who in sides:
        one = view.sides[side]
        if one.begins:
            data = one.runs[0][1]
            kind = long_header(data, 0, len(data))
            if kind is not None and kind in kinds:
                return _says(0.97, client, f"{who} begins with a 256-byte header, command {kind} ({frames.FRAME_KINDS[kind]})")
            if kind is None and len(data) >= 96 and side == client and not any(data[:48]) and view.ends():
                return _says(0.6, client, f"{who} begins like a 256-byte header of which {len(data)} bytes were captured")
            if side == client:
                break
        else:
            for position, run in one.runs[:RUNS]:
                # Bytes that were ruled out are not looked at again
                key = ("iggy", side, client, position)
                found, view.known[key] = find_long(run, view.known.get(key, 0), len(run), kinds, view.work_budget)
                if found:
                    return _says(0.95, client, f"{who} sends a 256-byte header at byte {view.known[key]} of what was captured")
    return _cut_short(view, client, sides)


def _says(confidence: float, client: int, evidence: str) -> Verdict:
    return Verdict("iggy", confidence, (evidence,), None, client, None, LONG)


def _cut_short(view: DetectionView, client: int, sides: Iterable[tuple[int, tuple[int, ...], str]]) -> Verdict | None:
    """Probe the framing where the snap length cut the headers, and too few follow each other."""
    ask, answer = (_led(view.sides[side], kinds, view.work_budget) for side, kinds, _ in sides)
    if not ask or not view.ends():
        return None
    if not answer and _responses(view, 1 - client, _NO_REQUESTS, False).chained < LED:
        return None
    other = "one of the server" if answer else "responses of the classic framing"
    return _says(0.7, client, f"a 256-byte header of the client and {other}, of which not all was captured")


def _led(side: SideView, kinds: tuple[int, ...], work_budget: WorkBudget) -> int:
    """How many headers of 256 bytes follow each other over gaps, from the beginning of one of the first runs: where one says that its
    frame ends another begins."""
    best = 0
    for at, _ in side.runs[:RUNS]:
        count = 0
        while count < FRAMES and work_budget.spend(2 * STEP):
            data, offset = _bytes_at(side, at)
            if not may_be_long(data, offset, len(data), kinds):
                break
            count += 1
            at += U32(data, offset + 48)[0]
        best = max(best, count)
    return best


def _bytes_at(side: SideView, position: int) -> tuple[bytes, int]:
    """The run that holds `position`, and where in it; no bytes if none does."""
    index = bisect_right(side.runs, position, key=itemgetter(0)) - 1
    if index < 0:
        return b"", 0
    start, data = side.runs[index]
    return (data, position - start) if position - start < len(data) else (b"", 0)


def _behind(side: SideView, start: int, place: int) -> tuple[int, bytes, int] | None:
    """Where frames go on behind a gap: at `place` from `start`, the position of some run. The run that holds it, and where in it."""
    data, at = _bytes_at(side, start + place)
    return (start + place - at, data, at) if len(data) - at >= SHORTEST else None


def _classic(view: DetectionView, client: int) -> Verdict | None:
    """The classic framing: requests that decode, answered by frames that chain and decode as their answers."""
    requests = _requests(view, client)
    if not requests.good:
        return None
    answers, bad, ends = _responses(view, 1 - client, requests, all(side.begins for side in view.sides))
    if bad and not answers:
        return None
    begins = view.sides[client].begins
    if not begins and not _is_proof(requests, answers > 0 and ends):
        return None
    weight = requests.weight
    confidence = next(sure for least, chained, sure in CONFIDENCE if weight >= least and answers >= chained)
    if view.ports[1 - client] == PORT and (weight >= 2 or answers or view.ends()):
        confidence = max(confidence, 0.9 if answers or weight >= 3 else 0.6)
    if requests.good < 2 and not begins and not view.ends():
        # What follows may be something else
        confidence = min(confidence, 0.85)
    evidence = [f"{requests.good} of {len(requests.codes)} requests with a known code decode {requests.extent}"]
    if answers:
        evidence.append(f"{answers} responses follow without a gap")
    return Verdict("iggy", confidence, tuple(evidence), None, client, None, CLASSIC)


def _is_proof(requests: _Requests, answered: bool) -> bool:
    """Whether requests in the middle of a conversation are no chance: several, or one that is proof, or with which the bytes of the client
    end, and those of the server with an answer (`answered`)."""
    return requests.bad <= requests.good if requests.good > 1 else requests.alone or (requests.ends and answered)


def _places(side: SideView) -> list[int]:
    """Positions where a frame may begin."""
    return [0] if side.begins else side.segments


def _requests(view: DetectionView, client: int) -> _Requests:
    best = _NO_REQUESTS
    side = view.sides[client]
    # Nothing speaks against the port of a server that is silent
    least = 1 if view.ports[1 - client] == PORT and not view.sides[1 - client].runs else HAS_PARAMETERS
    # Where the first header rules a request out, so it does with every further byte
    ruled_out = view.known.setdefault(("iggy", client), set())
    for place in _places(side):
        if place in ruled_out:
            continue
        if not view.work_budget.spend(2 * STEP):
            break
        data, at = _bytes_at(side, place)
        if request_size(data, at, len(data)) < 0:
            ruled_out.add(place)
            continue
        found = _chain(view, side, place, least)
        if found.weight > best.weight:
            best = found
    return best


def _chain(view: DetectionView, side: SideView, place: int, least: int) -> _Requests:
    """Requests from a position on; the first two must be known and decode, later ones may be new to us. Of one with a gap
    the length leads to the next. `least`: from this weight on they are proof if their side sent nothing else."""
    data, at = _bytes_at(side, place)
    start, end = place - at, len(data)
    good = weight = bad = 0
    goes_on = False
    codes: list[int] = []
    layouts: tuple[str, ...] = CLASSIC
    while len(codes) < FRAMES:
        size = request_size(data, at, end)
        if size < 0:
            if good < 2 or end - at < 8 or not 4 <= U32(data, at)[0] <= 1 << 16:
                return _NO_REQUESTS if end - at >= 8 else _Requests(good, weight, tuple(codes), layouts)
            size = U32(data, at)[0] + 4
        if not size or not view.work_budget.spend(4 * STEP):
            break
        code = U32_U32(data, at)[1]
        if at + size > end:
            behind = _behind(side, start, at + size)
            if behind is None:
                # Nothing may be complete where a capture begins within one of these, and the bytes so far end within the next
                if view.ends() and sends(layouts, data, at, end, view.work_budget):
                    return _Requests(good + 1, weight + 1, (*codes, code), layouts, "as far as they came", bad, alone=True)
                goes_on = True
                break
            weight += len(codes) < CUT
            # Where a snap length leaves nothing complete, those count that are as they should be up to where they are cut
            good += not good and view.work_budget.spend(READ * (end - at)) and _begins(code, layouts, data, at, end)
            codes.append(frames.meant(code, size - 4))
            start, data, at = behind
            end = len(data)
            continue
        if not view.work_budget.spend(READ * size):
            break
        fitting = tuple(fits(data, at, at + size, layouts))
        if fitting:
            layouts = fitting
            good += 1
            # a request without a body is eight bytes that others may send too
            weight += 1 if size == 8 else 2 if size < 14 else HAS_PARAMETERS
        elif good < 2 and not (good and code in BY_CODE):
            return _NO_REQUESTS
        else:
            bad += 1
        codes.append(frames.meant(code, size - 4))
        at += size
    ends = at == end or goes_on
    alone = weight >= least and at == end and [begin for begin, _ in side.runs] == [place]
    return _Requests(good, weight, tuple(codes), layouts, "to the last byte", bad, ends, alone)


def _begins(code: int, layouts: tuple[str, ...], data: bytes, start: int, end: int) -> bool:
    """Whether these bytes, some of them behind the header, are the beginning of a request in some layout."""
    tables = {frames.ask(code, layout) for layout in layouts}
    return end - start >= BEGINNING and any(table is not None and fits_so_far(table, data, start, end, _CUT_OFF) for table in tables)


def _responses(view: DetectionView, server: int, requests: _Requests, in_turn: bool) -> _Responses:
    """Return the responses that fit these requests; `in_turn`: the first answers the first."""
    side = view.sides[server]
    best = _Responses(0, bool(side.runs), False)
    for place in _places(side):
        data, at = _bytes_at(side, place)
        start, end = place - at, len(data)
        waiting = deque(requests.codes if in_turn else ())
        count = 0
        broken = False
        while count < FRAMES:
            size = response_size(data, at, end)
            if size < 0:
                broken = True
                break
            if not size or not view.work_budget.spend(2 * STEP):
                break
            code = waiting.popleft() if waiting else None
            if at + size > end:
                behind = _behind(side, start, at + size)
                if behind is None:
                    break
                start, data, at = behind
                end = len(data)
                continue
            if code is not None:
                view.work_budget.spend(READ * size)
                if not U32(data, at)[0] and not _answers(code, requests.layouts, data, at, at + size):
                    broken = True
                    break
            count += 1
            at += size
        if not broken and (best.bad or count > best.chained):
            best = _Responses(count, False, at == end)
    return best


def _answers(code: int, layouts: tuple[str, ...], data: bytes, start: int, end: int) -> bool:
    """Whether these bytes can be the successful answer to a command in some layout."""
    if frames.command_of(code) is None:
        return True
    return any(frames.answer(code, layout).fields(data, start, end) is not None for layout in layouts)
