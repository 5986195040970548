"""Captures that are in tables already, known again by their content whatever they are called now."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .splits import HEAD, digest, head_of
from .tables import Input


class Captures:
    """All of them."""

    def __init__(self, found: Iterable[Input] = ()) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._sizes: dict[str, int] = {}
        """By first bytes. A file that is not a capture has none and equals no other."""
        self._short: dict[int, set[str]] = {}
        """By size, the same of captures that are shorter than that and have packets, which distinguish them."""
        for one in found:
            self._names[one.path, one.size] = one.head
            if one.head and one.unpacked is not None:
                self._sizes[one.head] = one.unpacked
                if one.packets and one.unpacked < HEAD:
                    self._short.setdefault(one.unpacked, set()).add(one.head)

    def same(self, name: str, size: int) -> bool:
        """Whether it is in under this name, as its size and its first bytes say: rings use names again."""
        head = self._names.get((name, size))
        return head is not None and head == head_of(name)

    def has(self, head: str, size: int | None) -> bool:
        """Whether a capture with these first bytes, and of this size when unpacked, is in."""
        return self._sizes.get(head, -1) == size

    def before(self, head: str, begin: Callable[[], bytes]) -> int | None:
        """The bytes that are in of a capture that has another size now, None where it is a new one; `begin` gives its first bytes."""
        found = self._sizes.get(head)
        if found is not None or not self._short or not head:
            return found
        data = begin()[:HEAD]
        return next((size for size, heads in self._short.items() if size < len(data) and digest(data[:size]) in heads), None)
