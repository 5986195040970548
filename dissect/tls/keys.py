"""Secrets of TLS sessions: key logs (SSLKEYLOGFILE) and the Decryption Secrets Blocks of pcapng, by the client's random.

A log is read when the first secret is asked for, so that captures without TLS do not wait for it; one that is followed is looked at again
with every batch of packets. What is kept is bounded: `SESSIONS` sessions, the oldest of which go first, and of a line `LINE` bytes.
Secrets leave this module for `schedule` only, or as lines for whoever asked to have them in a capture.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..capture.blocks import Blocks, Raw, explain
from ..capture.files import CaptureReader, open_capture
from ..capture.pcapng import MAGIC
from ..capture.unpack import packing
from ..errors import CaptureError, UsageError

T = TypeVar("T")

MASTER = "CLIENT_RANDOM"
EARLY = "CLIENT_EARLY_TRAFFIC_SECRET"
HANDSHAKE = ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET")
TRAFFIC = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")
"""Client and server."""

LABELS = (MASTER, EARLY, *HANDSHAKE, *TRAFFIC)

VARIABLE = "SSLKEYLOGFILE"
"""Names the file that clients log their secrets to."""

SESSIONS = 1 << 18
LINE = 1024
PIECE = 1 << 20

MARK = b"\xef\xbb\xbf"
"""What some programs begin a text with."""

_NUMBERS = {label.encode(): index for index, label in enumerate(LABELS)}

_HEAD = 10
"""Bytes in front of a secret: its label's number, its length, and the packet from which on it is known."""


_LABELS = b"|".join(_NUMBERS)
_END = rb"[ \t]*\r?$"
_WANTED = rb"(?m)^(" + _LABELS + rb") ([0-9A-Fa-f]{64}) ([0-9A-Fa-f]{64}|[0-9A-Fa-f]{96})" + _END
_RSA = rb"(?m)^RSA [0-9A-Fa-f]+ [0-9A-Fa-f]+" + _END
_OTHER = rb"(?m)^(?:#.*|(?!(?:RSA|" + _LABELS + rb") )[A-Z0-9_]+ [0-9A-Fa-f]+ [0-9A-Fa-f]+|)" + _END
"""What tells lines apart, compiled when there are some: secrets, those of RSA key exchange, and others that are as they should be
(comments, empty ones, secrets that open no record such as EXPORTER_SECRET)."""


