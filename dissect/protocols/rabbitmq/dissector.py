"""RabbitMQ Streams: frames back to back, each a size, a key and a version; both the protocol in use and its first draft."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from struct import Struct
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dissect.allowance import PLENTY, Allowance, Spans, Values
from dissect.capture.columns import gather
from dissect.errors import Malformed
from dissect.layout import UNREADABLE, Layout, Style, decoder, fault_of, walk
from dissect.layout.types import Field
from dissect.layout.values import RENDER, redacted
from dissect.model import Fault, Head, Limited, Span
from dissect.protocols.base import Dissector
from dissect.protocols.protocol import Context, Protocol
from dissect.protocols.rabbitmq import guard, layouts, layouts_draft
from dissect.protocols.rabbitmq.amqp import read as read_amqp
from dissect.protocols.rabbitmq.behaviour import BEHAVIOUR
from dissect.protocols.rabbitmq.chunk import MAGIC, Reader, crc_note, draft_form
from dissect.protocols.rabbitmq.guard import Guard, Place, Seen, is_mechanism, username
from dissect.protocols.rabbitmq.language import CURRENT_LANGUAGE, DRAFT_LANGUAGE, Language, is_sound
from dissect.protocols.rabbitmq.parts import ADDED, DRAFT_PARTS, PARTS
from dissect.protocols.rabbitmq.private import PRIVATE
from dissect.protocols.rabbitmq.probe import probe_current, probe_draft
from dissect.protocols.rabbitmq.says import alarms, says
from dissect.protocols.rabbitmq.streams import Streams, Teller
from dissect.protocols.records import ANSWER, ANSWER_MANY, ASK, ASK_MANY, ASK_MAYBE, NONE, Damage, Handler, Handlers

_BODIED = frozenset(("Publish", "Deliver"))
"""Messages that hold those of the user."""

UNKNOWN_LIMIT = 1 << 20
"""A frame of a command that is not known is believed up to this size (the default frame_max)."""

FRAMES_BY_COLUMN = 16
"""Frames of a segment up to which they are told by column; more are rare, and one by one they cost less."""

KNOWN_LIMIT = 0x7FFF_FFFF


class Phase(Enum):
    """How far the handshake has come."""

    FRESH = "fresh"
    GREETED = "greeted"
    AUTHENTICATING = "authenticating"
    TUNED = "tuned"
    OPEN = "open"


HANDSHAKE: Mapping[Phase, Mapping[str, Phase]] = {
    Phase.FRESH: {"PeerProperties": Phase.GREETED},
    Phase.GREETED: {"SaslHandshake": Phase.AUTHENTICATING},
    Phase.AUTHENTICATING: {"SaslAuthenticate": Phase.AUTHENTICATING, "Tune": Phase.TUNED},
    Phase.TUNED: {"Tune": Phase.TUNED, "Open": Phase.OPEN},
}

DRAFT_HANDSHAKE: Mapping[Phase, Mapping[str, Phase]] = {
    **HANDSHAKE,
    Phase.FRESH: {"SaslHandshake": Phase.AUTHENTICATING},
}

ANSWERED: Mapping[str, Phase] = {
    "PeerProperties": Phase.GREETED,
    "SaslHandshake": Phase.AUTHENTICATING,
    "SaslAuthenticate": Phase.AUTHENTICATING,
    "Open": Phase.OPEN,
}
"""Where a connection is at least when this was answered: the request may not have been captured."""

_ORDER = {phase: order for order, phase in enumerate(Phase)}

_ANYTIME = frozenset(("Heartbeat", "Close"))

HIDDEN = "hidden: a password may be in it"

NULL_REFERENCE = "the publisher reference is null: servers answer that with Close (unknown frame), an empty one is none"

_OPEN = Phase.OPEN
_OUTSIDE = Place.OUTSIDE
_UNLIMITED = 1 << 62

_WORD = Struct(">4xI").unpack_from
_HEAD = Struct(">II").unpack_from
_U32 = Struct(">I").unpack_from
_PUBLISH = Struct(">IHHBi").unpack_from
_PUBLISHED = Struct(">QI").unpack_from
_DELIVER = Struct(">IHHBBBHIqQQIIIB3s").unpack_from
_DELIVER_2 = Struct(">IHHBQBBHIqQQIIIB3s").unpack_from


def open_key(side: int, number: int, ident: int = 0) -> int:
    """What pairs a request of `side` with its response: below zero, so that it is never the key of a published message."""
    return -1 - (side << 48 | number << 32 | ident)


@dataclass(slots=True)
class _Frame:
    """A frame that is looked at closely, and what is said of it."""

    side: int
    data: bytes
    start: int
    end: int
    word: int
    """Key and version."""
    missing: str | None
    """Why bytes of it are not there."""
    layout: Layout | None = None
    odd: str | None = None
    """That only the other side sends it."""
    whole: bool = False
    """It has a layout and reads as that without a flaw."""
    sound: bool = False
    """And its side sends it."""
    name: str = ""
    kind: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fault: Fault | None = None


class StreamDissector(Dissector):
    """What the protocol in use and its draft have in common."""

    header_size = 8
    key = (4, 8)
    aligned = True
    reuse = "queue"
    DERIVED = ("bodies", "unasked", "style", "render", "small", "tried")

    language: ClassVar[Language]
    handshake: ClassVar[Mapping[Phase, Mapping[str, Phase]]]
    lead: ClassVar[int]
    """So many frames a client sends before SaslAuthenticate."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.phase = Phase.FRESH if context.syn else Phase.OPEN
        self.guard = Guard(context.syn, self.lead, self.options.show_secrets)
        self.ahead: set[str] = set()
        """What was answered before it was seen to be asked."""
        self.style = Style(self.options.bytes_as, self.options.show_secrets, self.options.values_limit)
        self.render = RENDER[self.style.bytes_as]
        full = self.options.bodies or self.options.detail
        self.unasked = self._unasked() if full else frozenset()
        """The messages that nobody asks for."""
        self.bodies = _BODIED - self.unasked if full else frozenset()
        """Those whose bodies are decoded."""
        self.frame_max = _UNLIMITED
        self.allowance = Allowance()
        self.values = Values(self.options.values_limit, self.options.bare_limit)
        self.tried = Values(self.options.values_limit)
        """For the short way, which leaves values without bytes to `decode`."""
        self.small = self.options.values_limit // 2
        """Frames of so few bytes cannot hold too many values that take one: three are a pair of two."""
        self.renewed = False
        """Whether `publisher_key` has more to say than the publisher id."""
        self._choose_handlers()

    def _choose_handlers(self) -> None:
        """Without a known client every frame is looked at closely, which finds out; with details wanted it has to be."""
        if self.client is not None and (self.unasked or not self.options.detail):
            tables = self.guarded if self.guard.place is not _OUTSIDE else self.tables if self.phase is _OPEN else self.followed
            client, server = tables(self.style, self.bodies)
            if self.options.detail:
                client, server = (
                    {word: made for word, made in side.items() if choices[int.from_bytes(word, "big")][0].name in self.unasked}
                    for side, choices in ((client, self.language.client), (server, self.language.server))
                )
            self.handlers = (server, client) if self.client else (client, server)
        self.set_lanes()

    def resume(self) -> None:
        self._choose_handlers()

    def _unasked(self) -> frozenset[str]:
        wanted = self.options.wanted
        if wanted is None:
            return frozenset()
        head = Head(self.protocol, self.context.conversation, *self.context.endpoints)
        return frozenset(self.language.numbers) - {
            one.name
            for side in (self.language.client, self.language.server)
            for choices in side.values()
            for one in choices
            if wanted(head._replace(name=one.name, kind=one.kind))
        }

    @classmethod
    def tables(cls, style: Style, bodies: frozenset[str]) -> tuple[Handlers, Handlers]:
        """The handlers of what a client and what a server sends."""
        raise NotImplementedError

    @classmethod
    @cache
    def followed(cls, style: Style, bodies: frozenset[str]) -> tuple[Handlers, Handlers]:
        """The same until the connection is open: these follow the handshake."""
        client, server = ({word: _follow(handler) for word, handler in side.items()} for side in cls.tables(style, bodies))
        return client, server

    def counted(self, size: int, entry: int) -> Values | None:
        """What counts the values of a frame that is not small, of entries of at least `entry` bytes; None where these alone may be too
        many."""
        return self.tried.begin() if size // entry <= self.tried.limit else None

    @classmethod
    @cache
    def guarded(cls, style: Style, bodies: frozenset[str]) -> tuple[Handlers, Handlers]:
        """The same where a frame may hold a password: of these it is certain what may be shown."""
        language = cls.language
        client, server = (
            {word: handler for word, handler in side.items() if choices[int.from_bytes(word, "big")][0].name in certain}
            for side, choices, certain in zip(
                cls.followed(style, bodies), (language.client, language.server), (_CERTAIN_CLIENT, _CERTAIN_SERVER), strict=True
            )
        )
        return client, server

    # Framing

    def measure(self, side: int, data: bytes, at: int) -> int:
        size, word = _HEAD(data, at)
        if size < 4 or size > (KNOWN_LIMIT if word in self.language.words else UNKNOWN_LIMIT):
            return -1
        return int(size) + 4

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        ends: list[int] = []
        append = ends.append
        head, words = _HEAD, self.language.words
        last = len(data)
        header = last - 8
        limit = self.options.frame_limit - 4
        while at <= header:
            size, word = head(data, at)
            if word not in words or size < 4 or size > limit:
                break
            at += 4 + size
            if at > last:
                break
            append(at)
        return ends

    @classmethod
    def frames(
        cls, buffer: bytes, offset: NDArray[np.int64], end: NDArray[np.int64], limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        words = cls.language.sorted_words
        rows: list[NDArray[np.int64]] = []
        starts: list[NDArray[np.int64]] = []
        stops: list[NDArray[np.int64]] = []
        sound = np.ones(len(offset), np.bool_)
        row, at = np.arange(len(offset)), offset
        while len(row):
            whole = end[row] - at >= 8
            sound[row[~whole]] = False
            row, at = row[whole], at[whole]
            head = gather(buffer, at, [("size", ">u4"), ("word", ">u4")])
            size, word = head["size"].astype(np.int64), head["word"].astype(np.int64)
            stop = at + size + 4
            good = (size >= 4) & (size <= limit - 4) & (stop <= end[row])
            good &= words[np.minimum(np.searchsorted(words, word), len(words) - 1)] == word
            good &= len(rows) < FRAMES_BY_COLUMN
            sound[row[~good]] = False
            row, at, stop = row[good], at[good], stop[good]
            rows.append(row)
            starts.append(at)
            stops.append(stop)
            more = stop < end[row]
            row, at = row[more], stop[more]
        return np.concatenate(rows), np.concatenate(starts), np.concatenate(stops), sound

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        client = None if self.client is None else side == self.client
        return self.language.search(client, data, at, end, final, self.flows[side].effort)[:2]

    def lost(self, side: int) -> None:
        self.guard.lose()
        if self.phase is not _OPEN:
            self._reach(_OPEN)

    # Meaning

    def _advance(self, name: str, kind: str) -> str | None:
        """Follow the handshake: a note when this message was not expected now."""
        if name in _ANYTIME:
            return None
        if kind == "response" and name != "Tune":
            reached = ANSWERED.get(name, self.phase)
            if _ORDER[reached] > _ORDER[self.phase]:
                self._reach(reached)
                self.ahead.add(name)
            return None
        following = self.handshake[self.phase].get(name)
        if following is None:
            if name in self.ahead:
                # Captured after its answer
                self.ahead.remove(name)
                return None
            return f"{name} while the connection is {self.phase.value}"
        self._reach(following)
        return None

    def _reach(self, phase: Phase) -> None:
        self.phase = phase
        if phase is _OPEN:
            self._choose_handlers()

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        """Any frame: damaged, not known, from the wrong side, with details wanted. Exact and slow."""
        (word,) = _WORD(data, start)
        if self.client is None and damage is None:
            self._tell_client(side, word, data, start, end)
        frame = _Frame(side, data, start, end, word, None if damage is None else damage.reason)
        layout, frame.odd = self._layout_of(side, word, data, start, end)
        if layout is None:
            self._read_unknown(frame)
        else:
            self._read(frame, layout)
        read = frame.fields
        shown = self.style.show_secrets or (frame.sound and self.guard.place is _OUTSIDE and frame.name != "SaslHandshake")
        shown = shown or self._protect(frame)
        spans = frame.spans if self.options.detail else None
        if layout is None:
            return frame.name, frame.kind, None, frame.fields, None, frame.notes, frame.fault, NONE, None, spans
        ident, outcome, role, key = self.meaning(layout, side, read if frame.sound else frame.fields)
        if frame.odd is not None:
            # Whoever is right about the direction, this answers nothing and waits for nothing.
            outcome, role, key = None, NONE, None
        elif shown:
            self.follow(layout, side, frame.fields, frame.notes)
        if self.phase is not _OPEN and (shown or frame.sound):
            unexpected = self._advance(frame.name, frame.kind)
            if unexpected is not None:
                frame.notes.append(unexpected)
        return frame.name, frame.kind, ident, frame.fields, outcome, frame.notes, frame.fault, role, key, spans

    def _read(self, frame: _Frame, layout: Layout) -> None:
        """A frame that has a layout."""
        frame.layout, frame.name, frame.kind = layout, layout.name, layout.kind
        data, start, end, missing = frame.data, frame.start, frame.end, frame.missing
        if layout in self.language.heads:
            frame.fields, frame.spans, frame.notes, frame.fault = self._read_entries(layout, data, start, end, missing)
        else:
            # Where a user's name is put in, and where something is wrong, the places of the fields are needed
            fields = None if missing or self.options.detail or layout.name == "SaslAuthenticate" else _plainly(layout, self.style, frame)
            if fields is not None:
                frame.fields = fields
            else:
                frame.fields, frame.spans, frame.notes, frame.fault = walk(layout, data, start, end, self.style, missing)
        if "mechanism" in frame.fields:
            self._read_login(frame)
        if frame.odd is not None:
            frame.notes.append(frame.odd)
        frame.whole = (frame.fault is None or type(frame.fault) is Limited) and "trailing" not in frame.fields
        frame.sound = frame.whole and frame.odd is None

    def _read_unknown(self, frame: _Frame) -> None:
        """A frame whose key or version is not known."""
        word = frame.word
        key, version = word >> 16, word & 0xFFFF
        name, marked = self.name_of(key)
        if name is None:
            name = f"unknown 0x{key:04x}"
            note = f"command 0x{key:04x} is not known"
        elif marked and word & 0x7FFF_FFFF in self.language.words:
            note = f"the response bit is set on {name}, which is never sent with it"
        else:
            note = f"version {version} of {name} is not known"
        frame.name, frame.kind = name, "response" if marked else "one_way"
        walked = walk(layouts.UNKNOWN, frame.data, frame.start, frame.end, self.style, frame.missing)
        frame.fields, frame.spans, frame.notes, frame.fault = walked
        frame.notes.append(note)

    # Secrets

    def _read_login(self, frame: _Frame) -> None:
        """What is said of SaslAuthenticate: no mechanism that is none, and the user name if it is read to its end."""
        fields, spans = frame.fields, frame.spans
        mechanism = fields["mechanism"]
        if not is_mechanism(mechanism) and not self.style.show_secrets:
            if mechanism is not None:
                at = next(index for index, span in enumerate(spans) if span.name == "mechanism")
                fields["mechanism"] = redacted(spans[at].length - 2)
                spans[at] = spans[at]._replace(value=fields["mechanism"], secret=True)
            if frame.fault is not None:
                # What it says of lengths may be of other bytes
                frame.fault.reason = frame.missing or "cannot be read"
        if "sasl_username" in fields and "trailing" not in fields and frame.side == self.client:
            at = next(index for index, span in enumerate(spans) if span.name == "sasl_opaque_data")
            begin = frame.start + spans[at].offset + 4
            name = fields["sasl_username"] = username(mechanism, frame.data[begin : begin + spans[at].length - 4])
            spans[at + 1] = spans[at + 1]._replace(value=name)

    def _protect(self, frame: _Frame) -> bool:
        """Hide what may be a password where the frame stands, which it may change; whether the frame is shown as what it says it is."""
        before = self.guard.place
        trusted = self.guard.trusted[frame.side]
        inside = before is not _OUTSIDE or self.began < self.guard.until
        shown = self._shows(frame)
        if (before is _OUTSIDE) != (self.guard.place is _OUTSIDE):
            self._choose_handlers()
        if not shown:
            self._hide(frame, trusted)
        elif inside:
            self._hide_rest(frame)
        return shown

    def _shows(self, frame: _Frame) -> bool:
        """Whether a frame may be shown where it stands, which it may change."""
        side, data, start, end, layout = frame.side, frame.data, frame.start, frame.end, frame.layout
        # Without its beginning a connection may be the other way round
        astray = frame.odd is not None and not self.guard.loose
        name = "" if layout is None or astray else frame.name
        login = guard.is_login(data, start, end) or self.language.holds.search(data, start + 8, end) is not None
        login = login or (layout is None and frame.name == "SaslAuthenticate")
        of_server = self.client is not None and side != self.client
        certain = frame.whole and not astray
        certain = certain or (of_server and layout in self.language.delivered and self._is_chunk(frame))
        inside = self.guard.place is not _OUTSIDE
        if of_server and inside and name != "SaslAuthenticate" and guard.is_challenge(data, start, end, max(self.language.accepted)):
            login, certain = True, False
        seen = Seen(name, certain, self.guard.trusted[side], login, self.began, self.spread, self.release)
        self.guard.trusted[side] = frame.sound
        if of_server:
            accepts = name in ("Tune", "Open") or (name == "SaslAuthenticate" and frame.fields.get("response_code_label") == "OK")
            return self.guard.hear(seen, accepts)
        return self.guard.shows(seen, self.phase is Phase.FRESH, guard.may_be_login(data, start, end))

    def _is_chunk(self, frame: _Frame) -> bool:
        """Whether what is there of a Deliver is one, certainly."""
        assert frame.layout is not None
        length = _U32(frame.data, frame.start)[0] + 4
        return self.language.tells([frame.layout], frame.data, frame.start, frame.end) and self.language.fits(
            frame.layout, frame.data, frame.start, frame.end, length
        )

    def _hide(self, frame: _Frame, trusted: bool) -> None:
        """Let nothing of a frame be seen but its header and a mechanism; not even these where perhaps no frame begins."""
        layout, start, end, fault = frame.layout, frame.start, frame.end, frame.fault
        if layout is None and not trusted:
            frame.name, frame.kind, frame.notes = "unknown", "one_way", []
            shape = layouts.HIDDEN_WHOLE
        elif end - start < guard.MECHANISM_AT or (frame.sound and layout is not None and layouts.CORRELATION_ID not in layout.fields):
            shape = layouts.HIDDEN_SHORT
        else:
            shape = layouts.HIDDEN_LOGIN if guard.mechanism_size(frame.data, start, end) else layouts.HIDDEN
        frame.fields, frame.spans, _, frame.fault = walk(shape, frame.data, start, end, self.style, frame.missing)
        if frame.fault is None and fault is not None:
            body = frame.spans[-1].offset if frame.spans[-1].secret else end - start
            frame.fault = Fault("body", body, f"cannot be read as {frame.name}")
        if layout is not None:
            frame.notes = [] if frame.odd is None else [frame.odd]
        frame.notes.append(HIDDEN)
        self.buffers = {}

    def _hide_rest(self, frame: _Frame) -> None:
        """Hide what could not be read where a password is expected; but not what a snap length left of a field."""
        fault, spans = frame.fault, frame.spans
        cut = frame.missing is not None and fault is not None and fault.field != "trailing"
        for index, span in enumerate(spans):
            if span.leaf and (span.name == "trailing" or (span.name == "undecoded" and not cut)):
                spans[index] = span._replace(value=redacted(span.length), secret=True)
                if span.name in frame.fields:
                    frame.fields[span.name] = redacted(span.length)

    def name_of(self, key: int) -> tuple[str | None, bool]:
        """The command of a key, and whether the key marks a response."""
        return self.language.commands.get(key), False

    def _tell_client(self, side: int, word: int, data: bytes, start: int, end: int) -> None:
        """A frame without flaw that only one of the two sends says which side is the client."""
        asks, answers = word in self.language.client, word in self.language.server
        if asks != answers:
            choices = (self.language.client if asks else self.language.server)[word]
            if any(is_sound(layout, data, start, end) for layout in choices):
                self.client = side if asks else 1 - side
                self._choose_handlers()

    def _layout_of(self, side: int, word: int, data: bytes, start: int, end: int) -> tuple[Layout | None, str | None]:
        """The layout of a frame, and a note if only the other side sends it."""
        language = self.language
        if self.client is None:
            choices = (*language.client.get(word, ()), *language.server.get(word, ()))
            return (self.choose(choices, data, start, end), None) if choices else (None, None)
        asks = side == self.client
        own, other = (language.client, language.server) if asks else (language.server, language.client)
        choices = own.get(word, ())
        if choices:
            return self.choose(choices, data, start, end), None
        choices = other.get(word, ())
        if choices:
            layout = self.choose(choices, data, start, end)
            return layout, f"{layout.name} {layout.kind} sent by the {'client' if asks else 'server'}"
        return None, None

    def choose(self, choices: tuple[Layout, ...], data: bytes, start: int, end: int) -> Layout:
        """Which of several layouts with one key and version this frame has: the first it reads as without a flaw."""
        if len(choices) == 1:
            return choices[0]
        for layout in choices:
            if is_sound(layout, data, start, end):
                return layout
        if len({(layout.name, layout.kind) for layout in choices}) < len(choices):
            # One message in two forms, with a flaw, such as a code that nobody knows: the form that fills the frame
            for layout in choices:
                fields, _, _, fault = walk(layout, data, start, end, self.style, None)
                if fault is None and "trailing" not in fields:
                    return layout
        return choices[0]

    def meaning(self, layout: Layout, side: int, fields: dict[str, Any]) -> tuple[Any, str | None, int, Any]:
        """Id, outcome, role and key of a message whose fields may not all be there."""
        number = self.language.numbers[layout.name]
        if layout in self.language.published:
            high = self.publisher_key(fields.get("publisher_id", 0), True)
            ids = [one["publishing_id"] for one in fields.get("published_messages", ()) if "publishing_id" in one]
            return None, None, ASK_MANY, [high | one for one in ids]
        if layout.name == "PublishConfirm":
            high = self.publisher_key(fields.get("publisher_id", 0), False)
            return None, "answered", ANSWER_MANY, [high | one for one in fields.get("publishing_ids", ())]
        if layout.name == "PublishError":
            high = self.publisher_key(fields.get("publisher_id", 0), False)
            ids = [one["publishing_id"] for one in fields.get("publishing_errors", ()) if "publishing_id" in one]
            return None, "refused", ANSWER_MANY, [high | one for one in ids]
        if layout.name == "Tune":
            if layout.kind == "request":
                return None, None, ASK, open_key(side, number)
            return None, "answered", ANSWER, open_key(1 - side, number)
        if layout.name == "Credit" and "subscription_id" in fields:
            # Answered in trouble only, and then without a correlation id.
            if layout.kind == "one_way":
                return None, None, ASK_MAYBE, open_key(side, number, fields["subscription_id"])
            return None, "refused", ANSWER, open_key(1 - side, number, fields["subscription_id"])
        ident = fields.get("correlation_id")
        if ident is None:
            return None, None, NONE, None
        if layout.kind == "request":
            return ident, None, ASK, open_key(side, number, ident)
        code = fields.get("response_code")
        refused = code is not None and code not in self.language.accepted
        return ident, "refused" if refused else "answered", ANSWER, open_key(1 - side, number, ident)

    def publisher_key(self, publisher: int, asks: bool) -> int:
        """What the keys of a publisher's messages have above their publishing ids; `asks`: a Publish, no answer to one."""
        return publisher << 64

    def follow(self, layout: Layout, side: int, fields: dict[str, Any], notes: list[str]) -> None:
        """Keep the state that some messages change, and note what it says of them."""
        if layout in self.language.published:
            if side == self.client and fields.get("size", 0) > self.frame_max:
                notes.append(f"frame of {fields['size']} bytes is over the negotiated maximum of {self.frame_max} bytes")
        elif layout.name == "DeclarePublisher" and layout.kind == "request":
            if fields.get("publisher_reference", "") is None:
                notes.append(NULL_REFERENCE)
        elif layout.name == "Tune" and layout.kind == "response" and "heartbeat" in fields:
            # The values that hold are those of the client.
            self.frame_max = fields["frame_max"] or _UNLIMITED
            self.facts["frame_max"] = fields["frame_max"]
            self.facts["heartbeat"] = fields["heartbeat"]

    def _read_entries(
        self, layout: Layout, data: bytes, start: int, end: int, missing: str | None
    ) -> tuple[dict[str, Any], list[Span], list[str], Fault | None]:
        """Publish and Deliver, whose messages no table can say."""
        language = self.language
        detail = self.options.detail
        reader = Reader(language.forms[0], start, self.render, Spans() if detail else None, self.values.begin(), layout.name in self.bodies)
        budget = reader.budget = min(reader.budget, self.allowance.grow(end - start))
        fields: dict[str, Any] = {}
        fault: Fault | None = None
        try:
            at = reader.parts(language.heads[layout], data, start, end, fields, "", 0)
            if layout in language.published:
                if layout is layouts_draft.PUBLISH:
                    at = reader.text("stream", data, at, end, fields, "", 0)
                entries: list[dict[str, Any]] = []
                fields["published_messages"] = entries
                at = reader.published(data, at, end, layout is layouts.PUBLISH_2, entries, "published_messages", 0)
            else:
                if layout is layouts_draft.DELIVER:
                    reader.form = draft_form(data, at, end)
                chunk: dict[str, Any] = {}
                reader.open("chunk", at, 0)
                fields["chunk"] = chunk
                at = reader.chunk(data, at, end, chunk, "chunk", 1)
                reader.close(at)
            if missing is not None:
                raise Malformed("trailing", end - start, missing)
            if at < end:
                reader.note(f"{end - at} bytes left over")
                fields["trailing"] = self.render(data[at:end])
                reader.span("trailing", at, end - at, fields["trailing"], 0)
        except Malformed as wrong:
            fault = fault_of(wrong, missing)
            reader.tile(data, end)
        self.allowance.left -= budget - reader.budget
        if reader.spans is not None:
            reader.spans.close()
        if detail and reader.buffers:
            self.buffers = reader.buffers
        return fields, reader.spans or [], reader.notes(), fault


def _plainly(layout: Layout, style: Style, frame: _Frame) -> dict[str, Any] | None:
    """The fields of a frame of which there is nothing to say, or None."""
    try:
        fields = decoder(layout, style)(frame.data, frame.start, frame.end)
    except UNREADABLE:
        return None
    return None if "trailing" in fields else fields


# Handlers: what `decode` does, for frames without flaw and without a step more than that takes


def _follow(handler: Handler) -> Handler:
    """`handler` for a connection that is perhaps not open yet."""

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        decoded = handler(self, side, data, start, end)
        if decoded is None:
            return None
        if self.guard.place is not _OUTSIDE:
            self.guard.trusted[side] = True
            if side != self.client:
                self.guard.listen(decoded[0])
        if self.phase is _OPEN:
            return decoded
        note = self._advance(decoded[0], decoded[1])
        return decoded if note is None else (*decoded[:5], (*decoded[5], note), *decoded[6:])

    return handle


def _ask(layout: Layout, style: Style, number: int) -> Handler:
    read, name = decoder(layout, style), layout.name
    keys = open_key(0, number), open_key(1, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        ident = fields["correlation_id"]
        return name, "request", ident, fields, None, (), None, ASK, keys[side] - ident, None

    return handle


def _declare(layout: Layout, style: Style, number: int) -> Handler:
    ask = _ask(layout, style, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        asked = ask(self, side, data, start, end)
        # A null reference is noted
        return None if asked is not None and asked[3].get("publisher_reference", "") is None else asked

    return handle


def _keep(layout: Layout, handler: Handler) -> Handler:
    """`handler` for what changes the state of the connection."""

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        decoded = handler(self, side, data, start, end)
        if decoded is not None:
            self.follow(layout, side, decoded[3], [])
        return decoded

    return handle


def _greet(layout: Layout, style: Style, number: int, holds: re.Pattern[bytes]) -> Handler:
    ask = _ask(layout, style, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        asked = None if holds.search(data, start + 8, end) else ask(self, side, data, start, end)
        if asked is not None:
            self.guard.lead()
        return asked

    return handle


def _handshake(layout: Layout, style: Style, number: int) -> Handler:
    ask = _ask(layout, style, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        # On an open connection it changes what may be shown
        asked = None if self.guard.place is _OUTSIDE else ask(self, side, data, start, end)
        if asked is not None:
            self.guard.begin()
        return asked

    return handle


def _authenticate(layout: Layout, style: Style, number: int) -> Handler:
    ask = _ask(layout, style, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        asked = ask(self, side, data, start, end)
        if asked is not None:
            fields = asked[3]
            mechanism = fields["mechanism"]
            if not is_mechanism(mechanism):
                return None
            self.guard.ask(True)
            fields["sasl_username"] = username(mechanism, data[start + 18 + len(mechanism) : end])
        return asked

    return handle


def _answer(layout: Layout, style: Style, number: int, accepted: frozenset[int]) -> Handler:
    read, name = decoder(layout, style), layout.name
    keys = open_key(1, number), open_key(0, number)
    coded = any(field.name == "response_code" for field in layout.fields if isinstance(field, Field))

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        ident = fields["correlation_id"]
        # The response to Metadata has no code of its own
        outcome = "answered" if not coded or fields["response_code"] in accepted else "refused"
        return name, "response", ident, fields, outcome, (), None, ANSWER, keys[side] - ident, None

    return handle


def _one_way(layout: Layout, style: Style) -> Handler:
    read, name = decoder(layout, style), layout.name

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        return name, "one_way", None, fields, None, (), None, NONE, None, None

    return handle


def _credit(layout: Layout, style: Style, number: int) -> Handler:
    read = decoder(layout, style)
    keys = open_key(0, number), open_key(1, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        return "Credit", "one_way", None, fields, None, (), None, ASK_MAYBE, keys[side] - fields["subscription_id"], None

    return handle


def _confirm(layout: Layout, style: Style) -> Handler:
    read = decoder(layout, style)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        keys = fields["publishing_ids"]
        publisher = fields.get("publisher_id")
        if publisher is not None and (publisher or self.renewed):
            high = self.publisher_key(publisher, False) if self.renewed else publisher << 64
            keys = [high | one for one in keys]
        return "PublishConfirm", "response", None, fields, "answered", (), None, ANSWER_MANY, keys, None

    return handle


def _publish(style: Style, bodies: bool) -> Handler:
    render = RENDER[style.bytes_as]
    head, each = _PUBLISH, _PUBLISHED

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        size, key, version, publisher, count = head(data, start)
        if size > self.frame_max:
            return None
        values = PLENTY if end - start <= self.small else self.counted(end - start, 12)
        if values is None:
            return None
        high = self.publisher_key(publisher, True) if self.renewed else publisher << 64
        at = start + 13
        messages: list[dict[str, Any]] = []
        keys = []
        append = messages.append
        while at < end:
            publishing_id, length = each(data, at)
            at += 12
            stop = at + length
            # A sub-batch is longer than any frame
            if stop > end:
                return None
            if not bodies:
                append({"publishing_id": publishing_id, "size": length})
            elif length > 2 and not data[at] and data[at + 1] in _DESCRIBED:
                append({"publishing_id": publishing_id, "size": length, "sections": read_amqp(data, at, stop, render, values)})
            else:
                append({"publishing_id": publishing_id, "size": length, "body": render(data[at:stop])})
            keys.append(high | publishing_id)
            at = stop
        if len(messages) != count or not values.take(count):
            return None
        fields = {"size": size, "key": key, "version": version, "publisher_id": publisher, "published_messages": messages}
        return "Publish", "request", None, fields, None, (), None, ASK_MANY, keys, None

    return handle


_CERTAIN_CLIENT = frozenset(("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Heartbeat"))
_CERTAIN_SERVER = frozenset(("PeerProperties", "SaslHandshake", "Heartbeat"))
"""What is shown at every place of a handshake, without flaw."""

_DESCRIBED = frozenset((0x53, 0x80, 0xA3, 0xB3))
"""What follows the first byte of an AMQP section."""


def _deliver(style: Style, version_2: bool, bodies: bool) -> Handler:
    render = RENDER[style.bytes_as]
    head, word_at = (_DELIVER_2 if version_2 else _DELIVER), _U32
    section_at = 65 if version_2 else 57

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        if version_2:
            (size, key, version, subscription, committed, magic, kind, count, records, timestamp, epoch, first, crc, length, trailer, bloom,
             reserved) = head(data, start)  # fmt: skip
        else:
            (size, key, version, subscription, magic, kind, count, records, timestamp, epoch, first, crc, length, trailer, bloom,
             reserved) = head(data, start)  # fmt: skip
        at = start + section_at
        last = at + length
        # Trailers, tracking chunks and sub-batches are read by `Reader`
        if last != end or kind or magic != MAGIC or records != count:
            return None
        values = PLENTY if end - start <= self.small else self.counted(end - start, 4)
        if values is None:
            return None
        notes: Any = ()
        actual = crc32(data[at:last])
        if actual != crc:
            notes = (crc_note(crc, actual),)
        entries: list[dict[str, Any]] = []
        append = entries.append
        offset = first
        for _ in range(count):
            (word,) = word_at(data, at)
            at += 4
            stop = at + word
            if stop > last:
                return None
            if not bodies:
                pass
            elif word > 2 and not data[at] and data[at + 1] in _DESCRIBED:
                append({"offset": offset, "size": word, "sections": read_amqp(data, at, stop, render, values)})
            else:
                append({"offset": offset, "size": word, "body": render(data[at:stop])})
            offset += 1
            at = stop
        if at != last or not values.take(count):
            return None
        chunk = {
            "magic_version": magic,
            "chunk_type": kind,
            "chunk_type_label": "user",
            "num_entries": count,
            "num_records": records,
            "timestamp": timestamp,
            "epoch": epoch,
            "chunk_first_offset": first,
            "chunk_crc": crc,
            "data_length": length,
            "trailer_length": trailer,
            "bloom_size": bloom,
            "reserved": render(reserved),
        }
        if bodies:
            chunk["entries"] = entries
        if version_2:
            fields = {
                "size": size,
                "key": key,
                "version": version,
                "subscription_id": subscription,
                "committed_chunk_id": committed,
                "chunk": chunk,
            }
        else:
            fields = {"size": size, "key": key, "version": version, "subscription_id": subscription, "chunk": chunk}
        return "Deliver", "one_way", None, fields, None, notes, None, NONE, None, None

    return handle


def _handlers(language: Language, by_side: dict[int, tuple[Layout, ...]], style: Style, special: Mapping[Layout, Handler]) -> Handlers:
    """A handler for every key and version that leaves no choice between layouts."""
    made: dict[bytes, Handler] = {}
    for word, choices in by_side.items():
        layout = choices[0]
        number = language.numbers[layout.name]
        if layout in special:
            handler = special[layout]
        elif len(choices) > 1 or layout.name in ("Tune", "PublishError") or layout in language.heads:
            continue
        elif layout.name == "PublishConfirm":
            handler = _confirm(layout, style)
        elif layout.name == "Credit":
            if layout.kind == "response":
                continue
            handler = _credit(layout, style, number)
        elif layout.name == "PeerProperties" and layout.kind == "request":
            handler = _greet(layout, style, number, language.holds)
        elif layout.name == "DeclarePublisher" and layout.kind == "request":
            handler = _declare(layout, style, number)
        elif layout.name == "SaslHandshake" and layout.kind == "request":
            handler = _handshake(layout, style, number)
        elif layout.name == "SaslAuthenticate" and layout.kind == "request":
            handler = _authenticate(layout, style, number)
        elif layout.kind == "request":
            handler = _ask(layout, style, number)
        elif layout.kind == "one_way":
            handler = _one_way(layout, style)
        else:
            handler = _answer(layout, style, number, language.accepted)
        if layout in _PUBLISHER_LAYOUTS:
            handler = _keep(layout, handler)
        made[word.to_bytes(4, "big")] = handler
    return made


_PUBLISHER_LAYOUTS = frozenset(
    (
        layouts.DECLARE_PUBLISHER,
        layouts.DECLARE_PUBLISHER_RESPONSE,
        layouts.DELETE_PUBLISHER,
        layouts.DELETE_PUBLISHER_RESPONSE,
    )
)


@cache
def _current_handlers(style: Style, bodies: frozenset[str]) -> tuple[Handlers, Handlers]:
    special = {
        layouts.PUBLISH: _publish(style, "Publish" in bodies),
        layouts.DELIVER: _deliver(style, False, "Deliver" in bodies),
        layouts.DELIVER_2: _deliver(style, True, "Deliver" in bodies),
    }
    language = CURRENT_LANGUAGE
    return _handlers(language, language.client, style, special), _handlers(language, language.server, style, special)


@cache
def _draft_handlers(style: Style) -> tuple[Handlers, Handlers]:
    # Unsubscribe is answered under the key of Subscribe: these are followed.
    language = DRAFT_LANGUAGE
    followed = (
        layouts_draft.SUBSCRIBE,
        layouts_draft.SUBSCRIBE_RESPONSE,
        layouts_draft.UNSUBSCRIBE,
        layouts_draft.UNSUBSCRIBE_RESPONSE,
    )
    client = {word: choices for word, choices in language.client.items() if choices[0] not in followed}
    server = {word: choices for word, choices in language.server.items() if choices[0] not in followed}
    return _handlers(language, client, style, {}), _handlers(language, server, style, {})


_ANY: frozenset[int] = frozenset(range(256))
"""All the publishers that there can be: one object, as most of many conversations never know better."""


class RabbitmqStreamDissector(StreamDissector):
    """RabbitMQ Streams as servers since 3.9 speak it."""

    protocol = "rabbitmq-stream"
    language = CURRENT_LANGUAGE
    handshake = HANDSHAKE
    lead = 2

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.waiting: dict[tuple[str, int], int] = {}
        """Publishers whose DeclarePublisher or DeletePublisher has no answer yet, by name and correlation id."""
        self.deleting: set[int] = set()
        """Those that are deleted."""
        self.declaring: set[int] = set()
        """Those that are declared though they exist, as far as is known: they will be taken anew if they were dropped."""
        self.hasty: set[int] = set()
        """Those of them that published before the answer was captured, as the new ones they will be."""
        self.alive = frozenset() if context.syn else _ANY
        """Publishers that may exist: a server that takes one of these anew has dropped it with its stream, and all it published."""
        self.dropped: dict[int, int] = {}
        """How often a publisher was dropped. What it had published is not answered any more, but often published again, under the
        same publishing ids."""

    def lost(self, side: int) -> None:
        super().lost(side)
        self.waiting.clear()
        self.deleting.clear()
        self.declaring.clear()
        for publisher in self.hasty:
            self._drop(publisher)
        self.hasty.clear()

    def publisher_key(self, publisher: int, asks: bool) -> int:
        dropped = self.dropped.get(publisher, 0)
        if asks and publisher in self.declaring:
            self.hasty.add(publisher)
            dropped += 1
        return (dropped << 8 | publisher) << 64

    def _drop(self, publisher: int) -> None:
        self.dropped[publisher] = self.dropped.get(publisher, 0) + 1

    def follow(self, layout: Layout, side: int, fields: dict[str, Any], notes: list[str]) -> None:
        super().follow(layout, side, fields, notes)
        if layout not in _PUBLISHER_LAYOUTS or "correlation_id" not in fields:
            return
        asked = layout.name, fields["correlation_id"]
        if layout.kind == "request":
            if "publisher_id" in fields:
                self.waiting[asked] = fields["publisher_id"]
                if layout is layouts.DELETE_PUBLISHER:
                    self.deleting.add(fields["publisher_id"])
                elif fields["publisher_id"] in self.alive and fields["publisher_id"] not in self.deleting:
                    self.declaring.add(fields["publisher_id"])
                if len(self.waiting) > self.options.open_limit:
                    del self.waiting[next(iter(self.waiting))]
        elif asked in self.waiting:
            publisher = self.waiting.pop(asked)
            accepted = fields.get("response_code") == 1
            if layout is layouts.DELETE_PUBLISHER_RESPONSE:
                self.deleting.discard(publisher)
                self.alive -= {publisher} if accepted else set()
            else:
                if publisher in self.hasty or (accepted and publisher in self.alive):
                    self._drop(publisher)
                self.hasty.discard(publisher)
                self.declaring.discard(publisher)
                self.alive |= {publisher} if accepted else set()
        self.renewed = bool(self.waiting or self.dropped)

    @classmethod
    def tables(cls, style: Style, bodies: frozenset[str]) -> tuple[Handlers, Handlers]:
        return _current_handlers(style, bodies)

    def name_of(self, key: int) -> tuple[str | None, bool]:
        return self.language.commands.get(key & ~layouts.RESPONSE), key >= layouts.RESPONSE


class RabbitmqStreamDraftDissector(StreamDissector):
    """The first draft: version 0, the same key both ways, so that the direction tells requests from responses."""

    protocol = "rabbitmq-stream-draft"
    language = DRAFT_LANGUAGE
    handshake = DRAFT_HANDSHAKE
    lead = 1

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.unsubscribing: dict[int, int] = {}
        self.subscribing: dict[int, int] = {}

    @classmethod
    def tables(cls, style: Style, bodies: frozenset[str]) -> tuple[Handlers, Handlers]:
        return _draft_handlers(style)

    def choose(self, choices: tuple[Layout, ...], data: bytes, start: int, end: int) -> Layout:
        if choices[0] is layouts_draft.CLOSE:
            # A response is exactly as long as its fixed fields, and a request always longer.
            return layouts_draft.CLOSE_RESPONSE if _U32(data, start)[0] == 10 else layouts_draft.CLOSE
        if layouts_draft.SUBSCRIBE_RESPONSE in choices and end - start >= 12 and _U32(data, start + 8)[0] in self.unsubscribing:
            return layouts_draft.UNSUBSCRIBE_SUCCESS
        return super().choose(choices, data, start, end)

    def follow(self, layout: Layout, side: int, fields: dict[str, Any], notes: list[str]) -> None:
        super().follow(layout, side, fields, notes)
        ident = fields.get("correlation_id")
        if ident is None:
            return
        if layout is layouts_draft.UNSUBSCRIBE:
            _remember(self.unsubscribing, ident, self.options.open_limit)
        elif layout is layouts_draft.SUBSCRIBE:
            _remember(self.subscribing, ident, self.options.open_limit)
        elif layout in (layouts_draft.UNSUBSCRIBE_RESPONSE, layouts_draft.UNSUBSCRIBE_SUCCESS):
            _forget(self.unsubscribing, ident)
        elif layout is layouts_draft.SUBSCRIBE_RESPONSE and not _forget(self.subscribing, ident) and not fields.get("response_code"):
            notes.append("this may as well answer Unsubscribe, whose success has the same key")


def _remember(waiting: dict[int, int], ident: int, limit: int) -> None:
    waiting[ident] = waiting.get(ident, 0) + 1
    if len(waiting) > limit:
        del waiting[next(iter(waiting))]


def _forget(waiting: dict[int, int], ident: int) -> bool:
    """Whether a request with this id was waiting."""
    if ident not in waiting:
        return False
    waiting[ident] -= 1
    if not waiting[ident]:
        del waiting[ident]
    return True


_TEXT = """\
Frames are a size, a key and a version, back to back from the first byte. Requests and responses carry a correlation id chosen by
whoever asks; Publish is answered by PublishConfirm and PublishError under its publishing ids, and Credit only in trouble.

In `published_messages` and `chunk.entries`, and in the `messages` of a sub-batch, a body that is an AMQP 1.0 message is shown as
`sections`; any other is in `body` as bytes. `offset` of an entry is not on the wire but counted from the chunk's first. The number
of published messages is what the frame holds; a count that says otherwise is noted.

From the client's SaslHandshake, or the beginning of what was captured, until the server accepts the client or either side sends Tune
or Open, a frame of the client may hold a password, whatever it says it is. It shows its header, a mechanism and, where the data is
whole, the user's name (`sasl_username`); properties and heartbeats are shown as they are. `--show-secrets` shows all."""

PROTOCOLS = (
    Protocol(
        "rabbitmq-stream",
        "RabbitMQ Streams",
        (5552, 5551),
        RabbitmqStreamDissector,
        probe_current,
        says,
        (*layouts.LAYOUTS, *PARTS),
        _TEXT,
        ADDED,
        login=CURRENT_LANGUAGE.holds,
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        streams=Streams,
        alarms=alarms(layouts.LAYOUTS),
        teller=Teller,
    ),
    Protocol(
        "rabbitmq-stream-draft",
        "RabbitMQ Streams, first draft (May 2020)",
        (5552, 5551, 5555),
        RabbitmqStreamDraftDissector,
        probe_draft,
        says,
        (*layouts_draft.LAYOUTS, *DRAFT_PARTS),
        "Requests and responses have the same key and are told apart by who sends them; a successful Unsubscribe is answered with the key\n"
        "of Subscribe. Told from later versions by the version 0 in every frame.",
        ADDED,
        login=DRAFT_LANGUAGE.holds,
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        streams=Streams,
        alarms=alarms(layouts_draft.LAYOUTS),
    ),
)
