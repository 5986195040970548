"""`streamdump pipeline --follow FOLDER`: micro-batches until it is interrupted, or with `--finish` until all is read."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cli.exits import ExitCode
from cli.output import say
from dissect.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dissect.spark.follow import Batch
    from dissect.spark.pipeline import Progress, Settings
    from dissect.spark.session import Session
    from dissect.spark.splits import Trouble


def checked(folder: str, out: Path) -> Path:
    """The folder to follow; raises `UsageError` where that is impossible."""
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"{folder}: is no folder; --follow takes the folder that captures are written to")
    inside, outer = out.resolve(), path.resolve()
    if outer == inside or outer in inside.parents:
        raise UsageError(f"{out}: lies in the folder that is followed, so its tables would be taken for captures; choose another --out")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / ".follow").is_dir())):
        raise UsageError(f"{out}: is there already, and not from --follow; choose another --out")
    return path


def follow(
    session: Session,
    settings: Settings,
    out: Path,
    show: Callable[[Progress], None],
    hide: Callable[[], None],
    *,
    every_s: float,
    settle_s: float,
    finish: bool,
    quiet: bool,
) -> ExitCode:
    """Runs micro-batches; what was begun when it is interrupted is done again by the next call."""
    from dissect.spark.follow import Follow
    from dissect.spark.rotation import Rotation

    # Whoever stops a service means what Ctrl-C means.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    rotation = Rotation(Path(settings.sources[0]), int(settle_s * 1e9))
    work = Follow(session, settings, out, rotation, show)
    code = ExitCode.DONE
    try:
        if not quiet and not finish:
            say(f"following {settings.sources[0]} into {out}; Ctrl-C ends it, the same command goes on")
        while True:
            begin = time.monotonic()
            batch = work.step(finish)
            hide()
            if batch is not None:
                if any(trouble.fatal for trouble in batch.troubles):
                    code = ExitCode.UNREADABLE
                elif batch.bugs and code == ExitCode.DONE:
                    code = ExitCode.INTERNAL
                for text in (*map(trouble_text, batch.troubles), *batch.bugs):
                    say(text)
                if not quiet:
                    say(_batch_text(batch, time.monotonic() - begin))
            elif finish:
                break
            else:
                time.sleep(every_s)
    except KeyboardInterrupt:
        hide()
        session.kill()
        say(f"interrupted after {work.state.batch:,} micro-batches; the same command goes on from there")
        return code if work.state.packets else ExitCode.INTERRUPTED
    finally:
        work.close()
    if not quiet:
        state = work.state
        total = ", ".join(f"{state.rows.get(table, 0):,} {table}" for table in ("messages", "exchanges", "conversations", "gaps", "errors"))
        say(f"{state.files:,} files, {state.packets:,} packets: {total}")
    return code


def trouble_text(trouble: Trouble) -> str:
    """What is wrong with a file, as one line."""
    at = f" (at byte {trouble.offset:,})" if trouble.offset is not None else ""
    lost = f"; {trouble.lost:,} bytes not read" if trouble.lost else ""
    return f"{trouble.path}: {trouble.reason}{at}{lost}"


def _batch_text(batch: Batch, seconds: float) -> str:
    now = time.strftime("%H:%M:%S")
    rows = batch.rows
    return (
        f"{now}  micro-batch {batch.number:,}: {batch.files:,} files, {batch.packets:,} packets, {rows['messages']:,} messages, "
        f"{rows['exchanges']:,} exchanges, {rows['gaps']:,} gaps in {seconds:.1f} s"
    )
