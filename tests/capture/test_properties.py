"""Any bytes: nothing but CaptureError leaves the readers, every packet is counted once, and batches do not show."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.capture.link import LinkParser
from streamdump.errors import CaptureError
from streamdump.model import Segment
from tests.capture.test_fragments import CUTS
from tests.support.frames import (
    NULL,
    PPP,
    PPP_HDLC,
    SLL,
    SLL2,
    START_NS,
    Packet,
    block,
    enhanced,
    ethernet,
    interface,
    ip4,
    ip6,
    obsolete,
    parsed,
    pcap,
    section,
    simple,
    sll,
    sll2,
    tcp,
)

LINK_NUMBERS = [1, NULL, 108, PPP, PPP_HDLC, SLL, SLL2, 12, 14, 101, 228, 229, 147]
EXTENSION = bytes.fromhex("0600010400000000")
FRAMES = [
    *(ethernet(ip4(tcp(bytes(n), seq=n))) for n in range(0, 40, 9)),
    ethernet(ip4(tcp(b"options"), options=bytes(8)), 0x8100),
    ethernet(ip6(tcp(b"six"))),
    ethernet(ip6(EXTENSION + tcp(b"six"), following=0), 0x88A8, 0x8100),
    ethernet(ip4(tcp(b"offload"), length=0)),
    *map(ethernet, CUTS["IPv4"]),
    *map(ethernet, CUTS["IPv6 of an extension header"]),
]
COOKED = [wrap(ip4(tcp(b"x", seq=n)), kind) for n in range(3) for wrap in (sll, sll2) for kind in (0, 4)]


def read(data: bytes, rows: int | None) -> tuple[list[Segment], object, str]:
    """All that can be said of a file, read in batches of so many packets."""
    parser = LinkParser()
    found: list[Segment] = []
    ended = ""
    try:
        count = 0
        for batch in open_capture(io.BytesIO(data), name="any").batches(rows):
            for packet in batch:
                assert packet.offset >= 0
                assert packet.offset + packet.captured <= len(packet.buffer)
                assert packet.wire >= packet.captured
                assert packet.time_ns >= 0
            some = parsed(parser, batch, count)
            assert all(one.wire >= len(one.data) for one in some)
            found += some
            count += len(batch)
    except CaptureError as error:
        ended = str(error)
    counters = parser.counters
    assert counters.tcp == len(found)
    settled = counters.tcp + counters.not_tcp + counters.undecoded + counters.duplicates
    waiting = counters.fragments - counters.reassembled
    assert settled <= count <= settled + waiting
    assert [one.order for one in found] == sorted({one.order for one in found})
    return found, counters, ended


def agree(data: bytes) -> None:
    assert read(data, 1) == read(data, 7) == read(data, None)


@given(st.binary(max_size=400))
@example(b"")
def test_any_bytes(data: bytes) -> None:
    agree(data)


@given(st.sampled_from(["<", ">"]), st.sampled_from(LINK_NUMBERS), st.lists(st.binary(max_size=90), max_size=12))
def test_any_packets_of_any_link_type(order: str, link: int, packets: list[bytes]) -> None:
    agree(pcap([Packet(one, START_NS + n * 300_000) for n, one in enumerate(packets)], link, order=order))


def mutated(data: bytes, chance: random.Random, times: int) -> bytes:
    changed = bytearray(data)
    for _ in range(times):
        at = chance.randrange(len(changed))
        how = chance.randrange(4)
        if how == 0:
            changed[at] = chance.randrange(256)
        elif how == 1:
            changed[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            changed[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", bytes(4), b"\x00\x00\x00\x80", chance.randbytes(4)])
        else:
            del changed[at : at + chance.randrange(1, 20)]
        if not changed:
            break
    return bytes(changed)


@pytest.mark.parametrize("seed", range(12))
def test_damaged_packets(seed: int) -> None:
    chance = random.Random(seed)
    for link, frames in ((1, FRAMES), (SLL, COOKED), (SLL2, COOKED)):
        for _ in range(20):
            packets = [Packet(mutated(one, chance, chance.randrange(3)), START_NS + chance.randrange(3) * 600_000) for one in frames]
            chance.shuffle(packets)
            agree(pcap(packets, link, nano=True))


@pytest.mark.parametrize("seed", range(12))
def test_damaged_pcapng(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        parts = []
        for order in chance.sample("<><>", 2):
            parts += [section(order), interface(chance.choice([1, SLL]), resolution=chance.choice([None, 3, 9, 0x94, 12]), order=order)]
            for frame in chance.sample(FRAMES, 4):
                write = chance.choice([enhanced, obsolete, simple])
                parts += [write(Packet(frame), order=order), block(chance.choice([4, 5, 0x0BAD]), chance.randbytes(8), order)]
        agree(mutated(b"".join(parts), chance, chance.randrange(4)))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pcap(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        agree(mutated(pcap(map(Packet, FRAMES), order=chance.choice("<>")), chance, 1 + chance.randrange(4)))
