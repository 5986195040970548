"""What a plain run says of some captures, and what the pipeline says, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable

from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError, Report
from streamdump.inspector import Inspector
from streamdump.model import Options
from streamdump.spark import flows, rows, storage, tables, write
from streamdump.spark.ordered import Row
from streamdump.spark.splits import Plan, Split, ends_of, last_packets, plan

Lines = dict[str, list[str]]

LEFT_OUT = {"time", "conversation", "point", "date", "client", "server", "message_id", "request_time"}
LEFT_OUT |= {"request_id", "response_id", "request_size", "response_size", "code", "code_label"}
"""Columns that a plain run has no word for, or that `fields` says already (`test_tables` compares the structs with it)."""


def plain(files: Sequence[Path], options: Options | None = None) -> Lines:
    """The records of a plain run with `--json --exchanges`, with requests and responses by side and position, gaps without packets."""
    readers = []
    for file in files:
        try:
            readers.append(open_capture(file))
        except CaptureError:
            readers.append(None)
    inspector = Inspector(readers, replace(options or Options(), exchanges=True))  # type: ignore[arg-type]
    records = list(inspector.records())
    by_number = {record.number: record for record in records}
    found: Lines = {name: [] for name in tables.KINDS.values()}
    for record in records:
        line = msgspec.to_builtins(record)
        for name in ("record", "v", "number", "conversation", "time"):
            del line[name]
        # Tables have none
        line.pop("processes", None)
        for name in ("request", "response"):
            if name in line:
                other: Any = by_number.get(line[name])
                line[name] = other and f"{int(other.src > other.dst)}-{other.position}"
        if "packets" in line:
            line["packets"] = list(line["packets"])
        if "notes" in line:
            line["notes"] = list(line["notes"])
        if "id" in line and line["id"] is not None:
            line["id"] = str(line["id"])
        found[tables.KINDS[type(record)]].append(_line(line))
    del found["findings"]
    return {name: sorted(lines) for name, lines in found.items()}


def told(table: str, columns: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of a table in the same form."""
    lines = []
    for row in columns:
        line = {name: value for name, value in row.items() if name not in LEFT_OUT}
        if table == "messages":
            line["packets"] = [line.pop("first_packet"), line.pop("last_packet")]
            line["fields"] = msgspec.json.decode(line["fields"])
        if table == "gaps":
            del line["file"], line["packet"]
        names = {"messages": {"request": "request_id"}, "exchanges": {"request": "message_id", "response": "response_id"}}
        for name, column in names.get(table, {}).items():
            line[name] = row[column] and row[column].partition("-")[2]
        lines.append(_line(line))
    return sorted(lines)


def columns(table: str, records: Sequence[Any]) -> Any:
    """Records as columns, all at once."""
    waiting = tables.PendingRows(table)
    waiting.add(records)
    reports: list[Report] = []
    found = waiting.batch(reports)
    assert not reports
    return found


def _line(values: dict[str, Any]) -> str:
    return msgspec.json.encode(values, order="sorted").decode()


def rows_of(splits: Sequence[Split]) -> Iterator[Row]:
    """The rows of some ranges, one after the other."""
    for split in splits:
        for some, owners in rows.segments([split]):
            yield from (rows.row_of(one, owners.get(id(one))) for one in some)


def without_spark(files: Sequence[Path], split: int) -> tuple[Plan, Lines]:
    """The pipeline's own steps without Spark."""
    found = plan([str(file) for file in files], split)
    packets = sorted(rows_of(found.splits))
    lines: Lines = {name: [] for name in tables.KINDS.values()}
    options = Options(keylog=tuple(found.secrets))
    ends_ns = ends_of(last_packets(found.splits), ())
    for results in flows.dissect(packets, options, flows.CaptureFacts(ends_ns=ends_ns)):
        for name, some in write.rows_of(results, lines.keys()):
            lines[name] += told(name, columns(name, some).to_pylist())
    del lines["findings"]
    return found, {name: sorted(some) for name, some in lines.items()}


def tables_of(out: Path | str, form: str = "parquet") -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables."""
    return {table: _rows(storage.folder(str(out)), table, form) for table in tables.TABLES}


def _rows(out: Any, table: str, form: str) -> list[dict[str, Any]]:
    place = out.at(table).name
    at = storage.local(place)
    if form == "delta" and not out.at(table, "_delta_log").exists():
        return []
    if form == "delta":
        options = {} if at is not None else {"AWS_ALLOW_HTTP": "true"}
        return list(DeltaTable(str(at or place), storage_options=options).to_pyarrow_table().to_pylist())
    store, base = (None, str(at)) if at is not None else storage.remote(place)
    names = list(storage.listed(place))
    paths = [str(storage.local(name)) if at is not None else storage.remote(name)[1] for name in names]
    whole = tables.schema(table)
    parts = None
    if tables.TABLES[table].partitioned:
        known = whole.append(pa.field(tables.DATE, pa.date32()))
        parts = pa.dataset.HivePartitioning(pa.schema([known.field(name) for name in tables.TABLES[table].partitioned]))
    found = pa.dataset.dataset(paths, whole, "parquet", store, parts, partition_base_dir=base)
    return list(found.to_table(columns=whole.names).to_pylist()) if names else []


def same(out: Path | str, expected: Lines, form: str = "parquet") -> None:
    """The tables say what was expected."""
    found = tables_of(out, form)
    for table, lines in expected.items():
        assert told(table, found[table]) == lines
