"""Link and IP headers: every link type gives the same segments; padding, lengths, odd headers."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import dpkt
import pytest

from streamdump.capture.link import LinkParser
from streamdump.errors import CaptureError
from streamdump.model import CLAIMS
from tests.support.captures import GOLDEN, capture_name, every_family
from tests.support.frames import (
    A6,
    ACK,
    B6,
    FIN,
    LOOP,
    NULL,
    PPP,
    PPP_HDLC,
    PSH,
    SLL,
    SLL2,
    START_NS,
    SYN,
    A,
    B,
    Packet,
    ends,
    enhanced,
    ethernet,
    interface,
    ip4,
    ip6,
    parse,
    parsed,
    pcap,
    reader,
    section,
    segments,
    sll,
    sll2,
    tcp,
)
from tests.support.work import steps

STREAM4 = [
    ip4(tcp(seq=999, flags=SYN, options=bytes.fromhex("020405b401010402"))),
    ip4(tcp(sport=5552, dport=40000, seq=1999, ack=1000, flags=SYN | ACK), src=B, dst=A),
    ip4(tcp(b"hello", flags=PSH | ACK, options=bytes.fromhex("0101080a0000000100000002"))),
    ip4(tcp(b"world" * 300, sport=5552, dport=40000, seq=2000, ack=1005, flags=PSH | ACK), src=B, dst=A, options=bytes.fromhex("01010100")),
    ip4(tcp(seq=1005, ack=3500, flags=FIN | ACK)),
]
STREAM6 = [ip6(one[(one[0] & 15) * 4 :], src=(A6, B6)[n in (1, 3)], dst=(B6, A6)[n in (1, 3)]) for n, one in enumerate(STREAM4)]


def raw_family(packet: bytes, order: str, six: int) -> bytes:
    return struct.pack(order + "I", 2 if packet[0] >> 4 == 4 else six) + packet


def ppp(packet: bytes, four: str, six: str) -> bytes:
    return bytes.fromhex(four if packet[0] >> 4 == 4 else six) + packet


def ethertype(packet: bytes) -> bytes:
    return bytes.fromhex("0800" if packet[0] >> 4 == 4 else "86dd")


LINKS = {
    "ethernet": (1, lambda ip: ethernet(ip)),
    "802.1Q": (1, lambda ip: ethernet(ip, 0x8100)),
    "QinQ 88a8": (1, lambda ip: ethernet(ip, 0x88A8, 0x8100)),
    "QinQ 9100": (1, lambda ip: ethernet(ip, 0x9100, 0x8100)),
    "QinQ 8100": (1, lambda ip: ethernet(ip, 0x8100, 0x8100)),
    "three tags": (1, lambda ip: ethernet(ip, 0x88A8, 0x9100, 0x8100)),
    "padded": (1, lambda ip: ethernet(ip) + b"padding" * 3),
    "SLL": (SLL, lambda ip: sll(ip)),
    "SLL sent": (SLL, lambda ip: sll(ip, 4)),
    "SLL 802.1Q": (SLL, lambda ip: sll(ip)[:14] + bytes.fromhex("81000064") + ethertype(ip) + ip),
    "SLL2": (SLL2, lambda ip: sll2(ip)),
    "SLL2 802.1Q": (SLL2, lambda ip: bytes.fromhex("8100") + sll2(ip)[2:20] + bytes.fromhex("0064") + ethertype(ip) + ip),
    "NULL little-endian": (NULL, lambda ip: raw_family(ip, "<", 30)),
    "NULL big-endian": (NULL, lambda ip: raw_family(ip, ">", 28)),
    "LOOP little-endian": (LOOP, lambda ip: raw_family(ip, "<", 24)),
    "LOOP big-endian": (LOOP, lambda ip: raw_family(ip, ">", 10)),
    "NULL Windows": (NULL, lambda ip: raw_family(ip, "<", 23)),
    "raw 12": (12, lambda ip: ip),
    "raw 14": (14, lambda ip: ip),
    "raw 101": (101, lambda ip: ip),
    "PPP with address": (PPP, lambda ip: ppp(ip, "ff030021", "ff030057")),
    "PPP with address, short protocol": (PPP, lambda ip: ppp(ip, "ff0321", "ff0357")),
    "PPP without address": (PPP, lambda ip: ppp(ip, "0021", "0057")),
    "PPP without address, short protocol": (PPP, lambda ip: ppp(ip, "21", "57")),
    "PPP in HDLC": (PPP_HDLC, lambda ip: ppp(ip, "ff030021", "ff030057")),
    "Cisco HDLC": (PPP_HDLC, lambda ip: ppp(ip, "0f000800", "0f0086dd")),
    "Cisco HDLC multicast": (PPP_HDLC, lambda ip: ppp(ip, "8f000800", "8f0086dd")),
    "Cisco HDLC by its own number": (104, lambda ip: ppp(ip, "0f000800", "0f0086dd")),
    "MPLS": (1, lambda ip: ethernet(bytes.fromhex("00064140") + ip, kind=0x8847)),
    "MPLS, three labels behind 802.1Q": (1, lambda ip: ethernet(bytes.fromhex("0006404000064040 00064140") + ip, 0x8100, kind=0x8848)),
    "PPPoE": (1, lambda ip: ethernet(bytes.fromhex("11000001") + struct.pack(">H", len(ip) + 2) + ppp(ip, "0021", "0057"), kind=0x8864)),
}


EXPECTED = {stream: segments(pcap(map(Packet, packets), 101)) for stream, packets in (("IPv4", STREAM4), ("IPv6", STREAM6))}


@pytest.mark.parametrize("stream", ["IPv4", "IPv6"])
@pytest.mark.parametrize("name", LINKS)
def test_every_link_type_gives_the_same_segments(name: str, stream: str) -> None:
    link, wrap = LINKS[name]
    found, parser = parse([wrap(one) for one in (STREAM4 if stream == "IPv4" else STREAM6)], link)
    assert found == EXPECTED[stream]
    assert parser.counters.tcp == 5


@pytest.mark.parametrize(("link", "stream"), [(228, "IPv4"), (229, "IPv6")])
def test_raw_links_of_one_version(link: int, stream: str) -> None:
    assert parse(STREAM4 if stream == "IPv4" else STREAM6, link)[0] == EXPECTED[stream]


@pytest.mark.parametrize("stream", ["IPv4", "IPv6"])
def test_segments_say_what_the_packets_say(stream: str) -> None:
    rows = EXPECTED[stream]
    a, b = (A, B) if stream == "IPv4" else (A6, B6)
    assert [one.ends for one in rows] == [ends(*((a, 40000, b, 5552), (b, 5552, a, 40000))[n in (1, 3)]) for n in range(5)]
    assert [one.seq for one in rows] == [999, 1999, 1000, 2000, 1005]
    assert [one.ack for one in rows] == [2000, 1000, 2000, 1005, 3500]
    assert [one.flags for one in rows] == [SYN, SYN | ACK, PSH | ACK, PSH | ACK, FIN | ACK]
    assert [one.window for one in rows] == [502] * 5
    assert [one.data for one in rows] == [b"", b"", b"hello", b"world" * 300, b""]
    assert [one.wire for one in rows] == [0, 0, 5, 1500, 0]
    assert [one.order for one in rows] == [0, 1, 2, 3, 4]
    assert [one.number for one in rows] == [1, 2, 3, 4, 5]


def test_link_types_mix_in_one_batch_of_a_pcapng() -> None:
    parts = [section(), interface(147)]
    for n, (link, wrap) in enumerate(LINKS.values(), 1):
        # Different identities: the two cooked ones would otherwise be one packet seen twice.
        parts += [interface(link), enhanced(Packet(wrap(ip4(tcp(b"x", seq=n), identity=n)), START_NS + n * 10**9), index=n)]
    for rows in (1, 7, None):
        assert [one.seq for one in segments(b"".join(parts), rows)] == list(range(1, len(LINKS) + 1))


def test_endpoints_are_ordered_by_address_and_port_as_bytes() -> None:
    pairs = [
        (bytes(4), 1, bytes(4), 2),
        (bytes(4), 2, bytes(4), 1),
        (bytes(4), 256, bytes(4), 1),
        (b"\xff" * 4, 65535, b"\xff" * 4, 65535),
        (bytes.fromhex("0a000001"), 65535, bytes.fromhex("0a000002"), 1),
        (bytes.fromhex("fa000001"), 1, bytes.fromhex("0a000002"), 65535),
        (bytes(16), 1, bytes(16), 2),
        (bytes(16), 2, bytes(16), 1),
        (b"\xff" * 16, 0, b"\xff" * 16, 65535),
        (bytes(7) + b"\1" + bytes(8), 9, bytes(15) + b"\1", 9),
        (bytes(15) + b"\1", 9, bytes(7) + b"\1" + bytes(8), 9),
        (bytes(range(16)), 0x1234, bytes(range(16, 32)), 0x5678),
        (bytes(range(16, 32)), 0x5678, bytes(range(16)), 0x1234),
    ]
    for options in (b"", bytes(4)):  # the ordinary packet and the odd
        packets = []
        for src, sport, dst, dport in pairs:
            segment = tcp(sport=sport, dport=dport)
            extension = bytes.fromhex("0600010400000000") if options else b""
            packets.append(
                ip4(segment, src=src, dst=dst, options=options)
                if len(src) == 4
                else ip6(extension + segment, src=src, dst=dst, following=0 if options else 6)
            )
        found, _ = parse(packets, 101)
        assert [one.ends for one in found] == [ends(*pair) for pair in pairs]


def test_largest_numbers_keep_their_sign() -> None:
    found, _ = parse([ethernet(ip4(tcp(seq=0xFFFFFFFF, ack=0xFFFFFFFE))), ethernet(ip6(tcp(seq=0xFFFFFFFF, ack=0xFFFFFFFE)))])
    assert [(one.seq, one.ack) for one in found] == [(0xFFFFFFFF, 0xFFFFFFFE)] * 2


def test_ethernet_padding_is_never_payload() -> None:
    found, _ = parse(
        [ethernet(ip4(tcp())).ljust(60, b"\xee"), ethernet(ip6(tcp())).ljust(90, b"\xee"), ethernet(ip4(tcp(), options=bytes(4))).ljust(90)]
    )
    assert [(one.data, one.wire) for one in found] == [(b"", 0)] * 3


@pytest.mark.parametrize("options", [b"", bytes(4)])
def test_total_length_zero_is_taken_from_the_captured_length(options: bytes) -> None:
    found, _ = parse([ethernet(ip4(tcp(b"x" * 3000), length=0, options=options))])
    assert [(one.data, one.wire) for one in found] == [(b"x" * 3000, 3000)]


def test_total_length_zero_with_a_snap_length_is_cut() -> None:
    frame = ethernet(ip4(tcp(b"x" * 3000), length=0))
    found, _ = parse([Packet(frame[:96], wire=len(frame))])
    assert [(one.data, one.wire) for one in found] == [(b"x" * 42, 3000)]


def test_ipv6_payload_length_zero_is_taken_from_the_captured_length() -> None:
    extension = bytes.fromhex("0600010400000000")
    found, _ = parse([ethernet(ip6(tcp(b"x" * 3000), length=0)), ethernet(ip6(extension + tcp(b"x" * 3000), length=0, following=0))])
    assert [(one.data, one.wire) for one in found] == [(b"x" * 3000, 3000)] * 2


def test_ipv6_jumbo_payload_option_tells_the_length() -> None:
    segment = tcp(b"x" * 70_000)
    option = bytes.fromhex("0601c204") + (16 + len(segment)).to_bytes(4, "big") + bytes.fromhex("1e04") + (99).to_bytes(4, "big") + bytes(2)
    for options in (option, option[:2] + option[8:14] + option[2:8] + option[14:]):
        found, _ = parse([ethernet(ip6(options + segment, length=0, following=0)) + b"padding"])
        assert [(one.data, one.wire) for one in found] == [(b"x" * 70_000, 70_000)]


def test_frames_over_64_kib() -> None:
    found, _ = parse([ethernet(ip4(tcp(b"x" * 200_000), length=0)), ethernet(ip6(tcp(b"y" * 200_000), length=0))])
    assert [one.data for one in found] == [b"x" * 200_000, b"y" * 200_000]


def test_ipv4_options() -> None:
    for size in range(4, 44, 4):
        found, _ = parse([ethernet(ip4(tcp(b"data"), options=b"\1" * size)).ljust(120, b"\xee")])
        assert [(one.data, one.wire) for one in found] == [(b"data", 4)]


EXTENSIONS = {
    "hop-by-hop": (0, "{next}00 010400000000"),
    "hop-by-hop of 16 bytes": (0, "{next}01 010c000000000000000000000000"),
    "destination options": (60, "{next}00 010400000000"),
    "routing": (43, "{next}02 0401 00000000 20010db8000000000000000000000009"),
    "segment routing": (43, "{next}02 0400 00000000 20010db8000000000000000000000009"),
    "authentication": (51, "{next}04 0000 00000001 00000002 000000000000000000000000"),
    "fragment header of a whole datagram": (44, "{next}00 0000 00000005"),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_ipv6_extension_headers(name: str) -> None:
    kind, layout = EXTENSIONS[name]
    header = bytes.fromhex(layout.format(next="06"))
    found, parser = parse([ethernet(ip6(header + tcp(b"data"), following=kind)).ljust(200, b"\xee")])
    assert [(one.data, one.wire, one.seq) for one in found] == [(b"data", 4, 1000)]
    assert parser.counters.fragments == 0


def test_ipv6_extension_headers_in_a_row() -> None:
    chain = [0, 60, 43, 44, 51, 60]
    body = tcp(b"data")
    following = 6
    for kind in reversed(chain):
        layout = next(layout for number, layout in EXTENSIONS.values() if number == kind)
        body = bytes.fromhex(layout.format(next=f"{following:02x}")) + body
        following = kind
    assert [one.data for one in parse([ethernet(ip6(body, following=0))])[0]] == [b"data"]


def test_extension_header_longer_than_the_packet_is_undecoded() -> None:
    bad = [bytes.fromhex("06ff010400000000"), bytes.fromhex("06ff000000000000"), b"\6"]
    packets = [ethernet(ip6(one + tcp(b"data"), following=kind)) for one in bad[:2] for kind in (0, 43, 51, 60)]
    found, parser = parse([*packets, ethernet(ip6(b"\6", following=0)), ethernet(ip6(b"", following=44))])
    assert found == []
    assert parser.counters.undecoded == 10


def test_extension_header_cut_by_the_snap_length_is_undecoded() -> None:
    frame = ethernet(ip6(bytes.fromhex(EXTENSIONS["routing"][1].format(next="06")) + tcp(b"data"), following=43))
    found, parser = parse([Packet(frame[:size], wire=len(frame)) for size in range(54, len(frame))])
    assert len(found) == 4  # only those with the whole TCP header
    assert parser.counters.undecoded == len(frame) - 54 - 4


def test_bad_checksums_are_accepted() -> None:
    good = ethernet(bytes(dpkt.ip.IP(src=A, dst=B, p=6, data=dpkt.tcp.TCP(sport=1, dport=2, data=b"x", flags=ACK))))
    bad = bytearray(good)
    bad[24] ^= 0xFF
    bad[50] ^= 0xFF
    assert [one.data for one in parse([good, bytes(bad)])[0]] == [b"x", b"x"]


@pytest.mark.parametrize("stream", ["IPv4", "IPv6"])
def test_snap_length_leaves_the_wire_length(stream: str) -> None:
    ip = (STREAM4 if stream == "IPv4" else STREAM6)[2]
    frame = ethernet(ip)
    header = len(frame) - 5
    for size in range(len(frame)):
        found, parser = parse([Packet(frame[:size], wire=len(frame))])
        if size < header - 12:  # the fixed part of the TCP header is not whole; 12 bytes of options follow it
            assert found == []
            assert parser.counters.undecoded == 1
        else:
            assert [(one.data, one.wire, one.flags & CLAIMS) for one in found] == [(frame[header:size], 5, 0)]


def test_a_length_beyond_the_end_of_the_frame_is_a_claim() -> None:
    for ip in (ip4(tcp(b"data"), length=1000), ip6(tcp(b"data"), length=1000)):
        found, _ = parse([ethernet(ip)])
        assert [(bool(one.flags & CLAIMS), one.data[:4]) for one in found] == [(True, b"data")]


@pytest.mark.parametrize("name", LINKS)
def test_frames_cut_anywhere_are_counted_once(name: str) -> None:
    link, wrap = LINKS[name]
    for ip in (STREAM4[2], STREAM6[2], STREAM4[3]):
        frame = wrap(ip)
        packets = [Packet(frame[:size], START_NS + size * 10**9) for size in range(0, len(frame), max(len(frame) // 100, 1))]
        counters = parse(packets, link)[1].counters
        assert len(packets) == counters.tcp + counters.not_tcp + counters.undecoded


def test_lengths_that_cannot_be_are_undecoded() -> None:
    segment = tcp(b"data")
    short_offset, long_offset = bytearray(segment), bytearray(segment)
    short_offset[12], long_offset[12] = 0x40, 0xF0
    packets = [
        ip4(bytes(short_offset)),
        ip4(bytes(long_offset)),
        ip6(bytes(short_offset)),
        ip6(bytes(long_offset)),
        ip4(segment, length=39),
        ip4(segment, length=19),
        ip6(segment, length=19),
        b"\x44" + ip4(segment)[1:],
        b"\x4f" + ip4(segment)[1:],
        b"\x15" + ip4(segment)[1:],
    ]
    found, parser = parse(map(ethernet, packets))
    assert found == []
    assert parser.counters.undecoded == len(packets)


def test_what_is_not_tcp_is_counted() -> None:
    udp = bytes.fromhex("0035003500080000")
    packets = [
        ethernet(ip4(udp, protocol=17)).ljust(60, b"\0"),
        ethernet(ip4(udp, protocol=17)),
        ethernet(ip4(udp * 9, protocol=17, options=bytes(4))),
        ethernet(ip4(udp * 9, protocol=17, more=True)),
        ethernet(ip4(udp * 9, protocol=17, offset=800)),
        ethernet(ip6(udp * 9, following=17)),
        ethernet(ip6(udp, following=17)),
        ethernet(ip6(b"", following=59)),
        ethernet(ip6(bytes.fromhex("3a00010400000000") + bytes(40), following=0)),
        ethernet(ip6(bytes.fromhex("1100000100000005") + bytes(40), following=44)),
        ethernet(ip6(bytes(40), following=50)),
        ethernet(bytes(28), kind=0x0806),
        ethernet(bytes(46), kind=0x0026),
        ethernet(bytes(46), 0x8100, kind=0x88CC),
        ethernet(bytes.fromhex("110000010006 c021 01010004").ljust(46, b"\0"), kind=0x8864),
    ]
    found, parser = parse([*packets, ethernet(ip4(tcp()))])
    assert len(found) == 1
    assert (parser.counters.not_tcp, parser.counters.tcp, parser.counters.undecoded) == (len(packets), 1, 0)


def test_link_types_cost_the_same_however_many_there_are() -> None:
    def cost(count: int) -> int:
        described = [interface(1000 + n) for n in range(count)]
        (batch,) = reader(b"".join([section(), *described, *(enhanced(Packet(bytes(20)), index=n) for n in range(count))]))
        parser = LinkParser()
        work = steps(lambda: parsed(parser, batch))
        assert parser.counters.unknown_links == {1000 + n: 1 for n in range(count)}
        return work

    assert cost(800) < 2.2 * cost(400)


def test_unknown_link_types_are_undecoded() -> None:
    found, parser = parse([ethernet(ip4(tcp()))] * 3, 147)
    assert found == []
    assert parser.counters.undecoded == 3
    assert parser.counters.unknown_links == {147: 3}


def test_packets_in_tunnels_are_counted_by_what_carries_them() -> None:
    inner = ip4(tcp(b"not looked at"))
    vxlan = struct.pack(">HHHHII", 50000, 8472, 16 + len(inner) + 14, 0, 0x08000000, 0x100) + ethernet(inner)
    geneve = struct.pack(">HHHHII", 50000, 6081, 16 + len(inner) + 14, 0, 0x00006558, 0x100) + ethernet(inner)
    gre = bytes.fromhex("00000800") + inner
    gtp = struct.pack(">HHHHBBHI", 2152, 2152, 16 + len(inner), 0, 0x30, 0xFF, len(inner), 7) + inner
    l2tp = [
        struct.pack(">HHHHHHHH", *ports, 16 + len(inner), 0, 2, 1, 1, 0xFF03) + b"\x00\x21" + inner
        for ports in ((1701, 50000), (50000, 1701))
    ]
    packets = [ip4(gre, protocol=47), ip4(inner, protocol=4), ip6(inner, following=4), ip4(vxlan, protocol=17), ip6(geneve, following=17)]
    packets += [ip4(gtp, protocol=17), ip4(bytes(4) + inner, protocol=115), *(ip4(one, protocol=17) for one in l2tp)]
    found, parser = parse([ethernet(one) for one in [*packets, ip4(bytes(40), protocol=17), ip4(tcp())]])
    assert len(found) == 1
    assert parser.counters.tunnels == {"GRE": 1, "IP in IP": 2, "VXLAN": 1, "GENEVE": 1, "GTP-U": 1, "L2TP": 3}
    assert parser.counters.not_tcp == 10


@pytest.mark.parametrize("size", range(14, 40))
def test_labels_and_sessions_cut_anywhere(size: int) -> None:
    heads = [(0x8847, "00064040 00064040 00064140"), (0x8847, "00064040" * 9), (0x8847, "00064140 00000000"), (0x8864, "110000010030 0021")]
    frames = [ethernet(bytes.fromhex(head) + ip4(tcp()), kind=kind) for kind, head in heads]
    found, parser = parse([Packet(one[:size], wire=len(one)) for one in frames])
    assert found == []
    assert parser.counters.undecoded + parser.counters.not_tcp == 4


def test_tags_without_end_are_not_followed() -> None:
    found, parser = parse([ethernet(ip4(tcp()), *[0x8100] * 30)])
    assert found == []
    assert parser.counters.not_tcp == 1


def test_sessions_in_sessions_are_not_followed() -> None:
    inside = bytes.fromhex("0f008864 110000010030")  # Cisco HDLC, and PPPoE in it
    found, parser = parse([ethernet(bytes.fromhex("110000010030") + inside * 2000 + bytes.fromhex("0021") + ip4(tcp()), kind=0x8864)])
    assert found == []
    assert parser.counters.not_tcp == 1


def test_odd_packets_keep_their_place_among_the_ordinary() -> None:
    extension = bytes.fromhex("0600010400000000")
    makers = [
        lambda n: ip4(tcp(b"x", seq=n)),
        lambda n: ip4(tcp(b"x", seq=n), options=bytes(4)),
        lambda n: ip6(tcp(b"x", seq=n)),
        lambda n: ip4(bytes(40), protocol=17),
        lambda n: ip6(extension + tcp(b"x", seq=n), following=0),
    ]
    found, _ = parse([ethernet(makers[n % 5](n)) for n in range(50)])
    assert [one.seq for one in found] == [one.order for one in found] == [n for n in range(50) if n % 5 != 3]


def test_orders_go_on_from_batch_to_batch() -> None:
    batches = list(reader(pcap([Packet(ethernet(ip4(tcp(seq=n)))) for n in range(4)])).batches(2))
    parser = LinkParser()
    assert [one.order for one in parsed(parser, batches[0], 100) + parsed(parser, batches[1], 102)] == [100, 101, 102, 103]


CAPTURES = sorted(path for path in GOLDEN.parent.rglob("*.pcap*") if path.suffix in (".pcap", ".pcapng"))


def by_dpkt(path: Path) -> Iterator[tuple[int, int, int, int, int, bytes]]:
    """Return the segments of a capture of Ethernet as dpkt reads them, which knows no other link type."""
    with path.open("rb") as file:
        for number, (_, data) in enumerate(dpkt.pcap.UniversalReader(file), 1):
            packet = dpkt.ethernet.Ethernet(data).data
            # dpkt hands out the cut-off last packet of a file as if it were whole
            segment = None if isinstance(packet, bytes) else packet.data
            if isinstance(segment, dpkt.tcp.TCP):
                yield number, segment.sport, segment.seq, segment.ack, segment.flags, segment.data


@every_family(CAPTURES)
def test_dpkt_reads_the_same_segments_of_real_captures(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            opened = reader(path.read_bytes())
            parser = LinkParser()
            rows = []
            links = set()
            with contextlib.suppress(CaptureError):
                for batch in opened:
                    rows += parsed(parser, batch)
                    links.update(one.link for one in batch)
            # Nor does it read Simple Packet Blocks, which have no time, and comments that are not UTF-8
            if links != {1} or parser.counters.untimed or path.stem == "processes_hostile_made":
                continue
            found = [(row.number, int.from_bytes(row.ends[-4:-2], "big"), row.seq, row.ack, row.flags & 0xFF, row.data) for row in rows]
            assert found == list(by_dpkt(path))[: len(found)]
            assert found
