"""What the command line says of secrets: that a wrong `-d` may show some, and which commands it advises to run as root."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.cli.live import ways_out
from streamdump.inspector import Inspector
from streamdump.model import Options
from streamdump.protocols import PROTOCOLS
from tests.support.captures import CAPTURES, capture_name, every_family
from tests.support.frames import pcap
from tests.support.logins import IGGY, MEWBASE, RABBITMQ, Login
from tests.support.pages import everything
from tests.support.planting import with_members
from tests.support.secrets import SERVER, conversation

NAMES = [protocol.name for protocol in PROTOCOLS]
WITH_LOGIN = [protocol.name for protocol in PROTOCOLS if protocol.loaded.login is not None]
LOGINS = [login for login in (*RABBITMQ, *IGGY, *MEWBASE) if "_user " not in f"{login.name} " and "change" not in login.name]
LOGINS = [login for login in LOGINS if not login.name.startswith("create_") and "without authInfo" not in login.name]
"""Those that let a client in; what other commands carry is not looked for."""
LOGINS += [login for login in IGGY if login.name.startswith("login_user")]


def capture(login: Login, tmp_path: Path, port: int) -> Path:
    path = tmp_path / "login.pcap"
    path.write_bytes(pcap(conversation(login.sent, port)))
    return path


def warnings(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(argv) == ExitCode.DONE
    return [line for line in capsys.readouterr().err.splitlines() if "check -d" in line]


@pytest.mark.parametrize("view", [["--json"], [], ["-V"], ["conversations"]])
def test_a_wrong_protocol_is_warned_of(view: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(RABBITMQ[0], tmp_path, 5552)
    command, options = (view, []) if view == ["conversations"] else ([], view)
    (line,) = warnings([*command, str(path), *options, "-d", "tcp.port==5552,seastar-rpc"], capsys)
    assert line == (
        "streamdump: conversation 0 (192.0.2.1:40000 - 192.0.2.2:5552) is decoded as seastar-rpc because of -d, but contains a login of "
        "rabbitmq-stream: its secrets are not recognised and may be shown; check -d"
    )
    assert warnings([*command, str(path), *options, "-d", "tcp.port==5552,rabbitmq-stream"], capsys) == []
    assert warnings([*command, str(path), *options], capsys) == []
    if not command:
        assert warnings([str(path), *options, "-d", "tcp.port==5552,seastar-rpc", "--show-secrets"], capsys) == []


def looks_like(path: Path, port: int, protocol: str, rows: int | None = None) -> str | None:
    inspector = Inspector([open_capture(str(path))], Options(decode_as=((port, protocol, None),)), rows)
    list(inspector.records())
    found: str | None = inspector.rows()[0].facts.get("looks_like")
    assert (inspector.run.suspected is None) == (found is None)
    return found


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: f"{login.protocol} {login.name}")
def test_every_login_is_known_under_every_other_protocol(login: Login, tmp_path: Path) -> None:
    path = capture(login, tmp_path, 9999)
    for name in NAMES:
        expected = None if name == login.protocol else f"a login of {login.protocol}"
        for rows in (1, 7, None):
            assert looks_like(path, 9999, name, rows) == expected, (name, rows)


def test_families_with_a_login_are_known() -> None:
    assert {"rabbitmq-stream", "rabbitmq-stream-draft", "iggy", "mewbase"} <= set(WITH_LOGIN)


@pytest.mark.sweep
@every_family(CAPTURES)
def test_a_right_protocol_is_not_doubted(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            inspector = Inspector([open_capture(str(path))], Options())
            list(inspector.records())
            spoken = {(int(row.endpoints[1].rpartition(":")[2]), row.protocol, None) for row in inspector.rows() if row.protocol}
            again = Inspector([open_capture(str(path))], Options(decode_as=tuple(spoken)))
            list(again.records())
            assert again.run.suspected is None


def test_a_login_in_pieces_and_behind_other_bytes(tmp_path: Path) -> None:
    login = RABBITMQ[0]
    filled = [(side, bytes(side + 1) * 100) for side in (0, 1)] * 10
    for size in (1, 3, 1000):
        pieces = [(side, data[at : at + size]) for side, data in (*filled, *login.sent) for at in range(0, len(data), size)]
        path = tmp_path / "login.pcap"
        path.write_bytes(pcap(conversation(pieces, 9999)))
        assert looks_like(path, 9999, "seastar-rpc") == "a login of rabbitmq-stream"


def test_a_quiet_side_costs_no_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the window is not searched, though the other side has sent little."""
    from streamdump import detect

    searched = 0

    class Counting:
        def search(self, data: bytes, since: int) -> None:
            nonlocal searched
            searched += len(data) - since

    counted = [with_members(one, login=Counting()) for one in PROTOCOLS]
    monkeypatch.setattr(detect, "PROTOCOLS", tuple(counted))
    path = tmp_path / "long.pcap"
    for size in (1, 10, 1000):
        pieces = [(SERVER, b"\1" * size) for _ in range(6_000 // size)]
        path.write_bytes(pcap(conversation(pieces, 9999)))
        searched = 0
        looks_like(path, 9999, "seastar-rpc", 7)
        assert 0 < searched <= (len(PROTOCOLS) - 1) * detect.LOGIN_WINDOW * (1 + detect.LOGIN_REACH)


# Advice


def test_what_is_advised_runs_nothing_of_the_folder_one_stands_in(tmp_path: Path) -> None:
    for line in ways_out():
        words = shlex.split(line)
        at = words.index("streamdump")
        assert words[at - 2 : at] == ["-I", "-m"]
        assert Path(words[at - 3]).is_absolute()
    for name in ("streamdump.py", "typer.py"):
        (tmp_path / name).write_text("print('taken over')\n")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "streamdump", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "streamdump"), done.stderr


def test_the_pages_advise_the_same() -> None:
    readme = everything()
    assert "-I -m streamdump" in readme
    assert "-m streamdump" not in readme.replace("-I -m streamdump", "")
    assert "sudo streamdump" not in readme, "a name alone may be a file of the folder one stands in, or not be found"
