"""The benchmark that compares checkouts runs on this one."""

from __future__ import annotations

import pytest

from tests.bench.compare import STAGES
from tests.support.captures import GOLDEN


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_counts_something(stage: str) -> None:
    assert STAGES[stage](str(GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap")) > 0
