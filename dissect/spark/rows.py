"""Packets as rows of a Spark table: what `streamdump.packets` gives, and the Arrow columns that carry it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dissect.capture.link import LinkParser
from dissect.capture.merge import merge
from dissect.errors import CaptureError
from dissect.model import PacketBatch, SegmentBatch
from dissect.spark.keys import flow_ids, of_network
from dissect.spark.splits import Split, batches

SEGMENT, FRAGMENT, OTHER, REPEATED, CARRY, CARRY_IN_ORDER = 0, 1, 2, 3, 4, 5
"""Kinds of rows: a TCP segment; a fragment of a TCP datagram, whose `payload` is the IP packet; a packet of a cooked capture that is
none of ours but may be the first of a pair; and, made in a later stage only, the mark of a packet that was seen before.

And two that hold what is known from earlier packets, in `payload`: CARRY of the conversations of its `flow_id`, which has to be looked at
again at `time_ns` even if no packet comes; CARRY_IN_ORDER of fragments that wait and of packets of cooked captures."""

EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
"""The ends of times; the first is `merge_ns` of what is carried, so that it sorts before all packets."""

COLUMNS: dict[str, tuple[str, Any, str]] = {
    "kind": ("tinyint", pa.int8(), "0 TCP segment, 1 fragment of a TCP datagram, 2 other packet of a cooked capture, 4 and 5 carried"),
    "file": ("int", pa.int32(), "index of the input"),
    "number": ("bigint", pa.int64(), "number of the packet in its file, from 1"),
    "time_ns": ("bigint", pa.int64(), "capture time, nanoseconds since 1970"),
    "merge_ns": ("bigint", pa.int64(), "latest capture time in its file so far: the order among several files"),
    "flow_id": ("bigint", pa.int64(), "a number of the pair of endpoints; two pairs may share it; of kinds 1 and 2 that of the network"),
    "flow": ("binary", pa.binary(), "both endpoints: address, port, address, port, IP version, the lower one first; and the network"),
    "reverse": ("boolean", pa.bool_(), "the higher endpoint sent it"),
    "seq": ("bigint", pa.int64(), "sequence number"),
    "ack": ("bigint", pa.int64(), "acknowledgement number"),
    "flags": ("smallint", pa.int16(), "FIN 1, SYN 2, RST 4, PSH 8, ACK 16"),
    "length": ("int", pa.int32(), "bytes of payload captured"),
    "wire": ("int", pa.int32(), "bytes of payload sent"),
    "place": ("bigint", pa.int64(), "where in the file the payload begins; null in a packed file"),
    "payload": ("binary", pa.binary(), "null where it is to be read again from the file"),
    "cooked": ("int", pa.int32(), "packet type and interface of a Linux cooked capture, else null"),
    "digest": ("binary", pa.binary(), "digest of the IP packet of a Linux cooked capture"),
}

SCHEMA = pa.schema([(name, kind) for name, (_, kind, _) in COLUMNS.items()])
DDL = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())

ROWS = 10_000
"""Rows of an Arrow batch; more gain nothing and cost memory on both sides."""


def read(split: Split, payload: bool = True, ordered: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of a range in the order of its packets. `payload` False: leave out what can be read again; `ordered`: only the rows
    that depend on each other across conversations."""
    parser = LinkParser(stateless=True)
    for batch, base, segments, merge_ns in _parsed(split, parser):
        if not ordered or parser.sightings is not None:
            yield from _segments(segments, np.arange(len(segments)), merge_ns, parser, base, payload)
        if parser.fragments or parser.sightings is not None:
            yield from _others(batch, segments, merge_ns, parser, split.network)


Choice = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Which of some conversations, by `flow_id`."""


def segments_and_rows(split: Split, home: Choice, payload: bool) -> Iterator[tuple[SegmentBatch, Iterator[pa.RecordBatch]]]:
    """The segments of a range that are at home here, and the rows of the others."""
    parser = LinkParser(stateless=True)
    for _, base, segments, merge_ns in _parsed(split, parser):
        here = home(flow_ids(segments.flow))
        others = _segments(segments, np.flatnonzero(~here), merge_ns, parser, base, payload)
        yield segments if here.all() else segments.chosen(here), others


def merged_segments(splits: Sequence[Split], home: Choice | None) -> Iterator[SegmentBatch]:
    """The segments of these ranges that are at home here (None: all), in the order of a plain run."""
    files = {split.file: [one for one in splits if one.file == split.file] for split in sorted(splits, key=lambda one: one.file)}
    numbers = np.array([*files], np.int32)
    networks = np.array([some[0].network for some in files.values()])
    inputs = [_Input(some) for some in files.values()]
    parser = LinkParser(stateless=True)
    for batch in inputs[0].batches() if len(inputs) == 1 else merge(inputs):
        segments = parser.segments(batch, 0)
        network = networks[segments.file]
        for one in np.unique(network[network > 0]).tolist():
            segments.flow = np.where((network == one)[:, None], of_network(segments.flow, one), segments.flow)
        segments.file = numbers[segments.file]
        if home is not None:
            here = home(flow_ids(segments.flow))
            segments = segments if here.all() else segments.chosen(here)
        yield segments


class _Input:
    """Ranges of one file, as they are merged with those of others."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.splits = splits
        self.latest_ns = splits[0].latest_ns

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[PacketBatch]:
        for split in self.splits:
            for batch, _ in _packets(split):
                yield batch


def _packets(split: Split) -> Iterator[tuple[PacketBatch, int | None]]:
    """The packets of a range up to the damage that was found in it."""
    try:
        yield from batches(split)
    except CaptureError as error:
        if not split.damaged:
            raise CaptureError(f"has changed since it was first looked at: {error.reason}", split.path, error.offset) from error


