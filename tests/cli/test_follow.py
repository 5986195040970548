"""`streamdump follow`: one conversation as lines, bytes, a ladder and a diagram."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.capture.link import LinkParser
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.render.follow import _drawn
from streamdump.render.terminal import width
from streamdump.units import duration_text
from tests.diagnose.talks import SECOND, capture
from tests.diagnose.test_rabbitmq_credit import Consumer
from tests.support.peers import GOLDEN, Pair, capturing, free_port, needs_capture
from tests.support.terminal import on_terminal, process_on_terminal
from tests.support.work import steps

RABBIT = GOLDEN / "rabbitmq-stream"
TWO, WRONG, LOST = RABBIT / "two_connections_310.pcap", RABBIT / "wrong_password_405.pcap", RABBIT / "lost_segments_405.pcap"
MIDDLE = GOLDEN / "iggy" / "py081-midstream.pcap"


def follow(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    assert main(["follow", *map(str, argv)]) == code
    return capsys.readouterr()


def made(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> list[dict[str, Any]]:
    assert main(["--json", *map(str, argv)]) == ExitCode.DONE
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lines_say_what_the_others_do_and_how_long_it_was_since(capsys: pytest.CaptureFixture[str]) -> None:
    records = [one for one in made(capsys, TWO) if one["conversation"] == 1]
    title, *lines = follow(capsys, 1, TWO)[0].splitlines()
    assert title == "conversation 1  127.0.0.1:60828 > 127.0.0.1:5552  rabbitmq-stream"
    main([str(TWO), "-Y", "conversation == 1"])
    others = capsys.readouterr().out.splitlines()
    before = None
    for record, line, other in zip(records, lines, others, strict=True):
        number, time, *rest = line.split()
        assert (int(number), time) == (record["number"], other.split()[1])
        if before is not None:
            passed = record["time_ns"] - before
            assert rest[:2] == f"+{duration_text(passed)}".split()
            rest = rest[2:]
        before = record["time_ns"]
        name = record.get("name", "end")
        assert rest[:3] == [record["sender"], "<" if record["sender"] == "server" else ">", name]
        # The credit that is left stands before the rest
        text = re.sub(r"\bcredit \d+ +(?=subscription)", "", " ".join(rest[3:]))
        assert text.split() == re.split(rf"  {name}\b", other, maxsplit=1)[1].split()


def test_a_finding_stands_behind_what_shows_it_at_no_other_time(capsys: pytest.CaptureFixture[str]) -> None:
    plain = follow(capsys, 0, WRONG)[0].splitlines()
    found = follow(capsys, 0, WRONG, "--findings")[0].splitlines()
    assert [line for line in found if "authentication-refused" not in line] == plain
    (told,) = [line for line in found if line not in plain]
    assert "+0 s" in told


@pytest.mark.parametrize("capture", [RABBIT / "sasl_before_peerprops_310.pcap", GOLDEN / "mewbase" / "bad-norid.pcap"])
def test_an_ending_is_not_before_what_it_tells_of(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests that it leaves open end later, with the conversation; it counts from the last message."""
    end = follow(capsys, 0, capture)[0].splitlines()[-1].split()
    (ending,) = [one for one in made(capsys, capture) if one["record"] == "ending"]
    assert end[2:5] == [*f"+{duration_text(ending['quiet_ns'])}".split(), ending["sender"]]


def test_a_filter_and_enough_change_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = follow(capsys, 1, TWO)[0].splitlines()
    asked = follow(capsys, 1, TWO, "-Y", "kind == response or name == Deliver")[0].splitlines()
    assert set(asked) < set(lines)
    assert follow(capsys, 1, TWO, "-c", "3", "-t", "e")[0].count("\n") == 4
    records = follow(capsys, 1, TWO, "--json")[0].splitlines()
    assert [json.loads(line) for line in records] == [one for one in made(capsys, TWO) if one["conversation"] == 1]
    names = follow(capsys, 1, TWO, "-T", "fields", "-e", "name")[0].splitlines()
    assert names == [json.loads(line).get("name", "") for line in records]
    assert "[0000+4]" in follow(capsys, 1, TWO, "-V", "-c", "1")[0]


