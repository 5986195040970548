"""Counts of a run as Prometheus reads them, under the names of OpenTelemetry's messaging conventions where these have one. Bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from ..filter import names_of
from ..latency.groups import end_of
from ..model import Ending, Finding, Gap, Message, Pair, Record
from ..protocols import ByProtocol
from .terminal import cut, visible

OTHER = "other"
"""Stands for every value beyond a limit."""

UNKNOWN = "unknown"
"""Stands for every command that no protocol has: some protocols would show what a peer wrote."""

LABEL_LIMIT = 100
"""The default limit of values of each optional label."""

SERIES = 2_000
"""Label sets of a metric, which is OpenTelemetry's default; further ones have `OTHER` as every optional label."""

CELLS = 128
"""Columns of a label's value."""

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Upper bounds of the buckets: the bounds that the conventions advise, and finer ones, as brokers nearby answer within a millisecond."""

_BOUNDS_NS = [round(bound * 1e9) for bound in BOUNDS_S]
_LIMITS = (*map(str, map(float, BOUNDS_S)), "+Inf")

SYSTEM, PROTOCOL, OPERATION = "messaging_system", "network_protocol_name", "messaging_operation_name"
STREAM, CLIENT, SERVER = "messaging_destination_name", "client_address", "server_address"

OPTIONAL = {"client": CLIENT, "server": SERVER, "stream": STREAM}
"""The labels whose values come from the traffic, by the words that request them."""

COMMAND = (SYSTEM, PROTOCOL, OPERATION)


class Metric(NamedTuple):
    """A metric by its name and unit (UCUM) in OpenTelemetry. `optional`: the labels that it can have besides."""

    name: str
    unit: str
    type: Literal["counter", "histogram"]
    help: str
    labels: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name in Prometheus, by OpenTelemetry's rules: dots become underscores, then follow the unit and the type."""
        suffixes = {"s": "seconds", "By": "bytes"}.get(self.unit, ""), "total" if self.type == "counter" else ""
        parts = self.name.split(".")
        return "_".join([*parts, *(one for one in suffixes if one and one not in parts)])


EVERY = (STREAM, CLIENT, SERVER)

DURATION = Metric(
    "messaging.client.operation.duration", "s", "histogram", "Time from a request to its response.", (*COMMAND, "error_type"), EVERY
)
SENT = Metric("messaging.client.sent.messages", "{message}", "counter", "Messages that producers sent.", COMMAND, EVERY)
CONSUMED = Metric(
    "messaging.client.consumed.messages", "{message}", "counter", "Messages that were delivered to consumers.", COMMAND, EVERY
)
REQUESTS = Metric("streamdump.requests", "{request}", "counter", "Requests by what became of them.", (*COMMAND, "outcome", "reason"), EVERY)
MESSAGES = Metric("streamdump.protocol.messages", "{message}", "counter", "Messages of the protocol.", (*COMMAND, "kind", "sender"), EVERY)
BYTES = Metric("streamdump.protocol.bytes", "By", "counter", "Bytes of these messages.", MESSAGES.labels, EVERY)
DAMAGED = Metric("streamdump.damaged.messages", "{message}", "counter", "Messages that could not be read completely.", COMMAND)
ENDED = Metric(
    "streamdump.connections.ended",
    "{connection}",
    "counter",
    "Connections by how they ended.",
    (PROTOCOL, "how", "sender"),
    (CLIENT, SERVER),
)
FINDINGS = Metric("streamdump.findings", "{finding}", "counter", "Findings of diagnose.", ("rule", "severity"))
GAPS = Metric("streamdump.gaps", "{gap}", "counter", "Gaps in byte streams.", (PROTOCOL, "reason"))
GAP_BYTES = Metric("streamdump.gap.bytes", "By", "counter", "Bytes missing or skipped in gaps of known size.", GAPS.labels)
PACKETS = Metric("streamdump.packets", "{packet}", "counter", "Packets read.", ())
DROPPED = Metric("streamdump.packets.dropped", "{packet}", "counter", "Packets that the kernel dropped.", ())
FAILURES = Metric("streamdump.internal.errors", "{error}", "counter", "Internal errors, which cost a part of the output.", ())

