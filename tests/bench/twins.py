"""Writes the same values twice, as a protocol of ours and as one that tshark decodes value by value.

python tests/bench/twins.py bson|amqp OURS.pcap THEIRS.pcap [--packets 60000]

`bson`: the documents of golden mewbase captures, as mewbase frames and as OP_MSG of MongoDB. `amqp`: AMQP 1.0 messages, as entries of
RabbitMQ's Publish and Deliver and as transfers of AMQP 1.0, eight to a segment.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import generate
import mix

Segments = Iterable[tuple[int, bytes]]
"""Side and bytes of each."""

CONVERSATIONS = 40
ENTRIES = 8
MEWBASE, MONGO, AMQP = 7_451, 27_017, 5_672


# BSON


def documents(data: bytes) -> list[bytes] | None:
    """The BSON documents that some bytes are, None if they are not whole ones."""
    found, at = [], 0
    while at + 5 <= len(data):
        (size,) = struct.unpack_from("<i", data, at)
        if size < 5 or at + size > len(data):
            return None
        found.append(data[at : at + size])
        at += size
    return found if at == len(data) else None


def talks() -> list[list[tuple[int, list[bytes]]]]:
    """The real conversations of mewbase whose segments are whole documents: side and documents of each."""
    found = []
    for packets in mix.sources("mewbase"):
        flows: dict[frozenset[bytes], list[tuple[bytes, bytes]]] = {}
        for _, ip in packets:
            header = (ip[0] & 15) * 4
            data = ip[header + (ip[header + 12] >> 4) * 4 : int.from_bytes(ip[2:4], "big")]
            source, target = ip[12:16] + ip[header : header + 2], ip[16:20] + ip[header + 2 : header + 4]
            if data:
                flows.setdefault(frozenset((source, target)), []).append((source, data))
        for segments in flows.values():
            cut = [(int(source != segments[0][0]), documents(data)) for source, data in segments]
            whole = [(side, some) for side, some in cut if some is not None]
            if len(whole) == len(cut) and b"CONNECT" in segments[0][1]:
                found.append(whole)
    return found


def op_msg(document: bytes, number: int, side: int) -> bytes:
    """A document as the body of a message of MongoDB."""
    return struct.pack("<iiiiIB", 21 + len(document), number, side, 2013, 0, 0) + document


# AMQP 1.0


def amqp(random: random.Random) -> bytes:
    """A message as a client library makes it: header, properties, application properties, data."""
    properties = [
        b"\xa1" + bytes([24]) + f"message-{random.randrange(10**16):016}".encode(),
        b"\x40",
        b"\xa1\x06orders",
        b"\x40\x40",
        b"\x53" + bytes([random.randrange(1, 256)]),
        b"\xa3\x10application/json",
    ]
    pairs = [("region", "\xa1", "europe-west"), ("kind", "\xa1", "created"), ("tenant", "\xa1", f"tenant-{random.randrange(100)}")]
    described = b"".join(
        b"\xa1" + bytes([len(key)]) + key.encode() + b"\xa1" + bytes([len(value)]) + value.encode() for key, _, value in pairs
    )
    described += b"\xa1\x05retry\x54" + bytes([random.randrange(10)]) + b"\xa1\x05total\x80" + random.randbytes(8)
    listed, data = b"".join(properties), random.randbytes(120)
    return (
        b"\x00\x53\x70\xc0\x04\x02\x41\x50\x04"
        + (b"\x00\x53\x73\xc0" + bytes([len(listed) + 1, 7]) + listed)
        + (b"\x00\x53\x74\xc1" + bytes([len(described) + 1, 10]) + described)
        + (b"\x00\x53\x75\xa0" + bytes([len(data)]) + data)
    )


def amqp_frame(body: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body


def transfer(number: int, message: bytes) -> bytes:
    """A message in a frame of its own."""
    listed = b"\x43\x70" + struct.pack(">I", number) + b"\xa0\x04" + struct.pack(">I", number) + b"\x43\x41"
    return amqp_frame(b"\x00\x53\x14\xc0" + bytes([len(listed) + 1, 5]) + listed + message)


def stream_talk(seed: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Side and bytes of each segment, as RabbitMQ's stream protocol and as AMQP 1.0."""
    peer = generate.Peer(seed, ENTRIES, amqp=True)
    for index, (side, data) in enumerate(peer.handshake()):
        opened = amqp_frame(b"\x00\x53\x10\xc0\x0d\x02\xa1\x05bench\xa1\x03one")
        yield side, data, b"AMQP\0\1\0\0" if index < 2 else opened if index < 4 else amqp_frame(b"")
    number = 0
    while True:
        messages = [amqp(peer.random) for _ in range(ENTRIES)]
        theirs = b"".join(transfer(number + index, one) for index, one in enumerate(messages))
        number += ENTRIES
        if number // ENTRIES % 2:
            ids = range(number, number + ENTRIES)
            entries = b"".join(struct.pack(">QI", ident, len(one)) + one for ident, one in zip(ids, messages, strict=True))
            yield 0, generate.frame(2, struct.pack(">Bi", 1, ENTRIES) + entries), theirs
            confirm = b"\x00\x53\x15\xc0\x0c\x04\x41\x70" + struct.pack(">I", number) + b"\x40\x41\x40"
            yield 1, generate.frame(3, struct.pack(f">Bi{ENTRIES}Q", 1, ENTRIES, *ids)), amqp_frame(confirm)
        else:
            yield 1, generate.frame(8, b"\x01" + generate.chunk(messages, number)), theirs


# Captures


def write(kind: str, ours: Path, theirs: Path, packets: int) -> None:
    """Both captures, of about `packets` packets each."""
    if kind == "bson":
        found = talks()
        lanes = [islice(cycle(found), one, None) for one in range(CONVERSATIONS)]
        write_one(ours, packets, MEWBASE, [((side, b"".join(some)) for talk in lane for side, some in talk) for lane in lanes])
        lanes = [islice(cycle(found), one, None) for one in range(CONVERSATIONS)]
        wrapped = [
            ((side, b"".join(op_msg(one, number, side) for one in some)) for talk in lane for number, (side, some) in enumerate(talk, 1))
            for lane in lanes
        ]
        write_one(theirs, packets, MONGO, wrapped)
    else:
        seeds = range(CONVERSATIONS)
        write_one(ours, packets, generate.SERVER_PORT, [((side, one) for side, one, _ in stream_talk(seed)) for seed in seeds])
        write_one(theirs, packets, AMQP, [((side, other) for side, _, other in stream_talk(seed)) for seed in seeds])


def write_one(path: Path, packets: int, port: int, talks: list[Segments]) -> None:
    order = random.Random(7)
    with path.open("wb") as out:
        wire = generate.Wire(out, 1, port)
        wire.header()
        wire.open(len(talks))
        running = [iter(talk) for talk in talks]
        while wire.packets < packets:
            one = order.randrange(len(running))
            side, data = next(running[one])
            wire.data(one, side, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=("bson", "amqp"))
    parser.add_argument("ours", type=Path)
    parser.add_argument("theirs", type=Path)
    parser.add_argument("--packets", type=int, default=60_000)
    options = parser.parse_args()
    write(options.kind, options.ours, options.theirs, options.packets)


if __name__ == "__main__":
    main()
