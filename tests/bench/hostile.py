"""What made-up input costs: CPU a MB and peak memory of each class, largest first, marked where it is over the bound.

python -m tests.bench.hostile [CLASS...] [--size 0.3] [--views all|json,text,...] [--shapes usual|all|one] [--twice] [--list]

A class is named by a part of its name. A MB is a million bytes of packets after the file is unpacked, plus what sub-batches unpack to, plus
one for each value without bytes, and for `changed` the golden file; what a run over a capture of one packet takes is not counted.
`--twice` measures double the size too, which shows what is not linear: "growth" is the cost of the second half beside that of the first, 1
if linear and 3 if quadratic.
Each run is a fork of a process that has loaded all modules.

A class of bytes that somebody sends is a function marked `@sent`, which returns that many bytes for a side; it is sent in each of SHAPES.
Any other capture is a function marked `@made`, which returns a file and what counts besides its packets.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import gc
import gzip
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import cramjam

sys.path.insert(0, str(Path(__file__).parents[2]))

from streamdump.options import DEFAULTS
from streamdump.quota import UnpackPool
from tests.bench.generate import START_NS, frame, pairs, text, write
from tests.support.rewrite import packets, tcp_offset
from tests.support.websocket import refusal, request, response

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"

CAPTURE, OTHER, OUT = "<capture>", "<other>", "<out>"
"""In the arguments of a view: the file, one of the same class but a tenth smaller, and a file that does not exist."""


class View(NamedTuple):
    """A command line, the seconds of CPU a MB that it may take, and what must have run before."""

    arguments: tuple[str, ...]
    bound: float = 3.3
    before: tuple[str, ...] = ()


VIEWS: dict[str, View] = {
    "json": View(("--json", CAPTURE)),
    "text": View((CAPTURE,)),
    "V": View(("-V", CAPTURE), 13.2),
    "x": View(("-x", CAPTURE), 13.2),
    "diagnose": View(("diagnose", CAPTURE)),
    "findings": View(("--findings", "--json", CAPTURE)),
    "pipeline": View(("pipeline", CAPTURE)),
    "stats": View(("stats", CAPTURE)),
    "latency": View(("latency", CAPTURE)),
    "conversations": View(("conversations", CAPTURE)),
    "metrics": View(("metrics", "--label", "client,server,stream", CAPTURE)),
    "entries": View(("entries", CAPTURE)),
    "entries_json": View(("entries", "--json", CAPTURE)),
    "follow": View(("follow", "0", CAPTURE)),
    "matches": View(("--json", "-Y", 'raw matches "(a|b)*c.{0,40}d" or name matches "x+y"', CAPTURE)),
    "scrub": View(("scrub", CAPTURE, OUT)),
    "update": View(("check", "--update", CAPTURE)),
    "check": View(("check", CAPTURE), before=("check", "--update", CAPTURE)),
    "changed": View(("check", CAPTURE), before=("check", "--update", OTHER)),
    "diff": View(("diff", OTHER, CAPTURE)),
    "browse": View(("browse", CAPTURE)),
}
"""`changed` compares with the golden file of another capture; `pipeline` runs its tasks with findings in this process, without Spark;
`browse` reads and indexes, without a terminal."""

MEMORY, FOR_A_CONVERSATION, FOR_A_FRAME = 400_000_000, 1_000, 10
"""Bytes that a run may hold, and more for each conversation, and for each byte of the largest frame."""

GROWTH = 2.0
"""So much more may the second half of a capture cost than the first."""

PATIENCE = 20
"""Seconds of CPU after which a run is ended."""

MB = 1_000_000

LARGER = 40
"""So many times the usual size is a capture where the room for any run would hide what a conversation or a value takes."""


class Made(NamedTuple):
    """A capture file; what counts besides its packets; its conversations, and the size of its largest frame."""

    file: bytes
    size: int
    conversations: int = 1
    frame: int = 0
    options: tuple[str, ...] = ()


class Shape(NamedTuple):
    """How bytes are sent: in segments of what size, whether from a SYN on, by both sides, with every so manieth segment lost, by how many
    conversations, on which port, and read as which protocol."""

    segment: int = 1448
    syn: bool = False
    both: bool = True
    lost: int = 0
    of: int = 1
    port: int = 9999
    forced: str = ""

    def __str__(self) -> str:
        words = [str(self.segment)]
        words += ["syn"] * self.syn + ["one side"] * (not self.both)
        words += [f"1 of {self.lost} lost"] * (self.lost > 0) + [f"{self.of} conversations"] * (self.of > 1)
        words += [f"port {self.port}"] * (self.port != 9999) + [f"as {self.forced}"] * bool(self.forced)
        return ", ".join(words)


FORCED = (
    "rabbitmq-stream",
    "rabbitmq-stream-draft",
    "iggy",
    "iggy:L9",
    "iggy:V4",
    "iggy:V5",
    "iggy:replica",
    "seastar-rpc",
    "mewbase",
    "seastar-rpc:rpc+timeout",
)
FORCED_LAYOUTS = (
    "seastar-rpc:rpc",
    "seastar-rpc:stream",
    "seastar-rpc:stream+lz4",
    "seastar-rpc:rpc+duration+lz4_fragmented",
    "seastar-rpc:rpc+timeout+scylla_v3",
)

USUAL = (
    Shape(),
    Shape(syn=True),
    Shape(100, both=False),
    Shape(17, lost=5),
    Shape(1),
    Shape(65_000, syn=True, both=False),
    Shape(lost=7, of=20),
    *(Shape(lost=9, forced=name) for name in FORCED),
)
ALL = tuple(
    Shape(segment, syn, both, lost, of, 9999, forced)
    for segment in (1, 17, 100, 1448, 65_000)
    for syn in (False, True)
    for both in (False, True)
    for lost in (0, 2, 9)
    for of in (1, 50)
    for forced in ("", *FORCED, *FORCED_LAYOUTS)
)


# Packets


def ip(payload: bytes, ports: tuple[int, int], seq: int, ack: int, flags: int, address: int = 1, window: int = 512) -> bytes:
    """A packet of IPv4 and TCP, without a link layer: nothing in it is for nothing."""
    tcp = struct.pack(">HHIIBBHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 0x50, flags, window, 0, 0) + payload
    return struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, 0x0A000000 + address, 0x0A000000 + address) + tcp


def pcap(found: Iterable[bytes]) -> bytes:
    parts = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 101)]
    for number, packet in enumerate(found):
        second, rest = divmod(START_NS + number * 1_000, 1_000_000_000)
        parts.append(struct.pack("<IIII", second, rest, len(packet), len(packet)) + packet)
    return b"".join(parts)


def talk(streams: tuple[bytes, bytes], shape: Shape, address: int = 1) -> Iterator[bytes]:
    """The packets of one conversation whose sides send these bytes."""
    ports = (40_000 + address % 20_000, shape.port)
    where = [1_000, 5_000_000]
    if shape.syn:
        yield ip(b"", ports, where[0] - 1, 0, 2, address)
        yield ip(b"", ports[::-1], where[1] - 1, where[0], 18, address)
    at, number = 0, 0
    while at < max(map(len, streams)):
        for side in (0, 1):
            data = streams[side][at : at + shape.segment]
            number += bool(data)
            if data and not (shape.lost and number % shape.lost == 0):
                yield ip(data, ports[::-1] if side else ports, where[side] + at, where[1 - side] + at, 24, address)
        at += shape.segment


def sending(content: Callable[[int, int], bytes], size: int, shape: Shape) -> Made:
    """A capture of `size` bytes of packets in which everybody sends `content`."""
    share = size // shape.of * shape.segment // (shape.segment + 40)
    share = share * shape.lost // (shape.lost - 1) if shape.lost else share
    found: list[bytes] = []
    for one in range(shape.of):
        if shape.both:
            streams = content(share // 2, 0), content(share // 2, 1)
        else:
            streams = max(content(share, 0), content(share, 1), key=len), b""
        found += talk(streams, shape, one + 1)
    options = ("-d", f"tcp.port=={shape.port},{shape.forced}") if shape.forced else ()
    return Made(pcap(found), sum(map(len, found)), shape.of, min(share, 64 << 20), options)


# Bytes that somebody sends

SENT: dict[str, Callable[[int, int], bytes]] = {}
MADE: dict[str, Callable[[int], Made]] = {}


def sent(function: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """Register bytes of a size, sent by a side."""
    SENT[function.__name__.replace("_", " ")] = function
    return function


def made(function: Callable[[int], Made]) -> Callable[[int], Made]:
    """Register a capture of a size."""
    MADE[function.__name__.replace("_", " ")] = function
    return function


def made_large(function: Callable[[int], Made]) -> Callable[[int], Made]:
    """Register a capture whose memory tells only where it is larger than others."""
    MADE[function.__name__.replace("_", " ")] = lambda size: function(LARGER * size)
    return function


def repeated(pattern: bytes, size: int) -> bytes:
    return (pattern * (size // len(pattern) + 1))[:size]


def joined(pieces: Iterable[bytes], size: int) -> bytes:
    out = bytearray()
    for piece in pieces:
        out += piece
        if len(out) >= size:
            break
    return bytes(out[:size])


def always(name: str, *patterns: bytes) -> None:
    """Register a pattern that a side repeats, and perhaps another one for the server."""
    SENT[name] = lambda size, side: repeated(patterns[side % len(patterns)], size)


for _name, _pattern in {
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "alternating": b"\x00\xff",
    "big-endian 4s": struct.pack(">I", 4),
    "big-endian 8s": struct.pack(">I", 8),
    "big-endian 12s": struct.pack(">I", 12),
    "little-endian 4s": struct.pack("<I", 4),
    "little-endian 5s": struct.pack("<I", 5),
    "little-endian 8s": struct.pack("<I", 8),
    "little-endian 1s of 64 bits": struct.pack("<Q", 1),
    "little-endian 256s": struct.pack("<I", 256),
    "a million as little-endian": struct.pack("<I", 1 << 20),
    "0 0 0 1": struct.pack(">I", 1),
    "digits": b"0123456789",
    "newlines": b"\n",
    "SSTARRPC": b"SSTARRPC",
    "SSTARRPC and zeros": b"SSTARRPC" + bytes(4),
    "SSTARRPC with records": b"SSTARRPC" + struct.pack("<III", 8, 1, 0),
    "heartbeats": frame(0x17, b""),
    "heartbeats of the draft": frame(0x17, b"", 0),
    "heads of Publish of 1 MB": struct.pack(">IHH", 1 << 20, 2, 1),
    "heads of Publish of 2 MB": struct.pack(">IHHBi", 2 << 20, 2, 1, 1, 1_000) + b"".join(struct.pack(">QI", n % 15, 0) for n in range(16)),
    "heads of Publish of 24 bytes": struct.pack(">IHH", 20, 2, 1),
    "heads of Publish of the draft": struct.pack(">IHH", 1 << 16, 0, 0),
    "heads of PeerProperties": struct.pack(">IHHII", 1 << 18, 0x11, 1, 1, 1 << 16),
    "heads of Deliver": struct.pack(">IHHBBBH", 1 << 19, 8, 1, 1, 0x50, 0, 1),
    "heads of Metadata": struct.pack(">IHHII", 1 << 12, 0x0F, 1, 1, 1 << 10),
    "heads of StreamStats responses": struct.pack(">IHHIHI", 1 << 12, 0x801C, 1, 1, 1, 0),
    "unknown commands without a body": frame(0x1F, b""),
    "unknown commands of the draft without a body": frame(0x1F, b"", 0),
    "Tune without a body": frame(0x14, b""),
    "Close without a body": frame(0x16, b""),
    "Publish without a body": frame(2, b""),
    "Deliver without a body": frame(8, b""),
    "Deliver of the draft without a body": frame(3, b"", 0),
    "PublishError without errors": frame(4, struct.pack(">Bi", 1, 0)),
    "Credit responses": frame(0x8009, struct.pack(">HB", 4, 1)),
    "MetadataUpdate": frame(0x10, struct.pack(">H", 4) + text("s")),
    "properties without text": frame(0x11, struct.pack(">Ii", 1, 60) + bytes(240)),
    "heads of unknown commands": struct.pack(">IHH", 60, 0x1F, 1) + bytes(4),
    "Credit": frame(9, struct.pack(">BH", 1, 1)),
    "pings of Iggy": struct.pack("<II", 4, 1),
    "unknown commands of Iggy without a body": struct.pack("<II", 4, 7777),
    "logins of Iggy without a body": struct.pack("<II", 4, 38),
    "heads of poll of Iggy": struct.pack("<II", 1 << 18, 100),
    "heads of batches of 2 MB of Iggy": struct.pack("<III", 2 << 20, 101, 0x7FFF_FFFF),
    "heads of login of Iggy": struct.pack("<II", 200, 38),
    "heads of unknown commands of Iggy": struct.pack("<II", 100, 7777),
    "answers of Iggy with a text": struct.pack("<III", 3, 100, 96),
    "heads of 256 bytes of Iggy": bytes(48) + struct.pack("<IIIB", 256, 0, 0, 2) + bytes(195),
    "heads of 256 bytes and more of Iggy": bytes(48) + struct.pack("<IIIB", 1 << 20, 0, 0, 2) + bytes(67),
    "zeros and command bytes of Iggy": b"\x02" + bytes(66),
    "zeros and commands of replies": b"\x03" + bytes(67),
    "frames of Seastar of no known framing": struct.pack("<QqI", 1, 7, 1 << 16),
    "calls of Seastar of 2 MB": struct.pack("<QqI", 1, 7, 2 << 20),
    "frames of LZ4 of 3 bytes": struct.pack("<I", 3) + b"abc",
    "frames of LZ4 that do not unpack": struct.pack("<II", 60, 100) + b"\x11" * 56,
    "frames of LZ4 that grow": struct.pack("<II", 28, 4096) + b"\x1f\x00\x01\x00" + b"\xff" * 15 + b"\x80" + b"\x50zzzz",
    "LZ4_FRAGMENTED of many chunks": struct.pack("<I", 400) + struct.pack("<I", 0) * 100,
    "frames of SCYLLA_V3 of LZ4 blocks of nothing": struct.pack("<IB", 201, 1) + b"\x03\x00" * 100,
    "frames of SCYLLA_V3 of LZ4 that is damaged": struct.pack("<IB", 5, 1) + b"\x07\xf0\xff\x00",
    "frames of SCYLLA_V3 of zstd that is damaged": struct.pack("<IBI", 9, 0x42, 0) + b"\x00\x38\x01\x02",
    "frames of SCYLLA_V3 of zstd that grow": struct.pack("<IB", 16, 2) + bytes.fromhex("00385500001000000100fbff39c002"),
    "control blocks of SCYLLA_V3": struct.pack("<IBI", 137, 0xC0, 0) + b"\x02" * 132,
    "types of mewbase": b"\x02type\x00",
    "heads of mewbase": struct.pack("<I", 1 << 18)
    + b"\x02type\x00"
    + struct.pack("<I", 4)
    + b"PUB\x00\x03frame\x00"
    + struct.pack("<I", 1 << 17),
    "heads of mewbase without an end": b"\x00\x00\x00\x02type\x00\x08\x00\x00\x00CONNECT\x00\x03frame\x00",
    "empty documents": b"\x05\x00\x00\x00\x00",
    "documents of one value": b"\x0c\x00\x00\x00\x10a\x00\x01\x00\x00\x00\x00",
    "documents that begin and do not end": b"\x40\x00\x00\x00\x02a\x00",
    "heads of TLS": bytes.fromhex("1703034000"),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "Kafka": struct.pack(">IHHIH", 64, 3, 1, 1, 4) + b"java" + bytes(42),
}.items():
    always(_name, _pattern)


def websocket(name: str, *patterns: bytes) -> None:
    """Register frames of WebSocket, behind an upgrade."""
    heads = request(), response()
    SENT[f"WebSocket: {name}"] = lambda size, side: (heads[side] + repeated(patterns[side % len(patterns)], size))[:size]


websocket("empty pings", b"\x89\x80mask", b"\x89\x00")
websocket("messages of a byte", b"\x82\x81maska", b"\x82\x01a")
websocket("empty fragments", b"\x00\x80mask", b"\x00\x00")
websocket("fragments of a byte", b"\x00\x81maska", b"\x00\x01a")
websocket("masks in the wrong direction", b"\x82\x01a", b"\x82\x81maska")
websocket("pings of Iggy", b"\x82\x88\0\0\0\0\4\0\0\0\1\0\0\0", b"\x82\x08" + bytes(8))
websocket("a frame of 2^62 bytes", b"\x82\xff\x40" + bytes(11), b"\x82\x7f\x40" + bytes(7))
websocket("no frames, then heads of long ones", b"\x83" + b"\x82\x7f\0\0\0\0\3\0\0\0")
websocket("Close frames", b"\x88\x82mask\3\xe8", b"\x88\x7d\3\xe8" + b"\xff" * 123)
always("a head of HTTP without an end", b"GET /" + b"a" * 1_000_000)
always("upgrades that are refused", request(), refusal())


@sent
def random_bytes(size: int, side: int) -> bytes:
    return random.Random(side).randbytes(size)


@sent
def plain_text(size: int, side: int) -> bytes:
    chance = random.Random(side)
    return joined(("".join(chance.choices("etaoin shrdlu\n", k=1_000)).encode() for _ in count()), size)


@sent
def pages_of_zeros(size: int, side: int) -> bytes:
    chance = random.Random(side)
    return joined((bytes(4096 - 16) + chance.randbytes(16) for _ in count()), size)


@sent
def zeros_and_a_little(size: int, side: int) -> bytes:
    chance = random.Random(side)
    return joined((bytes(chance.randrange(300)) + chance.randbytes(3) for _ in count()), size)


@sent
def small_numbers(size: int, side: int) -> bytes:
    chance = random.Random(side)
    return bytes(chance.choices(range(9), weights=(60, 9, 9, 4, 4, 4, 4, 3, 3), k=size))


@sent
def little_endian_counters(size: int, side: int) -> bytes:
    return struct.pack(f"<{size // 4}I", *range(size // 4))


@sent
def little_endian_counters_of_64_bits(size: int, side: int) -> bytes:
    return struct.pack(f"<{size // 8}Q", *range(size // 8))


@sent
def big_endian_counters(size: int, side: int) -> bytes:
    return struct.pack(f">{size // 4}I", *range(size // 4))


@sent
def big_endian_counters_of_16_bits(size: int, side: int) -> bytes:
    return struct.pack(f">{size // 2}H", *(number & 0xFFFF for number in range(size // 2)))


@sent
def big_endian_lengths(size: int, side: int) -> bytes:
    """Every four bytes lead to the end of what a search looks at."""
    return struct.pack(f">{size // 4}I", *((1 << 18) - 4 * number % (1 << 17) for number in range(size // 4)))


@sent
def little_endian_lengths(size: int, side: int) -> bytes:
    return struct.pack(f"<{size // 4}I", *((size - 4 * number - 4) & 0xFFFFF for number in range(size // 4)))


SENT["pings and errors of Iggy"] = lambda size, side: repeated(struct.pack("<II", 3 if side else 4, 0 if side else 1), size)
SENT["pings and answers of Iggy"] = lambda size, side: repeated(struct.pack("<II", 0 if side else 4, 0 if side else 1), size)


@sent
def pings_and_errors_of_all_kinds_of_iggy(size: int, side: int) -> bytes:
    """No two are alike."""
    return joined((struct.pack("<II", number + 3, 0) for number in count()), size) if side else repeated(struct.pack("<II", 4, 1), size)


def publish(number: int, body: bytes = b"0123456789") -> bytes:
    return frame(2, struct.pack(">Bi", 1, 1) + struct.pack(">QI", number, len(body)) + body)


def request(number: int) -> bytes:
    return frame(0x0B, struct.pack(">I", number) + text("c") + text("s"))


@sent
def requests_that_are_never_answered(size: int, side: int) -> bytes:
    """Of RabbitMQ."""
    return joined((frame(0x12, struct.pack(">I", number)) for number in count(1)), size) if not side else b""


@sent
def requests_of_offsets_that_are_never_answered(size: int, side: int) -> bytes:
    return joined(map(request, count(1)), size) if not side else b""


@sent
def requests_with_one_id(size: int, side: int) -> bytes:
    return repeated(request(7), size) if not side else b""


@sent
def publishing_that_is_never_confirmed(size: int, side: int) -> bytes:
    return joined((frame(2, struct.pack(">BiQI", 1, 1, number, 0)) for number in count()), size) if not side else b""


@sent
def confirms_of_nothing(size: int, side: int) -> bytes:
    return joined((frame(3, struct.pack(">BiQ", 1, 1, number)) for number in count()), size) if side else b""


@sent
def pings_of_iggy_without_answers(size: int, side: int) -> bytes:
    return repeated(struct.pack("<II", 4, 1), size) if not side else b""


@sent
def answers_of_iggy_without_requests(size: int, side: int) -> bytes:
    return bytes(size) if side else repeated(struct.pack("<II", 4, 1), 80)


@sent
def polls_of_iggy(size: int, side: int) -> bytes:
    body = b"\x01\x01\x04\x01\x00\x00\x00\x01\x04\x01\x00\x00\x00\x01\x04\x01\x00\x00\x00\x01" + bytes(13)
    return repeated(struct.pack("<II", 4 + len(body), 100) + body, size) if not side else b""


@sent
def calls_of_seastar(size: int, side: int) -> bytes:
    return joined((struct.pack("<QqI", 1, number, 0) for number in count(1)), size) if not side else b""


@sent
def calls_of_seastar_after_the_negotiation(size: int, side: int) -> bytes:
    head = b"SSTARRPC" + bytes(4)
    return head + joined((struct.pack("<QqI", 1, number, 0) for number in count(1)), size - 12) if not side else head


@sent
def streams_of_seastar(size: int, side: int) -> bytes:
    """Messages of no bytes, 4 bytes each, after a negotiation."""
    record = struct.pack("<IIQ", 3, 8, 65_536)
    return b"SSTARRPC" + struct.pack("<I", len(record)) + record + bytes(max(0, size - 28)) if not side else b"SSTARRPC" + bytes(4)


@sent
def compressed_streams_of_seastar(size: int, side: int) -> bytes:
    records = (struct.pack("<IIQ", 3, 8, 65_536) if not side else b"") + struct.pack("<II", 0, 3) + b"LZ4"
    return b"SSTARRPC" + struct.pack("<I", len(records)) + records + bytes(max(0, size - 40))


def scylla(size: int, frame: bytes) -> bytes:
    """These frames after a negotiation of SCYLLA_V3."""
    records = struct.pack("<II", 0, 9) + b"SCYLLA_V3"
    head = b"SSTARRPC" + struct.pack("<I", len(records)) + records
    return head + repeated(frame, max(0, size - len(head)))


@sent
def damaged_zstd_of_scylla_after_the_negotiation(size: int, side: int) -> bytes:
    return scylla(size, struct.pack("<IBI", 9, 0x42, 0) + b"\x00\x38\x01\x02")


@sent
def lz4_of_scylla_with_a_wrong_checksum(size: int, side: int) -> bytes:
    return scylla(size, struct.pack("<IBI", 9, 0x41, 0) + b"\x07\x20ab")


@sent
def calls_of_seastar_of_negative_ids(size: int, side: int) -> bytes:
    head = b"SSTARRPC" + bytes(4)
    return head + joined((struct.pack("<QqI", 1, -number, 0) for number in count(1)), size - 12) if not side else head


@sent
def calls_and_exceptions_of_seastar(size: int, side: int) -> bytes:
    head = b"SSTARRPC" + bytes(4)
    if side:
        return head + joined((struct.pack("<qIII", -number, 8, 9, 0) for number in count(1)), size - 12)
    return head + joined((struct.pack("<QqI", 1, number, 0) for number in count(1)), size - 12)


@sent
def calls_and_answers_of_seastar(size: int, side: int) -> bytes:
    head = b"SSTARRPC" + bytes(4)
    if side:
        return head + joined((struct.pack("<qI", number, 0) for number in count(1)), size - 12)
    return head + joined((struct.pack("<QqI", 1, number, 0) for number in count(1)), size - 12)


def document(name: str, inner: bytes) -> bytes:
    value = name.encode() + b"\0"
    body = b"\x02type\0" + struct.pack("<I", len(value)) + value + b"\x03frame\0" + struct.pack("<I", len(inner) + 5) + inner + b"\0"
    return struct.pack("<I", len(body) + 5) + body + b"\0"


@sent
def requests_of_mewbase(size: int, side: int) -> bytes:
    frames = (document("SUBCLOSE", b"\x10rID\0" + struct.pack("<I", number)) for number in count(1))
    return joined(frames, size) if not side else b""


@sent
def pings_of_mewbase(size: int, side: int) -> bytes:
    return repeated(document("PING", b""), size)


@sent
def requests_of_mewbase_of_an_unknown_type(size: int, side: int) -> bytes:
    return document("CONNECT", b"") + repeated(document("x", b""), size) if not side else b""


# Damage


def broken(content: Callable[[int, int], bytes], chance: random.Random, size: int, side: int, every: int, how: str) -> bytes:
    """Bytes of which one in `every` or so is missing, flipped, or there twice."""
    whole = content(size, side)
    out, at = bytearray(), 0
    while at < len(whole):
        stop = at + chance.randrange(1, 2 * every)
        out += whole[at:stop]
        if how == "missing":
            stop += 1
        elif how == "flipped" and stop < len(whole):
            out.append(whole[stop] ^ 1 << chance.randrange(8))
            stop += 1
        elif how == "doubled":
            out += whole[stop - 1 : stop]
        at = stop
    return bytes(out)


@sent
def publishing_with_a_byte_missing(size: int, side: int) -> bytes:
    """Each frame of 26 bytes or so lacks one, on both sides."""
    return joined((publish(number)[:-1] for number in count()), size)


@sent
def confirms_with_a_byte_missing(size: int, side: int) -> bytes:
    return joined((frame(3, struct.pack(">BiQ", 1, 1, number))[:-1] for number in count()), size)


@sent
def requests_with_a_byte_missing(size: int, side: int) -> bytes:
    return joined((request(number)[:-1] for number in count()), size)


@sent
def pings_of_iggy_with_a_byte_missing(size: int, side: int) -> bytes:
    return repeated(struct.pack("<II", 4, 1)[:-1], size)


@sent
def calls_of_seastar_with_a_byte_missing(size: int, side: int) -> bytes:
    return joined((struct.pack("<QqI", 1, number, 9) + b"12345678" for number in count(1)), size)


@sent
def documents_with_a_byte_missing(size: int, side: int) -> bytes:
    return joined((document("PUB", b"\x10rID\0" + struct.pack("<I", number))[:-1] for number in count()), size)


@sent
def heartbeats_and_a_byte(size: int, side: int) -> bytes:
    return repeated(frame(0x17, b"") * 2 + b"\xff", size)


@sent
def frames_and_zeros(size: int, side: int) -> bytes:
    """Real frames with pages of zeros between them."""
    return joined((publish(number) * 3 + bytes(4096) for number in count()), size)


@sent
def deliver_of_zeros(size: int, side: int) -> bytes:
    """What is lost of a frame of zeros is searched through."""
    body = bytes(60_000)
    return repeated(
        frame(
            8,
            b"\x01\x50\x00"
            + struct.pack(">HIqQQIIIBBH", 1, 1, 0, 1, 1, 0, len(body) + 4, 0, 0, 0, 0)
            + struct.pack(">I", len(body))
            + body,
        ),
        size,
    )


@cache
def golden(family: str, number: int) -> tuple[bytes, bytes]:
    """What the two sides of a capture's first conversation of some length sent, in the order of its packets."""
    paths = sorted(path for path in (GOLDEN / family).glob("*.pcap") if path.stat().st_size > 3_000)
    streams: dict[tuple[int, int], bytearray] = {}
    for packet in packets(paths[number % len(paths)]):
        at = tcp_offset(packet)
        if at is not None:
            ports = struct.unpack_from(">HH", packet.raw, at)
            streams.setdefault(ports, bytearray()).extend(packet.raw[at + (packet.raw[at + 12] >> 4) * 4 :])
    longest = max(streams, key=lambda one: len(streams[one]))
    return bytes(streams[longest]), bytes(streams.get(longest[::-1], b""))


