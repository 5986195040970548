"""Apache Iggy: logins, versions that do not fit, missing streams and topics, consumers that get nothing.

The protocol has no handshake in a fixed order: a client may ping before it logs in, and log in again. Refusals are looked at by the
names of their codes, which changed with the releases.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ..model import Message, Unreadable
from ..protocols.iggy.compare_rules import LOGINS
from ..protocols.iggy.frames import HEADER
from ..protocols.iggy.info import FINDS
from ..protocols.iggy.layout_versions import CLASSIC, FRAMINGS, FROM_CLIENTS, LONG, NEWEST, in_words, is_newer
from ..quota import keep_newest
from ..units import duration_text, some
from .rules import (
    ANY,
    CLOSED,
    CLOSED_ADVICE,
    ENDED,
    ERROR,
    LEFT_NS,
    NOT_DIALLED,
    NOTE,
    NOTED,
    OPEN,
    WARNING,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    Refusal,
    Rule,
    fact,
    host_of,
    is_here,
    last_before,
    noted,
    numbers,
    packets,
    quoted,
    said,
    stream_refused,
)

STORM, SECOND_NS = 100, 1_000_000_000
"""Empty responses to polls within a second that make a storm."""

IN_VAIN = 10
"""Polls of one partition without a message that are reported."""

PLACES = 64
"""Topics remembered as polled, or sent to, at most."""

STALE_NS = 5_000_000_000
"""Silence after which a server may regard the client as dead."""

INTERVAL_NS = 30_000_000_000
"""The interval at which servers expect pings by default."""

FOLLOWED = 1_024
"""Consumers of partitions of a server followed, at most."""

EMPTIED = frozenset(("delete_consumer_offset", "delete_segments", "delete_stream", "delete_topic", "purge_stream", "purge_topic"))
"""Commands after which consumers may start again."""

_PING = "Have the client ping in time: servers wait 1.2 times their heartbeat interval, 36 s by default."

GROUPS: tuple[tuple[str, str, bool, str], ...] = (
    ("exists", r"already_exists$", True, "No action needed if the existing one is the one you want."),
    (
        "no-partition",
        r"^(no_partitions|partition_not_found|not_resolved_consumer|consumer_group_partition_not_owned)$",
        False,
        "Check how many partitions the topic has, and how the client numbers them: newer servers start at 0, older ones at 1.",
    ),
    ("invalid-offset", r"^invalid_offset$", False, "Poll from first, last or next, or from an offset that the partition has."),
    (
        "not-a-member",
        r"^consumer_group_member_not_found$",
        False,
        "Have the client join the consumer group before it polls, and again after each reconnect: servers remove members that leave or are "
        "silent.",
    ),
    (
        "not-found",
        r"_not_found$|^invalid_(consumer_group|stream|topic)_id$",
        True,
        "Create it first, or check the name: names and numeric ids differ.",
    ),
    ("stale-client", r"^stale[ _]client$", False, _PING),
    (
        "unauthenticated",
        r"^(unauthenticated|no session|session too low|session error|invalid_session)$",
        False,
        "Have the client log in first, and again after each reconnect.",
    ),
    ("not-permitted", r"^unauthorized$", False, "Give the user the permissions for this."),
    (
        "bad-credentials",
        r"^(bad credentials|bad token|inactive user|malformed login|invalid_credentials|invalid_username|invalid_password|user_inactive"
        r"|invalid_personal_access_token|personal_access_token_expired)$",
        False,
        "Check the user name and password, or the token, at the client, and that the user is active.",
    ),
    (
        "checksum",
        r"_checksum$",
        False,
        "Find what changes messages between the sender of the checksum and the server.",
    ),
    (
        "limit",
        r"^too_(big|many|small)_|limit_reached$|^topic_full$|too_large$|space_exhausted$|^invalid_messages?_(size|count)$|^bad body size$",
        False,
        "Send smaller messages or fewer at once, or raise the limit in the configuration of the server.",
    ),
    (
        "version-mismatch",
        r"^(release (too low|too high|mismatch)|incompatible[_ ]protocol(_version)?|unsupported_option_key)$",
        False,
        "Use compatible releases of client and server.",
    ),
    (
        "unknown-command",
        r"^(invalid_command|invalid_format|feature_unavailable|bad operation|bad body)$",
        False,
        "Use a client for this release of the server: commands and layouts differ between releases.",
    ),
)
"""Refusals by rule: the names of codes, whether a client may expect them, and the advice."""

_GROUPS = tuple((rule, re.compile(pattern).search, expected, advice) for rule, pattern, expected, advice in GROUPS)


class IggyState(msgspec.Struct):
    """The state of a connection."""

    logged_in: bool | None = False
    """Whether the login succeeded; None after a logout."""
    login_refused: FindingDraft | None = None
    """The last refused login."""
    window: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    """When counting began, and the empty answers since then."""
    polled: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By place the polls, and the first number of a message and its packet; removed with the first message that comes."""
    sent: dict[str, None] = msgspec.field(default_factory=dict)
    quiet_ns: int = 0
    """For how long the client was silent before its last message."""
    pinged: tuple[int, int, int] | None = None
    """When it pinged last, how long after the ping before, and how long that was after the one before it."""
    leader: tuple[int, FindingDraft] | None = None
    """When the server named another leader; None once the client has sent another request."""
    delivering: dict[str, None] = msgspec.field(default_factory=dict)
    """Places from which messages came."""
    not_found: dict[str, None] = msgspec.field(default_factory=dict)
    """Places that were not found."""


