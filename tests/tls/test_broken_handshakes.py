"""Handshakes of TLS that fail, on ports of no protocol, and without keys."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Options
from tests.diagnose.talks import SECOND, Connection, capture, diagnosed
from tests.support.frames import ACK, FIN, RST
from tests.tls.peers import CLIENT, SERVER, Said, Talk, Wire, contexts, identity, talk

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"
PORT = 7443
SEALED_ALERT = bytes.fromhex("1703030013") + bytes(range(19))
CHANGE = bytes.fromhex("140303000101")
UNTRUSTED = "the client does not know who issued the server's certificate"
NOT_ACCEPTED = "after it receives the server's certificate: it does not accept the certificate"
PLAIN_PORT = "the client begins with TLS, and the server {} the connection without an answer: this is probably a plain port"
REFUSED = "the server ends TLS with an encrypted alert once the client has finished: perhaps it requires a client certificate"


def failing(version: str, change: Callable[[ssl.SSLContext, ssl.SSLContext], None]) -> list[Said]:
    """What is sent until a side fails."""
    client, server = contexts(version)
    change(client, server)
    one = Talk(client, server)
    failed = False
    while not failed:
        before = len(one.sent)
        for side in (CLIENT, SERVER):
            try:
                one.ends[side].do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                failed = True
            data = one._bios[side][1].read()
            if data:
                one.sent.append((side, data))
                one._bios[1 - side][0].write(data)
        assert failed or len(one.sent) > before
    return one.sent


def untrusted(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    client.verify_mode = ssl.CERT_REQUIRED


def client_certificate(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(identity("ec").certificate)


def other_ciphers(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    client.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    server.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")


def other_version(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    server.minimum_version = server.maximum_version = ssl.TLSVersion.TLSv1_3


def told(wire: Wire) -> list[tuple[str, str, str]]:
    return [(one.rule, one.severity, one.cause) for one in diagnosed(wire.capture())[0]]


CASES = [
    ("1.2", untrusted, "tls.unknown-authority", "error", f"{UNTRUSTED} (CN=broker.example)"),
    ("1.3", untrusted, "tls.unknown-authority", "error", UNTRUSTED),
    (
        "1.2",
        client_certificate,
        "tls.client-certificate-missing",
        "error",
        "the server asks for a client certificate, and the client sends none",
    ),
    ("1.3", client_certificate, "tls.incomplete", "warning", REFUSED),
    (
        "1.2",
        other_ciphers,
        "tls.no-common-cipher",
        "error",
        "the server accepts none of the cipher suites, or groups, that the client offers (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, 0x00ff)",
    ),
    (
        "1.2",
        other_version,
        "tls.no-common-version",
        "error",
        "the server accepts none of the versions that the client offers (SSL 3.0, 1.0, 1.1, 1.2)",
    ),
]


@pytest.mark.parametrize("first", [CLIENT, SERVER])
@pytest.mark.parametrize(("version", "change", "rule", "severity", "cause"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_why_a_handshake_fails(version: str, change: Callable[..., None], rule: str, severity: str, cause: str, first: int) -> None:
    wire = Wire(port=PORT).send(failing(version, change))
    for side in (first, 1 - first):
        wire._put(side, b"", FIN | ACK)
        wire.next[side] += 1
    assert told(wire) == [(rule, severity, cause)]


@pytest.mark.parametrize(("version", "flags"), [("1.2", FIN | ACK), ("1.3", FIN | ACK), ("1.2", RST | ACK), ("1.3", RST | ACK)])
def test_a_client_that_leaves_silently_does_not_accept_the_certificate(version: str, flags: int) -> None:
    wire = Wire(port=PORT).send(failing(version, untrusted)[:2])
    wire._put(CLIENT, b"", flags)
    verb = "closes" if flags & FIN else "resets"
    if version == "1.3":
        assert told(wire) == [("tls.incomplete", "error", f"the client {verb} the connection silently {NOT_ACCEPTED}")]
    else:
        cause = f"the TLS handshake did not complete: the client {verb} the connection after ServerHelloDone from the server"
        assert told(wire) == [("tls.incomplete", "error", cause)]


def test_a_sealed_alert_of_the_client_refuses_the_certificate() -> None:
    hellos = failing("1.3", untrusted)[:2]
    wire = Wire(port=PORT).send([*hellos, (CLIENT, CHANGE + SEALED_ALERT)]).end()
    assert told(wire) == [("tls.incomplete", "error", f"the client ends TLS with an encrypted alert {NOT_ACCEPTED}")]


def test_a_server_that_answers_the_end_of_the_client_refuses_nothing() -> None:
    finished = [one for one in failing("1.3", client_certificate) if one[0] == CLIENT or len(one[1]) != len(SEALED_ALERT)]
    left = Wire(port=PORT).send(finished)
    left._put(CLIENT, b"", FIN | ACK)
    left.next[CLIENT] += 1
    assert told(left.send([(SERVER, SEALED_ALERT)])) == []
    assert told(Wire(port=PORT).send([*finished, (SERVER, SEALED_ALERT), (SERVER, CHANGE + SEALED_ALERT)]).end()) == []


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("said", [[], [(CLIENT, b"GET / HTTP/1.1\r\n\r\n"), (SERVER, b"HTTP/1.1 200 OK\r\n\r\n")]])
@pytest.mark.parametrize("close", [True, False])
def test_healthy_tls_of_others_has_nothing(version: str, said: list[Said], close: bool) -> None:
    assert told(Wire(port=443).send(talk(said, version, close=close).sent).end()) == []
    assert told(Wire(port=443).send(talk(said, version, close=close).sent)) == []
    begun = talk(said, version).sent
    for count in range(1, len(begun)):
        assert told(Wire(port=443).send(begun[:count])) == [], "the capture ends here"


HELLO = failing("1.3", untrusted)[0][1]


@pytest.mark.parametrize("port", [PORT, 443, 5552, 7001])
@pytest.mark.parametrize(("end", "verb"), [(Connection.fin, "closes"), (Connection.reset, "resets")])
def test_a_server_that_ends_the_connection_upon_a_client_hello(port: int, end: Callable[..., Connection], verb: str) -> None:
    one = Connection(dport=port).open().ask(HELLO).segment(1)
    (finding,) = diagnosed(capture(end(one, 1)))[0]
    assert (finding.rule, finding.severity, finding.cause) == ("tls.on-plain-port", "error", PLAIN_PORT.format(verb))


def test_a_client_hello_without_an_answer() -> None:
    (finding,) = diagnosed(REPORTS / "tls_silent_7001.pcap")[0]
    cause = "the server has not answered the ClientHello for 10 min when the capture ends: perhaps this is a plain port"
    assert (finding.rule, finding.severity, finding.cause) == ("tls.no-answer", "warning", cause)
    for end, verb in ((Connection.fin, "closes"), (Connection.reset, "resets")):
        (finding,) = diagnosed(capture(end(Connection(dport=PORT).open().ask(HELLO).segment(1).wait(10 * SECOND), 0)))[0]
        cause = f"the server has not answered the ClientHello for 10 s when the client {verb} the connection: perhaps this is a plain port"
        assert (finding.rule, finding.severity, finding.cause) == ("tls.no-answer", "error", cause)
    never_acknowledged = Connection(dport=PORT).open().ask(HELLO).wait(10 * SECOND).segment(0)
    assert not diagnosed(capture(never_acknowledged))[0]


def test_a_server_that_answers_in_plain() -> None:
    one = Connection(dport=PORT).open().ask(HELLO).tell(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").fin(1)
    (finding,) = diagnosed(capture(one))[0]
    assert (finding.rule, finding.severity) == ("tls.plain-peer", "error")
    assert finding.cause == "the client speaks TLS, and the server does not"


def test_a_handshake_that_stands_still() -> None:
    wire = Wire(port=PORT).send(failing("1.2", untrusted)[:2])
    wire.time_ns += 30 * SECOND
    wire._put(CLIENT, b"", ACK)
    assert told(wire) == [
        (
            "tls.incomplete",
            "warning",
            "the TLS handshake did not complete: nothing follows ServerHelloDone from the server for 30 s when the capture ends",
        )
    ]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("tls_to_plain_odd_port", PLAIN_PORT.format("closes")),
        ("tls_untrusted_odd_port", f"the client closes the connection silently {NOT_ACCEPTED}"),
    ],
)
def test_reports_on_ports_of_no_protocol(name: str, cause: str) -> None:
    (finding,) = diagnosed(REPORTS / f"{name}.pcap")[0]
    assert (finding.severity, finding.cause) == ("error", cause)


@pytest.mark.parametrize("name", ["tls_silent_7001", "tls_to_plain_odd_port", "tls_untrusted_odd_port"])
def test_no_advice_about_keys_where_no_handshake_was_finished(name: str) -> None:
    inspector = Inspector([open_capture(str(REPORTS / f"{name}.pcap"))], Options(), None, finite=True)
    assert list(inspector.records()) == []
    (row,) = inspector.rows()
    assert row.name == "TLS, handshake not finished"
