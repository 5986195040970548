"""Habits from tshark: the tasks of cli/docs/tshark.md do what they say, with tshark as the witness; names, operators and letters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.errors import FilterError
from streamdump.filter import compile_filter
from streamdump.model import Message
from tests.support.pages import ROOT, page
from tests.support.waiting import PATIENCE

GOLDEN = ROOT / "captures" / "golden"
CAPTURE = GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap"
SECTION = page("cli/docs/tshark.md").partition("## Tasks side by side\n")[2]
TASKS = [
    [cell.strip().strip("`").replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in SECTION.splitlines()
    if line.startswith("| ") and "`" in line
]  # fmt: skip


def test_there_are_enough_tasks() -> None:
    assert len(TASKS) >= 25
    assert all(len(task) == 3 for task in TASKS)


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("tshark") is None or shutil.which("jq") is None, reason="needs tshark and jq")
@pytest.mark.parametrize(("task", "theirs", "ours"), TASKS, ids=[task[0] for task in TASKS])
def test_both_columns_print_the_same(task: str, theirs: str, ours: str, tmp_path: Path) -> None:
    shutil.copy(CAPTURE, tmp_path / "x.pcap")
    program = tmp_path / "streamdump"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m streamdump "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = []
    for command in (theirs, ours):
        call = ["bash", "-c", command]
        done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        told.append(done.stdout.strip())
    assert told[0]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("name eq Open && !(kind == response)", "name == Open and not kind == response"),
        ("size ge 100 || size lt 20", "size >= 100 or size < 20"),
        ("name ne Open and size gt 10 and size le 99", "name != Open and size > 10 and size <= 99"),
        ('name ~ "^P" && !outcome', 'name matches "^P" and not outcome'),
        ("tcp.stream == 1", "conversation == 1"),
        ("tcp.port in {5552, 80}", "port in {5552, 80}"),
        ("ip.addr == 127.0.0.0/8 and ip.src != ::1", "ip == 127.0.0.0/8 and src != ::1"),
        ("tcp.srcport == 5552", "sender == server"),
        ("tcp.dstport == 5552", "sender == client"),
    ],
)
def test_what_is_written_otherwise_means_the_same(theirs: str, ours: str) -> None:
    records = [one for one in streamdump.read(CAPTURE) if isinstance(one, Message)]
    found = compile_filter(theirs).select(records)
    assert found == compile_filter(ours).select(records)
    assert found


@pytest.mark.parametrize("text", ["name & size", "name equal Open", "name === x", "!= 3", "size lt5x"])
def test_what_is_no_operator_is_none(text: str) -> None:
    with pytest.raises(FilterError):
        compile_filter(text)


def test_a_frame_is_of_the_messages_that_hold_it() -> None:
    split = GOLDEN / "rabbitmq-stream" / "small_mss_405.pcap"
    records = [one for one in streamdump.read(split) if isinstance(one, Message)]
    wide = next(one for one in records if one.packets[0] is not None and one.packets[1] - one.packets[0] > 1)
    first, last = wide.packets
    assert first is not None
    for number in (first, first + 1, last):
        assert wide in compile_filter(f"frame.number == {number}").select(records)
        assert wide not in compile_filter(f"frame.number != {number}").select(records)
        assert wide in compile_filter(f"frame.number in {{1, {number}}}").select(records)
    for other in (f"== {first - 1}", f"== {last + 1}", f"> {last}", f"< {first}"):
        assert wide not in compile_filter(f"frame.number {other}").select(records)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["-z", "io,stat,1"], "use streamdump stats --interval SECONDS FILE"),
        (["-z", "follow,tcp,raw,0"], "use streamdump follow N FILE"),
        (["-z", "nothing"], "use one of conv, endpoints"),
        (["-S", "x"], "there is no separator to set"),
        (["-U", "x"], "writes the packets of matching conversations"),
        (["-P"], "also show messages while -w writes"),
        (["-V", "-w", "-"], "packets cannot be written to a terminal"),
    ],
)
def test_letters_that_mean_something_else_are_answered(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, str(CAPTURE)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert told in err


def test_tabs_and_csv_have_the_usual_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-T", "tabs", "-c", "2", str(CAPTURE)]) == main(["-n", "-p", "-T", "csv", "-c", "2", str(CAPTURE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].split("\t")[4:6] == ["rabbitmq-stream", "PeerProperties"]
    assert lines[2].startswith('"number","relative_ns","src"')
