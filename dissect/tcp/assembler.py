"""Reassembles both byte streams of one conversation, segment by segment: the exact way, which knows every kind of trouble.

`conversations` takes a shorter way for segments that lie in order and must leave the same state behind; whatever one rule here
looks at (positions, the count of packets, the latest capture time) therefore depends on packets alone, never on batches.

What is believed, where packets contradict each other:

- A conversation begins with a SYN, and ends where a SYN with another number comes; after FIN of both sides, or RST and bytes, with any
  SYN. A SYN-ACK counts where it answers no SYN of the conversation. Without a SYN, the next one between the same ports begins with bytes
  outside of the old one's after FIN of both sides, with bytes more than `NEAR` away after RST, and otherwise with a second segment
  that continues one from nowhere in reach.
- The other side's acknowledgement, and the position of a segment without bytes, show what was sent. What is more than `NEAR` beyond all
  that was seen takes two packets that say so, and more than `FAR` is never believed.
- The first FIN counts, unless bytes behind it were seen before; bytes behind it that come later are dropped. One number at the end
  without a byte is a FIN that was not captured, where the other side has ended or RST came.
- A single byte that is there already, whatever it is, is a keep-alive or a probe.

Positions inside a `ByteStream` count from an arbitrary point of the circle of sequence numbers, so that a byte stream whose
beginning was not captured can still move its start down until its first bytes are released; `origin` is position 0 of the outside.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from dissect.errors import Failure, bug
from dissect.model import Chunk, Options, StreamGap
from dissect.tcp.sequence import FAR, MASK, NEAR

FIN, SYN, RST, ACK = 1, 2, 4, 16

END = 1 << 62
"""The order of the end of the capture: after every packet."""

ACKED_PACKETS = 64
ACKED_TIME_NS = 1_000_000_000
"""How long bytes may still turn up after the other side acknowledged them: real captures show segments right after their
acknowledgement."""

PASSED = 3
"""So many segments captured behind a gap, and after an acknowledgement of what is in it, are enough where no segment of that side was
ever captured behind so many that follow it: as a sender takes three acknowledgements for a loss."""

PIECE_COST = 256
"""The least that a waiting segment counts towards the limits: its bytes are not all that it holds in memory."""

HELD_BACK = 2_048
HELD_BACK_UNACKED = 65_536
"""Released bytes kept to compare with what is sent again: the last ones, and more while the other side has not acknowledged them."""

NOTES_KEPT = 256
"""Notes that may wait for the bytes they belong to; more are only counted."""

UNKNOWN, TENTATIVE, FIXED = 0, 1, 2
"""What is known of where a byte stream begins: nothing; where the next byte will be; and FIXED by a SYN or by bytes released."""

Mark = tuple[int, int, int, int]
"""A packet: (order, number, file, time_ns)."""

Piece = tuple[int, bytes | None, int, int, int, int, int]
"""Waiting bytes: (end, data or None where the snap length cut them, order, number, file, time_ns, clock when they came)."""


FIRST = [0]
"""Where the only segment of a chunk starts, and mostly its file: nothing changes what was handed on, so that all may share it."""

REPEATED_KEPT = 8
"""So many packets of each side that brought nothing new are named."""

REUSED = "ports reused"
"""How a conversation ends that another one takes the ports of."""


class End(NamedTuple):
    """The first FIN or RST of a conversation in capture order: whose, and with which packet."""

    side: int
    how: Literal["FIN", "RST", "refused"]
    order: int
    time_ns: int


class Side(msgspec.Struct, gc=False):
    """What was counted of one side of a conversation; `bytes` and all after it speak of payload as sent, not as captured."""

    packets: int = 0
    bytes: int = 0
    stream: int = 0
    """Bytes of the byte stream so far: released, lost and cut."""
    first: int | None = None
    """The sequence number of its first byte, once that is certain."""
    lost: int = 0
    cut: int = 0
    retransmitted: int = 0
    """Segments with nothing new."""
    repeated: tuple[int, ...] = ()
    """The packets of the first of these."""
    out_of_order: int = 0
    """Segments with something new below what was seen before."""
    conflicts: int = 0
    """Segments that bring other bytes where there are some already."""

    def repeat(self, packet: int) -> None:
        """Count a segment with nothing new."""
        self.retransmitted += 1
        if self.retransmitted <= REPEATED_KEPT:
            self.repeated += (packet,)


class Conversation(msgspec.Struct, eq=False):
    """Both byte streams between two endpoints. Side 0 sent the SYN, or without one the first packet.

    `first` and `last` are the packets from the first to the one that closed it, `latest` counts those that came after it was closed.
    `syn`: side 0 is known to be the client. `open`: not ended by FIN of both sides, RST, or a new SYN. `ended` says how it ended.
    `over`: the sides that said themselves, by FIN or RST, that they send no more, a bit for each; `end` is the first time that one did.
    """

    endpoints: tuple[str, str]
    ports: tuple[int, int]
    first: Mark
    last: Mark
    latest: Mark
    index: int = -1
    syn: bool = False
    sides: tuple[Side, Side] = msgspec.field(default_factory=lambda: (Side(), Side()))
    ended: str = "open"
    open: bool = True
    over: int = 0
    end: End | None = None
    limit_hits: int = 0
    foreign: int | None = None
    """A file whose bytes are not those of the file that it began in."""
    state: Any = None
    """Free for whoever is given the conversation."""

    @property
    def packets(self) -> list[int]:
        return [side.packets for side in self.sides]

    @property
    def bytes(self) -> list[int]:
        return [side.bytes for side in self.sides]

    @property
    def stream_bytes(self) -> list[int]:
        """Bytes of each byte stream: when all is delivered, those of its chunks and gaps."""
        return [side.stream for side in self.sides]

    @property
    def retransmissions(self) -> int:
        return self.sides[0].retransmitted + self.sides[1].retransmitted

    @property
    def out_of_order(self) -> int:
        return self.sides[0].out_of_order + self.sides[1].out_of_order

    @property
    def conflicts(self) -> int:
        return self.sides[0].conflicts + self.sides[1].conflicts

    def how(self, client: int | None) -> str:
        """How it ended and who did that first: "FIN by server", "refused by server", "no answer", "open at end of capture"."""
        if self.end is None:
            silent = self.syn and not self.sides[1].packets and self.open and self.ended != "open"
            return "no answer" if silent else self.ended
        side = self.end.side
        who = self.endpoints[side] if client is None else "client" if side == client else "server"
        how = self.end.how if self.end.how != "refused" or not any(self.stream_bytes) else "RST"
        return f"{how} by {who}{', open at end of capture' if self.open and self.ended != 'open' else ', half open' if self.open else ''}"


class Waiting:
    """Pieces of one byte stream that wait for a gap before them: sorted by position, not overlapping, in order of arrival too."""

    __slots__ = ("begun", "cost", "head", "pieces", "since", "starts")

    def __init__(self, since: int, begun: int) -> None:
        self.since = since
        # `ByteStream.later` before the first of them.
        self.begun = begun
        self.pieces: OrderedDict[int, Piece] = OrderedDict()
        # The starts of the pieces; those before `head` are gone. Taking from the front of a list costs its length.
        self.starts: list[int] = []
        self.head = 0
        self.cost = 0

    def covers(self, position: int) -> bool:
        at = bisect_right(self.starts, position, self.head) - 1
        return at >= self.head and self.pieces[self.starts[at]][0] > position

    def end(self) -> int:
        return self.pieces[self.starts[-1]][0]

    def oldest(self) -> int:
        """When the piece that waits longest came."""
        return next(iter(self.pieces.values()))[6]

    def put(self, start: int, end: int, data: bytes | None, mark: Mark, clock: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Insert what is new of [start, end); returns how many bytes are, the first of them, and conflicts as (position, bytes).

        Bytes win over a piece that the snap length cut; otherwise the first do.
        """
        starts, pieces = self.starts, self.pieces
        new, lowest = 0, end
        conflicts: list[tuple[int, int]] = []
        index = bisect_right(starts, start, self.head) - 1
        if index < self.head or pieces[starts[index]][0] <= start:
            index += 1
        at = start
        while at < end:
            if index == len(starts) or starts[index] >= end:
                self._insert(index, at, end, None if data is None else data[at - start : end - start], mark, clock)
                new += end - at
                lowest = min(lowest, at)
                break
            first = starts[index]
            if at < first:
                self._insert(index, at, first, None if data is None else data[at - start : first - start], mark, clock)
                new += first - at
                lowest = min(lowest, at)
                at = first
                index += 1
                continue
            piece = pieces[first]
            stop = min(piece[0], end)
            if data is not None:
                mine = data[at - start : stop - start]
                if piece[1] is None:
                    index = self._fill(index, first, piece, at, stop, mine, mark, clock)
                    new += stop - at
                    lowest = min(lowest, at)
                else:
                    kept = piece[1][at - first : stop - first]
                    if kept != mine:
                        conflicts.append(_difference(at, kept, mine))
            at = stop
            index += 1
        return new, lowest, conflicts

    def pop(self) -> Piece:
        """Take the first piece."""
        piece = self.pieces.pop(self.starts[self.head])
        self.head += 1
        if self.head > 512 and self.head * 2 > len(self.starts):
            del self.starts[: self.head]
            self.head = 0
        self.cost -= cost(piece[1])
        return piece

    def _insert(self, index: int, start: int, end: int, data: bytes | None, mark: Mark, clock: int) -> None:
        self.starts.insert(index, start)
        self.pieces[start] = (end, data, *mark, clock)
        self.cost += cost(data)

    def _fill(self, index: int, first: int, piece: Piece, at: int, stop: int, data: bytes, mark: Mark, clock: int) -> int:
        """Put bytes into a piece that was cut; returns the index of what they became."""
        del self.starts[index]
        del self.pieces[first]
        self.cost -= cost(None)
        last, _, order, number, file, time_ns, came = piece
        old = order, number, file, time_ns
        if first < at:
            self._insert(index, first, at, None, old, came)
            index += 1
        self._insert(index, at, stop, data, mark, clock)
        if stop < last:
            self._insert(index + 1, stop, last, None, old, came)
        return index


