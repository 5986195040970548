"""The command line over real captures: what is printed where, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.cli.output import coloured
from streamdump.render.terminal import width
from tests.diagnose.talks import capture as talk
from tests.diagnose.test_tcp import sent_again
from tests.support.captures import CAPTURES, GOLDEN, capture_name, every_family
from tests.support.frames import Packet, ethernet, ip4, pcap, tcp
from tests.support.schema import validate
from tests.support.terminal import on_terminal
from tests.support.waiting import PATIENCE, until, waits_for_more

STREAM = GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"
CODES = re.compile(r"\x1b\[[0-9;]*m")


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    assert main([str(one) for one in argv]) == code
    out, err = capsys.readouterr()
    return out, err


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_a_record_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    text, err = shown(capsys, STREAM)
    made = records(shown(capsys, "--json", STREAM)[0])
    assert len(text.splitlines()) == len(made) > 60
    for line, record in zip(text.splitlines(), made, strict=True):
        assert line.split()[0] == str(record["number"])
        assert record.get("name", "end") in line
        assert record["src"] in line
        assert record["dst"] in line
        assert record["protocol"] in line
    assert err.count("\n") == 1
    assert re.search(r": [0-9,]+ packets, [0-9,]+ messages in [0-9]+ conversations", err)


@pytest.mark.parametrize("argv", [("-T", "json", "-T", "text"), ("--json", "-T", "text"), ("-T", "text", "--json")])
def test_two_forms_at_once_are_refused(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, *argv, STREAM, code=ExitCode.USAGE)
    assert (out, err) == ("", "streamdump: text and json cannot be combined; choose one\n")
    assert shown(capsys, "--json", "-T", "json", "-c", "1", STREAM)[0] == shown(capsys, "-T", "json", "-T", "json", "-c", "1", STREAM)[0]


def test_text_and_json_are_asked_for_in_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--json", STREAM)[0] == shown(capsys, "-T", "json", "-r", STREAM)[0]
    assert shown(capsys, STREAM)[0] == shown(capsys, "-T", "text", STREAM)[0]


@pytest.mark.sweep
@every_family(CAPTURES)
def test_json_fits_the_schema(paths: list[Path], subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            for argv in (["--json", "--exchanges"], ["conversations", "--json"]):
                main([*argv, str(path)])
                # the validator is slow, and messages of one name look alike
                seen: set[tuple[Any, ...]] = set()
                for record in records(capsys.readouterr().out):
                    shape = tuple(record[key] is None for key in record), record.get("name"), record["record"]
                    if shape not in seen:
                        validate(record)
                    seen.add(shape)


@pytest.mark.sweep
@every_family(CAPTURES)
def test_secrets_are_in_no_form_of_output(
    paths: list[Path],
    subtests: pytest.Subtests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            monkeypatch.chdir(tmp_path)
            # the name of a capture may tell what its password is
            Path("x").write_bytes(path.read_bytes())
            secrets = _secrets(capsys)
            if not secrets:
                continue
            forms = [[], ["-V", "-x"], ["conversations"], ["conversations", "--json"]]
            forms += [["--json", "--exchanges", "--bytes", form] for form in ("hex", "base64", "text", "omit")]
            forms += [["diagnose"], ["--findings", "--json"], ["stats", "--json"], ["latency", "--json"], ["entries", "--json"]]
            forms += [["follow", "0"], ["-T", "fields", "-e", "name", "-e", "fields"], ["check", "--update"]]
            forms += [[*command, "--html", "page"] for command in (["stats"], ["diagnose"], ["follow", "0"])]
            for form in forms:
                main([*form, "x"])
                text = "".join(capsys.readouterr()).lower()
                for written in (Path("page"), Path("x.golden")):
                    if written.exists():
                        text += written.read_text("utf-8").lower()
                        written.unlink()
                for secret in secrets:
                    assert secret not in text, form


ORDINARY = (b"wrong",)
"""Passwords that are words of findings."""


def _secrets(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Every secret of the capture in all the ways it could show: text, hex with and without blanks, base64."""
    main(["--json", "x"])
    hidden = capsys.readouterr().out
    main(["--json", "--show-secrets", "x"])
    plain = capsys.readouterr().out
    found: set[bytes] = set()
    for one, other in zip(records(hidden), records(plain), strict=True):
        _compare(one.get("fields"), other.get("fields"), found)
    secrets: set[str] = set()
    for secret in {part for whole in found for part in (whole, *whole.split(b"\0"))}:
        forms = {secret.hex(), secret.hex(" "), b64encode(secret).decode().lower(), secret.decode("latin-1").lower()}
        # what is also said in the clear elsewhere (a user name that is the password) is no leak
        if len(set(secret)) >= 4 and secret not in ORDINARY and not any(form in hidden.lower() for form in forms):
            secrets |= forms
    return secrets


