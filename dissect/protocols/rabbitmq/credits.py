"""What the credit of each subscription counts: chunks, or bytes. Servers refuse Credit in the other unit."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..streams import DeclaredStreams
from .layouts import CREDIT_LIMITS, UNITS

_ALONE = " of a single active consumer"

_KINDS = {(version, alone): unit + _ALONE * alone for version, unit in UNITS.items() for alone in (False, True)}
"""The kind of a subscription, by the version of its Subscribe and whether it is a single active consumer."""

_ROLE = "subscription"

WAITING = 16
"""Refused Credits of one subscription that wait for their answers, at most."""


class RefusedCredits(NamedTuple):
    """How many were sent and answered, and the number of the newest Credit, 0 if it is not one of them."""

    sent: int = 0
    answered: int = 0
    newest: int = 0


_NOTHING = RefusedCredits()


class Credits(msgspec.Struct):
    """The units of a connection's subscriptions, and the Credits that servers refuse."""

    complete: bool
    """Everything since the beginning of the conversation was captured."""
    kinds: DeclaredStreams = msgspec.field(default_factory=DeclaredStreams)
    """What each subscription is, in the place of its stream."""
    known: dict[int, str | None] = {}
    """A cache of units, valid after the latest change."""
    mixed: bool = False
    """There was a message with credit in bytes."""
    refused: dict[int, RefusedCredits] = {}
    """By subscription the Credits that servers refuse for their unit, or, except of a single active consumer, as too much: older servers
    accept any number, and answer with the same code only to one that is not active."""

    @property
    def tracked(self) -> bool:
        """Whether every Credit needs a look."""
        return self.mixed or bool(self.refused)

    def ask(self, name: str, ident: int, subscription: int, version: int, alone: bool, order: int) -> None:
        """The client subscribes or unsubscribes, with this correlation id."""
        self.mixed = self.mixed or version > 1
        self.known.clear()
        if name == "Subscribe":
            self.kinds.ask((name, ident), (_ROLE, subscription), _KINDS.get((version, alone)), False, order)
        else:
            self.kinds.delete((name, ident), (_ROLE, subscription), order)

    def answer(self, name: str, ident: int, accepted: bool, order: int) -> None:
        """The server answers."""
        self.known.clear()
        self.kinds.answer((name, ident), _ROLE, None, accepted, order, name != "Subscribe")

    def unit(self, subscription: int, order: int) -> str | None:
        """What its credit counts; None if unknown, also while a Subscribe that may change it has no answer."""
        if order < self.kinds.latest:
            return self._look_up(subscription, order)
        if subscription not in self.known:
            self.known[subscription] = self._look_up(subscription, order)
        return self.known[subscription]

    def _look_up(self, subscription: int, order: int) -> str | None:
        declared = _ROLE, subscription
        kind = self.kinds.at(declared, order)
        asked = [one for one in self.kinds.asked.values() if one.declared == declared and not one.deletes]
        waits = (not self.complete or one.stream != kind for one in asked)
        return None if kind is None or any(waits) else kind.removesuffix(_ALONE)

    def is_alone(self, subscription: int, order: int) -> bool | None:
        """Whether it is a single active consumer; None if unknown."""
        kind = self.kinds.at((_ROLE, subscription), order)
        return None if kind is None else kind.endswith(_ALONE)

    def note(self, subscription: int, version: int, order: int) -> str | None:
        """What to say about a Credit of this version if it is in the wrong unit."""
        unit, given = self.unit(subscription, order) if self.mixed else None, UNITS.get(version)
        if unit is None or unit == given:
            return None
        return f"credit in {given}, but that of subscription {subscription} is in {unit}: servers refuse it"

    def grant(self, subscription: int, version: int, credit: int, order: int) -> int:
        """Return the number that a Credit which servers refuse has in common with their answer, 0 for others."""
        self.mixed = self.mixed or version > 1
        unit = self.unit(subscription, order)
        known = self.refused.get(subscription, _NOTHING)
        if unit is None or (unit == UNITS.get(version) and (credit <= CREDIT_LIMITS[unit] or self.is_alone(subscription, order))):
            if known is not _NOTHING:
                self.refused[subscription] = known._replace(newest=0)
            return 0
        number = known.sent % WAITING + 1
        self.refused[subscription] = RefusedCredits(known.sent + 1, max(known.answered, known.sent + 1 - WAITING), number)
        return number

    def refuse(self, subscription: int, precondition: bool) -> int:
        """Return the number of the Credit that the server refuses; `precondition`: because of its unit, as too much, or as the consumer is
        not active. 0 if nothing in the Credit is a reason for that. Otherwise the subscription does not exist."""
        known = self.refused.get(subscription, _NOTHING)
        if not precondition:
            return known.newest
        if known.answered == known.sent:
            return 0
        self.refused[subscription] = known._replace(answered=known.answered + 1)
        return known.answered % WAITING + 1

    def lose(self) -> None:
        """Bytes are missing: nothing is known of subscriptions and Credits before."""
        self.complete = False
        self.known.clear()
        self.refused.clear()
        self.kinds = DeclaredStreams()
