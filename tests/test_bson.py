"""BSON: every type, what real servers let pass, damage, and pymongo as witness."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from itertools import pairwise
from typing import Any

import bson as pymongo
import pytest
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON
from hypothesis import given
from hypothesis import strategies as st

from streamdump.bson import NESTING_LIMIT, UNREADABLE, Special, decimal128, read, walk
from streamdump.model import Span

OPTIONS: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS, tz_aware=False)


def frame(*elements: str | bytes) -> bytes:
    """A document of these elements, given in hex."""
    body = b"".join(bytes.fromhex(one) if isinstance(one, str) else one for one in elements)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def name(text: str) -> str:
    return text.encode().hex() + "00"


def tiled(data: bytes, spans: list[Any]) -> None:
    """The leaves cover the bytes without gap or overlap, groups their leaves."""
    leaves = [span for span in spans if span.leaf]
    at = 0
    for span in leaves:
        assert span.offset == at
        assert span.length > 0
        at += span.length
    assert at == len(data)
    for index, span in enumerate(spans):
        if not span.leaf:
            inner = []
            for one in spans[index + 1 :]:
                if one.depth <= span.depth:
                    break
                inner.append(one)
            assert inner[0].offset == span.offset
            assert sum(one.length for one in inner if one.leaf) == span.length


def both(data: bytes) -> Any:
    """The value, which fast reader and walk agree on, of a document without anything to say about it."""
    walked = walk(data, 0, len(data))
    assert walked.fault is None
    assert walked.notes == []
    assert walked.value == read(data, 0, len(data))
    assert read(b"\xff" * 7 + data + b"\xff" * 9, 7, 7 + len(data)) == walked.value
    tiled(data, walked.spans)
    return walked.value


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("01" + name("v") + "182d4454fb210940", 3.141592653589793),
        ("01" + name("v") + "0000000000000080", -0.0),
        ("01" + name("v") + "000000000000f87f", {"$numberDouble": "NaN"}),
        ("01" + name("v") + "000000000000f07f", {"$numberDouble": "Infinity"}),
        ("01" + name("v") + "000000000000f0ff", {"$numberDouble": "-Infinity"}),
        ("02" + name("v") + "04000000" + "610062" + "00", "a\0b"),
        ("02" + name("v") + "01000000" + "00", ""),
        ("03" + name("v") + "05000000" + "00", {}),
        ("04" + name("v") + "13000000" + "10" + name("0") + "01000000" + "10" + name("x") + "02000000" + "00", [1, 2]),
        ("05" + name("v") + "02000000" + "00" + "0102", {"$binary": {"base64": "AQI=", "subType": "00"}}),
        ("05" + name("v") + "07000000" + "02" + "03000000" + "6f6c64", {"$binary": {"base64": "b2xk", "subType": "02"}}),
        ("05" + name("v") + "00000000" + "80", {"$binary": {"base64": "", "subType": "80"}}),
        ("06" + name("v"), {"$undefined": True}),
        ("07" + name("v") + "5f5e0a1b2c3d4e5f60718293", {"$oid": "5f5e0a1b2c3d4e5f60718293"}),
        ("08" + name("v") + "00", False),
        ("08" + name("v") + "01", True),
        ("09" + name("v") + "0000000000000000", {"$date": "1970-01-01T00:00:00Z"}),
        ("09" + name("v") + "7b00000000000000", {"$date": "1970-01-01T00:00:00.123Z"}),
        ("09" + name("v") + "ffffffffffffffff", {"$date": {"$numberLong": "-1"}}),
        ("09" + name("v") + "ffdb1fd277e60000", {"$date": "9999-12-31T23:59:59.999Z"}),
        ("09" + name("v") + "00dc1fd277e60000", {"$date": {"$numberLong": "253402300800000"}}),
        ("0a" + name("v"), None),
        ("0b" + name("v") + name("^a") + name("im"), {"$regularExpression": {"pattern": "^a", "options": "im"}}),
        (
            "0c" + name("v") + "03000000" + name("ns") + "5f5e0a1b2c3d4e5f60718293",
            {"$dbPointer": {"$ref": "ns", "$id": {"$oid": "5f5e0a1b2c3d4e5f60718293"}}},
        ),
        ("0d" + name("v") + "02000000" + name("x"), {"$code": "x"}),
        ("0e" + name("v") + "02000000" + name("x"), {"$symbol": "x"}),
        (
            "0f" + name("v") + "16000000" + "02000000" + name("x") + "0c000000" + "10" + name("i") + "01000000" + "00",
            {"$code": "x", "$scope": {"i": 1}},
        ),
        ("10" + name("v") + "ffffffff", -1),
        ("11" + name("v") + "02000000" + "ffffffff", {"$timestamp": {"t": 4294967295, "i": 2}}),
        ("12" + name("v") + "ffffffffffffff7f", 9223372036854775807),
        ("13" + name("v") + "01000000000000000000000000003e30", {"$numberDecimal": "0.1"}),
        ("7f" + name("v"), {"$maxKey": 1}),
        ("ff" + name("v"), {"$minKey": 1}),
    ],
)
def test_every_type(element: str, value: Any) -> None:
    data = frame(element)
    got = both(data)["v"]
    assert got == value
    assert repr(got) == repr(value) or isinstance(got, Special)
    # and as an item of an array, between others
    inner = frame("10" + name("0") + "07000000", element, "10" + name("2") + "08000000")
    assert both(frame("04" + name("a"), inner))["a"] == [7, value, 8]


def test_a_special_value_is_no_document() -> None:
    value = both(frame("07" + name("v") + "00" * 12))["v"]
    assert type(value) is Special
    assert type(both(frame("03" + name("v") + "0500000000"))["v"]) is dict


# pymongo as witness

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0$"), max_size=6)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
OPTIONS_TEXT = st.sets(st.sampled_from("imsux")).map(lambda some: "".join(sorted(some)))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(pymongo.Int64),
    st.floats(),
    TEXTS,
    st.binary(max_size=9),
    st.tuples(st.binary(max_size=9), st.integers(0, 255)).map(lambda pair: pymongo.Binary(*pair)),
    st.binary(min_size=12, max_size=12).map(pymongo.ObjectId),
    st.integers(-(2**62), 2**62).map(pymongo.DatetimeMS),
    st.tuples(KEYS, OPTIONS_TEXT).map(lambda pair: pymongo.Regex(pair[0], pair[1])),
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(lambda pair: pymongo.Timestamp(*pair)),
    st.binary(min_size=16, max_size=16).map(pymongo.Decimal128.from_bid),
    TEXTS.map(pymongo.Code),
    st.sampled_from([pymongo.MinKey(), pymongo.MaxKey()]),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=6)


def expected(data: bytes) -> Any:
    """Relaxed Extended JSON as pymongo has it."""
    decoded = pymongo.decode(data, codec_options=OPTIONS)
    return json.loads(json_util.dumps(decoded, json_options=json_util.RELAXED_JSON_OPTIONS))


@given(DOCUMENTS)
def test_pymongo_agrees(document: dict[str, Any]) -> None:
    data = pymongo.encode(document)
    got = both(data)
    assert json.dumps(json.loads(json.dumps(got))) == json.dumps(expected(data))


@given(TEXTS, st.dictionaries(KEYS, LEAVES, max_size=3))
def test_pymongo_agrees_on_code_with_scope(code: str, scope: dict[str, Any]) -> None:
    data = pymongo.encode({"v": pymongo.Code(code, scope)})
    assert json.dumps(both(data)) == json.dumps(expected(data))


@given(st.binary(min_size=16, max_size=16))
def test_decimal128_as_pymongo_has_it(raw: bytes) -> None:
    assert decimal128(raw) == str(pymongo.Decimal128.from_bid(raw))


@pytest.mark.parametrize(
    "text", ["0", "-0", "0E+6111", "1E-6176", "9.999999999999999999999999999999999E+6144", "NaN", "-Infinity", "12.50"]
)
def test_decimal128_values(text: str) -> None:
    assert decimal128(pymongo.Decimal128(Decimal(text)).bid) == text


@given(DOCUMENTS, st.data())
def test_pymongo_agrees_whether_bytes_are_good(document: dict[str, Any], data: st.DataObject) -> None:
    """What pymongo refuses, our reader refuses; it is stricter only where a note or fault says why."""
    raw = bytearray(pymongo.encode(document))
    raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        pymongo.decode(bytes(raw), codec_options=OPTIONS)
        fine = True
    except (InvalidBSON, ValueError, OverflowError):
        fine = False
    walked = walk(bytes(raw), 0, len(raw))
    if not fine:
        # regex options and dates beyond Python's are its own limits, not BSON's
        assert walked.fault or walked.notes or any(kind in raw for kind in (0x0B, 0x09))
    assert agree(bytes(raw), 0, len(raw))


# read and walk


def agree(data: bytes, start: int, end: int) -> bool:
    """`read` takes exactly what `walk` has nothing to say about, except repeated keys, which only `walk` shows."""
    walked = walk(data, start, end)
    tiled(data[start:end], walked.spans)
    try:
        value = read(data, start, end)
    except UNREADABLE:
        return bool(walked.fault is not None or walked.notes or repeats(walked.value))
    assert not repeats(walked.value)
    assert repr(value) == repr(walked.value)
    spans: list[Span] = []
    try:
        read(data, start, end, spans, start)
    except UNREADABLE:
        assert any(span.name == "scope" for span in walked.spans), "only parts of a value have spans that the walk alone knows"
    else:
        assert repr(spans) == repr(walked.spans[1:])
    return walked.fault is None and walked.notes == [] and walked.trailing is None


def repeats(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(repeats, value.values()))
    if isinstance(value, list):
        return any(repeats(one) or (isinstance(one, dict) and one.keys() == {"key", "value"}) for one in value)
    return False


@given(DOCUMENTS, st.data())
def test_truncations(document: dict[str, Any], data: st.DataObject) -> None:
    raw = pymongo.encode(document)
    end = data.draw(st.integers(0, len(raw)))
    behind = pymongo.encode({"next": 1})
    assert agree(raw[:end] + behind, 0, end)
    # the same as a frame of which the rest is missing
    walked = walk(raw[:end], 0, end, size=len(raw), missing="bytes lost")
    tiled(raw[:end], walked.spans)
    assert (walked.fault is None) == (end == len(raw))
    if walked.fault:
        assert walked.fault.reason == "bytes lost"


@given(DOCUMENTS, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_mutations(document: dict[str, Any], places: list[tuple[int, int]]) -> None:
    raw = bytearray(pymongo.encode(document))
    for place, value in places:
        raw[place % len(raw)] = value
    assert agree(bytes(raw), 0, len(raw))


@given(st.binary(max_size=60), st.booleans(), st.sampled_from([0, 4]), st.booleans())
def test_any_bytes(raw: bytes, resume: bool, shift: int, cut: bool) -> None:
    walked = walk(raw, 0, len(raw), size=len(raw) + 9 if cut else None, shift=shift, inner_shift=shift, resume=resume)
    tiled(raw, walked.spans)
    agree(raw, 0, len(raw))


def test_random_mutations_of_a_large_document() -> None:
    made = random.Random(7)
    document = {f"k{index}": [{"a": index, "b": ["x", 1.5, {"c": None}]}, b"ab", True] for index in range(12)}
    good = pymongo.encode(document)
    for _ in range(400):
        raw = bytearray(good)
        for _ in range(made.randint(1, 4)):
            raw[made.randrange(len(raw))] = made.choice((0, 1, 2, 3, 4, 5, 16, 255, made.randrange(256)))
        assert agree(bytes(raw), 0, len(raw))


# What is unusual


def test_repeated_keys_are_an_array_of_pairs() -> None:
    data = frame("10" + name("a") + "01000000", "10" + name("b") + "02000000", "10" + name("a") + "03000000")
    walked = walk(data, 0, len(data))
    assert walked.value == [{"key": "a", "value": 1}, {"key": "b", "value": 2}, {"key": "a", "value": 3}]
    assert walked.fault is None
    assert walked.notes == []
    with pytest.raises(UNREADABLE):
        read(data, 0, len(data))
    inside = frame("03" + name("d"), data)
    assert walk(inside, 0, len(inside)).value == {"d": walked.value}


def test_a_wrong_inner_length_is_told_and_the_elements_are_read_all_the_same() -> None:
    inner = bytes.fromhex("63000000" + "10" + name("zz") + "01000000" + "00")
    data = frame("03" + name("event"), inner, "10" + name("rID") + "05000000")
    walked = walk(data, 0, len(data))
    assert walked.value == {"event": {"zz": 1}, "rID": 5}
    assert walked.fault is not None
    assert (walked.fault.field, walked.fault.offset) == ("event", 11)
    assert walked.fault.reason == "length says 99 bytes, 22 left"
    tiled(data, walked.spans)


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        ("11", "length says 17 bytes, 16 left"),
        ("0f", "length says 15 bytes, its elements end after 12"),
        ("0e", "length says 14 bytes, but the last of them is 61, not 00"),
        ("0b", "length says 11 bytes, but the last of them is 01, not 00"),
    ],
)
def test_an_inner_length_that_is_wrong_but_fits(length: str, reason: str) -> None:
    """Elements are read up to a final 00, as the servers do."""
    inner = bytes.fromhex(length + "000000" + "10" + name("z") + "01000001" + "00")
    data = frame("03" + name("e"), inner, "08" + name("a") + "01")
    walked = walk(data, 0, len(data))
    assert walked.value == {"e": {"z": 16777217}, "a": True}
    assert walked.fault is not None
    assert (walked.fault.offset, walked.fault.reason) == (7, reason)
    tiled(data, walked.spans)


def test_damage_inside_a_document_does_not_take_what_follows() -> None:
    inner = frame("22" + name("zz") + "01000000")
    data = frame("03" + name("event"), inner, "10" + name("rID") + "05000000")
    walked = walk(data, 0, len(data))
    assert walked.value == {"event": {}, "rID": 5}
    assert walked.fault is not None
    assert (walked.fault.field, walked.fault.offset, walked.fault.reason) == ("event.zz", 15, "unknown element type 22")
    careful = walk(data, 0, len(data), resume=False)
    assert careful.value == {"event": {}}
    assert [span.name for span in careful.spans if span.leaf][-1] == "undecoded"


@pytest.mark.parametrize(
    ("element", "offset", "reason"),
    [
        ("10" + name("a") + "0100", 7, "int32 takes 4 bytes, 2 left"),
        ("02" + name("a") + "ffffff7f" + "00", 7, "length says 2147483647 bytes, 1 left"),
        ("02" + name("a") + "00000000" + "00", 7, "length says 0 bytes, no string has fewer than 1"),
        ("02" + name("a") + "ffffffff" + "00", 7, "length says -1 bytes, no string has fewer than 1"),
        ("02" + name("a") + "02000000" + "6162" + "00", 7, "length says 2 bytes, but the last of them is 62, not 00"),
        ("05" + name("a") + "ffffffff" + "00", 7, "length says -1 bytes"),
        ("05" + name("a") + "05000000" + "00" + "01", 7, "length says 5 bytes, 1 left"),
        ("03" + name("a") + "04000000" + "00", 7, "length says 4 bytes, no document has fewer than 5"),
        ("0b" + name("a") + "6162", 7, "regex without final 00"),
        ("ff61", 4, "name without final 00"),
        ("13" + name("a") + "00" * 15, 7, "decimal128 takes 16 bytes, 15 left"),
    ],
)
def test_faults_are_exact(element: str, offset: int, reason: str) -> None:
    data = frame(element)
    walked = walk(data, 0, len(data))
    assert walked.fault is not None
    assert (walked.fault.offset, walked.fault.reason) == (offset, reason)
    tiled(data, walked.spans)
    assert agree(data, 0, len(data))


def test_a_boolean_of_05_and_bad_text_are_notes() -> None:
    data = frame("08" + name("ok") + "05", "02" + name("t") + "04000000" + "ff5c62" + "00", "10" + "fe00" + "01000000")
    walked = walk(data, 0, len(data))
    assert walked.value == {"ok": 5, "t": "\\xff\\\\b", "\\xfe": 1}
    assert walked.fault is None
    assert walked.notes == ["ok: boolean is 05", "t is not UTF-8", "name of element 2 is not UTF-8"]


def test_trailing_bytes() -> None:
    data = bytearray(frame("0a" + name("n")) + b"\1\2\3")
    data[0] += 3
    walked = walk(bytes(data), 0, len(data))
    assert walked.value == {"n": None}
    assert walked.trailing == b"\1\2\3"
    assert walked.notes == ["3 bytes after the end of the document"]
    tiled(bytes(data), walked.spans)


def nested(levels: int) -> bytes:
    head, tail = b"", b""
    size = 5 + 8 * levels
    for _ in range(levels):
        head += size.to_bytes(4, "little") + b"\x03a\0"
        tail += b"\0"
        size -= 8
    return head + b"\x05\0\0\0\0" + tail


@pytest.mark.parametrize("levels", [NESTING_LIMIT, NESTING_LIMIT + 1, 10_000, 100_000])
def test_nesting_has_a_limit(levels: int) -> None:
    data = nested(levels)
    assert len(data) == int.from_bytes(data[:4], "little")
    if levels <= NESTING_LIMIT:
        both(data)
        return
    walked = walk(data, 0, len(data))
    assert walked.fault is not None
    assert walked.fault.reason == "more than 200 documents inside each other"
    tiled(data, walked.spans)
    assert agree(data, 0, len(data))
    json.dumps(walked.value)


def test_lengths_that_do_not_count_themselves() -> None:
    inner = (8).to_bytes(4, "little") + bytes.fromhex("10" + name("i") + "01000000" + "00")
    data = bytes.fromhex("03" + name("d")) + inner + b"\0"
    data = len(data).to_bytes(4, "little") + data
    walked = walk(data, 0, len(data), shift=4, inner_shift=4)
    assert walked.fault is None
    assert walked.value == {"d": {"i": 1}}
    tiled(data, walked.spans)


def test_secrets_are_replaced_by_their_sizes() -> None:
    document = {
        "auth": {"user": "tim", "nested": {"pin": 1234}, "list": ["abc", b"xyz"], "none": None},
        "password": "hunter2",
        "other": "x",
    }
    data = pymongo.encode({"frame": document})
    walked = walk(data, 0, len(data), secret=lambda path, _nested: path in ("frame.auth", "frame.password"))
    assert walked.value["frame"] == {
        "auth": {
            "user": "<redacted 3 bytes>",
            "nested": {"pin": "<redacted 4 bytes>"},
            "list": ["<redacted 3 bytes>", "<redacted 8 bytes>"],
            "none": None,
        },
        "password": "<redacted 7 bytes>",
        "other": "x",
    }
    seen = b"".join(data[span.offset : span.offset + span.length] for span in walked.spans if span.leaf and not span.secret)
    for secret in (b"tim", b"abc", b"xyz", b"hunter2", b"\xd2\x04"):
        assert secret not in seen
    tiled(data, walked.spans)


def test_many_notes_are_counted() -> None:
    data = frame(*["08" + name(f"b{index}") + "02" for index in range(40)])
    walked = walk(data, 0, len(data))
    assert len(walked.notes) == 17
    assert walked.notes[-1] == "and 24 more"


def test_long_names_do_not_blow_up_paths() -> None:
    data = frame("03" + name("k" * 5000), frame("08" + name("b") + "02"))
    walked = walk(data, 0, len(data))
    assert len(walked.notes[0]) < 100
    assert all(one.offset <= two.offset for one, two in pairwise(walked.spans))
