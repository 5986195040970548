"""Table `latency`: exchanges by minute, command and server, counted in columns.

A task counts its own exchanges, and what several tasks have counted is added up. Such a table of *counts* has `KEYS` and

- a row for each way in which requests ended (`how`: `answered`, `refused`, or why there is no response), with `bin` null;
- a row for each bin of their latencies, of which there are so many as `Sketch` has, with `how` null.

`high` and `low` add up to the sum of the latencies, which may need more than 64 bits.
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
SUMS = (("count", "sum"), ("high", "sum"), ("low", "sum"), ("least", "min"), ("greatest", "max"))
NO_SERVER = ""

COMMANDS = ("protocol", "name")
"""The keys of counts that a run is summed up by."""

SLOWEST = 5
"""Exchanges of a part, and of a run, that are remembered as its slowest."""

SHOWN = ("src", "dst", "protocol", "name", "id", "latency_ns")
"""What is remembered of these."""

NEEDED = (*SHOWN, "time_ns", "server", "outcome", "reason")
"""The columns of exchanges that are looked at."""

MINUTE_NS = 60_000_000_000

BUCKETS = pa.list_(pa.struct([pa.field(name, pa.int64()) for name in ("bucket", "count")]))
REASONS = pa.map_(pa.string(), pa.int64())
TIMES = tuple(name for name in Times.__struct_fields__ if name.endswith("_ns"))

Ints = NDArray[np.int64]


def counted(exchanges: Any) -> Any:
    """The counts of exchanges, which are rows of that table."""
    ended, times, latency = exchanges.column("outcome"), exchanges.column("time_ns").to_numpy(), exchanges.column("latency_ns")
    responded = pc.is_in(ended, pa.array(["answered", "refused"]))
    how = pc.if_else(responded, ended, pc.coalesce(exchanges.column("reason"), ended))
    keys = {
        "time_ns": pa.array(times // MINUTE_NS * MINUTE_NS),
        "protocol": exchanges.column("protocol"),
        "name": exchanges.column("name"),
        "server": pc.fill_null(exchanges.column("server"), NO_SERVER),
    }
    zeros = np.zeros(len(times), np.int64)
    ways = pa.table({**keys, "how": how, "bin": pa.nulls(len(times), pa.int64()), "latency": zeros})
    timed = pa.table({**keys, "how": pa.nulls(len(times), pa.string()), "latency": latency}).filter(pc.is_valid(latency))
    bins = pa.array(list(map(bin_of, timed.column("latency").to_pylist())), pa.int64())
    every = pa.concat_tables([ways, timed.add_column(timed.schema.get_field_index("latency"), "bin", bins)])
    latencies = every.column("latency").to_numpy()
    sums = (np.ones(len(latencies), np.int64), latencies >> 32, latencies & 0xFFFFFFFF, latencies, latencies)
    for (name, _), values in zip(SUMS, sums, strict=True):
        every = every.append_column(name, pa.array(values))
    return added([every])


def added(counts: Sequence[Any], keys: Sequence[str] = KEYS) -> Any:
    """Several tables of counts as one, by these keys alone."""
    by = [*keys, "how", "bin"]
    found = pa.concat_tables(counts).group_by(by).aggregate(list(SUMS))
    return found.select([*by, *(f"{name}_{how}" for name, how in SUMS)]).rename_columns([*by, *(name for name, _ in SUMS)])


def rows(counts: Any, keys: Sequence[str] = KEYS) -> Any:
    """The columns of table `latency` that counts by these keys come to, in no order."""
    counts = counts.sort_by([(name, "ascending") for name in (*keys, "bin", "how")])
    begins, group = _groups(counts, keys)
    count, bins = counts.column("count").to_numpy(), counts.column("bin")
    how = counts.column("how").to_pylist()
    ways = {one: np.add.reduceat(np.where([way == one for way in how], count, 0), begins) for one in ("answered", "refused")}
    timed = pc.is_valid(bins).to_numpy()
    every = np.add.reduceat(np.where(timed, 0, count), begins)
    first = counts.take(pa.array(begins))
    missing = np.flatnonzero(~timed & np.array([way not in ways for way in how], bool))
    reasons = pa.array([how[at] for at in missing], pa.string()), pa.array(count[missing])
    made = {name: first.column(name).combine_chunks() for name in keys} | {
        "exchanges": every,
        **ways,
        "unanswered": every - ways["answered"] - ways["refused"],
        "reasons": pa.MapArray.from_arrays(_offsets(group[missing], len(begins)), *reasons),
        **_times(counts.filter(pa.array(timed)), group[timed], len(begins)),
    }
    if keys == KEYS:
        made["time"] = pa.array(made["time_ns"].to_numpy() // 1000).cast(pa.timestamp("us", "UTC"))
        made["server"] = pc.if_else(pc.equal(made["server"], NO_SERVER), None, made["server"])
    return pa.table(made)


def by_command(counts: Sequence[Any]) -> list[dict[str, Any]]:
    """The columns of each command, from counts by `COMMANDS`."""
    return rows(added(counts, COMMANDS), COMMANDS).to_pylist() if counts else []


def _groups(counts: Any, keys: Sequence[str]) -> tuple[Ints, Ints]:
    """Where the rows of each group begin, and the number of the group of each row."""
    new = np.zeros(counts.num_rows, bool)
    new[:1] = True
    for name in keys:
        column = counts.column(name)
        new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    return np.flatnonzero(new), np.cumsum(new) - 1


def _offsets(group: Ints, groups: int) -> Any:
    """Where the lists of each group begin and end whose items are in these groups."""
    return pa.array(np.searchsorted(group, np.arange(groups + 1)), pa.int32())


def _times(bins: Any, group: Ints, groups: int) -> dict[str, Any]:
    """Times of groups, null where there are none; from rows with bins, sorted by group and bin."""
    counts = bins.column("count").to_numpy()
    values = np.array([value_of(one) for one in bins.column("bin").to_pylist()], np.int64)
    offsets = _offsets(group, groups)
    ends = np.asarray(offsets)
    before = np.concatenate([[0], np.cumsum(counts)])
    many = before[ends[1:]] - before[ends[:-1]]
    some = np.flatnonzero(many)
    begins = ends[:-1][some]
    high, low, least, greatest = (
        how.reduceat(bins.column(name).to_numpy(), begins) if len(begins) else np.zeros(0, np.int64)
        for name, how in (("high", np.add), ("low", np.add), ("least", np.minimum), ("greatest", np.maximum))
    )
    number = many[some]
    found = {
        "mean_ns": [
            round(((above << 32) + below) / of) for above, below, of in zip(high.tolist(), low.tolist(), number.tolist(), strict=True)
        ],
        "min_ns": least,
    }
    for name, share in zip(TIMES[2:-1], QUANTILES, strict=True):
        # As `Sketch.quantile`: the nearest rank, whose ends are known exactly
        rank = np.ceil(share * number).astype(np.int64) - 1
        at = np.searchsorted(before, before[begins] + rank, side="right") - 1
        value = np.clip(values[at], least, greatest)
        found[name] = np.where(rank < 1, least, np.where(rank < number - 1, value, greatest))
    found["max_ns"] = greatest
    place = np.full(groups, -1)
    place[some] = np.arange(len(some))
    taken = pa.array(place, mask=place < 0)
    pairs = pa.StructArray.from_arrays([pa.array(values), pa.array(counts)], fields=list(BUCKETS.value_type))
    return {
        **{name: pa.array(one, pa.int64()).take(taken) for name, one in found.items()},
        "sketch": pa.ListArray.from_arrays(offsets, pairs),
    }


def slowest_of(exchanges: Any) -> list[dict[str, Any]]:
    """The slowest of exchanges that are rows of that table."""
    timed = exchanges.select(SHOWN).filter(pc.is_valid(exchanges.column("latency_ns")))
    order = [("latency_ns", "descending")]
    found: list[dict[str, Any]] = timed.take(pc.select_k_unstable(timed, SLOWEST, order)).to_pylist()
    return found


def slowest(some: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The slowest of these, the slowest first."""
    return nlargest(SLOWEST, some, key=lambda one: int(one["latency_ns"]))
