"""What groups of exchanges count."""

from __future__ import annotations

from streamdump.latency.groups import LatencyGroup
from streamdump.latency.rows import times_of


def test_a_response_without_a_latency_counts_as_answered_and_in_no_percentile() -> None:
    group = LatencyGroup()
    group.note("answered", None, 1_000, None)
    group.note("answered", None, None, 5, None)
    group.note("refused", None, None, None)
    group.note("unanswered", "bytes lost", None, None)
    group.note("superseded", None, None, None)
    assert (group.count, group.answered, group.refused, group.reasons) == (5, 2, 1, {"bytes lost": 1, "superseded": 1})
    times = times_of(group.latency)
    assert times is not None
    assert (times.count, times.min_ns, times.max_ns) == (1, 1_000, 1_000)
    assert [times_of(one) for one in (group.handler, group.network, group.bound)] == [None, None, None]
