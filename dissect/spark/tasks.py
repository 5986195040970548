"""What tasks do: read ranges of captures, dissect the conversations that lie in them, and send the packets of all others to their part.

The plan knows the conversations of each range. Those that lie within what one task reads are *at home* there and are dissected by it;
the packets of the others go, as rows, to the part that their `flow_id` falls into. Most captures of many short connections need no
shuffle at all then, and small ones are one task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from ..capture.duplicates import NEAR_NS
from ..capture.link import LinkParser
from ..model import Options
from . import storage
from .flows import CaptureFacts, Dissection, TaskResults, dissect
from .keys import key_of
from .ordered import Ordered, Row
from .rows import EARLIEST, row_of, segments
from .splits import NEVER, Plan, Split, flows_of, grouped
from .write import PartWriter, Receipt, Target

Sent = tuple[int, bytes | Receipt]
"""The part that rows go to, and these, packed; or, with the number after those of all parts, what the task itself has written."""

SENT = 1 << 20
"""Bytes of rows that are sent together, about: Spark's worker keeps some ten times as much before it hands them on."""


class Work(msgspec.Struct):
    """What all tasks of one run know."""

    target: Target
    options: Options
    facts: CaptureFacts
    count: int = 0
    """Parts that conversations are sent to."""


class TaskInput(msgspec.Struct):
    """What one task reads."""

    splits: list[Split] = msgspec.field(default_factory=list)
    carry: list[str] = msgspec.field(default_factory=list)
    """Files with conversations that were left open by what was read before."""
    home: bytes | None = None
    """The `flow_id` of the conversations that are dissected here, sorted; None: all of them."""
    conversations: int = 0
    """The number of conversations that it reads."""

    @property
    def at_home(self) -> frozenset[int] | None:
        """The conversations that are dissected here; None: all of them."""
        return None if self.home is None else frozenset(_ids(self.home).tolist())


def sources(
    found: Plan, target: int, carry: Mapping[str, NDArray[np.int64]] | None = None, readers: int = 0, *, forced: bool = False
) -> tuple[list[TaskInput], float]:
    """The tasks that read these ranges, small ones together up to `target` bytes; and which share of what they read they send, about.

    `carry`: files with conversations that were left open, and their `flow_id`; `readers`: the number of tasks that may read what others
    read too, where that costs less than to send it to them, or in any case (`forced`).
    """
    made = [TaskInput(splits) for splits in grouped(found.splits, target)]
    flows = [flows_of(source.splits) for source in made]
    for source, own in zip(made, flows, strict=True):
        source.conversations = 0 if own is None else len(own)
    if carry:
        if len(made) != 1:
            made.append(TaskInput())
            flows.append(np.empty(0, np.int64))
        made[-1].carry = list(carry)
        own = flows[-1]
        flows[-1] = None if own is None else np.unique(np.concatenate([own, *carry.values()]))
    share = 0.0
    known = [own for own in flows if own is not None]
    if len(known) < len(flows) > 1:
        share = 1.0
        for source in made:
            source.home = b""
    elif len(made) > 1:
        away = _part(made, known)
        sizes = [sum(split.size for split in source.splits) for source in made]
        sent = sum(size * len(theirs) / max(len(own), 1) for size, theirs, own in zip(sizes, away, known, strict=True))
        again = _again(made, away, sizes, readers, math.inf if forced else sent * SENDING)
        made, share = (again, 0.0) if again else (made, sent / max(sum(sizes), 1))
    for source in made:
        source.splits = _to_read(source.splits)
    return made, share


def _to_read(splits: Sequence[Split]) -> list[Split]:
    """Ranges without what only planning needs."""
    return [msgspec.structs.replace(split, flows=b"", aside=None) for split in splits]


def alone(found: Plan, target: int) -> list[TaskInput]:
    """Tasks that read these ranges and need no others: each conversation is dissected by one that reads all of it. Where conversations
    are too many to be distinguished, one task reads all."""
    made, sent = sources(found, target, None, len(found.splits), forced=True)
    return [TaskInput(_to_read(found.splits))] if sent else made


def dissected(source: TaskInput, options: Options, facts: CaptureFacts, away: list[Row] | None = None) -> Iterator[TaskResults]:
    """Yield what the conversations result in that are at home in a task; rows of the others are added to `away`."""
    straight, home = Dissection(options, facts), source.at_home
    for found, owners in segments(source.splits):
        here = found
        if home is not None:
            here = [one for one in found if key_of(one.ends) in home]
            if away is not None and len(here) < len(found):
                away += [row_of(one, owners.get(id(one))) for one in found if key_of(one.ends) not in home]
                yield TaskResults()
        if here:
            yield from straight.feed(0, here, owners)
    yield from straight.end()


