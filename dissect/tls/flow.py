"""One side of a TLS connection: its sealed bytes at hand, how far they have been read, and what comes out of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import Any

import msgspec

from dissect.model import Chunk, StreamGap
from dissect.tcp.conversations import until
from dissect.tls.ciphers import Opener
from dissect.tls.facts import Alert, Mark

PIECE_COST = 256
"""The least that a held segment counts: its bytes are not all that it takes in memory."""


class Epoch(msgspec.Struct):
    """Under which keys a side seals. `phase`: "early", "handshake" and "traffic" of TLS 1.3, where key updates count up `generation`,
    or "master" of TLS 1.2. `server`: whose keys these are, where no handshake tells which side is the client."""

    phase: str
    cipher: int
    client_random: bytes
    server_random: bytes
    mac_last: bool = False
    generation: int = 0
    server: bool | None = None

    def then(self, phase: str, generation: int = 0) -> Epoch:
        """The keys of another phase of the same handshake."""
        return Epoch(phase, self.cipher, self.client_random, self.server_random, self.mac_last, generation, self.server)


class Lost(msgspec.Struct):
    """Sealed bytes from `since` on that cannot be read, until a record behind them authenticates.

    `seq` would have been the number of the record at `since`; records are looked for from `scan` on. `framed`: records still follow each
    other there, `passed` of them were passed over, `sealed` bytes of data with `counted` headers; `tried`: the one at `scan` did not
    authenticate; `spent`: the side's work before. `reason`: why they cannot be read; None
    where nothing that is wanted is among them. `limited`: not every number was tried that a record might have had. `anywhere`: the capture
    begins here, somewhere in a connection whose first record has the number `seq` or a later one.
    """

    since: int
    seq: int
    scan: int
    reason: Any
    framed: bool = False
    passed: int = 0
    sealed: int = 0
    counted: int = 0
    tried: bool = False
    spent: int = 0
    limited: bool = False
    anywhere: bool = False
    ways: list[tuple[Epoch, bool]] | None = None
    """Where it is anywhere, the keys that may be this side's."""


