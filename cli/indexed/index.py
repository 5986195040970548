"""The index of packets and records: packed, as there may be ten million; it is enough to read everything else again."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from threading import RLock
from typing import IO, Any, NamedTuple

import msgspec
from cramjam import zstd

from streamdump.capture.blocks import explain
from streamdump.capture.ends import back
from streamdump.capture.files import CaptureReader
from streamdump.capture.link import LinkParser
from streamdump.errors import CaptureError
from streamdump.inspector import BLOCK
from streamdump.model import Ending, Exchange, Gap, Message, Packet, Segment

Shown = Message | Gap | Exchange | Ending
"""What has a line of its own among the messages."""

TOGETHER = 4096
"""Packets that are packed together, and in `RECORDS` records."""

RECORDS = 1024

AROUND = 6
"""Bytes of a record beside its block."""

HELD = 64
"""Blocks of records that stay unpacked."""

TEXT, SHORT = 240, 24
"""Characters kept of the text of a record; the second limit applies once more than `ROOM` bytes a record are kept."""

ROOM = 72

SPOOLED = 1 << 30
"""Bytes of the temporary file that packets of pipes and interfaces are kept in."""

NO_CONVERSATION, FRAGMENT = -1, -2
"""Of no conversation; a fragment, of any."""

AS_DIFFERENCE = (2, 5, 7)
"""Columns of packets that grow all the time."""


class Spool:
    """Bytes that cannot be read again where they came from, in a file without a name in which the latest replace the oldest."""

    def __init__(self, limit: int = SPOOLED) -> None:
        self._limit, self._size = limit, 0
        self._file: IO[bytes] | None = None

    def write(self, data: bytes) -> int:
        """Where they are from now on."""
        at = self._size
        if at % self._limit + len(data) > self._limit:
            at += -at % self._limit
        try:
            self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            os.pwrite(self._file.fileno(), data, at % self._limit)
        except OSError as error:
            raise CaptureError(f"packets cannot be stored in {tempfile.gettempdir()}: {explain(error)}") from error
        self._size = at + len(data)
        return at

    def read(self, at: int, size: int) -> bytes:
        """What was written there; nothing where it is kept no more."""
        return os.pread(self._file.fileno(), size, at % self._limit) if self._file and at >= self._size - self._limit else b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PacketIndex(LinkParser):
    """Reads link headers as the parser does that it has, and remembers of each packet where it lies and which conversation it is of."""

    def __init__(self, link: LinkParser, readers: Sequence[CaptureReader] = ()) -> None:
        super().__init__()
        self.link = link
        self.counters = link.counters
        self.ends: dict[int, bytes] = {}
        """By conversation those of a segment."""
        self._names = [one.name for one in readers]
        self._places = [one.watch_places() for one in readers]
        self._files = [None if found is None else os.open(name, os.O_RDONLY) for name, found in zip(self._names, self._places, strict=True)]
        self._buffers: list[tuple[bytes, int]] = [(b"", 0)] * len(readers)
        self._spool = Spool()
        self._of: dict[bytes, int] = {}
        self._conversations = 0
        self._lock = RLock()
        self._blocks: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []
        self._pending: list[tuple[bytes | None, tuple[int, ...]]] = []
        """The latest rows, with the ends of their segments: the inspector parses a block of packets before its conversations begin."""

    def __len__(self) -> int:
        return len(self._blocks) * TOGETHER + len(self._rows) + len(self._pending)

    def segment(self, packet: Packet, order: int) -> Segment | None:
        """As the parser says; the packet is remembered."""
        fragments = self.counters.fragments
        found = self.link.segment(packet, order)
        whose = NO_CONVERSATION if self.counters.fragments == fragments else FRAGMENT
        captured, more = packet.captured, packet.wire - packet.captured
        row = (whose, packet.file, self._place(packet), captured, more, packet.time_ns, packet.link, order - packet.number)
        with self._lock:
            if len(self._pending) == 2 * BLOCK:
                self._settle(BLOCK)
            self._pending.append((None if found is None else found.ends, row))
        return found

    def begin(self, segment: Segment) -> int:
        """Return the number of the conversation that begins with a segment, before which all segments have found theirs."""
        number, self._conversations = self._conversations, self._conversations + 1
        with self._lock:
            self._settle(segment.order - (len(self) - len(self._pending)))
            self._of[segment.ends] = self._of[back(segment.ends)] = number
        self.ends[number] = segment.ends
        return number

    def _settle(self, count: int) -> None:
        """Store the oldest pending rows, of which it is known which conversations they belong to."""
        for row in map(self._settled, self._pending[:count]):
            if len(self._rows) == TOGETHER:
                self._blocks.append(_packed(self._rows))
                self._rows = []
            self._rows.append(row)
        del self._pending[:count]

    def _settled(self, pending: tuple[bytes | None, tuple[int, ...]]) -> tuple[int, ...]:
        ends, row = pending
        return row if ends is None else (self._of.get(ends, NO_CONVERSATION), *row[1:])

    def forget(self, known: Callable[[int], bool]) -> None:
        """No packets come of conversations that are not known."""
        with self._lock:
            self._settle(len(self._pending))
            self._of = {ends: number for ends, number in self._of.items() if known(number)}
        self.ends = {number: ends for number, ends in self.ends.items() if known(number)}

    def close(self) -> None:
        """Close what packets are read from; a thread that still reads them again finds none."""
        with self._lock:
            self._spool.close()
            for file in self._files:
                if file is not None:
                    os.close(file)
            self._files = [None] * len(self._files)

    def drop(self, before: int) -> None:
        """Packets before this one are not asked for again."""
        for at in range(min(before // TOGETHER, len(self._blocks)) - 1, -1, -1):
            if not self._blocks[at]:
                break
            self._blocks[at] = b""

    def again(self, first: int, last: int, whose: frozenset[int] | None = None) -> Iterator[tuple[int, Packet]]:
        """The packets from this order up to another, of these conversations or of all, read again; `CaptureError` where one is gone."""
        for at in range(first // TOGETHER, -(-last // TOGETHER)):
            with self._lock:
                block = self._blocks[at] if at < len(self._blocks) else None
                later = (at - len(self._blocks)) * TOGETHER
                kept = [*self._rows, *map(self._settled, self._pending)] if block is None else []
                rows: Iterable[tuple[int, ...]] = kept[later : later + TOGETHER]
            if block is not None:
                rows = _unpacked(block, whose)
            for order, row in enumerate(rows, at * TOGETHER):
                if first <= order < last and (whose is None or row[0] in whose or row[0] == FRAGMENT):
                    yield order, self._read(order, row)

    def _read(self, order: int, row: tuple[int, ...]) -> Packet:
        _, file, at, captured, more, time_ns, link, before = row
        with self._lock:
            number = self._files[file] if self._files else None
            data = self._spool.read(at, captured) if number is None else os.pread(number, captured, at)
        if len(data) < captured:
            name = self._names[file] if self._names else None
            raise CaptureError("cannot be read again: the file has changed, or the packet is no longer kept", name, None, order - before)
        return Packet(data, time_ns, order - before, file, 0, captured, captured + more, link)

    def _place(self, packet: Packet) -> int:
        """Where the packet lies in its file, or in ours."""
        places = self._places[packet.file] if self._places else None
        if places is None:
            return self._spool.write(packet.buffer[packet.offset : packet.offset + packet.captured])
        while self._buffers[packet.file][0] is not packet.buffer:
            self._buffers[packet.file] = places.popleft()
        return self._buffers[packet.file][1] + packet.offset


def _packed(rows: list[tuple[int, ...]]) -> bytes:
    columns = [list(column) for column in zip(*rows, strict=True)]
    for at in AS_DIFFERENCE:
        columns[at][1:] = map(sub, columns[at][1:], columns[at])
    return bytes(zstd.compress(b"".join([array("q", column).tobytes() for column in columns]), 3))


def _unpacked(block: bytes, whose: frozenset[int] | None) -> Iterable[tuple[int, ...]]:
    """The rows of a block; none where it has nothing of these conversations."""
    if not block:
        return ()
    numbers = array("q", bytes(zstd.decompress(block)))
    columns: list[Any] = [numbers[at : at + TOGETHER] for at in range(0, len(numbers), TOGETHER)]
    if whose is not None and (whose | {FRAGMENT}).isdisjoint(columns[0]):
        return ()
    for at in AS_DIFFERENCE:
        columns[at] = accumulate(columns[at])
    return zip(*columns, strict=True)


class Row(NamedTuple):
    """A record without its fields, and how its line looks; it was certain with a packet before `until`."""

    record: Shown
    mark: str
    name: str
    text: str
    until: int
    late: bool = False
    """Released later than records that came after it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Row]).decode

