"""The user messages of RabbitMQ Streams: entries of Publish and Deliver, and the messages in their sub-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...model import BodyType, Entry, Message
from ..entries import NO_NOTES, NO_PROPERTIES, Carrier, EntrySource, keep, maker, missing

Fields = dict[str, Any]

_DATA, _VALUE, _SEQUENCE = "data", "amqp-value", "amqp-sequence"
_LISTED = frozenset(("header", "properties"))
"""Sections whose value is a map with known names; null stands for what was not given."""

_CONTENTS = frozenset(("body", "sections", "messages"))
"""What a complete entry has one of."""

USER = 0
"""The type of chunks with user messages; others track publishers and consumers."""


class RabbitmqEntries(EntrySource):
    """Knows the names of consumers, to tell who got a message."""

    def __init__(self) -> None:
        self._subscriptions: dict[tuple[int, int], tuple[str | None, int]] = {}
        """By conversation and id: the consumer's name, and the number of the Subscribe."""

    def carrier(self, message: Message) -> Carrier | None:
        name = message.name
        if name == "Publish":
            entries = message.fields.get("published_messages") or ()
            if not entries and message.fault is None:
                return None
            # What the server sends is not answered
            keys = 0 if message.sender == "server" else sum("publishing_id" in one for one in entries)
            return Carrier(message, True, keys, keys > 0)
        if name == "Deliver":
            chunk = message.fields.get("chunk") or {}
            if chunk.get("chunk_type", USER) != USER or (not chunk.get("entries") and message.fault is None):
                return None
            ident = message.fields.get("subscription_id", -1)
            consumer, number = self._subscriptions.get((message.conversation, ident), (None, 0))
            if consumer is None:
                return Carrier(message, False, consumer=f"subscription {ident}", group=(message.conversation, ident, number))
            return Carrier(message, False, consumer=consumer, group=(message.src, message.stream, consumer))
        if name == "Subscribe" and message.kind == "request" and "subscription_id" in message.fields:
            given = {one.get("key"): one.get("value") for one in message.fields.get("properties") or ()}
            place = message.conversation, message.fields["subscription_id"]
            keep(self._subscriptions, place, (given.get("name") or None, message.number))
        return None

    def entries(self, carrier: Carrier) -> Iterator[Entry]:
        message = carrier.message
        fields, make, consumer = message.fields, maker(message), carrier.consumer
        chunk = fields if carrier.published else fields.get("chunk") or {}
        listed: list[Fields] = chunk.get("published_messages" if carrier.published else "entries") or []
        last, said = len(listed), NO_NOTES
        if message.fault is not None:
            # What there is of a cut entry is not a user message
            last -= bool(listed) and _CONTENTS.isdisjoint(listed[-1])
            text = missing(message, last, chunk.get("num_entries"))
            said = NO_NOTES if text is None else (text,)
        for index, one in enumerate(listed[:last] if said else listed, 1):
            publishing_id, offset, key = one.get("publishing_id"), one.get("offset"), one.get("filter_value")
            notes = said if index == last else NO_NOTES
            body = one.get("body")
            if "compression" in one:
                yield from self._sub_batch(make, one, publishing_id, offset, key, consumer, notes)
            elif body is not None:
                yield make(None, offset, publishing_id, None, key, NO_PROPERTIES, None, one["size"], "bytes", body, consumer, notes)
            else:
                yield make(None, offset, publishing_id, *_amqp(key, one["sections"], None, one["size"]), consumer, notes)

    def _sub_batch(
        self, make: Any, one: Fields, publishing_id: int | None, offset: int | None, key: Any, consumer: str | None, notes: Any
    ) -> Iterator[Entry]:
        """Yield the messages of a sub-batch; one that could not be opened as one entry with its packed bytes."""
        compression = one["compression_label"] or str(one["compression"])
        messages = one.get("messages")
        if messages is None:
            notes = (f"sub-batch of {one['num_records']:,} messages not opened", *notes)
            size, body = one["size"], one.get("body")
            yield make(None, offset, publishing_id, None, key, NO_PROPERTIES, compression, size, "bytes", body, consumer, notes)
            return
        for inner in messages:
            said = notes if inner is messages[-1] else NO_NOTES
            at, body = inner.get("offset"), inner.get("body")
            if body is not None:
                yield make(None, at, publishing_id, None, key, NO_PROPERTIES, compression, inner["size"], "bytes", body, consumer, said)
            elif "sections" in inner:
                yield make(None, at, publishing_id, *_amqp(key, inner["sections"], compression, inner["size"]), consumer, said)


def _amqp(key: Any, sections: list[Fields], compression: str | None, size: int) -> tuple[Any, ...]:
    """Return what `maker` takes of a message of AMQP 1.0, from its id to its body."""
    ident: Any = None
    properties: list[dict[str, Any]] = []
    data: list[Any] = []
    values: list[Any] = []
    for section in sections:
        name, value = section["section"], section["value"]
        if name == _DATA:
            data.append(value)
        elif name in (_VALUE, _SEQUENCE):
            values.append(value)
        elif name in _LISTED:
            properties += [{"section": name, "key": inner, "value": one} for inner, one in value.items() if one is not None]
            if "message_id" in value:
                ident = value["message_id"]
        else:
            properties += [{"section": name, **pair} for pair in value]
    body_type: BodyType = "amqp" if values and not data else "bytes"
    some = data or values
    body = some[0] if len(some) == 1 else b"".join(data) if body_type == "bytes" else values
    return ident, key, properties, compression, size, body_type, body
