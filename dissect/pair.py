"""Requests with their responses: who answers whom, how long it took, and which requests stay open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import copy
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from .model import Exchange, Message, Pair
from .protocols.compare_rules import HandshakeProgress
from .protocols.protocol import Tally
from .protocols.records import (
    GAP,
    HANDED_ON,
    LARGE,
    LOST,
    NONE,
    OPTIONAL_RESPONSE,
    ORDER_KEY,
    PARTIAL_RESPONSE,
    REQUEST,
    REQUESTS,
    RESPONSES,
    SKIPPED,
    Event,
    rfc3339,
)


class Moment(NamedTuple):
    """When it was certain how a request ended, and where the record of that stands."""

    order: int
    rank: int
    position: int
    time_ns: int

    @property
    def time(self) -> str:
        return rfc3339(self.time_ns)


BEHIND = 2
"""The rank of what is certain with the end of a conversation: behind all that either side sent."""


def behind(order: int = 0, position: int = 0, time_ns: int = 0) -> Moment:
    """Return the moment behind all that either side sent."""
    return Moment(order, BEHIND, position, time_ns)


KEYS = "keys"
"""What of a large request is kept in the place of lists: the keys of what it asks for."""

Link = tuple[Message | Exchange, Event, Message | None]
"""(a record, the request it names, the response it names): numbers are known only when records are handed out."""

KEYS_PER_REQUEST = 64
"""So many keys a request may stay open on average, when as many requests are open as may be."""

KEYS_COUNTED = 16
"""So many keys take as much as a request."""

MAX_EARLY = 1_024
"""Unmatched responses remembered for a request that is still held back by a gap, or was captured late."""

MAX_EARLY_PER_KEY = 16
"""So many of them with one key, where keys are used again."""

MAX_TEXT = 64
"""Of such a message numbers are kept, and texts up to this length: what notes may need."""

UNSURE = "bytes were lost and the id is used again: this may answer another request"

FAILED = "internal error"

STALE = "bytes of both sides were lost since this request: the response may be that of a later one with the same id"


class _Batch(msgspec.Struct):
    """A request that several responses answer piece by piece (Publish)."""

    asked: Event
    left: int
    refused: bool = False


class Doubt:
    """Where bytes are missing, and the keys of open requests that therefore do not tell for certain any more which request is answered."""

    __slots__ = ("doubtful", "gaps", "looked", "lost", "stale")

    def __init__(self) -> None:
        self.gaps = [-1, -1]
        """By side where the last gap lies, and in `lost` the last that is no bytes which were only passed over."""
        self.lost = [-1, -1]
        self.doubtful: set[Hashable] = set()
        """Of several open requests that may be one off, as an answer was lost."""
        self.stale: set[Hashable] = set()
        """Of open requests whose answer may have been lost together with a later request of the same id."""
        self.looked = -1

    def lose(self, one: Event, queues: dict[Hashable, Any] | None) -> None:
        """A gap. Where bytes of both sides were lost, what has been open since before has a queue of its own in `queues` from now on, so
        that `note` sees it; `queues`: what is open where keys are used again."""
        self.gaps[one.rank] = one.order
        if one.record.reason != "skipped":
            self.lost[one.rank] = one.order
        since = min(self.gaps)
        if queues is None or since <= self.looked:
            return
        found = []
        for key in reversed(queues):
            order = _oldest(queues[key]).order
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
        """Why this request may have an answer that is not here."""
        answering = 1 - asked.rank
        if self.gaps[answering] < asked.order:
            return None
        return LOST if self.lost[answering] >= asked.order else SKIPPED

    def note(self, one: Event, key: Hashable, asked: Event, following: Any) -> None:
        """Note where the key does not tell which request is answered, as an answer or one of them may be among lost bytes; `following`: the
        next one that is open with it.

        From then on all are one off, until none is open.
        """
        if following is None:
            self.doubtful.discard(key)
            if key in self.stale:
                self.stale.discard(key)
                _note(one, STALE)
        elif key not in self.doubtful and _asked(following).order < one.order and max(self.gaps) >= asked.order:
            self.doubtful.add(key)
        if key in self.doubtful:
            _note(one, UNSURE)

    def forget(self, key: Hashable) -> None:
        """Nothing is open with this key."""
        self.doubtful.discard(key)
        self.stale.discard(key)


def _note(one: Event, note: str) -> None:
    message: Message = one.record
    if note not in message.notes:
        message.notes = [*message.notes, note]


def _each(entry: Any) -> Iterable[Any]:
    """The requests that are open with one key, the oldest first."""
    return entry if type(entry) is deque else (entry,)


def _asked(one: Any) -> Event:
    asked: Event = one.asked if type(one) is _Batch else one
    return asked


def _oldest(entry: Any) -> Event:
    return _asked(entry[0] if type(entry) is deque else entry)


def _compacted(one: Event) -> Event:
    message = copy(one.record)
    message.fields = {name: value for name, value in message.fields.items() if _is_small(value)}
    if one.role == REQUESTS:
        message.fields[KEYS] = one.key
    message.raw = message.spans = None
    return replace(one, record=message)


def _is_small(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)


class PairRules(NamedTuple):
    """How the requests of a conversation are paired.

    `reuse`: what a key that is still open means: "queue", the oldest waiting request is answered first, or "supersede", the older request
    will not be answered any more. `limit`: how many may be open. `every`: write an exchange for answered ones too. `from_start`: the
    capture has the conversation's beginning. `paired` and `unanswered` are those of the protocol.
    """

    reuse: str
    limit: int
    every: bool
    from_start: bool = False
    paired: Callable[[Message, Message], list[str]] | None = None
    unanswered: Callable[[Message, int], str | None] | None = None


class PairOutputs(NamedTuple):
    """What pairing fills besides the records.

    `tallies` count the requests that were refused and that a limit ends. `large` gets messages, of any conversation, that may be
    remembered: for whoever hands them on, to call `compact` then. `pairs` gets every exchange with its messages, where these are wanted;
    some of them may never be handed on.
    """

    links: list[Link]
    large: list[tuple[Pairer, Event]]
    tallies: tuple[Tally, ...] = ()
    pairs: list[Pair] | None = None


class Exchanges:
    """Reports how the requests of one conversation end: links to what answers them, exchanges, pairs, and counts."""

    def __init__(self, rules: PairRules, outputs: PairOutputs, handshake: HandshakeProgress | None = None) -> None:
        self.reuse, self.limit, self.every, self.from_start, self.paired, self.unanswered = rules
        self.links, self.large, self.tallies, self.pairs = outputs
        self.handshake = HandshakeProgress() if handshake is None else handshake
        self.untimed = False
        """Packets of the conversation have no time: nothing is known of how long anything took."""
        self.refused = 0
        """Requests that the packet at hand refused."""
        self._late: dict[int, Event] = {}
        """Requests reported as not answered in time, by identity. They stay open: a late response must not answer the next one."""

    def prepare(self) -> None:
        self._late = {id(one): one for one in self._late.values()}

    def _link(self, one: Event, asked: Event) -> None:
        response, request = one.record, asked.record
        if not self.handshake.done:
            self.handshake.answered(request.name, response.outcome or "answered")
        elapsed = _elapsed(asked, one)
        response.latency_ns = self._latency(asked, one)
        if request.stream is not None:
            response.stream = request.stream
        self.links.append((response, asked, None))
        if elapsed < 0:
            response.notes = [*response.notes, "response begins before its request ends"]
        elif not (asked.end_captured or self.untimed):
            at_most = f"the end of its request was not captured: answered after at most {elapsed / 1e6:.3f} ms"
            response.notes = [*response.notes, at_most]
        if self.paired is not None:
            notes = self.paired(request, response)
            if notes:
                response.notes = [*response.notes, *notes]

    def _answer(self, one: Event, asked: Event, append: Callable[[Event], None]) -> None:
        self._link(one, asked)
        if one.record.outcome == "refused":
            self._refuse(1)
        if not (self._late and self._was_late(asked)):
            self._ended(asked, one, one.record.outcome or "answered", append)

    def _ended(self, asked: Event, response: Event, outcome: Any, append: Callable[[Event], None], moment: Moment | None = None) -> None:
        """A request was answered, at the moment of its response if no other is given: a record tells so only where that is wanted."""
        if self.every:
            append(self._exchange(asked, response, outcome, None, moment or _moment(response)))
        elif self.pairs is not None:
            self.pairs.append(Pair(asked.record, response.record, outcome, None, self._latency(asked, response), None))

    def _latency(self, asked: Event, response: Event) -> int | None:
        return None if self.untimed else latency_of(asked, response)

    def _refuse(self, requests: int) -> None:
        self.refused += requests
        for tally in self.tallies:
            tally.refused += requests

    def _exchange(self, asked: Event, response: Event | None, outcome: Any, reason: str | None, moment: Moment) -> Event:
        """How a request ended."""
        request = asked.record
        exchange = Exchange(
            1,
            0,
            moment.time,
            moment.time_ns,
            request.conversation,
            request.src,
            request.dst,
            request.protocol,
            request.name,
            request.id,
            request.stream,
            0,
            None,
            outcome,
            reason,
            None if response is None else self._latency(asked, response),
            # Nobody waited for the bug that ended it
            None if response is not None or reason == FAILED or self.untimed else moment.time_ns - request.time_ns,
        )
        answer = None if response is None else response.record
        self.links.append((exchange, asked, answer))
        if self.pairs is not None:
            self.pairs.append(Pair(request, answer, outcome, reason, exchange.latency_ns, exchange))
        return Event(*moment[:3], exchange, NONE, None, 0)

    def is_late(self, asked: Event) -> bool:
        """Whether a request was reported as not answered in time."""
        return id(asked) in self._late

    def _was_late(self, asked: Event) -> bool:
        """Whether a request that ends now was reported before."""
        return self._late.pop(id(asked), None) is not None


class Pairer(Exchanges):
    """The open requests of one conversation."""

    def __init__(self, rules: PairRules, outputs: PairOutputs, handshake: HandshakeProgress | None = None) -> None:
        super().__init__(rules, outputs, handshake)
        self.open: dict[Hashable, Any] = {}
        """By key a request, a `_Batch`, or the queue of several."""
        self.optional: dict[Hashable, Event] = {}
        self.early: dict[Hashable, list[tuple[Event, str | None]]] = {}
        """By key responses that came before any request of theirs, with their outcome: they have been handed on unpaired."""
        self.partial: dict[Hashable, Event] = {}
        """Of requests that are answered in parts the part that came last; the one that ends them may never come."""
        self.repeats = self.reuse == "queue"
        """Keys are used again: they may be, or one was."""
        self.doubt: Doubt | None = None
        """Where bytes were lost."""
        self.limit_hits = 0
        self.left = 0
        """Requests that had no response at the end."""
        self.out = HANDED_ON
        """What was paired with the packet at hand, so far."""
        self._spare = 0
        """Keys in `open` beyond one for each request: the limit counts requests."""

    def process(self, emitted: list[Event]) -> list[Event]:
        """Pair these records, in their order; returns them with the exchanges that became certain."""
        out = self.out = []
        self.refused = 0
        append = out.append
        for one in emitted:
            append(one)
            if one.role:
                self.pair(one, append)
                if one.role != GAP and one.record.size >= LARGE:
                    self.large.append((self, one))
        return out

    def compact(self, one: Event) -> None:
        """Keep of a message that was handed on, if it is remembered, only what may be needed again."""
        role, keys = one.role, one.key
        if role == REQUEST:
            entry = self.open.get(keys)
            if entry is one:
                self.open[keys] = _compacted(one)
            elif type(entry) is deque:
                # It came last, if it is there
                for index in range(len(entry) - 1, -1, -1):
                    if entry[index] is one:
                        entry[index] = _compacted(one)
                        break
        elif role == REQUESTS:
            for key in keys:  # type: ignore[attr-defined]
                entry = self.open.get(key)
                for batch in () if entry is None else _each(entry):
                    if batch.asked is one:
                        batch.asked = _compacted(one)
                        return
        elif role == OPTIONAL_RESPONSE:
            if self.optional.get(keys) is one:
                self.optional[keys] = _compacted(one)
        elif role == PARTIAL_RESPONSE:
            if self.partial.get(keys) is one:
                self.partial[keys] = _compacted(one)
        elif self.early:
            for key in keys if role == RESPONSES else (keys,):  # type: ignore[attr-defined]
                found = self.early.get(key)
                if found is not None and found[-1][0] is one:
                    found[-1] = _compacted(one), found[-1][1]

    def pair(self, one: Event, append: Callable[[Event], None]) -> None:
        """Pair one record, whose role is not NONE; `append` gets the exchanges that became certain."""
        _PAIRED_BY[one.role](self, one, append)

    def _on_response(self, one: Event, append: Callable[[Event], None]) -> None:
        key, opened = one.key, self.open
        entry = opened.get(key)
        asked = entry[0] if type(entry) is deque else entry
        if asked is not None and one.order < asked.order and _is_older(self, one, asked):
            one.record.outcome = None
            return
        if self.partial:
            self.partial.pop(key, None)
        if type(entry) is deque:
            if self.doubt is not None:
                self.doubt.note(one, key, entry[0], entry[1] if len(entry) > 1 else None)
        elif entry is None and self.optional:
            asked = self.optional.pop(key, None)
            if asked is not None and self.doubt is not None and max(self.doubt.gaps) >= asked.order:
                _note(one, UNSURE)
        if asked is None:
            self._remember(key, one)
            one.record.outcome = None
            return
        # It is open until its answer is, as an exception may come between
        self._answer(one, asked, append)
        if type(entry) is deque and len(entry) > 1:
            entry.popleft()
        elif entry is not None:
            del opened[key]

    def _on_request(self, one: Event, append: Callable[[Event], None]) -> None:
        key, opened = one.key, self.open
        found = self._early(key, one) if self.early else None
        if found is not None:
            self._append_early(one, found[0], found[1] or "answered", append)
            return
        if key in opened:
            self._repeat_key(one, key, append)
        else:
            opened[key] = one
        if len(opened) - self._spare > self.limit:
            self._drop_oldest(_moment(one), append)

    @property
    def reads(self) -> bool:
        """Whether the fields of open requests are looked at again."""
        return self.paired is not None or self.unanswered is not None

    def remembered(self) -> Iterator[Message]:
        """The messages that are remembered, which have been handed on."""
        for entry in self.open.values():
            for one in _each(entry):
                yield _asked(one).record
        for asked in self.optional.values():
            yield asked.record
        for answer in _earlies(self):
            yield answer.record
        for part in self.partial.values():
            yield part.record

    def weight(self) -> int:
        """The requests that are open and the messages that may yet be one's other half, a few keys of a request counting as another."""
        entries = sum([len(entry) if type(entry) is deque else 1 for entry in self.open.values()])
        early = sum(map(len, self.early.values()))
        return entries - self._spare + entries // KEYS_COUNTED + len(self.optional) + early + len(self.partial)

    def orders(self) -> list[int]:
        """When each of them was certain."""
        found = [_oldest(entry).order for entry in self.open.values()]
        return found + [one.order for one in self.optional.values()] + [one.order for one in _earlies(self)]

    def drop(self, until: int, time_ns: int) -> list[Event]:
        """Forget those that came with the packet `until` or before, as there are too many, which is told at this time."""
        out: list[Event] = []
        while self.open:
            asked = _oldest(next(iter(self.open.values())))
            if asked.order > until:
                break
            self._drop_oldest(_moment_of(asked, time_ns), out.append)
        for key in [key for key, one in self.optional.items() if one.order <= until]:
            del self.optional[key]
        for key in [key for key, found in self.early.items() if found[0][0].order <= until]:
            self._keep_early(key, [found for found in self.early[key] if found[0].order > until])
        return out

    def expire(self, now_ns: int, patience_ns: int) -> list[Event]:
        """Requests made longer than `patience_ns` ago are reported, once each, as unanswered for now; live only."""
        out: list[Event] = []
        late = self._late
        before_ns = now_ns - patience_ns
        for entry in self.open.values():
            for one in _each(entry):
                asked = _asked(one)
                if asked.record.time_ns > before_ns:
                    break
                if id(asked) not in late and not (type(one) is _Batch and one.left < 0):
                    if asked.role == REQUEST and asked.key in self.partial:
                        continue
                    late[id(asked)] = asked
                    time_ns = asked.record.time_ns + patience_ns
                    out.append(self._exchange(asked, None, "unanswered", "timeout", _moment_of(asked, time_ns)))
        return out

    def close(self, reason: str, moment: Moment) -> list[Event]:
        """Every request that is still open ends as unanswered: `reason` "closed" or "capture ended", or bytes were lost or skipped, or what
        the request itself reports at the end. One that was answered in part counts as answered. `moment`: the end."""
        found = {id(asked): asked for entry in self.open.values() for asked in _asked_of(entry)}
        out: list[Event] = []
        for asked in sorted(found.values(), key=ORDER_KEY):
            if not self.handshake.done:
                self.handshake.unanswered(asked.record.name)
            if self.is_late(asked):
                self.left += 1
            elif not self._end_with_partial(asked, moment, out.append):
                out.append(self._exchange(asked, None, "unanswered", _why(self, asked, moment.time_ns, reason), moment))
                self.left += 1
        self._forget()
        return out

    def fail(self, unreleased: list[Event]) -> list[Event]:
        """An exception ended this conversation with a packet, of which neither these messages nor `out` are handed on: every request that
        is still open ends with it, and those that had an end in what is not handed on, but for requests that are not handed on either."""
        gone = {id(one.record) for one in (*unreleased, *self.out)}
        answered = [asked for record, asked, _ in self.links if id(record) in gone]
        self.links[:] = [link for link in self.links if id(link[0]) not in gone]
        if self.out is not HANDED_ON:
            self._refuse(-self.refused)
            for tally in self.tallies:
                tally.unanswered -= sum(type(one.record) is Exchange and one.record.outcome == "unanswered" for one in self.out)
        without = {id(one.record) for one in unreleased}
        waiting = [asked for entry in self.open.values() for asked in _asked_of(entry)]
        found = {id(asked.record): asked for asked in waiting + answered if id(asked) not in self._late}
        self._forget()
        self.handshake.midway = False
        ended = sorted([asked for key, asked in found.items() if key not in without], key=ORDER_KEY)
        self.left = len(ended)
        return [self._exchange(asked, None, "unanswered", FAILED, _moment(asked)) for asked in ended]

    def _forget(self) -> None:
        self.open.clear()
        self.early.clear()
        self._late.clear()
        self.optional.clear()
        self.partial.clear()
        self.doubt = None

    def _end_with_partial(self, asked: Event, moment: Moment, append: Callable[[Event], None]) -> bool:
        """Whether a request that ends had answers in part, of which the last one then is its answer."""
        part = self.partial.pop(asked.key, None) if self.partial and asked.role == REQUEST else None
        if part is not None and not self._was_late(asked):
            self._ended(asked, part, part.record.outcome or "answered", append, moment)
        return part is not None

    def _repeat_key(self, one: Event, key: Hashable, append: Callable[[Event], None]) -> None:
        older = self.open[key]
        if self.reuse == "queue":
            if type(older) is deque:
                older.append(one)
            else:
                self.open[key] = deque((older, one))
            if len(self.open[key]) > self.limit:
                self._limit(self.open[key].popleft(), _moment(one), append)
            return
        self.repeats = True
        del self.open[key]
        self.open[key] = one
        if self.doubt is not None:
            self.doubt.forget(key)
        asked = _oldest(older)
        if not self._end_with_partial(asked, _moment(one), append) and not self._was_late(asked):
            append(self._exchange(asked, None, "superseded", None, _moment(one)))

    def _on_requests(self, one: Event, append: Callable[[Event], None]) -> None:
        opened = self.open
        keys: Any = one.key
        if not keys:
            return
        batch = _Batch(one, len(keys))
        if self.early:
            early = [self._early(key, one) for key in keys]
            keys = [key for key, found in zip(keys, early, strict=True) if found is None]
            answers = [found for found in early if found is not None]
            batch.left = len(keys)
            batch.refused = any(outcome == "refused" for _, outcome in answers)
            if batch.refused and keys:
                self._refuse(1)
            if answers and not keys:
                self._append_early(one, answers[-1][0], "refused" if batch.refused else "answered", append)
        for key in keys:
            older = opened.get(key)
            if older is None:
                opened[key] = batch
            elif type(older) is deque:
                older.append(batch)
            else:
                opened[key] = deque((older, batch))
        if batch.left > 1:
            self._spare += batch.left - 1
        while len(opened) - self._spare > self.limit or len(opened) > KEYS_PER_REQUEST * self.limit:
            self._drop_oldest(_moment(one), append)

    def _on_responses(self, one: Event, append: Callable[[Event], None]) -> None:
        opened = self.open
        done: list[_Batch] = []
        keys: Any = one.key
        response = one.record
        refused = response.outcome == "refused"
        first: Event | None = None
        batch: _Batch | None = None
        for key in keys:
            entry: Any = opened.get(key)
            if entry is None:
                self._remember(key, one)
                continue
            if type(entry) is deque:
                others, entry = entry, entry.popleft()
                if self.doubt is not None:
                    self.doubt.note(one, key, entry.asked, others[0] if others else None)
                if not others:
                    del opened[key]
            else:
                del opened[key]
            if entry is not batch:
                batch = entry
                if first is None or ORDER_KEY(entry.asked) < ORDER_KEY(first):
                    first = entry.asked
                if refused and not entry.refused:
                    entry.refused = True
                    self._refuse(1)
            entry.left -= 1
            if entry.left > 0:
                self._spare -= 1
            elif not entry.left:
                done.append(entry)
        if first is None:
            response.outcome = None
            return
        self._link(one, first)
        for batch in done:
            if not (self._late and self._was_late(batch.asked)):
                self._ended(batch.asked, one, "refused" if batch.refused else "answered", append)

    def _remember(self, key: Hashable, one: Event) -> None:
        early = self.early
        found = early.setdefault(key, [])
        if len(found) >= (MAX_EARLY_PER_KEY if self.repeats else 1):
            del found[0]
        found.append((one, one.record.outcome))
        if len(early) > MAX_EARLY:
            del early[next(iter(early))]

    def _keep_early(self, key: Hashable, left: list[tuple[Event, str | None]]) -> None:
        """Of the responses with a key that came before their requests these are left."""
        if left:
            self.early[key] = left
        else:
            del self.early[key]

    def _early(self, key: Hashable, one: Event) -> tuple[Event, str | None] | None:
        """The response that was handed on before this, its request.

        Where keys are used again, one that was captured before the request may answer another one, which this capture lacks;
        it cannot where nothing of the asking side is missing. Of several that are left nobody knows then.
        """
        found = self.early.get(key)
        if found is None:
            return None
        doubt = self.doubt
        lacking = doubt is not None and doubt.gaps[one.rank] >= 0
        if lacking and len(found) > 1 and doubt is not None and len(doubt.doubtful) < MAX_EARLY:
            doubt.doubtful.add(key)
        if _mixed(self, one.rank):
            found = [early for early in found if early[0].first_time >= one.record.time_ns]
        self._keep_early(key, found[1:])
        return found[0] if found else None

    def _append_early(self, one: Event, response: Event, outcome: str, append: Callable[[Event], None]) -> None:
        """The response cannot name its request any more, so the exchange is always written."""
        if outcome == "refused":
            self._refuse(1)
        if not self.handshake.done:
            self.handshake.answered(one.record.name, outcome)
        append(self._exchange(one, response, outcome, None, _moment(one)))

    def _drop_oldest(self, moment: Moment, append: Callable[[Event], None]) -> None:
        key = next(iter(self.open))
        entry = self.open.pop(key)
        if self.doubt is not None:
            self.doubt.forget(key)
        for older in _each(entry):
            self._limit(older, moment, append)

    def _limit(self, older: Any, moment: Moment, append: Callable[[Event], None]) -> None:
        if type(older) is _Batch:
            if older.left < 0:
                return
            self._spare -= max(0, older.left - 1)
            older.left = -1
            # A key that waits behind another request's goes when that one is answered
            keys: Any = older.asked.key
            for key in keys:
                entry = self.open.get(key)
                if entry is older or (type(entry) is deque and len(entry) == 1 and entry[0] is older):
                    del self.open[key]
                    if self.doubt is not None:
                        self.doubt.stale.discard(key)
            older = older.asked
        self.limit_hits += 1
        if not self._end_with_partial(older, moment, append) and not self._was_late(older):
            for tally in self.tallies:
                tally.unanswered += 1
            append(self._exchange(older, None, "unanswered", "limit", moment))


