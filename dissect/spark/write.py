"""Writes tables: every task its own files, which count only once the run has ended without error.

A task names its files at random and its result says which they are. Tasks that were repeated or lost leave files that nobody names. When
all tasks have ended, those that are named are committed (`sink.py`): in the form `delta` they are where they belong from the start.
"""

from __future__ import annotations

import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from functools import cached_property, reduce
from itertools import chain, islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from ..conversation.table import is_related
from ..errors import Report
from ..filter import compile_filter
from ..model import ConversationRow, Exchange, Message
from . import latencies, storage, together
from .flows import PointOf, TaskResults, earliest
from .ordered import framed
from .rows import STATES
from .storage import Folder
from .tables import DATE, KINDS, TABLES, TYPED, PendingRows, schema, tables_with

FRAMES, CARRIED = "frames", "carry"
"""The files with what is put together of several parts, and with what has to be given with later packets."""

EVERY = "every exchange"
"""Where some are not wanted, those that are counted."""

COUNTED = 32
"""Groups of exchanges that are counted together."""

JSON = ("fields", "facts")
"""Columns of JSON text."""

GROUP = 2_000
"""Rows of a table that a task keeps before it makes columns of them: typed tables have up to hundreds."""

GROUP_BYTES = 4 << 20
"""Bytes of the frames of these records, and what they were unpacked to, at most about; their values need a multiple."""

