"""Times that are differences: fields `relative` and `delta`, and `-t d` and `-t dd` as tshark writes them."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.model import Message
from tests.support.rewrite import packets

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CAPTURE = GOLDEN / "rabbitmq-stream" / "publishers_310.pcap"
TWO = GOLDEN / "rabbitmq-stream" / "server_close_frame_too_large_436.pcap"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main([*argv]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
def test_t_d_is_the_time_since_the_packet_before_as_in_tshark(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tshark", "-r", str(TWO), "-T", "fields", "-e", "frame.number", "-e", "frame.time_delta"]
    lines = subprocess.run(asked, capture_output=True, check=True, text=True).stdout.splitlines()
    deltas = {int(number): f"{float(delta):.6f}" for number, delta in (line.split() for line in lines)}
    messages = [one for one in streamdump.read(TWO) if isinstance(one, Message)]
    shown = [line.split()[1] for line in said(capsys, "-t", "d", "-Y", "record == message", str(TWO))]
    assert shown == [deltas[one.packets[1]] for one in messages]
    assert len(set(shown)) > 10


def test_t_dd_is_the_time_since_the_line_before(capsys: pytest.CaptureFixture[str]) -> None:
    where = "kind == request"
    messages = [one for one in streamdump.read(TWO, where=where) if isinstance(one, Message)]
    passed = [0, *(two.time_ns - one.time_ns for one, two in pairwise(messages))]
    shown = [line.split()[1] for line in said(capsys, "-t", "dd", "-Y", where, str(TWO))]
    assert shown == [f"{ns // 10**9}.{ns % 10**9 // 1000:06d}" for ns in passed]


def test_relative_counts_from_the_first_packet_and_delta_from_the_message_before_in_the_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = list(streamdump.read(TWO))
    assert len({one.conversation for one in records}) == 2
    begin_ns = packets(TWO)[0].time_ns
    last: dict[int | None, int] = {}
    wanted = []
    for one in records:
        before = last.get(one.conversation)
        wanted.append(f"{one.number}\t{one.time_ns - begin_ns}\t{'' if before is None else one.time_ns - before}")
        if isinstance(one, Message):
            last[one.conversation] = one.time_ns
    columns = ["-T", "fields", "-e", "number", "-e", "relative", "-e", "delta"]
    assert said(capsys, *columns, str(TWO)) == wanted
    slow = [line for line in wanted if line.split("\t")[2] and int(line.split("\t")[2]) > 1_000_000]
    assert said(capsys, *columns, "-Y", "delta > 1ms", str(TWO)) == slow
    assert len(said(capsys, "-Y", "relative <= 1s", str(TWO))) == sum(int(line.split("\t")[1]) <= 10**9 for line in wanted)
    assert 0 < len(slow) < len(wanted)


@pytest.mark.parametrize("view", ["latency", "diagnose"])
def test_views_that_have_no_line_a_message_say_so(view: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([view, "-t", "dd", str(CAPTURE)]) == 2
    assert "needs a view with one line per message" in capsys.readouterr().err
