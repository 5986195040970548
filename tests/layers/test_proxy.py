"""PROXY headers before conversations of every protocol: what is behind them is read as if they were not there."""

from __future__ import annotations

import io
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.layers.proxy import BEGIN_2, CRC32C, LARGEST_1, LARGEST_2, sum_of
from streamdump.model import ConversationRow, Gap, Message, Options, Record
from streamdump.scrub.run import ScrubOptions, scrub
from streamdump.session import Session
from streamdump.tls.keys import KeyLog
from tests.diagnose.talks import SECOND, Connection, capture, diagnosed
from tests.support.frames import ACK, FIN, RST
from tests.support.peers import said
from tests.tls.peers import CLIENT, SERVER, Said, Wire, talk
from tests.tls.reading import log_of

ROOT = Path(__file__).parents[2] / "captures"
REPORTS = ROOT / "samples" / "reports"
FAMILIES = (
    "rabbitmq-stream/handshake_close_405.pcap",
    "iggy/py080-basic.pcap",
    "seastar-rpc/isolation.pcap",
    "mewbase/java-nov2016.pcap",
)
PORTS = (5552, 8090, 7000, 7451)
FOUR = bytes((192, 0, 2, 10)) + bytes((198, 51, 100, 7)) + struct.pack(">HH", 51234, 5552)
SIX = bytes.fromhex("fd000000000000000000000000000051 fd000000000000000000000000000052") + struct.pack(">HH", 51234, 5552)
UNIX = b"/run/lb.sock".ljust(108, b"\0") + b"/run/server".ljust(108, b"\0")


def v2(family: int, addresses: bytes, fields: bytes = b"", command: int = 1, sums: bool = False) -> bytes:
    fields = bytes((CRC32C, 0, 4)) + bytes(4) + fields if sums else fields
    raw = BEGIN_2 + bytes((0x20 | command, family)) + struct.pack(">H", len(addresses + fields)) + addresses + fields
    at = 16 + len(addresses) + 3
    return raw[:at] + sum_of(raw, at) + raw[at + 4 :] if sums else raw


