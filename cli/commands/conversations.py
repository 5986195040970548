"""`streamdump conversations FILE...`: who talked to whom."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.keys import key_logs
from cli.live import LiveRun, Table, Wanted, check_without
from cli.options import SHOWN, Colour, Files, Json, ReadFiles, Where, packet_limit
from cli.output import columns, palette, write, write_text
from cli.parameters import FILES, LIMITS, READING, TIMES, Members, gathers
from cli.run import Asked, Run, about, asking, blocks
from dissect.errors import Report
from dissect.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from dissect.model import ConversationRow, Record


AT_ONCE = 1024
"""Rows that are written together as JSON; there may be millions."""


@gathers
def conversations(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    json: Json = False,
    evidence: Annotated[bool, typer.Option("-V", help="what the verdict on each rests on, too", rich_help_panel=SHOWN)] = False,
    where: Where = None,
    live: Wanted,
    options: Annotated[Options, Members(*READING, *FILES, *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Who talked to whom, in which protocol, how sure that is, and how it went."""
    names = [*(read_files or ()), *(files or ())]
    options = replace(options, bodies=False, keylog=key_logs(options.keylog, bool(live.interfaces)))
    asked, options = asking(where, options)
    if live.interfaces:
        return _live(live, names, options, _Look(json, evidence, colour), asked)
    check_without(live)
    with Run(names, options, packet_limit(live.stop), colour, prints=False) as run:
        run.asked = asked
        run.each(_noting(run, asked))
        if json:
            each = (row for rows in run.inspector.each_rows() for row in rows)
            while rows := list(islice(each, AT_ONCE)):
                _show(run, rows, _Look(json, evidence, colour))
        else:
            _show(run, run.inspector.rows(), _Look(json, evidence, colour))
        return run.end(table=True)


class _Look(NamedTuple):
    """How rows are shown."""

    json: bool
    evidence: bool
    colour: str


def _live(wanted: Wanted, names: list[str], options: Options, look: _Look, asked: Asked | None) -> int:
    """While it goes on a table on a terminal; in JSON each conversation when it is forgotten, and all others at the end."""
    with LiveRun(wanted, names, options, look.colour) as run:
        run.asked = asked
        note = _noting(run, asked)
        gone: list[ConversationRow] = []
        if look.json or asked is not None:
            run.leaving = gone.extend

        def leave() -> None:
            # Not before the last records of those that leave were looked at
            if look.json and gone:
                _show(run, gone, look)
            if asked is not None:
                asked.forget(gone)
            gone.clear()

        if look.json:
            run.tick = leave
            run.each(note)
            leave()
        else:
            with Table(run, leave) as table:
                run.each(lambda records: note(records) or table.take(records))
        _show(run, run.inspector.rows(), look)
        return run.end(table=True)


def _noting(run: Run | LiveRun, asked: Asked | None) -> Callable[[list[Record]], bool]:
    """Remembers which conversations have a record that is asked for; never enough."""

    def note(records: list[Record]) -> bool:
        if asked is not None:
            asked.note(records, lambda record, what: run.tell(about(record, what)))
        return False

    return note


def _show(run: Run | LiveRun, rows: list[ConversationRow], look: _Look) -> None:
    if run.asked is not None:
        rows = run.asked.rows(rows)

    def failed(row: ConversationRow, what: str) -> None:
        run.tell(Report(what, "it is not shown", None, None, row.conversation, " - ".join(row.endpoints)))

    if look.json:
        from dissect.render.jsonl import encode

        for block in blocks(encode, rows, failed):
            write(block)
    elif rows:
        from dissect.render.conversations import plain, table

        width = columns()

        def text(rows: list[ConversationRow]) -> str:
            return plain(rows, look.evidence) if width is None else table(rows, width, palette(look.colour), look.evidence)

        # A table is made of all rows together
        parts = [*blocks(lambda rows: (rows, text(rows)), rows, failed)]
        whole = [row for some, _ in parts for row in some]
        write_text(parts[0][1] if len(whole) == len(rows) else text(whole) if whole else "")
