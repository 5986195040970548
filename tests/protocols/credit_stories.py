"""The made captures of credit in bytes: conversations written byte by byte from the proposal of Subscribe 2 and Credit 2, with all values.

No release of a server or client sends them, so nothing could be recorded. `python -m tests.protocols.credit_stories` writes the captures.
Nothing of the decoder is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.frames import ACK, FIN, PSH, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp

CAPTURES = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream"

MS, SECOND = 1_000_000, 1_000_000_000
CHUNKS, BYTES = 1, 2

U8, U16, U32, I16, U64, I64 = ">B", ">H", ">I", ">h", ">Q", ">q"


class Said(NamedTuple):
    """A message as it was written: its values in the order of the frame, without labels."""

    sender: str
    name: str
    kind: str
    values: dict[str, Any]
    answers: int | None
    """The place of its request among the messages of the capture, from 0."""


class Story:
    """One connection: its packets, and what its messages say."""

    def __init__(self, port: int = 45000, begins: bool = True) -> None:
        self.packets: list[Packet] = []
        self.said: list[Said] = []
        self.now = START_NS
        self.port = port
        self.next = [7_000, 90_000]
        self.number = 0
        self.asked: dict[Any, int] = {}
        self.offsets: dict[int, int] = {}
        """The next one of each subscription."""
        if begins:
            self.segment(0, flags=SYN).segment(1, flags=SYN | ACK).segment(0)

    # Packets

    def segment(self, side: int, data: bytes = b"", flags: int = ACK) -> Story:
        ports, addresses = (self.port, 5552), (A, B)
        body = tcp(
            data,
            sport=ports[side],
            dport=ports[1 - side],
            seq=self.next[side],
            ack=self.next[1 - side] if flags & ACK else 0,
            flags=flags,
        )
        self.packets.append(Packet(ethernet(ip4(body, src=addresses[side], dst=addresses[1 - side])), self.now))
        self.next[side] += len(data) + bool(flags & (SYN | FIN))
        self.now += 400_000
        return self

    def wait(self, ns: int) -> Story:
        self.now += ns
        return self

    def message(
        self, side: int, name: str, kind: str, key: int, version: int, *parts: tuple[str, Any, bytes], asks: Any = None, answers: Any = None
    ) -> Story:
        """`parts`: name, value and bytes of each field; `asks`, `answers`: what a request and its response have in common."""
        body = b"".join(data for _, _, data in parts)
        values = {"size": 4 + len(body), "key": key, "version": version, **{field: value for field, value, _ in parts}}
        sender = "server" if side else "client"
        self.said.append(Said(sender, name, kind, values, self.asked.pop(answers, None) if answers is not None else None))
        if asks is not None:
            self.asked[asks] = len(self.said) - 1
        return self.segment(side, struct.pack(">IHH", 4 + len(body), key, version) + body, ACK | PSH)

    def ask(self, name: str, key: int, *parts: tuple[str, Any, bytes], version: int = 1) -> Story:
        """The client asks, with the next correlation id."""
        self.number += 1
        return self.message(0, name, "request", key, version, number("correlation_id", U32, self.number), *parts, asks=(key, self.number))

    def answer(self, name: str, key: int, *parts: tuple[str, Any, bytes], code: int = 1, of: int = 0) -> Story:
        """The server answers the last request, or the request `of` places before it."""
        ident = self.number - of
        head = number("correlation_id", U32, ident), number("response_code", U16, code)
        return self.message(1, name, "response", 0x8000 | key, 1, *head, *parts, answers=(key, ident))

    # What clients and servers do

    def ready(self, server: str = "4.4.0", versions: dict[int, int] | None = None, deliver: int = 2) -> Story:
        """The handshake; the client states Deliver up to `deliver`, the server these versions."""
        client = pairs("peer_properties", ("product", "RabbitMQ Stream"), ("version", "1.12.0-SNAPSHOT"))
        self.ask("PeerProperties", 0x0011, client)
        self.answer("PeerProperties", 0x0011, pairs("peer_properties", ("product", "RabbitMQ"), ("version", server)))
        self.ask("SaslHandshake", 0x0012)
        self.answer("SaslHandshake", 0x0012, ("mechanisms", ["PLAIN"], struct.pack(">i", 1) + string("PLAIN")))
        secret = b"\0guest\0guest"
        hidden = f"<redacted {len(secret)} bytes>"
        self.ask(
            "SaslAuthenticate",
            0x0013,
            text("mechanism", "PLAIN"),
            ("sasl_opaque_data", hidden, struct.pack(">i", len(secret)) + secret),
            ("sasl_username", "guest", b""),
        )
        self.answer("SaslAuthenticate", 0x0013)
        tune = number("frame_max", U32, 1_048_576), number("heartbeat", U32, 60)
        self.message(1, "Tune", "request", 0x0014, 1, *tune, asks="Tune")
        self.message(0, "Tune", "response", 0x0014, 1, *tune, answers="Tune")
        self.ask("Open", 0x0015, text("virtual_host", "/"))
        self.answer("Open", 0x0015, pairs("connection_properties", ("advertised_host", "192.0.2.2"), ("advertised_port", "5552")))
        if versions is not None:
            self.ask("ExchangeCommandVersions", 0x001B, commands({0x0008: deliver}))
            self.answer("ExchangeCommandVersions", 0x001B, commands(versions))
        return self

    def subscribe(self, version: int, credit: int, ident: int = 0, stream: str = "orders", *properties: tuple[str, str]) -> Story:
        return self.ask(
            "Subscribe",
            0x0007,
            number("subscription_id", U8, ident),
            text("stream", stream),
            number("offset_type", U16, 1),
            number("credit", U32 if version == BYTES else U16, credit),
            *([pairs("properties", *properties)] if properties else []),
            version=version,
        )

    def subscribed(self, code: int = 1) -> Story:
        return self.answer("Subscribe", 0x0007, code=code)

    def unsubscribe(self, ident: int = 0) -> Story:
        self.offsets.pop(ident, None)
        return self.ask("Unsubscribe", 0x000C, number("subscription_id", U8, ident)).answer("Unsubscribe", 0x000C)

    def credit(self, version: int, credit: int, ident: int = 0) -> Story:
        more = number("credit", U32 if version == BYTES else I16, credit)
        return self.message(0, "Credit", "one_way", 0x0009, version, number("subscription_id", U8, ident), more, asks=("Credit", ident))

    def refuse(self, code: int = 0x11, ident: int = 0) -> Story:
        head = number("response_code", U16, code), number("subscription_id", U8, ident)
        return self.message(1, "Credit", "response", 0x8009, 1, *head, answers=("Credit", ident))

    def deliver(self, *bodies: bytes, ident: int = 0, version: int = 2, trailer: int = 0) -> int:
        """A chunk of these messages; return the bytes of credit that it uses. `trailer`: bytes that the header announces, and that are not
        sent."""
        data = b"".join(struct.pack(">I", len(one)) + one for one in bodies)
        first, count = self.offsets.get(ident, 0), len(bodies)
        head = struct.pack(
            ">BBHIqQQIIIB3s", 0x50, 0, count, count, 1_700_000_000_000, 4, first, zlib.crc32(data), len(data), trailer, 0, b"\0\0\0"
        )
        entries = [{"size": len(one), "offset": first + at, "body": one.hex()} for at, one in enumerate(bodies)]
        chunk = {
            "magic_version": 0x50,
            "chunk_type": 0,
            "num_entries": count,
            "num_records": count,
            "timestamp": 1_700_000_000_000,
            "epoch": 4,
            "chunk_first_offset": first,
            "chunk_crc": zlib.crc32(data),
            "data_length": len(data),
            "trailer_length": trailer,
            "bloom_size": 0,
            "reserved": "000000",
            "entries": entries,
        }
        self.offsets[ident] = first + count
        committed = [number("committed_chunk_id", U64, first + 50)] if version == 2 else []
        parts = number("subscription_id", U8, ident), *committed, ("chunk", chunk, head + data)
        self.message(1, "Deliver", "one_way", 0x0008, version, *parts)
        return len(head) + len(data)

    def consume(self, *bodies: bytes, ident: int = 0, version: int = 2, trailer: int = 0) -> Story:
        """A chunk, and its bytes as credit."""
        return self.credit(BYTES, self.deliver(*bodies, ident=ident, version=version, trailer=trailer), ident)

    def update(self, active: int, serial: int, ident: int = 0) -> Story:
        """The server makes a single active consumer the active one, or no longer."""
        head = number("correlation_id", U32, serial)
        self.message(
            1, "ConsumerUpdate", "request", 0x001A, 1, head, number("subscription_id", U8, ident), number("active", U8, active), asks=serial
        )
        values = number("response_code", U16, 1), number("offset_type", U16, 1 if active else 0)
        return self.message(0, "ConsumerUpdate", "response", 0x801A, 1, head, *values, answers=serial)

    def heartbeat(self) -> Story:
        return self.message(0, "Heartbeat", "one_way", 0x0017, 1).message(1, "Heartbeat", "one_way", 0x0017, 1)

    def close(self) -> Story:
        self.ask("Close", 0x0016, number("closing_code", U16, 1), text("closing_reason", "OK")).answer("Close", 0x0016)
        return self.end(0)

    def end(self, side: int) -> Story:
        return self.segment(side, flags=FIN | ACK).segment(1 - side, flags=FIN | ACK).segment(side)

    def capture(self) -> bytes:
        return pcap(self.packets, nano=True)


def number(name: str, form: str, value: int) -> tuple[str, int, bytes]:
    return name, value, struct.pack(form, value)


def string(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def text(name: str, value: str) -> tuple[str, str, bytes]:
    return name, value, string(value)


def pairs(name: str, *values: tuple[str, str]) -> tuple[str, list[dict[str, str]], bytes]:
    data = struct.pack(">i", len(values)) + b"".join(string(key) + string(value) for key, value in values)
    return name, [{"key": key, "value": value} for key, value in values], data


def commands(versions: dict[int, int]) -> tuple[str, list[dict[str, int]], bytes]:
    data = struct.pack(">i", len(versions)) + b"".join(struct.pack(">HHH", key, 1, most) for key, most in versions.items())
    return "commands", [{"key": key, "min_version": 1, "max_version": most} for key, most in versions.items()], data


IN_BYTES = {0x0002: 2, 0x0007: 2, 0x0009: 2, 0x000C: 1}
"""What a server with credit in bytes states, in part."""

IN_CHUNKS = {**IN_BYTES, 0x0007: 1, 0x0009: 1}

APP = (("single-active-consumer", "true"), ("name", "app"))


def consumer() -> Story:
    """Each chunk is granted again by its bytes, whatever its size; the trailer that a header announces is neither sent nor counted."""
    story = Story().ready(versions=IN_BYTES).subscribe(BYTES, 65_536, 0, "orders", ("name", "app")).subscribed()
    for size, trailer in ((10, 0), (900, 0), (1, 35), (1_300, 0), (0, 0)):
        story.consume(b"a" * size, b"bb", trailer=trailer).wait(20 * MS)
    return story.wait(2 * SECOND).heartbeat().unsubscribe().close()


def two_units() -> Story:
    """Two subscriptions of one connection: 0 in bytes, 1 in chunks, each with a little more than it uses."""
    story = (
        Story(45001).ready(versions=IN_BYTES, deliver=1).subscribe(BYTES, 400).subscribed().subscribe(CHUNKS, 2, 1, "bills").subscribed()
    )
    for _ in range(3):
        story.consume(b"order" * 30, version=1)
        story.deliver(b"bill", ident=1, version=1)
        story.credit(CHUNKS, 1, 1).wait(5 * MS)
    return story.wait(2 * SECOND).heartbeat().unsubscribe(1).unsubscribe().close()


def below_zero() -> Story:
    """Credit of 1 byte lets one chunk through; Credit comes before the answer to Subscribe, and the id is used again, for chunks."""
    story = Story(45002).ready(versions=IN_BYTES).subscribe(BYTES, 1).credit(BYTES, 1).subscribed()
    size = story.deliver(b"x" * 500)
    story.credit(BYTES, size)
    size = story.deliver(b"y" * 700)
    story.credit(BYTES, size).unsubscribe().subscribe(CHUNKS, 2, 0, "bills").subscribed()
    story.deliver(b"z" * 100)
    return story.credit(CHUNKS, 1).wait(2 * SECOND).heartbeat().unsubscribe().close()


def single_active() -> Story:
    """A single active consumer: its Credit is answered with 0x11 while it is not active, which is normal, and the credit counts."""
    story = Story(45003).ready(versions=IN_BYTES).subscribe(BYTES, 300, 0, "orders", *APP).subscribed().wait(SECOND)
    story.update(1, 0).consume(b"one" * 20).consume(b"two" * 20).update(0, 1)
    return story.credit(BYTES, 112).refuse().wait(3 * SECOND).heartbeat().unsubscribe().close()


def older_server() -> Story:
    """The server states Subscribe and Credit up to 1, so the client counts chunks."""
    story = Story(45004).ready("4.3.6", IN_CHUNKS).subscribe(CHUNKS, 10).subscribed()
    for _ in range(3):
        story.deliver(b"m" * 50)
        story.credit(CHUNKS, 1)
    return story.unsubscribe().close()


def midstream() -> Story:
    """From the middle of a connection: what the subscription counts is not known, and nothing is made of it."""
    story = Story(45005, begins=False)
    story.number, story.offsets = 12, {4: 9_000}
    for size in (100, 90, 80):
        story.consume(b"m" * size, ident=4).wait(10 * MS)
    return story.wait(2 * SECOND).heartbeat().unsubscribe(4).close()


def refused() -> Story:
    """Credit in chunks for bytes, of too many bytes, and in bytes for chunks: each is answered with 0x11, and not counted."""
    story = Story(45006).ready(versions=IN_BYTES).subscribe(BYTES, 500).subscribed().subscribe(CHUNKS, 5, 1, "bills").subscribed()
    story.credit(CHUNKS, 1).refuse().credit(BYTES, 70_000_000).refuse().credit(BYTES, 100, 1).refuse(ident=1)
    story.consume(b"o" * 40)
    return story.wait(SECOND).unsubscribe(1).unsubscribe().close()


def starved() -> Story:
    """A consumer that grants the sizes of the messages, and not those of the chunks: what is left shrinks until nothing comes."""
    story = Story(45007).ready(versions=IN_BYTES).subscribe(BYTES, 400).subscribed()
    for at in range(8):
        story.deliver(b"s" * 100)
        if at < 7:
            story.credit(BYTES, 100).wait(10 * MS)
    return story.wait(30 * SECOND).heartbeat().wait(SECOND).close()


def unknown_to_the_server() -> Story:
    """Subscribe 2 for a released server, which closes."""
    story = Story(45008).ready("4.0.5").subscribe(BYTES, 65_536)
    head = number("correlation_id", U32, 1), number("closing_code", U16, 13), text("closing_reason", "unknown frame")
    story.message(1, "Close", "request", 0x0016, 1, *head, asks="Close")
    answer = number("correlation_id", U32, 1), number("response_code", U16, 1)
    return story.message(0, "Close", "response", 0x8016, 1, *answer, answers="Close").end(1)


def newer_release() -> Story:
    """A server and a client of a release to come: a command and a version that no table has, each answered."""
    story = Story(45009).ready("5.0.0", {**IN_BYTES, 0x000D: 2, 0x0020: 1})
    for key, version, name, asked, reported in (
        (0x0020, 1, "unknown 0x0020", b"\0\6orders", b"\0\1\0\1x"),
        (0x000D, 2, "Create", b"\0\6orders\0\0\0\0\0", None),
    ):
        story.number += 1
        ident = struct.pack(">I", story.number)
        story.message(0, name, "one_way", key, version, ("body", (ident + asked).hex(), ident + asked), asks=(key, story.number))
        if reported is None:
            story.answer(name, key)
        else:
            body = ident + reported
            story.message(1, name, "response", 0x8000 | key, version, ("body", body.hex(), body), answers=(key, story.number))
    return story.subscribe(BYTES, 65_536).subscribed().consume(b"n" * 10).unsubscribe().close()


def hostile() -> Story:
    """The largest and the smallest numbers, both units on one id, ids that nobody subscribed to, and frames that end too early."""
    story = Story(45010).ready(versions=IN_BYTES).subscribe(BYTES, 0xFFFF_FFFF).subscribed(0x11).subscribe(BYTES, 100).subscribed()
    for _ in range(20):
        story.credit(BYTES, 0xFFFF_FFFF).credit(CHUNKS, -0x8000).credit(CHUNKS, 0x7FFF).credit(BYTES, 0)
    for _ in range(60):
        story.refuse()
    for ident in range(0, 256, 5):
        story.credit(BYTES, 1 << 31, ident).credit(CHUNKS, -1, ident)
    story.subscribe(CHUNKS, 0xFFFF).subscribed(3).subscribe(BYTES, 0, 255).subscribed()
    for key, version, size in ((0x0007, 2, 9), (0x0009, 2, 3), (0x0009, 2, 12), (0x0009, 1, 5), (0x8009, 2, 7)):
        story.segment(0 if key < 0x8000 else 1, struct.pack(">IHH", 4 + size, key, version) + bytes(size), ACK | PSH)
    return story.wait(5 * SECOND).close()


HEALTHY: dict[str, Callable[[], Story]] = {
    "byte_credit_made.pcap": consumer,
    "byte_credit_two_units_made.pcap": two_units,
    "byte_credit_below_zero_made.pcap": below_zero,
    "byte_credit_single_active_made.pcap": single_active,
    "byte_credit_older_server_made.pcap": older_server,
    "byte_credit_midstream_made.pcap": midstream,
    "newer_release_made.pcap": newer_release,
}
"""In which nothing is wrong."""

FAILING: dict[str, Callable[[], Story]] = {
    "byte_credit_refused_made.pcap": refused,
    "byte_credit_starved_made.pcap": starved,
    "byte_credit_unknown_made.pcap": unknown_to_the_server,
    "byte_credit_hostile_made.pcap": hostile,
}

STORIES = HEALTHY | FAILING

if __name__ == "__main__":
    for name, story in STORIES.items():
        (CAPTURES / name).write_bytes(story().capture())
