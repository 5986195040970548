"""mewbase: connections that are not accepted, frames over which servers close or go deaf, subscriptions and queries that stop.

What servers do was seen with real ones: they close over a missing field, drop types that they do not know, and answer nothing more on a
connection once a frame could not be decoded.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..bson import Special
from ..model import Gap, Message
from ..protocols.mewbase.dissector import REST_NOTE
from ..units import count, duration_text, some
from .rules import (
    ANY,
    CLOSED,
    CLOSED_ADVICE,
    ENDED,
    ERROR,
    GAP,
    NOTE,
    NOTED,
    OPEN,
    PATIENCE_NS,
    REFUSED_ADVICE,
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
    said,
)

TRANSACTIONS = ("STARTTX", "COMMITTX", "ABORTTX")

VERSION = re.compile(r"\d+(\.\d+)?").fullmatch
LATEST = 0.1
"""The version of the last servers, which refuse a greater one."""

ABSENT = frozenset(("no such channel", "no such binder", "no such query"))

DEAFENING = frozenset(
    ("mandatory field type is missing", "type is not a string", "frame is not a document", "mandatory field frame is missing")
)
"""Notes on frames that servers cannot parse."""

KEPT = 256
"""Subscriptions, channels, sessions and queries of a connection, each at most."""

LONGEST = 1 << 26
"""A frame with a greater length was hardly meant to have it."""

IDLE_NS = 1_000_000_000
"""A connection that was silent for so long may have been closed for that."""

STALE_NS = 5_000_000_000
"""An event should be acknowledged by then."""

STOPPED_NS = 200_000_000
"""An event should have come to a subscription of the same connection by then."""

ADVICE = {
    "authentication failed": "Check the user name and password in authInfo.",
    "not authorised": "Give the user the right to do this; servers close the connection if it lacks this right.",
    "no such channel": "Create it first with CREATECHANNEL, or check the name.",
    "no such binder": "Create it first with CREATEBINDER, or check the name.",
    "no such query": "Check the name: queries are built into the server.",
}


NAMED = (("channel", "channel"), ("binder", "binder"), ("name", "the name"), ("sessID", "session"))
"""What a request that is refused is for: the first of these fields that it has."""


class MewbaseSubscription(msgspec.Struct):
    """One subscription: what came, and what of it was acknowledged."""

    channel: Any
    unfiltered: bool
    """It gets all that is published to its channel."""
    events: int = 0
    acked: int = 0
    position: int | None = None
    last_ns: int = 0
    last_number: int = 0
    last_packet: int = 0
    begin: int = 0
    begin_packet: int = 0
    """The message with which it begins."""
    until_ns: int | None = None
    """When the client ended it."""
    published: int = 0
    """Events that this connection published to its channel, and when the last of them was accepted."""
    published_ns: int = 0


class MewbaseState(msgspec.Struct):
    """The state of a connection."""

    unreadable: tuple[int, int | None, str] | None = None
    """The frame after which a server may answer nothing: its number, packet, and the error."""
    subscriptions: dict[Any, MewbaseSubscription] = msgspec.field(default_factory=dict)
    channels: dict[Any, int] = msgspec.field(default_factory=dict)
    """Events that this connection published, by channel."""
    transactions: dict[Any, tuple[int, int]] = msgspec.field(default_factory=dict)
    queries: dict[Any, tuple[int, int]] = msgspec.field(default_factory=dict)


def body_of(message: Message | None) -> dict[str, Any]:
    """The inner document."""
    frame = None if message is None else message.fields.get("frame")
    return frame if isinstance(frame, dict) else {}


def _key(value: Any) -> Any:
    return value if isinstance(value, int | str | float) else None


# The beginning


def _no_connect(context: ConversationContext, message: Message) -> FindingDraft | None:
    first = sum(context.messages) == 1 and context.from_start and not message.position and message.sender == "client"
    cause = f"the client begins with {message.name} and not with CONNECT: servers do not answer before that"
    return FindingDraft(cause) if first and message.name != "CONNECT" else None


def _version(context: ConversationContext, message: Message) -> str | None:
    version = body_of(message).get("version")
    if message.kind != "request" or message.fault is not None or (isinstance(version, str) and VERSION(version)):
        return None
    shown = "no version" if version is None else f"version {quoted(version)}, which is not a number of the form a.b"
    return f"the client states {shown}: servers do not answer that"


def refusal(context: ConversationContext, message: Message, request: Message | None) -> Refusal:
    """Return what a refused response means."""
    body, asked = body_of(message), body_of(request)
    code, text = body.get("errCode"), body.get("errMsg")
    label = body.get("errCode_label")
    why = str(label) if label else f"error {code}" if code is not None else "no reason given"
    if isinstance(text, str) and text and text.lower() != why:
        why += f" ({quoted(text, 160)})"
    text = text if isinstance(text, str) else ""
    advice = ADVICE.get(str(label))
    if request is None or request.name != "CONNECT":
        # A server that reads it has accepted CONNECT, whether its response was captured or not
        context.ready = context.ready or request is not None
        named = (f"{what} {_shown(asked[name])}" for name, what in NAMED if asked.get(name) is not None)
        lacks = "consume from it" if request is not None and request.name == "SUBSCRIBE" else ""
        return Refusal(why, next(named, ""), label in ABSENT, advice, lacks=lacks, text=text)
    version = asked.get("version")
    if "auth" in f"{why} {code}".lower():
        auth = asked["authInfo"] if isinstance(asked.get("authInfo"), dict) else {}
        user = auth.get("user", auth.get("username", asked.get("username")))
        about = f"user {quoted(user)}" if user is not None and not str(user).startswith("<redacted") else ""
        return Refusal(why, about, label in ABSENT, advice, "authentication-failed")
    if isinstance(version, str) and VERSION(version) and float(version) > LATEST:
        return Refusal(why, f"version {quoted(version)}", label in ABSENT, _VERSION, "version-refused")
    return Refusal(why, "", label in ABSENT, advice, "connect-refused")


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else str(value)


# Frames that servers do not accept


def _missing_field(context: ConversationContext, message: Message) -> FindingDraft | None:
    found = [note for note in message.notes if note.startswith("mandatory field ")]
    if not found or message.sender == "server" or message.fault is not None:
        return None
    return FindingDraft(f"{message.name} from the client: {'; '.join(found)}", key=(message.name, tuple(found)))


def _unreadable_reason(message: Message) -> str | None:
    """Return why a server may be unable to parse a frame."""
    if message.fault is not None:
        if message.fields.get("size", 0) > LONGEST:
            return f"states a length of {count(message.fields['size'], 'byte')}, which servers wait for"
        return f"cannot be read: {message.fault.field} at byte {message.fault.offset}: {message.fault.reason}"
    if message.name in TRANSACTIONS:
        return "belongs to transactions, which servers do not have"
    if _decimal(message.fields.get("frame")):
        return "holds a decimal128, which servers cannot read"
    for note in message.notes:
        if note in DEAFENING or note.endswith(" is a frame of the server") or "is not UTF-8" in note:
            return f"cannot be parsed: {note}"
    return None


def _decimal(value: Any) -> bool:
    """Whether there is a decimal128 in a value."""
    inside: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, Special) and "$numberDecimal" in value) or any(map(_decimal, inside))


def _stated(closed: Closed) -> str | None:
    """The length that no frame can have, which the client states."""
    length = closed.facts.get("wrong_length_of_client")
    if length is None:
        return None
    why = "which servers wait for" if length > 4 else "which no frame has"
    return f"a frame from the client that states a length of {count(length, 'byte')}, {why}"


def _impossible(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    what, severity = _stated(closed), WARNING if context.messages[1] else ERROR
    draft = what is not None and not context.failed and not closed.lacking
    return FindingDraft(f"servers do not answer after {what}", (), severity=severity) if draft else None


def _skipped(context: ConversationContext, gap: Gap) -> None:
    if gap.reason == "skipped" and gap.sender == "client" and context.state.unreadable is None and context.opening_seen:
        last = context.last[0]
        size, be = ("some bytes", "are") if gap.size is None else (count(gap.size, "byte"), "is" if gap.size == 1 else "are")
        context.state.unreadable = (0 if last is None else last.number) + 1, None, f"{size} from the client, which {be} not a frame"


def _deaf(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    unreadable = context.state.unreadable
    if unreadable is None or closed.lacking or context.failed:
        return None
    number, packet, what = unreadable
    found = [one for one in context.unanswered if one.request >= number and one.reason in ("closed", "capture ended")]
    open_ = [one.request for one in found if one.reason == "closed" or (one.waited_ns or 0) >= PATIENCE_NS]
    if not open_:
        return None
    if packet is None:
        what, evidence, marks = _stated(closed) or what, open_, []
    else:
        evidence, marks = [number, *open_], [packet]
    after = (
        f", and closes the connection {duration_text(closed.until_ns - (context.last_ns or 0))} later" if closed.by == closed.server else ""
    )
    names = some(dict.fromkeys(one.name for one in context.unanswered if one.request in open_))
    marks += packets(*map(context.remembered().get, open_))
    cause = f"the server stops answering ({names}) after {what}{after}"
    return FindingDraft(cause, tuple(dict.fromkeys(evidence)), tuple(dict.fromkeys(marks)))


def _old_end(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """UNSUBSCRIBE as it was up to November 2016: it has no response, and the client is done with the connection."""
    found = [one for one in context.owed() if one.name == "UNSUBSCRIBE" and "SubID" in body_of(one)]
    if not found:
        return None
    ended = {one.number for one in found}
    context.unanswered = [one for one in context.unanswered if one.request not in ended]
    closes = " and close the connection" if closed.by == closed.server else ""
    cause = f"UNSUBSCRIBE has no answer: servers up to November 2016 do not understand its SubID{closes}"
    return FindingDraft(cause, numbers(*found), packets(*found))


def _closes_over(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    # Else it was deaf before
    at_once = not closed.untimed and closed.until_ns - (context.last_ns or 0) < IDLE_NS
    for asked in context.owed() if closed.by == closed.server and not closed.lacking else ():
        notes = (note for note in asked.notes if note.startswith("mandatory ") or "was not given out" in note)
        why = next(notes, _unreadable_reason(asked) if at_once else None)
        if why is not None:
            cause = f"the server closes the connection instead of answering {asked.name}: {why}"
            return FindingDraft(cause, numbers(asked), packets(asked))
    return None


# Ends


def _ended(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    last = last_before(context, closed)
    if last is None or closed.by != closed.server or context.failed or context.unanswered or not context.messages[1] or closed.injected:
        return None
    quiet = 0 if closed.ended_ns is None else closed.ended_ns - last.time_ns
    if quiet < IDLE_NS:
        cause = f"the server {closed.verb} the connection {duration_text(quiet)} after {said(context, last)}"
        return FindingDraft(cause, numbers(last), packets(last))
    severity = NOTE if closed.order_unsure else WARNING
    cause = f"the server {closed.verb} the connection after {duration_text(quiet)} without any message, not even a PING"
    return FindingDraft(cause, numbers(last), packets(last), severity, _PING, rule="idle")


# Subscriptions, transactions, queries


def _backwards(context: ConversationContext, message: Message) -> FindingDraft | None:
    body = body_of(message)
    one = context.state.subscriptions.get(_key(body.get("subID")))
    position = body.get("pos", body.get("seqNo"))
    if one is None or one.position is None or not isinstance(position, int) or position > one.position:
        return None
    ident = body.get("subID")
    if position == one.position:
        cause = f"the event at position {position} is delivered twice to subscription {ident}"
        return FindingDraft(cause, (one.last_number, message.number), severity=NOTE, key=(ident, "twice"))
    cause = f"the positions of subscription {ident} do not increase: {position} comes after {one.position}"
    return FindingDraft(cause, (one.last_number, message.number), (one.last_packet, *packets(message)), key=ident)


def _unacknowledged(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    for ident, one in context.state.subscriptions.items() if closed.complete else ():
        end = closed.until_ns if one.until_ns is None else one.until_ns
        open_ = one.events - one.acked
        if open_ > 0 and end - one.last_ns >= STALE_NS:
            cause = (
                f"{open_:,} of {count(one.events, 'event')} of subscription {ident} {'was' if open_ == 1 else 'were'} not acknowledged in "
                f"{duration_text(end - one.last_ns)}"
            )
            return FindingDraft(cause, (one.last_number,), (one.last_packet,))
    return None


def _stopped(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """Events that the connection itself published, and that did not come to it."""
    for ident, one in context.state.subscriptions.items() if context.opening_seen and closed.complete else ():
        end = closed.until_ns if one.until_ns is None else one.until_ns
        if not one.unfiltered or one.published <= one.events or end - one.published_ns < STOPPED_NS:
            continue
        which = f"the {one.published:,} events that the same connection published to {quoted(one.channel)}"
        if one.events:
            cause = f"subscription {ident} gets {one.events:,} of {which}: the server has stopped delivering"
            return FindingDraft(cause, (one.last_number,), (one.last_packet,))
        # It may never have started
        advice = "Check whether the server could read these events, and where the subscription starts."
        return FindingDraft(f"subscription {ident} gets none of {which}", (one.begin,), (one.begin_packet,), NOTE, advice)
    return None


def _session(ident: object) -> str:
    return "a session" if ident is None else f"session {ident}"


def _begun_twice(context: ConversationContext, message: Message) -> FindingDraft | None:
    session = _key(body_of(message).get("sessID"))
    before, unreadable = context.state.transactions.get(session), context.state.unreadable
    if message.kind != "request" or (unreadable is not None and unreadable[0] < message.number):
        return None
    if message.name == "STARTTX" and before is not None:
        cause = f"STARTTX begins a transaction of {_session(session)} while one is open"
        return FindingDraft(cause, (before[0], message.number), (before[1], *packets(message)), key=session)
    alone = message.name != "STARTTX" and before is None and context.opening_seen
    return FindingDraft(f"{message.name} ends a transaction of {_session(session)}, but none is open", key=session) if alone else None


def _not_ended(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    found = context.state.transactions
    if not found or not closed.ended or closed.lacking or context.state.unreadable is not None:
        return None
    what = _session(next(iter(found))) if len(found) == 1 else f"{len(found)} sessions"
    cause = f"the connection ends while a transaction of {what} is neither committed nor aborted"
    messages, marks = zip(*found.values(), strict=True)
    return FindingDraft(cause, messages, marks)


def _unfinished(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    found = context.state.queries
    if not found or not closed.ended or not closed.complete:
        return None
    ident = next(iter(found), None)
    which = "a query" if ident is None else f"query {ident}" if len(found) == 1 else f"{len(found)} queries"
    cause = f"{closed.who(closed.by)} ends the connection before the last result of {which}"
    messages, marks = zip(*found.values(), strict=True)
    return FindingDraft(cause, messages, marks)


# State


def follow(context: ConversationContext, message: Message) -> None:
    """Update the state after the rules have checked a message."""
    state = context.state
    if message.sender == "client":
        odd = _unreadable_reason(message) if state.unreadable is None else None
        if odd is not None:
            state.unreadable = message.number, message.packets[1], f"{message.name}, which {odd}"
    elif message.request is not None and state.unreadable is not None and message.request >= state.unreadable[0]:
        state.unreadable = None
    if message.name in _FOLLOW:
        _FOLLOW[message.name](context, state, message, body_of(message))


def _answered(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    request = context.request_of(message)
    if request is None:
        return
    if request.name == "STARTTX" and message.outcome == "refused":
        state.transactions.pop(_key(body_of(request).get("sessID")), None)
    elif request.name in ("PUB", "EMIT") and message.outcome == "answered":
        channel = _key(body_of(request).get("channel"))
        if channel in state.channels or len(state.channels) < KEPT:
            state.channels[channel] = state.channels.get(channel, 0) + 1
        for one in state.subscriptions.values():
            if one.channel == channel and request.number > one.begin and one.until_ns is None:
                one.published += 1
                one.published_ns = message.time_ns


def _subscribed(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    ident, asked = _key(body.get("subID")), body_of(context.request_of(message))
    if message.outcome == "answered" and ident is not None and len(state.subscriptions) < KEPT:
        unfiltered = not any(asked.get(name) for name in ("filterName", "matcher", "durableID"))
        channel = _key(asked.get("channel"))
        before = state.channels.get(channel, 0) if asked.get("startPos") == 0 else 0
        state.subscriptions[ident] = MewbaseSubscription(
            channel, unfiltered, begin=message.number, begin_packet=message.packets[1], published=before, published_ns=message.time_ns
        )


def _unsubscribed(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    ident = _key(body.get("subID", body.get("SubID")))
    one = state.subscriptions.get(ident) if message.kind == "request" else None
    if one is not None:
        one.until_ns = message.time_ns
        if one.published <= one.events == one.acked:
            del state.subscriptions[ident]


def _received(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    one = state.subscriptions.get(_key(body.get("subID")))
    if one is not None:
        one.events += 1
        position = body.get("pos", body.get("seqNo"))
        one.position = position if isinstance(position, int) else None
        one.last_ns, one.last_number, one.last_packet = message.time_ns, message.number, message.packets[1]


def _acknowledged(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    one = state.subscriptions.get(_key(body.get("subID", body.get("SubID"))))
    if one is not None:
        one.acked += 1


def _transaction(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    session = _key(body.get("sessID"))
    if message.name != "STARTTX":
        state.transactions.pop(session, None)
    elif len(state.transactions) < KEPT:
        state.transactions[session] = message.number, message.packets[1]


def _result(context: ConversationContext, state: MewbaseState, message: Message, body: dict[str, Any]) -> None:
    query = _key(body.get("queryID"))
    if message.name == "QUERYRESPONSE" or body.get("last") is not False or message.outcome == "refused":
        state.queries.pop(query, None)
    elif query not in state.queries and len(state.queries) < KEPT:
        state.queries[query] = message.number, message.packets[1]


_FOLLOW = {
    "RESPONSE": _answered,
    "SUBRESPONSE": _subscribed,
    "UNSUBSCRIBE": _unsubscribed,
    "SUBCLOSE": _unsubscribed,
    "RECEV": _received,
    "ACKEV": _acknowledged,
    **dict.fromkeys(TRANSACTIONS, _transaction),
    "QUERYRESULT": _result,
    "QUERYRESPONSE": _result,
}

_BSON = "Inspect the message with -V -x: a frame is a BSON document with type and frame, and its length includes itself."

RULES: tuple[Rule, ...] = (
    Rule("no-connect", ERROR, ANY, _no_connect, "Have the client send CONNECT first, and wait for its RESPONSE."),
    Rule("version", WARNING, "CONNECT", _version, f'Have the client state version "{LATEST}".'),
    Rule("old-unsubscribe", NOTE, CLOSED, _old_end, "No action needed, unless the client continues to use the connection.", OPEN),
    Rule(
        "closes-over",
        ERROR,
        CLOSED,
        _closes_over,
        "Inspect the message with -V, and have the client send what the server expects.",
        ENDED | OPEN,
    ),
    Rule("deaf", ERROR, CLOSED, _deaf, "Reconnect: a server that could not parse a frame misreads all that follows.", OPEN),
    Rule("impossible-length", WARNING, CLOSED, _impossible, _BSON),
    Rule(
        "unknown-type",
        WARNING,
        ANY,
        noted("drop (it|this) without an answer", "{name}: {note}", "{name}"),
        "Use the names that servers know: streamdump protocols mewbase lists them.",
        NOTED,
    ),
    Rule(
        "missing-field",
        WARNING,
        ANY,
        _missing_field,
        "Have the client send this field: servers close the connection for most missing fields.",
        NOTED,
    ),
    Rule("length", NOTE, ANY, noted(re.escape(REST_NOTE), "{name} from the {who}: {note}", "{who}"), _BSON, NOTED),
    Rule("skipped-bytes", WARNING, GAP, _skipped, _BSON),
    Rule("positions", WARNING, "RECEV", _backwards, "Have the consumer skip positions that it has processed."),
    Rule(
        "subscription-stopped",
        WARNING,
        CLOSED,
        _stopped,
        "Send ACKEV for each event immediately, and subscribe again: a server that stopped at its limit may not resume.",
    ),
    Rule("unacknowledged", WARNING, CLOSED, _unacknowledged, "Have the client send ACKEV for each RECEV: the server stops at a limit."),
    Rule("transaction", WARNING, TRANSACTIONS, _begun_twice, "Have the client end each transaction before it starts another."),
    Rule("transaction", WARNING, CLOSED, _not_ended, "Have the client commit or abort before it disconnects.", ENDED),
    Rule(
        "query-unfinished",
        WARNING,
        CLOSED,
        _unfinished,
        "Do not wait only for a last result: there is none if the query filters out the last document.",
        ENDED,
    ),
    Rule(
        "closed-by-server",
        NOTE,
        CLOSED,
        _ended,
        CLOSED_ADVICE,
        ENDED | SPOKEN,
    ),
)

_VERSION = f'Have the client state version "{LATEST}": servers refuse a greater one.'
_PING = "Have the client send PING more often than the server's idle timeout, 30 s by default."

FAMILY = Family(
    protocols=("mewbase",),
    rules=RULES,
    others=(
        ("connect-refused", REFUSED_ADVICE),
        ("version-refused", _VERSION),
        ("authentication-failed", ADVICE["authentication failed"]),
        ("idle", _PING),
    ),
    steps=(HandshakeStep("CONNECT", "CONNECT", "request"), HandshakeStep("ready", "RESPONSE", "response", ready=True)),
    opening=frozenset(("CONNECT", "RESPONSE", "PING")),
    new_state=MewbaseState,
    follow=follow,
    refusal=refusal,
    least_header=5,
    renames_responses=True,
)
