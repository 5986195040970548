"""What every dissector shares: cutting byte streams into frames, holes, finding the way back, making records.

A protocol's own `Dissector` says how long a frame is, where frames begin again after a loss, and what a frame means.
Frames are cut per side in bulk and then decoded in the packet order of both sides. Nothing here depends on how the
byte streams came in pieces: only positions, and the segment starts that chunks carry, are looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from time import gmtime, strftime
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.layout import UNREADABLE
from dissect.model import Chunk, ConversationRow, Fault, Gap, Hole, Message, Options, Span, Verdict

NONE, ASK, ANSWER, ASK_MANY, ANSWER_MANY, ANSWER_PART, GAP, ASK_MAYBE = range(8)
"""What a message does for pairing: nothing, asks, answers; with a list of keys; answers and leaves the request open; may be
answered (in trouble only), so is never missed: the newest with its key replaces the older."""

END = 1 << 62
"""The order of the end of the capture: after every packet."""

NEVER = END << 1
"""After everything, the end of the capture too."""

_SENDERS: dict[int | None, tuple[Any, Any]] = {None: (None, None), 0: ("client", "server"), 1: ("server", "client")}
"""By the client's side, what each side is."""

_MISSING = {"lost": "lost", "cut": "cut by the snap length", "both": "lost or cut by the snap length"}
"""How a damaged frame says why bytes of it are missing."""

WAIT = -2
"""`measure`: how long this frame is depends on bytes of the other side that are not there yet."""

SEARCH = -3
"""`measure`: a frame may begin here or later, only `resync` can tell where."""

OVERSIZE_KEPT = 65_536
"""Bytes kept of a frame longer than `Options.frame_limit`."""

SEARCH_WINDOW = 1 << 20
"""Bytes of one side looked at for the next frame before the oldest of them are given up."""


Mark = tuple[int, int, int, int]
"""A packet: (order, number, file, time_ns)."""


class Decoded(NamedTuple):
    """What `decode` returns; a plain tuple in this order will do and costs less."""

    name: str
    kind: Any
    id: int | str | None
    fields: dict[str, Any]
    outcome: str | None
    notes: Any
    fault: Fault | None
    role: int
    key: Any
    spans: list[Span] | None


Handler = Callable[[Any, int, bytes, int, int], "tuple[Any, ...] | None"]
"""Decodes a frame without flaw, given the dissector, side, bytes, start and end; None, or one of `UNREADABLE`, where it takes a closer
look."""

Handlers = Mapping[bytes, Handler]
"""By the bytes of a frame that say what it is."""


class Damage(NamedTuple):
    """Bytes are missing in a frame: its true `size`, and why (`reason`: "1448 bytes lost")."""

    size: int
    reason: str


class Emitted(NamedTuple):
    """A record with what ordering and pairing need; sorts by release, completing packet, client first, position."""

    release: int
    order: int
    rank: int
    position: int
    record: Any
    role: int
    key: Hashable
    first_time: int


class Allowance:
    """How many bytes a conversation may still unpack: some are free, and each packed byte adds its share, so that frames made to
    grow a thousandfold cannot fill the memory one after the other."""

    __slots__ = ("left",)

    FREE = 64 << 20
    FOR_EACH = 100

    def __init__(self) -> None:
        self.left = self.FREE

    def grow(self, packed: int) -> int:
        """What may be unpacked now that `packed` bytes came."""
        self.left = min(self.FREE, self.left + packed * self.FOR_EACH)
        return self.left


class Tally(msgspec.Struct):
    """How many messages and gaps were made, how many of them are gaps, the bytes that these lack, the messages with a fault, and the
    requests that ended without a response."""

    records: int = 0
    gaps: int = 0
    gap_bytes: int = 0
    faults: int = 0
    unanswered: int = 0

    @property
    def messages(self) -> int:
        return self.records - self.gaps


class Context(msgspec.Struct):
    """The conversation a dissector works for. `client` is the side (0 or 1) that is the client, None if unknown.

    `syn`: the beginning of the conversation was captured, so both byte streams start at their true first byte. `total` counts over
    all conversations.
    """

    conversation: int
    endpoints: tuple[str, str]
    ports: tuple[int, int]
    client: int | None
    syn: bool
    verdict: Verdict
    options: Options
    total: Tally = msgspec.field(default_factory=Tally)


