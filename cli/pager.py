"""Long text on a terminal goes through a pager, as git's does: `$PAGER`, else `less -FRX`. Never in a pipe, live, or where standard input
is a capture, whose messages are shown as they come."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress

LEAVE_OUT = "--no-pager"

LESS = "FRX"
"""Ends where all fits on the screen, shows colours, and leaves the text there."""


class Pager:
    """The pager of this process, which starts with the first text, and how wide the terminal is on which it shows it."""

    def __init__(self) -> None:
        self.allowed = False
        """Whether the output is text that has an end."""
        self.refused = False
        self.columns: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._saved: list[tuple[int, int]] = []

    def start(self) -> None:
        """Start it where it is allowed and has not been; standard output is a pipe from then on, and so is standard error if both
        were terminals."""
        allowed, self.allowed = self.allowed and not self.refused, False
        if not allowed or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return
        command = _command()
        if not command:
            return
        width = shutil.get_terminal_size().columns
        with suppress(OSError):
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env={"LESS": LESS, "LV": "-c", **os.environ})
        if self._process is None or self._process.stdin is None:
            return
        self.columns = width
        for stream in (sys.stdout, *([sys.stderr] if sys.stderr.isatty() else [])):
            stream.flush()
            self._saved.append((os.dup(stream.fileno()), stream.fileno()))
            os.dup2(self._process.stdin.fileno(), stream.fileno())
        self._process.stdin.close()

    def end(self) -> None:
        """Give the terminal back and wait until the reader leaves the pager."""
        if self._process is None:
            return
        with suppress(OSError):
            sys.stdout.flush()
        for saved, number in self._saved:
            os.dup2(saved, number)
            os.close(saved)
        process, self._process, self.columns, self._saved = self._process, None, None, []
        while True:
            with suppress(KeyboardInterrupt):
                process.wait()
                return


def _command() -> list[str]:
    """The words of the pager's call; none where there is none, or one that shows everything at once."""
    with suppress(ValueError):
        words = shlex.split(os.environ.get("PAGER", "less"))
        if words and words != ["cat"] and shutil.which(words[0]):
            return words
    return []


PAGER = Pager()
