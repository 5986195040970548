"""The table of a running capture: who talks to whom, how fast, and how quickly it is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from dissect.inspector import Inspector, Tracked
from dissect.model import Message, Record
from dissect.render.summary import latency_text
from dissect.render.terminal import visible

if TYPE_CHECKING:
    from rich.table import Table

REMEMBERED = 100
"""Latencies of a conversation of which the median is taken: the latest."""

SPAN = 2.0
"""Seconds over which rates are measured at least."""

AROUND = 4
"""Lines of a terminal that the table needs besides its rows."""


class _Rates(msgspec.Struct):
    since: float
    messages: int
    bytes: int
    per_second: tuple[float, float] = (0.0, 0.0)


class Watch:
    """Keeps what the table shows besides the inspector's counts; nothing of conversations that the inspector has forgotten."""

    def __init__(self) -> None:
        self._latencies: dict[int, deque[int]] = {}
        self._rates: dict[int, _Rates] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Note the latencies of these records."""
        for record in records:
            if type(record) is Message and record.latency_ns is not None:
                latencies = self._latencies.get(record.conversation)
                if latencies is None:
                    latencies = self._latencies[record.conversation] = deque(maxlen=REMEMBERED)
                latencies.append(record.latency_ns)

    def table(self, inspector: Inspector, now: float, height: int, shown: Callable[[int], bool] | None = None) -> Table:
        """The conversations with the latest packets, as many as fit in so many lines; `now` in seconds of any clock, `shown`: which."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        tracked = {one.tcp.index: one for one in inspector.conversations}
        self._latencies = {index: kept for index, kept in self._latencies.items() if index in tracked}
        self._rates = {index: self._rate(one, now) for index, one in tracked.items()}
        counters, conversations = inspector.counters, inspector.past.conversations + len(tracked)
        made = Table(
            box=SIMPLE_HEAD,
            pad_edge=False,
            title=f"{counters.packets:,} packets, {counters.messages:,} messages, {conversations:,} conversations",
            title_justify="left",
        )
        for name in ("#", "conversation", "protocol", "messages/s", "bytes/s", "open", "latest", "median", "gaps"):
            left = name in ("conversation", "protocol")
            made.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
        wanted = [one for one in tracked.values() if shown is None or shown(one.tcp.index)]
        latest = sorted(wanted, key=lambda one: (one.done, -one.tcp.last[3]))[: max(1, height - AROUND)]
        for one in sorted(latest, key=lambda one: one.tcp.index):
            made.add_row(*self._cells(one), style="dim" if one.done else None)
        return made

    def _rate(self, one: Tracked, now: float) -> _Rates:
        size = sum(one.tcp.bytes)
        rates = self._rates.get(one.tcp.index)
        if rates is None:
            return _Rates(now, one.tally.messages, size)
        passed = now - rates.since
        if passed >= SPAN:
            return _Rates(now, one.tally.messages, size, ((one.tally.messages - rates.messages) / passed, (size - rates.bytes) / passed))
        return rates

    def _cells(self, one: Tracked) -> list[str]:
        index = one.tcp.index
        first, second = one.tcp.endpoints
        if one.client == 1:
            first, second = second, first
        name = "..." if one.verdict is None else one.verdict.protocol or visible(one.verdict.name or "unknown")
        messages, size = self._rates[index].per_second
        latencies = self._latencies.get(index)
        return [
            str(index),
            f"{first} {'-' if one.client is None else '>'} {second}",
            name,
            f"{messages:,.1f}",
            f"{size:,.0f}",
            "" if one.pairer is None else f"{len(one.pairer.open):,}",
            latency_text(latencies[-1]).strip() if latencies else "",
            latency_text(int(median(latencies))).strip() if latencies else "",
            f"{one.tally.gaps:,}" if one.tally.gaps else "",
        ]
