"""State shared by all conversations of a run: options, counters, reports of bugs, and links of records not yet released."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ..capture.ends import back
from ..errors import Report
from ..layers.frames import FrameTrace
from ..model import ConversationRow, Ending, Options, Pair, Segment
from ..pair.exchanges import KeyAnswer, Link
from ..pair.pairer import KEYS_COUNTED, Pairer
from ..protocols.protocol import Tally
from ..protocols.records import Event
from ..quota import UnpackPool, drop_oldest
from ..tcp.assembler import ACK, SYN, Pool
from ..tcp.sequence import MASK, distance
from ..tcp.signs import SentAgain
from ..tls.manager import TlsManager
from .processes import ProcessTable

if TYPE_CHECKING:
    from ..diagnose.engine import Diagnoser
    from ..diagnose.zero_window import Windows
    from ..entries import Entries
    from .conversation import Conversation

KEY_BYTES = 8 * KEYS_COUNTED
"""Bytes of a large message per unit that it adds to the count of open requests."""


MAX_SIDES, MAX_SENT, MAX_TIMES = 4_096, 1_024, 65_536
"""Limits of `AcknowledgedPairs`: sides, unacknowledged packets of a side, and times."""

EVERY = -1
"""Stands for every file."""


class RunCounters(Tally):
    """Counts of packets, records and endings of a run."""

    __slots__ = ("broken_off", "by_server", "failures", "packets", "unacknowledged", "unconnected")

    def __init__(self) -> None:
        super().__init__()
        self.packets = 0
        self.by_server = 0
        """Conversations that the server ended."""
        self.unconnected = 0
        """Connections that were refused or never answered."""
        self.broken_off = 0
        """Conversations that the server ended during the handshake."""
        self.unacknowledged = 0
        """Conversations in which data was retransmitted and never acknowledged."""
        self.failures = 0
        """Internal errors."""


class Reports(list[Report]):
    """Reports of internal errors; the consumer clears the list."""

    def __init__(self, counters: RunCounters) -> None:
        super().__init__()
        self._counters = counters
        self._reported: set[Report] = set()

    def add(self, report: Report) -> None:
        self._counters.failures += 1
        self.append(report)

    def once(self, report: Report) -> None:
        """Add a report unless it was added before."""
        if report not in self._reported:
            self._reported.add(report)
            self.add(report)


class AcknowledgedPairs(list[Pair]):
    """Exchanges, with the time when the request was acknowledged, which is an upper bound of the network's share of the latency."""

    def __init__(self) -> None:
        super().__init__()
        self.times: OrderedDict[tuple[int, int], int] = OrderedDict()
        """The time when the bytes of a packet were acknowledged, by file and number of the packet."""
        self._sent: OrderedDict[bytes, deque[tuple[int, tuple[int, int]]]] = OrderedDict()
        """Unacknowledged segments by sender: the sequence number behind each, and its packet."""

    def append(self, pair: Pair) -> None:
        """Add a pair; an acknowledgement later than the response is ignored."""
        request = pair.request
        at = self.times.get((request.file, request.packets[1]))
        if at is not None and pair.latency_ns is not None:
            pair.acknowledged_ns = min(at - request.time_ns, pair.latency_ns)
        super().append(pair)

    def feed(self, segment: Segment) -> None:
        """Update with a segment."""
        ends, (_, number, file, time_ns) = segment.ends, segment.mark
        if segment.flags & SYN:
            self._sent.pop(ends, None)
        if segment.wire:
            sent = self._sent.get(ends)
            if sent is None:
                sent = self._sent[ends] = deque(maxlen=MAX_SENT)
                drop_oldest(self._sent, MAX_SIDES)
            sent.append(((segment.seq + segment.wire) & MASK, (file, number)))
        waiting = self._sent.get(back(ends)) if segment.flags & ACK else None
        while waiting and distance(waiting[0][0], segment.ack) >= 0:
            self.times[waiting.popleft()[1]] = time_ns
            drop_oldest(self.times, MAX_TIMES)


class SharedState(msgspec.Struct):
    """The state of one run."""

    options: Options
    tls_manager: TlsManager
    pool: Pool
    counters: RunCounters
    reports: Reports
    unpack_pool: UnpackPool = msgspec.field(default_factory=UnpackPool)
    diagnoser: Diagnoser | None = None
    """Makes findings, if `Options.findings` is set."""
    windows: Windows | None = None
    """Receive windows that were zero, for the diagnosis."""
    links: list[Link] = []
    """Filled by pairing: records get their numbers when they are released."""
    large: list[tuple[Pairer, Event]] = []
    """Filled by pairing: messages to compact when they have been released."""
    pairs: AcknowledgedPairs | None = None
    """Filled by pairing, if not None."""
    answers: list[KeyAnswer] | None = None
    """Filled by pairing, if not None; the consumer clears it."""
    entries: dict[int, Entries] | None = None
    """By conversation its user messages, for a consumer that reads each conversation by itself."""
    early_endings: dict[int, Ending] = {}
    """Endings that were released early, by conversation."""
    keys: int = 0
    """Units that large messages may have added to the open requests since this was last set to 0."""
    broken_off: dict[int, str] = {}
    """The last handshake step, by conversation, of those that the server ended during the handshake with the last records."""
    unacknowledged: dict[tuple[int, str], SentAgain] = {}
    """Data never acknowledged, by conversation and sender, of those that ended with the last records."""
    detecting: dict[int, Conversation] = {}
    """Conversations whose protocol is not known yet."""
    paired: dict[int, Conversation] = {}
    """Conversations with a pairer."""
    refused: Counter[int] = msgspec.field(default_factory=Counter)
    """Refused connections by port, for ports of no known protocol."""
    ends_ns: dict[int, int] = {}
    """Time of the last packet so far, or the current time if live: by file with `--separate`, otherwise under EVERY."""
    suspected: ConversationRow | None = None
    """The first conversation whose forced protocol is wrong: it contains a login of another one (fact `looks_like`)."""
    processes: ProcessTable = msgspec.field(default_factory=ProcessTable)
    """The processes behind conversations, where the capture or the host shows them."""
    traces: dict[int, tuple[list[FrameTrace], list[FrameTrace]]] | None = None
    """For `scrub`: by conversation in WebSocket, where the payloads of each side are."""

    def traces_of(self, index: int) -> tuple[list[FrameTrace], list[FrameTrace]] | None:
        """Return the lists that a conversation in WebSocket fills; None if they are not wanted."""
        return None if self.traces is None else self.traces.setdefault(index, ([], []))

    @contextmanager
    def only(self, index: int) -> Iterator[None]:
        """Hide the state of all other conversations and of the run while one conversation is serialised."""
        mine = (
            "early_endings",
            "entries",
            "broken_off",
            "detecting",
            "diagnoser",
            "paired",
            "processes",
            "refused",
            "suspected",
            "unacknowledged",
            "windows",
        )
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
        """Clear what belongs to the conversations that ended with the last records."""
        self.broken_off.clear()
        self.unacknowledged.clear()

    def end_ns(self, file: int) -> int:
        """Return the end time of the capture to which a packet of this file belongs; 0 if unknown."""
        return self.ends_ns.get(file, self.ends_ns.get(EVERY, 0))

    def released_pairs(self) -> list[Pair]:
        """Return the exchanges of the records released since the last call."""
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
        """Compact the remembered messages that were released."""
        for pairer, one in self.large:
            if one.record.number:
                self.keys += one.record.size // KEY_BYTES
                pairer.compact(one)
        self.large.clear()