def cost(data: bytes | None) -> int:
    """What a waiting piece counts towards the limits."""
    return PIECE_COST if data is None else max(len(data), PIECE_COST)


class Pool:
    """The limits, and what waits over all conversations."""

    MADE_OF = ("options",)
    DERIVED = ("limit", "total_limit", "time_limit")

    def __init__(self, options: Options) -> None:
        self.limit = options.waiting_limit
        self.total_limit = options.waiting_total
        self.time_limit = options.waiting_time_ns
        self.total = 0
        self.count = 0
        # (order of the packet that began the wait, side, number for a total order, the byte stream, its assembler)
        self._queue: list[tuple[int, int, int, ByteStream, Assembler]] = []
        self._tickets = 0

    def begin(self, stream: ByteStream, assembler: Assembler, since: int) -> None:
        """A byte stream begins to wait."""
        self.count += 1
        if len(self._queue) > 2 * self.count + 1024:
            self._queue = [entry for entry in self._queue if _waits(entry)]
            heapify(self._queue)
        self._tickets += 1
        heappush(self._queue, (since, stream.side, self._tickets, stream, assembler))

    def relieve(self, order: int) -> list[Assembler]:
        """Release what has waited longest until the total is within its limit; returns whose it was."""
        touched = []
        while self.total > self.total_limit and self._queue:
            entry = self._queue[0]
            if not _waits(entry):
                heappop(self._queue)
                continue
            *_, stream, assembler = entry
            try:
                assembler.give_up(stream, order)
                assembler.conversation.limit_hits += 1
                assembler.check_closed(order)
            except Exception as error:
                assembler.fail(bug(error), order, assembler.conversation.last)
            touched.append(assembler)
        return touched


