"""`streamdump pipeline CAPTURE|FOLDER|PATTERN... --out FOLDER`: many or huge captures to tables, on Spark."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdump.errors import UsageError, refuse
from streamdump.options import Options, members
from streamdump.units import count, duration_text

from .. import following
from ..exits import ExitCode
from ..keys import key_logs
from ..options import (
    OTHER,
    READ,
    Colour,
    completion,
    nanoseconds,
    one_of,
    size,
    whole_number,
)
from ..output import coloured, say, write_text
from ..parameters import READING, Members, gathers
from ..run import counts, joined, suspicion

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamdump.spark.pipeline import PipelineRun, PipelineSettings, Progress
    from streamdump.spark.session import SparkJvm
    from streamdump.spark.storage import Folder

SPARK, WRITTEN, FOLLOWING = "Spark", "Tables", "Following a folder"
FORMATS = ("parquet", "delta")
FIELDS = ("json", "typed", "both")
BY = ("protocol", "date")


@gathers
def pipeline(
    *,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CAPTURE|FOLDER|PATTERN...", help="captures, merged by time; also s3://, gs://, abfs://", show_default=False
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FOLDER", help="folder for the tables: a path, s3://, gs:// or abfs://", rich_help_panel=WRITTEN),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", metavar="FORM", help="parquet or delta", rich_help_panel=WRITTEN, autocompletion=completion(FORMATS)),
    ] = "parquet",
    fields: Annotated[
        str,
        typer.Option(
            "--fields",
            metavar="HOW",
            help="message fields as json text, typed (columns in a table for each protocol), or both",
            rich_help_panel=WRITTEN,
            autocompletion=completion(FIELDS),
        ),
    ] = "json",
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMNS",
            help="partition Parquet files by date, protocol, or both, separated by a comma",
            rich_help_panel=WRITTEN,
            show_default=False,
        ),
    ] = None,
    append: Annotated[
        bool,
        typer.Option("--append", help="add to existing Delta tables; captures already included are skipped", rich_help_panel=WRITTEN),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume an interrupted run with the same options", rich_help_panel=WRITTEN)
    ] = False,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            metavar="FOLDER",
            help="add captures as they are completed, for example by tcpdump -G or dumpcap -b",
            rich_help_panel=FOLLOWING,
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="SECONDS", help="how often to look for captures", rich_help_panel=FOLLOWING)
    ] = "2",
    settle: Annotated[
        str,
        typer.Option(
            "--settle", metavar="SECONDS", help="read the newest capture after this long without change", rich_help_panel=FOLLOWING
        ),
    ] = "10",
    finish: Annotated[
        bool, typer.Option("--finish", help="no more captures will be written: read the existing ones and exit", rich_help_panel=FOLLOWING)
    ] = False,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="QUERY",
            help="print the result of a query on the tables; without captures, on those in --out",
            rich_help_panel=WRITTEN,
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "-Y",
            metavar="EXPR",
            help="only matching messages and exchanges; if repeated, all must match",
            rich_help_panel=WRITTEN,
            show_default=False,
        ),
    ] = None,
    findings: Annotated[
        bool, typer.Option("--findings", help="also report what went wrong; not with --follow", rich_help_panel=WRITTEN)
    ] = False,
    entries: Annotated[
        bool, typer.Option("--entries", help="also the messages of applications that messages carry", rich_help_panel=WRITTEN)
    ] = False,
    show_secrets: Annotated[bool, typer.Option("--show-secrets", help="write passwords and tokens", rich_help_panel=WRITTEN)] = False,
    separate: Annotated[
        bool,
        typer.Option("--separate-points", help="treat captures of different points as separate networks", rich_help_panel=READ),
    ] = False,
    point: Annotated[
        str | None,
        typer.Option(
            "--point",
            metavar="REGEX",
            help="matches the capture point in a file name; default: its folder",
            rich_help_panel=READ,
            show_default=False,
        ),
    ] = None,
    options: Annotated[Options, Members(*READING, *members("limits"))],
    split: Annotated[
        str, typer.Option("--split", metavar="SIZE", help="bytes of a capture that one task reads", rich_help_panel=READ)
    ] = "64M",
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Spark's master URL", rich_help_panel=SPARK)] = "local[*]",
    parts: Annotated[
        str | None,
        typer.Option(
            "--parts", metavar="N", help="number of parts to divide conversations into", rich_help_panel=SPARK, show_default=False
        ),
    ] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="memory of the Java process", rich_help_panel=SPARK)] = "2G",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="a Spark setting; may be repeated", rich_help_panel=SPARK, show_default=False),
    ] = None,
    patience: Annotated[
        str, typer.Option("--patience", metavar="SECONDS", help="how long to wait for Java and the master", rich_help_panel=SPARK)
    ] = "120",
    ui: Annotated[bool, typer.Option("--ui", help="start Spark's web page", rich_help_panel=SPARK)] = False,
    quiet: Annotated[bool, typer.Option("-q", help="no summary", rich_help_panel=OTHER)] = False,
    colour: Colour = "auto",
) -> int:
    """Turn many or huge captures into tables, on Spark."""
    one_of("--format", form, FORMATS)
    one_of("--fields", fields, FIELDS)
    by = tuple(dict.fromkeys(partition_by.split(","))) if partition_by is not None else ()
    for column in by:
        one_of("--partition-by", column, BY)
    heap = size("--memory", memory) >> 20
    patience_ns = nanoseconds("--patience", patience)
    _refuse(sources, follow, form, append=append, resume=resume, finish=finish, sql=sql, by=by)
    if out is None:
        raise UsageError("--out FOLDER is missing: the folder to write tables to, or the tables that --sql queries")
    from streamdump.spark.session import needed

    needed()
    from streamdump.filter import compile_filter
    from streamdump.spark import storage
    from streamdump.spark.pipeline import PipelineSettings

    every_ns, settle_ns = nanoseconds("--every", every), nanoseconds("--settle", settle)
    options = replace(options, show_secrets=show_secrets, keylog=tuple(map(storage.normal, key_logs(options.keylog))))
    asked = joined(where, options)
    if asked is not None:
        compile_filter(asked, options)
    split_size, part_count = size("--split", split), None if parts is None else whole_number("--parts", parts)
    if follow is not None:
        following.checked(follow, out)
    settings = PipelineSettings(
        sources or [], form, split_size, part_count, options, separate, point, append, asked, findings, entries, fields, by
    )
    jvm = {"master": master, "memory": f"{heap}m", "ui": ui, "settings": _conf(conf or []), "patience_s": patience_ns / 1e9}
    calls = _Calls(out, storage.folder(out), jvm, quiet, sql, _Bar(colour))
    if follow is not None:
        settings.sources = [follow]
        return calls.follow(settings, every_ns / 1e9, settle_ns, finish)
    return calls.run(settings, resume) if sources else calls.ask()


def _refuse(
    sources: list[str] | None,
    follow: str | None,
    form: str,
    *,
    append: bool,
    resume: bool,
    finish: bool,
    sql: str | None,
    by: tuple[str, ...],
) -> None:
    """Raises `UsageError` for options that do not go together."""
    follows = follow is not None
    refuse(
        (
            follows and (sources or resume or sql is not None),
            "--follow reads captures from one folder; it cannot be combined with captures, --resume or --sql",
        ),
        (finish and not follows, "--finish needs --follow FOLDER"),
        (not (sources or sql or follows), "no capture given; streamdump pipeline CAPTURE... --out FOLDER writes its tables"),
        (
            by and form != "parquet",
            "--partition-by needs --format parquet; Delta tables are always partitioned by protocol and date",
        ),
        (append and form != "delta", "--append needs --format delta"),
        (append and (follows or not sources), "--append needs captures; --follow always appends"),
    )


OURS = {"spark.master": "--master", "spark.driver.memory": "--memory", "spark.ui.enabled": "--ui"}
"""Settings of Spark's that are options here."""


