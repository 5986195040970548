"""Apache Iggy over TCP: a request leads with its length, a response with its status; or both with a header of 256 bytes.

No frame states its layout, and no response the request it answers. So the dissector keeps the layouts in which every frame so far
decodes with nothing left over, and the requests that wait for their answers, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import msgspec

from dissect.errors import Failure, bug
from dissect.layout import Style
from dissect.layout.values import UNREADABLE
from dissect.layout.walk import Walked
from dissect.model import Fault
from dissect.protocols.base import (
    ANSWER,
    ASK,
    END,
    NONE,
    SEARCH_WINDOW,
    WAIT,
    Context,
    Cut,
    Damage,
    Decoded,
    Dissector,
    Emitted,
    Mark,
    Protocol,
    Range,
    is_broken,
    range_of,
)
from dissect.protocols.effort import STEP, Effort
from dissect.protocols.iggy import frames
from dissect.protocols.iggy.behaviour import BEHAVIOUR
from dissect.protocols.iggy.bodies import ADDED, PARTS
from dissect.protocols.iggy.checks import CHECKED_OPERATIONS, Check, checks, request_checksum
from dissect.protocols.iggy.commands import BY_CODE, LISTED, NON_REPLICATED, OPERATIONS, REGISTER
from dissect.protocols.iggy.features import CLASSIC, FRAMINGS, LAYOUTS, LONG, hinted
from dissect.protocols.iggy.finding import LONG_TOLD, clean, find_long, find_request, long_header, may_be_long, responses_to
from dissect.protocols.iggy.frames import EVICTION, HEADER, OLD_LOGIN_CODE, OLD_LOGOUT_CODE, REPLY, REQUEST, U32, U32_U32, Table
from dissect.protocols.iggy.hiding import LOGIN, hide, may_be_login, may_be_token, may_hold_text, may_hold_token
from dissect.protocols.iggy.private import PRIVATE
from dissect.protocols.iggy.probe import probe
from dissect.protocols.iggy.statuses import ambiguous
from dissect.protocols.iggy.telling import TEXT, relate, says, streams

HELD_FRAMES, HELD_BYTES = 256, 1 << 20
"""So much of a conversation waits for its layout; then it is decoded with the likeliest one, and says so."""

WEIGHED, WEIGHED_SIZE = 256, 64
"""So many answers of so many bytes at most are remembered as telling nothing (idle consumers get the same one again and again)."""

ORDERS_KEPT = 1_024
"""So many packets of requests that were answered are remembered before they are forgotten at once."""

NEVER_LOST = -1

EARLY_FRAMES = 64
"""So many responses wait for a request that the capture shows later; then requests are not waited for any more."""

DECIDING_KEPT = 8
"""So many of the frames that told layouts apart are kept for the row of the conversation."""

FIRM = 64
"""After so many requests more it is believed that the client keeps one in flight, where the pairing rests on that."""

TRIED = 256
"""So many open requests are tried for a response when some may have been missed."""

SEGMENTS_KEPT = 64
"""So many segment starts are remembered as places where a frame may begin."""

TABLES_KEPT = 4_096
"""Choices of tables that are kept for all conversations; when there are more, all are made anew."""

DIGESTED = 1 << 16
"""From this size on what different layouts read in a frame is compared by digests."""

LATEST_COMMAND = 29
"""The highest command byte of the 256-byte framing."""

PORTS = (8090,)

STATING = frozenset(("login_user", "login_register", "login_register_with_pat", "get_stats"))
"""Messages in which a side may state its version."""

LOGINS = frozenset((38, 40, 44, 45, OLD_LOGIN_CODE))
"""Commands that let a client in."""

TOLD = frozenset(("login_with_personal_access_token", "get_snapshot"))
"""Messages that are looked at closely, besides: what lets a client in, and what holds any bytes."""

TEXT_LAYOUTS = ("L4", "L5", "L6")
"""Servers of these layouts send, some of them, a text with an error."""

OTHERS = (frames.OTHER, frames.HIDDEN_OTHER)
"""Frames that are neither requests nor answers."""

STALE = 13
"""The reason of an eviction that no request need have caused."""

ZEROS = frozenset(("reserved", "reserved_end", "operation_padding"))
"""Fields of the header of 256 bytes that hold nothing."""

_PLAIN = Style()
_SORTED = msgspec.msgpack.Encoder(order="deterministic")

_FIRST = ("V1",)
"""The layout whose requests have no checksum."""

_ASKS, _ANSWERS = bytes([REQUEST]), bytes([REPLY])
"""The command in a frame of the 256-byte framing."""


class Asked(NamedTuple):
    """A request that waits for its response: its running number and what it asks for."""

    number: int
    code: int | None
    operation: int | None = None
    client: bytes = b""
    request: int = 0


class Failed(Exception):
    """Raised where a frame failed whose `failure` is known, so that nothing else is looked at."""


class Given(NamedTuple):
    """What a frame is as far as the order of frames tells, before it is decoded."""

    number: int | None
    code: int | None
    operation: int | None = None
    notes: tuple[str, ...] = ()


Quick = tuple[str, Callable[[bytes, int, int], dict[str, Any]], Check | None]
"""What the fast path needs of a table of the conversation's layout: name, reader and check."""


