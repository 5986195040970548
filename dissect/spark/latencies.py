"""Table `latency`: exchanges by minute, command and server, counted in columns.

A task counts its own exchanges, and what several tasks have counted is added up. Such a table of *counts* has a row for each of `KEYS`,
`reason` of requests without a response, and `bin` of latencies (`Sketch`). `high` and `low` add up to the sum of the latencies, which
may need more than 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..latency.records import Times
from ..latency.rows import QUANTILES
from ..latency.sketch import bin_of, value_of

KEYS = ("time_ns", "protocol", "name", "server")
COMMANDS = ("protocol", "name")
"""The keys of counts that a run is summed up by."""

ADDED = ("exchanges", "answered", "refused", "high", "low")
EXTREMES = {"least": "min", "greatest": "max"}

SLOWEST = 5
"""Exchanges of a part, and of a run, that are remembered as its slowest."""

SHOWN = ("src", "dst", "protocol", "name", "id", "latency_ns")
"""What is remembered of these."""

NEEDED = (*SHOWN, "time_ns", "server", "outcome", "reason")
"""The columns of exchanges that are looked at."""

MINUTE_NS = 60_000_000_000
NO_SERVER = ""
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1

BUCKETS = pa.list_(pa.struct([pa.field(name, pa.int64()) for name in ("bucket", "count")]))
REASONS = pa.map_(pa.string(), pa.int64())
TIMES = tuple(name for name in Times.__struct_fields__ if name.endswith("_ns"))

Ints = NDArray[np.int64]


def counted(exchanges: Any) -> Any:
    """The counts of exchanges, which are rows of that table."""
    times, outcome, latency = (exchanges.column(name) for name in ("time_ns", "outcome", "latency_ns"))
    ways = {way: pc.equal(outcome, way) for way in ("answered", "refused")}
    responded = pc.or_(*ways.values())
    latencies = pc.fill_null(latency, 0).to_numpy()
    found = {
        "time_ns": times.to_numpy() // MINUTE_NS * MINUTE_NS,
        "protocol": exchanges.column("protocol"),
        "name": exchanges.column("name"),
        "server": pc.fill_null(exchanges.column("server"), NO_SERVER),
        "reason": pc.if_else(responded, None, pc.coalesce(exchanges.column("reason"), outcome)),
        "bin": pa.array([None if one is None else bin_of(one) for one in latency.to_pylist()], pa.int64()),
        "exchanges": np.ones(len(times), np.int64),
        **{way: pc.cast(those, pa.int64()) for way, those in ways.items()},
        "high": latencies >> 32,
        "low": latencies & 0xFFFFFFFF,
        **dict.fromkeys(EXTREMES, latencies),
    }
    return added([pa.table(found)])


def added(counts: Sequence[Any], keys: Sequence[str] = KEYS) -> Any:
    """Several tables of counts as one, by these keys alone."""
    by, hows = (*keys, "reason", "bin"), {**dict.fromkeys(ADDED, "sum"), **EXTREMES}
    found = pa.concat_tables(counts).group_by(list(by)).aggregate(list(hows.items()))
    return pa.table({**{name: found.column(name) for name in by}, **{name: found.column(f"{name}_{how}") for name, how in hows.items()}})


def rows(counts: Any, keys: Sequence[str] = KEYS) -> Any:
    """The columns of table `latency` that counts by these keys come to."""
    counts = counts.sort_by([(name, "ascending") for name in (*keys, "bin", "reason")])
    new = np.arange(counts.num_rows) == 0
    for name in keys:
        new[1:] |= pc.not_equal(counts.column(name)[1:], counts.column(name)[:-1]).to_numpy()
    begins, group = np.flatnonzero(new), np.cumsum(new) - 1
    offsets = np.arange(len(begins) + 1)
    first = counts.take(pa.array(begins))
    lost = counts.filter(pc.is_valid(counts.column("reason")))
    of_lost = np.searchsorted(group[pc.is_valid(counts.column("reason")).to_numpy()], offsets)
    made = {name: first.column(name).combine_chunks() for name in keys}
    made |= {name: np.add.reduceat(counts.column(name).to_numpy(), begins) for name in ADDED[:3]}
    made["unanswered"] = made["exchanges"] - made["answered"] - made["refused"]
    pairs = (lost.column(name).combine_chunks() for name in ("reason", "exchanges"))
    made["reasons"] = pa.MapArray.from_arrays(pa.array(of_lost, pa.int32()), *pairs)
    made |= _times(counts, begins)
    timed = pc.is_valid(counts.column("bin")).to_numpy()
    values = pa.array([value_of(one) for one in counts.column("bin").drop_null().to_pylist()], pa.int64())
    buckets = pa.StructArray.from_arrays(
        [values, counts.column("exchanges").filter(pa.array(timed)).combine_chunks()], fields=list(BUCKETS.value_type)
    )
    made["sketch"] = pa.ListArray.from_arrays(pa.array(np.searchsorted(group[timed], offsets), pa.int32()), buckets)
    if keys == KEYS:
        made["time"] = pa.array(made["time_ns"].to_numpy() // 1000).cast(pa.timestamp("us", "UTC"))
        made["server"] = pc.if_else(pc.equal(made["server"], NO_SERVER), None, made["server"])
    return pa.table(made)


def _times(counts: Any, begins: Ints) -> dict[str, Any]:
    """Times of the groups that begin at these rows, which are sorted by bin; null where there are none."""
    timed = pc.is_valid(counts.column("bin")).to_numpy()
    many, high, low = (np.where(timed, counts.column(name).to_numpy(), 0) for name in ("exchanges", "high", "low"))
    values = np.array([0 if one is None else value_of(one) for one in counts.column("bin").to_pylist()], np.int64)
    least = np.minimum.reduceat(np.where(timed, counts.column("least").to_numpy(), GREATEST), begins)
    greatest = np.maximum.reduceat(np.where(timed, counts.column("greatest").to_numpy(), LEAST), begins)
    number = np.add.reduceat(many, begins)
    before = np.concatenate([[0], np.cumsum(many)])
    sums = zip(np.add.reduceat(high, begins).tolist(), np.add.reduceat(low, begins).tolist(), number.tolist(), strict=True)
    found: list[Any] = [[round(((above << 32) + below) / max(of, 1)) for above, below, of in sums], least]
    for share in QUANTILES:
        # As `Sketch.quantile`: the nearest rank, whose ends are known exactly
        rank = np.ceil(share * number).astype(np.int64) - 1
        at = np.searchsorted(before, before[begins] + rank, side="right") - 1
        value = np.clip(values[np.minimum(at, len(values) - 1)], least, greatest)
        found.append(np.where(rank < 1, least, np.where(rank < number - 1, value, greatest)))
    return {name: pa.array(one, pa.int64(), mask=number == 0) for name, one in zip(TIMES, [*found, greatest], strict=True)}


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
