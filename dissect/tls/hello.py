"""Parses the messages of a TLS handshake that keys and facts depend on.

Lengths from the wire are never trusted: missing parts are absent, and nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, islice
from typing import NamedTuple

HELLO_REQUEST, CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS = 0, 1, 2, 4, 5, 8
CERTIFICATE, SERVER_KEY_EXCHANGE, CERTIFICATE_REQUEST, SERVER_HELLO_DONE, CERTIFICATE_VERIFY, CLIENT_KEY_EXCHANGE = 11, 12, 13, 14, 15, 16
FINISHED, CERTIFICATE_STATUS, KEY_UPDATE, COMPRESSED_CERTIFICATE = 20, 22, 24, 25

MESSAGES = {
    HELLO_REQUEST: "HelloRequest",
    CLIENT_HELLO: "ClientHello",
    SERVER_HELLO: "ServerHello",
    NEW_SESSION_TICKET: "NewSessionTicket",
    END_OF_EARLY_DATA: "EndOfEarlyData",
    ENCRYPTED_EXTENSIONS: "EncryptedExtensions",
    CERTIFICATE: "Certificate",
    SERVER_KEY_EXCHANGE: "ServerKeyExchange",
    CERTIFICATE_REQUEST: "CertificateRequest",
    SERVER_HELLO_DONE: "ServerHelloDone",
    CERTIFICATE_VERIFY: "CertificateVerify",
    CLIENT_KEY_EXCHANGE: "ClientKeyExchange",
    FINISHED: "Finished",
    CERTIFICATE_STATUS: "CertificateStatus",
    KEY_UPDATE: "KeyUpdate",
    COMPRESSED_CERTIFICATE: "CompressedCertificate",
}

_SERVER_NAME, _ALPN, _ENCRYPT_THEN_MAC, _PRE_SHARED_KEY, _EARLY_DATA, _VERSIONS = 0, 16, 22, 41, 42, 43

TLS_12, TLS_13 = 0x0303, 0x0304
VERSIONS = {0x0300: "SSL 3.0", 0x0301: "1.0", 0x0302: "1.1", TLS_12: "1.2", TLS_13: "1.3"}

_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a HelloRetryRequest."""

MAX_NAMES, MAX_NAME_BYTES, MAX_NAMES_BYTES, MAX_CIPHERS = 16, 255, 255, 64
"""Names kept of a list, bytes of each and of all, and cipher suites: any number of connections may have as many."""


_ciphers: dict[int, int] = {}
"""Numbers of cipher suites, one shared object each."""


def version_name(version: int) -> str:
    """Return a version as `1.3`, or the number of an unknown one."""
    return VERSIONS.get(version, f"0x{version:04x}")


class ClientHello(NamedTuple):
    """What a client offers."""

    random: bytes
    versions: tuple[int, ...]
    ciphers: tuple[int, ...]
    server_name: str | None
    alpn: tuple[str, ...]
    early_data: bool
    session: bytes
    """The session to resume in TLS 1.2; meaningless in TLS 1.3."""


class ServerHello(NamedTuple):
    """What a server chose; `retry`: it asks for another ClientHello first."""

    random: bytes
    version: int
    cipher: int
    alpn: str | None
    encrypt_then_mac: bool
    resumed: bool
    retry: bool
    session: bytes


