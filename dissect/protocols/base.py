"""What every dissector shares: cutting byte streams into frames, holes, finding the way back, making records.

A protocol's own `Dissector` says how long a frame is, where frames begin again after a loss, and what a frame means.
Frames are cut per side in bulk and then decoded in the packet order of both sides. Nothing here depends on how the
byte streams came in pieces: only positions, and the segment starts that chunks carry, are looked at.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter, length_hint
from time import gmtime, strftime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.errors import Failure, bug
from dissect.layout import UNREADABLE
from dissect.model import Chunk, ConversationRow, Exchange, Fault, Gap, Hole, Limited, Message, Options, Span, Verdict
from dissect.protocols.behaviour import Behaviour
from dissect.protocols.effort import STEP, Effort
from dissect.protocols.private import Private

if TYPE_CHECKING:
    from dissect.tcp.conversations import Stretch

NONE, ASK, ANSWER, ASK_MANY, ANSWER_MANY, ANSWER_PART, GAP, ASK_MAYBE = range(8)
"""What a message does for pairing: nothing, asks, answers; with a list of keys; answers and leaves the request open; may be
answered (in trouble only), so is never missed: the newest with its key replaces the older."""

END = 1 << 62
"""The order of the end of the capture: after every packet."""

NEVER = END << 1
"""After everything, the end of the capture too."""

SENDERS: dict[int | None, tuple[Any, Any]] = {None: (None, None), 0: ("client", "server"), 1: ("server", "client")}
"""By the client's side, what each side is."""

_MISSING = {
    "lost": "lost",
    "cut": "cut by the snap length",
    "both": "lost or cut by the snap length",
    "skipped": "skipped",
}
"""How a damaged frame says why bytes of it are missing."""

WAIT = -2
"""`measure`: how long this frame is depends on bytes of the other side that are not there yet."""

UNKNOWN = -1
"""The size of a gap of which nobody knows how many bytes it has."""

SEARCH = -3
"""`measure`: a frame may begin here or later, only `resync` can tell where."""

OVERSIZE_KEPT = 65_536
"""Bytes kept of a frame longer than `Options.frame_limit`."""

LARGE = 1_024
"""From this size on what is remembered of a message is made smaller as soon as it was handed on."""

SEARCH_WINDOW = 1 << 20
"""Bytes of one side looked at for the next frame before the oldest of them are given up."""


Mark = tuple[int, int, int, int]
"""A packet: (order, number, file, time_ns)."""

Range = tuple[int, int, int]
"""Bytes of a byte stream: side, from, to."""


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


class Broken(NamedTuple):
    """In the place of a gap's reason: an exception came where frames were cut, and takes effect when this one's turn comes."""

    what: str


class Postponed(Exception):
    """Raised when the turn of a `Broken` has come."""


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


class Tally(msgspec.Struct):
    """How many messages and gaps were made, how many of them are gaps, the bytes that these lack, the messages with a fault, the
    requests that ended without a response, and those that were refused."""

    records: int = 0
    gaps: int = 0
    gap_bytes: int = 0
    faults: int = 0
    unanswered: int = 0
    refused: int = 0

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

    @property
    def end(self) -> int:
        """The position behind the last byte; 0 where there is none."""
        return self.runs[-1][0] + len(self.runs[-1][1]) if self.runs else 0


class View(msgspec.Struct):
    """A conversation as detection sees it; `final` when no more bytes will come.

    `effort` bounds what a probe may do, and `known` holds what it found out that no further byte will change, under names of its own.
    `hinges`: what is found would perhaps be another thing if `final` were, so that it is to be looked for again.
    """

    sides: tuple[SideView, SideView]
    ports: tuple[int, int]
    syn: bool
    final: bool
    effort: Effort = msgspec.field(default_factory=Effort)
    known: dict[Any, Any] = msgspec.field(default_factory=dict)
    hinges: bool = False

    def ends(self) -> bool:
        """Whether no more bytes will come; asked only where that makes a difference."""
        self.hinges = True
        return self.final


