"""What tasks do: read ranges of captures, dissect the conversations that lie in them, and send the packets of all others to their part.

The plan knows the conversations of each range. Those that lie within what one task reads are *at home* there and are dissected by it;
the packets of the others go, as blocks, to the part that their `flow_id` falls into. Most captures of many short connections need no
shuffle at all then, and small ones are one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from streamdump.capture.link import LinkParser, network_key
from streamdump.model import Options, Segment
from streamdump.spark import storage
from streamdump.spark.blocks import Runs, Sorter, SortOrder
from streamdump.spark.flows import IN_ORDER, SORTED_BY, Dissection, TaskResults, dissect, in_order
from streamdump.spark.keys import key_of
from streamdump.spark.rows import CARRY, CARRY_IN_ORDER, SCHEMA, SEGMENT, Home, Row, batch_of, merged_segments, parsed, read, row_of
from streamdump.spark.splits import Plan, Split, grouped
from streamdump.spark.tables import PointOf
from streamdump.spark.write import CarryFile, PartWriter, Target

BY_CONVERSATION, BY_TIME = SortOrder(SORTED_BY), SortOrder(IN_ORDER)

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
    count: int = 0
    """Parts that conversations are sent to."""
    carrying: bool = False
    """More packets will come, and what they depend on across conversations is carried."""


class TaskInput(msgspec.Struct):
    """What one task reads."""

    part: int
    """Of what is at home here."""
    splits: list[Split] = msgspec.field(default_factory=list)
    carry: list[str] = msgspec.field(default_factory=list)
    """Files with conversations that were left open by what was read before."""
    home: bytes | None = None
    """The `flow_id` of the conversations that are dissected here, sorted; None: all of them."""
    alone: bool = False
    """It is the only one, so it also sees to what depends on other conversations."""
    done: bool = False
    """What is at home here was dissected before."""


def sources(
    found: Plan, target: int, carry: Mapping[str, NDArray[np.int64]] | None = None, readers: int = 0, *, forced: bool = False
) -> tuple[list[TaskInput], bool]:
    """The tasks that read these ranges, small ones together up to `target` bytes; and whether they send anything.

    `carry`: files with conversations that were left open, and their `flow_id`; `readers`: so many tasks may read what others read too,
    where that costs less than to send it to them, or in any case (`forced`).
    """
    made = [TaskInput(part, splits) for part, splits in enumerate(grouped(found.splits, target))]
    flows = [_flows(source) for source in made]
    if carry:
        if len(made) != 1:
            made.append(TaskInput(len(made)))
            flows.append(np.empty(0, np.int64))
        made[-1].carry = list(carry)
        own = flows[-1]
        flows[-1] = None if own is None else np.unique(np.concatenate([own, *carry.values()]))
    sending = False
    if len(made) == 1:
        made[0].alone = True
    elif made:
        known = [own for own in flows if own is not None]
        dependent = [source for source in made if any(split.fragments or split.sightings for split in source.splits)]
        if len(known) < len(flows) or any(split.fragments for source in dependent for split in source.splits):
            # Whose conversation a fragment is of is known only when all are there.
            again: list[TaskInput] = []
            for source in made:
                source.home = b""
        else:
            _part(made, known, dependent)
            again = _again(made, known, readers, forced=forced)
            made = again or made
        sending = not again and any(source.home is not None for source in made)
    for source in made:
        source.splits = [msgspec.structs.replace(split, flows=b"") for split in source.splits]
    return made, sending


def alone(found: Plan, target: int) -> list[TaskInput]:
    """Tasks that read these ranges and need no others: each conversation is dissected by one that reads all of it. Where packets depend
    on each other across conversations, or these are too many to be told apart, one task reads all."""
    made, sending = sources(found, target, None, len(found.splits), forced=True)
    if not sending and not (found.dependent and len(made) > 1):
        return made
    return [TaskInput(0, [msgspec.structs.replace(split, flows=b"") for split in found.splits], alone=True)]


def dissected(source: TaskInput, options: Options) -> Iterator[TaskResults]:
    """What a task that needs no others says."""
    home = None if source.home is None else frozenset(_ids(source.home).tolist())
    several = len({split.file for split in source.splits}) > 1
    straight = Dissection(options, several)
    if source.splits:
        yield from straight.take(merged_segments(source.splits, home, stateless=not source.alone))
    yield from straight.end()


def _flows(source: TaskInput) -> NDArray[np.int64] | None:
    """The conversations that a task reads, None where they are too many."""
    found = [split.flows for split in source.splits]
    if any(one is None for one in found):
        return None
    return np.unique(np.concatenate([np.frombuffer(one or b"", np.int64) for one in found]))


def _part(made: list[TaskInput], flows: list[NDArray[np.int64]], dependent: list[TaskInput]) -> None:
    """Say which conversations are at home nowhere."""
    every, times = np.unique(np.concatenate(flows), return_counts=True)
    shared = np.concatenate([every[times > 1], *(own for source, own in zip(made, flows, strict=True) if source in dependent)])
    for source, own in zip(made, flows, strict=True):
        home = np.setdiff1d(own, shared, assume_unique=True)
        source.home = None if len(home) == len(own) else home.tobytes()


FILES = 16
"""So many files are merged as they are read, all of them open; of more, packets are sorted."""

SENDING = 4
"""Sending a byte to the part of its conversation costs about as much as reading so many: sorting it, and Spark's handling of it."""


