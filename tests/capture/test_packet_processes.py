"""The processes of packets in pcapng files: what is read, what is not, and that records, filters and groups show it."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdump
from streamdump.capture import address_names, packet_processes
from streamdump.capture.address_names import AddressNames
from streamdump.capture.files import open_capture
from streamdump.capture.packet_processes import MAX_CACHED, MAX_LINES, MAX_OPTIONS, MAX_POD, MAX_TEXT, ProcessReader
from streamdump.cli.app import main
from streamdump.conversation.processes import MAX_OTHER_PIDS
from streamdump.filter import compile_filter
from streamdump.filter.columns import compile_columns
from streamdump.inspector import Inspector
from streamdump.latency.groups import Latencies
from streamdump.model import ConversationRow, Finding, Message, Options, Process, Record
from streamdump.render.conversations import plain
from streamdump.scrub.files import copied
from tests.capture.process_stories import (
    COMMENT,
    FLAGS,
    INBOUND,
    OUTBOUND,
    STORIES,
    annotated,
    comment,
    encoded,
    flags,
    packet_block,
    process_block,
    thread,
    wireshark,
)
from tests.support import rewrite
from tests.support.captures import GOLDEN
from tests.support.frames import block, pcapng, section
from tests.support.work import steps

RABBIT = "rabbitmq-stream"
BOTH, PTCPDUMP = (GOLDEN / RABBIT / f"processes_{name}_made.pcapng" for name in ("both_ends", "ptcpdump"))
ONE = GOLDEN / RABBIT / "missing_stream_405.pcap"
PRODUCER = {"process": "python3.11", "pid": 41207, "container": "producer", "pod": "orders-7c9f6d-x2x4q", "namespace": "shop"}
CLIENT, SERVER = "127.0.0.1:60824", "127.0.0.1:5552"


def inspected(source: Path | bytes, **options: Any) -> Inspector:
    return Inspector([open_capture(source if isinstance(source, Path) else io.BytesIO(source), name="made")], Options(**options))


def read(source: Path | bytes, **options: Any) -> tuple[list[Record], list[ConversationRow]]:
    inspector = inspected(source, **options)
    return list(inspector.records()), inspector.rows()


def groups_of(source: Path | bytes, by: str) -> set[Any]:
    """What latencies are grouped by."""
    inspector, found = inspected(source, pairs=True, exchanges=True), Latencies((by,))
    for _ in inspector.batches():
        found.add(inspector.run.released_pairs())
    return {key[1] for key in found.groups}


def processes(source: Path | bytes) -> list[Any]:
    return [msgspec.json.decode(msgspec.json.encode(row.processes)) for row in read(source)[1]]


def alone(*options: tuple[int, bytes], order: str = "<") -> Any:
    """The processes of a conversation all of whose packets have these options."""
    (found,) = processes(annotated(ONE, lambda *_: options, order=order))
    return found


@pytest.mark.parametrize("name", STORIES)
def test_the_captures_are_those_of_the_stories(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == STORIES[name]()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (PTCPDUMP, [[{"endpoint": "127.0.0.1:37200", **PRODUCER}]]),
        (
            BOTH,
            [
                [
                    {"endpoint": CLIENT, "process": "orders", "pid": 700},
                    {"endpoint": SERVER, "process": "beam.smp", "pid": 611, "others": True, "other_pids": [612]},
                ],
                None,
            ],
        ),
        (GOLDEN / RABBIT / "processes_no_direction_made.pcapng", [[{"endpoint": None, "process": "python3.11", "pid": 41207}]]),
        (
            GOLDEN / "iggy" / "processes_wireshark_made.pcapng",
            [
                [
                    {"endpoint": "192.0.2.1:40000", "process": "consumer", "pid": 500},
                    {"endpoint": "192.0.2.2:8090", "process": "iggy-server", "pid": 77},
                ]
            ],
        ),
        (GOLDEN / "mewbase" / "processes_macos_made.pcapng", [[{"endpoint": "127.0.0.1:59876", "process": "java", "pid": 7201}]]),
    ],
    ids=lambda one: one.name if isinstance(one, Path) else "",
)
def test_the_processes_behind_conversations(name: Path, expected: Any) -> None:
    assert processes(name) == expected


def test_the_entry_of_wireshark_is_little_endian_in_any_section() -> None:
    assert processes(wireshark(">")) == processes(wireshark("<"))


def test_flags_and_numbers_have_the_order_of_the_section() -> None:
    assert alone(flags(OUTBOUND, ">"), thread(9, ">"), order=">") == alone(flags(OUTBOUND), thread(9))
    assert [one["pid"] for one in alone(thread(9))] == [9, 9]


def test_a_record_has_what_the_packets_up_to_its_own_show() -> None:
    said = [comment("PID: 8", "Cmd: /bin/late"), flags(OUTBOUND)]
    records, rows = read(annotated(ONE, lambda index, to_server: said if to_server and index > 12 else []))
    shown = [one.processes is not None for one in records if isinstance(one, Message)]
    assert shown == sorted(shown)
    assert shown[0] is False and shown[-1] is True and rows[0].processes is not None


def test_connections_on_the_same_ports_have_their_own() -> None:
    found = rewrite.packets(ONE)
    later = [one._replace(time_ns=one.time_ns + 10**11) for one in found]
    blocks = [packet_block(one, [thread(1 if at < len(found) else 2)]) for at, one in enumerate(found + later)]
    head = pcapng([])
    first, second = processes(head + b"".join(blocks))
    assert {one["pid"] for one in first} == {1} and {one["pid"] for one in second} == {2}


def test_comments_of_inbound_packets_do_not_decide_the_side() -> None:
    """On the host's end of a veth pair, ptcpdump names the sender of what comes in."""
    client = comment("PID: 5", "Cmd: a")
    inbound = annotated(ONE, lambda _, to_server: [client, flags(INBOUND)] if to_server else [])
    assert processes(inbound) == [[{"endpoint": None, "process": "a", "pid": 5}]]
    both = annotated(ONE, lambda index, to_server: [client, flags(OUTBOUND if index > 8 else INBOUND)] if to_server else [])
    assert processes(both) == [[{"endpoint": "127.0.0.1:35502", "process": "a", "pid": 5}]]
    again = annotated(ONE, lambda index, to_server: [client, flags(INBOUND if index > 8 else OUTBOUND)] if to_server else [])
    assert processes(again) == processes(both)


