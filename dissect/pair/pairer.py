"""The open requests of one conversation, and the responses that answer them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from typing import Any

from msgspec.structs import replace

from ..model import Exchange, Message
from ..protocols.compare_rules import HandshakeProgress
from ..protocols.records import (
    GAP,
    HANDED_ON,
    LARGE,
    OPTIONAL_RESPONSE,
    ORDER_KEY,
    PARTIAL_RESPONSE,
    REQUEST,
    REQUESTS,
    RESPONSES,
    Event,
)
from ..quota import drop_oldest
from .doubt import UNSURE, Doubt, add_note
from .exchanges import FAILED, Exchanges, KeyAnswer, Moment, PairOutputs, PairRules, moment_of
from .open_requests import RequestBatch, entries_of, oldest_of, open_in, request_of

KEYS = "keys"
"""The field of a compacted request that replaces its lists: its keys."""

KEYS_PER_REQUEST = 64
"""Keys per request that may be open on average at the limit of open requests."""

KEYS_COUNTED = 16
"""Keys that count as one more request."""

MAX_EARLY = 1_024
"""Keys of unmatched responses that are remembered, for requests still held back by a gap or captured late."""

MAX_EARLY_PER_KEY = 16
"""Such responses with one key, if keys are used again."""

MAX_TEXT = 64
"""Characters of texts that a compacted message keeps; notes may need them."""


class Pairer(Exchanges):
    """The open requests of one conversation."""

    def __init__(self, rules: PairRules, outputs: PairOutputs, handshake: HandshakeProgress | None = None) -> None:
        super().__init__(rules, outputs, handshake)
        self.open: dict[Hashable, Any] = {}
        """By key: a request, a `RequestBatch`, or a queue of these."""
        self.optional: dict[Hashable, Event] = {}
        """An `OrderedDict` once there is one: see `drop_oldest`."""
        self.early: dict[Hashable, list[tuple[Event, str | None]]] = {}
        """By key: responses that came before their request, with their outcome; they were released unpaired."""
        self.partial: dict[Hashable, Event] = {}
        """By key: the latest partial response; the final one may never come."""
        self.repeats = self.reuse == "queue"
        """Whether keys may be used again, or one was."""
        self.doubt: Doubt | None = None
        """Set at the first gap."""
        self.limit_hits = 0
        self.left = 0
        """Requests without a response at the end."""
        self.out = HANDED_ON
        """The records of the current packet, so far."""
        self._spare = 0
        """Keys in `open` beyond one per request: the limit counts requests."""

    def process(self, emitted: list[Event]) -> list[Event]:
        """Pair these records, in their order; return them with the exchanges that became certain."""
        out: list[Event] = []
        self.out, self.refused, append = out, 0, out.append
        for one in emitted:
            append(one)
            role = one.role
            if role:
                self.pair(one, append)
                if role != GAP and one.record.size >= LARGE:
                    self.large.append((self, one))
        return out

    def compact(self, one: Event) -> None:
        """If a released message is remembered, keep only what may be needed again."""
        role, keys = one.role, one.key
        if role == REQUEST:
            entry = self.open.get(keys)
            if entry is one:
                self.open[keys] = _compacted(one)
            elif type(entry) is deque:
                # If it is there, it is among the last
                for index in range(len(entry) - 1, -1, -1):
                    if entry[index] is one:
                        entry[index] = _compacted(one)
                        break
        elif role == REQUESTS:
            for key in keys:  # type: ignore[attr-defined]
                entry = self.open.get(key)
                for batch in () if entry is None else entries_of(entry):
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
            if asked is not None and self.doubt is not None and self.reuse != "never" and max(self.doubt.gaps) >= asked.order:
                add_note(one, UNSURE)
        if asked is None:
            self._remember(key, one)
            one.record.outcome = None
            return
        # It stays open until its response is reported, as that may raise an exception
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
            self._drop_oldest(moment_of(one), append)

    @property
    def reads(self) -> bool:
        """Whether fields of open requests are needed again."""
        return self.paired is not None or self.unanswered is not None

    def remembered(self) -> Iterator[Message]:
        """Yield the released messages that are remembered."""
        for entry in self.open.values():
            for one in entries_of(entry):
                yield request_of(one).record
        for asked in self.optional.values():
            yield asked.record
        for answer in _earlies(self):
            yield answer.record
        for part in self.partial.values():
            yield part.record

    def weight(self) -> int:
        """Return the number of open requests and unpaired messages; KEYS_COUNTED keys count as one more request."""
        entries = sum([len(entry) if type(entry) is deque else 1 for entry in self.open.values()])
        early = sum(map(len, self.early.values()))
        return entries - self._spare + entries // KEYS_COUNTED + len(self.optional) + early + len(self.partial)

    def orders(self) -> list[int]:
        """Return the order of each of these."""
        found = [oldest_of(entry).order for entry in self.open.values()]
        return found + [one.order for one in self.optional.values()] + [one.order for one in _earlies(self)]

    def drop(self, until: int, time_ns: int) -> list[Event]:
        """Forget those of the packet `until` and before, as there are too many; `time_ns`: that of their exchanges."""
        out: list[Event] = []
        while self.open:
            asked = oldest_of(next(iter(self.open.values())))
            if asked.order > until:
                break
            self._drop_oldest(moment_of(asked, time_ns), out.append)
        for key in [key for key, one in self.optional.items() if one.order <= until]:
            del self.optional[key]
        for key in [key for key, found in self.early.items() if found[0][0].order <= until]:
            self._keep_early(key, [found for found in self.early[key] if found[0].order > until])
        return out

    def expire(self, now_ns: int, patience_ns: int) -> list[Event]:
        """Report requests older than `patience_ns` as unanswered, once each; live only."""
        out: list[Event] = []
        late = self._late
        before_ns = now_ns - patience_ns
        for entry in self.open.values():
            for one in entries_of(entry):
                asked = request_of(one)
                if asked.record.time_ns > before_ns:
                    break
                if id(asked) not in late and not (type(one) is RequestBatch and one.left < 0):
                    if asked.role == REQUEST and asked.key in self.partial:
                        continue
                    late[id(asked)] = asked
                    time_ns = asked.record.time_ns + patience_ns
                    out.append(self._exchange(asked, None, "unanswered", "timeout", moment_of(asked, time_ns)))
        return out

    def close(self, reason: str, moment: Moment) -> list[Event]:
        """End every open request at `moment`: as answered after a partial response, otherwise as unanswered, because of a gap, of its
        own fields (a deadline), or for `reason` ("closed", "capture ended")."""
        out: list[Event] = []
        unanswered = 0
        for asked in sorted(open_in(self.open.values()), key=ORDER_KEY):
            if not self.handshake.done:
                self.handshake.unanswered(asked.record.name)
            if self.is_late(asked):
                self.left += 1
            elif not (self.partial and self._end_with_partial(asked, moment, out.append)):
                out.append(self._exchange(asked, None, "unanswered", _why(self, asked, moment.time_ns, reason), moment))
                unanswered += 1
        self.left += unanswered
        for tally in self.tallies:
            tally.unanswered += unanswered
        return out

    def fail(self, unreleased: list[Event]) -> list[Event]:
        """End pairing after an exception, with a packet whose records (`unreleased` and `out`) are not released: return the ends of open
        requests, and of those whose end is not released, except for requests that are not released either."""
        gone = {id(one.record) for one in (*unreleased, *self.out)}
        answered = [asked for record, asked, _ in self.links if id(record) in gone]
        self.links[:] = [link for link in self.links if id(link[0]) not in gone]
        if self.out is not HANDED_ON:
            self._refuse(-self.refused)
            for tally in self.tallies:
                tally.unanswered -= sum(type(one.record) is Exchange and one.record.outcome == "unanswered" for one in self.out)
        without = {id(one.record) for one in unreleased}
        found = {id(asked.record): asked for asked in open_in(self.open.values()) + answered if id(asked) not in self._late}
        self._forget()
        self.handshake.midway = False
        ended = sorted([asked for key, asked in found.items() if key not in without], key=ORDER_KEY)
        self.left = len(ended)
        for tally in self.tallies:
            tally.unanswered += self.left
        return [self._exchange(asked, None, "unanswered", FAILED, moment_of(asked)) for asked in ended]

    def _forget(self) -> None:
        self.open.clear()
        self.early.clear()
        self._late.clear()
        self.optional.clear()
        self.partial.clear()
        self.doubt = None

    def _end_with_partial(self, asked: Event, moment: Moment, append: Callable[[Event], None]) -> bool:
        """Report the last partial response of a request that ends; return whether there was one."""
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
                self._limit(self.open[key].popleft(), moment_of(one), append)
            return
        self.repeats = True
        del self.open[key]
        self.open[key] = one
        if self.doubt is not None:
            self.doubt.forget(key)
        asked = oldest_of(older)
        if not self._end_with_partial(asked, moment_of(one), append) and not self._was_late(asked):
            append(self._exchange(asked, None, "superseded", None, moment_of(one)))

    def _on_requests(self, one: Event, append: Callable[[Event], None]) -> None:
        opened = self.open
        keys: Any = one.key
        if not keys:
            return
        batch = RequestBatch(one, len(keys))
        if self.early:
            early = [(key, self._early(key, one)) for key in keys]
            keys = [key for key, found in early if found is None]
            answers = [(key, *found) for key, found in early if found is not None]
            if self.answers is not None:
                for key, response, outcome in answers:
                    self.answers.append(KeyAnswer(one.record, [key], response.record, outcome == "refused", self._latency(one, response)))
            batch.left = len(keys)
            batch.refused = any(outcome == "refused" for _, _, outcome in answers)
            if batch.refused and keys:
                self._refuse(1)
            if answers and not keys:
                self._append_early(one, answers[-1][1], "refused" if batch.refused else "answered", append)
        new = dict.fromkeys(keys, batch)
        if len(new) == len(keys) and opened.keys().isdisjoint(new):
            opened.update(new)
        else:
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
        while len(self.open) - self._spare > self.limit or len(self.open) > KEYS_PER_REQUEST * self.limit:
            self._drop_oldest(moment_of(one), append)

    def _on_responses(self, one: Event, append: Callable[[Event], None]) -> None:
        opened = self.open
        done: list[RequestBatch] = []
        keys: Any = one.key
        response = one.record
        refused = response.outcome == "refused"
        first: Event | None = None
        batch: RequestBatch | None = None
        together: list[int] = []
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
                if self.answers is not None:
                    together = []
                    self.answers.append(KeyAnswer(entry.asked.record, together, response, refused, self._latency(entry.asked, one)))
                if first is None or ORDER_KEY(entry.asked) < ORDER_KEY(first):
                    first = entry.asked
                if refused and not entry.refused:
                    entry.refused = True
                    self._refuse(1)
            together.append(key)
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
        drop_oldest(early, MAX_EARLY)

    def _keep_early(self, key: Hashable, left: list[tuple[Event, str | None]]) -> None:
        """Keep only these of the early responses with a key."""
        if left:
            self.early[key] = left
        else:
            del self.early[key]

    def _early(self, key: Hashable, one: Event) -> tuple[Event, str | None] | None:
        """Return the response that was released before this request, with its outcome; None if there is none.

        If keys are used again and bytes of the requesting side are missing, a response captured before the request may answer a lost one.
        If several are left then, the key is doubtful.
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
        """Report a request answered by an earlier response, which cannot name it any more: always as an exchange."""
        if outcome == "refused":
            self._refuse(1)
        if not self.handshake.done:
            self.handshake.answered(one.record.name, outcome)
        append(self._exchange(one, response, outcome, None, moment_of(one)))

    def _drop_oldest(self, moment: Moment, append: Callable[[Event], None]) -> None:
        if type(self.open) is dict:
            # See `drop_oldest`; most conversations never have that many
            self.open = OrderedDict(self.open)
        key = next(iter(self.open))
        entry = self.open.pop(key)
        if self.doubt is not None:
            self.doubt.forget(key)
        for older in entries_of(entry):
            self._limit(older, moment, append)

    def _limit(self, older: Any, moment: Moment, append: Callable[[Event], None]) -> None:
        if type(older) is RequestBatch:
            if older.left < 0:
                return
            self._spare -= max(0, older.left - 1)
            older.left = -1
            # A key behind another request's is removed when that one is answered
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


