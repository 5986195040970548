"""Ranges of captures: however they are cut, the packets are the same, and a capture that cannot be cut is read in one piece."""

from __future__ import annotations

import gzip
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from streamdump.errors import CaptureError, UsageError
from streamdump.spark import storage
from streamdump.spark.rows import row_of, segments
from streamdump.spark.splits import Plan, expand, plan, unpack
from tests.spark.captures import SNAP, generated, records
from tests.support.frames import (
    START_NS,
    Packet,
    block,
    enhanced,
    ethernet,
    interface,
    ip4,
    obsolete,
    pcap,
    pcapng,
    section,
    simple,
    tcp,
)
from tests.tls.peers import secrets_block


def rows(found: Plan) -> list[Any]:
    """Time, number and segment of all packets."""
    some = (one for split in found.splits for segments_of, _ in segments([split]) for one in segments_of)
    return [(latest_ns, number, data) for _, latest_ns, _, number, data in (row_of(one, None) for one in some)]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("splits"))


@pytest.mark.parametrize("split", [10_000, 33_333, 100_000])
@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_the_packets_are_the_same_however_a_capture_is_cut(capture: Path, tmp_path: Path, kind: str, split: int) -> None:
    path = capture
    if kind == "pcapng":
        path = tmp_path / "c.pcapng"
        path.write_bytes(
            b"".join([section(), interface(snap=SNAP, resolution=9), *(enhanced(one, ticks=one.time_ns) for one in records(capture))])
        )
    whole, cut = plan([str(path)], 1 << 30), plan([str(path)], split)
    assert len(whole.splits) == 1
    assert len(cut.splits) > path.stat().st_size // split // 2
    assert not cut.errors
    assert [one.stop for one in cut.splits[:-1]] == [one.start for one in cut.splits[1:]]
    assert rows(cut) == rows(whole)


def nested(size: int) -> list[Packet]:
    """Packets whose payload is a capture itself, in pieces of `size` bytes."""
    inner = pcap([Packet(ethernet(ip4(tcp(bytes(100), seq=at))), START_NS + at) for at in range(3000)], snap=SNAP)
    pieces = [inner[at : at + size] for at in range(0, len(inner), size)]
    return [Packet(ethernet(ip4(tcp(piece, seq=at))), START_NS + at) for at, piece in enumerate(pieces)]


@pytest.mark.parametrize("size", [777, 1448])
@pytest.mark.parametrize("make", [pcap, pcapng])
def test_a_capture_inside_of_packets_does_not_mislead(tmp_path: Path, size: int, make: Any) -> None:
    path = tmp_path / "nested"
    path.write_bytes(make(nested(size), snap=SNAP) if make is pcap else make(nested(size)))
    assert rows(plan([str(path)], 20_000)) == rows(plan([str(path)], 1 << 30))


def test_a_capture_inside_of_a_packet_that_is_longer_than_it_may_be_does_not_mislead(tmp_path: Path) -> None:
    bait = pcap([Packet(bytes(60), START_NS + at) for at in range(4000)], snap=SNAP)[24:]
    path = tmp_path / "bait.pcap"
    plain = [Packet(ethernet(ip4(tcp(b"x", seq=at))), START_NS) for at in range(2000)]
    path.write_bytes(pcap([*plain[:10], Packet(bait, START_NS), *plain], snap=SNAP))
    found = plan([str(path)], 50_000)
    assert not found.errors
    assert len(found.splits) == 4
    assert found.packets == 2011
    assert rows(found) == rows(plan([str(path)], 1 << 30))


def test_noise_between_ranges_ends_the_file_where_a_plain_run_ends(capture: Path, tmp_path: Path) -> None:
    data = bytearray(capture.read_bytes())
    data[200_000:200_400] = random.Random(1).randbytes(400)
    path = tmp_path / "noise.pcap"
    path.write_bytes(data)
    cut, whole = plan([str(path)], 30_000), plan([str(path)], 1 << 30)
    assert rows(cut) == rows(whole)
    (one,), (other,) = cut.errors, whole.errors
    assert (one.offset, one.packet, one.reason, one.lost) == (other.offset, other.packet, other.reason, other.lost)
    assert one.fatal and one.lost and one.offset is not None
    assert one.offset + one.lost == len(data)


