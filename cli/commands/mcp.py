"""`streamdump mcp`: tools for coding assistants, on standard input and output."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from streamdump.errors import UsageError, how_to_install
from streamdump.options import Options

from ..exits import ExitCode
from ..keys import key_logs
from ..options import READ, SHOWN, whole_number
from ..parameters import READING, Members, gathers


@gathers
def mcp(
    *,
    root: Annotated[
        list[str] | None,
        typer.Option(
            "--root",
            metavar="FOLDER",
            help="folder whose captures may be read (may be repeated); default: the working directory",
            rich_help_panel=READ,
            show_default=False,
        ),
    ] = None,
    answer_limit: Annotated[
        str,
        typer.Option("--answer-limit", metavar="N", help="characters of an answer; the rest can be asked for", rich_help_panel=SHOWN),
    ] = "8000",
    options: Annotated[Options, Members(*READING)],
) -> int:
    """Let coding assistants ask about captures, over the Model Context Protocol."""
    from ..mcp.answers import LEAST
    from ..mcp.captures import Captures

    if sys.stdin.isatty():
        raise UsageError("mcp is started by a client, to which you add it: claude mcp add streamdump -- streamdump mcp, for example")
    limit = whole_number("--answer-limit", answer_limit, LEAST)
    captures = Captures(root or ["."], replace(options, keylog=key_logs(options.keylog), findings=True))
    try:
        import mcp as sdk  # noqa: F401
    except ImportError as error:
        raise UsageError(f"mcp needs the package mcp: {how_to_install('mcp')}") from error
    from ..mcp.server import serve

    serve(captures, limit)
    return ExitCode.DONE
