"""How much a frame and its conversation may still make of bytes that stand for very much more."""

from __future__ import annotations

from typing import Any, SupportsIndex

from .model import Span

MOST_SPANS = 1 << 18
"""Fields of a frame that are shown one by one with their bytes."""

UNDECODED_SHOWN = 1 << 16
"""Bytes that could not be read, or were not, are shown up to so many."""


class UnpackQuota:
    """How many bytes a conversation may still unpack: some are free, and each packed byte adds its share, so that frames made to
    grow a thousandfold cannot fill the memory one after the other."""

    __slots__ = ("left",)

    FREE = 64 << 20
    FOR_EACH = 100

    def __init__(self) -> None:
        self.left = self.FREE

    def grow(self, packed: int) -> int:
        """What may be unpacked now that `packed` bytes came."""
        self.left = min(self.FREE, self.left + packed * self.FOR_EACH)
        return self.left


class ValueQuota:
    """How many values may still be made: `left` of the frame at hand, and `empty` of the conversation those that take no bytes.

    A value is an element of a list, wherever in the frame that is: an entry of a chunk, a message of a sub-batch, a section, an item of
    an array, an element of a document; of a map the pair, its key and its value. Whoever reads one asks for it before it is made, and what
    was made counts, whether it is shown or was tried in vain.
    """

    __slots__ = ("empty", "empty_limit", "left", "limit")

    def __init__(self, limit: int, empty_limit: int = 0) -> None:
        self.limit = self.left = limit
        self.empty_limit = self.empty = empty_limit

    def begin(self) -> ValueQuota:
        """A frame begins."""
        self.left = self.limit
        return self

    def spend(self, count: int = 1) -> bool:
        """Takes `count` values; whether there was room for all of them."""
        if count > self.left:
            self.left = 0
            return False
        self.left -= count
        return True

    def spend_empty(self, count: int = 1) -> bool:
        """Takes `count` values that take no bytes; whether there was room."""
        if count > self.empty:
            self.empty = 0
            return False
        self.empty -= count
        return self.spend(count)

    def reason(self, declared: str) -> str:
        """What to say where no more may be made; `declared`: how many there are, as far as the bytes tell."""
        if self.left:
            return f"{declared}, of a conversation no more than {self.empty_limit} values without bytes are made"
        return f"{declared}, of a frame no more than {self.limit} values are made"


PLENTY = ValueQuota(1 << 62)
"""For frames that are too short to hold too many."""


FURTHER, UNDECODED = "further fields", "undecoded"


_append = list.append


class Spans(list[Span]):
    """The spans of a frame, in the order of its bytes: the first ones, and what they leave in one for each buffer.

    An index beyond those that are kept stands for one that is not, so that whoever keeps the index of a span needs no second way.
    """

    def __init__(self, start: int = 0, buffer: str = "frame") -> None:
        super().__init__()
        self.start = start
        self.buffer = buffer
        """What `put` counts from, and in."""
        self.beyond: dict[str, tuple[int, int, bool]] = {}
        """By buffer: from where to where the leaves reach that are not kept, and whether there is a secret in it."""

    def append(self, span: Span) -> None:
        if len(self) < MOST_SPANS:
            _append(self, span)
        elif span.leaf:
            start, _, secret = self.beyond.get(span.buffer, (span.offset, 0, False))
            self.beyond[span.buffer] = start, span.offset + span.length, secret or span.secret

    def put(self, name: str, at: int, length: int, value: Any, depth: int, leaf: bool = True, label: str | None = None) -> None:
        span = Span(name, at - self.start, length, value, depth, leaf, label, False, self.buffer)
        # The same as `append`, which is one of three calls for a value else
        if len(self) < MOST_SPANS:
            _append(self, span)
        else:
            self.append(span)

    def insert(self, index: SupportsIndex, span: Span) -> None:
        if len(self) < MOST_SPANS:
            super().insert(index, span)

    def end_at(self, index: int, length: int, label: str | None = None) -> None:
        """The length of the span at `index`, now that it is known, and a label, if it is one of those that are kept."""
        if index < len(self):
            self[index].length, self[index].label = length, label

    def hide(self, index: int) -> None:
        """The span at `index` is a secret; of those that are not kept only that there is one is remembered."""
        if index < len(self):
            self[index].secret = True
        else:
            self.beyond = {buffer: (start, end, True) for buffer, (start, end, _) in self.beyond.items()}

    def mark(self) -> tuple[int, dict[str, tuple[int, int, bool]]]:
        """For `back`."""
        return len(self), dict(self.beyond)

    def back(self, mark: tuple[int, dict[str, tuple[int, int, bool]]]) -> None:
        """Forget what was added since `mark`."""
        del self[mark[0] :]
        self.beyond = mark[1]

    def reach(self, buffer: str = "frame") -> int:
        """How far the leaves reach in a buffer."""
        if buffer in self.beyond:
            return self.beyond[buffer][1]
        return max((span.offset + span.length for span in self if span.leaf and span.buffer == buffer), default=0)

    def end(self, offset: int, data: bytes, value: Any, buffer: str = "frame", secret: bool = False) -> None:
        """Add what is left of a buffer and not read: the bytes `data` from `offset` on, which are shown as `value`."""
        self.close()
        shown = value if len(data) <= UNDECODED_SHOWN else None
        super().append(Span(UNDECODED, offset, len(data), shown, 0, True, None, secret, buffer))

    def close(self) -> None:
        """All spans are there: those that were not kept become one for each buffer."""
        for buffer, (start, end, secret) in self.beyond.items():
            super().append(Span(FURTHER, start, end - start, None, 0, secret=secret, buffer=buffer))
        self.beyond = {}
