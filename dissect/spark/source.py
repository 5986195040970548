"""The Spark data source `streamdump`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from ..errors import CaptureError, UsageError
from ..model import Options
from .splits import TARGET, Plan, ends_of, expand, last_packets, plan
from .tables import RECORDS
from .tasks import TaskInput, alone, dissected
from .write import batches, pointless

NAME = "streamdump"


class _Given:
    """Options that were checked."""

    def __init__(self, options: Any) -> None:
        self.target = _number(options, "split", TARGET, 1)
        self.damaged = options.get("damaged", "fail")
        # Spark gives several as a list in JSON.
        paths = options.get("paths")
        self.paths = msgspec.json.decode(paths, type=list[str]) if paths is not None else [one for one in (options.get("path"),) if one]
        if self.damaged not in ("fail", "skip"):
            raise UsageError(f"option damaged: {self.damaged} must be fail or skip")

    def plan(self) -> Plan:
        """How all captures are read."""
        if not self.paths:
            raise UsageError("no capture given; load(PATH) takes captures, folders and patterns")
        found = plan(expand(self.paths, []), self.target)
        bad = [error for error in found.errors if error.fatal]
        if bad and self.damaged == "fail":
            one = CaptureError(bad[0].reason, bad[0].path, bad[0].offset)
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise UsageError(f"{one}{more}; .option('damaged', 'skip') reads what can be read")
        return found


@cache
def source() -> Any:
    """The class to register. Made in a function since PySpark is imported only where Spark is used."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: Any, table: str) -> None:
            self.given, self.table = _Given(options), table

        def partitions(self) -> Sequence[InputPartition]:
            found = self.given.plan()
            ends_ns = ends_of(last_packets(found.splits), ())
            made = [msgspec.msgpack.encode((one, found.secrets, ends_ns)) for one in alone(found, self.given.target)]
            return [InputPartition((self.table, one)) for one in made]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return _read(*partition.value) if partition is not None and partition.value is not None else iter(())

    class Records(DataSource):  # type: ignore[misc]
        """A `table` of captures, by default `messages`. Other options: `split` bytes of a range, `damaged` skip to read what can be read of
        files that are damaged, cut off or no captures."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> Any:
            return from_arrow_schema(pointless(self.table))

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options, self.table)

        @property
        def table(self) -> str:
            table = str(self.options.get("table", "messages"))
            if table not in RECORDS:
                raise UsageError(f"option table: {table} must be one of {', '.join(RECORDS)}")
            return table

    return Records


def _number(options: Any, name: str, default: int, least: int) -> int:
    text = str(options.get(name, default))
    if not text.isdigit() or int(text) < least:
        raise UsageError(f"option {name}: {text} is no number of at least {least}")
    return int(text)


def _read(table: str, data: bytes) -> Iterator[Any]:
    source, secrets, ends_ns = msgspec.msgpack.decode(data, type=tuple[TaskInput, list[str], dict[int, int]])
    yield from batches(
        table, dissected(source, Options(keylog=tuple(secrets), findings=table == "findings", entries=table == "entries"), ends_ns)
    )
