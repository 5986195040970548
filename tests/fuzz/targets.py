"""The targets of fuzzing: each turns bytes into a capture, reads it in every way, and fails on a bug.

What must hold for any bytes: only `CaptureError` is raised, every byte of a byte stream is in one message or gap, the records are valid,
batches do not change them, the bytes bound the work, and no secret is shown. Golden files, settings and key logs are targets too.
"""

from __future__ import annotations

import io
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from streamdump.capture.files import open_capture
from streamdump.cli.run import account
from streamdump.errors import CaptureError, UsageError
from streamdump.golden.check import read_golden
from streamdump.golden.compare import differences
from streamdump.golden.settings import CheckSettings, read_settings
from streamdump.golden.text import GoldenError, parsed, written
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from streamdump.protocols import PROTOCOLS
from streamdump.render import conversations as conversation_view
from streamdump.render.hexdump import hexdump
from streamdump.render.jsonl import encode
from streamdump.render.summary import Lines
from streamdump.render.tree import tree
from streamdump.tls.keys import LABELS, KeyLog
from tests.support.frames import ACK, ETHERNET, PSH, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp
from tests.support.logins import RABBITMQ, SECRET
from tests.support.planting import Result, adds_up
from tests.support.schema import validate
from tests.support.secrets import conversation as connection
from tests.support.secrets import found, texts
from tests.support.websocket import request, response

PORTS = {protocol.name: protocol.ports[0] for protocol in PROTOCOLS}
SAYS = {protocol.name: protocol.loaded.info for protocol in PROTOCOLS}
KEYS = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "tls_keys_310.pcapng"
DICTIONARY = (Path(__file__).parents[2] / "captures" / "golden" / "seastar-rpc" / "scylla_v3_first.dict").read_bytes()
TLS_PORT, WEBSOCKET_PORT = 5551, 8092
LINKS = (ETHERNET, 0, 108, 9, 50, 113, 276, 12, 14, 101, 228, 229)

CALLS, CALLS_A_BYTE = 120_000, 150
"""Function calls that one reading of a capture may cost: a constant, and a number for each byte."""

Target = Callable[[bytes], None]


class TooMuch(AssertionError):
    """A capture costs more work than its size allows."""


