"""Limits the cost of searching for frames, in detection and in resynchronisation.

A search tries many positions, and each attempt may read all bytes that follow. Without a limit, hostile bytes, or a mere disk image (zeros
are valid starts of a frame), would be searched again with every packet, from every position. So each byte adds to the budget when it
arrives, and a search that overdraws it is repeated only when later bytes have paid the rest. The result does not depend on batches: bytes
are paid for, and searched, segment by segment.

The unit is a look at one byte, about ten nanoseconds; STEP is the cost of a step of the interpreter.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 64
"""The cost of reading and checking a header."""

PAID: Final = 64
"""What each byte adds. Real traffic needs a hundredth of it, zeros would need thousands."""

HEADERS: Final = 40
"""Header bytes of a segment, which pay, too."""

ONCE: Final = 16
"""How much one search may overdraw the budget per byte, including headers."""

ALWAYS: Final = 256 * STEP
"""How much one search may overdraw it in any case."""


class WorkBudget:
    """The budget of one conversation in detection, and of one side in dissection."""

    __slots__ = ("least", "left", "seen")

    def __init__(self) -> None:
        self.left = 0
        self.least = -1 << 62
        """The balance at which the current search stops."""
        self.seen = 0
        """The position up to which bytes have paid."""

    def pay(self, size: int) -> None:
        """Add the payment of a segment with `size` bytes."""
        self.left += PAID * (HEADERS + size)

    def begin(self, size: int, segments: int) -> None:
        """Begin a search of `size` bytes in `segments` segments."""
        self.least = min(self.left, 0) - ALWAYS - ONCE * (HEADERS * segments + size)

    def spend(self, looks: int) -> bool:
        """Spend; return whether the search may continue."""
        self.left -= looks
        return self.left > self.least
