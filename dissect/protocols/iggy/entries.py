"""The user messages of Apache Iggy, in requests of send_messages and responses to poll_messages of all layouts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

from ...model import Entry, Message
from ..entries import NO_NOTES, NO_PROPERTIES, Carrier, EntrySource, code_of, keep, maker, missing

Fields = dict[str, Any]

PARTITION_ID, MESSAGES_KEY = 2, 3
"""Kinds of partitioning."""

CHOOSE = "0"
"""The id by which a producer asks the server for one."""

_EMPTIES = frozenset(("purge_stream", "purge_topic", "delete_stream", "delete_topic", "delete_partitions"))
"""Requests after which offsets begin at 0 again."""

_SHOWN = ("timestamp", "origin_timestamp", "state_label")
"""Fields of a message, besides its headers, that are shown as properties."""


class IggyEntries(EntrySource):
    """Knows who asked for messages, which the responses do not name."""

    LEFT_OUT = "messages Prepare between replicas, which repeat what clients sent"

    def __init__(self) -> None:
        super().__init__()
        self._polls: OrderedDict[int, tuple[str, Hashable]] = OrderedDict()
        """By number of the request: the consumer."""
        self._emptied: OrderedDict[str, int] = OrderedDict()
        """By server, how often anything was deleted or purged there: requests name it by name or by number, so which is not known."""

    def carrier(self, message: Message) -> Carrier | None:
        name, fields = message.name, message.fields
        if name == "send_messages":
            if message.kind == "request" and (fields.get("messages") or fields.get("batches") or message.fault is not None):
                return Carrier(message, True, waits=True)
        elif name == "poll_messages":
            if message.kind == "request":
                consumer = fields.get("consumer") or {}
                ident = consumer.get("id")
                ident = ident.get("value") if isinstance(ident, dict) else ident
                if ident is not None:
                    kind = consumer.get("kind_label") or f"kind {consumer.get('kind')}"
                    group = message.dst, message.stream, kind, ident, self._emptied.get(message.dst, 0)
                    keep(self._polls, message.number, (f"{kind} {ident}", group))
            elif fields.get("messages") or fields.get("batches") or message.fault is not None:
                known = self._polls.pop(message.request or 0, None)
                if known is None:
                    return Carrier(message, False)
                return Carrier(message, False, consumer=known[0], group=(known[1], fields.get("partition_id")))
        elif name in _EMPTIES and message.kind == "request":
            keep(self._emptied, message.dst, self._emptied.get(message.dst, 0) + 1)
        elif name == "Prepare" and fields.get("operation_label") == "send_messages":
            self.left_out += 1
        return None

    def answered(self, carrier: Carrier, response: Message) -> None:
        written: list[Fields] = response.fields.get("written") or []
        if len(written) == 1 and "base_offset" in written[0] and len(carrier.message.fields.get("batches") or ()) < 2:
            carrier.begin = written[0]["partition_id"], written[0]["base_offset"]

    def reason(self, response: Message) -> str | None:
        fields = response.fields
        failed = (code_of(some, "status", "result") for some in (fields, *(fields.get("results") or ())))
        return next(filter(None, failed), None)

    def entries(self, carrier: Carrier) -> Iterator[Entry]:
        message = carrier.message
        fields, make, consumer = message.fields, maker(message), carrier.consumer
        key, partition, first = None, fields.get("partition_id"), None
        if carrier.published:
            target = fields.get("partitioning") or {}
            partition = target.get("value") if target.get("kind") == PARTITION_ID else None
            key = target.get("value") if target.get("kind") == MESSAGES_KEY else None
            if carrier.begin is not None:
                partition, first = carrier.begin
        index = 0
        before: Entry | None = None
        for one, offset in _each(fields, carrier.published):
            # The last one may be damaged; a note goes to the one before
            if "headers" not in one or "payload" not in one:
                break
            if before is not None:
                yield before
            offset = offset if first is None else first + index
            properties = _properties(one) if one["headers"] or "timestamp" in one else NO_PROPERTIES
            size = one["payload_length"] + one["headers_length"] if "payload_length" in one else _length(one["payload"])
            before = make(
                partition,
                offset,
                None,
                None if one.get("id") == CHOOSE else one["id"],
                key,
                properties,
                None,
                size,
                "bytes",
                one["payload"],
                consumer,
            )
            index += 1
        if before is not None:
            text = missing(message, index, fields.get("count"))
            before.notes = NO_NOTES if text is None else (text,)
            yield before


def _each(fields: Fields, published: bool) -> Iterator[tuple[Fields, int | None]]:
    """Yield each message with its offset; what producers send has none yet."""
    for one in fields.get("messages") or ():
        yield one, None if published else one.get("offset")
    for batch in fields.get("batches") or ():
        base = None if published else batch.get("base_offset")
        for one in batch.get("messages") or ():
            delta = one.get("offset_delta")
            yield one, None if base is None or delta is None else base + delta


def _length(payload: bytes | str) -> int | None:
    """Return the bytes of a payload, which are there as such or as hex; None if they are hidden."""
    if isinstance(payload, bytes):
        return len(payload)
    return None if payload.startswith("<") else len(payload) // 2


def _properties(one: Fields) -> list[dict[str, Any]]:
    found = [{"section": "headers", "key": header.get("key"), "value": header.get("value")} for header in one["headers"]]
    return found + [{"section": "message", "key": name, "value": one[name]} for name in _SHOWN if one.get(name)]
