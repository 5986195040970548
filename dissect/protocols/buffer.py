"""The byte stream of one side in a parser: bytes not yet split into frames, and the segments that brought them."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from ..model import Mark, SideData, StreamGap
from .work_budget import WorkBudget

Range = tuple[int, int, int]
"""Bytes of a byte stream: side, start, end."""


class PartialFrame(msgspec.Struct):
    """A frame with a gap in it, or one too long to keep, until its end is reached.

    `prefix`: its first bytes, up to `prefix_limit`; `first`, `last`: the earliest and latest packet that brought bytes of it.
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
    """The bytes of one side not yet split, and the segments that brought them."""

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
        # Position of data[0]: consuming bytes moves `position`; they are removed once they are most of `data`
        self.base = 0
        self.data = b""
        self.pieces: list[bytes] = []
        # Bytes available from `position` on
        self.have = 0
        self.need = 0
        # The size of the gap that follows the available bytes, while their end is handled
        self.missing = 0
        # Per segment: its position and its packet
        self.starts: list[int] = []
        self.marks: list[Mark] = []
        self.searching = searching
        self.work_budget = WorkBudget()
        self.scan = 0
        self.tried = 0
        self.skip_from: int | None = None
        self.partial: PartialFrame | None = None
        self.queue: list[SideData | StreamGap] = []
        """Items behind the available bytes: `queued` bytes."""
        self.queued = 0
        self.waiting = False
        self.notes: list[tuple[int, str]] | tuple[()] = ()
        """A list once there is one: most conversations have none."""
        self.split_to = 0
        """Up to here every byte is in a frame or gap."""

    def add(self, item: SideData) -> None:
        """Register the segment whose bytes are added next."""
        if self.have:
            self.starts.append(item.position)
            self.marks.append(item.mark)
        else:
            self.starts = [item.position]
            self.marks = [item.mark]
        if item.notes:
            self.note(item.notes)

    def note(self, notes: tuple[tuple[int, str], ...]) -> None:
        """Add notes of the reassembler, without copying: a frame may take many segments."""
        if isinstance(self.notes, list):
            self.notes += notes
        else:
            self.notes = [*notes]

    def forget(self) -> None:
        """Drop the segments before `position` if they are half of all, but keep the last one."""
        count = self.segment(self.position)
        if count and count * 2 >= len(self.starts):
            del self.starts[:count]
            del self.marks[:count]

    def segment(self, position: int) -> int:
        """Return the index of the segment that contains `position`, of the last one if it lies beyond."""
        starts = self.starts
        return 0 if len(starts) < 2 else max(bisect_right(starts, position) - 1, 0)

    def span(self, start: int, end: int) -> tuple[Mark, Mark]:
        """Return the earliest and the latest packet that brought bytes of [start, end)."""
        marks = self.marks[self.segment(start) : self.segment(max(start, end - 1)) + 1]
        return min(marks), max(marks)

    def begin(self, data: bytes) -> None:
        """Set the available bytes when there are none."""
        self.data = data
        self.base = self.position
        self.have = len(data)

    def join(self) -> bytes:
        """Return `data` with all pieces joined; a frame in many pieces is joined once, when it is complete."""
        if self.pieces:
            self.data = b"".join((memoryview(self.data)[self.position - self.base :], *self.pieces))
            self.base = self.position
            self.pieces.clear()
        return self.data

    def rest(self) -> bytes:
        """Return the available bytes alone."""
        data = self.join()
        if self.position > self.base:
            self.data = data = data[self.position - self.base :]
            self.base = self.position
        return data

    def consume(self, size: int) -> None:
        """Consume the first `size` available bytes."""
        self.have -= size
        self.position += size

    def trim(self) -> None:
        """Remove consumed bytes if they are most of `data`."""
        if not self.have:
            self.data = b""
            self.base = self.position
        elif (self.position - self.base) * 2 > len(self.data):
            self.data = self.data[self.position - self.base :]
            self.base = self.position
        if len(self.starts) > 1:
            self.forget()

    def is_at_rest(self) -> bool:
        """Return whether there are no bytes, no search and nothing to wait for."""
        return not (self.have or self.searching or self.waiting or self.queue) and self.partial is None and self.skip_from is None

    def drop(self) -> None:
        """Drop the available bytes; the caller has moved `position`."""
        self.begin(b"")
