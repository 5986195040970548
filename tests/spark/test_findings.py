"""Findings are those of `diagnose --json`, however captures are cut, sent and put together."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.capture.link import LinkParser
from streamdump.diagnose.engine import Diagnoser
from streamdump.inspector import Inspector
from streamdump.model import Finding, Message, Options, Segment
from streamdump.spark import pipeline
from tests.diagnose.talks import MS, Connection, capture
from tests.diagnose.test_iggy import OFFSETS, reconnected, took
from tests.diagnose.test_rabbitmq import LOST
from tests.spark.captures import UNITS, generated, records
from tests.spark.comparing import tables_of
from tests.spark.here import go
from tests.support.frames import START_NS, Packet, pcap, sll

ETHERNET = bytes.fromhex("01000000")
CAPTURES = Path(__file__).parents[2] / "captures"
SAID = ("time_ns", "src", "dst", "sender", "protocol", "rule", "severity", "cause", "advice")


def cut(path: Path, count: int, folder: Path) -> list[Path]:
    """The packets of a little-endian pcap file, in `count` files."""
    data, at, ends = path.read_bytes(), 24, [24]
    while at < len(data):
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
        ends.append(at)
    borders = [ends[(len(ends) - 1) * place // count] for place in range(count + 1)]
    found = []
    for place, (start, stop) in enumerate(pairwise(borders)):
        if start < stop:
            found.append(folder / f"{path.stem}-{place:02}.pcap")
            found[-1].write_bytes(data[:24] + data[start:stop])
    return found


def first_packet(first: Segment) -> int:
    return first.file << 40 | first.number


def plainly(files: Sequence[Path]) -> Counter[Any]:
    """The findings of a plain run, with conversations by their beginning and messages by their place."""
    inspector = Inspector([open_capture(file) for file in files], Options(findings=True))
    inspector.read_with(LinkParser(), first_packet)
    places: dict[int, Any] = {}
    found = []
    for one in inspector.records():
        if type(one) is Message:
            places[one.number] = one.file, one.packets[1], one.src, one.position
        elif type(one) is Finding:
            found.append(one)
    starts = {row.conversation: (row.time_ns, row.client, row.server) for row in inspector.rows(related=False)}
    return Counter(
        (*[getattr(one, name) for name in SAID], starts.get(one.conversation or 0), tuple(places[at] for at in one.messages), *one.packets)
        for one in found
    )


def piped(files: Sequence[Path], out: Path, cluster: Any = None, **more: Any) -> Counter[Any]:
    """The same of the table `findings`."""
    go(files, out, cluster, findings=True, **more)
    rows = tables_of(out)
    places = {row["message_id"]: (row["file"], row["last_packet"], row["src"], row["position"]) for row in rows["messages"]}
    starts = {row["conversation"]: (row["time_ns"], row["client"], row["server"]) for row in rows["conversations"]}
    assert all(row["message_id"] == (row["messages"] or [None])[0] for row in rows["findings"])
    return Counter(
        (*[row[name] for name in SAID], starts.get(row["conversation"]), tuple(places[at] for at in row["messages"]), *row["packets"])
        for row in rows["findings"]
    )


def differences(what: str, files: Sequence[Path], out: Path, cluster: Any = None, **more: Any) -> list[str]:
    """What is missing in the table, and what it has instead."""
    wanted, found = plainly(files), piped(files, out, cluster, **more)
    return [f"{what} {sign} {one}" for sign, some in (("-", wanted - found), ("+", found - wanted)) for one in some.elements()]


ACROSS = (
    "golden/iggy/leader-not-dialled.pcap",
    "golden/rabbitmq-stream/rstream_name_not_resolved_405.pcap",
    "golden/seastar-rpc/timeout_expiry.pcap",
    "samples/reports/backlog_one_of_ten.pcap",
    "samples/reports/dnat_both_sides.pcap",
    "samples/reports/dns_nxdomain.pcap",
    "samples/reports/lb_never_leader.pcap",
    "samples/reports/p8_icmp_prohibited.pcap",
    "samples/reports/r02b_proxy_rst.pcap",
    "samples/reports/sac_stale_offset.pcap",
    "samples/reports/seastar_reset_after_first_call.pcap",
    "samples/reports/stream_deleted_consumer_idle.pcap",
    "samples/reports/unacked_pmtu_icmp.pcap",
)
"""Captures in which several conversations together show something, or with ICMP or DNS."""


def test_findings_of_several_conversations_in_many_files_and_parts(tmp_path: Path) -> None:
    found: list[str] = []
    for name in ACROSS:
        folder = tmp_path / Path(name).stem
        folder.mkdir()
        found += differences(name, cut(CAPTURES / name, 40, folder), folder / "out", split=5_000, parts=4)
    assert not found, "\n".join(found)


def in_turn(*ends: int) -> list[Connection]:
    """Two connections of a consumer whose polls alternate, each of which gets these."""
    one, two = took(), reconnected()
    two.now = one.now
    for offset in ends:
        for each in (one, two):
            took(offset, one=each.wait(2 * MS))
    return [one.fin(0), two.fin(0)]


KEPT: dict[str, Any] = {
    "iggy: begins anew": OFFSETS["another connection begins anew"][0],
    "iggy: goes on": OFFSETS["another connection goes on"][0],
    "iggy: in turn": lambda: in_turn(0, 1, 2),
    "iggy: often": lambda: in_turn(*range(12)),
    "rabbitmq: the next connection": LOST["on the next connection"][0],
    "rabbitmq: higher": LOST["on the next connection, and higher"][0],
    "rabbitmq: the sequence": LOST["the sequence of another connection"][0],
    "rabbitmq: a new stream": LOST["the sequence says that the stream is new"][0],
}
"""Connections to servers that keep something across them."""


def test_findings_of_what_servers_keep_across_connections(tmp_path: Path) -> None:
    found: list[str] = []
    for at, (name, make) in enumerate(KEPT.items()):
        path = tmp_path / f"{at}.pcap"
        path.write_bytes(capture(*make()))
        found += differences(name, [path], tmp_path / f"{at}-one", split=5_000, parts=4)
        found += differences(name, cut(path, 40, tmp_path), tmp_path / f"{at}-many", split=5_000, parts=4)
    assert not found, "\n".join(found)


def test_copies_in_many_rotated_files_are_no_retransmissions(tmp_path: Path) -> None:
    packets = records(generated(tmp_path, 800, 5))
    files = []
    # Two series of the same time; each of the cuts parts the copies of a packet
    for name in "ab":
        doubled = [Packet(sll(one.data[14:], kind), one.time_ns + 4 - kind) for one in packets for kind in (4, 0)]
        for at in range(34):
            files.append(tmp_path / f"{name}-{at:02}.pcap")
            files[-1].write_bytes(pcap(doubled[max(at * 48 - 1, 0) : at * 48 + 47], link=113, nano=True))
        packets = [Packet(one.data[:27] + b"\x01" + one.data[28:31] + b"\x01" + one.data[32:], one.time_ns) for one in packets]
    found: list[str] = []
    for some in (files[:34], files):
        found += differences(f"{len(some)} files:", some, tmp_path / f"out-{len(some)}")
    assert not found, "\n".join(found)


def test_findings_in_a_session_that_shuffles_by_server(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "BUCKET", 2_000)
    path = tmp_path / "one.pcap"
    talks = [*in_turn(*range(12)), *LOST["the sequence of another connection"][0]()]
    path.write_bytes(capture(*talks))
    found = differences("session:", cut(path, 40, tmp_path), tmp_path / "out", session, split=5_000, parts=4)
    assert not found, "\n".join(found)


FAMILIES = ("iggy", "mewbase", "rabbitmq-stream", "seastar-rpc")
CUTS = [(count, split, parts) for count in (1, 40) for split in (5_000, 20_000, 64 << 20) for parts in (1, 4)]


def mixed(family: str, most: int = 40_000) -> bytes:
    """The packets of the smaller golden captures of a family in one capture, each a tenth of a second after the one before."""
    packets: list[Packet] = []
    for at, path in enumerate(sorted((CAPTURES / "golden" / family).glob("*.pcap"))):
        data = path.read_bytes()
        if len(data) <= most and data[20:24] == ETHERNET and data[:4] in UNITS:
            some = records(path)
            packets += [Packet(one.data, START_NS + at * 100 * MS + one.time_ns - some[0].time_ns, one.wire) for one in some]
    packets.sort(key=lambda one: one.time_ns)
    return pcap(packets, nano=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_findings_are_those_of_diagnose(family: str, tmp_path: Path) -> None:
    path = tmp_path / "one.pcap"
    path.write_bytes(mixed(family))
    found: list[str] = []
    for count, split, parts in CUTS:
        files = [path] if count == 1 else cut(path, count, tmp_path)
        what = f"{count} files, {split:,} bytes, {parts} parts:"
        found += differences(what, files, tmp_path / f"{count}-{split}-{parts}", split=split, parts=parts)
    assert not found, "\n".join(found)


def test_a_bug_in_a_rule_of_several_connections_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ArithmeticError("wrong")

    monkeypatch.setenv("STREAMDUMP_BARRIER", "on")
    monkeypatch.setattr(Diagnoser, "_report_step", fails)
    path = tmp_path / "one.pcap"
    path.write_bytes(capture(*in_turn(0, 1)))
    (said, *_) = go([path], tmp_path / "out", findings=True, split=5_000, parts=4).bugs
    assert "ArithmeticError" in said and "a finding may be missing" in said


def test_servers_of_separate_networks_keep_nothing_of_each_other(tmp_path: Path) -> None:
    for name, one in (("a", took(0, 1, 2)), ("b", took(0, 1, 2, one=reconnected()))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.pcap").write_bytes(capture(one.fin(0)))
    files = [tmp_path / name / "c.pcap" for name in "ab"]
    inspector = Inspector([open_capture(file) for file in files], Options(findings=True, separate=True))
    assert not [one for one in inspector.records() if type(one) is Finding and one.rule == "iggy.offsets"]
    for separate in (True, False):
        go([tmp_path / name for name in "ab"], tmp_path / f"{separate}", findings=True, separate=separate)
        rules = {row["rule"] for row in tables_of(tmp_path / f"{separate}")["findings"]}
        assert ("iggy.offsets" in rules) == (not separate)