def _on_gap(pairer: Pairer, one: Event, append: Callable[[Event], None]) -> None:
    if pairer.doubt is None:
        pairer.doubt = Doubt()
    pairer.doubt.lose(one, pairer.open if pairer.repeats else None)


def _on_partial_response(pairer: Pairer, one: Event, append: Callable[[Event], None]) -> None:
    entry = pairer.open.get(one.key)
    if entry is None or _is_older(pairer, one, _oldest(entry)):
        one.record.outcome = None
    else:
        pairer._link(one, _oldest(entry))
        pairer.partial[one.key] = one


def _on_optional(pairer: Pairer, one: Event, append: Callable[[Event], None]) -> None:
    pairer.optional[one.key] = one
    if len(pairer.optional) > pairer.limit:
        del pairer.optional[next(iter(pairer.optional))]


_PAIRED_BY: tuple[Callable[[Pairer, Event, Callable[[Event], None]], None], ...] = (
    lambda *_: None,
    Pairer._on_request,
    Pairer._on_response,
    Pairer._on_requests,
    Pairer._on_responses,
    _on_partial_response,
    _on_gap,
    _on_optional,
)
"""By role."""


def _earlies(pairer: Pairer) -> Iterator[Event]:
    return (one for found in pairer.early.values() for one, _ in found)


