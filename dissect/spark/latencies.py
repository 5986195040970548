"""Table `latency`: exchanges by minute, command and server, counted in columns.

A task counts its own exchanges, and what several tasks have counted is added up. Such a table of *counts* has a row for each of `KEYS`,
`reason` of requests without a response, and `bucket` of latencies (`Sketch.bins`). `total` is the sum of the latencies, which may need more
than 64 bits, `least` and `greatest` are the ends of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..latency.records import Times
from ..latency.rows import QUANTILES
from ..latency.sketch import bin_of, value_of

KEYS = ("time_ns", "protocol", "name", "server")
COMMANDS = ("protocol", "name")
"""The keys of counts that a run is summed up by."""

HOWS = {"exchanges": "sum", "answered": "sum", "refused": "sum", "total": "sum", "least": "min", "greatest": "max"}
"""How counts are added up."""

SLOWEST = 5
"""Exchanges of a part, and of a run, that are remembered as its slowest."""

SHOWN = ("src", "dst", "protocol", "name", "id", "latency_ns")
"""What is remembered of these."""

NEEDED = (*SHOWN, "time_ns", "server", "outcome", "reason")
"""The columns of exchanges that are looked at."""

MINUTE_NS = 60_000_000_000
NO_SERVER = ""

BUCKETS = pa.list_(pa.struct([pa.field(name, pa.int64()) for name in ("bucket", "count")]))
REASONS = pa.map_(pa.string(), pa.int64())
TIMES = tuple(name for name in Times.__struct_fields__ if name.endswith("_ns"))


def counted(exchanges: Any) -> Any:
    """The counts of exchanges, which are rows of that table."""
    times, outcome, latency = (exchanges.column(name) for name in ("time_ns", "outcome", "latency_ns"))
    ways = {way: pc.equal(outcome, way) for way in ("answered", "refused")}
    responded = pc.or_(*ways.values())
    found = {
        "time_ns": times.to_numpy() // MINUTE_NS * MINUTE_NS,
        "protocol": exchanges.column("protocol"),
        "name": exchanges.column("name"),
        "server": pc.fill_null(exchanges.column("server"), NO_SERVER),
        "reason": pc.if_else(responded, None, pc.coalesce(exchanges.column("reason"), outcome)),
        "bucket": pa.array([None if one is None else value_of(bin_of(one)) for one in latency.to_pylist()], pa.int64()),
        "exchanges": np.ones(len(times), np.int64),
        **{way: pc.cast(those, pa.int64()) for way, those in ways.items()},
        "total": pc.fill_null(latency, 0).cast(pa.decimal128(38)),
        **dict.fromkeys(("least", "greatest"), latency),
    }
    return added([pa.table(found)])


def added(counts: Sequence[Any], keys: Sequence[str] = KEYS) -> Any:
    """Several tables of counts as one, by these keys alone."""
    by = [*keys, "reason", "bucket"]
    found = pa.concat_tables(counts).group_by(by).aggregate(list(HOWS.items()))
    return pa.table({name: found.column(name) for name in by} | {name: found.column(f"{name}_{how}") for name, how in HOWS.items()})


def rows(counts: Any, keys: Sequence[str] = KEYS) -> Any:
    """The columns of table `latency` that counts by these keys come to."""
    order = [(name, "ascending") for name in (*keys, "bucket", "reason")]
    counts = counts.sort_by(order)
    sizes = [("reason", "count"), ("bucket", "count")]
    groups = counts.group_by(list(keys)).aggregate([*HOWS.items(), *sizes]).sort_by(order[: len(keys)])
    made = {name: groups.column(name).combine_chunks() for name in keys}
    made |= {name: groups.column(f"{name}_sum") for name in ("exchanges", "answered", "refused")}
    made["unanswered"] = pc.subtract(pc.subtract(made["exchanges"], made["answered"]), made["refused"])
    lost, ends = _of_groups(counts, "reason", groups)
    made["reasons"] = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), *lost)
    buckets, ends = _of_groups(counts, "bucket", groups)
    sketches = pa.StructArray.from_arrays(buckets, fields=list(BUCKETS.value_type))
    made["sketch"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), sketches)
    values, many = (one.to_numpy() for one in buckets)
    before = np.cumsum([0, *many])
    number = np.diff(before[ends])
    least, greatest = (pc.fill_null(groups.column(name), 0).to_numpy() for name in ("least_min", "greatest_max"))
    sums = zip(groups.column("total_sum").to_pylist(), number.tolist(), strict=True)
    times: list[Any] = [[round(int(total) / max(of, 1)) for total, of in sums], least]
    for share in QUANTILES:
        # As `Sketch.quantile`: the nearest rank, whose ends are known exactly
        rank = np.ceil(share * number).astype(np.int64) - 1
        at = np.searchsorted(before, before[ends[:-1]] + rank, side="right") - 1
        value = np.clip(np.append(values, 0)[at], least, greatest)
        times.append(np.where(rank < 1, least, np.where(rank < number - 1, value, greatest)))
    made |= {name: pa.array(one, pa.int64(), mask=number == 0) for name, one in zip(TIMES, [*times, greatest], strict=True)}
    if keys == KEYS:
        made["time"] = pa.array(made["time_ns"].to_numpy() // 1000).cast(pa.timestamp("us", "UTC"))
        made["server"] = pc.if_else(pc.equal(made["server"], NO_SERVER), None, made["server"])
    return pa.table(made)


def _of_groups(counts: Any, kind: str, groups: Any) -> tuple[list[Any], Any]:
    """Return the values of a column of sorted counts that are not null, with their exchanges, and where those of each group end."""
    some = counts.filter(pc.is_valid(counts.column(kind)))
    ends = np.cumsum([0, *groups.column(f"{kind}_count").to_numpy()])
    return [some.column(name).combine_chunks() for name in (kind, "exchanges")], ends


def by_command(counts: Sequence[Any]) -> list[dict[str, Any]]:
    """The columns of each command, from counts by `COMMANDS`."""
    return rows(added(counts, COMMANDS), COMMANDS).to_pylist() if counts else []


def slowest_of(exchanges: Any) -> list[dict[str, Any]]:
    """The slowest of exchanges that are rows of that table."""
    timed = exchanges.select(SHOWN).filter(pc.is_valid(exchanges.column("latency_ns")))
    order = [("latency_ns", "descending")]
    found: list[dict[str, Any]] = timed.take(pc.select_k_unstable(timed, SLOWEST, order)).to_pylist()
    return found


def slowest(some: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The slowest of these, the slowest first."""
    return nlargest(SLOWEST, some, key=lambda one: int(one["latency_ns"]))
