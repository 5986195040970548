"""JSON Lines: the contract's order of keys, and no character that acts on a terminal."""

from __future__ import annotations

import json
import tracemalloc

import jsonschema
import pytest

from streamdump.model import PROCESS_KEYS
from streamdump.render.jsonl import encode, painted
from streamdump.render.schema import schema
from streamdump.render.terminal import COLOURED
from tests.render.records import FAULT, detailed, ending, exchange, gap, message, response

ACTIVE = [
    *(0x7F, 0xAD, 0x61C, 0xFEFF, 0xE0001, 0xE007F),
    *range(0x80, 0xA0),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFFF9, 0xFFFC),
]

MESSAGE_KEYS = (
    "record v number time time_ns conversation src dst sender protocol name kind id stream file packets position size fields request"
    " outcome latency_ns notes fault"
)
GAP_KEYS = "record v number time time_ns conversation src dst sender protocol position size reason in_frame"
EXCHANGE_KEYS = (
    "record v number time time_ns conversation src dst protocol name id stream request response outcome reason latency_ns waited_ns"
)
ENDING_KEYS = "record v number time time_ns conversation src dst sender protocol how quiet_ns open refused"


@pytest.mark.parametrize(
    ("record", "keys"), [(message(), MESSAGE_KEYS), (gap(), GAP_KEYS), (exchange(), EXCHANGE_KEYS), (ending(), ENDING_KEYS)]
)
def test_keys_are_those_of_the_contract_in_its_order(record: object, keys: str) -> None:
    assert list(json.loads(encode([record]))) == keys.split()


def test_details_for_people_stay_out() -> None:
    made = json.loads(encode([message(fault=FAULT)]))
    assert list(made) == MESSAGE_KEYS.split()
    assert made["fault"] == {"field": "reference", "offset": 6, "reason": "length says 6 bytes, 3 left", "buffer": "frame"}


@pytest.mark.parametrize("code", ACTIVE, ids=hex)
def test_active_characters_are_escaped(code: int) -> None:
    text = f"é{chr(code)}x"
    block = encode([message(fields={"name": text, text: 1})])
    assert chr(code) not in block.decode()
    assert "é" in block.decode()
    assert json.loads(block)["fields"] == {"name": text, text: 1}


def test_a_line_is_a_record() -> None:
    block = encode([message(fields={"text": "a\nb\r\u2028c\x0bd"}), response()])
    assert len(block.decode().splitlines()) == 2
    assert block.endswith(b"\n")


def test_what_is_harmless_stays_readable() -> None:
    assert "日本語 – Ünï 🐇" in encode([message(fields={"text": "日本語 – Ünï 🐇"})]).decode()


def test_schema_is_a_schema_and_fits() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    check = jsonschema.Draft202012Validator(schema())
    for line in encode(
        [
            message(),
            response(),
            gap(),
            exchange(),
            ending(),
            ending(protocol=None, quiet_ns=None),
            message(fault=FAULT, notes=["odd"], sender=None),
        ]
    ).splitlines():
        check.validate(json.loads(line))


@pytest.mark.parametrize("change", [{"v": 2}, {"outcome": "lost"}, {"sender": "nobody"}, {"more": 1}, {"id": 1.5}, {"packets": [1]}])
def test_schema_refuses_what_is_not_the_contract(change: dict[str, object]) -> None:
    check = jsonschema.Draft202012Validator(schema())
    assert not check.is_valid({**json.loads(encode([message()])), **change})


OPTIONAL = {"Process": (*PROCESS_KEYS, "others", "other_pids"), "latency": PROCESS_KEYS, "interval": PROCESS_KEYS, "command": PROCESS_KEYS}
"""Keys that are only there where they are known, or asked for."""


def test_a_line_is_of_one_kind() -> None:
    contract = schema()
    kinds = [contract["$defs"][one["$ref"].removeprefix("#/$defs/")] for one in contract["oneOf"]]
    names = [one["properties"]["record"]["const"] for one in kinds]
    assert len({*names}) == len(names)
    assert all("record" in one["required"] for one in kinds)


def test_every_key_is_described() -> None:
    for name, definition in schema()["$defs"].items():
        optional = OPTIONAL.get(name, ("processes",))
        assert definition["required"] == [one for one in definition["properties"] if one not in optional], name
        assert all(one["description"] for one in definition["properties"].values())


def test_raw_bytes_of_details_are_not_meant_for_json() -> None:
    one = detailed()
    one.raw = one.spans = None
    assert list(json.loads(encode([one]))) == MESSAGE_KEYS.split()


def test_colours_are_of_whole_keys_and_texts() -> None:
    block = b'{"a\\"b":"x\\\\","c":[1,-2.5e3,true,null],"d":"e: {\\"f\\":1}"}\n'
    key, text, number, other, reset = (code.encode() for code in ("\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[0m"))
    values = (number + b"1", number + b"-2.5e3", other + b"true", other + b"null")
    parts = (key + b'"a\\"b"', text + b'"x\\\\"', key + b'"c"', *values, key + b'"d"', text + b'"e: {\\"f\\":1}"')
    a, x, c, *list_, d, e = (part + reset for part in parts)
    assert painted(block, COLOURED) == b"{%b:%b,%b:[%b],%b:%b}\n" % (a, x, c, b",".join(list_), d, e)


@pytest.mark.parametrize("part", [b"ab01", b"ab\\n", b"\\\\"])
def test_colours_of_a_long_text_take_no_memory_besides_it(part: bytes) -> None:
    block = b'{"body":"%b"}\n' % (part * (1 << 16))
    tracemalloc.start()
    try:
        painted(block, COLOURED)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(block)
    finally:
        tracemalloc.stop()
