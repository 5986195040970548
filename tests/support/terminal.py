"""Runs the command line on a pseudo-terminal, as a person would: in this process where the process does not matter."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Thread
from time import monotonic
from unittest.mock import patch

from streamdump.cli.app import main
from tests.support.waiting import PATIENCE

NOT_KEPT = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
"""What the terminal of a test does not have from that of whoever runs the tests."""


class Drain(Thread):
    """Reads all that is written to the other end of a file descriptor."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._parts: list[bytes] = []
        self.start()

    def run(self) -> None:
        # Linux says EIO when the last writer to a terminal is gone
        with suppress(OSError):
            while part := os.read(self._number, 65_536):
                self._parts.append(part)
        os.close(self._number)

    def text(self) -> str:
        """What was read, once there is no writer any more."""
        self.join(PATIENCE)
        return b"".join(self._parts).decode()


def opened(columns: int) -> tuple[int, int]:
    """Both ends of a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    return master, slave


def called(argv: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> int:
    """Return the exit code of a call in this process, whose standard streams are these file descriptors meanwhile."""
    names = ("stdin", "stdout", "stderr")
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment, clear=True))
        stack.enter_context(patch.object(sys, "argv", ["streamdump", *argv]))
        for number, (name, stream) in enumerate(zip(names, streams, strict=True)):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(stream, number)
            mode, errors = "w" if number else "r", "backslashreplace" if number == 2 else None
            file = stack.enter_context(open(number, mode, encoding="utf-8", errors=errors, closefd=False))
            stack.enter_context(patch.object(sys, name, file))
            stack.enter_context(patch.object(sys, f"__{name}__", file))
        return main()


def on_terminal(
    argv: Sequence[str], columns: int = 100, environment: Mapping[str, str] | None = None, stderr: bool = True
) -> tuple[int, str]:
    """The exit code of a call, and what a terminal of so many columns was sent by standard output and, with `stderr`, by standard error."""
    master, slave = opened(columns)
    screen, nothing = Drain(master), os.open(os.devnull, os.O_WRONLY)
    kept = {name: value for name, value in os.environ.items() if name not in NOT_KEPT}
    try:
        code = called(argv, {**kept, "TERM": "xterm", "PAGER": "cat", **(environment or {})}, (slave, slave, slave if stderr else nothing))
    finally:
        os.close(slave)
        os.close(nothing)
    return code, screen.text().replace("\r\n", "\n")


def process_on_terminal(
    argv: Sequence[str], columns: int = 100, environment: Mapping[str, str] | None = None, said: bytes = b""
) -> tuple[int, str]:
    """The exit code of Python with these arguments, and what a terminal was sent; `said`: what the person types."""
    master, slave = opened(columns)
    kept = {name: value for name, value in os.environ.items() if name not in NOT_KEPT}
    terminal = {**kept, "TERM": "xterm", "PAGER": "cat", **(environment or {})}
    process = subprocess.Popen([sys.executable, *argv], stdin=slave, stdout=slave, stderr=slave, env=terminal)
    os.close(slave)
    os.write(master, said)
    text = Drain(master).text()
    return process.wait(PATIENCE), text.replace("\r\n", "\n")


def typed(argv: Sequence[str], *steps: tuple[str, Callable[[str], bool]]) -> str:
    """All that a terminal of 120 columns was sent while a person typed each step's keys, once its condition held of what was sent since
    the step before."""
    master, slave = opened(120)
    environment = {name: value for name, value in os.environ.items() if name not in NOT_KEPT}
    call = [sys.executable, "-m", "streamdump", *argv]
    process = subprocess.Popen(call, stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm", "PAGER": "cat"})
    os.close(slave)
    seen, since, end = b"", 0, monotonic() + PATIENCE
    try:
        for keys, there in (*steps, ("", lambda _: process.poll() is not None)):
            while not there(seen[since:].decode(errors="replace")):
                assert monotonic() < end, f"{keys!r} is not typed: {seen[since:]!r}"
                if select.select([master], [], [], 0.05)[0]:
                    with suppress(OSError):
                        # Linux says EIO when the last writer is gone
                        seen += os.read(master, 1 << 16)
            since = len(seen)
            os.write(master, keys.encode())
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return seen.decode(errors="replace")
