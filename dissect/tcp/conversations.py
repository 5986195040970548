"""Sorts segments into conversations and hands on their byte streams.

A batch is grouped by column. Most of the time the segments of each side of a conversation follow each other without a gap, which one
comparison over the whole batch tells; then their payloads are joined at once. Whatever is not so plain (SYN, FIN, RST, a segment that
is repeated, early, late or cut, an acknowledgement of bytes not captured) goes through `assembler` segment by segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from socket import AF_INET, AF_INET6, inet_ntop
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.errors import Failure, bug
from dissect.model import Chunk, Options, SegmentBatch, StreamGap
from dissect.tcp.assembler import ACK, END, FIN, FIXED, PIECE_COST, REUSED, RST, SYN, Assembler, ByteStream, Conversation, Counting, Pool
from dissect.tcp.sequence import FAR, MASK

__all__ = ["END", "REUSED", "Conversation", "Conversations", "Delivery"]

FEW = 8
"""Batches of so few segments cost less one by one than by column."""

SHORT = 6
"""Segments between two that are in trouble cost less one by one than as a stretch of their own."""

IDLE, CROWDED = "forgotten after a long time without a packet", "forgotten for newer ones"
"""How conversations end that `evict` ends."""

LAST_NS = 2_000_000_000
"""So long after a RST packets that it crossed may come, and a SYN that is tried again; and after a FIN that of the other side."""

_FACTORS = np.array(
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x85EB_CA77_C2B2_AE63, 0x27D4_EB2F_1656_67C5], np.uint64
)


class Columns(msgspec.Struct):
    """Segments of a batch with bytes, those of one side of a conversation together: `offset` and `end` of their bytes in `buffer`, and
    `start`, where the bytes lie in their stretch."""

    buffer: bytes
    offset: NDArray[np.int64]
    end: NDArray[np.int64]
    start: NDArray[np.int64]
    order: NDArray[np.int64]
    number: NDArray[np.int64]
    file: NDArray[np.int32]
    time: NDArray[np.int64]


class Stretch(msgspec.Struct):
    """A chunk whose bytes are not joined: the rows from `low` to `high` of `columns`."""

    side: int
    position: int
    size: int
    low: int
    high: int
    columns: Columns

    def chunk(self) -> Chunk:
        columns, rows = self.columns, slice(self.low, self.high)
        starts = columns.start[rows]
        orders = columns.order[rows].tolist()
        return Chunk(
            self.side,
            self.position,
            _joined(columns.buffer, columns.offset[rows].tolist(), columns.end[rows].tolist()),
            (starts - starts[0] if starts[0] else starts).tolist(),
            orders,
            orders,
            columns.number[rows].tolist(),
            columns.file[rows].tolist(),
            columns.time[rows].tolist(),
        )

    def rows(self) -> Iterator[Stretch]:
        """Its segments one by one."""
        starts = self.columns.start[self.low : self.high].tolist()
        for row, (start, end) in enumerate(pairwise([*starts, self.size]), self.low):
            yield Stretch(self.side, self.position + start, end - start, row, row + 1, self.columns)

    def packet(self) -> tuple[int, int, int]:
        """The order, number and file of its first packet."""
        columns = self.columns
        return int(columns.order[self.low]), int(columns.number[self.low]), int(columns.file[self.low])


def _joined(buffer: bytes, offsets: list[int], ends: list[int]) -> bytes:
    if len(offsets) == 1:
        return buffer[offsets[0] : ends[0]]
    return b"".join([buffer[start:end] for start, end in zip(offsets, ends, strict=True)])


def until(item: Chunk | StreamGap, release: int) -> Chunk | StreamGap | None:
    """What was certain of this with the packet `release`."""
    if isinstance(item, StreamGap):
        return item if item.release <= release else None
    count = bisect_right(item.releases, release)
    if count == len(item.starts):
        return item
    if not count:
        return None
    orders, releases, numbers, files, times = (
        column[:count] for column in (item.orders, item.releases, item.numbers, item.files, item.times)
    )
    data, starts = item.data[: item.starts[count]], item.starts[:count]
    return Chunk(item.side, item.position, data, starts, orders, releases, numbers, files, times, item.notes)


REVERSE, FLAGS, WIRE = 4, 7, 10
"""Where these are in the row of a segment: order, time, number, file, reversed, sequence and acknowledgement number, flags, offset, length
as captured and as sent."""


class Bare:
    """The packets of one pair of endpoints as bytes, while none of them carries or acknowledges a byte and all belong to one conversation:
    connections that were refused, never answered or closed unused, of which a capture may have millions.

    The index of the conversation, -1 while it has none, and the packets, from which the same conversation can be made at any time.
    """

    PACKET = Struct("<qqqiBIIB")
    """Order, time, number, file, whether it was reversed, sequence and acknowledgement number, flags."""
    INDEX = Struct("<q")
    MOST = 8
    """Packets; a conversation with more is kept as any other."""

    @classmethod
    def add(cls, kept: bytes | None, rows: list[list[int]]) -> bytes | None:
        """`kept` with these packets, None where it cannot hold them."""
        packets = [] if kept is None else list(cls.packets(kept))
        if len(packets) + len(rows) > cls.MOST or any(row[WIRE] for row in rows):
            return None
        more = [tuple(row[:8]) for row in rows]
        if len(packets) + len(more) > 1 and not cls.agree([*packets, *more]):
            return None
        return b"".join([cls.INDEX.pack(-1) if kept is None else kept, *[cls.PACKET.pack(*packet) for packet in more]])

    @staticmethod
    def agree(packets: list[tuple[int, ...]]) -> bool:
        """Whether these packets are certainly of one conversation, and no byte was sent between them: each number is where its byte
        stream begins, or beyond a SYN or FIN that was seen."""
        start: list[int | None] = [None, None]
        room, fin = [0, 0], [-1, -1]
        ended = False
        for index, (_, _, _, _, side, seq, ack, flags) in enumerate(packets):
            first = start[side]
            if flags & SYN:
                if ended or flags & (FIN | RST) or (index and not flags & ACK and seq != first):
                    return False
                if first is None:
                    room[side] = 1
                elif seq != first or not room[side]:
                    return False
            if first is None:
                first = start[side] = seq
            if (seq - first) & MASK > room[side]:
                return False
            if flags & FIN:
                if fin[side] not in (-1, seq):
                    return False
                fin[side] = seq
                room[side] = ((seq - first) & MASK) + 1
            ended = ended or bool(flags & (FIN | RST))
            if flags & ACK:
                first = start[1 - side]
                if first is None:
                    start[1 - side] = ack
                elif (ack - first) & MASK > room[1 - side]:
                    return False
        return True

    @classmethod
    def packets(cls, kept: bytes) -> Iterator[tuple[int, ...]]:
        return cls.PACKET.iter_unpack(memoryview(kept)[cls.INDEX.size :])

    @classmethod
    def index(cls, kept: bytes) -> int:
        return int(cls.INDEX.unpack_from(kept)[0])

    @classmethod
    def last(cls, kept: bytes) -> int:
        """The order of its last packet."""
        return int(cls.PACKET.unpack_from(kept, len(kept) - cls.PACKET.size)[0])

    @classmethod
    def numbered(cls, kept: bytes, index: int) -> bytes:
        return cls.INDEX.pack(index) + kept[cls.INDEX.size :]

    @classmethod
    def rows(cls, kept: bytes) -> list[list[int]]:
        """The packets as `Conversations` takes them."""
        return [[*packet, 0, 0, 0] for packet in cls.packets(kept)]


class Delivery(msgspec.Struct):
    """What became certain of one conversation. `closed`: the packet that ended it, END at the end of the capture, None while open.
    `failure`: an exception came, and of what was certain later nothing will be delivered."""

    conversation: Conversation
    items: list[Chunk | StreamGap | Stretch]
    closed: int | None
    failure: Failure | None = None


class Detour(NamedTuple):
    """An exception came where many segments or conversations are looked at together, which was then done one by one.

    `conversation`: the one that it came with, if it was one.
    """

    what: str
    conversation: Conversation | None = None


class Conversations:
    """All conversations of a capture."""

    MADE_OF = ("options",)
    DERIVED = ("detours", "lost")

    def __init__(self, options: Options, bare: bool = False) -> None:
        """`bare`: conversations that carried nothing are kept as their packets, and never delivered: `bare_delivery` makes them. For
        captures with an end, of which `evict` forgets nothing."""
        self._pool = Pool(options)
        self._table: dict[bytes, Assembler] = {}
        self._count = 0
        # Made in this call of `feed`, with the order of their first packet.
        self._new: list[Conversation] = []
        # Those that carried nothing, and the order of the first packet of those met in this call.
        self._bare: dict[bytes, bytes] | None = {} if bare else None
        self._new_bare: dict[bytes, int] = {}
        # Of these the ones that may have ended in this call.
        self._over_bare: dict[bytes, None] = {}
        # Have something to deliver, or may have.
        self._touched: dict[Assembler, None] = {}
        self._done: list[Delivery] = []
        self.detours: list[Detour] = []
        """Exceptions that cost no conversation, since this was last emptied."""
        self.lost: list[Failure] = []
        """Exceptions that cost a segment of no conversation, since this was last emptied."""

    def feed(self, batch: SegmentBatch) -> list[Delivery]:
        """What these segments made certain, by conversation, with all bytes joined."""
        deliveries = self.feed_unjoined(batch)
        for delivery in deliveries:
            delivery.items = [item.chunk() if isinstance(item, Stretch) else item for item in delivery.items]
        return deliveries

    def feed_unjoined(self, batch: SegmentBatch) -> list[Delivery]:
        """What these segments made certain, by conversation."""
        count = len(batch)
        if count:
            pool = self._pool
            # A segment has three ends, of what is known and of what was cut, and each makes at most one more piece.
            most = pool.total + int(batch.length.sum()) + 3 * PIECE_COST * count
            if count <= FEW or most > pool.total_limit:
                # The limit over all conversations is the one thing that makes them depend on each other: keep their order.
                self._in_order(batch)
            else:
                self._by_column(batch)
        return self._deliver()

    def finish(self) -> list[Delivery]:
        """What is left at the end of the capture."""
        for assembler in self._table.values():
            if assembler.closed is None:
                self._finish(assembler, END)
                self._touched[assembler] = None
        deliveries = self._deliver()
        self._table.clear()
        return deliveries

    def evict(self, now_ns: int, idle_ns: int, closed_ns: int, most: int, order: int) -> list[Delivery]:
        """What conversations end with that are forgotten to keep memory bounded (live only): without a packet for `idle_ns`, ended
        for `closed_ns` or reset a moment ago, and, while there are more than `most`, first those that ended and then those longest without
        a packet."""
        old = [key for key, assembler in self._table.items() if now_ns >= _leaves(assembler, idle_ns, closed_ns)]
        self._forget(old, IDLE, order)
        self._crowd(most, order)
        return self._deliver()

    def half_over(self) -> list[Conversation]:
        """Those that one side has ended, and that are not over yet."""
        found = self._table.values()
        return [one.conversation for one in found if one.conversation.end is not None and one.closed is None]

    def crowd(self, most: int, order: int) -> tuple[list[Delivery], set[int]]:
        """While there are more than `most`, forget first those that ended and then those longest without a packet: what they end with,
        and the indexes of all that are left."""
        self._crowd(most, order)
        return self._deliver(), {assembler.conversation.index for assembler in self._table.values()}

    def due(self, idle_ns: int, closed_ns: int) -> list[int]:
        """From when on `evict` forgets each of the conversations, if no packet comes."""
        return [_leaves(assembler, idle_ns, closed_ns) for assembler in self._table.values()]

    def _crowd(self, most: int, order: int) -> None:
        table = self._table
        if len(table) > most:
            # Some more than needed: sorting them for each new conversation would be slow.
            ages = [(one.conversation.open, one.conversation.last[3], one.conversation.last[0], key) for key, one in table.items()]
            ages.sort()
            self._forget([one[3] for one in ages[: len(table) - most + most // 10]], CROWDED, order)

    def _forget(self, keys: list[bytes], why: str, order: int) -> None:
        for key in keys:
            assembler = self._table.pop(key)
            if assembler.closed is None:
                cut_short = assembler.conversation.open
                self._finish(assembler, order)
                if cut_short:
                    assembler.conversation.ended = why
                    assembler.conversation.limit_hits += why == CROWDED
                self._touched[assembler] = None

    def _finish(self, assembler: Assembler, release: int) -> None:
        try:
            assembler.finish(release)
        except Exception as error:
            assembler.fail(bug(error), release, assembler.conversation.last)
            assembler.finish(release)

    def _deliver(self) -> list[Delivery]:
        self._number()
        deliveries, self._done = self._done, []
        for assembler in self._touched:
            self._collect(assembler, deliveries)
        self._touched.clear()
        deliveries.sort(key=lambda delivery: delivery.conversation.index)
        return deliveries

    def _number(self) -> None:
        """Give those met in this call their indexes."""
        if not self._new_bare:
            self._new.sort(key=lambda conversation: conversation.first)
            for conversation in self._new:
                conversation.index = self._count
                self._count += 1
            self._new.clear()
            return
        assert self._bare is not None
        met: list[tuple[int, Conversation | bytes]] = [(conversation.first[0], conversation) for conversation in self._new]
        met += [(order, key) for key, order in self._new_bare.items()]
        met.sort(key=itemgetter(0))
        for _, one in met:
            if isinstance(one, bytes):
                self._bare[one] = Bare.numbered(self._bare[one], self._count)
            else:
                one.index = self._count
            self._count += 1
        self._new.clear()
        self._new_bare.clear()

    def bare(self) -> list[tuple[int, bytes]]:
        """The conversations that carried nothing, by index; with each what `bare_delivery` takes."""
        return sorted((Bare.index(kept), key) for key, kept in (self._bare or {}).items())

    def bare_over(self) -> list[bytes]:
        """Those of them that may have ended since this was last called."""
        over, self._over_bare = self._over_bare, {}
        return [key for key in over if key in (self._bare or ())]

    def bare_keys(self) -> list[bytes]:
        """All of them, by their last packets."""
        bare = self._bare or {}
        return sorted(bare, key=lambda key: Bare.last(bare[key]))

    def bare_refused(self) -> Iterator[int]:
        """The port of each of them whose SYN was answered with RST."""
        for key, kept in (self._bare or {}).items():
            first, *others = [(packet[REVERSE], packet[FLAGS]) for packet in Bare.packets(kept)]
            answer = next((flags for side, flags in others if side != first[0]), 0)
            if first[1] & (SYN | ACK) == SYN and answer & RST:
                at = 16 if first[0] else 34
                yield int.from_bytes(key[at : at + 2], "big")

    def bare_delivery(self, key: bytes) -> Delivery:
        """What a conversation that carried nothing is delivered as at the end of the capture."""
        assert self._bare is not None
        kept = self._bare[key]
        rows = Bare.rows(kept)
        assembler = Assembler(self._conversation(key, rows[0]), _flip(rows[0]), self._pool)
        assembler.conversation.index = Bare.index(kept)
        for order, time_ns, number, file, reverse, seq, ack, flags, offset, length, wire in rows:
            assembler.step(order, time_ns, number, file, reverse ^ assembler.flip, seq, ack, flags, offset, length, wire, b"")
        if assembler.closed is None:
            self._finish(assembler, END)
        return Delivery(assembler.conversation, assembler.collect(), assembler.closed)

    def _keep_bare(self, key: bytes, rows: list[list[int]]) -> bool:
        """Keep these packets as they are, if they can be; otherwise make a conversation of those that were kept so far."""
        assert self._bare is not None
        kept = self._bare.get(key)
        try:
            more = Bare.add(kept, rows)
        except Exception as error:
            self.detours.append(Detour(bug(error)))
            more = None
        if more is not None:
            self._bare[key] = more
            if kept is None:
                self._new_bare[key] = rows[0][0]
            if any(row[FLAGS] & FIN for row in rows):
                self._over_bare[key] = None
            return True
        if kept is not None:
            del self._bare[key]
            new = self._new_bare.pop(key, None) is not None
            self._walk(key, None, Bare.rows(kept), b"")
            assembler = self._table.get(key)
            if assembler is not None and not new:
                assembler.conversation.index = Bare.index(kept)
                self._new.remove(assembler.conversation)
        return False

    def _collect(self, assembler: Assembler, deliveries: list[Delivery]) -> None:
        try:
            items: list[Chunk | StreamGap | Stretch] = assembler.collect()
        except Exception as error:
            items = _collect_singly(assembler, bug(error))
        closed, failure = assembler.closed, assembler.failure
        assembler.failure = None
        if failure is not None and closed is not None and failure.release > closed:
            self.lost.append(failure)
            failure = None
        if assembler.told:
            return
        if closed is not None:
            assembler.told = True
        elif not items and failure is None:
            return
        deliveries.append(Delivery(assembler.conversation, items, closed, failure))

    def _create(self, key: bytes, row: list[int]) -> Assembler:
        """A conversation that begins with this packet."""
        conversation = self._conversation(key, row)
        assembler = Assembler(conversation, _flip(row), self._pool)
        self._new.append(conversation)
        self._table[key] = assembler
        return assembler

    def _conversation(self, key: bytes, row: list[int]) -> Conversation:
        order, time_ns, number, file = row[:4]
        mark = order, number, file, time_ns
        low, high = endpoint(key, 0), endpoint(key, 18)
        (one, port), (two, other_port) = (high, low) if _flip(row) else (low, high)
        return Conversation((one, two), (port, other_port), mark, mark, mark)

    def _walk(self, key: bytes, assembler: Assembler | None, rows: list[list[int]], buffer: bytes) -> None:
        """Take segments of one pair of endpoints one by one."""
        for row in rows:
            order, time_ns, number, file, reverse, seq, ack, flags, offset, length, wire = row
            try:
                if assembler is None:
                    assembler = self._create(key, row)
                elif (wire or flags & SYN) and not assembler.takes(reverse ^ assembler.flip, seq, ack, flags, wire):
                    if assembler.closed is None:
                        self._finish(assembler, order)
                    self._collect(assembler, self._done)
                    self._touched.pop(assembler, None)
                    assembler = None
                    assembler = self._create(key, row)
                assembler.step(order, time_ns, number, file, reverse ^ assembler.flip, seq, ack, flags, offset, length, wire, buffer)
            except Exception as error:
                what, mark = bug(error), (order, number, file, time_ns)
                if assembler is None:
                    self._table.pop(key, None)
                    self.lost.append(Failure(what, order, number, file))
                    continue
                assembler.fail(what, order, mark)
                try:
                    assembler.step(order, time_ns, number, file, reverse ^ assembler.flip, seq, ack, flags, offset, length, wire, buffer)
                except Exception as again:
                    bug(again)
        if assembler is not None:
            self._touched[assembler] = None

    def _in_order(self, batch: SegmentBatch) -> None:
        flow = batch.flow.tobytes()
        buffer = batch.buffer
        table, pool = self._table, self._pool
        at = 0
        for row in _columns(batch, None).tolist():
            key = flow[at : at + 40]
            at += 40
            assembler = table.get(key)
            if assembler is None and self._bare is not None:
                if self._keep_bare(key, [row]):
                    continue
                assembler = table.get(key)
            self._walk(key, assembler, [row], buffer)
            if pool.total > pool.total_limit:
                for assembler in pool.relieve(row[0]):
                    self._touched[assembler] = None

    def _by_column(self, batch: SegmentBatch) -> None:
        try:
            found = _grouped(batch)
        except Exception as error:
            self.detours.append(Detour(bug(error)))
            found = None
        if found is None:
            self._in_order(batch)
            return
        by_flow, keys, plain = found
        rows: NDArray[np.int64] | None = None
        buffer = batch.buffer
        table, touched = self._table, self._touched
        for stretch, (flow, low, high, walk) in enumerate(plain.stretches):
            key = keys[flow * 40 : flow * 40 + 40]
            assembler = table.get(key)
            if not walk and assembler is not None:
                try:
                    taken = plain.take(assembler, stretch)
                except Exception as error:
                    self.detours.append(Detour(bug(error), assembler.conversation))
                    taken = False
                if taken:
                    touched[assembler] = None
                    continue
            if rows is None:
                rows = _columns(batch, by_flow)
            mine = rows[low:high].tolist()
            if assembler is None and self._bare is not None:
                if self._keep_bare(key, mine):
                    continue
                assembler = table.get(key)
            self._walk(key, assembler, mine, buffer)


def _flip(row: list[int]) -> int:
    """Which end of its key the side is that began with this packet."""
    # The sender of a SYN-ACK is not the one who began.
    return row[REVERSE] ^ (row[FLAGS] & (SYN | ACK) == SYN | ACK)


def _leaves(assembler: Assembler, idle_ns: int, closed_ns: int) -> int:
    """When a conversation is forgotten if no packet comes. Who waits for a connection should not wait to be told that it was reset."""
    conversation = assembler.conversation
    if conversation.open and assembler.closed is None:
        return conversation.last[3] + idle_ns
    return conversation.last[3] + (min(closed_ns, LAST_NS) if assembler.reset else closed_ns)


def _collect_singly(assembler: Assembler, what: str) -> list[Any]:
    """What was released, where joining it has raised an exception: up to the piece that raises it."""
    items: list[Any] = []
    failed = []
    for stream in assembler.streams:
        found = stream.flush_singly()
        if found is not None:
            failed.append(found)
        items += stream.items or ()
        stream.items = None
    last = assembler.conversation.last
    assembler.fail(*min(failed, key=lambda one: one[1], default=(what, last[0], last)))
    assembler.collect()
    return items


def _grouped(batch: SegmentBatch) -> tuple[NDArray[np.int64], bytes, _Plain] | None:
    """The rows by flow, the keys of the flows, and the stretches of each; None where two pairs of endpoints have one mixed key."""
    count = len(batch)
    words = np.ascontiguousarray(batch.flow).view(np.uint64)
    mixed = mix(words)
    by_flow = np.argsort(mixed, kind="stable")
    mixed = mixed[by_flow]
    border = np.empty(count, np.bool_)
    border[0] = True
    np.not_equal(mixed[1:], mixed[:-1], out=border[1:])
    words = words[by_flow]
    unlike = (words[1:] != words[:-1]).any(axis=1)
    if (unlike & ~border[1:]).any():
        return None
    begin = np.flatnonzero(border)
    return by_flow, words[begin].tobytes(), _Plain(batch, by_flow, begin)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for each flow, given as its five words; two flows may share it."""
    mixed: NDArray[np.uint64] = words[:, 0] * _FACTORS[0]
    for column in range(1, 5):
        mixed ^= mixed >> np.uint64(29)
        mixed += words[:, column] * _FACTORS[column]
    return mixed


