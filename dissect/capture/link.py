"""Strips link and IP headers: from a packet to its TCP segment.

Common packets (IPv4 without options or IPv6 without extension headers, complete TCP header, no fragment) are read here; others by
dpkt (`rare_packets.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from ..model import CLAIMS, UNTIMED, Packet, Segment
from .duplicates import Duplicates, digest, place_of
from .ends import network_key

if TYPE_CHECKING:
    from .rare_packets import OddPackets

ETHERNET, PPP, PPP_HDLC, CISCO_HDLC, SLL, SLL2, NULL, LOOP = 1, 9, 50, 104, 113, 276, 0, 108
RAW = (12, 14, 101, 228, 229)

IPV4, IPV6 = 0x0800, 0x86DD
VLAN = (0x8100, 0x88A8, 0x9100)
MPLS, PPPOE = (0x8847, 0x8848), 0x8864
SHORT, UNKNOWN_LINK = -1, -3
"""In place of an EtherType: captured too short, or an unknown link type."""

FAMILIES_6 = (10, 23, 24, 28, 30)  # Linux, Windows, NetBSD and OpenBSD, FreeBSD, Darwin
MAX_TAGS = 8

ETHERNET_IPV4 = b"\x08\0"

TCP4 = Struct(">BxH2xHBB2x12sIIBBH").unpack_from
"""Version and sizes, fragment, TTL, protocol of IPv4; addresses and ports; sequence numbers, header length, flags and window of TCP."""

TCP6 = Struct(">B3xHBB36sIIBBH").unpack_from
"""Length, next header and hop limit of IPv6; addresses and ports; sequence numbers, header length, flags and window of TCP."""

COOKED = Struct(">4xI2xB").unpack_from
"""Interface and packet type of a Linux cooked header (version 2)."""

LEAST4, LEAST6 = 40, 60
"""Bytes of both headers without options."""

TCP = 6
EXTENSIONS = (0, 43, 44, 51, 60)
"""IPv6 extension headers that TCP can follow: hop-by-hop, routing, fragment, authentication, destination options."""

UDP = 17
ASIDE = (1, UDP, 58)
"""ICMP, UDP and ICMPv6, which may describe connections."""

TUNNELS = {4: "IP in IP", 41: "IP in IP", 47: "GRE", 115: "L2TP"}
UDP_TUNNELS = {1701: "L2TP", 2152: "GTP-U", 4789: "VXLAN", 6081: "GENEVE", 8472: "VXLAN"}
"""Tunnels, by IP protocol and by port. They are only counted: a capture at their end contains the inner packets too."""


def udp_tunnel(ports: bytes) -> str | None:
    """Return the tunnel between these ports: by the receiver's, and for L2TP, which answers to any port, by the sender's."""
    name = UDP_TUNNELS.get(int.from_bytes(ports[2:4], "big"))
    return "L2TP" if name is None and UDP_TUNNELS.get(int.from_bytes(ports[:2], "big")) == "L2TP" else name


@dataclass(slots=True)
class PacketCounters:
    """Counters of packets by result."""

    tcp: int = 0
    not_tcp: int = 0
    undecoded: int = 0
    """Of an unknown link type, or cut or malformed before the end of the TCP header."""
    duplicates: int = 0
    fragments: int = 0
    """Fragments of TCP datagrams."""
    untimed: int = 0
    """TCP packets that have no time."""
    reassembled: int = 0
    """Datagrams put together from them."""
    tunnels: dict[str, int] = field(default_factory=dict)
    """Packets that carry others, by what they do so with; they are among `not_tcp`."""
    unknown_links: dict[int, int] = field(default_factory=dict)
    """Packets by link types that are not known; they are among `undecoded`."""


class FragmentPiece(NamedTuple):
    """The segment that a fragment belongs to, from the packet that completed it."""

    ends: bytes
    order: int
    number: int
    file: int
    wire: int


class LinkParser:
    """Parses packets to TCP segments; remembers fragments and, for "any" captures, duplicate packets."""

    def __init__(self) -> None:
        self.counters = PacketCounters()
        self.pieces: dict[int, FragmentPiece] | None = None
        """If not None, collects the fragments of TCP datagrams completed by later packets, by the order of the packet."""
        self.aside: Callable[[Packet, int, int, int, bytes], None] | None = None
        """If not None, called for packets that carry ICMP or UDP, with their order, the position of the IP header, the protocol, and
        the suffix of `ends`."""
        self.network = b""
        """Suffix of the `ends` of its segments."""
        self.seen: set[bytes] | None = None
        """If not None, collects the `ends` of segments, which are not made."""
        self.cooked = False
        """Whether a packet was of a Linux cooked capture, in which each may repeat another."""
        self._odd: OddPackets | None = None
        self._duplicates = Duplicates()

    def segment(self, packet: Packet, order: int) -> Segment | None:
        """The TCP segment that a packet carries, which has this order among all packets."""
        buffer, offset, captured, link = packet.buffer, packet.offset, packet.captured, packet.link
        counters = self.counters
        if link == ETHERNET and captured >= 14 and buffer[offset + 12 : offset + 14] == ETHERNET_IPV4:
            ip, kind = offset + 14, IPV4
        else:
            ip, kind, place = ip_header(packet)
            if place >= 0 and self._is_again(packet, ip, kind, place):
                counters.duplicates += 1
                return None
        available = captured + offset - ip
        if kind == IPV4 and available >= LEAST4:
            version, length, fragment, ttl, protocol, ends, seq, ack, words, flags, window = TCP4(buffer, ip)
            size, addresses = (words >> 2 & 0x3C) + 20, ip + 12
            sent = length or packet.wire + offset - ip
            if version != 0x45 or protocol != TCP or fragment & 0x3FFF or not LEAST4 <= size <= sent:
                if protocol != TCP and version >> 4 == 4:
                    self._other(packet, order, ip, protocol, ends)
                    return None
                return self._of_odd(packet, order, ip)
        elif kind == IPV6 and available >= LEAST6:
            version, length, protocol, ttl, ends, seq, ack, words, flags, window = TCP6(buffer, ip)
            size, addresses = (words >> 2 & 0x3C) + 40, ip + 8
            sent = length + 40 if length else packet.wire + offset - ip
            if version >> 4 != 6 or protocol != TCP or not LEAST6 <= size <= sent:
                if protocol != TCP and protocol not in EXTENSIONS and version >> 4 == 6:
                    self._other(packet, order, ip, protocol, ends)
                    return None
                return self._of_odd(packet, order, ip)
        elif kind in (IPV4, IPV6):
            return self._of_odd(packet, order, ip)
        else:
            self._foreign(kind, link)
            return None
        counters.tcp += 1
        if self.seen is not None:
            self.seen.add(ends)
            return None
        if sent > available:
            data = buffer[ip + size : ip + available]
            if sent > packet.wire + offset - ip:
                flags |= CLAIMS
        else:
            data = buffer[ip + size : ip + sent]
        if packet.untimed:
            counters.untimed += 1
            flags |= UNTIMED
        return Segment(
            ends, (order, packet.number, packet.file, packet.time_ns), seq, ack, flags, window, data, sent - size, ttl, buffer, addresses
        )

    def _is_again(self, packet: Packet, ip: int, kind: int, place: int) -> bool:
        """Return whether a packet of a cooked capture is a duplicate."""
        available = packet.offset + packet.captured - ip
        if available <= 0 or kind not in (IPV4, IPV6):
            return False
        self.cooked = True
        return self._duplicates.again(digest(packet.buffer, ip, available), packet.time_ns, place)

    def _foreign(self, kind: int, link: int) -> None:
        """Count a packet that is not IP."""
        counters = self.counters
        if kind == UNKNOWN_LINK:
            counters.unknown_links[link] = counters.unknown_links.get(link, 0) + 1
        if kind in (UNKNOWN_LINK, SHORT):
            counters.undecoded += 1
        else:
            counters.not_tcp += 1

    def _other(self, packet: Packet, order: int, ip: int, protocol: int, ends: bytes) -> None:
        """Count a packet of another protocol; UDP ports are at the same place as those of TCP."""
        self.counters.not_tcp += 1
        if self.aside is not None and protocol in ASIDE:
            self.aside(packet, order, ip, protocol, self.network)
        name = udp_tunnel(ends[-4:]) if protocol == UDP else TUNNELS.get(protocol)
        if name is not None:
            tunnels = self.counters.tunnels
            tunnels[name] = tunnels.get(name, 0) + 1

    def _of_odd(self, packet: Packet, order: int, ip: int) -> Segment | None:
        """The segment of an odd packet."""
        # importing dpkt costs a tenth of the start time, and most captures have no such packet
        from .rare_packets import NOT_TCP, UNDECODED, WAITS, OddPackets

        if self._odd is None:
            self._odd = OddPackets()
        counters = self.counters
        data, sent = packet.buffer[ip : packet.offset + packet.captured], packet.wire + packet.offset - ip
        found = self._odd.packet(data, sent, packet.time_ns, None if self.pieces is None else order)
        if found is NOT_TCP:
            counters.not_tcp += 1
        elif found is UNDECODED:
            counters.undecoded += 1
        elif found is WAITS:
            counters.fragments += 1
        else:
            assert not isinstance(found, str)
            if found.datagram is not None:
                if self.pieces is not None:
                    piece = FragmentPiece(found.ends + self.network, order, packet.number, packet.file, found.wire)
                    self.pieces.update(dict.fromkeys(found.joined or (), piece))
                counters.fragments += 1
                counters.reassembled += 1
            counters.tcp += 1
            if self.seen is not None:
                self.seen.add(found.ends)
                return None
            counters.untimed += packet.untimed
            return Segment(
                found.ends,
                (order, packet.number, packet.file, packet.time_ns),
                found.seq,
                found.ack,
                found.flags | UNTIMED * packet.untimed,
                found.window,
                found.data,
                found.wire,
                found.ttl,
            )
        return None


class SeparateFiles(LinkParser):
    """Reads each file as of a network of its own: fragments and repeated packets of one are none of another, and the `ends` of their
    segments differ."""

    def __init__(self) -> None:
        super().__init__()
        self._parsers: dict[int, LinkParser] = {}

    def segment(self, packet: Packet, order: int) -> Segment | None:
        """The segment of a packet, read by the parser of its file."""
        parser = self._parsers.get(packet.file)
        if parser is None:
            parser = self._parsers[packet.file] = LinkParser()
            parser.counters, parser.pieces, parser.network = self.counters, self.pieces, network_key(packet.file)
            parser.aside = self.aside
        found = parser.segment(packet, order)
        if found is not None and parser.network:
            found.ends += parser.network
        return found


def ip_header(packet: Packet) -> tuple[int, int, int]:
    """Return the position of the IP header, the EtherType, and where a Linux cooked capture saw the packet, else -1."""
    buffer, offset, link = packet.buffer, packet.offset, packet.link
    end = offset + packet.captured
    if link == ETHERNET:
        return *_typed(buffer, offset + 12, offset + 14, end), -1
    if link == SLL:
        return *_typed(buffer, offset + 14, offset + 16, end), _value(buffer, offset, 2, end)
    if link == SLL2:
        place = -1
        if offset + 11 <= end:
            interface, how = COOKED(buffer, offset)
            place = place_of(how, interface)
        return *_typed(buffer, offset, offset + 20, end), place
    if link in RAW:
        return offset, _by_version(buffer, offset, end), -1
    if link in (NULL, LOOP):
        return offset + 4, _family(buffer, offset, end), -1
    if link in (PPP, PPP_HDLC, CISCO_HDLC):
        return *_ppp(buffer, offset, end, MAX_TAGS), -1
    return offset, UNKNOWN_LINK, -1


def _value(buffer: bytes, at: int, size: int, end: int) -> int:
    """Return a number of `size` bytes, `SHORT` if it was not captured."""
    return int.from_bytes(buffer[at : at + size], "big") if at + size <= end else SHORT


def _typed(buffer: bytes, at: int, start: int, end: int, depth: int = MAX_TAGS) -> tuple[int, int]:
    """Return start and EtherType of the content of a frame with its EtherType at `at` that starts at `start`, after VLAN tags; `depth`:
    the maximum number of nested frames."""
    kind = _value(buffer, at, 2, end)
    if kind in (IPV4, IPV6):
        return start, kind
    for _ in range(MAX_TAGS):
        if kind not in VLAN:
            break
        kind = _value(buffer, start + 2, 2, end)
        start += 4
    if kind in MPLS:
        return _labelled(buffer, start, end)
    if kind == PPPOE and depth:
        return _ppp(buffer, start + 6, end, depth - 1)
    return start, kind


def _labelled(buffer: bytes, start: int, end: int) -> tuple[int, int]:
    """Return start and EtherType of the packet after MPLS labels, of which the last is marked; the type shows only in its first bits."""
    for _ in range(MAX_TAGS):
        label = _value(buffer, start, 4, end)
        start += 4
        if label & 0x100:
            kind = _by_version(buffer, start, end)
            return start, 0 if kind == SHORT and start < end else kind
    return start, 0


def _by_version(buffer: bytes, at: int, end: int) -> int:
    version = buffer[at] >> 4 if at < end else 0
    return IPV4 if version == 4 else IPV6 if version == 6 else SHORT


def _family(buffer: bytes, at: int, end: int) -> int:
    """By the address family, which the machine that captured wrote in its own byte order: the smaller reading is right."""
    if at + 4 > end:
        return SHORT
    head = buffer[at : at + 4]
    family = min(int.from_bytes(head, "little"), int.from_bytes(head, "big"))
    return IPV4 if family == 2 else IPV6 if family in FAMILIES_6 else 0


def _ppp(buffer: bytes, at: int, end: int, depth: int) -> tuple[int, int]:
    """PPP with or without HDLC address and control bytes, its protocol in one or two bytes; or Cisco HDLC, which has an EtherType."""
    head = _value(buffer, at, 2, end)
    if head in (0x0F00, 0x8F00):
        return _typed(buffer, at + 2, at + 4, end, depth)
    start = at + 2 if head == 0xFF03 else at
    size = 1
    protocol = _value(buffer, start, 1, end)
    if not protocol & 1:  # of the two bytes of a protocol only the second is odd; an even first byte may be left out
        size, protocol = 2, _value(buffer, start, 2, end)
    return start + size, IPV4 if protocol == 0x0021 else IPV6 if protocol == 0x0057 else SHORT if protocol == SHORT else 0
