"""`streamdump pipeline --follow FOLDER`: micro-batches until it is interrupted, or with `--finish` until all is read."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from streamdump.errors import UsageError
from streamdump.units import count

from .exits import ExitCode
from .output import say
from .run import counts, suspicion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamdump.spark.follow import Follow
    from streamdump.spark.pipeline import Batch
    from streamdump.spark.session import SparkJvm
    from streamdump.spark.splits import FileError


def checked(folder: str, out: str) -> None:
    """Raises `UsageError` where a folder cannot be followed, or not into this output."""
    from streamdump.spark import storage

    name, target = storage.normal(folder), storage.normal(out)
    path, inside = storage.local(name), storage.local(target)
    if path is not None and not path.is_dir():
        raise UsageError(f"{folder}: not a folder; --follow needs the folder that captures are written to")
    same = name == target or target.startswith(f"{name.rstrip('/')}/")
    if path is not None and inside is not None:
        same = path.resolve() in (inside.resolve(), *inside.resolve().parents)
    if same:
        raise UsageError(f"{out}: is inside the followed folder, so its tables would be read as captures; choose another --out")
    there = storage.folder(out)
    if there.names() and not there.at(".follow").exists():
        raise UsageError(f"{out}: exists and was not written by --follow; choose another --out")


def follow(
    session: SparkJvm,
    work: Follow,
    hide: Callable[[], None],
    *,
    every_s: float,
    finish: bool,
    quiet: bool,
) -> ExitCode:
    """Run micro-batches; the next call repeats one that was interrupted."""
    # Stopping a service means the same as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    work.cluster = session
    folder = work.settings.sources[0]
    code = ExitCode.DONE
    warned = False
    try:
        if not quiet and not finish:
            say(f"following {folder} into {work.out}; Ctrl-C stops, the same command resumes")
        while True:
            begin = time.monotonic()
            batch = work.step(finish)
            hide()
            if batch is not None:
                if any(error.fatal for error in batch.errors):
                    code = ExitCode.UNREADABLE
                elif batch.bugs and code == ExitCode.DONE:
                    code = ExitCode.INTERNAL
                for text in (*error_texts(batch.errors), *batch.bugs):
                    say(text)
                if batch.suspected is not None and not warned:
                    warned = True
                    say(suspicion(batch.suspected))
                if not quiet:
                    say(_batch_text(batch, time.monotonic() - begin))
            elif finish:
                break
            else:
                session.wait(every_s)
    except KeyboardInterrupt:
        hide()
        say(f"interrupted after micro-batch {work.state.batch:,}; run the same command to resume")
        return code if work.state.packets else ExitCode.INTERRUPTED
    if not quiet:
        state = work.state
        say(f"{count(state.files, 'file')}, {count(state.packets, 'packet')}: {counts(state.rows)}")
    return code


MAX_ERRORS = 10
"""File errors that have a line each."""


def error_texts(errors: Sequence[FileError]) -> list[str]:
    """Return the errors of files as lines, the worst first where there are many."""
    first = sorted(errors, key=lambda one: not one.fatal)[:MAX_ERRORS] if len(errors) > MAX_ERRORS else errors
    more = len(errors) - len(first)
    return [*map(error_text, first), *([f"{count(more, 'more file error')}; the table errors lists them all"] if more else [])]


def error_text(error: FileError) -> str:
    """Return the error of a file as one line."""
    at = f" (at byte {error.offset:,})" if error.offset is not None else ""
    lost = f"; {count(error.lost, 'byte')} not decoded" if error.lost else ""
    return f"{error.path}: {error.reason}{at}{lost}"


def _batch_text(batch: Batch, seconds: float) -> str:
    now = time.strftime("%H:%M:%S")
    read = f"{count(batch.files, 'file')}, {count(batch.packets, 'packet')}, {counts(batch.rows, ('message', 'exchange', 'gap'))}"
    return f"{now}  micro-batch {batch.number:,}: {read} in {seconds:.1f} s"