@contextmanager
def counted(allowed: int) -> Iterator[None]:
    """Fail if more functions are called, built-in ones included: a measure that does not depend on the load of the machine."""
    left = allowed

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        if left < 0:
            sys.setprofile(None)
            raise TooMuch(f"more than {allowed:,} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def read(capture: bytes, rows: int | None = None, **options: Any) -> tuple[Result, Inspector]:
    inspector = Inspector([open_capture(io.BytesIO(capture), name="capture")], Options(**{"exchanges": True, **options}), rows)
    records = list(inspector.records())
    return Result(records, inspector.rows(), inspector.reports), inspector


def look(capture: bytes, deep: bool = True, **options: Any) -> None:
    """Read a capture in every way and check all properties; `deep`: also count the work and validate the records."""
    if deep:
        with counted(CALLS + CALLS_A_BYTE * len(capture)):
            result, inspector = read(capture, **options)
    else:
        result, inspector = read(capture, **options)
    adds_up(result)
    if deep:
        for line in encode(result.records).splitlines() + encode(result.rows).splitlines():
            validate(msgspec.json.decode(line))
    Lines(SAYS, "e").text(result.records)
    conversation_view.plain(result.rows)
    account(inspector, None)
    one_by_one, _ = read(capture, 1, **options)
    assert encode(result.records) == encode(one_by_one.records)
    assert encode(result.rows) == encode(one_by_one.rows)
    detailed, _ = read(capture, detail=True, **options)
    for record in detailed.records:
        if isinstance(record, Message):
            for _ in (*tree(record, False), *hexdump(record, False)):
                pass
    encode(detailed.records)


class Kept(NamedTuple):
    """A segment of one side, or bytes of it that were lost."""

    side: int
    data: bytes
    lost: bool = False


def segments(program: bytes) -> tuple[bool, list[Kept]]:
    """Return whether a program has a SYN, and its segments. A program is a byte of flags, then for each segment a byte with its side and
    whether it is lost, repeated or swapped, a little-endian length of two bytes, and the bytes."""
    sent: list[Kept] = []
    syn = bool(program[:1] and program[0] & 1)
    at = 1
    while at + 3 <= len(program):
        control, size = struct.unpack_from("<BH", program, at)
        one = Kept(control & 1, program[at + 3 : at + 3 + size], control >> 1 & 7 == 5)
        at += 3 + size
        sent.append(one)
        if control >> 1 & 7 == 6:
            sent.append(one._replace(data=b""))  # what was sent last is sent again
        elif control >> 1 & 7 == 7 and len(sent) > 1:
            sent[-2:] = sent[:-3:-1]
    return syn, sent


def program(sent: list[tuple[int, bytes]], syn: bool = True) -> bytes:
    """Return the program of the bytes that two sides send, in segments of at most 65,535 bytes."""
    parts = [bytes([syn])]
    for side, data in sent:
        for at in range(0, len(data), 65_535):
            piece = data[at : at + 65_535]
            parts += [struct.pack("<BH", side, len(piece)), piece]
    return b"".join(parts)


def conversation(syn: bool, sent: list[Kept], port: int) -> bytes:
    """Return a capture of one connection to a port."""
    places = [1000, 5000]
    before: list[tuple[int, bytes]] = [(1000, b""), (5000, b"")]
    found: list[Packet] = []

    def put(side: int, seq: int, data: bytes, flags: int) -> None:
        ports, ends = ((40_000, port), (A, B)) if side == 0 else ((port, 40_000), (B, A))
        segment = tcp(data, sport=ports[0], dport=ports[1], seq=seq & 0xFFFF_FFFF, ack=places[1 - side] & 0xFFFF_FFFF, flags=flags)
        found.append(Packet(ethernet(ip4(segment, src=ends[0], dst=ends[1])), START_NS + len(found) * 1_000_000))

    if syn:
        put(0, 999, b"", SYN)
        put(1, 4999, b"", SYN | ACK)
    for side, data, lost in sent:
        if lost:
            places[side] += len(data)
        elif data:
            # IPv4 has no room for more
            for at in range(0, len(data), 60_000):
                piece = data[at : at + 60_000]
                before[side] = places[side], piece
                put(side, places[side], piece, ACK | PSH)
                places[side] += len(piece)
        else:
            put(side, *before[side], ACK | PSH)
    return pcap(found)


def files(data: bytes, deep: bool = True) -> None:
    """Capture files of any format, compressed or not."""
    try:
        open_capture(io.BytesIO(data), name="capture")
    except CaptureError:
        return
    look(data, deep)


def links(data: bytes, deep: bool = True) -> None:
    """Packets of any link layer: a byte with the link layer, then for each packet a length of one byte."""
    found = []
    at = 1
    while at < len(data):
        size = data[at]
        found.append(Packet(data[at + 1 : at + 1 + size], START_NS + len(found) * 1000, size or None))
        at += 1 + size
    look(pcap(found, LINKS[(data or b"\0")[0] % len(LINKS)]), deep)


def tcps(data: bytes, deep: bool = True) -> None:
    """Segments of two connections in any order, with any numbers and flags: each is twelve bytes, then its payload."""
    found = []
    at = 0
    while at + 12 <= len(data):
        control, flags, seq, ack, wait, size = struct.unpack_from("<BBHHIBx", data, at)
        payload = data[at + 12 : at + 12 + size]
        at += 12 + size
        sport, dport = (40_000 + (control >> 1 & 1), 5552) if control & 1 else (5552, 40_000 + (control >> 1 & 1))
        ends = (A, B) if control & 1 else (B, A)
        # Near the end of the numbers, in the middle, and far away
        base = (0, 0xFFFF_FF00, 0x7FFF_FF00, 0x4000_0000)[control >> 2 & 3]
        segment = tcp(payload, sport=sport, dport=dport, seq=(base + seq) & 0xFFFF_FFFF, ack=(base + ack) & 0xFFFF_FFFF, flags=flags & 0x3F)
        raw = ethernet(ip4(segment, src=ends[0], dst=ends[1]))
        cut = len(raw) - (control >> 4) if control >> 4 < len(payload) else len(raw)
        found.append(Packet(raw[:cut], START_NS + len(found) * 1000 + wait, len(raw)))
    look(pcap(found, nano=True), deep)


def talk(name: str | None, port: int) -> Target:
    """Conversations of a protocol, or (None) of any, on a port."""

    def target(data: bytes, deep: bool = True) -> None:
        options = {} if name is None else {"decode_as": ((port, name, None),)}
        look(conversation(*segments(data), port), deep, **options)

    return target


def entries(data: bytes, deep: bool = True) -> None:
    """Bodies of RabbitMQ Streams: a byte with the codec (1 to 7: of a sub-batch), then an AMQP message, or many, or anything."""
    how, body = (data or b"\0")[0] & 7, data[1:]
    if how:
        head = struct.pack(">BBHIqQQIIII", 0x50, 0, 1, 1, 1_700_000_000_000, 1, 0, 0, len(body) + 11, 0, 0)
        batch = struct.pack(">BHII", 0x80 | how << 4 & 0x70, 1, min(len(body) * 10, 1 << 20), len(body))
        payload = struct.pack(">HHB", 8, 1, 0) + head + batch + body
        sent = [(0, _frame(struct.pack(">HHIB", 7, 1, 9, 0) + b"\0\1a\0\1\0\1\0\0")), (1, _frame(payload))]
    else:
        sent = [(0, _frame(struct.pack(">HHBIQI", 2, 1, 0, 1, 7, len(body)) + body))]
    port = PORTS["rabbitmq-stream"]
    look(conversation(*segments(program(sent)), port), deep, decode_as=((port, "rabbitmq-stream", None),))


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def logins(data: bytes, deep: bool = True) -> None:
    """A login to RabbitMQ Streams, chosen by the first byte, with bytes of it changed: by frame, place and new value."""
    login = RABBITMQ[(data or b"\0")[0] % len(RABBITMQ)]
    sent = [(side, bytearray(frame)) for side, frame in login.sent]
    for at in range(1, min(len(data) - 3, 40), 4):
        frame = sent[data[at] % len(sent)][1]
        frame[int.from_bytes(data[at + 1 : at + 3], "big") % len(frame)] = data[at + 3]
    forced = login.forced() if data[:1] > b"\x80" else ()
    leaks = found(SECRET, texts(connection([(side, bytes(frame)) for side, frame in sent], login.port), full=deep, decode_as=forced))
    assert not leaks, leaks


def documents(data: bytes, deep: bool = True) -> None:
    """BSON in mewbase's frames: the bytes are the elements of a document."""
    body = b"\x02type\0\x08\0\0\0PUBLISH\0\x03frame\0" + struct.pack("<I", len(data) + 5) + data + b"\0\0"
    document = struct.pack("<I", len(body) + 4) + body
    port = PORTS["mewbase"]
    look(conversation(*segments(program([(0, document), (1, document)])), port), deep, decode_as=((port, "mewbase", None),))


def scylla(data: bytes, deep: bool = True) -> None:
    """Frames of ScyllaDB's compression behind a negotiation, in segments of both sides, or from the middle on if the first byte is even."""
    records = b"".join(struct.pack("<II", number, len(text)) + text for number, text in ((0, b"SCYLLA_V3"), (1, b""), (5, b"")))
    hello = b"SSTARRPC" + struct.pack("<I", len(records)) + records
    syn, sent = segments(data)
    whole = [Kept(0, hello), Kept(1, hello), *sent] if syn else sent
    port = PORTS["seastar-rpc"]
    layout = None if syn else "rpc+timeout+duration+scylla_v3"
    look(conversation(syn, whole, port), deep, decode_as=((port, "seastar-rpc", layout),), dictionaries=(DICTIONARY,))


def tls(data: bytes, deep: bool = True) -> None:
    """Records of TLS, with the keys of the capture that the seeds are from."""
    look(conversation(*segments(data), TLS_PORT), deep, keylog=(str(KEYS),))


def websocket(data: bytes, deep: bool = True) -> None:
    """Frames of WebSocket behind an upgrade, in segments of both sides, or from the middle on if the first byte is even."""
    syn, sent = segments(data)
    look(conversation(syn, [Kept(0, request()), Kept(1, response()), *sent] if syn else sent, WEBSOCKET_PORT), deep)


@contextmanager
def limited(data: bytes, deep: bool, name: str) -> Iterator[Path]:
    """A file of these bytes; if `deep`, the work that is done with it is counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        with counted(CALLS + CALLS_A_BYTE * len(data)) if deep else nullcontext():
            yield path


def settings(data: bytes, deep: bool = True) -> None:
    """The settings of `check`, which are read as config.toml is."""
    with limited(data, deep, "streamdump.toml") as path, suppress(UsageError):
        read_settings(path)


def goldens(data: bytes, deep: bool = True) -> None:
    """A golden file is read, compared with itself and with its first half, and written as it was read."""
    with limited(data, deep, "any.golden") as path, suppress(GoldenError):
        text = read_golden(path)
        assert text is not None
        golden = parsed(text, "golden")
        assert differences(golden, golden, CheckSettings()) == []
        again = written(golden)
        assert written(parsed(again.encode("utf-8", "backslashreplace").decode(), "again")) == again
        differences(golden, parsed(text[: len(text) // 2], "half"), CheckSettings())


def key_logs(data: bytes, deep: bool = True) -> None:
    """A key log says the same read as a file and taken line by line."""
    with limited(data, deep, "keys.log") as path:
        log, other = KeyLog((str(path),)), KeyLog()
        sessions = log._loaded_sessions()
        if not log.errors and not data.startswith((b"\xef\xbb\xbf", b"\x0a\x0d\x0d\x0a")):
            for line in data.split(b"\n"):
                other.add(line)
            assert sessions == other._loaded_sessions()
        for session in sessions:
            assert log.lines(session)
            for label in LABELS:
                log.find(session, label)


TARGETS: dict[str, Callable[..., None]] = {
    "files": files,
    "links": links,
    "tcp": tcps,
    "entries": entries,
    "documents": documents,
    "logins": logins,
    "scylla": scylla,
    "tls": tls,
    "websocket": websocket,
    "settings": settings,
    "goldens": goldens,
    "key-logs": key_logs,
    "detect": talk(None, 9999),
    **{name: talk(name, port) for name, port in PORTS.items()},
}
