"""Reassembles both byte streams of one conversation, segment by segment.

Rules for packets that contradict each other:

- A conversation starts with a SYN. It ends at a SYN with another sequence number or, after FIN of both sides or after RST and bytes, at
  any SYN. A SYN-ACK that answers no SYN of the conversation counts too. Without a SYN, the next conversation between the same ports
  starts with bytes outside the old byte stream (after FIN of both sides), with bytes more than `NEAR` away (after RST), or else with the
  second of two consecutive segments far from everything seen, neither of them late from the previous conversation.
- Without a SYN, a byte stream begins with the first byte captured, or where the other side's first acknowledgement before it ends: the
  bytes between them were sent, and are missing.
- Acknowledgements of the other side and the positions of empty segments show what was sent. A position more than `NEAR` beyond
  everything seen needs two packets; one more than `FAR` beyond is never accepted.
- The first FIN counts, unless bytes behind it were seen before; later bytes behind it are dropped. One number at the end without a byte
  is a FIN that was not captured, if the other side has ended or RST came.
- A single byte at a position already received is a keep-alive or a window probe, whatever its value; so is the last one of a segment that
  waits for its acknowledgement.
- A segment with a wrong checksum waits for its acknowledgement if its sender's other checksums are right, as the receiver drops it.
- Bytes that a length claims beyond the end of the frame do not exist, unless the sender's next segment starts, or an acknowledgement
  ends, directly behind them: then the capture shortened both lengths.
- The sequence number of a RST belongs to no byte. A RST outside the receive window is ignored, as the receiver does; so is one after
  which its receiver, or its apparent sender, acknowledges bytes that were sent later.

Positions inside a `ByteStream` count from an arbitrary sequence number, so that a byte stream whose start was not captured can still
move its start down until its first bytes are released; `origin` is the internal position of the public position 0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from ..model import CLAIMS, END, UNTIMED, Close, Mark, Options, Segment, SideData, StreamGap
from .checksum import is_checkable, is_right
from .sequence import FAR, MASK, NEAR, distance
from .signs import LATE_NS, MAX_PACKETS, MAX_RESETS, NOTICED_NS, QUIET_NS, SENT_OFTEN, LateData, Reset, SentAgain, Silence

FIN, SYN, RST, ACK = 1, 2, 4, 16
_ANY = FIN | SYN | RST | ACK | UNTIMED

ACKED_PACKETS = 64
ACKED_TIME_NS = 1_000_000_000
"""Time within which bytes may arrive after their acknowledgement: real captures show segments directly after it."""

PASSED_SEGMENTS = 3
"""Segments captured behind a gap, after an acknowledgement of its bytes, that make it lost, unless a segment of that side was once
captured this late: senders treat three duplicate acknowledgements as a loss."""

PIECE_COST = 256
"""The minimum that a waiting segment counts towards the limits: its objects occupy memory too."""

RECENT_BYTES = 2_048
RECENT_UNACKED = 65_536
"""Released bytes kept for comparison with retransmissions: the last ones, and more until the other side acknowledges them."""

IN_WINDOW = 65_536
"""A RST further than this from the next byte is outside the window: captures do not lose that many bytes."""

OFFLOADED = 3
"""Acknowledged segments with wrong checksums, or wrong ones if fewer are right, that show that the sender offloads checksums."""

MAX_DAMAGED = 8
"""Segments with wrong checksums held back per side."""

MAX_TTLS = 8
"""Different TTLs remembered per side."""

MAX_NOTES = 256
"""Notes waiting for their bytes; further ones are dropped."""

UNKNOWN, TENTATIVE, FIXED = 0, 1, 2
"""What is known about the start of a byte stream: nothing; the position of the next byte; FIXED by a SYN or by released bytes."""

Items = list[SideData | StreamGap]

Piece = tuple[int, bytes | None, Mark, int]
"""Waiting bytes: (end, data or None if the snap length cut them, packet, clock on arrival)."""

MAX_REPEATED = 8
"""Packets without new bytes listed per side."""

REUSED = "ports reused"
"""How a conversation ends when another one uses its ports."""


class End(NamedTuple):
    """The first FIN or RST of a conversation in capture order, with its sender and packet."""

    side: int
    how: Literal["FIN", "RST", "refused"]
    order: int
    time_ns: int
    reset: Reset | None = None
    """The RST."""

    @property
    def injected(self) -> bool:
        """Whether it is a RST that neither endpoint sent."""
        return self.reset is not None and self.reset.injected

    answers: bool = False
    """Whether it acknowledges a FIN of the other side that was not captured."""


class SideCounts:
    """Counters of one side of a conversation; `bytes` and all after it count payload as sent, not as captured."""

    __slots__ = (
        "bytes",
        "conflicts",
        "cut",
        "damaged",
        "earlier",
        "first",
        "lost",
        "out_of_order",
        "packets",
        "repeated",
        "retransmitted",
        "stream",
    )

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0
        self.stream = 0
        """Length of the byte stream so far: released, lost and cut."""
        self.first: int | None = None
        """The sequence number of its first byte, once it is known."""
        self.lost = 0
        self.earlier = 0
        """Of these, the bytes before the first segment: the capture may have started after them."""
        self.cut = 0
        self.retransmitted = 0
        """Segments without new bytes."""
        self.repeated: tuple[int, ...] = ()
        """The packets of the first retransmitted segments."""
        self.out_of_order = 0
        """Segments with new bytes below the highest position seen."""
        self.conflicts = 0
        """Segments whose bytes differ from those received before."""
        self.damaged = 0
        """Segments with a wrong checksum that were retransmitted."""


class PendingPieces:
    """Pieces of one byte stream behind a gap, sorted by position and not overlapping; `pieces` is in order of arrival."""

    __slots__ = ("behind_gaps_before", "cost", "head", "pieces", "since", "starts")

    def __init__(self, since: int, behind_gaps_before: int) -> None:
        self.since = since
        # `ByteStream.behind_gaps` before the first piece.
        self.behind_gaps_before = behind_gaps_before
        self.pieces: OrderedDict[int, Piece] = OrderedDict()
        # The starts of the pieces; those before `head` are removed. Deleting at the front of a list costs its length.
        self.starts: list[int] = []
        self.head = 0
        self.cost = 0

    def covers(self, position: int) -> bool:
        at = bisect_right(self.starts, position, self.head) - 1
        return at >= self.head and self.pieces[self.starts[at]][0] > position

    def end(self) -> int:
        return self.pieces[self.starts[-1]][0]

    def first_sent(self, position: int) -> tuple[int, int] | None:
        """Return the number and time of the packet that brought the byte at a position."""
        at = bisect_right(self.starts, position, self.head) - 1
        piece = self.pieces[self.starts[at]] if at >= self.head else None
        return None if piece is None or piece[0] <= position else (piece[2][1], piece[2][3])

    def oldest(self) -> int:
        """Return the clock at the arrival of the oldest piece."""
        return next(iter(self.pieces.values()))[3]

    def put(self, start: int, end: int, data: bytes | None, mark: Mark, clock: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Insert the new bytes of [start, end); return their number, the first position, and conflicts as (position, bytes).

        Bytes replace a piece that the snap length cut; otherwise the first ones stay.
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
        """Remove and return the first piece."""
        piece = self.pieces.pop(self.starts[self.head])
        self.head += 1
        if self.head > 512 and self.head * 2 > len(self.starts):
            del self.starts[: self.head]
            self.head = 0
        self.cost -= cost(piece[1])
        return piece

    def _insert(self, index: int, start: int, end: int, data: bytes | None, mark: Mark, clock: int) -> None:
        self.starts.insert(index, start)
        self.pieces[start] = (end, data, mark, clock)
        self.cost += cost(data)

    def _fill(self, index: int, first: int, piece: Piece, at: int, stop: int, data: bytes, mark: Mark, clock: int) -> int:
        """Put bytes into a piece that was cut; return the index of the new piece."""
        del self.starts[index]
        del self.pieces[first]
        self.cost -= cost(None)
        last, _, old, came = piece
        if first < at:
            self._insert(index, first, at, None, old, came)
            index += 1
        self._insert(index, at, stop, data, mark, clock)
        if stop < last:
            self._insert(index + 1, stop, last, None, old, came)
        return index


def cost(data: bytes | None) -> int:
    """Return the cost of a waiting piece towards the limits, in bytes."""
    return PIECE_COST if data is None else max(len(data), PIECE_COST)


class Pool:
    """The limits, and the waiting bytes of all conversations."""

    DERIVED = ("limit", "total_limit", "time_limit")

    def __init__(self, options: Options) -> None:
        self.options = options
        self.prepare()
        self.total = 0
        self.count = 0
        # (order of the packet that started the wait, side, number for a total order, the byte stream, its conversation)
        self.queue: list[tuple[int, int, int, ByteStream, TcpStream]] = []
        self._tickets = 0

    def prepare(self) -> None:
        self.limit = self.options.waiting_limit
        self.total_limit = self.options.waiting_total
        self.time_limit = self.options.waiting_time_ns

    def start_waiting(self, stream: ByteStream, whose: TcpStream, since: int) -> None:
        """Register a byte stream that starts to wait."""
        self.count += 1
        if len(self.queue) > 2 * self.count + 1024:
            self.queue = [entry for entry in self.queue if _waits(entry)]
            heapify(self.queue)
        self._tickets += 1
        heappush(self.queue, (since, stream.side, self._tickets, stream, whose))

    def longest_waiting(self) -> tuple[ByteStream, TcpStream] | None:
        """Return the byte stream that has waited longest, if the total exceeds its limit."""
        while self.total > self.total_limit and self.queue:
            if _waits(self.queue[0]):
                return self.queue[0][3:]
            heappop(self.queue)
        return None


def _waits(entry: tuple[int, int, int, ByteStream, TcpStream]) -> bool:
    waiting = entry[3].waiting
    return waiting is not None and waiting.since == entry[0]


class ByteStream(SideCounts):
    """The byte stream of one side: released bytes, waiting bytes, and what is known about the rest."""

    __slots__ = (
        "acked",
        "again",
        "base",
        "begins",
        "behind_gaps",
        "claim",
        "damaged_acked",
        "deferred",
        "ended_ns",
        "expected",
        "fin",
        "first_ack",
        "held",
        "implausible",
        "known",
        "late",
        "lost_below",
        "next",
        "notes",
        "origin",
        "out",
        "passed_gap",
        "pending",
        "previous_end",
        "recent",
        "reordering",
        "right",
        "sent",
        "side",
        "stray_next",
        "syn",
        "ttl",
        "ttls",
        "unchecked",
        "waiting",
        "wrong",
    )

    def __init__(self, side: int, out: Items) -> None:
        super().__init__()
        self.side = side
        # Receives the released items.
        self.out = out
        self.known = UNKNOWN
        # The sequence number of the next segment in order, if that needs no further checks, otherwise -1.
        self.expected = -1
        # The sequence numbers of internal position 0 and of the SYN.
        self.base = 0
        self.syn: int | None = None
        # The first acknowledgement of this side, if seen before its start is known.
        self.first_ack: int | None = None
        # Positions: of the next byte to release, of public position 0, the highest in its own segments, the highest acknowledged,
        # the highest acknowledged so long ago that bytes missing below it are lost, of the FIN, and of the first segment without a SYN.
        self.next = 0
        self.origin = 0
        self.sent = 0
        self.acked = 0
        self.lost_below = 0
        self.fin: int | None = None
        self.begins = 0
        # Acknowledgements of missing bytes that are still recent: (position, packets, clock, `behind_gaps`)
        self.pending: deque[tuple[int, int, int, int]] | None = None
        # Segments behind gaps; after how many of them a late one came at most; and the last gap released by `_is_passed`.
        self.behind_gaps = 0
        self.reordering = 0
        self.passed_gap: tuple[int, int] | None = None
        # An implausible position that a second packet may confirm; the sequence number after a stray segment.
        self.implausible: int | None = None
        self.stray_next: int | None = None
        # The sequence number at the end of this side's byte stream in the previous conversation between these ports.
        self.previous_end: int | None = None
        # The time of its FIN or RST.
        self.ended_ns: int | None = None
        # Right and wrong checksums, wrong ones whose bytes were acknowledged, whether checksums are ignored, and the
        # segments with wrong ones that wait for an acknowledgement.
        self.right = 0
        self.wrong = 0
        self.damaged_acked = 0
        self.unchecked = False
        self.held: Sequence[Segment] = ()
        # Bytes retransmitted without acknowledgement, and bytes sent after the other side had ended.
        self.again: SentAgain | None = None
        self.late: LateData | None = None
        # Bytes that a segment claims beyond its frame: start, end, packet.
        self.claim: tuple[int, int, Mark] | None = None
        # The TTL of the last segment, and all different ones except those of RSTs.
        self.ttl = 0
        self.ttls: tuple[int, ...] = ()
        self.waiting: PendingPieces | None = None
        # Items that must not precede the other side's bytes up to a position, with this position.
        self.deferred: deque[tuple[int, SideData | StreamGap]] | None = None
        # The items released last, ending at `next`; None if there are none.
        self.recent: deque[SideData] | None = None
        # (position, order of arrival, kind, value, value)
        self.notes: list[tuple[int, int, str, int, int]] | None = None

    @property
    def top(self) -> int:
        """The highest position seen or acknowledged."""
        return max(self.sent, self.acked) if self.fin is None else self.fin

    def follow(self, before: ByteStream) -> None:
        """Remember the end of the previous conversation between these ports, to recognise its late bytes."""
        self.previous_end = (before.base + before.top) & MASK if before.known else None

    def position(self, seq: int, near: int | None = None) -> int:
        """Return the position of a sequence number that is nearest to `near`, by default the next byte."""
        near = self.next if near is None else near
        return near + distance(self.base + near, seq)

    def start(self, base: int, known: int) -> None:
        """Let the next byte be the one with sequence number `base`."""
        self.base = base
        self.known = known
        self.next = self.origin = self.sent = self.acked = self.lost_below = 0
        self.pending = self.implausible = None
        self.first = base
        self.begins = 0

    def shift(self, position: int) -> None:
        """Move the start of the byte stream to `position`, before anything is released."""
        self.acked = max(self.acked, position) if self.acked > self.next else position
        self.lost_below = max(self.lost_below, position) if self.lost_below > self.next else position
        self.next = self.origin = position
        self.sent = max(self.sent, position)
        self.first = (self.base + position) & MASK

    def count_wrong(self) -> None:
        """Count a wrong checksum; several that outnumber the right ones show that the sender offloads them."""
        self.wrong += 1
        self.unchecked = self.wrong >= OFFLOADED and self.wrong > self.right

    def emit(self, data: bytes, mark: Mark) -> None:
        """Release the next bytes."""
        if self.known < FIXED:
            self.known = FIXED
            self.origin = self.next
        start = self.next
        end = self.next = start + len(data)
        notes = self.pop_notes(start, end) if self.notes else ()
        item = SideData(self.side, start - self.origin, data, mark, notes)
        self.out.append(item)
        self.stream += len(data)
        self.keep(item)

    def keep(self, item: SideData) -> None:
        """Keep the bytes released last for comparison with retransmissions."""
        recent = self.recent
        if recent is None:
            recent = self.recent = deque()
        recent.append(item)
        end = item.position + len(item.data)
        if end - recent[0].position > 2 * RECENT_BYTES:
            acked = min(self.acked - self.origin, end)
            beyond = end - min(end - acked + RECENT_BYTES, RECENT_UNACKED)
            while recent[0].position + len(recent[0].data) <= beyond:
                recent.popleft()

    def repeat(self, at: int, end: int, mark: Mark) -> None:
        """Count a segment without new bytes, and the retransmissions of the first unacknowledged bytes."""
        self.retransmitted += 1
        if self.retransmitted <= MAX_REPEATED:
            self.repeated += (mark[1],)
        again = self.again
        if again is None or again.position < self.acked or at < again.position:
            if end <= self.acked:
                return
            number, time_ns = self.first_sent(at) or (mark[1], mark[3])
            again = SentAgain(at, 1, time_ns, time_ns, (number,))
        if at == again.position:
            shown = (*again.packets, mark[1])[:MAX_PACKETS]
            self.again = again._replace(times=again.times + 1, last_ns=mark[3], packets=shown)

    def first_sent(self, at: int) -> tuple[int, int] | None:
        """Return the number and time of the packet that first brought the byte at a position, if still known."""
        if at >= self.next and self.waiting is not None:
            return self.waiting.first_sent(at)
        position, recent = at - self.origin, self.recent or ()
        place = bisect_right(recent, position, key=_position) - 1
        found = recent[place] if place >= 0 else None
        return None if found is None or position >= found.position + len(found.data) else (found.mark[1], found.mark[3])

    def gap(self, end: int, reason: Literal["lost", "cut"], mark: Mark) -> None:
        """Release a gap up to `end`."""
        if self.known < FIXED:
            self.known = FIXED
            self.origin = self.next
        size = end - self.next
        self.out.append(StreamGap(self.side, self.next - self.origin, size, reason, *mark))
        if reason == "lost":
            self.lost += size
            self.earlier += max(0, min(end, self.begins) - self.next)
        else:
            self.cut += size
        self.stream += size
        self.next = end
        # The bytes before are not compared any more
        self.recent = None

    def pop_notes(self, start: int, end: int) -> tuple[tuple[int, str], ...]:
        """Remove and return the notes for the bytes from `start` to `end`; notes on a gap before them move to the first byte."""
        assert self.notes is not None
        due = [note for note in self.notes if note[0] < end]
        self.notes = self.notes[len(due) :] or None
        origin = self.origin
        notes = []
        for at, _, what, one, two in due:
            if what == "conflict":
                text = f"{two} bytes sent again differ, the first at position {one - origin}; those that came first were kept"
                if two == 1:
                    text = f"1 byte sent again differs, at position {one - origin}; the one that came first was kept"
            else:
                text = f"{one} bytes from before the first byte released came late and were dropped"
                if one == 1:
                    text = "1 byte from before the first byte released came late and was dropped"
            notes.append((max(at, start) - origin, text))
        return tuple(notes)

    def note(self, position: int, arrival: int, what: str, one: int, two: int) -> None:
        """Add a note on the byte at `position`, or on the next byte if that was released already."""
        if self.notes is None:
            self.notes = []
        if len(self.notes) < MAX_NOTES:
            insort(self.notes, (max(position, self.next), arrival, what, one, two))

    def compare(self, at: int, data: bytes, order: int) -> None:
        """Note retransmitted bytes that differ from those released."""
        recent = self.recent
        if recent is None:
            return
        low = max(self.next - RECENT_UNACKED, min(self.acked, self.next) - RECENT_BYTES, recent[0].position + self.origin)
        start, end = max(at, low), min(at + len(data), self.next)
        if start >= end:
            return
        first = bisect_right(recent, start - self.origin, key=_position) - 1
        last = bisect_left(recent, end - self.origin, key=_position)
        place = start - self.origin - recent[first].position
        kept = b"".join([one.data for one in islice(recent, first, last)])[place : place + end - start]
        again = data[start - at : end - at]
        if kept != again:
            self.conflicts += 1
            position, places = _difference(start, kept, again)
            self.note(position, order, "conflict", position, places)

    def settle_start(self, at: int) -> int:
        """Fix the start of a byte stream without a SYN from its first bytes; return their position."""
        ahead = at - self.next
        if self.waiting is None and not -NEAR <= ahead <= NEAR:
            # The start came from another byte stream.
            self.start((self.base + at) & MASK, TENTATIVE)
            return self.next
        if ahead < 0 or (ahead == 1 and self.waiting is None):
            # One ahead: the start came from a keep-alive.
            self.shift(at)
        return at

    def add_ttl(self, ttl: int) -> None:
        """Remember the TTL of a segment."""
        self.ttl = ttl
        if ttl not in self.ttls and len(self.ttls) < MAX_TTLS:
            self.ttls += (ttl,)

    def update_fast_path(self, untimed: bool) -> None:
        """Determine whether the next segment in order can skip all other checks; `untimed`: the clock is stopped."""
        plain = (
            self.known == FIXED
            and not untimed
            and self.ended_ns is None
            and self.waiting is None
            and not self.pending
            and self.sent <= self.next
            and not self.held
        )
        self.expected = (self.base + self.next) & MASK if plain else -1

    def has_byte(self, position: int) -> bool:
        return (
            position < self.next
            or (self.waiting is not None and self.waiting.covers(position))
            # The last one of a segment, which nobody sends again alone
            or any(one.wire > 1 and self.position(one.seq) + one.wire == position + 1 for one in self.held)
        )


def _difference(at: int, one: bytes, two: bytes) -> tuple[int, int]:
    """Return the first position, and the number, of differing bytes in two pieces of equal length at position `at`."""
    places = [place for place, (mine, theirs) in enumerate(zip(one, two, strict=True)) if mine != theirs]
    return at + places[0], len(places)


class ConversationCounts:
    """Counters of both byte streams between two endpoints, and how they ended."""

    __slots__ = ()

    endpoints: tuple[str, str]
    streams: tuple[ByteStream, ByteStream]
    from_start: bool
    open: bool
    ended: str
    end: End | None

    @property
    def packets(self) -> list[int]:
        return [side.packets for side in self.streams]

    @property
    def payload(self) -> list[int]:
        """Bytes of payload as sent, including retransmissions."""
        return [side.bytes for side in self.streams]

    @property
    def stream_bytes(self) -> list[int]:
        """Length of each byte stream, gaps included."""
        return [side.stream for side in self.streams]

    @property
    def defers(self) -> bool:
        """Whether items of a side wait for bytes of the other side."""
        one, two = self.streams
        return bool(one.deferred or two.deferred)

    @property
    def empty(self) -> bool:
        """Whether both byte streams are empty."""
        return not (self.streams[0].stream or self.streams[1].stream)

    @property
    def retransmissions(self) -> int:
        return self.streams[0].retransmitted + self.streams[1].retransmitted

    @property
    def out_of_order(self) -> int:
        return self.streams[0].out_of_order + self.streams[1].out_of_order

    @property
    def conflicts(self) -> int:
        return self.streams[0].conflicts + self.streams[1].conflicts

    @property
    def ended_sides(self) -> int:
        """A bit for each side that ended with FIN or RST."""
        one, two = self.streams
        return (one.ended_ns is not None) | (two.ended_ns is not None) << 1

    @property
    def first_end_unsure(self) -> bool:
        """Whether the other side, of which nothing was captured, may have sent its FIN first."""
        return self.end is not None and self.end.how == "FIN" and not all(self.packets)

    def announced(self, close: Close | None) -> Close | None:
        """Return the protocol's Close, unless the other side had ended the connection before."""
        end = self.end
        return None if close is not None and end is not None and end.side != close[1] and end.order < close[2] else close

    def how(self, client: int | None, close: Close | None = None) -> str:
        """Return how it ended and who ended it first: "FIN by server", "refused by server", "no answer", "open at end of capture"; with
        the protocol's Close in `close`, "Close by client"."""
        close = self.announced(close)
        if close is not None:
            name, side, _ = close
            who = self.endpoints[side] if client is None else "client" if side == client else "server"
            return f"{name} by {who}{self._left_open}"
        if self.end is None:
            silent = self.from_start and not self.streams[1].packets and self.empty
            silent = silent and self.open and self.ended != "open"
            return "no answer" if silent else self.ended
        side = self.end.side
        who = self.endpoints[side] if client is None else "client" if side == client else "server"
        if self.end.injected:
            who = "a device between the two"
        how = self.end.how if self.end.how != "refused" or self.empty else "RST"
        return f"{how} by {who}{self._left_open}"

    @property
    def _left_open(self) -> str:
        """The suffix that says which part is still open."""
        if self.end is None:
            return f", {self.ended}"
        return ", open at end of capture" if self.open and self.ended != "open" else ", half open" if self.open else ""


