"""`streamdump FILE...`: the messages of captures, as lines, trees, dumps or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from cli.exits import ExitCode
from cli.help import brief
from cli.keys import key_logs
from cli.live import LiveRun, Wanted, check_without, list_interfaces
from cli.options import (
    CLOCKS,
    FORMS,
    LIVE,
    OTHER,
    READ,
    SHOWN,
    Colour,
    Files,
    Json,
    ListInterfaces,
    Looks,
    OnlyMatching,
    ReadFiles,
    Where,
    field_names,
    looks_of,
    one_of,
    packet_limit,
    whole,
)
from cli.output import columns, palette, write, write_text
from cli.parameters import Members, gathers
from cli.run import Asked, Run, about, blocks, lines_of
from dissect.errors import UsageError
from dissect.options import SETTINGS, Options

if TYPE_CHECKING:
    from cli.writing import Selection
    from dissect.model import Message, Record
    from dissect.render.fields import FieldLines
    from dissect.render.terminal import Palette


@gathers
def read(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    tree: Annotated[bool, typer.Option("-V", help="every field, with its bytes and where they are", rich_help_panel=SHOWN)] = False,
    dump: Annotated[bool, typer.Option("-x", help="hex dump of each frame, with field names", rich_help_panel=SHOWN)] = False,
    json: Json = False,
    form: Annotated[
        list[str] | None,
        typer.Option(
            "-T",
            metavar="FORM",
            help="text (default), json, or fields: those of -e",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=lambda: list(FORMS),
        ),
    ] = None,
    wanted_fields: Annotated[
        list[str] | None,
        typer.Option(
            "-e",
            metavar="NAME",
            help="a value to show with -T fields, again for more; names as in -Y",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=field_names,
        ),
    ] = None,
    manner: Annotated[
        list[str] | None,
        typer.Option(
            "-E",
            metavar="HOW",
            help="how -T fields looks: header=y, separator=, (or /t), quote=d, s or n",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=lambda: ["header=y", "separator=,", "quote=d"],
        ),
    ] = None,
    where: Where = None,
    clock: Annotated[
        str,
        typer.Option(
            "-t",
            metavar="FORM",
            help="times: r relative, ad local, ud UTC, e epoch",
            rich_help_panel=SHOWN,
            autocompletion=lambda: list(CLOCKS),
        ),
    ] = "r",
    quiet: Annotated[bool, typer.Option("-q", help="only the closing line about the whole run", rich_help_panel=SHOWN)] = False,
    count: Annotated[
        str | None, typer.Option("-c", metavar="N", help="stop after N messages", rich_help_panel=READ, show_default=False)
    ] = None,
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
    forms = {one_of("-T", one, FORMS) for one in form or ()} | ({"json"} if json else set())
    if len(forms) > 1:
        raise UsageError(f"{' and '.join(sorted(forms, reverse=True))} were both asked for; choose one")
    json, chosen = forms == {"json"}, forms == {"fields"}
    one_of("-t", clock, CLOCKS)
    if (json or chosen) and (tree or dump):
        raise UsageError(
            f"{'-V' if tree else '-x'} is a view for people; " + ("-e names the fields" if chosen else "the JSON has all fields already")
        )
    if chosen and not wanted_fields:
        raise UsageError("-T fields shows nothing without -e NAME, such as -e number -e name -e latency")
    if (wanted_fields or manner) and not chosen:
        raise UsageError(f"{'-e' if wanted_fields else '-E'} belongs to -T fields")
    looks = looks_of(manner or ())
    left = None if count is None else whole("-c", count)
    values = json or chosen or tree or dump
    options = replace(
        options,
        # Lines of text count them, or show what is text as such
        bytes_as=options.bytes_as if values else "hex",
        detail=tree or dump,
        bodies=(values or options.findings) and not quiet,
        keylog=key_logs(options.keylog, bool(live.interfaces)),
    )
    asked = None if where is None else Asked(where, options)
    if asked is not None and asked.reads_fields:
        options = replace(options, bodies=True)
    lines = _lines(wanted_fields or (), looks, options) if chosen else None
    quiet = quiet or (writes and not (forms or tree or dump))
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
            show = _fields(lines, looks.header, failed)
        elif json:
            show = _json(failed)
        else:
            show, begin = _text(clock, palette(colour), tree, dump, options.show_secrets, run.inspector.gate.inside, failed)

        def one(batch: list[Record]) -> bool:
            nonlocal left, begin
            if begin is not None and batch:
                begin(batch[0])
                begin = None
            if lines is not None:
                lines.columns.learn(batch)
            whole = batch
            if asked is not None:
                batch = asked.select(batch, failed)
            if left is not None:
                batch, left = _first(batch, left) if left else ([], 0)
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


def _json(failed: Callable[[Record, str], None]) -> Callable[[list[Record]], None]:
    from dissect.render.jsonl import encode

    def show(batch: list[Record]) -> None:
        for block in blocks(encode, batch, failed):
            write(block)

    return show


def _lines(names: Sequence[str], looks: Looks, options: Options) -> FieldLines:
    from dissect.filter import compile_columns
    from dissect.render.fields import FieldLines

    return FieldLines(compile_columns(names, options), looks.separator, looks.quote)  # type: ignore[arg-type]


def _fields(lines: FieldLines, header: bool, failed: Callable[[Record, str], None]) -> Callable[[list[Record]], None]:
    if header:
        write_text(lines.header())

    def show(batch: list[Record]) -> None:
        for block in blocks(lines.lines, batch, failed):
            write_text(block)

    return show


def _text(
    clock: str,
    colours: Palette,
    tree: bool,
    dump: bool,
    show_secrets: bool,
    inside: Mapping[int, str],
    failed: Callable[[Record, str], None],
) -> tuple[Callable[[list[Record]], None], Callable[[Record], None]]:
    """Shows lines; and what is to be told of the first record, which need not be shown."""
    from dissect.protocols import PROTOCOLS
    from dissect.render.hexdump import hexdump
    from dissect.render.summary import Lines
    from dissect.render.tree import tree as fields

    width = columns()

    def details(message: Message) -> str:
        lines = [*fields(message, show_secrets, colours, width)] if tree else []
        if dump:
            lines += hexdump(message, show_secrets, colours, width)
        return "\n".join([*lines, ""])

    says = {protocol.name: protocol.says if protocol.teller is None else protocol.teller() for protocol in PROTOCOLS}

    @cache
    def longest(name: str) -> int:
        return max((len(layout.name) for protocol in PROTOCOLS if protocol.name == name for layout in protocol.layouts), default=0)

    lines = Lines(
        says,
        clock,  # type: ignore[arg-type]
        colours,
        width,
        details if tree or dump else None,
        longest,
        inside,
    )
    started = False

    def show(batch: list[Record]) -> None:
        nonlocal started
        text = lines_of(lines, batch, failed)
        write_text(text if started or width is None else lines.header() + text)
        started = True

    return show, lines.begin


def _first(batch: list[Record], count: int) -> tuple[list[Record], int]:
    """The records up to the message number `count`, and how many messages are still to come."""
    from dissect.model import Message

    for index, record in enumerate(batch):
        if type(record) is Message:
            count -= 1
            if not count:
                return batch[: index + 1], 0
    return batch, count


def _version() -> int:
    import dissect

    write_text(f"streamdump {dissect.__version__}\n")
    return ExitCode.DONE
