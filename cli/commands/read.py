"""`streamdump FILE...`: the messages of captures, as lines, trees, dumps or JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import UsageError
from streamdump.options import SETTINGS, Options

from ..exits import ExitCode
from ..help import brief
from ..live import LiveOptions, LiveRun, list_interfaces, run_of
from ..options import (
    LIVE,
    OTHER,
    SHOWN,
    Alone,
    Colour,
    Files,
    ListInterfaces,
    OnlyMatching,
    ReadFiles,
    Statistics,
    Unresolved,
    Where,
    inputs,
)
from ..output import columns, palette, write_text
from ..parameters import Members, gathers
from ..run import FileRun, asking, lines_of
from ..showing import QUIET, Failed, RecordView, Showing, Shown, form_of, options_for, text_settings, view_of_values

if TYPE_CHECKING:
    from streamdump.model import Record
    from streamdump.render.terminal import Palette


@gathers
def read(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    shown: Shown,
    where: Where = None,
    quiet: Annotated[bool, typer.Option("-q", help="print only the closing line", rich_help_panel=SHOWN)] = False,
    live: LiveOptions,
    list_all: ListInterfaces = False,
    only_matching: OnlyMatching = False,
    options: Annotated[Options, Members(*SETTINGS)],
    unresolved: Unresolved = False,
    alone: Alone = False,
    statistics: Statistics = None,
    line_buffered: Annotated[
        bool, typer.Option("-l", help="accepted for compatibility: lines are never buffered, not even into a pipe", rich_help_panel=LIVE)
    ] = False,
    colour: Colour = "auto",
    no_config: Annotated[
        bool, typer.Option("--no-config", help="ignore ~/.config/streamdump/config.toml; accepted by every command", rich_help_panel=OTHER)
    ] = False,
    no_pager: Annotated[
        bool,
        typer.Option(
            "--no-pager", help="print long text at once, without $PAGER or less; accepted by every command", rich_help_panel=OTHER
        ),
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="print the version", rich_help_panel=OTHER)] = False,
    verbose: Annotated[bool, typer.Option("-v", help="with --version: also Python, libraries and system", rich_help_panel=OTHER)] = False,
) -> int:
    """Show the messages of captures, one line each."""
    if version:
        return _version(verbose)
    if verbose:
        raise UsageError("-v needs --version; -V shows every field")
    if list_all:
        return list_interfaces()
    writes = not live.interfaces and live.write is not None
    if only_matching and not writes:
        raise UsageError("--only-matching needs -w FILE and capture files")
    names = inputs(read_files, files)
    if len(sys.argv) <= 1 and not names and sys.stdin.isatty():
        write_text(brief())
        return ExitCode.DONE
    form = form_of(shown)
    asked, options = asking(where, options_for(shown, form, options, quiet))
    view = view_of_values(shown, form, options, colour)
    quiet = quiet or (writes and not form.given)
    selection = None
    if writes and live.write == "-" and (form.given or sys.stdout.isatty()):
        raise UsageError("-w -: packets cannot be written to a terminal, or together with -V, -x, -T or --json")
    if writes and live.write is not None:
        from ..writing import Selection

        selection = Selection(live.write, [*names, *options.keylog], asked is not None or form.left is not None, only_matching, live.embed)
    keeps_rows = selection is not None and not selection.takes_all
    with run_of(live, names, options, colour, asked, form.left, prints=not quiet, twice=writes, keeps_rows=keeps_rows) as run:
        if selection is not None:
            selection.listen(run.inspector)
        showing = Showing(run, QUIET if quiet else view or _text(shown, options, palette(colour), run))

        def one(batch: list[Record]) -> bool:
            chosen = showing.chosen(batch)
            if selection is not None:
                selection.note(batch, chosen)
            showing.show(chosen)
            # Packets to write may come after the last message shown
            return run.left == 0 and selection is None

        run.each(one)
        return run.end(selection.write(run) if selection is not None and isinstance(run, FileRun) else ())


def _text(shown: Shown, options: Options, colours: Palette, run: FileRun | LiveRun) -> RecordView:
    """Shows lines."""
    from streamdump.render.summary import Lines

    width = columns(run.colour)
    lines = run.view = Lines(**text_settings(shown, options, colours, width, run.inspector))
    if shown.clock == "d":
        run.inspector.watch = lines.clock.watch
    started = False

    def show(batch: list[Record], failed: Failed) -> None:
        nonlocal started
        text = lines_of(lines, batch, failed)
        write_text(text if started or width is None else lines.header() + text)
        started = True

    return RecordView(show, lines.clock.begin, lines.learn)


def _version(verbose: bool) -> int:
    import streamdump

    lines = [f"streamdump {streamdump.__version__}"]
    if verbose:
        from platform import platform, python_implementation, python_version

        lines += [f"{python_implementation()} {python_version()} on {platform()}", *_libraries()]
    write_text("".join(f"{line}\n" for line in lines))
    return ExitCode.DONE


def _libraries() -> Iterator[str]:
    """Each library that streamdump names, with the version that is installed here."""
    import ctypes.util
    from importlib.metadata import PackageNotFoundError, requires, version

    named = [one for one in requires("streamdump") or () if not re.search("extra == .(test|fuzz)", one)]
    for name in sorted({re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in named}):
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"
    found = ctypes.util.find_library("pcap")
    version_of = ctypes.CDLL(found).pcap_lib_version if found else None
    if version_of is not None:
        version_of.restype = ctypes.c_char_p
    yield version_of().decode() if version_of is not None else "no libpcap"
