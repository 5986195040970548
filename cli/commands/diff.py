"""`streamdump diff OLD NEW`: what one capture says that another one does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from streamdump.errors import UsageError
from streamdump.options import Options
from streamdump.units import count

from ..keys import key_logs
from ..options import Colour, Json
from ..output import say
from ..parameters import READING, Members, gathers
from .check import Compared


@gathers
def diff(
    *,
    captures: Annotated[
        list[str] | None, typer.Argument(metavar="OLD NEW", help="two captures; one may be - for standard input", show_default=False)
    ] = None,
    compared: Compared,
    options: Annotated[Options, Members(*READING)],
    json: Json = False,
    colour: Colour = "auto",
) -> int:
    """Compare two captures."""
    from pathlib import Path

    from streamdump.golden.check import capture_source, check

    from ..checking import Chosen, code_of_results, report_one

    if captures is None or len(captures) != 2:
        raise UsageError("diff needs two captures: streamdump diff OLD NEW")
    old, new = captures
    if old == new == "-":
        raise UsageError("- means standard input and may be given only once")
    options = replace(options, keylog=key_logs(options.keylog, False))
    chosen = Chosen(compared)
    sources = [capture_source(one, options) for one in (old, new)]
    found = check(new, Path(old), sources[1], chosen.of(Path(new)), used=chosen.used, old=sources[0])
    report_one(found, colour, json, then="old")
    if found.outcome in ("same", "different"):
        unread = f"; {count(len(found.unread), 'conversation')} of {new} not decoded and not compared" if found.unread else ""
        say(f"{old} and {new}: {count(len(found.differences), 'difference')}{unread}")
    chosen.report_unused()
    return code_of_results([found])