class SideView(msgspec.Struct):
    """One side's bytes so far, for detection: contiguous `runs` of (position, bytes).

    `from_start`: position 0 is the true first byte. `segments`: offsets in the first run where segments start.
    """

    runs: list[tuple[int, bytes]]
    from_start: bool
    segments: list[int]


class View(msgspec.Struct):
    """A conversation as detection sees it; `final` when no more bytes will come."""

    sides: tuple[SideView, SideView]
    ports: tuple[int, int]
    syn: bool
    final: bool


class Protocol(msgspec.Struct, frozen=True):
    """One entry of PROTOCOLS: a protocol name with its probe, its dissector and its tables."""

    name: str
    title: str
    ports: tuple[int, ...]
    dissector: type[Dissector]
    probe: Callable[[View], Verdict | None]
    says: Callable[[Message], str]
    layouts: tuple[Any, ...] = ()
    text: str = ""
    """Paragraphs for `streamdump protocols NAME` that no table holds."""
    paired: Callable[[Message, Message], list[str]] | None = None
    """Notes for a response that only its request lets one say (a deadline that had passed)."""
    unanswered: Callable[[Message, int], str | None] | None = None
    """Why a request has no response at a time (ns), where its own fields say so (a deadline that had passed)."""
    relate: Callable[[list[ConversationRow]], None] | None = None
    """Adds to the rows of this protocol what its conversations tell about each other."""
    hint: Callable[[list[ConversationRow], Options], str | None] | None = None
    """What a user could do to see more of this protocol's conversations, for the closing line."""
    forced: tuple[str, ...] = ()
    """Layout names that `-d tcp.port==N,protocol:LAYOUT` takes."""


class _Partial(msgspec.Struct):
    """A frame with a hole in it, or one too long to keep, while its bytes go by.

    `prefix` is what there is of it from its first byte on, of which up to `want` bytes are kept; `first` and `last` are the
    earliest and latest packet that brought bytes of it.
    """

    position: int
    length: int
    prefix: bytes
    want: int
    reason: str
    first: Mark
    last: Mark
    lost: int = 0
    why: str = "lost"


class _Flow:
    """One side's byte stream: bytes not yet cut, and the segments that brought them."""

    __slots__ = (
        "data",
        "files",
        "floor",
        "have",
        "jumbled",
        "missing",
        "need",
        "notes",
        "numbers",
        "orders",
        "partial",
        "pieces",
        "position",
        "queue",
        "queued",
        "releases",
        "scan",
        "searching",
        "skip_from",
        "starts",
        "times",
        "tried",
        "waiting",
    )

    def __init__(self, searching: bool) -> None:
        self.position = 0
        self.data = b""
        self.pieces: list[bytes] = []
        self.have = 0
        self.need = 0
        # bytes taken in from now on are not certain before this packet
        self.floor = 0
        # while the end of the bytes at hand is dealt with: the size of the hole that follows
        self.missing = 0
        # one entry a segment, absolute positions
        self.starts: list[int] = []
        self.orders: list[int] = []
        self.releases: list[int] = []
        self.numbers: list[int] = []
        self.files: list[int] = []
        self.times: list[int] = []
        self.jumbled = NEVER
        """From this packet on segments were certain later than captured, so perhaps not captured in the order of the byte stream."""
        self.searching = searching
        self.scan = 0
        self.tried = 0
        self.skip_from: int | None = None
        self.partial: _Partial | None = None
        self.queue: list[Chunk | Hole] = []
        """What waits behind the bytes at hand, `queued` bytes."""
        self.queued = 0
        self.waiting = False
        self.notes: list[tuple[int, str]] = []

    def add(self, chunk: Chunk) -> None:
        base = chunk.position
        self.starts.extend([base + start for start in chunk.starts] if base else chunk.starts)
        self.orders.extend(chunk.orders)
        if self.jumbled == NEVER and chunk.releases is not chunk.orders:
            late = (release for release, order in zip(chunk.releases, chunk.orders, strict=True) if release != order)
            self.jumbled = next(late, NEVER)
        floor = self.floor
        if floor and chunk.releases and chunk.releases[0] < floor:
            self.releases.extend([max(release, floor) for release in chunk.releases])
        else:
            self.releases.extend(chunk.releases)
        self.numbers.extend(chunk.numbers)
        self.files.extend(chunk.files)
        self.times.extend(chunk.times)
        if chunk.notes:
            self.notes.extend(chunk.notes)

    def forget(self) -> None:
        """Drop the segments that lie wholly before `position`, but always keep the last one."""
        starts = self.starts
        count = 0
        last = len(starts) - 1
        position = self.position
        while count < last and starts[count + 1] <= position:
            count += 1
        if count:
            for column in (starts, self.orders, self.releases, self.numbers, self.files, self.times):
                del column[:count]

    def segment(self, position: int) -> int:
        """The index of the segment that holds `position` (the last one if it lies beyond)."""
        starts = self.starts
        low, high = 0, len(starts)
        while high - low > 1:
            middle = (low + high) // 2
            if starts[middle] <= position:
                low = middle
            else:
                high = middle
        return low

    def mark(self, index: int) -> Mark:
        return (self.orders[index], self.numbers[index], self.files[index], self.times[index])

    def marks(self, start: int, end: int) -> tuple[Mark, Mark]:
        """The earliest and the latest packet that brought bytes of [start, end)."""
        indexes = range(self.segment(start), self.segment(max(start, end - 1)) + 1)
        oldest = min(indexes, key=self.orders.__getitem__)
        newest = max(indexes, key=self.orders.__getitem__)
        return self.mark(oldest), self.mark(newest)

    def join(self) -> bytes:
        """The bytes at hand as one; a frame that came in many pieces is joined once, when it is whole."""
        if self.pieces:
            self.data = b"".join((self.data, *self.pieces))
            self.pieces.clear()
        return self.data

    def consume(self, size: int) -> None:
        """The first `size` bytes at hand are done with."""
        if size:
            self.data = self.data[size:]
            self.have -= size
            self.position += size

    def at_rest(self, order: int) -> bool:
        busy = self.have or self.searching or self.waiting or self.queue or self.notes or self.partial is not None
        return not busy and self.skip_from is None and self.jumbled == NEVER and self.floor <= order

    def drop(self) -> None:
        """Forget the bytes at hand; `position` has been moved by the caller."""
        self.data = b""
        self.have = 0

    def raise_releases(self, release: int) -> None:
        """No byte held so far, nor any that waits behind it, counts as certain before `release`."""
        self.floor = max(self.floor, release)
        releases = self.releases
        for index, value in enumerate(releases):
            if value >= release:
                break
            releases[index] = release


