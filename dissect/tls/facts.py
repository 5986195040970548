"""Facts about a TLS connection besides its content: offers, agreement, alerts and end."""

from __future__ import annotations

import warnings
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from ..model import Mark
from .hello import version_name
from .suites import suite_name

ALERTS = {
    0: "close_notify",
    10: "unexpected_message",
    20: "bad_record_mac",
    21: "decryption_failed",
    22: "record_overflow",
    30: "decompression_failure",
    40: "handshake_failure",
    41: "no_certificate",
    42: "bad_certificate",
    43: "unsupported_certificate",
    44: "certificate_revoked",
    45: "certificate_expired",
    46: "certificate_unknown",
    47: "illegal_parameter",
    48: "unknown_ca",
    49: "access_denied",
    50: "decode_error",
    51: "decrypt_error",
    60: "export_restriction",
    70: "protocol_version",
    71: "insufficient_security",
    80: "internal_error",
    86: "inappropriate_fallback",
    90: "user_canceled",
    100: "no_renegotiation",
    109: "missing_extension",
    110: "unsupported_extension",
    111: "certificate_unobtainable",
    112: "unrecognized_name",
    113: "bad_certificate_status_response",
    114: "bad_certificate_hash_value",
    115: "unknown_psk_identity",
    116: "certificate_required",
    120: "no_application_protocol",
}

MAX_ALERTS = 8
MAX_CERTIFICATE = 16 << 10
"""Bytes of the largest certificate that is parsed."""

MAX_TEXT = 300

MAX_NAMES, MAX_NAMES_TEXT = 32, 1000
"""Names kept per certificate, and characters of all of them."""


class Alert(NamedTuple):
    """An alert; `number` is None if it is encrypted, `packet` the one that completed its record."""

    side: int
    fatal: bool
    number: int | None
    packet: Mark

    @property
    def name(self) -> str:
        return "encrypted alert" if self.number is None else ALERTS.get(self.number, f"alert {self.number}")


class Certificate(NamedTuple):
    """Fields of a certificate; times in nanoseconds since 1970."""

    subject: str
    names: tuple[str, ...]
    issuer: str
    not_before_ns: int
    not_after_ns: int
    expires: str
    """`not_after_ns` as RFC 3339."""
    all_names: bool
    """Whether all names were kept."""


