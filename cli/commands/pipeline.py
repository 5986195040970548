"""`streamdump pipeline CAPTURE|FOLDER|PATTERN... --out FOLDER`: many or huge captures to tables, on Spark."""

from __future__ import annotations

import gc
import logging
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import following
from cli.exits import ExitCode
from cli.keys import key_logs
from cli.options import (
    OTHER,
    READ,
    BareLimit,
    Colour,
    DecodeAs,
    FrameLimit,
    KeyLogs,
    OpenLimit,
    UndecidedLimit,
    ValuesLimit,
    Verbs,
    WaitingLimit,
    WaitingTime,
    library_options,
    nanoseconds,
    one_of,
    size,
    whole,
)
from cli.output import coloured, say, write_text
from cli.run import suspicion
from dissect.errors import UsageError

if TYPE_CHECKING:
    from dissect.spark.pipeline import Progress, Run
    from dissect.spark.session import Session
    from dissect.spark.splits import Plan

SPARK, WRITTEN, FOLLOWING = "Spark", "What is written", "A folder that is written to"
FORMATS = ("parquet", "json", "csv")
PAYLOADS = ("shuffle", "reread")
BRIEF = 1 << 30
"""Captures of fewer bytes together are work of a minute or so."""


def pipeline(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="CAPTURE|FOLDER|PATTERN...", help="captures, merged by time", show_default=False)
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FOLDER", help="where the tables go; not there yet, or empty", rich_help_panel=WRITTEN),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORM", help="parquet, json or csv", rich_help_panel=WRITTEN, autocompletion=lambda: list(FORMATS)
        ),
    ] = "parquet",
    resume: Annotated[
        bool, typer.Option("--resume", help="go on where a run with the same options was interrupted", rich_help_panel=WRITTEN)
    ] = False,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            metavar="FOLDER",
            help="add captures as they are completed, as by tcpdump -G or dumpcap -b",
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
            "--settle", metavar="SECONDS", help="the newest capture is read after so long without change", rich_help_panel=FOLLOWING
        ),
    ] = "10",
    finish: Annotated[
        bool, typer.Option("--finish", help="nothing more is written: read what is there and end", rich_help_panel=FOLLOWING)
    ] = False,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="QUERY",
            help="print what a query on the tables gives; without captures, on those in --out",
            rich_help_panel=WRITTEN,
            show_default=False,
        ),
    ] = None,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="write passwords, tokens and the like", rich_help_panel=WRITTEN)
    ] = False,
    decode_as: DecodeAs = None,
    verbs: Verbs = None,
    keylog: KeyLogs = None,
    split: Annotated[
        str, typer.Option("--split", metavar="SIZE", help="bytes of a capture that one task reads", rich_help_panel=READ)
    ] = "64M",
    undecided_limit: UndecidedLimit = "1M",
    waiting_limit: WaitingLimit = "16M",
    waiting_time: WaitingTime = "10",
    frame_limit: FrameLimit = "64M",
    open_limit: OpenLimit = "65536",
    values_limit: ValuesLimit = "1000000",
    bare_limit: BareLimit = "1000000",
    master: Annotated[str, typer.Option("--master", metavar="URL", help="where Spark runs", rich_help_panel=SPARK)] = "local[*]",
    payload: Annotated[
        str,
        typer.Option(
            "--payload",
            metavar="HOW",
            help="shuffle payload, or reread it from the captures, which all workers must reach fast",
            rich_help_panel=SPARK,
            autocompletion=lambda: list(PAYLOADS),
        ),
    ] = "shuffle",
    parts: Annotated[
        str | None,
        typer.Option("--parts", metavar="N", help="parts that conversations are divided into", rich_help_panel=SPARK, show_default=False),
    ] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="memory of the Java process", rich_help_panel=SPARK)] = "2G",
    ui: Annotated[bool, typer.Option("--ui", help="Spark's web page", rich_help_panel=SPARK)] = False,
    quiet: Annotated[bool, typer.Option("-q", help="no summary", rich_help_panel=OTHER)] = False,
    colour: Colour = "auto",
) -> int:
    """Many or huge captures to tables, on Spark."""
    one_of("--format", form, FORMATS)
    one_of("--payload", payload, PAYLOADS)
    heap = size("--memory", memory) >> 20
    if follow is not None and (sources or resume or sql is not None):
        raise UsageError("--follow takes its captures from one folder; it goes with no other capture, --resume or --sql")
    if follow is None and finish:
        raise UsageError("--finish ends what --follow FOLDER began; name the folder")
    if not sources and not sql and follow is None:
        raise UsageError("no capture given; streamdump pipeline CAPTURE... --out FOLDER writes its tables")
    if out is None:
        raise UsageError("--out FOLDER is missing: where the tables go, or with --sql alone where they are")
    target = Path(out)
    if sources and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{out}: is there already; choose another --out, or remove it")
    if follow is not None:
        followed = following.checked(follow, target)
    elif not sources and not (target / "messages").is_dir():
        raise UsageError(f"{out}: has no tables; give captures to make them of")
    every_ns, settle_ns = nanoseconds("--every", every), nanoseconds("--settle", settle)
    options = library_options(
        decode_as,
        undecided_limit,
        "64M",
        waiting_limit,
        "128M",
        waiting_time,
        frame_limit,
        open_limit,
        "100000",
        values_limit,
        bare_limit,
        verbs,
        show_secrets=show_secrets,
        keylog=key_logs(keylog),
    )
    split_size, part_count = size("--split", split), None if parts is None else whole("--parts", parts)
    from dissect.spark.session import Session, of_spark
    from dissect.spark.splits import expand, together

    brief = follow is None and together(expand(sources or [])) < BRIEF
    code = ExitCode.DONE
    session: Session | None = None
    interruption = _Interruption()
    try:
        session = interruption.session = Session(master, memory=f"{heap}m", ui=ui, brief=brief)
        from dissect.spark.pipeline import Run, Settings

        chosen = [str(followed.absolute())] if follow is not None else sources or []
        settings = Settings(chosen, form, payload, split_size, part_count, options)
        bar = _Bar(colour)
        if follow is not None:
            times = {"every_s": every_ns / 1e9, "settle_s": settle_ns / 1e9}
            code = following.follow(session, settings, target, bar.show, bar.close, **times, finish=finish, quiet=quiet)
        elif sources:
            run = Run(session, settings, target, bar.show)
            try:
                run.go(resume)
            finally:
                bar.close()
            assert run.plan is not None
            code = _troubles(run.plan, run.bugs)
        else:
            form = _form(target)
        doubted = bool(sources and options.decode_as and not show_secrets)
        if sql is not None or doubted or (sources and not quiet):
            from dissect.spark.pipeline import views

            views(session.spark, target, form)
        if doubted:
            warn(session)
        if sources and not quiet:
            _summary(session, run)
        if sql is not None:
            _query(session.spark, sql)
        session.close()
    except KeyboardInterrupt:
        return _interrupted(session, target if sources else None, code if sql is None else ExitCode.INTERRUPTED)
    except Exception as error:
        if interruption.came:
            return _interrupted(session, target if sources else None, code if sql is None else ExitCode.INTERRUPTED)
        if session is None:
            raise
        if isinstance(error, UsageError):
            session.close()
            raise
        if isinstance(error, OSError):
            # There is no room for the tables, or they were removed.
            session.close()
            raise UsageError(f"{error.filename or out}: {(error.strerror or str(error)).lower()}") from error
        if not of_spark(error):
            session.kill()
            raise
        say(f"Spark failed: {_reason(error)}; its log is {session.log}")
        session.kill()
        return ExitCode.USAGE
    finally:
        interruption.over()
    return code