class TcpStream(ConversationCounts):
    """Both byte streams between two endpoints, and their counters. Side 0 sent the SYN, or without one the first packet.

    `first` and `last` are the first packet and the one that closed it; `latest` includes those after the close.
    `from_start`: side 0 is known to be the client. `open`: not ended by FIN of both sides, RST, or a new SYN. `ended`: how it ended.
    `end` is the first FIN or RST.
    """

    __slots__ = (
        "clock",
        "closed",
        "end",
        "ended",
        "endpoints",
        "first",
        "from_start",
        "ignored",
        "index",
        "last",
        "latest",
        "limit_hits",
        "open",
        "other_file",
        "out",
        "pool",
        "ports",
        "reset",
        "silence",
        "streams",
        "truncated",
        "untimed",
    )

    def __init__(self, endpoints: tuple[str, str], ports: tuple[int, int], first: Mark, index: int, pool: Pool) -> None:
        self.endpoints = endpoints
        self.ports = ports
        self.first = self.last = self.latest = first
        self.index = index
        self.pool = pool
        self.out: Items = []
        self.streams = ByteStream(0, self.out), ByteStream(1, self.out)
        # The latest capture time: packets may be out of order in time, but waiting times only grow.
        self.clock = first[3]
        self.closed: int | None = None
        self.reset = False
        self.from_start = False
        self.ended = "open"
        self.open = True
        self.end: End | None = None
        self.ignored: tuple[Reset, ...] = ()
        """The first RSTs that were ignored."""
        self.silence: Silence | None = None
        """The last long time without packets."""
        self.truncated = False
        """The capture shortened both lengths of its packets, so that claimed bytes exist."""
        self.untimed = False
        """A packet has no time; from it on the clock is stopped, so that no duration is reported."""
        self.limit_hits = 0
        self.other_file: int | None = None
        """The index of a file whose bytes contradict those of the first file."""

    def released(self) -> Items:
        """Return the items released since the last call, those of side 0 first."""
        if not self.out and not self.defers:
            return NOTHING
        items = [*self.out]
        self.out.clear()
        if len(items) > 1:
            items.sort(key=_side)
        one, two = self.streams
        return _causes_first(self, items) if one.waiting is not None or two.waiting is not None or self.defers else items

    def follow(self, segment: Segment, side: int) -> SideData | bool:
        """Return the bytes that a segment in order releases, as nearly all are; True if it has none; False if it needs `feed`."""
        own, other = self.streams[side], self.streams[1 - side]
        wire, data, expected = segment.wire, segment.data, other.expected
        if not (
            segment.flags & _ANY == ACK and segment.seq == own.expected and expected >= 0 and len(data) == wire and segment.ttl == own.ttl
        ):
            return False
        behind = (expected - segment.ack) & MASK
        if behind >= 0x8000_0000:
            return False
        if wire and not own.unchecked:
            if is_right(segment):
                own.right += 1
            elif own.right:
                return False
            else:
                # Until one is right, a wrong checksum shows nothing
                own.count_wrong()
        self.latest = self.last = mark = segment.mark
        time_ns, clock = mark[3], self.clock
        if time_ns > clock:
            if time_ns - clock > QUIET_NS:
                self.silence = Silence(clock, time_ns, side, mark[1], other.packets)
            self.clock = time_ns
        own.packets += 1
        acked = other.next - behind
        if acked > other.acked:
            other.acked = acked
        if not wire:
            return True
        own.bytes += wire
        own.stream += wire
        at = own.next
        own.next = own.sent = end = at + wire
        own.expected = (segment.seq + wire) & MASK
        position, recent = at - own.origin, own.recent
        item = SideData(side, position, data, mark, own.pop_notes(at, end) if own.notes else ())
        # `keep` without a call, unless it has to trim
        if recent is None or position + wire - recent[0].position > 2 * RECENT_BYTES:
            own.keep(item)
        else:
            recent.append(item)
        return item

    def feed(self, segment: Segment, side: int) -> Items | None:
        """Return the items released by a segment; None if it starts another conversation between the same endpoints."""
        item = self.follow(segment, side)
        if item is not False:
            return NOTHING if item is True else [item]
        own, other = self.streams[side], self.streams[1 - side]
        # What follows does the same for all others
        flags, wire, data = segment.flags, segment.wire, segment.data
        claimed = 0
        if flags & CLAIMS and not self.truncated:
            claimed, wire = wire, len(data)
            segment = msgspec.structs.replace(segment, wire=wire)
        if (wire or flags & SYN) and not self.belongs(side, segment.seq, segment.ack, flags, wire):
            return None
        if flags & UNTIMED or self.untimed:
            self.untimed = True
            segment = msgspec.structs.replace(segment, mark=(*segment.mark[:3], self.clock))
        mark = self._count(own, segment)
        if self.closed is not None:
            pass
        elif _is_damaged(own, other, segment):
            own.held = [*own.held, msgspec.structs.replace(segment, buffer=b"")]
        else:
            self._apply(own, other, segment, mark)
        if claimed and own.known:
            start = own.position(segment.seq) + wire
            own.claim = start, start + claimed - wire, self.latest
        own.update_fast_path(self.untimed)
        other.update_fast_path(self.untimed)
        return self.released()

    def _count(self, own: ByteStream, segment: Segment) -> Mark:
        own.packets += 1
        own.bytes += segment.wire
        self.latest = mark = segment.mark
        if self.closed is None:
            self.last = mark
            time_ns, clock = mark[3], self.clock
            if time_ns > clock:
                if time_ns - clock > QUIET_NS:
                    self.silence = Silence(clock, time_ns, own.side, mark[1], self.streams[1 - own.side].packets)
                self.clock = time_ns
        return mark

    def belongs(self, side: int, seq: int, ack: int, flags: int, wire: int) -> bool:
        """Return whether a segment belongs to this conversation, or else starts another one between the same ports."""
        if flags & SYN:
            return self._syn_belongs(side, seq, ack, flags)
        if flags & RST or not wire:
            return True
        own = self.streams[side]
        if own.known == UNKNOWN:
            # The other side has ended and nothing of this one was captured: assume that these are its last bytes.
            return True
        offset = distance(own.base + own.next, seq)
        if self.closed is not None:
            # Other bytes belong to a conversation that reuses the ports and whose SYN was lost. A keep-alive may be one
            # number outside.
            return own.origin - own.next - 1 <= offset and offset + wire <= (wire == 1)
        if self.reset:
            return -NEAR <= offset <= NEAR
        if -NEAR <= offset <= FAR:
            return True
        if own.previous_end is not None and -NEAR <= distance(own.previous_end, (seq + wire) & MASK) <= 0:
            return True
        # One stray segment proves nothing; a second one directly after it does.
        if own.stray_next == seq:
            return False
        own.stray_next = (seq + wire) & MASK
        return True

    def _syn_belongs(self, side: int, seq: int, ack: int, flags: int) -> bool:
        own, other = self.streams[side], self.streams[1 - side]
        if not flags & ACK:
            if self.closed is not None:
                return False
            if own.syn is not None:
                # Some systems retry with the same sequence number after a refusal.
                return seq == own.syn and not (self.reset and own.next > own.origin)
            first = (seq + 1) & MASK
            if own.known:
                return (own.base + own.origin) & MASK == first
            if own.first_ack is not None:
                return own.first_ack == first
            return other.next == other.origin
        if own.syn == seq:
            return True
        if self.closed is not None:
            return False
        if other.known:
            if (other.base + other.origin) & MASK == ack:
                return True
            # A late answer to an earlier SYN; the answer to this one is still to come.
            return own.syn is None and other.syn is not None
        if own.known:
            return (own.base + own.origin) & MASK == (seq + 1) & MASK
        return True

    def _accept(self, own: ByteStream, until: int | None = None) -> None:
        """Process held segments with wrong checksums up to `until`, which were acknowledged, or all. Drop retransmitted ones."""
        held, own.held = own.held, ()
        for segment in held:
            end = own.position(segment.seq) + segment.wire
            if end <= own.next:
                own.damaged += 1
            elif until is None or end <= until:
                own.damaged_acked += until is not None
                own.unchecked = own.unchecked or own.damaged_acked >= OFFLOADED
                self._apply(own, self.streams[1 - own.side], segment, segment.mark)
            else:
                own.held = [*own.held, segment]

    def _apply(self, own: ByteStream, other: ByteStream, segment: Segment, mark: Mark) -> None:
        """Process the flags, acknowledgement and bytes of a segment."""
        seq, flags, wire = segment.seq, segment.flags, segment.wire
        if not flags & RST:
            own.add_ttl(segment.ttl)
            if own.claim is not None and own.known:
                self._confirm(own, own.position(seq))
        if other.pending:
            _expire(self, other)
        if own.pending:
            _expire(self, own)
        if flags & SYN:
            if not self._synchronise(own, other, seq, segment.ack, flags):
                return
            seq = (seq + 1) & MASK
        elif flags & ACK:
            if self.reset and not flags & RST:
                self._revoke(other, segment.ack)
            self._acknowledge(other, own, seq, segment.ack)
        if flags & RST:
            self._reset(own, other, segment, mark)
        else:
            if own.known:
                at = own.position(seq)
            else:
                # The other side has what it acknowledged, so what follows that was sent, too
                acked = own.first_ack
                own.start(seq if acked is None or not 0 < distance(acked, seq) <= NEAR else acked, TENTATIVE)
                at = own.begins = own.position(seq)
            if other.ended_ns is not None and own.late is None and at + wire > own.sent:
                own.late = _late_data(other, segment, at + wire)
            certain = own.known == FIXED or (own.sent == own.acked == at and not own.held)
            if at == own.next and wire == len(segment.data) and wire and own.waiting is None and own.fin is None and certain:
                if own.sent > at:
                    own.out_of_order += 1
                own.emit(segment.data, mark)
                own.sent = max(own.sent, own.next)
            elif wire:
                conflicts = own.conflicts
                fits = self._add_bytes(own, at, segment.data, wire, mark, bool(flags & FIN))
                if mark[2] != self.first[2] and (not fits or own.conflicts > conflicts):
                    self.other_file = mark[2]
            elif not flags & (SYN | FIN):
                _note_sent(own, at)
            if flags & FIN and own.fin is None:
                self._set_fin(own, own.position(seq + wire), mark)
        if own.held:
            self._accept(own, None if own.unchecked else own.acked)
        if own.waiting is not None:
            self._release_due(own)
        if other.waiting is not None:
            self._release_due(other)
        if own.fin is not None and other.fin is not None:
            self.check_closed(mark[0])

    def release_waiting(self, stream: ByteStream) -> None:
        """Release the first gap and the bytes behind it, without waiting longer."""
        if stream.held:
            self._accept(stream)
        waiting = stream.waiting
        if waiting is None:
            return
        first = waiting.starts[waiting.head]
        stream.gap(first, "lost", waiting.pieces[first][2])
        self._drain(stream)
        stream.update_fast_path(self.untimed)

    def check_closed(self, current: int) -> None:
        """Close the conversation once both byte streams have reached their FIN."""
        one, two = self.streams
        if one.next == one.fin and two.next == two.fin and self.closed is None:
            self.closed = current
            self.ended = "FIN"
            self.open = False
            _release_buffers(self)

    def finish(self, current: int) -> None:
        """Release everything, with gaps for missing bytes: no more segments will come."""
        for stream, other in (self.streams, self.streams[::-1]):
            if stream.held:
                self._accept(stream)
            while stream.waiting is not None:
                self.release_waiting(stream)
            top = stream.top
            if top > stream.next and not _is_no_byte(self, stream, other, stream.next):
                stream.gap(top, "lost", self.last)
        self._end_at(current)

    def _end_at(self, current: int) -> None:
        """Set how the conversation ended: no more segments will come."""
        self.closed = current
        if self.open:
            ended = [self.endpoints[stream.side] for stream in self.streams if stream.fin is not None]
            if len(ended) == 2:
                self.ended = "FIN"
                self.open = False
            elif current != END:
                self.ended = REUSED
                self.open = False
            elif ended:
                self.ended = f"FIN by {ended[0]}, open at end of capture"
            else:
                self.ended = "open at end of capture"
        _release_buffers(self)

    def _synchronise(self, own: ByteStream, other: ByteStream, seq: int, ack: int, flags: int) -> bool:
        """Process a SYN; return False if it does not belong here."""
        first = (seq + 1) & MASK
        fresh = own.next == own.origin and other.next == other.origin
        if flags & ACK:
            if not other.known:
                other.start(ack, FIXED)
            elif (ack - other.base - other.origin) & MASK > other.next - other.origin:
                # Beyond the data sent with the SYN (RFC 7413)
                return False
            other.known = FIXED
        if own.known and (own.base + own.origin) & MASK != first:
            if own.next != own.origin or own.waiting is not None:
                return False
            # Another answer to the same SYN, from a server that keeps no state during the handshake.
            own.known = UNKNOWN
        if not own.known:
            own.start(first, FIXED)
        own.known = FIXED
        own.syn = seq
        if fresh and own.side == (1 if flags & ACK else 0):
            self.from_start = True
        return True

    def _acknowledge(self, stream: ByteStream, acker: ByteStream, seq: int, ack: int) -> None:
        """Process an acknowledgement of `stream` by the other side."""
        if not stream.known:
            if stream.first_ack is None:
                if acker.syn is not None and acker.next == acker.origin and (acker.base + acker.origin) & MASK == seq:
                    # The third packet of a handshake whose second one is missing.
                    stream.start(ack, TENTATIVE)
                stream.first_ack = ack
            return
        at = stream.position(ack)
        if at <= stream.acked:
            return
        if stream.held:
            self._accept(stream, at)
        if stream.claim is not None:
            self._confirm(stream, at)
        if at > stream.next:
            if stream.fin is not None and at > stream.fin:
                if at != stream.fin + 1:
                    return
                at = stream.fin
            if stream.known == TENTATIVE and at == stream.next + 1 and stream.waiting is None:
                stream.shift(at)
                return
            if not _is_plausible(stream, at):
                return
            if at > max(stream.next, stream.lost_below):
                if stream.pending is None:
                    stream.pending = deque()
                stream.pending.append((at, sum(self.packets), self.clock, stream.behind_gaps))
        stream.acked = max(at, stream.acked)

    def _confirm(self, stream: ByteStream, position: int) -> None:
        """Accept the bytes that a segment claims if the byte stream continues directly behind them."""
        assert stream.claim is not None
        start, end, mark = stream.claim
        if start == stream.next and position == end and stream.waiting is None:
            self.truncated = True
            stream.bytes += end - start
            stream.sent = max(stream.sent, end)
            stream.gap(end, "cut", mark)
        if start != stream.next:
            stream.claim = None

    def _reset(self, own: ByteStream, other: ByteStream, segment: Segment, mark: Mark) -> None:
        at = own.position(segment.seq) if own.known == FIXED else own.top
        silence = self.silence
        unknown = not segment.flags & ACK or other.position(segment.ack) < other.sent
        if silence is not None and (silence.side == own.side or silence.others != own.packets - 1 or not unknown):
            silence = None
        reset = Reset(own.side, mark[1], mark[3], segment.ttl, own.ttls, max(own.top, at), other.top, silence)
        if other.late is not None:
            other.late = other.late._replace(refused=True)
        if not self.reset:
            if not own.next - IN_WINDOW <= at <= own.top + IN_WINDOW:
                self.ignored = (*self.ignored, reset)[:MAX_RESETS]
                return
            self.reset = True
            self.ended = f"RST by {self.endpoints[own.side]}"
            self.open = False
        self._note_end(own, "RST", mark, reset)

    def _revoke(self, stream: ByteStream, ack: int) -> None:
        """Ignore a RST if bytes sent after it are acknowledged by its receiver or its apparent sender."""
        reset = None if self.end is None else self.end.reset
        if reset is None or not (reset.top if reset.side == stream.side else reset.beyond) < stream.position(ack) <= stream.sent:
            return
        if self.end is not None and self.end.how != "refused":
            self.ignored = (*self.ignored, reset._replace(expected=True))[:MAX_RESETS]
        self.reset, self.open, self.ended, self.end = False, True, "open", None
        self.streams[1 - reset.side].late = None
        sender = self.streams[reset.side]
        if sender.fin is None:
            sender.ended_ns = None

    def _note_end(self, own: ByteStream, how: Literal["FIN", "RST"], mark: Mark, reset: Reset | None = None) -> None:
        """Record that a side ended the connection, and which was the first."""
        if own.ended_ns is None:
            own.ended_ns = mark[3]
        if self.end is None:
            other = self.streams[1 - own.side]
            # The client resets what its SYN asked for: that answers a SYN-ACK
            refused = how == "RST" and own.side == 1 and own.syn is None and other.syn is not None
            refused = refused and own.packets == 1 and not other.bytes
            lost = other.acked == other.sent + 1 or other.acked == other.top == other.next + 1
            answers = how == "FIN" and other.fin is None and lost
            self.end = End(own.side, "refused" if refused else how, mark[0], mark[3], reset, answers)

    def _set_fin(self, own: ByteStream, end: int, mark: Mark) -> None:
        """Set the position of the FIN, unless it contradicts what was seen."""
        if end < own.sent or not _is_plausible(own, end):
            return
        if own.known == TENTATIVE and end == own.next + 1 and own.waiting is None:
            own.shift(end)
        own.fin = own.sent = end
        self._note_end(own, "FIN", mark)
        own.acked = min(own.acked, end)
        own.lost_below = min(own.lost_below, end)
        if own.pending:
            own.pending = deque((min(one[0], end), *one[1:]) for one in own.pending)

    def _add_bytes(self, own: ByteStream, at: int, data: bytes, wire: int, mark: Mark, fin: bool) -> bool:
        """Process the bytes of a segment that is not the next one; return whether all of them can belong to the byte stream."""
        if own.known < FIXED:
            at = own.settle_start(at)
        end = at + wire
        if wire == 1 and not fin and (own.has_byte(at) or (end == own.top and end <= own.lost_below)):
            # A keep-alive. In the second case the real byte was acknowledged but never captured.
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
            if end <= own.acked or (own.passed_gap is not None and at < own.passed_gap[1] and end > own.passed_gap[0]):
                # Acknowledged bytes are not sent again: it was captured late
                own.reordering = PASSED_SEGMENTS
            if at < own.origin:
                own.note(own.next, mark[0], "early", min(end, own.origin) - at, 0)
                if end <= own.origin:
                    return fits
            own.compare(at, data, mark[0])
            if end <= own.next:
                own.repeat(at, end, mark)
                return fits
            cut = own.next - at
            at, data, wire = own.next, data[cut:], wire - cut
        elif at > own.next and own.waiting is None:
            own.waiting = PendingPieces(mark[0], own.behind_gaps)
            self.pool.start_waiting(own, self, mark[0])
        if own.waiting is None:
            if at < before:
                own.out_of_order += 1
            if data:
                own.emit(data, mark)
            if len(data) < wire:
                own.gap(end, "cut", mark)
            return fits
        self._add_waiting(own, own.waiting, at, data, end, mark, before)
        return fits

    def _add_waiting(self, own: ByteStream, waiting: PendingPieces, at: int, data: bytes, end: int, mark: Mark, before: int) -> None:
        """Add bytes to the waiting ones, and release those that are next."""
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
            own.repeat(at, end, mark)
        else:
            if lowest < before:
                own.out_of_order += 1
                own.reordering = max(own.reordering, behind)
            if end > before:
                own.behind_gaps += 1
        if conflicts:
            own.conflicts += 1
            for position, places in conflicts:
                own.note(position, mark[0], "conflict", position, places)
        self._drain(own)

    def _drain(self, stream: ByteStream) -> None:
        """Release the contiguous pieces at the next position."""
        waiting = stream.waiting
        assert waiting is not None
        starts, position = waiting.starts, stream.next
        while waiting.head < len(starts) and starts[waiting.head] == stream.next:
            piece = waiting.pop()
            end, data, mark, _ = piece
            self.pool.total -= cost(data)
            if data is None:
                stream.gap(end, "cut", mark)
            else:
                stream.emit(data, mark)
        if waiting.head == len(starts):
            stream.waiting = None
            self.pool.count -= 1
        elif stream.next > position:
            # It is unknown which of the waiting pieces came after the next gap
            waiting.behind_gaps_before = stream.behind_gaps

    def _release_due(self, stream: ByteStream) -> None:
        """Release the bytes that need not, or must not, wait longer."""
        pool = self.pool
        while (waiting := stream.waiting) is not None:
            if waiting.cost > pool.limit or self.clock - waiting.oldest() >= pool.time_limit:
                self.limit_hits += 1
            elif stream.lost_below < waiting.starts[waiting.head]:
                if not _is_passed(stream, waiting):
                    return
                stream.passed_gap = stream.next, waiting.starts[waiting.head]
            self.release_waiting(stream)