@pytest.mark.parametrize(
    ("capture", "messages", "told"),
    [
        (TWO, 10, "ready after 6.692 ms and 10 messages"),
        (WRONG, 6, "never ready; the last step was SaslAuthenticate, refused"),
        (GOLDEN / "iggy" / "py090d2-group.pcap", 4, "ready after 46.89 ms and 4 messages"),
        (GOLDEN / "seastar-rpc" / "timeout_expiry.pcap", 2, "ready after 806 µs and 2 messages"),
        (GOLDEN / "mewbase" / "java-sub.pcap", 2, "ready after 101.6 ms and 2 messages"),
        (MIDDLE, 68, "no handshake in 68 messages; the capture may start after it"),
    ],
    ids=lambda one: one.name if isinstance(one, Path) else None,
)
def test_only_the_handshake(capture: Path, messages: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = follow(capsys, 0, capture, "--until", "ready", "--json")
    assert [json.loads(line)["record"] for line in out.splitlines()].count("message") == messages
    assert err.splitlines()[-1] == f"streamdump: conversation 0: {told}"


def sent(capture: Path, port: int, back: bool) -> bytes:
    """The payloads of a connection without loss or repetition, as the packets have them."""
    found = b""
    parser = LinkParser()
    for order, packet in enumerate(packet for batch in open_capture(capture) for packet in batch):
        segment = parser.segment(packet, order)
        if segment is not None and int.from_bytes(segment.ends[10:] if back else segment.ends[8:10], "big") == port:
            found += segment.data
    return found


def test_the_bytes_of_a_side_without_its_secrets(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for side, back in (("client", False), ("server", True), ("127.0.0.1:60824", False)):
        whole = sent(TWO, 60824, back)
        assert main(["follow", "0", str(TWO), "--raw", side, "--show-secrets"]) == ExitCode.DONE
        assert capfdbinary.readouterr().out == whole
        assert main(["follow", "0", str(TWO), "--raw", side]) == ExitCode.DONE
        out, err = capfdbinary.readouterr()
        assert len(out) == len(whole)
        changed = [at for at, (one, other) in enumerate(zip(out, whole, strict=True)) if one != other]
        if back:
            assert not changed
        else:
            assert b"\0guest\0guest" in whole
            assert b"guest" not in out
            assert b"secrets were overwritten with *" in err
            assert {out[at] for at in changed} == {0x2A}
            # Only these bytes, and perhaps their length, of a frame that shows the rest
            assert max(changed) - min(changed) < 16
            assert b"PLAIN" in out
    assert main(["follow", "0", str(LOST), "--raw", "server"]) == ExitCode.DONE
    assert b"67 bytes of this side are missing" in capfdbinary.readouterr().err


def test_bytes_go_to_no_terminal() -> None:
    code, text = on_terminal(["follow", "0", str(TWO), "--raw", "client"])
    assert code == ExitCode.USAGE
    assert "does not write raw bytes to a terminal" in text
    assert "product" not in text


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A stream whose name acts on terminals and pages."""
    path = tmp_path / "hostile.pcap"
    data = TWO.read_bytes()
    assert data.count(b"\0\x03two") > 3
    path.write_bytes(data.replace(b"\0\x03two", b"\0\x03\x1b;#"))
    return path


@pytest.mark.parametrize("columns", [80, 110])
@pytest.mark.parametrize("capture", [GOLDEN / "mewbase" / "java-auth-bad.pcap", RABBIT / "versions_unsupported_310.pcap"])
def test_what_went_wrong_is_told_whole(capture: Path, columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    """However narrow the terminal is; only what went well is cut."""
    lines = follow(capsys, 0, capture)[0].splitlines()
    _, shown = on_terminal(["follow", "0", str(capture)], columns=columns, environment={"NO_COLOR": "1"}, stderr=False)
    assert all(width(line) <= columns for line in shown.splitlines())
    words = " ".join(shown.split())
    told = [line.split(" ! " if " ! " in line else " end ")[1].split() for line in lines if " ! " in line or " end " in line]
    assert len(told) > 1
    for one in told:
        assert " ".join(one) in words
    marked = False
    for line in shown.splitlines()[1:]:
        marked = " ! " in line or " end " in line if re.match(r" *\d+ +[\d.]+ ", line) else marked
        assert marked or line[4:5].isdigit()


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("form", [[], ["--ladder"]])
def test_nothing_is_wider_than_the_terminal_nor_acts_on_it(form: list[str], columns: int, hostile: Path) -> None:
    code, text = on_terminal(["follow", "0", str(hostile), *form], columns=columns, environment={"NO_COLOR": "1"}, stderr=False)
    assert code == 0
    assert "\x1b" not in text
    assert r"\x1b;#" in text
    lines = text.splitlines()
    assert all(width(line) <= columns for line in lines)
    if form:
        rungs = [line for line in lines if "│" in line]
        assert sum("▶" in line or "◀" in line for line in rungs) == 49
        assert {len(line) for line in rungs} == {columns}
        assert all(line.endswith("▶│") or "│◀" in line or " end " in line for line in rungs)


def test_a_ladder_of_ascii_where_there_is_nothing_else() -> None:
    argv = ["-m", "streamdump", "follow", "0", str(LOST), "--ladder"]
    code, text = process_on_terminal(argv, environment={"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"})
    assert code == 0
    assert text.isascii()
    assert "|- PeerProperties  #1" in text
    assert re.search(r"\| +! gap  53 bytes not captured \|", text)


def test_a_diagram_for_a_report(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = follow(capsys, 0, WRONG, "--mermaid")[0].splitlines()
    assert lines[:3] == ["sequenceDiagram", "    participant c as client 127.0.0.1:36188", "    participant s as server 127.0.0.2:5552"]
    assert lines[8] == "    s--xc: SaslAuthenticate #35;3 authentication failure (3.001 s)"
    out = follow(capsys, 0, hostile, "--mermaid")[0]
    assert "#92;x1b#59;#35;" in out
    form = re.compile(r"    (?:[cs](?:->>|-->>|-\)|--x)[cs]|Note over c,s): (?:[\w .,:=/()'+-]|#\d+;)+")
    assert all(form.fullmatch(line) for line in out.splitlines()[3:])
    assert "    Note over c,s: server: gap 53 bytes not captured" in follow(capsys, 0, LOST, "--mermaid")[0]


@given(st.text())
def test_a_diagram_has_nothing_of_its_own_syntax(text: str) -> None:
    drawn = _drawn(text)
    assert re.fullmatch(r"(?:[\w .,:=/()'+-]|#\d+;)*", drawn)
    assert not re.search(r"\bend\b", drawn, re.I)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["7", TWO], "no conversation 7: the capture has 2 conversations, numbered from 0; streamdump conversations lists them"),
        ([TWO], "not a conversation number"),
        (["0", TWO, "--ladder", "--mermaid"], "--ladder and --mermaid cannot be combined; choose one"),
        (["0", TWO, "--raw", "client", "-V"], "--raw and -V cannot be combined; choose one"),
        (["0", TWO, "--raw", "both"], "--raw both: must be client, server, or an endpoint such as 192.0.2.1:5552"),
        (["0", TWO, "--until", "open"], "--until open: must be ready"),
        (["0", TWO, "-w", "x"], "-w needs live capture"),
    ],
)
def test_wrong_calls(argv: list[str | Path], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = follow(capsys, *argv, code=ExitCode.USAGE)
    assert out == ""
    assert told in err


def test_a_conversation_that_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = follow(capsys, 0, GOLDEN / "iggy" / "node080-tls.pcap")
    assert out == ""
    assert "conversation 0 is not decoded: TLS" in err


@needs_capture
def test_a_running_conversation() -> None:
    ping, pong = bytes.fromhex("04000000 01000000"), bytes.fromhex("00000000 00000000")
    port = free_port()
    with capturing("follow", "0", "-i", "lo", "-f", f"tcp port {port}", "-d", f"tcp.port=={port},iggy", "--json") as capture:
        for _ in range(2):
            with Pair(port) as pair:
                pair.replay([(0, ping), (1, pong)])
        assert [json.loads(capture.line())["conversation"] for _ in range(2)] == [0, 0]
        code, out, _ = capture.finish()
        assert code == 0
        assert all(json.loads(line)["conversation"] == 0 for line in out.splitlines())


@pytest.mark.parametrize("argv", [[], ["follow", "0"], ["follow", "0", "--ladder"]])
@pytest.mark.parametrize(
    ("capture", "hinted"),
    [
        (RABBIT / "server_forced_close_405.pcap", True),
        (RABBIT / "server_close_unknown_frame_310.pcap", True),
        (GOLDEN / "mewbase" / "py-idle.pcap", True),
        (RABBIT / "handshake_close_405.pcap", False),
    ],
)
def test_what_is_marked_is_worth_a_diagnosis(capture: Path, hinted: bool, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, str(capture)]) == ExitCode.DONE
    assert capsys.readouterr().err.endswith("; more: streamdump diagnose\n") == hinted


def test_nobody_is_sent_to_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(RABBIT / "vhost_failure_405.pcap")])
    assert "more:" not in capsys.readouterr().err


def test_of_other_conversations_no_fields_are_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(GOLDEN / "seastar-rpc" / "five_connections.pcap")
    calls = (["-V", "-Y", "conversation >= 0", capture], ["follow", "-V", "1", capture])
    for call in calls:
        # What is made once, such as the grammar of filters, counts for nobody
        main(call)
    whole, one = [steps(lambda call=call: main(call)) for call in calls]  # type: ignore[misc]
    assert one < 0.7 * whole
    capsys.readouterr()


def test_a_record_that_was_released_late_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = follow(capsys, "0", GOLDEN / "mewbase" / "cut-reordered.pcap")
    times = [float(line.split()[1].rstrip("^")) for line in out.splitlines()[1:]]
    late = [line.split()[1].endswith("^") for line in out.splitlines()[1:]]
    assert sum(late) == 4
    assert late == [time < max(times[: at + 1]) for at, time in enumerate(times)]


def test_credit_stands_beside_what_changes_it_and_stalls_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = RABBIT / "credit_flow_405.pcap"
    lines = [line for line in follow(capsys, 0, path)[0].splitlines() if "credit" in line and "Subscribe" not in line]
    delivered = [line for line in lines if "Deliver" in line]
    assert [line.split("  credit ")[1].split()[0] for line in delivered] == [*"000000", *"543210"]
    stalls = [line for line in lines if "without credit (client)" in line]
    assert len(stalls) == 7 and all(" * " in line for line in stalls)
    assert "* credit 6, after 100.4 ms without credit (client)  subscription 1  +6" in stalls[5]
    assert "* subscription 1: 702 ms without credit (client)  #8" in stalls[6]
    # Only with the frames that end them
    assert "without credit" not in "".join(follow(capsys, 0, path, "-Y", "name == Deliver"))
    page = tmp_path / "page.html"
    follow(capsys, 0, path, "--html", page)
    text = page.read_text()
    assert (text.count('class="chunk"'), text.count('class="stall"')) == (12, 7)
    assert "credit 6, after 100.4 ms without credit (client)" in text
    follow(capsys, 0, path, "--html", page, "-Y", "name == Nothing")
    assert "<svg" not in page.read_text()


def test_a_stall_stands_only_beside_the_credit_that_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Consumer().subscribe(1, 1).deliver(100).wait(SECOND).credit(1, 1).credit(1, 1).credit(1, 1).deliver(100).goodbye()
    path = tmp_path / "x.pcap"
    path.write_bytes(capture(one))
    granted = [line for line in follow(capsys, 0, path)[0].splitlines() if "client >  Credit" in line]
    assert ["without credit" in line for line in granted] == [True, False, False]


def test_a_subscription_without_credit_at_the_end_of_the_capture_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Consumer().subscribe(1, 1).deliver(100).wait(SECOND).pause(0)
    path = tmp_path / "x.pcap"
    path.write_bytes(capture(one))
    said = "subscription 0: 999 ms without credit (client), at the end of the capture"
    assert said in follow(capsys, 0, path)[1]
    for more in (["-Y", "name == Deliver"], ["-c", "1"], ["--until", "ready"]):
        assert said not in follow(capsys, 0, path, *more)[1]


def test_credit_that_is_refused_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = follow(capsys, 0, GOLDEN.parent / "samples" / "reports" / "rmq_byte_credit.pcap")
    granted, refused = out.split("credit 71,048,576 bytes")[1].splitlines()[:2]
    assert "+70,000,000 bytes" in granted
    assert "! credit 1,048,576 bytes  precondition failed" in refused


def test_after_a_loss_no_credit_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = follow(capsys, 0, LOST)[0].splitlines()
    assert any("Deliver" in line for line in lines) and not any("credit" in line for line in lines if "Subscribe" not in line)
