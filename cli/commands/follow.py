"""`streamdump follow N FILE...`: one conversation from its beginning to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdump.errors import UsageError, refuse
from streamdump.options import SETTINGS, Options
from streamdump.render.terminal import PLAIN, those
from streamdump.units import count, duration_text

from ..exits import ExitCode
from ..live import LiveOptions, LiveRun, run_of
from ..options import READ, SHOWN, Colour, Files, Html, ReadFiles, Where, completion, inputs, natural
from ..output import columns, palette, say, write, write_text
from ..parameters import Members, gathers
from ..run import READY, FileRun, asking, lines_of
from ..showing import Failed, RecordView, Showing, Shown, ViewForm, form_of, options_for, text_settings, view_of_values

if TYPE_CHECKING:
    from streamdump.model import ConversationRow, Head, Message, Record
    from streamdump.protocols.compare_rules import HandshakeProgress
    from streamdump.render.html.reports import FollowRow
    from streamdump.render.terminal import Palette

SIDES = ("client", "server")


@gathers
def follow(
    *,
    number: Annotated[str, typer.Argument(metavar="N", help="number of the conversation, as shown by all views", show_default=False)],
    files: Files = None,
    read_files: ReadFiles = None,
    ladder: Annotated[bool, typer.Option("--ladder", help="show a sequence diagram", rich_help_panel=SHOWN)] = False,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="print a sequence diagram in Mermaid syntax, for a report", rich_help_panel=SHOWN)
    ] = False,
    raw: Annotated[
        str | None,
        typer.Option(
            "--raw",
            metavar="SIDE",
            help="write the bytes of messages from client, server or an ADDRESS:PORT, with secrets overwritten",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=completion(SIDES),
        ),
    ] = None,
    html: Html = None,
    shown: Shown,
    where: Where = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="ready",
            help="only the handshake: stop at the response that opens the connection",
            rich_help_panel=READ,
            show_default=False,
            autocompletion=completion(("ready",)),
        ),
    ] = None,
    live: LiveOptions,
    options: Annotated[Options, Members(*SETTINGS)],
    colour: Colour = "auto",
) -> int:
    """Show one conversation, with the time since the previous message."""
    wanted = conversation_number(number)
    form = form_of(shown)
    _choose(shown, form, ladder, mermaid, raw)
    if until not in (None, "ready"):
        raise UsageError(f"--until {until}: must be ready")
    names = inputs(read_files, files)
    options = options_for(shown, form, options)
    asked, options = asking(where, replace(options, detail=options.detail or raw is not None))
    options = replace(options, wanted=_only(wanted, options.wanted))
    bytes_of = None if raw is None else _Raw(raw, options.show_secrets)
    view = view_of_values(shown, form, options, colour) if bytes_of is None else RecordView(bytes_of.show)
    handshake = None if until is None else Handshake()
    with run_of(live, names, options, colour, asked, form.left, page=html) as run:
        page = None if html is None else _Page(text_settings(shown, options, PLAIN, None, run.inspector))
        if page is not None:
            run.inspector.begins.append(page.begin)
        view = view or _text(shown, options, palette(colour), run, ladder, mermaid)
        showing = Showing(run, view)
        met = False

        def one(batch: list[Record]) -> bool:
            nonlocal met
            batch = [record for record in batch if record.conversation == wanted]
            met = met or bool(batch)
            if handshake is not None:
                batch = handshake.until_ready(batch)
            chosen = showing.chosen(batch)
            if page is not None:
                page.add(batch, chosen)
            showing.show(chosen)
            if handshake is not None and handshake.ready:
                run.enough = READY
                return True
            return run.left == 0

        run.each(one)
        if page is not None and html is not None and met:
            page.write(html, run, wanted)
        lines = [] if handshake is None or not met else [f"conversation {wanted}: {handshake.summary()}"]
        lines += [] if bytes_of is None else bytes_of.summary()
        if run.stopped is None and asked is None and run.left != 0:
            lines += view.finish(run.inspector.run.end_ns)
        if met:
            return run.end(lines)
        row = next((row for rows in run.inspector.each_rows() for row in rows if row.conversation == wanted), None)
        code = run.end([nothing_of(row, wanted, len(run.inspector.table))])
        return ExitCode.USAGE if row is None and code == ExitCode.DONE else code


def conversation_number(text: str) -> int:
    number = natural(text)
    if number is None:
        raise UsageError(f"follow {text}: not a conversation number; streamdump conversations FILE lists them, from 0 on")
    return number


def _only(number: int, wanted: Callable[[Head], bool] | None) -> Callable[[Head], bool]:
    """Return a predicate for the wanted messages of one conversation."""
    return lambda head: head.conversation == number and (wanted is None or wanted(head))


def _choose(shown: Shown, form: ViewForm, ladder: bool, mermaid: bool, raw: str | None) -> None:
    """Raises `UsageError` where several forms were asked for, or bytes for a terminal."""
    ways = [("--ladder", ladder), ("--mermaid", mermaid), ("--raw", raw is not None)]
    ways += [("-V", shown.tree), ("-x", shown.dump)] if ladder or mermaid or raw is not None else []
    ways += [("-T json" if form.json else "-T fields", form.json or form.fields)]
    asked = [name for name, given in ways if given]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} cannot be combined; choose one")
    if raw is not None:
        refuse(
            (raw not in SIDES and ":" not in raw, f"--raw {raw}: must be client, server, or an endpoint such as 192.0.2.1:5552"),
            (sys.stdout.isatty(), "--raw does not write raw bytes to a terminal; redirect them to a file, or pipe them to xxd"),
        )


def _text(shown: Shown, options: Options, colours: Palette, run: FileRun | LiveRun, ladder: bool, mermaid: bool) -> RecordView:
    """Shows lines, or a sequence diagram."""
    from streamdump.render.follow import DRAWN, FollowLines, MermaidDiagram, TextDiagram

    kind = MermaidDiagram if mermaid else TextDiagram if ladder else FollowLines
    view = kind(**text_settings(shown, options, PLAIN if mermaid else colours, None if mermaid else columns(run.colour), run.inspector))
    if isinstance(view, TextDiagram):
        view.plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    run.view = view
    if shown.clock == "d":
        run.inspector.watch = view.clock.watch
    drawn = 0

    def show(batch: list[Record], failed: Failed) -> None:
        nonlocal drawn
        text = lines_of(view, batch, failed)
        if not drawn:
            text = "".join(f"{line}\n" for line in view.opening()) + text
        write_text(text)
        if isinstance(view, MermaidDiagram) and drawn < DRAWN <= drawn + len(text):
            say(
                f"Mermaid draws at most {DRAWN:,} characters unless maxTextSize is raised; shorten the diagram with -c, -Y or --until ready"
            )
        drawn += len(text)

    return RecordView(show, view.clock.begin, view.learn, finish=view.credit.finish)


def nothing_of(row: ConversationRow | None, wanted: int, known: int) -> str:
    """Return why nothing is shown of a conversation; `known` is the number of conversations."""
    if row is None:
        others = f"{count(known, 'conversation')}, numbered from 0; streamdump conversations lists them" if known else "no conversations"
        return f"no conversation {wanted}: the capture has {others}"
    if row.protocol:
        return f"conversation {wanted} has no messages"
    what = row.name or ("it has no data" if not any(row.bytes) else "unknown protocol; -d sets one")
    return f"conversation {wanted} is not decoded: {what}"


class _Page:
    """The records of a conversation as a page."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from streamdump.render.follow import FollowLines

        self._lines = FollowLines(**settings)
        self._begin = 0
        self._rows: list[FollowRow] = []

    def begin(self, time_ns: int) -> None:
        """Count seconds from the first packet of the capture."""
        self._begin = time_ns

    def add(self, records: list[Record], shown: list[Record]) -> None:
        """Add those of these records that are shown."""
        from streamdump.model import Finding
        from streamdump.render.findings import places_of
        from streamdump.render.html.reports import FollowRow

        self._lines.learn(records)
        for record in shown:
            mark, name, latency_ns, text = self._lines.content(record)
            way = {"client": ">", "server": "<"}.get(getattr(record, "sender", None) or "", "")
            # A finding has a number of its own
            number, place = None if isinstance(record, Finding) else record.number, None
            if isinstance(record, Finding):
                text = f"{record.severity}: {record.cause} ({record.rule})"
                place = next((one for one in places_of(record) if one.name.startswith("message")), None)
            self._rows.append(FollowRow(number, max(0, record.time_ns - self._begin), way, name, mark, text, latency_ns, place))

    def write(self, path: str, run: FileRun | LiveRun, number: int) -> None:
        """Write the page."""
        from streamdump.render.html.reports import following

        self._lines.credit.accounts.finish(run.inspector.run.end_ns)
        credit = self._lines.credit.accounts
        run.write_html(path, f"follow {number}", following, f"Conversation {number}", self._rows, credit, self._begin)


