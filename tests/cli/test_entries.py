"""`streamdump entries`: its lines, its other forms, and what it says at the end."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from tests.support.captures import CAPTURES, GOLDEN, capture_name, every_family
from tests.support.frames import pcap
from tests.support.schema import validate
from tests.support.secrets import CLIENT, SERVER, conversation
from tests.support.terminal import on_terminal
from tests.test_entries import confirm, frame, publish

SUB_BATCHES = GOLDEN / "rabbitmq-stream" / "js_subentries_436.pcap"
FORCED = ("-d", "tcp.port==5552,rabbitmq-stream")


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["entries", *map(str, argv)])
    said = capsys.readouterr()
    return code, said.out, said.err


def rows(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(capsys, "--json", *argv)[1].splitlines()]


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Bodies of all kinds."""
    bodies = ["grün ✓".encode(), b"two\nlines\t!", b"\x1b[31mred\x07", b"\xff\xfe", b"", "\u202egnp".encode(), b"\x00\x53\x77\xa1\x05hello"]
    path = tmp_path / "odd.pcap"
    path.write_bytes(pcap(conversation([(CLIENT, publish(0, bodies)), (SERVER, confirm(range(len(bodies))))], 5552)))
    return path


def test_entries_have_the_processes_of_their_messages(capsys: pytest.CaptureFixture[str]) -> None:
    capture = GOLDEN / "rabbitmq-stream" / "processes_both_ends_made.pcapng"
    every = rows(capsys, capture)
    for row in every:
        validate(row)
    assert [row["conversation"] for row in every if "processes" in row] == [0] * 15 and len(every) == 60
    assert every[0]["processes"][0] == {"endpoint": "127.0.0.1:60824", "process": "orders", "pid": 700}
    assert rows(capsys, "-Y", "process == orders and server.pid == 612", capture) == [row for row in every if "processes" in row]
    assert not rows(capsys, "-Y", "client.process == beam.smp", capture)
    _, out, _ = run(capsys, "-T", "csv", "-e", "number", "-e", "client.process", "-e", "server.pid", "-c", "1", capture)
    assert out.splitlines()[1] == '"1","orders","[611,612]"'


def test_bodies_are_on_one_line_and_nothing_acts_on_a_terminal(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *FORCED, odd)
    assert code == 0
    assert [line.partition("confirmed 1 ms")[2].strip() for line in out.splitlines()] == [
        "grün ✓",
        r"two\nlines\t!",
        b"\x1b[31mred\x07".hex(),
        "fffe",
        "",
        "\u202egnp".encode().hex(),
        '"hello"',
    ]
    code, out, _ = run(capsys, *FORCED, "-V", odd)
    assert all(one.isprintable() for one in out.splitlines())


def test_other_bytes_have_another_form_where_it_is_asked_for(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *FORCED, "--bytes", "base64", odd)
    assert [line.split()[-1] for line in out.splitlines()][3] == "//4="
    _, out, _ = run(capsys, *FORCED, "--bytes", "omit", odd)
    assert out.splitlines()[3].endswith("  <2 bytes>")
    assert rows(capsys, *FORCED, "--bytes", "text", odd)[1]["body"] == "two\nlines\t!"
    assert [one["body"] for one in rows(capsys, *FORCED, odd)][3:5] == ["fffe", ""]


def test_lines_are_cut_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    capture = GOLDEN / "iggy" / "py090-basic.pcap"
    _, out, _ = run(capsys, capture)
    assert max(map(len, out.splitlines())) > 70_000
    _, text = on_terminal(["entries", str(capture)], 100, {"NO_COLOR": "1"})
    lines = [line.rstrip("\r") for line in text.splitlines() if not line.startswith("streamdump: ")]
    assert max(map(len, lines)) <= 100 and "…" in text
    assert lines[0].split() == ["#", "time", "stream", "offset/id", "size", "outcome", "body"]
    assert lines[1].split()[:4] == ["0", "127.0.0.1:42668", ">", "127.0.0.1:8090"]


