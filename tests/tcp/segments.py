"""Builds segment batches by hand, cuts them in pieces, and brings what the reassembler says of them into one comparable form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dissect.model import Chunk, Options, SegmentBatch, StreamGap
from dissect.tcp import conversations
from dissect.tcp.conversations import Conversation, Conversations, Delivery

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MASK = 0xFFFF_FFFF

A, B = ("192.0.2.1", 40000), ("192.0.2.2", 5552)
"""A is the lower endpoint."""


class Segment(NamedTuple):
    """One segment; `wire` None: nothing was cut off. `number` and `order` are where it stands in the list."""

    src: tuple[str, int]
    dst: tuple[str, int]
    seq: int
    data: bytes = b""
    ack: int | None = None
    flags: int = ACK
    time_ns: int | None = None
    wire: int | None = None


def a(seq: int, data: bytes = b"", ack: int | None = 5000, flags: int = ACK, **more: Any) -> Segment:
    """A segment of A, whose SYN would have had 999 where a test says nothing else."""
    return Segment(A, B, seq, data, ack, flags, **more)


def b(seq: int, data: bytes = b"", ack: int | None = 1000, flags: int = ACK, **more: Any) -> Segment:
    """A segment of B, whose SYN would have had 4999."""
    return Segment(B, A, seq, data, ack, flags, **more)


def handshake() -> list[Segment]:
    """A's byte stream begins at 1000, B's at 5000."""
    return [a(999, ack=None, flags=SYN), b(4999, ack=1000, flags=SYN | ACK), a(1000, ack=5000)]


def _address(endpoint: tuple[str, int]) -> bytes:
    host, port = endpoint
    return bytes(int(part) for part in host.split(".")).ljust(16, b"\0") + port.to_bytes(2, "big")


def batch(segments: Sequence[Segment], first: int = 0) -> SegmentBatch:
    """Segments as a batch whose first one is packet `first`; a packet each millisecond where they give no time."""
    count = len(segments)
    flow = np.zeros((count, 40), np.uint8)
    reverse = np.zeros(count, np.bool_)
    buffer = bytearray(b"before the first payload")
    offsets = []
    for index, segment in enumerate(segments):
        source, target = _address(segment.src), _address(segment.dst)
        reverse[index] = source > target
        low, high = sorted((source, target))
        flow[index] = np.frombuffer(low + high + b"\4\0\0\0", np.uint8)
        offsets.append(len(buffer))
        buffer += segment.data + b"\xee"
    order = np.arange(first, first + count, dtype=np.int64)
    times = [(first + index) * 1_000_000 if segment.time_ns is None else segment.time_ns for index, segment in enumerate(segments)]
    return SegmentBatch(
        bytes(buffer),
        order,
        np.array(times, np.int64),
        order + 1,
        np.zeros(count, np.int32),
        flow,
        reverse,
        np.array([segment.seq & MASK for segment in segments], np.int64),
        np.array([(segment.ack or 0) & MASK for segment in segments], np.int64),
        np.array([segment.flags for segment in segments], np.uint8),
        np.full(count, 65535, np.int32),
        np.array(offsets, np.int64),
        np.array([len(segment.data) for segment in segments], np.int64),
        np.array([len(segment.data) if segment.wire is None else segment.wire for segment in segments], np.int64),
    )


class Story(NamedTuple):
    """What was said of one conversation, independent of how bytes came joined in chunks.

    `items` of both sides: ("bytes", position, bytes, order, release, number, time_ns) a segment, ("gap", position, size, reason,
    release, order) a gap; `notes` (position, text) of both sides.
    """

    conversation: Conversation
    items: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]
    notes: tuple[list[tuple[int, str]], list[tuple[int, str]]]
    closed: list[int]
    ends: list[tuple[int, int, int, int]]

    def bytes(self, side: int) -> bytes:
        """The bytes of a side, a dot for each that is missing."""
        return b"".join(item[2] if item[0] == "bytes" else b"." * item[2] for item in self.items[side])

    def gaps(self, side: int) -> list[tuple[int, int, str]]:
        return [item[1:4] for item in self.items[side] if item[0] == "gap"]

    def summary(self) -> tuple[Any, ...]:
        """All that must not depend on batches."""
        row = self.conversation
        counts = [tuple(getattr(side, name) for name in side.__struct_fields__) for side in row.sides]
        head = (row.index, row.endpoints, row.ports, row.first, row.last, row.latest, row.syn, row.ended, row.open, row.limit_hits)
        return (*head, counts, self.items, self.notes, self.closed, self.ends)


def feed(segments: Sequence[Segment], size: int | None = None, options: Options | None = None, bare: bool = False) -> list[Story]:
    """What becomes of segments in batches of `size`, by conversation."""
    return run([batch(segments[at : at + size], at) for at in range(0, len(segments), size)] if size else [batch(segments)], options, bare)


def run(batches: Iterable[SegmentBatch], options: Options | None = None, bare: bool = False) -> list[Story]:
    tcp = Conversations(options or Options(), bare)
    stories: dict[int, Story] = {}
    for one in batches:
        _add(stories, tcp.feed(one))
    _add(stories, tcp.finish())
    nothing = [tcp.bare_delivery(key) for _, key in tcp.bare()]
    assert not any(delivery.items for delivery in nothing)
    _add(stories, nothing)
    assert tcp.feed(batch([])) == []
    assert (tcp._pool.total, tcp._pool.count) == (0, 0)
    return [stories[index] for index in sorted(stories)]


def _add(stories: dict[int, Story], deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        index = delivery.conversation.index
        story = stories.setdefault(index, Story(delivery.conversation, ([], []), ([], []), [], []))
        assert not story.closed, "nothing follows the end of a conversation"
        for item in delivery.items:
            check(item)
            into = story.items[item.side]
            assert item.position == (_end(into[-1]) if into else 0)
            if isinstance(item, StreamGap):
                into.append(("gap", item.position, item.size, item.reason, item.release, item.order))
                continue
            story.notes[item.side].extend(item.notes)
            ends = [*item.starts[1:], len(item.data)]
            columns = zip(item.starts, ends, item.orders, item.releases, item.numbers, item.times, strict=True)
            for start, end, order, release, number, time_ns in columns:
                into.append(("bytes", item.position + start, item.data[start:end], order, release, number, time_ns))
        if delivery.closed is not None:
            story.closed.append(delivery.closed)
            # Nothing that comes later may change it: a batch may hold more packets.
            story.ends.append(delivery.conversation.last)
            for side in (0, 1):
                size = sum(len(item[2]) if item[0] == "bytes" else item[2] for item in story.items[side])
                assert delivery.conversation.stream_bytes[side] == size
                releases = [item[4] for item in story.items[side]]
                assert releases == sorted(releases)
                assert not releases or releases[-1] <= delivery.closed


def _end(item: tuple[Any, ...]) -> int:
    return int(item[1]) + (len(item[2]) if item[0] == "bytes" else int(item[2]))


def check(item: Chunk | StreamGap) -> None:
    """What holds of every item by itself."""
    if isinstance(item, StreamGap):
        assert item.size > 0
        return
    assert item.data and item.starts[0] == 0
    assert all(one < two for one, two in zip(item.starts, [*item.starts[1:], len(item.data)], strict=True))
    assert all(order <= release for order, release in zip(item.orders, item.releases, strict=True))
    assert all(item.position <= at < item.position + len(item.data) for at, _ in item.notes)


def tell(segments: Sequence[Segment], options: Options | None = None) -> list[Story]:
    """What becomes of segments: must be the same in batches of one, of a few, and in one, however those that carry nothing are kept."""
    stories = feed(segments, None, options)
    whole = [story.summary() for story in stories]
    few = conversations.FEW
    try:
        # By column, however few segments, and then as it comes.
        for conversations.FEW in (0, few):
            for size in (1, 3, 7, 20, None):
                for bare in (False, True):
                    parts = feed(segments, size, options, bare)
                    assert [story.summary() for story in parts] == whole, f"batches of {size}"
    finally:
        conversations.FEW = few
    return stories


def one(segments: Sequence[Segment], options: Options | None = None) -> Story:
    """The same for segments of one conversation."""
    (story,) = tell(segments, options)
    return story
