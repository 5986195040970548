"""Captured text made harmless, widths in terminal cells, and colours."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    """Colours that distinguish conversations, used in turn."""


SPACE = "  "
"""Stands between the columns of a table."""

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
    """Return the width of `text` in terminal cells."""
    # Durations have a µ
    return len(text) if text.isascii() or text.replace("µ", "u").isascii() else sum(map(_cells, text))


def widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column of a table, whose head is one of the lines."""
    return [max(width(line[column]) for line in lines) for column in range(len(lines[0]))]


def cut(text: str, cells: int) -> str:
    """Return `text`, shortened with a mark at its end if it is wider than `cells`."""
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
    """Return the texts of the cases that are true."""
    return [text for holds, text in cases if holds]


def pad(text: str, cells: int) -> str:
    """`text` filled up with blanks to `cells`."""
    return text + " " * (cells - width(text))


_WORDS = r"(?<![0-9]) +| +(?!(?:ns|us|µs|ms|s|min|h|bytes?)(?![^\W_]))"
"""The blanks at which a line may end: not those between a number and its unit; compiled when a line is broken, which few runs do."""

_PARTS = " {2,}"
"""The blanks between the parts of a line."""


def wrapped(text: str, cells: int) -> list[str]:
    """Return `text` in lines of at most `cells`, broken between words, elsewhere only in words that are longer; no line for no text."""
    line = " ".join(text.split())
    return _broken(line, cells, _WORDS) if line else []


def wrapped_parts(text: str, cells: int) -> list[str]:
    """Return `text`, whose parts stand two blanks apart, in lines of at most `cells`: broken between parts rather than in them."""
    return _broken(text, cells, _PARTS)


def _broken(text: str, cells: int, blanks: str) -> list[str]:
    """Return `text` in lines of at most `cells`, broken at some of these blanks; longer pieces are broken at words, or anywhere."""
    if width(text) <= cells:
        return [text]
    lines: list[str] = []
    line = blank = ""
    start = 0
    for end, behind in [*(found.span() for found in re.finditer(blanks, text)), (len(text), len(text))]:
        piece = text[start:end]
        if width(line) + len(blank) + width(piece) <= cells:
            line += blank + piece
        elif blanks is _PARTS and (width(piece) > cells or 2 * width(line) < cells):
            # A line of its own would leave most of this one empty
            *more, line = _broken(line + blank + piece, cells, _WORDS)
            lines += more
        else:
            *more, piece = folded(piece, cells)
            lines += [line, *more] if line else more
            line = piece
        blank, start = text[end:behind], behind
    return [*lines, line]
