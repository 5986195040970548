"""The user messages of messages: what a protocol's part of it returns, and what all protocols share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import msgspec

from ..model import BodyType, Entry, EntryOutcome, Limited, Message
from ..quota import keep_newest

REMEMBERED = 65_536
"""Subscriptions, publishers or requests that are remembered, of each kind."""

NO_PROPERTIES: tuple[dict[str, Any], ...] = ()
NO_NOTES: tuple[str, ...] = ()
NONE: frozenset[int] = frozenset()


class Carrier(msgspec.Struct, gc=False):
    """A message that carries user messages, with the state known when it comes."""

    message: Message
    published: bool
    keys: int = 0
    """The number of keys that are answered one by one; 0 for a message that is answered once, or not at all."""
    waits: bool = False
    """Whether a response says what becomes of the entries."""
    consumer: str | None = None
    """Whom it delivers to."""
    group: Hashable = None
    """The same for whom an offset should be delivered once; None if unknown."""
    begin: tuple[int, int] | None = None
    """The partition and the offset of the first entry, according to the response."""
    duplicates: frozenset[int] = NONE
    """Indexes of the entries that the server confirms and drops, as it has them already."""
    publisher: Any = None
    """The publisher, an object of the source: ids that the server refuses later are no duplicates."""


class EntrySource:
    """The user messages of one protocol in a run. `carrier` gets every message of the protocol in order, `entries` is called later."""

    LEFT_OUT = ""
    """The kind of messages whose user messages are not entries, as they repeat those of clients."""

    def __init__(self) -> None:
        self.left_out = 0
        """The number of these messages."""

    def carrier(self, message: Message) -> Carrier | None:
        """Return what carries entries, None for all other messages."""
        raise NotImplementedError

    def answered(self, carrier: Carrier, response: Message) -> None:
        """Learn from the response to a message that is answered once."""

    def reason(self, response: Message) -> str | None:
        """Return why a response refuses a message that is answered once."""
        return None

    def reasons(self, response: Message) -> dict[int, str]:
        """Return why a response refuses keys of messages, by publishing id."""
        return {}

    def is_complete(self, message: Message) -> bool:
        """Return whether all entries of a message can be read."""
        return message.fault is None

    def entries(self, carrier: Carrier) -> Iterator[Entry]:
        """Yield the complete entries one by one."""
        raise NotImplementedError


def maker(message: Message) -> Callable[..., Entry]:
    """Return a function that makes an entry of the message from its own values: partition, offset, publishing id, id, key, properties,
    compression, size, type of the body, body, consumer, the outcome that a confirmation means, notes."""
    time, time_ns, conversation, src, dst = message.time, message.time_ns, message.conversation, message.src, message.dst
    sender, protocol, name, number, stream = message.sender, message.protocol, message.name, message.number, message.stream
    processes = message.processes
    new = Entry

    def make(
        partition: int | None,
        offset: int | None,
        publishing_id: int | None,
        ident: Any,
        key: Any,
        properties: Any,
        compression: str | None,
        size: int | None,
        body_type: BodyType,
        body: Any,
        consumer: str | None,
        outcome: EntryOutcome | None = None,
        notes: Any = NO_NOTES,
    ) -> Entry:
        return new(
            1,
            0,
            time,
            time_ns,
            conversation,
            src,
            dst,
            sender,
            protocol,
            name,
            number,
            stream,
            partition,
            offset,
            publishing_id,
            ident,
            key,
            properties,
            compression,
            size,
            body_type,
            body,
            consumer,
            outcome,
            None,
            None,
            None,
            notes,
            processes,
        )

    return make


def code_of(fields: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of these codes that is not 0: its label, or the number."""
    for name in names:
        if fields.get(name):
            return str(fields.get(f"{name}_label") or fields[name])
    return None


def missing(message: Message, read: int, declared: int | None = None) -> str | None:
    """Return what to say of a message of which `read` entries are complete, of those `declared`; None if all are there."""
    fault = message.fault
    if fault is None:
        return None
    if declared is not None and read >= declared:
        return f"the message is damaged behind its entries: {fault.field} {fault.reason}"
    what = f"entry {read + 1:,}" if declared is None else f"{declared - read:,} of {declared:,} entries"
    if type(fault) is Limited:
        return f"{what} not shown: {fault.reason}; --values-limit raises this limit"
    return f"{what} not complete: {fault.field} {fault.reason}".rstrip()


def keep(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Remember a value, and forget the oldest beyond the limit."""
    keep_newest(known, key, value, REMEMBERED)
