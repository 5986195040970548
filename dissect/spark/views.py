"""Makes written tables known to SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from . import storage
from .storage import Folder
from .tables import DATE, TABLES, TYPED, schema


def views(spark: Any, out: Folder) -> None:
    """Make the tables in a folder views of their names; `variant` holds the fields of messages to be asked by path."""
    for table in TABLES:
        names = _files(out.at(table))
        if not names and table in TYPED.values():
            continue
        found = _table(spark, out.at(table).name, names, schema(table), TABLES[table].partitioned)
        for name in ("fields", "facts"):
            if name in found.columns:
                found = found.selectExpr("*", f"parse_json({name}) as {'variant' if name == 'fields' else 'facts_variant'}")
        found.createOrReplaceTempView(table)


def _files(table: Folder) -> list[str]:
    """The Parquet files of a table."""
    if not table.at("_delta_log").exists():
        return list(storage.listed(table.name))
    from .delta import files_of

    return files_of(table)


def _table(spark: Any, place: str, names: list[str], columns: Any, by: Sequence[str]) -> Any:
    """The rows of the Parquet files of a table in `place`, with the column of their day where they are divided by it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    by_day = DATE in by and any(f"/{DATE}=" in name for name in names)
    known = columns.append(pa.field(DATE, pa.date32()))
    wanted = known if by_day else columns
    if not names:
        return spark.createDataFrame([], from_arrow_schema(wanted))
    at = storage.local(place)
    if at is not None:
        # To Hadoop some characters are a pattern
        literal = [re.sub(r"([*?\[\]{}\\])", r"\\\1", str(storage.local(name))) for name in names]
        return spark.read.schema(from_arrow_schema(wanted)).option("basePath", str(at)).parquet(*literal).select(*wanted.names)

    def rows(given: Iterator[Any]) -> Iterator[Any]:
        # Spark has no library for object stores along
        store, base = storage.remote(place)
        parts = pa.dataset.HivePartitioning(pa.schema([known.field(one) for one in by])) if by else None
        paths = [storage.remote(names[index])[1] for batch in given for index in batch.column(0).to_pylist()]
        found = pa.dataset.dataset(paths, wanted, "parquet", store, parts, partition_base_dir=base)
        yield from found.to_batches(columns=wanted.names)

    return spark.range(0, len(names), 1, len(names)).mapInArrow(rows, from_arrow_schema(wanted))
