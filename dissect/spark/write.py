"""Writes tables: every task its own files, which count only once the run has ended without error.

A task names its files at random and its result says which they are. Tasks that were repeated or lost leave files that nobody names. When
all tasks have ended, those that are named are committed (`sink.py`): in the form `delta` they are where they belong from the start.
"""

from __future__ import annotations

import datetime
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from ..conversation.table import is_related
from ..errors import Report
from ..filter import compile_filter
from ..model import ConversationRow
from . import latencies, storage, together
from .flows import PointOf, TaskResults, earliest
from .rows import SCHEMA, batch_of
from .storage import Folder
from .tables import DATE, TABLES, TYPED, PendingRows, by_protocol, entry_rows, schema, sorted_out
from .together import Frames

FRAMES, CARRIED = "frames", "carry"
"""The files with what is put together of several parts, and with what has to be given with later packets."""

EVERY = "every exchange"
"""Where some are not wanted, those that are counted."""

COUNTED = 32
"""Groups of exchanges that are counted together."""

FORMATS = ("parquet", "delta")

JSON = ("fields", "facts")
"""Columns of JSON text."""

GROUP = 2_000
"""Rows that a task keeps before it makes columns of them."""

GROUP_BYTES = 4 << 20
"""Bytes of the frames of these records, and what they were unpacked to, at most about; their values need a multiple."""

ROW_GROUP = 100_000
ROW_GROUP_BYTES = 32 << 20
"""Rows and bytes that a Parquet file holds together: each group costs something for every column, also for those that are null."""

DAY_NS = 86_400_000_000_000
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

    part: int
    files: dict[str, list[Written]]
    rows: dict[str, int]
    reports: list[Report]
    """Reports of bugs of streamdump."""
    suspected: ConversationRow | None = None
    """The first conversation that was read as it was asked for, but holds a login of another protocol."""
    ports: list[int] = []
    """Of servers that speak a protocol of ours."""
    slowest: list[dict[str, Any]] = []
    """The slowest exchanges, the slowest first."""


