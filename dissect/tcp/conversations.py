"""Sorts segments into conversations and hands on their byte streams.

A batch is grouped by column. Most of the time the segments of each side of a conversation follow each other without a gap, which one
comparison over the whole batch tells; then their payloads are joined at once. Whatever is not so plain (SYN, FIN, RST, a segment that
is repeated, early, late or cut, an acknowledgement of bytes not captured) goes through `assembler` segment by segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dissect.model import Chunk, Hole, Options, SegmentBatch
from dissect.tcp.assembler import ACK, END, FIN, FIXED, PIECE_COST, RST, SYN, Assembler, ByteStream, Conversation, Pool
from dissect.tcp.sequence import FAR, MASK

__all__ = ["END", "Conversation", "Conversations", "Delivery"]

FEW = 8
"""Batches of so few segments cost less one by one than by column."""

_FACTORS = np.array(
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x85EB_CA77_C2B2_AE63, 0x27D4_EB2F_1656_67C5], np.uint64
)


class Delivery(msgspec.Struct):
    """What became certain of one conversation. `closed`: the packet that ended it, END at the end of the capture, None while open."""

    conversation: Conversation
    items: list[Chunk | Hole]
    closed: int | None


class Conversations:
    """All conversations of a capture."""

    def __init__(self, options: Options) -> None:
        self._pool = Pool(options)
        self._table: dict[bytes, Assembler] = {}
        self._count = 0
        # Made in this call of `feed`, with the order of their first packet.
        self._new: list[Conversation] = []
        # Have something to deliver, or may have.
        self._touched: dict[Assembler, None] = {}
        self._done: list[Delivery] = []

    def feed(self, batch: SegmentBatch) -> list[Delivery]:
        """What these segments made certain, by conversation."""
        count = len(batch)
        if count:
            pool = self._pool
            if count <= FEW or pool.total + int(np.maximum(batch.length, PIECE_COST).sum()) > pool.total_limit:
                # The limit over all conversations is the one thing that makes them depend on each other: keep their order.
                self._in_order(batch)
            else:
                self._by_column(batch)
        return self._deliver()

    def finish(self) -> list[Delivery]:
        """What is left at the end of the capture."""
        for assembler in self._table.values():
            if assembler.closed is None:
                assembler.finish(END)
                self._touched[assembler] = None
        return self._deliver()

    def _deliver(self) -> list[Delivery]:
        self._new.sort(key=lambda conversation: conversation.first)
        for conversation in self._new:
            conversation.index = self._count
            self._count += 1
        self._new.clear()
        deliveries, self._done = self._done, []
        for assembler in self._touched:
            self._collect(assembler, deliveries)
        self._touched.clear()
        deliveries.sort(key=lambda delivery: delivery.conversation.index)
        return deliveries

    def _collect(self, assembler: Assembler, deliveries: list[Delivery]) -> None:
        items = assembler.collect()
        closed = assembler.closed
        if assembler.told:
            return
        if closed is not None:
            assembler.told = True
        elif not items:
            return
        deliveries.append(Delivery(assembler.conversation, items, closed))

    def _create(self, key: bytes, reverse: int, flags: int, mark: tuple[int, int, int, int]) -> Assembler:
        """A conversation that begins with this packet."""
        # The sender of a SYN-ACK is not the one who began.
        flip = reverse ^ (flags & (SYN | ACK) == SYN | ACK)
        low, high = _endpoint(key, 0), _endpoint(key, 18)
        (one, port), (two, other_port) = (high, low) if flip else (low, high)
        conversation = Conversation((one, two), (port, other_port), mark, mark)
        self._new.append(conversation)
        assembler = Assembler(conversation, flip, self._pool)
        self._table[key] = assembler
        return assembler

    def _walk(self, key: bytes, assembler: Assembler | None, rows: Iterable[list[int]], buffer: bytes) -> Assembler:
        """Take segments of one pair of endpoints one by one; returns the conversation that the last one belongs to."""
        for order, time_ns, number, file, reverse, seq, ack, flags, offset, length, wire in rows:
            if assembler is None:
                assembler = self._create(key, reverse, flags, (order, number, file, time_ns))
            elif (wire or flags & SYN) and not assembler.takes(reverse ^ assembler.flip, seq, ack, flags, wire):
                if assembler.closed is None:
                    assembler.finish(order)
                self._collect(assembler, self._done)
                self._touched.pop(assembler, None)
                assembler = self._create(key, reverse, flags, (order, number, file, time_ns))
            assembler.step(order, time_ns, number, file, reverse ^ assembler.flip, seq, ack, flags, offset, length, wire, buffer)
        assert assembler is not None
        self._touched[assembler] = None
        return assembler

    def _in_order(self, batch: SegmentBatch) -> None:
        flow = batch.flow.tobytes()
        buffer = batch.buffer
        table, pool = self._table, self._pool
        at = 0
        for row in _columns(batch, None).tolist():
            key = flow[at : at + 40]
            at += 40
            self._walk(key, table.get(key), (row,), buffer)
            if pool.total > pool.total_limit:
                for assembler in pool.relieve(row[0]):
                    self._touched[assembler] = None

    def _by_column(self, batch: SegmentBatch) -> None:
        count = len(batch)
        words = np.ascontiguousarray(batch.flow).view(np.uint64)
        mixed = words[:, 0] * _FACTORS[0]
        for column in range(1, 5):
            mixed ^= mixed >> np.uint64(29)
            mixed += words[:, column] * _FACTORS[column]
        by_flow = np.argsort(mixed, kind="stable")
        mixed = mixed[by_flow]
        border = np.empty(count, np.bool_)
        border[0] = True
        np.not_equal(mixed[1:], mixed[:-1], out=border[1:])
        words = words[by_flow]
        unlike = (words[1:] != words[:-1]).any(axis=1)
        if (unlike & ~border[1:]).any():
            # Two pairs of endpoints with one mixed key.
            self._in_order(batch)
            return
        begin = np.flatnonzero(border)
        self._grouped(batch, by_flow, begin, words[begin].tobytes())

    def _grouped(self, batch: SegmentBatch, by_flow: NDArray[np.int64], begin: NDArray[np.int64], keys: bytes) -> None:
        """Take a batch whose rows in the order `by_flow` lie together by flow; `begin` says where each flow begins."""
        count = len(by_flow)
        end = np.append(begin[1:], count)
        flags = batch.flags[by_flow]
        # Rows of a flow up to its last SYN, and from its first FIN or RST on, are walked; those between may be plain.
        special = np.flatnonzero(flags & (SYN | FIN | RST))
        first, stop = begin.copy(), end.copy()
        if len(special):
            owner = np.searchsorted(begin, special, "right") - 1
            opening = flags[special] & SYN != 0
            np.maximum.at(first, owner[opening], special[opening] + 1)
            np.minimum.at(stop, owner[~opening], special[~opening])
            np.maximum(first, stop, out=stop)
        plain = _Plain(batch, by_flow, first, stop)

        rows: NDArray[np.int64] | None = None
        buffer = batch.buffer
        table, touched = self._table, self._touched
        at = 0
        for group, (low, start, rest, high) in enumerate(zip(begin.tolist(), first.tolist(), stop.tolist(), end.tolist(), strict=True)):
            key = keys[at : at + 40]
            at += 40
            assembler = table.get(key)
            if low < start:
                if rows is None:
                    rows = _columns(batch, by_flow)
                assembler = self._walk(key, assembler, rows[low:start].tolist(), buffer)
            if start < rest:
                if assembler is not None and plain.take(assembler, group):
                    touched[assembler] = None
                else:
                    if rows is None:
                        rows = _columns(batch, by_flow)
                    assembler = self._walk(key, assembler, rows[start:rest].tolist(), buffer)
            if rest < high:
                if rows is None:
                    rows = _columns(batch, by_flow)
                self._walk(key, assembler, rows[rest:high].tolist(), buffer)


def _columns(batch: SegmentBatch, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The columns that `Conversations._walk` takes, as a matrix with one row a segment."""
    columns: list[NDArray[Any]] = [batch.order, batch.time_ns, batch.number, batch.file, batch.reverse, batch.seq, batch.ack, batch.flags]
    columns += [batch.offset, batch.length, batch.wire]
    matrix = np.empty((len(batch), len(columns)), np.int64)
    for index, column in enumerate(columns):
        matrix[:, index] = column if rows is None else column[rows]
    return matrix


