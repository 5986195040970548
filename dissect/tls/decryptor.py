"""Decrypts the byte streams of a TLS connection.

Each side is read as far as possible on its own. What it needs from elsewhere (both hellos, the server's decision on early data, a key) is
known from some packet on. A side that needs it waits, whatever the other side does meanwhile, and its output is completed by that packet
at the earliest. So the split of the bytes into pieces does not matter.

Each record becomes one output item, with the packet and time that completed it. Records that cannot be decrypted become gaps (see
`resync`).
"""

from __future__ import annotations

from typing import Any

from ..model import Mark, Options, SideData, StreamGap, Verdict
from . import hello, resync
from .facts import TlsFacts
from .handshake import TlsHandshake
from .keys import KeyLog
from .missing_keys import BEGINNING, MISSING
from .reader import RecordReader
from .record_buffer import RecordBuffer, SealedGap
from .records import begins

NO_KEYS = "no keys"
WAITING, UNFINISHED = "waiting for keys", "handshake not finished"


class TlsDecryptor(RecordReader):
    """One connection, from its first bytes on."""

    def __init__(self, options: Options, keys: KeyLog | None = None, from_start: bool = True, middle: bool = False) -> None:
        """`from_start`: the start of both byte streams was captured; `middle`: they start with encrypted records."""
        self.options = options
        self.keys = KeyLog() if keys is None else keys
        self.from_start = from_start
        self.flows = (RecordBuffer(0), RecordBuffer(1))
        self.handshake = TlsHandshake(0)
        self.is_tls = middle
        """Whether TLS was recognised."""
        self.not_tls = False
        """Whether TLS was ruled out: all items pass unchanged."""
        self.first_items: list[SideData | StreamGap] = []
        self.first = -1
        self.middle = middle
        if middle:
            for flow in self.flows:
                flow.lost = SealedGap(0, 0, 0, None, True, anywhere=True)
        self.emitted = False
        """Whether anything was decrypted."""
        self.final = False
        """Whether no more bytes will come."""
        self.end = 0

    # Called by `TlsManager`

    def feed(self, items: list[SideData | StreamGap], current: int) -> list[SideData | StreamGap]:
        """Return the output completed by the packet `current`, including earlier bytes whose keys have arrived."""
        self.end = current + 1
        for flow in self.flows:
            flow.current = current
        if not self.is_tls:
            items = self._recognise(items)
            if not self.is_tls:
                return items
        for item in items:
            self.flows[item.side].put(item)
        return self._read_both()

    def stop_waiting(self, current: int) -> None:
        """Stop waiting for keys, as too much is held or for too long."""
        for flow in self.flows:
            if flow.blocked:
                self._exceed_limit(flow, current)

    def close(self, current: int, last: Mark) -> list[SideData | StreamGap]:
        """Return the remaining output: no byte and no key will follow."""
        if not self.is_tls:
            return self._reject()
        out = self._read_both()
        while any(flow.blocked for flow in self.flows):
            # One side may wait for the end of the other.
            for flow in self.flows:
                if flow.blocked:
                    flow.stop(self._missing_reason(flow), current)
            out += self._read_both()
        self.final = True
        for flow in self.flows:
            flow.floor = max(flow.floor, current)
            sealed = flow.epoch is not None and flow.epoch.phase in ("traffic", "master")
            if sealed and flow.lost is None and flow.stopped is None and flow.at < len(flow.data):
                # The last record is incomplete, or its length is damaged
                flow.mark_lost(flow.position, flow.seq, flow.position + 1, "lost")
        out += self._read_both()
        for flow in self.flows:
            self._finish(flow, current, last)
            out += flow.pop_output()
        return out

    @property
    def waiting(self) -> bool:
        """Whether bytes are held whose keys may still arrive."""
        return self.keys.expecting and any(flow.blocked and self._missing_reason(flow) == MISSING for flow in self.flows)

    @property
    def sessions(self) -> tuple[bytes, ...]:
        """The client randoms of the sessions whose keys are awaited."""
        return tuple({flow.epoch.client_random for flow in self.flows if flow.epoch is not None})

    @property
    def held(self) -> int:
        """The size of the waiting bytes, as counted towards the limits."""
        return sum(flow.held for flow in self.flows)

    @property
    def limit_hits(self) -> int:
        """How often a limit was reached; 0 without any keys."""
        return sum(flow.limited for flow in self.flows) if self.keys.given else 0

    @property
    def client(self) -> int | None:
        """The side that is the client; None if unknown."""
        return self.handshake.facts.client if self.is_tls and (self.emitted or not self.middle) else None

    @property
    def name(self) -> str:
        """`TLS 1.3`."""
        version = self.handshake.facts.version
        return "TLS" if version is None else f"TLS {hello.version_name(version)}"

    def verdict(self) -> Verdict | None:
        """Return the verdict until something is decrypted; None after that."""
        facts = self.facts_so_far()
        if facts is None or self.emitted:
            return None
        reason = WAITING if self.waiting and self.keys.given else facts.unread
        if reason in (None, NO_KEYS, MISSING) and facts.last is not None and facts.unfinished:
            reason = UNFINISHED
        return Verdict(None, 1.0, ("begins like TLS",), "TLS" if reason in (None, NO_KEYS) else f"TLS, {reason}")

    def facts_so_far(self) -> TlsFacts | None:
        """Return the facts known so far; None if TLS was not recognised."""
        if not self.is_tls:
            return None
        facts = self.handshake.facts_so_far(self.flows)
        if facts.unread == MISSING and not self.keys.given:
            facts.unread = NO_KEYS
        return facts

    # The first bytes

    def _recognise(self, items: list[SideData | StreamGap]) -> list[SideData | StreamGap]:
        """Recognise TLS by the first bytes; return the items to process, or to pass on if this is not TLS."""
        self.first_items += items
        if self.first < 0:
            self.first = next((item.side for item in self.first_items if type(item) is SideData), -1)
            if self.first < 0:
                return []
        data = b""
        for item in self.first_items:
            if item.side != self.first:
                continue
            if type(item) is not SideData:
                if data:
                    return self._reject()
                continue
            data += item.data
            found = begins(data)
            if found is False:
                return self._reject()
            if found:
                self.is_tls = True
                self.handshake = TlsHandshake(self.first if data[5] == hello.CLIENT_HELLO else 1 - self.first)
                items, self.first_items = self.first_items, []
                return items
        return []

    def _reject(self) -> list[SideData | StreamGap]:
        """Rule out TLS; return the items held."""
        self.not_tls = True
        items, self.first_items = self.first_items, []
        return items

    # Both sides

    def _read_both(self) -> list[SideData | StreamGap]:
        """Read both sides until neither advances: one may unblock the other. Return the output."""
        progress = True
        while progress:
            progress = self._read_side(self.flows[0]) | self._read_side(self.flows[1])
            for flow in () if progress else self.flows:
                if flow.blocked:
                    flow.measure_held(self.options.keys_limit)
                    if flow.exceeded_at is not None:
                        self._exceed_limit(flow, flow.exceeded_at)
                        progress = True
        for flow in self.flows:
            flow.trim()
        out = self.flows[0].pop_output() + self.flows[1].pop_output()
        self.emitted |= bool(out)
        return out

    def _read_side(self, flow: RecordBuffer) -> bool:
        """Read one side as far as possible; return whether it advanced."""
        moved = False
        while True:
            before = flow.position, flow.epoch, flow.lost, flow.stopped
            self._step(flow)
            if (flow.position, flow.epoch, flow.lost, flow.stopped) == before:
                if flow.blocked or not flow.queue:
                    return moved
                item = flow.queue.popleft()
                if isinstance(item, StreamGap):
                    self._gap(flow, item)
                else:
                    flow.add(item)
            moved = True

    def _step(self, flow: RecordBuffer) -> None:
        if flow.stopped is not None:
            self._skip_records(flow)
        elif flow.lost is not None:
            resync.seek(self, flow, flow.lost)
        elif flow.epoch is None:
            self._read_clear(flow)
        else:
            self._read_sealed(flow, flow.epoch)

    def _finish(self, flow: RecordBuffer, current: int, last: Mark) -> None:
        """Finish one side: no more of its bytes will come."""
        if flow.stopped is None and flow.lost is not None and not flow.opened:
            flow.stop(resync.WRONG if flow.lost.reason == "skipped" else BEGINNING, current)
        reason: Any = "skipped" if flow.stopped is not None else flow.lost and flow.lost.reason
        if self.emitted and reason is not None:
            flow.gap(None, reason, last)
