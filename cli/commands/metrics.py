"""`streamdump metrics -i IFACE`: an endpoint for Prometheus; of captures, the text that it would serve."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import Report, UsageError, describe_exception, how_to_install, refuse
from streamdump.options import Options

from ..live import LiveOptions, LiveRun, run_of
from ..options import LIMITS as LIMITS_PANEL
from ..options import SHOWN, Colour, Files, ReadFiles, completion, inputs, several_of, whole_number
from ..output import say, write_text
from ..parameters import LIMITS, READING, TIMES, Members, gathers
from ..run import INTERRUPTED, FileRun

if TYPE_CHECKING:
    from streamdump.model import ConversationRow, Record
    from streamdump.render.metrics import Metrics, Table

    from ..serving import TextServer

LABELS = ("client", "server", "stream")

LISTEN = "127.0.0.1:9464"
"""Where OpenTelemetry's exporters for Prometheus listen, but on the loopback interface alone."""

TICK_S = 0.1


@gathers
def metrics(
    *,
    files: Files = None,
    read_files: ReadFiles = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"address to serve the metrics on (default {LISTEN} with -i); of captures, also after they were read",
            rich_help_panel=SHOWN,
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="print the metrics at the end instead of serving them (default without -i)", rich_help_panel=SHOWN),
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="WHAT",
            help="also label by client, server or stream; may be repeated, or separated by commas",
            rich_help_panel=SHOWN,
            show_default=False,
            autocompletion=completion(LABELS),
        ),
    ] = None,
    live: LiveOptions,
    label_limit: Annotated[
        str,
        typer.Option(
            "--label-limit", metavar="N", help="values of each label of --label; further ones become other", rich_help_panel=LIMITS_PANEL
        ),
    ] = "100",
    options: Annotated[Options, Members(*READING, "separate", *TIMES, *LIMITS)],
    colour: Colour = "auto",
) -> int:
    """Serve metrics for Prometheus: requests, durations, messages, connections, findings; print those of captures."""
    refuse((once and listen is not None, "--once prints the metrics and --listen serves them; choose one"))
    names = inputs(read_files, files)
    labels, limit = several_of("--label", label or (), LABELS), whole_number("--label-limit", label_limit)
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(f"metrics needs prometheus-client: {how_to_install('metrics')}") from error
    from streamdump.render.metrics import Metrics, text

    found = Metrics(labels, limit)
    options = replace(options, bodies=False, times=False, pairs=True, findings=True)
    address = listen or (None if once or not live.interfaces else LISTEN)
    with ExitStack() as stack:
        # First the port: as root, a run drops privileges that binding may need
        listener = None
        if address is not None:
            from ..serving import TextServer, listening

            listener = stack.enter_context(listening(address))
        run = run_of(live, names, options, colour, prints=False, keeps_rows=False)
        stack.enter_context(run)
        server = None if listener is None else stack.enter_context(TextServer(listener, lambda: _snapshot(found, run), text))
        _count(run, found, server)
        code = int(run.end())
        if found.values.full:
            say(f"--label-limit {limit:,}: further values of {', '.join(sorted(found.values.full))} were counted as other")
        if server is None:
            write_text(text(_snapshot(found, run)))
        elif isinstance(run, FileRun) and run.stopped != INTERRUPTED and not any(one.is_pipe for one in run.readers):
            _wait(server)
        return code


def _count(run: FileRun | LiveRun, found: Metrics, server: TextServer[list[Table]] | None) -> None:
    """Count all that the run reads."""
    diagnoser = run.inspector.diagnoser
    assert diagnoser is not None

    def feed(records: list[Record]) -> bool:
        try:
            found.add(records, run.inspector.run.released_pairs())
        except Exception as error:
            run.report(Report(describe_exception(error), "some records are not counted"))
        if server is not None:
            server.answer()
        return False

    def leave(rows: list[ConversationRow]) -> None:
        diagnoser.forget([row.conversation for row in rows])

    run.leaving = leave
    if server is not None:
        run.tick = server.answer
    run.each(feed)


def _snapshot(found: Metrics, run: FileRun | LiveRun) -> list[Table]:
    counters = run.inspector.counters
    return found.snapshot(counters.packets, counters.failures, run.live.dropped if isinstance(run, LiveRun) else None)


def _wait(server: TextServer[list[Table]]) -> None:
    """Serve what captures held until it is interrupted."""
    say("all was read; Ctrl-C ends serving")
    try:
        while True:
            server.answer()
            sleep(TICK_S)
    except KeyboardInterrupt:
        return
