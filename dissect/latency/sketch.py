"""A quantile sketch of integers: any number of values in bounded memory, parts merged in any order.

DDSketch tells a quantile within a share of its value, whatever the values are; KLL, REQ and t-digest bound the rank, which says nothing of
how far off a p99.9 is. Latencies are integers of 65 bits at most, which are some 2,500 bins of a sign each, so none need ever be
collapsed and the error holds for every quantile. Zero has a bin of its own, negative values have bins like positive ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

from streamdump.latency.records import Bucket

ACCURACY = 0.009
"""The relative error of a quantile: a little less than the 1 % that is promised, which leaves room for rounding."""

AT_ONCE = 256
"""Values that are sorted into bins together: the library takes one at a time, so bins are counted first. They wait in every sketch."""

BOUNDS = tuple(sorted(sign * digit * 10**power for sign in (-1, 1) for digit in (1, 2, 5) for power in range(19)))
"""Where the buckets of a histogram meet: 1, 2, 5, 10... to both sides of zero, which belongs to the one from -1 to 1."""

_MAPPING = LogarithmicMapping(ACCURACY)
_WIDTH = math.log(_MAPPING.gamma)


class SketchState(msgspec.Struct):
    """A sketch as it travels: bins by number, those of negative values by that of their size. What may take more than 64 bits is text."""

    v: int
    accuracy: float
    least: str
    greatest: str
    total: str
    zeros: int
    positive: list[tuple[int, int]]
    negative: list[tuple[int, int]]


class Sketch:
    """How many values there were, the least and the greatest, exactly; quantiles within `ACCURACY`."""

    __slots__ = ("_count", "_greatest", "_least", "_negative", "_positive", "_sketch", "_total", "_waiting")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._positive, self._negative = DenseStore(), DenseStore()
        self._sketch = BaseDDSketch(_MAPPING, self._positive, self._negative, 0.0)
        self._count = self._total = self._least = self._greatest = 0
        self._waiting: list[int] = []
        self.extend(values)

    def add(self, value: int) -> None:
        """One more value."""
        waiting = self._waiting
        waiting.append(value)
        if len(waiting) >= AT_ONCE:
            self._settle()

    def extend(self, values: Iterable[int]) -> None:
        """More values at once, as many as there are."""
        self._waiting += values
        if len(self._waiting) >= AT_ONCE:
            self._settle()

    def merge(self, other: Sketch) -> None:
        """All values of another sketch, which stays as it is."""
        self._settle()
        other._settle()
        if not other._count:
            return
        self._note(other._count, other._total, other._least, other._greatest)
        self._sketch.merge(other._sketch)

    def __len__(self) -> int:
        return self._count + len(self._waiting)

    @property
    def least(self) -> int:
        """The least value; 0 where there is none."""
        self._settle()
        return self._least

    @property
    def greatest(self) -> int:
        """The greatest value; 0 where there is none."""
        self._settle()
        return self._greatest

    @property
    def total(self) -> int:
        """The sum of all values."""
        self._settle()
        return self._total

    def quantile(self, share: float) -> int:
        """The least value that is not below a `share` of all values (the nearest rank); 0 where there is none."""
        self._settle()
        place = math.ceil(share * self._count) - 1
        if place < 1:
            return self._least
        if place >= self._count - 1:
            return self._greatest
        # The library rounds a place down
        found = round(self._sketch.get_quantile_value((place + 0.5) / (self._count - 1)) or 0)
        return min(max(found, self._least), self._greatest)

    def bins(self) -> Iterator[tuple[int, int]]:
        """A value and how many there are about it, from the least on."""
        self._settle()
        for number, count in reversed(_filled(self._negative)):
            yield -max(1, round(_MAPPING.value(number))), count
        zeros = self._zeros()
        if zeros:
            yield 0, zeros
        for number, count in _filled(self._positive):
            yield max(1, round(_MAPPING.value(number))), count

    def histogram(self, bounds: Sequence[int] = BOUNDS) -> list[Bucket]:
        """The values by buckets that meet at `bounds`, from the first to the last that has some."""
        edges = [None, *bounds, None]
        counts = [0] * (len(bounds) + 1)
        sizes = list(self.bins())
        if sizes:
            low, high = self.least, self.greatest
            for value, count in sizes:
                counts[bisect_right(bounds, min(max(value, low), high))] += count
        filled = [index for index, count in enumerate(counts) if count]
        if not filled:
            return []
        return [Bucket(edges[index], edges[index + 1], counts[index]) for index in range(filled[0], filled[-1] + 1)]

    def pack(self) -> bytes:
        """The sketch as bytes, for `unpack`."""
        self._settle()
        state = SketchState(
            2,
            ACCURACY,
            str(self._least),
            str(self._greatest),
            str(self._total),
            self._zeros(),
            _filled(self._positive),
            _filled(self._negative),
        )
        return msgspec.msgpack.encode(state)

    @classmethod
    def unpack(cls, data: bytes) -> Sketch:
        """The sketch that `pack` made bytes of; a `ValueError` where it is of another version or accuracy."""
        state = msgspec.msgpack.decode(data, type=SketchState)
        if state.v != 2 or state.accuracy != ACCURACY:
            raise ValueError(f"a sketch of version {state.v} and accuracy {state.accuracy} cannot be read here")
        made = cls()
        count = state.zeros
        for number, weight in state.positive:
            made._sketch.add(_MAPPING.value(number), weight)
            count += weight
        for number, weight in state.negative:
            made._sketch.add(-_MAPPING.value(number), weight)
            count += weight
        if state.zeros:
            made._sketch.add(0, state.zeros)
        if count:
            made._note(count, int(state.total), int(state.least), int(state.greatest))
        return made

    def _zeros(self) -> int:
        return int(self._sketch.count - self._positive.count - self._negative.count)

    def _note(self, count: int, total: int, least: int, greatest: int) -> None:
        self._least = min(self._least, least) if self._count else least
        self._greatest = max(self._greatest, greatest) if self._count else greatest
        self._count += count
        self._total += total

    def _settle(self) -> None:
        """Sort what waits into the bins."""
        waiting = self._waiting
        if not waiting:
            return
        self._note(len(waiting), sum(waiting), min(waiting), max(waiting))
        bins: dict[int, list[int]] = {}
        for value in waiting:
            number = value and 1 + math.ceil(math.log(abs(value)) / _WIDTH)
            bins.setdefault(-number if value < 0 else number, []).append(value)
        waiting.clear()
        for values in bins.values():
            self._sketch.add(values[0], len(values))


def _filled(store: DenseStore) -> list[tuple[int, int]]:
    """The bins of a store that have something, by their numbers."""
    return [(number, int(count)) for number, count in enumerate(store.bins, store.offset) if count]
