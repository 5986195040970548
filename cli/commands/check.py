"""`streamdump check CAPTURE|DIR...`: whether captures say what their golden files say they should."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, NamedTuple

import typer

from streamdump.errors import UsageError, refuse
from streamdump.options import Options

from ..exits import ExitCode
from ..keys import key_logs
from ..options import (
    LIVE,
    OTHER,
    READ,
    CaptureFilter,
    Colour,
    Interfaces,
    Json,
    ReadFiles,
    WriteTo,
    completion,
    inputs,
)
from ..parameters import READING, Members, gathers

COMPARED = "Comparison"

ONLY = ("all", "handshake", "names")


_FOR_GOOD = "--update does not write golden files where CI is set; --force writes them anyway"
"""There they would always say what they should not."""


class Compared(NamedTuple):
    """What of captures is compared."""

    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="WHAT",
            help="handshake, names or all (default)",
            rich_help_panel=COMPARED,
            show_default=False,
            autocompletion=completion(ONLY),
        ),
    ] = None
    unordered: Annotated[bool, typer.Option("--unordered", help="accept responses in any order", rich_help_panel=COMPARED)] = False
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="also compare heartbeats and pings", rich_help_panel=COMPARED)] = False
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="FIELD",
            help="ignore this field: fields.chunk.timestamp, or only its last part; may be repeated",
            rich_help_panel=COMPARED,
            show_default=False,
        ),
    ] = None
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="settings; default: the nearest pyproject.toml or streamdump.toml", rich_help_panel=COMPARED
        ),
    ] = None


@gathers
def check(
    *,
    captures: Annotated[
        list[str] | None,
        typer.Argument(metavar="CAPTURE|DIR...", help="captures, and folders to search for captures", show_default=False),
    ] = None,
    read_files: ReadFiles = None,
    golden: Annotated[
        str | None,
        typer.Option("--golden", metavar="DIR", help="folder of the golden files; default: beside the captures", rich_help_panel=READ),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="rewrite the golden files", rich_help_panel=OTHER)] = False,
    force: Annotated[bool, typer.Option("--force", help="allow --update where CI is set", rich_help_panel=OTHER)] = False,
    compared: Compared,
    options: Annotated[Options, Members(*READING)],
    command: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="COMMAND", help="capture on -i while this runs, then compare", rich_help_panel=LIVE, show_default=False
        ),
    ] = None,
    interfaces: Interfaces = None,
    capture_filter: CaptureFilter = None,
    write_to: WriteTo = None,
    json: Json = False,
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="write a JUnit report for CI servers", rich_help_panel=OTHER)
    ] = None,
    github: Annotated[bool, typer.Option("--github", help="print annotations for GitHub", rich_help_panel=OTHER)] = False,
    colour: Colour = "auto",
) -> int:
    """Compare captures with their golden files."""
    from datetime import UTC, datetime

    from streamdump.golden.check import tasks

    from ..checking import CheckRun, Chosen

    names = inputs(read_files, captures)
    of_run = (("-i", interfaces), ("-f", capture_filter), ("-w", write_to))
    refuse(
        (not names, "no capture given; write streamdump check CAPTURE|DIR..."),
        ("-" in names, "-: standard input has no file name for a golden file"),
        (json and github, "--json and --github both write to standard output; choose one"),
        (update and os.environ.get("CI") and not force, _FOR_GOOD),
        (force and not update, "--force needs --update"),
        *((given and command is None, f"{option} needs --run COMMAND") for option, given in of_run),
    )
    options = replace(options, keylog=key_logs(options.keylog, command is not None))
    chosen = Chosen(compared)
    began = datetime.now(UTC)
    run = CheckRun(chosen, json, github, colour, junit)
    code = ExitCode.DONE
    if command is None:
        run.files(tasks(names, golden), options, update)
    elif len(names) > 1 or not interfaces:
        raise UsageError("--run COMMAND needs -i INTERFACE and one name: that of the capture whose golden file to compare")
    else:
        code = run.recorded(names[0], golden, command, interfaces, capture_filter, write_to, options, update)
    run.junit(began)
    return run.end(code)
