"""Rules, the records they check, and the state of one conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import msgspec

from ..layers.proxy import ProxyHeader
from ..layers.websocket import WebSocketOutcome
from ..model import Exchange, Finding, Gap, Message, Processes, Severity, Verdict
from ..protocols import server_ports
from ..tcp.signs import Signs
from ..units import duration_text
from .copies import MESSAGES_COMPARED, content_of
from .network import Reported

ERROR: Severity = "error"
WARNING: Severity = "warning"
NOTE: Severity = "note"
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""The worst first."""

ANY, GAP, EXCHANGE, CLOSED, LIVE = "any message", "gap", "exchange", "closed", "live"
"""What a rule may check beside messages by name: a `Gap`, an `Exchange` (a request without a response), the end (`Closed`), and for an
interface the time (`Now`)."""

CLOSED_BEFORE = "closed before"
"""The end (`Closed`) of a conversation whose end was reported while one side went on."""

OURS, SPOKEN, NO_MESSAGES, LEFT, STARTED, ENDED, SYN, SILENT, OPEN, TLS, SIGNS, LACKING, LOST_OR_CUT, PROXY, WEBSOCKET = (
    1 << bit for bit in range(15)
)
"""What a rule about the end of a conversation may need: that it is one of our protocols', or on its port; that there are messages, or none;
that these left something: findings, refusals, a partial frame, responses without a request; a handshake that started and was not completed;
that one side ended it; its SYN; that it carried no byte; requests without a response; TLS; what reassembly or ICMP saw of the network; that
bytes are missing, or were lost or cut off within it; a PROXY header; WebSocket."""

REFUSED, FAULTY, NOTED, SLOW, REQUEST, TAIL = (1 << bit for bit in range(6))
"""What a rule about messages may need: a refused response, a fault, notes, a late response, a request, a few bytes before it that are no
frame."""

SLOW_NS = 1_000_000_000
"""A response that takes longer is reported."""

ASKED_KEPT, ASKED_SIZE = 64, 2_048
"""Open requests of a conversation kept with their fields, at most, and the size of each."""

FOUND_KEPT = 64
"""Different findings of one conversation, at most."""

UNANSWERED_KEPT = ORPHANS_KEPT = 8

EVIDENCE = 8
"""Messages, and packets, named as evidence, at most."""

PATIENCE_NS = 1_000_000_000
"""A request that was open for so long when the capture ended should have had its answer."""

NOT_DIALLED = (
    "Check that clients can resolve and reach this endpoint, and configure the server to advertise one that they can; "
    "or capture there as well."
)

LEFT_NS = 60_000_000_000
"""A client that cannot go where it is sent leaves by then."""

REFUSED_ADVICE = "Check the request named as evidence."
"""What to do about a refusal of which nothing more is known."""

CLOSED_ADVICE = "Check the server's log: an operator closed the connection, or the server was stopped."
"""What to do if the server closed the connection without a reason that the capture shows."""

EXPIRED_ADVICE = "Check the server's log: an operator closed the connection, the server was stopped, or the token of the login expired."
"""The same of servers that end expired logins."""

SILENT_ADVICE = "Check the log of the silent side at the time of the last packet named."


FirstBytes = tuple[bytes, bytes]
"""The first bytes of both sides."""


class Now(NamedTuple):
    """The time, and the client and the server of the conversation that is checked."""

    time_ns: int
    src: str
    dst: str


class FindingDraft(msgspec.Struct, gc=False):
    """What a rule found. `messages` and `packets`: None for those of the record and of its request. Drafts with the same `key` (or cause,
    without one) are reported once for each conversation. `severity` and `advice`: where they differ from those of the rule."""

    cause: str
    messages: tuple[int, ...] | None = None
    packets: tuple[int, ...] | None = None
    severity: Severity | None = None
    advice: str | None = None
    key: Hashable = None
    places: tuple[str, ...] = ()
    """Endpoints that the client is sent to, which are looked for in the other conversations."""
    is_fact: bool = False
    """Not a finding by itself: all conversations together decide."""
    rule: str | None = None
    """Its name, where one function has findings of several rules."""
    alike: str = ""
    """The cause without the numbers in its free text: those alike are reported once, with their count, when the conversation ends."""
    at_ns: int | None = None
    """When it was, where that is not the time of the record."""