def _again(made: list[TaskInput], flows: list[NDArray[np.int64]], readers: int, *, forced: bool = False) -> list[TaskInput]:
    """The tasks if conversations that several of them read are at home in tasks of their own, which read all those ranges again; none
    where sending costs less and this is not `forced`."""
    away = [own[:0] if one.home is None else np.setdiff1d(own, _ids(one.home), True) for one, own in zip(made, flows, strict=True)]
    sizes = [sum(split.size for split in source.splits) for source in made]
    sent = sum(size * len(theirs) / max(len(own), 1) for size, theirs, own in zip(sizes, away, flows, strict=True))
    every = np.unique(np.concatenate(away))
    found: list[TaskInput] = []
    for at in range(min(readers, len(every))):
        mine = every[at::readers]
        whose = [place for place, theirs in enumerate(away) if np.isin(theirs, mine).any()]
        found.append(TaskInput(0, [split for place in whose for split in made[place].splits], home=mine.tobytes()))
        sent -= sum(sizes[place] for place in whose) / SENDING
    costly = sent < 0 or len({split.file for source in made for split in source.splits}) > FILES
    if not found or (costly and not forced):
        return []
    found += [source for source in made if source.home != b""]
    for part, source in enumerate(found):
        source.part = part
    return found


def at_home(work: Work, source: TaskInput) -> Iterator[Block]:
    """Reads captures: gives the blocks of conversations that others read too, and dissects all others."""
    files = len({split.file for split in source.splits})
    depends = any(split.fragments or split.sightings for split in source.splits)
    sent = sorter(max(work.count, 1))
    home = None if source.home is None else frozenset(_ids(source.home).tolist())
    if source.carry or work.until is not None or depends or files > FILES:
        yield from _in_order(work, source, home, sent)
    elif home is None or not work.count:
        if not source.done:
            _write(work, source.part, _dissected(work, merged_segments(source.splits, home)))
    elif source.home and not source.done and files == 1:
        yield from _at_once(work, source, home, sent)
    else:
        yield from _in_order(work, source, home, sent)


def _dissected(work: Work, segments: Iterable[Segment]) -> Iterator[TaskResults]:
    straight = Dissection(work.options, len(work.paths) > 1)
    yield from straight.take(segments)
    yield from straight.end()


def _at_once(work: Work, source: TaskInput, home: Home, sent: Sorter) -> Iterator[Block]:
    """The ranges of one file: what is at home is dissected as it is read."""
    straight = Dissection(work.options, several=False)
    parser = LinkParser(stateless=True)
    with _writing(work, source.part) as put:
        for split in source.splits:
            network = network_key(split.network)
            for packets, base, latest_ns in parsed(split):
                mine: list[Segment] = []
                others: list[Row] = []
                for packet, latest in zip(packets, latest_ns, strict=True):
                    segment = parser.segment(packet, 0)
                    if segment is None:
                        continue
                    if key_of(segment.ends + network)[0] not in home:
                        others += row_of(parser, packet, segment, split, base, latest)
                        continue
                    segment.ends += network
                    segment.file = split.file
                    mine.append(segment)
                put(straight.take(mine))
                if others:
                    yield from sent.add(simple(batch_of(others)))
        put(straight.end())
        yield from sent.close()


