"""What all conversations together may hold: the bytes of no known protocol yet, and open requests."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from dissect.conversation.reading import Reading
from dissect.conversation.run import Outbox
from dissect.errors import bug
from dissect.model import Options, SegmentBatch
from dissect.pair import KEYS_COUNTED
from dissect.protocols.records import LARGE, Emitted, by_conversation

EPOCH, SEGMENT = 1 << 18, 64
"""After so many bytes, of which a segment counts some more than it carries, the totals over all conversations are looked at: at the same
packets however these come in batches."""

KEPT_OF_TOTAL = 0.75
"""What is left of a total that was passed: finding what is oldest means looking at all."""

FEW_KEYS = LARGE // 12 // KEYS_COUNTED + 2
"""The most that one message which is not large adds to the open requests, as they are counted."""


class Totals:
    """Keeps to the limits of them."""

    def __init__(self, options: Options, reading: Reading, outbox: Outbox) -> None:
        self._options = options
        self._reading = reading
        self._outbox = outbox
        self._fed = 0
        """What the epochs are told by."""
        self._opened = 0
        """No more requests can be open than this, which was found when so many records had been handed on."""
        self._counted = 0

    def epochs(self, segments: SegmentBatch) -> list[tuple[int, int, bool]]:
        """These segments in parts, from and to, and whether an epoch has ended before each."""
        fed = self._fed + np.cumsum(segments.length + SEGMENT)
        rows = np.flatnonzero(np.diff(fed // EPOCH, prepend=self._fed // EPOCH)).tolist()
        if len(segments):
            self._fed = int(fed[-1])
        begins = [0, *(row for row in rows if row)]
        return [(low, high, bool(low) or rows[:1] == [0]) for low, high in zip(begins, [*begins[1:], len(segments)], strict=True)]

    def relieve(self, release: int, time_ns: int, handed_on: int) -> list[Emitted]:
        """Keep to them; the records that this makes certain with the packet `release`, at this time. `handed_on`: so many were so far."""
        emitted = self._decide(release)
        self._opened += FEW_KEYS * (handed_on - self._counted) + self._outbox.keys
        self._counted, self._outbox.keys = handed_on, 0
        if self._opened > self._options.open_total:
            emitted += self._drop(release, time_ns)
        emitted.sort(key=by_conversation)
        return emitted

    def _decide(self, release: int) -> list[Emitted]:
        limit, detecting = self._options.undecided_total, self._reading.detecting
        emitted: list[Emitted] = []
        undecided = sum([tracked.detector.cost for tracked in detecting.values() if tracked.detector is not None])
        if undecided > limit:
            for _, tracked in sorted(detecting.items(), key=itemgetter(0)):
                if tracked.detector is not None and tracked.detector.cost:
                    undecided -= tracked.detector.cost
                    emitted += self._reading.decide_now(tracked, tracked.detector, release)
                if undecided <= KEPT_OF_TOTAL * limit:
                    break
        return emitted

    def _drop(self, release: int, time_ns: int) -> list[Emitted]:
        limit, emitted = self._options.open_total, list[Emitted]()
        paired = [(tracked, tracked.pairer) for tracked in self._reading.paired.values() if tracked.pairer is not None]
        self._opened = sum([pairer.weight() for _, pairer in paired])
        while self._opened > limit:
            orders = sorted([order for _, pairer in paired for order in pairer.orders()])
            until = orders[int(len(orders) * (1 - KEPT_OF_TOTAL * limit / self._opened))]
            for tracked, pairer in paired:
                try:
                    emitted += pairer.drop(until, release, time_ns)
                except Exception as error:
                    emitted += self._reading.give_up(tracked, bug(error), release)
            paired = [(tracked, pairer) for tracked, pairer in paired if tracked.pairer is pairer]
            self._opened = sum([pairer.weight() for _, pairer in paired])
        return emitted