def test_a_cut_file_loses_its_last_packet_only(capture: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(capture.read_bytes()[:-3])
    found = plan([str(path)], 30_000)
    (error,) = found.errors
    assert found.packets == len(records(capture)) - 1 == error.packet
    assert error.reason == f"cut off in packet {found.packets + 1}: 3 bytes are missing"


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        ([section(), interface(resolution=9)], "the file has several sections"),
        ([interface(resolution=6)], "interfaces are described in mid-file"),
        ([simple(Packet(bytes(60)))], "packets have no time"),
    ],
)
def test_pcapng_whose_blocks_depend_on_others_is_not_cut(capture: Path, tmp_path: Path, between: list[bytes], reason: str) -> None:
    packets = [enhanced(one, ticks=one.time_ns) for one in records(capture)]
    path = tmp_path / "c.pcapng"
    path.write_bytes(b"".join([section(), interface(snap=SNAP, resolution=9), *packets[:2000], *between, *packets[2000:]]))
    found = plan([str(path)], 50_000)
    assert [error.reason.partition(";")[0] for error in found.errors] == [reason]
    assert rows(found) == rows(plan([str(path)], 1 << 30))


def test_a_packed_capture_that_is_not_cut_loses_nothing(capture: Path, tmp_path: Path) -> None:
    packets = [enhanced(one, ticks=one.time_ns) for one in records(capture)]
    path = tmp_path / "c.pcapng.gz"
    path.write_bytes(gzip.compress(b"".join([section(), interface(resolution=9), *packets[:2000], interface(), *packets[2000:]])))
    found = plan([str(path)], 50_000, unpacked=lambda some: [unpack((one, str(tmp_path / "copy"))) for one in some])
    assert [(error.code, error.lost, error.fatal) for error in found.errors] == [("one-piece", 0, False)]


