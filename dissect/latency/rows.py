"""What the groups come to, as plain data."""

from __future__ import annotations

from typing import Any

from ..model import PROCESS_KEYS
from ..protocols.records import rfc3339
from .groups import BY, Key, Latencies, LatencyGroup
from .records import IntervalRow, LatencyRow, Times
from .sketch import Sketch

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def times_of(sketch: Sketch | None) -> Times | None:
    """What a sketch comes to; None where it has nothing."""
    if not sketch:
        return None
    middle, p90, p95, p99, p99_9 = [sketch.quantile(share) for share in QUANTILES]
    return Times(len(sketch), round(sketch.total / len(sketch)), sketch.least, middle, p90, p95, p99, p99_9, sketch.greatest)


def rows(found: Latencies) -> list[LatencyRow]:
    """The groups, in the order of their protocols, the most frequent first."""
    ordered = sorted(found.groups.items(), key=lambda one: (str(one[0][0]), len(one[0]) == 1, -one[1].count, _sortable(one[0])))
    return [LatencyRow(**_said(found, key, group), histogram=group.latency.histogram()) for key, group in ordered]


def interval_rows(found: Latencies) -> list[IntervalRow]:
    """The groups by interval, in the order of time."""
    ordered = sorted(found.series.items(), key=lambda one: (one[0][0], _sortable(one[0][1])))
    width = found.interval_ns or 0
    return [IntervalRow(**_said(found, key, group), time=rfc3339(at), time_ns=at, interval_ns=width) for (at, key), group in ordered]


def _said(found: Latencies, key: Key, group: LatencyGroup) -> dict[str, Any]:
    known: dict[str, Any] = dict(zip(found.by, key[1:], strict=False))
    if group.ends is not None:
        known = {"client": group.ends[0], "server": group.ends[1], **known}
    return {
        "protocol": key[0],
        **{name: known.get(name) for name in BY if name in found.by or name not in PROCESS_KEYS},
        "others": len(key) == 1 and bool(found.by),
        "count": group.count,
        "answered": group.answered,
        "refused": group.refused,
        "unanswered": group.unanswered,
        "reasons": dict(sorted(group.reasons.items())),
        "latency": times_of(group.latency),
        "handler": times_of(group.handler),
        "network": times_of(group.network),
        "network_at_most": times_of(group.bound),
    }


def _sortable(key: Key) -> list[tuple[bool, int, str]]:
    return [(part is None, part if isinstance(part, int) else 0, str(part)) for part in key]
