"""What is counted for Prometheus, under which names, and that hostile traffic can fill no memory with it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Ending, Message, Options, Pair
from streamdump.render import metrics
from streamdump.render.metrics import BOUNDS_S, METRICS, OTHER, UNKNOWN, LabelValues, Metrics, count_duration
from tests.filter.test_language import message
from tests.support.captures import GOLDEN


def counted(found: Metrics, metric: str) -> dict[tuple[str, ...], Any]:
    return dict(getattr(found, metric))


def asked(number: int, **changed: Any) -> Message:
    """A request of RabbitMQ Streams."""
    return message(number, kind="request", sender="client", src="10.0.0.7:40000", dst="[2001:db8::1]:5552", outcome=None, **changed)


def test_names_follow_the_rules_of_opentelemetry() -> None:
    assert [one.exposed for one in METRICS] == [
        "messaging_client_operation_duration_seconds",
        "messaging_client_sent_messages_total",
        "messaging_client_consumed_messages_total",
        "streamdump_requests_total",
        "streamdump_protocol_messages_total",
        "streamdump_protocol_bytes_total",
        "streamdump_damaged_messages_total",
        "streamdump_connections_ended_total",
        "streamdump_findings_total",
        "streamdump_gaps_total",
        "streamdump_gap_bytes_total",
        "streamdump_packets_total",
        "streamdump_packets_dropped_total",
        "streamdump_internal_errors_total",
    ]


def test_buckets_include_their_upper_bounds() -> None:
    cell = [0] * (len(BOUNDS_S) + 2)
    for duration_ns in (-5, 0, 100_000, 100_001, 5_000_000, 10_000_000_000, 10_000_000_001):
        count_duration(cell, duration_ns)
    found = dict(zip((*BOUNDS_S, None), cell[:-1], strict=True))
    assert {bound: number for bound, number in found.items() if number} == {0.0001: 3, 0.00025: 1, 0.005: 1, 10: 1, None: 1}
    assert cell[-1] == 20_005_200_002
    # The bounds that the conventions advise are among them
    assert {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10} <= {*BOUNDS_S}


def test_values_of_a_label_are_few_short_and_harmless() -> None:
    values = LabelValues(3)
    label = metrics.STREAM
    assert values.bounded(label, "") == ""
    assert values.bounded(label, "a\x1b[31m\u202e\n\ud800") == "a\\x1b[31m\\u202e\\n\\ud800"
    assert values.bounded(label, "a\\x1b[31m\\u202e\\n\\ud800") == "a\\x1b[31m\\u202e\\n\\ud800"
    assert len(values.bounded(label, "x" * 60_000)) == metrics.CELLS and not values.full
    assert values.bounded(label, "one too many") == OTHER and values.full == {label}
    assert values.bounded(metrics.CLIENT, "one too many") == "one too many"
    assert values.bounded(metrics.OPERATION, "Publish") == "Publish"
    assert [values.bounded(metrics.OPERATION, name) for name in ("unknown 0x0777", "FROBNICATE", "x" * 60_000)] == [UNKNOWN] * 3


@pytest.mark.parametrize("labels", [(), ("stream", "client", "server")], ids=len)
def test_memory_does_not_grow_with_what_peers_invent(labels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES", 50)
    found = Metrics(labels, limit=10)
    for number in range(2_000):
        request = asked(number, name=f"unknown 0x{number:04x}" if number % 2 else "Open", stream=f"stream {number}")
        request.src = f"10.0.{number >> 8}.{number & 255}:{1024 + number}"
        found.add([request], [Pair(request, None, "unanswered", "closed", None, None)])
    requests = counted(found, "requests")
    assert sum(counts[0] for counts in requests.values()) == 2_000
    assert len(requests) <= (50 + 2 if labels else 2)
    if labels:
        assert {key[-1] for key in requests} == {*(f"stream {number}" for number in range(10)), OTHER}
        assert {key[-2] for key in requests} <= {"2001:db8::1", OTHER}


def test_label_sets_are_bounded_where_each_label_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES", 50)
    found = Metrics(("stream", "client"), limit=10)
    for stream, client in itertools.product(range(10), range(10)):
        request = asked(1, stream=f"s{stream}")
        request.src = f"10.0.0.{client}:1"
        found.add([request], [])
    messages = counted(found, "messages")
    assert len(messages) == 51 and messages["rabbitmq", "rabbitmq-stream", "Open", "request", "client", OTHER, OTHER][0] == 50


def test_ends_are_those_of_client_and_server_whoever_sends() -> None:
    found = Metrics(("client", "server"))
    request = asked(1)
    response = message(2, src="[2001:db8::1]:5552", dst="10.0.0.7:40000", stream="s")
    ending = Ending(1, 3, "", 0, 0, response.src, response.dst, "server", None, "refused", None, 0, 0)
    unknown = message(4, sender=None)
    found.add([request, response, ending, unknown], [Pair(request, response, "answered", None, 1_000_000, None)])
    ends = [key[-2:] for key in counted(found, "messages")]
    assert ends == [("10.0.0.7", "2001:db8::1"), ("10.0.0.7", "2001:db8::1"), ("", "")]
    assert list(counted(found, "ended")) == [("", "refused", "server", "10.0.0.7", "2001:db8::1")]
    assert list(counted(found, "durations")) == [("rabbitmq", "rabbitmq-stream", "Open", "", "10.0.0.7", "2001:db8::1")]


def test_the_size_of_batches_does_not_matter() -> None:
    def read(rows: int | None) -> list[Any]:
        inspector = Inspector(
            [open_capture(str(GOLDEN / "rabbitmq-stream" / "publish_error_310.pcap"))], Options(pairs=True, findings=True), rows
        )
        found = Metrics(("stream",))
        for records in inspector.batches():
            found.add(records, inspector.run.released_pairs())
        return [table.cells for table in found.snapshot(0, 0, None)]

    first = read(None)
    assert first[0] and first[2] and first == read(1) == read(7)
