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
from ..pair.open_requests import oldest_of
from ..protocols.records import Event
from ..units import count, duration_text
from .terminal import Palette, cut, visible

if TYPE_CHECKING:
    from rich.table import Table

REMEMBERED = 100
"""The latest latencies of a conversation, of which the median is shown."""

SPAN = 2.0
"""Seconds over which rates are measured at least."""

WAITING = 1.0
"""Seconds after which an open request counts as a problem."""

RECENT = 10.0
"""Seconds for which a refusal, a fault or a gap does."""

LEAST = 24
"""Columns of a terminal that the endpoints should have."""

ENDS = "conversation"

_NAMES = ["#", "!", ENDS, "protocol", "msg/s", "bytes/s", "open", "latest", "median", "gaps", "problem"]

AROUND = 4
"""Lines of a terminal that the table needs besides its rows."""


class _Rates(msgspec.Struct):
    since: float
    messages: int
    bytes: int
    per_second: tuple[float, float] = (0.0, 0.0)


class _Problems(msgspec.Struct):
    """What was seen of one conversation; times in seconds of the clock of `Watch.table`."""

    counts: dict[str, int]
    """By name, what went wrong so far."""
    latest: dict[str, float] = {}
    """By name, when that count last grew."""
    oldest: int | None = None
    """The order of the request that is open the longest."""
    since: float = 0.0
    """When that was first seen."""


class Watch:
    """Keeps what the table shows besides the inspector's counts; nothing of conversations that the inspector has forgotten."""

    def __init__(self) -> None:
        self._latencies: dict[int, deque[int]] = {}
        self._rates: dict[int, _Rates] = {}
        self._problems: dict[int, _Problems] = {}

    def add(self, records: Iterable[Record]) -> None:
        """Note the latencies of these records."""
        for record in records:
            if type(record) is Message and record.latency_ns is not None:
                self._latencies.setdefault(record.conversation, deque(maxlen=REMEMBERED)).append(record.latency_ns)

    def table(
        self, inspector: Inspector, now: float, height: int, shown: Callable[[int], bool] | None = None, width: int | None = None
    ) -> Table:
        """Return the conversations with the latest packets, as many as fit into this height and width; `now` in seconds of any clock,
        `shown`: which."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        known = {one.index: one for one in inspector.table.conversations}
        self._latencies = {index: kept for index, kept in self._latencies.items() if index in known}
        self._rates = {index: self._rate(one, now) for index, one in known.items()}
        self._problems = {index: self._watched(one, now) for index, one in known.items()}
        counters, conversations = inspector.counters, len(inspector.table)
        counts = (count(counters.packets, "packet"), count(counters.messages, "message"), count(conversations, "conversation"))
        made = Table(
            box=SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, 1, 0, 0),
            title=cut(", ".join(counts), width or 80),
            title_justify="left",
        )
        wanted = [one for one in known.values() if shown is None or shown(one.index)]
        latest = sorted(wanted, key=lambda one: (one.done, -one.tcp.last[3]))[: max(1, height - AROUND)]
        listed = sorted(latest, key=lambda one: one.index)
        rows = [dict(zip(_NAMES, self._cells(one, now), strict=True)) for one in listed]
        names = [name for name in _NAMES if name not in ("!", "gaps", "problem") or any(row[name] for row in rows)]
        if width is not None:
            # A number without its unit is worse than half an address, and than none
            sizes = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in _NAMES}
            for name in ("gaps", "median", "bytes/s", "problem"):
                if name in names and _room(names, sizes, width) < LEAST:
                    names.remove(name)
            for row in rows:
                row[ENDS] = cut(row[ENDS], max(len(ENDS), _room(names, sizes, width)))
        for name in names:
            left, loud = name in ("!", ENDS, "protocol", "problem"), name in ("!", "problem")
            made.add_column(
                "" if name == "!" else name,
                justify="left" if left else "right",
                no_wrap=True,
                overflow="ellipsis",
                style="bold red" if loud else None,
            )
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

    def _watched(self, one: Conversation, now: float) -> _Problems:
        """Return the problems of a conversation seen until now."""
        tally = one.tally
        counts = {"refused": tally.refused, "unanswered": tally.unanswered, "not readable": tally.faults, "gaps": tally.gaps}
        before = self._problems.get(one.index) or _Problems({})
        latest = {name: now if number > before.counts.get(name, 0) else before.latest.get(name, 0.0) for name, number in counts.items()}
        opened = _longest_open(one)
        oldest = None if opened is None else opened.order
        return _Problems(counts, latest, oldest, before.since if oldest == before.oldest else now)

    def _problem(self, one: Conversation, now: float) -> str:
        """Return the current problem of a conversation: how it ended, a request that waits, or a recent failure."""
        known = self._problems[one.index]
        if one.tcp.end is not None and one.tcp.end.how != "FIN":
            return how(one)
        if known.oldest is not None and now - known.since >= WAITING:
            return f"no response for {int(now - known.since)} s"
        return ", ".join(f"{number:,} {name}" for name, number in known.counts.items() if number and now - known.latest[name] < RECENT)

    def _open(self, one: Conversation) -> str:
        """How many requests are open, or how it ended."""
        if one.tcp.end is not None:
            return how(one).partition(",")[0].replace(" by ", " ")
        return "" if one.pairer is None else f"{len(one.pairer.open):,}"

    def _cells(self, one: Conversation, now: float) -> list[str]:
        index = one.index
        first, second = one.tcp.endpoints
        if one.client == 1:
            first, second = second, first
        name = "..." if one.verdict is None else one.verdict.protocol or visible(one.verdict.name or "unknown")
        messages, size = self._rates[index].per_second
        latencies, problem = self._latencies.get(index), self._problem(one, now)
        return [
            str(index),
            "!" if problem else "",
            f"{first} {'-' if one.client is None else '>'} {second}",
            name,
            f"{messages:,.1f}",
            f"{size:,.0f}",
            self._open(one),
            duration_text(latencies[-1]) if latencies else "",
            duration_text(int(median(latencies))) if latencies else "",
            f"{one.tally.gaps:,}" if one.tally.gaps else "",
            problem,
        ]


def waiting_line(inspector: Inspector, now_ns: int, columns: int, palette: Palette) -> list[str]:
    """Return a line on the conversations in which a request waits for more than `WAITING`, if there are any."""
    oldest = filter(None, map(_longest_open, inspector.table.conversations))
    late = [waited for one in oldest if (waited := now_ns - one.record.time_ns) >= WAITING * 1e9]
    if not late:
        return []
    text = f"! {count(len(late), 'conversation')} without a response, the longest for {duration_text(max(late))}"
    return [f"{palette.bad}{cut(text, columns)}{palette.reset}"]


def _longest_open(one: Conversation) -> Event | None:
    """Return the request that is open the longest; none of a conversation that has ended."""
    opened = None if one.pairer is None or one.tcp.end is not None else next(iter(one.pairer.open.values()), None)
    return None if opened is None else oldest_of(opened)


def _room(names: Sequence[str], sizes: Mapping[str, int], width: int) -> int:
    """What the columns of these names leave to the endpoints; two blanks part them."""
    return width - sum(sizes[name] for name in names if name != ENDS) - 2 * len(names)
