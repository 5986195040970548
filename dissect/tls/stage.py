"""Turns the chunks of a TLS connection into chunks of what was said in it.

Each side reads its own bytes as far as it can by itself. What it needs from elsewhere (the hellos of both sides, the server's word on early
data, a key) is known from some packet on; a side that needs it waits, whatever the other side does meanwhile, and nothing that it says
then is certain before that packet. So it makes no difference in which pieces the bytes come.

A record is a segment of what comes out: certain with, and dated by, the packet that completed it. What cannot be opened gives nothing but
holes (see `back`).
"""

from __future__ import annotations

from typing import Any

from dissect.errors import Failure, bug
from dissect.model import Chunk, Hole, Options, Verdict
from dissect.tls import back, hello, schedule
from dissect.tls.ciphers import HEADER, Opener, opener_of
from dissect.tls.facts import Facts, Mark
from dissect.tls.flow import Epoch, Flow, Lost
from dissect.tls.handshake import Handshake
from dissect.tls.hello import TLS_12, TLS_13, ClientHello, ServerHello
from dissect.tls.keys import EARLY, HANDSHAKE, MASTER, TRAFFIC, KeyLog
from dissect.tls.records import ALERT, CHANGE, DATA, HEARTBEAT, LARGEST, MESSAGE, begins, sane
from dissect.tls.suites import suite

KNOWN = 256
"""What opens records is kept for so many keys."""

MISSING, NO_KEYS = "keys missing", "no keys"
WAITING = "waiting for keys"
BEGINNING = "beginning not captured"


class Gone:
    """What somebody waits for will not come."""


GONE = Gone()


