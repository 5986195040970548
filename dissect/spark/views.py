"""What written tables say: to SQL, and in a few lines."""

from __future__ import annotations

import io
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset

from . import storage
from .delta import Delta
from .rows import ROWS
from .storage import Disk, Folder
from .tables import DATE, TABLES, schema
from .write import FORMATS, JSON, flat


def form_of(out: Folder) -> str | None:
    """The form of the tables in a folder; None where there are none."""
    if Delta.there(out):
        return "delta"
    for name in out.at("messages").names():
        suffix = name.rpartition(".")[2]
        if suffix in FORMATS:
            return suffix
    return "parquet" if out.at("messages").exists() else None


def columns_of(table: str, form: str) -> Any:
    """The columns of a table in a form."""
    columns = schema(table, "both" if form in ("parquet", "delta") else "json")
    if form == "delta" and TABLES[table].partitioned:
        columns = columns.append(pa.field(DATE, pa.date32()))
    return flat(columns) if form == "csv" else columns


def files_of(out: Folder, table: str, form: str) -> list[str]:
    """The files of a table."""
    if form == "delta":
        delta = Delta(out)
        delta.read()
        return delta.files(table)
    return sorted(storage.walk(out.at(table).name))


def views(spark: Any, out: Folder, form: str) -> None:
    """Makes the tables known to SQL by their names; `variant` holds the fields of messages to be asked by path.

    The structs of protocols are there in Parquet and Delta only.
    """
    for table in TABLES:
        found = _of_disk(spark, out, table, form) if isinstance(out, Disk) else _of_store(spark, out, table, form)
        for name in ("fields", "facts"):
            if name in found.columns:
                found = found.selectExpr("*", f"parse_json({name}) as {'variant' if name == 'fields' else 'facts_variant'}")
        found.createOrReplaceTempView(table)


def literal(path: str) -> str:
    """A path in which Hadoop takes no character for a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def _of_disk(spark: Any, out: Disk, table: str, form: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = columns_of(table, form)
    reader = spark.read.schema(from_arrow_schema(columns))
    place = str(out.at(table).path)
    if form == "delta":
        files = [literal(str(storage.local(name))) for name in files_of(out, table, form)]
        if not files:
            return spark.createDataFrame([], from_arrow_schema(columns))
        found = reader.option("basePath", place).parquet(*files)
    else:
        if form == "csv":
            reader = reader.option("header", "true").option("multiLine", "true").option("escape", '"')
        found = reader.format(form).load(literal(place))
    return found.select(*columns.names, *sorted({*found.columns} - {*columns.names}))


def _of_store(spark: Any, out: Folder, table: str, form: str) -> Any:
    """A table whose files Spark cannot reach by itself: it has no library for object stores along."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = columns_of(table, form)
    names = files_of(out, table, form)
    place = out.at(table).name

    def rows(given: Iterator[Any]) -> Iterator[Any]:
        from .views import read

        for batch in given:
            for index in batch.column(0).to_pylist():
                yield from read([names[index]], table, form, place)

    return spark.range(0, len(names), 1, max(len(names), 1)).mapInArrow(rows, from_arrow_schema(columns))


def read(names: Sequence[str], table: str, form: str, place: str) -> Iterator[Any]:
    """The rows of files of a table in `place`, as Arrow batches."""
    wanted = columns_of(table, form)
    found = _lines(names, wanted) if form == "json" else _scanned(names, table, form, place, wanted)
    for batch in found:
        yield pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field.type, form) for field in wanted], schema=wanted)


def _cast(column: Any, kind: Any, form: str) -> Any:
    """Return a column as it was written; bytes are base64 in JSON. CSV has text only."""
    if pa.types.is_binary(kind) and form == "json":
        return pa.array([None if one is None else b64decode(one) for one in column.to_pylist()], kind)
    return column.cast(kind)


def _lines(names: Sequence[str], wanted: Any) -> Iterator[Any]:
    """Of JSON: what Arrow makes of the fields of messages is not one text."""
    for name in names:
        with storage.open_input(name) as stream:
            lines = io.BufferedReader(stream)  # type: ignore[type-var]
            while some := list(islice(lines, ROWS)):
                rows = [msgspec.json.decode(line) for line in some]
                for row in rows:
                    if "reasons" in row:
                        row["reasons"] = [*row["reasons"].items()]
                    row["time"] = datetime.fromisoformat(row["time"]) if row.get("time") else None
                    row |= {key: msgspec.json.encode(row[key]).decode() for key in JSON if row.get(key) is not None}
                yield pa.RecordBatch.from_pylist(rows, schema=wanted)


def _scanned(names: Sequence[str], table: str, form: str, place: str, whole: Any) -> Iterator[Any]:
    if not names:
        return iter(())
    store, at = None, storage.local(place)
    if at is None:
        store, place = storage.remote(place)
        paths = [storage.remote(name)[1] for name in names]
    else:
        place, paths = str(at), [str(storage.local(name)) for name in names]
    kind: Any = "parquet"
    if form == "csv":
        nulls = pa.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
        kind = pa.dataset.CsvFileFormat(pa.csv.ParseOptions(newlines_in_values=True), convert_options=nulls)
    parts = None
    if form in ("parquet", "delta") and TABLES[table].partitioned:
        parts = pa.dataset.HivePartitioning(pa.schema([whole.field("protocol"), pa.field(DATE, pa.date32())]))
    found = pa.dataset.dataset(paths, whole, kind, store, parts, partition_base_dir=place)
    batches: Iterator[Any] = found.to_batches(columns=whole.names, batch_size=ROWS)
    return batches
