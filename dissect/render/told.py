"""The text view where workers have said what each record says: columns, numbers and what repeats are left to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from streamdump.render.summary import Lines


class Said(NamedTuple):
    """A record as far as its line needs it. `mark` to `text`: the line's content; `more`: whole lines below it; `inside`: what its
    conversation is carried in; `how`: how the conversation ended, in records of that."""

    time_ns: int
    time: str
    src: str
    dst: str
    sender: str | None
    protocol: str | None
    content: tuple[str, str, int | None]
    text: str
    more: str | None
    inside: str | None
    how: str | None
    number: int
    conversation: int


class SaidLines(Lines):
    """Makes lines of what was said of records."""

    def content(self, record: Any) -> tuple[str, str, int | None, str]:
        return *record.content, record.text

    def add(self, records: Iterable[Any], lines: list[str]) -> None:
        for record in records:
            if record.inside is not None:
                self.inside[record.conversation] = record.inside  # type: ignore[index]
            super().add((record,), lines)
            if record.more:
                lines[-1] = f"{lines[-1]}\n{record.more}"
