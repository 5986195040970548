"""What a notebook does, in a session of Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from tests.spark.captures import generated, records, rotated
from tests.spark.comparing import plain, told
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(find_spec("grpc_status") is None, reason="pyspark[connect] is not installed")

NOTEBOOK = """
import sys, msgspec
from pyspark.sql import SparkSession
import streamdump.spark

spark = SparkSession.builder.remote("local[1]").getOrCreate()
streamdump.spark.register(spark)
reader = spark.read.format("streamdump").option("split", "100000")
rows = [row.asDict(recursive=True) for row in reader.load(sys.argv[1]).drop("time").collect()]
print(msgspec.json.encode(rows).decode())
print(reader.option("table", "exchanges").load(sys.argv[1]).count())
spark.stop()
"""

JAVA = """#!/bin/bash
# Spark's own launcher asks for a module that is for numeric kernels only, and that not every Java has
for one in "$@"; do [ "$one" = --add-modules=jdk.incubator.vector ] || given+=("$one"); done
exec {}/bin/java "${{given[@]}}"
"""


def test_a_notebook_on_spark_connect_gets_the_same(tmp_path: Path, java_home: str) -> None:
    files = rotated(tmp_path / "captures", records(generated(tmp_path)))
    (tmp_path / "captures" / "README.md").write_text("# What is no capture is left out")
    expected = plain(files)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(java_home))
    java.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environ |= {"JAVA_HOME": str(tmp_path / "java"), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    call = [sys.executable, "-c", NOTEBOOK, str(tmp_path / "captures")]
    done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    messages, exchanges = done.stdout.splitlines()[-2:]
    assert told("messages", msgspec.json.decode(messages)) == expected["messages"]
    assert int(exchanges) == len(expected["exchanges"])
