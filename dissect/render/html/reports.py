"""What the pages of commands show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...diagnose.engine import Outcome
from ...latency.groups import Latencies
from ...latency.records import IntervalRow, LatencyRow
from ...latency.rows import interval_rows, rows
from ...units import count, duration_text
from ..clock import utc
from ..findings import NO_FILES, Files, FindingGroups, place_of
from ..latency import QUANTILES, quantiles_of, reasons_of
from ..stats import COMMAND_HEAD, STREAM_HEAD, Counted, commands, streams
from .charts import chart, distribution, series
from .page import ROWS, render
from .sequence_diagrams import SequenceDiagram, SequenceDiagrams

DIAGRAMS = 20
PICTURES = 24
"""So many conversations that failed are drawn, and so many groups of exchanges."""

STEP = 34
"""Units from one message of a diagram to the next."""

COURSES = ("messages", "published", "delivered")
LACKS = ("refused", "faults", "gaps", "gap_bytes")


def diagnosis(
    title: str,
    about: Sequence[str],
    findings: FindingGroups,
    summaries: Sequence[Outcome],
    diagrams: SequenceDiagrams,
    files: Files = NO_FILES,
    begin_ns: int | None = None,
) -> str:
    """The page of `diagnose`; `about`: lines on what was read; `begin_ns`: the first packet, from which times count."""
    ordered = findings.ordered()
    failed = [one for one in summaries if one.worst == "error" and one.conversation in diagrams.kept]
    drawn = [_drawn(one, diagrams.kept[one.conversation], begin_ns) for one in failed[:DIAGRAMS]]
    return render(
        "diagnose.html",
        {
            "title": title,
            "about": about,
            "findings": [{"finding": same.finding, "where": place_of(same.finding, same.conversations, files)} for same in ordered[:ROWS]],
            "left_out": findings.passed + max(0, len(ordered) - ROWS),
            "diagrams": drawn,
            "diagrams_left_out": len(failed) - len(drawn),
            "summaries": summaries,
        },
    )


def _drawn(summary: Outcome, diagram: SequenceDiagram, begin_ns: int | None) -> dict[str, Any]:
    """A diagram with the places of its messages."""
    steps: list[dict[str, Any]] = []
    begin = diagram.first[0].time_ns if begin_ns is None else begin_ns
    y = 34
    for step in [*diagram.first, None, *diagram.last]:
        if step is None:
            if diagram.passed:
                y += STEP
                steps.append({"y": y, "left_out": diagram.passed})
            continue
        y += STEP
        steps.append(
            {
                "y": y,
                "left_out": 0,
                "time": f"{max(0, step.time_ns - begin) / 1e9:.6f}",
                "forth": step.forth,
                "look": "bad" if step.bad else "ask" if step.forth else "answer",
                "name": step.name,
                "says": step.info,
            }
        )
    return {"summary": summary, "steps": steps, "height": y + STEP // 2}


def latencies(title: str, about: Sequence[str], found: Latencies) -> str:
    """The page of `latency`."""
    groups = rows(found)
    cells: dict[tuple[Any, ...], list[IntervalRow]] = {}
    for cell in interval_rows(found):
        cells.setdefault(_key(found, cell), []).append(cell)
    begin = min((one[0].time_ns for one in cells.values()), default=0)
    end = max((one[-1].time_ns for one in cells.values()), default=0)
    drawn = [one for one in sorted(groups, key=lambda one: -one.count) if one.latency is not None][:PICTURES]
    return render(
        "latency.html",
        {
            "title": title,
            "about": about,
            "by": found.by,
            "quantiles": QUANTILES,
            "rows": [_row(found, one) for one in groups],
            "begin": utc(begin),
            "reasons": any(one.reasons for one in groups),
            "slow": found.slowest(),
            "duration": duration_text,
            "interval": "" if found.interval_ns is None else duration_text(found.interval_ns),
            "pictures": [
                {
                    "title": "  ".join(str(part) for part in _key(found, one) if part is not None),
                    "count": one.count,
                    "distribution": distribution(one.histogram),
                    "series": series(cells.get(_key(found, one), []), begin, end),
                }
                for one in drawn
            ],
            "pictures_left_out": sum(one.latency is not None for one in groups) - len(drawn),
        },
    )


def listing(title: str, about: Sequence[str], heading: str, head: Sequence[str], names: int, lines: Sequence[Sequence[Any]]) -> str:
    """A page of one table: `names` columns of text, then numbers."""
    return render("listing.html", {"title": title, "about": about, "tables": [(heading, head, names, lines)]})


def statistics(title: str, about: Sequence[str], counted: Counted) -> str:
    """The page of `stats`."""
    cells = counted.series
    interval_ns = cells[0].interval_ns if cells else 0
    width = interval_ns / 1e9
    names = dict.fromkeys(name for cell in cells for name in cell.commands)
    whole_ns = interval_ns * max(0, len(cells) - 1)
    charts = [
        chart("messages per second", [(name, [getattr(one, name) / width for one in cells]) for name in COURSES], whole_ns),
        chart("commands per second", [(name, [one.commands.get(name, 0) / width for one in cells]) for name in names], whole_ns),
        chart("outstanding credit, in chunks", [("credit", [one.credit for one in cells])], whole_ns),
        chart("outstanding credit, in bytes", [("credit", [one.credit_bytes for one in cells])], whole_ns),
    ]
    tables = [
        ("Commands", COMMAND_HEAD, 4, commands(counted)),
        ("Streams", STREAM_HEAD, 3, streams(counted)),
    ]
    begin = utc(cells[0].time_ns) if cells else ""
    lacks = [f"{value:,} {name.replace('_', ' ')}" for name in LACKS if (value := getattr(counted.total, name))]
    lacks += [f"{count(size, 'byte')} not decoded ({name})" for name, size in counted.total.unread.items()]
    values = {"files": counted.files, "tables": tables, "charts": [one for one in charts if one], "begin": begin, "lacks": lacks}
    return render("stats.html", {"title": title, "about": about, "interval": duration_text(interval_ns), **values})


def _key(found: Latencies, row: LatencyRow | IntervalRow) -> tuple[Any, ...]:
    return (row.protocol, "(others)") if row.others else (row.protocol, *[getattr(row, name) for name in found.by])


def _row(found: Latencies, row: LatencyRow) -> dict[str, Any]:
    values = [None if row.others else getattr(row, name) for name in found.by]
    labels = ["" if value is None else str(value) for value in values]
    if row.others:
        labels[0] = "(others)"
    return {
        "protocol": row.protocol,
        "labels": labels,
        "counts": (row.count, row.refused, row.unanswered),
        "times": [None] * len(QUANTILES) if row.latency is None else quantiles_of(row.latency),
        "reasons": reasons_of(row),
    }
