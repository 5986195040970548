"""`streamdump FILE...`: the messages of captures, as lines, trees, dumps or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.exits import ExitCode
from cli.help import brief
from cli.keys import key_logs
from cli.live import LiveRun, Wanted, check_without, list_interfaces
from cli.options import LIVE, OTHER, SHOWN, Colour, Files, ListInterfaces, OnlyMatching, ReadFiles, Where, packet_limit
from cli.output import columns, palette, write_text
from cli.parameters import Members, gathers
from cli.run import Run, about, asking, lines_of
from cli.showing import Shown, field_lines, fields_view, first, form_of, json_view, options_for, text_settings
from dissect.errors import UsageError
from dissect.options import SETTINGS, Options

if TYPE_CHECKING:
    from cli.writing import Selection
    from dissect.model import Record
    from dissect.render.terminal import Palette


@gathers
def read(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    shown: Shown,
    where: Where = None,
    quiet: Annotated[bool, typer.Option("-q", help="only the closing line about the whole run", rich_help_panel=SHOWN)] = False,
    live: Wanted,
    list_all: ListInterfaces = False,
    only_matching: OnlyMatching = False,
    options: Annotated[Options, Members(*SETTINGS)],
    line_buffered: Annotated[
        bool, typer.Option("-l", help="lines at once also into a pipe; they always come so, -l is a habit", rich_help_panel=LIVE)
    ] = False,
    colour: Colour = "auto",
    version: Annotated[bool, typer.Option("--version", help="the version", rich_help_panel=OTHER)] = False,
) -> int:
    """The messages of captures, a line each."""
    if version:
        return _version()
    if list_all:
        return list_interfaces()
    writes = not live.interfaces and live.write is not None
    if not live.interfaces:
        check_without(live, writes)
    if only_matching and not writes:
        raise UsageError("--only-matching belongs to -w FILE and captures that are read")
    names = [*(read_files or ()), *(files or ())]
    if len(sys.argv) <= 1 and not names and sys.stdin.isatty():
        write_text(brief())
        return ExitCode.DONE
    form = form_of(shown)
    left = form.left
    options = options_for(shown, form, replace(options, keylog=key_logs(options.keylog, bool(live.interfaces))), quiet)
    asked, options = asking(where, options)
    lines = field_lines(shown, form, options) if form.fields else None
    quiet = quiet or (writes and not form.given)
    selection = None
    if writes and live.write is not None:
        selection = _selection(live.write, names, asked is not None or left is not None, only_matching, live.embed)
    with (
        LiveRun(live, names, options, colour)
        if live.interfaces
        else Run(names, options, packet_limit(live.stop), colour, left, prints=not quiet, twice=writes) as run
    ):

        def failed(record: Record, what: str) -> None:
            run.tell(about(record, what))

        run.asked = asked
        if selection is not None:
            selection.listen(run.inspector)
        show: Callable[[list[Record]], None] = _nothing
        begin: Callable[[Record], None] | None = None
        if quiet:
            pass
        elif lines is not None:
            show = fields_view(lines, form, failed)
        elif form.json:
            show = json_view(failed)
        else:
            show, begin = _text(shown, options, palette(colour), run, failed)

        def one(batch: list[Record]) -> bool:
            nonlocal left, begin
            if begin is not None and batch:
                begin(batch[0])
                begin = None
            if lines is not None:
                lines.columns.learn(batch)
            whole = batch
            if run.view is not None:
                run.view.learn(batch)
            if asked is not None:
                batch = asked.select(batch, failed)
            if left is not None:
                batch, left = first(batch, left) if left else ([], 0)
            if selection is not None:
                selection.note(whole, batch)
            if batch:
                show(batch)
            # What is written of a conversation may be behind the last message that is shown
            return left == 0 and selection is None

        run.each(one)
        return run.end(more=selection.write(run)) if selection is not None and isinstance(run, Run) else run.end()


def _selection(path: str, names: Sequence[str], some: bool, alone: bool, keys: bool) -> Selection:
    from cli.writing import Selection

    return Selection(path, names, some, alone, keys)


def _nothing(batch: list[Record]) -> None:
    pass


def _text(
    shown: Shown,
    options: Options,
    colours: Palette,
    run: Run | LiveRun,
    failed: Callable[[Record, str], None],
) -> tuple[Callable[[list[Record]], None], Callable[[Record], None]]:
    """Shows lines; and what is to be told of the first record, which need not be shown."""
    from dissect.render.summary import Lines

    width = columns()
    lines = run.view = Lines(**text_settings(shown, options, colours, width, run.inspector))
    started = False

    def show(batch: list[Record]) -> None:
        nonlocal started
        text = lines_of(lines, batch, failed)
        write_text(text if started or width is None else lines.header() + text)
        started = True

    return show, lines.begin


def _version() -> int:
    import dissect

    write_text(f"streamdump {dissect.__version__}\n")
    return ExitCode.DONE
