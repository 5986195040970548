"""The Spark data source `streamdump.packets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from dissect.errors import CaptureError, UsageError
from dissect.spark.rows import DDL
from dissect.spark.splits import TARGET, Split, expand, plan

NAME = "streamdump.packets"


def grouped(splits: Sequence[Split], target: int) -> list[list[Split]]:
    """Ranges that one task reads: small files together, up to `target` bytes."""
    groups: list[list[Split]] = []
    room = 0
    for split in splits:
        if split.size > room or not groups:
            groups.append([])
            room = target
        groups[-1].append(split)
        room -= split.size
    return groups


@cache
def source() -> Any:
    """The class to register. Made in a function, since PySpark is imported only where Spark is used."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: Any) -> None:
            self.target = int(options.get("split", TARGET))
            self.damaged = options.get("damaged", "fail")
            # Spark gives several as a list in JSON.
            paths = options.get("paths")
            self.paths = msgspec.json.decode(paths, type=list[str]) if paths is not None else [one for one in (options.get("path"),) if one]
            if self.target < 1:
                raise UsageError(f"option split: {self.target} is no number of bytes")
            if self.damaged not in ("fail", "skip"):
                raise UsageError(f"option damaged: {self.damaged} must be fail or skip")

        def partitions(self) -> Sequence[InputPartition]:
            if not self.paths:
                raise UsageError("no capture given; load(PATH) takes captures, folders and patterns")
            found = plan(expand(self.paths), self.target)
            bad = [trouble for trouble in found.troubles if trouble.fatal]
            if bad and self.damaged == "fail":
                one = CaptureError(bad[0].reason, bad[0].path, bad[0].offset)
                more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
                raise UsageError(f"{one}{more}; .option('damaged', 'skip') reads what can be read")
            return [InputPartition(msgspec.json.encode(group)) for group in grouped(found.splits, self.target)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            from dissect.spark.rows import read

            if partition is None or partition.value is None:
                return
            for split in msgspec.json.decode(partition.value, type=list[Split]):
                yield from read(split)

    class Packets(DataSource):  # type: ignore[misc]
        """Packets of captures. Options: `split` bytes of a range, `damaged` skip to read what can be read of files that are damaged, cut
        off or no captures."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return DDL

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options)

    return Packets
