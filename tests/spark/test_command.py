"""`streamdump pipeline` as a process of its own: its start, its end, and what it needs."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.errors import UsageError, how_to_install
from streamdump.spark.session import FRUGAL, JAVA_OPTIONS, SparkFailed, SparkJvm, find_java, retried
from streamdump.spark.storage import Folder
from streamdump.spark.tables import tables_with
from tests.spark.captures import SNAP, generated, records, rotated
from tests.spark.comparing import plain, same, told
from tests.spark.here import Here
from tests.support.frames import pcap
from tests.support.waiting import PATIENCE, cpu_s, until

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """One without any Java: PATH has what Python needs only."""
    empty = tmp_path / "bin"
    empty.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH", "SPARK_HOME")}
    return {**kept, "PATH": str(empty), **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "streamdump", "pipeline", *arguments]


def test_a_machine_without_java_and_what_the_terminal_sees(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = str(GOLDEN / "rabbitmq-stream" / "*.pcap")
    query = "select count(*) as many from messages"
    call = command(source, "--out", str(out), "--master", "local[2]", "--parts", "2", "--memory", "1G", "--sql", query)
    done = subprocess.run(call, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    heading, many = done.stdout.splitlines()
    assert heading == "many"
    assert int(many) > 3000
    assert sorted(path.name for path in out.iterdir()) == sorted(tables_with("json"))
    said = done.stderr.splitlines()
    at = next(at for at, line in enumerate(said) if f"{int(many):,} messages" in line)
    assert at == 0
    assert all(line.startswith("  ") for line in said[at + 1 :]), "Spark's own noise is in its log"
    assert any("rabbitmq-stream Publish" in line and " ms" in line for line in said)


def session_of(leader: int) -> set[int]:
    """The processes in a session that hold anything still."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = status.read_bytes().rpartition(b") ")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state not in b"ZX":
            found.add(int(status.parent.name))
    return found