def _in_order(work: Work, source: TaskInput, home: Home | None, sent: Sorter) -> Iterator[Block]:
    """What is at home is dissected in the order of its conversations, with what was carried of them."""
    own, alone = Sorter(BY_CONVERSATION), sorter(0)
    runs, ordered = Runs(BY_CONVERSATION), Runs(BY_TIME)

    def keep(rows: pa.RecordBatch) -> None:
        for _, block in own.add(rows):
            runs.add(block)

    for batch in _rows(work, source):
        if source.alone:
            for _, block in alone.add(dependent(batch)):
                ordered.add(block)
        rows = simple(batch)
        if home is not None:
            here = np.array([one in home for one in rows.column("flow_id").to_pylist()], np.bool_)
            if work.count:
                yield from sent.add(rows.filter(pa.array(~here)) if here.any() else rows)
            rows = rows.filter(pa.array(here))
        if not source.done:
            keep(rows)
    yield from sent.close()
    if source.done:
        return
    if source.alone:
        for _, block in alone.close():
            ordered.add(block)
        for rows in in_order(ordered.merged(), work.carrying) if ordered.any else ():
            keep(simple(rows, every=True))
    for _, block in own.close():
        runs.add(block)
    _write(work, source.part, dissect(runs.merged(), work.options, len(work.paths) > 1, work.until))


def in_time(work: Work, source: TaskInput) -> Iterator[bytes]:
    """Reads of captures what depends on packets of other conversations, as blocks for one task that sees all of it."""
    made = sorter(0)
    for batch in _rows(work, source, ordered=True):
        for _, block in made.add(dependent(batch)):
            yield block
    for _, block in made.close():
        yield block


def ordered(work: Work, blocks: Iterable[bytes]) -> Iterator[Block]:
    """What depends on packets of other conversations, for the parts of theirs."""
    yield from from_order(work.count, blocks, work.carrying)


def from_order(count: int, blocks: Iterable[bytes], carrying: bool = False) -> Iterator[Block]:
    """What rows say that depend on each other across conversations, for the parts of theirs."""
    runs = Runs(BY_TIME)
    for block in blocks:
        runs.add(block)
    made = sorter(count)
    for batch in in_order(runs.merged(), carrying) if runs.any else ():
        yield from made.add(simple(batch, every=True))
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
    _write(work, part, dissect(merged(blocks), work.options, len(work.paths) > 1, work.until))
    return part


def _write(work: Work, part: int, results: Iterable[TaskResults]) -> None:
    with _writing(work, part) as put:
        put(results)


@contextmanager
def _writing(work: Work, part: int) -> Iterator[Callable[[Iterable[TaskResults]], None]]:
    """Writes what a part is told of, whose receipt it has at the end."""
    # Of what was read and sorted before.
    pa.default_memory_pool().release_unused()
    writer = PartWriter(work.target, part, work.points)
    left = CarryFile(writer)

    def put(some: Iterable[TaskResults]) -> None:
        for results in some:
            writer.add(results)
            left.add(results)

    try:
        yield put
        left.close()
        writer.close()
    except BaseException:
        left.abandon()
        writer.abandon()
        raise


def _rows(work: Work, source: TaskInput, ordered: bool = False) -> Iterator[pa.RecordBatch]:
    for split in source.splits:
        if not ordered or split.fragments or split.sightings:
            yield from read(split, ordered)
    for name in source.carry:
        with storage.open_input(name) as stream:
            for batch in pa.parquet.ParquetFile(pa.PythonFile(stream, "r")).iter_batches(ROWS_CARRIED):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)


ROWS_CARRIED = 256
"""Rows with open conversations that are read at once: each may be large."""


def simple(batch: pa.RecordBatch, every: bool = False) -> pa.RecordBatch:
    """The rows that are dissected as they are, with the columns that this takes. `every`: all of the rows."""
    kept = batch.select([name for name in batch.schema.names if name not in UNSENT])
    if every:
        return kept
    kind = kept.column("kind").to_numpy()
    good = (kind == SEGMENT) | (kind == CARRY)
    return kept if good.all() else kept.filter(pa.array(good))


UNSENT = ("cooked", "digest", "place")
"""Columns that only tell packets apart, or where they are."""


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


def _ids(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, np.int64)


def flows_carried(paths: Sequence[str]) -> tuple[dict[str, NDArray[np.int64]], bool]:
    """The `flow_id` of the conversations that files hold which were left open, and whether packets depend on what was carried across
    conversations."""
    found = {}
    depend = False
    for name in paths:
        with storage.open_input(name) as stream:
            table = pa.parquet.read_table(pa.PythonFile(stream, "r"), columns=["kind", "flow_id"])
        kind = table.column("kind").to_numpy()
        found[name] = np.unique(table.column("flow_id").to_numpy()[kind == CARRY])
        depend = depend or bool((kind == CARRY_IN_ORDER).any())
    return found, depend
