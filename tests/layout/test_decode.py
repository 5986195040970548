"""Every word of the table language in both engines: what bytes become, in every style."""

from __future__ import annotations

import linecache
import struct
import traceback
from typing import Any

import pytest

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
    boolean,
    decoder,
    f32,
    f32le,
    f64,
    f64le,
    i8,
    i16,
    i16le,
    i32,
    i32le,
    i64,
    i64le,
    read,
    reader,
    u8,
    u16,
    u16le,
    u32,
    u32le,
    u64,
    u64le,
    u128,
    u128le,
    walk,
)
from streamdump.layout.generate import WALKED
from tests.support.layout_properties import generated

RAW = Style("raw", show_secrets=True)
LABELS = {1: "one", 2: "two"}


def both(data: str, *fields: Entry, style: Style = RAW) -> dict[str, Any]:
    """The fields of a frame in which both engines find nothing wrong."""
    layout = Layout("test", *fields)
    frame = bytes.fromhex(data)
    made = generated(layout, style)(b"\xff" + frame + b"\xff", 1, 1 + len(frame))
    walked = walk(layout, b"\xff" + frame + b"\xff", 1, 1 + len(frame), style)
    assert walked.fault is None
    assert not walked.notes
    assert made == walked.fields
    assert list(made) == list(walked.fields)
    return made


def one(kind: Type, data: str, style: Style = RAW) -> Any:
    return both(data, Field("x", kind), style=style)["x"]


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (u8, "fe", 254),
        (i8, "fe", -2),
        (u16, "fffe", 65534),
        (i16, "fffe", -2),
        (u32, "fffffffe", 4294967294),
        (i32, "fffffffe", -2),
        (u64, "ffffffffffffffff", 18446744073709551615),
        (i64, "fffffffffffffffe", -2),
        (u16le, "feff", 65534),
        (i16le, "feff", -2),
        (u32le, "01000000", 1),
        (i32le, "feffffff", -2),
        (u64le, "0100000000000000", 1),
        (i64le, "feffffffffffffff", -2),
        (u128, "00000000000000010000000000000000", "18446744073709551616"),
        (u128le, "01000000000000000000000000000080", "170141183460469231731687303715884105729"),
        (u128le, "ff" * 16, "340282366920938463463374607431768211455"),
        (f32, "3fc00000", 1.5),
        (f64, "bff8000000000000", -1.5),
        (f32le, "0000c03f", 1.5),
        (f64le, "000000000000f8bf", -1.5),
        (f32, "7fc00000", "NaN"),
        (f64, "7ff0000000000000", "Infinity"),
        (f64le, "000000000000f0ff", "-Infinity"),
        (boolean, "00", False),
        (boolean, "01", True),
    ],
)
def test_numbers(kind: Number, data: str, value: Any) -> None:
    assert one(kind, data) == value
    assert type(one(kind, data)) is type(value)
    assert one(Array(kind, u8), f"02 {data} {data}") == [value, value]
    assert one(Repeat(kind), f"{data} {data} {data}") == [value] * 3
    assert one(Array(kind, u8), "00") == one(Repeat(kind), "") == []


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (Text(u8), "03 616263", "abc"),
        (Text(i16), "0002 c3a9", "é"),
        (Text(i16, null=-1), "ffff", None),
        (Text(i16, null=-1), "0000", ""),
        (Text(u16, null=65535), "ffff", None),
        (Text(u16, null=65535), "0001 5c", "\\"),
        (Blob(i32), "00000002 0aff", b"\x0a\xff"),
        (Blob(i32, null=-1), "ffffffff", None),
        (Fixed(3), "010203", b"\1\2\3"),
        (Fixed(0), "", b""),
        (FixedText(3), "616263", "abc"),
        (Rest(), "0102", b"\1\2"),
        (Rest(), "", b""),
        (RestText(), "c3a9", "é"),
        (Array(Text(u8), i32), "00000002 00 0161", ["", "a"]),
        (Array(Array(u8, u8), u8), "02 00 020102", [[], [1, 2]]),
        (Array(Fixed(2), u8), "02 0102 0304", [b"\1\2", b"\3\4"]),
        (Repeat(Text(u8)), "0161 00", ["a", ""]),
        (Group(Field("a", u8), Field("b", Group(Field("c", Text(u8))))), "07 0161", {"a": 7, "b": {"c": "a"}}),
        (Array((Field("a", u8), Field("b", u16)), u8), "02 01 0002 03 0004", [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        (Sized(u16, (Field("a", u8), Field("b", Rest()))), "0003 01 0203", {"a": 1, "b": b"\2\3"}),
        (Sized(u8, Repeat(u16)), "04 0001 0002", [1, 2]),
        (Sized(u8, u32), "04 00000001", 1),
        (Bits(u8, ("magic", 4), ("version", 4)), "50", {"magic": 5, "version": 0}),
        (Bits(u16le, ("high", 1), ("kind", 3, LABELS), ("low", 12)), "01a0", {"high": 1, "kind": 2, "kind_label": "two", "low": 1}),
    ],
)
def test_values(kind: Type, data: str, value: Any) -> None:
    assert one(kind, data) == value


