"""What is told of AMQP on a port of ours: real clients and brokers, and frames that nobody sends."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.diagnose.amqp_greeting import said
from streamdump.protocols.rabbitmq import layouts as rabbit
from tests.diagnose.talks import Connection, capture, diagnosed

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream"

HEADER, MODERN, SASL = b"AMQP\0\0\x09\1", b"AMQP\0\1\0\0", b"AMQP\3\1\0\0"


def method(body: bytes, kind: int = 1) -> bytes:
    return pack(">BHI", kind, 0, len(body)) + body + b"\xce"


def frame(body: bytes) -> bytes:
    return pack(">IBBH", 8 + len(body), 2, 0, 0) + body


START, OPEN = method(b"\0\x0a\0\x0a" + bytes(20)), method(b"\0\x0a\0\x28\1/\0\0")
CLOSE = method(b"\0\x0a\0\x32" + pack(">HB", 320, 4) + b"bye." + bytes(4))
CONDITION, TEXT = b"\xa3\x09amqp:gone", b"\xa1\x05a b c"


def close(*items: bytes) -> bytes:
    inner = b"".join(items)
    error = b"\0S\x1d\xc0" + bytes([len(inner) + 1, len(items)]) + inner
    return frame(b"\0S\x18\xc0" + bytes([len(error) + 1, 1]) + error)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (
            "amqp091_on_port_310.pcap",
            "the port is that of rabbitmq-stream, but the bytes are AMQP 0-9-1; the client sends protocol header 0-9-1, Open; "
            'the server sends Start, Close 530 "NOT_ALLOWED - vhost nowhere not found"',
        ),
        (
            "amqp10_on_port_310.pcap",
            "the port is that of rabbitmq-stream, but the bytes are AMQP 1.0 (SASL); "
            "the client sends protocol header 1-0-0 for SASL, protocol header 1-0-0, Open; "
            "the server sends protocol header 1-0-0 for SASL, protocol header 1-0-0, Open, "
            "Close amqp:unauthorized-access \"Access for user 'guest' was refused: insufficient permissions\"",
        ),
        (
            "amqp091_answers_310.pcap",
            "the client speaks rabbitmq-stream, and the 8 bytes that the server answers are AMQP 0-9-1; "
            "the server sends protocol header 0-9-1",
        ),
    ],
)
def test_what_was_said_on_the_wrong_port(file: str, says: str) -> None:
    found = [one for one in diagnosed(GOLDEN / file)[0] if one.rule == "tcp.other-protocol"]
    assert [(one.severity, one.cause) for one in found] == [("error", says)]
    for rows in (1, 7):
        assert [one for one in diagnosed(GOLDEN / file, rows)[0] if one.rule == "tcp.other-protocol"] == found


def test_what_is_asked_for_on_a_port() -> None:
    one = Connection(dport=9999).open().ask(HEADER).tell(START).ask(OPEN).tell(CLOSE).fin(1)
    (found,) = (each for each in diagnosed(capture(one), decode_as=((9999, "rabbitmq-stream", None),))[0] if each.severity == "error")
    assert found.cause == (
        "the client speaks AMQP 0-9-1, where rabbitmq-stream is expected; the client sends protocol header 0-9-1, Open; "
        'the server sends Start, Close 320 "bye."'
    )


@pytest.mark.parametrize(
    "one",
    [
        Connection().ready().goodbye(),
        Connection().open().ask(b"GET / HTTP/1.1\r\n\r\n").tell(START + CLOSE).fin(1),
        Connection().ready().tell(CLOSE).client(rabbit.CLOSE, closing_code=1, closing_reason="OK").fin(1),
    ],
)
def test_nothing_of_that_is_told_where_nobody_speaks_amqp(one: Connection) -> None:
    assert not [found for found in diagnosed(capture(one))[0] if " says " in found.cause]


def test_a_long_conversation_is_read_up_to_a_limit() -> None:
    one = Connection().open().ask(HEADER).tell(START)
    for _ in range(40):
        one.ask(method(bytes(100), 3)).tell(method(bytes(100), 3))
    (found,) = (each for each in diagnosed(capture(one.tell(CLOSE).fin(1)))[0] if each.rule == "tcp.other-protocol")
    assert found.cause.endswith("; the client sends protocol header 0-9-1; the server sends Start")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (HEADER, ["protocol header 0-9-1"]),
        (HEADER + OPEN + OPEN, ["protocol header 0-9-1", "Open"]),
        (START + CLOSE, ["Start", 'Close 320 "bye."']),
        (method(b"\0\x0a\0\x0b" + b"\0\0\0\5PLAIN\0\0\0\x08\0u\0secret"), []),
        (method(b"\0\x14\0\x28" + bytes(3)), []),
        (CLOSE[:-8], ['Close 320 "b"']),
        (CLOSE[:12], ['Close 1 ""']),
        (SASL + MODERN, ["protocol header 1-0-0 for SASL", "protocol header 1-0-0"]),
        (MODERN + frame(b"\0S\x10\xc0\1\0"), ["protocol header 1-0-0", "Open"]),
        (MODERN + frame(b"\0S\x41\xc0\1\0"), ["protocol header 1-0-0"]),
        (MODERN + frame(b"\0S\x18\x45"), ["protocol header 1-0-0", "Close"]),
        (MODERN + close(CONDITION, TEXT), ["protocol header 1-0-0", 'Close amqp:gone "a b c"']),
        (MODERN + close(CONDITION, b"\x40"), ["protocol header 1-0-0", 'Close amqp:gone ""']),
        (MODERN + close(CONDITION), ["protocol header 1-0-0", 'Close amqp:gone ""']),
        (MODERN + frame(b"") + frame(b"\0S\x10"), ["protocol header 1-0-0", "Open"]),
        (MODERN + close(CONDITION, b"\x83\3abcdefg"), ["protocol header 1-0-0", 'Close amqp:gone ""']),
        (MODERN + pack(">IBBH", 3, 2, 0, 0) + frame(b"\0S\x10"), ["protocol header 1-0-0", "Open"]),
        (MODERN + bytes(8) + frame(b"\0S\x10"), ["protocol header 1-0-0", "Open"]),
    ],
)
def test_what_frames_say(data: bytes, says: list[str]) -> None:
    assert said(data) == says


FRAMES = HEADER, MODERN, SASL, START, OPEN, CLOSE, close(CONDITION, TEXT), b"\0S\x18\xd0", b"\xff" * 4
PIECES = st.sampled_from(FRAMES) | st.binary(max_size=9)


@given(st.lists(PIECES, max_size=8), st.integers(0, 200))
def test_any_bytes_say_little(pieces: list[bytes], end: int) -> None:
    assert all(len(one) < 600 for one in said(b"".join(pieces)[:end]))
