"""Segments of captures, and the rows in which they are sent to other tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from ..capture.ends import network_key
from ..capture.link import LinkParser
from ..capture.merge import merge
from ..capture.packet_processes import PacketProcess
from ..inspector import BLOCK
from ..model import Packet, Segment
from ..tcp.assembler import SYN
from ..tcp.checksum import is_right
from .keys import key_of
from .ordered import Row
from .splits import Split, batches

EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
"""The ends of times; the first is that of rows with carried conversations, which sorts them before all packets."""

STATES = pa.schema([("flow_id", pa.int64()), ("data", pa.binary())])
"""Open conversations as they wait for later packets: see `Dissection.carried`."""


def row_of(segment: Segment, owner: PacketProcess | None) -> Row:
    """The row of a segment from `segments`: the `flow_id`, which is the key of its conversation (`keys.key_of`, two may share it), the
    latest capture time in its file so far, the index of the input, the packet's number there, and what `segment_in` reads."""
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
            yield from batches(split, self.owners)
