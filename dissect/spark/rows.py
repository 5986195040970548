"""Packets as rows of a Spark table: what `streamdump.packets` gives, and the Arrow columns that carry it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from ..capture.ends import network_key
from ..capture.link import LinkParser
from ..capture.merge import merge
from ..capture.packet_processes import PacketProcess
from ..errors import CaptureError
from ..model import Packet, Segment
from ..tcp.assembler import SYN
from ..tcp.checksum import is_right
from .keys import key_of
from .splits import OwnedPacket, Split, batches

SEGMENT, FRAGMENT, OTHER, REPEATED, CARRY, CARRY_IN_ORDER = 0, 1, 2, 3, 4, 5
"""Kinds of rows: a TCP segment; a fragment of a TCP datagram, whose `payload` is the IP packet; a packet that is none of ours, which in a
cooked capture may be the first of a pair, or else is the last of its range; and, made in a later stage only, the mark of a packet that
was seen before.

And two that hold what is known from earlier packets, in `payload`: CARRY of the conversations of its `flow_id`, which has to be looked at
again at `time_ns` even if no packet comes; CARRY_IN_ORDER of fragments that wait and of packets of cooked captures."""

EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
"""The ends of times; the first is `merge_ns` of what is carried, so that it sorts before all packets."""

COLUMNS: dict[str, tuple[Any, str]] = {
    "kind": (
        pa.int8(),
        "0 TCP segment, 1 fragment of a TCP datagram, 2 other packet of a cooked capture, or the last of a range, 4 and 5 carried",
    ),
    "file": (pa.int32(), "index of the input"),
    "number": (pa.int64(), "number of the packet in its file, from 1"),
    "time_ns": (pa.int64(), "capture time, nanoseconds since 1970"),
    "merge_ns": (pa.int64(), "latest capture time in its file so far: the order among several files"),
    "flow_id": (pa.int64(), "a number of the pair of endpoints; two pairs may share it; of kinds 1 and 2 that of the network"),
    "flow": (pa.binary(), "both endpoints: address, port, address, port, IP version, the lower one first; and the network"),
    "reverse": (pa.bool_(), "the higher endpoint sent it"),
    "seq": (pa.int64(), "sequence number"),
    "ack": (pa.int64(), "acknowledgement number"),
    "flags": (
        pa.int16(),
        "FIN 1, SYN 2, RST 4, PSH 8, ACK 16; 256 `wire` is more than the frame had; 512 the packet has no time",
    ),
    "window": (pa.int32(), "window field of the segment"),
    "length": (pa.int32(), "bytes of payload captured"),
    "wire": (pa.int32(), "bytes of payload sent"),
    "ttl": (pa.int16(), "TTL of IPv4, hop limit of IPv6"),
    "damaged": (pa.bool_(), "the checksum of a segment with payload or SYN is wrong"),
    "payload": (pa.binary(), "bytes of it as captured"),
    "owner": (pa.binary(), "the process that it belongs to, where the capture names it: see `owner_in`"),
    "cooked": (pa.int32(), "packet type and interface of a Linux cooked capture, else null"),
    "digest": (pa.binary(), "digest of the IP packet of a Linux cooked capture"),
}

SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])

Row = tuple[Any, ...]
"""A value for each column."""

ROWS = 10_000
"""Rows of an Arrow batch; more gain nothing and cost memory on both sides."""


def read(split: Split, ordered: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of a range in the order of its packets. `ordered`: only the rows that depend on each other across conversations."""
    parser = LinkParser(stateless=True)
    latest = split.latest_ns
    last = split.number + split.packets
    for packets in _packets(split):
        found: list[Row] = []
        for packet in packets:
            latest = max(latest, packet.time_ns)
            found += _rows_of(parser, packet, split, latest, packet.number == last)
        if ordered:
            found = [row for row in found if row[0] != SEGMENT or row[-1] is not None]
        for start in range(0, len(found), ROWS):
            yield batch_of(found[start : start + ROWS])


