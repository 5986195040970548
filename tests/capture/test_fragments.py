"""IP fragments: any order, duplicates, overlaps, limits."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable

import pytest

from streamdump.capture.link import SeparateFiles
from streamdump.capture.merge import merge
from streamdump.capture.rare_packets import PIECES, UNDECODED, WAITS, OddPackets, OddSegment
from tests.support.frames import A, B, Packet, ethernet, ip4, ip6, parse, parsed, pcap, reader, tcp
from tests.support.work import peak, steps

SECOND = 1_000_000_000


def cut4(datagram: bytes, size: int, identity: int = 7, **fields: bytes) -> list[bytes]:
    """A datagram's payload in IPv4 fragments of `size` bytes each."""
    starts = range(0, len(datagram), size)
    return [ip4(datagram[at : at + size], offset=at, more=at + size < len(datagram), identity=identity, **fields) for at in starts]


def cut6(datagram: bytes, size: int, identity: int = 7, following: int = 6, before: bytes = b"") -> list[bytes]:
    """A datagram's payload in IPv6 fragments of `size` bytes, behind the extension header `before` (hop-by-hop)."""
    found = []
    for at in range(0, len(datagram), size):
        header = struct.pack(">BBHI", following, 0, at | (at + size < len(datagram)), identity)
        found.append(ip6(before + header + datagram[at : at + size], following=0 if before else 44))
    return found


DATA = bytes(range(256)) * 3
CUTS = {
    "IPv4": cut4(tcp(DATA), 200),
    "IPv4 with options": cut4(tcp(DATA), 200, options=b"\1" * 8),
    "IPv6": cut6(tcp(DATA), 200),
    "IPv6 behind hop-by-hop": cut6(tcp(DATA), 200, before=bytes.fromhex("2c00010400000000")),
    "IPv6 of an extension header": cut6(bytes.fromhex("0600010400000000") + tcp(DATA), 200, following=60),
}


@pytest.mark.parametrize("name", CUTS)
def test_fragments_in_every_order(name: str) -> None:
    fragments = CUTS[name]
    assert len(fragments) == 4
    for order in itertools.permutations(range(4)):
        found, parser = parse([ethernet(fragments[n]).ljust(60, b"\xee") for n in order])
        assert [(one.seq, one.data, one.wire, one.order, one.number) for one in found] == [(1000, DATA, len(DATA), 3, 4)]
        counters = parser.counters
        assert (counters.fragments, counters.reassembled, counters.tcp) == (4, 1, 1)


def test_first_fragment_smaller_than_the_tcp_header() -> None:
    for fragments in (cut4(tcp(DATA), 8), cut6(tcp(DATA), 8)):
        for packets in (fragments, fragments[::-1]):
            assert [one.data for one in parse(map(ethernet, packets))[0]] == [DATA]


def test_datagram_of_the_largest_size() -> None:
    data = random.Random(1).randbytes(65_535 - 20 - 20)
    fragments = cut4(tcp(data), 1480)
    assert [one.data for one in parse(map(ethernet, reversed(fragments)))[0]] == [data]
    data += bytes(20)
    assert [one.data for one in parse(map(ethernet, cut6(tcp(data), 1448)))[0]] == [data]


def test_datagrams_interleave_with_others_and_with_ordinary_packets() -> None:
    one, two = cut4(tcp(DATA, seq=1), 400, identity=1), cut4(tcp(DATA, seq=2), 400, identity=2)
    other = cut4(tcp(DATA, seq=3), 400, identity=1, src=B, dst=A)
    six = cut6(tcp(DATA, seq=4), 400, identity=1)
    packets = [x for four in zip(one, two, other, six, strict=True) for x in (*four, ip4(tcp(b"plain", seq=9)))]
    found, _ = parse(map(ethernet, packets))
    assert [row.seq for row in found] == [9, 1, 2, 3, 4, 9] if len(one) == 2 else [9, 9, 1, 2, 3, 4, 9]
    assert all(row.data in (DATA, b"plain") for row in found)


def test_repeated_fragments_count_once() -> None:
    fragments = cut4(tcp(DATA), 200)
    found, parser = parse(map(ethernet, [fragments[0], fragments[0], fragments[3], fragments[1], fragments[3], fragments[2]]))
    assert [one.data for one in found] == [DATA]
    assert parser.counters.fragments == 6


def test_where_fragments_overlap_the_first_that_came_counts() -> None:
    head = tcp()
    first = ip4(head + b"a" * 100, more=True)
    overlapping = ip4(b"b" * 100, offset=80)
    assert [one.data for one in parse(map(ethernet, [first, overlapping]))[0]] == [b"a" * 100 + b"b" * 60]
    assert [one.data for one in parse(map(ethernet, [overlapping, first]))[0]] == [b"a" * 60 + b"b" * 100]


