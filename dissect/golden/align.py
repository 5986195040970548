"""Alignment of two sequences: their longest common subsequence, at a bounded cost."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate, islice
from operator import lt
from typing import TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

EFFORT, FOR_EACH = 1_000_000, 100
"""The limit of steps of a comparison, and the addition for each line; beyond it, lines are compared position by position."""

Pair = tuple[int, int]
Key = Callable[[T], Hashable]


class Effort:
    """The steps left to a comparison; `reached`: it needed more."""

    def __init__(self, lines: int = 0) -> None:
        self.left = EFFORT + FOR_EACH * lines
        self.reached = False

    def spend(self, steps: int) -> bool:
        """Spend `steps`; return False where fewer are left."""
        if steps > self.left:
            self.reached = True
            return False
        self.left -= steps
        return True


class _Matcher(SequenceMatcher[Hashable]):
    """Finds the longest blocks that are the same, and with no effort left those at the same distance from the beginning."""

    def __init__(self, one: Sequence[Hashable], other: Sequence[Hashable], effort: Effort) -> None:
        super().__init__(None, one, other, autojunk=False)
        self._pair = one, other
        self._effort = effort
        places: Mapping[Hashable, list[int]] = self.b2j  # type: ignore[attr-defined]
        self._steps = [0, *accumulate(1 + len(places.get(item, ())) for item in one)]

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        assert ahi is not None and bhi is not None
        if self._effort.spend(self._steps[ahi] - self._steps[alo]):
            return super().find_longest_match(alo, ahi, blo, bhi)
        (one, other), size = self._pair, min(ahi - alo, bhi - blo)
        first = next((at for at in range(size) if one[alo + at] == other[blo + at]), size)
        behind = next((at for at in range(first, size) if one[alo + at] != other[blo + at]), size)
        return Match(alo + first, blo + first, behind - first)


def common(one: Sequence[Hashable], other: Sequence[Hashable], effort: Effort) -> list[Pair]:
    """The places of a common subsequence, in order; the longest as a rule."""
    first = behind = 0
    least = min(len(one), len(other))
    while first < least and one[first] == other[first]:
        first += 1
    while behind < least - first and one[-1 - behind] == other[-1 - behind]:
        behind += 1
    inside = _inside(one[first : len(one) - behind], other[first : len(other) - behind], effort)
    found = [(at, at) for at in range(first)] + [(first + a, first + b) for a, b in inside]
    return found + [(len(one) - at, len(other) - at) for at in range(behind, 0, -1)]


def _inside(one: Sequence[Hashable], other: Sequence[Hashable], effort: Effort) -> list[Pair]:
    blocks = _Matcher(one, other, effort).get_matching_blocks() if one and other else []
    return [(a + at, b + at) for a, b, size in blocks for at in range(size)]


def between(pairs: Iterable[Pair], one: range, other: range) -> Iterator[tuple[range, range]]:
    """The places in front of each pair, and those behind the last, in both sequences, where there are any."""
    low, start = one.start, other.start
    for high, stop in [*pairs, (one.stop, other.stop)]:
        if low < high or start < stop:
            yield range(low, high), range(start, stop)
        low, start = high + 1, stop + 1


def aligned(one: Sequence[T], other: Sequence[T], keys: Sequence[Key[T]], effort: Effort) -> list[Pair]:
    """Pair items by the first key, then those between the pairs by the next, and so on."""
    found: list[Pair] = []
    regions = [(range(len(one)), range(len(other)))]
    for key in keys:
        left: list[tuple[range, range]] = []
        for mine, theirs in regions:
            places = common([key(one[at]) for at in mine], [key(other[at]) for at in theirs], effort)
            pairs = [(mine[a], theirs[b]) for a, b in places]
            found += pairs
            left += [gap for gap in between(pairs, mine, theirs) if all(gap)]
        regions = left
    return sorted(found)


Divided = tuple[list[tuple[H, H]], list[H], list[H]]
"""The pairs, and the items that only one of the two has."""


def divided(one: Sequence[H], other: Sequence[H], keys: Sequence[Key[H]], effort: Effort) -> Divided[H]:
    """Items by their order and keys."""
    return _divided(one, other, [(one[a], other[b]) for a, b in aligned(one, other, keys, effort)])


def alike(one: Iterable[H], other: Iterable[H], key: Key[H]) -> Divided[H]:
    """Items by one key, wherever they stand: of several alike the first ones belong together."""
    there: defaultdict[Hashable, deque[H]] = defaultdict(deque)
    for item in other:
        there[key(item)].append(item)
    pairs = []
    for item in one:
        found = there[key(item)]
        if found:
            pairs.append((item, found.popleft()))
    return _divided(one, other, pairs)


def _divided(one: Iterable[H], other: Iterable[H], pairs: list[tuple[H, H]]) -> Divided[H]:
    mine, theirs = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    return pairs, [item for item in one if item not in mine], [item for item in other if item not in theirs]


def out_of_order(places: Sequence[int]) -> list[int]:
    """The fewest indexes of distinct `places` without which the others rise."""
    if all(map(lt, places, islice(places, 1, None))):
        return []
    tails: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        rises = not tails or places[tails[-1]] < place
        low = len(tails) if rises else bisect_left(tails, place, key=places.__getitem__)
        before.append(tails[low - 1] if low else -1)
        tails[low : low + 1] = [index]
    kept: set[int] = set()
    index = tails[-1] if tails else -1
    while index >= 0:
        kept.add(index)
        index = before[index]
    return [index for index in range(len(places)) if index not in kept]
