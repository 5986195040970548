"""The central types: plain data, no behaviour.

Records (`Message`, `Gap`, `Exchange`, `Ending`, `Finding`) are msgspec structs whose members stand in the order of the JSON
contract: the C encoder writes them without an intermediate dict, and making one costs a third of a
dataclass with slots. No record is part of a cycle, so the garbage collector does not track them. Members with
a default are not part of the contract and are left out of the JSON unless they are set. Records do not change
after they are released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from .options import VALUES as VALUES
from .options import Options as Options

__all__ = [
    "ConversationRow",
    "Ending",
    "Entry",
    "Exchange",
    "Fault",
    "Finding",
    "Gap",
    "Kind",
    "Message",
    "Options",
    "Process",
    "Record",
    "Sender",
    "Severity",
    "Span",
    "StreamGap",
    "Verdict",
]

Sender = Literal["client", "server"]
Kind = Literal["request", "response", "one_way"]
Severity = Literal["error", "warning", "note"]
EndingKind = Literal["FIN", "RST", "refused", "no answer", "forgotten"]

BodyType = Literal["bytes", "amqp", "bson"]
EntryOutcome = Literal["confirmed", "refused", "deduplicated", "superseded", "unanswered", "pending", "delivered", "redelivered"]

Mark = tuple[int, int, int, int]
"""A packet: (order, number, file, time_ns)."""

Close = tuple[str, int, int]
"""A protocol's own message that announces the end: its name, the side that sent it, and the order of its packet."""

END = 1 << 62
"""The order of the end of the capture, and the number of the end of a file: after every packet."""


class Fault(msgspec.Struct, gc=False):
    """Why bytes could not be read as their layout: `field` path, `offset` in `buffer`, and the reason."""

    field: str
    offset: int
    reason: str
    buffer: str = "frame"


class Limited(Fault, gc=False):
    """A fault that is not due to the bytes: a limit of streamdump was reached. Counted in `limit_hits`."""


class Unreadable(Fault, gc=False):
    """A fault that blames neither side: one of them states a version of the protocol that is newer than the known ones."""


class Span(msgspec.Struct, gc=False):
    """One field and the byte range it came from.

    Leaf spans (those with `length` and no children) tile their buffer without gap or overlap. A span of a group
    or array has `value` None and `leaf` False and encloses the spans that follow it with a greater `depth`.
    """

    name: str
    offset: int
    length: int
    value: Any
    depth: int = 0
    leaf: bool = True
    label: str | None = None
    secret: bool = False
    buffer: str = "frame"


class Process(msgspec.Struct, omit_defaults=True, gc=False):
    """The process behind an endpoint of a conversation, as the capture or this host describes it; unknown fields are left out.

    `endpoint` None: the capture does not show which side it belongs to. `host`: the name of its address, with `Options.host_names`.
    `others`: packets of this endpoint name other processes, too; `other_pids`: the first PIDs of these.
    """

    endpoint: str | None
    process: str | None = None
    pid: int | None = None
    container: str | None = None
    pod: str | None = None
    namespace: str | None = None
    host: str | None = None
    others: bool = False
    other_pids: tuple[int, ...] = ()


PROCESS_KEYS = ("process", "pid", "container", "pod", "namespace", "host")
"""What may be known of a process: also names in filters, columns and groups."""

Processes = tuple[Process, ...]
"""The processes behind the endpoints of a conversation, in the order of these; one without an endpoint comes last."""


class Message(msgspec.Struct, tag_field="record", tag="message", omit_defaults=True, gc=False):
    """A decoded frame; `streamdump schema` describes each key."""

    v: int
    number: int
    time: str
    time_ns: int
    conversation: int
    src: str
    dst: str
    sender: Sender | None
    protocol: str
    name: str
    kind: Kind
    id: int | str | None
    stream: str | None
    file: int
    packets: tuple[int | None, int]
    position: int
    size: int
    fields: dict[str, Any]
    request: int | None
    outcome: str | None
    latency_ns: int | None
    notes: Sequence[str]
    fault: Fault | None
    # Only where it is known, also in the other records
    processes: Processes | None = None
    # Not in the contract: set only with Options.detail
    raw: dict[str, bytes] | None = None
    spans: list[Span] | None = None


class Gap(msgspec.Struct, tag_field="record", tag="gap", omit_defaults=True, gc=False):
    """Bytes of a byte stream that belong to no message, or (`in_frame`) are missing inside one. `size` is None if unknown."""

    v: int
    number: int
    time: str
    time_ns: int
    conversation: int
    src: str
    dst: str
    sender: Sender | None
    protocol: str
    position: int
    size: int | None
    reason: Literal["lost", "cut", "skipped"]
    in_frame: bool
    processes: Processes | None = None


