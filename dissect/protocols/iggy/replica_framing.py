"""Apache Iggy between replicas: whether bytes are one of their headers of 256 bytes, their seals, and the search for the next frame."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import Struct

from xxhash import xxh3_64_intdigest

from ...model import Verdict
from ..dissector import SEARCH_WINDOW
from ..protocol import DetectionView, SideView
from ..work_budget import WorkBudget
from .frames import HEADER, U32
from .replica_layouts import (
    CARRIERS,
    CHALLENGE,
    COMMON,
    DO_VIEW_CHANGE,
    HELLO,
    LAYOUT,
    NAMES,
    REQUEST,
    SIZED,
    START_VIEW,
    TABLES,
    UNSEALED,
)
from .resync import LIMIT, find_header

LEAST = 64
"""The bytes that `frame_size` needs."""

MOST_PREPARES = 128
"""The headers in a DoViewChange, at most."""

OPENING_LEAST = 96
"""The bytes of a first frame that is cut by the snap length, at least."""

CERTAIN, PLAUSIBLE = 2, 1
"""What a header is: its seal is right; or nothing but its zeros speaks for it."""

RUNS = 4
"""Limit of runs without a gap that are searched for a header."""

CHAIN = 2
"""Frames without a seal that must follow each other in the middle of a connection."""

PATIENCE = 65_536
"""Bytes behind which it is not waited for the side that shows which one dialled."""

_VIEW = bytes(4)
_BLANK = bytes(16)

_U64_U64 = Struct("<QQ").unpack_from


def frame_size(data: bytes, at: int) -> int:
    """The size of the frame at `at`, of whose header LEAST bytes are there; -1 if none can begin there."""
    size: int = U32(data, at + 48)[0]
    return size if size >= HEADER and data[at + 60] and not data[at + 62 : at + COMMON].strip(b"\0") else -1


def seal(data: bytes, at: int) -> int:
    """The checksum that the header at `at` should have."""
    if data[at + 60] in CARRIERS:
        return xxh3_64_intdigest(_BLANK + data[at + 16 : at + 52] + _VIEW + data[at + 56 : at + HEADER])
    return xxh3_64_intdigest(data[at + 16 : at + HEADER])


def is_sealed(data: bytes, at: int) -> bool | None:
    """Whether the seal of the header at `at` is right; None if it has none."""
    low, high = _U64_U64(data, at)
    return None if not low and not high else not high and low == seal(data, at)


def header_at(data: bytes, at: int, end: int) -> int | None:
    """Whether a header begins at `at`: CERTAIN, PLAUSIBLE or 0; None if there are too few bytes."""
    if end - at < LEAST:
        return None
    command = data[at + 60]
    size = frame_size(data, at)
    # 1 to 4 have numbers, and nobody sends them
    if command < REQUEST or command not in TABLES or not HEADER <= size <= LIMIT or any(data[at + 56 : at + 60]):
        return 0
    if command not in SIZED and size != HEADER:
        return 0
    if command in (DO_VIEW_CHANGE, START_VIEW) and (size % HEADER or size > (MOST_PREPARES + 1) * HEADER):
        return 0
    if end - at < HEADER:
        return None
    for first, last in TABLES[command].zeros:
        if data[at + first : at + last].strip(b"\0"):
            return 0
    sealed = is_sealed(data, at)
    if command in UNSEALED:
        return 0 if sealed is not None else PLAUSIBLE
    return PLAUSIBLE if sealed is None else CERTAIN if sealed else 0


def find(data: bytes, at: int, end: int, final: bool, work_budget: WorkBudget) -> tuple[bool, int]:
    """Look for a header; the result is that of `Dissector.resync`, as far as effort was left."""

    def begins(start: int) -> bool | None:
        kind = header_at(data, start, end)
        if not kind:
            return None if kind is None else False
        return (kind == CERTAIN and data[start + 60] not in CARRIERS) or _follows(data, start, end, final)

    return find_header(data, at, end, begins, work_budget)


def _follows(data: bytes, start: int, end: int, final: bool) -> bool | None:
    """Whether a frame follows the one at `start`: headers of Prepares stand in other frames, too. None if more bytes are needed."""
    after = start + U32(data, start + 48)[0]
    if after == end or (final and after + LEAST > end):
        return True
    if after + LEAST <= end:
        return frame_size(data, after) > 0
    # such a frame is never here completely
    return True if after - start > SEARCH_WINDOW else None


def verdict(view: DetectionView) -> Verdict | None:
    """Return the verdict on a conversation between replicas, or None where nothing speaks for one."""
    for side, one in enumerate(view.sides):
        if one.begins:
            data = one.runs[0][1]
            # The first frame decides, and comes from the one that dials
            opening = HELLO if side == 0 or not view.from_start else CHALLENGE
            if len(data) >= HEADER and data[60] in (HELLO, CHALLENGE) and header_at(data, 0, len(data)) == PLAUSIBLE:
                client = side if data[60] == HELLO else 1 - side
                if data[60] == opening or not view.from_start:
                    return _says(0.97, client, f"begins with {NAMES[data[60]]} of 256 bytes")
            elif side == 0 and OPENING_LEAST <= len(data) < HEADER and _may_open(data) and view.ends():
                return _says(0.6, 0, f"begins like ReplicaHello, of which {len(data)} bytes were captured")
    if view.sides[0].begins:
        return None
    return _midway(view)


def _may_open(data: bytes) -> bool:
    """Whether these bytes are the beginning of a ReplicaHello that is cut."""
    zeros = (data[:32], data[56:60], data[62:COMMON], data[COMMON + 32 :])
    return data[60] == HELLO and U32(data, 48)[0] == HEADER and not any(part.strip(b"\0") for part in zeros)


def _says(confidence: float, client: int | None, evidence: str) -> Verdict:
    return Verdict("iggy", confidence, (evidence,), None, client, LAYOUT)


def _midway(view: DetectionView) -> Verdict | None:
    """Frames in the middle of a connection: one with a seal that is right, or several that follow each other."""
    found = [_search(view, side, False) for side in (0, 1)]
    if not any(kind for kind, _ in found) and any(side.runs for side in view.sides) and view.ends():
        found = [_search(view, side, True) for side in (0, 1)]
    best = max(found)
    if not best[0]:
        return None
    senders = [_sender(view.sides[side], position) if kind else None for side, (kind, position) in enumerate(found)]
    one, two = senders
    client: int | None = None
    if one is not None and two is not None and one != two:
        client = 0 if one < two else 1
    elif 0 in senders:
        # Nobody has a lower number, and the lower one dials
        client = senders.index(0)
    what = "whose seal is right" if best[0] == CERTAIN else "behind which others follow"
    evidence = f"a 256-byte header of a replica {what} at byte {best[1]} of what was captured"
    if client is None and sum(side.end for side in view.sides) < PATIENCE and not view.ends():
        # The other side may show who dialled
        return _says(0.85, None, evidence)
    return _says(0.95 if best[0] == CERTAIN else 0.92, client, evidence)


def _search(view: DetectionView, side: int, final: bool) -> tuple[int, int]:
    """What kind of header the bytes of a side hold, and its position; 0 where there is none."""
    for position, run in view.sides[side].runs[:RUNS]:
        # Bytes that were ruled out are not looked at again
        key = ("iggy replica", side, position)
        at = view.known.get(key, 0)
        while True:
            found, at = find(run, at, len(run), final, view.work_budget)
            view.known[key] = at
            if not found:
                break
            kind = header_at(run, at, len(run))
            if kind and run[at + 60] != REQUEST:
                if kind == CERTAIN or _chained(run, at) >= CHAIN:
                    return kind, position + at
                if len(run) - at < U32(run, at + 48)[0] + HEADER:
                    # the next one may come
                    break
            at += 1
    return 0, 0


def _chained(data: bytes, at: int) -> int:
    """How many headers follow each other from `at` on, as far as it counts."""
    return sum(1 for _ in islice(_headers(data, at), CHAIN))


def _headers(data: bytes, at: int) -> Iterator[int]:
    """Yield where headers begin that follow each other from `at` on."""
    while header_at(data, at, len(data)):
        yield at
        at += U32(data, at + 48)[0]


def _sender(side: SideView, position: int) -> int | None:
    """Which replica sends these bytes, by the frames from a position on that say so."""
    for start, data in side.runs:
        for at in _headers(data, position - start) if position >= start else ():
            if data[at + 60] not in (REQUEST, *CARRIERS):
                return data[at + 61]
    return None
