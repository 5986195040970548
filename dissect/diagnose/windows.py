"""Sides that say they have no room: a window of 0, and how long it stays so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dissect.model import SegmentBatch
from dissect.tcp.conversations import endpoint

if TYPE_CHECKING:
    from dissect.tcp.assembler import Conversation

SIDES_KEPT = 4_096
"""So many sides of conversations are remembered."""

RUNS_KEPT = 64
"""So often may one of them be without room; then the oldest time is forgotten."""

SYN, FIN, RST = 2, 1, 4

Stopped = tuple[int, int, int]
"""The packet that said so first, when it came, and for how long it was so at the longest."""


class _Run(msgspec.Struct):
    """One time without room: the packet that begins it as order and number, from when until when."""

    order: int
    number: int
    since: int
    until: int


class Windows:
    """Looks at the segments by column, and at single ones only of a side that has no room."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[_Run]] = {}
        """By sender and receiver."""
        self._shut: dict[bytes, tuple[str, str]] = {}
        """Those that have no room now."""

    def look(self, segments: SegmentBatch) -> None:
        """Take these segments in."""
        shut = (segments.window == 0) & ((segments.flags & (SYN | FIN | RST)) == 0)
        if not self._shut and not shut.any():
            return
        keys = [one.tobytes() for one in np.column_stack([segments.flow, segments.reverse.astype(np.uint8)])]
        wanted = self._shut.keys() | {keys[row] for row in np.flatnonzero(shut).tolist()}
        for row, key in enumerate(keys):
            if key not in wanted or segments.flags[row] & (FIN | RST):
                continue
            ends, now = self._shut.get(key), int(segments.time_ns[row])
            if ends is not None:
                self._runs[ends][-1].until = now
                if not shut[row]:
                    del self._shut[key]
            elif shut[row]:
                low, high = endpoint(key, 0)[0], endpoint(key, 18)[0]
                self._begin(
                    key, (high, low) if key[-1] else (low, high), _Run(int(segments.order[row]), int(segments.number[row]), now, now)
                )

    def _begin(self, key: bytes, ends: tuple[str, str], run: _Run) -> None:
        if ends not in self._runs and len(self._runs) >= SIDES_KEPT:
            gone = next(iter(self._runs))
            del self._runs[gone]
            self._shut = {key: one for key, one in self._shut.items() if one != gone}
        runs = self._runs.setdefault(ends, [])
        runs.append(run)
        del runs[:-RUNS_KEPT]
        self._shut[key] = ends

    def of(self, tcp: Conversation) -> tuple[Stopped | None, Stopped | None]:
        """How it was for each side of a conversation that has ended; None: there was always room."""
        return self._side(tcp, 0), self._side(tcp, 1)

    def _side(self, tcp: Conversation, side: int) -> Stopped | None:
        runs = self._runs.get((tcp.endpoints[side], tcp.endpoints[1 - side]), ())
        mine = [run for run in runs if tcp.first[0] <= run.order <= tcp.last[0]]
        return (mine[0].number, mine[0].since, max(run.until - run.since for run in mine)) if mine else None
