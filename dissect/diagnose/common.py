"""What all protocols have: requests and answers, handshakes, frames that are cut off; and the order in which the rules are asked."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ..model import Exchange, Gap, Limited, Message, Unreadable
from ..protocols.parser import UNKNOWN_LAYOUT
from ..units import count, duration_text, some
from . import tcp, tls
from .rules import (
    ANY,
    CLOSED,
    CLOSED_BEFORE,
    ENDED,
    ERROR,
    EXCHANGE,
    EXPIRED_ADVICE,
    FAULTY,
    GAP,
    LACKING,
    LEFT,
    LOST_OR_CUT,
    NO_MESSAGES,
    NOTE,
    OPEN,
    OURS,
    PATIENCE_NS,
    PROXY,
    REQUEST,
    SIGNS,
    SILENT,
    SILENT_ADVICE,
    SLOW,
    SPOKEN,
    STARTED,
    SYN,
    TAIL,
    TLS,
    WARNING,
    WEBSOCKET,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    Rule,
    asked_ns,
    last_before,
    later_text,
    numbers,
    packets,
    said,
    since,
)

PLAIN = Family(())
"""For conversations of any other protocol."""

OFTEN = 10
"""Occurrences on one connection after which they are reported once more, at its end."""

LARGE = 1 << 20
"""Frames of this size are over limits that some servers have."""

DUPLICATE = "duplicate-id"

MISSING = ("lost", "cut", "skipped")
"""Words in a fault that say that bytes are missing: a defect of the capture, not of the message."""

CUT_BY_CAPTURE, ABORTED = "bytes captured", "bytes sent"
"""How a fault names an incomplete frame: the capture ended, or the connection."""


def _slow(context: ConversationContext, message: Message) -> FindingDraft | None:
    if message.outcome == "refused" or message.name in context.family.answers_late:
        return None
    request = context.request_of(message)
    name = message.name if request is None else request.name
    return FindingDraft(f"{name} was answered after {duration_text(message.latency_ns or 0)}", key=name)


def _orphans(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not context.orphans or closed.lacking:
        return None
    found = list(context.orphans.values())
    names = some(dict.fromkeys(one.name for one in found))
    what = f"a response ({names}) answers" if len(found) == 1 else f"{len(found)} responses ({names}) answer"
    return FindingDraft(f"{what} no captured request", numbers(*found), packets(*found), key=names)


def _damaged(context: ConversationContext, message: Message) -> FindingDraft | None:
    fault = message.fault
    if (
        fault is None
        or isinstance(fault, Limited | Unreadable)
        or any(word in fault.reason for word in MISSING)
        or not context.opening_seen
        or context.orphans is None
    ):
        return None
    who = message.sender or "one side"
    # A frame that nobody knows has a size that nobody need believe
    known = not message.name.startswith("unknown ")
    if known and fault.reason.endswith((ABORTED, CUT_BY_CAPTURE)):
        context.aborted = message
        return None
    cause = f"{message.name} from the {who} cannot be read: {fault.field} at byte {fault.offset}: {fault.reason}"
    return FindingDraft(cause, key=(message.name, fault.field))


def _unreadable(context: ConversationContext, message: Message) -> FindingDraft | None:
    """Once for each conversation: the first of these messages says which side states a newer version."""
    fault = message.fault
    if type(fault) is not Unreadable or not fault.reason.startswith(UNKNOWN_LAYOUT):
        return None
    context.newer = fault.reason.removeprefix(f"{UNKNOWN_LAYOUT} (").partition("): ")[0]
    return _newer_layout(context, f"{message.name} from the {message.sender or 'sender'} is")


def _newer_layout(context: ConversationContext, what: str) -> FindingDraft:
    return FindingDraft(f"{what} {UNKNOWN_LAYOUT} ({context.newer})", None, None, NOTE, _NEWER, "not readable", rule="not-readable")


def _missed(context: ConversationContext, gap: Gap) -> FindingDraft | None:
    known, context.orphans = context.orphans is not None, None
    tail = context.tail
    if gap.reason != "skipped" and tail is not None and (gap.src, gap.position) == (tail.src, tail.position + (tail.size or 0)):
        # It was the beginning of a header
        context.tail = None
    context.lossy = context.lossy or gap.reason != "cut"
    _lose_answers(context, gap)
    # Behind bytes that the capture lacks nobody knows where a frame begins, or what answers what
    if not known or gap.reason != "skipped" or not context.opening_seen or not context.messages[gap.sender == "server"]:
        return None
    if gap.size is not None and gap.size < max(context.family.least_header, context.family.longest_header):
        context.tail = gap
        return None
    return _no_frame(context, gap)


def _no_frame(context: ConversationContext, gap: Gap) -> FindingDraft:
    size, be = ("some bytes", "are") if gap.size is None else (count(gap.size, "byte"), "is" if gap.size == 1 else "are")
    what = f"{size} from the {gap.sender or 'sender'} {be}"
    if context.newer is not None:
        return replace(_newer_layout(context, what), messages=())
    return FindingDraft(f"{what} not a frame of {gap.protocol}", (), None, WARNING, _MIXED, "skipped", rule="skipped")


def _missed_before(context: ConversationContext, message: Message) -> FindingDraft | None:
    """Its sender goes on behind a few bytes that are no frame."""
    gap = context.tail
    if gap is None or message.src != gap.src or message.position <= gap.position:
        return None
    context.tail = None
    return replace(_no_frame(context, gap), packets=())


def _aborted(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    message = context.aborted
    if message is None or message.fault is None:
        return None
    sizes = re.sub("[0-9]+", lambda found: f"{int(found[0]):,}", message.fault.reason)
    if closed.by is None:
        cause = f"{message.name} from the {message.sender or 'sender'} is only partly captured: {sizes}"
        return FindingDraft(cause, numbers(message), packets(message), NOTE, _ENDED, "tail")
    own = closed.endpoints[closed.by] == message.src
    whose = f"its own {message.name}" if own else f"{message.name} from {closed.who(1 - closed.by)}"
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
    if gap.position + gap.size < closed.inside[side] or gap.size >= context.family.least_header:
        return _no_frame(context, gap)
    who = f"{closed.who(side)}: {count(gap.size, 'byte')} arrived"
    if closed.by is None or not closed.ended:
        return FindingDraft(f"the capture ends in the middle of a frame from {who}", (), severity=NOTE, key="tail")
    own = closed.by == side
    whose = f"a frame of its own: {count(gap.size, 'byte')} arrived" if own else f"a frame from {who}"
    cause = f"{closed.who(closed.by)} {closed.verb} the connection in the middle of {whose}"
    return FindingDraft(cause, (), severity=WARNING if own else NOTE, key="tail")


def _id_again(context: ConversationContext, message: Message) -> FindingDraft | None:
    before = context.ids.get((message.sender, message.name, message.id)) if message.kind == "request" and message.id is not None else None
    if before is None or context.family.reuses_ids or context.lost_answers[message.sender == "server"]:
        return None
    return _used_again(message, (before, message.number))


def _duplicate(context: ConversationContext, exchange: Exchange) -> FindingDraft | None:
    """One that was superseded by a request of another name, or is too large to be remembered."""
    asker = exchange.src == context.server
    again = context.last[asker]
    if exchange.outcome != "superseded" or again is None or context.lost_answers[asker]:
        return None
    if exchange.request in context.asked and exchange.name == again.name:
        return None
    return _used_again(again, (exchange.request, again.number))


def _used_again(one: Message, evidence: tuple[int, ...]) -> FindingDraft:
    """It waits: bytes that are missing, which may be the previous response, are known later."""
    ident = "" if one.id is None else f" {one.id}"
    cause = f"{one.name} uses the id{ident} again while the previous request with that id has no answer"
    return FindingDraft(cause, evidence, key=one.name, alike=one.name, rule=DUPLICATE)


def _lose_answers(context: ConversationContext, gap: Gap) -> None:
    """Requests of one side may be answered in these bytes of the other; messages after them show that those before them are not."""
    context.lost_answers[gap.sender != "server"] = True
    for key, draft in [*context.held.items()]:
        asker = context.found[key][1].src
        if asker != gap.src and not is_certain(context, draft, asker):
            del context.held[key], context.found[key]


def is_certain(context: ConversationContext, draft: FindingDraft, asker: str) -> bool:
    """Whether a finding that waits is certain: where `asker` used an id again, the other side has sent a message since, without a gap."""
    answer = context.last[asker == context.client]
    return draft.rule != DUPLICATE or (answer is not None and answer.number > max(draft.messages or ()))


def _late(context: ConversationContext, exchange: Exchange) -> FindingDraft | None:
    why = {"timeout": "in time", "deadline passed": "before its deadline"}.get(exchange.reason or "")
    if why is None or exchange.name in context.family.reported_apart:
        return None
    return FindingDraft(f"{exchange.name} was not answered {why}", (exchange.request,), key=exchange.name)


def _stall_facts(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    """When the server sent anything last, and since when a request is open: of all its connections this shows whether it answers at all."""
    facts = []
    if context.answered_ns is not None:
        facts.append(FindingDraft("", (), (), is_fact=True, rule="server-stalled", alike="answered", at_ns=context.answered_ns))
    if context.family.owed is not None:
        owed = context.family.owed(context)
    else:
        found = [one for one in context.unanswered if one.src == context.client and one.reason in ("closed", "capture ended", "timeout")]
        owed = [(one.request, asked_ns(one)) for one in found]
    owed = [(number, since_ns) for number, since_ns in owed if closed.until_ns - since_ns >= PATIENCE_NS]
    if owed and not closed.lacking:
        number, since_ns = min(owed, key=lambda one: one[1])
        about = f"open {context.conversation}"
        facts.append(FindingDraft("", (number,), is_fact=True, rule="server-stalled", alike=about, at_ns=since_ns))
    return facts


def _often(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    often = [found for found in context.found.values() if found[0] >= OFTEN]
    if not often:
        return None
    count, one, _ = max(often, key=lambda found: found[0])
    if one.severity == NOTE:
        return None
    return FindingDraft(f"{count:,} times on this connection: {one.cause}", tuple(one.messages), tuple(one.packets), key="often")


def _refusals(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """What comes after the first of several refusals that are one finding."""
    if not context.unreported_refusals:
        return None
    every = some([f"{count:,} of {what}" for what, count in context.refusals.items()])
    cause = f"{sum(context.refusals.values()):,} requests are refused on this connection: {every}"
    return FindingDraft(cause, (), key="all", advice=context.family.refusals)


def _open_requests(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    aside = context.family.reported_apart | (context.family.closing if context.close_answered else frozenset())
    cut = context.aborted_number if closed.ended else None
    found = [
        one for one in context.unanswered if one.reason in ("closed", "capture ended") and one.name not in aside and one.request != cut
    ]
    if not found:
        return None
    count, asked = len(found), tuple([one.request for one in found])
    names = some(dict.fromkeys([one.name for one in found]))
    what = f"{names} has no answer" if count == 1 else f"{count} requests{' or more' if count > 7 else ''} ({names}) have no answer"
    if not closed.ended or closed.by is None:
        if _stands_still(context, closed):
            return None
        waited = max([one.waited_ns or 0 for one in found])
        soon = waited < PATIENCE_NS or context.failed or closed.lacking
        when = f"when the capture ends{later_text(waited)}" if soon else f"for {duration_text(waited)} when the capture ends"
        return FindingDraft(f"{what} {when}", asked, severity=NOTE if soon else WARNING, advice=SILENT_ADVICE, key=names)
    after, _ = since(context, closed)
    if context.failed or not all(closed.packets):
        return None
    owed = any(one.src != closed.endpoints[closed.by] for one in found)
    # Without ids, a lost response leaves another request open than its own
    unsure = any(closed.lost) and any(one.id is None for one in found)
    # The client need not wait for the answer to Close
    left = closed.by == closed.client and context.family.closing.issuperset(one.name for one in found)
    unsure = unsure or (left and max(one.waited_ns or 0 for one in found) < PATIENCE_NS)
    severity = NOTE if unsure else ERROR if owed and closed.by != closed.client else WARNING if not owed else NOTE
    cause = f"{closed.who(closed.by)} {closed.verb} the connection{after}, while {what}"
    return FindingDraft(cause, asked, severity=severity, key=(closed.by, names))


def _closed_by_server(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not context.ready or closed.by != closed.server or context.close_seen or not context.messages[1] or not context.family.closing:
        return None
    if context.unanswered or context.failed or closed.injected:
        return None
    after, last = since(context, closed)
    # Of packets that were captured in another order nobody knows who was first
    severity = NOTE if closed.order_unsure else WARNING
    cause = f"the server {closed.verb} the connection{after}, without sending Close"
    return FindingDraft(cause, numbers(last), severity=severity, key=closed.how)


def _no_goodbye(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if not context.ready or closed.by is None or closed.by != closed.client or context.close_seen or not context.family.closing:
        return None
    if closed.injected:
        return None
    last, how = last_before(context, closed), "reset" if closed.how == "RST" else "closed"
    return FindingDraft(
        f"the client {how} the TCP connection without sending {some(sorted(context.family.closing))}", numbers(last), key="no goodbye"
    )


def _stands_still(context: ConversationContext, closed: Closed) -> bool:
    """Whether the handshake started, and nothing explains why it was not completed."""
    return context.missing() is not None and context.opening_seen and not context.failed and not closed.lacking


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
        return FindingDraft(cause, tuple(evidence), severity=WARNING if waited >= PATIENCE_NS else NOTE, advice=SILENT_ADVICE, key=reached)
    asks = any(one.src == closed.endpoints[closed.by] for one in context.unanswered)
    severity = NOTE if closed.by == closed.client and not asks else ERROR
    cause = f"{place}: {closed.who(closed.by)} {closed.verb} the connection{after}, before {missing}"
    return FindingDraft(cause, numbers(last), packets(last), severity, key=(reached, closed.by))


_NEWER = "Check for a newer streamdump: nothing here shows that either side is wrong."
_SPEAK_FIRST = "The client must send first: check what it waits for, or whether a proxy has no running server as its target."
_ENDED = "Check why the connection or the capture ended here."
_CUT_OFF = "Check why the connection ended: this frame is lost."
_TOO_LARGE = "Send smaller batches, or raise the limit on the size of a request at the server; its log has the reason."
_MIXED = "Check whether the sender writes other data into the connection."

FIRST: tuple[Rule, ...] = (
    Rule(
        "tcp.reset-injected",
        WARNING,
        CLOSED,
        tcp.reset_injected,
        "Find the firewall, load balancer or NAT that resets the connection; if it resets idle connections, "
        "send heartbeats or TCP keep-alives more often.",
        OURS | SIGNS,
    ),
    Rule(
        "tcp.forgotten",
        ERROR,
        CLOSED,
        tcp.forgotten,
        "Send heartbeats or TCP keep-alives more often than the idle timeout of firewalls, load balancers and NAT on the path; "
        "check whether the server was restarted.",
        OURS | SIGNS,
    ),
    Rule(
        "tcp.never-acknowledged",
        WARNING,
        CLOSED,
        tcp.never_acknowledged,
        "Find what drops these packets: a firewall or NAT that has forgotten the connection, a link with a smaller MTU, or a host that "
        "is down.",
        OURS | SIGNS,
    ),
    Rule(
        "tcp.proxy-header-unexpected",
        ERROR,
        CLOSED,
        tcp.proxy_unexpected,
        "Configure the server to expect PROXY headers on this port (RabbitMQ: proxy_protocol of its stream plugin), "
        "or the load balancer to send none.",
        PROXY,
    ),
    Rule("tcp.proxy-header-damaged", WARNING, CLOSED, tcp.proxy_damaged, "Check the load balancer that sends it.", PROXY),
    Rule(
        "tcp.websocket-failed",
        ERROR,
        CLOSED,
        tcp.websocket_failed,
        "Check the address, path and credentials of the client, and that the server, or the proxy in front of it, serves WebSocket there.",
        OURS | WEBSOCKET,
    ),
)
"""Asked before those of the family: what TCP shows explains what comes of it."""

COMMON: tuple[Rule, ...] = (
    Rule(
        "tcp.unanswered",
        ERROR,
        CLOSED,
        tcp.unanswered_syn,
        "Check the address, that the server runs and accepts connections in time, and that no firewall on the path drops the packets.",
        OURS | SYN | SILENT,
    ),
    Rule("tcp.icmp", WARNING, CLOSED, tcp.icmp, tcp.ICMP_ADVICE, OURS | SIGNS),
    Rule(
        "tcp.refused",
        ERROR,
        CLOSED,
        tcp.refused,
        "Check that the server runs and listens on this address and port, not on another one.",
        OURS | SILENT,
    ),
    Rule(
        "tls.on-plain-port",
        ERROR,
        CLOSED,
        tls.on_plain_port,
        "Connect to the server's TLS port, or disable TLS at the client.",
        TLS,
    ),
    Rule("tls.no-answer", ERROR, CLOSED, tls.no_answer, "Check that the server speaks TLS on this port and is running.", TLS),
    Rule(
        "tls.plain-on-tls-port",
        ERROR,
        CLOSED,
        tls.plain_on_tls_port,
        "Enable TLS at the client, or connect to the port for plain connections.",
    ),
    *[Rule(name, ERROR, CLOSED, tls.handshake_error(name), advice, TLS) for name, advice in tls.HANDSHAKE_ERRORS],
    Rule("tls.alert", ERROR, CLOSED, tls.alert, "Check the log of the side that sent the alert for the reason.", TLS),
    Rule("tls.incomplete", ERROR, CLOSED, tls.incomplete, "Check the log of the side that closed for the reason.", TLS),
    Rule(
        "tcp.other-protocol",
        ERROR,
        CLOSED,
        tcp.other_protocol,
        "Check the port in the client's configuration: this one is for another protocol.",
        OURS,
    ),
    Rule(
        "tcp.accepted-only",
        ERROR,
        CLOSED,
        tcp.accepted_only,
        "Check that the server has started and is not stuck, and that a proxy in front of it, or a published port, has it as its target.",
        OPEN,
    ),
    Rule("frame-cut-off", NOTE, CLOSED, _aborted, _CUT_OFF, LEFT),
    Rule(
        "open-requests",
        WARNING,
        CLOSED,
        _open_requests,
        "Check the log of the side that closed at the time of the last packet named.",
        OPEN,
    ),
    Rule("tcp.closed-unused", WARNING, CLOSED, tcp.closed_unused, _SPEAK_FIRST, OURS | SYN | SILENT),
    Rule("tcp.unused", WARNING, CLOSED, tcp.unused, _SPEAK_FIRST, OURS | SYN | SILENT),
    Rule(
        "tcp.reset-in-handshake",
        ERROR,
        CLOSED,
        tcp.reset_in_handshake,
        "Check the log of the side that reset for the reason.",
        OURS | SYN | ENDED,
    ),
    Rule(
        "handshake-incomplete",
        ERROR,
        CLOSED,
        _incomplete,
        "Check the log of the side that closed at the time of the last message.",
        STARTED,
    ),
    Rule(
        "closed-by-server",
        WARNING,
        CLOSED,
        _closed_by_server,
        EXPIRED_ADVICE,
        SPOKEN | ENDED,
    ),
    Rule(
        "tcp.sent-after-end",
        ERROR,
        (CLOSED, CLOSED_BEFORE),
        tcp.sent_late,
        "Have this side detect that the other closed the connection, and reconnect; check the log of the other side for the reason.",
        OURS | SIGNS,
    ),
    Rule("no-goodbye", NOTE, CLOSED, _no_goodbye, "Send Close first, unless the client crashed.", ENDED),
    Rule(
        "tcp.unknown-bytes",
        WARNING,
        CLOSED,
        tcp.unknown_bytes,
        "Check what runs on this port; -d tcp.port==N,PROTOCOL decodes it anyway.",
        OURS | NO_MESSAGES,
    ),
    Rule("server-stalled", NOTE, CLOSED, _stall_facts, SILENT_ADVICE, SPOKEN),
    Rule("again-and-again", WARNING, CLOSED, _often, "Fix the first of them, and check why the client keeps retrying.", LEFT),
    Rule("refused", NOTE, CLOSED, _refusals, "streamdump -Y 'outcome == refused' shows each of them.", LEFT),
    Rule(
        "tcp.lost-by-capture",
        WARNING,
        CLOSED,
        tcp.lost,
        "Capture again with a larger buffer (-B) or a narrower filter (-f).",
        OURS | LOST_OR_CUT,
    ),
    Rule(
        "tcp.reset-ignored",
        NOTE,
        CLOSED,
        tcp.reset_ignored,
        "If there are several or the TTL differs, find the firewall or intrusion prevention system that sends them.",
        OURS | SIGNS,
    ),
    Rule(
        "tcp.retransmitted",
        NOTE,
        CLOSED,
        tcp.retransmitted,
        "Check the network if the connection is slow; otherwise no action needed.",
        OURS | SIGNS,
    ),
    Rule(
        "tcp.damaged",
        NOTE,
        CLOSED,
        tcp.wrong_checksum,
        "If this happens often, check cables, network cards and drivers on the path.",
        OURS | SIGNS,
    ),
    Rule(
        "tcp.zero-window",
        WARNING,
        CLOSED,
        tcp.zero_window,
        "Check what blocks this side from reading: it is busy or waits for something else.",
        OURS | SIGNS,
    ),
    Rule("tcp.mid-stream", NOTE, CLOSED, tcp.mid_stream, "Start the capture before the client connects to include the handshake."),
    Rule("tcp.snap-length", NOTE, CLOSED, tcp.snap, "Capture complete packets: -s 262144.", OURS | LOST_OR_CUT),
    Rule("tcp.one-direction", NOTE, CLOSED, tcp.one_way, "Capture where the packets of both directions pass.", OURS | LACKING),
    Rule(
        "tls.unread",
        NOTE,
        CLOSED,
        tls.unread,
        "Give the keys with --keylog FILE; clients write them to the file that SSLKEYLOGFILE names.",
        TLS,
    ),
    Rule("slow", WARNING, ANY, _slow, "streamdump latency shows whether all requests of this kind are slow.", SLOW),
    Rule(
        "answer-without-request",
        WARNING,
        CLOSED,
        _orphans,
        "Check whether the server answers twice, or a proxy mixes up connections.",
        LEFT,
    ),
    Rule(
        "not-readable",
        NOTE,
        ANY,
        _unreadable,
        _NEWER,
        FAULTY,
    ),
    Rule("damaged", WARNING, ANY, _damaged, "Inspect the message with -V -x: it violates the protocol.", FAULTY),
    Rule("skipped", WARNING, GAP, _missed, _MIXED),
    Rule("skipped", WARNING, ANY, _missed_before, _MIXED, TAIL),
    Rule("frame-cut-off", NOTE, CLOSED, _tail, _CUT_OFF, LEFT),
    Rule(DUPLICATE, WARNING, ANY, _id_again, "Have the client use a unique id for every open request.", REQUEST),
    Rule(DUPLICATE, WARNING, EXCHANGE, _duplicate, "Have the client use a unique id for every open request."),
    Rule("late", WARNING, EXCHANGE, _late, "Check what keeps the server busy; streamdump latency shows all requests."),
)
