"""`streamdump metrics`: what it prints and serves is what the other commands say of the same traffic."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.errors import how_to_install
from streamdump.filter import names_of
from streamdump.render.metrics import METRICS, OPTIONAL
from tests.support.captures import CAPTURES, GOLDEN, capture_name, every_family
from tests.support.frames import pcap
from tests.support.logins import SECRET, login_captures
from tests.support.metrics import by, compare, endpoint_of, get, prometheus, reader, samples, scraped
from tests.support.pages import page
from tests.support.peers import Pair, capturing, free_port, needs_capture, said
from tests.support.secrets import conversation, found
from tests.support.waiting import PATIENCE, until

ERRORS = GOLDEN / "rabbitmq-stream" / "publish_error_310.pcap"
CONSUME = GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"


@pytest.fixture
def library() -> None:
    pytest.importorskip("prometheus_client")


def with_library(test: Any) -> Any:
    """Its own reader is the witness; the extra `metrics` brings it."""
    return pytest.mark.witness(pytest.mark.usefixtures("library")(test))


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    assert main([str(one) for one in argv]) == code
    out, err = capsys.readouterr()
    return out, err


def test_without_the_library_a_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    out, err = shown(capsys, "metrics", "-i", "any", code=ExitCode.USAGE)
    assert (out, err) == ("", f"streamdump: metrics needs prometheus-client: {how_to_install('metrics')}\n")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--once", "--listen", "127.0.0.1:0"], "--once prints the metrics and --listen serves them; choose one"),
        (["--label", "stream,severity"], "--label severity: must be client, server or stream; did you mean server?"),
        (["--label-limit", "0"], "--label-limit 0: must be an integer, 1 or greater"),
        (["-Y", "name == Open"], "no such option -Y"),
    ],
    ids=str,
)
def test_a_wrong_call_is_one_sentence(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "metrics", *argv, "x.pcap", code=ExitCode.USAGE)
    assert not out and err.startswith(f"streamdump: {reason}") and err.count("\n") == 1


def test_the_page_lists_every_metric_with_its_labels() -> None:
    lines = [line for line in page("cli/docs/metrics.md").splitlines() if re.match(r"\| `(messaging|streamdump)_\w+` \|", line)]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    listed = {row[0].strip("`"): row for row in rows}
    assert list(listed) == [one.exposed for one in METRICS]
    for one in METRICS:
        words = [word for word, label in OPTIONAL.items() if label in one.optional]
        labels = {f"`{label}`" for label in one.labels} - {"`messaging_system`", "`network_protocol_name`", "`messaging_operation_name`"}
        assert labels <= set(listed[one.exposed][3].replace(",", " ").split()), one.name
        assert [word for word in OPTIONAL if word in listed[one.exposed][4]] == words, one.name
        assert listed[one.exposed][1] == {"s": "seconds", "By": "bytes"}.get(one.unit, one.unit.strip("{}") + "s")


@with_library
@every_family(CAPTURES)
def test_they_are_what_the_other_commands_say(paths: list[Path], subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):

            def records(*argv: str, path: Path = path) -> list[dict[str, Any]]:
                main([*argv, str(path)])
                return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

            main(["metrics", "--label", "stream,client,server", "--label-limit", "100000", str(path)])
            compare(samples(capsys.readouterr().out), records)


@with_library
@pytest.mark.parametrize("more", [[], ["--listen", "127.0.0.1:0"]], ids=len)
def test_without_a_capture_there_are_no_metrics(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "metrics", *more, "missing.pcap", code=ExitCode.UNREADABLE)
    assert (out, err) == ("", "streamdump: missing.pcap: no such file\n")


@with_library
def test_a_capture_that_is_cut_off_counts_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(ERRORS.read_bytes()[:3000])
    out, err = shown(capsys, "metrics", path, code=ExitCode.UNREADABLE)
    assert samples(out)["streamdump_packets_total", frozenset()] == 26.0 and "cut off in packet 27" in err


@with_library
def test_labels_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    unlabelled = samples(shown(capsys, "metrics", ERRORS)[0])
    more = samples(shown(capsys, "metrics", "--label", "stream", "--label", "client, server", ERRORS)[0])
    labels = "messaging_destination_name", "client_address", "server_address"
    sent = by(more, "messaging_client_sent_messages_total", *labels)
    assert sent == {("", "127.0.0.1", "127.0.0.1"): 4.0, ("pe", "127.0.0.1", "127.0.0.1"): 1.0}
    assert not any(dict(pairs).keys() & {*labels} for _, pairs in unlabelled)
    one, other = (by(some, "streamdump_requests_total", "messaging_operation_name", "outcome") for some in (unlabelled, more))
    assert one == other and one["Publish", "refused"] == 2.0


@with_library
def test_values_beyond_the_limit_are_counted_as_other(capsys: pytest.CaptureFixture[str]) -> None:
    text, err = shown(capsys, "metrics", "--label", "stream", "--label-limit", "1", ERRORS, CONSUME)
    streams = {key for (key,) in by(samples(text), "streamdump_protocol_messages_total", "messaging_destination_name")}
    assert len(streams) == 3 and {"", "other"} < streams
    assert "--label-limit 1: further values of messaging_destination_name were counted as other" in err


def create(stream: bytes) -> bytes:
    body = (0x000D).to_bytes(2, "big") + b"\0\1" + bytes(4) + len(stream).to_bytes(2, "big") + stream + bytes(4)
    return len(body).to_bytes(4, "big") + body


@with_library
def test_hostile_names_are_escaped_short_and_never_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [b'"} 1\nfake_total 7\n', b"\x1b[31mred", b"\\x1b[31mred", "\u202eright".encode(), b"\xff\xfe", b"n" * 30_000, b"n" * 29_999]
    path = tmp_path / "names.pcap"
    path.write_bytes(pcap(conversation([(0, create(name)) for name in names], 5552)))
    text = shown(capsys, "metrics", "-d", "tcp.port==5552,rabbitmq-stream", "--label", "stream", path)[0]
    read = by(samples(text), "streamdump_protocol_messages_total", "messaging_destination_name")
    assert "\nfake_total" not in text and "\x1b" not in text and "\u202e" not in text
    values = {key for (key,) in read}
    assert "\\x1b[31mred" in values and "\\u202eright" in values and max(map(len, values)) == 128
    assert sum(read.values()) == len(names)


@with_library
def test_no_secret_is_in_a_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = login_captures(tmp_path)
    labels = "--label", "stream,client,server", "--label-limit", "100000"
    text, err = shown(capsys, "metrics", "--separate", *labels, *captures)
    assert len(samples(text)) > 100
    assert found(SECRET, {"out": text, "err": err}) == []


@with_library
def test_commands_are_those_of_the_protocols(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "metrics", *sorted((GOLDEN / "mewbase").glob("*.pcap")), *sorted((GOLDEN / "iggy").glob("*.pcap")))[0]
    commands = {key for (key,) in by(samples(text), "streamdump_protocol_messages_total", "messaging_operation_name")}
    assert commands - {"unknown"} <= {*names_of().messages} and {"unknown", "CONNECT", "ping"} <= commands


@with_library
def test_the_page_shows_lines_that_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```text\n\$ streamdump ([^\n]*)\n(.*?)^```$", page("cli/docs/metrics.md"), re.S | re.M)
    call, *lines = "\n".join(block).splitlines()
    text = shown(capsys, *call.split())[0].splitlines()
    places = [text.index(line) for line in lines if line and line != "..."]
    assert len(places) == 3 and places == sorted(places)


def promtool(*argv: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Debian's package prometheus has it."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    return subprocess.run(["promtool", *argv], input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)


@with_library
def test_the_page_has_a_configuration_and_rules_that_prometheus_reads(tmp_path: Path) -> None:
    for (name, what), text in zip(
        (("prometheus.yml", "config"), ("rules.yml", "rules")),
        re.findall(r"^```yaml\n(.*?)^```$", page("cli/docs/metrics.md"), re.S | re.M),
        strict=True,
    ):
        (tmp_path / name).write_text(text)
        done = promtool("check", what, str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    named = set(re.findall(r"\b(?:streamdump|messaging_client)_\w+", (tmp_path / "rules.yml").read_text()))
    assert {one.removesuffix("_bucket") for one in named} <= {one.exposed for one in METRICS}


@with_library
def test_promtool_has_no_objection(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "metrics", "--label", "stream,client,server", ERRORS, CONSUME)[0]
    done = promtool("check", "metrics", given=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# What follows runs as a process of its own.


@contextlib.contextmanager
def serving(*argv: str | Path, **more: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves metrics, and their address; it must end with `finish`."""
    command = [sys.executable, "-m", "streamdump", "metrics", "--listen", "127.0.0.1:0", *map(str, argv)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    try:
        assert process.stderr is not None
        said = []
        while "serving http://" not in "".join(said[-1:]):
            said.append(process.stderr.readline())
            assert said[-1], said
        yield process, said[-1].split()[-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


@pytest.mark.live
@with_library
def test_captures_are_served_until_it_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ERRORS) as (process, address):
        assert process.stderr is not None
        while "all was read" not in process.stderr.readline():
            pass
        text = get(address)
        code, out, err = finish(process)
    assert (code, out) == (0, "") and "Traceback" not in err
    assert text == shown(capsys, "metrics", ERRORS)[0]


@pytest.mark.live
@with_library
def test_a_pipe_is_served_while_it_is_silent_and_ends_the_server() -> None:
    data = ERRORS.read_bytes()
    pipe, end = os.pipe()
    os.write(end, data[: len(data) // 2])
    with os.fdopen(pipe) as source, os.fdopen(end, "wb") as sink, serving("-", stdin=source) as (process, address):
        source.close()
        until(lambda: by(samples(get(address)), "streamdump_packets_total"), process)
        packets = by(samples(get(address)), "streamdump_packets_total")[()]
        sink.write(data[len(data) // 2 :])
        sink.flush()
        until(lambda: by(samples(get(address)), "streamdump_packets_total")[()] > packets, process)
        sink.close()
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "") and "messages in" in err


@needs_capture
@with_library
def test_an_interface_is_served_whatever_peers_do(tmp_path: Path) -> None:
    """Values are those of the file written meanwhile; slow and hostile peers are connected all the time."""
    port, copy = free_port(), tmp_path / "copy.pcapng"
    decoded = "-d", f"tcp.port=={port},rabbitmq-stream"
    live = ("-i", "lo", "-f", f"tcp port {port}", *decoded)
    with capturing("metrics", *live, "--listen", "127.0.0.1:0", "-w", str(copy), stdout=subprocess.PIPE) as capture:
        address = endpoint_of(capture)
        host, _, number = address.removeprefix("http://").removesuffix("/metrics").rpartition(":")
        with contextlib.ExitStack() as stack:
            for data in [b"GET /metrics HTTP/1.1\r\n\r\n", b"", b"G", bytes(100_000)] * 10:
                one = stack.enter_context(socket.create_connection((host, int(number)), PATIENCE))
                with contextlib.suppress(OSError):
                    one.sendall(data)
            with Pair(port) as pair:
                pair.replay(said(ERRORS))
            until(lambda: by(samples(get(address)), "streamdump_connections_ended_total"), capture.process)
            text = get(address)
        code, out, err = capture.finish()
    assert (code, out) == (0, ""), err
    held = samples(text)
    assert held["streamdump_packets_dropped_total", frozenset()] == 0

    compare(held, reader(copy, *decoded))


@needs_capture
@with_library
def test_a_real_prometheus_holds_what_latency_and_stats_say(tmp_path: Path) -> None:
    """Peers on the loopback interface say what those of captures said; Prometheus scrapes meanwhile."""
    stories = {ERRORS: "rabbitmq-stream", GOLDEN / "iggy" / "py090-errors.pcap": "iggy", GOLDEN / "mewbase" / "java-query.pcap": "mewbase"}
    ports, copy = {path: free_port() for path in stories}, tmp_path / "copy.pcapng"
    decoded = [word for path, protocol in stories.items() for word in ("-d", f"tcp.port=={ports[path]},{protocol}")]
    live = ("-i", "lo", "-f", " or ".join(f"tcp port {port}" for port in ports.values()), *decoded)
    labels = "--label", "stream,client,server"
    with capturing("metrics", *live, *labels, "--listen", "127.0.0.1:0", "-w", str(copy), stdout=subprocess.PIPE) as capture:
        endpoint = endpoint_of(capture)
        with prometheus(tmp_path, endpoint) as address:
            for path, port in ports.items():
                with Pair(port) as pair:
                    pair.replay(said(path))
            ended = "streamdump_connections_ended_total"
            until(lambda: sum(by(samples(get(endpoint)), ended).values()) == len(stories), capture.process)
            found = scraped(address, endpoint)
        code, out, err = capture.finish()
    assert (code, out) == (0, ""), err
    assert len(by(found, "streamdump_protocol_messages_total", "network_protocol_name")) == len(stories)
    compare(found, reader(copy, *decoded))


@needs_capture
@with_library
def test_once_prints_at_the_end_of_a_capture() -> None:
    with capturing("metrics", "-i", "lo", "-f", "tcp port 1", "--once", "-a", "duration:1") as capture:
        code, out, err = capture.finish(None)
    assert code == 0 and "serving" not in err
    assert samples(out)["streamdump_packets_total", frozenset()] == 0
