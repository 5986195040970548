"""Apache Iggy: pending requests, and which response belongs to which.

No response of the classic framing names its request, and in the 256-byte one several requests may share the copied fields, up to V4. So
the order of frames decides, unless frames were missed; trust in it after a loss is a state, and all code that changes it is in this file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from itertools import islice

from ..records import Frame
from . import frames
from .candidates import TEXT_LAYOUTS, Candidates, PendingRequest, fits
from .commands import ADVANCING, OPERATIONS, REGISTER
from .frame_redaction import is_text
from .frames import EVICTION, HEADER, REPLY, REQUEST, U32_U32, CommandTable

SURE, FITTED, BELIEVED, SUPPOSED, SHAKEN = "sure", "fitted", "believed", "supposed", "shaken"
"""Whether the order of frames shows which response answers which request: it does; it seems to, by the content of a response, or as the
client keeps one request in flight, which the next `FIRM` requests have to confirm; the capture begins in the middle, and there is no other
evidence yet; frames were missed and it does not."""

LOST, MISFIT, LASTED, ALONE, FIRST = "lost", "misfit", "lasted", "alone", "first"
SINGLE, ECHOED = "single", "echoed"
"""What happens to that: bytes were lost; a response does not fit its request, or a second request was in flight before it; what was
believed has lasted; a response found a request alone in flight, behind all that was lost, or behind the beginning of the capture, before
which more may have been in flight; and it can answer no other request that is here, or says so."""

TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    SURE: {LOST: SHAKEN},
    FITTED: {LOST: SHAKEN, MISFIT: SHAKEN, LASTED: SURE},
    BELIEVED: {LOST: SHAKEN, MISFIT: SHAKEN, LASTED: SURE},
    SUPPOSED: {LOST: SHAKEN, MISFIT: SHAKEN, ALONE: BELIEVED},
    SHAKEN: {ALONE: BELIEVED, FIRST: SUPPOSED, SINGLE: FITTED, ECHOED: SURE},
}
"""The next state by event; without an entry the state is kept."""

FIRM = 64
"""The number of further requests that confirm a pairing based on an assumption."""

PROVEN = 16
"""Requests of a client that keeps several in flight until notes no longer call the pairing unsure: until then answers may fit by chance."""

LIKELY = 4
"""Requests until a supposed order is believed, where the capture begins in the middle; or one answer whose body fits."""

BODY = 16
"""From this size on an answer of the classic framing holds what fits the answers to some requests and not to others."""

NEVER = -1

TRIED = 256
"""Limit of open requests tried for a response when some may have been missed."""

WIDEST = 0xFFFF
"""Codes up to here are too short to be a piece of text."""

STALE = 13
"""The reason of an eviction that no request need have caused."""

UNSURE = "the pairing is unsure: frames were missed before"
UNSEEN = "no request for this response was seen"
MIDDLE = "the pairing is unsure: the beginning was not captured"


make_pending = partial(tuple.__new__, PendingRequest)
"""One of a tuple of its members, for less than the constructor costs."""


class OrderTrust:
    """Trust in the order of frames for pairing, and the positions of lost bytes."""

    __slots__ = ("answered", "last_answer_loss", "last_client_packet", "last_request_loss", "room", "state", "until")

    def __init__(self, from_start: bool) -> None:
        self.state = SURE if from_start else SHAKEN
        self.until = 0
        """The believed order is confirmed by a request with a higher running number than this."""
        self.last_client_packet = NEVER
        """The latest packet with bytes of the client that were looked at one by one, or the one behind a gap of it."""
        self.last_request_loss = self.last_answer_loss = NEVER
        """The packet behind the last bytes that each side's byte stream lacks."""
        self.answered = NEVER
        """The latest packet with a response that came while the pairing was unsure."""
        self.room = 0
        """Limit of the responses that may have been in the server's lost bytes."""

    def go(self, event: str, number: int | None = None) -> None:
        """Something happened; `number`: with the answer to this request something is believed that has to last."""
        following = TRANSITIONS[self.state].get(event)
        if number is not None:
            self.until = number + FIRM
        if following is None:
            return
        if self.state == SHAKEN:
            self.room = 0
        self.state = following

    def restore(self, before: str) -> None:
        """What was lost were exactly the next answers, none of which has a body: as much is believed as `before`."""
        self.state, self.room = before, 0

    @property
    def unsure(self) -> bool:
        """Whether the order of frames does not decide the pairing."""
        return self.state == SHAKEN

    @property
    def believes(self) -> bool:
        """Whether each pair is checked, because it may show that the order of frames is not reliable."""
        return self.state in (FITTED, BELIEVED, SUPPOSED)

    def noted(self, asked: PendingRequest, size: int, chance: bool) -> PendingRequest:
        """A pair that may need a note: little more than the order of frames speaks for it. `chance`: the answer may fit by chance."""
        if asked.number > self.until:
            self.go(LASTED)
        if self.state == SUPPOSED and (size >= BODY or asked.number > self.until - FIRM + LIKELY):
            self.go(ALONE)
        if self.state == FITTED and chance and asked.number <= self.until - FIRM + PROVEN:
            return asked._replace(notes=(UNSURE,))
        return asked._replace(notes=(MIDDLE,)) if self.state == SUPPOSED else asked

    def on_requests_lost(self, order: int) -> None:
        """Requests may be missing that were sent before this packet."""
        self.last_request_loss = max(self.last_request_loss, order)

    def on_client_bytes(self, order: int) -> None:
        """Bytes of the client came with this packet, or no more come before it."""
        if order > self.last_client_packet:
            self.last_client_packet = order

    def needs_client_bytes(self, order: int) -> bool:
        """Return whether this packet's responses may answer a request not captured yet, which the client's next bytes show."""
        if self.state != SHAKEN or order <= self.last_client_packet:
            return False
        # else the client asked since, and this must be the answer to that
        return (
            self.last_client_packet == NEVER or self.last_answer_loss > self.last_client_packet or self.answered > self.last_client_packet
        )


