"""Streams of the data source: each packet once, from whatever offset they go on."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamdump.errors import UsageError
from streamdump.spark import arrivals, rows
from streamdump.spark.arrivals import Arrivals
from tests.spark.captures import SNAP, generated, records
from tests.support.frames import START_NS, Packet, pcap

SECOND = 1_000_000_000
SETTLE_NS = 10 * SECOND


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("arrivals"), 600, 3))


class Query:
    """Whoever reads a stream: offsets go through JSON, and another process may go on."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.now = START_NS
        self.more = more
        self.offset: dict[str, Any] = {"files": 0, "taken": []}
        self.found: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        self.arrivals = Arrivals(str(self.folder), SETTLE_NS, 20_000, clock=lambda: self.now, **self.more)

    def put(self, name: str, packets: list[Packet]) -> Path:
        path = self.folder / name
        data = pcap(packets, nano=True, snap=SNAP)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        os.utime(path, ns=(self.now, self.now))
        return path

    def poll(self, most: int | None = None, end: bool = False) -> int:
        """A micro-batch; how many packets it had."""
        latest = json.loads(json.dumps(self.arrivals.latest(self.offset, most, end)))
        if latest == self.offset:
            return 0
        splits = self.arrivals.splits(self.offset, latest)
        batches = [batch for split in splits for batch in rows.read(split)]
        self.offset = latest
        self.found += pa.Table.from_batches(batches).select(["file", "number", "seq", "payload"]).to_pylist() if batches else []
        return sum(batch.num_rows for batch in batches)


def test_files_are_read_once_when_they_are_complete(packets: list[Packet], tmp_path: Path) -> None:
    query = Query(tmp_path)
    first = query.put("c-1.pcap", packets[:200])
    assert query.poll() == 0
    query.put("c-2.pcap", packets[200:300])
    assert query.poll() == 200
    query.restart()
    assert query.poll() == 0
    # Packed, renamed, grown.
    query.put("c-1.pcap.gz", packets[:200])
    first.unlink()
    query.now += SETTLE_NS
    assert query.poll() == 100
    query.put("c-2.pcap", packets[200:450])
    query.now += SETTLE_NS
    query.restart()
    assert query.poll() == 150
    (tmp_path / "c-2.pcap").rename(tmp_path / "done.pcap")
    query.put("c-3.pcap", packets[450:])
    query.now += SETTLE_NS
    assert query.poll() == len(packets) - 450
    assert query.poll(end=True) == 0
    assert [(row["file"], row["number"]) for row in query.found] == [
        *((0, number) for number in range(1, 201)),
        *((1, number) for number in range(1, 251)),
        *((2, number) for number in range(1, len(packets) - 449)),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_every_packet_comes_once(packets: list[Packet], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "GONE_KEPT", 1)
    chance = random.Random(seed)
    query = Query(tmp_path)
    cuts = sorted(chance.sample(range(1, len(packets)), 5))
    for at, (begin, end) in enumerate(itertools.pairwise([0, *cuts, len(packets)])):
        middle = chance.randint(begin, end)
        query.put(f"c-{at}.pcap", packets[begin:middle])
        query.now += chance.choice([SECOND, SETTLE_NS])
        query.poll()
        query.put(f"c-{at}.pcap", packets[begin:end])
        if chance.random() < 0.5:
            query.restart()
        query.now += chance.choice([SECOND, SETTLE_NS])
        query.poll(chance.choice([None, 1]))
    while query.poll(1, end=True):
        pass
    assert [row["payload"] for row in sorted(query.found, key=lambda row: (row["file"], row["number"]))] == [
        row.data[66:] if len(row.data) > 66 else b"" for row in packets
    ]


def test_damage_is_told_or_skipped(packets: list[Packet], tmp_path: Path) -> None:
    query = Query(tmp_path)
    path = query.put("c-1.pcap", packets[:50])
    path.write_bytes(path.read_bytes()[:-5])
    os.utime(path, ns=(query.now, query.now))
    query.now += SETTLE_NS
    assert query.poll() == 49, "the rest may come"
    (tmp_path / "notes.txt").write_text("no capture")
    with pytest.raises(UsageError, match=r"notes.txt: is not a capture.*option\('damaged', 'skip'\)"):
        query.poll(end=True)
    query.more["skip_damage"] = True
    query.restart()
    assert query.poll(end=True) == 0
    assert query.offset["files"] == 2