def _compare(hidden: Any, plain: Any, found: set[bytes]) -> None:
    if isinstance(hidden, dict) and isinstance(plain, dict):
        for key in hidden:
            _compare(hidden[key], plain.get(key), found)
    elif isinstance(hidden, list) and isinstance(plain, list):
        for one, other in zip(hidden, plain, strict=True):
            _compare(one, other, found)
    elif isinstance(hidden, str) and hidden.startswith("<redacted ") and isinstance(plain, str):
        is_hex = re.fullmatch(r"(?:[0-9a-f]{2})+", plain) is not None
        found.add(bytes.fromhex(plain) if is_hex else plain.encode())


@every_family(CAPTURES, short=4)
def test_every_view_takes_every_capture(paths: list[Path], subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            for argv in (["-V", "-x", "--exchanges", "--color", "always", "--show-secrets"], ["-t", "ad"], ["conversations"]):
                assert main([*argv, str(path)]) in (ExitCode.DONE, ExitCode.UNREADABLE)
                text = CODES.sub("", capsys.readouterr().out)
                assert all(line.isprintable() for line in text.split("\n"))


def test_tree_covers_every_byte_of_a_frame(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys, "-V", "-c", "1", STREAM)
    record = records(shown(capsys, "--json", "-c", "1", STREAM)[0])[0]
    leaves = [(int(at, 16), int(size)) for at, size, data in re.findall(r"\[([0-9a-f]{4,})\+(\d+)\] +((?:[0-9a-f*]{2} )*)", out) if data]
    at = 0
    for offset, size in leaves:
        assert offset == at
        at += size
    assert at == record["size"]


def test_stop_after_messages_and_packets(capsys: pytest.CaptureFixture[str]) -> None:
    everything = records(shown(capsys, "--json", STREAM)[0])
    out, err = shown(capsys, "--json", "-c", "5", STREAM)
    assert records(out) == everything[:5]
    assert err.endswith(": 5 messages, stopped by -c\n")
    out, err = shown(capsys, "--json", "-a", "packets:20", STREAM)
    assert "20 packets" in err
    assert 0 < len(records(out)) < len(everything)


def test_quiet_says_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "-q", STREAM)
    assert not out
    assert err.count("\n") == 1


def test_packets_that_were_not_looked_at_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ethernet(ip4(tcp(b"x")))
    told = []
    for packets, link in (
        ([whole] * 2, 147),
        ([whole[:30]], 1),
        ([ethernet(ip4(bytes(4) + ip4(tcp()), protocol=47))] * 1000, 1),
        ([ethernet(ip4(bytes(8), protocol=17))] * 3, 1),
        ([ethernet(ip4(tcp(bytes(4))[:16], more=True))], 1),
        ([whole], 1),
    ):
        (tmp_path / "x.pcap").write_bytes(pcap([Packet(one, wire=99) for one in packets], link))
        told.append(shown(capsys, tmp_path / "x.pcap")[1].strip().split("; ")[1:])
    assert told[:5] == [
        ["2 packets of unsupported link type 147"],
        ["1 packet with truncated or malformed headers"],
        ["1,000 packets in GRE not decoded"],
        ["no TCP packets"],
        ["1 fragment of incomplete datagrams"],
    ]
    assert not any(part.startswith(("1 packet", "no TCP")) for part in told[5])


