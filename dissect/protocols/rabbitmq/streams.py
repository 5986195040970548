"""Which stream a request speaks of: most name it, others name a publisher or subscription that was declared with it."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import Any

from streamdump.model import Message
from streamdump.protocols.rabbitmq.info import info

DECLARED = {"DeclarePublisher": "publisher_id", "Subscribe": "subscription_id"}
KEPT = 65_536
"""Publishers and subscriptions that are remembered."""


class StreamNames:
    """Tells the stream of requests that it is shown one after the other, once each was answered."""

    def __init__(self) -> None:
        self._declared: dict[tuple[int, str, int], str] = {}

    def __call__(self, request: Message) -> str | None:
        fields = request.fields
        stream = fields.get("stream")
        if isinstance(stream, str):
            role = DECLARED.get(request.name)
            if role is not None and isinstance(fields.get(role), int):
                self._declared[request.conversation, role, fields[role]] = stream
                if len(self._declared) > KEPT:
                    del self._declared[next(iter(self._declared))]
            return stream
        for role in DECLARED.values():
            if role in fields:
                return self._declared.get((request.conversation, role, fields[role]))
        return None


class InfoWithStream:
    """Says messages as `info`, and of what a publisher sends the stream, once it was told with which one it was declared.

    It may be told ahead: what was agreed on counts for the messages behind the answer, by their numbers.
    """

    def __init__(self) -> None:
        self._asked: dict[int, tuple[tuple[int, int], str | None]] = {}
        self._agreed: dict[tuple[int, int], list[tuple[int, str | None]]] = {}

    def learn(self, message: Message) -> None:
        """Take note of a message, whether it is said or not."""
        if message.name not in ("DeclarePublisher", "DeletePublisher"):
            return
        fields = message.fields
        publisher = fields.get("publisher_id")
        if message.kind == "request" and isinstance(publisher, int):
            self._asked[message.number] = (message.conversation, publisher), fields.get("stream")
            _keep(self._asked)
        elif message.request in self._asked:
            whose, stream = self._asked.pop(message.request)
            if message.outcome == "answered":
                self._agreed.setdefault(whose, []).append((message.number, stream))
                _keep(self._agreed)

    def __call__(self, message: Message) -> str:
        text = info(message)
        if message.name not in _OF_PUBLISHERS:
            return text
        publisher = message.fields.get("publisher_id", -1)
        agreed = self._agreed.get((message.conversation, publisher))
        at = 0 if agreed is None else bisect_left(agreed, message.number, key=itemgetter(0))
        stream = agreed[at - 1][1] if agreed is not None and at else None
        head = f"publisher {publisher}"
        return text if stream is None or not text.startswith(head) else f"{head}  {stream}{text[len(head) :]}"


_OF_PUBLISHERS = frozenset(("Publish", "PublishError"))


def _keep(some: dict[Any, Any]) -> None:
    if len(some) > KEPT:
        del some[next(iter(some))]
