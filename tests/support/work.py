"""Counts the work that something takes, where a clock would tell of the machine."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(do: Callable[[], Any]) -> int:
    """The bytecode instructions that Python executes in `do`: loops inside of numpy and other libraries count as one."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        else:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


def peak(do: Callable[[], Any]) -> int:
    """The most bytes that `do` has taken at one time."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
