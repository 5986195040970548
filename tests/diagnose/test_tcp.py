"""What TCP shows of the network between client and server: RSTs of others, data sent again or too late, frames with wrong lengths."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Ending, Finding, Message, Options, Packet, Record
from streamdump.protocols.rabbitmq import layouts as rabbit
from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, worst_first
from tests.diagnose.test_seastar import ask as seastar_ask
from tests.diagnose.test_seastar import greeting, reply
from tests.protocols.test_iggy import OK, PING
from tests.protocols.test_mewbase import CONNECT, frame
from tests.protocols.test_mewbase import OK as MEWBASE_OK
from tests.support.frames import ACK, FIN, RST

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"


def captured_packets(one: Connection) -> list[Packet]:
    return [packet for batch in open_capture(io.BytesIO(capture(one)), name="test").batches() for packet in batch]


def told(source: bytes | Path) -> dict[str, tuple[str, str]]:
    """By rule severity and cause."""
    return {one.rule: (one.severity, one.cause) for one in diagnosed(source)[0]}


def test_rst_of_a_middlebox_behind_silence() -> None:
    findings, outcomes, _ = diagnosed(REPORTS / "idle_rst_middlebox.pcap")
    assert [(one.rule, one.severity, one.cause, one.packets) for one in findings] == [
        (
            "tcp.reset-injected",
            "warning",
            "the RST that ends the connection 5 min 50 s after the answer to Publish did not come from the server: the TTL is 255, that of "
            "the server's other packets 64",
            [30, 32],
        )
    ]
    assert outcomes[0].ended == "a device between the two resets"
    inspector = Inspector([open_capture(str(REPORTS / "idle_rst_middlebox.pcap"))], finite=True)
    assert [one.sender for one in inspector.records() if type(one) is Ending] == ["server"], "the address of the RST"
    assert [row.ended for row in inspector.rows()] == ["RST by a device between the two"]
    assert not inspector.counters.by_server


def test_burst_of_rsts() -> None:
    source = REPORTS / "ips_rst_burst_kills.pcap"
    cause = "the RST that ends the connection 400 µs after the answer to Publish did not come from the server: the TTL is 120, that of the "
    assert told(source) == {"tcp.reset-injected": ("warning", f"{cause}server's other packets 64")}


def test_rst_of_the_client_that_is_not_its_own() -> None:
    one = Connection().ready().segment(0, flags=RST | ACK, ttl=63)
    cause = (
        "the RST that ends the connection 1 ms after the answer to Open did not come from the client: the TTL is 63, that of the client's "
    )
    assert told(capture(one)) == {"tcp.reset-injected": ("warning", f"{cause}other packets 64")}


def test_rst_with_one_of_several_ttls() -> None:
    """As where each packet was captured before and behind a router."""
    one = Connection().ready().segment(1, ttl=63).segment(1, flags=RST | ACK, ttl=63)
    assert "tcp.reset-injected" not in told(capture(one))


def test_rst_of_another_that_leaves_a_request_open() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).segment(1, flags=RST | ACK, ttl=255)
    assert told(capture(one))["rabbitmq-stream.open-requests"] == (
        "error",
        "a device between the two resets the connection 1 ms after Create from the client, while Create has no answer",
    )


def test_rst_outside_of_the_window() -> None:
    findings, outcomes, records = diagnosed(REPORTS / "rst_out_of_window.pcap")
    cause = "a RST with the address of the server had no effect: the client does not expect its sequence number"
    assert [(one.rule, one.severity, one.cause, one.packets) for one in findings] == [("tcp.reset-ignored", "note", cause, [32])]
    assert outcomes[0].ended == "Close by client"
    assert not [one for one in records if type(one).__name__ == "Gap"]


@pytest.mark.parametrize("ahead", [200_000, -200_000])
def test_rsts_outside_of_the_window_with_another_ttl(ahead: int) -> None:
    one = Connection().ready()
    for _ in range(2):
        one.segment(1, flags=RST, ahead=ahead, ttl=254)
    cause = "2 RSTs with the address of the server had no effect: the client does not expect their sequence numbers, and they did not come "
    behind = "from the server: the TTL is 254, that of the server's other packets 64"
    assert told(capture(one.goodbye())) == {"tcp.reset-ignored": ("warning", cause + behind)}


@pytest.mark.parametrize("ahead", [0, 3_000])
@pytest.mark.parametrize("side", [0, 1])
def test_rst_within_the_window_behind_which_both_sides_go_on(side: int, ahead: int) -> None:
    """The side that it seems to come from acknowledges what came later, as one that had reset the connection never does."""
    one = Connection().ready().segment(side, flags=RST, ttl=33, ahead=ahead).wait(2 * SECOND)
    for _ in range(3):
        one.segment(1 - side, b"\0\0\0\4\0\x17\0\1").segment(side).wait(2 * SECOND)
    name, other = ("client", "server")[side], ("server", "client")[side]
    cause = f"a RST with the address of the {name} had no effect: the {other} continues after it, and it did not come from the {name}: "
    data = capture(one)
    assert told(data) == {"tcp.reset-ignored": ("warning", f"{cause}the TTL is 33, that of the {name}'s other packets 64")}
    _, (outcome,), records = diagnosed(data)
    assert outcome.ended == "open at end of capture"
    assert not [each for each in records if type(each) is Ending]


def test_rst_that_acknowledges_more_is_no_sign_of_life() -> None:
    one = rabbit_request(Connection().ready().reset(1)).reset(1)
    assert diagnosed(capture(one))[1][0].ended == "server resets"


def test_flood_of_rsts_is_not_counted() -> None:
    one = Connection().ready()
    for place in range(40):
        one.segment(1, flags=RST, ahead=100_000 * (place + 1))
    severity, cause = told(capture(one))["tcp.reset-ignored"]
    assert cause == "8 RSTs or more with the address of the server had no effect: the client does not expect their sequence numbers"
    assert severity == "note"


def test_length_of_ip_that_is_damaged() -> None:
    findings, outcomes, _records = diagnosed(REPORTS / "ip_length_damaged.pcap")
    assert [one.rule for one in findings] == ["tcp.retransmitted"]
    assert outcomes[0].ended == "Close by client"
    assert outcomes[0].messages == 20


# The order of events


def rabbit_request(one: Connection) -> Connection:
    return one.client(rabbit.CREATE, stream="s", arguments=[])


FAMILIES: dict[str, tuple[Callable[[], Connection], Callable[[Connection], Connection], str]] = {
    "rabbitmq-stream": (lambda: Connection().ready(), rabbit_request, "Create"),
    "iggy": (lambda: Connection(dport=8090).open().ask(PING).tell(OK), lambda one: one.ask(PING), "ping"),
    "mewbase": (
        lambda: Connection(dport=7451).open().ask(CONNECT).tell(MEWBASE_OK),
        lambda one: one.ask(frame("LISTCHANNELS", rID=1)),
        "LISTCHANNELS",
    ),
    "seastar-rpc": (
        lambda: Connection(dport=10000).open().ask(greeting()).tell(greeting()).ask(seastar_ask(1, 1)).tell(reply(1)),
        lambda one: one.ask(seastar_ask(7, 2)),
        "Request",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ended", [FIN, RST])
def test_request_on_a_connection_that_the_server_ended_before(family: str, ended: int) -> None:
    begin, ask, name = FAMILIES[family]
    one = begin().wait(5 * SECOND).segment(1, flags=ended | ACK)
    if ended == FIN:
        one.segment(0)
    findings, *_ = diagnosed(capture(ask(one.wait(30 * SECOND)).segment(1, flags=RST)))
    (late,) = [each for each in findings if each.rule == "tcp.sent-after-end"]
    passed, verb = ("30 s", "closed") if ended == FIN else ("30 s", "reset")
    assert late.severity == "error"
    assert late.cause.startswith(f"the server {verb} the connection 5 s after the answer to ")
    assert late.cause.endswith(f", and the client sends {name} on it {passed} later")
    assert not [each for each in findings if each.rule.endswith(".open-requests")]


@pytest.mark.parametrize("name", ["v1_rabbit_fin_then_request", "v2_rabbit_fin_then_publish"])
def test_dead_connection_that_is_used(name: str) -> None:
    what = "Create" if "v1" in name else "Publish"
    cause = f"the server closed the connection 36 s after the answer to Publish, and the client sends {what} on it 30 s later"
    findings, *_ = diagnosed(REPORTS / f"{name}.pcap")
    assert [(each.rule, each.severity, each.cause, each.packets) for each in worst_first(findings)] == [
        ("tcp.sent-after-end", "error", cause, [34]),
        (
            "rabbitmq-stream.closed-by-server",
            "warning",
            "the server closes the connection 36 s after the answer to Publish, without sending Close",
            [30, 36 if "v2" in name else 35],
        ),
    ]


def test_server_that_sends_to_a_client_that_left() -> None:
    one = Connection().ready().segment(0, flags=FIN | ACK).segment(1).wait(40 * SECOND).server(rabbit.HEARTBEAT).segment(0, flags=RST)
    cause = "the client closed the connection 2 ms after Open from the client, and the server sends Heartbeat on it 40 s later"
    assert told(capture(one))["tcp.sent-after-end"] == ("note", cause)


def test_half_closed_connection_with_an_answer_to_come() -> None:
    one = rabbit_request(Connection().ready()).segment(0, flags=FIN | ACK).segment(1).wait(20 * SECOND)
    one.server(rabbit.CREATE_RESPONSE).segment(0).segment(1, flags=FIN | ACK).segment(0)
    assert "tcp.sent-after-end" not in told(capture(one))


def test_request_that_crossed_the_end() -> None:
    one = Connection().ready().segment(1, flags=FIN | ACK)
    one.next[1] -= 1
    one = rabbit_request(one)
    one.next[1] += 1
    findings = told(capture(one.segment(1, flags=RST)))
    assert "tcp.sent-after-end" not in findings
    assert findings["rabbitmq-stream.open-requests"][0] == "error"


def test_close_behind_the_end_is_no_use_of_it() -> None:
    one = Connection().ready().segment(1, flags=FIN | ACK).segment(0).wait(SECOND // 2)
    one.client(rabbit.CLOSE, closing_code=1, closing_reason="OK").segment(1, flags=RST)
    assert "tcp.sent-after-end" not in told(capture(one))


def test_close_long_behind_the_end_of_the_server_ends_nothing() -> None:
    one = Connection().ready().segment(1, flags=FIN | ACK).segment(0).wait(30 * SECOND)
    one.client(rabbit.CLOSE, closing_code=1, closing_reason="OK").segment(1, flags=RST)
    findings, (outcome,), _ = diagnosed(capture(one))
    assert outcome.ended == "server closes"
    assert [each.rule for each in worst_first(findings)] == ["tcp.sent-after-end", "rabbitmq-stream.closed-by-server"]


def test_request_that_a_half_closed_connection_acknowledges() -> None:
    """As a proxy does whose server has gone: the answer cannot come, though the request was received."""
    one = rabbit_request(Connection().ready().segment(1, flags=FIN | ACK).segment(0).wait(5 * SECOND)).segment(1)
    findings = told(capture(one.segment(0, flags=FIN | ACK).segment(1)))
    cause = "the server closed the connection 1 ms after the answer to Open, and the client sends Create on it 5.001 s later"
    assert findings["tcp.sent-after-end"] == ("error", cause)
    assert "rabbitmq-stream.open-requests" not in findings


def test_late_request_where_the_end_was_reported_before() -> None:
    """As live, two seconds after the server ended it."""
    one = rabbit_request(Connection().ready().segment(1, flags=FIN | ACK).segment(0).wait(30 * SECOND)).segment(1, flags=RST)
    inspector = Inspector([], Options(findings=True))
    records: list[Record] = []
    for packet in captured_packets(one):
        records += inspector.age(packet.time_ns)
        records += inspector.process([packet])
    records += inspector.finish()
    causes = [each.cause for each in records if type(each) is Finding and each.rule == "tcp.sent-after-end"]
    assert causes == ["the server closed the connection 1 ms after the answer to Open, and the client sends Create on it 30 s later"]


# Silence


def test_connection_that_was_forgotten() -> None:
    findings = told(REPORTS / "idle_forgot_rst.pcap")
    cause = "Publish from the client, the first message after 5 min 50 s of silence, is answered with RST: a device between the two "
    assert findings["tcp.forgotten"] == (
        "error",
        f"{cause}(the TTL is 255, that of the server's other packets 64) no longer knew the connection",
    )
    assert set(findings) == {"tcp.forgotten", "rabbitmq-stream.confirms-missing"}


@pytest.mark.parametrize("family", FAMILIES)
def test_request_behind_a_long_silence_that_rst_answers(family: str) -> None:
    begin, ask, name = FAMILIES[family]
    one = ask(begin().wait(120 * SECOND)).segment(1, flags=RST)
    cause = (
        f"{name} from the client, the first message after 2 min of silence, is answered with RST: the server, or a device between the two, "
    )
    assert told(capture(one))["tcp.forgotten"] == ("error", f"{cause}no longer knew the connection")


def test_heartbeat_of_the_server_behind_a_long_silence() -> None:
    one = Connection().ready().wait(400 * SECOND).server(rabbit.HEARTBEAT).segment(0, flags=RST)
    cause = "Heartbeat from the server, the first message after 6 min 40 s of silence, is answered with RST: the client, or a device "
    assert told(capture(one))["tcp.forgotten"] == ("error", f"{cause}between the two, no longer knew the connection")


@pytest.mark.parametrize(
    "one",
    [
        rabbit_request(Connection().ready().wait(20 * SECOND)).segment(1, flags=RST),
        rabbit_request(Connection().ready().wait(120 * SECOND)).segment(1).segment(1, flags=RST),
        rabbit_request(Connection().ready().wait(120 * SECOND)).segment(1, flags=RST | ACK),
        Connection().ready().wait(120 * SECOND).segment(1, flags=RST),
    ],
    ids=["a short one", "acknowledged", "the RST acknowledges it", "nothing before the RST"],
)
def test_resets_that_show_no_forgotten_connection(one: Connection) -> None:
    assert "tcp.forgotten" not in told(capture(one))


# Data that is never acknowledged


def test_publish_that_is_never_acknowledged() -> None:
    findings = {each.rule: each for each in diagnosed(REPORTS / "unacked_then_syn.pcap")[0]}
    one = findings["tcp.never-acknowledged"]
    assert (one.severity, one.cause) == ("warning", "Publish from the client was sent 7 times over 12.6 s, and never acknowledged")
    assert one.packets == [32, 33, 34, 35, 36, 37, 38]
    assert "tcp.retransmitted" not in findings


def sent_again(times: int, side: int = 0, size: int = 0) -> Connection:
    one = Connection().ready()
    begin = one.next[side]
    for at in range(times):
        one.next[side] = begin
        if size:
            for _ in range(3):
                one.segment(side, bytes(size))
        else:
            (one.server if side else one.client)(rabbit.HEARTBEAT)
        one.wait(SECOND << at)
    return one


@pytest.mark.parametrize("side", [0, 1])
def test_data_that_is_never_acknowledged(side: int) -> None:
    who = "the server" if side else "the client"
    findings = told(capture(sent_again(3, side)))
    assert findings["tcp.never-acknowledged"] == ("warning", f"Heartbeat from {who} was sent 3 times over 3 s, and never acknowledged")
    assert "tcp.never-acknowledged" not in told(capture(sent_again(2, side)))
    recovered = told(capture(sent_again(5, side).segment(1 - side)))
    assert "tcp.never-acknowledged" not in recovered
    assert recovered["tcp.retransmitted"][0] == "note"


def test_flight_of_segments_that_is_never_acknowledged() -> None:
    cause = "what the client sends last was sent 4 times over 7.006 s, and never acknowledged"
    assert told(capture(sent_again(4, size=1000)))["tcp.never-acknowledged"] == ("warning", cause)


def test_direction_without_packets_acknowledges_nothing() -> None:
    one = sent_again(5)
    one.packets = [each for at, each in enumerate(one.packets) if each.data[34:36] == one.ports[0].to_bytes(2, "big")]
    assert "tcp.never-acknowledged" not in told(capture(one))


def test_damaged_segment_is_sent_again() -> None:
    findings, outcomes, records = diagnosed(REPORTS / "damaged_then_right.pcap")
    cause = "1 segment from the client has a wrong TCP checksum, and was sent again: the network damages packets"
    assert [(each.rule, each.severity, each.cause) for each in findings] == [("tcp.damaged", "note", cause)]
    assert (outcomes[0].messages, outcomes[0].ended) == (20, "Close by client")
    assert not [each for each in records if isinstance(each, Message) and (each.fault or each.notes)]


def test_copies_that_differ_are_of_concern() -> None:
    """Where checksums do not decide, as they are offloaded."""
    one = rabbit_request(Connection().ready())
    packet = one.packets[-1]
    one.packets.append(packet._replace(data=packet.data[:-1] + b"?", time_ns=one.now))
    (again,) = [each for each in diagnosed(capture(one.wait(2 * MS).server(rabbit.CREATE_RESPONSE)))[0] if each.rule == "tcp.retransmitted"]
    assert again.cause == (
        "1 segment repeats bytes that had already arrived: the network loses packets, or the capture contains some twice; 1 differs from "
        "the bytes that arrived first"
    )
    assert again.advice is not None and again.advice.startswith("One of the copies is damaged, and the first one was used")