class _Interruption:
    """What Ctrl-C does from here on, without what PySpark has to say of a call that does not return."""

    GRACE_S = 0.2

    def __init__(self) -> None:
        self.session: Session | None = None
        self.came = False
        self._before = signal.signal(signal.SIGINT, self), sys.unraisablehook

    def __call__(self, *_: object) -> None:
        if self.came:
            return
        self.came = True
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = lambda _: None
        if self.session is not None:
            # PySpark tidies up whenever an object of the JVM is dropped, and Python ignores whatever is raised there. The next call of a
            # JVM that is gone fails.
            timer = threading.Timer(self.GRACE_S, self.session.abort)
            timer.daemon = True
            timer.start()
        raise KeyboardInterrupt

    def over(self) -> None:
        """Let Ctrl-C do what it did before."""
        handler, sys.unraisablehook = self._before
        signal.signal(signal.SIGINT, handler)


def _interrupted(session: Session | None, out: Path | None, code: ExitCode) -> ExitCode:
    """End at once; the exit code is `code` where all tables are in `out`."""
    if session is not None:
        session.kill()
        session.log.unlink(missing_ok=True)
    # What PySpark imports takes most of the time until the process is gone, if all of it is looked through for garbage at the end.
    gc.freeze()
    if out is None:
        say("interrupted")
        return ExitCode.INTERRUPTED
    if (out / "messages").is_dir():
        say("interrupted; the tables are written")
        return code
    partial = (out.absolute().parent / f".{out.absolute().name}.partial").is_dir()
    say(f"interrupted; no table was written{', --resume goes on with the parts that are done' if partial else ''}")
    return ExitCode.INTERRUPTED