class LengthOnly(TcpStream):
    """A conversation after an exception: only the lengths of its byte streams are tracked."""

    __slots__ = ()

    def __init__(self, tcp: TcpStream) -> None:
        for name in TcpStream.__slots__:
            setattr(self, name, getattr(tcp, name))
        for stream in self.streams:
            if stream.waiting is not None:
                self.pool.total -= stream.waiting.cost
                self.pool.count -= 1
                stream.waiting = None
            self.pool.total -= sum(_held(item) for _, item in stream.deferred or ())
            stream.deferred = None
            stream.sent = max(stream.sent, stream.next)
            stream.pending = stream.notes = None
            stream.held = ()
            stream.recent = None
        self.out.clear()

    def feed(self, segment: Segment, side: int) -> Items | None:
        flags, own = segment.flags, self.streams[side]
        if flags & (SYN | ACK) == SYN and (self.closed is not None or own.syn != segment.seq):
            return None
        mark = self.latest
        if mark[0] != segment.order:
            # Otherwise it was counted before the exception
            mark = self._count(own, segment)
        if self.closed is not None:
            return NOTHING
        self._measure_reach(side, segment)
        self._measure()
        if flags & RST or own.fin is not None:
            self._note_end(own, "RST" if flags & RST else "FIN", mark)
        if flags & RST and not self.reset:
            self.reset = True
            self.ended = f"RST by {self.endpoints[side]}"
            self.open = False
        if self.streams[0].fin is not None and self.streams[1].fin is not None:
            self._end_at(segment.order)
        return NOTHING

    def finish(self, current: int) -> None:
        self._end_at(current)

    def _end_at(self, current: int) -> None:
        super()._end_at(current)
        self._measure()

    def _measure(self) -> None:
        for stream, other in (self.streams, self.streams[::-1]):
            end = stream.sent if _is_no_byte(self, stream, other, stream.sent) else max(stream.top, stream.next)
            stream.stream = end - stream.origin

    def _measure_reach(self, side: int, segment: Segment) -> None:
        own, other, seq = self.streams[side], self.streams[1 - side], segment.seq
        if segment.flags & RST:
            return
        if segment.flags & SYN:
            seq = (seq + 1) & MASK
        if not own.known:
            own.start(seq, FIXED)
            own.syn = (seq - 1) & MASK if segment.flags & SYN else None
        end = own.position(seq + segment.wire, own.top)
        if _is_plausible(own, end):
            own.sent = max(own.sent, end)
            if segment.flags & FIN and own.fin is None and end == own.sent:
                own.fin = end
        if segment.flags & ACK and other.known:
            end = other.position(segment.ack, other.top)
            if _is_plausible(other, end):
                other.acked = max(other.acked, end)


