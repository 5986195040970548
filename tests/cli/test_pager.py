"""Long text on a terminal goes through a pager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamdump.cli.exits import ExitCode
from streamdump.cli.pager import LESS
from tests.support.captures import GOLDEN
from tests.support.terminal import on_terminal, process_on_terminal
from tests.support.waiting import PATIENCE

STREAM = GOLDEN / "rabbitmq-stream" / "lost_segments_405.pcap"


def paged(tmp_path: Path, argv: list[str], environment: dict[str, str] | None = None, pager: str = "tee {}") -> tuple[int, str, str | None]:
    """The exit code, what a terminal shows, and what a pager got, if there was one."""
    file = tmp_path / "paged"
    code, text = on_terminal(argv, environment={"PAGER": pager.format(file), **(environment or {})})
    return code, text, file.read_text() if file.exists() else None


def test_messages_warnings_and_the_closing_line_go_through_the_pager_as_the_terminal_would_show_them(tmp_path: Path) -> None:
    for argv in (["--json"], ["diagnose"], ["--color", "never"]):
        code, text, got = paged(tmp_path, [*argv, str(STREAM)])
        _, plain = on_terminal([*argv, "--no-pager", str(STREAM)])
        assert (code, text, got) == (ExitCode.DONE, plain, plain), argv
        assert plain.count("streamdump: captures") + plain.count(f"streamdump: {STREAM}") == 1


@pytest.mark.parametrize("argv", [["--help"], ["protocols"], ["schema"], ["help", "filters"], ["help", "limits"]])
def test_pages_go_through_the_pager(argv: list[str], tmp_path: Path) -> None:
    code, text, got = paged(tmp_path, argv)
    assert (code, got) == (ExitCode.DONE, text) and len(text) > 100


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        (["--no-pager", str(STREAM)], {}),
        (["stats", str(STREAM), "--no-pager"], {}),
        ([str(STREAM)], {"TERM": "dumb"}),
        (["--version"], {}),
        (["-z", "x", str(STREAM)], {}),
    ],
    ids=str,
)
def test_no_pager(argv: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    _, text, got = paged(tmp_path, argv, environment)
    assert got is None and "streamdump" in text


@pytest.mark.parametrize("pager", ["", "cat", "no-such-pager -x", "'"])
def test_without_a_pager_text_is_printed_at_once(pager: str, tmp_path: Path) -> None:
    code, text, _ = paged(tmp_path, ["-c", "3", str(STREAM)], pager=pager)
    assert code == ExitCode.DONE and "stopped by -c" in text


def test_messages_from_a_pipe_are_shown_as_they_come(tmp_path: Path) -> None:
    """A pager would hold them back until a screen is full."""
    file = tmp_path / "paged"
    code = f"import subprocess as s; p = s.Popen(['cat', {str(STREAM)!r}], stdout=s.PIPE); "
    code += f"s.run([{sys.executable!r}, '-m', 'streamdump', '-'], stdin=p.stdout); p.wait()"
    _, text = process_on_terminal(["-c", code], environment={"PAGER": f"tee {file}"})
    assert not file.exists() and "PeerProperties" in text


def test_nothing_is_paged_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", f"tee {tmp_path / 'paged'}")
    done = subprocess.run([sys.executable, "-m", "streamdump", str(STREAM)], capture_output=True, timeout=PATIENCE, check=True)
    assert b"PeerProperties" in done.stdout and not (tmp_path / "paged").exists()


def test_whoever_leaves_the_pager_early_has_seen_enough(tmp_path: Path) -> None:
    code, text, _ = paged(tmp_path, ["-V", *[str(STREAM)] * 3], pager="head -2")
    assert code == ExitCode.DONE and len(text.splitlines()) == 2


def test_an_error_has_its_exit_code_behind_the_pager(tmp_path: Path) -> None:
    short = tmp_path / "short.pcap"
    short.write_bytes(STREAM.read_bytes()[:3_000])
    code, text, got = paged(tmp_path, [str(short)])
    assert code == ExitCode.UNREADABLE and got == text and "short.pcap" in text.splitlines()[-1]


def test_less_gets_its_options(tmp_path: Path) -> None:
    file = tmp_path / "less"
    on_terminal(["-c", "1", str(STREAM)], environment={"PAGER": f"sh -c 'cat; echo $LESS > {file}'"})
    assert file.read_text() == f"{LESS}\n"