METRICS = (
    DURATION,
    SENT,
    CONSUMED,
    REQUESTS,
    MESSAGES,
    BYTES,
    DAMAGED,
    ENDED,
    FINDINGS,
    GAPS,
    GAP_BYTES,
    PACKETS,
    DROPPED,
    FAILURES,
)


class LabelValues:
    """Bounds the values of labels; a value stands for the same in every metric."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.full: set[str] = set()
        """Optional labels that have had more values."""
        self._commands = names_of().messages
        self._known: dict[str, dict[str, str]] = {label: {} for label in EVERY}

    def bounded(self, label: str, value: str) -> str:
        """Return what stands for a value: short, without characters that act on a terminal, and one of few."""
        if not value:
            return value
        if label == OPERATION:
            return value if value in self._commands else UNKNOWN
        if label not in self._known:
            return value
        known = self._known[label]
        found = known.get(value)
        if found is None:
            if len(known) >= self.limit:
                self.full.add(label)
                return OTHER
            found = known[value] = cut(visible(value), CELLS)
        return found


Cell = list[int]
"""Of counters, the number of each metric of a series; of a histogram, the durations by bucket, then their sum in nanoseconds."""


def count_duration(cell: Cell, duration_ns: int) -> None:
    """Count a duration; a negative one, of a response that was captured before its request, as 0: a sum must not fall."""
    duration_ns = max(0, duration_ns)
    cell[bisect_left(_BOUNDS_NS, duration_ns)] += 1
    cell[-1] += duration_ns


class Series(dict[tuple[str, ...], Cell]):
    """The values of some metrics with the same labels, by the values of these."""

    def __init__(self, metrics: Sequence[Metric], optional: Sequence[str], values: LabelValues) -> None:
        self.metrics = metrics
        self.labels = (*metrics[0].labels, *(label for label in optional if label in metrics[0].optional))
        self.optional = self.labels[len(metrics[0].labels) :]
        self._values = values
        self._size = len(BOUNDS_S) + 2 if metrics[0].type == "histogram" else len(metrics)

    def __missing__(self, key: tuple[str, ...]) -> Cell:
        """Return the cell of the label set that stands for `key`, which may be too long, or one too many."""
        bounded = tuple(map(self._values.bounded, self.labels, key))
        if bounded not in self and len(self) >= SERIES and self.optional:
            bounded = (*bounded[: -len(self.optional)], *[OTHER for _ in self.optional])
        found = self.get(bounded)
        if found is None:
            found = self[bounded] = [0] * self._size
        return found


class Table(NamedTuple):
    """A series at one moment."""

    metrics: Sequence[Metric]
    labels: tuple[str, ...]
    cells: dict[tuple[str, ...], Cell]


def _address(end: str | None) -> str:
    """Return an endpoint without its port, which in clients differs with every connection."""
    return "" if end is None else end.rpartition(":")[0].strip("[]")


def _side(record: Message | Ending, client: bool) -> str:
    sender = record.sender
    return "" if sender is None else _address(record.src if (sender == "client") == client else record.dst)


_OF_RECORDS: dict[str, Callable[[Any], str]] = {
    STREAM: lambda record: record.stream or "",
    CLIENT: lambda record: _side(record, True),
    SERVER: lambda record: _side(record, False),
}
_OF_PAIRS: dict[str, Callable[[Pair], str]] = {
    STREAM: lambda pair: pair.request.stream or "",
    CLIENT: lambda pair: _address(end_of(pair, True)),
    SERVER: lambda pair: _address(end_of(pair, False)),
}


class Metrics:
    """Counts the records and exchanges of a run. Memory is bounded by the number of label sets."""

    def __init__(self, labels: Iterable[str] = (), limit: int = LABEL_LIMIT) -> None:
        """`labels`: some of `OPTIONAL`, each with at most `limit` values."""
        optional = [OPTIONAL[one] for one in OPTIONAL if one in {*labels}]
        self.values = LabelValues(limit)

        def series(*metrics: Metric) -> Series:
            return Series(metrics, optional, self.values)

        self.durations = series(DURATION)
        self.traffic = series(SENT, CONSUMED)
        self.requests = series(REQUESTS)
        self.messages = series(MESSAGES, BYTES)
        self.damaged = series(DAMAGED)
        self.ended = series(ENDED)
        self.findings = series(FINDINGS)
        self.gaps = series(GAPS, GAP_BYTES)
        self._of_records = [_OF_RECORDS[one] for one in optional]
        self._of_pairs = [_OF_PAIRS[one] for one in optional]
        self._of_endings = [_OF_RECORDS[one] for one in self.ended.optional]
        self._systems = ByProtocol(lambda protocol: protocol.system or protocol.name)
        self._traffic_of = ByProtocol(lambda protocol: protocol.loaded.traffic)

    def add(self, records: Iterable[Record], pairs: Iterable[Pair]) -> None:
        """Count these records, and the exchanges that ended with them."""
        for record in records:
            match record:
                case Message():
                    self._message(record)
                case Ending():
                    self.ended[record.protocol or "", record.how, record.sender or "", *[one(record) for one in self._of_endings]][0] += 1
                case Finding():
                    self.findings[record.rule, record.severity][0] += 1
                case Gap():
                    counts = self.gaps[record.protocol, record.reason]
                    counts[0] += 1
                    counts[1] += record.size or 0
        for pair in pairs:
            self._pair(pair)

    def _message(self, message: Message) -> None:
        protocol, name = message.protocol, message.name
        command = self._systems[protocol], protocol, name
        more = [one(message) for one in self._of_records]
        counts = self.messages[*command, message.kind, message.sender or "", *more]
        counts[0] += 1
        counts[1] += message.size
        if message.fault is not None:
            self.damaged[command][0] += 1
        traffic_of = self._traffic_of[protocol]
        traffic = None if traffic_of is None else traffic_of(message)
        if traffic is not None and (traffic.published or traffic.delivered):
            counts = self.traffic[*command, *more]
            counts[0] += traffic.published
            counts[1] += traffic.delivered

    def _pair(self, pair: Pair) -> None:
        request, outcome = pair.request, pair.outcome
        command = self._systems[request.protocol], request.protocol, request.name
        more = [one(pair) for one in self._of_pairs]
        self.requests[*command, outcome, pair.reason or "", *more][0] += 1
        if pair.latency_ns is not None:
            count_duration(self.durations[*command, "refused" if outcome == "refused" else "", *more], pair.latency_ns)

    def snapshot(self, packets: int, failures: int, dropped: int | None) -> list[Table]:
        """Return the present values, for `text`; `dropped`: packets, None where no kernel counts them."""
        every = (self.durations, self.traffic, self.requests, self.messages, self.damaged, self.ended, self.findings, self.gaps)
        tables = [Table(one.metrics, one.labels, {key: cell[:] for key, cell in one.items()}) for one in every]
        totals = (PACKETS, packets), (DROPPED, dropped), (FAILURES, failures)
        return tables + [Table((metric,), (), {(): [value]}) for metric, value in totals if value is not None]


class _Collector:
    """Families as `generate_latest` reads them."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


def text(tables: Iterable[Table]) -> str:
    """Return values in Prometheus' text format."""
    from prometheus_client import generate_latest

    return generate_latest(_Collector([family for table in tables for family in _families(table)])).decode()


def _families(table: Table) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    for at, metric in enumerate(table.metrics):
        if metric.type == "histogram":
            histograms = HistogramMetricFamily(metric.exposed, metric.help, labels=table.labels)
            for key, (*buckets, total_ns) in table.cells.items():
                histograms.add_metric(key, [*zip(_LIMITS, accumulate(buckets), strict=True)], total_ns / 1e9)
            yield histograms
        else:
            counters = CounterMetricFamily(metric.exposed, metric.help, labels=table.labels)
            for key, cell in table.cells.items():
                # What publishes delivers nothing
                if cell[at] or metric not in (SENT, CONSUMED):
                    counters.add_metric(key, cell[at])
            yield counters
