"""Spans and notes of frames that no table describes, and the buffers that offsets refer to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import Malformed, OverLimit
from ...model import Span
from ...quota import Spans

MAX_NOTES = 64
"""Limit of different notes on one frame; further ones are counted."""


class SpanRecorder:
    """The spans and notes of one frame.

    `start` is where the frame begins in the buffer: offsets in spans and faults count from there. `buffers` collects what was
    unpacked, by the name that spans and faults give it.
    """

    __slots__ = ("buffer", "buffers", "counted", "opened", "render", "spans", "start")

    def __init__(self, start: int, render: Callable[[bytes], Any], spans: Spans | None) -> None:
        self.start = start
        self.render = render
        self.spans = spans
        self.counted: dict[str, int] = {}
        self.buffer = "frame"
        self.buffers: dict[str, bytes] = {}
        self.opened: list[tuple[int, int]] = []
        """Index and start of each open span."""

    def note(self, text: str) -> None:
        counted = self.counted
        if text not in counted and len(counted) >= MAX_NOTES:
            text = "further notes"
        counted[text] = counted.get(text, 0) + 1

    def notes(self) -> list[str]:
        """Return the notes, equal ones once with their count."""
        return [text if count == 1 else f"{text} ({count} times)" for text, count in self.counted.items()]

    def span(self, name: str, at: int, length: int, value: Any, depth: int, label: str | None = None) -> None:
        if self.spans is not None:
            self.spans.append(Span(name, at - self.start, length, value, depth, True, label, False, self.buffer))

    def left_over(self, data: bytes, at: int, end: int, into: dict[str, Any], depth: int, where: str = "") -> None:
        """Add the bytes data[at:end], if there are any, which no field accounts for."""
        if at < end:
            self.note(f"{end - at} bytes left over{where}")
            into["trailing"] = self.render(data[at:end])
            self.span("trailing", at, end - at, into["trailing"], depth)

    def open(self, name: str, at: int, depth: int) -> None:
        """Begin a span around the following ones, ended by `close`."""
        if self.spans is not None:
            self.opened.append((len(self.spans), at))
            self.spans.append(Span(name, at - self.start, 0, None, depth, False, None, False, self.buffer))

    def close(self, end: int, label: str | None = None) -> None:
        if self.spans is not None:
            index, at = self.opened.pop()
            self.spans.end_at(index, end - at, label)

    def undo(self, mark: tuple[Any, int]) -> None:
        """Remove the spans since `mark`, to read the same bytes differently."""
        if self.spans is not None:
            self.spans.back(mark[0])
            del self.opened[mark[1] :]

    def mark(self) -> tuple[Any, int]:
        return (None if self.spans is None else self.spans.mark(), len(self.opened))

    def abandon(self) -> int:
        """After damage: end the spans that are open with the last byte that was read; returns where that is in the frame."""
        spans = self.spans
        if spans is None:
            return 0
        covered = {name: spans.reach(name) for name in ("frame", *self.buffers)}
        for index, _ in self.opened:
            if index < len(spans):
                span = spans[index]
                span.length = max(0, covered[span.buffer] - span.offset)
        self.opened.clear()
        for name, data in self.buffers.items():
            end = covered[name]
            if end < len(data):
                spans.end(end, data[end:], self.render(data[end:]), name)
        return covered["frame"]

    def fail(self, field: str, at: int, reason: str) -> Malformed:
        return Malformed(field, at - self.start, reason, self.buffer)

    def over(self, field: str, at: int, reason: str) -> OverLimit:
        """To be raised before a value is made that `values` do not allow."""
        return OverLimit(field, at - self.start, reason, self.buffer)

    def tile(self, data: bytes, end: int) -> None:
        """After damage: end open spans, and cover unread bytes by a last span."""
        if self.spans is not None:
            covered = self.abandon()
            left = end - self.start - covered
            if left > 0:
                self.spans.end(covered, data[end - left : end], self.render(data[end - left : end]))
