"""Tables themselves: wrong ones fail at once, values become bytes, rows document them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
    Text,
    boolean,
    f64,
    following,
    i16,
    i32,
    rows,
    u8,
    u16,
    u32,
    u64,
    u128,
    u128le,
)
from tests.support.encoder import encode
from tests.support.layout_checks import check

LABELS = {1: "one"}
A = Field("a", u8)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Layout("x", A, A), "layout x: a twice"),
        (lambda: Layout("x", Field("b", u8, labels=LABELS), Field("b_label", u8)), "b_label twice"),
        (lambda: Layout("x", A, Optional(A)), "a twice"),
        (lambda: Layout("x", A, Choice("a", {1: (A,)})), "a twice"),
        (lambda: Layout("x", Field("trailing", u8)), "left over"),
        (lambda: Layout("x", Field("b", Choice("a", {1: u8}))), "no field a"),
        (lambda: Layout("x", Field("b", Text("a")), A), "no field a"),
        (lambda: Layout("x", Field("g", Group(A)), Field("b", Array(u8, "a"))), "no field a"),
        (lambda: Layout("x", Field("a", f64), Field("b", Blob("a"))), "no field a"),
        (lambda: Layout("x", Field("a", u128), Field("b", Choice("a", {1: u8}))), "no field a"),
        (lambda: Layout("x", Field("r", Rest()), A), "fields behind Rest"),
        (lambda: Layout("x", Field("r", Repeat(u8)), A), "fields behind Repeat"),
        (lambda: Layout("x", A, Choice("a", {1: (Field("r", RestText()),)}), Field("b", u8)), "fields behind RestText"),
        (lambda: Layout("x", Optional(A), Field("b", u8)), "behind an optional tail"),
        (lambda: Layout("x", Field("all", Repeat((A, Optional(Field("b", u8)))))), "behind an optional tail"),
        (lambda: Layout("x", Field("all", Array((A, Field("r", Rest())), u8))), "fields behind Rest"),
        (lambda: Layout("x", Choice("a", {1: u8})), "tuples of fields only"),
        (lambda: Array(Fixed(0), u32), "at least one byte"),
        (lambda: Array(Group(), u32), "at least one byte"),
        (lambda: Array((Optional(A),), u32), "at least one byte"),
        (lambda: Repeat(Text("n")), "at least one byte"),
        (lambda: Array(Rest(), u32), "no array of Rest"),
        (lambda: Field("not a name", u8), "no field name"),
        (lambda: Field("a", Text(u8), labels=LABELS), "cannot have labels"),
        (lambda: Field("a", f64, labels=LABELS), "cannot have labels"),
        (lambda: Bits(u8, ("a", 3)), "parts leave 5 bits"),
        (lambda: Bits(i16, ("a", 16)), "unsigned"),
    ],
)
def test_a_wrong_table_fails_at_once(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(make())


def test_alternatives_may_share_names() -> None:
    Layout("x", A, Choice("a", {1: (Field("b", u8),), 2: (Field("b", u16), Field("c", u8))}))


def test_encode_fills_in_defaults_counts_and_sizes() -> None:
    layout = Layout(
        "frame",
        Field("size", u32, default=following),
        Field("key", u16, default=7),
        Field("length", u8),
        Field("count", u8),
        Field("region_length", u8),
        Field("text", Text("length")),
        Field("all", Array(u16, "count")),
        Field("region", Sized("region_length", Repeat((Field("own", u8, default=lambda left: left + 1), Field("x", Text(u8)))))),
    )
    values = {"text": "é", "all": [1, 2], "region": [{"x": "ab"}, {"x": ""}]}
    assert encode(layout, values).hex(" ") == "00 00 00 11 00 07 02 02 06 c3 a9 00 01 00 02 06 02 61 62 02 00"
    assert encode(layout, {**values, "size": 1, "key": 2})[:6].hex() == "000000010002"


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (u128le, "1", "01" + "00" * 15),
        (u128, 1, "00" * 15 + "01"),
        (boolean, True, "01"),
        (boolean, 7, "07"),
        (f64, "Infinity", "7ff0000000000000"),
        (Text(i16, null=-1), None, "ffff"),
        (Blob(i32, null=-1), None, "ffffffff"),
        (FixedText(2), "ab", "6162"),
        (Bits(u8, ("a", 4), ("b", 4)), {"a": 5}, "50"),
        (Sized(u8, (Field("x", Rest()),)), {"x": b"\1"}, "0101"),
        (Custom(lambda *_: (0, 0), lambda *_: (0, 0), write=lambda value: bytes(value)), 2, "0000"),
        (Custom(lambda *_: (0, 0), lambda *_: (0, 0)), b"\5", "05"),
    ],
)
def test_encode_values(kind: Any, value: Any, data: str) -> None:
    assert encode(Layout("x", Field("x", kind)), {"x": value}).hex() == data


def test_encode_appends_what_is_left_over() -> None:
    assert encode(Layout("x", A), {"a": 1, "trailing": b"\7"}) == b"\1\7"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "x needs a value for a"),
        ({"a": 1, "z": 2}, "x has no z"),
        ({"a": 1, "text": "ab"}, "x.text: a is 1, not 2"),
        ({"a": 1, "text": "b", "fixed": b"1"}, "x.fixed takes 2 bytes, not 1"),
    ],
)
def test_encode_refuses_what_does_not_fit(values: dict[str, Any], reason: str) -> None:
    layout = Layout("x", A, Optional(Field("text", Text("a")), Optional(Field("fixed", Fixed(2)))))
    with pytest.raises(ValueError, match=reason):
        encode(layout, values)


def test_rows() -> None:
    layout = Layout(
        "x",
        Field("kind", u16, "what it is", labels=LABELS),
        Field("value", Choice("kind", {4: u64, 5: (Field("from", u8), Field("to", u8))}, otherwise=Text(i16, null=-1)), "depends"),
        Field("password", Text(u8), "of the user", secret=True),
        Field("streams", Array((Field("name", Text(i16)), Field("ids", Array(u64, i32))), i32)),
        Field("head", Bits(u8, ("magic", 4), ("flag", 1), ("rest", 3))),
        Optional(Field("properties", Sized(u32, Repeat((Field("key", Text(u8)),)))), Field("more", Rest())),
    )
    assert rows(layout) == [
        ("kind", "uint16", "what it is"),
        ("value", "uint64", "if kind is 4; depends"),
        ("from", "uint8", "if kind is 5"),
        ("to", "uint8", "if kind is 5"),
        ("value", "text, length int16 (-1 null)", "if any other kind; depends"),
        ("password", "text, length uint8", "of the user; secret"),
        ("streams", "array of object, count int32", ""),
        ("streams[].name", "text, length int16", ""),
        ("streams[].ids", "array of uint64, count int32", ""),
        ("head", "bits of uint8", ""),
        ("head.magic", "4 bits", ""),
        ("head.flag", "1 bit", ""),
        ("head.rest", "3 bits", ""),
        ("properties", "object, repeated to the end, length uint32", "if bytes are left"),
        ("properties[].key", "text, length uint8", ""),
        ("more", "bytes to the end", "if bytes are left"),
    ]


def test_layouts_know_whether_they_have_secrets() -> None:
    assert not Layout("x", A).secret
    assert Layout("x", A, Optional(Field("g", Array((Field("p", Text(u8), secret=True),), u8)))).secret
    assert Layout("x", A, Choice("a", {1: (Field("p", u8, secret=True),)})).secret
    assert Layout("x", Field("c", Custom(lambda *_: (0, 0), lambda *_: (0, 0), secret=True))).secret
    assert repr(Layout("x", kind="response")) == "<Layout x response>"