def test_sides_that_stay_unknown_leave_little_behind() -> None:
    said = [[comment(f"PID: {1 + index % 3}"), flags(1 + index % 2)] for index in range(6)]
    inspector = inspected(annotated(ONE, lambda index, _: said[index % 6]))
    list(inspector.records())
    assert len(inspector.run.processes[0]) <= 8


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["ContainerName: one"], ["ContainerName: two"], {"container": "one", "others": True}),
        (["ContainerName: one"], ["PID: 5", "Cmd: b", "ContainerName: two"], {"container": "one", "others": True, "other_pids": [5]}),
        (["PodName: a", "PodNamespace: x"], ["PodName: a", "PodNamespace: y"], {"pod": "a", "namespace": "x", "others": True}),
        (["ContainerName: one"], ["PID: 5", "Cmd: b", "ContainerName: one"], {"process": "b", "pid": 5, "container": "one"}),
        (["PID: 5", "Cmd: sh"], ["PID: 5", "Cmd: java"], {"process": "sh", "pid": 5}),
    ],
)
def test_two_processes_of_an_endpoint_are_never_mixed(first: list[str], second: list[str], expected: Any) -> None:
    said = [[comment(*first), flags(OUTBOUND)], [comment(*second), flags(OUTBOUND)]]
    (found,) = processes(annotated(ONE, lambda index, to_server: said[index > 8] if to_server else []))
    assert [{key: value for key, value in one.items() if key != "endpoint"} for one in found] == [expected]


def test_what_arguments_contain_is_not_read() -> None:
    assert alone(comment("PID: 5", "Cmd: /bin/a", "Args: a\nPodName: forged\nCmd: b"), flags(OUTBOUND))[0] == {
        "endpoint": "127.0.0.1:35502",
        "process": "a",
        "pid": 5,
    }


