"""What may go wrong whatever the protocol: TCP, TLS, requests and answers, the capture itself; and what several conversations tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from streamdump.capture.icmp_dns import TOO_BIG
from streamdump.diagnose.amqp_greeting import said as in_amqp
from streamdump.diagnose.copies import Copies, causes
from streamdump.diagnose.network import NetworkEvidence, Reported
from streamdump.diagnose.rules import (
    ANY,
    CLOSED,
    ERROR,
    EVIDENCE,
    EXCHANGE,
    GAP,
    NOT_DIALLED,
    NOTE,
    PATIENCE_NS,
    WARNING,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    Rule,
    asked_ns,
    is_address,
    last_before,
    later_text,
    numbers,
    packets,
    quoted,
    said,
    since,
    some,
    span_text,
)
from streamdump.model import Exchange, Finding, Gap, Limited, Message, Severity
from streamdump.tcp.signs import LATE_NS, RESETS_KEPT, Reset

PLAIN = Family(())
"""Conversations of no protocol that is known here."""

TLS_PORTS = frozenset((5551, 7001))
"""Where servers of our protocols speak TLS and nothing else, as they are installed."""

HARMLESS = (None, 0, 90)
"""Alerts that end TLS in order: those that nobody can read, close_notify and user_canceled."""

OFTEN = 10
"""What came so often on one connection is told once more at its end."""

SLOW_NS = 1_000_000_000
"""An answer later than this is told."""

STALLED_NS = 1_000_000_000
"""A side that takes nothing for so long holds up the other."""

UNUSED_NS = 10_000_000_000
"""A client that says nothing for so long after it connected does not wait for a moment only."""

LARGE = 1 << 20
"""Frames of this size are over limits that some servers have."""

MISSING = ("lost", "cut", "skipped")
"""How a fault says that bytes are missing, which is told of the capture and not of the message."""

ENDED, ABORTED = "bytes captured", "bytes sent"
"""How a fault says that a frame was not ended: its sender did not say that it sends no more, or the connection ended."""


# TCP


def _unanswered_syn(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not closed.ours or not closed.syn or any(closed.bytes) or closed.packets[1] or closed.how == "FIN":
        # Nobody says FIN on a connection that was not taken
        return None
    tries, passed = closed.packets[0], closed.last[3] - closed.first[3]
    often = f"{tries} SYNs in {span_text(passed)} have" if tries > 1 else "the SYN has"
    error = _reported(closed, 0)
    if error is None and closed.until_ns - closed.first[3] < PATIENCE_NS:
        # The answer may be on its way when the capture ends
        return None
    if error is None:
        return FindingDraft(f"{often} no answer: {closed.endpoints[1]} does not accept this connection", key="unanswered")
    marks = tuple(sorted({*error.packets[: EVIDENCE - 1], closed.last[1]}))
    return FindingDraft(f"{often} no answer: {error.text}", (), marks, advice=_ICMP, key="unanswered")


def _reported(closed: Closed, side: int) -> Reported | None:
    """What ICMP reports most of the segments of a side."""
    return max((one for one in closed.icmp if one.side == side), key=lambda one: one.times, default=None)


def _icmp(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    """Errors that explain no other finding. A sender sends again in smaller packets where one was too big."""
    found = []
    for one in closed.icmp if closed.ours and closed.packets[1] and not context.failed else ():
        if one.reason not in TOO_BIG and closed.signs.unacknowledged[one.side] is None:
            often = f" ({one.times} times)" if one.times > 1 else ""
            cause = f"of the segments of {closed.who(one.side)}, {one.text}{often}"
            found.append(FindingDraft(cause, (), one.packets, NOTE if closed.how == "FIN" else WARNING, key=(one.side, one.reason)))
    return found


def _refused(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    cause = f"{closed.endpoints[1]} refuses the connection: it answers the SYN with RST"
    return FindingDraft(cause, key="refused") if closed.ours and closed.refused and not any(closed.bytes) else None


def _reset_in_handshake(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not closed.ours or closed.how != "RST" or not closed.syn or context.failed or not closed.packets[1]:
        return None
    if context.ready if closed.verdict.protocol is not None else any(closed.bytes) and not closed.shaking_hands:
        return None
    if closed.by == 0 and not any(closed.bytes):
        return FindingDraft(f"{closed.who(closed.by)} opens the connection and resets it unused", (), severity=NOTE, key="unused")
    last = context.last[0] or context.last[1]
    place = f"behind {said(context, last)}" if last is not None else "at once"
    cause = f"{closed.who(closed.by)} resets the connection {place}, before it could be used"
    return FindingDraft(cause, numbers(last), key=(closed.by, place))


def _reset_injected(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    reset = closed.signs.reset
    if reset is None or not closed.ours or not reset.injected or reset.silence is not None:
        return None
    after, last = since(context, closed)
    cause = f"the RST that ends the connection{after} did not come from {closed.name(reset.side)}: {_other_ttl(closed, reset)}"
    severity = WARNING if context.ready else ERROR
    return FindingDraft(cause, numbers(last), (*packets(last), reset.number), severity, key="injected")


def _other_ttl(closed: Closed, reset: Reset) -> str:
    """What shows that a RST is not its sender's."""
    return f"the TTL is {reset.ttl}, that of {closed.name(reset.side)}'s other packets {' or '.join(map(str, reset.others))}"


