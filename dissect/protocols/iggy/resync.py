"""Where frames of Apache Iggy begin in bytes that begin anywhere, and whether bytes are such frames at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from struct import Struct

from ..dissector import SEARCH_WINDOW
from ..work_budget import STEP, WorkBudget
from . import frames
from .commands import BY_CODE, OPERATION_LABELS
from .frames import DEFAULT_STYLE, EVICTION, HEADER, REPLY, REQUEST, U32, U32_U32
from .layout_versions import CLASSIC
from .statuses import NAMES

_ZEROS = bytes(66)
_NO_ZERO = re.compile(b"[^\0]")

SCANNED, READ = 3, 16
"""What a byte costs in which requests are looked for, and one in a frame that is read in all layouts."""

LIMIT = 64 << 20
"""No frame is longer."""

SEND, SEND_PREFIX = 101, 1_024
"""The code of the only large requests, and the bytes in which one names its destination."""

PARTITIONS, SMALLEST = 1 << 16, 40
"""No partition of a topic has a higher number, and no message that is polled fewer bytes."""

_POLLED = Struct("<IIIQI").unpack_from

LONG_MINIMUM = 61
"""The bytes of a 256-byte header that identify its frame: up to the command."""

BROKEN = -1
"""Returned by `chained`: frames do not follow each other."""

EXACT: dict[int, int] = dict.fromkeys((1, 10, 12, 20, 22, 39, 41, 201), 4) | {21: 8}
"""Lengths of requests that have only one (32 and 33 had another meaning before 0.0.8)."""


def long_header(data: bytes, at: int, end: int) -> int | None:
    """Whether data[at:end] begins with a header of 256 bytes: its command byte, 0 if it does not, None if there are too few bytes."""
    if end - at < 64:
        return None
    size = U32(data, at + 48)[0]
    kind = data[at + 60]
    if kind not in (REQUEST, REPLY, EVICTION) or not HEADER <= size <= LIMIT:
        return 0
    zeros = data[at + 62 : min(end, at + 128)]
    if zeros.strip(b"\0"):
        return 0
    if end - at < HEADER:
        return None
    if kind == REQUEST:
        good = any(data[at + 128 : at + 144]) and data[at + 176] in OPERATION_LABELS and not any(data[at + 177 : at + 184])
        good = good and not any(data[at + 224 : at + HEADER])
    elif kind == REPLY:
        good = data[at + 208] in OPERATION_LABELS and not any(data[at + 209 : at + 216]) and not any(data[at + 228 : at + HEADER])
        good = good and not any(data[at : at + 32])
    else:
        good = size == HEADER and not any(data[at + 152 : at + 255]) and 0 < data[at + 255] < 64
    return kind if good else 0


def may_be_long(data: bytes, at: int, end: int, kinds: Iterable[int]) -> bool:
    """Whether data[at:end] may begin with a header of 256 bytes of these kinds, by what there is of it: up to its command byte at least."""
    if end - at < LONG_MINIMUM or data[at + 60] not in kinds or not HEADER <= U32(data, at + 48)[0] <= LIMIT:
        return False
    # Checksums (which only one day may be there), the release, and reserved fields
    return not any(data[at : at + 32]) and not any(data[at + 56 : at + 60]) and not any(data[at + 62 : min(end, at + 128)])


def find_long(data: bytes, at: int, end: int, kinds: Iterable[int], work_budget: WorkBudget) -> tuple[bool, int]:
    """Look for a header of 256 bytes of a client or a server; the result is that of `find_header`."""
    wanted = tuple(kinds)

    def begins(start: int) -> bool | None:
        kind = long_header(data, start, end)
        # what stands in the checksums of a client's may be the end of the frame before, where bytes are missing between them
        return None if kind is None else kind in wanted and (kind != REQUEST or not any(data[start : start + 48]))

    return find_header(data, at, end, begins, work_budget)


def find_header(data: bytes, at: int, end: int, begins: Callable[[int], bool | None], work_budget: WorkBudget) -> tuple[bool, int]:
    """Look for a header of 256 bytes: (True, p) one begins at p; (False, p) none begins before p, as far as effort was left. `begins`:
    whether one begins at an offset in front of zeros, None if there are too few bytes."""
    if end - at < 61 + len(_ZEROS):
        return False, at
    place = at + 61
    work_budget.spend(end - at >> 2)
    while True:
        run = data.find(_ZEROS, place, end)
        if run < 0:
            return False, max(at, end - 127)
        if not work_budget.spend(6 * STEP):
            return False, max(at, run - 62)
        # the byte before the zeros is the command, or the replica after it
        for start in (run - 62, run - 61):
            if start >= at:
                found = begins(start)
                if found is None:
                    return False, start
                if found:
                    return True, start
        after = _NO_ZERO.search(data, run + 66, end)
        place = end if after is None else after.start()


def fits(data: bytes, start: int, end: int, candidates: Iterable[str] = CLASSIC) -> list[str]:
    """The classic layouts in which data[start:end] is a request with nothing left over."""
    length, code = U32_U32(data, start)
    if length + 4 != end - start or length < 4:
        return []
    if code in EXACT and EXACT[code] != length:
        return []
    code = frames.meant(code, length)
    if frames.command_of(code) is None:
        return []
    tables = frames.asks(code)
    found: list[str] = []
    known: dict[frames.CommandTable, bool] = {}
    for layout in candidates:
        table = tables.get(layout)
        if table is None:
            continue
        if table not in known:
            known[table] = table.fields(data, start, end) is not None
        if known[table]:
            found.append(layout)
    return found


def sends(layouts: Iterable[str], data: bytes, start: int, end: int, work_budget: WorkBudget) -> bool:
    """Whether a request that goes on behind these bytes says in some layout where messages go, and goes on to these."""
    if U32_U32(data, start)[1] != SEND or not work_budget.spend(READ * SEND_PREFIX):
        return False
    tables = {frames.ask(SEND, layout) for layout in layouts}
    faults = [
        table.walk(data, start, min(end, start + SEND_PREFIX), DEFAULT_STYLE, "more follows")[1].fault
        for table in tables
        if table is not None
    ]
    return any(fault is not None and fault.field.startswith(("indexes", "messages")) for fault in faults)


def polled(data: bytes, at: int, end: int) -> bool:
    """Whether a response with messages begins here that is never read completely: partition, offset and their count lead them."""
    if end - at < 24:
        return False
    status, length, partition, _, count = _POLLED(data, at)
    return not status and SEARCH_WINDOW < length <= LIMIT and partition < PARTITIONS and 0 < count <= length // SMALLEST


def response_size(data: bytes, at: int, end: int) -> int:
    """The size of the classic response at `at`; 0: too few bytes; -1: none."""
    if end - at < 8:
        return 0
    status, length = U32_U32(data, at)
    if length > LIMIT:
        return -1
    if status:
        if status not in NAMES:
            return -1
        if length:
            if length < 4:
                return -1
            if end - at < 12:
                return 0
            if U32(data, at + 8)[0] + 4 != length:
                return -1
    return int(length) + 8


def request_size(data: bytes, at: int, end: int) -> int:
    """The size of the classic request at `at`, whose code must be known; 0: too few bytes; -1: none."""
    if end - at < 8:
        return 0
    length, code = U32_U32(data, at)
    if length < 4 or length > LIMIT or code not in BY_CODE:
        return -1
    if code in EXACT and EXACT[code] != length:
        return -1
    return int(length) + 4


_LOW = b"".join(re.escape(bytes([code])) for code in BY_CODE if code < 256)
_HIGH = b"|".join(re.escape(code.to_bytes(2, "little")) for code in BY_CODE if code >= 256)
_REQUEST_HEAD = re.compile(b"(?=[\\x00-\\xff]{3}[\\x00-\\x04](?:[" + _LOW + b"]\\x00|" + _HIGH + b")\\x00\\x00)", re.DOTALL)


def find_request(data: bytes, at: int, end: int, starts: list[int], candidates: Iterable[str], work_budget: WorkBudget) -> tuple[bool, int]:
    """Look for a classic request; `starts` are the offsets where segments start, which count as better places."""
    waiting: int | None = None
    layouts = tuple(candidates)
    place = at
    going = work_budget.spend(SCANNED * (end - at))
    while True:
        hit = _REQUEST_HEAD.search(data, place, end)
        if hit is None:
            break
        start = hit.start()
        if not going:
            return False, start if waiting is None else waiting
        place = start + 1
        going = work_budget.spend(3 * STEP)
        size = request_size(data, start, end)
        if size < 0:
            continue
        if size == 0 or start + size > end:
            # Such a frame is never read completely
            if size > SEARCH_WINDOW and sends(layouts, data, start, end, work_budget):
                return True, start
            if waiting is None:
                waiting = start
                if start in starts:
                    break
            continue
        going = work_budget.spend(3 * STEP + READ * size)
        if not fits(data, start, start + size, layouts):
            continue
        if size >= 14 or (start in starts and chained(request_size, data, start, end, work_budget) not in (None, BROKEN)):
            return True, start
    if waiting is not None:
        return False, waiting
    return False, max(at, end - 7)


def chained(size_of: Callable[[bytes, int, int], int], data: bytes, at: int, end: int, work_budget: WorkBudget) -> int | None:
    """Return how many requests or responses, of the sizes that `size_of` returns, follow each other from `at` exactly to `end`; BROKEN if
    they cannot, None if more bytes, or work budget, may show it."""
    count = 0
    while at < end:
        size = size_of(data, at, end)
        if size < 0:
            return BROKEN
        if size == 0 or at + size > end or not work_budget.spend(STEP):
            return None
        at += size
        count += 1
    return count
