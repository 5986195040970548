"""A pipe that stays open: how one side ends a conversation is reported two seconds later, and all else is as of a file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.conversation.table import Timers
from streamdump.inspector import Inspector
from streamdump.model import Ending, Finding, Options, Packet, Record
from streamdump.protocols.rabbitmq import layouts
from tests.diagnose.talks import SECOND, Connection, capture
from tests.support.frames import pcap, pcapng
from tests.test_capture_end import udp

SAMPLES = Path(__file__).parents[2] / "captures"
HANGING = SAMPLES / "samples" / "reports" / "fin-hanging-pipe.pcap"

MAY_DIFFER = ("number", "open", "refused", "quiet_ns", "request", "response", "messages")


class Pipe:
    """What reads standard input, which stays open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: Queue[str] = Queue()
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode())

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self, wanted: Callable[[str], bool], seconds: float) -> str:
        """The first line that is wanted."""
        until = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            except Empty:
                raise AssertionError("it did not come") from None
            if wanted(line):
                return line

    def rest(self) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0
        self._thread.join(20)
        return [*self.lines.queue]


@contextmanager
def reading(*arguments: str) -> Iterator[Pipe]:
    command = [sys.executable, "-m", "streamdump", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield Pipe(process)
        finally:
            process.kill()


@pytest.mark.parametrize("packets", [False, pytest.param(True, marks=pytest.mark.live)], ids=["silent", "others talk"])
def test_a_fin_is_reported_two_seconds_later(packets: bool) -> None:
    data = HANGING.read_bytes()
    with reading("-") as pipe:
        pipe.write(data)
        begun = time.monotonic()
        pipe.line(lambda line: "PeerProperties" in line, 10)
        if packets:
            Thread(target=_keep_talking, args=(pipe,), daemon=True).start()
        line = pipe.line(lambda line: " end " in line, 6)
        assert "server closed (FIN)" in line
        assert 1.5 < time.monotonic() - begun < 5
        if not packets:
            assert not [line for line in pipe.rest() if " end " in line], "only once"


def _keep_talking(pipe: Pipe) -> None:
    """Packets of others that come all the time."""
    start = 1_795_600_000
    for at in range(60):
        header = b"".join(value.to_bytes(4, "little") for value in (start + 100 + at // 10, at % 10 * 100_000, 42, 42))
        try:
            pipe.write(header + udp(0).data[:42].ljust(42, b"\0"))
        except (OSError, ValueError):
            return
        time.sleep(0.1)


@pytest.mark.live
def test_what_a_pipe_says_in_the_end_is_what_the_file_says() -> None:
    with reading("--json", "-") as pipe:
        pipe.write(HANGING.read_bytes())
        time.sleep(3)
        found = [json.loads(line) for line in pipe.rest()]
    alone = subprocess.run([sys.executable, "-m", "streamdump", "--json", str(HANGING)], capture_output=True, check=True).stdout
    wanted = [json.loads(line) for line in alone.splitlines()]

    def comparable(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        left = [{name: value for name, value in one.items() if name not in MAY_DIFFER} for one in records]
        return sorted(left, key=lambda one: json.dumps(one))

    assert comparable(found) == comparable(wanted)


@pytest.mark.live
def test_a_fatal_alert_of_tls_is_a_finding_two_seconds_later() -> None:
    """A plain client at a server that expects TLS, which ends with a FIN that the client does not answer."""
    properties = bytes.fromhex("0000000c 0011 0001 00000001 00000000")
    talk = Connection().open().ask(properties).tell(bytes.fromhex("15 0303 0002 02 0a")).segment(1, flags=17)
    with reading("diagnose", "--json", "-") as pipe:
        pipe.write(pcap(talk.packets, nano=True))
        found = json.loads(pipe.line(lambda line: '"finding"' in line, 6))
        assert (found["rule"], found["severity"]) == ("tls.plain-peer", "error")
        assert not [line for line in pipe.rest() if '"finding"' in line], "only once"


# Without a clock


def piped(data: bytes, cuts: list[int], monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[Record], list[Record]]:
    """The records of a pipe that stands still behind so many packets, those that come while it does first."""
    clock = [100.0]
    monkeypatch.setattr("streamdump.inspector.monotonic", lambda: clock[0])
    inspector = Inspector([], Options(**options), finite=True)
    inspector.table.timers, inspector._pipes = Timers(inspector.options, ends_only=True), True
    packets: list[Packet] = [packet for batch in open_capture(io.BytesIO(data)).batches() for packet in batch]
    meanwhile: list[Record] = []
    found: list[Record] = []
    for begin, end in zip([0, *cuts], [*cuts, len(packets)], strict=True):
        found += inspector.process(packets[begin:end])
        for _ in range(30):
            clock[0] += 0.25
            more = inspector.report_ends()
            meanwhile += more
            found += more
    return meanwhile, found + inspector.finish()


def half_closed() -> Connection:
    talk = Connection().ready().client(layouts.CREATE, stream="s1", arguments=[])
    return talk.segment(1, flags=17)


def test_only_endings_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    open_, half = Connection(sport=40001).ready().client(layouts.CREATE, stream="s1", arguments=[]), half_closed()
    data = pcap([*open_.packets, *half.packets, udp(30 * SECOND)], nano=True)
    meanwhile, found = piped(data, [len(open_.packets) + len(half.packets)], monkeypatch, findings=True)
    (ending,) = meanwhile
    assert isinstance(ending, Ending)
    assert (ending.how, ending.sender, ending.time_ns) == ("FIN", "server", half.packets[-1].time_ns)
    inspector = Inspector([open_capture(io.BytesIO(data))], Options(findings=True), finite=True)
    wanted = list(inspector.records())
    assert [one.cause for one in found if type(one) is Finding] == [one.cause for one in wanted if type(one) is Finding]
    assert sorted(type(one).__name__ for one in found) == sorted(type(one).__name__ for one in wanted)


def test_a_pipe_that_never_stands_still_says_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    half, more = half_closed(), Connection(begin=9 * SECOND, sport=40001).ready().goodbye()
    data = capture(half, more)
    monkeypatch.setattr("streamdump.inspector.monotonic", lambda: 100.0)
    source = open_capture(io.BytesIO(data))
    inspector = Inspector([source], Options(), 1, finite=True)
    inspector.table.timers, inspector._pipes = Timers(inspector.options, ends_only=True), True
    assert list(inspector.records()) == list(Inspector([open_capture(io.BytesIO(data))], Options(), finite=True).records())


@pytest.mark.live
def test_who_reads_has_gone_while_a_pipe_is_silent() -> None:
    """As with `head`: the process ends when it writes next, which is while it waits for the pipe."""
    command = [sys.executable, "-m", "streamdump", "-l", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(HANGING.read_bytes())
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.wait(10) == 0
        assert b"internal error" not in process.stderr.read()


@pytest.mark.live
def test_packets_read_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """tcpdump without -U writes blocks that end within a packet."""
    data = HANGING.read_bytes()
    with reading("-") as pipe:
        pipe.write(data + b"\0\0\0")
        assert "server closed (FIN)" in pipe.line(lambda line: " end " in line, 6)


@pytest.mark.live
def test_pcapng_too() -> None:
    with reading("-") as pipe:
        pipe.write(pcapng(half_closed().packets))
        assert "server closed (FIN)" in pipe.line(lambda line: " end " in line, 6)
