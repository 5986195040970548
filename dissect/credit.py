"""The credit of subscriptions: what a server may still send on each, and when it could send nothing. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from .model import Message
from .protocols.protocol import STALL_NS, Traffic
from .protocols.records import rfc3339
from .quota import drop_oldest

CREDITED = 65_536
"""Subscriptions whose credit is tracked, and conversations with them."""

ASKED = 4_096
"""Grants of credit remembered until the server may have refused them."""

SUBSCRIPTIONS, STALLS = 1_000, 100
"""Limits: subscriptions with a row, and stalls that a row lists."""

COURSES, CHANGES = 20, 1_000
"""Subscriptions whose credit is kept over time, and places of each; with more, every second one is kept."""


class Grant(NamedTuple):
    """Credit that a client grants. `begins`: with a new subscription, which is not `counted` before it is accepted if there is one with its
    id."""

    subscription: Subscription
    credit: int
    begins: bool
    counted: bool


class Stall(msgspec.Struct):
    """A time in which a subscription had no credit."""

    time: str
    time_ns: int
    duration_ns: int
    side: Literal["client"]
    waiting: bool | None
    ended: bool


class SubscriptionRow(msgspec.Struct, tag_field="record", tag="subscription"):
    """The credit of a subscription."""

    v: int
    time: str
    time_ns: int
    conversation: int
    protocol: str
    stream: str | None
    subscription: int
    unit: str
    granted: int
    used: int
    chunks: int
    outstanding: int | None
    complete: bool
    stalls: int
    stalled_ns: int
    longest_ns: int
    listed: list[Stall]


class Course(msgspec.Struct):
    """The credit of a subscription over time: the time, the credit left, and whether that was after a chunk. `every`: the number of changes
    from one place to the next."""

    row: SubscriptionRow
    places: list[tuple[int, int, bool]] = []
    every: int = 1
    changes: int = 0

    def add(self, time_ns: int, left: int, delivered: bool) -> None:
        """The credit has changed."""
        if self.row.complete and self.changes % self.every == 0:
            self.places.append((time_ns, left, delivered))
            if len(self.places) >= CHANGES:
                del self.places[1::2]
                self.every *= 2
        self.changes += 1


class Subscription(msgspec.Struct):
    """What the server may still send, and since when nothing."""

    row: SubscriptionRow
    left: int
    empty_ns: int | None = None
    """When the credit was used up."""
    waiting: bool | None = None
    """Whether the server had reported more by then."""
    over: Stall | None = None
    """The stall that a Credit has ended unless it is refused."""
    lists: int = 0
    """The number of stalls that the row lists at most."""
    course: Course | None = None
    active: bool = True
    """False of a single active consumer that is not the active one: that it has no credit makes no difference."""

    def activate(self, active: bool, time_ns: int) -> Stall | None:
        """The server makes it the active consumer, or another one; return the stall that this ends."""
        self.active = active
        if active:
            self.drained(time_ns)
            return None
        return self._break(time_ns)

    def deliver(self, credit: int, time_ns: int, waiting: bool | None) -> None:
        """The server delivers a chunk; `waiting`: whether it has more."""
        # Servers before RabbitMQ 3.11 know no single active consumers
        self.active = True
        self._count()
        self.row.chunks += 1
        self.row.used -= credit
        self.left += credit
        if self.left < 0 and self.row.unit == "chunks":
            # Servers never do: there is credit that the capture does not show
            self.doubt()
        if self.empty_ns is None:
            self.waiting = waiting
            self.drained(time_ns)

    def grant(self, credit: int, time_ns: int) -> Stall | None:
        """The client grants more; return the stall that this ends."""
        self.row.granted += credit
        self.left += credit
        if self.left > 0 and self.empty_ns is not None:
            self.over, self.empty_ns = self._stall(time_ns, True), None
            return self.over
        self.drained(time_ns)
        return None

    def withdraw(self, credit: int, time_ns: int) -> None:
        """The server refused a grant."""
        self.row.granted -= credit
        self.left -= credit
        if self.left <= 0 and self.over is not None:
            self.empty_ns, self.over = self.over.time_ns, None
        self.drained(time_ns)

    def drained(self, time_ns: int) -> None:
        """Note the time if there is no credit."""
        if self.left <= 0 and self.empty_ns is None and self.row.complete and self.active:
            self.empty_ns = time_ns

    def doubt(self) -> None:
        """Something is missing: what credit there is, is unknown from now on."""
        self.row.complete, self.empty_ns, self.over = False, None, None

    def end(self, time_ns: int) -> Stall | None:
        """It ends, or what was captured of it does; return the stall that this ends."""
        last = self._break(time_ns)
        self.row.outstanding = self.left if self.row.complete else None
        if self.course is not None and self.row.complete:
            self.course.places.append((time_ns, self.left, False))
        return last

    def _break(self, time_ns: int) -> Stall | None:
        """End a stall, though no Credit does; return it."""
        self._count()
        if self.empty_ns is None:
            return None
        last = self.over = self._stall(time_ns, False)
        self.empty_ns = None
        self._count()
        return last

    def _stall(self, until_ns: int, ended: bool) -> Stall:
        assert self.empty_ns is not None
        begin_ns = self.empty_ns
        return Stall(rfc3339(begin_ns), begin_ns, max(0, until_ns - begin_ns), "client", self.waiting, ended)

    def _count(self) -> None:
        row, stall = self.row, self.over
        self.over = None
        if stall is not None and stall.duration_ns >= STALL_NS:
            row.stalls += 1
            row.stalled_ns += stall.duration_ns
            row.longest_ns = max(row.longest_ns, stall.duration_ns)
            if len(row.listed) < self.lists:
                row.listed.append(stall)


OnStall = Callable[[Subscription, Stall], None]


class CreditAccounts:
    """The credit of the subscriptions of a run."""

    def __init__(self, draws: bool = False, on_stall: OnStall | None = None) -> None:
        """`draws`: keep the credit of the first subscriptions over time. `on_stall` gets each stall when a Credit ends it, though the
        server may refuse that later, or when its subscription ends."""
        self.outstanding: dict[str, int] = {}
        """The sum of the credit left, by unit."""
        self.left_out = 0
        """Subscriptions without a row, because of the limit."""
        self._draws, self._on_stall = draws, on_stall
        self._open: OrderedDict[int, dict[int, Subscription]] = OrderedDict()
        """By conversation and id."""
        self._tracked = 0
        self._lossy: OrderedDict[int, None] = OrderedDict()
        """Conversations of which something is missing."""
        self._files: dict[int, int] = {}
        """The file of the last message of conversations with subscriptions."""
        self._listed: dict[int, Subscription] = {}
        """By identity those with a row, in the order in which they began."""
        self._asked: dict[int, Grant] = {}
        """By message number the last grants of credit."""

    def add(self, message: Message, traffic: Traffic | None) -> Subscription | None:
        """Count a message; return the subscription whose credit it changes, if that is not new."""
        conversation, changed = message.conversation, None
        if message.request in self._asked:
            changed = self._answered(self._asked.pop(message.request), message.outcome == "refused", message.time_ns)
        if message.fault is not None:
            self.lose(conversation)
        if traffic is not None:
            if traffic.subscription is not None:
                changed = self._give(message, traffic.subscription, traffic)
            if traffic.ends is not None:
                self._end_all(conversation, traffic.ends, message.time_ns)
        if conversation in self._open:
            self._files[conversation] = message.file
        return changed

    def lose(self, conversation: int) -> None:
        """Something of this conversation is missing, which may be credit."""
        self._lossy[conversation] = None
        drop_oldest(self._lossy, CREDITED)
        for one in self._open.get(conversation, {}).values():
            one.doubt()

    def end(self, conversation: int, time_ns: int) -> None:
        """The conversation ends."""
        self._forget(conversation, time_ns)
        self._lossy.pop(conversation, None)

    def finish(self, end_ns: Callable[[int], int]) -> None:
        """No more messages come: open subscriptions end at the end of the capture, a function of the file."""
        for conversation, file in list(self._files.items()):
            self._forget(conversation, end_ns(file))

    def rows(self) -> list[SubscriptionRow]:
        """Return the rows of subscriptions in the order in which they began."""
        return [one.row for one in self._listed.values()]

    def courses(self) -> list[Course]:
        """Return the credit of the first subscriptions over time."""
        return [one.course for one in self._listed.values() if one.course is not None]

    def _give(self, message: Message, subscription: int, traffic: Traffic) -> Subscription | None:
        time_ns = message.time_ns
        if traffic.credit is None:
            self._set(message.conversation, subscription, None, time_ns)
            return None
        known = self._open.get(message.conversation, {}).get(subscription)
        if traffic.begins:
            ((unit, credit),) = traffic.credit.items()
            made = Subscription(self._row(message, subscription, unit, credit), credit, active=traffic.active is not False)
            if known is None:
                self._set(message.conversation, subscription, made, time_ns)
            self._ask(message.number, Grant(made, credit, True, known is None))
            return None
        if known is not None and traffic.active is not None:
            self._report(known, known.activate(traffic.active, time_ns))
        if known is None or known.row.unit not in traffic.credit:
            return None
        credit, before = traffic.credit[known.row.unit], known.left
        if message.sender == "client":
            self._report(known, known.grant(credit, time_ns))
            self._ask(message.number, Grant(known, credit, False, True))
        else:
            more = None if traffic.offset is None or traffic.committed is None else traffic.committed > traffic.offset
            known.deliver(credit, time_ns, more)
        self._change(known, before, time_ns, message.sender != "client")
        return known

    def _row(self, message: Message, subscription: int, unit: str, credit: int) -> SubscriptionRow:
        conversation, complete = message.conversation, message.conversation not in self._lossy
        about = message.time, message.time_ns, conversation, message.protocol, message.stream, subscription, unit
        return SubscriptionRow(1, *about, credit, 0, 0, None, complete, 0, 0, 0, [])

    def _report(self, one: Subscription, stall: Stall | None) -> None:
        if self._on_stall is not None and stall is not None and stall.duration_ns >= STALL_NS:
            self._on_stall(one, stall)

    def _ask(self, number: int, grant: Grant) -> None:
        self._asked[number] = grant
        drop_oldest(self._asked, ASKED)

    def _answered(self, grant: Grant, refused: bool, time_ns: int) -> Subscription | None:
        """Take back a grant that the server refused, or count that of a new subscription with the id of another one; return the
        subscription whose credit is taken back."""
        made = grant.subscription
        conversation, ident = made.row.conversation, made.row.subscription
        if not grant.begins:
            if refused and self._open.get(conversation, {}).get(ident) is made:
                before = made.left
                made.withdraw(grant.credit, time_ns)
                self._change(made, before, time_ns, False)
                return made
        elif not refused and not grant.counted:
            self._set(conversation, ident, made, time_ns)
        elif not refused:
            made.drained(time_ns)
        elif grant.counted:
            self._set(conversation, ident, None, time_ns)
            if self._listed.pop(id(made), None) is None:
                self.left_out -= 1
        return None

    def _set(self, conversation: int, subscription: int, made: Subscription | None, time_ns: int) -> None:
        """A subscription ends; `made`: a new one with its id begins."""
        known = self._open.get(conversation, {}).pop(subscription, None)
        if known is not None:
            self._tracked -= 1
            self._report(known, known.end(time_ns))
            self._count(known.row.unit, -max(0, known.left))
        if made is None:
            return
        self._open.setdefault(conversation, {})[subscription] = made
        self._count(made.row.unit, max(0, made.left))
        self._tracked += 1
        if len(self._listed) < SUBSCRIPTIONS:
            self._listed[id(made)] = made
            made.lists = STALLS
            if self._draws and len(self._listed) <= COURSES:
                made.course = Course(made.row)
                made.course.add(time_ns, made.left, False)
        else:
            self.left_out += 1
        if max(len(self._open), self._tracked) > CREDITED:
            oldest = next(iter(self._open))
            self.lose(oldest)
            self._forget(oldest, time_ns)

    def _change(self, one: Subscription, before: int, time_ns: int, delivered: bool) -> None:
        self._count(one.row.unit, max(0, one.left) - max(0, before))
        if one.course is not None:
            one.course.add(time_ns, one.left, delivered)

    def _count(self, unit: str, credit: int) -> None:
        self.outstanding[unit] = self.outstanding.get(unit, 0) + credit

    def _end_all(self, conversation: int, stream: str, time_ns: int) -> None:
        """Those of a stream end."""
        for subscription, one in list(self._open.get(conversation, {}).items()):
            if one.row.stream == stream:
                self._set(conversation, subscription, None, time_ns)

    def _forget(self, conversation: int, time_ns: int) -> None:
        for subscription in list(self._open.get(conversation, {})):
            self._set(conversation, subscription, None, time_ns)
        self._open.pop(conversation, None)
        self._files.pop(conversation, None)
