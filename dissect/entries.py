"""The user messages of a run, in capture order, each with what became of it. Bounded: what waits for responses has limits.

A message that carries entries waits until the responses to it are known, and all that follow it wait, too; its entries are made one by one
when it leaves. Beyond the limits, and live after some time, it leaves as it is, and that is counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from time import monotonic
from typing import Any, NamedTuple

from .layout.types import BytesAs
from .layout.values import RENDER
from .model import Entry, EntryOutcome, Exchange, Message, Record
from .pair.exchanges import KeyAnswer
from .protocols import ByProtocol, Protocol
from .protocols.entries import Carrier, EntrySource
from .quota import drop_oldest

HELD_BYTES, HELD_MESSAGES = 8 << 20, 16_384
"""Limits of what waits: bytes of the messages behind the first, and messages."""

PATIENCE = 2.0
"""Seconds that entries wait at most where the capture goes on."""

NUMBERS = 8
"""Numbers of messages whose entries are incomplete that are kept."""

LATE_ANSWERS = 4_096
"""Responses to keys that wait for the release of their records."""

GROUPS, RANGES = 4_096, 64
"""Consumers whose offsets are remembered, and ranges of offsets for each."""

PUBLISHING_ID = 0xFFFF_FFFF_FFFF_FFFF
"""What of a key is the publishing id."""


class Fate(NamedTuple):
    """What became of a published entry."""

    outcome: EntryOutcome | None
    reason: str | None = None
    response: int | None = None
    latency_ns: int | None = None


UNKNOWN = Fate(None)


def entry_source(protocol: Protocol) -> EntrySource | None:
    """Return a new source of user messages, None for a protocol that has none."""
    return None if protocol.loaded.entries is None else protocol.loaded.entries()


class Waiting:
    """A message in the queue."""

    __slots__ = ("carrier", "fate", "fates", "left", "since", "source")

    def __init__(self, source: EntrySource, carrier: Carrier, since: float) -> None:
        self.source = source
        self.carrier = carrier
        self.left = (carrier.keys or 1) if carrier.waits else 0
        """The number of keys without a response."""
        self.fate = UNKNOWN
        """Of the entries whose key is not in `fates`."""
        self.fates: dict[int, Fate] = {}
        self.since = since


class Entries:
    """The entries of a run, from its records; or those of one conversation, if it gets no other records."""

    def __init__(self, answers: list[KeyAnswer] | None, live: bool = False) -> None:
        """`answers` is what pairing fills with `Options.entries`. `live`: what waits leaves after `PATIENCE`, see `expire`."""
        assert answers is not None
        self.answers = answers
        self._live = live
        self._sources = ByProtocol(entry_source)
        self._queue: deque[Waiting] = deque()
        self._held = 0
        """Bytes of the messages in the queue."""
        self._open: dict[int, Waiting] = {}
        """By number of the message, what waits for a response."""
        self._late: list[KeyAnswer] = []
        self._offsets: dict[Hashable, list[int]] = {}
        """By consumer: the ranges of offsets that it got, as beginnings and ends in turn."""
        self.number = 0
        """The number of entries so far."""
        self.given_up = 0
        """Messages whose entries left before their fate was known, because of a limit."""
        self.incomplete: list[int] = []
        """Numbers of the first messages with entries that could not be read, and their count."""
        self.incomplete_count = 0
        self.without: set[str] = set()
        """Protocols in the capture that have no user messages."""

    def add(self, records: Iterable[Record]) -> Iterator[Entry]:
        """Yield the entries whose fate is known with these records, all of them in order."""
        for one in self.feed(records):
            yield from self.entries(one)

    def feed(self, records: Iterable[Record]) -> Iterator[Waiting]:
        """Yield the messages whose entries have a known fate with these records; `entries` makes those, in this order."""
        ends: list[Exchange] = []
        sources, opened = self._sources, self._open
        for record in records:
            if type(record) is Message:
                source = sources[record.protocol]
                if source is None:
                    self.without.add(record.protocol)
                    continue
                carrier = source.carrier(record)
                if carrier is not None:
                    self._put(source, carrier)
                    if record.fault is not None and not source.is_complete(record):
                        self.incomplete_count += 1
                        self.incomplete += [record.number] if len(self.incomplete) < NUMBERS else []
                elif record.request in opened:
                    self._answer(opened[record.request], record)
            elif type(record) is Exchange and record.request in opened:
                ends.append(record)
        if self.answers:
            self._answer_keys(self.answers)
        for end in ends:
            self._end(end)
        yield from self._release()

    def expire(self) -> Iterator[Entry]:
        """Yield the entries that have waited long enough; for a capture that goes on."""
        before = monotonic() - PATIENCE
        while self._queue and self._queue[0].since < before:
            self._give_up("live")
            for one in self._release():
                yield from self.entries(one)

    def finish(self, stopped: bool = False) -> Iterator[Entry]:
        """Yield the last entries, when no more records come; `stopped`: though the capture goes on."""
        for one in self.rest(stopped):
            yield from self.entries(one)

    def rest(self, stopped: bool = False) -> Iterator[Waiting]:
        """Yield the last messages, as `feed` does."""
        while self._queue:
            if self._queue[0].left:
                self._settle(self._queue[0], Fate("pending", "stopped") if stopped else UNKNOWN)
            yield from self._release()

    def left_out(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the kind of messages whose user messages are not entries."""
        return ((one.left_out, one.LEFT_OUT) for one in self._sources.values() if one is not None and one.left_out)

    # What waits

    def waiting(self) -> Iterator[Message]:
        """Yield the messages whose entries have not left."""
        return (one.carrier.message for one in self._queue)

    def _put(self, source: EntrySource, carrier: Carrier) -> None:
        message = carrier.message
        one = Waiting(source, carrier, monotonic() if self._live else 0.0)
        self._queue.append(one)
        self._held += message.size
        if one.left:
            self._open[message.number] = one

    def _answer(self, one: Waiting, response: Message) -> None:
        """Learn from a response that names its request."""
        if one.carrier.keys:
            return
        one.source.answered(one.carrier, response)
        refused = response.outcome == "refused"
        reason = one.source.reason(response) if refused else None
        self._settle(one, Fate("refused" if refused else "confirmed", reason, response.number, response.latency_ns))

    def _answer_keys(self, answers: list[KeyAnswer]) -> None:
        """Learn from the responses to keys, and remove them from the list."""
        late: list[KeyAnswer] = []
        codes: tuple[int, dict[int, str]] = 0, {}
        for answer in (*self._late, *answers):
            request, keys, response, refused, latency_ns = answer
            if not (request.number and response.number):
                late.append(answer)
                continue
            one = self._open.get(request.number)
            if one is None:
                continue
            if refused:
                if codes[0] != response.number:
                    codes = response.number, one.source.reasons(response)
                reasons = codes[1]
                for key in keys:
                    ident = key & PUBLISHING_ID
                    one.fates[ident] = Fate("refused", reasons.get(ident), response.number, latency_ns)
            else:
                fate = Fate("confirmed", None, response.number, latency_ns)
                if len(keys) == one.left and not one.fates and one.carrier.message.fault is None:
                    # There may be a million, and all of them have a key
                    one.fate = fate
                else:
                    one.fates.update((key & PUBLISHING_ID, fate) for key in keys)
            one.left -= len(keys)
            if one.left <= 0:
                one.left = 0
                del self._open[request.number]
        answers.clear()
        # Some belong to records that are never released
        self._late = late[-LATE_ANSWERS:]

    def _end(self, exchange: Exchange) -> None:
        """Learn that a request got no response, or one that came before it."""
        one = self._open.get(exchange.request)
        if one is None:
            return
        outcome: EntryOutcome = "confirmed" if exchange.outcome == "answered" else exchange.outcome
        self._settle(one, Fate(outcome, exchange.reason, exchange.response, exchange.latency_ns))

    def _settle(self, one: Waiting, fate: Fate) -> None:
        """Set the fate of all entries that have none."""
        one.fate, one.left = fate, 0
        self._open.pop(one.carrier.message.number, None)

    def _give_up(self, reason: str) -> None:
        first = self._queue[0]
        if first.left:
            self.given_up += 1
            self._settle(first, Fate("pending", reason))

    def _release(self) -> Iterator[Waiting]:
        queue = self._queue
        while queue:
            first = queue[0]
            if first.left:
                if self._held - first.carrier.message.size <= HELD_BYTES and len(queue) <= HELD_MESSAGES:
                    break
                self._give_up("limit")
            queue.popleft()
            self._held -= first.carrier.message.size
            yield first

    # What leaves

    def entries(self, one: Waiting) -> Iterator[Entry]:
        """Yield the entries of a message that has left the queue, one by one."""
        carrier = one.carrier
        fates, fate, group = one.fates, one.fate, carrier.group
        for entry in one.source.entries(carrier):
            self.number += 1
            entry.number = self.number
            if carrier.published:
                known = fates.get(entry.publishing_id, fate) if fates and entry.publishing_id is not None else fate
                outcome, entry.reason, entry.response, entry.latency_ns = known
                if outcome != "confirmed" or entry.outcome is None:
                    entry.outcome = outcome
            elif group is not None and entry.offset is not None and self._again(group, entry.offset):
                entry.outcome = "redelivered"
            else:
                entry.outcome = "delivered"
            yield entry

    def _again(self, group: Hashable, offset: int) -> bool:
        """Return whether the consumer got this offset before, and remember it."""
        ends = self._offsets.get(group)
        if ends is None:
            self._offsets[group] = [offset, offset + 1]
            drop_oldest(self._offsets, GROUPS)
            return False
        if ends[-1] == offset:
            ends[-1] += 1
            return False
        at = bisect_right(ends, offset)
        if at % 2:
            return True
        ends[at:at] = offset, offset + 1
        # Adjacent ranges become one
        for edge in (at + 1, at - 1):
            if 0 < edge < len(ends) - 1 and ends[edge] == ends[edge + 1]:
                del ends[edge : edge + 2]
        if len(ends) > 2 * RANGES:
            del ends[:2]
        return False


# Values as they are shown


def rendered(entry: Entry, bytes_as: BytesAs) -> Entry:
    """Give the bytes in an entry this form."""
    if bytes_as != "raw":
        render = RENDER[bytes_as]
        if entry.body_type != "bson":
            # Documents have no bytes as such
            entry.body = rendered_value(entry.body, render)
        if entry.properties:
            entry.properties = rendered_value(entry.properties, render)
        if entry.key is not None or entry.id is not None:
            entry.key, entry.id = rendered_value(entry.key, render), rendered_value(entry.id, render)
    return entry


def rendered_value(value: Any, render: Callable[[bytes], Any]) -> Any:
    """Return a value with its bytes in this form."""
    if isinstance(value, bytes):
        return render(value)
    if isinstance(value, dict):
        return {key: rendered_value(one, render) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rendered_value(one, render) for one in value]
    return value
