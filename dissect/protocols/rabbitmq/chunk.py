"""Messages in chunks (Deliver) and in Publish: plain entries, sub-batches, tracking blocks, trailers.

Follows the comments of osiris (osiris_log.erl, 1.10) and what servers were seen to send. A chunk's header announces a
Bloom filter that is never sent and a trailer that is sent to subscriptions with `chunk_selector=all` only, so the size
of the frame decides whether it is there.

One reader serves both the fast path and the walk: given a list for spans it records them, and fills the objects it was
given as it goes, so that the values before the damage stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple
from zlib import crc32

from ...errors import Malformed, OverLimit
from ...layout.types import Custom, Style
from ...layout.values import RENDER
from ...layout.walker import Walker
from ...quota import Spans, ValueQuota
from ...units import lossy
from . import amqp
from .compression import COMPRESSIONS, UNPACKED_LIMIT, NotUnpacked, unpack
from .span_recorder import SpanRecorder

CHUNK_TYPES = {0: "user", 1: "tracking delta", 2: "tracking snapshot"}
TRACKING_TYPES = {0: "sequence", 1: "offset", 2: "timestamp"}

SUB_BATCH = 0x8000_0000
"""The bit of an entry's first word that makes it a sub-batch; without it the word is the size of one message."""

MAGIC = 0x50

EARLIEST = 1 << 40
"""The least value that is a time and not an epoch: 2004, in milliseconds."""

TRIAL_UNPACKED_BYTES, TRIAL_EMPTY_VALUES = 1 << 16, 1 << 10
"""Bytes that are unpacked, besides a hundred for each byte, and values without bytes, where a frame is only tried as a layout."""

ENTRY_HEAD, LEADING = 24, 16
"""The bytes of an entry header of Publish, without a filter value; and the number of entries that identify a partial Publish."""

_U32 = Struct(">I").unpack_from
_I32 = Struct(">i").unpack_from
_U64 = Struct(">Q").unpack_from
_I64 = Struct(">q").unpack_from
_I16 = Struct(">h").unpack_from


class HeaderField(NamedTuple):
    """A field of a fixed header."""

    name: str
    size: int
    code: str
    labels: dict[int, str] | None = None


class FixedHeader(NamedTuple):
    """Adjacent fields of fixed size, their size in bytes, and the function that unpacks them at an offset."""

    fields: tuple[HeaderField, ...]
    size: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    names: tuple[str, ...]
    keys: dict[str, None]
    """The names and those of labels, in order."""
    further: tuple[tuple[str, str, dict[int, str] | None], ...]
    """Name, name of the label and labels of each field that has some; without labels a field of bytes."""

    def values(self, data: bytes, at: int) -> dict[str, Any]:
        """Return the raw values of the header at `at` by field name."""
        return dict(zip(self.names, self.unpack(data, at), strict=True))


def fixed_header(*fields: HeaderField) -> FixedHeader:
    struct = Struct(">" + "".join(field.code for field in fields))
    names = tuple(field.name for field in fields)
    further = tuple((one.name, f"{one.name}_label", one.labels) for one in fields if one.labels is not None or one.code == "3s")
    keys = dict.fromkeys(key for one in fields for key in ((one.name,) if one.labels is None else (one.name, f"{one.name}_label")))
    return FixedHeader(fields, struct.size, struct.unpack_from, names, keys, further)


class ChunkForm(NamedTuple):
    """The chunk header of one protocol version, and the header that follows the first byte of a sub-batch."""

    header: FixedHeader
    sub_batch: FixedHeader


_START = (HeaderField("magic_version", 1, "B"),)
_COUNTS = (HeaderField("num_entries", 2, "H"), HeaderField("num_records", 4, "I"))
_TIMESTAMP = (HeaderField("timestamp", 8, "q"),)
_DATA = (
    HeaderField("epoch", 8, "Q"),
    HeaderField("chunk_first_offset", 8, "Q"),
    HeaderField("chunk_crc", 4, "I"),
    HeaderField("data_length", 4, "I"),
)

