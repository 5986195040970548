"""The values of table `latency` for a group of exchanges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..latency.groups import LatencyGroup
from ..latency.records import Times
from ..latency.rows import times_of

TIMES = tuple(name for name in Times.__struct_fields__ if name.endswith("_ns"))

FOUND: tuple[tuple[str, Any], ...] = (
    ("exchanges", pa.int64()),
    ("answered", pa.int64()),
    ("refused", pa.int64()),
    ("unanswered", pa.int64()),
    ("reasons", pa.map_(pa.string(), pa.int64())),
    *((name, pa.int64()) for name in TIMES),
    ("sketch", pa.list_(pa.struct([pa.field(name, pa.int64()) for name in ("bucket", "count")]))),
)
"""The columns of a group, after the columns that it is grouped by."""


def values_of(group: LatencyGroup) -> tuple[Any, ...]:
    """The values of a group, in the order of `FOUND`."""
    times = times_of(group.latency)
    quantiles = [None if times is None else getattr(times, name) for name in TIMES]
    return group.count, group.answered, group.refused, group.unanswered, sorted(group.reasons.items()), *quantiles, group.latency.pack()
