"""Reads the files that say what should be: CI takes them from branches of strangers, so they are regular files of a bounded size."""

from __future__ import annotations

from pathlib import Path

from streamdump.capture.blocks import explain


class Unfit(Exception):
    """Why a file is not read."""


def readable(text: str) -> str:
    """`text` with names of files in it that are in no encoding: what of them is no UTF-8 as `\\xNN`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_text(path: Path, most: int) -> str:
    """The text of a file of at most so many bytes; raises `Unfit` but where there is none, `FileNotFoundError`."""
    try:
        if path.exists() and not path.is_file():
            raise Unfit("is no regular file")
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
