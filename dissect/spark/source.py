"""The Spark data source `streamdump`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from ..errors import CaptureError, UsageError, refuse
from ..model import Options
from .flows import CaptureFacts
from .splits import TARGET, ends_of, expand, last_packets, plan
from .tables import RECORDS, schema
from .tasks import TaskInput, alone, dissected
from .write import batches

NAME = "streamdump"


def planned(options: Any, table: str) -> list[bytes]:
    """What each partition reads."""
    split, damaged = options.get("split", str(TARGET)), options.get("damaged", "fail")
    # Spark gives several as a list in JSON.
    paths = msgspec.json.decode(options.get("paths", "[]"), type=list[str]) or [options.get("path")]
    refuse(
        (not split.isdigit() or not int(split), f"option split: {split} is no number of at least 1"),
        (damaged not in ("fail", "skip"), f"option damaged: {damaged} must be fail or skip"),
        (not all(paths), "no capture given; load(PATH) takes captures, folders and patterns"),
    )
    found = plan(expand(paths, []), int(split))
    bad = [error for error in found.errors if error.fatal]
    if bad and damaged == "fail":
        one = CaptureError(bad[0].reason, bad[0].path, bad[0].offset)
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise UsageError(f"{one}{more}; .option('damaged', 'skip') reads what can be read")
    ends_ns = ends_of(last_packets(found.splits), ())
    return [msgspec.msgpack.encode((table, one, found.secrets, ends_ns)) for one in alone(found, int(split))]


def read(data: bytes) -> Iterator[Any]:
    """The rows of a partition, as Arrow batches."""
    table, task, secrets, ends_ns = msgspec.msgpack.decode(data, type=tuple[str, TaskInput, list[str], dict[int, int]])
    options = Options(keylog=tuple(secrets), findings=table == "findings", entries=table == "entries")
    points = {split.file: split.path.rpartition("/")[0] for split in task.splits}
    yield from batches(table, dissected(task, options, CaptureFacts(ends_ns=ends_ns)), points)


@cache
def source() -> Any:
    """The class to register. Made in a function since PySpark is imported only where Spark is used."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: Any, table: str) -> None:
            self.options, self.table = options, table

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(one) for one in planned(self.options, self.table)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return read(partition.value) if partition is not None and partition.value is not None else iter(())

    class Records(DataSource):  # type: ignore[misc]
        """A `table` of captures, by default `messages`. Other options: `split` bytes of a range, `damaged` skip to read what can be read of
        files that are damaged, cut off or no captures."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> Any:
            return from_arrow_schema(schema(self.table))

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options, self.table)

        @property
        def table(self) -> str:
            table = str(self.options.get("table", "messages"))
            if table not in RECORDS:
                raise UsageError(f"option table: {table} must be one of {', '.join(RECORDS)}")
            return table

    return Records
