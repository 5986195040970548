"""Sets of integers as runs of consecutive ones, so that a few characters of a file stay small in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..conversation.conversation import united

Run = tuple[int, int]
"""The first number and the last."""


def merged(runs: Iterable[Run]) -> list[Run]:
    """The runs that hold these numbers, sorted, each number once."""
    return [(first, behind - 1) for first, behind in united((first, last + 1) for first, last in runs)]


def without(one: Sequence[Run], other: Sequence[Run]) -> list[Run]:
    """The numbers of `one` that `other` lacks; both are merged."""
    left: list[Run] = []
    at = 0
    for first, last in one:
        while at < len(other) and other[at][0] <= last:
            if first < other[at][0]:
                left.append((first, other[at][0] - 1))
            first = max(first, other[at][1] + 1)
            if other[at][1] > last:
                # It may reach into what comes next
                break
            at += 1
        if first <= last:
            left.append((first, last))
    return left


def ranges(runs: Iterable[Run]) -> str:
    """`1-4, 7` for merged runs."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
