"""Apache Iggy: where frames begin and end in either framing, and the way back into them behind a loss."""

from __future__ import annotations

from typing import ClassVar

from dissect.protocols.base import Dissector
from dissect.protocols.effort import STEP, Effort
from dissect.protocols.framing import SEARCH_WINDOW, WAIT
from dissect.protocols.iggy.candidates import Candidates
from dissect.protocols.iggy.commands import BY_CODE
from dissect.protocols.iggy.features import CLASSIC
from dissect.protocols.iggy.frames import EVICTION, HEADER, REPLY, REQUEST, U32, U32_U32
from dissect.protocols.iggy.resync import LIMIT, LONG_TOLD, find_long, find_request, may_be_long, responses_to
from dissect.protocols.iggy.statuses import NAMES
from dissect.protocols.protocol import Context

PORTS = (8090,)

SEGMENTS_KEPT = 64
"""So many segment starts are remembered as places where a frame may begin."""

REFUSAL_SIZE = 1 << 16
"""No error is longer."""

LATEST_COMMAND = 29
"""The highest command byte of the 256-byte framing."""


class Framing(Dissector):
    """Cuts both byte streams of a conversation into frames."""

    header_size: ClassVar[int] = 8

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if self.client is None:
            self.client = 0 if context.ports[1] in PORTS or context.ports[0] not in PORTS else 1
        self.layouts = Candidates(context, self.client, self.facts)
        # frames are cut ahead of what is decoded, so where they begin must not depend on the layouts left
        candidates = self.layouts.candidates
        self.searched = candidates if candidates and candidates[0] in CLASSIC else CLASSIC
        self.starts: list[list[int]] = [[], []]
        self.known = [0, 0]
        self.stubborn = False
        self.layouts.tell()

    def measure(self, side: int, data: bytes, at: int) -> int:
        long = self.layouts.long[side]
        if long is None:
            if side != self.client and self.layouts.long[1 - side] is None and not self.stubborn:
                return WAIT
            long = self._framing(side, data, at)
            if long is None:
                return 0
        if long:
            if len(data) - at < LONG_TOLD:
                return 0
            size: int = U32(data, at + 48)[0]
            return size if size >= HEADER and 0 < data[at + 60] <= LATEST_COMMAND else -1
        first, second = U32_U32(data, at)
        if side == self.client:
            return first + 4 if first >= 4 and (first <= self.options.frame_limit or second in BY_CODE) else -1
        if not first or not second:
            return int(second) + 8
        if len(data) - at < min(12, second + 8):
            return 0
        # an error with a text
        return second + 8 if second >= 4 and U32(data, at + 8)[0] + 4 == second else self._refused(side, data, at, second + 8)

    def _refused(self, side: int, data: bytes, at: int, size: int) -> int:
        """The size of an error that does not hold a text of the length it states, where its status is known and the segment ends with it,
        or goes on as a response does."""
        flow, end = self.flows[side], at + size
        if U32(data, at)[0] not in NAMES or size > REFUSAL_SIZE:
            return -1
        if end > len(data):
            return 0
        following = flow.segment(flow.base + end - 1) + 1
        rest = data[end : flow.starts[following] - flow.base if following < len(flow.starts) else len(data)]
        if len(rest) < 8:
            return size if not rest else -1
        status, length = U32_U32(rest, 0)
        return size if (not status or status in NAMES) and length <= LIMIT else -1

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        long = self.layouts.long[side]
        ends: list[int] = []
        last = len(data)
        limit = min(self.options.frame_limit, last)
        if long is None:
            return super().boundaries(side, data, at)
        if long:
            while last - at >= HEADER:
                size = U32(data, at + 48)[0]
                if size < HEADER or size > limit or not 0 < data[at + 60] <= LATEST_COMMAND:
                    break
                at += size
                if at > last:
                    break
                ends.append(at)
        elif side == self.client:
            while last - at >= 8:
                size = U32(data, at)[0]
                if size < 4 or size > limit:
                    break
                at += size + 4
                if at > last:
                    break
                ends.append(at)
        else:
            while last - at >= 8:
                status, size = U32_U32(data, at)
                if size > limit or (status and size):
                    break
                at += size + 8
                if at > last:
                    break
                ends.append(at)
        return ends

    def _framing(self, side: int, data: bytes, at: int) -> bool | None:
        """Whether this side speaks the 256-byte framing, told by its first bytes; None where more are needed."""
        first = data[at : at + 8]
        other = self.layouts.long[1 - side]
        long: bool | None
        if side == self.client:
            long = first[:4] == b"\0\0\0\0"
        elif not other:
            long = False
        elif len(data) - at >= LONG_TOLD:
            long = U32(data, at + 48)[0] >= HEADER and data[at + 60] in (REPLY, EVICTION)
        else:
            # only zeros may become a header of 256 bytes
            long = False if any(first) else None
        if long is not None:
            self.layouts.speaks(side, long)
            if side == self.client:
                self.settle(side, self.flows[side].base + at + 8)
        return long

    def give_up(self, side: int) -> None:
        self.stubborn = True

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        flow = self.flows[side]
        base, known = flow.base, min(at + self.known[side], end)
        # Not every segment may have been looked at
        between = flow.starts[flow.segment(base + known) + 1 : flow.segment(base + end - 1) + 1]
        starts = [*(at + start for start in self.starts[side]), known, *(start - base for start in between)][: SEGMENTS_KEPT + 1]
        flow.effort.spend(4 * STEP)
        found, place = self._find(side, data, at, end, starts, final)
        if not found and end - place > SEARCH_WINDOW:
            # as the caller does
            place = end - SEARCH_WINDOW
        self.known[side] = 0 if found or final else end - place
        self.starts[side] = [] if found or final else [start - place for start in starts if place <= start < end][:SEGMENTS_KEPT]
        return found, place

    def _find(self, side: int, data: bytes, at: int, end: int, starts: list[int], final: bool) -> tuple[bool, int]:
        long, other = self.layouts.long[side], self.layouts.long[1 - side]
        effort = self.flows[side].effort
        client = side == self.client
        kinds = (REQUEST,) if client else (REPLY, EVICTION)
        if long or (long is None and (other is not False or self.layouts.blind)):
            found, place = find_long(data, at, end, kinds, effort)
            if not found and long and final:
                # No more of a header will come, as where the snap length cuts it
                whole = next((start for start in starts if may_be_long(data, start, end, kinds)), None)
                found, place = (True, whole) if whole is not None else (found, place)
            if found or long or (other and not self.layouts.blind):
                if found:
                    self.layouts.speaks(side, True)
                return found, place
        if client:
            found, place = find_request(data, at, end, starts, self.searched, effort)
        else:
            found, place = self._find_response(data, end, starts, effort)
        if found:
            self.layouts.speaks(side, False)
        return found, place

    def _find_response(self, data: bytes, end: int, starts: list[int], effort: Effort) -> tuple[bool, int]:
        waiting: int | None = None
        for start in starts:
            if start >= end:
                break
            if not effort.spend(STEP):
                return False, start if waiting is None else waiting
            count = responses_to(data, start, end, effort)
            if count is None:
                if waiting is None:
                    waiting = start
            elif count > 0 and (count * 8 < end - start or (count == 1 and waiting is None)):
                # empty answers are but zeros: several of them in a row prove nothing
                return True, start
        return False, end if waiting is None else waiting
