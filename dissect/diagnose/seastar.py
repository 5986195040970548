"""Seastar RPC: negotiations that fail, verbs that are not known or throw, replies that come late or never, streams without an end.

A call that expects no reply looks like one whose reply is missing. So a missing reply is judged by its verb: one that was
answered before on the same connection should be answered again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from ..model import Exchange, Message
from ..protocols.seastar import MAGIC
from ..protocols.seastar.frame_chains import LONGEST_HEADER
from ..protocols.seastar.info import connection_text, worked
from ..protocols.seastar.layouts import COMPRESS, ISOLATION, LZ4_METHOD, OVER, STREAM_PARENT, UNKNOWN_VERB, USER
from ..protocols.seastar.scylla import BLOCK
from ..quota import drop_oldest
from ..units import count, duration_text, some
from .rules import (
    ANY,
    CLOSED,
    CLOSED_ADVICE,
    ENDED,
    ERROR,
    EXCHANGE,
    NOTE,
    NOTED,
    PATIENCE_NS,
    SPOKEN,
    WARNING,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    HandshakeStep,
    Refusal,
    Rule,
    last_before,
    noted,
    numbers,
    packets,
    quoted,
    since,
)

NEAR = 4
"""Leading bytes of the magic that show the intent to send it."""

CALLS = 4_096
"""Calls without a reply remembered with their verbs, at most."""

VERBS = 1_024
"""Answered verbs remembered, at most."""

DROPPED = 64
"""Calls without a reply at the end that are reported, at most."""

PAYS = 0.9
"""Ratio of compressed to original size above which compression does not pay."""

AT_ONCE_NS = 10_000_000_000
"""A server that ends a connection so soon after its first calls does so because of them; later it may have been idle."""

LONG_NS = 100_000_000
"""Duration from which the time of a call is split into handler and network."""


class Call(NamedTuple):
    """A call whose reply has not come."""

    verb: str
    number: int
    packet: int
    time_ns: int
    deadline_ns: int | None
    """When its time is over, if it states a timeout."""
    in_blocks: bool
    """Whether its frame is several LZ4 blocks of SCYLLA_V3, and undamaged."""


class SeastarState(msgspec.Struct):
    """The state of a connection."""

    offer: Message | None = None
    granted: bool = False
    stream: bool = False
    ended: list[bool] = msgspec.field(default_factory=lambda: [False, False])
    """End-of-stream of the client, of the server."""
    calls: dict[int, Call] = msgspec.field(default_factory=dict)
    deadlines: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """When the time of calls is over, the earliest first, and their numbers."""
    verbs: dict[str, None] = msgspec.field(default_factory=dict)
    """The verbs that were answered."""
    dropped: list[Call] = msgspec.field(default_factory=list)
    longest: tuple[int, int, str, int, int, int, int] | None = None
    """Of the call that took longest and whose handler was measured: how long, and the handler, its verb, and both messages and packets."""


def verb_of(message: Message | None) -> str:
    """Return the verb of a call for use within a sentence."""
    if message is None or "verb" not in message.fields:
        return "an unknown verb"
    return str(message.fields.get("verb_label") or f"verb {message.fields['verb']}")


# The negotiation


def _feature(offer: Message, number: int) -> dict[str, Any] | None:
    return next((one for one in offer.fields.get("features") or () if one.get("number") == number), None)


def _negotiation_failed(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    state, offer = context.state, context.state.offer
    if closed.lacking or state.granted or not closed.ended:
        return None
    if offer is None:
        client = 1 - closed.server
        size, head = closed.bytes[client], closed.first_bytes[client][: len(MAGIC)]
        if any(context.messages) or not size or not closed.syn or closed.bytes[closed.server] or closed.other_protocols[client] is not None:
            return None
        if head == MAGIC[: len(head)]:
            where = f"in the middle of the negotiation, after {count(size, 'byte')} from the client"
            return FindingDraft(f"{closed.who(closed.by)} ends the connection {where}", ())
        # Of bytes that nobody knows none are shown: they may be a password
        near = head.startswith(MAGIC[:NEAR]) and head.isascii()
        shown = f"with {quoted(head.decode('latin-1'))}, and not with" if near else "without"
        cause = f"{closed.who(closed.by)} ends the connection: the client begins {shown} the magic {quoted(MAGIC.decode())}"
        return FindingDraft(cause, (), advice=_BEGINNING)
    if closed.by != closed.server or context.messages[1] or closed.bytes[closed.server]:
        return None
    parent, cookie, packed = (_feature(offer, number) or {} for number in (STREAM_PARENT, ISOLATION, COMPRESS))
    advice = None
    if offer.fault is not None:
        why = f"the negotiation of the client cannot be read: {offer.fault.field} at byte {offer.fault.offset}: {offer.fault.reason}"
    elif "stream_parent" in parent:
        why = f"it probably does not know connection {connection_text(parent['stream_parent'])}, of which the client asks for a stream"
        advice = "Open streams on the server, shard and connection that issued this id, while that connection is open."
    elif "cookie" in cookie:
        why = f"it probably refuses the isolation cookie {quoted(cookie['cookie'])}"
        advice = "Use a cookie for which the server's configuration has a scheduling group."
    elif "algorithms" in packed:
        why = f"it probably does not support the offered compression, {quoted(packed['algorithms'])}"
    else:
        why = "it does not answer the negotiation"
    return FindingDraft(f"the server ends the connection: {why}", numbers(offer), packets(offer), advice=advice)


def _declined(context: ConversationContext, message: Message) -> FindingDraft | None:
    negotiated = message.fields.get("negotiated")
    if not isinstance(negotiated, dict) or not negotiated.get("declined"):
        return None
    names = [str(one) for one in negotiated["declined"]]
    if "COMPRESS" not in names:
        cause = f"the server declines {some(names)}, which the client offers: it is older, or not set up for it"
        return FindingDraft(cause, severity=NOTE)
    packed = (context.state.offer and _feature(context.state.offer, COMPRESS)) or {}
    offered = f" ({packed['algorithms']})" if "algorithms" in packed else ""
    cause = f"the server declines {some(names)}: nothing is compressed, though the client offers it{offered}"
    return FindingDraft(cause, advice="Configure the same compression at both.")


def _pays(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """Where compression is not worth its while; `conversations` has its figures of all."""
    one = closed.facts.get("compression")
    if one is None or one["after"] <= PAYS * one["before"]:
        return None
    before, after = one["before"], one["after"]
    if one.get("unread"):
        return None
    methods = one.get("methods")
    if methods is not None and not any(number for name, number in methods.items() if name != "raw"):
        cause = f"{one['taken']} was agreed on, but no frame is compressed ({count(methods['raw'], 'frame')})"
        return FindingDraft(cause, (), key="raw", advice=_RAW)
    offered = f" (the client offers {some(one['offered'])})" if one["offered"] else ""
    verdict = f"{1 - after / before:.0%} less" if after < before else f"{after - before:,} more than without"
    cause = (
        f"{one['taken']} is used{offered}, and saves little: {count(one['frames'], 'frame')} of {before:,} bytes "
        f"{'is' if one['frames'] == 1 else 'are'} sent as {after:,}, {verdict}"
    )
    return FindingDraft(cause, (), key="compression")


# Calls


def _verb(context: ConversationContext, answer: Message, request: Message | None) -> str:
    call = context.state.calls.get(answer.request or 0)
    return verb_of(request) if call is None else str(call.verb)


def refusal(context: ConversationContext, message: Message, request: Message | None) -> Refusal:
    """Return what an exception means."""
    # It was negotiated, whether that was captured or not
    context.ready = True
    fields, verb = message.fields, _verb(context, message, request)
    if fields.get("exception_type") == UNKNOWN_VERB:
        verb = verb_of(message) if "verb" in fields else verb
        return Refusal(f"the server does not know {verb}", advice=_RELEASES, rule="unknown-verb", asked="Request")
    text = fields.get("text")
    kind = fields.get("exception_type", USER)
    shown = quoted(text, 120) if text is not None else "what was not captured" if kind == USER else f"exception type {kind}"
    return Refusal(f"{verb} throws {shown}", advice=_LOG, rule="exception", text=str(text or shown), asked="Request")


def _overdue(context: ConversationContext, message: Message) -> FindingDraft | None:
    """A call whose time is over by the time of this message of the server: without a gap before it, no reply is missing."""
    state = context.state
    while message.sender == "server" and state.deadlines and state.deadlines[0][0] < message.time_ns:
        _, number = heappop(state.deadlines)
        call = state.calls.get(number)
        # Behind a gap a reply may have been there
        if call is not None and context.orphans is not None and number != message.request:
            return _passed(call)
    return None


def _unanswered(context: ConversationContext, exchange: Exchange) -> FindingDraft | None:
    state = context.state
    call = state.calls.pop(exchange.request, None)
    if call is None:
        return None
    if exchange.response is not None:
        # It was captured before its request
        _note_verb(state, call)
        return None
    overdue = exchange.reason == "timeout" and call.deadline_ns is not None and call.deadline_ns < exchange.time_ns
    if overdue or exchange.reason == "deadline passed":
        return _passed(call)
    if exchange.reason in ("closed", "capture ended") and len(state.dropped) < DROPPED:
        state.dropped.append(call)
    return None


def _passed(call: Call) -> FindingDraft:
    return FindingDraft(f"{call.verb} had no reply within the deadline stated in the call", (call.number,), (call.packet,), key=call.verb)


def _dropped(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    state = context.state
    if not state.dropped or context.failed:
        return None
    # One that its sender did not send to its end is not another error
    calls = [one for one in state.dropped if one.number != context.aborted_number]
    # What the last packet asks nobody could answer
    calls = [one for one in calls if closed.ended or one.time_ns < closed.until_ns]
    if not calls:
        return None
    # Others may be calls that expect no reply
    owed = [one for one in calls if one.verb in state.verbs]
    shown = owed or calls
    ages = [max(0, closed.until_ns - one.time_ns) for one in shown]
    names = some(dict.fromkeys(one.verb for one in shown))
    how_many = "a call" if len(shown) == 1 else f"{len(shown)} calls{' or more' if len(calls) == DROPPED else ''}"
    age = " to ".join(dict.fromkeys((duration_text(min(ages)), duration_text(max(ages)))))
    evidence = tuple(one.number for one in shown), tuple(one.packet for one in shown)
    if not state.verbs and closed.by == closed.server and context.opening_seen and not closed.lacking and min(ages) < AT_ONCE_NS:
        first = f"its first call ({names})" if len(calls) == 1 else f"its first {len(calls)} calls ({names})"
        cause = f"the server {closed.verb} the connection {duration_text(min(ages))} after {first}, without a reply"
        return FindingDraft(cause, *evidence, ERROR if closed.how == "RST" else WARNING, _NOT_ACCEPTED)
    if not owed:
        cause = f"{how_many} ({names}) had no reply for {age}; no other call of these verbs was answered, so perhaps they expect none"
        return FindingDraft(cause, *evidence, NOTE, rule="no-reply", advice=_NO_WAIT)
    if not closed.ended or closed.by is None:
        severity = NOTE if max(ages) < PATIENCE_NS or closed.lacking else WARNING
        return FindingDraft(f"{how_many} ({names}) without a reply for {age} {closed.when}", *evidence, severity, _HANGS, rule="no-reply")
    severity = ERROR if closed.by == closed.server and not closed.lacking else WARNING
    cause = f"{closed.who(closed.by)} {closed.verb} the connection while {how_many} ({names}) had no reply for {age}"
    advice = _BLOCKS if closed.by == closed.server and calls[-1].in_blocks else None
    return FindingDraft(cause, *evidence, severity, advice)


def _late(context: ConversationContext, message: Message) -> FindingDraft | None:
    note = next((note for note in message.notes if " after the deadline of " in note), None)
    verb = _verb(context, message, context.request_of(message))
    return FindingDraft(f"the reply to {verb} comes {note}: the client has given up by then", key=verb) if note is not None else None


def _times(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if context.state.longest is None:
        return None
    took, handler, verb, *evidence = context.state.longest
    rest = max(0, took - handler)
    times = f"{duration_text(took)}: {duration_text(handler)} in its handler and {duration_text(rest)} in transit"
    advice, rule = (None, "handler-time") if handler >= rest else (_NETWORK, "network-time")
    cause = f"the slowest call, {verb}, takes {times}"
    return FindingDraft(cause, tuple(evidence[:2]), tuple(evidence[2:]), advice=advice, rule=rule)


def _not_positive(context: ConversationContext, message: Message) -> FindingDraft | None:
    ident = message.fields.get("msg_id", 1)
    cause = f"{verb_of(message)} is called with msg_id {ident}; ids start at 1 and increase"
    return FindingDraft(cause, key="negative") if ident <= 0 else None


# Ends


def _no_end(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    state = context.state
    lacking = closed.lacking or context.orphans is None
    if not state.stream or not state.granted or all(state.ended) or lacking or not closed.ended or not all(closed.packets):
        return None
    missing = " and ".join(f"the {name}" for name, ended in zip(("client", "server"), state.ended, strict=True) if not ended)
    last = last_before(context, closed)
    cause = f"the stream ends without an end-of-stream of {missing}: {closed.who(closed.by)} ends the connection"
    return FindingDraft(cause, numbers(last), packets(last))


def _closed_by_server(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    state, (after, last) = context.state, since(context, closed)
    if last is None or closed.by != closed.server or state.stream or state.dropped or context.failed or not context.messages[1]:
        return None
    unused = closed.how == "RST" and not context.messages[0] > 1 and context.opening_seen and not closed.lacking
    before = ", before any call" if unused else ""
    return FindingDraft(
        f"the server {closed.verb} the connection{after}{before}", numbers(last), packets(last), WARNING if unused else None
    )


# State


def owed(context: ConversationContext) -> list[tuple[int, int]]:
    """Return the calls that expect a reply and had none."""
    return [(one.number, one.time_ns) for one in context.state.dropped if one.verb in context.state.verbs]


def _in_blocks(message: Message) -> bool:
    packed = message.fields.get("compression", {})
    several = "header" in packed and (packed["unpacked_size"] or 0) > BLOCK
    return several and packed["header"]["algorithm"] == LZ4_METHOD and message.fault is None and not message.notes


def _note_verb(state: SeastarState, call: Call) -> None:
    """Note that a verb was answered."""
    if len(state.verbs) < VERBS:
        state.verbs[call.verb] = None


def follow(context: ConversationContext, message: Message) -> None:
    """Update the state after the rules have checked a message."""
    state, name = context.state, message.name
    if name == "Request":
        timeout = message.fields.get("timeout")
        deadline_ns = message.time_ns + timeout * 1_000_000 if timeout and timeout < OVER else None
        call = Call(verb_of(message), message.number, message.packets[1], message.time_ns, deadline_ns, _in_blocks(message))
        state.calls[message.number] = call
        drop_oldest(state.calls, CALLS)
        if deadline_ns is not None and len(state.deadlines) < CALLS:
            heappush(state.deadlines, (deadline_ns, message.number))
    elif message.request in state.calls:
        call = state.calls.pop(message.request)
        _note_verb(state, call)
        took, handler = message.latency_ns, worked(message)
        if took is not None and handler is not None and took >= max(LONG_NS, state.longest[0] if state.longest else 0):
            state.longest = (took, handler, call.verb, call.number, message.number, call.packet, message.packets[1])
    elif name == "Compressed":
        # It may be what a response answers, or the response itself
        context.orphans = None
    elif name == "EndOfStream":
        state.ended[message.sender == "server"] = True
    elif name == "Negotiation" and message.kind == "response":
        state.granted = True
    elif name == "Negotiation":
        state.offer, state.stream = message, _feature(message, STREAM_PARENT) is not None


_BEGINNING = "Have the client start with the Seastar RPC negotiation, or check which protocol it expects."
_TIME = "Check what keeps the handler busy; servers drop replies after the deadline by design."

RULES: tuple[Rule, ...] = (
    Rule(
        "compression",
        NOTE,
        CLOSED,
        _pays,
        "Disable it between hosts on a fast network: it costs CPU at both, and small messages grow.",
    ),
    Rule(
        "negotiation-failed",
        ERROR,
        CLOSED,
        _negotiation_failed,
        "Check what the client sends first: servers close silently if it is wrong.",
        ENDED,
    ),
    Rule("declined", WARNING, "Negotiation", _declined, "If the feature is wanted, upgrade the server or configure it there."),
    Rule("deadline-passed", WARNING, ANY, _overdue, _TIME),
    Rule("deadline-passed", WARNING, EXCHANGE, _unanswered, _TIME),
    Rule(
        "late-reply", WARNING, ("Response", "Exception"), _late, "Check what keeps the server busy, or raise the client's timeout.", NOTED
    ),
    Rule("not-positive-id", NOTE, "Request", _not_positive, "Have the client count up from 1: exceptions carry the negated id."),
    Rule(
        "compression-unread",
        WARNING,
        "Compressed",
        noted("^compression .*cannot be opened", "the content cannot be read: {note}", "{note}"),
        "Capture with compression off, or with LZ4, to see the calls.",
        NOTED,
    ),
    Rule(
        "dictionary",
        NOTE,
        "Compressed",
        noted("^needs (the|a) dictionary", "the content of a frame cannot be read: it {note}", "{note}"),
        "Export it, SELECT data FROM system.dicts WHERE name = 'general', and give the file with --dict.",
        NOTED,
    ),
    Rule(
        "compression-checksum",
        ERROR,
        ANY,
        noted("^the checksum is 0x", "{name} of the {who} is damaged: {note}", "{who}"),
        "Check for damage between the two, or bytes that the capture lacks; both sides should have the same release.",
        NOTED,
    ),
    Rule(
        "dropped-calls",
        WARNING,
        CLOSED,
        _dropped,
        "Check the log of the side that ended the connection at the time of the last packet named.",
    ),
    Rule("handler-time", NOTE, CLOSED, _times, "streamdump latency --by verb shows all calls; this one spent its time in the handler."),
    Rule("stream-without-end", WARNING, CLOSED, _no_end, "Have both sides close the stream first: the last data may be lost.", ENDED),
    Rule(
        "closed-by-server",
        NOTE,
        CLOSED,
        _closed_by_server,
        CLOSED_ADVICE,
        ENDED | SPOKEN,
    ),
)

_RELEASES = "Check that all nodes have the same release: during an upgrade, older nodes do not know the verbs of newer ones."
_LOG = "Check the server's log for this text."
_BLOCKS = (
    "Check the server's log for a wrong checksum, and upgrade it: before 2026.2.5, ScyllaDB sometimes unpacks a sound frame of several LZ4 "
    "blocks, as that of the last call, wrongly."
)
_RAW = "No action needed: ScyllaDB compresses nothing before both sides agree on an algorithm, or if the peer accepts only raw frames."
_NOT_ACCEPTED = "Check the server's log for this connection, and compare release, compression and verbs of both sides."
_NO_WAIT = "--verbs names calls that expect no reply, if known."
_HANGS = "Check the log of the called side for what blocks the reply."
_NETWORK = "Check the network, and queues in front of the handler: the handler itself was fast."

FAMILY = Family(
    protocols=("seastar-rpc",),
    rules=RULES,
    others=(("unknown-verb", _RELEASES), ("exception", _LOG), ("no-reply", _NO_WAIT), ("network-time", _NETWORK)),
    steps=(HandshakeStep("negotiation", "Negotiation", "request"), HandshakeStep("ready", "Negotiation", "response", ready=True)),
    opening=frozenset(("Negotiation",)),
    new_state=SeastarState,
    follow=follow,
    refusal=refusal,
    least_header=LONGEST_HEADER,
    renames_responses=True,
    reported_apart=frozenset(("Request",)),
    owed=owed,
)
