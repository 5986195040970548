"""Where conversations are dissected: at home where one task reads all of them, and elsewhere only if not. Without Spark."""

from __future__ import annotations

import gzip
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.spark import ordered, pipeline, splits, tasks
from streamdump.spark.ordered import Ordered, Row
from streamdump.spark.pipeline import Watch
from streamdump.spark.splits import plan
from streamdump.spark.storage import folder
from streamdump.spark.tasks import sources
from tests.spark.captures import SNAP, fragments, generated, records, rotated
from tests.spark.comparing import plain, same, tables_of
from tests.spark.here import Here, go
from tests.spark.test_delta import apart
from tests.support.frames import Packet, ip4, pcap, sll

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("tasks"), 2000, 8))


def by_client(packets: list[Packet]) -> list[list[Packet]]:
    """The packets of each conversation."""
    found: dict[bytes, list[Packet]] = {}
    for one in packets:
        client = next(address for address in (one.data[26:30], one.data[30:34]) if address != bytes([10, 0, 0, 1]))
        found.setdefault(client, []).append(one)
    return list(found.values())


def written(place: Path, contents: list[list[Packet]], link: int = 1) -> list[Path]:
    place.mkdir()
    files = [place / f"{at}.pcap" for at in range(len(contents))]
    for path, packets in zip(files, contents, strict=True):
        path.write_bytes(pcap(packets, link=link, nano=True, snap=SNAP))
    return files


def whole(files: list[Path]) -> int:
    """Bytes of a range by which none of these files is cut, and each is a task of its own, or nearly."""
    return max(path.stat().st_size for path in files)


def test_a_small_capture_is_one_task(packets: list[Packet], tmp_path: Path) -> None:
    files = written(tmp_path / "files", by_client(packets))
    cluster = Here()
    go(files, tmp_path / "out", cluster)
    assert (cluster.tasks, cluster.sent_bytes) == (1, 0)
    same(tmp_path / "out", plain(files))


def test_conversations_that_lie_within_one_task_are_not_sent(packets: list[Packet], tmp_path: Path) -> None:
    files = written(tmp_path / "files", by_client(packets))
    cluster = Here()
    go(files, tmp_path / "out", cluster, split=whole(files))
    assert cluster.sent_bytes == 0
    assert cluster.tasks >= len(files) // 2
    same(tmp_path / "out", plain(files))


