"""Waiting ends with the capture: its last packet, whichever conversation that belongs to, or the clock."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import LAST, Inspector
from streamdump.model import Ending, Exchange, Finding, Message, Options, Record
from streamdump.protocols.rabbitmq import layouts
from streamdump.units import duration_text
from tests.diagnose.talks import SECOND, Connection, capture, diagnosed
from tests.support.frames import START_NS, A, B, Packet, ethernet, ip4, pcap

REPORTS = Path(__file__).parents[1] / "captures" / "samples" / "reports"
OTHER = bytes((192, 0, 2, 7))

WARNINGS = {
    "q1_hang_beside_other": ("open-requests", "Create has no answer for 1 min 1 s when the capture ends"),
    "u1_silent_pair_beside_other": (
        "silence",
        "the client had sent nothing for 2 min, more than twice the agreed heartbeat of 10 s, when the capture ends",
    ),
    "u2_no_credit_beside_other": (
        "out-of-credit",
        'subscription 0 ("s1") has had no credit for 2 min when the capture ends: 2 chunks were granted and 2 delivered',
    ),
    "t1_out_of_credit_open": (
        "out-of-credit",
        'subscription 0 ("s1") has had no credit for 2 min when the capture ends: 2 chunks were granted and 2 delivered',
    ),
    "u4_connected_says_nothing_beside_other": (
        "tcp.unused",
        "the client connected and has sent nothing for 2 min when the capture ends",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_a_silence_lasts_until_the_capture_ends(name: str) -> None:
    rule, cause = WARNINGS[name]
    (found,), _, _ = diagnosed(REPORTS / f"{name}.pcap")
    *_, last = (packet for batch in open_capture(str(REPORTS / f"{name}.pcap")).batches() for packet in batch)
    rule = rule if "." in rule else f"rabbitmq-stream.{rule}"
    assert (found.rule, found.severity, found.cause, found.conversation) == (rule, "warning", cause, 0)
    assert found.time_ns == last.time_ns


def hanging(**ports: Any) -> Connection:
    return Connection(**ports).ready().client(layouts.CREATE, stream="s1", arguments=[])


def udp(at_ns: int) -> Packet:
    return Packet(ethernet(ip4(bytes(8), src=A, dst=B, protocol=17)), START_NS + at_ns)


def ends(data: Sequence[bytes], rows: int | None = None, **options: Any) -> list[Record]:
    """The exchanges, endings and findings of captures."""
    inspector = Inspector([open_capture(io.BytesIO(one)) for one in data], Options(findings=True, **options), rows, finite=True)
    return [one for one in inspector.records() if type(one) in (Exchange, Ending, Finding)]


def waited(found: Sequence[Record]) -> list[tuple[int, int | None]]:
    """Of the exchanges how long the end is behind the first packet, and how long a response was waited for, in seconds."""
    return [(one.time_ns - START_NS, one.waited_ns) for one in found if type(one) is Exchange]


def test_every_packet_counts() -> None:
    one = hanging()
    asked_ns = one.packets[-1].time_ns - START_NS
    data = pcap([*one.packets, udp(9 * SECOND)], nano=True)
    found = ends([data])
    assert waited(found) == [(9 * SECOND, 9 * SECOND - asked_ns)]
    assert [(each.rule, each.severity) for each in found if type(each) is Finding] == [("rabbitmq-stream.open-requests", "warning")]
    assert all(ends([data], rows) == found for rows in (1, 7))


def test_of_merged_files_the_last_packet_counts_of_separate_ones_their_own() -> None:
    one = hanging()
    asked_ns = one.packets[-1].time_ns - START_NS
    files = [pcap([*one.packets, udp(2 * SECOND)], nano=True), pcap([udp(1 * SECOND), udp(5 * SECOND)], nano=True)]
    for order in (files, files[::-1]):
        assert waited(ends(order)) == [(5 * SECOND, 5 * SECOND - asked_ns)]
        assert waited(ends(order, separate=True)) == [(2 * SECOND, 2 * SECOND - asked_ns)]


def test_of_an_interface_the_clock_counts() -> None:
    one = hanging()
    asked_ns = one.packets[-1].time_ns - START_NS
    inspector = Inspector([], Options(findings=True, answer_time_ns=60 * SECOND))
    (batch,) = open_capture(io.BytesIO(capture(one))).batches()
    inspector.process(batch)
    found = inspector.finish(START_NS + 7 * SECOND)
    assert waited(found) == [(7 * SECOND, 7 * SECOND - asked_ns)]


def test_who_has_ended_waits_no_longer() -> None:
    closed, reset = hanging().fin(1), hanging(sport=40001).wait(2 * SECOND).reset(1)
    found = ends([pcap([*closed.packets, *reset.packets, udp(100 * SECOND)], nano=True)])
    times = [closed.packets[-2].time_ns - START_NS, reset.packets[-1].time_ns - START_NS]
    assert [one.time_ns - START_NS for one in found if type(one) is Exchange] == times


def test_what_only_the_end_tells_comes_last_and_each_conversation_stays_together() -> None:
    silent = Connection(sport=40002).segment(0, flags=2)
    one, two, talks = hanging(), hanging(begin=SECOND, sport=40001), Connection(begin=2 * SECOND, sport=40003).ready().goodbye()
    found = ends([capture(one, silent, two, talks)])
    end_ns = talks.packets[-1].time_ns
    assert [(type(each), each.conversation) for each in found if each.time_ns == end_ns and type(each) is not Finding] == [
        (Exchange, 0),
        (Ending, 1),
        (Exchange, 2),
    ]
    times = [each.time_ns for each in found if each.conversation is not None]
    assert times == sorted(times)


def test_of_the_many_records_at_the_end_all_know_the_numbers_of_their_requests() -> None:
    # Without its peer a negotiation frame is a message only at the end, when more records come than are handed out together
    asked = b"SSTARRPC" + bytes(4)
    count = LAST
    data = pcap([one.packets[-1] for one in (Connection(sport=1024 + at, dport=9999).segment(0, asked) for at in range(count))])
    inspector = Inspector([open_capture(io.BytesIO(data))], Options(findings=True))
    messages: dict[int | None, int] = {}
    named: list[tuple[int | None, int | None]] = []
    for batch in inspector.batches():
        for one in batch:
            if type(one) is Message:
                messages[one.conversation] = one.number
            elif type(one) is Exchange:
                named.append((one.conversation, one.request))
                assert inspector.asked[one.number][0].number == one.request
            elif type(one) is Finding and one.rule == "seastar-rpc.open-requests":
                named.append((one.conversation, *one.messages))
    assert named == [(at, messages[at]) for at in range(count) for _ in range(2)]


def test_retries_are_counted_from_attempt_to_attempt() -> None:
    tries = [Connection(begin=at * SECOND, sport=40000 + at).segment(0, flags=2) for at in range(4)]
    found = ends([pcap([*(packet for one in tries for packet in one.packets), udp(50 * SECOND)], nano=True)])
    loop = next(one for one in found if type(one) is Finding and one.rule.endswith("retry-loop"))
    assert "4 connections to 192.0.2.2:5552, one every 1 s" in loop.cause
    assert loop.time_ns == tries[-1].packets[-1].time_ns, "its time is that of its evidence"


def test_a_side_without_room_has_none_until_the_capture_ends() -> None:
    stalled = Connection().ready().segment(0, window=0)
    (found,) = [
        one
        for one in ends([pcap([*stalled.packets, udp(30 * SECOND)], nano=True)])
        if type(one) is Finding and one.rule == "tcp.zero-window"
    ]
    passed = 30 * SECOND - (stalled.packets[-1].time_ns - START_NS)
    assert found.severity == "warning"
    assert found.cause == f"the client has a zero window for {duration_text(passed)}: it does not read incoming data"
