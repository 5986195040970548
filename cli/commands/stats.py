"""`streamdump stats FILE...`: how much of what captures hold: packets, commands, streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import refuse
from streamdump.options import Options

from ..keys import key_logs
from ..options import (
    PAGE_INTERVAL_NS,
    PROCESS,
    SHOWN,
    Colour,
    Files,
    Html,
    Interval,
    Json,
    ReadFiles,
    Where,
    completion,
    inputs,
    interval_of,
    one_of,
)
from ..output import columns, palette, write_json, write_text
from ..parameters import FILES, LIMITS, READING, Members, gathers
from ..run import FileRun, asking, check_html, report_interval

if TYPE_CHECKING:
    from streamdump.model import Record

INTERVALS = 240
"""The most intervals of a page for which none was asked."""


@gathers
def stats(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    interval: Interval = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help=f"also count commands by the process behind the client: {', '.join(PROCESS[:-1])} or {PROCESS[-1]}",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=completion(PROCESS),
        ),
    ] = None,
    where: Where = None,
    json: Json = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="comma-separated values: the commands, or with --interval the series", rich_help_panel=SHOWN)
    ] = False,
    html: Html = None,
    options: Annotated[Options, Members(*READING, *FILES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Count packets, commands and messages by stream, and what could not be decoded."""
    refuse((json and csv, "--json and --csv cannot be combined; choose one"))
    if by is not None:
        one_of("--by", by, PROCESS)
    names = inputs(read_files, files)
    width_ns = interval_of(interval)
    asked, options = asking(where, replace(options, bodies=False, keylog=key_logs(options.keylog)))
    check_html(html, names)
    from streamdump.render.stats import Counted, comma_separated, text
    from streamdump.stats import Stats

    found = Stats(width_ns or (None if html is None else PAGE_INTERVAL_NS), asked is None, options.separate, html is not None, by)
    with FileRun(names, options, colour=colour, prints=False) as run:
        run.ask(asked)
        run.inspector.watch = found.watch

        def feed(records: list[Record]) -> bool:
            found.add(run.select(records))
            return False

        run.each(feed)
        total = found.total(row for rows in run.inspector.each_rows(related=False) for row in rows)
        if html is not None and width_ns is None:
            found.widen_to(INTERVALS)
        series, read = found.series(), found.files(run.names)
        rows = found.commands(total.duration_ns), found.streams(), found.subscriptions(), found.consumers()
        counted = Counted(read, total, *rows, series)
        if html is not None:
            from streamdump.render.html.reports import statistics

            run.write_html(html, "stats", statistics, counted, found.courses())
        if width_ns is None:
            counted = counted._replace(series=[])
        if json:
            from streamdump.golden.untrusted_files import readable
            from streamdump.render.jsonl import encode

            for file in counted.files:
                file.name = readable(file.name)
            for some in counted.in_order():
                write_json(encode(some), colour)
        else:
            write_text(comma_separated(counted) if csv else text(counted, columns(colour), palette(colour)))
        report_interval(width_ns, found.interval_ns)
        return run.end()
