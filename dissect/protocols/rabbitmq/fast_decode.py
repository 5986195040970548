"""The short ways: what a dissector's `decode` does, for frames without flaw and without a step more than that takes.

`_publish` and `_deliver` do it for plain entries beside `Reader`: a third of `--json` and of the text view where messages are small and
opaque, 5 % where they are what all golden captures hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from streamdump.layout import Layout, Style, decoder
from streamdump.layout.types import Field
from streamdump.layout.values import RENDER
from streamdump.protocols.rabbitmq import layouts, layouts_draft
from streamdump.protocols.rabbitmq.amqp import read as read_amqp
from streamdump.protocols.rabbitmq.chunk import CURRENT, MAGIC, crc_note
from streamdump.protocols.rabbitmq.language import Language, Table
from streamdump.protocols.rabbitmq.sasl_redaction import HandshakePlace, is_mechanism, username
from streamdump.protocols.records import ANSWER, ANSWER_MANY, ASK, ASK_MANY, ASK_MAYBE, Decoded
from streamdump.quota import PLENTY, ValueQuota

if TYPE_CHECKING:
    from streamdump.protocols.rabbitmq.dissector import StreamDissector

Handler = Callable[[Any, int, bytes, int, int], "Decoded | None"]
"""Decodes a frame without flaw, given the dissector, side, bytes, start and end; None, or one of `UNREADABLE`, where it takes a closer
look."""

Handlers = Mapping[bytes, Handler]
"""By the bytes of a frame that say what it is."""

_OUTSIDE = HandshakePlace.OUTSIDE

_U32 = Struct(">I").unpack_from
_PUBLISH = Struct(">IHHBi").unpack_from
_PUBLISHED = Struct(">QI").unpack_from
_DELIVER = Struct(">IHHB").unpack_from
_DELIVER_2 = Struct(">IHHBQ").unpack_from
_CHUNK = CURRENT.unpack

_DESCRIBED = frozenset((0x53, 0x80, 0xA3, 0xB3))
"""What follows the first byte of an AMQP section."""


def open_key(side: int, number: int, ident: int = 0) -> int:
    """What pairs a request of `side` with its response: below zero, so that it is never the key of a published message."""
    return -1 - (side << 48 | number << 32 | ident)


def _follow(handler: Handler) -> Handler:
    """`handler` for a connection that is perhaps not open yet."""

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        decoded = handler(self, side, data, start, end)
        if decoded is None:
            return None
        if self.guard.place is not _OUTSIDE:
            self.guard.trusted[side] = True
            if side != self.client:
                self.guard.listen(decoded.name)
        if self.is_open:
            return decoded
        note = self.advance(decoded.name, decoded.kind)
        if note is not None:
            decoded.notes = (*decoded.notes, note)
        return decoded

    return handle


def _ask(layout: Layout, style: Style, language: Language) -> Handler:
    read, name = decoder(layout, style), layout.name
    number = language.numbers[name]
    keys = open_key(0, number), open_key(1, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        ident = fields["correlation_id"]
        return Decoded(name, "request", ident, fields, None, (), None, ASK, keys[side] - ident)

    return handle


def _declare(layout: Layout, style: Style, language: Language) -> Handler:
    ask = _ask(layout, style, language)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        asked = ask(self, side, data, start, end)
        # A null reference is noted
        return None if asked is not None and asked.fields.get("publisher_reference", "") is None else asked

    return handle


def _keep(layout: Layout, handler: Handler) -> Handler:
    """`handler` for what changes the state of the connection."""

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        decoded = handler(self, side, data, start, end)
        if decoded is not None:
            self.follow(layout, side, decoded.fields, [])
        return decoded

    return handle


def _greet(layout: Layout, style: Style, language: Language) -> Handler:
    holds = language.holds
    ask = _ask(layout, style, language)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        asked = None if holds.search(data, start + 8, end) else ask(self, side, data, start, end)
        if asked is not None:
            self.guard.lead()
        return asked

    return handle


def _handshake(layout: Layout, style: Style, language: Language) -> Handler:
    ask = _ask(layout, style, language)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        # On an open connection it changes what may be shown
        asked = None if self.guard.place is _OUTSIDE else ask(self, side, data, start, end)
        if asked is not None:
            self.guard.begin()
        return asked

    return handle


def _authenticate(layout: Layout, style: Style, language: Language) -> Handler:
    ask = _ask(layout, style, language)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        asked = ask(self, side, data, start, end)
        if asked is not None:
            fields = asked.fields
            mechanism = fields["mechanism"]
            if not is_mechanism(mechanism):
                return None
            self.guard.ask(True)
            fields["sasl_username"] = username(mechanism, data[start + 18 + len(mechanism) : end])
        return asked

    return handle


def _answer(layout: Layout, style: Style, language: Language) -> Handler:
    read, name = decoder(layout, style), layout.name
    number, accepted = language.numbers[name], language.accepted
    keys = open_key(1, number), open_key(0, number)
    coded = any(field.name == "response_code" for field in layout.fields if isinstance(field, Field))

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        ident = fields["correlation_id"]
        # The response to Metadata has no code of its own
        outcome = "answered" if not coded or fields["response_code"] in accepted else "refused"
        return Decoded(name, "response", ident, fields, outcome, (), None, ANSWER, keys[side] - ident)

    return handle


def _offer(layout: Layout, style: Style, language: Language) -> Handler:
    answer = _answer(layout, style, language)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        # On an open connection it changes what may be shown, and what is no mechanism may be of a challenge
        answered = None if self.guard.place is _OUTSIDE else answer(self, side, data, start, end)
        return answered if answered is not None and all(map(is_mechanism, answered.fields["mechanisms"])) else None

    return handle


def _one_way(layout: Layout, style: Style, language: Language) -> Handler:
    read, name = decoder(layout, style), layout.name

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        return Decoded(name, "one_way", None, fields)

    return handle


def _credit(layout: Layout, style: Style, language: Language) -> Handler:
    read = decoder(layout, style)
    number = language.numbers[layout.name]
    keys = open_key(0, number), open_key(1, number)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        return Decoded("Credit", "one_way", None, fields, None, (), None, ASK_MAYBE, keys[side] - fields["subscription_id"])

    return handle


def _confirm(layout: Layout, style: Style, language: Language) -> Handler:
    read = decoder(layout, style)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        fields = read(data, start, end)
        if "trailing" in fields:
            return None
        keys = fields["publishing_ids"]
        publisher = fields.get("publisher_id")
        if publisher is not None and (publisher or self.renewed):
            high = self.publisher_key(publisher, False) if self.renewed else publisher << 64
            keys = [high | one for one in keys]
        return Decoded("PublishConfirm", "response", None, fields, "answered", (), None, ANSWER_MANY, keys)

    return handle


def _counted(self: StreamDissector, size: int, entry: int) -> ValueQuota | None:
    """What counts the values of a frame that is not small, of entries of at least `entry` bytes; None where these alone may be too
    many."""
    return self.tried.begin() if size // entry <= self.tried.limit else None


def _publish(style: Style, bodies: bool) -> Handler:
    render = RENDER[style.bytes_as]
    head, each = _PUBLISH, _PUBLISHED

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        size, key, version, publisher, count = head(data, start)
        if size > self.frame_max:
            return None
        values = PLENTY if end - start <= self.small else _counted(self, end - start, 12)
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
        return Decoded("Publish", "request", None, fields, None, (), None, ASK_MANY, keys)

    return handle


def _deliver(style: Style, version_2: bool, bodies: bool) -> Handler:
    head, size_of_head = (_DELIVER_2, 17) if version_2 else (_DELIVER, 9)
    chunk_of = _chunk(style, bodies)

    def handle(self: StreamDissector, side: int, data: bytes, start: int, end: int) -> Decoded | None:
        size, key, version, subscription, *committed = head(data, start)
        # More values than may be made are left to `Reader`, which counts them
        values = PLENTY if end - start <= self.small else _counted(self, end - start, 4)
        found = None if values is None else chunk_of(data, start + size_of_head, end, values)
        if found is None:
            return None
        chunk, notes = found
        fields = {"size": size, "key": key, "version": version, "subscription_id": subscription}
        if version_2:
            (fields["committed_chunk_id"],) = committed
        fields["chunk"] = chunk
        return Decoded("Deliver", "one_way", None, fields, None, notes)

    return handle


def _chunk(style: Style, bodies: bool) -> Callable[[bytes, int, int, ValueQuota], tuple[dict[str, Any], Any] | None]:
    render = RENDER[style.bytes_as]
    header, word_at = _CHUNK, _U32

    def read(data: bytes, at: int, end: int, values: ValueQuota) -> tuple[dict[str, Any], Any] | None:
        """A chunk of plain entries that fills data[at:end], with notes; trailers, tracking chunks and sub-batches are read by `Reader`."""
        magic, kind, count, records, timestamp, epoch, first, crc, length, trailer, bloom, reserved = header(data, at)
        begin = at = at + CURRENT.size
        if at + length != end or kind or magic != MAGIC or records != count:
            return None
        entries: list[dict[str, Any]] = []
        append = entries.append
        for offset in range(first, first + count):
            (word,) = word_at(data, at)
            at += 4
            stop = at + word
            if stop > end:
                return None
            if not bodies:
                pass
            elif word > 2 and not data[at] and data[at + 1] in _DESCRIBED:
                append({"offset": offset, "size": word, "sections": read_amqp(data, at, stop, render, values)})
            else:
                append({"offset": offset, "size": word, "body": render(data[at:stop])})
            at = stop
        if at != end or not values.take(count):
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
        actual = crc32(data[begin:end])
        return chunk, () if actual == crc else (crc_note(crc, actual),)

    return read


PUBLISHER_LAYOUTS = frozenset(
    (
        layouts.DECLARE_PUBLISHER,
        layouts.DECLARE_PUBLISHER_RESPONSE,
        layouts.DELETE_PUBLISHER,
        layouts.DELETE_PUBLISHER_RESPONSE,
    )
)
"""What makes publishers come and go."""

_LONG = frozenset(
    (
        layouts.PUBLISH_ERROR,
        layouts.CREDIT_RESPONSE,
        layouts.TUNE,
        layouts.TUNE_RESPONSE,
        layouts.TUNE_RESPONSE_MARKED,
        layouts_draft.PUBLISH_ERROR,
        layouts_draft.TUNE,
        layouts_draft.TUNE_RESPONSE,
        # Unsubscribe is answered under the key of Subscribe
        layouts_draft.SUBSCRIBE,
        layouts_draft.SUBSCRIBE_RESPONSE,
        layouts_draft.UNSUBSCRIBE,
        layouts_draft.UNSUBSCRIBE_RESPONSE,
    )
)
"""What is left to `decode`: it is rare, or there is more to it."""

_OWN: dict[tuple[str, str], Callable[[Layout, Style, Language], Handler]] = {
    ("PeerProperties", "request"): _greet,
    ("SaslHandshake", "request"): _handshake,
    ("SaslHandshake", "response"): _offer,
    ("SaslAuthenticate", "request"): _authenticate,
    ("DeclarePublisher", "request"): _declare,
    ("PublishConfirm", "response"): _confirm,
    ("Credit", "one_way"): _credit,
}
_USUAL: dict[str, Callable[[Layout, Style, Language], Handler]] = {"request": _ask, "response": _answer, "one_way": _one_way}

_CERTAIN = (
    frozenset(("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Heartbeat")),
    frozenset(("PeerProperties", "SaslHandshake", "Heartbeat")),
)
"""Of client and server, what is shown at every place of a handshake, without flaw."""

Sides = tuple[Handlers, Handlers]
"""The handlers of what a client and what a server sends."""


class FastDecoders(NamedTuple):
    """The short ways of one form of values."""

    style: Style
    opened: Sides
    """Of a connection that is open."""
    followed: Sides
    """Until it is: these follow the handshake."""
    guarded: Sides
    """Where a frame may hold a password: of these it is certain what may be shown."""


@cache
def ways(language: Language, bytes_as: Any, show_secrets: bool, values: int, bodies: frozenset[str]) -> FastDecoders:
    """`bodies`: the messages whose bodies are decoded."""
    style = Style(bytes_as, show_secrets, values)
    sides = language.client, language.server
    opened = (_handlers(language, sides[0], style, bodies), _handlers(language, sides[1], style, bodies))
    client, server = ({word: _follow(handler) for word, handler in side.items()} for side in opened)
    certain = (
        {word: handler for word, handler in side.items() if table[int.from_bytes(word, "big")][0].name in names}
        for side, table, names in zip((client, server), sides, _CERTAIN, strict=True)
    )
    return FastDecoders(style, opened, (client, server), (next(certain), next(certain)))


def _handlers(language: Language, table: Table, style: Style, bodies: frozenset[str]) -> Handlers:
    """A handler for every key and version that leaves no choice between layouts."""
    made: dict[bytes, Handler] = {}
    for word, choices in table.items():
        layout = choices[0]
        if layout is layouts.PUBLISH:
            handler = _publish(style, "Publish" in bodies)
        elif layout in (layouts.DELIVER, layouts.DELIVER_2):
            handler = _deliver(style, layout is layouts.DELIVER_2, "Deliver" in bodies)
        elif len(choices) > 1 or layout in _LONG or layout in language.heads:
            continue
        else:
            handler = _OWN.get((layout.name, layout.kind), _USUAL[layout.kind])(layout, style, language)
        made[word.to_bytes(4, "big")] = (
            _keep(layout, handler) if layout in PUBLISHER_LAYOUTS or layout.name == "PeerProperties" else handler
        )
    return made
