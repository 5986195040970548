"""Live capture as root goes on as somebody else, and loses nothing by it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdump.tls.keys import KeyLog
from tests.capture.test_live import PING, PONG, pings, run
from tests.support.peers import Pair, capturing, free_port, may_capture
from tests.support.waiting import until

NOBODY = 65_534

pytestmark = [pytest.mark.live, pytest.mark.skipif(not may_capture() or os.geteuid() != 0, reason="root alone has something to give up")]


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of another user, who may get to it."""
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def environment(*sudo: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
    return kept | {name: str(value) for name, value in zip(("SUDO_UID", "SUDO_GID"), sudo, strict=False)}


def status(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def ping(port: int, times: int = 1) -> None:
    with Pair(port) as pair:
        pair.replay([(0, PING), (1, PONG)] * times)


def test_the_user_of_sudo_goes_on_and_owns_what_is_written(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "live.pcapng"
    with capturing(*pings(port), "-w", str(file), env=environment(NOBODY, NOBODY)) as capture:
        capture.tells("dropped root privileges: now running as nobody")
        seen = status(capture.process.pid)
        assert seen["Uid"].split() == seen["Gid"].split() == [str(NOBODY)] * 4
        assert (int(seen["CapEff"], 16), int(seen["CapPrm"], 16)) == (0, 0)
        ping(port)
        assert "ping" in capture.line()
        code, _, err = capture.finish()
    assert code == 0, err
    assert file.stat().st_uid == NOBODY
    assert run("-q", str(file)).returncode == 0


@pytest.mark.parametrize("sudo", [(), (0, 0)], ids=["no sudo", "root by sudo"])
def test_without_sudo_the_owner_of_the_folder_goes_on_with_a_ring(sudo: tuple[int, ...], theirs: Path) -> None:
    port = free_port()
    ring = ["-w", str(theirs / "ring.pcapng"), "-b", "filesize:1", "-b", "files:2"]
    with capturing(*pings(port), *ring, env=environment(*sudo)) as capture:
        capture.tells("dropped root privileges: now running as nobody")
        ping(port, 40)
        until(lambda: any(one.name > "ring_00004" for one in theirs.iterdir()))
        code, _, err = capture.finish()
    assert code == 0, err
    assert {one.stat().st_uid for one in theirs.iterdir()} == {NOBODY}
    assert len(list(theirs.iterdir())) == 2


def test_root_stays_where_nobody_else_could_go_on(tmp_path: Path) -> None:
    port = free_port()
    ring = ["-w", str(tmp_path / "ring.pcapng"), "-b", "filesize:1"]
    told = {
        (): "still running as root: neither sudo nor the folder of -w belongs to another user",
        (NOBODY, NOBODY): f"still running as root: nobody has no access to {tmp_path}",
    }
    for sudo, said in told.items():
        with capturing(*pings(port), *ring, env=environment(*sudo)) as capture:
            capture.tells(said)
            assert status(capture.process.pid)["Uid"].split() == ["0"] * 4
            ping(port, 20)
            code, _, err = capture.finish(signal.SIGINT)
        assert code == 0, err
    assert {one.stat().st_uid for one in tmp_path.iterdir()} == {0}
    page = tmp_path / "page.html"
    with capturing("diagnose", *pings(port), "--html", str(page), env=environment(NOBODY, NOBODY)) as capture:
        capture.tells(f"still running as root: nobody has no access to {tmp_path}")
        ping(port)
        code, _, err = capture.finish()
    assert code == 0, err
    assert page.exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["-V", "-x", "-Y", "name == ping"],
        ["--json"],
        ["conversations"],
        ["diagnose", "--html", "page.html"],
        ["latency", "--html", "page.html"],
        ["follow", "0"],
    ],
    ids=" ".join,
)
def test_all_views_go_on(argv: list[str], theirs: Path) -> None:
    """Also where the code is root's alone, as far as it was not loaded before."""
    argv = [str(theirs / one) if one.endswith(".html") else one for one in argv]
    port = free_port()
    with capturing(*argv, *pings(port), env=environment(NOBODY, NOBODY)) as capture:
        capture.tells("dropped root privileges: now running as nobody")
        ping(port, 3)
        code, _, err = capture.finish()
    assert code == 0, err
    assert "internal error" not in err
    assert all("Captured from" in one.read_text(encoding="utf-8") for one in theirs.glob("*.html"))


def test_a_key_log_that_is_open_is_followed_on(tmp_path: Path) -> None:
    """In a folder that is root's alone."""
    log = tmp_path / "keys.log"
    line = "CLIENT_RANDOM {} " + "22" * 48 + "\n"
    with log.open("w", encoding="ascii", buffering=1) as writing:
        tmp_path.chmod(0o700)
        keys = KeyLog((str(log),), follow=True)
        keys.poll(0)
        child = os.fork()
        if not child:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            writing.write(line.format("11" * 32))
            os._exit(0 if keys.poll(1) and keys.knows(bytes.fromhex("11" * 32)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    keys.close()
