"""RabbitMQ Streams: frames back to back, each a size, a key and a version; both the protocol in use and its first draft."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct
from typing import Any, ClassVar

from ...errors import Malformed
from ...layout import UNREADABLE, Layout, Style, decoder, fast_walk, fault_of, walk
from ...layout.values import RENDER
from ...model import Fault, Head, Limited, Span
from ...quota import Spans, UnpackQuota, ValueQuota
from ..dissector import Dissector
from ..parser import Parser
from ..protocol import Context, LoadedProtocol
from ..records import NONE, REQUEST, RESPONSE, DecodedTuple, Frame, Role
from ..streams import DeclaredStreams
from . import layouts, layouts_draft, sasl_redaction
from .chunk import EntryReader
from .chunk_docs import ADDED, DRAFT_PARTS, PARTS
from .compare_rules import COMPARE_RULES
from .credits import Credits
from .entries import RabbitmqEntries
from .fast_decode import FastLayouts, fast_layouts
from .frame_redaction import GuardedFrame as Read
from .frame_redaction import has_challenge, hide, hide_rest, is_chunk, read_login
from .framing import CURRENT_LANGUAGE, DRAFT_LANGUAGE, Language, is_sound
from .heuristic import probe_current, probe_draft
from .info import alarms, info, traffic
from .meaning import FOLLOWS, NOTHING, UNLIMITED, meaning_of, meaning_of_unknown
from .publishers import PENDING, Publishers
from .sasl_redaction import HandshakePlace, SaslRedaction, SeenFrame
from .scrub_rules import SCRUB_RULES

_WITH_BODIES = frozenset(("Publish", "Deliver"))
"""Messages that carry user messages."""

_NONE: frozenset[str] = frozenset()
"""No messages: one object for very many conversations."""

_NOTHING_NEWER: dict[str, str] = {}
"""In the same way, never changed."""

_PUBLISHER, _SUBSCRIPTION = "publisher_id", "subscription_id"

_DECLARES = {"DeclarePublisher": _PUBLISHER, "Subscribe": _SUBSCRIPTION}
"""Messages that declare a publisher or a subscription of a stream, by id field."""

_DELETES = {"DeletePublisher": _PUBLISHER, "Unsubscribe": _SUBSCRIPTION}
"""Messages that delete one."""

_REFERS_TO = {
    **dict.fromkeys(("Publish", "PublishConfirm", "PublishError", "DeletePublisher"), _PUBLISHER),
    **dict.fromkeys(("Deliver", "Credit", "ConsumerUpdate", "Unsubscribe"), _SUBSCRIPTION),
}
"""Messages that refer to one by its id."""

_NAMES_SUPER_STREAM = frozenset(("CreateSuperStream", "DeleteSuperStream"))

UNKNOWN_LIMIT = 1 << 20
"""A frame of a command that is not known is believed up to this size (the default frame_max)."""

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

_OPEN = Phase.OPEN
_OUTSIDE = HandshakePlace.OUTSIDE

_WORD = Struct(">4xI").unpack_from
_HEAD = Struct(">II").unpack_from
_U32 = Struct(">I").unpack_from


class StreamDissector(Dissector):
    """What the protocol in use and its draft have in common."""

    header_size = 8
    reuse = "queue"
    closing = "Close"
    DERIVED = ("bodies", "unwanted", "style", "layouts", "frame", "language")

    language: Language
    handshake: ClassVar[Mapping[Phase, Mapping[str, Phase]]]
    frames_before_login: ClassVar[int]
    """The number of frames a client sends before SaslAuthenticate."""

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        self.phase = Phase.FRESH if context.from_start else Phase.OPEN
        self.guard = SaslRedaction(context.from_start, self.frames_before_login, self.options.show_secrets)
        self.ahead = _NONE
        """Names of messages whose response was captured before the request."""
        self.frame_max = UNLIMITED
        self.quota = UnpackQuota(context.unpack_pool)
        self.values = ValueQuota(self.options.values_limit, self.options.bare_limit)
        self.streams = DeclaredStreams()
        self.complete = context.from_start
        """Everything so far was captured."""
        self.newer: dict[str, str] = _NOTHING_NEWER
        """By command which side states a version of it that is newer than the layouts."""
        self.credits: Credits | None = None
        """Made for the first subscription: most of many conversations have none."""
        self.prepare()

    def prepare(self) -> None:
        options = self.options
        full = options.bodies or options.detail
        self.unwanted = _NONE
        """Names of messages that the filter excludes."""
        self.bodies = _WITH_BODIES if full else _NONE
        """Names of messages whose bodies are decoded."""
        if full and options.wanted is not None:
            head = Head(self.protocol, self.context.conversation, *self.context.endpoints)
            self.unwanted = _unwanted(self.language, head, options.wanted)
            self.bodies -= self.unwanted
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.layouts: tuple[FastLayouts, FastLayouts] | None = None
        """By side, the layouts that `plain` decodes."""
        # Python 3.11 reads an attribute of the class slowly
        self.language = self.language
        self.frame: Any = None
        """The frame being decoded."""
        self._choose_layouts()

    def _choose_layouts(self) -> None:
        """Choose the layouts that `plain` decodes: none until the client is known, or where spans are needed."""
        detail = self.options.detail
        if self.client is not None and (self.unwanted or not detail):
            client, server = fast_layouts(self.language, self.style, self.bodies, self.unwanted if detail else None)
            self.layouts = (server, client) if self.client else (client, server)

    # Framing

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        size, word = _HEAD(data, at)
        if size < 4 or size > (KNOWN_LIMIT if word in self.language.words else UNKNOWN_LIMIT):
            return -1
        return int(size) + 4

    def split_frames(self, side: int, data: bytes, at: int) -> list[int]:
        ends: list[int] = []
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
            ends.append(at)
        return ends

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        client = None if self.client is None else side == self.client
        return self.language.search(client, data, at, end, final, self.parser.buffers[side].work_budget)[:2]

    def newer_peer(self, side: int, name: str) -> str | None:
        return self.newer.get(name)

    def on_gap(self, side: int, order: int = 0) -> None:
        self.guard.lose()
        self.complete = False
        self.phase = _OPEN
        if side != self.client:
            self.streams.drop(order)
        if self.credits is not None:
            self.credits.lose()

    # Meaning

    def advance(self, name: str, kind: str) -> list[str]:
        """Advance the handshake; return a note if this message was unexpected."""
        if name in _ANYTIME:
            return []
        if kind == "response" and name != "Tune":
            reached = ANSWERED.get(name, self.phase)
            if _ORDER[reached] > _ORDER[self.phase]:
                self.phase = reached
                self.ahead |= {name}
            return []
        following = self.handshake[self.phase].get(name)
        if following is not None:
            self.phase = following
        elif name in self.ahead:
            # Captured after its answer
            self.ahead -= {name}
        else:
            return [f"{name} while the connection is {self.phase.value}"]
        return []

    def decode_fast(self, side: int, data: bytes, start: int, end: int) -> DecodedTuple | None:
        # Handshakes are left to `decode`, which tracks the login
        if self.layouts is None or self.phase is not _OPEN or self.guard.place is not _OUTSIDE:
            return None
        layout = self.layouts[side][data[start + 4 : start + 8]]
        if layout is None:
            return None
        name, kind, number, read, means, follow = layout
        try:
            fields = read(data, start, end)
        except UNREADABLE:
            return None
        if fields is None or "trailing" in fields:
            return None
        ident, outcome, role, key = means(self, side, number, fields)
        notes = () if follow is None else follow(self, name, side, fields)
        return name, kind, ident, fields, outcome, notes, None, role, key, None, self._stream_of(name, fields, outcome, role, key)

    def decode(self, frame: Frame) -> DecodedTuple:
        """Decode any frame: damaged, unknown, from the wrong side, or with spans. Exact and slow."""
        self.frame = frame
        side, data, start, end, damage = frame.side, frame.data, frame.start, frame.end, frame.damage
        (word,) = _WORD(data, start)
        if self.client is None and damage is None:
            self._infer_client(side, word, data, start, end)
        read = Read(side, data, start, end, word, None if damage is None else damage.reason)
        layout, read.wrong_side = self._layout_of(side, word, data, start, end)
        if layout is None:
            self._read_unknown(read)
        else:
            self._read(read, layout)
        as_read = read.fields
        shown = self.style.show_secrets or (read.sound and self.guard.place is _OUTSIDE and read.name != "SaslHandshake")
        shown = shown or self._protect(read)
        ident, outcome, role, key = NOTHING
        if layout is not None:
            number = self.language.numbers[layout.name]
            ident, outcome, role, key = meaning_of(layout)(self, side, number, as_read if read.sound else read.fields)
            if read.wrong_side is not None:
                # Its direction is uncertain, so it is neither paired nor pending.
                outcome, role, key = None, NONE, None
            elif shown and layout in FOLLOWS:
                read.notes.extend(FOLLOWS[layout](self, layout.name, side, read.fields))
            if self.phase is not _OPEN and (shown or read.sound):
                read.notes.extend(self.advance(read.name, read.kind))
        elif shown and read.by_number:
            (number,) = _U32(data, start + 8)
            ident, outcome, role, key = meaning_of_unknown(side, word >> 16 & ~self.language.mark, number, read.kind == "response")
        spans = read.spans if self.options.detail else None
        stream = self._stream_of(read.name, read.fields, outcome, role, key)
        return read.name, read.kind, ident, read.fields, outcome, read.notes, read.fault, role, key, spans, stream

    def _read(self, frame: Read, layout: Layout) -> None:
        """Read a frame that has a layout."""
        frame.layout, frame.name, frame.kind = layout, layout.name, layout.kind
        data, start, end, missing = frame.data, frame.start, frame.end, frame.missing
        if layout in self.language.heads:
            frame.fields, frame.spans, frame.notes, frame.fault = self._read_entries(layout, data, start, end, missing)
        else:
            fields = None if missing or self.options.detail else _decode_fast(layout, self.style, frame)
            if fields is not None:
                frame.fields = fields
            else:
                frame.fields, frame.spans, frame.notes, frame.fault = fast_walk(layout, data, start, end, self.style, missing)
        if "mechanism" in frame.fields:
            read_login(frame, self.style, frame.side == self.client)
        if frame.wrong_side is not None:
            frame.notes.append(frame.wrong_side)
        frame.well_formed = (frame.fault is None or type(frame.fault) is Limited) and "trailing" not in frame.fields
        frame.sound = frame.well_formed and frame.wrong_side is None

    def _read_unknown(self, frame: Read) -> None:
        """Read a frame with an unknown key or version."""
        word, mark = frame.word, self.language.mark
        key, version = word >> 16, word & 0xFFFF
        marked = bool(key & mark)
        name = self.language.commands.get(key & ~mark)
        if name is None:
            note = f"command 0x{key & ~mark:04x} is not known"
        elif marked and word & 0x7FFF_FFFF in self.language.words:
            note = f"the response bit is set on {name}, which is never sent with it"
        else:
            note = f"version {version} of {name} is not known"
        frame.name, frame.kind = name or f"unknown 0x{key & ~mark:04x}", "response" if marked else "one_way"
        walked = walk(layouts.UNKNOWN, frame.data, frame.start, frame.end, self.style, frame.missing)
        frame.fields, frame.spans, frame.notes, frame.fault = walked
        numbered = bool(mark) and (name is None or name in layouts.ANSWERED_BY_ID)
        frame.by_number = numbered and frame.fault is None and frame.end - frame.start >= 12
        if frame.by_number and marked:
            note = f"{note}: the number behind it is read as that of its request"
        frame.notes.append(note)

    # Secrets

    def _protect(self, frame: Read) -> bool:
        """Advance the login and redact possible passwords; return whether the frame is shown under its own name."""
        trusted = self.guard.trusted[frame.side]
        inside = self.guard.place is not _OUTSIDE or self.frame.began < self.guard.until
        shown = self._shows(frame)
        if not shown:
            hide(frame, self.style, trusted, self.frame.spread)
            self.details = {}
        elif inside:
            hide_rest(frame)
        return shown

    def _shows(self, frame: Read) -> bool:
        """Advance the login; return whether the frame may be shown."""
        side, data, start, end, layout = frame.side, frame.data, frame.start, frame.end, frame.layout
        # Without its beginning a connection may be the other way round
        astray = frame.wrong_side is not None and not self.guard.loose
        name = "" if layout is None or astray else frame.name
        of_server = self.client is not None and side != self.client
        certain = frame.well_formed and not astray
        login = not (of_server and certain) and (
            sasl_redaction.is_login(data, start, end)
            or self.language.login_inside.search(data, start + 8, end) is not None
            or (layout is None and frame.name == "SaslAuthenticate")
        )
        certain = certain or (of_server and layout in self.language.delivered and is_chunk(frame, self.language))
        code = self.language.challenge
        if of_server and (
            (name != "SaslAuthenticate" and sasl_redaction.is_challenge(data, start, end, code))
            or (self.frame.spread and has_challenge(frame))
        ):
            login, certain = True, False
        seen = SeenFrame(name, certain, self.guard.trusted[side], login, self.frame.began, self.frame.spread, self.parser.current)
        # A challenge that ends before its data is followed by them
        short = name == "SaslAuthenticate" and frame.fields.get("response_code") == code and "sasl_opaque_data" not in frame.fields
        self.guard.trusted[side] = frame.sound and not short
        if of_server:
            accepts = name in ("Tune", "Open") or (name == "SaslAuthenticate" and frame.fields.get("response_code_label") == "OK")
            return self.guard.on_server_frame(seen, accepts)
        doubtful = name != "SaslAuthenticate" and sasl_redaction.may_be_login(data, start, end)
        return self.guard.shows(seen, self.phase is Phase.FRESH, doubtful)

    def _infer_client(self, side: int, word: int, data: bytes, start: int, end: int) -> None:
        """Set the client from a valid frame that only one role sends."""
        asks, answers = word in self.language.client, word in self.language.server
        if asks != answers:
            choices = (self.language.client if asks else self.language.server)[word]
            if any(is_sound(layout, data, start, end) for layout in choices):
                self.client = side if asks else 1 - side
                self._choose_layouts()

    def _layout_of(self, side: int, word: int, data: bytes, start: int, end: int) -> tuple[Layout | None, str | None]:
        """The layout of a frame, and a note if only the other side sends it."""
        client, server = self.language.client, self.language.server
        own, other = (client, server) if side == self.client else (server, client)
        choices = own.get(word, ())
        if self.client is None:
            choices = (*client.get(word, ()), *server.get(word, ()))
        if choices or word not in other:
            return (self.choose(choices, data, start, end) if choices else None), None
        layout = self.choose(other[word], data, start, end)
        return layout, f"{layout.name} {layout.kind} sent by the {'client' if side == self.client else 'server'}"

    def choose(self, choices: tuple[Layout, ...], data: bytes, start: int, end: int) -> Layout:
        """Which of several layouts with one key and version this frame has: the first it reads as without a flaw."""
        if len(choices) == 1:
            return choices[0]
        for layout in choices:
            if is_sound(layout, data, start, end):
                return layout
        if len({(layout.name, layout.kind) for layout in choices}) < len(choices):
            # One message in two forms, with a fault such as an unknown code: the form that fills the frame
            for layout in choices:
                fields, _, _, fault = walk(layout, data, start, end, self.style, None)
                if fault is None and "trailing" not in fields:
                    return layout
        return choices[0]

    def publisher_key(self, publisher: int, asks: bool) -> int:
        """Return the high bits of the pairing keys of a publisher's messages; `asks`: for a Publish, not its response."""
        return publisher << 64

    def _stream_of(self, name: str, fields: dict[str, Any], outcome: str | None, role: Role, key: Any) -> str | None:
        """Return the stream that a message names; and keep what it declares or deletes."""
        streams, order = self.streams, self.completed
        named = _REFERS_TO.get(name)
        if named is not None and named in fields:
            if name in _DELETES and role == REQUEST:
                streams.delete(key, (named, fields[named]), order)
            return streams.at((named, fields[named]), order)
        stream = fields.get("name" if name in _NAMES_SUPER_STREAM else "super_stream", fields.get("stream"))
        named = _DECLARES.get(name) or _DELETES.get(name)
        if named in fields and role == REQUEST:
            streams.ask(key, (named, fields[named]), stream, named == _PUBLISHER, order)
        elif named is not None and role == RESPONSE:
            streams.answer(key, named, None, outcome == "answered", order, name in _DELETES)
        elif name == "Metadata" and len(fields.get("streams") or ()) == 1:
            (stream,) = fields["streams"]
        elif name == "MetadataUpdate":
            # The server deletes what was declared with the stream
            streams.drop(order)
        return stream

    def _read_entries(
        self, layout: Layout, data: bytes, start: int, end: int, missing: str | None
    ) -> tuple[dict[str, Any], list[Span], list[str], Fault | None]:
        """Read a Publish or Deliver; return fields, spans, notes and fault."""
        language = self.language
        detail = self.options.detail
        render, spans = RENDER[self.style.bytes_as], Spans() if detail else None
        reader = EntryReader(language.forms[0], start, render, spans, self.values.begin(), layout.name in self.bodies)
        budget = reader.budget = min(reader.budget, self.quota.grow(end - start))
        fields: dict[str, Any] = {}
        fault: Fault | None = None
        try:
            at = language.read_entries(reader, layout, data, start, end, fields)
            if missing is not None:
                raise Malformed("trailing", end - start, missing)
            reader.left_over(data, at, end, fields, 0)
        except Malformed as wrong:
            fault = fault_of(wrong, missing)
            reader.tile(data, end)
        self.quota.spend(budget - reader.budget)
        if reader.spans is not None:
            reader.spans.close()
        if detail and reader.buffers:
            self.details = reader.buffers
        elif self.options.entries and type(fault) is Limited:
            # The reader of entries continues with these bytes
            self.details = {"frame": data[start:end]}
        return fields, reader.spans or [], reader.notes(), fault


