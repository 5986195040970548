"""Runs the command line on a pseudo-terminal, as a person would."""

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
from contextlib import suppress
from time import monotonic

from tests.support.waiting import PATIENCE


def on_terminal(
    argv: list[str],
    columns: int = 100,
    environment: Mapping[str, str] | None = None,
    stderr: bool = True,
    said: bytes = b"",
    module: bool = True,
) -> tuple[int, str]:
    """The exit code, and what a terminal of so many columns was sent by standard output and, with `stderr`, by standard error; `said`: what
    the person types; `module`: these are arguments of `streamdump`, not of Python."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *(("-m", "streamdump") if module else ()), *argv],
        stdin=slave,
        stdout=slave,
        stderr=slave if stderr else subprocess.DEVNULL,
        env={**kept, "TERM": "xterm", "PAGER": "cat", **(environment or {})},
    )
    os.close(slave)
    os.write(master, said)
    parts = []
    while True:
        try:
            part = os.read(master, 65_536)
        except OSError:
            # Linux says EIO when the last writer is gone
            break
        if not part:
            break
        parts.append(part)
    os.close(master)
    return process.wait(PATIENCE), b"".join(parts).decode().replace("\r\n", "\n")


def typed(argv: Sequence[str], *steps: tuple[str, Callable[[str], bool]]) -> str:
    """All that a terminal of 120 columns was sent while a person typed each step's keys, once its condition held of what was sent since
    the step before."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
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