def _elapsed(asked: Event, response: Event) -> int:
    """Return the time from the last captured byte of a request to the first byte of its response."""
    time_ns: int = asked.record.time_ns
    return response.first_time - time_ns


def latency_of(asked: Event, response: Event) -> int | None:
    """Return the time from the last byte of a request to the first byte of its response; None where that last byte was not captured."""
    return _elapsed(asked, response) if asked.end_captured else None


def _moment(one: Event) -> Moment:
    """When a record was certain, which tells how a request ended."""
    return Moment(*ORDER_KEY(one), one.record.time_ns)


def _moment_of(asked: Event, time_ns: int) -> Moment:
    """A moment that tells of a request, at its place."""
    return Moment(*ORDER_KEY(asked), time_ns)


def asked_since(pairer: Pairer, time_ns: int) -> list[int]:
    """When the open requests were made that are younger."""
    times = [_asked(one).record.time_ns for entry in pairer.open.values() for one in _each(entry)]
    return [one for one in times if one > time_ns]


def waiting(pairer: Pairer, time_ns: int) -> list[tuple[Message, str]]:
    """The requests that have no response by now, and why they will have none if the other side has ended at this time."""
    found = {id(asked): asked for entry in pairer.open.values() for asked in _asked_of(entry)}
    asked = [one for one in found.values() if one.role != REQUEST or one.key not in pairer.partial]
    return [(one.record, "timeout" if pairer.is_late(one) else _why(pairer, one, time_ns, "closed")) for one in asked]


def _why(pairer: Pairer, asked: Event, time_ns: int, reason: str) -> str:
    """Why a request has no response: bytes were lost or skipped, or what it tells itself at this time, or `reason`."""
    why = None if pairer.doubt is None else pairer.doubt.reason(asked)
    if why is None and pairer.unanswered is not None:
        why = pairer.unanswered(asked.record, time_ns)
    return why or reason


def _is_older(pairer: Pairer, one: Event, asked: Event) -> bool:
    """Whether a response that was held back was captured before this request, so that it answers another one."""
    return one.record.time_ns < asked.record.time_ns and _mixed(pairer, asked.rank)


def _mixed(pairer: Pairer, asking: int) -> bool:
    """Whether what was captured before a request of this side may answer another one with its key, which was replaced or which this
    capture lacks."""
    lacking = not pairer.from_start or (pairer.doubt is not None and pairer.doubt.gaps[asking] >= 0)
    return pairer.repeats and (lacking or pairer.reuse == "supersede")


def _asked_of(entry: Any) -> Iterator[Event]:
    """The open requests that stand for a key."""
    for one in _each(entry):
        if type(one) is not _Batch:
            yield one
        elif one.left >= 0:
            yield one.asked
