"""What of two sequences belongs together: the longest common subsequence, at a cost that is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

T = TypeVar("T")

EFFORT = 1_000_000
"""Comparisons that finding one block may cost; where everything looks alike in long sequences, places are compared one by one."""

Pair = tuple[int, int]


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """The places of a common subsequence, in order; the longest as a rule."""
    first, least = 0, min(len(one), len(other))
    while first < least and one[first] == other[first]:
        first += 1
    behind = 0
    while behind < least - first and one[-1 - behind] == other[-1 - behind]:
        behind += 1
    found = [(at, at) for at in range(first)]
    found += [(first + a, first + b) for a, b in _inside(one[first : len(one) - behind], other[first : len(other) - behind])]
    found += [(len(one) - behind + at, len(other) - behind + at) for at in range(behind)]
    return found


def _inside(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    if not one or not other:
        return []
    often = Counter(other)
    if sum(often[item] for item in one) + len(one) + len(other) > EFFORT:
        return [(at, at) for at in range(min(len(one), len(other))) if one[at] == other[at]]
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return [(a + at, b + at) for a, b, size in matcher.get_matching_blocks() for at in range(size)]


def aligned(one: Sequence[T], other: Sequence[T], keys: Sequence[Callable[[T], Hashable]]) -> list[Pair]:
    """What belongs together by the first key, then what lies between that by the next, and so on."""
    found: list[Pair] = []
    regions = [(0, len(one), 0, len(other))]
    for key in keys:
        left: list[tuple[int, int, int, int]] = []
        for low, high, start, stop in regions:
            pairs = common([key(item) for item in one[low:high]], [key(item) for item in other[start:stop]])
            pairs = [(low + a, start + b) for a, b in pairs]
            found += pairs
            before = low - 1, start - 1
            for pair in [*pairs, (high, stop)]:
                if pair[0] - before[0] > 1 and pair[1] - before[1] > 1:
                    left.append((before[0] + 1, pair[0], before[1] + 1, pair[1]))
                before = pair
        regions = left
    return sorted(found)


def out_of_order(places: Sequence[int]) -> list[int]:
    """The fewest indexes of distinct `places` without which the others rise."""
    tails: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        low = bisect_left(tails, place)
        before.append(at[low - 1] if low else -1)
        if low == len(tails):
            tails.append(place)
            at.append(index)
        else:
            tails[low] = place
            at[low] = index
    kept: set[int] = set()
    index = at[-1] if at else -1
    while index >= 0:
        kept.add(index)
        index = before[index]
    return [index for index in range(len(places)) if index not in kept]
