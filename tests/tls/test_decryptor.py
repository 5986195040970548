"""Reading TLS where not everything is there, or nothing is as it should be."""

from __future__ import annotations

import io
import random
import re
import shutil
import ssl
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Options, SideData, StreamGap
from streamdump.tls import ciphers, resync
from streamdump.tls.keys import KeyLog
from streamdump.tls.schedule import Keys
from streamdump.tls.suites import suite
from tests.support.frames import ACK, PSH, Packet, enhanced, ethernet, interface, ip4, pcap, section, tcp
from tests.support.peers import GOLDEN, said
from tests.support.work import steps
from tests.tls.peers import CLIENT, SERVER, OpenSSL, Said, Talk, Wire, contexts, identity, secrets_block, talk
from tests.tls.reading import Read, log_of, meaning, once, opened, read, text

RABBIT = "rabbitmq-stream/js_publish_consume_405.pcap"
BLOCKS = "AES128-SHA"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

LINES: list[Said] = [(index % 2, b"line %d of %d\n" % (index, index % 2)) for index in range(40)]


def bytes_of(what: list[Said], side: int) -> bytes:
    return b"".join(data for one, data in what if one == side)


def data_packets(wire: Wire, side: int) -> list[int]:
    """The numbers of a side's packets with payload, from 1."""
    port = wire.ports[side].to_bytes(2, "big")
    return [number for number, one in enumerate(wire.packets, 1) if len(one.data) > 54 and one.data[34:36] == port]


def changed(packet: Packet, at: int) -> Packet:
    data = bytearray(packet.data)
    data[at] ^= 0x40
    return packet._replace(data=bytes(data))


def true(items: list[SideData | StreamGap], whole: bytes) -> bool:
    """Whether what came out of a side is of its bytes, in their places as long as those are known."""
    position, exact, least = 0, True, 0
    for item in items:
        assert item.position == position
        if isinstance(item, StreamGap):
            exact = exact and item.size is not None
            position += item.size or 0
            continue
        if exact:
            if whole[position : position + len(item.data)] != item.data:
                return False
            least = position + len(item.data)
        else:
            found = whole.find(item.data, least)
            if found < 0:
                return False
            least = found + len(item.data)
        position += len(item.data)
    return True


# Losses


@pytest.mark.parametrize(("version", "suite"), [("1.3", ""), ("1.2", ""), ("1.2", "ECDHE-RSA-CHACHA20-POLY1305")])
@pytest.mark.parametrize("lost", [1, 2, 5])
def test_a_lost_record_costs_itself(version: str, suite: str, lost: int) -> None:
    """Where nothing but the length of what is sealed is hidden, the gap is known to the byte."""
    one = talk(LINES, version, suite)
    wire = Wire().send(one.sent).end()
    gone = data_packets(wire, CLIENT)[8 : 8 + lost]
    sides, _ = opened(wire.capture(gone), one.keys)
    whole = bytes_of(LINES, CLIENT)
    (gap,) = [item for item in sides[CLIENT] if isinstance(item, StreamGap)]
    assert gap.reason == "lost"
    assert gap.size is not None
    kept = b"".join(item.data for item in sides[CLIENT] if isinstance(item, SideData))
    assert kept == whole[: gap.position] + whole[gap.position + gap.size :]
    assert len(kept) == len(whole) - sum(len(data) for side, data in LINES if side == CLIENT and data not in kept)
    assert text(sides[SERVER]) == bytes_of(LINES, SERVER)
    found = read(wire.capture(gone), one.keys)
    assert found.facts["tls_plain_bytes"] == [len(whole), len(bytes_of(LINES, SERVER))]


def test_a_lost_record_of_blocks_has_no_known_size() -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what, "1.2", BLOCKS)
    wire = Wire().send(one.sent).end()
    gone = data_packets(wire, SERVER)[12:13]
    sides, _ = opened(wire.capture(gone), one.keys)
    (gap,) = [item for item in sides[SERVER] if isinstance(item, StreamGap)]
    assert (gap.size, gap.reason) == (None, "lost")
    assert true(sides[SERVER], bytes_of(what, SERVER))
    found = read(wire.capture(gone), one.keys)
    (gap,) = found.gaps
    assert gap.size is None
    assert found.rows[0].gap_bytes == 0
    assert len(found.messages) >= 23


def test_gaps_of_known_size_keep_frames_in_step() -> None:
    """Half a frame lost inside TLS: the message says so, and the next one is where it should be."""
    what = said(GOLDEN / "rabbitmq-stream/publish_small_405.pcap")
    whole = bytes_of(what, CLIENT)
    pieces = [(CLIENT, whole[at : at + 200]) for at in range(0, len(whole), 200)]
    one = talk(pieces)
    wire = Wire().send(one.sent).end()
    gone = data_packets(wire, CLIENT)[5:6]
    carried = read(wire.capture(gone), one.keys)
    plain = Wire().send(pieces, 60_000).end()
    wanted = read(plain.capture(data_packets(plain, CLIENT)[3:4]))
    assert [(one.name, one.position, one.size, one.fault) for one in carried.messages] == [
        (one.name, one.position, one.size, one.fault) for one in wanted.messages
    ]
    assert [(one.position, one.size, one.in_frame) for one in carried.gaps] == [
        (one.position, one.size, one.in_frame) for one in wanted.gaps
    ]


