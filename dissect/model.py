"""The central types: plain data, no behaviour.

Records (`Message`, `Gap`, `Exchange`, `Ending`, `Finding`) are msgspec structs whose members stand in the order of the JSON
contract: the C encoder writes them without an intermediate dict, and making one costs a third of a
dataclass with slots. No record is part of a cycle, so the garbage collector need not know them. Members with
a default are not part of the contract and are left out of the JSON unless they are set. Nothing changes a
record once it has been handed on.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from .options import VALUES as VALUES
from .options import Options as Options

__all__ = [
    "ConversationRow",
    "Ending",
    "Exchange",
    "Fault",
    "Finding",
    "Gap",
    "Kind",
    "Message",
    "Options",
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
    """A fault that is none of the bytes: a limit of ours ended the reading. Counted among the limits reached."""


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


class Message(msgspec.Struct, tag_field="record", tag="message", omit_defaults=True, gc=False):
    """A decoded frame; `streamdump schema` says of each key what it means."""

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
    notes: tuple[str, ...] | list[str]
    fault: Fault | None
    # Not in the contract: set only where a view asks for details (Options.detail).
    raw: dict[str, bytes] | None = None
    spans: list[Span] | None = None


class Gap(msgspec.Struct, tag_field="record", tag="gap", omit_defaults=True, gc=False):
    """Bytes of a byte stream that belong to no message, or (`in_frame`) are missing inside one. `size` is None where nobody knows it."""

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


class Exchange(msgspec.Struct, tag_field="record", tag="exchange", omit_defaults=True, gc=False):
    """A request with its response, or with the reason why there is none. `src` sent the request; the time is that of the packet that made
    it certain, and `waited_ns` reaches from the last byte of the request to it."""

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


class Ending(msgspec.Struct, tag_field="record", tag="ending", omit_defaults=True, gc=False):
    """How a conversation ended, or a connection that never carried a byte (`protocol` None). `src` ended it.

    The time, `src` and `how` are those of the first FIN or RST in capture order; `quiet_ns` is how long no message of either side had
    come then, None if there was none; `open` requests without a response and `refused` ones are counted when both sides had ended, or
    the capture.
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
    how: Literal["FIN", "RST", "refused", "no answer", "forgotten"]
    quiet_ns: int | None
    open: int
    refused: int


class Finding(msgspec.Struct, tag_field="record", tag="finding", omit_defaults=True, gc=False):
    """Something that went wrong, with its `cause` and what to do about it. `src`, `dst` and `sender` are those of the message that shows
    it, else client and server; `conversation` None: several conversations tell it together. `number` counts findings."""

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


Record = Message | Gap | Exchange | Ending | Finding


class Head(NamedTuple):
    """What is known of a message before its fields are decoded; of all messages of a conversation without name and kind."""

    protocol: str
    conversation: int
    src: str
    dst: str
    name: str | None = None
    kind: Kind | None = None


class Pair(msgspec.Struct, gc=False):
    """A request with the message that answered it last, or without one for a `reason`; `exchange` is the record of it, if there is one.
    `acknowledged_ns`: how long after its last byte that was acknowledged, at most the latency; None where nobody knows."""

    request: Message
    response: Message | None
    outcome: Literal["answered", "refused", "superseded", "unanswered"]
    reason: str | None
    latency_ns: int | None
    exchange: Exchange | None
    acknowledged_ns: int | None = None


class ConversationRow(msgspec.Struct, tag_field="record", tag="conversation"):
    """One conversation as a whole. Pairs are [from side 0, from side 1] in the order of `endpoints`.

    `protocol` is one of ours or null, `name` then says what else it is where that is known. `bytes` is the length of each byte stream,
    seen or only acknowledged. `layout` and `candidates` are the protocol's own; `facts` holds what its state adds (ids, parents).
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


class Verdict(msgspec.Struct, gc=False):
    """What a conversation speaks. `protocol` None: none of ours; `name` then says what it is where that is known.

    `confidence` 0.0 to 1.0; `evidence` is printable. `client` is the side (0 or 1) that is the client as far
    as the bytes tell, None where they do not. `layout` is the protocol's own (Iggy "L9", Seastar "stream"), `candidates`
    those that could not be told apart.
    """

    protocol: str | None
    confidence: float
    evidence: tuple[str, ...]
    name: str | None = None
    client: int | None = None
    layout: str | None = None
    candidates: tuple[str, ...] = ()


class Packet(msgspec.Struct, gc=False):
    """One captured packet: its bytes are `buffer[offset : offset + captured]`. Those that came together share a buffer."""

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
    """The capture has no time for it: `time_ns` is that of the packet before it, or 0."""


CLAIMS = 256
"""Among the flags of a segment: its length claims more bytes than its frame had on the wire, so that `wire` is only a claim."""

UNTIMED = 512
"""Among the flags of a segment: its packet has no time (`Packet.untimed`)."""


class Segment(msgspec.Struct, gc=False):
    """One TCP segment.

    `ends` is the directed key: the sender's address, the receiver's (4 bytes each, or 16), the sender's port, the receiver's (2 bytes
    each). Where files are kept apart, three bytes more are the number of the network, in all files but the first.
    """

    ends: bytes
    order: int
    """The index of the packet in this run over all inputs."""
    time_ns: int
    number: int
    file: int
    seq: int
    ack: int
    flags: int
    """FIN 1, SYN 2, RST 4, PSH 8, ACK 16; `CLAIMS` and `UNTIMED`."""
    window: int
    data: bytes
    """The payload as captured."""
    wire: int
    """The length of the payload as sent, greater than that of `data` where the snap length cut it."""
    ttl: int = 0
    """The TTL of IPv4, or the hop limit of IPv6."""
    buffer: bytes = b""
    """What it was read from; empty where the checksum cannot be looked at, as then `damaged` says whether it is wrong."""
    addresses: int = 0
    """Where in there the addresses are, which the TCP header follows."""
    damaged: bool = False


class SideData(msgspec.Struct, gc=False):
    """Bytes of one side in order, as the reassembler hands them on: what of one segment was new.

    `position` counts from the start of the byte stream; `order`, `number`, `file` and `time_ns` are those of the packet that first
    brought them. What is handed on is certain with the packet that is being read.
    """

    side: int
    position: int
    data: bytes
    order: int
    number: int
    file: int
    time_ns: int
    notes: tuple[tuple[int, str], ...] = ()
    """(position in the byte stream, text): what the reassembler has to say of these bytes."""


class StreamGap(msgspec.Struct, gc=False):
    """A gap as the reassembler hands it on: bytes of one side that the capture lacks, by `reason` "lost" (never captured) or "cut" (snap
    length), or that are there and tell nothing ("skipped": TLS that does not authenticate). `size` is None where nobody knows how many
    there were; positions then go on as if none.

    `order`, `number`, `file` and `time_ns` are those of the packet that brought the first byte after it, or else of the conversation's
    last packet; of a "cut" one, of the packet that was cut.
    """

    side: int
    position: int
    size: int | None
    reason: Literal["lost", "cut", "skipped"]
    order: int
    number: int
    file: int
    time_ns: int