@pytest.mark.parametrize(
    ("style", "value", "text"),
    [
        (Style("hex"), "5c41ff", "abc"),
        (Style("base64"), "XEH/", "abc"),
        (Style("text"), "\\\\A\\xff", "abc"),
        (Style("omit"), "<3 bytes>", "abc"),
        (Style("raw"), b"\\A\xff", "abc"),
    ],
)
def test_bytes_in_every_style(style: Style, value: Any, text: str) -> None:
    assert one(Blob(u8), "03 5c41ff", style) == value
    assert one(Fixed(3), "5c41ff", style) == value
    assert one(Rest(), "5c41ff", style) == value
    assert one(Array(Fixed(3), u8), "01 5c41ff", style) == [value]
    assert one(Text(u8), "03 616263", style) == text


def test_one_byte_is_singular() -> None:
    assert one(Blob(u8), "01 ff", Style("omit")) == "<1 byte>"


def test_labels_stand_behind_their_value() -> None:
    fields = both(
        "0001 07 02 0109 0002",
        Field("code", u16, labels=LABELS),
        Field("odd", u8, labels=LABELS),
        Field("many", Array(u8, u8), labels=LABELS),
        Field("all", Repeat(u16), labels=LABELS),
    )
    assert list(fields.items()) == [
        ("code", 1),
        ("code_label", "one"),
        ("odd", 7),
        ("odd_label", None),
        ("many", [1, 9]),
        ("many_label", ["one", None]),
        ("all", [2]),
        ("all_label", ["two"]),
    ]


def test_choice_by_a_field_before_it() -> None:
    fields = (Field("type", u16, labels=LABELS), Field("offset", Choice("type", {4: u64, 5: i64})), Field("credit", u16))
    assert both("0004 000000000000000a 0001", *fields) == {"type": 4, "type_label": None, "offset": 10, "credit": 1}
    assert both("0005 ffffffffffffffff 0001", *fields)["offset"] == -1
    assert both("0001 0001", *fields) == {"type": 1, "type_label": "one", "credit": 1}


def test_choice_of_fields_goes_into_the_parent() -> None:
    fields = (
        Field("kind", u8),
        Choice("kind", {1: (Field("a", u8), Field("b", u8)), 2: ()}, otherwise=(Field("other", u16),)),
        Field("items", Array((Field("x", Choice("kind", {1: u8}, otherwise=u16)), Field("y", u8)), u8)),
    )
    assert both("01 02 03 01 05 06", *fields) == {"kind": 1, "a": 2, "b": 3, "items": [{"x": 5, "y": 6}]}
    assert both("02 00", *fields) == {"kind": 2, "items": []}
    assert both("03 0004 01 0005 06", *fields) == {"kind": 3, "other": 4, "items": [{"x": 5, "y": 6}]}


def test_choice_by_a_text() -> None:
    fields = (Field("op", Text(u8)), Field("value", Choice("op", {"put": u16, "": u8})))
    assert both("03 707574 0102", *fields) == {"op": "put", "value": 258}
    assert both("00 05", *fields) == {"op": "", "value": 5}


def test_optional_tail() -> None:
    fields = (Field("a", u8), Optional(Field("b", u8), Optional(Field("c", Text(u8)))))
    assert both("01", *fields) == {"a": 1}
    assert both("01 02", *fields) == {"a": 1, "b": 2}
    assert both("01 02 0161", *fields) == {"a": 1, "b": 2, "c": "a"}


def test_lengths_and_counts_from_earlier_fields() -> None:
    fields = (
        Field("headers_length", u32le),
        Field("payload_length", u8),
        Field("count", i8),
        Field("payload", Blob("payload_length")),
        Field("headers", Sized("headers_length", Repeat((Field("key", Text(u8)),)))),
        Field("rows", Array((Field("cells", Array(u16, "count")), Field("end", u8)), "count")),
    )
    read_back = both("03000000 02 01 aabb 0161 00 0102 ff", *fields)
    assert read_back["payload"] == b"\xaa\xbb"
    assert read_back["headers"] == [{"key": "a"}, {"key": ""}]
    assert read_back["rows"] == [{"cells": [258], "end": 255}]


