"""mewbase: BSON frames over TCP, distinguished by their `type`, paired by rID or queryID, in the oldest programs by order."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from ... import quota
from ...bson import ELEMENT, UNREADABLE, WalkedDocument, read, walk
from ...layout.values import RENDER, redacted
from ...model import Fault, Limited, Span
from ...quota import ValueQuota
from ..dissector import Dissector
from ..parser import Parser
from ..protocol import Context, LoadedProtocol
from ..records import NONE, PARTIAL_RESPONSE, REQUEST, RESPONSE, DecodedTuple, Frame, Role
from ..streams import DeclaredStreams
from .compare_rules import COMPARE_RULES
from .entries import MewbaseEntries
from .framing import (
    COUNTED,
    FRAME,
    HEADS,
    NO,
    READ,
    SHORTEST,
    TYPE,
    YES,
    Shift,
    candidates,
    first_length,
    head,
    odd_length,
    reads,
)
from .heuristic import heuristic
from .info import TEXT, failed, info, traffic, unanswered
from .layouts import (
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
from .request_order import Dates, RequestOrder
from .scrub_rules import SCRUB_RULES

_INT32 = Struct("<i").unpack_from

MAX_SHAPES: Final = 4096
SHAPE_FIELDS: Final = 32
"""Shapes of frames that are remembered, and the most fields of one."""

DOCUMENT: Final = 0x03

LARGEST_ID: Final = 1 << 63
"""An id from here on is no integer of any BSON type."""

REST_NOTE: Final = "the length does not count its own 4 bytes, as the mewbase document says and no real program does"

_known_shape = lru_cache(MAX_SHAPES)(shape)


def _shape(table: FrameTable, body: dict[str, Any]) -> Shape:
    look = _known_shape if len(body) <= SHAPE_FIELDS else shape
    return look(table, tuple(body), tuple(map(type, body.values())))


class MewbaseDissector(Dissector):
    """One connection: client and server each send BSON documents, one after the other."""

    protocol = "mewbase"
    header_size = 5
    DERIVED = ("small",)

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        self.shifts: list[Shift | None] = [None, None]
        """How each side counts its lengths, once a frame showed it."""
        self.read = [(-1, False), (-1, False)]
        """By side: where the document lies that was read last to see whether it is a frame, and whether it is."""
        self.dates = Dates(self.facts)
        self.order = RequestOrder(context.from_start, self.options.open_limit, self.dates)
        """The requests without rID."""
        self.results: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        """Open queries whose number of results the server stated (until November 2016): results still to come."""
        self.subscriptions: set[Any] | None = set() if context.from_start else None
        """What the server has given out; None when not all of it was seen."""
        self.streams = DeclaredStreams()
        self.prepare()
        self.broken_login = [True, True]
        """Whether no frame of a side was read completely since a CONNECT may have started: then its rest may pass for a frame."""

    def prepare(self) -> None:
        self.small = min(ELEMENT * self.options.values_limit, quota.MOST_SPANS)
        """Frames of so few bytes cannot have too many elements, or spans."""

    # Framing

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        shift = self.shifts[side]
        size = int(_INT32(data, at)[0])
        if data[at + 4 : at + 10] == TYPE:
            if shift is None:
                if size >= SHORTEST - 4:
                    size, self.shifts[side] = first_length(data, at)
                    return size
            elif size + shift[0] >= SHORTEST:
                return size + shift[0]
        stated, size = size, odd_length(data, at, shift or COUNTED)
        if 0 <= size <= 5 or (size > 5 and self._reads(side, data, at, size)):
            return size
        # As frames are cut before others are decoded, this must not depend on what these show of the client
        if side == self.context.client and not 5 <= stated <= self.options.frame_limit and not _LETTERS(data, at):
            self.facts.setdefault("wrong_length_of_client", stated)
        return -1

    def _reads(self, side: int, data: bytes, at: int, size: int) -> bool:
        """Whether the document data[at:at + size] is a frame; that all of one was read to find that it is not must not happen again and
        again for the same bytes."""
        buffer = self.parser.buffers[side]
        position = buffer.base + at
        if self.read[side][0] == position:
            return self.read[side][1]
        work_budget = buffer.work_budget
        end = position + size
        if end > work_budget.seen:
            work_budget.pay(end - max(work_budget.seen, position))
            work_budget.seen = end
        good = work_budget.left > 0 and reads(data, at, at + size, self.shifts[side] or COUNTED)
        if not good:
            work_budget.spend(4 * READ * size)
        self.read[side] = (position, good)
        return good

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        for place, answer, _ in candidates(data, at, end, end, final, self.shifts[side]):
            if answer != NO:
                return answer == YES, place
        # The last bytes may be the beginning of a head
        return False, max(at, end - len(TYPE) - 3)

    def on_gap(self, side: int, order: int = 0) -> None:
        self.subscriptions = None
        self.order.lose()

    def _stream_of(self, name: str, fields: dict[str, Any], outcome: str | None, role: Role, key: Any) -> str | None:
        """Return the stream that a message names; and keep what it declares."""
        body = fields.get("frame")
        if type(body) is not dict:
            return None
        channel = body.get("name" if name == "CREATECHANNEL" else "channel", body.get("streamName"))
        subscription = body.get("subID", body.get("SubID"))
        if name == "SUBSCRIBE" and role == REQUEST:
            self.streams.ask(key, None, channel, False, self.completed)
        elif name == "SUBRESPONSE" and role == RESPONSE and _plain(subscription):
            self.streams.answer(key, None, subscription, outcome == "answered", self.completed)
        elif channel is None and _plain(subscription):
            channel = self.streams.at(subscription, self.completed)
        return channel if isinstance(channel, str) else None

    # Decoding

    def decode_fast(self, side: int, data: bytes, start: int, end: int) -> DecodedTuple | None:
        # Without this way for complete frames a run over real traffic takes twice as long
        if self.small >= _INT32(data, start)[0] == end - start >= SHORTEST:
            inner = start + 21 + data[start + 10]
            table = HEADS.get(data[start + 4 : inner])
            if table is not None and table is not _CONNECT and not data[end - 1]:
                try:
                    if self.options.detail:
                        spans = _envelope_spans(table.name, inner - start, end - start)
                        body = read(data, inner, end - 1, spans, start, 1)
                        spans.append(Span("end", end - start - 1, 1, 0))
                    else:
                        spans, body = None, read(data, inner, end - 1)
                except UNREADABLE:
                    pass
                else:
                    if SECRET_NAMES.isdisjoint(body):
                        fields = {"size": end - start, "type": table.name, "frame": body}
                        return self._meaning(side, table, fields, body, _shape(table, body), (), None, spans)
        return None

    def decode(self, frame: Frame) -> DecodedTuple:
        """Any frame: with byte ranges, damaged, in another order, with secrets."""
        side, data, start, end, damage = frame.side, frame.data, frame.start, frame.end, frame.damage
        options = self.options
        claimed = int(_INT32(data, start)[0])
        size = end - start
        shift = COUNTED if damage is None and claimed == size else self.shifts[side] or COUNTED
        if damage is not None:
            size = max(damage.size, claimed + shift[0])
        known = head(data, start)
        table = None if known is None else known[0]
        # What cannot be read of a frame that may hold secrets may be one.
        careful = table is None or table is _CONNECT
        missing = "" if damage is None else damage.reason

        values = ValueQuota(options.values_limit)

        def walked_as(secret: Callable[[str, bool], bool] | None, masked: Callable[[str], bool] | None = None) -> WalkedDocument:
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
            walked, typed = self._hidden(side, table, walked, walked_as, any(data.find(name, start, end) >= 0 for name in _SECRET_SIGNS))
        self.parser.limit_hits += walked.stopped and type(walked.fault) is not Limited
        hide = careful and not options.show_secrets
        notes = walked.notes
        if shift[0]:
            notes.insert(0, REST_NOTE)
        fields, texts, frames = _fields(walked, options.bytes_as, hide)
        spans = _spans(walked, hide) if options.detail else None
        name = texts[-1] if typed and texts and type(texts[-1]) is str else None
        if name is None and damage is not None:
            self.on_gap(side)
        body = _envelope(walked, texts, frames, name)
        table = BY_NAME.get(name or "")
        if table is None:
            return self._unknown(side, name, fields, body, notes, walked.fault, spans)
        return self._meaning(side, table, fields, body, _shape(table, body), notes, walked.fault, spans)

    def _hidden(
        self, side: int, table: FrameTable | None, walked: WalkedDocument, walked_as: Callable[..., WalkedDocument], names_secrets: bool
    ) -> tuple[WalkedDocument, bool]:
        """A CONNECT, or what may be one or its rest, with secrets hidden, and whether its type is shown; `names_secrets`: it names some."""
        typed = True
        complete = walked.fault is None and walked.trailing is None
        if table is _CONNECT:
            shown = shown_in_connect(dict(walked_as(None).pairs), complete)
            walked = walked_as(secret_in(table, shown), None if complete else is_strange)
        elif (self.broken_login[side] and not (complete and _is_frame(dict(walked.pairs)))) or (not complete and names_secrets):
            shown = shown_in_connect(dict(walked.pairs), False) & {"type"}
            typed = bool(shown)
            walked = walked_as(lambda path, nested: path not in shown and not (nested and path == "frame"), is_strange)
        self.broken_login[side] = not complete or (table is None and self.broken_login[side])
        return walked, typed

    def _unknown(
        self, side: int, name: str | None, fields: dict[str, Any], body: dict[str, Any], notes: list[str], fault: Fault | None, spans: Any
    ) -> DecodedTuple:
        """A frame of no known type; servers drop it without an answer."""
        rid, kind, role, key = None, "one_way", NONE, None
        if name is None:
            name = "unknown"
        else:
            notes.append(_UNKNOWN.get(name, "no server knows this type; they drop it without an answer"))
            rid = body.get("rID")
            if _plain(rid) and "ok" not in body and (self.client is None or side == self.client):
                self.order.number()
                kind, role, key = "request", REQUEST, (side, rid)
        return name, kind, _ident(rid), fields, None, notes, fault, role, key, spans, self._stream_of(name, fields, None, role, key)

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
    ) -> DecodedTuple:
        """What a frame of a known type is for; `notes` may be added to when it is a list."""
        name = table.name
        kind: str = table.kind
        if found.odd or found.missing or found.later:
            notes = [*notes, *found.odd]
            if fault is None:
                notes += found.missing
        if found.since > self.dates.since or (found.until and found.until != self.dates.until):
            self.dates.narrow(found.since, found.until)
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
            self.order.number()
        outcome: str | None = None
        role = NONE
        key: tuple[Any, ...] | None = None
        if kind == "response":
            failed = not body.get("ok", True)
            if failed and "errCode" in body and type(fields.get("frame")) is dict:
                fields["frame"] = labelled(body)
                label = fields["frame"]["errCode_label"]
                for span in spans or ():
                    if span.name == "errCode" and span.depth == 1:
                        span.label = label
            ident, role, key, notes = self._response(side, name, body, found, rid, fault, notes)
            if role != NONE:
                outcome = "refused" if failed else "answered"
            self.order.heard = True
        elif kind == "request":
            ident, role, key, notes = self._request(side, table, body, rid, fault, notes)
        else:
            kind, ident, outcome, role, key, notes = self._one_way(side, name, body, notes)
        stream = self._stream_of(name, fields, outcome, role, key) if found.streams else None
        return name, kind, ident, fields, outcome, notes, fault, role, key, spans, stream

    def _response(
        self, side: int, name: str, body: dict[str, Any], found: Shape, rid: Any, fault: Fault | None, notes: Any
    ) -> tuple[int | str | None, Role, tuple[Any, ...] | None, Any]:
        """Id, role, key and notes of what answers a request."""
        if name == "QUERYRESULT" or name == "QUERYRESPONSE":
            query = body.get("queryID")
            if found.later and "last" in found.later and self.order.numbered and fault is None:
                notes.append("mandatory field last is missing")
            if not _plain(query):
                return _ident(query), NONE, None, notes
            key = (1 - side, query, 0)
            return _ident(query), self._result(name, body, key), key, notes
        subscription = body.get("subID")
        if name == "SUBRESPONSE" and self.subscriptions is not None and body.get("ok", True) and _plain(subscription):
            self.subscriptions.add(subscription)
            if len(self.subscriptions) > self.options.open_limit:
                self.subscriptions = None
        ident = _ident(body.get("rID"))
        return (
            (ident, RESPONSE, (1 - side, rid), notes) if rid is not None else (ident, *self.order.answer(name, fault, notes, self.client))
        )

    def _request(
        self, side: int, table: FrameTable, body: dict[str, Any], rid: Any, fault: Fault | None, notes: Any
    ) -> tuple[int | str | None, Role, tuple[Any, ...] | None, Any]:
        """Id, role, key and notes of a request."""
        role = NONE
        key: tuple[Any, ...] | None = None
        if table.name == "QUERY":
            # Answered by an id of its own
            query = body.get("queryID")
            if rid is None and "rID" not in body and self.order.numbered and fault is None:
                notes = [*notes, "mandatory field rID is missing"]
            if _plain(query):
                role, key = REQUEST, (side, query, 0)
            ident = _ident(query)
        else:
            ident = rid if type(rid) is int else _ident(body.get("rID"))
            if rid is not None:
                role, key = REQUEST, (side, rid)
            elif "rID" not in body:
                # authInfo came three days before rID
                if "authInfo" in body:
                    self.order.number()
                role, key, notes = self.order.ask(side, table, fault, notes)
        if self.subscriptions is not None and "subID" in body:
            notes = self._unsubscribed(body["subID"], notes)
        return ident, role, key, notes

    def _one_way(
        self, side: int, name: str, body: dict[str, Any], notes: Any
    ) -> tuple[str, int | str | None, str | None, Role, tuple[Any, ...] | None, Any]:
        """Kind, id, outcome, role, key and notes of what mostly asks for no answer."""
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
                return "request", ident, None, REQUEST, (side, ident + 1, 0, 0), notes
            if type(ident) is int and body.get("type") == 0:
                return "response", ident, "answered", RESPONSE, (1 - side, ident, 0, 0), notes
        return "one_way", ident, None, NONE, None, notes

    def _result(self, name: str, body: dict[str, Any], key: tuple[Any, ...]) -> Role:
        """Whether more results follow."""
        results = self.results
        if name == "QUERYRESPONSE":
            count = body.get("numResults")
            if not body.get("ok", True) or not count:
                return RESPONSE
            if type(count) is int:
                results[key] = count
                quota.drop_oldest(results, self.options.open_limit)
            return PARTIAL_RESPONSE
        if body.get("last") or not body.get("ok", True) or (key in results and results[key] <= 1):
            results.pop(key, None)
            return RESPONSE
        if key in results:
            results[key] -= 1
        return PARTIAL_RESPONSE

    def _unsubscribed(self, subscription: Any, notes: Any) -> Any:
        """`notes`, with one on a subscription that the server has not given out."""
        if self.subscriptions is None or not _plain(subscription) or subscription in self.subscriptions:
            return notes
        return [*notes, f"subscription {subscription} was not given out on this connection"]


_CONNECT = BY_NAME["CONNECT"]

_LETTERS: Final = re.compile(rb"[ -~\s]{4}").match
"""Text where the length should be."""

_LOGIN: Final = re.compile(rb"\x02type\x00\x08\x00\x00\x00CONNECT\x00\x03frame\x00")

_SECRET_SIGNS: Final = (b"CONNECT", *(name.encode() for name in SECRET_NAMES))
"""Bytes by which a damaged frame of no known type may hold a password."""

_UNKNOWN: Final = {
    "PUBLISH": "PUBLISH is the document's name for PUB; servers drop it without an answer",
    "LISTCHANNELS": "servers know LISTCHANNNELS only, with three N; they drop this without an answer",
}


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


def _fields(walked: WalkedDocument, bytes_as: Any, hide: bool) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """The fields of a frame as they are printed, and what stands under `type` and `frame`."""
    pairs = walked.pairs
    names = [name for name, _ in pairs]
    fields: dict[str, Any] = {} if walked.size is None else {"size": walked.size}
    if len(set(names)) == len(names) and "size" not in names and "trailing" not in names:
        fields.update(pairs)
    else:
        fields["document"] = [{"key": name, "value": value} for name, value in pairs]
    trailing = walked.trailing
    if trailing is not None:
        fields["trailing"] = redacted(len(trailing)) if hide else RENDER[bytes_as](trailing)
    return fields, [value for name, value in pairs if name == "type"], [value for name, value in pairs if name == "frame"]


def _envelope(walked: WalkedDocument, texts: list[Any], frames: list[Any], name: str | None) -> dict[str, Any]:
    """The inner document of a frame, or an empty one; with notes on anomalies of it and its type."""
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


def _envelope_spans(name: str, inner: int, size: int) -> list[Span]:
    """The spans in front of the inner document's elements; it begins at `inner`."""
    first = inner - len(FRAME)
    return [
        Span("size", 0, 4, size),
        Span("type", 4, first - 4, name),
        Span("frame", first, size - 1 - first, None, leaf=False),
        Span("length", first, len(FRAME) + 4, size - 1 - inner, 1),
    ]


def _spans(walked: WalkedDocument, hide: bool) -> list[Span]:
    """The spans, those of unread bytes marked where there may be secrets in them."""
    for span in walked.spans if hide else ():
        if span.leaf and span.name in ("undecoded", "trailing"):
            span.secret, span.value = True, redacted(span.length)
    return walked.spans


PROTOCOL: Final = LoadedProtocol(
    MewbaseDissector,
    heuristic,
    info,
    FRAMES,
    TEXT,
    code=("frame.errCode",),
    login=_LOGIN,
    compare_rules=COMPARE_RULES,
    scrub_rules=SCRUB_RULES,
    unanswered=unanswered,
    traffic=traffic,
    entries=MewbaseEntries,
    alarms=dict.fromkeys(("RESPONSE", "SUBRESPONSE", "QUERYRESULT", "QUERYRESPONSE"), failed),
)
