"""The limits over all conversations: what is oldest goes, at the same packet however packets come in batches."""

from __future__ import annotations

import gc
import io
import json
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump import inspector as inspector_module
from streamdump.capture.files import open_capture
from streamdump.capture.selection import ConversationSpan
from streamdump.cli.app import main
from streamdump.conversation import table
from streamdump.conversation.conversation import Conversation, row_of
from streamdump.conversation.table import EPOCH, SEGMENT, ForgottenCounts, PackedRows
from streamdump.inspector import BLOCK, Inspector, block
from streamdump.model import ConversationRow, Message, Options
from streamdump.model import Packet as ModelPacket
from streamdump.pair.exchanges import PairOutputs, PairRules
from streamdump.pair.pairer import Pairer
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Protocol
from streamdump.quota import UnpackPool
from tests.bench.hostile import MANY, bombs
from tests.support.frames import ACK, FIN, RST, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp
from tests.support.rewrite import packets

GOLDEN = Path(__file__).parents[1] / "captures" / "golden"

HELLO = struct.pack(">IHHII", 12, 0x11, 1, 1, 0)


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, 1) + body


def asks(round_: int) -> bytes:
    """A hundred requests that are never answered."""
    return b"".join(frame(0x0B, struct.pack(">IH3s", 100 * round_ + number, 3, b"abc")) for number in range(2, 102))


def publishes(round_: int) -> bytes:
    """A batch of a hundred messages that is never confirmed."""
    return frame(2, struct.pack(">BI", 1, 100) + b"".join(struct.pack(">QI", 100 * round_ + number, 0) for number in range(100)))


def noise(round_: int) -> bytes:
    return random.Random(round_).randbytes(1400)


def capture(path: Path, conversations: int, rounds: int, hello: bytes, port: int, say: Any) -> Path:
    """Conversations side by side, each of which says something in every round."""
    reach = [1000] * conversations
    packets = []
    for round_ in range(rounds):
        data = say(round_)
        for number in range(conversations):
            if not round_:
                packets.append(tcp(seq=999, sport=1024 + number, dport=port, flags=SYN))
            sent = data if round_ else hello + data
            packets.append(tcp(sent, seq=reach[number], sport=1024 + number, dport=port, flags=ACK))
            reach[number] += len(sent)
    path.write_bytes(pcap([Packet(ethernet(ip4(one)), START_NS + number * 1000) for number, one in enumerate(packets)]))
    return path


def run(path: Path, rows: int | None = None, **limits: int) -> tuple[list[bytes], Inspector, int]:
    """The records as JSON, and the most that was held at any time: open requests, or else undecided bytes."""
    options = Options(decode_as=((5552, "rabbitmq-stream", None),), **limits)
    inspector = Inspector([open_capture(path)], options, rows)
    told, most = [], 0
    for batch in inspector.batches():
        told += [msgspec.json.encode(record) for record in batch]
        paired = sum(one.pairer.weight() for one in inspector.table.conversations if one.pairer is not None)
        most = max(most, paired or sum(one.detector.cost for one in inspector.table.conversations if one.detector is not None))
    return told, inspector, most


def remembered(path: Path, rows: int | None, limit: int) -> tuple[list[bytes], Inspector]:
    """The records, where so many conversations are remembered."""
    inspector = Inspector([open_capture(path)], Options(tracked_limit=limit, exchanges=True), rows, finite=True)
    told = []
    for batch in inspector.batches():
        told += [msgspec.json.encode(record) for record in batch]
        assert len(inspector.table.conversations) <= limit + table.EPOCH // SEGMENT
    return told, inspector