def jvm_of(pid: int) -> int:
    """The process that Spark runs in, a session of its own; 0 where there is none yet, as long as Java is asked for its version."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return next((child for child in children if child in session_of(child)), 0)


def work_s(jvm: int) -> float:
    """Seconds of CPU time that the tasks of a JVM took."""
    spent = 0.0
    for name in Path(f"/proc/{jvm}/task").glob("*/comm"):
        with suppress(OSError):
            if name.read_text().startswith("Executor task"):
                spent += cpu_s(jvm, int(name.parent.name))
    return spent


ENDLESS = "select sum(a.id * b.id) from range(100000000) a cross join range(100000000) b"


def interrupted(when: str, folder: Path, source: Path, java_home: str) -> float:
    """How many seconds of CPU time a run takes that is interrupted in this state."""
    out, partial, temporary = folder / "out", folder / ".out.partial", folder / "tmp"
    temporary.mkdir(parents=True)
    call = command(str(source), "--out", str(out), "--master", "local[2]", "--memory", "1G", "-q", "--sql", ENDLESS)
    environ = {**os.environ, "JAVA_HOME": java_home, "TMPDIR": str(temporary)}
    process = subprocess.Popen(call, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: jvm_of(process.pid), process)
    jvm = jvm_of(process.pid)
    if when == "Spark starts":
        # The context has made its folder, and is not there yet
        until(lambda: any(temporary.glob("*/blockmgr-*")), process)
    elif when == "packets are read":
        until(lambda: any(partial.glob("batch-1-*/files")), process)
        assert len(session_of(jvm)) > 2, "the JVM, what starts workers, and a worker"
    elif when == "a query runs":
        until(out.is_dir, process)
        before = work_s(jvm)
        until(lambda: work_s(jvm) > before + 0.5, process)
    assert jvm in session_of(jvm)
    before = cpu_s(process.pid)
    process.send_signal(signal.SIGINT)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    took = cpu_s(process.pid) - before
    assert not session_of(jvm)
    printed, said = process.communicate()
    assert printed == ""
    assert process.returncode == ExitCode.INTERRUPTED, said
    if when == "a query runs":
        assert said == "streamdump: interrupted; the tables were written\n"
        assert {path.name for path in out.iterdir()} == set(tables_with("json"))
        assert not partial.exists()
    else:
        assert said == "streamdump: interrupted; no table was written\n"
        assert not partial.exists()
        assert not out.exists()
    assert list(temporary.iterdir()) == []
    return took


@pytest.mark.parametrize("when", ["Java starts", "Spark starts", "packets are read", "a query runs"])
def test_interruption_ends_it_within_a_second_and_leaves_nothing(tmp_path: Path, java_home: str, when: str) -> None:
    source = generated(tmp_path, 60_000 if when == "packets are read" else 4000, 40)
    # What it waits for besides are processes that were killed: how long that takes is up to the machine.
    assert interrupted(when, tmp_path / "run", source, java_home) < 1


def test_what_is_whole_counts_when_it_is_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from streamdump.cli.commands.pipeline import _Bar, _Calls
    from streamdump.spark.pipeline import PipelineRun, PipelineSettings
    from streamdump.spark.splits import FileError

    calls = _Calls(str(tmp_path), Folder(str(tmp_path)), {}, True, None, _Bar("never"))
    run = PipelineRun(PipelineSettings([]), str(tmp_path))
    run.plan.errors = [FileError(0, "a.pcap", None, None, "is empty", 0)]
    assert calls.stopped(run) == ExitCode.INTERRUPTED
    (tmp_path / "messages").mkdir()
    assert calls.stopped(run) == ExitCode.UNREADABLE
    assert capsys.readouterr().err.splitlines() == [
        "streamdump: interrupted; no table was written",
        "streamdump: interrupted; the tables were written",
    ]


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> SparkJvm:
    """A session as it is without any process."""
    monkeypatch.setattr(SparkJvm, "__init__", lambda self: None)
    return SparkJvm()


def test_an_interruption_that_was_ignored_ends_it_all_the_same(no_jvm: SparkJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    aborted: list[str] = []
    monkeypatch.setattr(no_jvm, "_jvm", SimpleNamespace(kill=lambda: aborted.append("aborted")), raising=False)
    monkeypatch.setattr(SparkJvm, "close", lambda self, **_: aborted.append("closed"))

    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, no_jvm._interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), no_jvm:
            Dropped()
            assert aborted == ["aborted"]
            raise ConnectionRefusedError
        assert aborted == ["aborted", "closed"]
    finally:
        signal.signal(signal.SIGINT, handler)
        logging.disable(logging.NOTSET)


def test_what_nobody_can_ask_java_for_is_told_too(no_jvm: SparkJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: SparkJvm, seconds: float) -> None:
        raise SparkFailed("its Java process has ended: x")

    monkeypatch.setattr(SparkJvm, "wait", gone)
    monkeypatch.setattr(SparkJvm, "close", lambda self, **_: None)

    class Unknown(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    with pytest.raises(SparkFailed, match=r"^its Java process has ended: x$"), no_jvm:
        raise Unknown


def test_a_java_that_cannot_be_started_is_an_error_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("streamdump.spark.session.find_java", lambda: "java")
    monkeypatch.setattr(SparkJvm, "_launch", full)
    with pytest.raises(UsageError, match=r"^Java did not start: no space left on device; its temporary files are in "):
        SparkJvm()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_another_session_of_a_process_does_not_look_for_a_java_that_has_ended(java_home: str) -> None:
    code = """import os
from streamdump.spark.session import SparkJvm
with SparkJvm("local[1]"):
    print("PYSPARK_GATEWAY_PORT" in os.environ)