for _family in sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()):
    for _how in ("repeated", "missing", "flipped", "doubled"):
        for _number in (0, 5):

            def _golden(size: int, side: int, family: str = _family, how: str = _how, number: int = _number) -> bytes:
                whole = golden(family, number)[side]
                content = lambda size, side: repeated(whole or b"\0", size)  # noqa: E731
                return broken(content, random.Random(side), size, side, 60, how) if how != "repeated" else content(size, side)

            SENT[f"{_family} capture {_number}, {_how}"] = _golden


# Captures that are not of one conversation, or whose packets are not all that counts


def deliver(entries: bytes, count: int, records: int) -> bytes:
    head = struct.pack(">BBHIqQQIIIBBH", 0x50, 0, count, records, 0, 1, 0, 0, len(entries), 0, 0, 0, 0)
    return frame(8, b"\x01" + head + entries)


def sub_batch(packed: bytes, records: int, unpacked: int, algorithm: int = 1) -> bytes:
    return struct.pack(">BHII", 0x80 | algorithm << 4, records, unpacked, len(packed)) + packed


GREETING = frame(0x11, struct.pack(">I", 1) + pairs(product="bench"))


def from_server(frames: Iterable[bytes], unpacked: int = 0, values: int = 0) -> Made:
    """A connection to RabbitMQ whose server sends these frames."""
    data = b"".join(frames)
    answer = frame(0x8011, struct.pack(">IH", 1, 1) + pairs(product="RabbitMQ"))
    found = [
        *talk((GREETING, answer), Shape(syn=True, port=5552)),
        *(
            ip(data[at : at + 1448], (5552, 40_001), 5_000_000 + len(answer) + at, 1_000 + len(GREETING), 24)
            for at in range(0, len(data), 1448)
        ),
    ]
    return Made(pcap(found), sum(map(len, found)) + unpacked + values, 1, len(data))


