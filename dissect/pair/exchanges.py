"""How requests end: links between messages, exchanges, and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model import Exchange, Message, Pair
from ..protocols.compare_rules import NO_HANDSHAKE, HandshakeProgress
from ..protocols.protocol import Tally
from ..protocols.records import NONE, ORDER_KEY, Event, rfc3339
from ..units import duration_text

if TYPE_CHECKING:
    from .pairer import Pairer


class Moment(NamedTuple):
    """When it became certain how a request ended, and the place of that record among the others."""

    order: int
    rank: int
    position: int
    time_ns: int


BEHIND = 2
"""The rank of records that the end of a conversation completes: behind all that either side sent."""


def behind(order: int = 0, position: int = 0, time_ns: int = 0) -> Moment:
    """Return the moment behind all that either side sent."""
    return Moment(order, BEHIND, position, time_ns)


def moment_of(one: Event, time_ns: int | None = None) -> Moment:
    """Return the moment of a record; `time_ns`: with this time instead of its own."""
    return Moment(*ORDER_KEY(one), one.record.time_ns if time_ns is None else time_ns)


Link = tuple[Message | Exchange, Event, Message | None]
"""A record, the request and the response it names: records get their numbers only when they are released."""

FAILED = "internal error"


class PairRules(NamedTuple):
    """How the requests of a conversation are paired.

    `reuse`: how a request whose key is still open is handled: "queue", the oldest request is answered first, or "supersede", the older one
    gets no response any more; "never": no other request has the key. `limit`: open requests at most. `every`: write an exchange for
    answered requests, too. `from_start`: the beginning of the conversation was captured. `paired` and `unanswered` are those of `Protocol`.
    """

    reuse: str
    limit: int
    every: bool
    from_start: bool = False
    paired: Callable[[Message, Message], list[str]] | None = None
    unanswered: Callable[[Message, int], str | None] | None = None


class KeyAnswer(NamedTuple):
    """The response to some keys of a request with several; `latency_ns` as in `Message`."""

    request: Message
    keys: list[int]
    response: Message
    refused: bool
    latency_ns: int | None


class PairOutputs(NamedTuple):
    """What pairing fills besides the records, shared by all conversations.

    `tallies` count refused requests and those that a limit ended. `large` gets large messages that may be remembered: once they are
    released, `compact` is called with them. `pairs`, if not None, gets every exchange with its messages; some may never be released.
    `answers`, if not None, gets the responses to the keys of requests with several.
    """

    links: list[Link]
    large: list[tuple[Pairer, Event]]
    tallies: tuple[Tally, ...] = ()
    pairs: list[Pair] | None = None
    answers: list[KeyAnswer] | None = None


class Exchanges:
    """Reports how the requests of one conversation end: as links, exchanges, pairs and counts."""

    def __init__(self, rules: PairRules, outputs: PairOutputs, handshake: HandshakeProgress | None = None) -> None:
        self.reuse, self.limit, self.every, self.from_start, self.paired, self.unanswered = rules
        self.links, self.large, self.tallies, self.pairs, self.answers = outputs
        self.handshake = NO_HANDSHAKE if handshake is None else handshake
        self.untimed = False
        """Packets of the conversation have no time, so there are no durations."""
        self.refused = 0
        """Requests that the current packet refused."""
        self._late: dict[int, Event] = {}
        """Requests reported as not answered in time, by identity. They stay open: a late response must not answer the next one."""

    def prepare(self) -> None:
        self._late = {id(one): one for one in self._late.values()}

    def _link(self, one: Event, asked: Event) -> None:
        response, request = one.record, asked.record
        if not self.handshake.done:
            self.handshake.answered(request.name, response.outcome or "answered")
        elapsed = one.first_time - request.time_ns
        response.latency_ns = self._latency(asked, one)
        if request.stream is not None:
            response.stream = request.stream
        self.links.append((response, asked, None))
        if elapsed < 0:
            response.notes = [*response.notes, "response begins before its request ends"]
        elif not (asked.end_captured or self.untimed):
            at_most = f"the end of its request was not captured: answered after at most {duration_text(elapsed)}"
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
        """Report that a request was answered, at `moment` or that of its response; as a record only if every exchange is wanted."""
        if self.every:
            append(self._exchange(asked, response, outcome, None, moment or moment_of(response)))
        elif self.pairs is not None:
            self.pairs.append(Pair(asked.record, response.record, outcome, None, self._latency(asked, response), None))

    def _latency(self, asked: Event, response: Event) -> int | None:
        """Return the time from the last byte of a request to the first byte of its response, None if either is not known."""
        timed = asked.end_captured and not self.untimed
        return response.first_time - asked.record.time_ns if timed else None

    def _refuse(self, requests: int) -> None:
        self.refused += requests
        for tally in self.tallies:
            tally.refused += requests

    def _exchange(self, asked: Event, response: Event | None, outcome: Any, reason: str | None, moment: Moment) -> Event:
        """Return the record of how a request ended."""
        request = asked.record
        exchange = Exchange(
            1,
            0,
            rfc3339(moment.time_ns),
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
            # A bug ended it: there was no wait
            None if response is not None or reason == FAILED or self.untimed else moment.time_ns - request.time_ns,
        )
        answer = None if response is None else response.record
        self.links.append((exchange, asked, answer))
        if self.pairs is not None:
            self.pairs.append(Pair(request, answer, outcome, reason, exchange.latency_ns, exchange))
        return Event(*moment[:3], exchange, NONE, None, 0)

    def is_late(self, asked: Event) -> bool:
        """Return whether a request was reported as not answered in time."""
        return id(asked) in self._late

    def _was_late(self, asked: Event) -> bool:
        """Return whether a request that ends now was reported before."""
        return self._late.pop(id(asked), None) is not None