def test_overlaps_do_not_hide_a_gap() -> None:
    packets = [ip4(tcp() + bytes(4), more=True), ip4(bytes(32), offset=96), ip4(bytes(80), offset=40, more=True)]
    assert parse(map(ethernet, packets))[0] == []
    whole = [*packets, ip4(bytes(16), offset=24, more=True)]
    assert [one.wire for one in parse(map(ethernet, whole))[0]] == [108]


def test_missing_fragment_gives_nothing() -> None:
    for missing in range(4):
        for name in CUTS:
            packets = [one for n, one in enumerate(CUTS[name]) if n != missing]
            assert parse(map(ethernet, packets))[0] == []


def test_fragments_cut_by_the_snap_length_leave_the_wire_length() -> None:
    frames = [ethernet(one) for one in cut4(tcp(DATA), 400)]
    found, _ = parse([Packet(frame[:134], wire=len(frame)) for frame in frames])
    assert [(one.data, one.wire) for one in found] == [(DATA[:80], len(DATA))]
    found, _ = parse([frames[0], Packet(frames[1][:34], wire=len(frames[1]))])
    assert [(one.data, one.wire) for one in found] == [(DATA[:380], len(DATA))]


def test_fragments_that_cannot_be_are_undecoded() -> None:
    packets = [
        ip4(bytes(9), more=True),
        ip4(b"", more=True),
        ip4(bytes(100), offset=65_528),
        ip6(struct.pack(">BBHI", 6, 0, 1, 7) + bytes(9), following=44),
        ip6(struct.pack(">BBHI", 6, 0, 65_528, 7) + bytes(100), following=44),
        ip6(struct.pack(">BBHI", 6, 0, 8, 7), following=44),
    ]
    found, parser = parse(map(ethernet, packets))
    assert found == []
    assert parser.counters.undecoded == len(packets)


def test_datagram_longer_than_its_length_field_is_dropped() -> None:
    fragments = cut4(bytes(65_535), 1480)
    found, parser = parse(map(ethernet, fragments))
    assert found == []
    assert parser.counters.undecoded == 1


def test_fragments_of_other_protocols_are_not_kept() -> None:
    packets = [ip4(bytes(800), protocol=17, more=True), ip6(struct.pack(">BBHI", 17, 0, 1, 7) + bytes(800), following=44)]
    found, parser = parse(map(ethernet, packets))
    assert found == []
    assert (parser.counters.not_tcp, parser.counters.fragments) == (2, 0)


def send(odd: OddPackets, *packets: bytes, time_ns: int = 0) -> list[OddSegment | str]:
    return [odd.packet(one, len(one), time_ns) for one in packets]


def test_age_limit_counts_capture_time() -> None:
    first, second = cut4(tcp(DATA), 400)
    for later, expected in ((30 * SECOND, OddSegment), (30 * SECOND + 1, str)):
        odd = OddPackets()
        assert send(odd, first) == [WAITS]
        assert isinstance(send(odd, second, time_ns=later)[0], expected)
        assert odd.dropped == (expected is str)


def test_identity_used_again_after_the_age_limit_is_another_datagram() -> None:
    old, new = cut4(tcp(b"o" * 700), 400), cut4(tcp(b"n" * 700), 400)
    odd = OddPackets()
    send(odd, old[0])
    (_, found) = send(odd, *new, time_ns=40 * SECOND)
    assert isinstance(found, OddSegment)
    assert found.datagram is not None
    assert found.datagram.endswith(b"n" * 700)


def test_limit_of_datagrams_drops_the_oldest() -> None:
    odd = OddPackets(datagrams=3)
    cuts = [cut4(tcp(DATA), 400, identity=n) for n in range(5)]
    assert send(odd, *(one[0] for one in cuts)) == [WAITS] * 5
    assert odd.dropped == 2
    assert [isinstance(one, OddSegment) for one in send(odd, *(one[1] for one in reversed(cuts)))] == [True, True, True, False, False]


def test_limit_of_bytes_drops_the_oldest() -> None:
    odd = OddPackets(held=2200)
    cuts = [cut4(tcp(DATA), 400, identity=n) for n in range(5)]
    send(odd, *(one[0] for one in cuts))
    assert odd.dropped == 2
    assert isinstance(send(odd, cuts[4][1])[0], OddSegment)


