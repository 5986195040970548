"""Merges several inputs by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Protocol

from ..errors import CaptureError
from ..model import Packet
from .blocks import parts

AT_HAND = 16 << 20
"""Bytes at hand of all inputs together, about, of which there may be hundreds."""

AT_ONCE = 1 << 14
"""Packets that are handed on together at most, about as many as a block of a single input holds."""


class PacketSource(Protocol):
    """What gives packets, those together that are at hand."""

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]: ...


class _Input:
    """One input: its packets at hand and how far they have been handed on."""

    def __init__(self, index: int, source: PacketSource, errors: list[CaptureError], size: int) -> None:
        self.index = index
        self.at = 0
        self.keys: list[int] = []
        self._packets: list[Packet] = []
        # One that does not begin at the beginning of its file tells what came before.
        self._latest = getattr(source, "latest_ns", -(1 << 62))
        self._batches = source.batches(size=size)
        self._errors = errors

    def load(self) -> bool:
        """Whether there is a packet, after a look at the next ones where those at hand have all gone."""
        while self.at == len(self.keys):
            try:
                packets = next(self._batches, None)
            except CaptureError as error:
                self._errors.append(error)
                packets = None
            if packets is None:
                return False
            # A packet that is older than the one before it in the same input must not come earlier.
            self.keys = list(accumulate((one.time_ns for one in packets), max, initial=self._latest))[1:]
            self._latest = max(self._latest, *self.keys[-1:])
            self._packets, self.at = packets, 0
        return True

    def take(self, before: tuple[int, int] | None) -> list[Packet]:
        """The packets at hand up to those of another input, of which the next key and the index are given."""
        at, self.at = self.at, len(self.keys)
        if before is not None:
            key, index = before
            self.at = (bisect_right if self.index < index else bisect_left)(self.keys, key, at)
        taken = self._packets[at : self.at]
        for one in taken:
            one.file = self.index
        return taken


def merge(
    inputs: Sequence[PacketSource | None], errors: list[CaptureError] | None = None, rows: int | None = None
) -> Iterator[list[Packet]]:
    """The packets of all inputs by time, each input in its own order, `file` being the index of the input (None: one that did not open).

    Among equal times the first input comes first. A damaged input does not end the others: its error goes into `errors`, or without
    that list the first one is raised at the end.
    """
    found: list[CaptureError] = []
    errors, alone = found if errors is None else errors, errors is None
    most = rows or AT_ONCE
    size = AT_HAND // max(1, len(inputs))
    opened = [_Input(index, source, errors, size) for index, source in enumerate(inputs) if source is not None]
    heads = [(one.keys[0], one.index, one) for one in opened if one.load()]
    heapify(heads)
    packets: list[Packet] = []
    while heads:
        _, index, one = heappop(heads)
        packets += one.take(heads[0][:2] if heads else None)
        if one.at == len(one.keys) or len(packets) >= most:
            # What is at hand need not wait for what a pipe brings next
            yield from parts(packets, most)
            packets = []
        if one.load():
            heappush(heads, (one.keys[one.at], index, one))
    if alone and found:
        raise found[0]
