"""All TLS of a run: which conversations begin like it, which wait for keys, and how much they may hold.

Every conversation's bytes are given to `TlsManager.take` until it is known that they are no TLS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..model import Options, SideData, StreamGap, Verdict
from ..tcp.assembler import TcpStream
from .keys import KeyLog
from .records import alert, begins, sealed

if TYPE_CHECKING:
    from .decryptor import TlsDecryptor
    from .facts import Facts

BOTH = 3
"""Both sides, a bit for each."""


class TlsState(msgspec.Struct, gc=False):
    """What is known of one conversation's TLS. `heard`: the sides whose first bytes were looked at, a bit for each. `waits`: for keys,
    and so does its end."""

    heard: int = 0
    stage: TlsDecryptor | None = None
    facts: Facts | None = None
    """When it has ended; `told` has them before."""
    unread: Verdict | None = None
    """What the conversation is as long as nothing can be read of it."""
    read: bool = False
    client: int | None = None
    from_start: bool = False
    """Its beginning was captured."""
    limit_hits: int = 0
    waits: bool = False
    held: int = 0
    """What it counts in `TlsManager.held`."""
    sessions: tuple[bytes, ...] = ()
    """The sessions whose keys it waits for."""

    def known(self) -> Facts | None:
        """What is known of TLS besides what was said in it; None where there is none."""
        return self.facts if self.stage is None else self.stage.known()

    def break_off(self) -> list[Any]:
        """Nothing more is read, as something failed; what is known by now is kept, if it can be told."""
        stage, self.stage, self.heard = self.stage, None, BOTH
        if stage is not None:
            self.facts = stage.known()
        return []

    def reach(self) -> tuple[int, int] | None:
        """How many bytes each side said inside of TLS, as far as that was read; None where nothing was."""
        told = self.known() if self.read else None
        return None if told is None else told.plain

    def row(self) -> dict[str, Any]:
        """What a row of `conversations` says of TLS."""
        told = self.known()
        if told is None:
            return {}
        from .diagnostics import troubles

        found = troubles(told)
        return told.row() | ({"tls_troubles": found} if found else {})

    @property
    def plain(self) -> bool:
        """Whether there is nothing to look at."""
        return self.heard == BOTH and self.stage is None


class TlsManager:
    """Turns the bytes of conversations into what was said in them."""

    def __init__(self, options: Options, keys: KeyLog) -> None:
        self.options = options
        self.keys = keys
        self.inside: dict[int, str] = {}
        """By conversation, what those are carried in of which something could be read: TLS 1.3."""
        self.waiting: dict[int, tuple[TcpStream, TlsState]] = {}
        """By conversation, those that wait for keys, the oldest first."""
        self.held = 0
        """What all of them hold."""
        self._waiting_for: dict[bytes, set[int]] = {}
        """By session, the conversations that wait for its keys."""

    def feed(
        self, tls: TlsState, tcp: TcpStream, items: list[SideData | StreamGap], current: int, final: bool
    ) -> list[SideData | StreamGap]:
        """What goes on to detection with the packet `current`. The end of a conversation that waits for keys is put off, unless this is
        `final`."""
        if tls.heard != BOTH and items:
            self._hear(tls, items, tcp.from_start)
        stage = tls.stage
        if stage is None:
            return items
        self.keys.asking = tcp.index
        items = stage.feed(items, current)
        closed = tcp.closed is not None
        tls.waits = stage.waiting and not final
        if closed and not tls.waits:
            items += stage.close(current, tcp.last)
        if stage.plain:
            tls.stage = None
            return items
        if tls.waits:
            self.waiting.setdefault(tcp.index, (tcp, tls))
            self._count(tcp.index, tls, stage.held, stage.sessions)
        else:
            self.forget(tcp.index)
        tls.client = stage.client
        tls.unread = None if stage.emitted else stage.verdict()
        if stage.emitted and not tls.read:
            tls.read = True
            tls.from_start = tls.client == 0 and not stage.middle
            self.inside[tcp.index] = ", ".join([*filter(None, (self.inside.get(tcp.index),)), stage.name])
        if closed and not tls.waits:
            tls.facts, tls.limit_hits = stage.known(), stage.limit_hits
            tls.stage = None
        return items

    def forget(self, index: int) -> None:
        """A conversation waits for keys no longer."""
        if index in self.waiting:
            self._count(index, self.waiting.pop(index)[1], 0, ())

    def woken(self, current: int) -> list[int]:
        """The conversations that stop waiting: all if no keys will come, else those whose keys came and the oldest if all hold too much."""
        keys = self.keys
        if not keys.expecting:
            return list(self.waiting)
        found = {index for session in keys.fresh for index in self._waiting_for.get(session, ())} if keys.fresh else ()
        keys.fresh.clear()
        return [*sorted(found), *self._surplus(current)]

    def _surplus(self, current: int) -> Iterator[int]:
        """The oldest that wait, as long as all hold too much."""
        held, most = self.held, self.options.keys_total
        if held <= most:
            return
        for index, (_, tls) in self.waiting.items():
            assert tls.stage is not None
            held -= tls.held
            tls.stage.give_up(current)
            yield index
            if held <= most * 3 // 4:
                break

    def _count(self, index: int, tls: TlsState, held: int, sessions: tuple[bytes, ...]) -> None:
        """Note what a conversation holds, and the sessions whose keys it waits for."""
        self.held += held - tls.held
        tls.held = held
        if sessions != tls.sessions:
            for session in tls.sessions:
                self._waiting_for[session].discard(index)
                if not self._waiting_for[session]:
                    del self._waiting_for[session]
            for session in sessions:
                self._waiting_for.setdefault(session, set()).add(index)
            tls.sessions = sessions

    def stale(self, before_ns: int, current: int) -> list[int]:
        """The conversations that ended before this time but still wait, if nobody knows how long."""
        if not self.keys.endless:
            return []
        found = [index for index, (tcp, _) in self.waiting.items() if tcp.closed is not None and tcp.last[3] <= before_ns]
        for index in found:
            stage = self.waiting[index][1].stage
            assert stage is not None
            stage.give_up(current)
        return found

    def _hear(self, tls: TlsState, items: list[SideData | StreamGap], from_start: bool) -> None:
        """Look at the first bytes of each side: TLS, or what a server of TLS says to others?"""
        for item in items:
            side = 1 << item.side
            if type(item) is not SideData or tls.heard & side:
                continue
            first = item.data
            if not tls.heard:
                found, middle = begins(first), self.keys.named and sealed(first)
                if found is not False or middle:
                    from .decryptor import TlsDecryptor

                    tls.stage = TlsDecryptor(self.options, self.keys, from_start, middle)
            elif tls.stage is None and not item.position and alert(first):
                from .facts import refused

                tls.facts = refused(item.side, first, (item.order, item.number, item.file, item.time_ns))
            tls.heard |= side