class Exchange(msgspec.Struct, tag_field="record", tag="exchange", omit_defaults=True, gc=False):
    """A request with its response, or with the reason why there is none. `src` sent the request; `time_ns` is that of the packet that made
    the outcome certain, and `waited_ns` the time from the last byte of the request until then."""

    v: int
    number: int
    time: str
    time_ns: int
    conversation: int
    src: str
    dst: str
    protocol: str
    name: str
    id: int | str | None
    stream: str | None
    request: int
    response: int | None
    outcome: Literal["answered", "refused", "superseded", "unanswered"]
    reason: str | None
    latency_ns: int | None
    waited_ns: int | None
    processes: Processes | None = None


class Ending(msgspec.Struct, tag_field="record", tag="ending", omit_defaults=True, gc=False):
    """How a conversation ended, or a connection that never carried a byte (`protocol` None). `src` ended it.

    `time_ns`, `src` and `how` are those of the first FIN or RST in capture order; `quiet_ns` is the time since the last message of either
    side, None if there was none; `open` and `refused` count requests without a response and refused ones when both sides, or the capture,
    had ended.
    """

    v: int
    number: int
    time: str
    time_ns: int
    conversation: int
    src: str
    dst: str
    sender: Sender | None
    protocol: str | None
    how: EndingKind
    quiet_ns: int | None
    open: int
    refused: int
    processes: Processes | None = None


class Finding(msgspec.Struct, tag_field="record", tag="finding", omit_defaults=True, gc=False):
    """Something that went wrong, with its `cause` and advice. `src`, `dst` and `sender` are those of the message that shows it, otherwise
    client and server; `conversation` None: the evidence is from several conversations. `number` counts findings."""

    v: int
    number: int
    time: str
    time_ns: int
    conversation: int | None
    src: str
    dst: str
    sender: Sender | None
    protocol: str | None
    rule: str
    severity: Severity
    cause: str
    advice: str
    messages: list[int]
    packets: list[int]
    processes: Processes | None = None


class Entry(msgspec.Struct, tag_field="record", tag="entry", omit_defaults=True, gc=False):
    """A user message: what an application published, or was delivered. `message` is the number of the message that carries it, whose times,
    ends and processes it has.

    `number` counts entries. `stream` is that of the message, without the partition. `size` counts the bytes of the user message as
    carried, with its sections or headers. `body` is what `body_type` says: bytes in the form of `Options.bytes_as`, or a value of AMQP 1.0
    or BSON. `outcome` is what became of it, None if that cannot be known; `response` and `latency_ns` belong to the response that says so.
    """

    v: int
    number: int
    time: str
    time_ns: int
    conversation: int
    src: str
    dst: str
    sender: Sender | None
    protocol: str
    name: str
    message: int
    stream: str | None
    partition: int | None
    offset: int | None
    publishing_id: int | None
    id: Any
    key: Any
    properties: Sequence[dict[str, Any]]
    compression: str | None
    size: int | None
    body_type: BodyType
    body: Any
    consumer: str | None
    outcome: EntryOutcome | None
    reason: str | None
    response: int | None
    latency_ns: int | None
    notes: Sequence[str]
    processes: Processes | None = None


Record = Message | Gap | Exchange | Ending | Finding


class Head(NamedTuple):
    """The part of a message known before its fields are decoded; without `name` and `kind`, that of all messages of a conversation."""

    protocol: str
    conversation: int
    src: str
    dst: str
    name: str | None = None
    kind: Kind | None = None


class Pair(msgspec.Struct, gc=False):
    """A request with its last response, or with the `reason` why there is none; `exchange` is its record, if there is one.
    `acknowledged_ns`: the time until its last byte was acknowledged, at most the latency; None if unknown."""

    request: Message
    response: Message | None
    outcome: Literal["answered", "refused", "superseded", "unanswered"]
    reason: str | None
    latency_ns: int | None
    exchange: Exchange | None
    acknowledged_ns: int | None = None


