"""Several processes: what they print is what one prints, whatever is asked for, and none is left when one of them or the reader ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from streamdump import parallel
from streamdump.capture.files import open_capture
from streamdump.cli import dividing
from streamdump.cli.app import main
from streamdump.cli.dividing import Rendering, processors
from streamdump.cli.exits import ExitCode
from streamdump.cli.showing import Shown
from streamdump.inspector import Inspector
from streamdump.options import Options
from streamdump.parallel import Divided, Division
from streamdump.render.jsonl import encode
from tests.bench import mix
from tests.support.peers import GOLDEN
from tests.support.waiting import PATIENCE, until

RABBITMQ = GOLDEN / "rabbitmq-stream"
VIEWS = {
    "lines": [],
    "quiet": ["-q"],
    "json": ["--json", "--exchanges"],
    "fields": ["-T", "csv"],
    "others": ["-T", "fields", "-e", "conversation", "-e", "request", "-e", "delta", "-e", "client", "-Y", "latency > 0"],
    "trees": ["-V", "-x", "-t", "dd"],
    "chosen": ["-Y", "outcome == refused or record == ending", "--exchanges"],
    "coloured": ["--color", "always"],
    "conversations": ["conversations", "-V"],
    "some": ["conversations", "--json", "-Y", "outcome == refused"],
    "latency": ["latency"],
    "groups": ["latency", "--json", "--by", "conversation", "--interval", "3600"],
}
CAPTURES = [
    [RABBITMQ / "tls_keys_310.pcapng"],
    [RABBITMQ / "two_connections_310.pcap", RABBITMQ / "lost_segments_405.pcap"],
    [GOLDEN / "iggy" / "py090-parallel.pcap"],
    [GOLDEN / "mewbase" / "cut-coalesced.pcap", RABBITMQ / "publisher_refused_310.pcap"],
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many conversations that go on at the same time."""
    path = tmp_path_factory.mktemp("jobs") / "mix.pcap"
    mix.write(path, 3_000_000)
    return path


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers need not start from nothing."""
    monkeypatch.setattr(parallel, "get_context", lambda kind: multiprocessing.get_context("fork"))


def shown(capsysbinary: pytest.CaptureFixture[bytes], *argv: str | Path) -> tuple[int, bytes, bytes]:
    code = main([*map(str, argv)])
    return code, *capsysbinary.readouterr()


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("view", VIEWS)
def test_several_processes_print_what_one_prints(view: str, mixed: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for captures in (*CAPTURES, [mixed]):
        alone = shown(capsysbinary, *VIEWS[view], "--jobs", "1", *captures)
        assert shown(capsysbinary, *VIEWS[view], "--jobs", "3", *captures) == alone
        assert alone[0] == ExitCode.DONE


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("path", sorted(GOLDEN.rglob("*.pcap*")), ids=lambda path: path.name)
def test_they_do_so_for_every_capture(path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for view in VIEWS.values():
        alone = shown(capsysbinary, *view, "--jobs", "1", path)
        for jobs in "23":
            assert shown(capsysbinary, *view, "--jobs", jobs, path) == alone


def test_they_do_so_as_they_are_started_for_users(mixed: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for argv in ([], ["--json"], ["latency"]):
        assert shown(capsysbinary, *argv, "--jobs", "2", mixed) == shown(capsysbinary, *argv, "--jobs", "1", mixed)


@pytest.mark.usefixtures("forked")
def test_packets_are_counted_by_all(mixed: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    alone = shown(capsysbinary, "-a", "packets:500", "--jobs", "1", mixed)
    assert shown(capsysbinary, "-a", "packets:500", "--jobs", "2", mixed) == alone
    assert b"500 packets" in alone[2]


@pytest.mark.usefixtures("forked")
def test_damage_is_told_once(mixed: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(mixed.read_bytes()[:400_001])
    alone = shown(capsysbinary, "--json", "--jobs", "1", path, tmp_path / "missing.pcap")
    assert shown(capsysbinary, "--json", "--jobs", "2", path, tmp_path / "missing.pcap") == alone
    assert alone[0] == ExitCode.UNREADABLE


@pytest.mark.usefixtures("forked")
def test_files_that_disagree_are_told(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    one, other = RABBITMQ / "two_connections_310.pcap", tmp_path / "other.pcap"
    other.write_bytes(one.read_bytes().replace(b"raw-client", b"raw_client"))
    alone = shown(capsysbinary, "--jobs", "1", one, other)
    assert shown(capsysbinary, "--jobs", "3", one, other) == alone
    assert b"are not the same in" in alone[2]


@pytest.mark.usefixtures("forked")
def test_numbers_that_nobody_can_name_any_more_are_forgotten(mixed: Path) -> None:
    records = list(Inspector([open_capture(mixed)]).records())
    division = Division(2, Rendering, (None, Options(), Shown(json=True), "utf-8"), 10)
    divided = Divided([open_capture(mixed)], Options(), division)
    found = b""
    for batch in divided.batches():
        for values, pieces in batch:
            found += b"".join([str(values[one]).encode() if at % 2 else one for at, one in enumerate(pieces)])
    divided.close()
    assert found == encode(records)
    assert all(len(divided.numbers(worker).latest) < len(records) // 10 for worker in (0, 1))


@pytest.mark.usefixtures("forked")
def test_what_all_hold_together_is_held_against_the_limits(mixed: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    _, rows, _ = shown(capsysbinary, "conversations", "--json", mixed)
    limit = str(len(rows.splitlines()) * 3 // 4)
    assert b"the workers of --jobs held more together" in shown(capsysbinary, "-q", "--jobs", "2", "--tracked-limit", limit, mixed)[2]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["-Y", "number < 5"], "-Y asks for what only the whole run tells"),
        (["-Y", "tcp.stream == 1"], "-Y asks for what only the whole run tells"),
        (["-c", "3"], "-c ends it before"),
        (["--findings"], "findings tell of all conversations together"),
        (["-t", "d"], "-t d counts from packet to packet"),
        (["latency", "-c", "3"], "-c ends it before"),
    ],
)
def test_what_cannot_be_divided_is_read_by_one(argv: list[str], why: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = RABBITMQ / "publisher_refused_310.pcap"
    code, out, err = shown(capsysbinary, *argv, "--jobs", "2", path)
    first, _, rest = err.partition(b"\n")
    assert first.decode() == f"streamdump: --jobs 2: one process reads this, as {why}"
    assert (code, out, rest) == shown(capsysbinary, *argv, path)


def test_a_pipe_is_read_by_one() -> None:
    data = (RABBITMQ / "publisher_refused_310.pcap").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "streamdump", "-q", "--jobs", "2", "-"], input=data, capture_output=True, timeout=PATIENCE, check=True
    )
    assert done.stderr.startswith(b"streamdump: --jobs 2: one process reads this, as only files can be read several times\n")


def test_a_wrong_number_is_refused(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for wrong in ("0", "-1", "two"):
        code, _, err = shown(capsysbinary, "--jobs", wrong, RABBITMQ / "publisher_refused_310.pcap")
        assert code == ExitCode.USAGE and b"--jobs" in err


def test_large_captures_are_divided_by_default_but_not_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(jobs: str | None = None) -> int | None:
        found = dividing.division_of(jobs, [str(RABBITMQ / "publisher_refused_310.pcap")], Options(), None, {}, Rendering, ())
        return found and found.workers

    monkeypatch.setattr(dividing, "processors", lambda: 6)
    monkeypatch.setattr(dividing, "_is_root", lambda: False)
    assert count() is None
    monkeypatch.setattr(dividing, "LARGE", 1_000)
    assert (count(), count("1"), count("7")) == (4, None, 7)
    monkeypatch.setattr(dividing, "processors", lambda: 1)
    assert count() is None
    monkeypatch.setattr(dividing, "_is_root", lambda: True)
    assert (count(), count("2")) == (None, 2)


def test_processors_are_those_that_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert processors() == 8
    (tmp_path / "cpu.max").write_text("max 100000\n", "utf-8")
    assert processors() == 8
    (tmp_path / "cpu.max").write_text("350000 100000\n", "utf-8")
    assert processors() == 3
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n", "utf-8")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n", "utf-8")
    assert processors() == 8
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n", "utf-8")
    assert processors() == 1


# How it ends


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def running(mixed: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """One that waits for somebody to read more of what it prints, and its processes."""
    command = [sys.executable, "-m", "streamdump", "--json", "--jobs", "2", str(mixed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    found = children(process.pid)
    yield process, found
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in found))
    process.stdout.close()
    process.stderr.close()


def test_a_worker_that_is_killed_ends_all(running: tuple[subprocess.Popen[bytes], list[int]]) -> None:
    process, found = running
    [*_, worker] = [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == ExitCode.INTERNAL
    assert err.decode() == (
        "streamdump: worker 2 of 2 was ended by signal 9, as where memory runs out: what follows is missing; "
        "--jobs 1 reads with one process\n"
    )


def test_an_interruption_ends_the_reading(running: tuple[subprocess.Popen[bytes], list[int]], mixed: Path) -> None:
    process, found = running
    # A terminal tells all of them
    for one in (process.pid, *found):
        os.kill(one, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == ExitCode.DONE
    assert err.count(b"\n") == 1 and b", interrupted" in err
    assert out.endswith(b"\n")


def test_a_second_interruption_ends_all(running: tuple[subprocess.Popen[bytes], list[int]]) -> None:
    process, _ = running
    while process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
        # One that comes before another was noticed is none, and one that comes while the process ends is one too many
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    assert process.stderr is not None
    assert (process.returncode, process.stderr.read()) == (ExitCode.INTERRUPTED, b"")


def test_a_reader_that_has_enough_ends_all(running: tuple[subprocess.Popen[bytes], list[int]]) -> None:
    process, _ = running
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == ExitCode.DONE
    assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_is_left_behind(running: tuple[subprocess.Popen[bytes], list[int]], number: int) -> None:
    process, _ = running
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -number


def test_a_full_disk_ends_all(mixed: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "streamdump", "--json", "--jobs", "2", str(mixed)],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == b"streamdump: standard output cannot be written: No space left on device\n"
