"""mewbase: BSON frames over TCP, told apart by their `type`, paired by rID or queryID, in the oldest programs by order."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from dissect.allowance import Values
from dissect.bson import ELEMENT, UNREADABLE, Special, Walked, read, walk
from dissect.layout.values import RENDER, redacted
from dissect.model import Fault, Limited, Message, Span
from dissect.protocols.base import Dissector
from dissect.protocols.mewbase.behaviour import BEHAVIOUR
from dissect.protocols.mewbase.framing import (
    COUNTED,
    HEADS,
    MORE,
    READ,
    SHORTEST,
    TYPE,
    YES,
    Shift,
    candidate,
    first_length,
    head,
    odd_length,
    reads,
)
from dissect.protocols.mewbase.layouts import (
    BY_NAME,
    CLIENT,
    FRAMES,
    SECRET_NAMES,
    FrameTable,
    Shape,
    is_strange,
    labelled,
    secret_in,
    shape,
    shown_in_connect,
)
from dissect.protocols.mewbase.private import PRIVATE
from dissect.protocols.mewbase.probe import probe
from dissect.protocols.protocol import Context, Protocol
from dissect.protocols.records import ANSWER, ANSWER_PART, ASK, NONE, Damage

_INT32 = Struct("<i").unpack_from

SHAPES_KEPT: Final = 4096
SHAPE_FIELDS: Final = 32
"""Shapes of frames are remembered, so many of up to so many fields."""

NUMBERED: Final = "2016-12-01"
"""The day from which requests carry a rID."""

LOST: Final = "paired by order although bytes were lost: unsure"
MIDDLE: Final = "paired by order although the beginning was not captured: unsure"
CUT: Final = "paired by order although a rID may be missing: unsure"
AHEAD: Final = "paired by order although responses came that nothing had asked for: unsure"
EARLY: Final = "no request for this response was seen before it"

DOCUMENT: Final = 0x03

LARGEST_ID: Final = 1 << 63
"""An id from here on is no integer of any BSON type."""

REST_NOTE: Final = "the length does not count its own 4 bytes, as the mewbase document says and no real program does"

_shapes: dict[tuple[Any, ...], Shape] = {}


def _shape(table: FrameTable, body: dict[str, Any]) -> Shape:
    key = (table, *body, *map(type, body.values()))
    found = _shapes.get(key)
    if found is None:
        found = shape(table, tuple(body), tuple(map(type, body.values())))
        if len(body) <= SHAPE_FIELDS:
            if len(_shapes) >= SHAPES_KEPT:
                _shapes.clear()
            _shapes[key] = found
    return found


class MewbaseDissector(Dissector):
    """One connection: client and server each send BSON documents, one after the other."""

    protocol = "mewbase"
    header_size = 5
    DERIVED = ("small",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.shifts: list[Shift | None] = [None, None]
        """How each side counts its lengths, once a frame told."""
        self.broken_shifts: dict[int, deque[Shift | None]] = {}
        """By side, what was known of that when frames that are not whole were cut: frames behind them may have told since."""
        self.numbered = False
        """A frame with rID was seen: both programs are of December 2016 or later."""
        self.read = [(-1, False), (-1, False)]
        """By side: where the document lies that was read last to see whether it is a frame, and whether it is."""
        self.unsure = "" if context.syn else MIDDLE
        """Why pairing by order may be wrong: frames were missed."""
        self.heard = False
        """The server has answered, or may have: what comes now is not the answer to CONNECT."""
        self.waiting: deque[tuple[str, tuple[Any, ...], bool]] = deque()
        """Requests without rID whose answers are due: name, key, and whether a rID may be among what could not be read of it."""
        self.asked = 0
        self.early: tuple[str, tuple[Any, ...]] | None = None
        """A response that was captured before its request: its name and key."""
        self.ahead = False
        """Whether the last response was one."""
        self.results: dict[tuple[Any, ...], int] = {}
        """Open queries whose number of results the server told (until November 2016): results still to come."""
        self.subscriptions: set[Any] | None = set() if context.syn else None
        """What the server has given out; None when not all of it was seen."""
        self.since = self.until = ""
        self.small = ELEMENT * self.options.values_limit
        """Frames of so few bytes cannot have too many elements."""
        self.broken_login = [True, True]
        """Whether no frame of a side was read as a whole since a CONNECT may have begun: then its rest may pass for a frame."""

    # Framing

    def measure(self, side: int, data: bytes, at: int) -> int:
        size = self._length(side, data, at)
        if size < 0:
            # That no frame begins here, and so whatever follows, is certain with the last byte that was looked at.
            flow = self.flows[side]
            flow.raise_releases(flow.releases[flow.segment(flow.base + at - size - 1)])
            length = int(_INT32(data, at)[0])
            # As frames are cut ahead of what is decoded, this must not depend on what the latter tells of the client
            if side == self.context.client and not 5 <= length <= self.options.frame_limit and not _LETTERS(data, at):
                self.facts.setdefault("wrong_length_of_client", length)
            return -1
        return size

    def _length(self, side: int, data: bytes, at: int) -> int:
        """The size of the frame at `at`, 0 when more bytes are needed, or minus the number of bytes that tell that none begins here."""
        shift = self.shifts[side]
        size = int(_INT32(data, at)[0])
        if data[at + 4 : at + 10] == TYPE:
            if shift is None:
                if size >= SHORTEST - 4:
                    size, shift = first_length(data, at)
                    if shift is not None:
                        self.shifts[side] = shift
                    return size
            elif size + shift[0] >= SHORTEST:
                return size + shift[0]
        size = odd_length(data, at, shift or COUNTED)
        if size <= 5 or self._reads(side, data, at, size):
            return size
        return -size

    def _reads(self, side: int, data: bytes, at: int, size: int) -> bool:
        """Whether the document data[at:at + size] is a frame; that all of one was read to find that it is not must not happen again and
        again for the same bytes."""
        flow = self.flows[side]
        position = flow.base + at
        if self.read[side][0] == position:
            return self.read[side][1]
        effort = flow.effort
        end = position + size
        if end > effort.seen:
            effort.pay(end - max(effort.seen, position))
            effort.seen = end
        good = effort.left > 0 and reads(data, at, at + size, self.shifts[side] or COUNTED)
        if not good:
            effort.spend(4 * READ * size)
        self.read[side] = (position, good)
        return good

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        ends: list[int] = []
        append = ends.append
        size, limit = len(data), self.options.frame_limit
        last = size - 10
        counted = self.shifts[side] == COUNTED
        while at <= last:
            if counted and data[at + 4 : at + 10] == TYPE:
                length = _INT32(data, at)[0]
                if length < SHORTEST:
                    break
            else:
                length = self._length(side, data, at)
                if length <= 0:
                    break
                counted = self.shifts[side] == COUNTED
            at += length
            if at > size or length > limit:
                break
            append(at)
        return ends

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        shift = self.shifts[side]
        while True:
            found = data.find(TYPE, at + 4, end)
            if found < 0:
                # the last bytes may be the beginning of a head
                return False, max(at, end - len(TYPE) - 3)
            at = found - 4
            answer, _ = candidate(data, at, end, final, shift)
            if answer == YES:
                return True, at
            if answer == MORE:
                return False, at
            at += 1

    def lost(self, side: int) -> None:
        self.subscriptions = None
        self.heard = True
        if not self.numbered:
            self.unsure, self.early = LOST, None
            self.waiting.clear()

    def broken(self, side: int, data: bytes) -> None:
        self.broken_shifts.setdefault(side, deque()).append(self.shifts[side])

    # Decoding

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        # Without this way for whole frames a run over real traffic takes twice as long
        if damage is None and not self.options.detail and self.small >= _INT32(data, start)[0] == end - start >= SHORTEST:
            inner = start + 21 + data[start + 10]
            table = HEADS.get(data[start + 4 : inner])
            if table is not None and table is not _CONNECT and not data[end - 1]:
                try:
                    body = read(data, inner, end - 1)
                except UNREADABLE:
                    pass
                else:
                    if SECRET_NAMES.isdisjoint(body):
                        return self._meaning(
                            side, table, {"size": end - start, "type": table.name, "frame": body}, body, _shape(table, body), (), None, None
                        )
        return self._walk(side, data, start, end, damage)

    def _walk(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        """Any frame: with byte ranges, damaged, in another order, with secrets."""
        options = self.options
        claimed = int(_INT32(data, start)[0])
        size = end - start
        shift = COUNTED
        if damage is not None:
            broken = self.broken_shifts.get(side)
            shift = (broken.popleft() if broken else self.shifts[side]) or COUNTED
            size = max(damage.size, claimed + shift[0])
        elif claimed != size:
            shift = self.shifts[side] or COUNTED
        known = head(data, start)
        table = None if known is None else known[0]
        # What cannot be read of a frame that may hold secrets may be one.
        careful = table is None or table is _CONNECT
        missing = "" if damage is None else damage.reason

        values = Values(options.values_limit)

        def walked_as(secret: Callable[[str, bool], bool] | None, masked: Callable[[str], bool] | None = None) -> Walked:
            return walk(
                data,
                start,
                end,
                size=size,
                missing=missing,
                shift=shift[0],
                inner_shift=shift[1],
                resume=not careful,
                secret=None if options.show_secrets else secret,
                values=values.begin(),
                spans=options.detail,
                masked=masked,
            )

        walked = walked_as(secret_in(table))
        if table is None and any(name == "type" and type(value) is str and value.upper() == "CONNECT" for name, value in walked.pairs):
            table = _CONNECT
            walked = walked_as(secret_in(table))
        typed = True
        if careful and not options.show_secrets:
            walked, typed = self._hidden(side, table, walked, walked_as, any(data.find(name, start, end) >= 0 for name in _TELLING))
        self.limit_hits += walked.stopped and type(walked.fault) is not Limited
        hide = careful and not options.show_secrets
        notes = walked.notes
        if shift[0]:
            notes.insert(0, REST_NOTE)
        fields, texts, frames = _fields(walked, options.bytes_as, hide)
        spans = _spans(walked, hide) if options.detail else None
        name = texts[-1] if typed and texts and type(texts[-1]) is str else None
        if name is None and damage is not None:
            self.lost(side)
        body = _envelope(walked, texts, frames, name)
        table = BY_NAME.get(name or "")
        if table is None:
            return self._unknown(side, name, fields, body, notes, walked.fault, spans)
        return self._meaning(side, table, fields, body, _shape(table, body), notes, walked.fault, spans)

    def _hidden(
        self, side: int, table: FrameTable | None, walked: Walked, walked_as: Callable[..., Walked], telling: bool
    ) -> tuple[Walked, bool]:
        """A CONNECT, or what may be one or its rest, with its secrets hidden, and whether its type is shown; `telling`: it names some."""
        typed = True
        whole = walked.fault is None and walked.trailing is None
        if table is _CONNECT:
            shown = shown_in_connect(dict(walked_as(None).pairs), whole)
            walked = walked_as(secret_in(table, shown), None if whole else is_strange)
        elif (self.broken_login[side] and not (whole and _is_frame(dict(walked.pairs)))) or (not whole and telling):
            shown = shown_in_connect(dict(walked.pairs), False) & {"type"}
            typed = bool(shown)
            walked = walked_as(lambda path, nested: path not in shown and not (nested and path == "frame"), is_strange)
        self.broken_login[side] = not whole or (table is None and self.broken_login[side])
        return walked, typed

    def _unknown(
        self, side: int, name: str | None, fields: dict[str, Any], body: dict[str, Any], notes: list[str], fault: Fault | None, spans: Any
    ) -> tuple[Any, ...]:
        """A frame of no known type; servers drop it without an answer."""
        if name is None:
            return ("unknown", "one_way", None, fields, None, notes, fault, NONE, None, spans)
        notes.append(_UNKNOWN.get(name, "no server knows this type; they drop it without an answer"))
        rid = body.get("rID")
        if _plain(rid) and "ok" not in body and (self.client is None or side == self.client):
            self._number()
            return (name, "request", _ident(rid), fields, None, notes, fault, ASK, (side, rid), spans)
        return (name, "one_way", _ident(rid), fields, None, notes, fault, NONE, None, spans)

    def _meaning(
        self,
        side: int,
        table: FrameTable,
        fields: dict[str, Any],
        body: dict[str, Any],
        found: Shape,
        notes: Any,
        fault: Fault | None,
        spans: list[Span] | None,
    ) -> tuple[Any, ...]:
        """What a frame of a known type is for; `notes` may be added to when it is a list."""
        name = table.name
        kind: str = table.kind
        if found.odd or found.missing or found.later:
            notes = [*notes, *found.odd]
            if fault is None:
                notes += found.missing
        if found.since > self.since or (found.until and found.until != self.until):
            self._date(found.since, found.until)
        if fault is None and table is not _CONNECT:
            self.broken_login[side] = False
        client = self.client
        ours = side if table.side == CLIENT else 1 - side
        if client != ours:
            if client is None:
                self.client = ours
            elif name != "PING":
                notes = [*notes, f"{name} is a frame of the {table.side}"]
        rid = body.get("rID")
        ident = rid
        if rid is not None:
            if type(rid) is not int:
                ident = _ident(rid)
                if not _plain(rid):
                    rid = None
            self._number()
        outcome: str | None = None
        role = NONE
        key: tuple[Any, ...] | None = None
        if kind == "response":
            failed = not body.get("ok", True)
            if failed and "errCode" in body and type(fields.get("frame")) is dict:
                fields["frame"] = labelled(body)
                spans = _label(spans, body)
            ident, role, key, notes = self._response(side, name, body, found, rid, fault, notes)
            if role != NONE:
                outcome = "refused" if failed else "answered"
            self.heard = True
        elif kind == "request":
            ident, role, key, notes = self._request(side, table, body, rid, fault, notes)
        else:
            return self._one_way(side, name, fields, body, notes, fault, spans)
        return (name, kind, ident, fields, outcome, notes, fault, role, key, spans)

    def _response(
        self, side: int, name: str, body: dict[str, Any], found: Shape, rid: Any, fault: Fault | None, notes: Any
    ) -> tuple[int | str | None, int, tuple[Any, ...] | None, Any]:
        """Id, role, key and notes of what answers a request."""
        if name == "QUERYRESULT" or name == "QUERYRESPONSE":
            query = body.get("queryID")
            if found.later and "last" in found.later and self.numbered and fault is None:
                notes.append("mandatory field last is missing")
            if not _plain(query):
                return _ident(query), NONE, None, notes
            key = (1 - side, query, 0)
            return _ident(query), self._result(name, body, key), key, notes
        if name == "SUBRESPONSE" and self.subscriptions is not None and body.get("ok", True):
            self._subscribed(body.get("subID"))
        ident = _ident(body.get("rID"))
        return (ident, ANSWER, (1 - side, rid), notes) if rid is not None else (ident, *self._in_order(name, found, fault, notes))

    def _request(
        self, side: int, table: FrameTable, body: dict[str, Any], rid: Any, fault: Fault | None, notes: Any
    ) -> tuple[int | str | None, int, tuple[Any, ...] | None, Any]:
        """The same of a request."""
        role = NONE
        key: tuple[Any, ...] | None = None
        if table.name == "QUERY":
            # Answered by an id of its own
            query = body.get("queryID")
            if rid is None and "rID" not in body and self.numbered and fault is None:
                notes = [*notes, "mandatory field rID is missing"]
            if _plain(query):
                role, key = ASK, (side, query, 0)
            ident = _ident(query)
        else:
            ident = rid if type(rid) is int else _ident(body.get("rID"))
            if rid is not None:
                role, key = ASK, (side, rid)
            elif "rID" not in body:
                # authInfo came three days before rID
                if "authInfo" in body:
                    self._number()
                role, key, notes = self._ask(side, table, fault, notes)
        if self.subscriptions is not None and "subID" in body:
            notes = self._unsubscribed(body["subID"], notes)
        return ident, role, key, notes

    def _one_way(
        self, side: int, name: str, fields: dict[str, Any], body: dict[str, Any], notes: Any, fault: Fault | None, spans: list[Span] | None
    ) -> tuple[Any, ...]:
        if name == "QUERYACK":
            ident = _ident(body.get("queryID"))
        elif name != "PING":
            subscription = body.get("subID", body.get("SubID") if name == "ACKEV" else None)
            ident = _ident(subscription)
            if name == "ACKEV":
                notes = self._unsubscribed(subscription, notes)
        else:
            # empty, but with a sequence number in March 2017
            ident = _ident(body.get("sequence"))
            if type(ident) is int and body.get("type") == 8:
                return (name, "request", ident, fields, None, notes, fault, ASK, (side, ident + 1, 0, 0), spans)
            if type(ident) is int and body.get("type") == 0:
                return (name, "response", ident, fields, "answered", notes, fault, ANSWER, (1 - side, ident, 0, 0), spans)
        return (name, "one_way", ident, fields, None, notes, fault, NONE, None, spans)

    def _ask(self, side: int, table: FrameTable, fault: Fault | None, notes: Any) -> tuple[int, tuple[Any, ...] | None, Any]:
        """A request without rID: CONNECT, or one of a time when answers came in the order of the requests."""
        if table is not _CONNECT:
            if fault is not None and self.numbered:
                return NONE, None, notes
            if self.numbered or table.since > NUMBERED:
                if fault is None:
                    notes = [*notes, "mandatory field rID is missing"]
            elif fault is None:
                self._date("", NUMBERED)
        elif self.unsure == MIDDLE and not self.asked and not self.heard:
            # the beginning after all
            self.unsure = ""
        self.asked += 1
        early = self.early
        if early is not None and (early[0] == "SUBRESPONSE") == (table.name == "SUBSCRIBE"):
            self.early = None
            return ASK, early[1], notes
        key = (side, "in order", self.asked)
        self.waiting.append((table.name, key, fault is not None))
        if len(self.waiting) > self.options.open_limit:
            self.waiting.popleft()
        return ASK, key, notes

    def _in_order(self, name: str, found: Shape, fault: Fault | None, notes: Any) -> tuple[int, tuple[Any, ...] | None, Any]:
        """The request that a response without rID answers."""
        waiting = self.waiting
        greets = bool(waiting) and waiting[0][0] == "CONNECT"
        if self.numbered:
            if fault is not None and not (greets and not self.heard):
                # its rID is among what could not be read
                return NONE, None, notes
            if not greets:
                if fault is None:
                    notes = [*notes, "mandatory field rID is missing"]
                if not waiting:
                    return NONE, None, notes
        if name == "SUBRESPONSE" and any(one[0] == "SUBSCRIBE" for one in waiting):
            # what stands before it will not be answered any more
            while waiting[0][0] != "SUBSCRIBE":
                waiting.popleft()
        elif not waiting or (name == "SUBRESPONSE" and not self.unsure):
            return self._before_request(name, fault, notes)
        _, key, cut = waiting.popleft()
        self.ahead = False
        if self.unsure:
            notes = [*notes, self.unsure]
        elif (cut or fault is not None) and not self.numbered and not self.until and not (greets and not self.heard):
            notes = [*notes, CUT]
        return ANSWER, key, notes

    def _before_request(self, name: str, fault: Fault | None, notes: Any) -> tuple[int, tuple[Any, ...] | None, Any]:
        """A response without rID that nothing asked for, yet. One is as if captured in another order; of a second one behind it nobody
        knows what else was not asked."""
        if self.unsure or fault is not None:
            return NONE, None, notes
        if self.early is not None or self.ahead:
            self.unsure, self.early = AHEAD, None
            return NONE, None, notes
        key = self.client, "before", self.asked
        self.early, self.ahead = (name, key), True
        # Of a capture of one direction there is nothing to say
        return ANSWER, key, [*notes, EARLY] if self.asked else notes

    def _number(self) -> None:
        """A rID was seen, so requests of which one may have been cut off are not answered by order."""
        if not self.numbered:
            self.numbered = True
            self.waiting = deque(one for one in self.waiting if one[0] == "CONNECT" or not one[2])

    def _result(self, name: str, body: dict[str, Any], key: tuple[Any, ...]) -> int:
        """Whether more results follow."""
        results = self.results
        if name == "QUERYRESPONSE":
            count = body.get("numResults")
            if not body.get("ok", True) or not count:
                return ANSWER
            if type(count) is int:
                if len(results) >= self.options.open_limit:
                    del results[next(iter(results))]
                results[key] = count
            return ANSWER_PART
        if body.get("last") or not body.get("ok", True):
            results.pop(key, None)
            return ANSWER
        left = results.get(key)
        if left is not None:
            if left <= 1:
                del results[key]
                return ANSWER
            results[key] = left - 1
        return ANSWER_PART

    def _subscribed(self, subscription: Any) -> None:
        if self.subscriptions is not None and _plain(subscription):
            self.subscriptions.add(subscription)
            if len(self.subscriptions) > self.options.open_limit:
                self.subscriptions = None

    def _unsubscribed(self, subscription: Any, notes: Any) -> Any:
        """`notes`, with one on a subscription that the server has not given out."""
        if self.subscriptions is None or not _plain(subscription) or subscription in self.subscriptions:
            return notes
        return [*notes, f"subscription {subscription} was not given out on this connection"]

    def _date(self, since: str, until: str) -> None:
        """Narrow down the time that the two programs are of: seen first that day, and gone that day."""
        self.since = max(self.since, since)
        if until and (not self.until or until < self.until):
            self.until = until
        known = not self.until or self.since <= self.until
        self.facts["layout"] = f"{self.since}..{self.until}" if known else "of no one date"


_CONNECT = BY_NAME["CONNECT"]

_LETTERS: Final = re.compile(rb"[ -~\s]{4}").match
"""What is no length, but text of something else."""

_LOGIN: Final = re.compile(rb"\x02type\x00\x08\x00\x00\x00CONNECT\x00\x03frame\x00")

_TELLING: Final = (b"CONNECT", *(name.encode() for name in SECRET_NAMES))
"""What tells in a damaged frame of no known type that it may hold a password."""

_UNKNOWN: Final = {
    "PUBLISH": "PUBLISH is the document's name for PUB; servers drop it without an answer",
    "LISTCHANNELS": "servers know LISTCHANNNELS only, with three N; they drop this without an answer",
}


def unanswered(request: Message, time_ns: int) -> str | None:
    """That the id of a request could not be read, by which it may have been answered."""
    return "bytes lost" if request.id is None and request.fault is not None and request.name != "CONNECT" else None


def _is_frame(document: dict[str, Any]) -> bool:
    """Whether a document is a frame of a known type, though not in the usual order."""
    return "frame" in document and type(document.get("type")) is str and document["type"] in BY_NAME


def _plain(ident: Any) -> bool:
    """Whether this can be the number that requests and answers have in common."""
    return type(ident) in (int, float, str)


def _ident(value: Any) -> int | str | None:
    if type(value) is float:
        return int(value) if abs(value) < LARGEST_ID else str(value)
    return value if type(value) in (int, str) else None


def _fields(walked: Walked, bytes_as: Any, hide: bool) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """The fields of a frame as they are printed, and what stands under `type` and `frame`."""
    pairs = walked.pairs
    names = [name for name, _ in pairs]
    fields: dict[str, Any] = {}
    if walked.size is not None:
        fields["size"] = walked.size
    if len(set(names)) == len(names) and "size" not in names and "trailing" not in names:
        fields.update(pairs)
    else:
        fields["document"] = [{"key": name, "value": value} for name, value in pairs]
    trailing = walked.trailing
    if trailing is not None:
        fields["trailing"] = redacted(len(trailing)) if hide else RENDER[bytes_as](trailing)
    return fields, [value for name, value in pairs if name == "type"], [value for name, value in pairs if name == "frame"]


def _envelope(walked: Walked, texts: list[Any], frames: list[Any], name: str | None) -> dict[str, Any]:
    """The inner document of a frame, empty where there is none; with notes on what is odd about it and its type."""
    notes = walked.notes
    body = frames[-1] if frames else None
    if walked.fault is None:
        if name is None:
            notes.append("type is not a string" if texts else "mandatory field type is missing")
        if not frames:
            notes.append("mandatory field frame is missing")
        if len(texts) > 1 or len(frames) > 1:
            notes.append("repeated field: servers take the last one")
    if type(body) is list and walked.nested["frame"] == DOCUMENT:
        body = {item["key"]: item["value"] for item in body}
        notes.append("frame repeats a field: servers take the last one")
    if body is not None and type(body) is not dict:
        notes.append("frame is not a document")
    return body if type(body) is dict else {}


def _spans(walked: Walked, hide: bool) -> list[Span]:
    """The spans, those of unread bytes marked where there may be secrets in them."""
    if not hide:
        return walked.spans
    return [
        span._replace(secret=True, value=redacted(span.length)) if span.leaf and span.name in ("undecoded", "trailing") else span
        for span in walked.spans
    ]


def _label(spans: list[Span] | None, body: dict[str, Any]) -> list[Span] | None:
    if spans is None:
        return None
    label = labelled(body)["errCode_label"]
    return [span._replace(label=label) if span.name == "errCode" and span.depth == 1 else span for span in spans]


# What a line of text says of a message


def _failed(message: Message) -> bool:
    body = message.fields.get("frame")
    return type(body) is dict and body.get("ok") is False


SAID: Final = 72
"""Characters of a document in a line."""


def says(message: Message) -> str:
    """The fields of a frame that tell most."""
    fields = message.fields
    body = fields.get("frame")
    if type(body) is not dict:
        return ""
    name = message.name
    parts: list[str] = []
    get = body.get
    if name == "RECEV" or name == "ACKEV":
        parts.append(f"subscription {_brief(get('subID', get('SubID')))}")
        if "pos" in body:
            parts.append(f"pos {_brief(body['pos'])}")
        if "event" in body:
            parts.append(_brief(body["event"]))
        elif "bytes" in body:
            parts.append(f"{_brief(body['bytes'])} bytes")
    elif name == "QUERY" or name == "QUERYRESULT" or name == "QUERYACK" or name == "QUERYRESPONSE":
        parts.append(f"query {_brief(get('queryID'))}")
        if "errCode" in body:
            parts.append(_error(body))
        parts += [_brief(body[key]) for key in ("name", "binder", "params", "matcher", "docID", "result") if key in body]
        if "numResults" in body:
            parts.append(f"{_brief(body['numResults'])} results")
        if "bytes" in body:
            parts.append(f"{_brief(body['bytes'])} bytes")
        if get("last"):
            parts.append("last")
    else:
        if message.id is not None:
            parts.append(f"#{message.id}")
        if message.kind == "response":
            parts.append("OK" if get("ok") else _error(body))
        parts += [
            f"{_LEADS.get(key, f'{key} ')}{_brief(value)}"
            for key, value in body.items()
            if key not in _SAID_ALREADY and value is not None and _UNSET.get(key) != value
        ]
    return "  ".join(parts)


_SAID_ALREADY: Final = frozenset(("ok", "rID", "errCode", "errCode_label", "errMsg", "sequence"))
_UNSET: Final = {"sessID": -1, "startPos": -1, "startTimestamp": 0}
"""What clients write for a field that is not used."""
_LEADS: Final = {
    "channel": "",
    "event": "",
    "name": "",
    "command": "",
    "sessID": "session ",
    "startPos": "from pos ",
    "startTimestamp": "from time ",
    "durableID": "durable ",
    "filterName": "filter ",
    "subID": "subscription ",
    "SubID": "subscription ",
}


def _error(body: dict[str, Any]) -> str:
    label = body.get("errCode_label")
    code = _brief(body.get("errCode", "?"))
    told = f"refused {code} {label}" if label else f"refused {code}"
    return f"{told}: {_brief(body['errMsg'])}" if "errMsg" in body else told


def _brief(value: Any) -> str:
    """A value in at most about `SAID` characters."""
    if type(value) is str:
        return value if len(value) <= SAID else f"{value[: SAID - 1]}…"
    if isinstance(value, dict | list):
        out: list[str] = []
        _pour(value, out, SAID)
        text = "".join(out)
        return text if len(text) <= SAID else f"{text[: SAID - 1]}…"
    if type(value) is bool:
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _pour(value: Any, out: list[str], room: int) -> int:
    """Write `value` until there is no more room; returns the room left."""
    if isinstance(value, Special) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, dict):
        before, closing = "{", "}"
        items: Any = value.items()
    elif type(value) is list:
        before, closing = "[", "]"
        items = ((None, item) for item in value)
    else:
        text = f'"{value[:SAID]}"' if type(value) is str else _brief(value)
        out.append(text)
        return room - len(text)
    if not value:
        out.append(before)
    for key, item in items:
        lead = before if key is None else f"{before}{key[:SAID]}="
        # Most are of these two, and a call for each costs more than all the rest
        kind = type(item)
        text = f'{lead}"{item[:SAID]}"' if kind is str else f"{lead}{item}" if kind is int else lead
        out.append(text)
        room -= len(text)
        if room > 0 and kind is not str and kind is not int:
            room = _pour(item, out, room)
        if room <= 0:
            break
        before = " "
    out.append(closing)
    return room - 1


TEXT: Final = """\
A frame is one BSON document {type, frame}; fields are those of BSON, so the tables name them without byte positions.
Values are printed as MongoDB Extended JSON v2, relaxed.

