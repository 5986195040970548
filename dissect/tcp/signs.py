"""Observations of reassembly about the network and closed connections, for the diagnosis."""

from __future__ import annotations

from typing import NamedTuple

QUIET_NS = 30_000_000_000
"""A connection without a packet for longer may be dropped by a device between the two sides."""

LATE_NS = 1_000_000_000
"""Time after which a FIN or RST has reached the other side, even if the capture does not show it."""

NOTICED_NS = 100_000_000
"""Time after which a side knows of an end that it acknowledged: data sent earlier was in flight."""

MAX_PACKETS = 8

MAX_RESETS = 8
"""Ignored RSTs listed per conversation."""


class Silence(NamedTuple):
    """A time without a packet: start, end, the side and packet that ended it, and the packets of the other side until then."""

    since_ns: int
    until_ns: int
    side: int
    number: int
    others: int


class Reset(NamedTuple):
    """A RST: its packet, its TTL and those of its sender's other packets, and the furthest positions of its sender and its receiver."""

    side: int
    number: int
    time_ns: int
    ttl: int
    others: tuple[int, ...]
    top: int
    beyond: int
    silence: Silence | None = None
    """It answers the first packet after this silence, and shows that its sender does not know the connection."""
    expected: bool = False
    """Its receiver could have accepted it, but continues."""

    @property
    def injected(self) -> bool:
        """Whether its TTL shows another sender."""
        return bool(self.others) and self.ttl not in self.others


class LateData(NamedTuple):
    """The first new bytes that a side sent after the other one ended the connection at `since_ns`; `refused`: a RST answered them."""

    number: int
    time_ns: int
    size: int
    end: int
    since_ns: int
    reset: bool
    refused: bool = False


class SentAgain(NamedTuple):
    """The first unacknowledged bytes: how often they were sent, first and last time, and the first packets."""

    position: int
    times: int
    first_ns: int
    last_ns: int
    packets: tuple[int, ...]


SENT_OFTEN = 3
"""Transmissions without acknowledgement that show that bytes do not reach their receiver."""


class Signs(NamedTuple):
    """Of one conversation: the RST that ended it, ignored ones; by side, data for a closed connection, and data retransmitted
    without acknowledgement."""

    reset: Reset | None = None
    ignored: tuple[Reset, ...] = ()
    late: tuple[LateData | None, LateData | None] = (None, None)
    unacknowledged: tuple[SentAgain | None, SentAgain | None] = (None, None)
    silence: Silence | None = None
    """The last long silence."""
    damaged: tuple[int, int] = (0, 0)
    """By side, segments with a wrong checksum that were retransmitted."""
