"""`streamdump diagnose FILE...`: why it does not work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdump.options import Options
from streamdump.units import count

from ..exits import ExitCode
from ..live import LiveOptions, LiveRun, run_of
from ..options import (
    SHOWN,
    Colour,
    Enough,
    Files,
    Html,
    Json,
    ReadFiles,
    TimeForm,
    Where,
    check_clock,
    completion,
    enough_of,
    inputs,
    one_of,
)
from ..output import columns, palette, say, write_text
from ..parameters import FILES, LIMITS, READING, TIMES, Members, gathers
from ..run import STOPPED, FileRun, asked_of, print_json

if TYPE_CHECKING:
    from streamdump.diagnose.engine import Outcome
    from streamdump.model import ConversationRow, Finding, Record
    from streamdump.render.html.sequence_diagrams import SequenceDiagrams

FAIL_ON = ("error", "warning")


@gathers
def diagnose(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    json: Json = False,
    where: Where = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="SEVERITY",
            help="exit code 1 if a finding shown is at least this severe: error or warning",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=completion(FAIL_ON),
        ),
    ] = None,
    clock: TimeForm = "r",
    enough: Enough = None,
    html: Html = None,
    live: LiveOptions,
    options: Annotated[Options, Members(*READING, *FILES, *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Report what went wrong, with cause, advice and evidence, and how far each connection got."""
    if fail_on is not None:
        one_of("--fail-on", fail_on, FAIL_ON)
    check_clock(clock)
    left = enough_of(enough)
    names = inputs(read_files, files)
    options = replace(options, bytes_as="omit", findings=True)
    with run_of(live, names, options, colour, asked_of(where, options), left, prints=json, page=html) as run:
        run.current_commands = ("diagnose", "conversations")
        view = _View(run, json, html is not None, clock)
        run.leaving = view.leave
        run.each(view.feed)
        view.end()
        if html is not None:
            view.write(html)
        code = run.end()
    if code == ExitCode.DONE and fail_on is not None and view.as_bad_as(fail_on):
        return ExitCode.FOUND
    return code


def _diagrams() -> SequenceDiagrams:
    """Return the diagrams of a page; imported only where one is written."""
    from streamdump.protocols import PROTOCOLS
    from streamdump.render.html.sequence_diagrams import SequenceDiagrams

    return SequenceDiagrams({one.name: one.loaded.info for one in PROTOCOLS})


class _View:
    """Shows findings: as they come in JSON and of an interface, else the worst first at the end; then the conversations."""

    def __init__(self, run: FileRun | LiveRun, json: bool, paged: bool, clock: Any) -> None:
        from streamdump.render.clock import Clock
        from streamdump.render.findings import FindingGroups

        assert run.inspector.diagnoser is not None
        self.run, self.asked = run, run.asked
        self.diagnoser = run.inspector.diagnoser
        self.json = json
        self.palette = palette(run.colour)
        self.findings = FindingGroups()
        self.diagrams = _diagrams() if paged else None
        """What a page shows besides."""
        self.clock = Clock(clock)
        run.inspector.begins.append(self.clock.begin)
        self.shown = {"error": 0, "warning": 0, "note": 0}
        self.conversations: set[int] = set()

    def feed(self, records: list[Record]) -> bool:
        """Note, or show, the findings among these; return whether that is enough."""
        from streamdump.model import Finding

        records = self.run.first(records)
        found: list[Record] = [one for one in records if type(one) is Finding]
        if self.diagrams is not None:
            self.diagrams.add(records)
            self.diagrams.drop([number for number, one in self.diagnoser.summaries.items() if one.worst != "error"])
        if self.asked is not None:
            self.asked.watch(records)
            found = self.asked.select(found, self.run.failed)
        for one in found:
            self.shown[one.severity] += 1  # type: ignore[union-attr]
        self.conversations.update(one.conversation for one in found if one.conversation is not None)
        if found:
            if self.diagrams is not None or not (self.json or isinstance(self.run, LiveRun)):
                self.findings.add(found)  # type: ignore[arg-type]
            self._show(found)  # type: ignore[arg-type]
        return self.run.left == 0

    def _show(self, found: list[Finding]) -> None:
        if self.json:
            print_json(found, self.run.failed, self.run.colour)
        elif isinstance(self.run, LiveRun):
            from streamdump.render.findings import COLUMNS, finding_lines

            for one in found:
                lines = finding_lines(one, columns(self.run.colour) or COLUMNS, self.palette, self.clock)
                write_text("".join(f"{line}\n" for line in [*lines, ""]))

    def leave(self, rows: list[ConversationRow]) -> None:
        """Forget these conversations."""
        gone = [row.conversation for row in rows]
        self.diagnoser.forget(gone)
        self.conversations.difference_update(gone)

    def end(self) -> None:
        """Show how the conversations went, and for a capture the findings."""
        summaries = self._summaries()
        if self.json:
            rows = {one.conversation: one for one in summaries}
            for some in self.run.inspector.each_rows():
                mine = [row for row in some if row.conversation in rows]
                for row in mine:
                    one = rows[row.conversation]
                    row.facts = {**row.facts, "reached": one.reached, "went": one.ended, "worst": one.worst}
                print_json(mine, self.run.failed, self.run.colour)
        else:
            from streamdump.render.findings import FindingGroups, page

            # Those of an interface were shown
            findings = FindingGroups() if isinstance(self.run, LiveRun) else self.findings
            write_text(page(findings, summaries, columns(self.run.colour), self.palette, self.clock, self.run.files()))
        found = [count(number, name) for name, number in self.shown.items() if number]
        nothing = "nothing wrong" if self.asked is None else "nothing that matches -Y"
        counters = self.run.inspector.counters
        if counters.packets:
            say(f"found: {', '.join(found) or (nothing if counters.messages else 'nothing, because no message could be decoded')}")

    def write(self, path: str) -> None:
        """Write the page, too."""
        from streamdump.render.html.reports import diagnosis

        shown = self.findings, self._summaries(), self.diagrams, self.run.files(), self.clock.base
        self.run.write_html(path, "diagnose", diagnosis, *shown)

    def _summaries(self) -> list[Outcome]:
        """How the conversations went; not where they were not read to their ends."""
        if self.run.stopped == STOPPED:
            return []
        return [one for one in self.diagnoser.so_far() if self.asked is None or one.conversation in self.conversations]

    def as_bad_as(self, severity: str) -> bool:
        """Whether something that was shown is an error, or at least a warning."""
        return bool(self.shown["error"] or (severity == "warning" and self.shown["warning"]))