def _unwanted(language: Language, head: Head, wanted: Callable[[Head], bool]) -> frozenset[str]:
    return frozenset(language.numbers) - {
        one.name
        for side in (language.client, language.server)
        for choices in side.values()
        for one in choices
        if wanted(head._replace(name=one.name, kind=one.kind))
    }


def _decode_fast(layout: Layout, style: Style, frame: Read) -> dict[str, Any] | None:
    """Return the fields of a valid frame, otherwise None."""
    try:
        fields = decoder(layout, style)(frame.data, frame.start, frame.end)
    except UNREADABLE:
        return None
    return None if "trailing" in fields else fields


class RabbitmqStreamDissector(StreamDissector):
    """RabbitMQ Streams as servers since 3.9 speak it."""

    protocol = "rabbitmq-stream"
    language = CURRENT_LANGUAGE
    handshake = HANDSHAKE
    frames_before_login = 2

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        self.publishers = Publishers(min(self.options.open_limit, PENDING), context.from_start)

    def on_gap(self, side: int, order: int = 0) -> None:
        super().on_gap(side, order)
        self.publishers.lose()

    def publisher_key(self, publisher: int, asks: bool) -> int:
        publishers = self.publishers
        if publishers.waiting or publishers.dropped:
            publisher = publishers.key(publisher, asks)
        return publisher << 64


