"""RabbitMQ Streams, and its first draft: what keeps clients from connecting, publishing and consuming.

Codes are looked at by their labels, which both versions of the protocol have, though not under the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ..model import Exchange, Message
from ..protocols.protocol import STALL_NS
from ..protocols.rabbitmq.layouts import BYTES, CHUNKS, CREDIT_LIMITS, NEWEST, chunk_size, newer_versions, unit_of
from ..protocols.records import LOST, SKIPPED
from ..quota import drop_oldest, keep_newest
from ..units import count, duration_text, some
from .rules import (
    ANY,
    ASKED_SIZE,
    CLOSED,
    ENDED,
    ERROR,
    EXCHANGE,
    LEFT_NS,
    LIVE,
    NOT_DIALLED,
    NOTE,
    NOTED,
    OPEN,
    PATIENCE_NS,
    REFUSED,
    WARNING,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    HandshakeStep,
    Now,
    Refusal,
    Rule,
    asked_ns,
    fact,
    host_of,
    is_address,
    is_here,
    label_of,
    later_text,
    noted,
    numbers,
    packets,
    quoted,
    stream_refused,
)

BEFORE_TUNE = 8_192
"""Bytes of a frame that newer servers accept before Tune, whatever is agreed then."""

SUBSCRIPTIONS = PUBLISHERS = 256
"""Ids have one byte; those of the draft are kept to as many."""

CREDIT, CREDITS = 0x0009, 64
"""The command, and how many of it are remembered, as the server may refuse them."""

CREDIT_LIMIT = {CHUNKS: "stream.max_credit_chunks", BYTES: "stream.max_credit_bytes"}
"""The settings of servers that limit one grant of credit."""

STREAMS_KEPT = 1_024
"""Streams of a server remembered with the last ids of their publishers, and publishers, at most."""

REFERENCES = 255
"""References of publishers that a stream remembers: of the publishers that wrote last."""

STARVED_NS = 1_000_000_000
"""A subscription without credit for so long is starved; times of `STALL_NS` count when all are added up."""

LOST_NS = 10_000_000_000
"""Time for a client to react to the loss of its stream."""

NO_LEADER = 0xFFFF

OFTEN, REFRESH_NS = 3, 30_000_000_000
"""A client that cannot go where it is sent asks as often; one that asks so long after the last time only refreshes what it knows."""

IDLE = ("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open", "ExchangeCommandVersions", "Metadata", "Close", "Heartbeat")
"""Commands of clients that have not started their own work yet."""

PERIODS = 64
"""Changes of a single active consumer, at most."""

PLACES = 16
"""Brokers used of one response, at most."""

NUMBERS = ("max-length-bytes", "stream-max-segment-size-bytes", "stream-filter-size-bytes", "initial-cluster-size")
"""Arguments of Create that servers read as numbers."""

PROPERTIES: dict[str, tuple[str, ...]] = {
    "chunk_selector": ("all", "user_data"),
    "filter.NAME": (),
    "match-unfiltered": ("true", "false"),
    "name": (),
    "single-active-consumer": ("true", "false"),
    "super-stream": (),
}
"""Properties of Subscribe that servers read, and the values that they understand; none: any. NAME is anything."""

TEXTS = ("publisher_reference", "reference", "stream", "super_stream", "virtual_host", "mechanism", "routing_key", "name", "closing_reason")
"""Fields that must not be null."""

WRITE_EMPTY = "Have the client send an empty string instead of null."

SINCE = {(0x02, 2): "3.13", (0x08, 2): "3.11", **dict.fromkeys(((key, 1) for key in (0x1A, 0x1B, 0x1C)), "3.11")}
SINCE |= {(0x1D, 1): "3.13", (0x1E, 1): "3.13", (0x1F, 1): "4.3"}
"""By key and version, the first release of RabbitMQ that knows a command, where that is not 3.9, the first there was."""

UNKNOWN = "an unknown mechanism"

FRAME_MAX_NONE = CREDIT_UNKNOWN = 1 << 62

WITHOUT_PASSWORD = {"PLAIN": 20, "AMQPLAIN": 43}
"""Bytes of SaslAuthenticate by a mechanism beside its name and the user's, where the password is empty."""

EXPECTED = frozenset(
    (
        "stream does not exist",
        "stream already exists",
        "no offset",
        "subscription id does not exist",
        "publisher does not exist",
    )
)
"""Codes that a client may expect and go on."""

ADVICE = {
    "stream does not exist": "Create the stream first, or check its name and the virtual host.",
    "stream already exists": "No action needed if the existing stream is the one you want.",
    "no offset": "No action needed: the consumer has not stored an offset yet.",
    "precondition failed": "Check arguments and ids: they differ from the existing ones, or a value is not valid.",
    "stream not available": "Wait, then query the leader again with Metadata: the stream is being moved, or its nodes are down.",
    "internal error": "Check the server's log at the time of this response.",
    "publisher does not exist": "Declare the publisher before it publishes or is deleted; the server drops those whose stream is gone.",
    "subscription id does not exist": "Do not use a subscription that has ended.",
}


PERMISSIONS = {
    **dict.fromkeys(("Create", "Delete", "DeleteSuperStream"), "configure"),
    "CreateSuperStream": "configure and read (and configure and write for its streams)",
    **dict.fromkeys(("DeclarePublisher", "Publish"), "write"),
    **dict.fromkeys(("Subscribe", "QueryOffset", "QueryPublisherSequence", "StreamStats", "ResolveOffsetSpec"), "read"),
}
"""What a user needs for a command; for others it is read or write."""

LACKS = {"DeclarePublisher": "publish to it", "Subscribe": "consume from it"}
"""What a client cannot do if these are refused."""

USED = {"Subscribe": ("consumed from", "did not subscribe"), "DeclarePublisher": ("published to", "did not declare a publisher")}
"""What clients did with a stream that they lost, and what they did not do then."""

USED_SOMEHOW = ("used", "did not use it")
"""The same where the capture lacks what they did: servers report the loss of a stream to its users."""

NAMED = (("stream", "the stream"), ("super_stream", "the super stream"), ("name", "the super stream"))
"""Fields of requests that say what they are about."""

OWN_RULES = ("authentication failure", "SASL challenge", "loopback", "mechanism not", "cannot change")
"""Parts of login codes that have rules of their own, or that continue the login."""


class RabbitmqPublisher(msgspec.Struct):
    """One publisher."""

    whose: str
    """Distinguishes it from all others."""
    ident: int
    stream: str | None
    reference: str


class RabbitmqIds(msgspec.Struct):
    """What a publisher with a reference published that the server has already."""

    stream: str
    reference: str
    highest: int = -1
    """The highest id that it sent."""
    sent: int = 0
    dropped: int = 0
    """Messages, of all of them those whose ids are not above the last."""
    first: tuple[int, int, tuple[int, ...], tuple[int, ...]] | None = None
    """The first of these ids, the last one before it, and the evidence."""
    confirmed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The evidence of what confirmed that."""


class RabbitmqPeriod(msgspec.Struct):
    """A time for which a single active consumer was the active one."""

    message: Message
    """Its answer to ConsumerUpdate, without fields."""
    first: int | None
    """The offset from which it asked, or else the first that it got."""
    last: int = -1
    stored: int = -1
    until_ns: int = 0
    """When it got the last one."""


class RabbitmqCredit(NamedTuple):
    """A Credit, which the server may refuse."""

    message: Message
    credit: int
    unit: str
    active: bool
    """Its consumer was the active one when it was sent."""


class RabbitmqSubscription(msgspec.Struct):
    """One subscription: what the server may still send, and what came."""

    number: int
    """Of the Subscribe."""
    unit: str
    """What its credit counts: chunks, or their bytes."""
    stream: str | None
    asked: int
    credit: int
    filtered: bool
    begin: int | None = None
    """The offset from which it asked."""
    cut: bool = False
    """Its properties are not known: the capture has a part of its Subscribe."""
    wanted: tuple[str, ...] = ()
    """The values of its filters."""
    accepted: bool = False
    """The server has answered its Subscribe: what it delivers before that is of another one with its id."""
    delivered: int = 0
    used: int = 0
    """Credit that was used for that."""
    following: int | None = None
    """The offset after the last chunk."""
    taken: RabbitmqCredit | None = None
    """The Credit that took most away, and left none."""
    empty: Message | None = None
    """The Deliver, without its fields, that used the last credit, or the Subscribe that granted none."""
    waits: bool = True
    """More chunks may be waiting."""
    starved_reported: bool = False
    """Its starvation was reported."""
    since_ns: int = 0
    stalls: int = 0
    stalled_ns: int = 0
    longest_ns: int = 0
    """Times without credit while there were more chunks: how many, how long in total, and at most."""
    slowest_ns: int = 0
    """The longest time from a Credit that ended such a time to the chunk that it let through."""
    first: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """The messages around the first of them, and their packets."""
    group: str | None = None
    """Its name, where it is a single active consumer."""
    is_active: bool = False
    """It is the active one."""
    ignored: bool = False
    """There was a Credit in the other unit, which the server ignores."""
    active: list[RabbitmqPeriod] = msgspec.field(default_factory=list)
    granted: tuple[int, int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None
    """The Credit that ended the last of them: when, after how long, and the evidence. What comes next shows whether a chunk waited."""

    def count_stall(self) -> None:
        """Count the time without credit that the last Credit ended."""
        assert self.granted is not None
        _, passed, evidence = self.granted
        self.stalls, self.stalled_ns, self.longest_ns = self.stalls + 1, self.stalled_ns + passed, max(self.longest_ns, passed)
        self.first, self.granted = self.first if self.stalls > 1 else evidence, None


class SilentPeriod(NamedTuple):
    """A time in which one side said nothing, and the messages before and behind it with their packets."""

    since_ns: int
    until_ns: int
    messages: tuple[int, ...]
    packets: tuple[int, ...]


class RefusedPublisher(NamedTuple):
    """A publisher that the server refused or ended."""

    draft: FindingDraft
    """The finding if the client publishes anyway."""
    ended: bool
    """The server had accepted it before."""


class RabbitmqState(msgspec.Struct):
    """The state of a connection."""

    first: Message | None = None
    """The first message, where it is not the one to begin with."""
    user: str | None = None
    mechanism: str | None = None
    began: tuple[str | None, str | None] | None = None
    """The mechanism and user of the login that was accepted."""
    no_password: bool = False
    """The password is empty."""
    offered: tuple[str, ...] = ()
    vhost: str | None = None
    blamed: int | None = None
    """The number of the frame over which the server closes."""
    null: FindingDraft | None = None
    """Of the client's first text that is null and must not be."""
    server: str = "the server"
    frame_max: int = BEFORE_TUNE
    tuned: bool = False
    tune: tuple[int, int] | None = None
    """What the server offered: frame size and heartbeat."""
    heartbeat_ns: int = 0
    versions: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """By key, the versions that the server stated."""
    subscriptions: dict[int, RabbitmqSubscription] = msgspec.field(default_factory=dict)
    replacing: dict[int, RabbitmqSubscription] = msgspec.field(default_factory=dict)
    """Subscriptions requested with the id of another one, without an answer yet."""
    activity: dict[int, bool] = msgspec.field(default_factory=dict)
    """By subscription whether it is the active consumer, as the server said last."""
    credits: dict[int, RabbitmqCredit] = msgspec.field(default_factory=dict)
    """By number the last Credits."""
    publishers: dict[int, RabbitmqPublisher] = msgspec.field(default_factory=dict)
    declared: int = 0
    """The number of publishers declared so far."""
    with_reference: dict[str, RabbitmqPublisher] = msgspec.field(default_factory=dict)
    """By `whose`, the publishers with a reference that have published."""
    refused: dict[int, RefusedPublisher] = msgspec.field(default_factory=dict)
    """By id."""
    deleting: dict[str, None] = msgspec.field(default_factory=dict)
    """Streams that the client has asked to delete; of a super stream what the names of its partitions begin with."""
    offsets: dict[tuple[str, str], tuple[int, Message]] = msgspec.field(default_factory=dict)
    """By stream and name the offset that was stored last, and the message, where what the client subscribed to was not captured."""
    lost: dict[str, None] = msgspec.field(default_factory=dict)
    """Streams that the client used when they were deleted or moved."""
    sent: tuple[str, int, tuple[str, ...], tuple[int, ...], tuple[int, ...]] | None = None
    """The response that named another broker, its time, the endpoints and the evidence; None once the client sends another request."""
    advertised: tuple[str, Message] | None = None
    """The place of the broker, as the response to Open names it, which is the evidence."""
    asks: int = 0
    """How often in a row it asked where to go."""
    asked_ns: int = 0
    """When it did so last."""
    busy: bool = False
    """It did something else, too."""
    missing: Message | None = None
    """The response to Metadata that names a stream that does not exist, after which the client has asked nothing else."""
    gone: Message | None = None
    """The MetadataUpdate after which the client has asked nothing."""
    silent: list[SilentPeriod | None] = msgspec.field(default_factory=lambda: [None, None])
    """The last silence of the client and of the server that was too long."""


