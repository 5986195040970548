"""Which pairs are uncertain because bytes are missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from ..model import Gap, Message
from ..protocols.records import LOST, REQUESTS, SKIPPED, Event
from .open_requests import oldest_of, request_of

UNSURE = "bytes were lost and the id is used again: this may answer another request"

STALE = "bytes of both sides were lost since this request: the response may be that of a later one with the same id"


class Doubt:
    """Gaps of both sides, and the keys of open requests that therefore no longer identify one request."""

    __slots__ = ("doubtful", "gaps", "looked", "lost", "stale")

    def __init__(self) -> None:
        self.gaps = [-1, -1]
        """The order of the last gap, by side; in `lost` of the last one that is not `skipped`."""
        self.lost = [-1, -1]
        self.doubtful: set[Hashable] = set()
        """Keys of several open requests whose responses may be off by one, as a response was lost."""
        self.stale: set[Hashable] = set()
        """Keys of open requests whose response may have been lost together with a later request of the same id."""
        self.looked = -1

    def lose(self, one: Event, queues: dict[Hashable, Any] | None) -> None:
        """Register a gap. If bytes of both sides were lost, requests that have been open since before get a queue of their own in `queues`,
        so that `note` sees them; `queues`: the open requests, if keys are used again."""
        self.gaps[one.rank] = one.order
        if type(one.record) is Gap and one.record.reason != "skipped":
            self.lost[one.rank] = one.order
        since = min(self.gaps)
        if queues is None or since <= self.looked:
            return
        found = []
        for key in reversed(queues):
            order = oldest_of(queues[key]).order
            if order <= self.looked:
                break
            if order <= since:
                found.append(key)
        for key in found:
            if type(queues[key]) is not deque:
                queues[key] = deque((queues[key],))
        self.stale.update(found)
        self.looked = since

    def reason(self, asked: Event) -> str | None:
        """Return why the response to this request may be missing, None if no gap explains that."""
        answering = 1 - asked.rank
        keys: Any = asked.key if asked.role == REQUESTS else (asked.key,)
        # A response was lost since, so that an earlier request with this key may have got the response to this one
        since = asked.order if self.doubtful.isdisjoint(keys) else 0
        if self.gaps[answering] < since:
            return None
        return LOST if self.lost[answering] >= since else SKIPPED

    def note(self, one: Event, key: Hashable, asked: Event, following: Any) -> None:
        """Add a note to a response if its key does not identify the request, as a response or a request may be among lost bytes.

        `following`: the next open request with this key. All later pairs are doubtful, too, until none is open.
        """
        if following is None:
            self.doubtful.discard(key)
            if key in self.stale:
                self.stale.discard(key)
                add_note(one, STALE)
        elif key not in self.doubtful and request_of(following).order < one.order and max(self.gaps) >= asked.order:
            self.doubtful.add(key)
        if key in self.doubtful:
            add_note(one, UNSURE)

    def forget(self, key: Hashable) -> None:
        """Forget a key with which no request is open."""
        self.doubtful.discard(key)
        self.stale.discard(key)


def add_note(one: Event, note: str) -> None:
    message: Message = one.record
    if note not in message.notes:
        message.notes = [*message.notes, note]