ROW_GROUP_BYTES = 32 << 20
"""Bytes of a table that are written together: each group of rows costs something for every column, also for those that are null."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class Target(msgspec.Struct):
    """Where a run writes to: `folder` holds what it keeps until it has ended, `out` the tables."""

    folder: str
    form: str
    out: str = ""
    run: str = ""
    """A name of the run, part of the names of its files."""
    fields: str = "json"
    """How the fields of messages are written, of `tables.FIELDS`."""
    by: tuple[str, ...] = ()
    """Columns by whose values files are divided, of `tables.BY_DAY`."""
    where: str | None = None
    """What messages and exchanges have to fit."""
    first_ns: int | None = None
    """When the first packet of all captures came, from which relative times count."""

    @property
    def kept(self) -> Folder:
        """The folder of unfinished files."""
        return storage.folder(self.folder)

    def table(self, name: str) -> Folder:
        """Where the files of a table are written."""
        return storage.folder(self.out).at(name) if self.form == "delta" else self.kept.at("files", name)


class Written(msgspec.Struct):
    """A file of a table."""

    name: str
    """Where it is in the folder of its table."""
    rows: int = 0
    size: int = 0
    partition: dict[str, str | None] = {}
    span: tuple[int, int] | None = None
    """The first and the last `time_ns` in it."""


class Receipt(msgspec.Struct):
    """What a task has written."""

    files: dict[str, list[Written]] = {}
    reports: list[Report] = []
    """Reports of bugs of streamdump."""
    suspected: ConversationRow | None = None
    """The first conversation that was read as it was asked for, but holds a login of another protocol."""
    ports: set[int] = set()
    """Of servers that speak a protocol of ours."""
    slowest: list[dict[str, Any]] = []
    """The slowest exchanges, the slowest first."""
    related: list[ConversationRow] = []
    """Conversations that were related to others, and that later ones may be related to."""
    counts: list[Any] = []
    """Counts of exchanges by `latencies.COMMANDS`."""
    overviews: list[Any] = []
    """What rules go by that look at several conversations, of each task."""


class PartWriter:
    """The files of one part."""

    def __init__(self, target: Target, points: PointOf | None = None) -> None:
        self.target = target
        self.receipt = Receipt()
        self._open: defaultdict[str, dict[tuple[str | None, ...], _Parquet]] = defaultdict(dict)
        """The files of each table by values of the columns by which it is divided."""
        self._closing = ExitStack()
        """Closes all that is open, the last first."""
        self._waiting = {table: PendingRows(table, target.fields, points) for table in tables_with(target.fields)}
        self._waiting[EVERY] = PendingRows("exchanges", target.fields, points)
        self._bytes = 0
        """Bytes of the frames of rows that wait, and what was unpacked for them."""
        self._filter = compile_filter(target.where) if target.where is not None else None
        if self._filter is not None and target.first_ns is not None:
            self._filter.begin(target.first_ns)
        self._counted = "exchanges" if self._filter is None else EVERY
        self._exchanges: list[Any] = []
        """Exchanges that wait to be counted."""

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            # Where something went wrong nobody will name these files, so they need not be complete
            with suppress(OSError, ValueError):
                self._closing.close()

    def add(self, results: TaskResults) -> None:
        """Add records and conversations."""
        if self._filter is not None:
            self._filter.learn([one[0] for one in results.records])
            self.put(EVERY, [one for one in results.records if type(one[0]) is Exchange], results.files)
        for table, rows in rows_of(results, self._waiting.keys(), self._filter.matches if self._filter else None):
            self.put(table, rows, results.files)
        self.put("conversations", [row for row in results.conversations if not is_related(row.protocol)], results.files)
        for row in results.conversations:
            if is_related(row.protocol):
                self._leave(row.server, together.RELATED, (row, results.files[row.conversation]))
        if results.overview is not None:
            self._leave(None, together.OVERVIEW, results.overview)
        self.receipt.ports |= results.ports
        for place, file, step in results.steps:
            self._leave(step.server, together.STEP, together.step_row(place, file, step))
        if results.carry:
            columns = map(pa.array, zip(*results.carry, strict=True), STATES.types)
            self._carried.write_batch(pa.RecordBatch.from_arrays(list(columns), schema=STATES))
        self.receipt.suspected = earliest((self.receipt.suspected, results.suspected))
        self.receipt.reports += results.reports
        self._bytes += results.unpacked + sum([record.size for record, *_ in results.records if type(record) is Message])
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def put(self, table: str, rows: Sequence[Any], files: Mapping[int, int] | None = None) -> None:
        """Add rows of one table; `files`: of conversations the file of the first packet."""
        self._waiting[table].add(rows, files)
        if len(self._waiting[table].rows) >= GROUP:
            self._write(table)

    def _flush(self) -> None:
        """Write all that waits."""
        self._bytes = 0
        for table, waiting in self._waiting.items():
            if waiting.rows:
                self._write(table)

    def _write(self, table: str) -> None:
        rows = self._waiting[table].batch(self.receipt.reports)
        if table == self._counted:
            self._exchanges.append(rows.select(latencies.NEEDED))
            if len(self._exchanges) >= COUNTED:
                self._count()
        if table != EVERY:
            self.write(table, rows)

    def _count(self) -> None:
        exchanges = pa.concat_tables(self._exchanges)
        self._exchanges.clear()
        self._leave(None, together.COUNTS, together.packed(latencies.counted(exchanges)))
        self.receipt.slowest = latencies.slowest([*self.receipt.slowest, *latencies.slowest_of(exchanges)])

    def write(self, table: str, rows: Any) -> None:
        """Write the columns of some rows."""
        by = self._by(table)
        for partition, some in _divided(rows, by) if by else [({}, rows)]:
            self._out(table, partition).write(some)
        opened = self._open[table].values()
        while sum(out.bytes for out in opened) >= ROW_GROUP_BYTES:
            max(opened, key=lambda out: out.bytes).flush()

    def empty(self, table: str) -> None:
        """Write a file without rows, which says what its columns are."""
        self._out(table, dict.fromkeys(self._by(table)))

    def close(self) -> None:
        """Write the other rows; the receipt names the files."""
        self._flush()
        if self._exchanges:
            self._count()
        for out in chain.from_iterable(files.values() for files in self._open.values()):
            out.flush()
        self._closing.close()

    def _by(self, table: str) -> list[str]:
        """The columns by whose values the files of a table are divided."""
        return [one for one in self.target.by if one in TABLES[table].partitioned]

    def _out(self, table: str, partition: dict[str, str | None]) -> _Parquet:
        """The file for these values of the columns by which a table is divided; it has the other columns."""
        files, key = self._open[table], tuple(partition.values())
        if key not in files:
            every = schema(table)
            columns = pa.schema([one for one in every if one.name not in partition], every.metadata)
            folders = [f"{column}={value or NULL_PARTITION}" for column, value in partition.items()]
            written = Written("/".join((*folders, self._name(self.target.run, "zstd.parquet"))), partition=partition)
            stream = self._stream(table, self.target.table(table), written)
            files[key] = _Parquet(written, self._parquet(stream, columns, list(_repeating(columns))))
        return files[key]

    def _leave(self, server: str | None, kind: int, value: Any) -> None:
        """Leave a frame for the task that puts those of this server together; counts of exchanges are of all servers."""
        self._left.write(framed((server or "", kind, value)))

    @cached_property
    def _left(self) -> Any:
        return self._beside(FRAMES, "frames")

    @cached_property
    def _carried(self) -> Any:
        return self._parquet(self._beside(CARRIED, "parquet"), STATES)

    def _beside(self, kind: str, suffix: str) -> Any:
        """A file that is no part of a table."""
        return self._stream(kind, self.target.kept.at("files", kind), Written(self._name("", suffix)))

    def _name(self, run: str, suffix: str) -> str:
        return f"part-{run}{uuid.uuid4().hex[:12]}.{suffix}"

    def _stream(self, kind: str, folder: Folder, written: Written) -> Any:
        """Open a file, which the receipt names."""
        stream = folder.at(*written.name.split("/")).open()

        def measure() -> None:
            written.size = stream.tell()

        self._closing.callback(stream.close)
        self._closing.callback(measure)
        self.receipt.files.setdefault(kind, []).append(written)
        return stream

    def _parquet(self, stream: Any, columns: Any, repeating: bool | list[str] = True) -> Any:
        writer = pa.parquet.ParquetWriter(stream, columns, compression="zstd", use_dictionary=repeating)
        self._closing.callback(writer.close)
        return writer


def rows_of(results: TaskResults, wanted: Set[str], fits: Callable[[Any], bool] | None = None) -> Iterator[tuple[str, list[Any]]]:
    """Yield the rows of these tables in results, some at a time; not those of conversations. `fits`: the messages, exchanges, and messages
    with entries that are wanted."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for one in results.records:
        found[KINDS[type(one[0])]].append(one)
    if fits is not None:
        for table in ("messages", "exchanges"):
            found[table] = [one for one in found[table] if fits(one[0])]
    if not wanted.isdisjoint(TYPED.values()):
        for one in found["messages"]:
            found[TYPED[one[0].protocol]].append(one)
    yield from ((table, rows) for table, rows in found.items() if table in wanted)
    entries = ((one, message, None, None) for message, some in results.entries if fits is None or fits(message) for one in some)
    # A message may have a million
    while group := list(islice(entries, GROUP)):
        yield "entries", group


