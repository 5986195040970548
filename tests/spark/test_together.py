"""What parts tell together is what a plain run says: findings, latencies by the minute, and conversations that tell of each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.latency.rows import times_of
from streamdump.latency.sketch import Sketch
from streamdump.model import Finding, Options
from streamdump.spark import latencies, pipeline
from tests.spark.comparing import plain, same, tables_of
from tests.spark.here import Here, go

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
FAMILIES = ("rabbitmq-stream", "iggy", "mewbase", "seastar-rpc")
MINUTE_NS = 60_000_000_000


def small(family: str, most: int = 12) -> list[Path]:
    return [path for path in sorted((GOLDEN / family).glob("*.pcap")) if path.stat().st_size < 60_000 and "tls" not in path.name][:most]


def found_plainly(files: list[Path]) -> tuple[Counter[Any], Counter[Any]]:
    """The findings of a plain run of conversations, and of several together."""
    inspector = Inspector([open_capture(path) for path in files], Options(findings=True, exchanges=True, separate=len(files) > 1))
    found = [one for one in inspector.records() if isinstance(one, Finding)]
    own = Counter(
        (one.time_ns, one.src, one.dst, one.rule, one.severity, one.cause, one.advice) for one in found if one.conversation is not None
    )
    return own, Counter((one.rule, one.severity, one.cause) for one in found if one.conversation is None)


@pytest.mark.parametrize("cut", [{}, {"split": 9_000, "parts": 3}], ids=["whole", "sent"])
@pytest.mark.parametrize("family", FAMILIES)
def test_findings_of_conversations_are_those_of_a_plain_run(family: str, cut: dict[str, Any], tmp_path: Path) -> None:
    for at, path in enumerate(small(family)):
        own, across = found_plainly([path])
        go([path], tmp_path / str(at), findings=True, **cut)
        rows = tables_of(tmp_path / str(at))
        names = ("time_ns", "src", "dst", "rule", "severity", "cause", "advice")
        found = [row for row in rows["findings"] if row["conversation"] is not None]
        assert Counter(tuple(row[name] for name in names) for row in found) == own
        assert Counter((row["rule"], row["severity"], row["cause"]) for row in rows["findings"] if row["conversation"] is None) == across
        messages = {row["message_id"] for row in rows["messages"]}
        for row in rows["findings"]:
            assert messages.issuperset(row["messages"])
            assert row["message_id"] == (row["messages"] or [None])[0]


def test_copies_that_different_tasks_read(tmp_path: Path) -> None:
    path = GOLDEN.parent / "samples" / "reports" / "dnat_both_sides.pcap"
    go([path], tmp_path, findings=True, split=3_000, parts=3)
    (row,) = tables_of(tmp_path)["findings"]
    assert Counter([(row["rule"], row["severity"], row["cause"])]) == found_plainly([path])[1]
    assert row["rule"] == "tcp.captured-twice"


@pytest.mark.parametrize("buckets", [1, 3])
def test_latencies_by_minute_are_those_of_the_exchanges(buckets: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [path for family in FAMILIES for path in small(family, 4)]
    if buckets > 1:
        # What is left is shuffled by server
        monkeypatch.setattr(pipeline, "BUCKET", 4_000)
    cluster = Here()
    run = go(files, tmp_path / "out", cluster, split=9_000, parts=3)
    same(tmp_path / "out", plain(files))
    rows = tables_of(tmp_path / "out")
    wanted: dict[tuple[Any, ...], Sketch] = {}
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows["exchanges"]:
        key = row["time_ns"] // MINUTE_NS * MINUTE_NS, row["protocol"], row["name"], row["server"]
        counts[key] += 1
        sketch = wanted.setdefault(key, Sketch())
        if row["latency_ns"] is not None:
            sketch.add(row["latency_ns"])
    found = {(row["time_ns"], row["protocol"], row["name"], row["server"]): row for row in rows["latency"]}
    assert len(found) == len(rows["latency"]) == len(wanted)
    for key, row in found.items():
        assert row["exchanges"] == counts[key] == row["answered"] + row["refused"] + row["unanswered"]
        assert [tuple(one.values()) for one in row["sketch"]] == wanted[key].pack()
        assert row["p99_ns"] == (wanted[key].quantile(0.99) if len(wanted[key]) else None)
    by_command = Counter((row["protocol"], row["name"]) for row in rows["exchanges"])
    assert {(row["protocol"], row["name"]): row["exchanges"] for row in latencies.by_command(run.counts)} == by_command
    times = sorted((row["latency_ns"] for row in rows["exchanges"] if row["latency_ns"] is not None), reverse=True)
    assert [row["latency_ns"] for row in run.slowest] == times[:5]


def test_sums_of_latencies_beyond_64_bits() -> None:
    long_ns = (1 << 63) - 1
    rows = [("iggy", "ping", "192.0.2.1:8090", "answered", None, one) for one in (long_ns, long_ns, long_ns - 2, 0, -5)]
    names = ("protocol", "name", "server", "outcome", "reason", "latency_ns")
    columns: dict[str, Any] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    columns["reason"] = pa.nulls(len(rows), pa.string())
    exchanges = pa.table({**columns, "time_ns": [MINUTE_NS] * len(rows)})
    (row,) = latencies.rows(latencies.counted(exchanges)).to_pylist()
    sketch = Sketch(columns["latency_ns"])
    assert (row["mean_ns"], row["min_ns"], row["max_ns"]) == (round(sketch.total / 5), -5, long_ns)
    assert [tuple(one.values()) for one in row["sketch"]] == sketch.pack()


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(-(10**12), 10**15)), min_size=1, max_size=300))
def test_quantiles_of_columns_are_those_of_sketches(values: list[tuple[str, int]]) -> None:
    exchanges = pa.table(
        {
            "time_ns": [0] * len(values),
            "protocol": ["iggy"] * len(values),
            "name": [name for name, _ in values],
            "server": pa.nulls(len(values), pa.string()),
            "outcome": ["answered"] * len(values),
            "reason": pa.nulls(len(values), pa.string()),
            "latency_ns": [value for _, value in values],
        }
    )
    halves = [latencies.counted(exchanges[: len(values) // 2 + 1]), latencies.counted(exchanges[len(values) // 2 + 1 :])]
    for row in latencies.rows(latencies.added(halves)).to_pylist():
        sketch = Sketch(value for name, value in values if name == row["name"])
        assert [row[name] for name in latencies.TIMES] == list(msgspec.structs.astuple(times_of(sketch)))[1:]
        assert [tuple(one.values()) for one in row["sketch"]] == sketch.pack()
        assert row["exchanges"] == row["answered"] == len(sketch)


def test_conversations_are_related_in_a_shuffle_by_server_as_in_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted((GOLDEN / "seastar-rpc").glob("stream*.pcap"))[:6] + small("iggy", 6)
    go(files, tmp_path / "driver", separate=True)
    monkeypatch.setattr(pipeline, "BUCKET", 1_000)
    go(files, tmp_path / "shuffle", separate=True, split=20_000)
    facts = [{row["conversation"]: row["facts"] for row in tables_of(tmp_path / one)["conversations"]} for one in ("driver", "shuffle")]
    assert facts[0] == facts[1]
    assert any("stream_conversations" in one for one in facts[0].values())