def _reason(error: BaseException) -> str:
    """What went wrong, without the traces of both languages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("dissect.errors.")]
    # What a worker's trace ends with.
    raised = [line for line in lines if re.match(r"\w+Error: ", line)]
    return (ours or raised)[-1].partition(": ")[2] if ours or raised else lines[0] if lines else type(error).__name__


def _form(out: Path) -> str:
    suffixes = {path.suffix.lstrip(".") for path in (out / "messages").iterdir()}
    return next((form for form in FORMATS if form in suffixes), "parquet")


def _troubles(plan: Plan, bugs: list[str]) -> ExitCode:
    """Say what is wrong with files, and with us; the exit code."""
    for text in (*map(following.trouble_text, plan.troubles), *bugs):
        say(text)
    if any(trouble.fatal for trouble in plan.troubles):
        return ExitCode.UNREADABLE
    return ExitCode.INTERNAL if bugs else ExitCode.DONE


LATENCIES = """
select protocol, name, count(*) as exchanges, count(latency_ns) as answered,
  percentile(latency_ns, array(0.5, 0.9, 0.99, 0.999)) as latency, max(latency_ns) as slowest
from exchanges group by protocol, name order by exchanges desc, name limit 40
"""
SLOWEST = "select time_ns, src, dst, name, id, latency_ns from exchanges where latency_ns is not null order by latency_ns desc limit 5"
UNANSWERED = """
select name, outcome, reason, count(*) as many from exchanges where outcome in ('unanswered', 'superseded')
group by name, outcome, reason order by many desc, name limit 20
"""


LOOKS_LIKE = """
select conversation, client, server, protocol, get_json_object(facts, '$.looks_like') as looks_like from conversations
where get_json_object(facts, '$.looks_like') is not null order by conversation limit 1
"""


def warn(session: Session) -> None:
    """Say what could show secrets: that `-d` has a conversation read as what it is not."""
    for row in session.spark.sql(LOOKS_LIKE).collect():
        say(suspicion(row.conversation, f"{row.client} - {row.server}", row.protocol, row.looks_like))


def _summary(session: Session, run: Run) -> None:
    """Say on standard error what there is: counts, latency by command, the slowest, and what was not answered."""
    spark = session.spark
    assert run.plan is not None
    rows = run.rows
    say(
        f"{len(run.plan.files):,} files, {run.plan.packets:,} packets: {rows['messages']:,} messages, {rows['exchanges']:,} exchanges, "
        f"{rows['conversations']:,} conversations, {rows['gaps']:,} gaps, {rows['errors']:,} errors"
        + (f"; {run.resumed} parts were done before" if run.resumed else "")
    )
    lines: list[tuple[str, ...]] = [("command", "exchanges", "p50", "p90", "p99", "p99.9", "slowest")]
    for row in spark.sql(LATENCIES).collect():
        times = [_time(one) for one in (*(row.latency or [None] * 4), row.slowest)]
        lines.append((f"{row.protocol} {row.name}", f"{row.exchanges:,}", *times))
    if len(lines) > 1:
        _table(lines)
    lines = [("slowest", "id", "between", "latency")]
    for row in spark.sql(SLOWEST).collect():
        lines.append((row.name, row.id or "", f"{row.src} > {row.dst}", _time(row.latency_ns)))
    if len(lines) > 1:
        _table(lines)
    lines = [("without a response", "why", "requests")]
    for row in spark.sql(UNANSWERED).collect():
        lines.append((row.name, row.reason or row.outcome, f"{row.many:,}"))
    if len(lines) > 1:
        _table(lines)


def _time(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:,.3f} ms"


def _table(lines: list[tuple[str, ...]]) -> None:
    """Columns on standard error: text to the left, numbers to the right."""
    from dissect.render.terminal import visible

    shown = [[visible(cell) for cell in line] for line in lines]
    widths = [max(len(line[at]) for line in shown) for at in range(len(shown[0]))]
    for line in shown:
        cells = [cell.ljust(width) if cell == line[0] else cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        sys.stderr.write("  " + "  ".join(cells).rstrip() + "\n")


def _query(spark: Any, sql: str) -> None:
    """Print what a query gives, as columns between tabs."""
    from dissect.render.terminal import visible

    try:
        found = spark.sql(sql)
        rows = found.toLocalIterator()
        write_text("\t".join(found.columns) + "\n")
        for row in rows:
            write_text("\t".join(visible("" if cell is None else str(cell)) for cell in row) + "\n")
    except Exception as error:
        if not type(error).__module__.startswith("pyspark.errors"):
            raise
        raise UsageError(f"--sql: {str(error).strip().splitlines()[0]}") from error


class _Bar:
    """Completed and total tasks and bytes, on a terminal only."""

    def __init__(self, colour: str) -> None:
        self.wanted = sys.stderr.isatty()
        self.colour = colour
        self.bar: Any = None
        self.task: Any = None

    def show(self, progress: Progress) -> None:
        if not self.wanted:
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True, no_color=not coloured(self.colour, sys.stderr))
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]} tasks"), DownloadColumn())
            self.bar = Bar(*columns, console=console, transient=True)
            self.task = self.bar.add_task(progress.what, total=None, tasks="")
            self.bar.start()
        tasks = f"{progress.tasks}/{progress.total}"
        self.bar.update(self.task, description=progress.what, total=progress.bytes, completed=progress.read, tasks=tasks)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
