"""`streamdump protocols [NAME]`: the protocols it reads, and the field tables of one."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.exits import ExitCode
from cli.options import Colour, protocol_named, protocol_names
from cli.output import columns, palette, write_text


def protocols(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="the protocol whose field tables to print", show_default=False, autocompletion=protocol_names),
    ] = None,
    colour: Colour = "auto",
) -> int:
    """The protocols that are read; with a NAME, its field tables."""
    from dissect.protocols import PROTOCOLS
    from dissect.render.protocols import overview, tables

    if name is None:
        write_text(overview(PROTOCOLS, palette(colour), columns()))
    else:
        write_text(tables(protocol_named(name), palette(colour), columns()))
    return ExitCode.DONE