def test_a_header_by_chance_between_two_losses_costs_no_record() -> None:
    """What is left of a large record has what looks like a header, of a record that would reach beyond the second loss."""
    lines = [b"line %d " % index * 50 for index in range(20)]
    one = talk([(SERVER, bytes(16_000)), *[(SERVER, line) for line in lines]], close=False)
    wire = Wire().send(one.sent).end()
    *_, first, behind, _, _, _ = data_packets(wire, SERVER)[:-20]  # the last of the large record, which are followed by a packet a line
    packet = wire.packets[behind - 1]
    wire.packets[behind - 1] = packet._replace(data=packet.data[:500] + b"\x17\3\3\x46\x50" + packet.data[505:])
    gone = [first, data_packets(wire, SERVER)[-5]]
    sides, _ = opened(wire.capture(gone), one.keys)
    assert [item.data for item in sides[SERVER] if isinstance(item, SideData)] == [*lines[:-5], *lines[-4:]]
    assert read(wire.capture(gone), one.keys).facts["tls_plain_bytes"][SERVER] >= sum(map(len, lines))


def test_lost_session_tickets_are_not_taken_for_data() -> None:
    one = talk(LINES)
    wire = Wire().send(one.sent).end()
    tickets = data_packets(wire, SERVER)[1:2]
    sides, _ = opened(wire.capture(tickets), one.keys)
    assert [item.size for item in sides[SERVER] if isinstance(item, StreamGap)] == [None]
    assert b"".join(item.data for item in sides[SERVER] if isinstance(item, SideData)) == bytes_of(LINES, SERVER)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_loss_in_the_handshake_costs_no_byte(version: str) -> None:
    """The server's certificate does not come whole: what it says after its part of the handshake is read all the same."""
    one = talk(LINES, version)
    wire = Wire().send(one.sent, 300).end()
    hello, *rest = data_packets(wire, SERVER)
    sides, stage = opened(wire.capture(rest[:1]), one.keys)
    assert text(sides[SERVER]) == bytes_of(LINES, SERVER)
    assert text(sides[CLIENT]) == bytes_of(LINES, CLIENT)
    told = stage.facts_so_far()
    assert told is not None
    assert told.complete
    assert told.certificate is None
    assert hello not in rest


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_without_a_hello_nothing_is_read_and_that_is_told(version: str, side: int) -> None:
    one = talk(LINES, version)
    wire = Wire().send(one.sent).end()
    found = read(wire.capture(data_packets(wire, side)[:1]), one.keys)
    assert not found.records
    assert found.rows[0].name == "TLS, beginning not captured"
    assert found.facts["tls_unread"] == "beginning not captured"


def begun(wire: Wire, at: int) -> bytes:
    return pcap(wire.packets[at:], nano=True)


@pytest.mark.parametrize("at", [6, 7, 13, 20])
def test_begun_in_the_middle(at: int, tmp_path: Path) -> None:
    """No handshake was captured: where the log has few sessions, the one whose keys open a record is this connection's."""
    what = said(GOLDEN / RABBIT)
    one, others = talk(what), [talk(LINES) for _ in range(3)]
    log = tmp_path / "keys.log"
    log.write_bytes(b"".join(other.keys for other in [others[0], one, *others[1:]]))
    wire = Wire(syn=False).send(one.sent).end()
    found = read(begun(wire, at), keylog=(str(log),))
    whole = read(Wire(syn=False).send(one.sent).end().capture(), one.keys)
    names = [message.name for message in whole.messages]
    assert len(found.messages) > 5
    assert [message.name for message in found.messages] == names[-len(found.messages) :]
    assert found.rows[0].client == "192.0.2.1:40000"
    assert found.facts["tls_handshake"] == "none of it captured"


def test_begun_in_the_middle_of_a_long_connection(tmp_path: Path) -> None:
    one = talk([(index % 2, b"\0\0\0\4\0\x17\0\1" * 3) for index in range(3000)])
    log = tmp_path / "keys.log"
    log.write_bytes(one.keys)
    wire = Wire(syn=False).send(one.sent).end()
    found = once(begun(wire, 2000), keylog=(str(log),))
    assert len(found.messages) > 1500
    assert {message.name for message in found.messages} == {"Heartbeat"}


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_begun_in_the_middle_and_not_read(version: str, tmp_path: Path) -> None:
    one = talk(LINES, version)
    log = tmp_path / "keys.log"
    log.write_bytes(one.keys if version == "1.2" else talk(LINES).keys)
    wire = Wire(syn=False).send(one.sent).end()
    found = read(begun(wire, 20), keylog=(str(log),))
    assert not found.records
    assert found.rows[0].name == "TLS, beginning not captured"
    assert read(begun(wire, 20)).rows[0].name == "TLS"


