"""Runs the command line on a pseudo-terminal, as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

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
        env={**kept, "TERM": "xterm", **(environment or {})},
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