# What a refusal says

NAMED = (
    ("stream_id", "stream"),
    ("topic_id", "topic"),
    ("group_id", "group"),
    ("user_id", "user"),
    ("username", "user"),
    ("name", "the name"),
    ("client_id", "client"),
)
"""Fields of requests that say what they are for."""

LACKS = {"poll_messages": "consume from it", "send_messages": "publish to it"}
"""What a client cannot do if these are refused."""


def reason(message: Message) -> str:
    """The name of the code of a refused response, or its number."""
    fields = message.fields
    if message.name == "eviction":
        return str(fields.get("reason_label") or f"reason {fields.get('reason', 'unknown')}")
    if fields.get("status"):
        if fields.get("status_label"):
            return str(fields["status_label"])
        note = next((note for note in message.notes if note.startswith(f"status {fields['status']} is ")), "")
        return note.partition(" is ")[2].partition(",")[0] or f"status {fields['status']}"
    for one in fields.get("results") or ():
        if one.get("result"):
            return str(one.get("result_label") or f"result {one['result']}")
    return "no reason given"


def _group(why: str) -> tuple[str, bool, str] | None:
    """Return the rule for a reason; where it has several meanings, all must have the same rule."""
    found = {
        next(((rule, expected, advice) for rule, matches, expected, advice in _GROUPS if matches(one)), None) for one in why.split(" or ")
    }
    return found.pop() if len(found) == 1 else None


def _words(why: str) -> str:
    return why.replace("_", " ")


