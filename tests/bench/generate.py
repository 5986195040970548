"""Writes the captures that the budgets are measured on: RabbitMQ Streams conversations, packed by hand with struct.

python tests/bench/generate.py OUT.pcap [--packets 300000] [--conversations 40] [--entries 2|100] [--amqp]

Every conversation opens with its handshake and then mixes publishing, confirms, deliveries, credit, offset commands and
requests with their responses, as real clients do: 1.0 to 1.5 frames a data segment, an acknowledgement of its own where no
data goes the other way for two segments.
"""

from __future__ import annotations

import argparse
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

START_NS = 1_760_000_000_000_000_000
CLIENT_PORT, SERVER_PORT = 40_000, 5_552
CLIENTS = 0x0A010000
"""The address of the first client."""


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def frame(key: int, body: bytes, version: int = 1) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, version) + body


def pairs(**values: str) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(text(key) + text(value) for key, value in values.items())


def chunk(bodies: list[bytes], offset: int) -> bytes:
    """Messages as a server delivers them."""
    data = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    count = len(bodies)
    head = struct.pack(">BBHIqQQIIIBBH", 0x50, 0, count, count, START_NS // 1_000_000, 1, offset, zlib.crc32(data), len(data), 0, 0, 0, 0)
    return head + data


class Peer:
    """The frames of one conversation, as (side, bytes of one segment)."""

    def __init__(self, seed: int, entries: int, amqp: bool) -> None:
        self.random = random.Random(seed)
        self.entries = entries
        self.amqp = amqp
        self.correlation = 4
        self.publishing = 0
        self.offset = 0

    def body(self) -> bytes:
        if self.amqp:
            payload = self.random.randbytes(40)
            return b"\x00\x53\x73\xc0\x05\x03\x53\x2a\x40\x40" + b"\x00\x53\x75\xa0" + bytes([len(payload)]) + payload
        return b"\xee" + self.random.randbytes(63)

    def handshake(self) -> Iterator[tuple[int, bytes]]:
        yield 0, frame(0x11, struct.pack(">I", 1) + pairs(product="bench", version="1.0", platform="none"))
        yield 1, frame(0x8011, struct.pack(">IH", 1, 1) + pairs(product="RabbitMQ", version="4.0.5"))
        yield 0, frame(0x12, struct.pack(">I", 2))
        yield 1, frame(0x8012, struct.pack(">IHi", 2, 1, 2) + text("PLAIN") + text("AMQPLAIN"))
        sasl = b"\0user\0password"
        yield 0, frame(0x13, struct.pack(">I", 3) + text("PLAIN") + struct.pack(">i", len(sasl)) + sasl)
        yield 1, frame(0x8013, struct.pack(">IH", 3, 1)) + frame(0x14, struct.pack(">II", 1 << 20, 60))
        yield 0, frame(0x14, struct.pack(">II", 1 << 20, 60)) + frame(0x15, struct.pack(">I", 4) + text("/"))
        yield 1, frame(0x8015, struct.pack(">IH", 4, 1) + pairs(advertised_host="localhost", advertised_port="5552"))

    def publish(self) -> tuple[bytes, bytes]:
        count = self.random.randint(1, self.entries) if self.entries < 10 else self.entries
        ids = range(self.publishing, self.publishing + count)
        self.publishing += count
        messages = []
        for one in ids:
            body = self.body()
            messages.append(struct.pack(">QI", one, len(body)) + body)
        confirm = struct.pack(f">Bi{count}Q", 1, count, *ids)
        return frame(2, struct.pack(">Bi", 1, count) + b"".join(messages)), frame(3, confirm)

    def deliver(self) -> bytes:
        count = self.random.randint(1, self.entries) if self.entries < 10 else self.entries
        data = chunk([self.body() for _ in range(count)], self.offset)
        self.offset += count
        return frame(8, b"\x01" + data)

    def request(self) -> tuple[bytes, bytes]:
        self.correlation += 1
        correlation = self.correlation
        kind = self.random.randrange(4)
        if kind == 0:
            return (
                frame(0x0B, struct.pack(">I", correlation) + text("consumer-1") + text("orders")),
                frame(0x800B, struct.pack(">IHQ", correlation, 1, self.offset)),
            )
        if kind == 1:
            return (
                frame(0x05, struct.pack(">I", correlation) + text("writer-1") + text("orders")),
                frame(0x8005, struct.pack(">IHQ", correlation, 1, self.publishing)),
            )
        if kind == 2:
            return (
                frame(0x0F, struct.pack(">Ii", correlation, 1) + text("orders")),
                frame(
                    0x800F,
                    struct.pack(">IiH", correlation, 1, 0)
                    + text("localhost")
                    + struct.pack(">Ii", 5552, 1)
                    + text("orders")
                    + struct.pack(">HHi", 1, 0, 0),
                ),
            )
        return (
            frame(0x1C, struct.pack(">I", correlation) + text("orders")),
            frame(0x801C, struct.pack(">IHi", correlation, 1, 1) + text("first_chunk_id") + struct.pack(">q", 0)),
        )

    def traffic(self) -> Iterator[tuple[int, bytes]]:
        yield from self.handshake()
        while True:
            choice = self.random.random()
            if choice < 0.40:
                ask, answer = self.publish()
                yield 0, ask
                if self.random.random() < 0.3:
                    second, confirmed = self.publish()
                    yield 0, second
                    yield 1, answer + confirmed
                else:
                    yield 1, answer
            elif choice < 0.70:
                yield 1, self.deliver()
                if self.random.random() < 0.4:
                    yield 1, self.deliver() + (self.deliver() if self.entries < 10 else b"")
                yield (
                    0,
                    frame(9, struct.pack(">BH", 1, 1))
                    + (
                        frame(0x0A, text("consumer-1") + text("orders") + struct.pack(">Q", self.offset))
                        if self.random.random() < 0.5
                        else b""
                    ),
                )
            elif choice < 0.99:
                ask, answer = self.request()
                yield 0, ask
                yield 1, answer
            else:
                yield 0, frame(0x17, b"")


class Wire:
    """Ethernet, IPv4 and TCP around the segments of many conversations."""

    def __init__(self, out: BinaryIO, seed: int, port: int = SERVER_PORT, first: int = 0) -> None:
        """`first`: the number of the first conversation, by which its addresses differ from those of others."""
        self.out = out
        self.first = first
        self.port = port
        self.random = random.Random(seed)
        self.time_ns = START_NS
        self.packets = 0
        self.sequence: dict[int, list[int]] = {}
        self.unacked: dict[int, list[int]] = {}

    def header(self) -> None:
        self.out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1))

    def open(self, conversations: int) -> None:
        """The handshakes of TCP."""
        for one in range(conversations):
            self.packet(one, 0, 0x02)
            self.packet(one, 1, 0x12)
            self.packet(one, 0, 0x10)

    def packet(self, conversation: int, side: int, flags: int, payload: bytes = b"") -> None:
        self.time_ns += self.random.randint(2_000, 40_000)
        sequence = self.sequence.setdefault(conversation, [self.random.getrandbits(32), self.random.getrandbits(32)])
        number = self.first + conversation
        client, server = struct.pack(">I", CLIENTS + number), bytes([10, 0, 0, 1])
        port = CLIENT_PORT + number % 20_000
        ends = (server, client, self.port, port) if side else (client, server, port, self.port)
        tcp = (
            struct.pack(">HHIIBBHHH", ends[2], ends[3], sequence[side], sequence[1 - side], 0x80, flags, 512, 0, 0)
            + b"\x01\x01\x08\x0a"
            + struct.pack(">II", self.packets, self.packets)
        )
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp) + len(payload), self.packets & 65_535, 0x4000, 64, 6, 0) + ends[0] + ends[1]
        raw = b"\x02\0\0\0\0\1\x02\0\0\0\0\2\x08\0" + ip + tcp + payload
        self.out.write(struct.pack("<IIII", *divmod(self.time_ns, 1_000_000_000), len(raw), len(raw)) + raw)
        sequence[side] = (sequence[side] + len(payload) + (1 if flags & 3 else 0)) & 0xFFFFFFFF
        self.packets += 1

    def data(self, conversation: int, side: int, payload: bytes) -> None:
        unacked = self.unacked.setdefault(conversation, [0, 0])
        self.packet(conversation, side, 0x18, payload)
        unacked[side] += 1
        unacked[1 - side] = 0
        if unacked[side] == 2:
            self.packet(conversation, 1 - side, 0x10)
            unacked[side] = 0


