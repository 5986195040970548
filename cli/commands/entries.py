"""`streamdump entries FILE...`: the user messages in captures, one line each, with what became of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import UsageError, refuse
from streamdump.options import SETTINGS, Options
from streamdump.units import count

from ..live import LiveOptions, LiveRun, run_of
from ..options import (
    SHOWN,
    Colour,
    Enough,
    Files,
    Forms,
    Json,
    Manners,
    ReadFiles,
    TimeForm,
    WhereEntries,
    check_clock,
    entry_names,
    inputs,
)
from ..output import columns, palette, say, write, write_text
from ..parameters import Members, gathers
from ..run import asked_of, blocks
from ..showing import Shown, ViewForm, fields_view, form_of, json_view

if TYPE_CHECKING:
    from streamdump.entries import Entries
    from streamdump.layout.types import BytesAs
    from streamdump.model import Entry, Record

    from ..run import FileRun

AT_ONCE = 256
"""Entries that are made, selected and written together."""

ENTRY_COLUMNS = ("number", "relative", "stream", "partition", "offset", "publishing_id", "key", "size", "outcome", "latency", "body")
"""What -T tabs and -T csv show without -e."""

Show = Callable[[list["Entry"]], None]


@gathers
def entries(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    tree: Annotated[bool, typer.Option("-V", help="also all properties of each message", rich_help_panel=SHOWN)] = False,
    json: Json = False,
    form: Forms = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "-e",
            metavar="NAME",
            help="a key to show with -T fields (may be repeated), such as -e offset -e body",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=entry_names,
        ),
    ] = None,
    manner: Manners = None,
    raw: Annotated[bool, typer.Option("--raw", help="write the bytes of the bodies, one after the other", rich_help_panel=SHOWN)] = False,
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator",
            metavar="TEXT",
            help=r"what --raw writes after each body; \n, \t, \r, \0 and \xNN are read; default: \n",
            rich_help_panel=SHOWN,
            show_default=False,
        ),
    ] = None,
    where: WhereEntries = None,
    clock: TimeForm = "r",
    enough: Enough = None,
    live: LiveOptions,
    options: Annotated[Options, Members(*(name for name in SETTINGS if name not in ("exchanges", "findings", "host_names")))],
    colour: Colour = "auto",
) -> int:
    """Show the messages that applications published and were delivered, and what became of each."""
    form_given = form_of(Shown(tree, False, json, form, names, manner, clock, enough))
    check_clock(clock)
    refuse(
        (raw and (tree or form_given.given), "--raw writes bytes only; -V, -T and --json show entries in another form: choose one"),
        (raw and sys.stdout.isatty(), "--raw does not write raw bytes to a terminal; redirect them to a file, or pipe them to xxd"),
        (separator is not None and not raw, "--separator needs --raw"),
    )
    between = _bytes(separator if separator is not None else r"\n")
    inputs_given = inputs(read_files, files)
    asked = asked_of(where, options, entries=True)
    values = form_given.json or form_given.fields
    bytes_as = options.bytes_as
    options = replace(options, entries=True, bytes_as="raw", times=values or clock != "r")
    from streamdump.entries import Entries

    with run_of(live, inputs_given, options, colour, asked, prints=True, keeps_rows=False) as run:
        found = Entries(run.inspector.run.answers, isinstance(run, LiveRun) or any(reader.is_pipe for reader in run.readers))
        if raw:
            show = _raw(between)
        elif values:
            show = _values(form_given, names, options, bytes_as, run)
        else:
            show = _text(clock, tree, bytes_as, colour, run)
        view = _EntryView(run, found, show, form_given.left)
        run.tick = view.tick
        run.each(view.feed)
        if not view.enough:
            view.put(found.finish(run.stopped is not None))
        code = int(run.end())
    for line in _said(found):
        say(line)
    return code


class _EntryView:
    """Shows the entries of a run that are asked for, up to `left` of them."""

    def __init__(self, run: FileRun | LiveRun, found: Entries, show: Show, left: int | None) -> None:
        self._run = run
        self._found = found
        self._show = show
        self._left = left

    @property
    def enough(self) -> bool:
        return self._left == 0

    def feed(self, records: list[Record]) -> bool:
        """Show the entries that leave with these records; return whether that is enough."""
        return self.enough or self.put(self._found.add(records))

    def tick(self) -> None:
        """Show what has waited long enough."""
        if not self.enough and self.put(self._found.expire()) and isinstance(self._run, LiveRun):
            self._run.stopped = self._run.enough
            self._run.live.stop()

    def put(self, entries: Iterator[Entry]) -> bool:
        """Show entries, some at a time: a message may have a million; return whether that is enough."""
        while some := list(islice(entries, AT_ONCE)):
            some = self._run.select(some)
            if self._left is not None:
                some = some[: self._left]
                self._left -= len(some)
            if some:
                self._show(some)
            if self.enough:
                return True
        return False


def _values(form: ViewForm, names: list[str] | None, options: Options, bytes_as: BytesAs, run: FileRun | LiveRun) -> Show:
    """Shows JSON Lines, or chosen keys."""
    from streamdump.entries import rendered

    view = json_view(run.colour) if form.json else fields_view(names or ENTRY_COLUMNS, form, options, entries=True)
    run.inspector.begins.append(view.begin)
    if view.header:
        write_text(view.header)

    def show(entries: list[Entry]) -> None:
        view.learn(entries)
        view.show([rendered(one, bytes_as) for one in entries], run.failed)

    return show


def _text(clock: str, tree: bool, bytes_as: BytesAs, colour: str, run: FileRun | LiveRun) -> Show:
    """Shows lines."""
    from streamdump.render.entries import EntryLines

    width = columns(run.colour)
    lines = EntryLines(clock, palette(colour), width, bytes_as, tree, run.inspector.run.tls_manager.inside)  # type: ignore[arg-type]
    run.inspector.begins.append(lines.clock.begin)
    started = width is None

    def show(entries: list[Entry]) -> None:
        nonlocal started
        for block in blocks(lines.text, entries, run.failed):
            write_text(block if started else lines.header() + block)
            started = True

    return show


def _raw(separator: bytes) -> Show:
    """Writes bodies."""
    from streamdump.render.entries import raw_bodies

    return lambda entries: write(b"".join(raw_bodies(entries, separator)))


_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.)|$)", re.S)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def _bytes(text: str) -> bytes:
    """Return the bytes that a separator with escapes stands for."""

    def meant(escape: re.Match[str]) -> str:
        number, name = escape.groups()
        if number is None and name not in _NAMED:
            raise UsageError(rf"--separator {text}: {escape[0]} is not an escape; write \n, \t, \r, \0, \\ or \xNN")
        return _NAMED[name] if number is None else chr(0xDC00 + int(number, 16)) if int(number, 16) > 0x7F else chr(int(number, 16))

    return _ESCAPE.sub(meant, text).encode("utf-8", "surrogateescape")


def _said(found: Entries) -> Iterator[str]:
    """Yield the lines about entries after the closing line."""
    for protocol in sorted(found.without):
        yield f"{protocol} carries no user messages; streamdump FILE shows its requests and responses"
    for number, what in found.left_out():
        yield f"left out: {number:,} {what}"
    if found.incomplete_count:
        numbers = ", ".join(map(str, found.incomplete))
        more = ", ..." if found.incomplete_count > len(found.incomplete) else ""
        yield f"{count(found.incomplete_count, 'message')} damaged or cut, whose other entries are missing: {numbers}{more}"
    if found.given_up:
        yield f"the entries of {count(found.given_up, 'message')} were shown as pending: too many, or for too long, waited for a response"
