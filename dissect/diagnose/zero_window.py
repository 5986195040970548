"""Zero windows: which side announced one, and for how long."""

from __future__ import annotations

import msgspec

from ..capture.ends import endpoints
from ..model import Segment
from ..tcp.assembler import TcpStream

SIDES_KEPT = 4_096
"""Sides of conversations remembered, at most."""

RUNS_KEPT = 64
"""Zero-window periods of a side, at most; then the oldest is dropped."""

SYN, FIN, RST = 2, 1, 4

Stopped = tuple[int, int, int]
"""The first packet with a zero window, its time, and the longest duration."""


class _ZeroPeriod(msgspec.Struct):
    """A zero-window period: the ends of its segments, its first packet as order and number, begin and end."""

    key: bytes
    order: int
    number: int
    since: int
    until: int


class Windows:
    """Finds zero windows in segments."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[_ZeroPeriod]] = {}
        """By sender and receiver."""
        self._shut: dict[bytes, _ZeroPeriod] = {}
        """By the ends of its segments, the current period of each side whose window is 0."""

    def feed(self, segment: Segment) -> None:
        """Update the periods with a segment."""
        if (segment.window and not self._shut) or segment.flags & (FIN | RST):
            return
        run, now = self._shut.get(segment.ends), segment.time_ns
        if run is not None:
            run.until = now
            if segment.window or segment.flags & SYN:
                del self._shut[segment.ends]
        elif not segment.window and not segment.flags & SYN:
            self._begin(_ZeroPeriod(segment.ends, segment.order, segment.number, now, now))

    def _begin(self, run: _ZeroPeriod) -> None:
        (source, _), (target, _) = endpoints(run.key)
        ends = source, target
        if ends not in self._runs and len(self._runs) >= SIDES_KEPT:
            self._forget(self._runs.pop(next(iter(self._runs))))
        runs = self._runs.setdefault(ends, [])
        runs.append(run)
        self._forget(runs[:-RUNS_KEPT])
        del runs[:-RUNS_KEPT]
        self._shut[run.key] = run

    def _forget(self, runs: list[_ZeroPeriod]) -> None:
        for run in runs:
            if self._shut.get(run.key) is run:
                del self._shut[run.key]

    def of(self, tcp: TcpStream, end_ns: int) -> tuple[Stopped | None, Stopped | None]:
        """Return the zero windows of each side of a conversation that ended at `end_ns`, or None."""
        return (self._side(tcp, 0, end_ns), self._side(tcp, 1, end_ns)) if self._runs else (None, None)

    def _side(self, tcp: TcpStream, side: int, end_ns: int) -> Stopped | None:
        ends = tcp.endpoints[side], tcp.endpoints[1 - side]
        mine = [run for run in self._runs.get(ends, ()) if tcp.first[0] <= run.order <= tcp.last[0]]
        if not mine:
            return None
        if tcp.open and self._shut.get(mine[-1].key) is mine[-1]:
            mine[-1].until = end_ns
        return mine[0].number, mine[0].since, max(run.until - run.since for run in mine)
