"""Reassembly against a simple model: random streams cut, shuffled, repeated, overlapped, lost and cut off by a snap length."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streamdump.model import END, Options
from tests.support.segments import ACK, FIN, RST, SYN, A, B, Segment, Story, one, tell

FIRST = st.sampled_from([(1000, 5000), (0xFFFF_FFF0, 0xFFFF_FF00), (0, 0xFFFF_FFFF), (0x7FFF_FFF0, 0x8000_0000)])
MILLISECOND = 1_000_000


def pattern(start: int, end: int, salt: int = 0) -> bytes:
    """Bytes that tell their position, none of them alike nearby."""
    return bytes((at * 7 + at // 251 + salt) & 0xFF for at in range(start, end))


@st.composite
def traffic(draw: st.DrawFn, *, fins: bool = True, cut: bool = False, ahead: bool = False) -> tuple[list[Segment], list[int]]:
    """Segments of a conversation with its handshake, and the true length of both byte streams."""
    first = draw(FIRST)
    sizes = [draw(st.integers(0, 120)), draw(st.integers(0, 60))]
    segments = [
        Segment(A, B, first[0] - 1, flags=SYN),
        Segment(B, A, first[1] - 1, ack=first[0], flags=SYN | ACK),
        Segment(A, B, first[0], ack=first[1]),
    ]
    count = draw(st.integers(0, 30))
    acked = [0, 0]
    for _ in range(count):
        side = draw(st.integers(0, 1))
        low = draw(st.integers(0, sizes[side]))
        high = draw(st.integers(low, min(sizes[side], low + 40)))
        if high == low + 1:
            # A single byte may be taken for a keep-alive, whose byte means nothing.
            high = low
        if draw(st.booleans()):
            acked[1 - side] = draw(st.integers(0, sizes[1 - side] if ahead else 0))
        data = pattern(low, high, side)
        wire = len(data)
        if cut and draw(st.booleans()):
            data = data[: draw(st.integers(0, wire))]
        ack = first[1 - side] + acked[1 - side]
        segments.append(Segment((A, B)[side], (B, A)[side], first[side] + low, data, ack, wire=wire))
    if fins and draw(st.booleans()):
        for side in (0, 1):
            if draw(st.booleans()):
                at = draw(st.integers(3, len(segments)))
                segments.insert(at, Segment((A, B)[side], (B, A)[side], first[side] + sizes[side], b"", first[1 - side], FIN | ACK))
    time_ns = 0
    timed = []
    for segment in segments:
        time_ns += draw(st.sampled_from([0, 1, 1, 1, 1, 300, 2000])) * MILLISECOND
        timed.append(segment._replace(time_ns=time_ns))
    return timed, sizes


class Model:
    """The slow and simple way: each byte by itself, everything kept until the end."""

    def __init__(self, segments: list[Segment], firsts: tuple[int, int]) -> None:
        self.known: tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]] = ({}, {})
        self.cut: tuple[set[int], set[int]] = (set(), set())
        self.top = [0, 0]
        self.fin: list[int | None] = [None, None]
        for order, segment in enumerate(segments):
            if segment.flags & SYN:
                continue
            side = int(segment.src == B)
            at = (segment.seq - firsts[side]) & 0xFFFF_FFFF
            wire = len(segment.data) if segment.wire is None else segment.wire
            for index in range(wire):
                if index < len(segment.data):
                    self.known[side].setdefault(at + index, (segment.data[index], order))
                else:
                    self.cut[side].add(at + index)
            self.top[side] = max(self.top[side], at + wire)
            if segment.ack is not None:
                self.top[1 - side] = max(self.top[1 - side], (segment.ack - firsts[1 - side]) & 0xFFFF_FFFF)
            if segment.flags & FIN:
                self.fin[side] = at + wire

    def length(self, side: int) -> int:
        """The byte stream, without the number of a FIN that nobody captured."""
        seen = max([*self.known[side], *self.cut[side], -1]) + 1
        lone = self.top[side] == seen + 1 and self.fin[side] is None and self.fin[1 - side] is not None
        return seen if lone else self.top[side]


def firsts(segments: list[Segment]) -> tuple[int, int]:
    return segments[0].seq + 1, segments[1].seq + 1


PATIENT = Options(waiting_time_ns=1 << 60)


@given(traffic())
def test_nothing_is_lost_or_invented_while_there_is_time(case: tuple[list[Segment], list[int]]) -> None:
    segments, _ = case
    story = one(segments, PATIENT)
    model = Model(segments, firsts(segments))
    for side in (0, 1):
        known = model.known[side]
        assert story.bytes(side) == bytes(known[at][0] if at in known else 0x2E for at in range(model.length(side)))
        assert sorted(held(story, side)[1]) == [at for at in range(model.length(side)) if at not in known]


def held(story: Story, side: int) -> tuple[dict[int, tuple[int, int]], dict[int, str]]:
    """Positions with (byte, packet that first brought it), and those in gaps with their reason."""
    known: dict[int, tuple[int, int]] = {}
    gaps: dict[int, str] = {}
    for item in story.items[side]:
        if item[0] == "bytes":
            known.update((item[1] + index, (value, item[3])) for index, value in enumerate(item[2]))
        else:
            gaps.update((at, item[3]) for at in range(item[1], item[1] + item[2]))
    return known, gaps


@given(traffic(cut=True, ahead=True))
def test_each_byte_knows_the_packet_that_brought_it(case: tuple[list[Segment], list[int]]) -> None:
    segments, _ = case
    story = one(segments)
    model = Model(segments, firsts(segments))
    for side in (0, 1):
        known, gaps = held(story, side)
        assert sorted([*known, *gaps]) == list(range(model.length(side)))
        assert story.conversation.stream_bytes[side] == model.length(side)
        for position, byte in known.items():
            assert byte == model.known[side][position]
        for position, reason in gaps.items():
            assert position not in model.known[side] or reason == "lost" or position in model.cut[side]
            if reason == "cut":
                assert position in model.cut[side]


@given(traffic(cut=True, ahead=True), st.sampled_from([Options(), Options(waiting_limit=600), Options(waiting_total=600)]))
def test_the_branch_for_segments_that_follow_never_shows(case: tuple[list[Segment], list[int]], options: Options) -> None:
    tell(case[0], options)


ANYTHING = st.builds(
    lambda side, seq, size, ack, flags, time, wire, value: Segment(
        (A, B)[side], (B, A)[side], seq, bytes([value]) * size, ack, flags, time * 300 * MILLISECOND, size + wire
    ),
    st.integers(0, 1),
    st.one_of(st.integers(990, 1040), st.integers(0, 0xFFFF_FFFF), st.sampled_from([0, 1 << 30, 1 << 31, 20 << 20])),
    st.integers(0, 12),
    st.one_of(st.integers(990, 1040), st.integers(0, 0xFFFF_FFFF)),
    st.one_of(st.just(ACK), st.sampled_from([SYN, SYN | ACK, FIN | ACK, RST, RST | ACK, FIN, 0, SYN | FIN, ACK])),
    st.integers(0, 8),
    st.sampled_from([0, 0, 0, 3]),
    st.integers(0, 2),
)


@given(st.lists(ANYTHING, max_size=40), st.sampled_from([Options(), Options(waiting_limit=600), Options(waiting_total=600)]))
def test_anything_is_taken(segments: list[Segment], options: Options) -> None:
    tell(segments, options)


@st.composite
def several(draw: st.DrawFn) -> list[Segment]:
    """Conversations of several pairs of endpoints, mixed."""
    parts: list[list[Any]] = []
    for port in range(draw(st.integers(1, 4))):
        segments, _ = draw(traffic(ahead=True))
        client = ("192.0.2.1", 40000 + port)
        parts.append([s._replace(src=client if s.src == A else B, dst=client if s.dst == A else B) for s in segments])
    mixed = []
    while parts:
        part = draw(st.sampled_from(parts))
        mixed.append(part.pop(0))
        parts = [part for part in parts if part]
    return mixed


@given(several(), st.sampled_from([Options(), Options(waiting_total=700)]))
def test_conversations_do_not_mix(segments: list[Segment], options: Options) -> None:
    stories = tell(segments, options)
    assert [story.conversation.index for story in stories] == list(range(len(stories)))
    assert [story.conversation.first[0] for story in stories] == sorted(story.conversation.first[0] for story in stories)
    assert all(len(story.closed) == 1 and story.closed[0] <= END for story in stories)


@st.composite
def empty(draw: st.DrawFn) -> list[Segment]:
    """A few packets without a byte, whose numbers may well fit; sometimes with one that has some."""
    first = draw(FIRST)
    begin = [
        Segment(A, B, (first[0] - 1) & 0xFFFF_FFFF, flags=SYN),
        Segment(B, A, (first[1] - 1) & 0xFFFF_FFFF, ack=first[0], flags=SYN | ACK),
    ]
    segments = begin[: draw(st.integers(0, 2))]
    for _ in range(draw(st.integers(1, 6))):
        side = draw(st.integers(0, 1))
        flags = draw(st.sampled_from([SYN, SYN | ACK, SYN | ACK, ACK, ACK, FIN | ACK, RST, RST | ACK, FIN]))
        seq = first[side] + draw(st.sampled_from([-1, -1, 0, 0, 1, 2])) + (flags & SYN and draw(st.sampled_from([0, 0, 0, 1000])))
        ack = first[1 - side] + draw(st.sampled_from([0, 0, 0, 1, 30]))
        segments.append(Segment((A, B)[side], (B, A)[side], seq & 0xFFFF_FFFF, b"", ack, flags))
    if draw(st.integers(0, 3)) == 0:
        segments.insert(draw(st.integers(0, len(segments))), Segment(A, B, first[0], b"some", first[1]))
    return segments


@settings(max_examples=300)
@given(empty())
def test_conversations_that_carry_nothing(segments: list[Segment]) -> None:
    tell(segments)
