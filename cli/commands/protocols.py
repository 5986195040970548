"""`streamdump protocols [NAME]`: the protocols it reads, and the field tables of one."""

from __future__ import annotations

from typing import Annotated

import typer

from ..exits import ExitCode
from ..options import SHOWN, Colour, protocol_named, protocol_names
from ..output import columns, palette, write_page


def protocols(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="the protocol whose field tables to print", show_default=False, autocompletion=protocol_names),
    ] = None,
    fields: Annotated[
        bool, typer.Option("--fields", help="every name for -Y and -e, with its type and the records that have it", rich_help_panel=SHOWN)
    ] = False,
    colour: Colour = "auto",
) -> int:
    """List the protocols; with a NAME, print its field tables."""
    from streamdump.protocols import PROTOCOLS
    from streamdump.render.protocols import listing, overview, tables

    if fields:
        from streamdump.filter import names_of

        rows = names_of().listed(None if name is None else protocol_named(name).name)
        write_page(listing(rows, palette(colour), columns(colour)))
    elif name is None:
        write_page(overview(PROTOCOLS, palette(colour), columns(colour)))
    else:
        write_page(tables(protocol_named(name), palette(colour), columns(colour)))
    return ExitCode.DONE