def _causes_first(tcp: TcpStream, items: Items) -> Items:
    """Defer what a side sent after it had received bytes for which the other side's byte stream waits: it may answer the
    bytes after them. Return the rest, and the deferred items that need not wait any longer."""
    ready: Items = []
    for item in items:
        own, other = tcp.streams[item.side], tcp.streams[1 - item.side]
        if own.deferred or (other.waiting is not None and other.acked > max(other.next, other.lost_below)):
            if own.deferred is None:
                own.deferred = deque()
            own.deferred.append((other.acked, item))
            tcp.pool.total += _held(item)
        else:
            ready.append(item)
    for own, other in (tcp.streams, tcp.streams[::-1]):
        while own.deferred and (other.waiting is None or own.deferred[0][0] <= max(other.next, other.lost_below)):
            item = own.deferred.popleft()[1]
            tcp.pool.total -= _held(item)
            ready.append(item)
    return ready


def _held(item: SideData | StreamGap) -> int:
    return cost(item.data if isinstance(item, SideData) else None)


_side = attrgetter("side")
_position = attrgetter("position")

NOTHING: Items = []
"""The result for segments that release nothing; never modified."""


def _expire(tcp: TcpStream, stream: ByteStream) -> None:
    """Raise `lost_below` to what was acknowledged long enough ago."""
    pending = stream.pending
    assert pending is not None
    packets, clock = sum(tcp.packets) - ACKED_PACKETS, tcp.clock - ACKED_TIME_NS
    while pending:
        position, came, when, _ = pending[0]
        if came <= packets or when <= clock:
            stream.lost_below = max(stream.lost_below, position)
        elif position > stream.next:
            return
        pending.popleft()


