"""What ICMP and DNS say of conversations: the cause where something fails, and nothing where nothing does."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from streamdump.capture.icmp_dns import DnsAnswer, IcmpError, dns_answer, icmp_error
from streamdump.diagnose.network import CONVERSATIONS_KEPT, ERRORS_KEPT, HOSTS_ASKED, NAMES_KEPT, NetworkEvidence
from streamdump.model import Finding
from streamdump.protocols.rabbitmq import layouts as rabbit
from tests.diagnose.talks import SECOND, Connection, capture, diagnosed
from tests.support.frames import ACK, PSH, START_NS, SYN, A, B, Packet, ethernet, ip4, ip6, pcap, tcp

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"
ROUTER = bytes((192, 0, 2, 254))
A6, B6, ROUTER6 = (bytes.fromhex(f"20010db8{'0' * 22}{one}") for one in ("01", "02", "fe"))


def error(quoted: bytes, kind: int, code: int, mtu: int = 0, source: bytes = ROUTER, target: bytes = A) -> bytes:
    """An error of ICMP as a frame; `quoted` is an IP packet."""
    return ethernet(ip4(struct.pack(">BBHHH", kind, code, 0xBAD, 0, mtu) + quoted[:28], protocol=1, src=source, dst=target))


def error6(quoted: bytes, kind: int, code: int, mtu: int = 0) -> bytes:
    return ethernet(ip6(struct.pack(">BBHI", kind, code, 0xBAD, mtu) + quoted[:60], following=58, src=ROUTER6, dst=A6))


def put(one: Connection, data: bytes) -> Connection:
    """A packet of others in the middle of a connection."""
    one.packets.append(Packet(data, one.now))
    one.now += 1_000_000
    return one


def last(one: Connection) -> bytes:
    """The IP packet that was sent last."""
    return one.packets[-1].data[14:]


def told(one: Connection) -> list[Finding]:
    data = capture(one)
    findings, _, records = diagnosed(data)
    for rows in (1, 7):
        assert diagnosed(data, rows)[2] == records
    return findings


CODES = [
    (3, 0, "network unreachable"),
    (3, 1, "host unreachable"),
    (3, 3, "port unreachable"),
    (3, 10, "host administratively prohibited"),
    (3, 13, "communication administratively prohibited"),
    (11, 0, "time to live exceeded"),
]
CODES_6 = [
    (1, 0, "no route to the destination"),
    (1, 1, "communication administratively prohibited"),
    (1, 3, "address unreachable"),
    (1, 4, "port unreachable"),
]


@pytest.mark.parametrize(("kind", "code", "reason"), CODES)
def test_a_syn_that_icmp_answers(kind: int, code: int, reason: str) -> None:
    one = Connection().segment(0, flags=SYN)
    (finding,) = told(put(one, error(last(one), kind, code)))
    assert (finding.rule, finding.severity, finding.packets) == ("tcp.unanswered", "error", [1, 2])
    assert finding.cause == f"the SYN has no answer: 192.0.2.254 reports by ICMP: {reason}"


@pytest.mark.parametrize(("kind", "code", "reason"), CODES_6)
def test_a_syn_that_icmpv6_answers(kind: int, code: int, reason: str) -> None:
    syn = ip6(tcp(seq=1000, ack=0, flags=SYN), src=A6, dst=B6)
    found = [Packet(ethernet(syn), START_NS), Packet(error6(syn, kind, code), START_NS + 1_000_000)]
    (finding,) = diagnosed(pcap(found, nano=True))[0]
    assert finding.cause == f"the SYN has no answer: 2001:db8::fe reports by ICMP: {reason}"


def test_reports() -> None:
    (finding,) = diagnosed(REPORTS / "p8_icmp_prohibited.pcap")[0]
    assert (finding.rule, finding.severity, finding.packets) == ("tcp.unanswered", "error", [2, 3, 4])
    assert finding.cause == "2 SYNs in 1 s have no answer: 10.0.0.254 reports by ICMP: communication administratively prohibited"
    (first,) = [one for one in diagnosed(REPORTS / "unacked_pmtu_icmp.pcap")[0] if one.rule == "tcp.never-acknowledged"]
    assert first.severity == "warning"
    assert first.cause == (
        "Publish from the client was sent 6 times over 6.2 s, and never acknowledged: "
        "10.0.0.254 reports by ICMP: fragmentation needed (MTU 1,400)"
    )
    (finding,) = diagnosed(REPORTS / "dns_nxdomain.pcap")[0]
    assert (finding.rule, finding.severity) == ("rabbitmq-stream.advertised-unresolved", "warning")
    assert finding.cause == (
        "10.0.0.2:5552 sends clients to rabbit-0.rabbit-headless.mq.svc:5552, and the name has no address: DNS answers NXDOMAIN, 5 times"
    )


def again(one: Connection, times: int, answers: bytes = b"") -> Connection:
    """The client sends the same bytes so many times; after each of them comes what `answers`."""
    body, seq = b"\0\0\0\x0b\0\x15\0\1\0\0\0\7\0\1/" * 40, one.next[0]
    for at in range(times):
        one.next[0] = seq
        one.segment(0, body, ACK | PSH)
        if answers:
            put(one, error(last(one), 3, 4, 1400))
        one.wait(SECOND << at)
    return one


def test_discovery_of_the_mtu_that_works_is_no_trouble() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[])
    put(one, error(last(one), 3, 4, 1400))
    assert told(one.server(rabbit.CREATE_RESPONSE).goodbye()) == []


def test_an_error_in_a_connection_that_goes_on_is_a_note() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[])
    quoted = last(one)
    put(put(one, error(quoted, 3, 1)), error(quoted, 3, 1))
    (finding,) = told(one.server(rabbit.CREATE_RESPONSE).goodbye())
    assert (finding.rule, finding.severity) == ("tcp.icmp", "note")
    assert finding.cause == "for segments from the client, 192.0.2.254 reports by ICMP: host unreachable (2 times)"


def test_what_is_quoted_of_others_says_nothing() -> None:
    one = Connection().ready()
    other = ip4(tcp(seq=1000, ack=0, flags=SYN, sport=50_000), src=A, dst=B)
    put(one, error(other, 3, 13))
    put(one, ethernet(ip4(struct.pack(">BBHHH", 8, 0, 0xBAD, 1, 1) + bytes(48), protocol=1)))
    put(one, error(ip4(bytes(20), protocol=17), 3, 3))
    assert told(one.goodbye()) == []


NAME = "rabbit-0.mq.svc"


def dns(name: str, code: int = 3, addresses: tuple[bytes, ...] = (), kind: int = 1, sport: int = 53, more: int = 0) -> bytes:
    """An answer of DNS as a frame; `more`: flags, as 2 for one that was cut."""
    question = b"".join(bytes((len(one),)) + one.encode() for one in name.split(".")) + b"\0" + struct.pack(">HH", kind, 1)
    records = b"".join(struct.pack(">HHHIH", 0xC00C, kind, 1, 60, len(one)) + one for one in addresses)
    body = struct.pack(">HHHHHH", 7, 0x8180 | more << 8 | code, 1, len(addresses), 0, 0) + question + records
    return ethernet(ip4(struct.pack(">HHHH", sport, 33_333, 8 + len(body), 0xBAD) + body, protocol=17, src=ROUTER, dst=A))


def sent_to(name: str) -> Connection:
    """A client that Metadata sends to a name."""
    one = Connection().ready().client(rabbit.METADATA, streams=["s"])
    brokers = [{"reference": 0, "host": name, "port": 5552}]
    streams = [{"stream_name": "s", "response_code": 1, "leader_reference": 0, "replicas_references": []}]
    return one.server(rabbit.METADATA_RESPONSE, brokers=brokers, stream_metadata=streams)


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([dns(NAME)], "NXDOMAIN"),
        ([dns(NAME), dns(f"{NAME}.default.svc.cluster.local"), dns(NAME)], "NXDOMAIN, 2 times"),
        ([dns(NAME.upper(), 2)], "SERVFAIL"),
        ([dns(NAME, 0), dns(NAME, 0, kind=28)], "no address"),
        ([dns(NAME, 0, kind=28)], None),
        ([dns(NAME, 0, kind=28), dns(NAME, 3, kind=28)], "NXDOMAIN"),
        ([dns(NAME, 0, more=2)], None),
        ([dns(NAME), dns(f"{NAME}.default.svc.cluster.local", 0, (B,))], None),
        ([dns(NAME, 0, (B,)), dns(NAME, 0, kind=28)], None),
        ([dns("another.mq.svc")], None),
        ([dns(NAME, sport=5353)], None),
        ([dns(NAME, kind=16)], None),
    ],
)
def test_an_advertised_name_without_an_address(answers: list[bytes], failure: str | None) -> None:
    one = sent_to(NAME)
    for answer in answers:
        put(one, answer)
    found = [finding for finding in told(one.wait(3 * SECOND).goodbye()) if "advertised" in finding.rule]
    if failure is None:
        assert [finding.rule for finding in found] in ([], ["rabbitmq-stream.advertised-not-dialled"])
    else:
        (finding,) = found
        assert (finding.rule, finding.severity) == ("rabbitmq-stream.advertised-unresolved", "warning")
        cause = f"192.0.2.2:5552 sends clients to {NAME}:5552, and the name has no address: DNS answers {failure}"
        assert finding.cause == cause


def test_a_client_that_closes_leaves_though_the_server_is_the_first_to_send_fin() -> None:
    one = sent_to(NAME).wait(3 * SECOND).client(rabbit.CLOSE, closing_code=1, closing_reason="OK").server(rabbit.CLOSE_RESPONSE).fin(1)
    (finding,) = told(one)
    assert (finding.rule, finding.severity) == ("rabbitmq-stream.advertised-not-dialled", "warning")


def test_floods_are_bounded() -> None:
    kept = NetworkEvidence()
    for at in range(3 * CONVERSATIONS_KEPT):
        ends = A + B + (40_000).to_bytes(2, "big") + (at & 0xFFFF).to_bytes(2, "big")
        kept.error(IcmpError(ends, ROUTER, "host unreachable", None), b"", (at, at, 0, at))
        kept.answer(DnsAnswer(f"name{at}", (), "NXDOMAIN"), (at, at, 0, at))
    for at in range(999):
        kept.error(IcmpError(ends, ROUTER, "host unreachable", None), b"", (at, at, 0, at))
    assert len(kept.errors) == CONVERSATIONS_KEPT and len(kept.names) == NAMES_KEPT
    assert max(map(len, kept.errors.values())) == ERRORS_KEPT
    assert kept.unresolved(f"name{3 * NAMES_KEPT - 1}") is not None
    assert not [host for host in range(HOSTS_ASKED) if kept.unresolved(f"other{host}")]
    assert kept.unresolved(f"name{3 * NAMES_KEPT - 2}") is None, "too many were looked for"


def test_errors_of_a_conversation_are_not_those_of_the_next_one() -> None:
    one = Connection().ready().goodbye()
    quoted = one.packets[3].data[14:]
    one.next = [7_000, 9_000]
    one.segment(0, flags=SYN)
    assert [
        (finding.conversation, finding.cause) for finding in told(put(one, error(quoted, 3, 13))) if finding.conversation is not None
    ] == [(1, "the SYN has no answer: 192.0.2.254 reports by ICMP: communication administratively prohibited")]


def test_any_bytes_are_read() -> None:
    dice = random.Random(4)
    frames = [dns(NAME, 0, (B, B)), dns(NAME), error(ip4(tcp()), 3, 4, 1400), error6(ip6(tcp()), 2, 0, 1280)]
    for frame in frames:
        packet = frame[14:]
        for cut in range(20, len(packet)):
            dns_answer(packet[:cut]), icmp_error(packet[:cut])
        for _ in range(300):
            damaged = bytearray(packet)
            for _ in range(dice.randrange(1, 6)):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            dns_answer(bytes(damaged)), icmp_error(bytes(damaged))
    assert dns_answer(dns(NAME, 0, (B,))[14:]) == DnsAnswer(NAME, (B,), None)
    assert icmp_error(error6(ip6(tcp()), 2, 0, 1280)[14:]) == IcmpError(ip6(tcp())[8:44], ROUTER6, "packet too big", 1280)


def test_segments_that_are_too_big_and_never_acknowledged() -> None:
    (first,) = [one for one in told(again(Connection().ready(), 6, b"icmp")) if one.rule == "tcp.never-acknowledged"]
    assert first.cause.endswith("and never acknowledged: 192.0.2.254 reports by ICMP: fragmentation needed (MTU 1,400)")
    assert first.packets == sorted({*first.packets})
    (without,) = [one for one in told(again(Connection().ready(), 6)) if one.rule == "tcp.never-acknowledged"]
    assert without.cause.endswith("and never acknowledged")
