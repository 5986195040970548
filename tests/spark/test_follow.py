"""Following a folder: what its micro-batches write together is what a plain run says of all captures, whatever happens between them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli import following
from streamdump.errors import UsageError
from streamdump.model import Options
from streamdump.spark import follow, sink
from streamdump.spark.follow import Follow
from streamdump.spark.pipeline import Batch, PipelineSettings
from streamdump.spark.rotation import Rotation
from streamdump.spark.storage import Folder
from tests.spark.captures import SNAP, fragments, generated, records
from tests.spark.comparing import plain, tables_of, told
from tests.spark.here import Here
from tests.support.frames import Packet, ethernet, ip4, pcap, pcapng, sll, tcp
from tests.support.planting import GOLDEN
from tests.support.rewrite import capture as capture_of
from tests.support.rewrite import packets as packets_of


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    return records(generated(tmp_path_factory.mktemp("follow"), 1500, 5))


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder in whose name others see a pattern."""
    made = tmp_path / "a [b]{c,d}?*\\%41"
    made.mkdir()
    return made


Begin = Callable[..., Follow]


@pytest.fixture
def cluster() -> Any:
    return Here()


@pytest.fixture
def begin(cluster: Any, tmp_path: Path) -> Iterator[Begin]:
    """Starts to follow, as a new process would."""
    started: list[Follow] = []

    def made(settle_s: float = 3600, **more: Any) -> Follow:
        for one in started:
            one.close()
        started.clear()
        folder = tmp_path / "captures"
        folder.mkdir(exist_ok=True)
        settings = PipelineSettings([str(folder)], **{"parts": 2, "split": 40_000, **more})
        started.append(Follow(settings, str(tmp_path / "out"), Rotation(folder, int(settle_s * 1e9))))
        started[0].cluster = cluster
        return started[0]

    yield made
    for one in started:
        one.close()


def write(folder: Path, name: str, packets: list[Packet]) -> Path:
    path = folder / name
    data = pcapng(packets) if name.endswith("pcapng") else pcap(packets, nano=True, snap=SNAP)
    path.write_bytes(data)
    return path


def table(out: Path, name: str) -> list[dict[str, Any]]:
    return tables_of(out)[name]


def same(out: Path, files: list[Path]) -> None:
    for name, lines in plain(files).items():
        assert told(name, table(out, name)) == lines
    assert [row["path"] for row in sorted(table(out, "files"), key=lambda row: row["file"])] == [str(path) for path in files]


def all_of_it(work: Follow) -> list[Batch]:
    found = []
    while (batch := work.step(end=True)) is not None:
        found.append(batch)
    return found


