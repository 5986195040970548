"""Captures on "any": what is seen twice counts once, what was sent twice counts twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from streamdump.capture.link import LinkParser
from tests.capture.test_fragments import DATA, cut4
from tests.support.frames import SLL, SLL2, START_NS, Packet, ethernet, ip4, ip6, parse, pcap, segments, sll, sll2, tcp

MS = 1_000_000
HERE, SENT = 0, 4
Wrap = Callable[..., bytes]
COOKED = pytest.mark.parametrize(("link", "wrap"), [(SLL, sll), (SLL2, sll2)], ids=["SLL", "SLL2"])


def seen(link: int, *packets: tuple[bytes, int]) -> tuple[list[int], int]:
    """The sequence numbers of the packets that count, and the number of those that do not."""
    found, parser = parse([Packet(data, START_NS + at) for data, at in packets], link)
    return [one.seq for one in found], parser.counters.duplicates


@COOKED
def test_loopback_any_capture_counts_each_packet_once(link: int, wrap: Wrap) -> None:
    packets = []
    for n in range(40):
        ip = (ip4, ip6)[n % 2](tcp(bytes([n]) * n, seq=n))
        packets += [(wrap(ip, SENT), n * MS), (wrap(ip, HERE), n * MS + 20_000)]
    assert seen(link, *packets) == (list(range(40)), 40)


@COOKED
def test_first_sighting_counts(link: int, wrap: Wrap) -> None:
    ip = ip4(tcp(b"x"))
    found, _ = parse([Packet(wrap(ip, SENT), START_NS), Packet(wrap(ip, HERE), START_NS + 5)], link)
    assert [(one.number, one.time_ns) for one in found] == [(1, START_NS)]


@COOKED
def test_same_packet_type_is_a_retransmission(link: int, wrap: Wrap) -> None:
    ip = ip4(tcp(b"x", seq=5))
    assert seen(link, (wrap(ip, SENT), 0), (wrap(ip, SENT), 10)) == ([5, 5], 0)
    # Both were seen twice.
    assert seen(link, (wrap(ip, SENT), 0), (wrap(ip, HERE), 5), (wrap(ip, SENT), 10), (wrap(ip, HERE), 15)) == ([5, 5], 2)


def test_a_bridge_and_what_is_below_it_see_a_packet_in_the_same_direction() -> None:
    """As on a host whose packets to a container go through docker0 and a veth, or through a bond, or a VLAN of an interface."""
    ip = ip4(tcp(b"x", seq=5))
    once = [(sll2(ip, SENT, 3), 0), (sll2(ip, SENT, 7), 5)]
    assert seen(SLL2, *once) == ([5], 1)
    assert seen(SLL2, *once, (sll2(ip, SENT, 3), 10), (sll2(ip, SENT, 7), 15)) == ([5, 5], 2)
    assert seen(SLL2, (sll2(ip, SENT, 0xFFFF_FFFF), 0), (sll2(ip, HERE, 0xFFFF_FFFF), 5)) == ([5], 1)


@COOKED
def test_three_sightings_count_once(link: int, wrap: Wrap) -> None:
    ip = ip4(tcp(b"x", seq=5))
    assert seen(link, (wrap(ip, HERE), 0), (wrap(ip, 3), 5), (wrap(ip, SENT), 10)) == ([5], 2)


@COOKED
def test_another_ip_packet_is_another_packet(link: int, wrap: Wrap) -> None:
    first = ip4(tcp(b"x", seq=5), identity=7)
    others = [
        ip4(tcp(b"x", seq=5), identity=8),
        ip4(tcp(b"y", seq=5)),
        ip4(tcp(b"x" + bytes(60) + b"y", seq=5)),
        ip4(tcp(b"x" + bytes(61), seq=5)),
    ]
    for other in others:
        assert seen(link, (wrap(first, SENT), 0), (wrap(other, HERE), 5)) == ([5, 5], 0)
    assert seen(link, (wrap(others[2], SENT), 0), (wrap(others[3], HERE), 5)) == ([5, 5], 0)


@COOKED
def test_one_millisecond_is_the_limit(link: int, wrap: Wrap) -> None:
    ip = ip4(tcp(b"x", seq=5))
    assert seen(link, (wrap(ip, SENT), 0), (wrap(ip, HERE), MS)) == ([5], 1)
    assert seen(link, (wrap(ip, SENT), 0), (wrap(ip, HERE), MS + 1)) == ([5, 5], 0)
    assert seen(link, (wrap(ip, SENT), MS), (wrap(ip, HERE), 0)) == ([5], 1)
    assert seen(link, (wrap(ip, SENT), MS + 1), (wrap(ip, HERE), 0)) == ([5, 5], 0)


@COOKED
def test_packets_in_between_do_not_matter(link: int, wrap: Wrap) -> None:
    ip = ip4(tcp(b"x", seq=5))
    between = [(wrap(ip4(tcp(b"z", seq=100 + n)), HERE), n) for n in range(1, 60)]
    counted, duplicates = seen(link, (wrap(ip, SENT), 0), *between, (wrap(ip, HERE), 100))
    assert (len(counted), duplicates) == (60, 1)


@COOKED
def test_padding_does_not_make_a_difference(link: int, wrap: Wrap) -> None:
    for ip in (ip4(tcp(seq=5)), ip6(tcp(seq=5))):
        assert seen(link, (wrap(ip, SENT), 0), (wrap(ip, HERE) + bytes(6), 5)) == ([5], 1)


@COOKED
def test_what_follows_in_the_file_does_not_make_a_difference(link: int, wrap: Wrap) -> None:
    small = ip4(tcp(seq=5))
    for packets in (
        [(wrap(small, SENT), 0), (wrap(small, HERE), 7)],
        [(wrap(small, SENT), 0), (wrap(small, HERE), 7), (wrap(ip4(tcp(seq=6)), SENT), 8)],
    ):
        assert seen(link, *packets)[1] == 1


@COOKED
def test_fragments_seen_twice_make_one_segment(link: int, wrap: Wrap) -> None:
    packets = [(wrap(one, kind), n) for n, one in enumerate(cut4(tcp(DATA, seq=5), 200)) for kind in (SENT, HERE)]
    assert seen(link, *packets) == ([5], 4)


def test_ethernet_captures_are_left_alone() -> None:
    ip = ethernet(ip4(tcp(seq=5)))
    assert seen(1, (ip, 0), (ip, 5)) == ([5, 5], 0)


def test_many_packets_of_one_moment_are_bounded_and_do_not_depend_on_batches() -> None:
    packets = [ip4(tcp(bytes([n % 251]) * 9, seq=n)) for n in range(5000)]
    near = [Packet(wrap, START_NS) for ip in packets for wrap in (sll(ip, SENT), sll(ip, HERE))]
    far = [Packet(sll(ip, SENT), START_NS) for ip in packets] + [Packet(sll(ip, HERE), START_NS) for ip in packets]
    for sequence, count in ((near, 5000), (far, 10_000)):
        results = []
        for rows in (777, None):
            parser = LinkParser()
            results.append((segments(pcap(sequence, SLL, nano=True), rows, parser), parser.counters))
            assert len(parser._duplicates._seen) <= 2 * 4096
        assert results[0] == results[1]
        assert len(results[0][0]) == count


def test_random_traffic_agrees_with_a_plain_loop() -> None:
    """The rule written down packet by packet: the latest equal packet that counted, not seen as this type, within a millisecond."""
    chance = random.Random(5)
    for _ in range(60):
        packets, now = [], START_NS
        for _ in range(120):
            now += chance.choice([0, 10, 1000, 400_000, 900_000, -300_000, 3_000_000])
            packets.append(Packet(sll(ip4(tcp(seq=chance.randrange(4))), chance.choice([0, 3, 4])), now))
        counted: dict[bytes, tuple[int, set[int]]] = {}
        expected, latest = [], 0
        for number, (data, time_ns, _) in enumerate(packets, 1):
            latest = max(latest, time_ns)
            kind, ip = data[1], data[16:]
            known = counted.get(ip)
            if known and kind not in known[1] and abs(time_ns - known[0]) <= MS and known[0] >= latest - MS:
                known[1].add(kind)
            else:
                counted[ip] = (time_ns, {kind})
                expected.append(number)
        assert [one.number for one in parse(packets, SLL)[0]] == expected