class PartWriter:
    """The files of one part."""

    def __init__(self, target: Target, part: int, points: PointOf | None = None) -> None:
        self.target = target
        self.part = part
        self.receipt = Receipt(part, {}, {}, [])
        self._points = points
        self._open: dict[tuple[str, tuple[str | None, ...]], _Parquet] = {}
        """The files by table and values of the columns by which it is divided."""
        self._waiting: dict[str, PendingRows] = {}
        self._bytes = 0
        """Bytes of the frames of rows that wait, and what was unpacked for them."""
        self._filter = compile_filter(target.where) if target.where is not None else None
        if self._filter is not None and target.first_ns is not None:
            self._filter.begin(target.first_ns)
        self._exchanges: list[Any] = []
        """Exchanges that wait to be counted."""
        self._side: dict[str, tuple[Written, Any]] = {}
        self._frames: Frames | None = None
        self._carried: Any = None

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as stack:
            stack.callback(self.abandon)
            if kind is None:
                self.close()
                stack.pop_all()

    def add_all(self, found: Iterable[TaskResults]) -> None:
        """Add records and conversations as they become certain."""
        for results in found:
            self.add(results)

    def add(self, results: TaskResults) -> None:
        """Add records and conversations."""
        if self._filter is not None:
            self._filter.learn([one[0] for one in results.records])
        found = sorted_out(results.records)
        for table, rows in found.items():
            asked = self._filter if table in ("messages", "exchanges") else None
            wanted = rows if asked is None else [one for one in rows if asked.matches(one[0])]
            self.put(table, wanted, results.files)
            if table == "messages" and self.target.fields != "json":
                for name, some in by_protocol(wanted).items():
                    self.put(name, some, results.files)
        if self._filter is not None:
            self.put(EVERY, found["exchanges"], results.files)
        entries = entry_rows(some for some in results.entries if self._filter is None or self._filter.matches(some[0]))
        # A message may have a million
        while group := list(islice(entries, GROUP)):
            self.put("entries", group, results.files)
        self.put("conversations", [row for row in results.conversations if not is_related(row.protocol)], results.files)
        for row in results.conversations:
            if is_related(row.protocol):
                self.frames.leave(row.server, together.RELATED, (row, results.files[row.conversation]))
        if results.overview is not None:
            self.frames.leave(None, together.OVERVIEW, results.overview)
        self.receipt.ports = sorted({*self.receipt.ports, *results.ports})
        for place, file, step in results.steps:
            self.frames.leave(step.server, together.STEP, (place, file, step))
        if results.carry:
            if self._carried is None:
                self._carried = pa.parquet.ParquetWriter(self._beside(CARRIED, "parquet"), SCHEMA, compression="zstd")
            self._carried.write_batch(batch_of(results.carry))
        self.receipt.suspected = earliest((self.receipt.suspected, results.suspected))
        self.receipt.reports += results.reports
        self._bytes += _bytes_of(results, found["messages"])
        if self._bytes >= GROUP_BYTES:
            self._bytes = 0
            for table in self._waiting:
                self._flush(table)

    def put(self, table: str, rows: Sequence[Any], files: Mapping[int, int] | None = None) -> None:
        """Add rows of one table; `files`: of conversations the file of the first packet."""
        if not rows:
            return
        waiting = self._waiting.get(table)
        if waiting is None:
            waiting = self._waiting[table] = PendingRows("exchanges" if table == EVERY else table, self.target.fields, self._points)
        waiting.add(rows, files)
        if len(waiting.rows) >= GROUP:
            self._flush(table)

    @property
    def frames(self) -> Frames:
        """The frames for the tasks that put parts together."""
        if self._frames is None:
            self._frames = Frames(self._beside(FRAMES, "frames"))
        return self._frames

    def _beside(self, kind: str, suffix: str) -> Any:
        """A file that is no part of a table; the receipt names it."""
        written = Written(f"part-{self.part:05d}-{uuid.uuid4().hex[:12]}.{suffix}")
        stream = self.target.kept.at("files", kind, written.name).open()
        self._side[kind] = written, stream
        return stream

    def empty(self, table: str) -> None:
        """Write a file without rows, which says what its columns are."""
        self._out(table, dict.fromkeys(self._by(table)))

    def close(self) -> None:
        """Write the other rows; the receipt names the files."""
        for table in self._waiting:
            self._flush(table)
        if self._exchanges:
            self._count()
        for (table, _), out in self._open.items():
            self.receipt.files.setdefault(table, []).append(out.close())
        if self._carried is not None:
            self._carried.close()
        for kind, (written, stream) in self._side.items():
            written.size = stream.tell()
            stream.close()
            self.receipt.files[kind] = [written]

    def abandon(self) -> None:
        """Something went wrong: nobody will name these files."""
        for out in self._open.values():
            out.abandon()
        carried = () if self._carried is None else (self._carried,)
        _let_go(*carried, *(stream for _, stream in self._side.values()))

    def _flush(self, table: str) -> None:
        if not self._waiting[table].rows:
            return
        rows = self._waiting[table].batch(self.receipt.reports)
        if table == ("exchanges" if self._filter is None else EVERY):
            self._exchanges.append(rows.select(latencies.NEEDED))
            if len(self._exchanges) >= COUNTED:
                self._count()
        if table != EVERY:
            self.write(table, rows)

    def _count(self) -> None:
        exchanges = pa.concat_tables(self._exchanges)
        self._exchanges.clear()
        self.frames.leave(None, together.COUNTS, latencies.counted(exchanges))
        self.receipt.slowest = latencies.slowest([*self.receipt.slowest, *latencies.slowest_of(exchanges)])

    def write(self, table: str, rows: Any) -> None:
        """Write the columns of some rows."""
        self.receipt.rows[table] = self.receipt.rows.get(table, 0) + rows.num_rows
        by = self._by(table)
        for partition, some in _divided(rows, by) if by else [({}, rows)]:
            out = self._out(table, partition)
            out.write(some.select(out.schema.names))
        opened = [out for (one, _), out in self._open.items() if one == table]
        while sum(out.bytes for out in opened) >= ROW_GROUP_BYTES:
            max(opened, key=lambda out: out.bytes).flush()

    def _by(self, table: str) -> list[str]:
        """The columns by whose values the files of a table are divided."""
        return [one for one in self.target.by if one in TABLES[table].partitioned]

    def _out(self, table: str, partition: dict[str, str | None]) -> _Parquet:
        """The file for these values of the columns by which a table is divided; it has the other columns."""
        out = self._open.get(key := (table, tuple(partition.values())))
        if out is None:
            target, every = self.target, schema(table)
            name = f"part-{self.part:05d}-{target.run}{uuid.uuid4().hex[:12]}.zstd.parquet"
            folders = [f"{column}={value or NULL_PARTITION}" for column, value in partition.items()]
            columns = pa.schema([one for one in every if one.name not in partition], every.metadata)
            out = self._open[key] = _Parquet(target.table(table), "/".join((*folders, name)), columns)
            out.written.partition = partition
        return out