@pytest.mark.parametrize(
    "options",
    [
        [comment("PID=1234")],
        [comment("a note: see PID: 4")],
        [comment("Cmd: /bin/only")],
        [comment("PID: 0", "Cmd: x")],
        [comment("PID: 4294967296")],
        [comment("PID: 99999999999999999999999")],
        [comment("PID: \u0664")],
        [comment("PodNamespace: shop")],
        [thread(0)],
        [(8, bytes(7))],
        [(32769, struct.pack("<I", 7))],
        [(FLAGS, b"\x02\0\0\0")],
    ],
)
def test_what_names_no_process(options: list[tuple[int, bytes]]) -> None:
    assert alone(*options) is None


def test_a_value_that_is_cut_is_not_read() -> None:
    complete, cut = (comment("PID: 5", f"Cmd: /{'d' * size}/name", "Args: a") for size in (3_000, 5_000))
    assert alone(complete, flags(OUTBOUND))[0] == {"endpoint": "127.0.0.1:35502", "process": "name", "pid": 5}
    assert alone(cut, flags(OUTBOUND))[0] == {"endpoint": "127.0.0.1:35502", "pid": 5}


def test_only_the_first_lines_and_options_are_read() -> None:
    assert alone(comment(*["x: y"] * MAX_LINES, "PID: 5")) is None
    assert alone(*[comment("x: y")] * MAX_OPTIONS, comment("PID: 5")) is None


def test_large_options_cost_little() -> None:
    reader = ProcessReader()
    reader.wanted = True
    data = encoded([(COMMENT, b"\xff:\n" * 2_000)] * 16)
    assert steps(lambda: reader.packet(data, 0, len(data), 1, 0)) < 12_000
    assert not reader._cached


def test_names_are_cut() -> None:
    (one, _) = alone(comment(f"PodName: {'p' * 300}", f"PodNamespace: {'n' * 300}", f"ContainerName: {'c' * 300}"), flags(OUTBOUND))
    assert (len(one["pod"]), len(one["namespace"]), len(one["container"])) == (MAX_POD + 1, MAX_TEXT + 1, MAX_TEXT + 1)
    assert one["pod"].endswith("p…")


def test_processes_are_those_of_their_section() -> None:
    found = rewrite.packets(ONE)
    head = pcapng([])
    named = [process_block(7, (2, b"first")), *[packet_block(one, [thread(7)]) for one in found]]
    later = [packet_block(one._replace(time_ns=one.time_ns + 10**11), [thread(7)]) for one in found]
    (first, second) = processes(head + b"".join([*named, head, *later]))
    assert first[0]["process"] == "first" and "process" not in second[0]


def test_hostile_texts_are_harmless_on_a_terminal() -> None:
    _, rows = read(GOLDEN / RABBIT / "processes_hostile_made.pcapng")
    shown = plain(rows)
    assert "\\x1b]0;owned" in shown and "\\u202e" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_many_different_comments_leave_little_behind() -> None:
    said = lambda index, _: [comment(f"PID: {index + 1}", f"Cmd: /bin/{index}"), flags(OUTBOUND)]  # noqa: E731
    inspector = inspected(annotated(BOTH, said))
    list(inspector.records())
    assert all(len(states) <= 2 * (1 + MAX_OTHER_PIDS) for states in inspector.run.processes.values())
    assert {len(one.other_pids) for states in inspector.run.processes.values() for one in states[-1].processes} == {MAX_OTHER_PIDS}
    reader = ProcessReader()
    reader.wanted = True
    for index in range(3 * MAX_CACHED):
        data = encoded([comment(f"PID: {index + 1}")])
        reader.packet(data, 0, len(data), index, 0)
    assert len(reader._cached) <= MAX_CACHED


def test_processes_beyond_the_limit_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_processes, "MAX_PROCESSES", 1)
    assert processes(wireshark())[0][1] == {"endpoint": "192.0.2.2:8090", "pid": 77}