def test_begun_in_the_middle_many_times_takes_bounded_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection has a record or two, the log many sessions."""
    log = tmp_path / "keys.log"
    log.write_bytes(b"".join(talk([]).keys for _ in range(20)))
    records = [b"\x17\x03\x03\x00\x30" + bytes((index,)) * 48 for index in range(200)]
    packets = [Wire(syn=False, client_port=30_000 + index).send([(CLIENT, data)] * 2).packets for index, data in enumerate(records)]
    tries = counted(monkeypatch)
    found = once(pcap([packet for some in packets for packet in some], nano=True), keylog=(str(log),))
    assert {row.name for row in found.rows} == {"TLS, beginning not captured"}
    work = sum(resync.TRY_WORK + size // 4 for size in tries)
    assert work <= 200 * (resync.FREE_GUESSES + resync.WORK_A_BYTE * 106)
    assert tries


def test_begun_in_the_middle_many_times_with_many_sessions_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What any of them may be sealed under is found once; a packet pays for what is tried."""
    records = [b"\x17\x03\x03\x00\x19" + bytes((index,)) * 25 for index in range(100)]
    packets = [Wire(syn=False, client_port=30_000 + index).send([(CLIENT, data)]).packets[0] for index, data in enumerate(records)]
    none, many = tmp_path / "none.log", tmp_path / "many.log"
    none.write_bytes(b"")
    many.write_bytes(b"".join(talk([]).keys for _ in range(40)))

    def work(count: int, log: Path) -> int:
        return steps(lambda: once(pcap(packets[:count], nano=True), keylog=(str(log),)))

    work(10, many)
    assert work(100, many) - work(10, many) < 2 * (work(100, none) - work(10, none))
    tries = counted(monkeypatch)
    once(pcap(packets, nano=True), keylog=(str(many),))
    assert sum(resync.TRY_WORK + size // 4 for size in tries) <= resync.WORK_A_BYTE * sum(len(one.data) for one in packets)


@pytest.mark.parametrize("records", [1000, pytest.param(2000, marks=pytest.mark.sweep)])
def test_many_records_from_the_middle_on_take_linear_work(records: int, tmp_path: Path) -> None:
    log = tmp_path / "keys.log"
    log.write_bytes(b"".join(talk([]).keys for _ in range(20)))

    def work(count: int) -> int:
        sent = [(CLIENT, b"\x17\x03\x03\x00\x18" + bytes((index & 255,)) * 24) for index in range(count)]
        capture = pcap(Wire(syn=False).send(sent).packets, nano=True)
        return steps(lambda: once(capture, keylog=(str(log),)))

    work(10)
    few, many = work(records // 4), work(records)
    assert many < 5 * few


@st.composite
def trouble(draw: st.DrawFn) -> tuple[str, str, str, int, list[tuple[str, int, int]]]:
    """A conversation, and what happens to its packets on the way."""
    name = draw(st.sampled_from([RABBIT, "iggy/py090-rejected.pcap", "mewbase/cut-tiny-segments.pcap", "seastar-rpc/basic.pcap"]))
    version, suite = draw(
        st.sampled_from([("1.3", ""), ("1.2", ""), ("1.2", BLOCKS), ("1.2", "ECDHE-RSA-CHACHA20-POLY1305"), ("1.2", "AES256-SHA256")])
    )
    what = st.sampled_from(["drop", "drop", "swap", "again", "change", "change", "cut"])
    place = st.integers(0, 10_000)
    return name, version, suite, draw(st.sampled_from([60, 300, 1460])), draw(st.lists(st.tuples(what, place, place), max_size=8))


TALKS: dict[tuple[str, str, str], tuple[list[Said], Talk]] = {}


def befall(packets: list[Packet], what: str, one: int, two: int) -> None:
    at = 2 + one % (len(packets) - 4)
    if what == "drop":
        del packets[at]
    elif what == "swap":
        packets.insert(min(at + two % 4, len(packets)), packets.pop(at))
    elif what == "again":
        packets.insert(at + two % (len(packets) - at), packets[at])
    elif what == "change" and len(packets[at].data) > 54:
        packets[at] = changed(packets[at], 54 + two % (len(packets[at].data) - 54))
    elif what == "cut" and len(packets[at].data) > 54:
        data = packets[at].data
        packets[at] = packets[at]._replace(data=data[: 54 + two % (len(data) - 54)], wire=len(data))


@given(trouble())
def test_whatever_happens_no_byte_is_invented_and_batches_never_show(case: tuple[str, str, str, int, list[tuple[str, int, int]]]) -> None:
    name, version, suite, size, changes = case
    if (name, version, suite) not in TALKS:
        TALKS[name, version, suite] = said(GOLDEN / name), talk(said(GOLDEN / name), version, suite)
    what, one = TALKS[name, version, suite]
    packets = list(Wire().send(one.sent, size).end().packets)
    for change in changes:
        befall(packets, *change)
    capture = pcap(packets, nano=True)
    found = read(capture, one.keys)
    reach = [0, 0]
    row = found.rows[0]
    for record in sorted((one for one in found.records if hasattr(one, "position")), key=lambda one: (one.src, one.position)):
        if getattr(record, "in_frame", False):
            continue
        side = row.endpoints.index(record.src)
        assert record.position == reach[side]
        reach[side] += record.size or 0
    if row.protocol is not None and row.conversation == 0:
        assert reach == row.facts.get("tls_plain_bytes", reach)
    sides, stage = opened(capture, one.keys)
    if stage.is_tls:
        assert all(true(sides[side], bytes_of(what, side)) for side in (0, 1))


# Records that do not authenticate


@pytest.mark.parametrize(("version", "suite"), [("1.3", ""), ("1.2", ""), ("1.2", BLOCKS), ("1.2", "ECDHE-RSA-AES256-SHA384")])
@pytest.mark.parametrize("place", ["content", "tag"])
def test_a_changed_record_is_a_gap_and_a_note(version: str, suite: str, place: str) -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what, version, suite)
    wire = Wire().send(one.sent).end()
    number = data_packets(wire, CLIENT)[10]
    packet = wire.packets[number - 1]
    wire.packets[number - 1] = changed(packet, 54 + 5 + 17 if place == "content" else len(packet.data) - 1)
    found = read(wire.capture(), one.keys)
    plain = read(Wire().send(what, 60_000).end().capture())
    (gap,) = found.gaps
    assert gap.reason == "skipped"
    assert not gap.in_frame
    missing = [one for one in plain.messages if one.position == gap.position and one.src == gap.src]
    assert [one.name for one in plain.messages if one not in missing] == [one.name for one in found.messages]
    if suite in ("", "ECDHE-RSA-CHACHA20-POLY1305"):
        assert [one.size for one in missing] == [gap.size]
    else:
        assert gap.size is None
    following = next(one for one in found.messages if one.src == gap.src and one.position >= gap.position)
    assert list(following.notes)[-1:] == ["1 TLS record before this did not authenticate"]
    assert found.facts["tls_records_skipped"] == 1


def test_what_was_sent_again_with_other_bytes_is_noted_on_its_message() -> None:
    one = talk(said(GOLDEN / RABBIT))
    wire = Wire().send(one.sent).end()
    numbers = data_packets(wire, CLIENT)[10:12]
    for number in reversed(numbers):
        packet = wire.packets[number - 1]
        wire.packets.insert(number, changed(packet, len(packet.data) - 1))
    found = read(wire.capture(), one.keys)
    noted = [note.partition(", ")[0] for message in found.messages for note in message.notes]
    assert noted == ["1 byte sent again differs"] * 2


def test_the_wrong_keys_open_nothing() -> None:
    one = talk(said(GOLDEN / RABBIT))
    wrong = re.sub(rb"(?m)([0-9a-f])$", lambda match: b"%x" % (int(match[1], 16) ^ 1), one.keys)
    found = read(Wire().send(one.sent).end().capture(), wrong)
    assert not found.records
    assert found.rows[0].name == "TLS, keys wrong"
    assert "tls_plain_bytes" not in found.facts


def test_many_records_under_the_wrong_keys_cost_a_try_each(monkeypatch: pytest.MonkeyPatch) -> None:
    one = talk([(CLIENT, b"x" * 100)] * 2000)
    wrong = re.sub(rb"(?m)([0-9a-f])$", lambda match: b"%x" % (int(match[1], 16) ^ 1), one.keys)
    tries = counted(monkeypatch)
    found = once(Wire().send(one.sent).end().capture(), wrong)
    assert found.rows[0].name == "TLS, keys wrong"
    assert len(tries) <= 6 * resync.FAILURES


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes every record that is tried."""
    tries: list[int] = []
    for kind in (ciphers._Sealed13, ciphers._Sealed12, ciphers._Explicit12, ciphers._MacThenEncrypt, ciphers._EncryptThenMac):

        def counting(self: Any, data: bytes, at: int, end: int, seq: int, real: Any = kind.open) -> Any:
            tries.append(end - at)
            return real(self, data, at, end, seq)

        monkeypatch.setattr(kind, "open", counting)
    return tries


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_the_way_back_takes_bounded_work(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of records everywhere, none of which authenticates: the work is bounded by the bytes that came."""
    one = talk(LINES, version)
    wire = Wire().send(one.sent)
    wire.next[CLIENT] += 20_000  # lost
    noise = b"\x17\x03\x03\x00\x20" * 100_000
    wire.send([(CLIENT, noise)], 1400)
    tries = counted(monkeypatch)
    found = once(wire.capture(), one.keys)
    assert sum(resync.TRY_WORK + size // 4 for size in tries) <= resync.FREE_WORK + resync.WORK_A_BYTE * (len(noise) + 60_000)
    assert found.rows[0].limit_hits == 1
    assert found.facts["tls_unread"] == "too much was lost"


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_lost_bytes_pay_for_no_work(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short connections, each of the same session and with a large gap: what is tried after it is paid by the packets that came."""
    one = talk([(CLIENT, b"x")], version)
    packets = []
    for index in range(30):
        wire = Wire(client_port=30_000 + index).send(one.sent)
        wire.next[CLIENT] += 90_000  # lost
        packets += wire.send([(CLIENT, b"\x17" + (b"\x17\x03\x03\x00\x18" + bytes((index,)) * 24) * 3)]).packets
    tries = counted(monkeypatch)
    found = once(pcap(packets, nano=True), one.keys)
    assert len(found.rows) == 30
    assert {row.facts["tls_plain_bytes"][CLIENT] for row in found.rows} == {1}
    assert len(tries) > 100
    assert sum(resync.TRY_WORK + size // 4 for size in tries) <= resync.WORK_A_BYTE * sum(len(packet.data) for packet in packets)


def test_each_loss_takes_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    one = talk([(CLIENT, bytes([65 + index % 26]) * (40 + index * 37 % 900)) for index in range(400)])
    wire = Wire().send(one.sent).end()
    packets = data_packets(wire, CLIENT)
    tries = counted(monkeypatch)
    sides, _ = opened(wire.capture(packets[20::20]), one.keys)
    gaps = [item for item in sides[CLIENT] if isinstance(item, StreamGap)]
    assert len(gaps) == len(packets[20::20])
    assert None not in [gap.size for gap in gaps]
    assert len(tries) < 400 + 40 * len(gaps)


def test_bytes_that_were_read_are_not_kept() -> None:
    one = talk([(CLIENT, b"x" * 9_000)], "1.2")
    inspector = Inspector([], keys=log_of(one.keys))
    for batch in open_capture(io.BytesIO(Wire().send(one.sent).capture()), name="test").batches():
        inspector.process(batch)
    (tracked,) = inspector.table.conversations
    assert tracked.tls.decryptor is not None
    assert tracked.tls.decryptor.emitted
    assert [len(flow.data) for flow in tracked.tls.decryptor.flows] == [0, 0]


# Keys


@pytest.mark.parametrize("without", [b"HANDSHAKE", b"CLIENT_HANDSHAKE", b"SERVER_HANDSHAKE"])
def test_traffic_is_read_without_the_secrets_of_the_handshake(without: bytes) -> None:
    one = talk(LINES)
    keys = b"".join(line for line in one.keys.splitlines(True) if without not in line)
    sides, _ = opened(Wire().send(one.sent).end().capture(), keys)
    assert [text(sides[side]) for side in (0, 1)] == [bytes_of(LINES, side) for side in (0, 1)]


def test_nobody_waits_for_the_secrets_of_a_handshake_that_is_over() -> None:
    one = talk(said(GOLDEN / RABBIT))
    keys = b"".join(line for line in one.keys.splitlines(True) if b"HANDSHAKE" not in line)
    assert len(Later(Wire().send(one.sent).end().capture(), keys, 9).read(1).messages) == 26


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_one_side_alone(side: int) -> None:
    """With the secrets of one side, the other one's bytes are a gap at the end."""
    one = talk(LINES)
    label = (b"CLIENT_TRAFFIC", b"SERVER_TRAFFIC")[1 - side]
    keys = b"".join(line for line in one.keys.splitlines(True) if not line.startswith(label))
    capture = Wire().send(one.sent).end().capture()
    sides, _ = opened(capture, keys)
    assert text(sides[side]) == bytes_of(LINES, side)
    assert [(item.size, item.reason) for item in sides[1 - side] if isinstance(item, StreamGap)] == [(None, "skipped")]
    assert read(capture, keys).facts["tls_unread"] == "keys missing"


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_without_keys_and_with_those_of_others(version: str) -> None:
    one, other = talk(LINES, version), talk(LINES, version)
    capture = Wire().send(one.sent).end().capture()
    assert once(capture).rows[0].name == "TLS"
    assert once(capture).facts["tls_unread"] == "no keys"
    found = read(capture, other.keys)
    assert found.rows[0].name == "TLS, keys missing"
    assert found.facts["tls_unread"] == "keys missing"
    assert not found.records


class Later:
    """Packets in batches, and a key log that has its lines only after so many of them."""

    def __init__(self, capture: bytes, keys: bytes, after: int) -> None:
        self.capture, self.keys, self.after = capture, keys, after

    def read(self, rows: int, **options: Any) -> Read:
        import io

        from streamdump.capture.files import open_capture
        from streamdump.inspector import Inspector

        log = KeyLog(follow=True)
        inspector = Inspector([], Options(**options), keys=log)
        records = []
        seen = 0
        for batch in open_capture(io.BytesIO(self.capture), name="test").batches(rows):
            if seen <= self.after < seen + len(batch):
                log.add(self.keys, seen)
            records += inspector.process(batch)
            seen += len(batch)
        records += inspector.finish()
        return Read(records, inspector.rows(), inspector)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("after", [0, 5, 12, 30])
def test_keys_that_come_later(version: str, after: int) -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what, version)
    capture = Wire().send(one.sent).end().capture()
    found = Later(capture, one.keys, after).read(1)
    plain = once(capture, one.keys)
    assert meaning(found.messages) == meaning(plain.messages)
    assert [one.time_ns for one in found.messages] == [one.time_ns for one in plain.messages]
    for row in (found.rows[0], plain.rows[0]):
        # More bytes at once tell the protocol better
        row.evidence, row.confidence = (), 1.0
    assert found.rows == plain.rows


def test_keys_that_come_after_the_end_of_a_conversation() -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what)
    wire = Wire().send(one.sent).end()
    packets = len(wire.packets)
    other = Wire(client_port=40_001, start_ns=wire.time_ns).send([(CLIENT, b"GET / HTTP/1.1\r\n\r\n")]).end()
    capture = pcap([*wire.packets, *other.packets], nano=True)
    found = Later(capture, one.keys, packets + 1).read(1)
    assert meaning(found.messages) == meaning(once(capture, one.keys).messages)
    assert [row.ended for row in found.rows] == ["Close by client", "FIN by client"]


def test_waiting_for_keys_has_a_limit() -> None:
    one = talk([(CLIENT, b"x" * 1000)] * 100)
    capture = Wire().send(one.sent).end().capture()
    found = Later(capture, one.keys, 90).read(1, keys_limit=20_000)
    assert not found.records
    assert found.rows[0].name == "TLS, keys missing"
    assert found.rows[0].limit_hits == 1
    assert len(Later(capture, one.keys, 20).read(1, keys_limit=20_000).rows[0].facts["tls_plain_bytes"]) == 2


@pytest.mark.parametrize("limit", [3_000, 20_000, 60_000, 1 << 20])
@pytest.mark.parametrize("place", [20, 60, 105])
def test_the_limit_does_not_depend_on_batches(limit: int, place: int) -> None:
    one = talk([(CLIENT, b"x" * 500)] * 100)
    blocks = [enhanced(packet, ticks=packet.time_ns) for packet in Wire().send(one.sent).end().packets]
    blocks.insert(place, secrets_block(one.keys))
    read(section() + interface(resolution=9) + b"".join(blocks), keys_limit=limit)


@pytest.mark.parametrize("total", [5_000, 40_000, 1 << 20])
def test_the_limit_over_all_conversations(total: int) -> None:
    """Several wait; what they hold together is bounded, the first to wait is the first to be given up."""
    talks = [talk([(CLIENT, b"x" * 400)] * 30) for _ in range(4)]
    wires = [
        Wire(client_port=40_000 + index, start_ns=1_700_000_000_000_000_000 + index * 7).send(one.sent).end()
        for index, one in enumerate(talks)
    ]
    packets = sorted((packet for wire in wires for packet in wire.packets), key=lambda packet: packet.time_ns)
    blocks = [enhanced(packet, ticks=packet.time_ns) for packet in packets]
    blocks.insert(120, secrets_block(b"".join(one.keys for one in talks)))
    found = read(section() + interface(resolution=9) + b"".join(blocks), keys_total=total)
    hits = [row.limit_hits for row in found.rows]
    assert hits == sorted(hits, reverse=True)
    assert (max(hits) > 0) == (total < 1 << 20)


# What else a connection does


def pair_of(version: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return contexts(version)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_session_that_is_taken_up_again(version: str) -> None:
    settings = pair_of(version)
    first = Talk(*settings).begin()
    for side, data in LINES:
        first.say(side, data)
    session = first.ends[CLIENT].session
    first.close()
    again = Talk(*settings, session=session).begin()
    assert again.ends[CLIENT].session_reused
    for side, data in LINES:
        again.say(side, data)
    again.close()
    sides, stage = opened(Wire().send(again.sent).end().capture(), again.keys)
    assert [text(sides[side]) for side in (0, 1)] == [bytes_of(LINES, side) for side in (0, 1)]
    told = stage.facts_so_far()
    assert told is not None
    assert told.resumed
    assert told.complete


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_the_clients_certificate(version: str) -> None:
    client, server = contexts(version, client_asks=True)
    client.load_cert_chain(*identity("ec"))
    one = Talk(client, server).begin()
    for side, data in LINES:
        one.say(side, data)
    sides, stage = opened(Wire().send(one.sent).end().capture(), one.keys)
    assert text(sides[CLIENT]) == bytes_of(LINES, CLIENT)
    told = stage.facts_so_far()
    assert told is not None
    assert told.certificate_asked
    assert told.certificate_given
    assert told.client_certificate


def test_a_certificate_asked_for_in_between() -> None:
    client, server = contexts("1.3", client_asks=True)
    client.post_handshake_auth = server.post_handshake_auth = True
    client.load_cert_chain(*identity("ec"))
    one = Talk(client, server).begin()
    for side, data in LINES[:10]:
        one.say(side, data)
    one.ends[SERVER].verify_client_post_handshake()
    one.pump()
    for side, data in LINES[10:]:
        one.say(side, data)
    sides, _ = opened(Wire().send(one.sent).end().capture(), one.keys)
    assert [text(sides[side]) for side in (0, 1)] == [bytes_of(LINES, side) for side in (0, 1)]


def test_another_hello_is_asked_for() -> None:
    client, server = contexts("1.3")
    server.set_ecdh_curve("secp384r1")
    one = Talk(client, server).begin()
    for side, data in LINES:
        one.say(side, data)
    sides, stage = opened(Wire().send(one.sent).end().capture(), one.keys)
    assert [text(sides[side]) for side in (0, 1)] == [bytes_of(LINES, side) for side in (0, 1)]
    told = stage.facts_so_far()
    assert told is not None
    assert told.retried


def check_openssl(sent: list[Said], keys: bytes, wanted: bytes) -> dict[str, Any]:
    """What the client said, and what the row of the connection says; the same in batches of any size."""
    capture = Wire().send(sent).end().capture()
    sides, _ = opened(capture, keys)
    assert text(sides[CLIENT]) == wanted
    return read(capture, keys).facts


@pytest.mark.witness
@needs_openssl
def test_key_updates_of_either_side() -> None:
    with OpenSSL(["-tls1_3", "-rev"]) as openssl:
        # K asks the other side for an update, too
        sent, keys = openssl.talk([b"one\n", b"K\n", b"two\n", b"k\n", b"three\n", b"K\n", b"K\n", b"four\n"])
    assert check_openssl(sent, keys, b"one\ntwo\nthree\nfour\n")["tls_key_updates"] >= 4


def singly(sent: list[Said]) -> list[Said]:
    """The same with each record by itself: a busy machine sends several together."""
    found: list[Said] = []
    for side, same in groupby(sent, key=lambda one: one[0]):
        data = b"".join(piece for _, piece in same)
        while data:
            size = 5 + int.from_bytes(data[3:5], "big")
            found.append((side, data[:size]))
            data = data[size:]
    return found


@pytest.mark.witness
@needs_openssl
def test_a_key_update_that_was_lost() -> None:
    with OpenSSL(["-tls1_3", "-rev"]) as openssl:
        sent, keys = openssl.talk([b"one\n", b"k\n", b"two\n", b"three\n"])
    wire = Wire().send(singly(sent)).end()
    first = next(number for number in data_packets(wire, CLIENT) if wire.packets[number - 1].data[54:59] == b"\x17\x03\x03\x00\x16")
    sides, _ = opened(wire.capture([first]), keys)
    assert text(sides[CLIENT]).replace(b"<None>", b"") == b"one\ntwo\nthree\n"


@pytest.mark.witness
@needs_openssl
def test_renegotiation() -> None:
    with OpenSSL(["-tls1_2", "-client_renegotiation", "-rev"]) as openssl:
        sent, keys = openssl.talk([b"one\n", b"R\n", b"two\n", b"R\n", b"three\n"])
    facts = check_openssl(sent, keys, b"one\ntwo\nthree\n")
    assert facts["tls_renegotiations"] == 2
    assert keys.count(b"CLIENT_RANDOM") == 3


@pytest.mark.witness
@needs_openssl
def test_early_data_taken_and_not_taken(tmp_path: Path) -> None:
    session, early = tmp_path / "session", tmp_path / "early"
    early.write_bytes(b"EARLY BIRD\n")
    again = ["-sess_in", str(session), "-early_data", str(early)]
    with OpenSSL(["-tls1_3", "-early_data", "-max_early_data", "16384"]) as openssl:
        openssl.talk([b"one\n"], ["-sess_out", str(session)], session)
        sent, keys = openssl.talk([b"two\n"], again)
        facts = check_openssl(sent, keys, b"EARLY BIRD\ntwo\n")
        assert (facts["tls_early_data"], facts["tls_resumed"]) == ("accepted", True)
        assert b"CLIENT_EARLY_TRAFFIC_SECRET" in keys
        # Without that secret, it is a gap
        keys = b"".join(line for line in keys.splitlines(True) if b"EARLY_TRAFFIC" not in line)
        sides, _ = opened(Wire().send(sent).end().capture(), keys)
        assert text(sides[CLIENT]) == b"<None>two\n"
        # A ticket is taken once
        sent, keys = openssl.talk([b"three\n"], again)
        assert check_openssl(sent, keys, b"three\n")["tls_early_data"] == "rejected"


# What is no TLS, and what is hardly any


def test_other_conversations_are_left_alone() -> None:
    for name in (RABBIT, "iggy/py090-basic.pcap"):
        found = once((GOLDEN / name).read_bytes())
        assert all(tracked.tls.decryptor is None and tracked.tls.facts is None for tracked in found.inspector.table.conversations)


@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_bytes_that_only_begin_like_tls(size: int) -> None:
    """They are not certain before the packet that told that they are something else, and none is lost."""
    what = [(CLIENT, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03"[:10] + b"\x77" + b"rest of it"), (SERVER, b"what?")]
    found = read(Wire(port=5552).send(what, size).end().capture(), decode_as=((5552, "rabbitmq-stream", None),))
    assert found.rows[0].protocol == "rabbitmq-stream"
    sizes = [sum(getattr(one, "size", 0) for one in found.records if one.src == end) for end in found.rows[0].endpoints]
    assert sizes == [21, 5]


def test_decode_as_is_about_what_is_inside() -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what)
    capture = Wire(port=5999).send(one.sent).end().capture()
    forced = ((5999, "rabbitmq-stream", None),)
    assert len(read(capture, one.keys, decode_as=forced).messages) == 26
    found = read(capture, decode_as=forced)
    assert not found.records
    assert (found.rows[0].protocol, found.rows[0].name) == (None, "TLS")


@given(st.integers(0, 1 << 30), st.sampled_from(["1.2", "1.3"]), st.sampled_from([BLOCKS, ""]))
def test_noise_in_place_of_records(seed: int, version: str, suite: str) -> None:
    """Records, headers and handshakes cut, repeated and changed at random: no exception, and batches never show."""
    one = TALKS.setdefault(("lines", version, suite), (LINES, talk(LINES, version, suite if version == "1.2" else "")))[1]
    chance = random.Random(seed)
    sent: list[Said] = []
    for side, data in one.sent:
        changed_data = bytearray(data)
        for _ in range(chance.choice([0, 0, 1, 3])):
            at = chance.randrange(len(changed_data))
            changed_data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
        sent += [(side, bytes(changed_data))] * chance.choice([1, 1, 1, 1, 0, 2])
    found = read(Wire().send(sent or LINES, chance.choice([50, 1460])).end().capture(), one.keys)
    whole = [bytes_of(LINES, side) for side in (0, 1)]
    assert all(size <= 3 * len(whole[side]) for side, size in enumerate(found.facts.get("tls_plain_bytes", [0, 0])))


def test_a_handshake_message_without_end_is_not_kept() -> None:
    """A server that announces a certificate of 16 MiB, and sends it."""
    one = talk(LINES, "1.2")
    hello = next(data for side, data in one.sent if side == CLIENT)
    answer = next(data for side, data in one.sent if side == SERVER)
    first = answer[: 5 + int.from_bytes(answer[3:5], "big")]
    begun = b"\x0b\xff\xff\xff" + bytes(16_000)
    records = [b"\x16\x03\x03" + len(piece).to_bytes(2, "big") + piece for piece in [begun] + [bytes(16_000)] * 200]
    wire = Wire().send([(CLIENT, hello), (SERVER, first), *((SERVER, record) for record in records)], 60_000)
    sides, stage = opened(wire.capture(), one.keys)
    assert sides == [[], []]
    assert stage.is_tls
    assert len(stage.flows[SERVER].handshake) < 20_000
    assert stage.flows[SERVER].skip_bytes


@pytest.mark.parametrize("first", [b"\x15\x03\x03\x00\x02\x02\x46", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_answers_otherwise(first: bytes) -> None:
    hello = talk(LINES).sent[0][1]
    found = read(Wire().send([(CLIENT, hello), (SERVER, first)]).end().capture())
    assert not found.records
    if first.startswith(b"HTTP"):
        assert found.rows[0].name == "TLS, answered without TLS"
        assert found.facts["tls"] == "only the client"
        assert found.facts["tls_troubles"] == {"tls.plain-peer": "the client speaks TLS, and the server does not"}
    else:
        assert found.rows[0].name == "TLS, handshake not finished"
        assert found.facts["tls_alerts"] == ["fatal protocol_version by the server"]
        assert found.facts["tls_offered"] == ["1.3"]
        assert list(found.facts["tls_troubles"]) == ["tls.no-common-version"]


def test_a_plain_client_on_a_port_of_tls() -> None:
    what = said(GOLDEN / RABBIT)
    found = read(Wire().send([what[0], (SERVER, b"\x15\x03\x03\x00\x02\x02\x0a")]).end().capture())
    assert [one.name for one in found.messages] == ["PeerProperties"]
    assert found.rows[0].protocol == "rabbitmq-stream"
    assert found.facts["tls"] == "only the server"
    assert found.facts["tls_alerts"] == ["fatal unexpected_message by the server"]
    assert found.facts["tls_troubles"] == {"tls.plain-peer": "the client does not speak TLS, and the server expects it"}
    (tracked,) = found.inspector.table.conversations
    assert tracked.tls.facts is not None
    assert tracked.tls.facts.plain_peer == CLIENT
    assert tracked.tls.facts.alerts[0].packet[1] == 4


def test_keys_reach_no_output() -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what)
    found = once(Wire().send(one.sent).end().capture(), one.keys, detail=True, show_secrets=True)
    shown = repr(found.records) + repr(found.rows) + repr(found.inspector.table.conversations)
    for line in one.keys.split():
        assert line.decode() not in shown or len(line) < 40 or line in (line for line in one.keys.split()[1::3])
    secrets = [bytes.fromhex(line.decode()) for line in one.keys.split()[2::3] if re.fullmatch(rb"[0-9a-f]+", line)]
    assert secrets
    assert not any(repr(secret)[2:-1] in shown or secret.hex() in shown for secret in secrets)


@pytest.mark.parametrize("number", [0x1301, 0x1303, 0x1305, 0xC02F, 0xC09D, 0xC0AF, 0xCCA8, 0x2F, 0x3D, 0xC028, 0x41])
@pytest.mark.parametrize("last", [False, True])
def test_whatever_a_record_holds_it_is_opened_or_not(number: int, last: bool) -> None:
    chosen = suite(number)
    assert chosen is not None
    iv = 12 if number >> 8 == 0x13 or chosen.mode == "CHACHA20" else 4
    opener = ciphers.make_opener(chosen, Keys(bytes(chosen.key), bytes(iv), bytes(20)), number >> 8 == 0x13, last)
    chance = random.Random(number)
    for size in (*range(70), 1000, 16_384, 18_432):
        for kind in (20, 21, 22, 23):
            record = bytes((kind, 3, 3)) + size.to_bytes(2, "big") + chance.randbytes(size)
            assert opener.open(b"xx" + record + b"yy", 2, 7 + size, chance.getrandbits(40)) is None


def test_packets_of_another_kind_of_segment() -> None:
    """A lone segment from the middle, with a header that may be one."""
    packet = Packet(ethernet(ip4(tcp(b"\x17\x03\x03\x40\x00" + bytes(100), flags=ACK | PSH))))
    assert read(pcap([packet], nano=True), talk(LINES).keys).rows[0].name is None
    assert log_of(b"").given is False