class KeyLog:
    """All secrets that a run has been given."""

    def __init__(self, paths: Sequence[str] = (), follow: bool = False) -> None:
        """`follow`: the files may grow, or come to be, while packets are read."""
        self.rsa = 0
        """Lines with premaster secrets of RSA key exchange, which are not read."""
        self.damaged = 0
        """Lines that are none of a key log."""
        self.dropped = 0
        """Sessions dropped for newer ones."""
        self.changes = 0
        """Counts the secrets known before the first packet."""
        self.fresh: set[bytes] = set()
        """Sessions with a new secret since `TlsManager` last looked."""
        self.embedded: list[EmbeddedKeys] = []
        """Inputs that may hold secrets."""
        self.ended = False
        """No more secrets will come."""
        self.asked: bytes | None = None
        """Where somebody wants them, the secrets that were asked for and found, as lines, once each."""
        self.sessions_of: dict[int, set[bytes]] | None = None
        """Where somebody wants them, by conversation the sessions of which a secret was asked for and found."""
        self.asking = -1
        """The conversation that asks."""
        self._told: set[tuple[bytes, int]] = set()
        self.tried: dict[tuple[str, int, int, bytes, bool], Any] = {}
        """What opens records of sessions that any connection may be."""
        self._guesses: tuple[int, Any] = -1, None
        """What was made of all sessions for connections that may be any of them, and after how many changes."""
        self._files = [_File(path, follow) for path in paths]
        self._follow = follow
        self._loaded = False
        # By client random: the secrets, each with `_HEAD`.
        self._sessions: dict[bytes, bytes] = {}

    def __bool__(self) -> bool:
        """Whether there are any secrets."""
        return bool(self._loaded_sessions())

    @property
    def expecting(self) -> bool:
        """Whether more secrets may come."""
        return not self.ended and (self._follow or any(one.expecting for one in self.embedded))

    @property
    def endless(self) -> bool:
        """Whether it is unknown when the last secret comes: a log is followed, or a pipe may hold secrets."""
        return self._follow or any(one.last is None for one in self.embedded)

    @property
    def given(self) -> bool:
        """Whether anything was to be read: a log was named, or a capture had secrets."""
        return bool(self._files or self._sessions)

    @property
    def troubles(self) -> list[str]:
        """What kept logs from being read, or from being read to their end."""
        return [file.trouble for file in self._files if file.trouble is not None]

    @property
    def named(self) -> bool:
        """Whether a log was named."""
        return bool(self._files)

    def find(self, random: bytes, label: str) -> tuple[bytes, int] | None:
        """The secret of a session, and the packet from which on it was known."""
        for number, order, secret in self._secrets(random):
            if LABELS[number] == label:
                if self.asked is not None and (random, number) not in self._told:
                    if len(self._told) >= SESSIONS:
                        self._told.clear()
                    self._told.add((random, number))
                    self.asked += _line(random, number, secret)
                if self.sessions_of is not None:
                    self.sessions_of.setdefault(self.asking, set()).add(random)
                return secret, order
        return None

    def knows(self, random: bytes) -> bool:
        """Whether there is any secret of this session."""
        return random in self._loaded_sessions()

    def at_start(self, labels: tuple[str, str], most: int) -> list[tuple[bytes, tuple[int, int]]]:
        """Of the sessions whose secrets of these labels were known before the first packet those that were logged last, with the lengths
        of these secrets."""
        sessions = self._loaded_sessions()
        one, two = (LABELS.index(label) for label in labels)
        found: list[tuple[bytes, tuple[int, int]]] = []
        for session in reversed(sessions):
            sizes = {number: len(secret) for number, order, secret in _unpacked(sessions[session]) if not order}
            if one in sizes and two in sizes:
                found.append((session, (sizes[one], sizes[two])))
                if len(found) == most:
                    break
        return found

    def guessed(self, make: Callable[[KeyLog], T]) -> T:
        """What `make` makes of all sessions: once as long as these do not change."""
        self._loaded_sessions()
        if self._guesses[0] != self.changes:
            self._guesses = self.changes, make(self)
        found: T = self._guesses[1]
        return found

    def lines(self, random: bytes) -> list[bytes]:
        """The secrets of a session as lines of a key log."""
        return [_line(random, number, secret) for number, _, secret in self._secrets(random)]

    def add(self, text: bytes, order: int = 0) -> bool:
        """Take lines that were known from the packet `order` on; whether there was a secret among them."""
        new, understood = False, 0
        for label, random, secret in re.findall(_WANTED, text):
            new = self._put(bytes.fromhex(random.decode()), _NUMBERS[label], bytes.fromhex(secret.decode()), order) or new
            understood += 1
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        if understood < lines:
            rsa = len(re.findall(_RSA, text))
            self.rsa += rsa
            self.damaged += max(0, lines - understood - rsa - len(re.findall(_OTHER, text.removesuffix(b"\n"))))
        return new

    def poll(self, order: int) -> bool:
        """Read what was written to followed logs since; whether there were secrets in it."""
        if not self._follow:
            return False
        self._loaded = True
        found = [self.add(text, order) for file in self._files for text in file.more()]
        return any(found)

    def close(self) -> None:
        """Follow no more."""
        for file in self._files:
            file.close()

    def _secrets(self, random: bytes) -> Iterator[tuple[int, int, bytes]]:
        """By label's number the secrets of a session, and the packet from which on each was known."""
        return _unpacked(self._loaded_sessions().get(random, b""))

    def _loaded_sessions(self) -> dict[bytes, bytes]:
        """All sessions, logs read if they were not before."""
        if not self._loaded:
            self._loaded = True
            for file in self._files:
                for text in file.more():
                    self.add(text)
        return self._sessions

    def _put(self, random: bytes, number: int, secret: bytes, order: int) -> bool:
        sessions = self._sessions
        known = list(_unpacked(sessions.get(random, b"")))
        if any(other == number and old == secret for other, _, old in known):
            return False
        if not known and len(sessions) >= SESSIONS:
            oldest = next(iter(sessions))
            del sessions[oldest]
            self.fresh.discard(oldest)
            self.dropped += 1
        others = [_packed(*one) for one in known if one[0] != number]
        sessions[random] = b"".join((*others, _packed(number, order, secret)))
        self.changes += not order
        if len(others) == len(known):
            # Nobody waits for another secret of the same kind
            self.fresh.add(random)
        return True


def _line(random: bytes, number: int, secret: bytes) -> bytes:
    return f"{LABELS[number]} {random.hex()} {secret.hex()}\n".encode()


def _packed(number: int, order: int, secret: bytes) -> bytes:
    return bytes((number, len(secret))) + order.to_bytes(8, "big") + secret


