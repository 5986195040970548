"""The analyst's questions of the page run as they stand in Spark, DuckDB and Polars, and say the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from streamdump.latency.sketch import Sketch
from streamdump.spark.storage import folder
from streamdump.spark.tables import tables_with
from streamdump.spark.views import views
from tests.spark.comparing import tables_of
from tests.spark.here import Here, go
from tests.support.pages import page

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
PAGE = page("dissect/spark/README.md")
QUESTIONS = re.findall(r"```sql\n(.*?)```", PAGE[PAGE.index("## Ten questions") :], re.DOTALL)
QUANTILES = re.findall(r"```\w+\n(.*?)```", PAGE[PAGE.index("## Quantiles of longer times") : PAGE.index("## Ten questions")], re.DOTALL)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("questions") / "tables"
    go([GOLDEN], out, Here(cores=1), findings=True, separate=True, by=("date", "protocol"))
    return out


def plainly(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return round(float(value), 6) if isinstance(value, int | float | Decimal) else value


def plain(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(map(plainly, row)) for row in rows]


def test_there_are_ten_that_can_be_read() -> None:
    assert len(QUESTIONS) == 10
    for one in QUESTIONS:
        lines = one.splitlines()
        assert len(lines) <= 12
        assert max(map(len, lines)) <= 120


def test_all_engines_answer_them_alike(session: Any, tables: Path) -> None:
    views(session.spark, folder(tables))
    duck = duckdb.connect()
    for table in tables_with("json"):
        duck.execute(f"create view {table} as from '{tables}/{table}/**/*.parquet'")
    frames = polars.SQLContext({table: polars.scan_parquet(tables / table) for table in tables_with("json")})
    for one in QUESTIONS:
        found = duck.execute(one).fetchall()
        assert found, one
        assert plain(frames.execute(one, eager=True).rows()) == plain(found), one
        assert plain([tuple(row) for row in session.spark.sql(one).collect()]) == plain(found), one


def test_quantiles_of_hours_are_those_of_all_their_latencies(session: Any, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: dict[tuple[Any, ...], Sketch] = {}
    counts = Counter[tuple[Any, ...]]()
    for row in tables_of(tables)["exchanges"]:
        if row["latency_ns"] is not None:
            key = row["time"].replace(minute=0, second=0, microsecond=0, tzinfo=None).isoformat(), row["protocol"], row["name"]
            wanted.setdefault(key, Sketch()).add(row["latency_ns"])
    for row in tables_of(tables)["latency"]:
        counts[row["time"].replace(minute=0, tzinfo=None).isoformat(), row["protocol"], row["name"]] += 1
    assert max(counts.values()) > 1, "several minutes or servers are added up"
    monkeypatch.chdir(tables.parent)
    duck, spark, frame = QUANTILES
    names: dict[str, Any] = {}
    exec(frame, names)
    views(session.spark, folder(tables))
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    monkeypatch.setenv("TZ", "UTC")
    rows = {
        "duckdb": duckdb.sql(duck).fetchall(),
        "spark": session.spark.sql(spark).selectExpr("cast(hour as timestamp_ntz)", "protocol", "name", "latencies", "p99_ms").collect(),
        "polars": names["hours"].rows(),
    }
    for engine, some in rows.items():
        said = {(hour.replace(tzinfo=None).isoformat(), protocol, name): (n, p99) for hour, protocol, name, n, p99 in some}
        assert said.keys() == wanted.keys(), engine
        for key, (n, p99) in said.items():
            assert n == len(wanted[key])
            # The least and the greatest latency are known exactly to a sketch
            assert abs(float(p99) * 1e6 - wanted[key].quantile(0.99)) <= max(0.009 * wanted[key].quantile(0.99), 0.5), (engine, key)
