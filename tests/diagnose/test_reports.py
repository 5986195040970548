"""What `diagnose` concludes from captures of reported failures: every error and warning, the first as `diagnose` shows it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.talks import diagnosed, worst_first

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"

FOUND: dict[str, list[str]] = {
    "false_frame_too_large.pcap": [
        "warning tcp.lost-by-capture: 165 bytes reached their receiver and are not in the capture: the capture has lost packets, not the "
        "network",
    ],
}
"""By capture "severity rule: cause"."""


@pytest.mark.parametrize("name", FOUND)
def test_the_cause_of_a_reported_failure(name: str) -> None:
    found = worst_first(diagnosed(REPORTS / name)[0])
    assert [f"{one.severity} {one.rule}: {one.cause}" for one in found if one.severity != "note"] == FOUND[name]


def test_a_handshake_among_lost_bytes_has_no_limits_and_is_over() -> None:
    found, rows, _ = diagnosed(REPORTS / "false_frame_too_large.pcap")
    assert [(one.reached, one.ended) for one in rows] == [("ready", "server closes")]
    assert not [one.cause for one in found if "Tune" in one.cause]