# The handshake


def _code(message: Message) -> str:
    return label_of(message, "response_code")


def _not_ok(message: Message) -> bool:
    """Whether it is a challenge or a refusal; the request of one may have been captured later."""
    return message.fields.get("response_code") is not None and _code(message) != "OK"


def _refused(pattern: str, cause: Callable[[RabbitmqState, Message, str], str]) -> Callable[[ConversationContext, Message], str | None]:
    """Return a check for responses refused with a code that matches; without a pattern, with a code that has no rule of its own."""

    def check(context: ConversationContext, message: Message) -> str | None:
        code = _code(message)
        fits = re.search(pattern, code) if pattern else not any(one in code for one in OWN_RULES)
        return cause(context.state, message, code) if fits and message.outcome == "refused" else None

    return check


def _authentication(state: RabbitmqState, message: Message, code: str) -> str:
    who = f"the user {quoted(state.user)}" if state.user is not None else "the client"
    why = "the password is empty" if state.no_password else "the password is wrong, or there is no such user"
    return f"{state.server} does not authenticate {who}{f' ({state.mechanism})' if state.mechanism else ''}: {why}"


def _loopback(state: RabbitmqState, message: Message, code: str) -> str:
    who = quoted(state.user) if state.user is not None else "this user"
    return f"{state.server} lets {who} log in only from its own machine, and the client connects from {message.dst.rpartition(':')[0]}"


def _mechanism(state: RabbitmqState, message: Message, code: str) -> str:
    offers = f"; it offers {some(state.offered)}" if state.offered else ""
    return f"{state.server} does not accept the mechanism {quoted(state.mechanism)}{offers}"


def _renewal(state: RabbitmqState, message: Message, code: str) -> str:
    began = "another login" if state.began is None else _login(*state.began)
    return f"{state.server} refuses to renew the login by {_login(state.mechanism, state.user)}: the connection began with {began} ({code})"


def _login(mechanism: str | None, user: str | None) -> str:
    name = mechanism or UNKNOWN
    return f"{name} of the user {quoted(user)}" if user is not None else name


def _sasl(state: RabbitmqState, message: Message, code: str) -> str:
    return f"{state.server} refuses the data of {state.mechanism or UNKNOWN} ({code}): it cannot be read"


def _vhost(context: ConversationContext, message: Message) -> str | None:
    state, user = context.state, f" for the user {quoted(context.state.user)}" if context.state.user is not None else ""
    cause = f"the virtual host {quoted(state.vhost)} is refused{user} ({_code(message)}): it does not exist, or the user may not use it"
    return cause if message.outcome == "refused" else None


def _raised(context: ConversationContext, message: Message) -> str | None:
    offered = context.state.tune
    if message.kind != "response" or offered is None:
        return None
    size, most = message.fields.get("frame_max"), offered[0]
    if size is None or not most or 0 < size <= most:
        return None
    return f"the client answers Tune with a frame size of {size or 'no limit'}, more than the {most:,} bytes that the server offers"


# Frames and commands


def _limit(context: ConversationContext) -> int:
    """Return the bytes that a frame may have: as agreed, or as is fixed before Tune; no limit where Tune may be among lost bytes."""
    known = context.opening_seen and (context.state.tuned or context.orphans is not None)
    return context.state.frame_max if known else FRAME_MAX_NONE


def _size(message: Message) -> int:
    """Return the size of a frame, as it states where only a part of it was sent."""
    part = message.fault is not None and message.fault.reason.endswith("bytes sent")
    return int(message.fields.get("size", message.size - 4)) if part else message.size - 4


def _excess(context: ConversationContext, message: Message) -> str | None:
    """Return the size of a frame and the limit that it exceeds, in words."""
    limit, size = _limit(context), _size(message)
    agreed = f"the agreed {limit:,}" if context.state.tuned else f"the {limit:,} allowed before Tune"
    return f"{size:,} bytes, more than {agreed}" if size > limit else None


def _too_large(context: ConversationContext, message: Message) -> FindingDraft | None:
    if message.fault is None and message.size - 4 <= context.state.frame_max:
        return None
    excess = _excess(context, message)
    if excess is None:
        return None
    cause = f"{message.name} from the {message.sender or 'sender'} has {excess}"
    # Servers do not hold what they deliver to it
    return FindingDraft(cause, severity=NOTE if message.sender == "server" else None, key=(message.sender, _limit(context)))


