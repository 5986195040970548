"""Reassembled bytes of real captures against tshark's.

Not `big_reordered`, where tshark loses bytes, nor captures with gaps, for which it writes a text of its own into the bytes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.segments import Stepwise, reassembled

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"

CAPTURES = [
    "iggy/py070-reorder.pcap",
    "mewbase/cut-duplicated.pcap",
    "mewbase/cut-overlap.pcap",
    "mewbase/cut-reordered.pcap",
    "mewbase/cut-tiny-segments.pcap",
    "rabbitmq-stream/duplicated_310.pcap",
    "rabbitmq-stream/overlapping_405.pcap",
    "rabbitmq-stream/reordered_310.pcap",
    "rabbitmq-stream/seq_wrap_405.pcap",
    "rabbitmq-stream/small_mss_405.pcap",
    "seastar-rpc/big_mtu1500.pcap",
    "seastar-rpc/inflight_duplicates.pcap",
    "seastar-rpc/out_of_order_overlap.pcap",
]


def followed(path: Path, index: int) -> dict[str, bytes]:
    """What tshark says each endpoint of a conversation sent."""
    command = ["tshark", "-r", str(path), "-q", "-z", f"follow,tcp,raw,{index}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    nodes = [line.split(": ", 1)[1] for line in lines if line.startswith("Node ")]
    body = [line for line in lines if not line.startswith(("=", "Follow", "Filter", "Node"))]
    one = "".join(line for line in body if not line.startswith("\t"))
    two = "".join(line.strip() for line in body if line.startswith("\t"))
    return {nodes[0]: bytes.fromhex(one), nodes[1]: bytes.fromhex(two)}


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("name", CAPTURES)
def test_same_bytes_as_tshark(name: str) -> None:
    stories = reassembled(GOLDEN / name)
    assert stories
    for story in stories:
        ours = dict(zip(story.conversation.endpoints, (story.bytes(0), story.bytes(1)), strict=True))
        assert ours == followed(GOLDEN / name, story.conversation.index)


@pytest.mark.parametrize("name", [*CAPTURES, "seastar-rpc/big_reordered.pcap", "rabbitmq-stream/lost_segments_405.pcap"])
def test_the_branch_for_segments_that_follow_never_shows(name: str) -> None:
    plain = reassembled(GOLDEN / name, Stepwise)
    assert [story.summary() for story in reassembled(GOLDEN / name)] == [story.summary() for story in plain]
