"""Hellos, certificates and alerts: what is told of them, and that nothing in them does harm."""

from __future__ import annotations

import datetime
import random
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from streamdump.tls import hello
from streamdump.tls.diagnostics import failures
from streamdump.tls.facts import ALERTS, MAX_CERTIFICATE, MAX_NAMES_TEXT, TlsFacts, parse_certificate, read_certificate
from streamdump.tls.records import alert, begins
from streamdump.tls.suites import _table, suite, suite_name
from tests.support.work import peak
from tests.tls.peers import CLIENT, SERVER, Talk, Wire, contexts, identity, talk
from tests.tls.reading import once, read


def client_hello(version: str = "1.3") -> bytes:
    """The body of a ClientHello as Python's `ssl` sends it."""
    data = talk([], version).sent[0][1]
    assert begins(data) is True
    return data[9:]


def test_a_client_hello() -> None:
    found = hello.client_hello(client_hello())
    assert found is not None
    assert len(found.random) == 32
    assert found.versions == (hello.TLS_13,)
    assert found.server_name == "broker.example"
    assert found.alpn == ("streams",)
    assert 0x1302 in found.ciphers
    assert not found.early_data
    older = hello.client_hello(client_hello("1.2"))
    assert older is not None
    assert older.versions == (0x0300, 0x0301, 0x0302, 0x0303)


def test_values_that_mean_nothing_are_left_out() -> None:
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\x00\x06\x0a\x0a\x13\x01\xfa\xfa" + b"\x01\x00"
    body += b"\x00\x0b\x00\x2b\x00\x07\x06\x1a\x1a\x03\x04\x03\x03"
    found = hello.client_hello(body)
    assert found is not None
    assert found.ciphers == (0x1301,)
    assert found.versions == (0x0304, 0x0303)


@given(st.integers(0, 600), st.integers(0, 600), st.binary(max_size=3))
def test_a_hello_that_is_cut_or_changed(end: int, at: int, change: bytes) -> None:
    body = client_hello()
    for data in (body[:end], body[:at] + change + body[at + len(change) :], change * 200):
        hello.client_hello(data)
        hello.server_hello(data)
        hello.encrypted_extensions(data)
        hello.extensions(data)
        for version in (hello.TLS_12, hello.TLS_13):
            hello.leaf_certificate(data, version)


@given(st.binary(max_size=40))
def test_what_begins_like_tls(data: bytes) -> None:
    assert begins(data) in (True, False, None)
    assert begins(data) is not None or len(data) < 11
    assert alert(data) in (True, False)


def test_lists_without_end_are_cut() -> None:
    names = b"".join(b"\x08protocol" for _ in range(5000))
    alpn = b"\x00\x10" + (len(names) + 2).to_bytes(2, "big") + len(names).to_bytes(2, "big") + names
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\xff\xfe" + b"\x13\x01" * 0x7FFF + b"\x01\0" + len(alpn).to_bytes(2, "big") + alpn
    found = hello.client_hello(body)
    assert found is not None
    assert (len(found.alpn), len(found.ciphers)) == (hello.MAX_NAMES, hello.MAX_CIPHERS)


def test_large_hellos_are_kept_small() -> None:
    names = b"".join(b"\xff" + bytes((97 + number,)) * 255 for number in range(16))
    alpn = b"\x00\x10" + (len(names) + 2).to_bytes(2, "big") + len(names).to_bytes(2, "big") + names
    body = b"\0\x00\x80" + b"\xc0\x2f" * 64 + b"\x01\0" + len(alpn).to_bytes(2, "big") + alpn
    hello.client_hello(b"\x03\x03" + bytes(32) + body)
    assert peak(lambda: [hello.client_hello(b"\x03\x03%032d" % number + body) for number in range(300)]) < 300 * 2_000


def test_suites() -> None:
    assert suite_name(0x1301) == "TLS_AES_128_GCM_SHA256"
    assert suite_name(0xC02F) == "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    assert suite_name(0xABCD) == "0xabcd"
    wanted = {
        0x1302: ("AES", "GCM", 32, "", "sha384"),
        0x1303: ("CHACHA20", "CHACHA20", 32, "", "sha256"),
        0x1305: ("AES", "CCM_8", 16, "", "sha256"),
        0xC09D: ("AES", "CCM", 32, "", "sha256"),
        0x002F: ("AES", "CBC", 16, "sha1", "sha256"),
        0x003D: ("AES", "CBC", 32, "sha256", "sha256"),
        0xC028: ("AES", "CBC", 32, "sha384", "sha384"),
        0xC0AF: ("AES", "CCM_8", 32, "", "sha256"),
        0x0041: ("CAMELLIA", "CBC", 16, "sha1", "sha256"),
    }
    for number, parameters in wanted.items():
        found = suite(number)
        assert found is not None
        assert found[1:] == parameters
    for number in (0x0001, 0x0004, 0x000A, 0xC050, 0xABCD):
        assert suite(number) is None


