"""Packets of golden captures that come in lots, under any options: they say what all packets at once say."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamdump.protocols.seastar.dictionaries import load_dictionaries
from streamdump.protocols.seastar.verbs import Verbs
from tests.spark.lots import FOREVER, at_once, in_lots, packets
from tests.support.captures import CAPTURES, GOLDEN, capture_name, every_family

DICTIONARIES = load_dictionaries(str(path) for path in sorted((GOLDEN / "seastar-rpc").glob("*.dict")))

SHORT = 25
"""Captures of so few packets are cut after each of them."""


def places(count: int, number: int = 8) -> list[int]:
    """Where to cut: after every packet, or at so many places that are not alike for captures of one length."""
    if count <= SHORT:
        return list(range(1, count))
    return sorted(random.Random(count).sample(range(1, count), number))


@every_family(CAPTURES)
def test_golden_captures(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            cuts = places(len(packets([path])))
            assert in_lots([path], cuts) == at_once([path])


def test_answers_that_come_in_trouble_only() -> None:
    path = GOLDEN / "rabbitmq-stream" / "credit_flow_405.pcap"
    expected = at_once([path])
    assert any('"name":"Credit"' in line and '"request":[' in line for line in expected["messages"])
    assert in_lots([path], list(range(1, len(packets([path]))))) == expected


def test_user_messages_that_wait_for_responses_are_carried() -> None:
    options = replace(FOREVER, entries=True)
    names = (
        "deliver_v2_405",
        "publish_error_310",
        "consumer_update_sac_436",
        "publishers_310",
        "credit_flow_405",
        "py090-basic",
        "java-sub",
    )
    found = [path for path in CAPTURES if path.stem in names]
    for path in found:
        expected = at_once([path], options)
        assert in_lots([path], places(len(packets([path])), 15), options) == expected and expected["entries"], path.stem
    assert len(found) == len(names)


CHOSEN = (
    "iggy/py090-errors.pcap",
    "iggy/py080-errors.pcap",
    "iggy/seed-lossy.pcap",
    "mewbase/java-types.pcap",
    "rabbitmq-stream/sasl_errors_436.pcap",
    "rabbitmq-stream/midstream_310.pcap",
    "rabbitmq-stream/lost_segments_405.pcap",
    "seastar-rpc/lz4_snap120.pcap",
    "seastar-rpc/scylla_v3_dictionary.pcap",
    "seastar-rpc/scylla_v3_lost.pcap",
    "seastar-rpc/timeout_midstream.pcap",
)


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes_as": "base64", "show_secrets": True},
        {"bytes_as": "omit", "verbs": Verbs({1: "one", 2: "two"}, frozenset((2,)))},
        {"bytes_as": "text", "undecided_limit": 40},
        {"dictionaries": DICTIONARIES},
        {"decode_as": tuple((port, "seastar-rpc", "rpc") for port in (5552, 8090, 7451, 7000))},
        {"decode_as": tuple((port, "iggy", None) for port in (5552, 8090, 7451, 7000))},
        {"frame_limit": 100, "waiting_limit": 600},
        {"open_limit": 1, "undecided_limit": 0},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_options(changes: dict[str, Any]) -> None:
    options = replace(FOREVER, **changes)
    for name in CHOSEN:
        path = GOLDEN / name
        cuts = places(len(packets([path])), 5)
        assert in_lots([path], cuts, options) == at_once([path], options), name


@pytest.mark.parametrize("family", sorted(path.name for path in GOLDEN.iterdir()))
def test_merged_golden_captures(family: str) -> None:
    files = sorted((GOLDEN / family).glob("*.pcap*"))
    cuts = places(len(packets(files)), 4)
    assert in_lots(files, cuts) == at_once(files)
