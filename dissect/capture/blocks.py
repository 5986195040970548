"""The unpacked bytes of one input, in blocks of a few megabytes or of what a pipe has at hand."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ..errors import CaptureError
from ..model import Packet

BLOCK = 1 << 20
"""Bytes of a natural block: large enough that the cost per block does not show, small enough for the processor's cache."""

PIECE = 1 << 16
"""Compressed bytes are read and unpacked in pieces of so many."""

UNREADABLE = "cannot be read"
"""How errors begin that are not the input's own."""


TICK_MS = 250
"""How long a pipe is silent until `Raw.idle` is called."""


class Damaged(Exception):
    """Compressed data that cannot be unpacked any further; becomes a `CaptureError` with the position."""


class Raw:
    """Reads a file, pipe or file object as it comes: like `os.read`, it waits for some bytes and not for all."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.name = name
        self.count = 0
        self.total: int | None = None
        self.identity: tuple[int, int] | None = None
        """Device and inode of a file."""
        self._stream = stream
        # read1() of a buffered reader asks the system once; read() would wait until it has everything.
        self._read: Callable[[int], bytes | None] = getattr(stream, "read1", None) or stream.read
        self.idle: Callable[[], None] | None = None
        """Is called again and again while a pipe is silent."""
        self._poll: select.poll | None = None
        self._ahead = b""
        self._at = 0
        """Where in `_ahead` the next byte is."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._examine(stream.fileno())

    def _examine(self, descriptor: int) -> None:
        kind = os.fstat(descriptor)
        if stat.S_ISREG(kind.st_mode):
            self.total, self.identity = kind.st_size, (kind.st_dev, kind.st_ino)
            return
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        if sys.platform == "linux" and stat.S_ISFIFO(kind.st_mode):
            import fcntl

            # The usual 64 KiB would make many small batches; a refusal (the user's pipes have a common limit) changes only the speed.
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)

    def read(self, size: int) -> bytes:
        """Some bytes, at most `size`; none at the end."""
        if self._at < len(self._ahead):
            at, self._at = self._at, min(self._at + size, len(self._ahead))
            return self._ahead[at : self._at]
        return self._more(size)

    def _more(self, size: int) -> bytes:
        try:
            while self.idle is not None and self._poll is not None and not self._poll.poll(TICK_MS):
                self.idle()
            data = self._read(size) or b""
        except OSError as error:
            raise CaptureError(f"{UNREADABLE}: {explain(error)}", self.name) from error
        if not isinstance(data, bytes):
            data = bytes(data)
        self.count += len(data)
        return data

    def take(self, size: int) -> bytes:
        """Reads packed bytes, some of which can be given `back`."""
        if self._at == len(self._ahead):
            self._ahead, self._at = self._more(PIECE), 0
        return self.read(size)

    def back(self, count: int) -> None:
        """Gives back the last `count` bytes of what `take` gave."""
        self._at -= count

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end; they stay to be read."""
        while self.at_hand < size:
            data = self._more(PIECE)
            if not data:
                break
            self._ahead, self._at = self._ahead[self._at :] + data, 0
        return self._ahead[self._at : self._at + size]

    @property
    def at_hand(self) -> int:
        """How many bytes there are that need not be asked for."""
        return len(self._ahead) - self._at

    @property
    def is_pipe(self) -> bool:
        """Whether bytes come as somebody writes them."""
        return self._poll is not None

    def ready(self) -> bool:
        """Whether a read would not wait: always for a file; for a pipe when something has arrived or its writer has gone."""
        return self._poll is None or bool(self.at_hand) or bool(self._poll.poll(0))

    def close(self) -> None:
        self._stream.close()


class Blocks:
    """What the format readers read from: the unpacked bytes in blocks, and the number of packets found in them."""

    def __init__(self, raw: Raw, pieces: Iterator[bytes] | None) -> None:
        """`pieces` is the unpacked data of a compressed input, None where `raw` is the capture itself."""
        self.raw = raw
        self.name = raw.name
        self.packets = 0
        self.places: deque[tuple[bytes, int]] | None = None
        """For whoever reads packets again: buffers of packets and their positions in the capture, to be taken away."""
        self._most = BLOCK
        # What it is shows in its first bytes, and many may be opened before the first one is read
        self._first = PIECE
        self._pieces = pieces
        self._back = b""
        self._error: CaptureError | None = None

    def read(self, least: int = 1) -> bytes:
        """The next block: all that can be had without waiting up to about `BLOCK` bytes, but at least `least`; fewer only at the end."""
        parts: list[bytes] = []
        size, usual, self._first = 0, self._first or self._most, 0
        if self._back:
            parts, size, self._back = [self._back], len(self._back), b""
        # The bytes of a plain file come in one piece and need no joining.
        while self._error is None and (size < least or (size < usual and self.raw.ready())):
            try:
                piece = self.raw.read(usual - size if size < usual else usual) if self._pieces is None else next(self._pieces, b"")
            except CaptureError as error:
                self._error = error
            except Damaged as error:
                self._error = CaptureError(str(error), self.name)
            else:
                if not piece:
                    break
                parts.append(piece)
                size += len(piece)
        if self._error is not None and not parts:
            raise self._error
        block = parts[0] if len(parts) == 1 else b"".join(parts)
        most = max(least, usual)
        if size > most + usual:
            # A little packed data can make very much at once, and small packets take several times their bytes.
            self._back = block[most:]
            block = block[:most]
        return block

    @property
    def plain(self) -> bool:
        """Whether the bytes are those of a file as it is."""
        return self._pieces is None and self.raw.total is not None

    def place(self, buffer: bytes, base: int) -> None:
        """Packets of this buffer are handed on."""
        if self.places is not None:
            self.places.append((buffer, base))

    def hold(self, size: int) -> None:
        """From now on blocks are smaller, down to about `size` bytes."""
        self._most = max(PIECE, min(self._most, size))

    def unread(self, data: bytes) -> None:
        """Gives back what was read too much; it comes first in the next block."""
        self._back = data + self._back

    def error(self, reason: str, offset: int) -> CaptureError:
        """The error of this input at a position, after the packets so far."""
        return CaptureError(reason, self.name, offset, self.packets or None)

    def located(self, error: CaptureError, offset: int) -> CaptureError:
        """An error that `read` raised, with the position."""
        return type(error)(error.reason, self.name, offset, self.packets or None)


def parts(packets: list[Packet], most: int | None) -> Iterator[list[Packet]]:
    """The packets in lists of so many at most."""
    step = most or len(packets) or 1
    for start in range(0, len(packets), step):
        yield packets[start : start + step]


def explain(error: OSError) -> str:
    """What the system says, as part of a sentence."""
    return (error.strerror or str(error)).lower()
