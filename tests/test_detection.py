"""Detection on real traffic: never a wrong protocol, whatever the ports and wherever the capture begins."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack
from typing import Any

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.capture.link import LinkParser
from streamdump.detect import ENOUGH, MAX_CACHED, Detector, _cached_looks, neighbour
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Message, Options, SideData, StreamGap, Verdict
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.protocol import DetectionView, Protocol
from tests.bench.hostile import MANY
from tests.support.captures import CAPTURES, capture_name, every_family
from tests.support.neighbours import NEIGHBOURS, Capture, Maker, conversations, verdict
from tests.support.planting import with_members
from tests.support.rewrite import Packet, capture, packets, random_ports, server_port, tcp_offset, with_ports

ROOT = Path(__file__).parents[1] / "captures"
OTHERS = sorted((ROOT / "samples" / "others").glob("*.pcap"))
DEFAULT_PORTS = sorted({port for protocol in PROTOCOLS for port in protocol.ports})


def rows(found: list[Packet]) -> list[ConversationRow]:
    inspector = Inspector([open_capture(capture(found))])
    for _ in inspector.batches():
        pass
    return inspector.rows()


@pytest.mark.sweep
@every_family(CAPTURES)
def test_no_conversation_is_given_a_wrong_protocol(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            found = with_ports(packets(path), random_ports(1))
            chance = random.Random(str(path.name))
            for start in (0, chance.randrange(1, max(2, len(found)))):
                said = {row.protocol for row in rows(found[start:]) if row.protocol is not None}
                assert all(one.startswith(path.parent.name) for one in said)


def test_a_side_that_sends_little_goes_on_where_detection_begins_anew() -> None:
    limit = 10_000
    detector = Detector((40_000, DEFAULT_PORTS[0]), False, limit)
    little = [SideData(1, 4 * at, b"\xff\xfe\xfd\xfc", (10 * at, 1, 0, 0)) for at in range(3)]
    large = [SideData(0, 1_000 * at, bytes([97]) * 1_000, (at + 1, 1, 0, 0)) for at in range(35)]
    for item in sorted([*little, *large], key=lambda item: item.order):
        assert detector.add([item]) is None
    passed, *rest = detector.buffered()
    assert isinstance(passed, StreamGap)
    assert (passed.side, passed.position, passed.size) == (0, 0, 30_000)
    assert rest == [*little, *large[30:]]
    assert detector.size == 5_000 + 12


@pytest.mark.parametrize(("byte", "goes_on"), [(b"a", True), (b"\0", False)])
def test_detection_begins_anew_where_bytes_have_paid_for_the_looks_at_them(byte: bytes, goes_on: bool) -> None:
    limit = 100_000
    detector = Detector((40_000, 7_000), False, limit)
    verdicts = [detector.add([SideData(0, at, byte * 1_000, (at, 1, 0, 0))]) for at in range(0, limit, 1_000)]
    assert verdicts[:-1] == [None] * 99
    assert (verdicts[-1] is None) == goes_on == bool(detector.passed)


TEXTS = [
    ("rabbitmq-stream/handshake_close_405.pcap", (b"product", b"version", b"1.2.3", b"RabbitMQ", b"PLAIN", b"bye", b"advertised_host")),
    ("iggy/py080-basic.pcap", (b"iggy",)),
    ("mewbase/java-nov2016.pcap", (b"0.1",)),
    ("seastar-rpc/isolation.pcap", (b"statement",)),
]
"""Handshakes, and text in them. Where it is what the protocol asks for, nothing else is read of it."""


FAMILIES = ("iggy/py080-basic", "iggy/node0100e4-all", "mewbase/java-pipeline", "rabbitmq-stream/handshake_close_405", "seastar-rpc/lz4")


@pytest.mark.parametrize("which", FAMILIES)
def test_bytes_lost_in_the_first_frame_of_both_sides_hide_no_protocol(which: str) -> None:
    detector, parser = Detector((40_000, 40_001), True, 1 << 20), LinkParser()
    segments = [parser.segment(packet, 0) for some in open_capture(ROOT / "golden" / f"{which}.pcap") for packet in some]
    verdict, ends, positions = None, list[bytes](), [0, 0]
    for order, segment in enumerate(one for one in segments if one is not None and one.data):
        ends += [] if ends else [segment.ends]
        side = int(segment.ends != ends[0])
        at, data = positions[side], segment.data
        positions[side] += len(data)
        for begin, end in ((0, 6), (10, len(data))) if at == 0 else ((0, len(data)),):
            verdict = verdict or detector.add([said(side, at + begin, data[begin:end], order)])
    verdict = verdict or detector.finish()
    assert (verdict.protocol, verdict.client) == (which.partition("/")[0], 0)


@pytest.mark.parametrize(("case", "texts"), TEXTS, ids=[case for case, _ in TEXTS])
def test_text_of_a_handshake_that_is_not_utf_8_is_a_note(case: str, texts: tuple[bytes, ...]) -> None:
    found = packets(ROOT / "golden" / case)
    change = random_ports(2)
    for given in (found, with_ports(found, change)):
        whole = said_of(given)
        for text in texts:
            index = next(number for number, packet in enumerate(given) if text in packet.raw)
            raw = given[index].raw.replace(text, b"\xe9" + text[1:], 1)
            said = said_of([*given[:index], given[index]._replace(raw=raw), *given[index + 1 :]])
            assert [one.name for one in said] == [one.name for one in whole]
            assert [one.fault for one in said] == [one.fault for one in whole]
            assert sum("UTF-8" in note for one in said for note in one.notes) >= 1


def said_of(found: list[Packet]) -> list[Message]:
    return [one for one in Inspector([open_capture(capture(found))]).records() if isinstance(one, Message)]


@pytest.mark.parametrize("path", OTHERS, ids=capture_name)
def test_nothing_is_claimed_of_other_protocols(path: Path) -> None:
    own = packets(path)
    port = server_port(own)
    for wanted in (port, *DEFAULT_PORTS):
        found = with_ports(own, lambda one, wanted=wanted: wanted if one == port else one)  # type: ignore[misc]
        for start in (0, 4, len(found) // 2):
            assert {row.protocol for row in rows(found[start:])} <= {None}


@pytest.mark.sweep
@pytest.mark.parametrize("maker", NEIGHBOURS, ids=lambda one: one.__name__)
def test_nothing_is_claimed_of_parts_of_other_protocols(maker: Maker) -> None:
    """From any byte on, one side or both, with losses, on any port."""
    claimed = {name: told for name, found, port in conversations(maker, 25) if (told := verdict(found, port)).protocol is not None}
    assert claimed == {}


CLAIMED = (
    # One frame, and another with a gap behind it
    ("cassandra", 1, 58),
    ("big_endian", 2, 111),
    ("http2", 2, 635),
    ("little_endian", 2, 380),
    ("memcached", 2, 587),
    # A Credit and an answer to Unsubscribe, behind the beginning that was lost
    ("big_endian", 41, 85),
    # Apache Iggy: one request that decodes, or few of many
    ("little_endian", 2, 0),
    ("little_endian", 2, 140),
    ("little_endian", 2, 813),
    ("little_endian", 2, 945),
    # Seastar RPC: small numbers that read as frames up to a segment's end, and not behind it
    ("numbers", 2, 114),
    ("numbers", 2, 840),
)


@pytest.mark.sweep
@pytest.mark.parametrize("which", CLAIMED, ids=str)
def test_what_was_claimed_once_is_no_more(which: tuple[str, int, int]) -> None:
    kind, seed, number = which
    maker = next(one for one in NEIGHBOURS if one.__name__ == kind)
    *_, (_, found, port) = conversations(maker, number + 1, seed)
    assert verdict(found, port).protocol is None


ASKED = bytes.fromhex("0300001902f08032010000000000080000f0000002000201e0")
ANSWERED = bytes.fromhex("0300001b02f080320300000000000800000000f0000002000201e0")
STATE = bytes.fromhex("0000000c001400011208120207010000") + bytes.fromhex("0000ff0900100001ff0a000affffffff") + bytes(125)
"""Of S7: 12 and 20, the lengths of parts, before 0x00011208 read as a Tune; what follows as a frame of 65,293 bytes."""


@pytest.mark.parametrize("port", [102, *DEFAULT_PORTS])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("before", [0, 3])
def test_a_tune_that_nobody_would_send_is_none(port: int, alone: bool, before: int) -> None:
    found = Capture()
    for index, data in enumerate([*[ANSWERED] * before, STATE, *[ANSWERED] * 3]):
        if not alone:
            found.append((0, index * len(ASKED), ASKED))
        found.append((1, sum(len(one) for side, _, one in found if side), data))
    assert verdict(found, port).protocol is None


def test_s7_from_the_middle_on_is_not_ours() -> None:
    assert {row.protocol for row in rows(packets(ROOT / "samples" / "reports" / "s7_called_rabbitmq_midstream.pcap"))} == {None}


def tuned(frame_max: int, heartbeat: int) -> bytes:
    return pack(">IHHII", 12, 0x0014, 1, frame_max, heartbeat)


@pytest.mark.parametrize(
    ("frames", "protocol"),
    [
        ([tuned(1 << 20, 60)], "rabbitmq-stream"),
        ([tuned(0, 0)], "rabbitmq-stream"),
        ([tuned(302_518_786, 60)], None),
        ([tuned(1 << 20, 117_506_048)], None),
        # Not all of its segment
        ([tuned(1 << 20, 60) + b"\3\0\0\7"], None),
        ([b"\3\0\0\7" + tuned(1 << 20, 60)], None),
        # Other frames speak for it
        ([tuned(302_518_786, 60) + tuned(1 << 20, 60)], "rabbitmq-stream"),
    ],
)
def test_one_frame_in_the_middle_is_proof_if_it_fills_its_segment_with_usual_values(frames: list[bytes], protocol: str | None) -> None:
    found = Capture([(1, sum(map(len, frames[:index])), data) for index, data in enumerate(frames)])
    assert verdict(found, 50_000).protocol == protocol


PING, PONG = bytes.fromhex("0400000001000000"), bytes(8)
POLL = bytes.fromhex("2d000000640000000101040100000002066f726465727302066576656e7473030000000300000000000000000100000001")


@pytest.mark.parametrize(
    ("sent", "from_start", "protocol"),
    [
        ([(0, PING)], True, "iggy"),
        ([(0, PING)], False, "iggy"),
        ([(0, b"\xff\xff\xff\xff"), (0, PING)], False, None),
        ([(0, PING), (1, PONG)], False, "iggy"),
        # The server goes on with what is no answer, or the client with what is no request
        ([(0, PING), (1, PONG), (1, b"\xff\xff\xff\xff")], False, None),
        ([(0, PING), (1, PONG), (0, b"\xff\xff\xff\xff")], False, None),
        ([(0, POLL)], False, "iggy"),
        ([(0, b"\7\7\7\7"), (0, POLL)], False, None),
        ([(0, POLL), (0, PING)], False, "iggy"),
    ],
)
def test_one_request_in_the_middle_is_proof_if_it_is_all_or_was_answered(
    sent: list[tuple[int, bytes]], from_start: bool, protocol: str | None
) -> None:
    found = Capture()
    found.from_start = from_start
    for side, data in sent:
        found.append((side, sum(len(one) for other, _, one in found if other == side), data))
    assert verdict(found, 8090).protocol == protocol


def test_a_frame_of_the_other_side_speaks_for_one() -> None:
    found = Capture([(1, 0, b"\3\0\0\7" + tuned(1 << 20, 60)), (0, 0, b"\3\0\0\7" + tuned(1 << 20, 60))])
    assert verdict(found, 50_000).protocol == "rabbitmq-stream"


def test_zeros_between_small_numbers_are_no_frame_of_the_draft() -> None:
    """The last call alone: its msg_id 10 reads as a size, what follows as a Publish without stream and messages."""
    found = packets(ROOT / "golden" / "seastar-rpc" / "handler_duration.pcap")[29:]
    assert {row.protocol for row in rows(with_ports(found, random_ports(1)))} == {None}


INTERLEAVED = {
    "rabbitmq-stream": ["js_publish_consume_405.pcap", "draft_exchange.pcap", "superstream_310.pcap"],
    "iggy": ["py080-group.pcap", "seed-cli.pcap", "node0100e4-hb.pcap"],
    "mewbase": ["java-query.pcap", "py-flow.pcap"],
}
"""The captures of a family; of the others the first three."""


def contents(found: list[Packet]) -> list[list[Any]]:
    """What the messages of each conversation say, without numbers, times and addresses, in the order of their first packet."""
    inspector = Inspector([open_capture(capture(found))], Options(exchanges=True))
    said: dict[int, list[Any]] = {}
    for record in inspector.records():
        if isinstance(record, Message):
            one = (record.protocol, record.name, record.kind, record.sender, record.id, record.position, record.size, record.fields)
            said.setdefault(record.conversation, []).append((*one, record.outcome, record.latency_ns, list(record.notes), record.fault))
    return [said[conversation] for conversation in sorted(said)]


def test_all_protocols_interleaved_on_odd_ports_read_as_each_alone() -> None:
    paths = []
    for folder in sorted((ROOT / "golden").iterdir()):
        names = INTERLEAVED.get(folder.name)
        paths += [folder / one for one in names] if names else sorted(folder.glob("*.pcap"))[:3]
    alone: list[list[Any]] = []
    mixed: list[Packet] = []
    for number, path in enumerate(paths):
        found = with_ports(packets(path), lambda port, number=number: 10_000 + (port * 31 + number * 977) % 50_000)  # type: ignore[misc]
        # Addresses repeat between captures, so ports keep them apart; times are moved to one common beginning.
        begin = found[0].time_ns
        mixed += [packet._replace(time_ns=packet.time_ns - begin + 1_700_000_000_000_000_000) for packet in found]
        alone += contents(found)
    mixed.sort(key=lambda packet: packet.time_ns)
    together = contents(mixed)
    assert len(together) == len(alone)
    assert sorted(map(repr, together)) == sorted(map(repr, alone))
    assert {protocol.name for protocol in PROTOCOLS} == {one[0][0] for one in together}


def test_first_bytes_rule_out_no_protocol_that_its_heuristic_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled_out = set()

    def checked(protocol: Protocol) -> Protocol:
        def heuristic(view: DetectionView) -> Verdict | None:
            found = protocol.loaded.heuristic(view)
            if not protocol.may_begin(view):
                assert found is None and not view.hinges
                ruled_out.add(protocol.name)
            return found

        return with_members(protocol, heuristic=heuristic)

    monkeypatch.setattr("streamdump.detect.PROTOCOLS", tuple(checked(protocol) for protocol in PROTOCOLS))
    chance = random.Random(1)
    for path in CAPTURES:
        if path.stat().st_size < 20_000:
            found = packets(path)
            rows(found)
            rows(found[chance.randrange(len(found)) :])
    assert ruled_out == {protocol.name for protocol in PROTOCOLS}
    sizes = [(0).to_bytes(4), (20).to_bytes(4), (20).to_bytes(4, "little"), b"SSTA"]
    for _ in range(3_000):
        # Mostly zeros, as headers are
        head = chance.choice(sizes) + bytes(
            chance.choice((0, 0, 0, 1, 2, chance.randrange(256))) for _ in range(chance.choice((4, 9, 60, 300)))
        )
        detector = Detector((40_000, 50_000), True, 1 << 20)
        detector.add([said(0, 0, head)])
        detector.finish()


def test_a_beginning_that_is_captured_late_is_the_beginning() -> None:
    """A segment captured before the first one is certain only with it, and still comes behind it."""
    detector = Detector((40_000, 50_000), True, 1 << 20)
    found = detector.add([said(0, 0, b"SSTARRPC\0\0\0\0", 2), said(0, 12, bytes(40), 1)])
    assert found is not None
    assert found.protocol == "seastar-rpc"


def said(side: int, position: int, data: bytes, order: int = 1) -> SideData:
    return SideData(side, position, data, (order, order + 1, 0, order * 10))


@pytest.mark.parametrize(("confidence", "protocol"), [(ENOUGH, PROTOCOLS[0].name), (ENOUGH - 0.01, None)])
def test_how_certain_a_protocol_is_at_the_end(confidence: float, protocol: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def heuristic(view: DetectionView) -> Verdict:
        return Verdict(PROTOCOLS[0].name, confidence, ("as planted",))

    monkeypatch.setattr("streamdump.detect.PROTOCOLS", (with_members(PROTOCOLS[0], heuristic=heuristic),))
    _cached_looks.clear()
    detector = Detector((40_000, 50_000), True, 1 << 20)
    assert detector.add([said(0, 0, b"planted")]) is None
    assert detector.finish().protocol == protocol
    _cached_looks.clear()


def counted_probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the protocols that are looked for from now on, one for each look."""
    looks: list[str] = []

    def counting(protocol: Protocol) -> Protocol:
        def heuristic(view: DetectionView) -> Verdict | None:
            looks.append(protocol.name)
            return protocol.loaded.heuristic(view)

        return with_members(protocol, heuristic=heuristic)

    monkeypatch.setattr("streamdump.detect.PROTOCOLS", tuple(counting(protocol) for protocol in PROTOCOLS))
    return looks