def _rows_of(parser: LinkParser, packet: Packet, split: Split, latest_ns: int, last: bool) -> tuple[Row, ...]:
    """The row of a packet; none where it is none of ours, and not the `last` one, which tells when the capture ends."""
    segment = parser.segment(packet, 0)
    sighting = parser.sighting or NOWHERE
    owner = owner_of(packet)
    if segment is not None:
        _place(segment, split.file, network_key(split.network))
        return (row_of(segment, latest_ns, owner, sighting),)
    place = split.file, packet.number, packet.time_ns, latest_ns
    fragment = parser.fragment
    if fragment is not None:
        data = packet.buffer[fragment.offset : fragment.offset + fragment.captured]
        return ((FRAGMENT, *place, split.network, *[None] * 6, len(data), fragment.wire, None, None, data, _written(owner), *sighting),)
    return () if sighting is NOWHERE and not last else ((OTHER, *place, split.network, *[None] * 12, *sighting),)


def _place(segment: Segment, file: int, network: bytes) -> None:
    """Set the file of a segment, and add the network to its ends."""
    segment.mark = (*segment.mark[:2], file, segment.mark[3])
    segment.ends += network


NOWHERE = (None, None)
"""Of a packet that nobody compares with others."""


def owner_of(packet: Packet) -> PacketProcess | None:
    """Return the process that a packet belongs to; None if the capture names none."""
    return packet.owner if type(packet) is OwnedPacket else None


def _written(owner: PacketProcess | None) -> bytes | None:
    """Return the value of the column `owner`."""
    return None if owner is None else msgspec.msgpack.encode(owner._replace(number=0))


@lru_cache(1_024)
def owner_in(data: bytes) -> PacketProcess:
    """Return the process in a value of the column `owner`, without the number of the packet; most values are the same."""
    return _OWNER.decode(data)


_OWNER = msgspec.msgpack.Decoder(PacketProcess)


def row_of(segment: Segment, latest_ns: int, owner: PacketProcess | None = None, sighting: tuple[Any, Any] = NOWHERE) -> Row:
    """The row of a segment."""
    place = segment.file, segment.number, segment.time_ns, latest_ns
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
    return (SEGMENT, *place, *key_of(segment.ends), *header, segment.data, _written(owner), *sighting)


def timed_segments(split: Split) -> Iterator[tuple[Segment, PacketProcess | None, int]]:
    """The segments of a range, with each its owner and the latest time so far; none of them depends on others."""
    parser, network, latest_ns = LinkParser(stateless=True), network_key(split.network), split.latest_ns
    for packets in _packets(split):
        for packet in packets:
            latest_ns = max(latest_ns, packet.time_ns)
            segment = parser.segment(packet, 0)
            if segment is not None:
                _place(segment, split.file, network)
                yield segment, owner_of(packet), latest_ns


def merged_segments(splits: Sequence[Split], home: Home | None, stateless: bool = True) -> Iterator[tuple[Segment, PacketProcess | None]]:
    """The segments of these ranges that are at home here (None: all), in the order of a plain run, with their owners. `stateless`: none
    depends on others."""
    files = {split.file: [one for one in splits if one.file == split.file] for split in sorted(splits, key=lambda one: one.file)}
    names = [(file, network_key(some[0].network)) for file, some in files.items()]
    inputs = [_Input(some) for some in files.values()]
    parser = LinkParser(stateless=stateless)
    for packets in inputs[0].batches() if len(inputs) == 1 else merge(inputs):
        for packet in packets:
            segment = parser.segment(packet, 0)
            if segment is not None:
                _place(segment, *names[segment.file])
                if home is None or key_of(segment.ends)[0] in home:
                    yield segment, owner_of(packet)


Home = frozenset[int]
"""Some conversations, by `flow_id`."""


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
