"""Captures of some size, and how to cut and pack them."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.bench.generate import write
from tests.support.frames import Packet, ethernet, ip4, pcap, pcapng

SNAP = 2048
"""Small, so that borders are found close to each other."""


def generated(folder: Path, packets: int = 4000, conversations: int = 7) -> Path:
    """A capture of RabbitMQ Streams conversations."""
    path = folder / "generated.pcap"
    write(path, packets, conversations, 2, amqp=False)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 16, SNAP)
    path.write_bytes(data)
    return path


UNITS = {bytes.fromhex("d4c3b2a1"): 1_000, bytes.fromhex("4d3cb2a1"): 1}
"""Nanoseconds that the fraction of a second counts, by the first bytes of little-endian pcap files."""


def records(path: Path) -> list[Packet]:
    """The packets of a little-endian pcap file."""
    data, at = path.read_bytes(), 24
    unit = UNITS[data[:4]]
    found = []
    while at < len(data):
        seconds, fraction, captured, wire = struct.unpack_from("<IIII", data, at)
        found.append(Packet(data[at + 16 : at + 16 + captured], seconds * 1_000_000_000 + fraction * unit, wire))
        at += 16 + captured
    return found


def rotated(folder: Path, packets: Sequence[Packet]) -> list[Path]:
    """The packets in four files: pcap, pcapng, packed, and the rest by direction in two."""
    quarter = len(packets) // 4
    rest = packets[3 * quarter :]
    contents = {
        "0.pcap": pcap(packets[:quarter], nano=True, snap=SNAP),
        "1.pcapng": pcapng(packets[quarter : 2 * quarter]),
        "2.pcap.gz": gzip.compress(pcap(packets[2 * quarter : 3 * quarter], nano=True, snap=SNAP)),
        "3.pcap": pcap([one for one in rest if one.data[26:30] != bytes([10, 0, 0, 1])], nano=True, snap=SNAP),
        "4.pcap": pcap([one for one in rest if one.data[26:30] == bytes([10, 0, 0, 1])], nano=True, snap=SNAP),
    }
    folder.mkdir(exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def fragments(packet: Packet, identity: int, at: int) -> list[Packet]:
    """A packet in two fragments."""
    ip = packet.data[14:]
    src, dst, body = ip[12:16], ip[16:20], ip[20:]
    first = ip4(body[:at], src=src, dst=dst, identity=identity, more=True)
    return [
        Packet(ethernet(first), packet.time_ns),
        Packet(ethernet(ip4(body[at:], src=src, dst=dst, identity=identity, offset=at)), packet.time_ns + 1),
    ]


def troubled(packets: list[Packet], dice: random.Random, times: int) -> list[Packet]:
    """The packets, of which so many came late, twice, or not at all."""
    for _ in range(times):
        at = dice.randrange(30, len(packets) - 5)
        packets.insert(at + dice.randrange(4), packets.pop(at))
        packets.insert(at, packets[at - dice.randrange(20)])
        del packets[dice.randrange(30, len(packets))]
    return packets
