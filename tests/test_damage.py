"""Beside damage nothing is made up: a sample of what `tests.bench.sweep` does to all golden captures."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.bench.sweep import GOLDEN, sweep
from tests.support.rewrite import packets

SAMPLE, PACKETS = 9, 160
"""Captures of each family, of at most so many packets."""

READ = {"iggy": 0.75, "mewbase": 0.6, "rabbitmq-stream": 0.6, "seastar-rpc": 0.55}
"""The least share of the messages that is read, where it is known."""

FAMILIES = sorted(path.name for path in GOLDEN.iterdir() if any(path.glob("*.pcap")))


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_made_up_beside_damage(family: str) -> None:
    paths = [path for path in sorted((GOLDEN / family).glob("*.pcap")) if len(packets(path)) <= PACKETS]
    count: Counter[str] = Counter()
    for path, variant, score in sweep(random.Random(family).sample(paths, min(SAMPLE, len(paths))), 1):
        assert (path.name, variant.kind, variant.what, score.invented, score.wrong) == (path.name, variant.kind, variant.what, [], [])
        count.update(messages=score.messages, read=score.read)
    assert count["read"] >= READ.get(family, 0) * count["messages"], count["read"] / count["messages"]