OPTION = st.tuples(
    st.sampled_from([0, COMMENT, FLAGS, 8, 32769, 3, 60_000]), st.binary(max_size=60) | st.just(bytes(4)) | st.just(bytes(8))
)
LINE = st.sampled_from(["PID", "Cmd", "Command", "ContainerName", "ContainerId", "PodName", "PodNamespace", "Args", "x"])


@given(st.binary(max_size=200) | st.lists(OPTION, max_size=6).map(encoded), st.sampled_from("<>"), st.integers(0, 200))
def test_any_options_can_be_read(region: bytes, order: str, end: int) -> None:
    reader = ProcessReader()
    reader.wanted = True
    reader.begin(order)
    for _ in range(2):
        reader.packet(region, 0, min(end, len(region)), 1, 0)
        reader.custom_block(region)
        reader.darwin_block(region)
    assert all(_is_bounded(one.process) for one in reader.waiting)


@given(st.lists(st.tuples(LINE, st.text(max_size=400)), max_size=8))
def test_any_comment_can_be_read(lines: list[tuple[str, str]]) -> None:
    reader = ProcessReader()
    reader.wanted = True
    data = encoded([(COMMENT, "\n".join(f"{key}: {value}" for key, value in lines).encode()[:60_000])])
    reader.packet(data, 0, len(data), 1, 0)
    assert all(_is_bounded(one.process) for one in reader.waiting)


def _is_bounded(one: Process) -> bool:
    texts = [one.process, one.container, one.namespace]
    return all(text is None or 0 < len(text) <= MAX_TEXT + 1 for text in texts) and (one.pid is None or 0 < one.pid < 1 << 32)


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("process == orders", 50),
        ("client.process == orders", 50),
        ("server.process == orders", 0),
        ("pid in {1, 611} and process matches '^beam'", 50),
        ("pid == 612", 49),
        ("server.pid == 612 and server.pid == 611", 49),
        ("client.pid == 612", 0),
        ("not process", 78),
        ("client.pid > 600 and server.pid < 700", 50),
        ("pod", 0),
    ],
)
def test_filters_ask_for_processes(where: str, count: int) -> None:
    assert sum(1 for _ in streamdump.read(BOTH, where=where)) == count


def test_a_name_of_processes_that_is_also_a_field_means_both() -> None:
    keeps = compile_filter("namespace == shop").keeps
    assert any(keeps(one) for one in read(PTCPDUMP)[0])
    compile_filter("namespace == 3 and fields.namespace == 3")
    found = [one for one in read(GOLDEN / "iggy" / "replica-refused.pcap")[0] if isinstance(one, Message) and "namespace" in one.fields]
    same = [compile_filter(f"{name} >= 0") for name in ("namespace", "fields.namespace")]
    assert [same[0].keeps(one) for one in found] == [same[1].keeps(one) for one in found]


def test_columns_show_processes() -> None:
    columns = compile_columns(["process", "client.pid", "server.process", "pod"])
    records, _ = read(BOTH)
    columns.learn(records)
    assert columns.values(records[5]) == [["orders", "beam.smp"], 700, "beam.smp", None]
    other = next(one for one in records if one.conversation == 1)
    assert columns.values(other) == [None, None, None, None]


@pytest.mark.parametrize(
    ("path", "by", "groups"),
    [
        (BOTH, "process", {"orders", None}),
        (BOTH, "pid", {700, None}),
        (GOLDEN / RABBIT / "processes_no_direction_made.pcapng", "process", {"python3.11 (side unknown)"}),
        (PTCPDUMP, "pod", {"orders-7c9f6d-x2x4q"}),
    ],
)
def test_latencies_by_process(path: Path, by: str, groups: set[Any]) -> None:
    assert groups_of(path, by) == groups


@pytest.mark.parametrize(("by", "groups"), [("pid", {5, "5 and others"}), ("process", {"a", "a and others"}), ("container", {"c"})])
def test_a_group_of_several_processes_says_so(by: str, groups: set[Any]) -> None:
    def options(index: int, to_server: bool) -> list[tuple[int, bytes]]:
        return [comment(f"PID: {5 + (index > 20)}", "Cmd: a", "ContainerName: c"), flags(OUTBOUND)] if to_server else []

    assert groups_of(annotated(ONE, options), by) == groups


