"""Limits on what a frame and its conversation may produce from few bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from .model import Span

MOST_SPANS = 1 << 18
"""Spans kept per frame."""

UNDECODED_SHOWN = 1 << 16
"""Undecoded bytes that are shown."""

UNPACKED_SHOWN, UNPACKED_SHOWN_FOR_EACH = 1 << 12, 32
"""Unpacked bytes that views for people show of a frame, and more for each of its bytes: a line of a dump takes as long as a message."""


def bytes_shown(buffers: Mapping[str, bytes], size: int) -> dict[str, int]:
    """Return how many bytes views for people show of each unpacked buffer of a frame of `size` bytes: together `UNPACKED_SHOWN`, and
    `UNPACKED_SHOWN_FOR_EACH` for each byte of the frame."""
    left = UNPACKED_SHOWN + UNPACKED_SHOWN_FOR_EACH * size
    shown: dict[str, int] = {}
    for name, data in buffers.items():
        if name != "frame":
            shown[name] = min(len(data), left)
            left -= shown[name]
    return shown


def drop_oldest(kept: dict[Any, Any], most: int) -> None:
    """Remove the oldest entry of `kept` if there are more than `most`. With tens of thousands it is to be an `OrderedDict`: finding the
    first key of a dict takes longer the more were removed there."""
    if len(kept) > most:
        del kept[next(iter(kept))]


def keep_newest(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Set an entry of `kept`, which is its newest then, and remove the oldest if there are more than `most`."""
    kept.pop(key, None)
    kept[key] = value
    drop_oldest(kept, most)


class UnpackPool:
    """Bytes that all conversations of a run may unpack together beyond what each may."""

    __slots__ = ("left", "unpacked")

    def __init__(self, left: int = 16 << 20) -> None:
        self.left = left
        self.unpacked = 0
        """Bytes that were unpacked, by which records are released before they take too much memory."""


class UnpackQuota:
    """Bytes that a conversation may still unpack: `FREE`, `FOR_EACH` per packed byte so far, together at most `MOST`, and the pool.

    A bomb unpacks to a thousand times its size or more, and a capture may have one in each of its conversations. What other conversations
    unpack has an effect only on frames that unpack to more than any real data, and only once the pool is used up.
    """

    __slots__ = ("own", "pool")

    FREE = 1 << 14

    FOR_EACH = 256
    """LZ4 packs up to 255 bytes into one; gzip and zstd exceed that only where a message, or all of a batch, repeat a few bytes."""

    MOST = 64 << 20

    def __init__(self, pool: UnpackPool) -> None:
        self.own = self.FREE
        self.pool = pool

    @property
    def left(self) -> int:
        """The bytes that may be unpacked."""
        return self.own + self.pool.left

    def grow(self, packed: int) -> int:
        """Add `packed` bytes; return the bytes that may be unpacked."""
        self.own = min(self.MOST, self.own + packed * self.FOR_EACH)
        return self.left

    def spend(self, size: int) -> bool:
        """Spend `size` bytes; return whether that many were left."""
        self.pool.unpacked += size
        self.own -= size
        if self.own < 0:
            self.pool.left += self.own
            self.own = 0
            if self.pool.left < 0:
                self.pool.left = 0
                return False
        return True


