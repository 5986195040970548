"""How records are shown: the options that say so, which commands share, and the views they choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from streamdump.errors import UsageError, refuse
from streamdump.options import Options

from .options import (
    BETWEEN,
    COLUMNS,
    FORMS,
    MANNERS,
    SHOWN,
    Enough,
    Forms,
    Json,
    Looks,
    Manners,
    TimeForm,
    check_clock,
    enough_of,
    field_names,
    looks_of,
    one_of,
)
from .output import write_text
from .run import blocks, print_json

if TYPE_CHECKING:
    from streamdump.inspector import Inspector
    from streamdump.model import Message, Record
    from streamdump.render.terminal import Palette

    from .run import RunReport

AT_ONCE = 4_096
"""Lines of a message that are put together at a time."""


class Shown(NamedTuple):
    """What the options of a view say."""

    tree: Annotated[bool, typer.Option("-V", help="every field, with offsets and bytes", rich_help_panel=SHOWN)] = False
    dump: Annotated[bool, typer.Option("-x", help="hex dump of each frame, with field names", rich_help_panel=SHOWN)] = False
    json: Json = False
    form: Forms = None
    names: Annotated[
        list[str] | None,
        typer.Option(
            "-e",
            metavar="NAME",
            help="a field to show with -T fields (may be repeated); names as in -Y",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=field_names,
        ),
    ] = None
    manner: Manners = None
    clock: TimeForm = "r"
    enough: Enough = None


class ViewForm(NamedTuple):
    """The view that they choose. `given`: a form was asked for; `left`: the number of messages to show, None for all."""

    json: bool
    fields: bool
    given: bool
    looks: Looks
    left: int | None


def form_of(shown: Shown) -> ViewForm:
    """Raises `UsageError` for options that do not go together."""
    forms = {one_of("-T", one, FORMS) for one in shown.form or ()} | ({"json"} if shown.json else set())
    if len(forms) > 1:
        raise UsageError(f"{' and '.join(sorted(forms, reverse=True))} cannot be combined; choose one")
    json, fields = forms == {"json"}, bool(forms & {"fields", "tabs", "csv"})
    check_clock(shown.clock, BETWEEN)
    refuse(
        (
            (json or fields) and (shown.tree or shown.dump),
            f"{'-V' if shown.tree else '-x'} is a view of text output; "
            + ("choose fields with -e" if fields else "JSON has all fields already"),
        ),
        (forms == {"fields"} and not shown.names, "-T fields needs -e NAME, such as -e number -e name -e latency"),
        ((shown.names or shown.manner) and not fields, f"{'-e' if shown.names else '-E'} needs -T fields"),
    )
    kinds = [one.partition("=")[0] for one in shown.manner or ()]
    refuse((len(kinds) > len({*kinds}), "-E: each of header, separator and quote may be given only once"))
    looks = looks_of([*MANNERS, *(shown.manner or ())] if forms == {"csv"} else shown.manner or ())
    return ViewForm(json, fields, bool(forms or shown.tree or shown.dump), looks, enough_of(shown.enough))


def options_for(shown: Shown, form: ViewForm, options: Options, quiet: bool = False) -> Options:
    """The library's options with what the views need; `quiet`: nothing is shown."""
    detail = shown.tree or shown.dump
    values = form.json or form.fields or detail
    return replace(
        options,
        # Lines of text count them, or show text as text
        bytes_as=options.bytes_as if values else "hex",
        detail=detail,
        bodies=(values or options.findings) and not quiet,
        # Relative times are numbers
        times=(values or options.findings or shown.clock not in ("r", *BETWEEN)) and not quiet,
    )


Failed = Callable[[Any, str], None]
"""Called with a record that cannot be shown, and the reason."""


class RecordView(NamedTuple):
    """Shows records; `begin` receives the time of the first packet, `learn` every batch, shown or not; `header` comes before
    all; `finish`, which receives when the capture of a file ends, returns lines to say at the end."""

    show: Callable[[list[Any], Failed], None]
    begin: Callable[[int], None] = lambda time_ns: None
    learn: Callable[[list[Any]], None] = lambda batch: None
    header: str = ""
    finish: Callable[[Callable[[int], int]], list[str]] = lambda end_ns: []


QUIET = RecordView(lambda batch, failed: None)


class Showing:
    """Shows the records of each batch that are asked for."""

    def __init__(self, run: RunReport, view: RecordView) -> None:
        self._run = run
        self._view = view
        run.inspector.begins.append(view.begin)
        if view.header:
            write_text(view.header)

    def chosen(self, batch: list[Record]) -> list[Record]:
        """Return the records of a batch that are asked for."""
        self._view.learn(batch)
        return self._run.first(self._run.select(batch))

    def show(self, batch: list[Record]) -> None:
        """Show the chosen records."""
        if batch:
            self._view.show(batch, self._run.failed)


def view_of_values(shown: Shown, form: ViewForm, options: Options, colour: str) -> RecordView | None:
    """The view that was asked for, if it is one of values: JSON Lines, or chosen fields."""
    return json_view(colour) if form.json else fields_view(shown.names or COLUMNS, form, options) if form.fields else None


def json_view(colour: str) -> RecordView:
    """Shows records as JSON Lines."""

    def show(batch: list[Any], failed: Failed) -> None:
        print_json(batch, failed, colour)

    return RecordView(show)


def fields_view(names: Sequence[str], form: ViewForm, options: Options, entries: bool = False) -> RecordView:
    """Shows chosen values of records, or of `entries`."""
    from streamdump.filter import compile_columns
    from streamdump.render.fields import FieldLines

    lines = FieldLines(compile_columns(names, options, entries), form.looks.separator, form.looks.quote)

    def show(batch: list[Any], failed: Failed) -> None:
        for block in blocks(lines.lines, batch, failed):
            write_text(block)

    return RecordView(show, lines.columns.begin, lines.columns.learn, header=lines.header() if form.looks.header else "")


def text_settings(shown: Shown, options: Options, colours: Palette, width: int | None, inspector: Inspector) -> dict[str, Any]:
    """Return the arguments of `Lines`."""
    from streamdump.protocols import BY_NAME, ByProtocol

    def details(message: Message) -> str:
        from streamdump.render.hexdump import hexdump
        from streamdump.render.tree import tree as fields

        lines = chain(
            fields(message, options.show_secrets, colours, width) if shown.tree else (),
            hexdump(message, options.show_secrets, colours, width) if shown.dump else (),
        )
        # A line as an object needs as much again as its text, and there may be a million
        return "".join("\n".join([*some, ""]) for some in iter(lambda: [*islice(lines, AT_ONCE)], []))

    @cache
    def longest(name: str) -> int:
        if name not in BY_NAME:
            return 0
        loaded = BY_NAME[name].loaded
        return max(map(len, (*loaded.names, *(layout.name for layout in loaded.layouts))))

    return {
        "info": ByProtocol(lambda one: one.loaded.info if one.loaded.info_with_context is None else one.loaded.info_with_context()),
        "times": shown.clock,
        "palette": colours,
        "columns": width,
        "after": details if shown.tree or shown.dump else None,
        "longest": longest,
        "inside": inspector.run.tls_manager.inside,
        "alarms": ByProtocol(lambda one: one.loaded.alarms),
        "asked": inspector.asked,
        "broken_off": inspector.run.broken_off,
        "unacknowledged": inspector.run.unacknowledged,
    }
