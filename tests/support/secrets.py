"""Plants a secret in conversations, damages them, and looks for it in everything that the tool can say of them."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from streamdump.capture.files import open_capture
from streamdump.cli.run import account
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from streamdump.protocols import PROTOCOLS
from streamdump.render import conversations as conversation_view
from streamdump.render.hexdump import hexdump
from streamdump.render.jsonl import encode
from streamdump.render.summary import Lines
from streamdump.render.tree import tree
from tests.support.frames import ACK, PSH, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp

CLIENT, SERVER = 0, 1

PIECE = 6
"""So many bytes of a secret in a row give it away."""

SAYS = {protocol.name: protocol.loaded.info for protocol in PROTOCOLS}

Sent = tuple[int, bytes]
"""A side and what it sends in one segment."""


class Lost(NamedTuple):
    """Bytes that were sent and not captured."""

    side: int
    size: int


def conversation(sent: Iterable[Sent | Lost], port: int, *, syn: bool = True, client_port: int = 40_000) -> list[Packet]:
    """The packets of a connection, in the order in which its segments are given."""
    places = [1000, 5000]
    packets: list[Packet] = []

    def put(side: int, data: bytes = b"", flags: int = ACK) -> None:
        ports = (client_port, port) if side == CLIENT else (port, client_port)
        addresses = {"src": A, "dst": B} if side == CLIENT else {"src": B, "dst": A}
        seq = places[side] - (1 if flags & SYN else 0)
        segment = tcp(data, sport=ports[0], dport=ports[1], seq=seq, ack=places[1 - side], flags=flags)
        packets.append(Packet(ethernet(ip4(segment, **addresses)), START_NS + len(packets) * 1_000_000))

    if syn:
        put(CLIENT, flags=SYN)
        put(SERVER, flags=SYN | ACK)
    for side, data in sent:
        if isinstance(data, int):
            places[side] += data
        else:
            put(side, data, ACK | PSH)
            places[side] += len(data)
    return packets


def texts(packets: Sequence[Packet], full: bool = False, **options: Any) -> dict[str, str]:
    """What is said of a capture, by the way it is said; `full`: in every way."""
    capture = pcap(packets)
    said: dict[str, str] = {}

    def run(**more: Any) -> tuple[list[Any], Inspector]:
        inspector = Inspector([open_capture(io.BytesIO(capture), name="capture")], Options(**options, **more))
        return list(inspector.records()), inspector

    records, inspector = run(exchanges=True, bytes_as="text")
    rows = inspector.rows()
    said["json text"] = encode(records).decode()
    said["conversations"] = encode(rows).decode() + conversation_view.plain(rows)
    said["closing line"] = "; ".join(account(inspector, None)[0])
    records, _ = run(detail=True)
    said["details"] = Lines(SAYS, after=_details).text(records)
    if full:
        said["json"] = encode(run()[0]).decode()
        said["json base64"] = encode(run(bytes_as="base64")[0]).decode()
        said["json omit"] = encode(run(bytes_as="omit")[0]).decode()
        said["no bodies"] = Lines(SAYS, "e").text(run(bodies=False)[0])
        records, _ = run(detail=True, bytes_as="base64")
        said["details base64"] = Lines(SAYS, after=_details, columns=400).text(records)
    return said


def _details(message: Message) -> str:
    return "\n".join([*tree(message, False), *hexdump(message, False)])


_HEX = re.compile(r"(?:[0-9a-f]{2}){6,}")
_DUMP = re.compile(r"^    [0-9a-f]{4}  ((?:(?:[0-9a-f]{2}|\*\*|  )  ?){16})  ?(.{1,16})", re.MULTILINE)
_FIELD = re.compile(r"^    \[[0-9a-f]{4}\+\d+\] +((?:(?:[0-9a-f]{2}|\*\*) )*(?:[0-9a-f]{2}|\*\*))? ", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}")


@cache
def _pieces(secret: bytes) -> re.Pattern[bytes]:
    """Any piece of the secret, as it is or backwards."""
    some = {one[at : at + PIECE] for one in (secret, secret[::-1]) for at in range(len(secret) - PIECE + 1)}
    return re.compile(b"|".join(map(re.escape, some)))


def found(secret: bytes, said: dict[str, str]) -> list[str]:
    """How and where the secret, or a piece of it, can be read."""
    leaks: list[str] = []
    for how, text in said.items():
        for form, data in _readings(how, text):
            hit = _pieces(secret).search(data)
            if hit is not None:
                leaks.append(f"{how}, {form}: {hit[0]!r}")
    return leaks


def _readings(how: str, text: str) -> Iterator[tuple[str, bytes]]:
    """What bytes somebody could make of a text."""
    yield "as it is", text.encode("utf-8", "surrogatepass")
    yield "hex", b"\0".join(bytes.fromhex(match) for match in _HEX.findall(text))
    if "json" in how:
        values: list[bytes] = []
        for line in text.splitlines():
            record = json.loads(line)
            values.extend(_values(record))
            values.extend(_numbers(record.get("fields") or {}))
        yield "values", b"\0".join(values)
    if "base64" in how:
        words = [match[skip:].rstrip("=") for match in _WORD.findall(text) for skip in range(4)]
        yield "base64", b"\0".join(base64.b64decode(word[: len(word) // 4 * 4]) for word in words)
    if "details" in how:
        rows = _DUMP.findall(text)
        yield "dump", b"".join(_bytes(row[0]) for row in rows)
        # what stands beside the bytes, row after row
        yield "characters", "".join(row[1] for row in rows).encode()
        yield "fields", b"".join(map(_bytes, _FIELD.findall(text)))


def _bytes(shown: str) -> bytes:
    return b"".join(b"\0*\0" if one == "**" else bytes.fromhex(one) for one in shown.split())


def _values(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key.encode("utf-8", "surrogatepass")
            yield from _values(one)
    elif isinstance(value, list):
        for one in value:
            yield from _values(one)
    elif isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
        # as `--bytes text` shows what is no text
        yield re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), value.encode("utf-8", "surrogatepass")).replace(
            b"\\\\", b"\\"
        )
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 32:
        yield value.to_bytes(16, "big", signed=True)
        yield value.to_bytes(16, "little", signed=True)
    elif isinstance(value, float):
        yield struct.pack(">d", value)
        yield struct.pack("<d", value)


_SIZES = {"size": 4, "key": 2, "version": 2, "correlation_id": 4, "length": 4, "code": 4, "status": 4}


def _numbers(fields: Any) -> Iterator[bytes]:
    """Numbers that follow each other in a frame, as bytes: a header may be no header."""
    run = backwards = b""
    for name, value in fields.items() if isinstance(fields, dict) else ():
        size = _SIZES.get(name)
        if size is not None and isinstance(value, int):
            raw = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
            run, backwards = run + raw, backwards + raw[::-1]
    yield run
    yield backwards
