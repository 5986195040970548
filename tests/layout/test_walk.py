"""The walk: byte ranges, what is wrong and where, what is kept, what is hidden."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from streamdump.errors import Malformed
from streamdump.layout import (
    Array,
    Blob,
    Choice,
    Custom,
    Entry,
    Field,
    Fixed,
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
    Walked,
    Walker,
    boolean,
    fast_walk,
    i16,
    i32,
    u8,
    u16,
    u32,
    u64,
    walk,
)
from streamdump.layout.spans import WALKED, span_reader
from streamdump.model import Fault
from tests.support.encoder import encode
from tests.support.layout_properties import check_tiles

RAW = Style("raw", show_secrets=True)
STRING = Text(i16, null=-1)
PASSWORD = Field("password", Text(u8), secret=True)


def walked(data: str, *fields: Entry, style: Style = RAW, missing: str | None = None) -> Walked:
    frame = bytes.fromhex(data)
    found = walk(Layout("test", *fields), b"\xee" * 5 + frame + b"\xee" * 50, 5, 5 + len(frame), style, missing)
    check_tiles(found, len(frame))
    return found


def faulty(data: str, *fields: Entry, style: Style = RAW, missing: str | None = None) -> tuple[dict[str, Any], str, int, str]:
    found = walked(data, *fields, style=style, missing=missing)
    assert found.fault is not None
    return found.fields, found.fault.field, found.fault.offset, found.fault.reason


def test_the_example_of_a_length_that_is_too_long() -> None:
    found = walked(
        "0000001a 0001 0001 00000001 07 000f 6f72646572732d7772697465722d31 0006 6f7264",
        Field("size", u32),
        Field("key", u16),
        Field("version", u16),
        Field("correlation_id", u32),
        Field("publisher_id", u8),
        Field("reference", STRING),
        Field("stream", STRING),
    )
    assert found.fault == Fault("stream", 30, "length says 6 bytes, 3 left")
    assert [(span.name, span.offset, span.length) for span in found.spans[-2:]] == [("reference", 13, 17), ("undecoded", 30, 5)]
    assert found.fields["reference"] == "orders-writer-1"


def test_a_count_that_cannot_be_true() -> None:
    assert faulty("01 7fffffff" + "00" * 80, Field("id", u8), Field("ids", Array(u64, i32))) == (
        {"id": 1},
        "ids",
        1,
        "count says 2147483647 of uint64, 80 bytes left",
    )
    assert faulty("ffffffff", Field("ids", Array(u64, i32)))[3] == "count is -1"
    assert faulty("00000003 0000 0000 00", Field("all", Array(STRING, i32)))[1:] == (
        "all",
        0,
        "count says 3 items of at least 2 bytes, 5 bytes left",
    )


@pytest.mark.parametrize(
    ("data", "kind", "offset", "reason"),
    [
        ("01", u16, 0, "uint16 takes 2 bytes, 1 left"),
        ("", u8, 0, "uint8 takes 1 byte, 0 left"),
        ("00", STRING, 0, "int16 takes 2 bytes, 1 left"),
        ("fffe", STRING, 0, "length is -2"),
        ("ffff", Text(i16), 0, "length is -1"),
        ("05 01", Blob(u8), 0, "length says 5 bytes, 1 left"),
        ("0102", Fixed(3), 0, "takes 3 bytes, 2 left"),
        ("0102 03", Repeat(u16), 2, "uint16 takes 2 bytes, 1 left"),
        ("05 0102", Sized(u8, Rest()), 0, "length says 5 bytes, 2 left"),
        ("03 0001 02", Sized(u8, u16), 3, "1 byte left over"),
    ],
)
def test_reasons(data: str, kind: Any, offset: int, reason: str) -> None:
    assert faulty(data, Field("x", kind))[2:] == (offset, reason)


def test_a_length_in_another_field() -> None:
    fields = (Field("n", Number("int8", "b", 1, signed=True)), Field("data", Blob("n")))
    assert faulty("05 01", *fields) == ({"n": 5}, "data", 1, "length says 5 bytes, 1 left")
    assert faulty("fb 01", *fields)[3] == "length is -5"


def test_paths_go_down_to_the_field_and_half_read_arrays_are_kept() -> None:
    fields = (
        Field("before", u8),
        Field("messages", Array((Field("id", u8), Field("inner", Group(Field("x", u8), Field("bodies", Array(Text(u8), u8))))), u8)),
        Field("after", u8),
    )
    assert faulty("07 02 01 02 01 0161 05 06 02 0162 09 63", *fields) == (
        {"before": 7, "messages": [{"id": 1, "inner": {"x": 2, "bodies": ["a"]}}, {"id": 5, "inner": {"x": 6, "bodies": ["b"]}}]},
        "messages[1].inner.bodies[1]",
        12,
        "length says 9 bytes, 1 left",
    )


def test_an_object_without_a_whole_field_is_not_kept() -> None:
    fields, path, _, _ = faulty("01 0000 00", Field("all", Repeat((Field("a", u8), Field("b", u16)))))
    assert (fields, path) == ({"all": [{"a": 1, "b": 0}, {"a": 0}]}, "all[1].b")
    fields, path, _, _ = faulty("05", Field("g", Group(Field("a", u16))))
    assert (fields, path) == ({}, "g.a")
    fields, path, _, _ = faulty("01 0002 0003", Field("all", Repeat((Field("a", Fixed(3)),))))
    assert (fields, path) == ({"all": [{"a": b"\1\0\2"}]}, "all[1].a")


def test_text_that_is_not_utf8_is_noted() -> None:
    found = walked("04 5cff4142", Field("name", Text(u8)))
    assert (found.fields, found.notes, found.fault) == ({"name": "\\\\\\xffAB"}, ["name is not UTF-8"], None)
    assert walked("c3", Field("rest", RestText())).fields == {"rest": "\\xc3"}
    found = walked("01 01 ff", Field("all", Array((Field("key", Text(u8)),), u8)))
    assert found.notes == ["all[0].key is not UTF-8"]


def test_a_boolean_that_is_none_keeps_its_number() -> None:
    found = walked("07", Field("active", boolean))
    assert (found.fields, found.notes) == ({"active": 7}, ["active is 7, neither 0 nor 1"])


def test_bytes_left_over() -> None:
    found = walked("01 02", Field("a", u8))
    assert (found.fields, found.notes) == ({"a": 1, "trailing": b"\2"}, ["1 byte left over"])
    found = walked("03 01 0203 09", Field("inner", Sized(u8, (Field("a", u8),))), Field("b", u8))
    assert found.fields == {"inner": {"a": 1, "trailing": b"\2\3"}, "b": 9}
    assert found.notes == ["2 bytes left over in inner"]


def test_spans_of_objects_and_arrays() -> None:
    found = walked(
        "02 01 0161 02 0162 0001",
        Field("all", Array((Field("id", u8), Field("name", Text(u8))), u8)),
        Field("code", u16, labels={1: "OK"}),
    )
    assert [(span.name, span.offset, span.length, span.depth, span.leaf, span.value, span.label) for span in found.spans] == [
        ("all", 0, 7, 0, False, None, None),
        ("count", 0, 1, 1, True, 2, None),
        ("all[0]", 1, 3, 1, False, None, None),
        ("id", 1, 1, 2, True, 1, None),
        ("name", 2, 2, 2, True, "a", None),
        ("all[1]", 4, 3, 1, False, None, None),
        ("id", 4, 1, 2, True, 2, None),
        ("name", 5, 2, 2, True, "b", None),
        ("code", 7, 2, 0, True, 1, "OK"),
    ]


def test_fields_of_a_choice_have_the_depth_of_their_parent() -> None:
    found = walked("01 02 03", Field("kind", u8), Choice("kind", {1: (Field("a", u8),)}), Optional(Field("b", u8)))
    assert [(span.name, span.depth) for span in found.spans] == [("kind", 0), ("a", 0), ("b", 0)]


# Secrets


def test_secrets_are_flagged_and_hidden() -> None:
    found = walked("0161 03 616263", Field("user", Text(u8)), PASSWORD, style=Style())
    assert [(span.name, span.value, span.secret) for span in found.spans] == [
        ("user", "a", False),
        ("password", "<redacted 3 bytes>", True),
    ]
    shown = walked("0161 03 616263", Field("user", Text(u8)), PASSWORD)
    assert [(span.name, span.value, span.secret) for span in shown.spans] == [("user", "a", False), ("password", "abc", True)]


@pytest.mark.parametrize("data", ["09 616263", "01 61 09 616263", "01 61 02 6263 64 0505"])
def test_what_is_undecoded_of_a_layout_with_secrets_is_hidden(data: str) -> None:
    fields = (Field("user", Text(u8)), PASSWORD, Field("tail", Repeat(u16)))
    found = walked(data, *fields, style=Style())
    assert found.fault is not None
    assert (found.spans[-1].name, found.spans[-1].secret) == ("undecoded", True)
    assert found.spans[-1].value == f"<redacted {found.spans[-1].length} bytes>"
    assert walked(data, *fields, style=RAW).spans[-1].secret


def test_damage_inside_a_secret_of_several_parts_shows_none_of_them() -> None:
    field = Field("auth", Group(Field("user", Text(u8)), Field("password", Text(u8))), secret=True)
    found = walked("01 61 09 6263", field, style=Style())
    assert found.fields == {}
    assert [(span.name, span.secret) for span in found.spans] == [("undecoded", True)]
    assert found.fault == Fault("auth.password", 2, "length says 9 bytes, 2 left")
    shown = walked("01 61 09 6263", field)
    assert shown.fields == {"auth": {"user": "a"}}
    assert all(span.secret for span in shown.spans)


def test_trailing_bytes_of_a_layout_with_secrets_are_hidden() -> None:
    found = walked("01 61 6263", PASSWORD, style=Style())
    assert found.fields == {"password": "<redacted 1 bytes>", "trailing": "<redacted 2 bytes>"}
    assert found.spans[-1].secret


# Lost bytes

LOST = "1448 bytes lost"


def test_lost_bytes_are_the_reason() -> None:
    fields = (Field("a", u8), Field("ids", Array(u16, u32)), Field("b", STRING))
    whole = encode(Layout("whole", *fields), {"a": 1, "ids": [1, 2, 3], "b": "abc"}).hex()
    assert faulty(whole[:2], *fields, missing=LOST) == ({"a": 1}, "ids", 1, LOST)
    assert faulty(whole[:16], *fields, missing=LOST) == ({"a": 1, "ids": [1]}, "ids[1]", 7, LOST)
    assert faulty(whole[:22], *fields, missing=LOST) == ({"a": 1, "ids": [1, 2, 3]}, "b", 11, LOST)
    assert faulty(whole, *fields, missing=LOST)[1:] == ("trailing", 16, LOST)


def test_what_reaches_to_the_end_is_not_whole_when_bytes_are_lost() -> None:
    assert faulty("01 0203", Field("a", u8), Field("rest", Rest()), missing=LOST) == ({"a": 1, "rest": b"\2\3"}, "rest", 3, LOST)
    assert faulty("6162", Field("rest", RestText()), missing=LOST) == ({"rest": "ab"}, "rest", 2, LOST)
    assert faulty("0102", Field("all", Repeat(u8)), missing=LOST) == ({"all": [1, 2]}, "all[2]", 2, LOST)
    assert faulty("01", Field("a", u8), Optional(Field("b", u8)), missing=LOST) == ({"a": 1}, "b", 1, LOST)


def test_lost_bytes_in_a_region_leave_what_is_there() -> None:
    region = Field("region", Sized(u8, (Field("a", u8), Field("b", Text(u8)), Field("c", u8))))
    assert faulty("09 01 0161", region, missing=LOST) == ({"region": {"a": 1, "b": "a"}}, "region.c", 4, LOST)
    # A region that is whole is wrong by itself.
    assert faulty("02 01 09 05", region, missing=LOST)[1:] == ("region.b", 2, "length says 9 bytes, 0 left")


def test_a_negative_length_is_wrong_whatever_is_lost() -> None:
    assert faulty("fff0 00", Field("a", STRING), missing=LOST)[3] == "length is -16"


def test_a_huge_count_with_lost_bytes_ends() -> None:
    stuck = Custom(lambda buf, at, end, style: (None, at), lambda buf, at, end, walker, name, depth: (None, at), minimum=1)
    assert faulty("7fffffff 00", Field("all", Array(stuck, u32)), missing=LOST)[1:] == ("all[0]", 4, "takes no bytes")
    assert faulty("00", Field("all", Repeat(stuck)))[1:] == ("all[0]", 0, "takes no bytes")


# Parts written by hand


def test_customs_say_where_the_damage_is_and_keep_what_they_read() -> None:
    def read_pairs(buf: bytes, at: int, end: int, style: Style) -> tuple[Any, int]:
        raise ValueError

    def walk_pairs(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[Any, int]:
        found: list[int] = []
        walker.open(name, at, depth)
        walker.keep(found)
        number, at = walker.value(u8, at, end, "number", depth + 1)
        found.append(number)
        walker.note(f"{walker.where()} is odd")
        raise walker.malformed(at, "bad", "entries[2]", "body")

    found = walked("01 05 06", Field("a", u8), Field("chunk", Custom(read_pairs, walk_pairs)))
    assert found.fault == Fault("chunk.entries[2].body", 2, "bad")
    assert found.fields == {"a": 1, "chunk": [5]}
    assert found.notes == ["chunk is odd"]
    assert [(span.name, span.offset, span.length, span.depth) for span in found.spans] == [
        ("a", 0, 1, 0),
        ("chunk", 1, 1, 0),
        ("number", 1, 1, 1),
        ("undecoded", 2, 1, 0),
    ]


@pytest.mark.parametrize("error", [ValueError("x"), IndexError("x"), KeyError("x"), struct.error("x")])
def test_what_a_custom_raises_becomes_a_fault(error: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise error

    assert faulty("01 02", Field("a", u8), Field("b", Custom(fail, fail))) == ({"a": 1}, "b", 1, "cannot be read")


def test_a_custom_that_goes_too_far_is_a_fault() -> None:
    far = Custom(lambda buf, at, end, style: (1, at + 9), lambda buf, at, end, walker, name, depth: (1, at + 9))
    assert faulty("01", Field("b", far))[1:] == ("b", 0, "takes 9 bytes, 1 left")


def test_a_custom_may_try_one_reading_and_then_another() -> None:
    def walk_either(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[Any, int]:
        mark = walker.mark()
        try:
            return walker.value((Field("a", u8), Field("b", Text(u8))), at, end, name, depth)
        except Malformed:
            walker.back(mark)
        return walker.value(Rest(), at, end, name, depth)

    either = Custom(lambda buf, at, end, style: (None, end), walk_either)
    assert walked("01 0161", Field("x", either)).fields == {"x": {"a": 1, "b": "a"}}
    found = walked("01 0961", Field("x", either))
    assert (found.fields, found.notes, found.fault) == ({"x": b"\x01\x09a"}, [], None)
    assert [span.name for span in found.spans] == ["x"]


def test_a_custom_can_read_secrets_through_the_walker() -> None:
    def walk_it(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[Any, int]:
        return walker.value(Text(u8), at, end, name, depth, secret=True)

    custom = Custom(lambda buf, at, end, style: (None, end), walk_it, secret=True)
    found = walked("02 6162 09", Field("x", custom), style=Style())
    assert found.fields == {"x": "<redacted 2 bytes>", "trailing": "<redacted 1 bytes>"}
    assert all(span.secret for span in found.spans)


def test_another_buffer() -> None:
    found = walk(Layout("test", Field("a", u16)), b"\1", 0, 1, RAW, buffer="unpacked")
    assert found.fault == Fault("a", 0, "uint16 takes 2 bytes, 1 left", "unpacked")
    assert {span.buffer for span in found.spans} == {"unpacked"}


def test_a_layout_with_many_frames_is_read_by_what_is_made_of_it() -> None:
    layout = Layout("often", Field("ids", Array((Field("id", u8), Field("name", STRING)), u8)), Field("rest", Rest()))
    good, bad = bytes.fromhex("02 01 0002 6869 02 ffff 77"), bytes.fromhex("02 01 0009 6869")
    for data in (*(good,) * (WALKED + 2), bad, good + b"\0"):
        found, exact = (read(layout, b"\xee" + data, 1, 1 + len(data), RAW) for read in (fast_walk, walk))
        assert (found.fields, list(found.spans), found.notes, found.fault) == (exact.fields, list(exact.spans), exact.notes, exact.fault)
    made = span_reader(layout, RAW)(good, 0, len(good), "frame")
    assert made == (exact.fields | {"rest": b"w"}, walk(layout, good, 0, len(good), RAW).spans)
