"""Picks the packets of chosen conversations out of captures that are read a second time, and writes them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..model import Packet, Segment
from .ends import ends_between
from .link import FragmentPiece, LinkParser
from .merge import merge

if TYPE_CHECKING:
    from .files import CaptureReader
    from .write import PcapngWriter


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


_FIRST = attrgetter("first")


class PacketSelection:
    """Tells which packets are wanted."""

    def __init__(
        self,
        flows: Iterable[ConversationSpan] | None,
        wanted: set[int] | None,
        pieces: Mapping[int, FragmentPiece],
        spots: Iterable[Spot] | None = None,
    ) -> None:
        """`flows`: None where all packets of all are wanted, as each segment is of one of them; `wanted`: conversations, None for all of
        them; `pieces`: of which segments fragments are part; `spots`: only these packets."""
        self._all = flows is None
        self._between: dict[bytes, tuple[list[ConversationSpan], str]] = {}
        """By the `ends` of their segments those between two endpoints, in their order, with the one that sends."""
        for flow in sorted(flows or (), key=_FIRST):
            there, back = ends_between(flow.endpoints, flow.network)
            between, _ = self._between.setdefault(there, ([], flow.endpoints[0]))
            self._between.setdefault(back, (between, flow.endpoints[1]))
            between.append(flow)
        self._wanted = wanted
        self._pieces = pieces
        self._spots = None if spots is None else _ranges(spots)

    def wants(self, order: int, segment: Segment | None) -> bool:
        """Whether the packet of this order is wanted, which carries this segment."""
        if self._all:
            return segment is not None or order in self._pieces
        if segment is not None and self._is_wanted(segment.ends, order, segment.number, segment.file, segment.wire):
            return True
        piece = self._pieces.get(order)
        return piece is not None and self._is_wanted(*piece)

    def _is_wanted(self, ends: bytes, order: int, number: int, file: int, wire: int) -> bool:
        between, src = self._between.get(ends, ((), ""))
        at = bisect_right(between, order, key=_FIRST) - 1
        if at < 0 or not (self._wanted is None or between[at].index in self._wanted):
            return False
        if self._spots is None:
            return True
        firsts, lasts = self._spots.get((between[at].index, src, file), ((), ()))
        place = bisect_right(firsts, number) - 1
        return wire > 0 and place >= 0 and number <= lasts[place]


def copy(
    sources: Sequence[CaptureReader | None], limits: Sequence[int], most: int, link: LinkParser, pick: PacketSelection, writer: PcapngWriter
) -> tuple[int, int]:
    """Write the packets that are wanted, in their order; how many were written, of how many. `limits`: so many packets of each source were
    there when it was read first; `most`: so many of all; `link`: one that has seen no packet yet, of the kind that these were read by."""
    order = written = 0
    for packets in merge(sources, []):
        some: list[Packet] = []
        for packet in packets:
            # What came to a file since it was read first is left out
            if packet.number <= limits[packet.file] and order < most:
                if pick.wants(order, link.segment(packet, order)):
                    some.append(packet)
                order += 1
        writer.write(some)
        written += len(some)
        if order >= most:
            break
    return written, order


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
