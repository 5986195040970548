"""What may go wrong whatever the protocol: each rule with a capture that raises it, and one that does not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.diagnose.rules import ASKED_KEPT
from streamdump.inspector import Inspector
from streamdump.model import Finding, Options
from streamdump.protocols.rabbitmq import layouts as rabbit
from streamdump.render.clock import Clock
from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, found, rules
from tests.protocols.test_iggy import LOGGED_IN, LOGIN_L6, OK, PING
from tests.support.encoder import encode
from tests.support.frames import ACK, FIN, RST, SYN, A, B, ethernet, ip4
from tests.tls.peers import Wire, talk

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"

HELLO = bytes.fromhex("160301002d010000290303") + bytes(32) + bytes.fromhex("00000213010100")
"""A ClientHello, as far as one need be told."""


SERVER_HELLO = bytes.fromhex("160303002a020000260303") + bytes(32) + bytes.fromhex("00c02f00")


def begging(times: int) -> Connection:
    one = Connection().ready()
    for _ in range(times):
        one.client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE, response_code=16)
    return one.goodbye()


def silent() -> Connection:
    one = Connection()
    for wait in (1, 2, 4):
        one.segment(0, flags=SYN)
        one.next[0] = 1000
        one.wait(wait * SECOND)
    return one


def refused(begin: int = 0, sport: int = 40000, client: bytes = A) -> Connection:
    return Connection(begin, sport, client=client).segment(0, flags=SYN).reset(1)


CASES: dict[str, tuple[Callable[[], Connection], str, str]] = {
    "nothing answers the SYN": (silent, "tcp.unanswered", "error"),
    "RST answers the SYN": (refused, "tcp.refused", "error"),
    "reset in the handshake": (
        lambda: Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).reset(1),
        "tcp.accepted-only",
        "error",
    ),
    "reset between two steps": (
        lambda: Connection().greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE).reset(1),
        "tcp.reset-in-handshake",
        "error",
    ),
    "TLS on a plain port": (lambda: Connection().open().ask(HELLO).reset(1), "tls.on-plain-port", "error"),
    "plain on a TLS port": (
        lambda: Connection(dport=5551).open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).reset(1),
        "tls.plain-on-tls-port",
        "error",
    ),
    "an alert of TLS": (
        lambda: Connection().open().ask(HELLO).tell(SERVER_HELLO).ask(bytes.fromhex("15030300020250")).fin(0),
        "tls.alert",
        "error",
    ),
    "TLS not agreed on": (lambda: Connection().open().ask(HELLO).tell(SERVER_HELLO).reset(0), "tls.incomplete", "error"),
    "nobody says anything": (lambda: Connection().open().wait(5 * SECOND).fin(1), "tcp.closed-unused", "warning"),
    "bytes that nobody knows": (lambda: Connection().open().ask(b"what is this? " * 9).reset(1), "tcp.unknown-bytes", "warning"),
    "refused again and again": (lambda: begging(12), "rabbitmq-stream.again-and-again", "warning"),
    "HTTP on our port": (
        lambda: Connection().open().ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").reset(1),
        "tcp.other-protocol",
        "error",
    ),
    "AMQP answers": (
        lambda: Connection(dport=5672).open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).tell(b"AMQP\0\0\t\1").fin(1),
        "tcp.other-protocol",
        "error",
    ),
    "a window of 0 for long": (
        lambda: Connection().ready().segment(0, window=0).wait(3 * SECOND).segment(0, window=500).goodbye(),
        "tcp.zero-window",
        "warning",
    ),
    "a window of 0 for a moment": (
        lambda: Connection().ready().segment(0, window=0).segment(0, window=500).goodbye(),
        "tcp.zero-window",
        "note",
    ),
    "slow": (
        lambda: (
            Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).wait(4 * SECOND).server(rabbit.CREATE_RESPONSE).goodbye()
        ),
        "rabbitmq-stream.slow",
        "warning",
    ),
    "open as the capture ends": (
        lambda: Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).segment(1),
        "rabbitmq-stream.open-requests",
        "note",
    ),
    "open for long as the capture ends": (
        lambda: Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).wait(20 * SECOND).segment(1),
        "rabbitmq-stream.open-requests",
        "warning",
    ),
    "a response to nothing": (
        lambda: Connection().ready().server(rabbit.CREATE_RESPONSE, correlation_id=99).goodbye(),
        "rabbitmq-stream.answer-without-request",
        "warning",
    ),
    "an id used again": (
        lambda: (
            Connection()
            .ready()
            .client(rabbit.CREATE, stream="a", arguments=[], correlation_id=9)
            .client(rabbit.CREATE, stream="b", arguments=[], correlation_id=9)
            .goodbye()
        ),
        "rabbitmq-stream.duplicate-id",
        "warning",
    ),
    "refused where nobody need expect it": (
        lambda: (
            Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE, response_code=16).goodbye()
        ),
        "rabbitmq-stream.refused",
        "warning",
    ),
    "refused where one may expect it": (
        lambda: (
            Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE, response_code=5).goodbye()
        ),
        "rabbitmq-stream.refused",
        "note",
    ),
    "refused, and that ends it": (
        lambda: (
            Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE, response_code=16).reset(1)
        ),
        "rabbitmq-stream.refused",
        "error",
    ),
    "reset with a request open": (
        lambda: Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).reset(1),
        "rabbitmq-stream.open-requests",
        "error",
    ),
    "the client leaves with a request open": (
        lambda: Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).reset(0),
        "rabbitmq-stream.open-requests",
        "warning",
    ),
    "reset for no reason": (lambda: Connection().ready().reset(1), "rabbitmq-stream.closed-by-server", "warning"),
    "left without a goodbye": (lambda: Connection().ready().reset(0), "rabbitmq-stream.no-goodbye", "note"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_finds_what_it_is_for(case: str) -> None:
    make, rule, severity = CASES[case]
    one = make()
    assert rules(one).get(rule) == severity
    ends = {f"{address}:{port}" for address, port in zip(("192.0.2.1", "192.0.2.2"), one.ports, strict=True)}
    for finding in diagnosed(capture(one))[0]:
        assert {finding.src, finding.dst} == ends
        assert finding.packets == sorted({*finding.packets}) and 1 <= finding.packets[0] <= finding.packets[-1] <= len(one.packets)


def test_a_healthy_connection_has_nothing() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE).goodbye()
    assert rules(one) == {}


def test_a_connection_of_others_is_nobodys_business() -> None:
    refused, left = Connection(dport=443).segment(0, flags=SYN).reset(1), Connection(sport=40001, dport=443).open().ask(b"hello?").reset(1)
    from_the_middle_on = Connection(sport=40002, dport=443).ask(b"what is this? " * 9).fin(0)
    assert rules(refused, left, from_the_middle_on) == {}


def test_how_far_each_connection_got_and_what_ended_it() -> None:
    steps = [
        refused(),
        Connection(sport=40001).open().fin(0),
        Connection(sport=40002).greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=8).reset(1),
        Connection(sport=40003).tuned().reset(1),
        Connection(sport=40004).ready().goodbye(),
        Connection(sport=40005).open().ask(b"GET / HTTP/1.1\r\n\r\n").reset(1),
        Connection(sport=40006).open().reset(1),
        Connection(sport=40007).open(),
    ]
    _, summaries, _ = diagnosed(capture(*steps))
    assert [(one.reached, one.ended, one.worst) for one in sorted(summaries, key=lambda one: one.client)] == [
        ("nothing", "server resets", "error"),
        ("TCP", "client closes", None),
        ("login", "server resets", "error"),
        ("Tune answered", "server resets", "error"),
        ("ready", "Close by client", None),
        ("HTTP", "server resets", "error"),
        ("TCP", "server resets", "error"),
        ("TCP", "open at end of capture", None),
    ]


def test_what_is_captured_from_the_middle_on_may_have_been_open_before() -> None:
    one = Connection().greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE).reset(1)
    del one.packets[:3]
    assert rules(one) == {"tcp.mid-stream": "note", "rabbitmq-stream.closed-by-server": "warning"}
    assert [summary.reached for summary in diagnosed(capture(one))[1]] == ["open"]


def test_requests_that_are_remembered_are_bounded() -> None:
    one = Connection().ready()
    for _ in range(ASKED_KEPT + 9):
        one.client(rabbit.CREATE, stream="s", arguments=[])
    inspector = Inspector([open_capture(io.BytesIO(capture(one)))], Options(findings=True))
    batches = inspector.batches()
    next(batches)
    assert inspector.diagnoser is not None
    (talk,) = inspector.diagnoser._contexts.values()
    assert len(talk.asked) == len(talk.ids) == ASKED_KEPT


@pytest.mark.parametrize("side", [0, 1])
def test_of_two_sides_without_room_the_one_that_was_so_for_longer_is_told(side: int) -> None:
    one = Connection().ready().segment(side, window=0).segment(1 - side, window=0).wait(3 * SECOND)
    one.segment(1 - side, window=500).wait(SECOND).segment(side, window=500).goodbye()
    (found,) = diagnosed(capture(one))[0]
    assert found.cause == f"the {('client', 'server')[side]} has a zero window for 4.001 s: it does not read incoming data"


def test_a_few_bytes_that_are_no_frame_with_frames_behind_them() -> None:
    for junk in (b"\xff\xff\xff", bytes(3)):
        one = Connection().ready().ask(junk).client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE).goodbye()
        assert rules(one) == {"rabbitmq-stream.skipped": "warning"}
        names = [getattr(record, "name", type(record).__name__) for record in diagnosed(capture(one))[2]]
        assert names[names.index("Gap") :][:4] == ["Gap", "Create", "Finding", "Create"]


def test_a_port_of_ours_is_one_on_which_somebody_speaks_a_protocol_of_ours() -> None:
    spoken = Connection(dport=7777).ready().goodbye()
    refused = Connection(SECOND, sport=40001, dport=7777).segment(0, flags=SYN).reset(1)
    assert rules(spoken, refused) == {"tcp.refused": "error"}
    assert rules(refused) == {}


def test_the_evidence_is_the_messages_and_their_packets() -> None:
    found, _, _ = diagnosed(capture(Connection().greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=8).reset(1)))
    (one,) = found
    assert (one.rule, one.severity, one.messages, one.packets) == ("rabbitmq-stream.authentication-refused", "error", [5, 6], [8, 9])
    assert (one.src, one.sender, one.conversation, one.number) == ("192.0.2.2:5552", "server", 0, 1)
    assert '"alice"' in one.cause
    assert one.cause[-1] != "." and one.advice[-1] == "."


def test_an_end_is_behind_the_last_message_before_it_whatever_the_other_side_sends_then() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).wait(4 * MS).segment(1, flags=FIN | ACK)
    one.wait(400 * MS).client(rabbit.DELETE, stream="s").reset(1)
    found, _, _ = diagnosed(capture(one))
    assert [one.cause for one in found if one.rule == "rabbitmq-stream.open-requests"] == [
        "the server closes the connection 4 ms after Create from the client, while Create has no answer"
    ]


@pytest.mark.parametrize("number", [10, 70])
def test_an_alert_to_a_client_without_tls_is_one_trouble(number: int) -> None:
    one = Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).tell(bytes.fromhex("150303000202") + bytes([number]))
    found, _, _ = diagnosed(capture(one.fin(1)))
    assert [(one.rule, one.severity) for one in found if one.severity == "error"] == [("tls.plain-peer", "error")]


def test_what_a_server_answers_is_named() -> None:
    one = Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).tell(b"HTTP/1.1 400 Bad Request\r\n\r\n").fin(1)
    causes = [one.cause for one in diagnosed(capture(one))[0] if one.rule == "tcp.other-protocol"]
    assert causes == ["the client speaks rabbitmq-stream, and the 28 bytes that the server answers are HTTP"]


@pytest.mark.parametrize(("side", "severity"), [(0, "warning"), (1, "note")])
def test_a_frame_that_the_end_cuts_off_is_no_stray_bytes(side: int, severity: str) -> None:
    told = rules(Connection().ready().ask(bytes.fromhex("000000100009")).reset(side))
    assert told["rabbitmq-stream.frame-cut-off"] == severity
    assert "rabbitmq-stream.skipped" not in told


@pytest.mark.parametrize("how", ["closes", "resets", "closed", "reset"])
def test_a_frame_that_is_sent_in_part_is_not_blamed_on_its_encoding(how: str) -> None:
    one = Connection().ready().ask(encode(rabbit.CREATE, {"correlation_id": 9, "stream": "orders", "arguments": []})[:-6])
    if how == "closed":
        one.segment(1, flags=FIN | ACK)
    told = rules(one.reset(how == "reset") if how.startswith("reset") else one.fin(0))
    assert "rabbitmq-stream.damaged" not in told
    assert told["rabbitmq-stream.frame-cut-off"] == ("error" if how in ("closed", "reset") else "warning")
    # That it has no answer is no other cause
    assert "rabbitmq-stream.open-requests" not in told
    (found,) = (each for each in diagnosed(capture(one))[0] if each.rule == "rabbitmq-stream.frame-cut-off")
    where = "the server closes the connection in the middle of Create from the client"
    if how in ("closes", "resets"):
        where = f"the client {how} the connection in the middle of its own Create"
    elif how == "reset":
        where = where.replace("closes", "resets")
    assert found.cause == f"{where}: 18 of 24 bytes {'captured' if how == 'reset' else 'sent'}"


def test_what_a_server_answers_is_named_without_the_beginning() -> None:
    one = Connection().ask(bytes.fromhex("0000000c 0011 0001 00000001 00000000") * 3).tell(b"HTTP/1.1 400 Bad Request\r\n\r\n").fin(1)
    assert "are HTTP" in next(one.cause for one in diagnosed(capture(one))[0] if one.rule == "tcp.other-protocol")


@pytest.mark.parametrize(("wait", "severity"), [(1, "note"), (20, "warning")])
def test_a_few_unknown_bytes_may_be_the_beginning_of_a_frame_for_a_while(wait: int, severity: str) -> None:
    one = Connection().open().ask(bytes(range(1, 9))).segment(1).wait(wait * SECOND).segment(0).segment(1)
    assert rules(one)["tcp.unknown-bytes"] == severity


def test_a_few_bytes_between_frames_are_stray_bytes() -> None:
    one = Connection().ready().ask(b"\xff" * 5)
    for name in "abc":
        one.client(rabbit.CREATE, stream=name, arguments=[]).server(rabbit.CREATE_RESPONSE)
    told = rules(one.goodbye())
    assert told["rabbitmq-stream.skipped"] == "warning"
    assert "rabbitmq-stream.frame-cut-off" not in told


def test_a_handshake_that_stands_still_is_told_once() -> None:
    one = Connection().greeted().wait(40 * SECOND).segment(0)
    (found,) = [one for one in diagnosed(capture(one))[0] if one.severity != "note"]
    assert (found.rule, found.severity, found.messages) == ("rabbitmq-stream.handshake-incomplete", "warning", [5])
    assert found.cause.endswith("after SaslAuthenticate from the client until the capture ends, 40 s later")
    assert "closed" not in found.advice
    # That the server has sent nothing at all is another cause
    one = Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).wait(40 * SECOND).segment(0)
    (found,) = diagnosed(capture(one))[0]
    assert (found.rule, found.severity, found.messages) == ("tcp.accepted-only", "warning", [1])
    said = (
        "192.0.2.2:5552 accepts the connection and has sent nothing in the 40 s between PeerProperties from the client and the end of the"
    )
    assert found.cause == f"{said} capture"


@pytest.mark.parametrize("more", [True, False])
def test_no_time_passed_where_the_capture_ends_at_once(more: bool) -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[])
    later = ", 1 ms later" if more else ""
    found = [each.cause for each in diagnosed(capture(one.segment(1) if more else one))[0]]
    assert found == [f"Create has no answer when the capture ends{later}"]
    one.wait(0 if not more else MS).reset(1)
    passed = "2 ms" if more else "right"
    found = [each.cause for each in diagnosed(capture(one))[0]]
    assert found == [f"the server resets the connection {passed} after Create from the client, while Create has no answer"]


def test_a_request_without_an_answer_in_an_open_connection_blames_nobody_for_closing_it() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).wait(40 * SECOND).segment(0)
    (found,) = [one for one in diagnosed(capture(one))[0] if one.rule == "rabbitmq-stream.open-requests"]
    assert "closed" not in found.advice


def test_messages_keep_their_numbers() -> None:
    data = capture(Connection().greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=8).reset(1))
    found, _, records = diagnosed(data)
    assert found
    assert [one.number for one in records if one not in found] == list(range(1, 8))


def test_a_client_that_tries_again_and_again() -> None:
    tries = [
        Connection(turn * 5 * SECOND, 40000 + turn).greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=8).reset(1)
        for turn in range(4)
    ]
    found, _, _ = diagnosed(capture(*tries))
    (last,) = [one for one in found if one.conversation is None]
    assert (last.rule, last.severity) == ("rabbitmq-stream.retry-loop", "error")
    assert "4 connections" in last.cause and "every 5 s" in last.cause and "authenticate" in last.cause
    assert rules(*tries[:2]) == {"rabbitmq-stream.authentication-refused": "error"}


def unanswered(tries: int, begin: int, sport: int, client: bytes = A) -> Connection:
    one = Connection(begin, sport, client=client)
    for _ in range(tries):
        one.segment(0, flags=SYN).wait(SECOND)
        one.next[0] = 1000
    return one


def causes(*connections: Connection) -> dict[str, list[str]]:
    """By rule, what is found in connections."""
    told: dict[str, list[str]] = {}
    for one in diagnosed(capture(*connections))[0]:
        told.setdefault(one.rule, []).append(one.cause)
    return told


def test_a_capture_that_ends_with_a_syn_shows_nothing() -> None:
    syn = Connection().segment(0, flags=SYN)
    assert rules(syn) == {}
    waiting = Connection(2 * SECOND, 40001).ready()
    assert rules(syn, waiting)["tcp.unanswered"] == "error"


def test_a_server_that_closes_behind_lost_bytes_may_have_been_asked_something() -> None:
    silent, lost = Connection().open().wait(SECOND), Connection().open().wait(SECOND)
    lost.next[0] += 20
    assert rules(silent.fin(1)) == {"tcp.closed-unused": "warning"}
    assert "tcp.closed-unused" not in rules(lost.segment(1).fin(1))


@pytest.mark.parametrize("between", [False, True])
def test_a_fin_that_answers_one_that_was_lost_ends_nothing(between: bool) -> None:
    def told(one: Connection) -> tuple[str, list[str]]:
        found, (row,), _ = diagnosed(capture(one))
        return row.ended, [each.rule for each in found if each.severity != "note"]

    one = Connection().ready().wait(SECOND).segment(0, flags=FIN | ACK)
    at = len(one.packets) - 1
    if between:
        one.server(rabbit.HEARTBEAT).segment(0)
    one.segment(1, flags=FIN | ACK).segment(0)
    assert told(one) == ("client closes", [])
    del one.packets[at]
    assert told(one) == ("client closes", [])
    assert told(Connection().ready().wait(SECOND).fin(1)) == ("server closes", ["rabbitmq-stream.closed-by-server"])


def test_one_of_ten_connections_that_is_not_accepted() -> None:
    findings = diagnosed(REPORTS / "backlog_one_of_ten.pcap")[0]
    assert [(one.rule, one.severity, one.conversation, one.cause) for one in findings] == [
        ("tcp.unanswered", "error", 4, "4 SYNs in 7 s have no answer: 10.0.0.2:5552 does not accept this connection"),
        ("tcp.not-all-accepted", "warning", None, "1 of 10 connections to 10.0.0.2:5552 has no answer; it accepted the others"),
    ]


@pytest.mark.parametrize("accepted", ["before", "after", "never"])
def test_nothing_accepts_connections_where_none_was_accepted(accepted: str) -> None:
    tries = [unanswered(1 + at, (10 + at) * SECOND, 40000 + at, bytes((192, 0, 2, 10 + at))) for at in range(4)]
    late = [] if accepted == "never" else [Connection(0 if accepted == "before" else 60 * SECOND, 50000).ready().goodbye()]
    told = causes(*tries, *late)
    assert told.pop("tcp.unanswered")[0] == "the SYN has no answer: 192.0.2.2:5552 does not accept this connection"
    if accepted == "never":
        expected = "nothing at 192.0.2.2:5552 accepts connections: 4 connections of 4 clients have no answer"
        assert told == {"tcp.turns-everybody-away": [expected]}
    else:
        assert told == {"tcp.not-all-accepted": ["4 of 5 connections to 192.0.2.2:5552 have no answer; it accepted the other"]}


def test_a_client_that_tries_again_and_gets_in() -> None:
    told = causes(*[refused(at * SECOND, 40000 + at) for at in range(3)], Connection(9 * SECOND, 50000).ready().goodbye())
    assert told == {"tcp.refused": ["192.0.2.2:5552 refuses the connection: it answers the SYN with RST"] * 3}


def test_a_server_that_turns_everybody_away() -> None:
    tries = [refused(turn * SECOND, 40000 + turn, bytes([192, 0, 2, 10 + turn])) for turn in range(3)]
    assert rules(*tries) == {"tcp.refused": "error", "tcp.turns-everybody-away": "error"}


def test_a_client_that_leaves_without_a_word_has_refused_the_certificate() -> None:
    """As asyncio and Node do, whose alerts never get out."""
    talked = talk([], "1.3", close=False).sent
    assert [side for side, _ in talked[:3]] == [0, 1, 0]
    refusing = Wire(5551).send(talked[:2]).end()
    (one,) = diagnosed(refusing.capture())[0]
    assert (one.rule, one.severity) == ("tls.incomplete", "error")
    assert "certificate" in one.cause
    assert "certificate" in one.advice
    assert found(Wire(5551).send(talked).end().capture()) == {"tls.unread": "note"}
    # The capture lacks what the client said
    assert "tls.incomplete" not in found(Wire(5551).send(talked).end().capture([len(refusing.packets) - 1]))


def test_a_client_that_leaves_before_it_has_the_certificate_has_not_refused_it() -> None:
    talked = talk([], "1.3", close=False).sent
    wire = Wire(5551).send(talked[:2]).end()
    hello = 2
    end = wire.packets.pop(-2)._replace(time_ns=wire.packets[hello].time_ns + MS // 2)
    wire.packets.insert(hello + 1, end)
    (one,) = diagnosed(wire.capture())[0]
    assert (one.rule, "certificate" in one.cause) == ("tls.incomplete", False)


def test_bytes_that_only_the_capture_lacks() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE).goodbye()
    # The receiver acknowledges what the capture does not have
    lost = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE).goodbye()
    del lost.packets[-6]
    assert "tcp.lost-by-capture" not in rules(one)
    assert rules(lost)["tcp.lost-by-capture"] == "warning"


def test_packets_that_come_twice_are_only_noted() -> None:
    one = Connection().ready().goodbye()
    one.packets.insert(6, one.packets[5]._replace(time_ns=one.packets[5].time_ns + MS // 2))
    assert rules(one) == {"tcp.retransmitted": "note"}
    assert [found.packets for found in diagnosed(capture(one))[0]] == [[7]]


def test_the_first_packets_that_come_twice_are_named() -> None:
    one = Connection().ready()
    again = one.packets[3::2]
    one.packets += [packet._replace(time_ns=one.now + at * MS) for at, packet in enumerate(again * 3)]
    one.now += 30 * MS
    (twice,) = [found for found in diagnosed(capture(one.goodbye()))[0] if found.rule == "tcp.retransmitted"]
    assert twice.cause.startswith(f"{3 * len(again)} segments repeat")
    assert twice.packets == list(range(14, 22))


def test_a_capture_that_begins_in_the_middle() -> None:
    one = (
        Connection()
        .ready()
        .client(rabbit.CREATE, stream="s", arguments=[])
        .server(rabbit.CREATE_RESPONSE)
        .client(rabbit.DELETE, stream="s")
    )
    one.server(rabbit.DELETE_RESPONSE).goodbye()
    del one.packets[:13]
    assert rules(one) == {"tcp.mid-stream": "note"}


def test_two_sides_of_whom_nobody_knows_the_client_speak_the_same() -> None:
    one = Connection(dport=9999).ready().goodbye()
    del one.packets[:-5]
    assert rules(one) == {"tcp.mid-stream": "note"}
    assert diagnosed(capture(one))[2][0].sender is None


def test_an_answered_goodbye_was_said() -> None:
    one = Connection().ready().client(rabbit.CLOSE, closing_code=1, closing_reason="OK").server(rabbit.CLOSE_RESPONSE).fin(1)
    del one.packets[:-4]
    assert rules(one) == {"tcp.mid-stream": "note"}


@pytest.mark.parametrize("side", [0, 1])
def test_what_the_side_said_that_was_not_captured_is_not_missed(side: int) -> None:
    one = (
        Connection().ready().client(rabbit.PUBLISH, publisher_id=1, published_messages=bytes.fromhex("00000001 0000000000000001 00000000"))
    )
    one.server(rabbit.PUBLISH_CONFIRM, publisher_id=1, publishing_ids=[1])
    one.client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE).goodbye()
    one.packets = [packet for packet in one.packets[13:] if (packet.data[26:30] == A) == (side == 0)]
    told = rules(one)
    assert told["tcp.one-direction"] == "note"
    assert set(told.values()) == {"note"}


@pytest.mark.parametrize("side", [0, 1])
def test_nobody_knows_who_ended_a_connection_of_which_one_side_was_captured(side: int) -> None:
    def half(one: Connection) -> tuple[set[str], str, int]:
        one.packets = [packet for packet in one.packets if (packet.data[26:30] == A) == (side == 0)]
        inspector = Inspector([open_capture(io.BytesIO(capture(one)))], Options(findings=True))
        told = {each.rule for each in inspector.records() if isinstance(each, Finding)}
        assert inspector.diagnoser is not None
        return told, inspector.diagnoser.so_far()[0].ended, inspector.run.counters.by_server

    for ends in (0, 1):
        told, ended, by_server = half(Connection().ready().fin(ends))
        assert (told, ended, by_server) == ({"tcp.one-direction"}, "one side closes", 0)
    assert half(Connection().ready().goodbye())[1:] == ("Close by client", 0)


def test_a_client_that_resets_what_the_server_accepts_is_not_refused() -> None:
    one = Connection().segment(0, flags=SYN).segment(1, flags=SYN | ACK).segment(0, flags=RST)
    del one.packets[0]
    assert "tcp.refused" not in rules(one)


def test_no_protocol_can_be_recognised_by_the_first_bytes_before_the_capture_ends() -> None:
    assert rules(Connection(dport=7000).open().ask(b"SSTAR"))["tcp.unknown-bytes"] == "note"
    assert rules(Connection(dport=7000).open().ask(b"SSTAR").fin(0))["tcp.unknown-bytes"] == "warning"


def test_answers_in_the_middle_of_a_conversation_are_not_those_of_another_protocol() -> None:
    for cut in (slice(5, None), slice(None)):
        one = Connection(dport=8090).open().ask(LOGIN_L6).tell(LOGGED_IN).ask(PING * 3).tell(OK * 3).fin(0)
        one.packets = one.packets[cut]
        assert "tcp.other-protocol" not in rules(one)


def test_who_says_fin_was_connected() -> None:
    one = Connection().open().fin(0)
    one.packets = [packet for packet in one.packets if packet.data[26:30] == A]
    assert rules(one) == {}


def test_a_frame_that_the_end_of_the_capture_cuts_off_is_not_damaged() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="orders", arguments=[])
    one.packets[-1] = one.packets[-1]._replace(data=one.packets[-1].data[:-6])
    cut = ip4(one.packets[-1].data[34:], src=A, dst=B)
    one.packets[-1] = one.packets[-1]._replace(data=ethernet(cut))
    told = rules(one)
    assert told["rabbitmq-stream.frame-cut-off"] == "note"
    assert set(told.values()) == {"note"}


def test_a_handshake_that_was_not_captured_whole_does_not_end_with_what_is_refused_later() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE, response_code=5)
    one.client(rabbit.DELETE, stream="s").server(rabbit.DELETE_RESPONSE, response_code=2)
    one.client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE).goodbye()
    del one.packets[12]
    assert rules(one) == {"tcp.lost-by-capture": "warning", "rabbitmq-stream.refused": "note"}


def test_a_close_that_was_answered_came_before_the_end_though_it_was_captured_later() -> None:
    one = Connection().ready().client(rabbit.CLOSE, closing_code=1, closing_reason="OK").server(rabbit.CLOSE_RESPONSE).fin(1)
    asks, answers, ends = one.packets[-5:-2]
    one.packets[-5:-2] = [
        packet._replace(time_ns=time_ns) for packet, time_ns in ((answers, asks.time_ns), (ends, answers.time_ns), (asks, ends.time_ns))
    ]
    assert rules(one) == {}


def test_what_may_have_ended_a_connection_without_close() -> None:
    (found,) = diagnosed(capture(Connection().ready().wait(SECOND).fin(1)))[0]
    assert (found.rule, found.advice) == (
        "rabbitmq-stream.closed-by-server",
        "Check the server's log: an operator closed the connection, the server was stopped, or the token of the login expired.",
    )


@pytest.mark.parametrize("lost", [(), (0,), (1,), (3,), (4,), (1, 3)])
def test_an_id_is_not_used_again_where_the_answer_to_the_previous_request_is_lost(lost: tuple[int, ...]) -> None:
    one = Connection().ready()
    for number in range(5):
        one.client(rabbit.QUERY_OFFSET, reference="app", stream="s", correlation_id=1)
        one.server(rabbit.QUERY_OFFSET_RESPONSE, correlation_id=1, offset=3)
        if number in lost:
            del one.packets[-1]
    assert rules(one.goodbye()) == ({"tcp.lost-by-capture": "warning"} if lost else {})


@pytest.mark.parametrize("answered", [True, False])
def test_an_id_used_again_is_reported_live_once_it_is_certain(answered: bool) -> None:
    one = Connection().ready()
    for name in ("a", "b"):
        one.client(rabbit.CREATE, stream=name, arguments=[], correlation_id=9)
    if answered:
        one.server(rabbit.CREATE_RESPONSE, correlation_id=9)
    inspector = Inspector([], Options(findings=True))
    with open_capture(io.BytesIO(capture(one))) as reader:
        for batch in reader.batches():
            inspector.process(batch)
    aged = [record.rule for record in inspector.age(one.now + SECOND) if isinstance(record, Finding)]
    assert aged == ["rabbitmq-stream.duplicate-id"] * answered


@pytest.mark.parametrize("before", [True, False])
def test_an_id_used_again_is_reported_though_bytes_of_the_same_side_are_lost(before: bool) -> None:
    one = Connection().ready()
    for name in ("a", "b"):
        one.client(rabbit.CREATE, stream=name, arguments=[], correlation_id=9)
    for _ in range(2 * (not before)):
        one.server(rabbit.CREATE_RESPONSE, correlation_id=9)
    one.client(rabbit.CREATE, stream="c", arguments=[])
    del one.packets[-1]
    one.client(rabbit.CREATE, stream="d", arguments=[])
    for _ in range(2 * before):
        one.server(rabbit.CREATE_RESPONSE, correlation_id=9)
    one.server(rabbit.CREATE_RESPONSE)
    assert rules(one.goodbye()).get("rabbitmq-stream.duplicate-id") == "warning"


def test_an_id_used_again_before_a_loss_is_reported_with_its_count() -> None:
    one = Connection().ready()
    for name in ("a", "b", "c"):
        one.client(rabbit.CREATE, stream=name, arguments=[], correlation_id=9)
    for _ in range(3):
        one.server(rabbit.CREATE_RESPONSE, correlation_id=9)
    one.client(rabbit.CREATE, stream="d", arguments=[]).server(rabbit.CREATE_RESPONSE)
    del one.packets[-1]
    (found,) = [each for each in diagnosed(capture(one.goodbye()))[0] if each.rule.endswith("duplicate-id")]
    assert found.cause == "Create uses the id 9 again while the previous request with that id has no answer; twice on this connection"


def test_captured_text_is_nothing_but_text() -> None:
    one = (
        Connection().tuned().client(rabbit.OPEN, virtual_host="\x1b[31m\u202e{0}%s").server(rabbit.OPEN_RESPONSE, response_code=12).reset(1)
    )
    found, _, _ = diagnosed(capture(one))
    assert "{0}%s" in found[0].cause
    from streamdump.render.findings import FindingGroups, page
    from streamdump.render.terminal import PLAIN

    findings = FindingGroups()
    findings.add(found)
    shown = page(findings, (), 80, PLAIN, Clock())
    assert shown.replace("\n", "").isprintable()
    assert max(map(len, shown.splitlines())) <= 80


def test_of_very_many_conversations_the_worst_are_listed() -> None:
    from streamdump.render.findings import LISTED, FindingGroups, page
    from streamdump.render.terminal import PLAIN

    many = [Connection(turn * MS, 30000 + turn).open().fin(0) for turn in range(LISTED + 5)]
    many.append(refused(SECOND, 29000))
    _, summaries, _ = diagnosed(capture(*many))
    lines = page(FindingGroups(), summaries, 80, PLAIN, Clock()).splitlines()
    assert len(lines) == LISTED + 1
    assert "192.0.2.1:29000" in lines[-2]
    assert lines[-1] == "  and 6 more; streamdump conversations has them all"


def test_the_same_cause_with_other_times_is_the_same() -> None:
    def turned_away(at: int) -> Connection:
        one = Connection(at * SECOND, 40000 + at).open().client(rabbit.PEER_PROPERTIES, peer_properties=[])
        return one.wait((2 + at) * MS).reset(1)

    found = [one for one in diagnosed(capture(*map(turned_away, range(3))))[0] if one.conversation is None]
    assert [(one.rule, one.severity, one.cause) for one in found] == [
        (
            "rabbitmq-stream.retry-loop",
            "error",
            "192.0.2.1 retries repeatedly: 3 connections to 192.0.2.2:5552, one every 1.001 s, each with the same error: 192.0.2.2:5552 "
            "accepts the connection and resets it 2 ms after PeerProperties from the client, without sending a byte",
        )
    ]


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        (lambda one: one.wait(2 * MS).fin(1), "and closes it 2 ms after PeerProperties from the client, without sending a byte"),
        (
            lambda one: one.wait(9 * SECOND).fin(0),
            "and sends nothing in the 9 s after PeerProperties from the client, until the client closes it",
        ),
        (lambda one: one.server(rabbit.PEER_PROPERTIES_RESPONSE, peer_properties=[]).reset(1), None),
        (lambda one: one.wait(9 * MS).fin(0), None),
    ],
)
def test_a_server_that_accepts_and_sends_nothing(ends: Callable[[Connection], Connection], cause: str | None) -> None:
    one = ends(Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[]))
    found = [each for each in diagnosed(capture(one))[0] if each.rule == "tcp.accepted-only"]
    assert [(each.severity, each.cause) for each in found] == (
        [("error", f"192.0.2.2:5552 accepts the connection {cause}")] if cause is not None else []
    )
