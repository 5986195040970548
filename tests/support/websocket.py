"""WebSocket as RFC 6455 describes it, written for tests: bytes of an upgrade and of frames, without any of the code under test."""

from __future__ import annotations

import base64
import hashlib
import random
import struct
from collections.abc import Iterable

CLIENT, SERVER = 0, 1

Said = tuple[int, bytes]

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
"""The example of RFC 6455, whose answer is ANSWER."""
ANSWER = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def request(target: str = "/", *fields: str, key: str = KEY, upgrade: str = "websocket") -> bytes:
    lines = [f"GET {target} HTTP/1.1", "Host: 192.0.2.2:8092", f"Upgrade: {upgrade}", "Connection: Upgrade"]
    return "\r\n".join([*lines, f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *fields, "", ""]).encode()


def response(*fields: str, key: str = KEY, accept: str | None = None) -> bytes:
    if accept is None:
        accept = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
    return "\r\n".join([*lines, *fields, "", ""]).encode()


def refusal(status: str = "401 Unauthorized", body: bytes = b"no", *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]).encode() + body


def frame(payload: bytes, mask: bytes | None = None, opcode: int = 2, fin: bool = True, rsv: int = 0, length: int | None = None) -> bytes:
    """One frame; `length`: what its header says instead of the truth."""
    size = len(payload) if length is None else length
    bit = 0x80 if mask is not None else 0
    first = bytes((fin << 7 | rsv << 4 | opcode,))
    if size < 126:
        head = first + bytes((bit | size,))
    elif size < 65_536:
        head = first + bytes((bit | 126,)) + struct.pack(">H", size)
    else:
        head = first + bytes((bit | 127,)) + struct.pack(">Q", size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


class Frames:
    """Frames of both sides, masked as each has to."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)

    def mask(self, side: int) -> bytes | None:
        return self.random.randbytes(4) if side == CLIENT else None

    def message(self, side: int, payload: bytes, opcode: int = 2, piece: int = 0, between: bytes = b"") -> bytes:
        """A message, in fragments of `piece` bytes, with the frame `between` after each."""
        parts = [payload[at : at + piece] for at in range(0, len(payload), piece)] if piece else [payload]
        out = b""
        for at, part in enumerate(parts):
            out += frame(part, self.mask(side), opcode if not at else 0, at == len(parts) - 1) + between
        return out

    def ping(self, side: int, payload: bytes = b"") -> bytes:
        return frame(payload, self.mask(side), 9)

    def pong(self, side: int, payload: bytes = b"") -> bytes:
        return frame(payload, self.mask(side), 10)

    def close(self, side: int, code: int = 1000, reason: str = "") -> bytes:
        return frame(struct.pack(">H", code) + reason.encode(), self.mask(side), 8)


def upgraded(said: Iterable[Said], piece: int = 0, between: bool = False, opcode: int = 2) -> list[Said]:
    """The same conversation inside WebSocket, a message for each element. `between`: with pings and pongs between fragments."""
    frames = Frames()
    found: list[Said] = [(CLIENT, request()), (SERVER, response())]
    for side, data in said:
        control = (frames.ping(side, b"are you there") if side else frames.pong(side)) if between else b""
        found.append((side, frames.message(side, data, opcode, piece, control)))
    return [*found, (CLIENT, frames.close(CLIENT)), (SERVER, frames.close(SERVER))]
