"""Delta tables: what is added to them is there once, whoever writes and whatever is killed, and others read what we wrote."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streamdump.errors import UsageError
from streamdump.spark import delta, tables
from streamdump.spark.delta import DeltaSink, files_of
from streamdump.spark.pipeline import PipelineRun, PipelineSettings, partial_folder
from streamdump.spark.storage import folder
from streamdump.spark.tables import TABLES, TYPED
from tests.spark.captures import SNAP, generated, records
from tests.spark.comparing import plain, same, tables_of, told
from tests.spark.here import Here, go
from tests.support.frames import Packet, pcap

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def paths(run: PipelineRun) -> list[str]:
    """Return the captures that a run reads."""
    return [one.path for one in run.plan.files.values()]


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("delta"), 1200, 4))


@pytest.fixture
def files(packets: list[Packet], tmp_path: Path) -> list[Path]:
    """Three captures of different times, so of different conversations for whoever reads them one by one."""
    (tmp_path / "captures").mkdir()
    found = []
    for at in range(3):
        found.append(tmp_path / "captures" / f"{at}.pcap")
        later = [Packet(one.data, one.time_ns + at * 86_400_000_000_000) for one in packets[at * 400 : at * 400 + 400]]
        found[-1].write_bytes(pcap(later, nano=True, snap=SNAP))
    return found


def add(sources: list[Path], out: Path, **more: Any) -> PipelineRun:
    return go(sources, out, form="delta", append=True, **more)


def apart(files: list[Path]) -> dict[str, list[str]]:
    """What plain runs say of these captures, each for itself, in the order in which they were added."""
    found: dict[str, list[str]] = {}
    for at, path in enumerate(files):
        for table, lines in plain([path]).items():
            for line in lines:
                found.setdefault(table, []).append(_with_file(line, at))
    return {table: sorted(lines) for table, lines in found.items()}


def _with_file(line: str, file: int) -> str:
    one = msgspec.json.decode(line)
    if "file" in one:
        one["file"] = file
    return msgspec.json.encode(one, order="sorted").decode()


def test_runs_are_added_and_what_is_in_is_left_out(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert add(files[:1], out).left_out == 0
    run = add(files[:2], out)
    assert (run.left_out, paths(run)) == (1, [str(files[1])])
    assert paths(add(files[:2], out)) == [], "there is nothing to do"
    # The same content in another form, or under another name.
    (tmp_path / "packed.pcap.gz").write_bytes(gzip.compress(files[0].read_bytes()))
    (tmp_path / "other.pcap").write_bytes(files[1].read_bytes())
    run = add([files[2], tmp_path / "packed.pcap.gz", tmp_path / "other.pcap"], out)
    assert (run.left_out, paths(run)) == (2, [str(files[2])])
    same(out, apart(files), "delta")
    found = tables_of(out, "delta")
    assert [row["file"] for row in sorted(found["files"], key=lambda row: row["file"])] == [0, 1, 2]
    conversations = [row["conversation"] for row in found["conversations"]]
    assert len(set(conversations)) == len(conversations) > 8
    assert {row["conversation"] for row in found["messages"]} <= set(conversations)
    assert {row["date"].isoformat() for row in found["messages"]} == {"2025-10-09", "2025-10-10", "2025-10-11"}
    parts = {path.relative_to(out).parts[1:3] for path in out.glob("messages/*/*/*.parquet")}
    assert parts == {("protocol=rabbitmq-stream", f"date=2025-10-{day:02}") for day in (9, 10, 11)}


def test_a_capture_that_has_grown_is_told_and_not_read_twice(packets: list[Packet], files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    add(files[:1], out)
    files[0].write_bytes(pcap(packets[:500], nano=True, snap=SNAP))
    run = add(files[:2], out)
    (error,) = run.plan.errors
    assert (error.path, error.fatal) == (str(files[0]), True)
    assert error.reason.startswith("has another size than when it was read (")
    assert [row["path"] for row in tables_of(out, "delta")["errors"]] == [str(files[0])]
    # No other file gets the index of one that is left out
    assert sorted(row["file"] for row in tables_of(out, "delta")["files"]) == [0, 2]


def test_a_packed_capture_that_was_cut_is_not_read_again_when_it_is_whole(files: list[Path], tmp_path: Path) -> None:
    packed = gzip.compress(files[0].read_bytes(), 1)
    path, out = tmp_path / "a.pcap.gz", tmp_path / "out"
    for part in (packed[: len(packed) // 10], packed):
        path.write_bytes(part)
        add([path], out)
    rows = tables_of(out, "delta")
    assert len({row["message_id"] for row in rows["messages"]}) == len(rows["messages"]) > 0
    assert sorted(row["code"] for row in rows["errors"]) == ["damaged", "grown"]


def test_tables_that_are_there_are_left_alone_without_append(files: list[Path], tmp_path: Path) -> None:
    from streamdump.cli.app import main

    add(files[:1], tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.glob("out/*/_delta_log/*")}
    assert main(["pipeline", str(files[1]), "--out", str(tmp_path / "out"), "--format", "delta", "--fields", "both"]) == 2
    same(tmp_path / "out", apart(files[:1]), "delta")
    # Nor is a claim made, which would stop the one that writes to them
    assert {path: path.read_bytes() for path in tmp_path.glob("out/*/_delta_log/*")} == before


class Killed(BaseException):
    """Ends a driver where it is."""


@pytest.mark.parametrize("commits", range(len(TABLES) + 2))
def test_all_is_there_once_wherever_the_driver_is_killed(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    out = tmp_path / "out"
    add(files[:1], out)
    real = DeltaSink._add
    left = commits

    def killed(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "_add", killed)
        try:
            add(files[1:2], out)
        except Killed:
            assert commits <= len(TABLES), "a claim and the tables"
    for path in files[1:]:
        add([path], out)
    same(out, apart(files), "delta")
    assert not (tmp_path / ".out.partial").exists()


def test_a_table_that_an_older_version_did_not_write_is_added(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    add(files[:1], out)
    shutil.rmtree(out / "endings")
    add(files[1:2], out)
    found = tables_of(out, "delta")
    assert {row["file"] for row in found["messages"]} == {0, 1}
    assert (out / "endings" / "_delta_log").exists()


def test_whoever_began_first_loses_as_a_whole(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    add(files[:1], out)

    class Slow(Here):
        def sent(self, *arguments: Any) -> Any:
            DeltaSink(folder(tmp_path), folder(out), "json").begin()
            return super().sent(*arguments)

    before = tables_of(out, "delta")
    with pytest.raises(UsageError, match="another streamdump has started writing to it; nothing was added"):
        add(files[1:2], out, cluster=Slow())
    assert tables_of(out, "delta") == before


def test_a_disk_has_one_writer_at_a_time(files: list[Path], tmp_path: Path) -> None:
    settings = PipelineSettings([str(files[0])], "delta", append=True)
    first = PipelineRun(settings, str(tmp_path / "out"))
    assert first.prepare()
    with pytest.raises(UsageError, match="another streamdump writes to out"):
        PipelineRun(settings, str(tmp_path / "out")).prepare()
    first.close()
    assert list(tmp_path.iterdir()) in ([tmp_path / "captures", tmp_path / "out"], [tmp_path / "out", tmp_path / "captures"])


def test_an_older_table_gets_the_new_columns_and_a_newer_one_stays(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    old_columns = tuple(column for column in tables.MESSAGES if column.name != "notes")
    typed = TYPED["rabbitmq-stream"]
    fewer = tuple(column for column in TABLES[typed].columns if column.name != "correlation_id")
    old = {
        "messages": msgspec.structs.replace(TABLES["messages"], columns=old_columns),
        typed: msgspec.structs.replace(TABLES[typed], columns=fewer),
    }
    with monkeypatch.context() as patched:
        for name, described in old.items():
            patched.setitem(TABLES, name, described)
        add(files[:1], out, fields="typed")
        assert "notes" not in tables_of(out, "delta")["messages"][0]
    add(files[1:2], out, fields="typed")
    found = tables_of(out, "delta")
    rows = found["messages"]
    assert [row["notes"] for row in rows if row["file"] == 0] == [None] * sum(row["file"] == 0 for row in rows)
    assert all(row["notes"] is not None for row in rows if row["file"] == 1)
    of = {row["message_id"]: row["file"] for row in rows if row["kind"] == "request" and row["id"] is not None}
    numbered = {row["message_id"] for row in found[typed] if row["correlation_id"] is not None}
    assert {file for message_id, file in of.items() if message_id in numbered} == {1}
    # And the older version adds to the newer table what it knows.
    with monkeypatch.context() as patched:
        for name, described in old.items():
            patched.setitem(TABLES, name, described)
        add(files[2:], out)
    rows = tables_of(out, "delta")["messages"]
    assert {row["file"] for row in rows} == {0, 1, 2}
    assert {row["notes"] for row in rows if row["file"] == 2} == {None}
    with monkeypatch.context() as patched:
        patched.setitem(TABLES, "files", msgspec.structs.replace(TABLES["files"], columns=(_other_type(), *TABLES["files"].columns[1:])))
        with pytest.raises(UsageError, match=r"table files does not fit .*Field file has incompatible types: int32 vs string"):
            add(files, out)


def _other_type() -> Any:
    return msgspec.structs.replace(TABLES["files"].columns[0], type=pa.string())


def test_small_files_are_put_together(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "COMPACTED", 2)
    out = tmp_path / "out"
    # A run that finds nothing to do commits nothing, so it does not count
    for path in (files[0], files[1], files[1], files[2]):
        add([path], out)
    assert len(files_of(folder(out / "files"))) == 1
    assert len(files_of(folder(out / "messages"))) == 3, "each day is a partition of its own"
    same(out, apart(files), "delta")
    assert DeltaTable(out / "files").history(1)[0]["operation"] == "OPTIMIZE"


def test_what_cannot_be_put_together_now_is_so_later(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake.exceptions import CommitFailedError
    from deltalake.table import TableOptimizer

    def beaten(*arguments: Any, **more: Any) -> None:
        raise CommitFailedError("another one rewrote these files")

    monkeypatch.setattr(delta, "COMPACTED", 1)
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(TableOptimizer, "compact", beaten)
        add(files[:1], out)
        add(files[1:2], out)
    add(files[2:], out)
    assert len(files_of(folder(out / "files"))) == 1
    same(out, apart(files), "delta")


def test_others_read_it(files: list[Path], tmp_path: Path) -> None:
    import duckdb
    import polars

    out = tmp_path / "out"
    add(files[:1], out)
    # Tables that the first run did not make
    add([GOLDEN / "iggy" / "py060-basic.pcap"], out, fields="typed")
    found = tables_of(out, "delta")
    expected = found["messages"]
    assert [len(found[table]) for table in TYPED.values()] == [0, 0, sum(row["protocol"] == "iggy" for row in expected), 0, 0]
    wanted = sorted((row["protocol"], row["name"], row["time_ns"]) for row in expected)
    dataset = DeltaTable(str(out / "messages")).to_pyarrow_dataset()
    frame = polars.read_delta(str(out / "messages"))
    assert sorted(frame.select("protocol", "name", "time_ns").rows()) == wanted
    lengths = polars.read_delta(str(out / TYPED["iggy"])).select(polars.col("length").max()).item()
    assert lengths == max(row["length"] or 0 for row in found[TYPED["iggy"]])
    assert dataset.count_rows() == len(wanted)
    query = "select protocol, name, time_ns from dataset order by all"
    assert [tuple(row) for row in duckdb.sql(query).fetchall()] == wanted


def test_in_a_store_too(bucket: str, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import polars

    out = f"{bucket}/out"
    real = DeltaSink._add
    left = 4

    def killed(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        real(*arguments)

    go(files[:1], out, form="delta", append=True)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "_add", killed)
        with pytest.raises(Killed):
            go(files[1:2], out, form="delta", append=True)
    assert partial_folder(folder(out)).names()
    go(files, out, form="delta", append=True)
    found = tables_of(out, "delta")
    for table, lines in apart(files).items():
        assert told(table, found[table]) == lines
    assert not partial_folder(folder(out)).names()
    options = {"AWS_ALLOW_HTTP": "true"}
    assert polars.read_delta(f"{out}/messages", storage_options=options).height == len(found["messages"])


def test_what_is_no_capture_is_told_each_for_itself_and_once(tmp_path: Path) -> None:
    packed = gzip.compress(b"noise" * 900)
    names = {"noise": b"noise" * 100, "other": b"other noise" * 300, "empty": b"", "cut.gz": packed[:4], "noise.gz": packed}
    for name, data in names.items():
        (tmp_path / name).write_bytes(data)
        run = add([tmp_path / name], tmp_path / "out")
        assert (run.left_out, run.rows["errors"]) == (0, 1)
    assert add([tmp_path / name for name in names], tmp_path / "out").left_out == 5
    found = tables_of(tmp_path / "out", "delta")
    assert sorted(row["path"] for row in found["errors"]) == sorted(str(tmp_path / name) for name in names)


def test_short_captures_are_known_again_too(packets: list[Packet], tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "begun").write_bytes(pcap([], nano=True, snap=SNAP))
    (tmp_path / "short").write_bytes(pcap(packets[:5], nano=True, snap=SNAP))
    add([tmp_path / "begun", tmp_path / "short"], out)
    (tmp_path / "begun").write_bytes(pcap(packets[400:800], nano=True, snap=SNAP))
    longer = pcap(packets[:400], nano=True, snap=SNAP)
    (tmp_path / "short").write_bytes(longer)
    (tmp_path / "longer.gz").write_bytes(gzip.compress(longer))
    run = add([tmp_path / "begun", tmp_path / "short", tmp_path / "longer.gz"], out)
    assert paths(run) == [str(tmp_path / "begun")], "of which there was nothing yet but its header"
    assert [Path(one.path).name for one in run.plan.errors] == ["short", "longer.gz"]
    assert all("has another size than when it was read (" in one.reason for one in run.plan.errors)


def test_a_name_that_a_ring_uses_again_is_another_capture(packets: list[Packet], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for suffix, pack in (("", bytes), (".gz", lambda data: gzip.compress(data, 0, mtime=0))):
        path = tmp_path / f"ring.pcap{suffix}"
        path.write_bytes(pack(pcap(packets[:400], nano=True, snap=SNAP)))
        size = path.stat().st_size
        assert add([path], out).left_out == bool(suffix), "packed it is in already"
        assert add([path], out).left_out == 1
        later = [Packet(one.data, one.time_ns + (1 + len(suffix)) * 86_400_000_000_000) for one in packets[:400]]
        path.write_bytes(pack(pcap(later, nano=True, snap=SNAP)))
        assert path.stat().st_size == size
        assert add([path], out).left_out == 0
    assert len(tables_of(out, "delta")["files"]) == 3
