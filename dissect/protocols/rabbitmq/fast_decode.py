"""Frames without flaw: by the bytes that say what they are, what reads them, and what they mean.

`_publish` and `_deliver` read plain entries beside `EntryReader`: a third of `--json` and of the text view where messages are small and
opaque, 5 % where they are what all golden captures hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ...layout import Layout, Style, decoder
from ...layout.values import RENDER
from ...quota import PLENTY, ValueQuota
from . import layouts, layouts_draft
from .amqp import read as read_amqp
from .chunk import CURRENT, MAGIC
from .framing import Language, Table
from .meaning import FOLLOWS, Fields, Follow, Meaning, meaning_of

_U32 = Struct(">I").unpack_from
_PUBLISH = Struct(">IHHBi").unpack_from
_PUBLISHED = Struct(">QI").unpack_from
_DELIVER = Struct(">IHHB")
_DELIVER_2 = Struct(">IHHBQ")
_CHUNK = CURRENT.unpack

_DESCRIBED = frozenset((0x53, 0x80, 0xA3, 0xB3))
"""What follows the first byte of an AMQP section."""

_OF_LOGIN = frozenset(("PeerProperties", "SaslHandshake", "SaslAuthenticate"))
"""May change what is shown."""

Reader = Callable[[bytes, int, int], "Fields | None"]
"""Reads a frame; None, or one of `UNREADABLE`, where it takes a closer look."""


class PlainLayout(NamedTuple):
    """A layout that its key and version tell, what reads a frame of it that has no flaw, and what that means."""

    name: str
    kind: str
    number: int
    read: Reader
    means: Meaning
    follow: Follow | None


def _counted(counted: ValueQuota, size: int, entry: int) -> ValueQuota | None:
    """What counts the values of a frame of so many bytes, with entries of so many at least; None where these alone may be too many."""
    return counted.begin() if size // entry <= counted.limit else None


def _publish(style: Style, bodies: bool) -> Reader:
    render, counted = RENDER[style.bytes_as], ValueQuota(style.values)
    # Frames of so few bytes cannot hold too many values that take one: three are a pair of two
    small = style.values // 2
    head, each = _PUBLISH, _PUBLISHED

    def read(data: bytes, start: int, end: int) -> Fields | None:
        values = PLENTY if end - start <= small else _counted(counted, end - start, 12)
        if values is None:
            return None
        size, key, version, publisher, count = head(data, start)
        at = start + 13
        messages: list[Fields] = []
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
            at = stop
        if len(messages) != count or not values.spend(count):
            return None
        return {"size": size, "key": key, "version": version, "publisher_id": publisher, "published_messages": messages}

    return read


def _deliver(style: Style, bodies: bool, head: Struct = _DELIVER) -> Reader:
    read_chunk = _chunk(style, bodies)
    unpack, size_of_head = head.unpack_from, head.size

    def read(data: bytes, start: int, end: int) -> Fields | None:
        size, key, version, subscription, *committed = unpack(data, start)
        chunk = read_chunk(data, start + size_of_head, end)
        if chunk is None:
            return None
        fields: Fields = {"size": size, "key": key, "version": version, "subscription_id": subscription}
        if committed:
            (fields["committed_chunk_id"],) = committed
        fields["chunk"] = chunk
        return fields

    return read


def _chunk(style: Style, bodies: bool) -> Reader:
    """What reads a chunk of plain entries that fills its place; trailers, tracking chunks and sub-batches are left to `EntryReader`, and
    so is what its checksum says is damaged."""
    render, counted = RENDER[style.bytes_as], ValueQuota(style.values)
    # Frames of so few bytes cannot hold too many values that take one: three are a pair of two
    small = style.values // 2
    header, word_at = _CHUNK, _U32

    def read(data: bytes, at: int, end: int) -> Fields | None:
        values = PLENTY if end - at <= small else _counted(counted, end - at, 4)
        if values is None:
            return None
        magic, kind, count, records, timestamp, epoch, first, crc, length, trailer, bloom, reserved = header(data, at)
        begin = at = at + CURRENT.size
        if at + length != end or kind or magic != MAGIC or records != count or crc32(data[begin:end]) != crc:
            return None
        entries: list[Fields] = []
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
        if at != end or not values.spend(count):
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
        return chunk

    return read


_BY_HAND: dict[Layout, Callable[[Style, bool], Reader]] = {
    layouts.PUBLISH: _publish,
    layouts.DELIVER: _deliver,
    layouts.DELIVER_2: partial(_deliver, head=_DELIVER_2),
}


class PlainLayouts(dict[bytes, "PlainLayout | None"]):
    """The layouts of what a side sends, by the bytes of a frame that say what it is; None for all that takes a closer look. Each is made
    when it is first asked for."""

    def __init__(self, language: Language, table: Table, style: Style, bodies: frozenset[str], only: frozenset[str] | None) -> None:
        super().__init__()
        self.language = language
        self.table = table
        self.style = style
        self.bodies = bodies
        self.only = only

    def __missing__(self, word: bytes) -> PlainLayout | None:
        layout, *others = self.table.get(int.from_bytes(word, "big"), (None,))
        # The draft answers Unsubscribe under the key of Subscribe
        if layout is None or others or layout is layouts_draft.SUBSCRIBE_RESPONSE or layout.name in _OF_LOGIN:
            return None
        if self.only is not None and layout.name not in self.only:
            return None
        by_hand = _BY_HAND.get(layout)
        if by_hand is None and layout in self.language.heads:
            return None
        read = decoder(layout, self.style) if by_hand is None else by_hand(self.style, layout.name in self.bodies)
        number = self.language.numbers[layout.name]
        self[word] = made = PlainLayout(layout.name, layout.kind, number, read, meaning_of(layout), FOLLOWS.get(layout))
        return made


@cache
def plain_layouts(
    language: Language, style: Style, bodies: frozenset[str], only: frozenset[str] | None
) -> tuple[PlainLayouts, PlainLayouts]:
    """Those of what a client and what a server sends. `bodies`: the messages whose bodies are decoded; `only`: those that are read so, if
    not all are."""
    client, server = (PlainLayouts(language, table, style, bodies, only) for table in (language.client, language.server))
    return client, server
