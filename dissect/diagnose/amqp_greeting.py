"""The frames of AMQP 0-9-1 or 1.0 that help anyone who used the wrong port: the protocol header, Start and Open, and the code and text of
a Close. Nothing else is examined, and no login is shown."""

from __future__ import annotations

import re
from struct import unpack_from

from .rules import quoted

METHODS = {b"\0\x0a\0\x0a": "Start", b"\0\x0a\0\x28": "Open", b"\0\x0a\0\x32": "Close", b"\0S\x10": "Open", b"\0S\x18": "Close"}
"""By their first bytes: class and method of 0-9-1, the descriptor of a performative of 1.0."""

_ERROR = re.compile(rb"\0S\x18(?:\xc0..|\xd0.{8})\0S\x1d(?:\xc0..|\xd0.{8})\xa3(.)", re.S)
"""A Close of 1.0 with an error; the group is the size of its condition."""


def said(data: bytes) -> list[str]:
    """What the first bytes of one side say; servers of 0-9-1 begin with Start."""
    found: dict[str, None] = {}
    at, modern = 0, False
    while len(data) - at >= 8:
        size = 8
        if data.startswith(b"AMQP", at):
            modern = data[at + 5] == 1
            found[f"protocol header {'-'.join(map(str, data[at + 5 : at + 8]))}{' for SASL' if data[at + 4] == 3 else ''}"] = None
        else:
            size = unpack_from(">I", data, at)[0] if modern else unpack_from(">I", data, at + 3)[0] + 8
            body = data[at + 8 if modern else at + 7 : at + size]
            name = METHODS.get(body[: 3 if modern else 4])
            if name is not None:
                found[f"{name}{_reason(body, modern) if name == 'Close' else ''}"] = None
        at += max(size, 8)
    return list(found)


def _reason(body: bytes, modern: bool) -> str:
    """The code of a Close, and its text."""
    if not modern:
        return (
            f" {int.from_bytes(body[4:6], 'big')} {quoted(body[7 : 7 + (body[6] if len(body) > 6 else 0)].decode('utf-8', 'replace'), 200)}"
        )
    error = _ERROR.match(body)
    if error is None:
        return ""
    start = error.end() + error[1][0]
    # The length of a text has one byte, or four
    text = body[start + 2 : start + 2 + body[start + 1]] if body[start : start + 1] == b"\xa1" and len(body) > start + 1 else b""
    return f" {body[error.end() : start].decode('ascii', 'replace')} {quoted(text.decode('utf-8', 'replace'), 200)}"