class Protocol(msgspec.Struct, frozen=True):
    """One entry of PROTOCOLS: a protocol name with its probe, its dissector and its tables."""

    name: str
    title: str
    ports: tuple[int, ...]
    dissector: type[Dissector]
    probe: Callable[[View], Verdict | None]
    says: Callable[[Message], str]
    tables: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    """Its layouts and other tables, for documentation and the names of fields; or what makes them once they are asked for."""
    text: str = ""
    """Paragraphs for `streamdump protocols NAME` that no table holds."""
    added: tuple[tuple[str, str, str], ...] = ()
    """Fields that no table holds, as rows of one: path, type, note. Most are put beside those that are on the wire."""
    labelled: Callable[[Options], Mapping[str, Iterable[str]]] | None = None
    """By field, the labels that options bring."""
    alarms: Mapping[str, Callable[[Message], bool]] = {}
    """By name: whether such a message is a cause of trouble, though it is no request that was refused."""
    paired: Callable[[Message, Message], list[str]] | None = None
    """Notes for a response that only its request lets one say (a deadline that had passed)."""
    unanswered: Callable[[Message, int], str | None] | None = None
    """Why a request has no response at a time (ns), where its own fields say so (a deadline that had passed)."""
    relate: Callable[[list[ConversationRow]], None] | None = None
    """Adds to the rows of this protocol what its conversations tell about each other."""
    hint: Callable[[list[ConversationRow], Options], str | None] | None = None
    """What a user could do to see more of this protocol's conversations, for the closing line."""
    login: re.Pattern[bytes] | None = None
    """Finds a login in the bytes of a client."""
    forced: tuple[str, ...] = ()
    """Layout names that `-d tcp.port==N,protocol:LAYOUT` takes."""
    behaviour: Behaviour | None = None
    """What of its messages is behaviour, and what is chance."""
    private: Private | None = None
    """What of its messages is nobody else's business."""
    teller: Callable[[], Callable[[Message], str]] | None = None
    """Makes a `says` for a view that shows the messages of a run in their order: it may remember what it was told."""

    @property
    def layouts(self) -> tuple[Any, ...]:
        tables = self.tables
        return tables() if callable(tables) else tables

    streams: Callable[[], Callable[[Message], str | None]] | None = None
    """Makes what tells the stream, or whatever messages go to, that a request speaks of; it is asked about each request as it ends."""
    verb: Callable[[Message], str | None] | None = None
    """What a request asks for, where its name does not say so."""
    worked: Callable[[Message], int | None] | None = None
    """The nanoseconds that a response says the server worked on it."""


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
        "base",
        "broken",
        "data",
        "effort",
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
        "told",
        "tried",
        "waiting",
    )

    def __init__(self, searching: bool) -> None:
        self.position = 0
        # the position of data[0]: bytes are done with by moving `position`, and taken off when they are most of what there is
        self.base = 0
        self.data = b""
        self.pieces: list[bytes] = []
        # bytes at hand, from `position` on
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
        self.effort = Effort()
        self.scan = 0
        self.tried = 0
        self.skip_from: int | None = None
        self.partial: _Partial | None = None
        self.queue: list[Chunk | Hole] = []
        """What waits behind the bytes at hand, `queued` bytes."""
        self.queued = 0
        self.waiting = False
        self.notes: list[tuple[int, str]] = []
        self.told = 0
        """How far the byte stream was cut: up to here every byte is in a frame or gap that was handed on, or will be."""
        self.broken = False
        """An exception came: nothing is cut any more."""

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
        """Drop the segments that lie wholly before `position` when they are half of all, but always keep the last one."""
        starts = self.starts
        if not starts:
            return
        count = self.segment(self.position)
        if count and count * 2 >= len(starts):
            for column in (starts, self.orders, self.releases, self.numbers, self.files, self.times):
                del column[:count]

    def segment(self, position: int) -> int:
        """The index of the segment that holds `position` (the last one if it lies beyond)."""
        starts = self.starts
        if len(starts) < 2:
            return 0
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

    def take(self, data: bytes) -> None:
        """Bytes that come when none are at hand."""
        self.data = data
        self.base = self.position
        self.have = len(data)

    def join(self) -> bytes:
        """The bytes at hand as one, behind what is done with; a frame that came in many pieces is joined once, when it is whole."""
        if self.pieces:
            self.data = b"".join((memoryview(self.data)[self.position - self.base :], *self.pieces))
            self.base = self.position
            self.pieces.clear()
        return self.data

    def rest(self) -> bytes:
        """The bytes at hand alone."""
        data = self.join()
        if self.position > self.base:
            self.data = data = data[self.position - self.base :]
            self.base = self.position
        return data

    def consume(self, size: int) -> None:
        """The first `size` bytes at hand are done with."""
        self.have -= size
        self.position += size

    def trim(self) -> None:
        """Take off what is done with, if it is most of what there is."""
        if not self.have:
            self.data = b""
            self.base = self.position
        elif (self.position - self.base) * 2 > len(self.data):
            self.data = self.data[self.position - self.base :]
            self.base = self.position

    def at_rest(self, order: int) -> bool:
        busy = self.have or self.searching or self.waiting or self.queue or self.notes or self.broken or self.partial is not None
        return not busy and self.skip_from is None and self.jumbled == NEVER and self.floor <= order

    def drop(self) -> None:
        """Forget the bytes at hand; `position` has been moved by the caller."""
        self.take(b"")

    def raise_releases(self, release: int) -> None:
        """No byte held so far, nor any that waits behind it, counts as certain before `release`."""
        self.floor = max(self.floor, release)
        releases = self.releases
        index = self.segment(self.position)
        while index < len(releases) and releases[index] < release:
            releases[index] = release
            index += 1


