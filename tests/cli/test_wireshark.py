"""`streamdump wireshark`: the plugin on standard output, put where Wireshark looks, taken away."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.commands import wireshark
from streamdump.cli.exits import ExitCode
from tests.support.terminal import process_on_terminal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a made-up tshark names, which is not there yet."""
    folder = tmp_path / "lua plugins"
    program = tmp_path / "bin" / "tshark"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf 'Temp:\\t\\t/tmp\\n{wireshark.FOLDER} \\t{folder}\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("SUDO_UID", raising=False)
    return folder


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wireshark"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert wireshark.MARK in out.splitlines()[0]
    assert "GPL-2.0-or-later" in out
    assert out.count("register(P)\n") == 4


def test_it_is_put_there_and_taken_away(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder / wireshark.NAME
    assert main(["wireshark", "--remove", "--yes"]) == ExitCode.DONE
    assert "does not exist" in capsys.readouterr().err
    for _ in range(2):
        assert main(["wireshark", "--install", "--yes"]) == ExitCode.DONE
        assert wireshark.MARK in target.read_text().splitlines()[0]
    assert [path.name for path in folder.iterdir()] == [wireshark.NAME]
    assert main(["wireshark", "--remove", "--yes"]) == ExitCode.DONE
    assert not target.exists()


@pytest.mark.parametrize("what", ["--install", "--remove"])
def test_what_is_not_ours_stays(what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    target = folder / wireshark.NAME
    target.write_text("-- somebody's own\n")
    assert main(["wireshark", what, "--yes"]) == ExitCode.USAGE
    assert "not a streamdump plugin" in capsys.readouterr().err
    assert target.read_text() == "-- somebody's own\n"
    ours = folder / "ours.lua"
    ours.write_text(f"-- x{wireshark.MARK}1\n")
    target.unlink()
    target.symlink_to(ours)
    assert main(["wireshark", what, "--yes"]) == ExitCode.USAGE
    assert target.is_symlink()


def test_without_a_terminal_nobody_is_asked(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["wireshark", "--install"]) == ExitCode.USAGE
    assert "--yes" in capsys.readouterr().err
    assert not folder.exists()


def test_under_sudo_nothing_is_put(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1000")
    assert main(["wireshark", "--install", "--yes"]) == ExitCode.USAGE
    assert "sudo" in capsys.readouterr().err
    assert not folder.exists()


def test_without_tshark_it_says_so(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder.parent / "bin")
    monkeypatch.setenv("PATH", str(folder.parent))
    assert main(["wireshark", "--install", "--yes"]) == ExitCode.USAGE
    assert "tshark" in capsys.readouterr().err


def test_it_asks_first(folder: Path) -> None:
    code, said = process_on_terminal(["-m", "streamdump", "wireshark", "--install"], said=b"n\n")
    assert code == ExitCode.DONE
    assert "[y/N]" in said
    assert not folder.exists()
    assert process_on_terminal(["-m", "streamdump", "wireshark", "--install"], said=b"y\n")[0] == ExitCode.DONE
    assert (folder / wireshark.NAME).exists()
