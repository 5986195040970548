"""TLS: what keeps a handshake from its end, a port that is not for it, and what cannot be read without keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..units import duration_text
from .rules import (
    ERROR,
    NOTE,
    PATIENCE_NS,
    SILENT_ADVICE,
    WARNING,
    Closed,
    ConversationContext,
    FindingDraft,
    numbers,
)

TLS_PORTS = frozenset((5551, 7001))
"""Where servers of our protocols speak TLS and nothing else, as they are installed."""

HARMLESS = (None, 0, 90)
"""Alerts that are not errors: encrypted ones, close_notify and user_canceled."""

_CERTIFICATE = (
    "Install the certificate of the server's issuing authority at the client, and connect by a name in the server's certificate; "
    "the client's log has the reason."
)
_LOG = "Check the server's log for the reason."

HANDSHAKE_ERRORS: tuple[tuple[str, str], ...] = (
    ("tls.plain-peer", "Enable or disable TLS at one side, or use the other port: TLS and plain connections use different ports."),
    ("tls.no-common-version", "Allow a TLS version at the server that the client supports, or upgrade the client."),
    ("tls.no-common-cipher", "Allow a cipher suite at the server that the client offers, and check the key type of its certificate."),
    ("tls.unknown-authority", "Install the issuing authority's certificate at the side that rejects the other's."),
    ("tls.certificate-expired", "Renew the certificate, and check the clocks of both sides."),
    ("tls.another-name", "Connect by a name in the certificate, or issue one with the name that clients use."),
    ("tls.client-certificate-missing", "Configure a certificate and its key at the client, or configure the server not to require one."),
)


def handshake_error(name: str) -> Callable[[ConversationContext, Closed], FindingDraft | None]:
    def check(context: ConversationContext, closed: Closed) -> FindingDraft | None:
        cause = closed.tls_errors.get(name) if closed.ours or closed.tls_failed else None
        if cause is None:
            return None
        # The side that objected has continued all the same
        works = closed.tls is not None and closed.tls.complete
        return FindingDraft(cause, (), severity=ERROR if not works else WARNING if name == "tls.certificate-expired" else NOTE)

    return check


def on_plain_port(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    tls = closed.tls
    if not _unheard(closed) or closed.by in (None, tls.client):
        return None
    cause = f"the client begins with TLS, and the server {closed.verb} the connection without an answer: this is probably a plain port"
    return FindingDraft(cause, (), key="plain port")


def _unheard(closed: Closed) -> bool:
    """Whether the server acknowledges the ClientHello, and answers nothing."""
    tls = closed.tls
    if tls is None or tls.last is None or tls.last[0] != tls.client or closed.tls_errors or tls.alerts or closed.lacking or closed.proxy:
        return False
    return tls.version is None and not closed.bytes[1 - tls.client] and closed.packets[1 - tls.client] > 1


def no_answer(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not _unheard(closed) or closed.by not in (None, closed.tls.client):
        return None
    waited = closed.until_ns - closed.tls.last[2]
    if waited < PATIENCE_NS:
        return None
    then = closed.when if closed.by is None else f"when the client {closed.verb} the connection"
    cause = f"the server has not answered the ClientHello for {duration_text(waited)} {then}: perhaps this is a plain port"
    return FindingDraft(cause, (), severity=WARNING if closed.by is None else ERROR, key="no answer")


def plain_on_tls_port(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    server = closed.server
    port = closed.ports[server]
    if port not in TLS_PORTS or closed.client is None or closed.tls is not None or not closed.sizes[1 - server] or closed.sizes[server]:
        return None
    cause = f"the client does not speak TLS, and port {port} is usually that of TLS; the server does not answer"
    return FindingDraft(cause, numbers(context.last[0]))


def alert(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    tls = closed.tls
    if tls is None or closed.tls_errors or context.failed:
        return None
    alert = next((alert for alert in tls.alerts if alert.fatal and alert.number not in HARMLESS), None)
    if alert is None:
        return None
    who = "client" if alert.side == tls.client else "server"
    after = "" if tls.last is None else f" after {_latest(tls)}"
    cause = f"the {who} ends TLS{after}: {alert.name.replace('_', ' ')}"
    return FindingDraft(cause, (), (alert.packet[1],), key=(who, alert.number))


def _latest(tls: Any) -> str:
    """Return the last message of a handshake and its sender."""
    return f"{tls.last[1]} from the {'client' if tls.last[0] == tls.client else 'server'}"


def incomplete(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    tls = closed.tls
    if tls is None or context.failed or tls.last is None or tls.plain_peer is not None or closed.lacking:
        return None
    if tls.sealed_alert is not None:
        return _sealed_alert(closed, *tls.sealed_alert)
    if not closed.handshake_open or not closed.syn:
        return None
    if closed.by is None:
        waited = closed.until_ns - tls.last[2]
        cause = f"the TLS handshake did not complete: nothing follows {_latest(tls)} for {duration_text(waited)} {closed.when}"
        return (
            FindingDraft(cause, (), severity=WARNING, advice=SILENT_ADVICE, key="open") if waited >= PATIENCE_NS and tls.version else None
        )
    if tls.unanswered and closed.by == tls.client and not tls.resumed and tls.last[2] <= closed.until_ns:
        cause = f"the client {closed.verb} the connection silently after it receives the server's certificate: it does not accept the "
        cause += "certificate"
        return FindingDraft(cause, (), advice=_CERTIFICATE, key="certificate")
    cause = f"the TLS handshake did not complete: {closed.who(closed.by)} {closed.verb} the connection after {_latest(tls)}"
    return FindingDraft(cause, (), key=(closed.by, _latest(tls)))


def _sealed_alert(closed: Closed, side: int, time_ns: int) -> FindingDraft | None:
    """A sealed alert in place of what follows in a handshake."""
    if side == closed.tls.client:
        cause = "the client ends TLS with an encrypted alert after it receives the server's certificate: it does not accept the certificate"
        return FindingDraft(cause, (), advice=_CERTIFICATE, key="certificate")
    if closed.ended_ns is not None and closed.ended_ns < time_ns:
        # It answers the end of the other side
        return None
    cause = "the server ends TLS with an encrypted alert once the client has finished: perhaps it requires a client certificate"
    return FindingDraft(cause, (), severity=WARNING, advice=_LOG, key="sealed alert")


def unread(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    unread = closed.expected is not None and closed.verdict.protocol is None and closed.tls is not None
    draft = FindingDraft("the data inside TLS cannot be read without keys", (), key="unread")
    return draft if unread and not (closed.tls_errors or closed.handshake_open or closed.tls.sealed_alert) else None