V1 = b"PROXY TCP4 192.0.2.10 198.51.100.7 51234 5552\r\n"
V1_SIX = b"PROXY TCP6 2001:db8::1 2001:db8::2 51234 5552\r\n"
NAME = b"\2\0\x0bbroker.test"
HEADERS: dict[str, tuple[bytes, dict[str, str]]] = {
    "1": (V1, {"proxy_header": "version 1, TCP4, 47 bytes", "proxy_client": "192.0.2.10:51234", "proxy_server": "198.51.100.7:5552"}),
    "1, IPv6": (
        V1_SIX,
        {"proxy_header": "version 1, TCP6, 47 bytes", "proxy_client": "[2001:db8::1]:51234", "proxy_server": "[2001:db8::2]:5552"},
    ),
    "1, unknown": (b"PROXY UNKNOWN\r\n", {"proxy_header": "version 1, UNKNOWN, 15 bytes"}),
    "1, unknown, with addresses": (b"PROXY UNKNOWN ::1 ::1 1 2\r\n", {"proxy_header": "version 1, UNKNOWN, 27 bytes"}),
    "1, without a port": (
        b"PROXY TCP4 192.0.2.10 198.51.100.7 51234\r\n",
        {"proxy_header": "version 1, unreadable, 42 bytes", "proxy_damaged": "the line does not have its fields"},
    ),
    "1, not an address": (
        b"PROXY TCP4 192.0.2.300 198.51.100.7 51234 5552\r\n",
        {"proxy_header": "version 1, TCP4, 48 bytes", "proxy_damaged": "an address or a port is not valid"},
    ),
    "1, the largest port": (
        b"PROXY TCP4 192.0.2.10 198.51.100.7 65535 5552\r\n",
        {"proxy_header": "version 1, TCP4, 47 bytes", "proxy_client": "192.0.2.10:65535", "proxy_server": "198.51.100.7:5552"},
    ),
    "1, a port too large": (
        b"PROXY TCP4 192.0.2.10 198.51.100.7 65536 5552\r\n",
        {"proxy_header": "version 1, TCP4, 47 bytes", "proxy_damaged": "an address or a port is not valid"},
    ),
    "2": (
        v2(0x11, FOUR),
        {"proxy_header": "version 2, TCP4, 28 bytes", "proxy_client": "192.0.2.10:51234", "proxy_server": "198.51.100.7:5552"},
    ),
    "2, IPv6": (
        v2(0x21, SIX, NAME),
        {"proxy_header": "version 2, TCP6, 66 bytes", "proxy_client": "[fd00::51]:51234", "proxy_server": "[fd00::52]:5552"},
    ),
    "2, paths": (
        v2(0x31, UNIX),
        {"proxy_header": "version 2, UNIX, 232 bytes", "proxy_client": "/run/lb.sock", "proxy_server": "/run/server"},
    ),
    "2, a checksum": (
        v2(0x11, FOUR, NAME, sums=True),
        {"proxy_header": "version 2, TCP4, 49 bytes", "proxy_client": "192.0.2.10:51234", "proxy_server": "198.51.100.7:5552"},
    ),
    "2, a wrong checksum": (
        v2(0x11, FOUR, bytes((CRC32C, 0, 4)) + b"oops"),
        {
            "proxy_header": "version 2, TCP4, 35 bytes",
            "proxy_client": "192.0.2.10:51234",
            "proxy_server": "198.51.100.7:5552",
            "proxy_damaged": "the checksum is wrong",
        },
    ),
    "2, local": (v2(0x00, b"", command=0), {"proxy_header": "version 2, LOCAL, 16 bytes"}),
    "2, local, with addresses": (v2(0x11, FOUR, command=0), {"proxy_header": "version 2, LOCAL, 28 bytes"}),
    "2, no family": (v2(0x00, b""), {"proxy_header": "version 2, no address, 16 bytes"}),
    "2, too short": (
        v2(0x11, FOUR[:8]),
        {"proxy_header": "version 2, TCP4, 24 bytes", "proxy_damaged": "8 bytes are too few"},
    ),
    "2, a field too long": (
        v2(0x11, FOUR, b"\2\0\x0b"),
        {"proxy_header": "version 2, TCP4, 31 bytes", "proxy_damaged": "15 bytes are too few"},
    ),
    "2, another command": (
        v2(0x11, FOUR, command=7),
        {"proxy_header": "version 2, command 7, 28 bytes", "proxy_damaged": "command 7 is not known"},
    ),
}


def pieces(header: bytes, first: bytes, way: str) -> list[Said]:
    """A header, and the first bytes behind it, in segments."""
    if way == "alone":
        return [(CLIENT, header), (CLIENT, first)]
    if way == "together":
        return [(CLIENT, header + first)]
    return [*((CLIENT, header[at : at + 1]) for at in range(len(header))), (CLIENT, first)]


def proxied(path: str, header: bytes, way: str = "alone", port: int = 5552, syn: bool = True) -> bytes:
    (side, first), *rest = said(ROOT / "golden" / path)
    assert side == CLIENT
    return Wire(port=port, syn=syn).send([*pieces(header, first, way), *rest]).end().capture()


def read(capture: bytes, rows: int | None = None, keys: KeyLog | None = None, **options: Any) -> tuple[list[Record], list[ConversationRow]]:
    inspector = Inspector([open_capture(io.BytesIO(capture), name="test")], Options(**options), rows, keys=keys)
    records = list(inspector.records())
    assert not inspector.reports
    return records, inspector.rows()


def messages(records: list[Record]) -> list[tuple[Any, ...]]:
    return [
        (
            one.number,
            one.sender,
            one.name,
            one.kind,
            one.id,
            one.position,
            one.size,
            one.fields,
            one.request,
            one.outcome,
            one.notes,
            one.fault,
        )
        for one in records
        if isinstance(one, Message)
    ]


def accounted(records: list[Record], row: ConversationRow) -> None:
    """All bytes are in messages or gaps, without the header."""
    reach: dict[str, int] = defaultdict(int)
    for record in sorted((one for one in records if isinstance(one, Message | Gap)), key=lambda one: one.position):
        if not getattr(record, "in_frame", False):
            assert record.position == reach[record.src]
            reach[record.src] += record.size or 0
    assert [reach[end] for end in row.endpoints] == list(row.bytes)