def fact(rule: str, message: Message, about: str, *places: str, what: str = "") -> FindingDraft:
    """Return a fact: not a finding by itself, but perhaps with those of other conversations (`ACROSS`).

    Facts with the same `about` are one, with its first and last time.
    """
    return FindingDraft(what, numbers(message), packets(message), places=places, is_fact=True, rule=rule, alike=about)


def stream_refused(context: ConversationContext, message: Message, stream: str, lacks: str) -> FindingDraft:
    """Return the fact that a host was refused a stream, however often; `lacks`: what it cannot do then (`Refusal.lacks`)."""
    did = f"wanted to {lacks}".removesuffix(" it")
    return fact("stream-lost", message, f"{stream} {host_of(context.client)} refused", stream, did, "", "refused")


class Rule(msgspec.Struct, frozen=True, gc=False):
    """One thing that may be wrong.

    `name` gets the conversation's protocol before it, unless it has one (`tcp.refused`). `on`: the names of the messages that it checks, or
    `ANY`, `GAP`, `EXCHANGE`, `CLOSED`, `LIVE`. `check` gets the conversation and the record, and returns the cause (one sentence without a
    full stop), a `FindingDraft`, several of these, or None. `advice` is one sentence, too. `needs`: bits that must all hold of the record
    for `check` to be called.
    """

    name: str
    severity: Severity
    on: str | tuple[str, ...]
    check: Callable[[ConversationContext, Any], str | FindingDraft | list[Any] | None]
    advice: str
    needs: int = 0


class HandshakeStep(NamedTuple):
    """A step of a handshake: its label, and the message that completes it, `unless` that says otherwise. `ready`: after this one the
    connection can be used."""

    label: str
    name: str
    kind: str
    ready: bool = False
    unless: Callable[[Message], bool] | None = None


class Refusal(NamedTuple):
    """What a refused response means: `why` in words, `about` what ("stream orders"), `advice`; `expected`: a client may ask anyway and
    go on (exists, does not exist, no offset); `rule`: the rule for such refusals; `lacks`: what the client cannot do without it ("consume
    from it"), an error unless the client asks again and succeeds. Until then it waits in `ConversationContext.pending`, from which a rule
    that knows more may remove it."""

    why: str
    about: str = ""
    expected: bool = False
    advice: str | None = None
    rule: str = "refused"
    needed: bool = False
    """It hardly goes on without what it asked for: a warning if it leaves."""
    lacks: str = ""
    text: str = ""
    """Free text of the server in `why`: refusals whose texts differ in numbers only are one finding, with their count."""
    asked: str = ""
    """The name of the request, where all have the same and it may not be remembered."""


Shared = Callable[[dict[Hashable, Any], Any], list[FindingDraft]]
"""Updates what a server keeps across connections with a step, which is plain data, and returns the findings. It limits the state."""

Share = Callable[["ConversationContext", Any, str, Any], list[FindingDraft]]
"""Gets a record of a conversation, the rule that it is for, and its step, to be applied at once, or when those of all tasks are
together, in the order of their times."""


def _nothing() -> None:
    return None


class Family(msgspec.Struct, frozen=True, eq=False):
    """What can go wrong with one or several protocols, or with one layout of a protocol ("iggy:replica"): the table of one file.

    `steps` of the handshake in their order; without any every conversation is ready at once. `new_state` makes the state of a conversation
    beside `ConversationContext`; `follow` updates it after the rules have checked a message, and must bound it.
    `refusal` says what a refused response means; `closing` are the messages that announce an end, and `answers_late` those whose response
    may take any time.
    """

    protocols: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    steps: tuple[HandshakeStep, ...] = ()
    new_state: Callable[[], Any] = _nothing
    follow: Callable[[ConversationContext, Message], None] | None = None
    refusal: Callable[[ConversationContext, Message, Message | None], Refusal] | None = None
    closing: frozenset[str] = frozenset()
    opening: frozenset[str] = frozenset()
    """Messages that may come before the connection is ready: those of the handshake, Close and heartbeats."""
    answers_late: frozenset[str] = frozenset()
    reported_apart: frozenset[str] = frozenset()
    """Requests whose missing responses have rules of their own."""
    reuses_ids: bool = False
    """Requests may have the id of one that is open."""
    least_header: int = 8
    """Bytes needed to recognise a frame."""
    longest_header: int = 0
    """Bytes of a header at most, where that is more: fewer may be one that the snap length has cut."""
    renames_responses: bool = False
    """Responses are not called what their requests are."""
    elsewhere: frozenset[str] = frozenset()
    """Responses whose requests may be on other connections."""
    refusals: str | None = None
    """Advice that shows all refusals, where some are inside messages that are not refused."""
    others: tuple[tuple[str, str], ...] = ()
    """Names and advice of findings under another name than their rule's (`FindingDraft.rule`, `Refusal.rule`)."""
    owed: Callable[[ConversationContext], list[tuple[int, int]]] | None = None
    """The requests of the client that should have been answered, and when they were sent, where not all are owed an answer."""
    reached: Callable[[ConversationContext, Closed], str] | None = None
    """How far a connection got, where its steps have no fixed order."""
    shared: Shared | None = None
    """Applies steps to what a server keeps across connections."""
    steps_by_message: dict[tuple[str, str], int] = {}
    """By name and kind of its message the index of each step."""

    def __post_init__(self) -> None:
        self.steps_by_message.update(((step.name, step.kind), at) for at, step in enumerate(self.steps))


