"""What the frames behind the negotiation mean: plain ones, and those inside a compressed one."""

from __future__ import annotations

from struct import Struct
from typing import Any, ClassVar

from ...layout import UNREADABLE, Layout, Style, decoder, fast_walk, read
from ...layout.values import RENDER
from ...model import Fault, Options, Span
from ...quota import UnpackQuota
from ..records import NONE, OPTIONAL_RESPONSE, REQUEST, RESPONSE, Damage, DecodedTuple
from . import compression, layouts
from .compression import Unpackable
from .layouts import END_OF_STREAM, OVER
from .terms import OPENED, SeastarFraming

_u32 = Struct("<I").unpack_from
_i64 = Struct("<q").unpack_from


class PlainFrames:
    """The frames of one side whose framing is known. `negative`: what requests with a negative msg_id asked, for both sides."""

    DERIVED: ClassVar[tuple[str, ...]] = ("style", "tables")

    def __init__(self, options: Options, framing: SeastarFraming, notes: tuple[str, ...], negative: set[int]) -> None:
        self.options = options
        self.framing = framing
        self.notes = notes
        self.negative = negative
        self.prepare()
        self.ended = False
        """Whether this side of a stream said that it sends no more."""
        self.buffers: dict[str, bytes] = {}
        """What the spans of the frame just decoded count in besides it, where details are asked for."""

    def prepare(self) -> None:
        options = self.options
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.tables = layouts.tables(options.verbs)

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
        layout = self.layout(data, start, end)
        detail = self.options.detail
        if missing is None and not detail:
            fields, notes, fault = read(layout, data, start, end, self.style, buffer)
            return layout, fields, [*self.notes, *notes], fault, None
        fields, spans, notes, fault = fast_walk(layout, data, start, end, self.style, missing, buffer)
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
        verbs = self.options.verbs
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
    """The frames of one side that are compressed. `inside`: what is in them; None where the compression is not known."""

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
        return "Compressed", "one_way", None, fields, None, (*self.notes, *notes), fault, NONE, None, spans, None

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
        self.quota.left -= len(inner)
        return self._with(inside, about, inner, None, spans)

    def _with(
        self, inside: PlainFrames, about: dict[str, Any], inner: bytes, missing: str | None, outer: list[Span] | None
    ) -> DecodedTuple:
        """The frame inside."""
        layout, fields, notes, fault, spans = inside.fields(inner, 0, len(inner), missing, "unpacked")
        if spans is not None and outer is not None:
            self.buffers = {"unpacked": inner}
            spans = [*outer, *spans]
        return inside.means(layout, {"compression": about, **fields}, notes, fault, spans)

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


_KINDS = {"request": RequestFrames, "response": ResponseFrames, "stream": StreamFrames}


def frames_of(
    options: Options, framing: SeastarFraming, inferred: str | None, negative: set[int], quota: UnpackQuota
) -> PlainFrames | CompressedFrames:
    """What decodes the frames of a side."""
    notes = () if inferred is None else (f"framing inferred: {inferred}",)
    kind = _KINDS.get(framing.kind)
    inside = None if kind is None else kind(options, framing, notes, negative)
    if framing.codec is None:
        assert inside is not None
        return inside
    return CompressedFrames(options, framing.codec, inside if framing.codec in OPENED else None, notes, quota)
