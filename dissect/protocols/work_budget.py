"""What looking for frames may cost where it is not known of which protocol they are, or where they begin.

Such a look tries many places, and each of them may lead through all that follows. What was made up for it, or merely a disk image (zeros
read as the beginning of a frame anywhere), would be looked at again with every packet, from every place. So there is one rule for
detection and for the way back into frames after a loss: bytes pay for it when they come, and a look that cost more than they paid is
repeated only when others have paid the rest. Nothing here depends on how packets came in batches: a side's bytes are paid for, and looked
at, segment by segment.

What is spent are looks at bytes, each about ten nanoseconds, and STEP for what takes a step of the interpreter, however few bytes it reads.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 64
"""A header that is read and judged."""

PAID: Final = 64
"""What each byte pays. Real traffic needs a hundredth of it, zeros would need thousands."""

HEADERS: Final = 40
"""A segment has at least so many bytes of headers, which pay too."""

ONCE: Final = 16
"""What one look may cost for each byte it sees, headers included, beyond what was paid."""

ALWAYS: Final = 256 * STEP
"""What one look may cost however few bytes it sees."""


class WorkBudget:
    """What bytes have paid and what was spent of it, for one conversation in detection, and for each side in dissection."""

    __slots__ = ("least", "left", "seen")

    def __init__(self) -> None:
        self.left = 0
        self.least = -1 << 62
        """Where the look that goes on ends."""
        self.seen = 0
        """The position up to which bytes have paid."""

    def pay(self, size: int) -> None:
        """So many bytes of a segment came."""
        self.left += PAID * (HEADERS + size)

    def begin(self, size: int, segments: int) -> None:
        """A look at `size` bytes in so many segments begins, which was paid for or is the last one."""
        self.least = min(self.left, 0) - ALWAYS - ONCE * (HEADERS * segments + size)

    def spend(self, looks: int) -> bool:
        """Whether the look may go on after this."""
        self.left -= looks
        return self.left > self.least
