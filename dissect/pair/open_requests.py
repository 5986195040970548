"""Requests that are open: each entry is the request of one key, a batch that shares several keys, or the queue of those with one key."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from ..protocols.records import Event


class RequestBatch:
    """A request with several keys, each of which is answered (Publish): `left` of them are open."""

    __slots__ = ("asked", "left", "refused")

    def __init__(self, asked: Event, left: int) -> None:
        self.asked = asked
        self.left = left
        self.refused = False


def entries_of(entry: Any) -> Iterable[Any]:
    """Return the open requests with one key, the oldest first."""
    return entry if type(entry) is deque else (entry,)


def request_of(one: Any) -> Event:
    asked: Event = one.asked if type(one) is RequestBatch else one
    return asked


def oldest_of(entry: Any) -> Event:
    return request_of(entry[0] if type(entry) is deque else entry)


def open_in(entries: Iterable[Any]) -> list[Event]:
    """Return the open requests of these entries, each once."""
    found: dict[int, Event] = {}
    for entry in entries:
        for one in entries_of(entry):
            if type(one) is not RequestBatch or one.left >= 0:
                asked = request_of(one)
                found[id(asked)] = asked
    return [*found.values()]