# One frame, or a gap, between cutting and decoding: (release, order, rank, position, side, first number, number, file, first time, time,
# data, start, end, damage or None, dissector, order of the packet with which it began)
Cut = tuple[int, int, int, int, int, int | None, int, int, int, int, Any, int, int, Any, "Dissector", int]


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
    DERIVED: ClassVar[tuple[str, ...]] = ("options", "handlers", "lanes", "release", "began", "spread")
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
        self._empty_gaps = False
        self.tally = Tally()
        self.limit_hits = 0
        self.over = 0
        """The sides that said themselves that they send no more, a bit for each; known when the conversation ends."""
        """Messages of which not all was made."""
        self.failure: Failure | None = None
        """An exception came, and nothing is handed on any more."""
        self.unsent: list[Range] = []
        """What was cut, or even made, and is not handed on because of it."""
        self.untold: list[Message | Gap] = []
        """Records that were made, and perhaps paired, but are not handed on because of it."""
        self.release = self.began = 0
        """Of the frame that `decode` is given: the packet that made it certain, and the first that brought bytes of it."""
        self.spread = False
        """Whether several packets brought bytes of it."""
        self.set_lanes()

    def set_lanes(self) -> None:
        """Put together what all records of a side share: again when `client` or `handlers` change."""
        one, two = self.context.endpoints
        self.lanes = tuple(
            (
                self.context.conversation,
                source,
                target,
                SENDERS[self.client][side],
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
        if begin == len(cuts) or self.failure is not None:
            return emitted
        stop = bisect_left(cuts, (order,), begin)
        if begin < stop:
            emitted += self.emit(cuts[begin:stop])
        self._emitted = stop
        if stop == len(cuts):
            self._cuts, self._emitted = [], 0
        return emitted

    def close(self, release: int, last: Mark) -> list[Emitted]:
        """What is left when no byte will follow; `release` is the packet that ended the conversation, or END, `last` its last one."""
        for side in (0, 1):
            if self.flows[side].waiting:
                try:
                    self._give_up(side, release)
                except Exception as error:
                    self._break(side, bug(error), release, last)
        self._drain()
        for side in (0, 1):
            try:
                self._finish(side, release, last)
            except Exception as error:
                self._break(side, bug(error), release, last)
        self._arrange()
        return self.emit_before(NEVER)

    def emit(self, cuts: list[Cut]) -> list[Emitted]:
        """Decode frames in packet order; overridden by a protocol that must wait for more frames before it can decode."""
        self.count(len(cuts))
        return records_of(cuts)

    @classmethod
    def pairs_at_once(cls) -> bool:
        """Whether records are made in the order in which they are handed on, so that they can be paired as they are made."""
        return cls.cut is Dissector.cut

    @classmethod
    def is_plain(cls) -> bool:
        """Whether the frames of one conversation after the other may be cut, and then decoded in the packet order of all."""
        return cls.emit is Dissector.emit and cls.cut is Dissector.cut

    def take_cuts(self) -> list[Cut]:
        """The frames that `cut` has found, for `records_of`."""
        cuts, self._cuts = self._cuts, []
        self.count(len(cuts))
        return cuts

    def pass_over(self, stretches: Iterable[Stretch], records: int) -> None:
        """These bytes were cut into frames elsewhere."""
        for stretch in stretches:
            flow = self.flows[stretch.side]
            flow.position = flow.told = flow.position + stretch.size
        self.count(records)

    def count(self, records: int) -> None:
        self.tally.records += records
        self.context.total.records += records

    def at_rest(self, order: int) -> bool:
        """Whether no byte is at hand and nothing is looked for, so that the next bytes begin with a frame that was certain when the
        packet `order` came, or a later one."""
        return all(flow.at_rest(order) for flow in self.flows)

    def fail(self, what: str, cut: Cut, rest: Iterable[Cut] = ()) -> None:
        """An exception came with a frame: nothing is handed on from it on, nor of the `rest`."""
        if self.failure is None:
            self.failure = Failure(what, cut[0], cut[6], cut[7])
        self.drop((cut, *rest))

    def drop(self, cuts: Iterable[Cut]) -> None:
        """Frames and gaps are not handed on."""
        self.unsent += [whole for whole in map(range_of, cuts) if whole is not None]

    def drop_made(self, emitted: Iterable[Emitted]) -> None:
        """Records, which were counted, are not handed on."""
        for one in emitted:
            record, position = one[4], one[3]
            if type(record) is Exchange:
                continue
            self.count(-1)
            self._discount(record)
            self.untold.append(record)
            if type(record) is Message or not record.in_frame:
                self.unsent.append((int(record.src != self.context.endpoints[0]), position, position + (record.size or 0)))

    def take_back(self, emitted: list[Emitted], cut: Cut) -> None:
        """What was made of a frame before an exception came is not handed on; what pairing told of other requests is."""
        at = len(emitted)
        while at and type(emitted[at - 1][4]) is Exchange:
            at -= 1
        one = emitted[at - 1] if at else None
        if one is not None and one[1:4] == cut[1:4] and one[4].conversation == self.context.conversation:
            behind = emitted[at:]
            del emitted[at - 1 :]
            self.untold.append(one[4])
            self._discount(one[4])
            emitted += self.pairer.take_back(one[4], behind)

    def fail_made(self, what: str, emitted: list[Emitted], out: list[Emitted], pairer: Any) -> None:
        """An exception came as the last record in `out` was paired, one of those `emitted`: it and those behind it are not handed on."""
        at = next((at for at in reversed(range(len(out))) if type(out[at][4]) is not Exchange), 0)
        one, behind = out[at] if out else emitted[0], out[at + 1 :]
        del out[at:]
        out += pairer.take_back(one[4], behind)
        number, file = (one[4].packets[1], one[4].file) if type(one[4]) is Message else (None, None)
        self.failure = Failure(what, one[0], number, file)
        self.drop_made(emitted[next(index for index, other in enumerate(emitted) if other is one) :])

    def break_off(self, failure: Failure) -> None:
        """An exception came with a packet: nothing is handed on of what was certain later."""
        self._uncut()
        place = bisect_left(self._cuts, (failure.release + 1,), self._emitted)
        self._put_broken(0, failure.what, failure.release, (failure.release, failure.number or 0, failure.file or 0, 0))
        self._cuts.insert(place, self._cuts.pop())
        for flow in self.flows:
            flow.broken = True

    def missed(self) -> list[Range]:
        """All that was not handed on, in no order, and for each side the rest, which ends with `END`."""
        self.drop(self._cuts[self._emitted :])
        self.drop_made(self.ready)
        return [*self.unsent, *((side, self.flows[side].told, END) for side in (0, 1))]

    # How it is done

    def _arrange(self) -> None:
        """Put the frames in the order in which they were certain."""
        cuts = self._cuts
        if len(cuts) > 1:
            since = (self.flows[0].jumbled, self.flows[1].jumbled)
            if since != (NEVER, NEVER):
                straighten(cuts, [cut[4] for cut in cuts], since)
            # A gap that has no bytes stands before the frame at its place; the other members cannot all be compared
            cuts.sort(key=itemgetter(0, 1, 2, 3) if self._empty_gaps else None)

    def gap(
        self, release: int, order: int, rank: int, position: int, side: int, time: str, time_ns: int, size: int, told: tuple[Any, bool]
    ) -> Emitted:
        """The record of a gap."""
        reason, in_frame = told
        if type(reason) is Broken:
            raise Postponed(reason.what)
        conversation, source, target = self.lanes[side][:3]
        sender = SENDERS[self.client][side]
        known = size if size != UNKNOWN else None
        gap = Gap(1, 0, time, time_ns, conversation, source, target, sender, self.protocol, position, known, reason, in_frame)
        if not in_frame:
            self.lost(side)
        count_gap((self.tally, self.context.total), gap)
        return release, order, rank, position, gap, GAP, None, time_ns  # type: ignore[return-value]

    def fault(self, fault: Fault) -> None:
        """Count a message with a fault."""
        self.limit_hits += type(fault) is Limited
        self.tally.faults += 1
        self.context.total.faults += 1

    def _discount(self, record: Message | Gap) -> None:
        """A record that was counted is not handed on."""
        tallies = (self.tally, self.context.total)
        if type(record) is Gap:
            count_gap(tallies, record, -1)
        elif record.fault is not None:  # type: ignore[union-attr]
            for tally in tallies:
                tally.faults -= 1

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
            try:
                self._cut(side)
            except Exception as error:
                self._cut_again(side, bug(error))
        queue = flow.queue
        index = 0
        while index < len(queue) and not flow.broken:
            if flow.waiting:
                if flow.have + flow.queued <= self.options.undecided_limit:
                    break
                try:
                    self._give_up(side, flow.releases[-1])
                except Exception as error:
                    self._cut_again(side, bug(error))
                continue
            item = queue[index]
            index += 1
            if isinstance(item, Hole):
                try:
                    self._hole(side, item)
                except Exception as error:
                    self._break(side, bug(error), item.release, (item.order, item.number, item.file, item.time_ns))
            else:
                flow.queued -= len(item.data)
                try:
                    self._chunk(side, item)
                except Exception as error:
                    last = (item.orders[0], item.releases[0], item.numbers[0], item.files[0], item.times[0])
                    self._cut_again(side, bug(error), last)
        if flow.broken:
            queue.clear()
            return
        del queue[:index]
        flow.trim()
        flow.forget()

    def _give_up(self, side: int, release: int) -> None:
        self.give_up(side)
        flow = self.flows[side]
        flow.raise_releases(release)
        flow.waiting = False
        self._cut(side)

    def _chunk(self, side: int, chunk: Chunk) -> None:
        self.flows[side].add(chunk)
        self._bytes(side, chunk.data)

    def _bytes(self, side: int, data: bytes) -> None:
        """Take these bytes in, whose segments are known."""
        flow = self.flows[side]
        partial = flow.partial
        if partial is not None:
            data = self._pass_by(side, partial, data)
            if not data:
                return
        if flow.have:
            flow.pieces.append(data)
            flow.have += len(data)
            if flow.have < flow.need:
                return
        else:
            flow.take(data)
        self._cut(side)

    def _cut_again(self, side: int, what: str, last: tuple[int, ...] = ()) -> None:
        """An exception came where the bytes of many segments were cut at once: take them one by one, up to the frame that raises it.

        Where none does, it is the bytes at hand. `last`: order, release, number, file and time of a segment, in case none is known.
        """
        flow = self.flows[side]
        columns = (flow.starts, flow.orders, flow.releases, flow.numbers, flow.files, flow.times)
        rows = list(zip(*columns, strict=False))
        row = rows[-1] if rows else (0, *last)
        try:
            data = self._left(side)
            at = flow.position
            if flow.partial is None and (flow.searching or at == flow.told):
                rows = rows[flow.segment(at) :]
                self._restart(flow, b"")
                for column in columns:
                    del column[-len(rows) :]
                for index, row in enumerate(rows):
                    for column, value in zip(columns, row, strict=True):
                        column.append(max(value, flow.floor) if column is flow.releases else value)
                    end = rows[index + 1][0] - at if index + 1 < len(rows) else len(data)
                    self._bytes_again(side, data[max(0, row[0] - at) : end], row[0])
        except Exception as error:
            what = bug(error)
        self._break(side, what, max(row[2], flow.floor), (row[1], row[3], row[4], row[5]))

    def _bytes_again(self, side: int, piece: bytes, start: int) -> None:
        """Take in the bytes of one segment, which begins at `start`; where that raises an exception, byte by byte."""
        flow = self.flows[side]
        if flow.waiting:
            flow.pieces.append(piece)
            flow.have += len(piece)
            return
        try:
            self._bytes(side, piece)
        except Exception:
            data = self._left(side)
            if flow.partial is None and flow.position == flow.told:
                before = max(0, start - flow.position)
                self._restart(flow, data[:before])
                for at in range(before, len(data)):
                    self._bytes(side, data[at : at + 1])
                    if flow.searching or flow.waiting or flow.partial is not None:
                        break
            raise

    def _left(self, side: int) -> bytes:
        """The bytes at hand that are not cut, when an exception came as they were."""
        self._uncut()
        flow = self.flows[side]
        flow.effort.again()
        if flow.position < flow.told:
            flow.consume(flow.told - flow.position)
        return flow.rest()

    def _uncut(self) -> None:
        """Forget frames that were about to be handed on when an exception came."""
        told = [flow.told for flow in self.flows]
        begun = self._cuts[self._emitted :]
        self._cuts[self._emitted :] = [cut for cut in begun if cut[3] < told[cut[4]] or range_of(cut) is None or is_broken(cut)]

    def _restart(self, flow: _Flow, data: bytes) -> None:
        """Let these be the bytes at hand."""
        flow.pieces.clear()
        flow.take(data)
        flow.need = 0

    def _break(self, side: int, what: str, release: int, mark: Mark) -> None:
        """Cut no more of this side: what was cut counts, and then comes the exception."""
        self._uncut()
        flow = self.flows[side]
        flow.broken = True
        flow.waiting = False
        self._put_broken(side, what, release, mark)

    def _put_broken(self, side: int, what: str, release: int, mark: Mark) -> None:
        self._put_gap(side, self.flows[side].told, 0, Broken(what), False, release, mark)

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
        order, number, file, time_ns = partial.last
        reason = f"{partial.lost} bytes {_MISSING[partial.why]}" if partial.lost else partial.reason
        if size < partial.length:
            missing = f"{size} of {partial.length} bytes {'sent' if self.over >> side & 1 else 'captured'}"
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
                partial.first[0],
            )
        )
        flow.told = partial.position + size
        flow.partial = None

    def _put_gap(self, side: int, position: int, size: int, reason: str | Broken, in_frame: bool, release: int, mark: Mark) -> None:
        order, number, file, time_ns = mark
        rank = self.rank(side)
        self._cuts.append(
            (release, order, rank, position, side, None, number, file, time_ns, time_ns, None, size, 0, (reason, in_frame), self, order)
        )
        if not in_frame:
            self.flows[side].told = position + max(size, 0)

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
        if hole.size is None:
            self._unknown_hole(side, hole, mark)
            return
        size = hole.size
        flow.missing = size
        self._stop(side, hole.release, mark, f"{size} bytes {_MISSING[hole.reason]}")
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
            flow.position = flow.base = position + size
            flow.searching = True
            flow.scan = flow.position

    def _unknown_hole(self, side: int, hole: Hole, mark: Mark) -> None:
        """A hole of which nobody knows how many bytes it has: what was begun ends here, and frames are looked for behind it."""
        flow = self.flows[side]
        self._stop(side, hole.release, mark, f"bytes {_MISSING[hole.reason]}")
        if flow.partial is not None:
            self._put_partial(side, hole.release, hole.position - flow.partial.position)
        self._put_gap(side, hole.position, UNKNOWN, hole.reason, False, hole.release, mark)
        self._empty_gaps = True
        flow.position = flow.scan = hole.position
        flow.searching = True

    def _stop(self, side: int, release: int, mark: Mark, reason: str) -> None:
        """The bytes at hand are not continued: an unfinished frame becomes `flow.partial` or, without a whole header, skipped bytes."""
        flow = self.flows[side]
        if flow.partial is not None:
            return
        if flow.searching:
            self._search(side, True, release)
            if not flow.searching:
                self._cut(side)
            if flow.partial is not None:
                return
        data = flow.rest()
        if not flow.searching and len(data) >= self.header_size:
            length = self.measure(side, data, 0)
            if length > 0:
                self.broken(side, data)
                first, last = flow.marks(flow.position, flow.position + len(data))
                flow.partial = _Partial(flow.position, length, data, len(data), reason, first, last)
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
        if not flow.starts or flow.broken:
            return
        self._stop(side, release, mark, "0 bytes captured")
        if flow.partial is not None:
            self._put_partial(side, release, flow.position - flow.partial.position)

    def _search(self, side: int, final: bool, release: int) -> None:
        """Look for the next frame at the end of each segment in turn, so that it does not matter how many came at once.

        Where looking costs more than bytes pay, not at the end of every segment.
        """
        flow = self.flows[side]
        effort, starts = flow.effort, flow.starts
        stop = flow.position + flow.have
        place = max(flow.position, flow.scan)
        tried = flow.tried
        count = len(starts)
        for index in range(flow.segment(max(flow.position, tried)), count):
            end = min(starts[index + 1], stop) if index + 1 < count else stop
            last = final and end == stop
            if end <= tried and not last:
                continue
            if end > effort.seen:
                effort.pay(end - max(effort.seen, starts[index]))
                effort.seen = end
            if effort.left <= 0 and not last:
                flow.tried = end
                continue
            data, base = flow.join(), flow.base
            effort.begin(end - place, index + 1 - flow.segment(place))
            found, at = self.resync(side, data, place - base, end - base, last)
            flow.tried = end
            effort.spend(STEP + (end - place >> 6))
            place = base + at
            if found:
                floor = max(flow.releases[index], release if last else 0)
                flow.raise_releases(floor)
                if place > flow.position and flow.skip_from is None:
                    flow.skip_from = flow.position
                flow.searching = False
                flow.consume(place - flow.position)
                self._end_skip(side, floor, flow.mark(flow.segment(flow.position)))
                return
            if last:
                place = end
            elif end - place > SEARCH_WINDOW:
                place = end - SEARCH_WINDOW
        if place > flow.position:
            if flow.skip_from is None:
                flow.skip_from = flow.position
            flow.consume(place - flow.position)
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
            at = flow.position - flow.base
            ends = self.boundaries(side, data, at)
            if ends:
                self._put_frames(side, flow, data, ends, at)
                flow.consume(ends[-1] - at)
                at = ends[-1]
            left = flow.have
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
                rest = flow.rest()
                self.broken(side, rest)
                first, last = flow.marks(flow.position, flow.position + 1)
                reason = f"frame of {length} bytes is over the limit of {self.options.frame_limit} bytes"
                flow.partial = _Partial(flow.position, length, b"", OVERSIZE_KEPT, reason, first, last)
                flow.drop()
                flow.take(self._pass_by(side, flow.partial, rest))
                if flow.have:
                    continue
                return
            if length and length <= left:
                # `boundaries` stopped before a whole frame that is not plain
                self._put_frames(side, flow, data, [at + length], at)
                flow.consume(length)
                continue
            flow.need = length or left + 1
            return

    def _put_frames(self, side: int, flow: _Flow, data: bytes, ends: list[int], at: int) -> None:
        """Attribute the frames data[at:ends[0]], data[ends[0]:ends[1]], ... to the packets that brought them."""
        starts, orders, releases = flow.starts, flow.orders, flow.releases
        numbers, files, times = flow.numbers, flow.files, flow.times
        rank = self.rank(side)
        base = flow.base
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
                        orders[index],
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
                        orders[oldest],
                    )
                )
            at = end
        flow.told = base + at


