"""Where results go (standard output) and everything else (standard error)."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from typing import IO, TYPE_CHECKING

from streamdump.errors import UsageError

from .options import WHEN, natural, one_of
from .pager import PAGER

if TYPE_CHECKING:
    from streamdump.render.terminal import Palette

AT_ONCE = 1 << 20
"""Characters that are encoded at a time: a frame alone may have many millions."""


class PipeClosed(Exception):
    """The reader of standard output closed it (`| head`). No `OSError`, because typer ends the process on that one."""


def write(block: bytes) -> None:
    """Put `block` on standard output at once. A full disk is a `UsageError`, a closed pipe `PipeClosed`."""
    PAGER.start()
    stream = sys.stdout.buffer
    left = memoryview(block)
    try:
        # Without a buffer (PYTHONUNBUFFERED) a signal lets a write into a full pipe end early.
        while left:
            left = left[stream.write(left) :]
        stream.flush()
    except OSError as error:
        abandon(sys.stdout)
        # Windows has no EPIPE.
        if isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL):
            raise PipeClosed from error
        raise UsageError(f"standard output cannot be written: {error.strerror}") from error


def write_text(text: str) -> None:
    """Write `text` to standard output at once; see `encoded`."""
    from streamdump.render.terminal import encoded

    for at in range(0, len(text), AT_ONCE):
        write(encoded(text[at : at + AT_ONCE], sys.stdout.encoding or "utf-8"))


def write_page(text: str) -> None:
    """Write text that is complete, which a pager may show."""
    PAGER.allowed = True
    write_text(text)


def write_json(block: bytes, colour: str) -> None:
    """Write JSON Lines: coloured on a terminal, as they are everywhere else, even if asked for colour."""
    if _is_terminal(sys.stdout) and coloured(colour, sys.stdout):
        from streamdump.render.jsonl import painted
        from streamdump.render.terminal import COLOURED

        block = painted(block, COLOURED)
    write(block)


def say(text: str) -> None:
    """One line on standard error."""
    from streamdump.render.terminal import encoded, visible

    line = f"streamdump: {visible(text)}\n"
    encoding = sys.stderr.encoding or "utf-8"
    try:
        sys.stderr.write(encoded(line, encoding).decode(encoding))
        sys.stderr.flush()
    except OSError:
        # standard error is closed; the exit code still reports
        abandon(sys.stderr)


def fill_in() -> None:
    """Standard streams that were closed before the start (`>&-`): reading gives nothing, writing results fails, the rest is dropped.

    In the order of their numbers, so that no capture is opened as one of them.
    """
    for name, how, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, how), mode, encoding="utf-8"))


def abandon(stream: IO[str]) -> None:
    """Discard buffered output, so that the interpreter does not complain about it at its end."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _is_terminal(stream: IO[str]) -> bool:
    """Whether a terminal shows `stream`, be it through the pager."""
    return stream.isatty() or (stream is sys.stdout and PAGER.columns is not None)


def coloured(when: str, stream: IO[str]) -> bool:
    """Whether `stream` gets colour: on a terminal, or when asked for; never under NO_COLOR."""
    one_of("--color", when, WHEN)
    if os.environ.get("NO_COLOR") or when == "never":
        return False
    if when == "always" or os.environ.get("FORCE_COLOR"):
        return True
    # The old console of Windows prints escape sequences as they are; its Terminal sets this variable.
    return _is_terminal(stream) and os.environ.get("TERM") != "dumb" and (sys.platform != "win32" or "WT_SESSION" in os.environ)


def palette(when: str) -> Palette:
    """The colours of standard output."""
    from streamdump.render.terminal import COLOURED, PLAIN

    return COLOURED if coloured(when, sys.stdout) else PLAIN


def columns(colour: str = "auto") -> int | None:
    """The width for which lines are made: that of the terminal that standard output is, or that COLUMNS says; None without either. With
    `--color always` it is that of the terminal at which errors are read, as results go through a pager then."""
    given = natural(os.environ.get("COLUMNS", ""))
    if given:
        return given
    if _is_terminal(sys.stdout):
        return PAGER.columns or shutil.get_terminal_size().columns
    return os.get_terminal_size(sys.stderr.fileno()).columns if colour == "always" and sys.stderr.isatty() else None
