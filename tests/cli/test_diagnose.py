"""`streamdump diagnose`: what it prints, its exit codes, and findings in other views."""

from __future__ import annotations

import io
import json
import re
import socket
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from tests.diagnose.talks import Connection, capture
from tests.support.frames import SYN, Packet, ethernet, ip4, pcap
from tests.support.peers import Pair, capturing, free_port, needs_capture
from tests.support.peers import said as said_in
from tests.support.schema import validate
from tests.support.terminal import on_terminal

ROOT = Path(__file__).parents[2]
RABBIT = ROOT / "captures" / "golden" / "rabbitmq-stream"
FAILS, WARNS, HEALTHY = (str(RABBIT / name) for name in ("loopback_only_user_310.pcap", "publishers_310.pcap", "handshake_close_310.pcap"))


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    main(list(argv))
    return capsys.readouterr().out


def test_findings_come_first_and_then_a_line_for_each_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "diagnose", FAILS).splitlines()
    assert lines[0].startswith("error    rabbitmq-stream.loopback-only-user")
    assert [line for line in lines if line.startswith("! ")] == [
        "! 0  10.99.0.1:59246 > 10.99.0.1:5552  rabbitmq-stream  login, server closes"
    ]
    assert all(len(line) <= 80 for line in lines)


def test_of_several_captures_a_finding_names_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its first packet, and with nothing in a name that could steer a terminal."""
    one, two = tmp_path / "1.pcap", tmp_path / "2\x1b.pcap"
    one.write_bytes(Path(HEALTHY).read_bytes())
    two.write_bytes(Path(FAILS).read_bytes())
    told = re.sub(r"\s+", "", said(capsys, "diagnose", str(one), str(two)))
    assert f"of{tmp_path}/2" in told and f"of{tmp_path}/1" not in told and "\x1b" not in told
    assert f"of{tmp_path}" not in re.sub(r"\s+", "", said(capsys, "diagnose", str(two)))
    for paths, there in (((one, two), True), ((two,), False)):
        said(capsys, "diagnose", "--html", str(tmp_path / "page.html"), *map(str, paths))
        shown = (tmp_path / "page.html").read_text().partition("What went wrong")[2]
        assert (f"of {tmp_path}/2\\x1b.pcap" in shown, f"of {tmp_path}/1" in shown) == (there, False)


def test_where_nothing_was_read_or_asked_for_nothing_is_called_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pcap").write_bytes(pcap([Packet(ethernet(ip4(bytes(8), protocol=17)))]))
    for argv, told in (
        ([HEALTHY], "nothing wrong"),
        ([FAILS, "-Y", "severity == note"], "nothing that matches -Y"),
        ([str(tmp_path / "x.pcap")], "nothing, because no message could be decoded"),
    ):
        assert main(["diagnose", *argv]) == ExitCode.DONE
        assert capsys.readouterr().err.startswith(f"streamdump: found: {told}\n")


def test_connections_refused_on_any_port_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(sport: int, dport: int) -> Connection:
        return Connection(0, sport, dport).segment(0, flags=SYN).reset(1)

    path = tmp_path / "refused.pcap"
    for tries, told in (
        ([refused(40000, 8091), refused(40001, 8091)], "2 connections refused on port 8091; -d tcp.port==8091,PROTOCOL lists them"),
        (
            [refused(40001, 9)] + [refused(40000, port) for port in range(8, 14)],
            "7 connections refused on ports 9, 8, 10, 11, ...; -d tcp.port==9,PROTOCOL lists them",
        ),
        ([refused(40000, 5552)], "1 connection refused or never answered"),
    ):
        path.write_bytes(capture(*tries))
        assert main(["diagnose", str(path)]) == ExitCode.DONE
        assert capsys.readouterr().err.endswith(f"; {told}\n")


@pytest.mark.parametrize(
    ("fail_on", "codes"),
    [
        ("error", (ExitCode.FOUND, ExitCode.DONE, ExitCode.DONE)),
        ("warning", (ExitCode.FOUND, ExitCode.FOUND, ExitCode.DONE)),
        (None, (0, 0, 0)),
    ],
)
def test_exit_codes(fail_on: str | None, codes: tuple[int, ...]) -> None:
    more = [] if fail_on is None else ["--fail-on", fail_on]
    assert tuple(main(["diagnose", *more, name]) for name in (FAILS, WARNS, HEALTHY)) == codes
    assert main(["diagnose", "--fail-on", "note", HEALTHY]) == ExitCode.USAGE
    # What is not shown does not count; what could not be read counts more
    assert main(["diagnose", *more, "-Y", "severity == note", FAILS]) == ExitCode.DONE
    assert main(["diagnose", *more, FAILS, "no such file"]) == ExitCode.UNREADABLE


def test_json_is_what_the_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    records = [json.loads(line) for line in said(capsys, "diagnose", "--json", FAILS, WARNS).splitlines()]
    for record in records:
        validate(record)
    kinds = [record["record"] for record in records]
    assert kinds == ["finding"] * kinds.count("finding") + ["conversation"] * 3
    keys = "record v number time time_ns conversation src dst sender protocol rule severity cause advice messages packets"
    assert " ".join(records[0]) == keys
    went = sorted((one["facts"]["reached"], str(one["facts"]["worst"])) for one in records[-3:])
    assert went == [("login", "error"), ("ready", "None"), ("ready", "warning")]


def test_findings_stand_behind_what_shows_them_and_change_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    plain = said(capsys, "--json", FAILS).splitlines()
    with_findings = said(capsys, "--json", "--findings", FAILS).splitlines()
    found = [json.loads(line) for line in with_findings if line not in plain]
    assert [line for line in with_findings if line in plain] == plain
    assert found and {one["record"] for one in found} == {"finding"}
    assert json.loads(with_findings[with_findings.index(next(line for line in with_findings if line not in plain)) - 1])["number"] == 6
    text = said(capsys, "--findings", FAILS).splitlines()
    assert "finding" in text[6] and "! error: " in text[6] and "messages 5, 6" in text[6]
    assert said(capsys, "--findings", "-T", "fields", "-e", "rule", "-Y", "record == finding", FAILS).splitlines() == [
        one["rule"] for one in found
    ]


def test_standard_input_and_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = said(capsys, "diagnose", FAILS)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(FAILS).read_bytes())))
    assert said(capsys, "diagnose", "-") == whole
    _, coloured = on_terminal(["diagnose", FAILS], columns=60, environment={})
    _, plain = on_terminal(["diagnose", FAILS], columns=60, environment={"NO_COLOR": "1"})
    assert "\x1b[" in coloured and "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@needs_capture
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_wrong_password_is_told_while_it_happens(form: str) -> None:
    replayed = said_in(RABBIT / "wrong_password_405.pcap")
    port = free_port()
    more = ["--json"] if form == "json" else []
    with capturing("diagnose", "-i", "lo", "-f", f"tcp port {port}", *more) as capture:
        with Pair(port) as pair:
            pair.replay(replayed)
            # The connection is still there
            line = capture.line()
        code, out, err = capture.finish()
    assert code == 0, err
    assert "rabbitmq-stream.authentication-refused" in line
    if form == "json":
        assert json.loads(line)["severity"] == "error"
        assert json.loads(out.splitlines()[-1])["facts"]["reached"] == "login"
    else:
        assert any(line.startswith("! 0  127.0.0.1:") for line in out.splitlines())
    assert "found: 1 error" in err


@needs_capture
def test_tls_that_fails_is_told_while_the_client_hangs() -> None:
    hello = said_in(RABBIT / "wrong_password_405.pcap")[0]
    port = free_port()
    with capturing("diagnose", "-i", "lo", "-f", f"tcp port {port}") as capture:
        with Pair(port) as pair:
            pair.replay([hello, (1, bytes.fromhex("1503030002020a"))])
            pair.sides[1].shutdown(socket.SHUT_WR)
            # The client is still there
            line = capture.line()
        code, out, err = capture.finish()
    assert code == 0, err
    assert line.startswith("error    tls.plain-peer")
    assert "! 0  127.0.0.1:" in out
    assert "peer properties, server closes" in out
    assert "found: 1 error" in err


@pytest.mark.parametrize("enough", ["4", "12", "28"])
def test_what_is_found_up_to_so_many_messages(enough: str, capsys: pytest.CaptureFixture[str]) -> None:
    every = [json.loads(line) for line in said(capsys, "--json", "--findings", WARNS).splitlines()]
    number = [one for one in every if one["record"] == "message"][int(enough) - 1]
    found = [one for one in every[: every.index(number)] if one["record"] == "finding"]
    assert [json.loads(line) for line in said(capsys, "diagnose", "--json", "-c", enough, WARNS).splitlines()] == found


def test_findings_say_when_in_the_form_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    finding = json.loads(said(capsys, "diagnose", "--json", "-Y", "severity == error", FAILS).splitlines()[0])
    assert f"at {finding['time_ns'] / 1e9:.6f}" in said(capsys, "diagnose", "-t", "e", FAILS)
    assert f"at {finding['time'][:10]} {finding['time'][11:26]}" in " ".join(said(capsys, "diagnose", "-t", "ud", FAILS).split())
    assert main(["diagnose", "-t", "x", FAILS]) == ExitCode.USAGE