class RabbitmqStreamDraftDissector(StreamDissector):
    """The first draft: version 0, the same key both ways, so that requests and responses differ in direction only."""

    protocol = "rabbitmq-stream-draft"
    language = DRAFT_LANGUAGE
    handshake = DRAFT_HANDSHAKE
    frames_before_login = 1

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        self.unsubscribing: OrderedDict[int, int] = OrderedDict()
        self.subscribing: OrderedDict[int, int] = OrderedDict()

    def choose(self, choices: tuple[Layout, ...], data: bytes, start: int, end: int) -> Layout:
        if choices[0] is layouts_draft.CLOSE:
            # A response is exactly as long as its fixed fields, and a request always longer.
            return layouts_draft.CLOSE_RESPONSE if _U32(data, start)[0] == 10 else layouts_draft.CLOSE
        if layouts_draft.SUBSCRIBE_RESPONSE in choices and end - start >= 12 and _U32(data, start + 8)[0] in self.unsubscribing:
            return layouts_draft.UNSUBSCRIBE_SUCCESS
        return super().choose(choices, data, start, end)


_TEXT = """\
Frames are a size, a key and a version, back to back from the first byte. Requests and responses carry a correlation id chosen by
the requester; Publish is answered by PublishConfirm and PublishError under its publishing ids, and Credit only after an error, or with code
0x11 while its consumer is not active.

The credit of a subscription counts chunks (Subscribe and Credit of version 1) or, as proposed for servers and clients to come, bytes of
chunks (version 2). A server answers a Credit in the other unit, or of more than it allows, with code 0x11 and drops it.

In `published_messages` and `chunk.entries`, and in the `messages` of a sub-batch, a body that is an AMQP 1.0 message is shown as
`sections`; any other is in `body` as bytes. `offset` of an entry is not on the wire but counted from the chunk's first. The number
of published messages is what the frame holds; a count that says otherwise is noted.

From the client's SaslHandshake, or the beginning of what was captured, until the server accepts the client or either side sends Tune
or Open, a frame of the client may hold a password, whatever it says it is. It shows its header, a mechanism and, where the data is
complete, the user's name (`sasl_username`); properties and heartbeats are shown as they are. `--show-secrets` shows all."""

PROTOCOL = LoadedProtocol(
    RabbitmqStreamDissector,
    probe_current,
    info,
    (*layouts.LAYOUTS, *PARTS),
    _TEXT,
    ADDED,
    code=("response_code",),
    login=CURRENT_LANGUAGE.login_inside,
    compare_rules=COMPARE_RULES,
    scrub_rules=SCRUB_RULES,
    alarms=alarms(layouts.LAYOUTS),
    traffic=traffic,
    entries=RabbitmqEntries,
)

DRAFT = LoadedProtocol(
    RabbitmqStreamDraftDissector,
    probe_draft,
    info,
    (*layouts_draft.LAYOUTS, *DRAFT_PARTS),
    "Requests and responses have the same key and are distinguished by their sender; a successful Unsubscribe is answered with the key\n"
    "of Subscribe. Distinguished from later versions by the version 0 in every frame.",
    ADDED,
    code=("response_code",),
    login=DRAFT_LANGUAGE.login_inside,
    compare_rules=COMPARE_RULES,
    scrub_rules=SCRUB_RULES,
    alarms=alarms(layouts_draft.LAYOUTS),
    traffic=traffic,
    entries=RabbitmqEntries,
)