def _too_large_end(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    last = context.last[0]
    if last is None or closed.by != closed.server or context.close_message is not None:
        return None
    # The limit now is the limit when it was sent, but for Tune itself, which is small
    excess = _excess(context, last)
    cause = f"the server closes the connection over {last.name} from the client, a frame of {excess}"
    return None if excess is None else FindingDraft(cause, numbers(last), key="closed")


def _arguments(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """Servers fail on a numeric argument that is not a number."""
    last = context.last[0]
    if last is None or last.name != "Create" or closed.by != closed.server or last not in context.owed():
        return None
    for one in last.fields.get("arguments") or ():
        name, value = one.get("key"), one.get("value")
        if name in NUMBERS and not str(value).isdigit():
            return FindingDraft(
                f"the server closes the connection over Create: its argument {name} is {quoted(value)}, which is not a number",
                numbers(last),
            )
    return None


def _closing(context: ConversationContext, message: Message) -> FindingDraft | None:
    if message.kind != "request" or message.fields.get("closing_code") in (None, 1, 0):
        return None
    code, reason = label_of(message, "closing_code"), message.fields.get("closing_reason")
    side = 0 if message.sender == "server" else 1
    before = context.last[side]
    null = _null(before) if before is not None and code == "unknown frame" else None
    if null is not None:
        cause = f"the {message.sender} closes with {code}: {null}"
        return FindingDraft(cause, numbers(before, message), packets(before, message), ERROR, WRITE_EMPTY, null, rule="null-reference")
    after = f" after {before.name} from the {before.sender}" if before is not None else ""
    why = f": {quoted(reason)}" if reason else ""
    hint, advice = "", None
    if code == "frame too large" and before is not None:
        limit = _limit(context)
        agreed = "agreed" if context.state.tuned else "pre-Tune"
        most = "" if limit == FRAME_MAX_NONE else f", and the {agreed} maximum is {limit:,}"
        hint = f"; it had {_size(before):,} bytes{most}"
        if _size(before) <= limit < FRAME_MAX_NONE:
            after, hint = "", f"; the {agreed} maximum is {limit:,} bytes, and the frame that exceeds it was not complete by then"
    if code == "unknown frame" and before is not None:
        hint, advice = f"; {_not_known(context, before)}", _upgrade(context.state, before)
    severity = ERROR if message.sender == "server" else WARNING
    if before is not None and after and code == "frame too large":
        context.state.blamed = before.number
    cause = f"the {message.sender} closes with {code}{why}{after}{hint}"
    return FindingDraft(cause, numbers(before, message), packets(before, message), severity, advice, code)


def _not_known(context: ConversationContext, message: Message) -> str:
    """Why a server may have called a frame unknown."""
    state, command = context.state, _command(message)
    key, version = message.fields.get("key", 0), message.fields.get("version", 0)
    if message.kind == "response" and message.request is None:
        return f"{command} is a response without a request"
    if message.kind == "request" and message.size <= ASKED_SIZE and message.number not in context.asked:
        return f"{command} was answered, so the server means a later frame, or one that was not captured"
    stated = state.versions.get(key)
    if stated is not None and stated[0] <= version <= stated[1]:
        return f"{state.server} states that it knows {command}, so its content is wrong"
    first = _too_old(state, key, version)
    if stated is None and version == 1 and key <= max(SINCE)[0] and first is None and not state.versions:
        since = f" from RabbitMQ {SINCE[key, version]} on" if (key, version) in SINCE else ""
        return f"every server{since} knows {command}, so its content is wrong"
    states = "no version of it" if stated is None else f"versions {stated[0]} to {stated[1]}"
    came = "" if first is None else f", which came with RabbitMQ {first}"
    return f"{state.server} does not know {command}{came}{f', and states {states}' if state.versions else ''}"


def _too_old(state: RabbitmqState, key: Any, version: Any) -> str | None:
    """Return the first release that knows a command, unless the server is known to be as new, or states the command."""
    since, release = SINCE.get((key, version)), re.search(r"^RabbitMQ (\d+)\.(\d+)", state.server)
    stated = state.versions.get(key, (1, 0))
    if since is None or stated[0] <= version <= stated[1]:
        return None
    return None if release and tuple(map(int, release.groups())) >= tuple(map(int, since.split("."))) else since


def _upgrade(state: RabbitmqState, message: Message) -> str | None:
    """Return what to do where the server is too old for a command of the client."""
    if message.name in ("Subscribe", "Credit") and unit_of(message.fields) == BYTES:
        return "Configure the client to grant credit in chunks: this server does not know credit in bytes."
    since = _too_old(state, message.fields.get("key"), message.fields.get("version"))
    return None if since is None else f"Use RabbitMQ {since} or newer, or an older release of the client."


def _command(message: Message) -> str:
    return f"{message.name} (key 0x{message.fields.get('key', 0):04x}, version {message.fields.get('version')})"


def _unknown(context: ConversationContext, message: Message) -> FindingDraft | None:
    key, version = message.fields.get("key"), message.fields.get("version")
    if version is None or key is None:
        return None
    stated = context.state.versions.get(key) if message.sender == "client" else None
    if stated is None or stated[0] <= version <= stated[1]:
        return _not_known_here(context, message, key & 0x7FFF, version)
    cause = f"the client sends {_command(message)}, and the server states versions {stated[0]} to {stated[1]}"
    return FindingDraft(cause, key=(key, version), advice=_upgrade(context.state, message))


def _not_known_here(context: ConversationContext, message: Message, key: int, version: int) -> FindingDraft | None:
    """A command or version that has no layout: nobody is wrong, as far as this shows."""
    if context.protocol != "rabbitmq-stream" or message.fault is not None or version <= NEWEST.get(key, 0):
        return None
    who = f"the {message.sender or 'sender'}"
    cause = f"{who} sends {_command(message)}, which is not known here"
    return FindingDraft(cause, severity=NOTE, advice=_NEWER, key=(key, version))


def _newer(context: ConversationContext, message: Message) -> FindingDraft | None:
    """Commands and versions that a side states, and that have no layouts."""
    found = newer_versions(message.fields)
    if not found:
        return None
    who = message.sender or "sender"
    context.newer = context.newer or f"the {who} says {next(iter(found.values()))}"
    return FindingDraft(f"the {who} states {some(found.values())}, newer than what is known here", key=who)


def _silence(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """Reported at the end, which shows whether the other side closed because of it; otherwise that of the side that fell silent first."""
    agreed, ended_ns = context.state.heartbeat_ns, closed.until_ns
    found: list[tuple[bool, int, FindingDraft]] = []
    for side, who in enumerate(("client", "server")):
        silent, last = context.state.silent[side], context.last[side]
        place = closed.server if side else 1 - closed.server
        # What it sent may be missing
        unsure = closed.lost[place] and last is not None and last.position + last.size < closed.bytes[place]
        # After Close a side only waits
        unsure = unsure or (last is not None and last.name in context.family.closing)
        if last is not None and last.time_ns <= ended_ns and _too_long(context, last, ended_ns) and not unsure:
            silent = SilentPeriod(last.time_ns, ended_ns, numbers(last), packets(last))
        if silent is None or min(silent.until_ns, ended_ns) - silent.since_ns <= 2 * agreed:
            continue
        until_ns, when, severity = min(silent.until_ns, ended_ns), "", WARNING
        if silent.until_ns >= ended_ns:
            when = f", {closed.when}"
            if closed.client is not None and closed.by == (closed.client if side else closed.server):
                when, severity = f", when {closed.who(closed.by)} {closed.verb} the connection", ERROR
        passed, beat = duration_text(until_ns - silent.since_ns), duration_text(agreed)
        cause = f"the {who} had sent nothing for {passed}, more than twice the agreed heartbeat of {beat}{when}"
        found.append((severity != ERROR, silent.since_ns, FindingDraft(cause, silent.messages, silent.packets, severity)))
    return min(found, key=lambda one: one[:2])[2] if found else None


def _too_long(context: ConversationContext, last: Message, now_ns: int) -> bool:
    """Whether a side whose last message this is was silent for longer than agreed."""
    agreed: int = context.state.heartbeat_ns
    return 0 < 2 * agreed < now_ns - last.time_ns


def _null(message: Message) -> str | None:
    """What a message of the client has that must not be null."""
    if message.sender == "server" or message.fault is not None or None not in message.fields.values():
        return None
    name = next((name.replace("_", " ") for name in TEXTS if message.fields.get(name, "") is None), None)
    return None if name is None else f"the {name} of {message.name} is null, which servers treat as a damaged frame"


# Publishing


def _publish_error(context: ConversationContext, message: Message) -> FindingDraft | None:
    errors = message.fields.get("publishing_errors")
    if not errors:
        return None
    codes = some(dict.fromkeys(str(one.get("code_label") or f"code {one['code']}") for one in errors if "code" in one))
    codes = codes or "the reason was not captured"
    publisher = message.fields.get("publisher_id")
    refused: RefusedPublisher | None = context.state.refused.get(publisher)
    if refused is not None and refused.ended and (context.lossy or codes != "publisher does not exist"):
        # It may have been declared again, or the error is that of an earlier Publish
        refused = None
    if refused is not None:
        context.pending = [one for one in context.pending if one[1] is None or one[1].fields.get("publisher_id") != publisher]
        draft, more = refused.draft, (context.request_of(message), message)
        return replace(draft, messages=(draft.messages or ()) + numbers(*more), packets=(draft.packets or ()) + packets(*more))
    one = context.state.publishers.get(publisher)
    whose = f" of publisher {publisher}" if publisher is not None else ""
    about = f"the stream {quoted(one.stream)}" if one is not None else ""
    whose += f" for {about}" if about else ""
    what = f"1 message{whose} is" if len(errors) == 1 else f"{len(errors):,} messages{whose} are"
    context.count_refusal("Publish", codes, (f"{context.protocol}.publish-error", (publisher, codes)) not in context.found)
    return FindingDraft(f"{what} not stored: {codes}", key=(publisher, codes), advice=_advice(context, codes, "Publish", about))


def _never_there(context: ConversationContext, message: Message) -> None:
    """DeletePublisher of a publisher that was refused or ended: not another error."""
    request = context.request_of(message)
    if message.outcome == "refused" and request is not None and request.fields.get("publisher_id") in context.state.refused:
        context.reported.add(message.number)


def _confirms(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    # One that its sender did not send to its end, or over which the server closes, is not another error
    found = [
        one for one in context.unanswered if one.name == "Publish" and one.request not in (context.aborted_number, context.state.blamed)
    ]
    if not found:
        return None
    there = [one for one in found if one.reason not in (LOST, SKIPPED)]
    missing, found = not there, there or found
    ended, waited = closed.by is not None, max(0, closed.until_ns - asked_ns(found[0]))
    how_many = "a Publish frame is" if len(found) == 1 else f"{len(found)} Publish frames{' or more' if len(found) > 7 else ''} are"
    severity = NOTE if closed.lacking or (not ended and waited < STARVED_NS) else WARNING
    advice = None
    by = None if context.close_message is not None else closed.by
    when = closed.when if by is None else f"when {closed.who(by)} {closed.verb} the connection"
    cause = f"{how_many} not confirmed {when}{later_text(waited)}"
    if missing:
        cause, advice = (
            f"{cause}; the capture lacks bytes from the server, which may contain the confirm",
            "Capture again with a larger buffer (-B).",
        )
    return FindingDraft(cause, tuple(one.request for one in found), severity=severity, key="confirms", advice=advice)


def _id_in_use(context: ConversationContext, message: Message) -> str | None:
    if message.outcome != "refused":
        return None
    request, state = context.request_of(message), context.state
    if message.name == "Subscribe":
        if "already exists" not in _code(message):
            return None
        ident = None if request is None else request.fields.get("subscription_id")
        return f"the subscription id {'' if ident is None else f'{ident} '}is in use on this connection"
    if _code(message) != "precondition failed" or request is None:
        return None
    ident, reference = request.fields.get("publisher_id"), request.fields.get("publisher_reference")
    if ident in state.publishers:
        return f"the publisher id {ident} is in use on this connection, for the stream {quoted(state.publishers[ident].stream)}"
    return f"the publisher reference {quoted(reference)} is in use on this connection, or not valid" if reference else None


def _dropped(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    found = [(one.whose, one.ident, one.stream, one.reference) for one in context.state.with_reference.values()]
    at_ns = min(closed.until_ns, closed.last[3])
    return context.share(context, closed, "confirmed-and-lost", ("closed", found, at_ns)) if found else []


# Consuming


def _more(context: ConversationContext, message: Message) -> list[FindingDraft]:
    """Chunks are delivered complete."""
    ident, chunk, found = message.fields.get("subscription_id", -1), message.fields.get("chunk"), []
    one = context.state.subscriptions.get(ident)
    if one is None or one.delivered or not isinstance(chunk, dict) or chunk.get("chunk_first_offset") is None:
        return []
    first = chunk["chunk_first_offset"]
    whose = f"subscription {ident} ({quoted(one.stream)}) asked"
    if one.begin is not None and first < one.begin:
        cause = f"{whose} from offset {one.begin:,}, the chunk begins at {first:,}"
        found.append(FindingDraft(cause, key=(ident, "offset")))
    if one.wanted and chunk.get("num_entries", 0) > 1:
        cause = f"{whose} for {some(one.wanted)}, and gets a chunk of {chunk['num_entries']:,} entries: others may be included"
        found.append(FindingDraft(cause, key=(ident, "filter")))
    return found


def _ignored(context: ConversationContext, message: Message) -> FindingDraft | None:
    properties = message.fields.get("properties") if message.kind == "request" else None
    found = {str(one["key"]): "null" if one["value"] is None else str(one["value"]) for one in properties or () if "value" in one}
    filtered = any(key.startswith("filter.") for key in found)
    odd = []
    for key, value in found.items():
        known = PROPERTIES.get("filter.NAME" if key.startswith("filter.") else key)
        if known is None or (known and value not in known) or (key == "match-unfiltered" and value == "true" and not filtered):
            odd.append(quoted(f"{key}={value}"))
    if not odd:
        return None
    names = some([f"{name}={' or '.join(values)}" if values else name for name, values in PROPERTIES.items()], len(PROPERTIES))
    return FindingDraft(f"the server ignores {some(odd)} of Subscribe silently: it knows {names}", key=tuple(odd))


def _amount(number: int, unit: str) -> str:
    """An amount of credit in words."""
    return count(number, unit.removesuffix("s"))


def _credit_refused(context: ConversationContext, message: Message) -> FindingDraft | None:
    """One code with three causes: what was asked shows which."""
    if message.kind != "response" or _code(message) != "precondition failed" or "subscription_id" not in message.fields:
        return None
    ident = message.fields["subscription_id"]
    one, sent = context.state.subscriptions.get(ident), context.state.credits.get(message.request or 0)
    whose = f"subscription {ident}" + (f" ({quoted(one.stream)})" if one is not None else "")
    what = f"{context.state.server} refuses {'a Credit' if sent is None else f'a Credit of {_amount(sent.credit, sent.unit)}'} for {whose}"
    evidence = numbers(sent and sent.message, message), packets(sent and sent.message, message)
    why = _why_refused(context, one, sent, message)
    if why == "inactive" and message.outcome == "refused":
        # For the pairing, which knows less of it, this was not certain
        why = "unknown"
    key = ident, why
    match why:
        case "unit":
            assert one is not None
            return FindingDraft(f"{what}: the credit of this subscription is in {one.unit}", *evidence, None, _SAME_UNIT, key)
        case "limit":
            assert sent is not None
            cause = f"{what}: that is more than the {CREDIT_LIMITS[sent.unit]:,} {sent.unit} that servers allow by default"
            return FindingDraft(cause, *evidence, None, _limit_advice(sent.unit), key)
        case "lower limit":
            assert sent is not None
            cause = f"{what} (precondition failed): the unit is right, so its limit for one Credit is probably lower than that"
            return FindingDraft(cause, *evidence, None, _limit_advice(sent.unit), key)
        case "unknown":
            cause = (
                f"{what} (precondition failed): the consumer is not active, the Credit is not in the unit of the subscription, "
                "or it is more than the server allows"
            )
            return FindingDraft(cause, *evidence, WARNING if message.outcome == "refused" else NOTE, _THREE_CAUSES, key)
    return None


def _why_refused(context: ConversationContext, one: RabbitmqSubscription | None, sent: RabbitmqCredit | None, message: Message) -> str:
    """Return what of a Credit the server does not accept; "inactive" if that is normal, as its consumer is not the active one."""
    if context.lossy or (one is not None and one.cut):
        # The id may be that of another subscription by now, or its consumer a single active one
        one = None
    if one is not None and sent is not None and sent.unit != one.unit:
        return "unit"
    if (
        sent is not None
        and sent.credit > CREDIT_LIMITS[sent.unit]
        and (sent.unit == BYTES if one is None else one.group is None or (sent.active and one.is_active))
    ):
        return "limit"
    if one is None:
        one_version = context.state.versions.get(CREDIT, (1, 2))[1] == 1
        normal = one_version or context.state.activity.get(message.fields.get("subscription_id", -1)) is False
        return "inactive" if normal else "unknown"
    if one.group is None:
        return "lower limit" if message.outcome == "refused" and sent is not None and sent.credit > 0 else "unknown"
    return "unknown" if sent is not None and sent.active and one.is_active else "inactive"


def _limit_advice(unit: str) -> str:
    return f"Have the consumer grant less at once, or raise {CREDIT_LIMIT[unit]} at the server."


def _starvation(ident: int, one: RabbitmqSubscription, until_ns: int, when: str, behind: Message | None = None) -> FindingDraft | None:
    """How often, and how long, a consumer left the server without credit."""
    if one.granted is not None and one.waits:
        one.count_stall()
    passed = max(0, until_ns - one.empty.time_ns) if one.empty is not None else 0
    whose, key = f"subscription {ident} ({quoted(one.stream)})", (ident, one.since_ns)
    evidence = numbers(one.empty, behind), packets(one.empty, behind)
    if not one.stalls:
        advice = None if one.unit == CHUNKS else _GRANT_BYTES
        why = f"{_amount(one.asked, one.unit)} {'was' if one.asked == 1 else 'were'} granted and {one.used:,} delivered"
        if not one.asked:
            why = "none was granted"
        if one.ignored:
            why, advice = f"{why}, and the server ignores Credit that is not in {one.unit}", _SAME_UNIT
        if one.taken is not None:
            evidence = numbers(one.empty, one.taken.message, behind), packets(one.empty, one.taken.message, behind)
            sent = f"{one.taken.credit:,} ({one.taken.credit & 0xFFFF:,} without a sign)"
            why, advice = f"a Credit of {sent} took it away, because servers read it as a signed number", _GRANT_LESS
        cause = f"{whose} has had no credit for {duration_text(passed)}{when}: {why}"
        severity = WARNING if passed >= STARVED_NS and one.waits else NOTE
        return FindingDraft(cause, *evidence, severity, advice, key) if passed else None
    lasts = passed >= STARVED_NS and one.waits
    stalls, total, longest = one.stalls + lasts, one.stalled_ns + lasts * passed, max(one.longest_ns, lasts * passed)
    if longest < STARVED_NS and (total < STARVED_NS or 2 * total < until_ns - one.since_ns):
        return None
    times = (
        f"for {duration_text(total)}"
        if stalls == 1
        else f"{stalls:,} times, for {duration_text(total)} in total and {duration_text(longest)} at most"
    )
    if lasts:
        times += f", the last time for {duration_text(passed)}{when}"
    who = f"; the server delivers within {duration_text(one.slowest_ns)} of each Credit, so the consumer is slow"
    cause = f"{whose} was without credit {times}{who if one.slowest_ns else ''}"
    shown = [(*first, *last) for first, last in zip(one.first, evidence if lasts else ((), ()), strict=True)]
    return FindingDraft(cause, shown[0], shown[1], WARNING, _SLOW_CONSUMER if one.unit == CHUNKS else _SLOW_BYTES, key)


def _starved(context: ConversationContext, message: Message) -> list[FindingDraft]:
    """The consumer ends its subscription, or the server those of a stream."""
    ident, stream = message.fields.get("subscription_id"), message.fields.get("stream")
    found = []
    for each, one in context.state.subscriptions.items() if message.kind != "response" else ():
        if each == ident or (message.name == "MetadataUpdate" and one.stream == stream):
            draft = _starvation(each, one, message.time_ns, " when it ends", message)
            found += [draft] if draft is not None and draft.severity == WARNING else []
    return found


def _starving(context: ConversationContext, now: Now) -> list[FindingDraft | None]:
    found = []
    for ident, one in context.state.subscriptions.items():
        if one.empty is not None and one.waits and not one.starved_reported and now.time_ns - one.empty.time_ns >= STARVED_NS:
            one.starved_reported = True
            found.append(_starvation(ident, one, now.time_ns, " so far"))
    return found


def _out_of_credit(context: ConversationContext, closed: Closed) -> list[FindingDraft | None]:
    if context.lossy:
        for one in context.state.subscriptions.values():
            one.empty = one.granted = None
    return [_starvation(ident, one, closed.until_ns, f" {closed.when}") for ident, one in context.state.subscriptions.items()]


def _delivered_facts(context: ConversationContext, record: Message | Closed) -> list[FindingDraft]:
    """What each single active consumer got, where it ends."""
    facts = []
    for ident, one in context.state.subscriptions.items():
        if isinstance(record, Message) and (record.fields.get("subscription_id") != ident and record.fields.get("stream") != one.stream):
            continue
        for period in one.active:
            if period.first is None or period.last < period.first or one.stream is None:
                continue
            offsets = (period.first, period.last, period.stored, period.message.time_ns, period.until_ns)
            about = f"{context.client} {period.message.number}"
            places = (one.stream or "", one.group or "", *map(str, offsets))
            facts.append(fact("offsets-delivered", period.message, about, *places))
        one.active.clear()
    for (stream, group), (offset, message) in context.state.offsets.items() if isinstance(record, Closed) else ():
        # It was active before the capture
        places = (stream, group, *map(str, (offset, offset, offset, 0, message.time_ns)))
        facts.append(fact("offsets-delivered", message, f"{context.client} {message.number}", *places))
    return facts


def _of_another(context: ConversationContext, one: RabbitmqSubscription, message: Message) -> bool:
    """Whether it was delivered before this subscription began, to the one before with its id: after a loss, messages are read late."""
    return context.lossy and message.time_ns < one.since_ns


def _offsets(context: ConversationContext, message: Message) -> FindingDraft | None:
    one = context.state.subscriptions.get(message.fields.get("subscription_id", -1))
    chunk = message.fields.get("chunk")
    first = chunk.get("chunk_first_offset") if isinstance(chunk, dict) else None
    if one is None or one.following is None or first is None or first == one.following or _of_another(context, one, message):
        return None
    ident = message.fields["subscription_id"]
    if first < one.following:
        cause = f"subscription {ident} ({quoted(one.stream)}) gets offset {first:,} again: {one.following:,} was the next"
        # Among missing messages there may be a Subscribe with this id
        return FindingDraft(cause, severity=NOTE if context.lossy else None, key=(ident, "again"))
    cause = f"subscription {ident} ({quoted(one.stream)}) misses offsets {one.following:,} to {first - 1:,}"
    return None if one.filtered or context.lossy else FindingDraft(cause, severity=NOTE, key=(ident, "missing"))


def _not_available(context: ConversationContext, message: Message) -> FindingDraft | None:
    stream = _stream_of(context.request_of(message))
    draft = message.outcome == "refused" and _code(message) == "stream not available"
    return FindingDraft(f"{message.name}: the stream {stream}is not available", key=stream) if draft else None


def _metadata(context: ConversationContext, message: Message) -> FindingDraft | None:
    if message.kind != "response":
        return None
    for one in message.fields.get("stream_metadata") or ():
        name, code = one.get("stream_name"), one.get("response_code_label")
        if code == "OK" and one.get("leader_reference") == NO_LEADER:
            return FindingDraft(f"the stream {quoted(name)} has no leader", key=(name, "leader"))
        if code == "stream not available":
            return FindingDraft(f"Metadata: the stream {quoted(name)} is not available", key=(name, code))
    return None


def _metadata_refused(context: ConversationContext, message: Message) -> list[FindingDraft]:
    found: dict[str, list[str]] = {}
    for one in (message.fields.get("stream_metadata") or ()) if message.kind == "response" else ():
        code = one.get("response_code_label")
        if code not in (None, "OK", "stream not available"):
            found.setdefault(code, []).append(quoted(one.get("stream_name")))
    drafts = []
    for code, names in found.items():
        about = f"the stream {names[0]}" if len(names) == 1 else f"{len(names)} streams ({some(names)})"
        advice, severity = _advice(context, code, "Metadata", about), NOTE if code in EXPECTED else WARNING
        drafts.append(FindingDraft(f"Metadata of {about} is refused: {code}", severity=severity, advice=advice, key=code))
        context.count_refusal("Metadata", code, (f"{context.protocol}.refused", code) not in context.found)
    return drafts


def _gave_up(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    last = context.state.missing
    if (
        last is None
        or context.lossy
        or not context.opening_seen
        or closed.by is None
        or (closed.by != closed.client and context.close_message is None)
    ):
        return None
    missing = next(one.get("stream_name") for one in last.fields["stream_metadata"] if one.get("response_code_label") in EXPECTED)
    cause = f"the client closes the connection after the response that the stream {quoted(missing)} does not exist"
    return FindingDraft(cause, numbers(last), packets(last), key=missing)


def _moved(context: ConversationContext, message: Message) -> FindingDraft | None:
    stream, code = message.fields.get("stream"), label_of(message, "code")
    which = "a stream" if stream is None else f"the stream {quoted(stream)}"
    cause = f"the server reports that {which} changed ({code}): publishers and subscriptions of it have ended"
    return None if _deletes(context.state, stream) else FindingDraft(cause, key=stream)


def _stream_facts(context: ConversationContext, message: Message) -> list[FindingDraft]:
    """What happens to streams, of which other conversations show the rest."""
    state, request = context.state, context.request_of(message)
    if message.name == "MetadataUpdate":
        stream = message.fields.get("stream") or ""
        held = (("Subscribe", state.subscriptions), ("DeclarePublisher", state.publishers))
        used = [USED[name] for name, every in held if any(one.stream == stream for one in every.values())]
        used += [USED_SOMEHOW] if context.lossy or not context.opening_seen else []
        if not used or not stream or _deletes(state, stream) or (stream not in state.lost and len(state.lost) >= SUBSCRIPTIONS):
            return []
        state.lost[stream] = None
        return [fact("stream-lost", message, f"{stream} {context.client} ended", stream, *used[0], "ended")]
    stream = "" if request is None else _subject(request)
    if message.kind != "response" or request is None or not stream:
        return []
    if message.name.startswith("Delete"):
        return [_deleted(context, request, message)] if message.outcome == "answered" else []
    if message.outcome == "answered":
        return [fact("stream-used", message, f"{stream} {host_of(context.client)}", stream)]
    return [stream_refused(context, message, stream, LACKS[message.name])] if _code(message) == "stream does not exist" else []


def _subject(request: Message) -> str:
    """The stream or super stream that a request is about."""
    return str(request.fields.get("stream") or request.fields.get("name") or "")


def _deleted(context: ConversationContext, request: Message, message: Message) -> FindingDraft:
    """A stream that was deleted, as this message shows."""
    stream, (what, separator) = _subject(request), ("the super stream", "-") if "name" in request.fields else ("the stream", "")
    draft = fact("stream-deleted", message, f"{stream} {context.client}", stream, separator, what=f"{what} {quoted(stream)}")
    return replace(draft, at_ns=message.time_ns)


def _open_facts(context: ConversationContext, closed: Closed) -> list[FindingDraft]:
    """Streams whose deletion was asked for, of which a loss shows that it came about; and streams to which a client may have come back,
    as messages of it are missing."""
    facts = [_deleted(context, one, one) for one in context.owed() if one.name.startswith("Delete") and _subject(one)]
    unsure = [f"{stream} {host_of(context.client)}" for stream in context.state.lost if context.lossy]
    return facts + [FindingDraft("", (), (), is_fact=True, rule="stream-unsure", alike=about) for about in unsure]


def _not_followed(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    gone = context.state.gone
    end = closed.until_ns
    if gone is None or end - gone.time_ns < LOST_NS or context.lossy:
        return None
    stream = quoted(gone.fields.get("stream"))
    cause = f"the client does nothing for {duration_text(end - gone.time_ns)} after the server reported that the stream {stream} changed"
    return FindingDraft(cause, numbers(gone), packets(gone))


def _asked_by_server(context: ConversationContext, record: Exchange | Message) -> FindingDraft | None:
    if type(record) is Message:
        latency = record.latency_ns or 0
        cause = f"the client answers ConsumerUpdate after {duration_text(latency)}: {_waits_for_it(context.request_of(record))}"
        return FindingDraft(cause, key="late") if latency >= LOST_NS else None
    assert type(record) is Exchange
    waited, reason = record.waited_ns or 0, record.reason
    if record.name != "ConsumerUpdate" or (reason != "timeout" and (reason not in ("closed", "capture ended") or waited < PATIENCE_NS)):
        return None
    when = "" if reason == "timeout" else f" when the {'connection' if reason == 'closed' else 'capture'} ends"
    cause = (
        f"the client has not answered ConsumerUpdate for {duration_text(waited)}{when}: {_waits_for_it(context.asked.get(record.request))}"
    )
    return FindingDraft(cause, key="ConsumerUpdate")


def _waits_for_it(asked: Message | None) -> str:
    """What a ConsumerUpdate without an answer holds up."""
    stands_down = asked is not None and asked.fields.get("active") == 0
    return "no other consumer becomes active before" if stands_down else "the server delivers nothing before"


def _advertised(context: ConversationContext, message: Message) -> FindingDraft | None:
    properties = message.fields.get("connection_properties") if message.kind == "response" else None
    found = {one.get("key"): one.get("value") for one in properties or () if isinstance(one, dict)}
    host, port = found.get("advertised_host"), found.get("advertised_port")
    if host is not None and port is not None:
        context.state.advertised = f"{host}:{port}", msgspec.structs.replace(message, fields={})
    return _elsewhere(context, message, [(host, port)])


def _brokers(context: ConversationContext, message: Message) -> FindingDraft | None:
    brokers = message.fields.get("brokers") if message.kind == "response" else None
    return _elsewhere(context, message, [(one.get("host"), one.get("port")) for one in brokers or ()])


def _leader_facts(context: ConversationContext, message: Message) -> list[FindingDraft]:
    """Who leads the streams that a client asks for."""
    brokers = {one["reference"]: f"{one['host']}:{one['port']}" for one in message.fields.get("brokers") or () if "port" in one}
    facts = []
    for one in message.fields.get("stream_metadata") or () if message.kind == "response" else ():
        stream, leader = one.get("stream_name"), brokers.get(one.get("leader_reference"))
        if stream is not None and leader is not None and one.get("response_code_label") == "OK":
            facts.append(fact("leader-named", message, f"{stream} {host_of(context.client)}", stream, leader))
    return facts


def _landed_facts(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """To which broker a connection led, and whether the client used it."""
    state = context.state
    if state.advertised is None or not closed.ended:
        return None
    place, message = state.advertised
    used = "used" if context.active or state.busy else "asked" if state.asks else "left"
    return fact("landed", message, f"{host_of(context.client)} {place} {used}", place, used)


def _elsewhere(context: ConversationContext, message: Message, places: list[tuple[Any, Any]]) -> FindingDraft | None:
    """Endpoints that clients are sent to other than this one; a name on the same port needs all conversations to decide."""
    context.state.sent = None
    places = [(host, port) for host, port in places if host is not None and port is not None]
    if not places or any(is_here(message.src, *one) for one in places):
        return None
    port = message.src.rpartition(":")[2]
    named = tuple(dict.fromkeys(f"[{one[0]}]:{one[1]}" if ":" in str(one[0]) else f"{one[0]}:{one[1]}" for one in places[:PLACES]))
    context.state.sent = message.name, message.time_ns, named, numbers(message), packets(message)
    if any(str(one[1]) == port and not is_address(str(one[0])) for one in places):
        return fact("advertised-name", message, some(named, PLACES), *named)
    cause = f"the server sends clients to {some(named)}, while this one is connected to {message.src}"
    return FindingDraft(cause, key=named, places=named)


def _stranded(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """A client that was sent elsewhere asks again and again, or leaves at once."""
    state = context.state
    if state.sent is None or not context.opening_seen:
        return None
    name, time_ns, places, shown, marks = state.sent
    by_client = closed.by == closed.client if context.close_message is None else context.close_message.sender == "client"
    left = by_client and closed.until_ns - time_ns < LEFT_NS
    if not left and state.asks < OFTEN:
        return None
    cause = f"neither publishes nor subscribes: {name} sends it to {some(places)}"
    return FindingDraft(cause, shown, marks, WARNING if name == "Metadata" else NOTE, key=places, places=places, is_fact=True)


# What a refusal means


def _stream_of(request: Message | None) -> str:
    name = None if request is None else request.fields.get("stream")
    return f"{quoted(name)} " if name is not None else ""


def refusal(context: ConversationContext, message: Message, request: Message | None) -> Refusal:
    """Return what any other refused response means."""
    code, fields = _code(message), {} if request is None else request.fields
    named = [f"{what} {quoted(fields[name])}" for name, what in NAMED if fields.get(name) is not None]
    draft = {name: fields.get(name, message.fields.get(name)) for name in ("publisher_id", "subscription_id")}
    named += [f"{name.removesuffix('_id')} {ident}" for name, ident in draft.items() if ident is not None]
    about = next(iter(named), "")
    needed = code == "stream does not exist" and not message.name.startswith(("Delete", "Unsubscribe"))
    lacks = LACKS.get(message.name, "") if request is not None and fields.get("publisher_id") not in context.state.publishers else ""
    why, advice = code, _advice(context, code, message.name, about)
    if message.name == "Subscribe" and code == "precondition failed" and request is not None:
        why, advice = _not_met(context.state, request, why, advice)
    return Refusal(why, about, code in EXPECTED, advice, needed=needed, lacks=lacks)


def _not_met(state: RabbitmqState, request: Message, why: str, advice: str | None) -> tuple[str, str | None]:
    """Return which precondition a Subscribe does not meet, as far as it shows that, and what to do."""
    found = {one.get("key"): one.get("value") for one in request.fields.get("properties") or ()}
    name, credit, unit = found.get("name"), request.fields.get("credit", 0), unit_of(request.fields)
    reasons = []
    if found.get("single-active-consumer") == "true" and not name:
        reasons.append(("a single active consumer needs a name", "Set the property name of Subscribe."))
    if len(str(name).encode()) > 255:
        reasons.append(("its name is longer than 255 bytes", "Shorten the property name of Subscribe."))
    if credit > CREDIT_LIMITS[unit]:
        most = f"its credit of {_amount(credit, unit)} is more than the {CREDIT_LIMITS[unit]:,} that newer servers allow by default"
        reasons.append((most, _limit_advice(unit)))
    if len(state.subscriptions) >= SUBSCRIPTIONS:
        most = f"a connection has {SUBSCRIPTIONS} subscriptions at most"
        reasons.append((most, "Spread the subscriptions over several connections."))
    if not reasons:
        return why, advice
    return f"{why}, as {' or '.join(reason for reason, _ in reasons)}", reasons[0][1] if len(reasons) == 1 else advice


def _advice(context: ConversationContext, code: str, name: str, about: str) -> str | None:
    """What to do about a code; where something is not permitted, who needs what permission for what."""
    if code != "access refused":
        return ADVICE.get(code)
    user, vhost = context.state.user, context.state.vhost
    who = f"the user {quoted(user)}" if user is not None else "the user of this client"
    where = f" in the virtual host {quoted(vhost)}" if vhost is not None else ""
    what = f"{PERMISSIONS.get(name, 'read or write')} for {about or 'this stream'}{where}"
    return f"Give {who} the permission {what}: rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ."


# State


def follow(context: ConversationContext, message: Message) -> None:
    """Update the state after the rules have checked a message."""
    state, fields, name = context.state, message.fields, message.name
    if context.opening_seen and sum(context.messages) == 1 and name != "PeerProperties" and context.protocol == "rabbitmq-stream":
        state.first = message
    side = 1 if message.sender == "server" else 0
    before = context.last[side]
    if before is not None and _too_long(context, before, message.time_ns) and message.position == before.position + before.size:
        state.silent[side] = SilentPeriod(before.time_ns, message.time_ns, numbers(before, message), packets(before, message))
    null = _null(message) if state.null is None else None
    if null is not None:
        state.null = FindingDraft(f"{null}: they close", numbers(message), packets(message), key=null)
    if (name, message.kind) in _FOLLOW:
        _FOLLOW[name, message.kind](context, state, message, fields)
    if message.sender == "client":
        if name == "Metadata":
            state.asks = state.asks + 1 if message.time_ns - state.asked_ns < REFRESH_NS else 1
            state.asked_ns = message.time_ns
        state.sent = state.sent if name in IDLE else None
        state.busy = state.busy or name not in IDLE
        state.missing = state.missing if name in ("Metadata", "Heartbeat", "Close") else None
        context.active = context.active or name in ("DeclarePublisher", "Publish", "Subscribe")
    if state.gone is not None and message.sender == "client" and name not in ("Heartbeat", "Credit", "StoreOffset"):
        state.gone = None


def _greeted(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    found = {one.get("key"): one.get("value") for one in fields.get("peer_properties") or ()}
    if found.get("product"):
        state.server = f"{str(found['product'])[:40]} {str(found.get('version') or '')[:20]}".strip()


def _offered(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    state.offered = tuple(str(one)[:40] for one in (fields.get("mechanisms") or ())[:8])


def _authenticating(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    mechanism, user = fields.get("mechanism"), fields.get("sasl_username")
    state.mechanism, state.user = mechanism, user or (state.user if state.began is None else None)
    state.no_password = user is not None and message.size == WITHOUT_PASSWORD.get(mechanism or "", 0) + len(f"{mechanism}{user}".encode())


def _authenticated(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    if message.outcome == "answered" and state.began is None and not _not_ok(message):
        state.began = state.mechanism, state.user


def _tuned(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    size, beat = fields.get("frame_max"), fields.get("heartbeat")
    if size is None or beat is None:
        return
    if message.kind == "request":
        state.tune = size, beat
    else:
        state.tuned, state.frame_max = True, size or FRAME_MAX_NONE
        state.heartbeat_ns = beat * 1_000_000_000


def _looked_up(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    missing = [one for one in fields.get("stream_metadata") or () if one.get("response_code_label") in EXPECTED]
    state.missing = message if any(not _deletes(state, one.get("stream_name")) for one in missing) else None


def _opening(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    state.vhost = fields.get("virtual_host")


def _stated(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    state.versions = {
        one["key"]: (one["min_version"], one["max_version"]) for one in (fields.get("commands") or ())[:256] if "max_version" in one
    }


def _declared(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    request = context.request_of(message)
    if request is None:
        # The capture lacks it, or has it later: any id may be that of another publisher now
        state.publishers.clear()
    elif message.outcome == "answered" and len(state.publishers) < PUBLISHERS:
        ident, reference = request.fields.get("publisher_id", -1), str(request.fields.get("publisher_reference") or "")
        state.declared += 1
        state.publishers[ident] = RabbitmqPublisher(
            f"{context.conversation} {state.declared}", ident, _stream_name(request.fields), reference
        )
        state.refused.pop(ident, None)
    elif message.outcome == "refused" and len(state.refused) < PUBLISHERS:
        what, about = refusal(context, message, request), (request, message)
        if what.lacks:
            cause = f"DeclarePublisher for {what.about} is refused: {what.why}; the client publishes anyway, and nothing is stored"
            key = (message.name, what.about, what.why), ERROR
            draft = FindingDraft(cause, numbers(*about), packets(*about), ERROR, what.advice, key, rule="refused")
            state.refused[request.fields.get("publisher_id", -1)] = RefusedPublisher(draft, False)


def _stream_name(fields: dict[str, Any]) -> str | None:
    stream = fields.get("stream")
    return None if stream is None else str(stream)[:200]


def _undeclared(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    request = context.request_of(message)
    if message.outcome == "answered" and request is not None:
        state.publishers.pop(request.fields.get("publisher_id", -1), None)


def _stream_key(context: ConversationContext, stream: object) -> str:
    return f"{context.state.vhost} {str(stream)[:200]}"


def _share(context: ConversationContext, message: Message, *step: Any) -> None:
    context.share(context, message, "confirmed-and-lost", step)


def _emptied(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    """Streams are new, or gone, and so is what they remembered."""
    asked = context.request_of(message) if message.outcome == "answered" else message if message.kind == "one_way" else None
    for stream in (asked.fields.get("stream"), *(asked.fields.get("partitions") or ())) if asked is not None else ():
        if stream is not None:
            whose = [one.whose for one in state.publishers.values() if one.stream == stream]
            _share(context, message, "emptied", _stream_key(context, stream), whose)


def _sequence(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    request, last = context.request_of(message), fields.get("sequence")
    if message.outcome == "answered" and request is not None and last is not None and request.fields.get("stream") is not None:
        reference = str(request.fields.get("publisher_reference"))
        # 0 also stands for none
        _share(context, message, "sequence", _stream_key(context, request.fields["stream"]), reference, last or -1)


def _with_reference(state: RabbitmqState, fields: dict[str, Any]) -> RabbitmqPublisher | None:
    one = state.publishers.get(fields.get("publisher_id", -1))
    return one if one is not None and one.reference else None


def _published(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    one = _with_reference(state, fields)
    if one is None or (one.whose not in state.with_reference and len(state.with_reference) >= PUBLISHERS):
        return
    if context.lossy:
        # After a loss messages are read late, when others may have gone on
        return
    state.with_reference[one.whose] = one
    entries = [(entry.get("publishing_id", 0), entry.get("num_records", 1)) for entry in fields.get("published_messages") or ()]
    about = one.whose, _stream_key(context, one.stream), one.reference
    _share(context, message, "published", *about, entries, numbers(message), packets(message))


def _confirmed(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    one, idents = _with_reference(state, fields), fields.get("publishing_ids")
    if one is not None and one.whose in state.with_reference and idents:
        _share(context, message, "confirmed", one.whose, idents, numbers(message), packets(message))


def _not_stored(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    one = _with_reference(state, fields)
    if one is not None:
        # What was refused may be published again
        _share(context, message, "refused", one.whose)


def _publishing(kept: dict[Hashable, Any], step: Sequence[Any]) -> list[FindingDraft]:
    """Keep the highest id of each publisher reference that is known to be stored in a stream."""
    return _PUBLISHING[step[0]](kept, *step[1:]) or []


def _ids_published(kept: dict[Hashable, Any], whose: str, stream: str, reference: str, entries: Any, messages: Any, marks: Any) -> None:
    one = kept.setdefault(whose, RabbitmqIds(stream, reference))
    stored = kept.get((stream,), {}).get(reference, -1)
    for ident, records in entries:
        last = max(one.highest, stored)
        one.sent += records
        one.highest = max(one.highest, ident)
        if ident <= last:
            one.dropped += records
            one.first = one.first or (ident, last, tuple(messages), tuple(marks))
    drop_oldest(kept, STREAMS_KEPT)


def _ids_confirmed(kept: dict[Hashable, Any], whose: str, idents: Any, messages: Any, marks: Any) -> None:
    one = kept.get(whose)
    if one is not None:
        stored = kept.get((one.stream,), {}).get(one.reference, -1)
        _ids_stored(kept, one.stream, one.reference, max(*idents, stored))
        if one.first is not None and one.confirmed is None and one.first[0] in idents:
            one.confirmed = tuple(messages), tuple(marks)


def _ids_stored(kept: dict[Hashable, Any], stream: str, reference: str, ident: int) -> None:
    keep_newest(kept.setdefault((stream,), {}), reference, ident, REFERENCES)
    drop_oldest(kept, STREAMS_KEPT)


def _ids_emptied(kept: dict[Hashable, Any], stream: str, whose: Any) -> None:
    kept.pop((stream,), None)
    for one in whose:
        _ids_refused(kept, one)


def _ids_refused(kept: dict[Hashable, Any], whose: str) -> None:
    if whose in kept:
        kept[whose].highest = -1


def _ids_closed(kept: dict[Hashable, Any], every: Any, at_ns: int) -> list[FindingDraft]:
    found = [(kept.pop(whose, None), *about) for whose, *about in every]
    return [
        FindingDraft(
            f"{one.dropped:,} of {count(one.sent, 'message')} of publisher {ident} (reference {quoted(reference)}, stream "
            f"{quoted(stream)}) {'is' if one.dropped == 1 else 'are'} confirmed but not stored, "
            f"from id {one.first[0]} on: the server has ids up to {one.first[1]} of this reference",
            one.first[2] + one.confirmed[0],
            one.first[3] + one.confirmed[1],
            at_ns=at_ns,
        )
        for one, ident, stream, reference in found
        if one is not None and one.first is not None and one.confirmed is not None
    ]


_PUBLISHING: dict[str, Callable[..., list[FindingDraft] | None]] = {
    "published": _ids_published,
    "confirmed": _ids_confirmed,
    "sequence": _ids_stored,
    "emptied": _ids_emptied,
    "refused": _ids_refused,
    "closed": _ids_closed,
}
"""What a step of publishers does."""


def _subscribed(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    ident, credit = fields.get("subscription_id"), fields.get("credit")
    held = state.replacing if ident in state.subscriptions else state.subscriptions
    if ident is not None and credit is not None and len(held) < SUBSCRIPTIONS:
        properties = fields.get("properties") or ()
        filtered = any(str(one.get("key")).startswith(("filter", "match-", "chunk_")) for one in properties)
        wanted = tuple(quoted(one.get("value")) for one in properties[:8] if str(one.get("key")).startswith("filter."))
        begin = fields.get("offset") if fields.get("offset_type_label") == "offset" else None
        about = message.number, unit_of(fields), _stream_name(fields)
        one = RabbitmqSubscription(
            *about, credit, credit, filtered, begin, wanted=wanted, since_ns=message.time_ns, group=_group_of(properties)
        )
        one.cut = message.fault is not None
        # A single active consumer that is not the active one needs none
        one.empty = msgspec.structs.replace(message, fields={}) if credit == 0 and one.group is None else None
        held[ident] = one


def _group_of(properties: Iterable[dict[str, Any]]) -> str | None:
    """Return the name of a single active consumer."""
    found = {one.get("key"): one.get("value") for one in properties}
    return str(found.get("name"))[:200] if found.get("single-active-consumer") == "true" else None


def _not_subscribed(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    if message.request is None:
        # Its request is missing, and may have an id that is in use
        context.lossy = True
    for held in (state.subscriptions, state.replacing):
        for ident, one in held.items():
            if one.number == message.request:
                one.accepted = message.outcome == "answered"
                if not one.accepted:
                    del held[ident]
                elif held is state.replacing:
                    # The server had ended the other one
                    state.subscriptions[ident] = held.pop(ident)
                return


def _asked_again(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    """What a consumer answers when it becomes the active one counts, not what it subscribed with."""
    request = context.request_of(message)
    one = None if request is None else state.subscriptions.get(request.fields.get("subscription_id", -1))
    if one is None or request is None:
        return
    if fields.get("offset_type_label") != "none":
        one.begin = fields.get("offset") if fields.get("offset_type_label") == "offset" else None
    one.is_active = request.fields.get("active") == 1
    if one.is_active:
        # What it got when it was active before is no measure
        one.following = None
        if one.group is not None and len(one.active) < PERIODS:
            one.active.append(RabbitmqPeriod(msgspec.structs.replace(message, fields={}), one.begin))


def _unsubscribed(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    ident = fields.get("subscription_id", -1)
    state.subscriptions.pop(ident, None)
    if ident in state.replacing:
        state.subscriptions[ident] = state.replacing.pop(ident)


def _stands_down(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    ident, active = fields.get("subscription_id"), fields.get("active") == 1
    one = state.subscriptions.get(-1 if ident is None else ident)
    if one is not None:
        one.is_active = one.is_active and active
    if ident is not None:
        state.activity[ident] = active


def _granted(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    ident, more, unit = fields.get("subscription_id", -1), fields.get("credit") or 0, unit_of(fields)
    one, other = state.subscriptions.get(ident), state.replacing.get(ident)
    state.credits[message.number] = RabbitmqCredit(message, more, unit, one is not None and one.is_active)
    drop_oldest(state.credits, CREDITS)
    if other is not None and other.unit == unit:
        other.credit, other.asked = other.credit + more, other.asked + more
    if one is None:
        return
    if one.unit != unit:
        one.ignored = one.ignored or other is None
        return
    one.credit += more
    one.asked += more
    if one.credit > 0 and one.empty is not None:
        passed = message.time_ns - one.empty.time_ns
        if passed >= STALL_NS and one.delivered:
            one.granted = message.time_ns, passed, (numbers(one.empty, message), packets(one.empty, message))
        one.empty = None
    elif one.credit <= 0 and more < 0 and one.empty is None:
        one.empty, one.waits = message, True
    if one.credit > 0:
        one.taken = None
    elif more < (0 if one.taken is None else one.taken.credit):
        one.taken = state.credits[message.number]


def _not_granted(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    """What the server refused does not count."""
    one, sent = state.subscriptions.get(fields.get("subscription_id", -1)), state.credits.pop(message.request or 0, None)
    if one is None or sent is None or _code(message) != "precondition failed":
        return
    if _why_refused(context, one, sent, message) in ("limit", "lower limit"):
        one.credit -= sent.credit
        one.asked -= sent.credit
        if one.credit <= 0 and one.empty is None:
            one.empty, one.granted = sent.message, None


def _delivered(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    one = state.subscriptions.get(fields.get("subscription_id", -1))
    if one is None or not (one.accepted or context.lossy) or _of_another(context, one, message):
        return
    if context.lossy:
        # Among missing messages there may be credit
        one.credit, one.empty, one.granted = CREDIT_UNKNOWN, None, None
    cost = 1 if one.unit == CHUNKS else chunk_size(fields)
    one.delivered += 1
    one.used += cost
    one.credit -= cost
    if one.granted is not None:
        took = message.time_ns - one.granted[0]
        # Otherwise no chunk waited for this Credit
        if took < min(one.granted[1], max(STALL_NS, one.granted[1] // 10)):
            one.slowest_ns = max(one.slowest_ns, took)
            one.count_stall()
        one.granted = None
    chunk = fields.get("chunk")
    if one.credit <= 0 and one.empty is None:
        one.empty = msgspec.structs.replace(message, fields={})
        one.waits = not isinstance(chunk, dict) or fields.get("committed_chunk_id") != chunk.get("chunk_first_offset", -1)
    if isinstance(chunk, dict) and "num_records" in chunk and chunk.get("chunk_first_offset") is not None:
        one.following = chunk["chunk_first_offset"] + chunk["num_records"]
        if one.active:
            period = one.active[-1]
            period.first = chunk["chunk_first_offset"] if period.first is None else period.first
            period.last, period.until_ns = one.following - 1, message.time_ns


def _offset_stored(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    stream, reference, offset = str(fields.get("stream"))[:200], str(fields.get("reference"))[:200], fields.get("offset")
    if offset is None:
        return
    for one in state.subscriptions.values():
        if one.active and one.stream == stream and one.group == reference:
            one.active[-1].stored = max(one.active[-1].stored, offset)
    if not context.opening_seen and ((stream, reference) in state.offsets or len(state.offsets) < PERIODS):
        state.offsets[stream, reference] = offset, msgspec.structs.replace(message, fields={})


def _deleting(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    stream = _subject(message)
    if stream and len(state.deleting) < PUBLISHERS:
        state.deleting[stream + ("-" if "name" in fields else "")] = None


def _deletes(state: RabbitmqState, stream: str | None) -> bool:
    """Whether the client itself deletes a stream, or the super stream that it is a partition of."""
    return stream is not None and (stream in state.deleting or stream[: stream.rfind("-") + 1] in state.deleting)


def _updated(context: ConversationContext, state: RabbitmqState, message: Message, fields: dict[str, Any]) -> None:
    stream = fields.get("stream")
    if not _deletes(state, stream):
        state.gone = message
    for ident in [ident for ident, one in state.subscriptions.items() if one.stream == stream]:
        del state.subscriptions[ident]
    _emptied(context, state, message, fields)
    for ident in [ident for ident, one in state.publishers.items() if one.stream == stream]:
        del state.publishers[ident]
        if len(state.refused) < PUBLISHERS:
            cause = (
                f"messages of publisher {ident} for the stream {quoted(stream)} are not stored: the server ended this publisher when it "
                "reported that the stream changed"
            )
            draft = FindingDraft(cause, numbers(message), packets(message), advice=_DECLARE_AGAIN, key=(ident, "ended"))
            state.refused[ident] = RefusedPublisher(draft, True)


_FOLLOW = {
    ("PeerProperties", "response"): _greeted,
    ("SaslHandshake", "response"): _offered,
    ("SaslAuthenticate", "request"): _authenticating,
    ("SaslAuthenticate", "response"): _authenticated,
    ("Tune", "request"): _tuned,
    ("Tune", "response"): _tuned,
    ("Open", "request"): _opening,
    ("Metadata", "response"): _looked_up,
    ("ExchangeCommandVersions", "response"): _stated,
    ("DeclarePublisher", "response"): _declared,
    ("DeletePublisher", "response"): _undeclared,
    ("Subscribe", "request"): _subscribed,
    ("Subscribe", "response"): _not_subscribed,
    ("Unsubscribe", "request"): _unsubscribed,
    ("ConsumerUpdate", "request"): _stands_down,
    ("ConsumerUpdate", "response"): _asked_again,
    ("Credit", "one_way"): _granted,
    ("Credit", "response"): _not_granted,
    ("StoreOffset", "one_way"): _offset_stored,
    ("Deliver", "one_way"): _delivered,
    ("Publish", "request"): _published,
    ("PublishConfirm", "response"): _confirmed,
    ("PublishError", "response"): _not_stored,
    ("QueryPublisherSequence", "response"): _sequence,
    ("Create", "response"): _emptied,
    ("CreateSuperStream", "response"): _emptied,
    ("DeleteSuperStream", "response"): _emptied,
    ("Delete", "request"): _deleting,
    ("DeleteSuperStream", "request"): _deleting,
    ("Delete", "response"): _emptied,
    ("MetadataUpdate", "one_way"): _updated,
}


def _skipped(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    first = context.state.first
    if first is None or context.ready or closed.by is None or closed.by == closed.client:
        return None
    cause = f"the client begins with {first.name} instead of PeerProperties, and the server closes the connection without a reason"
    return FindingDraft(cause, numbers(first), packets(first))


def _cut_off(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    if context.ready or context.failed or closed.by is None or closed.by == closed.client:
        return None
    last = context.last[0]
    if last is None or last.name != "SaslAuthenticate" or not any(one.name == "SaslAuthenticate" for one in context.unanswered):
        return None
    login = f"the login by {context.state.mechanism or UNKNOWN}"
    cause = f"{context.state.server} ends the connection instead of answering {login}: it cannot continue it"
    return FindingDraft(cause, numbers(last), packets(last))


_NEWER = "Check for a newer streamdump; its output for this connection may be wrong."
_SLOW_CONSUMER = "Speed up the consumer, or grant credit when chunks arrive, not when they have been processed; one credit is one chunk."
_SLOW_BYTES = "Speed up the consumer, or grant the bytes of each chunk when it arrives, not when it has been processed."
_GRANT_BYTES = "Have the consumer send Credit for the bytes of each chunk: without it the server delivers nothing."
_SAME_UNIT = "Have the client use one version of Subscribe and Credit for a subscription: 1 counts chunks, 2 counts bytes."
_THREE_CAUSES = (
    "No action needed for a single active consumer that waits for its turn; otherwise use the version of Subscribe for Credit, "
    "and grant less at once."
)
_GRANT_LESS = "Have the consumer grant at most 32,767 chunks at once."
_DECLARE_AGAIN = "Have the client query the leader with Metadata after each MetadataUpdate, and declare the publisher again there."
_GRANT = "Have the consumer send Credit for each chunk: without it the server delivers nothing."

RULES: tuple[Rule, ...] = (
    Rule(
        "handshake-order",
        ERROR,
        CLOSED,
        _skipped,
        "Have the client send PeerProperties first, then SaslHandshake, SaslAuthenticate, Tune, Open.",
        ENDED,
    ),
    Rule("argument-not-valid", ERROR, CLOSED, _arguments, "Have the client send this argument as a decimal number of bytes.", ENDED | OPEN),
    Rule(
        "frame-too-large",
        ERROR,
        CLOSED,
        _too_large_end,
        "Send smaller batches, or raise stream.frame_max at the server and at the client.",
        ENDED,
    ),
    Rule(
        "login-cut-off",
        ERROR,
        CLOSED,
        _cut_off,
        "Check the server's log for the reason, and choose another mechanism.",
        ENDED | OPEN,
    ),
    Rule(
        "authentication-refused",
        ERROR,
        "SaslAuthenticate",
        _refused("^authentication failure$", _authentication),
        "Check the user name and password at the client: rabbitmqctl authenticate_user shows whether the server accepts them.",
        REFUSED,
    ),
    Rule(
        "loopback-only-user",
        ERROR,
        "SaslAuthenticate",
        _refused("loopback", _loopback),
        "Create a user of your own; loopback_users in the server's configuration lists the users that may log in only locally.",
        REFUSED,
    ),
    Rule(
        "mechanism-refused",
        ERROR,
        "SaslAuthenticate",
        _refused("mechanism not", _mechanism),
        "Choose one of the mechanisms that the server offers, or enable this one (auth_mechanisms).",
        REFUSED,
    ),
    Rule(
        "renewal-refused",
        ERROR,
        "SaslAuthenticate",
        _refused("cannot change", _renewal),
        "Renew it with the mechanism and the user that the connection began with, or open another connection.",
        REFUSED,
    ),
    Rule("sasl-error", ERROR, "SaslAuthenticate", _refused("", _sasl), "Check how the client builds the data of this mechanism.", REFUSED),
    Rule(
        "virtual-host-refused",
        ERROR,
        "Open",
        _vhost,
        "Check the name; rabbitmqctl list_vhosts and list_permissions -p VHOST show the existing ones.",
        REFUSED,
    ),
    Rule(
        "frame-max-raised",
        WARNING,
        "Tune",
        _raised,
        "Have the client use the smaller of both sizes: RabbitMQ 3.10 and 4.0 follow its answer, other servers may not.",
    ),
    Rule("frame-too-large", WARNING, ANY, _too_large, "Send smaller batches, or raise stream.frame_max at the server and at the client."),
    Rule(
        "closed-with-code",
        WARNING,
        "Close",
        _closing,
        "Check the message before it, named as evidence, and the server's log.",
    ),
    Rule(
        "unknown-command",
        WARNING,
        ANY,
        _unknown,
        "Use a client for this version of the server, or upgrade the server.",
    ),
    Rule("newer-version", NOTE, "ExchangeCommandVersions", _newer, _NEWER),
    Rule(
        "silence",
        WARNING,
        CLOSED,
        _silence,
        "Check what blocks this side from sending: a busy client, or a network that drops packets.",
    ),
    Rule("null-reference", WARNING, CLOSED, lambda context, closed: context.state.null, WRITE_EMPTY),
    Rule(
        "id-in-use",
        WARNING,
        ("DeclarePublisher", "Subscribe"),
        _id_in_use,
        "Delete the publisher or subscription first, or use another id; ids have one byte (0 to 255).",
        REFUSED,
    ),
    Rule("refused", NOTE, "DeletePublisher", _never_there, ADVICE["publisher does not exist"], REFUSED),
    Rule(
        "publish-error",
        WARNING,
        "PublishError",
        _publish_error,
        "Declare the publisher again once its stream exists, and publish these messages again.",
    ),
    Rule(
        "confirms-missing",
        WARNING,
        CLOSED,
        _confirms,
        "Publish these again on the next connection: with a publisher reference the server drops duplicates.",
        OPEN,
    ),
    Rule(
        "confirmed-and-lost",
        WARNING,
        CLOSED,
        _dropped,
        "If these are not duplicates, continue from the id that QueryPublisherSequence returns, use a higher id for each frame "
        "and sub-batch, or publish without a reference.",
    ),
    Rule(
        "more-than-asked",
        NOTE,
        "Deliver",
        _more,
        "Have the client skip what it did not ask for: servers deliver complete chunks, with a filter too.",
    ),
    Rule(
        "property-ignored",
        NOTE,
        "Subscribe",
        _ignored,
        "Write names and values as the server expects them, in lower case; match-unfiltered has an effect only with a filter.",
    ),
    Rule("credit-refused", WARNING, "Credit", _credit_refused, _SAME_UNIT),
    Rule("out-of-credit", WARNING, ("Unsubscribe", "MetadataUpdate"), _starved, _SLOW_CONSUMER),
    Rule("out-of-credit", WARNING, LIVE, _starving, _GRANT),
    Rule("out-of-credit", WARNING, CLOSED, _out_of_credit, _GRANT),
    Rule(
        "chunk-checksum",
        ERROR,
        "Deliver",
        noted("^checksum of the chunk", "a chunk is damaged: the {note}"),
        "Check whether the chunk is damaged on the server's disk, or only in transit.",
        NOTED,
    ),
    Rule(
        "sub-batch",
        WARNING,
        ("Deliver", "Publish"),
        noted("^sub-batch", "a sub-batch of {name} cannot be unpacked: {note}", "{note}"),
        "Check how the publisher compresses its batches.",
        NOTED,
    ),
    Rule("offsets", WARNING, "Deliver", _offsets, "Compare with the stream's retention, and have the consumer skip duplicates."),
    Rule("stream-not-available", WARNING, ANY, _not_available, ADVICE["stream not available"], REFUSED),
    Rule("no-leader", WARNING, "Metadata", _metadata, ADVICE["stream not available"]),
    Rule("gave-up", ERROR, CLOSED, _gave_up, ADVICE["stream does not exist"], ENDED),
    Rule("refused", WARNING, "Metadata", _metadata_refused, "Check the names of the streams and the permissions of the user."),
    Rule(
        "stream-changed",
        NOTE,
        "MetadataUpdate",
        _moved,
        "Query the stream again with Metadata, and subscribe or publish at its current leader.",
    ),
    Rule(
        "stream-deleted",
        NOTE,
        ("MetadataUpdate", "Delete", "DeleteSuperStream", "Subscribe", "DeclarePublisher"),
        _stream_facts,
        ADVICE["stream does not exist"],
    ),
    Rule("stream-deleted", NOTE, CLOSED, _open_facts, ADVICE["stream does not exist"]),
    Rule(
        "stream-change-ignored",
        WARNING,
        CLOSED,
        _not_followed,
        "Have the client query the stream again, and subscribe or publish at its current leader.",
    ),
    Rule(
        "server-request-unanswered",
        WARNING,
        (EXCHANGE, "ConsumerUpdate"),
        _asked_by_server,
        "Check what keeps the client busy, and have it answer every ConsumerUpdate: after 60 s, servers end the connection without Close.",
    ),
    Rule("advertised-not-dialled", WARNING, CLOSED, _stranded, NOT_DIALLED),
    Rule("never-at-the-leader", NOTE, "Metadata", _leader_facts, NOT_DIALLED),
    Rule("never-at-the-leader", NOTE, CLOSED, _landed_facts, NOT_DIALLED, ENDED),
    Rule("redelivered", NOTE, ("Unsubscribe", "MetadataUpdate", CLOSED), _delivered_facts, ADVICE["no offset"]),
    Rule(
        "advertised-elsewhere",
        NOTE,
        "Open",
        _advertised,
        "If clients cannot connect there, set stream.advertised_host and stream.advertised_port at the server.",
    ),
    Rule(
        "advertised-elsewhere",
        NOTE,
        "Metadata",
        _brokers,
        "If clients cannot connect there, set stream.advertised_host and stream.advertised_port at the server.",
    ),
)

FAMILY = Family(
    protocols=("rabbitmq-stream", "rabbitmq-stream-draft"),
    rules=RULES,
    steps=(
        HandshakeStep("peer properties", "PeerProperties", "request"),
        HandshakeStep("peer properties answered", "PeerProperties", "response"),
        HandshakeStep("SASL mechanisms asked for", "SaslHandshake", "request"),
        HandshakeStep("SASL mechanisms", "SaslHandshake", "response"),
        HandshakeStep("login", "SaslAuthenticate", "request"),
        HandshakeStep("authenticated", "SaslAuthenticate", "response", unless=_not_ok),
        HandshakeStep("Tune", "Tune", "request"),
        HandshakeStep("Tune answered", "Tune", "response"),
        HandshakeStep("Open", "Open", "request"),
        HandshakeStep("ready", "Open", "response", ready=True, unless=_not_ok),
    ),
    new_state=RabbitmqState,
    follow=follow,
    shared=_publishing,
    refusal=refusal,
    closing=frozenset(("Close",)),
    opening=frozenset(("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open", "Close", "Heartbeat")),
    answers_late=frozenset(("ConsumerUpdate",)),
    reported_apart=frozenset(("Publish", "ConsumerUpdate")),
    refusals=(
        "streamdump -Y 'kind == response and (outcome == refused or name in {Metadata, PublishError})' shows each of them, "
        "and Metadata of existing streams."
    ),
)
