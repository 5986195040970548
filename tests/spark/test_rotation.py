"""Which captures of a folder are complete, with a clock of our own."""

from __future__ import annotations

import gzip
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from streamdump.spark.pipeline import State
from streamdump.spark.rotation import HEAD, HOLD_NS, KnownFile, Read, Rotation, digest, natural, series
from streamdump.spark.splits import FileError
from tests.support.frames import START_NS, Packet, ethernet, ip4, pcap, tcp

SECOND = 1_000_000_000
SETTLE_NS = 10 * SECOND


class Folder:
    """A folder whose files change at times that the test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START_NS
        self.rotation = Rotation(path, SETTLE_NS, lambda: self.now)
        self.state = State({})

    def write(self, name: str, first: int | None, packets: int = 3) -> Path:
        """A capture whose packets begin so many seconds after the start, changed now."""
        some = [Packet(ethernet(ip4(tcp(b"x" * 40, seq=at))), START_NS + (first or 0) * SECOND + at) for at in range(packets)]
        return self.put(name, pcap(some if first is not None else [], nano=True))

    def put(self, name: str, data: bytes) -> Path:
        path = self.path / name
        path.write_bytes(data)
        os.utime(path, ns=(self.now, self.now))
        return path

    def look(self, end: bool = False) -> list[KnownFile]:
        return self.rotation.look(self.state, end)

    def read(self, path: Path) -> Read | None:
        """What was read of a file that is there."""
        return self.state.taken[str(path)].read

    def errors(self, end: bool = False) -> list[FileError]:
        """Those of all looks since the last call, and of another one."""
        self.look(end)
        errors, self.state.errors = self.state.errors, []
        return errors

    def names(self, end: bool = False) -> list[str]:
        return [Path(one.path).name for one in self.look(end)]

    def take(self, ready: Sequence[KnownFile], error: FileError | None = None) -> list[str]:
        """Read these files."""
        for one in ready:
            self.state.files += 1
            one.read = Read(self.state.files, one.status.size, 1, error)
        return [Path(one.path).name for one in ready]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["c.pcap", "c.pcap1", "c.pcap2", "c.pcap10"],
        ["eth0-20261121-120000.pcap", "eth0-20261121-120100.pcap", "eth0-20261121-120200.pcap", "eth0-20261121-120300.pcap"],
        [
            "c_00001_20261121120000.pcapng",
            "c_00002_20261121120100.pcapng",
            "c_00010_20261121120200.pcapng",
            "c_00011_20261121120300.pcapng",
        ],
    ],
    ids=["tcpdump -C", "tcpdump -G", "dumpcap -b"],
)
def test_a_file_is_complete_when_a_newer_one_of_its_series_is_there(folder: Folder, names: list[str]) -> None:
    assert len({series(name) for name in names}) == 1
    assert sorted(names, key=natural) == names
    for at, name in enumerate(names):
        folder.write(name, at)
        assert folder.take(folder.look()) == names[at - 1 : at] if at else not folder.look()
        folder.now += SECOND
    assert folder.names(end=True) == names[-1:]


def test_a_file_that_only_has_its_header_yet_shows_that_the_one_before_is_complete(folder: Folder) -> None:
    folder.write("c1.pcap", 0)
    folder.write("c2.pcap", None)
    assert folder.names() == ["c1.pcap"]
    assert folder.names(end=True) == ["c1.pcap", "c2.pcap"]


def test_the_newest_is_read_when_it_was_quiet_and_read_on_when_it_grew(folder: Folder) -> None:
    path = folder.write("c.pcap", 0, 2)
    folder.now += SETTLE_NS - 1
    assert folder.look() == []
    folder.now += 1
    (ready,) = folder.look()
    assert (ready.end_ns, ready.read) == (None, None)
    folder.take([ready])
    size = path.stat().st_size
    assert folder.look() == []
    folder.write("c.pcap", 0, 5)
    assert folder.look() == []
    folder.now += SETTLE_NS
    (ready,) = folder.look()
    assert ready.read == Read(1, size, 1)
    assert ready.status.size > size


def test_a_file_with_an_old_time_is_read_at_once(folder: Folder) -> None:
    folder.write("old.pcap", 0)
    folder.now += 3600 * SECOND
    assert folder.names() == ["old.pcap"]


def test_a_ring_that_uses_a_name_again_brings_a_new_file(folder: Folder) -> None:
    for at, name in enumerate(("r0.pcap", "r1.pcap", "r0.pcap", "r1.pcap")):
        folder.write(name, at)
        found = folder.look()
        assert [one.read for one in found] == [None] * len(found)
        assert folder.take(found) == ([] if not at else [("r1.pcap", "r0.pcap")[at % 2]])
        folder.now += SECOND


def test_long_heads_tell_files_apart(folder: Folder) -> None:
    path = folder.write("c.pcap", 0, 100)
    assert path.stat().st_size > HEAD
    folder.take(folder.look(end=True))
    folder.write("c.pcap", 0, 200)
    (ready,) = folder.look(end=True)
    assert ready.read is not None
    folder.write("c.pcap", 1, 200)
    (ready,) = folder.look(end=True)
    assert ready.read is None


def test_a_packed_copy_of_a_file_that_was_read_is_not_read(folder: Folder) -> None:
    path = folder.write("c1.pcap", 0)
    folder.write("c2.pcap", 1)
    assert folder.take(folder.look()) == ["c1.pcap"]
    folder.put("c1.pcap.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    folder.now += HOLD_NS
    assert folder.names(end=True) == ["c2.pcap"]


def test_a_packed_copy_is_known_when_a_ring_uses_the_name_again(folder: Folder) -> None:
    path = folder.write("c0.pcap", 0)
    folder.write("c1.pcap", 1)
    assert folder.take(folder.look()) == ["c0.pcap"]
    folder.put("c0.pcap.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    assert folder.look() == []
    folder.write("c0.pcap", 2)
    folder.now += SETTLE_NS
    assert folder.take(folder.look()) == ["c1.pcap", "c0.pcap"]
    assert folder.look() == folder.errors() == []


def test_a_packed_copy_is_not_read_beside_what_it_is_made_of(folder: Folder) -> None:
    data = folder.write("c1.pcap", 0).read_bytes()
    folder.put("c1.pcap.gz", b"")
    folder.write("c2.pcap", 1)
    assert folder.names() == ["c1.pcap"]
    folder.put("c1.pcap.gz", gzip.compress(data))
    ready = folder.look()
    assert [Path(one.path).name for one in ready] == ["c1.pcap"]
    folder.take(ready)
    assert folder.look() == []


def test_what_was_added_before_a_file_was_packed_is_read(folder: Folder) -> None:
    path = folder.write("c1.pcap", 0, 2)
    folder.now += SETTLE_NS
    assert folder.take(folder.look()) == ["c1.pcap"]
    data = folder.write("c1.pcap", 0, 5).read_bytes()
    folder.write("c2.pcap", 1)
    folder.put("c1.pcap.gz", gzip.compress(data))
    path.unlink()
    (ready,) = folder.look()
    assert Path(ready.path).name == "c1.pcap.gz"
    assert ready.read == Read(1, 0, 1)


def test_a_file_that_is_renamed_is_not_read_again(folder: Folder) -> None:
    path = folder.write("now.pcap", 0)
    folder.now += SETTLE_NS
    folder.take(folder.look())
    read = folder.read(path)
    path.rename(folder.path / "done.pcap")
    folder.write("now.pcap", 9)
    folder.now += SETTLE_NS
    (now,) = folder.look()
    assert folder.read(folder.path / "done.pcap") == read
    assert now.read is None
    folder.take([now])
    assert folder.look() == folder.errors() == []


@pytest.mark.parametrize("name", ["done.pcap", "now1.pcap.gz"])
def test_what_was_read_and_is_deleted_under_another_name_is_not_missed(folder: Folder, name: str) -> None:
    path = folder.write("now1.pcap", 0)
    folder.write("now2.pcap", 9)
    folder.now += SETTLE_NS
    folder.take(folder.look())
    if name.endswith(".gz"):
        folder.put(name, gzip.compress(path.read_bytes()))
        path.unlink()
    else:
        path.rename(folder.path / name)
    folder.look()
    (folder.path / name).unlink()
    assert folder.look() == folder.errors() == []


def test_a_second_name_in_the_folder_is_no_second_file(folder: Folder) -> None:
    path = folder.write("c1.pcap", 0)
    (folder.path / "latest.pcap").symlink_to(path)
    outside = folder.path.parent / "outside.pcap"
    path.rename(outside)
    (folder.path / "linked.pcap").symlink_to(outside)
    folder.write("c1.pcap", 1)
    assert folder.names(end=True) == ["linked.pcap", "c1.pcap"]


def test_pipes_and_sockets_are_no_captures(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe.pcap")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder.path / "socket.pcap"))
        assert folder.names(end=True) == []


def test_a_file_that_may_be_read_later_is_read_then(folder: Folder) -> None:
    path = folder.write("c1.pcap", 0)
    folder.take(folder.look(end=True))
    known = folder.state.taken[str(path)]
    folder.state.taken[str(path)] = msgspec.structs.replace(known, head=digest(b""))
    folder.now += SECOND
    os.utime(path, ns=(folder.now, folder.now))
    (ready,) = folder.look(end=True)
    assert ready.read is None


def test_files_that_are_gone_before_they_were_read_are_told_once(folder: Folder) -> None:
    folder.write("r0.pcap", 0)
    path = folder.write("r1.pcap", 1)
    folder.take(folder.look())
    folder.write("r0.pcap", 2)
    assert folder.look()
    assert folder.errors() == [], "r0 was read, r1 is there"
    path.unlink()
    folder.write("r0.pcap", 4)
    assert [(Path(one.path).name, one.file) for one in folder.errors()] == [("r0.pcap", 1), ("r1.pcap", 2)]
    assert folder.errors() == []


def test_a_folder_that_vanishes_and_comes_back_is_as_it_was(folder: Folder) -> None:
    folder.write("c1.pcap", 0)
    folder.write("c2.pcap", 1)
    folder.take(folder.look())
    away = folder.path.rename(folder.path.with_name("away"))
    assert folder.look() == []
    assert folder.errors() == []
    away.rename(folder.path)
    assert folder.names(end=True) == ["c2.pcap"]


def test_many_files_take_work_that_grows_with_their_number(tmp_path: Path) -> None:
    def work(count: int) -> int:
        path = tmp_path / str(count)
        path.mkdir()
        folder, calls = Folder(path), 0
        for at in range(count):
            folder.write(f"c{at}.pcap", at, 1)

        def called(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(called)
        try:
            ready = folder.look()
        finally:
            sys.setprofile(None)
        assert len(ready) == count - 1
        return calls

    # Four times as many; their square would be sixteen times as much
    assert work(2000) < 6 * work(500)


def test_files_of_two_series_that_overlap_are_read_together(folder: Folder) -> None:
    folder.write("in-1.pcap", 0)
    folder.write("out-1.pcap", 0)
    folder.write("in-2.pcap", 60)
    assert folder.look() == []
    folder.now += SECOND
    folder.write("out-2.pcap", 61)
    assert folder.take(folder.look()) == ["in-1.pcap", "out-1.pcap"]
    folder.write("in-3.pcap", 120)
    assert folder.look() == []
    for _ in range(100):
        folder.now += SECOND
        os.utime(folder.path / "out-2.pcap", ns=(folder.now, folder.now))
        found = folder.names()
        if found:
            break
    assert found == ["in-2.pcap", "in-3.pcap"]
    assert folder.now - START_NS >= HOLD_NS


def test_a_copy_with_the_time_of_its_original_waits_for_the_other_series_all_the_same(folder: Folder) -> None:
    for name, begin in (("in-1.pcap", 0), ("in-2.pcap", 60)):
        folder.write(name, begin)
        os.utime(folder.path / name, ns=(folder.now - 2 * HOLD_NS, folder.now - 2 * HOLD_NS))
    folder.write("out-1.pcap", 0)
    assert folder.look() == []
    folder.now += HOLD_NS
    os.utime(folder.path / "out-1.pcap", ns=(folder.now, folder.now))
    assert folder.names() == ["in-1.pcap", "in-2.pcap"]


def test_what_is_hidden_or_a_folder_is_no_capture(folder: Folder) -> None:
    (folder.path / ".tmp").mkdir()
    (folder.path / ".tmp" / "c.pcap").write_bytes(b"x")
    (folder.path / ".c.pcap.XyZ").write_bytes(b"x")
    (folder.path / "sub").mkdir()
    folder.write("sub/c.pcap", 0)
    assert folder.names(end=True) == ["c.pcap"]


def test_an_empty_file_waits_until_another_is_begun(folder: Folder) -> None:
    folder.put("c1.pcap", b"")
    folder.now += 2 * SETTLE_NS
    assert folder.look() == []
    folder.write("c2.pcap", 5)
    assert folder.names() == ["c1.pcap"]


def cut(path: str) -> FileError:
    return FileError(0, path, 10, 1, "cut off", 3)


def test_a_cut_end_is_told_once_nothing_came_for_long(folder: Folder) -> None:
    path = str(folder.write("c1.pcap", 0))
    folder.now += SETTLE_NS
    folder.take(folder.look(), cut(path))
    assert folder.errors() == []
    folder.now += HOLD_NS
    assert folder.errors() == [cut(path)]


@pytest.mark.parametrize("how", ["another begun", "written anew", "deleted", "the end"])
def test_a_cut_end_is_told_when_nothing_can_come(folder: Folder, how: str) -> None:
    path = str(folder.write("c1.pcap", 0))
    folder.now += SETTLE_NS
    folder.take(folder.look(), cut(path))
    if how == "another begun":
        folder.write("c2.pcap", 9)
    elif how == "written anew":
        folder.write("c1.pcap", 9)
    elif how == "deleted":
        Path(path).unlink()
    assert folder.errors(how == "the end") == [cut(path)]


@pytest.mark.parametrize("how", ["renamed", "packed"])
def test_a_cut_end_to_which_more_came_under_another_name_is_read_first(folder: Folder, how: str) -> None:
    path = folder.write("c1.pcap", 0)
    folder.now += SETTLE_NS
    folder.take(folder.look(), cut(str(path)))
    size = path.stat().st_size
    data = folder.write("c1.pcap", 0, 9).read_bytes()
    folder.put("other.pcap" if how == "renamed" else "c1.pcap.gz", data if how == "renamed" else gzip.compress(data))
    path.unlink()
    folder.write("c1.pcap" if how == "renamed" else "c2.pcap", 50)
    folder.look()
    assert folder.errors() == []
    folder.now += SETTLE_NS
    ready = folder.look()
    assert [one.read for one in ready if one.first_ns == START_NS] == [Read(1, size if how == "renamed" else 0, 1, cut(str(path)))]


@pytest.mark.parametrize("name", ["done.pcap", "now.pcap.gz"])
def test_a_file_whose_first_packet_was_cut_is_known_under_another_name(folder: Folder, name: str) -> None:
    path = folder.write("now.pcap", 0)
    data = path.read_bytes()
    folder.put("now.pcap", data[:60])
    folder.now += SETTLE_NS
    (ready,) = folder.look()
    assert ready.first_ns is None
    folder.take([ready], cut(str(path)))
    path.unlink()
    folder.put(name, gzip.compress(data) if name.endswith(".gz") else data)
    folder.now += SETTLE_NS
    (ready,) = folder.look()
    assert ready.read == Read(1, 0 if name.endswith(".gz") else 60, 1, cut(str(path)))
    assert folder.errors() == []


def test_a_cut_end_to_which_more_came_is_read_first(folder: Folder) -> None:
    path = str(folder.write("c1.pcap", 0))
    folder.now += SETTLE_NS
    folder.take(folder.look(), cut(path))
    folder.write("c1.pcap", 0, 9)
    folder.write("c2.pcap", 9)
    assert folder.errors() == []
    assert folder.names() == ["c1.pcap"]
