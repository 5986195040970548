"""The rows of `latency --json`, with members in the order of the JSON."""

from __future__ import annotations

import msgspec


class Bucket(msgspec.Struct, frozen=True):
    """The number of values from `low` up to, but excluding, `high`; None: no bound."""

    low: int | None
    high: int | None
    count: int


class Times(msgspec.Struct):
    """Quantiles of `count` durations; minimum, maximum and mean are exact."""

    count: int
    mean_ns: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p95_ns: int
    p99_ns: int
    p99_9_ns: int
    max_ns: int


class _Group(msgspec.Struct, kw_only=True):
    v: int = 1
    protocol: str
    command: str | None = None
    conversation: int | None = None
    server: str | None = None
    client: str | None = None
    stream: str | None = None
    verb: str | None = None
    # Only in groups by them
    process: str | msgspec.UnsetType | None = msgspec.UNSET
    pid: int | str | msgspec.UnsetType | None = msgspec.UNSET
    container: str | msgspec.UnsetType | None = msgspec.UNSET
    pod: str | msgspec.UnsetType | None = msgspec.UNSET
    namespace: str | msgspec.UnsetType | None = msgspec.UNSET
    host: str | msgspec.UnsetType | None = msgspec.UNSET
    others: bool = False
    count: int
    answered: int
    refused: int
    unanswered: int
    reasons: dict[str, int]
    latency: Times | None
    handler: Times | None
    network: Times | None
    network_at_most: Times | None


class LatencyRow(_Group, tag_field="record", tag="latency", kw_only=True):
    """One group."""

    histogram: list[Bucket]


class IntervalRow(_Group, tag_field="record", tag="interval", kw_only=True):
    """One group in one interval."""

    time: str
    time_ns: int
    interval_ns: int


class SlowRow(msgspec.Struct, tag_field="record", tag="slow"):
    """One of the slowest exchanges, with the packets of its request and of its response."""

    v: int
    time: str
    time_ns: int
    conversation: int
    src: str
    dst: str
    protocol: str
    name: str
    verb: str | None
    id: int | str | None
    request: int
    response: int
    outcome: str | None
    file: int
    request_packets: tuple[int | None, int]
    response_packets: tuple[int | None, int]
    latency_ns: int