@pytest.mark.parametrize(("parts", "most"), [(None, 99), (3, 99), (None, 1)], ids=["read again", "sent", "too many files to be read again"])
def test_only_those_that_several_tasks_read_are_sent(
    packets: list[Packet], tmp_path: Path, parts: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FILES", most)
    *alone, first, second = by_client(packets)
    both = sorted([*first, *second], key=lambda one: one.time_ns)
    half = len(both) // 2
    files = written(tmp_path / "files", [*alone, both[:half], both[half:]])
    found = plan([str(path) for path in files], 1 << 30)
    made, sent = sources(found, 1)
    assert ([source.home for source in made], sent > 0) == ([None] * len(alone) + [b"", b""], True)
    cluster = Here()
    go(files, tmp_path / "out", cluster, split=whole(files), parts=parts)
    size = sum(len(one.data) for one in both)
    # Reading two files twice costs less than sending what is in them
    assert (0 < cluster.sent_bytes < 4 * size + 100_000) == (parts is not None or most == 1)
    same(tmp_path / "out", plain(files))


@pytest.mark.parametrize("parts", [None, 3], ids=["at home", "sent"])
def test_of_very_many_conversations_one_is_open_at_a_time(
    packets: list[Packet], tmp_path: Path, parts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "OPEN", 1)
    monkeypatch.setattr(tasks, "dissected", None)
    files = written(tmp_path / "files", [packets])
    cluster = Here()
    go(files, tmp_path / "out", cluster, split=1 << (18 if parts is None else 16), parts=parts)
    assert (cluster.sent_bytes > 0) == (parts is not None)
    same(tmp_path / "out", plain(files))


def in_fragments(packets: list[Packet]) -> list[Packet]:
    found: list[Packet] = []
    for at, one in enumerate(packets):
        found += fragments(one, at, 48) if at % 5 == 0 and len(one.data) > 120 else [one]
    return found


def cooked(packets: list[Packet]) -> list[Packet]:
    found = [Packet(sll(one.data[14:], 4), one.time_ns) for one in packets]
    found += [Packet(sll(one.data[14:], 0), one.time_ns + 500) for one in packets[::2]]
    found += [Packet(sll(ip4(bytes(8), protocol=17)), one.time_ns + 3) for one in packets[::7]]
    return sorted(found, key=lambda one: one.time_ns)


@pytest.mark.parametrize("how", [in_fragments, cooked])
@pytest.mark.parametrize("split", [1 << 30, 100_000, 20_000])
def test_packets_that_depend_on_each_other(
    packets: list[Packet], tmp_path: Path, how: Callable[[list[Packet]], list[Packet]], split: int
) -> None:
    odd = how(packets)
    link = 113 if how is cooked else 1
    third = len(odd) // 3
    files = written(tmp_path / "files", [odd[:third], odd[third : 2 * third], odd[2 * third :]], link)
    files += written(tmp_path / "more", [[Packet(one.data, one.time_ns) for one in packets[:50]]])
    go(files, tmp_path / "out", split=split, parts=3)
    same(tmp_path / "out", plain(files))


def test_too_many_conversations_to_be_told_apart_are_all_sent(
    packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "MANY", 5)
    files = written(tmp_path / "files", by_client(packets))
    merged = written(tmp_path / "merged", [packets[:1000]])
    found = plan([str(path) for path in [*files, *merged]], 1 << 30)
    assert [split.flows is None for split in found.splits] == [False] * len(files) + [True]
    assert {source.home for source in sources(found, 1)[0]} == {b""}
    go(files + merged, tmp_path / "out", split=whole(files))
    same(tmp_path / "out", plain(files + merged))


@pytest.mark.parametrize("large", [False, True], ids=["here", "by tasks"])
def test_packed_captures_are_unpacked_once_and_cut(
    packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    unpacked: list[str] = []
    real = splits.packing

    def counted(raw: Any) -> Any:
        found = real(raw)
        if found is not None:
            unpacked.append(raw.name)
        return found

    path = tmp_path / "c.pcap.gz"
    path.write_bytes(gzip.compress(pcap(packets, nano=True, snap=SNAP)))
    monkeypatch.setattr(splits, "packing", counted)
    if large:
        monkeypatch.setattr(pipeline, "LOCALLY", 0)
    cluster = Here(tmp_path / "scratch")
    run = go([path], tmp_path / "out", cluster, split=50_000, parts=2)
    assert len(run.plan.splits) > 3
    assert unpacked.count(str(path)) == 2, "once for its first bytes"
    same(tmp_path / "out", plain([path]))
    (row,) = tables_of(tmp_path / "out")["files"]
    assert (row["path"], row["size"], row["packets"]) == (str(path), path.stat().st_size, len(packets))
    assert row["unpacked"] == len(gzip.decompress(path.read_bytes()))


def test_many_captures_are_looked_at_by_tasks(packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "LOCALLY", 0)
    paths = [tmp_path / f"{at:02}.pcap" for at in range(20)]
    each = -(-len(packets) // len(paths))
    for at, path in enumerate(paths):
        path.write_bytes(pcap(packets[at * each : (at + 1) * each], nano=True, snap=SNAP))
    looked: list[int] = []

    class Counting(Here):
        def each(self, function: Callable[[Any], Any], items: Sequence[Any], watch: Watch) -> list[Any]:
            looked.append(len(items))
            return super().each(function, items, watch)

    run = go(paths, tmp_path / "out", Counting(), parts=2)
    assert [one.path for one in run.plan.splits] == [str(path) for path in paths]
    assert looked == [20]
    same(tmp_path / "out", plain(paths))


def test_few_tasks_do_much(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdump.spark.session.SPREAD", 3)
    counts: list[int] = []
    made = session.context.parallelize

    def parallelize(items: Sequence[Any], count: int) -> Any:
        counts.append(count)
        return made(items, count)

    monkeypatch.setattr(session.context, "parallelize", parallelize)
    assert session.each(str, list(range(20)), lambda *_: None) == [str(one) for one in range(20)]
    assert session.each(str, list(range(4)), lambda *_: None) == [str(one) for one in range(4)]
    assert counts == [6, 4]


@pytest.mark.parametrize("cut", [3000, -4000, -1, 30])
def test_packed_captures_that_are_cut_off_say_what_a_plain_run_says(packets: list[Packet], tmp_path: Path, cut: int) -> None:
    from streamdump.capture.files import open_capture
    from streamdump.errors import CaptureError

    path = tmp_path / "c.pcap.gz"
    path.write_bytes(gzip.compress(pcap(packets, nano=True, snap=SNAP))[:cut])
    with pytest.raises(CaptureError) as raised:
        for _ in open_capture(path):
            pass
    run = go([path], tmp_path / "out", split=50_000, parts=2)
    same(tmp_path / "out", plain([path]) if cut != 30 else {"messages": []})
    (error,) = run.plan.errors
    found = raised.value
    assert (error.path, error.reason, error.offset, error.packet) == (str(path), found.reason, found.offset, found.packet)
    assert error.lost == (None if cut != 30 else cut)


def test_all_golden_captures_at_once(tmp_path: Path) -> None:
    files = sorted(GOLDEN.glob("*/*.pcap*"))
    cluster = Here()
    run = go(files, tmp_path / "out", cluster, split=20_000)
    assert cluster.sent_bytes
    assert run.rows["files"] == len(files)
    same(tmp_path / "out", plain(files))
    inspector = Inspector([open_capture(path) for path in files])
    for _ in inspector.batches():
        pass
    # What others tell of a conversation names it by its number
    left_out = {"record", "v", "number", "time", "conversation", "facts", "processes"}
    wanted = [{name: value for name, value in msgspec.to_builtins(row).items() if name not in left_out} for row in inspector.rows()]
    found = [{name: row[name] for name in wanted[0]} for row in tables_of(tmp_path / "out")["conversations"]]
    as_text = [sorted(msgspec.json.encode(row).decode() for row in rows) for rows in (found, wanted)]
    assert as_text[0] == as_text[1]


def comparable(tables: dict[str, list[dict[str, Any]]], files: list[str]) -> dict[str, list[str]]:
    """All columns of all rows, but for what tells how often and in which form a file was read."""
    assert [row["path"] for row in sorted(tables["files"], key=lambda row: row["file"])] == files
    found = {}
    for table in ("messages", "exchanges", "conversations", "gaps", "endings", "errors"):
        # What is wrong with a file may name another.
        left_out = {"date", "point", "path", "reason" if table == "errors" else ""}
        found[table] = sorted(repr({name: row[name] for name in sorted(row.keys() - left_out)}) for row in tables[table])
    return found


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Captures of all families, under names that sort as they are listed."""
    place = tmp_path_factory.mktemp("some")
    for at, path in enumerate(sorted(path for path in GOLDEN.glob("*/*.pcap*") if path.suffix != ".gz")[1::5]):
        (place / f"{at:02}{path.suffix}").write_bytes(path.read_bytes())
    return sorted(place.iterdir())


@pytest.fixture(scope="module")
def at_once(some: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What one task says of them."""
    out = tmp_path_factory.mktemp("at_once") / "out"
    cluster = Here()
    go(some, out, cluster)
    assert cluster.tasks == 1
    return comparable(tables_of(out), [str(path) for path in some])


@pytest.mark.parametrize("how", ["cut", "delta", "packed", "a store"])
def test_all_columns_are_the_same_however_they_were_made(
    some: list[Path], at_once: dict[str, list[str]], tmp_path: Path, bucket: str, how: str
) -> None:
    files = [str(path) for path in some]
    more: dict[str, Any] = {"split": 20_000}
    form = "delta" if how == "delta" else "parquet"
    out = f"{bucket}/out" if how == "a store" else str(tmp_path / "out")
    if how == "packed":
        # One that is packed already is not packed twice
        files = [str(tmp_path / f"{path.name.removesuffix('.gz')}.gz") for path in some]
        for path, name in zip(some, files, strict=True):
            data = path.read_bytes()
            Path(name).write_bytes(data if path.suffix == ".gz" else gzip.compress(data))
    elif how == "a store":
        files = [f"{bucket}/captures/{path.name}" for path in some]
        for path, name in zip(some, files, strict=True):
            folder(name).write(path.read_bytes())
    cluster = Here()
    go(files, out, cluster, form=form, **more)
    assert cluster.sent_bytes
    found = comparable(tables_of(out, form), files)
    if how == "packed":
        # Nobody knows how many packed bytes were lost.
        found["errors"] = at_once["errors"]
    assert found == at_once


def test_each_capture_kept_separate_says_what_it_says_alone(some: list[Path], tmp_path: Path) -> None:
    folders = []
    for path in some:
        folders.append(tmp_path / path.name)
        folders[-1].mkdir()
        (folders[-1] / "c").write_bytes(path.read_bytes())
    go(folders, tmp_path / "out", split=20_000, separate=True)
    same(tmp_path / "out", apart([one / "c" for one in folders]))


def rows(count: int, dice: random.Random, size: int) -> list[Row]:
    """Some rows in no order."""
    return [(*(dice.randrange(-most, most) for most in (5, 4, 3, 6)), dice.randbytes(dice.randrange(size))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_put_in_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    for name, values in {"ROUND": (1, 5000, 1 << 20), "RUNS": (2, 3, 100)}.items():
        monkeypatch.setattr(ordered, name, dice.choice(values))
    given = rows(dice.choice([0, 1, 7, 500]), dice, dice.choice([1, 50, 2000]))
    assert list(Ordered(given)) == sorted(given)


def test_of_many_rows_few_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "ROUND", 100_000)
    monkeypatch.setattr(ordered, "RUNS", 100)
    tracemalloc.start()
    found = iter(Ordered((0, one, 0, one, bytes(1000)) for one in reversed(range(20_000))))
    assert all(row[1] == at for at, row in enumerate(found))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000


@pytest.mark.parametrize("there", [True, False])
def test_rows_wait_where_spark_keeps_them_if_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    places: list[Any] = []
    made = tempfile.TemporaryFile
    monkeypatch.setattr(ordered, "ROUND", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *, dir: places.append(dir) or made(dir=dir))
    place = tmp_path / "spark"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{place},{tmp_path}")
    if there:
        place.mkdir()
    assert list(Ordered([(0, 0, 0, 1, b"")])) == [(0, 0, 0, 1, b"")]
    assert places == [str(place if there else tmp_path)]


def test_rotated_captures_of_all_kinds(packets: list[Packet], tmp_path: Path) -> None:
    files = rotated(tmp_path / "rotated", packets)
    go(files, tmp_path / "out", split=20_000, parts=3)
    same(tmp_path / "out", plain(files))
