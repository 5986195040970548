"""Overwrites bytes of byte streams wherever packets carry them, and makes checksums right again that were right before."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from typing import NamedTuple

import msgspec

from ..capture.link import ETHERNET, IPV4, IPV6, SHORT, SLL, SLL2, TUNNELS, UNKNOWN_LINK, udp_tunnel
from ..conversation.conversation import united
from ..tcp.assembler import TcpStream
from ..tcp.sequence import distance
from .replace import FILL, AddressReplacements
from .search import ByteStreams, Range

TCP, UDP, ICMP, IGMP, ICMP6 = 6, 17, 1, 2, 58
EXTENSIONS = (0, 43, 51, 60)
ROUTING, FRAGMENT, AUTHENTICATION = 43, 44, 51
HEADER = 20
CHECKSUM = slice(16, 18)
"""Where a TCP header has its checksum."""

IP_OPTIONS = {148: (4,)}
IP6_OPTIONS = {5: (4,), 0xC2: (6,)}
TCP_OPTIONS = {2: (4,), 3: (3,), 4: (2,), 5: (10, 18, 26, 34), 8: (10,)}
"""Options that stay, and their sizes: router alert, jumbo payload, and of TCP segment size, window scale, SACK and timestamps."""

UNREADABLE = (IPV4, IPV6, SHORT)
"""What a packet is of which the headers should be readable and are not."""

PIECES = 1_024
"""Pieces of a datagram that are put together; a real one has fewer than fifty."""

HARDWARE: dict[int, tuple[int, ...]] = {ETHERNET: (0, 6), SLL: (6,), SLL2: (12,)}
"""Where link headers have Ethernet addresses."""

Edit = tuple[int, int, bytes | int]
"""From and to, and what comes there: bytes, or one value for all of them."""

End = tuple[bytes, int]


class Edits:
    """The edits of one side of a conversation, by position in its byte stream. Of edits that overlap the first counts."""

    def __init__(self) -> None:
        self._edits: list[Edit] = []
        self._ends: list[int] | None = None

    def add(self, start: int, end: int, data: bytes | int) -> None:
        if end > start:
            self._edits.append((start, end, data))
            self._ends = None

    def shift(self, by: int) -> None:
        """Move all edits behind bytes of a layer that their positions do not count."""
        self._edits = [(start + by, end + by, data) for start, end, data in self._edits]
        self._ends = None

    def apart(self) -> list[Edit]:
        """Return the edits in order, without overlaps."""
        if self._ends is None:
            self._edits = _apart(self._edits)
            self._ends = [one[1] for one in self._edits]
        return self._edits

    def apply(self, data: bytearray, position: int) -> None:
        """Overwrite what lies in `data`, whose first byte is at `position`."""
        self.apart()
        assert self._ends is not None
        end = position + len(data)
        for index in range(bisect_right(self._ends, position), len(self._edits)):
            start, stop, what = self._edits[index]
            if start >= end:
                break
            low, high = max(start, position), min(stop, end)
            filled = bytes((what,)) * (high - low) if isinstance(what, int) else what[low - start : high - start]
            data[low - position : high - position] = filled


def _apart(edits: list[Edit]) -> list[Edit]:
    """Return the edits sorted, without the ones that overlap an earlier one."""
    found: list[Edit] = []
    reached = 0
    for start, end, data in sorted(edits, key=lambda one: one[:2]):
        low = max(start, reached)
        if low < end:
            found.append((low, end, data if isinstance(data, int) else data[low - start :]))
            reached = end
    return found


class ConversationEdits(NamedTuple):
    """A conversation as packets are held against it."""

    tcp: TcpStream
    known: bool
    """Whether it is of a protocol that is read."""
    first: End
    """The end of side 0."""
    edits: tuple[Edits, Edits]
    reached: list[int]
    """Of each side the position that its last segment ended at."""


class Transport(NamedTuple):
    """What an IP packet carries, in a file: where its header is and where that ends, its size as sent and as captured."""

    header: int
    start: int
    sent: int
    captured: int
    protocol: int
    version: int
    fragment: tuple[bytes, int, bool] | None = None
    """Which datagram it is a piece of, where in it, and whether more follow."""


class DatagramPiece(NamedTuple):
    """A piece of a datagram: where it lies in it and in the file, and how long it is, as sent and as captured."""

    offset: int
    start: int
    sent: int
    captured: int


class Datagram(msgspec.Struct):
    """A datagram of which pieces are missing; `end` is 0 until the last piece is there."""

    protocol: int
    pieces: list[DatagramPiece] = msgspec.field(default_factory=list)
    sent: int = 0
    end: int = 0

    def is_complete(self) -> bool:
        """Whether the pieces reach from its beginning to its end."""
        if len(self.pieces) > PIECES:
            # no receiver puts these together
            return False
        start, end = united((piece.offset, piece.offset + piece.sent) for piece in self.pieces)[0]
        return start == 0 and end >= self.end


class CapturePackets:
    """The packets of a capture, which are overwritten one by one."""

    def __init__(
        self,
        file: mmap,
        talks: dict[frozenset[End], list[tuple[int, ConversationEdits]]],
        everything: bool,
        payloads: bool,
        addresses: AddressReplacements | None,
    ) -> None:
        """`talks`: by both ends the conversations between them, with their first packets. `everything`: overwrite bytes that are not read,
        `payloads`: conversations of unknown protocols too."""
        self.file = file
        self.talks = talks
        self.everything = everything
        self.payloads = payloads
        self.addresses = addresses
        self.foreign = 0
        """Packets of other protocols than TCP."""
        self.unread: Counter[str] = Counter()
        """The conversations that may hold a complete connection, by kind."""
        self.streams = ByteStreams()
        self._datagrams: dict[bytes, Datagram] = {}

    def packet(self, order: int, offset: int, size: int, wire: int, link: int, ip: int, kind: int) -> None:
        """One packet: `offset` and `size` in the file, `ip` where its IP header begins, `kind` its EtherType."""
        file = self.file
        end = offset + size
        if self.addresses is not None:
            for place in HARDWARE.get(link, ()):
                at = offset + place
                if at + 6 <= end:
                    file[at : at + 6] = self.addresses.hardware(file[at : at + 6])
        found = None
        if kind in (IPV4, IPV6):
            found = self._network(ip, end, wire - (ip - offset))
        if found is None:
            if kind == UNKNOWN_LINK:
                self.unread[f"of link type {link}"] += 1
            self.foreign += kind not in UNREADABLE
            if self.everything or kind in UNREADABLE:
                start = offset if kind == UNKNOWN_LINK else min(ip, end)
                file[start:end] = bytes(end - start)
            return
        old = self._ends(found)
        # what fills an Ethernet frame up
        rest = found.start + found.captured
        file[rest:end] = bytes(end - rest)
        self._count(found)
        self._head(found)
        if found.fragment is not None:
            self._fragment(order, found, old)
        elif found.protocol == TCP:
            self._segment(order, found, old, [DatagramPiece(0, found.start, found.sent, found.captured)])
        else:
            self.foreign += 1
            if self.everything:
                self._other(found)

    def _count(self, found: Transport) -> None:
        """Count a tunnel, by its first piece."""
        if found.fragment is not None and found.fragment[1]:
            return
        name = TUNNELS.get(found.protocol)
        if found.protocol == UDP and found.captured >= 4:
            name = udp_tunnel(self.file[found.start : found.start + 4])
        if name is not None:
            self.unread[f"in {name}"] += 1

    def finish(self) -> None:
        """Pieces of datagrams of which others are missing are not read by anybody."""
        for datagram in self._datagrams.values():
            if self.everything or datagram.protocol == TCP:
                self._fill(datagram.pieces)

    # Headers

    def _network(self, at: int, end: int, wire: int) -> Transport | None:
        file = self.file
        room = end - at
        version = file[at] >> 4 if room > 0 else 0
        if version == 4 and room >= 20:
            size = (file[at] & 15) * 4
            total, ident, place = struct.unpack_from(">HHH", file, at + 2)
            total = total or wire
            if size < 20 or total < size or room < size:
                return None
            fragment = None
            if place & 0x3FFF:
                key = b"4" + file[at + 12 : at + 20] + struct.pack(">HB", ident, file[at + 9])
                fragment = key, (place & 0x1FFF) * 8, bool(place & 0x2000)
            return Transport(at, at + size, total - size, min(room, total) - size, file[at + 9], 4, fragment)
        if version == 6 and room >= 40:
            payload, following = struct.unpack_from(">HB", file, at + 4)
            total = payload + 40 if payload else wire
            here = at + 40
            fragment = None
            while (following in EXTENSIONS or following == FRAGMENT) and here + 8 <= end:
                kind, length = following, file[here + 1]
                following = file[here]
                if kind == FRAGMENT:
                    (place,) = struct.unpack_from(">H", file, here + 2)
                    if place & 0xFFF9:
                        fragment = b"6" + file[at + 8 : at + 40] + file[here + 4 : here + 8], place & 0xFFF8, bool(place & 1)
                    here += 8
                else:
                    here += _extension(kind, length)
            if here > end or here - at > total:
                return None
            captured = max(0, min(end, at + total) - here)
            return Transport(at, here, total - (here - at), captured, following, 6, fragment)
        return None

    def _ends(self, found: Transport) -> tuple[bytes, bytes]:
        at, size = (found.header + 12, 4) if found.version == 4 else (found.header + 8, 16)
        return self.file[at : at + size], self.file[at + size : at + 2 * size]

    def _head(self, found: Transport) -> None:
        """Overwrite what an IP header has besides numbers: options, and addresses where these go."""
        before = self.file[found.header : found.start]
        head = bytearray(before)
        if found.version == 4:
            head[HEADER:] = _options(before[HEADER:], IP_OPTIONS)
        at, kind = 40, before[6]
        while found.version == 6 and at < len(head):
            size = _extension(kind, head[at + 1]) if kind != FRAGMENT else 8
            if kind not in (ROUTING, FRAGMENT, AUTHENTICATION):
                head[at + 2 : at + size] = _options(before[at + 2 : at + size], IP6_OPTIONS, 2)
            elif kind != FRAGMENT:
                kept = 4 if kind == ROUTING else 12
                head[at + kept : at + size] = bytes(max(0, size - kept))
            at, kind = at + size, head[at]
        if self.addresses is not None:
            at, size = (12, 4) if found.version == 4 else (8, 16)
            for place in (at, at + size):
                head[place : place + size] = self.addresses.network(before[place : place + size])
        if head == before:
            return
        if found.version == 4 and not _sum(before):
            head[10:12] = bytes(2)
            head[10:12] = _complement(_sum(bytes(head)))
        self.file[found.header : found.start] = bytes(head)

    # Payloads

    def _fragment(self, order: int, found: Transport, old: tuple[bytes, bytes]) -> None:
        """Keep a piece of a datagram until all are there."""
        assert found.fragment is not None
        key, offset, more = found.fragment
        datagram = self._datagrams.setdefault(key, Datagram(found.protocol))
        datagram.pieces.append(DatagramPiece(offset, found.start, found.sent, found.captured))
        datagram.sent += found.sent
        if not more and not datagram.end:
            datagram.end = offset + found.sent
        if not 0 < datagram.end <= datagram.sent or not datagram.is_complete():
            return
        del self._datagrams[key]
        if found.protocol == TCP:
            self._segment(order, found._replace(sent=datagram.end), old, datagram.pieces)
        elif self.everything:
            self.foreign += 1
            self._fill(datagram.pieces)

    def _segment(self, order: int, found: Transport, old: tuple[bytes, bytes], pieces: list[DatagramPiece]) -> None:
        """Overwrite what a TCP segment carries; the first piece that came counts where several have the same bytes."""
        captured = max((piece.offset + piece.captured for piece in pieces), default=0)
        if found.sent < HEADER:
            self._fill(pieces)
        data = bytearray(captured)
        for piece in reversed(pieces):
            data[piece.offset : piece.offset + piece.captured] = self.file[piece.start : piece.start + piece.captured]
        if captured < HEADER:
            return
        before = bytes(data)
        self._change(order, old, data, found.sent, pieces)
        after = self._ends(found)
        if data == before and old == after:
            return
        self._sum_again(before, data, _pseudo(old, TCP, found.sent), _pseudo(after, TCP, found.sent), captured == found.sent)
        for piece in pieces:
            self.file[piece.start : piece.start + piece.captured] = bytes(data[piece.offset : piece.offset + piece.captured])

    def _change(self, order: int, ends: tuple[bytes, bytes], data: bytearray, sent: int, pieces: Sequence[DatagramPiece]) -> None:
        """Overwrite the edited parts of a segment, or all of one whose header is wrong."""
        start = (data[12] >> 4) * 4
        if not HEADER <= start <= sent:
            data[HEADER:] = FILL * (len(data) - HEADER)
            return
        data[HEADER:start] = _options(bytes(data[HEADER:start]), TCP_OPTIONS)
        if start < len(data):
            payload = data[start:]
            header = bytes(data[:HEADER])
            self._payload(order, ends, header, payload, sent - start)
            data[start:] = payload
            lows = ((max(start, one.offset), one) for one in pieces)
            places = ((low - start, one.start + low - one.offset, one.offset + one.captured - low) for low, one in lows)
            self.streams.add(ends, header, [one for one in places if one[2] > 0])

    def _payload(self, order: int, ends: tuple[bytes, bytes], header: bytes, payload: bytearray, sent: int) -> None:
        sport, dport, seq = struct.unpack_from(">HHI", header)
        source, target = (ends[0], sport), (ends[1], dport)
        known = self.talks.get(frozenset((source, target)), ())
        talk = next((one for first, one in reversed(known) if first <= order), None)
        if talk is None or not talk.known:
            # bytes of no known conversation were not dissected
            if self.payloads or talk is None:
                payload[:] = FILL * len(payload)
            return
        side = 0 if talk.first == source else 1
        counted = talk.tcp.streams[side]
        if counted.first is None:
            payload[:] = FILL * len(payload)
            return
        near = talk.reached[side]
        position = near + distance(counted.first + near & 0xFFFF_FFFF, seq + bool(header[13] & 2) & 0xFFFF_FFFF)
        talk.reached[side] = max(near, min(position + sent, counted.stream))
        talk.edits[side].apply(payload, position)
        # bytes outside of the byte stream were not dissected
        if position < 0:
            payload[:-position] = FILL * min(-position, len(payload))
        beyond = counted.stream - position
        if beyond < len(payload):
            payload[max(beyond, 0) :] = FILL * (len(payload) - max(beyond, 0))

    def _other(self, found: Transport) -> None:
        """Empty a packet without TCP, and correct its checksum if it has one."""
        file, size = self.file, found.captured
        head = bytearray(size)
        if found.protocol == UDP and size >= 8:
            head[4:6] = file[found.start + 4 : found.start + 6]
            if found.version == 6 and size == found.sent:
                head[6:8] = _complement((_sum(bytes(head)) + _pseudo(self._ends(found), UDP, found.sent)) % 0xFFFF)
        elif found.protocol in (ICMP, IGMP) and size >= 4:
            head[2:4] = b"\xff\xff"
        elif found.protocol == ICMP6 and size >= 4:
            head[2:4] = _complement(_pseudo(self._ends(found), ICMP6, found.sent))
        file[found.start : found.start + size] = bytes(head)

    def _fill(self, pieces: Iterable[DatagramPiece]) -> None:
        for piece in pieces:
            self.file[piece.start : piece.start + piece.captured] = FILL * piece.captured

    @staticmethod
    def _sum_again(before: bytes, after: bytearray, old: int, new: int, complete: bool) -> None:
        """Correct a checksum that was right before. That of a segment that was cut cannot be checked and is adjusted by the change;
        one that a network card was to fill in is the sum of the addresses alone."""
        stored = int.from_bytes(before[CHECKSUM], "big")
        if complete:
            if not (_sum(before) + old) % 0xFFFF:
                after[CHECKSUM] = bytes(2)
                after[CHECKSUM] = _complement((_sum(bytes(after)) + new) % 0xFFFF)
        elif stored != old % 0xFFFF:
            change = _sum(bytes(after)) - _sum(before) + new - old
            after[CHECKSUM] = ((stored - change) % 0xFFFF).to_bytes(2, "big")


class Echoes(CapturePackets):
    """Pieces of secrets that stand elsewhere, overwritten in the same packets."""

    def __init__(self, file: mmap, ranges: Sequence[Range]) -> None:
        super().__init__(file, {}, False, False, None)
        self._ranges = ranges
        self._edits = Edits()
        for start, end in ranges:
            self._edits.add(start, end, FILL[0])

    def _change(self, order: int, ends: tuple[bytes, bytes], data: bytearray, sent: int, pieces: Sequence[DatagramPiece]) -> None:
        for piece in pieces:
            own = data[piece.offset : piece.offset + piece.captured]
            self._edits.apply(own, piece.start)
            data[piece.offset : piece.offset + piece.captured] = own

    def finish(self) -> None:
        """Overwrite the ranges outside of segments, which have no checksum to correct."""
        for start, end in self._ranges:
            self.file[start:end] = FILL * (end - start)


def _extension(kind: int, length: int) -> int:
    """The bytes of an extension header of IPv6."""
    return (length + 2) * 4 if kind == AUTHENTICATION else (length + 1) * 8


def _options(data: bytes, known: Mapping[int, Sequence[int]], besides: int = 0) -> bytes:
    """Options of IP or TCP with zeros for the values of unknown ones, and for bytes that cannot be read or follow their end.

    `besides`: bytes that a size does not count, as in IPv6, where 0 is a byte that fills up and no end.
    """
    made = bytearray(len(data))
    at, filler = 0, 0 if besides else 1
    while at < len(data) and (besides or data[at]):
        kind = data[at]
        size = int.from_bytes(data[at + 1 : at + 2], "big") + besides
        if kind == filler:
            size = 1
        elif size < 2 or at + size > len(data):
            break
        kept = size if size in known.get(kind, ()) else min(size, 2)
        made[at : at + kept] = data[at : at + kept]
        at += size
    return bytes(made)


def end_of(endpoint: str) -> End:
    """`192.0.2.1:5552` as the bytes of its address and its port."""
    from ipaddress import ip_address

    host, _, port = endpoint.rpartition(":")
    return ip_address(host.strip("[]")).packed, int(port)


def _sum(data: bytes) -> int:
    """The sum of 16-bit words as Internet checksums have it, from 0 to 65534; 0 with a right checksum among them."""
    return int.from_bytes(data if not len(data) & 1 else data + b"\0", "big") % 0xFFFF


def _pseudo(ends: tuple[bytes, bytes], protocol: int, size: int) -> int:
    return (_sum(ends[0] + ends[1]) + protocol + (size >> 16) + (size & 0xFFFF)) % 0xFFFF


def _complement(total: int) -> bytes:
    return (0xFFFF - total).to_bytes(2, "big")
