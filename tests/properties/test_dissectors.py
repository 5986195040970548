"""What holds for every dissector: any bytes in any pieces give records, and these account for every byte.

The bytes are noise, and conversations of the captures with bytes changed, cut into other segments, mixed and with gaps.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import END, Gap, Message, Options, SideData, StreamGap, Verdict
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context, Protocol

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
def heard_of_all() -> dict[str, list[Heard]]:
    """By protocol small conversations of the captures."""
    found: dict[str, list[tuple[int, Heard]]] = {}
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
        for one in inspector.table.conversations:
            verdict, tcp = one.verdict, one.tcp
            if verdict is None or tcp.index in broken:
                continue
            sides = tuple(bytes(streams.get((tcp.index, endpoint), b"")) for endpoint in tcp.endpoints)
            if max(map(len, sides)) <= LARGEST:
                one_heard = Heard((sides[0], sides[1]), verdict, one.client)
                found.setdefault(verdict.protocol, []).append((-len(names.get(tcp.index, ())), one_heard))
    return {name: [one for _, one in sorted(of, key=lambda one: one[0])[:EACH]] for name, of in found.items()}


def heard(name: str) -> list[Heard]:
    """Those that speak a protocol, the most varied first."""
    return heard_of_all().get(name, [])


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


def items_of(pieces: list[Piece]) -> list[list[SideData | StreamGap]]:
    """What each packet makes certain: its bytes, and the gap before them."""
    found: list[list[SideData | StreamGap]] = []
    positions, waiting = [0, 0], [0, 0]
    for order, (side, data, size) in enumerate(pieces):
        if data is None:
            waiting[side] += size
            continue
        items: list[SideData | StreamGap] = []
        if waiting[side]:
            items.append(StreamGap(side, positions[side], waiting[side], "lost", order, order + 1, 0, order * 1000))
            positions[side] += waiting[side]
            waiting[side] = 0
        items.append(SideData(side, positions[side], data, (order, order + 1, 0, order * 1000)))
        positions[side] += len(data)
        found.append(items)
    end = len(pieces)
    gaps = [StreamGap(side, positions[side], waiting[side], "lost", end, end, 0, end * 1000) for side in (0, 1) if waiting[side]]
    return [*found, [*gaps]] if gaps else found


def parsed(protocol: Protocol, feeds: list[list[SideData | StreamGap]], verdict: Verdict, client: int | None, syn: bool) -> None:
    """Fails unless records account for every byte."""
    options, verdict = Options(), msgspec.structs.replace(verdict)
    context = Context(0, ("10.0.0.1:4000", "10.0.0.2:5000"), (4000, 5000), client, syn, verdict, options)
    parser = Parser(protocol, options, context)
    last = max([item.order for items in feeds for item in items], default=0) + 1
    made = [one for items in feeds for one in parser.process(items, max(item.order for item in items))]
    made += parser.close((last, last, 0, last * 1000), END)
    sizes, totals = [0, 0], [0, 0]
    for one in made:
        if not (isinstance(one.record, Gap) and one.record.in_frame):
            sizes[one.record.src != "10.0.0.1:4000"] += one.record.size
    for item in [item for items in feeds for item in items]:
        totals[item.side] += len(item.data) if isinstance(item, SideData) else item.size or 0
    assert sizes == totals, "messages and gaps are the byte stream"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
@given(data=st.data())
def test_any_bytes_in_any_pieces_give_records(protocol: Protocol, data: st.DataObject) -> None:
    pieces, verdict, client, syn = data.draw(conversations(protocol.name))
    feeds = items_of(pieces)
    parsed(protocol, feeds, verdict, client, syn)
    # What waited for a gap, or for detection, comes in one go
    stop = data.draw(st.integers(1, max(1, len(feeds))))
    first = sorted([item for items in feeds[:stop] for item in items], key=lambda one: one.side)
    parsed(protocol, [first, *feeds[stop:]] if first else feeds, verdict, client, syn)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_there_are_captured_conversations(protocol: Protocol) -> None:
    assert heard(protocol.name)