@pytest.fixture
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals are checked after a quarter of the bytes, so that a quarter of the conversations is enough."""
    monkeypatch.setattr(table, "EPOCH", EPOCH // 4)


@pytest.mark.usefixtures("checked_often")
def test_conversations_that_are_forgotten_leave_their_rows(tmp_path: Path) -> None:
    path = capture(tmp_path / "some.pcap", 800, 2, HELLO, 5552, lambda round_: HELLO if round_ else b"")
    told, inspector = remembered(path, None, 80)
    rows = inspector.rows()
    assert len(inspector.table.packed) > 125
    assert len(rows) == len(inspector.table) >= 800
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert [row.conversation for row in rows] == list(range(len(rows)))
    assert sum(sum(row.packets) for row in rows) == inspector.counters.packets
    assert sum(row.messages for row in rows) == inspector.counters.messages == 1600
    gone = [row for row in rows if row.ended == "forgotten for newer ones"]
    assert len(gone) == len(inspector.table.packed) == sum(row.limit_hits for row in rows)
    assert all(row.limit_hits == 1 and row.unanswered == row.messages for row in gone)
    reasons = Counter(json.loads(one).get("reason") for one in told)
    assert reasons["limit"] == sum(row.unanswered for row in gone)
    assert [(one.index, one.first) for one in sorted(inspector.flows(), key=lambda one: one.first)][:3] == [(0, 0), (1, 2), (2, 4)]
    again, other = remembered(path, 7, 80)
    assert again == told
    assert other.rows() == rows


def test_what_files_disagree_on_is_remembered(tmp_path: Path) -> None:
    path, other = capture(tmp_path / "some.pcap", 3000, 1, HELLO, 5552, lambda _: b""), tmp_path / "other.pcap"
    said = tcp(HELLO[::-1], seq=1000, sport=1024, dport=5552, flags=ACK)
    other.write_bytes(pcap([Packet(ethernet(ip4(said)), START_NS + 1_500)]))
    inspector = Inspector([open_capture(path), open_capture(other)], Options(tracked_limit=300), finite=True)
    for _ in inspector.batches():
        pass
    assert len(inspector.table.packed) > 500
    assert [one.tcp.index for one in inspector.table.conversations if one.tcp.other_file is not None] == [0]
    assert len(inspector.rows()) == 3000


@pytest.mark.usefixtures("checked_often")
@pytest.mark.parametrize("what", ["a greeting of RabbitMQ", "a greeting of Seastar", "one byte"])
def test_a_view_without_rows_keeps_none_of_forgotten_conversations(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And its closing line says what it says where they are kept."""
    path = capture(tmp_path / "some.pcap", 1200, 1, MANY[what], 7000, lambda _: b"")
    inspector = Inspector([open_capture(path)], Options(tracked_limit=120), finite=True, keeps_rows=False)
    for _ in inspector.batches():
        pass
    assert (len(inspector.table), len(inspector.table.packed)) == (1200, 0)
    assert inspector.forgotten.conversations + len(inspector.table.conversations) == 1200
    said = []
    for command in ("-q", "latency", "conversations"):
        assert main([command, str(path), "--tracked-limit", "120"]) == 0
        said.append(capsys.readouterr().err.partition("; more: ")[0].strip())
    assert said[0] == said[1] == said[2]
    assert "1,200 conversations" in said[0]


def test_all_packets_are_written_without_rows_of_forgotten_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = capture(tmp_path / "some.pcap", 3000, 1, HELLO, 7000, lambda _: b"")
    kept: list[int] = []
    monkeypatch.setattr(PackedRows, "add", lambda rows, row, order, file: kept.append(row.conversation))
    copy = tmp_path / "copy.pcapng"
    assert main([str(path), "-w", str(copy), "--tracked-limit", "300"]) == 0
    assert not kept
    assert len(packets(copy)) == 6000
    assert packets(copy) == packets(path)


@pytest.mark.usefixtures("checked_often")
def test_those_that_ended_are_forgotten_first(tmp_path: Path) -> None:
    """They are known for a while, as packets may still come, and nothing is left of them when they are not."""
    packets = []
    for number in range(1252):
        packets.append(ip4(tcp(HELLO, seq=1000, sport=1024 + number, dport=5552, flags=ACK)))
        packets.append(ip4(tcp(seq=1000 + len(HELLO), sport=1024 + number, dport=5552, flags=(ACK, RST, ACK, FIN)[number % 4])))
        if number % 4 == 3:
            packets.append(ip4(tcp(seq=2000, ack=1001 + len(HELLO), sport=5552, dport=1024 + number, flags=FIN), src=B, dst=A))
        if number == 876:
            packets.append(ip4(tcp(HELLO, seq=1000, sport=1024 + 499, dport=5552, flags=ACK)))
    path = tmp_path / "some.pcap"
    path.write_bytes(pcap([Packet(ethernet(one), START_NS + number * 1000) for number, one in enumerate(packets)]))
    gc.collect()
    before = sum(isinstance(one, Conversation) for one in gc.get_objects())
    gc.disable()
    try:
        _, inspector = remembered(path, None, 750)
        left = sum(isinstance(one, Conversation) for one in gc.get_objects()) - before
    finally:
        gc.enable()
    assert left == len(inspector.table.conversations)
    assert inspector.table.packed
    whole = Inspector([open_capture(path)], Options(exchanges=True), finite=True)
    for _ in whole.batches():
        pass
    assert inspector.table.packed
    assert inspector.rows() == whole.rows()


MILLISECOND = 1_000_000
SAID = (HELLO + HELLO, b"GET / HTTP/1.1\r\n\r\n", noise(1))
"""What clients said, of whom every third says the same: the first has more requests open than may be."""


