"""AMQP 1.0 message bodies: every type, every section, and everything that is none."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamdump.protocols.rabbitmq import amqp
from streamdump.quota import Spans, ValueQuota


def stopped(data: bytes, at: int, end: int, values: ValueQuota, spans: Spans | None = None) -> tuple[list[dict[str, Any]], int, str]:
    """The sections, and where and why they stop; at their end with no reason."""
    try:
        return amqp.read(data, at, end, bytes.hex, values, spans), end, ""
    except amqp.Stopped as stop:
        return stop.sections, stop.at, stop.reason


def read(data: bytes | str, limit: int = 10_000, bare: int = 1_000) -> list[dict[str, Any]]:
    """The sections, with other bytes around them, and with spans that tile them as far as they go."""
    if isinstance(data, str):
        data = bytes.fromhex(data)
    around = b"\x00\x53\x75" + data + b"\x00\x53\x75\xa0\x01z"
    spans = Spans()
    values, again = ValueQuota(limit, bare), ValueQuota(limit, bare)
    sections, end, why = stopped(around, 3, 3 + len(data), values, spans)
    assert stopped(around, 3, 3 + len(data), again) == (sections, end, why)
    assert (values.left, values.empty) == (again.left, again.empty)
    at = 3
    for span in spans:
        if span.leaf:
            assert span.offset == at
            at += span.length
    assert at == end
    for index, span in enumerate(spans):
        inside = [below for below in spans[index + 1 :] if below.offset < span.offset + span.length] if not span.leaf else []
        assert all(below.offset + below.length <= span.offset + span.length for below in inside)
    json.dumps(sections, allow_nan=False)
    return sections


def value(data: str) -> Any:
    """One value, as the body of an amqp-value section."""
    (section,) = read("005377" + data.replace(" ", ""))
    assert section["section"] == "amqp-value"
    return section["value"]


DESCRIBED = {"descriptor": {"type": "symbol", "value": "a"}, "value": {"type": "int", "value": 7}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("40", None),
        ("41", True),
        ("42", False),
        ("43", {"type": "uint", "value": 0}),
        ("44", {"type": "ulong", "value": 0}),
        ("45", []),
        ("50 ff", {"type": "ubyte", "value": 255}),
        ("51 ff", {"type": "byte", "value": -1}),
        ("52 ff", {"type": "uint", "value": 255}),
        ("53 ff", {"type": "ulong", "value": 255}),
        ("54 ff", {"type": "int", "value": -1}),
        ("55 ff", {"type": "long", "value": -1}),
        ("56 01", True),
        ("56 00", False),
        ("60 ffff", {"type": "ushort", "value": 65535}),
        ("61 ffff", {"type": "short", "value": -1}),
        ("70 ffffffff", {"type": "uint", "value": 2**32 - 1}),
        ("71 ffffffff", {"type": "int", "value": -1}),
        ("72 3fc00000", {"type": "float", "value": 1.5}),
        ("72 7fc00000", {"type": "float", "value": "NaN"}),
        ("73 0001f600", {"type": "char", "value": "\U0001f600"}),
        ("74 22500001", {"type": "decimal32", "value": "22500001"}),
        ("80 ffffffffffffffff", {"type": "ulong", "value": 2**64 - 1}),
        ("81 ffffffffffffffff", {"type": "long", "value": -1}),
        ("82 fff0000000000000", {"type": "double", "value": "-Infinity"}),
        ("82 7ff0000000000000", {"type": "double", "value": "Infinity"}),
        ("83 ffffffffffffffff", {"type": "timestamp", "value": -1}),
        ("84 2238000000000001", {"type": "decimal64", "value": "2238000000000001"}),
        ("94 22080000000000000000000000000001", {"type": "decimal128", "value": "22080000000000000000000000000001"}),
        ("98 00112233445566778899aabbccddeeff", {"type": "uuid", "value": "00112233-4455-6677-8899-aabbccddeeff"}),
        ("a0 02 beef", {"type": "binary", "value": "beef"}),
        ("b0 00000002 beef", {"type": "binary", "value": "beef"}),
        ("a1 03 c3a961", "éa"),
        ("b1 00000001 61", "a"),
        ("a3 01 61", {"type": "symbol", "value": "a"}),
        ("b3 00000001 61", {"type": "symbol", "value": "a"}),
        ("c0 04 03 40 41 42", [None, True, False]),
        ("d0 00000006 00000002 4041", [None, True]),
        ("c1 05 02 a10161 41", [{"key": "a", "value": True}]),
        ("c1 01 00", {"type": "map", "value": []}),
        ("d1 00000006 00000002 4341", [{"key": {"type": "uint", "value": 0}, "value": True}]),
        ("e0 04 02 50 0102", {"type": "array", "value": [{"type": "ubyte", "value": 1}, {"type": "ubyte", "value": 2}]}),
        ("e0 04 02 a1 0000", {"type": "array", "value": ["", ""]}),
        ("f0 00000007 00000001 c0 0100", {"type": "array", "value": [[]]}),
        ("e0 02 00 50", {"type": "array", "value": []}),
        ("e0 02 03 41", {"type": "array", "value": [True, True, True]}),
        (
            "e0 07 01 00 a30161 54 07",
            {"type": "array", "value": [{"type": "described", "value": DESCRIBED}]},
        ),
        (
            "00 a30161 54 07",
            {"type": "described", "value": DESCRIBED},
        ),
    ],
)  # fmt: skip
def test_every_type(data: str, expected: Any) -> None:
    assert value(data) == expected


def test_every_section() -> None:
    sections = read(
        "005370 c0 07 05 41 5004 43 42 43"
        "005371 c1 05 02 a30161 41"
        "005372 c1 06 02 a30161 5407"
        "005373 c0 0b 04 a10131 a00175 40 a10173"
        "005374 c1 06 02 a10161 5407"
        "005375 a002 beef"
        "005375 b0 00000001 78"
        "005376 c0 03 02 41 42"
        "005378 c1 05 02 a30161 41"
    )
    assert sections == [
        {
            "section": "header",
            "value": {"durable": True, "priority": 4, "ttl": 0, "first_acquirer": False, "delivery_count": 0},
        },
        {"section": "delivery-annotations", "value": [{"key": "a", "value": True}]},
        {"section": "message-annotations", "value": [{"key": "a", "value": {"type": "int", "value": 7}}]},
        {"section": "properties", "value": {"message_id": "1", "user_id": "75", "to": None, "subject": "s"}},
        {"section": "application-properties", "value": [{"key": "a", "value": {"type": "int", "value": 7}}]},
        {"section": "data", "value": "beef"},
        {"section": "data", "value": "78"},
        {"section": "amqp-sequence", "value": [True, False]},
        {"section": "footer", "value": [{"key": "a", "value": True}]},
    ]


def test_other_spellings_of_a_descriptor() -> None:
    data = [{"section": "data", "value": "61"}]
    assert read("00 80 0000000000000075 a00161".replace(" ", "")) == data
    symbol = b"amqp:data:binary"
    assert read(b"\x00\xa3" + bytes([len(symbol)]) + symbol + b"\xa0\x01a") == data
    assert read(b"\x00\xb3" + struct.pack(">I", len(symbol)) + symbol + b"\xa0\x01a") == data


def test_a_field_of_another_type_than_declared_keeps_it() -> None:
    assert read("005373 c0 03 01 5305") == [{"section": "properties", "value": {"message_id": {"type": "ulong", "value": 5}}}]
    assert read("005370 c0 03 01 5305") == [{"section": "header", "value": {"durable": {"type": "ulong", "value": 5}}}]


def test_what_json_would_not_tell_from_the_declared_type_keeps_its_own() -> None:
    string = {"type": "string", "value": "a"}
    nothing = "40 " * 6
    properties = {"message_id": None, "user_id": None, "to": None, "subject": None, "reply_to": None, "correlation_id": None}
    assert read("005373 c0 0b 08" + nothing + "a10161 40") == [
        {"section": "properties", "value": {**properties, "content_type": string, "content_encoding": None}}
    ]
    assert read("005373 c0 0a 07" + nothing + "a30161") == [{"section": "properties", "value": {**properties, "content_type": "a"}}]
    assert read("005370 c0 02 01 45") == [{"section": "header", "value": {"durable": {"type": "list", "value": []}}}]
    # the message id has no type of its own, and keys of application properties are strings
    assert read("005373 c0 04 01 a10161") == [{"section": "properties", "value": {"message_id": "a"}}]
    assert read("005374 c1 05 02 a10161 41") == [{"section": "application-properties", "value": [{"key": "a", "value": True}]}]
    # those of annotations are symbols
    assert read("005372 c1 05 02 a10161 41") == [{"section": "message-annotations", "value": [{"key": string, "value": True}]}]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("00", "no descriptor|beyond the message"),
        ("01537540", "another byte than 0"),
        ("004075a000", "no descriptor"),
        ("005379a000", "unknown section"),
        ("005375", "unknown section"),
        ("005375a1 0161", "string where binary"),
        ("005375a0 0261", "2 bytes where 1 are left"),
        ("005375b0 ffffffff 61", "4294967295 bytes where 1 are left"),
        ("00537540", "null where binary"),
        ("005374c0 0100", "list where map"),
        ("005377", "unknown section"),
        ("005377 5602", "boolean 2"),
        ("005377 73 0000d800", "char 0xd800"),
        ("005377 a102 c328", "not UTF-8"),
        ("005377 a302 61", "2 bytes where 1 are left"),
        ("005377 c0 0502 41", "size of 5"),
        ("005377 c0 0203 41", "count says 3"),
        ("005377 c0 0301 4141", "longer than its items"),
        ("005377 c1 0201 41", "1 keys and values"),
        ("005377 d0 00000003 00000000", "size of 3"),
        ("005377 e0 0101", "no constructor"),
        ("005377 f0 00000006 00000003 50 00", "array of 3 items in 1 bytes"),
        ("005377 99", "type 0x99 is not known"),
        ("005370 c0 0706 414141414141", "6 fields of at most 5"),
    ],
)
def test_what_is_no_message(data: str, why: str) -> None:
    with pytest.raises(amqp.NotAmqp, match=why):
        read(data)


@pytest.mark.parametrize(
    ("data", "shown", "note"),
    [
        ("005374 c1 0b 02 a104 6e616d65 a102 4dfc", [{"key": "name", "value": "M\\xfc"}], "string in application-properties"),
        ("005374 c1 07 02 a103 61ff5c 41", [{"key": "a\\xff\\\\", "value": True}], "string in application-properties"),
        ("005372 c1 05 02 a301ff 41", [{"key": "\\xff", "value": True}], "symbol in message-annotations"),
        ("005373 c0 09 03 40 40 b100000001e9", {"message_id": None, "user_id": None, "to": "\\xe9"}, "string in properties"),
    ],
)
def test_text_that_is_not_utf8_costs_only_itself(data: str, shown: Any, note: str) -> None:
    body = bytes.fromhex(data)
    notes: list[str] = []
    sections = amqp.read(body + body, 0, 2 * len(body), bytes.hex, notes=notes)
    assert [one["value"] for one in sections] == [shown, shown]
    assert notes == [f"{note} is not UTF-8"]


@pytest.mark.parametrize("shape", ["list", "map", "array", "described"])
def test_deep_nesting_is_refused_without_recursion(shape: str) -> None:
    body = b"\x40"
    for _ in range(10_000):
        if shape == "list":
            body = b"\xd0" + struct.pack(">II", len(body) + 4, 1) + body
        elif shape == "map":
            body = b"\xd1" + struct.pack(">II", len(body) + 5, 2) + b"\x40" + body
        elif shape == "array":
            body = b"\xf0" + struct.pack(">II", len(body) + 4, 1) + body
        else:
            body = b"\x00\x44" + body
    with pytest.raises(amqp.NotAmqp, match="nested deeper than 48 levels"):
        amqp.read(b"\x00\x53\x77" + body, 0, len(body) + 3, bytes.hex)


def test_forty_levels_are_read() -> None:
    body = b"\x41"
    for _ in range(40):
        body = b"\xc0" + bytes([len(body) + 1, 1]) + body
    expected: Any = True
    for _ in range(40):
        expected = [expected]
    assert read(b"\x00\x53\x77" + body)[0]["value"] == expected


# What is written is read


def _wide(kind: str, body: bytes, count: int) -> bytes:
    code = {"list": 0xD0, "map": 0xD1}[kind]
    return bytes([code]) + struct.pack(">II", len(body) + 4, count) + body


def _pair(number: bytes, kind: str, told: int) -> tuple[bytes, Any]:
    return number, {"type": kind, "value": told}


_scalars = (
    st.sampled_from([(b"\x40", None), (b"\x41", True), (b"\x42", False), (b"\x45", [])])
    | st.text(max_size=20).map(lambda one: (b"\xb1" + struct.pack(">I", len(one.encode())) + one.encode(), one))
    | st.integers(0, 2**64 - 1).map(lambda one: _pair(b"\x80" + struct.pack(">Q", one), "ulong", one))
    | st.integers(-(2**31), 2**31 - 1).map(lambda one: _pair(b"\x71" + struct.pack(">i", one), "int", one))
    | st.binary(max_size=20).map(lambda one: (b"\xa0" + bytes([len(one)]) + one, {"type": "binary", "value": one.hex()}))
)


def _lists(inner: st.SearchStrategy[tuple[bytes, Any]]) -> st.SearchStrategy[tuple[bytes, Any]]:
    return st.lists(inner, max_size=4).map(
        lambda items: (_wide("list", b"".join(one for one, _ in items), len(items)), [told for _, told in items])
    )


def _maps(inner: st.SearchStrategy[tuple[bytes, Any]]) -> st.SearchStrategy[tuple[bytes, Any]]:
    return st.lists(st.tuples(inner, inner), max_size=3).map(
        lambda items: (
            _wide("map", b"".join(key[0] + one[0] for key, one in items), 2 * len(items)),
            [{"key": key[1], "value": one[1]} for key, one in items] or {"type": "map", "value": []},
        )
    )


@given(st.recursive(_scalars, lambda inner: _lists(inner) | _maps(inner), max_leaves=12))
def test_what_is_written_is_read(one: tuple[bytes, Any]) -> None:
    data, told = one
    assert read(b"\x00\x53\x77" + data) == [{"section": "amqp-value", "value": told}]


@given(st.binary(max_size=60), st.sampled_from(range(0x70, 0x79)))
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", 0x77)
def test_any_bytes_are_read_or_refused(data: bytes, code: int) -> None:
    try:
        read(b"\x00\x53" + bytes([code]) + data)
    except amqp.NotAmqp:
        with pytest.raises(amqp.NotAmqp):
            stopped(b"\x00\x53" + bytes([code]) + data, 0, len(data) + 3, ValueQuota(10_000, 1_000))


@given(st.recursive(_scalars, lambda inner: _lists(inner) | _maps(inner), max_leaves=12), st.integers(0, 30))
def test_values_stop_at_the_same_place_with_spans_and_without(one: tuple[bytes, Any], limit: int) -> None:
    data, told = one
    found = read(b"\x00\x53\x77" + data, limit)
    whole = [{"section": "amqp-value", "value": told}]
    assert made(found) <= limit
    assert found == whole or made(found) + 3 > limit


def made(one: Any) -> int:
    """The values in lists: elements, and pairs with their keys and values."""
    if isinstance(one, list):
        return sum(1 + made(inner) for inner in one)
    if isinstance(one, dict):
        return (2 if one.keys() == {"key", "value"} else 0) + sum(map(made, one.values()))
    return 0


def array(constructor: str, count: int, items: str = "") -> str:
    body = struct.pack(">I", count) + bytes.fromhex(constructor + items)
    return f"f0 {struct.pack('>I', len(body)).hex()} {body.hex()}"


def stop_of(data: str, limit: int, bare: int) -> tuple[Any, int, str, ValueQuota]:
    """The value as far as it goes, where in the section it stops, and why."""
    section = bytes.fromhex("005377" + data)
    values = ValueQuota(limit, bare)
    read(section, limit, bare)
    sections, at, why = stopped(section, 0, len(section), values)
    return sections[0]["value"], at, why, values


@pytest.mark.parametrize("code", ["40", "41", "42", "43", "44", "45"])
def test_values_without_bytes_are_made_up_to_the_limit_of_the_conversation(code: str) -> None:
    value, at, why, values = stop_of(array(code, (1 << 32) - 1), 10_000, 500)
    assert len(value["value"]) == 500
    assert at == len(bytes.fromhex("005377" + array(code, 7)))
    assert why == f"count says {(1 << 32) - 1}, of a conversation no more than 500 values without bytes are made"
    assert (values.left, values.empty) == (10_000 - 501, 0)
    value, _, why, _ = stop_of(array(code, 300), 10_000, 500)
    assert (len(value["value"]), why) == (300, "")


@pytest.mark.parametrize(
    ("data", "kept", "declared"),
    [
        ("d0 0000000f 0000000b" + "40" * 11, 8, 11),
        ("d0 0000000f 0000000b" + "43" * 11, 8, 11),
        ("c0 0c 0b" + "40" * 11, 8, 11),
        ("d1 00000010 0000000c" + "40" * 12, 2, 12),
        (array("50", 11, "07" * 11), 8, 11),
        (array("0044 50", 11, "07" * 11), 2, 11),
    ],
)
def test_values_of_a_frame_are_made_up_to_the_limit(data: str, kept: int, declared: int) -> None:
    """One of nine is the section."""
    value, _, why, values = stop_of(data, 9, 500)
    assert len(value["value"] if isinstance(value, dict) else value) == kept
    assert why == f"count says {declared}, of a frame no more than 9 values are made"
    assert values.left == 0


def test_what_is_in_others_counts_for_the_same_frame() -> None:
    five = "c0 06 05" + "40" * 5
    value, at, why, _ = stop_of(f"d0 {4 + 3 * 8:08x} 00000003" + five * 3, 12, 500)
    assert value == [[None] * 5, [None] * 4]
    assert why == "count says 5, of a frame no more than 12 values are made"
    assert at == 3 + 9 + 8 + 3 + 4


def test_values_without_bytes_are_one_object_and_one_span() -> None:
    """A frame of a few bytes may have a million."""
    section = bytes.fromhex("005377" + array("43", 1_000))
    for limit, bare, made in ((10_000, 1_000, 1_000), (10_000, 999, 999), (999, 5_000, 998)):
        values, spans = ValueQuota(limit, bare), Spans()
        sections, _, why = stopped(section, 0, len(section), values, spans)
        assert bool(why) == (made < 1_000)
        assert values.empty == (0 if bare < 1_000 else bare - 1_000 if not why else bare - 999)
        items = sections[0]["value"]["value"]
        assert items == [{"type": "uint", "value": 0}] * made
        assert len({id(one) for one in items}) == 1
        assert [span.name for span in spans if span.depth == 2] == ["array", f"[0-{made - 1}]"]
    few = Spans()
    amqp.read(bytes.fromhex("005377" + array("40", amqp.MAX_EMPTY_ITEMS)), 0, 13, bytes.hex, ValueQuota(100, 100), few)
    assert [span.name for span in few][-1] == f"[{amqp.MAX_EMPTY_ITEMS - 1}]"


def test_small_numbers_with_their_types_are_made_once() -> None:
    one, two, three, least, most = value("c013 05 5207 5207 5407 61ffff 80ffffffffffffffff")
    assert one is two
    assert three == {"type": "int", "value": 7}
    assert (least["value"], most["value"]) == (-1, 2**64 - 1)


def test_what_was_made_in_vain_counts() -> None:
    """Else a body of a few bytes that is none after all could be tried again and again."""
    section = bytes.fromhex("005377" + array("40", 400) + "99")
    values = ValueQuota(10_000, 500)
    for left in (100, 0):
        with pytest.raises((amqp.NotAmqp, amqp.Stopped)):
            amqp.read(section, 0, len(section), bytes.hex, values)
        assert values.empty == left


@given(st.recursive(_scalars, _lists, max_leaves=8), st.integers(0, 60), st.integers(0, 255))
def test_damaged_messages_are_read_or_refused(one: tuple[bytes, Any], place: int, byte: int) -> None:
    data = bytearray(b"\x00\x53\x77" + one[0])
    data[place % len(data)] = byte
    try:
        read(bytes(data))
    except amqp.NotAmqp:
        pass
    else:
        assert amqp.looks_like(bytes(data), 0, len(data)) or data[1] != 0x53