def test_memory_is_bounded_by_the_limits() -> None:
    odd = OddPackets(held=100_000)
    for n in range(10_000):
        send(odd, ip4(bytes(1480), identity=n & 0xFFFF, src=n.to_bytes(4, "big"), more=True))
    assert sum(one.held for one in odd._waiting.values()) == odd._held <= 100_000
    for n in range(10_000):  # one datagram, ever more pieces
        send(odd, ip4(bytes(8), identity=1, offset=n * 8 % 60_000, more=True))
    assert odd._held <= 100_000


def places(count: int) -> dict[str, list[int]]:
    """Where fragments of one datagram begin, in the order in which they come."""
    once = [8 * n for n in range(count)]
    apart = [16 * n for n in range(count)]
    mixed = random.Random(1).sample(apart, count)
    return {"in order": once, "backwards": once[:0:-1], "apart": apart, "mixed": mixed, "again and again": once[:10] * (count // 10)}


def of_ipv6(offset: int) -> bytes:
    return ip6(struct.pack(">BBHI", 6, 0, offset | 1, 7) + bytes(8), following=44)


@pytest.mark.parametrize("kind", places(10))
@pytest.mark.parametrize("fragment", [lambda offset: ip4(bytes(8), offset=offset, more=True), of_ipv6], ids=["IPv4", "IPv6"])
def test_a_fragment_costs_the_same_however_many_came_before(kind: str, fragment: Callable[[int], bytes]) -> None:
    def cost(count: int) -> int:
        odd = OddPackets()
        packets = [fragment(offset) for offset in places(count)[kind]]
        return steps(lambda: send(odd, *packets))

    assert cost(1600) < 2.2 * cost(800)


def test_a_datagram_without_end_costs_the_same_as_many() -> None:
    def cost(count: int) -> int:
        odd = OddPackets()
        packets = [ip4(bytes(8), identity=n & 0xFFFF, src=n.to_bytes(4, "big"), more=True) for n in range(count)]
        return steps(lambda: send(odd, *packets))

    assert cost(4000) < 2.2 * cost(2000)


def test_pieces_of_a_datagram_are_bounded() -> None:
    rng = random.Random(1)
    odd = OddPackets()
    for _ in range(30_000):  # overlapping, of all sizes, cut at all lengths
        offset, size = 8 * rng.randrange(8_000), 8 * rng.randrange(1, 100)
        packet = ip4(bytes(size), offset=offset, more=True)
        odd.packet(packet[: rng.randrange(20, len(packet) + 1)], len(packet), 0)
        assert all(len(one.pieces) <= PIECES for one in odd._waiting.values())
    assert odd._held <= 16 << 20


def test_fragments_of_which_nothing_was_captured_are_bounded_too() -> None:
    odd = OddPackets(held=100_000)

    def many() -> None:
        for n in range(20_000):
            odd.packet(ip4(bytes(8), identity=n % 100, offset=16 * (n // 100), more=True)[:20], 28, 0)

    assert peak(many) < 300_000


def test_fragments_in_datagrams_that_came_in_fragments_are_not_put_together() -> None:
    def last(identity: int) -> bytes:
        return struct.pack(">BBHI", 44, 0, 8, identity)

    first = [ip6(struct.pack(">BBHI", 44, 0, 1, n) + last(n + 1), following=44) for n in range(1000)]
    found = send(OddPackets(), *first, ip6(last(0) + bytes(8), following=44))
    assert found == [WAITS] * 1000 + [UNDECODED]


def test_packets_that_are_none() -> None:
    odd = OddPackets()
    assert send(odd, b"", b"\x45", b"\x60", b"\0" * 40, b"\x41" + bytes(60)) == [UNDECODED] * 5


@pytest.mark.parametrize("rows", [1, None])
def test_files_kept_separate_put_their_own_datagrams_together(rows: int | None) -> None:
    files = [pcap([Packet(ethernet(one), 1000 * n) for n, one in enumerate(cut4(tcp(bytes([fill]) * 700), 400))]) for fill in (1, 2, 3)]
    parser = SeparateFiles()
    found = parsed(parser, (packet for packets in merge([*map(reader, files)], rows=rows) for packet in packets))
    assert [(one.file, one.ends[12:], one.data) for one in found] == [
        (n, bytes((0, 0, n)) if n else b"", bytes([n + 1]) * 700) for n in range(3)
    ]


def test_pieces_of_files_kept_separate_are_those_of_their_own_segments() -> None:
    files = [pcap([Packet(ethernet(one), 1000 * n) for n, one in enumerate(cut4(tcp(bytes(700)), 400))]) for _ in range(2)]
    parser = SeparateFiles()
    parser.pieces = {}
    found = parsed(parser, (packet for packets in merge([*map(reader, files)]) for packet in packets))
    assert len(found[0].ends) == 12
    assert {(piece.ends, piece.file) for piece in parser.pieces.values()} == {(one.ends, one.file) for one in found}
