"""The user messages of mewbase: events that PUB publishes and RECEV delivers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ...model import Entry, Message
from ..entries import NO_PROPERTIES, Carrier, EntrySource, code_of, keep, maker

PUBLISHING = frozenset(("PUB", "EMIT"))


class MewbaseEntries(EntrySource):
    """Knows which subscriptions are durable."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: OrderedDict[int, tuple[int, str | None]] = OrderedDict()
        """By number of the SUBSCRIBE: itself, and the durable id."""
        self._subscriptions: OrderedDict[tuple[int, Any], tuple[int, str | None]] = OrderedDict()
        """The same by conversation and id of the subscription."""

    def carrier(self, message: Message) -> Carrier | None:
        name, body = message.name, message.fields.get("frame")
        if type(body) is not dict:
            return None
        if name in PUBLISHING:
            return Carrier(message, True, waits=message.kind == "request") if "event" in body or message.fault is not None else None
        subscription = body.get("subID", body.get("SubID"))
        if name == "RECEV":
            if "event" not in body and message.fault is None:
                return None
            number, durable = self._subscriptions.get((message.conversation, _plain(subscription)), (0, None))
            consumer = durable or f"subscription {subscription}"
            group = (message.conversation, _plain(subscription), number) if durable is None else (message.src, message.stream, durable)
            return Carrier(message, False, consumer=consumer, group=group)
        if name == "SUBSCRIBE":
            durable = body.get("durableID")
            keep(self._asked, message.number, (message.number, durable if isinstance(durable, str) else None))
        elif name == "SUBRESPONSE" and message.request is not None:
            known = self._asked.pop(message.request, None)
            if known is not None:
                keep(self._subscriptions, (message.conversation, _plain(subscription)), known)
        return None

    def reason(self, response: Message) -> str | None:
        body = response.fields.get("frame")
        return code_of(body, "errCode") if isinstance(body, dict) else None

    def entries(self, carrier: Carrier) -> Iterator[Entry]:
        message = carrier.message
        body: dict[str, Any] = message.fields["frame"]
        if "event" not in body or (message.fault is not None and next(reversed(body)) == "event"):
            # Of a damaged frame, the event may be incomplete
            return
        position, time = body.get("pos", body.get("seqNo")), body.get("timestamp")
        properties = NO_PROPERTIES if time is None else ({"section": "frame", "key": "timestamp", "value": time},)
        offset = position if type(position) is int and not carrier.published else None
        # The size of the event alone is not kept
        make = maker(message)
        yield make(None, offset, None, None, None, properties, None, message.size, "bson", body["event"], carrier.consumer)


def _plain(value: Any) -> Any:
    """Return a value that can be a key."""
    return value if isinstance(value, int | str) else repr(value)
