"""Captured text made harmless, widths in terminal cells, and colours."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from unicodedata import category, east_asian_width


class Palette(NamedTuple):
    """Codes put around text; all of them empty where there is no colour."""

    dim: str = ""
    bold: str = ""
    bad: str = ""
    warn: str = ""
    ask: str = ""
    answer: str = ""
    reset: str = ""
    marks: tuple[str, ...] = ("",)
    """Colours that tell conversations apart, taken in turn."""


PLAIN = Palette()
COLOURED = Palette(
    dim="\x1b[2m",
    bold="\x1b[1m",
    bad="\x1b[1;31m",
    warn="\x1b[33m",
    ask="\x1b[36m",
    answer="\x1b[32m",
    reset="\x1b[0m",
    marks=("\x1b[34m", "\x1b[35m", "\x1b[33m", "\x1b[36m", "\x1b[32m"),
)


def visible(text: str) -> str:
    """`text` with every character that could act on a terminal (control, bidirectional, invalid) written as its escape."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


_MICROSECONDS = re.compile("(?<=[0-9] )µs")


def encoded(text: str, encoding: str) -> bytes:
    """Return `text` in the encoding of the output; characters that it lacks are escaped, except that µs becomes us."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return _MICROSECONDS.sub("us", text).encode(encoding, "backslashreplace")


@lru_cache(4096)
def _cells(character: str) -> int:
    if category(character) in ("Mn", "Me") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if east_asian_width(character) in ("W", "F") else 1


def width(text: str) -> int:
    """The terminal cells that `text` takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, cells: int) -> str:
    """`text`, shortened with a mark at its end if it takes more than `cells`."""
    if len(text) <= cells and text.isascii():
        return text
    if width(text) <= cells:
        return text
    used = 0
    for index, character in enumerate(text):
        used += _cells(character)
        if used > cells - 1:
            return text[:index] + "…" if cells > 0 else ""
    return text


def folded(text: str, cells: int) -> list[str]:
    """`text` in pieces of at most `cells`, wherever these end: nothing is left out, and no blank either."""
    if text.isascii() and len(text) <= cells:
        return [text]
    pieces = []
    start = used = 0
    for index, character in enumerate(text):
        size = _cells(character)
        if used + size > cells and index > start:
            pieces.append(text[start:index])
            start, used = index, 0
        used += size
    return [*pieces, text[start:]]


def those(*cases: tuple[object, str]) -> list[str]:
    """What is said of the cases that hold."""
    return [text for holds, text in cases if holds]


def pad(text: str, cells: int) -> str:
    """`text` filled up with blanks to `cells`."""
    return text + " " * (cells - width(text))


def wrapped(text: str, cells: int) -> list[str]:
    """`text` in lines of at most `cells`, divided between words where that is possible; no line for no text."""
    words = text.split()
    line = " ".join(words)
    if words and width(line) <= cells:
        return [line]
    lines: list[str] = []
    line = ""
    for word in words:
        if line and width(line) + 1 + width(word) <= cells:
            line += f" {word}"
            continue
        if line:
            lines.append(line)
        while width(word) > cells > 1:
            head = cut(word, cells + 1)[:-1]
            lines.append(head)
            word = word[len(head) :]
        line = word
    return [*lines, line] if line else lines
