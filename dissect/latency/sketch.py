"""A quantile sketch of integers: any number of values in bounded memory, parts merged in any order.

DDSketch bounds the relative error of a quantile; KLL, REQ and t-digest bound the error of its rank, which does not bound the error of a
p99.9. Latencies are integers of at most 65 bits, about 2,500 bins per sign, so bins need not be collapsed and the bound holds for every
quantile. Zero has its own bin, negative values have bins like positive ones. The library maps values to bins; its stores need floats, so a
dict of counts replaces them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from ddsketch.mapping import LogarithmicMapping

from .records import Bucket

ACCURACY = 0.009
"""The relative error of a quantile: a little less than the documented 1 %, to allow for rounding."""

BOUNDS = tuple(sorted(sign * digit * 10**power for sign in (-1, 1) for digit in (1, 2, 5) for power in range(19)))
"""The bounds of the buckets of a histogram: 1, 2, 5, 10... on both sides of zero, which is in the bucket from -1 to 1."""

_MAPPING = LogarithmicMapping(ACCURACY)


def bin_of(value: int) -> int:
    """The bin of a value."""
    return value and (1 + _MAPPING.key(value) if value > 0 else -1 - _MAPPING.key(-value))


@cache
def value_of(place: int) -> int:
    """The value of a bin."""
    size = place and max(1, round(_MAPPING.value(abs(place) - 1)))
    return -size if place < 0 else size


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
        self._note(bin_of(value), 1, value, value, value)

    def merge(self, other: Sketch) -> None:
        """All values of another sketch, which stays as it is."""
        for place, count in other._bins.items():
            self._note(place, count, 0, other.least, other.greatest)
        self.total += other.total

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
        """A value, which lies in its bin itself, and how many there are about it, from the least on."""
        return ((value_of(place), count) for place, count in sorted(self._bins.items()))

    def histogram(self, bounds: Sequence[int] = BOUNDS) -> list[Bucket]:
        """The values by buckets that meet at `bounds`, from the first to the last that has some."""
        edges = [None, *bounds, None]
        counts = [0] * (len(bounds) + 1)
        for value, count in self.bins():
            counts[bisect_right(bounds, min(max(value, self.least), self.greatest))] += count
        filled = [index for index, count in enumerate(counts) if count]
        return [Bucket(edges[index], edges[index + 1], counts[index]) for index in range(filled[0], filled[-1] + 1)] if filled else []

    def pack(self) -> list[tuple[int, int]]:
        """The sketch as pairs of `bins`, for `unpack`; the pairs of several, added up by value, are those of the merged sketch."""
        return [*self.bins()]

    @classmethod
    def unpack(
        cls,
        buckets: Iterable[tuple[int, int] | Mapping[str, int]],
        least: int | None = None,
        greatest: int | None = None,
        total: int | None = None,
    ) -> Sketch:
        """The sketch of the pairs that `pack` made, which may be rows with the columns bucket and count. Least, greatest and sum are as
        exact as the buckets where they are not given."""
        pairs = [tuple(one.values()) if isinstance(one, Mapping) else one for one in buckets]
        made = cls()
        for value, count in pairs:
            made._note(bin_of(value), count, value * count, value, value)
        if pairs:
            made.least = made.least if least is None else least
            made.greatest = made.greatest if greatest is None else greatest
            made.total = made.total if total is None else total
        return made

    def _note(self, place: int, count: int, total: int, least: int, greatest: int) -> None:
        self._bins[place] = self._bins.get(place, 0) + count
        self.least = least if not self._count or least < self.least else self.least
        self.greatest = greatest if not self._count or greatest > self.greatest else self.greatest
        self._count += count
        self.total += total
