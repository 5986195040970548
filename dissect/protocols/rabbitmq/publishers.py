"""Which of several publishers with the same id a confirm is for."""

from __future__ import annotations

import msgspec

from ...quota import drop_oldest

_ANY: frozenset[int] = frozenset(range(256))
"""All the publishers that there can be: one object, as most of many conversations never know better."""

_NONE: frozenset[int] = frozenset()
"""In the same way, none."""

Asked = tuple[str, int]
"""A DeclarePublisher or DeletePublisher, by name and correlation id."""


PENDING = 1_024
"""Requests without a response that are remembered: there are 256 publishers."""


class Publishers(msgspec.Struct):
    """The publishers of a connection.

    A server drops them with their stream and no longer answers their messages. Clients often publish these again with the same publishing
    ids, from a new publisher with the same id: so the number of times an id was dropped is part of the key.
    """

    limit: int
    """The limit of pending requests."""
    from_start: bool
    """The capture has the beginning of the conversation."""
    alive: frozenset[int] = _ANY
    """Publishers that may exist: a server that accepts one of these again has dropped it."""
    waiting: dict[Asked, int] = {}
    """What has no answer yet, with the publisher."""
    early: dict[Asked, bool] = {}
    """Answers whose requests were not captured, or later, and whether they accept."""
    deleting: frozenset[int] = _NONE
    """Pending deletions."""
    declaring: frozenset[int] = _NONE
    """Publishers declared again while they seem to exist: accepted only if they were dropped."""
    unconfirmed: frozenset[int] = _NONE
    """Those of them that published before the answer was captured, as the new ones they will be."""
    dropped: dict[int, int] = {}
    """How often one was dropped."""

    def __post_init__(self) -> None:
        if self.from_start and self.alive is _ANY:
            self.alive = _NONE

    def key(self, publisher: int, asks: bool) -> int:
        """What its messages and answers to them have in common; `asks`: it publishes."""
        dropped = self.dropped.get(publisher, 0)
        if asks and publisher in self.declaring:
            self.unconfirmed |= {publisher}
            dropped += 1
        return dropped << 8 | publisher

    def ask(self, name: str, ident: int, publisher: int) -> None:
        """The client declares or deletes one."""
        self.waiting[name, ident] = publisher
        if name == "DeletePublisher":
            self.deleting |= {publisher}
        elif publisher in self.alive and publisher not in self.deleting:
            self.declaring |= {publisher}
        if (name, ident) in self.early:
            self.answer(name, ident, self.early.pop((name, ident)))
        drop_oldest(self.waiting, self.limit)

    def answer(self, name: str, ident: int, accepted: bool) -> None:
        """The server answers."""
        publisher = self.waiting.pop((name, ident), None)
        if publisher is None:
            self.early[name, ident] = accepted
            drop_oldest(self.early, self.limit)
        elif name == "DeletePublisher":
            self.deleting -= {publisher}
            if accepted:
                self.alive -= {publisher}
        else:
            if publisher in self.unconfirmed or (accepted and publisher in self.alive):
                self._drop(publisher)
            self.unconfirmed -= {publisher}
            self.declaring -= {publisher}
            if accepted:
                self.alive |= {publisher}

    def lose(self) -> None:
        """Answers may have been missed."""
        for publisher in self.unconfirmed:
            self._drop(publisher)
        self.unconfirmed = self.deleting = self.declaring = _NONE
        self.waiting.clear()

    def _drop(self, publisher: int) -> None:
        self.dropped[publisher] = self.dropped.get(publisher, 0) + 1