@pytest.mark.sweep
@every_family([path for path in CAPTURES if path.stat().st_size < 20_000])
def test_json_is_as_the_schema_says(paths: list[Path], subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    keys: set[tuple[str, ...]] = set()
    for path in paths:
        with subtests.test(capture_name(path)):
            found = rows(capsys, path)
            # The optional one, of captures that name processes
            keys.update(tuple(one for one in row if one != "processes") for row in found)
            for row in found[:10] + found[-10:]:
                validate(row)
    assert len(keys) <= 1


def test_chosen_keys(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("-T", "fields", "-e", "offset", "-e", "body", "-e", "client", "-Y", "offset >= 23", "--bytes", "text", SUB_BATCHES)
    assert run(capsys, *call)[1] == "23\tsub entry number 3\t127.0.0.1:38642\n24\tsub entry number 4\t127.0.0.1:38642\n"
    _, out, _ = run(capsys, "-T", "csv", "-c", "1", SUB_BATCHES)
    names, values = out.splitlines()
    assert names.split(",") == [
        f'"{name}"'
        for name in (
            "number",
            "relative_ns",
            "stream",
            "partition",
            "offset",
            "publishing_id",
            "key",
            "size",
            "outcome",
            "latency_ns",
            "body",
        )
    ]
    assert values.startswith('"1","135488000","js-sub",,,"0",,"23","confirmed","613000",')


def test_the_bodies_alone(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def raw(*argv: str) -> bytes:
        assert main(["entries", "--raw", *argv, "-Y", "offset in {0, 1}", str(SUB_BATCHES)]) == 0
        sys.stdout.flush()
        return capfdbinary.readouterr().out

    assert raw() == b"sub entry number 0\nsub entry number 1\n"
    assert raw("--separator", r"\0") == b"sub entry number 0\0sub entry number 1\0"
    assert raw("--separator", r"\xff\\é") == "".join(f"sub entry number {n}|" for n in (0, 1)).encode().replace(
        b"|", b"\xff\\" + "é".encode()
    )
    assert raw("--separator", "") == b"sub entry number 0sub entry number 1"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--raw", "--json"), "--raw writes bytes only"),
        (("--raw", "-V"), "--raw writes bytes only"),
        (("--separator", ","), "--separator needs --raw"),
        (("--raw", "--separator", r"\q"), r"\q is not an escape"),
        (("-t", "dd"), "-t dd needs a view with one line per message"),
        (("-T", "fields"), "-T fields needs -e NAME"),
        (("-Y", "ofset == 1"), "did you mean offset?"),
        (("-T", "fields", "-e", "bodyy"), "did you mean body?"),
        (("-Y", "outcome == stored"), "outcome is never stored"),
    ],
)
def test_what_does_not_go_together(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *argv, SUB_BATCHES)
    assert (code, out) == (2, "")
    assert said in err


def test_enough_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, "-c", "3", "-Y", "offset >= 10", SUB_BATCHES)
    assert [line.split()[8] for line in out.splitlines()] == ["10", "11", "12"]
    assert "stopped by -c" in err


def test_the_last_lines_say_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "seastar-rpc carries no user messages" in run(capsys, GOLDEN / "seastar-rpc" / "basic.pcap")[2]
    assert "left out: 4 messages Prepare between replicas" in run(capsys, GOLDEN / "iggy" / "replica-primary.pcap")[2]
    _, _, err = run(capsys, GOLDEN / "rabbitmq-stream" / "snaplen_96_310.pcap")
    assert "5 messages damaged or cut, whose other entries are missing: 20, 25, 31, 33, 35" in err
    assert run(capsys, SUB_BATCHES)[2].count("\n") == 1


def test_secrets_are_in_no_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What may be a login is hidden, whatever command it is called."""
    login = frame(2, struct.pack(">BI", 1, 1) + struct.pack(">QI", 0, 900) + b"PLAIN\0guest\0hunter2")
    path = tmp_path / "login.pcap"
    path.write_bytes(pcap(conversation([(CLIENT, login)], 5552)))
    for form in ((), ("-V",), ("--json",), ("-T", "csv")):
        assert "hunter2" not in "".join(run(capsys, *FORCED, *form, path)[1:])


def test_from_a_pipe_entries_appear_though_no_response_comes(tmp_path: Path) -> None:
    """Two seconds after the last packet, the pipe still open."""
    from subprocess import PIPE, Popen

    capture = pcap(conversation([(CLIENT, publish(0, [b"waits"]))], 5552))
    call = [sys.executable, "-m", "streamdump", "entries", *FORCED, "-"]
    with Popen(call, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=os.environ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(capture)
        process.stdin.flush()
        line = process.stdout.readline().decode()
        process.stdin.close()
        assert process.wait(20) == 0
    assert "* pending: live" in line and line.rstrip().endswith("waits")
