"""Writes pcapng files: one, or a ring that removes the oldest.

After the I-D draft-ietf-opsawg-pcapng; times in nanoseconds.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_ISREG
from time import gmtime, strftime
from typing import NamedTuple

from ..errors import UsageError
from ..model import Packet
from .atomic_files import NO_FOLLOW, is_of_system
from .blocks import explain
from .pcapng import ENHANCED, INTERFACE, SECRETS, SECTION, TLS_KEYS

STATISTICS = 5
END_OF_OPTIONS, APPLICATION, INTERFACE_NAME, RESOLUTION = 0, 4, 2, 9
RECEIVED, DROPPED = 4, 5
NANOSECONDS = 9
OVERHEAD = 32
"""Bytes of a packet's block besides the packet and what fills it up."""


class Ring(NamedTuple):
    """Limits of a file by size and duration, and the number of files kept; None: no limit."""

    size: int | None = None
    duration_ns: int | None = None
    files: int | None = None


class PcapngWriter:
    """Writes packets as captured, including passwords and tokens, to new files that only their owner may read.

    An existing file is replaced, not reused; a symbolic link is refused, as others might read its target.

    With a `ring` the files are named as other tools do: NAME_00001_20240131235959.pcapng, by number and UTC of the first packet.
    """

    def __init__(
        self, path: str, names: Sequence[str], link: int | None = None, snap: int = 0, ring: Ring | None = None, into: int | None = None
    ) -> None:
        """`names`: the inputs, each of which gets an interface per link type, created on demand; that of `link`, with snap length `snap`,
        at once. `into`: an open file, which stays open."""
        self.path = Path(path)
        self.written = 0
        """Bytes of all files so far."""
        self._head = _section()
        self._names = names
        self._interfaces: dict[tuple[int, int], int] = {}
        """Number of the interface by input and link type."""
        self._ring = ring
        self._secrets = b""
        """Secrets waiting for the first file of a ring."""
        self._file = -1
        self._size = self._packets = 0
        self._since = 0
        self._number = 0
        self._kept: deque[Path] = deque()
        if link is not None:
            self._describe(0, link, snap)
        if into is not None:
            self._file = into
            self._put(self._head)
        elif ring is None:
            self._open(self.path)
        else:
            _check_folder(self.path)

    def _describe(self, file: int, link: int, snap: int = 0) -> int:
        """Add an interface to this file and later ones; return its number."""
        block = _interface(link, Path(self._names[file]).name, snap)
        self._head += block
        if self._file >= 0:
            self._put(block)
        return self._interfaces.setdefault((file, link), len(self._interfaces))

    def fitting(self, packets: Sequence[Packet], size: int) -> tuple[int, bool]:
        """Return how many packets can be written until the files reach `size` bytes, including the one that does, and whether they reach
        it."""
        reached = self.written + (len(self._head) if self._file < 0 else 0)
        for count, packet in enumerate(packets, 1):
            reached += OVERHEAD + packet.captured + (-packet.captured & 3)
            if reached >= size:
                return count, True
        return len(packets), False

    def write(self, packets: Sequence[Packet]) -> None:
        """Write packets to the file, unbuffered."""
        ring = self._ring
        parts: list[bytes] = []
        held = 0
        for packet in packets:
            time_ns, captured = packet.time_ns, packet.captured
            interface = self._interfaces.get((packet.file, packet.link))
            if interface is None:
                interface = self._describe(packet.file, packet.link)
            if ring is not None and (self._file < 0 or self._full(ring, held, time_ns)):
                self._put(b"".join(parts))
                parts, held = [], 0
                self._next(ring, time_ns)
            total = OVERHEAD + captured + (-captured & 3)
            parts.append(struct.pack("<7I", ENHANCED, total, interface, time_ns >> 32, time_ns & 0xFFFF_FFFF, captured, packet.wire))
            parts.append(packet.buffer[packet.offset : packet.offset + captured])
            parts.append(bytes(-captured & 3) + struct.pack("<I", total))
            held += total
            self._packets += 1
        self._put(b"".join(parts))

    def secrets(self, text: bytes) -> None:
        """Add TLS secrets as a key log; they are needed with the packets of the handshake only, so they are not repeated."""
        text, self._secrets = self._secrets + text, b""
        if self._file < 0:
            self._secrets = text
        elif text:
            self._put(_block(SECRETS, struct.pack("<II", TLS_KEYS, len(text)) + text + bytes(-len(text) & 3)))

    def give(self, uid: int, gid: int) -> None:
        """Change the owner of the open file, if it is a new one."""
        if self._file >= 0 and S_ISREG(os.fstat(self._file).st_mode) and not is_of_system(self.path):
            os.fchown(self._file, uid, gid)

    def close(self, time_ns: int, received: int, dropped: int) -> None:
        """Finish the file with the packet statistics."""
        if self._file >= 0:
            options = _option(RECEIVED, struct.pack("<Q", received)) + _option(DROPPED, struct.pack("<Q", dropped))
            self._put(_block(STATISTICS, struct.pack("<3I", 0, time_ns >> 32, time_ns & 0xFFFF_FFFF) + options))
            self._shut()

    def _full(self, ring: Ring, held: int, time_ns: int) -> bool:
        if not self._packets:
            return False
        if ring.size is not None and self._size + held >= ring.size:
            return True
        return ring.duration_ns is not None and time_ns - self._since >= ring.duration_ns

    def _next(self, ring: Ring, time_ns: int) -> None:
        self._shut()
        self._number += 1
        stamp = strftime("%Y%m%d%H%M%S", gmtime(time_ns // 1_000_000_000))
        path = self.path.with_name(f"{self.path.stem}_{self._number:05d}_{stamp}{self.path.suffix}")
        self._open(path)
        self.secrets(b"")
        self._since = time_ns
        self._kept.append(path)
        if ring.files is not None and len(self._kept) > ring.files:
            self._kept.popleft().unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        try:
            self._file = _create(path)
        except OSError as error:
            raise UsageError(f"-w {path}: cannot be written: {explain(error)}") from error
        self._size = self._packets = 0
        self._put(self._head)

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except OSError as error:
                raise UsageError(f"-w {self.path}: cannot be written: {explain(error)}") from error
        self._size += len(data)
        self.written += len(data)

    def _shut(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


STANDARD_INPUT = Path("/dev/stdin")


def check(path: str) -> None:
    """Raise `UsageError` if a file cannot be written, before the first packet."""
    target = Path(path)
    _refuse_link(target)
    if target.is_dir():
        raise UsageError(f"-w {path}: cannot be written: is a directory")
    if not target.exists() or target.is_file():
        _check_folder(target)


def is_input(path: str, names: Iterable[str]) -> bool:
    """Return whether a file to write is one of the inputs, under any name, or what standard input is read from."""
    target = Path(path)
    inputs = [*map(Path, names), *([STANDARD_INPUT] if target.is_file() else [])]
    return any(target.exists() and one.exists() and one.samefile(target) for one in inputs)


def _refuse_link(path: Path) -> None:
    if path.is_symlink() and not is_of_system(path):
        raise UsageError(f"-w {path}: is a symbolic link, which is not followed; name the file itself")


def _check_folder(path: Path) -> None:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"-w {path}: {path.parent} is not a writable directory")


def _create(path: Path) -> int:
    """Open a new file in place of an existing one, but a FIFO or a device directly."""
    if is_of_system(path):
        return os.open(path, os.O_WRONLY | os.O_TRUNC)
    _refuse_link(path)
    if path.is_file():
        path.unlink()
        new = os.O_EXCL
    else:
        new = 0 if path.exists() else os.O_EXCL
    return os.open(path, os.O_WRONLY | os.O_CREAT | NO_FOLLOW | new, 0o600)


def _section() -> bytes:
    section = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + _option(APPLICATION, b"streamdump")
    return _block(SECTION, section + _option(END_OF_OPTIONS, b""))


def _interface(link: int, name: str, snap: int) -> bytes:
    encoded = name.encode("utf-8", "replace")
    body = struct.pack("<HHI", link, 0, snap) + _option(INTERFACE_NAME, encoded) + _option(RESOLUTION, bytes((NANOSECONDS,)))
    return _block(INTERFACE, body + _option(END_OF_OPTIONS, b""))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) & 3)


def _block(kind: int, body: bytes) -> bytes:
    total = len(body) + 12
    return struct.pack("<II", kind, total) + body + struct.pack("<I", total)