@pytest.mark.parametrize("way", ["alone", "together", "byte by byte"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_before_a_good_conversation(header: str, way: str) -> None:
    raw, facts = HEADERS[header]
    capture = proxied(FAMILIES[0], raw, way)
    plain, _ = read(proxied(FAMILIES[0], b"", "together"))
    found, (row,) = read(capture)
    for rows in (1, 7):
        assert read(capture, rows) == (found, [row])
    assert messages(found) == messages(plain) and len(messages(found)) == 12
    assert {name: fact for name, fact in row.facts.items() if name.startswith("proxy")} == facts
    assert row.evidence[-1] == f"behind a PROXY header (version {(raw[:1] == b'P' and 1) or 2})"
    assert row.facts["handshake"] == "ready" and row.client == "192.0.2.1:40000"
    accounted(found, row)
    cause = f"the PROXY header (version {(raw[:1] == b'P' and 1) or 2}) from the client is damaged: {facts.get('proxy_damaged')}"
    damaged = [("tcp.proxy-header-damaged", cause)] if "proxy_damaged" in facts else []
    assert [(one.rule, one.cause) for one in diagnosed(capture)[0] if one.rule.startswith("tcp.")] == damaged


@pytest.mark.parametrize("raw", [V1, v2(0x21, SIX, NAME, sums=True)], ids=["1", "2"])
@pytest.mark.parametrize("syn", [True, False])
@pytest.mark.parametrize(("path", "port"), [*zip(FAMILIES, PORTS, strict=True)])
def test_every_family(path: str, port: int, syn: bool, raw: bytes) -> None:
    plain, (row,) = read(proxied(path, b"", "together", port))
    for way in ("alone", "together"):
        found, (behind,) = read(proxied(path, raw, way, port, syn))
        assert messages(found) == messages(plain) and messages(found)
        assert (behind.protocol, behind.bytes, behind.layout) == (row.protocol, row.bytes, row.layout)
        accounted(found, behind)


def test_a_header_before_tls() -> None:
    inside = said(ROOT / "golden" / FAMILIES[0])
    one = talk(inside)
    (side, first), *rest = one.sent
    capture = Wire().send([(side, V1 + first), *rest]).end().capture()
    found, (row,) = read(capture, keys=log_of(one.keys))
    plain, _ = read(Wire().send(inside).end().capture())
    assert messages(found) == messages(plain) and len(messages(found)) == 12
    assert (row.facts["tls"], row.facts["proxy_client"]) == ("1.3", "192.0.2.10:51234")
    _, (sealed,) = read(capture)
    assert (sealed.name, sealed.facts["proxy_client"]) == ("TLS", "192.0.2.10:51234")


@pytest.mark.parametrize("until", [2, 3, 5, 20, 48, 50, 53])
def test_a_conversation_goes_on_in_another_process(until: int) -> None:
    capture = open_capture(io.BytesIO(proxied(FAMILIES[0], V1, "byte by byte")), name="test")
    segments = segments_of(capture)
    whole, split = Session(Options(), KeyLog()), Session(Options(), KeyLog())
    expected = [one for segment in segments for one in whole.feed(segment)] + whole.finish()
    found = [one for segment in segments[:until] for one in split.feed(segment)]
    split = Session.restore(split.snapshot(), Options(), KeyLog())
    found += [one for segment in segments[until:] for one in split.feed(segment)] + split.finish()
    assert [one.record for one in found] == [one.record for one in expected]
    assert list(split.table.rows(False)) == list(whole.table.rows(False))


def segments_of(capture: Any) -> list[Any]:
    from streamdump.capture.link import LinkParser

    parser = LinkParser()
    packets = [packet for batch in capture.batches() for packet in batch]
    return [segment for order, packet in enumerate(packets) if (segment := parser.segment(packet, order)) is not None]


NONE = {
    "a line without an end": b"PROXY TCP4 " + b"1" * LARGEST_1,
    "no text": b"PROXY \xff\xfe\r\n",
    "another version": BEGIN_2 + b"\x31\x11\0\x0c" + FOUR,
    "too large": BEGIN_2 + b"\x21\x11" + struct.pack(">H", LARGEST_2) + bytes(LARGEST_2),
    "cut off": V1[:20],
}


@pytest.mark.parametrize("case", NONE)
def test_what_is_no_header_stays(case: str) -> None:
    wire = Wire().send([(CLIENT, NONE[case]), (SERVER, b"what?")]).end()
    found, (row,) = read(wire.capture())
    assert not messages(found)
    assert row.bytes == (len(NONE[case]), 5)
    assert not [name for name in row.facts if name.startswith("proxy")]
    (finding,) = diagnosed(wire.capture())[0]
    assert finding.cause == "the port is that of rabbitmq-stream, but the bytes are PROXY (damaged)"


@pytest.mark.parametrize("lost", range(3, 7))
def test_lost_bytes_of_a_header(lost: int) -> None:
    (_, first), *rest = said(ROOT / "golden" / FAMILIES[0])
    thirds = [(CLIENT, V1[at : at + 16]) for at in (0, 16, 32)]
    capture = Wire().send([*thirds, (CLIENT, first), *rest]).end().capture(without=[lost])
    for rows in (1, 7, None):
        found, (row,) = read(capture, rows)
        assert row.protocol == "rabbitmq-stream"
        assert len(messages(found)) >= 11
        accounted(found, row)


def test_the_server_does_not_begin_with_a_header() -> None:
    (_, first), *rest = said(ROOT / "golden" / FAMILIES[0])
    _, (row,) = read(Wire().send([(CLIENT, first), (SERVER, V1), *rest]).end().capture())
    assert not [name for name in row.facts if name.startswith("proxy")]


# What diagnose says


@pytest.mark.parametrize("raw", [V1, v2(0x11, FOUR)], ids=["1", "2"])
@pytest.mark.parametrize(("path", "port"), [*zip(FAMILIES, PORTS, strict=True), (FAMILIES[0], 9999)])
@pytest.mark.parametrize("flags", [FIN | ACK, RST | ACK])
def test_a_server_that_expects_no_header(path: str, port: int, raw: bytes, flags: int) -> None:
    wire = Wire(port=port).send([(CLIENT, raw), *said(ROOT / "golden" / path)[:1]])
    wire._put(SERVER, b"", flags)
    first, *_ = diagnosed(wire.capture())[0]
    assert (first.rule, first.severity) == ("tcp.proxy-header-unexpected", "error")
    assert first.cause == (
        f"the client begins with a PROXY header (version {1 if raw is V1 else 2}), and the server {'closes' if flags & FIN else 'resets'} "
        "the connection without an answer: the server probably expects no such header"
    )


def silent(raw: bytes) -> Wire:
    wire = Wire().send([(CLIENT, raw), *said(ROOT / "golden" / FAMILIES[0])[:1]])
    wire._put(SERVER, b"", ACK)
    wire.time_ns += 30 * SECOND
    return wire


def test_tls_behind_a_header_that_is_not_expected() -> None:
    hello = talk([]).sent[0][1]
    wire = Wire().send([(CLIENT, V1), (CLIENT, hello)])
    wire._put(SERVER, b"", FIN | ACK)
    assert [one.rule for one in diagnosed(wire.capture())[0]] == ["tcp.proxy-header-unexpected"]


def test_a_server_that_waits_for_the_rest_of_the_line() -> None:
    begin = "the client begins with a PROXY header (version 1), and the server has not sent an answer for 30 s when the"
    end = "the server probably expects no such header"
    wire = silent(V1)
    wire._put(CLIENT, b"", ACK)
    first, *_ = diagnosed(wire.capture())[0]
    assert (first.severity, first.cause) == ("warning", f"{begin} capture ends: {end}")
    wire = silent(V1)
    wire._put(CLIENT, b"", FIN | ACK)
    first, *_ = diagnosed(wire.capture())[0]
    assert (first.severity, first.cause) == ("error", f"{begin} client closes the connection: {end}")


def test_a_header_alone_is_not_unknown() -> None:
    wire = Wire().send([(CLIENT, V1)])
    wire._put(SERVER, b"", ACK)
    wire.time_ns += 30 * SECOND
    wire._put(CLIENT, b"", ACK)
    assert [one.rule for one in diagnosed(wire.capture())[0]] == ["tcp.proxy-header-unexpected"]
    one = Connection().open().ask(V1).ask(b"what is this? ")
    (unknown,) = [one for one in diagnosed(capture(one))[0] if one.rule == "tcp.unknown-bytes"]
    assert "(14 bytes from the client)" in unknown.cause


def test_a_server_that_answers_in_another_protocol() -> None:
    wire = Wire().send([(CLIENT, V1), *said(ROOT / "golden" / FAMILIES[0])[:1], (SERVER, b"HTTP/1.1 400 Bad Request\r\n\r\n")])
    wire._put(SERVER, b"", FIN | ACK)
    first, *_ = diagnosed(wire.capture())[0]
    assert first.cause == (
        "the client begins with a PROXY header (version 1), and the server closes the connection without an answer in rabbitmq-stream: "
        "the server probably expects no such header"
    )


def test_a_look_of_the_balancer_is_no_trouble() -> None:
    for raw in (b"PROXY UNKNOWN\r\n", v2(0x00, b"", command=0)):
        assert "tcp.proxy-header-unexpected" not in [one.rule for one in diagnosed(Wire().send([(CLIENT, raw)]).end().capture())[0]]


def test_reports() -> None:
    findings, (outcome,), _ = diagnosed(REPORTS / "p1_proxy_v1.pcap")
    assert (findings, outcome.reached, outcome.ended) == ([], "ready", "Close by client")
    (finding,) = diagnosed(REPORTS / "p4_proxy_to_plain.pcap")[0]
    assert (finding.rule, finding.severity) == ("tcp.proxy-header-unexpected", "error")


# What scrub leaves


@pytest.mark.parametrize("way", ["alone", "together", "byte by byte"])
@pytest.mark.parametrize("header", [name for name, (_, facts) in HEADERS.items() if "proxy_client" in facts])
def test_scrub_replaces_the_addresses(header: str, way: str, tmp_path: Path) -> None:
    raw, facts = HEADERS[header]
    source, target = tmp_path / "in.pcap", tmp_path / "out.pcap"
    source.write_bytes(proxied(FAMILIES[0], raw, way))
    scrub(source, target, ScrubOptions(addresses=True), Options())
    before, _ = read(source.read_bytes())
    after, (row,) = read(target.read_bytes())
    assert [one[2:7] for one in messages(after)] == [one[2:7] for one in messages(before)]
    assert row.facts["proxy_header"] == facts["proxy_header"]
    assert row.facts.get("proxy_damaged") == facts.get("proxy_damaged")
    for name in ("proxy_client", "proxy_server"):
        assert row.facts[name].rpartition(":")[0] != facts[name].rpartition(":")[0] or "UNIX" in facts["proxy_header"]
    for text in (b"192.0.2.10", b"198.51.100.7", b"2001:db8::1", FOUR[:4], FOUR[4:8], SIX[:16], SIX[16:32], b"/run/lb", b"broker.test"):
        if text in raw:
            assert text not in b"".join(data for _, data in said_in(target))


def said_in(path: Path) -> list[tuple[int, bytes]]:
    return said(path)


def test_scrub_keeps_a_header_where_addresses_may_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "in.pcap", tmp_path / "out.pcap"
    source.write_bytes(proxied(FAMILIES[0], V1, "together"))
    scrub(source, target, ScrubOptions(), Options())
    after, (row,) = read(target.read_bytes())
    assert row.facts["proxy_client"] == "192.0.2.10:51234"
    secrets = [one.fields for one in after if isinstance(one, Message) and one.name == "SaslAuthenticate" and one.kind == "request"]
    assert len(secrets) == 1
    assert said(target)[0][1] == said(source)[0][1]


def test_scrub_replaces_addresses_before_what_is_not_read(tmp_path: Path) -> None:
    source, target = tmp_path / "in.pcap", tmp_path / "out.pcap"
    source.write_bytes(Wire(port=9999).send([(CLIENT, V1 + b"what is this? " * 9), (SERVER, b"who knows? " * 9)]).end().capture())
    scrub(source, target, ScrubOptions(addresses=True), Options())
    (_, data), *_ = said(target)
    assert b"192.0.2.10" not in data and data.endswith(b"what is this? " * 9)


def test_the_checksum_is_that_of_the_document() -> None:
    assert sum_of(b"123456789" + bytes(4), 9) != bytes(4)
    # CRC-32C of 32 zero bytes, as in RFC 3720, B.4 (little-endian there)
    assert sum_of(bytes(32), 28) == bytes.fromhex("8a9136aa")