def test_packets_without_times_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, GOLDEN.parent / "samples" / "reports" / "spb_no_times.pcapng")
    assert err.endswith("20 messages in 1 conversation; 47 packets without times: latencies are unknown\n")
    assert out.splitlines()[1].split()[:2] == ["2", "-"]
    assert not re.search("1970|0.000", out)
    assert not re.search("1970|0.000", shown(capsys, "follow", "0", GOLDEN.parent / "samples" / "reports" / "spb_no_times.pcapng")[0])


def test_data_that_is_never_acknowledged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line of an unanswered request says so; other messages were shown before anybody knew, and are counted."""
    out, err = shown(capsys, GOLDEN.parent / "samples" / "reports" / "unacked_then_syn.pcap")
    assert " ! unanswered after 32.4 s (capture ended), sent 7 times and never acknowledged: publisher 0" in out.splitlines()[-2]
    assert out.count("never acknowledged") == 1
    counted = "1 unanswered, 1 connection refused or never answered, data of 1 connection never acknowledged"
    assert err.endswith(f"; {counted}; more: streamdump diagnose\n")
    for times, counted in ((2, ""), (3, "; data of 1 connection never acknowledged; more: streamdump diagnose")):
        (tmp_path / "x.pcap").write_bytes(talk(sent_again(times)))
        out, err = shown(capsys, tmp_path / "x.pcap")
        assert "never acknowledged" not in out
        assert err.endswith(f" in 1 conversation{counted}\n")


@pytest.mark.parametrize("clock", ["r", "ad", "ud", "e"])
def test_times(clock: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys, "-t", clock, "-c", "1", STREAM)
    record = records(shown(capsys, "--json", "-c", "1", STREAM)[0])[0]
    expected = {
        "r": "0.006884",  # since the first packet
        "ad": record["time"][16:26],
        "ud": record["time"][:26].replace("T", " "),
        "e": f"{record['time_ns'] // 10**9}.{record['time_ns'] % 10**9:09d}",
    }
    assert f"{expected[clock]} " in out


def test_readable_inputs_are_read_before_the_others_are_complained_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = records(shown(capsys, "--json", STREAM)[0])
    (tmp_path / "empty").write_bytes(b"")
    out, err = shown(capsys, "--json", tmp_path / "none", STREAM, tmp_path / "empty", code=ExitCode.UNREADABLE)
    assert len(records(out)) == len(whole)
    assert "none: no such file" in err
    assert "empty: is empty" in err


def test_a_cut_capture_gives_what_is_whole_and_then_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = records(shown(capsys, "--json", STREAM)[0])
    (tmp_path / "cut.pcap").write_bytes(STREAM.read_bytes()[:5000])
    out, err = shown(capsys, "--json", tmp_path / "cut.pcap", code=ExitCode.UNREADABLE)
    some = [record for record in records(out) if record["record"] == "message"]
    assert 0 < len(some) < len(whole)
    assert re.search(r"cut\.pcap: .*after packet \d+, at byte \d+", err)


def test_merged_captures_name_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = records(shown(capsys, "--json", STREAM)[0])
    both = records(shown(capsys, "--json", STREAM, STREAM)[0])
    assert {record.get("file") for record in both} <= {0, 1, None}
    assert len(once) <= len(both)


def test_a_file_named_like_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "schema").write_bytes(STREAM.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert "PeerProperties" in shown(capsys, "-r", "schema", "-c", "1")[0]
    assert "PeerProperties" in shown(capsys, "./schema", "-c", "1")[0]


def test_conversations(capsys: pytest.CaptureFixture[str]) -> None:
    rows = records(shown(capsys, "conversations", "--json", STREAM)[0])
    text, err = shown(capsys, "conversations", STREAM)
    assert len(text.splitlines()) == len(rows) + 1
    made = records(shown(capsys, "--json", STREAM)[0])
    for row, line in zip(rows, text.splitlines()[1:], strict=True):
        assert row["messages"] == sum(one["record"] == "message" and one["conversation"] == row["conversation"] for one in made)
        assert row["client"] in line
        assert row["protocol"] in line
        assert row["ended"] in line
        assert not any(one in line for one in row["evidence"])
    for row, line in zip(rows, shown(capsys, "conversations", "-V", STREAM)[0].splitlines()[1:], strict=True):
        assert all(one in line for one in row["evidence"])
    assert "more:" not in err


def test_protocols_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    from streamdump.protocols import PROTOCOLS

    lines = shown(capsys, "protocols")[0].splitlines()
    assert [line.split()[0] for line in lines] == [protocol.name for protocol in PROTOCOLS]
    for protocol in PROTOCOLS:
        text = shown(capsys, "protocols", protocol.name)[0]
        assert all(layout.name in text for layout in protocol.loaded.layouts)
    _, err = shown(capsys, "protocols", "rabitmq", code=ExitCode.USAGE)
    assert "did you mean rabbitmq-stream?" in err


def test_decode_as_names_the_nearest_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = shown(capsys, "-d", "tcp.port==5552,rabbit-stream", STREAM, code=ExitCode.USAGE)
    assert "did you mean rabbitmq-stream?" in err
    _, err = shown(capsys, "-d", "tcp.port==5552,mewbase:L1", STREAM, code=ExitCode.USAGE)
    assert "has no layout L1" in err


# As other programs see it


def process(*argv: str | Path, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "streamdump", *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def test_json_waits_for_nothing_it_does_not_need() -> None:
    code = (
        "import sys; from streamdump.cli.app import main; main(sys.argv[1:]);"
        "print(sorted({'lark', 'rich', 'scapy', 'pydantic', 'pyspark'} & {name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--json", STREAM], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_closed_pipe_ends_quietly() -> None:
    many = GOLDEN / "rabbitmq-stream" / "pipelined_requests_405.pcap"
    running = process("--json", many if many.exists() else STREAM)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    assert running.wait(PATIENCE) == ExitCode.DONE
    assert running.stderr.read() == b""
    running.stderr.close()


def test_a_pipe_is_read_while_it_is_written() -> None:
    data = STREAM.read_bytes()
    running = process("--json", "-", stdin=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdin.write(data[:6000])
    running.stdin.flush()
    # the rest is held back until a record has come out
    assert json.loads(running.stdout.readline())["number"] == 1
    running.stdin.write(data[6000:])
    running.stdin.close()
    assert len(running.stdout.read().splitlines()) > 60
    assert running.wait(PATIENCE) == ExitCode.DONE
    running.stdout.close()
    running.stderr.close()


@pytest.mark.parametrize("given", [0, 6000])
def test_an_interruption_ends_with_what_was_read(given: int) -> None:
    running = process("--json", "-", stdin=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdin.write(STREAM.read_bytes()[: given or 24])
    running.stdin.flush()
    if given:
        running.stdout.readline()
    until(lambda: waits_for_more(running), running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert b"Traceback" not in err
    if given:
        assert running.returncode == ExitCode.DONE
        assert b"interrupted" in err
    else:
        assert running.returncode == ExitCode.INTERRUPTED


def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "streamdump", "--json", str(STREAM)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == "streamdump: standard output cannot be written: No space left on device\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("argv", "bar"), [(["conversations"], True), (["-q"], True), ([], False)])
def test_a_long_run_shows_its_progress_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch, argv: list[str], bar: bool) -> None:
    said = _Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("streamdump.cli.run.PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr", said)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main([*argv, str(STREAM)]) == ExitCode.DONE
    assert ("\N{BOX DRAWINGS HEAVY HORIZONTAL}" in said.getvalue()) is bar


def test_a_named_pipe_is_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(STREAM.read_bytes()))
    writer.start()
    out, _ = shown(capsys, "--json", pipe)
    writer.join()
    assert len(records(out)) > 60


# As a person sees it


def test_the_list_of_protocols_fits_a_narrow_terminal() -> None:
    code, text = on_terminal(["protocols"], 70, {"NO_COLOR": "1"})
    assert code == ExitCode.DONE
    assert max(map(width, text.splitlines())) <= 70
    assert "2016 and 2017" in " ".join(text.split())


@pytest.mark.parametrize("columns", [70, 120])
def test_nothing_is_wider_than_the_terminal(columns: int) -> None:
    for argv in ([str(STREAM)], ["-V", "-x", "-c", "8", str(STREAM)], ["conversations", str(STREAM)]):
        code, text = on_terminal(argv, columns, stderr=False)
        assert code == ExitCode.DONE
        lines = CODES.sub("", text).split("\n")
        assert max(map(width, lines)) <= columns
        assert "\x1b[" in text


def test_a_terminal_gets_a_heading_and_introductions() -> None:
    _, text = on_terminal([str(STREAM)], 120)
    lines = CODES.sub("", text).splitlines()
    assert lines[0].split() == ["#", "time", "message", "latency", "details"]
    assert re.fullmatch(r" +0  \S+ > \S+  rabbitmq-stream", lines[1])
    assert lines[-1].startswith("streamdump: ")


@pytest.mark.parametrize(
    ("argv", "environment"),
    [(["--color", "always"], {"NO_COLOR": "1"}), (["--json"], {"NO_COLOR": "1"}), (["--json", "--color", "never"], {"FORCE_COLOR": "1"})],
    ids=str,
)
def test_no_colour_on_a_terminal(argv: list[str], environment: dict[str, str]) -> None:
    _, text = on_terminal([*argv, str(STREAM)], 100, environment)
    assert "\x1b[" not in text


@pytest.mark.parametrize(
    "argv", [["--json"], *([name, "--json"] for name in ("conversations", "stats", "latency", "diagnose", "entries"))], ids=" ".join
)
def test_json_is_coloured_on_a_terminal_and_the_same_below_the_colours(argv: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _, text = on_terminal([*argv, str(STREAM)], stderr=False)
    main([*argv, "--color", "always", str(STREAM)])
    plain = capfdbinary.readouterr().out.decode()
    assert "\x1b[36m" in text and "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == plain


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("when", "environment", "colour"),
    [
        ("auto", {}, None),
        ("always", {}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, None),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"TERM": "dumb"}, False),
    ],
    ids=str,
)
def test_colour(when: str, environment: dict[str, str], colour: bool | None, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert coloured(when, Stream()) is (terminal if colour is None else colour)


def test_no_arguments_on_a_terminal_show_how_to_begin_instead_of_waiting() -> None:
    code, text = on_terminal([])
    assert code == ExitCode.DONE
    assert "streamdump capture.pcap" in text
    assert "streamdump --help all commands and options" in text
    assert len(text.splitlines()) < 24
    code, text = on_terminal(["--json"])
    assert code == ExitCode.USAGE
    assert "no capture given" in text


def test_verbs_are_named_when_asked_for_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = GOLDEN / "seastar-rpc" / "port7000.pcap"
    out, err = shown(capsys, port)
    assert "--verbs scylla" in err
    assert "verb " in out
    (tmp_path / "names").write_text("\n".join(f"{number} = call_{number}" for number in range(64)))
    out, err = shown(capsys, "--verbs", tmp_path / "names", port)
    assert "--verbs" not in err
    assert "call_" in out
    _, err = shown(capsys, "--verbs", "sylla", port, code=ExitCode.USAGE)
    assert "scylla" in err


def test_more_captures_than_a_shell_lets_be_open(tmp_path: Path) -> None:
    capture = str(GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap")
    limited = ["sh", "-c", 'ulimit -S -n 64; exec "$0" -m streamdump -q "$@"', sys.executable, *[capture] * 80]
    said = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert said.stderr.startswith("streamdump: 80 files: 1,760 packets, ")


def test_what_was_refused_is_marked_without_its_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a filter that asks for refusals leaves it."""
    alone = tmp_path / "refused.pcap"
    capture = GOLDEN / "rabbitmq-stream" / "vhost_failure_405.pcap"
    assert main(["-w", str(alone), "--only-matching", "-Y", "outcome == refused", str(capture)]) == ExitCode.DONE
    capsys.readouterr()
    assert main([str(alone)]) == ExitCode.DONE
    said = capsys.readouterr()
    assert [line.partition(" ! ")[2] for line in said.out.splitlines()] == ["#4  virtual host access failure"] * 2
    assert said.err.endswith("; more: streamdump diagnose\n")
    assert main([str(capture)]) == ExitCode.DONE
    assert capsys.readouterr().out.count(" ! ") == 2
