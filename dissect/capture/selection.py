"""Selects the packets of conversations from captures that are read a second time, and writes them."""

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
    """A conversation: the packets between its endpoints, from its first one to the first of the next conversation."""

    index: int
    endpoints: tuple[str, str]
    first: int
    """The order of its first packet."""
    network: int = 0
    """Its file, if files are kept separate."""


class Spot(NamedTuple):
    """The packets of a file, from `first` to `last`, with which one side of a conversation sent something."""

    conversation: int
    src: str
    file: int
    first: int
    last: int


_FIRST = attrgetter("first")


class PacketSelection:
    """Decides which packets are selected."""

    def __init__(
        self,
        flows: Iterable[ConversationSpan] | None,
        wanted: set[int] | None,
        pieces: Mapping[int, FragmentPiece],
        spots: Iterable[Spot] | None = None,
    ) -> None:
        """`flows`: None for all packets; `wanted`: indexes of conversations, None for all; `pieces`: the segments of fragments; `spots`:
        only these packets."""
        self._all = flows is None
        self._between: dict[bytes, tuple[list[ConversationSpan], str]] = {}
        """The conversations between two endpoints by the `ends` of their segments, in order, with the sender."""
        for flow in sorted(flows or (), key=_FIRST):
            there, back = ends_between(flow.endpoints, flow.network)
            between, _ = self._between.setdefault(there, ([], flow.endpoints[0]))
            self._between.setdefault(back, (between, flow.endpoints[1]))
            between.append(flow)
        self._wanted = wanted
        self._pieces = pieces
        self._spots = None if spots is None else _ranges(spots)

    def wants(self, order: int, segment: Segment | None) -> bool:
        """Return whether the packet of this order, with this segment, is selected."""
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
    """Write the selected packets in order; return how many were written, of how many. `limits`: packets of each source at its first
    reading; `most`: packets of all; `link`: a new parser with the settings of the first reading."""
    order = written = 0
    for packets in merge(sources, []):
        some: list[Packet] = []
        for packet in packets:
            # Packets added to a file since its first reading are left out
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
    """Return first and last packet numbers by conversation, sender and file, in order and without overlap."""
    found: dict[tuple[int, str, int], tuple[list[int], list[int]]] = {}
    for spot in sorted(spots):
        firsts, lasts = found.setdefault((spot.conversation, spot.src, spot.file), ([], []))
        if firsts and spot.first <= lasts[-1]:
            lasts[-1] = max(lasts[-1], spot.last)
        else:
            firsts.append(spot.first)
            lasts.append(spot.last)
    return found
