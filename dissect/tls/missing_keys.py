"""What one side of a TLS connection needs from elsewhere: keys, and the hellos of both sides."""

from __future__ import annotations

from ..model import Options
from . import schedule
from .ciphers import Opener, opener_of
from .handshake import TlsHandshake
from .hello import ClientHello, ServerHello
from .keys import EARLY, HANDSHAKE, MASTER, TRAFFIC, KeyLog
from .record_buffer import Epoch, RecordBuffer
from .suites import suite

KNOWN = 256
"""What opens records is kept for so many keys."""

MISSING = "keys missing"
BEGINNING = "beginning not captured"


class MissingKeys:
    """Says what a side needs, or lets it wait."""

    options: Options
    keys: KeyLog
    flows: tuple[RecordBuffer, RecordBuffer]
    handshake: TlsHandshake
    end: int
    """All packets below were seen, so what keys have come since is known only from there on."""

    def opener(self, flow: RecordBuffer, epoch: Epoch) -> Opener | str | None:
        """What opens a side's records: or why nothing does, or None where it has to wait."""
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
            if flow.blocked:
                # That no key will come is known only now
                self._known(flow, flow.current)
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

    def hellos(self, flow: RecordBuffer) -> tuple[ClientHello, ServerHello] | str | None:
        """Both hellos of the handshake that a side is in: or why they will not come, or None where it has to wait for one."""
        number, client = max(flow.round, 0), self.handshake.client
        said = self.handshake.offers.get(number), self.handshake.answers.get(number)
        stopped = [self.flows[side].stopped for side in (client, 1 - client)]
        gone = [self.flows[side].stopped_at for side in (client, 1 - client) if said[side != client] is None and stopped[side != client]]
        if gone:
            self._known(flow, min(gone))
            return BEGINNING
        offer, answer = said
        if offer is None or answer is None:
            flow.blocked = True
            return None
        return (offer[0], answer[0]) if self._known(flow, max(offer[1], answer[1])) else BEGINNING

    def _known(self, flow: RecordBuffer, since: int) -> bool:
        """What a side needs is known since the packet `since`; False if it could not wait so long."""
        if flow.blocked or (flow.certain_at and since > flow.certain(flow.index)):
            flow.weigh(self.options.keys_limit)
            if flow.crossed is not None and flow.crossed < since:
                self._too_much(flow, flow.crossed)
                return False
            flow.unblock()
        flow.floor = max(flow.floor, since)
        return True

    def _too_much(self, flow: RecordBuffer, current: int) -> None:
        """What a side holds while it waits is more than it may."""
        flow.limited += 1
        flow.stop(self._lacking(flow), current)

    def _lacking(self, flow: RecordBuffer) -> str:
        """Why a side that waits in vain cannot be read."""
        number = max(flow.round, 0)
        return MISSING if number in self.handshake.answers and number in self.handshake.offers else BEGINNING
