"""What rows of several parts show together: conversations of each other, exchanges by the minute, and findings of several conversations.

A part leaves such rows as *frames*, in a file that its receipt names. When all parts are there the frames of each server come together:
in a shuffle by server where there are many, else in the driver.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from ..conversation.table import relate
from ..diagnose.engine import CLOSES, UNUSED, Diagnoser, Step
from ..diagnose.network import NetworkEvidence
from ..diagnose.rules import Closed
from ..errors import Report
from ..model import ConversationRow
from ..session import Linked
from ..tls.facts import TlsFacts
from . import storage
from .ordered import Ordered, Row, framed, frames

_CLOSED = msgspec.msgpack.Decoder(Closed)

BUCKET = 8 << 20
"""Bytes of frames that come together in one place, about; decoded, they need ten times as much."""

BLOCK = 1 << 20
"""Bytes of frames that are sent together."""

RELATED, COUNTS, OVERVIEW, STEP = range(4)
"""What a frame holds; counts are of exchanges (`latencies`), as an Arrow stream."""


def packed(counts: Any) -> bytes:
    """Counts of exchanges as they are in a frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, counts.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as out:
        out.write_table(counts)
    return bytes(sink.getvalue())


def block_of(name: str) -> Iterator[bytes]:
    """The frames of a file as one block."""
    with storage.open_input(name) as stream:
        yield stream.read()


def by_server(count: int, name: str) -> Iterator[tuple[int, bytes]]:
    """The frames of a file as blocks for `count` buckets."""
    blocks: defaultdict[int, bytearray] = defaultdict(bytearray)
    with storage.open_input(name) as stream:
        for server, kind, value in frames(stream):
            for bucket, data in _placed(count, server, kind, value):
                blocks[bucket] += data
                if len(blocks[bucket]) >= BLOCK:
                    yield bucket, bytes(blocks.pop(bucket))
    yield from ((bucket, bytes(data)) for bucket, data in blocks.items())


def _placed(count: int, server: str, kind: int, value: Any) -> Iterator[tuple[int, bytes]]:
    """A frame for the bucket of its server; counts of exchanges, for those of each server."""
    if kind != COUNTS:
        yield crc32(server.encode()) % count, framed((server, kind, value))
        return
    counts = pa.ipc.open_stream(value).read_all()
    buckets = np.array([crc32(one.encode()) % count for one in counts.column("server").to_pylist()])
    for bucket in np.unique(buckets).tolist():
        yield bucket, framed(("", COUNTS, packed(counts.filter(pa.array(buckets == bucket)))))


class Together:
    """Frames of the same servers."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.related: list[ConversationRow] = []
        self.files: dict[int, int] = {}
        """The file of the first packet of each of these."""
        self.counts: list[Any] = []
        """Counts of exchanges of each task."""
        self.overviews: list[Any] = []
        """What rules go by that look at several conversations, of each task."""
        self.diagnoser = Diagnoser()
        self._steps = Ordered()
        for block in blocks:
            for _, kind, value in frames(io.BytesIO(block)):
                if kind == RELATED:
                    row, file = value
                    self.related.append(msgspec.convert(row, ConversationRow))
                    self.files[self.related[-1].conversation] = file
                elif kind == COUNTS:
                    self.counts.append(pa.ipc.open_stream(value).read_all())
                elif kind == STEP:
                    self._steps.add(tuple(value))
                else:
                    self.overviews.append(value)
        self.related.sort(key=lambda row: (row.time_ns, row.conversation))

    def relate(self, before: Sequence[ConversationRow]) -> list[Report]:
        """Add to conversations what others show, also those `before`; return reports of bugs."""
        return [Report(what, "conversations lack what others tell of them") for what in relate([*before, *self.related])]

    def findings(self, ports: set[int]) -> list[Linked]:
        """The findings in the state that servers keep across connections, which adds to the overviews."""
        found = self.diagnoser.replay(self._ordered(), ports)
        self.overviews.append(self.diagnoser.overview.seen())
        return [(one, None, None, None) for one in found]

    def _ordered(self) -> Iterator[Step]:
        for *_, data in self._steps:
            file, step = msgspec.msgpack.decode(data)
            self.files[step[1]] = file
            found = Step(*step)
            yield found._replace(step=_closed(found.step)) if found.rule in (CLOSES, UNUSED) else found


def step_row(place: tuple[int, int, int, int], file: int, step: Step) -> Row:
    """A step of what servers keep across connections, in the row by which it is put in the order of its time; see `TaskResults.steps`."""
    return *place, msgspec.msgpack.encode((file, step))


def findings_of(network: NetworkEvidence, overviews: Iterable[Any], reports: list[Report]) -> list[Linked]:
    """The findings of several conversations together; `reports` gets those of bugs of ours."""
    diagnoser = Diagnoser()
    diagnoser.overview.network = network
    for one in overviews:
        diagnoser.overview.merge(one)
    found = diagnoser.finish()
    reports += diagnoser.reports
    return [(one, None, None, None) for one in found]


def _closed(data: bytes) -> Closed:
    """The end of a conversation that was written as plain data."""
    closed = _CLOSED.decode(data)
    closed.tls = closed.tls and msgspec.convert(closed.tls, TlsFacts)
    return closed