def _unpacked(packed: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(packed):
        size = packed[at + 1]
        yield packed[at], int.from_bytes(packed[at + 2 : at + _HEAD], "big"), packed[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size


class EmbeddedKeys:
    """The key logs in one input."""

    def __init__(self, reader: CaptureReader) -> None:
        self._reader = reader
        self._packet = 0

    def read(self, keys: KeyLog, packet: int, order: int) -> None:
        """Give `keys` the key logs before a packet of this input. They are known from the packet `order` on, as in a file that is written
        while it is read."""
        self._packet = packet
        secrets = self._reader.secrets
        while secrets and packet > secrets[0][0]:
            keys.add(secrets.pop(0)[1], order)

    @property
    def last(self) -> int | None:
        """See `CaptureReader.last_secrets`."""
        return self._reader.last_secrets

    @property
    def expecting(self) -> bool:
        """Whether a key log may follow the latest packet."""
        return self.last is None or self.last >= self._packet


class _File:
    """A key log, and how far it has been read."""

    def __init__(self, path: str, follow: bool) -> None:
        self.path = path
        self._follow = follow
        self._at = 0
        self._inode = -1
        self._left = b""
        self._kept: BinaryIO | None = None
        """What is followed stays open: who opened it may not be allowed to again, and a pipe would end its writer."""
        self.trouble: str | None = None

    def more(self) -> Iterator[bytes]:
        """What was written since the last call, in whole lines; a file that is not there or cannot be read gives none."""
        try:
            status = self._status()
            if self._follow and (status.st_ino, status.st_size) == (self._inode, self._at):
                return
            if self._follow and stat.S_ISFIFO(status.st_mode):
                self._kept = self._kept or open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)  # noqa: PTH123, SIM115
                yield from self._lines(partial(self._kept.read, PIECE))
                return
            if self._follow and stat.S_ISREG(status.st_mode):
                if status.st_ino != self._inode or status.st_size < self._at:
                    self.close()
                    self._inode, self._at, self._left = status.st_ino, 0, b""
                self._kept = self._kept or Path(self.path).open("rb", 0)  # noqa: SIM115
                self._kept.seek(self._at)
                yield from self._lines(partial(self._kept.read, PIECE))
                return
            with Path(self.path).open("rb", 0) as stream:
                yield from self._whole(stream)
        except CaptureError as error:
            self.trouble = f"key log {error}"
        except OSError as error:
            self.trouble = None if self._follow else f"key log {self.path}: cannot be read: {explain(error)}"

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _status(self) -> os.stat_result:
        try:
            return Path(self.path).stat()
        except PermissionError:
            if self._kept is None:
                raise
            return os.fstat(self._kept.fileno())

    def _whole(self, stream: BinaryIO) -> Iterator[bytes]:
        """All of a log, or what a capture holds; either may be packed."""
        if stream.seekable():
            raw = Raw(stream, self.path)
            blocks = Blocks(raw, packing(raw))
            start = blocks.read(len(MAGIC))
            blocks.unread(start)
            if start.startswith(MAGIC):
                yield from logged(open_capture(self.path))
                return
            yield from self._lines(blocks.read)
        else:
            yield from self._lines(partial(stream.read, PIECE))
        if self._left:
            yield self._left

    def _lines(self, read: Callable[[], bytes]) -> Iterator[bytes]:
        while data := read():
            text = data if self._at else data.removeprefix(MARK)
            self._at += len(data)
            whole, newline, rest = text.rpartition(b"\n")
            if newline:
                yield self._left + whole + newline
                self._left = rest[:LINE]
            else:
                # A line that is too long is none: what of it is kept will not be understood.
                self._left = (self._left + rest)[:LINE]


def logged(capture: CaptureReader) -> Iterator[bytes]:
    """The lines of key logs that a capture holds, read to its end."""
    with capture as reader:
        for _ in reader.batches():
            while reader.secrets:
                yield reader.secrets.pop(0)[1]
        while reader.secrets:
            yield reader.secrets.pop(0)[1]


def log_of(environment: Mapping[str, str], live: bool = False) -> tuple[tuple[str, ...], str | None]:
    """The key log that the environment names, absolute, as others may work in another folder; and what is to be said of that."""
    named = environment.get(VARIABLE)
    if not named:
        return (), None
    try:
        if not live or Path(named).exists():
            check((named,))
    except UsageError as error:
        return (), f"{VARIABLE}: {error}; TLS is not read"
    return (str(Path(named).absolute()),), f"keys of TLS are taken from {named}, which {VARIABLE} names"


def check(paths: Collection[str]) -> None:
    """Raises `UsageError` for a log that cannot be read."""
    for path in paths:
        try:
            if Path(path).is_dir():
                raise UsageError(f"key log {path}: is a directory")
            if not stat.S_ISFIFO(Path(path).stat().st_mode):
                Path(path).open("rb").close()
        except FileNotFoundError as error:
            raise UsageError(f"key log {path}: no such file") from error
        except OSError as error:
            raise UsageError(f"key log {path}: cannot be read: {explain(error)}") from error
