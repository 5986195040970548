"""Compares captures and reports the results, for `check` and `diff`, which import it when they run: it imports what compares."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING

from streamdump.capture.atomic_files import in_place_of
from streamdump.capture.blocks import explain
from streamdump.capture.write import is_input
from streamdump.errors import InterfaceError, InternalError, UsageError
from streamdump.golden import report
from streamdump.golden.check import SUFFIX, Checked, Source, Tasks, capture_source, check, golden_of, record_source
from streamdump.golden.settings import ONLY, CheckSettings, field_name, read_settings, settings_for
from streamdump.options import Options
from streamdump.render.jsonl import encode
from streamdump.render.terminal import visible
from streamdump.units import count

from .exits import ExitCode, code_of
from .options import one_of
from .output import palette, say, write_json, write_text

if TYPE_CHECKING:
    from .commands.check import Compared

CODES = {
    "unreadable": ExitCode.UNREADABLE,
    "internal error": ExitCode.INTERNAL,
    "different": ExitCode.FOUND,
    "no golden": ExitCode.FOUND,
}
"""The exit codes of outcomes; that of the first in this order counts."""


class Chosen:
    """Settings of files with what the command line says on top."""

    def __init__(self, compared: Compared) -> None:
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
            self._one = read_settings(Path(compared.config))
            if self._one is None:
                raise UsageError(f"--config {compared.config}: no [tool.streamdump.check] section; add one, or name another file")

    def of(self, capture: Path) -> CheckSettings:
        """The settings for one capture."""
        found = self._one if self._one is not None else settings_for(capture, self._kept)
        given = self._compared
        made = self._made[id(found)] = found.with_more(given.only, given.unordered or None, given.heartbeats or None, self._ignore)
        return made

    def report_unused(self) -> None:
        """Report settings for fields that no message had."""
        for field in sorted(set().union(*(one.named_fields() for one in self._made.values())) - self.used):
            say(f"{field}: no message has this field, so its settings have no effect")


class CheckRun:
    """Compares captures, reports and keeps the results."""

    def __init__(self, chosen: Chosen, json: bool, github: bool, colour: str, junit: str | None) -> None:
        self.chosen = chosen
        self._junit = junit
        self.json = json
        self.github = github
        self.colour = colour
        self.found: list[tuple[Checked, float]] = []

    def files(self, work: Tasks, options: Options, update: bool) -> None:
        """Check captures that are files."""
        for task in work.tasks:
            self.one(str(task.capture), task.golden, capture_source(task.capture, options), self.chosen.of(task.capture), update)
        for path in work.unused:
            self._unused(str(path))
        if work.others:
            say(f"{count(work.others, 'file')} skipped: named as captures, but not in a capture format")

    def one(self, name: str, golden: Path, source: Source, settings: CheckSettings, update: bool) -> None:
        if self._junit is not None and is_input(self._junit, (name, str(golden))):
            raise UsageError(f"--junit {self._junit}: is an input; inputs are never overwritten")
        since = monotonic()
        checked = check(name, golden, source, settings, update, self.chosen.used)
        self.found.append((checked, monotonic() - since))
        report_one(checked, self.colour, self.json, self.github)
        if checked.empty:
            say(f"{golden}: contains no conversations, because nothing in {name} could be compared")

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
        """Compare what interfaces carry while a command runs."""
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
            say(f"-w {write_to}: writes packets as captured, including passwords and tokens")
        ended = None
        try:
            with recorder:
                # what it prints is no result of ours
                ended = subprocess.run(["/bin/sh", "-c", command], stdout=sys.stderr.fileno(), check=False).returncode
        except (InterfaceError, InternalError) as error:
            say(str(error))
            return code_of(error)
        if ended:
            say(f"--run {command}: exited with status {ended}")
            return ExitCode.FOUND
        self.one(str(path), place, record_source(recorder.records, recorder.rows), settings, update)
        return ExitCode.DONE

    def _unused(self, path: str) -> None:
        text = f"{path}: no capture for this golden file; restore the capture or delete the file"
        if self.json:
            say(text)
            return
        write_text(f"{visible(text)}\n")
        if self.github:
            write_text(f"{report.unused_annotation(path)}\n")

    def _unread_tls(self) -> list[str]:
        """What was not compared for want of keys."""
        names = Counter(name for one, _ in self.found for name in one.unread)
        if not names:
            return []
        kinds = ", ".join(f"{number:,} {name}" if len(names) > 1 else name for name, number in names.most_common())
        return [
            f"{count(names.total(), 'conversation')} not decoded and not compared ({kinds})",
            *(["--keylog FILE decrypts TLS"] if "TLS" in names else []),
        ]

    def junit(self, began: datetime) -> None:
        """Write the report for CI servers, if one is asked for."""
        if self._junit is None:
            return
        try:
            with in_place_of(Path(self._junit), 0o666, as_is=True) as file:
                file.write(report.junit(self.found, began))
        except OSError as error:
            raise UsageError(f"--junit {self._junit}: cannot be written: {explain(error)}") from error

    def end(self, code: ExitCode) -> ExitCode:
        """The closing line, and the exit code."""
        outcomes = Counter(one.outcome for one, _ in self.found)
        if self.found:
            words = {
                "same": "match their golden files" if outcomes["same"] > 1 else "matches its golden file",
                "no golden": "without a golden file",
                "unchanged": "with an unchanged golden file",
                "written": f"golden file{'' if outcomes['written'] == 1 else 's'} written",
            }
            parts = [f"{number:,} {words.get(outcome, outcome)}" for outcome, number in outcomes.items()]
            say("; ".join([f"{count(len(self.found), 'capture')}: {', '.join(parts)}", *self._unread_tls()]))
        self.chosen.report_unused()
        return code if code is not ExitCode.DONE else code_of_results([one for one, _ in self.found])


def code_of_results(found: Sequence[Checked]) -> ExitCode:
    """Return the exit code for the results."""
    if any(one.missing_codec for one in found):
        return ExitCode.USAGE
    outcomes = {one.outcome for one in found}
    return next((code for outcome, code in CODES.items() if outcome in outcomes), ExitCode.DONE)


def report_one(one: Checked, colour: str, json: bool, github: bool = False, then: str = "golden") -> None:
    """Report the result of one capture."""
    if json:
        write_json(encode([one]), colour)
    if one.outcome in report.ERRORS:
        say(one.error or "")
    elif not json:
        colours = palette(colour)
        lines = report.text(one, colours.bad, colours.dim, colours.reset, then)
        lines = [visible(line) if not colours.reset else line for line in lines]
        write_text("".join(f"{report.defused(line) if github else line}\n" for line in lines))
    if github and not json:
        write_text("".join(f"{line}\n" for line in report.for_github(one)))


def _ways(name: str, golden: str | None, command: str, interfaces: list[str], expression: str | None) -> list[str]:
    """What to do without the permission to capture."""
    file = "run.pcap"
    folder = "" if golden is None else f" --golden {quote(golden)}"
    return [
        "capture with tcpdump, then check the file:",
        f"  sudo tcpdump -B 65536 -i {quote(interfaces[0])} -w {file} {quote(expression or 'tcp')} &",
        f"  {command}; sleep 2; sudo kill -INT $!",
        f"  streamdump check {file}{folder}    # its golden file is {file}.golden, not {name}.golden",
        "or use a copy of Python that has permission to capture: streamdump -i lo shows how",
    ]
