"""Waiting ends with the capture, whichever task reads its last packet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import streamdump.spark
from streamdump.model import Message
from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import PipelineSettings
from streamdump.spark.rotation import Rotation
from tests.diagnose.talks import SECOND, Connection, diagnosed
from tests.spark.comparing import plain, same, tables_of, told
from tests.spark.here import Here, go
from tests.spark.test_delta import apart
from tests.support.frames import START_NS, Packet, pcap
from tests.test_capture_end import hanging, udp


def written(folder: Path, end_ns: int = 60 * SECOND) -> list[Path]:
    """One point has a request without an answer, the other talks and then has the last packet, which is not TCP."""
    talks = [Connection(begin=at * SECOND, sport=41000 + at).ready().goodbye() for at in range(1, 8)]
    others = [packet for one in talks for packet in one.packets]
    contents = {
        "one/0.pcap": [*hanging().packets, udp(20 * SECOND)],
        "two/1.pcap": [*others, udp(end_ns), udp(end_ns + 1), Packet(udp(0).data, START_NS + 50 * SECOND)],
    }
    paths = [folder / name for name in contents]
    for path, packets in zip(paths, contents.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pcap(packets, nano=True, snap=2048))
    return paths


def waited(out: Path) -> list[float]:
    return [row["waited_ns"] / SECOND for row in tables_of(out)["exchanges"] if row["outcome"] == "unanswered"]


@pytest.mark.parametrize("more", [{}, {"split": 3_000}, {"split": 3_000, "parts": 3}, {"findings": True}], ids=str)
def test_it_ends_with_the_last_packet_of_all(tmp_path: Path, more: dict[str, Any]) -> None:
    files, out = written(tmp_path / "in"), tmp_path / "out"
    go(files, out, **more)
    same(out, plain(files))
    assert waited(out) == [pytest.approx(50, abs=0.1)], "the last packet in the order of files, though it is not the latest"
    if more.get("findings"):
        (finding,) = [row for row in tables_of(out)["findings"] if row["rule"] == "rabbitmq-stream.open-requests"]
        assert (finding["severity"], finding["cause"]) == ("warning", "Create has no answer for 49.99 s when the capture ends")


@pytest.mark.parametrize("split", [3_000, 1 << 30])
def test_separate_networks_end_by_themselves(tmp_path: Path, split: int) -> None:
    files, out = written(tmp_path / "in"), tmp_path / "out"
    go(files, out, separate=True, split=split)
    same(out, apart(files))
    assert waited(out) == [pytest.approx(20, abs=0.1)]


@pytest.mark.parametrize("separate", [False, True])
def test_what_was_followed_ends_with_the_last_batch(tmp_path: Path, separate: bool) -> None:
    files, folder, out = written(tmp_path / "in"), tmp_path / "captures", tmp_path / "out"
    folder.mkdir()
    settings = PipelineSettings([str(folder)], separate=separate, point=r"(\d)\.pcap" if separate else None)
    for path in files:
        (folder / path.name).write_bytes(path.read_bytes())
        work = Follow(settings, str(out), Rotation(folder, 0))
        work.cluster = Here()
        assert work.step() is not None
        work.close()
    work = Follow(settings, str(out), Rotation(folder, 0))
    work.cluster = Here()
    while work.step(end=True) is not None:
        pass
    work.close()
    assert waited(out) == [pytest.approx(20 if separate else 50, abs=0.1)]
    same(out, apart(files) if separate else plain(files))


def test_findings_are_those_of_a_plain_run(tmp_path: Path) -> None:
    (path,), out = [written(tmp_path / "in")[0]], tmp_path / "out"
    go([path], out, findings=True)
    found = [(row["rule"], row["severity"], row["cause"], row["time_ns"]) for row in tables_of(out)["findings"]]
    assert sorted(found) == sorted((one.rule, one.severity, one.cause, one.time_ns) for one in diagnosed(path)[0])
    assert any(row[1] == "warning" for row in found)


def test_in_a_notebook(session: Any, tmp_path: Path) -> None:
    files, spark = written(tmp_path / "in"), session.spark
    streamdump.spark.register(spark)
    exchanges = spark.read.format("streamdump").option("table", "exchanges").option("split", "3000").load([str(path) for path in files])
    assert told("exchanges", [row.asDict(recursive=True) for row in exchanges.collect()]) == plain(files)["exchanges"]


@pytest.mark.parametrize("split", [3_000, 1 << 30])
def test_relative_times_count_from_the_first_packet_of_all(tmp_path: Path, split: int) -> None:
    files, out = written(tmp_path / "in"), tmp_path / "out"
    go(files, out, split=split, where="relative > 5s")
    times = sorted(row["time_ns"] for row in tables_of(out)["messages"])
    assert times == sorted(one.time_ns for one in streamdump.read(*files, where="relative > 5s") if isinstance(one, Message))
    assert len(times) == 36
