"""Bugs of ours in Spark's tasks: what they cost is what they cost a plain run, and the driver tells of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

import streamdump.spark
from streamdump.capture.files import open_capture
from streamdump.cli import following
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.errors import BARRIER, Report
from streamdump.inspector import Inspector
from streamdump.model import Message
from streamdump.pair.pairer import Pairer
from streamdump.protocols.parser import Parser
from streamdump.spark import flows, pipeline, tables
from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import PipelineSettings, texts_of
from streamdump.spark.rotation import Rotation
from streamdump.spark.splits import FileError
from streamdump.tcp.assembler import TcpStream
from tests.spark.comparing import columns as batch
from tests.spark.lots import FOREVER, Lots, at_once, in_lots, packets
from tests.support.planting import GOLDEN, plant
from tests.support.rewrite import capture
from tests.support.rewrite import packets as packets_of
from tests.support.waiting import PATIENCE

SOME = GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"
OTHERS = [SOME, GOLDEN / "iggy" / "seed-lossy.pcap", GOLDEN / "mewbase" / "java-query.pcap", GOLDEN / "seastar-rpc" / "lz4_snap120.pcap"]

PLANTED = """
import streamdump.pair.pairer
take = streamdump.pair.pairer.Pairer.pair
def planted(self, one, append):
    if getattr(one.record, "name", "") == "Create":
        raise ZeroDivisionError
    take(self, one, append)
