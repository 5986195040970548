"""Interprets field tables: every field with its byte range, and faults with their place. Slow, exact, and never raises.

`walk` is authoritative: a frame without a fault or note has the same values in the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from ..errors import Malformed, OverLimit
from ..model import Fault, Limited, Span
from ..units import lossy, not_finite
from .types import (
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
    Labels,
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
    boolean,
    minimum,
    typed,
)
from .values import UNREADABLE, redacted, sized
from .walk_state import WalkState


class Walked(NamedTuple):
    """The result of a walk: fields up to the fault, spans that tile the frame, notes, and the fault."""

    fields: dict[str, Any]
    spans: list[Span]
    notes: list[str]
    fault: Fault | None


DEFAULT_STYLE = Style()


def walk(
    layout: Layout,
    buf: bytes,
    start: int,
    end: int,
    style: Style = DEFAULT_STYLE,
    missing: str | None = None,
    buffer: str = "frame",
) -> Walked:
    """Read buf[start:end] as `layout`; `missing`: the frame continues after `end`, and why those bytes are missing."""
    walker = Walker(buf, start, end, style, missing, buffer, layout.secret)
    fields: dict[str, Any] = {}
    at = start
    try:
        at = walker.fields(layout.fields, start, end, 0, fields)
        if at < end:
            walker.left_over(at, end, 0, fields)
        if missing is not None:
            raise walker.malformed(end, missing, "trailing")
        walker.spans.close()
    except Malformed as damage:
        walker.damaged()
        return Walked(fields, walker.spans, walker.all_notes(), fault_of(damage))
    return Walked(fields, walker.spans, walker.all_notes(), None)


def fault_of(damage: Malformed, missing: str | None = None) -> Fault:
    """Return the fault of a message; `missing`: the reason why bytes are missing, which replaces the reason of the damage."""
    if isinstance(damage, OverLimit):
        return Limited(damage.field, damage.offset, damage.reason, damage.buffer)
    return Fault(damage.field, damage.offset, missing or damage.reason, damage.buffer)


Read = tuple[Any, int, Any]
"""A value, the position after it, and the raw integer or text for choices, counts and labels, or None."""


class Walker(WalkState):
    """A walk through a table; hand-written parts call its methods.

    A hand-written part receives `buf`, its position `at` and the `end` that it may read up to. All positions count in `buf`; spans and
    faults are converted to offsets in the frame. The part adds leaf spans that tile the bytes read, raises `malformed(...)` at damage
    after `keep(...)` of the value read so far, and hides its own secrets according to `style`.
    """

    __slots__ = ()

    def fields(self, entries: tuple[Entry, ...], at: int, end: int, depth: int, into: dict[str, Any]) -> int:
        """Read the fields of an object into `into`."""
        self.scopes.append({})
        try:
            at = self._entries(entries, at, end, depth, into)
        except Malformed:
            self.partial = into or None
            raise
        self.scopes.pop()
        return at

    def value(self, kind: Type | tuple[Entry, ...], at: int, end: int, name: str, depth: int, secret: bool = False) -> tuple[Any, int]:
        """Read one value of a table type, named `name` below the current field."""
        self.path.append(name)
        value, at, _ = (self._secret if secret else self._value)(typed(kind), at, end, name, depth, None)
        self.path.pop()
        return value, at

    def _entries(self, entries: tuple[Entry, ...], at: int, end: int, depth: int, into: dict[str, Any]) -> int:
        for entry in entries:
            match entry:
                case Field(type=Choice() as kind):
                    at = self._choice(kind, entry, at, end, depth, into)
                case Field():
                    at = self._field(entry, entry.type, at, end, depth, into)
                case Choice():
                    at = self._choice(entry, None, at, end, depth, into)
                case Optional() if at < end:
                    at = self._entries(entry.fields, at, end, depth, into)
                case Optional() if self.missing is not None and end == self.end:
                    raise self.malformed(at, self.missing, *[one.name for one in entry.fields if isinstance(one, Field)][:1])
        return at

    def _choice(self, choice: Choice, field: Field | None, at: int, end: int, depth: int, into: dict[str, Any]) -> int:
        branch = choice.alternatives.get(self._reference(choice.discriminator), choice.otherwise)
        if branch is None:
            return at
        if isinstance(branch, tuple):
            return self._entries(branch, at, end, depth, into)
        assert field is not None
        return self._field(field, branch, at, end, depth, into)

    def _field(self, field: Field, kind: Type, at: int, end: int, depth: int, into: dict[str, Any]) -> int:
        name = field.name
        self.path.append(name)
        try:
            if field.secret:
                value, at, raw = self._secret(kind, at, end, name, depth, field.labels)
            else:
                value, at, raw = _BY_TYPE[type(kind)](self, kind, at, end, name, depth, field.labels)
        except Malformed:
            if self.partial is not None:
                into[name] = self.partial
            raise
        self.path.pop()
        into[name] = value
        self.scopes[-1][name] = raw
        if field.labels is not None:
            look_up = field.labels.get
            if field.closed:
                unknown = [one for one in (value if isinstance(kind, Array | Repeat) else [raw]) if one not in field.labels]
                if unknown:
                    self.note(f"{name} {unknown[0]} is not known")
            if field.secret and not self.style.show_secrets:
                into[f"{name}_label"] = None
            elif isinstance(kind, Array | Repeat):
                into[f"{name}_label"] = [look_up(one) for one in value]
            else:
                into[f"{name}_label"] = look_up(raw)
        return at

    def _reference(self, name: str) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise ValueError(f"no field {name}")

    def _secret(self, kind: Type, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        """A value that is replaced by its size, or whose spans are flagged as secret."""
        mark, notes = self.spans.mark(), len(self.notes)
        first = mark[0]
        show = self.style.show_secrets
        begin = at
        try:
            value, at, raw = self._value(kind, at, end, name, depth, labels)
        except Malformed:
            if not show:
                self.spans.back(mark)
                del self.notes[notes:]
                self.opened = [index for index in self.opened if index < first]
                self.partial = None
            raise
        finally:
            for span in self.spans[first:]:
                span.secret = True
        if show:
            return value, at, raw
        if isinstance(kind, Text | Blob):
            value = None if value is None else redacted(at - begin - (kind.length.size if isinstance(kind.length, Number) else 0))
        else:
            value = redacted(at - begin)
        self.spans.back(mark)
        del self.notes[notes:]
        self.span(name, begin, at, value, depth, secret=True)
        return value, at, raw

    def _value(self, kind: Type, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        return _BY_TYPE[type(kind)](self, kind, at, end, name, depth, labels)

    def _one_number(self, kind: Number, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        raw = value = self._number(kind, at, end)
        if kind is boolean:
            value = self._boolean(raw)
        elif kind.floating:
            value = raw if raw - raw == 0 else not_finite(raw)
        elif kind.code == "16s":
            value = str(int.from_bytes(raw, "big" if kind.order == ">" else "little"))
        stop = at + kind.size
        self.span(name, at, stop, value, depth, None if labels is None else labels.get(raw))
        return value, stop, raw

    def _fixed(self, kind: Fixed | FixedText, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        if end - at < kind.size:
            raise self.short(at, end, f"takes {sized(kind.size)}, {end - at} left")
        stop = at + kind.size
        value = self._text(self.buf[at:stop]) if isinstance(kind, FixedText) else self.render(self.buf[at:stop])
        self.span(name, at, stop, value, depth)
        return value, stop, None

    def _bits(self, kind: Bits, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        word = self._number(kind.number, at, end)
        value: dict[str, Any] = {}
        for part, shift, mask, part_labels in kind.parts:
            value[part] = word >> shift & mask
            if part_labels is not None:
                value[f"{part}_label"] = part_labels.get(value[part])
        stop = at + kind.number.size
        self.span(name, at, stop, value, depth)
        return value, stop, None

    def _rest(self, kind: Rest | RestText, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        data = self.buf[at:end]
        value = self._text(data) if isinstance(kind, RestText) else self.render(data)
        self.span(name, at, end, value, depth)
        if self.missing is not None and end == self.end:
            self.partial = value
            raise self.malformed(end, self.missing)
        return value, end, None

    def _group(self, kind: Group, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        self.open(name, at, depth)
        value: dict[str, Any] = {}
        at = self.fields(kind.fields, at, end, depth + 1, value)
        self.close(at)
        return value, at, None

    def _repeat(self, kind: Repeat, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        self.open(name, at, depth)
        value, at = self._items(kind.item, None, at, end, name, depth + 1, labels)
        self.close(at)
        return value, at, None

    def _number(self, kind: Number, at: int, end: int) -> Any:
        if end - at < kind.size:
            raise self.short(at, end, f"{kind.name} takes {sized(kind.size)}, {end - at} left")
        unpack = _UNPACK.get(kind)
        if unpack is None:
            unpack = _UNPACK[kind] = Struct("B" if kind is boolean else kind.order + kind.code).unpack_from
        return unpack(self.buf, at)[0]

    def _boolean(self, raw: int) -> int:
        if raw > 1:
            self.note(f"{self.where()} is {raw}, neither 0 nor 1")
            return raw
        return raw == 1

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.note(f"{self.where()} is not UTF-8")
            return lossy(data)

    def _length(self, length: Number | str, at: int, end: int, what: str = "length", null: int | None = None) -> tuple[int, int]:
        """Return a length or count, negative only if it equals `null`, and the position after it."""
        if isinstance(length, str):
            size, first = self._reference(length), at
        else:
            size, first = self._number(length, at, end), at + length.size
        if size < 0 and size != null:
            raise self.malformed(at, f"{what} is {size}")
        return size, first

    def _prefixed(self, kind: Text | Blob, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        size, first = self._length(kind.length, at, end, null=kind.null)
        value: Any = None
        stop = first
        if size != kind.null or kind.null is None:
            if size > end - first:
                raise self.short(at, end, f"length says {sized(size)}, {end - first} left")
            stop = first + size
            data = self.buf[first:stop]
            value = self._text(data) if isinstance(kind, Text) else self.render(data)
        self.span(name, at, stop, value, depth)
        return value, stop, value

    def _array(self, kind: Array, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        size, first = self._length(kind.count, at, end, "count")
        least = minimum(kind.item)
        # If bytes are missing, the count may be right.
        if size * least > end - first and (self.missing is None or end != self.end):
            item = kind.item
            what = f"of {item.name}" if isinstance(item, Number) else f"items of at least {sized(least)}"
            raise self.malformed(at, f"count says {size} {what}, {sized(end - first)} left")
        self.open(name, at, depth)
        if first > at:
            self.span("count", at, first, size, depth + 1)
        value, at = self._items(kind.item, size, first, end, name, depth + 1, labels)
        self.close(at)
        return value, at, None

    def _items(
        self, kind: Type, size: int | None, at: int, end: int, name: str, depth: int, labels: Labels | None
    ) -> tuple[list[Any], int]:
        """Read `size` items; None: all to the end."""
        items: list[Any] = []
        spend = self.values.spend
        around = self.path[-1]
        index = 0
        try:
            while at < end if size is None else index < size:
                one = f"[{index}]"
                self.path[-1] = around + one
                begin = at
                if at >= end and self.missing is not None and end == self.end:
                    raise self.malformed(at, self.missing)
                if not spend():
                    raise self.over(at, f"{sized(end - at)} left" if size is None else f"count says {size}")
                value, at, _ = self._value(kind, at, end, name + one, depth, labels)
                items.append(value)
                if at == begin and (size is None or self.missing is not None):
                    raise self.malformed(at, "takes no bytes")
                index += 1
            if size is None and self.missing is not None and end == self.end:
                self.path[-1] = f"{around}[{index}]"
                raise self.malformed(at, self.missing)
        except Malformed:
            if self.partial is not None:
                items.append(self.partial)
            self.partial = items
            raise
        self.path[-1] = around
        return items, at

    def _region(self, kind: Sized, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        size, first = self._length(kind.length, at, end)
        stop = first + size
        if stop > end:
            if self.missing is None or end != self.end:
                raise self.malformed(at, f"length says {sized(size)}, {end - first} left")
            stop = end
        self.open(name, at, depth)
        if first > at:
            self.span("length", at, first, size, depth + 1)
        value: Any
        match kind.content:
            case Group(fields=fields):
                value = {}
                at = self.fields(fields, first, stop, depth + 1, value)
                if at < stop:
                    self.left_over(at, stop, depth + 1, value)
            case Repeat(item=item):
                value, at = self._items(item, None, first, stop, name, depth + 1, labels)
            case content:
                value, at, _ = self._value(content, first, stop, name, depth + 1, labels)
                if at < stop:
                    raise self.malformed(at, f"{sized(stop - at)} left over")
        if stop < first + size:
            assert self.missing is not None
            self.partial = value or None
            raise self.malformed(stop, self.missing)
        self.close(stop)
        return value, stop, None

    def _custom(self, kind: Custom, at: int, end: int, name: str, depth: int, labels: Labels | None) -> Read:
        mark = len(self.path)
        try:
            value, stop = kind.walk(self.buf, at, end, self, name, depth)
        except Malformed as damage:
            if self.missing is not None and end == self.end and not isinstance(damage, OverLimit):
                damage.reason = self.missing
            raise
        except UNREADABLE:
            raise self.short(at, end, "cannot be read") from None
        if not at <= stop <= end:
            raise self.malformed(at, f"takes {sized(stop - at)}, {end - at} left")
        del self.path[mark:]
        return value, stop, None


_UNPACK: dict[Number, Callable[[bytes, int], tuple[Any, ...]]] = {}


_BY_TYPE: dict[type, Callable[..., Read]] = {
    Number: Walker._one_number,
    Fixed: Walker._fixed,
    FixedText: Walker._fixed,
    Bits: Walker._bits,
    Text: Walker._prefixed,
    Blob: Walker._prefixed,
    Rest: Walker._rest,
    RestText: Walker._rest,
    Array: Walker._array,
    Repeat: Walker._repeat,
    Group: Walker._group,
    Sized: Walker._region,
    Custom: Walker._custom,
}