# One frame, or a gap, between cutting and decoding:
# (release, order, rank, position, side, first number, number, file, first time, time, data, start, end, damage or None, dissector)
Cut = tuple[int, int, int, int, int, int | None, int, int, int, int, Any, int, int, Any, "Dissector"]


class Dissector:
    """Turns the two byte streams of one conversation into records."""

    protocol: ClassVar[str]
    header_size: ClassVar[int]
    reuse: ClassVar[str] = "supersede"
    """What a request with a key that is still open does: "supersede" the older, or "queue" behind it."""
    aligned: ClassVar[bool] = False
    """Whether `frames` can be called."""
    key: ClassVar[tuple[int, int]] = (0, 0)
    """Where in a frame the bytes are that choose its handler: from and to."""
    MADE_OF: ClassVar[tuple[str, ...]] = ("context",)
    DERIVED: ClassVar[tuple[str, ...]] = ("options", "handlers", "lanes")
    """Members that are no state, but made of `context` or for speed only: another process makes them again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.options = context.options
        self.client = context.client
        self.pairer: Any = None
        """Takes records as they are made, with the list they go to; None where they are paired later."""
        self.facts: dict[str, Any] = {}
        """What the protocol's state adds to the row of `conversations`: layout, candidates, ids."""
        self.buffers: dict[str, bytes] = {}
        """What the spans of the message just decoded count in besides its frame; filled by `decode` where details are asked for."""
        self.handlers: tuple[Handlers, Handlers] = ({}, {})
        """By side, the short way for frames without flaw."""
        self.flows = (_Flow(not context.syn), _Flow(not context.syn))
        self.ready: list[Emitted] = []
        """What `cut` has decoded already."""
        self._cuts: list[Cut] = []
        self._emitted = 0
        self.tally = Tally()
        self.set_lanes()

    def set_lanes(self) -> None:
        """Put together what all records of a side share: again when `client` or `handlers` change."""
        one, two = self.context.endpoints
        self.lanes = tuple(
            (
                self.context.conversation,
                source,
                target,
                _SENDERS[self.client][side],
                self.protocol,
                self.flows[side],
                self.handlers[side],
                *self.key,
            )
            for side, source, target in ((0, one, two), (1, two, one))
        )

    def resume(self) -> None:
        """Told when the client, among other things, is known from before."""
        self.set_lanes()

    # What a protocol fills in

    def measure(self, side: int, data: bytes, at: int) -> int:
        """The whole length of the frame that begins at `at`; 0: not enough bytes to know; -1: none can begin here; or WAIT or SEARCH.

        Called with at least `header_size` bytes there.
        """
        raise NotImplementedError

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        """The ends of the whole frames that follow each other from `at`; stops at the first that is not whole or not plain.

        Overridden where the loop over `measure` is too slow.
        """
        ends: list[int] = []
        size = len(data)
        header_size, measure, limit = self.header_size, self.measure, self.options.frame_limit
        while size - at >= header_size:
            length = measure(side, data, at)
            if length <= 0 or length > limit or at + length > size:
                break
            at += length
            ends.append(at)
        return ends

    @classmethod
    def frames(
        cls, buffer: bytes, offset: NDArray[np.int64], end: NDArray[np.int64], limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The frames that follow each other in buffer[offset:end], for many of such pieces: the index of the piece, start and end of each,
        first those that come first in their piece; and of which pieces these are all the bytes, and all found by `boundaries` too.

        For protocols that can tell by column; they set `aligned`.
        """
        raise NotImplementedError

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        """Look for a frame in data[at:end], where `end` is the end of a segment: (True, p) frames certainly begin at p; (False, p)
        none begins before p.

        `final`: no byte will follow directly (a hole of `flows[side].missing` bytes, or the end).
        """
        raise NotImplementedError

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> Decoded | tuple[Any, ...]:
        """The meaning of the frame data[start:end]; with `damage`, of what there is of it before the first missing byte."""
        raise NotImplementedError

    def lost(self, side: int) -> None:
        """Told, in packet order, when frames of `side` may have been missed: state that counts them is unsure from here on."""

    def broken(self, side: int, data: bytes) -> None:
        """Told, when bytes are cut, that the frame which begins with `data` will not be whole."""

    def give_up(self, side: int) -> None:
        """Told when `measure` waits for the other side and it will not come: from now on it must not answer WAIT."""

    # What a protocol may call

    def settle(self, side: int, position: int) -> None:
        """What WAIT waited for became known with the byte before `position` of `side`: nothing is certain before that packet."""
        flow = self.flows[side]
        release = flow.releases[flow.segment(position - 1)]
        for one in self.flows:
            one.raise_releases(release)

    # What the inspector calls

    def feed(self, items: Iterable[Chunk | Hole]) -> list[Emitted]:
        """The records that these bytes complete, in release order."""
        self.cut(items)
        return self.emit_before(NEVER)

    def cut(self, items: Iterable[Chunk | Hole]) -> None:
        """Cut these bytes into frames, which `emit_before` decodes; overridden where one cannot be done without the other."""
        flows = self.flows
        for item in items:
            flow = flows[item.side]
            flow.queue.append(item)
            if isinstance(item, Chunk):
                flow.queued += len(item.data)
        self._drain()
        self._arrange()

    def emit_before(self, order: int) -> list[Emitted]:
        """The records of the frames that were certain before this packet."""
        # A list of its own: the caller goes on with it
        emitted: list[Emitted] = []
        if self.ready:
            stop = bisect_left(self.ready, (order,))
            emitted, self.ready = self.ready[:stop], self.ready[stop:]
        cuts, begin = self._cuts, self._emitted
        if begin == len(cuts):
            return emitted
        stop = self._emitted = bisect_left(cuts, (order,), begin)
        if stop == len(cuts):
            self._cuts, self._emitted = [], 0
        return emitted + self.emit(cuts[begin:stop]) if begin < stop else emitted

    def close(self, release: int, last: Mark) -> list[Emitted]:
        """What is left when no byte will follow; `release` is the packet that ended the conversation, or END, `last` its last one."""
        for side in (0, 1):
            if self.flows[side].waiting:
                self._give_up(side, release)
        self._drain()
        for side in (0, 1):
            self._finish(side, release, last)
        self._arrange()
        return self.emit_before(NEVER)

    def emit(self, cuts: list[Cut]) -> list[Emitted]:
        """Decode frames in packet order; overridden by a protocol that must wait for more frames before it can decode."""
        self.count(len(cuts))
        return records_of(cuts)

    @classmethod
    def is_plain(cls) -> bool:
        """Whether the frames of one conversation after the other may be cut, and then decoded in the packet order of all."""
        return cls.emit is Dissector.emit and cls.cut is Dissector.cut

    def take_cuts(self) -> list[Cut]:
        """The frames that `cut` has found, for `records_of`."""
        cuts, self._cuts = self._cuts, []
        self.count(len(cuts))
        return cuts

    def count(self, records: int) -> None:
        self.tally.records += records
        self.context.total.records += records

    def at_rest(self, order: int) -> bool:
        """Whether no byte is at hand and nothing is looked for, so that the next bytes begin with a frame that was certain when the
        packet `order` came, or a later one."""
        return all(flow.at_rest(order) for flow in self.flows)

    # How it is done

    def _arrange(self) -> None:
        """Put the frames in the order in which they were certain."""
        cuts = self._cuts
        if len(cuts) > 1:
            since = (self.flows[0].jumbled, self.flows[1].jumbled)
            if since != (NEVER, NEVER):
                straighten(cuts, [cut[4] for cut in cuts], since)
            cuts.sort()

    def gap(
        self, release: int, order: int, rank: int, position: int, side: int, time: str, time_ns: int, size: int, told: tuple[Any, bool]
    ) -> Emitted:
        """The record of a gap."""
        reason, in_frame = told
        conversation, source, target = self.lanes[side][:3]
        sender = _SENDERS[self.client][side]
        gap = Gap(1, 0, time, time_ns, conversation, source, target, sender, self.protocol, position, size, reason, in_frame)
        for tally in (self.tally, self.context.total):
            tally.gaps += 1
            if not in_frame or reason != "skipped":
                tally.gap_bytes += size
        if not in_frame:
            self.lost(side)
        return release, order, rank, position, gap, GAP, None, time_ns  # type: ignore[return-value]

    def fault(self) -> None:
        """Count a message with a fault."""
        self.tally.faults += 1
        self.context.total.faults += 1

    def details(self, message: Message, frame: bytes, spans: list[Span] | None) -> None:
        """Keep with a message what the views of its bytes need."""
        message.raw = {"frame": frame, **self.buffers}
        message.spans = spans
        self.buffers = {}

    def segment_notes(self, side: int, position: int, size: int, notes: Any) -> list[str]:
        """`notes` with those that the reassembler left on bytes of this frame, which are then forgotten."""
        flow = self.flows[side]
        merged = list(notes)
        merged.extend(text for at, text in flow.notes if at < position + size and text not in merged)
        flow.notes = [note for note in flow.notes if note[0] >= position + size]
        return merged

    def rank(self, side: int) -> int:
        return side ^ (self.context.client or 0)

    def _drain(self) -> None:
        """Cut both sides until neither gets further: what one side tells may free the other."""
        progress = True
        while progress:
            progress = False
            for side in (0, 1):
                flow = self.flows[side]
                if flow.queue or flow.waiting:
                    before = flow.position
                    self._absorb(side)
                    progress = progress or flow.position != before
            if progress and not (self.flows[0].waiting or self.flows[1].waiting):
                break

    def _absorb(self, side: int) -> None:
        flow = self.flows[side]
        if flow.waiting:
            flow.waiting = False
            self._cut(side)
        queue = flow.queue
        index = 0
        while index < len(queue):
            if flow.waiting:
                if flow.have + flow.queued <= self.options.undecided_limit:
                    break
                self._give_up(side, flow.releases[-1])
                continue
            item = queue[index]
            index += 1
            if isinstance(item, Hole):
                self._hole(side, item)
            else:
                flow.queued -= len(item.data)
                self._chunk(side, item)
        del queue[:index]
        flow.forget()

    def _give_up(self, side: int, release: int) -> None:
        self.give_up(side)
        flow = self.flows[side]
        flow.raise_releases(release)
        flow.waiting = False
        self._cut(side)

    def _chunk(self, side: int, chunk: Chunk) -> None:
        flow = self.flows[side]
        flow.add(chunk)
        data = chunk.data
        partial = flow.partial
        if partial is not None:
            data = self._pass_by(side, partial, data)
            if not data:
                return
        flow.have += len(data)
        if flow.data or flow.pieces:
            flow.pieces.append(data)
            if flow.have < flow.need:
                return
        else:
            flow.data = data
        self._cut(side)

    def _pass_by(self, side: int, partial: _Partial, data: bytes) -> bytes:
        """Let bytes go by that belong to a frame which is not kept whole; returns those behind it."""
        flow = self.flows[side]
        mine = data[: partial.position + partial.length - flow.position]
        if len(partial.prefix) < partial.want:
            partial.prefix += mine[: partial.want - len(partial.prefix)]
        first, last = flow.marks(flow.position, flow.position + len(mine))
        partial.first, partial.last = min(partial.first, first), max(partial.last, last)
        flow.position += len(mine)
        if flow.position == partial.position + partial.length:
            self._put_partial(side, flow.releases[flow.segment(flow.position - 1)], partial.length)
        return data[len(mine) :]

    def _put_partial(self, side: int, release: int, size: int) -> None:
        """Hand on the frame that went by, of which `size` bytes are in the byte stream."""
        flow = self.flows[side]
        partial = flow.partial
        assert partial is not None
        flow.partial = None
        order, number, file, time_ns = partial.last
        reason = f"{partial.lost} bytes {_MISSING[partial.why]}" if partial.lost else partial.reason
        if size < partial.length:
            missing = f"{size} of {partial.length} bytes captured"
            reason = f"{reason}, {missing}" if partial.lost else missing
        self._cuts.append(
            (
                max(release, order),
                order,
                self.rank(side),
                partial.position,
                side,
                partial.first[1] if partial.first[2] == file else None,
                number,
                file,
                partial.first[3],
                time_ns,
                partial.prefix,
                0,
                len(partial.prefix),
                Damage(size, reason),
                self,
            )
        )

    def _put_gap(self, side: int, position: int, size: int, reason: str, in_frame: bool, release: int, mark: Mark) -> None:
        order, number, file, time_ns = mark
        rank = self.rank(side)
        self._cuts.append(
            (release, order, rank, position, side, None, number, file, time_ns, time_ns, None, size, 0, (reason, in_frame), self)
        )

    def _end_skip(self, side: int, release: int, mark: Mark) -> None:
        """Bytes passed over without finding a frame, up to here, are one gap."""
        flow = self.flows[side]
        if flow.skip_from is not None and flow.skip_from < flow.position:
            self._put_gap(side, flow.skip_from, flow.position - flow.skip_from, "skipped", False, release, mark)
        flow.skip_from = None

    def _hole(self, side: int, hole: Hole) -> None:
        flow = self.flows[side]
        if flow.waiting:
            self._give_up(side, hole.release)
        hole.release = max(hole.release, flow.floor)
        mark = (hole.order, hole.number, hole.file, hole.time_ns)
        size = hole.size
        flow.missing = size
        self._stop(side, hole.release, mark, size, _MISSING[hole.reason])
        flow.missing = 0
        partial = flow.partial
        position = hole.position
        if partial is not None:
            inside = min(size, partial.position + partial.length - position)
            partial.why = hole.reason if not partial.lost or partial.why == hole.reason else "both"
            partial.lost += inside
            partial.want = min(partial.want, len(partial.prefix))
            self._put_gap(side, position, inside, hole.reason, True, hole.release, mark)
            position += inside
            size -= inside
            flow.position = position
            if position == partial.position + partial.length:
                self._put_partial(side, hole.release, partial.length)
        if size:
            self._put_gap(side, position, size, hole.reason, False, hole.release, mark)
            flow.position = position + size
            flow.searching = True
            flow.scan = flow.position

    def _stop(self, side: int, release: int, mark: Mark, hole: int, reason: str) -> None:
        """The bytes at hand are not continued: an unfinished frame becomes `flow.partial` or, without a whole header, skipped bytes."""
        flow = self.flows[side]
        if flow.partial is not None:
            return
        data = flow.join()
        if flow.searching:
            self._search(side, True, release)
            data = flow.join()
            if not flow.searching:
                self._cut(side)
                data = flow.join()
            if flow.partial is not None:
                return
        if not flow.searching and len(data) >= self.header_size:
            length = self.measure(side, data, 0)
            if length > 0:
                self.broken(side, data)
                first, last = flow.marks(flow.position, flow.position + len(data))
                flow.partial = _Partial(flow.position, length, data, len(data), f"{hole} bytes {reason}", first, last)
                flow.position += len(data)
                flow.drop()
                return
        if data:
            if flow.skip_from is None:
                flow.skip_from = flow.position
            flow.position += len(data)
            flow.drop()
        self._end_skip(side, release, mark)

    def _finish(self, side: int, release: int, mark: Mark) -> None:
        """No byte of this side will follow."""
        flow = self.flows[side]
        if not flow.starts:
            return
        self._stop(side, release, mark, 0, "captured")
        if flow.partial is not None:
            self._put_partial(side, release, flow.position - flow.partial.position)

    def _search(self, side: int, final: bool, release: int) -> None:
        """Look for the next frame at the end of each segment in turn, so that it does not matter how many came at once."""
        flow = self.flows[side]
        data = flow.join()
        base, size = flow.position, len(data)
        at = max(0, flow.scan - base)
        index = flow.segment(base)
        count = len(flow.starts)
        tried = flow.tried
        while index < count:
            end = flow.starts[index + 1] - base if index + 1 < count else size
            end = min(end, size)
            if base + end > tried or (final and end == size):
                last = final and end == size
                found, at = self.resync(side, data, at, end, last)
                if not found and last:
                    at = end
                if not found and end - at > SEARCH_WINDOW:
                    at = end - SEARCH_WINDOW
                flow.tried = base + end
                if found:
                    floor = max(flow.releases[index], release if last else 0)
                    flow.raise_releases(floor)
                    if at and flow.skip_from is None:
                        flow.skip_from = base
                    flow.searching = False
                    flow.consume(at)
                    self._end_skip(side, floor, flow.mark(flow.segment(flow.position)))
                    return
            index += 1
        if at:
            if flow.skip_from is None:
                flow.skip_from = base
            flow.consume(at)
        flow.scan = flow.position

    def _cut(self, side: int) -> None:
        """Cut whole frames off the bytes at hand."""
        flow = self.flows[side]
        while True:
            if flow.searching:
                self._search(side, False, 0)
                if flow.searching:
                    flow.need = 0
                    return
            data = flow.join()
            ends = self.boundaries(side, data, 0)
            if ends:
                self._put_frames(side, flow, data, ends)
            at = ends[-1] if ends else 0
            left = len(data) - at
            flow.consume(at)
            if left < self.header_size:
                flow.need = self.header_size
                return
            length = self.measure(side, data, at)
            if length == WAIT:
                flow.waiting = True
                flow.need = 0
                return
            if length < 0:
                # This is no frame: what follows is passed over until frames certainly begin again.
                flow.searching = True
                flow.scan = flow.position + (length != SEARCH)
                flow.tried = flow.position
                flow.skip_from = flow.position
                continue
            if length > self.options.frame_limit:
                self.broken(side, flow.data)
                first, last = flow.marks(flow.position, flow.position + 1)
                reason = f"frame of {length} bytes is over the limit of {self.options.frame_limit} bytes"
                flow.partial = _Partial(flow.position, length, b"", OVERSIZE_KEPT, reason, first, last)
                rest = flow.data
                flow.drop()
                flow.data = self._pass_by(side, flow.partial, rest)
                flow.have = len(flow.data)
                if flow.data:
                    continue
                return
            if length and length <= left:
                # `boundaries` stopped before a whole frame that is not plain
                self._put_frames(side, flow, data, [at + length], at)
                flow.consume(length)
                continue
            flow.need = length or left + 1
            return

    def _put_frames(self, side: int, flow: _Flow, data: bytes, ends: list[int], at: int = 0) -> None:
        """Attribute the frames data[at:ends[0]], data[ends[0]:ends[1]], ... to the packets that brought them."""
        starts, orders, releases = flow.starts, flow.orders, flow.releases
        numbers, files, times = flow.numbers, flow.files, flow.times
        rank = self.rank(side)
        # `base` is the byte stream position of data[0]; `flow.position` still stands at the first frame
        base = flow.position - at
        append = self._cuts.append
        last = len(starts) - 1
        index = flow.segment(base + at)
        for end in ends:
            position = base + at
            while index < last and starts[index + 1] <= position:
                index += 1
            first = index
            final = base + end
            while index < last and starts[index + 1] < final:
                index += 1
            if index == first:
                number = numbers[index]
                time_ns = times[index]
                append(
                    (
                        releases[index],
                        orders[index],
                        rank,
                        position,
                        side,
                        number,
                        number,
                        files[index],
                        time_ns,
                        time_ns,
                        data,
                        at,
                        end,
                        None,
                        self,
                    )
                )
            else:
                run = orders[first : index + 1]
                newest = first + run.index(max(run))
                oldest = first + run.index(min(run))
                file = files[newest]
                append(
                    (
                        releases[index],
                        orders[newest],
                        rank,
                        position,
                        side,
                        numbers[oldest] if files[oldest] == file else None,
                        numbers[newest],
                        file,
                        times[oldest],
                        times[newest],
                        data,
                        at,
                        end,
                        None,
                        self,
                    )
                )
            at = end


def records_of(cuts: list[Cut]) -> list[Emitted]:
    """The records of frames, in their order, and the exchanges that these make certain; the frames may be of many conversations.

    Called with frames of few packets at a time, as what is made of them is handed on and freed while it is in the processor's cache.
    """
    emitted: list[Emitted] = []
    append = emitted.append
    low = high = 0
    second_text = time = ""
    time_of = None
    detail = bool(cuts) and cuts[0][14].options.detail
    timed = bool(cuts) and not cuts[0][14].options.terse
    for release, order, rank, position, side, first_number, number, file, first_time, time_ns, data, start, end, damage, dissector in cuts:
        if timed and time_ns != time_of:
            time_of = time_ns
            if not low <= time_ns < high:
                low, high, second_text = _second(time_ns)
            time = f"{second_text}{str(time_ns)[-9:]}Z" if low > 0 else rfc3339(time_ns)
        conversation, source, target, sender, protocol, flow, handlers, key_start, key_end = dissector.lanes[side]
        size = end - start
        handler = handlers.get(data[start + key_start : start + key_end]) if handlers and damage is None else None
        decoded = None
        if handler is not None:
            try:
                decoded = handler(dissector, side, data, start, end)
            except UNREADABLE:
                decoded = None
        if decoded is None:
            if data is None:
                one = dissector.gap(release, order, rank, position, side, time, time_ns, start, damage)
                append(one)
                if dissector.pairer is not None:
                    dissector.pairer.take(one, append)
                continue
            decoded = dissector.decode(side, data, start, end, damage)
            sender = _SENDERS[dissector.client][side]
            if damage is not None:
                size = damage.size
        name, kind, ident, fields, outcome, notes, fault, role, key, spans = decoded
        if flow.notes:
            notes = dissector.segment_notes(side, position, size, notes)
        message = Message(
            1,
            0,
            time,
            time_ns,
            conversation,
            source,
            target,
            sender,
            protocol,
            name,
            kind,
            ident,
            file,
            (first_number, number),
            position,
            size,
            fields,
            None,
            outcome,
            None,
            notes,
            fault,
        )
        if fault is not None:
            dissector.fault()
        if detail:
            dissector.details(message, data[start:end], spans)
        one = (release, order, rank, position, message, role, key, first_time)  # type: ignore[assignment]
        append(one)
        if role and dissector.pairer is not None:
            dissector.pairer.take(one, append)
    return emitted


def straighten(rows: list[Any], sides: Iterable[int], since: tuple[int, int]) -> None:
    """Let what one packet made certain keep the order of its byte stream, though the later part may have been captured first.

    `rows` begin with release and order; `sides` are theirs, and `since` the releases from which on this is needed.
    """
    certain = [(-1, -1), (-1, -1)]
    for index, side in enumerate(sides):
        row = rows[index]
        release, order = row[0], row[1]
        before = certain[side]
        if before[0] == release and order < before[1] and release >= since[side]:
            rows[index] = (release, before[1], *row[2:])
        else:
            certain[side] = (release, order)


def rfc3339(time_ns: int) -> str:
    """UTC with nine decimals."""
    second, rest = divmod(time_ns, 1_000_000_000)
    return f"{_second_text(second)}{rest:09d}Z"


def _second(time_ns: int) -> tuple[int, int, str]:
    """The second of `time_ns`: from, to, and its text up to the decimal point."""
    second = time_ns // 1_000_000_000
    return second * 1_000_000_000, (second + 1) * 1_000_000_000, _second_text(second)


@lru_cache(64)
def _second_text(second: int) -> str:
    """RFC 3339 up to the decimal point; a time outside the years that has is clamped to their ends."""
    second = min(max(second, -62_135_596_800), 253_402_300_799)
    return strftime("%Y-%m-%dT%H:%M:%S.", gmtime(second)).rjust(20, "0")