def test_secrets() -> None:
    fields = (
        Field("user", Text(u8)),
        Field("password", Text(u8), secret=True),
        Field("data", Blob(i32, null=-1), secret=True),
        Field("pin", u16, secret=True, labels=LABELS),
        Field("block", Group(Field("a", u8), Field("b", Text(u8))), secret=True),
        Field("rest", Rest(), secret=True),
    )
    data = "0161 03 616263 ffffffff 0001 07 0162 0102"
    assert both(data, *fields) == {
        "user": "a",
        "password": "abc",
        "data": None,
        "pin": 1,
        "pin_label": "one",
        "block": {"a": 7, "b": "b"},
        "rest": b"\1\2",
    }
    assert both(data, *fields, style=Style()) == {
        "user": "a",
        "password": "<redacted 3 bytes>",
        "data": None,
        "pin": "<redacted 2 bytes>",
        "pin_label": None,
        "block": "<redacted 3 bytes>",
        "rest": "<redacted 2 bytes>",
    }


def test_a_secret_that_is_not_utf8_tells_nothing() -> None:
    assert both("02 ff41", Field("password", Text(u8), secret=True), style=Style()) == {"password": "<redacted 2 bytes>"}


def test_left_over_bytes_are_trailing() -> None:
    layout = Layout("test", Field("a", u8))
    assert generated(layout, Style())(b"\1\2\3", 0, 3) == {"a": 1, "trailing": "0203"}
    assert read(layout, b"\1\2\3", 0, 3, Style()) == ({"a": 1, "trailing": "0203"}, ["2 bytes left over"], None)
    assert read(layout, b"\1\2\3", 0, 1, Style()) == ({"a": 1}, [], None)
    secret = Layout("test", Field("a", u8, secret=True))
    assert generated(secret, Style())(b"\1\2\3", 0, 3)["trailing"] == "<redacted 2 bytes>"
    assert generated(secret, Style(show_secrets=True))(b"\1\2\3", 0, 3)["trailing"] == "0203"


def test_customs_and_readers_of_parts() -> None:
    pair = Group(Field("a", u8), Field("b", Text(u8)))

    def read_pair(buf: bytes, at: int, end: int, style: Style) -> tuple[Any, int]:
        return reader(pair, style)(buf, at, end)

    custom = Custom(read_pair, lambda buf, at, end, walker, name, depth: walker.value(pair, at, end, name, depth), "pair", 2)
    assert one(custom, "01 0161") == {"a": 1, "b": "a"}
    assert one(Array(custom, u8), "02 01 00 02 00") == [{"a": 1, "b": ""}, {"a": 2, "b": ""}]
    assert one(Repeat((Field("pair", custom), Field("x", u8))), "01 00 05") == [{"pair": {"a": 1, "b": ""}, "x": 5}]
    with pytest.raises(UNREADABLE):
        read_pair(b"\1\5abcdefg", 0, 4, RAW)


@pytest.mark.parametrize(
    "kind", [Array(u64, i32), Array(Text(i16), i32), Array((Field("a", u8), Field("b", Text(i16))), u32), Blob(i32), Sized(u32, Rest())]
)
@pytest.mark.parametrize("count", ["7fffffff", "ffffffff", "80000000"])
def test_counts_are_compared_before_anything_is_made(kind: Type, count: str) -> None:
    frame = bytes.fromhex(count) + bytes(80)
    with pytest.raises(UNREADABLE):
        generated(Layout("test", Field("x", kind)), RAW)(frame, 0, len(frame))


def test_the_next_frame_is_not_read() -> None:
    for kind in (u64, Array(u8, u8), Text(u8), Repeat(u16), Fixed(4), Group(Field("a", u32))):
        layout = Layout("test", Field("x", kind))
        with pytest.raises(UNREADABLE):
            generated(layout, RAW)(b"\3abcdefghijk", 0, 3)


def test_decoders_are_made_once_and_show_their_source() -> None:
    layout = Layout("test", Field("name", Text(u8)))
    decode = decoder(layout, RAW)
    walks = decode.__code__
    assert decoder(layout, RAW) is decode
    assert decoder(layout, Style()) is not decode
    for _ in range(WALKED):
        assert decode(b"\1a", 0, 2) == {"name": "a"}
        assert decode.__code__ is walks
    linecache.checkcache()
    with pytest.raises((struct.error, IndexError)) as caught:
        decode(b"", 0, 0)
    assert "= buf[at]" in "".join(traceback.format_tb(caught.tb))
