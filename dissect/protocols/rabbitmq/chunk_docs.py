"""Documentation of the parts that `chunk` reads by hand."""

from __future__ import annotations

from ...layout import PartTable
from ...layout.docs import Row
from .chunk import CURRENT, DRAFT, DRAFT_TIMED, TRACKING_TYPES, ChunkForm, FixedHeader
from .compression import COMPRESSIONS

_TYPES = {"B": "uint8", "H": "uint16", "I": "uint32", "Q": "uint64", "q": "int64", "3s": "3 bytes"}

_NOTES = {
    "magic_version": "0x50: magic 5 and version 0",
    "chunk_type": "0 user, 1 tracking delta, 2 tracking snapshot",
    "num_entries": "a sub-batch is one",
    "num_records": "messages, those in sub-batches included",
    "timestamp": "ms since 1970",
    "chunk_first_offset": "the chunk's id too",
    "chunk_crc": "CRC-32 of the entries; verified",
    "trailer_length": "also when the trailer is not sent",
    "bloom_size": "of a filter that is never sent",
    "uncompressed_size": "nothing is unpacked beyond it",
}


def _rows(header: FixedHeader) -> list[Row]:
    return [(field.name, _TYPES[field.code], _NOTES.get(field.name, "")) for field in header.fields]


def _chunk(form: ChunkForm, note: str, *more: Row) -> PartTable:
    labels = {field.name: field.labels for field in form.header.fields if field.labels is not None}
    return PartTable("Chunk", note, (*_rows(form.header), _ENTRIES, *more), labels)


_ENTRIES = ("entries[]", "entry or sub-batch", "as many as num_entries; a sub-batch where the first bit is set")


def _sub_batch(form: ChunkForm, offset: str, *published: Row) -> PartTable:
    first = [
        *published,
        ("offset", "uint64", offset),
        ("compression", "uint8, bits 1-3", "0 none, 1 gzip, 2 snappy (framed or raw), 3 lz4 (frame), 4 zstd"),
        ("reserved", "uint8, bits 4-7 of the same", ""),
    ]
    last = [
        ("messages[].offset", "uint64", offset),
        ("messages[].size", "uint32", ""),
        ("messages[].body", "bytes", "a message that is not AMQP 1.0"),
        *((f"messages[].{path}", kind, note) for path, kind, note in _SECTIONS),
        ("body", "bytes", "instead of messages, where it does not unpack"),
        ("trailing", "bytes", "bytes left over after the messages"),
    ]
    return PartTable("Sub-batch", "in chunks and in Publish", (*first, *_rows(form.sub_batch), *last), {"compression": COMPRESSIONS})


_COUNTED = "not on the wire: counted from the chunk's first; absent in Publish"

_PUBLISHING_ID = ("publishing_id", "uint64", "in Publish only; a sub-batch has one for all its messages")
_FILTER_VALUE = ("filter_value", "text, length int16 (-1 null)", "in Publish version 2 only")


def _entry(*published: Row) -> PartTable:
    return PartTable("Entry", "in chunks and in Publish", (*published, *_ENTRY_ROWS))


_SECTIONS: tuple[Row, ...] = (
    ("sections[].section", "text, by its descriptor", "instead of body, for an AMQP 1.0 message: header, properties, data, ..."),
    ("sections[].value", "AMQP value", 'as {"type", "value"} where JSON would lose the type'),
)

_ENTRY_ROWS = (
    ("offset", "uint64", _COUNTED),
    ("size", "uint32", "below 0x80000000"),
    ("body", "bytes", "a message that is not AMQP 1.0"),
    *_SECTIONS,
    ("tracking[]", "tracking block", "instead of body, for the entry of a tracking chunk"),
)

_TRACKING = PartTable(
    "Tracking block",
    "in trailers, and as `tracking` of the one entry of a tracking chunk",
    (
        ("type", "uint8", "0 sequence, 1 offset, 2 timestamp"),
        ("id", "text, length uint8", "of a publisher or consumer"),
        ("chunk_id", "uint64", "for a sequence in a tracking snapshot"),
        ("sequence", "uint64", "if type is 0"),
        ("offset", "uint64", "if type is 1"),
        ("timestamp", "int64", "if type is 2"),
    ),
    {"type": TRACKING_TYPES},
)

_TRAILER_DATA = ("trailer_data", "bytes", "instead of trailer, where it is no list of tracking blocks")

PARTS = (
    _chunk(CURRENT, "in Deliver", ("trailer[]", "tracking block", "sent with chunk_selector=all only"), _TRAILER_DATA),
    _entry(_PUBLISHING_ID, _FILTER_VALUE),
    _sub_batch(CURRENT, _COUNTED, _PUBLISHING_ID),
    _TRACKING,
)

DRAFT_PARTS = (
    _chunk(DRAFT, "in Deliver; 31 bytes before the entries"),
    _chunk(DRAFT_TIMED, "from June 2020 on; 39 bytes before the entries"),
    _entry(_PUBLISHING_ID),
    _sub_batch(DRAFT, _COUNTED, _PUBLISHING_ID),
    _TRACKING,
)

ADDED = (("body", "bytes", "of a frame whose key or version is not known"),)
