"""Frames from values, for fixtures: the inverse of the decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any

from streamdump.layout.types import (
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
    Since,
    Sized,
    Text,
    Type,
    boolean,
)

Values = Mapping[str, Any]


def encode(layout: Layout, values: Values) -> bytes:
    """The bytes of a message; `values` as a decoder gives them with bytes left raw and secrets shown.

    A value not given is the field's `default`, or, for one that is the count or length of another, what fits that. Labels are ignored,
    `trailing` is appended.
    """
    return _Builder().message(layout, values)


class _Builder:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.open: list[tuple[int, Number, Any]] = []
        """Places in `parts` whose value is a function of the bytes behind."""
        self.scopes: list[dict[str, Any]] = []

    def message(self, layout: Layout, values: Values) -> bytes:
        self.object(layout.fields, values, layout.name)
        for index, number, default in self.open:
            self.parts[index] = _number(number, default(sum(map(len, self.parts[index + 1 :]))))
        return b"".join(self.parts)

    def object(self, fields: Sequence[Entry], values: Values, where: str) -> None:
        unknown = {name for name in values if name != "trailing"} - _keys(fields)
        if unknown:
            raise ValueError(f"{where} has no {', '.join(sorted(unknown))}")
        self.scopes.append({})
        self.entries(fields, values, fields, where)
        self.scopes.pop()
        self.parts.append(values.get("trailing", b""))

    def entries(self, fields: Sequence[Entry], values: Values, around: Sequence[Entry], where: str) -> None:
        for entry in fields:
            match entry:
                case Field(type=Choice() as choice):
                    self.choice(choice, entry, values, around, where)
                case Field():
                    self.field(entry, entry.type, values, around, where)
                case Choice():
                    self.choice(entry, None, values, around, where)
                case Optional(fields=tail):
                    if _keys(tail) & values.keys():
                        self.entries(tail, values, around, where)

    def choice(self, choice: Choice, field: Field | None, values: Values, around: Sequence[Entry], where: str) -> None:
        branch = choice.alternatives.get(self.reference(choice.discriminator), choice.otherwise)
        if isinstance(branch, tuple):
            self.entries(branch, values, around, where)
        elif branch is not None:
            assert field is not None
            self.field(field, branch, values, around, where)

    def field(self, field: Field, kind: Type, values: Values, around: Sequence[Entry], where: str) -> None:
        name = field.name
        if name in values:
            value = values[name]
        elif (counted := self.counted(name, around, values, where)) is not None:
            value = counted
        elif callable(field.default):
            assert isinstance(kind, Number)
            self.open.append((len(self.parts), kind, field.default))
            self.parts.append(bytes(kind.size))
            return
        elif field.default is not None:
            value = field.default
        else:
            raise ValueError(f"{where} needs a value for {name}")
        self.scopes[-1][name] = value
        self.value(kind, value, f"{where}.{name}")

    def counted(self, name: str, around: Sequence[Entry], values: Values, where: str) -> int | None:
        """The count or length that another field of the object takes from the field `name`."""
        for field in _fields(around):
            kind = field.type
            if field.name not in values:
                continue
            value = values[field.name]
            if isinstance(kind, Array) and kind.count == name:
                return len(value)
            if isinstance(kind, Text | Blob) and kind.length == name:
                return _size(kind, value)
            if isinstance(kind, Sized) and kind.length == name:
                return len(self.apart(kind.content, value, f"{where}.{field.name}"))
        return None

    def apart(self, kind: Type, value: Any, where: str) -> bytes:
        """The bytes of a value on its own."""
        parts, self.parts = self.parts, []
        opened, self.open = self.open, []
        try:
            self.value(kind, value, where)
            for index, number, default in self.open:
                self.parts[index] = _number(number, default(sum(map(len, self.parts[index + 1 :]))))
            return b"".join(self.parts)
        finally:
            self.parts, self.open = parts, opened

    def reference(self, name: str) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise ValueError(f"no field {name}")

    def length(self, length: Number | str, value: int, where: str) -> None:
        if isinstance(length, Number):
            self.parts.append(_number(length, value))
        elif self.reference(length) != value:
            raise ValueError(f"{where}: {length} is {self.reference(length)}, not {value}")

    def value(self, kind: Type, value: Any, where: str) -> None:
        match kind:
            case Number():
                self.parts.append(_number(kind, value))
            case Fixed(size=size) | FixedText(size=size):
                data = value.encode() if isinstance(value, str) else value
                if len(data) != size:
                    raise ValueError(f"{where} takes {size} bytes, not {len(data)}")
                self.parts.append(data)
            case Bits(number=number, parts=parts):
                word = sum((value.get(name, 0) & mask) << shift for name, shift, mask, _ in parts)
                self.parts.append(_number(number, word))
            case Text() | Blob():
                self.length(kind.length, _size(kind, value), where)
                self.parts.append(b"" if value is None else value.encode() if isinstance(value, str) else value)
            case Rest() | RestText():
                self.parts.append(value.encode() if isinstance(value, str) else value)
            case Array(item=item, count=count):
                self.length(count, len(value), where)
                for index, one in enumerate(value):
                    self.value(item, one, f"{where}[{index}]")
            case Repeat(item=item):
                for index, one in enumerate(value):
                    self.value(item, one, f"{where}[{index}]")
            case Group(fields=fields):
                self.object(fields, value, where)
            case Sized(length=length, content=content):
                data = self.apart(content, value, where)
                self.length(length, len(data), where)
                self.parts.append(data)
            case Custom(write=write):
                self.parts.append(value if write is None else write(value))
            case Choice():
                raise ValueError("a choice is a field of its own")


def _number(kind: Number, value: Any) -> bytes:
    if kind is boolean:
        return bytes([value])
    if kind.code == "16s":
        return int(value).to_bytes(16, "big" if kind.order == ">" else "little")
    return pack(kind.order + kind.code, float(value) if kind.floating else value)


def _size(kind: Text | Blob, value: str | bytes | None) -> int:
    if value is None:
        if kind.null is None:
            raise ValueError("no null here")
        return kind.null
    return len(value.encode() if isinstance(value, str) else value)


def _fields(entries: Sequence[Entry]) -> list[Field]:
    """All fields an object can have; a choice of types appears with each of them."""
    found: list[Field] = []
    for entry in entries:
        if isinstance(entry, Optional | Since):
            found += _fields(entry.fields)
            continue
        choice = entry if isinstance(entry, Choice) else entry.type
        if not isinstance(choice, Choice):
            assert isinstance(entry, Field)
            found.append(entry)
            continue
        for branch in choice.branches():
            if isinstance(branch, tuple):
                found += _fields(branch)
            elif isinstance(entry, Field):
                found.append(Field(entry.name, branch, labels=entry.labels))
    return found


def _keys(entries: Sequence[Entry]) -> set[str]:
    fields = _fields(entries)
    return {field.name for field in fields} | {f"{field.name}_label" for field in fields if field.labels is not None}