Parsed = tuple[PacketBatch, int | None, SegmentBatch, NDArray[np.int64]]
"""Packets, where in the file their buffer begins, their segments, and their `merge_ns`."""


def _parsed(split: Split, parser: LinkParser) -> Iterator[Parsed]:
    latest = split.latest_ns
    for batch, base in _packets(split):
        merge_ns = np.maximum(np.maximum.accumulate(batch.time_ns), latest)
        latest = int(merge_ns[-1])
        batch.file = np.full(len(batch), split.file, np.int32)
        segments = parser.segments(batch, 0)
        segments.flow = of_network(segments.flow, split.network)
        yield batch, base, segments, merge_ns


def _segments(
    segments: SegmentBatch,
    rows: NDArray[np.int64],
    merge_ns: NDArray[np.int64],
    parser: LinkParser,
    base: int | None,
    payload: bool,
) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), ROWS):
        yield _rows(segments, rows[start : start + ROWS], merge_ns, parser, base, payload)


def _rows(
    segments: SegmentBatch,
    rows: NDArray[np.int64],
    merge_ns: NDArray[np.int64],
    parser: LinkParser,
    base: int | None,
    payload: bool,
) -> pa.RecordBatch:
    order = segments.order[rows]
    count = len(order)
    offset, length = segments.offset[rows], segments.length[rows]
    place: Any = pa.nulls(count, pa.int64()) if base is None else pa.array(offset + base)
    data = pa.nulls(count, pa.binary())
    if payload or base is None:
        data = binary(segments.buffer, offset, length)
    flow = np.ascontiguousarray(segments.flow[rows])
    cooked, digest = pa.nulls(count, pa.int32()), pa.nulls(count, pa.binary())
    if parser.sightings is not None:
        cooked, digest = _seen(parser, order)
    columns = [
        pa.array(np.full(count, SEGMENT, np.int8)),
        pa.array(segments.file[rows]),
        pa.array(segments.number[rows]),
        pa.array(segments.time_ns[rows]),
        pa.array(merge_ns[order]),
        pa.array(flow_ids(flow)),
        fixed(flow),
        pa.array(segments.reverse[rows]),
        pa.array(segments.seq[rows]),
        pa.array(segments.ack[rows]),
        pa.array(segments.flags[rows].astype(np.int16)),
        pa.array(length.astype(np.int32)),
        pa.array(segments.wire[rows].astype(np.int32)),
        place,
        data,
        cooked,
        digest,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _seen(parser: LinkParser, order: NDArray[np.int64]) -> tuple[Any, Any]:
    """Places and digests of these packets of a batch, null where they have none."""
    assert parser.sightings is not None
    found = dict(
        zip(parser.sightings.rows.tolist(), zip(parser.sightings.places.tolist(), parser.sightings.digests, strict=True), strict=True)
    )
    seen = [found.get(one, (None, None)) for one in order.tolist()]
    return pa.array([one[0] for one in seen], pa.int32()), pa.array([one[1] for one in seen], pa.binary())


def _others(
    batch: PacketBatch, segments: SegmentBatch, merge_ns: NDArray[np.int64], parser: LinkParser, network: int
) -> Iterator[pa.RecordBatch]:
    """Fragments, and what else of a cooked capture counts when packets are compared. They have no `flow_id` but that of their network."""
    kinds = {row: FRAGMENT for row, *_ in parser.fragments}
    if parser.sightings is not None:
        own = set(segments.order.tolist())
        kinds |= {row: OTHER for row in parser.sightings.rows.tolist() if row not in own and row not in kinds}
    order = np.array(sorted(kinds), np.int64)
    pieces = {row: (start, size, sent) for row, start, size, sent in parser.fragments}
    cooked, digest = pa.nulls(len(order), pa.int32()), pa.nulls(len(order), pa.binary())
    if parser.sightings is not None:
        cooked, digest = _seen(parser, order)
    found = [pieces.get(row) for row in order.tolist()]
    count = len(order)
    columns = {
        "kind": pa.array([kinds[row] for row in order.tolist()], pa.int8()),
        "file": pa.array(batch.file[order]),
        "number": pa.array(batch.number[order]),
        "time_ns": pa.array(batch.time_ns[order]),
        "merge_ns": pa.array(merge_ns[order]),
        "flow_id": pa.array(np.full(count, network, np.int64)),
        "length": pa.array([one and one[1] for one in found], pa.int32()),
        "wire": pa.array([one and one[2] for one in found], pa.int32()),
        "payload": pa.array([one and batch.buffer[one[0] : one[0] + one[1]] for one in found], pa.binary()),
        "cooked": cooked,
        "digest": digest,
    }
    table = batch_of(columns, count)
    for start in range(0, count, ROWS):
        yield table.slice(start, ROWS)


def batch_of(columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """A batch of these columns, the others null."""
    return pa.RecordBatch.from_arrays(
        [columns[name] if name in columns else pa.nulls(count, kind) for name, (_, kind, _) in COLUMNS.items()], schema=SCHEMA
    )


def batch_of_rows(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of these rows, null where they have no value."""
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def fixed(matrix: NDArray[np.uint8]) -> Any:
    """The rows of a matrix as binary values."""
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def binary(buffer: bytes, offset: NDArray[np.int64], length: NDArray[np.int64]) -> Any:
    """These pieces of a buffer as binary values."""
    count = len(offset)
    sizes = np.zeros(count + 1, np.int32)
    np.cumsum(length, out=sizes[1:])
    data = b"".join([buffer[start:end] for start, end in zip(offset.tolist(), (offset + length).tolist(), strict=True)])
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(sizes), pa.py_buffer(data)])