class TlsFacts(msgspec.Struct):
    """One TLS connection. `client` is the side that sent, or should have sent, the ClientHello.

    `last`: side, name and time of the last readable handshake message; `sealed`: encrypted ones followed; `unanswered`: these were the
    server's, and the client sent none.
    A certificate that is not known is the reason; `certificate_given`: whether the client sent the certificate that it was asked for.
    `decrypted`: decrypted bytes by side.
    """

    client: int
    offered: tuple[int, ...] = ()
    ciphers: tuple[int, ...] = ()
    server_name: str | None = None
    alpn_offered: tuple[str, ...] = ()
    version: int | None = None
    cipher: int | None = None
    alpn: str | None = None
    resumed: bool = False
    retried: bool = False
    certificate: Certificate | str | None = None
    certificate_packet: Mark | None = None
    client_certificate: Certificate | str | None = None
    certificate_asked: bool = False
    certificate_given: bool | None = None
    last: tuple[int, str, int] | None = None
    complete: bool = False
    sealed: bool = False
    unanswered: bool = False
    early_data: str | None = None
    """offered, accepted or rejected."""
    renegotiations: int = 0
    key_updates: int = 0
    alerts: list[Alert] = msgspec.field(default_factory=list)
    sealed_alert: tuple[int, int] | None = None
    """The side that ended the handshake with an encrypted alert, as its size shows, and when."""
    unread: str | None = None
    """Why nothing, or nothing more, was decrypted."""
    decrypted: tuple[int, int] = (0, 0)
    skipped: int = 0
    """Records that did not authenticate."""
    plain_peer: int | None = None
    """The side that does not speak TLS while the other does."""

    @property
    def unfinished(self) -> bool:
        """Whether the client did not finish the handshake."""
        refused = self.sealed_alert is not None and self.sealed_alert[0] == self.client
        return not self.complete and (self.unanswered or not self.sealed or refused)

    def row(self) -> dict[str, Any]:
        """Return the keys of a row of `conversations`."""
        alone = "not agreed" if self.plain_peer is None else f"only the {self._who(1 - self.plain_peer)}"
        asked = {None: "asked for", True: "asked for and given", False: "asked for, not given"}
        row = {
            "tls": alone if self.version is None else version_name(self.version),
            "tls_offered": [version_name(one) for one in self.offered] if self.version is None else None,
            "tls_server_name": self.server_name,
            "tls_alpn": self.alpn,
            "tls_alpn_offered": list(self.alpn_offered) if self.alpn is None else None,
            "tls_cipher": None if self.cipher is None else suite_name(self.cipher),
            "tls_certificate": _certificate_row(self.certificate),
            "tls_client_certificate": _certificate_row(self.client_certificate),
            "tls_client_certificate_asked": asked[self.certificate_given] if self.certificate_asked else None,
            "tls_handshake": self._handshake(),
            "tls_resumed": self.resumed or None,
            "tls_early_data": self.early_data,
            "tls_renegotiations": self.renegotiations or None,
            "tls_key_updates": self.key_updates or None,
            "tls_alerts": [f"{'fatal ' if one.fatal else ''}{one.name} by the {self._who(one.side)}" for one in self.alerts],
            "tls_unread": self.unread,
            "tls_plain_bytes": list(self.decrypted) if any(self.decrypted) else None,
            "tls_records_skipped": self.skipped or None,
        }
        return {name: value for name, value in row.items() if value not in (None, [])}

    def _who(self, side: int) -> str:
        return "client" if side == self.client else "server"

    def _handshake(self) -> str:
        if self.complete:
            return "complete"
        if self.last is None:
            return "none of it captured" if self.plain_peer is None else "none"
        after = f"{self.last[1]} of the {self._who(self.last[0])}"
        return f"sealed after {after}" if self.sealed else f"ended after {after}"


def refused(side: int, data: bytes, packet: Mark) -> TlsFacts:
    """Return the facts if a side answers non-TLS bytes with an alert, `data`."""
    return TlsFacts(1 - side, alerts=[Alert(side, data[5] == 2, data[6], packet)], plain_peer=1 - side)


def read_certificate(der: bytes) -> Certificate | str:
    """Return the fields of a certificate, or the reason why they are not known."""
    if not der or len(der) > MAX_CERTIFICATE:
        return "too large"
    return parse_certificate(der) or "cannot be read"


@lru_cache(256)
def parse_certificate(der: bytes) -> Certificate | None:
    """Return the fields of a certificate; None if it cannot be parsed."""
    from cryptography import x509

    try:
        with warnings.catch_warnings():
            # Warnings about a captured certificate do not concern the user.
            warnings.simplefilter("ignore")
            read = x509.load_der_x509_certificate(der)
            before, after = read.not_valid_before_utc, read.not_valid_after_utc
            subject, issuer = read.subject.rfc4514_string(), read.issuer.rfc4514_string()
            names: tuple[str, ...] = ()
            every = True
            try:
                found = list(read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
                texts = [str(one.value)[:MAX_TEXT] for one in found[:MAX_NAMES] if isinstance(one, x509.DNSName | x509.IPAddress)]
                names = tuple(text for text, size in zip(texts, accumulate(map(len, texts)), strict=True) if size <= MAX_NAMES_TEXT)
                every = len(found) < MAX_NAMES and len(names) == len(texts)
            except x509.ExtensionNotFound:
                pass
    except Exception:
        # Whatever a hostile certificate makes the library raise, it cannot be parsed.
        return None
    return Certificate(
        subject[:MAX_TEXT],
        names,
        issuer[:MAX_TEXT],
        int(before.timestamp()) * 1_000_000_000,
        int(after.timestamp()) * 1_000_000_000,
        after.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0"),
        every,
    )


def _certificate_row(kept: Certificate | str | None) -> str | dict[str, Any] | None:
    if not isinstance(kept, Certificate):
        return kept
    return {"subject": kept.subject, **({"names": list(kept.names)} if kept.names else {}), "issuer": kept.issuer, "expires": kept.expires}
