"""Live capture on the loopback interface, with real sockets and peers that say what captured ones said."""

from __future__ import annotations

import ctypes
import fcntl
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

from streamdump.capture import bpf
from streamdump.capture.interfaces import interfaces, is_up
from streamdump.capture.live import LINK_ETHERNET, LINK_SLL2, MOST_PORTS, Live
from streamdump.cli.app import main
from streamdump.errors import InterfaceError, UsageError
from streamdump.inspector import Inspector
from streamdump.model import Message, Record
from streamdump.protocols import PROTOCOLS
from tests.support.frames import bytes_of, ethernet, ip4, tcp
from tests.support.peers import GOLDEN, Pair, capturing, free_port, needs_capture, records, said
from tests.support.waiting import PATIENCE, signalled, state, unread, until

ROOT = Path(__file__).parents[2]

CONVERSATIONS = (
    "rabbitmq-stream/handshake_close_405.pcap",
    "rabbitmq-stream/publish_small_405.pcap",
    "rabbitmq-stream/draft_exchange.pcap",
    "iggy/py080-basic.pcap",
    "iggy/py090-basic.pcap",
    "seastar-rpc/basic.pcap",
    "seastar-rpc/port7000.pcap",
    "mewbase/java-publish.pcap",
    "mewbase/java-query.pcap",
)

PING, PONG = bytes.fromhex("04000000 01000000"), bytes.fromhex("00000000 00000000")
"""Iggy: a request with its length and command, a response with status and length."""


def pings(port: int) -> list[str]:
    """What captures pings on this port, and nothing that others say meanwhile."""
    return ["-i", "lo", "-f", f"tcp port {port}", "-d", f"tcp.port=={port},iggy"]


