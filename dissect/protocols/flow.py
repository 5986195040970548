"""One side's byte stream as a dissector holds it: bytes not yet cut into frames, and the segments that brought them."""

from __future__ import annotations

import msgspec

from dissect.model import Chunk, StreamGap
from dissect.protocols.effort import Effort

END = 1 << 62
"""The order of the end of the capture: after every packet."""

NEVER = END << 1
"""After everything, the end of the capture too."""

Mark = tuple[int, int, int, int]
"""A packet: (order, number, file, time_ns)."""

Range = tuple[int, int, int]
"""Bytes of a byte stream: side, from, to."""


class Partial(msgspec.Struct):
    """A frame with a gap in it, or one too long to keep, while its bytes go by.

    `prefix` is what there is of it from its first byte on, of which up to `want` bytes are kept; `first` and `last` are the
    earliest and latest packet that brought bytes of it.
    """

    position: int
    length: int
    prefix: bytes
    want: int
    reason: str
    first: Mark
    last: Mark
    lost: int = 0
    why: str = "lost"


class Flow:
    """One side's byte stream: bytes not yet cut, and the segments that brought them."""

    __slots__ = (
        "base",
        "broken",
        "data",
        "effort",
        "files",
        "floor",
        "have",
        "jumbled",
        "missing",
        "need",
        "notes",
        "numbers",
        "orders",
        "partial",
        "pieces",
        "position",
        "queue",
        "queued",
        "releases",
        "scan",
        "searching",
        "skip_from",
        "starts",
        "times",
        "told",
        "tried",
        "waiting",
    )

    def __init__(self, searching: bool) -> None:
        self.position = 0
        # the position of data[0]: bytes are done with by moving `position`, and taken off when they are most of what there is
        self.base = 0
        self.data = b""
        self.pieces: list[bytes] = []
        # bytes at hand, from `position` on
        self.have = 0
        self.need = 0
        # bytes taken in from now on are not certain before this packet
        self.floor = 0
        # while the end of the bytes at hand is dealt with: the size of the gap that follows
        self.missing = 0
        # one entry a segment, absolute positions
        self.starts: list[int] = []
        self.orders: list[int] = []
        self.releases: list[int] = []
        self.numbers: list[int] = []
        self.files: list[int] = []
        self.times: list[int] = []
        self.jumbled = NEVER
        """From this packet on segments were certain later than captured, so perhaps not captured in the order of the byte stream."""
        self.searching = searching
        self.effort = Effort()
        self.scan = 0
        self.tried = 0
        self.skip_from: int | None = None
        self.partial: Partial | None = None
        self.queue: list[Chunk | StreamGap] = []
        """What waits behind the bytes at hand, `queued` bytes."""
        self.queued = 0
        self.waiting = False
        self.notes: list[tuple[int, str]] | tuple[()] = ()
        """A list from the first one on: most flows never have any."""
        self.told = 0
        """How far the byte stream was cut: up to here every byte is in a frame or gap that was handed on, or will be."""
        self.broken = False
        """An exception came: nothing is cut any more."""

    def add(self, chunk: Chunk) -> None:
        base = chunk.position
        self.starts.extend([base + start for start in chunk.starts] if base else chunk.starts)
        self.orders.extend(chunk.orders)
        if self.jumbled == NEVER and chunk.releases is not chunk.orders:
            late = (release for release, order in zip(chunk.releases, chunk.orders, strict=True) if release != order)
            self.jumbled = next(late, NEVER)
        floor = self.floor
        if floor and chunk.releases and chunk.releases[0] < floor:
            self.releases.extend([max(release, floor) for release in chunk.releases])
        else:
            self.releases.extend(chunk.releases)
        self.numbers.extend(chunk.numbers)
        self.files.extend(chunk.files)
        self.times.extend(chunk.times)
        if chunk.notes:
            if not self.notes:
                self.notes = []
            self.notes.extend(chunk.notes)

    def forget(self) -> None:
        """Drop the segments that lie wholly before `position` when they are half of all, but always keep the last one."""
        starts = self.starts
        if not starts:
            return
        count = self.segment(self.position)
        if count and count * 2 >= len(starts):
            for column in (starts, self.orders, self.releases, self.numbers, self.files, self.times):
                del column[:count]

    def segment(self, position: int) -> int:
        """The index of the segment that holds `position` (the last one if it lies beyond)."""
        starts = self.starts
        if len(starts) < 2:
            return 0
        low, high = 0, len(starts)
        while high - low > 1:
            middle = (low + high) // 2
            if starts[middle] <= position:
                low = middle
            else:
                high = middle
        return low

    def mark(self, index: int) -> Mark:
        return (self.orders[index], self.numbers[index], self.files[index], self.times[index])

    def marks(self, start: int, end: int) -> tuple[Mark, Mark]:
        """The earliest and the latest packet that brought bytes of [start, end)."""
        indexes = range(self.segment(start), self.segment(max(start, end - 1)) + 1)
        oldest = min(indexes, key=self.orders.__getitem__)
        newest = max(indexes, key=self.orders.__getitem__)
        return self.mark(oldest), self.mark(newest)

    def take(self, data: bytes) -> None:
        """Bytes that come when none are at hand."""
        self.data = data
        self.base = self.position
        self.have = len(data)

    def join(self) -> bytes:
        """The bytes at hand as one, behind what is done with; a frame that came in many pieces is joined once, when it is whole."""
        if self.pieces:
            self.data = b"".join((memoryview(self.data)[self.position - self.base :], *self.pieces))
            self.base = self.position
            self.pieces.clear()
        return self.data

    def rest(self) -> bytes:
        """The bytes at hand alone."""
        data = self.join()
        if self.position > self.base:
            self.data = data = data[self.position - self.base :]
            self.base = self.position
        return data

    def consume(self, size: int) -> None:
        """The first `size` bytes at hand are done with."""
        self.have -= size
        self.position += size

    def trim(self) -> None:
        """Take off what is done with, if it is most of what there is."""
        if not self.have:
            self.data = b""
            self.base = self.position
        elif (self.position - self.base) * 2 > len(self.data):
            self.data = self.data[self.position - self.base :]
            self.base = self.position

    def at_rest(self, order: int) -> bool:
        busy = self.have or self.searching or self.waiting or self.queue or self.notes or self.broken or self.partial is not None
        return not busy and self.skip_from is None and self.jumbled == NEVER and self.floor <= order

    def drop(self) -> None:
        """Forget the bytes at hand; `position` has been moved by the caller."""
        self.take(b"")

    def raise_releases(self, release: int) -> None:
        """No byte held so far, nor any that waits behind it, counts as certain before `release`."""
        if release <= self.floor:
            return
        self.floor = release
        releases = self.releases
        index = self.segment(self.position)
        while index < len(releases) and releases[index] < release:
            releases[index] = release
            index += 1
