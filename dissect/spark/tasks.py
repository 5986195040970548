"""What tasks do: read ranges of captures, dissect the conversations that lie in them, and send the packets of all others to their part.

The plan knows the conversations of each range. Those that lie within what one task reads are *at home* there and are dissected by it;
the packets of the others go, as blocks, to the part that their `flow_id` falls into. Most captures of many short connections need no
shuffle at all then, and small ones are one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from dissect.model import Options
from dissect.spark import places
from dissect.spark.blocks import Order, Runs, Sorter
from dissect.spark.flows import IN_ORDER, SORTED_BY, dissect, in_order
from dissect.spark.rows import CARRY, CARRY_IN_ORDER, SCHEMA, SEGMENT, read
from dissect.spark.splits import Plan, Split, grouped
from dissect.spark.tables import PointOf
from dissect.spark.write import CarryFile, Target, Writer

BY_CONVERSATION, BY_TIME = Order(SORTED_BY), Order(IN_ORDER)

Block = tuple[int, bytes]
"""The part that rows go to, and the rows."""


class Work(msgspec.Struct):
    """What all tasks of one run know."""

    target: Target
    options: Options
    paths: dict[int, str]
    """Of the files, by index."""
    points: PointOf
    until: int | None = None
    """The capture time up to which all packets are there by now, None where no more will come."""
    payload: bool = True
    """Whether payload is sent along; otherwise it is read again from the files."""
    count: int = 0
    """Parts that conversations are sent to."""
    carrying: bool = False
    """More packets will come, and what they depend on across conversations is carried."""


class Source(msgspec.Struct):
    """What one task reads."""

    part: int
    """Of what is at home here."""
    splits: list[Split] = msgspec.field(default_factory=list)
    carry: list[str] = msgspec.field(default_factory=list)
    """Files with conversations that were left open by what was read before."""
    away: bytes | None = b""
    """The `flow_id` of conversations that others read too, sorted; None: all of them."""
    alone: bool = False
    """It is the only one, so it also sees to what depends on other conversations."""
    done: bool = False
    """What is at home here was dissected before."""


def sources(found: Plan, target: int, carry: Mapping[str, NDArray[np.int64]] | None = None) -> list[Source]:
    """The tasks that read these ranges, small ones together up to `target` bytes. `carry`: files with conversations that were left open,
    and their `flow_id`."""
    made = [Source(part, splits) for part, splits in enumerate(grouped(found.splits, target))]
    flows = [_flows(source) for source in made]
    if carry:
        if len(made) != 1:
            made.append(Source(len(made)))
            flows.append(np.empty(0, np.int64))
        made[-1].carry = list(carry)
        own = flows[-1]
        flows[-1] = None if own is None else np.unique(np.concatenate([own, *carry.values()]))
    if len(made) == 1:
        made[0].alone = True
    elif made:
        _part(made, flows, [source for source in made if any(split.fragments or split.sightings for split in source.splits)])
    for source in made:
        source.splits = [msgspec.structs.replace(split, flows=b"") for split in source.splits]
    return made


def _flows(source: Source) -> NDArray[np.int64] | None:
    """The conversations that a task reads, None where they are too many."""
    found = [split.flows for split in source.splits]
    if any(one is None for one in found):
        return None
    return np.unique(np.concatenate([np.frombuffer(one or b"", np.int64) for one in found]))


def _part(made: list[Source], flows: list[NDArray[np.int64] | None], dependent: list[Source]) -> None:
    """Say which conversations are at home nowhere."""
    known = [one for one in flows if one is not None]
    if len(known) < len(flows) or any(split.fragments for source in dependent for split in source.splits):
        # Whose conversation a fragment is of is known only when all are there.
        for source in made:
            source.away = None
        return
    every, times = np.unique(np.concatenate(known), return_counts=True)
    shared = [every[times > 1], *(own for source, own in zip(made, known, strict=True) if source in dependent)]
    for source, own in zip(made, known, strict=True):
        away = np.intersect1d(own, np.concatenate(shared))
        source.away = None if len(away) == len(own) > 0 else away.tobytes()


def at_home(work: Work, source: Source) -> Iterator[Block]:
    """Reads captures: gives the blocks of conversations that others read too, and dissects all others."""
    own, sent, alone = Sorter(BY_CONVERSATION), sorter(max(work.count, 1)), sorter(0)
    runs, ordered = Runs(BY_CONVERSATION), Runs(BY_TIME)
    away = None if source.away is None else np.frombuffer(source.away, np.int64)

    def keep(rows: pa.RecordBatch) -> None:
        for _, block in own.add(rows):
            runs.add(block)

    for batch in _rows(work, source):
        if source.alone:
            for _, block in alone.add(dependent(batch)):
                ordered.add(block)
        rows = simple(batch, work.payload)
        if away is None:
            if work.count:
                yield from sent.add(rows)
        elif not len(away):
            if not source.done:
                keep(rows)
        else:
            theirs = _among(away, rows.column("flow_id").to_numpy())
            if work.count:
                yield from sent.add(rows.filter(pa.array(theirs)))
            if not source.done:
                keep(rows.filter(pa.array(~theirs)))
    yield from sent.close()
    if source.done:
        return
    if source.alone:
        for _, block in alone.close():
            ordered.add(block)
        for rows in in_order(ordered.merged(), work.carrying) if ordered.any else ():
            keep(simple(rows, work.payload, every=True))
    for _, block in own.close():
        runs.add(block)
    _write(work, source.part, runs.merged())


def in_time(work: Work, source: Source) -> Iterator[bytes]:
    """Reads of captures what depends on packets of other conversations, as blocks for one task that sees all of it."""
    made = sorter(0)
    for batch in _rows(work, source, ordered=True):
        for _, block in made.add(dependent(batch)):
            yield block
    for _, block in made.close():
        yield block


def ordered(work: Work, blocks: Iterable[bytes]) -> Iterator[Block]:
    """What depends on packets of other conversations, for the parts of theirs."""
    yield from from_order(work.count, blocks, work.payload, work.carrying)


def from_order(count: int, blocks: Iterable[bytes], payload: bool = True, carrying: bool = False) -> Iterator[Block]:
    """What rows say that depend on each other across conversations, for the parts of theirs."""
    runs = Runs(BY_TIME)
    for block in blocks:
        runs.add(block)
    made = sorter(count)
    for batch in in_order(runs.merged(), carrying) if runs.any else ():
        yield from made.add(simple(batch, payload, every=True))
    yield from made.close()


def sorter(count: int) -> Sorter:
    """Makes blocks of rows: by conversation for so many parts, or (0) all of them by time."""
    return Sorter(BY_CONVERSATION, partial(_part_of, count)) if count else Sorter(BY_TIME)


def merged(blocks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of blocks by conversation, in order."""
    runs = Runs(BY_CONVERSATION)
    for block in blocks:
        runs.add(block)
    return runs.merged()


