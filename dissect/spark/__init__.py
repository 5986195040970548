"""streamdump on Spark: captures as tables.

    import streamdump.spark

    streamdump.spark.register(spark)
    packets = spark.read.format("streamdump.packets").load("captures/")
    streamdump.spark.messages(packets).groupBy("protocol", "name").count().show()

The functions take what the data source gives and return a table of `streamdump.spark.tables`. PySpark is imported when they are called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..model import Options

__all__ = ["conversations", "endings", "entries", "exchanges", "findings", "gaps", "latency", "messages", "register", "write_tables"]

PARTS = 4
"""Partitions of conversations for each core: more than one, so that others fill in while one has a giant."""


def register(spark: Any) -> None:
    """Makes `streamdump` and `streamdump.packets` known to a Spark session.

    Tasks on this machine run in this Python, which has streamdump, unless PYSPARK_PYTHON names another.
    """
    from .source import sources

    context = getattr(spark, "sparkContext", None)
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    for source in sources():
        spark.dataSource.register(source)


def write_tables(spark: Any, sources: Sequence[str], out: str, **settings: Any) -> dict[str, int]:
    """Writes the tables of captures, as `streamdump pipeline SOURCES --out OUT` does, in a session that is there; not under Spark Connect.
    `settings`: members of `streamdump.spark.pipeline.PipelineSettings`. How many rows each table has."""
    from ..errors import UsageError
    from . import storage
    from .pipeline import PipelineRun, PipelineSettings
    from .session import SparkTasks

    if storage.folder(out).names() and not settings.get("append"):
        raise UsageError(f"{out}: is there already")
    run = PipelineRun(PipelineSettings(list(sources), **settings), out)
    try:
        if run.prepare():
            run.go(SparkTasks(spark.sparkContext))
    finally:
        run.close()
    return run.rows


def messages(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The messages of these packets, in no order."""
    return _table("messages", packets, options, parts)


def exchanges(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The requests of these packets with their responses, or with the reason why there is none."""
    return _table("exchanges", packets, options, parts)


def gaps(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The bytes of these packets that belong to no message."""
    return _table("gaps", packets, options, parts)


def endings(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """How the conversations of these packets ended."""
    return _table("endings", packets, options, parts)


def conversations(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The conversations of these packets, without what they tell of each other."""
    return _table("conversations", packets, options, parts)


def findings(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """What went wrong in the conversations of these packets, each for itself."""
    return _table("findings", packets, options, parts)


def entries(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The user messages that the messages of these packets carry."""
    return _table("entries", packets, options, parts)


def latency(exchanges: Any, by: Sequence[str] = ("protocol", "name")) -> Any:
    """How long these exchanges took, by columns of theirs: how many, refused and unanswered, quantiles as `streamdump latency` has them,
    and the sketch they come from, which SQL merges, and `streamdump.latency.sketch.Sketch.unpack` reads."""
    from .latencies import table

    return table(exchanges, by)


def by_conversation(packets: Any, parts: int | None = None) -> Any:
    """The packets of each conversation together and in order, each conversation in one partition of `parts`: as sorted blocks of rows, and
    beside each the end of the capture."""
    from . import tasks
    from .rows import CARRY, SEGMENT

    count = parts or PARTS * cores(packets.sparkSession)
    alone = packets.where(f"kind not in ({SEGMENT}, {CARRY}) or digest is not null")
    by_time = alone.mapInArrow(partial(tasks.as_rows, tasks.dependent, 0), BLOCKS).repartition(1)
    blocks = packets.mapInArrow(partial(tasks.as_rows, tasks.simple, count), BLOCKS)
    every = blocks.unionByName(by_time.mapInArrow(partial(tasks.as_ordered_rows, count), BLOCKS))
    # The time of the last packet in merged order
    end = packets.selectExpr("max_by(time_ns, struct(merge_ns, file, number)) as end_ns")
    return every.crossJoin(end.hint("broadcast")).repartitionById(count, "part")


def cores(spark: Any) -> int:
    """Tasks that run at the same time, as far as Spark tells; a session of Spark Connect tells only into how many it divides something."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return int(context.defaultParallelism)
    return int(spark.range(IDS).selectExpr("spark_partition_id() as part").distinct().count())


IDS = 10_000
"""Rows of a table that Spark divides into as many parts as it has cores."""

BLOCKS = "part int, block binary"


def _table(name: str, packets: Any, options: Options | None, parts: int | None) -> Any:
    from dataclasses import replace

    from pyspark.sql.pandas.types import from_arrow_schema

    from ..model import Options
    from . import tasks
    from .write import pointless

    chosen = replace(options or Options(), findings=name == "findings", entries=name == "entries")
    return by_conversation(packets, parts).mapInArrow(partial(tasks.records, name, chosen), from_arrow_schema(pointless(name)))
