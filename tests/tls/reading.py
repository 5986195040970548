"""Reads captures of TLS the ways that tests compare."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import msgspec

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Gap, Message, Options, Record, SideData, StreamGap
from streamdump.tls.decryptor import TlsDecryptor
from streamdump.tls.keys import KeyLog
from tests.support.segments import reassembled

BATCHES = (1, 7, None)


class Read(NamedTuple):
    """What a run said."""

    records: list[Record]
    rows: list[ConversationRow]
    inspector: Inspector

    @property
    def messages(self) -> list[Message]:
        return [one for one in self.records if isinstance(one, Message)]

    @property
    def gaps(self) -> list[Gap]:
        return [one for one in self.records if isinstance(one, Gap)]

    @property
    def facts(self) -> dict[str, Any]:
        return self.rows[0].facts

    @property
    def json(self) -> bytes:
        return msgspec.json.Encoder().encode_lines([*self.records, *self.rows])


def log_of(keys: bytes) -> KeyLog:
    log = KeyLog()
    log.add(keys)
    return log


def once(capture: bytes, keys: bytes = b"", rows: int | None = None, **options: Any) -> Read:
    """One run."""
    log = log_of(keys) if "keylog" not in options else None
    inspector = Inspector([open_capture(io.BytesIO(capture), name="test")], Options(**options), rows, keys=log)
    records = list(inspector.records())
    return Read(records, inspector.rows(), inspector)


def read(capture: bytes, keys: bytes = b"", **options: Any) -> Read:
    """What is said of a capture, which must be the same in batches of 1, of 7 and of all."""
    runs = [once(capture, keys, rows, **options) for rows in BATCHES]
    assert runs[0].json == runs[1].json == runs[2].json
    return runs[2]


def meaning(messages: list[Message]) -> list[tuple[Any, ...]]:
    """What messages say and how they belong together, without where in the capture they lie."""
    places = {one.number: place for place, one in enumerate(messages)}
    return [
        (
            one.sender,
            one.protocol,
            one.name,
            one.kind,
            one.id,
            one.position,
            one.size,
            one.fields,
            one.outcome,
            None if one.request is None else places[one.request],
            one.fault,
            list(one.notes),
        )
        for one in messages
    ]


def opened(capture: bytes, keys: bytes | KeyLog, options: Options | None = None) -> tuple[list[list[SideData | StreamGap]], TlsDecryptor]:
    """What comes out of the first conversation, by side, and the stage that did it."""
    log = log_of(keys) if isinstance(keys, bytes) else keys
    stage = TlsDecryptor(options or Options(), log)
    sides: list[list[SideData | StreamGap]] = [[], []]
    story, *_ = reassembled(io.BytesIO(capture))
    out = [item for release, items in story.handed for item in stage.feed(items, release)]
    log.ended = True
    for item in out + stage.close(story.closed[0], story.ends[0]):
        sides[item.side].append(item)
    return sides, stage


def text(items: list[SideData | StreamGap]) -> bytes:
    """The bytes of a side; a gap stands as its size."""
    return b"".join([one.data if isinstance(one, SideData) else b"<%s>" % str(one.size).encode() for one in items])
