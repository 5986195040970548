"""streamdump on Spark: captures as tables.

    import streamdump.spark

    streamdump.spark.register(spark)
    spark.read.format("streamdump").load("captures/").groupBy("protocol", "name").count().show()

PySpark is imported when the functions are called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

__all__ = ["register", "write_tables"]

PARTS = 4
"""Partitions of conversations for each core: more than one, so that others fill in while one has a giant."""


def register(spark: Any) -> None:
    """Makes `streamdump` known to a Spark session.

    Tasks on this machine run in this Python, which has streamdump, unless PYSPARK_PYTHON names another.
    """
    from .source import source

    context = getattr(spark, "sparkContext", None)
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(source())


def write_tables(spark: Any, sources: Sequence[str], out: str, **settings: Any) -> dict[str, int]:
    """Writes the tables of captures, as `streamdump pipeline SOURCES --out OUT` does, in a session that is there; not under Spark Connect.
    `settings`: members of `streamdump.spark.pipeline.PipelineSettings`. How many rows each table has."""
    from .pipeline import PipelineRun, PipelineSettings
    from .session import SparkTasks

    with closing(PipelineRun(PipelineSettings(list(sources), **settings), out)) as run:
        if run.prepare():
            run.go(SparkTasks(spark.sparkContext))
    return run.rows