streamdump.pair.pairer.Pairer.pair = planted
"""


def in_pairing(patch: pytest.MonkeyPatch) -> None:
    plant(patch, Pairer, "pair", lambda self, one, append: isinstance(one.record, Message) and one.record.position > 400)


def in_reassembly(patch: pytest.MonkeyPatch) -> None:
    plant(patch, TcpStream, "follow", lambda self, segment, side: segment.number == 40)


def in_cutting(patch: pytest.MonkeyPatch) -> None:
    def reaches(self: Parser, side: int, base: int, data: bytes, ends: Sequence[int], *_: Any) -> bool:
        return side == 1 and base + ends[-1] > 300

    plant(patch, Parser, "add_records", reaches)


@pytest.mark.usefixtures("barrier")
@pytest.mark.parametrize("room", [in_pairing, in_reassembly, in_cutting], ids=lambda room: room.__name__)
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_a_conversation_that_failed_is_carried_on(path: Path, room: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch)
    expected = at_once([path])
    assert '"internal_error":"Planted, packet ' in "".join(expected["conversations"])
    count = len(packets([path]))
    assert in_lots([path], []) == expected
    assert in_lots([path], list(range(10, count, 10))) == expected


@pytest.mark.usefixtures("barrier")
def test_each_failure_is_told_once_whatever_the_lots_are(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pairing(monkeypatch)
    inspector = Inspector([open_capture(path) for path in OTHERS], replace(FOREVER, exchanges=True))
    list(inspector.records())
    expected = sorted((one.what, one.file, one.number) for one in inspector.reports)
    assert len(expected) > 3
    found: list[Report] = []
    dissect = flows.dissect

    def watched(*given: Any, **named: Any) -> Any:
        for results in dissect(*given, **named):
            found.extend(results.reports)
            yield results

    monkeypatch.setattr(flows, "dissect", watched)
    some, lots = packets(OTHERS), Lots()
    for begin in range(0, len(some), 100):
        lots.add(some[begin : begin + 100], begin + 100 >= len(some))
    assert sorted((one.what, one.file, one.number) for one in found) == expected


KILLS = PLANTED.replace("raise ZeroDivisionError", "import os; os.kill(os.getpid(), 9)")


def environment(folder: Path, java_home: str, planted: str = PLANTED) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(planted)
    return {**os.environ, "PYTHONPATH": str(folder), "JAVA_HOME": java_home, BARRIER: "on"}


def told(stderr: str, path: Path) -> list[str]:
    return [
        line for line in stderr.splitlines() if line.startswith("streamdump: internal error: ") and f" of {path}, conversation " in line
    ]


def check(out: Path, whole: list[Any]) -> None:
    """Fails unless the tables hold what a plain run says, but for what follows in the conversation that failed."""
    rows = pyarrow.parquet.read_table(out / "conversations").to_pylist()
    failed = {row["conversation"] for row in rows if row["internal_error"] is not None}
    assert len(failed) == 1
    messages = pyarrow.parquet.read_table(out / "messages").to_pylist()
    others = sorted((one["time_ns"], one["src"], one["name"]) for one in messages if one["conversation"] not in failed)
    assert len(rows) == 3
    expected = sorted((one.time_ns, one.src, one.name) for one in whole if isinstance(one, Message) and one.conversation != 0)
    assert others == expected
    exchanges = pyarrow.parquet.read_table(out / "exchanges").to_pylist()
    assert all(one["reason"] == "internal error" for one in exchanges if one["outcome"] == "unanswered")
    gaps = pyarrow.parquet.read_table(out / "gaps").to_pylist()
    assert {(one["conversation"] in failed, one["reason"]) for one in gaps} == {(True, "skipped")}


def test_the_driver_tells_and_ends_with_code_5(tmp_path: Path, java_home: str) -> None:
    call = [sys.executable, "-m", "streamdump", "pipeline", str(SOME), "--out", str(tmp_path / "out")]
    call += ["--master", "local[2]", "--parts", "2", "--memory", "1G"]
    planted = environment(tmp_path / "planted", java_home)
    done = subprocess.run(call, env=planted, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == ExitCode.INTERNAL, done.stderr
    assert len(told(done.stderr, SOME)) == 1
    assert "Traceback" not in done.stderr
    check(tmp_path / "out", list(Inspector([open_capture(SOME)]).records()))


def failed(out: Path, java_home: str, *more: str, master: str = "local[1]", environ: dict[str, str] | None = None) -> str:
    """What a run says whose tasks fail, up to where its log is; the log is there, and gone behind this."""
    call = [sys.executable, "-m", "streamdump", "pipeline", str(SOME), "--out", str(out), "--master", master, "--memory", "1G"]
    environ = environ or {**os.environ, "JAVA_HOME": java_home}
    done = subprocess.run([*call, *more], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == ExitCode.USAGE, done.stderr
    (line,) = done.stderr.splitlines()
    said, log, kept = re.fullmatch(r"streamdump: Spark failed: (.*?); its log is ([^;]*)(.*)", line).groups()  # type: ignore[union-attr]
    assert "Exception in task" in Path(log).read_text()
    Path(log).unlink()
    assert not out.exists()
    return f"{said}{kept.replace(str(out.parent), '')}"


def test_a_master_that_does_not_answer_is_given_up_and_named(tmp_path: Path, java_home: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        call = [sys.executable, "-m", "streamdump", "pipeline", str(SOME), "--out", str(tmp_path / "out"), "--master", master]
        environ = {**os.environ, "JAVA_HOME": java_home}
        call += ["--memory", "1G", "--patience", "20"]
        done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == ExitCode.USAGE
    said = re.fullmatch(rf"streamdump: Spark did not start on {master}: gave up after 20 s; its log is (\S+)\n", done.stderr)
    assert said, done.stderr
    Path(said[1]).unlink()


def test_a_worker_without_streamdump_is_told(tmp_path: Path, java_home: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    # Whoever runs the tests may tell there where streamdump is
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"JAVA_HOME": java_home}
    said = failed(tmp_path / "out", java_home, "--conf", f"spark.pyspark.python={python}", environ=environ)
    assert said.startswith("a worker's Python has no streamdump; install streamdump there with its extra spark")
    assert "--resume" not in said


def test_a_worker_that_is_killed_is_told_and_leaves_nothing(tmp_path: Path, java_home: str) -> None:
    environ = environment(tmp_path / "planted", java_home, KILLS)
    said = failed(tmp_path / "out", java_home, *map(str, OTHERS[1:]), "--split", "20K", master="local[2]", environ=environ)
    assert said.startswith("the Python process of a task was killed on every attempt, probably because memory ran out; ")
    assert "--resume" not in said
    assert not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize("one", ["executor.memory=4g", "spark.executor.memory", "spark.master=yarn", "spark.driver.memory=1g"])
def test_what_is_no_setting_is_refused(one: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", str(SOME), "--out", str(tmp_path / "out"), "--conf", one]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("streamdump: --conf: ")


def test_many_troubles_are_ten_lines_and_a_count() -> None:
    errors = [FileError(at, f"{at}.pcap", None, None, "is not a capture", 0, at == 30) for at in range(33)]
    lines = following.error_texts(errors)
    assert lines == ["30.pcap: is not a capture", *(f"{at}.pcap: is not a capture" for at in range(9)), lines[-1]]
    assert lines[-1] == "23 more file errors; the table errors lists them all"
    assert len(following.error_texts(errors[:10])) == 10


def test_a_folder_that_is_followed(tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The workers of this test, which are others than those of the tests beside
    for name, value in environment(tmp_path / "planted", "").items():
        if name in ("PYTHONPATH", BARRIER):
            monkeypatch.setitem(session.context.environment, name, value)
    folder, out = tmp_path / "captures", tmp_path / "out"
    folder.mkdir()
    work = Follow(PipelineSettings([str(folder)], parts=2), str(out), Rotation(folder, 0))
    work.cluster = session
    whole, found = list(Inspector([open_capture(SOME)]).records()), []
    some = packets_of(SOME)
    create = next(one.packets[1] for one in whole if isinstance(one, Message) and one.name == "Create")
    for at, part in enumerate((some[: create + 1], some[create + 1 :])):
        (folder / f"c-{at}.pcap").write_bytes(capture(part).getvalue())
        batch = work.step(end=at == 1)
        assert batch is not None
        found.append(batch.bugs)
    work.close()
    assert [len(bugs) for bugs in found] == [1, 0]
    assert f", packet {create} of {folder / 'c-0.pcap'}, conversation " in found[0][0]
    check(out, whole)


@pytest.mark.parametrize(("came", "code"), [("bugs", ExitCode.INTERNAL), ("both", ExitCode.UNREADABLE), ("nothing", ExitCode.DONE)])
def test_an_interrupted_follow_ends_with_what_it_told(
    came: str, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = [FileError(0, "a.pcap", None, None, "is empty", 0)] if came == "both" else []
    bugs = ["internal error: x"] if came != "nothing" else []

    class Work:
        settings = PipelineSettings([str(tmp_path)])
        out = tmp_path
        state = pipeline.State({}, batch=1, packets=3)
        batches = iter([pipeline.Batch(1, 1, 3, dict.fromkeys(tables.TABLES, 0), errors, bugs, None, [], [])])

        def step(self, end: bool) -> Any:
            batch = next(self.batches, None)
            if batch is None:
                raise KeyboardInterrupt
            return batch

    monkeypatch.setattr(following.signal, "signal", lambda *_: None)
    work = Work()
    assert following.follow(None, work, lambda: None, every_s=0.0, finish=False, quiet=True) == code  # type: ignore[arg-type]
    err = capsys.readouterr().err.splitlines()
    lines = ["streamdump: a.pcap: is empty"] * len(errors) + [f"streamdump: {one}" for one in bugs]
    assert err[: len(lines)] == lines


@pytest.mark.usefixtures("barrier")
def test_a_value_that_is_none_of_its_column_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record for record in Inspector([open_capture(SOME)]).records() if isinstance(record, Message)]
    expected = batch("messages", [(record, None, None) for record in records]).to_pylist()
    records[2] = msgspec.structs.replace(records[2], position=1 << 63)
    records[5] = msgspec.structs.replace(records[5], src="\udcff")
    expected[2]["position"] = expected[5]["src"] = expected[5]["server"] = None
    expected[2]["message_id"] = f"0-0-{1 << 63}"
    rows = [(record, None, None) for record in records]
    waiting = tables.PendingRows("messages")
    reports: list[Report] = []
    waiting.add(rows)
    assert waiting.batch(reports).to_pylist() == expected
    missing = [f"{name} of a row of messages is missing" for name in ("src", "server", "position")]
    assert sorted(report.cost for report in reports) == sorted(missing)
    assert {report.number for report in reports} == {records[5].packets[1], records[2].packets[1]}
    monkeypatch.setenv(BARRIER, "off")
    waiting.add(rows)
    with pytest.raises(UnicodeEncodeError):
        waiting.batch([])


def test_reports_are_in_the_order_of_the_captures() -> None:
    reports = [Report("b", "c", 2, 1), Report("a", "c", 9, 0), Report("x", "c")]
    assert texts_of(reports, {0: "one", 1: "two"}) == [
        "internal error: x: c; please report this line",
        "internal error: a, packet 9 of one: c; please report this line",
        "internal error: b, packet 2 of two: c; please report this line",
    ]


@pytest.mark.parametrize(
    ("master", "named", "python"),
    [("local[2]", None, sys.executable), ("spark://host:7077", None, "python3"), ("local", "other", "python3")],
)
def test_tasks_on_this_machine_run_in_the_python_that_has_streamdump(
    master: str, named: str | None, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    context = SimpleNamespace(master=master, pythonExec="python3")
    sources: list[Any] = []
    streamdump.spark.register(SimpleNamespace(sparkContext=context, dataSource=SimpleNamespace(register=sources.append)))
    assert context.pythonExec == python and len(sources) == 1
