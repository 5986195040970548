"""Folders that are written to as tcpdump, dumpcap and their users do, looked at and killed at random: every row is there once.

Without Spark: the pipeline's own steps with Arrow sorting instead.
"""

from __future__ import annotations

import gzip
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdump.spark import delta, sink
from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import PipelineSettings
from streamdump.spark.rotation import Rotation
from streamdump.spark.storage import Folder
from tests.spark.captures import SNAP, generated, records
from tests.spark.comparing import plain, tables_of, told
from tests.spark.here import Here
from tests.support.frames import Packet, pcap

SECOND = 1_000_000_000
SETTLE_NS = 10 * SECOND
START_NS = 1_800_000_000 * SECOND
RING = 4


class Killed(BaseException):
    """Ends a driver where it is."""


class Local(Here):
    """Tasks that are done here; `steps` counts those until the driver is killed."""

    steps: int | None = None

    def step(self) -> None:
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise Killed


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("rings"), 600, 5))


class World:
    """A folder that is written to, and one who follows it, at times of our own."""

    def __init__(self, path: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch, form: str = "parquet") -> None:
        self.folder, self.out, self.chance, self.form = path / "captures", path / "out", chance, form
        self.folder.mkdir()
        self.now = START_NS
        self.kills = 0
        self.cluster = Local()
        self.work: Follow | None = None
        moved, added, commit = Folder.move, delta.DeltaSink._add, sink.Sink.commit

        def move(made: Folder, to: Folder) -> None:
            self.cluster.step()
            moved(made, to)

        def committed(*arguments: Any) -> Any:
            self.cluster.step()
            return commit(*arguments)

        def add(*arguments: Any) -> None:
            self.cluster.step()
            added(*arguments)

        monkeypatch.setattr(Folder, "move", move)
        monkeypatch.setattr(sink.Sink, "commit", committed)
        monkeypatch.setattr(delta.DeltaSink, "_add", add)

    def begin(self) -> Follow:
        settings = PipelineSettings([str(self.folder)], self.form, split=40_000)
        self.work, self.cluster.steps = None, None
        self.work = Follow(settings, str(self.out), Rotation(self.folder, SETTLE_NS, lambda: self.now))
        self.work.cluster = self.cluster
        return self.work

    def poll(self, end: bool = False) -> bool:
        """One micro-batch, perhaps with a sudden end; whether there was something to do."""
        work = self.work or self.begin()
        self.cluster.steps = self.chance.randint(0, 20) if self.chance.random() < 0.35 else None
        try:
            return work.step(end) is not None
        except Killed:
            self.kills += 1
            work.close()
            self.begin()
            return True

    def put(self, name: str, data: bytes, more: bool = False) -> Path:
        """A file, or `more` of one, written now."""
        path = self.folder / name
        with path.open("ab" if more else "wb") as stream:
            stream.write(data)
        os.utime(path, ns=(self.now, self.now))
        return path

    def write(self, name: str, data: bytes) -> Path:
        """A file in several pieces that end anywhere, looked at between them."""
        ends = sorted({len(data), *(self.chance.randint(0, len(data)) for _ in range(self.chance.choice([0, 1, 3])))})
        path = self.folder / name
        for begin, end in itertools.pairwise([0, *ends]):
            self.put(name, data[begin:end], begin > 0)
            self.now += self.chance.choice([SECOND, SETTLE_NS])
            for _ in range(self.chance.randint(0, 2)):
                self.poll()
                self.now += SECOND
        return path


def plainly(world: World, at: int, data: bytes) -> None:
    world.write(f"c-{at}.pcap", data)


def ring(world: World, at: int, data: bytes) -> None:
    """`tcpdump -W`, by one who is fast enough."""
    world.write(f"c{at % RING}.pcap", data)
    world.now += SETTLE_NS
    while world.poll():
        pass


def packing(world: World, at: int, data: bytes) -> None:
    """`tcpdump -z gzip`"""
    path = world.write(f"c-{at}.pcap", data)
    packed = gzip.compress(data)
    if world.chance.random() < 0.5:
        world.put(f"{path.name}.gz", packed[: len(packed) // 2])
        world.poll()
        world.now += SECOND
    world.put(f"{path.name}.gz", packed)
    if world.chance.random() < 0.5:
        world.poll()
    path.unlink()


def renaming(world: World, at: int, data: bytes) -> None:
    world.write("now.pcap", data).rename(world.folder / f"done-{at}.pcap")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", [plainly, ring, packing, renaming])
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_every_row_is_there_once(
    packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[World, int, bytes], None], seed: int, form: str
) -> None:
    world = World(tmp_path, random.Random(seed), monkeypatch, form)
    cuts = sorted(world.chance.sample(range(1, len(packets)), world.chance.randint(2, 6)))
    files = []
    for at, (begin, end) in enumerate(itertools.pairwise([0, *cuts, len(packets)])):
        files.append(tmp_path / f"{at}.pcap")
        files[-1].write_bytes(pcap(packets[begin:end], nano=True, snap=SNAP))
        how(world, at, files[-1].read_bytes())
    while world.poll(end=True):
        pass
    found = tables_of(world.out, form)
    for name, lines in plain(files).items():
        assert told(name, found[name]) == lines
    assert len(found["conversations"]) == 5
    assert sum(sum(row["packets"]) for row in found["conversations"]) == len(packets), "none is looked at twice"
    assert found["errors"] == []
    assert world.work is not None
    world.work.close()


def test_a_file_that_only_seems_old_is_read_on(packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was set back, so what is written now begins before what was written then."""
    world = World(tmp_path, random.Random(0), monkeypatch)
    work = world.begin()
    world.put("c-1.pcap", pcap(packets[300:], nano=True, snap=SNAP))
    data = pcap(packets[:300], nano=True, snap=SNAP)
    world.put("c-2.pcap", data[:-100])
    batch = work.step()
    assert batch is not None
    assert batch.packets in (298, 299)
    assert batch.errors == []
    world.now += SECOND
    world.put("c-2.pcap", data[-100:], more=True)
    assert work.step() is not None
    while batch := work.step(end=True):
        assert batch.errors == []
    assert work.state.packets == len(packets)
    work.close()
