"""The conversations of a run as a whole: their rows, what tells their packets, and what is left of those that were forgotten."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import get_type_hints

import msgspec

from dissect.capture.pick import Flow
from dissect.conversation.reading import Reading
from dissect.conversation.run import Outbox, Reports
from dissect.conversation.tracked import Tracked
from dissect.conversation.unused import Unused
from dissect.errors import Failure, Report, bug
from dissect.model import ConversationRow, Options
from dissect.protocols import PROTOCOLS
from dissect.tcp.conversations import Conversations

RELATED = frozenset(protocol.name for protocol in PROTOCOLS if protocol.relate is not None)
"""Protocols whose conversations tell something of each other: their rows are complete when all are there."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[(int, int, *get_type_hints(ConversationRow).values())]).decode  # type: ignore[misc]


class Past(msgspec.Struct):
    """What is still known of conversations whose rows were dropped; live only."""

    conversations: int = 0
    limit_hits: int = 0
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Those of no known protocol that carried bytes, by what they are."""
    refused: Counter[int] = msgspec.field(default_factory=Counter)
    """Those that were refused, by port."""


class Packed:
    """Rows in as few bytes as they take, by conversation. Their numbers are given when they are asked for."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str | None, bytes]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: ConversationRow, order: int, file: int) -> None:
        """Keep the row of a conversation whose first packet is `order`, in this file."""
        self._rows[row.conversation] = row.protocol, _encode((order, file, *msgspec.structs.astuple(row)))

    def protocols(self) -> dict[int, str | None]:
        """What the conversations speak."""
        return {index: protocol for index, (protocol, _) in self._rows.items()}

    def row(self, index: int, number: int) -> ConversationRow:
        """The row of one."""
        row = ConversationRow(*_decode(self._rows[index][1])[2:])
        row.number = number
        return row

    def flow(self, index: int, separate: bool) -> Flow:
        """What tells the packets of one."""
        order, file, *values = _decode(self._rows[index][1])
        return Flow(index, ConversationRow(*values).endpoints, order, file if separate else 0)