def test_a_group_by_the_server_alone_says_so() -> None:
    data = annotated(ONE, lambda _, to_server: [comment("PID: 3", "Cmd: /bin/server"), flags(INBOUND if to_server else OUTBOUND)])
    assert groups_of(data, "process") == {"server (server)"}


def test_commands_are_counted_by_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--by", "process", "--json", str(BOTH)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    published = [(one["process"], one["count"]) for one in rows if one["record"] == "command" and one["name"] == "Publish"]
    assert sorted(published, key=str) == [("orders", 15), (None, 15)]
    assert main(["stats", "--by", "pid", "--csv", str(BOTH)]) == 0
    assert capsys.readouterr().out.startswith("protocol,name,kind,sender,count,bytes,per_second,pid\n")
    assert main(["stats", "--by", "stream", str(BOTH)]) == 2
    assert "--by" in capsys.readouterr().err
    assert main(["stats", "--json", str(BOTH)]) == 0
    assert "process" not in capsys.readouterr().out.replace("processes_both", "")


def test_findings_have_the_processes_of_their_conversation() -> None:
    records, _ = read(PTCPDUMP, findings=True)
    found = [one for one in records if isinstance(one, Finding)]
    assert found and all(one.processes is not None and one.processes[0].pid == 41207 for one in found)


NAMED = GOLDEN / RABBIT / "names_made.pcapng"


def test_names_of_addresses_are_shown_if_asked_for() -> None:
    assert processes(NAMED) == [None]
    records, (row,) = read(NAMED, host_names=True)
    broker, client = Process("127.0.0.2:5552", host="broker-1.example"), Process("127.0.0.1:35502", host="orders.example")
    assert row.processes == (client, broker)
    assert records[0].processes == (broker,)
    assert "host broker-1.example" in plain([row])
    assert sum(1 for _ in streamdump.read(NAMED, where="server.host == broker-1.example", host_names=True)) == len(records)
    found, _ = read(GOLDEN / RABBIT / "processes_hostile_made.pcapng", host_names=True)
    assert all(len(one.host or "") <= MAX_POD + 1 for record in found for one in record.processes or ())


@given(st.binary(max_size=120), st.sampled_from("<>"))
def test_any_block_of_names_can_be_read(body: bytes, order: str) -> None:
    found = AddressNames()
    found.read(body, order, 0)
    assert all(found.get(address, 1) for address in found._names)


def test_there_is_a_limit_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_names, "MAX_ADDRESSES", 2)
    found = AddressNames()
    found.read(b"".join(struct.pack("<HH4s4s", 1, 8, bytes((10, 0, 0, at)), b"abc") for at in range(5)), "<", 0)
    assert len(found._names) == 2


def test_a_page_names_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["diagnose", "--html", str(page), str(PTCPDUMP)]) == 0
    assert "client python3.11 (pid 41207, pod shop/orders-7c9f6d-x2x4q, container producer)" in page.read_text()
    assert "python3.11" in capsys.readouterr().out
    assert main(["conversations", "--html", str(page), str(GOLDEN / RABBIT / "processes_hostile_made.pcapng")]) == 0
    assert "\x1b" not in page.read_text() and "\u202e" not in page.read_text()


@pytest.mark.parametrize("name", STORIES)
def test_scrubbing_removes_them(name: str) -> None:
    out = io.BytesIO()
    copied(GOLDEN / name, out, name)
    assert processes(out.getvalue()) == [None] * len(processes(GOLDEN / name))
    for text in (b"python3.11", b"orders-7c9", b"beam.smp", b"iggy-server", b"mDNSResponder", b"\x1b]0;owned"):
        assert text not in out.getvalue()


def test_blocks_of_others_are_skipped() -> None:
    ours = struct.pack("<I", 32622)
    blocks = [block(0xBAD, bytes(4)), block(0xBAD, ours + bytes(8)), block(0x40000BAD, ours), block(0x80000001, b"\1\0\0\0")]
    assert processes(section() + annotated(ONE, lambda *_: [thread(6)], blocks))[0][0] == {"endpoint": "127.0.0.1:35502", "pid": 6}
