"""The shared engine of framing, on a protocol made for it: 0xA5, a length byte that counts the rest, that many bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dissect.model import Chunk, Gap, Message, Options, Record, StreamGap, Verdict
from dissect.protocols.base import Dissector
from dissect.protocols.flow import END, Flow
from dissect.protocols.protocol import Context
from dissect.protocols.records import NONE, Damage, Emitted


class Toy(Dissector):
    protocol = "toy"
    header_size = 2

    def measure(self, side: int, data: bytes, at: int) -> int:
        return 2 + data[at + 1] if data[at] == 0xA5 else -1

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        while at < end:
            at = data.find(b"\xa5", at, end)
            if at < 0:
                return False, end
            following = at + 2 + data[at + 1] if at + 1 < end else end + 1
            if following == end or (following < end and data[following] == 0xA5):
                return True, at
            if following > end and not final:
                return False, at
            at += 1
        return False, at

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        return ("frame", "one_way", None, {"body": data[start:end].hex()}, None, [damage.reason] if damage else (), None, NONE, None, None)


def toy(syn: bool = True, **options: Any) -> Toy:
    verdict = Verdict("toy", 1.0, ())
    return Toy(Context(0, ("10.0.0.1:1", "10.0.0.2:2"), (1, 2), 0, syn, verdict, Options(**options)))


def frame(body: bytes) -> bytes:
    return bytes([0xA5, len(body)]) + body


def chunk(position: int, segments: list[bytes], first: int, side: int = 0) -> Chunk:
    """Consecutive segments, brought by the packets `first`, `first` + 1, ..."""
    starts, at = [], 0
    for segment in segments:
        starts.append(at)
        at += len(segment)
    orders = list(range(first, first + len(segments)))
    return Chunk(
        side,
        position,
        b"".join(segments),
        starts,
        orders,
        orders,
        [one + 1 for one in orders],
        [0] * len(orders),
        [one * 1000 for one in orders],
    )


def gap(position: int, size: int, order: int, reason: Any = "lost", side: int = 0) -> StreamGap:
    return StreamGap(side, position, size, reason, order, order, order + 1, 0, order * 1000)


def run(dissector: Toy, *feeds: list[Chunk | StreamGap]) -> list[Record]:
    emitted: list[Emitted] = []
    for items in feeds:
        emitted += dissector.feed(items)
    emitted += dissector.close(END, (99, 100, 0, 99_000))
    emitted.sort(key=lambda one: one[:4])
    return [one[4] for one in emitted]


def brief(records: list[Record]) -> list[tuple[Any, ...]]:
    said: list[tuple[Any, ...]] = []
    for record in records:
        if isinstance(record, Message):
            said.append(("message", record.position, record.size, record.packets, record.fields["body"]))
        elif isinstance(record, Gap):
            said.append((record.reason, record.position, record.size, record.in_frame))
    return said


def test_two_frames_in_a_segment_and_one_over_two() -> None:
    data = frame(b"ab") + frame(b"c")
    said = brief(run(toy(), [chunk(0, [data, frame(b"xyz")[:2], b"xyz"], 0)]))
    assert said == [
        ("message", 0, 4, (1, 1), "a5026162"),
        ("message", 4, 3, (1, 1), "a50163"),
        ("message", 7, 5, (2, 3), "a50378797a"),
    ]


def test_a_gap_inside_a_frame_is_part_of_it() -> None:
    said = run(toy(), [chunk(0, [frame(b"abcdef")[:4]], 0), gap(4, 2, 1), chunk(6, [b"ef" + frame(b"g")], 1)])
    assert brief(said) == [("message", 0, 8, (1, 2), "a5066162"), ("lost", 4, 2, True), ("message", 8, 3, (2, 2), "a50167")]
    assert isinstance(said[0], Message)
    assert said[0].notes == ["2 bytes lost"]


def test_a_gap_of_the_snap_length_is_called_so() -> None:
    said = run(toy(), [chunk(0, [frame(b"abcdef")[:4]], 0), gap(4, 2, 1, "cut"), chunk(6, [b"ef"], 1)])
    assert isinstance(said[0], Message)
    assert said[0].notes == ["2 bytes cut by the snap length"]


def test_a_gap_that_ends_with_the_frame_keeps_the_border() -> None:
    said = brief(run(toy(), [chunk(0, [frame(b"abcd")[:3]], 0), gap(3, 3, 1), chunk(6, [frame(b"")], 1)]))
    assert said == [("message", 0, 6, (1, 1), "a50461"), ("lost", 3, 3, True), ("message", 6, 2, (2, 2), "a500")]


def test_a_lost_header_is_searched_for() -> None:
    said = brief(run(toy(), [chunk(0, [frame(b"a")], 0), gap(3, 2, 1), chunk(5, [b"zz" + frame(b"q") + frame(b"r")], 1)]))
    assert said == [
        ("message", 0, 3, (1, 1), "a50161"),
        ("lost", 3, 2, False),
        ("skipped", 5, 2, False),
        ("message", 7, 3, (2, 2), "a50171"),
        ("message", 10, 3, (2, 2), "a50172"),
    ]


def test_bytes_that_are_no_frame_are_skipped_and_counted() -> None:
    said = brief(run(toy(), [chunk(0, [frame(b"a") + b"junk" + frame(b"b") + frame(b"c")], 0)]))
    assert said == [
        ("message", 0, 3, (1, 1), "a50161"),
        ("skipped", 3, 4, False),
        ("message", 7, 3, (1, 1), "a50162"),
        ("message", 10, 3, (1, 1), "a50163"),
    ]


def test_a_frame_cut_off_by_the_end_of_the_capture() -> None:
    said = run(toy(), [chunk(0, [frame(b"abcdef")[:5]], 0)])
    assert brief(said) == [("message", 0, 5, (1, 1), "a506616263")]
    assert isinstance(said[0], Message)
    assert said[0].notes == ["5 of 8 bytes captured"]


def test_half_a_header_at_the_end_is_skipped() -> None:
    assert brief(run(toy(), [chunk(0, [frame(b"a") + b"\xa5"], 0)])) == [("message", 0, 3, (1, 1), "a50161"), ("skipped", 3, 1, False)]


def test_a_frame_over_the_limit_is_skipped_by_its_length() -> None:
    data = frame(b"x" * 200) + frame(b"y")
    said = brief(run(toy(frame_limit=100), [chunk(0, [data[:50], data[50:]], 0)]))
    assert [one[:3] for one in said] == [("message", 0, 202), ("message", 202, 3)]


def test_what_the_other_side_does_is_merged_in_packet_order() -> None:
    said = run(toy(), [chunk(0, [frame(b"1")], 0), chunk(3, [frame(b"3")], 2), chunk(0, [frame(b"2")], 1, side=1)])
    assert [(one.src, one.time_ns) for one in said if isinstance(one, Message)] == [
        ("10.0.0.1:1", 0),
        ("10.0.0.2:2", 1000),
        ("10.0.0.1:1", 2000),
    ]


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, int, bytes | int]]:
    """Segments and gaps of both sides: (side, position, bytes or size of the gap), in packet order."""
    out: list[tuple[int, int, bytes | int]] = []
    positions = [0, 0]
    streams = [draw(st.lists(st.one_of(st.binary(max_size=6).map(frame), st.binary(max_size=5)), max_size=12)) for _ in (0, 1)]
    flat = [b"".join(stream) for stream in streams]
    while flat[0] or flat[1]:
        side = 0 if not flat[1] else 1 if not flat[0] else draw(st.integers(0, 1))
        size = draw(st.integers(1, min(9, len(flat[side]))))
        piece, flat[side] = flat[side][:size], flat[side][size:]
        lost = draw(st.integers(0, 5)) == 0 and bool(flat[side])
        out.append((side, positions[side], size if lost else piece))
        positions[side] += size
    return out


def items_of(conversation: list[tuple[int, int, bytes | int]], cuts: set[int]) -> list[list[Chunk | StreamGap]]:
    """The same packets in batches that end after the packets in `cuts`; neighbours of one side in a batch are one chunk."""
    feeds: list[list[Chunk | StreamGap]] = [[]]
    runs: dict[int, tuple[int, list[bytes], list[int]]] = {}

    def flush(side: int) -> None:
        if side in runs:
            position, segments, orders = runs.pop(side)
            one = chunk(position, segments, 0, side)
            one.orders = one.releases = orders
            one.numbers, one.times = [order + 1 for order in orders], [order * 1000 for order in orders]
            feeds[-1].append(one)

    for order, (side, position, content) in enumerate(conversation):
        if isinstance(content, int):
            flush(side)
            following = next((at for at in range(order, len(conversation)) if conversation[at][0] == side and at > order), order)
            feeds[-1].append(gap(position, content, max(order, following), side=side))
        else:
            _, segments, orders = runs.setdefault(side, (position, [], []))
            segments.append(content)
            orders.append(order)
        if order in cuts:
            for one in (0, 1):
                flush(one)
            feeds.append([])
    for one in (0, 1):
        flush(one)
    return feeds


@given(conversations(), st.sets(st.integers(0, 40)), st.booleans())
def test_pieces_do_not_matter_and_every_byte_is_counted(conversation: list[Any], cuts: set[int], syn: bool) -> None:
    whole = run(toy(syn), *items_of(conversation, set()))
    assert brief(run(toy(syn), *items_of(conversation, cuts))) == brief(whole)
    for side, source in enumerate(("10.0.0.1:1", "10.0.0.2:2")):
        length = sum(content if isinstance(content, int) else len(content) for one, _, content in conversation if one == side)
        counted = 0
        mine = [
            one for one in whole if isinstance(one, Message | Gap) and one.src == source and not (isinstance(one, Gap) and one.in_frame)
        ]
        for record in sorted(mine, key=lambda one: one.position):
            assert record.position == counted
            counted += record.size
        assert counted == length


def test_notes_of_a_frame_that_is_long_in_coming_are_not_copied() -> None:
    flow = Flow(False)
    kept = []
    for at in range(3):
        one = chunk(at, [b"."], at)
        one.notes = ((at, "conflict"),)
        flow.add(one)
        kept.append(flow.notes)
    assert flow.notes == [(0, "conflict"), (1, "conflict"), (2, "conflict")]
    assert kept[0] is kept[1] is kept[2]