class _HelloReader:
    """Reads values in order; beyond the end all are empty or zero, and `complete` is False."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.complete = True

    def number(self, size: int) -> int:
        return int.from_bytes(self.read(size), "big")

    def read(self, size: int) -> bytes:
        if size > self.left():
            self.complete = False
            self.at = len(self.data)
            return b""
        data = self.data[self.at : self.at + size]
        self.at += size
        return data

    def vector(self, width: int) -> bytes:
        """Return bytes preceded by their length in `width` bytes."""
        return self.read(self.number(width))

    def opening(self) -> tuple[int, bytes, bytes]:
        """Return version, random and session, with which both hellos begin."""
        return self.number(2), self.read(32), self.vector(1)

    def left(self) -> int:
        return len(self.data) - self.at


def extensions(data: bytes) -> dict[int, bytes]:
    """Return extensions by number; the first of each counts."""
    found: dict[int, bytes] = {}
    reader = _HelloReader(data)
    while reader.left() >= 4:
        kind = reader.number(2)
        value = reader.vector(2)
        if not reader.complete:
            break
        found.setdefault(kind, value)
    return found


def client_hello(body: bytes) -> ClientHello | None:
    """Parse a ClientHello; None if it has no random."""
    reader = _HelloReader(body)
    version, random, session = reader.opening()
    ciphers = reader.vector(2)
    reader.vector(1)  # compression
    if len(random) < 32:
        return None
    more = extensions(reader.vector(2))
    offered = _numbers(_HelloReader(more[_VERSIONS]).vector(1)) if _VERSIONS in more else tuple(range(0x0300, min(version, TLS_12) + 1))
    return ClientHello(
        random,
        tuple(one for one in offered if not _grease(one))[:MAX_NAMES],
        tuple(_ciphers.setdefault(one, one) for one in _numbers(ciphers[: 2 * MAX_CIPHERS]) if not _grease(one)),
        _server_name(more.get(_SERVER_NAME, b"")),
        _first_names(more.get(_ALPN, b"")),
        _EARLY_DATA in more,
        session,
    )


def server_hello(body: bytes) -> ServerHello | None:
    """Parse a ServerHello; None if it is incomplete."""
    reader = _HelloReader(body)
    version, random, session = reader.opening()
    cipher = reader.number(2)
    reader.number(1)  # compression
    if not reader.complete:
        return None
    more = extensions(reader.vector(2))
    if len(more.get(_VERSIONS, b"")) == 2:
        version = int.from_bytes(more[_VERSIONS], "big")
    return ServerHello(
        random, version, cipher, _chosen_alpn(more), _ENCRYPT_THEN_MAC in more, _PRE_SHARED_KEY in more, random == _RETRY, session
    )


def encrypted_extensions(body: bytes) -> tuple[str | None, bool]:
    """Return the ALPN protocol that a server chose, and whether it accepts early data."""
    more = extensions(_HelloReader(body).vector(2))
    return _chosen_alpn(more), _EARLY_DATA in more


def leaf_certificate(body: bytes, version: int) -> bytes:
    """Return the first certificate of a Certificate message, in DER; empty if there is none."""
    reader = _HelloReader(body)
    if version >= TLS_13:
        reader.vector(1)
    return _HelloReader(reader.vector(3)).vector(3)


def _chosen_alpn(more: dict[int, bytes]) -> str | None:
    return next(_names(more.get(_ALPN, b"")), None)


def _numbers(data: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data) - 1, 2))


def _grease(number: int) -> bool:
    """Return whether this is a reserved value that tests tolerance of unknown ones (RFC 8701)."""
    return number & 0x0F0F == 0x0A0A and number >> 8 == number & 0xFF


def _names(data: bytes) -> Iterator[str]:
    reader = _HelloReader(_HelloReader(data).vector(2))
    while reader.left():
        name = reader.vector(1)
        if not reader.complete:
            break
        yield _text(name)


def _first_names(data: bytes) -> tuple[str, ...]:
    """Return the first `MAX_NAMES` names of a list."""
    names = list(islice(_names(data), MAX_NAMES))
    return tuple(name for name, size in zip(names, accumulate(map(len, names)), strict=True) if size <= MAX_NAMES_BYTES)


def _server_name(data: bytes) -> str | None:
    reader = _HelloReader(_HelloReader(data).vector(2))
    while reader.left() >= 3:
        kind = reader.number(1)
        name = reader.vector(2)
        if kind == 0 and reader.complete:
            return _text(name)
    return None


def _text(name: bytes) -> str:
    return name[:MAX_NAME_BYTES].decode("utf-8", "backslashreplace")
