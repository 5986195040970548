"""The properties of layouts, for every layout of every protocol and for tables that use each word of the language."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import unpack_from
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdump.layout import (
    Array,
    Bits,
    Blob,
    Choice,
    Custom,
    Field,
    Fixed,
    FixedText,
    Group,
    Layout,
    Optional,
    Repeat,
    Rest,
    RestText,
    Sized,
    Style,
    Text,
    Walker,
    boolean,
    f32,
    f32le,
    f64,
    f64le,
    following,
    i8,
    i16,
    i16le,
    i32,
    i32le,
    i64,
    i64le,
    u8,
    u16,
    u16le,
    u32,
    u32le,
    u64,
    u64le,
    u128,
    u128le,
)
from tests.support.layout_properties import check_agreement, check_damage, check_round_trip, check_truncations, values_for

LABELS = {0: "none", 1: "first", 2: "second"}
STRING = Text(i16, null=-1)
PAIRS = Array((Field("key", STRING), Field("value", STRING)), i32)


def read_pascal(buf: bytes, at: int, end: int, style: Style) -> tuple[list[int], int]:
    """A chain of numbers, each behind a byte 1, ended by a byte 0."""
    found = []
    while at < end and buf[at] == 1:
        if at + 3 > end:
            raise ValueError
        found.append(unpack_from(">H", buf, at + 1)[0])
        at += 3
    if at >= end or buf[at]:
        raise ValueError
    return found, at + 1


def walk_pascal(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[list[int], int]:
    found: list[int] = []
    walker.open(name, at, depth)
    while True:
        walker.keep(found)
        more, at = walker.value(u8, at, end, "more", depth + 1)
        if more > 1:
            raise walker.malformed(at - 1, f"more is {more}", "more")
        if not more:
            walker.close(at)
            return found, at
        number, at = walker.value(u16, at, end, f"[{len(found)}]", depth + 1)
        found.append(number)


CHAIN = Custom(read_pascal, walk_pascal, "chain of numbers", write=lambda ones: b"".join(b"\1" + one.to_bytes(2) for one in ones) + b"\0")
SAMPLED = Custom(read_pascal, walk_pascal, "chain of numbers", samples=(b"\0", b"\1\0\7\0", b"\1\1\1\1\2\2\0"))

NUMBERS = (u8, i8, u16, i16, u32, i32, u64, i64, u128, f32, f64, u16le, i16le, u32le, i32le, u64le, i64le, u128le, f32le, f64le, boolean)

TABLES = [
    Layout("empty"),
    Layout("numbers", *(Field(f"x{place}", one) for place, one in enumerate(NUMBERS))),
    Layout("arrays", *(Field(f"x{place}", Array(one, u16)) for place, one in enumerate(NUMBERS))),
    *(Layout(f"repeat {one.name}", Field("before", u8), Field("all", Repeat(one))) for one in NUMBERS),
    Layout("frame", Field("size", u32, default=following), Field("key", u16, labels=LABELS, default=2), Field("version", u16, default=1)),
    Layout(
        "texts",
        Field("a", STRING),
        Field("b", Text(u8)),
        Field("c", Text(u16, null=65535)),
        Field("d", Text(i32le)),
        Field("e", FixedText(3)),
    ),
    Layout("blobs", Field("a", Blob(i32, null=-1)), Field("b", Blob(u8)), Field("c", Fixed(5)), Field("d", Fixed(0)), Field("e", Rest())),
    Layout("fixed", Field("a", Array(Fixed(3), u8)), Field("b", Array(FixedText(2), i16)), Field("c", Repeat(Group(Field("d", Fixed(2)))))),
    Layout("rest", Field("flag", boolean), Field("text", RestText())),
    Layout(
        "labels", Field("one", u16, labels=LABELS), Field("many", Array(u8, u8), labels=LABELS), Field("rest", Repeat(i16), labels=LABELS)
    ),
    Layout(
        "bits", Field("head", Bits(u8, ("magic", 4), ("version", 4, LABELS))), Field("more", Array(Bits(u16le, ("a", 1), ("b", 15)), u8))
    ),
    Layout(
        "objects",
        Field("brokers", Array((Field("reference", u16), Field("host", STRING), Field("port", u32)), i32)),
        Field("streams", Array((Field("name", STRING), Field("code", u16, labels=LABELS), Field("replicas", Array(u16, i32))), i32)),
        Field("errors", Array((Field("id", u64), Field("code", u16, labels=LABELS)), i32)),
        Field("mixed", Array((Field("big", u32), Field("little", u32le)), u8)),
        Field("inner", Group(Field("a", u8), Field("pairs", PAIRS), Field("point", Group(Field("x", f32), Field("y", f32))))),
        Field("nested", Array(Array(STRING, u8), u8)),
        Field(
            "fixed", Array((Field("id", u128le), Field("data", Fixed(2)), Field("at", Group(Field("on", boolean), Field("x", f32le)))), u8)
        ),
    ),
    Layout("choice", Field("type", u16, labels=LABELS), Field("offset", Choice("type", {4: u64, 5: i64})), Field("credit", u16)),
    Layout(
        "choices",
        Field("kind", u8),
        Choice("kind", {1: (Field("a", u8), Field("b", STRING)), 2: (Field("a", STRING),), 3: ()}, otherwise=(Field("other", u8),)),
        Field(
            "value", Choice("kind", {1: u8, 2: (Field("x", u8), Field("y", u8)), 4: STRING, 5: (Field("deep", Choice("kind", {5: u16})),)})
        ),
        Field(
            "items",
            Array(
                (Field("z", u8), Field("w", Choice("kind", {1: u8, 2: Blob(u8)}, otherwise=u16)), Choice("z", {0: (Field("q", u8),)})), u8
            ),
        ),
        Field("labelled", Choice("kind", {1: u8, 2: u16}), labels=LABELS),
    ),
    Layout("named", Field("word", Text(u8)), Field("value", Choice("word", {"": u8}, otherwise=u16))),
    Layout("tail", Field("a", u8), Optional(Field("b", u8), Field("pairs", PAIRS), Optional(Field("last", Rest())))),
    Layout("tails", Field("a", u8), Optional(Field("b", u16)), Optional(Field("c", STRING)), Optional(Field("d", u8))),
    Layout(
        "counted elsewhere",
        Field("payload_length", u32le),
        Field("headers_length", u32le),
        Field("count", u16),
        Field("payload", Blob("payload_length")),
        Field("headers", Sized("headers_length", Repeat((Field("key", Text(u32le)), Field("value", Blob(u32le)))))),
        Field("numbers", Array(u32le, "count")),
        Field("objects", Array((Field("texts", Array(Text(u8), "count")), Field("a", u8)), "count")),
        Field("word", Text("count")),
    ),
    Layout(
        "sized",
        Field("object", Sized(u16, (Field("a", u8), Optional(Field("b", u16))))),
        Field("text", Sized(i8, STRING)),
        Field("all", Sized(u32, Repeat(u16))),
        Field("deep", Array(Sized(u8, (Field("inner", Sized(u8, Rest())), Field("x", Repeat(STRING)))), u8)),
    ),
    Layout(
        "records",
        Field("magic", FixedText(4)),
        Field("records", Repeat((Field("id", u32le), Field("data", Sized(u32le, (Field("x", Rest()),)))))),
    ),
    Layout(
        "custom",
        Field("a", u8),
        Field("chain", CHAIN),
        Field("chains", Array(CHAIN, u8)),
        Field("group", Group(Field("b", SAMPLED))),
        Field("c", u8),
    ),
    Layout("customs", Field("good", SAMPLED), Field("all", Repeat((Field("chain", SAMPLED),)))),
    Layout("bare customs", Field("all", Repeat(SAMPLED))),
    Layout(
        "secrets",
        Field("name", Text(u8)),
        Field("password", Text(u8), secret=True),
        Field("data", Blob(i32, null=-1), secret=True),
        Field("token", Text(i16, null=-1), secret=True),
        Field("pin", u32, secret=True, labels=LABELS),
        Field("block", Fixed(4), secret=True),
        Field("word", FixedText(2), secret=True),
        Field("list", Array(u8, u8), secret=True),
        Field("users", Array((Field("name", Text(u8)), Field("password", Text(u8), secret=True), Field("code", u8)), u8)),
        Field("object", Group(Field("a", u8), Field("b", boolean), Field("c", STRING)), secret=True),
        Field("chain", SAMPLED, secret=True),
        Field("rest", Rest(), secret=True),
    ),
]


def protocol_tables() -> list[tuple[str, Any]]:
    from streamdump.protocols import PROTOCOLS

    return [
        (f"{protocol.name} {place} {table.name} {table.kind}", table)
        for protocol in PROTOCOLS
        for place, table in enumerate(protocol.loaded.layouts)
    ]


FAMILIES: dict[str, dict[str, Layout]] = {"table": {table.name: table for table in TABLES}}
for _name, _table in protocol_tables():
    if isinstance(_table, Layout):
        FAMILIES.setdefault(_name.split()[0], {})[_name] = _table


def parts_of_families() -> Iterator[Any]:
    """The layouts of each family; of the one that has hundreds the short tests check every fifth."""
    for family, named in FAMILIES.items():
        step = 5 if len(named) > 100 else 1
        layouts = [*named.items()]
        yield pytest.param(layouts[::step], id=family)
        if step > 1:
            yield pytest.param([one for at, one in enumerate(layouts) if at % step], id=f"{family}, others", marks=pytest.mark.sweep)


def other_tables() -> list[Any]:
    """Tables that do not say where bytes are (a self-describing format has others): documentation only."""
    return [pytest.param(table, id=name) for name, table in protocol_tables() if not isinstance(table, Layout)]


SOME = settings(max_examples=max(3, settings.default.max_examples // 8)) if settings.default else settings()
"""There are hundreds of layouts, and every cut of every frame is looked at."""


@given(data=st.data())
@SOME
def round_trip_and_truncations(layout: Layout, data: st.DataObject) -> None:
    check_truncations(layout, check_round_trip(layout, data.draw(values_for(layout))))


@given(data=st.data(), places=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), min_size=1, max_size=4))
@SOME
def damage(layout: Layout, data: st.DataObject, places: Sequence[tuple[int, int]]) -> None:
    values = data.draw(values_for(layout))
    if data.draw(st.booleans()):
        values["trailing"] = data.draw(st.binary(min_size=1, max_size=9))
    check_damage(layout, check_round_trip(layout, {name: one for name, one in values.items() if name != "trailing"}), places)


@given(noise=st.binary(max_size=80) | st.binary(max_size=80).map(lambda one: one.replace(b"\xff", b"\0")))
@SOME
def agreement_on_noise(layout: Layout, noise: bytes) -> None:
    check_agreement(layout, noise, 0, len(noise))
    check_agreement(layout, b"\xff" + noise + noise, 1, 1 + len(noise))


@pytest.mark.hypothesis
@pytest.mark.parametrize("check", [round_trip_and_truncations, damage, agreement_on_noise], ids=lambda check: check.__name__)
@pytest.mark.parametrize("layouts", [*parts_of_families()])
def test_layouts(layouts: Sequence[tuple[str, Layout]], check: Callable[[Layout], None], subtests: pytest.Subtests) -> None:
    for name, layout in layouts:
        with subtests.test(name):
            check(layout)


@pytest.mark.parametrize("table", other_tables())
def test_other_tables_are_documentation(table: Any) -> None:
    rows = table.rows()
    assert rows
    assert all(len(row) == 3 and row[0] and row[1] for row in rows)