def pointless(table: str) -> Any:
    """The columns of a table where nobody knows where files were captured."""
    return pa.schema([one for one in schema(table) if one.name != "point"])


def batches(table: str, some: Iterable[TaskResults]) -> Iterator[Any]:
    """The rows of a table as Arrow batches, `pointless`."""
    waiting = PendingRows(table)
    kept = pointless(table).names
    reports: list[Report] = []
    size = 0

    for results in some:
        found = sorted_out(results.records)
        rows: Any
        if table == "conversations":
            rows = results.conversations
        elif table == "entries":
            rows = list(entry_rows(results.entries))
        elif table in TYPED.values():
            rows = by_protocol(found["messages"]).get(table, ())
        else:
            rows = found[table]
        reports += results.reports
        waiting.add(rows, results.files)
        size += _bytes_of(results, found["messages"])
        if len(waiting.rows) >= GROUP or size >= GROUP_BYTES:
            size = 0
            yield from waiting.batch(reports).select(kept).to_batches()
    yield from waiting.batch(reports).select(kept).to_batches()
    # There is no driver of ours to report it; Spark keeps the output of its workers in its log
    sys.stderr.writelines(f"streamdump: {report.text(None)}\n" for report in reports)


def _bytes_of(results: TaskResults, messages: Sequence[Any]) -> int:
    """The bytes of the frames of its messages, and what was unpacked for them."""
    size: int = results.unpacked + sum([one[0].size for one in messages])
    return size


class _Parquet:
    """A file of a table that is written."""

    def __init__(self, folder: Folder, name: str, whole: Any) -> None:
        self.schema = whole
        self.written = Written(name)
        self._stream = folder.at(*name.split("/")).open()
        self._writer = pa.parquet.ParquetWriter(self._stream, whole, compression="zstd", use_dictionary=_repeating(whole))
        self._group: list[Any] = []
        self._rows = 0
        self.bytes = 0
        """What waits to be written."""

    def write(self, rows: Any) -> None:
        """Add a batch."""
        self.written.rows += rows.num_rows
        if "time_ns" in rows.schema.names and rows.num_rows:
            times = rows.column("time_ns").to_numpy()
            least, most = self.written.span or (int(times[0]), int(times[0]))
            self.written.span = min(least, int(times.min())), max(most, int(times.max()))
        self._group.append(rows)
        self._rows += rows.num_rows
        self.bytes += rows.get_total_buffer_size()
        if self._rows >= ROW_GROUP or self.bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._group:
            self._writer.write_table(pa.concat_tables(self._group))
        self._group = []
        self._rows = self.bytes = 0

    def close(self) -> Written:
        """Complete the file."""
        self.flush()
        self._writer.close()
        self.written.size = self._stream.tell()
        self._stream.close()
        return self.written

    def abandon(self) -> None:
        """Let go of it as it is."""
        _let_go(self._writer, self._stream)


def _divided(rows: Any, by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], Any]]:
    """Yield the rows for each value of some columns, with these."""
    values, names = {DATE: rows.column("time_ns").to_numpy() // DAY_NS}, list[str | None]()
    if "protocol" in by:
        protocols = rows.column("protocol").combine_chunks().dictionary_encode()
        # Rows without a protocol have the last of these
        names = [*protocols.dictionary.to_pylist(), None]
        values["protocol"] = protocols.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    keys = np.stack([values[column] for column in by])
    kinds = np.unique(keys, axis=1)
    for kind in kinds.T:
        some = rows if kinds.shape[1] == 1 else rows.filter(pa.array((kind == keys.T).all(axis=1)))
        found = zip(by, kind.tolist(), strict=True)
        yield {column: names[code] if column == "protocol" else _date(code) for column, code in found}, some


def _date(day: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=day)).isoformat()


def _repeating(whole: Any) -> list[str]:
    """The columns in which values repeat, all texts but JSON and ids of messages: elsewhere a dictionary costs time and space."""
    found: list[str] = []

    def look(field: Any, above: str) -> None:
        name = above + field.name
        if pa.types.is_struct(field.type):
            for member in field.type:
                look(member, f"{name}.")
        elif field.type in (pa.string(), pa.list_(pa.string())) and name not in JSON and not name.endswith("_id"):
            found.append(name if field.type == pa.string() else f"{name}.list.element")

    for field in whole:
        look(field, "")
    return found


def _let_go(*opened: Any) -> None:
    """Close files that need not be complete."""
    for one in opened:
        with suppress(OSError, ValueError):
            one.close()