def _compacted(one: Event) -> Event:
    message = copy(one.record)
    message.fields = {name: value for name, value in message.fields.items() if _is_small(value)}
    if one.role == REQUESTS:
        message.fields[KEYS] = one.key
    message.raw = message.spans = None
    return replace(one, record=message)


def _is_small(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)


def _on_gap(pairer: Pairer, one: Event, append: Callable[[Event], None]) -> None:
    if pairer.doubt is None:
        pairer.doubt = Doubt()
    pairer.doubt.lose(one, pairer.open if pairer.repeats else None)


def _on_partial_response(pairer: Pairer, one: Event, append: Callable[[Event], None]) -> None:
    entry = pairer.open.get(one.key)
    if entry is None or _is_older(pairer, one, oldest_of(entry)):
        one.record.outcome = None
    else:
        pairer._link(one, oldest_of(entry))
        pairer.partial[one.key] = one


def _on_optional(pairer: Pairer, one: Event, append: Callable[[Event], None]) -> None:
    found = pairer._early(one.key, one) if pairer.early and pairer.reuse == "never" else None
    # One that was captured before answers an earlier copy
    if found is not None and found[0].first_time >= one.record.time_ns:
        pairer._append_early(one, found[0], found[1] or "answered", append)
        return
    if type(pairer.optional) is dict:
        pairer.optional = OrderedDict()
    pairer.optional[one.key] = one
    drop_oldest(pairer.optional, pairer.limit)


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
"""How a record is paired, by role."""