def test_what_begins_with_the_same_bytes_is_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = counted_probes(monkeypatch)

    def told(data: bytes, server: int, syn: bool, number: int) -> Verdict:
        detector = Detector((40_000 + number, server), syn, 1 << 20)
        found = detector.add([said(0, 0, data)])
        return detector.finish() if found is None else found

    for data in MANY.values():
        for server, syn in ((5552, False), (50_000, False), (50_000, True)):
            first = told(data, server, syn, 0)
            before = len(looks)
            assert [told(data, server, syn, number) for number in range(1, 20)] == [first] * 19
            assert len(looks) == before
            _cached_looks.clear()
            assert told(data, server, syn, 20) == first
    for number in range(3 * MAX_CACHED):
        told(number.to_bytes(8, "big"), 50_000, False, 0)
    assert 0 < len(_cached_looks) <= MAX_CACHED


@pytest.mark.parametrize("most", [12, pytest.param(40, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("lost", [0, 10])
def test_a_remembered_look_changes_no_verdict(lost: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of the same bytes nor that of more bytes, which are looked at."""
    chance = random.Random(7)
    pieces = [*MANY.values(), *(chance.randbytes(20) for _ in range(20))]
    for case in ("rabbitmq-stream/handshake_close_405.pcap", "iggy/py080-basic.pcap", "mewbase/java-nov2016.pcap"):
        pieces += [
            packet.raw[(tcp_offset(packet) or 0) + skip :][:300]
            for packet in packets(ROOT / "golden" / case)[:most]
            for skip in (20, 32, 35)
        ]
    looks = counted_probes(monkeypatch)

    def told(piece: bytes, following: bytes, remember: bool) -> list[Verdict | None]:
        detector = Detector((40_000, 50_000), lost > 0, 1 << 20)
        reach, found = [lost, lost], list[Verdict | None]()
        for order, (side, more) in enumerate([(0, piece), (1, bytes(3)), (0, following)]):
            if not remember:
                _cached_looks.clear()
            found.append(detector.add([said(side, reach[side], more, order)]))
            reach[side] += len(more)
            if found[-1] is not None:
                return found
        return [*found, detector.finish()]

    made = spared = 0
    for piece in filter(None, pieces):
        for following in (piece[::-1], b"another", piece):
            before = len(looks)
            alone = told(piece, following, False)
            made += len(looks) - before
            _cached_looks.clear()
            told(piece, piece[::-1], True)
            before = len(looks)
            assert told(piece, following, True) == alone
            spared += len(looks) - before
    assert spared < made / 2


def test_at_the_end_only_what_hinges_on_it_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that ends with the packet it was weighed at is weighed as if it had not been, though by fewer probes."""
    looks = counted_probes(monkeypatch)
    pieces = list(MANY.values())
    for case in (
        "rabbitmq-stream/handshake_close_405.pcap",
        "iggy/py080-basic.pcap",
        "mewbase/java-nov2016.pcap",
        "seastar-rpc/isolation.pcap",
    ):
        pieces += [
            packet.raw[(tcp_offset(packet) or 0) + skip :] for packet in packets(ROOT / "golden" / case)[:60] for skip in (20, 32, 35)
        ]
    weighed = again = 0
    for piece in pieces:
        found = []
        for afresh in (False, True):
            detector = Detector((40_000, 50_000), False, 1 << 20)
            if not piece or detector.add([said(0, 0, piece)]) is not None:
                break
            if afresh:
                detector._seen = None
            before = len(looks)
            found.append(detector.finish())
            if afresh:
                again += len(PROTOCOLS)
            else:
                weighed += len(looks) - before
        assert found[:1] == found[1:]
    assert again > 500
    assert weighed < again / 2


RECORD = b"\x17\x03\x03"
BEGINNINGS: list[tuple[bytes, bool, str | None]] = [
    (b"SSH-2.0-OpenSSH_9.2p1\r\n", True, "SSH"),
    (b"AMQP\x00\x00\x09\x01", True, "AMQP 0-9-1"),
    (b"AMQP\x03\x01\x00\x00", True, "AMQP 1.0 (SASL)"),
    (b"AMQP\x00\x00\x09\x02", True, None),
    (b"POST /apis HTTP/1.1\r\n", True, "HTTP"),
    (b"HTTP/1.1 400 Bad Request\r\n", True, "HTTP"),
    (b"GET me a beer\r\n", True, None),
    (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", True, "TLS"),
    (b"\x16\x03\x05\x00\x05\x01\x00\x00\x01\x00", True, None),
    (RECORD + b"\x00\x02ab" + RECORD + b"\x00\x05", False, "TLS"),
    (RECORD + b"\x00\x02ab" + b"\x18\x03\x03\x00\x05", False, None),
    (RECORD + b"\x48\x00" + bytes(18_432) + RECORD, False, "TLS"),
    (RECORD + b"\x48\x01" + bytes(18_433) + RECORD, False, None),
    (RECORD + b"\x00\x00" + RECORD, False, None),
    (b"\x00\x00\x00\x0e\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04java", True, "Kafka"),
    (b"\x00\x00\x00\x0e\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04java", False, None),
    (b"\x00\x00\x00\x0e\x00\x13\x00\x03\x00\x00\x00\x01\x00\x04java", True, None),
    (b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02id", True, "MQTT"),
    (b"\x10\xff\xff\xff\x7f\x00\x06MQIsdp\x03", True, "MQTT"),
    (b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02id", False, None),
    (b"STOMP\naccept-version:1.2\n\n\x00", True, "STOMP"),
    (b"CONNECT {}\r\n", True, None),
    (b"\x04\x00\x00\x00\x05\x00\x00\x00\x00", True, "CQL"),
    (b"\x04\x00\x00\x00\x05\x00\x00\x00\x00\x09", True, None),
    (b"\x04\x00\x00\x01\x01\x00\x00\x00\x16\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0", True, "CQL"),
    (b"\x04\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00", True, None),
]


@pytest.mark.parametrize(("data", "from_start", "told"), BEGINNINGS)
def test_a_neighbour_is_told_by_its_first_bytes(data: bytes, from_start: bool, told: str | None) -> None:
    assert neighbour(data, from_start) == told


@pytest.mark.parametrize(("ports", "told"), [((40_000, 7_001), "one"), ((7_002, 40_000), "other"), ((40_000, 50_000), None)])
def test_the_port_decides_between_equal_candidates(ports: tuple[int, int], told: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def equal(name: str, port: int) -> Protocol:
        one = with_members(PROTOCOLS[0], heuristic=lambda _: Verdict(name, 0.95, ("looks like it",)))
        return msgspec.structs.replace(one, name=name, ports=(port,))

    monkeypatch.setattr("streamdump.detect.PROTOCOLS", (equal("one", 7_001), equal("other", 7_002)))
    detector = Detector(ports, True, 1 << 20)
    detector.add([said(0, 0, bytes(64))])
    verdict = detector.finish()
    assert verdict.protocol == told
    assert verdict.evidence[-1].startswith("the port decides" if told else "not enough to tell")


def test_a_conversation_without_bytes_says_so() -> None:
    assert Detector((40_000, 5552), True, 1 << 20).finish().evidence == ("no bytes",)
