"""Waits for what happens, however busy the machine is."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PATIENCE = 300.0
"""Seconds after which a test gives up waiting for what will not happen any more."""

STEP = 0.01


def until(true: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait for something that nothing tells of; fails if the process ends before."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < end, "it did not happen"
        time.sleep(STEP)


def unread(pipe: IO[bytes]) -> int:
    """The bytes in a pipe that its other end has not taken yet."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def state(pid: int) -> str:
    """What a process does: R runs, S waits, T is stopped, Z is dead."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def waits_for_more(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has taken all that it was given on standard input, and does nothing until there is more."""
    assert process.stdin is not None
    return not unread(process.stdin) and state(process.pid) == "S"


def signalled(pid: int, number: int) -> bool:
    """Whether a signal was sent to a process that has not noticed it yet."""
    pending = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in pending)


def cpu_s(pid: int, thread: int | None = None) -> float:
    """Seconds of CPU time that a process, or one of its threads, took itself; of one that has ended, as long as nobody waited for it."""
    path = Path(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
    fields = path.read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