class Memory:
    """Keeps what is known of conversations, within the limit on how many."""

    def __init__(
        self,
        options: Options,
        bare: bool,
        conversations: list[Tracked],
        past: Past,
        tcp: Conversations,
        reading: Reading,
        outbox: Outbox,
        reports: Reports,
    ) -> None:
        """`bare`: the capture has an end, so the rows of those that are forgotten are kept for it, `packed`; else `past` counts them."""
        self.packed = Packed()
        self.unused = Unused(tcp, reading, reports)
        self._options = options
        self._most = options.tracked_limit if bare else None
        self._conversations = conversations
        self._past = past
        self._tcp = tcp
        self._reading = reading
        self._outbox = outbox
        self._reports = reports

    def crowded(self) -> bool:
        """Whether there are so many conversations that some are to be forgotten."""
        return self._most is not None and len(self._conversations) > self._most

    def pack(self, known: set[int]) -> None:
        """Keep but the rows of those that have ended, unless reassembly still knows them."""
        left = []
        for tracked in self._conversations:
            tcp = tracked.tcp
            # What files disagree on is told at the end
            if tracked.done and tcp.index not in known and tcp.foreign is None:
                for row in self._rows([tracked], 0):
                    self.packed.add(row, tcp.first[0], tcp.first[2])
                self._let_go(tracked)
            else:
                left.append(tracked)
        self._conversations[:] = left
        limit = self._options.tracked_limit
        self._most = max(limit, len(left) + limit // 10)

    def drop(self, now_ns: int, leaving: Callable[[list[ConversationRow]], None] | None) -> None:
        """Forget those that have ended, when they did long ago or there are too many; `leaving` gets their rows."""
        done = [tracked for tracked in self._conversations if tracked.done]
        done.sort(key=lambda tracked: tracked.tcp.last[3])
        spare = len(self._conversations) - self._options.tracked_limit
        before = now_ns - self._options.closed_time_ns
        gone = [tracked for index, tracked in enumerate(done) if index < spare or tracked.tcp.last[3] <= before]
        if not gone:
            return
        left = {id(tracked) for tracked in gone}
        self._conversations[:] = [tracked for tracked in self._conversations if id(tracked) not in left]
        past = self._past
        rows = self._rows(gone, past.conversations + 1)
        for tracked in gone:
            self._let_go(tracked)
        past.conversations += len(gone)
        past.refused.update(_refused(gone))
        for row in rows:
            past.limit_hits += row.limit_hits
            if row.protocol is None and any(row.bytes):
                name = row.name or "unknown"
                past.unread[name] = past.unread.get(name, 0) + 1
        if leaving is not None:
            leaving(rows)

    def rows(self, related: bool, bare: bool) -> Iterator[list[ConversationRow]]:
        """The rows of all, some at a time; see `Inspector.each_rows`."""
        known: dict[int, Tracked | str | None] = {one.tcp.index: one for one in self._conversations}
        known.update(self.packed.protocols())
        others = self._tcp.bare() if bare else []
        number = self._past.conversations + 1
        told: dict[int, list[ConversationRow]] = {}
        places = []
        for at, index in enumerate(sorted(known)):
            places.append(bisect_left(others, (index,)))
            one = known[index]
            # Others have nothing to tell of the rest, and there may be very many
            if related and (one.protocol if isinstance(one, Tracked) else one) in RELATED:
                told[index] = self._row(index, one, number + at + places[-1])
        for what in relate([row for rows in told.values() for row in rows]) if told else ():
            self._reports.once(Report(what, "conversations lack what others tell of them"))
        done = 0
        for at, index in enumerate(sorted(known)):
            yield from (self.unused.row(others[one][1], number + at + one) for one in range(done, places[at]))
            done = places[at]
            rows = told.pop(index, None)
            yield self._row(index, known[index], number + at + done) if rows is None else rows
        yield from (self.unused.row(others[one][1], number + len(known) + one) for one in range(done, len(others)))

    def flows(self) -> Iterator[Flow]:
        """What tells the packets of each."""
        bare = (self._tcp.bare_delivery(key).conversation for _, key in self._tcp.bare())
        for one in chain((tracked.tcp for tracked in self._conversations), bare):
            order, _, file, _ = one.first
            yield Flow(one.index, one.endpoints, order, file if self._options.separate else 0)
        for index in self.packed.protocols():
            yield self.packed.flow(index, self._options.separate)

    def count(self) -> int:
        """How many there are and were."""
        return self._past.conversations + len(self.packed) + len(self._conversations) + len(self._tcp.bare())

    def refused(self) -> Counter[int]:
        """By port the connections that were refused there, where none of our protocols is expected."""
        found = self._past.refused + Counter(self._tcp.bare_refused()) + Counter(_refused(self._conversations))
        for port in self._reading.endings.ports:
            del found[port]
        return found

    def _row(self, index: int, one: Tracked | str | None, number: int) -> list[ConversationRow]:
        """The row of a conversation, if it can be made; `one`: what is known of it, or what it spoke where its row was packed."""
        return self._rows([one], number) if isinstance(one, Tracked) else [self.packed.row(index, number)]

    def _rows(self, conversations: list[Tracked], number: int) -> list[ConversationRow]:
        """The rows of these conversations, numbered from `number` on."""
        rows = []
        for index, tracked in enumerate(conversations):
            try:
                rows.append(tracked.row(number + index))
            except Exception as error:
                what = bug(error)
                if not tracked.rowless:
                    tracked.rowless = True
                    self._reports.add(tracked.report(Failure(what, 0), "its row is missing"))
        return rows

    def _let_go(self, tracked: Tracked) -> None:
        """Forget what others know of a conversation."""
        self._reading.gate.inside.pop(tracked.tcp.index, None)
        self._outbox.latest.pop(tracked.tcp.index, None)
        self._outbox.over.pop(tracked.tcp.index, None)
        self._outbox.ahead.pop(tracked.tcp.index, None)
        # Each knows the other, and a run collects no cycles
        tracked.tcp.state = None


def _refused(conversations: Iterable[Tracked]) -> Iterator[int]:
    for one in conversations:
        if one.tcp.end is not None and one.tcp.end.how == "refused" and not any(one.tcp.stream_bytes):
            yield one.tcp.ports[1]


def relate(rows: list[ConversationRow]) -> list[str]:
    """Adds to conversations what others tell: an Iggy server's layout, a Seastar stream's parent. Returns what to report of exceptions."""
    failed = []
    for protocol in PROTOCOLS:
        if protocol.relate is not None:
            try:
                protocol.relate([row for row in rows if row.protocol == protocol.name])
            except Exception as error:
                failed.append(bug(error))
    return failed
