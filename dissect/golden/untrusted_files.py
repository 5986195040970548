"""Reads golden files and settings: CI gets them from untrusted branches, so they must be regular files of a bounded size."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from ..capture.blocks import explain

_PARTS = re.compile(r"""(?:["'\w-]++[ \t]*+\.[ \t]*+){50}""")
"""A name for which tomllib needs quadratic time."""


class Unfit(Exception):
    """Why a file is not read."""


def readable(text: str) -> str:
    """`text` with each byte of a file name that is not UTF-8 as `\\xNN`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_text(path: Path, most: int) -> str:
    """Return the text of a file of at most `most` bytes; raise `FileNotFoundError` where there is none, `Unfit` where it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise Unfit("is not a regular file")
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise Unfit(f"is larger than {most >> 10:,} KiB")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unfit(f"cannot be read: {explain(error)}") from error
    except UnicodeDecodeError as error:
        raise Unfit("is not text in UTF-8") from error


def read_toml(path: Path, most: int) -> dict[str, Any]:
    """Return the content of a TOML file of at most `most` bytes; raise as `read_text` does, and `Unfit` where it is not TOML."""
    text = read_text(path, most)
    if _PARTS.search(text):
        raise Unfit("a name of too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise Unfit("too many tables or lists in each other") from error
    except tomllib.TOMLDecodeError as error:
        raise Unfit(str(error)) from error
    except ValueError as error:
        raise Unfit("a number of too many digits") from error
