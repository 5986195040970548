"""The user messages of RabbitMQ Streams: entries of Publish and Deliver, and the messages in their sub-batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...errors import Malformed
from ...model import VALUES, BodyType, Entry, EntryOutcome, Limited, Message
from ...quota import ValueQuota
from ..entries import NO_NOTES, NO_PROPERTIES, NONE, Carrier, EntrySource, keep, maker, missing
from .framing import CURRENT_LANGUAGE, DRAFT_LANGUAGE

Fields = dict[str, Any]

LANGUAGES = {"rabbitmq-stream": CURRENT_LANGUAGE, "rabbitmq-stream-draft": DRAFT_LANGUAGE}

_DATA, _VALUE, _SEQUENCE = "data", "amqp-value", "amqp-sequence"
_LISTED = frozenset(("header", "properties"))
"""Sections whose value is a map with known names; null stands for what was not given."""

_CONTENTS = frozenset(("body", "sections", "messages"))
"""What a complete entry has one of."""

_MISSING = "missing"
"""What an entry that is read on its own has beside its fields: notes."""

_CREATES = ("Create", "CreateSuperStream")

USER = 0
"""The type of chunks with user messages; others track publishers and consumers."""


def _goes_on(message: Message) -> bool:
    """Return whether its entries are read from its bytes, as its fields have not all of them."""
    return type(message.fault) is Limited and message.raw is not None


class Publisher(msgspec.Struct):
    """A publisher with a reference: the server drops ids that are not above the last of this reference, and confirms them."""

    place: tuple[str, str, str | None, str]
    """Server, virtual host, stream and reference."""
    sent: int = -1
    """The highest id that it sent."""
    refused: tuple[int, int] | None = None
    """The lowest and the highest id that the server refused: whether it has the ids between them is not known."""

    def may_have(self, ident: int | None) -> bool:
        """Return whether nothing with this id was refused, so that the server has it if it was sent before."""
        return ident is None or self.refused is None or not self.refused[0] <= ident <= self.refused[1]


class RabbitmqEntries(EntrySource):
    """Knows the names of consumers, who get messages, and the last ids of publishers, which show what was stored."""

    def __init__(self) -> None:
        super().__init__()
        self._subscriptions: OrderedDict[tuple[int, int], tuple[str | None, bool, int]] = OrderedDict()
        """By conversation and id: the consumer's name, whether all of that name are one (single active consumer), and the number of the
        Subscribe."""
        self._publishers: OrderedDict[tuple[int, int], Publisher] = OrderedDict()
        """By conversation and id."""
        self._hosts: OrderedDict[int, str] = OrderedDict()
        """By conversation: the virtual host."""
        self._asked: OrderedDict[int, tuple[str, str, str | None, str]] = OrderedDict()
        """By number of a QueryPublisherSequence: whose."""
        self._stored: OrderedDict[tuple[str, str, str | None, str], int] = OrderedDict()
        """By server, virtual host, stream and reference: the highest id that the server has, as far as it said."""
        self._makes: OrderedDict[int, frozenset[str]] = OrderedDict()
        """By number of a request that creates streams: their names."""
        self._remade: OrderedDict[str, int] = OrderedDict()
        """By stream: how often it may have been deleted or was created, since its offsets begin at 0 again."""

    def carrier(self, message: Message) -> Carrier | None:
        name, fields = message.name, message.fields
        if name == "Publish":
            entries = fields.get("published_messages") or ()
            if not entries and message.fault is None:
                return None
            # What the server sends is not answered
            keys = 0 if message.sender == "server" else sum("publishing_id" in one for one in entries)
            one = self._publisher(message)
            return Carrier(message, True, keys, keys > 0, duplicates=NONE if one is None else self._duplicates(one, entries), publisher=one)
        if name == "Deliver":
            chunk = fields.get("chunk") or {}
            if chunk.get("chunk_type", USER) != USER or (not chunk.get("entries") and message.fault is None):
                return None
            ident = fields.get("subscription_id", -1)
            consumer, shared, number = self._subscriptions.get((message.conversation, ident), (None, False, 0))
            # Others of a name each get all messages; after a loss, what comes late may be of the stream that the id had before
            stream = message.stream
            group = (message.src, self._host(message), stream, consumer) if shared else (message.conversation, ident, number, stream)
            return Carrier(
                message, False, consumer=consumer or f"subscription {ident}", group=(group, self._remade.get(stream, 0) if stream else 0)
            )
        follow = _FOLLOWS.get((name, message.kind))
        if follow is not None:
            follow(self, message, fields)
        return None

    def reasons(self, response: Message) -> dict[int, str]:
        errors = response.fields.get("publishing_errors") or ()
        return {one["publishing_id"]: str(one.get("code_label") or one["code"]) for one in errors if "code" in one}

    # Who consumes, and what was stored

    def _subscribe(self, message: Message, fields: Fields) -> None:
        if "subscription_id" in fields:
            given = {one.get("key"): one.get("value") for one in fields.get("properties") or ()}
            name = given.get("name") or None
            shared = name is not None and given.get("single-active-consumer") == "true"
            keep(self._subscriptions, (message.conversation, fields["subscription_id"]), (name, shared, message.number))

    def _open(self, message: Message, fields: Fields) -> None:
        keep(self._hosts, message.conversation, str(fields.get("virtual_host")))

    def _publisher(self, message: Message) -> Publisher | None:
        """Return the publisher that a message names, if that has a reference."""
        return self._publishers.get((message.conversation, message.fields.get("publisher_id", -1))) if self._publishers else None

    def _host(self, message: Message) -> str:
        """Return the virtual host, in which names of streams are unique."""
        return self._hosts.get(message.conversation, f"of conversation {message.conversation}")

    def _place(self, message: Message, fields: Fields) -> tuple[str, str, str | None, str]:
        return message.dst, self._host(message), fields.get("stream"), fields["publisher_reference"]

    def _declare(self, message: Message, fields: Fields) -> None:
        if "publisher_id" in fields:
            key = message.conversation, fields["publisher_id"]
            if fields.get("publisher_reference") and "stream" in fields:
                keep(self._publishers, key, Publisher(self._place(message, fields)))
            else:
                self._publishers.pop(key, None)

    def _query(self, message: Message, fields: Fields) -> None:
        if fields.get("publisher_reference") and "stream" in fields:
            keep(self._asked, message.number, self._place(message, fields))

    def _sequence(self, message: Message, fields: Fields) -> None:
        place = self._asked.pop(message.request or 0, None)
        # 0 is the answer for an unknown reference, too
        if place is not None and message.outcome == "answered" and fields.get("sequence"):
            keep(self._stored, place, fields["sequence"])

    def _confirm(self, message: Message, fields: Fields) -> None:
        one = self._publisher(message)
        if one is not None and fields.get("publishing_ids"):
            keep(self._stored, one.place, max(self._stored.get(one.place, -1), *fields["publishing_ids"]))

    def _refuse(self, message: Message, fields: Fields) -> None:
        one = self._publisher(message)
        if one is not None:
            # What was refused may be published again
            one.sent = -1
            ids = [error["publishing_id"] for error in fields.get("publishing_errors") or () if "publishing_id" in error]
            if ids:
                lowest, highest = one.refused or (ids[0], ids[0])
                one.refused = min(lowest, *ids), max(highest, *ids)

    def _empty(self, message: Message, fields: Fields) -> None:
        """Streams are new or gone, and so is what the server remembers of them."""
        streams = frozenset(one for one in (fields.get("stream"), *(fields.get("partitions") or ())) if one)
        for place in [place for place in self._stored if place[2] in streams]:
            del self._stored[place]
        for one in self._publishers.values():
            one.sent = -1 if one.place[2] in streams else one.sent
        if message.name in _CREATES:
            # Clients create streams at each start, and the server refuses existing ones
            keep(self._makes, message.number, streams)
        else:
            self._remake(streams)

    def _created(self, message: Message, fields: Fields) -> None:
        streams = self._makes.pop(message.request or 0, frozenset())
        if message.outcome == "answered":
            self._remake(streams)

    def _remake(self, streams: frozenset[str]) -> None:
        for stream in streams:
            keep(self._remade, stream, self._remade.get(stream, 0) + 1)

    def _duplicates(self, one: Publisher, entries: Sequence[Fields]) -> frozenset[int]:
        """Return the indexes of entries that the server has already."""
        found: list[int] = []
        last = max(one.sent, self._stored.get(one.place, -1))
        for index, entry in enumerate(entries):
            ident = entry.get("publishing_id")
            if ident is not None and ident <= last:
                found.append(index)
            elif ident is not None:
                last = ident
        one.sent = last
        return frozenset(found) if found else NONE

    def is_complete(self, message: Message) -> bool:
        return message.fault is None or _goes_on(message)

    def entries(self, carrier: Carrier) -> Iterator[Entry]:
        message = carrier.message
        fields, make, consumer = message.fields, maker(message), carrier.consumer
        chunk = fields if carrier.published else fields.get("chunk") or {}
        listed: Iterable[Fields] = chunk.get("published_messages" if carrier.published else "entries") or ()
        said, last = NO_NOTES, 0
        if _goes_on(message):
            listed = self._all(message)
        elif message.fault is not None:
            listed = [one for one in listed if not _CONTENTS.isdisjoint(one)]
            last = len(listed)
            text = missing(message, last, chunk.get("num_entries"))
            said = NO_NOTES if text is None else (text,)
        for index, one in enumerate(listed, 1):
            notes = said if index == last else one.get(_MISSING, NO_NOTES)
            publishing_id, offset, key = one.get("publishing_id"), one.get("offset"), one.get("filter_value")
            dropped = index - 1 in carrier.duplicates and carrier.publisher.may_have(publishing_id)
            outcome: EntryOutcome | None = "deduplicated" if dropped else None
            body = one.get("body")
            if "compression" in one:
                yield from self._sub_batch(make, one, publishing_id, offset, key, consumer, outcome, notes)
            elif body is not None:
                yield make(
                    None, offset, publishing_id, None, key, NO_PROPERTIES, None, one["size"], "bytes", body, consumer, outcome, notes
                )
            else:
                yield make(None, offset, publishing_id, *_amqp(key, one["sections"], None, one["size"]), consumer, outcome, notes)

    def _all(self, message: Message) -> Iterator[Fields]:
        """Yield all entries of a message that has more values than are kept, the last one with a note on the missing ones."""
        assert message.raw is not None
        fields, language = message.fields, LANGUAGES[message.protocol]
        word = fields["key"] << 16 | fields["version"]
        layout = (language.client if message.name == "Publish" else language.server)[word][0]
        before: Fields | None = None
        count = 0
        try:
            for one in language.each_entry(layout, message.raw["frame"], ValueQuota(VALUES)):
                if before is not None:
                    yield before
                before = one
                count += 1
        except Malformed as wrong:
            if before is not None:
                before[_MISSING] = (f"entry {count + 1:,} not complete: {wrong.field} {wrong.reason}",)
        if before is not None:
            yield before

    def _sub_batch(
        self,
        make: Any,
        one: Fields,
        publishing_id: int | None,
        offset: int | None,
        key: Any,
        consumer: str | None,
        outcome: EntryOutcome | None,
        notes: Any,
    ) -> Iterator[Entry]:
        """Yield the messages of a sub-batch; one that could not be opened as one entry with its packed bytes."""
        compression = one["compression_label"] or str(one["compression"])
        messages = one.get("messages")
        if messages is None:
            notes = (f"sub-batch of {one['num_records']:,} messages not opened", *notes)
            size, body = one["size"], one.get("body")
            yield make(None, offset, publishing_id, None, key, NO_PROPERTIES, compression, size, "bytes", body, consumer, outcome, notes)
            return
        for inner in messages:
            said = notes if inner is messages[-1] else NO_NOTES
            at, body = inner.get("offset"), inner.get("body")
            if body is not None:
                yield make(
                    None, at, publishing_id, None, key, NO_PROPERTIES, compression, inner["size"], "bytes", body, consumer, outcome, said
                )
            elif "sections" in inner:
                yield make(None, at, publishing_id, *_amqp(key, inner["sections"], compression, inner["size"]), consumer, outcome, said)


_FOLLOWS: dict[tuple[str, str], Callable[[RabbitmqEntries, Message, Fields], None]] = {
    ("Subscribe", "request"): RabbitmqEntries._subscribe,
    ("Open", "request"): RabbitmqEntries._open,
    ("DeclarePublisher", "request"): RabbitmqEntries._declare,
    ("QueryPublisherSequence", "request"): RabbitmqEntries._query,
    ("QueryPublisherSequence", "response"): RabbitmqEntries._sequence,
    ("PublishConfirm", "response"): RabbitmqEntries._confirm,
    ("PublishError", "response"): RabbitmqEntries._refuse,
    ("MetadataUpdate", "one_way"): RabbitmqEntries._empty,
    **dict.fromkeys(((name, "request") for name in (*_CREATES, "Delete", "DeleteSuperStream")), RabbitmqEntries._empty),
    **dict.fromkeys(((name, "response") for name in _CREATES), RabbitmqEntries._created),
}
"""Functions that learn from messages without entries."""


def _amqp(key: Any, sections: list[Fields], compression: str | None, size: int) -> tuple[Any, ...]:
    """Return the arguments of `maker` for a message of AMQP 1.0, from its id to its body."""
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
    body = some[0] if len(some) == 1 else data[0][:0].join(data) if data else values
    return ident, key, properties, compression, size, body_type, body
