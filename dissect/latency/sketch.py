"""A quantile sketch of integers: any number of values in bounded memory, parts merged in any order.

DDSketch bounds the relative error of a quantile; KLL, REQ and t-digest bound the error of its rank, which does not bound the error of a
p99.9. Latencies are integers of at most 65 bits, about 2,500 bins per sign, so bins need not be collapsed and the bound holds for every
quantile. Zero has its own bin, negative values have bins like positive ones. The library maps values to bins; its stores need floats, so a
dict of counts replaces them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from ddsketch.mapping import LogarithmicMapping

from .records import Bucket

ACCURACY = 0.009
"""The relative error of a quantile: a little less than the documented 1 %, to allow for rounding."""

BOUNDS = tuple(sorted(sign * digit * 10**power for sign in (-1, 1) for digit in (1, 2, 5) for power in range(19)))
"""The bounds of the buckets of a histogram: 1, 2, 5, 10... on both sides of zero, which is in the bucket from -1 to 1."""

_MAPPING = LogarithmicMapping(ACCURACY)


class SketchState(msgspec.Struct):
    """A serialised sketch: bins by number, for negative values by that of their absolute value. Numbers over 64 bits are text."""

    v: int
    accuracy: float
    least: str
    greatest: str
    total: str
    zeros: int
    positive: list[tuple[int, int]]
    negative: list[tuple[int, int]]


class Sketch:
    """How many values there were, their sum, the least and the greatest, exactly, and 0 without any; quantiles within `ACCURACY`."""

    __slots__ = ("_bins", "_count", "greatest", "least", "total")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._bins: dict[int, int] = {}
        """How many values are in each bin: that of number n has n + 1, for negative values -n - 1; 0 is that of zero."""
        self._count = self.total = self.least = self.greatest = 0
        for value in values:
            self.add(value)

    def add(self, value: int) -> None:
        """One more value."""
        place = value and (1 + _MAPPING.key(value) if value > 0 else -1 - _MAPPING.key(-value))
        self._bins[place] = self._bins.get(place, 0) + 1
        self._note(1, value, value, value)

    def merge(self, other: Sketch) -> None:
        """All values of another sketch, which stays as it is."""
        if other._count:
            for place, count in other._bins.items():
                self._bins[place] = self._bins.get(place, 0) + count
            self._note(other._count, other.total, other.least, other.greatest)

    def __len__(self) -> int:
        return self._count

    def quantile(self, share: float) -> int:
        """The least value that is not below a `share` of all values (the nearest rank); 0 where there is none."""
        before = math.ceil(share * self._count) - 1
        if before < 1:
            return self.least
        for value, count in self.bins() if before < self._count - 1 else ():
            before -= count
            if before < 0:
                return min(max(value, self.least), self.greatest)
        return self.greatest

    def bins(self) -> Iterator[tuple[int, int]]:
        """A value and how many there are about it, from the least on."""
        for place, count in sorted(self._bins.items()):
            size = place and max(1, round(_MAPPING.value(abs(place) - 1)))
            yield -size if place < 0 else size, count

    def histogram(self, bounds: Sequence[int] = BOUNDS) -> list[Bucket]:
        """The values by buckets that meet at `bounds`, from the first to the last that has some."""
        edges = [None, *bounds, None]
        counts = [0] * (len(bounds) + 1)
        for value, count in self.bins():
            counts[bisect_right(bounds, min(max(value, self.least), self.greatest))] += count
        filled = [index for index, count in enumerate(counts) if count]
        return [Bucket(edges[index], edges[index + 1], counts[index]) for index in range(filled[0], filled[-1] + 1)] if filled else []

    def pack(self) -> bytes:
        """The sketch as bytes, for `unpack`."""
        bins = sorted((abs(place) - 1, count, place < 0) for place, count in self._bins.items() if place)
        positive, negative = ([(number, count) for number, count, below in bins if below == side] for side in (False, True))
        known = str(self.least), str(self.greatest), str(self.total), self._bins.get(0, 0)
        return msgspec.msgpack.encode(SketchState(2, ACCURACY, *known, positive, negative))

    @classmethod
    def unpack(cls, data: bytes) -> Sketch:
        """The sketch that `pack` made bytes of; a `ValueError` where it is of another version or accuracy."""
        state = msgspec.msgpack.decode(data, type=SketchState)
        if state.v != 2 or state.accuracy != ACCURACY:
            raise ValueError(f"a sketch of version {state.v} and accuracy {state.accuracy} cannot be read here")
        made = cls()
        made._bins = {number + 1: count for number, count in state.positive} | {-number - 1: count for number, count in state.negative}
        if state.zeros:
            made._bins[0] = state.zeros
        made._note(sum(made._bins.values()), int(state.total), int(state.least), int(state.greatest))
        return made

    def _note(self, count: int, total: int, least: int, greatest: int) -> None:
        self.least = least if not self._count or least < self.least else self.least
        self.greatest = greatest if not self._count or greatest > self.greatest else self.greatest
        self._count += count
        self.total += total