print("PYSPARK_GATEWAY_PORT" in os.environ)"""
    call, environ = [sys.executable, "-c", code], {**os.environ, "JAVA_HOME": java_home}
    done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "True\nFalse\n"


def test_a_java_that_says_nothing_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("streamdump.spark.session.VERSION_S", 0.2)
    with suppress(UsageError):
        assert find_java() != str(tmp_path / "bin" / "java")


def test_no_java_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("streamdump.spark.session.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^Spark needs Java 17 or newer, and none was found: pip install '\.\[java\]' in "):
        find_java()
    old = tmp_path / "old"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    (old / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(UsageError, match="is version 8"):
        find_java()


def test_no_pyspark_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("streamdump.spark.session.find_spec", lambda name: None)
    (tmp_path / "a.pcap").write_bytes(b"")
    assert main(["pipeline", str(tmp_path / "a.pcap"), "--out", str(tmp_path / "out")]) == ExitCode.USAGE
    assert capsys.readouterr().err == f"streamdump: the pipeline needs PySpark: {how_to_install('spark')}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no capture given"),
        (["a.pcap"], "--out FOLDER is missing"),
        (["{full}/file", "--out", "{full}"], "already exists"),
        (["--sql", "select 1", "--out", "{full}"], "has no tables"),
        (["--follow", "{full}", "a.pcap", "--out", "x"], "--follow reads captures from one folder"),
        (["--follow", "{full}", "--resume", "--out", "x"], "--follow reads captures from one folder"),
        (["--follow", "a.pcap", "--out", "x"], "not a folder"),
        (["--follow", "{full}", "--out", "{full}"], "is inside the followed folder"),
        (["--follow", "{full}/sub", "--out", "{full}"], "exists and was not written by --follow"),
        (["--finish", "--out", "x"], "--finish needs --follow FOLDER"),
        (["--follow", "{full}", "--out", "x", "--every", "soon"], "not a time"),
        (["a.pcap", "--out", "x", "--format", "xml"], "must be parquet or delta"),
        (["a.pcap", "--out", "x", "--append"], "--append needs --format delta"),
        (["--out", "x", "--append", "--format", "delta", "--sql", "select 1"], "--append needs captures"),
        (
            ["hdfs://host/a.pcap", "--out", "x"],
            "is not known; known are s3://, s3a://, gs://, abfs://, abfss://, and file:///",
        ),
        (["{full}/file", "--out", "hdfs://host/x"], "is not known; known are"),
        (["s3://key:secret@bucket/a.pcap", "--out", "x"], "credentials do not belong in a URL"),
        (["{full}/file", "--out", "{full}/file"], "file: is not a folder"),
        (["{full}/file", "--out", "{full}/file/x"], "cannot be written: not a directory"),
        (["{full}/*.pcap", "--out", "x"], "no file has such a name"),
        (["{full}/file", "--out", "x", "--point", "("], "is no regular expression"),
        (["--follow", "{full}", "--out", "s3://bucket/x"], "to an object store --follow writes --format delta"),
    ],
)
def test_wrong_calls_start_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("streamdump.spark.session.SparkJvm", started)
    names = Folder.names
    monkeypatch.setattr(Folder, "names", lambda self: [] if self.path is None else names(self))
    monkeypatch.chdir(tmp_path)
    full = tmp_path / "full"
    (full / "sub").mkdir(parents=True)
    (full / "file").write_text("")
    assert main(["pipeline", *(one.format(full=full) for one in arguments)]) == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_capture_that_is_missing_is_told_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamdump.spark.session.SparkJvm", None)
    (tmp_path / "there.pcap").write_bytes(b"")
    call = [str(tmp_path / "there.pcap"), str(tmp_path / "missing.pcap"), "--out", str(tmp_path / "out")]
    assert main(["pipeline", *call]) == ExitCode.UNREADABLE
    assert capsys.readouterr().err == f"streamdump: {tmp_path}/missing.pcap: no such file\n"
    assert [path.name for path in tmp_path.iterdir()] == ["there.pcap"]


class Fake(Here):
    """A session that needs no Java."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.log = Path("spark.log")

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_full_disk_is_named_and_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamdump.spark import pipeline, write

    monkeypatch.setattr("streamdump.spark.session.SparkJvm", Fake)
    source, out = generated(tmp_path, 3000), tmp_path / "out"
    full_disk = f"no space left on the disk of {out} or on that of temporary files (TMPDIR)"
    written = write._Parquet.write
    left = 0

    def full(self: Any, rows: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(self, rows)

    call = ["pipeline", str(source), "--out", str(out), "--split", "60000", "--parts", "3", "-q"]
    monkeypatch.setattr(write._Parquet, "write", full)
    assert main(call) == ExitCode.USAGE
    assert capsys.readouterr().err == f"streamdump: {full_disk}\n"
    assert [path.name for path in tmp_path.iterdir()] == [source.name], "what is worth nothing takes no room"
    packets = records(source)
    files = [tmp_path / "1.pcap", tmp_path / "2.pcap"]
    for path, some in zip(files, (packets[:2000], packets[2000:]), strict=True):
        path.write_bytes(pcap(some, nano=True, snap=SNAP))
    call[1:2] = map(str, files)
    monkeypatch.setattr("streamdump.spark.pipeline.UNIT_BYTES", 1)
    finish = pipeline.Pipeline.unit

    def second_full(self: Any, state: Any, *unit: Any, last: bool) -> Any:
        nonlocal left
        left = 1000 if state.batch == 1 else 1
        return finish(self, state, *unit, last=last)

    monkeypatch.setattr(pipeline.Pipeline, "unit", second_full)
    assert main(call) == ExitCode.USAGE
    kept = tmp_path / ".out.partial"
    (said,) = capsys.readouterr().err.splitlines()
    done = f"1 finished unit kept in {kept}: --resume continues from there"
    assert said == f"streamdump: {full_disk}; {done}"
    assert [path.name.partition("-")[0] for path in sorted(kept.iterdir())] == ["batch", "lock", "result", "state.json"]
    monkeypatch.setattr(write._Parquet, "write", written)
    assert main([*call, "--resume"]) == ExitCode.DONE
    same(out, plain(files))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "\n  Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device",
            "[Errno 28] No space left on device",
        ),
        ("Job aborted\nstreamdump.errors.CaptureError: c.pcap: has changed\nValueError: x", "c.pcap: has changed"),
        ("[PATH_NOT_FOUND] Path does not exist: x\nat java.lang", "[PATH_NOT_FOUND] Path does not exist: x"),
        ("", ""),
        (
            "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 "
            "(TID 3): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): java.io.EOFException",
            "the Python process of a task was killed on every attempt, probably because memory ran out; use fewer tasks at a time "
            "(--master) or smaller ones (--split)",
        ),
    ],
)
def test_what_failed_in_a_worker_is_told(said: str, reason: str) -> None:
    from streamdump.cli.commands.pipeline import _reason

    assert _reason(said) == reason


