"""All field tables of a protocol combined: a tree of fields by name.

Layouts contain types as objects. Tables of formats read by hand contain them as text, which is parsed here: `array of uint64`, `entry or
sub-batch`, where the latter are names of other tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..layout import (
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
    Text,
    Type,
    boolean,
    describe,
    rows,
    types,
)
from .protocol import Protocol

NUMBERS = {one.name: one for one in vars(types).values() if isinstance(one, Number)}

INT, BOOL, FLOAT, WORDS, LIST, OBJECT, OTHER = "int", "bool", "float", "text", "list", "object", "other"
"""Kinds of values; `OTHER`: any value of a user (a document, an AMQP value), or one that no table describes."""


class RegisteredField:
    """One field, as described by all tables."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.low = self.high = 0
        self.wide = False
        """Some texts are integers of more than 64 bits."""
        self.items: RegisteredField | None = None
        self.members: dict[str, RegisteredField] = {}
        self.descriptions: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self.sized = False
        """An object with its own length, behind whose members bytes may be left (`trailing`)."""
        self.labels: dict[str, None] = {}
        """Known values of a field `..._label`."""

    def member(self, name: str) -> RegisteredField:
        return self.members.setdefault(name, RegisteredField())

    def number(self, one: Number) -> None:
        if one is boolean:
            self.kinds.add(BOOL)
        elif one.floating:
            self.kinds.add(FLOAT)
        elif one.size > 8:
            self.kinds.add(WORDS)
            self.wide = True
        else:
            bits = one.size * 8
            self.bits(-1 << bits - 1 if one.signed else 0, (1 << (bits - 1 if one.signed else bits)) - 1)

    def bits(self, low: int, high: int) -> None:
        self.kinds.add(INT)
        self.low, self.high = min(self.low, low), max(self.high, high)

    def list(self) -> RegisteredField:
        self.kinds.add(LIST)
        if self.items is None:
            self.items = RegisteredField()
        return self.items


LEFT_OVER = RegisteredField()
"""The field `trailing` of a part with a size."""
LEFT_OVER.kinds.add(WORDS)
LEFT_OVER.notes["bytes left over after the fields"] = None


class FieldRegistry:
    """The combined tables of one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self.parts: dict[str, list[Any]] = {}
        """Tables of formats read by hand, by the name used in layouts."""
        self.found = RegisteredField()
        self.found.sized = True
        for table in protocol.loaded.layouts:
            if table.kind == "part":
                self.parts.setdefault(table.name.lower(), []).append(table)
        for table in protocol.loaded.layouts:
            if isinstance(table, Layout):
                self.entries(self.found, table.fields)
            elif table.kind != "part":
                self.table(self.found, table)
        self.rows(self.found, protocol.loaded.added)

    def entries(self, into: RegisteredField, entries: Iterable[Entry]) -> None:
        for entry in entries:
            match entry:
                case Field(type=Choice() as choice):
                    self.choice(into, choice, entry)
                case Field():
                    self.field(into, entry, entry.type)
                case Choice():
                    self.choice(into, entry, None)
                case Optional(fields=tail):
                    self.entries(into, tail)

    def choice(self, into: RegisteredField, choice: Choice, field: Field | None) -> None:
        for branch in choice.branches():
            if isinstance(branch, tuple):
                self.entries(into, branch)
            elif field is not None:
                self.field(into, field, branch)

    def field(self, into: RegisteredField, field: Field, kind: Type) -> None:
        found = into.member(field.name)
        found.descriptions[describe(kind)] = None
        if field.note:
            found.notes[field.note] = None
        self.type(found, kind)
        if field.labels is not None:
            self.label(into, field.name, field.labels, isinstance(kind, Array | Repeat))

    def label(self, into: RegisteredField, name: str, labels: Labels, several: bool = False) -> None:
        label = into.member(f"{name}_label")
        label.descriptions[f"what {name} means"] = None
        label = label.list() if several else label
        label.kinds.add(WORDS)
        label.labels.update(dict.fromkeys(labels.values()))

    def type(self, found: RegisteredField, kind: Type) -> None:
        match kind:
            case Number():
                found.number(kind)
            case Text() | FixedText() | RestText() | Blob() | Fixed() | Rest():
                found.kinds.add(WORDS)
            case Bits():
                found.kinds.add(OBJECT)
                for name, _, mask, labels in kind.parts:
                    part = found.member(name)
                    part.bits(0, mask)
                    part.descriptions[f"{mask.bit_length()} of the bits"] = None
                    if labels is not None:
                        self.label(found, name, labels)
            case Array(item=item) | Repeat(item=item):
                self.type(found.list(), item)
            case Sized(content=content):
                found.sized = found.sized or isinstance(content, Group)
                self.type(found, content)
            case Group(fields=fields):
                found.kinds.add(OBJECT)
                self.entries(found, fields)
            case Choice():
                for branch in kind.branches():
                    assert not isinstance(branch, tuple)
                    self.type(found, branch)
            case Custom(name=name):
                self.word(found, name)

    def table(self, into: RegisteredField, table: Any) -> None:
        """Add a table that is not a layout."""
        self.rows(into, rows(table))
        for path, labels in getattr(table, "labels", {}).items():
            *above, name = path.split(".")
            self.label(self._above(into, above), name, labels)

    def rows(self, into: RegisteredField, rows_of_table: Sequence[tuple[str, str, str]]) -> None:
        for path, words, note in rows_of_table:
            *above, name = path.split(".")
            found = self._above(into, above).member(name.removesuffix("[]"))
            found.descriptions[words] = None
            if note:
                found.notes[note] = None
            self.word(found.list() if name.endswith("[]") else found, words.removesuffix(" or null"))

    def _above(self, into: RegisteredField, path: Sequence[str]) -> RegisteredField:
        """The objects that hold a field."""
        for step in path:
            into = into.member(step.removesuffix("[]"))
            if step.endswith("[]"):
                into = into.list()
            into.kinds.discard(OTHER)
            into.kinds.add(OBJECT)
        return into

    def word(self, found: RegisteredField, words: str) -> None:
        """A type by its name."""
        kind = words.split(",")[0].removesuffix("le")
        tables = kind.split(" or ")
        if kind in NUMBERS:
            found.number(NUMBERS[kind])
        elif kind in ("string", "text", "bytes") or kind.endswith(" bytes"):
            found.kinds.add(WORDS)
        elif kind == "object":
            found.kinds.add(OBJECT)
        elif kind.startswith("array of "):
            self.word(found.list(), kind.removeprefix("array of "))
        elif all(one in self.parts for one in tables):
            found.kinds.add(OBJECT)
            for one in tables:
                for table in self.parts[one]:
                    self.table(found, table)
        else:
            found.kinds.add(OTHER)


def declared(protocol: Protocol) -> RegisteredField:
    """Every field that messages of a protocol may have."""
    return FieldRegistry(protocol).found
