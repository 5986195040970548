"""Dissects rows of packets that were sorted by conversation, with the very same engine as a plain run.

A plain run is given all packets in merged order, a task here those of some conversations, one after the other. The engine makes every
message depend on the packets of its own conversation only, so both say the same; what depends on others is seen to like this:

- *order of packets*: by capture time (the latest so far of their file, as files are merged), file and number; inside a task their index in
  that order stands for the index in the whole run, since only packets of one conversation are ever compared;
- *packets of cooked captures that come twice* and *IP fragments*: one task looks at all of those in merged order (`in_order`);
- *bytes that wait over all conversations* (`waiting_total`): a task has one conversation open at a time, so there is no such limit; a
  plain run that never reaches it, which its `limit_hits` tell, says the same;
- *what conversations tell of each other* (parents, an Iggy server's layout) is added when all rows are there (`relate`).
"""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dissect.capture.duplicates import Duplicates
from dissect.capture.odd import OddPackets
from dissect.inspector import Inspector, Tracked
from dissect.model import ConversationRow, Message, Options, Record, SegmentBatch
from dissect.protocols.base import Emitted
from dissect.spark.rows import FRAGMENT, REPEATED, ROWS, SEGMENT, batch_of, flow_ids
from dissect.tcp.conversations import Conversation

SORTED_BY = ("flow_id", "merge_ns", "file", "number", "-kind")
"""How rows have to be sorted for `dissect`; a minus sign: descending."""

IN_ORDER = ("merge_ns", "file", "number")
"""How rows have to be sorted for `in_order`."""

NO_TOTAL = 1 << 62

Linked = tuple[Record, Message | None, Message | None]
"""A record with the request and the response that it names."""


class Results(msgspec.Struct):
    """What some packets made certain."""

    records: list[Linked]
    conversations: list[ConversationRow]


class FlowInspector(Inspector):
    """An inspector whose records name the messages that belong to them instead of their numbers."""

    def __init__(self, options: Options) -> None:
        super().__init__([], options)
        self.linked: list[Linked] = []
        self.orders = 0

    def _begin(self, conversation: Conversation) -> Tracked:
        conversation.index = conversation_id(conversation.first)
        return super()._begin(conversation)

    def _hand_out(self, emitted: list[Emitted]) -> list[Record]:
        named: dict[int, tuple[Message, Message | None]] = {id(record): (asked, answer) for record, asked, answer in self._links}
        self._links.clear()
        records: list[Record] = [one[4] for one in emitted]
        self.linked += [(record, *named.get(id(record), (None, None))) for record in records]
        return records

    def feed(self, segments: SegmentBatch) -> None:
        """Take rows in order."""
        count = len(segments)
        if count:
            begin, self.orders = self.orders, self.orders + count
            segments.order = np.arange(begin, self.orders, dtype=np.int64)
            for _ in self.take_segments(segments, begin, self.orders):
                pass

    def results(self, finished: bool) -> Results:
        """What became certain since the last call; `finished`: no more rows of these conversations will come."""
        rows: list[ConversationRow] = []
        if finished:
            self.finish()
            rows = self.rows(related=False)
        linked, self.linked = self.linked, []
        return Results(linked, rows)


def conversation_id(first: tuple[int, int, int, int]) -> int:
    """A number of a conversation that is the same in every run: that of its first packet, below that of its file."""
    return first[2] << 40 | first[1]


def dissect(batches: Iterator[pa.RecordBatch], options: Options, paths: dict[int, str] | None = None) -> Iterator[Results]:
    """What rows say that are sorted as `SORTED_BY` and hold all packets of their conversations.

    `paths`: the files by index, for payload that was left out.
    """
    gc.set_threshold(200_000, 50, 50)
    options = msgspec.structs.replace(options, exchanges=True, waiting_total=NO_TOTAL)
    inspector = FlowInspector(options)
    reader = _Reader(paths or {})
    mark = (-1, -1)
    for batch in batches:
        if not batch.num_rows:
            continue
        segments, flow_id, mark = _segments(batch, mark, reader)
        if not len(segments):
            continue
        # Conversations that share a flow_id share an inspector; of the others all but the last are complete.
        last = int(np.searchsorted(flow_id, flow_id[-1], "left"))
        if last:
            inspector.feed(_part(segments, slice(0, last)))
            yield inspector.results(finished=True)
            inspector = FlowInspector(options)
            segments = _part(segments, slice(last, None))
        inspector.feed(segments)
        if inspector.linked:
            yield inspector.results(finished=False)
    yield inspector.results(finished=True)


class _Reader:
    """Reads payload again from the files."""

    def __init__(self, paths: dict[int, str]) -> None:
        self._paths = paths
        self._maps: dict[int, mmap.mmap] = {}

    def pieces(self, files: list[int], places: list[int | None], lengths: list[int]) -> list[bytes]:
        """The bytes at these places of these files; none where the place is unknown."""
        maps = self._maps
        for file in set(files) - maps.keys():
            with Path(self._paths[file]).open("rb") as stream:
                maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return [
            maps[file][place : place + length] if place is not None else b""
            for file, place, length in zip(files, places, lengths, strict=True)
        ]