def _waits(entry: tuple[int, int, int, ByteStream, Assembler]) -> bool:
    waiting = entry[3].waiting
    return waiting is not None and waiting.since == entry[0]


class ByteStream:
    """What one side sends: what of it was released, what waits, and what is known of the rest."""

    __slots__ = (
        "acked",
        "base",
        "certain",
        "count",
        "doubt",
        "fin",
        "hasty",
        "hint",
        "items",
        "known",
        "later",
        "next",
        "notes",
        "origin",
        "pending",
        "reach",
        "recent",
        "run",
        "sent",
        "side",
        "stray",
        "syn",
        "waiting",
    )

    def __init__(self, side: int, count: Side) -> None:
        self.side = side
        self.count = count
        self.known = UNKNOWN
        # The sequence number at position 0 of the inside, and the SYN's own.
        self.base = 0
        self.syn: int | None = None
        # The first acknowledgement of this side, seen before anything else told where it begins.
        self.hint: int | None = None
        # Positions: of the next byte to release, the outside's 0, the highest seen in its own segments, the highest acknowledged,
        # the highest acknowledged so long ago that what is missing below it is lost, and of the FIN.
        self.next = 0
        self.origin = 0
        self.sent = 0
        self.acked = 0
        self.certain = 0
        self.fin: int | None = None
        # Acknowledgements of missing bytes that are not old enough: (position, packets, clock, `later`)
        self.pending: deque[tuple[int, int, int, int]] | None = None
        # Segments that came behind gaps; behind how many of them a late one came at most; and the gap given up last for as few.
        self.later = 0
        self.reach = 0
        self.hasty: tuple[int, int] | None = None
        # An implausible position that a second packet may confirm; the sequence number that would continue a stray segment.
        self.doubt: int | None = None
        self.stray: int | None = None
        self.waiting: Waiting | None = None
        # The last bytes released, ending at `next` once `flush` was called.
        self.recent = b""
        # (position, order of arrival, what, value, value)
        self.notes: list[tuple[int, int, str, int, int]] | None = None
        # Bytes released but not yet joined: (data, order, release, number, file, time_ns)
        self.run: list[tuple[bytes, int, int, int, int, int]] | None = None
        # Chunks and gaps that were released and not yet handed on. (None where there are none: most conversations are at rest.)
        self.items: list[Any] | None = None

    @property
    def top(self) -> int:
        """The highest position seen or acknowledged."""
        return max(self.sent, self.acked) if self.fin is None else self.fin

    def start(self, base: int, known: int) -> None:
        """The next byte is that with sequence number `base`."""
        self.base = base
        self.known = known
        self.next = self.origin = self.sent = self.acked = self.certain = 0
        self.pending = self.doubt = None

    def shift(self, position: int) -> None:
        """Nothing is released yet, and the byte stream begins at `position` after all."""
        self.acked = max(self.acked, position) if self.acked > self.next else position
        self.certain = max(self.certain, position) if self.certain > self.next else position
        self.next = self.origin = position
        self.sent = max(self.sent, position)

    def emit(self, data: bytes, order: int, release: int, number: int, file: int, time_ns: int) -> None:
        """Release the next bytes."""
        if self.known < FIXED:
            self.known = FIXED
            self.origin = self.next
        if self.run is None:
            self.run = [(data, order, release, number, file, time_ns)]
        else:
            self.run.append((data, order, release, number, file, time_ns))
        self.next += len(data)

    def put(self, item: Any) -> None:
        """Have this handed on."""
        if self.items is None:
            self.items = [item]
        else:
            self.items.append(item)

    def gap(self, end: int, reason: Literal["lost", "cut"], release: int, mark: Mark) -> None:
        """Release a gap up to `end`."""
        if self.known < FIXED:
            self.known = FIXED
            self.origin = self.next
        self.flush()
        size = end - self.next
        self.put(StreamGap(self.side, self.next - self.origin, size, reason, release, *mark))
        if reason == "lost":
            self.count.lost += size
        else:
            self.count.cut += size
        self.next = end
        self.recent = b""

    def flush(self) -> None:
        """Join the bytes released so far to a chunk."""
        run = self.run
        if not run:
            return
        orders: list[int]
        releases: list[int]
        if len(run) == 1:
            data, order, release, number, file, time_ns = run[0]
            starts, orders, numbers, files, times = FIRST, [order], [number], [file] if file else FIRST, [time_ns]
            releases = orders if release == order else [release]
        else:
            parts, orders, releases, numbers, files, times = map(list, zip(*run, strict=True))
            starts = list(accumulate(map(len, parts), initial=0))
            starts.pop()
            data = b"".join(parts)
            if releases == orders:
                releases = orders
        start = self.next - len(data)
        notes, left = self.parted_notes(start, self.next) if self.notes else ((), self.notes)
        recent = self.latest(data, self.keep(self.next, self.acked))
        self.put(Chunk(self.side, start - self.origin, data, starts, orders, releases, numbers, files, times, notes))
        self.recent, self.notes = recent, left
        self.run = None

    def flush_singly(self) -> tuple[str, int, Mark] | None:
        """Join the bytes released so far piece by piece, as an exception came when it was done at once: the one that raises it, if any
        does, as what it is, when, and with which packet. Those behind it are lost."""
        run, end = self.run or [], self.next
        self.next -= sum(len(piece[0]) for piece in run)
        for piece in run:
            self.run = [piece]
            self.next += len(piece[0])
            try:
                self.flush()
            except Exception as error:
                self.run, self.next = None, end
                return bug(error), piece[2], (piece[1], *piece[3:])
        return None

    @staticmethod
    def keep(end: int, acked: int) -> int:
        """How many of the bytes released last are kept."""
        return end - max(end - HELD_BACK_UNACKED, min(acked, end) - HELD_BACK)

    def latest(self, data: bytes, keep: int) -> bytes:
        """The end of what was released before and this."""
        return data[-keep:] if len(data) >= keep else (self.recent + data)[-keep:]

    def parted_notes(self, start: int, end: int) -> tuple[tuple[tuple[int, str], ...], list[tuple[int, int, str, int, int]] | None]:
        """The notes for a chunk that reaches from `start` to `end`, and those that are left; those on a gap before it move to its first
        byte."""
        assert self.notes is not None
        taken = [note for note in self.notes if note[0] < end]
        left = self.notes[len(taken) :] or None
        origin = self.origin
        notes = []
        for at, _, what, one, two in taken:
            if what == "conflict":
                text = f"{two} bytes sent again differ, the first at position {one - origin}; those that came first were kept"
            else:
                text = f"{one} bytes from before the first byte released came late and were dropped"
            notes.append((max(at, start) - origin, text))
        return tuple(notes), left

    def note(self, position: int, arrival: int, what: str, one: int, two: int) -> None:
        """Leave a note on the byte at `position`, or on the next one if that was released already."""
        if self.notes is None:
            self.notes = []
        elif len(self.notes) >= NOTES_KEPT:
            # Those on released bytes leave with them: how many wait must not depend on when that is done.
            self.flush()
            if self.notes is None:
                self.notes = []
        if len(self.notes) < NOTES_KEPT:
            insort(self.notes, (max(position, self.next), arrival, what, one, two))

    def holds(self, position: int) -> bool:
        return position < self.next or (self.waiting is not None and self.waiting.covers(position))


