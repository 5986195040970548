"""The parts that `streamdump latency` puts together: durations, bars, columns, and reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.latency.groups import Latencies
from streamdump.latency.sketch import Sketch
from streamdump.options import Options
from streamdump.render.clock import Clock
from streamdump.render.latency import _bar, _narrowed, _spark, text
from streamdump.render.terminal import PLAIN, cut
from streamdump.units import duration_text

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def latencies(interval_ns: int | None = None, groups: int = 100) -> Latencies:
    found = Latencies(interval_ns=interval_ns, groups=groups)
    inspector = Inspector([open_capture(GOLDEN / "seastar-rpc" / "timeout_expiry.pcap")], Options(pairs=True))
    for _ in inspector.batches():
        found.add(inspector.run.released_pairs())
    return found


@pytest.mark.parametrize("columns", [30, 80, 160])
def test_why_there_is_no_response_stands_below_its_group_on_a_terminal(columns: int) -> None:
    groups = text(latencies(), columns, PLAIN, Clock("r")).split("\n\n")[0].splitlines()
    assert [line for line in groups if "without" in line] == [cut("    without a response: deadline passed 7", columns)]


@pytest.mark.parametrize(("interval_ns", "form"), [(1_000_000_000, r"06:05:19"), (100_000_000, r"06:05:19\.\d00")])
def test_a_series_names_its_day_once_and_no_more_of_a_second_than_there_is(interval_ns: int, form: str) -> None:
    blocks = text(latencies(interval_ns, 1), 100, PLAIN, Clock("ud")).split("\n\n")
    (title, _, *body) = blocks[1].splitlines()
    assert title == f"every {duration_text(interval_ns)} of 2026-11-21, UTC"
    assert all(re.fullmatch(form, line.split()[0]) for line in body)
    assert {line.split()[1] for line in body} == {"Negotiation", "(others)"}
    assert [line.split()[:2] for line in blocks[0].splitlines() if line.startswith("seastar-rpc")] == [
        ["seastar-rpc", "Negotiation"],
        ["seastar-rpc", "(others)"],
    ]
    assert blocks[-1].splitlines()[0] == "seastar-rpc: 11 latencies"
    assert len(blocks) == 4


def test_bars_are_as_long_as_their_share() -> None:
    assert [_bar(share, 4) for share in (0, 0.0001, 0.5, 0.75 + 1 / 32, 1)] == ["", "▏", "██", "███▏", "████"]
    sketch = Sketch()
    for value in (100, *[7_000] * 4, *[10_000] * 40):
        sketch.add(value)
    assert _spark(sketch, [1000, 5000, 9000, 20_000]).rstrip() == "▁ ▁█"


def test_columns_are_no_narrower_than_they_must_be() -> None:
    assert [_narrowed([5, 9, 3], room) for room in (17, 16, 12, 1)] == [[5, 9, 3], [5, 8, 3], [4, 5, 3], [1, 1, 1]]