def records_of(cuts: list[Cut], failed: list[Dissector] | None = None) -> list[Emitted]:
    """The records of frames, in their order, and the exchanges that these make certain; the frames may be of many conversations.

    Called with frames of few packets at a time, as what is made of them is handed on and freed while it is in the processor's cache.
    An exception costs what follows of its conversation; `failed` gets the dissectors to which that happened.
    """
    emitted: list[Emitted] = []
    while cuts:
        left = iter(cuts)
        try:
            _make(left, cuts[0][14].options, emitted)
            break
        except Exception as error:
            what = str(error) if type(error) is Postponed else bug(error)
        at = len(cuts) - length_hint(left) - 1
        cut, dissector = cuts[at], cuts[at][14]
        own = [one for one in cuts[at + 1 :] if one[14] is dissector]
        cuts = [one for one in cuts[at + 1 :] if one[14] is not dissector]
        dissector.fail(what, cut, own)
        dissector.count(-1 - len(own))
        dissector.take_back(emitted, cut)
        if failed is not None:
            failed.append(dissector)
    return emitted


def _make(cuts: Iterator[Cut], options: Options, emitted: list[Emitted]) -> None:
    append = emitted.append
    low = high = 0
    second_text = time = ""
    time_of = None
    detail = options.detail
    for cut in cuts:
        (release, order, rank, position, side, first_number, number, file, first_time, time_ns, data, start, end, damage, dissector,
         began) = cut  # fmt: skip
        if time_ns != time_of:
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
            dissector.release, dissector.began, dissector.spread = release, began, first_number != number
            decoded = dissector.decode(side, data, start, end, damage)
            sender = SENDERS[dissector.client][side]
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
        if detail:
            dissector.details(message, data[start:end], spans)
        if fault is not None:
            dissector.fault(fault)
        one = (release, order, rank, position, message, role, key, first_time)  # type: ignore[assignment]
        append(one)
        if role and dissector.pairer is not None:
            dissector.pairer.take(one, append)
            if size >= LARGE:
                dissector.pairer.large.append((dissector.pairer, one))


def range_of(cut: Cut) -> Range | None:
    """The bytes of a frame, or of a gap that lies in no frame."""
    side, position, data, start, end, damage = cut[4], cut[3], cut[10], cut[11], cut[12], cut[13]
    if data is None:
        return None if damage[1] else (side, position, position + max(start, 0))
    return side, position, position + (end - start if damage is None else damage.size)


def is_broken(cut: Cut) -> bool:
    """Whether an exception came in this place."""
    return cut[10] is None and type(cut[13][0]) is Broken


def count_gap(tallies: Iterable[Tally], gap: Gap, number: int = 1) -> None:
    """Count a gap, or with a `number` of -1 take that back."""
    for tally in tallies:
        tally.gaps += number
        if gap.size is not None and (not gap.in_frame or gap.reason != "skipped"):
            tally.gap_bytes += number * gap.size


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
