"""Apache Iggy: where frames begin and end in either framing, and the way back into them behind a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dissector import SEARCH_WINDOW, WAIT
from ..work_budget import STEP, WorkBudget
from .candidates import Candidates
from .commands import BY_CODE
from .frames import EVICTION, HEADER, REPLY, REQUEST, U32, U32_U32
from .layout_versions import CLASSIC
from .resync import LIMIT, LONG_MINIMUM, chained, find_long, find_request, may_be_long, polled, response_size
from .statuses import NAMES

if TYPE_CHECKING:
    from ..parser import Parser

MAX_SEGMENTS = 64
"""Limit of segment starts kept as possible starts of frames."""

REFUSAL_SIZE = 1 << 16
"""No error is longer."""

LATEST_COMMAND = 29
"""The highest command byte of the 256-byte framing."""


class IggyFraming:
    """Cuts both byte streams of a conversation into frames."""

    def __init__(self, layouts: Candidates, parser: Parser) -> None:
        self.layouts = layouts
        self.parser = parser
        self.client = layouts.client
        candidates = layouts.candidates
        self.searched = candidates if candidates and candidates[0] in CLASSIC else CLASSIC
        """The layouts in which requests are searched, whatever is known later."""
        self.starts: list[list[int]] = [[], []]
        self.known = [0, 0]
        self.stubborn = False
        """Whether bytes of the other side are waited for no more."""

    def length(self, side: int, data: bytes, at: int) -> int:
        """The length of the frame at `at`, or one of the codes of `Dissector.frame_length`."""
        long = self.layouts.long[side]
        if long is None:
            if side != self.client and self.layouts.long[1 - side] is None and not self.stubborn:
                return WAIT
            long = self._framing(side, data, at)
            if long is None:
                return 0
        if long:
            if len(data) - at < LONG_MINIMUM:
                return 0
            size: int = U32(data, at + 48)[0]
            return size if size >= HEADER and 0 < data[at + 60] <= LATEST_COMMAND else -1
        first, second = U32_U32(data, at)
        if side == self.client:
            return first + 4 if first >= 4 and (first <= self.parser.options.frame_limit or second in BY_CODE) else -1
        if not first or not second:
            return int(second) + 8
        if len(data) - at < min(12, second + 8):
            return 0
        # an error with a text
        return second + 8 if second >= 4 and U32(data, at + 8)[0] + 4 == second else self._refused(side, data, at, second + 8)

    def _refused(self, side: int, data: bytes, at: int, size: int) -> int:
        """The size of an error that does not hold a text of the length it states, where its status is known and the segment ends with it,
        or goes on as a response does."""
        buffer, end = self.parser.buffers[side], at + size
        if U32(data, at)[0] not in NAMES or size > REFUSAL_SIZE:
            return -1
        if end > len(data):
            return 0
        following = buffer.segment(buffer.base + end - 1) + 1
        rest = data[end : buffer.starts[following] - buffer.base if following < len(buffer.starts) else len(data)]
        if len(rest) < 8:
            return size if not rest else -1
        status, length = U32_U32(rest, 0)
        return size if (not status or status in NAMES) and length <= LIMIT else -1

    def _framing(self, side: int, data: bytes, at: int) -> bool | None:
        """Return whether this side uses the 256-byte framing, by its first bytes; None if more are needed."""
        first = data[at : at + 8]
        other = self.layouts.long[1 - side]
        long: bool | None
        if side == self.client:
            long = first[:4] == b"\0\0\0\0"
        elif not other:
            long = False
        elif len(data) - at >= LONG_MINIMUM:
            long = U32(data, at + 48)[0] >= HEADER and data[at + 60] in (REPLY, EVICTION)
        else:
            # only zeros may become a header of 256 bytes
            long = False if any(first) else None
        if long is not None:
            self.layouts.speaks(side, long)
        return long

    def search(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        """Looks for the next frame behind what cannot be read; the result is that of `Dissector.resync`."""
        buffer = self.parser.buffers[side]
        base, known = buffer.base, min(at + self.known[side], end)
        # Not every segment may have been looked at
        between = buffer.starts[buffer.segment(base + known) + 1 : buffer.segment(base + end - 1) + 1]
        starts = [*(at + start for start in self.starts[side]), known, *(start - base for start in between)][: MAX_SEGMENTS + 1]
        buffer.work_budget.spend(4 * STEP)
        found, place = self._find(side, data, at, end, starts, final)
        if not found and end - place > SEARCH_WINDOW:
            # as the caller does
            place = end - SEARCH_WINDOW
        self.known[side] = 0 if found or final else end - place
        self.starts[side] = [] if found or final else [start - place for start in starts if place <= start < end][:MAX_SEGMENTS]
        return found, place

    def _find(self, side: int, data: bytes, at: int, end: int, starts: list[int], final: bool) -> tuple[bool, int]:
        long, other = self.layouts.long[side], self.layouts.long[1 - side]
        work_budget = self.parser.buffers[side].work_budget
        client = side == self.client
        kinds = (REQUEST,) if client else (REPLY, EVICTION)
        if long or (long is None and (other is not False or self.layouts.blind)):
            found, place = find_long(data, at, end, kinds, work_budget)
            if not found and long and final:
                # No more of a header will come, as where the snap length cuts it
                complete = next((start for start in starts if may_be_long(data, start, end, kinds)), None)
                found, place = (True, complete) if complete is not None else (found, place)
            if found or long or (other and not self.layouts.blind):
                if found:
                    self.layouts.speaks(side, True)
                return found, place
        if client:
            found, place = find_request(data, at, end, starts, self.searched, work_budget)
        else:
            found, place = self._find_response(data, end, starts, work_budget)
        if found:
            self.layouts.speaks(side, False)
        return found, place

    def _find_response(self, data: bytes, end: int, starts: list[int], work_budget: WorkBudget) -> tuple[bool, int]:
        waiting: int | None = None
        for start in starts:
            if start >= end:
                break
            if not work_budget.spend(STEP):
                return False, start if waiting is None else waiting
            count = chained(response_size, data, start, end, work_budget)
            if count is None:
                if polled(data, start, end):
                    return True, start
                if waiting is None:
                    waiting = start
            elif count > 0 and (count * 8 < end - start or (count == 1 and waiting is None)):
                # empty answers are but zeros: several of them in a row prove nothing
                return True, start
        return False, end if waiting is None else waiting