class Stage:
    """One connection, from its first bytes on."""

    MADE_OF = ("options",)
    DERIVED = ("options", "keys", "end")

    def __init__(self, options: Options, keys: KeyLog | None = None, whole: bool = True, middle: bool = False) -> None:
        """`whole`: both byte streams begin where their sides began; `middle`: they begin with records that were sealed before."""
        self.options = options
        self.keys = KeyLog() if keys is None else keys
        self.whole = whole
        self.flows = (Flow(0), Flow(1))
        self.handshake: Handshake | None = None
        """None as long as it is not certain that this is TLS."""
        self.plain = False
        """It is not TLS after all: whatever comes goes on as it is."""
        self.opening: list[Chunk | Hole] = []
        self.first = -1
        self.middle = middle
        if middle:
            self.handshake = Handshake(0)
            for flow in self.flows:
                flow.lost = Lost(0, 0, 0, None, True, anywhere=True)
        self.emitted = False
        """Something could be read."""
        self.final = False
        """No more bytes will come."""
        self.end = 0

    # What the inspector calls

    def feed(self, items: list[Chunk | Hole], end: int) -> list[Chunk | Hole]:
        """What these bytes say, and what keys that came meanwhile make of those before; all packets below `end` have been seen."""
        self.end = end
        if self.handshake is None:
            items = self._open(items)
            if self.plain or self.handshake is None:
                return items
        for item in items:
            self.flows[item.side].queue.append(item)
        return self._drain()

    def give_up(self, release: int) -> None:
        """All that is held is too much, or waited for too long: wait for keys no longer."""
        for flow in self.flows:
            if flow.blocked:
                self._too_much(flow, release)

    def close(self, release: int, last: Mark) -> list[Chunk | Hole]:
        """What is left when no byte, and no key, will follow."""
        if self.handshake is None:
            return self._settle(release)
        out = self._drain()
        while any(flow.blocked for flow in self.flows):
            # One side's end may be what the other waits for.
            for flow in self.flows:
                if flow.blocked:
                    flow.stop(self._lacking(flow), release)
            out += self._drain()
        self.final = True
        for flow in self.flows:
            flow.floor = max(flow.floor, release)
            said = flow.epoch is not None and flow.epoch.phase in ("traffic", "master")
            if said and flow.lost is None and flow.stopped is None and flow.at < len(flow.data):
                # The last record is not whole, or says so: its length may be what is wrong
                flow.lose(flow.position, flow.seq, flow.position + 1, "lost")
        out += self._drain()
        for flow in self.flows:
            self._finish(flow, release, last)
            out += flow.take()
        return out

    def rescue(self, what: str, last: Mark) -> tuple[list[Chunk | Hole], Failure]:
        """What could be read when an exception came, and where that was: record by record, up to the one that raises it, and of the other
        side what was certain by then. `last`: the packet to blame where none does."""
        failure: Failure | None = None
        for flow in self.flows:
            flow.singly = True
            try:
                while self._run(flow):
                    pass
            except Exception as error:
                data, at = flow.data, flow.at
                end = at + HEADER + int.from_bytes(data[at + 3 : at + HEADER], "big")
                index = flow.find(min(end, len(data)))
                if flow.starts and (failure is None or flow.release(index) < failure.release):
                    failure = Failure(bug(error), flow.release(index), *flow.mark(index)[1:3])
        failure = failure or Failure(what, *last[:3])
        out = [item for flow in self.flows for item in flow.take_until(failure.release)]
        self.emitted = self.emitted or bool(out)
        return out, failure

    @property
    def waiting(self) -> bool:
        """Whether bytes are held that keys may still open."""
        return self.keys.expecting and any(flow.blocked and self._lacking(flow) == MISSING for flow in self.flows)

    @property
    def held(self) -> int:
        """What bytes that wait count towards the limits."""
        return sum(flow.held for flow in self.flows)

    @property
    def limit_hits(self) -> int:
        """How often a limit was reached; bytes of TLS that nobody has keys for are none of its concern."""
        return sum(flow.limited for flow in self.flows) if self.keys.given else 0

    @property
    def floor(self) -> int:
        """The latest packet that something was waited for."""
        return max(flow.floor for flow in self.flows)

    @property
    def client(self) -> int | None:
        """The side that is the client, as far as that is known."""
        return self.handshake.client if self.handshake is not None and (self.emitted or not self.middle) else None

    @property
    def name(self) -> str:
        """`TLS 1.3`."""
        version = None if self.handshake is None else self.handshake.facts.version
        return "TLS" if version is None else f"TLS {hello.version_name(version)}"

    def verdict(self) -> Verdict | None:
        """What this is as long as nothing can be read of it; None when something was."""
        facts = self.told()
        if facts is None or self.emitted:
            return None
        reason = WAITING if self.waiting and self.keys.given else facts.unread
        return Verdict(None, 1.0, ("begins like TLS",), "TLS" if reason in (None, NO_KEYS) else f"TLS, {reason}")

    def told(self) -> Facts | None:
        """What is known of the connection by now."""
        if self.handshake is None:
            return None
        facts = self.handshake.told(self.flows)
        if facts.unread == MISSING and not self.keys.given:
            facts.unread = NO_KEYS
        return facts

    # What `back` calls

    def opener(self, flow: Flow, epoch: Epoch) -> Opener | str | None:
        """What opens a side's records: or why nothing does, or None where it has to wait."""
        assert self.handshake is not None
        server = epoch.server if epoch.server is not None else not self.handshake.is_client(flow)
        key = epoch.phase, epoch.generation, epoch.cipher, epoch.client_random, server
        # What is tried for many connections is made once
        known = self.keys.tried if epoch.server is not None and not epoch.generation else flow.openers
        if key in known:
            return known[key] or MISSING
        chosen = suite(epoch.cipher)
        if chosen is None:
            return "cipher suite not supported"
        label = {"early": EARLY, "master": MASTER, "handshake": HANDSHAKE[server], "traffic": TRAFFIC[server]}[epoch.phase]
        found = self.keys.find(epoch.client_random, label)
        if found is None and epoch.phase in ("early", "handshake"):
            # Who has logged what comes later will not log this any more
            later = self.keys.find(epoch.client_random, TRAFFIC[server])
            if later is not None and later[1] < self.end:
                self._known(flow, later[1])
                known[key] = None
                return MISSING
        if found is None or found[1] >= self.end:
            if found is not None or self.keys.expecting:
                flow.blocked = True
                return None
            known[key] = None
            return MISSING
        if not self._known(flow, found[1]):
            return MISSING
        if epoch.phase == "master":
            both = schedule.keys_12(chosen, found[0], epoch.client_random, epoch.server_random)
            opener = opener_of(chosen, both[server], False, epoch.mac_last)
        else:
            at, secret = 0, found[0]
            if epoch.phase == "traffic":
                if flow.secret is not None and flow.secret[:2] == (epoch.client_random, server) and flow.secret[2] <= epoch.generation:
                    at, secret = flow.secret[2:]
                for _ in range(at, epoch.generation):
                    secret = schedule.next_secret(chosen, secret)
                flow.secret = epoch.client_random, server, epoch.generation, secret
            opener = opener_of(chosen, schedule.keys_13(chosen, secret), True)
        if len(known) >= KNOWN:
            known.clear()
        known[key] = opener
        return opener

    def hellos(self, flow: Flow) -> tuple[ClientHello, ServerHello] | Gone | None:
        """Both hellos of the handshake that a side is in; None where it has to wait for one."""
        assert self.handshake is not None
        number, client = max(flow.round, 0), self.handshake.client
        said = self.handshake.offers.get(number), self.handshake.answers.get(number)
        stopped = [self.flows[side].stopped for side in (client, 1 - client)]
        gone = [self.flows[side].stopped_at for side in (client, 1 - client) if said[side != client] is None and stopped[side != client]]
        if gone:
            self._known(flow, min(gone))
            return GONE
        offer, answer = said
        if offer is None or answer is None:
            flow.blocked = True
            return None
        return (offer[0], answer[0]) if self._known(flow, max(offer[1], answer[1])) else GONE

    # The first bytes

    def _open(self, items: list[Chunk | Hole]) -> list[Chunk | Hole]:
        """Tell by the bytes that were certain first; what goes on if this is not TLS."""
        self.opening += items
        if self.first < 0:
            chunks = [item for item in self.opening if isinstance(item, Chunk)]
            if not chunks:
                return []
            self.first = min(chunks, key=lambda one: (one.releases[0], one.side)).side
        data = b""
        for item in self.opening:
            if item.side != self.first:
                continue
            if not isinstance(item, Chunk):
                if data:
                    return self._settle(item.release)
                continue
            for index, start in enumerate(item.starts):
                held = bool(data)
                data += item.data[start : item.starts[index + 1] if index + 1 < len(item.starts) else None]
                found = begins(data)
                if found is False:
                    return self._settle(item.releases[index] if held else 0)
                if found:
                    self.handshake = Handshake(self.first if data[5] == hello.CLIENT_HELLO else 1 - self.first)
                    opening, self.opening = self.opening, []
                    return opening
        return []

    def _settle(self, release: int) -> list[Chunk | Hole]:
        """This is not TLS, which the packet `release` told."""
        self.plain = True
        opening, self.opening = self.opening, []
        for item in opening:
            if not isinstance(item, Chunk):
                item.release = max(item.release, release)
            elif item.releases[0] < release:
                item.releases = [max(one, release) for one in item.releases]
        return opening

    # Both sides

    def _drain(self) -> list[Chunk | Hole]:
        """Read both sides until neither gets further: what one tells may free the other."""
        progress = True
        while progress:
            progress = False
            for flow in self.flows:
                progress = self._run(flow) or progress
            for flow in () if progress else self.flows:
                if flow.blocked:
                    flow.weigh(self.options.keys_limit)
                    if flow.crossed is not None:
                        self._too_much(flow, flow.crossed)
                        progress = True
        for flow in self.flows:
            flow.rest()
        out = self.flows[0].take() + self.flows[1].take()
        if out:
            self.emitted = True
        return out

    def _run(self, flow: Flow) -> bool:
        """Read one side as far as it goes; whether it went anywhere."""
        moved = False
        while True:
            before = flow.position, flow.epoch, flow.lost, flow.stopped
            self._step(flow)
            if (flow.position, flow.epoch, flow.lost, flow.stopped) == before:
                if flow.blocked or not flow.queue:
                    return moved
                item = flow.queue.popleft()
                if isinstance(item, Hole):
                    self._hole(flow, item)
                else:
                    flow.add(item)
            moved = True

    def _step(self, flow: Flow) -> None:
        if flow.stopped is not None:
            self._walk(flow)
        elif flow.lost is not None:
            back.seek(self, flow, flow.lost)
        elif flow.epoch is None:
            self._clear(flow)
        else:
            self._sealed(flow, flow.epoch)

    def _known(self, flow: Flow, since: int) -> bool:
        """What a side needs is known since the packet `since`; False if it could not wait so long."""
        if flow.blocked or (flow.releases and since > flow.release(flow.index)):
            flow.weigh(self.options.keys_limit)
            if flow.crossed is not None and flow.crossed < since:
                self._too_much(flow, flow.crossed)
                return False
            flow.unblock()
        flow.floor = max(flow.floor, since)
        return True

    def _too_much(self, flow: Flow, release: int) -> None:
        """What a side holds while it waits is more than it may."""
        flow.limited += 1
        flow.stop(self._lacking(flow), release)

    def _lacking(self, flow: Flow) -> str:
        """Why a side that waits in vain cannot be read."""
        assert self.handshake is not None
        number = max(flow.round, 0)
        return MISSING if number in self.handshake.answers and number in self.handshake.offers else BEGINNING

    # Records

    def _clear(self, flow: Flow) -> None:
        """Read one record before anything is sealed."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        assert handshake is not None
        if len(data) - at < HEADER:
            return
        if not sane(data, at):
            reason = "records damaged"
            if flow.round < 0 and not flow.position:
                reason = "answered without TLS" if self.whole else BEGINNING
                handshake.facts.plain_peer = flow.side if self.whole else None
            flow.deaf = True
            flow.stop(reason, flow.release(flow.reach(at + HEADER)))
            return
        kind, end = data[at], at + HEADER + int.from_bytes(data[at + 3 : at + 5], "big")
        if len(data) < end:
            return
        if kind == MESSAGE:
            handshake.take(flow, data[at + HEADER : end], flow.reach(end))
        elif kind == ALERT:
            handshake.alert(flow, data[at + HEADER : end], flow.reach(end))
        elif kind in (CHANGE, DATA):
            self._change(flow, kind, end)
            if kind == DATA or flow.blocked:
                return
        if flow.stopped is None:
            flow.reach(end)
            flow.consume(end)

    def _change(self, flow: Flow, kind: int, end: int) -> None:
        """A ChangeCipherSpec, which says nothing in TLS 1.3, or a first sealed record, which there is in TLS 1.3 only."""
        handshake = self.handshake
        assert handshake is not None
        if kind == CHANGE and flow.round < 0 and not handshake.is_client(flow):
            # Behind a HelloRetryRequest
            return
        hellos = self.hellos(flow)
        if hellos is None:
            return
        if isinstance(hellos, Gone) or (kind == DATA and hellos[1].version < TLS_13):
            flow.stop(BEGINNING, flow.release(flow.find(end)))
            return
        offer, answer = hellos
        if answer.version < TLS_13:
            if offer.session and offer.session == answer.session:
                handshake.facts.resumed = True
            phase = "master"
        elif kind == CHANGE:
            return
        else:
            phase = "early" if handshake.is_client(flow) and offer.early_data and not handshake.facts.retried else "handshake"
        handshake.begin_sealed(flow)
        flow.enter(Epoch(phase, answer.cipher, offer.random, answer.random, answer.encrypt_then_mac))
        if answer.version < TLS_12:
            flow.stop(f"version {hello.version_name(answer.version)} not supported", flow.release(flow.find(end)))

    def _sealed(self, flow: Flow, epoch: Epoch) -> None:
        """Read sealed records: all that are at hand, unless one of them changes how the next are read."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        assert handshake is not None
        if len(data) - at < HEADER or not self._ready(flow, epoch):
            return
        assert flow.opener is not None
        newer = epoch.phase != "master"
        refused = epoch.phase == "early" and handshake.early is not None and not handshake.early[0]
        wanted = epoch.phase != "handshake" and not refused
        open_record, seq = flow.opener.open, flow.seq
        starts, base, index = flow.starts, flow.base, flow.index
        size, last = len(data), len(starts) - 1
        count = 0
        parts: list[bytes] = []
        picks: list[int] = []
        firsts: list[int] = []
        ends: list[int] = []
        while size - at >= HEADER:
            kind = data[at]
            length = data[at + 3] << 8 | data[at + 4]
            end = at + HEADER + length
            if data[at + 1] != 3 or not CHANGE <= kind <= HEARTBEAT or length > LARGEST:
                flow.lose(base + at, seq, base + at + 1, "skipped")
                break
            if end > size or (flow.singly and count):
                break
            while index < last and starts[index + 1] <= base + at:
                index += 1
            first = index
            while index < last and starts[index + 1] < base + end:
                index += 1
            if newer and kind != DATA:
                if kind == ALERT:
                    handshake.alert(flow, data[at + HEADER : end], index)
                at = end
                continue
            found = open_record(data, at, end, seq)
            if found is None:
                index = first
                flow.lose(base + at, seq, base + at, "skipped", True)
                break
            kind, content = found
            count += 1
            if kind == DATA:
                seq += 1
                at = end
                if wanted and content:
                    parts.append(content)
                    picks.append(index)
                    firsts.append(first)
                    ends.append(end)
                continue
            if parts:
                flow.emit(parts, picks, firsts, ends)
                parts, picks, firsts, ends = [], [], [], []
            if kind == CHANGE:
                # What follows is sealed under the keys of a renegotiation
                flow.index = first
                self._change(flow, kind, end)
                if flow.epoch is not epoch:
                    at, seq = end, 0
                break
            seq += 1
            at = end
            if kind == MESSAGE:
                handshake.take(flow, content, index)
                if flow.epoch is not epoch or flow.stopped is not None:
                    seq = 0
                    break
            elif kind == ALERT:
                handshake.alert(flow, content, index)
        if parts:
            flow.emit(parts, picks, firsts, ends)
        flow.opened += count
        flow.opened_bytes += at - flow.at
        flow.seq = seq
        flow.index = index
        flow.consume(at)

    def _ready(self, flow: Flow, epoch: Epoch) -> bool:
        """Whether there is what opens a side's records, and it is known what becomes of them."""
        if flow.opener is None:
            opener = self.opener(flow, epoch)
            if opener is None:
                return False
            if isinstance(opener, str):
                if epoch.phase in ("early", "handshake") and opener == MISSING:
                    # Those of the traffic may be known all the same.
                    flow.lose(flow.position, 0, flow.position, "skipped" if epoch.phase == "early" else None, True)
                else:
                    flow.stop(opener, flow.release(flow.index))
                return False
            flow.opener = opener
        if epoch.phase != "early":
            return True
        assert self.handshake is not None
        server = self.flows[1 - flow.side]
        if self.handshake.early is not None:
            return self._known(flow, self.handshake.early[1])
        if server.stopped is not None:
            return self._known(flow, server.stopped_at)
        flow.blocked = True
        return False

    def _walk(self, flow: Flow) -> None:
        """Pass over records that are not read; alerts show all the same, in TLS 1.2 even sealed ones."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        assert handshake is not None
        sealed_12 = flow.epoch is not None and flow.epoch.phase == "master"
        while not flow.deaf and len(data) - at >= HEADER:
            if not sane(data, at):
                flow.deaf = True
                break
            kind, end = data[at], at + HEADER + int.from_bytes(data[at + 3 : at + 5], "big")
            if end > len(data):
                break
            if kind == ALERT:
                handshake.alert(flow, b"" if sealed_12 else data[at + HEADER : end], flow.reach(end))
            elif kind == MESSAGE and sealed_12:
                handshake.finish(flow)
            flow.reach(end)
            at = end
        flow.consume(len(data) if flow.deaf else at)

    def _hole(self, flow: Flow, hole: Hole) -> None:
        """Sealed bytes are missing."""
        behind = hole.position + (hole.size or 0)
        if flow.stopped is not None:
            flow.deaf = True
        elif flow.lost is not None:
            if flow.lost.anywhere:
                flow.lost.seq = flow.lost.passed = 0
            elif flow.lost.reason in (None, "skipped"):
                flow.lost.reason = hole.reason
            flow.lost.framed = flow.lost.tried = False
            flow.lost.scan = behind
        elif flow.epoch is None and flow.round < 0:
            flow.stop(BEGINNING, hole.release)
            flow.deaf = True
        else:
            flow.lose(flow.position, flow.seq, behind, hole.reason)
        flow.handshake, flow.passing = b"", 0
        flow.drop(behind)

    def _finish(self, flow: Flow, release: int, last: Mark) -> None:
        """No more bytes of this side will come."""
        if flow.stopped is None and flow.lost is not None and not flow.opened:
            flow.stop(back.WRONG if flow.lost.reason == "skipped" else BEGINNING, release)
        if not self.emitted:
            return
        reason: Any = None
        if flow.stopped is not None:
            reason = "skipped"
        elif flow.lost is not None:
            reason = flow.lost.reason
        if reason is not None:
            flow.gap(None, reason, release, last)
