"""The head of an HTTP/1.1 message, as far as an upgrade to WebSocket depends on it."""

from __future__ import annotations

import re

import msgspec

LARGEST = 16_384
"""Bytes of a head at most."""

REQUEST, RESPONSE, END = b"GET ", b"HTTP/1.", b"\r\n\r\n"

_REQUEST = re.compile(rb"GET ([!-~]+) HTTP/1\.1")
_RESPONSE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9])(?: ([\t -~]*))?")
_COMMA = re.compile(r"[ \t]*,[ \t]*")

LONGEST = 80
"""Characters of a text in a head that are shown."""


class HttpHead(msgspec.Struct, gc=False):
    """A head of `size` bytes. `target` of a request, `status` and `reason` of a response; header fields by name in lower case, those that
    occur several times as one list."""

    size: int
    target: str | None = None
    status: int = 0
    reason: str = ""
    fields: dict[str, str] = {}

    def tokens(self, name: str) -> list[str]:
        """Return the elements of a list in a header field, in lower case."""
        return [one for one in _COMMA.split(self.fields.get(name, "").lower()) if one]

    @property
    def upgrades(self) -> bool:
        """Whether it asks for WebSocket, or agrees."""
        return "websocket" in self.tokens("upgrade") and (self.target is not None or self.status == SWITCHING)

    @property
    def body(self) -> int | None:
        """The bytes of the body of a response; None if that is not known."""
        length = self.fields.get("content-length", "")
        if self.status < 200 or self.status in (204, 304):
            return 0
        return int(length) if length.isdecimal() and len(length) < 16 else None

    def outcome(self) -> str:
        """`401 Unauthorized`."""
        return f"{self.status} {self.reason}".rstrip()


SWITCHING = 101


def fits(data: bytes, begin: bytes) -> bool:
    """Return whether these first bytes are, or may become, `begin`."""
    return data[: len(begin)] == begin[: len(data)]


def read_head(data: bytes) -> HttpHead | bool:
    """Return the head that these bytes begin with; True if more bytes are needed, False if they do not begin with one."""
    if not (fits(data, REQUEST) or fits(data, RESPONSE)):
        return False
    end = data.find(END, 0, LARGEST)
    if end < 0:
        return len(data) < LARGEST
    line, *lines = data[:end].split(b"\r\n")
    request, response = _REQUEST.fullmatch(line), _RESPONSE.fullmatch(line)
    head = HttpHead(end + len(END), fields={})
    if request is not None:
        head.target = request[1].decode()
    elif response is not None:
        head.status, head.reason = int(response[1]), (response[2] or b"").decode().strip()[:LONGEST]
    else:
        return False
    for one in lines:
        name, colon, value = one.decode("latin-1").partition(":")
        if colon:
            name, value = name.strip().lower(), value.strip()
            head.fields[name] = f"{head.fields[name]}, {value}" if name in head.fields else value
    return head
