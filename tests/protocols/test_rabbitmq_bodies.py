"""Where nobody asks for the bodies of messages, they are not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Message, Options, Record
from streamdump.protocols import PROTOCOLS
from streamdump.render.summary import Lines
from tests.support.captures import capture_name, every_family

CAPTURES = sorted((Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream").glob("*.pcap"))


@every_family(CAPTURES)
def test_lines_need_no_bodies(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            info = {protocol.name: protocol.loaded.info for protocol in PROTOCOLS}
            texts = []
            for bodies in (True, False):
                inspector, lines = Inspector([open_capture(path)], Options(bodies=bodies)), Lines(info)
                texts.append([lines.text(_of_frames(batch)) for batch in inspector.batches()])
            assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["publish_amqp_sections_436", "subbatch_compressed_405", "amqp091_to_stream_405"])
def test_bodies_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def touched(*_: object) -> None:
        raise AssertionError

    for place in ("fast_decode.read_amqp", "chunk.amqp.read", "chunk.unpack"):
        monkeypatch.setattr(f"streamdump.protocols.rabbitmq.{place}", touched)
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
