"""`-w FILE` of files: whole conversations or the packets of matches, which read again say the same."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import streamdump
from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.errors import CaptureError
from streamdump.model import Exchange, Finding, Message, Record
from tests.support.frames import ACK, A, B, Packet, ethernet, ip4, pcap, tcp
from tests.support.peers import GOLDEN
from tests.support.rewrite import packets
from tests.support.waiting import PATIENCE

TWO = GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap"
EXPIRED = GOLDEN / "seastar-rpc" / "timeout_expiry.pcap"
SLL2 = GOLDEN / "mewbase" / "java-sll2.pcap"
CUT = GOLDEN / "mewbase" / "cut-snaplen120.pcap"
SAMPLE = [
    TWO,
    EXPIRED,
    SLL2,
    CUT,
    GOLDEN / "rabbitmq-stream" / "tls_keys_310.pcapng",
    GOLDEN / "rabbitmq-stream" / "lost_segments_405.pcap",
    GOLDEN / "iggy" / "py090-parallel.pcap",
    GOLDEN / "iggy" / "seed-frag.pcap",
    GOLDEN / "mewbase" / "cut-overlap.pcap",
    GOLDEN / "mewbase" / "java-ipv6.pcap",
]


def write(target: Path, *argv: str | Path, code: ExitCode = ExitCode.DONE) -> Path:
    assert main([*map(str, argv), "-w", str(target)]) == code
    return target


def said(records: list[Record], conversation: int | None = None) -> list[dict[str, Any]]:
    """What records say, numbered from 1, without the packets and files that they came with."""
    chosen = [one for one in records if conversation in (None, one.conversation)]
    numbers = {one.number: index for index, one in enumerate(chosen, 1)}
    found = []
    for one in chosen:
        told: dict[str, Any] = msgspec.to_builtins(one)
        for key in ("number", "request", "response"):
            told[key] = numbers.get(told.get(key, 0))
        if conversation is not None:
            told["conversation"] = 0
        found.append({key: value for key, value in told.items() if key not in ("packets", "file")})
    return found


def read(*captures: Path) -> list[Record]:
    records: list[Record] = []
    with contextlib.suppress(CaptureError):
        records.extend(streamdump.read(*captures, exchanges=True))
    return records


@pytest.mark.parametrize("capture", SAMPLE, ids=lambda path: path.name)
def test_what_was_written_says_the_same(capture: Path, tmp_path: Path) -> None:
    whole = read(capture)
    assert whole
    assert said(read(write(tmp_path / "all.pcapng", capture, "--embed-keys"))) == said(whole)
    for conversation in sorted({one.conversation for one in whole}):
        target = write(tmp_path / "one.pcapng", capture, "--embed-keys", "-Y", f"conversation == {conversation}")
        assert said(read(target)) == said(whole, conversation)


def test_packets_are_written_as_they_were_and_handshakes_with_them(tmp_path: Path) -> None:
    """Opening and closing a connection, which no message has, and acknowledgements: all but what is no TCP."""
    before = packets(SLL2)
    assert packets(write(tmp_path / "all.pcapng", SLL2)) == before
    first, second = (packets(write(tmp_path / f"{one}.pcapng", TWO, "-Y", f"name == Open and conversation == {one}")) for one in range(2))
    assert len(first) + len(second) == len(packets(TWO)) == 153
    assert sorted([*first, *second]) == sorted(packets(TWO))
    assert any(one.raw[47] & 2 for one in first)  # a SYN


def test_a_connection_that_takes_the_place_of_another_is_another(tmp_path: Path) -> None:
    again = tmp_path / "again.pcap"
    one, later = packets(EXPIRED), 3_600_000_000_000
    moved = [packet._replace(time_ns=packet.time_ns + later) for packet in one]
    again.write_bytes(pcap([Packet(packet.raw, packet.time_ns, packet.wire) for packet in [*one, *moved]], one[0].link, nano=True))
    found = sorted({record.conversation for record in read(again)})
    assert len(found) % 2 == 0
    for conversation in found:
        target = write(tmp_path / "w.pcapng", again, "-Y", f"conversation == {conversation}")
        assert said(read(target)) == said(read(again), conversation)


def test_fragments_belong_to_the_segment_that_they_make(tmp_path: Path) -> None:
    source = tmp_path / "fragments.pcap"
    data = tcp(bytes.fromhex("04000000 01000000") * 25, flags=ACK)
    pieces = [ethernet(ip4(data[at : at + 80], offset=at, more=at + 80 < len(data), identity=9)) for at in range(0, len(data), 80)]
    other = ethernet(ip4(tcp(b"x", sport=41000)))
    lost = ethernet(ip4(bytes(80), more=True, identity=10))
    answer = ethernet(ip4(tcp(b"y" * 9, sport=5552, dport=40000, seq=2000, ack=1200), src=B, dst=A))
    source.write_bytes(
        pcap([Packet(one) for one in (pieces[2], lost, other, pieces[0], pieces[1], answer, ethernet(ip4(b"", protocol=17)))])
    )
    argv = (source, "-d", "tcp.port==5552,iggy", "-Y", "port == 40000")
    assert [one.raw for one in packets(write(tmp_path / "w.pcapng", *argv))] == [pieces[2], pieces[0], pieces[1], answer]
    alone = write(tmp_path / "w.pcapng", *argv[:-1], "src == 192.0.2.1:40000 and name == ping", "--only-matching")
    assert [one.raw for one in packets(alone)] == [pieces[2], pieces[0], pieces[1]]


def numbers(capture: Path, target: Path) -> list[int]:
    """Which packets of a capture were written."""
    left, found, at = packets(capture), [], 0
    for one in packets(target):
        at = left.index(one, at) + 1
        found.append(at)
    return found


def test_the_packets_of_matches_alone(tmp_path: Path) -> None:
    asked = "name in {Publish, Deliver} and conversation == 1"
    found: set[int] = set()
    for one in streamdump.read(TWO, where=asked):
        assert isinstance(one, Message)
        assert one.packets[0] is not None
        found.update(range(one.packets[0], one.packets[1] + 1))
    written = numbers(TWO, write(tmp_path / "w.pcapng", TWO, "--only-matching", "-Y", asked))
    assert written
    assert set(written) <= found
    assert {one.packets[1] for one in streamdump.read(TWO, where=asked) if isinstance(one, Message)} <= set(written)


def test_of_an_exchange_the_packets_of_both_sides(tmp_path: Path) -> None:
    asked = "record == exchange and outcome == unanswered"
    (first, *_) = [one for one in streamdump.read(EXPIRED, where=asked) if isinstance(one, Exchange)]
    request = next(one for one in streamdump.read(EXPIRED) if one.number == first.request)
    assert isinstance(request, Message)
    target = write(tmp_path / "w.pcapng", EXPIRED, "--only-matching", "-Y", f"number == {first.number}")
    assert numbers(EXPIRED, target) == [request.packets[1]]
    (pair, *_) = [
        one for one in streamdump.read(TWO, exchanges=True, where="record == exchange and name == Open") if isinstance(one, Exchange)
    ]
    target = write(tmp_path / "w.pcapng", TWO, "--only-matching", "--exchanges", "-Y", f"number == {pair.number}")
    both = [one for one in streamdump.read(TWO, exchanges=True) if one.number in (pair.request, pair.response)]
    assert numbers(TWO, target) == [one.packets[1] for one in both if isinstance(one, Message)]


def test_of_a_finding_the_packets_that_show_it(tmp_path: Path) -> None:
    capture = GOLDEN / "rabbitmq-stream" / "wrong_password_405.pcap"
    (finding,) = [one for one in streamdump.read(capture, findings=True, where="record == finding") if isinstance(one, Finding)]
    argv = (capture, "--findings", "-Y", "rule == rabbitmq-stream.authentication-refused")
    assert numbers(capture, write(tmp_path / "w.pcapng", *argv, "--only-matching")) == finding.packets
    assert said(read(write(tmp_path / "w.pcapng", *argv))) == said(read(capture))


def test_a_message_that_began_in_an_earlier_file(tmp_path: Path) -> None:
    """Its first packets are written too, although it does not say which those are."""
    capture = GOLDEN / "mewbase" / "cut-tiny-segments.pcap"
    whole = packets(capture)
    middle = next(
        one for one in streamdump.read(capture) if isinstance(one, Message) and one.packets[0] and one.packets[1] > one.packets[0] + 4
    )
    assert middle.packets[0] is not None
    border = (middle.packets[0] + middle.packets[1]) // 2
    for name, some in (("a.pcap", whole[:border]), ("b.pcap", whole[border:])):
        (tmp_path / name).write_bytes(pcap([Packet(one.raw, one.time_ns, one.wire) for one in some], whole[0].link, nano=True))
    argv = (tmp_path / "a.pcap", tmp_path / "b.pcap", "--only-matching", "-Y", f"number == {middle.number}")
    split = packets(write(tmp_path / "w.pcapng", *argv))
    assert split == packets(write(tmp_path / "w.pcapng", capture, *argv[2:]))


def test_several_files_keep_link_types_and_nanoseconds(tmp_path: Path) -> None:
    target = write(tmp_path / "w.pcapng", SLL2, CUT, TWO)
    found = packets(target)
    merged = sorted([*packets(SLL2), *packets(CUT), *packets(TWO)], key=lambda one: one.time_ns)
    assert [(one.time_ns, one.link, one.wire) for one in found] == [(one.time_ns, one.link, one.wire) for one in merged]
    assert said(read(target)) == said(read(SLL2, CUT, TWO))


@pytest.mark.parametrize("way", ["-", "fifo"])
def test_a_pipe_is_read_once_and_kept(way: str, tmp_path: Path) -> None:
    target, fifo = tmp_path / "w.pcapng", tmp_path / "fifo"
    argv = [sys.executable, "-m", "streamdump", "-w", str(target), "-Y", "conversation == 1"]
    if way == "-":
        with TWO.open("rb") as source:
            pipe = subprocess.Popen(["cat"], stdin=source, stdout=subprocess.PIPE)
            done = subprocess.run([*argv, "-"], stdin=pipe.stdout, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert pipe.wait(PATIENCE) == 0
            assert pipe.stdout is not None
            pipe.stdout.close()
    else:
        os.mkfifo(fifo)
        writing = threading.Thread(target=lambda: fifo.write_bytes(TWO.read_bytes()))
        writing.start()
        done = subprocess.run([*argv, str(fifo)], capture_output=True, text=True, timeout=PATIENCE, check=False)
        writing.join(PATIENCE)
    assert (done.returncode, done.stdout) == (0, "")
    assert "90 of 153 packets written as captured, including" in done.stderr
    assert said(read(target)) == said(read(TWO), 1)


def test_what_came_before_an_interruption_is_written(tmp_path: Path) -> None:
    """Ctrl-C ends the program that writes into the pipe, too."""
    target = tmp_path / "w.pcapng"
    argv = [sys.executable, "-m", "streamdump", "-w", str(target), "--json", "-"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(TWO.read_bytes())
        running.stdin.flush()
        line = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=PATIENCE)
    assert b'"name":"PeerProperties"' in line
    assert running.returncode == ExitCode.DONE
    assert b"interrupted" in err
    found = packets(target)
    assert found
    assert found == packets(TWO)[: len(found)]


def test_text_is_printed_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {}
    for form in ([], ["-V"], ["-x"], ["-T", "text"], ["--json"], ["-T", "fields", "-e", "name"]):
        write(tmp_path / "w.pcapng", TWO, *form, "-Y", "name == Open")
        plain[" ".join(form)] = capsys.readouterr().out
        if form:
            main([str(TWO), *form, "-Y", "name == Open"])
            assert capsys.readouterr().out == plain[" ".join(form)] != ""
    assert plain[""] == ""


def test_conversations_of_the_first_messages_are_written_whole(tmp_path: Path) -> None:
    target = write(tmp_path / "w.pcapng", TWO, "-c", "1", "-Y", "name == Close")
    assert said(read(target)) == said(read(TWO), next(streamdump.read(TWO, where="name == Close")).conversation)
    assert said(read(write(tmp_path / "w.pcapng", TWO, "-a", "packets:60"))) == said(_first(60))


def _first(count: int) -> list[Record]:
    from streamdump.inspector import Inspector
    from streamdump.options import Options

    inspector = Inspector([open_capture(TWO)], Options(exchanges=True))
    return [one for batch in inspector.batches(count) for one in batch]


def test_the_file_is_for_its_owner_alone_and_no_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.pcap"
    source.write_bytes(TWO.read_bytes())
    target = tmp_path / "w.pcapng"
    target.write_bytes(b"before")
    target.chmod(0o666)
    write(target, source)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(source)
    other.hardlink_to(source)
    for wrong, why in ((source, "is an input"), (other, "is an input"), (link, "a symbolic link"), (tmp_path, "is a directory")):
        write(wrong, source, code=ExitCode.USAGE)
        assert why in capsys.readouterr().err
    write(tmp_path / "none" / "w.pcapng", source, code=ExitCode.USAGE)
    assert source.read_bytes() == TWO.read_bytes()
    assert main(["--only-matching", str(source)]) == ExitCode.USAGE


def test_a_damaged_capture_is_written_as_far_as_it_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "cut.pcap"
    damaged.write_bytes(TWO.read_bytes()[:9000])
    target = write(tmp_path / "w.pcapng", damaged, code=ExitCode.UNREADABLE)
    assert packets(target) == packets(damaged)
    assert re.search(r"w.pcapng: (\d+) of \1 packets written", capsys.readouterr().err)
    gone = write(tmp_path / "gone.pcapng", tmp_path / "nosuch.pcap", code=ExitCode.UNREADABLE)
    assert not gone.exists()


def test_keys_of_tls_are_written_only_where_they_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = SAMPLE[4]
    target = write(tmp_path / "w.pcapng", capture, "-Y", "conversation == 1")
    assert "TLS keys are not included; --embed-keys adds them" in capsys.readouterr().err
    assert read(target) == []
    write(target, capture, "-Y", "conversation == 1", "--embed-keys")
    assert "passwords, tokens and TLS keys" in capsys.readouterr().err
    assert said(read(target)) == said(read(capture), 1)
    # Of this conversation alone
    assert len(set(re.findall(rb"(?:CLIENT_TRAFFIC_SECRET_0|CLIENT_RANDOM) ([0-9a-f]{64}) ", target.read_bytes()))) == 1


def limited(size: int, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """A run in which no file may have more bytes, as on a full disk; it caches no modules, whose files would be cut off, too."""
    command = [sys.executable, "-B", "-m", "streamdump", *map(str, argv)]
    limit = (size, size)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )


def test_on_a_full_disk_the_old_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "w.pcapng"
    target.write_bytes(b"before")
    done = limited(2_000, TWO, "-w", target)
    assert done.returncode == ExitCode.USAGE
    assert f"-w {target}: cannot be written: file too large" in done.stderr
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("w.pcapng", b"before")]


def test_a_full_standard_output_is_called_so() -> None:
    command = f"{sys.executable} -m streamdump -w - {TWO} > /dev/full"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, "-w standard output: cannot be written: no space left on device\n" in done.stderr) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("call", ["-w {0} -", "-w {0}", "scrub - {0}", "stats --html {0} -", "-w {0} --keylog {0} {1}"])
def test_what_standard_input_or_keys_are_read_from_is_an_input(call: str, tmp_path: Path) -> None:
    target = tmp_path / "a.pcap"
    shutil.copy(TWO, target)
    argv = [sys.executable, "-m", "streamdump", *call.format(target, TWO).split()]
    with (target if "keylog" not in call else Path(os.devnull)).open("rb") as given:
        done = subprocess.run(argv, stdin=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, "never overwritten" in done.stderr) == (ExitCode.USAGE, True)
    assert target.read_bytes() == Path(TWO).read_bytes()


def test_who_reads_packets_from_a_pipe_may_have_enough() -> None:
    command = f"{sys.executable} -m streamdump -q -w - {TWO} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_interruption_while_packets_are_written_leaves_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import streamdump.cli.writing

    def interrupted(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    real = streamdump.cli.writing.copy
    monkeypatch.setattr(streamdump.cli.writing, "copy", interrupted)
    target = tmp_path / "w.pcapng"
    target.write_bytes(b"before")
    write(target, TWO, code=ExitCode.INTERRUPTED)
    assert f"-w {target}: interrupted; nothing was written" in capsys.readouterr().err
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("w.pcapng", b"before")]


def test_a_capture_that_shrinks_while_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamdump.cli.run import FileRun

    source = tmp_path / "in.pcap"
    source.write_bytes(TWO.read_bytes())
    again = FileRun.again

    def shrunk(run: FileRun) -> Any:
        os.truncate(source, 9_000)
        return again(run)

    monkeypatch.setattr(FileRun, "again", shrunk)
    target = write(tmp_path / "w.pcapng", source, code=ExitCode.UNREADABLE)
    kept = len(packets(target))
    assert packets(target) == packets(TWO)[:kept]
    err = capsys.readouterr().err
    assert f"{kept} of {kept} packets written" in err
    assert f"-w {target}: has only the first {kept} of 153 packets: the captures shrank while they were read" in err


def test_a_report_for_ci_servers_is_whole_or_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "report.xml"
    target.write_bytes(b"before")
    done = limited(100, "check", TWO, "--junit", target)
    assert f"--junit {target}: cannot be written: file too large" in done.stderr
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("report.xml", b"before")]
    assert limited(1 << 20, "check", TWO, "--junit", target).returncode == ExitCode.FOUND
    assert target.read_bytes().startswith(b"<?xml")
    assert limited(1 << 20, "check", TWO, "--junit", "/dev/stdout").stdout.count("</testsuites>") == 1