def test_the_bar_of_each_micro_batch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamdump.cli.commands.pipeline import _Bar
    from streamdump.spark.pipeline import Progress

    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = _Bar("never")
    for _ in range(2):
        bar.show(Progress("dissecting", 1, 2, 3, 4))
        assert bar.bar.live.is_started
        bar.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("arguments", [["captures.pcap", "-q"], ["conversations", "captures.pcap"], ["--help"], ["pipeline", "--help"]])
def test_nothing_else_imports_spark(tmp_path: Path, arguments: list[str]) -> None:
    source = next((GOLDEN / "iggy").glob("*.pcap"))
    (tmp_path / "captures.pcap").write_bytes(source.read_bytes())
    code = f"import sys; from streamdump.cli.app import main; main({arguments!r});"
    code += "print(sorted({'pyspark', 'pyarrow', 'pandas', 'streamdump.spark'} & set(sys.modules)))"
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_pipeline_does_not_import_scapy() -> None:
    code = "import sys, streamdump.spark.pipeline, streamdump.spark.source, streamdump.cli.commands.pipeline; print('scapy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "False\n"


def sent_alone(session: Any, files: list[Path], folder: Path, expected: list[str]) -> None:
    """A notebook sends streamdump as the page of the pipeline says, to a Python that lacks it and has all that it needs."""
    import numpy

    import streamdump.spark

    python = folder / "python"
    packages = Path(numpy.__file__).parents[1]
    # What a path file in there adds, as this checkout, is not seen then.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    call = [str(python), "-c", "import streamdump.spark"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    lacks = subprocess.run(call, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert "No module named 'streamdump" in lacks.stderr
    wheel = folder / "streamdump-0.1.0-py3-none-any.whl"
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(wheel, "w") as made:
        for room, package in (("dissect", "streamdump"), ("cli", "streamdump/cli")):
            for path in sorted((root / room).rglob("*.py")):
                made.write(path, package / path.relative_to(root / room))
    spark = session.spark
    spark.sparkContext.pythonExec = str(python)
    shutil.copy(wheel, folder / "streamdump.zip")
    spark.sparkContext.addPyFile(str(folder / "streamdump.zip"))
    streamdump.spark.register(spark)
    table = spark.read.format("streamdump").option("split", "200000").load(str(files[0].parent))
    rows = [row.asDict(recursive=True) for row in table.collect()]
    assert told("messages", rows) == expected


