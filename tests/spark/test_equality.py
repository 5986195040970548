"""The central promise, without Spark: whatever is cut, sorted and put together again says what a plain run says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Options
from streamdump.spark import flows
from streamdump.spark.flows import CaptureFacts
from streamdump.spark.tasks import TaskInput, dissected
from tests.spark.captures import SNAP, fragments, generated, records, rotated, troubled
from tests.spark.comparing import plain, without_spark
from tests.support.frames import (
    ACK,
    START_NS,
    SYN,
    A,
    B,
    Packet,
    enhanced,
    ethernet,
    interface,
    ip4,
    pcap,
    pcapng,
    section,
    simple,
    sll,
    tcp,
)

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("equality"))


@pytest.mark.parametrize("family", sorted(path.name for path in GOLDEN.iterdir()))
def test_merged_golden_captures(family: str) -> None:
    files = sorted((GOLDEN / family).glob("*.pcap*"))
    _, found = without_spark(files, 5_000)
    assert found == plain(files)


@pytest.mark.parametrize(("split", "block"), [(10_000, 100), (50_000, 1), (1 << 30, 10_000)])
def test_any_splits_and_blocks(capture: Path, split: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "BLOCK", block)
    _, found = without_spark([capture], split)
    assert found == plain([capture])
    assert len(found["messages"]) > 3000


def test_conversations_across_files(capture: Path, tmp_path: Path) -> None:
    files = rotated(tmp_path / "rotated", records(capture))
    plan, found = without_spark(files, 20_000)
    assert len(plan.splits) > 10
    assert found == plain(files)


def test_packets_out_of_order_repeated_and_lost(capture: Path, tmp_path: Path) -> None:
    dice = random.Random(3)
    packets = troubled(records(capture), dice, 100)
    path = tmp_path / "error.pcap"
    path.write_bytes(pcap(packets, nano=True, snap=SNAP))
    _, found = without_spark([path], 20_000)
    assert found == plain([path])
    assert found["gaps"]


def test_a_file_with_fragments_is_one_range(capture: Path, tmp_path: Path) -> None:
    packets: list[Packet] = []
    late: list[Packet] = []
    for at, one in enumerate(records(capture)):
        if at % 9 == 5 and len(one.data) > 120:
            first, second = fragments(one, at & 0xFFFF, 48)
            packets.append(first)
            (late if at % 2 else packets).append(second)
        else:
            packets.append(one)
        if len(late) > 20:
            packets.append(late.pop(0))
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(packets + late, nano=True, snap=SNAP))
    found_plan, found = without_spark([path], 20_000)
    (split,) = found_plan.splits
    assert (split.packets, split.size) == (len(packets + late), path.stat().st_size)
    assert found == plain([path])


def test_packets_without_times(capture: Path, tmp_path: Path) -> None:
    blocks = [simple(one) if at % 500 == 499 else enhanced(one, ticks=one.time_ns) for at, one in enumerate(records(capture))]
    mixed = tmp_path / "mixed.pcapng"
    mixed.write_bytes(b"".join([section(), interface(resolution=9), *blocks]))
    untimed = GOLDEN.parent / "samples" / "reports" / "spb_no_times.pcapng"
    _, found = without_spark([mixed, untimed], 20_000)
    assert found == plain([mixed, untimed])
    assert any('"latency_ns":null' in one and '"outcome":"answered"' in one for one in found["messages"])


def test_packets_that_a_cooked_capture_has_twice(capture: Path, tmp_path: Path) -> None:
    dice = random.Random(5)
    packets: list[Packet] = []
    late = 0
    for one in records(capture):
        packets.append(Packet(sll(one.data[14:], 4), one.time_ns))
        if dice.random() < 0.8:
            after = dice.choice((0, 500, 2_000_000))
            packets.append(Packet(sll(one.data[14:], 0), one.time_ns + after))
            late += after > 500 and len(one.data) > 34 + (one.data[46] >> 4) * 4
        if dice.random() < 0.1:
            packets.append(Packet(sll(ip4(b"\0" * 8, protocol=17), dice.randrange(5)), one.time_ns))
    packets.sort(key=lambda one: one.time_ns)
    files = [tmp_path / "a.pcap", tmp_path / "b.pcapng"]
    files[0].write_bytes(pcap(packets[::3], link=113, nano=True, snap=SNAP))
    files[1].write_bytes(pcapng([one for at, one in enumerate(packets) if at % 3], link=113))
    plan, found = without_spark(files, 30_000)
    assert len(plan.splits) == 2, "a range each"
    assert found == plain(files)
    inspector = Inspector([open_capture(file) for file in files])
    assert list(inspector.records())
    # A copy counts as one where it comes too late
    wanted = {(row.client, row.server): row.retransmissions for row in inspector.rows()}
    conversations = [row for results in dissected(TaskInput(plan.splits), Options(), CaptureFacts()) for row in results.conversations]
    assert {(row.client, row.server): row.retransmissions for row in conversations} == wanted
    assert sum(wanted.values()) == late > 100


def test_times_that_go_back_keep_each_file_in_its_own_order(tmp_path: Path) -> None:
    def talk(port: int, start: int, step: int) -> list[Packet]:
        frame = bytes.fromhex("00000004 0017 0001")  # Heartbeat
        packets = [Packet(ethernet(ip4(tcp(sport=port, seq=999, flags=SYN), src=A, dst=B)), start)]
        return packets + [
            Packet(ethernet(ip4(tcp(frame, sport=port, seq=1000 + 8 * at, flags=ACK), src=A, dst=B)), start + at * step)
            for at in range(300)
        ]

    files = [tmp_path / "a.pcap", tmp_path / "b.pcap"]
    files[0].write_bytes(pcap(talk(1000, START_NS, -5) + talk(1001, START_NS - 700, 7), nano=True, snap=SNAP))
    files[1].write_bytes(pcap(talk(1001, START_NS - 500, 3) + talk(1000, START_NS - 2000, 4), nano=True, snap=SNAP))
    _, found = without_spark(files, 5_000)
    assert found == plain(files)
