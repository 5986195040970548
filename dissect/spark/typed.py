"""The fields of messages as typed columns: for each protocol a table, made of its own field tables.

What `Protocol.layouts` says of a field decides its type; a field that several messages have is one member, of a type that holds them
all. Nothing here knows a protocol, so a new one gets its table by itself. A protocol is a struct here, whose members are the columns.

| declared | member |
| --- | --- |
| integers of up to 64 bits | the narrowest signed integer that holds every value of all of them |
| unsigned ones of 64 bits | decimal(20,0): Spark has no unsigned integers, and text would neither sort nor add up |
| integers of 128 bits | text, as in the JSON |
| boolean | boolean |
| floats | double |
| text, bytes | text as in the JSON, so a secret is `<redacted N bytes>` here too |
| text here and an integer there | text, the integer in digits (the value of an Iggy identifier) |
| labels | text, in a member `<name>_label` |
| bits, an object, a chunk | struct of its own members; null where another message has a plain value under that name |
| arrays of one of those | list; arrays of objects are left to the JSON |
| what is read by hand, and no table of its own says what it is (entries, BSON documents, AMQP values) | no member |
| a name that differs from an earlier one in case only (`SubID` of old mewbase clients) | no member: Spark could not distinguish them |

So `fields` has everything, the columns what a query can ask for without parsing. A member is null where the message has no such field,
where its value is null, and where the value is not of the declared type (a boolean byte of 7, a mewbase field of another BSON type).
Such an item of a list is null too.

Columns are made of the values that there are (`by_name`), and spread over the rows that have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from ..protocols import PROTOCOLS
from ..protocols.field_registry import BOOL, FLOAT, INT, LIST, OBJECT, OTHER, WORDS, RegisteredField, declared

NULL = type(None)
TEXT = pa.string()
WIDE = pa.decimal128(20, 0)
"""Holds the integers of 64 bits, signed or not."""

WHOLE = ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

NOTES = 3
"""Limit of different notes in the description of a column."""


class Member:
    """A typed column, or a member of a struct."""

    def __init__(self, kind: Any, info: str, array: Callable[[Sequence[Any]], Any]) -> None:
        self.type = kind
        self.info = info
        self.array = array
        """Makes an Arrow array of values as they are in the fields of messages."""

    def spread(self, places: list[int], values: list[Any], count: int) -> Any:
        """The array of `count` objects, of which some have values, as in `by_name`."""
        if not values:
            return pa.nulls(count, self.type)
        at = np.full(count, -1)
        at[places] = np.arange(len(values))
        return self.array(values).take(pa.array(at, mask=at < 0))


class Struct(Member):
    """A struct as a column, or as a member of one."""

    def __init__(self, info: str, found: RegisteredField) -> None:
        """`found`: what the tables say of it."""
        self.members = _members(found)
        fields = [pa.field(name, member.type, metadata={"comment": member.info}) for name, member in self.members.items()]
        super().__init__(pa.struct(fields), info, self._array)

    def _array(self, values: Sequence[Any]) -> Any:
        absent = [type(one) is not dict for one in values]
        found = by_name(self.members, [{} if none else one for one, none in zip(values, absent, strict=True)])
        arrays = [member.spread(*found[name], len(values)) for name, member in self.members.items()]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=pa.array(absent) if any(absent) else None)


def by_name(names: Iterable[str], objects: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[int], list[Any]]]:
    """For each of these names the places of the objects that have a value of that name, and these values."""
    found: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in names}
    for place, one in enumerate(objects):
        for name, value in one.items():
            # A peer may choose others
            if name in found:
                places, values = found[name]
                places.append(place)
                values.append(value)
    return found


def fitting(values: Sequence[Any], kind: Any) -> Any:
    """An Arrow array of these values, null where one does not fit."""
    try:
        return pa.array(values, kind)
    except (OverflowError, ValueError):
        half = len(values) // 2
        if not half:
            return pa.nulls(1, kind)
        return pa.concat_arrays([fitting(values[:half], kind), fitting(values[half:], kind)])


def _plain(kind: Any, info: str, own: type, other: type = NULL, converted: Callable[[Any], Any] = lambda _: None) -> Member:
    """The member of this type, for values of the class `own`; those of the class `other` are converted. (Arrow itself accepts 1.5 as 1.)"""
    accepted = frozenset((own, NULL))

    def array(values: Sequence[Any]) -> Any:
        if not accepted.issuperset(map(type, values)):
            values = [one if type(one) is own else converted(one) if type(one) is other else None for one in values]
        return fitting(values, kind)

    return Member(kind, info, array)


def _list(kind: Any, item: Member) -> Callable[[Sequence[Any]], Any]:
    def array(values: Sequence[Any]) -> Any:
        items = item.array([value for one in values if type(one) is list for value in one])
        offsets = list(accumulate([len(one) if type(one) is list else 0 for one in values], initial=0))
        absent = [type(one) is not list for one in values]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=kind, mask=pa.array(absent) if any(absent) else None)

    return array


def _member(found: RegisteredField) -> Member | None:
    """The member that holds what the tables say of a field, None where no type does."""
    kinds = found.kinds - {OTHER}
    notes = list(found.notes) if len(found.notes) <= NOTES else []
    info = "; ".join([" or ".join(found.descriptions), *notes])
    if OBJECT in kinds and LIST not in kinds:
        struct = Struct(info, found)
        return struct if struct.members else None
    if kinds == {LIST}:
        assert found.items is not None
        item = _member(found.items)
        if item is None or isinstance(item, Struct) or pa.types.is_list(item.type):
            return None
        kind = pa.list_(item.type)
        return Member(kind, info, _list(kind, item))
    if kinds == {INT}:
        narrow = (kind for bits, kind in WHOLE if -1 << bits - 1 <= found.low and found.high < 1 << bits - 1)
        return _plain(next(narrow, WIDE), info, int)
    alike = ALIKE.get(frozenset(kinds))
    return None if alike is None else _plain(alike[0], info, *alike[1:])


ALIKE: dict[frozenset[str], tuple[Any, ...]] = {
    frozenset((BOOL,)): (pa.bool_(), bool),
    frozenset((FLOAT,)): (pa.float64(), float, str, NOT_FINITE.get),
    frozenset((WORDS,)): (TEXT, str),
    frozenset((WORDS, INT)): (TEXT, str, int, str),
}
"""Kinds that have one type whatever the field says further, as arguments of `_plain`."""


def _members(found: RegisteredField) -> dict[str, Member]:
    made: dict[str, Member] = {}
    for name, one in found.members.items():
        member = _member(one)
        # Spark does not distinguish names by case
        if member is not None and name.lower() not in map(str.lower, made):
            made[name] = member
    return made


STRUCTS = {one.name: Struct(f"typed fields of {one.title}", declared(one)) for one in PROTOCOLS}
"""What the tables of a protocol give, by its name."""
