"""The two properties of every dissector: any bytes in any pieces give records, and the pieces do not matter.

The bytes are noise, and conversations of the captures with bytes changed, cut into other segments, mixed and with gaps.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissect.capture.files import open_capture
from dissect.inspector import Inspector
from dissect.model import Chunk, Gap, Message, Options, StreamGap, Verdict
from dissect.protocols import PROTOCOLS
from dissect.protocols.base import Dissector
from dissect.protocols.flow import END
from dissect.protocols.protocol import Context, Protocol
from dissect.protocols.records import Emitted

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"

LARGEST = 6_000
"""Bytes of one side of a captured conversation that is used here."""

EACH = 12
"""Captured conversations of a protocol that are used here, the most varied first."""


class Piece(NamedTuple):
    """A segment of one side, or (`data` None) a gap of `size` bytes before its next one."""

    side: int
    data: bytes | None
    size: int


class Heard(NamedTuple):
    """Both byte streams of a captured conversation and what detection said of it."""

    streams: tuple[bytes, bytes]
    verdict: Verdict
    client: int | None


@cache
def heard(name: str) -> list[Heard]:
    """Small conversations of the captures that speak a protocol."""
    found: list[tuple[int, Heard]] = []
    for path in sorted(GOLDEN.rglob("*.pcap*")):
        inspector = Inspector([open_capture(path)], Options(detail=True))
        streams: dict[tuple[int, str], bytearray] = {}
        names: dict[int, set[str]] = {}
        broken: set[int] = set()
        for record in inspector.records():
            if isinstance(record, Gap):
                broken.add(record.conversation)
            elif isinstance(record, Message) and record.raw is not None:
                streams.setdefault((record.conversation, record.src), bytearray()).extend(record.raw["frame"])
                names.setdefault(record.conversation, set()).add(record.name)
        for tracked in inspector.conversations:
            verdict, tcp = tracked.verdict, tracked.tcp
            if verdict is None or verdict.protocol != name or tcp.index in broken:
                continue
            sides = tuple(bytes(streams.get((tcp.index, endpoint), b"")) for endpoint in tcp.endpoints)
            if max(map(len, sides)) <= LARGEST:
                found.append((-len(names.get(tcp.index, ())), Heard((sides[0], sides[1]), verdict, tracked.client)))
    found.sort(key=lambda one: one[0])
    return [one for _, one in found[:EACH]]


@st.composite
def conversations(draw: st.DrawFn, name: str) -> tuple[list[Piece], Verdict, int | None, bool]:
    """Pieces of both sides in capture order, the verdict, the client and whether the beginning was captured."""
    known = heard(name)
    client: int | None
    if known and draw(st.integers(0, 4)):
        base = draw(st.sampled_from(known))
        verdict, client = base.verdict, base.client
        streams = []
        for stream in base.streams:
            data = bytearray(stream)
            for place, byte in draw(st.lists(st.tuples(st.integers(0, LARGEST), st.integers(0, 255)), max_size=3)):
                if data:
                    data[place % len(data)] = byte
            streams.append(bytes(data[draw(st.integers(0, 40)) :] if draw(st.integers(0, 3)) == 0 else data))
    else:
        verdict = Verdict(name, 1.0, ())
        client = draw(st.sampled_from([0, 1, None]))
        noise = st.binary(max_size=200) | st.binary(max_size=60).map(lambda one: bytes(4) + one + bytes(8) + one)
        streams = [draw(noise), draw(noise)]
    sizes = draw(st.sampled_from([[1, 2, 3], [7, 40], [100, 1448], [8, 600], [5000]]))
    pieces: list[Piece] = []
    places = [0, 0]
    budget = 600
    while any(places[side] < len(streams[side]) for side in (0, 1)) and budget:
        budget -= 1
        side = draw(st.integers(0, 1)) if budget > 500 else budget % 2
        at, stream = places[side], streams[side]
        if at >= len(stream):
            side = 1 - side
            at, stream = places[side], streams[side]
        size = min(sizes[(at + side + budget) % len(sizes)], len(stream) - at)
        lost = budget > 560 and draw(st.integers(0, 9)) == 0
        pieces.append(Piece(side, None if lost else stream[at : at + size], size))
        places[side] = at + size
    return pieces, verdict, client, draw(st.booleans())


def dissect_pieces(protocol: Protocol, pieces: list[Piece], verdict: Verdict, client: int | None, syn: bool, cuts: list[int]) -> list[Any]:
    """The records when the pieces come in batches that end at `cuts`."""
    verdict = msgspec.structs.replace(verdict)
    context = Context(0, ("10.0.0.1:4000", "10.0.0.2:5000"), (4000, 5000), client, syn, verdict, Options())
    dissector: Dissector = protocol.dissector(context)
    emitted: list[Emitted] = []
    positions = [0, 0]
    waiting = [0, 0]
    start = 0
    for stop in [*cuts, len(pieces)]:
        items: tuple[list[Chunk | StreamGap], list[Chunk | StreamGap]] = ([], [])
        for order in range(start, stop):
            side, data, size = pieces[order]
            mine = items[side]
            if data is None:
                waiting[side] += size
                continue
            if waiting[side]:
                mine.append(StreamGap(side, positions[side], waiting[side], "lost", order, order, order + 1, 0, order * 1000))
                positions[side] += waiting[side]
                waiting[side] = 0
            last = mine[-1] if mine else None
            if isinstance(last, Chunk):
                last.starts.append(len(last.data))
                last.data += data
                for column, value in ((last.orders, order), (last.numbers, order + 1), (last.files, 0), (last.times, order * 1000)):
                    column.append(value)
            else:
                orders = [order]
                mine.append(Chunk(side, positions[side], data, [0], orders, orders, [order + 1], [0], [order * 1000]))
            positions[side] += len(data)
        start = stop
        emitted += dissector.feed([*items[0], *items[1]])
    end = len(pieces)
    for side in (0, 1):
        if waiting[side]:
            emitted += dissector.feed([StreamGap(side, positions[side], waiting[side], "lost", END, end, end, 0, end * 1000)])
    emitted += dissector.close(END, (end, end, 0, end * 1000))
    sizes = [0, 0]
    records = []
    for one in sorted(emitted, key=lambda one: one[:4]):
        record = one[4]
        if not (isinstance(record, Gap) and record.in_frame):
            side = 0 if record.src == "10.0.0.1:4000" else 1
            sizes[side] += record.size
        records.append((one[0], one[1], one[2], one[3], one[5], one[6], one[7], msgspec.json.encode(record)))
    totals = [sum(piece.size for piece in pieces if piece.side == side) for side in (0, 1)]
    assert sizes == totals, "messages and gaps are the byte stream"
    return records


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
@given(data=st.data())
def test_any_bytes_in_any_pieces_give_records_and_the_pieces_do_not_matter(protocol: Protocol, data: st.DataObject) -> None:
    pieces, verdict, client, syn = data.draw(conversations(protocol.name))
    whole = dissect_pieces(protocol, pieces, verdict, client, syn, [])
    single = dissect_pieces(protocol, pieces, verdict, client, syn, list(range(1, len(pieces))))
    assert single == whole
    some = sorted(one for one in data.draw(st.sets(st.integers(1, 600), max_size=4)) if one < len(pieces))
    assert dissect_pieces(protocol, pieces, verdict, client, syn, some) == whole


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_there_are_captured_conversations(protocol: Protocol) -> None:
    assert heard(protocol.name)