class ValueQuota:
    """Values that may still be made: `left` in the current frame, and `empty`, those without bytes, in the conversation.

    A value is an element of any list in the frame: an entry of a chunk, a message of a sub-batch, a section, an item of an array, an
    element of a document; in a map the pair, its key and its value. Readers spend before they make a value; failed attempts count, too.
    """

    __slots__ = ("empty", "empty_limit", "left", "limit")

    def __init__(self, limit: int, empty_limit: int = 0) -> None:
        self.limit = self.left = limit
        self.empty_limit = self.empty = empty_limit

    def begin(self) -> ValueQuota:
        """Begin a frame."""
        self.left = self.limit
        return self

    def spend(self, count: int = 1) -> bool:
        """Spend `count` values; return whether all of them may be made."""
        if count > self.left:
            self.left = 0
            return False
        self.left -= count
        return True

    def spend_empty(self, count: int = 1) -> bool:
        """Spend `count` values without bytes; return whether all of them may be made."""
        if count > self.empty:
            self.empty = 0
            return False
        self.empty -= count
        return self.spend(count)

    def reason(self, declared: str) -> str:
        """Return the reason of a fault when no more may be made; `declared`: their number according to the bytes."""
        if self.left:
            return f"{declared}, of a conversation no more than {self.empty_limit} values without bytes are made"
        return f"{declared}, of a frame no more than {self.limit} values are made"


PLENTY = ValueQuota(1 << 62)
"""For frames too short to exceed a limit."""


FURTHER, UNDECODED = "further fields", "undecoded"


_append = list.append


class Spans(list[Span]):
    """The spans of a frame, in the order of its bytes: the first MOST_SPANS, and one for the rest of each buffer.

    An index beyond these stands for a span that was dropped, so that users of an index need no special case.
    """

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.start = start
        self.buffer = "frame"
        """The offset and the buffer of `put`."""
        self.beyond: dict[str, tuple[int, int, bool]] = {}
        """The dropped leaves by buffer: start, end, and whether one is secret."""

    def append(self, span: Span) -> None:
        if len(self) < MOST_SPANS:
            _append(self, span)
        elif span.leaf:
            start, _, secret = self.beyond.get(span.buffer, (span.offset, 0, False))
            self.beyond[span.buffer] = start, span.offset + span.length, secret or span.secret

    def put(self, name: str, at: int, length: int, value: Any, depth: int, leaf: bool = True, label: str | None = None) -> None:
        span = Span(name, at - self.start, length, value, depth, leaf, label, False, self.buffer)
        # `append` inlined: one of three calls per value
        if len(self) < MOST_SPANS:
            _append(self, span)
        else:
            self.append(span)

    def insert(self, index: SupportsIndex, span: Span) -> None:
        if len(self) < MOST_SPANS:
            super().insert(index, span)

    def end_at(self, index: int, length: int, label: str | None = None) -> None:
        """Set the length and label of the span at `index`, if it was kept."""
        if index < len(self):
            self[index].length, self[index].label = length, label

    def hide(self, index: int) -> None:
        """Mark the span at `index` as secret; for a dropped one, all dropped leaves."""
        if index < len(self):
            self[index].secret = True
        else:
            self.beyond = {buffer: (start, end, True) for buffer, (start, end, _) in self.beyond.items()}

    def mark(self) -> tuple[int, dict[str, tuple[int, int, bool]]]:
        """Return a mark for `back`."""
        return len(self), dict(self.beyond)

    def back(self, mark: tuple[int, dict[str, tuple[int, int, bool]]]) -> None:
        """Remove what was added since `mark`."""
        del self[mark[0] :]
        self.beyond = mark[1]

    def reach(self, buffer: str = "frame") -> int:
        """Return the end of the leaves in a buffer."""
        if buffer in self.beyond:
            return self.beyond[buffer][1]
        return max((span.offset + span.length for span in self if span.leaf and span.buffer == buffer), default=0)

    def end(self, offset: int, data: bytes, value: Any, buffer: str = "frame", secret: bool = False) -> None:
        """Add the undecoded rest of a buffer: the bytes `data` from `offset` on, shown as `value`."""
        self.close()
        shown = value if len(data) <= UNDECODED_SHOWN else None
        super().append(Span(UNDECODED, offset, len(data), shown, 0, True, None, secret, buffer))

    def close(self) -> None:
        """Add one span for the dropped leaves of each buffer."""
        for buffer, (start, end, secret) in self.beyond.items():
            super().append(Span(FURTHER, start, end - start, None, 0, secret=secret, buffer=buffer))
        self.beyond = {}