def _columns(batch: SegmentBatch, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The columns that `Conversations._walk` takes, as a matrix with one row a segment."""
    columns: list[NDArray[Any]] = [batch.order, batch.time_ns, batch.number, batch.file, batch.reverse, batch.seq, batch.ack, batch.flags]
    columns += [batch.offset, batch.length, batch.wire]
    matrix = np.empty((len(batch), len(columns)), np.int64)
    for index, column in enumerate(columns):
        matrix[:, index] = column if rows is None else column[rows]
    return matrix


def is_between(key: bytes, ports: Collection[int]) -> bool:
    """Whether one of these is a port of the conversation with this key."""
    return any(int.from_bytes(key[at : at + 2], "big") in ports for at in (16, 34))


def endpoint(key: bytes, at: int) -> tuple[str, int]:
    """One of the two endpoints of a key as text, and its port."""
    return _endpoint(key[at : at + 18], key[36])


@lru_cache(1_024)
def _endpoint(end: bytes, version: int) -> tuple[str, int]:
    """The same; a server's is one text for all of its conversations."""
    port = int.from_bytes(end[16:], "big")
    if version == 4:
        return f"{inet_ntop(AF_INET, end[:4])}:{port}", port
    return f"[{inet_ntop(AF_INET6, end[:16])}]:{port}", port


def _around(trouble: NDArray[np.int64], flow: NDArray[np.int64], begin: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows to walk: those in trouble, and the few between them or the ends of their flow, which are not worth a stretch."""
    count = len(flow)
    if not len(trouble):
        return np.zeros(count, np.bool_)
    trouble.sort()
    owner = flow[trouble]
    end = np.append(begin[1:], count)
    apart = (np.diff(trouble) > SHORT) | (np.diff(owner) != 0)
    first = trouble[np.append(True, apart)]
    last = trouble[np.append(apart, True)] + 1
    from_begin, to_end = begin[flow[first]], end[flow[first]]
    first = np.where(first - from_begin < SHORT, from_begin, first)
    last = np.where(to_end - last < SHORT, to_end, last)
    change = np.zeros(count + 1, np.int8)
    change[first] += 1
    change[last] -= 1
    return np.cumsum(change[:-1], dtype=np.int8) > 0


class _Plain:
    """The stretches of a batch: rows of one flow in packet order, either around some trouble, or with none to be seen between them.

    Those without trouble fall in halves, one for each side that sends.
    """

    def __init__(self, batch: SegmentBatch, by_flow: NDArray[np.int64], begin: NDArray[np.int64]) -> None:
        count, flows = len(by_flow), len(begin)
        flow = np.repeat(np.arange(flows), np.diff(begin, append=count))
        side = flow * 2 + batch.reverse[by_flow]
        # numpy sorts 16-bit integers several times as fast.
        place = np.argsort(side.astype(np.uint16) if flows < 1 << 15 else side, kind="stable")
        side = side[place]
        rows = by_flow[place]

        seq, wire = batch.seq[rows], batch.wire[rows]
        flags = batch.flags[rows]
        trouble = wire != batch.length[rows]
        trouble |= flags & (ACK | SYN | FIN | RST) != ACK
        # A SYN counts one number.
        after = seq + wire + ((flags & SYN) == SYN)
        trouble[1:] |= (after[:-1] & MASK != seq[1:]) & (side[1:] == side[:-1])
        walk = _around(place[trouble], flow, begin)

        border = np.empty(count, np.bool_)
        border[0] = True
        np.not_equal(walk[1:], walk[:-1], out=border[1:])
        border[begin] = True
        low = np.flatnonzero(border)
        high = np.append(low[1:], count)
        self.stretches = list(zip(flow[low].tolist(), low.tolist(), high.tolist(), walk[low].tolist(), strict=True))
        """The flow, rows from and to (counted in `by_flow`), and whether there is trouble."""

        kept = np.flatnonzero(~walk[place])
        if len(kept):
            last = by_flow[high - 1]
            columns = (batch.order, batch.number, batch.file, batch.time_ns)
            self._last = list(zip(*[column[last].tolist() for column in columns], strict=True))
            side = (np.cumsum(border) - 1)[place[kept]] * 2 + (side[kept] & 1)
            self._divide(batch, side, rows[kept], seq[kept], wire[kept])

    def _divide(
        self, batch: SegmentBatch, side: NDArray[np.int64], rows: NDArray[np.int64], seq: NDArray[np.int64], wire: NDArray[np.int64]
    ) -> None:
        """The halves of the stretches in no trouble; `side` is twice the stretch, and one more for the reverse side of it."""
        count = len(rows)
        border = np.empty(count, np.bool_)
        border[0] = True
        np.not_equal(side[1:], side[:-1], out=border[1:])
        begin = np.flatnonzero(border)
        sizes = np.diff(begin, append=count)
        ack = batch.ack[rows]
        base = ack[begin]
        ahead = ((ack - np.repeat(base, sizes) + 0x8000_0000) & MASK) - 0x8000_0000
        times = batch.time_ns[rows]
        # Acknowledgements so far apart have no order on the circle.
        self._trouble = (np.maximum.reduceat(np.abs(ahead), begin) > FAR).tolist()
        self._ack = (base + np.maximum.reduceat(ahead, begin)).tolist()
        self._seq = seq[begin].tolist()
        self._latest = np.maximum.reduceat(times, begin).tolist()
        self._packets = sizes.tolist()
        self._bytes = np.add.reduceat(wire, begin).tolist()
        half = np.full(2 * len(self.stretches), -1, np.int64)
        half[side[begin]] = np.arange(len(begin))
        self._half = half.tolist()

        filled = np.flatnonzero(wire)
        self._data = np.searchsorted(filled, np.append(begin, count)).tolist()
        before = np.cumsum(wire) - wire
        rows = rows[filled]
        offset = batch.offset[rows]
        self._columns = Columns(
            batch.buffer,
            offset,
            offset + wire[filled],
            (before - np.repeat(before[begin], sizes))[filled],
            batch.order[rows],
            batch.number[rows],
            batch.file[rows],
            times[filled],
        )

    def take(self, assembler: Assembler, stretch: int) -> bool:
        """Hand the rows of a stretch to their conversation, if they follow what it has and it is in no trouble; otherwise do nothing."""
        one, two = assembler.streams
        if (
            type(assembler) is Counting
            or assembler.closed is not None
            or assembler.reset
            or one.waiting is not None
            or two.waiting is not None
            or one.fin is not None
            or two.fin is not None
        ):
            return False
        half, back = self._half[2 * stretch], self._half[2 * stretch + 1]
        if assembler.flip:
            half, back = back, half
        size = size_back = 0
        if half >= 0:
            if not self._follows(half, one):
                return False
            size = self._bytes[half]
        if back >= 0:
            if not self._follows(back, two):
                return False
            size_back = self._bytes[back]
        acked: int | None = one.acked
        acked_back: int | None = two.acked
        if half >= 0:
            acked_back = self._acked(half, two, size_back)
            if acked_back is None:
                return False
        if back >= 0:
            acked = self._acked(back, one, size)
            if acked is None:
                return False
        assert acked is not None and acked_back is not None
        new = self._taken(half, one, acked) if half >= 0 and size else None
        new_back = self._taken(back, two, acked_back) if back >= 0 and size_back else None
        # Nothing was changed until here, so that what raises an exception can be taken another way
        one.acked, two.acked = acked, acked_back
        for at, stream, taken in ((half, one, new), (back, two, new_back)):
            if at < 0:
                continue
            packets, size, latest = self._packets[at], self._bytes[at], self._latest[at]
            stream.count.packets += packets
            stream.count.bytes += size
            assembler.packets += packets
            if latest > assembler.clock:
                assembler.clock = latest
            if taken is not None:
                item, stream.recent, stream.notes = taken
                stream.put(item)
                stream.next = stream.sent = stream.next + size
        assembler.conversation.last = assembler.conversation.latest = self._last[stretch]
        return True

    def _follows(self, half: int, stream: ByteStream) -> bool:
        """Whether the rows of a half follow what was there before."""
        if self._trouble[half] or not stream.known or (self._seq[half] - stream.base - stream.next) & MASK:
            return False
        return stream.sent <= stream.next and (stream.known == FIXED or not self._bytes[half])

    def _acked(self, half: int, stream: ByteStream, more: int) -> int | None:
        """The position that the rows of a half acknowledge in the other side's `stream` after `more` bytes; None if those are missing."""
        if not stream.known:
            # The first acknowledgement may tell where the byte stream begins.
            return None if stream.hint is None else stream.acked
        end = stream.next + more
        ahead = ((self._ack[half] - stream.base - end + 0x8000_0000) & MASK) - 0x8000_0000
        return max(end + ahead, stream.acked) if -FAR <= ahead <= 0 else None

    def _taken(self, half: int, stream: ByteStream, acked: int) -> tuple[Chunk | Stretch, bytes, Any]:
        """The bytes of a half to be released, then the last bytes released, and the notes that are left."""
        if stream.run:
            stream.flush()
        size, position = self._bytes[half], stream.next
        low, high = self._data[half], self._data[half + 1]
        end = position + size
        columns = self._columns
        stretch = Stretch(stream.side, position - stream.origin, size, low, high, columns)
        keep = stream.keep(end, acked)
        last = low if size <= keep else max(low, low + int(np.searchsorted(columns.start[low:high], size - keep, "right")) - 1)
        recent = stream.latest(_joined(columns.buffer, columns.offset[last:high].tolist(), columns.end[last:high].tolist()), keep)
        if not stream.notes:
            return stretch, recent, None
        chunk = stretch.chunk()
        chunk.notes, left = stream.parted_notes(position, end)
        return chunk, recent, left