@made
def normal_traffic(size: int) -> Made:
    """What all others are compared with: no class of made-up input."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "normal"
        write(path, max(200, size // 190), 40, 2, amqp=False)
        found = packets(path)
        return Made(path.read_bytes(), sum(len(packet.raw) for packet in found), 40)


@made
def arrays_of_values_without_bytes(size: int) -> Made:
    body = b"\x00\x53\x77\xf0" + struct.pack(">II", 5, 1_000) + b"\x40"
    entry = struct.pack(">I", len(body)) + body
    number = max(1, size // 80)
    return from_server([deliver(entry, 1, 1)] * number, values=min(1_000 * number, DEFAULTS["bare_limit"]))


@made_large
def a_list_of_values_of_one_byte_in_a_sub_batch(size: int) -> Made:
    """Each becomes an object that tells its type."""
    values = size // 3
    body = b"\x00\x53\x77\xd0" + struct.pack(">II", values + 4, values) + b"\x43" * values
    entry = struct.pack(">I", len(body)) + body
    return from_server([deliver(sub_batch(gzip.compress(entry), 1, len(entry)), 1, 1)], len(entry))


@made
def small_sub_batch_bombs(size: int) -> Made:
    inner = struct.pack(">I", 60_000) + bytes(60_000)
    packed = gzip.compress(inner)
    number = max(1, size // (len(packed) + len(inner)))
    return from_server([deliver(sub_batch(packed, 1, len(inner)), 1, 1)] * number, number * len(inner))


@made
def sub_batches_of_empty_entries(size: int) -> Made:
    inner = bytes(4 * 60_000)
    packed = gzip.compress(inner)
    number = max(1, size // (len(packed) + len(inner)))
    return from_server([deliver(sub_batch(packed, 60_000, len(inner)), 1, 60_000)] * number, number * len(inner))


@made
def chunks_of_empty_entries(size: int) -> Made:
    return from_server([deliver(bytes(4 * 60_000), 60_000, 60_000)] * max(1, size // 240_000))


@made
def amqp_nested(size: int) -> Made:
    def nested(depth: int) -> bytes:
        value = b"\x40"
        for _ in range(depth):
            value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
        return b"\x00\x53\x77" + value

    body = nested(2_000)
    entry = struct.pack(">I", len(body)) + body
    return from_server([deliver(entry, 1, 1)] * max(1, size // len(entry)))


@made
def amqp_maps_of_small_values(size: int) -> Made:
    pair = b"\xa1\x01k\x43"
    body = b"\x00\x53\x74\xd1" + struct.pack(">II", 250 * len(pair) + 4, 500) + pair * 250
    entry = struct.pack(">I", len(body)) + body
    return from_server([deliver(entry, 1, 1)] * max(1, size // len(entry)))


@made
def bson_nested(size: int) -> Made:
    def nested(depth: int) -> bytes:
        value = b"\x05\0\0\0\0"
        for _ in range(depth):
            value = struct.pack("<I", len(value) + 7) + b"\x03a"[:2] + b"\0" + value + b"\0"
            value = struct.pack("<I", len(value)) + value[4:]
        return value

    inner = nested(1_000)
    one = document("PUB", b"\x03event\0" + inner)
    return sending(lambda share, side: repeated(one, share), size, Shape(syn=True, port=7451))


@made
def bson_of_null_values(size: int) -> Made:
    one = document("PUB", b"\x0a\0" * 10_000)
    return sending(lambda share, side: repeated(one, share), size, Shape(syn=True, port=7451))


@made
def bson_arrays_of_nulls(size: int) -> Made:
    elements = b"".join(b"\x0a%d\0" % number for number in range(10_000))
    one = document("PUB", b"\x04a\0" + struct.pack("<I", len(elements) + 5) + elements + b"\0")
    return sending(lambda share, side: repeated(one, share), size, Shape(syn=True, port=7451))


@made_large
def many_syns(size: int) -> Made:
    found = [ip(b"", (1_024 + number % 60_000, 9_999), number, 0, 2, 1 + number // 60_000) for number in range(size // 40)]
    return Made(pcap(found), sum(map(len, found)), len(found))


def many(size: int, data: bytes, *options: str) -> Made:
    """Conversations of one packet with these bytes."""
    number = size // (40 + len(data))
    found = [ip(data, (1_024 + one % 60_000, 9_999), one, 0, 24, 1 + one // 60_000) for one in range(number)]
    return Made(pcap(found), sum(map(len, found)), number, 0, options)


MANY = {
    "one byte": b"\0",
    "8 zeros": bytes(8),
    "40 zeros": bytes(40),
    "a heartbeat": frame(0x17, b""),
    "a request of RabbitMQ": frame(0x0C, struct.pack(">IB", 1, 1)),
    "one and a half Publish": (publish(1) * 2)[:40],
    "a greeting of RabbitMQ": GREETING,
    "a ping of Iggy": struct.pack("<II", 4, 1),
    "two pings of Iggy": struct.pack("<II", 4, 1) * 2,
    "a poll of Iggy": struct.pack("<II", 37, 100) + b"\x01\x01\x04\x01\0\0\0" * 3 + bytes(12),
    "a call of Seastar": struct.pack("<QqI", 1, 1, 0),
    "a greeting of Seastar": b"SSTARRPC" + bytes(4),
    "a ping of mewbase": document("PING", b""),
    "an empty document": b"\5\0\0\0\0",
}
for _name, _data in MANY.items():
    MADE[f"many conversations of {_name}"] = lambda size, data=_data: many(size, data)
for _name in (*FORCED, *FORCED_LAYOUTS):
    MADE[f"many conversations as {_name}"] = lambda size, name=_name: many(size, b"\0", "-d", f"tcp.port==9999,{name}")


def negotiation(codec: bytes) -> bytes:
    return b"SSTARRPC" + struct.pack("<III", 8 + len(codec), 0, len(codec)) + codec


@cache
def zstd_of_scylla(number: int, size: int) -> bytes:
    packed = bytes(cramjam.zstd.compress(struct.pack("<QqI", 1, number, size) + bytes(size)))[4:]
    return struct.pack("<IB", 1 + len(packed), 2) + packed


@cache
def lz4_of_seastar(number: int, size: int) -> bytes:
    message = struct.pack("<QqI", 1, number, size) + bytes(size)
    packed = bytes(cramjam.lz4.compress_block(message, store_size=False))
    return struct.pack("<II", 4 + len(packed), len(message)) + packed


@cache
def entries(size: int) -> bytes:
    """A million bytes, or more, of entries of `size` bytes."""
    return (struct.pack(">I", size) + bytes(size)) * max(1, 1_000_000 // (size + 4))


def deliver_of_zstd(number: int, size: int) -> bytes:
    """A sub-batch of one entry of `size` bytes, or of many small ones."""
    inner = entries(size)
    return deliver(sub_batch(bytes(cramjam.zstd.compress(inner)), len(inner) // (size + 4) & 0xFFFF, len(inner), 4), 1, 1)


BOMBS: dict[str, tuple[bytes, Callable[[int, int], bytes], str]] = {
    "zstd of SCYLLA_V3": (negotiation(b"SCYLLA_V3"), zstd_of_scylla, "seastar-rpc:rpc+scylla_v3"),
    "LZ4 of Seastar": (negotiation(b"LZ4"), lz4_of_seastar, "seastar-rpc:rpc+lz4"),
    "zstd of RabbitMQ": (b"", deliver_of_zstd, "rabbitmq-stream"),
}
"""What each side sends first, the frames with a number and a size, and their protocol."""


def bombs(size: int, of: str, inner: int, each: int) -> Made:
    """Conversations of `each` bytes or so (0: of one packet) whose messages have `inner` bytes before they are packed."""
    greeting, make, protocol = BOMBS[of]
    found: list[bytes] = []
    total = number = largest = frames = 0
    while total < size:
        number += 1
        data = b""
        for ident in count(1):
            frame = make(ident, inner)
            data, largest, frames = data + frame, max(largest, len(frame)), frames + 1
            if len(data) + len(data) // 36 >= each:
                break
        if not each:
            streams, shape = (data, b""), Shape()
        else:
            streams, shape = (greeting + data, greeting), Shape(syn=True)
        if not greeting:
            streams = streams[::-1]
        packets = [*talk(streams, shape, number)]
        total += sum(map(len, packets))
        found += packets
    # Of sub-batches at least as much is unpacked as all conversations may together
    unpacked = min(frames * len(entries(inner)), UnpackPool().left) if make is deliver_of_zstd else 0
    return Made(pcap(found), total + unpacked, number, largest, ("-d", f"tcp.port==9999,{protocol}") if not each or not greeting else ())


for _of in BOMBS:
    for _inner, _each in ((10, 10_000), (30_000, 0), (30_000, 10_000), (1_000_000, 0), (1_000_000, 10_000), (30_000_000, 10_000)):

        def _bombs(size: int, of: str = _of, inner: int = _inner, each: int = _each) -> Made:
            return bombs(size, of, inner, each)

        MADE[f"bombs of {_inner:,} bytes in conversations of {_each or 'one packet'}, {_of}"] = _bombs


@made
def one_packet_each_to_many_servers(size: int) -> Made:
    found = [ip(GREETING, (40_000, 9_999), 1, 0, 24, 1 + one) for one in range(size // (40 + len(GREETING)))]
    return Made(pcap(found), sum(map(len, found)), len(found))


@made
def many_conversations_without_room(size: int) -> Made:
    found = [ip(b"\0", (1_024 + one % 60_000, 9_999), one, 0, 24, 1 + one // 60_000, window=0) for one in range(size // 41)]
    return Made(pcap(found), sum(map(len, found)), len(found))


@made
def conversations_of_32_small_packets(size: int) -> Made:
    shape = Shape(1, of=max(1, size // (32 * 41)), both=False)
    return sending(lambda share, side: bytes(share), size, shape)


@made
def conversations_of_32_packets_of_16_bytes(size: int) -> Made:
    shape = Shape(16, of=max(1, size // (32 * 56)), both=False)
    return sending(lambda share, side: random.Random(side).randbytes(share), size, shape)


@made
def one_conversation_after_the_other_on_the_same_ports(size: int) -> Made:
    found = [
        packet
        for number in range(size // 81)
        for packet in (ip(b"", (40_000, 9_999), number * 9_000_000, 0, 2), ip(b"\0", (40_000, 9_999), number * 9_000_000 + 1, 0, 24))
    ]
    return Made(pcap(found), sum(map(len, found)), len(found) // 2)


@made
def ip_fragments_of_one_datagram(size: int) -> Made:
    found = [
        struct.pack(">BBHHHBBHII", 0x45, 0, 28, 1, 0x2000 | (number % 8_000) + 1, 64, 6, 0, 0x0A000001, 0x0A000002) + bytes(8)
        for number in range(size // 28)
    ]
    return Made(pcap(found), sum(map(len, found)))


@made
def ip_fragments_of_many_datagrams(size: int) -> Made:
    found = [
        struct.pack(">BBHHHBBHII", 0x45, 0, 28, number & 0xFFFF, 0x2000 | 1, 64, 6, 0, 0x0A000001, 0x0A000002 + (number >> 16)) + bytes(8)
        for number in range(size // 28)
    ]
    return Made(pcap(found), sum(map(len, found)))


def pcapng(blocks: Iterable[tuple[int, bytes]]) -> bytes:
    parts = [struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)]
    for kind, body in blocks:
        body += bytes(-len(body) % 4)
        parts.append(struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body)))
    return b"".join(parts)


@made
def an_interface_block_before_each_packet(size: int) -> Made:
    packet = ip(b"", (40_000, 9_999), 1, 1, 16)
    blocks = []
    number = size // (len(packet) + 20)
    for one in range(number):
        blocks.append((1, struct.pack("<HHI", 101, 0, 0)))
        blocks.append((6, struct.pack("<IIIII", one, 0, 0, len(packet), len(packet)) + packet))
    return Made(pcapng(blocks), number * (len(packet) + 20))


@made
def interface_blocks_alone(size: int) -> Made:
    return Made(pcapng([(1, struct.pack("<HHI", 101, 0, 0))] * (size // 20)), size)


@made
def pcapng_blocks_of_no_known_kind(size: int) -> Made:
    return Made(pcapng([(0x0BAD, b"")] * (size // 12)), size)


@made
def upgrades_whose_answers_come_byte_by_byte(size: int) -> Made:
    """Each byte of an answer may be the one that completes it, and the head of the request is as large as one may be."""
    asked = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n" + b"a:\r\n" * 4_000 + b"\r\n"
    answer = b"HTTP/1.1 101 S\r\n" + b"b: c\r\n" * 680
    found: list[bytes] = []
    for number in range(max(1, size // (len(asked) + 41 * len(answer)))):
        ports = (40_000 + number, 9_999)
        found += [ip(b"", ports, 0, 0, 2), ip(b"", ports[::-1], 0, 1, 18), ip(asked, ports, 1, 1, 24)]
        found += [ip(answer[at : at + 1], ports[::-1], 1 + at, 1 + len(asked), 24) for at in range(len(answer))]
    return Made(pcap(found), sum(map(len, found)), number + 1)


def tls_record(kind: int, body: bytes) -> bytes:
    return struct.pack(">BHH", kind, 0x303, len(body)) + body


def tls_connections(size: int, keys: str) -> Made:
    """Connections in TLS 1.3 of three packets. `keys`: "none", each "between" the packets of later connections, all "behind"."""
    extensions = struct.pack(">HHH", 0x2B, 2, 0x304)
    blocks: list[tuple[int, bytes]] = [(1, struct.pack("<HHI", 101, 0, 0))]
    behind: list[tuple[int, bytes]] = []
    number, total = 0, 0
    while total < size:
        number += 1
        session = number.to_bytes(32, "big")
        offer = b"\3\3" + session + b"\0\0\2\x13\x01\1\0" + struct.pack(">HHHBH", 7, 0x2B, 3, 2, 0x304)
        answer = b"\3\3" + session + b"\0\x13\x01\0" + struct.pack(">H", len(extensions)) + extensions
        hellos = [tls_record(22, bytes((kind,)) + len(body).to_bytes(3, "big") + body) for kind, body in ((1, offer), (2, answer))]
        ports, address = (1_024 + number % 60_000, 9_999), 1 + number // 60_000
        for packet in (
            ip(hellos[0], ports, 1, 1, 24, address),
            ip(hellos[1] + tls_record(23, bytes(20)), ports[::-1], 1, 1 + len(hellos[0]), 24, address),
            ip(tls_record(23, bytes(20)), ports, 1 + len(hellos[0]), 1, 25, address),
        ):
            blocks.append((6, struct.pack("<IIIII", 0, 0, number, len(packet), len(packet)) + packet))
            total += len(packet)
        text = f"CLIENT_TRAFFIC_SECRET_0 {(number // 2).to_bytes(32, 'big').hex()} {'5a' * 32}\n".encode()
        if keys != "none":
            (blocks if keys == "between" else behind).append((10, struct.pack("<II", 0x544C534B, len(text)) + text))
            total += len(text)
    return Made(pcapng([*blocks, *behind]), total, number)


for _keys in ("none", "between", "behind"):
    MADE[f"TLS in pcapng with keys: {_keys}"] = lambda size, keys=_keys: tls_connections(size, keys)


@made
def packets_without_bytes(size: int) -> Made:
    """Each is a header of 16 bytes in the file, which therefore counts here."""
    return Made(pcap([b""] * (size // 16)), size)


@made
def zstd_of_empty_frames(size: int) -> Made:
    """All that counts is the file: nothing comes out of it."""
    empty = bytes(cramjam.zstd.compress(b""))
    head = bytes(cramjam.zstd.compress(pcap([ip(b"", (1, 2), 1, 1, 16)])))
    return Made(head + empty * (size // len(empty)), size)


@made
def gzip_of_empty_members(size: int) -> Made:
    empty = gzip.compress(b"")
    return Made(gzip.compress(pcap([ip(b"", (1, 2), 1, 1, 16)])) + empty * (size // len(empty)), size)


@made
def bzip2_of_empty_streams(size: int) -> Made:
    empty = bz2.compress(b"")
    return Made(bz2.compress(pcap([ip(b"", (1, 2), 1, 1, 16)])) + empty * (size // len(empty)), size)


@made
def bare_acknowledgements(size: int) -> Made:
    found = [ip(b"", (40_000, 9_999), 1, number, 16) for number in range(size // 40)]
    return Made(pcap(found), sum(map(len, found)))


@made
def segments_sent_again_and_again(size: int) -> Made:
    found = [ip(bytes([number & 255]) * 10, (40_000, 9_999), number % 7, 1, 24) for number in range(size // 50)]
    return Made(pcap(found), sum(map(len, found)))


@made
def segments_in_reverse(size: int) -> Made:
    number = size // 50
    found = [ip(bytes(10), (40_000, 9_999), 10 * (number - one) + 1_000, 1, 24) for one in range(number)]
    return Made(pcap([ip(b"", (40_000, 9_999), 999, 0, 2), *found]), sum(map(len, found)))


@made
def every_other_segment_lost(size: int) -> Made:
    found = [ip(bytes(1), (40_000, 9_999), 2 * number, 1, 24) for number in range(size // 41)]
    return Made(pcap(found), sum(map(len, found)))


@made
def undecided_bytes_of_many_conversations(size: int) -> Made:
    """Each just short of what makes it unknown."""
    of = max(1, size // 950_000)
    return sending(lambda share, side: random.Random(side).randbytes(share), size, Shape(60_000, of=of, both=False))


# Measuring


class Cost(NamedTuple):
    name: str
    view: str
    cpu: float
    """Seconds a MB."""
    memory: int
    growth: float | None
    status: int
    over: bool


def index(path: str) -> None:
    """What `browse` does before anybody looks."""
    from streamdump.cli.indexed.reading import Reader
    from streamdump.cli.run import FileRun
    from streamdump.model import Options
    from streamdump.render.clock import Clock

    run = FileRun([path], Options(findings=True))
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.shown.set()
    reader.start()
    reader.stop(wait_all=True)


def execute(arguments: Sequence[str], folder: Path) -> int:
    """Run a command line in this process."""
    from streamdump.cli.app import main as streamdump

    if "pipeline" in arguments[:1]:
        from tests.spark.here import go

        shutil.rmtree(folder / "tables", ignore_errors=True)
        go([arguments[-1]], folder / "tables", findings=True)
        return 0
    if "browse" in arguments[:1]:
        index(arguments[-1])
        return 0
    return streamdump(list(arguments))


def load(view: str, folder: Path) -> None:
    """Load the modules that a view needs, so that no fork has to."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        for golden in ("rabbitmq-stream/js_publish_consume_405.pcap", "iggy/py080-basic.pcap", "seastar-rpc/basic.pcap"):
            shutil.copy(GOLDEN / golden, folder / "made.pcap")
            shutil.copy(GOLDEN / golden, folder / "other.pcap")
            for arguments in filter(None, (VIEWS[view].before, VIEWS[view].arguments)):
                (folder / "out.pcap").unlink(missing_ok=True)
                with contextlib.suppress(SystemExit):
                    execute(arguments_of(arguments, (), folder), folder)


