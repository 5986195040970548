"""streamdump on Spark: captures as tables.

    import dissect.spark

    dissect.spark.register(spark)
    packets = spark.read.format("streamdump.packets").load("captures/")
    dissect.spark.messages(packets).groupBy("protocol", "name").count().show()

The functions take what the data source gives and return a table of `dissect.spark.tables`. PySpark is imported when they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dissect.model import Options

__all__ = ["conversations", "exchanges", "gaps", "messages", "register"]

PARTS = 4
"""Partitions of conversations for each core: more than one, so that others fill in while one has a giant."""


def register(spark: Any) -> None:
    """Makes `streamdump.packets` known to a Spark session."""
    from dissect.spark.source import source

    spark.dataSource.register(source())


def messages(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The messages of these packets, in no order."""
    return _table("messages", packets, options, parts)


def exchanges(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The requests of these packets with their responses, or with the reason why there is none."""
    return _table("exchanges", packets, options, parts)


def gaps(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The bytes of these packets that belong to no message."""
    return _table("gaps", packets, options, parts)


def conversations(packets: Any, options: Options | None = None, parts: int | None = None) -> Any:
    """The conversations of these packets, without what they tell of each other."""
    return _table("conversations", packets, options, parts)


def by_conversation(
    packets: Any, parts: int | None = None, ordered: Sequence[Any] | None = None, without: Sequence[int] = (), carry: bool = False
) -> Any:
    """The packets of each conversation together and in order, each conversation in one partition of `parts`.

    `without`: partitions that stay empty. `ordered`: tables of the rows of `packets` that depend on each other across conversations, None
    to look for them in `packets`. `carry`: more packets will come later, so add what those depend on across conversations. What was
    carried from earlier packets belongs to `packets`, and of kind CARRY_IN_ORDER to `ordered` too if that is given.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    from dissect.spark.flows import IN_ORDER, SORTED_BY, in_order
    from dissect.spark.rows import CARRY, DDL, SEGMENT

    spark = packets.sparkSession
    count = parts or PARTS * spark.sparkContext.defaultParallelism

    def joined(batches: Iterator[Any]) -> Iterator[Any]:
        yield from in_order(batches, carry)

    if ordered is None:
        ordered = [packets.where(f"kind not in ({SEGMENT}, {CARRY}) or digest is not null")]
    rows = packets.where(f"kind in ({SEGMENT}, {CARRY})")
    if ordered:
        together = reduce(DataFrame.unionByName, ordered).repartition(1).sortWithinPartitions(*IN_ORDER)
        rows = rows.unionByName(together.mapInArrow(joined, DDL))
    keys = [f.col(name[1:]).desc() if name.startswith("-") else f.col(name) for name in SORTED_BY]
    placed = rows.drop("cooked", "digest").withColumn("part", f.pmod("flow_id", f.lit(count)).cast("int"))
    if without:
        placed = placed.where(~f.col("part").isin(list(without)))
    return placed.repartitionById(count, "part").sortWithinPartitions(*keys)


def _table(name: str, packets: Any, options: Options | None, parts: int | None) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    from dissect.model import Options
    from dissect.spark.tables import schema

    chosen = options or Options()

    def made(batches: Iterator[Any]) -> Iterator[Any]:
        from dissect.spark import flows, tables

        for results in flows.dissect(batches, chosen):
            rows: Any = results.conversations if name == "conversations" else tables.sorted_out(results.records)[name]
            reports = results.reports
            for start in range(0, len(rows), 10_000):
                yield from tables.batches(name, rows[start : start + 10_000], True, reports)
            # There is no driver of ours that could tell; Spark keeps what its workers say in its log
            sys.stderr.writelines(f"streamdump: {report.text(None)}\n" for report in reports)

    return by_conversation(packets, parts).mapInArrow(made, from_arrow_schema(schema(name)))
