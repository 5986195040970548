"""Which stream a message speaks of that names a publisher or a subscription only: what these were declared with.

All of it is by the order of packets. What one side sent may be read before what the other side sent earlier, as missing bytes hold
that back: an answer counts from its packet on even if its request is read later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

MAX_DECLARED, MAX_NAME, MAX_REUSES, MAX_EARLY = 512, 255, 8, 64
"""So many publishers and subscriptions of a connection are remembered, with streams of names no longer than servers take, and the latest
streams of one whose id was used again; and so many answers without a request."""

When = tuple[int, int]
"""A packet, and how many messages were read before; the latter tells where the packet does not."""

_WHEN = itemgetter(0)


class Asked(NamedTuple):
    """A request without an answer: what it declares, None if its answer names it, the stream, and the one it had; or what it deletes."""

    when: When
    declared: Hashable
    stream: str | None = None
    before: str | None = None
    deletes: bool = False


class Early(NamedTuple):
    """An answer whose request was not read, or was lost: it is about one of `role`, or about `declared` if it names that."""

    when: When
    role: Hashable
    declared: Hashable
    accepted: bool
    deletes: bool


class DeclaredStreams(msgspec.Struct):
    """The streams of a connection, by what was declared to publish to them or to read from them.

    What was deleted keeps its stream until another one has its id: what comes late still speaks of that.
    """

    named: dict[Hashable, list[tuple[When, str | None]]] = {}
    """Its streams, and from which packet on."""
    asked: dict[Hashable, Asked] = {}
    early: dict[Hashable, Early] = {}
    freed: dict[Hashable, When] = {}
    """When it was asked last to delete it."""
    dropped: list[When] = []
    """When the server may have deleted some by itself, or have confirmed it in bytes that were lost."""
    count: int = 0
    latest: int = 0
    """The latest packet that changed something."""
    known: dict[Hashable, str | None] = {}
    """What was looked up behind it."""

    def at(self, declared: Hashable, order: int) -> str | None:
        """Return the stream of this one at a packet; None if that is not known."""
        if order < self.latest:
            return self._look_up(declared, order)
        if declared not in self.known:
            self.known[declared] = self._look_up(declared, order)
            _bound(self.known)
        return self.known[declared]

    def ask(self, key: Hashable, declared: Hashable, stream: Any, at_once: bool, order: int) -> None:
        """One is declared; `at_once`: what follows is of the new one, even if the old one with its id has not gone yet."""
        when = self._now(order)
        before = None if declared is None else self._look_up(declared, order)
        stream = stream if isinstance(stream, str) and len(stream) <= MAX_NAME else None
        if declared is not None and (at_once or before is None):
            self._name(declared, stream, when)
        self._wait(key, Asked(when, declared, stream, before))

    def delete(self, key: Hashable, declared: Hashable, order: int) -> None:
        """It is asked to delete one."""
        self.freed[declared] = when = self._now(order)
        _bound(self.freed)
        self._wait(key, Asked(when, declared, deletes=True))

    def answer(self, key: Hashable, role: Hashable, declared: Hashable, accepted: bool, order: int, deletes: bool = False) -> None:
        """What was asked for is there, or gone, or not."""
        found = Early(self._now(order), role, declared, accepted, deletes)
        asked = self.asked.get(key)
        if asked is not None and asked.when <= found.when:
            del self.asked[key]
            self._settle(asked, found)
            return
        if key in self.early:
            self._forget(self.early.pop(key))
        self.early[key] = found
        if len(self.early) > MAX_EARLY:
            self._forget(self.early.pop(next(iter(self.early))))

    def drop(self, order: int) -> None:
        """The server may have deleted some."""
        insort(self.dropped, self._now(order))
        del self.dropped[:-MAX_EARLY]

    def _now(self, order: int) -> When:
        """Something changes with this packet."""
        self.count += 1
        self.latest = max(self.latest, order)
        self.known.clear()
        return order, self.count

    def _look_up(self, declared: Hashable, order: int) -> str | None:
        found = [one for one in self.named.get(declared, ()) if one[0][0] <= order]
        if not found:
            return None
        since, stream = found[-1]
        answers = [one for one in self.early.values() if one.accepted and since < one.when and one.when[0] <= order]
        return None if any(self._may_be(declared, since, one) for one in answers) else stream

    def _wait(self, key: Hashable, asked: Asked) -> None:
        answer = self.early.get(key)
        if answer is not None and asked.when <= answer.when:
            self._settle(asked, self.early.pop(key))
            return
        self.asked[key] = asked
        _bound(self.asked)

    def _settle(self, asked: Asked, answer: Early) -> None:
        declared = answer.declared if asked.declared is None else asked.declared
        if not asked.deletes and declared is not None:
            self._name(declared, asked.stream if answer.accepted else asked.before, answer.when)

    def _may_be(self, declared: Hashable, since: When, answer: Early) -> bool:
        """Whether an answer may be about this one, that was declared at `since`: a server does not accept an id again that is in use."""
        if answer.deletes:
            return False
        if answer.declared is not None or answer.role is None:
            return answer.declared == declared
        if not isinstance(declared, tuple) or declared[0] != answer.role:
            return False
        free = (self.freed.get(declared, since), *self.dropped, *(one.when for one in self.early.values() if one.deletes and one.accepted))
        return any(since < when <= answer.when for when in free)

    def _forget(self, answer: Early) -> None:
        """An answer is kept no longer: what it may be about is not known any more."""
        if answer.accepted:
            for declared in [one for one in self.named if self._may_be(one, (-1, 0), answer)]:
                self.named[declared] = [one for one in self.named[declared] if one[0] > answer.when]

    def _name(self, declared: Hashable, stream: str | None, when: When) -> None:
        found = self.named.setdefault(declared, [])
        insort(found, (when, stream), key=_WHEN)
        del found[:-MAX_REUSES]
        _bound(self.named)


def _bound(some: dict[Hashable, Any]) -> None:
    if len(some) > MAX_DECLARED:
        del some[next(iter(some))]