The length in front counts itself. (The protocol's own document says that it does not; a sender that does it that way is read, and a
note says so.) There was no version on the wire: `conversations` tells the dates between which the frames of a connection were in
use, as 2016-12-01..2017-06-28.

RESPONSE answers by rID, the one to CONNECT by being first. Before December 2016 there was no rID and answers came in the order of
requests; where frames were missed that is unsure, and a note says so. Once a rID was seen, a frame whose rID is cut off stays
unpaired. QUERYRESULT answers by queryID until `last`; a query that got results is answered even where that one is missing. authInfo,
username and password are secrets, but a `user` or `username` in the authInfo of a whole CONNECT."""


def streams() -> Callable[[Message], str | None]:
    """Tells the channel of requests, as these name it."""
    return _channel


def _channel(request: Message) -> str | None:
    frame = request.fields.get("frame")
    named = [frame.get(name) for name in ("channel", "streamName")] if isinstance(frame, dict) else []
    return next((one for one in named if isinstance(one, str)), None)


PROTOCOLS: Final = (
    Protocol(
        "mewbase",
        "mewbase event store, the binary protocol of 2016 and 2017",
        (7451,),
        MewbaseDissector,
        probe,
        says,
        FRAMES,
        TEXT,
        login=_LOGIN,
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        unanswered=unanswered,
        streams=streams,
        alarms=dict.fromkeys(("RESPONSE", "SUBRESPONSE", "QUERYRESULT", "QUERYRESPONSE"), _failed),
    ),
)
