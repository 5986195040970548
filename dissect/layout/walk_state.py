"""State of a walk: spans, notes and the position in the table."""

from __future__ import annotations

from typing import Any

from ..errors import Malformed, OverLimit
from ..model import VALUES, Span
from ..quota import Spans, ValueQuota
from .types import Style
from .values import RENDER, redacted, sized

MAX_NOTES = 64
"""Notes kept per frame; further ones are counted."""


class WalkState:
    """Spans, notes and the partial value at the fault of a walk."""

    __slots__ = (
        "buf",
        "buffer",
        "end",
        "missing",
        "more_notes",
        "notes",
        "opened",
        "partial",
        "path",
        "render",
        "scopes",
        "secret",
        "spans",
        "start",
        "style",
        "values",
    )

    def __init__(
        self, buf: bytes, start: int, end: int, style: Style, missing: str | None = None, buffer: str = "frame", secret: bool = False
    ) -> None:
        self.buf = buf
        self.start = start
        self.end = end
        self.style = style
        self.missing = missing
        self.buffer = buffer
        self.secret = secret
        """Whether the layout has a secret: a wrong length may have moved it to where no field is."""
        self.render = RENDER[style.bytes_as]
        self.values = ValueQuota(style.values, VALUES)
        self.spans = Spans()
        self.notes: list[str] = []
        self.more_notes = 0
        self.path: list[str] = []
        self.opened: list[int] = []
        """Indexes of the spans without an end."""
        self.partial: Any = None
        """The part read of the damaged value."""
        self.scopes: list[dict[str, Any]] = []

    def span(
        self, name: str, at: int, stop: int, value: Any, depth: int, label: str | None = None, secret: bool = False, leaf: bool = True
    ) -> None:
        self.spans.append(Span(name, at - self.start, stop - at, value, depth, leaf, label, secret, self.buffer))

    def open(self, name: str, at: int, depth: int) -> None:
        """Start the span of an object or array; deeper spans belong to it until `close`."""
        self.opened.append(len(self.spans))
        self.span(name, at, at, None, depth, leaf=False)

    def close(self, stop: int) -> None:
        """End the span opened last."""
        index = self.opened.pop()
        if index < len(self.spans):
            span = self.spans[index]
            span.length = stop - self.start - span.offset

    def malformed(self, at: int, reason: str, *names: str) -> Malformed:
        """Return the exception for damage at `at` of the field `names` below the current one, such as "entries[2]", "body"."""
        return Malformed(".".join([*self.path, *names]).replace(".[", "["), at - self.start, reason, self.buffer)

    def short(self, at: int, end: int, reason: str, *names: str) -> Malformed:
        """Return the exception for bytes that end too soon; the reason is `missing`, if bytes of the frame are missing there."""
        return self.malformed(at, self.missing if self.missing is not None and end == self.end else reason, *names)

    def over(self, at: int, declared: str, *names: str) -> OverLimit:
        """Return the exception for a list element over the limit of `values`."""
        damage = self.malformed(at, self.values.reason(declared), *names)
        return OverLimit(damage.field, damage.offset, damage.reason, damage.buffer)

    def keep(self, value: Any) -> None:
        """Keep the value read so far, in case `malformed` is raised next."""
        self.partial = value

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)
        else:
            self.more_notes += 1

    def mark(self) -> tuple[Any, int, int, int, int]:
        """Return the state for `back`, to try another reading."""
        return self.spans.mark(), len(self.notes), len(self.path), len(self.opened), len(self.scopes)

    def back(self, mark: tuple[Any, int, int, int, int]) -> None:
        """Undo all additions since `mark`."""
        self.spans.back(mark[0])
        held: tuple[list[Any], ...] = (self.notes, self.path, self.opened, self.scopes)
        for one, size in zip(held, mark[1:], strict=True):
            del one[size:]
        self.partial = None

    def all_notes(self) -> list[str]:
        """Return the notes, with the number of those beyond the limit."""
        return [*self.notes, f"and {self.more_notes} notes more"] if self.more_notes else self.notes

    def where(self) -> str:
        """Return the path of the current field, for notes."""
        return ".".join(self.path)

    def left_over(self, at: int, end: int, depth: int, into: dict[str, Any]) -> None:
        value = redacted(end - at) if self.secret and not self.style.show_secrets else self.render(self.buf[at:end])
        into["trailing"] = value
        self.span("trailing", at, end, value, depth, secret=self.secret)
        if self.missing is None or end != self.end:
            inside = f" in {self.where()}" if self.path else ""
            self.note(f"{sized(end - at)} left over{inside}")

    def damaged(self) -> None:
        """Add spans for the bytes that could not be read."""
        covered = self.spans.reach(self.buffer)
        for index in reversed(self.opened):
            if index >= len(self.spans):
                continue
            if index == len(self.spans) - 1:
                self.spans.pop()
            else:
                span = self.spans[index]
                span.length = covered - span.offset
        at = self.start + covered
        if at < self.end:
            value = redacted(self.end - at) if self.secret and not self.style.show_secrets else self.render(self.buf[at : self.end])
            self.spans.end(covered, self.buf[at : self.end], value, self.buffer, self.secret)
