"""TLS in a capture to be published: it is still detected as TLS, while encrypted data and the names in its handshake are overwritten.

The headers of records stay. Keys are never written, so nothing inside is known to be anything but sealed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..model import Options, SideData, StreamGap
from ..tcp.assembler import TcpStream
from ..tls.hello import CERTIFICATE, CLIENT_HELLO, SERVER_HELLO
from ..tls.keys import KeyLog
from ..tls.manager import TlsManager, TlsState
from ..tls.records import ALERT, CHANGE, MESSAGE, sane
from .packets import Edits
from .replace import FILL

HEADER = 5
_EVERYTHING = 1 << 62

_SERVER_NAME = 0
_NUMBERS = frozenset((10, 11, 13, 16, 22, 23, 28, 42, 43, 45, 49, 50, 51, 0xFF01))
"""Extensions that stay: versions, algorithms, keys of the exchange, and the names of protocols."""


class TlsSide:
    """One side of a TLS connection, record by record. `sealed`: overwrite encrypted data; `instead`: returns the replacement of a name,
    if names are replaced."""

    def __init__(self, sealed: bool, instead: Callable[[bytes], bytes] | None) -> None:
        self.edits = Edits()
        self._sealed = sealed
        self._instead = instead
        self._data = b""
        self._at = 0
        """How far `_data` was read."""
        self._position = 0
        """Of the first byte in `_data`."""
        self._skip = 0
        """Bytes of a record that need not be looked at."""
        self._rest = 0
        """Bytes of a message of the handshake that follow in other records."""
        self._clear = True
        """Nothing was sealed yet."""
        self._lost = False

    def feed(self, item: SideData | StreamGap) -> None:
        """Process the next bytes, or a gap."""
        if self._lost:
            return
        if isinstance(item, StreamGap):
            self._lose()
            return
        left = self._data[self._at :]
        self._position = item.position - len(left)
        self._data, self._at = left + item.data, 0
        while not self._lost and self._step():
            pass

    def end(self) -> None:
        """No more comes: the rest is a piece of a record."""
        if self._at < len(self._data) and not self._lost:
            self._lose()

    def _lose(self) -> None:
        """Give up: where records begin is unknown."""
        self._lost = True
        if self._sealed or self._clear:
            self.edits.add(self._position + self._at, _EVERYTHING, FILL[0])
        self._data = b""

    def _step(self) -> bool:
        """Read one record, or pass over a piece of one; whether there may be more."""
        data, at = self._data, self._at
        if self._skip:
            passed = min(self._skip, len(data) - at)
            self._skip -= passed
            self._at += passed
            return not self._skip
        left = len(data) - at
        if left < HEADER:
            return False
        if not sane(data, at):
            self._lose()
            return False
        kind, size = data[at], data[at + 3] << 8 | data[at + 4]
        inside = at + HEADER
        position = self._position + inside
        # Behind a HelloRetryRequest, and what may come before it, there is another hello
        if kind == MESSAGE and (self._clear or left == HEADER or data[inside] == CLIENT_HELLO):
            if left < HEADER + size:
                return False
            content = data[inside : inside + size]
            if self._clear or content[:4] == (CLIENT_HELLO << 24 | max(0, size - 4)).to_bytes(4, "big"):
                if self._instead is not None:
                    self._messages(content, position, self._instead)
                self._at = inside + size
                return True
        if kind not in (CHANGE, ALERT) and self._sealed:
            self.edits.add(position, position + size, FILL[0])
        self._clear = self._clear and kind == ALERT
        self._skip = size
        self._at = inside
        return True

    def _messages(self, data: bytes, position: int, instead: Callable[[bytes], bytes]) -> None:
        """Overwrite what a record of the handshake says, but the hellos, of which only names are."""
        at = min(self._rest, len(data))
        self.edits.add(position, position + at, FILL[0])
        self._rest -= at
        while at < len(data):
            size = int.from_bytes(data[at + 1 : at + 4], "big")
            end = at + 4 + size if len(data) - at >= 4 else _EVERYTHING
            hello = data[at] in (CLIENT_HELLO, SERVER_HELLO)
            if not hello or end > len(data):
                # The version stays, which a hello is known by, and how long the first certificate is
                kept = 6 if hello else 10 if data[at] == CERTIFICATE else 4
                self.edits.add(position + at + kept, position + min(end, len(data)), FILL[0])
            elif data[at] == CLIENT_HELLO:
                self._hello(data[at + 4 : end], position + at + 4, instead)
            self._rest = max(0, end - len(data))
            at = end

    def _hello(self, body: bytes, position: int, instead: Callable[[bytes], bytes]) -> None:
        """Overwrite the names in a ClientHello, and what may be any."""
        at = 34
        for width in (1, 2, 1):
            at += width + int.from_bytes(body[at : at + width], "big")
        at += 2
        if at > len(body):
            # lengths that are not true
            self.edits.add(position + 2, position + len(body), FILL[0])
        while at < len(body):
            kind, size = int.from_bytes(body[at : at + 2], "big"), int.from_bytes(body[at + 2 : at + 4], "big")
            start, end = at + 4, at + 4 + size
            name = body[start + 5 : end]
            if kind == _SERVER_NAME and name and end <= len(body) and body[start : start + 5] == _named(len(name)):
                self.edits.add(position + start + 5, position + end, instead(name))
            elif kind not in _NUMBERS or end > len(body):
                self.edits.add(position + start, position + min(end, len(body)), FILL[0])
            at = end


def _named(size: int) -> bytes:
    """What stands in front of the one name of a list."""
    return (size + 3).to_bytes(3, "big")[1:] + b"\0" + size.to_bytes(2, "big")


class TlsOverwriter(TlsManager):
    """Overwrites what may be TLS while it is looked at; of a conversation that is not, that is forgotten."""

    def __init__(self, options: Options, keys: KeyLog, side: Callable[[], TlsSide]) -> None:
        super().__init__(options, keys)
        self.sides: dict[int, tuple[TlsSide, TlsSide]] = {}
        self._side = side

    def feed(
        self, tls: TlsState, tcp: TcpStream, items: list[SideData | StreamGap], release: int, final: bool
    ) -> list[SideData | StreamGap]:
        """Hands on what TLS holds, after a look at which bytes of the packets that is."""
        index = tcp.index
        sides = self.sides.get(index)
        if sides is None:
            sides = self.sides[index] = self._side(), self._side()
        for item in items:
            sides[item.side].feed(item)
        found = super().feed(tls, tcp, items, release, final)
        if tls.not_tls and tls.unread is None:
            del self.sides[index]
        return found