def test_a_capture_that_has_changed_is_reported_with_its_place(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.pcap"
    path.write_bytes(capture.read_bytes())
    found = plan([str(path)], 50_000)
    start = found.splits[2].start
    data = bytearray(path.read_bytes())
    data[start + 8 : start + 12] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    with pytest.raises(CaptureError, match=rf"c.pcap: has changed since .* claims 2147483647 bytes, .* \(at byte {start}\)"):
        rows(found)

    def full(_: str) -> Any:
        raise CaptureError("too many open files", str(path))

    # What is wrong with the system says nothing about the file
    monkeypatch.setattr(storage, "open_input", full)
    with pytest.raises(CaptureError, match=r"c\.pcap: too many open files"):
        rows(found)


def test_interfaces_of_a_cut_pcapng_keep_their_links_and_resolutions(capture: Path, tmp_path: Path) -> None:
    head = section() + interface(snap=SNAP, resolution=9) + interface(101, snap=SNAP, resolution=6)
    packets = records(capture)
    blocks = [
        enhanced(one, ticks=one.time_ns)
        if at % 2
        else enhanced(Packet(one.data[14:], one.time_ns), index=1)
        if at % 4
        else obsolete(Packet(one.data[14:], one.time_ns), index=1)
        for at, one in enumerate(packets)
    ]
    path = tmp_path / "c.pcapng"
    path.write_bytes(head + b"".join(blocks))
    cut = plan([str(path)], 40_000)
    assert len(cut.splits) > 5
    assert rows(cut) == rows(plan([str(path)], 1 << 30))


def test_keys_before_the_first_packet_stay_in_the_file_which_is_cut(capture: Path, tmp_path: Path) -> None:
    keys = b"CLIENT_RANDOM " + random.Random(1).randbytes(60_000).hex().encode()
    packets = [enhanced(one, ticks=one.time_ns) for one in records(capture)]
    path = tmp_path / "c.pcapng"
    path.write_bytes(b"".join([section(), secrets_block(keys), interface(snap=SNAP, resolution=9), *packets]))
    found = plan([str(path)], 150_000)
    assert len(found.splits) > 2
    assert not found.errors
    assert found.secrets == [str(path)]
    assert keys[-20:] not in pickle.dumps(found)
    assert rows(found) == rows(plan([str(path)], 1 << 30))


def test_what_comes_before_the_first_packet_is_not_read_again_where_it_is_longer_than_a_range(capture: Path, tmp_path: Path) -> None:
    packets = [enhanced(one, ticks=one.time_ns) for one in records(capture)]
    path = tmp_path / "c.pcapng"
    path.write_bytes(b"".join([section(), interface(snap=SNAP, resolution=9), block(77, bytes(50_000)), *packets]))
    assert len(plan([str(path)], 40_000).splits) == 1
    assert len(plan([str(path)], 60_000).splits) > 3


def test_what_is_no_capture_is_told_and_the_others_are_read(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.pcap").write_bytes(b"")
    (tmp_path / "text.pcap").write_text("hello there, this is no capture")
    found = plan([str(tmp_path / "empty.pcap"), str(capture), str(tmp_path / "text.pcap"), str(tmp_path / "gone.pcap")])
    assert [(one.file, one.reason.partition(":")[0]) for one in found.errors] == [
        (0, "is empty"),
        (2, "is not a capture"),
        (3, "no such file"),
    ]
    assert found.packets == len(records(capture))


@pytest.mark.parametrize("size", [1, 3, 4, 23])
def test_of_a_file_that_is_cut_off_in_its_first_bytes_all_are_lost(capture: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "cut.pcap").write_bytes(capture.read_bytes()[:size])
    (error,) = plan([str(tmp_path / "cut.pcap")]).errors
    assert (error.code, error.lost) == ("truncated", size)


def test_other_files_of_a_folder_are_left_out_by_name_and_content(capture: Path, tmp_path: Path) -> None:
    whole = capture.read_bytes()
    folder = tmp_path / "all"
    folder.mkdir()
    for name, data in (("a.pcap", whole), ("trace", whole), ("trace.gz", gzip.compress(whole)), ("text.pcap", b"text"), ("empty", b"")):
        (folder / name).write_bytes(data)
    for name, data in (("README.md", b"# What it is"), ("keys.log", b"CLIENT_RANDOM"), ("keys.log.gz", gzip.compress(b"CLIENT_RANDOM"))):
        (folder / name).write_bytes(data)
    kept = [str(folder / name) for name in ("a.pcap", "empty", "text.pcap", "trace", "trace.gz")]
    for source in (folder, folder / "*"):
        others: list[str] = []
        assert expand([str(source)], others) == kept
        assert others == [str(folder / name) for name in ("README.md", "keys.log", "keys.log.gz")]
    assert len(expand([str(folder)])) == 8
    # What is named is read, and told if it cannot be
    assert expand([str(folder / "README.md")], others := []) == [str(folder / "README.md")]
    assert not others
    with pytest.raises(UsageError, match="none of the files is a capture"):
        expand([str(folder / "keys*")], [])


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.pcap", "a.pcap", "c.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "none").mkdir()
    names = [str(tmp_path / name) for name in ("a.pcap", "b.pcap", "c.txt")]
    assert expand([str(tmp_path)]) == names
    assert expand([str(tmp_path / "*.pcap"), names[0]]) == names[:2]
    for wrong in (str(tmp_path / "none"), str(tmp_path / "*.x")):
        with pytest.raises(UsageError):
            expand([wrong])


def test_a_link_to_a_file_of_the_folder_is_no_second_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder/a.pcap", "outside.pcap"):
        (tmp_path / name).write_bytes(b"")
    for name, to in (("latest.pcap", "a.pcap"), ("linked.pcap", "../outside.pcap")):
        (tmp_path / "folder" / name).symlink_to(to)
    names = [str(tmp_path / "folder" / name) for name in ("a.pcap", "linked.pcap", "latest.pcap")]
    assert expand([str(tmp_path / "folder")]) == names[:2]
    assert expand([str(tmp_path / "folder"), names[2]]) == names, "what is named is wanted"


def test_links_to_nothing_do_not_stop_the_others_and_those_to_hidden_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    for name in ("a.pcap", ".hidden/b.pcap"):
        (tmp_path / name).write_bytes(b"")
    for name, to in (("one", "two"), ("two", "one"), ("gone", "nothing"), ("b.pcap", ".hidden/b.pcap")):
        (tmp_path / name).symlink_to(to)
    assert expand([str(tmp_path)]) == [str(tmp_path / name) for name in ("a.pcap", "b.pcap")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read_is_lost_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(bytes(77))
    (tmp_path / "a.pcap").chmod(0)
    (error,) = plan([str(tmp_path / "a.pcap")]).errors
    assert error.lost == 77


def test_names_that_are_not_utf8_do_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in (b"a.pcap", b"\xff.pcap", b"_\xff.pcap"):
        (tmp_path / "folder" / os.fsdecode(name)).write_bytes(b"")
    names = [f"{tmp_path}/folder/a.pcap", f"file://{tmp_path}/folder/%FF.pcap"]
    for source in ("folder", "folder/*.pcap", "*/*", "**", "f**/**", "f*/[!x].pcap", "f*/[!]x]*"):
        assert expand([str(tmp_path / source)]) == names