def _difference(at: int, one: bytes, two: bytes) -> tuple[int, int]:
    """Where two pieces of equal length that begin at position `at` first differ, and in how many bytes."""
    places = np.flatnonzero(np.frombuffer(one, np.uint8) != np.frombuffer(two, np.uint8))
    return at + int(places[0]), len(places)


class Assembler:
    """Both byte streams of one conversation."""

    __slots__ = ("clock", "closed", "conversation", "failure", "flip", "packets", "pool", "reset", "streams", "told")

    def __init__(self, conversation: Conversation, flip: int, pool: Pool) -> None:
        self.conversation = conversation
        # A segment's side is its `reverse` column xor this.
        self.flip = flip
        self.pool = pool
        self.streams = (ByteStream(0, conversation.sides[0]), ByteStream(1, conversation.sides[1]))
        self.packets = 0
        # The latest capture time: packets may be out of order in time, waiting must not become shorter again.
        self.clock = conversation.first[3]
        self.closed: int | None = None
        self.reset = False
        # Its end has been delivered.
        self.told = False
        # What an exception was that came, until it is delivered.
        self.failure: Failure | None = None

    def takes(self, side: int, seq: int, ack: int, flags: int, wire: int) -> bool:
        """Whether a segment belongs to this conversation; otherwise it is the first one captured of another between the same ports."""
        if flags & SYN:
            return self._takes_syn(side, seq, ack, flags)
        if flags & RST or not wire:
            return True
        own = self.streams[side]
        if own.known == UNKNOWN:
            # The other side has ended and nothing of this one was captured: its last bytes, or another conversation's. Say the former.
            return True
        offset = ((seq - own.base - own.next + 0x8000_0000) & MASK) - 0x8000_0000
        if self.closed is not None:
            # Other bytes are none of this one's: the SYN of a conversation that reuses the ports was lost. A keep-alive may be one
            # number outside.
            return own.origin - own.next - 1 <= offset and offset + wire <= (wire == 1)
        if self.reset:
            return -NEAR <= offset <= NEAR
        if -NEAR <= offset <= FAR:
            return True
        # One stray segment proves nothing; a second that continues it does.
        if own.stray == seq:
            return False
        own.stray = (seq + wire) & MASK
        return True

    def _takes_syn(self, side: int, seq: int, ack: int, flags: int) -> bool:
        own, other = self.streams[side], self.streams[1 - side]
        if not flags & ACK:
            if self.closed is not None:
                return False
            if own.syn is not None:
                # Some systems try again with the same number after a refusal.
                return seq == own.syn and not (self.reset and own.next > own.origin)
            first = (seq + 1) & MASK
            if own.known:
                return (own.base + own.origin) & MASK == first
            if own.hint is not None:
                return own.hint == first
            return other.next == other.origin
        if own.syn == seq:
            return True
        if self.closed is not None:
            return False
        if other.known:
            if (other.base + other.origin) & MASK == ack:
                return True
            # An answer to an earlier SYN, while this one's is still to come, is a late one.
            return own.syn is None and other.syn is not None
        if own.known:
            return (own.base + own.origin) & MASK == (seq + 1) & MASK
        return True

    def step(
        self,
        order: int,
        time_ns: int,
        number: int,
        file: int,
        side: int,
        seq: int,
        ack: int,
        flags: int,
        offset: int,
        length: int,
        wire: int,
        buffer: bytes,
    ) -> None:
        """Take one segment that belongs to this conversation."""
        # Long, as every segment that is not taken by column comes here: each call would be one more for all of them
        own, other = self.streams[side], self.streams[1 - side]
        count = own.count
        count.packets += 1
        count.bytes += wire
        self.packets += 1
        mark = (order, number, file, time_ns) if self.packets > 1 else self.conversation.first
        self.conversation.latest = mark
        if self.closed is not None:
            return
        self.conversation.last = mark
        if time_ns > self.clock:
            self.clock = time_ns
        if other.pending:
            self._expire(other)
        if own.pending:
            self._expire(own)
        if flags & SYN:
            if not self._synchronise(own, other, seq, ack, flags):
                return
            seq = (seq + 1) & MASK
        elif flags & ACK:
            self._acknowledge(other, own, seq, ack)
        if flags & RST:
            self._reset(own, seq, mark)
        else:
            if not own.known:
                own.start(seq, TENTATIVE)
            at = own.next + ((seq - own.base - own.next + 0x8000_0000) & MASK) - 0x8000_0000
            if not wire:
                if not flags & (SYN | FIN):
                    self._witness(own, at)
            elif at == own.next and wire == length and own.waiting is None and own.fin is None and own.known == FIXED:
                if own.sent > at:
                    count.out_of_order += 1
                own.emit(buffer[offset : offset + length], order, order, number, file, time_ns)
                if own.next > own.sent:
                    own.sent = own.next
            else:
                conflicts = count.conflicts
                fits = self._bring(own, at, buffer[offset : offset + length], wire, mark, bool(flags & FIN))
                if file != self.conversation.first[2] and (not fits or count.conflicts > conflicts):
                    self.conversation.foreign = file
            if flags & FIN and own.fin is None:
                self._end(own, own.next + ((seq + wire - own.base - own.next + 0x8000_0000) & MASK) - 0x8000_0000, mark)
        if own.waiting is not None:
            self._settle(own, order)
        if other.waiting is not None:
            self._settle(other, order)
        if own.fin is not None and other.fin is not None:
            self.check_closed(order)

    def give_up(self, stream: ByteStream, release: int) -> None:
        """Release the first gap, and what waited for it."""
        waiting = stream.waiting
        assert waiting is not None
        first = waiting.starts[waiting.head]
        stream.gap(first, "lost", release, waiting.pieces[first][2:6])
        self._drain(stream, release)

    def check_closed(self, release: int) -> None:
        """Close when both sides' FIN have been reached."""
        one, two = self.streams
        if one.next == one.fin and two.next == two.fin and self.closed is None:
            self.closed = release
            self.conversation.ended = "FIN"
            self.conversation.open = False

    def finish(self, release: int) -> None:
        """Release everything, with gaps between and behind: no more segments will come."""
        conversation = self.conversation
        for stream, other in (self.streams, self.streams[::-1]):
            while stream.waiting is not None:
                self.give_up(stream, release)
            top = stream.top
            if self._is_no_byte(stream, other, stream.next):
                top = stream.next
            if top > stream.next:
                stream.gap(top, "lost", release, conversation.last)
        self._end_at(release)

    def _is_no_byte(self, stream: ByteStream, other: ByteStream, end: int) -> bool:
        """Whether what was acknowledged behind `end` is one number without a byte: a FIN that was not captured, or a keep-alive before the
        first byte."""
        return stream.top - end == 1 and stream.fin is None and (other.fin is not None or self.reset or stream.known == TENTATIVE)

    def _end_at(self, release: int) -> None:
        """No more segments will come."""
        conversation = self.conversation
        self.closed = release
        if conversation.open:
            ended = [conversation.endpoints[stream.side] for stream in self.streams if stream.fin is not None]
            if len(ended) == 2:
                conversation.ended = "FIN"
                conversation.open = False
            elif release != END:
                conversation.ended = REUSED
                conversation.open = False
            elif ended:
                conversation.ended = f"FIN by {ended[0]}, open at end of capture"
            else:
                conversation.ended = "open at end of capture"

    def collect(self) -> list[Any]:
        """What was released since the last call."""
        items: list[Any] = []
        for stream in self.streams:
            if stream.run:
                stream.flush()
        for stream in self.streams:
            if stream.items:
                items += stream.items
                stream.items = None
            stream.count.stream = stream.next - stream.origin
            if stream.known:
                stream.count.first = (stream.base + stream.origin) & MASK
            if self.closed is not None:
                stream.recent = b""
                stream.notes = None
        return items

    def fail(self, what: str, release: int, mark: Mark) -> None:
        """An exception came with a packet: from here on segments are only counted. What was released before counts."""
        for stream in self.streams:
            if stream.waiting is not None:
                self.pool.total -= stream.waiting.cost
                self.pool.count -= 1
                stream.waiting = None
            stream.sent = max(stream.sent, stream.next)
            stream.pending = stream.notes = None
        if type(self) is not Counting or (self.failure is not None and release < self.failure.release):
            self.failure = Failure(what, release, mark[1], mark[2])
        self.__class__ = Counting

    def _synchronise(self, own: ByteStream, other: ByteStream, seq: int, ack: int, flags: int) -> bool:
        """Take a SYN; False for one that answers something else."""
        first = (seq + 1) & MASK
        fresh = own.next == own.origin and other.next == other.origin
        if flags & ACK:
            if not other.known:
                other.start(ack, FIXED)
            elif (other.base + other.origin) & MASK != ack:
                return False
            other.known = FIXED
        if own.known and (own.base + own.origin) & MASK != first:
            if own.next != own.origin or own.waiting is not None:
                return False
            # Another answer to the same SYN: a server that keeps no state until the handshake is done.
            own.known = UNKNOWN
        if not own.known:
            own.start(first, FIXED)
        own.known = FIXED
        own.syn = seq
        if fresh and own.side == (1 if flags & ACK else 0):
            self.conversation.syn = True
        return True

    def _acknowledge(self, stream: ByteStream, acker: ByteStream, seq: int, ack: int) -> None:
        """The other side says what it has of `stream`."""
        if not stream.known:
            if stream.hint is None:
                if acker.syn is not None and acker.next == acker.origin and (acker.base + acker.origin) & MASK == seq:
                    # The end of a handshake whose second packet is missing.
                    stream.start(ack, TENTATIVE)
                stream.hint = ack
            return
        at = stream.next + ((ack - stream.base - stream.next + 0x8000_0000) & MASK) - 0x8000_0000
        if at <= stream.acked:
            return
        if at > stream.next:
            if stream.fin is not None and at > stream.fin:
                if at != stream.fin + 1:
                    return
                at = stream.fin
            if stream.known == TENTATIVE and at == stream.next + 1 and stream.waiting is None:
                stream.shift(at)
                return
            if not _plausible(stream, at):
                return
            if at > max(stream.next, stream.certain):
                if stream.pending is None:
                    stream.pending = deque()
                stream.pending.append((at, self.packets, self.clock, stream.later))
        stream.acked = max(at, stream.acked)

    def _expire(self, stream: ByteStream) -> None:
        """Make certain what was acknowledged long enough ago."""
        pending = stream.pending
        assert pending is not None
        packets, clock = self.packets - ACKED_PACKETS, self.clock - ACKED_TIME_NS
        while pending:
            position, came, when, _ = pending[0]
            if came <= packets or when <= clock:
                stream.certain = max(stream.certain, position)
            elif position > stream.next:
                return
            pending.popleft()

    def _reset(self, own: ByteStream, seq: int, mark: Mark) -> None:
        if own.known:
            self._witness(own, own.next + ((seq - own.base - own.next + 0x8000_0000) & MASK) - 0x8000_0000)
        self.conversation.over |= 1 << own.side
        if not self.reset:
            self.reset = True
            self.conversation.ended = f"RST by {self.conversation.endpoints[own.side]}"
            self.conversation.open = False
        self._note_end(own, "RST", mark)

    def _note_end(self, own: ByteStream, how: Literal["FIN", "RST"], mark: Mark) -> None:
        """Note who was the first to end it."""
        if self.conversation.end is None:
            other = self.streams[1 - own.side]
            refused = how == "RST" and own.syn is None and other.syn is not None and own.count.packets == 1 and not other.count.bytes
            self.conversation.end = End(own.side, "refused" if refused else how, mark[0], mark[3])

    def _witness(self, own: ByteStream, at: int) -> None:
        """A segment without bytes shows that those before `at` were sent."""
        if at <= own.sent or own.fin is not None:
            return
        if own.known == TENTATIVE and at == own.next + 1 and own.waiting is None:
            own.shift(at)
        elif _plausible(own, at):
            own.sent = at

    def _end(self, own: ByteStream, end: int, mark: Mark) -> None:
        """Take the position of a FIN, unless it contradicts what was seen."""
        if end < own.sent or not _plausible(own, end):
            return
        if own.known == TENTATIVE and end == own.next + 1 and own.waiting is None:
            own.shift(end)
        own.fin = own.sent = end
        self.conversation.over |= 1 << own.side
        self._note_end(own, "FIN", mark)
        own.acked = min(own.acked, end)
        own.certain = min(own.certain, end)
        if own.pending:
            own.pending = deque((min(one[0], end), *one[1:]) for one in own.pending)

    def _bring(self, own: ByteStream, at: int, data: bytes, wire: int, mark: Mark, fin: bool) -> bool:
        """Take the bytes of a segment that is not simply the next one; returns whether all of them can belong to the byte stream."""
        count = own.count
        if own.known < FIXED:
            at = self._begin(own, at)
        end = at + wire
        if wire == 1 and not fin and (own.holds(at) or (end == own.top and end <= own.certain)):
            # Its byte may be anything. In the second case the true one was acknowledged but never captured.
            return True
        if not -NEAR <= at - own.next <= FAR:
            return False
        fits = own.fin is None or end <= own.fin
        if own.fin is not None and end > own.fin:
            wire = own.fin - at
            if wire <= 0:
                return False
            data, end = data[:wire], own.fin
        before = own.sent
        if end > before:
            own.sent = end
        if at < own.next:
            if end <= own.acked or (own.hasty is not None and at < own.hasty[1] and end > own.hasty[0]):
                # Nobody sends what the other side has: it was captured late
                own.reach = PASSED
            if at < own.origin:
                own.note(own.next, mark[0], "early", min(end, own.origin) - at, 0)
                if end <= own.origin:
                    return fits
            self._compare(own, at, data, mark[0])
            if end <= own.next:
                count.repeat(mark[1])
                return fits
            cut = own.next - at
            at, data, wire = own.next, data[cut:], wire - cut
        elif at > own.next and own.waiting is None:
            own.waiting = Waiting(mark[0], own.later)
            self.pool.begin(own, self, mark[0])
        if own.waiting is None:
            if at < before:
                count.out_of_order += 1
            if data:
                own.emit(data, mark[0], mark[0], mark[1], mark[2], mark[3])
            if len(data) < wire:
                own.gap(end, "cut", mark[0], mark)
            return fits
        self._wait(own, own.waiting, at, data, end, mark, before)
        return fits

    def _begin(self, own: ByteStream, at: int) -> int:
        """Settle where a byte stream without a SYN begins, as far as its first bytes tell; returns their position."""
        ahead = at - own.next
        if own.waiting is None and not -NEAR <= ahead <= NEAR:
            # What told the start was no part of this.
            own.start((own.base + at) & MASK, TENTATIVE)
            return own.next
        if ahead < 0 or (ahead == 1 and own.waiting is None):
            # One ahead: what told the start was a keep-alive.
            own.shift(at)
        return at

    def _wait(self, own: ByteStream, waiting: Waiting, at: int, data: bytes, end: int, mark: Mark, before: int) -> None:
        """Put bytes among those that wait, and release what has become the next."""
        count = own.count
        held, behind = waiting.cost, len(waiting.pieces)
        lowest = end
        new = 0
        conflicts: list[tuple[int, int]] = []
        known = at + len(data)
        try:
            if data:
                new, lowest, conflicts = waiting.put(at, known, data, mark, self.clock)
            if known < end:
                more, first, _ = waiting.put(known, end, None, mark, self.clock)
                new += more
                lowest = min(lowest, first)
        finally:
            self.pool.total += waiting.cost - held
        if not new:
            count.repeat(mark[1])
        else:
            if lowest < before:
                count.out_of_order += 1
                own.reach = max(own.reach, behind)
            if end > before:
                own.later += 1
        if conflicts:
            count.conflicts += 1
            for position, places in conflicts:
                own.note(position, mark[0], "conflict", position, places)
        self._drain(own, mark[0])

    def _compare(self, own: ByteStream, at: int, data: bytes, order: int) -> None:
        """Note where bytes that were released already are sent again and differ."""
        own.flush()
        low = max(own.next - HELD_BACK_UNACKED, min(own.acked, own.next) - HELD_BACK, own.next - len(own.recent))
        start, end = max(at, low), min(at + len(data), own.next)
        if start >= end:
            return
        base = own.next - len(own.recent)
        kept, again = own.recent[start - base : end - base], data[start - at : end - at]
        if kept != again:
            own.count.conflicts += 1
            position, places = _difference(start, kept, again)
            own.note(position, order, "conflict", position, places)

    def _drain(self, stream: ByteStream, release: int) -> None:
        """Release the pieces that follow each other from the next position on."""
        waiting = stream.waiting
        assert waiting is not None
        starts, position = waiting.starts, stream.next
        while waiting.head < len(starts) and starts[waiting.head] == stream.next:
            piece = waiting.pop()
            end, data, order, number, file, time_ns, _ = piece
            self.pool.total -= cost(data)
            if data is None:
                stream.gap(end, "cut", release, (order, number, file, time_ns))
            else:
                stream.emit(data, order, release, number, file, time_ns)
        if waiting.head == len(starts):
            stream.waiting = None
            self.pool.count -= 1
        elif stream.next > position:
            # Of those that wait nobody knows which came behind the next gap
            waiting.begun = stream.later

    def _settle(self, stream: ByteStream, release: int) -> None:
        """Release what need not or must not wait longer."""
        pool = self.pool
        while (waiting := stream.waiting) is not None:
            if waiting.cost > pool.limit or self.clock - waiting.oldest() >= pool.time_limit:
                self.conversation.limit_hits += 1
            elif stream.certain < waiting.starts[waiting.head]:
                if not self._is_passed(stream, waiting):
                    return
                stream.hasty = stream.next, waiting.starts[waiting.head]
            self.give_up(stream, release)

    def _is_passed(self, stream: ByteStream, waiting: Waiting) -> bool:
        """Whether the bytes missing before those that wait are certainly lost, as the other side has them and few are captured late."""
        if stream.later - waiting.begun < PASSED or stream.reach >= PASSED or not stream.pending:
            return False
        end = waiting.starts[waiting.head]
        came = next((later for position, _, _, later in stream.pending if position >= end), None)
        return came is not None and stream.later - max(came, waiting.begun) >= PASSED


