"""How long requests took: groups of exchanges, their quantiles, the slowest, and how that changed over time."""

from __future__ import annotations

from dissect.latency.groups import BY, GROUPS, Group, Latencies, Slow
from dissect.latency.rows import IntervalRow, LatencyRow, SlowRow, Times, interval_rows, rows, slow_rows, times_of
from dissect.latency.sketch import ACCURACY, BOUNDS, Bucket, Sketch

__all__ = [
    "ACCURACY",
    "BOUNDS",
    "BY",
    "GROUPS",
    "Bucket",
    "Group",
    "IntervalRow",
    "Latencies",
    "LatencyRow",
    "Sketch",
    "Slow",
    "SlowRow",
    "Times",
    "interval_rows",
    "rows",
    "slow_rows",
    "times_of",
]