@pytest.mark.parametrize(
    ("master", "with_retries"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_tasks_of_this_machine_are_tried_again(master: str, with_retries: str) -> None:
    assert retried(master) == with_retries


def test_following_ends_when_java_does(tmp_path: Path, java_home: str) -> None:
    (tmp_path / "captures").mkdir()
    call = command("--follow", str(tmp_path / "captures"), "--out", str(tmp_path / "out"), "--master", "local[1]", "--memory", "1G")
    process = subprocess.Popen(call, env={**os.environ, "JAVA_HOME": java_home}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "following" in process.stderr.readline()
        (jvm,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(jvm), signal.SIGKILL)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == ExitCode.USAGE
    finally:
        process.kill()
        process.communicate()
    assert said.startswith("streamdump: Spark failed: its Java process has ended: ")
    assert said.endswith("; run the same command to resume\n")


class Cluster:
    """A master and two workers of Spark's own, each a process."""

    def __init__(self, folder: Path, java_home: str) -> None:
        import pyspark

        self._folder = folder
        self._jars = Path(pyspark.__file__).parent / "jars"
        # Workers start their executors with a module that the Java of the extra lacks.
        home = folder / "java"
        (home / "bin").mkdir(parents=True)
        script = f'#!/bin/bash\nexec {java_home}/bin/java "${{@/--add-modules=jdk.incubator.vector/-XX:+IgnoreUnrecognizedVMOptions}}"\n'
        self._java = home / "bin" / "java"
        self._java.write_text(script)
        self._java.chmod(0o755)
        self._environ = {
            **os.environ,
            "JAVA_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(self._jars.parent),
            "SPARK_SCALA_VERSION": "2.13",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def begin(self) -> str:
        """Start them; the master's name."""
        log = self._start("master.Master", "--port", "0")
        url = self._wait_for(log, "Starting Spark master at ").split()[-1]
        places = [str(self._folder / f"w{at}") for at in range(2)]
        workers = [self._start("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", place, url) for place in places]
        for worker in workers:
            self._wait_for(worker, "Successfully registered")
        return url

    def lose_worker(self) -> None:
        os.killpg(self._started[1].pid, signal.SIGKILL)

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, *arguments: str) -> Path:
        log = self._folder / f"{len(self._started)}.log"
        call = [str(self._java), "-Xmx256m", "-cp", f"{self._jars}/*", *JAVA_OPTIONS]
        call += [f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with log.open("wb") as out:
            made = subprocess.Popen(call, env=self._environ, cwd=self._folder, stdout=out, stderr=out, start_new_session=True)
        self._started.append(made)
        return log

    def _wait_for(self, log: Path, text: str) -> str:
        until(lambda: text in log.read_text(errors="replace"), self._started[-1])
        return next(line for line in log.read_text(errors="replace").splitlines() if text in line)


ON_CLUSTER = {
    "spark.executor.memory": "700m",
    "spark.executor.extraJavaOptions": " ".join(FRUGAL),
    "spark.shuffle.io.retryWait": "100ms",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java_home: str) -> Iterator[tuple[Cluster, str]]:
    """One for several tests, and its address."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), java_home)
    try:
        yield made, made.begin()
    finally:
        made.end()


def test_a_driver_on_a_cluster_that_is_killed_goes_on(tmp_path: Path, java_home: str, cluster: tuple[Cluster, str]) -> None:
    out = tmp_path / "out"
    files = rotated(tmp_path / "rotated", records(generated(tmp_path, 6000)))
    settings = [part for pair in ON_CLUSTER.items() for part in ("--conf", "=".join(pair))]
    call = command(*map(str, files), "--out", str(out), "--master", cluster[1], "--memory", "1G", *settings)
    call += ["--split", "20K", "--parts", "12"]
    environ = {**os.environ, "JAVA_HOME": java_home}
    process = subprocess.Popen(call, env=environ, stderr=subprocess.DEVNULL)
    try:
        until(lambda: list((tmp_path / ".out.partial").glob("batch-1-*/files/messages/*.parquet")), process)
    finally:
        process.kill()
        process.wait()
    assert not out.exists()
    done = subprocess.run([*call, "--resume"], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    for table, lines in plain(files).items():
        assert told(table, pyarrow.parquet.read_table(out / table).to_pylist()) == lines


@pytest.mark.usefixtures("no_session")
def test_a_cluster_that_loses_a_worker_says_the_same(
    tmp_path: Path, java_home: str, cluster: tuple[Cluster, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamdump.spark import session as sessions
    from streamdump.spark.pipeline import PipelineRun, PipelineSettings, Progress

    # Progress is reported that often, and otherwise once at the end where the tasks take less than a second
    monkeypatch.setattr(sessions, "POLL_S", 0.05)
    files = rotated(tmp_path / "rotated", records(generated(tmp_path, 6000)))
    expected = plain(files)
    monkeypatch.setenv("JAVA_HOME", java_home)
    # As in a notebook, whose workers get streamdump with their tasks
    settings = {**ON_CLUSTER, "spark.python.daemon.module": "pyspark.daemon"}
    session = SparkJvm(cluster[1], memory="1g", settings=settings)
    killed: list[str] = []

    def lose_one(progress: Progress) -> None:
        if progress.what == "dissecting" and progress.tasks >= 6 and not killed:
            killed.append(f"{progress.tasks} of {progress.total}")
            cluster[0].lose_worker()

    try:
        run = PipelineRun(PipelineSettings([str(path) for path in files], split=50_000, parts=6), str(tmp_path / "out"), lose_one)
        assert run.prepare()
        run.go(session)
        run.close()
        sent_alone(session, files, tmp_path, expected["messages"])
    finally:
        session.close()
    assert killed
    for table, lines in expected.items():
        assert told(table, pyarrow.parquet.read_table(tmp_path / "out" / table).to_pylist()) == lines


def test_a_driver_that_is_killed_goes_on_and_every_row_is_there_once(tmp_path: Path, java_home: str) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    folder.mkdir()
    packets = records(generated(tmp_path, 3000, 9))
    options = ("--master", "local[2]", "--parts", "2", "--memory", "1G", "--every", "0.1", "--settle", "3600")
    call = command("--follow", str(folder), "--out", str(out), *options)
    environment = {**os.environ, "JAVA_HOME": java_home}
    files = []

    def rotate() -> None:
        at = len(files)
        files.append(folder / f"c-{at}.pcap")
        files[-1].write_bytes(pcap(packets[at * 500 : (at + 1) * 500], nano=True, snap=SNAP))

    rotate()
    rotate()
    process = subprocess.Popen(call, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        assert said[0] == f"streamdump: following {folder} into {out}; Ctrl-C stops, the same command resumes\n"
        assert "micro-batch 1: 1 file, 500 packets" in said[1]
        # Dies in mid-batch: as soon as it has something to do.
        rotate()
        until(lambda: list((out / ".follow").glob("batch-2-*")), process)
    finally:
        process.kill()
        process.communicate()
    while len(files) < 6:
        rotate()
    done = subprocess.run([*call, "--finish"], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("streamdump: 6 files, 3,000 packets: ")
    for table, lines in plain(files).items():
        assert told(table, pyarrow.parquet.read_table(out / table).to_pylist()) == lines
