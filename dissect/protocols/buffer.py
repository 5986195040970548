"""One side's byte stream as a parser holds it: bytes not yet cut into frames, and the segments that brought them."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from ..model import Mark, SideData, StreamGap
from .work_budget import WorkBudget

Range = tuple[int, int, int]
"""Bytes of a byte stream: side, from, to."""


class PartialFrame(msgspec.Struct):
    """A frame with a gap in it, or one too long to keep, while its bytes go by.

    `prefix` is what there is of it from its first byte on, of which up to `prefix_limit` bytes are kept; `first` and `last` are the
    earliest and latest packet that brought bytes of it.
    """

    position: int
    length: int
    prefix: bytes
    prefix_limit: int
    reason: str
    first: Mark
    last: Mark
    lost: int = 0
    why: str = "lost"


class ReceiveBuffer:
    """One side's byte stream: bytes not yet cut, and the segments that brought them."""

    __slots__ = (
        "base",
        "data",
        "have",
        "marks",
        "missing",
        "need",
        "notes",
        "partial",
        "pieces",
        "position",
        "queue",
        "queued",
        "scan",
        "searching",
        "skip_from",
        "split_to",
        "starts",
        "tried",
        "waiting",
        "work_budget",
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
        # while the end of the bytes at hand is dealt with: the size of the gap that follows
        self.missing = 0
        # one entry a segment: its absolute position, and its packet
        self.starts: list[int] = []
        self.marks: list[Mark] = []
        self.searching = searching
        self.work_budget = WorkBudget()
        self.scan = 0
        self.tried = 0
        self.skip_from: int | None = None
        self.partial: PartialFrame | None = None
        self.queue: list[SideData | StreamGap] = []
        """What waits behind the bytes at hand, `queued` bytes."""
        self.queued = 0
        self.waiting = False
        self.notes: list[tuple[int, str]] | tuple[()] = ()
        """A list from the first one on: most never have any."""
        self.split_to = 0
        """How far the byte stream was cut: up to here every byte is in a frame or gap."""

    def add(self, item: SideData) -> None:
        """Note the segment of bytes that are taken in next."""
        if self.have:
            self.starts.append(item.position)
            self.marks.append((item.order, item.number, item.file, item.time_ns))
        else:
            self.starts = [item.position]
            self.marks = [(item.order, item.number, item.file, item.time_ns)]
        if item.notes:
            self.note(item.notes)

    def note(self, notes: tuple[tuple[int, str], ...]) -> None:
        """Keep what the reassembler says of bytes; not by copying, as a frame may be long in coming."""
        if isinstance(self.notes, list):
            self.notes += notes
        else:
            self.notes = [*notes]

    def forget(self) -> None:
        """Drop the segments that lie wholly before `position` when they are half of all, but always keep the last one."""
        count = self.segment(self.position)
        if count and count * 2 >= len(self.starts):
            del self.starts[:count]
            del self.marks[:count]

    def segment(self, position: int) -> int:
        """The index of the segment that holds `position` (the last one if it lies beyond)."""
        starts = self.starts
        return 0 if len(starts) < 2 else max(bisect_right(starts, position) - 1, 0)

    def span(self, start: int, end: int) -> tuple[Mark, Mark]:
        """The earliest and the latest packet that brought bytes of [start, end)."""
        marks = self.marks[self.segment(start) : self.segment(max(start, end - 1)) + 1]
        return min(marks), max(marks)

    def begin(self, data: bytes) -> None:
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
        if len(self.starts) > 1:
            self.forget()

    def is_at_rest(self) -> bool:
        """Whether no byte is at hand and nothing is looked for or waited for."""
        return not (self.have or self.searching or self.waiting or self.queue) and self.partial is None and self.skip_from is None

    def drop(self) -> None:
        """Forget the bytes at hand; `position` has been moved by the caller."""
        self.begin(b"")
