"""Connections that never carried a byte, which are kept as their packets: of refused ones a capture may have millions."""

from __future__ import annotations

from collections.abc import Iterator

from dissect.conversation.reading import Reading
from dissect.conversation.run import Reports
from dissect.conversation.tracked import Tracked
from dissect.errors import Report, bug
from dissect.model import ConversationRow
from dissect.protocols.records import PLACE, Emitted
from dissect.tcp.conversations import END, Conversations, Delivery, is_between


class Unused:
    """Tells how they ended, and their rows."""

    def __init__(self, tcp: Conversations, reading: Reading, reports: Reports) -> None:
        self._tcp = tcp
        self._reading = reading
        self._endings = reading.endings
        self._reports = reports

    def over(self, begin: int) -> list[Delivery]:
        """Those to known ports that have ended since the packet `begin`."""
        return [one for key in self._tcp.bare_over() if (one := self._known(key)) is not None and one.closed in range(begin, END)]

    def endings(self) -> Iterator[Emitted]:
        """How the others of these ended, by their last packets."""
        for key in self._tcp.bare_keys():
            delivery = self._known(key)
            if delivery is not None and delivery.closed == END:
                yield from self._endings.of(delivery.conversation.state, END)

    def ends(self, ports: frozenset[int]) -> list[Emitted]:
        """For the diagnosis alone, those to these ports, on which others spoke a protocol of ours."""
        keys = [key for _, key in self._tcp.bare() if is_between(key, ports)] if ports else []
        found = [self._tcp.bare_delivery(key).conversation for key in keys]
        return sorted([self._endings.closed(Tracked(one, client=0 if one.syn else None), END) for one in found], key=PLACE)

    def row(self, key: bytes, number: int) -> list[ConversationRow]:
        """The row of one, if it can be made."""
        try:
            tracked = Tracked.of(self._tcp.bare_delivery(key).conversation)
            self._reading.begin(tracked)
            self._reading.close(tracked, END)
            return [tracked.row(number)]
        except Exception as error:
            self._reports.once(Report(bug(error), "the row of a conversation is missing"))
            return []

    def _known(self, key: bytes) -> Delivery | None:
        """One to a known port."""
        try:
            if not is_between(key, self._endings.ports):
                return None
            delivery = self._tcp.bare_delivery(key)
            delivery.conversation.state = Tracked(delivery.conversation, client=0)
        except Exception as error:
            self._reports.once(Report(bug(error), "the ending of a connection is missing"))
            return None
        return delivery