def _endpoint(key: bytes, at: int) -> tuple[str, int]:
    port = int.from_bytes(key[at + 16 : at + 18], "big")
    if key[36] == 4:
        return f"{inet_ntop(AF_INET, key[at : at + 4])}:{port}", port
    return f"[{inet_ntop(AF_INET6, key[at : at + 16])}]:{port}", port


class _Plain:
    """The rows of a batch that may be plain, in parts: one side of one flow each."""

    def __init__(self, batch: SegmentBatch, by_flow: NDArray[np.int64], first: NDArray[np.int64], stop: NDArray[np.int64]) -> None:
        """The rows of each flow from `first` to before `stop`, which count in `by_flow`."""
        groups = len(first)
        self._buffer = batch.buffer
        sizes = stop - first
        group = np.repeat(np.arange(groups), sizes)
        rows = by_flow[np.arange(len(group)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)]
        self._empty = not len(rows)
        if self._empty:
            return
        side = group * 2 + batch.reverse[rows]
        # numpy sorts 16-bit integers several times as fast.
        by_side = np.argsort(side.astype(np.uint16) if groups < 1 << 15 else side, kind="stable")
        side = side[by_side]
        rows = rows[by_side]
        count = len(rows)

        seq, ack = batch.seq[rows], batch.ack[rows]
        wire = batch.wire[rows]
        times = batch.time_ns[rows]
        border = np.empty(count, np.bool_)
        border[0] = True
        np.not_equal(side[1:], side[:-1], out=border[1:])
        begin = np.flatnonzero(border)
        sizes = np.diff(begin, append=count)

        trouble = wire != batch.length[rows]
        trouble |= batch.flags[rows] & ACK == 0
        trouble[1:] |= ((seq[:-1] + wire[:-1]) & MASK != seq[1:]) & ~border[1:]
        base = ack[begin]
        ahead = ((ack - np.repeat(base, sizes) + 0x8000_0000) & MASK) - 0x8000_0000
        # Acknowledgements so far apart have no order on the circle.
        trouble |= np.abs(ahead) > FAR
        self._trouble = np.logical_or.reduceat(trouble, begin).tolist()
        self._ack = (base + np.maximum.reduceat(ahead, begin)).tolist()
        self._seq = seq[begin].tolist()
        self._latest = np.maximum.reduceat(times, begin).tolist()
        self._packets = sizes.tolist()
        self._bytes = np.add.reduceat(wire, begin).tolist()
        self._side = (side[begin] & 1).tolist()
        self._part = np.searchsorted(side[begin], np.arange(groups + 1) * 2).tolist()

        last = by_flow[np.maximum(stop, 1) - 1]
        self._last = list(
            zip(
                batch.order[last].tolist(),
                batch.number[last].tolist(),
                batch.file[last].tolist(),
                batch.time_ns[last].tolist(),
                strict=True,
            )
        )

        filled = np.flatnonzero(wire)
        self._data = np.searchsorted(filled, np.append(begin, count)).tolist()
        before = np.cumsum(wire) - wire
        self._starts = (before - np.repeat(before[begin], sizes))[filled].tolist()
        rows = rows[filled]
        offset = batch.offset[rows]
        self._offsets = offset.tolist()
        self._ends = (offset + wire[filled]).tolist()
        self._orders = batch.order[rows].tolist()
        self._numbers = batch.number[rows].tolist()
        self._files = batch.file[rows].tolist()
        self._times = times[filled].tolist()

    def take(self, assembler: Assembler, group: int) -> bool:
        """Hand the rows of one flow to its conversation, if they are plain and it is in no trouble; otherwise do nothing."""
        one, two = assembler.streams
        if (
            assembler.closed is not None
            or assembler.reset
            or one.waiting is not None
            or two.waiting is not None
            or one.fin is not None
            or two.fin is not None
        ):
            return False
        part = self._part[group]
        flip = assembler.flip
        side = self._side[part] ^ flip
        own, other = assembler.streams[side], assembler.streams[1 - side]
        more = self._part[group + 1] - part == 2
        if not self._follows(part, own) or (more and not self._follows(part + 1, other)):
            return False
        back = self._bytes[part + 1] if more else 0
        acked = self._acked(part, other, back)
        if acked is None:
            return False
        if more:
            acked_back = self._acked(part + 1, own, self._bytes[part])
            if acked_back is None:
                return False
            own.acked = max(own.acked, acked_back)
        other.acked = max(other.acked, acked)
        self._add(part, assembler, own)
        if more:
            self._add(part + 1, assembler, other)
        assembler.conversation.last = self._last[group]
        return True

    def _follows(self, part: int, stream: ByteStream) -> bool:
        """Whether the rows of a part follow each other and what was there before."""
        if self._trouble[part] or not stream.known or (self._seq[part] - stream.base - stream.next) & MASK:
            return False
        return not self._bytes[part] or (stream.known == FIXED and stream.sent <= stream.next)

    def _acked(self, part: int, stream: ByteStream, more: int) -> int | None:
        """The position that the rows of a part acknowledge in the other side's `stream` after `more` bytes; None if those are missing."""
        if not stream.known:
            # The first acknowledgement may tell where the byte stream begins.
            return None if stream.hint is None else stream.acked
        end = stream.next + more
        ahead = ((self._ack[part] - stream.base - end + 0x8000_0000) & MASK) - 0x8000_0000
        return end + ahead if -FAR <= ahead <= 0 else None

    def _add(self, part: int, assembler: Assembler, stream: ByteStream) -> None:
        packets, size = self._packets[part], self._bytes[part]
        count = stream.count
        count.packets += packets
        count.bytes += size
        assembler.packets += packets
        if self._latest[part] > assembler.clock:
            assembler.clock = self._latest[part]
        if not size:
            return
        if stream.run:
            stream.flush()
        low, high = self._data[part], self._data[part + 1]
        buffer = self._buffer
        if high - low == 1:
            data = buffer[self._offsets[low] : self._ends[low]]
        else:
            data = b"".join([buffer[start:end] for start, end in zip(self._offsets[low:high], self._ends[low:high], strict=True)])
        position = stream.next
        end = stream.next = stream.sent = position + size
        orders = self._orders[low:high]
        stream.items.append(
            Chunk(
                stream.side,
                position - stream.origin,
                data,
                self._starts[low:high],
                orders,
                orders,
                self._numbers[low:high],
                self._files[low:high],
                self._times[low:high],
                stream.take_notes(position, end) if stream.notes else (),
            )
        )
        stream.remember(data)