def test_names_are_those_of_openssl() -> None:
    for number, name in _table().items():
        assert name.startswith("TLS_")
        found = suite(number)
        assert (found is None) == any(part in name for part in ("NULL", "RC4", "3DES", "ARIA"))


# Certificates


def der(kind: str = "ec", **more: Any) -> bytes:
    from pathlib import Path

    return ssl.PEM_cert_to_DER_cert(Path(identity(kind, **more).certificate).read_text())


def test_a_certificate() -> None:
    found = parse_certificate(der())
    assert found is not None
    assert found.subject == found.issuer == "CN=broker.example"
    assert found.names == ("broker.example", "127.0.0.1")
    assert found.expires == "2032-12-29T00:00:00Z"
    assert found.not_after_ns - found.not_before_ns == 3650 * 86_400 * 1_000_000_000


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_a_damaged_certificate_is_told_as_one(at: int, change: bytes) -> None:
    good = der()
    at %= len(good)
    data = good[:at] + change + good[at + len(change) :]
    parse_certificate(data)
    facts = TlsFacts(0, certificate=read_certificate(data))
    assert "tls_certificate" in facts.row()


def test_of_certificates_that_are_not_known_the_reason_is_kept() -> None:
    assert TlsFacts(0, certificate=read_certificate(bytes(MAX_CERTIFICATE + 1))).row()["tls_certificate"] == "too large"
    assert TlsFacts(0, certificate=read_certificate(b"")).row()["tls_certificate"] == "too large"
    assert TlsFacts(0, certificate=read_certificate(b"nonsense")).row()["tls_certificate"] == "cannot be read"


def test_of_a_certificate_only_what_is_shown_is_kept() -> None:
    name = "a" * 60
    names = x509.SubjectAlternativeName([x509.DNSName(f"{number}.{name}.{name}.{name}.example") for number in range(20)])
    key, nobody, begin = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(nobody, nobody, key.public_key(), 1, begin, begin + datetime.timedelta(days=1))
    signed = builder.add_extension(names, True).sign(key, hashes.SHA256())
    found = parse_certificate(signed.public_bytes(serialization.Encoding.DER))
    assert found is not None
    assert 0 < sum(map(len, found.names)) <= MAX_NAMES_TEXT
    assert not found.all_names
    read_certificate(b"nonsense")
    random.seed(1)
    # The latest stay at hand in case they come again
    assert peak(lambda: [read_certificate(random.randbytes(16_000)) for _ in range(1000)]) < 300 * 17_000


def test_equal_certificates_are_kept_once() -> None:
    assert read_certificate(der()) is read_certificate(bytes(bytearray(der())))


# What a row says


def test_facts_without_keys_in_tls_1_2() -> None:
    one = talk([(CLIENT, b"hello")], "1.2")
    found = read(Wire().send(one.sent).end().capture())
    assert found.rows[0].name == "TLS"
    facts = found.facts
    assert facts["tls"] == "1.2"
    assert facts["tls_server_name"] == "broker.example"
    assert facts["tls_alpn"] == "streams"
    assert facts["tls_cipher"] == "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    assert facts["tls_certificate"]["subject"] == "CN=broker.example"
    assert facts["tls_handshake"] == "complete"
    assert facts["tls_alerts"] == ["encrypted alert by the client"]
    assert facts["tls_unread"] == "no keys"
    assert "tls_troubles" not in facts


def test_facts_without_keys_in_tls_1_3() -> None:
    facts = read(Wire().send(talk([(CLIENT, b"hello")]).sent).end().capture()).facts
    assert (facts["tls"], facts["tls_server_name"], facts["tls_alpn_offered"]) == ("1.3", "broker.example", ["streams"])
    assert facts["tls_handshake"] == "sealed after ServerHello of the server"
    assert "tls_certificate" not in facts


