"""The `latency` view: groups with their quantiles, how these changed, the slowest exchanges, and how latencies are distributed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import NamedTuple

from ..latency.groups import Latencies, LatencyGroup
from ..latency.records import Bucket, IntervalRow, LatencyRow, SlowRow, Times
from ..latency.rows import interval_rows, rows
from ..latency.sketch import Sketch
from ..units import count, duration_text
from .clock import Clock
from .terminal import SPACE, Palette, cut, pad, visible, width, widths

QUANTILES = ("min", "p50", "p90", "p95", "p99", "p99.9", "max")
_BARS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
OTHERS = "(others)"

_SPARK = 18
"""Columns for the distribution of a group beside its quantiles."""

_LEAST_LABEL = 12
"""Columns that what a group is called has at least, however narrow the terminal."""


def comma_separated(found: Latencies) -> str:
    """The groups, or with a series the groups by interval, as comma-separated values; times in nanoseconds, the header first."""
    names = [f"{kind}_{name}_ns" for kind in ("latency", "handler", "network", "network_at_most") for name in ("mean", *QUANTILES)]
    series = found.interval_ns is not None
    head = [*(["time", "time_ns", "interval_ns"] if series else []), "protocol", *found.by, "count", "answered", "refused", "unanswered"]
    lines: list[list[object]] = [[*head, "reasons", *[name.replace("p99.9", "p99_9") for name in names]]]
    for row in interval_rows(found) if series else rows(found):
        first: list[object] = [row.time, row.time_ns, row.interval_ns] if isinstance(row, IntervalRow) else []
        values = [OTHERS if row.others else getattr(row, name) for name in found.by]
        reasons = "; ".join(f"{reason} {number}" for reason, number in row.reasons.items())
        counts = [row.count, row.answered, row.refused, row.unanswered, reasons]
        times: list[object] = []
        for one in (row.latency, row.handler, row.network, row.network_at_most):
            times += [""] * (1 + len(QUANTILES)) if one is None else [one.mean_ns, *quantiles_of(one)]
        lines.append([*first, row.protocol, *values, *counts, *times])
    return separated(lines)


def separated(lines: Iterable[Iterable[object]]) -> str:
    """Return comma-separated values; empty for None."""
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([["" if one is None else harmless(one) for one in line] for line in lines])
    return out.getvalue()


def harmless(value: object) -> object:
    """Return a value that no spreadsheet reads as a formula."""
    text = visible(str(value))
    return value if isinstance(value, int) else f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def text(found: Latencies, columns: int | None, palette: Palette, clock: Clock) -> str:
    """Return all tables as text for a terminal of N columns, or (None) for a pipe, where nothing is cut or drawn."""
    groups = rows(found)
    if not groups:
        return ""
    blocks = [_groups(found, groups, columns, palette)]
    if found.interval_ns is not None:
        blocks.append(_series(found, interval_rows(found), columns, palette, clock))
    slow = found.slowest()
    if slow:
        blocks.append(_slowest(slow, columns, palette))
    if columns is not None:
        blocks += _histograms(found, columns, palette)
    return "\n".join(blocks)


def _groups(found: Latencies, groups: Sequence[LatencyRow], columns: int | None, palette: Palette) -> str:
    """Return one line for each group if that fits, else two; below it the parts of its latency if the protocol states them."""
    labels = ["protocol", *found.by]
    lines = _group_lines(found, groups)
    head = _Line(labels, _COUNTS, QUANTILES, "distribution", "why" if any(line.reasons for line in lines) else "")
    sizes = widths([line.label for line in (head, *lines)])
    counted = widths([line.counts for line in (head, *lines)])
    timed = widths([line.times for line in (head, *lines)])
    once = sum(sizes) + sum(counted) + sum(timed) + len(SPACE) * (len(sizes) + len(counted) + len(timed) - 1)
    if columns is not None and once > columns:
        return _below_each_other(head, lines, sizes, counted, timed, columns, palette)
    made: list[str] = []
    for line in (head, *lines):
        cells = SPACE.join([*_left(line.label, sizes), *_right(line.counts, counted), *_right(line.times, timed)])
        if columns is None:
            made.append(f"{cells}{SPACE}{line.reasons}".rstrip())
            continue
        tail = line.spark if columns - once - len(SPACE) >= _SPARK else ""
        made.append(f"{cells}{SPACE}{tail}".rstrip())
        if line.reasons and line is not head:
            made.append(cut(f"    without a response: {line.reasons}", columns))
    return _dimmed(made, 1, palette) if columns is not None else "".join(f"{line}\n" for line in made)


def _group_lines(found: Latencies, groups: Sequence[LatencyRow]) -> list[_Line]:
    """Return the values of each group, and of the parts of its latency."""
    scale = _scale(found)
    lines: list[_Line] = []
    for row, group in zip(groups, [_group_of(found, row) for row in groups], strict=True):
        spark = _spark(group.latency, scale)
        counts = (f"{row.count:,}", f"{row.refused:,}", f"{row.unanswered:,}")
        lines.append(_Line(_label(found, row), counts, _texts(row.latency), spark, reasons_of(row)))
        for name, times, sketch in (
            ("handler", row.handler, group.handler),
            ("network", row.network, group.network),
            # What came with the responses only bounds nothing
            ("network at most", row.network_at_most if group.bound.total < group.latency.total else None, group.bound),
        ):
            if times is not None:
                lines.append(_Line(["", *[""] * (len(found.by) - 1), f"  {name}"], ("", "", ""), _texts(times), _spark(sketch, scale), ""))
    return lines


def _below_each_other(
    head: _Line, lines: Sequence[_Line], sizes: list[int], counted: list[int], timed: list[int], columns: int, palette: Palette
) -> str:
    """Return two or more lines for each group: its name and counts, and below it as many times beside each other as fit."""
    made: list[str] = []
    rest = columns - sum(counted) - len(SPACE) * (len(counted) + len(sizes) - 1)
    sizes = _narrowed(sizes, max(rest, _LEAST_LABEL * len(sizes)))
    beside = min(len(timed), max(1, (columns - 2) // (max(timed) + len(SPACE))))
    heads = 1
    for line in (head, *lines):
        if any(line.counts):
            first = SPACE.join([*_left(line.label, sizes), *_right(line.counts, counted)])
            lead = "    "
        else:
            first, lead = "", f"    {line.label[-1].strip()}"
        if first:
            made.append(cut(first, columns).rstrip())
        if lead.strip():
            made.append(lead)
        cells = _right(line.times, timed)
        for index in range(0, len(cells), beside):
            second = "    " + SPACE.join(cells[index : index + beside])
            if beside == len(cells) and len(second) + len(SPACE) + _SPARK <= columns:
                second += f"{SPACE}{line.spark}"
            made.append(cut(second.rstrip(), columns))
            heads += line is head
        if line.reasons and line is not head:
            made.append(cut(f"    without a response: {line.reasons}", columns))
    return _dimmed(made, heads, palette)


class _Line(NamedTuple):
    """The values of one group, as text."""

    label: Sequence[str]
    counts: Sequence[str]
    times: Sequence[str]
    spark: str
    reasons: str


_COUNTS = ("count", "refused", "unanswered")


ZONES = {"ud": ", UTC", "ad": ", local time", "e": ", since 1970", "r": ""}


def _series(found: Latencies, cells: Sequence[IntervalRow], columns: int | None, palette: Palette, clock: Clock) -> str:
    times = [clock.text(row.time_ns, row.time) for row in cells]
    if (found.interval_ns or 0) % 1_000_000_000 == 0:
        times = [one.partition(".")[0] for one in times]
    else:
        times = [f"{second}.{rest[:3]}" for second, _, rest in (one.partition(".") for one in times)]
    days = {day for day, _, clocked in (one.partition(" ") for one in times) if clocked}
    day = f" of {min(days)}" if len(days) == 1 else ""
    if columns is not None and day:
        times = [one.partition(" ")[2] for one in times]
    body = []
    for row, when in zip(cells, times, strict=True):
        took = row.latency
        some = ["-"] * 3 if took is None else [duration_text(one) for one in (took.p50_ns, took.p99_ns, took.max_ns)]
        name = _label(found, row)
        if columns is not None:
            # For lack of width, columns of the table above are not repeated
            name = [part.partition(SPACE)[0] for part in name[1:]]
        body.append([when, *name, f"{row.count:,}", f"{row.refused:,}", f"{row.unanswered:,}", *some])
    names = ["protocol", *found.by] if columns is None else ["#" if one == "conversation" else one for one in found.by]
    title = f"every {duration_text(found.interval_ns or 0)}{day}{ZONES[clock.form]}"
    most = max((row.latency.p99_ns for row in cells if row.latency is not None), default=0)
    bars = [_bar(max(0, row.latency.p99_ns) / most if row.latency is not None and most > 0 else 0.0, _SPARK) for row in cells]
    return table(title, ["time", *names, *_COUNTS, "p50", "p99", "max"], body, 1 + len(names), columns, palette, ("p99", bars))


def _slowest(slow: Sequence[SlowRow], columns: int | None, palette: Palette) -> str:
    head = ["latency", "messages", "packets", "name", "conversation"]
    body = [
        [
            duration_text(one.latency_ns),
            f"{one.request} > {one.response}",
            f"{one.request_packets[1]} > {one.response_packets[1]}",
            visible(SPACE.join(filter(None, (one.name, one.verb)))),
            f"{one.conversation}  {one.src} > {one.dst}",
        ]
        for one in slow
    ]
    return table("the slowest", head, body, len(head), columns, palette)


def table(
    title: str,
    head: list[str],
    body: Sequence[list[str]],
    names: int,
    columns: int | None,
    palette: Palette,
    drawn: tuple[str, Sequence[str]] | None = None,
) -> str:
    """Return columns under a title, the first `names` of them left-aligned; a chart (`drawn`) is the last one, if there is room."""
    sizes = widths([head, *body])
    if columns is not None:
        fixed = sum(sizes[names:]) + len(SPACE) * (len(sizes) - 1)
        sizes[1:names] = _narrowed(sizes[1:names], max(columns - fixed - sizes[0], 0)) if names < len(head) else sizes[1:names]
    lines = [SPACE.join([*_left(line[:names], sizes[:names]), *_right(line[names:], sizes[names:])]) for line in (head, *body)]
    if columns is None:
        return "".join(f"{line.rstrip()}\n" for line in lines)
    if drawn is not None and width(lines[0]) + len(SPACE) + _SPARK <= columns:
        lines = [f"{line}{SPACE}{bar}" for line, bar in zip(lines, (drawn[0], *drawn[1]), strict=True)]
    return _dimmed([cut(title, columns), *(cut(line.rstrip(), columns) for line in lines)], 2, palette, bold=1)


def _histograms(found: Latencies, columns: int, palette: Palette) -> list[str]:
    """How latencies are distributed, by protocol."""
    protocols: dict[str, Sketch] = {}
    for key, group in found.groups.items():
        protocols.setdefault(str(key[0]), Sketch()).merge(group.latency)
    blocks = []
    for protocol, sketch in sorted(protocols.items()):
        buckets = sketch.histogram()
        if not buckets:
            continue
        every, most = len(sketch), max(one.count for one in buckets)
        labels = [_bucket(one) for one in buckets]
        size, numbers = max(map(len, labels)), max(len(f"{one.count:,}") for one in buckets)
        room = max(8, columns - size - numbers - 3 * len(SPACE) - 6)
        lines = [f"{protocol}: {count(every, 'latency')}"]
        for index, (label, one) in enumerate(zip(labels, buckets, strict=True)):
            if not one.count and not buckets[index - 1].count:
                # Of many empty ones the first is enough
                continue
            bar = _bar(one.count / most, room)
            lines.append(
                cut(f"{label:>{size}}{SPACE}{one.count:>{numbers},}{SPACE}{one.count / every:>6.1%}{SPACE}{bar}".rstrip(), columns)
            )
        blocks.append(_dimmed(lines, 1, palette, bold=1))
    return blocks


def _bucket(one: Bucket) -> str:
    if (one.low, one.high) == (-1, 1):
        return duration_text(0)
    low = "" if one.low is None else duration_text(one.low)
    high = "" if one.high is None else duration_text(one.high)
    return f"{low} - {high}".strip()


def _label(found: Latencies, row: LatencyRow | IntervalRow) -> list[str]:
    """What a group is called, in a column for each thing that is grouped by."""
    if row.others:
        return [row.protocol, OTHERS, *[""] * (len(found.by) - 1)]
    parts = []
    for name in found.by:
        value = getattr(row, name)
        if name == "conversation" and row.client is not None and row.server is not None:
            value = f"{value}  {row.client} > {row.server}"
        parts.append("-" if value is None else visible(str(value)))
    return [row.protocol, *parts]


def _group_of(found: Latencies, row: LatencyRow) -> LatencyGroup:
    values = () if row.others else tuple(getattr(row, name) for name in found.by)
    return found.groups[(row.protocol, *values)]


def reasons_of(row: LatencyRow) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in row.reasons.items())


def quantiles_of(times: Times) -> list[int]:
    return [times.min_ns, times.p50_ns, times.p90_ns, times.p95_ns, times.p99_ns, times.p99_9_ns, times.max_ns]


def _texts(times: Times | None) -> list[str]:
    return ["-"] * len(QUANTILES) if times is None else [duration_text(one) for one in quantiles_of(times)]


def _scale(found: Latencies) -> list[int]:
    """Bounds of equal ratio from the least to the greatest latency of all groups, so that distributions can be compared."""
    some = [group.latency for group in found.groups.values() if len(group.latency)]
    low = max(1, min((one.least for one in some), default=1))
    high = max(low + 1, max((one.greatest for one in some), default=1))
    return [round(low * (high / low) ** (step / _SPARK)) for step in range(1, _SPARK)]


def _spark(sketch: Sketch, scale: Sequence[int]) -> str:
    """A sketch as a line of bars of different height."""
    counts = [0] * _SPARK
    at = 0
    for value, number in sketch.bins():
        while at < len(scale) and value >= scale[at]:
            at += 1
        counts[at] += number
    most = max(counts)
    return "".join([" " if not number else _BARS[max(1, round(number / most * 8))] for number in counts])


def _bar(share: float, cells: int) -> str:
    """Return a bar for a share of N cells, in eighths; never empty for a share above 0."""
    eighths = max(round(share * cells * 8), 1 if share > 0 else 0)
    full, part = divmod(eighths, 8)
    return "█" * full + (_PARTS[part] if part else "")


def _narrowed(sizes: Sequence[int], room: int) -> list[int]:
    """The widest columns made narrower until all fit."""
    made = list(sizes)
    while sum(made) > room and max(made, default=0) > 1:
        made[made.index(max(made))] -= 1
    return made


def _left(cells: Sequence[str], sizes: Sequence[int]) -> list[str]:
    return [pad(cut(cell, size), size) for cell, size in zip(cells, sizes, strict=True)]


def _right(cells: Sequence[str], sizes: Sequence[int]) -> list[str]:
    return [cell.rjust(size) for cell, size in zip(cells, sizes, strict=True)]


def _dimmed(lines: Sequence[str], heads: int, palette: Palette, bold: int = 0) -> str:
    """Lines, the first of which are headings."""
    made = [
        f"{palette.bold if index < bold else palette.dim}{line}{palette.reset}" if index < heads else line
        for index, line in enumerate(lines)
    ]
    return "".join(f"{line}\n" for line in made)
