"""The acknowledgement of a request bounds the network's share of its latency: scripted, limits, and against what tshark finds."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.conversation import run_state
from streamdump.conversation.run_state import AcknowledgedPairs
from streamdump.inspector import Inspector
from streamdump.model import Options, Segment
from streamdump.protocols.rabbitmq import layouts as rabbit
from tests.diagnose.talks import MS, Connection, capture
from tests.support.peers import GOLDEN


def lasting(again: bool = False) -> Connection:
    """A server that acknowledges one request after a millisecond, or after it was sent twice, and answers it 49 ms later; another one it
    acknowledges with the answer."""
    one = Connection().ready()
    before, ident = one.next[0], one.ident
    one.client(rabbit.DELETE, stream="s")
    if again:
        one.next[0], one.ident = before, ident
        one.client(rabbit.DELETE, stream="s")
    one.segment(1).wait(49 * MS).server(rabbit.DELETE_RESPONSE)
    return one.client(rabbit.STREAM_STATS, stream="s").wait(20 * MS).server(rabbit.STREAM_STATS_RESPONSE, stats=[]).goodbye()


def told(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["latency", str(path), *arguments]) == 0
    return capsys.readouterr().out


def latencies(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {one["command"]: one for one in map(json.loads, told(path, capsys, "--json").splitlines()) if one["record"] == "latency"}


@pytest.mark.parametrize(("again", "bound"), [(False, 1), (True, 2)])
def test_the_acknowledgement_bounds_the_share_of_the_network(
    again: bool, bound: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(capture(lasting(again)))
    found = latencies(path, capsys)
    early, late = found["Delete"], found["StreamStats"]
    assert (early["network_at_most"]["max_ns"], early["latency"]["max_ns"]) == (bound * MS, (49 + bound) * MS)
    assert late["network_at_most"] == late["latency"]
    lines = [line.split() for line in told(path, capsys).splitlines()]
    at = [line[1:2] for line in lines].index(["Delete"])
    assert lines[at + 1][:5] == ["network", "at", "most", f"{bound}", "ms"]
    at = [line[1:2] for line in lines].index(["StreamStats"])
    assert lines[at + 1][:1] != ["network"], "it says no more than the latency does"


def test_requests_that_nobody_acknowledges_have_no_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    one = Connection().ready()
    one.client(rabbit.DELETE, stream="s")
    one.next[0] -= 1
    path.write_bytes(capture(one.server(rabbit.DELETE_RESPONSE)))
    found = latencies(path, capsys)
    assert found["Delete"]["network_at_most"] is None
    assert found["Open"]["network_at_most"] is not None


def test_what_is_acknowledged_behind_the_answer_tells_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    one = Connection().ready()
    before = one.next[0]
    one.client(rabbit.DELETE, stream="s")
    behind, one.next[0] = one.next[0], before
    one.server(rabbit.DELETE_RESPONSE)
    one.next[0] = behind
    path.write_bytes(capture(one.segment(1).goodbye()))
    assert latencies(path, capsys)["Delete"]["network_at_most"] is None


@pytest.mark.parametrize("family", ["iggy", "mewbase", "rabbitmq-stream", "seastar-rpc"])
def test_no_bound_is_greater_than_the_latency(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    bounded = 0
    for path in sorted((GOLDEN / family).glob("*.pcap"))[::4]:
        for one in latencies(path, capsys).values():
            bound, latency = one["network_at_most"], one["latency"]
            if bound is not None:
                bounded += bound["count"]
                assert bound["count"] <= latency["count"]
                assert bound["max_ns"] <= latency["max_ns"]
    assert bounded > 20


def looked(*segments: tuple[int, int, int, int, int]) -> AcknowledgedPairs:
    """Segments of a side as side, seq, ack, flags and size, a nanosecond apart."""
    ends = bytes([1, 1, 1, 1, 2, 2, 2, 2, 0, 1, 0, 2]), bytes([2, 2, 2, 2, 1, 1, 1, 1, 0, 2, 0, 1])
    found = AcknowledgedPairs()
    for at, (side, seq, ack, flags, size) in enumerate(segments):
        found.feed(Segment(ends[side], (at, at, 0, at), seq, ack, flags, 1, bytes(size), size))
    return found


ACK, SYN = 16, 2


def test_what_is_acknowledged_when() -> None:
    sent = (0, 100, 0, ACK, 10), (0, 110, 0, ACK, 10)
    assert looked(*sent, (1, 0, 109, ACK, 0), (1, 0, 110, ACK, 0), (1, 0, 120, ACK, 5)).times == {(0, 0): 3, (0, 1): 4}
    assert looked(*sent, (1, 0, 120, ACK, 0)).times == {(0, 0): 2, (0, 1): 2}
    assert looked(*sent, (1, 0, 120, 4, 0)).times == {}, "no acknowledgement"
    assert looked((0, 0xFFFF_FFFA, 0, ACK, 10), (1, 0, 4, ACK, 0)).times == {(0, 0): 1}, "sequence numbers wrap"
    assert looked(sent[0], (0, 5000, 0, SYN, 0), (0, 5001, 0, ACK, 10), (1, 0, 5011, ACK, 0)).times == {(0, 2): 3}, "another connection"


def test_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [(0, 100 + 10 * at, 0, ACK, 10) for at in range(4)]
    everything = (1, 0, 140, ACK, 10), (0, 140, 10, ACK, 0)
    assert len(looked(*sent, *everything).times) == 5
    for name, left in (("MAX_SENT", 3), ("MAX_TIMES", 2), ("MAX_SIDES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(run_state, name, left if name != "MAX_SENT" else 2)
            found = looked(*sent, *everything)
            assert len(found.times) == left if name != "MAX_SIDES" else len(found._sent) == 1


CAPTURES = (
    "rabbitmq-stream/rstream_publish_consume_310.pcap",
    "rabbitmq-stream/seq_wrap_405.pcap",
    "rabbitmq-stream/tls_405.pcap",
    "rabbitmq-stream/ipv6_436.pcap",
    "iggy/py080-basic.pcap",
    "seastar-rpc/basic.pcap",
    "mewbase/java-query.pcap",
)


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
@pytest.mark.parametrize("name", CAPTURES)
def test_acknowledgements_are_those_that_tshark_finds(name: str) -> None:
    """Of the packets that one acknowledges it names the last."""
    fields = [part for one in ("tcp.analysis.acks_frame", "tcp.analysis.ack_rtt") for part in ("-e", one)]
    command = ["tshark", "-r", str(GOLDEN / name), "-T", "fields", "-Y", "tcp.analysis.acks_frame && tcp.analysis.ack_rtt", *fields]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    theirs = {int(acked): float(took) for acked, took in (line.split("\t") for line in output.splitlines())}
    reader = open_capture(str(GOLDEN / name))
    inspector = Inspector([reader], Options(pairs=True))
    ours, sent = AcknowledgedPairs(), {}
    for batch in reader.batches():
        for packet in batch:
            segment = inspector.link.segment(packet, packet.number)
            if segment is not None:
                ours.feed(segment)
                if segment.wire:
                    sent[segment.number] = segment.time_ns
    reader.close()
    assert {acked: took for acked, took in theirs.items() if acked in sent}.keys() <= {number for _, number in ours.times}
    compared = [acked for acked in theirs if acked in sent]
    assert len(compared) > 5
    for acked in compared:
        assert (ours.times[0, acked] - sent[acked]) / 1e9 == pytest.approx(theirs[acked], abs=1e-6)