def refused(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "broker.example") -> tuple[Talk, dict[str, Any]]:
    """A handshake that fails, and what is said of it with its keys."""
    one = Talk(client, server, name=name)
    with pytest.raises(ssl.SSLError):
        for _ in range(4):
            one.pump()
            one._shake()
    one.failed()
    return one, read(Wire().send(one.sent).end().capture(), one.keys).facts


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_certificate_that_the_client_does_not_know(version: str) -> None:
    client, server = contexts(version)
    client.verify_mode = ssl.CERT_REQUIRED
    _, facts = refused(client, server)
    assert facts["tls_alerts"] == ["fatal unknown_ca by the client"]
    assert facts["tls_certificate"]["issuer"] == "CN=broker.example"
    cause = "the client does not know who issued the server's certificate (CN=broker.example)"
    assert facts["tls_troubles"] == {"tls.unknown-authority": cause}


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_certificate_for_another_name(version: str) -> None:
    client, server = contexts(version)
    client.load_verify_locations(identity("ec").certificate)
    client.check_hostname = True
    client.verify_mode = ssl.CERT_REQUIRED
    _, facts = refused(client, server, "other.example")
    assert facts["tls_alerts"] == ["fatal bad_certificate by the client"]
    assert (facts["tls_server_name"], facts["tls_certificate"]["names"][0]) == ("other.example", "broker.example")
    cause = "the server's certificate is for broker.example, 127.0.0.1, and not for other.example, which the client asked for"
    assert facts["tls_troubles"] == {"tls.another-name": cause}


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("broker.example", "Broker.Example.", True),
        ("*.example", "broker.example", True),
        ("*.example", "a.broker.example", False),
        ("*.example", "example", False),
        ("b*.example", "broker.example", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
def test_names_of_certificates(pattern: str, name: str, fits: bool) -> None:
    der = ssl.PEM_cert_to_DER_cert(Path(identity("ec", pattern).certificate).read_text())
    facts = TlsFacts(CLIENT, server_name=name, certificate=read_certificate(der))
    assert ("tls.another-name" not in failures(facts)) == fits


def test_an_expired_certificate() -> None:
    client, server = contexts("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")
    old = identity("ec", days=1)
    server.load_cert_chain(*old)
    client.load_verify_locations(old.certificate)
    client.verify_mode = ssl.CERT_REQUIRED
    _, facts = refused(client, server)
    assert facts["tls_alerts"] == ["fatal certificate_expired by the client"]
    assert facts["tls_certificate"]["expires"] == "2023-01-02T00:00:00Z"
    assert facts["tls_troubles"] == {"tls.certificate-expired": "the server's certificate has expired (2023-01-02T00:00:00Z)"}
    # A client that does not mind
    sent = Talk(contexts("1.2")[0], server).begin().sent
    facts = read(Wire().send(sent).end().capture()).facts
    assert facts["tls_troubles"] == {"tls.certificate-expired": "the server's certificate had expired (2023-01-02T00:00:00Z)"}
    facts = read(Wire(start_ns=1_600_000_000_000_000_000).send(sent).end().capture()).facts
    assert facts["tls_troubles"] == {"tls.certificate-expired": "the server's certificate was not valid yet"}


def test_no_common_version() -> None:
    client, _ = contexts("1.2")
    _, server = contexts("1.3")
    _, facts = refused(client, server)
    assert facts["tls_alerts"] == ["fatal protocol_version by the server"]
    assert facts["tls"] == "not agreed"
    assert facts["tls_offered"][-1] == "1.2"
    assert facts["tls_handshake"] == "ended after ClientHello of the client"
    assert facts["tls_troubles"] == {
        "tls.no-common-version": f"the server accepts none of the versions that the client offers ({', '.join(facts['tls_offered'])})"
    }


def test_no_common_cipher() -> None:
    client, _ = contexts("1.2", "AES128-SHA")
    _, server = contexts("1.2", "ECDHE-RSA-CHACHA20-POLY1305")
    one, facts = refused(client, server)
    assert facts["tls_alerts"] == ["fatal handshake_failure by the server"]
    (cause,) = facts["tls_troubles"].values()
    assert cause.startswith("the server accepts none of the cipher suites, or groups, that the client offers (TLS_RSA_WITH_AES_128_CBC_SHA")
    assert list(facts["tls_troubles"]) == ["tls.no-common-cipher"]
    (tracked,) = once(Wire().send(one.sent).end().capture()).inspector.table.conversations
    assert tracked.tls.facts is not None
    assert 0x002F in tracked.tls.facts.ciphers
    assert tracked.tls.facts.cipher is None


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_certificate_of_the_client_that_is_not_given(version: str) -> None:
    client, server = contexts(version, client_asks=True)
    server.verify_mode = ssl.CERT_REQUIRED
    one = Talk(client, server)
    with pytest.raises(ssl.SSLError):
        for _ in range(4):
            one.pump()
            one._shake()
    one.failed()
    facts = read(Wire().send(one.sent).end().capture(), one.keys).facts
    assert facts["tls_client_certificate_asked"] == "asked for, not given"
    alerts = {"1.2": "handshake_failure", "1.3": "certificate_required"}
    assert facts["tls_alerts"] == [f"fatal {alerts[version]} by the server"]
    cause = "the server asks for a client certificate, and the client sends none"
    assert facts["tls_troubles"] == {"tls.client-certificate-missing": cause}


def test_alerts_say_where_they_are() -> None:
    one = talk([(CLIENT, b"hello")])
    (tracked,) = once(Wire().send(one.sent).end().capture(), one.keys).inspector.table.conversations
    assert tracked.tls.facts is not None
    (goodbye,) = tracked.tls.facts.alerts
    assert (goodbye.name, goodbye.fatal, goodbye.side) == ("close_notify", False, CLIENT)
    assert goodbye.packet[1] == len(Wire().send(one.sent).packets)
    assert tracked.tls.facts.certificate_packet is not None
    assert ALERTS[48] == "unknown_ca"


def test_who_ends_it() -> None:
    one = talk([(CLIENT, b"hello")], close=False)
    one.close(SERVER)
    facts = once(Wire().send(one.sent).end().capture(), one.keys).facts
    assert facts["tls_alerts"] == ["close_notify by the server"]
