"""Builds packets and files byte by byte, for tests; nothing here is used by the code it tests."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from streamdump.capture.files import CaptureReader, open_capture
from streamdump.capture.link import LinkParser
from streamdump.model import Packet as Captured
from streamdump.model import Segment
from streamdump.tcp.checksum import is_right

A, B = bytes.fromhex("c0000201"), bytes.fromhex("c0000202")  # 192.0.2.1, 192.0.2.2
A6, B6 = bytes.fromhex("20010db8000000000000000000000001"), bytes.fromhex("20010db8000000000000000000000002")
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
START_NS = 1_700_000_000_000_000_000

ETHERNET, NULL, LOOP, PPP, PPP_HDLC, SLL, SLL2 = 1, 0, 108, 9, 50, 113, 276


class Packet(NamedTuple):
    """A packet of a capture; `wire` is its length before the snap length cut it."""

    data: bytes
    time_ns: int = START_NS
    wire: int | None = None


def tcp(
    payload: bytes = b"", *, sport: int = 40000, dport: int = 5552, seq: int = 1000, ack: int = 2000, flags: int = ACK, options: bytes = b""
) -> bytes:
    words = 5 + len(options) // 4
    return struct.pack(">HHIIBBHHH", sport, dport, seq, ack, words << 4, flags, 502, 0xBAD, 0) + options + payload


def ip4(
    body: bytes,
    *,
    src: bytes = A,
    dst: bytes = B,
    protocol: int = 6,
    identity: int = 7,
    offset: int = 0,
    more: bool = False,
    options: bytes = b"",
    length: int | None = None,
    ttl: int = 64,
) -> bytes:
    """An IPv4 packet; its checksum is wrong, as offloading leaves it."""
    size = 20 + len(options)
    total = size + len(body) if length is None else length
    fragment = offset // 8 | (0x2000 if more else 0)
    return struct.pack(">BBHHHBBH", 0x40 | size // 4, 0, total, identity, fragment, ttl, protocol, 0xBAD) + src + dst + options + body


def ip6(body: bytes, *, src: bytes = A6, dst: bytes = B6, following: int = 6, length: int | None = None, ttl: int = 64) -> bytes:
    return struct.pack(">IHBB", 0x60000000, len(body) if length is None else length, following, ttl) + src + dst + body


def ethernet(ip: bytes, *tags: int, kind: int | None = None) -> bytes:
    """A frame with a VLAN tag for each of `tags`, whose values are their types."""
    last = (0x86DD if ip[0] >> 4 == 6 else 0x0800) if kind is None else kind
    types = [*tags, last]
    head = bytes.fromhex("020000000002 020000000001") + struct.pack(">H", types[0])
    return head + b"".join(struct.pack(">HH", 0x6064, following) for following in types[1:]) + ip


def sll(ip: bytes, packet_type: int = 0) -> bytes:
    kind = 0x86DD if ip[0] >> 4 == 6 else 0x0800
    return struct.pack(">HHH8sH", packet_type, 772, 6, b"", kind) + ip


def sll2(ip: bytes, packet_type: int = 0, interface: int = 1) -> bytes:
    kind = 0x86DD if ip[0] >> 4 == 6 else 0x0800
    return struct.pack(">HHIHBB8s", kind, 0, interface, 772, packet_type, 6, b"") + ip


def pcap(packets: Iterable[Packet], link: int = ETHERNET, *, order: str = "<", nano: bool = False, snap: int = 262144) -> bytes:
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap, link)]
    for data, time_ns, wire in packets:
        seconds, fraction = divmod(time_ns, 1_000_000_000)
        size = len(data) if wire is None else wire
        parts += [struct.pack(order + "IIII", seconds, fraction if nano else fraction // 1000, len(data), size), data]
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += b"\0" * (-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(
    link: int = ETHERNET, *, snap: int = 262144, resolution: int | None = None, offset: int | None = None, order: str = "<"
) -> bytes:
    options = struct.pack(order + "HH4s", 2, 3, b"lo0")  # a name, with a byte of padding
    if resolution is not None:
        options += struct.pack(order + "HHB3x", 9, 1, resolution)
    if offset is not None:
        options += struct.pack(order + "HHq", 14, 8, offset)
    return block(1, struct.pack(order + "HHI", link, 0, snap) + options + bytes(4), order)


def enhanced(packet: Packet, *, index: int = 0, ticks: int | None = None, order: str = "<", options: bytes = b"") -> bytes:
    data, time_ns, wire = packet
    when = time_ns // 1000 if ticks is None else ticks
    head = struct.pack(order + "IIIII", index, when >> 32, when & 0xFFFFFFFF, len(data), len(data) if wire is None else wire)
    return block(6, head + data + b"\0" * (-len(data) % 4) + options, order)


def simple(packet: Packet, order: str = "<") -> bytes:
    return block(3, struct.pack(order + "I", len(packet.data) if packet.wire is None else packet.wire) + packet.data, order)


def obsolete(packet: Packet, *, index: int = 0, order: str = "<") -> bytes:
    data, time_ns, wire = packet
    when = time_ns // 1000
    size = len(data) if wire is None else wire
    return block(2, struct.pack(order + "HHIIII", index, 0xFFFF, when >> 32, when & 0xFFFFFFFF, len(data), size) + data, order)


def pcapng(packets: Iterable[Packet], link: int = ETHERNET, *, order: str = "<") -> bytes:
    """One section with one interface of nanoseconds."""
    blocks = [enhanced(one, ticks=one.time_ns, order=order) for one in packets]
    return b"".join([section(order), interface(link, resolution=9, order=order), *blocks])


def reader(data: bytes) -> CaptureReader:
    return open_capture(io.BytesIO(data), name="test")


def bytes_of(packet: Captured) -> bytes:
    """What was captured of a packet."""
    return packet.buffer[packet.offset : packet.offset + packet.captured]


def parsed(parser: LinkParser, packets: Iterable[Captured], order: int = 0) -> list[Segment]:
    """The segments of these packets, of which the first has this order; as they are the same in other buffers."""
    found = [one for at, packet in enumerate(packets, order) if (one := parser.segment(packet, at)) is not None]
    return [replace(one, damaged=not is_right(one), buffer=b"", addresses=0) for one in found]


def segments(data: bytes, rows: int | None = None, parser: LinkParser | None = None) -> list[Segment]:
    """All segments of a file, read so many packets at a time."""
    parser = parser or LinkParser()
    return parsed(parser, (packet for packets in reader(data).batches(rows) for packet in packets))


def parse(packets: Iterable[Packet | bytes], link: int = ETHERNET) -> tuple[list[Segment], LinkParser]:
    """The segments of these packets and the parser; checked to be the same for batches of 1, of 7 and of all."""
    file = pcap((one if isinstance(one, Packet) else Packet(one) for one in packets), link, nano=True)
    parsers = [LinkParser(), LinkParser(), LinkParser()]
    one, seven, every = (segments(file, rows, parser) for rows, parser in zip((1, 7, None), parsers, strict=True))
    assert one == seven == every
    assert parsers[0].counters == parsers[1].counters == parsers[2].counters
    return every, parsers[2]


def ends(src: bytes, sport: int, dst: bytes, dport: int) -> bytes:
    """The key of this sender and this receiver."""
    return src + dst + struct.pack(">HH", sport, dport)
