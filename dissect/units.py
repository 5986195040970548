"""Numbers, durations, lists and bytes as text; the names of units of time in options and filters."""

from __future__ import annotations

from collections.abc import Iterable

TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
"""Nanoseconds by unit."""


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 packet`, `1,448 packets`, `2 entries`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what[:-1] + 'ie' if what.endswith('y') else what}s"


def some(names: Iterable[object], most: int = 5) -> str:
    """Return the first of a list: `a, b and 3 more`."""
    every = [*map(str, names)]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def not_finite(value: float) -> str:
    """Return the text of a number that is not finite."""
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def lossy(data: bytes) -> str:
    """Return the valid UTF-8, with `\\xNN` for other bytes and doubled backslashes."""
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def duration_text(time_ns: int) -> str:
    """Return a duration for people: `412 ns`, `1.006 ms`, `2 min 5 s`; four digits at most below a minute."""
    size = abs(time_ns)
    if 0 < size < 1_000:
        return f"{time_ns} ns"
    if 0 < size < 999_950:
        return f"{time_ns / 1e3:.4g} µs"
    if 0 < size < 999_950_000:
        return f"{time_ns / 1e6:.4g} ms"
    if size < 59_995_000_000:
        return f"{time_ns / 1e9:.4g} s"
    minutes, seconds = divmod(round(size / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{number:,} {unit}" for number, unit in ((hours, "h"), (minutes, "min"), (seconds, "s")) if number]
    return ("-" if time_ns < 0 else "") + " ".join(parts[:2])
