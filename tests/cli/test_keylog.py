"""Key logs on the command line: which are read, what is said of them, and how it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.errors import UsageError
from streamdump.model import Message
from tests.support.peers import GOLDEN, Pair, capturing, free_port, needs_capture, records, said
from tests.support.terminal import on_terminal
from tests.tls.peers import Talk, Wire, contexts, talk

CASE = "rabbitmq-stream/js_publish_consume_405.pcap"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLKEYLOGFILE", raising=False)


@pytest.fixture
def carried(tmp_path: Path) -> tuple[str, str]:
    """A capture of TLS and its key log."""
    one = talk(said(GOLDEN / CASE))
    capture, log = tmp_path / "tls.pcap", tmp_path / "keys.log"
    capture.write_bytes(Wire().send(one.sent).end().capture())
    log.write_bytes(one.keys)
    return str(capture), str(log)


def shown(capsys: pytest.CaptureFixture[str], *argv: str, code: int = ExitCode.DONE) -> tuple[list[str], list[str]]:
    assert main(argv) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err.splitlines()


def test_the_first_line_says_what_the_conversation_is_carried_in(carried: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capture, log = carried
    out, err = shown(capsys, "--keylog", log, capture)
    # 26 messages and the ending
    assert len(out) == 27
    assert "PeerProperties                      [TLS 1.3]  #101  product=" in out[0]
    assert not any("TLS" in line for line in out[1:])
    assert err == [f"streamdump: {capture}: 35 packets, 26 messages in 1 conversation"]


def test_on_a_terminal_the_introduction_says_it(carried: tuple[str, str]) -> None:
    capture, log = carried
    code, text = on_terminal(["--keylog", log, capture], environment={"NO_COLOR": "1"})
    assert code == ExitCode.DONE
    (line,) = [line for line in text.splitlines() if "TLS" in line]
    assert line.endswith("192.0.2.1:40000 > 192.0.2.2:5551  rabbitmq-stream  TLS 1.3")


def test_several_logs(carried: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, log = carried
    other = tmp_path / "other.log"
    other.write_bytes(talk([]).keys)
    assert len(shown(capsys, "--keylog", str(other), "--keylog", log, "--json", capture)[0]) == 27
    assert len(shown(capsys, "--keylog", str(other), "--json", capture)[0]) == 0


def test_the_variable_of_the_clients(carried: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    capture, log = carried
    monkeypatch.setenv("SSLKEYLOGFILE", log)
    out, err = shown(capsys, "--json", capture)
    assert len(out) == 27
    assert err[0] == f"streamdump: TLS keys are read from {log}, which SSLKEYLOGFILE names"
    # What was asked for goes first
    out, err = shown(capsys, "--json", "--keylog", os.devnull, capture)
    assert not out
    (line,) = err
    assert "not decoded (TLS, keys missing); the key log contains no secrets; more: " in line
    monkeypatch.setenv("SSLKEYLOGFILE", f"{log}.none")
    out, err = shown(capsys, "-q", capture)
    assert err[0] == f"streamdump: SSLKEYLOGFILE: key log {log}.none: no such file; TLS is not decrypted"


VIEWS = (
    ["-q"],
    ["stats"],
    ["latency"],
    ["conversations"],
    ["diagnose"],
    ["entries"],
    ["follow", "0"],
    pytest.param(["metrics"], marks=pytest.mark.witness),
)


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_every_view_reads_the_keys(
    view: list[str], carried: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, log = carried
    _, err = shown(capsys, *view, "--keylog", f"{log}.none", capture, code=ExitCode.USAGE)
    assert err == [f"streamdump: key log {log}.none: no such file"]
    monkeypatch.setenv("SSLKEYLOGFILE", log)
    _, err = shown(capsys, *view, capture)
    assert any(line.startswith(f"streamdump: {capture}: 35 packets, 26 messages in 1 conversation") for line in err)


def test_a_log_that_cannot_be_read(carried: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capture, log = carried
    assert shown(capsys, "--keylog", f"{log}.none", capture, code=ExitCode.USAGE)[1] == [f"streamdump: key log {log}.none: no such file"]
    with pytest.raises(UsageError, match="no such file"):
        list(streamdump.read(capture, keylog=(f"{log}.none",)))


def test_what_is_said_without_keys(carried: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, _ = carried
    (line,) = shown(capsys, "-q", capture)[1]
    assert "; 1 conversation not decoded (TLS); --keylog FILE decrypts TLS; more: " in line
    other = tmp_path / "other.log"
    other.write_bytes(b"RSA 0011223344556677 " + b"00" * 48 + b"\nnonsense\n" + talk([]).keys)
    (line,) = shown(capsys, "-q", "--keylog", str(other), capture)[1]
    assert "not decoded (TLS, keys missing); 1 line of the key log not understood; 1 line with RSA premaster secrets ignored" in line
    (line,) = shown(capsys, "-q", str(GOLDEN / CASE))[1]
    assert "keylog" not in line


def test_conversations(carried: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capture, log = carried
    (line,) = shown(capsys, "conversations", "--json", "--keylog", log, capture)[0]
    row = json.loads(line)
    assert (row["protocol"], row["facts"]["tls"], row["facts"]["tls_server_name"]) == ("rabbitmq-stream", "1.3", "broker.example")
    assert row["facts"]["tls_plain_bytes"] == [713, 765]
    out = shown(capsys, "conversations", "--keylog", log, capture)[0]
    assert "; tls: 1.3; tls server name: broker.example; tls alpn: streams; tls cipher: TLS_AES_256_GCM_SHA384" in out[1]
    out = shown(capsys, "conversations", capture)[0]
    assert "; tls: 1.3; tls server name: broker.example" in out[1]
    assert "tls unread: no keys" in out[1]
    out = shown(capsys, "conversations", "-V", capture)[0]
    assert "begins like TLS; tls: 1.3; tls server name: broker.example" in out[1]


def test_a_gap_without_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.schema import validate

    one = talk(said(GOLDEN / CASE), "1.2", "AES128-SHA")
    wire = Wire().send(one.sent).end()
    capture, log = tmp_path / "tls.pcap", tmp_path / "keys.log"
    capture.write_bytes(wire.capture([25]))
    log.write_bytes(one.keys)
    out, err = shown(capsys, "--keylog", str(log), str(capture))
    (gap,) = [line for line in out if " gap " in line]
    assert gap.endswith("! some bytes not captured")
    assert "1 gap (some bytes missing or skipped)" in err[0]
    lines = [json.loads(line) for line in shown(capsys, "--json", "--keylog", str(log), str(capture))[0]]
    (found,) = [line for line in lines if line["record"] == "gap"]
    assert found["size"] is None
    for line in lines:
        validate(line)


def test_the_library(carried: tuple[str, str]) -> None:
    capture, log = carried
    found = [one for one in streamdump.read(capture, keylog=(log,)) if isinstance(one, Message)]
    assert len(found) == 26
    assert not list(streamdump.read(capture))


def test_secrets_inside_of_tls_are_redacted_as_ever(carried: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capture, log = carried
    text = "\n".join(shown(capsys, "--json", "--keylog", log, capture)[0])
    assert "<redacted 12 bytes>" in text
    assert "\n".join(shown(capsys, "--json", "--show-secrets", "--keylog", log, capture)[0]) != text
    for view in (["-V"], ["-x"], ["-V", "-x", "--show-secrets"], ["conversations"], ["conversations", "--json"]):
        text = "\n".join(shown(capsys, *view, "--keylog", log, capture)[0])
        assert not any(line.split()[-1] in text for line in Path(log).read_text().splitlines() if not line.startswith("#"))


def test_plain_captures_import_nothing_for_tls(carried: tuple[str, str]) -> None:
    capture, log = carried
    script = "import sys\nfrom streamdump.cli.app import main\nmain(sys.argv[1:])\n"
    script += "print([one for one in sys.modules if one.startswith({!r})], file=sys.stderr)"

    def imported(what: str | tuple[str, ...], *argv: str) -> str:
        command = [sys.executable, "-c", script.format(what), *argv]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr.splitlines()[-1]

    plain = str(GOLDEN / CASE)
    assert imported(("cryptography", "streamdump.tls.decryptor"), "-q", "--keylog", log, plain) == "[]"
    assert imported("cryptography", "-q", capture) == "[]"
    assert imported("streamdump.tls", "--help") == "[]"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--embed-keys"], "--embed-keys needs live capture"),
        (["-i", "lo", "--embed-keys"], "--embed-keys needs -w FILE"),
        (["--keys-limit", "x"], "--keys-limit x: not a size"),
        (["--keys-total", "0"], "--keys-total 0: not a size"),
    ],
)
def test_what_makes_no_sense(argv: list[str], told: str, carried: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    names = [] if "-i" in argv else [carried[0]]
    (line,) = shown(capsys, *argv, *names, code=ExitCode.USAGE)[1]
    assert line.startswith(f"streamdump: {told}")


# Live


@needs_capture
@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_key_log_that_grows_while_packets_wait(version: str, tmp_path: Path) -> None:
    """The whole conversation is captured, then its keys are written: then it is read."""
    what = said(GOLDEN / CASE)
    port, log = free_port(), tmp_path / "keys.log"
    one = talk(what, version)
    with capturing("-i", "lo", "-f", f"tcp port {port}", "--json", "--keylog", str(log)) as capture:
        with Pair(port) as pair:
            pair.replay(one.sent)
        log.write_bytes(one.keys)
        first = json.loads(capture.line())
        assert first["name"] == "PeerProperties"
        code, out, err = capture.finish()
    assert code == ExitCode.DONE, err
    assert len(records(out)) == 26
    assert f"--keylog {log}: does not exist yet" in err


@needs_capture
def test_live_conversations_say_that_they_wait(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "keys.log"
    log.write_bytes(talk([]).keys)
    with capturing("conversations", "-i", "lo", "-f", f"tcp port {port}", "--json", "--keylog", str(log)) as capture:
        with Pair(port) as pair:
            pair.replay(talk(said(GOLDEN / CASE)).sent)
        code, out, err = capture.finish()
    assert code == ExitCode.DONE, err
    (row,) = records(out)
    assert row["name"] == "TLS, keys missing"


@needs_capture
def test_keys_are_written_only_when_that_is_asked_for(tmp_path: Path) -> None:
    found: dict[bool, Any] = {}
    for embed in (False, True):
        port, log, file = free_port(), tmp_path / f"{embed}.log", tmp_path / f"{embed}.pcapng"
        options = ["--keylog", str(log), "-w", str(file), *(["--embed-keys"] if embed else [])]
        with capturing("-i", "lo", "-f", f"tcp port {port}", "-c", "5", *options) as capture:
            with Pair(port) as pair:
                one = Talk(*contexts(), log=log)
                pair.replay(one.begin().sent)
                for side, data in said(GOLDEN / CASE):
                    one.sent.clear()
                    one.say(side, data)
                    pair.replay(one.sent)
            _, _, err = capture.finish(None)
        found[embed] = file.read_bytes()
        assert ("passwords, tokens and TLS keys" in err) == embed
        secrets = [line.split()[-1] for line in one.keys.splitlines() if b"TRAFFIC" in line]
        assert [secret in found[embed] for secret in secrets] == [embed] * len(secrets)


@needs_capture
def test_the_files_of_a_ring_have_the_keys_once(tmp_path: Path) -> None:
    port, log, file = free_port(), tmp_path / "keys.log", tmp_path / "ring.pcapng"
    options = ["--keylog", str(log), "-w", str(file), "--embed-keys", "-b", "filesize:4"]
    with capturing("-i", "lo", "-f", f"tcp port {port}", "-q", *options) as capture:
        with Pair(port) as pair:
            one = Talk(*contexts(), log=log)
            pair.replay(one.begin().sent)
            for side, data in said(GOLDEN / CASE) * 3:
                one.sent.clear()
                one.say(side, data)
                pair.replay(one.sent)
        capture.finish()
    files = sorted(tmp_path.glob("ring_*.pcapng"))
    assert len(files) > 2
    assert sum(one.read_bytes().count(b"CLIENT_TRAFFIC_SECRET_0") for one in files) == 1
    again = subprocess.run([sys.executable, "-m", "streamdump", "--json", *map(str, files)], capture_output=True, text=True, check=True)
    assert len(records(again.stdout)) == 3 * 26 + 1
