"""Captures and tables wherever they are: in folders with odd names, and in an object store that speaks S3 over HTTP."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest

from streamdump.errors import CaptureError, UsageError
from streamdump.spark import storage
from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import PipelineSettings, State, partial_folder
from streamdump.spark.rotation import Rotation
from streamdump.spark.splits import expand, plan
from streamdump.spark.storage import folder, local, normal
from tests.spark.captures import SNAP, generated, records, rotated
from tests.spark.comparing import plain, same, tables_of, told
from tests.spark.here import Here, go
from tests.support.frames import pcap


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("places"), 1500, 5)


def put(bucket: str, path: Path, name: str = "") -> str:
    """Copies a file into the store."""
    place = folder(f"{bucket}/{name or path.name}")
    place.write(path.read_bytes())
    return place.name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/a/b.pcap", "/a/b.pcap"),
        ("file:/a/b%20c.pcap", "/a/b c.pcap"),
        ("file:///a/b", "/a/b"),
        ("FILE://localhost/a/b", "/a/b"),
        (os.fsdecode(b"/a/\xff.pcap"), "file:///a/%FF.pcap"),
        ("file:///a/%FF.pcap", "file:///a/%FF.pcap"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
    ],
)
def test_names(source: str, name: str) -> None:
    assert normal(source) == name
    assert normal(name) == name
    path = local(name)
    assert (path is None) == (not name.startswith(("/", "file:")))
    if path is not None:
        assert normal(os.fspath(path)) == name


@pytest.mark.parametrize("source", ["http://host/a", "hdfs:///a", "s3://", "s3://key:secret@bucket/a", "file://host/a"])
def test_what_is_no_name(source: str) -> None:
    with pytest.raises(UsageError):
        normal(source)


def test_a_relative_name_stands_for_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert normal("a:b.pcap") == f"{tmp_path}/a:b.pcap"


def test_hidden_folders_are_left_out_of_folders_and_patterns(tmp_path: Path) -> None:
    for name in (".snapshot/a.pcap", "_temporary/a.pcap", "x/.Trash/a.pcap", "x/_b.pcap", ".c.pcap", "x/a.pcap", "b.pcap"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = [str(tmp_path / name) for name in ("b.pcap", "x/a.pcap")]
    assert expand([str(tmp_path)]) == names
    assert expand([str(tmp_path / "**" / "*.pcap")]) == names
    assert expand([str(tmp_path / "_temporary")]) == [str(tmp_path / "_temporary" / "a.pcap")], "what is named is wanted"
    assert expand([str(tmp_path / "x" / "_*.pcap")]) == [str(tmp_path / "x" / "_b.pcap")]
    assert sorted(one.path for one in Rotation(tmp_path, 0).look(State({}), end=True)) == names


def test_a_copy_in_a_hidden_folder_mends_no_loss(capture: Path, tmp_path: Path) -> None:
    packets = records(capture)
    (tmp_path / "captures" / ".snapshot").mkdir(parents=True)
    (tmp_path / "captures" / ".snapshot" / "a.pcap").write_bytes(capture.read_bytes())
    lossy = tmp_path / "captures" / "a.pcap"
    lossy.write_bytes(pcap([one for at, one in enumerate(packets) if at % 50 != 40], nano=True, snap=SNAP))
    go([tmp_path / "captures"], tmp_path / "out")
    expected = plain([lossy])
    assert expected["gaps"]
    same(tmp_path / "out", expected)


def test_a_name_that_is_not_utf8_is_read_and_written_as_its_url(capture: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd \xff%"))
    odd.mkdir()
    (odd / "a.pcap").write_bytes(capture.read_bytes())
    (odd / "b.pcap").write_bytes(b"not a capture")
    run = go([odd], tmp_path / "out", split=40_000)
    same(tmp_path / "out", plain([odd / "a.pcap"]))
    names = [f"file://{tmp_path}/odd%20%FF%25/{name}" for name in ("a.pcap", "b.pcap")]
    tables = tables_of(tmp_path / "out")
    assert [row["path"] for row in tables["files"]] == names
    assert [row["path"] for row in tables["errors"]] == names[1:]
    assert run.rows["errors"] == 1
    assert expand(names) == names
    work = Follow(PipelineSettings([str(odd)]), str(tmp_path / "followed"), Rotation(odd, 0))
    work.cluster = Here()
    while work.step(end=True):
        pass
    work.close()
    same(tmp_path / "followed", plain([odd / "a.pcap"]))


def test_a_folder_with_a_name_that_is_not_utf8_holds_no_tables(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).touch()
    with pytest.raises(UsageError, match="not UTF-8; choose another folder"):
        folder(str(tmp_path)).names()


def test_an_object_is_read_as_a_file_is(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "AHEAD", 1000)
    data = os.urandom(10_000)
    (tmp_path / "x").write_bytes(data)
    name = put(bucket, tmp_path / "x")
    stream = storage.open_input(name)
    assert stream.seek(0, io.SEEK_END) == 10_000
    for start, size in ((0, 10), (10, 995), (995, 20), (5, 5000), (9990, 100), (10_000, 5), (0, -1)):
        stream.seek(start)
        found = b""
        wanted = data[start:] if size < 0 else data[start : start + size]
        while len(found) < len(wanted):
            piece = stream.read(len(wanted) - len(found))
            assert piece
            found += piece
        assert found == wanted
    assert storage.pieces(name, 100, 5000) == data[100:5100]
    stream.close()


def test_folders_and_patterns_of_a_store(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    for name in ("a.pcap", "b/c.pcap", "b/d.txt", "_hidden/a.pcap", "b/.e.pcap", "other/a.pcap"):
        put(bucket, tmp_path / "x", f"top/{name}")
    top = f"{bucket}/top"
    everything = [f"{top}/{name}" for name in ("a.pcap", "b/c.pcap", "b/d.txt", "other/a.pcap")]
    assert expand([top]) == expand([f"{top}/"]) == everything
    assert expand([f"{top}/b/*.pcap"]) == everything[1:2]
    assert expand([f"{top}/**/*.pcap"]) == [everything[0], everything[1], everything[3]]
    assert expand([f"{top}/?.pcap", f"{top}/[!x].pcap"]) == everything[:1]
    with pytest.raises(UsageError, match="no file has such a name"):
        expand([f"{top}/*.x"])
    for missing in (f"{top}/none", "s3://nobody/x"):
        with pytest.raises(CaptureError, match="no such file"):
            expand([missing])


def test_ranges_of_an_object_are_those_of_the_file(bucket: str, capture: Path, tmp_path: Path) -> None:
    files = rotated(tmp_path / "rotated", records(capture))
    here = plan([str(path) for path in files], 20_000)
    there = plan([put(bucket, path) for path in files], 20_000)
    assert not there.errors
    assert len(there.splits) > len(files)
    for mine, theirs in zip(here.splits, there.splits, strict=True):
        assert (mine.start, mine.stop, mine.packets, mine.flows) == (theirs.start, theirs.stop, theirs.packets, theirs.flows)


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_from_a_store_to_a_store(bucket: str, capture: Path, tmp_path: Path, form: str) -> None:
    files = rotated(tmp_path / "rotated", records(capture))
    for path in files:
        put(bucket, path, f"captures/{path.name}")
    out = f"{bucket}/out-{form}".replace("s3://", "s3a://")
    run = go([f"{bucket}/captures"], out, form=form, split=40_000, parts=3)
    assert not run.plan.errors
    same(out, plain(files), form)
    assert [row["path"] for row in tables_of(out, form)["files"]] == [f"{bucket}/captures/{path.name}" for path in files]
    assert not partial_folder(folder(out)).names()
    assert ("_SUCCESS" in folder(out).names()) == (form != "delta")
    assert not Path("s3a:").exists() and not Path("s3:").exists()


def test_a_capture_of_a_store_is_downloaded_once(bucket: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = rotated(tmp_path / "rotated", records(capture))
    names = [put(bucket, path) for path in files]
    opened: list[str] = []
    real = storage.open_input

    def counted(name: str) -> Any:
        opened.append(name)
        return real(name)

    monkeypatch.setattr(storage, "open_input", counted)
    run = go(names, tmp_path / "out", Here(tmp_path / "scratch"), split=20_000, parts=2)
    assert not run.plan.errors
    same(tmp_path / "out", plain(files))
    assert {name: opened.count(name) for name in names} == dict.fromkeys(names, 2), "its head, and all of it"


def test_a_run_to_a_store_goes_on_where_it_was_interrupted(bucket: str, capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamdump.spark.storage import Folder

    moved = Folder.move
    left = 3

    def interrupted(self: Folder, to: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        moved(self, to)

    out = f"{bucket}/out"
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go([capture], out, split=40_000, parts=3)
    assert "_SUCCESS" not in folder(out).names()
    run = go([capture], out, split=40_000, parts=3, resume=True)
    assert run.resumed
    same(out, plain([capture]))


def test_a_folder_of_a_store_is_followed(bucket: str, capture: Path, tmp_path: Path) -> None:
    packets = records(capture)
    third = len(packets) // 3
    out = f"{bucket}/out"
    clock = 0

    def begin() -> Follow:
        made = Follow(
            PipelineSettings([f"{bucket}/captures"], "delta", split=40_000), out, Rotation(f"{bucket}/captures", 10**12, lambda: clock)
        )
        made.cluster = Here()
        return made

    files = []
    work = begin()
    for at in range(3):
        data = pcap(packets[at * third : (at + 1) * third if at < 2 else None], nano=True, snap=SNAP)
        if at == 2:
            data = gzip.compress(data)
        files.append(tmp_path / f"c-{at}.pcap")
        files[-1].write_bytes(data)
        put(bucket, files[-1], f"captures/{files[-1].name}")
        batch = work.step()
        assert (batch is None) == (at == 0), "a newer one shows that it is complete"
    work = begin()
    while work.step(end=True):
        pass
    expected = plain(files)
    found = tables_of(out, "delta")
    for table, lines in expected.items():
        assert told(table, found[table]) == lines
    assert work.step(end=True) is None
    assert [name.partition("-")[0] for name in folder(f"{out}/.follow").names()] == ["batch", "state"]


def test_an_object_that_is_gone_is_named(bucket: str) -> None:
    with pytest.raises(CaptureError, match=f"{bucket}/none: no such file"):
        storage.open_input(f"{bucket}/none")
    found = plan([f"{bucket}/none"])
    assert [one.reason for one in found.errors] == ["no such file"]