CURRENT = ChunkForm(
    fixed_header(
        *_START,
        HeaderField("chunk_type", 1, "B", CHUNK_TYPES),
        *_COUNTS,
        *_TIMESTAMP,
        *_DATA,
        HeaderField("trailer_length", 4, "I"),
        HeaderField("bloom_size", 1, "B"),
        HeaderField("reserved", 3, "3s"),
    ),
    fixed_header(HeaderField("num_records", 2, "H"), HeaderField("uncompressed_size", 4, "I"), HeaderField("size", 4, "I")),
)
_DRAFT_SUB_BATCH = fixed_header(HeaderField("num_records", 2, "H"), HeaderField("size", 4, "I"))
DRAFT = ChunkForm(fixed_header(*_START, *_COUNTS, *_DATA), _DRAFT_SUB_BATCH)
DRAFT_TIMED = ChunkForm(fixed_header(*_START, *_COUNTS, *_TIMESTAMP, *_DATA), _DRAFT_SUB_BATCH)


class EntryReader(SpanRecorder):
    """Reads the entries of one frame."""

    __slots__ = ("bodies", "budget", "form", "values")

    def __init__(
        self, form: ChunkForm, start: int, render: Callable[[bytes], Any], spans: Spans | None, values: ValueQuota, bodies: bool = True
    ) -> None:
        """Without `bodies`, what entries hold is left alone."""
        super().__init__(start, render, spans)
        self.bodies = bodies
        self.form = form
        self.values = values
        self.budget = UNPACKED_LIMIT

    def header(self, header: FixedHeader, data: bytes, at: int, end: int, into: dict[str, Any], depth: int) -> int:
        """Add the fields of a header to `into` and return where it ends. A fault names the first field that is cut off."""
        complete = end - at >= header.size
        values = header.unpack(data, at) if complete else header.unpack(data[at:end] + bytes(header.size), 0)
        spans = self.spans
        if complete and spans is None:
            if header.further:
                into.update(header.keys)
            into.update(zip(header.names, values, strict=True))
            for name, key, labels in header.further:
                if labels is None:
                    into[name] = self.render(into[name])
                else:
                    into[key] = labels.get(into[name])
            return at + header.size
        for (name, size, code, labels), value in zip(header.fields, values, strict=True):
            if not complete and end - at < size:
                raise self.fail(name, at, f"needs {size} bytes, {max(0, end - at)} left")
            if code == "3s":
                value = self.render(value)
            into[name] = value
            label = None
            if labels is not None:
                label = into[f"{name}_label"] = labels.get(value)
            if spans is not None:
                self.span(name, at, size, value, depth, label)
            at += size
        return at

    # Chunks

    def chunk(self, data: bytes, at: int, end: int, chunk: dict[str, Any], name: str, depth: int) -> int:
        """The chunk data[at:end] into `chunk`."""
        self.open(name, at, depth)
        depth += 1
        at = self.header(self.form.header, data, at, end, chunk, depth)
        section: int = chunk["data_length"]
        trailer: int = chunk.get("trailer_length", 0)
        left = end - at
        stop = min(at + section, end)
        if chunk["magic_version"] != MAGIC:
            self.note(f"chunk begins with 0x{chunk['magic_version']:02x} instead of 0x{MAGIC:02x}")
        entries: list[dict[str, Any]] = []
        if self.bodies:
            chunk["entries"] = entries
        begin = at
        kind = chunk.get("chunk_type", 0)
        self.open("entries", at, depth)
        at, records = self.entries(data, at, stop, chunk["num_entries"], chunk["chunk_first_offset"], kind, entries, depth + 1)
        self.close(at)
        if section > left:
            raise self.fail("entries", at, f"data length says {section} bytes, {left} left")
        self.left_over(data, at, stop, chunk, depth, " after the entries")
        if crc32(data[begin:stop]) != chunk["chunk_crc"]:
            self.note(crc_note(chunk["chunk_crc"], crc32(data[begin:stop])))
        if records != chunk["num_records"]:
            self.note(f"chunk header counts {chunk['num_records']} records, {records} are there")
        at = stop
        if trailer and end - at >= trailer:
            self.trailer(data, at, at + trailer, chunk, depth)
            at += trailer
        self.close(at)
        return at

    def trailer(self, data: bytes, at: int, end: int, chunk: dict[str, Any], depth: int) -> None:
        blocks = self.tracking(data, at, end, False, "trailer", depth, chunk)
        if blocks is None:
            chunk["trailer_data"] = self.render(data[at:end])
            self.span("trailer_data", at, end - at, chunk["trailer_data"], depth)
        else:
            chunk["trailer"] = blocks

    def entries(
        self, data: bytes, at: int, end: int, count: int, first: int, kind: int, entries: list[dict[str, Any]], depth: int
    ) -> tuple[int, int]:
        """Append the entries of a chunk, whose first offset is `first`; return where they end and how many records they hold."""
        offset = first
        spend, spans = self.values.spend, self.spans
        for index in range(count):
            if not spend():
                raise self.over(f"entries[{index}]", at, self.values.reason(f"count says {count}"))
            entry: dict[str, Any] = {"offset": offset}
            if spans is not None:
                self.open(f"entries[{index}]", at, depth)
            try:
                at = self.entry(data, at, end, offset, kind, entry, depth + 1)
            except Malformed as wrong:
                if len(entry) > 1:
                    entries.append(entry)
                wrong.field = f"entries[{index}].{wrong.field}"
                raise
            if spans is not None:
                self.close(at, f"offset {offset}")
            entries.append(entry)
            offset += entry.get("num_records", 1)
        return at, offset - first

    def entry(self, data: bytes, at: int, end: int, offset: int | None, kind: int, entry: dict[str, Any], depth: int) -> int:
        """Read one entry, a message or a sub-batch; return where it ends."""
        if end - at < 4:
            raise self.fail("size", at, f"needs 4 bytes, {max(0, end - at)} left")
        word: int = _U32(data, at)[0]
        if word >= SUB_BATCH:
            return self.sub_batch(data, at, end, offset, entry, depth)
        entry["size"] = word
        if self.spans is not None:
            self.span("size", at, 4, word, depth)
        at += 4
        if word > end - at:
            raise self.fail("body", at, f"size says {word} bytes, {end - at} left")
        if self.bodies:
            self.body(data, at, at + word, kind, entry, depth)
        return at + word

    def body(self, data: bytes, at: int, end: int, kind: int, entry: dict[str, Any], depth: int) -> None:
        """Add what an entry holds to it: tracking blocks, an AMQP message, or bytes."""
        if kind and kind in CHUNK_TYPES:
            blocks = self.tracking(data, at, end, kind == 2, "tracking", depth, entry)
            if blocks is not None:
                entry["tracking"] = blocks
                return
        elif amqp.looks_like(data, at, end):
            spans, notes = self.spans, list[str]()
            if spans is not None:
                mark = self.mark()
                spans.start, spans.buffer = self.start, self.buffer
            try:
                entry["sections"] = amqp.read(data, at, end, self.render, self.values, spans, depth, notes)
                return
            except amqp.NotAmqp as why:
                if spans is not None:
                    self.undo(mark)
                notes = [f"body begins like an AMQP message but is not one: {why}"]
            except amqp.Stopped as over:
                entry["sections"] = over.sections
                raise self.over(f"sections[{max(0, len(over.sections) - 1)}]", over.at, over.reason) from over
            finally:
                for note in notes:
                    self.note(note)
        body = self.render(data[at:end])
        entry["body"] = body
        if end > at and self.spans is not None:
            self.span("body", at, end - at, body, depth)

    def sub_batch(self, data: bytes, at: int, end: int, offset: int | None, entry: dict[str, Any], depth: int) -> int:
        flags = data[at]
        compression = flags >> 4 & 7
        entry["compression"] = compression
        label = entry["compression_label"] = COMPRESSIONS.get(compression)
        entry["reserved"] = flags & 15
        self.span("compression", at, 1, compression, depth, label)
        at = self.header(self.form.sub_batch, data, at + 1, end, entry, depth)
        size: int = entry["size"]
        records: int = entry["num_records"]
        if size > end - at:
            raise self.fail("body", at, f"size says {size} bytes, {end - at} left")
        stop = at + size
        if not self.bodies:
            return stop
        declared = entry.get("uncompressed_size")
        try:
            unpacked = self.unpacked(data[at:stop], compression, declared)
        except NotUnpacked as why:
            self.note(f"sub-batch left as it is: {why}")
            body = entry["body"] = self.render(data[at:stop])
            self.span("body", at, size, body, depth)
            return stop
        if declared is not None and len(unpacked) != declared:
            self.note(f"sub-batch unpacks to {len(unpacked)} bytes, {declared} declared")
        mark = self.mark()
        outside = self.buffer, self.start
        name = ""
        begin = at
        if compression:
            name = "unpacked" if not self.buffers else f"unpacked {len(self.buffers) + 1}"
            self.span("body", at, size, f"unpacks to {len(unpacked)} bytes", depth, name)
            self.buffers[name] = unpacked
            self.buffer, self.start = name, 0
            begin = 0
        else:
            unpacked = data
        try:
            self.messages(unpacked, begin, begin + (len(unpacked) if compression else size), records, offset, entry, depth)
        except OverLimit:
            raise
        except Malformed as why:
            # Only the publisher knows the content of a sub-batch; the entries after it are not affected
            self.note(f"sub-batch holds no {records} messages: {why.field} {why.reason}")
            entry.pop("messages", None)
            self.buffer, self.start = outside
            self.buffers.pop(name, None)
            self.undo(mark)
            body = entry["body"] = self.render(data[at:stop])
            self.span("body", at, size, body, depth)
        self.buffer, self.start = outside
        return stop

    def unpacked(self, data: bytes, compression: int, declared: int | None) -> bytes:
        if compression == 0:
            return data
        # Without a size of its own (the draft), a sub-batch may grow by what text is known to.
        size = min(self.budget, max(1 << 16, 64 * len(data))) if declared is None else declared
        if size > self.budget:
            raise NotUnpacked(f"{size} bytes are over the limit of {self.budget} bytes that may still be unpacked")
        self.budget -= size
        return unpack(compression, data, size)

    def messages(self, data: bytes, at: int, end: int, count: int, offset: int | None, entry: dict[str, Any], depth: int) -> None:
        """The messages of an unpacked sub-batch: size and body each."""
        messages: list[dict[str, Any]] = []
        entry["messages"] = messages
        spend = self.values.spend
        self.open("messages", at, depth)
        for index in range(count):
            if not spend():
                raise self.over(f"messages[{index}]", at, self.values.reason(f"count says {count}"))
            if end - at < 4:
                raise self.fail("size", at, f"needs 4 bytes, {end - at} left")
            (size,) = _U32(data, at)
            if size > end - at - 4:
                raise self.fail("size", at, f"says {size} bytes, {end - at - 4} left")
            message: dict[str, Any] = {"size": size} if offset is None else {"offset": offset + index, "size": size}
            self.open(f"messages[{index}]", at, depth + 1)
            self.span("size", at, 4, size, depth + 2)
            at += 4
            messages.append(message)
            try:
                self.body(data, at, at + size, 0, message, depth + 2)
            except OverLimit as wrong:
                wrong.field = f"messages[{index}].{wrong.field}"
                raise
            at += size
            self.close(at)
        self.close(at)
        self.left_over(data, at, end, entry, depth, " in a sub-batch")

    def tracking(
        self, data: bytes, at: int, end: int, snapshot: bool, name: str, depth: int, into: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Tracking blocks that fill data[at:end], or None; `into` gets those before one that is too many."""
        blocks: list[dict[str, Any]] = []
        mark = self.mark()
        spend = self.values.spend
        self.open(name, at, depth)
        try:
            while at < end:
                if not spend():
                    into[name] = blocks
                    raise self.over(f"{name}[{len(blocks)}]", at, self.values.reason(f"{end - at} bytes left"))
                self.open(f"{name}[{len(blocks)}]", at, depth + 1)
                kind, size = data[at], data[at + 1]
                stop = at + 2 + size
                label = TRACKING_TYPES[kind]
                text = data[at + 2 : stop].decode()
                block: dict[str, Any] = {"type": kind, "type_label": label, "id": text}
                self.span("type", at, 1, kind, depth + 2, label)
                self.span("id", at + 1, 1 + size, text, depth + 2)
                at = stop
                if kind == 0 and snapshot:
                    (block["chunk_id"],) = _U64(data, at)
                    self.span("chunk_id", at, 8, block["chunk_id"], depth + 2)
                    at += 8
                (value,) = (_I64 if kind == 2 else _U64)(data, at)
                block[label] = value
                self.span(label, at, 8, value, depth + 2)
                at += 8
                self.close(at)
                blocks.append(block)
            if at != end:
                raise IndexError
        except (IndexError, KeyError, ValueError, struct_error):
            self.undo(mark)
            self.note(f"{name} is no list of tracking blocks")
            return None
        self.close(at)
        return blocks

    # Publish

    def published(
        self, data: bytes, at: int, end: int, entries: list[dict[str, Any]], name: str, depth: int, filtered: bool = False
    ) -> int:
        """Read the messages of a Publish to the end of the frame, as servers do, whatever their count; return where they end."""
        if end - at < 4:
            raise self.fail("", at, f"needs 4 bytes, {max(0, end - at)} left")
        (count,) = _I32(data, at)
        self.open(name, at, depth)
        self.span("count", at, 4, count, depth + 1)
        at += 4
        spend, spans = self.values.spend, self.spans
        while at < end:
            index = len(entries)
            if not spend():
                raise self.over(f"[{index}]", at, self.values.reason(f"count says {count}"))
            entry: dict[str, Any] = {}
            if spans is not None:
                self.open(f"{name}[{index}]", at, depth + 1)
            try:
                at = self.published_one(data, at, end, entry, depth + 2, filtered)
            except Malformed as wrong:
                if entry:
                    entries.append(entry)
                wrong.field = f"[{index}].{wrong.field}"
                raise
            if spans is not None:
                self.close(at)
            entries.append(entry)
        self.close(at)
        if count != len(entries):
            self.note(f"count says {count} messages, {len(entries)} are there")
        return at

    def published_one(self, data: bytes, at: int, end: int, entry: dict[str, Any], depth: int, filtered: bool) -> int:
        """Read one message of a Publish; return where it ends."""
        if end - at < 8:
            raise self.fail("publishing_id", at, f"needs 8 bytes, {end - at} left")
        (entry["publishing_id"],) = _U64(data, at)
        if self.spans is not None:
            self.span("publishing_id", at, 8, entry["publishing_id"], depth)
        at += 8
        if filtered:
            at = self.text("filter_value", data, at, end, entry, depth)
        at = self.entry(data, at, end, None, 0, entry, depth)
        if filtered and "compression" in entry:
            self.note("a sub-batch in Publish version 2, which servers do not accept")
        return at

    # One by one, for frames with more values than are kept: the limit holds for each entry

    def each_of_chunk(self, data: bytes, at: int, end: int) -> Iterator[dict[str, Any]]:
        """Yield the entries of the chunk data[at:end], except a damaged one and those after it."""
        head: dict[str, Any] = {}
        at = self.header(self.form.header, data, at, end, head, 0)
        end, offset = min(at + head["data_length"], end), head["chunk_first_offset"]
        for _ in range(head["num_entries"]):
            self.values.begin()
            entry: dict[str, Any] = {"offset": offset}
            at = self.entry(data, at, end, offset, head.get("chunk_type", 0), entry, 0)
            yield entry
            offset += entry.get("num_records", 1)

    def each_published(self, data: bytes, at: int, end: int, filtered: bool) -> Iterator[dict[str, Any]]:
        """Yield the messages of a Publish in the same way; `at` is where their count stands."""
        at += 4
        while at < end:
            self.values.begin()
            entry: dict[str, Any] = {}
            at = self.published_one(data, at, end, entry, 0, filtered)
            yield entry

    def text(self, name: str, data: bytes, at: int, end: int, into: dict[str, Any], depth: int) -> int:
        """Text behind a 16-bit length, null with -1."""
        if end - at < 2:
            raise self.fail(name, at, f"needs 2 bytes, {max(0, end - at)} left")
        size: int = _I16(data, at)[0]
        stop = at + 2
        value = None
        if size != -1:
            stop += size
            if size < 0 or stop > end:
                raise self.fail(name, at, f"length says {size} bytes, {end - at - 2} left")
            raw = data[at + 2 : stop]
            try:
                value = raw.decode()
            except UnicodeDecodeError:
                value = lossy(raw)
                self.note(f"{name} is not UTF-8")
        into[name] = value
        self.span(name, at, stop - at, value, depth)
        return stop


def begins_published(form: ChunkForm, filtered: bool, data: bytes, at: int, end: int, stop: int) -> int:
    """Return the number of messages recognised in data[at:end], the beginning of a count and the messages of a Publish up to `stop`; or 0.

    One message that fills it is enough, otherwise two, with rising publishing ids.
    """
    count = _I32(data, at)[0] if end - at >= 4 else 0
    at += 4
    found, last = 0, -1
    while found < min(count, LEADING) and end - at >= ENTRY_HEAD:
        (number,) = _U64(data, at)
        at = _entry_at(filtered, data, at)
        if number <= last or at < 0 or end - at < ENTRY_HEAD:
            return 0
        at = _entry_end(form, data, at)
        if at > stop:
            return 0
        found, last = found + 1, number
    left = count - found
    return found if (not left and at == stop) or (found > 1 and 0 < left * 12 <= stop - at) else 0


def _entry_at(filtered: bool, data: bytes, at: int) -> int:
    """Return where the entry of a Publish message begins, after publishing id and filter value; -1 if that is not valid."""
    at += 8
    if not filtered:
        return at
    length: int = _I16(data, at)[0]
    return at + 2 + max(0, length) if length >= -1 else -1


def _entry_end(form: ChunkForm, data: bytes, at: int) -> int:
    """Return where the entry at `at`, of which `ENTRY_HEAD` bytes are there, ends by its size."""
    size: int = _U32(data, at)[0]
    if size < SUB_BATCH:
        return at + 4 + size
    size = form.sub_batch.unpack(data, at + 1)[-1]
    return at + 1 + form.sub_batch.size + size


def draft_form(data: bytes, at: int, end: int) -> ChunkForm:
    """Return which of the draft's two chunk headers begins at `at`: the later one if a time follows the counts, as no epoch is that
    large; otherwise the one whose data length matches. The length alone is ambiguous: the first offset of the later header is where the
    earlier one has its data length.
    """
    if end - at >= 15 and _U64(data, at + 7)[0] >= EARLIEST:
        return DRAFT_TIMED
    for form in (DRAFT, DRAFT_TIMED):
        if end - at >= form.header.size and end - at - form.header.size == _U32(data, at + form.header.size - 4)[0]:
            return form
    return DRAFT


FormOf = Callable[[bytes, int, int], ChunkForm]
"""Returns the form of the chunk in data[at:end]."""


def _by_hand(
    make: type[Any], fill: Callable[[EntryReader, bytes, int, int, Any, str, int], int], form_of: FormOf, name: str, minimum: int
) -> Custom:
    """Return a part that `fill` reads into a new object of type `make`."""

    def read(data: bytes, at: int, end: int, style: Style) -> tuple[Any, int]:
        # These bytes may not be a frame
        reader = EntryReader(form_of(data, at, end), at, RENDER[style.bytes_as], None, ValueQuota(style.values, TRIAL_EMPTY_VALUES))
        reader.budget = min(reader.budget, TRIAL_UNPACKED_BYTES + 100 * (end - at))
        into = make()
        at = fill(reader, data, at, end, into, "", 0)
        if reader.counted:
            raise ValueError("only the walk makes notes")
        return into, at

    def walk(data: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[Any, int]:
        reader = EntryReader(form_of(data, at, end), walker.start, walker.render, walker.spans, walker.values)
        into = make()
        try:
            at = fill(reader, data, at, end, into, name, depth)
        except Malformed as wrong:
            reader.abandon()
            walker.keep(into)
            damage = walker.short(walker.start + wrong.offset, end, wrong.reason, wrong.field)
            if isinstance(wrong, OverLimit):
                raise OverLimit(damage.field, wrong.offset, wrong.reason, wrong.buffer) from wrong
            raise damage from wrong
        walker.notes.extend(reader.notes())
        return into, at

    return Custom(read, walk, name, minimum, write=bytes)


def _current(data: bytes, at: int, end: int) -> ChunkForm:
    return CURRENT


def _draft(data: bytes, at: int, end: int) -> ChunkForm:
    return DRAFT


_MESSAGES = "array of entry or sub-batch, to the end of the frame", 4

CHUNK = _by_hand(dict, EntryReader.chunk, _current, "chunk", DRAFT.header.size)
DRAFT_CHUNK = _by_hand(dict, EntryReader.chunk, draft_form, "chunk", DRAFT.header.size)
PUBLISHED = _by_hand(list, EntryReader.published, _current, *_MESSAGES)
PUBLISHED_FILTERED = _by_hand(list, partial(EntryReader.published, filtered=True), _current, *_MESSAGES)
DRAFT_PUBLISHED = _by_hand(list, EntryReader.published, _draft, *_MESSAGES)


def crc_note(expected: int, actual: int) -> str:
    return f"checksum of the chunk is 0x{expected:08x}, its data gives 0x{actual:08x}"
