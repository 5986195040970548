"""Reads the rare packets: IP options, extension headers, fragments, headers cut short. One at a time, through dpkt."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from typing import Final, Literal, NamedTuple

import dpkt  # type: ignore[import-untyped]
import msgspec

from ..model import CLAIMS
from .link import EXTENSIONS, TCP

Outcome = Literal["not TCP", "undecoded", "waits"]
NOT_TCP: Final = "not TCP"
UNDECODED: Final = "undecoded"
WAITS: Final = "waits"
"""A fragment that does not complete its datagram."""

JUMBO = 0xC2
FRAGMENT = 44
LONGEST_EXTENSION = 8 * 256
LARGEST_DATAGRAM = 65_535

PIECES = 8_192
"""Of one datagram: as many as there can be without overlap, as fragments begin at multiples of eight bytes."""

PIECE_COST, RANGE_COST = 160, 80
"""Approximate memory of a piece besides its bytes, and of a range of received bytes."""


class OddSegment(NamedTuple):
    """The TCP segment of an odd packet; or of `datagram`, where that was reassembled from the packets of the orders `joined` and this
    one."""

    ends: bytes
    seq: int
    ack: int
    flags: int
    window: int
    data: bytes
    wire: int
    ttl: int
    datagram: bytes | None = None
    joined: list[int] | None = None


class Covered(msgspec.Struct):
    """Which bytes of a datagram are there: ranges that neither touch nor overlap, in order."""

    starts: list[int] = msgspec.field(default_factory=list)
    ends: list[int] = msgspec.field(default_factory=list)

    def add(self, start: int, end: int) -> bool:
        """Add the bytes from `start` to `end`; return whether any of them is new."""
        starts, ends = self.starts, self.ends
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            if starts[first] <= start and end <= ends[first]:
                return False
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        elif start == end:
            return False
        starts[first:last] = [start]
        ends[first:last] = [end]
        return True

    @property
    def reach(self) -> int:
        """Return the bytes from 0 to the first gap."""
        return self.ends[0] if self.starts and not self.starts[0] else 0


class PartialDatagram(msgspec.Struct):
    """A datagram with missing fragments."""

    time_ns: int
    header: bytes = b""
    following: int = TCP
    end: int | None = None
    size: int = 0
    """Bytes in all pieces."""
    held: int = 0
    """Its cost as last counted."""
    pieces: list[tuple[int, bytes]] = msgspec.field(default_factory=list)
    """Offset and captured bytes, in the order of arrival."""
    sent: Covered = msgspec.field(default_factory=Covered)
    captured: Covered = msgspec.field(default_factory=Covered)
    orders: list[int] = msgspec.field(default_factory=list)
    """Orders of the packets with its fragments, if requested."""

    @property
    def cost(self) -> int:
        ranges = len(self.sent.starts) + len(self.captured.starts)
        return self.size + PIECE_COST * len(self.pieces) + RANGE_COST * ranges


class OddPackets:
    """Reads single packets and puts fragments together, within limits."""

    def __init__(self, datagrams: int = 1024, held: int = 16 << 20, age_ns: int = 30_000_000_000, joins: bool = True) -> None:
        """At most `datagrams` datagrams with `held` bytes wait, for at most `age_ns` of capture time; the oldest are dropped first. Without
        `joins`, fragments of TCP datagrams are not reassembled here."""
        self.dropped = 0
        self._datagrams = datagrams
        self._limit = held
        self._age = age_ns
        self._joins = joins
        self._order: int | None = None
        self._held = 0
        self._waiting: dict[Hashable, PartialDatagram] = {}

    def packet(self, packet: bytes, sent: int, time_ns: int, order: int | None = None) -> OddSegment | Outcome:
        """Return the content of an IP packet; `sent`: its length on the wire, for headers without one; `order`: remembered for
        fragments."""
        self._order = order
        version = packet[0] >> 4 if packet else 0
        try:
            if version == 4 and len(packet) >= 20:
                return self._ipv4(packet, sent, time_ns)
            if version == 6 and len(packet) >= 40:
                return self._ipv6(packet, sent, time_ns)
        except dpkt.UnpackError:
            pass
        return UNDECODED

    def _ipv4(self, packet: bytes, sent: int, time_ns: int) -> OddSegment | Outcome:
        size = (packet[0] & 15) * 4
        header = dpkt.ip.IP(packet[: max(size, 20)])
        total = header.len or sent
        if header.p != TCP:
            return NOT_TCP
        if total < size:
            return UNDECODED
        if not (header.mf or header.offset):
            return _segment(packet, size, total, sent, header.src, header.dst, header.ttl)
        # Bytes beyond the frame belong to no fragment
        total = min(total, sent)
        key = (header.src, header.dst, header.id, 4)
        return self._fragment(key, packet[:size], TCP, header.offset * 8, bool(header.mf), packet[size:total], total - size, time_ns)

    def _ipv6(self, packet: bytes, sent: int, time_ns: int) -> OddSegment | Outcome:
        payload, following = struct.unpack_from(">HB", packet, 4)
        src, dst = packet[8:24], packet[24:40]
        total = payload + 40 if payload else sent
        at = 40
        while following in EXTENSIONS:
            header = dpkt.ip6.EXT_HDRS_CLS[following](packet[at : min(total, at + LONGEST_EXTENSION)])
            at += header.length
            if at > min(total, len(packet)):
                return UNDECODED
            if following == FRAGMENT and (header.m_flag or header.frag_off):
                if header.nxt != TCP and header.nxt not in EXTENSIONS:
                    return NOT_TCP
                key = (src, dst, header.id, 6)
                total = min(total, sent)
                offset = header.frag_off * 8
                return self._fragment(key, packet[:40], header.nxt, offset, bool(header.m_flag), packet[at:total], total - at, time_ns)
            if following == 0 and not payload:
                total = _jumbo(header) or total
            following = header.nxt
        if following != TCP:
            return NOT_TCP
        return _segment(packet, at, total, sent, src, dst, packet[7])

    def _fragment(
        self, key: Hashable, header: bytes, following: int, offset: int, more: bool, data: bytes, size: int, time_ns: int
    ) -> OddSegment | Outcome:
        if not self._joins:
            return WAITS
        end = offset + size
        if size <= 0 or end > LARGEST_DATAGRAM or (more and size % 8):
            return UNDECODED
        self._expire(time_ns)
        partial = self._waiting.get(key)
        if partial is None:
            partial = self._waiting[key] = PartialDatagram(time_ns)
        if offset == 0 and not partial.header:
            partial.header, partial.following = header, following
        if not more and partial.end is None:
            partial.end = end
        partial.sent.add(offset, end)
        # Bytes received before are not kept
        if partial.captured.add(offset, offset + len(data)):
            partial.pieces.append((offset, data))
            partial.size += len(data)
        held = partial.cost
        self._held += held - partial.held
        partial.held = held
        if partial.end is not None and partial.header and partial.sent.reach >= partial.end:
            self._drop(key)
            return self._reassembled(partial, partial.end, time_ns)
        if len(partial.pieces) > PIECES:
            self._drop(key)
            self.dropped += 1
        while self._held > self._limit or len(self._waiting) > self._datagrams:
            self._drop(next(iter(self._waiting)))
            self.dropped += 1
        if self._order is not None:
            partial.orders.append(self._order)
        return WAITS

    def _reassembled(self, partial: PartialDatagram, end: int, time_ns: int) -> OddSegment | Outcome:
        """Return the segment of a complete datagram: the first of overlapping fragments counts, cut bytes stay missing."""
        known = min(end, partial.captured.reach)
        data = bytearray(known)
        for offset, piece in reversed(partial.pieces):
            if offset < known:
                data[offset : min(offset + len(piece), known)] = piece[: known - offset]
        payload = bytes(data)
        header = bytearray(partial.header)
        if len(header) == 40 and header[0] >> 4 == 6:
            struct.pack_into(">HB", header, 4, end, partial.following)
        else:
            if len(header) + end > LARGEST_DATAGRAM:
                return UNDECODED
            struct.pack_into(">H2xH", header, 2, len(header) + end, 0)
        datagram = bytes(header) + payload
        # A fragment in a datagram that came in fragments may complete another one, and so on without end
        found = _UNJOINED.packet(datagram, len(header) + end, time_ns)
        if found is WAITS:
            return UNDECODED
        return found._replace(datagram=datagram, joined=partial.orders) if isinstance(found, OddSegment) else found

    def _expire(self, time_ns: int) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            if time_ns - self._waiting[key].time_ns <= self._age:
                break
            self._drop(key)
            self.dropped += 1

    def _drop(self, key: Hashable) -> None:
        self._held -= self._waiting.pop(key).held


_UNJOINED = OddPackets(joins=False)


def _jumbo(header: dpkt.ip6.IP6HopOptsHeader) -> int | None:
    """Return the packet's length from its jumbo payload option."""
    for option in header.options:
        if option["type"] == JUMBO and len(option["data"]) == 4:
            return 40 + int.from_bytes(option["data"], "big")
    return None


def _segment(packet: bytes, start: int, total: int, sent: int, src: bytes, dst: bytes, ttl: int) -> OddSegment | Outcome:
    """Return the TCP segment at `start` of a packet with a declared length of `total` bytes and `sent` bytes on the wire."""
    header = dpkt.tcp.TCP(packet[start : min(start + 60, total)])
    offset = start + header.off * 4
    wire = total - offset
    if wire < 0:
        return UNDECODED
    ends = src + dst + header.sport.to_bytes(2, "big") + header.dport.to_bytes(2, "big")
    data = packet[offset : offset + wire]
    flags = header.flags & 0xFF | (CLAIMS if total > sent else 0)
    return OddSegment(ends, header.seq, header.ack, flags, header.win, data, wire, ttl)
