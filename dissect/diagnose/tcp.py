"""What reassembly shows of a connection: refused, reset, never used, another protocol than the port's; and what the capture lacks of it."""

from __future__ import annotations

from ..capture.icmp_dns import TOO_BIG
from ..model import Severity
from ..protocols import BY_NAME
from ..tcp.signs import LATE_NS, MAX_RESETS, Reset
from ..units import count, duration_text
from .amqp_greeting import said as in_amqp
from .network import Reported
from .rules import (
    ERROR,
    EVIDENCE,
    NOTE,
    PATIENCE_NS,
    WARNING,
    Closed,
    ConversationContext,
    FindingDraft,
    asked_ns,
    numbers,
    packets,
    said,
    since,
)

NORMAL = (1000, 1001)
"""Codes of a WebSocket Close that report no error: normal closure, going away."""

STALLED_NS = 1_000_000_000
"""Duration of a zero window that stalls the other side."""

FIRST_BYTES = 16
"""Bytes that may be too few to recognise a protocol."""

UNUSED_NS = 10_000_000_000
"""Silence of a client after connecting that is reported."""

ICMP_ADVICE = "Check the host that reports this: its firewall, its routes, and whether the destination is up."
_SMALLER = "Let this ICMP reach the sender, which then sends smaller packets, or set a smaller MTU at its interface."
_NOTHING_BEHIND = "Check that a server runs on this port: a proxy, or a published port of a container, accepts connections without one."


_COMPLETE = "Capture complete packets (-s 262144) from before the client connects."
_UNKNOWN_INSIDE = "Check what runs on this port; -d tcp.port==N,PROTOCOL decodes it anyway."
_HEALTH_CHECK = "No action needed if a load balancer or a monitor does this; otherwise check the log of the client."
_SERVED = "Check that the server serves WebSocket on this port and is not stuck, and the proxy in front of it."


