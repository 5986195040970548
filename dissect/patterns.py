"""Regular expressions of users: of RE2, so that none takes a time that explodes."""

from __future__ import annotations

from typing import Any

from .errors import UsageError

_LARGE = b"pattern too large - compile failed"
SMALL = 1 << 16
"""Bytes in which RE2 compiles no program that takes long to compile."""


class TooLarge(ValueError):
    """A regular expression of too many instructions."""


def linear(text: str, largest: int | None = None) -> Any:
    """A regular expression that takes a time which grows with the text and no faster; raises `ValueError`, `TooLarge` where it has more
    than `largest` instructions, by which that time may grow as well, or `UsageError` where the engine is missing. It takes `encodable`
    text."""
    try:
        import re2  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError("regular expressions take google-re2, which is not installed here: pip install google-re2") from None
    options = re2.Options()
    options.log_errors = False
    most = options.max_mem
    try:
        if largest is not None:
            options.max_mem = SMALL
            if re2.compile(text, options).programsize > largest:
                raise TooLarge
            options.max_mem = most
        return re2.compile(text, options)
    except (re2.error, UnicodeError) as error:
        message = error.args[0] if error.args else error
        if message == _LARGE:
            raise TooLarge from None
        raise ValueError(message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)) from None


def encodable(text: str) -> str:
    """`text` with something else for halves of characters, which UTF-8 does not have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
