"""Builds segments by hand and brings what the reassembler says of them into one comparable form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest.mock import patch

from streamdump import model
from streamdump.capture.files import open_capture
from streamdump.capture.link import RAW, LinkParser
from streamdump.conversation import table
from streamdump.conversation.conversation import Conversation, Items
from streamdump.conversation.run_state import Reports, RunCounters, SharedState
from streamdump.conversation.table import ConversationTable
from streamdump.model import Options, SideData, StreamGap
from streamdump.protocols.records import Event
from streamdump.tcp.assembler import Pool, SideCounts, TcpStream
from streamdump.tls.keys import KeyLog
from streamdump.tls.manager import TlsManager
from tests.support.frames import ip4, tcp

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
    damaged: bool = False


def a(seq: int, data: bytes = b"", ack: int | None = 5000, flags: int = ACK, **more: Any) -> Segment:
    """A segment of A, whose SYN would have had 999 where a test says nothing else."""
    return Segment(A, B, seq, data, ack, flags, **more)


def b(seq: int, data: bytes = b"", ack: int | None = 1000, flags: int = ACK, **more: Any) -> Segment:
    """A segment of B, whose SYN would have had 4999."""
    return Segment(B, A, seq, data, ack, flags, **more)


def handshake() -> list[Segment]:
    """A's byte stream begins at 1000, B's at 5000."""
    return [a(999, ack=None, flags=SYN), b(4999, ack=1000, flags=SYN | ACK), a(1000, ack=5000)]


def _address(host: str) -> bytes:
    return bytes(int(part) for part in host.split("."))


def made(segments: Iterable[Segment], first: int = 0, file: int = 0) -> list[model.Segment]:
    """Segments of which the first one is packet `first`; a packet each millisecond where they give no time."""
    found = []
    for order, one in enumerate(segments, first):
        (source, sport), (target, dport) = one.src, one.dst
        ends = _address(source) + _address(target) + sport.to_bytes(2, "big") + dport.to_bytes(2, "big")
        time_ns = order * 1_000_000 if one.time_ns is None else one.time_ns
        wire = len(one.data) if one.wire is None else one.wire
        seq, ack, mark = one.seq & MASK, (one.ack or 0) & MASK, (order, order + 1, file, time_ns)
        found.append(model.Segment(ends, mark, seq, ack, one.flags, 65535, one.data, wire, damaged=one.damaged))
    return found


def captured(segments: Sequence[Segment], first: int = 0) -> list[model.Packet]:
    """The same as packets of a capture."""
    found = []
    for (src, dst, *_), one in zip(segments, made(segments, first), strict=True):
        payload = tcp(one.data, sport=src[1], dport=dst[1], seq=one.seq, ack=one.ack, flags=one.flags)
        data = ip4(payload, src=_address(src[0]), dst=_address(dst[0]))
        size = len(data) + one.wire - len(one.data)
        found.append(model.Packet(data, one.time_ns, one.number, one.file, 0, len(data), size, RAW[0]))
    return found


class Story(NamedTuple):
    """What was said of one conversation.

    `items` of both sides: ("bytes", position, bytes, order, release, number, time_ns) a segment, ("gap", position, size, reason,
    release, order) a gap, where `release` is the packet with which it came out; `notes` (position, text) of both sides.
    """

    conversation: TcpStream
    items: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]
    notes: tuple[list[tuple[int, str]], list[tuple[int, str]]]
    closed: list[int]
    ends: list[tuple[int, int, int, int]]
    handed: list[tuple[int, Items]]
    """What came out, and with which packets."""

    def bytes(self, side: int) -> bytes:
        """The bytes of a side, a dot for each that is missing."""
        return b"".join(item[2] if item[0] == "bytes" else b"." * item[2] for item in self.items[side])

    def gaps(self, side: int) -> list[tuple[int, int, str]]:
        return [item[1:4] for item in self.items[side] if item[0] == "gap"]

    def summary(self) -> tuple[Any, ...]:
        """All of it, to be compared."""
        row = self.conversation
        counts = [tuple(getattr(side, name) for name in SideCounts.__slots__) for side in row.streams]
        head = (row.index, row.endpoints, row.ports, row.first, row.last, row.latest, row.from_start, row.ended, row.open, row.limit_hits)
        return (*head, row.ended_sides, row.end, row.other_file, counts, self.items, self.notes, self.closed, self.ends)


class Recorded(Conversation):
    """A conversation in which nothing follows reassembly: what comes out of it is written down."""

    __slots__ = ("story",)

    def __init__(self, run: SharedState, tcp: TcpStream) -> None:
        super().__init__(run, tcp)
        self.story = Story(tcp, ([], []), ([], []), [], [], [])

    def _read(self, items: Items, release: int, final: bool) -> list[Event]:
        story = self.story
        if items:
            story.handed.append((release, items))
        for item in items:
            assert not story.closed, "nothing follows the end of a conversation"
            check(item, release)
            into = story.items[item.side]
            assert item.position == (_end(into[-1]) if into else 0)
            if isinstance(item, StreamGap):
                into.append(("gap", item.position, item.size, item.reason, release, item.order))
            else:
                into.append(("bytes", item.position, item.data, item.order, release, item.mark[1], item.mark[3]))
                story.notes[item.side].extend(item.notes)
        return []

    def _close(self, release: int) -> list[Event]:
        self.done = True
        story, tcp = self.story, self.tcp
        assert tcp.closed is not None
        story.closed.append(tcp.closed)
        story.ends.append(tcp.last)
        for side in (0, 1):
            assert tcp.stream_bytes[side] == sum(len(item[2]) if item[0] == "bytes" else item[2] for item in story.items[side])
            releases = [item[4] for item in story.items[side]]
            assert releases == sorted(releases)
            assert not releases or releases[-1] <= tcp.closed
        return []


class Stepwise(TcpStream):
    """Reassembly without the branch for segments that are simply the next ones."""

    __slots__ = ()

    def feed(self, segment: model.Segment, side: int) -> Items | None:
        self.streams[side].expected = -1
        return super().feed(segment, side)


def new_table(options: Options | None = None) -> ConversationTable:
    """A table of conversations with nothing in it."""
    options, counters = options or Options(), RunCounters()
    tls_manager = TlsManager(options, KeyLog())
    return ConversationTable(SharedState(options, tls_manager, Pool(options), counters, Reports(counters)), finite=True)


def run(segments: Iterable[model.Segment], options: Options | None = None, stream: type[TcpStream] = TcpStream) -> list[Story]:
    """What becomes of segments, by conversation."""
    with patch.multiple(table, Conversation=Recorded, TcpStream=stream):
        conversations = new_table(options)
        for segment in segments:
            conversations.feed((segment,))
        conversations.finish()
    assert not conversations.run.reports
    pool = conversations.run.pool
    assert (pool.total, pool.count) == (0, 0)
    found = sorted(conversations.conversations, key=lambda one: one.index)
    return [one.story for one in found if isinstance(one, Recorded)]


def reassembled(path: Path | BinaryIO, stream: type[TcpStream] = TcpStream) -> list[Story]:
    """What becomes of the segments of a capture, by conversation."""
    link = LinkParser()
    packets = (packet for batch in open_capture(path, name="test").batches() for packet in batch)
    segments = (link.segment(packet, order) for order, packet in enumerate(packets))
    return run((segment for segment in segments if segment is not None), stream=stream)


def _end(item: tuple[Any, ...]) -> int:
    return int(item[1]) + (len(item[2]) if item[0] == "bytes" else int(item[2]))


def check(item: SideData | StreamGap, release: int) -> None:
    """What holds of every item by itself."""
    if isinstance(item, StreamGap):
        assert item.size is not None
        assert item.size > 0
        return
    assert item.data
    assert item.order <= release
    assert all(item.position <= at < item.position + len(item.data) for at, _ in item.notes)


def tell(segments: Sequence[Segment], options: Options | None = None) -> list[Story]:
    """What becomes of segments; the branch for those that are simply the next ones must not show."""
    stories = run(made(segments), options)
    plain = run(made(segments), options, Stepwise)
    assert [story.summary() for story in plain] == [story.summary() for story in stories]
    return stories


def one(segments: Sequence[Segment], options: Options | None = None) -> Story:
    """The same for segments of one conversation."""
    (story,) = tell(segments, options)
    return story
