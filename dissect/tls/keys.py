"""Secrets of TLS sessions: key logs (SSLKEYLOGFILE) and the Decryption Secrets Blocks of pcapng, by the client's random.

A log is read when the first secret is requested, so that captures without TLS do not wait for it; a followed log is read again with each
batch of packets. Memory is bounded: `SESSIONS` sessions, of which the oldest are dropped first, and `LINE` bytes of a line. Secrets leave
this module only for `schedule`, or as lines to be embedded in a capture.
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..capture.blocks import Blocks, RawInput, explain
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
"""The environment variable that names the file to which clients log secrets."""

SESSIONS = 1 << 18
LINE = 1024
PIECE = 1 << 20

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some programs write it at the start of a text."""

_NUMBERS = {label.encode(): index for index, label in enumerate(LABELS)}

_HEAD = 10
"""Bytes before a secret: the number of its label, its length, and the packet from which on it is known."""


_LABELS = b"|".join(_NUMBERS)
_END = rb"[ \t]*\r?$"
_WANTED = rb"(?m)^(" + _LABELS + rb") ([0-9A-Fa-f]{64}) ([0-9A-Fa-f]{64}|[0-9A-Fa-f]{96})" + _END
_RSA = rb"(?m)^RSA [0-9A-Fa-f]+ [0-9A-Fa-f]+" + _END
_OTHER = rb"(?m)^(?:#.*|(?!(?:RSA|" + _LABELS + rb") )[A-Z0-9_]+ [0-9A-Fa-f]+ [0-9A-Fa-f]+|)" + _END
"""Kinds of lines, compiled on first use: secrets, those of RSA key exchange, and other valid ones (comments, empty lines, secrets that
decrypt no record, such as EXPORTER_SECRET)."""


class KeyLog:
    """All secrets given to a run."""

    def __init__(self, paths: Sequence[str] = (), follow: bool = False) -> None:
        """`follow`: the files may grow, or be created, while packets are read."""
        self.rsa = 0
        """Lines with premaster secrets of RSA key exchange, which are not read."""
        self.damaged = 0
        """Lines that do not belong in a key log."""
        self.dropped = 0
        """Sessions dropped in favour of newer ones."""
        self.changes = 0
        """Counts the secrets known before the first packet."""
        self.updated: set[bytes] = set()
        """Sessions with a new secret since `TlsManager` last looked."""
        self.embedded: list[EmbeddedKeys] = []
        """Inputs that may contain secrets."""
        self.ended = False
        """No more secrets will come."""
        self.used_lines: bytes | None = None
        """The secrets found by `find`, as lines, once each; None: not collected."""
        self.sessions_of: dict[int, set[bytes]] | None = None
        """By conversation, the sessions of which `find` found a secret; None: not collected."""
        self.conversation = -1
        """The conversation for which `find` is called."""
        self._used: set[tuple[bytes, int]] = set()
        self.shared_openers: dict[tuple[str, int, int, bytes, bool], Any] = {}
        """Openers for sessions that any connection may belong to."""
        self._guesses: tuple[int, Any] = -1, None
        """The result of `cached_guesses`, and the value of `changes` then."""
        self._files = [_KeyLogFile(path, follow) for path in paths]
        self._follow = follow
        self._loaded = False
        # By client random: the secrets, each with `_HEAD`.
        self._sessions: OrderedDict[bytes, bytes] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there are any secrets."""
        return bool(self._loaded_sessions())

    @property
    def expecting(self) -> bool:
        """Whether more secrets may come."""
        return not self.ended and (self._follow or any(one.expecting for one in self.embedded))

    @property
    def endless(self) -> bool:
        """Whether more secrets may always come: a log is followed, or a pipe may contain secrets."""
        return self._follow or any(one.last is None for one in self.embedded)

    @property
    def given(self) -> bool:
        """Whether there is a source: a log was named, or a capture had secrets."""
        return bool(self._files or self._sessions)

    @property
    def errors(self) -> list[str]:
        """Why logs could not be read, or not to their end."""
        return [file.error for file in self._files if file.error is not None]

    @property
    def named(self) -> bool:
        """Whether a log was named."""
        return bool(self._files)

    def find(self, random: bytes, label: str) -> tuple[bytes, int] | None:
        """Return the secret of a session, and the packet from which on it is known."""
        for number, order, secret in self._secrets(random):
            if LABELS[number] == label:
                if self.used_lines is not None and (random, number) not in self._used:
                    if len(self._used) >= SESSIONS:
                        self._used.clear()
                    self._used.add((random, number))
                    self.used_lines += _line(random, number, secret)
                if self.sessions_of is not None:
                    self.sessions_of.setdefault(self.conversation, set()).add(random)
                return secret, order
        return None

    def knows(self, random: bytes) -> bool:
        """Return whether there is any secret of this session."""
        return random in self._loaded_sessions()

    def sessions_at_start(self, labels: tuple[str, str], most: int) -> list[tuple[bytes, tuple[int, int]]]:
        """Return up to `most` sessions, the latest first, whose secrets of both labels were known before the first packet, with the
        lengths of these secrets."""
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

    def cached_guesses(self, make: Callable[[KeyLog], T]) -> T:
        """Return the result of `make`, cached until the sessions change."""
        self._loaded_sessions()
        if self._guesses[0] != self.changes:
            self._guesses = self.changes, make(self)
        found: T = self._guesses[1]
        return found

    def lines(self, random: bytes) -> list[bytes]:
        """Return the secrets of a session as lines of a key log."""
        return [_line(random, number, secret) for number, _, secret in self._secrets(random)]

    def add(self, text: bytes, order: int = 0) -> bool:
        """Add lines known from the packet `order` on; return whether they contained a new secret."""
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
        """Read what was appended to followed logs; return whether it contained new secrets."""
        if not self._follow:
            return False
        self._loaded = True
        found = [self.add(text, order) for file in self._files for text in file.more()]
        return any(found)

    def close(self) -> None:
        """Close the followed files."""
        for file in self._files:
            file.close()

    def _secrets(self, random: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the secrets of a session as (number of the label, packet from which on it is known, secret)."""
        return _unpacked(self._loaded_sessions().get(random, b""))

    def _loaded_sessions(self) -> dict[bytes, bytes]:
        """Return all sessions, after reading the logs if necessary."""
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
            oldest, _ = sessions.popitem(last=False)
            self.updated.discard(oldest)
            self.dropped += 1
        others = [_packed(*one) for one in known if one[0] != number]
        sessions[random] = b"".join((*others, _packed(number, order, secret)))
        self.changes += not order
        if len(others) == len(known):
            # No conversation waits for another secret of the same kind
            self.updated.add(random)
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
    """The key logs embedded in one input."""

    def __init__(self, reader: CaptureReader) -> None:
        self._reader = reader
        self._packet = 0

    def read(self, keys: KeyLog, packet: int, order: int) -> None:
        """Add the key logs before a packet of this input to `keys`, known from the packet `order` on, as if the file were still written."""
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


