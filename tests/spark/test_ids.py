"""`conversation` and `message_id` are the same in every run, whatever else it reads and however the captures are divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import PipelineSettings
from streamdump.spark.rotation import Rotation
from tests.spark.captures import SNAP, generated, records, rotated
from tests.spark.comparing import tables_of
from tests.spark.here import Here, go
from tests.support.frames import ACK, RST, START_NS, SYN, A, B, Packet, ethernet, interface, ip4, pcap, pcapng, section, simple, tcp

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
FILES = [
    GOLDEN / "iggy" / "py060-basic.pcap",
    GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap",
    GOLDEN / "mewbase" / "java-query.pcap",
]

Found = dict[str, list[dict[str, Any]]]
Ids = dict[str, set[tuple[Any, ...]]]


def ids(found: Found) -> Ids:
    """What rows are joined by, with what they say of it."""
    return {
        "conversations": {(row["conversation"], row["time_ns"], *row["endpoints"]) for row in found["conversations"]},
        "messages": {(row["conversation"], row["message_id"], row["time_ns"], row["name"]) for row in found["messages"]},
        "exchanges": {(row["message_id"], row["response_id"], row["name"]) for row in found["exchanges"]},
    }


def united(some: list[Ids]) -> Ids:
    return {table: set().union(*(one[table] for one in some)) for table in some[0]}


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("ids"), 600, 3))


def test_other_files_do_not_change_them(tmp_path: Path) -> None:
    go(FILES, tmp_path / "all", split=20_000, parts=3)
    for at, file in enumerate(FILES):
        go([file], tmp_path / str(at))
    alone = [ids(tables_of(tmp_path / str(at))) for at in range(len(FILES))]
    assert ids(tables_of(tmp_path / "all")) == united(alone)
    assert all(1 << 40 < one < 1 << 63 for one, *_ in united(alone)["conversations"])


def test_a_run_that_adds_to_tables_goes_on_with_them(tmp_path: Path) -> None:
    go(FILES, tmp_path / "once")
    for file in reversed(FILES):
        go([file], tmp_path / "tables", form="delta", append=True)
    assert ids(tables_of(tmp_path / "tables", "delta")) == ids(tables_of(tmp_path / "once"))


def test_neither_ranges_nor_rotation_change_them(packets: list[Packet], tmp_path: Path) -> None:
    whole = tmp_path / "whole.pcap"
    whole.write_bytes(pcap(packets, nano=True, snap=SNAP))
    go([whole], tmp_path / "whole")
    expected = ids(tables_of(tmp_path / "whole"))
    assert len(expected["conversations"]) == 3
    assert len(expected["messages"]) > 300
    go([whole], tmp_path / "ranges", split=20_000, parts=2)
    assert ids(tables_of(tmp_path / "ranges")) == expected
    files = rotated(tmp_path / "rotated", packets)
    go(files, tmp_path / "files")
    assert ids(tables_of(tmp_path / "files")) == expected

    folder, out = tmp_path / "followed", tmp_path / "follow"
    folder.mkdir()
    for at, end in enumerate((False, False, True)):
        (folder / f"{at}.pcap").write_bytes(pcap(packets[at * 200 : (at + 1) * 200], nano=True, snap=SNAP))
        work = Follow(PipelineSettings([str(folder)]), str(out), Rotation(folder, 10**12))
        work.cluster = Here()  # type: ignore[assignment]
        while work.step(end=end):
            pass
        work.close()
    assert ids(tables_of(out)) == expected


def test_networks_that_are_kept_separate_have_their_own(packets: list[Packet], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.pcap").write_bytes(pcap(packets, nano=True, snap=SNAP))
    go([tmp_path / "a", tmp_path / "b"], tmp_path / "out", separate=True)
    found = tables_of(tmp_path / "out")
    assert len({row["message_id"] for row in found["messages"]}) == len(found["messages"])
    assert len({row["conversation"] for row in found["conversations"]}) == 6
    go([tmp_path / "b"], tmp_path / "alone", separate=True)
    alone = ids(tables_of(tmp_path / "alone"))
    assert all(alone[table] <= some for table, some in ids(found).items())


HEARTBEAT = bytes.fromhex("00000004 0017 0001")


def talk(time_ns: int) -> list[Packet]:
    """A connection from its SYN to its RST."""
    given = [(SYN, 999, b""), (ACK, 1000, HEARTBEAT), (ACK, 1008, HEARTBEAT), (RST, 1016, b"")]
    return [Packet(ethernet(ip4(tcp(data, sport=1000, seq=seq, flags=flags), src=A, dst=B)), time_ns) for flags, seq, data in given]


@pytest.mark.parametrize("timed", [True, False])
def test_connections_that_are_alike_have_their_own(timed: bool, tmp_path: Path) -> None:
    again = talk(START_NS) * 3
    path = tmp_path / "alike.pcapng"
    path.write_bytes(pcapng(again) if timed else b"".join([section(), interface(resolution=9), *map(simple, again)]))
    go([path], tmp_path / "out", split=100)
    found = tables_of(tmp_path / "out")
    assert len({row["conversation"] for row in found["conversations"]}) == len(found["conversations"]) > 1
    assert len({row["message_id"] for row in found["messages"]}) == len(found["messages"]) == 6
