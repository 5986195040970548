"""`streamdump latency FILE...`: how long requests took, by what they are."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdump.errors import Report, describe_exception, refuse
from streamdump.options import Options
from streamdump.units import count

from ..live import LiveOptions, LiveRun, LiveTable, run_of
from ..options import LIMITS as LIMITS_PANEL
from ..options import (
    PAGE_INTERVAL_NS,
    PROCESS,
    SHOWN,
    Colour,
    Enough,
    Files,
    Html,
    Interval,
    Json,
    ReadFiles,
    TimeForm,
    Where,
    check_clock,
    completion,
    enough_of,
    inputs,
    interval_of,
    several_of,
    whole_number,
)
from ..output import columns, palette, say, write_json, write_text
from ..parameters import FILES, LIMITS, READING, TIMES, Members, gathers
from ..run import FileRun, FilterCount, asking, report_interval

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions

    from streamdump.latency.groups import Latencies
    from streamdump.model import Pair, Record
    from streamdump.render.clock import Clock

GROUPED = ("command", "conversation", "server", "client", "stream", "verb", *PROCESS)
INTERVALS = 120
"""The most intervals of a page for which none was asked; they grow with the time that was captured."""

MATCHED = 65_536
"""Matching responses that are remembered: the last of several that answer one request is known to be the last only later."""


@gathers
def latency(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help=f"group by command (default), {', '.join(GROUPED[1:-1])} or {GROUPED[-1]}; may be repeated, or separated by commas",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=completion(GROUPED),
        ),
    ] = None,
    slowest: Annotated[str, typer.Option("--slowest", metavar="N", help="number of slowest requests to show", rich_help_panel=SHOWN)] = "5",
    interval: Interval = None,
    where: Where = None,
    clock: TimeForm = "ud",
    enough: Enough = None,
    json: Json = False,
    csv: Annotated[
        bool,
        typer.Option("--csv", help="comma-separated values: the groups, or with --interval the groups by interval", rich_help_panel=SHOWN),
    ] = False,
    html: Html = None,
    live: LiveOptions,
    group_limit: Annotated[
        str,
        typer.Option(
            "--group-limit", metavar="N", help="number of groups; further ones are counted together", rich_help_panel=LIMITS_PANEL
        ),
    ] = "1000",
    options: Annotated[Options, Members(*READING, *FILES, *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Count requests and measure how long they took, by command, server, stream and more."""
    refuse((json and csv, "--json and --csv cannot be combined; choose one"))
    names = inputs(read_files, files)
    grouped = several_of("--by", by or ("command",), GROUPED)
    width_ns = interval_of(interval)
    number = whole_number("--slowest", slowest, 0)
    limit = whole_number("--group-limit", group_limit)
    check_clock(clock)
    left = enough_of(enough)
    asked, options = asking(where, replace(options, bodies=False, pairs=True))
    from streamdump.latency.groups import Latencies

    found = Latencies(grouped, interval_ns=width_ns or (None if html is None else PAGE_INTERVAL_NS), slowest=number, groups=limit)
    with run_of(live, names, options, colour, asked, left, prints=False, page=html, keeps_rows=html is not None) as run:
        counter = LatencyCounter(run, found, clock)
        with LiveTable(run, partial(_table, counter)) if isinstance(run, LiveRun) else nullcontext():
            run.each(counter.feed)
        if html is not None:
            _write(html, found, run, width_ns is None)
        _show(found, json, csv, colour, counter.clock)
        code = int(run.end())
        if found.beyond:
            say(f"{count(found.beyond, 'exchange')} beyond --group-limit {found.limit:,} counted together")
        report_interval(width_ns, found.interval_ns)
        if counter.matched and not found.groups:
            say("-Y: no match is a response; -Y selects latencies by their responses, such as `name == PublishConfirm`")
        return code


class LatencyCounter:
    """Counts the exchanges of a run, or with -Y those whose response is asked for, or whose record where there is no response."""

    def __init__(self, run: FileRun | LiveRun, found: Latencies, clock: Any) -> None:
        from streamdump.render.clock import Clock

        self.clock = Clock(clock)
        run.inspector.begins.append(self.clock.begin)
        self.run, self.found = run, found
        self.matched = 0
        """Records that are asked for."""
        self._matched: dict[int, None] = {}

    def feed(self, records: list[Record]) -> bool:
        """Count what ended with these records; whether that is enough."""
        pairs = self.run.inspector.run.released_pairs()
        if self.run.asked is not None:
            records, pairs = self._select(records, pairs, self.run.asked)
        records = self.run.first(records)
        if self.run.left == 0:
            pairs = [one for one in pairs if (_number(one) or records[-1].number) <= records[-1].number]
        try:
            self.found.add(pairs)
        except Exception as error:
            self.run.report(Report(describe_exception(error), "some exchanges are not counted"))
        return self.run.left == 0

    def _select(self, records: list[Record], pairs: list[Pair], asked: FilterCount) -> tuple[list[Record], list[Pair]]:
        matched = self._matched
        chosen = asked.select(records, self.run.failed)
        self.matched += len(chosen)
        matched.update(dict.fromkeys([one.number for one in chosen]))
        kept = [one for one in pairs if _number(one) in matched]
        self._matched = dict.fromkeys([*matched][-MATCHED:])
        return chosen, kept


def _number(pair: Pair) -> int | None:
    """The number of the record by which -Y finds an exchange."""
    record = pair.exchange if pair.response is None else pair.response
    return None if record is None else record.number


def _show(found: Latencies, json: bool, csv: bool, colour: str, clock: Clock) -> None:
    """Print what was found."""
    if json:
        from streamdump.latency.rows import interval_rows, rows
        from streamdump.render.jsonl import encode

        for some in (rows(found), interval_rows(found), found.slowest()):
            write_json(encode(some), colour)
        return
    from streamdump.render.latency import comma_separated, text

    write_text(comma_separated(found) if csv else text(found, columns(colour), palette(colour), clock))


def _write(path: str, found: Latencies, run: FileRun | LiveRun, alone: bool) -> None:
    """Write the page, too; `alone`: only the page needs the time series."""
    from streamdump.render.html.reports import latencies

    if alone:
        found.widen_to(INTERVALS)
    run.write_html(path, "latency", latencies, found)
    if alone:
        found.forget_series()


def _table(counter: LatencyCounter, size: ConsoleDimensions) -> Any:
    """The table on a terminal of this size."""
    from rich.text import Text

    from streamdump.render.latency import text
    from streamdump.render.live import waiting_line

    run, colours = counter.run, palette(counter.run.colour)
    waiting = waiting_line(run.inspector, run.live.now_ns, size.width, colours) if isinstance(run, LiveRun) else []
    lines = [*waiting, *text(counter.found, size.width, colours, counter.clock).splitlines()]
    return Text.from_ansi("\n".join(lines[: max(1, size.height - 1)]))
