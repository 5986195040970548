"""`streamdump browse FILE...`: look around in captures, or in what an interface brings."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

from streamdump.errors import Report, UsageError, describe_exception, how_to_install
from streamdump.options import Options
from streamdump.units import count

from ..live import LiveOptions, run_of
from ..options import Colour, Files, ReadFiles, TimeForm, Where, check_clock, inputs
from ..output import coloured, say
from ..parameters import FILES, LIMITS, READING, TIMES, Members, gathers
from ..run import joined


@gathers
def browse(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    where: Where = None,
    clock: TimeForm = "r",
    live: LiveOptions,
    options: Annotated[Options, Members("show_secrets", *READING, *FILES, *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Explore captures in a terminal interface: findings, conversations, messages, fields and bytes."""
    check_clock(clock)
    names = inputs(read_files, files)
    # textual draws on standard error
    if not (sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        raise UsageError("browse needs a terminal, and TERM other than dumb; streamdump FILE prints the messages")
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise UsageError(f"browse needs textual: {how_to_install('browse')}") from error
    asked = joined(where, options)
    if asked is not None:
        from streamdump.filter import compile_filter

        compile_filter(asked, options)
    if not coloured(colour, sys.stdout):
        os.environ["NO_COLOR"] = "1"
    if "-" in names or (not names and not live.interfaces):
        _keys_from_terminal()
    options = replace(options, findings=True)
    with run_of(live, names, options, colour) as run:
        from streamdump.render.clock import Clock, Times

        from ..browse.app import Browser
        from ..indexed.reading import Reader

        reader = Reader(run, run.inspector.options, Clock(cast(Times, clock)))
        title = Path(run.names[0]).name if len(run.names) == 1 else count(len(run.names), "file")
        app = Browser(reader, title, asked)
        try:
            app.run()
        finally:
            reader.stop()
        for text in reader.warned:
            say(text)
        if app.failure is not None:
            run.inspector.reports.append(Report(describe_exception(app.failure), "browse ended"))
        run.holds_reports = False
        return run.end()


def _keys_from_terminal() -> None:
    """Let standard input be the terminal, as keys are read from there, and captures from what it was."""
    if sys.stdin.isatty():
        return
    capture = os.dup(0)
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError as error:
        raise UsageError("browse needs a terminal to read keys from") from error
    os.dup2(terminal, 0)
    os.close(terminal)
    sys.stdin = os.fdopen(capture, encoding="utf-8")