class Flow:
    """One side. Positions count the sealed byte stream, but for `plain`, which counts what comes out."""

    MADE_OF = ("side",)
    DERIVED = ("opener", "secret", "openers")
    """Keys are looked up again where this goes on."""

    def __init__(self, side: int) -> None:
        # Long, as it is a member a line
        self.side = side
        # Bytes at hand from position `base` on, read up to `at` of them; segments with absolute starts, `index` is the one at `at`.
        self.data = b""
        self.base = 0
        self.at = 0
        self.missing = 0
        """Bytes before `base` that never came."""
        self.starts: list[int] = []
        self.orders: list[int] = []
        self.releases: list[int] = []
        self.numbers: list[int] = []
        self.files: list[int] = []
        self.times: list[int] = []
        self.index = 0
        self.jumbled = False
        self.notes: list[tuple[int, str]] = []
        self.queue: deque[Chunk | StreamGap] = deque()
        """What comes behind the bytes at hand."""
        self.floor = 0
        """Nothing is certain before this packet."""
        self.blocked = False
        """It waits for keys or for the other side; `held` counts what is kept meanwhile, `crossed` is the packet that made it too much."""
        self.held = 0
        self.weighed = 0
        self.crossed: int | None = None

        self.singly = False
        """Its sealed records are read one at a time."""
        self.epoch: Epoch | None = None
        self.seq = 0
        self.opener: Opener | None = None
        self.secret: tuple[bytes, bool, int, bytes] | None = None
        """The latest traffic secret, with its session, whether it is the server's, and its generation."""
        self.openers: dict[tuple[str, int, int, bytes, bool], Opener | None] = {}
        self.round = -1
        """Which handshake of the connection it is in; a renegotiation begins another. `entered`: that of the keys in use."""
        self.entered = -1
        self.handshake = b""
        self.passing = 0
        """Bytes still to come of a message of the handshake that is too large to look at."""
        self.lost: Lost | None = None
        self.stopped: str | None = None
        """Why it is not read any more, which the packet `stopped_at` told."""
        self.stopped_at = 0
        self.alerts: list[Alert] = []
        self.skipped = 0
        """Records that did not authenticate."""
        self.deaf = False
        """Not even its records can be told any more."""
        self.opened = 0
        self.opened_bytes = 0
        self.failed = 0
        self.spent = 0
        """Work done to find the way back after losses."""
        self.limited = 0
        """How often a limit was reached."""

        self.plain = 0
        self.told: list[str] = []
        """Notes for the next byte that comes out."""
        self.out: list[Chunk | StreamGap] = []

    @property
    def position(self) -> int:
        return self.base + self.at

    def add(self, chunk: Chunk) -> None:
        """Take the next bytes."""
        if self.at == len(self.data):
            self.base += self.at
            self.data, self.at = chunk.data, 0
        else:
            self.data = self.data[self.at :] + chunk.data
            self.base += self.at
            self.at = 0
        if self.index or (self.starts and self.base >= chunk.position):
            count = len(self.starts) if self.base >= chunk.position else self.index
            for column in (self.starts, self.orders, self.releases, self.numbers, self.files, self.times):
                del column[:count]
            self.index = 0
        position = chunk.position
        self.starts += [position + start for start in chunk.starts] if position else chunk.starts
        self.orders += chunk.orders
        self.releases += chunk.releases
        self.numbers += chunk.numbers
        self.files += chunk.files
        self.times += chunk.times
        if chunk.releases is not chunk.orders and chunk.releases != chunk.orders:
            self.jumbled = True
        if chunk.notes:
            self.notes += chunk.notes

    def drop(self, position: int) -> None:
        """Forget the bytes at hand; those that come next are at `position`."""
        self.missing += position - self.base - len(self.data)
        self.data, self.at, self.base, self.index = b"", 0, position, 0
        for column in (self.starts, self.orders, self.releases, self.numbers, self.files, self.times):
            column.clear()

    def reach(self, end: int) -> int:
        """The segment that holds the byte before `end` of the bytes at hand."""
        starts, index, position = self.starts, self.index, self.base + end
        if index < len(starts) - 1 and starts[index + 1] < position:
            index = bisect_left(starts, position, index + 1) - 1
        self.index = index
        return index

    def find(self, end: int) -> int:
        """As `reach`, but nothing is done with those bytes yet."""
        index = self.index
        found = self.reach(end)
        self.index = index
        return found

    def consume(self, end: int) -> None:
        """The bytes at hand are done with up to `end`."""
        self.at = end

    def rest(self) -> None:
        """Keep no bytes that are done with until the next ones come."""
        if self.data and self.at == len(self.data):
            self.base += self.at
            self.data, self.at = b"", 0

    def mark(self, index: int) -> Mark:
        return self.orders[index], self.numbers[index], self.files[index], self.times[index]

    def release(self, index: int) -> int:
        """The packet that made a segment's bytes, and all that they waited for, certain."""
        return max(self.releases[index], self.floor)

    def enter(self, epoch: Epoch) -> None:
        """What follows is sealed under other keys."""
        self.epoch = epoch
        self.seq = 0
        self.opener = None
        self.openers.clear()
        self.handshake = b""
        self.passing = 0

    def lose(self, since: int, seq: int, scan: int, reason: Any, framed: bool = False) -> None:
        """The bytes from `since` on cannot be read (see `Lost`)."""
        self.lost = Lost(since, seq, scan, reason, framed, spent=self.spent)

    def stop(self, reason: str, release: int) -> None:
        """This side is not read any more, which the packet `release` told."""
        if self.stopped is None:
            self.stopped, self.stopped_at = reason, release
            self.lost = None
            self.unblock()
            self.floor = max(self.floor, release)

    def weigh(self, limit: int) -> None:
        """Count what is held while this waits."""
        if not self.weighed:
            ends = [*self.starts[self.index + 1 :], self.base + len(self.data)]
            for place, end in enumerate(ends, self.index):
                self._weigh(end - max(self.starts[place], self.position) if self.starts else 0, self.releases[place : place + 1], limit)
            self.weighed = 1
        while self.weighed <= len(self.queue):
            item = self.queue[self.weighed - 1]
            self.weighed += 1
            if isinstance(item, StreamGap):
                self._weigh(0, [item.release], limit)
                continue
            ends = [*item.starts[1:], len(item.data)]
            for start, end, release in zip(item.starts, ends, item.releases, strict=True):
                self._weigh(end - start, [release], limit)

    def _weigh(self, size: int, release: list[int], limit: int) -> None:
        self.held += max(size, PIECE_COST)
        if self.crossed is None and self.held > limit and release:
            self.crossed = release[0]

    def unblock(self) -> None:
        """What this waited for is there."""
        self.blocked = False
        self.held = self.weighed = 0
        self.crossed = None

    def went(self, at: int, seq: int, index: int, opened: int) -> None:
        """Sealed records up to `at`, so many, were opened."""
        self.opened += opened
        self.opened_bytes += at - self.at
        self.seq = seq
        self.index = index
        self.consume(at)

    def emit(self, said: list[tuple[bytes, int, int, int]]) -> None:
        """Hand on what was in records: of each the content, its first segment, the one that completed it, and where it ends."""
        parts, firsts, picks, ends = ([*column] for column in zip(*said, strict=True))
        starts = list(accumulate(map(len, parts), initial=0))
        size = starts.pop()
        lasts: list[int] = []
        if self.jumbled:
            lasts = [self.releases[index] for index in picks]
            picks = [max(range(first, last + 1), key=self.orders.__getitem__) for first, last in zip(firsts, picks, strict=True)]
        orders = [self.orders[index] for index in picks]
        releases = orders
        if self.jumbled or self.floor > orders[0]:
            releases = [max(release, self.floor) for release in lasts or orders]
        self.out.append(
            Chunk(
                self.side,
                self.plain,
                parts[0] if len(parts) == 1 else b"".join(parts),
                starts,
                orders,
                releases,
                [self.numbers[index] for index in picks],
                [self.files[index] for index in picks],
                [self.times[index] for index in picks],
                self._notes(starts, ends) if self.notes or self.told else (),
            )
        )
        self.plain += size

    def _notes(self, starts: list[int], ends: list[int]) -> tuple[tuple[int, str], ...]:
        """The notes on the records of a chunk, each at the first byte of its record."""
        found = [(self.plain, text) for text in self.told]
        self.told = []
        rest = []
        for position, text in self.notes:
            place = next((place for place, end in enumerate(ends) if self.base + end > position), None)
            if place is None:
                rest.append((position, text))
            else:
                found.append((self.plain + starts[place], text))
        self.notes = rest
        return tuple(sorted(found, key=lambda one: one[0]))

    def gap(self, size: int | None, reason: Any, release: int, mark: Mark) -> None:
        """Hand on that bytes are missing here."""
        order, number, file, time_ns = mark
        self.out.append(StreamGap(self.side, self.plain, size, reason, release, order, number, file, time_ns))
        self.plain += size or 0

    def take_until(self, release: int) -> list[Chunk | StreamGap]:
        """What came out and was certain with the packet `release`; the rest was never said."""
        kept = []
        for item in self.take():
            certain = until(item, release)
            if certain is not None:
                kept.append(certain)
            if certain is not item:
                self.plain = item.position + (len(certain.data) if isinstance(certain, Chunk) else 0)
                break
        return kept

    def take(self) -> list[Chunk | StreamGap]:
        """What came out since the last call."""
        out, self.out = self.out, []
        return out