class IggyDissector(Dissector):
    """One conversation of a client and a server of Apache Iggy."""

    protocol: ClassVar[str] = "iggy"
    header_size: ClassVar[int] = 8
    DERIVED = ("style", "plain", "tables", "asks", "answers", "made", "at")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if self.client is None:
            self.client = 0 if context.ports[1] in PORTS or context.ports[0] not in PORTS else 1
        self.style = Style(self.options.bytes_as, self.options.show_secrets, self.options.values_limit)
        verdict = context.verdict
        self.forced = verdict.layout in LAYOUTS
        self.candidates: tuple[str, ...] = (verdict.layout,) if verdict.layout in LAYOUTS else verdict.candidates
        self.long: list[bool | None] = [None, None]
        if self.candidates:
            self.long[self.client] = self.candidates[0] in LONG
            if self.forced:
                self.long = [self.long[self.client]] * 2
        # nothing said which framing it is: what frames tell counts from the packet on that brought them
        self.blind = not self.candidates
        # frames are cut ahead of what is decoded, so where they begin must not depend on the layouts left
        self.searched = self.candidates if self.candidates and self.candidates[0] in CLASSIC else CLASSIC
        self.told: list[bool | None] = [None, None] if self.blind else self.long
        self.settled = len(self.candidates) == 1
        self.assumed = False
        self.hint: str | None = None
        self.deciding: list[str] = []
        self.held: list[tuple[Cut, Given]] = []
        self.held_bytes = 0
        self.made: list[Emitted] = []
        """The records that `emit` has made so far."""
        self.at: Cut | None = None
        """The frame that is looked at."""
        self.pending: dict[tuple[int, int], int] = {}
        """Frames that wait, whatever for: their ends by side and position."""
        self.early: list[Cut] = []
        self.patient = True
        self.doubted: deque[Cut] = deque()
        """What the server sent behind a hole: the client may have lost a request as well, which shows with its next bytes only."""
        self.doubted_bytes = 0
        self.hasty = False
        """Whether more came than may wait."""
        self.heard = NEVER_LOST
        """The latest packet with bytes of the client that were looked at one by one, or the one behind a hole of it."""
        self.open: deque[Asked] = deque()
        """Requests that wait for their answers; plain tuples where the fast path put them."""
        self.number = 0
        self.orders: dict[int, int] = {}
        """By the running number of a request: the packet that completed it. Holes keep frames back, so they are not taken in order."""
        self.pipelined = False
        self.unsure = not context.syn
        self.firm = 0
        """Up to this running number of a request, if it is not 0: a response that does not fit, or that a second request came before,
        shows that the pairing is wrong, for it rests on a client that keeps one request in flight."""
        self.lost_asks = self.lost_answers = NEVER_LOST
        """The packet behind the last bytes that each side's byte stream lacks."""
        self.unmatched = NEVER_LOST
        """The latest packet with a response that nothing had asked for when it was handed on."""
        self.answered = NEVER_LOST
        """The latest packet with a response that came while the pairing was unsure."""
        self.lost_room = 0
        """So many answers may have been in what the server's lacks."""
        self.entered = END if context.syn else 0
        """The packet that made certain that the client was let in: what began before may be a login, whatever it looks like."""
        self.plain = not self.options.detail
        self.given: Given | None = None
        self.differ = False
        self.weighed: set[tuple[int | None, bytes]] = set()
        """Answers, with the command, that the layouts which are left read alike although they have several tables for them."""
        self.tables: dict[tuple[Any, ...], dict[Table, list[str]]] = {}
        """By kind of frame: the layouts that are left, by the table they have for it."""
        self.asks: dict[int, Quick | None] = {}
        self.answers: dict[int, Quick | None] = {}
        self.starts: list[list[int]] = [[], []]
        self.known = [0, 0]
        self.stubborn = False
        self._tell()

    # Framing

    def measure(self, side: int, data: bytes, at: int) -> int:
        long = self.long[side]
        if long is None:
            if side != self.client and self.long[1 - side] is None and not self.stubborn:
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
        if len(data) - at < 12:
            return 0
        # an error with a text
        return second + 8 if U32(data, at + 8)[0] + 4 == second else -1

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        long = self.long[side]
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
        other = self.long[1 - side]
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
            self._speaks(side, long)
            if side == self.client:
                self.settle(side, self.flows[side].base + at + 8)
        return long

    def _speaks(self, side: int, long: bool) -> None:
        if self.long[side] is None:
            self.long[side] = long
            self._tell()

    def give_up(self, side: int) -> None:
        self.stubborn = True

    @property
    def mismatch(self) -> bool:
        """Whether the two sides speak different framings."""
        one, other = self.told
        return one is not None and other is not None and one != other

    # The way back into frames

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
        long, other = self.long[side], self.long[1 - side]
        effort = self.flows[side].effort
        client = side == self.client
        kinds = (REQUEST,) if client else (REPLY, EVICTION)
        if long or (long is None and (other is not False or self.blind)):
            found, place = find_long(data, at, end, kinds, effort)
            if not found and long and final:
                # No more of a header will come, as where the snap length cuts it
                whole = next((start for start in starts if may_be_long(data, start, end, kinds)), None)
                found, place = (True, whole) if whole is not None else (found, place)
            if found or long or (other and not self.blind):
                if found:
                    self._speaks(side, True)
                return found, place
        if client:
            found, place = find_request(data, at, end, starts, self.searched, effort)
        else:
            found, place = self._find_response(data, end, starts, effort)
        if found:
            self._speaks(side, False)
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

    # Layouts

    def emit(self, cuts: list[Cut]) -> list[Emitted]:
        made = self.made = []
        at, count = 0, len(cuts)
        try:
            while at < count and self.failure is None:
                # Whoever is answered, requests stay what they are
                if not self.early and not self.doubted and (not self.firm or self.unsure):
                    stop = self._ordinary(cuts, at) if self.settled else self._alike(cuts, at)
                    if stop > at:
                        if self.unsure:
                            self.hasty = False
                            self.heard = max(self.heard, *(cut[1] for cut in cuts[at:stop]))
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
            self.failure = self.failure or Failure(bug(error), cut[0], cut[6], cut[7])
            if self.at is cut:
                self._save(cut[0])
        if self.failure is not None:
            self.drop(cuts[at:])
        return made

    def _put(self, cut: Cut) -> None:
        """Make the record of a frame."""
        self.made += super().emit([cut])
        if self.failure is not None:
            raise Failed
        self.pending.pop((cut[4], cut[3]), None)

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

    def _ordinary(self, cuts: list[Cut], at: int) -> int:
        """Where the frames end that neither are gaps nor answer what was not asked."""
        opened, client, orders = self.open, self.client, self.orders
        long = self.long[client or 0]
        self._forget()
        last = self.number
        oldest = opened[0][0] if opened else last + 1
        for index in range(at, len(cuts)):
            cut = cuts[index]
            data = cut[10]
            if data is None:
                return index
            if long and data[cut[11] + 60 : cut[11] + 61] != (_ASKS if cut[4] == client else _ANSWERS):
                return index
            if cut[4] == client:
                if cut[1] < self.unmatched:
                    return index
                last += 1
                orders[last] = cut[1]
            elif self.unsure:
                return index
            elif oldest <= last:
                if oldest < last and not self.pipelined:
                    self.pipelined = orders[oldest + 1] < cut[1]
                oldest += 1
            else:
                return index
        return len(cuts)

    def _alike(self, cuts: list[Cut], at: int) -> int:
        """Where the ordinary frames end that all layouts which are left read alike, so that nothing can be told from them."""
        if self.blind or self.mismatch:
            return at
        client, orders = self.client, self.orders
        long = self.long[client or 0]
        candidates = set(self.candidates)
        self._forget()
        last = self.number
        asked: list[tuple[int, int | None, int | None]] = []
        waiting: Iterator[Any] = chain(self.open, asked)
        held = {given.number for _, given in self.held}
        for index in range(at, len(cuts)):
            cut = cuts[index]
            asks, data, start, end = cut[4] == client, cut[10], cut[11], cut[12]
            if data is None or cut[13] is not None:
                return index
            if long and (end - start < HEADER or not candidates.issubset(frames.header_layouts(data, start, end, asks))):
                return index
            if asks:
                if cut[1] < self.unmatched or (long and data[start + 60] != REQUEST):
                    return index
                operation: int | None = data[start + 176] if long else None
                if operation is None or operation == NON_REPLICATED:
                    code = key = U32(data, start + (4 if operation is None else 196))[0]
                else:
                    code, key = OPERATIONS.get(operation), -operation
                if self._quick_of(key, True) is None:
                    return index
                last += 1
                orders[last] = cut[1]
                asked.append((last, code, operation))
                continue
            if self.unsure:
                return index
            number, code, operation = next(waiting, (0, None, None))[:3]
            if code is None or number in held or U32(data, start + (216 if long else 0))[0]:
                return index
            if long and (
                data[start + 60] != REPLY or operation != NON_REPLICATED or data[start + 208] != operation or U32(data, start + 224)[0]
            ):
                return index
            if self._quick_of(code, False) is None and (end - start > WEIGHED_SIZE or (code, data[start:end]) not in self.weighed):
                return index
            if number < last and not self.pipelined:
                self.pipelined = orders[number + 1] < cut[1]
        return len(cuts)

    def _quick_of(self, key: int, asks: bool) -> Quick | None:
        known = self.asks if asks else self.answers
        if key not in known:
            known[key] = self._quick(key, asks)
        return known[key]

    def _forget(self) -> None:
        """Keep no more of what was asked than there may be open requests."""
        opened, orders = self.open, self.orders
        while len(opened) > self.options.open_limit:
            opened.popleft()
        if len(orders) > 2 * len(opened) + ORDERS_KEPT:
            oldest = opened[0][0] if opened else self.number + 1
            for number in [number for number in orders if number < oldest]:
                del orders[number]

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
        side, data, start, end = cut[4], cut[10], cut[11], cut[12]
        self.at = cut
        if side != self.client:
            if self.doubted or self._doubts(cut[1]):
                self._doubt(cut)
            else:
                self._emit_answer(cut)
            return
        if data is None and cut[13][1]:
            self._put(cut)
            return
        self.hasty = False
        if data is None:
            # answers that wait for their requests go on waiting: those behind the hole come now
            self.lost_asks = max(self.lost_asks, cut[1])
            self._stop_doubting(cut[0], cut[1])
            self._put(cut)
            return
        self._hear_framing(side)
        self._stop_doubting(cut[0], cut[1])
        while self.unsure and self.early and self.early[0][1] < cut[1]:
            self._place_early(cut[0])
        self.at = cut
        self._place(cut, self._ask(data, start, end, cut[1], cut[13]))
        self.heard = max(self.heard, cut[1])
        self._stop_doubting(cut[0])
        # after a loss they go on waiting until every request that was sent before them is here
        while self.early and self.open and not self.unsure:
            self._place_early(cut[0])

    def _emit_answer(self, cut: Cut) -> None:
        side, data, start, end = cut[4], cut[10], cut[11], cut[12]
        self.at = cut
        if self.hasty:
            # one that is missing may follow any of the requests seen so far
            self.lost_asks = max(self.lost_asks, cut[1])
        if data is None:
            if cut[13][1]:
                self._put(cut)
                return
            self._give_up_early(cut[0])
            certain = not self.unsure and self._skip_answers(start)
            self.lost_answers = max(self.lost_answers, cut[1])
            self.heard = max(self.heard, self.orders.get(self.number, NEVER_LOST))
            self.lost_room += 1 + start // (HEADER if self.long[side] else 8)
            self._put(cut)
            if certain:
                self._certain()
            return
        self._hear_framing(side)
        if self.early and self.unsure:
            self._give_up_early(cut[0])
            self._emit_answer(cut)
            return
        if not self.open and self.patient and not self.unsure and self._expected(data, start, end):
            self.early.append((*cut[:10], data[start:end], 0, end - start, *cut[13:]))
            if len(self.early) > EARLY_FRAMES:
                self.patient = False
                self._give_up_early(cut[0])
            return
        self._place(cut, self._answer(data, start, end, cut[1], cut[13]))

    def _hear_framing(self, side: int) -> None:
        """Take in which framing a side speaks where nothing said so before."""
        if self.blind:
            self.told[side] = self.long[side]
            if not self.candidates:
                self.candidates = LONG if self.long[side] else CLASSIC
            self._tell()

    def _doubts(self, order: int) -> bool:
        """Whether what the server sends with this packet may answer a request that is not here: the client's next bytes tell."""
        if not self.unsure or self.hasty or order <= self.heard:
            return False
        # else the client asked since, and this must be the answer to that
        return self.heard == NEVER_LOST or self.lost_answers > self.heard or self.answered > self.heard

    def _doubt(self, cut: Cut) -> None:
        """Let what the server sent wait for the next bytes of the client."""
        data, start, end = cut[10], cut[11], cut[12]
        if data is not None:
            cut = (*cut[:10], data[start:end], 0, end - start, *cut[13:])
            self.doubted_bytes += end - start
        self.doubted.append(cut)
        self.hasty = len(self.doubted) > EARLY_FRAMES or self.doubted_bytes > HELD_BYTES
        if self.hasty:
            self._stop_doubting(cut[0])

    def _stop_doubting(self, release: int, before: int = 0) -> None:
        """Go on with what waited for bytes of the client: with what came `before` a packet, or with what there is no doubt about."""
        while self.doubted and (self.doubted[0][1] < before if before else not self._doubts(self.doubted[0][1])):
            cut = self.doubted.popleft()
            self.doubted_bytes -= cut[12] if cut[10] is not None else 0
            self._emit_answer((max(cut[0], release), *cut[1:]))

    def _place_early(self, release: int) -> None:
        """Place the first of the responses that came before their requests."""
        early = self.at = self.early.pop(0)
        self._place((max(early[0], release), *early[1:]), self._answer(early[10], early[11], early[12], early[1], early[13]))

    def _skip_answers(self, size: int) -> bool:
        """Whether `size` lost bytes of the server are exactly the next answers, because none of those has a body; they are taken off."""
        if size % 8 or self.long[1 - (self.client or 0)] or set(self.candidates) & set(TEXT_LAYOUTS) or size > 8 * len(self.open):
            return False
        count = size // 8
        missed = [Asked._make(self.open[index]) for index in range(count)]
        if not all(asked.code is not None and frames.always_empty(asked.code, layout) for asked in missed for layout in self.candidates):
            return False
        for _ in range(count):
            self.open.popleft()
        return True

    def _expected(self, data: bytes, start: int, end: int) -> bool:
        """Whether a response that nothing asked for will find its request later in the capture."""
        if self.mismatch or not self.long[1 - (self.client or 0)] or end - start <= 60:
            return not self.mismatch
        return data[start + 60] == REPLY or (data[start + 60] == EVICTION and not _may_come_unasked(data, start, end))

    def _give_up_early(self, release: int) -> None:
        """Responses whose request does not come."""
        while self.early:
            self._place_early(release)

    def _stop_waiting(self, release: int) -> None:
        """Decode what is held with the likeliest layout."""
        self.heard = END
        self._stop_doubting(release)
        self._give_up_early(release)
        self.assumed = True
        self._release(release)

    def _place(self, cut: Cut, given: Given) -> None:
        """Emit one frame, or hold it until its layout is known; with it all that waited for what it tells."""
        differ = False
        data, start, end = cut[10], cut[11], cut[12]
        if not self.settled and self.long[cut[4]] and cut[13] is None:
            possible = frames.header_layouts(data, start, end, cut[4] == self.client)
            if self._keep(cut, given, tuple(layout for layout in self.candidates if layout in possible)):
                self._release(cut[0])
                self.at = cut
        if not self.settled:
            tables = self._tables(cut[4], data, start, end, given)
            if len(tables) > 1:
                readings = {table: _reading(table, data, start, end, cut[13]) for table in tables}
                if cut[13] is None and self._narrow(cut, given, tables, readings):
                    self._release(cut[0])
                    self.at = cut
                kept = [reading.told for table, reading in readings.items() if tables[table][0] in self.candidates]
                differ = any(told != kept[0] for told in kept[1:])
                if not differ and cut[4] != self.client and cut[13] is None and end - start <= WEIGHED_SIZE:
                    self._remember(given.code, data[start:end])
            if not self.assumed and (differ or self._asked_by_held(given)):
                self.held.append(((*cut[:10], data[start:end], 0, end - start, *cut[13:]), given))
                self.held_bytes += end - start
                if len(self.held) > HELD_FRAMES or self.held_bytes > HELD_BYTES:
                    self.assumed = True
                    self.facts["undecided"] = "more frames waited for the layout than are kept"
                    self._release(cut[0])
                return
        self.given, self.differ = given, differ
        self._put(cut)

    def _remember(self, code: int | None, frame: bytes) -> None:
        """Keep an answer that the layouts which are left read alike: the same answer will tell nothing new."""
        if len(self.weighed) == WEIGHED:
            self.weighed.clear()
        self.weighed.add((code, frame))

    def _release(self, release: int) -> None:
        """Emit what was held and need not be any more."""
        held, self.held, self.held_bytes = self.held, [], 0
        for cut, given in held:
            self.at = cut
            differ = not self.settled and self._differs(cut, given)
            if not self.assumed and (differ or self._asked_by_held(given)):
                self.held.append((cut, given))
                self.held_bytes += cut[12]
                continue
            self.given, self.differ = given, differ
            self._put((max(cut[0], release), *cut[1:]))

    def _asked_by_held(self, given: Given) -> bool:
        """Whether the request that this answers is held."""
        return given.number is not None and any(given.number == before.number for _, before in self.held)

    def _differs(self, cut: Cut, given: Given) -> bool:
        """Whether the layouts that are left read this frame differently."""
        tables = self._tables(cut[4], cut[10], cut[11], cut[12], given)
        told = [_reading(table, cut[10], cut[11], cut[12], cut[13]).told for table in tables] if len(tables) > 1 else []
        return any(one != told[0] for one in told[1:])

    def _tables(self, side: int, data: bytes, start: int, end: int, given: Given) -> dict[Table, list[str]]:
        """The layouts that are left by their table for this frame."""
        kind = self._kind_of(side, data, start, end, given)
        tables = self.tables.get(kind)
        if tables is None:
            key = self.candidates, self.client, self.forced, self.mismatch, *self.long, kind
            tables = _known_tables.get(key)
            if tables is None:
                tables = {}
                for layout in self.candidates:
                    tables.setdefault(self._table(layout, side, data, start, end, given), []).append(layout)
                if len(_known_tables) >= TABLES_KEPT:
                    _known_tables.clear()
                _known_tables[key] = tables
            self.tables[kind] = tables
        return tables

    def _kind_of(self, side: int, data: bytes, start: int, end: int, given: Given) -> tuple[Any, ...]:
        """All that the choice of a table depends on besides the layout."""
        if self.long[side]:
            if side == self.client:
                hidden = self._may_hide(given.code, data, start + HEADER, end)
                return (
                    side,
                    given.code,
                    given.operation,
                    hidden,
                    data[start + 60 : start + 61],
                    frames.request_header("V1", data, start, end),
                )
            size = end - start
            return (
                side,
                given.code,
                given.operation,
                data[start + 60 : start + 61],
                data[start + 208 : start + 209],
                size >= HEADER and any(data[start + 216 : start + 220]),
                size >= HEADER and any(data[start + 224 : start + 228]),
                size >= HEADER + 4 and any(data[start + HEADER : start + HEADER + 4]),
                self._is_token(side, data, start, end),
                size >= HEADER,
            )
        if side == self.client:
            return side, given.code, self._may_hide(given.code, data, start + 8, end)
        if end - start < 8:
            return (side,)
        status, length = U32_U32(data, start)
        if status:
            return side, None, length > 0
        return side, given.code, self._hides_answer(given.code, data, start + 8, end)

    def _narrow(self, cut: Cut, given: Given, tables: dict[Table, list[str]], readings: dict[Table, Reading]) -> bool:
        """Keep the layouts in which this frame decodes with nothing left over; whether that told anything."""
        side = cut[4]
        if side != self.client:
            # what answers another request tells a wrong layout, and an answer without a body fits nearly anything
            doubtful = UNSURE in given.notes or (self.firm and cut[12] - cut[11] <= (HEADER if self.long[side] else 8))
            if self.mismatch or doubtful:
                return False
        fitting = [table for table, reading in readings.items() if reading.whole and (table.code is not None or table.name == "error")]
        likely = [table for table in fitting if table.name == "error" or readings[table].plausible] or fitting
        kept = {layout for table in likely for layout in tables[table]}
        return self._keep(cut, given, tuple(layout for layout in self.candidates if layout in kept))

    def _keep(self, cut: Cut, given: Given, candidates: tuple[str, ...]) -> bool:
        """Go on with these layouts; whether they are fewer than before, and not none."""
        if not candidates or len(candidates) == len(self.candidates):
            return False
        self.candidates = candidates
        self.tables.clear()
        self.asks.clear()
        self.answers.clear()
        self.settled = len(candidates) == 1
        who = "client" if cut[4] == self.client else "server"
        if len(self.deciding) < DECIDING_KEPT:
            self.deciding.append(f"{frames.name_of(given.code)} ({who}, position {cut[3]}): {', '.join(candidates)}")
        self._tell()
        return True

    @property
    def layout(self) -> str:
        """The layout to decode with: the only one left, or else the likeliest."""
        candidates = self.candidates or CLASSIC
        return self.hint if self.hint in candidates else candidates[-1]

    def _tell(self) -> None:
        """Keep the facts for the row of this conversation."""
        self.facts["layout"] = self.candidates[0] if self.settled else None
        self.facts["candidates"] = () if self.settled else self.candidates
        client = self.client or 0
        long, other = self.told[client], self.told[1 - client]
        if long is not None:
            self.facts["framing"] = FRAMINGS[long]
        if long is not None and other is not None and self.mismatch:
            behind = {key: self.facts.pop(key) for key in [*self.facts] if key not in ("layout", "candidates", "framing")}
            self.facts["mismatch"] = f"the client speaks the {FRAMINGS[long]} framing, the server the {FRAMINGS[other]} one"
            # frames are cut ahead of what is decoded, so its place must not depend on what the facts hold by then
            self.facts.update(behind)
        if self.deciding:
            self.facts["deciding_frames"] = self.deciding

    def _table(self, layout: str, side: int, data: bytes, start: int, end: int, given: Given) -> Table:
        """The table for this frame if the layout is `layout`."""
        code = given.code
        if self.long[side]:
            return self._long_table(layout, side, data, start, end, given)
        if side == self.client:
            found = None if code is None else frames.ask(code, layout)
            return found or (frames.HIDDEN_ASK if self._may_hide(code, data, start + 8, end) else frames.UNKNOWN_ASK)
        if end - start < 8:
            return frames.UNKNOWN_ANSWER
        status, length = U32_U32(data, start)
        if status:
            if self.mismatch:
                return frames.refusal("L9")
            return frames.refusal(layout) if not length or layout in TEXT_LAYOUTS else frames.BARE_REFUSAL
        if self._hides_answer(code, data, start + 8, end):
            return frames.TOKEN_ANSWER
        return frames.answer(code, layout)

    def _has(self, code: int | None) -> bool:
        """Whether all layouts that are left have a command."""
        return code is not None and all(frames.exists(code, layout) for layout in self.candidates)

    def _may_hide(self, code: int | None, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a request that a layout does not have may be a password or a token."""
        if self._has(code):
            return False
        if code is not None and not _nameless(code) and not frames.hides(code) and frames.is_body(code, data, start, end):
            return False
        return (code is not None and frames.hides(code)) or may_hold_text(data, start, end)

    def _hides_answer(self, code: int | None, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a response in the classic framing, of which nothing is known, may be a secret."""
        if self._has(code):
            return False
        if _nameless(code):
            return may_hold_text(data, start, end) if self.mismatch else may_hold_token(data, start, end)
        return may_be_token(data, start, end)

    def _is_token(self, side: int, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a response may be a token, behind a list of results perhaps."""
        return any(may_be_token(data, start + at, end) for at in ((HEADER, HEADER + 4) if self.long[side] else (8,)))

    def _long_table(self, layout: str, side: int, data: bytes, start: int, end: int, given: Given) -> Table:
        code, operation = given.code, given.operation
        kind = data[start + 60] if end - start > 60 else 0
        # a framing that was forced may be the wrong one, and what it takes for a body then holds any bytes, secrets too
        doubtful = self.forced and not long_header(data, start, end)
        if side == self.client:
            if kind != REQUEST:
                return frames.HIDDEN_OTHER if self.forced else frames.OTHER
            header = frames.request_header(layout, data, start, end)
            found = frames.long_ask(operation, code, layout, header)
            return found or frames.long_unknown_ask(header, doubtful, self._may_hide(code, data, start + HEADER, end))
        if kind == EVICTION:
            return frames.EVICTED
        if kind != REPLY:
            return frames.HIDDEN_OTHER if self.forced else frames.OTHER
        status_at = start + (224 if layout == "V1" else 216)
        named = data[start + 208] if end - start > 208 else operation
        listed = named in LISTED or named == REGISTER
        if end - start >= HEADER:
            if U32(data, status_at)[0]:
                return frames.long_refusal(layout, False)
            if listed and end - start >= HEADER + 4 and U32(data, start + HEADER)[0]:
                return frames.long_refusal(layout, True)
        if _nameless(code):
            hidden = doubtful or data[start + 208 : start + 209] == b"\x92" or may_hold_token(data, start + HEADER, end)
            return frames.long_unknown_answer(layout, hidden)
        return frames.long_answer(named, code, layout)

    # Who answers whom

    def lost(self, side: int) -> None:
        self.unsure = True

    def _certain(self) -> None:
        """Nothing that was lost leaves a doubt about who answers whom any more."""
        self.unsure, self.firm = False, 0
        self.lost_room = 0

    def _ask(self, data: bytes, start: int, end: int, order: int, damage: Damage | None) -> Given:
        """Take a request in."""
        opened = self.open
        self._forget()
        self.number = number = self.number + 1
        self.orders[number] = order
        if self.long[self.client or 0]:
            operation, code = frames.operation_and_code(data, start, end)
            if operation == REGISTER:
                code = frames.registered_by(data, start, end, None if damage is None else damage.reason)
            client = data[start + 128 : start + 144]
            request = int.from_bytes(data[start + 168 : start + 176], "little")
            asked = Asked(number, code, operation, client, request)
        else:
            code, operation = U32(data, start + 4)[0], None
            if (code == 32 or code == 33) and ("L0" in self.candidates or code == 32):
                code = _old_code(code, U32(data, start)[0])
            asked = Asked(number, code)
        if self.long[self.client or 0] and data[start + 60 : start + 61] != _ASKS:
            # a frame between replicas
            return Given(number, code, operation)
        if self.pipelined or order >= self.unmatched:
            # else a hole kept it back so long that its answer was handed on
            opened.append(asked)
        return Given(number, code, operation)

    def _asked_before(self, order: int) -> int:
        """How many of the open requests were sent before this packet."""
        count = 0
        for asked in self.open:
            if self.orders[asked[0]] >= order:
                break
            count += 1
        return count

    def _latest(self, data: bytes, start: int, end: int, order: int, damage: Damage | None) -> Asked | None:
        """The request that a response after a loss answers where the client keeps one in flight, having read all answers before.

        None: it may keep more in flight, or a request of which nothing is known may be the one that is answered.
        """
        answered, self.answered = self.answered, max(self.answered, order)
        count = self._asked_before(order)
        if self.pipelined or not count:
            return None
        orders = [self.orders[self.open[index][0]] for index in range(count)]
        if not self._is_behind(Asked._make(self.open[count - 1])) or orders[-1] < answered:
            # behind a response comes the next request first: if it is not here it was lost
            return None
        if count > 1 and (orders[-2] >= max(self.lost_answers, answered) or count - 1 > self.lost_room or len(set(orders)) < count):
            # more than one waits, and not because an answer was lost
            self.pipelined = True
            return None
        asked = Asked._make(self.open[count - 1])
        return asked if self.long[1 - (self.client or 0)] or self._can_answer(asked, data, start, end, damage, {}) else None

    def _is_behind(self, asked: Asked) -> bool:
        """Whether this request was sent behind all bytes of its side that are known to be lost."""
        return self.orders[asked.number] >= self.lost_asks

    def _take(self, asked: Asked) -> None:
        """Remove a request, and those before it, which are not answered any more."""
        while self.open.popleft()[0] != asked.number:
            pass

    def _answer(self, data: bytes, start: int, end: int, order: int, damage: Damage | None) -> Given:
        """Find the request that a response answers, and remove it."""
        opened = self.open
        if self.mismatch:
            return Given(None, None, None, (f"{self.facts['mismatch']}: this answers bytes of a frame, not a request",))
        if self.long[1 - (self.client or 0)]:
            return self._long_answer(data, start, end, order, damage)
        if not opened:
            self.unmatched = max(self.unmatched, order)
            return Given(None, None, None, ("no request for this response was seen",))
        if self.unsure:
            latest = self._latest(data, start, end, order, damage)
            if latest is None:
                return self._guess(data, start, end, order, damage)
            self._take(latest)
            self._certain()
            self.firm = latest.number + FIRM
            return Given(latest.number, latest.code, latest.operation)
        asked = Asked._make(opened[0])
        if len(opened) > 1 and self.orders[opened[1][0]] < order:
            self.pipelined = True
        if self.firm:
            if self.pipelined or not self._can_answer(asked, data, start, end, damage, {}):
                self.unsure, self.firm = True, 0
                return self._guess(data, start, end, order, damage)
            if asked.number > self.firm:
                self.firm = 0
        del opened[0]
        return Given(asked.number, asked.code, asked.operation)

    def _guess(self, data: bytes, start: int, end: int, order: int, damage: Damage | None) -> Given:
        """The request that a response may answer, after some may have been missed: the first whose answer it can be."""
        count = min(TRIED, self._asked_before(order))
        known: dict[Table, bool] = {}
        fitting = [index for index in range(count) if self._can_answer(Asked._make(self.open[index]), data, start, end, damage, known)]
        if not fitting:
            self.lost_room += 1
            return Given(None, None, None, (UNSURE,))
        asked = Asked._make(self.open[fitting[0]])
        sure = len(fitting) == 1 and end - start >= 16 and self._is_behind(asked)
        self._take(asked)
        if sure:
            self._certain()
        return Given(asked.number, asked.code, asked.operation, () if sure else (UNSURE,))

    def _can_answer(self, asked: Asked, data: bytes, start: int, end: int, damage: Damage | None, known: dict[Table, bool]) -> bool:
        """Whether some layout reads a response as that to this request; `known`: what was found out about this response before."""
        given = Given(asked.number, asked.code, asked.operation)
        server = 1 - (self.client or 0)
        for layout in self.candidates:
            table = self._table(layout, server, data, start, end, given)
            if table not in known:
                known[table] = table.name != "unknown" and _fits(table, data, start, end, damage)
            if known[table]:
                return True
        return False

    def _long_answer(self, data: bytes, start: int, end: int, order: int, damage: Damage | None) -> Given:
        opened = self.open
        if end - start < 209:
            return self._oldest(())
        kind = data[start + 60]
        operation: int | None = None
        if kind == EVICTION:
            client, request = data[start + 128 : start + 144], None
        elif kind == REPLY:
            client, request = data[start + 160 : start + 176], int.from_bytes(data[start + 200 : start + 208], "little")
            operation = data[start + 208]
        else:
            return Given(None, None)
        if not opened:
            if _may_come_unasked(data, start, end):
                # or its request is captured later
                self.unsure = True
                return Given(None, None)
            self.unmatched = max(self.unmatched, order)
            return Given(None, None, operation, ("no request for this response was seen",))
        if self.unsure:
            latest = self._latest(data, start, end, order, damage)
            if latest is not None and _echoes(latest, client, request, operation):
                self._certain()
                self._take(latest)
                self.firm = latest.number + FIRM
                return Given(latest.number, latest.code, latest.operation)
        elif len(opened) > 1 and self.orders[opened[1][0]] < order:
            self.pipelined = True
            self.unsure = self.firm > 0
        if opened[0][0] > self.firm:
            self.firm = 0
        before = min(TRIED, self._asked_before(order)) if self.unsure else TRIED
        echoing = [asked for asked in map(Asked._make, islice(opened, before)) if _echoes(asked, client, request, operation)]
        if echoing and (self.unsure or echoing[0].number == opened[0][0] or len(echoing) == 1):
            if self.unsure and len(echoing) == 1 and any(client[4:]) and self._is_behind(echoing[0]):
                self._certain()
            self._take(echoing[0])
            return Given(echoing[0].number, echoing[0].code, echoing[0].operation, (UNSURE,) if self.unsure else ())
        asked = Asked._make(opened[0])
        if self.unsure:
            return Given(None, None if operation is None else OPERATIONS.get(operation), operation, (UNSURE,))
        if kind == EVICTION:
            return self._oldest(("evicts another client than the one that waits",))
        return self._oldest(
            (f"answers request {request}, operation {operation}; request {asked.request}, operation {asked.operation} waits",)
        )

    def _oldest(self, notes: tuple[str, ...]) -> Given:
        """The request that has waited longest is answered."""
        if not self.open:
            return Given(None, None, None, notes)
        asked = Asked._make(self.open.popleft())
        return Given(asked.number, asked.code, asked.operation, (*notes, UNSURE) if self.unsure else notes)

    # Decoding

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> Decoded | tuple[Any, ...]:
        given = self.given
        asks = side == self.client
        if given is None:
            if damage is None and self.plain:
                quick = self._quick_ask(side, data, start, end) if asks else self._quick_answer(side, data, start, end)
                if quick is not None:
                    return quick
            given = self._ask(data, start, end, self.orders[self.number + 1], damage) if asks else self._answer(data, start, end, 0, damage)
        else:
            self.given = None
        layout = self.layout
        if damage is not None or not self.plain:
            return self._walked(side, data, start, end, given, layout, damage)
        table = self._table(layout, side, data, start, end, given)
        if table.code is not None and not table.mixed:
            try:
                fields = table.reader(self.style)(data, start, end)
            except UNREADABLE:
                return self._walked(side, data, start, end, given, layout, None)
            if "trailing" not in fields:
                return self._finish_up(side, data, start, end, given, layout, table, table.name, fields, [], None, None)
        return self._walked(side, data, start, end, given, layout, None)

    def _quick_ask(self, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        """A whole, well-formed request of the settled layout; None leaves it, untouched, to the exact way."""
        long = self.long[side]
        if long:
            key = -data[start + 176]
            if key == -NON_REPLICATED:
                key = U32(data, start + 196)[0]
        else:
            key = U32(data, start + 4)[0]
        try:
            quick = self.asks[key]
        except KeyError:
            quick = self.asks[key] = self._quick(key, True)
        if quick is None:
            return None
        name, read, check = quick
        try:
            fields = read(data, start, end)
        except UNREADABLE:
            return None
        if "trailing" in fields:
            return None
        opened = self.open
        self.number = number = self.number + 1
        notes: Any = ()
        if long:
            if check is not None:
                notes = check(data, start, start + HEADER, end)
            operation = data[start + 176]
            if operation in CHECKED_OPERATIONS and self.candidates != _FIRST:
                notes = [*notes, *request_checksum(data, start, end)]
            ident = fields["request"]
            code = OPERATIONS[operation] if key < 0 else key
            opened.append((number, code, operation, data[start + 128 : start + 144], ident))  # type: ignore[arg-type]
            return (name, "request", ident, fields, None, notes, None, ASK, number, None)
        if check is not None:
            notes = check(data, start, start + 8, end)
        opened.append((number, key, None, b"", 0))  # type: ignore[arg-type]
        return (name, "request", None, fields, None, notes, None, ASK, number, None)

    def _quick_answer(self, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        """A whole, well-formed answer without an error to the oldest request; None leaves it, untouched, to the exact way."""
        opened = self.open
        if not opened or self.unsure:
            return None
        number, code, operation, client, request = opened[0]
        long = self.long[side]
        if long is not self.long[1 - side]:
            return None
        if long:
            if code is None or operation is None:
                return None
            key = code if operation == NON_REPLICATED else -operation
            echoed = data[start + 160 : start + 176]
            if data[start + 60] != REPLY or data[start + 208] != operation or (echoed != client and any(echoed[4:])):
                return None
        else:
            if U32(data, start)[0] or code is None:
                return None
            key = code
        try:
            quick = self.answers[key]
        except KeyError:
            quick = self.answers[key] = self._quick(key, False)
        if quick is None:
            return None
        name, read, check = quick
        try:
            fields = read(data, start, end)
        except UNREADABLE:
            return None
        if "trailing" in fields:
            return None
        ident = None
        if long:
            ident = fields["request"]
            if fields["status"] or fields.get("results") or (ident != request and echoed == client):
                return None
        opened.popleft()
        notes: Any = () if check is None else check(data, start, start + (HEADER if long else 8), end)
        return (name, "response", ident, fields, "answered", notes, None, ANSWER, number, None)

    def _quick(self, key: int, asks: bool) -> Quick | None:
        return _quick(self.candidates, bool(self.long[self.client or 0]), key, asks, self.style)

    def _hear(self, fields: dict[str, Any]) -> None:
        """Keep the version that a side states of itself."""
        for key, server in (("version", False), ("sdk_version", False), ("server_version", True)):
            version = fields.get(key)
            if isinstance(version, str) and version and not version.startswith("<redacted "):
                name = fields.get("sdk_name")
                self.facts["server_version" if server else "client_version"] = version if name is None else f"{name} {version}"
                self.hint = hinted(version, server) or self.hint

    def _walked(
        self, side: int, data: bytes, start: int, end: int, given: Given, layout: str, damage: Damage | None
    ) -> Decoded | tuple[Any, ...]:
        table = self._table(layout, side, data, start, end, given)
        form, walked = table.walk(data, start, end, self.style, None if damage is None else damage.reason)
        if not self.style.show_secrets:
            other = self._hiding(table, walked, side, data, start, end, given, layout, damage)
            if other is not None:
                missing = None if damage is None else damage.reason
                _, hidden = other.walk(data, start, end, self.style, missing)
                if missing is None and table.code is not None:
                    body = hidden.spans[-1].offset
                    hidden = hidden._replace(fault=Fault("body", body, f"cannot be read as {form.name} to its end"))
                walked = hidden
            elif walked.fault is not None or "trailing" in walked.fields:
                cut = damage is not None and not table.mixed and (table.secret or self.began >= self.entered)
                walked = hide(walked, data, start, table.name if table.secret else None, cut)
        name = form.name if table.code is not None else table.name
        if damage is not None and name in STATING and walked.fault is not None and "trailing" not in walked.fields:
            # what there is of it is as it should be
            self._hear(walked.fields)
        return self._finish_up(side, data, start, end, given, layout, table, name, walked.fields, walked.notes, walked.fault, walked)

    def _hiding(
        self, table: Table, walked: Walked, side: int, data: bytes, start: int, end: int, given: Given, layout: str, damage: Damage | None
    ) -> Table | None:
        """The table that hides the whole body of a frame which is not as its own says, where that may be a secret altogether."""
        long = self.long[side]
        body = start + (HEADER if long else 8)
        over = "trailing" in walked.fields
        if table in OTHERS or body > end or (damage is not None and table.code is not None and not over):
            # It is hidden as a whole, or what there is of it is as it should be
            return None
        flawed = walked.fault is not None or over
        # bytes that are missing there have moved the body into it
        shifted = bool(long and table.secret) and any(
            data[start + span.offset : start + span.offset + span.length].strip(b"\0") for span in walked.spans if span.name in ZEROS
        )
        if side == self.client:
            unknown = table is frames.UNKNOWN_ASK or (long and table.code is None)
            if unknown:
                hidden = damage is not None
            else:
                hidden = shifted or (flawed and not table.secret and (self.began < self.entered or may_be_login(data, body, end)))
            if hidden and may_hold_text(data, body, end, True):
                return frames.long_unknown_ask(frames.request_header(layout, data, start, end), True, True) if long else frames.HIDDEN_ASK
            return None
        if table.code is None:
            hidden = damage is not None and table.name == "unknown" and may_hold_text(data, body, end, True)
        else:
            hidden = shifted or ((flawed or table.name == "get_snapshot") and self._is_token(side, data, start, end))
        if hidden:
            return frames.long_unknown_answer(layout, True, shifted) if long else frames.TOKEN_ANSWER
        return None

    def _finish_up(
        self,
        side: int,
        data: bytes,
        start: int,
        end: int,
        given: Given,
        layout: str,
        table: Table,
        name: str,
        fields: dict[str, Any],
        notes: list[str],
        fault: Any,
        walked: Walked | None,
    ) -> Decoded | tuple[Any, ...]:
        asks = side == self.client
        long = self.long[side]
        if given.notes:
            notes = [*notes, *given.notes]
        if fault is None:
            check = checks(table.code, layout, asks)
            body = HEADER if long else 8
            if check is not None and not (walked is not None and "trailing" in fields):
                notes = [*notes, *check(data, start, start + body, end)]
            if asks and long and layout != "V1" and end - start >= HEADER:
                notes = [*notes, *request_checksum(data, start, end)]
        if name == "get_stats" or (name in STATING and fault is None and "trailing" not in fields):
            self._hear(fields)
        if self.differ:
            self.differ = False
            notes = [*notes, f"layout undecided ({', '.join(self.candidates)}): read as {layout}"]
        spans = walked.spans if walked is not None and not self.plain else None
        ident = fields.get("request") if long else None
        if not isinstance(ident, int):
            # hidden
            ident = None
        if table in OTHERS:
            return (f"unknown {fields.get('command')}", "one_way", ident, fields, None, notes, fault, NONE, None, spans)
        if asks:
            if table.code is None:
                name = frames.name_of(given.code)
                if given.code is None and given.operation is not None:
                    name = f"unknown operation {given.operation}"
                elif given.code is not None:
                    notes = [*notes, f"command code {given.code} is not known in {layout}"]
            return (name, "request", ident, fields, None, notes, fault, ASK, given.number, spans)
        if table.code is None and table is not frames.EVICTED:
            name = frames.name_of(given.code)
        status = fields.get("status", 0)
        refused = bool(status) or bool(fields.get("results")) or table is frames.EVICTED
        if status:
            meanings = ambiguous(layout).get(status)
            if meanings is not None:
                notes = [*notes, f"status {status} is {meanings}, by release"]
        if not refused and given.code in LOGINS and self.entered == END:
            self.entered = self.release
        number = given.number
        outcome = None if number is None else "refused" if refused else "answered"
        return (name, "response", ident, fields, outcome, notes, fault, NONE if number is None else ANSWER, number, spans)


@lru_cache(4096)
def _quick(candidates: tuple[str, ...], long: bool, key: int, asks: bool, style: Style) -> Quick | None:
    """The table of a command's requests or answers in these layouts, for the fast path; None where there is more to see, or where they
    read it differently."""
    found = {_quick_in(layout, "L0" in candidates, long, key, asks) for layout in candidates}
    one = found.pop()
    if found or one is None:
        return None
    # A reader is made of the table that is read with, and of no other: that takes as long as to read thousands of frames
    table, check = one
    return table.name, table.reader(style), check


def _quick_in(layout: str, first: bool, long: bool, key: int, asks: bool) -> tuple[Table, Check | None] | None:
    """The same for one of several layouts; `first`: L0 is among these."""
    table: Table | None
    if long:
        operation = NON_REPLICATED if key > 0 else -key
        code: int | None = key if key > 0 else OPERATIONS.get(operation)
        if layout == "V1" and operation == NON_REPLICATED and asks:
            return None
        table = frames.long_ask(operation, code, layout, frames.header_of(layout)) if asks else frames.long_answer(operation, code, layout)
    else:
        code = key
        if key == 38 or (first and key in (32, 33)):
            return None
        table = frames.ask(code, layout) if asks else frames.answer(code, layout)
    if table is None or table.code is None or table.mixed or table.secret or table.name in STATING or table.name in TOLD:
        return None
    return table, checks(code, layout, asks)


_known_tables: dict[tuple[Any, ...], dict[Table, list[str]]] = {}
"""By all that the choice of a table depends on: the layouts, by the table they have."""

UNSURE = "the pairing is unsure: frames were missed before"


def _nameless(code: int | None) -> bool:
    """Whether nothing is known of a command."""
    return code is None or frames.command_of(code) is None


def _old_code(code: int, length: int) -> int:
    if code == 32:
        return OLD_LOGIN_CODE if length > 4 else 32
    return OLD_LOGOUT_CODE if length == 4 else 33


def _echoes(asked: Asked, client: bytes, request: int | None, operation: int | None) -> bool:
    """Whether a reply's header can be that of the answer to this request; that of an eviction names the client alone."""
    if any(client[4:]) and client != asked.client:
        return False
    if operation is None:
        return True
    if operation != asked.operation and not 64 <= operation <= 68:
        return False
    return request == asked.request or not any(client[4:])


def _fits(table: Table, data: bytes, start: int, end: int, damage: Damage | None) -> bool:
    """Whether a table reads a frame with nothing left over; of one that lacks bytes, whether it reads all before these and goes on."""
    if damage is None:
        return clean(table, data, start, end)
    fault = table.walk(data, start, end, _PLAIN, damage.reason)[1].fault
    return fault is not None and fault.reason == damage.reason and fault.field != "trailing"


def _may_come_unasked(data: bytes, start: int, end: int) -> bool:
    """Whether this frame of a server evicts a client for its silence."""
    return data[start + 60] == EVICTION and end - start >= HEADER and data[start + 255] == STALE


def _plausible(value: Any) -> bool:
    """Whether no text in these fields has control characters and no kind is unknown: a wrong layout often shows by that."""
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, dict):
        return all(
            one is not None if key.endswith("_label") else _plausible(one)
            for key, one in value.items()
            if key not in ("payload", "headers", "operation_label")
        )
    if isinstance(value, list):
        return all(map(_plausible, value))
    return True


class Reading(NamedTuple):
    """What a table makes of a frame: what it told, for comparison; whether that is the whole frame without a flaw, and plausible."""

    told: Any
    whole: bool
    plausible: bool


def _reading(table: Table, data: bytes, start: int, end: int, damage: Damage | None) -> Reading:
    """The fields that a table makes of a frame, and with them what is wrong where it is not read plainly; of a large frame a digest of
    that, as there are several to compare."""
    told: Any = None
    if damage is None:
        with suppress(*UNREADABLE):
            told = table.reader(_PLAIN)(data, start, end)
    whole = told is not None and "trailing" not in told
    if told is None:
        _, walked = table.walk(data, start, end, _PLAIN, None if damage is None else damage.reason)
        told = (walked.fields, walked.notes, walked.fault)
    plausible = whole and _plausible(told)
    if end - start > DIGESTED:
        told = blake2b(_SORTED.encode(told)).digest()
    return Reading(told, whole, plausible)


@cache
def _tables() -> tuple[Any, ...]:
    return (*frames.documented(), *PARTS)


PROTOCOLS = (
    Protocol(
        "iggy",
        "Apache Iggy",
        PORTS,
        IggyDissector,
        probe,
        says,
        _tables,
        TEXT,
        ADDED,
        relate=relate,
        login=LOGIN,
        forced=LAYOUTS,
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        streams=streams,
        alarms={"eviction": lambda message: True, "unknown": lambda message: bool(message.fields.get("status"))},
    ),
)