def together(work: Work, part: int, blocks: Iterable[bytes]) -> int:
    """Dissects the conversations of a part, all packets of which are in these blocks."""
    _write(work, part, merged(blocks))
    return part


def _write(work: Work, part: int, rows: Iterator[pa.RecordBatch]) -> None:
    # Of what was read and sorted before.
    pa.default_memory_pool().release_unused()
    writer = Writer(work.target, part, work.points)
    left = CarryFile(writer)
    try:
        for results in dissect(rows, work.options, work.paths, work.until):
            writer.add(results)
            left.add(results)
        left.close()
        writer.close()
    except BaseException:
        left.abandon()
        writer.abandon()
        raise


def _rows(work: Work, source: Source, ordered: bool = False) -> Iterator[pa.RecordBatch]:
    for split in source.splits:
        if not ordered or split.fragments or split.sightings:
            yield from read(split, work.payload, ordered)
    for name in source.carry:
        with places.open_input(name) as stream:
            for batch in pa.parquet.ParquetFile(pa.PythonFile(stream, "r")).iter_batches(ROWS_CARRIED):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)


ROWS_CARRIED = 256
"""Rows with open conversations that are read at once: each may be large."""


def simple(batch: pa.RecordBatch, payload: bool = True, every: bool = False) -> pa.RecordBatch:
    """The rows that are dissected as they are, with the columns that this takes. `payload`: it is in them; `every`: all of the rows."""
    kept = batch.select([name for name in batch.schema.names if name not in (UNSENT if payload else UNSENT[:-1])])
    if every:
        return kept
    kind = kept.column("kind").to_numpy()
    good = (kind == SEGMENT) | (kind == CARRY)
    return kept if good.all() else kept.filter(pa.array(good))


UNSENT = ("cooked", "digest", "place")
"""Columns that only tell packets apart, and the one for payload that is read again."""


def dependent(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that depend on packets of other conversations; of segments only what tells them apart."""
    kind = batch.column("kind").to_numpy()
    good = ~np.isin(kind, (SEGMENT, CARRY))
    digest = batch.column("digest")
    if digest.null_count < len(digest):
        good |= digest.is_valid().to_numpy(zero_copy_only=False)
    if not good.any():
        return batch.slice(0, 0)
    found = batch.filter(pa.array(good))
    at = found.schema.get_field_index("payload")
    bare = pa.array(np.isin(found.column("kind").to_numpy(), (SEGMENT,)))
    payload = pa.compute.if_else(bare, pa.scalar(None, pa.binary()), found.column("payload"))
    return found.set_column(at, found.schema.field(at), payload)


def _part_of(count: int, batch: pa.RecordBatch) -> NDArray[np.int64]:
    return np.asarray(batch.column("flow_id").to_numpy() % max(count, 1))


def _among(sorted_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these numbers are there."""
    at = np.searchsorted(sorted_ids, ids)
    at[at == len(sorted_ids)] = 0
    return np.asarray(sorted_ids[at] == ids)


def flows_carried(paths: Sequence[str]) -> tuple[dict[str, NDArray[np.int64]], bool]:
    """The `flow_id` of the conversations that files hold which were left open, and whether packets depend on what was carried across
    conversations."""
    found = {}
    depend = False
    for name in paths:
        with places.open_input(name) as stream:
            table = pa.parquet.read_table(pa.PythonFile(stream, "r"), columns=["kind", "flow_id"])
        kind = table.column("kind").to_numpy()
        found[name] = np.unique(table.column("flow_id").to_numpy()[kind == CARRY])
        depend = depend or bool((kind == CARRY_IN_ORDER).any())
    return found, depend
