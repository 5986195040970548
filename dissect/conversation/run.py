"""What all conversations of a run share: its counts, what is to be told of bugs, and what is known of records until they are handed on."""

from __future__ import annotations

import msgspec

from dissect.errors import Failure, Report, bug
from dissect.model import Ending, Message, Pair, Record
from dissect.pair import KEYS_COUNTED, Link, Pairer
from dissect.protocols.flow import END
from dissect.protocols.protocol import Tally
from dissect.protocols.records import Emitted
from dissect.tcp.conversations import Conversations

KEY_BYTES = 8 * KEYS_COUNTED
"""The least bytes for each of what a large message adds to the open requests, as they are counted."""


class Counters(Tally):
    """What this run has read and made of it."""

    packets: int = 0
    by_server: int = 0
    """Conversations that the server ended."""
    unconnected: int = 0
    """Connections that were refused or never answered."""
    broken_off: int = 0
    """Handshakes in the middle of which the server ended the conversation."""
    failures: int = 0
    """Bugs of ours that cost something."""


class Reports(list[Report]):
    """What to tell of bugs of ours; whoever tells it empties this."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self._counters = counters
        self._told: set[Report] = set()

    def add(self, report: Report) -> None:
        self._counters.failures += 1
        self.append(report)

    def once(self, report: Report) -> None:
        """For what is done again and again."""
        if report not in self._told:
            self._told.add(report)
            self.add(report)

    def detours(self, tcp: Conversations) -> None:
        """Tell of exceptions that cost nothing, unless they cost the conversation its dissection by now."""
        for failure in tcp.lost:
            self.add(Report(failure.what, "this packet was passed over", failure.number, failure.file))
        for what, conversation in tcp.detours:
            tracked = None if conversation is None else conversation.state
            if tracked is None:
                self.once(Report(what, "nothing is lost, the long way was taken"))
            elif tracked.detour is None and tracked.failure is None:
                tracked.detour = what
                self.add(tracked.report(Failure(what, 0), "nothing is lost, the long way was taken"))
        tcp.lost.clear()
        tcp.detours.clear()


class Outbox(msgspec.Struct):
    """What is known of records until they are handed on, and of those that were what the ones to come need."""

    links: list[Link] = []
    """Filled by pairing: numbers are known only when records are handed on."""
    large: list[tuple[Pairer, Emitted]] = []
    """Filled by pairing: what was handed on need not be remembered whole."""
    pairs: list[Pair] | None = None
    """Filled by pairing, where they are wanted."""
    latest: dict[int, int] = {}
    """By conversation: when the last message came."""
    over: dict[int, int] = {}
    """By conversation: the packet of the first FIN or RST, behind which no message counts for that."""
    ahead: dict[int, Ending] = {}
    """By conversation: how it ended, where that was told before it was over."""
    keys: int = 0
    """What large messages may have added to the open requests, since this was last set to 0."""

    def told_pairs(self) -> list[Pair]:
        """The exchanges that ended with the records handed on since this was called last."""
        found: list[Pair] = []
        if self.pairs:
            late: list[Pair] = []
            for one in self.pairs:
                response = one.response
                told = one.request.number and (response is None or response.number)
                (found if told else late).append(one)
            # Pairers hold this very list
            self.pairs[:] = late
        return found

    def lighten(self, reports: Reports) -> None:
        """Let what was handed on be remembered in less."""
        for pairer, one in self.large:
            if one.record.number:
                self.keys += one.record.size // KEY_BYTES
                try:
                    pairer.lighten(one)
                except Exception as error:
                    reports.once(Report(bug(error), "more is remembered than is needed"))
        self.large.clear()

    def timed(self, emitted: list[Emitted], counters: Counters) -> list[Record]:
        """These records, the endings among them with how long no message had come."""
        latest, over = self.latest, self.over
        records: list[Record] = [one.record for one in emitted]
        if not over and Ending not in set(map(type, records)):
            for record in records:
                # Messages that waited for others are older than these
                if type(record) is Message and record.time_ns > latest.get(record.conversation, 0):
                    latest[record.conversation] = record.time_ns
            return records
        for one in emitted:
            record = one.record
            if type(record) is Message:
                if one.order <= over.get(record.conversation, END) and record.time_ns > latest.get(record.conversation, 0):
                    latest[record.conversation] = record.time_ns
            elif type(record) is Ending:
                last = latest.pop(record.conversation, None)
                over.pop(record.conversation, None)
                record.quiet_ns = None if last is None else record.time_ns - last
                # Here, as rows of what carried nothing are made by ending it once more
                counters.by_server += record.protocol is not None and record.sender == "server"
                counters.unconnected += record.how in ("refused", "no answer")
        return records
