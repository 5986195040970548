"""The stream of a message that names only a publisher or subscription: the one these were declared with.

Everything goes by the order of packets. Bytes of one side may be read before earlier bytes of the other, which wait for missing ones: an
answer counts from its packet on, even if its request is read later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from ..quota import drop_oldest

MAX_DECLARED, MAX_NAME, MAX_REUSES, MAX_EARLY = 512, 255, 8, 64
"""Limits per connection: publishers and subscriptions, characters of a stream's name (as in servers), streams remembered for one reused
id, and answers without a request."""

When = tuple[int, int]
"""The order of a packet, and the number of messages read before, which decides within a packet."""

_WHEN = itemgetter(0)


class Asked(NamedTuple):
    """A request without an answer: what it declares (None if the answer names it), the new and the previous stream; or what it deletes."""

    when: When
    declared: Hashable
    stream: str | None = None
    before: str | None = None
    deletes: bool = False


class Early(NamedTuple):
    """An answer whose request was not read yet, or was lost: about `declared`, or, if it does not name that, about some of `role`."""

    when: When
    role: Hashable
    declared: Hashable
    accepted: bool
    deletes: bool


class DeclaredStreams(msgspec.Struct):
    """The streams of a connection, by the publishers and subscriptions declared for them.

    A deleted one keeps its stream until its id is reused, for messages that arrive late.
    """

    named: dict[Hashable, list[tuple[When, str | None]]] = {}
    """The streams of each, with the packet from which on they apply."""
    asked: dict[Hashable, Asked] = {}
    early: dict[Hashable, Early] = {}
    freed: dict[Hashable, When] = {}
    """The last request to delete each."""
    dropped: list[When] = []
    """When the server may have deleted some by itself, or confirmed that in lost bytes."""
    count: int = 0
    latest: int = 0
    """The latest packet with a change."""
    known: dict[Hashable, str | None] = {}
    """A cache of lookups after it."""

    def at(self, declared: Hashable, order: int) -> str | None:
        """Return the stream of `declared` at a packet; None if unknown."""
        if order < self.latest:
            return self._look_up(declared, order)
        if declared not in self.known:
            self.known[declared] = self._look_up(declared, order)
            drop_oldest(self.known, MAX_DECLARED)
        return self.known[declared]

    def ask(self, key: Hashable, declared: Hashable, stream: Any, at_once: bool, order: int) -> None:
        """Register a declaration; `at_once`: it applies from here on, even if an older one with its id still exists."""
        when = self._now(order)
        before = None if declared is None else self._look_up(declared, order)
        stream = stream if isinstance(stream, str) and len(stream) <= MAX_NAME else None
        if declared is not None and (at_once or before is None):
            self._name(declared, stream, when)
        self._wait(key, Asked(when, declared, stream, before))

    def delete(self, key: Hashable, declared: Hashable, order: int) -> None:
        """Register a request to delete one."""
        self.freed[declared] = when = self._now(order)
        drop_oldest(self.freed, MAX_DECLARED)
        self._wait(key, Asked(when, declared, deletes=True))

    def answer(self, key: Hashable, role: Hashable, declared: Hashable, accepted: bool, order: int, deletes: bool = False) -> None:
        """Register the answer to a declaration or deletion."""
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
        """Register that the server may have deleted some."""
        insort(self.dropped, self._now(order))
        del self.dropped[:-MAX_EARLY]

    def _now(self, order: int) -> When:
        """Return the time of a change with this packet, and clear the cache."""
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
        drop_oldest(self.asked, MAX_DECLARED)

    def _settle(self, asked: Asked, answer: Early) -> None:
        declared = answer.declared if asked.declared is None else asked.declared
        if not asked.deletes and declared is not None:
            self._name(declared, asked.stream if answer.accepted else asked.before, answer.when)

    def _may_be(self, declared: Hashable, since: When, answer: Early) -> bool:
        """Return whether an answer may be about this one, declared at `since`: servers do not accept an id that is in use."""
        if answer.deletes:
            return False
        if answer.declared is not None or answer.role is None:
            return answer.declared == declared
        if not isinstance(declared, tuple) or declared[0] != answer.role:
            return False
        free = (self.freed.get(declared, since), *self.dropped, *(one.when for one in self.early.values() if one.deletes and one.accepted))
        return any(since < when <= answer.when for when in free)

    def _forget(self, answer: Early) -> None:
        """Drop an answer: the streams that it may have changed are unknown from now on."""
        if answer.accepted:
            for declared in [one for one in self.named if self._may_be(one, (-1, 0), answer)]:
                self.named[declared] = [one for one in self.named[declared] if one[0] > answer.when]

    def _name(self, declared: Hashable, stream: str | None, when: When) -> None:
        found = self.named.setdefault(declared, [])
        insort(found, (when, stream), key=_WHEN)
        del found[:-MAX_REUSES]
        drop_oldest(self.named, MAX_DECLARED)