def _is_damaged(own: ByteStream, other: ByteStream, segment: Segment) -> bool:
    """Return whether the receiver drops a segment: its checksum is wrong and most others of its sender are right."""
    syn = segment.flags & SYN
    if own.unchecked or segment.flags & RST or not (segment.wire or syn) or not is_checkable(segment):
        return False
    if is_right(segment):
        own.right += 1
        return False
    own.count_wrong()
    return not syn and own.right > 2 * own.wrong - 2 and other.packets > 0 and len(own.held) < MAX_DAMAGED


def _late_data(ended: ByteStream, segment: Segment, end: int) -> LateData | None:
    """Return the new bytes of a segment sent after the other side ended the connection, if its sender knew or should have known."""
    assert ended.ended_ns is not None
    reset = ended.fin is None
    knows = ended.fin is not None and segment.flags & ACK and ended.position(segment.ack) > ended.fin
    if not segment.wire or segment.time_ns - ended.ended_ns < (NOTICED_NS if knows else LATE_NS):
        return None
    return LateData(segment.number, segment.time_ns, segment.wire, end, ended.ended_ns, reset)


def _is_plausible(stream: ByteStream, position: int) -> bool:
    """Return whether the byte stream may reach `position`: one far ahead of everything seen needs two packets."""
    ahead = position - stream.top
    if ahead <= NEAR:
        return True
    if ahead > FAR:
        return False
    if stream.implausible is not None and 0 <= position - stream.implausible <= NEAR:
        stream.implausible = None
        return True
    stream.implausible = position
    return False


