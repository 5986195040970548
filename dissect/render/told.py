"""The text view where others have said what each record says: columns, numbers and what repeats are left to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from streamdump.render.summary import Lines


class Said(msgspec.Struct, array_like=True):
    """A record as far as its line needs it. `inside`: what its conversation is carried in. `text`: what the line says. `more`: whole lines
    below it. `how`: how a conversation ended, in records of that alone."""

    time_ns: int
    time: str
    src: str
    dst: str
    sender: str | None
    protocol: str | None
    mark: str
    name: str
    latency_ns: int | None
    text: Any
    more: Any = None
    inside: str | None = None
    number: int = 0
    conversation: int = 0


class SaidEnding(Said, array_like=True):
    """How a conversation ended, which `Lines` tells by this member."""

    how: str = ""


class SaidLines(Lines):
    """Makes lines of what was said of records."""

    def __init__(self, **settings: Any) -> None:
        self.carried: dict[int, str] = {}
        super().__init__(**{**settings, "inside": self.carried})

    def content(self, record: Any) -> tuple[str, str, int | None, str]:
        return record.mark, record.name, record.latency_ns, record.text

    def add(self, records: Iterable[Any], lines: list[str]) -> None:
        for record in records:
            if record.inside is not None:
                self.carried[record.conversation] = record.inside
            super().add((record,), lines)
            if record.more:
                lines[-1] = f"{lines[-1]}\n{record.more}"
