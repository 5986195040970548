"""Picks the packets of chosen conversations out of captures that are read a second time, and writes them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec

from streamdump.capture.files import CaptureReader
from streamdump.capture.link import FragmentPiece, LinkParser, network_key
from streamdump.capture.merge import merge
from streamdump.capture.write import PcapngWriter
from streamdump.model import Packet, Segment


class ConversationSpan(msgspec.Struct):
    """A conversation as packets are held against it: those between its endpoints, from its first one to the first of the next one."""

    index: int
    endpoints: tuple[str, str]
    first: int
    """The order of its first packet."""
    network: int = 0
    """The file that it is in, where each is read as its own."""


class Spot(NamedTuple):
    """The packets of a file, from `first` to `last`, with which one side of a conversation sent something."""

    conversation: int
    src: str
    file: int
    first: int
    last: int


class _Between(msgspec.Struct):
    """The conversations between two endpoints by first packet, of each its index, and whether it is wanted."""

    firsts: list[int] = msgspec.field(default_factory=list)
    indexes: list[int] = msgspec.field(default_factory=list)
    wanted: list[bool] = msgspec.field(default_factory=list)


class PacketSelection:
    """Tells which packets are wanted."""

    def __init__(
        self,
        flows: Iterable[ConversationSpan],
        wanted: set[int] | None,
        pieces: Mapping[int, FragmentPiece],
        spots: Iterable[Spot] | None = None,
    ) -> None:
        """`wanted`: conversations, None for all of them; `pieces`: of which segments fragments are part; `spots`: only these packets."""
        self._between: dict[bytes, tuple[_Between, str]] = {}
        """By the `ends` of their segments, and with the one that sends."""
        for flow in sorted(flows, key=lambda one: one.first):
            there, back = _ends(flow.endpoints, flow.network)
            between = self._between.setdefault(there, (_Between(), flow.endpoints[0]))[0]
            self._between.setdefault(back, (between, flow.endpoints[1]))
            between.firsts.append(flow.first)
            between.indexes.append(flow.index)
            between.wanted.append(wanted is None or flow.index in wanted)
        self._pieces = pieces
        self._spots = None if spots is None else _ranges(spots)

    def wants(self, order: int, segment: Segment | None) -> bool:
        """Whether the packet of this order is wanted, which carries this segment."""
        if segment is not None and self._is_wanted(segment.ends, order, segment.number, segment.file, segment.wire):
            return True
        piece = self._pieces.get(order)
        return piece is not None and self._is_wanted(*piece)

    def _is_wanted(self, ends: bytes, order: int, number: int, file: int, wire: int) -> bool:
        between, src = self._between.get(ends, (None, ""))
        at = -1 if between is None else bisect_right(between.firsts, order) - 1
        if between is None or at < 0 or not between.wanted[at]:
            return False
        if self._spots is None:
            return True
        firsts, lasts = self._spots.get((between.indexes[at], src, file), ((), ()))
        place = bisect_right(firsts, number) - 1
        return wire > 0 and place >= 0 and number <= lasts[place]


class WriteCount(NamedTuple):
    """How many packets were written, of how many."""

    packets: int
    of: int


def copy(
    sources: Sequence[CaptureReader | None], limits: Sequence[int], most: int, link: LinkParser, pick: PacketSelection, writer: PcapngWriter
) -> WriteCount:
    """Write the packets that are wanted, in their order, an interface for each source and link type. `limits`: so many packets of each
    source were there when it was read first; `most`: so many of all; `link`: one that has seen
    no packet yet, of the kind that these were read by."""
    capped = [None if source is None else _Capped(source, limit) for source, limit in zip(sources, limits, strict=True)]
    interfaces: dict[tuple[int, int], int] = {}
    order = written = 0
    for packets in merge(capped, []):
        some: list[Packet] = []
        for packet in packets[: most - order]:
            if pick.wants(order, link.segment(packet, order)):
                some.append(packet)
            order += 1
        for packet in some:
            if (packet.file, packet.link) not in interfaces:
                source = sources[packet.file]
                assert source is not None
                interfaces[packet.file, packet.link] = writer.add_interface(packet.link, Path(source.name).name, 0)
        if some:
            writer.write(some, [interfaces[packet.file, packet.link] for packet in some])
            written += len(some)
        if order >= most:
            break
    return WriteCount(written, order)


class _Capped:
    """A source up to a number of packets: what came to a file since it was read first is left out."""

    def __init__(self, source: CaptureReader, limit: int) -> None:
        self._source = source
        self._left = limit

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]:
        for packets in self._source.batches(rows, size):
            yield packets[: self._left]
            self._left -= len(packets)
            if self._left <= 0:
                break


def _ends(endpoints: tuple[str, str], network: int) -> tuple[bytes, bytes]:
    """The `ends` of segments from the first endpoint to the second, and of those back."""
    hosts, ports = [], []
    for text in endpoints:
        host, _, port = text.rpartition(":")
        hosts.append(ip_address(host.strip("[]")).packed)
        ports.append(int(port).to_bytes(2, "big"))
    behind = network_key(network)
    return b"".join((*hosts, *ports, behind)), b"".join((*hosts[::-1], *ports[::-1], behind))


def _ranges(spots: Iterable[Spot]) -> dict[tuple[int, str, int], tuple[list[int], list[int]]]:
    """By conversation, sender and file the packet numbers from and to, in order and without overlap."""
    found: dict[tuple[int, str, int], tuple[list[int], list[int]]] = {}
    for spot in sorted(spots):
        firsts, lasts = found.setdefault((spot.conversation, spot.src, spot.file), ([], []))
        if firsts and spot.first <= lasts[-1]:
            lasts[-1] = max(lasts[-1], spot.last)
        else:
            firsts.append(spot.first)
            lasts.append(spot.last)
    return found
