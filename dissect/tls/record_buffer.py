"""One side of a TLS connection: its sealed bytes, the position up to which they were read, and the decrypted bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any

import msgspec

from ..model import Mark, SideData, StreamGap
from .ciphers import Opener
from .facts import Alert

PIECE_COST = 256
"""The minimum that a held segment counts towards the limits: its objects occupy memory too."""


class Epoch(msgspec.Struct):
    """The keys that protect the records of a side. `phase`: "early", "handshake" and "traffic" of TLS 1.3, where key updates increment
    `generation`, or "master" of TLS 1.2. `server`: whether they are the server's, where no handshake shows which side is the client."""

    phase: str
    cipher: int
    client_random: bytes
    server_random: bytes
    encrypt_then_mac: bool = False
    generation: int = 0
    server: bool | None = None

    def then(self, phase: str, generation: int = 0) -> Epoch:
        """Return the keys of another phase of the same handshake."""
        return Epoch(phase, self.cipher, self.client_random, self.server_random, self.encrypt_then_mac, generation, self.server)


class SealedGap(msgspec.Struct):
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
    candidates: list[tuple[Epoch, bool]] | None = None
    """If `anywhere`, the keys that may be those of this side."""


class RecordBuffer:
    """One side. Positions count the sealed byte stream, except `decrypted`, which counts the decrypted bytes."""

    __slots__ = (
        "alerts",
        "at",
        "base",
        "blocked",
        "completed_at",
        "current",
        "data",
        "decrypted",
        "desynchronised",
        "entered",
        "epoch",
        "exceeded_at",
        "failed",
        "floor",
        "handshake",
        "held",
        "index",
        "limited",
        "lost",
        "marks",
        "measured",
        "missing",
        "notes",
        "opened",
        "opened_bytes",
        "opener",
        "openers",
        "out",
        "out_of_order",
        "pending_notes",
        "queue",
        "round",
        "secret",
        "seq",
        "side",
        "skip_bytes",
        "skipped",
        "spent",
        "starts",
        "stopped",
        "stopped_at",
    )
    DERIVED = ("opener", "secret", "openers")
    """Keys are looked up again after a restore."""

    def __init__(self, side: int) -> None:
        self.side = side
        # Bytes at hand from position `base` on, read up to `at` of them; segments with absolute starts, `index` is the one at `at`.
        self.data = b""
        self.base = 0
        self.at = 0
        self.missing = 0
        """Bytes before `base` that never came."""
        self.starts: list[int] = []
        self.marks: list[Mark] = []
        self.completed_at: list[int] = []
        self.index = 0
        self.out_of_order = False
        self.notes: list[tuple[int, str]] = []
        self.queue: deque[SideData | StreamGap] | None = None
        """The bytes and gaps after `data`. A deque takes 760 bytes even if it is empty, and most connections never wait."""
        self.floor = 0
        """The first packet that can complete anything."""
        self.current = 0
        """The packet that is being read."""
        self.unblock()

        self.epoch: Epoch | None = None
        self.seq = 0
        self.prepare()
        self.round = -1
        """Which handshake of the connection it is in; a renegotiation begins another. `entered`: that of the keys in use."""
        self.entered = -1
        self.handshake = b""
        self.skip_bytes = 0
        """Bytes still to come of a handshake message that is too large to read."""
        self.lost: SealedGap | None = None
        self.stopped: str | None = None
        """The reason why it is not read any more, known since the packet `stopped_at`."""
        self.stopped_at = 0
        self.alerts: list[Alert] = []
        self.skipped = 0
        """Records that did not authenticate."""
        self.desynchronised = False
        """Whether its record boundaries are lost."""
        self.opened = 0
        self.opened_bytes = 0
        self.failed = 0
        self.spent = 0
        """Work spent on resynchronising after losses."""
        self.limited = 0
        """How often a limit was reached."""

        self.decrypted = 0
        self.pending_notes: list[str] = []
        """Notes for the next decrypted byte."""
        self.out: list[SideData | StreamGap] = []

    def prepare(self) -> None:
        self.opener: Opener | None = None
        self.secret: tuple[bytes, bool, int, bytes] | None = None
        """The latest traffic secret, with its session, whether it is the server's, and its generation."""
        self.openers: dict[tuple[str, int, int, bytes, bool], Opener | None] = {}

    def unblock(self) -> None:
        """Note that the keys or bytes that this side waited for have arrived."""
        self.blocked = False
        """It waits for keys or for the other side; `held` counts the bytes kept, `exceeded_at` is the packet that exceeded the limit."""
        self.held = self.measured = 0
        self.exceeded_at: int | None = None

    @property
    def position(self) -> int:
        return self.base + self.at

    def add(self, item: SideData) -> None:
        """Append the next bytes."""
        self.data = self.data[self.at :] + item.data
        self.base, self.at = self.position, 0
        if self.index or (self.starts and self.base >= item.position):
            count = len(self.starts) if self.base >= item.position else self.index
            del self.starts[:count], self.marks[:count], self.completed_at[:count]
            self.index = 0
        self.starts.append(item.position)
        self.marks.append(item.mark)
        self.completed_at.append(self.current)
        self.out_of_order |= self.current != item.order
        self.notes += item.notes

    def drop(self, position: int) -> None:
        """Release the bytes held; the next ones are at `position`."""
        self.missing += position - self.base - len(self.data)
        self.data, self.at, self.base, self.index = b"", 0, position, 0
        self.starts, self.marks, self.completed_at = [], [], []

    def move_to(self, end: int) -> int:
        """Move on to the segment that holds the byte before `end` of the bytes held, and return its index."""
        self.index = self.find(end)
        return self.index

    def find(self, end: int) -> int:
        """Return the index of the segment that holds the byte before `end`, without moving on to it."""
        starts, index, position = self.starts, self.index, self.base + end
        if index < len(starts) - 1 and starts[index + 1] < position:
            return bisect_left(starts, position, index + 1) - 1
        return index

    def put(self, item: SideData | StreamGap) -> None:
        """Queue the next bytes or gap."""
        if self.queue is None:
            self.queue = deque()
        self.queue.append(item)

    def trim(self) -> None:
        """Release the bytes that were read and the empty queue."""
        self.queue = self.queue or None
        if self.data and self.at == len(self.data):
            self.base += self.at
            self.data, self.at = b"", 0

    def completed_by(self, index: int) -> int:
        """Return the packet that completed a segment's bytes and all that they waited for."""
        return max(self.completed_at[index], self.floor)

    def enter(self, epoch: Epoch) -> None:
        """Use other keys for the records that follow."""
        self.epoch = epoch
        self.seq = 0
        self.opener = None
        self.openers.clear()
        self.handshake = b""
        self.skip_bytes = 0

    def mark_lost(self, since: int, seq: int, scan: int, reason: Any, framed: bool = False) -> None:
        """The bytes from `since` on cannot be read (see `SealedGap`)."""
        self.lost = SealedGap(since, seq, scan, reason, framed, spent=self.spent)

    def stop(self, reason: str, current: int) -> None:
        """Stop reading this side, for a reason known since the packet `current`."""
        if self.stopped is None:
            self.stopped, self.stopped_at = reason, current
            self.lost = None
            self.unblock()
            self.floor = max(self.floor, current)

    def measure_held(self, limit: int) -> None:
        """Count the bytes held while this side waits."""
        if not self.measured:
            ends = [*self.starts[self.index + 1 :], self.base + len(self.data)]
            for place, end in enumerate(ends, self.index):
                self._add_held(
                    end - max(self.starts[place], self.position) if self.starts else 0, self.completed_at[place : place + 1], limit
                )
            self.measured = 1
        while self.queue and self.measured <= len(self.queue):
            item = self.queue[self.measured - 1]
            self.measured += 1
            self._add_held(0 if isinstance(item, StreamGap) else len(item.data), [self.current], limit)

    def _add_held(self, size: int, current: list[int], limit: int) -> None:
        self.held += max(size, PIECE_COST)
        if self.exceeded_at is None and self.held > limit and current:
            self.exceeded_at = current[0]

    def advance(self, at: int, seq: int, index: int, opened: int) -> None:
        """Note that `opened` sealed records up to `at` were decrypted."""
        self.opened += opened
        self.opened_bytes += at - self.at
        self.seq = seq
        self.index = index
        self.at = at

    def emit(self, contents: list[tuple[bytes, int, int, int]]) -> None:
        """Output the content of records: each with its first segment, the one that completed it, and its end."""
        for data, first, pick, end in contents:
            mark = max(self.marks[first : pick + 1]) if self.out_of_order else self.marks[pick]
            notes = self._notes(end) if self.notes or self.pending_notes else ()
            self.out.append(SideData(self.side, self.decrypted, data, mark, notes))
            self.decrypted += len(data)

    def _notes(self, end: int) -> tuple[tuple[int, str], ...]:
        """Return the notes on a record that ends here."""
        mine = [*self.pending_notes, *[text for position, text in self.notes if position < self.base + end]]
        self.pending_notes = []
        self.notes = [note for note in self.notes if note[0] >= self.base + end]
        return tuple((self.decrypted, text) for text in mine)

    def gap(self, size: int | None, reason: Any, mark: Mark) -> None:
        """Output a gap."""
        self.out.append(StreamGap(self.side, self.decrypted, size, reason, *mark))
        self.decrypted += size or 0

    def pop_output(self) -> list[SideData | StreamGap]:
        """Return the output since the last call."""
        out, self.out = self.out, []
        return out
