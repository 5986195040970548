"""Captures of several points: one network, or each its own."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import PipelineSettings
from streamdump.spark.rotation import Rotation
from tests.spark.captures import SNAP, fragments, generated, records
from tests.spark.comparing import same, tables_of, told
from tests.spark.here import Here, go
from tests.spark.test_delta import apart
from tests.support.frames import Packet, pcap, sll


def write(path: Path, packets: list[Packet], link: int = 1) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pcap(packets, link=link, nano=True, snap=SNAP))
    return path


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("points"), 1200, 4))


def shifted(packets: list[Packet]) -> list[Packet]:
    """Other connections with the same addresses at the same time."""
    found = []
    for one in packets:
        (sequence,) = struct.unpack_from(">I", one.data, 38)
        data = one.data[:38] + struct.pack(">I", sequence + 0x1234_5678 & 0xFFFF_FFFF) + one.data[42:]
        found.append(Packet(data, one.time_ns + 777))
    return found


def plainly(packets: list[Packet]) -> list[Packet]:
    return packets


def in_fragments(packets: list[Packet]) -> list[Packet]:
    found: list[Packet] = []
    for at, one in enumerate(packets):
        found += fragments(one, at // 3, 48) if at % 3 == 0 and len(one.data) > 120 else [one]
    return found


def cooked(packets: list[Packet]) -> list[Packet]:
    dice = random.Random(4)
    found = [Packet(sll(one.data[14:], 4), one.time_ns) for one in packets]
    found += [Packet(sll(one.data[14:], 0), one.time_ns + 500) for one in packets if dice.random() < 0.7]
    return sorted(found, key=lambda one: one.time_ns)


@pytest.mark.parametrize("split", [1 << 30, 30_000])
@pytest.mark.parametrize("how", [plainly, in_fragments, cooked])
def test_captures_of_different_networks_do_not_touch_each_other(
    packets: list[Packet], tmp_path: Path, how: Callable[[list[Packet]], list[Packet]], split: int
) -> None:
    link = 113 if how is cooked else 1
    # The same packets, those with the same addresses, and again the same.
    contents = [packets, shifted(packets), packets]
    files = [write(tmp_path / f"host-{at}" / "a.pcap", how(one), link) for at, one in enumerate(contents)]
    run = go(files, tmp_path / "out", separate=True, split=split)
    same(tmp_path / "out", apart(files))
    assert run.plan.errors == []
    found = tables_of(tmp_path / "out")
    points = [str(path.parent) for path in files]
    assert [row["point"] for row in found["files"]] == points
    for table in ("messages", "exchanges", "conversations"):
        assert {row["point"] for row in found[table]} == set(points)
    assert all(row["point"] == points[row["file"]] for row in found["messages"])
    assert {row["point"]: 0 for row in found["conversations"]} == dict.fromkeys(points, 0)
    assert len(found["conversations"]) == 12


def test_files_that_are_points_are_separate_as_for_other_commands(packets: list[Packet], tmp_path: Path) -> None:
    files = [write(tmp_path / "a" / f"{at}.pcap", some) for at, some in enumerate((packets, shifted(packets), packets))]
    go(files, tmp_path / "out", separate=True, point=".*")
    same(tmp_path / "out", apart(files))
    found = tables_of(tmp_path / "out")
    assert {row["point"] for row in found["conversations"]} == set(map(str, files))
    assert len({row["conversation"] for row in found["conversations"]}) == 12


def test_files_of_one_point_belong_together(packets: list[Packet], tmp_path: Path) -> None:
    files = [write(tmp_path / "a" / f"{at}.pcap", packets[at * 600 :][:600]) for at in range(2)]
    other = write(tmp_path / "b" / "0.pcap", shifted(packets))
    go([*files, other], tmp_path / "out", separate=True)
    found = tables_of(tmp_path / "out")
    assert len(found["conversations"]) == 8
    assert {row["point"]: row["retransmissions"] for row in found["conversations"]} == {str(tmp_path / "a"): 0, str(tmp_path / "b"): 0}


@pytest.mark.parametrize(
    ("pattern", "point"),
    [
        (None, "/captures/host-7"),
        (r"host-\d+", "host-7"),
        (r"host-(\d+)", "7"),
        (r"(x)|-(?P<point>\d)/", "7"),
        ("none", "/captures/host-7"),
    ],
)
def test_points_by_folder_or_pattern(pattern: str | None, point: str) -> None:
    assert PipelineSettings([], point=pattern).point_of("/captures/host-7/a.pcap") == point


def test_followed_hosts_are_kept_apart(packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    folder.mkdir()
    more: dict[str, Any] = {"separate": True, "point": r"captures/(\w+)"}

    def begin() -> Follow:
        made = Follow(PipelineSettings([str(folder)], split=30_000, **more), str(out), Rotation(folder, 10**12))
        made.cluster = Here()
        return made

    files: list[Path] = []
    for at in range(3):
        for name, some in (("a", packets), ("b", shifted(packets))):
            files.append(write(folder / name / f"{at}.pcap", some[at * 400 : (at + 1) * 400]))
        work = begin()
        work.step()
        work.close()
    work = begin()
    while work.step(end=True):
        pass
    work.close()
    # Alone, each is what a plain run says of it.
    found = tables_of(out)
    for name in ("a", "b"):
        go([folder / name], tmp_path / name)
        alone = tables_of(tmp_path / name)
        index = {row["path"]: row["file"] for row in alone["files"]}
        number = {row["file"]: index[row["path"]] for row in found["files"] if row["path"] in index}
        for table in ("messages", "exchanges", "gaps"):
            rows = [_renumbered(row, number) for row in found[table] if row["point"] == name]
            assert told(table, rows) == told(table, alone[table])
    assert {row["point"] for row in found["conversations"]} == {"a", "b"}


def _renumbered(row: dict[str, Any], number: dict[int, int]) -> dict[str, Any]:
    return row if row.get("file") is None else row | {"file": number[row["file"]]}
