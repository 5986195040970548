"""What both sides say of the keys, as far as it can be read, and what it tells of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from . import hello
from .facts import ALERTS_KEPT, Alert, Facts, kept
from .hello import TLS_12, TLS_13, ClientHello, ServerHello
from .record_buffer import RecordBuffer

H = TypeVar("H", ClientHello, ServerHello)

ALERT_SEALED = 2 + 1 + 16
"""Bytes of a record of TLS 1.3 that holds an alert: of what ends a handshake in order, no record is as short."""

KEPT = 64 << 10
"""Bytes of one message; a larger one is passed over."""

UNCOUNTED = (hello.HELLO_REQUEST, hello.NEW_SESSION_TICKET, hello.KEY_UPDATE)
"""Messages that are no steps of a handshake."""


class TlsHandshake:
    """Takes the messages of both sides. A fact that the other side may wait for comes with the packet from which on it is known."""

    def __init__(self, client: int) -> None:
        self.client = client
        """The side that sent the ClientHello."""
        self.facts = Facts(client)
        self.offers: dict[int, tuple[ClientHello, int]] = {}
        self.answers: dict[int, tuple[ServerHello, int]] = {}
        """By handshake: a renegotiation is another one. What is older than the one before the latest is forgotten."""
        self.early: tuple[bool, int] | None = None
        """Whether the server takes early data."""
        self.done = [False, False]
        """Which sides have finished."""
        self.passed = [0, 0]
        """By side, the sealed records of TLS 1.3 that were passed over; of the server, those after the client's first one."""
        self.latest = (-1, -1)
        """Packet and side of the latest message."""

    def is_client(self, flow: RecordBuffer) -> bool:
        return flow.side == self.client

    def known(self, flows: Sequence[RecordBuffer]) -> Facts:
        """What is known of the connection by now, whichever side was read first."""
        facts = self.facts
        facts.plain = flows[0].plain, flows[1].plain
        facts.skipped = sum(flow.skipped for flow in flows)
        client = flows[self.client]
        facts.unanswered = facts.sealed and client.epoch is None and client.stopped is None and client.lost is None
        facts.alerts = sorted([alert for flow in flows for alert in flow.alerts], key=lambda alert: (alert.packet, alert.side))
        stopped = [(flow.stopped_at, flow.side, flow.stopped) for flow in flows if flow.stopped is not None]
        facts.unread = min(stopped)[2] if stopped else None
        if facts.early_data is not None and self.early is not None:
            facts.early_data = "accepted" if self.early[0] else "rejected"
        return facts

    def take(self, flow: RecordBuffer, content: bytes, index: int) -> None:
        """Take a record's part of the handshake, which the segment at `index` completed."""
        if flow.passing:
            passed = min(flow.passing, len(content))
            flow.passing -= passed
            content = content[passed:]
        data = flow.handshake + content
        epoch = flow.epoch
        at = 0
        while len(data) - at >= 4:
            kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "big")
            left = len(data) - at - 4
            if size > KEPT:
                self._message(flow, kind, b"", index)
                flow.passing = max(0, size - left)
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
        current = flow.certain(index)
        client = self.is_client(flow)
        if not facts.complete and kind not in UNCOUNTED and flow.round <= 0 and (current, flow.side) >= self.latest:
            # How far the handshake got: what was certain last counts, whichever side was read first
            self.latest = current, flow.side
            facts.last = flow.side, hello.MESSAGES.get(kind, f"message {kind}"), flow.marks[index][3]
        sealed = flow.epoch.phase if flow.epoch is not None else None
        if kind == hello.CLIENT_HELLO and client and sealed in (None, "master"):
            self._offer(flow, facts, body, current)
        elif kind == hello.SERVER_HELLO and not client and sealed in (None, "master"):
            self._answer(flow, facts, body, current)
        elif kind == hello.ENCRYPTED_EXTENSIONS and not client:
            facts.alpn, taken = hello.encrypted_extensions(body)
            self.early = taken, current
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

    def _begins(self, flow: RecordBuffer, said: H | None, current: int, hellos: dict[int, tuple[H, int]]) -> bool:
        """Whether a hello begins a handshake of its side: the second one, which a HelloRetryRequest asks for, differs in nothing that
        counts."""
        if said is None:
            flow.stop("damaged handshake", current)
            return False
        if flow.round > flow.entered:
            return False
        flow.round += 1
        hellos[flow.round] = said, current
        hellos.pop(flow.round - 2, None)
        return True

    def _offer(self, flow: RecordBuffer, facts: Facts, body: bytes, current: int) -> None:
        said = hello.client_hello(body)
        if not self._begins(flow, said, current, self.offers) or said is None:
            return
        if flow.round:
            facts.renegotiations = max(facts.renegotiations, flow.round)
            return
        facts.offered, facts.ciphers = said.versions, said.ciphers
        facts.server_name, facts.alpn_offered = said.server_name, said.alpn
        if said.early_data:
            facts.early_data = "offered"

    def _answer(self, flow: RecordBuffer, facts: Facts, body: bytes, current: int) -> None:
        said = hello.server_hello(body)
        if said is not None and said.retry:
            facts.retried = True
            return
        if not self._begins(flow, said, current, self.answers) or said is None:
            return
        facts.version, facts.cipher = said.version, said.cipher
        if said.alpn is not None:
            facts.alpn = said.alpn
        if said.version >= TLS_13 and said.resumed:
            facts.resumed = True

    def _certificate(self, flow: RecordBuffer, facts: Facts, kind: int, body: bytes, index: int) -> None:
        sealed_13 = flow.epoch is not None and flow.epoch.phase != "master"
        der = hello.leaf_certificate(body, TLS_13 if sealed_13 else TLS_12) if kind == hello.CERTIFICATE else b""
        if not self.is_client(flow):
            facts.certificate, facts.certificate_packet = kept(der), flow.marks[index]
            return
        facts.certificate_given = bool(der) or len(body) > 8
        if facts.certificate_given:
            facts.client_certificate = kept(der)

    def begin_sealed(self, flow: RecordBuffer) -> None:
        """A side seals what it says from here on."""
        flow.entered = flow.round
        self.facts.sealed = not self.facts.complete

    def finish(self, flow: RecordBuffer) -> None:
        """A side has finished its part."""
        self.done[flow.side] = True
        if all(self.done):
            self.facts.complete = True
            self.facts.sealed = False

    def pass_over(self, flow: RecordBuffer, size: int, index: int) -> None:
        """Note a sealed record of TLS 1.3 of this size: where the first one is an alert, its side does not go on."""
        facts, client = self.facts, self.is_client(flow)
        if facts.early_data is not None or not (client or self.passed[self.client]):
            return
        self.passed[flow.side] += 1
        if self.passed[flow.side] == 1 and size == ALERT_SEALED and facts.sealed_alert is None:
            facts.sealed_alert = flow.side, flow.marks[index][3]
        elif facts.sealed_alert is not None and not client and facts.sealed_alert[0] == flow.side:
            facts.sealed_alert = None

    def alert(self, flow: RecordBuffer, body: bytes, index: int) -> None:
        """Note an alert, which the segment at `index` completed; one that is sealed has no body."""
        if len(flow.alerts) < ALERTS_KEPT:
            readable = len(body) == 2
            flow.alerts.append(Alert(flow.side, readable and body[0] == 2, body[1] if readable else None, flow.marks[index]))
