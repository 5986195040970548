"""The Spark data source `streamdump.packets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from streamdump.errors import CaptureError, UsageError
from streamdump.spark.arrivals import Arrivals, Offset
from streamdump.spark.rows import DDL
from streamdump.spark.splits import TARGET, Split, expand, grouped, plan

NAME = "streamdump.packets"


class _Given:
    """Options that were checked."""

    def __init__(self, options: Any) -> None:
        self.target = _number(options, "split", TARGET, 1)
        self.damaged = options.get("damaged", "fail")
        self.settle_s = _number(options, "settle", 10, 0)
        self.most = _number(options, "maxFilesPerTrigger", 0, 0)
        # Spark gives several as a list in JSON.
        paths = options.get("paths")
        self.paths = msgspec.json.decode(paths, type=list[str]) if paths is not None else [one for one in (options.get("path"),) if one]
        if self.damaged not in ("fail", "skip"):
            raise UsageError(f"option damaged: {self.damaged} must be fail or skip")

    def splits(self) -> list[Split]:
        """The ranges of all captures."""
        if not self.paths:
            raise UsageError("no capture given; load(PATH) takes captures, folders and patterns")
        found = plan(expand(self.paths, []), self.target)
        bad = [trouble for trouble in found.troubles if trouble.fatal]
        if bad and self.damaged == "fail":
            one = CaptureError(bad[0].reason, bad[0].path, bad[0].offset)
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise UsageError(f"{one}{more}; .option('damaged', 'skip') reads what can be read")
        return found.splits

    def arrivals(self) -> Arrivals:
        """What comes into the folder."""
        if len(self.paths) != 1:
            raise UsageError("a stream reads the captures of one folder; load(FOLDER) takes it")
        return Arrivals(self.paths[0], self.settle_s * 1_000_000_000, self.target, self.damaged == "skip")


@cache
def source() -> Any:
    """The class to register. Made in a function, a long one therefore, since PySpark is imported only where Spark is used."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

    def partitions(splits: Sequence[Split], target: int) -> Sequence[Any]:
        return [InputPartition(msgspec.json.encode(group)) for group in grouped(splits, target)]

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: Any) -> None:
            self.given = _Given(options)

        def partitions(self) -> Sequence[InputPartition]:
            return partitions(self.given.splits(), self.given.target)

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return _read(partition)

    class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        def __init__(self, options: Any) -> None:
            given = _Given(options)
            self.target, self.most, self.arrivals = given.target, given.most, given.arrivals()
            self.end = False

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as Spark calls it
            self.end = True

        def getDefaultReadLimit(self) -> Any:  # noqa: N802
            return ReadMaxFiles(self.most) if self.most else ReadAllAvailable()

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802
            made: dict[str, Any] = msgspec.to_builtins(Offset())
            return made

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
            return self.arrivals.latest(start, limit.max_files if isinstance(limit, ReadMaxFiles) else None, self.end)

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            return partitions(self.arrivals.splits(start, end), self.target)

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return _read(partition)

    class Packets(DataSource):  # type: ignore[misc]
        """Packets of captures. Options: `split` bytes of a range, `damaged` skip to read what can be read of files that are damaged, cut
        off or no captures. Of a stream also `settle`, seconds without change after which the newest capture is read, and
        `maxFilesPerTrigger`."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return DDL

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return StreamReader(self.options)

    return Packets


def _number(options: Any, name: str, default: int, least: int) -> int:
    text = str(options.get(name, default))
    if not text.isdigit() or int(text) < least:
        raise UsageError(f"option {name}: {text} is no number of at least {least}")
    return int(text)


def _read(partition: Any) -> Iterator[Any]:
    from streamdump.spark.rows import read

    if partition is None or partition.value is None:
        return
    for split in msgspec.json.decode(partition.value, type=list[Split]):
        yield from read(split)
