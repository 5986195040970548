"""Charts of durations: positions in units of a picture, which a template draws."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple

from ...credit import Course
from ...latency.records import Bucket, IntervalRow, Times
from ...units import count, duration_text

WIDTH, HEIGHT = 720, 160
"""Units of a picture within its axes."""

FEWEST = 20
"""Requests from which on bars show how durations are distributed; fewer are seen better in the quantiles of the table."""

JOINED = 2
"""Intervals from one place of a line to the next."""


class Tick(NamedTuple):
    """A place on an axis with its label."""

    at: float
    text: str


class HistogramBar(NamedTuple):
    """How many durations there were of about one size."""

    x: float
    width: float
    y: float
    height: float
    title: str


class Distribution(NamedTuple):
    """Bars over a logarithmic axis of time."""

    bars: list[HistogramBar]
    ticks: list[Tick]
    most: int
    """Of the highest bar."""


class Series(NamedTuple):
    """Median and 99th percentile over time, on a logarithmic axis."""

    p50: list[str]
    p99: list[str]
    """Lines, which end where nothing was asked for a while."""
    dots: list[tuple[float, float, str]]
    ticks: list[Tick]
    times: list[Tick]


def distribution(buckets: Sequence[Bucket]) -> Distribution | None:
    """A picture of these; None where there are fewer than `FEWEST` durations."""
    shown = [one for one in buckets if one.count and one.high is not None and one.high > 0]
    if sum(one.count for one in shown) < FEWEST:
        return None
    places = [(log10(max(one.low or 1, 1)), log10(max(one.high or 1, 2)), one) for one in shown]
    low, high = floor(min(place[0] for place in places)), max(place[1] for place in places)
    scale = WIDTH / max(high - low, 1)
    most = max(one.count for one in shown)
    bars = []
    for left, right, one in places:
        tall = max(2.0, HEIGHT * one.count / most)
        title = f"{duration_text(one.low or 0)} to {duration_text(one.high or 0)}: {one.count:,}"
        bars.append(HistogramBar((left - low) * scale, max(1.5, (right - left) * scale - 1), HEIGHT - tall, tall, title))
    return Distribution(bars, _powers(low, max(high, low + 1), scale), most)


def series(rows: Sequence[IntervalRow], begin_ns: int, end_ns: int) -> Series | None:
    """A picture of one group by interval; None with fewer than two intervals that have a duration."""
    measured = [(row.time_ns, row.latency) for row in rows if row.latency is not None]
    if len(measured) < 2 or end_ns <= begin_ns:
        return None
    least = min(max(one.p50_ns, 1) for _, one in measured)
    most = max(max(one.p99_ns, 2) for _, one in measured)
    low = floor(log10(least))
    high = max(log10(most), low + 1)
    scale = HEIGHT / (high - low)

    def x(time_ns: int) -> float:
        return round((time_ns - begin_ns) / (end_ns - begin_ns) * WIDTH, 1)

    def y(duration_ns: int) -> float:
        return round(HEIGHT - (log10(max(duration_ns, 1)) - low) * scale, 1)

    dots = []
    for at, one in measured:
        title = f"{duration_text(at - begin_ns)}: {one.count:,}, p50 {duration_text(one.p50_ns)}, p99 {duration_text(one.p99_ns)}"
        dots.append((x(at), y(one.p99_ns), title))
    ticks = [Tick(HEIGHT - one.at, one.text) for one in _powers(low, high, scale)]
    pieces: list[list[tuple[int, Times]]] = []
    for place in measured:
        if pieces and place[0] - pieces[-1][-1][0] <= JOINED * rows[0].interval_ns:
            pieces[-1].append(place)
        else:
            pieces.append([place])
    # One place alone is a point
    drawn = [piece * (2 if len(piece) == 1 else 1) for piece in pieces]
    median = [" ".join(f"{x(at)},{y(one.p50_ns)}" for at, one in piece) for piece in drawn]
    highest = [" ".join(f"{x(at)},{y(one.p99_ns)}" for at, one in piece) for piece in drawn]
    return Series(median, highest, dots, ticks, _times(end_ns - begin_ns))


class Chart(NamedTuple):
    """Several courses over time, on an axis from nothing on."""

    title: str
    lines: list[tuple[str, str]]
    """What each is called, and its places."""
    ticks: list[Tick]
    times: list[Tick]


LINES = 6
"""Courses that can be distinguished."""


def short(value: float) -> str:
    """A number in the room that an axis has for it: `9,999`, `12.35 k`, `66.57 G`."""
    power = len(f"{value:.0f}") - 1
    if power < 4:
        return f"{value:,.4g}"
    return f"{value / 1000 ** (power // 3):,.4g} {' kMGTPEZY'[power // 3]}"


def chart(title: str, courses: Sequence[tuple[str, Sequence[float]]], duration_ns: int) -> Chart | None:
    """A picture of values at equal distances; None where there are too few, or none above 0."""
    shown = sorted((one for one in courses if any(one[1])), key=lambda one: -sum(one[1]))[:LINES]
    if not shown or len(shown[0][1]) < 2:
        return None
    most = max(max(values) for _, values in shown)
    if most <= 0:
        return None
    step = WIDTH / (len(shown[0][1]) - 1)
    lines = []
    for name, values in shown:
        places = [f"{at * step:.1f},{HEIGHT - HEIGHT * max(0, value) / most:.1f}" for at, value in enumerate(values)]
        lines.append((name, " ".join(places)))
    return Chart(title, lines, _values(most), _times(duration_ns))


class Timeline(NamedTuple):
    """The credit of a subscription over time."""

    title: str
    about: list[str]
    steps: str
    delivered: list[float]
    stalls: list[tuple[float, float, str]]
    """Position, width and text."""
    ticks: list[Tick]
    times: list[Tick]


def timeline(course: Course, begin_ns: int, duration_ns: int) -> Timeline | None:
    """A picture over all captured time; None where that is none, or there was no credit."""
    row, most = course.row, max((left for _, left, _ in course.places), default=0)
    if duration_ns <= 0 or most <= 0:
        return None

    def x(time_ns: int) -> float:
        return round(min(max(0, time_ns - begin_ns), duration_ns) / duration_ns * WIDTH, 1)

    steps, before = [], HEIGHT * 1.0
    for time_ns, left, _ in course.places:
        at = round(HEIGHT - HEIGHT * max(0, left) / most, 1)
        steps += [f"{x(time_ns)},{before}", f"{x(time_ns)},{at}"]
        before = at
    stalls = []
    for one in row.listed:
        place, end = x(one.time_ns), x(one.time_ns + one.duration_ns)
        title = f"{one.time}: {duration_text(one.duration_ns)} without credit; the client granted none"
        stalls.append((place, max(1.0, round(end - place, 1)), title))
    about = [f"{row.granted:,} granted", f"{row.used:,} used", count(row.chunks, "chunk") + " delivered"]
    if row.stalls:
        about.append(
            f"{count(row.stalls, 'stall')} of {duration_text(row.stalled_ns)} in total, the longest {duration_text(row.longest_ns)}"
        )
    if row.stalls > len(row.listed):
        about.append(f"the first {len(row.listed)} are marked")
    if course.every > 1:
        about.append(f"one in {course.every:,} changes is drawn")
    if not row.complete:
        about.append("bytes are missing: what follows is unknown")
    title = f"conversation {row.conversation}, subscription {row.subscription} ({row.stream}): outstanding credit in {row.unit}"
    delivered = [x(at) for at, _, chunk in course.places if chunk]
    return Timeline(title, about, " ".join(steps), delivered, stalls, _values(most), _times(duration_ns))


def _values(most: float) -> list[Tick]:
    """The axis of values from 0 to `most`."""
    return [Tick(HEIGHT - HEIGHT * part / 2, short(most * part / 2)) for part in range(3)]


def _times(duration_ns: int) -> list[Tick]:
    """The axis of time."""
    return [Tick(WIDTH * part / 4, duration_text(duration_ns * part // 4)) for part in range(5)]


def _powers(low: int, high: float, scale: float) -> list[Tick]:
    """The powers of ten of an axis that begins with that of `low`."""
    return [Tick((power - low) * scale, duration_text(10**power)) for power in range(low, floor(high) + 1)]