def test_micro_batches_say_what_a_plain_run_says(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    assert work.step() is None
    quarter = len(packets) // 4
    files = [write(folder, "c-0.pcapng", packets[:quarter])]
    assert work.step() is None, "it may be written to"
    for at in range(1, 4):
        files.append(write(folder, f"c-{at}.pcapng", packets[at * quarter : None if at == 3 else (at + 1) * quarter]))
        batch = work.step()
        assert batch is not None
        assert (batch.number, batch.files, batch.packets) == (at, 1, quarter)
        assert batch.rows["messages"] > 100
        assert len(table(out, "messages")) == work.state.rows["messages"]
    assert work.state.carry
    assert (out / ".follow").stat().st_mode & 0o777 == 0o700, "what is carried may hold secrets"
    (last,) = all_of_it(work)
    assert last.packets == len(packets) - 3 * quarter
    assert last.rows["conversations"] == 5
    same(out, files)
    assert not work.state.carry


def test_a_small_micro_batch_is_one_task_and_so_is_one_without_packets(
    begin: Begin, cluster: Any, packets: list[Packet], tmp_path: Path
) -> None:
    work = begin(split=1 << 26, parts=None)
    files = [write(tmp_path / "captures", f"c-{at}.pcap", packets[at * 500 : (at + 1) * 500]) for at in range(3)]
    for path in files:
        os.utime(path, (0, 0))
    assert work.step() is not None
    assert work.state.carry
    assert (cluster.tasks, cluster.sent_bytes) == (1, 0)
    batch = work.step(end=True)
    assert batch is not None
    assert (batch.files, batch.packets, batch.rows["conversations"]) == (0, 0, 5)
    assert (cluster.tasks, cluster.sent_bytes) == (2, 0)
    same(tmp_path / "out", files)


def test_conversations_that_are_over_are_told_before_the_end_but_not_for_a_wrong_clock(
    begin: Begin, packets: list[Packet], tmp_path: Path
) -> None:
    def later(hours: int) -> list[Packet]:
        return [Packet(one.data, one.time_ns + hours * 3_600_000_000_000) for one in packets[:1]]

    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    write(folder, "c-1.pcap", packets[:300] + later(10_000) + packets[300:400])
    write(folder, "c-2.pcap", packets[400:500])
    write(folder, "c-3.pcap", later(2))
    for _ in range(2):
        batch = work.step()
        assert batch is None or batch.rows["conversations"] == 0
    write(folder, "c-4.pcap", later(2))
    batch = work.step()
    assert batch is not None
    rows = table(out, "conversations")
    assert len(rows) == batch.rows["conversations"] == 4
    assert {row["ended"] for row in rows} == {"forgotten after a long time without a packet"}


class Killed(BaseException):
    """Ends a driver where it is."""


@pytest.mark.parametrize("where", ["last_part", "commit", "half published"])
def test_every_row_is_there_once_wherever_the_driver_is_killed(
    begin: Begin, packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    third = len(packets) // 3
    files = [write(folder, f"c-{at}.pcap", packets[at * third : (at + 1) * third]) for at in range(2)]
    assert work.step() is not None

    renamed = 0

    def killed(*arguments: Any, **more: Any) -> Any:
        nonlocal renamed
        renamed += 1
        if where == "half published" and renamed < 3:
            return real(*arguments, **more)
        raise Killed

    files.append(write(folder, "c-2.pcap", packets[2 * third :]))
    with monkeypatch.context() as patched:
        if where == "half published":
            real = Folder.move
            patched.setattr(Folder, "move", killed)
        else:
            patched.setattr(*((sink.Sink, where) if where == "commit" else (Follow, where)), killed)
        with pytest.raises(Killed):
            work.step()
    work = begin()
    all_of_it(work)
    same(out, files)
    assert [path.name for path in (out / ".follow").glob("batch-*")] == [work.state.place]
    for name in work.state.rows:
        assert len(table(out, name)) == work.state.rows[name]


def test_a_file_that_grows_is_read_on_and_its_cut_end_is_no_damage(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin(settle_s=0)
    whole = pcap(packets, nano=True, snap=SNAP)
    path = folder / "c.pcap"
    for end in (len(whole) // 3 + 5, len(whole) // 2 + 9, len(whole)):
        path.write_bytes(whole[:end])
        batch = work.step()
        assert batch is not None
        assert batch.errors == []
        assert work.step() is None
    all_of_it(work)
    for name, lines in plain([path]).items():
        assert told(name, table(out, name)) == lines
    found = table(out, "files")
    assert len(found) == 3
    assert {row["file"] for row in found} == {0}
    assert sum(row["packets"] for row in found) == len(packets)
    assert sum(row["size"] for row in found) == len(whole)
    assert table(out, "errors") == []


def test_packets_of_a_file_that_grows_depend_on_those_read_before(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin(settle_s=0)
    cooked = [Packet(sll(one.data[14:], kind), one.time_ns + 4 - kind) for one in packets[:400] for kind in (4, 0)]
    some: list[Packet] = []
    for at, one in enumerate(packets[400:800]):
        some += fragments(one, at, 48) if len(one.data) > 120 else [one]
    border = next(at for at in range(200, len(some)) if some[at].data[20] & 0x20)
    # The cuts part the copies of a packet, and its fragments
    for name, every, first, link in (("a.pcap", cooked, 399, 113), ("b.pcap", some, border + 1, 1)):
        for part in (every[:first], every):
            (folder / name).write_bytes(pcap(part, link=link, nano=True, snap=SNAP))
            assert work.step() is not None
    all_of_it(work)
    files = [folder / "a.pcap", folder / "b.pcap"]
    for name, lines in plain(files).items():
        assert told(name, table(out, name)) == lines
    assert not any(row["retransmissions"] for row in table(out, "conversations"))


def test_a_cut_end_is_an_error_once_nothing_can_follow(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin(settle_s=0)
    data = pcap(packets[:300], nano=True, snap=SNAP)
    first = folder / "c-1.pcap"
    first.write_bytes(data[:-7])
    batch = work.step()
    assert batch is not None
    assert batch.errors == []
    second = write(folder, "c-2.pcap", packets[300:600])
    batch = work.step()
    assert batch is not None
    (error,) = batch.errors
    assert (error.path, error.reason) == (str(first), "cut off in packet 300: 7 bytes are missing")
    all_of_it(work)
    same(out, [first, second])
    assert [row["path"] for row in table(out, "errors")] == [str(first)]


def test_a_cut_end_is_one_error_under_another_name_too(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin(settle_s=0)
    first = folder / "now.pcap"
    first.write_bytes(pcap(packets[:300], nano=True, snap=SNAP)[:-7])
    assert work.step() is not None
    first.rename(folder / "done.pcap")
    second = write(folder, "now.pcap", packets[300:600])
    batches = all_of_it(work)
    assert [len(batch.errors) for batch in batches] == [1]
    assert [row["reason"] for row in table(out, "errors")] == ["cut off in packet 300: 7 bytes are missing"]
    for name, lines in plain([folder / "done.pcap", second]).items():
        assert told(name, table(out, name)) == lines


def test_a_file_whose_rest_is_deleted_is_one_error(
    begin: Begin, packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = begin(settle_s=0)
    path = tmp_path / "captures" / "c.pcap"
    data = pcap(packets[:300], nano=True, snap=SNAP)
    path.write_bytes(data[:-1000])
    assert work.step() is not None
    path.write_bytes(data)

    def deleted(*_: Any) -> None:
        path.unlink()
        raise OSError("gone")

    look = Follow.look
    monkeypatch.setattr(Follow, "look", lambda self, files, *more: deleted() if path.exists() else look(self, files, *more))
    all_of_it(work)
    (error,) = table(tmp_path / "out", "errors")
    assert (error["reason"], error["lost"]) == ("was deleted or written anew before it was read", 1000)


def test_what_is_no_capture_is_an_error_and_costs_only_itself(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin(settle_s=0)
    files = [write(folder, "c-1.pcap", packets[:200])]
    assert work.step() is not None
    carried = work.state.carry
    assert carried
    files.append(folder / "notes.txt")
    files[1].write_text("this is no capture")
    batch = work.step()
    assert batch is not None
    assert [error.reason.partition(":")[0] for error in batch.errors] == ["is not a capture"]
    assert work.state.carry == carried, "open conversations are kept"
    # What has no packet comes last.
    files += [write(folder, "c-2.pcap", packets[200:400]), folder / "empty.pcap"]
    files[3].write_bytes(b"")
    (batch,) = all_of_it(work)
    assert [error.reason for error in batch.errors] == ["is empty"]
    same(out, files)


def test_a_file_that_a_ring_deletes_too_early_is_an_error(
    begin: Begin, packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    first = write(folder, "c-1.pcap", packets[:300])
    write(folder, "c-2.pcap", packets[300:600])
    tasks = Follow.tasks

    def deleted(self: Follow, *arguments: Any, **more: Any) -> Any:
        first.unlink(missing_ok=True)
        return tasks(self, *arguments, **more)

    monkeypatch.setattr(Follow, "tasks", deleted)
    batches = all_of_it(work)
    errors = table(out, "errors")
    assert [(row["path"], row["reason"]) for row in errors] == [(str(first), "was deleted or written anew before it was read")]
    assert sum(batch.packets for batch in batches) == 300
    assert table(out, "messages")


def test_a_file_that_is_written_anew_while_it_is_read_is_none_of_the_two(
    begin: Begin, packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    first = write(folder, "c-1.pcap", packets[:200])
    write(folder, "c-2.pcap", packets[200:250])
    tasks = Follow.tasks
    size = first.stat().st_size

    def overwritten(self: Follow, *arguments: Any, **more: Any) -> Any:
        if first.stat().st_size == size:
            write(folder, "c-1.pcap", packets[250:600])
        return tasks(self, *arguments, **more)

    monkeypatch.setattr(Follow, "tasks", overwritten)
    batches = all_of_it(work)
    (error,) = table(out, "errors")
    assert (error["path"], error["reason"]) == (str(first), "was deleted or written anew before it was read")
    assert sum(batch.packets for batch in batches) == 400
    assert sorted(row["packets"] for row in table(out, "files")) == [50, 350]


def test_a_ring_that_is_always_faster_is_told_and_followed_on(
    begin: Begin, packets: list[Packet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    made = [write(folder, f"c-{at}.pcap", packets[at * 10 : at * 10 + 10]) for at in range(8)]
    looked = Follow.look

    def deleted(self: Follow, files: list[str], *more: Any) -> Any:
        if files:
            Path(files[0]).unlink()
        found = looked(self, files, *more)
        if found.errors:
            raise OSError("gone")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Follow, "look", deleted)
        batch = work.step()
    assert batch is not None
    assert (batch.files, len(batch.errors)) == (0, 1)
    all_of_it(work)
    assert [row["path"] for row in table(out, "errors")] == [str(made[0])]
    assert len(table(out, "files")) == 7


@pytest.mark.parametrize("grows", [False, True])
def test_what_is_packed_after_it_was_read_is_not_read_twice(begin: Begin, packets: list[Packet], tmp_path: Path, grows: bool) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin(settle_s=0)
    first = write(folder, "c-1.pcap", packets[: 200 if grows else 300])
    if not grows:
        write(folder, "c-2.pcap", packets[300:])
    assert work.step() is not None
    kept = write(tmp_path, "c-1.pcap", packets[:300])
    (folder / "c-1.pcap.gz").write_bytes(gzip.compress(kept.read_bytes()))
    first.unlink()
    second = write(folder, "c-2.pcap", packets[300:])
    work = begin(settle_s=0)
    all_of_it(work)
    for name, lines in plain([kept, second]).items():
        assert told(name, table(out, name)) == lines
    assert table(out, "errors") == []


def test_a_protocol_that_hides_a_login_of_another_is_warned_of_once(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following.signal, "signal", lambda *_: None)
    monkeypatch.setattr(follow, "BATCH_BYTES", 1)
    work = begin(options=Options(decode_as=((5552, "iggy", None),)))
    login = packets_of(GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap")
    for at, some in enumerate((login[:-1], login[-1:])):
        (tmp_path / "captures" / f"{at}.pcap").write_bytes(capture_of(some).getvalue())
    following.follow(Here(), work, lambda: None, every_s=0, finish=True, quiet=False)  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    warned = [at for at, line in enumerate(lines) if "is decoded as iggy because of -d, but contains a login of rabbitmq-stream: " in line]
    # As soon as it is known, not when the conversation ends
    assert warned == [0]
    assert [" micro-batch " in line for line in lines] == [False, True, True, False]


def test_a_packet_with_a_time_to_come_ends_no_conversation(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    folder, out = tmp_path / "captures", tmp_path / "out"
    work = begin()
    far = Packet(ethernet(ip4(tcp(b""))), 4_000_000_000 * 10**9)
    files = [write(folder, "c-0.pcap", [*packets[:300], far]), write(folder, "c-1.pcap", packets[300:])]
    assert work.step() is not None
    assert work.state.carry
    all_of_it(work)
    same(out, files)


def test_tables_without_their_state_are_left_alone(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    work = begin()
    write(tmp_path / "captures", "c.pcap", packets[:50])
    all_of_it(work)
    state = tmp_path / "out" / ".follow" / "state.json"
    state.rename(state.with_name("other.json"))
    with pytest.raises(UsageError, match="is missing, so the contents of the tables are unknown"):
        begin()
    for text, said in (('{"v": 1', "cannot be read"), ('{"v": 1, "like": {}, "taken": {"c": {}}}', "by another version of streamdump")):
        state.write_text(text)
        with pytest.raises(UsageError, match=said):
            begin()


def test_an_output_is_followed_into_by_one_process_with_the_same_options(begin: Begin, packets: list[Packet], tmp_path: Path) -> None:
    work = begin()
    write(tmp_path / "captures", "c.pcap", packets[:50])
    all_of_it(work)
    with pytest.raises(UsageError, match="another streamdump follows into it"):
        Follow(work.settings, str(tmp_path / "out"), work.rotation)
    with pytest.raises(UsageError, match="was started with other options \\(another --point\\)"):
        begin(point="c")
