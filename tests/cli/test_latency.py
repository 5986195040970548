"""`streamdump latency`: its numbers against exact computation over `--json`, and how it shows them."""

from __future__ import annotations

import csv
import fcntl
import json
import math
import os
import pty
import re
import select
import struct
import termios
from collections import Counter, defaultdict
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.units import duration_text
from tests.support.peers import GOLDEN, Pair, capturing, free_port, needs_capture
from tests.support.schema import validate
from tests.support.terminal import on_terminal
from tests.support.waiting import PATIENCE

AMQP = GOLDEN / "rabbitmq-stream" / "publish_amqp_sections_436.pcap"
HANDLER = GOLDEN / "seastar-rpc" / "handler_duration.pcap"
EXPIRED = GOLDEN / "seastar-rpc" / "timeout_expiry.pcap"
LOST = GOLDEN / "rabbitmq-stream" / "lost_segments_405.pcap"
ERRORS = GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap"
NAMES = {0.5: "p50_ns", 0.9: "p90_ns", 0.95: "p95_ns", 0.99: "p99_ns", 0.999: "p99_9_ns"}


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    assert main([str(one) for one in argv]) == code
    out, err = capsys.readouterr()
    return out, err


def records(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(capsys, *argv)[0].splitlines()]


def some() -> list[Path]:
    """A few captures of each family, some with losses."""
    return [
        path for family in ("iggy", "mewbase", "rabbitmq-stream", "seastar-rpc") for path in sorted((GOLDEN / family).glob("*.pcap"))[1::7]
    ]


def ends(exchange: dict[str, Any], clients: dict[int, tuple[str, str]]) -> tuple[str | None, str | None]:
    return clients.get(exchange["conversation"], (None, None))


GROUPED: dict[str, Callable[[dict[str, Any], dict[int, tuple[str, str]]], Any]] = {
    "command": lambda one, clients: one["name"],
    "conversation": lambda one, clients: one["conversation"],
    "client": lambda one, clients: ends(one, clients)[0],
    "server": lambda one, clients: ends(one, clients)[1],
}


@pytest.mark.parametrize("by", ["command", "conversation", "server,command", "client"])
def test_groups_come_to_what_all_exchanges_come_to(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in some() if "snap" not in path.name and "cut" not in path.name]
    every = records(capsys, "--json", "--exchanges", *files)
    clients = {
        one["conversation"]: (one["src"], one["dst"]) if one["sender"] == "client" else (one["dst"], one["src"])
        for one in every
        if one["record"] == "message" and one["sender"] is not None
    }
    groups = defaultdict(list)
    for one in every:
        if one["record"] == "exchange":
            groups[(one["protocol"], *[GROUPED[part](one, clients) for part in by.split(",")])].append(one)
    found = [one for one in records(capsys, "latency", "--json", "--by", by, *files) if one["record"] == "latency"]
    assert {(one["protocol"], *[one[part] for part in by.split(",")]) for one in found} == set(groups)
    for row in found:
        mine = groups[(row["protocol"], *[row[part] for part in by.split(",")])]
        outcomes = Counter(one["outcome"] for one in mine)
        assert (row["count"], row["answered"], row["refused"]) == (len(mine), outcomes["answered"], outcomes["refused"])
        assert row["reasons"] == Counter(one["reason"] or one["outcome"] for one in mine if one["latency_ns"] is None)
        times = sorted(one["latency_ns"] for one in mine if one["latency_ns"] is not None)
        if not times:
            assert row["latency"] is None
            continue
        latency = row["latency"]
        assert (latency["count"], latency["min_ns"], latency["max_ns"]) == (len(times), times[0], times[-1])
        assert latency["mean_ns"] == round(sum(times) / len(times))
        for share, name in NAMES.items():
            wanted = times[math.ceil(share * len(times)) - 1]
            assert abs(latency[name] - wanted) <= max(0.01 * abs(wanted), 0.5)
        assert sum(one["count"] for one in row["histogram"]) == len(times)


def test_batches_do_not_show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import streamdump.inspector

    arguments = ("latency", "--json", "--interval", "0.01", "--slowest", "30", "--by", "command,stream", AMQP, LOST)
    whole = shown(capsys, *arguments)[0]
    monkeypatch.setattr(streamdump.inspector, "PART", 1)
    assert shown(capsys, *arguments)[0] == whole


def test_the_lines_are_those_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    made = records(capsys, "latency", "--json", "--interval", "0.1", HANDLER, ERRORS)
    for one in made:
        validate(one)
    assert {one["record"] for one in made} == {"latency", "interval", "slow"}


def test_the_slowest_say_what_they_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / "seastar-rpc" / "server_stops.pcap"
    slow = [one for one in records(capsys, "latency", "--json", "--slowest", "9", path) if one["record"] == "slow"]
    assert [(one["name"], one["verb"]) for one in slow] == [("Request", "verb 9")] * 5 + [("Negotiation", None)]
    assert main(["latency", "--slowest", "1", str(path)]) == 0
    assert "  Request  verb 9  0  127.0.0.1:55208 > " in capsys.readouterr().out


