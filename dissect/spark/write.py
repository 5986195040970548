"""Writes tables: every task its own files, which count only once the whole run has ended well.

A task names its files at random and says at its end which they are (its receipt, written by renaming). Tasks that were repeated or lost
leave files that nobody names. When all parts are there, the files that their receipts name are moved together, and one rename makes
the result.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dissect.errors import Report, UsageError
from dissect.model import ConversationRow
from dissect.spark.flows import Results
from dissect.spark.rows import SCHEMA
from dissect.spark.tables import TABLES, batches, schema, sorted_out

FORMATS = ("parquet", "json", "csv")

JSON = ("fields", "facts")
"""Columns of JSON text."""

GROUP = 20_000
"""Records that a task keeps before it makes columns of them."""

GROUP_BYTES = 32 << 20
"""Bytes of the frames of these records, at most about; the values made of them take a multiple."""

ROW_GROUP = 100_000
ROW_GROUP_BYTES = 64 << 20
"""Rows and bytes that a Parquet file holds together: each group costs something for every column, also for those that are null."""

RELATED = ("iggy", "seastar-rpc")
"""Protocols whose conversations tell something of each other: their rows are written when all are there."""


class Receipt(msgspec.Struct):
    """What a task has written."""

    part: int
    files: dict[str, list[str]]
    rows: dict[str, int]
    related: list[ConversationRow]
    reports: list[Report]
    """What to tell of bugs of ours."""


class Writer:
    """The files of one part."""

    def __init__(self, folder: Path, part: int, form: str) -> None:
        self.folder = folder
        self.part = part
        self.form = form
        self.receipt = Receipt(part, {}, {}, [], [])
        self._open: dict[str, Any] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._bytes = 0

    def add(self, results: Results) -> None:
        """Take records and conversations."""
        for table, rows in sorted_out(results.records).items():
            self.put(table, rows)
        own = [row for row in results.conversations if row.protocol not in RELATED]
        self.receipt.related += [row for row in results.conversations if row.protocol in RELATED]
        self.put("conversations", own)
        self.receipt.reports += results.reports

    def put(self, table: str, rows: Sequence[Any]) -> None:
        """Take rows of one table."""
        if not rows:
            return
        waiting = self._waiting.setdefault(table, [])
        waiting.extend(rows)
        if table == "messages":
            self._bytes += sum([one[0].size for one in rows])
        if len(waiting) >= GROUP or self._bytes >= GROUP_BYTES:
            self._write(table)

    def waits(self, table: str) -> bool:
        """Whether there are rows to write."""
        return bool(self._waiting.get(table))

    def empty(self, table: str) -> None:
        """Write a file without rows, which says what its columns are."""
        self._out(table)

    def close(self) -> Receipt:
        """Write what is left; the receipt counts from here on."""
        for table in list(self._waiting):
            self._write(table)
        for out in self._open.values():
            out.close()
        folder = self.folder / "receipts"
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f".{self.part}-{uuid.uuid4().hex}"
        written.write_bytes(msgspec.json.encode(self.receipt))
        written.rename(folder / f"{self.part}.json")
        return self.receipt

    def _write(self, table: str) -> None:
        rows, self._waiting[table] = self._waiting[table], []
        if not rows:
            return
        if table == "messages":
            self._bytes = 0
        out = self._out(table)
        for some in batches(table, rows, out.typed, self.receipt.reports):
            self.receipt.rows[table] = self.receipt.rows.get(table, 0) + some.num_rows
            out.write(some)

    def _out(self, table: str) -> Any:
        if table not in self._open:
            folder = self.folder / "files" / table
            folder.mkdir(parents=True, exist_ok=True)
            name = f"part-{self.part:05d}-{uuid.uuid4().hex[:12]}{SUFFIX[self.form]}"
            self.receipt.files.setdefault(table, []).append(name)
            self._open[table] = _OUTS[self.form](folder / name, table)
        return self._open[table]


class CarryFile:
    """The file with what a part leaves to be given with later packets, named in its receipt."""

    TABLE = "carry"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._out: Any = None

    def add(self, results: Results) -> None:
        """Take the rows that are carried."""
        if not results.carry:
            return
        if self._out is None:
            folder = self._writer.folder / "files" / self.TABLE
            folder.mkdir(parents=True, exist_ok=True)
            name = f"part-{self._writer.part:05d}-{uuid.uuid4().hex[:12]}.parquet"
            self._writer.receipt.files[self.TABLE] = [name]
            self._out = pa.parquet.ParquetWriter(folder / name, SCHEMA, compression="zstd")
        self._out.write_batch(results.carry_batch())

    def close(self) -> None:
        """The file is whole."""
        if self._out is not None:
            self._out.close()


SUFFIX = {"parquet": ".zstd.parquet", "json": ".json", "csv": ".csv"}


class _Parquet:
    typed = True

    def __init__(self, path: Path, table: str) -> None:
        whole = schema(table)
        self._writer = pa.parquet.ParquetWriter(path, whole, compression="zstd", use_dictionary=_repeating(whole))
        self._group: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, rows: Any) -> None:
        self._group.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.get_total_buffer_size()
        if self._rows >= ROW_GROUP or self._bytes >= ROW_GROUP_BYTES:
            self._end()

    def _end(self) -> None:
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group))
        self._group = []
        self._rows = self._bytes = 0

    def close(self) -> None:
        self._end()
        self._writer.close()


def _repeating(whole: Any) -> list[str]:
    """The columns in which values repeat, all texts but the JSON: elsewhere a dictionary costs time and gains no space."""
    found: list[str] = []

    def look(field: Any, above: str) -> None:
        name = above + field.name
        if pa.types.is_struct(field.type):
            for member in field.type:
                look(member, f"{name}.")
        elif field.type in (pa.string(), pa.list_(pa.string())) and name not in JSON:
            found.append(name if field.type == pa.string() else f"{name}.list.element")

    for field in whole:
        look(field, "")
    return found


class _Json:
    """One object a line; times as text in the form of the JSON contract, fields as an object, so without the structs."""

    typed = False

    def __init__(self, path: Path, table: str) -> None:
        self._out = path.open("wb")
        self._encoder = msgspec.json.Encoder()

    def write(self, rows: Any) -> None:
        lines = rows.to_pylist()
        for line in lines:
            for name in JSON:
                if line.get(name) is not None:
                    line[name] = msgspec.Raw(line[name].encode())
        self._out.write(self._encoder.encode_lines(lines))

    def close(self) -> None:
        self._out.close()


class _Csv:
    """Lists and structures as JSON text, fields as they are."""

    typed = False

    def __init__(self, path: Path, table: str) -> None:
        self._writer = pa.csv.CSVWriter(path, flat(schema(table, self.typed)))

    def write(self, rows: Any) -> None:
        arrays = []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if pa.types.is_nested(field.type):
                texts = [None if one is None else msgspec.json.encode(one).decode() for one in column.to_pylist()]
                column = pa.array(texts, pa.string())
            arrays.append(column)
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=flat(rows.schema)))

    def close(self) -> None:
        self._writer.close()


def flat(whole: Any) -> Any:
    """A schema with text for what is nested."""
    return pa.schema([pa.field(one.name, pa.string() if pa.types.is_nested(one.type) else one.type) for one in whole])


_OUTS: dict[str, Any] = {"parquet": _Parquet, "json": _Json, "csv": _Csv}


def receipts(folder: Path) -> dict[int, Receipt]:
    """The receipts of parts that are done."""
    found = [msgspec.json.decode(path.read_bytes(), type=Receipt) for path in (folder / "receipts").glob("[0-9]*.json")]
    return {one.part: one for one in found}


def commit(folder: Path, out: Path, done: Sequence[Receipt]) -> None:
    """Move the files of these receipts to `out`, all at once; whatever else is in `folder` goes."""
    result = folder / "result"
    for table in TABLES:
        place = result / table
        place.mkdir(parents=True, exist_ok=True)
        # Of a commit that was interrupted.
        there = {path.name for path in place.iterdir()}
        names = {name for receipt in done for name in receipt.files.get(table, ())}
        for name in there - names:
            (place / name).unlink()
        for name in names - there:
            (folder / "files" / table / name).rename(place / name)
    try:
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()
        result.rename(out)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    shutil.rmtree(folder, ignore_errors=True)
