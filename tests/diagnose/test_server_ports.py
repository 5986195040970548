"""The client's own port is chosen at random, and never decides what is spoken."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.conversation.table import ForgottenCounts
from streamdump.inspector import Inspector
from streamdump.model import Options
from streamdump.protocols import PROTOCOLS, server_ports
from tests.diagnose.talks import Connection, capture, diagnosed, rules
from tests.support.frames import ACK, SYN

POP3 = Path(__file__).parents[2] / "captures" / "samples" / "reports" / "client_port_5552.pcap"
PORTS = sorted({port for protocol in PROTOCOLS for port in protocol.ports})
TEXT = (b"+OK POP3 server ready\r\n", b"USER alice\r\n")


def pop3(port: int, *, syn: bool = True) -> Connection:
    one = Connection(sport=port, dport=110)
    one = one.open() if syn else one
    return one.tell(TEXT[0]).ask(TEXT[1]).fin(1)


def test_a_client_with_a_port_of_ours_is_none_of_ours() -> None:
    assert diagnosed(POP3)[:2] == ([], [])
    inspector = Inspector([open_capture(str(POP3))], Options(decode_as=((5552, "rabbitmq-stream", None),)))
    assert list(inspector.records()) == []
    (row,) = inspector.rows()
    counts = ForgottenCounts()
    counts.add(row)
    assert (row.protocol, row.server, counts.ports) == (None, "10.0.0.2:110", set())


@pytest.mark.parametrize("port", PORTS)
def test_whatever_port_of_ours_the_client_has(port: int) -> None:
    assert rules(pop3(port)) == {}


def test_where_nothing_shows_who_is_the_client_this_is_said_in_a_note() -> None:
    (finding,) = diagnosed(capture(pop3(5552, syn=False)))[0]
    assert (finding.rule, finding.severity) == ("tcp.unknown-bytes", "note")
    assert finding.cause == (
        "one of the ports is that of rabbitmq-stream (the capture does not show which side is the client), "
        "but the bytes are not recognised (23 bytes from 192.0.2.2:110 and 12 bytes from 192.0.2.1:5552)"
    )


def test_a_syn_to_a_port_of_others_is_not_expected_to_be_ours() -> None:
    refused = Connection(sport=5552, dport=110).segment(0, flags=SYN).reset(1)
    unused = Connection(sport=7000, dport=110).open().fin(1)
    assert rules(refused, unused) == {}
    answered = Connection(sport=5552, dport=110).segment(1, flags=SYN | ACK).tell(TEXT[0] * 3).fin(1)
    assert rules(answered) == {}


def test_the_port_of_a_known_client_counts_as_none() -> None:
    assert server_ports((5552, 8090), None) == (5552, 8090)
    assert server_ports((5552, 8090), 0) == (0, 8090)
    assert server_ports((5552, 8090), 1) == (5552, 0)