def write(path: Path, packets: int, conversations: int, entries: int, amqp: bool, seed: int = 1, first: int = 0) -> None:
    """A capture of about `packets` packets (exactly that many or up to two more)."""
    with path.open("wb") as out:
        wire = Wire(out, seed, first=first)
        wire.header()
        peers = [Peer(seed * 1000 + one, entries, amqp).traffic() for one in range(conversations)]
        wire.open(conversations)
        order = random.Random(seed + 7)
        while wire.packets < packets:
            one = order.randrange(conversations)
            side, payload = next(peers[one])
            wire.data(one, side, payload)


def write_short(path: Path, conversations: int, seed: int = 1) -> None:
    """Conversations of six packets each, 40 at the same time."""
    with path.open("wb") as out:
        wire = Wire(out, seed)
        wire.header()
        for begin in range(0, conversations, 40):
            group = range(begin, min(begin + 40, conversations))
            talks = {one: Peer(seed * 1000 + one, 2, amqp=False).handshake() for one in group}
            for flags in (0x02, 0x12, 0x10):
                for one in group:
                    wire.packet(one, flags == 0x12, flags)
            for _ in range(3):
                for one in group:
                    side, data = next(talks[one])
                    wire.packet(one, side, 0x18, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--entries", type=int, default=2)
    parser.add_argument("--amqp", action="store_true")
    options = parser.parse_args()
    write(options.out, options.packets, options.conversations, options.entries, options.amqp)


if __name__ == "__main__":
    main()
