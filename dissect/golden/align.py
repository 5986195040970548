"""What of two sequences belongs together: the longest common subsequence, at a cost that is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

EFFORT = 1_000_000
"""Comparisons that finding one block may cost; where everything looks alike in long sequences, places are compared one by one."""

Pair = tuple[int, int]
Key = Callable[[T], Hashable]


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """The places of a common subsequence, in order; the longest as a rule."""
    first = behind = 0
    least = min(len(one), len(other))
    while first < least and one[first] == other[first]:
        first += 1
    while behind < least - first and one[-1 - behind] == other[-1 - behind]:
        behind += 1
    inside = _inside(one[first : len(one) - behind], other[first : len(other) - behind])
    found = [(at, at) for at in range(first)] + [(first + a, first + b) for a, b in inside]
    return found + [(len(one) - at, len(other) - at) for at in range(behind, 0, -1)]


def _inside(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    often = Counter(other)
    if sum(often[item] for item in one) + len(one) + len(other) > EFFORT:
        return [(at, at) for at in range(min(len(one), len(other))) if one[at] == other[at]]
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return [(a + at, b + at) for a, b, size in matcher.get_matching_blocks() for at in range(size)]


def between(pairs: Iterable[Pair], one: range, other: range) -> Iterator[tuple[range, range]]:
    """The places in front of each pair, and those behind the last, in both sequences."""
    low, start = one.start, other.start
    for high, stop in [*pairs, (one.stop, other.stop)]:
        yield range(low, high), range(start, stop)
        low, start = high + 1, stop + 1


def aligned(one: Sequence[T], other: Sequence[T], keys: Sequence[Key[T]]) -> list[Pair]:
    """What belongs together by the first key, then what lies between that by the next, and so on."""
    found: list[Pair] = []
    regions = [(range(len(one)), range(len(other)))]
    for key in keys:
        left: list[tuple[range, range]] = []
        for mine, theirs in regions:
            places = common([key(one[at]) for at in mine], [key(other[at]) for at in theirs])
            pairs = [(mine[a], theirs[b]) for a, b in places]
            found += pairs
            left += [gap for gap in between(pairs, mine, theirs) if all(gap)]
        regions = left
    return sorted(found)


Divided = tuple[list[tuple[H, H]], list[H], list[H]]
"""What belongs together, and what only the one and only the other has."""


def divided(one: Sequence[H], other: Sequence[H], keys: Sequence[Key[H]]) -> Divided[H]:
    """Items by their order and keys."""
    return _divided(one, other, [(one[a], other[b]) for a, b in aligned(one, other, keys)])


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
    tails: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        low = bisect_left(tails, place, key=places.__getitem__)
        before.append(tails[low - 1] if low else -1)
        tails[low : low + 1] = [index]
    kept: set[int] = set()
    index = tails[-1] if tails else -1
    while index >= 0:
        kept.add(index)
        index = before[index]
    return [index for index in range(len(places)) if index not in kept]