NO_SIGNS = Signs()

_NEITHER: list[Any] = [None, None]
"""By side: nothing yet."""


def traits(message: Message, context: ConversationContext) -> int:
    """What holds of a message that rules may need."""
    return (
        REFUSED * (message.outcome == "refused")
        | FAULTY * (message.fault is not None)
        | NOTED * bool(message.notes)
        | SLOW * ((message.latency_ns or 0) >= SLOW_NS)
        | REQUEST * (message.kind == "request")
        | TAIL * (context.tail is not None)
    )


class Closed(msgspec.Struct):
    """The end of a conversation: what reassembly, TLS and detection know.

    `how`: "FIN", "RST", or what else `ConversationRow.ended` says; `by` the side that ended it first, None where neither did or it is
    unknown. `first`, `last`: packets as (order, number, file, time_ns). `client`: its side. `lost`, `cut` and what follows: by side.
    `stopped`: by side the first packet with a zero window, its time, and the longest duration.
    """

    conversation: int
    endpoints: tuple[str, str]
    ports: tuple[int, int]
    client: int | None
    syn: bool
    how: str
    by: int | None
    ended_ns: int | None
    end_ns: int
    """When it was certain that nothing more comes: where it was open then, at the end of the capture."""
    first: tuple[int, int, int, int]
    last: tuple[int, int, int, int]
    verdict: Verdict
    expected: str | None
    """The protocol of the port, where it is one of ours."""
    packets: tuple[int, int]
    bytes: tuple[int, int]
    lost: tuple[int, int]
    cut: tuple[int, int]
    retransmitted: int
    repeated: tuple[int, ...]
    """The first packets that brought nothing new."""
    disordered: tuple[int, int]
    tls: Any = None
    tls_errors: Mapping[str, str] = msgspec.field(default_factory=dict)
    stopped: tuple[tuple[int, int, int] | None, tuple[int, int, int] | None] = (None, None)
    failure: str | None = None
    refused: bool = False
    """A SYN was answered with RST."""
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What the dissector knows of the conversation."""
    first_bytes: FirstBytes = (b"", b"")
    """By side the first bytes, where the protocol is known."""
    other_protocols: tuple[str | None, str | None] = (None, None)
    """By side the protocol of others that it begins with."""
    proxy: ProxyHeader | None = None
    """The PROXY header that the client began with."""
    websocket: WebSocketOutcome | None = None
    inside: tuple[int, int] = (0, 0)
    """The bytes of each side inside of all layers, in which positions count."""
    icmp: tuple[Reported, ...] = ()
    """The errors that ICMP reports of its segments."""
    ahead: tuple[tuple[Message, str], ...] | None = None
    """Where the other side goes on, the requests that are open, of which nothing is known yet, and why they will have no response."""
    signs: Signs = NO_SIGNS
    """What reassembly saw of the network, and of the order of the end."""
    numbers: tuple[int | None, int | None] = (None, None)
    """By side the sequence number of its SYN."""
    ttls: tuple[tuple[int, ...], ...] = ()
    """By side those of its packets."""
    conflicts: int = 0
    """The segments that brought other bytes where there were some already."""
    untimed: bool = False
    """Packets of it have no time: its times stand still, and nothing in it seems to last."""
    processes: Processes | None = None
    earlier: int = 0
    """Of the lost bytes, those before a side's first segment: the capture may have started after them."""

    @property
    def server_ports(self) -> tuple[int, int]:
        """The ports that may be the server's."""
        return server_ports(self.ports, 0 if self.syn and self.client is None else self.client)

    @property
    def lost_or_cut(self) -> bool:
        """Whether bytes are missing within what was captured."""
        return self.lost != (0, 0) or self.cut != (0, 0)

    @property
    def lacking(self) -> bool:
        """Whether bytes of the conversation are missing in the capture."""
        return self.lost_or_cut or (0 in self.packets and self.bytes != (0, 0))

    @property
    def complete(self) -> bool:
        """Whether all of both sides was captured."""
        return all(self.packets) and not self.lacking

    @property
    def server(self) -> int:
        """The side that is the server, or is assumed to be."""
        return 1 - (self.client or 0)

    @property
    def handshake_open(self) -> bool:
        """Whether a TLS handshake started, and was not completed."""
        return self.tls is not None and self.tls.unfinished

    @property
    def tls_failed(self) -> bool:
        """Whether a TLS handshake started and certainly failed."""
        tls = self.tls
        if tls is None or tls.complete:
            return False
        return (
            any(alert.fatal for alert in tls.alerts) or tls.plain_peer is not None or (tls.unfinished and self.ended and not self.lacking)
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of each side, without a PROXY header."""
        one, two = self.bytes
        header = 0 if self.proxy is None else len(self.proxy.raw)
        return (one, two - header) if self.proxy is not None and self.proxy.side else (one - header, two)

    @property
    def injected(self) -> bool:
        """Whether a device between the two sent the RST that ended it."""
        return self.signs.reset is not None and self.signs.reset.injected

    @property
    def ended(self) -> bool:
        """Whether a FIN or RST ended the connection."""
        return self.how in ("FIN", "RST")

    @property
    def ours(self) -> bool:
        """Whether a conversation is one of ours, or was meant to be."""
        return self.expected is not None or self.verdict.protocol is not None

    @property
    def port(self) -> str:
        """Which protocol of ours the server's port is for, as the beginning of a sentence."""
        if self.client is not None:
            return f"the port is that of {self.expected}"
        return f"one of the ports is that of {self.expected} (the capture does not show which side is the client)"

    @property
    def until_ns(self) -> int:
        """When it ended, else when the capture did."""
        return self.end_ns if self.ended_ns is None else self.ended_ns

    @property
    def when(self) -> str:
        """What `until_ns` is, within a sentence."""
        return f"when the {'capture' if self.how.startswith('open') else 'connection'} ends"

    @property
    def verb(self) -> str:
        """What the one who ended it does with the connection."""
        return "resets" if self.how == "RST" else "closes"

    @property
    def order_unsure(self) -> bool:
        """Whether the order of the last packets is unknown: packets are missing or were captured out of order."""
        return any(self.disordered) or self.lacking

    def traits(self, context: ConversationContext) -> int:
        """What holds that rules may need."""
        left = context.found or context.unreported_refusals or context.aborted or context.tail or context.orphans
        return (
            OURS * self.ours
            | (NO_MESSAGES if context.messages == [0, 0] else SPOKEN)
            | LEFT * bool(left)
            | STARTED * (context.opening_seen and context.missing() is not None)
            | ENDED * self.ended
            | SYN * self.syn
            | SILENT * (self.bytes == (0, 0))
            | OPEN * bool(context.unanswered)
            | TLS * (self.tls is not None)
            | SIGNS * bool(self.retransmitted or self.icmp or self.stopped != (None, None) or self.signs != NO_SIGNS)
            | LACKING * self.lacking
            | LOST_OR_CUT * self.lost_or_cut
            | PROXY * (self.proxy is not None)
            | WEBSOCKET * (self.websocket is not None)
        )

    def who(self, side: int | None) -> str:
        """Return the name of a side, or of the device that reset the connection in its place."""
        if side is None:
            return "one side"
        return "a device between the two" if side == self.by and self.injected else self.name(side)

    def name(self, side: int) -> str:
        """Return the name of a side, even if another device sent packets with its address."""
        if self.client is None:
            return self.endpoints[side]
        return "the client" if side == self.client else "the server"


class ConversationContext(msgspec.Struct, gc=False):
    """The state of one conversation, of bounded size."""

    conversation: int
    protocol: str
    family: Family
    state: Any
    share: Share
    """Applies a step to what a server keeps across connections (`Family.shared`)."""
    ready: bool
    client: str | None = None
    server: str | None = None
    messages: list[int] = msgspec.field(default_factory=[0, 0].copy)
    """Of the client, of the server."""
    content: list[int] = msgspec.field(default_factory=[0, 0].copy)
    """What stands for the first of these."""
    from_start: bool = False
    """The beginning was captured."""
    opening_seen: bool = False
    """And the first message was one that a connection begins with."""
    step: int = -1
    """The furthest step, as an index into the family's."""
    asked: dict[int, Message] = {}
    """Requests that are open, by number; and the number of each by who asked, name and id."""
    ids: dict[tuple[str | None, str, int | str], int] = {}
    last: list[Message | None] = msgspec.field(default_factory=_NEITHER.copy)
    """The last message of the client, and of the server (heartbeats and the like included)."""
    answers: list[str | None] = msgspec.field(default_factory=_NEITHER.copy)
    """What the request is called that each of them answers, where it is a response."""
    last_ns: int | None = None
    answered_ns: int | None = None
    """When the server last sent anything but heartbeats and Close."""
    active: bool = False
    """The client publishes or consumes."""
    end_reported: bool = False
    """Its end was reported, though one side goes on."""
    refusals: dict[str, int] = {}
    """By request and code how many were refused."""
    unreported_refusals: int = 0
    """Refusals that no finding names, as an equal one was reported."""
    close_message: Message | None = None
    """The Close that was sent."""
    close_seen: bool = False
    """A Close was sent, or answered though not captured."""
    close_answered: str | None = None
    """The Close that was answered, and who sent it: no response to another one is due."""
    unanswered: list[Exchange] = []
    orphans: dict[tuple[str, int | str], Message] | None = {}
    """By requester and id the responses whose request has not come yet; None where bytes are missing and this is unknown."""
    lossy: bool = False
    """Messages are missing: bytes were lost, or skipped, and not only cut off by the snap length."""
    lost_answers: list[bool] = msgspec.field(default_factory=[False, False].copy)
    """Whether requests of the client, of the server, may be answered in bytes that are missing."""
    newer: str | None = None
    """Which side states a version of the protocol that is newer than the known ones, and the version: bytes that do not fit show no fault
    of either side."""
    pending: list[tuple[Message, Message | None, Refusal]] = []
    """Refusals whose severity depends on the next message."""
    found: dict[tuple[str, Hashable], list[Any]] = {}
    """By rule and key how often it came, and the finding."""
    held: dict[tuple[str, Hashable], FindingDraft] = {}
    """By rule and key those of them that are reported with their count, when the conversation ends."""
    aborted: Message | None = None
    """A message of which only a part was sent, as the connection ended."""
    tail: Gap | None = None
    """A few bytes that are no frame, unless they are the last ones, and begin one."""
    reported: set[int] = set()
    """Messages that findings of an error or warning are about: no other rule need speak of them."""
    worst: Finding | None = None
    counted: set[Hashable] = set()
    """What it was counted for in `Overview`."""

    @property
    def aborted_number(self) -> int | None:
        """The number of `aborted`."""
        return None if self.aborted is None else self.aborted.number

    @property
    def failed(self) -> bool:
        """Whether there is an error: what comes after it is hardly another one."""
        return self.worst is not None and self.worst.severity == ERROR

    def request_of(self, message: Message) -> Message | None:
        """The request that a response answers, where it is remembered."""
        return None if message.request is None else self.asked.get(message.request)

    def remembered(self) -> dict[int, Message]:
        """By number the messages that are remembered with their fields."""
        found = {**self.asked}
        for one in self.last:
            if one is not None:
                found[one.number] = one
        return found

    def sent_with(self, packet: int, src: str) -> Message | None:
        """Of the messages that are remembered the first one that this packet of an endpoint brought bytes of."""
        found = [one for one in self.remembered().values() if one.src == src and (one.packets[0] or 0) <= packet <= one.packets[1]]
        return min(found, key=lambda one: one.number, default=None)

    def owed(self) -> list[Message]:
        """Return the requests without a response that are remembered."""
        return [self.asked[one.request] for one in self.unanswered if one.request in self.asked]

    def count_refusal(self, name: str, why: str, reported: bool) -> None:
        """Count a refusal, and whether a finding names it."""
        what = f"{name} ({why})"
        if what in self.refusals or len(self.refusals) < FOUND_KEPT:
            self.refusals[what] = self.refusals.get(what, 0) + 1
            self.unreported_refusals += not reported

    def observe(self, message: Message) -> None:
        """Update what every protocol has; before the rules."""
        side = 1 if message.sender == "server" else 0
        first = not any(self.messages)
        if self.client is None and message.sender is not None:
            self.client, self.server = (message.dst, message.src) if side else (message.src, message.dst)
        self.messages[side] += 1
        if self.from_start and self.messages[side] <= MESSAGES_COMPARED:
            self.content[side] = content_of(self.content[side], message)
        at = self.family.steps_by_message.get((message.name, message.kind))
        if at is not None and message.outcome != "refused":
            step = self.family.steps[at]
            if step.unless is None or not step.unless(message):
                if first:
                    self.opening_seen = self.from_start and message.position == 0
                if at > self.step and (self.opening_seen or self.step >= 0):
                    self.step = at
                self.ready = self.ready or step.ready
        if first and not self.family.steps:
            self.opening_seen = self.from_start and message.position == 0
        elif (first and not self.opening_seen) or (
            self.orphans is None and message.fault is None and message.name not in self.family.opening
        ):
            # The connection was open before, as far as the capture shows, or the rest of the handshake is among bytes that were lost
            self.ready = True
        if message.name in self.family.closing:
            self.close_seen = True
            if message.kind != "response":
                self.close_message = self.close_message or message
            else:
                self.close_answered = f"{message.name} by {'client' if message.sender == 'server' else 'server'}"
        if message.kind == "request":
            if self.orphans and message.id is not None:
                # Captured in another order than sent
                self.orphans.pop((message.src, message.id), None)
        elif (
            message.kind == "response"
            and message.outcome != "refused"
            and message.request is None
            and message.id is not None
            and message.name not in self.family.elsewhere
            and self.opening_seen
            and self.orphans is not None
            and len(self.orphans) < ORPHANS_KEPT
        ):
            self.orphans[message.dst, message.id] = message

    def remember(self, message: Message) -> None:
        """Remember a message; after the rules."""
        side = 1 if message.sender == "server" else 0
        request = self.request_of(message)
        self.answers[side] = None if request is None else request.name
        if message.request is not None:
            self._answered(message.request)
        elif message.kind == "request" and message.size <= ASKED_SIZE:
            self.asked[message.number] = message
            if message.id is not None:
                self.ids[message.sender, message.name, message.id] = message.number
            if len(self.asked) > ASKED_KEPT:
                self._answered(next(iter(self.asked)))
        if side and message.name != "Heartbeat" and message.name not in self.family.closing:
            self.answered_ns = message.time_ns
        self.last[side] = message
        self.last_ns = message.time_ns if self.last_ns is None else max(self.last_ns, message.time_ns)

    def _answered(self, number: int) -> None:
        asked = self.asked.pop(number, None)
        if asked is not None and asked.id is not None:
            key = (asked.sender, asked.name, asked.id)
            if self.ids.get(key) == number:
                del self.ids[key]

    def reached(self) -> str:
        """Return how far the handshake got, in words."""
        steps = self.family.steps
        if self.ready and (not steps or self.step < 0):
            return "open" if steps else "ready"
        return "ready" if self.ready else steps[self.step].label if self.step >= 0 else "no handshake"

    def missing(self) -> str | None:
        """Return the handshake step that is missing, or None."""
        steps = self.family.steps
        return None if self.ready or self.step + 1 >= len(steps) else steps[self.step + 1].label


def numbers(*messages: Message | None) -> tuple[int, ...]:
    """The numbers of messages as evidence."""
    return tuple(dict.fromkeys(one.number for one in messages if one is not None))


def packets(*messages: Message | None) -> tuple[int, ...]:
    """The packets of messages as evidence."""
    found: list[int] = []
    for one in messages:
        if one is not None:
            first, last = one.packets
            found += (last if first is None else first, last)
    return tuple(dict.fromkeys(found))


def last_before(context: ConversationContext, closed: Closed) -> Message | None:
    """Return the last message before one side ended the connection; the other side may have gone on."""
    known = [one for one in (*context.last, *context.asked.values()) if one is not None]
    return max(
        (one for one in known if closed.ended_ns is None or one.time_ns <= closed.ended_ns),
        key=lambda one: (one.time_ns, one.number),
        default=None,
    )


def since(context: ConversationContext, closed: Closed) -> tuple[str, Message | None]:
    """How long after which message the connection was ended, as " 3.1 ms after Open from the client", and that message."""
    last = last_before(context, closed)
    if last is None or closed.ended_ns is None:
        return "", last
    passed = closed.ended_ns - last.time_ns
    when = f" {duration_text(passed)}" if passed else "" if closed.untimed else " right"
    return f"{when} after {said(context, last)}", last


def quoted(text: object, most: int = 80) -> str:
    """Return captured text for use within a sentence; None is text that was not captured, or is null."""
    if text is None:
        return "(unknown)"
    shown = str(text)
    return f'"{shown[:most]}{"..." if len(shown) > most else ""}"'


def said(context: ConversationContext, message: Message) -> str:
    """A message within a sentence; a response by what it answers, which may be called otherwise."""
    side = 1 if message.sender == "server" else 0
    asked = context.answers[side] if context.last[side] is message else None
    if asked is not None:
        return f"the answer to {asked}"
    if message.kind == "response" and message.id is not None and not context.family.renames_responses:
        return f"the answer to {message.name}"
    return f"{message.name} from the {message.sender or 'other side'}"


def host_of(endpoint: str | None) -> str:
    """Return the host of an endpoint, "" if that is unknown."""
    return (endpoint or "").rpartition(":")[0]


def is_address(text: str) -> bool:
    """Whether a host is not a name."""
    return all(one in "0123456789.:abcdefABCDEF" for one in text) and any(one in ".:" for one in text)


def is_here(server: str, host: object, port: object) -> bool:
    """Return whether the endpoint that a server advertises is the one that the client is connected to."""
    here, _, number = server.rpartition(":")
    here = here.strip("[]")
    return str(port) == number and (str(host) == here or (str(host) == "localhost" and (here.startswith("127.") or here == "::1")))


def asked_ns(exchange: Exchange) -> int:
    """When a request was sent that has no answer."""
    return exchange.time_ns - (exchange.waited_ns or 0)


def later_text(ns: int) -> str:
    """How much later something was, at the end of a sentence; nothing if it was at the same time."""
    return f", {duration_text(ns)} later" if ns > 0 else ""


_NUMBER = re.compile("0x[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+", re.IGNORECASE)
_MEASURED = re.compile(r"[0-9][0-9.,]*(?= (?:ns|µs|ms|s|min|h)\b)")


_NO_TIME = re.compile(r"(?<![0-9.,])0 s\b")


def without_numbers(text: str) -> str:
    """Return free text without its numbers, of which UUIDs are some."""
    return _NUMBER.sub("#", text)


def without_times(cause: str) -> str:
    """Return a cause without the times in it, which differ from one conversation to the next."""
    return _MEASURED.sub("#", cause)


def untimed(cause: str) -> str:
    """Return a cause for a conversation whose packets have no times, so that nothing in it seems to last."""
    return _NO_TIME.sub("an unknown time", cause)


def label_of(message: Message, field: str) -> str:
    """The label of a field, or its value."""
    label, value = message.fields.get(f"{field}_label"), message.fields.get(field)
    return str(label) if label is not None else f"{field.replace('_', ' ')} {'unknown' if value is None else value}"


def noted(pattern: str, cause: str, key: str | None = None) -> Callable[[ConversationContext, Message], FindingDraft | None]:
    """Return a check for messages with a note that matches; `cause` and `key` may contain {note}, {name} and {who} (the sender)."""
    matches = re.compile(pattern).search

    def check(context: ConversationContext, message: Message) -> FindingDraft | None:
        note = next(filter(matches, message.notes), None)
        words = {"note": note, "name": message.name, "who": message.sender or "sender"}
        return None if note is None else FindingDraft(cause.format(**words), key=key and key.format(**words))

    return check
