"""What reassembly saw of the network and of closed connections, for the diagnosis: plain data."""

from __future__ import annotations

from typing import NamedTuple

QUIET_NS = 30_000_000_000
"""A connection without a packet for longer may be forgotten by a device between the two sides."""

LATE_NS = 1_000_000_000
"""By then what one side ends has reached the other, though the capture does not show it."""

NOTICED_NS = 100_000_000
"""By then a side may know of the end that it has acknowledged: before, what it sends was on its way."""

PACKETS_KEPT = 8

RESETS_KEPT = 8
"""So many RSTs that were ignored are named."""


class Silence(NamedTuple):
    """A time without a packet: from when, until when, which side ended it with which packet, and how many the other side had sent."""

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
    """It answers the first packet after this, and shows that its sender does not know the connection."""
    expected: bool = False
    """Its receiver might have taken it, but goes on."""

    @property
    def injected(self) -> bool:
        """Whether its TTL shows that somebody else sent it."""
        return bool(self.others) and self.ttl not in self.others


class LateData(NamedTuple):
    """The first new bytes that a side sent though the other one had ended the connection at `since_ns`. `refused`: RST came back."""

    number: int
    time_ns: int
    size: int
    end: int
    since_ns: int
    reset: bool
    refused: bool = False


class SentAgain(NamedTuple):
    """The first bytes that were not acknowledged: how many times they were sent, from when to when, and the first packets."""

    position: int
    times: int
    first_ns: int
    last_ns: int
    packets: tuple[int, ...]


SENT_OFTEN = 3
"""Bytes that were sent so often and never acknowledged do not reach their receiver."""


class Signs(NamedTuple):
    """Of one conversation: the RST that ended it, those that changed nothing; by side data for a closed connection, and data that was
    sent again and never acknowledged."""

    reset: Reset | None = None
    ignored: tuple[Reset, ...] = ()
    late: tuple[LateData | None, LateData | None] = (None, None)
    unacknowledged: tuple[SentAgain | None, SentAgain | None] = (None, None)
    silence: Silence | None = None
    """The last long one."""
    damaged: tuple[int, int] = (0, 0)
    """By side segments with a wrong checksum that were sent again."""