FORGOTTEN = Row(Gap(1, 0, "", 0, 0, "", "", None, "", 0, None, "skipped", False), "!", "gap", "no longer kept", 0)
"""Stands for the forgotten part of a capture without an end."""


class RecordIndex:
    """The records of a run in their order, each without its fields."""

    def __init__(self) -> None:
        self.marks = bytearray()
        """Of each record that is kept how its line is marked."""
        self.of: dict[int, array[int]] = {}
        """By conversation, which these are."""
        self.size = 0
        """The approximate size of all this in bytes."""
        self.first = 0
        """Those before it are kept no more."""
        self._lock = RLock()
        self._blocks: list[bytes] = []
        self._rows: list[Row] = []
        self._held: dict[int, list[Row]] = {}

    def __len__(self) -> int:
        return self.first + len(self.marks)

    def add(self, record: Shown, mark: str, name: str, text: str, until: int, late: bool = False) -> None:
        """Remember one more."""
        room = TEXT if self.size <= ROOM * len(self.marks) else SHORT
        if type(record) is Message:
            record = msgspec.structs.replace(record, fields={})
        with self._lock:
            self._rows.append(Row(record, mark, name, text[:room], until, late))
            self.of.setdefault(record.conversation, array("I")).append(len(self))
            self.marks.append(ord(mark))
            self.size += AROUND
            if len(self._rows) == RECORDS:
                self._blocks.append(bytes(zstd.compress(_encode(self._rows), 3)))
                self.size += len(self._blocks[-1])
                self._rows = []

    def row(self, index: int) -> Row:
        """The record of this index, which is its number less 1."""
        return self._part(index // RECORDS)[index % RECORDS]

    def each(self, indexes: Iterable[int]) -> Iterator[tuple[int, Row]]:
        """These records with their indexes."""
        part: list[Row] = []
        begin = end = 0
        for index in indexes:
            if not begin <= index < end:
                part = self._part(index // RECORDS)
                begin = index // RECORDS * RECORDS
                end = begin + len(part)
            yield index, part[index - begin]

    def drop(self, most: int) -> None:
        """Forget the oldest beyond the limit."""
        while len(self) - self.first > most + RECORDS:
            with self._lock:
                self.size -= len(self._blocks[self.first // RECORDS]) + AROUND * RECORDS
                self._blocks[self.first // RECORDS] = b""
                # In this order nobody ever sees more than there are
                del self.marks[:RECORDS]
                self.first += RECORDS

    def _part(self, at: int) -> list[Row]:
        with self._lock:
            if at >= len(self._blocks):
                return self._rows
            if not self._blocks[at]:
                return [FORGOTTEN] * RECORDS
            found = self._held.get(at)
            if found is None:
                while len(self._held) >= HELD:
                    del self._held[next(iter(self._held))]
                found = self._held[at] = _decode(bytes(zstd.decompress(self._blocks[at])))
            return found
