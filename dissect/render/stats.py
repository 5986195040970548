"""The `stats` view: tables of what was counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ..credit import SubscriptionRow
from ..model import PROCESS_KEYS
from ..stats import CommandRow, ConsumerRow, CountRow, FileRow, StreamRow, TotalRow
from .clock import utc
from .latency import separated, table
from .terminal import SPACE, Palette, cut, visible, widths


class Counted(NamedTuple):
    """What there is to show."""

    files: list[FileRow]
    total: TotalRow
    commands: list[CommandRow]
    streams: list[StreamRow]
    subscriptions: list[SubscriptionRow]
    consumers: list[ConsumerRow]
    series: list[CountRow]

    def in_order(self) -> tuple[Sequence[Any], ...]:
        """All records."""
        return self.files, [self.total], self.commands, self.streams, self.subscriptions, self.consumers, self.series


def comma_separated(counted: Counted) -> str:
    """The commands, or the series where there is one, the header first."""
    rows: Sequence[Any] = counted.series or counted.commands
    kind = CountRow if counted.series else CommandRow
    absent = ("v", "commands", *(name for name in PROCESS_KEYS if name != by_of(counted)))
    names = [one.name for one in msgspec.structs.fields(kind) if one.name not in absent]
    return separated([names, *[[getattr(row, name) for name in names] for row in rows]])


def text(counted: Counted, columns: int | None, palette: Palette) -> str:
    """Return all tables as text for a terminal of N columns, or (None) for a pipe, where nothing is cut."""
    total = counted.total
    blocks = [
        _rows("files", ("file", "packets", "bytes", "seconds", "begin"), _files(counted), 1, columns, palette),
        _rows("all", ("what", "number"), [[name, _cell(value)] for name, value in _totals(total)], 1, columns, palette),
        _rows("commands", command_head(counted), commands(counted), len(command_head(counted)) - 3, columns, palette),
        _rows("streams", STREAM_HEAD, streams(counted), 3, columns, palette),
        _rows("subscriptions", SUBSCRIPTION_HEAD, subscriptions(counted), 4, columns, palette),
        _rows("consumers", CONSUMER_HEAD, consumers(counted), 4, columns, palette),
        _rows("course", series_head(counted), series(counted), 1, columns, palette),
    ]
    return "\n".join(one for one in blocks if one)


COMMAND_HEAD = ("protocol", "command", "kind", "sender", "count", "bytes", "per second")
STREAM_HEAD = ("protocol", "stream", "partition", "published", "bytes in", "delivered", "bytes out", "offset", "committed", "behind")

SUBSCRIPTION_HEAD = ("conversation", "id", "stream", "credit", "granted", "left", "delivered", "stalls", "seconds", "longest")
CONSUMER_HEAD = ("conversation", "consumer", "stream", "partition", "offset", "committed", "behind", "most")


def series_head(counted: Counted) -> tuple[str, ...]:
    """The columns of the series: credit in bytes is rare, and has one only where there is any."""
    head = ("time", "messages", "bytes", "published", "delivered", "credit")
    return (*head, "credit in bytes") if any(one.credit_bytes for one in counted.series) else head


def by_of(counted: Counted) -> str | None:
    """Return by what of processes messages are counted."""
    first = counted.commands[:1]
    return next((name for name in PROCESS_KEYS for row in first if getattr(row, name) is not msgspec.UNSET), None)


def command_head(counted: Counted) -> tuple[str, ...]:
    """The columns of commands, the last three of which are numbers."""
    by = by_of(counted)
    return COMMAND_HEAD if by is None else (*COMMAND_HEAD[:-3], by, *COMMAND_HEAD[-3:])


def commands(counted: Counted) -> list[list[Any]]:
    """Values below `command_head`."""
    by = by_of(counted)
    return [
        [
            *(one.protocol, one.name, one.kind, one.sender),
            *(() if by is None else (getattr(one, by),)),
            *(one.count, one.bytes, one.per_second),
        ]
        for one in counted.commands
    ]


def streams(counted: Counted) -> list[list[Any]]:
    """Values below `STREAM_HEAD`."""
    return [list(msgspec.structs.astuple(one))[1:] for one in counted.streams]


def subscriptions(counted: Counted) -> list[list[Any]]:
    """Values below `SUBSCRIPTION_HEAD`. If bytes are missing, the credit left and the absence of stalls are unknown."""
    rows: list[list[Any]] = []
    for one in counted.subscriptions:
        known = one.complete or one.stalls
        stalls = [one.stalls, round(one.stalled_ns / 1e9, 3), round(one.longest_ns / 1e9, 3)] if known else [None] * 3
        rows.append([one.conversation, one.subscription, one.stream, one.unit, one.granted, one.outstanding, one.chunks, *stalls])
    return rows


def consumers(counted: Counted) -> list[list[Any]]:
    """Values below `CONSUMER_HEAD`."""
    return [
        [one.conversation, one.consumer, one.stream, one.partition, one.offset, one.current_offset, one.lag, one.largest_lag]
        for one in counted.consumers
    ]


def series(counted: Counted) -> list[list[Any]]:
    """Values below `series_head`."""
    shown, width = counted.series, len(series_head(counted))
    rows = [[utc(one.time_ns), one.messages, one.bytes, one.published, one.delivered, one.credit, one.credit_bytes] for one in shown]
    return [row[:width] for row in rows]


def _files(counted: Counted) -> list[list[Any]]:
    return [[one.name, one.packets, one.bytes, f"{one.duration_ns / 1e9:.3f}", utc(one.time_ns)] for one in counted.files]


def _totals(total: TotalRow) -> list[tuple[str, Any]]:
    """What was counted, without what there was none of."""
    names: tuple[str, ...] = ("packets", "bytes", "conversations", "messages", "message_bytes", "refused", "faults", "gaps", "gap_bytes")
    names += ("subscriptions_left_out", "polls_left_out")
    counts = [(name.replace("_", " "), getattr(total, name)) for name in names]
    unread = [(f"bytes not decoded: {name}", size) for name, size in total.unread.items()]
    return [("seconds", f"{total.duration_ns / 1e9:.3f}"), *[one for one in counts if one[1]], *unread]


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int | float) else visible(str(value))


def _rows(title: str, head: Sequence[str], body: Sequence[Sequence[Any]], names: int, columns: int | None, palette: Palette) -> str:
    """A table with `names` columns of names. One too wide for the terminal continues below, with these columns again."""
    if not body:
        return ""
    lines = [[_cell(value) for value in row] for row in body]
    if columns is None:
        return table(title, list(head), lines, names, columns, palette)
    sizes = [len(SPACE) + size for size in widths([head, *lines])]
    if names == 1:
        # The end of a path says more than its beginning
        sizes[0] = min(sizes[0], max(columns - sum(sizes[1:]), columns // 3) + len(SPACE))
        lines = [[cut(line[0][::-1], sizes[0] - len(SPACE))[::-1], *line[1:]] for line in lines]
    parts: list[str] = []
    for numbers in _parts(sizes, names, columns):
        kept = [*range(names), *numbers]
        rows = [[line[index] for index in kept] for line in lines]
        parts.append(table("" if parts else title, [head[index] for index in kept], rows, names, columns, palette))
    return "".join(parts)


def _parts(sizes: Sequence[int], names: int, columns: int) -> list[list[int]]:
    """The columns of numbers, in groups that fit the terminal beside those of names, which may be narrowed to half of it."""
    if sum(sizes) - len(SPACE) <= columns:
        return [[*range(names, len(sizes))]]
    room = columns - min(sum(sizes[:names]) - len(SPACE), columns // 2)
    parts: list[list[int]] = [[]]
    for index in range(names, len(sizes)):
        if parts[-1] and sum(sizes[other] for other in parts[-1]) + sizes[index] > room:
            parts.append([])
        parts[-1].append(index)
    return parts