def _part(made: list[TaskInput], flows: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Set the conversations that are at home in each task; return for each task the conversations that are at home nowhere."""
    every, times = np.unique(np.concatenate(flows), return_counts=True)
    shared = every[times > 1]
    for source, own in zip(made, flows, strict=True):
        home = np.setdiff1d(own, shared, assume_unique=True)
        source.home = None if len(home) == len(own) else home.tobytes()
    return [np.intersect1d(own, shared) for own in flows]


FILES = 16
"""Limit of files that are merged as they are read, all of them open; of more, packets are sorted."""

OPEN = 30_000
"""Limit of conversations, of about 10 kB each, that are dissected as they are read; of more, packets are sorted."""

SENDING = 4
"""The cost of sending a byte to the part of its conversation (sorting, and Spark's handling of it), in bytes read."""


def _again(made: list[TaskInput], away: list[NDArray[np.int64]], sizes: list[int], readers: int, most: float) -> list[TaskInput]:
    """The tasks if conversations that several of them read are at home in tasks of their own, which read all those ranges again; none
    if these have more than `most` bytes, or too many files for all of them to be open."""
    every = np.unique(np.concatenate(away))
    found: list[TaskInput] = []
    for mine in (every[at::readers] for at in range(min(readers, len(every)))):
        whose = [place for place, theirs in enumerate(away) if np.isin(theirs, mine).any()]
        found.append(TaskInput([split for place in whose for split in made[place].splits], home=mine.tobytes(), conversations=len(mine)))
        most -= sum(sizes[place] for place in whose)
    if not found or most < 0 or (most < math.inf and len({split.file for source in made for split in source.splits}) > FILES):
        return []
    found += [source for source in made if source.home != b""]
    return found


def at_home(work: Work, source: TaskInput) -> Iterator[Sent]:
    """Read captures: send the rows of conversations that others read too, and dissect all others."""
    waiting: defaultdict[int, list[Row]] = defaultdict(list)
    size = 0
    for found in _read(work, source):
        if isinstance(found, Receipt):
            yield from _packed(waiting)
            yield work.count, found
        else:
            waiting[found[0] % work.count].append(found)
            size += len(found[-1])
            if size >= SENT:
                yield from _packed(waiting)
                size = 0


def _packed(waiting: dict[int, list[Row]]) -> Iterator[Sent]:
    """The rows that wait, of which Spark's worker keeps many: they need a third of the memory so."""
    while waiting:
        part, rows = waiting.popitem()
        yield part, msgspec.msgpack.encode(rows)


def _read(work: Work, source: TaskInput) -> Iterator[Row | Receipt]:
    """Yield the rows of conversations that others read too, and after them what the task has written."""
    if source.carry or work.facts.until is not None or len({split.file for split in source.splits}) > FILES or source.conversations > OPEN:
        yield from _in_order(work, source)
        return
    # Measured on 60 MB of the mix (`tests/bench/mix.py`), where 1 MB is sent: 8.3 CPU s, and by way of `_in_order` 9.7
    away: list[Row] | None = [] if work.count else None
    with PartWriter(work.target, work.facts.points) as writer:
        for results in dissected(source, work.options, work.facts, away):
            writer.add(results)
            if away:
                yield from away
                away.clear()
    yield writer.receipt


def _in_order(work: Work, source: TaskInput) -> Iterator[Row | Receipt]:
    """Dissect the conversations at home one after the other, with what was carried of them."""
    here, home = Ordered(), source.at_home
    for row in _rows(source):
        if home is None or row[0] in home:
            here.add(row)
        elif work.count:
            yield row
    yield _written(work, here)


def together(work: Work, sent: Iterable[bytes]) -> Receipt:
    """Dissect the conversations of a part, all packets of which were sent."""
    return _written(work, Ordered(row for rows in sent for row in msgspec.msgpack.decode(rows, type=list[Row])))


def _written(work: Work, rows: Ordered) -> Receipt:
    """Dissect the conversations whose packets are in `rows`, and write what they result in."""
    with PartWriter(work.target, work.facts.points) as writer:
        for results in dissect(rows, work.options, work.facts):
            writer.add(results)
    return writer.receipt


def _rows(source: TaskInput) -> Iterator[Row]:
    parsers: dict[int, LinkParser] = {}
    latest: dict[int, int] = {}
    for split in source.splits:
        # A parser finds copies near the latest time only, so another series of files needs another one
        if NEVER < split.first_ns < latest.get(split.network, NEVER) - NEAR_NS:
            del parsers[split.network]
        latest[split.network] = split.end_ns[0]
        for some, owners in segments([split], parsers):
            yield from (row_of(one, owners.get(id(one))) for one in some)
    for name in source.carry:
        with storage.open_input(name) as stream:
            for batch in pa.parquet.ParquetFile(pa.PythonFile(stream, "r")).iter_batches(ROWS_CARRIED):
                for row in batch.to_pylist():
                    yield row["flow_id"], EARLIEST, 0, 0, row["data"]


ROWS_CARRIED = 256
"""Rows with open conversations that are read at once: each may be large."""


def _ids(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, np.int64)


def flows_carried(paths: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """The `flow_id` of the conversations that files hold which were left open."""
    found = {}
    for name in paths:
        with storage.open_input(name) as stream:
            found[name] = np.unique(pa.parquet.read_table(pa.PythonFile(stream, "r"), columns=["flow_id"]).column("flow_id").to_numpy())
    return found
