"""Frames cut by column are those that are cut one by one."""

import io
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dissect import inspector as inspecting
from dissect.capture.files import open_capture
from dissect.inspector import Inspector
from dissect.model import Message, Options, Record
from dissect.protocols import PROTOCOLS
from dissect.protocols.base import Dissector
from dissect.protocols.rabbitmq.dissector import FRAMES_BY_COLUMN, RabbitmqStreamDissector
from dissect.render.jsonl import encode
from dissect.render.summary import Lines
from tests.bench.generate import Peer, Wire, frame

CAPTURES = sorted((Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream").glob("*.pcap"))

HEARTBEAT = frame(0x17, b"")


def capture(torn: float, packets: int = 2500) -> bytes:
    """Five conversations; of their segments a share is torn in two, so that a frame does not end with its segment."""
    out = io.BytesIO()
    wire, dice = Wire(out, 1), random.Random(3)
    wire.header()
    peers = [Peer(one, 2, amqp=False).traffic() for one in range(5)]
    for one in range(5):
        for side, flags in ((0, 0x02), (1, 0x12), (0, 0x10)):
            wire.packet(one, side, flags)
    while wire.packets < packets:
        one = dice.randrange(5)
        side, payload = next(peers[one])
        cut = dice.randrange(1, len(payload)) if dice.random() < torn else len(payload)
        for piece in filter(None, (payload[:cut], payload[cut:])):
            wire.data(one, side, piece)
    return out.getvalue()


def said(data: bytes, rows: int | None = None, options: Options | None = None) -> tuple[bytes, list[bytes]]:
    inspector = Inspector([open_capture(io.BytesIO(data))], options, rows)
    records = b"".join(encode(batch) for batch in inspector.batches())
    return records, [encode([row]) for row in inspector.rows()]


@pytest.mark.parametrize("torn", [0, 0.001, 0.2])
@pytest.mark.parametrize("options", [Options(), Options(exchanges=True, detail=True)], ids=["plain", "detail"])
def test_batches_do_not_show(torn: float, options: Options) -> None:
    data = capture(torn)
    whole = said(data, None, options)
    assert whole[0].count(b"\n") > 1800
    for rows in (7, 100, 900):
        assert said(data, rows, options) == whole


@pytest.mark.parametrize(("torn", "aligned"), [(0, True), (0.2, False)])
def test_whole_frames_need_no_joining(torn: float, aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    def watched(found: list[tuple[Dissector, list[inspecting.Stretch]]]) -> tuple[list[inspecting.Cut], list[int | None]]:
        cuts, counts = inspecting_cut(found)
        refused.append(counts.count(None))
        return cuts, counts

    inspecting_cut = inspecting.cut_aligned
    monkeypatch.setattr(inspecting, "cut_aligned", watched)
    said(capture(torn), 900)
    assert refused
    assert (sum(refused) == 0) is aligned


@pytest.mark.parametrize(
    ("piece", "frames", "sound"),
    [
        (HEARTBEAT, 1, True),
        (HEARTBEAT * FRAMES_BY_COLUMN, FRAMES_BY_COLUMN, True),
        (HEARTBEAT * (FRAMES_BY_COLUMN + 1), FRAMES_BY_COLUMN, False),
        (HEARTBEAT + HEARTBEAT[:5], 1, False),
        (HEARTBEAT + frame(0x02, b"\0" * 20)[:-1], 1, False),
        (frame(0x17, b"\0" * 99), 0, False),
        (frame(0x777, b""), 0, False),
        (b"\0\0\0\3" + HEARTBEAT[4:], 0, False),
    ],
    ids=["one", "many", "too many", "head missing", "end missing", "over the limit", "unknown", "too short"],
)
def test_frames_of_a_piece(piece: bytes, frames: int, sound: bool) -> None:
    buffer = b"#" * 7 + piece + HEARTBEAT
    offset, end = np.array([7, 7 + len(piece)]), np.array([7 + len(piece), len(buffer)])
    row, start, stop, whole = RabbitmqStreamDissector.frames(buffer, offset, end, 100)
    assert whole.tolist() == [sound, True]
    assert [buffer[low:high] for low, high in zip(start[row == 1], stop[row == 1], strict=True)] == [HEARTBEAT]
    own = list(zip(start[row == 0].tolist(), stop[row == 0].tolist(), strict=True))
    assert len(own) == frames
    assert all(before[1] == after[0] for before, after in pairwise(own))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_lines_need_no_bodies(path: Path) -> None:
    says = {protocol.name: protocol.says for protocol in PROTOCOLS}
    texts = []
    for bodies in (True, False):
        inspector, lines = Inspector([open_capture(path)], Options(bodies=bodies)), Lines(says)
        texts.append([lines.text(_of_frames(batch)) for batch in inspector.batches()])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["publish_amqp_sections_436", "subbatch_compressed_405", "amqp091_to_stream_405"])
def test_bodies_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def touched(*_: object) -> None:
        raise AssertionError

    for place in ("handlers.read_amqp", "chunk.amqp.read", "chunk.unpack"):
        monkeypatch.setattr(f"dissect.protocols.rabbitmq.{place}", touched)
    path = CAPTURES[0].with_name(f"{name}.pcap")
    records = list(Inspector([open_capture(path)], Options(bodies=False)).records())
    assert sum(isinstance(one, Message) and one.name in ("Publish", "Deliver") for one in records) > 1
    with pytest.raises(AssertionError):
        list(Inspector([open_capture(path)], Options()).records())


def _of_frames(records: list[Record]) -> list[Record]:
    """The same without what is wrong with the bodies of entries and sub-batches."""
    for one in records:
        if isinstance(one, Message):
            one.notes = [note for note in one.notes if not note.startswith(("sub-batch ", "body begins as "))]
    return records
