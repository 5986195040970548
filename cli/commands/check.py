"""`streamdump check CAPTURE|DIR...`: whether captures say what their golden files say they should."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from streamdump.cli.exits import ExitCode
from streamdump.cli.keys import key_logs
from streamdump.cli.options import (
    LIVE,
    OTHER,
    READ,
    CaptureFilter,
    Colour,
    Interfaces,
    Json,
    ReadFiles,
    WriteTo,
    inputs,
    one_of,
)
from streamdump.cli.output import palette, say, write, write_text
from streamdump.cli.parameters import READING, Members, gathers
from streamdump.errors import InterfaceError, InternalError, UsageError
from streamdump.options import Options
from streamdump.render.terminal import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from streamdump.golden.check import Checked, Source, Tasks
    from streamdump.golden.settings import CheckSettings
    from streamdump.model import Options
    from streamdump.render.terminal import Palette

CODES = {
    "unreadable": ExitCode.UNREADABLE,
    "internal error": ExitCode.INTERNAL,
    "different": ExitCode.FOUND,
    "no golden": ExitCode.FOUND,
}
"""The exit codes of outcomes; that of the first in this order counts."""

COMPARED = "What is compared"

ONLY = ("all", "handshake", "names")


class Compared(NamedTuple):
    """What of captures is compared."""

    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="WHAT",
            help="handshake, names or all (default)",
            rich_help_panel=COMPARED,
            show_default=False,
            autocompletion=lambda: list(ONLY),
        ),
    ] = None
    unordered: Annotated[bool, typer.Option("--unordered", help="responses may come in any order", rich_help_panel=COMPARED)] = False
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="heartbeats and pings too", rich_help_panel=COMPARED)] = False
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="FIELD",
            help="not this field: fields.chunk.timestamp, or its last part alone; again for more",
            rich_help_panel=COMPARED,
            show_default=False,
        ),
    ] = None
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="settings, else of the nearest pyproject.toml or streamdump.toml", rich_help_panel=COMPARED
        ),
    ] = None


@gathers
def check(
    *,
    captures: Annotated[
        list[str] | None,
        typer.Argument(metavar="CAPTURE|DIR...", help="captures, and folders that are searched for them", show_default=False),
    ] = None,
    read_files: ReadFiles = None,
    golden: Annotated[
        str | None,
        typer.Option("--golden", metavar="DIR", help="where the golden files are, else beside the captures", rich_help_panel=READ),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="write the golden files anew", rich_help_panel=OTHER)] = False,
    force: Annotated[bool, typer.Option("--force", help="--update also where CI is set", rich_help_panel=OTHER)] = False,
    compared: Compared,
    options: Annotated[Options, Members(*READING)],
    command: Annotated[
        str | None,
        typer.Option("--run", metavar="COMMAND", help="check what is said on -i while this runs", rich_help_panel=LIVE, show_default=False),
    ] = None,
    interfaces: Interfaces = None,
    capture_filter: CaptureFilter = None,
    write_to: WriteTo = None,
    json: Json = False,
    junit: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="a report for CI servers", rich_help_panel=OTHER)] = None,
    github: Annotated[bool, typer.Option("--github", help="annotations for GitHub", rich_help_panel=OTHER)] = False,
    colour: Colour = "auto",
) -> int:
    """Whether captures say what their golden files say they should."""
    from datetime import UTC, datetime

    from streamdump.golden.check import tasks, update_refused

    names = inputs(read_files, captures)
    if not names:
        raise UsageError("no capture given; streamdump check CAPTURE|DIR...")
    if "-" in names:
        raise UsageError("-: a golden file belongs to a file; standard input has no name for one")
    if json and github:
        raise UsageError("--json and --github both write to standard output; choose one")
    refused = update_refused(os.environ, force) if update else None
    if refused is not None:
        raise refused
    if force and not update:
        raise UsageError("--force belongs to --update")
    options = replace(options, keylog=key_logs(options.keylog, command is not None))
    chosen = Chosen(compared)
    began = datetime.now(UTC)
    run = _Run(chosen, json, github, colour)
    code = ExitCode.DONE
    if command is None:
        for given, option in ((interfaces, "-i"), (capture_filter, "-f"), (write_to, "-w")):
            if given:
                raise UsageError(f"{option} belongs to --run, which says what to check on an interface")
        run.files(tasks(names, golden), options, update)
    elif len(names) > 1 or not interfaces:
        raise UsageError("--run COMMAND takes -i INTERFACE, and one name: that of the capture whose golden file is meant")
    else:
        code = run.recorded(names[0], golden, command, interfaces, capture_filter, write_to, options, update)
    if junit is not None:
        run.junit(junit, began)
    return run.end(code)


class Chosen:
    """Settings of files with what the command line says on top."""

    def __init__(self, compared: Compared) -> None:
        from streamdump.golden.settings import field_name, read_settings

        if compared.only is not None:
            one_of("--only", compared.only, ONLY)
        self._compared = compared
        try:
            self._ignore = list(map(field_name, compared.ignore or ()))
        except UsageError as error:
            raise UsageError(f"--ignore {error}") from None
        self._one: CheckSettings | None = None
        self._kept: dict[Path, CheckSettings] = {}
        self._made: dict[int, CheckSettings] = {}
        self.used: set[str] = set()
        if compared.config is not None:
            from pathlib import Path

            self._one = read_settings(Path(compared.config))
            if self._one is None:
                raise UsageError(f"--config {compared.config}: there is no [tool.streamdump.check] in it")

    def of(self, capture: Path) -> CheckSettings:
        """The settings for one capture."""
        from streamdump.golden.settings import settings_for

        found = self._one if self._one is not None else settings_for(capture, self._kept)
        given = self._compared
        made = self._made[id(found)] = found.with_more(given.only, given.unordered or None, given.heartbeats or None, self._ignore)
        return made

    def tell_useless(self) -> None:
        """Say what was said of fields that no message had."""
        for field in sorted(set().union(*(one.said() for one in self._made.values())) - self.used):
            say(f"{field}: no message has this field, so what the settings say of it does nothing")


class _Run:
    """Checks, tells, and remembers what it told."""

    def __init__(self, chosen: Chosen, json: bool, github: bool, colour: str) -> None:
        self.chosen = chosen
        self.json = json
        self.github = github
        self.palette = palette(colour)
        self.found: list[tuple[Checked, float]] = []

    def files(self, work: Tasks, options: Options, update: bool) -> None:
        """Check captures that are files."""
        from streamdump.golden.check import capture_source

        for task in work.tasks:
            self.one(str(task.capture), task.golden, capture_source(task.capture, options), self.chosen.of(task.capture), update)
        for path in work.unused:
            self._unused(str(path))
        if work.others:
            say(f"{count(work.others, 'file')} left out that only {'has the name' if work.others == 1 else 'have the names'} of captures")

    def one(self, name: str, golden: Path, source: Source, settings: CheckSettings, update: bool) -> None:
        from time import monotonic

        from streamdump.golden.check import check as compare

        since = monotonic()
        checked = compare(name, golden, source, settings, update, self.chosen.used)
        self.found.append((checked, monotonic() - since))
        self._tell(checked)
        if checked.empty:
            say(f"{golden}: holds no conversation, for nothing in {name} could be compared")

    def recorded(
        self,
        name: str,
        golden: str | None,
        command: str,
        interfaces: list[str],
        expression: str | None,
        write_to: str | None,
        options: Options,
        update: bool,
    ) -> ExitCode:
        """Check what is said on interfaces while a command runs."""
        import subprocess
        from pathlib import Path

        from streamdump.golden.check import SUFFIX, golden_of, record_source
        from streamdump.golden.record import Recorder

        path = Path(name.removesuffix(SUFFIX))
        place = golden_of(path if golden is None else Path(golden) / path.name)
        settings = self.chosen.of(path)
        options = replace(options, bytes_as="raw")
        try:
            recorder = Recorder(interfaces, options, expression)
        except InterfaceError as error:
            say(str(error))
            if isinstance(error.__cause__, PermissionError):
                for way in _ways(name, golden, command, interfaces, expression):
                    say(way)
            return ExitCode.NO_INTERFACE
        if write_to is not None:
            recorder.write_to(write_to)
            say(f"-w {write_to}: packets are written as captured, passwords and tokens included")
        ended = None
        try:
            with recorder:
                # what it prints is no result of ours
                ended = subprocess.run(["/bin/sh", "-c", command], stdout=sys.stderr.fileno(), check=False).returncode
        except (InterfaceError, InternalError) as error:
            say(str(error))
            return ExitCode.NO_INTERFACE if isinstance(error, InterfaceError) else ExitCode.INTERNAL
        if ended:
            say(f"--run {command}: ended with {ended}")
            return ExitCode.FOUND
        self.one(str(path), place, record_source(recorder.records, recorder.rows), settings, update)
        return ExitCode.DONE

    def _tell(self, one: Checked) -> None:
        from streamdump.golden import report

        tell(one, self.palette, self.json, self.github)
        if self.github and not self.json:
            write_text("".join(f"{line}\n" for line in report.for_github(one)))

    def _unused(self, path: str) -> None:
        from streamdump.golden import report
        from streamdump.render.terminal import visible

        text = f"{path}: there is no capture that this golden file belongs to"
        if self.json:
            say(text)
            return
        write_text(f"{visible(text)}\n")
        if self.github:
            write_text(f"{report.unused_annotation(path)}\n")

    def _unread_tls(self) -> list[str]:
        """What was not compared for want of keys."""
        from collections import Counter

        names = Counter(name for one, _ in self.found for name in one.unread)
        if not names:
            return []
        told = ", ".join(f"{number:,} {name}" if len(names) > 1 else name for name, number in names.most_common())
        return [
            f"{count(names.total(), 'conversation')} not read, and not compared ({told})",
            *(["--keylog FILE reads TLS with its keys"] if "TLS" in names else []),
        ]

    def junit(self, path: str, began: datetime) -> None:
        """Write the report for CI servers."""
        from pathlib import Path

        from streamdump.capture.blocks import explain
        from streamdump.capture.whole import in_place_of
        from streamdump.golden.report import junit

        try:
            with in_place_of(Path(path), 0o666, as_is=True) as file:
                file.write(junit(self.found, began))
        except OSError as error:
            raise UsageError(f"--junit {path}: cannot be written: {explain(error)}") from error

    def end(self, code: ExitCode) -> ExitCode:
        """The closing line, and the exit code."""
        from collections import Counter

        outcomes = Counter(one.outcome for one, _ in self.found)
        if self.found:
            words = {
                "same": "as the golden files say" if outcomes["same"] > 1 else "as its golden file says",
                "no golden": "without a golden file",
                "unchanged": "with a golden file that stays as it was",
                "written": f"golden file{'' if outcomes['written'] == 1 else 's'} written",
            }
            parts = [f"{number:,} {words.get(outcome, outcome)}" for outcome, number in outcomes.items()]
            say("; ".join([f"{count(len(self.found), 'capture')}: {', '.join(parts)}", *self._unread_tls()]))
        self.chosen.tell_useless()
        return code if code is not ExitCode.DONE else code_of([one for one, _ in self.found])


def code_of(found: Sequence[Checked]) -> ExitCode:
    """The exit code that tells what became of captures."""
    if any(one.missing_codec for one in found):
        return ExitCode.USAGE
    outcomes = {one.outcome for one in found}
    return next((code for outcome, code in CODES.items() if outcome in outcomes), ExitCode.DONE)


def tell(one: Checked, colours: Palette, json: bool, github: bool = False, then: str = "golden") -> None:
    """Say what became of a capture."""
    from streamdump.golden import report
    from streamdump.render.terminal import visible

    if json:
        from streamdump.render.jsonl import encode

        write(encode([one]))
    if one.outcome in report.ERRORS:
        say(one.error or "")
    elif not json:
        lines = report.text(one, colours.bad, colours.dim, colours.reset, then)
        lines = [visible(line) if not colours.reset else line for line in lines]
        write_text("".join(f"{report.defused(line) if github else line}\n" for line in lines))


def _ways(name: str, golden: str | None, command: str, interfaces: list[str], expression: str | None) -> list[str]:
    """What to do without the permission to capture."""
    from shlex import quote

    file = "run.pcap"
    folder = "" if golden is None else f" --golden {quote(golden)}"
    return [
        "with tcpdump beside the command, and the golden file named after what it writes:",
        f"  sudo tcpdump --immediate-mode -U -i {quote(interfaces[0])} -w {file} {quote(expression or 'tcp')} &",
        f"  {command}; sleep 1; sudo kill -INT $!",
        f"  streamdump check {file}{folder}    # its golden file is {file}.golden, not {name}.golden",
        "or with a Python of your own that may capture: see streamdump -i lo",
    ]