def dropped(path: Path, **options: int) -> tuple[Inspector, Callable[[int], list[ConversationRow]]]:
    """A live capture of conversations of which the last to begin ended first, a millisecond after each other, and what leaves
    when so many milliseconds have passed since the last packet."""
    packets = []
    for number in range(30):
        said = SAID[number % 3]
        packets.append(tcp(seq=999, sport=1024 + number, dport=5552, flags=SYN))
        packets.append(tcp(said, seq=1000, sport=1024 + number, dport=5552, flags=ACK))
    packets += [tcp(seq=1000 + len(SAID[number % 3]), sport=1024 + number, dport=5552, flags=RST) for number in reversed(range(30))]
    path.write_bytes(pcap([Packet(ethernet(ip4(one)), START_NS + number * MILLISECOND) for number, one in enumerate(packets)]))
    inspector = Inspector([], Options(open_limit=1, **options))
    for batch in open_capture(path).batches():
        inspector.process(batch)

    def leave(after: int) -> list[ConversationRow]:
        gone: list[ConversationRow] = []
        inspector.age(START_NS + (len(packets) - 1 + after) * MILLISECOND, gone.extend)
        return gone

    return inspector, leave


def test_what_a_live_capture_drops_leaves_by_age(tmp_path: Path) -> None:
    inspector, leave = dropped(tmp_path / "some.pcap", closed_time_ns=10_000 * MILLISECOND)
    assert leave(9_000) == []
    # Of those that ended ten seconds ago or earlier, the 12 that began last
    gone = leave(9_982)
    assert [row.conversation for row in gone] == list(range(29, 17, -1))
    assert [row.number for row in gone] == list(range(1, 13))
    assert [row.limit_hits for row in gone] == [0, 0, 1] * 4
    past = inspector.forgotten
    assert (past.conversations, past.limit_hits, past.unread) == (12, 4, {"HTTP": 4, "unknown": 4})
    assert [(row.number, row.conversation) for row in inspector.rows()] == [(13 + index, index) for index in range(18)]
    assert len(inspector.table) == 30
    assert [row.conversation for row in leave(10_600)] == list(range(17, -1, -1))
    assert (past.conversations, past.limit_hits) == (30, 10)
    assert inspector.rows() == []
    assert inspector.run.early_endings == inspector.run.paired == inspector.run.detecting == {}


def test_what_a_live_capture_drops_leaves_by_number(tmp_path: Path) -> None:
    inspector, leave = dropped(tmp_path / "some.pcap", closed_time_ns=1 << 60, tracked_limit=15)
    assert [row.conversation for row in leave(0)] == list(range(29, 14, -1))
    assert [row.conversation for row in inspector.rows()] == list(range(15))


@pytest.mark.parametrize("name", ["rabbitmq-stream", "iggy", "seastar-rpc", "mewbase"])
def test_rows_are_the_same_when_they_were_kept(name: str) -> None:
    kept, rows = PackedRows(), []
    for path in sorted((GOLDEN / name).glob("*.pcap"))[:10]:
        inspector = Inspector([open_capture(path)], Options(), finite=True)
        for _ in inspector.batches():
            pass
        for row in inspector.rows():
            row.conversation = len(rows)
            rows.append(row)
            kept.add(row, 7, 1)
    assert len(rows) >= 10
    assert [kept.row(row.conversation, row.number) for row in rows] == rows
    assert kept.flow(3, True) == ConversationSpan(3, rows[3].endpoints, 7, 1)


@pytest.mark.usefixtures("checked_often")
@pytest.mark.parametrize(("say", "rounds", "total"), [(asks, 4, 500), (publishes, 10, 125)])
def test_open_requests_over_all_conversations(tmp_path: Path, say: Any, rounds: int, total: int) -> None:
    path = capture(tmp_path / "c.pcap", 20, rounds, HELLO, 5552, say)
    told, inspector, most = run(path, open_total=total)
    ended = [one for one in told if b'"limit"' in one]
    assert total < most < total + table.EPOCH // 8
    assert run(path)[2] > 2 * most > 0
    assert len(ended) == sum(row.limit_hits for row in inspector.rows()) > 100
    assert inspector.counters.unanswered == sum(b'"outcome":"unanswered"' in one for one in told)
    # The oldest go first, whosever they are
    first = [msgspec.json.decode(one)["request"] for one in ended]
    assert set(first[:20]) <= set(range(1, 20 * 101 + 1))
    for rows in (1, 7):
        assert run(path, rows, open_total=total)[0] == told


