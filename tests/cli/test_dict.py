"""`--dict`: dictionaries of ScyllaDB's compression."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.protocols.seastar.dictionaries import load_dictionaries
from tests.support.captures import GOLDEN

SEASTAR = GOLDEN / "seastar-rpc"
CAPTURE = SEASTAR / "scylla_v3_dictionary.pcap"
FIRST, SECOND = SEASTAR / "scylla_v3_first.dict", SEASTAR / "scylla_v3_second.dict"
FIRST_SHA, SECOND_SHA = (sha256(load_dictionaries([str(path)])[0]).hexdigest() for path in (FIRST, SECOND))


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    assert main([str(one) for one in argv]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_with_both_dictionaries_every_frame_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "--dict", FIRST, "--dict", SECOND, CAPTURE)
    assert "Compressed" not in out and "--dict" not in err
    again, _ = shown(capsys, "--dict", SECOND, "--dict", FIRST, "--dict", FIRST, CAPTURE)
    assert again == out


def test_a_frame_names_the_dictionary_that_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    for given, named in (((), FIRST_SHA), (("--dict", FIRST), SECOND_SHA), (("--dict", SECOND), FIRST_SHA)):
        out, err = shown(capsys, *given, CAPTURE)
        assert f"needs the dictionary with SHA-256 {named}: --dict FILE" in out
        assert "--dict FILE reads frames that were packed with a dictionary" in err
        out, _ = shown(capsys, "diagnose", *given, CAPTURE)
        assert named in out and "SELECT data FROM system.dicts" in " ".join(out.split())


def test_filters_see_what_is_inside(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("-Y", "compression.header.algorithm == zstd and verb == mutation")
    out, _ = shown(capsys, *asked, "--dict", FIRST, "--dict", SECOND, CAPTURE)
    assert [line.split()[0] for line in out.splitlines()] == ["31"]
    out, _ = shown(capsys, *asked, CAPTURE)
    assert not out
    out, _ = shown(capsys, "-Y", f"compression.dictionary == {SECOND_SHA}", "-T", "fields", "-e", "number", CAPTURE)
    assert out.splitlines()[0] == "31"


def test_files_that_cannot_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("0x00")
    for path, error in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (short, "1 bytes are no dictionary; export the column data of system.dicts"),
    ):
        out, err = shown(capsys, "--dict", path, CAPTURE, code=ExitCode.USAGE)
        assert err == f"streamdump: --dict {path}: {error}\n" and not out


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "general"
    path.write_bytes(bytes(100))
    path.chmod(0)
    _, err = shown(capsys, "--dict", path, CAPTURE, code=ExitCode.USAGE)
    assert "Permission denied" in err


@pytest.mark.parametrize("command", ["diagnose", "stats", "latency", "conversations", "check", "follow", "scrub", "pipeline"])
def test_other_commands_take_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:

    given = ("--dict", FIRST, "--dict", SECOND)
    out, _ = shown(capsys, command, "--help")
    assert "--dict" in out
    if command in ("diagnose", "stats", "latency"):
        assert shown(capsys, command, *given, CAPTURE)[0] != shown(capsys, command, CAPTURE)[0]