class _KeyLogFile:
    """A key log file and the position up to which it was read."""

    def __init__(self, path: str, follow: bool) -> None:
        self.path = path
        self._follow = follow
        self._at = 0
        self._inode = -1
        self._left = b""
        self._stream: BinaryIO | None = None
        """A followed file stays open: privileges may be dropped, and closing a pipe would end its writer."""
        self.error: str | None = None

    def more(self) -> Iterator[bytes]:
        """Yield what was written since the last call, in complete lines; nothing if the file is missing or unreadable."""
        try:
            status = self._status()
            if self._follow and (status.st_ino, status.st_size) == (self._inode, self._at):
                return
            if self._follow and stat.S_ISFIFO(status.st_mode):
                self._stream = self._stream or open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)  # noqa: PTH123, SIM115
                yield from self._lines(partial(self._stream.read, PIECE))
                return
            if self._follow and stat.S_ISREG(status.st_mode):
                if status.st_ino != self._inode or status.st_size < self._at:
                    self.close()
                    self._inode, self._at, self._left = status.st_ino, 0, b""
                self._stream = self._stream or Path(self.path).open("rb", 0)  # noqa: SIM115
                self._stream.seek(self._at)
                yield from self._lines(partial(self._stream.read, PIECE))
                return
            with Path(self.path).open("rb", 0) as stream:
                yield from self._complete_file(stream)
        except CaptureError as error:
            self.error = f"key log {error}"
        except OSError as error:
            self.error = None if self._follow else f"key log {self.path}: cannot be read: {explain(error)}"

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _status(self) -> os.stat_result:
        try:
            return Path(self.path).stat()
        except PermissionError:
            if self._stream is None:
                raise
            return os.fstat(self._stream.fileno())

    def _complete_file(self, stream: BinaryIO) -> Iterator[bytes]:
        """Yield a complete log, or the logs in a capture; either may be compressed."""
        if stream.seekable():
            raw = RawInput(stream, self.path)
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
            text = data if self._at else data.removeprefix(BYTE_ORDER_MARK)
            self._at += len(data)
            complete, newline, rest = text.rpartition(b"\n")
            if newline:
                yield self._left + complete + newline
                self._left = rest[:LINE]
            else:
                # The kept part of a line that is too long does not parse.
                self._left = (self._left + rest)[:LINE]


def logged(capture: CaptureReader) -> Iterator[bytes]:
    """Yield the lines of key logs in a capture, read to its end."""
    with capture as reader:
        for _ in reader.batches():
            while reader.secrets:
                yield reader.secrets.pop(0)[1]
        while reader.secrets:
            yield reader.secrets.pop(0)[1]


def log_of(environment: Mapping[str, str], live: bool = False) -> tuple[tuple[str, ...], str | None]:
    """Return the absolute path of the key log that the environment names, and a notice about it."""
    named = environment.get(VARIABLE)
    if not named:
        return (), None
    try:
        if not live or Path(named).exists():
            check((named,))
    except UsageError as error:
        return (), f"{VARIABLE}: {error}; TLS is not decrypted"
    return (str(Path(named).absolute()),), f"TLS keys are read from {named}, which {VARIABLE} names"


def check(paths: Collection[str]) -> None:
    """Raise `UsageError` for a log that cannot be read."""
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
