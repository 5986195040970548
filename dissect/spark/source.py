"""The Spark data source `streamdump.packets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from dissect.spark.splits import TARGET, Plan, Split, expand, plan

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


def _truth(options: Any, name: str, default: bool) -> bool:
    return str(options.get(name, default)).lower() not in ("false", "0", "no")


@cache
def source() -> Any:
    """The class to register. Made in a function, since PySpark is imported only where Spark is used."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from dissect.spark.rows import DDL

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: Any) -> None:
            self.target = int(options.get("split", TARGET))
            self.payload = _truth(options, "payload", True)
            self.ordered = _truth(options, "ordered", False)
            self.plan = options.get("plan")
            self.path = options.get("path")

        def partitions(self) -> Sequence[InputPartition]:
            if self.plan is not None:
                found = msgspec.json.decode(self.plan, type=Plan)
            else:
                found = plan(expand([str(self.path).removeprefix("file:")]), self.target)
            splits = found.splits
            if self.ordered:
                splits = [split for split in splits if split.fragments or split.sightings]
            return [InputPartition(msgspec.json.encode(group)) for group in grouped(splits, self.target)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            from dissect.spark.rows import read

            if partition is None or partition.value is None:
                return
            for split in msgspec.json.decode(partition.value, type=list[Split]):
                yield from read(split, self.payload, self.ordered)

    class Packets(DataSource):  # type: ignore[misc]
        """Packets of captures. Options: `split` bytes of a range, `payload` false to leave out what can be read again."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return DDL

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options)

    return Packets
