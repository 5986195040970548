"""The first messages of conversations, kept until their outcome is known: a page has a diagram of each failed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ...model import Ending, Message, Record
from ..terminal import cut

FIRST, LAST = 24, 8
"""The most messages from the beginning of a conversation, and from its end, in a diagram."""

OPEN = 4_096
"""Conversations of which messages are kept at a time, and of diagrams that are shown at most half as many."""

SAID = 68
"""Characters of what a message says."""


class DiagramStep(NamedTuple):
    """One message, or how a conversation ended: `forth` from the client, or from the side that was seen first."""

    number: int
    time_ns: int
    forth: bool
    name: str
    info: str
    bad: bool


class SequenceDiagram:
    """The messages kept of one conversation."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.first: list[DiagramStep] = []
        self.last: list[DiagramStep] = []
        self.passed = 0
        """Messages between the two that are left out."""

    def add(self, step: DiagramStep) -> None:
        """One more message."""
        if len(self.first) < FIRST:
            self.first.append(step)
            return
        self.last.append(step)
        if len(self.last) > LAST:
            del self.last[0]
            self.passed += 1


class SequenceDiagrams:
    """Those of the conversations of a run."""

    def __init__(self, info: Mapping[str, Callable[[Message], str]]) -> None:
        self._says = info
        self.kept: dict[int, SequenceDiagram] = {}
        """By conversation."""

    def add(self, records: Iterable[Record]) -> None:
        """Keep what these show of their conversations."""
        for record in records:
            if not isinstance(record, Message | Ending):
                continue
            diagram = self.kept.get(record.conversation)
            if diagram is None and len(self.kept) >= OPEN:
                continue
            if diagram is None:
                diagram = self.kept[record.conversation] = SequenceDiagram(record.src if record.sender != "server" else record.dst)
            if isinstance(record, Message):
                name, said = record.name, cut(self._says[record.protocol](record), SAID)
                bad = record.outcome == "refused" or record.fault is not None
            else:
                name, said, bad = "end", record.how, record.how != "FIN"
            diagram.add(DiagramStep(record.number, record.time_ns, record.src == diagram.client, name, said, bad))

    def drop(self, conversations: Iterable[int]) -> None:
        """These went well, or nobody asks about them."""
        for one in conversations:
            self.kept.pop(one, None)
