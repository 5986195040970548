"""Picks the packets of chosen conversations out of captures that are read a second time, and writes them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dissect.capture.files import Reader
from dissect.capture.link import LinkParser, Piece
from dissect.capture.merge import merge
from dissect.capture.write import Writer
from dissect.model import PacketBatch, SegmentBatch


class Flow(msgspec.Struct):
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

    low: str
    high: str
    """The endpoints as `SegmentBatch.flow` has them."""
    firsts: list[int] = msgspec.field(default_factory=list)
    indexes: list[int] = msgspec.field(default_factory=list)
    wanted: list[bool] = msgspec.field(default_factory=list)


class Pick:
    """Tells which packets are wanted."""

    def __init__(
        self, flows: Iterable[Flow], wanted: set[int] | None, pieces: Mapping[int, Piece], spots: Iterable[Spot] | None = None
    ) -> None:
        """`wanted`: conversations, None for all of them; `pieces`: of which segments fragments are part; `spots`: only these packets."""
        self._between: dict[bytes, _Between] = {}
        for flow in sorted(flows, key=lambda one: one.first):
            key, low, high = _key(flow.endpoints, flow.network)
            between = self._between.setdefault(key, _Between(low, high))
            between.firsts.append(flow.first)
            between.indexes.append(flow.index)
            between.wanted.append(wanted is None or flow.index in wanted)
        self._pieces = pieces
        self._spots = None if spots is None else _ranges(spots)

    def rows(self, segments: SegmentBatch, begin: int, count: int) -> list[int]:
        """Which of `count` packets are wanted, of which the first has the order `begin`."""
        flow = segments.flow.tobytes()
        columns = (segments.order, segments.reverse, segments.number, segments.file, segments.wire)
        kept = [
            row[0] - begin
            for at, row in enumerate(zip(*(column.tolist() for column in columns), strict=True))
            if self._is_wanted(flow[40 * at : 40 * at + 40], *row)
        ]
        if self._pieces:
            kept += [
                order - begin
                for order in range(begin, begin + count)
                if (piece := self._pieces.get(order)) is not None and self._is_wanted(*piece)
            ]
            kept.sort()
        return kept

    def _is_wanted(self, flow: bytes, order: int, reverse: bool, number: int, file: int, wire: int) -> bool:
        between = self._between.get(flow)
        at = -1 if between is None else bisect_right(between.firsts, order) - 1
        if between is None or at < 0 or not between.wanted[at]:
            return False
        if self._spots is None:
            return True
        firsts, lasts = self._spots.get((between.indexes[at], between.high if reverse else between.low, file), ((), ()))
        place = bisect_right(firsts, number) - 1
        return wire > 0 and place >= 0 and number <= lasts[place]


class Copied(NamedTuple):
    """How many packets were written, of how many."""

    packets: int
    of: int


def copy(sources: Sequence[Reader | None], limits: Sequence[int], most: int, link: LinkParser, pick: Pick, writer: Writer) -> Copied:
    """Write the packets that are wanted, in their order, an interface for each source and link type. `limits`: so many packets of each
    source were there when it was read first; `most`: so many of all; `link`: one that has seen
    no packet yet, of the kind that these were read by."""
    capped = [None if source is None else _Capped(source, limit) for source, limit in zip(sources, limits, strict=True)]
    interfaces: dict[tuple[int, int], int] = {}
    order = written = 0
    for batch in merge(capped, []):
        if order + len(batch) > most:
            batch = batch.rows(0, most - order)
        rows = pick.rows(link.segments(batch, order), order, len(batch))
        order += len(batch)
        if rows:
            some = batch if len(rows) == len(batch) else batch.chosen(np.array(rows, np.int64))
            for index, kind in zip(some.file.tolist(), some.link.tolist(), strict=True):
                if (index, kind) not in interfaces:
                    source = sources[index]
                    assert source is not None
                    interfaces[index, kind] = writer.add_interface(kind, Path(source.name).name, 0)
            writer.write(some, [interfaces[one] for one in zip(some.file.tolist(), some.link.tolist(), strict=True)])
            written += len(rows)
        if order >= most:
            break
    return Copied(written, order)


class _Capped:
    """A source up to a number of packets: what came to a file since it was read first is left out."""

    def __init__(self, source: Reader, limit: int) -> None:
        self._source = source
        self._left = limit

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[PacketBatch]:
        for batch in self._source.batches(rows, size):
            if len(batch) >= self._left:
                yield batch.rows(0, self._left)
                break
            self._left -= len(batch)
            yield batch


def _key(endpoints: tuple[str, str], network: int) -> tuple[bytes, str, str]:
    """What stands for two endpoints in `SegmentBatch.flow`, and these in its order."""
    ends = []
    for text in endpoints:
        host, _, port = text.rpartition(":")
        address = ip_address(host.strip("[]"))
        ends.append((address.packed.ljust(16, b"\0") + int(port).to_bytes(2, "big"), text))
    (low, low_text), (high, high_text) = sorted(ends)
    return low + high + bytes((address.version,)) + network.to_bytes(3, "big"), low_text, high_text


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