def fork(arguments: Sequence[str], folder: Path) -> tuple[float, int, int]:
    """CPU seconds, peak resident KiB and exit code of a command line run in a fork."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        status = 70
        # As the program does
        gc.set_threshold(200_000, 50, 50)
        gc.freeze()
        try:
            status = execute(arguments, folder)
            sys.stdout.flush()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        finally:
            os._exit(status)
    _, ended, used = os.wait4(child, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(ended)


def arguments_of(arguments: Sequence[str], options: Sequence[str], folder: Path) -> list[str]:
    places = {CAPTURE: str(folder / "made.pcap"), OTHER: str(folder / "other.pcap"), OUT: str(folder / "out.pcap")}
    first = [*options, *arguments] if arguments[0].startswith(("-", "<")) else [arguments[0], *options, *arguments[1:]]
    return [places.get(one, one) for one in first]


def measure(name: str, view: str, made: Callable[[int], Made], size: int, start: float, folder: Path, twice: bool) -> Cost:
    spent: list[float] = []
    chosen = VIEWS[view]
    for share in (size, 2 * size) if twice else (size,):
        for file in folder.glob("*.golden"):
            file.unlink()
        (folder / "out.pcap").unlink(missing_ok=True)
        one = made(share)
        if OTHER in (*chosen.arguments, *chosen.before):
            other = made(share * 9 // 10)
            (folder / "other.pcap").write_bytes(other.file)
            one = one._replace(conversations=one.conversations + other.conversations)
            one = one._replace(size=one.size + other.size * (OTHER in chosen.arguments))
        (folder / "made.pcap").write_bytes(one.file)
        one = one._replace(file=b"")
        if chosen.before:
            fork(arguments_of(chosen.before, one.options, folder), folder)
        for golden in folder.glob("other.pcap.golden"):
            one = one._replace(size=one.size + golden.stat().st_size)
            golden.rename(folder / "made.pcap.golden")
        cpu, kib, status = fork(arguments_of(chosen.arguments, one.options, folder), folder)
        spent.append(max(0.0, cpu - start))
    memory, rate = kib * 1024, spent[-1] / (one.size / MB)
    room = MEMORY + FOR_A_CONVERSATION * one.conversations + FOR_A_FRAME * one.frame
    growth = (spent[1] - spent[0]) / spent[0] if twice and spent[0] > 0.1 else None
    over = rate > chosen.bound or memory > room or status not in (0, 1, 2, 3) or (growth is not None and growth > GROWTH)
    return Cost(name, view, rate, memory, growth, status, over)


def classes(shapes: Iterable[Shape]) -> Iterator[tuple[str, Callable[[int], Made]]]:
    yield from MADE.items()
    for name, content in SENT.items():
        for shape in shapes:
            yield f"{name} ({shape})", lambda size, content=content, shape=shape: sending(content, size, shape)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("classes", nargs="*", help="parts of names; all words of one must be in a name, in any order")
    parser.add_argument("--size", type=float, default=0.3, help="of each capture, in MB")
    parser.add_argument("--views", default="json,text", help=f"all, or some of {','.join(VIEWS)}")
    parser.add_argument("--shapes", choices=("usual", "all", "one"), default="usual")
    parser.add_argument("--sample", type=int, help="measure so many of the chosen ones, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twice", action="store_true", help="measure double the size too, and how the cost grows")
    parser.add_argument("--top", type=int, help="print the largest only")
    parser.add_argument("--list", action="store_true", help="print names only")
    parser.add_argument("--keep", type=Path, help="write the captures to this folder, and measure nothing")
    options = parser.parse_args()
    shapes = {"usual": USUAL, "all": ALL, "one": USUAL[:1]}[options.shapes]
    words = [wanted.split() for wanted in options.classes]
    chosen = [(name, made) for name, made in classes(shapes) if not words or any(all(part in name for part in one) for one in words)]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    size = int(options.size * MB)
    if options.list:
        print(*(name for name, _ in chosen), sep="\n")
        return 0
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for number, (name, made) in enumerate(chosen):
            (options.keep / f"{number}.pcap").write_bytes(made(size).file)
            print(f"{number}.pcap: {name}")
        return 0
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for view in VIEWS if options.views == "all" else options.views.split(","):
            load(view, folder)
            (folder / "made.pcap").write_bytes(pcap([ip(b"", (1, 2), 1, 1, 16)]))
            (folder / "other.pcap").write_bytes(pcap([ip(b"", (1, 2), 1, 1, 16)]))
            start = min(fork(arguments_of(VIEWS[view].arguments, (), folder), folder)[0] for _ in range(3))
            for number, (name, made) in enumerate(chosen, 1):
                costs.append(measure(name, view, made, size, start, folder, options.twice))
                if sys.stderr.isatty():
                    print(f"\r{view} {number}/{len(chosen)} {name[:90]:90}", end="", file=sys.stderr, flush=True)
                elif costs[-1].over:
                    print(costs[-1], file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 120 + "\r", end="", file=sys.stderr)
    costs.sort(key=lambda cost: -cost.cpu / VIEWS[cost.view].bound)
    print(f"{'CPU s/MB':>9} {'bound':>6} {'memory MB':>9} {'growth' if options.twice else '':>6}  view           class")
    for cost in islice(costs, options.top):
        growth = "" if cost.growth is None else f"{cost.growth:.1f}"
        marks = " OVER" * cost.over + f" ended with {cost.status}" * (cost.status not in (0, 1, 2, 3))
        print(
            f"{cost.cpu:9.2f} {VIEWS[cost.view].bound:6.1f} {cost.memory / MB:9.0f} {growth:>6}  {cost.view:13}  {cost.name}{marks}",
            flush=True,
        )
    over = sum(cost.over for cost in costs)
    print(f"{len(costs)} runs, {over} over the bound; largest memory {max(cost.memory for cost in costs) / MB:.0f} MB")
    return int(over > 0)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