def run(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamdump", *argv], capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )


def meaning(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what another run cannot repeat: times, ports, packets, and who is the first to close a socket."""
    dropped = ("file", "time", "time_ns", "src", "dst", "conversation", "packets", "latency_ns", "number", "request")
    dropped += ("waited_ns", "quiet_ns", *(("sender",) if record["record"] == "ending" else ()))
    return {key: value for key, value in record.items() if key not in dropped}


def packets_of(live: Live) -> Iterator[Any]:
    """The batches until the end, stopping as soon as something has come."""
    for batch in live.batches():
        if len(batch):
            live.stop()
        yield batch


@needs_capture
@pytest.mark.parametrize("path", CONVERSATIONS)
def test_peers_on_the_loopback_interface_read_as_in_their_capture(path: str, tmp_path: Path) -> None:
    replayed = said(GOLDEN / path)
    file = tmp_path / "live.pcapng"
    port = free_port()
    with capturing("-i", "lo", "-f", f"tcp port {port}", "--json", "-w", str(file)) as capture:
        with Pair(port) as pair:
            pair.replay(replayed)
        code, out, err = capture.finish()
    assert code == 0, err
    assert "0 dropped by the kernel" in err
    live = records(out)
    # What was written reads as it was shown, to the nanosecond.
    again = run("--json", str(file))
    assert records(again.stdout) == live
    original = [one for one in records(run("--json", str(GOLDEN / path)).stdout) if one["conversation"] == 0]
    assert [meaning(one) for one in live] == [meaning(one) for one in original]
    assert live


@needs_capture
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_the_default_filter_takes_the_known_ports(protocol: Any) -> None:
    for port in protocol.ports:
        try:
            with Live(["lo"], ports=[port]) as live:
                with Pair(port) as pair:
                    pair.say(0, b"something")
                assert any(len(batch) for batch in packets_of(live))
        except OSError as error:
            if isinstance(error, InterfaceError):
                raise
            pytest.skip(f"port {port} is taken")


@needs_capture
def test_other_ports_are_not_taken() -> None:
    with Live(["lo"], ports=[free_port()]) as live, Pair() as pair:
        pair.say(0, b"something")
        live.stop()
        assert sum(len(batch) for batch in live.batches()) == 0


@needs_capture
@pytest.mark.parametrize("names", [["lo"], ["any"], ["lo", "@other"]], ids=" ".join)
@pytest.mark.parametrize("expression", [None, "", "tcp port {}", "tcp[tcpflags] & tcp-syn == 0 and (src port {0} or dst port {0})"])
def test_each_packet_counts_once(names: list[str], expression: str | None) -> None:
    others = [one.name for one in interfaces() if one.up and one.name != "lo"]
    if "@other" in names and not others:
        pytest.skip("there is one interface only")
    names = [others[0] if name == "@other" else name for name in names]
    port = free_port()
    with Live(names, ports=[port], expression=None if expression is None else expression.format(port)) as live:
        assert live.link == (LINK_ETHERNET if names == ["lo"] else LINK_SLL2)
        with Pair(port) as pair:
            for _ in range(20):
                pair.say(0, b"hello")
                pair.say(1, b"world")
            again = pair.sent_again()
        live.stop()
        inspector = Inspector([live])
        for _ in inspector.batches():
            pass
    # With -f '' others may talk as well: look at this conversation.
    (mine,) = [one for one in inspector.table.conversations if port in one.tcp.ports]
    assert mine.tcp.stream_bytes == [100, 100]
    assert mine.tcp.retransmissions == again
    assert live.dropped == 0


@needs_capture
@pytest.mark.parametrize("names", [["lo"], ["any"]], ids=" ".join)
def test_vlan_tags_are_put_back(names: list[str]) -> None:
    port = free_port()
    payload = ip4(tcp(b"tagged", sport=40000, dport=port), src=bytes((127, 0, 0, 1)), dst=bytes((127, 0, 0, 1)))
    # Of different sizes, so that none is taken for a copy of another one.
    sent = [ethernet(payload, *tags) + bytes(len(tags)) for tags in ((0x8100,), (0x88A8,), (0x88A8, 0x8100), ())]
    sent[1] += b"\0"
    other = ethernet(ip4(tcp(b"other", dport=port + 1 if port < 65535 else 1)), 0x88A8, 0x8100)
    with Live(names, ports=[port]) as live, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind(("lo", 0))
        for frame in (other, *sent):
            sender.send(frame)
        live.stop()
        batches = [packets for packets in live.batches() if packets]
        frames = [bytes_of(packet) for packets in batches for packet in packets]
    if names == ["lo"]:
        assert frames == sent
    else:
        # A cooked header has the outermost type in front; what follows is as in the frame.
        assert [(frame[:2], frame[20:]) for frame in frames] == [(frame[12:14], frame[14:]) for frame in sent]
    inspector = Inspector([])
    for batch in batches:
        inspector.process(batch)
    assert inspector.link.counters.tcp == len(sent)


@needs_capture
def test_ipv6_and_large_segments() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("there is no IPv6 here")
    port, big = listener.getsockname()[1], os.urandom(3_000_000)
    with listener, Live(["lo"], ports=[port]) as live, socket.create_connection(("::1", port)) as client:
        server, _ = listener.accept()
        with server:
            for at in range(0, len(big), 50_000):
                client.sendall(big[at : at + 50_000])
                left = len(big[at : at + 50_000])
                while left:
                    left -= len(server.recv(left))
        live.stop()
        inspector = Inspector([live])
        for _ in inspector.batches():
            pass
    (one,) = inspector.table.conversations
    assert (one.tcp.stream_bytes, one.tally.gaps, live.dropped) == ([len(big), 0], 0, 0)


@needs_capture
def test_the_snap_length_cuts() -> None:
    with Live(["lo"], ports=[port := free_port()], snap=60) as live:
        with Pair(port) as pair:
            pair.say(0, bytes(500))
        live.stop()
        captured = [(packet.captured, packet.wire) for packets in live.batches() for packet in packets]
    assert max(one[0] for one in captured) == 60
    assert max(one[1] for one in captured) == 566


@needs_capture
def test_a_message_is_printed_promptly() -> None:
    port = free_port()
    with capturing(*pings(port)) as capture, Pair(port) as pair:
        for side, data in ((0, PING), (1, PONG)):
            pair.say(side, data)
            # Nothing more is sent before it is there; tests/bench measures how long that takes.
            assert "ping" in capture.line()


@needs_capture
def test_a_burst_is_accounted_for_when_the_kernel_drops() -> None:
    port, pairs = free_port(), 3001
    lines: list[str] = []
    with capturing(*pings(port), "-B", "512K", "--json") as capture:
        with Pair(port) as pair:
            pair.replay([(0, PING), (1, PONG)])
            lines += [capture.line(), capture.line()]
            # A capture that is held up for a while, as by a slow terminal.
            capture.process.send_signal(signal.SIGSTOP)
            until(lambda: state(capture.process.pid) == "T")
            for _ in range(1, pairs):
                pair.say(0, PING)
                pair.say(1, PONG)
            capture.process.send_signal(signal.SIGCONT)
            # It has caught up when it waits, and shows what is said then.
            shown = 0
            while shown < 8 * (pairs - 1):
                until(lambda: capture.has_line() or state(capture.process.pid) == "S", capture.process)
                if not capture.has_line():
                    # So many that nothing waits any more for a packet that was lost
                    pair.replay([(0, PING), (1, PONG)] * 70)
                    pairs += 70
                lines.append(capture.line())
                (record,) = records(lines[-1])
                if record["record"] == "message" and record["sender"] == "server":
                    shown = record["position"]
        code, out, err = capture.finish()
        out = "".join(f"{line}\n" for line in lines) + out
    assert code == 0
    dropped = int(re.search(r"([\d,]+) dropped by the kernel", err)[1].replace(",", ""))  # type: ignore[index]
    assert dropped > 0
    assert "a larger buffer" in err
    sizes = [0, 0]
    for record in records(out):
        if record["record"] == "message" or (record["record"] == "gap" and not record["in_frame"]):
            sizes[record["sender"] == "server"] += record["size"]
    assert sizes == [8 * pairs] * 2
    # Each lost message was a packet that the kernel dropped.
    lost = sum(record["size"] // 8 for record in records(out) if record["record"] == "gap")
    assert 0 < lost <= dropped


@needs_capture
def test_unanswered_requests_are_reported_after_the_timeout() -> None:
    port = free_port()
    with capturing(*pings(port), "--json", "--timeout", "0.5") as capture, Pair(port) as pair:
        pair.say(0, PING)
        (first,) = records(capture.line())
        (late,) = records(capture.line())
        assert (late["record"], late["outcome"], late["reason"], late["request"]) == ("exchange", "unanswered", "timeout", first["number"])
        # The answer comes after all, and is not taken for that of the next request.
        pair.replay([(0, PING), (1, PONG), (1, PONG)])
        found: list[dict[str, Any]] = []
        while sum(one.get("kind") == "response" for one in found) < 2:
            found += records(capture.line())
        # A busy machine may be late with the second one too
        second = next(one for one in found if one.get("kind") == "request")
        late_too = [one["request"] for one in found if one["record"] == "exchange"]
        assert late_too in ([], [second["number"]])
        one, two = (one for one in found if one.get("kind") == "response")
        assert (one["request"], two["request"]) == (first["number"], second["number"])
        assert one["latency_ns"] > 500_000_000
        code, out, err = capture.finish()
        assert (code, out) == (0, "")
        assert f"{1 + len(late_too)} unanswered" in err


@needs_capture
def test_a_side_that_ends_is_told_of_while_the_other_goes_on() -> None:
    port = free_port()
    with capturing(*pings(port), "--json") as capture, Pair(port) as pair:
        pair.replay([(0, PING), (1, PONG), (0, PING)])
        pair.sides[1].shutdown(socket.SHUT_WR)
        found = records("\n".join(capture.line() for _ in range(4)))
        assert [one["record"] for one in found] == ["message"] * 3 + ["ending"]
        assert (found[3]["how"], found[3]["sender"], found[3]["open"]) == ("FIN", "server", 1)
        # The client was not told, or does not care
        pair.say(0, PING)
        (more,) = records(capture.line())
        assert (more["record"], more["conversation"]) == ("message", 0)
        pair.sides[0].shutdown(socket.SHUT_WR)
        left = records("\n".join(capture.line() for _ in range(2)))
        assert [(one["record"], one["reason"]) for one in left] == [("exchange", "closed")] * 2
        code, out, err = capture.finish()
        assert (code, out) == (0, "")
        assert "1 ended by the server" in err


@needs_capture
@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="tcpdump is not installed")
def test_a_pipe_from_tcpdump_is_as_prompt() -> None:
    port = free_port()
    pipe = f"tcpdump --immediate-mode -U -i lo -w - tcp port {port} | {sys.executable} -m streamdump -d tcp.port=={port},iggy -"
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(["sh", "-c", pipe], **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            while "listening on lo" not in (line := process.stderr.readline()):
                assert line
            with Pair(port) as pair:
                for side, data in ((0, PING), (1, PONG)) * 2:
                    pair.say(side, data)
                    assert "ping" in process.stdout.readline()
        finally:
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err


@needs_capture
def test_conditions_end_the_capture() -> None:
    port = free_port()
    with capturing(*pings(port), "-c", "3") as capture, Pair(port) as pair:
        pair.replay([(0, PING), (1, PONG)] * 3)
        code, out, err = capture.finish(None)
        assert (code, len(out.splitlines())) == (0, 3)
        assert "stopped by -c" in err
    with capturing(*pings(port), "-a", "packets:5") as capture, Pair(port) as pair:
        pair.replay([(0, PING), (1, PONG)] * 6)
        code, _, err = capture.finish(None)
        assert code == 0
        assert "lo: 5 packets, 0 dropped" in err
    with capturing("-i", "lo", "-f", f"tcp port {port}", "-a", "duration:1") as capture:
        code, out, err = capture.finish(None)
        assert (code, out) == (0, "")
        assert "0 messages in 0 conversations, stopped by -a" in err


@needs_capture
def test_files_in_turn(tmp_path: Path) -> None:
    port = free_port()
    target = tmp_path / "live.pcapng"
    argv = [*pings(port), "--json", "-w", str(target), "-b", "filesize:2", "-b", "files:50"]
    with capturing(*argv, "-a", "filesize:9") as capture:
        with Pair(port) as pair:
            pair.replay([(0, PING), (1, PONG)] * 100)
        code, out, _ = capture.finish(None)
    assert code == 0
    names = sorted(one.name for one in tmp_path.iterdir())
    assert len(names) == 5
    assert all(re.fullmatch(r"live_0000\d_\d{14}\.pcapng", name) for name in names)
    assert 9000 <= sum((tmp_path / name).stat().st_size for name in names) < 9600
    assert (tmp_path / names[0]).stat().st_mode & 0o077 == 0
    again = run("--json", "-d", f"tcp.port=={port},iggy", *(str(tmp_path / name) for name in names))
    whole = [meaning(one) for one in records(again.stdout)]
    assert len(whole) > 50
    assert whole == [meaning(one) for one in records(out)]


@needs_capture
def test_a_flood_leaves_the_latest_files_of_a_ring(tmp_path: Path) -> None:
    """Each file is complete, and the next begins with the packet behind its last."""
    port, pairs = free_port(), 1_500
    folder = tmp_path / "ring"
    folder.mkdir()
    with capturing(*pings(port), "-q", "-w", str(folder / "x.pcapng"), "-b", "filesize:8", "-b", "files:3") as capture:
        with Pair(port) as pair:
            for _ in range(pairs):
                pair.say(0, PING)
                pair.say(1, PONG)
            repeated = pair.sent_again()
        code, _, err = capture.finish()
    assert (code, "0 dropped" in err) == (0, True), err
    files = sorted(folder.iterdir())
    numbers = [int(one.name.split("_")[1]) for one in files]
    assert numbers == [*range(numbers[0], numbers[0] + 3)] and numbers[0] > 10
    assert all(one.stat().st_size < 8_400 for one in files)
    again = run("--json", "-d", f"tcp.port=={port},iggy", *map(str, files))
    assert again.returncode == 0
    found = records(again.stdout)
    # Both sides sent 8 bytes each time, and the last files have the last of them
    positions = [one["position"] + one["size"] for one in found if one["record"] == "message" and one["sender"] == "client"]
    assert len(positions) > 30
    assert repeated or positions == [*range(8, 8 * len(positions) + 8, 8)]
    assert repeated or not [one for one in found if one["record"] == "gap"]


@needs_capture
def test_ctrl_c_without_a_packet_and_twice() -> None:
    port = free_port()
    with capturing("-i", "lo", "-f", f"tcp port {port}") as capture:
        code, _, err = capture.finish()
        assert (code, err.splitlines()[-1]) == (
            130,
            "streamdump: lo: 0 packets, 0 dropped by the kernel, 0 messages in 0 conversations, interrupted",
        )
    # One that is held up in the midst of its output ends with the second signal
    with capturing(*pings(port), "-V") as capture, Pair(port) as pair:
        process = capture.process
        assert process.stdout is not None
        size = fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        while unread(process.stdout) < size or state(process.pid) != "S":
            pair.replay([(0, PING), (1, PONG)])
        process.send_signal(signal.SIGINT)
        until(lambda: not signalled(process.pid, signal.SIGINT) and state(process.pid) == "S", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        code, _, err = capture.finish(None)
        assert code == 130
        assert "Traceback" not in err


@needs_capture
def test_a_reader_that_goes_ends_the_capture() -> None:
    with capturing("-i", "lo", "-f", f"tcp port {free_port()}") as capture:
        assert capture.process.stdout is not None
        capture.process.stdout.close()
        assert capture.process.wait(PATIENCE) == 0


@needs_capture
def test_conversations_when_they_end_and_as_a_table(tmp_path: Path) -> None:
    from tests.support.terminal import process_on_terminal

    port = free_port()
    argv = ["conversations", *pings(port)]
    with capturing(*argv, "--json", "--closed-time", "0.2") as capture:
        with Pair(port) as pair:
            pair.replay([(0, PING), (1, PONG)])
        (row,) = records(capture.line())
        assert (row["record"], row["messages"], row["ended"]) == ("conversation", 2, "FIN by client")
        code, out, err = capture.finish()
        assert (code, out) == (0, "")
        assert "2 messages in 1 conversation" in err
    code, text = process_on_terminal(["-m", "streamdump", *argv, "-a", "duration:1"])
    assert code == 0
    assert "msg/s" in text
    assert "median" in text


@needs_capture
def test_a_missing_permission_says_what_to_do() -> None:
    def without() -> None:
        # PR_CAPBSET_DROP CAP_NET_RAW: even root gets none of it in the program that follows.
        assert ctypes.CDLL(None).prctl(24, 13, 0, 0, 0) == 0

    done = run("-i", "lo", preexec_fn=without)
    assert done.returncode == 4
    lines = done.stderr.splitlines()
    assert lines[0] == "streamdump: lo: capturing needs the capability CAP_NET_RAW"
    assert [
        word in line for word, line in zip(("sudo", "setcap cap_net_raw=ep", "tcpdump -B 65536 --immediate-mode"), lines[1:], strict=True)
    ] == [True] * 3
    assert run("-i", "any", preexec_fn=without).returncode == 4
    assert run("-D", preexec_fn=without).returncode == 0


def test_an_unknown_interface_says_which_there_are() -> None:
    done = run("-i", "nosuch0")
    assert done.returncode == 4
    assert re.fullmatch(r"streamdump: nosuch0: no such interface; available: .*lo.*, any\n", done.stderr)


def test_interfaces_are_listed() -> None:
    done = run("-D")
    assert done.returncode == 0
    lo = next(line for line in done.stdout.splitlines() if line.startswith("lo "))
    assert lo.split()[:3] == ["lo", "up", "loopback"]
    assert "127.0.0.1" in lo
    assert done.stdout.splitlines()[-1].startswith("any ")


def _namespace() -> bool:
    """Whether a network of our own can be made, in which an interface can go down without harm."""
    if not shutil.which("unshare") or not shutil.which("nsenter") or not shutil.which("ip"):
        return False
    return subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0


@needs_capture
@pytest.mark.skipif(not _namespace(), reason="needs unshare, nsenter and ip with the right to use them")
def test_an_interface_that_goes_away_ends_the_capture() -> None:
    command = f"ip link set lo up && exec {sys.executable} -m streamdump -i lo"
    process = subprocess.Popen(["unshare", "-n", "sh", "-c", command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "capturing" in process.stderr.readline()
    subprocess.run(["nsenter", "-t", str(process.pid), "-n", "ip", "link", "set", "lo", "down"], check=True)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (4, "")
    lines = [line for line in err.splitlines() if "still running as root" not in line]
    assert lines[0].startswith("streamdump: lo: 0 packets, 0 dropped by the kernel")
    assert lines[1] == "streamdump: lo: disappeared while capturing: network is down"
    down = subprocess.run(["unshare", "-n", sys.executable, "-m", "streamdump", "-i", "lo"], capture_output=True, text=True, check=False)
    assert (down.returncode, "the interface is down" in down.stderr) == (4, True)


@needs_capture
@pytest.mark.skipif(not _namespace(), reason="needs unshare, nsenter and ip with the right to use them")
def test_what_to_do_where_nothing_came_on_the_known_ports() -> None:
    command = f"ip link set lo up && {sys.executable} -m streamdump -i lo -a duration:1"
    done = subprocess.run(["unshare", "-n", "sh", "-c", command], capture_output=True, text=True, check=True)
    told = "streamdump: no packets on these ports; -f '' captures all TCP, -i any captures on all interfaces"
    assert done.stderr.splitlines()[-1] == told
    done = subprocess.run(["unshare", "-n", "sh", "-c", f"{command} -f tcp"], capture_output=True, text=True, check=True)
    assert told not in done.stderr


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["-f", "tcp", "x.pcap"], "-f filters live capture"),
        (["conversations", "-w", "y", "x.pcap"], "-w needs live capture"),
        (["-s", "96", "x.pcap"], "-s needs live capture"),
        (["diagnose", "-B", "1M", "x.pcap"], "-B needs live capture"),
        (["--timeout", "5", "x.pcap"], "--timeout needs live capture"),
        (["latency", "--idle-time", "5", "-"], "--idle-time needs live capture"),
        (["-i", "lo", "follow", "0"], "put the command first: streamdump follow"),
        (["-i", "lo", "x.pcap"], "x.pcap is a file; give one or the other"),
        (["-i", "lo", "port", "5552"], "to give a capture filter use -f 'port 5552'"),
        (["-i", "lo", "name==Open"], "to filter, use -Y name==Open"),
        (["-i", "any", "-i", "lo"], "any means all interfaces"),
        (["-i", "lo", "-a", "filesize:1"], "-a filesize:N needs -w FILE"),
        (["-i", "lo", "-a", "frames:1"], "use duration:N, packets:N, filesize:N"),
        (["-i", "lo", "-b", "filesize:1"], "-b needs -w FILE"),
        (["-i", "lo", "-w", "x", "-b", "files:3"], "for when to start the next"),
        (["-i", "lo", "-w", "-"], "only to files"),
        (["-i", "lo", "-B", "much"], "not a size"),
        (["-i", "lo", "--timeout", "soon"], "not a time"),
    ],
    ids=" ".join,
)
def test_wrong_calls(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(argv)
    said = capsys.readouterr().err
    assert (code, told in said) == (2, True), said


@needs_capture
def test_an_output_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    done = run("-i", "lo", "-w", str(tmp_path / "none" / "x.pcapng"))
    assert done.returncode == 2
    assert "cannot be written: no such file or directory" in done.stderr
    (tmp_path / "link").symlink_to(tmp_path / "target")
    done = run("-i", "lo", "-w", str(tmp_path / "link"))
    assert (done.returncode, "a symbolic link, which is not followed" in done.stderr) == (2, True)
    done = run("-i", "lo", "-w", str(tmp_path / "none" / "x.pcapng"), "-b", "filesize:1")
    assert done.returncode == 2


@needs_capture
def test_a_filter_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"-f tcpp: .*syntax error"):
        Live(["lo"], expression="tcpp")
    with pytest.raises(UsageError, match="is not UTF-8"):
        Live(["lo"], expression="tcp \udcff")
    with pytest.raises(UsageError, match="packets from the IP header on"):
        Live(["any"], expression="ether host 02:00:00:00:00:01")


@needs_capture
def test_without_libpcap_only_filters_of_ones_own_are_missing() -> None:
    code = (
        "import ctypes.util, sys; ctypes.util.find_library = lambda name: None;"
        "sys.modules['scapy.libs.winpcapy'] = None;"
        "from streamdump.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )

    def without(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=PATIENCE, check=False)

    done = without("-i", "lo", "-f", "tcp port 5552")
    assert (done.returncode, "libpcap0.8" in done.stderr) == (2, True), done.stderr
    done = without("-i", "lo", "-a", "duration:1")
    assert done.returncode in (0, 130), done.stderr
    done = without("-i", "lo", "-f", "", "-a", "duration:1")
    assert done.returncode in (0, 130), done.stderr


def test_jumps_stay_inside() -> None:
    ports = (5551, 5552, 5555, 7000, 7001, 7451, 8090)
    after = bpf.tcp((), 1000)
    for program in (bpf.entry((1, 4)) + after, bpf.tcp(ports, 1000), after, bpf.tcp(range(MOST_PORTS), 1000)):
        assert program[-1].code == bpf.RETURN
        for at, one in enumerate(program):
            assert 0 <= one.yes < 256
            assert 0 <= one.no < 256
            assert at + max(one.yes, one.no) + 1 < len(program) or one.code == bpf.RETURN


def test_is_up() -> None:
    assert not is_up("nosuch0")


class Clock:
    """Short conversations without sockets: what an endless capture is fed with, packet by packet."""

    def __init__(self, live: Inspector) -> None:
        self.inspector = live
        self.now_ns = 1_700_000_000_000_000_000
        self.count = 0

    def conversations(self, count: int) -> list[Record]:
        from tests.bench.live import batch_of, conversation

        records: list[Record] = []
        for _ in range(count):
            packets = conversation(self.count, 4)
            self.count += 1
            batch = batch_of(packets, self.inspector.counters.packets, self.now_ns, 1_000_000)
            self.now_ns += 1_000_000 * len(packets)
            records += self.inspector.process(batch)
            records += self.inspector.age(self.now_ns)
        return records


def test_conversations_are_forgotten_by_time_and_count() -> None:
    from streamdump.model import Options

    for options, most in (
        (Options(closed_time_ns=1_000_000_000, decode_as=((8090, "iggy", None),)), 150),
        (Options(tracked_limit=100, closed_time_ns=1 << 60, decode_as=((8090, "iggy", None),)), 150),
    ):
        inspector = Inspector([], options)
        clock = Clock(inspector)
        records = clock.conversations(1000)
        assert sum(isinstance(record, Message) for record in records) == 8000
        assert len(inspector.table.conversations) < most
        assert len(inspector.table._by_ends) < 2 * most
        assert inspector.forgotten.conversations + len(inspector.rows()) == 1000
        indexes = [row.conversation for row in inspector.rows()]
        assert indexes[-1] == 999


def test_an_open_conversation_that_is_forgotten_ends_its_requests() -> None:
    from streamdump.model import Options
    from tests.bench.live import batch_of, conversation

    options = Options(idle_time_ns=60_000_000_000, answer_time_ns=1 << 60, decode_as=((8090, "iggy", None),))
    inspector = Inspector([], options)
    packets = conversation(1, 2)[:-4]
    start = 1_700_000_000_000_000_000
    records = inspector.process(batch_of(packets, 0, start, 1_000_000))
    assert [record.name for record in records if isinstance(record, Message)] == ["ping"] * 3
    end = inspector.rows()[0].time_ns + inspector.rows()[0].duration_ns
    assert inspector.age(end + 58_000_000_000) == []
    late = inspector.age(end + 60_000_000_000)
    timeout, ending = late
    assert (timeout.outcome, timeout.reason, timeout.request) == ("unanswered", "timeout", 3)  # type: ignore[union-attr]
    assert (ending.how, ending.open) == ("forgotten", 1)  # type: ignore[union-attr]
    assert inspector.rows() == []
    assert (inspector.forgotten.conversations, inspector.counters.unanswered) == (1, 1)


def test_a_late_answer_is_paired_but_not_reported_twice() -> None:
    from streamdump.model import Exchange, Options
    from tests.bench.live import batch_of, conversation

    options = Options(exchanges=True, decode_as=((8090, "iggy", None),))
    packets = conversation(1, 2)
    second = 1_000_000_000
    start = 1_700_000_000 * second
    for answered in (True, False):
        inspector = Inspector([], options)
        records = inspector.process(batch_of(packets[:4], 0, start, 0))
        assert [type(one) for one in records] == [Message]
        late = inspector.age(start + 31 * second)
        assert [(one.outcome, one.reason) for one in late if isinstance(one, Exchange)] == [("unanswered", "timeout")]
        assert inspector.age(start + 62 * second) == []
        rest = packets[4:] if answered else []
        records = inspector.process(batch_of(rest, 4, start + 70 * second, 0)) if rest else []
        records += inspector.finish()
        exchanges = [one for one in records if isinstance(one, Exchange)]
        # That of the second ping alone.
        assert [one.outcome for one in exchanges] == (["answered"] if answered else [])
        if answered:
            response = next(one for one in records if isinstance(one, Message))
            assert (response.request, response.latency_ns) == (1, 70 * second)
        assert inspector.counters.unanswered == 1