class RequestQueue:
    """The requests of one conversation that wait for their answers, the oldest first."""

    def __init__(self, layouts: Candidates, client: int, from_start: bool) -> None:
        self.layouts = layouts
        self.client = client
        self.from_start = from_start
        self.trust = OrderTrust(from_start)
        self.open: deque[PendingRequest] = deque()
        self.number = 0
        self.latest = NEVER
        """The packet that completed the last request."""
        self.pipelined = False
        self.unmatched = NEVER
        """The latest packet with a response that nothing had asked for when it was handed on."""

    def lose_answers(self, size: int | None, order: int, long: bool | None) -> bool:
        """Register lost bytes of the server (None: unknown) before this packet; return whether trust is regained when that is reported."""
        trust = self.trust
        certain = size is not None and not trust.unsure and self._skip_answers(size)
        trust.last_answer_loss = max(trust.last_answer_loss, order)
        trust.on_client_bytes(self.latest)
        trust.room += 0 if size is None else 1 + size // (HEADER if long else 8)
        return certain

    def _skip_answers(self, size: int) -> bool:
        """Whether `size` lost bytes of the server are exactly the next answers, because none of those has a body; if so, remove these."""
        layouts = self.layouts
        if size % 8 or layouts.long[1 - self.client] or set(layouts.candidates) & set(TEXT_LAYOUTS) or size > 8 * len(self.open):
            return False
        count = size // 8
        missed = list(islice(self.open, count))
        if not all(asked.code is not None and frames.always_empty(asked.code, layout) for asked in missed for layout in layouts.candidates):
            return False
        for _ in range(count):
            self.open.popleft()
        return True

    def expects(self, frame: Frame) -> bool:
        """Whether a response that nothing asked for will find its request later in the capture."""
        data, start, end = frame.data, frame.start, frame.end
        if self.layouts.mismatch or not self.layouts.long[1 - self.client] or end - start <= 60:
            return not self.layouts.mismatch
        return data[start + 60] == REPLY or (data[start + 60] == EVICTION and not _may_come_unasked(data, start, end))

    def ask(self, frame: Frame, order: int) -> PendingRequest:
        """Add a request that was sent with the packet `order`; return what it asks for."""
        data, start, end, damage = frame.data, frame.start, frame.end, frame.damage
        self.number = number = self.number + 1
        self.latest = order
        operation: int | None = None
        client, request = b"", 0
        if self.layouts.long[self.client]:
            operation, code = frames.operation_and_code(data, start, end)
            if operation == REGISTER:
                code = frames.registered_by(data, start, end, None if damage is None else damage.reason)
            code = frames.meant_later(code, self.layouts.candidates, data, start, end)
            if end - start <= 60 or data[start + 60] != REQUEST:
                # a frame between replicas
                return PendingRequest(number, code, operation)
            client = data[start + 128 : start + 144]
            request = int.from_bytes(data[start + 168 : start + 176], "little")
        else:
            length, code = U32_U32(data, start)
            if code > WIDEST and is_text(code):
                code = None
            elif code == 32 or (code == 33 and "L0" in self.layouts.candidates):
                code = frames.meant(code, length)
        asked = make_pending((number, code, operation, client, request, order, ()))
        if self.pipelined or order >= self.unmatched:
            # else a gap kept it back so long that its answer was handed on
            self.open.append(asked)
            if len(self.open) > self.layouts.options.open_limit:
                self.open.popleft()
        return asked

    def _asked_before(self, order: int) -> int:
        """How many of the open requests were sent before this packet."""
        count = 0
        for asked in self.open:
            if asked.order >= order:
                break
            count += 1
        return count

    def _latest(self, frame: Frame) -> PendingRequest | None:
        """The request that a response after a loss answers where the client keeps one in flight, having read all answers before.

        None: it may keep more in flight, or a request of which nothing is known may be the one that is answered.
        """
        trust, order = self.trust, frame.order
        answered, trust.answered = trust.answered, max(trust.answered, order)
        count = self._asked_before(order)
        if self.pipelined or not count:
            return None
        orders = [asked.order for asked in islice(self.open, count)]
        if count > 1 and (orders[-2] >= max(trust.last_answer_loss, answered) or count - 1 > trust.room or len(set(orders)) < count):
            # more than one waits, and not because an answer was lost
            self.pipelined = True
            return None
        if orders[-1] < max(trust.last_request_loss, answered):
            # behind a response comes the next request first: if it is not here it was lost
            return None
        asked = self.open[count - 1]
        return asked if self.layouts.long[1 - self.client] or self._can_answer(asked, frame, {}) else None

    def _remove(self, asked: PendingRequest) -> None:
        """Remove a request, and those before it, which are not answered any more."""
        while self.open.popleft().number != asked.number:
            pass

    def answer(self, frame: Frame) -> PendingRequest:
        """Find the request that a response answers, and remove it."""
        opened, trust, order = self.open, self.trust, frame.order
        if self.layouts.mismatch:
            return unasked(f"{self.layouts.facts['mismatch']}: this answers bytes of a frame, not a request")
        if self.layouts.long[1 - self.client]:
            return self._long_answer(frame)
        if not opened:
            self.unmatched = max(self.unmatched, order)
            return unasked(UNSEEN)
        if trust.unsure:
            asked = self._latest(frame)
            if asked is None:
                return self._guess(frame)
            self._remove(asked)
            trust.go(ALONE if self.from_start else FIRST, asked.number)
        else:
            asked = opened[0]
            if len(opened) > 1 and opened[1].order < order:
                self.pipelined = True
            if trust.believes and ((self.pipelined and trust.state != FITTED) or not self._can_answer(asked, frame, {})):
                trust.go(MISFIT)
                return self._guess(frame)
            del opened[0]
        return asked if trust.state == SURE else trust.noted(asked, frame.end - frame.start, self._chance)

    def _guess(self, frame: Frame) -> PendingRequest:
        """The request that a response may answer, after some may have been missed: the first whose answer it can be."""
        count = min(TRIED, self._asked_before(frame.order))
        known: dict[CommandTable, bool] = {}
        fitting = [asked for asked in islice(self.open, count) if self._can_answer(asked, frame, known)]
        if not fitting:
            self.trust.room += 1
            return unasked(UNSURE)
        # Behind one that the client keeps in flight, older ones are not answered any more
        asked = fitting[0 if self.pipelined else -1]
        sure = len(fitting) == 1 and frame.end - frame.start >= BODY and asked.order >= self.trust.last_request_loss
        self._remove(asked)
        if not sure or self._chance or not (self.from_start or self.trust.until):
            # in the middle, a request that was not captured may be the one
            asked = asked._replace(notes=(UNSURE,))
        if sure:
            self.trust.go(SINGLE, asked.number)
        return asked

    @property
    def _chance(self) -> bool:
        """Whether answers may fit requests by chance: several are in flight, and some of them may not be here."""
        return self.pipelined and not (self.from_start and self.trust.last_request_loss == NEVER)

    def _can_answer(self, asked: PendingRequest, frame: Frame, known: dict[CommandTable, bool]) -> bool:
        """Whether some layout reads a response as that to this request; `known`: what was found out about this response before."""
        for table in self.layouts.tables(frame, asked):
            if table not in known:
                known[table] = table.name != "unknown" and fits(table, frame.data, frame.start, frame.end, frame.damage)
            if known[table]:
                return True
        return False

    def _long_answer(self, frame: Frame) -> PendingRequest:
        opened, trust = self.open, self.trust
        data, start, end, order = frame.data, frame.start, frame.end, frame.order
        if end - start < 209:
            return self._oldest()
        kind = data[start + 60]
        request = operation = None
        if kind == EVICTION:
            client = data[start + 128 : start + 144]
        elif kind == REPLY:
            client, request = data[start + 160 : start + 176], int.from_bytes(data[start + 200 : start + 208], "little")
            operation = data[start + 208]
        else:
            return unasked()
        if not opened:
            if _may_come_unasked(data, start, end):
                # or its request is captured later
                trust.go(LOST)
                return unasked()
            self.unmatched = max(self.unmatched, order)
            return unasked(UNSEEN, operation=operation)
        if request is not None and self.layouts.layout == "V5" and self.layouts.settled:
            return self._numbered(request, operation)
        if trust.unsure:
            latest = self._latest(frame)
            if latest is not None and _echoes(latest, client, request, operation):
                self._remove(latest)
                trust.go(ALONE, latest.number)
                return latest
        elif len(opened) > 1 and opened[1].order < order:
            self.pipelined = True
            trust.go(MISFIT)
        asked = opened[0]
        if asked.number > trust.until:
            trust.go(LASTED)
        if not trust.unsure and _echoes(asked, client, request, operation):
            return self._oldest()
        before = min(TRIED, self._asked_before(order)) if trust.unsure else TRIED
        echoing = [asked for asked in islice(opened, before) if _echoes(asked, client, request, operation)]
        if echoing and (trust.unsure or len(echoing) == 1):
            known: dict[CommandTable, bool] = {}
            asked = next((asked for asked in echoing if self._can_answer(asked, frame, known)), echoing[0])
            if operation in ADVANCING and len(echoing) == 1 and any(client[4:]) and asked.order >= trust.last_request_loss:
                trust.go(ECHOED)
            self._remove(asked)
            return asked._replace(notes=(UNSURE,)) if trust.unsure else asked
        if trust.last_request_loss != NEVER or not self.from_start:
            # Its request is not here
            trust.go(LOST)
        if trust.unsure:
            return unasked(UNSURE, code=None if operation is None else OPERATIONS.get(operation), operation=operation)
        if kind == EVICTION:
            return self._oldest("evicts another client than the one that waits")
        return self._oldest(f"answers request {request}, operation {operation}; request {asked.request}, operation {asked.operation} waits")

    def _numbered(self, request: int, operation: int | None) -> PendingRequest:
        """The request that a reply of V5 answers: each has a number of its own there, so that replies may come in any order."""
        asked = next((asked for asked in self.open if asked.request == request), None)
        if asked is None:
            return unasked(UNSEEN, operation=operation)
        self.open.remove(asked)
        self.trust.go(ECHOED)
        return asked

    def _oldest(self, *notes: str) -> PendingRequest:
        """The request that has waited longest is answered."""
        if not self.open:
            return unasked(*notes)
        asked = self.open.popleft()
        if self.trust.unsure:
            notes = (*notes, UNSURE)
        return asked._replace(notes=notes) if notes else asked


def sent(frame: Frame) -> int:
    """Return the packet behind which a response may answer this request: of one whose end may be missing, the first, as it is read late."""
    return frame.order if frame.damage is None else frame.began


def unasked(*notes: str, code: int | None = None, operation: int | None = None) -> PendingRequest:
    """What a response answers whose request is not known."""
    return PendingRequest(0, code, operation, notes=notes)


def _echoes(asked: PendingRequest, client: bytes, request: int | None, operation: int | None) -> bool:
    """Whether a reply's header can be that of the answer to this request; that of an eviction names the client alone."""
    if any(client[4:]) and client != asked.client:
        return False
    if operation is None:
        return True
    if operation != asked.operation and not 64 <= operation <= 68:
        return False
    return request == asked.request or not any(client[4:])


def _may_come_unasked(data: bytes, start: int, end: int) -> bool:
    """Whether this frame of a server evicts a client for its silence."""
    return data[start + 60] == EVICTION and end - start >= HEADER and data[start + 255] == STALE
