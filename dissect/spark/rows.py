"""Segments of captures, and the rows of Arrow columns in which they are sent to other tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
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
from .splits import OwnedPacket, Split, batches

SEGMENT, CARRY = 0, 1
"""Kinds of rows: a TCP segment; and the state of the open conversations of a `flow_id`, in `payload`, which has to be processed again at
`time_ns` even if no packet comes."""

EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
"""The ends of times; the first is `merge_ns` of carried rows, which sorts them before all packets."""

SCHEMA = pa.schema(
    [
        ("kind", pa.int8()),
        ("file", pa.int32()),  # Index of the input
        ("number", pa.int64()),  # Of the packet in its file, from 1
        ("time_ns", pa.int64()),
        ("merge_ns", pa.int64()),  # Latest capture time in its file so far: the order among several files
        ("flow_id", pa.int64()),  # `keys.key_of`: two flows may share it
        ("flow", pa.binary()),
        ("reverse", pa.bool_()),
        ("seq", pa.int64()),
        ("ack", pa.int64()),
        ("flags", pa.int16()),
        ("window", pa.int32()),
        ("length", pa.int32()),  # Bytes of the payload
        ("wire", pa.int32()),
        ("ttl", pa.int16()),
        ("damaged", pa.bool_()),  # The checksum of a segment with payload or SYN is wrong
        ("payload", pa.binary()),
        ("owner", pa.binary()),  # `owner_in`
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


def _written(owner: PacketProcess | None) -> bytes | None:
    """Return the value of the column `owner`."""
    return None if owner is None else msgspec.msgpack.encode(owner._replace(number=0))


@lru_cache(1_024)
def owner_in(data: bytes) -> PacketProcess:
    """Return the process in a value of the column `owner`, without the number of the packet; most values are the same."""
    return _OWNER.decode(data)


_OWNER = msgspec.msgpack.Decoder(PacketProcess)


def row_of(segment: Segment, owner: PacketProcess | None) -> Row:
    """The row of a segment from `segments`."""
    latest_ns, number, file, time_ns = segment.mark
    header = (
        segment.seq,
        segment.ack,
        segment.flags,
        segment.window,
        len(segment.data),
        segment.wire,
        segment.ttl,
        bool(segment.data or segment.flags & SYN) and not is_right(segment),
    )
    return (SEGMENT, file, number, time_ns, latest_ns, *key_of(segment.ends), *header, segment.data, _written(owner))


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
                if segment is None:
                    continue
                file, network, after = names[at]
                # Those before it were read again as these may be copies of them, or have their other fragments
                if packet.number > after:
                    segment.mark = latest[at], packet.number, file, time_ns
                    segment.ends += network
                    found.append(segment)
                    if type(packet) is OwnedPacket and packet.owner is not None:
                        owners[id(segment)] = packet.owner
            if found:
                yield found, owners


class _Input:
    """Ranges of one file, as they are merged with those of others."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.splits = splits
        self.latest_ns = splits[0].latest_ns

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]:
        for split in self.splits:
            yield from _packets(split)


def _packets(split: Split) -> Iterator[list[Packet]]:
    """The packets of a range up to the damage that was found in it."""
    try:
        yield from batches(split)
    except CaptureError as error:
        if not split.damaged:
            raise CaptureError(f"has changed since it was first looked at: {error.reason}", split.path, error.offset) from error


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """A batch of these rows."""
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch_of_rows(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of these rows, null where they have no value."""
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