class ConversationRow(msgspec.Struct, tag_field="record", tag="conversation", omit_defaults=True):
    """One complete conversation. Pairs are [from side 0, from side 1] in the order of `endpoints`.

    `protocol` is a supported one or null, `name` then names another one if recognised. `bytes` is the length of each byte stream, captured
    or only acknowledged. `layout` and `candidates` are specific to the protocol; `facts` are additions of its dissector (ids, parents).
    """

    v: int
    number: int
    time: str
    time_ns: int
    duration_ns: int
    conversation: int
    endpoints: tuple[str, str]
    client: str | None
    server: str | None
    protocol: str | None
    name: str | None
    confidence: float
    evidence: tuple[str, ...]
    layout: str | None
    candidates: tuple[str, ...]
    packets: tuple[int, int]
    bytes: tuple[int, int]
    messages: int
    faults: int
    gaps: int
    gap_bytes: int
    refused: int
    unanswered: int
    retransmissions: int
    out_of_order: int
    conflicts: int
    ended: str
    limit_hits: int
    internal_error: str | None
    facts: dict[str, Any]
    processes: Processes | None = None

    @property
    def damaged(self) -> int:
        """The messages with a fault that a newer version of the protocol does not explain."""
        return self.faults - int(self.facts.get("not_readable", 0))


class Verdict(msgspec.Struct, gc=False):
    """The protocol of a conversation. `protocol` None: not a supported one; `name` then names it if recognised.

    `confidence` 0.0 to 1.0; `evidence` is printable. `client` is the side (0 or 1) of the client according to the bytes, None if
    unknown. `layout` is specific to the protocol (Iggy "L9", Seastar "stream"), `candidates` are layouts that fit equally well.
    """

    protocol: str | None
    confidence: float
    evidence: tuple[str, ...]
    name: str | None = None
    client: int | None = None
    layout: str | None = None
    candidates: tuple[str, ...] = ()


class Packet(msgspec.Struct, gc=False):
    """One captured packet: its bytes are `buffer[offset : offset + captured]`. Packets of a batch share a buffer."""

    buffer: bytes
    time_ns: int
    """Since 1970 UTC."""
    number: int
    """From 1 per file."""
    file: int
    """The index of the input."""
    offset: int
    captured: int
    wire: int
    """The length as sent."""
    link: int
    """The DLT / LINKTYPE number."""
    untimed: bool = False
    """The capture contains no time for it: `time_ns` is that of the packet before it, or 0."""


CLAIMS = 256
"""A flag of a segment: its IP length exceeds its frame on the wire, so that `wire` is only a claim."""

UNTIMED = 512
"""A flag of a segment: its packet has no time (`Packet.untimed`)."""


class Segment(msgspec.Struct, gc=False):
    """One TCP segment.

    `ends` is the directed key: the sender's address, the receiver's (4 bytes each, or 16), the sender's port, the receiver's (2 bytes
    each). With `--separate`, three more bytes are the number of the network, in all files but the first.
    """

    ends: bytes
    mark: Mark
    """Its packet; `order` is the index in this run over all inputs."""
    seq: int
    ack: int
    flags: int
    """FIN 1, SYN 2, RST 4, PSH 8, ACK 16; `CLAIMS` and `UNTIMED`."""
    window: int
    data: bytes
    """The payload as captured."""
    wire: int
    """The length of the payload as sent, greater than that of `data` if the snap length cut it."""
    ttl: int = 0
    """The TTL of IPv4, or the hop limit of IPv6."""
    buffer: bytes = b""
    """The bytes it was read from, to verify the checksum; empty if that was done: see `damaged`."""
    addresses: int = 0
    """The offset in `buffer` of the addresses, which the TCP header follows."""
    damaged: bool = False

    @property
    def order(self) -> int:
        return self.mark[0]

    @property
    def number(self) -> int:
        return self.mark[1]

    @property
    def file(self) -> int:
        return self.mark[2]

    @property
    def time_ns(self) -> int:
        return self.mark[3]


class SideData(msgspec.Struct, gc=False):
    """Bytes of one side in order, as released by the reassembler: the new bytes of one segment.

    `position` counts from the start of the byte stream; `mark` is the packet that first brought them.
    """

    side: int
    position: int
    data: bytes
    mark: Mark
    notes: tuple[tuple[int, str], ...] = ()
    """Notes of the reassembler: (position in the byte stream, text)."""

    @property
    def order(self) -> int:
        return self.mark[0]


class StreamGap(msgspec.Struct, gc=False):
    """A gap, as released by the reassembler: bytes of one side that the capture lacks, by `reason` "lost" (never captured) or "cut" (snap
    length), or that cannot be used ("skipped": TLS that does not authenticate). `size` is None if unknown; positions then continue
    as if it were 0.

    `order`, `number`, `file` and `time_ns` are those of the packet with the first byte after it, otherwise of the conversation's
    last packet; for "cut", of the packet that was cut.
    """

    side: int
    position: int
    size: int | None
    reason: Literal["lost", "cut", "skipped"]
    order: int
    number: int
    file: int
    time_ns: int

    @property
    def mark(self) -> Mark:
        return self.order, self.number, self.file, self.time_ns
