"""Packets without times (Simple Packet Blocks of pcapng): nothing is known of how long anything took in their conversations."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.diagnose.iggy import STORM
from streamdump.inspector import Inspector
from streamdump.model import Ending, Exchange, Finding, Message, Options, Record
from streamdump.protocols.rabbitmq import layouts
from streamdump.render.clock import Clock
from tests.diagnose.talks import MS, SECOND, Connection, capture
from tests.diagnose.test_iggy import NOTHING_POLLED, polling
from tests.support.frames import START_NS, Packet, enhanced, interface, section, simple

CAPTURE = Path(__file__).parents[1] / "captures" / "samples" / "reports" / "spb_no_times.pcapng"


def mixed(packets: Iterable[Packet], first: int = 0, last: int = 1 << 30) -> bytes:
    """A capture in which the packets from `first` to `last` have no times."""
    blocks = [simple(one) if first <= at <= last else enhanced(one, ticks=one.time_ns) for at, one in enumerate(packets)]
    return b"".join([section(), interface(resolution=9), *blocks])


def read(*sources: bytes, rows: int | None = None) -> tuple[Inspector, list[Record]]:
    inspector = Inspector([open_capture(io.BytesIO(one)) for one in sources], Options(findings=True, exchanges=True), rows, finite=True)
    return inspector, list(inspector.records())


def findings(records: list[Record]) -> list[str]:
    return [f"{one.severity} {one.rule}: {one.cause}" for one in records if type(one) is Finding]


def test_capture_without_times() -> None:
    inspector, records = read(CAPTURE.read_bytes())
    assert inspector.link.counters.untimed == 47
    assert sum(type(one) is Message for one in records) == 20
    for one in records:
        assert one.time_ns == 0 and not isinstance(one, Finding)
        if isinstance(one, Message | Exchange):
            assert one.latency_ns is None
        if isinstance(one, Ending):
            assert one.quiet_ns is None


@pytest.mark.parametrize("rows", [1, 7, None])
def test_latency_and_waiting_where_some_packets_have_no_time(rows: int | None) -> None:
    """A conversation lasts no time from its first packet without one on, whatever times those behind it have."""
    talk = Connection().ready().client(layouts.CREATE, stream="s1", arguments=[]).server(layouts.CREATE_RESPONSE)
    before = len(talk.packets)
    talk.wait(SECOND).client(layouts.CREATE, stream="s2", arguments=[]).wait(SECOND).server(layouts.CREATE_RESPONSE)
    talk.client(layouts.CREATE, stream="s3", arguments=[]).wait(60 * SECOND)
    other = Connection(70 * SECOND, 40001).ready().goodbye()
    times = talk.packets[before - 1].time_ns
    _, records = read(mixed([*talk.packets, *other.packets], before, before), rows=rows)
    pairs = [one for one in records if type(one) is Exchange and one.conversation == 0 and one.name == "Create"]
    assert [(one.latency_ns, one.waited_ns, one.time_ns) for one in pairs] == [
        (MS, None, times),
        (None, None, times),
        (None, None, times),
    ]
    assert findings(records) == [
        "note rabbitmq-stream.open-requests: Create has no answer when the capture ends",
    ]
    assert all(one.latency_ns is not None for one in records if type(one) is Exchange and one.conversation == 1)


def test_end_of_a_connection_without_times() -> None:
    talk = Connection().ready().client(layouts.CREATE, stream="s1", arguments=[]).wait(20 * SECOND).fin(1)
    _, records = read(mixed(talk.packets))
    assert findings(records) == [
        "error rabbitmq-stream.open-requests: the server closes the connection after Create from the client, while Create has no answer",
    ]


def test_empty_polls_without_times_are_no_storm() -> None:
    _, records = read(mixed(polling(STORM, NOTHING_POLLED).packets))
    assert findings(records) == [f"note iggy.empty-polls: {STORM} polls of 1/1 return no message"]


def test_merged_with_a_capture_that_has_times() -> None:
    """Relative times count from the first packet that has one."""
    begun: list[int] = []
    timed = capture(Connection(0, 40001).ready().goodbye())
    inspector = Inspector([open_capture(io.BytesIO(one)) for one in (CAPTURE.read_bytes(), timed)], Options(), finite=True)
    clock = Clock()
    inspector.begins += [clock.begin, begun.append]
    records = [one for one in inspector.records() if type(one) is Message]
    assert begun == [START_NS]
    assert {clock.text(one.time_ns, one.time) for one in records if one.file == 0} == {"-"}
    assert next(clock.text(one.time_ns, one.time) for one in records if one.file == 1) == "0.003000"
    assert all((one.latency_ns is None) == (one.file == 0) for one in records if one.request is not None)


@pytest.mark.parametrize("form", ["r", "ad", "ud", "e", "d", "dd"])
def test_no_time_is_written(form: str) -> None:
    assert Clock(form).text(0, "1970-01-01T00:00:00.000000000Z") == "-"  # type: ignore[arg-type]
