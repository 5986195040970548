"""What must hold for every layout: values made from the table itself, round trip, tiling spans, agreement of decoder and walk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from streamdump.layout import (
    UNREADABLE,
    Array,
    Bits,
    Blob,
    Choice,
    Custom,
    Entry,
    Field,
    Fixed,
    FixedText,
    Group,
    Layout,
    Number,
    Optional,
    Repeat,
    Rest,
    RestText,
    Sized,
    Style,
    Text,
    Type,
    Walked,
    boolean,
    read,
    rows,
    walk,
)
from streamdump.layout.generate import compiled, source
from streamdump.layout.spans import span_reader
from streamdump.layout.types import parts_of
from streamdump.model import Limited
from tests.support.encoder import encode

BARE = Style("raw", show_secrets=True)
STYLES = (BARE, Style(), Style("base64"), Style("text", show_secrets=True), Style("omit"), Style("raw"))
CUTS = 1 << 20 if os.environ.get("HYPOTHESIS_PROFILE") == "large" else 48
"""So many cuts of a frame are made, or some more."""

MARK = "s3cr3t"
"""In (nearly) every secret that is made up, and nowhere else."""


class Wire(bytes):
    """Wire bytes of a part written by hand; `good` ones are known to be well-formed."""

    good = True


class Doubtful(Wire):
    good = False


# Values


@cache
def generated(layout: Layout, style: Style) -> Callable[..., dict[str, Any]]:
    """A decoder with its code from the first frame on: `decoder` makes one that walks a few before."""
    return compiled(source(layout, style), layout.name)


def values_for(layout: Layout) -> st.SearchStrategy[dict[str, Any]]:
    """Values that `encode` takes; what has a default is left to it."""

    @st.composite
    def make(draw: st.DrawFn) -> dict[str, Any]:
        return _Maker(draw, layout).object(layout.fields)

    return make()


class _Maker:
    def __init__(self, draw: st.DrawFn, layout: Layout) -> None:
        self.draw = draw
        self.asked: dict[str, list[int | str]] = {}
        self.counts: set[str] = set()
        self.sizes: set[str] = set()
        for part in parts_of(layout.fields):
            match part:
                case Choice(discriminator=name):
                    self.asked.setdefault(name, []).extend(part.alternatives)
                case Array(count=str() as name) | Text(length=str() as name) | Blob(length=str() as name):
                    self.counts.add(name)
                case Sized(length=str() as name):
                    self.sizes.add(name)
        self.scopes: list[dict[str, Any]] = []

    def object(self, fields: Sequence[Entry]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        self.scopes.append(made)
        self.entries(fields, made)
        self.scopes.pop()
        return made

    def entries(self, fields: Sequence[Entry], made: dict[str, Any], tail: bool = False) -> None:
        for entry in fields:
            match entry:
                case Field(type=Choice() as choice):
                    self.choice(choice, entry, made, tail)
                case Field():
                    self.field(entry, entry.type, made, tail)
                case Choice():
                    self.choice(entry, None, made, tail)
                case Optional(fields=inner):
                    if not self.draw(st.booleans()):
                        return
                    self.entries(inner, made, tail=True)

    def choice(self, choice: Choice, field: Field | None, made: dict[str, Any], tail: bool) -> None:
        asked = self.reference(choice.discriminator)
        branch = choice.alternatives.get(asked, choice.otherwise)
        if isinstance(branch, tuple):
            self.entries(branch, made, tail)
        elif branch is not None:
            assert field is not None
            self.field(field, branch, made, tail)

    def field(self, field: Field, kind: Type, made: dict[str, Any], tail: bool) -> None:
        if field.name in self.sizes or (callable(field.default) and field.name not in self.asked and field.name not in self.counts):
            return
        if field.default is not None and field.name not in self.asked and field.name not in self.counts and self.draw(st.integers(0, 9)):
            made[field.name] = field.default
            return
        wanted: list[Any] = [*self.asked.get(field.name, ()), *(field.labels or ())]
        if field.name in self.counts:
            made[field.name] = self.draw(st.integers(0, 5))
        elif wanted and isinstance(kind, Number) and self.draw(st.integers(0, 5)):
            made[field.name] = self.draw(st.sampled_from(wanted))
        elif field.secret and self.draw(st.integers(0, 3)):
            made[field.name] = self.draw(self.secret(kind))
        else:
            made[field.name] = self.value(kind, tail)

    def secret(self, kind: Type) -> st.SearchStrategy[Any]:
        text = st.integers(0, 999).map(lambda one: f"{MARK}{one}")
        match kind:
            case Text(length=Number()) | RestText():
                return text
            case Blob(length=Number()) | Rest():
                return text.map(str.encode)
        return st.builds(lambda: self.value(kind, False))

    def reference(self, name: str) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return 0

    def value(self, kind: Type, tail: bool) -> Any:
        draw = self.draw
        match kind:
            case Number():
                return draw(_numbers(kind))
            case Fixed(size=size):
                return draw(st.binary(min_size=size, max_size=size))
            case FixedText(size=size):
                return draw(st.text(_ASCII, min_size=size, max_size=size))
            case Text(length=str() as name):
                size = self.reference(name)
                return draw(st.text(_ASCII, min_size=size, max_size=size))
            case Blob(length=str() as name):
                size = self.reference(name)
                return draw(st.binary(min_size=size, max_size=size))
            case Text(null=null):
                text = st.text(_CHARACTERS, max_size=12)
                return draw(text if null is None else st.none() | text)
            case Blob(null=null):
                data = st.binary(max_size=12)
                return draw(data if null is None else st.none() | data)
            case Rest():
                return draw(st.binary(min_size=int(tail), max_size=12))
            case RestText():
                return draw(st.text(_CHARACTERS, min_size=int(tail), max_size=12))
            case Bits(parts=parts):
                return {name: draw(st.integers(0, mask)) for name, _, mask, _ in parts}
            case Array(item=item, count=count):
                size = self.reference(count) if isinstance(count, str) else draw(st.integers(0, 3))
                return [self.value(item, False) for _ in range(size)]
            case Repeat(item=item):
                return [self.value(item, False) for _ in range(draw(st.integers(int(tail), 3)))]
            case Group(fields=fields):
                return self.object(fields)
            case Sized(content=content):
                return self.value(content, False)
            case Custom(samples=samples) if samples:
                return Wire(draw(st.sampled_from(samples)))
            case Custom():
                return Doubtful(draw(st.binary(max_size=24)))
            case Choice():
                raise AssertionError("a choice is a field of its own")


_ASCII = st.characters(min_codepoint=1, max_codepoint=127)
_CHARACTERS = st.characters(exclude_categories=["Cs"])


def _numbers(kind: Number) -> st.SearchStrategy[Any]:
    if kind is boolean:
        return st.booleans()
    if kind.floating:
        return st.floats(width=kind.size * 8, allow_nan=False, allow_infinity=False) | st.sampled_from(["NaN", "Infinity", "-Infinity"])
    bits = kind.size * 8
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.signed else (0, (1 << bits) - 1)
    number = st.integers(low, high) | st.sampled_from([low, high])
    return number.map(str) if kind.code == "16s" else number


# Checks


def check_agreement(layout: Layout, buf: bytes, start: int, end: int, styles: Sequence[Style] = STYLES) -> Walked:
    """Decoder, walk and the reader of spans say the same of buf[start:end], whatever it is; returns the walk in the first style."""
    first: Walked | None = None
    for style in styles:
        walked = walk(layout, buf, start, end, style)
        check_tiles(walked, end - start)
        try:
            fields = generated(layout, style)(buf, start, end)
        except UNREADABLE:
            assert walked.fault is not None or walked.notes or _hides_objects(layout, style), (walked, style)
        else:
            assert walked.fault is None, (walked.fault, fields, style)
            assert fields == walked.fields, style
            assert _order(fields) == _order(walked.fields)
            assert all("left over" in note for note in walked.notes), walked.notes
            assert bool(walked.notes) == ("trailing" in fields)
        try:
            found = span_reader(layout, style)(buf, start, end, "frame")
        except UNREADABLE:
            assert walked.fault is not None or walked.notes or _hides_objects(layout, style), (walked, style)
        else:
            assert not walked.notes
            assert found == (walked.fields, walked.spans)
            assert _order(found[0]) == _order(walked.fields)
        if style.bytes_as != "raw":
            json.dumps([walked.fields, [span.value for span in walked.spans], walked.notes], allow_nan=False)
        if walked.fault is not None:
            assert 0 <= walked.fault.offset <= end - start
            assert walked.fault.field
            assert walked.fault.reason
        first = first or walked
    assert first is not None
    if len(styles) > 1:
        assert read(layout, buf, start, end, styles[0]) == (first.fields, first.notes, first.fault)
    return first


def check_tiles(walked: Walked, size: int) -> None:
    """Leaf spans cover the frame without gap or overlap, in order; the others enclose the deeper spans behind them."""
    at = 0
    for span in walked.spans:
        if span.leaf and span.buffer == "frame":
            assert span.offset == at, (span, at)
            at += span.length
    assert at == size, (at, size)
    for index, span in enumerate(walked.spans):
        if span.leaf or span.buffer != "frame":
            continue
        inside = span.offset
        for below in walked.spans[index + 1 :]:
            if below.depth <= span.depth:
                break
            if below.buffer == "frame":
                assert span.offset <= below.offset
                inside = max(inside, below.offset + below.length)
        assert span.offset + span.length == inside, span


def check_round_trip(layout: Layout, values: dict[str, Any]) -> bytes:
    """What is encoded reads as what it was made of; returns the frame."""
    frame = encode(layout, values)
    behind = b"\x00\x01behind"
    walked = check_agreement(layout, b"\xff\xfe" + frame + behind, 2, 2 + len(frame))
    if _certain(values):
        assert walked.fault is None, walked.fault
        assert all("is not known" in note for note in walked.notes), walked.notes
        assert _matches(values, walked.fields), (values, walked.fields)
        if not any(isinstance(part, Custom) for part in parts_of(layout.fields)):
            assert encode(layout, walked.fields) == frame
    check_secrets(layout, frame)
    check_limits(layout, frame)
    assert all(path and kind for path, kind, _ in rows(layout))
    return frame


def check_truncations(layout: Layout, frame: bytes) -> None:
    """For every cut, alone and with another frame behind it, decoder and walk agree; lost bytes always give a fault. Of a long frame some
    are made, others in each."""
    decode = generated(layout, BARE)
    step = 1 + len(frame) // CUTS
    for cut in range(len(frame) % step, len(frame), step):
        alone = check_agreement(layout, frame[:cut], 0, cut, STYLES[:1])
        try:
            fields = decode(frame[:cut] + frame, 0, cut)
        except UNREADABLE:
            assert alone.fault is not None or alone.notes
        else:
            assert alone.fault is None
            assert fields == alone.fields
        walked = walk(layout, frame[:cut], 0, cut, BARE, missing=f"{len(frame) - cut} bytes lost")
        check_tiles(walked, cut)
        assert walked.fault is not None
        assert walked.fault.offset <= cut
        check_secrets(layout, frame[:cut])


def check_limits(layout: Layout, frame: bytes, limits: Sequence[int] = (0, 1, 2, 5)) -> None:
    """With fewer values than there are it stops before one of them, and otherwise nothing changes; the decoder stops there or sooner."""
    whole = walk(layout, frame, 0, len(frame), Style())
    leaves = [span for span in whole.spans if span.leaf]
    for limit in limits:
        style = Style(values=limit)
        walked = walk(layout, frame, 0, len(frame), style)
        check_tiles(walked, len(frame))
        if type(walked.fault) is Limited:
            kept = [span for span in walked.spans if span.leaf and span.name != "undecoded"]
            assert kept == leaves[: len(kept)]
            assert walked.fault.reason.endswith(f"of a frame no more than {limit} values are made")
        else:
            assert walked == whole
        try:
            fields = generated(layout, style)(frame, 0, len(frame))
        except UNREADABLE:
            continue
        assert type(walked.fault) is not Limited
        assert fields == walked.fields


def check_damage(layout: Layout, frame: bytes, places: Sequence[tuple[int, int]]) -> None:
    """Bytes changed at some places: still the two agree, and secrets that are whole stay hidden."""
    damaged = bytearray(frame)
    for place, value in places:
        if damaged:
            damaged[place % len(damaged)] = value
    check_agreement(layout, bytes(damaged), 0, len(damaged), STYLES[:3])


def check_secrets(layout: Layout, frame: bytes) -> None:
    """No made-up secret is in what is shown."""
    if not layout.secret or MARK.encode() not in frame:
        return
    for style in (Style("text"), Style("hex")):
        for missing in (None, "9 bytes lost"):
            walked = walk(layout, frame, 0, len(frame), style, missing)
            said = json.dumps([walked.fields, str(walked.spans), walked.notes, str(walked.fault)])
            assert MARK not in said
            assert MARK.encode().hex() not in said
            flagged = bytearray(frame)
            for span in walked.spans:
                if span.secret and span.leaf:
                    flagged[span.offset : span.offset + span.length] = bytes(span.length)
            assert MARK.encode() not in flagged


def _hides_objects(layout: Layout, style: Style) -> bool:
    """In a hidden secret of several parts the walk keeps to itself what the decoder stumbles over."""
    if style.show_secrets:
        return False
    return any(
        isinstance(part, Field) and part.secret and isinstance(part.type, Array | Repeat | Group | Sized)
        for part in parts_of(layout.fields)
    )


def _certain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_certain, value.values()))
    if isinstance(value, list):
        return all(map(_certain, value))
    return not isinstance(value, Doubtful)


def _matches(given: Any, read_back: Any) -> bool:
    if isinstance(given, Wire):
        return True
    if isinstance(given, dict):
        return isinstance(read_back, dict) and all(name in read_back and _matches(one, read_back[name]) for name, one in given.items())
    if isinstance(given, list):
        return len(given) == len(read_back) and all(map(_matches, given, read_back))
    return bool(given == read_back) and isinstance(given, bool) == isinstance(read_back, bool)


def _order(value: Any) -> Any:
    """The keys of all objects in their order."""
    if isinstance(value, dict):
        return [(name, _order(one)) for name, one in value.items()]
    return [_order(one) for one in value] if isinstance(value, list) else None