def test_what_bombs_unpack_to_over_all_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnpackPool.__init__, "__defaults__", (400_000,))
    file = bombs(2_500, "zstd of SCYLLA_V3", 100_000, 250)
    found = []
    for rows in (1, 7, None):
        inspector = Inspector([open_capture(io.BytesIO(file.file), name="bombs")], Options(), rows)
        messages = [one for one in inspector.records() if isinstance(one, Message) and "compression" in one.fields]
        found.append([one.fault is None for one in messages])
        reasons = {one.fault.reason for one in messages if one.fault is not None}
        assert all("unpacked bytes or more are over the limit of" in reason for reason in reasons)
    assert found[0] == found[1] == found[2]
    assert 4 <= sum(found[0]) <= len(found[0]) - 4


def test_records_are_released_before_what_they_were_unpacked_from_takes_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    file = bombs(30_000, "LZ4 of Seastar", 30_000, 1_000)
    found = []
    for unpacked in (1 << 40, 90_000):
        monkeypatch.setattr(inspector_module, "BLOCK_UNPACKED", unpacked)
        inspector = Inspector([open_capture(io.BytesIO(file.file), name="bombs")], Options())
        parts = [[msgspec.json.encode(one) for one in part] for part in inspector.batches()]
        found.append([one for part in parts for one in part])
        assert (len(parts) > 20) == (unpacked == 90_000)
    assert found[0] == found[1]


def test_few_large_packets_pass_each_step_together() -> None:
    """What they unpack to is in memory until their records are handed out."""
    for size, expected in ((60, BLOCK), (1_500, BLOCK), (60_000, 4), (10_000_000, 1)):
        batch = [ModelPacket(b"", 0, number, 0, number * size, size, size, 1) for number in range(300)]
        assert block(batch) == expected
    assert block([]) == BLOCK


def test_undecided_bytes_over_all_conversations(tmp_path: Path) -> None:
    path = capture(tmp_path / "c.pcap", 40, 30, b"", 9999, noise)
    total = 1 << 20
    _, inspector, most = run(path, undecided_total=total)
    assert 0.75 * total < most < total + 3 * EPOCH
    assert run(path)[2] > 2 * most
    rows = inspector.rows()
    assert 0 < sum(row.limit_hits for row in rows) <= 40
    assert [row.protocol for row in rows] == [None] * 40
    for size in (1, 7):
        other = run(path, size, undecided_total=total)[1].rows()
        assert [msgspec.json.encode(row) for row in other] == [msgspec.json.encode(row) for row in rows]


@pytest.mark.parametrize(
    ("what", "opened", "ended"),
    [
        ("one byte", 3_700, 2_100),
        ("a greeting of RabbitMQ", 8_800, 3_800),
        ("a greeting of Seastar", 7_500, 3_480),
        ("a ping of mewbase", 8_300, 2_500),
    ],
)
def test_a_conversation_of_one_packet_takes_little(tmp_path: Path, what: str, opened: int, ended: int) -> None:
    """Of such a capture may have hundreds of thousands, all open until it ends."""
    many = 400
    packets = [tcp(MANY[what], seq=1000, sport=1024 + number, dport=5552, flags=ACK) for number in range(many)]
    path = tmp_path / "c.pcap"
    path.write_bytes(pcap([Packet(ethernet(ip4(one)), START_NS + number * 1000) for number, one in enumerate(packets)]))
    sizes = []
    for _ in range(2):
        inspector = Inspector([open_capture(path)], Options(), finite=True)
        batches = inspector.batches(many)
        tracemalloc.start()
        next(batches)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
        for _ in batches:
            pass
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    # The second time nothing is counted that is there once for all
    assert len(inspector.table.conversations) == many
    assert sizes[2] < opened * many
    assert sizes[3] < ended * many


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda one: one.name)
def test_what_reads_a_conversation_has_no_dictionary_of_its_own(protocol: Protocol) -> None:
    """Where its members are called is kept once for a class, up to thirty of them."""
    assert len(vars(Parser(protocol, Options()).dissector)) <= 30
    assert len(vars(Pairer(PairRules("queue", 1, True), PairOutputs([], [])))) <= 30


@pytest.mark.parametrize("name", ["rabbitmq-stream/consumer_update_sac_436", "iggy/py080-basic", "seastar-rpc/basic", "mewbase/bad-http"])
def test_conversations_are_counted_without_their_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inspector = Inspector([open_capture(str(GOLDEN / f"{name}.pcap"))], Options())
    assert list(inspector.records())
    expected = ForgottenCounts()
    for row in inspector.rows():
        expected.add(row)
    made: list[Conversation] = []
    monkeypatch.setattr(table, "row_of", lambda one, number: made.append(one) or row_of(one, number))
    found = table.counts_of(inspector.table)
    assert len(made) == len(found.examples)
    for counts in (found, expected):
        for row in counts.examples.values():
            row.number = 0
    assert found == expected
    assert found.conversations
