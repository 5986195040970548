"""`streamdump latency FILE...`: how long requests took, by what they are."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdump.cli.dividing import Asking, add_up, division_of, shows_nothing
from streamdump.cli.live import REFRESH, LiveOptions, LiveRun, run_of
from streamdump.cli.options import LIMITS as LIMITS_PANEL
from streamdump.cli.options import (
    SHOWN,
    Colour,
    Enough,
    Files,
    Html,
    Jobs,
    Json,
    ReadFiles,
    TimeForm,
    Where,
    check_clock,
    enough_of,
    inputs,
    nanoseconds,
    one_of,
    whole,
)
from streamdump.cli.output import coloured, columns, palette, say, write, write_text
from streamdump.cli.parameters import FILES, LIMITS, READING, TIMES, Members, gathers
from streamdump.cli.run import FileRun, FilterCount, RunReport, asking, write_html
from streamdump.cli.showing import first
from streamdump.errors import Report, UsageError, describe_exception
from streamdump.options import Options

if TYPE_CHECKING:
    from streamdump.inspector import Inspector
    from streamdump.latency.groups import Latencies
    from streamdump.model import Pair, Record
    from streamdump.parallel import Divided
    from streamdump.render.clock import Clock

GROUPED = ("command", "conversation", "server", "client", "stream", "verb")
SHORTEST_NS, INTERVALS = 1_000_000, 120
"""The shortest interval of a page for which no other was asked, and so many at most: it grows with the time that was captured."""

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
            help="group by command (default), conversation, server, client, stream, verb; again or with commas for several",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=lambda: list(GROUPED),
        ),
    ] = None,
    slowest: Annotated[str, typer.Option("--slowest", metavar="N", help="show so many of the slowest", rich_help_panel=SHOWN)] = "5",
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval", metavar="SECONDS", help="and how it changed, by such intervals", rich_help_panel=SHOWN, show_default=False
        ),
    ] = None,
    where: Where = None,
    clock: TimeForm = "ud",
    enough: Enough = None,
    json: Json = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="comma-separated: the groups, with --interval the groups by interval", rich_help_panel=SHOWN)
    ] = False,
    html: Html = None,
    live: LiveOptions,
    group_limit: Annotated[
        str, typer.Option("--group-limit", metavar="N", help="groups; what is beyond is counted together", rich_help_panel=LIMITS_PANEL)
    ] = "1000",
    jobs: Jobs = None,
    options: Annotated[Options, Members(*READING, *FILES, *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """How long requests took, how many were refused or not answered, by command or whatever else."""
    if json and csv:
        raise UsageError("--json and --csv were both asked for; choose one")
    names = inputs(read_files, files)
    grouped = _grouped(by)
    width_ns = None if interval is None else nanoseconds("--interval", interval)
    if width_ns == 0:
        raise UsageError(f"--interval {interval}: must be longer than nothing")
    number = 0 if slowest == "0" else whole("--slowest", slowest)
    limit = whole("--group-limit", group_limit)
    check_clock(clock)
    left = enough_of(enough)
    base = replace(options, bodies=False, pairs=True)
    asked, options = asking(where, base)
    from streamdump.latency.groups import Latencies

    width = SHORTEST_NS if html is not None and width_ns is None else width_ns
    counting: dict[str, Any] = {"by": grouped, "interval_ns": width, "slowest": number, "groups": limit}
    found = Latencies(**counting)
    reasons = {"-c ends it before": left is not None}
    division = division_of(jobs, names, base, asked, reasons, _Worker, (where, base, counting))
    with run_of(live, names, options, colour, asked, left, prints=False, page=html, division=division) as run:
        taker = _Taker(run, found, asked, clock, left)
        with _Screen(run, taker) if isinstance(run, LiveRun) else nullcontext():
            if isinstance(run, FileRun) and run.divided is not None:
                run.each(shows_nothing)
                _add_up(run, run.divided, taker)
            else:
                run.each(taker.take)
        if html is not None:
            _write(html, found, run, names or list(live.interfaces or ()), width_ns is None)
        _show(found, json, csv, colour, taker.clock)
        code = _end(run, found)
        if taker.matched and not found.groups:
            say("-Y: what matches is no response; latencies are chosen by what their responses say, as `name == PublishConfirm`")
        return code


def _grouped(by: list[str] | None) -> list[str]:
    """What one or several `--by` say, each once."""
    wanted = [part.strip() for text in by or ("command",) for part in text.split(",")]
    return list(dict.fromkeys(one_of("--by", part, GROUPED) for part in wanted))


class _Taker:
    """Counts the exchanges of a run, or with -Y those whose response is asked for, or whose record where there is no response."""

    def __init__(self, run: RunReport, found: Latencies, asked: FilterCount | None, clock: Any, left: int | None) -> None:
        from streamdump.render.clock import Clock

        self.clock = Clock(clock)
        self.left = left
        """So many messages, of those that are asked for, are enough."""
        self.run = run
        self.found = found
        self.asked = asked
        self.matched = 0
        """Records that are asked for."""
        self._matched: dict[int, None] = {}

    def take(self, records: list[Record]) -> bool:
        """Count what ended with these records; whether that is enough."""
        pairs = self.run.inspector.run.told_pairs()
        if records:
            self.clock.begin(records[0].time_ns)
        if self.asked is not None:
            records, pairs = self._select(records, pairs, self.asked)
        if self.left is not None:
            records, self.left = first(records, self.left)
            if not self.left:
                pairs = [one for one in pairs if (_number(one) or records[-1].number) <= records[-1].number]
        try:
            self.found.take(pairs)
        except Exception as error:
            self.run.tell(Report(describe_exception(error), "some exchanges are not counted"))
        return self.left == 0

    def _select(self, records: list[Record], pairs: list[Pair], asked: FilterCount) -> tuple[list[Record], list[Pair]]:
        matched = self._matched
        chosen = asked.select(records, self.run.failed)
        self.matched += len(chosen)
        matched.update(dict.fromkeys([one.number for one in chosen]))
        kept = [one for one in pairs if _number(one) in matched]
        for number in list(matched)[: max(0, len(matched) - MATCHED)]:
            del matched[number]
        return chosen, kept


class _Worker(Asking):
    """Counts the exchanges of its share."""

    def __init__(self, where: str | None, options: Options, counting: dict[str, Any]) -> None:
        from streamdump.latency.groups import Latencies

        super().__init__(where, options)
        self._found = Latencies(**counting)

    def begin(self, inspector: Inspector) -> None:
        super().begin(inspector)
        self._taker = _Taker(self.run, self._found, self.asked, "r", None)

    def take(self, records: list[Record]) -> list[Any]:
        self._taker.take(records)
        return [None] * len(records)

    def named(self) -> list[int]:
        return [number for one in self._found.slowest() for number in (one.request, one.response)]

    def end(self) -> Any:
        return *super().end(), self._taker.matched, self._found.counted()


def _add_up(run: FileRun, divided: Divided, taker: _Taker) -> None:
    """Take over what workers counted."""
    if divided.begun_ns is not None:
        taker.clock.begin(divided.begun_ns)
    for worker, (matched, counted) in enumerate(add_up(run)):
        taker.matched += matched
        taker.found.merge(counted, divided.conversations, divided.numbers(worker))


def _number(pair: Pair) -> int | None:
    """The number of the record by which -Y finds an exchange."""
    told = pair.exchange if pair.response is None else pair.response
    return None if told is None else told.number


def _show(found: Latencies, json: bool, csv: bool, colour: str, clock: Clock) -> None:
    """Print what was found."""
    if json:
        from streamdump.latency.rows import interval_rows, rows
        from streamdump.render.jsonl import encode

        for some in (rows(found), interval_rows(found), found.slowest()):
            write(encode(some))
        return
    from streamdump.render.latency import comma_separated, text

    write_text(comma_separated(found) if csv else text(found, columns(colour), palette(colour), clock))


def _write(path: str, found: Latencies, run: FileRun | LiveRun, names: list[str], alone: bool) -> None:
    """Write the page, too; `alone`: nobody but it asked for the course of time."""
    from streamdump.render.html.reports import latencies

    if alone:
        found.widen_to(INTERVALS)
    if run.inspector.counters.packets:
        write_html(path, "latency", run, names, latencies, found)
    if alone:
        found.forget_series()


def _end(run: FileRun | LiveRun, found: Latencies) -> int:
    code = int(run.end())
    if found.beyond:
        say(f"{found.beyond:,} exchanges of groups beyond --group-limit {found.limit:,} are counted together")
    if found.interval_ns != found.wanted_ns and found.interval_ns is not None:
        say(f"--interval: {found.interval_ns / 1e9:g} s, as shorter ones would be too many")
    return code


class _Screen:
    """The table on the terminal, refreshed as long as the capture goes on; elsewhere it does nothing."""

    def __init__(self, run: LiveRun, taker: _Taker) -> None:
        self._run = run
        self._taker = taker
        self._screen: Any = None
        self._latest = 0.0

    def __enter__(self) -> _Screen:
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=sys.stdout, no_color=not coloured(self._run.colour, sys.stdout), highlight=False, markup=False)
            self._screen = Live(console=console, auto_refresh=False, transient=True)
            self._screen.start()
            self._run.tick = self._refresh
        return self

    def __exit__(self, *ignored: object) -> None:
        if self._screen is not None:
            self._screen.stop()

    def _refresh(self) -> None:
        now = monotonic()
        if now - self._latest < REFRESH:
            return
        self._latest = now
        from rich.text import Text

        from streamdump.render.latency import text

        size = self._screen.console.size
        try:
            lines = text(self._taker.found, size.width, palette(self._run.colour), self._taker.clock).splitlines()
        except Exception as error:
            self._run.tell(Report(describe_exception(error), "the table lacks something"))
            return
        self._screen.update(Text.from_ansi("\n".join(lines[: max(1, size.height - 1)])), refresh=True)
