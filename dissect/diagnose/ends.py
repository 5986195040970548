"""How conversations end, and where they stand still: what reassembly knows, for the rules."""

from __future__ import annotations

from typing import Any

from ..layers.websocket import WebSocketOutcome
from ..tcp.assembler import TcpStream, never_acknowledged
from ..tcp.signs import Signs

CLOSE_NOTIFY = 0
"""The alert that announces the end."""


def signs_of(tcp: TcpStream, client: int | None) -> Signs:
    """What a conversation shows of the network and of the order of its end."""
    # A client may end its side, and read on; what it asks a server that ended its own has no answer, acknowledged or not
    late = [
        one.late if one.late is not None and (one.side == client or one.late.refused or one.acked < one.late.end) else None
        for one in tcp.streams
    ]
    reset = None if tcp.end is None else tcp.end.reset
    return Signs(
        reset, tcp.ignored, (late[0], late[1]), never_acknowledged(tcp), tcp.silence, (tcp.streams[0].damaged, tcp.streams[1].damaged)
    )


def how_ended(tcp: TcpStream, tls: Any, websocket: WebSocketOutcome | None) -> tuple[str, int | None, int | None]:
    """How a conversation ended, by whom, and when."""
    end = tcp.end
    if end is None:
        how, by, ended_ns = tcp.ended, None, None
    else:
        how, by, ended_ns = "FIN" if end.how == "FIN" else "RST", 1 - end.side if end.answers else end.side, end.time_ns
    if tcp.first_end_unsure:
        by = None
    if how == "FIN":
        # The side that closes WebSocket or TLS ends it, and the other may be faster to end the connection below
        if websocket is not None and websocket.close is not None:
            return how, websocket.close.side, websocket.close.time_ns
        notify = next((alert for alert in tls.alerts if alert.number == CLOSE_NOTIFY), None) if tls is not None else None
        if notify is not None:
            return how, notify.side, notify.packet[3]
    return how, by, ended_ns
