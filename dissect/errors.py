"""The exceptions of the library."""

from __future__ import annotations

import os
from errno import EMFILE, ENFILE
from pathlib import Path
from typing import NamedTuple
from unicodedata import combining, east_asian_width

__all__ = [
    "CaptureError",
    "FilterError",
    "InterfaceError",
    "InternalError",
    "MissingCodec",
    "NoCapture",
    "Report",
    "StreamdumpError",
    "UsageError",
    "how_to_install",
]

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, where this is one."""


def how_to_install(extra: str) -> str:
    """Return what brings an extra along: in a checkout its name, elsewhere the wheel that was installed. No index has the package."""
    if (ROOT / "pyproject.toml").is_file():
        return f"pip install '.[{extra}]' in {ROOT}"
    from importlib.metadata import version

    return f"pip install '{__package__}-{version(__package__)}-py3-none-any.whl[{extra}]', with the path of that file"


class StreamdumpError(Exception):
    """Base of every error that a user can cause; its text is one clear sentence."""


class CaptureError(StreamdumpError):
    """A file that is not a capture, is damaged or truncated, or an interface that does not open.

    `file` is the name as the user gave it, `offset` the byte position in the (unpacked) file where reading
    ended, and `packet` the number of the last complete packet; None if there is none.
    """

    def __init__(self, reason: str, file: str | None = None, offset: int | None = None, packet: int | None = None) -> None:
        self.reason = reason
        self.file = file
        self.offset = offset
        self.packet = packet
        where = f"{file}: " if file is not None else ""
        at = []
        if packet is not None:
            at.append(f"after packet {packet}")
        if offset is not None:
            at.append(f"at byte {offset}")
        super().__init__(f"{where}{reason}{' (' + ', '.join(at) + ')' if at else ''}")


class NoCapture(CaptureError):
    """A file that is complete, but not a capture."""


class MissingCodec(CaptureError):
    """A compressed capture whose decompressor is not installed (exit code 2, not 3)."""


class InterfaceError(CaptureError):
    """No permission to capture, no such interface, or one that went away (exit code 4)."""


class UsageError(StreamdumpError):
    """An invalid option value or filter (exit code 2)."""


def refuse(*cases: tuple[object, str]) -> None:
    """Raise `UsageError` with the text of the first case that is true."""
    for holds, text in cases:
        if holds:
            raise UsageError(text)


class FilterError(UsageError):
    """A filter with a syntax error or an unknown name: `reason`, and the place `start` to `end` in the `expression`."""

    def __init__(self, reason: str, expression: str, start: int, end: int) -> None:
        self.reason = _visible(reason)
        self.expression = expression
        self.start = start
        self.end = end
        super().__init__("\n".join((self.reason, *self.place())))

    def place(self) -> tuple[str, str]:
        """Return the part of the expression around the place, and a line of carets below it."""
        first = max(0, self.start - PLACE // 2)
        last = max(self.end, self.start + 1)
        before = self.expression[first : self.start]
        there = self.expression[self.start : min(last, self.start + PLACE)]
        behind = self.expression[last : last + PLACE // 2] if last - self.start <= PLACE else ""
        head = ("... " if first else "") + _visible(before)
        tail = " ..." if last + len(behind) < len(self.expression) else ""
        line = f"  {head}{_visible(there)}{_visible(behind)}{tail}"
        return line, f"  {' ' * _cells(head)}{'^' * max(1, _cells(_visible(there)))}"


PLACE = 80
"""Characters of a filter that are shown around a place, or as the place itself."""


def _visible(text: str) -> str:
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


def _cells(text: str) -> int:
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


class ForeignState(UsageError):
    """The state of open conversations that another version of streamdump wrote, or that is damaged."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the state of open conversations was written by another version of streamdump: {reason}")


class Malformed(Exception):
    """Bytes that do not fit their layout; becomes `Message.fault` in the dissector and never leaves it.

    `offset` counts from the start of `buffer` ("frame", or "unpacked" for a decompressed one).
    """

    def __init__(self, field: str, offset: int, reason: str, buffer: str = "frame") -> None:
        self.field = field
        self.offset = offset
        self.reason = reason
        self.buffer = buffer
        super().__init__(f"{field} at byte {offset}: {reason}")


class OverLimit(Malformed):
    """More values than a frame or a conversation may have: those before were made, the rest was not read."""


class InternalError(StreamdumpError):
    """Bugs in streamdump, raised when everything else was read: each cost the rest of one conversation, or what its report names.

    `reports`: a line for each, for a bug report.
    """

    def __init__(self, reports: list[str]) -> None:
        self.reports = reports
        super().__init__(f"{reports[0]}{f' (and {len(reports) - 1} more)' if len(reports) > 1 else ''}")


class Report(NamedTuple):
    """The report of an internal error: what and where it is, what it cost, and the packet and conversation, if any."""

    what: str
    cost: str
    number: int | None = None
    file: int | None = None
    conversation: int | None = None
    between: str = ""

    def text(self, capture: str | None) -> str:
        """Return one line."""
        packet = "" if self.number is None else f", packet {self.number}"
        where = "" if capture is None else f" of {capture}"
        whose = "" if self.conversation is None else f", conversation {self.conversation} {self.between}"
        return f"internal error: {self.what}{packet}{where}{whose}: {self.cost}; please report this line"


BARRIER = "STREAMDUMP_BARRIER"
"""With the value `off` in the environment, an unexpected exception ends the program, with a traceback."""


def crowded(error: Exception) -> bool:
    """Return whether the limit of open files is reached: then not even a module can be loaded, which is not a bug."""
    return isinstance(error, OSError) and error.errno in (EMFILE, ENFILE)


def describe_exception(error: Exception) -> str:
    """Return the class of an unexpected exception and its place in our code; no text, which may contain secrets.

    Raises the exception again if it is not a bug, or the barrier is off.
    """
    if isinstance(error, StreamdumpError | BrokenPipeError) or crowded(error) or os.environ.get(BARRIER) == "off":
        raise error
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("streamdump."):
            place = f" in {module.replace('.', '/')}.py:{trace.tb_lineno} ({code.co_name})"
        elif code.co_filename.startswith("<layout "):
            place = f" in {code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}"
