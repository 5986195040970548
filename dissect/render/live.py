"""The table of a running capture: who talks to whom, how fast, and how quickly it is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ..conversation.conversation import Conversation, how
from ..inspector import Inspector
from ..model import Message, Record
from ..units import count, duration_text
from .terminal import cut, visible

if TYPE_CHECKING:
    from rich.table import Table

REMEMBERED = 100
"""Latencies of a conversation of which the median is taken: the latest."""

SPAN = 2.0
"""Seconds over which rates are measured at least."""

LEAST = 24
"""Columns of a terminal that the endpoints should have."""

ENDS = "conversation"

_NAMES = ["#", ENDS, "protocol", "msg/s", "bytes/s", "open", "latest", "median", "gaps"]

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

    def add(self, records: Iterable[Record]) -> None:
        """Note the latencies of these records."""
        for record in records:
            if type(record) is Message and record.latency_ns is not None:
                self._latencies.setdefault(record.conversation, deque(maxlen=REMEMBERED)).append(record.latency_ns)

    def table(
        self, inspector: Inspector, now: float, height: int, shown: Callable[[int], bool] | None = None, width: int | None = None
    ) -> Table:
        """The conversations with the latest packets, as many as fit in so many lines of this width; `now` in seconds of any clock,
        `shown`: which."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        known = {one.index: one for one in inspector.table.conversations}
        self._latencies = {index: kept for index, kept in self._latencies.items() if index in known}
        self._rates = {index: self._rate(one, now) for index, one in known.items()}
        counters, conversations = inspector.counters, len(inspector.table)
        counts = (count(counters.packets, "packet"), count(counters.messages, "message"), count(conversations, "conversation"))
        made = Table(
            box=SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, 1, 0, 0),
            title=", ".join(counts),
            title_justify="left",
        )
        wanted = [one for one in known.values() if shown is None or shown(one.index)]
        latest = sorted(wanted, key=lambda one: (one.done, -one.tcp.last[3]))[: max(1, height - AROUND)]
        listed = sorted(latest, key=lambda one: one.index)
        rows = [dict(zip(_NAMES, self._cells(one), strict=True)) for one in listed]
        names = [name for name in _NAMES if name != "gaps" or any(row[name] for row in rows)]
        if width is not None:
            # A number without its unit is worse than half an address, and than none
            sizes = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in _NAMES}
            for name in ("gaps", "median", "bytes/s"):
                if name in names and _room(names, sizes, width) < LEAST:
                    names.remove(name)
            for row in rows:
                row[ENDS] = cut(row[ENDS], max(len(ENDS), _room(names, sizes, width)))
        for name in names:
            made.add_column(name, justify="left" if name in (ENDS, "protocol") else "right", no_wrap=True, overflow="ellipsis")
        for one, row in zip(listed, rows, strict=True):
            made.add_row(*(row[name] for name in names), style="dim" if one.tcp.end is not None or one.done else None)
        return made

    def _rate(self, one: Conversation, now: float) -> _Rates:
        size = sum(one.tcp.payload)
        rates = self._rates.get(one.index)
        if rates is None:
            return _Rates(now, one.tally.messages, size)
        passed = now - rates.since
        if passed >= SPAN:
            return _Rates(now, one.tally.messages, size, ((one.tally.messages - rates.messages) / passed, (size - rates.bytes) / passed))
        return rates

    def _open(self, one: Conversation) -> str:
        """How many requests are open, or how it ended."""
        if one.tcp.end is not None:
            return how(one).partition(",")[0].replace(" by ", " ")
        return "" if one.pairer is None else f"{len(one.pairer.open):,}"

    def _cells(self, one: Conversation) -> list[str]:
        index = one.index
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
            self._open(one),
            duration_text(latencies[-1]) if latencies else "",
            duration_text(int(median(latencies))) if latencies else "",
            f"{one.tally.gaps:,}" if one.tally.gaps else "",
        ]


def _room(names: Sequence[str], sizes: Mapping[str, int], width: int) -> int:
    """What the columns of these names leave to the endpoints; two blanks part them."""
    return width - sum(sizes[name] for name in names if name != ENDS) - 2 * len(names)
