"""Requests and responses of mewbase without a rID, which are paired by their order, and the dates that frames allow."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from ...model import Fault
from ..records import NONE, REQUEST, RESPONSE, Role
from .layouts import FrameTable

NUMBERED: Final = "2016-12-01"
"""The day from which requests carry a rID."""

LOST: Final = "paired by order although bytes were lost: unsure"
MIDDLE: Final = "paired by order although the beginning was not captured: unsure"
CUT: Final = "paired by order although a rID may be missing: unsure"
AHEAD: Final = "paired by order although responses came that nothing had asked for: unsure"
EARLY: Final = "no request for this response was seen before it"

Paired = tuple[Role, tuple[Any, ...] | None, Any]
"""The role and key of a message, and its notes."""


class Dates:
    """The dates of the two programs, which the row of the conversation shows."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.since = self.until = ""

    def narrow(self, since: str, until: str) -> None:
        """Narrow it down: seen first that day, and gone that day."""
        self.since = max(self.since, since)
        if until and (not self.until or until < self.until):
            self.until = until
        known = not self.until or self.since <= self.until
        self.facts["layout"] = f"{self.since}..{self.until}" if known else "of no one date"


class RequestOrder:
    """The requests without rID that are open, and whether their order still shows which is answered."""

    def __init__(self, from_start: bool, limit: int, dates: Dates) -> None:
        self.limit = limit
        self.dates = dates
        self.numbered = False
        """A frame with rID was seen: both programs are of December 2016 or later."""
        self.unsure = "" if from_start else MIDDLE
        """Why pairing by order may be wrong: frames were missed."""
        self.heard = False
        """The server has answered, or may have: what comes now is not the answer to CONNECT."""
        self.waiting: deque[tuple[str, tuple[Any, ...], bool]] = deque()
        """Requests without rID whose answers are due: name, key, and whether a rID may be among what could not be read of it."""
        self.asked = 0
        self.early: tuple[str, tuple[Any, ...]] | None = None
        """A response that was captured before its request: its name and key."""
        self.ahead = False
        """Whether the last response was one."""

    def lose(self) -> None:
        """Frames may have been missed."""
        self.heard = True
        if not self.numbered:
            self.unsure, self.early = LOST, None
            self.waiting.clear()

    def ask(self, side: int, table: FrameTable, fault: Fault | None, notes: Any) -> Paired:
        """A request without rID: CONNECT, or one of a time when answers came in the order of the requests."""
        if table.name != "CONNECT":
            if fault is not None and self.numbered:
                return NONE, None, notes
            if self.numbered or table.since > NUMBERED:
                if fault is None:
                    notes = [*notes, "mandatory field rID is missing"]
            elif fault is None:
                self.dates.narrow("", NUMBERED)
        elif self.unsure == MIDDLE and not self.asked and not self.heard:
            # the beginning after all
            self.unsure = ""
        self.asked += 1
        early = self.early
        if early is not None and (early[0] == "SUBRESPONSE") == (table.name == "SUBSCRIBE"):
            self.early = None
            return REQUEST, early[1], notes
        key = (side, "in order", self.asked)
        self.waiting.append((table.name, key, fault is not None))
        if len(self.waiting) > self.limit:
            self.waiting.popleft()
        return REQUEST, key, notes

    def answer(self, name: str, fault: Fault | None, notes: Any, client: int | None) -> Paired:
        """The request that a response without rID answers."""
        waiting = self.waiting
        greets = bool(waiting) and waiting[0][0] == "CONNECT"
        if self.numbered:
            if fault is not None and not (greets and not self.heard):
                # its rID is among what could not be read
                return NONE, None, notes
            if not greets:
                if fault is None:
                    notes = [*notes, "mandatory field rID is missing"]
                if not waiting:
                    return NONE, None, notes
        if name == "SUBRESPONSE" and any(one[0] == "SUBSCRIBE" for one in waiting):
            # what stands before it will not be answered any more
            while waiting[0][0] != "SUBSCRIBE":
                waiting.popleft()
        elif not waiting or (name == "SUBRESPONSE" and not self.unsure):
            return self._before_request(name, fault, notes, client)
        _, key, cut = waiting.popleft()
        self.ahead = False
        if self.unsure:
            notes = [*notes, self.unsure]
        elif (cut or fault is not None) and not self.numbered and not self.dates.until and not (greets and not self.heard):
            notes = [*notes, CUT]
        return RESPONSE, key, notes

    def _before_request(self, name: str, fault: Fault | None, notes: Any, client: int | None) -> Paired:
        """A response without rID that nothing asked for, yet. One is as if captured in another order; of a second one behind it nobody
        knows what else was not asked."""
        if self.unsure or fault is not None:
            return NONE, None, notes
        if self.early is not None or self.ahead:
            self.unsure, self.early = AHEAD, None
            return NONE, None, notes
        key = client, "before", self.asked
        self.early, self.ahead = (name, key), True
        # Of a capture of one direction there is nothing to say
        return RESPONSE, key, [*notes, EARLY] if self.asked else notes

    def number(self) -> None:
        """A rID was seen, so requests of which one may have been cut off are not answered by order."""
        if not self.numbered:
            self.numbered = True
            self.waiting = deque(one for one in self.waiting if one[0] == "CONNECT" or not one[2])
