"""What all conversations of a run share: what was chosen, its counts, what is to be told of bugs, and what is known of records until they
are handed on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ..capture.ends import back
from ..errors import Report
from ..model import ConversationRow, Ending, Options, Pair, Segment
from ..pair.exchanges import Link
from ..pair.pairer import KEYS_COUNTED, Pairer
from ..protocols.protocol import Tally
from ..protocols.records import Event
from ..tcp.assembler import ACK, SYN, Pool
from ..tcp.sequence import MASK, distance
from ..tcp.signs import SentAgain
from ..tls.manager import TlsManager

if TYPE_CHECKING:
    from ..diagnose.engine import Diagnoser
    from ..diagnose.zero_window import Windows
    from .conversation import Conversation

KEY_BYTES = 8 * KEYS_COUNTED
"""The least bytes for each of what a large message adds to the open requests, as they are counted."""


MAX_SIDES, MAX_SENT, MAX_TIMES = 4_096, 1_024, 65_536
"""So many sides are remembered with so many packets that are not acknowledged yet, and so many times."""

EVERY = -1
"""Stands for every file."""


class RunCounters(Tally):
    """What this run has read and made of it."""

    packets: int = 0
    by_server: int = 0
    """Conversations that the server ended."""
    unconnected: int = 0
    """Connections that were refused or never answered."""
    broken_off: int = 0
    """Handshakes in the middle of which the server ended the conversation."""
    unacknowledged: int = 0
    """Conversations in which data was sent again and again and never acknowledged."""
    failures: int = 0
    """Bugs of ours that cost something."""


class Reports(list[Report]):
    """What to tell of bugs of ours; whoever tells it empties this."""

    def __init__(self, counters: RunCounters) -> None:
        super().__init__()
        self._counters = counters
        self._reported: set[Report] = set()

    def add(self, report: Report) -> None:
        self._counters.failures += 1
        self.append(report)

    def once(self, report: Report) -> None:
        """For what is done again and again."""
        if report not in self._reported:
            self._reported.add(report)
            self.add(report)


class AcknowledgedPairs(list[Pair]):
    """Requests with their responses, in which is noted when the other side acknowledged the requests: how long that takes bounds the
    network's share of a response's latency."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[tuple[int, int], int] = {}
        """By file and number of a packet when all was acknowledged that was sent with it."""
        self._sent: dict[bytes, deque[tuple[int, tuple[int, int]]]] = {}
        """By sender the ends of what it sent, and the packets."""

    def append(self, pair: Pair) -> None:
        """Keep this one; what is acknowledged later than it is answered tells nothing."""
        request = pair.request
        at = self.times.get((request.file, request.packets[1]))
        if at is not None and pair.latency_ns is not None:
            pair.acknowledged_ns = min(at - request.time_ns, pair.latency_ns)
        super().append(pair)

    def feed(self, segment: Segment) -> None:
        """Take this segment in."""
        ends = segment.ends
        if segment.flags & SYN:
            self._sent.pop(ends, None)
        if segment.wire:
            sent = self._sent.get(ends)
            if sent is None:
                if len(self._sent) >= MAX_SIDES:
                    del self._sent[next(iter(self._sent))]
                sent = self._sent[ends] = deque(maxlen=MAX_SENT)
            sent.append(((segment.seq + segment.wire) & MASK, (segment.file, segment.number)))
        waiting = self._sent.get(back(ends)) if segment.flags & ACK else None
        while waiting and distance(waiting[0][0], segment.ack) >= 0:
            self.times[waiting.popleft()[1]] = segment.time_ns
            if len(self.times) > MAX_TIMES:
                del self.times[next(iter(self.times))]


class SharedState(msgspec.Struct):
    """One run over some packets."""

    options: Options
    tls_manager: TlsManager
    pool: Pool
    counters: RunCounters
    reports: Reports
    diagnoser: Diagnoser | None = None
    """Says what went wrong, where `Options.findings` asks for it."""
    windows: Windows | None = None
    """What is known then of sides that had no room."""
    links: list[Link] = []
    """Filled by pairing: numbers are known only when records are handed on."""
    large: list[tuple[Pairer, Event]] = []
    """Filled by pairing: what was handed on need not be remembered whole."""
    pairs: AcknowledgedPairs | None = None
    """Filled by pairing, where they are wanted."""
    early_endings: dict[int, Ending] = {}
    """By conversation: how it ended, where that was told before it was over."""
    keys: int = 0
    """What large messages may have added to the open requests, since this was last set to 0."""
    broken_off: dict[int, str] = {}
    """By conversation, of those that ended last: how far the handshake had come in the middle of which the server left."""
    unacknowledged: dict[tuple[int, str], SentAgain] = {}
    """By conversation and sender, of those that ended last: the data that was never acknowledged."""
    detecting: dict[int, Conversation] = {}
    """Those whose protocol is not known yet."""
    paired: dict[int, Conversation] = {}
    """Those with requests."""
    refused: Counter[int] = msgspec.field(default_factory=Counter)
    """By port the connections that were refused there, where none of our protocols is expected."""
    ends_ns: dict[int, int] = {}
    """When the capture ended, by file where these are separate, else of EVERY: the time of its last packet so far, or that of the clock."""
    suspected: ConversationRow | None = None
    """The first conversation that was read as it was asked for, but holds a login of another protocol: its fact `looks_like`."""

    @contextmanager
    def only(self, index: int) -> Iterator[None]:
        """Without what is known of other conversations than this one, and of the run as a whole, for as long as it is being written."""
        mine = ("early_endings", "broken_off", "detecting", "diagnoser", "paired", "refused", "suspected", "unacknowledged", "windows")
        places: list[tuple[Any, str]] = [(self, name) for name in mine]
        places += [(self.tls_manager, "inside"), (self.tls_manager, "waiting"), (self.pool, "queue")]
        saved = [(whose, name, getattr(whose, name)) for whose, name in places]
        for whose, name, value in saved:
            left: Any = None
            if isinstance(value, dict):
                left = type(value)({index: value[index]} if index in value else {})
            elif isinstance(value, list):
                left = [entry for entry in value if entry[4].index == index]
            setattr(whose, name, left)
        try:
            yield
        finally:
            for whose, name, value in saved:
                setattr(whose, name, value)

    def forget_emitted(self) -> None:
        """Forget what is known of the conversations that ended with the last records."""
        self.broken_off.clear()
        self.unacknowledged.clear()

    def end_ns(self, file: int) -> int:
        """When the capture ended to which a packet of this file belongs; 0 if that is not known."""
        return self.ends_ns.get(file, self.ends_ns.get(EVERY, 0))

    def released_pairs(self) -> list[Pair]:
        """The exchanges that ended with the records handed on since this was called last."""
        found: list[Pair] = []
        if self.pairs:
            late: list[Pair] = []
            for one in self.pairs:
                response = one.response
                released = one.request.number and (response is None or response.number)
                (found if released else late).append(one)
            # Pairers hold this very list
            self.pairs[:] = late
        return found

    def compact(self) -> None:
        """Let what was handed on be remembered in less."""
        for pairer, one in self.large:
            if one.record.number:
                self.keys += one.record.size // KEY_BYTES
                pairer.compact(one)
        self.large.clear()
