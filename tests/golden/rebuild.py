"""Captures made anew from what others say: the frames of each conversation, perhaps changed, under other endpoints, numbers and times."""

from __future__ import annotations

import io
import random
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from streamdump.capture.files import open_capture
from streamdump.golden.compare import Difference, differences
from streamdump.golden.model import Transcript
from streamdump.golden.normalise import Normaliser
from streamdump.golden.settings import CheckSettings
from streamdump.golden.text import parsed, written
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from tests.support.frames import ACK, FIN, PSH, START_NS, SYN, Packet, ethernet, ip4, pcap, tcp
from tests.support.rewrite import Packet as Raw
from tests.support.rewrite import capture, packets, tcp_offset

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


class Frame(NamedTuple):
    """One frame: of which conversation, sent by side 0 (the client) or 1, its message's name and kind, its bytes."""

    conversation: int
    side: int
    name: str
    kind: str
    data: bytes
    number: int = 0
    request: int | None = None


def frames(path: Path) -> list[Frame]:
    """What both sides of all conversations sent, in capture order."""
    return frames_of(path.read_bytes())


def frames_of(data: bytes) -> list[Frame]:
    inspector = Inspector([open_capture(io.BytesIO(data))], Options(detail=True))
    found = []
    for record in inspector.records():
        if isinstance(record, Message):
            assert record.raw is not None
            side = 0 if record.sender == "client" else 1
            found.append(Frame(record.conversation, side, record.name, record.kind, record.raw["frame"], record.number, record.request))
    return found


def rebuilt(found: Iterable[Frame], seed: int = 0, port: int = 5552) -> bytes:
    """A pcap in which these frames are sent, each conversation between endpoints of its own, segments cut at random places."""
    chance = random.Random(seed)
    packets: list[Packet] = []
    when = START_NS + chance.randrange(1 << 40)
    server = bytes((192, 0, 2, chance.randrange(1, 250)))
    talks: dict[int, tuple[bytes, int, list[int]]] = {}

    def send(conversation: int, side: int, payload: bytes, flags: int) -> None:
        nonlocal when
        when += chance.randrange(1_000, 2_000_000)
        client, source, numbers = talks[conversation]
        ends = (client, source), (server, port)
        (src, sport), (dst, dport) = ends[side], ends[1 - side]
        ack = numbers[1 - side] if flags & ACK else 0
        segment = tcp(payload, sport=sport, dport=dport, seq=numbers[side], ack=ack, flags=flags)
        packets.append(Packet(ethernet(ip4(segment, src=src, dst=dst)), when))
        numbers[side] = numbers[side] + len(payload) + bool(flags & (SYN | FIN)) & 0xFFFF_FFFF

    for frame in found:
        if frame.conversation not in talks:
            numbers = [chance.randrange(1 << 32), chance.randrange(1 << 32)]
            talks[frame.conversation] = bytes((198, 51, 100, chance.randrange(1, 250))), chance.randrange(20_000, 60_000), numbers
            send(frame.conversation, 0, b"", SYN)
            send(frame.conversation, 1, b"", SYN | ACK)
            send(frame.conversation, 0, b"", ACK)
        at = 0
        while at < len(frame.data):
            size = chance.choice((1, 7, 100, 1448, 20_000))
            send(frame.conversation, frame.side, frame.data[at : at + size], PSH | ACK)
            at += size
    for conversation in talks:
        send(conversation, 0, b"", FIN | ACK)
        send(conversation, 1, b"", FIN | ACK)
        send(conversation, 0, b"", ACK)
    return pcap(packets, nano=True)


def disguised(path: Path, seed: int = 1) -> io.BytesIO:
    """The same packets at another time, between other endpoints, with other sequence numbers; texts that name a client are changed too."""
    chance = random.Random(seed)
    found = packets(path)
    servers = {_ends(one, at)[1] for one in found if (at := tcp_offset(one)) is not None and one.raw[at + 13] & 0x12 == 2}
    ports: dict[int, int] = {}
    shifts: dict[bytes, int] = {}
    addresses: dict[bytes, bytes] = {}
    texts: dict[bytes, bytes] = {}
    later = chance.randrange(1 << 50)

    def address(old: bytes) -> bytes:
        if old not in addresses:
            addresses[old] = bytes((10, 20, 3, 4 + len(addresses))) if len(old) == 4 else bytes((0x20, 1, 0xD, 0xB8)) + old[4:]
        return addresses[old]

    def port(end: tuple[bytes, int]) -> int:
        number = end[1]
        if number not in ports:
            kept = end in servers or not servers or number < 20_000
            ports[number] = number if kept else chance.choice([one for one in range(20_000, 60_000) if one not in ports.values()])
            texts[b"127.0.0.1:%d" % number] = b"10.20.3.4:%d" % ports[number]
        return ports[number]

    out = []
    for one in found:
        at = tcp_offset(one)
        raw = bytearray(one.raw)
        if at is not None:
            source, target = _ends(one, at)
            size, start = (4, at - 8) if len(source[0]) == 4 else (16, at - 32)
            raw[start : start + size], raw[start + size : start + 2 * size] = address(source[0]), address(target[0])
            struct.pack_into(">HH", raw, at, port(source), port(target))
            for key, place in ((bytes(source[0]) + bytes(target[0]) + one.raw[at : at + 4], at + 4), (b"", at + 8)):
                key = key or bytes(target[0]) + bytes(source[0]) + one.raw[at + 2 : at + 4] + one.raw[at : at + 2]
                shift = shifts.setdefault(key, chance.randrange(1 << 32))
                if place == at + 4 or raw[at + 13] & ACK:
                    struct.pack_into(">I", raw, place, struct.unpack_from(">I", raw, place)[0] + shift & 0xFFFF_FFFF)
            data = at + (raw[at + 12] >> 4) * 4
            raw[data:] = re.sub(rb"127\.0\.0\.1:[0-9]{5}", lambda text: texts.get(text[0], text[0]), bytes(raw[data:]))
        out.append(Raw(one.time_ns + later, one.link, one.wire, bytes(raw)))
    return capture(out)


def _ends(one: Raw, at: int) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    ports = struct.unpack_from(">HH", one.raw, at)
    # the version stands before the addresses
    four = any(at >= back and one.raw[at - back] >> 4 == 4 and (one.raw[at - back] & 15) * 4 == back for back in (20, 24, 28, 32))
    size, start = (4, at - 8) if four else (16, at - 32)
    return (one.raw[start : start + size], ports[0]), (one.raw[start + size : start + 2 * size], ports[1])


def said(source: io.BytesIO, settings: CheckSettings | None = None) -> Transcript:
    """What a capture says."""
    inspector = Inspector([open_capture(source)], Options(bytes_as="raw"))
    normaliser = Normaliser(settings or CheckSettings())
    for batch in inspector.batches():
        normaliser.feed(batch)
    return normaliser.finish(inspector.rows())


def said_bytes(data: bytes, settings: CheckSettings | None = None) -> Transcript:
    return said(io.BytesIO(data), settings)


def compared(golden: bytes, got: bytes, settings: CheckSettings | None = None) -> list[Difference]:
    """What differs between two captures, the first of them as a golden file."""
    settings = settings or CheckSettings()
    expected = parsed(written(said_bytes(golden, settings)), "golden")
    now = said_bytes(got, settings)
    Normaliser(settings).again(expected)
    return differences(expected, now, settings)
