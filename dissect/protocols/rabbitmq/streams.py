"""Which stream a request speaks of: most name it, others name a publisher or subscription that was declared with it."""

from __future__ import annotations

from dissect.model import Message

DECLARED = {"DeclarePublisher": "publisher_id", "Subscribe": "subscription_id"}
KEPT = 65_536
"""Publishers and subscriptions that are remembered."""


class Streams:
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
