"""Segments of captures, and the rows of Arrow columns in which they are sent to other tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from ..capture.ends import network_key
from ..capture.link import LinkParser
from ..capture.merge import merge
from ..capture.packet_processes import PacketProcess
from ..errors import CaptureError
from ..inspector import BLOCK
from ..model import Packet, Segment
from ..tcp.assembler import SYN
from ..tcp.checksum import is_right
from .keys import key_of
from .splits import Split, batches

EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
"""The ends of times; the first is `merge_ns` of carried rows, which sorts them before all packets."""

SCHEMA = pa.schema(
    [
        ("flow_id", pa.int64()),  # `keys.key_of`: two flows may share it
        ("merge_ns", pa.int64()),  # Latest capture time in its file so far: the order among several files
        ("file", pa.int32()),  # Index of the input
        ("number", pa.int64()),  # Of the packet in its file, from 1
        ("data", pa.binary()),  # A segment (`segment_in`); or open conversations (`Dissection.carried`)
    ]
)

Row = tuple[Any, ...]
"""A value for each column."""

ROWS = 1_000
"""Rows of an Arrow batch; a segment may have 64 kB."""


def read(split: Split, parsers: dict[int, LinkParser] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in the order of its packets. `parsers`: see `segments`."""
    found = (row_of(one, owners.get(id(one))) for some, owners in segments([split], parsers) for one in some)
    while rows := list(islice(found, ROWS)):
        yield batch_of(rows)


def row_of(segment: Segment, owner: PacketProcess | None) -> Row:
    """The row of a segment from `segments`."""
    latest_ns, number, file, _ = segment.mark
    one = segment
    damaged = bool(one.data or one.flags & SYN) and not is_right(one)
    values = one.ends, one.mark, one.seq, one.ack, one.flags, one.window, one.data, one.wire, one.ttl, damaged, owner
    return key_of(one.ends), latest_ns, file, number, msgspec.msgpack.encode(values)


def segment_in(data: bytes) -> tuple[Segment, PacketProcess | None]:
    """The segment in a row, and the process that it belongs to."""
    ends, mark, seq, ack, flags, window, payload, wire, ttl, damaged, owner = msgspec.msgpack.decode(data)
    segment = Segment(ends, tuple(mark), seq, ack, flags, window, payload, wire, ttl, b"", 0, damaged)
    return segment, None if owner is None else msgspec.convert(owner, PacketProcess)


Owners = Mapping[int, PacketProcess]
"""By `id` of a segment the process that it belongs to, where the capture names it."""


def segments(splits: Sequence[Split], parsers: dict[int, LinkParser] | None = None) -> Iterator[tuple[list[Segment], Owners]]:
    """Yield the segments of these ranges in the order of a plain run, some at a time. Until they are fed, the `order` of each is the latest
    time so far in its file.

    `parsers`: by network what reads its packets, which remembers those of ranges before these; missing ones are added.
    """
    files = {split.file: [one for one in splits if one.file == split.file] for split in sorted(splits, key=lambda one: one.file)}
    inputs = [_Input(some) for some in files.values()]
    latest = [one.latest_ns for one in inputs]
    owned = [one.owners for one in inputs]
    names = [(file, network_key(some[0].network), some[0].after) for file, some in files.items()]
    parsers = {} if parsers is None else parsers
    parse = [parsers.setdefault(some[0].network, LinkParser()).segment for some in files.values()]
    for packets in inputs[0].batches() if len(inputs) == 1 else merge(inputs):
        for begin in range(0, len(packets), BLOCK):
            found: list[Segment] = []
            owners: dict[int, PacketProcess] = {}
            for packet in packets[begin : begin + BLOCK]:
                at, time_ns = packet.file, packet.time_ns
                if time_ns > latest[at]:
                    latest[at] = time_ns
                segment = parse[at](packet, 0)
                owner = owned[at].pop(packet.number, None) if owned[at] else None
                if segment is None:
                    continue
                file, network, after = names[at]
                # Those before it were read again as these may be copies of them, or have their other fragments
                if packet.number > after:
                    segment.mark = latest[at], packet.number, file, time_ns
                    segment.ends += network
                    found.append(segment)
                    if owner is not None:
                        owners[id(segment)] = owner
            if found:
                yield found, owners


class _Input:
    """Ranges of one file, as they are merged with those of others."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.splits = splits
        self.latest_ns = splits[0].latest_ns
        self.owners: dict[int, PacketProcess] = {}
        """By number, until their packets are fed."""

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]:
        for split in self.splits:
            yield from _packets(split, self.owners)


def _packets(split: Split, owners: dict[int, PacketProcess]) -> Iterator[list[Packet]]:
    """The packets of a range up to the damage that was found in it; see `batches`."""
    try:
        yield from batches(split, owners)
    except CaptureError as error:
        if split.error is None:
            raise CaptureError(f"has changed since it was first looked at: {error.reason}", split.path, error.offset) from error


def batch_of(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """A batch of these rows."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)], schema=schema)
