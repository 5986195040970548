"""Handshake messages of both sides: key agreement, and facts about the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from . import hello
from .facts import MAX_ALERTS, Alert, TlsFacts, read_certificate
from .hello import TLS_12, TLS_13, ClientHello, ServerHello
from .record_buffer import RecordBuffer

H = TypeVar("H", ClientHello, ServerHello)

ALERT_SEALED = 2 + 1 + 16
"""Bytes of a TLS 1.3 record that contains an alert: records that complete a handshake are longer."""

MAX_MESSAGE = 64 << 10
"""Bytes of the largest message that is parsed; larger ones are skipped."""

UNCOUNTED = (hello.HELLO_REQUEST, hello.NEW_SESSION_TICKET, hello.KEY_UPDATE)
"""Messages that are not steps of a handshake."""


class TlsHandshake:
    """Processes the messages of both sides. A fact that the other side may wait for has the packet from which on it is known."""

    def __init__(self, client: int) -> None:
        self.facts = TlsFacts(client)
        self.client_hellos: dict[int, tuple[ClientHello, int]] = {}
        self.server_hellos: dict[int, tuple[ServerHello, int]] = {}
        """By handshake: a renegotiation is another one. Only the last two are kept."""
        self.early: tuple[bool, int] | None = None
        """Whether the server accepts early data, and the packet from which on that is known."""
        self.done = [False, False]
        """Which sides have finished."""
        self.skipped = [0, 0]
        """By side, the encrypted TLS 1.3 records that were skipped; of the server, those after the client's first one."""
        self.latest = (-1, -1)
        """Packet and side of the latest message."""

    def is_client(self, flow: RecordBuffer) -> bool:
        return flow.side == self.facts.client

    def facts_so_far(self, flows: Sequence[RecordBuffer]) -> TlsFacts:
        """Return the facts known so far, whichever side was read first."""
        facts = self.facts
        facts.decrypted = flows[0].decrypted, flows[1].decrypted
        facts.skipped = sum(flow.skipped for flow in flows)
        client = flows[self.facts.client]
        facts.unanswered = facts.sealed and client.epoch is None and client.stopped is None and client.lost is None
        facts.alerts = sorted([alert for flow in flows for alert in flow.alerts], key=lambda alert: (alert.packet, alert.side))
        stopped = [(flow.stopped_at, flow.side, flow.stopped) for flow in flows if flow.stopped is not None]
        facts.unread = min(stopped)[2] if stopped else None
        if facts.early_data is not None and self.early is not None:
            facts.early_data = "accepted" if self.early[0] else "rejected"
        return facts

    def feed(self, flow: RecordBuffer, content: bytes, index: int) -> None:
        """Process handshake bytes of a record that the segment at `index` completed."""
        if flow.skip_bytes:
            passed = min(flow.skip_bytes, len(content))
            flow.skip_bytes -= passed
            content = content[passed:]
        data = flow.handshake + content
        epoch = flow.epoch
        at = 0
        while len(data) - at >= 4:
            kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "big")
            left = len(data) - at - 4
            if size > MAX_MESSAGE:
                self._message(flow, kind, b"", index)
                flow.skip_bytes = max(0, size - left)
                at += 4 + min(size, left)
                continue
            if left < size:
                break
            self._message(flow, kind, data[at + 4 : at + 4 + size], index)
            if flow.epoch is not epoch:
                # Keys change at the end of a record
                return
            at += 4 + size
        flow.handshake = data[at:]

    def _message(self, flow: RecordBuffer, kind: int, body: bytes, index: int) -> None:
        facts = self.facts
        current = flow.completed_by(index)
        client = self.is_client(flow)
        if not facts.complete and kind not in UNCOUNTED and flow.round <= 0 and (current, flow.side) >= self.latest:
            # How far the handshake got: the message completed last counts, whichever side was read first
            self.latest = current, flow.side
            facts.last = flow.side, hello.MESSAGES.get(kind, f"message {kind}"), flow.marks[index][3]
        sealed = flow.epoch.phase if flow.epoch is not None else None
        if kind == hello.CLIENT_HELLO and client and sealed in (None, "master"):
            self._offer(flow, facts, body, current)
        elif kind == hello.SERVER_HELLO and not client and sealed in (None, "master"):
            self._answer(flow, facts, body, current)
        elif kind == hello.ENCRYPTED_EXTENSIONS and not client:
            facts.alpn, early = hello.encrypted_extensions(body)
            self.early = early, current
        elif kind in (hello.CERTIFICATE, hello.COMPRESSED_CERTIFICATE):
            self._certificate(flow, facts, kind, body, index)
        elif kind == hello.CERTIFICATE_REQUEST and not client:
            facts.certificate_asked = True
        elif flow.epoch is not None and kind == hello.FINISHED and sealed != "traffic":
            if sealed == "handshake":
                flow.enter(flow.epoch.then("traffic"))
            self.finish(flow)
        elif flow.epoch is not None and kind == hello.END_OF_EARLY_DATA and sealed == "early":
            flow.enter(flow.epoch.then("handshake"))
        elif flow.epoch is not None and kind == hello.KEY_UPDATE and sealed == "traffic":
            facts.key_updates += 1
            flow.enter(flow.epoch.then("traffic", flow.epoch.generation + 1))

    def _begins(self, flow: RecordBuffer, parsed: H | None, current: int, hellos: dict[int, tuple[H, int]]) -> bool:
        """Return whether a hello starts a handshake of its side: a second one after a HelloRetryRequest brings nothing new."""
        if parsed is None:
            flow.stop("damaged handshake", current)
            return False
        if flow.round > flow.entered:
            return False
        flow.round += 1
        hellos[flow.round] = parsed, current
        hellos.pop(flow.round - 2, None)
        return True

    def _offer(self, flow: RecordBuffer, facts: TlsFacts, body: bytes, current: int) -> None:
        parsed = hello.client_hello(body)
        if not self._begins(flow, parsed, current, self.client_hellos) or parsed is None:
            return
        if flow.round:
            facts.renegotiations = max(facts.renegotiations, flow.round)
            return
        facts.offered, facts.ciphers = parsed.versions, parsed.ciphers
        facts.server_name, facts.alpn_offered = parsed.server_name, parsed.alpn
        if parsed.early_data:
            facts.early_data = "offered"

    def _answer(self, flow: RecordBuffer, facts: TlsFacts, body: bytes, current: int) -> None:
        parsed = hello.server_hello(body)
        if parsed is not None and parsed.retry:
            facts.retried = True
            return
        if not self._begins(flow, parsed, current, self.server_hellos) or parsed is None:
            return
        facts.version, facts.cipher = parsed.version, parsed.cipher
        if parsed.alpn is not None:
            facts.alpn = parsed.alpn
        if parsed.version >= TLS_13 and parsed.resumed:
            facts.resumed = True

    def _certificate(self, flow: RecordBuffer, facts: TlsFacts, kind: int, body: bytes, index: int) -> None:
        sealed_13 = flow.epoch is not None and flow.epoch.phase != "master"
        der = hello.leaf_certificate(body, TLS_13 if sealed_13 else TLS_12) if kind == hello.CERTIFICATE else b""
        if not self.is_client(flow):
            facts.certificate, facts.certificate_packet = read_certificate(der), flow.marks[index]
            return
        facts.certificate_given = bool(der) or len(body) > 8
        if facts.certificate_given:
            facts.client_certificate = read_certificate(der)

    def begin_sealed(self, flow: RecordBuffer) -> None:
        """Note that a side encrypts its messages from here on."""
        flow.entered = flow.round
        self.facts.sealed = not self.facts.complete

    def finish(self, flow: RecordBuffer) -> None:
        """Note that a side has finished its handshake."""
        self.done[flow.side] = True
        if all(self.done):
            self.facts.complete = True
            self.facts.sealed = False

    def count_skipped(self, flow: RecordBuffer, size: int, index: int) -> None:
        """Count an encrypted TLS 1.3 record of this size: a first one that is an alert, with no other behind it, ended the handshake."""
        facts, client = self.facts, self.is_client(flow)
        if facts.early_data is not None or not (client or self.skipped[self.facts.client]):
            return
        self.skipped[flow.side] += 1
        if self.skipped[flow.side] == 1 and size == ALERT_SEALED and facts.sealed_alert is None:
            facts.sealed_alert = flow.side, flow.marks[index][3]
        elif facts.sealed_alert is not None and not client and facts.sealed_alert[0] == flow.side:
            facts.sealed_alert = None

    def alert(self, flow: RecordBuffer, body: bytes, index: int) -> None:
        """Record an alert completed by the segment at `index`; an encrypted one has no body."""
        if len(flow.alerts) < MAX_ALERTS:
            readable = len(body) == 2
            flow.alerts.append(Alert(flow.side, readable and body[0] == 2, body[1] if readable else None, flow.marks[index]))