def unanswered_syn(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if closed.packets[1] or closed.how == "FIN":
        # Nobody sends FIN on a connection that was not accepted
        return None
    tries, passed = closed.packets[0], closed.last[3] - closed.first[3]
    often = f"{tries} SYNs in {duration_text(passed)} have" if tries > 1 else "the SYN has"
    error = _reported(closed, 0)
    if error is None and closed.until_ns - closed.first[3] < PATIENCE_NS:
        # The answer may be on its way when the capture ends
        return None
    if error is None:
        return FindingDraft(f"{often} no answer: {closed.endpoints[1]} does not accept this connection", key="unanswered")
    marks = tuple(sorted({*error.packets[: EVIDENCE - 1], closed.last[1]}))
    return FindingDraft(f"{often} no answer: {error.text}", (), marks, advice=ICMP_ADVICE, key="unanswered")


def _reported(closed: Closed, side: int) -> Reported | None:
    """What ICMP reports most of the segments of a side."""
    return max((one for one in closed.icmp if one.side == side), key=lambda one: one.times, default=None)


def icmp(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    """Errors that explain no other finding. A sender sends again in smaller packets where one was too big."""
    found = []
    for one in closed.icmp if closed.packets[1] and not context.failed else ():
        if one.reason not in TOO_BIG and closed.signs.unacknowledged[one.side] is None:
            often = f" ({one.times} times)" if one.times > 1 else ""
            cause = f"for segments from {closed.who(one.side)}, {one.text}{often}"
            found.append(FindingDraft(cause, (), one.packets, NOTE if closed.how == "FIN" else WARNING, key=(one.side, one.reason)))
    return found


def refused(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    cause = f"{closed.endpoints[1]} refuses the connection: it answers the SYN with RST"
    return FindingDraft(cause, key="refused") if closed.refused else None


def reset_in_handshake(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if closed.how != "RST" or context.failed or not closed.packets[1]:
        return None
    if context.ready if closed.verdict.protocol is not None else any(closed.bytes) and not closed.handshake_open:
        return None
    if closed.by == 0 and not any(closed.bytes):
        cause = f"{closed.who(closed.by)} opens the connection and resets it unused, as health checks do"
        return FindingDraft(cause, (), severity=NOTE, advice=_HEALTH_CHECK, key="unused")
    last = context.last[0] or context.last[1]
    place = f"after {said(context, last)}" if last is not None else "at once"
    cause = f"{closed.who(closed.by)} resets the connection {place}, before it could be used"
    return FindingDraft(cause, numbers(last), key=(closed.by, place))


def reset_injected(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    reset = closed.signs.reset
    if reset is None or not reset.injected or reset.silence is not None:
        return None
    after, last = since(context, closed)
    cause = f"the RST that ends the connection{after} did not come from {closed.name(reset.side)}: {_other_ttl(closed, reset)}"
    severity = WARNING if context.ready else ERROR
    return FindingDraft(cause, numbers(last), (*packets(last), reset.number), severity, key="injected")


def _other_ttl(closed: Closed, reset: Reset) -> str:
    """What shows that a RST is not its sender's."""
    return f"the TTL is {reset.ttl}, that of {closed.name(reset.side)}'s other packets {' or '.join(map(str, reset.others))}"


def forgotten(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    reset = closed.signs.reset
    if reset is None or reset.silence is None:
        return None
    silence, sender = reset.silence, 1 - reset.side
    first = context.sent_with(silence.number, closed.endpoints[sender])
    passed = duration_text(silence.until_ns - silence.since_ns)
    if first is None:
        what = f"the first packet from {closed.name(sender)} after {passed} of silence"
    else:
        what = f"{first.name} from {closed.name(sender)}, the first message after {passed} of silence,"
    who = f"{closed.name(reset.side)}, or a device between the two,"
    if reset.injected:
        who = f"a device between the two ({_other_ttl(closed, reset)})"
    cause = f"{what} is answered with RST: {who} no longer knew the connection"
    return FindingDraft(cause, numbers(first), (silence.number, reset.number), key="forgotten")


def set_late_aside(context: ConversationContext, closed: Closed) -> None:
    """Drop requests, and a Close, that were sent after the other side had ended the connection: no response is due."""
    # One that was answered was sent before, though captured later
    parted = context.close_message if context.close_answered is None else None
    by, ended_ns = closed.by, closed.ended_ns
    if parted is not None and by is not None and ended_ns is not None and parted.src != closed.endpoints[by] and parted.time_ns > ended_ns:
        context.close_message, context.close_seen = None, False
    for src, late in zip(closed.endpoints, closed.signs.late, strict=True):
        if late is not None:
            context.unanswered = [one for one in context.unanswered if one.src != src or asked_ns(one) < late.time_ns]


def sent_late(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side in (0, 1) if not context.failed else ():
        late = closed.signs.late[side]
        if late is None:
            continue
        first = context.sent_with(late.number, closed.endpoints[side])
        name, passed = closed.name(side), late.time_ns - late.since_ns
        if passed < LATE_NS and (first is None or first.name in context.family.closing):
            # An alert of TLS, or a Close, is sent all the same
            continue
        what = count(late.size, "byte") if first is None else first.name
        after = since(context, closed)[0] if closed.by == 1 - side else ""
        how = "reset" if late.reset else "closed"
        cause = f"{closed.who(1 - side)} {how} the connection{after}, and {name} sends {what} on it {duration_text(passed)} later"
        severity = NOTE if first is not None and first.kind == "one_way" else WARNING if side == closed.server or first is None else ERROR
        found.append(FindingDraft(cause, numbers(first), (late.number,), severity, key=side))
    return found


def never_acknowledged(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side in (0, 1):
        again = closed.signs.unacknowledged[side]
        if again is None:
            continue
        first = context.sent_with(again.packets[0], closed.endpoints[side])
        what = f"{first.name} from {closed.name(side)}" if first is not None else f"what {closed.name(side)} sends last"
        silence = closed.signs.silence
        if silence is not None and silence.number == again.packets[0]:
            what += f", the first packet after {duration_text(silence.until_ns - silence.since_ns)} of silence,"
        cause = f"{what} was sent {again.times} times over {duration_text(again.last_ns - again.first_ns)}, and never acknowledged"
        marks, advice, error = again.packets, None, _reported(closed, side)
        if error is not None:
            cause += f": {error.text}"
            marks = tuple(sorted((*marks[: EVIDENCE // 2], *error.packets[: EVIDENCE // 2])))
            advice = _SMALLER if error.reason in TOO_BIG else ICMP_ADVICE
        found.append(FindingDraft(cause, numbers(first), marks, advice=advice, key=side))
    return found


def reset_ignored(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side in (0, 1):
        resets = [one for one in closed.signs.ignored if one.side == side]
        for injected in (True, False):
            some_of = [one for one in resets if one.injected == injected]
            if not some_of:
                continue
            how_many, what, who, after = "a RST", "its sequence number", "it", "it"
            if len(some_of) > 1:
                more = " or more" if len(closed.signs.ignored) == MAX_RESETS else ""
                how_many, what, who, after = f"{len(some_of)} RSTs{more}", "their sequence numbers", "they", "them"
            why = f"continues after {after}" if any(one.expected for one in some_of) else f"does not expect {what}"
            cause = f"{how_many} with the address of {closed.name(side)} had no effect: {closed.name(1 - side)} {why}"
            if injected:
                cause += f", and {who} did not come from {closed.name(side)}: {_other_ttl(closed, some_of[0])}"
            marks = tuple(one.number for one in some_of)
            found.append(FindingDraft(cause, (), marks, WARNING if injected else NOTE, key=(side, injected)))
    return found


def accepted_only(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """A server that accepts a connection and never sends a byte: a proxy without a server behind it, or one that has not started."""
    asked, server = context.last[0], closed.server
    if asked is None or not context.opening_seen or not context.unanswered or not closed.complete or closed.bytes[server] or context.failed:
        return None
    place, passed = f"{closed.endpoints[server]} accepts the connection", max(0, closed.until_ns - asked.time_ns)
    if closed.by == server:
        cause = f"{place} and {closed.verb} it {duration_text(passed)} after {said(context, asked)}, without sending a byte"
        return FindingDraft(cause, numbers(asked), packets(asked), advice=_NOTHING_BEHIND, key=closed.how)
    if passed < PATIENCE_NS:
        return None
    if closed.by is None:
        cause = f"{place} and has sent nothing in the {duration_text(passed)} between {said(context, asked)} and the end of the capture"
        return FindingDraft(cause, numbers(asked), packets(asked), WARNING, key="silent")
    cause = f"{place} and sends nothing in the {duration_text(passed)} after {said(context, asked)}, until the client {closed.verb} it"
    return FindingDraft(cause, numbers(asked), packets(asked), key="silent")


def closed_unused(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if closed.how != "FIN" or closed.by != closed.server or any(closed.lost):
        return None
    passed = duration_text(closed.until_ns - closed.first[3])
    return FindingDraft(f"the server closes the connection after {passed} in which neither side sent anything", (), key="silent")


def unused(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    passed = closed.until_ns - closed.first[3]
    if not all(closed.packets) or closed.by is not None or passed < UNUSED_NS:
        return None
    return FindingDraft(f"the client connected and has sent nothing for {duration_text(passed)} {closed.when}", (), key="silent")


def proxy_unexpected(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    proxy, client = closed.proxy, closed.client
    if proxy is None or client is None or closed.lacking or context.messages[1] or (closed.tls is not None and closed.tls.version):
        return None
    answered = closed.bytes[1 - client]
    if (answered and not closed.ours) or (closed.by == client and closed.bytes[client] == len(proxy.raw)):
        # Answers of other protocols are not recognised; a health check of a load balancer sends nothing else
        return None
    what = f"an answer in {closed.verdict.protocol or closed.expected}" if answered else "an answer"
    if closed.by == 1 - client:
        cause = f"the server {closed.verb} the connection without {what}"
    else:
        waited = closed.until_ns - (closed.first[3] if context.last_ns is None else context.last_ns)
        if waited < PATIENCE_NS:
            return None
        then = closed.when if closed.by is None else f"when the client {closed.verb} the connection"
        cause = f"the server has not sent {what} for {duration_text(waited)} {then}"
    cause = f"the client begins with a {proxy.name}, and {cause}: the server probably expects no such header"
    return FindingDraft(cause, numbers(context.last[0]), severity=WARNING if closed.by is None else ERROR, key="unexpected")


def proxy_damaged(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    proxy = closed.proxy
    if proxy is None or proxy.damaged is None:
        return None
    return FindingDraft(f"the {proxy.name} from the client is damaged: {proxy.damaged}", (), (closed.first[1],), key="damaged")


def websocket_failed(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """A refused upgrade, an answer that clients do not accept, or a Close with the code of an error."""
    end = closed.websocket
    assert end is not None
    if end.refused is not None:
        return FindingDraft(
            f"the server answers the upgrade to WebSocket (GET {end.target}) with {end.refused}", (), (end.packet,), key="refused"
        )
    if end.damaged is not None:
        return FindingDraft(f"clients do not accept the server's answer to the upgrade: {end.damaged}", (), (end.packet,), key="damaged")
    close = end.close
    if close is None or close.code in (None, *NORMAL):
        return None
    advice = "Check the log of the side that closed at the time of the last packet named."
    return FindingDraft(
        f"{closed.who(close.side)} closes WebSocket with {close.text}", (), (close.number,), WARNING, advice, str(close.code)
    )


def other_protocol(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    verdict, expected = closed.verdict, closed.expected
    if verdict.protocol is None:
        if verdict.name is None or verdict.name.startswith("TLS") or (closed.websocket is not None and closed.websocket.refused):
            return None
        if closed.websocket is not None and not any(closed.inside) and not closed.lacking:
            # Both sides agreed on WebSocket, and said nothing in it yet
            return None
        if verdict.name in ("HTTP", "WebSocket") and expected is not None and closed.ports[closed.server] in BY_NAME[expected].websocket:
            return _in_websocket(context, closed, expected)
        return FindingDraft(
            f"{closed.port}, but the bytes are {verdict.name}{_in_amqp(closed)}",
            (),
            severity=_doubtful(closed),
            key=verdict.name,
        )
    if closed.tls_errors:
        return None
    known, server = closed.client is not None or not any(context.messages), closed.server
    size = (closed.bytes if closed.websocket is None else closed.inside)[server]
    # Its first bytes may be missing
    complete = closed.syn and not closed.lost[server] and not closed.cut[server]
    other = closed.other_protocols[server] or ("something else" if complete else None)
    if known and not context.messages[1] and context.messages[0] and size and other is not None:
        what = f"the {count(size, 'byte')} that the server answers {'is' if size == 1 else 'are'} {other}"
        return FindingDraft(f"the client speaks {verdict.protocol}, and {what}{_in_amqp(closed)}", numbers(context.last[0]))
    for side, name in enumerate(closed.other_protocols) if not any(context.messages) else ():
        if name is not None:
            return FindingDraft(f"{closed.who(side)} speaks {name}, where {verdict.protocol} is expected{_in_amqp(closed)}", (), key=name)
    if expected is None or expected.partition("-draft")[0] == verdict.protocol.partition("-draft")[0]:
        return None
    if context.messages[1] or not known:
        return FindingDraft(f"{verdict.protocol} is spoken on the port of {expected}", severity=NOTE, key="works")
    return FindingDraft(f"the client speaks {verdict.protocol} to the port of {expected}, which does not answer", numbers(context.last[0]))


def _in_websocket(context: ConversationContext, closed: Closed, expected: str) -> FindingDraft | None:
    """On a port where WebSocket belongs: what HTTP or WebSocket shows of the other protocol."""
    server = closed.server
    if closed.lacking:
        cause = f"{closed.port} in WebSocket, whose beginning cannot be read: bytes of it are not in the capture"
        return FindingDraft(cause, (), severity=NOTE, advice=_COMPLETE, key="lacking")
    if closed.websocket is not None:
        cause = f"{closed.port}, but what WebSocket carries is not recognised"
        return FindingDraft(cause, (), severity=WARNING if closed.syn else NOTE, advice=_UNKNOWN_INSIDE, key="inside")
    if closed.bytes[server] or not closed.syn:
        return FindingDraft(f"{closed.port} in WebSocket, but the bytes are HTTP without an upgrade to it", (), key="HTTP")
    if closed.by == server:
        cause = f"the server {closed.verb} the connection without an answer to the HTTP request, which comes before WebSocket"
        return FindingDraft(cause, (), advice=_SERVED, key="HTTP")
    waited = closed.until_ns - closed.last[3]
    if waited < PATIENCE_NS:
        return None
    cause = f"the server has not answered the HTTP request, which comes before WebSocket, for {duration_text(waited)} {closed.when}"
    return FindingDraft(cause, (), severity=WARNING, advice=_SERVED, key="HTTP")


def _in_amqp(closed: Closed) -> str:
    """Return what each side sent, if it is AMQP."""
    amqp = any(data.startswith(b"AMQP") for data in closed.first_bytes)
    sides = [side for side in (0, 1) if amqp and closed.first_bytes[side][:1] in (b"A", b"\1")]
    return "".join(f"; {closed.who(side)} sends {', '.join(in_amqp(closed.first_bytes[side]))}" for side in sides)


def unknown_bytes(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    verdict, sizes = closed.verdict, closed.sizes
    if verdict.name is not None or not any(sizes) or closed.lacking or context.failed:
        return None
    sent = " and ".join(f"{count(size, 'byte')} from {closed.who(side)}" for side, size in enumerate(sizes) if size)
    # The capture may end within the first frame
    early = not closed.ended and sum(sizes) <= FIRST_BYTES and closed.until_ns - closed.first[3] < UNUSED_NS
    severity = NOTE if early else _doubtful(closed)
    cause = f"{closed.port}, but the bytes are not recognised ({sent})"
    if verdict.protocol is not None:
        severity = NOTE if early else ERROR if closed.by == closed.server else WARNING
        cause = f"no frame of {verdict.protocol} is in the bytes ({sent})"
    return FindingDraft(cause, (), severity=severity, key="unknown")


def _doubtful(closed: Closed) -> Severity | None:
    """The severity of what only a port shows: a note where that may be the client's own."""
    return NOTE if closed.client is None else None


def lost(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    lost = sum([closed.lost[side] for side in (0, 1) if closed.packets[side]]) - closed.earlier
    if lost <= 0:
        return None
    what = f"{count(lost, 'byte')} reached the receiver but {'is' if lost == 1 else 'are'} not in the capture"
    cause = f"{what}: the capture lost packets, not the network"
    return FindingDraft(cause, (), key="lost")


_DIFFERS = "One of the copies is damaged, and the first one was used: check the note on the next message, and the frames on both sides."


def retransmitted(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    segments = closed.retransmitted
    if any(closed.signs.unacknowledged):
        return None
    what = "1 segment repeats" if segments == 1 else f"{segments:,} segments repeat"
    cause = f"{what} bytes that had already arrived: the network loses packets, or the capture contains some twice"
    advice = None
    if closed.conflicts:
        others = "1 differs" if closed.conflicts == 1 else f"{closed.conflicts:,} differ"
        cause += f"; {others} from the bytes that arrived first"
        advice = _DIFFERS
    return FindingDraft(cause, (), closed.repeated, advice=advice, key="again") if segments else None


def wrong_checksum(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = []
    for side, segments in enumerate(closed.signs.damaged):
        name = closed.name(side)
        what = f"{segments:,} segments from {name} have wrong TCP checksums, and were"
        if segments == 1:
            what = f"1 segment from {name} has a wrong TCP checksum, and was"
        cause = f"{what} sent again: the network damages packets"
        if segments:
            found.append(FindingDraft(cause, (), key=side))
    return found


def zero_window(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    sides = [(stopped[2], -side, stopped[0]) for side, stopped in enumerate(closed.stopped) if stopped is not None]
    if not sides:
        return None
    longest, side, packet = max(sides)
    cause = f"{closed.who(-side)} has a zero window for {duration_text(longest)}: it does not read incoming data"
    return FindingDraft(cause, (), (packet,), WARNING if longest >= STALLED_NS else NOTE, key=-side)


def mid_stream(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if closed.verdict.protocol is None or closed.syn:
        return None
    return FindingDraft("the capture begins in the middle of the conversation: earlier negotiation is unknown", (), (closed.first[1],))


def snap(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    cut = sum(closed.cut)
    return FindingDraft(f"the snap length of the capture cut off {count(cut, 'byte')}", ()) if cut else None


def one_way(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    for side in (0, 1):
        if not closed.packets[side] and closed.bytes[1 - side]:
            return FindingDraft(f"no packet from {closed.who(side)} was captured, only those to it", ())
    return None