def _is_no_byte(tcp: TcpStream, stream: ByteStream, other: ByteStream, end: int) -> bool:
    """Return whether the acknowledged number behind `end` has no byte: it is a FIN that was not captured, or a keep-alive before the
    first byte."""
    return stream.top - end == 1 and stream.fin is None and (other.fin is not None or tcp.reset or stream.known == TENTATIVE)


def _release_buffers(tcp: TcpStream) -> None:
    for stream in tcp.streams:
        stream.recent = stream.notes = None


def _note_sent(own: ByteStream, at: int) -> None:
    """Record that the bytes before `at` were sent, as a segment without bytes shows."""
    if at <= own.sent or own.fin is not None:
        return
    if own.known == TENTATIVE and at == own.next + 1 and own.waiting is None:
        own.shift(at)
    elif _is_plausible(own, at):
        own.sent = at


def _is_passed(stream: ByteStream, waiting: PendingPieces) -> bool:
    """Return whether the bytes missing before the waiting ones are lost: the other side has them, and few are captured late."""
    if stream.behind_gaps - waiting.behind_gaps_before < PASSED_SEGMENTS or stream.reordering >= PASSED_SEGMENTS or not stream.pending:
        return False
    end = waiting.starts[waiting.head]
    came = next((later for position, _, _, later in stream.pending if position >= end), None)
    return came is not None and stream.behind_gaps - max(came, waiting.behind_gaps_before) >= PASSED_SEGMENTS


def never_acknowledged(tcp: TcpStream) -> tuple[SentAgain | None, SentAgain | None]:
    """Return, by side, the bytes retransmitted often and never acknowledged, if packets of the other side were captured."""
    if tcp.streams[0].again is None and tcp.streams[1].again is None:
        return None, None
    one, two = (
        stream.again if stream.again is not None and stream.again.times >= SENT_OFTEN and stream.again.position >= stream.acked else None
        for stream in tcp.streams
    )
    return (one, two) if all(tcp.packets) else (None, None)
