"""Packets that come in lots: what is carried from one to the next makes them say what all packets at once say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump.errors import ForeignState
from streamdump.model import Options
from streamdump.pair.pairer import Pairer
from streamdump.protocols.rabbitmq.sasl_redaction import HandshakePlace
from streamdump.session import Session
from streamdump.spark import flows
from streamdump.spark.ordered import Row
from streamdump.tls.keys import KeyLog
from tests.spark.captures import SNAP, generated, records, rotated, troubled
from tests.spark.lots import Lots, at_once, carried_rows, in_lots, packets
from tests.support.frames import ACK, FIN, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("carry"), 1500, 5)


def test_any_batches(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = at_once([capture])
    assert len(expected["messages"]) > 1000
    for batch, cuts in ((1, [700]), (37, [3, 4, 400, 1100]), (10_000, [10, 1490])):
        monkeypatch.setattr(flows, "BLOCK", batch)
        assert in_lots([capture], cuts) == expected


def test_records_name_their_conversations(capture: Path) -> None:
    lots = Lots()
    found = packets([capture])
    for at in range(0, 1500, 300):
        lots.add(found[at : at + 300], at == 1200)
    assert len(lots.named) == 5
    assert lots.named == {row.conversation for row in lots.conversations}


def test_lots_without_packets(capture: Path) -> None:
    assert in_lots([capture], [0, 0, 500, 500, 10_000]) == at_once([capture])


def test_rotated_files(capture: Path, tmp_path: Path) -> None:
    files = rotated(tmp_path / "rotated", records(capture))
    assert in_lots(files, [10, 375, 750, 1000, 1400]) == at_once(files)


def test_packets_out_of_order_repeated_and_lost(capture: Path, tmp_path: Path) -> None:
    dice = random.Random(3)
    found = troubled(records(capture), dice, 60)
    path = tmp_path / "error.pcap"
    path.write_bytes(pcap(found, nano=True, snap=SNAP))
    expected = at_once([path])
    assert expected["gaps"]
    assert in_lots([path], sorted(dice.sample(range(1, 1400), 25))) == expected


HEARTBEAT = bytes.fromhex("00000004 0017 0001")
PEER_PROPERTIES = bytes.fromhex("0000000c 0011 0001 00000001 00000000")


def talk(port: int, start_ns: int, closed: bool = False) -> list[Packet]:
    """A conversation with one open request, of five packets or with its end seven."""

    def packet(at: int, **parts: Any) -> Packet:
        sent = at % 2 == 0
        ports = {"sport": port, "dport": 5552} if sent else {"sport": 5552, "dport": port}
        src, dst = (A, B) if sent else (B, A)
        return Packet(ethernet(ip4(tcp(**ports, **parts), src=src, dst=dst)), start_ns + at)

    found = [
        packet(0, seq=99, flags=SYN),
        packet(1, seq=499, ack=100, flags=SYN | ACK),
        packet(2, payload=PEER_PROPERTIES, seq=100, ack=500, flags=ACK),
        packet(3, payload=HEARTBEAT, seq=500, ack=116, flags=ACK),
        packet(4, payload=HEARTBEAT, seq=116, ack=508, flags=ACK),
    ]
    if closed:
        found += [packet(5, seq=508, ack=124, flags=FIN | ACK), packet(6, seq=124, ack=509, flags=FIN | ACK)]
    return found


def tables(tmp_path: Path, lots: Sequence[Sequence[Packet]]) -> list[list[Row]]:
    path = tmp_path / "lots.pcap"
    path.write_bytes(pcap([packet for lot in lots for packet in lot], nano=True, snap=SNAP))
    table = packets([path])
    found = []
    for lot in lots:
        found.append(table[: len(lot)])
        table = table[len(lot) :]
    return found


def ports(ended: Sequence[Any]) -> list[int]:
    return sorted(int(row.endpoints[0].rpartition(":")[2]) for row in ended)


def test_closed_and_idle_conversations_leave_once(tmp_path: Path) -> None:
    late = START_NS + 31 * SECOND
    later = START_NS + 3601 * SECOND
    first, second, third, end = tables(
        tmp_path,
        [
            [*talk(1000, START_NS, closed=True), *talk(1001, START_NS + 10)],
            talk(1002, late),
            talk(1003, later),
            [],
        ],
    )
    lots = Lots(Options())
    assert ports(lots.add(first)) == []
    assert len(lots.carry) == 2
    assert ports(lots.add(second)) == [1000]
    assert not [line for line in lots.lines["exchanges"] if '"timeout"' in line]
    (idle,) = lots.add(third)
    assert ports([idle]) == [1001]
    assert idle.ended == "forgotten after a long time without a packet"
    assert idle.unanswered == 1
    assert ports(lots.add(end, last=True)) == [1002, 1003]
    exchanges = [msgspec.json.decode(line) for line in lots.lines["exchanges"]]
    assert sorted(one["reason"] for one in exchanges) == ["capture ended", "capture ended", "closed", "timeout"]
    assert len(lots.lines["messages"]) == 4 * 3


def test_a_late_request_is_not_reported_before_its_conversation_ends(tmp_path: Path) -> None:
    first, second = tables(tmp_path, [talk(1000, START_NS), talk(1001, START_NS + 100 * SECOND)])
    lots = Lots(Options())
    lots.add(first)
    lots.add(second)
    assert lots.lines["exchanges"] == []


def test_a_conversation_that_goes_on_after_it_was_forgotten_is_another(tmp_path: Path) -> None:
    more = talk(1000, START_NS + 4000 * SECOND)[2:]
    first, second, third = tables(tmp_path, [talk(1000, START_NS), talk(1001, START_NS + 3700 * SECOND), more])
    lots = Lots(Options())
    lots.add(first)
    assert ports(lots.add(second)) == [1000]
    assert ports(lots.add(third, last=True)) == [1000, 1001]


def test_packets_of_an_idle_conversation_come_before_it_is_forgotten(tmp_path: Path) -> None:
    first, second = tables(tmp_path, [talk(1000, START_NS)[:4], [talk(1000, START_NS + 4000 * SECOND)[4]]])
    lots = Lots(Options())
    lots.add(first)
    assert lots.add(second) == []
    (row,) = lots.add(second[:0], last=True)
    assert row.messages == 3


def test_ports_used_again_leave_a_row_for_each(tmp_path: Path) -> None:
    again = talk(1000, START_NS + 5 * SECOND)
    first, second = tables(tmp_path, [[*talk(1000, START_NS, closed=True), *again], talk(1001, START_NS + 32 * SECOND)])
    lots = Lots(Options())
    assert lots.add(first) == []
    assert ports(lots.add(second)) == [1000]
    assert ports(lots.add(second[:0], last=True)) == [1000, 1001]


def test_rows_that_need_no_look_pass_unread(tmp_path: Path) -> None:
    (lot,) = tables(tmp_path, [talk(1000, START_NS)])
    lots = Lots(Options())
    lots.add(lot)
    ((due_ns, _),) = lots.carried
    ((flow_id, _),) = lots.carry
    assert due_ns == START_NS + 4 + 3600 * SECOND
    assert flow_id == lot[0][0]
    spoilt = flows.DUE.pack(due_ns) + b"spoilt"
    given = carried_rows([(flow_id, spoilt)])
    before = list(flows.dissect(given, Options(), flows.CaptureFacts(due_ns - 1)))
    assert [data for results in before for *_, data in results.carry] == [spoilt]
    for until in (due_ns, None):
        with pytest.raises(ForeignState):
            list(flows.dissect(given, Options(), flows.CaptureFacts(until)))


def test_two_states_of_the_same_conversations(tmp_path: Path) -> None:
    (lot,) = tables(tmp_path, [talk(1000, START_NS)])
    lots = Lots(Options())
    lots.add(lot)
    ((due_ns, _),) = lots.carried
    twice = carried_rows([*lots.carry, *lots.carry])
    for until in (due_ns - 1, None):
        with pytest.raises(ForeignState, match="two of the conversations"):
            list(flows.dissect(twice, Options(), flows.CaptureFacts(until)))


def test_conversations_that_are_looked_at_again_after_the_end_of_times(tmp_path: Path) -> None:
    (lot,) = tables(tmp_path, [talk(1000, START_NS)])
    lots = Lots(Options(idle_time_ns=(1 << 63) - 1))
    lots.add(lot)
    assert [due_ns for due_ns, _ in lots.carried] == [(1 << 63) - 1]


def test_fields_of_open_requests_are_not_carried(tmp_path: Path) -> None:
    (lot,) = tables(tmp_path, [talk(1000, START_NS)])
    lots = Lots(Options())
    lots.add(lot)
    session = Session.restore(lots.carried[0][1], Options(), KeyLog())
    (one,) = session.table.conversations
    assert isinstance(one.pairer, Pairer)
    (request,) = one.pairer.remembered()
    assert (request.name, request.fields) == ("PeerProperties", {})
    assert one.pairer.links is session.run.links


def test_the_options_given_count(tmp_path: Path) -> None:
    (lot,) = tables(tmp_path, [talk(1000, START_NS)])
    lots = Lots(Options(show_secrets=True))
    lots.add(lot)
    session = Session.restore(lots.carried[0][1], Options(bytes_as="base64"), KeyLog())
    dissector: Any = session.table.conversations[0].parser.dissector  # type: ignore[union-attr]
    assert (dissector.style.show_secrets, dissector.style.bytes_as) == (False, "base64")
    assert [one.style for one in dissector.layouts] == [dissector.style] * 2


def test_layouts_are_chosen_again_where_frames_told_the_client(tmp_path: Path) -> None:
    request = tcp(PEER_PROPERTIES, sport=5552, dport=5552, seq=100, ack=500, flags=ACK)
    (lot,) = tables(tmp_path, [[Packet(ethernet(ip4(request, src=B, dst=A)), START_NS)]])
    options = Options(decode_as=((5552, "rabbitmq-stream", None),))
    lots = Lots(options)
    lots.add(lot)
    session = Session.restore(lots.carried[0][1], options, KeyLog())
    dissector: Any = session.table.conversations[0].parser.dissector  # type: ignore[union-attr]
    assert (dissector.context.client, dissector.client) == (None, 0)
    assert [one.table for one in dissector.layouts] == [dissector.language.client, dissector.language.server]
    assert dissector.guard.place is HandshakePlace.INSIDE, "a password may still come"


@pytest.mark.parametrize("hold", [1, 1 << 30])
def test_results_are_handed_on_in_parts(capture: Path, monkeypatch: pytest.MonkeyPatch, hold: int) -> None:
    monkeypatch.setattr(flows, "HELD_RECORDS", hold)
    monkeypatch.setattr(flows, "HELD_BYTES", hold)
    assert in_lots([capture], [300, 301, 900]) == at_once([capture])
