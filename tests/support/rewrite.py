"""Captures made from captures: other ports, other beginnings, several at once. Payload bytes stay as captured."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError

_LINK_HEADER = {1: 14, 113: 16, 276: 20, 0: 4, 108: 4, 12: 0, 14: 0, 101: 0, 228: 0, 229: 0}


class Packet(NamedTuple):
    time_ns: int
    link: int
    wire: int
    raw: bytes


def packets(path: Path) -> list[Packet]:
    """The packets of a capture; of a damaged one those that are whole."""
    found: list[Packet] = []
    try:
        for some in open_capture(path).batches():
            found += [Packet(one.time_ns, one.link, one.wire, one.buffer[one.offset : one.offset + one.captured]) for one in some]
    except CaptureError:
        pass
    return found


def tcp_offset(packet: Packet) -> int | None:
    """Where the TCP header starts; None where the packet is not plain TCP."""
    raw = packet.raw
    at = _LINK_HEADER[packet.link]
    if packet.link == 1:
        while raw[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
            at += 4
    if len(raw) < at + 40:
        return None
    if raw[at] >> 4 == 4 and raw[at + 9] == 6:
        return at + (raw[at] & 15) * 4
    if raw[at] >> 4 == 6 and raw[at + 6] == 6:
        return at + 40
    return None


def with_ports(found: Iterable[Packet], change: Callable[[int], int]) -> list[Packet]:
    """The same packets with both ports changed by `change`."""
    out = []
    for packet in found:
        at = tcp_offset(packet)
        if at is not None:
            ports = struct.unpack_from(">HH", packet.raw, at)
            raw = packet.raw[:at] + struct.pack(">HH", *(change(port) for port in ports)) + packet.raw[at + 4 :]
            packet = packet._replace(raw=raw)
        out.append(packet)
    return out


def server_port(found: Iterable[Packet]) -> int | None:
    """The port that the first SYN goes to, or else the lower one of the first TCP packet."""
    first: int | None = None
    for packet in found:
        at = tcp_offset(packet)
        if at is None:
            continue
        ports = struct.unpack_from(">HH", packet.raw, at)
        if packet.raw[at + 13] & 0x12 == 2:
            return int(ports[1])
        if first is None:
            first = int(min(ports))
    return first


def random_ports(seed: int) -> Callable[[int], int]:
    """A one-to-one change of ports to random ones that no protocol of ours uses."""
    ports = list(range(20_000, 60_000))
    random.Random(seed).shuffle(ports)
    known: dict[int, int] = {}
    return lambda port: known.setdefault(port, ports[len(known)])


def capture(found: Iterable[Packet]) -> io.BytesIO:
    """A pcapng of these packets, an interface for each link type."""
    body = io.BytesIO()
    body.write(struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28))
    links: list[int] = []
    for packet in found:
        if packet.link not in links:
            links.append(packet.link)
            options = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)
            body.write(struct.pack("<IIHHI", 1, 20 + len(options), packet.link, 0, 0) + options + struct.pack("<I", 20 + len(options)))
        padded = packet.raw + bytes(-len(packet.raw) % 4)
        size = 32 + len(padded)
        head = struct.pack(
            "<IIIIIII",
            6,
            size,
            links.index(packet.link),
            packet.time_ns >> 32,
            packet.time_ns & 0xFFFFFFFF,
            len(packet.raw),
            max(packet.wire, len(packet.raw)),
        )
        body.write(head + padded + struct.pack("<I", size))
    body.seek(0)
    return body
