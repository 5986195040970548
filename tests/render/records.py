"""Records made by hand, with the shape that dissectors give them."""

from __future__ import annotations

from typing import Any

from streamdump.model import Ending, Exchange, Fault, Gap, Message, Span

CLIENT, SERVER = "192.0.2.1:51054", "192.0.2.2:5552"
START = 1_600_000_000_000_000_000
TIME = "2020-09-13T12:26:40.000000000Z"


def message(number: int = 1, **changes: Any) -> Message:
    """A request of the client, one millisecond after the one before."""
    values: dict[str, Any] = {
        "v": 1,
        "number": number,
        "time": f"2020-09-13T12:26:40.{(number - 1) * 1_000_000:09d}Z",
        "time_ns": START + (number - 1) * 1_000_000,
        "conversation": 0,
        "src": CLIENT,
        "dst": SERVER,
        "sender": "client",
        "protocol": "rabbitmq-stream",
        "name": "DeclarePublisher",
        "kind": "request",
        "id": 1,
        "stream": None,
        "file": 0,
        "packets": (4, 4),
        "position": 0,
        "size": 8,
        "fields": {"size": 4, "key": 1, "reference": "orders"},
        "request": None,
        "outcome": None,
        "latency_ns": None,
        "notes": (),
        "fault": None,
    }
    return Message(**{**values, **changes})


def response(number: int = 2, **changes: Any) -> Message:
    """The server's answer to request 1."""
    values: dict[str, Any] = {
        "src": SERVER,
        "dst": CLIENT,
        "sender": "server",
        "kind": "response",
        "request": 1,
        "outcome": "answered",
        "latency_ns": 734_000,
    }
    return message(number, **{**values, **changes})


def gap(number: int = 3, **changes: Any) -> Gap:
    """Bytes of the server that were not captured."""
    values: dict[str, Any] = {
        "v": 1,
        "number": number,
        "time": TIME,
        "time_ns": START,
        "conversation": 0,
        "src": SERVER,
        "dst": CLIENT,
        "sender": "server",
        "protocol": "rabbitmq-stream",
        "position": 100,
        "size": 1448,
        "reason": "lost",
        "in_frame": False,
    }
    return Gap(**{**values, **changes})


def exchange(number: int = 4, **changes: Any) -> Exchange:
    """A request that was never answered."""
    values: dict[str, Any] = {
        "v": 1,
        "number": number,
        "time": TIME,
        "time_ns": START,
        "conversation": 0,
        "src": CLIENT,
        "dst": SERVER,
        "protocol": "rabbitmq-stream",
        "name": "Open",
        "id": 7,
        "stream": None,
        "request": 1,
        "response": None,
        "outcome": "unanswered",
        "reason": "closed",
        "latency_ns": None,
        "waited_ns": 3_000_000_000,
    }
    return Exchange(**{**values, **changes})


def ending(number: int = 5, **changes: Any) -> Ending:
    """The server closed."""
    values: dict[str, Any] = {
        "v": 1,
        "number": number,
        "time": TIME,
        "time_ns": START,
        "conversation": 0,
        "src": SERVER,
        "dst": CLIENT,
        "sender": "server",
        "protocol": "rabbitmq-stream",
        "how": "FIN",
        "quiet_ns": 3_000_000_000,
        "open": 0,
        "refused": 0,
    }
    return Ending(**{**values, **changes})


def detailed(**changes: Any) -> Message:
    """A message with byte ranges: a number, a text, and a password that `raw` holds as it is."""
    frame = bytes.fromhex("0000 0014 0001") + b"\x00\x06orders" + b"\x00\x06secret"
    spans = [
        Span("size", 0, 4, 20),
        Span("key", 4, 2, 1, label="DeclarePublisher"),
        Span("properties", 6, 16, None, 0, False),
        Span("reference", 6, 8, "orders", 1),
        Span("password", 14, 8, "<redacted 6 bytes>", 1, True, None, True),
    ]
    return message(**{"size": len(frame), "raw": {"frame": frame}, "spans": spans, **changes})


FAULT = Fault("reference", 6, "length says 6 bytes, 3 left")
