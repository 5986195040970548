"""When the other side acknowledged what a packet brought: how long that takes bounds the network's share of an answer's latency."""

from __future__ import annotations

from collections import deque

from streamdump.capture.ends import back
from streamdump.model import Pair, Segment
from streamdump.tcp.assembler import ACK, SYN
from streamdump.tcp.sequence import MASK, distance

SIDES_KEPT, SENT_KEPT, TIMES_KEPT = 4_096, 1_024, 65_536
"""So many sides are remembered with so many packets that are not acknowledged yet, and so many times."""


class AcknowledgedPairs(list[Pair]):
    """Requests with their responses, in which is noted when the requests were acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[tuple[int, int], int] = {}
        """By file and number of a packet when all was acknowledged that was sent with it."""
        self._sent: dict[bytes, deque[tuple[int, tuple[int, int]]]] = {}
        """By sender the ends of what it sent, and the packets."""

    def append(self, pair: Pair) -> None:
        """Keep this one; what is acknowledged later than it is answered tells nothing."""
        request = pair.request
        at = self.times.get((request.file, request.packets[1]))
        if at is not None and pair.latency_ns is not None:
            pair.acknowledged_ns = min(at - request.time_ns, pair.latency_ns)
        super().append(pair)

    def look(self, segment: Segment) -> None:
        """Take this segment in."""
        ends = segment.ends
        if segment.flags & SYN:
            self._sent.pop(ends, None)
        if segment.wire:
            sent = self._sent.get(ends)
            if sent is None:
                if len(self._sent) >= SIDES_KEPT:
                    del self._sent[next(iter(self._sent))]
                sent = self._sent[ends] = deque(maxlen=SENT_KEPT)
            sent.append(((segment.seq + segment.wire) & MASK, (segment.file, segment.number)))
        waiting = self._sent.get(back(ends)) if segment.flags & ACK else None
        while waiting and distance(waiting[0][0], segment.ack) >= 0:
            self.times[waiting.popleft()[1]] = segment.time_ns
            if len(self.times) > TIMES_KEPT:
                del self.times[next(iter(self.times))]
