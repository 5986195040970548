"""Conversations fed with segments, whose state can be continued in another process."""

from __future__ import annotations

from collections.abc import Callable

from .conversation.run_state import Reports, RunCounters, SharedState
from .conversation.table import ConversationTable
from .errors import ForeignState
from .model import ConversationRow, Message, Options, Record, Segment
from .protocols.records import ORDER_KEY, Event
from .tcp.assembler import Pool
from .tls.keys import KeyLog
from .tls.manager import TlsManager

Linked = tuple[Record, Message | None, Message | None, tuple[int, int] | None]
"""A record with the request and the response it names; a gap with the file and number of its packet."""


class Session:
    """One run over segments."""

    def __init__(
        self,
        options: Options,
        keys: KeyLog,
        finite: bool = False,
        keeps_rows: bool = True,
        index: Callable[[Segment], int] | None = None,
    ) -> None:
        """See `ConversationTable`."""
        counters = RunCounters()
        self.run = SharedState(options, TlsManager(options, keys), Pool(options), counters, Reports(counters))
        if options.entries:
            self.run.answers, self.run.entries = [], {}
        self.table = ConversationTable(self.run, finite, keeps_rows, index)

    def feed(self, segment: Segment) -> list[Event]:
        """Return the events that a segment completes."""
        return self.table.feed((segment,))

    def finish(self) -> list[Event]:
        """Return the last events."""
        return self.table.finish()

    def forget(self, now_ns: int, order: int) -> tuple[list[Event], list[ConversationRow]]:
        """Forget conversations idle for long, as a live capture does; return their events and the rows of those removed."""
        emitted, gone = self.table.forget(now_ns, order), list[ConversationRow]()
        emitted.sort(key=ORDER_KEY)
        self.table.drop(now_ns, gone.extend)
        return emitted, gone

    def linked(self, emitted: list[Event]) -> list[Linked]:
        """Return the records of these events, all since the last call, with the messages that they name."""
        run = self.run
        named: dict[int, Linked] = {id(record): (record, asked.record, response, None) for record, asked, response in run.links}
        run.links.clear()
        run.forget_emitted()
        run.large.clear()
        return [named.get(id(one.record)) or (one.record, None, None, one.packet) for one in emitted]

    def snapshot(self) -> bytes:
        """Return the serialised state that records of later segments depend on."""
        return _written(self.table)

    def snapshot_of(self, ends: bytes) -> bytes | None:
        """Return the same for the conversation whose segments have these ends alone; None if none is open."""
        table = self.table.alone(ends)
        if table is None:
            return None
        with self.run.only(table.conversations[0].index):
            return _written(table)

    @classmethod
    def restore(cls, data: bytes, options: Options, keys: KeyLog) -> Session:
        """Return a session that continues from a snapshot; raises `ForeignState`."""
        # The snapshot may contain its classes
        from .snapshot import decode
        from .tls import decryptor  # noqa: F401

        table = decode(data, options, keys)
        if type(table) is not ConversationTable:
            raise ForeignState("it holds something else")
        session = cls.__new__(cls)
        session.table, session.run = table, table.run
        return session


def _written(table: ConversationTable) -> bytes:
    from .snapshot import encode

    pairers = [one.pairer for one in table.conversations if one.pairer is not None]
    # Fields of released requests are not needed, and can be most of the state
    handed_on = {id(message.fields) for pairer in pairers if not pairer.reads for message in pairer.remembered()}
    handed_on -= {id(message.fields) for entries in (table.run.entries or {}).values() for message in entries.waiting()}
    return encode(table, handed_on)
