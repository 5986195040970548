"""The decompressed bytes of one input, in blocks of about a megabyte, or what a pipe has available."""

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
"""Bytes of a normal block: large enough to make the cost per block negligible, small enough for the processor's cache."""

PIECE = 1 << 16
"""Bytes of a piece of compressed input."""

UNREADABLE = "cannot be read"
"""Start of errors of the system, not of the input."""


TICK_MS = 250
"""Silence of a pipe between two calls of `RawInput.idle`."""


class Damaged(Exception):
    """Compressed data that cannot be decompressed further; becomes a `CaptureError` with the position."""


class RawInput:
    """Reads a file, pipe or file object; like `os.read`, it waits for some bytes, not for all."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.name = name
        self.count = 0
        self.total: int | None = None
        self.identity: tuple[int, int] | None = None
        """Device and inode of a file."""
        self._stream = stream
        # read1() of a buffered reader calls the system once; read() would wait for all bytes.
        self._read: Callable[[int], bytes | None] = getattr(stream, "read1", None) or stream.read
        self.idle: Callable[[], None] | None = None
        """Called repeatedly while a pipe is silent."""
        self._poll: select.poll | None = None
        self._ahead = b""
        self._at = 0
        """Index of the next byte in `_ahead`."""
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

            # The default of 64 KiB makes many small batches; a refusal (pipes have a limit per user) costs only speed.
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end."""
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

    def read_compressed(self, size: int) -> bytes:
        """Return at most `size` compressed bytes, which `push_back` can return to the input."""
        if self._at == len(self._ahead):
            self._ahead, self._at = self._more(PIECE), 0
        return self.read(size)

    def push_back(self, count: int) -> None:
        """Return the last `count` bytes of `read_compressed` to the input."""
        self._at -= count

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end, without consuming them."""
        while self.buffered < size:
            data = self._more(PIECE)
            if not data:
                break
            self._ahead, self._at = self._ahead[self._at :] + data, 0
        return self._ahead[self._at : self._at + size]

    @property
    def buffered(self) -> int:
        """Bytes already read from the system."""
        return len(self._ahead) - self._at

    @property
    def is_pipe(self) -> bool:
        """Whether the input is a pipe."""
        return self._poll is not None

    def ready(self) -> bool:
        """Return whether a read would not block: always for a file; for a pipe with data or without a writer."""
        return self._poll is None or bool(self.buffered) or bool(self._poll.poll(0))

    def close(self) -> None:
        self._stream.close()


class Blocks:
    """The decompressed bytes of an input in blocks for the format readers, and the number of packets found in them."""

    def __init__(self, raw: RawInput, pieces: Iterator[bytes] | None) -> None:
        """`pieces`: the decompressed data of a compressed input; None if `raw` is not compressed."""
        self.raw = raw
        self.name = raw.name
        self.packets = 0
        self.places: deque[tuple[bytes, int]] | None = None
        """Buffers of packets with their positions in the capture, collected if not None; the consumer removes them."""
        self.context: dict[int, int] = {}
        """By type of block, where the last one ends without which packets after it cannot be read, or which needs those before it."""
        self._most = BLOCK
        # The first bytes show the format, and many inputs may be opened before the first is read
        self._first = PIECE
        self._pieces = pieces
        self._back = b""
        self._error: CaptureError | None = None

    def read(self, least: int = 1) -> bytes:
        """Return the next block: the bytes available without waiting, up to about `BLOCK`, but at least `least`; fewer only at the end."""
        parts: list[bytes] = []
        size, usual, self._first = 0, self._first or self._most, 0
        if self._back:
            parts, size, self._back = [self._back], len(self._back), b""
        # The bytes of an uncompressed file come in one piece and need no joining.
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
            # Little compressed data can expand enormously, and small packets occupy several times their bytes.
            self._back = block[most:]
            block = block[:most]
        return block

    @property
    def uncompressed_file(self) -> bool:
        """Whether the input is an uncompressed file."""
        return self._pieces is None and self.raw.total is not None

    def place(self, buffer: bytes, base: int) -> None:
        """Record a buffer whose packets are returned."""
        if self.places is not None:
            self.places.append((buffer, base))

    def limit_size(self, size: int) -> None:
        """Limit further blocks to about `size` bytes."""
        self._most = max(PIECE, min(self._most, size))

    def unread(self, data: bytes) -> None:
        """Return surplus bytes, which start the next block."""
        self._back = data + self._back

    def error(self, reason: str, offset: int) -> CaptureError:
        """Return an error of this input at an offset, after the packets read so far."""
        return CaptureError(reason, self.name, offset, self.packets or None)

    def located(self, error: CaptureError, offset: int) -> CaptureError:
        """Return an error raised by `read`, with the offset."""
        return type(error)(error.reason, self.name, offset, self.packets or None)


def parts(packets: list[Packet], most: int | None) -> Iterator[list[Packet]]:
    """Yield the packets in lists of at most `most`."""
    step = most or len(packets) or 1
    for start in range(0, len(packets), step):
        yield packets[start : start + step]


def explain(error: OSError) -> str:
    """Return the system's reason in lower case."""
    return (error.strerror or str(error)).lower()
