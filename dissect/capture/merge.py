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

MAX_BUFFERED = 16 << 20
"""Approximate bytes buffered over all inputs, of which there may be hundreds."""

MAX_BATCH = 1 << 14
"""Maximum packets per batch, about as many as in a block of a single input."""


class PacketSource(Protocol):
    """A source of packets, in batches of those available."""

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]: ...


class _MergedInput:
    """One input: its buffered packets and the index of the next one."""

    def __init__(self, index: int, source: PacketSource, errors: list[CaptureError], size: int) -> None:
        self.index = index
        self.at = 0
        self.keys: list[int] = []
        self._packets: list[Packet] = []
        # A source that starts inside its file reports the time before.
        self._latest = getattr(source, "latest_ns", -(1 << 62))
        self._batches = source.batches(size=size)
        self._errors = errors

    def load(self) -> bool:
        """Return whether there is a packet, after reading the next ones if necessary."""
        while self.at == len(self.keys):
            try:
                packets = next(self._batches, None)
            except CaptureError as error:
                self._errors.append(error)
                packets = None
            if packets is None:
                return False
            # A packet that is older than its predecessor in the same input must stay behind it.
            self.keys = list(accumulate((one.time_ns for one in packets), max, initial=self._latest))[1:]
            self._latest = max(self._latest, *self.keys[-1:])
            self._packets, self.at = packets, 0
        return True

    def pop_before(self, before: tuple[int, int] | None) -> list[Packet]:
        """Return the buffered packets before those of another input, given its next key and its index."""
        at, self.at = self.at, len(self.keys)
        if before is not None:
            key, index = before
            self.at = (bisect_right if self.index < index else bisect_left)(self.keys, key, at)
        packets = self._packets[at : self.at]
        for one in packets:
            one.file = self.index
        return packets


def merge(
    inputs: Sequence[PacketSource | None], errors: list[CaptureError] | None = None, rows: int | None = None
) -> Iterator[list[Packet]]:
    """Yield the packets of all inputs by time, each input in its own order, with the index of the input in `file` (None: did not open).

    At equal times the first input comes first. A damaged input does not end the others: its error is added to `errors`; without
    that list, the first error is raised at the end.
    """
    found: list[CaptureError] = []
    errors, alone = found if errors is None else errors, errors is None
    most = rows or MAX_BATCH
    size = MAX_BUFFERED // max(1, len(inputs))
    opened = [_MergedInput(index, source, errors, size) for index, source in enumerate(inputs) if source is not None]
    heads = [(one.keys[0], one.index, one) for one in opened if one.load()]
    heapify(heads)
    packets: list[Packet] = []
    while heads:
        _, index, one = heappop(heads)
        packets += one.pop_before(heads[0][:2] if heads else None)
        if one.at == len(one.keys) or len(packets) >= most:
            # Available packets do not wait for a pipe
            yield from parts(packets, most)
            packets = []
        if one.load():
            heappush(heads, (one.keys[one.at], index, one))
    if alone and found:
        raise found[0]
