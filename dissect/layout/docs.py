"""Field tables as rows of documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

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
    Text,
    Type,
)

Row = tuple[str, str, str]


class PartTable(msgspec.Struct, frozen=True, eq=False):
    """Fields of a message part without a table; `labels`, by path, of the fields with a `..._label` beside them."""

    name: str
    note: str
    table_rows: tuple[Row, ...]
    labels: Mapping[str, Labels] = {}
    kind: str = "part"

    def rows(self) -> list[Row]:
        return list(self.table_rows)


class Described(Protocol):
    """A table that is not a `Layout` and provides its own rows."""

    def rows(self) -> list[Row]: ...


def rows(layout: Layout | Described) -> list[Row]:
    """Return (path, type, note) of every field in wire order; `[]` in a path stands for the items of an array."""
    if not isinstance(layout, Layout):
        return layout.rows()
    return _entries(layout.fields, "", "")


def _entries(entries: Sequence[Entry], path: str, when: str) -> list[Row]:
    found: list[Row] = []
    for entry in entries:
        match entry:
            case Field(type=Choice() as choice):
                found += _choice(choice, entry, path, when)
            case Field():
                found += _field(entry, entry.type, path, when)
            case Choice():
                found += _choice(entry, None, path, when)
            case Optional(fields=tail):
                found += _entries(tail, path, _and(when, "if bytes are left"))
    return found


def _choice(choice: Choice, field: Field | None, path: str, when: str) -> list[Row]:
    found: list[Row] = []
    alternatives = [(f"if {choice.discriminator} is {key}", branch) for key, branch in choice.alternatives.items()]
    if choice.otherwise is not None:
        alternatives.append((f"if any other {choice.discriminator}", choice.otherwise))
    for condition, branch in alternatives:
        inside = _and(when, condition)
        if isinstance(branch, tuple):
            found += _entries(branch, path, inside)
        else:
            assert field is not None
            found += _field(field, branch, path, inside)
    return found


def _field(field: Field, kind: Type, path: str, when: str) -> list[Row]:
    own = f"{path}.{field.name}" if path else field.name
    notes = [one for one in (when, field.note, "secret" if field.secret else "") if one]
    inner, suffix = kind, ""
    while isinstance(inner, Array | Repeat | Sized):
        if not isinstance(inner, Sized):
            suffix += "[]"
        inner = inner.content if isinstance(inner, Sized) else inner.item
    found = [(own, describe(kind), "; ".join(notes))]
    if isinstance(inner, Group):
        found += _entries(inner.fields, own + suffix, "")
    elif isinstance(inner, Bits):
        for name, _, mask, _ in inner.parts:
            width = mask.bit_length()
            found.append((f"{own}{suffix}.{name}", f"{width} bit" if width == 1 else f"{width} bits", ""))
    return found


def _and(when: str, more: str) -> str:
    return f"{when}, {more}" if when else more


def describe(kind: Type) -> str:
    """Return a type as text: "array of uint64, count int32"."""
    match kind:
        case Number(name=name):
            return name
        case Text(length=length, null=null) | Blob(length=length, null=null):
            what = "text" if isinstance(kind, Text) else "bytes"
            return f"{what}, length {_of(length)}" + ("" if null is None else f" ({null} null)")
        case Fixed(size=size):
            return f"{size} bytes"
        case FixedText(size=size):
            return f"text of {size} bytes"
        case Rest():
            return "bytes to the end"
        case RestText():
            return "text to the end"
        case Bits(number=number):
            return f"bits of {number.name}"
        case Array(item=item, count=count):
            return f"array of {describe(item)}, count {_of(count)}"
        case Repeat(item=item):
            return f"{describe(item)}, repeated to the end"
        case Group():
            return "object"
        case Sized(length=length, content=content):
            return f"{describe(content)}, length {_of(length)}"
        case Custom(name=name):
            return name
        case Choice(discriminator=name):
            return f"by {name}"


def _of(length: Number | str) -> str:
    return length.name if isinstance(length, Number) else f"in {length}"
