"""The user messages that a message carries, each with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator

from streamdump.model import Entry
from streamdump.render.entries import EntryLines, body_text, where
from streamdump.render.terminal import pad, visible, width

from ..indexed.index import Shown
from ..indexed.reading import Reader
from .listing import ASK, DIM, LOUD, PLAIN, Parts, Texts
from .places import Place

OUTCOME, MOST = 28, 4_096
"""Columns of an outcome, and characters of a body in its line; longer text can be scrolled to, and is complete below."""


class UserMessages(Place):
    """The user messages of one message."""

    name = "entries"
    keys = (("esc", "back"), ("f", "filter for message"), ("r", "response"), ("e", "export"), ("y", "copy body"))

    def __init__(self, reader: Reader, record: Shown, entries: list[Entry], more: bool) -> None:
        """`more`: the message carries more than these."""
        super().__init__(reader, entries)
        self.record, self._more = record, more
        self._form = reader.options.bytes_as
        self._texts = EntryLines(form=self._form)
        self._sizes = [max((width(text(one)) for one in entries), default=0) for text in (where, self._size)]

    def title(self) -> str:
        count = f"{'the first ' if self._more else ''}{len(self):,}"
        return f"{self.name} of {getattr(self.record, 'name', '')} {self.record.number}: {count}"

    def head(self, columns: int) -> str:
        return f"{'offset/id':<{max(9, self._sizes[0])}}  {'size':>{self._sizes[1]}}    {'outcome':<{OUTCOME}}  body"

    def _size(self, entry: Entry) -> str:
        return "" if entry.size is None else f"{entry.size:,} B"

    def line(self, at: int, columns: int) -> Parts:
        one: Entry = self.rows[at]
        mark, outcome = self._texts.outcome(one)
        return [
            (f"{pad(where(one), max(9, self._sizes[0]))}  {self._size(one):>{self._sizes[1]}}  ", DIM),
            (f"{mark} {pad(outcome, OUTCOME)}  ", LOUD.get(mark, PLAIN)),
            (self._texts.detail(one), ASK),
            (body_text(one, self._form, MOST), PLAIN),
        ]

    def below(self, at: int, columns: int) -> Texts:
        lines = (line.lstrip() for line in self._texts.details(self.rows[at]))
        return Texts([[(part, PLAIN)] for line in lines for part in _divided(line, columns)])

    def value(self, at: int, columns: int) -> str:
        return visible(body_text(self.rows[at], self._form))

    def asks(self, at: int) -> list[str]:
        return [f"number == {self.record.number}"]


def _divided(text: str, columns: int) -> Iterator[str]:
    """Yield text in lines, with all its blanks: bodies are shown as they are."""
    # Of characters two columns wide, half as many fit
    most = max(1, columns if width(text) == len(text) else columns // 2)
    return (text[at : at + most] for at in range(0, len(text), most))