def batches(table: str, some: Iterable[TaskResults], points: PointOf) -> Iterator[Any]:
    """The rows of a table as Arrow batches."""
    waiting = PendingRows(table, points=points)
    reports: list[Report] = []
    for results in some:
        reports += results.reports
        for _, group in [(table, results.conversations)] if table == "conversations" else rows_of(results, {table}):
            waiting.add(group, results.files)
            yield from waiting.batch(reports).to_batches()
    # There is no driver of ours to report it; Spark keeps the output of its workers in its log
    sys.stderr.writelines(f"streamdump: {report.text(None)}\n" for report in reports)


class _Parquet:
    """A file of a table that is written."""

    def __init__(self, written: Written, writer: Any) -> None:
        self.written = written
        self._writer = writer
        self._group: list[Any] = []
        self.bytes = 0
        """What waits to be written."""

    def write(self, rows: Any) -> None:
        """Add the columns of some rows."""
        self._group.append(rows.select(self._writer.schema.names))
        self.bytes += self._group[-1].get_total_buffer_size()

    def flush(self) -> None:
        """Write what waits."""
        if self._group:
            rows = pa.concat_tables(self._group)
            self._group, self.bytes = [], 0
            self._writer.write_table(rows)
            self.written.rows += rows.num_rows
            if "time_ns" in rows.schema.names:
                times = [*(self.written.span or ()), *pc.min_max(rows.column("time_ns")).as_py().values()]
                self.written.span = min(times), max(times)


def _divided(rows: Any, by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], Any]]:
    """Yield the rows for each value of some columns, with these."""
    dates = rows.column("time_ns").cast(pa.timestamp("ns")).cast(pa.date32()).cast(pa.string())
    keys = pa.table({column: dates if column == DATE else rows.column(column) for column in by})
    kinds = keys.group_by(by, use_threads=False).aggregate([]).to_pylist()
    for kind in kinds:
        same = (pc.is_null(keys[column]) if value is None else pc.equal(keys[column], value) for column, value in kind.items())
        yield kind, rows if len(kinds) == 1 else rows.filter(reduce(pc.and_, same))


def _repeating(fields: Iterable[Any], above: str = "") -> Iterator[str]:
    """Yield the columns in which values repeat, all texts but JSON and ids of messages: elsewhere a dictionary costs time and space."""
    for field in fields:
        name = above + field.name
        if pa.types.is_struct(field.type):
            yield from _repeating(field.type, f"{name}.")
        elif field.type == pa.list_(pa.string()):
            yield f"{name}.list.element"
        elif field.type == pa.string() and name not in JSON and not name.endswith("_id"):
            yield name
