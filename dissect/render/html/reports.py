"""What the pages of commands show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...credit import Course, CreditAccounts
from ...diagnose.engine import Outcome
from ...latency.groups import Latencies
from ...latency.records import IntervalRow, LatencyRow
from ...latency.rows import interval_rows, rows
from ...units import count, duration_text
from ..clock import Clock, utc
from ..findings import NO_FILES, SHOWN, Files, FindingGroups, NamedNumbers, RepeatedFinding, places_of
from ..latency import QUANTILES, quantiles_of, reasons_of
from ..stats import CONSUMER_HEAD, STREAM_HEAD, SUBSCRIPTION_HEAD, Counted, command_head, commands, consumers, streams, subscriptions
from ..terminal import visible
from .charts import FEWEST, chart, distribution, series, timeline
from .page import ROWS, render
from .sequence_diagrams import SequenceDiagram, SequenceDiagrams

DIAGRAMS = 20
PICTURES = 24
"""The most failed conversations, and groups of exchanges, that are drawn."""

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
            "findings": [_found(same, files, begin_ns) for same in ordered[:ROWS]],
            "held": {step["number"] for one in drawn for step in one["steps"] if not step["left_out"]},
            "left_out": findings.passed + max(0, len(ordered) - ROWS),
            "diagrams": drawn,
            "diagrams_left_out": len(failed) - len(drawn),
            "summaries": summaries,
        },
    )


def _found(same: RepeatedFinding, files: Files, begin_ns: int | None) -> dict[str, Any]:
    """A finding with its places and, of one conversation, its time: since the first packet as in the diagrams, and UTC as in logs."""
    one, time = same.finding, ""
    if one.time_ns and one.conversation is not None:
        since = "" if begin_ns is None else f"{max(0, one.time_ns - begin_ns) / 1e9:.6f} s, "
        time = f"{since}{Clock('ud').text(one.time_ns, one.time)} UTC"
    behind = visible("; ".join([*same.processes][:SHOWN]))
    return {"finding": one, "places": places_of(one, same.conversations, files), "time": time, "processes": behind}


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
                "number": step.number,
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
    measured = sorted([one for one in groups if one.latency is not None], key=lambda one: -one.count)
    drawn = [picture for one in measured if (picture := _pictured(found, one, cells, begin, end)) is not None][:PICTURES]
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
            "fewest": FEWEST,
            "pictures": drawn,
            "pictures_left_out": len(measured) - len(drawn),
        },
    )


def _pictured(
    found: Latencies, one: LatencyRow, cells: dict[tuple[Any, ...], list[IntervalRow]], begin_ns: int, end_ns: int
) -> dict[str, Any] | None:
    """The drawings of a group; None where there are too few requests for any."""
    key = _key(found, one)
    bars, lines = distribution(one.histogram), series(cells.get(key, []), begin_ns, end_ns)
    if bars is None and lines is None:
        return None
    return {"title": "  ".join(str(part) for part in key if part is not None), "count": one.count, "distribution": bars, "series": lines}


def listing(title: str, about: Sequence[str], heading: str, head: Sequence[str], names: int, lines: Sequence[Sequence[Any]]) -> str:
    """A page of one table: `names` columns of text, then numbers."""
    return render("listing.html", {"title": title, "about": about, "tables": [(heading, head, names, lines)]})


class FollowRow(NamedTuple):
    """A record of one conversation, as a page shows it; `place`: the messages that a finding names."""

    number: int | None
    since_ns: int
    way: str
    name: str
    mark: str
    text: str
    latency_ns: int | None
    place: NamedNumbers | None


def following(title: str, about: Sequence[str], heading: str, lines: Sequence[FollowRow], credit: CreditAccounts, begin_ns: int) -> str:
    """The page of `follow`, without what did not change after the last record. `begin_ns`: from where the records count."""
    held = {row.number for row in lines[:ROWS]}
    first, last = (lines[0].since_ns, lines[-1].since_ns) if lines else (0, 0)
    drawn = [one for course in credit.courses() if (one := timeline(course, begin_ns + first, last - first)) is not None]
    values = {"heading": heading, "rows": lines, "held": held, "duration": duration_text, "timelines": drawn, "since": "record"}
    values["timelines_left_out"] = len(credit.rows()) - len(drawn) + credit.left_out
    return render("follow.html", {"title": title, "about": about, **values})


def statistics(title: str, about: Sequence[str], counted: Counted, courses: Sequence[Course]) -> str:
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
        ("Commands", command_head(counted), len(command_head(counted)) - 3, commands(counted)),
        ("Streams", STREAM_HEAD, 3, streams(counted)),
        ("Subscriptions", SUBSCRIPTION_HEAD, 4, subscriptions(counted)),
        ("Consumers", CONSUMER_HEAD, 4, consumers(counted)),
    ]
    begin = utc(cells[0].time_ns) if cells else ""
    first_ns, all_ns = counted.total.time_ns, counted.total.duration_ns
    timelines = [drawn for one in courses if (drawn := timeline(one, first_ns, all_ns)) is not None]
    lacks = [f"{value:,} {name.replace('_', ' ')}" for name in LACKS if (value := getattr(counted.total, name))]
    lacks += [f"{count(size, 'byte')} not decoded ({name})" for name, size in counted.total.unread.items()]
    values = {"files": counted.files, "tables": tables, "charts": [one for one in charts if one], "begin": begin, "lacks": lacks}
    values |= {
        "timelines": timelines,
        "since": "packet",
        "timelines_left_out": len(counted.subscriptions) - len(timelines) + counted.total.subscriptions_left_out,
    }
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
