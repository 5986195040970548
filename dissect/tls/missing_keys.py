"""Keys and hellos that one side of a TLS connection needs, and waiting for them."""

from __future__ import annotations

from ..model import Options
from . import schedule
from .ciphers import Opener, make_opener
from .handshake import TlsHandshake
from .hello import ClientHello, ServerHello
from .keys import EARLY, HANDSHAKE, MASTER, TRAFFIC, KeyLog
from .record_buffer import Epoch, RecordBuffer
from .suites import suite

MAX_OPENERS = 256
"""Openers cached per side."""

MISSING = "keys missing"
BEGINNING = "beginning not captured"


class MissingKeys:
    """Provides openers and hellos to a side, or blocks it."""

    options: Options
    keys: KeyLog
    flows: tuple[RecordBuffer, RecordBuffer]
    handshake: TlsHandshake
    end: int
    """All packets below it were processed; keys that arrive now are known from it on."""

    def opener(self, flow: RecordBuffer, epoch: Epoch) -> Opener | str | None:
        """Return the opener for a side's records, the reason why there is none, or None if the side has to wait."""
        server = epoch.server if epoch.server is not None else not self.handshake.is_client(flow)
        key = epoch.phase, epoch.generation, epoch.cipher, epoch.client_random, server
        # Openers tried for many connections are shared
        known = self.keys.shared_openers if epoch.server is not None and not epoch.generation else flow.openers
        if key in known:
            return known[key] or MISSING
        chosen = suite(epoch.cipher)
        if chosen is None:
            return "cipher suite not supported"
        label = {"early": EARLY, "master": MASTER, "handshake": HANDSHAKE[server], "traffic": TRAFFIC[server]}[epoch.phase]
        found = self.keys.find(epoch.client_random, label)
        if found is None and epoch.phase in ("early", "handshake"):
            # A log that has the later secret will not get this one
            later = self.keys.find(epoch.client_random, TRAFFIC[server])
            if later is not None and later[1] < self.end:
                self._available_since(flow, later[1])
                known[key] = None
                return MISSING
        if found is None or found[1] >= self.end:
            if found is not None or self.keys.expecting:
                flow.blocked = True
                return None
            if flow.blocked:
                # Only now is it known that no key will come
                self._available_since(flow, flow.current)
            known[key] = None
            return MISSING
        if not self._available_since(flow, found[1]):
            return MISSING
        if epoch.phase == "master":
            keys = schedule.keys_12(chosen, found[0], epoch.client_random, epoch.server_random)
            opener = make_opener(chosen, keys[server], False, epoch.encrypt_then_mac)
        else:
            at, secret = 0, found[0]
            if epoch.phase == "traffic":
                if flow.secret is not None and flow.secret[:2] == (epoch.client_random, server) and flow.secret[2] <= epoch.generation:
                    at, secret = flow.secret[2:]
                for _ in range(at, epoch.generation):
                    secret = schedule.next_secret(chosen, secret)
                flow.secret = epoch.client_random, server, epoch.generation, secret
            opener = make_opener(chosen, schedule.keys_13(chosen, secret), True)
        if len(known) >= MAX_OPENERS:
            known.clear()
        known[key] = opener
        return opener

    def hellos(self, flow: RecordBuffer) -> tuple[ClientHello, ServerHello] | str | None:
        """Return both hellos of a side's handshake, the reason why they will not come, or None if the side has to wait."""
        number, client = max(flow.round, 0), self.handshake.facts.client
        both = self.handshake.client_hellos.get(number), self.handshake.server_hellos.get(number)
        stopped = [self.flows[side].stopped for side in (client, 1 - client)]
        gone = [self.flows[side].stopped_at for side in (client, 1 - client) if both[side != client] is None and stopped[side != client]]
        if gone:
            self._available_since(flow, min(gone))
            return BEGINNING
        offer, answer = both
        if offer is None or answer is None:
            flow.blocked = True
            return None
        return (offer[0], answer[0]) if self._available_since(flow, max(offer[1], answer[1])) else BEGINNING

    def _available_since(self, flow: RecordBuffer, since: int) -> bool:
        """Unblock a side whose data is known since the packet `since`; False if it reached its limit before."""
        if flow.blocked or (flow.completed_at and since > flow.completed_by(flow.index)):
            flow.measure_held(self.options.keys_limit)
            if flow.exceeded_at is not None and flow.exceeded_at < since:
                self._exceed_limit(flow, flow.exceeded_at)
                return False
            flow.unblock()
        flow.floor = max(flow.floor, since)
        return True

    def _exceed_limit(self, flow: RecordBuffer, current: int) -> None:
        """Stop a side that holds too much while it waits."""
        flow.limited += 1
        flow.stop(self._missing_reason(flow), current)

    def _missing_reason(self, flow: RecordBuffer) -> str:
        """Return why a side that waited in vain cannot be read."""
        number = max(flow.round, 0)
        return MISSING if number in self.handshake.server_hellos and number in self.handshake.client_hellos else BEGINNING
