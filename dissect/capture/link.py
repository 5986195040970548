"""Takes link and IP headers off: packets to TCP segments, both as columns.

The ordinary packet (IPv4 without options or IPv6 without extension headers, whole TCP header, no fragment) is read by column;
the odd one row by row through dpkt (`odd.py`) and joins the same batch in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.capture.columns import gather
from dissect.capture.duplicates import Duplicates, Sightings, places, sightings
from dissect.model import PacketBatch, SegmentBatch

if TYPE_CHECKING:
    from dissect.capture.odd import OddPackets, Segment

Ints = NDArray[np.int64]

ETHERNET, PPP, PPP_HDLC, CISCO_HDLC, SLL, SLL2, NULL, LOOP = 1, 9, 50, 104, 113, 276, 0, 108
RAW = (12, 14, 101, 228, 229)
LINKS = frozenset((ETHERNET, PPP, PPP_HDLC, CISCO_HDLC, SLL, SLL2, NULL, LOOP, *RAW))
"""The link types that are known."""

IPV4, IPV6 = 0x0800, 0x86DD
VLAN = (0x8100, 0x88A8, 0x9100)
MPLS, PPPOE = (0x8847, 0x8848), 0x8864
SHORT, DUPLICATE, UNKNOWN_LINK = -1, -2, -3
"""Stand in place of an EtherType: captured too short to tell, seen before, a link type not known."""

AF_INET6 = (10, 23, 24, 28, 30)  # Linux, Windows, NetBSD and OpenBSD, FreeBSD, Darwin
MAX_TAGS = 8

U2 = np.dtype(">u2")

UNUSED = slice(37, 40)
"""Bytes of a flow (see `SegmentBatch`) that say nothing: the number of its network, where these are kept separate."""

TCP_FIELDS = [
    ("sport", ">u2"),
    ("dport", ">u2"),
    ("seq", ">u4"),
    ("ack", ">u4"),
    ("words", "u1"),
    ("flags", "u1"),
    ("window", ">u2"),
    ("checksum", ">u2"),
    ("urgent", ">u2"),
]
TCP4 = np.dtype(
    [
        ("version", "u1"),
        ("tos", "u1"),
        ("length", ">u2"),
        ("id", ">u2"),
        ("fragment", ">u2"),
        ("ttl", "u1"),
        ("protocol", "u1"),
        ("sum", ">u2"),
        ("src", ">u4"),
        ("dst", ">u4"),
        *TCP_FIELDS,
    ]
)
TCP6 = np.dtype(
    [
        ("version", "u1"),
        ("flow", "V3"),
        ("length", ">u2"),
        ("protocol", "u1"),
        ("hops", "u1"),
        ("src_high", ">u8"),
        ("src_low", ">u8"),
        ("dst_high", ">u8"),
        ("dst_low", ">u8"),
        *TCP_FIELDS,
    ]
)
TCP = 6
EXTENSIONS = np.zeros(256, np.bool_)
EXTENSIONS[[0, 43, 44, 51, 60]] = True
"""IPv6 next headers behind which TCP can still come: hop-by-hop, routing, fragment, authentication, destination options."""

UDP = 17
TUNNELS = {4: "IP in IP", 41: "IP in IP", 47: "GRE"}
UDP_TUNNELS = {4789: "VXLAN", 8472: "VXLAN", 6081: "GENEVE"}
"""What carries whole packets, by IP protocol and by port. It is only counted: whoever captures at its end has them twice."""


class Counters(msgspec.Struct):
    """What became of the packets."""

    packets: int = 0
    tcp: int = 0
    not_tcp: int = 0
    undecoded: int = 0
    """Of an unknown link type, or cut or malformed before the end of the TCP header."""
    duplicates: int = 0
    fragments: int = 0
    """Fragments of TCP datagrams."""
    reassembled: int = 0
    """Datagrams put together from them."""
    tunnels: dict[str, int] = msgspec.field(default_factory=dict)
    """Packets that carry others, by what they do so with; they are among `not_tcp`."""
    unknown_links: dict[int, int] = msgspec.field(default_factory=dict)
    """Packets by link types that are not known; they are among `undecoded`."""


class Rows(NamedTuple):
    """Some segments of a batch as columns; `row` is None where they are all rows of the batch."""

    row: Ints | None
    flow: NDArray[np.uint8]
    reverse: NDArray[np.bool_]
    seq: Ints
    ack: Ints
    flags: NDArray[np.uint8]
    window: NDArray[np.int32]
    offset: Ints
    length: Ints
    wire: Ints


class Piece(NamedTuple):
    """Which segment a fragment is part of, as the packet says that completed it."""

    flow: bytes
    order: int
    reverse: bool
    number: int
    file: int
    wire: int


class LinkParser:
    """Turns packets into TCP segments; remembers fragments and, for "any" captures, packets that come twice.

    What it gives does not depend on how the packets are cut into batches.
    """

    def __init__(self, stateless: bool = False) -> None:
        """`stateless`: other parsers see other parts of the capture, so what depends on several packets is left to the caller:
        after each batch `fragments` and `sightings` tell which packets that is."""
        self.counters = Counters()
        self.stateless = stateless
        self.fragments: list[tuple[int, int, int, int]] = []
        """Fragments of TCP datagrams: row, place in the buffer, captured length and length on the wire of the IP packet."""
        self.sightings: Sightings | None = None
        self.pieces: dict[int, Piece] | None = None
        """Where somebody wants it: by the order of the packet, the fragments of TCP datagrams that others completed."""
        self._odd: OddPackets | None = None
        self._duplicates = Duplicates()

    def segments(self, batch: PacketBatch, first_order: int) -> SegmentBatch:
        """The TCP segments of a batch whose first packet has the order `first_order`."""
        return self._parsed(batch, np.arange(first_order, first_order + len(batch), dtype=np.int64))

    def _parsed(self, batch: PacketBatch, orders: Ints) -> SegmentBatch:
        """The TCP segments of a batch whose packets have these orders."""
        counters = self.counters
        counters.packets += len(batch)
        ip, kind, place = _link(batch)
        room = batch.captured - (ip - batch.offset)
        if self.stateless:
            self.fragments = []
            self.sightings = None if place is None else sightings(batch, ip, room, kind, place)
        elif place is not None:
            again = self._duplicates.find(batch, ip, room, kind, place)
            if again is not None:
                kind[again] = DUPLICATE
                counters.duplicates += len(again)
        sent = batch.wire - (ip - batch.offset)
        buffer = batch.buffer
        parts: list[Rows] = []
        odd: list[Ints] = []
        known = 0
        for protocol, columns in ((IPV4, _ipv4), (IPV6, _ipv6)):
            mine = kind == protocol
            count = int(np.count_nonzero(mine))
            known += count
            if count:
                rows = None if count == len(mine) else np.flatnonzero(mine)
                found, strange, other = columns(buffer, rows, ip, room, sent)
                if found is not None:
                    parts.append(found)
                    counters.tcp += len(found.seq)
                if len(strange):
                    odd.append(strange)
                counters.not_tcp += len(other)
                if len(other):
                    _count_tunnels(other, counters.tunnels)
        if known < len(kind):
            foreign, packets = np.unique(batch.link[kind == UNKNOWN_LINK], return_counts=True)
            for link, count in zip(foreign.tolist(), packets.tolist(), strict=True):
                counters.unknown_links[link] = counters.unknown_links.get(link, 0) + count
            unclear = int(np.count_nonzero((kind == SHORT) | (kind == UNKNOWN_LINK)))
            counters.undecoded += unclear
            counters.not_tcp += len(kind) - known - unclear - int(np.count_nonzero(kind == DUPLICATE))
        if odd:
            buffer, singles = self._row_by_row(batch, np.sort(np.concatenate(odd)), ip, room, sent, orders)
            if singles is not None:
                parts.append(singles)
        return _join(batch, buffer, orders, parts)

    def _row_by_row(self, batch: PacketBatch, rows: Ints, ip: Ints, room: Ints, sent: Ints, orders: Ints) -> tuple[bytes, Rows | None]:
        """The segments of odd packets, and the buffer with the reassembled datagrams appended."""
        # dpkt takes a tenth of the time to start, and most captures have no such packet
        from dissect.capture.odd import NOT_TCP, UNDECODED, WAITS, OddPackets, Traced, Unjoined

        if self._odd is None:
            self._odd = Unjoined() if self.stateless else OddPackets() if self.pieces is None else Traced()
        counters = self.counters
        buffer = batch.buffer
        appended: list[bytes] = []
        end = len(buffer)
        segments: list[Segment] = []
        at: list[int] = []
        for row in rows.tolist():
            start = int(ip[row])
            packet = buffer[start : start + int(room[row])]
            if self.pieces is not None:
                self._odd.mark = int(orders[row])  # type: ignore[attr-defined]
            found = self._odd.packet(packet, int(sent[row]), int(batch.time_ns[row]))
            if found is NOT_TCP:
                counters.not_tcp += 1
            elif found is UNDECODED:
                counters.undecoded += 1
            elif found is WAITS:
                counters.fragments += 1
                if self.stateless:
                    self.fragments.append((row, start, len(packet), int(sent[row])))
            else:
                assert not isinstance(found, str)
                if found.datagram is not None:
                    if self.pieces is not None:
                        number, file = int(batch.number[row]), int(batch.file[row])
                        piece = Piece(found.flow, int(orders[row]), found.reverse, number, file, found.wire)
                        self.pieces.update(dict.fromkeys(self._odd.joined, piece))  # type: ignore[attr-defined]
                    counters.fragments += 1
                    counters.reassembled += 1
                    appended.append(found.datagram)
                    start, end = end, end + len(found.datagram)
                counters.tcp += 1
                segments.append(found._replace(offset=found.offset + start))
                at.append(row)
        if appended:
            buffer = b"".join([buffer, *appended])
        if not segments:
            return buffer, None
        flow = np.frombuffer(b"".join(one.flow for one in segments), np.uint8).reshape(-1, 40)
        return buffer, Rows(
            np.array(at, np.int64),
            flow,
            np.array([one.reverse for one in segments], np.bool_),
            np.array([one.seq for one in segments], np.int64),
            np.array([one.ack for one in segments], np.int64),
            np.array([one.flags for one in segments], np.uint8),
            np.array([one.window for one in segments], np.int32),
            np.array([one.offset for one in segments], np.int64),
            np.array([one.length for one in segments], np.int64),
            np.array([one.wire for one in segments], np.int64),
        )


class SeparateFiles(LinkParser):
    """As if each file were of a network of its own: fragments and repeated packets of one are none of another, and their flows differ."""

    def __init__(self) -> None:
        super().__init__()
        self._parsers: dict[int, LinkParser] = {}

    def _parsed(self, batch: PacketBatch, orders: Ints) -> SegmentBatch:
        found: list[SegmentBatch] = []
        buffer = batch.buffer
        for file in np.unique(batch.file).tolist():
            parser = self._parsers.get(file)
            if parser is None:
                parser = self._parsers[file] = LinkParser()
                parser.counters, parser.pieces = self.counters, self.pieces
            rows = np.flatnonzero(batch.file == file)
            some = parser._parsed(batch.chosen(rows), orders[rows])
            if len(some.buffer) > len(batch.buffer):
                # Datagrams put together stand behind the packets
                some.offset = some.offset + np.where(some.offset >= len(batch.buffer), len(buffer) - len(batch.buffer), 0)
                buffer += some.buffer[len(batch.buffer) :]
            some.flow = of_network(some.flow, file)
            found.append(some)
        if len(found) == 1:
            return found[0]
        order = np.argsort(np.concatenate([one.order for one in found]), kind="stable")
        names = SegmentBatch.__struct_fields__[1:]
        return SegmentBatch(buffer, *(np.concatenate([getattr(one, name) for one in found])[order] for name in names))


def of_network(flow: NDArray[np.uint8], network: int) -> NDArray[np.uint8]:
    """The flows of a network that others do not know of; 0 is the one of all captures that are not kept separate."""
    flow = np.ascontiguousarray(flow)
    if network:
        flow = flow.copy()
        flow[:, UNUSED] = np.frombuffer(network.to_bytes(3, "big"), np.uint8)
    return flow


def network(batch: PacketBatch) -> tuple[Ints, Ints]:
    """Where the IP header of each packet is, and its EtherType."""
    return _link(batch)[:2]


def _link(batch: PacketBatch) -> tuple[Ints, Ints, Ints | None]:
    """Where the IP header of each packet is, its EtherType, and for Linux cooked captures where it was seen (-1 for other rows)."""
    link = int(batch.link[0]) if len(batch) else ETHERNET
    if (batch.link == link).all():
        return _of_link(link, batch.buffer, batch.offset, batch.captured)
    start = batch.offset.copy()
    kind = np.full(len(batch), UNKNOWN_LINK, np.int64)
    place = None
    for link in LINKS.intersection(np.unique(batch.link).tolist()):
        rows = np.flatnonzero(batch.link == link)
        start[rows], kind[rows], types = _of_link(link, batch.buffer, batch.offset[rows], batch.captured[rows])
        if types is not None:
            if place is None:
                place = np.full(len(batch), -1, np.int64)
            place[rows] = types
    return start, kind, place


def _of_link(link: int, buffer: bytes, offset: Ints, captured: Ints) -> tuple[Ints, Ints, Ints | None]:
    if link == ETHERNET:
        return *_typed(buffer, offset, captured, 12, 14), None
    if link == SLL:
        start, kind = _typed(buffer, offset, captured, 14, 16)
        return start, kind, _value(buffer, offset, captured, 0, U2)
    if link == SLL2:
        start, kind = _typed(buffer, offset, captured, 0, 20)
        interface = _value(buffer, offset, captured, 4, np.dtype(">u4"))
        return start, kind, places(_value(buffer, offset, captured, 10, np.dtype("u1")), interface)
    if link in RAW:
        return offset.copy(), _by_version(buffer, offset, captured), None
    if link in (NULL, LOOP):
        return offset + 4, _family(buffer, offset, captured), None
    if link in (PPP, PPP_HDLC, CISCO_HDLC):
        return *_ppp(buffer, offset, captured), None
    return offset.copy(), np.full(len(offset), UNKNOWN_LINK, np.int64), None


def _value(buffer: bytes, offset: Ints, captured: Ints, at: int, layout: np.dtype[Any], missing: int = SHORT) -> Ints:
    """The number at byte `at` of each packet, `missing` where it was not captured."""
    whole = captured >= at + layout.itemsize
    if whole.all():
        return gather(buffer, offset + at, layout).astype(np.int64)
    value = np.full(len(offset), missing, np.int64)
    value[whole] = gather(buffer, offset[whole] + at, layout)
    return value


def _count_tunnels(heads: NDArray[Any], tunnels: dict[str, int]) -> None:
    """Counts the packets that carry others; the port of UDP stands where that of TCP does in a packet without options."""
    protocols = np.bincount(heads["protocol"], minlength=256)
    found = [(name, int(protocols[number])) for number, name in TUNNELS.items()]
    if protocols[UDP]:
        ports = heads["dport"][heads["protocol"] == UDP].astype(np.uint16)
        found += [(name, int(np.count_nonzero(ports == number))) for number, name in UDP_TUNNELS.items()]
    for name, count in found:
        if count:
            tunnels[name] = tunnels.get(name, 0) + count


def _typed(buffer: bytes, offset: Ints, captured: Ints, at: int, size: int) -> tuple[Ints, Ints]:
    """Start and EtherType of what is in frames that have their EtherType at byte `at` of `size`, behind any VLAN tags."""
    kind = _value(buffer, offset, captured, at, U2)
    start = offset + size
    other = np.flatnonzero((kind != IPV4) & (kind != IPV6))
    if not len(other):
        return start, kind
    tagged = other[np.isin(kind[other], VLAN)]
    for _ in range(MAX_TAGS):
        if not len(tagged):
            break
        kind[tagged] = _value(buffer, start[tagged], captured[tagged] - (start[tagged] - offset[tagged]), 2, U2)
        start[tagged] += 4
        tagged = tagged[np.isin(kind[tagged], VLAN)]
    labelled = other[np.isin(kind[other], MPLS)]
    if len(labelled):
        start[labelled], kind[labelled] = _labelled(buffer, offset[labelled], captured[labelled], start[labelled])
    dialled = other[kind[other] == PPPOE]
    if len(dialled):
        inside = start[dialled] + 6
        start[dialled], kind[dialled] = _ppp(buffer, inside, captured[dialled] - (inside - offset[dialled]))
    return start, kind


def _labelled(buffer: bytes, offset: Ints, captured: Ints, start: Ints) -> tuple[Ints, Ints]:
    """Start and EtherType of what is behind MPLS labels, of which the last has a mark; only its first bits tell what it is."""
    start = start.copy()
    left = np.arange(len(start))
    for _ in range(MAX_TAGS):
        label = _value(buffer, start[left], captured[left] - (start[left] - offset[left]), 0, np.dtype(">u4"))
        start[left] += 4
        left = left[(label & 0x100) == 0]
        if not len(left):
            break
    room = captured - (start - offset)
    kind = _by_version(buffer, start, room)
    kind[(kind == SHORT) & (room > 0)] = 0
    kind[left] = 0
    return start, kind


def _by_version(buffer: bytes, offset: Ints, captured: Ints) -> Ints:
    version = _value(buffer, offset, captured, 0, np.dtype("u1"), missing=0) >> 4
    return np.where(version == 4, IPV4, np.where(version == 6, IPV6, SHORT))


def _family(buffer: bytes, offset: Ints, captured: Ints) -> Ints:
    """By the address family, which the machine that captured wrote in its own byte order: the smaller reading is right."""
    little = _value(buffer, offset, captured, 0, np.dtype("<u4"))
    big = _value(buffer, offset, captured, 0, np.dtype(">u4"))
    family = np.minimum(little, big)
    return np.where(family == 2, IPV4, np.where(np.isin(family, AF_INET6), IPV6, np.where(family == SHORT, SHORT, 0)))


def _ppp(buffer: bytes, offset: Ints, captured: Ints) -> tuple[Ints, Ints]:
    """PPP with or without HDLC address and control bytes, its protocol in one or two bytes; or Cisco HDLC, which has an EtherType."""
    head = _value(buffer, offset, captured, 0, U2)
    start = offset + np.where(head == 0xFF03, 2, 0)
    first = _value(buffer, start, captured - (start - offset), 0, np.dtype("u1"))
    short = (first & 1) == 1  # of the two bytes of a protocol only the second is odd; an even first byte may be left out
    protocol = np.where(short, first, _value(buffer, start, captured - (start - offset), 0, U2))
    start += np.where(short, 1, 2)
    kind = np.where(protocol == 0x0021, IPV4, np.where(protocol == 0x0057, IPV6, np.where(protocol == SHORT, SHORT, 0)))
    cisco = np.flatnonzero((head == 0x0F00) | (head == 0x8F00))
    if len(cisco):
        start[cisco], kind[cisco] = _typed(buffer, offset[cisco], captured[cisco], 2, 4)
    return start, kind


def _ipv4(buffer: bytes, rows: Ints | None, ip: Ints, room: Ints, sent: Ints) -> tuple[Rows | None, Ints, NDArray[Any]]:
    """The ordinary segments of these rows, the rows that are odd, and protocol and port of those that are not TCP."""
    rows, ip, room, sent, cut = _fitting(rows, ip, room, sent, TCP4.itemsize)
    head = gather(buffer, ip, TCP4)
    total = head["length"].astype(np.int64)
    size = (head["words"] >> 4).astype(np.int64) * 4 + 20
    plain = (head["version"] == 0x45) & (head["protocol"] == TCP) & ((head["fragment"] & 0x3FFF) == 0) & (size >= 40)
    offload = total == 0
    if offload.any():
        total = np.where(offload, sent, total)
    plain &= total >= size
    other = head[:0]
    if not plain.all():
        strange = ~plain
        alien = strange & (head["protocol"] != TCP) & ((head["version"] >> 4) == 4)
        other = head[["protocol", "dport"]][alien]
        rows, ip, room, head, total, size, cut = _choose(plain, strange & ~alien, rows, ip, room, head, total, size, cut)
        if not len(ip):
            return None, cut, other
    source = (head["src"].astype(np.uint64) << np.uint64(16)) | head["sport"]
    target = (head["dst"].astype(np.uint64) << np.uint64(16)) | head["dport"]
    reverse = source > target
    low, high = np.minimum(source, target), np.maximum(source, target)
    flow = np.zeros((len(head), 5), ">u8")
    flow[:, 0] = (low >> np.uint64(16)) << np.uint64(32)
    flow[:, 2] = (low << np.uint64(48)) | ((high >> np.uint64(16)) << np.uint64(16))
    flow[:, 4] = ((high & np.uint64(0xFFFF)) << np.uint64(32)) | np.uint64(4 << 24)
    return _rows(rows, head, flow, reverse, ip, room, total, size), cut, other


def _ipv6(buffer: bytes, rows: Ints | None, ip: Ints, room: Ints, sent: Ints) -> tuple[Rows | None, Ints, NDArray[Any]]:
    """As `_ipv4`."""
    rows, ip, room, sent, cut = _fitting(rows, ip, room, sent, TCP6.itemsize)
    head = gather(buffer, ip, TCP6)
    total = head["length"].astype(np.int64) + 40
    size = (head["words"] >> 4).astype(np.int64) * 4 + 40
    version = head["version"] >> 4
    plain = (version == 6) & (head["protocol"] == TCP) & (size >= 60)
    offload = total == 40
    if offload.any():
        total = np.where(offload, sent, total)
    plain &= total >= size
    other = head[:0]
    if not plain.all():
        strange = ~plain
        alien = strange & (version == 6) & (head["protocol"] != TCP) & ~EXTENSIONS[head["protocol"]]
        other = head[["protocol", "dport"]][alien]
        rows, ip, room, head, total, size, cut = _choose(plain, strange & ~alien, rows, ip, room, head, total, size, cut)
        if not len(ip):
            return None, cut, other
    names = ("src_high", "src_low", "sport"), ("dst_high", "dst_low", "dport")
    (high, low, port), (high2, low2, port2) = ([head[name].astype(np.uint64) for name in side] for side in names)
    reverse = (high > high2) | ((high == high2) & ((low > low2) | ((low == low2) & (port > port2))))
    if reverse.any():
        high, high2 = np.where(reverse, high2, high), np.where(reverse, high, high2)
        low, low2 = np.where(reverse, low2, low), np.where(reverse, low, low2)
        port, port2 = np.where(reverse, port2, port), np.where(reverse, port, port2)
    shift = np.uint64(16), np.uint64(48)
    flow = np.empty((len(head), 5), ">u8")
    flow[:, 0] = high
    flow[:, 1] = low
    flow[:, 2] = (port << shift[1]) | (high2 >> shift[0])
    flow[:, 3] = (high2 << shift[1]) | (low2 >> shift[0])
    flow[:, 4] = (low2 << shift[1]) | (port2 << np.uint64(32)) | np.uint64(6 << 24)
    return _rows(rows, head, flow, reverse, ip, room, total, size), cut, other


def _fitting(rows: Ints | None, ip: Ints, room: Ints, sent: Ints, size: int) -> tuple[Ints | None, Ints, Ints, Ints, Ints]:
    """The rows of which `size` bytes were captured, their columns, and the other rows."""
    if rows is not None:
        ip, room, sent = ip[rows], room[rows], sent[rows]
    fits = room >= size
    if fits.all():
        return rows, ip, room, sent, np.empty(0, np.int64)
    if rows is None:
        rows = np.arange(len(ip))
    return rows[fits], ip[fits], room[fits], sent[fits], rows[~fits]


def _choose(
    plain: NDArray[np.bool_],
    odd: NDArray[np.bool_],
    rows: Ints | None,
    ip: Ints,
    room: Ints,
    head: NDArray[Any],
    total: Ints,
    size: Ints,
    cut: Ints,
) -> tuple[Ints, Ints, Ints, NDArray[Any], Ints, Ints, Ints]:
    """The columns of the plain rows, and the odd rows joined to those that were cut."""
    if rows is None:
        rows = np.arange(len(ip))
    return rows[plain], ip[plain], room[plain], head[plain], total[plain], size[plain], np.concatenate([cut, rows[odd]])


def _rows(
    rows: Ints | None, head: NDArray[Any], flow: NDArray[Any], reverse: NDArray[np.bool_], ip: Ints, room: Ints, total: Ints, size: Ints
) -> Rows:
    wire = total - size
    length = wire
    offset = ip + size
    if (room < total).any():
        length = np.clip(room - size, 0, wire)
        offset = np.minimum(offset, ip + room)
    return Rows(
        rows,
        flow.view(np.uint8),
        reverse,
        head["seq"].astype(np.int64),
        head["ack"].astype(np.int64),
        head["flags"].copy(),
        head["window"].astype(np.int32),
        offset,
        length,
        wire,
    )


def _join(batch: PacketBatch, buffer: bytes, orders: Ints, parts: list[Rows]) -> SegmentBatch:
    """The parts in the order of the packets."""
    if len(parts) == 1 and parts[0].row is None:
        return SegmentBatch(buffer, orders, batch.time_ns, batch.number, batch.file, *parts[0][1:])
    if not parts:
        row = np.empty(0, np.int64)
        columns: list[Any] = [np.empty((0, 40), np.uint8), *(np.empty(0, kind) for kind in COLUMN_TYPES)]
    elif len(parts) == 1:
        row, columns = _row_numbers(parts[0]), list(parts[0][1:])
    else:
        row = np.concatenate([_row_numbers(one) for one in parts])
        place = np.argsort(row, kind="stable")
        row = row[place]
        columns = [np.concatenate(same)[place] for same in zip(*(one[1:] for one in parts), strict=True)]
    return SegmentBatch(buffer, orders[row], batch.time_ns[row], batch.number[row], batch.file[row], *columns)


COLUMN_TYPES = (np.bool_, np.int64, np.int64, np.uint8, np.int32, np.int64, np.int64, np.int64)


def _row_numbers(part: Rows) -> Ints:
    assert part.row is not None
    return part.row
