"""The parser of every protocol, on one made for it: 0xA5, a length byte that counts the rest, that many bytes."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.model import END, Gap, Message, Options, Record, SideData, StreamGap
from streamdump.protocols.buffer import ReceiveBuffer
from streamdump.protocols.dissector import WAIT, Dissector
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context, LoadedProtocol, Protocol, Verdict
from streamdump.protocols.records import Decoded, Frame


class Toy(Dissector):
    protocol = "toy"
    header_size = 2

    def frame_length(self, side: int, data: bytes, at: int) -> int:
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

    def decode(self, frame: Frame) -> Decoded:
        notes = [frame.damage.reason] if frame.damage else ()
        return Decoded("frame", "one_way", None, {"body": frame.data[frame.start : frame.end].hex()}, notes=notes)


def made_up(dissector: type[Dissector]) -> Protocol:
    return Protocol("toy", "made up", (), lambda: LoadedProtocol(dissector, lambda view: None, lambda message: message.name))


TOY = made_up(Toy)
ENDS = "10.0.0.1:1", "10.0.0.2:2"


def toy(syn: bool = True, protocol: Protocol = TOY, **options: Any) -> Parser:
    given = Options(**options)
    return Parser(protocol, given, Context(0, ENDS, (1, 2), 0, syn, Verdict("toy", 1.0, ()), given))


def frame(body: bytes) -> bytes:
    return bytes([0xA5, len(body)]) + body


def chunk(position: int, segments: list[bytes], first: int, side: int = 0) -> list[SideData | StreamGap]:
    """Consecutive segments, brought by the packets `first`, `first` + 1, ..."""
    found: list[SideData | StreamGap] = []
    for order, segment in enumerate(segments, first):
        found.append(SideData(side, position, segment, (order, order + 1, 0, order * 1000)))
        position += len(segment)
    return found


def gap(position: int, size: int | None, order: int, reason: Any = "lost", side: int = 0) -> StreamGap:
    return StreamGap(side, position, size, reason, order, order + 1, 0, order * 1000)


def run(parser: Parser, *feeds: list[SideData | StreamGap]) -> list[Record]:
    """What is said of these items, some of which are certain with the same packet."""
    said: list[Record] = []
    for items in feeds:
        said += [one.record for one in parser.process(items, max(item.order for item in items))]
    return said + [one.record for one in parser.close((99, 100, 0, 99_000), END)]


def one_by_one(*parts: list[SideData | StreamGap] | StreamGap) -> list[list[SideData | StreamGap]]:
    """Each item with a packet of its own; a gap with the one that brought what follows it."""
    items = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return [list(together) for _, together in groupby(items, lambda item: item.order)]


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
    said = brief(run(toy(), *one_by_one(chunk(0, [data, frame(b"xyz")[:2], b"xyz"], 0))))
    assert said == [
        ("message", 0, 4, (1, 1), "a5026162"),
        ("message", 4, 3, (1, 1), "a50163"),
        ("message", 7, 5, (2, 3), "a50378797a"),
    ]


def test_a_gap_inside_a_frame_is_part_of_it() -> None:
    said = run(toy(), *one_by_one(chunk(0, [frame(b"abcdef")[:4]], 0), gap(4, 2, 1), chunk(6, [b"ef" + frame(b"g")], 1)))
    assert brief(said) == [("message", 0, 8, (1, 2), "a5066162"), ("lost", 4, 2, True), ("message", 8, 3, (2, 2), "a50167")]
    assert isinstance(said[0], Message)
    assert said[0].notes == ["2 bytes lost"]


def test_a_gap_of_the_snap_length_is_called_so() -> None:
    said = run(toy(), *one_by_one(chunk(0, [frame(b"abcdef")[:4]], 0), gap(4, 2, 1, "cut"), chunk(6, [b"ef"], 1)))
    assert isinstance(said[0], Message)
    assert said[0].notes == ["2 bytes cut by the snap length"]


def test_a_gap_that_ends_with_the_frame_keeps_the_border() -> None:
    said = brief(run(toy(), *one_by_one(chunk(0, [frame(b"abcd")[:3]], 0), gap(3, 3, 1), chunk(6, [frame(b"")], 1))))
    assert said == [("message", 0, 6, (1, 1), "a50461"), ("lost", 3, 3, True), ("message", 6, 2, (2, 2), "a500")]


def test_a_lost_header_is_searched_for() -> None:
    said = brief(run(toy(), *one_by_one(chunk(0, [frame(b"a")], 0), gap(3, 2, 1), chunk(5, [b"zz" + frame(b"q") + frame(b"r")], 1))))
    assert said == [
        ("message", 0, 3, (1, 1), "a50161"),
        ("lost", 3, 2, False),
        ("skipped", 5, 2, False),
        ("message", 7, 3, (2, 2), "a50171"),
        ("message", 10, 3, (2, 2), "a50172"),
    ]


def test_bytes_that_are_no_frame_are_skipped_and_counted() -> None:
    said = brief(run(toy(), *one_by_one(chunk(0, [frame(b"a") + b"junk" + frame(b"b") + frame(b"c")], 0))))
    assert said == [
        ("message", 0, 3, (1, 1), "a50161"),
        ("skipped", 3, 4, False),
        ("message", 7, 3, (1, 1), "a50162"),
        ("message", 10, 3, (1, 1), "a50163"),
    ]


def test_a_frame_cut_off_by_the_end_of_the_capture() -> None:
    said = run(toy(), *one_by_one(chunk(0, [frame(b"abcdef")[:5]], 0)))
    assert brief(said) == [("message", 0, 5, (1, 1), "a506616263")]
    assert isinstance(said[0], Message)
    assert said[0].notes == ["5 of 8 bytes captured"]


def test_half_a_header_at_the_end_is_skipped() -> None:
    assert brief(run(toy(), *one_by_one(chunk(0, [frame(b"a") + b"\xa5"], 0)))) == [
        ("message", 0, 3, (1, 1), "a50161"),
        ("skipped", 3, 1, False),
    ]


def test_fewer_bytes_than_a_header_behind_a_gap_are_skipped_once() -> None:
    class Longer(Toy):
        header_size = 6

    longer = made_up(Longer)
    said = run(toy(protocol=longer), *one_by_one(gap(0, 7, 0), chunk(7, [b"abc", b"d"], 0)))
    assert brief(said) == [("lost", 0, 7, False), ("skipped", 7, 4, False)]


def test_a_frame_over_the_limit_is_skipped_by_its_length() -> None:
    data = frame(b"x" * 200) + frame(b"y")
    said = brief(run(toy(frame_limit=100), *one_by_one(chunk(0, [data[:50], data[50:]], 0))))
    assert [one[:3] for one in said] == [("message", 0, 202), ("message", 202, 3)]


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(("size", "notes"), [(100, []), (101, ["frame of 101 bytes is over the limit of 100 bytes"])])
def test_a_frame_of_exactly_the_limit_is_read(size: int, notes: list[str], pieces: int) -> None:
    data = frame(b"x" * (size - 2))
    cut = len(data) // pieces
    found = run(toy(frame_limit=100), *one_by_one(chunk(0, [data[:cut], data[cut:]], 0)))
    assert [list(one.notes) for one in found if isinstance(one, Message)] == [notes]


def test_what_the_other_side_does_is_merged_in_packet_order() -> None:
    said = run(toy(), [*chunk(0, [frame(b"1")], 0), *chunk(3, [frame(b"3")], 2), *chunk(0, [frame(b"2")], 1, side=1)])
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


def items_of(conversation: list[tuple[int, int, bytes | int]]) -> list[SideData | StreamGap]:
    """The same as items, of which a gap is certain with what follows it."""
    found: list[SideData | StreamGap] = []
    for order, (side, position, content) in enumerate(conversation):
        if isinstance(content, int):
            following = next((at for at in range(order, len(conversation)) if conversation[at][0] == side and at > order), order)
            found.append(gap(position, content, following, side=side))
        else:
            found += chunk(position, [content], order, side)
    return found


def joined(items: list[SideData | StreamGap], cuts: set[int]) -> list[list[SideData | StreamGap]]:
    """What is certain with one packet each: with those of `cuts`, and the last one."""
    feeds: list[list[SideData | StreamGap]] = [[]]
    for order, item in enumerate(items):
        feeds[-1].append(item)
        if order in cuts:
            feeds[-1].sort(key=lambda one: one.side)
            feeds.append([])
    feeds[-1].sort(key=lambda one: one.side)
    return [feed for feed in feeds if feed]


@given(conversations(), st.sets(st.integers(0, 40)), st.booleans())
def test_what_is_certain_at_once_does_not_matter_and_every_byte_is_counted(conversation: list[Any], cuts: set[int], syn: bool) -> None:
    items = items_of(conversation)
    whole = run(toy(syn), *one_by_one(items))
    some = run(toy(syn), *joined(items, cuts))
    for side, source in enumerate(ENDS):
        length = sum(content if isinstance(content, int) else len(content) for one, _, content in conversation if one == side)
        mine = [one for one in whole if isinstance(one, Message | Gap) and one.src == source]
        again = [one for one in some if isinstance(one, Message | Gap) and one.src == source]
        assert sorted(brief([*again]), key=repr) == sorted(brief([*mine]), key=repr)
        counted = 0
        for record in sorted([one for one in mine if not (isinstance(one, Gap) and one.in_frame)], key=lambda one: one.position):
            assert record.position == counted
            counted += record.size or 0
        assert counted == length


def test_pieces_do_not_matter() -> None:
    data = b"".join(frame(bytes([at]) * at) for at in range(40)) + b"junk" + frame(b"x") * 3
    whole = brief(run(toy(), *one_by_one(chunk(0, [data], 0))))
    for size in (1, 2, 3, 7, 100):
        said = brief(run(toy(), *one_by_one(chunk(0, [data[at : at + size] for at in range(0, len(data), size)], 0))))
        assert [(*one[:3], one[-1]) for one in said] == [(*one[:3], one[-1]) for one in whole]


def test_a_gap_of_which_nobody_knows_the_size_ends_the_frame_in_it() -> None:
    said = run(toy(), *one_by_one(chunk(0, [frame(b"abcdef")[:4]], 0), gap(4, None, 1), chunk(4, [b"ef" + frame(b"g") * 2], 1)))
    assert brief(said) == [
        ("message", 0, 4, (1, 1), "a5066162"),
        ("lost", 4, None, False),
        ("skipped", 4, 2, False),
        ("message", 6, 3, (2, 2), "a50167"),
        ("message", 9, 3, (2, 2), "a50167"),
    ]


class Polite(Toy):
    """Of side 1 nothing is said before side 0 spoke; and what one side says may free the other."""

    in_packet_order = True
    asked = False

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        return WAIT if side and not self.asked else super().frame_length(side, data, at)

    def decode(self, frame: Frame) -> Decoded:
        if frame.side == 0 and not self.asked:
            self.asked = self.unblocks_peer = True
        return super().decode(frame)

    def on_wait_timeout(self, side: int) -> None:
        self.asked = True


POLITE = made_up(Polite)


def test_a_side_may_wait_for_the_other() -> None:
    answer = chunk(0, [frame(b"b"), frame(b"c")], 0, side=1)
    said = brief(run(toy(protocol=POLITE), *one_by_one(answer, chunk(0, [frame(b"a")], 2))))
    assert [one[-1] for one in said] == ["a50162", "a50163", "a50161"], "in the order of the packets that completed them"
    assert len(run(toy(protocol=POLITE), *one_by_one(answer))) == 2
    lost = run(toy(protocol=POLITE), *one_by_one(answer, gap(6, 5, 2, side=1)))
    assert brief(lost) == [("message", 0, 3, (1, 1), "a50162"), ("message", 3, 3, (2, 2), "a50163"), ("lost", 6, 5, False)]


def test_what_waits_for_the_other_side_is_bounded() -> None:
    parser = toy(protocol=POLITE, undecided_limit=100)
    answers = chunk(0, [frame(b"x" * 20)] * 10, 0, side=1)
    said = [len(parser.process([item], item.order)) for item in answers if isinstance(item, SideData)]
    assert said == [0, 0, 0, 0, 5, 1, 1, 1, 1, 1]


def test_a_parser_needs_no_room_but_its_own() -> None:
    made = """
import struct, sys
from streamdump.model import Options
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.parser import Parser
parser = Parser(next(one for one in PROTOCOLS if one.name == "rabbitmq-stream"), Options())
frame = struct.pack(">IHHI", 8, 0x15, 1, 7)
print([(one.name, one.id, one.position) for one in parser.feed(0, 0, frame + frame[:5]) + parser.feed(0, 17, frame[5:])])
foreign = tuple(f"streamdump.{room}" for room in ("tcp", "capture", "conversation", "inspector"))
print([name for name in sys.modules if name.startswith(foreign)])
"""
    said = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["[('Open', 7, 0), ('Open', 7, 12)]", "[]"]


def test_notes_of_a_frame_that_is_long_in_coming_are_not_copied() -> None:
    buffer = ReceiveBuffer(False)
    kept = []
    for at in range(3):
        buffer.add(SideData(0, at, b".", (at, at + 1, 0, at), ((at, "conflict"),)))
        kept.append(buffer.notes)
    assert buffer.notes == [(0, "conflict"), (1, "conflict"), (2, "conflict")]
    assert kept[0] is kept[1] is kept[2]