def _forgotten(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    reset = closed.signs.reset
    if reset is None or reset.silence is None or not closed.ours:
        return None
    silence, sender = reset.silence, 1 - reset.side
    first = context.sent_with(silence.number, closed.endpoints[sender])
    passed = span_text(silence.until_ns - silence.since_ns)
    if first is None:
        what = f"the first packet of {closed.name(sender)} after {passed} of silence"
    else:
        what = f"{first.name} of {closed.name(sender)}, the first message after {passed} of silence,"
    who = f"{closed.name(reset.side)}, or a device between the two,"
    if reset.injected:
        who = f"a device between the two ({_other_ttl(closed, reset)})"
    cause = f"{what} is answered by RST: {who} no longer knew the connection"
    return FindingDraft(cause, numbers(first), (silence.number, reset.number), key="forgotten")


def set_late_aside(context: ConversationContext, closed: Closed) -> None:
    """Forget that requests have no answer that were sent when the other side had ended the connection, and a goodbye that came too late."""
    parted, by, ended_ns = context.parted, closed.by, closed.ended_ns
    if parted is not None and by is not None and ended_ns is not None and parted.src != closed.endpoints[by] and parted.time_ns > ended_ns:
        context.parted, context.goodbye = None, False
    for src, late in zip(closed.endpoints, closed.signs.late, strict=True):
        if late is not None:
            context.unanswered = [one for one in context.unanswered if one.src != src or asked_ns(one) < late.time_ns]


def _sent_late(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side in (0, 1) if closed.ours and not context.failed else ():
        late = closed.signs.late[side]
        if late is None:
            continue
        first = context.sent_with(late.number, closed.endpoints[side])
        name, passed = closed.name(side), late.time_ns - late.since_ns
        if passed < LATE_NS and (first is None or first.name in context.family.goodbye):
            # Of TLS or the protocol, whoever leaves says so all the same
            continue
        what = f"{late.size:,} bytes" if first is None else first.name
        after = since(context, closed)[0] if closed.by == 1 - side else ""
        how = "reset" if late.reset else "closed"
        cause = f"{closed.who(1 - side)} {how} the connection{after}, and {name} sends {what} on it {span_text(passed)} later"
        severity = NOTE if first is not None and first.kind == "one_way" else WARNING if side == closed.server or first is None else ERROR
        found.append(FindingDraft(cause, numbers(first), (late.number,), severity, key=side))
    return found


def _never_acknowledged(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side in (0, 1) if closed.ours else ():
        again = closed.signs.unacknowledged[side]
        if again is None:
            continue
        first = context.sent_with(again.packets[0], closed.endpoints[side])
        what = f"{first.name} of {closed.name(side)}" if first is not None else f"what {closed.name(side)} sends last"
        silence = closed.signs.silence
        if silence is not None and silence.number == again.packets[0]:
            what += f", the first packet after {span_text(silence.until_ns - silence.since_ns)} of silence,"
        cause = f"{what} was sent {again.times} times over {span_text(again.last_ns - again.first_ns)}, and never acknowledged"
        marks, advice, error = again.packets, None, _reported(closed, side)
        if error is not None:
            cause += f": {error.text}"
            marks = tuple(sorted((*marks[: EVIDENCE // 2], *error.packets[: EVIDENCE // 2])))
            advice = _SMALLER if error.reason in TOO_BIG else _ICMP
        found.append(FindingDraft(cause, numbers(first), marks, advice=advice, key=side))
    return found


def _reset_ignored(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side in (0, 1) if closed.ours else ():
        resets = [one for one in closed.signs.ignored if one.side == side]
        for injected in (True, False):
            some_of = [one for one in resets if one.injected == injected]
            if not some_of:
                continue
            count, what, who, behind = "a RST", "its sequence number", "it", "it"
            if len(some_of) > 1:
                more = " or more" if len(closed.signs.ignored) == RESETS_KEPT else ""
                count, what, who, behind = f"{len(some_of)} RSTs{more}", "their sequence numbers", "they", "them"
            why = f"goes on behind {behind}" if any(one.expected for one in some_of) else f"does not expect {what}"
            cause = f"{count} with the address of {closed.name(side)} had no effect: {closed.name(1 - side)} {why}"
            if injected:
                cause += f", and {who} did not come from {closed.name(side)}: {_other_ttl(closed, some_of[0])}"
            marks = tuple(one.number for one in some_of)
            found.append(FindingDraft(cause, (), marks, WARNING if injected else NOTE, key=(side, injected)))
    return found


def _accepted_only(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """A server that accepts a connection and never sends a byte: a proxy without a server behind it, or one that has not started."""
    asked, server = context.last[0], closed.server
    if asked is None or not context.begun or not context.unanswered or not closed.complete or closed.bytes[server] or context.failed:
        return None
    place, passed = f"{closed.endpoints[server]} accepts the connection", max(0, closed.until_ns - asked.time_ns)
    if closed.by == server:
        cause = f"{place} and {closed.verb} it {span_text(passed)} after {said(context, asked)}, without having sent a byte"
        return FindingDraft(cause, numbers(asked), packets(asked), advice=_NOTHING_BEHIND, key=closed.how)
    if passed < PATIENCE_NS:
        return None
    if closed.by is None:
        cause = f"{place} and has sent not one byte in the {span_text(passed)} from {said(context, asked)} until the capture ends"
        return FindingDraft(cause, numbers(asked), packets(asked), WARNING, key="silent")
    cause = f"{place} and sends not one byte in the {span_text(passed)} after {said(context, asked)}, until the client {closed.verb} it"
    return FindingDraft(cause, numbers(asked), packets(asked), key="silent")


def _closed_unused(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not closed.ours or closed.how != "FIN" or closed.by != closed.server or not closed.syn or any(closed.bytes) or any(closed.lost):
        return None
    passed = span_text(closed.until_ns - closed.first[3])
    return FindingDraft(f"the server closes the connection after {passed} in which nobody said anything", (), key="silent")


def _unused(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    passed = closed.until_ns - closed.first[3]
    if not closed.ours or not closed.syn or any(closed.bytes) or not all(closed.packets) or closed.by is not None or passed < UNUSED_NS:
        return None
    return FindingDraft(f"the client connected and has said nothing for {span_text(passed)} {closed.when}", (), key="silent")


def _proxy_unexpected(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    proxy, client = closed.proxy, closed.client
    if proxy is None or client is None or closed.lacking or context.messages[1] or (closed.tls is not None and closed.tls.version):
        return None
    answered = closed.bytes[1 - client]
    if (answered and not closed.ours) or (closed.by == client and closed.bytes[client] == len(proxy.raw)):
        # Of other protocols an answer cannot be told; a balancer that only looks whether the server is there says nothing else
        return None
    what = f"an answer in {closed.verdict.protocol or closed.expected}" if answered else "an answer"
    if closed.by == 1 - client:
        cause = f"the server {closed.verb} the connection without {what}"
    else:
        waited = closed.until_ns - (closed.first[3] if context.last_ns is None else context.last_ns)
        if waited < PATIENCE_NS:
            return None
        then = closed.when if closed.by is None else f"when the client {closed.verb} the connection"
        cause = f"the server has not sent {what} for {span_text(waited)} {then}"
    cause = f"the client begins with a {proxy.name}, and {cause}: the server probably expects no such header"
    return FindingDraft(cause, numbers(context.last[0]), severity=WARNING if closed.by is None else ERROR, key="unexpected")


def _proxy_damaged(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    proxy = closed.proxy
    if proxy is None or proxy.damaged is None:
        return None
    return FindingDraft(f"the {proxy.name} of the client is damaged: {proxy.damaged}", (), (closed.first[1],), key="damaged")


def _other_protocol(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    verdict, expected = closed.verdict, closed.expected
    if verdict.protocol is None:
        if expected is None or verdict.name is None or verdict.name.startswith("TLS"):
            return None
        return FindingDraft(
            f"{closed.port}, but what comes is {verdict.name}{_in_amqp(closed)}",
            (),
            severity=_doubtful(closed),
            key=verdict.name,
        )
    if closed.troubles:
        return None
    known, size = closed.client is not None or not any(context.messages), closed.bytes[closed.server]
    if known and not context.messages[1] and context.messages[0] and size and not closed.lost[closed.server]:
        what = f"the {size} bytes that the server answers are {closed.foreign[closed.server] or 'something else'}"
        return FindingDraft(f"the client speaks {verdict.protocol}, and {what}{_in_amqp(closed)}", numbers(context.last[0]))
    for side, name in enumerate(closed.foreign) if not any(context.messages) else ():
        if name is not None:
            return FindingDraft(f"{closed.who(side)} speaks {name}, where {verdict.protocol} is expected{_in_amqp(closed)}", (), key=name)
    if expected is None or expected.partition("-draft")[0] == verdict.protocol.partition("-draft")[0]:
        return None
    if context.messages[1] or not known:
        return FindingDraft(f"{verdict.protocol} is spoken on the port of {expected}", severity=NOTE, key="works")
    return FindingDraft(f"the client speaks {verdict.protocol} to the port of {expected}, which does not answer", numbers(context.last[0]))


def _in_amqp(closed: Closed) -> str:
    """What was said, where it is AMQP."""
    amqp = any(begun.startswith(b"AMQP") for begun in closed.begun)
    sides = [side for side in (0, 1) if amqp and closed.begun[side][:1] in (b"A", b"\1")]
    return "".join(f"; {closed.who(side)} says {', '.join(in_amqp(closed.begun[side]))}" for side in sides)


def _unknown_bytes(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    verdict, sizes = closed.verdict, closed.sizes
    if verdict.name is not None or not any(sizes) or closed.lacking or any(context.messages) or context.failed or not closed.ours:
        return None
    sent = " and ".join(f"{size:,} byte{'' if size == 1 else 's'} of {closed.who(side)}" for side, size in enumerate(sizes) if size)
    if verdict.protocol is not None:
        severity = ERROR if closed.by == closed.server else WARNING
        return FindingDraft(f"not one frame of {verdict.protocol} is in what comes ({sent})", (), severity=severity, key="unknown")
    return FindingDraft(f"{closed.port}, but nobody knows what comes ({sent})", (), severity=_doubtful(closed), key="unknown")


def _doubtful(closed: Closed) -> Severity | None:
    """The severity of what only a port shows: a note where that may be the client's own."""
    return NOTE if closed.client is None else None


def _lost(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    lost = sum(closed.lost[side] for side in (0, 1) if closed.packets[side])
    cause = f"{lost:,} bytes reached their receiver and are not in the capture: the capture has lost packets, not the network"
    return FindingDraft(cause, (), key="lost") if closed.ours and lost else None


_DIFFERS = (
    "One of the copies is damaged, and the first one was read: look at the note on the next message, and at the frames on both sides."
)


def _retransmitted(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    count = closed.retransmitted
    if any(closed.signs.unacknowledged):
        return None
    what = "1 segment brings" if count == 1 else f"{count:,} segments bring"
    cause = f"{what} bytes that were there already: the network loses some, or the capture has them twice"
    advice = None
    if closed.conflicts:
        others = "1 brings" if closed.conflicts == 1 else f"{closed.conflicts:,} bring"
        cause += f"; {others} other bytes than those that came first"
        advice = _DIFFERS
    return FindingDraft(cause, (), closed.repeated, advice=advice, key="again") if closed.ours and count else None


def _wrong_checksum(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side, count in enumerate(closed.signs.damaged if closed.ours else ()):
        name = closed.name(side)
        what = f"{count:,} segments of {name} have wrong TCP checksums, and were"
        if count == 1:
            what = f"1 segment of {name} has a wrong TCP checksum, and was"
        cause = f"{what} sent again: the network damages packets"
        if count:
            found.append(FindingDraft(cause, (), key=side))
    return found


def _zero_window(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    sides = [(stopped[2], -side, stopped[0]) for side, stopped in enumerate(closed.stopped) if stopped is not None]
    if not sides or not closed.ours:
        return None
    longest, side, packet = max(sides)
    cause = f"{closed.who(-side)} has no room for more (window 0) for {span_text(longest)}: it does not read what comes"
    return FindingDraft(cause, (), (packet,), WARNING if longest >= STALLED_NS else NOTE, key=-side)


def _mid_stream(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    cause = "the capture begins in the middle of the conversation: what was agreed before is not known"
    return FindingDraft(cause, (), (closed.first[1],)) if closed.verdict.protocol is not None and not closed.syn else None


def _snap(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    cause = f"{sum(closed.cut):,} bytes are cut off by the snap length of the capture"
    return FindingDraft(cause, ()) if closed.ours and any(closed.cut) else None


def _one_way(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    for side in (0, 1):
        if closed.ours and not closed.packets[side] and closed.bytes[1 - side]:
            return FindingDraft(f"no packet of {closed.who(side)} was captured, only those to it", ())
    return None


# TLS

TROUBLES: tuple[tuple[str, str], ...] = (
    ("tls.plain-peer", "Switch TLS on or off at one of the two, or go to the other port: that of TLS is not that of plain connections."),
    ("tls.no-common-version", "Allow a version of TLS at the server that the client knows, or bring the client up to date."),
    ("tls.no-common-cipher", "Allow a cipher suite at the server that the client offers, and look at the kind of key its certificate has."),
    ("tls.unknown-authority", "Give the one who complains the certificate of the authority that issued the other's."),
    ("tls.certificate-expired", "Renew the certificate, and look at the clocks of both."),
    ("tls.another-name", "Connect by a name that the certificate has, or issue one with the name that clients use."),
    ("tls.client-certificate-missing", "Configure a certificate and its key at the client, or let the server not ask for one."),
)


def _trouble(name: str) -> Callable[[ConversationContext, Closed], FindingDraft | None]:
    def tell(context: ConversationContext, closed: Closed) -> FindingDraft | None:
        cause = closed.troubles.get(name) if closed.ours or closed.tls_failed else None
        if cause is None:
            return None
        # Whoever was not content has gone on all the same
        works = closed.tls is not None and closed.tls.complete
        return FindingDraft(cause, (), severity=ERROR if not works else WARNING if name == "tls.certificate-expired" else NOTE)

    return tell


def _tls_on_plain_port(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    tls = closed.tls
    if not _unheard(closed) or closed.by in (None, tls.client):
        return None
    cause = f"the client begins with TLS, and the server {closed.verb} the connection without an answer: this is probably a plain port"
    return FindingDraft(cause, (), key="plain port")


def _unheard(closed: Closed) -> bool:
    """Whether the server acknowledges the ClientHello, and answers nothing."""
    tls = closed.tls
    if tls is None or tls.last is None or tls.last[0] != tls.client or closed.troubles or tls.alerts or closed.lacking or closed.proxy:
        return False
    return tls.version is None and not closed.bytes[1 - tls.client] and closed.packets[1 - tls.client] > 1


def _tls_no_answer(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not _unheard(closed) or closed.by not in (None, closed.tls.client):
        return None
    waited = closed.until_ns - closed.tls.last[2]
    if waited < PATIENCE_NS:
        return None
    then = closed.when if closed.by is None else f"when the client {closed.verb} the connection"
    cause = f"the server has not answered the ClientHello for {span_text(waited)} {then}: perhaps this is a plain port"
    return FindingDraft(cause, (), severity=WARNING if closed.by is None else ERROR, key="no answer")


def _plain_on_tls_port(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    port = closed.ports[closed.server]
    plain = (
        closed.client is not None
        and closed.tls is None
        and port in TLS_PORTS
        and closed.sizes[1 - closed.server]
        and not closed.sizes[closed.server]
    )
    cause = f"the client does not speak TLS, and port {port} is usually that of TLS; the server answers nothing"
    return FindingDraft(cause, numbers(context.last[0])) if plain else None


def _tls_alert(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    tls = closed.tls
    if tls is None or closed.troubles or context.failed:
        return None
    alert = next((alert for alert in tls.alerts if alert.fatal and alert.number not in HARMLESS), None)
    if alert is None:
        return None
    who = "client" if alert.side == tls.client else "server"
    after = "" if tls.last is None else f" after {_latest(tls)}"
    cause = f"the {who} ends TLS{after}: {alert.name.replace('_', ' ')}"
    return FindingDraft(cause, (), (alert.packet[1],), key=(who, alert.number))


def _latest(tls: Any) -> str:
    """The last message of a handshake, and whose it is."""
    return f"{tls.last[1]} of the {'client' if tls.last[0] == tls.client else 'server'}"


def _tls_incomplete(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    tls = closed.tls
    if tls is None or context.failed or tls.last is None or tls.plain_peer is not None or closed.lacking:
        return None
    if tls.sealed_alert is not None:
        return _sealed_alert(closed, *tls.sealed_alert)
    if not closed.shaking_hands:
        return None
    if closed.by is None:
        waited = closed.until_ns - tls.last[2]
        cause = f"TLS is not agreed on: nothing follows {_latest(tls)} for {span_text(waited)} {closed.when}"
        return FindingDraft(cause, (), severity=WARNING, advice=_SILENT, key="open") if waited >= PATIENCE_NS and tls.version else None
    if tls.unanswered and closed.by == tls.client and not tls.resumed and tls.last[2] <= closed.until_ns:
        cause = f"the client {closed.verb} the connection silently once it has the server's certificate: it does not accept it"
        return FindingDraft(cause, (), advice=_CERTIFICATE, key="certificate")
    cause = f"TLS is not agreed on: {closed.who(closed.by)} {closed.verb} the connection after {_latest(tls)}"
    return FindingDraft(cause, (), key=(closed.by, _latest(tls)))


def _sealed_alert(closed: Closed, side: int, time_ns: int) -> FindingDraft | None:
    """A sealed alert in place of what follows in a handshake."""
    if side == closed.tls.client:
        cause = "the client ends TLS with a sealed alert once it has the server's certificate: it does not accept it"
        return FindingDraft(cause, (), advice=_CERTIFICATE, key="certificate")
    if closed.ended_ns is not None and closed.ended_ns < time_ns:
        # It answers the end of the other side
        return None
    cause = "the server ends TLS with a sealed alert once the client has finished: perhaps it requires a certificate of the client"
    return FindingDraft(cause, (), severity=WARNING, advice=_LOG, key="sealed alert")


def _tls_unread(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    unread = closed.expected is not None and closed.verdict.protocol is None and closed.tls is not None
    told = FindingDraft("what is said inside of TLS cannot be read without its keys", (), key="unread")
    return told if unread and not (closed.troubles or closed.shaking_hands or closed.tls.sealed_alert) else None


# Requests and answers


def _slow(context: ConversationContext, message: Message) -> FindingDraft | None:
    latency = message.latency_ns or 0
    if latency < SLOW_NS or message.outcome == "refused" or message.name in context.family.patient:
        return None
    return FindingDraft(f"{message.name} was answered after {span_text(latency)}", key=message.name)


def _orphans(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not context.orphans or closed.lacking:
        return None
    found = list(context.orphans.values())
    names = some(dict.fromkeys(one.name for one in found))
    told = f"a response ({names}) answers" if len(found) == 1 else f"{len(found)} responses ({names}) answer"
    return FindingDraft(f"{told} no request that was captured", numbers(*found), packets(*found), key=names)


def _damaged(context: ConversationContext, message: Message) -> FindingDraft | None:
    fault = message.fault
    if (
        fault is None
        or isinstance(fault, Limited)
        or any(word in fault.reason for word in MISSING)
        or not context.begun
        or context.orphans is None
    ):
        return None
    who = message.sender or "one side"
    # A frame that nobody knows has a size that nobody need believe
    known = not message.name.startswith("unknown ")
    if known and fault.reason.endswith((ABORTED, ENDED)):
        context.aborted = message
        return None
    cause = f"{message.name} of the {who} cannot be read: {fault.field} at byte {fault.offset}: {fault.reason}"
    return FindingDraft(cause, key=(message.name, fault.field))


def _missed(context: ConversationContext, gap: Gap) -> FindingDraft | None:
    known, context.orphans = context.orphans is not None, None
    context.lossy = context.lossy or gap.reason != "cut"
    # Behind bytes that the capture lacks nobody knows where a frame begins, or what answers what
    if not known or gap.reason != "skipped" or not context.begun or not context.messages[gap.sender == "server"]:
        return None
    if gap.size is not None and gap.size < context.family.header:
        context.tail = gap
        return None
    return _no_frame(gap)


def _no_frame(gap: Gap) -> FindingDraft:
    size = "some" if gap.size is None else f"{gap.size:,}"
    return FindingDraft(f"{size} bytes of the {gap.sender or 'sender'} are no frame of {gap.protocol}", (), key="skipped")


def _missed_before(context: ConversationContext, message: Message) -> FindingDraft | None:
    """Its sender goes on behind a few bytes that are no frame."""
    gap = context.tail
    if gap is None or message.src != gap.src or message.position <= gap.position:
        return None
    context.tail = None
    return _no_frame(gap)._replace(packets=())


def _aborted(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    message = context.aborted
    if message is None or message.fault is None:
        return None
    sizes = re.sub("[0-9]+", lambda found: f"{int(found[0]):,}", message.fault.reason)
    if closed.by is None:
        cause = f"{message.name} of the {message.sender or 'sender'} is in the capture in part only: {sizes}"
        return FindingDraft(cause, numbers(message), packets(message), NOTE, _ENDED, "tail")
    own = closed.endpoints[closed.by] == message.src
    whose = f"its own {message.name}" if own else f"{message.name} of {closed.who(1 - closed.by)}"
    cause = f"{closed.who(closed.by)} {closed.verb} the connection in the middle of {whose}: {sizes}"
    if own or closed.lacking:
        return FindingDraft(cause, numbers(message), packets(message), WARNING if own else NOTE, key="tail")
    declared = re.search("of ([0-9]+) bytes", message.fault.reason)
    advice = _TOO_LARGE if declared and int(declared[1]) >= LARGE else None
    return FindingDraft(cause, numbers(message), packets(message), ERROR, advice, "tail")


def _tail(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    gap = context.tail
    if gap is None or gap.size is None:
        return None
    side = closed.endpoints.index(gap.src)
    stripped = len(closed.proxy.raw) if closed.proxy is not None and closed.proxy.side == side else 0
    if gap.position + gap.size < closed.bytes[side] - stripped:
        return _no_frame(gap)._replace(rule="skipped", severity=WARNING, advice=_MIXED)
    who = f"{closed.who(side)}: {gap.size:,} bytes of it came"
    if closed.by is None or not closed.ended:
        return FindingDraft(f"the capture ends in the middle of a frame of {who}", (), severity=NOTE, key="tail")
    own = closed.by == side
    whose = f"its own: {gap.size:,} bytes of it came" if own else who
    cause = f"{closed.who(closed.by)} {closed.verb} the connection in the middle of a frame of {whose}"
    return FindingDraft(cause, (), severity=WARNING if own else NOTE, key="tail")


def _id_again(context: ConversationContext, message: Message) -> FindingDraft | None:
    before = context.ids.get((message.sender, message.name, message.id)) if message.kind == "request" and message.id is not None else None
    return _used_again(message, (before, message.number)) if before is not None and not context.family.repeats else None


def _duplicate(context: ConversationContext, exchange: Exchange) -> FindingDraft | None:
    return _used_again(exchange, (exchange.request,)) if exchange.outcome == "superseded" else None


def _used_again(one: Message | Exchange, evidence: tuple[int, ...]) -> FindingDraft:
    ident = "" if one.id is None else f" {one.id}"
    return FindingDraft(f"{one.name} uses the id{ident} again while the request before with it has no answer", evidence, key=one.name)


def _late(context: ConversationContext, exchange: Exchange) -> FindingDraft | None:
    why = {"timeout": "in time", "deadline passed": "before its deadline"}.get(exchange.reason or "")
    told = FindingDraft(f"{exchange.name} was not answered {why}", (exchange.request,), key=exchange.name)
    return told if why is not None and exchange.name not in context.family.counted else None


def _stall_facts(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    """When the server sent anything last, and since when a request is open: of all its connections this shows whether it answers at all."""
    facts = []
    if context.answered_ns is not None:
        facts.append(FindingDraft("", (), (), later=True, rule="server-stalled", alike="answered", at_ns=context.answered_ns))
    if context.family.owed is not None:
        owed = context.family.owed(context)
    else:
        found = [one for one in context.unanswered if one.src == context.client and one.reason in ("closed", "capture ended", "timeout")]
        owed = [(one.request, asked_ns(one)) for one in found]
    owed = [(number, since_ns) for number, since_ns in owed if closed.until_ns - since_ns >= PATIENCE_NS]
    if owed and not closed.lacking:
        number, since_ns = min(owed, key=lambda one: one[1])
        about = f"open {context.conversation}"
        facts.append(FindingDraft("", (number,), later=True, rule="server-stalled", alike=about, at_ns=since_ns))
    return facts


def _often(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    count, one, _ = max(context.found.values(), key=lambda found: found[0], default=(0, None, False))
    if one is None or count < OFTEN or one.severity == NOTE:
        return None
    return FindingDraft(f"the same {count:,} times on this connection: {one.cause}", tuple(one.messages), tuple(one.packets), key="often")


def _refusals(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """What comes behind the first of several refusals that are one finding."""
    total = sum(context.refusals.values())
    every = some([f"{count:,} of {what}" for what, count in context.refusals.items()])
    cause = f"{total:,} requests are refused on this connection: {every}"
    return FindingDraft(cause, (), key="all", advice=context.family.refusals) if context.untold else None


def _open_requests(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    aside = context.family.counted | (context.family.goodbye if context.dismissed else frozenset())
    cut = context.aborted.number if context.aborted is not None and closed.ended else None
    found = [
        one for one in context.unanswered if one.reason in ("closed", "capture ended") and one.name not in aside and one.request != cut
    ]
    if not found:
        return None
    count, asked = len(found), tuple(one.request for one in found)
    names = some(dict.fromkeys(one.name for one in found))
    what = f"{names} has no answer" if count == 1 else f"{count} requests{' or more' if count > 7 else ''} ({names}) have no answer"
    if not closed.ended or closed.by is None:
        if _stands_still(context, closed):
            return None
        waited = max(one.waited_ns or 0 for one in found)
        soon = waited < PATIENCE_NS or context.failed or closed.lacking
        told = f"when the capture ends{later_text(waited)}" if soon else f"for {span_text(waited)} when the capture ends"
        return FindingDraft(f"{what} {told}", asked, severity=NOTE if soon else WARNING, advice=_SILENT, key=names)
    after, _ = since(context, closed)
    if context.failed or not all(closed.packets):
        return None
    owed = any(one.src != closed.endpoints[closed.by] for one in found)
    severity = ERROR if owed and closed.by != closed.client else WARNING if not owed else NOTE
    cause = f"{closed.who(closed.by)} {closed.verb} the connection{after}, while {what}"
    return FindingDraft(cause, asked, severity=severity, key=(closed.by, names))


def _closed_by_server(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not context.ready or closed.by != closed.server or context.goodbye or not context.messages[1] or not context.family.goodbye:
        return None
    if context.unanswered or context.failed or closed.injected:
        return None
    after, last = since(context, closed)
    # Of packets that were captured in another order nobody knows who was first
    severity = NOTE if closed.muddled else WARNING
    cause = f"the server {closed.verb} the connection{after}, without a goodbye"
    return FindingDraft(cause, numbers(last), severity=severity, key=closed.how)


def _no_goodbye(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not context.ready or closed.by is None or closed.by != closed.client or context.goodbye or not context.family.goodbye:
        return None
    if closed.injected:
        return None
    last = last_before(context, closed)
    return FindingDraft(f"the client leaves without a goodbye ({some(sorted(context.family.goodbye))})", numbers(last), key="no goodbye")


def _stands_still(context: ConversationContext, closed: Closed) -> bool:
    """Whether the handshake was begun, and nothing explains why it was not ended."""
    return context.missing() is not None and context.begun and not context.failed and not closed.lacking


def _incomplete(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    missing = context.missing()
    if not _stands_still(context, closed) or (context.worst is not None and context.worst.rule == "tcp.accepted-only"):
        return None
    reached, (after, last) = context.reached(), since(context, closed)
    place = f"the handshake gets as far as {reached}"
    if closed.by is None or not closed.ended:
        waited = 0 if context.last_ns is None else closed.until_ns - context.last_ns
        silent = "" if last is None else f" after {said(context, last)}"
        evidence = dict.fromkeys((*(one.request for one in context.unanswered), *numbers(last)))
        cause = f"{place}; nothing more comes{silent} until the capture ends{later_text(waited)}"
        return FindingDraft(cause, tuple(evidence), severity=WARNING if waited >= PATIENCE_NS else NOTE, advice=_SILENT, key=reached)
    asks = any(one.src == closed.endpoints[closed.by] for one in context.unanswered)
    severity = NOTE if closed.by == closed.client and not asks else ERROR
    cause = f"{place}: {closed.who(closed.by)} {closed.verb} the connection{after}, before {missing}"
    return FindingDraft(cause, numbers(last), packets(last), severity, key=(reached, closed.by))


_CERTIFICATE = (
    "Give the client the certificate of the authority that issued the server's, and connect by a name that the server's has; "
    "the log of the client says what it did not like."
)
_SPEAK_FIRST = "Clients speak first here: look at what this one waits for, or whether a proxy in front of the server has none behind it."
_ICMP = "Look at the host that reports this: at its firewall, its routes, and whether what it names is up."
_SMALLER = "Let this ICMP reach the sender, which then sends smaller packets, or set a smaller MTU at its interface."
_LOG = "Look in the log of the server for what it did not like."
_SILENT = "Look in the log of the side that stays silent for the time of the last packet that is named."
_ENDED = "Look at why the connection or the capture ended here."
_CUT_OFF = "Look at why the connection ended: this frame is lost."
_TOO_LARGE = "Send smaller batches, or raise the limit on the size of a request at the server; its log has the reason."
_NOTHING_BEHIND = "Check that a server runs behind this port: a proxy, or a published port of a container, accepts connections without one."
_MIXED = "Look whether a sender mixes something else into the connection."

SENT_LATE = Rule(
    "tcp.sent-after-end",
    ERROR,
    CLOSED,
    _sent_late,
    "Let this side notice that the other one ended the connection, and open another one; look in the log of the other for why it did.",
)

FIRST: tuple[Rule, ...] = (
    Rule(
        "tcp.reset-injected",
        WARNING,
        CLOSED,
        _reset_injected,
        "Look for a firewall, load balancer or NAT between the two that resets connections; if it resets idle ones, "
        "use heartbeats or TCP keep-alives more often than it does.",
    ),
    Rule(
        "tcp.forgotten",
        ERROR,
        CLOSED,
        _forgotten,
        "Use heartbeats or TCP keep-alives more often than the idle timeout of firewalls, load balancers and NAT between the two; "
        "look whether the server was restarted, too.",
    ),
    Rule(
        "tcp.never-acknowledged",
        WARNING,
        CLOSED,
        _never_acknowledged,
        "Look for what drops these packets: a firewall or NAT that has forgotten the connection, a link with a smaller MTU, or a host that "
        "is gone.",
    ),
    Rule(
        "tcp.proxy-header-unexpected",
        ERROR,
        CLOSED,
        _proxy_unexpected,
        "Let the server expect PROXY headers on this port (RabbitMQ: proxy_protocol of its stream plugin), or the load balancer send none.",
    ),
    Rule("tcp.proxy-header-damaged", WARNING, CLOSED, _proxy_damaged, "Look at the load balancer that sends it."),
)
"""Asked before those of the family: what TCP shows explains what comes of it."""

COMMON: tuple[Rule, ...] = (
    Rule(
        "tcp.unanswered",
        ERROR,
        CLOSED,
        _unanswered_syn,
        "Check the address, that the server runs and accepts connections in time, and that no firewall on the way drops the packets.",
    ),
    Rule("tcp.icmp", WARNING, CLOSED, _icmp, _ICMP),
    Rule("tcp.refused", ERROR, CLOSED, _refused, "Check that the server runs and listens on this address and port, not on another one."),
    Rule(
        "tls.on-plain-port",
        ERROR,
        CLOSED,
        _tls_on_plain_port,
        "Connect to the port on which the server speaks TLS, or switch TLS off at the client.",
    ),
    Rule("tls.no-answer", ERROR, CLOSED, _tls_no_answer, "Look whether the server speaks TLS on this port, and whether it still runs."),
    Rule(
        "tls.plain-on-tls-port",
        ERROR,
        CLOSED,
        _plain_on_tls_port,
        "Switch TLS on at the client, or connect to the port for plain connections.",
    ),
    *[Rule(name, ERROR, CLOSED, _trouble(name), advice) for name, advice in TROUBLES],
    Rule("tls.alert", ERROR, CLOSED, _tls_alert, "Look in the log of the side that sent the alert for what it did not like."),
    Rule("tls.incomplete", ERROR, CLOSED, _tls_incomplete, "Look in the log of the side that closed for what it did not like."),
    Rule("tcp.other-protocol", ERROR, CLOSED, _other_protocol, "Check the port at the client: this one is for something else."),
    Rule(
        "tcp.accepted-only",
        ERROR,
        CLOSED,
        _accepted_only,
        "Check that the server has started and is not stuck, and that a proxy in front of it, or a published port, has it as its target.",
    ),
    Rule("frame-cut-off", NOTE, CLOSED, _aborted, _CUT_OFF),
    Rule(
        "open-requests",
        WARNING,
        CLOSED,
        _open_requests,
        "Look in the log of the side that closed for the time of the last packet that is named.",
    ),
    Rule("tcp.closed-unused", WARNING, CLOSED, _closed_unused, _SPEAK_FIRST),
    Rule("tcp.unused", WARNING, CLOSED, _unused, _SPEAK_FIRST),
    Rule("tcp.reset-in-handshake", ERROR, CLOSED, _reset_in_handshake, "Look in the log of the side that resets for the reason."),
    Rule(
        "handshake-incomplete",
        ERROR,
        CLOSED,
        _incomplete,
        "Look in the log of the side that closed for the time of the last message.",
    ),
    Rule(
        "closed-by-server",
        WARNING,
        CLOSED,
        _closed_by_server,
        "Look in the log of the server: somebody closed the connection, or it was stopped.",
    ),
    SENT_LATE,
    Rule("no-goodbye", NOTE, CLOSED, _no_goodbye, "Let the client close in the way of the protocol, if it did not break down here."),
    Rule(
        "tcp.unknown-bytes",
        WARNING,
        CLOSED,
        _unknown_bytes,
        "Check what runs on this port; -d tcp.port==N,PROTOCOL has it read all the same.",
    ),
    Rule("server-stalled", NOTE, CLOSED, _stall_facts, _SILENT),
    Rule("again-and-again", WARNING, CLOSED, _often, "Look at the first of them, and at why the client goes on asking."),
    Rule("refused", NOTE, CLOSED, _refusals, "streamdump -Y 'outcome == refused' shows each of them."),
    Rule("tcp.lost-by-capture", WARNING, CLOSED, _lost, "Capture again with a larger buffer (-B) or a narrower filter (-f)."),
    Rule(
        "tcp.reset-ignored",
        NOTE,
        CLOSED,
        _reset_ignored,
        "Look for a firewall or intrusion prevention system that resets connections, where several come or the TTL differs.",
    ),
    Rule("tcp.retransmitted", NOTE, CLOSED, _retransmitted, "Look at the network between the two if it is slow; else it is of no concern."),
    Rule(
        "tcp.damaged",
        NOTE,
        CLOSED,
        _wrong_checksum,
        "Look at the cables, network cards and drivers between the two where this happens often.",
    ),
    Rule(
        "tcp.zero-window",
        WARNING,
        CLOSED,
        _zero_window,
        "Look at what keeps this side from reading: it is busy, or waits for something else.",
    ),
    Rule("tcp.mid-stream", NOTE, CLOSED, _mid_stream, "Begin the capture before the client connects to see the handshake, too."),
    Rule("tcp.snap-length", NOTE, CLOSED, _snap, "Capture whole packets: -s 262144."),
    Rule("tcp.one-direction", NOTE, CLOSED, _one_way, "Capture where the packets of both directions pass."),
    Rule("tls.unread", NOTE, CLOSED, _tls_unread, "Give the keys with --keylog FILE; clients write them where SSLKEYLOGFILE says."),
    Rule("slow", WARNING, ANY, _slow, "streamdump latency shows whether all requests of this kind are slow."),
    Rule(
        "answer-without-request",
        WARNING,
        CLOSED,
        _orphans,
        "Look whether the server answers twice, or a proxy in between mixes connections up.",
    ),
    Rule("damaged", WARNING, ANY, _damaged, "Look at the message with -V -x: its sender writes what the protocol does not allow."),
    Rule("skipped", WARNING, GAP, _missed, _MIXED),
    Rule("skipped", WARNING, ANY, _missed_before, _MIXED),
    Rule("frame-cut-off", NOTE, CLOSED, _tail, _CUT_OFF),
    Rule("duplicate-id", WARNING, ANY, _id_again, "Let the client give every open request an id of its own."),
    Rule("duplicate-id", WARNING, EXCHANGE, _duplicate, "Let the client give every open request an id of its own."),
    Rule("late", WARNING, EXCHANGE, _late, "Look at what keeps the server busy; streamdump latency shows the others."),
)


# Several conversations


class Failed(msgspec.Struct):
    """One trouble with one server, which came in one or several conversations."""

    rule: str
    severity: Severity
    cause: str
    alike: str
    """The cause without its numbers, by which it is the same."""
    protocol: str
    client: str | None
    server: str | None
    places: tuple[str, ...] = ()
    conversations: int = 0
    latest: int = -1
    first_ns: int = 0
    last_ns: int = 0
    hosts: dict[str, int] = msgspec.field(default_factory=dict)
    messages: list[int] = msgspec.field(default_factory=list)
    packets: list[int] = msgspec.field(default_factory=list)

    def add(self, context: ConversationContext, finding: Finding, came_ns: int) -> None:
        """The trouble came once more, at this time."""
        if context.conversation != self.latest:
            self.conversations += 1
            self.latest = context.conversation
            self._note({(context.client or "").rpartition(":")[0]: 1})
        if not self.first_ns or came_ns < self.first_ns:
            self.first_ns, self.cause = came_ns, finding.cause
        self.last_ns = max(self.last_ns, came_ns)
        if len(self.messages) < EVIDENCE:
            self.messages += finding.messages[-1:]
        if len(self.packets) < EVIDENCE:
            self.packets += finding.packets[-1:]

    def merge(self, other: Failed) -> None:
        """All that was seen of it elsewhere, in other conversations."""
        self.conversations += other.conversations
        self.first_ns, self.cause = min((self.first_ns, self.cause), (other.first_ns, other.cause))
        self.last_ns = max(self.last_ns, other.last_ns)
        self._note(other.hosts)
        self.messages = [*self.messages, *other.messages][:EVIDENCE]
        self.packets = [*self.packets, *other.packets][:EVIDENCE]

    def _note(self, hosts: dict[str, int]) -> None:
        for host, count in hosts.items():
            if host in self.hosts or len(self.hosts) < HOSTS_KEPT:
                self.hosts[host] = self.hosts.get(host, 0) + count

    def evidence(self, cause: str) -> FindingDraft:
        return FindingDraft(cause, tuple(self.messages), tuple(self.packets))


class Overview(NamedTuple):
    """What several conversations tell: all troubles that are not mere notes, the findings that send clients to other endpoints by these,
    the endpoints that somebody connected to, the troubles that are none by themselves (`FindingDraft.later`), the hosts that do what
    they came for, by endpoint how many connections were accepted there, what ICMP and DNS say, which connections may be copies of others,
    and when the capture ends."""

    failed: list[Failed]
    sent: dict[tuple[str, ...], Finding]
    dialled: dict[str, None]
    later: list[Failed]
    active: dict[str, None]
    accepted: dict[str, int]
    network: NetworkEvidence
    copies: Copies
    end_ns: int
    """When the last of all came."""

    def accepts(self, server: str | None) -> bool:
        """Whether a server accepted a connection, or may have."""
        return server in self.accepted or len(self.accepted) >= ACCEPTED_KEPT

    def facts(self, rule: str) -> list[Failed]:
        """Return the facts of a kind (`fact`), the first before the others."""
        found = [one for one in self.later if one.rule.partition(".")[2] == rule]
        return sorted(found, key=lambda one: (one.first_ns, one.client or ""))


class Across(NamedTuple):
    """A rule about several conversations: returns each finding with one that it takes client, server and protocol from."""

    name: str
    severity: Severity
    tell: Callable[[Overview], Iterator[tuple[FindingDraft, Failed | Finding]]]
    advice: str


HOSTS_KEPT = 16
"""So many clients are told apart that have the same trouble."""

SAME = 3
"""So many times make a habit."""

LOST_NS, SOON_NS = 10_000_000_000, 5_000_000_000
"""A client that lost its stream should have found it again by then; and a server reports a loss, and a client tries again, by then."""

ACCEPTED_KEPT = 4_096
"""So many endpoints that accepted connections are remembered."""

_NOT_ACCEPTED = ("tcp.refused", "tcp.unanswered")
_TCP_ENDS = (*_NOT_ACCEPTED, "tcp.accepted-only", "tcp.reset-in-handshake")


def _by_server(seen: Overview, rules: tuple[str, ...]) -> list[Failed]:
    """The troubles of these rules, those with one server together: causes name how many SYNs there were, and when."""
    found: dict[tuple[str, str | None], Failed] = {}
    for one in seen.failed:
        if one.rule in rules and (one.rule, one.server) in found:
            found[one.rule, one.server].merge(one)
        elif one.rule in rules:
            found[one.rule, one.server] = msgspec.structs.replace(one, hosts={**one.hosts})
    return list(found.values())


def _everybody(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in _by_server(seen, _TCP_ENDS):
        if one.conversations < SAME or len(one.hosts) == 1 or (one.rule in _NOT_ACCEPTED and seen.accepts(one.server)):
            continue
        of = f"{one.conversations:,} connections of {len(one.hosts)} clients{' or more' if len(one.hosts) == HOSTS_KEPT else ''}"
        if one.rule == "tcp.unanswered":
            yield one.evidence(f"nothing at {one.server} accepts connections: {of} have no answer"), one
        else:
            yield one.evidence(f"{one.server} turns everybody away: {of}"), one


def _not_all_accepted(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in _by_server(seen, ("tcp.unanswered",)):
        accepted, count = seen.accepted.get(one.server or "", 0), one.conversations
        what = f"{count:,} of {count + accepted:,} connections to {one.server} {'has' if count == 1 else 'have'} no answer"
        if accepted:
            yield one.evidence(f"{what}; it accepted the other{'' if accepted == 1 else 's'}"), one


def _copied(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for cause, marks, one in causes(seen.copies.found()):
        where = Failed("tcp.captured-twice", NOTE, cause, cause, one.protocol, one.client, one.server, last_ns=one.time_ns)
        yield FindingDraft(cause, packets=marks), where


def _retries(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in seen.failed:
        host = next((host for host, times in one.hosts.items() if times >= SAME), None)
        if one.severity == ERROR and host is not None and not (one.rule in _NOT_ACCEPTED and seen.accepts(one.server)):
            each = (one.last_ns - one.first_ns) // max(1, one.conversations - 1)
            often = f", one every {span_text(each)}" if each else ""
            cause = (
                f"{host} tries again and again: {one.hosts[host]:,} connections to {one.server}{often}, and each time the same: {one.cause}"
            )
            yield one.evidence(cause), one


def _same(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in seen.failed:
        looped = one.severity == ERROR and max(one.hosts.values(), default=0) >= SAME
        if one.conversations >= SAME and not looped and one.rule not in _TCP_ENDS and not one.rule.endswith(".again-and-again"):
            yield one.evidence(f"the same in {one.conversations:,} conversations with {one.server}: {one.cause}"), one


def _unreachable(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """Clients are sent where nobody answers."""
    for places, finding in seen.sent.items():
        for one in seen.failed:
            if one.server in places and one.rule in _TCP_ENDS and not (one.rule in _NOT_ACCEPTED and seen.accepts(one.server)):
                cause = f"clients are sent to {one.server}, where they do not get through: {one.cause}"
                yield FindingDraft(cause, (*finding.messages, *one.messages), (*finding.packets, *one.packets)), finding
                break


def _never_dialled(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """Clients are sent elsewhere and go nowhere. Whoever only opened a connection and left does that often, if this is why."""
    explained = {one.server for _, one in _never_leader(seen) if isinstance(one, Failed)}
    for one in seen.facts("advertised-not-dialled"):
        if one.server in explained or any(seen.network.unresolved(place.rpartition(":")[0]) for place in one.places):
            continue
        lost = [host for host in one.hosts if host not in seen.active]
        tries = one.conversations if one.last_ns - one.first_ns <= one.conversations * SOON_NS else 0
        if lost and (one.severity != NOTE or tries >= SAME) and not any(_dialled(seen, one, place) for place in one.places):
            yield one.evidence(f"{some(lost)} {one.cause}, and no connection to there is in the capture"), one


def _unresolved(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """Clients are sent to a name that has no address."""
    told: list[tuple[tuple[str, ...], str | None, Failed | Finding]] = [(places, one.src, one) for places, one in seen.sent.items()]
    told += [(one.places, one.server, one) for one in (*seen.facts("advertised-name"), *seen.facts("advertised-not-dialled"))]
    done = set()
    for place, server, one in [(place, server, one) for places, server, one in told for place in places]:
        host = place.rpartition(":")[0]
        answers = None if is_address(host) or host in done else seen.network.unresolved(host)
        if answers is not None:
            done.add(host)
            often = f", {answers.times} times" if answers.times > 1 else ""
            cause = f"{server} sends clients to {place}, and the name has no address: DNS answers {answers.failure}{often}"
            yield (
                FindingDraft(cause, tuple(one.messages), tuple(sorted((*one.packets[: EVIDENCE // 2], *answers.packets[: EVIDENCE // 2])))),
                one,
            )


def _dialled(seen: Overview, one: Failed, place: str) -> bool:
    """Whether somebody connected there: of a name nobody knows what it stands for."""
    host, _, port = place.rpartition(":")
    return place in seen.dialled if is_address(host) else any(each != one.server and each.endswith(f":{port}") for each in seen.dialled)


def _deleted(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A stream is deleted by one client and missed by another."""
    deleted: dict[str, list[Failed]] = {}
    for one in seen.facts("stream-deleted"):
        deleted.setdefault(one.places[0], []).append(one)
    every = sorted((one for one in seen.facts("stream-lost") if one.last_ns), key=lambda one: one.places[3] == "refused")
    refused = {_whose(one): one for one in every if one.places[3] == "refused"}
    then = {kind: {one.alike: one.last_ns for one in seen.facts(kind)} for kind in ("stream-used", "stream-unsure", "leader-named")}
    reported: dict[str, str] = {}
    for lost in every:
        (stream, did, _, how), about = lost.places, _whose(lost)
        by = next((one for one in _deletions(deleted, stream) if one.client != lost.client and _before(one, lost, how)), None)
        if how == "refused" and by is not None and about not in reported:
            wanted_ns = lost.first_ns if lost.first_ns >= by.last_ns else lost.last_ns
            cause, severity = f"{by.client} deleted {by.cause} {span_text(wanted_ns - by.last_ns)} before {lost.client} {did} it", ERROR
        elif how != "refused" and then["stream-used"].get(about, 0) <= lost.last_ns:
            after = _after_loss(seen, lost, by is None, refused.get(about), then)
            if after is None:
                continue
            what = (
                f"{by.client} deleted {by.cause}"
                if by
                else f"the stream {quoted(stream)} was deleted or moved (no Delete is in the capture)"
            )
            cause, severity = (
                f"{what} while {lost.client} {did} it; {after}",
                ERROR if by and about not in then["stream-unsure"] else WARNING,
            )
        else:
            continue
        if cause not in reported.values():
            known = [one for one in (by, lost) if one is not None]
            evidence = tuple(number for one in known for number in one.messages), tuple(packet for one in known for packet in one.packets)
            yield FindingDraft(cause, *evidence, severity), lost
        reported[about] = cause


def _whose(lost: Failed) -> str:
    """A stream, and the host that lost it."""
    return f"{lost.places[0]} {(lost.client or '').rpartition(':')[0]}"


def _after_loss(seen: Overview, lost: Failed, unexplained: bool, refused: Failed | None, then: dict[str, dict[str, int]]) -> str | None:
    """What a client did after it lost a stream; None where it did what it should, as far as the capture shows."""
    about, waited = _whose(lost), seen.end_ns - lost.last_ns
    if refused is not None and refused.last_ns > lost.last_ns:
        return f"that client {refused.places[1]} it again and was refused"
    # A client that looked the stream up may go on at a server that is not captured
    if waited < LOST_NS or (unexplained and (about in then["stream-unsure"] or then["leader-named"].get(about, 0) > lost.last_ns)):
        return None
    if about in then["stream-unsure"]:
        return "the capture lacks packets that would show whether that client came back"
    return f"that client {lost.places[2]} again in the {span_text(waited)} until the capture ends"


def _deletions(deleted: dict[str, list[Failed]], stream: str) -> Iterator[Failed]:
    """What deleted a stream, or what it is in: the super stream of a partition, the stream of a topic of Iggy."""
    yield from deleted.get(stream, ())
    for separator in "-/":
        for one in deleted.get(stream.rpartition(separator)[0], ()):
            if one.places[1] == separator:
                yield one


def _before(deleted: Failed, lost: Failed, how: str) -> bool:
    """Whether a stream was lost because it was deleted: the server reports this at once, to whoever uses it, and then to who asked."""
    passed = lost.last_ns - deleted.last_ns
    return passed >= 0 if how == "refused" else abs(passed) < SOON_NS


def _stalled(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A server that answered, and from some time on answers nobody."""
    facts = seen.facts("server-stalled")
    answered = {one.server: one.last_ns for one in facts if one.alike == "answered"}
    waiting: dict[str | None, list[Failed]] = {server: [] for server in answered}
    for one in facts:
        if one.alike != "answered" and one.server in answered and one.first_ns > answered[one.server] - PATIENCE_NS:
            waiting[one.server].append(one)
    for server, found in waiting.items():
        if len(found) < SAME or seen.end_ns - max(answered[server], found[0].first_ns) < PATIENCE_NS:
            continue
        clients = {(one.client or "").rpartition(":")[0] for one in found}
        whose = f"{len(found):,} connections of {len(clients):,} clients" if len(clients) > 1 else f"{len(found):,} connections"
        passed = span_text(seen.end_ns - found[0].first_ns)
        cause = f"{server} answers nobody any more: requests of {whose} have no answer, the first was sent {passed} before the capture ends"
        evidence = tuple(number for one in found for number in one.messages), tuple(packet for one in found for packet in one.packets)
        yield FindingDraft(cause, *evidence), found[0]


def _never_leader(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A client opens connections through a load balancer until one leads to the leader of its stream, which none does."""
    landed: dict[tuple[str | None, str], list[Failed]] = {}
    for one in seen.facts("landed"):
        landed.setdefault((one.server, (one.client or "").rpartition(":")[0]), []).append(one)
    for wanted in seen.facts("leader-named"):
        (stream, leader), host = wanted.places, (wanted.client or "").rpartition(":")[0]
        every = landed.get((wanted.server, host), [])
        unused = [one for one in every if one.places[1] != "used" and one.last_ns >= wanted.first_ns]
        # Those that asked for the leader are counted where every one did
        left = [one for one in unused if one.places[1] == "left"] or unused
        count = sum(one.conversations for one in left)
        passed = max((one.last_ns for one in left), default=0) - min((one.first_ns for one in left), default=0)
        if count < SAME or passed > count * SOON_NS or any(one.places[0] == leader for one in every) or _dialled(seen, wanted, leader):
            # Whoever looks from time to time whether the server is there wants no leader
            continue
        led = some([f"{one.places[0]} ({one.conversations:,})" for one in left])
        cause = f"{host} opened {count:,} connections to {wanted.server} and used none: they led to {led}, never to {leader}"
        messages = [*wanted.messages, *(number for one in left for number in one.messages)]
        marks = [*wanted.packets, *(packet for one in left for packet in one.packets)]
        yield FindingDraft(f"{cause}, the leader of {quoted(stream)}", tuple(messages), tuple(marks)), wanted


def _redelivered(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A single active consumer begins before the offset up to which the one before it got."""
    groups: dict[tuple[str, ...], list[tuple[list[int], Failed]]] = {}
    for one in seen.facts("offsets-delivered"):
        groups.setdefault(one.places[:2], []).append((list(map(int, one.places[2:])), one))
    for (stream, group), every in groups.items():
        ended = sorted(every, key=lambda found: found[0][-1])
        at, stored, before = 0, -1, None
        for (first, last, _, began_ns, _), one in sorted(every, key=lambda found: found[0][-2]):
            while at < len(ended) and ended[at][0][-1] <= began_ns:
                before, stored, at = ended[at], max(stored, ended[at][0][2]), at + 1
            if before is None or first > before[0][1]:
                continue
            (since, got, *_), prior = before
            stale = first <= (stored if stored >= 0 else since)
            again = f"offset {first:,}" if first == min(last, got) else f"offsets {first:,} to {min(last, got):,}"
            although = f", although offset {stored:,} had been stored" if stale and stored >= 0 else ""
            change = f"changed from {prior.client} to {one.client}, which"
            if prior.client == one.client:
                change = f"became active again at {one.client}, and"
            cause = f"the single active consumer {quoted(group)} of {quoted(stream)} {change} gets {again} again{although}"
            evidence = (*prior.messages, *one.messages), (*prior.packets, *one.packets)
            yield FindingDraft(cause, *evidence, None if stale else NOTE), one


ACROSS: tuple[Across, ...] = (
    Across(
        "server-stalled",
        ERROR,
        _stalled,
        "Look at the server first (CPU, memory, disks, its log) for the time of the first packet that is named: all clients wait for it.",
    ),
    Across(
        "stream-deleted",
        ERROR,
        _deleted,
        "Find out why it was deleted, and create it again if it is needed; let clients look up a stream that they lost, and go on there.",
    ),
    Across(
        "advertised-unreachable",
        ERROR,
        _unreachable,
        "Let the server advertise a host and port that clients reach, and look whether a firewall is in the way.",
    ),
    Across(
        "never-at-the-leader",
        WARNING,
        _never_leader,
        "Look whether the load balancer has the leader among its targets and the leader is up, or let clients connect to it directly.",
    ),
    Across(
        "advertised-unresolved",
        WARNING,
        _unresolved,
        "Let the server advertise a name or an address that clients can resolve, or add the name to the DNS that they ask.",
    ),
    Across("advertised-not-dialled", WARNING, _never_dialled, NOT_DIALLED),
    Across(
        "tcp.not-all-accepted",
        WARNING,
        _not_all_accepted,
        "Look whether the server accepts connections in time (its listen queue, its limits); the address is right.",
    ),
    Across(
        "tcp.captured-twice",
        NOTE,
        _copied,
        "Capture on one interface only, or leave one of the two out with -Y (by src, dst or conversation), where numbers or times count.",
    ),
    Across(
        "redelivered",
        WARNING,
        _redelivered,
        "Let a consumer that becomes active ask for the stored offset (QueryOffset), and answer ConsumerUpdate with the one after it.",
    ),
    Across("tcp.turns-everybody-away", ERROR, _everybody, "Look at the server first: no client gets through."),
    Across("retry-loop", ERROR, _retries, "Mend the cause that is named, and let the client wait longer from one attempt to the next."),
    Across("again-and-again", WARNING, _same, "Look at what these clients have in common: a configuration, a version, a stream."),
)
