"""Metrics as Prometheus reads them, and what the other commands report of the same traffic."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamdump.filter import names_of
from streamdump.render.metrics import BOUNDS_S
from tests.support.peers import Capture, free_port
from tests.support.waiting import PATIENCE, until

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""By name and labels."""

Records = list[dict[str, Any]]

PROTOCOL, COMMAND = "network_protocol_name", "messaging_operation_name"
DURATION = "messaging_client_operation_duration_seconds"


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read the text format with Prometheus' own reader for Python; labels without a value are left out."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = one.name, frozenset((name, value) for name, value in one.labels.items() if value)
            assert key not in found, "Prometheus refuses a scrape with two samples of the same labels"
            found[key] = one.value
    return found


def by(found: Samples, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Add up the samples of a name by these labels, without zeros."""
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (one, pairs), value in found.items():
        if one == name:
            sums[tuple(dict(pairs).get(label, "") for label in labels)] += value
    return {key: value for key, value in sums.items() if value}


def _counted(rows: Iterable[tuple[tuple[Any, ...], int]]) -> dict[tuple[str, ...], int]:
    sums: Counter[tuple[str, ...]] = Counter()
    for key, number in rows:
        sums[tuple("" if part is None else part for part in key)] += number
    return {key: value for key, value in sums.items() if value}


def _command(row: Mapping[str, Any], key: str = "name") -> tuple[str, str]:
    return row["protocol"], row[key] if row[key] in names_of().messages else "unknown"


def compare(found: Samples, records: Callable[..., Records]) -> None:
    """Compare metrics with the output of `latency`, `stats`, `diagnose` and `--json`; `records` returns that of an argv."""
    latency = [row for row in records("latency", "--json") if row["record"] == "latency"]
    requests = by(found, "streamdump_requests_total", PROTOCOL, COMMAND, "outcome", "reason")
    outcomes: list[tuple[tuple[Any, ...], int]] = []
    for row in latency:
        reasons = {("superseded" if why == "superseded" else "unanswered", why): n for why, n in row["reasons"].items()}
        ended = {("answered", ""): row["answered"], ("refused", ""): row["refused"], **reasons}
        outcomes += [((*_command(row, "command"), *how), number) for how, number in ended.items()]
    without = {(*key[:3], "superseded" if key[2] == "superseded" else key[3]): value for key, value in requests.items()}
    assert without == _counted(outcomes)
    measured = [row for row in latency if row["latency"] is not None]
    counts = by(found, f"{DURATION}_count", PROTOCOL, COMMAND)
    assert counts == _counted((_command(row, "command"), row["latency"]["count"]) for row in measured)
    totals = _counted((_command(row, "command"), row["latency"]["mean_ns"] * row["latency"]["count"]) for row in measured)
    for key, seconds in by(found, f"{DURATION}_sum", PROTOCOL, COMMAND).items():
        # The mean is an integer number of nanoseconds
        assert abs(seconds * 1e9 - totals[key]) <= counts[key] + 1e-3 * seconds or min(row["latency"]["min_ns"] for row in measured) < 0
    _compare_buckets(found, records("--json", "--exchanges", "--bytes", "omit"))
    _compare_counts(found, records)


def reader(path: Path, *options: str) -> Callable[..., list[dict[str, Any]]]:
    """Return what reads a capture with the options of a command."""

    def records(*argv: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "streamdump", *argv, *options, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return records


def _compare_buckets(found: Samples, records: Records) -> None:
    sums: Counter[tuple[str, str, str]] = Counter()
    for one in records:
        if one["record"] == "exchange" and one["latency_ns"] is not None:
            first = bisect_left([round(bound * 1e9) for bound in BOUNDS_S], one["latency_ns"])
            sums.update((*_command(one), bound) for bound in (*map(str, map(float, BOUNDS_S)), "+Inf")[first:])
    buckets = by(found, f"{DURATION}_bucket", PROTOCOL, COMMAND, "le")
    assert {(*key[:2], key[2] if key[2] == "+Inf" else str(float(key[2]))): value for key, value in buckets.items()} == dict(sums)


def _compare_counts(found: Samples, records: Callable[..., Records]) -> None:
    stats = records("stats", "--json")
    rows = [row for row in stats if row["record"] == "command"]
    for name, key in (("streamdump_protocol_messages_total", "count"), ("streamdump_protocol_bytes_total", "bytes")):
        expected = _counted(((*_command(row), row["kind"], row["sender"]), row[key]) for row in rows)
        assert by(found, name, PROTOCOL, COMMAND, "kind", "sender") == expected
    streams = [row for row in stats if row["record"] == "stream"]
    for name, key in (("messaging_client_sent_messages_total", "published"), ("messaging_client_consumed_messages_total", "delivered")):
        assert by(found, name, PROTOCOL) == _counted(((row["protocol"],), row[key]) for row in streams)
    (total,) = [row for row in stats if row["record"] == "total"]
    assert by(found, "streamdump_packets_total") == _counted([((), total["packets"])])
    assert sum(by(found, "streamdump_damaged_messages_total").values()) == total["faults"]
    every = records("--json", "--findings", "--bytes", "omit")
    for name, record, labels, keys in (
        ("streamdump_findings_total", "finding", ("rule", "severity"), ("rule", "severity")),
        ("streamdump_connections_ended_total", "ending", (PROTOCOL, "how", "sender"), ("protocol", "how", "sender")),
        ("streamdump_gaps_total", "gap", (PROTOCOL, "reason"), ("protocol", "reason")),
    ):
        mine = [one for one in every if one["record"] == record]
        assert by(found, name, *labels) == _counted((tuple(one[key] for key in keys), 1) for one in mine)
        if record == "gap":
            assert sum(by(found, "streamdump_gap_bytes_total").values()) == sum(one["size"] or 0 for one in mine)


def endpoint_of(capture: Capture) -> str:
    """Wait until a capture serves metrics, and return where."""
    capture.tells("/metrics\n")
    return capture.told.decode().partition("serving ")[2].split()[0]


@contextmanager
def prometheus(folder: Path, address: str) -> Iterator[str]:
    """A Prometheus of its own on the loopback interface that scrapes an address every second: where it answers queries."""
    server = shutil.which("prometheus")
    if server is None:
        pytest.skip("prometheus is not installed")
    target = address.removeprefix("http://").removesuffix("/metrics")
    settings = {"job_name": "streamdump", "static_configs": [{"targets": [target]}]}
    # JSON is YAML
    (folder / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [settings]}))
    own = f"127.0.0.1:{free_port()}"
    command = [server, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={own}"]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process:
        try:
            until(lambda: _answers(f"http://{own}/-/ready"), process)
            yield f"http://{own}"
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        get(address)
    except OSError:
        return False
    return True


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PATIENCE) as response:
        text: str = response.read().decode()
    return text


def held(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the latest values that a Prometheus has of us, except those it adds about its scrapes."""
    query = urllib.parse.quote('{job="streamdump",__name__=~"(streamdump|messaging)_.*"}')
    answer = json.loads(get(f"{address}/api/v1/query?query={query}"))
    assert answer["status"] == "success", answer
    found = {}
    for one in answer["data"]["result"]:
        labels = {name: value for name, value in one["metric"].items() if name not in ("job", "instance")}
        found[labels.pop("__name__"), frozenset(labels.items())] = float(one["value"][1])
    return found


def scraped(address: str, endpoint: str) -> Samples:
    """Wait until a Prometheus has what an endpoint serves, and return that."""
    found: list[Samples] = []

    def same() -> bool:
        found[:] = [held(address)]
        # Two readers write the bound of a bucket in two ways
        return _normal(found[0]) == _normal(samples(get(endpoint)))

    until(same)
    return found[0]


def _normal(found: Samples) -> Samples:
    def bound(name: str, value: str) -> str:
        return str(float(value)) if name == "le" else value

    return {(name, frozenset((label, bound(label, value)) for label, value in pairs)): value for (name, pairs), value in found.items()}
