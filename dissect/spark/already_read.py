"""Captures that are in tables already, known again by their content whatever they are called now."""

from __future__ import annotations

from collections.abc import Iterable

from . import storage
from .splits import HEAD, begin, digest
from .tables import Input


class Captures:
    """All of them."""

    def __init__(self, inputs: Iterable[Input] = ()) -> None:
        found = list(inputs)
        self._names = {(one.path, one.size): one.head for one in found}
        self._sizes = {one.head: one.unpacked for one in found if one.head and one.unpacked is not None}
        """By first bytes. A file that is not a capture has none and equals no other."""
        self._short = {one.unpacked for one in found if one.packets and one.unpacked is not None and one.unpacked < HEAD}
        """Sizes of captures that are shorter than their first bytes may be and have packets, which distinguish them."""

    def same(self, name: str, size: int) -> bool:
        """Whether it is in under this name, as its size and its first bytes say: rings use names again."""
        head = self._names.get((name, size))
        return head is not None and head == begin(name).head

    def before(self, head: str, place: str) -> int | None:
        """The bytes that are in of a capture, which may have more now, None where it is a new one. `place`: where its bytes are."""
        if head in self._sizes or not self._short or not head:
            return self._sizes.get(head)
        data = storage.pieces(place, 0, HEAD)
        return next((size for size in self._short if size < len(data) and self._sizes.get(digest(data[:size])) == size), None)
