"""What is remembered of sides that have no room."""

from __future__ import annotations

import io

import pytest

from streamdump.capture.files import open_capture
from streamdump.capture.link import LinkParser
from streamdump.diagnose import zero_window
from streamdump.diagnose.zero_window import Windows
from streamdump.model import Segment
from tests.bench.hostile import ip, pcap
from tests.support.work import steps


def segments(sides: int) -> list[Segment]:
    """One of each side, without room."""
    link = LinkParser()
    data = pcap(ip(b"x", (1_024 + side, 9_999), 1, 1, 24, window=0) for side in range(sides))
    found = [link.segment(packet, order) for batch in open_capture(io.BytesIO(data)) for order, packet in enumerate(batch)]
    return [segment for segment in found if segment is not None]


def test_the_work_for_a_side_does_not_grow_with_those_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    some, taken = segments(800), []
    for kept in (40, 400):
        monkeypatch.setattr(zero_window, "SIDES_KEPT", kept)
        windows = Windows()
        taken.append(steps(lambda windows=windows: [windows.feed(segment) for segment in some]))
    assert taken[1] < 1.1 * taken[0]


def test_those_forgotten_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_window, "SIDES_KEPT", 100)
    monkeypatch.setattr(zero_window, "RUNS_KEPT", 2)
    windows = Windows()
    for segment in segments(250):
        for window in (0, 9, 0, 9, 0, 9, 0):
            segment.window = window
            windows.feed(segment)
    assert len(windows._runs) == len(windows._shut) == 100
    assert {len(runs) for runs in windows._runs.values()} == {2}