def _named(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("value")
    return None if value is None else quoted(value) if isinstance(value, str) else str(value)


def _about(request: Message | None) -> str:
    """What a request is for: `stream "orders", topic 3`."""
    if request is None:
        return ""
    fields = request.fields
    parts = [f"{what} {shown}" for name, what in NAMED if (shown := _named(fields.get(name))) is not None]
    consumer, key = fields.get("consumer") or {}, fields.get("partitioning") or {}
    if consumer.get("kind_label") == "consumer_group" and consumer.get("id"):
        parts.append(f"consumer group {_named(consumer['id'])}")
    # Where partitions count from 1, 0 means that none is named
    partition = key.get("value") if key.get("kind_label") == "partition_id" else fields.get("partition_id")
    if partition is not None and (key or fields.get("partition_given", partition)):
        parts.append(f"partition {partition}")
    return ", ".join(parts)


def _place(request: Message | None) -> str | None:
    names = [None if request is None else _named(request.fields.get(name)) for name in ("stream_id", "topic_id")]
    return None if None in names else "/".join(map(str, names))


def refusal(context: ConversationContext, message: Message, request: Message | None) -> Refusal:
    """Return what a refused response means that has no rule of its own."""
    why, about = reason(message), _about(request)
    text = message.fields.get("message")
    text = text if isinstance(text, str) else ""
    shown = f"{_words(why)} ({quoted(text)})" if text else _words(why)
    if _words(why) == "stale client" or (why == "consumer_group_member_not_found" and context.state.quiet_ns >= STALE_NS):
        shown += f" after {duration_text(context.state.quiet_ns)} of silence{_beat(context, request)}"
    if message.name == "eviction":
        shown = f"the server evicts the client: {shown}"
    rule, expected, advice = _group(why) or ("refused", False, None)
    if rule == "not-a-member" and message.name == "leave_consumer_group":
        expected, advice = True, "No action needed: the client is not in the group."
    lacks = LACKS.get(message.name, "") if rule in ("not-found", "not-a-member", "no-partition", "not-permitted") else ""
    return Refusal(shown, about, expected, advice, rule, lacks=lacks, text=text)


def _beat(context: ConversationContext, late: Message | None = None) -> str:
    """Return how often the client had sent pings, as the server's interval is not on the wire. `late`: its next request."""
    if context.state.pinged is None:
        return ", and never pinged"
    gap = context.state.pinged[2 if late is not None and late.name == "ping" else 1]
    return f", though it had pinged every {duration_text(gap)}" if gap else ""


# Logins and versions


def _evicted(context: ConversationContext, message: Message) -> FindingDraft | None:
    """An eviction without a request states why the server ends the connection."""
    if message.request is not None:
        return None
    why, last = reason(message), context.last[0]
    rule, _, advice = _group(why) or ("evicted", False, None)
    quiet = 0 if last is None else message.time_ns - last.time_ns
    silent = f" after {duration_text(quiet)} of silence{_beat(context)}" if quiet >= STALE_NS else ""
    cause = f"the server evicts the client{silent}: {_words(why)}{_accepted(message, None)}"
    severity = WARNING if _words(why) == "stale client" else ERROR
    return FindingDraft(cause, (*numbers(last), message.number), severity=severity, advice=advice, rule=rule)


def _login(context: ConversationContext, message: Message) -> FindingDraft | None:
    """A refused login: what follows decides its severity (a login that succeeds, the same again, or the end)."""
    if message.number in context.reported:
        return None
    state, request = context.state, context.request_of(message)
    before: FindingDraft | None = state.login_refused
    asked = message.name if request is None else request.name
    # A login that succeeded may be among bytes that are missing
    missed = before is not None and context.orphans is None and asked != "ping"
    if message.outcome == "answered" and (asked in LOGINS or missed):
        state.login_refused, state.logged_in = None, True
        later = "a later login succeeds" if asked in LOGINS else f"{asked} is answered later"
        return before and replace(before, cause=f"{before.cause}; {later}", severity=WARNING)
    if message.outcome != "refused":
        return None
    why = reason(message)
    rule, _, advice = _group(why) or ("login-refused", False, None)
    if asked in LOGINS:
        cause = f"the server refuses the login of {_who(request)}: {_words(why)}{_accepted(message, request)}"
    elif rule == "unauthenticated" and context.opening_seen and not state.logged_in:
        since = "the client has logged out" if state.logged_in is None else "no login succeeded before on this connection"
        cause = f"{asked} is refused: {_words(why)}, as {since}"
    else:
        return None
    context.reported.add(message.number)
    evidence = numbers(request, message), packets(request, message)
    state.login_refused = now = FindingDraft(cause, *evidence, advice=advice, key=cause, rule=rule)
    if before is None:
        return None
    if before.cause != cause:
        return replace(before, severity=WARNING)
    return replace(now, messages=(*(before.messages or ()), *evidence[0]), packets=(*(before.packets or ()), *evidence[1]))


def _who(request: Message | None) -> str:
    user = None if request is None else request.fields.get("username")
    return "the client" if user is None else f"user {quoted(user)}"


def _accepted(message: Message, request: Message | None) -> str:
    """Return the versions that a server accepts, if it states them."""
    fields = message.fields
    if not fields.get("highest_version_label") or not fields.get("highest_version"):
        return ""
    stated = None if request is None else request.fields.get("protocol_version_label")
    has = f" and the client has {stated}" if stated else ""
    lowest = fields.get("lowest_version_label")
    return f", it takes {'at most' if lowest is None else f'{lowest} to'} {fields['highest_version_label']}{has}"


def _mismatch(context: ConversationContext, message: Message) -> FindingDraft | None:
    if (
        message.outcome == "refused"
        and message.number not in context.reported
        and (found := _group(reason(message))) is not None
        and found[0] == "version-mismatch"
    ):
        request = context.request_of(message)
        name = message.name if request is None else request.name
        cause = f"the server does not understand {name}: {_words(reason(message))}; its release is older or newer than the client's"
        return FindingDraft(cause, key=reason(message)) if name not in LOGINS else None
    for note in message.notes:
        if note.startswith("the client speaks the ") and " framing" in note:
            return FindingDraft(_framings(note.startswith(f"the client speaks the {FRAMINGS[True]}")), key="framing")
    return None


def _framings(long: bool) -> str:
    mine, other = (LONG, CLASSIC) if long else (CLASSIC, LONG)
    return (
        f"the client speaks the {FRAMINGS[long]} framing ({in_words(mine)}), the server the {FRAMINGS[not long]} one ({in_words(other)}): "
        "their releases are not compatible"
    )


def _never_answered(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """Servers of the other framing end such a connection, or wait for the rest of a header of 256 bytes."""
    framing, server, asked = closed.facts.get("framing"), closed.server, context.last[0]
    if not context.opening_seen or framing is None or asked is None or context.messages[1] or closed.bytes[server] or closed.lacking:
        return None
    long, waited = framing == FRAMINGS[True], closed.until_ns - asked.time_ns
    mine, other = (LONG, CLASSIC) if long else (CLASSIC, LONG)
    likely = f"does not know the {framing} framing of the client ({in_words(mine)}) and is one of the other ({in_words(other)})"
    if closed.by == server:
        cause = f"the server ends the connection without an answer; it probably {likely}"
        return FindingDraft(cause, numbers(asked), packets(asked), key="framing")
    if long or closed.bytes[1 - server] >= HEADER or waited < STALE_NS:
        return None
    context.unanswered.clear()
    since = duration_text(waited)
    cause = f"the server has not answered {asked.name} for {since}; perhaps it {likely}, and is waiting for the rest of a header"
    return FindingDraft(cause, numbers(asked), packets(asked), WARNING, key="framing")


def _newer(context: ConversationContext, message: Message) -> FindingDraft | None:
    label = message.fields.get("protocol_version_label")
    if not is_newer(label, NEWEST):
        return None
    who = message.sender or "sender"
    context.newer = f"the {who} says {label}"
    known = "newer than any known here" if is_newer(label, FROM_CLIENTS) else "known here from clients only: no server of it was seen"
    return FindingDraft(f"the {who} states version {label} of the protocol, {known}", key=who)


def _malformed(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """The server ends the connection rather than answer a request that cannot be read."""
    if closed.by is None or closed.by == closed.client or context.failed or closed.lacking:
        return None
    for asked in context.owed():
        fault = asked.fault
        if fault is not None and type(fault) is not Unreadable and asked.number != context.aborted_number:
            cause = f"the server ends the connection instead of answering {asked.name}, which cannot be read: {fault.field} at byte "
            return FindingDraft(f"{cause}{fault.offset}: {fault.reason}", numbers(asked), packets(asked))
    return None


def _ended(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """The server ends a connection on which nothing was open."""
    last, logged_out = context.last[0], context.last[0] is not None and context.last[0].name == "logout_user"
    if closed.by is None or closed.by == closed.client or last is None or not context.messages[1] or logged_out:
        return None
    evicted = context.last[1] is not None and context.last[1].name == "eviction"
    if (
        context.unanswered
        or context.failed
        or context.state.login_refused is not None
        or closed.ended_ns is None
        or evicted
        or closed.injected
    ):
        return None
    if last.time_ns > closed.ended_ns and (last := last_before(context, closed)) is None:
        return None
    quiet = closed.ended_ns - last.time_ns
    if quiet < INTERVAL_NS:
        return FindingDraft(f"the server {closed.verb} the connection {duration_text(quiet)} after {said(context, last)}", numbers(last))
    severity = NOTE if closed.order_unsure else WARNING
    silent = f"the client was silent for {duration_text(quiet)}{_beat(context)}"
    cause = f"the server {closed.verb} the connection after {silent}: it probably considers the client dead"
    return FindingDraft(cause, numbers(last), packets(last), severity, _PING, rule="stale-client")


# Consumers


def _absent(context: ConversationContext, message: Message) -> FindingDraft | None:
    """Newer servers answer without a body where there is nothing."""
    if message.kind != "response" or message.outcome != "answered" or message.fault is not None:
        return None
    length = message.fields.get("length", message.fields.get("size", 0) - 256 if "size" in message.fields else None)
    if length != 0:
        return None
    about = _about(context.request_of(message))
    return FindingDraft(f"{message.name}{' for ' if about else ''}{about} finds nothing", key=message.name)


def _polled(context: ConversationContext, message: Message) -> FindingDraft | None:
    if message.latency_ns is None or message.outcome != "answered" or message.fault is not None or not _empty(message.fields):
        return None
    window = context.state.window
    if message.time_ns - window[0] > SECOND_NS:
        window[:] = message.time_ns, 0
    window[1] += 1
    cause = f"the client polls without a pause: {STORM} empty answers within {duration_text(message.time_ns - window[0])}"
    return FindingDraft(cause, key="storm") if window[1] == STORM else None


def _empty(fields: dict[str, Any]) -> bool:
    count = fields.get("count")
    return count == 0 if count is not None else fields.get("length") == 0 or fields.get("messages") == []


def _nothing_came(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    state = context.state
    found = {place: seen for place, seen in state.polled.items() if seen[0] >= IN_VAIN}
    if not found:
        return None
    written = [place for place in found if place in state.sent]
    place = written[0] if written else next(iter(found))
    count, number, packet = found[place]
    although = ", although the same connection sends messages there" if written else ""
    return FindingDraft(f"{count} polls of {place} return no message{although}", (number,), (packet,), WARNING if written else NOTE)


def _span(fields: dict[str, Any]) -> tuple[int, int] | None:
    """The first and the last offset of polled messages."""
    found = [one for one in fields.get("batches") or (fields,) if one.get("messages")]
    ends = ((found[0], found[0]["messages"][0]), (found[-1], found[-1]["messages"][-1])) if found else ()
    offsets = [batch.get("base_offset", 0) + one.get("offset_delta", one.get("offset", 0)) for batch, one in ends]
    return (offsets[0], offsets[1]) if offsets else None


def _progress(context: ConversationContext, message: Message) -> list[FindingDraft]:
    """Polls with strategy next continue after the last poll or the stored offset, on whichever connection that was."""
    if message.kind != "response" or message.outcome != "answered" or message.fault is not None:
        return []
    request, name, span = context.request_of(message), message.name, _span(message.fields)
    asked = {} if request is None else request.fields
    if name in EMPTIED or (name == "store_consumer_offset" and not asked.get("partition_given", True)):
        return context.share(context, message, "offsets", (None, 0, None, False, "", (), ()))
    continues = asked.get("strategy_label") == "next"
    if request is None or (name != "store_consumer_offset" and (span is None or not (continues or asked.get("auto_commit")))):
        return []
    partition, last = (message.fields.get("partition_id"), span[1]) if span else (asked.get("partition_id"), asked.get("offset", -1))
    consumer = asked.get("consumer") or {}
    kind = str(consumer.get("kind_label"))
    key = f"{asked.get('consumer')} {asked.get('stream_id')} {asked.get('topic_id')} {partition}"
    who = f"{_words(kind)} {_named(consumer.get('id'))} of {_place(request)}, partition {partition},"
    first = span[0] if span and continues and context.orphans is not None else None
    evidence = numbers(request, message), packets(request, message)
    return context.share(context, message, "offsets", (key, last + 1, first, kind == "consumer_group", who, *evidence))


def _consumers(kept: dict[Hashable, Any], step: Sequence[Any]) -> list[FindingDraft]:
    """Keep the next offset of each consumer of a partition."""
    key, following, first, grouped, who, messages, marks = step
    if key is None:
        kept.clear()
        return []
    before = kept.get(key)
    keep_newest(kept, key, following, FOLLOWED)
    if before is None or first is None or first == before or (first > before and grouped):
        return []
    behind = "" if first < before else f", {first - before:,} are skipped"
    again = "" if behind else " again"
    cause = f"{who} gets offset {first:,}{again}: {before:,} was the next{behind}"
    return [FindingDraft(cause, tuple(messages), tuple(marks), key=(who, again), alike=f"{who}{again}")]


def _stream_facts(context: ConversationContext, message: Message) -> FindingDraft | None:
    """What happens to streams and topics, of which other conversations show the rest."""
    if message.outcome is None or (message.outcome == "answered" and message.name in LACKS and not context.state.not_found):
        return None
    request = context.request_of(message)
    stream = None if request is None else _place(request) or _named(request.fields.get("stream_id"))
    if stream is None:
        return None
    if message.name.startswith("delete_"):
        what = f"the {message.name.removeprefix('delete_')} {stream}"
        draft = fact("stream-deleted", message, f"{stream} {context.client}", stream, "/", what=what)
        return draft if message.outcome == "answered" else None
    if message.outcome == "answered":
        used = fact("stream-used", message, f"{stream} {host_of(context.client)}", stream)
        return used if stream in context.state.not_found else None
    if (_group(reason(message)) or ("",))[0] != "not-found":
        return None
    if len(context.state.not_found) < PLACES:
        context.state.not_found[stream] = None
    return stream_refused(context, message, stream, LACKS[message.name])


def _roster(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """The client closes after it has received the leader's address."""
    time_ns, draft = context.state.leader or (0, None)
    return draft if closed.by == closed.client and closed.until_ns - time_ns <= LEFT_NS else None


# State


def follow(context: ConversationContext, message: Message) -> None:
    """Update the state after the rules have checked a message."""
    state, name, before = context.state, message.name, context.last[0]
    if message.kind == "request":
        state.quiet_ns = 0 if before is None else message.time_ns - before.time_ns
        state.leader = state.leader if name in ("ping", "logout_user", "get_cluster_metadata", *LOGINS) else None
        context.active = context.active or name in ("send_messages", "poll_messages")
        if name == "ping":
            last, gap, _ = state.pinged or (message.time_ns, 0, 0)
            state.pinged = message.time_ns, message.time_ns - last, gap
    if name == "logout_user" and message.outcome == "answered":
        state.logged_in = None if state.logged_in else state.logged_in
    if message.kind != "response" or message.outcome != "answered" or message.fault is not None:
        return
    if name == "get_cluster_metadata":
        nodes = [one for one in message.fields.get("nodes") or () if one.get("role_label") == "leader" and "tcp_port" in one]
        leads = f"{nodes[0].get('ip')}:{nodes[0].get('tcp_port')}" if nodes else ""
        cause = f"neither publishes nor polls: get_cluster_metadata names {leads} as the leader"
        draft = FindingDraft(cause, numbers(message), packets(message), key=leads, places=(leads,), is_fact=True)
        here = not nodes or is_here(message.src, nodes[0].get("ip"), nodes[0].get("tcp_port"))
        state.leader = None if here else (message.time_ns, draft)
    if name == "poll_messages":
        place = _place(context.request_of(message))
        if place is None or place in state.delivering:
            return
        if not _empty(message.fields):
            state.polled.pop(place, None)
            if len(state.delivering) < PLACES:
                state.delivering[place] = None
        elif place in state.polled:
            state.polled[place][0] += 1
        elif len(state.polled) < PLACES and len(state.delivering) < PLACES:
            state.polled[place] = [1, message.number, message.packets[1]]
    elif name == "send_messages":
        place = _place(context.request_of(message))
        if place is not None and len(state.sent) < PLACES:
            state.sent[place] = None


def reached(context: ConversationContext, closed: Closed) -> str:
    """Whether a client was let in, and what servers have the layout."""
    state = context.state
    out = "logged out" if state.logged_in is None else "no login" if context.opening_seen else "open"
    login = "logged in" if state.logged_in else "login refused" if state.login_refused is not None else out
    layout = closed.facts.get("layout")
    layouts = (layout,) if layout else closed.facts.get("candidates") or ()
    return f"{login} ({some(layouts, 3)}: {in_words(layouts)})" if layouts and "mismatch" not in closed.facts else login


_VERSIONS = "Use compatible releases of client and server: up to server 0.8.x, or from server 0.9.0 on."

RULES: tuple[Rule, ...] = (
    Rule("evicted", ERROR, "eviction", _evicted, "Check the server's log at the time of the last packet named."),
    Rule("login-refused", ERROR, ANY, _login, "Check how the client logs in."),
    Rule("login-refused", ERROR, CLOSED, lambda context, closed: context.state.login_refused, "Check how the client logs in."),
    Rule("version-mismatch", ERROR, ANY, _mismatch, _VERSIONS),
    Rule("version-mismatch", ERROR, CLOSED, _never_answered, _VERSIONS),
    Rule("newer-version", NOTE, LOGINS, _newer, "Check for a newer streamdump; its output for this connection may be wrong."),
    Rule(
        "malformed-request",
        ERROR,
        CLOSED,
        _malformed,
        "Inspect the message with -V -x, and use another release of the client: servers cannot read this message.",
        ENDED | OPEN,
    ),
    Rule(
        "closed-by-server",
        NOTE,
        CLOSED,
        _ended,
        CLOSED_ADVICE,
        ENDED,
    ),
    Rule(
        "checksum",
        ERROR,
        ANY,
        noted("checksum.*computed|computed.*checksum", "{name} from the {who}: {note}", "{name}"),
        "Check whether the stored message is damaged, or only its copy in transit.",
        NOTED,
    ),
    Rule("not-found", NOTE, tuple(sorted(FINDS)), _absent, "Create it first, or check the name, if it should be there."),
    Rule(
        "poll-storm",
        WARNING,
        "poll_messages",
        _polled,
        "Have the client wait between empty polls (poll interval), and fetch more messages at once.",
    ),
    Rule(
        "empty-polls",
        NOTE,
        CLOSED,
        _nothing_came,
        "Check the consumer's partition, offset and group: the messages may be in other partitions.",
    ),
    Rule(
        "offsets",
        WARNING,
        ("poll_messages", "store_consumer_offset", *sorted(EMPTIED)),
        _progress,
        "Have the consumer store its offset or poll with auto_commit; check who else polls or stores offsets as this consumer, "
        "and what the topic retains.",
    ),
    Rule("advertised-not-dialled", WARNING, CLOSED, _roster, NOT_DIALLED),
    Rule("stream-deleted", NOTE, ("delete_stream", "delete_topic", *LACKS), _stream_facts, "Create it first, or check the name."),
    Rule(
        "pairs-unsure",
        NOTE,
        ANY,
        noted(
            "^the pairing is unsure",
            "responses may be paired with the wrong requests: frames are missing, and pairing depends on their order",
        ),
        "Capture without loss: in this framing responses have no id.",
        NOTED,
    ),
)

FAMILY = Family(
    protocols=("iggy",),
    longest_header=HEADER,
    rules=RULES,
    others=(*((rule, advice) for rule, _, _, advice in GROUPS), ("stale-client", _PING)),
    new_state=IggyState,
    follow=follow,
    refusal=refusal,
    reuses_ids=True,
    reached=reached,
    shared=_consumers,
)
