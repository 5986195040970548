"""Generates readers from field tables that also return the byte range of each value.

They read frames without faults and notes. They raise for other frames, for which `walk` reports the fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from ..model import Span
from ..quota import MOST_SPANS
from .generate import Maker, compiled, is_flat
from .types import (
    Array,
    Bits,
    Blob,
    Custom,
    Entry,
    Field,
    Fixed,
    FixedText,
    Group,
    Labels,
    Layout,
    Number,
    Repeat,
    Rest,
    RestText,
    Sized,
    Style,
    Text,
    Type,
    boolean,
    facts,
    minimum,
)
from .values import UNREADABLE
from .walker import Walked, Walker, walk

WALKED = 16
"""Frames of a layout that are walked before its reader is compiled, which costs as much as walking 20 to 90."""

_walked = Counter[tuple[Entry, ...]]()
"""Frames walked, by the last part of their layout."""

Read = Callable[[bytes, int, int, str], tuple[dict[str, Any], list[Span]]]


def fast_walk(layout: Layout, buf: bytes, start: int, end: int, style: Style, missing: str | None = None, buffer: str = "frame") -> Walked:
    """Return the result of `walk`, faster for layouts with many frames without faults."""
    if missing is None:
        fields = layout.parts[-1]
        _walked[fields] += 1
        if _walked[fields] > WALKED:
            try:
                return Walked(*span_reader(layout, style)(buf, start, end, buffer), [], None)
            except UNREADABLE:
                pass
    return walk(layout, buf, start, end, style, missing, buffer)


@cache
def span_reader(layout: Layout, style: Style) -> Read:
    """Return `read(buf, start, end, buffer)`, which returns fields and spans, or raises one of `UNREADABLE`."""
    maker = _SpanMaker(style, 0, False)
    least = facts(layout.fields).element
    # Frames that may exceed the limit of values or spans are left to the walk, which counts them
    maker.refuse(f"end - at > {min(least * style.values, MOST_SPANS) if least else MOST_SPANS}")
    maker.emit("base = at", "spans = []", "add = spans.append")
    value = maker.object(layout.fields) if len(layout.parts) == 1 else " | ".join(map(maker.shared, map(_group, layout.parts)))
    maker.settle()
    maker.refuse(f"at != end or len(spans) > {MOST_SPANS}")
    maker.emit(f"return {value}, spans")
    return compiled((maker.source("buf, at, end, buffer"), maker.names), f"spans of {layout.name} {layout.kind}")


@cache
def _group(part: tuple[Entry, ...]) -> Group:
    return Group(*part)


@cache
def _group_reader(group: Group, style: Style, depth: int, secret: bool) -> Callable[..., Any]:
    maker = _SpanMaker(style, depth, secret)
    maker.emit("add = spans.append")
    value = maker.object(group.fields)
    maker.settle()
    maker.emit(f"return {value}, at")
    return compiled((maker.source("buf, at, end, base, spans, buffer"), maker.names), "spans of a group")


def _items(
    name: str, at: int, size: int, items: list[Any], depth: int, label: Callable[[Any], str | None] | None, secret: bool, buffer: str
) -> list[Span]:
    """Return the spans of an array of numbers."""
    return [
        Span(f"{name}[{index}]", at + index * size, size, item, depth, True, label and label(item), secret, buffer)
        for index, item in enumerate(items)
    ]


class _SpanMaker(Maker):
    """Generates the code that reads the fields of a layout with their spans, in the order of the bytes.

    A span is created once its value is known, and before `at` moves, from which its offset is computed.
    """

    def __init__(self, style: Style, depth: int, secret: bool) -> None:
        super().__init__(style)
        self.names |= {"SPAN": Span, "ITEMS": _items, "WALKER": Walker}
        self.depth = depth
        self.secret = secret
        """Whether the values belong to a shown secret."""
        self.muted = False
        """Whether they belong to a hidden secret, which has a single span."""
        self.called, self.labels = "", cast("Labels | None", None)
        """An expression for the name of the next value, and its labels."""
        self.lists: list[tuple[str, Labels | None]] = []
        """The same for the enclosing lists, outermost first."""
        self.prefix = ""
        """The name of the next length, if it has a span of its own."""
        self.unwrapped = False
        """Whether the next value is the content of a region and has no span besides the region's."""
        self.rows: list[str] = []
        """Pending spans."""
        self.later: list[str] = []
        """Lines to add after the adjacent fixed fields are read."""
        self.first = ""
        """The variable of the start of the items of an array of numbers."""

    # Spans

    def row(self, name: str, at: str, length: int | str, value: str, label: str = "None", leaf: bool = True) -> None:
        """Add a span that starts at `at`."""
        if not self.muted:
            self.rows.append(f"SPAN({name}, {at} - base, {length}, {value}, {self.depth}, {leaf}, {label}, {self.secret}, buffer)")

    def add_rows(self) -> None:
        rows, self.rows = self.rows, []
        if rows:
            self.emit(f"spans += {', '.join(rows)}," if len(rows) > 1 else f"add({rows[0]})")

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Generate a span around those of the values read inside."""
        self.settle()
        span = self.variable("g")
        self.row(name, "at", 0, "None", leaf=False)
        if self.rows:
            self.emit(f"{span} = {self.rows.pop()}", f"add({span})")
        self.depth += 1
        yield
        self.depth -= 1
        self.settle()
        if not self.muted:
            self.emit(f"{span}.length = at - base - {span}.offset")

    # Values

    def flush(self) -> None:
        later, self.later = self.later, []
        super().flush()
        if later:
            self.emit(*later)

    def settle(self) -> None:
        self.add_rows()
        super().settle()

    def leave(self) -> str:
        self.add_rows()
        return super().leave()

    def field(self, field: Field, kind: Type, made: Any) -> None:
        around = self.secret
        self.called, self.labels, self.secret = repr(field.name), field.labels, around or field.secret
        super().field(field, kind, made)
        self.secret = around

    def value(self, kind: Type) -> tuple[str, str | None]:
        name, labels = self.called, self.labels
        unwrapped, self.unwrapped = self.unwrapped, False
        if isinstance(kind, Number | Fixed | FixedText | Bits):
            at = self.where()
            value, raw = super().value(kind)
            if not value.isidentifier():
                shown = self.variable()
                self.later.append(f"{shown} = {value}")
                value = shown
            label = "None" if labels is None or raw is None else f"{self.name('LABEL', labels.get)}({raw})"
            self.row(name, at, minimum(kind), value, label)
            return value, raw
        if isinstance(kind, Rest | RestText):
            value, raw = super().value(kind)
            self.row(name, self.left, f"at - {self.left}", value)
            return value, raw
        if isinstance(kind, Text | Blob | Custom):
            return super().value(kind)
        if isinstance(kind, Group) and is_flat(kind, set()) and not unwrapped:
            self.row(name, self.where(), minimum(kind), "None", leaf=False)
            self.depth += 1
            value, raw = super().value(kind)
            self.depth -= 1
            return value, raw
        if unwrapped:
            return self.inner(kind, name, labels)
        with self.group(name):
            return self.inner(kind, name, labels)

    def inner(self, kind: Type, name: str, labels: Labels | None) -> tuple[str, str | None]:
        """Read a value whose span encloses others."""
        if isinstance(kind, Sized):
            self.prefix, self.unwrapped = "length", isinstance(kind.content, Group | Repeat)
        elif isinstance(kind, Array):
            self.prefix = "count"
        self.lists.append((name, labels))
        value, raw = super().value(kind)
        self.lists.pop()
        if isinstance(kind, Array | Repeat) and _is_simple(kind.item) and not self.muted:
            label = "None" if labels is None else self.name("LABEL", labels.get)
            size = minimum(kind.item)
            self.emit(f"spans += ITEMS({name}, {self.first} - base, {size}, {value}, {self.depth}, {label}, {self.secret}, buffer)")
        return value, raw

    def hidden(self, kind: Type) -> tuple[str, str | None]:
        name, muted = self.called, self.muted
        self.settle()
        start = self.variable("a")
        self.emit(f"{start} = at")
        self.muted = True
        value, raw = super().hidden(kind)
        self.settle()
        self.muted = muted
        self.row(name, start, f"at - {start}", value)
        return value, raw

    def length(self, length: Number | str) -> tuple[str, bool]:
        prefix, self.prefix = self.prefix, ""
        at = self.where()
        size, signed = super().length(length)
        if prefix and isinstance(length, Number):
            self.row(repr(prefix), at, length.size, size)
        return size, signed

    def prefixed(self, kind: Text | Blob, hidden: bool) -> tuple[str, str]:
        name = self.called
        value, raw = super().prefixed(kind, hidden)
        size = kind.length.size if isinstance(kind.length, Number) else 0
        self.row(name, f"{self.left} - {size}", f"at - {self.left} + {size}", value)
        return value, raw

    def flat(self, item: Type) -> Any:
        """As in the base class, but for numbers only: objects need a span per field."""
        if not _is_simple(item):
            return None
        self.first = self.variable("a")
        self.emit(f"{self.first} = at")
        muted, self.muted = self.muted, True
        found = super().flat(item)
        self.muted = muted
        return found

    def item(self, kind: Type, items: str) -> None:
        name, self.labels = self.lists[-1]
        self.called = self.variable("n")
        shown = f"{{{name}}}" if name.isidentifier() else name[1:-1]
        self.emit(f'{self.called} = f"{shown}[{{len({items})}}]"')
        super().item(kind, items)

    def shared(self, kind: Group) -> str:
        if self.muted:
            return super().shared(kind)
        self.settle()
        value = self.variable()
        read = self.name("READ", _group_reader(kind, self.style, self.depth, self.secret))
        self.emit(f"{value}, at = {read}(buf, at, {self.end}, base, spans, buffer)")
        return value

    def custom(self, kind: Custom) -> str:
        name, muted = self.called, self.muted
        self.settle()
        value, start, walker = self.variable(), self.variable("a"), self.variable("w")
        self.emit(
            f"{start} = at",
            f"{walker} = WALKER(buf, base, {self.end}, {self.name('STYLE', self.style)}, None, buffer)",
            f"{value}, at = {self.name('WALK', kind.walk)}(buf, at, {self.end}, {walker}, {name}, {self.depth})",
        )
        self.refuse(f"{walker}.notes or not {start} <= at <= {self.end}")
        if self.secret:
            self.emit(f"for one in {walker}.spans:", "    one.secret = True")
        if not muted:
            self.emit(f"spans += {walker}.spans")
        return value


def _is_simple(kind: Type) -> bool:
    """Return whether `struct` returns the value unchanged."""
    return isinstance(kind, Number) and not (kind is boolean or kind.floating or kind.code == "16s")