def _column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False))


def _segments(batch: pa.RecordBatch, mark: tuple[int, int], reader: _Reader) -> tuple[SegmentBatch, NDArray[np.int64], tuple[int, int]]:
    """The segments of a batch without those marked as seen before, their flow_id, and the last mark."""
    kind = _column(batch, "kind")
    if (kind == REPEATED).any() or mark[0] >= 0:
        file, number = _column(batch, "file"), _column(batch, "number")
        marked = kind == REPEATED
        drop = marked.copy()
        drop[1:] |= marked[:-1] & (file[1:] == file[:-1]) & (number[1:] == number[:-1])
        drop[0] |= (int(file[0]), int(number[0])) == mark
        mark = (int(file[-1]), int(number[-1])) if marked[-1] else (-1, -1)
        batch = batch.filter(pa.array(~drop))
    count = batch.num_rows
    payload = batch.column("payload")
    length = _column(batch, "length").astype(np.int64)
    if payload.null_count:
        files, places = batch.column("file").to_pylist(), batch.column("place").to_pylist()
        inside = payload.is_valid().to_pylist()
        again = [None if here or not size else place for here, place, size in zip(inside, places, length.tolist(), strict=True)]
        files = [file for file, place in zip(files, again, strict=True) if place is not None]
        wanted = [one for one in again if one is not None]
        sizes = [size for size, place in zip(length.tolist(), again, strict=True) if place is not None]
        found = iter(reader.pieces(files, list(wanted), sizes))
        own = payload.to_pylist()
        buffer = b"".join([(here or b"") if place is None else next(found) for here, place in zip(own, again, strict=True)])
        offset = np.cumsum(length) - length
    else:
        start, _ = payload.offset, payload.buffers()
        offsets = np.frombuffer(payload.buffers()[1], np.int32)[start : start + count + 1].astype(np.int64)
        first = int(offsets[0]) if count else 0
        data = payload.buffers()[2]
        buffer = b"" if data is None else data.slice(first, int(offsets[-1]) - first).to_pybytes()
        offset = offsets[:-1] - first
    flow = np.frombuffer(b"".join(batch.column("flow").to_pylist()), np.uint8).reshape(-1, 40)
    segments = SegmentBatch(
        buffer,
        np.zeros(count, np.int64),
        _column(batch, "time_ns"),
        _column(batch, "number"),
        _column(batch, "file"),
        flow,
        _column(batch, "reverse").astype(np.bool_),
        _column(batch, "seq"),
        _column(batch, "ack"),
        _column(batch, "flags").astype(np.uint8),
        np.zeros(count, np.int32),
        offset,
        length,
        _column(batch, "wire").astype(np.int64),
    )
    return segments, _column(batch, "flow_id"), mark


def _part(segments: SegmentBatch, rows: slice) -> SegmentBatch:
    buffer, *columns = (getattr(segments, name) for name in segments.__struct_fields__)
    return SegmentBatch(buffer, *(column[rows] for column in columns))


def in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What depends on packets of other conversations, from rows sorted as `IN_ORDER`: the segments of datagrams that came in fragments,
    and marks on packets that were seen before."""
    duplicates, odd = Duplicates(), OddPackets()
    for batch in batches:
        names = ("kind", "file", "number", "time_ns", "merge_ns", "flow_id", "flow", "wire", "payload", "cooked", "digest")
        rows: list[dict[str, Any]] = []
        for kind, file, number, time_ns, merge_ns, flow_id, flow, wire, payload, cooked, digest in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            place = {"file": file, "number": number, "time_ns": time_ns, "merge_ns": merge_ns}
            if digest is not None and duplicates.again(digest, time_ns, cooked):
                if kind == SEGMENT:
                    rows.append({**place, "kind": REPEATED, "flow_id": flow_id, "flow": flow})
            elif kind == FRAGMENT:
                found = odd.packet(payload, wire, time_ns)
                if not isinstance(found, str) and found.datagram is not None:
                    flow_id = int(flow_ids(np.frombuffer(found.flow, np.uint8).reshape(1, 40))[0])
                    data = found.datagram[found.offset : found.offset + found.length]
                    rows.append(
                        {
                            **place,
                            "kind": SEGMENT,
                            "flow_id": flow_id,
                            "flow": found.flow,
                            "reverse": found.reverse,
                            "seq": found.seq,
                            "ack": found.ack,
                            "flags": found.flags,
                            "length": found.length,
                            "wire": found.wire,
                            "payload": data,
                        }
                    )
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            table = batch_of({}, len(some))
            arrays = [pa.array([row.get(field.name) for row in some], field.type) for field in table.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=table.schema)
