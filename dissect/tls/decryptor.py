"""Turns the chunks of a TLS connection into chunks of what was said in it.

Each side reads its own bytes as far as it can by itself. What it needs from elsewhere (the hellos of both sides, the server's word on early
data, a key) is known from some packet on; a side that needs it waits, whatever the other side does meanwhile, and nothing that it says
then is certain before that packet. So it makes no difference in which pieces the bytes come.

A record is a segment of what comes out: certain with, and dated by, the packet that completed it. What cannot be opened gives nothing but
gaps (see `resync`).
"""

from __future__ import annotations

from typing import Any

from ..model import Mark, Options, SideData, StreamGap, Verdict
from . import hello, resync
from .facts import Facts
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
        """`from_start`: both byte streams begin where their sides began; `middle`: they begin with records that were sealed before."""
        self.options = options
        self.keys = KeyLog() if keys is None else keys
        self.from_start = from_start
        self.flows = (RecordBuffer(0), RecordBuffer(1))
        self.handshake = TlsHandshake(0)
        self.begun = middle
        """It is certain that this is TLS."""
        self.plain = False
        """It is not TLS after all: whatever comes goes on as it is."""
        self.opening: list[SideData | StreamGap] = []
        self.first = -1
        self.middle = middle
        if middle:
            for flow in self.flows:
                flow.lost = SealedGap(0, 0, 0, None, True, anywhere=True)
        self.emitted = False
        """Something could be read."""
        self.final = False
        """No more bytes will come."""
        self.end = 0

    # What the inspector calls

    def feed(self, items: list[SideData | StreamGap], current: int) -> list[SideData | StreamGap]:
        """What these bytes say, which are certain with the packet `current`, and what keys that came meanwhile make of those before."""
        self.end = current + 1
        for flow in self.flows:
            flow.current = current
        if not self.begun:
            items = self._open(items)
            if not self.begun:
                return items
        for item in items:
            self.flows[item.side].put(item)
        return self._drain()

    def give_up(self, current: int) -> None:
        """All that is held is too much, or waited for too long: wait for keys no longer."""
        for flow in self.flows:
            if flow.blocked:
                self._too_much(flow, current)

    def close(self, current: int, last: Mark) -> list[SideData | StreamGap]:
        """What is left when no byte, and no key, will follow."""
        if not self.begun:
            return self._settle()
        out = self._drain()
        while any(flow.blocked for flow in self.flows):
            # One side's end may be what the other waits for.
            for flow in self.flows:
                if flow.blocked:
                    flow.stop(self._lacking(flow), current)
            out += self._drain()
        self.final = True
        for flow in self.flows:
            flow.floor = max(flow.floor, current)
            said = flow.epoch is not None and flow.epoch.phase in ("traffic", "master")
            if said and flow.lost is None and flow.stopped is None and flow.at < len(flow.data):
                # The last record is not whole, or says so: its length may be what is wrong
                flow.lose(flow.position, flow.seq, flow.position + 1, "lost")
        out += self._drain()
        for flow in self.flows:
            self._finish(flow, current, last)
            out += flow.take()
        return out

    @property
    def waiting(self) -> bool:
        """Whether bytes are held that keys may still open."""
        return self.keys.expecting and any(flow.blocked and self._lacking(flow) == MISSING for flow in self.flows)

    @property
    def sessions(self) -> tuple[bytes, ...]:
        """The client randoms of the sessions whose keys it waits for."""
        return tuple({flow.epoch.client_random for flow in self.flows if flow.epoch is not None})

    @property
    def held(self) -> int:
        """What bytes that wait count towards the limits."""
        return sum(flow.held for flow in self.flows)

    @property
    def limit_hits(self) -> int:
        """How often a limit was reached; bytes of TLS that nobody has keys for are none of its concern."""
        return sum(flow.limited for flow in self.flows) if self.keys.given else 0

    @property
    def client(self) -> int | None:
        """The side that is the client, as far as that is known."""
        return self.handshake.client if self.begun and (self.emitted or not self.middle) else None

    @property
    def name(self) -> str:
        """`TLS 1.3`."""
        version = self.handshake.facts.version
        return "TLS" if version is None else f"TLS {hello.version_name(version)}"

    def verdict(self) -> Verdict | None:
        """What this is as long as nothing can be read of it; None when something was."""
        facts = self.known()
        if facts is None or self.emitted:
            return None
        reason = WAITING if self.waiting and self.keys.given else facts.unread
        if reason in (None, NO_KEYS, MISSING) and facts.last is not None and facts.unfinished:
            reason = UNFINISHED
        return Verdict(None, 1.0, ("begins like TLS",), "TLS" if reason in (None, NO_KEYS) else f"TLS, {reason}")

    def known(self) -> Facts | None:
        """What is known of the connection by now."""
        if not self.begun:
            return None
        facts = self.handshake.known(self.flows)
        if facts.unread == MISSING and not self.keys.given:
            facts.unread = NO_KEYS
        return facts

    # The first bytes

    def _open(self, items: list[SideData | StreamGap]) -> list[SideData | StreamGap]:
        """Tell by the bytes that were certain first; what goes on if this is not TLS."""
        self.opening += items
        if self.first < 0:
            self.first = next((item.side for item in self.opening if type(item) is SideData), -1)
            if self.first < 0:
                return []
        data = b""
        for item in self.opening:
            if item.side != self.first:
                continue
            if type(item) is not SideData:
                if data:
                    return self._settle()
                continue
            data += item.data
            found = begins(data)
            if found is False:
                return self._settle()
            if found:
                self.begun = True
                self.handshake = TlsHandshake(self.first if data[5] == hello.CLIENT_HELLO else 1 - self.first)
                opening, self.opening = self.opening, []
                return opening
        return []

    def _settle(self) -> list[SideData | StreamGap]:
        """This is not TLS."""
        self.plain = True
        opening, self.opening = self.opening, []
        return opening

    # Both sides

    def _drain(self) -> list[SideData | StreamGap]:
        """Read both sides until neither gets further: what one tells may free the other."""
        progress = True
        while progress:
            progress = self._run(self.flows[0]) | self._run(self.flows[1])
            for flow in () if progress else self.flows:
                if flow.blocked:
                    flow.weigh(self.options.keys_limit)
                    if flow.crossed is not None:
                        self._too_much(flow, flow.crossed)
                        progress = True
        for flow in self.flows:
            flow.rest()
        out = self.flows[0].take() + self.flows[1].take()
        self.emitted |= bool(out)
        return out

    def _run(self, flow: RecordBuffer) -> bool:
        """Read one side as far as it goes; whether it went anywhere."""
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
            self._walk(flow)
        elif flow.lost is not None:
            resync.seek(self, flow, flow.lost)
        elif flow.epoch is None:
            self._clear(flow)
        else:
            self._sealed(flow, flow.epoch)

    def _finish(self, flow: RecordBuffer, current: int, last: Mark) -> None:
        """No more bytes of this side will come."""
        if flow.stopped is None and flow.lost is not None and not flow.opened:
            flow.stop(resync.WRONG if flow.lost.reason == "skipped" else BEGINNING, current)
        reason: Any = "skipped" if flow.stopped is not None else flow.lost and flow.lost.reason
        if self.emitted and reason is not None:
            flow.gap(None, reason, last)