class _Raw:
    """Writes the bytes of one side."""

    def __init__(self, side: str, show_secrets: bool) -> None:
        self._side = side
        self._show_secrets = show_secrets
        self._met = False
        self._missing = 0
        self._hidden = False

    def show(self, batch: list[Record], failed: Failed) -> None:
        """Write those of its messages that are among these records."""
        from streamdump.model import Gap, Message
        from streamdump.render.follow import raw

        for record in batch:
            if self._side not in (getattr(record, "sender", None), record.src):
                continue
            if isinstance(record, Message):
                self._met = True
                data = raw(record, self._show_secrets)
                self._hidden = self._hidden or data != (record.raw or {}).get("frame", b"")
                self._missing += record.size - len(data)
                write(data)
            elif isinstance(record, Gap) and not record.in_frame:
                self._missing += record.size or 0

    def summary(self) -> list[str]:
        silent = f"--raw {self._side}: it sent no message; if it is unknown which side is the client, give an address and port"
        return those(
            (not self._met, silent),
            (self._hidden, "secrets were overwritten with *; --show-secrets keeps them"),
            (self._missing, f"{count(self._missing, 'byte')} of this side are missing: lost, skipped or not kept"),
        )


class Handshake:
    """How far a conversation got with opening a connection."""

    def __init__(self) -> None:
        self.ready = False
        self._handshake: HandshakeProgress | None = None
        self._asked: dict[int, str] = {}
        self._first: int | None = None
        self._last: int = 0
        self._messages = 0

    def until_ready(self, records: list[Record]) -> list[Record]:
        """The records up to the message that opens the connection."""
        from streamdump.model import Message

        for index, record in enumerate(records):
            if self._first is None:
                self._first = record.time_ns
            if isinstance(record, Message):
                self._messages += 1
                self._take(record)
                self._last = record.time_ns
            if self.ready:
                return records[: index + 1]
        return records

    def _take(self, message: Message) -> None:
        from streamdump.protocols import BY_NAME
        from streamdump.protocols.compare_rules import HandshakeProgress

        if self._handshake is None:
            self._handshake = HandshakeProgress(BY_NAME[message.protocol].loaded.compare_rules)
        if message.kind == "request" and message.name in self._handshake.names:
            self._asked[message.number] = message.name
            self._handshake.unanswered(message.name)
        asked = None if message.request is None else self._asked.pop(message.request, None)
        if asked is not None and message.outcome is not None:
            self.ready = self._handshake.answered(asked, message.outcome)

    def summary(self) -> str:
        """What became of it."""
        if self.ready:
            took = duration_text(self._last - (self._first or 0))
            return f"ready after {took} and {count(self._messages, 'message')}"
        if self._handshake is None or self._handshake.step is None:
            return f"no handshake in {count(self._messages, 'message')}; the capture may start after it"
        return f"never ready; the last step was {self._handshake.step}"
