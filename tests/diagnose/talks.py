"""Builds captures of one or several connections, and brings what is found in captures into one form."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streamdump.capture.files import open_capture
from streamdump.diagnose.engine import Outcome
from streamdump.inspector import Inspector
from streamdump.model import Finding, Options, Record
from streamdump.protocols.rabbitmq import layouts
from streamdump.render.findings import rank
from tests.support.encoder import encode
from tests.support.frames import ACK, FIN, PSH, RST, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp

MS = 1_000_000
SECOND = 1_000 * MS


class Connection:
    """One connection, packet by packet, each a millisecond after the one before unless `wait` says otherwise."""

    def __init__(self, begin: int = 0, sport: int = 40000, dport: int = 5552, client: bytes = A) -> None:
        self.packets: list[Packet] = []
        self.now = START_NS + begin
        self.ports = (sport, dport)
        self.addresses = (client, B)
        self.next = [1000, 5000]
        self.ident = 0

    def segment(
        self, side: int, data: bytes = b"", flags: int = ACK, window: int | None = None, ttl: int = 64, ahead: int = 0
    ) -> Connection:
        """`ahead`: of the sequence number that would be the next."""
        sport, dport = self.ports[side], self.ports[1 - side]
        body = tcp(
            data,
            sport=sport,
            dport=dport,
            seq=self.next[side] + ahead & 0xFFFF_FFFF,
            ack=self.next[1 - side] if flags & ACK else 0,
            flags=flags,
        )
        if window is not None:
            body = body[:14] + window.to_bytes(2, "big") + body[16:]
        self.packets.append(Packet(ethernet(ip4(body, src=self.addresses[side], dst=self.addresses[1 - side], ttl=ttl)), self.now))
        self.next[side] += len(data) + bool(flags & (SYN | FIN))
        self.now += MS
        return self

    def wait(self, ns: int) -> Connection:
        self.now += ns - MS
        return self

    def open(self) -> Connection:
        return self.segment(0, flags=SYN).segment(1, flags=SYN | ACK).segment(0)

    def ask(self, data: bytes) -> Connection:
        """The client says something."""
        return self.segment(0, data, ACK | PSH)

    def tell(self, data: bytes) -> Connection:
        """The server says something."""
        return self.segment(1, data, ACK | PSH)

    def fin(self, side: int) -> Connection:
        """One side ends, then the other."""
        return self.segment(side, flags=FIN | ACK).segment(1 - side, flags=FIN | ACK).segment(side)

    def reset(self, side: int) -> Connection:
        return self.segment(side, flags=RST | ACK)

    # RabbitMQ Streams

    def client(self, layout: Any, **values: Any) -> Connection:
        return self.ask(self._frame(layout, values))

    def server(self, layout: Any, **values: Any) -> Connection:
        return self.tell(self._frame(layout, values))

    def _frame(self, layout: Any, values: dict[str, Any]) -> bytes:
        """The correlation id counts the client's requests; a response has that of the last one."""
        if layouts.CORRELATION_ID in layout.fields:
            if layout.kind == "request" and "correlation_id" not in values:
                self.ident += 1
            values = {"correlation_id": self.ident, **values}
        if layouts.CODE in layout.fields:
            values = {"response_code": 1, **values}
        return encode(layout, values)

    def greeted(self, user: str = "alice", password: str = "secret", mechanism: str = "PLAIN") -> Connection:
        """Up to the login."""
        properties = [{"key": "product", "value": "RabbitMQ"}, {"key": "version", "value": "4.0.5"}]
        self.open().client(layouts.PEER_PROPERTIES, peer_properties=[])
        self.server(layouts.PEER_PROPERTIES_RESPONSE, peer_properties=properties)
        self.client(layouts.SASL_HANDSHAKE).server(layouts.SASL_HANDSHAKE_RESPONSE, mechanisms=["PLAIN", "AMQPLAIN"])
        data = f"\0{user}\0{password}".encode()
        if mechanism == "AMQPLAIN":
            data = b"\5LOGINS%b%b\x08PASSWORDS%b%b" % tuple(
                part for one in (user.encode(), password.encode()) for part in (len(one).to_bytes(4, "big"), one)
            )
        return self.client(layouts.SASL_AUTHENTICATE, mechanism=mechanism, sasl_opaque_data=data, sasl_username=user)

    def tuned(self, offered: tuple[int, int] = (1 << 20, 60), answered: tuple[int, int] | None = None) -> Connection:
        """Up to Tune, and its answer."""
        answered = answered or offered
        self.greeted().server(layouts.SASL_AUTHENTICATE_RESPONSE).server(layouts.TUNE, frame_max=offered[0], heartbeat=offered[1])
        return self.client(layouts.TUNE_RESPONSE, frame_max=answered[0], heartbeat=answered[1])

    def ready(self, offered: tuple[int, int] = (1 << 20, 60), properties: Iterable[tuple[str, str]] = ()) -> Connection:
        """Ready for use."""
        self.tuned(offered).client(layouts.OPEN, virtual_host="/")
        return self.server(layouts.OPEN_RESPONSE, connection_properties=[{"key": key, "value": value} for key, value in properties])

    def goodbye(self) -> Connection:
        """The client closes as it should."""
        self.client(layouts.CLOSE, closing_code=1, closing_reason="OK").server(layouts.CLOSE_RESPONSE)
        return self.fin(0)


def capture(*connections: Connection) -> bytes:
    """Their packets in the order of their times."""
    return pcap(sorted((packet for one in connections for packet in one.packets), key=lambda one: one.time_ns), nano=True)


def diagnosed(source: bytes | Path, rows: int | None = None, **options: Any) -> tuple[list[Finding], list[Outcome], list[Record]]:
    """The findings, how the conversations went, and all records."""
    reader = open_capture(io.BytesIO(source) if isinstance(source, bytes) else str(source))
    try:
        inspector = Inspector([reader], Options(findings=True, **options), rows, finite=True)
        records = list(inspector.records())
        assert not inspector.reports
        assert inspector.diagnoser is not None
        return [one for one in records if type(one) is Finding], inspector.diagnoser.so_far(), records
    finally:
        reader.close()


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """As `diagnose` shows them."""
    return sorted(found, key=rank)


def by_rule(findings: Iterable[Finding]) -> dict[str, str]:
    """The worst severity of each rule."""
    return {one.rule: one.severity for one in reversed(worst_first(findings))}


def found(source: bytes | Path, **options: Any) -> dict[str, str]:
    """By rule the worst severity of what is found in a capture."""
    return by_rule(diagnosed(source, **options)[0])


def rules(*connections: Connection, **options: Any) -> dict[str, str]:
    """The same of connections, however their packets come in batches."""
    data = capture(*connections)
    findings, _, records = diagnosed(data, **options)
    for rows in (1, 7):
        assert diagnosed(data, rows, **options)[2] == records
    return by_rule(findings)
