"""Which stream a message speaks of that names a publisher or a subscription only: what these were declared with."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

KEPT, LONGEST = 512, 255
"""So many publishers and subscriptions of a connection are remembered, with streams of names no longer than servers take."""


class DeclaredStreams(msgspec.Struct):
    """The streams of a connection, by what was declared to publish to them or to read from them.

    What was deleted keeps its stream until another one has its id: what comes late still speaks of that.
    """

    named: dict[Hashable, str] = {}
    asked: dict[Hashable, tuple[Hashable, str | None, str | None]] = {}
    """By the key of a request without an answer what it declares, None if its answer says so; the stream; and the one before."""

    def ask(self, key: Hashable, declared: Hashable, stream: Any, at_once: bool) -> None:
        """One is declared; `at_once`: what follows is of the new one, even if the old one with its id has not gone yet."""
        before = self.named.get(declared)
        stream = stream if isinstance(stream, str) and len(stream) <= LONGEST else None
        self.asked[key] = declared, stream, before
        if declared is not None and (at_once or before is None):
            self._name(declared, stream)
        _bound(self.asked)

    def answer(self, key: Hashable, declared: Hashable, accepted: bool) -> bool:
        """What was asked for is there, or not; False: it was not seen to be asked for."""
        if key not in self.asked:
            return False
        own, stream, before = self.asked.pop(key)
        self._name(own or declared, stream if accepted else before)
        return True

    def forget(self, role: str) -> None:
        """One of these was declared, nobody knows which."""
        for one in [one for one in self.named if isinstance(one, tuple) and one[0] == role]:
            del self.named[one]

    def _name(self, declared: Hashable, stream: str | None) -> None:
        if stream is None:
            self.named.pop(declared, None)
        else:
            self.named[declared] = stream
            _bound(self.named)


def _bound(some: dict[Hashable, Any]) -> None:
    if len(some) > KEPT:
        del some[next(iter(some))]
