"""Latencies of a table of exchanges: counted where its rows are, merged by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from ..latency.groups import LatencyGroup
from ..latency.records import Times
from ..latency.rows import times_of

NEEDED = ("outcome", "reason", "latency_ns")

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
"""What is told of a group, behind what it is grouped by."""


def table(exchanges: Any, by: Sequence[str]) -> Any:
    """A row for each group of exchanges."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    whole = to_arrow_schema(exchanges.select(*by).schema)
    parts = pa.schema([*whole, pa.field("part", pa.binary())])
    found = pa.schema([*whole, *(pa.field(name, kind) for name, kind in FOUND)])
    # What is grouped by may be one of those that are needed
    needed = [exchanges[name].alias(f"exchange_{name}") for name in NEEDED]
    counted = exchanges.select(*by, *needed).mapInArrow(partial(_counted, parts), from_arrow_schema(parts))
    return counted.repartition(*by).mapInArrow(partial(_merged, found), from_arrow_schema(found))


def _counted(schema: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """The groups of some exchanges, each as a part that can be merged."""
    groups: dict[tuple[Any, ...], LatencyGroup] = {}
    for batch in batches:
        columns = [batch.column(index).to_pylist() for index in range(batch.num_columns)]
        for *key, outcome, reason, latency_ns in zip(*columns, strict=True):
            group = groups.get(tuple(key))
            if group is None:
                group = groups[tuple(key)] = LatencyGroup()
            group.note(outcome, reason, latency_ns, None)
    yield _batch([(*key, group.pack()) for key, group in groups.items()], schema)


def _merged(schema: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """The groups whose parts come together here."""
    groups: dict[tuple[Any, ...], LatencyGroup] = {}
    for batch in batches:
        for *key, part in zip(*(batch.column(index).to_pylist() for index in range(batch.num_columns)), strict=True):
            groups.setdefault(tuple(key), LatencyGroup()).merge(LatencyGroup.unpack(part))
    yield _batch([(*name, *told(group)) for name, group in groups.items()], schema)


def told(group: LatencyGroup) -> tuple[Any, ...]:
    """What is told of a group, as `FOUND` says."""
    times = times_of(group.latency)
    quantiles = [None if times is None else getattr(times, name) for name in TIMES]
    return group.count, group.answered, group.refused, group.unanswered, sorted(group.reasons.items()), *quantiles, group.latency.pack()


def _batch(rows: Sequence[tuple[Any, ...]], schema: Any) -> Any:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
