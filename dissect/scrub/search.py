"""Whether anything is left of a secret: pieces of it as they are, in hex, in base64, in UTF-16, within packets and from one to the next."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator
from mmap import mmap

import msgspec

from ..tcp.sequence import distance

LEAST = 8
"""Shorter pieces are found everywhere by chance."""

BLOCK = 1 << 20

Range = tuple[int, int]


def pieces(secret: bytes) -> Iterator[bytes]:
    """All pieces of `LEAST` bytes of a secret, and what of other forms is as long or a little longer.

    Of those as many as it takes to find `2 * LEAST` bytes of them wherever they begin.
    """
    yield from _cut(secret, LEAST, 1, 1)
    wide = secret.decode("latin-1")
    for form in (secret.hex().encode(), secret.hex().upper().encode(), wide.encode("utf-16-le"), wide.encode("utf-16-be")):
        yield from _cut(form, 2 * LEAST, 2 * LEAST, 2)
    for lead in range(3):
        # the first and the last characters depend on the characters around them
        text = b64encode(bytes(lead) + secret)
        text = text[(0, 2, 3)[lead] : (len(secret) + lead) * 8 // 6]
        for form in {text, text.replace(b"+", b"-").replace(b"/", b"_")}:
            yield from _cut(form, LEAST + 2, LEAST + 2, 2)


def _cut(form: bytes, size: int, step: int, few: int) -> Iterator[bytes]:
    """Pieces that cover a form, but those of so few different bytes that they may be anything."""
    last = len(form) - size
    for at in (*range(0, last, step), last) if last >= 0 else ():
        piece = form[at : at + size]
        if len(set(piece)) > few:
            yield piece


class SecretSearch:
    """Finds pieces of secrets."""

    def __init__(self, wanted: Iterable[bytes]) -> None:
        self._pieces = frozenset(wanted)
        self._heads = frozenset(int.from_bytes(one[:LEAST], sys.byteorder) for one in self._pieces)
        self._sizes = sorted({len(one) for one in self._pieces})
        self.reach = max(self._sizes, default=1) - 1
        """Bytes of a piece that may lie before a border."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def within(self, data: bytes) -> Iterator[Range]:
        """From and to of every piece in some bytes."""
        for shift in range(LEAST):
            words = memoryview(data)[shift : shift + max(0, len(data) - shift) // LEAST * LEAST].cast("Q")
            # Python's loop is slow, and nearly always there is nothing
            for index, word in enumerate(() if self._heads.isdisjoint(words) else words):
                if word in self._heads:
                    at = shift + index * LEAST
                    for size in self._sizes:
                        if at + size <= len(data) and data[at : at + size] in self._pieces:
                            yield at, at + size

    def everywhere(self, file: mmap | bytes) -> Iterator[Range]:
        """Yield the ranges of the pieces in a complete file, block by block."""
        for base in range(0, len(file), BLOCK) if self else ():
            for start, end in self.within(file[base : base + BLOCK + self.reach]):
                if start < BLOCK:
                    yield base + start, base + end


class _Side(msgspec.Struct):
    """What one side of a connection sent: of each segment the position of its bytes, where they are in the file, and how many."""

    first: int
    positions: array[int] = msgspec.field(default_factory=lambda: array("q"))
    places: array[int] = msgspec.field(default_factory=lambda: array("q"))
    sizes: array[int] = msgspec.field(default_factory=lambda: array("q"))
    reached: int = 0

    def across(self, search: SecretSearch, file: mmap) -> Iterator[Range]:
        """Where in the file pieces are that go from one segment to the next, in all copies of them."""
        rows = sorted(range(len(self.positions)), key=self.positions.__getitem__)
        found: list[Range] = []
        tail, reached = b"", -(1 << 62)
        for row in rows:
            position, place, size = self.positions[row], self.places[row], self.sizes[row]
            if position > reached:
                # bytes are missing
                tail, reached = b"", position
            known = reached - position
            if known >= size:
                continue
            window = tail + file[place + known : place + min(size, known + search.reach)]
            found += [(start + reached - len(tail), end + reached - len(tail)) for start, end in search.within(window) if start < len(tail)]
            near = file[place + max(known, size - search.reach) : place + size]
            tail, reached = (tail + near)[-search.reach :], position + size
        for row in rows if found else ():
            position, place, size = self.positions[row], self.places[row], self.sizes[row]
            for start, end in found:
                low, high = max(start, position), min(end, position + size)
                if low < high:
                    yield place + low - position, place + high - position


class ByteStreams:
    """The bytes of all TCP connections, in the order in which they were sent."""

    def __init__(self) -> None:
        self._sides: dict[tuple[bytes, bytes, bytes], list[_Side]] = {}

    def add(self, ends: tuple[bytes, bytes], header: bytes, pieces: Iterable[tuple[int, int, int]]) -> None:
        """A segment, of its pieces the offset in its payload, the place in the file and the size."""
        sides = self._sides.setdefault((*ends, header[:4]), [])
        begins = header[13] & 2
        seq = int.from_bytes(header[4:8], "big") + (begins >> 1) & 0xFFFF_FFFF
        if not sides or (begins and seq != sides[-1].first):
            sides.append(_Side(seq))
        side = sides[-1]
        position = side.reached + distance(side.first + side.reached & 0xFFFF_FFFF, seq)
        for offset, place, size in pieces:
            side.positions.append(position + offset)
            side.places.append(place)
            side.sizes.append(size)
            side.reached = max(side.reached, position + offset + size)

    def across(self, search: SecretSearch, file: mmap) -> Iterator[Range]:
        """Finds secrets that reach from packet to packet, in the byte streams of all sides."""
        for sides in self._sides.values():
            for side in sides:
                yield from side.across(search, file)
