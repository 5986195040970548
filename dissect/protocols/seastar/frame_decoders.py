"""What the frames behind the negotiation mean: plain ones, and those inside a compressed one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, ClassVar

from ...crc32c import crc32c
from ...layout import UNREADABLE, Layout, Style, decoder, read_frame
from ...layout.values import RENDER
from ...model import Fault, Options, Span
from ...quota import Spans, UnpackQuota
from ..records import GAP, NONE, OPTIONAL_RESPONSE, REQUEST, RESPONSE, Damage, DecodedTuple
from . import compression, layouts, scylla
from .compression import SCYLLA_V3, Unpackable
from .dictionaries import Dictionary, dictionaries
from .frame_chains import plausible
from .layouts import ALGORITHM, CHECKSUM, COMMIT, CONTROL, END_OF_STREAM, HALF, LZ4_METHOD, METHODS, OVER, RAW, SHA256_AT
from .scylla import Head, Unreadable
from .terms import OPENED, SeastarFraming

_u32 = Struct("<I").unpack_from
_i64 = Struct("<q").unpack_from

UNREAD = GAP
"""The role of a frame that stays packed: it may hold any request or response, as missing bytes may."""

TRIES = 256
"""Dictionaries tried at once where it is unknown which one is in force; each frame adds a few."""


class PlainFrames:
    """The frames of one side whose framing is known. `negative`: what requests with a negative msg_id asked, for both sides; `verbs`: their
    names, if known."""

    DERIVED: ClassVar[tuple[str, ...]] = ("style", "tables")

    def __init__(
        self, options: Options, framing: SeastarFraming, notes: tuple[str, ...], negative: set[int], verbs: Mapping[int, str] | None
    ) -> None:
        self.options = options
        self.framing = framing
        self.notes = notes
        self.negative = negative
        self.verbs = verbs
        self.prepare()
        self.ended = False
        """Whether this side of a stream said that it sends no more."""
        self.buffers: dict[str, bytes] = {}
        """What the spans of the frame just decoded count in besides it, where details are asked for."""

    def prepare(self) -> None:
        options = self.options
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.tables = layouts.tables(self.verbs)

    def decode_fast(self, data: bytes, start: int, end: int) -> DecodedTuple | None:
        """Return the meaning of the complete frame data[start:end]; None if it has a flaw, or details are asked for."""
        layout = self.layout(data, start, end)
        try:
            fields = None if self.options.detail else decoder(layout, self.style)(data, start, end)
        except UNREADABLE:
            return None
        return None if fields is None or "trailing" in fields else self.means(layout, fields, [*self.notes], None, None)

    def decode(self, data: bytes, start: int, end: int, damage: Damage | None) -> DecodedTuple:
        return self.means(*self.fields(data, start, end, damage and damage.reason))

    def fields(
        self, data: bytes, start: int, end: int, missing: str | None, buffer: str = "frame"
    ) -> tuple[Layout, dict[str, Any], list[str], Fault | None, list[Span] | None]:
        layout, detail = self.layout(data, start, end), self.options.detail
        fields, spans, notes, fault = read_frame(layout, data, start, end, self.style, missing, detail, buffer)
        return layout, fields, [*self.notes, *notes], fault, spans if detail else None

    def layout(self, data: bytes, start: int, end: int) -> Layout:
        raise NotImplementedError

    def means(
        self, layout: Layout, fields: dict[str, Any], notes: list[str], fault: Fault | None, spans: list[Span] | None
    ) -> DecodedTuple:
        """The message, as `Dissector.decode` gives it."""
        raise NotImplementedError


class RequestFrames(PlainFrames):
    def layout(self, data: bytes, start: int, end: int) -> Layout:
        return self.tables.request_timeout if self.framing.extra else self.tables.request

    def means(
        self, layout: Layout, fields: dict[str, Any], notes: list[str], fault: Fault | None, spans: list[Span] | None
    ) -> DecodedTuple:
        if fields.get("timeout", 0) >= OVER:
            notes.append("the timeout is negative as int64: over already, the server will not answer")
        ident = fields.get("msg_id")
        if ident is None:
            return "Request", "request", None, fields, None, notes, fault, NONE, None, spans, None
        if ident < 0:
            notes.append("the library sends no negative msg_id: here an answer has the same one, an exception its opposite")
            ident = -ident
            if len(self.negative) < self.options.open_limit:
                self.negative.add(ident)
        elif self.negative:
            self.negative.discard(ident)
        verbs = self.verbs
        kind, role = (
            ("one_way", OPTIONAL_RESPONSE) if verbs and fields.get("verb") in getattr(verbs, "one_way", ()) else ("request", REQUEST)
        )
        return "Request", kind, ident, fields, None, notes, fault, role, ident, spans, None


class ResponseFrames(PlainFrames):
    def layout(self, data: bytes, start: int, end: int) -> Layout:
        if end - start >= 8:
            ident: int = _i64(data, start)[0]
            # An exception has the opposite msg_id of its request
            if (ident < 0) != (abs(ident) in self.negative):
                return self.tables.exception_duration if self.framing.extra else self.tables.exception
        return layouts.RESPONSE_DURATION if self.framing.extra else layouts.RESPONSE

    def means(
        self, layout: Layout, fields: dict[str, Any], notes: list[str], fault: Fault | None, spans: list[Span] | None
    ) -> DecodedTuple:
        ident = fields.get("msg_id")
        if ident is None:
            return layout.name, "response", None, fields, None, notes, fault, NONE, None, spans, None
        outcome = "refused" if layout.name == "Exception" else "answered"
        if outcome == "refused" and fault is None and fields["exception_type_label"] is None:
            notes.append(f"unknown exception type {fields['exception_type']}")
        ident = abs(ident)
        self.negative.discard(ident)
        return layout.name, "response", ident, fields, outcome, notes, fault, RESPONSE, ident, spans, None


class StreamFrames(PlainFrames):
    def layout(self, data: bytes, start: int, end: int) -> Layout:
        return layouts.END if end - start >= 4 and _u32(data, start)[0] == END_OF_STREAM else layouts.STREAM

    def means(
        self, layout: Layout, fields: dict[str, Any], notes: list[str], fault: Fault | None, spans: list[Span] | None
    ) -> DecodedTuple:
        if self.ended:
            notes.append("after this side's end-of-stream")
        if layout is layouts.END:
            self.ended = True
        return layout.name, "one_way", None, fields, None, notes, fault, NONE, None, spans, None


class CompressedFrames:
    """The frames of one side that are compressed. `inside`: their content; None where the compression is not known."""

    DERIVED: ClassVar[tuple[str, ...]] = ("render",)

    def __init__(self, options: Options, codec: str, inside: PlainFrames | None, notes: tuple[str, ...], quota: UnpackQuota) -> None:
        self.options = options
        self.codec = codec
        self.inside = inside
        self.notes = notes
        self.quota = quota
        self.prepare()
        self.buffers: dict[str, bytes] = {}

    def prepare(self) -> None:
        self.render = RENDER[self.options.bytes_as]

    def decode(self, data: bytes, start: int, end: int, damage: Damage | None) -> DecodedTuple:
        self.buffers = {}
        size: int = _u32(data, start)[0]
        about: dict[str, Any] = {"algorithm": self.codec, "packed_size": size, "unpacked_size": None}
        if self.inside is not None:
            if damage is None:
                if not size and not self.options.detail:
                    about["unpacked_size"] = 0
                    return "Empty", "one_way", None, {"compression": about}, None, self.notes, None, NONE, None, None, None
                return self._opened(self.inside, about, data, start, end)
            return self._cut_off(self.inside, about, data, start, end, damage)
        if damage is not None:
            return self._closed(about, data, start, end, Fault("packed", end - start, damage.reason))
        return self._closed(about, data, start, end, None, f"compression {self.codec} cannot be opened")

    def _closed(
        self, about: dict[str, Any], data: bytes, start: int, end: int, fault: Fault | None, *notes: str, spans: list[Span] | None = None
    ) -> DecodedTuple:
        """A frame that stays packed."""
        packed = self.render(data[start + 4 : end])
        if not self.options.detail:
            spans = None
        elif spans is None:
            spans = [Span("len", 0, 4, about["packed_size"]), Span("packed", 4, end - start - 4, packed)]
        fields = {"compression": about, "packed": packed}
        return "Compressed", "one_way", None, fields, None, (*self.notes, *notes), fault, UNREAD, None, spans, None

    def _opened(self, inside: PlainFrames, about: dict[str, Any], data: bytes, start: int, end: int) -> DecodedTuple:
        spans: list[Span] | None = None
        try:
            limit = min(self.options.frame_limit, self.quota.grow(end - start))
            blocks = compression.chunks(self.codec, data, start, end, limit)
            about["unpacked_size"] = sum(block.unpacked for block in blocks)
            if self.options.detail:
                spans = self._spans(blocks, data, start, end)
            if not blocks:
                fields: dict[str, Any] = {"compression": about}
                if about["packed_size"]:
                    fields["trailing"] = self.render(data[start + 4 : end])
                return "Empty", "one_way", None, fields, None, self.notes, None, NONE, None, spans, None
            inner = compression.unpack(blocks, data, start)
        except Unpackable as error:
            if isinstance(error, compression.Oversize):
                about["unpacked_size"] = error.size
            return self._closed(about, data, start, end, Fault("compression", error.offset, error.reason), spans=spans)
        self.quota.spend(len(inner))
        return self._with(inside, about, inner, None, spans)

    def _with(
        self,
        inside: PlainFrames,
        about: dict[str, Any],
        inner: bytes,
        missing: str | None,
        outer: list[Span] | None,
        notes: Iterable[str] = (),
        raw_at: int | None = None,
    ) -> DecodedTuple:
        """The frame inside; `raw_at`: where it begins in this one, whose bytes it is then, not unpacked ones."""
        layout, fields, found, fault, spans = inside.fields(inner, 0, len(inner), missing, "unpacked" if raw_at is None else "frame")
        found += notes
        if raw_at is not None:
            for span in spans or ():
                span.offset += raw_at
            if fault is not None:
                fault.offset += raw_at
        elif spans is not None:
            self.buffers = {"unpacked": inner}
        if spans is not None and outer is not None:
            spans = [*outer, *spans]
        return inside.means(layout, {"compression": about, **fields}, found, fault, spans)

    def _cut_off(self, inside: PlainFrames, about: dict[str, Any], data: bytes, start: int, end: int, damage: Damage) -> DecodedTuple:
        """A frame of which bytes are missing: the header inside it may still unpack."""
        inner = compression.unpack_head(data[start + 8 : end]) if about["packed_size"] >= 4 else b""
        if self.codec == compression.LZ4 and end - start >= 8:
            about["unpacked_size"] = _u32(data, start + 4)[0]
        spans = None
        if self.options.detail:
            spans = [Span("len", 0, 4, about["packed_size"])]
            if end - start > 4:
                spans.append(Span("packed", 4, end - start - 4, self.render(data[start + 4 : end])))
        if len(inner) < inside.framing._replace(codec=None).header:
            return self._closed(about, data, start, end, Fault("compression", end - start, damage.reason), spans=spans)
        return self._with(inside, about, inner, damage.reason, spans)

    def _spans(self, blocks: list[compression.CompressedBlock], data: bytes, start: int, end: int) -> list[Span]:
        spans = [Span("len", 0, 4, _u32(data, start)[0])]
        if not blocks and end - start > 4:
            spans.append(Span("trailing", 4, end - start - 4, self.render(data[start + 4 : end])))
        name = "unpacked_size" if self.codec == compression.LZ4 else "chunk"
        for block in blocks:
            spans.append(Span(name, block.header, 4, _u32(data, start + block.header)[0]))
            if block.end > block.start:
                packed = data[start + block.start : start + block.end]
                spans.append(Span("block", block.start, len(packed), self.render(packed)))
        return spans


class ScyllaFrames(CompressedFrames):
    """The frames of one side in SCYLLA_V3. `from_start`: none of this side is missing, so that no dictionary is in force yet."""

    DERIVED = (*CompressedFrames.DERIVED, "known")

    inside: PlainFrames

    def __init__(self, options: Options, inside: PlainFrames, notes: tuple[str, ...], quota: UnpackQuota, from_start: bool) -> None:
        super().__init__(options, SCYLLA_V3, inside, notes, quota)
        self.agreed: bytes | None = b"" if from_start else None
        """SHA-256 of the dictionary that this side committed to, empty for none; None if that is not known."""
        self.found: bytes | None = None
        """SHA-256 of the dictionary that unpacked a frame when it was not known which one is in force."""
        self.tries = TRIES

    def prepare(self) -> None:
        super().prepare()
        self.known = {one.sha256: one for one in dictionaries(self.options.dictionaries)}

    def on_gap(self) -> None:
        """Handle missing frames: one of them may have changed the dictionary."""
        self.agreed = None

    def decode(self, data: bytes, start: int, end: int, damage: Damage | None) -> DecodedTuple:
        self.buffers = {}
        head = scylla.head_of(data, start, end)
        about: dict[str, Any] = {"algorithm": SCYLLA_V3, "packed_size": _u32(data, start)[0], "unpacked_size": None}
        about["dictionary"] = None
        header = data[start + 4] if end - start > 4 else 0
        layout = layouts.SCYLLA_HEADS[header & (CHECKSUM | CONTROL) if header & ALGORITHM in METHODS else 0]
        # Bytes of the head are missing only where it is incomplete
        missing = None if head else damage and damage.reason
        stop = end if head is None else start + head.packed
        fields, walked, notes, fault = read_frame(layout, data, start, stop, self.inside.style, missing, self.options.detail)
        spans = walked if self.options.detail else None
        fields.pop("len", None)
        fields.pop("trailing", None)
        about |= fields
        if head is None:
            if end - start < 5 or header & CONTROL:
                # It may have held a COMMIT
                self.agreed = None
            if fault is None:
                fault = Fault("header", 4, f"algorithm {header & ALGORITHM} is unknown: the receiver closes the connection")
                notes = []
            at = 5 if layout is layouts.SCYLLA_HEADS[0] else end - start
            return self._unread(about, data[start + at : end], at, fault, notes, spans)
        half = start + head.control
        if head.control and data[half] == COMMIT:
            named = data[half + SHA256_AT : half + HALF]
            self.agreed = named if any(named) else b""
        if self.agreed:
            about["dictionary"] = self.agreed.hex()
        if damage is not None:
            return self._beginning(head, about, data, start, end, damage, notes, spans)
        if stop == end:
            about["unpacked_size"] = 0
            if not head.fits(b""):
                notes.append(_checksum(head, b""))
            return "Empty", "one_way", None, {"compression": about}, None, [*self.notes, *notes], None, NONE, None, spans, None
        return self._message(head, about, data, start, end, notes, spans)

    def _message(
        self, head: Head, about: dict[str, Any], data: bytes, start: int, end: int, notes: list[str], spans: list[Span] | None
    ) -> DecodedTuple:
        """A complete frame that is not empty."""
        limit = min(self.options.frame_limit, self.quota.grow(end - start))
        self.tries = min(TRIES, self.tries + 1 + (end - start >> 6))
        sure = self.agreed == b"" or self.agreed in self.known
        found: bytes | None = None
        fits = False
        # Only the text of an error is kept, not what its traceback refers to
        wrong: Fault | None = None
        hopeless = sure
        for number, dictionary in enumerate(self._candidates(head)):
            try:
                message = scylla.unpack(head, data, start, end, dictionary, limit, self.quota)
            except Unreadable as error:
                wrong, hopeless = Fault("compression", error.offset, error.reason), True
                break
            except Unpackable as error:
                wrong = wrong or Fault("compression", error.offset, error.reason)
                continue
            fits = head.fits(message)
            # The first of those is right even if the checksum is not: an LZ4 block that unpacks without history gives the same with any
            if not number and (sure or head.method == RAW or (head.method == LZ4_METHOD and dictionary is None)):
                found = message
                if fits:
                    break
            elif fits and (head.checksum is not None or plausible(self.inside.framing, message)):
                found = message
                if number or dictionary is not None:
                    self._note_dictionary(head, dictionary, about, notes)
                break
        if found is not None:
            if not fits:
                notes.append(_checksum(head, found))
            about["unpacked_size"] = len(found)
            if spans is not None:
                spans += self._packed_spans(head, data, start, end)
            return self._with(self.inside, about, found, None, spans, notes, head.raw_at)
        packed = data[start + head.packed : end]
        if wrong is not None and hopeless:
            return self._unread(about, packed, head.packed, wrong, notes, spans)
        return self._unread(about, packed, head.packed, None, [*notes, self._lacking()], spans)

    def _note_dictionary(self, head: Head, dictionary: Dictionary | None, about: dict[str, Any], notes: list[str]) -> None:
        """Describe the dictionary that was found to fit."""
        about["dictionary"] = None if dictionary is None else dictionary.sha256.hex()
        if self.agreed is not None:
            # Whether a COMMIT is missing or not understood, the checksum proves it
            notes.append("the checksum shows another dictionary than control blocks agree on")
        elif dictionary is not None:
            self.found = dictionary.sha256
            if head.checksum is None:
                notes.append("dictionary inferred: which one is in force was not captured, and the frame has no checksum")

    def _candidates(self, head: Head) -> Iterator[Dictionary | None]:
        """The dictionaries that a frame may need, the likeliest first; None is to try without one."""
        agreed = self.known.get(self.agreed or b"")
        yield agreed
        if head.method == RAW or (self.agreed is not None and head.checksum is None):
            return
        last = self.known.get(self.found or b"")
        if last is not None and last is not agreed:
            yield last
        for one in (None, *self.known.values()):
            if one is not last and one is not agreed and self.tries > 0:
                self.tries -= 1
                yield one

    def _lacking(self) -> str:
        """Why a frame cannot be unpacked."""
        if self.agreed:
            return f"needs the dictionary with SHA-256 {self.agreed.hex()}: --dict FILE"
        given = f", none of the {len(self.known)} given fits" if self.known else ""
        return f"needs a dictionary, or is damaged: which one is in force was not captured{given}: --dict FILE"

    def _beginning(
        self,
        head: Head,
        about: dict[str, Any],
        data: bytes,
        start: int,
        end: int,
        damage: Damage,
        notes: list[str],
        spans: list[Span] | None,
    ) -> DecodedTuple:
        """A frame of which bytes after its head are missing."""
        message = scylla.beginning(head, data, start, end, self.known.get(self.agreed or b""))
        if len(message) < self.inside.framing._replace(codec=None).header:
            fault = Fault("compression", end - start, damage.reason)
            return self._unread(about, data[start + head.packed : end], head.packed, fault, notes, spans)
        if spans is not None and head.method != RAW:
            spans.append(Span("packed", head.packed, end - start - head.packed, self.render(data[start + head.packed : end])))
        return self._with(self.inside, about, message, damage.reason, spans, notes, head.raw_at)

    def _unread(
        self, about: dict[str, Any], packed: bytes, offset: int, fault: Fault | None, notes: list[str], spans: list[Span] | None
    ) -> DecodedTuple:
        """A frame that stays packed."""
        shown = self.render(packed)
        if spans is not None:
            spans = [span for span in spans if span.name != "trailing"]
            if packed:
                spans.append(Span("packed", offset, len(packed), shown))
            if not self.options.detail:
                spans = None
        fields = {"compression": about, "packed": shown}
        return "Compressed", "one_way", None, fields, None, [*self.notes, *notes], fault, UNREAD, None, spans, None

    def _packed_spans(self, head: Head, data: bytes, start: int, end: int) -> list[Span]:
        """The spans of packed bytes; of raw ones these are the message's own."""
        at = start + head.packed
        if head.method == RAW:
            return []
        if head.method != LZ4_METHOD:
            return [Span("packed", head.packed, end - at, self.render(data[at:end]))]
        spans = Spans(start)
        for place, begin, stop in scylla.blocks(data, start, at, end):
            spans.put("block_size", place, begin - place, stop - begin, 0)
            spans.put("block", begin, stop - begin, self.render(data[begin:stop]), 0)
        spans.close()
        return spans


def _checksum(head: Head, message: bytes) -> str:
    return f"the checksum is {head.checksum:#010x}, computed {crc32c(message):#010x}: the receiver closes the connection"


_KINDS = {"request": RequestFrames, "response": ResponseFrames, "stream": StreamFrames}


def frames_of(
    options: Options,
    framing: SeastarFraming,
    inferred: str | None,
    negative: set[int],
    quota: UnpackQuota,
    verbs: Mapping[int, str] | None,
    from_start: bool,
) -> PlainFrames | CompressedFrames:
    """What decodes the frames of a side; `from_start`: all of them."""
    notes = () if inferred is None else (f"framing inferred: {inferred}",)
    kind = _KINDS.get(framing.kind)
    inside = None if kind is None else kind(options, framing, notes, negative, verbs)
    if framing.codec is None:
        assert inside is not None
        return inside
    if framing.codec == SCYLLA_V3 and inside is not None:
        return ScyllaFrames(options, inside, notes, quota, from_start)
    return CompressedFrames(options, framing.codec, inside if framing.codec in OPENED else None, notes, quota)
