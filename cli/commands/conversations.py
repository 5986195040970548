"""`streamdump conversations FILE...`: who talked to whom."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import Report
from streamdump.options import Options

from ..live import LiveOptions, LiveRun, LiveTable, run_of
from ..options import SHOWN, Colour, Files, Html, Json, ReadFiles, Where, inputs
from ..output import columns, palette, write_text
from ..parameters import FILES, LIMITS, READING, TIMES, Members, gathers
from ..run import FileRun, asking, blocks, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamdump.model import ConversationRow, Record


AT_ONCE = 1024
"""Rows that are written together as JSON; there may be millions."""


@gathers
def conversations(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    json: Json = False,
    html: Html = None,
    evidence: Annotated[bool, typer.Option("-V", help="also the evidence for each protocol", rich_help_panel=SHOWN)] = False,
    where: Where = None,
    live: LiveOptions,
    options: Annotated[Options, Members(*READING, *FILES, *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Show each connection: endpoints, protocol, confidence, how it ended."""
    names = inputs(read_files, files)
    asked, options = asking(where, replace(options, bodies=False))
    with run_of(live, names, options, colour, asked, prints=False, page=html) as run:
        run.current_commands = ("conversations",)
        if isinstance(run, LiveRun):
            _live(run, json)
        else:
            run.each(_noting(run))
        each = (row for rows in run.inspector.each_rows() for row in rows)
        # A table is made of all rows together
        while rows := list(islice(each, AT_ONCE if json else None)):
            _show(run, rows, json, evidence)
        if html is not None:
            _write(run, html)
        return run.end()


def _live(run: LiveRun, json: bool) -> None:
    """While it goes on a table on a terminal; in JSON each conversation when it is forgotten."""
    note = _noting(run)
    gone: list[ConversationRow] = []
    if json or run.asked is not None:
        run.leaving = gone.extend

    def leave() -> None:
        # Only after their last records were examined
        if json and gone:
            _show(run, gone, json)
        if run.asked is not None:
            run.asked.forget(gone)
        gone.clear()

    if json:
        run.tick = leave
        run.each(note)
        leave()
    else:
        from streamdump.render.live import Watch

        watch, has = Watch(), None if run.asked is None else run.asked.has
        with LiveTable(run, lambda size: watch.table(run.inspector, monotonic(), size.height, has, size.width), leave) as table:

            def feed(records: list[Record]) -> bool:
                try:
                    watch.add(records)
                except Exception as error:
                    table.report(error)
                return note(records)

            run.each(feed if sys.stdout.isatty() else note)


def _noting(run: FileRun | LiveRun) -> Callable[[list[Record]], bool]:
    """Remembers which conversations have a record that is asked for; never enough."""

    def note(records: list[Record]) -> bool:
        if run.asked is not None:
            run.asked.note(records, run.failed)
        return False

    return note


def _write(run: FileRun | LiveRun, path: str) -> None:
    """Write the page, too."""
    from streamdump.render.conversations import PAGE_HEAD, PAGE_NAMES, page_rows
    from streamdump.render.html.reports import listing

    each = [row for rows in run.inspector.each_rows() for row in (rows if run.asked is None else run.asked.rows(rows))]
    run.write_html(path, "conversations", listing, "Conversations", PAGE_HEAD, PAGE_NAMES, page_rows(each))


def _show(run: FileRun | LiveRun, rows: list[ConversationRow], json: bool, evidence: bool = False) -> None:
    if run.asked is not None:
        rows = run.asked.rows(rows)

    def failed(row: ConversationRow, what: str) -> None:
        run.report(Report(what, "it is not shown", None, None, row.conversation, " - ".join(row.endpoints)))

    if json:
        print_json(rows, failed, run.colour)
    elif rows:
        from streamdump.render.conversations import plain, table

        width = columns(run.colour)

        def text(rows: list[ConversationRow]) -> str:
            return plain(rows, evidence) if width is None else table(rows, width, palette(run.colour), evidence)

        # A table is made of all rows together
        parts = [*blocks(lambda rows: (rows, text(rows)), rows, failed)]
        shown = [row for some, _ in parts for row in some]
        write_text(parts[0][1] if len(shown) == len(rows) else text(shown) if shown else "")