def _earlies(pairer: Pairer) -> Iterator[Event]:
    return (one for found in pairer.early.values() for one, _ in found)


def asked_since(pairer: Pairer, time_ns: int) -> list[int]:
    """Return the times of open requests later than `time_ns`."""
    times = [request_of(one).record.time_ns for entry in pairer.open.values() for one in entries_of(entry)]
    return [one for one in times if one > time_ns]


def waiting(pairer: Pairer, time_ns: int) -> list[tuple[Message, str]]:
    """Return the requests without a response, with the reason if the other side ended at this time."""
    asked = [one for one in open_in(pairer.open.values()) if one.role != REQUEST or one.key not in pairer.partial]
    return [(one.record, "timeout" if pairer.is_late(one) else _why(pairer, one, time_ns, "closed")) for one in asked]


def _why(pairer: Pairer, asked: Event, time_ns: int, reason: str) -> str:
    """Return why a request has no response: a gap, its own fields at this time, or `reason`."""
    why = None if pairer.doubt is None else pairer.doubt.reason(asked)
    if why is None and pairer.unanswered is not None:
        why = pairer.unanswered(asked.record, time_ns)
    return why or reason


def _is_older(pairer: Pairer, one: Event, asked: Event) -> bool:
    """Return whether a response was captured before this request, so that it answers another one."""
    return one.record.time_ns < asked.record.time_ns and _mixed(pairer, asked.rank)


def _mixed(pairer: Pairer, asking: int) -> bool:
    """Return whether a response captured before a request of this side may answer another request with its key, which was replaced or is
    missing."""
    lacking = not pairer.from_start or (pairer.doubt is not None and pairer.doubt.gaps[asking] >= 0)
    return pairer.repeats and (lacking or pairer.reuse == "supersede")
