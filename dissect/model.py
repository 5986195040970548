"""The central types: plain data, no behaviour.

Records (`Message`, `Gap`, `Exchange`, `Ending`, `Finding`) are msgspec structs whose members stand in the order of the JSON
contract: the C encoder writes them without an intermediate dict, and making one costs a third of a
dataclass with slots. No record is part of a cycle, so the garbage collector need not know them. Members with
a default are not part of the contract and are left out of the JSON unless they are set. Nothing changes a
record once it has been handed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.options import VALUES as VALUES
from dissect.options import Options as Options

Sender = Literal["client", "server"]
Kind = Literal["request", "response", "one_way"]
Severity = Literal["error", "warning", "note"]

CLIENT, SERVER = 0, 1
"""The two sides of a conversation. Side 0 sent the SYN, or without one the first packet seen; a verdict
can tell that side 1 is the client after all."""


class Fault(msgspec.Struct, gc=False):
    """Why bytes could not be read as their layout: `field` path, `offset` in `buffer`, and the reason."""

    field: str
    offset: int
    reason: str
    buffer: str = "frame"


class Limited(Fault, gc=False):
    """A fault that is none of the bytes: a limit of ours ended the reading. Counted among the limits reached."""


class Span(NamedTuple):
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


make_span = tuple.__new__
"""`make_span(Span, (name, ...))`: past the named tuple's own constructor, which costs more than the rest of the work on a field."""


class Message(msgspec.Struct, tag_field="record", tag="message", omit_defaults=True, gc=False):
    """A decoded frame. See DESIGN of the JSON contract in the README for what each key says."""

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
    """A request with the message that answered it last, or without one for a `reason`; `exchange` is the record of it, if there is one."""

    request: Message
    response: Message | None
    outcome: Literal["answered", "refused", "superseded", "unanswered"]
    reason: str | None
    latency_ns: int | None
    exchange: Exchange | None


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


class Batch(msgspec.Struct):
    """Columns of one length over one buffer, which is the first member."""

    def rows(self, low: int, high: int) -> Self:
        """The rows [low, high), over the same buffer."""
        return self if low == 0 and high >= len(self) else self.chosen(slice(low, high))

    def chosen(self, rows: slice | NDArray[Any]) -> Self:
        """These rows, over the same buffer."""
        names = self.__struct_fields__
        return type(self)(getattr(self, names[0]), *[getattr(self, name)[rows] for name in names[1:]])

    def parts(self, most: int | None) -> Iterator[Self]:
        """The rows in batches of so many at most."""
        step = most or len(self) or 1
        for start in range(0, len(self), step):
            yield self.rows(start, start + step)

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[1]))


class PacketBatch(Batch):
    """Some packets as numpy columns over ONE buffer, in file order.

    `time_ns` int64 since 1970 UTC, `number` int64 from 1 per file, `file` int32 index of the input, `offset` int64 of the
    packet's first captured byte in `buffer`, `captured` and `wire` int64 lengths in bytes, `link` int32 the
    DLT / LINKTYPE number.
    """

    buffer: bytes
    time_ns: NDArray[np.int64]
    number: NDArray[np.int64]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    captured: NDArray[np.int64]
    wire: NDArray[np.int64]
    link: NDArray[np.int32]


class SegmentBatch(Batch):
    """The TCP segments of some packets as columns; `buffer` is the packets' (reassembled datagrams appended).

    `order` is the index of the packet in this run over all inputs (0, 1, 2...). `flow` is a uint8 matrix (n, 40), the
    conversation's complete key: bytes 0-15 the lower endpoint's address (IPv4 in the first four, the rest zero), 16-17 its port
    (big-endian), 18-33 and 34-35 the higher endpoint's, 36 the IP version, 37-39 zero; "lower" compares (address, port) as bytes.
    `reverse`: the sender is the higher endpoint. `seq` and `ack` are uint32 held in int64; `flags` FIN 1, SYN 2, RST 4, PSH 8, ACK 16.
    `offset` and `length` are the captured payload in `buffer`, `wire` the payload as sent (greater than `length` where the snap
    length cut it).
    """

    buffer: bytes
    order: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    number: NDArray[np.int64]
    file: NDArray[np.int32]
    flow: NDArray[np.uint8]
    reverse: NDArray[np.bool_]
    seq: NDArray[np.int64]
    ack: NDArray[np.int64]
    flags: NDArray[np.uint8]
    window: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    wire: NDArray[np.int64]


class Chunk(msgspec.Struct, gc=False):
    """Bytes of one side in order, without a gap, as handed on by the reassembler.

    The lists run parallel, one entry a segment (or the part of one that was new): `starts` offset in `data` where it starts
    (starts[0] == 0), `orders` the packet that first brought it, `numbers` its number in its file, `files`, `times` in ns.
    `releases` is the packet that made it certain that these are the next bytes; it never falls along the byte stream and
    is never below `orders`. In the ordinary case `releases is orders`.
    """

    side: int
    position: int
    data: bytes
    starts: list[int]
    orders: list[int]
    releases: list[int]
    numbers: list[int]
    files: list[int]
    times: list[int]
    notes: tuple[tuple[int, str], ...] = ()
    """(position in the byte stream, text): what the reassembler has to say of these bytes."""


class StreamGap(msgspec.Struct, gc=False):
    """A gap as the reassembler hands it on: bytes of one side that the capture lacks, by `reason` "lost" (never captured) or "cut" (snap
    length), or that are there and tell nothing ("skipped": TLS that does not authenticate). `size` is None where nobody knows how many
    there were; positions then go on as if none.

    `release` is the order of the packet that made it certain; `order`, `number`, `file` and `time_ns` are those of the packet
    that brought the first byte after it, or else of the conversation's last packet; of a "cut" one, of the packet that was cut.
    """

    side: int
    position: int
    size: int | None
    reason: Literal["lost", "cut", "skipped"]
    release: int
    order: int
    number: int
    file: int
    time_ns: int
