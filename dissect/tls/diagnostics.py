"""What went wrong with a TLS connection, as text: a table of rules over its facts."""

from __future__ import annotations

from collections.abc import Callable

from ..units import some
from .facts import Certificate, TlsFacts
from .hello import version_name
from .suites import suite_name

NO_CERTIFICATE, EXPIRED, UNKNOWN_AUTHORITY, REQUIRED = 41, 45, 48, 116
REFUSED, VERSION, TOO_WEAK = 40, 70, 71
"""Alerts by number."""

SHOWN = 4
"""Names of a list that are shown."""


def failures(facts: TlsFacts) -> dict[str, str]:
    """Return the cause of each failure by rule; if only one side speaks TLS, that is the only one."""
    if (plain := _plain_peer(facts)) is not None:
        return {"tls.plain-peer": plain}
    return {rule: cause for rule, check in RULES if (cause := check(facts)) is not None}


def _plain_peer(facts: TlsFacts) -> str | None:
    if facts.plain_peer is None:
        return None
    if facts.plain_peer == facts.client:
        return "the client does not speak TLS, and the server expects it"
    return "the client speaks TLS, and the server does not"


def _no_common_version(facts: TlsFacts) -> str | None:
    side = _alerted(facts, VERSION)
    if side is None:
        return None
    if side == facts.client:
        return f"the client does not take TLS {version_name(facts.version)}, which the server chose" if facts.version is not None else None
    offered = f" ({some(map(version_name, facts.offered), SHOWN)})" if facts.offered else ""
    return f"the server accepts none of the versions that the client offers{offered}"


def _no_common_cipher(facts: TlsFacts) -> str | None:
    if facts.version is not None or not facts.ciphers or _alerted(facts, REFUSED, TOO_WEAK) != 1 - facts.client:
        return None
    offered = some(map(suite_name, facts.ciphers), SHOWN)
    return f"the server accepts none of the cipher suites, or groups, that the client offers ({offered})"


def _unknown_authority(facts: TlsFacts) -> str | None:
    side = _alerted(facts, UNKNOWN_AUTHORITY)
    if side is None:
        return None
    one, other = ("client", "server") if side == facts.client else ("server", "client")
    read = _read(facts.certificate if side == facts.client else facts.client_certificate)
    return f"the {one} does not know who issued the {other}'s certificate{'' if read is None else f' ({read.issuer})'}"


def _expired(facts: TlsFacts) -> str | None:
    side = _alerted(facts, EXPIRED)
    read = _read(facts.certificate)
    if side is not None:
        owner = "server" if side == facts.client else "client"
        read_other = read if side == facts.client else _read(facts.client_certificate)
        return f"the {owner}'s certificate has expired{'' if read_other is None else f' ({read_other.expires})'}"
    if read is None or facts.certificate_packet is None:
        return None
    time_ns = facts.certificate_packet[3]
    if time_ns > read.not_after_ns:
        return f"the server's certificate had expired ({read.expires})"
    return "the server's certificate was not valid yet" if time_ns < read.not_before_ns else None


def _another_name(facts: TlsFacts) -> str | None:
    read, name = _read(facts.certificate), facts.server_name
    if read is None or name is None or not read.all_names:
        return None
    names = read.names or (read.subject,)
    if any(_is_for(one, name) for one in read.names) or (not read.names and f"CN={name}".casefold() in read.subject.casefold()):
        return None
    return f"the server's certificate is for {some(names, SHOWN)}, and not for {name}, which the client asked for"


def _no_client_certificate(facts: TlsFacts) -> str | None:
    refused = _alerted(facts, REFUSED, NO_CERTIFICATE, REQUIRED) == 1 - facts.client
    return "the server asks for a client certificate, and the client sends none" if refused and facts.certificate_given is False else None


RULES: tuple[tuple[str, Callable[[TlsFacts], str | None]], ...] = (
    ("tls.no-common-version", _no_common_version),
    ("tls.no-common-cipher", _no_common_cipher),
    ("tls.unknown-authority", _unknown_authority),
    ("tls.certificate-expired", _expired),
    ("tls.another-name", _another_name),
    ("tls.client-certificate-missing", _no_client_certificate),
)


def _alerted(facts: TlsFacts, *numbers: int) -> int | None:
    """The side that sent one of these alerts."""
    return next((one.side for one in facts.alerts if one.number in numbers), None)


def _read(kept: Certificate | str | None) -> Certificate | None:
    return kept if isinstance(kept, Certificate) else None


def _is_for(pattern: str, name: str) -> bool:
    """Return whether a name of a certificate, possibly `*.example`, matches."""
    pattern, name = pattern.casefold(), name.casefold().removesuffix(".")
    return name == pattern or (pattern.startswith("*.") and name.partition(".")[2] == pattern[2:])