def test_the_slowest_have_the_numbers_of_the_plain_run(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {one["number"]: one for one in records(capsys, "--json", AMQP)}
    slow = [one for one in records(capsys, "latency", "--json", "--slowest", "4", AMQP) if one["record"] == "slow"]
    latencies = sorted((one["latency_ns"] for one in plain.values() if one.get("latency_ns") is not None), reverse=True)
    assert [one["latency_ns"] for one in slow] == latencies[:4]
    for one in slow:
        request, response = plain[one["request"]], plain[one["response"]]
        assert response["request"] == one["request"]
        assert (request["packets"], response["packets"]) == (one["request_packets"], one["response_packets"])
    assert "slow" not in {one["record"] for one in records(capsys, "latency", "--json", "--slowest", "0", AMQP)}


def test_handler_time_and_network_time_are_parts_of_the_latency(capsys: pytest.CaptureFixture[str]) -> None:
    plain = records(capsys, "--json", HANDLER)
    measured = [one for one in plain if one.get("fields", {}).get("handler_duration_label", "x") is None]
    row = next(one for one in records(capsys, "latency", "--json", HANDLER) if one.get("command") == "Request")
    handler = [1_000 * one["fields"]["handler_duration"] for one in measured]
    network = [one["latency_ns"] - 1_000 * one["fields"]["handler_duration"] for one in measured]
    for part, times in (("handler", handler), ("network", network)):
        assert (row[part]["count"], row[part]["min_ns"], row[part]["max_ns"]) == (len(times), min(times), max(times))
    lines = shown(capsys, "latency", HANDLER)[0].splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["handler", "network"]


def test_a_filter_chooses_responses_after_everything_was_analysed(capsys: pytest.CaptureFixture[str]) -> None:
    plain = records(capsys, "--json", ERRORS)
    asked = "latency > 200us and kind == response"
    wanted = [one for one in plain if one.get("kind") == "response" and (one["latency_ns"] or 0) > 200_000]
    out, err = shown(capsys, "latency", "--json", "-Y", asked, ERRORS)
    groups = [json.loads(line) for line in out.splitlines() if '"record":"latency"' in line]
    assert sum(one["count"] for one in groups) == len(wanted) > 0
    assert f"{len(wanted)} records match -Y" in err
    out, err = shown(capsys, "latency", "-Y", "name == Publish", AMQP)
    assert (out, "-Y: no match is a response" in err) == ("", True)
    late = [one for one in records(capsys, "latency", "--json", "-Y", "reason == 'deadline passed'", EXPIRED) if one["record"] == "latency"]
    assert late
    assert all(set(one["reasons"]) == {"deadline passed"} and one["count"] == one["unanswered"] for one in late)


def test_publishes_are_told_by_the_stream_of_their_publisher(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [one for one in records(capsys, "latency", "--json", "--by", "stream,command", AMQP) if one.get("command") == "Publish"]
    declared = {
        one["fields"]["stream"]
        for one in records(capsys, "--json", AMQP)
        if one.get("name") == "DeclarePublisher" and "stream" in one["fields"]
    }
    assert {one["stream"] for one in rows} == declared


def test_a_series_adds_up_and_its_intervals_widen_when_they_are_too_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import streamdump.latency.groups

    made = records(capsys, "latency", "--json", "--interval", "0.001", ERRORS)
    counts, cells = Counter(), Counter()
    for one in made:
        if one["record"] == "latency":
            counts[one["command"]] += one["count"]
        elif one["record"] == "interval":
            assert one["time_ns"] % one["interval_ns"] == 0
            assert one["interval_ns"] == 1_000_000
            cells[one["command"]] += one["count"]
    assert counts == cells
    monkeypatch.setattr(streamdump.latency.groups, "CELLS", len(counts))
    out, err = shown(capsys, "latency", "--json", "--interval", "0.001", ERRORS)
    wide = [json.loads(line) for line in out.splitlines() if '"record":"interval"' in line]
    assert len(wide) <= len(counts)
    assert sum(one["count"] for one in wide) == sum(counts.values())
    assert f"--interval: {duration_text(wide[0]['interval_ns'])} used; shorter intervals would be too many" in err


def test_groups_beyond_the_limit_are_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    whole = [one for one in records(capsys, "latency", "--json", AMQP) if one["record"] == "latency"]
    out, err = shown(capsys, "latency", "--json", "--group-limit", "2", AMQP)
    rows = [json.loads(line) for line in out.splitlines() if '"record":"latency"' in line]
    assert [one["others"] for one in rows] == [False, False, True]
    assert sum(one["count"] for one in rows) == sum(one["count"] for one in whole)
    assert f"{rows[-1]['count']} exchanges beyond --group-limit 2 counted together" in err


def test_comma_separated_values(capsys: pytest.CaptureFixture[str]) -> None:
    found = {one["command"]: one for one in records(capsys, "latency", "--json", HANDLER) if one["record"] == "latency"}
    rows = [*csv.DictReader(StringIO(shown(capsys, "latency", "--csv", HANDLER)[0]))]
    assert {one["command"] for one in rows} == set(found)
    for row in rows:
        one = found[row["command"]]
        assert int(row["count"]) == one["count"]
        assert int(row["latency_p99_ns"]) == one["latency"]["p99_ns"]
        assert (row["handler_max_ns"] == "") == (one["handler"] is None)
    series = [*csv.DictReader(StringIO(shown(capsys, "latency", "--csv", "--interval", "0.1", HANDLER)[0]))]
    assert sum(int(one["count"]) for one in series) == sum(one["count"] for one in found.values())


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_terminal_gets_what_fits_and_a_pipe_everything(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["latency", "--interval", "1", "--by", "conversation,command", str(HANDLER), str(AMQP)]
    code, text = on_terminal(arguments, columns, {"NO_COLOR": "1"}, stderr=False)
    assert code == ExitCode.DONE
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in text
    assert any("█" in line for line in lines)
    # The quantiles of each group end where their headings end
    groups = lines[: lines.index("")]
    first = next((line for line in groups if {"min", "max"} <= {*line.split()}), "")
    ends = [found.end() for found in re.finditer(r"p[\d.]+", first)]
    timed = [line for line in groups if re.search(r" [\d.]+ [nmµ]s\b", line)]
    assert len(timed) == (21 if columns > 40 else 63)
    assert bool(ends) == (columns > 40)
    assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in timed for end in ends)
    plain = shown(capsys, *arguments)[0]
    assert plain.replace("µ", "u").isascii()
    table = plain.split("\n\n")[0].splitlines()
    end = table[0].index("  count") + 7
    assert all(line[end - 1].isdigit() or not line[:end].strip().isdigit() for line in table[1:])
    if columns == 80:
        assert "\x1b[" in on_terminal(arguments, columns, stderr=False)[1]


@needs_capture
def test_a_running_capture_is_counted_and_the_terminal_refreshed() -> None:
    ping, pong = bytes.fromhex("04000000 01000000"), bytes.fromhex("00000000 00000000")
    port = free_port()
    argv = ["latency", "-i", "lo", "-f", f"tcp port {port}", "-d", f"tcp.port=={port},iggy", "--timeout", "0.2"]
    with capturing(*argv, "--json", "--slowest", "1") as capture:
        with Pair(port) as pair:
            pair.replay([(0, ping), (1, pong), (0, ping), (1, pong), (0, ping)])
        code, out, err = capture.finish()
    row, slow = [json.loads(line) for line in out.splitlines()]
    assert (code, row["command"], row["count"], row["answered"]) == (0, "ping", 3, 2)
    assert set(row["reasons"]) <= {"closed", "timeout", "capture ended"}
    assert slow["latency_ns"] == row["latency"]["max_ns"]
    assert "5 messages in 1 conversation" in err
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        with capturing(*argv, stdout=slave) as capture:
            with Pair(port) as pair:
                pair.replay([(0, ping), (1, pong)])
                shown = b""
                while b"p99.9" not in shown or b"ping" not in shown:
                    assert select.select([master], [], [], PATIENCE)[0], shown
                    shown += os.read(master, 65_536)
            assert capture.finish()[0] == 0
    finally:
        os.close(master)
        os.close(slave)


def test_wrong_calls_say_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in (
        (["--by", "comand"], "did you mean command?"),
        (["--json", "--csv"], "choose one"),
        (["--interval", "0"], "must be more than 0"),
        (["--slowest", "-1"], "--slowest -1: must be an integer, 0 or greater"),
        (["-w", "x"], "-i"),
    ):
        assert said in shown(capsys, "latency", *argv, AMQP, code=ExitCode.USAGE)[1]


def test_what_is_grouped_by_twice_is_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    once = shown(capsys, "latency", "--by", "command,stream", AMQP)[0]
    assert shown(capsys, "latency", "--by", "command, stream,command", "--by", "stream", AMQP)[0] == once


@pytest.mark.parametrize("enough", [1, 9, 20, 26])
def test_so_many_messages_are_enough(enough: int, capsys: pytest.CaptureFixture[str]) -> None:
    told = records(capsys, "--json", "-c", str(enough), EXPIRED)
    ended = [one for one in told if one["record"] == "exchange" or one["request"] is not None]
    found = [one for one in records(capsys, "latency", "--json", "-c", str(enough), EXPIRED) if one["record"] == "latency"]
    assert sum(one["answered"] + one["refused"] + one["unanswered"] for one in found) == len(ended)


def test_times_of_intervals_have_the_form_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    times = {}
    for form in ((), ("-t", "r"), ("-t", "e"), ("-t", "ud")):
        lines = shown(capsys, "latency", "--interval", "0.02", *form, EXPIRED)[0].splitlines()
        times[form] = [line.rpartition("  seastar")[0].strip() for line in lines]
    assert "0.213" in times["-t", "r"]
    assert "1795241119.560" in times["-t", "e"]
    assert "2026-11-21 06:05:19.560" in times["-t", "ud"]
    assert times[()] == times["-t", "ud"]
