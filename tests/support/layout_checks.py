"""What is asked of every field table, which the library itself takes on trust: it is a mistake in our own source.

The tests ask it of each layout that is made while they run, as well of those that a protocol puts together when it meets a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamdump.layout import (
    Array,
    Bits,
    Blob,
    Choice,
    Entry,
    Field,
    Group,
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
)
from streamdump.layout.types import minimum, parts_of


def check_all_from_now_on() -> None:
    """Every layout and every object that is made fails at once if it is wrong."""
    for made in (Layout, Group):
        _check_made(made)


def _check_made(made: type[Layout | Group]) -> None:
    make = made.__init__

    def make_and_check(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        check(self)

    made.__init__ = make_and_check  # type: ignore[method-assign]


def check(table: Layout | Type | Entry) -> None:
    """Raises ValueError if a table, or a part of one, is wrong."""
    if not isinstance(table, Layout):
        _check_parts(table)
        return
    try:
        _check_parts(table.fields)
        _check_names(table.fields)
        _check_references(table.fields, frozenset())
        _check_greedy(table.fields, last=True)
    except ValueError as error:
        raise ValueError(f"layout {table.name}: {error}") from None


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _whole(kind: Type) -> bool:
    """Whether the bare value is an integer that labels, counts and choices can use."""
    return isinstance(kind, Number) and not kind.floating and kind.code != "16s"


def _check_parts(table: Type | Entry | tuple[Entry, ...]) -> None:
    """What each part has to be by itself."""
    for part in parts_of(table):
        match part:
            case Field(name=name, type=kind, labels=labels):
                _require(name.isidentifier(), f"{name!r} is no field name")
                labelled = kind.item if isinstance(kind, Array | Repeat) else kind
                _require(labels is None or _whole(labelled) or isinstance(labelled, Choice), f"{name} cannot have labels")
            case Array(item=item) | Repeat(item=item):
                _require(not isinstance(item, Choice | Rest | RestText | Repeat), f"no array of {type(item).__name__}")
                # A count that no byte of the frame pays for could not be told from a lie.
                _require(minimum(item) > 0, "an item takes at least one byte")
            case Group(fields=fields):
                _check_names(fields)
            case Bits():
                _check_bits(part)


def _check_bits(bits: Bits) -> None:
    number = bits.number
    _require(not number.floating and not number.signed and number.size <= 8 and number is not boolean, "bits of an unsigned integer")
    for name, _, mask, _ in bits.parts:
        _require(name.isidentifier() and mask > 0, f"bad part {name!r} of {mask.bit_length()} bits")
    left = number.size * 8 - sum(mask.bit_length() for _, _, mask, _ in bits.parts)
    _require(left == 0, f"parts leave {left} bits of {number.name}")


def _check_names(fields: Sequence[Entry]) -> set[str]:
    """All keys an object can have; none twice, except in alternatives that exclude each other."""
    names: set[str] = set()
    for entry in fields:
        new: set[str] = set()
        inlined: Sequence[Type | tuple[Entry, ...]] = ()
        match entry:
            case Optional(fields=tail):
                inlined = [tail]
            case Choice():
                inlined = entry.branches()
            case Field(type=Choice() as choice):
                inlined = choice.branches()
        if isinstance(entry, Field):
            new |= {entry.name} if entry.labels is None else {entry.name, f"{entry.name}_label"}
        for branch in inlined:
            if isinstance(branch, tuple):
                new |= _check_names(branch)
            else:
                _require(isinstance(entry, Field), "a choice without a field around it has tuples of fields only")
                _require(not isinstance(branch, Choice), "a choice in a choice is a field of a tuple")
        _require(not new & names, f"{', '.join(sorted(new & names))} twice")
        _require("trailing" not in new, "`trailing` is what is left over")
        names |= new
    return names


def _check_references(part: Type | Sequence[Entry], known: frozenset[str]) -> frozenset[str]:
    """Every field that is referred to is an earlier number of this object or of one around it; returns what is known behind `part`."""
    match part:
        case tuple() | list():
            for entry in part:
                match entry:
                    case Field(name=name, type=kind):
                        known = _check_references(kind, known)
                        if isinstance(kind, Text) or _whole(kind):
                            known |= {name}
                    case Optional(fields=fields):
                        _check_references(fields, known)
                    case Choice():
                        _check_references(entry, known)
        case Text(length=str() as name) | Blob(length=str() as name) | Sized(length=str() as name) | Array(count=str() as name):
            _require(name in known, f"no field {name} before its use")
        case _:
            pass
    match part:
        case Choice(discriminator=name):
            _require(name in known, f"no field {name} before its use")
            for branch in part.branches():
                _check_references(branch, known)
        case Array(item=inner) | Repeat(item=inner) | Sized(content=inner):
            _check_references(inner, known)
        case Group(fields=fields):
            _check_references(fields, known)
        case _:
            pass
    return known


def _check_greedy(part: Type | Sequence[Entry], last: bool) -> None:
    """What takes all bytes to the end stands at the end."""
    match part:
        case tuple() | list():
            for place, entry in enumerate(part):
                final = last and place == len(part) - 1
                match entry:
                    case Field(type=kind):
                        _check_greedy(kind, final)
                    case Optional(fields=fields):
                        _require(last and all(isinstance(one, Optional) for one in part[place:]), "fields behind an optional tail")
                        _check_greedy(fields, final)
                    case Choice():
                        _check_greedy(entry, final)
        case Rest() | RestText() | Repeat():
            _require(last, f"fields behind {type(part).__name__}")
        case Choice():
            for branch in part.branches():
                _check_greedy(branch, last)
        case Group(fields=fields):
            _check_greedy(fields, last)
        case Array(item=inner):
            _check_greedy(inner, False)
        case Sized(content=inner):
            _check_greedy(inner, True)
        case _:
            pass
    if isinstance(part, Repeat):
        _check_greedy(part.item, False)
