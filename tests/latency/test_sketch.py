"""The sketch of latencies against exact quantiles, merged in any order."""

from __future__ import annotations

import math
import random
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamdump.latency import sketch
from streamdump.latency.groups import LatencyGroup
from streamdump.latency.rows import times_of
from streamdump.latency.sketch import Sketch

SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
LATENCIES = st.one_of(
    st.integers(-(1 << 64), 1 << 64), st.integers(-3, 3), st.integers(0, 10_000_000), st.sampled_from([10**power for power in range(19)])
)


def exact(values: list[int], share: float) -> int:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def check(sketch: Sketch, values: list[int]) -> None:
    assert len(sketch) == len(values)
    assert (sketch.least, sketch.greatest, sketch.total) == (min(values), max(values), sum(values))
    for share in SHARES:
        wanted = exact(values, share)
        assert abs(sketch.quantile(share) - wanted) <= max(0.01 * abs(wanted), 0.5), share
    assert sum(bucket.count for bucket in sketch.histogram()) == len(values)


@given(st.lists(LATENCIES, min_size=1, max_size=80), st.lists(st.integers(0, 4), min_size=80, max_size=80), st.permutations(range(5)))
def test_parts_in_any_order_come_to_the_same(values: list[int], parts: list[int], order: list[int]) -> None:
    sketches = [Sketch(value for value, part in zip(values, parts, strict=False) if part == wanted) for wanted in range(5)]
    merged = Sketch()
    for index in order:
        one = sketches[index]
        merged.merge(Sketch.unpack(one.pack(), one.least, one.greatest, one.total) if index % 2 else one)
    whole = Sketch(values)
    assert merged.pack() == whole.pack()
    check(merged, values)
    rows = [{"bucket": bucket, "count": count} for bucket, count in merged.pack()]
    alone = Sketch.unpack(rows)
    assert alone.pack() == merged.pack()
    for share in SHARES:
        assert abs(alone.quantile(share) - merged.quantile(share)) <= max(0.01 * abs(merged.quantile(share)), 0.5)


EXCHANGES = st.tuples(
    st.sampled_from(["answered", "refused", "unanswered", "superseded"]),
    st.sampled_from(["closed", "timeout", None]),
    LATENCIES,
    st.none() | st.integers(0, 10_000_000),
    st.none() | st.integers(0, 10_000_000),
)


@given(st.lists(st.tuples(EXCHANGES, st.integers(0, 3)), max_size=40), st.permutations(range(4)))
def test_groups_merge_to_what_counting_everything_comes_to(exchanges: list[tuple[Any, int]], order: list[int]) -> None:
    parts, whole = [LatencyGroup() for _ in range(4)], LatencyGroup()
    for (outcome, reason, latency_ns, handler_ns, bound_ns), part in exchanges:
        there = outcome in ("answered", "refused")
        for group in (parts[part], whole):
            group.note(outcome, None if there else reason, latency_ns if there else None, handler_ns if there else None, bound_ns)
    merged = LatencyGroup()
    for index in order:
        merged.merge(parts[index])
    assert (merged.answered, merged.refused, merged.reasons, merged.count) == (
        whole.answered,
        whole.refused,
        whole.reasons,
        len(exchanges),
    )
    for mine, all_of_it in (
        (merged.latency, whole.latency),
        (merged.handler, whole.handler),
        (merged.network, whole.network),
        (merged.bound, whole.bound),
    ):
        assert [one if one is None else one.pack() for one in (mine, all_of_it)] == [
            all_of_it if all_of_it is None else all_of_it.pack()
        ] * 2


def test_many_values_of_every_size_stay_exact_enough_in_little_memory() -> None:
    chance = random.Random(7)
    values = [round(chance.lognormvariate(13, 3)) * chance.choice((1, 1, 1, -1)) for _ in range(50_000)] + [0] * 77
    check(Sketch(values), values)
    assert len(Sketch(values).pack()) < 2_500
    everything = Sketch(sign << power for sign in (-1, 1) for power in range(64))
    assert len([*everything.bins()]) <= 128
    assert sys.getsizeof(everything._bins) < 100_000


def test_an_empty_sketch_says_nothing() -> None:
    assert times_of(Sketch()) is None
    assert times_of(None) is None
    assert Sketch().histogram() == []
    assert Sketch().pack() == []
    assert len(Sketch.unpack([])) == 0


def test_every_bucket_is_in_its_own_bin() -> None:
    key, value = sketch._MAPPING.key, sketch._MAPPING.value
    numbers = {key(one) for one in range(1, 2_000)} | {*range(key(2_000), key(1 << 66))}
    assert len(numbers) > 2_000
    assert all(key(max(1, round(value(number)))) == number for number in numbers)


def test_a_histogram_has_its_values_between_its_bounds() -> None:
    buckets = Sketch([0, 150, 160, 3_000, -70]).histogram()
    assert [(one.low, one.high, one.count) for one in buckets if one.count] == [
        (-100, -50, 1),
        (-1, 1, 1),
        (100, 200, 2),
        (2_000, 5_000, 1),
    ]