def _conf(given: list[str]) -> dict[str, str]:
    """Return the settings of Spark; raise `UsageError` for other text."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        refuse(
            (
                not (equals and name.startswith("spark.")),
                f"--conf: {one} is not a Spark setting; write one such as --conf spark.executor.memory=4g",
            ),
            (name in OURS, f"--conf: use {OURS.get(name)} instead of {name}"),
        )
        found[name] = value
    return found


@dataclass
class _Calls:
    """What the command does, once it is known what that is."""

    out: str
    place: Folder
    jvm: dict[str, Any]
    """The arguments of `SparkJvm`."""
    quiet: bool
    sql: str | None
    bar: _Bar

    def follow(self, settings: PipelineSettings, every_s: float, settle_ns: int, finish: bool) -> ExitCode:
        """`--follow`"""
        from streamdump.spark.follow import Follow
        from streamdump.spark.rotation import Rotation

        with closing(Follow(settings, self.out, Rotation(settings.sources[0], settle_ns), self.bar.show)) as work:

            def done(session: SparkJvm) -> ExitCode:
                return following.follow(session, work, self.bar.close, every_s=every_s, finish=finish, quiet=self.quiet)

            return self._with_spark(done, kept=lambda: "; run the same command to resume")

    def run(self, settings: PipelineSettings, resume: bool) -> ExitCode:
        """Captures to tables."""
        from streamdump.spark.pipeline import PipelineRun

        refuse(
            (
                settings.append and self.place.at(".follow").exists(),
                f"{self.out}: is written by --follow; put captures into the followed folder",
            ),
        )

        def done(session: SparkJvm) -> ExitCode:
            try:
                run.go(session)
            finally:
                self.bar.close()
            for text in (*following.error_texts(run.plan.errors), *run.bugs, *([suspicion(run.suspected)] if run.suspected else [])):
                say(text)
            if not self.quiet:
                _summary(run)
            if self.sql is not None:
                self.query(session)
            return _code(run)

        with closing(PipelineRun(settings, self.out, self.bar.show)) as run:
            more = run.prepare(resume)
            if run.others:
                say(f"{count(len(run.others), 'file')} skipped: not in a capture format")
            if not more:
                say(f"{self.out}: already includes {count(run.left_out, 'capture')}; nothing to do")
                return ExitCode.DONE
            try:
                return self._with_spark(done, kept=lambda: _kept(run))
            except KeyboardInterrupt:
                return self.stopped(run)

    def ask(self) -> ExitCode:
        """A query on tables that are there."""
        refuse((not self.place.at("messages").exists(), f"{self.out}: has no tables; give captures to create them"))
        return self._with_spark(self.query)

    def query(self, session: SparkJvm) -> ExitCode:
        """Print what `--sql` gives, as columns between tabs."""
        from pyspark.errors import PySparkException

        from streamdump.render.terminal import visible
        from streamdump.spark.views import views

        views(session.spark, self.place)
        try:
            found = session.spark.sql(self.sql)
            rows = found.toLocalIterator()
            write_text("\t".join(found.columns) + "\n")
            for row in rows:
                write_text("\t".join(visible("" if cell is None else str(cell)) for cell in row) + "\n")
        except PySparkException as error:
            raise UsageError(f"--sql: {str(error).strip().splitlines()[0]}") from error
        return ExitCode.DONE

    def stopped(self, run: PipelineRun) -> ExitCode:
        """Report what an interrupted run leaves; its exit code is that of the run where all tables are there."""
        if run.committed:
            say("interrupted; the tables were written")
            return _code(run) if self.sql is None else ExitCode.INTERRUPTED
        done = run.tidy()
        say(f"interrupted after unit {done:,}; --resume continues from there" if done else "interrupted; no table was written")
        return ExitCode.INTERRUPTED

    def _with_spark(self, action: Callable[[SparkJvm], ExitCode], kept: Callable[[], str] = str) -> ExitCode:
        """Run `action` with Spark; report failures in one sentence, which ends with what is `kept`."""
        from streamdump.spark.session import SparkFailed, SparkJvm

        try:
            session = SparkJvm(**self.jvm)
            try:
                with session:
                    return action(session)
            except (OSError, SparkFailed) as error:
                raise UsageError(f"{self._why(error, session.log)}{kept()}") from error
        except KeyboardInterrupt:
            # Collecting garbage among PySpark's modules is most of the time until the process is gone.
            gc.freeze()
            raise

    def _why(self, error: Exception, log: Path) -> str:
        """Return what Spark, or writing the tables, failed with; its log is kept where it shows more."""
        if os.strerror(errno.ENOSPC) in str(error):
            why = f"no space left on the disk of {self.out} or on that of temporary files (TMPDIR)"
        elif isinstance(error, OSError):
            # The tables were removed, for example
            why = f"{error.filename or self.out}: {(error.strerror or str(error)).lower()}"
        else:
            return f"Spark failed: {_reason(str(error))}; its log is {log}"
        log.unlink(missing_ok=True)
        return why


def _kept(run: PipelineRun) -> str:
    """What a run that failed leaves, as the end of a sentence."""
    done = run.tidy()
    return f"; {count(done, 'finished unit')} kept in {run.folder}: --resume continues from there" if done else ""


def _reason(text: str) -> str:
    """What went wrong, without the traces of both languages."""
    lacks = re.search(r"No module named '(streamdump|pyarrow|numpy|msgspec)\b", text)
    if lacks is not None:
        return (
            f"a worker's Python has no {lacks[1]}; install streamdump there with its extra spark, under the path it has on the driver, "
            "or name another Python with --conf spark.pyspark.python=PATH"
        )
    if "Python worker exited unexpectedly" in text or "Python worker failed to connect back" in text:
        return (
            "the Python process of a task was killed on every attempt, probably because memory ran out; "
            "use fewer tasks at a time (--master) or smaller ones (--split)"
        )
    if "java.lang.OutOfMemoryError" in text:
        return "Java ran out of memory; increase --memory"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("streamdump.errors.")]
    # What a worker's trace ends with.
    raised = [line for line in lines if re.match(r"\w+Error: ", line)]
    return (ours or raised)[-1].partition(": ")[2] if ours or raised else "".join(lines[:1])


def _code(run: PipelineRun) -> ExitCode:
    """Return the exit code of what was read."""
    if any(error.fatal for error in run.plan.errors):
        return ExitCode.UNREADABLE
    return ExitCode.INTERNAL if run.bugs else ExitCode.DONE


COMMANDS, UNANSWERED = 40, 20
"""Lines printed of each kind."""

TIMES = {"p50": "p50_ns", "p90": "p90_ns", "p95": "p95_ns", "p99": "p99_ns", "p99.9": "p99_9_ns", "slowest": "max_ns"}
"""Columns of latencies that are printed, by their heads."""


def _summary(run: PipelineRun) -> None:
    """Say on standard error what there is: counts, latency by command, the slowest, and what was not answered."""
    from streamdump.spark import latencies

    left_out = f"; {run.left_out:,} already included" if run.left_out else ""
    resumed = f"; {count(run.resumed, 'unit')} resumed" if run.resumed else ""
    say(f"{count(len(run.plan.files), 'file')}, {count(run.plan.packets, 'packet')}: {counts(run.rows)}{left_out}{resumed}")
    lines: list[tuple[str, ...]] = [("command", "exchanges", *TIMES)]
    missing: list[tuple[int, str, str]] = []
    for row in sorted(latencies.by_command(run.counts), key=lambda row: (-row["exchanges"], row["protocol"], row["name"])):
        times = ["" if row[name] is None else duration_text(row[name]) for name in TIMES.values()]
        lines.append((f"{row['protocol']} {row['name']}", f"{row['exchanges']:,}", *times))
        missing += [(-many, row["name"], why) for why, many in row["reasons"]]
    _table(lines[: COMMANDS + 1])
    lines = [("slowest", "id", "between", "latency")]
    for row in run.slowest:
        lines.append((row["name"], row["id"] or "", f"{row['src']} > {row['dst']}", duration_text(row["latency_ns"])))
    _table(lines)
    _table([("without a response", "why", "requests"), *((name, why, f"{-many:,}") for many, name, why in sorted(missing)[:UNANSWERED])])


def _table(lines: list[tuple[str, ...]]) -> None:
    """Columns on standard error, if there are any below their heads: text to the left, numbers to the right."""
    from streamdump.render.terminal import visible

    shown = [[visible(cell) for cell in line] for line in lines]
    widths = [max(len(line[at]) for line in shown) for at in range(len(shown[0]))]
    for line in shown if len(shown) > 1 else ():
        cells = [cell.ljust(width) if cell == line[0] else cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        sys.stderr.write("  " + "  ".join(cells).rstrip() + "\n")


class _Bar:
    """Completed and total tasks and bytes, on a terminal only."""

    def __init__(self, colour: str) -> None:
        self.colour = colour
        self.bar: Any = None

    def show(self, progress: Progress) -> None:
        if not sys.stderr.isatty():
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True, no_color=not coloured(self.colour, sys.stderr))
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]} tasks"), DownloadColumn())
            self.bar = Bar(*columns, console=console, transient=True)
            self.bar.add_task(progress.what, tasks="")
            self.bar.start()
        tasks = f"{progress.tasks}/{progress.total}"
        self.bar.update(self.bar.task_ids[0], description=progress.what, total=progress.bytes, completed=progress.read, tasks=tasks)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
