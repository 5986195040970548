"""All TLS connections of a run: recognition, waiting for keys, and limits.

Each conversation's items go through `TlsManager.check_start` until both sides have sent bytes, and through `feed` if they are TLS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..model import Options, SideData, StreamGap, Verdict
from ..tcp.assembler import TcpStream
from .keys import KeyLog
from .records import FIRST_BYTES, alert, begins, sealed

if TYPE_CHECKING:
    from .decryptor import TlsDecryptor
    from .facts import TlsFacts

BOTH = 3
"""Both sides, a bit for each."""


class TlsState(msgspec.Struct, gc=False):
    """TLS state of one conversation. `checked`: a bit for each side whose first bytes were examined. `waits`: it, and its end, wait for
    keys."""

    checked: int = 0
    decryptor: TlsDecryptor | None = None
    facts: TlsFacts | None = None
    """Set when it has ended; before, see `facts_so_far`."""
    unread: Verdict | None = None
    """The verdict until something is decrypted."""
    read: bool = False
    client: int | None = None
    from_start: bool = False
    """Whether its start was captured."""
    limit_hits: int = 0
    waits: bool = False
    held: int = 0
    """Its share of `TlsManager.held`, in bytes."""
    sessions: tuple[bytes, ...] = ()
    """The sessions whose keys are awaited."""

    def facts_so_far(self) -> TlsFacts | None:
        """Return the facts known so far; None if this is not TLS."""
        return self.facts if self.decryptor is None else self.decryptor.facts_so_far()

    def stop_reading(self) -> list[Any]:
        """Stop reading after an internal error; keep the facts known so far."""
        decryptor, self.decryptor, self.checked = self.decryptor, None, BOTH
        if decryptor is not None:
            self.facts = decryptor.facts_so_far()
        return []

    def decrypted_sizes(self) -> tuple[int, int] | None:
        """Return the decrypted bytes by side; None if nothing was decrypted."""
        facts = self.facts_so_far() if self.read else None
        return None if facts is None else facts.decrypted

    def row(self) -> dict[str, Any]:
        """Return the TLS keys of a row of `conversations`."""
        facts = self.facts_so_far()
        if facts is None:
            return {}
        from .diagnostics import failures

        found = failures(facts)
        return facts.row() | ({"tls_troubles": found} if found else {})

    @property
    def not_tls(self) -> bool:
        """Whether TLS is ruled out, or over."""
        return self.checked == BOTH and self.decryptor is None


class TlsManager:
    """Decrypts the conversations of a run."""

    def __init__(self, options: Options, keys: KeyLog) -> None:
        self.options = options
        self.keys = keys
        self.inside: dict[int, str] = {}
        """By conversation, the layers that carry its messages: TLS 1.3."""
        self.waiting: dict[int, tuple[TcpStream, TlsState]] = {}
        """The conversations that wait for keys, the oldest first."""
        self.held = 0
        """Bytes held by all of them."""
        self._waiting_for: dict[bytes, set[int]] = {}
        """The conversations that wait for keys, by session."""

    def feed(
        self, tls: TlsState, tcp: TcpStream, items: list[SideData | StreamGap], current: int, final: bool
    ) -> list[SideData | StreamGap]:
        """Return the items completed by the packet `current`. The end of a conversation that waits for keys is postponed unless `final`."""
        decryptor = tls.decryptor
        assert decryptor is not None
        self.keys.conversation = tcp.index
        items = decryptor.feed(items, current)
        closed = tcp.closed is not None
        tls.waits = decryptor.waiting and not final
        if closed and not tls.waits:
            items = items + decryptor.close(current, tcp.last)
        if decryptor.not_tls:
            tls.decryptor = None
            return items
        if tls.waits:
            self.waiting.setdefault(tcp.index, (tcp, tls))
            self._count(tcp.index, tls, decryptor.held, decryptor.sessions)
        else:
            self.forget(tcp.index)
        tls.client = decryptor.client
        tls.unread = None if decryptor.emitted else decryptor.verdict()
        if decryptor.emitted and not tls.read:
            tls.read = True
            tls.from_start = tls.client == 0 and not decryptor.middle
            self.inside[tcp.index] = ", ".join([*filter(None, (self.inside.get(tcp.index),)), decryptor.name])
        if closed and not tls.waits:
            tls.facts, tls.limit_hits = decryptor.facts_so_far(), decryptor.limit_hits
            tls.decryptor = None
        return items

    def forget(self, index: int) -> None:
        """Note that a conversation no longer waits for keys."""
        if index in self.waiting:
            self._count(index, self.waiting.pop(index)[1], 0, ())

    def resumed(self, current: int) -> list[int]:
        """Return the conversations that stop waiting: all if no keys will come, else those with new keys, and the oldest over the limit."""
        keys = self.keys
        if not keys.expecting:
            return list(self.waiting)
        found = {index for session in keys.updated for index in self._waiting_for.get(session, ())} if keys.updated else ()
        keys.updated.clear()
        return [*sorted(found), *self._over_limit(current)]

    def _over_limit(self, current: int) -> Iterator[int]:
        """Yield the oldest waiting conversations while the total exceeds its limit."""
        held, most = self.held, self.options.keys_total
        if held <= most:
            return
        for index, (_, tls) in self.waiting.items():
            assert tls.decryptor is not None
            held -= tls.held
            tls.decryptor.stop_waiting(current)
            yield index
            if held <= most * 3 // 4:
                break

    def _count(self, index: int, tls: TlsState, held: int, sessions: tuple[bytes, ...]) -> None:
        """Update the bytes held by a conversation, and the sessions whose keys it waits for."""
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
        """Return the conversations that ended before this time and wait for keys without an end in sight."""
        if not self.keys.endless:
            return []
        found = [index for index, (tcp, _) in self.waiting.items() if tcp.closed is not None and tcp.last[3] <= before_ns]
        for index in found:
            decryptor = self.waiting[index][1].decryptor
            assert decryptor is not None
            decryptor.stop_waiting(current)
        return found

    def check_start(self, tls: TlsState, items: list[SideData | StreamGap], from_start: bool) -> None:
        """Check the first bytes of each side for TLS, or for the alert of a TLS server to a plaintext client."""
        for item in items:
            side = 1 << item.side
            if type(item) is not SideData or tls.checked & side:
                continue
            first = item.data
            if not first.startswith(FIRST_BYTES):
                pass
            elif not tls.checked:
                found, middle = begins(first), self.keys.named and sealed(first)
                if found is not False or middle:
                    from .decryptor import TlsDecryptor

                    tls.decryptor = TlsDecryptor(self.options, self.keys, from_start, middle)
            elif tls.decryptor is None and not item.position and alert(first):
                from .facts import refused

                tls.facts = refused(item.side, first, item.mark)
            tls.checked |= side