class Counting(Assembler):
    """A conversation after an exception: its bytes are not put together any more, it is only known how far its byte streams reach."""

    __slots__ = ()

    def takes(self, side: int, seq: int, ack: int, flags: int, wire: int) -> bool:
        return flags & (SYN | ACK) != SYN or (self.closed is None and self.streams[side].syn == seq)

    def step(
        self,
        order: int,
        time_ns: int,
        number: int,
        file: int,
        side: int,
        seq: int,
        ack: int,
        flags: int,
        offset: int,
        length: int,
        wire: int,
        buffer: bytes,
    ) -> None:
        count, mark = self.streams[side].count, (order, number, file, time_ns)
        if self.conversation.latest != mark:
            # else it was counted before the exception came
            count.packets += 1
            count.bytes += wire
            self.packets += 1
        self.conversation.latest = mark
        if self.closed is not None:
            return
        self.conversation.last = mark
        self.clock = max(self.clock, time_ns)
        self._reach(side, seq, ack, flags, wire)
        if flags & RST or self.streams[side].fin is not None:
            self._note_end(self.streams[side], "RST" if flags & RST else "FIN", mark)
        if flags & RST and not self.reset:
            self.reset = True
            self.conversation.ended = f"RST by {self.conversation.endpoints[side]}"
            self.conversation.open = False
        one, two = self.streams
        if one.fin is not None and two.fin is not None:
            self._end_at(order)

    def finish(self, release: int) -> None:
        self._end_at(release)

    def collect(self) -> list[Any]:
        items = super().collect()
        for stream, other in (self.streams, self.streams[::-1]):
            end = stream.sent if self._is_no_byte(stream, other, stream.sent) else max(stream.top, stream.next)
            stream.count.stream = end - stream.origin
        return items

    def _reach(self, side: int, seq: int, ack: int, flags: int, wire: int) -> None:
        own, other = self.streams[side], self.streams[1 - side]
        if flags & SYN:
            seq = (seq + 1) & MASK
        if not own.known:
            own.start(seq, FIXED)
            own.syn = (seq - 1) & MASK if flags & SYN else None
        end = _position(own, seq + wire)
        if _plausible(own, end):
            own.sent = max(own.sent, end)
            if flags & FIN and own.fin is None and end == own.sent:
                own.fin = end
        if flags & ACK and other.known:
            end = _position(other, ack)
            if _plausible(other, end):
                other.acked = max(other.acked, end)


def _position(stream: ByteStream, seq: int) -> int:
    """The position of a sequence number, seen from where the byte stream ends so far."""
    return stream.top + ((seq - stream.base - stream.top + 0x8000_0000) & MASK) - 0x8000_0000


def _plausible(stream: ByteStream, position: int) -> bool:
    """Whether the byte stream may reach `position`: what is far ahead of all that was seen takes two packets that say so."""
    ahead = position - stream.top
    if ahead <= NEAR:
        return True
    if ahead > FAR:
        return False
    if stream.doubt is not None and 0 <= position - stream.doubt <= NEAR:
        stream.doubt = None
        return True
    stream.doubt = position
    return False
