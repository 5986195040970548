"""Regular expressions of users, compiled by RE2, which runs in linear time."""

from __future__ import annotations

from typing import Any

from .errors import UsageError, how_to_install

_LARGE = b"pattern too large - compile failed"
SMALL = 1 << 16
"""A memory limit with which RE2 compiles no slow program."""


class TooLarge(ValueError):
    """A regular expression of too many instructions."""


def linear(text: str, largest: int | None = None) -> Any:
    """Return a compiled regular expression for `encodable` text, with a run time linear in it. Raises `ValueError`, `TooLarge` if it has
    more than `largest` instructions, which the run time depends on, too, or `UsageError` if RE2 is not installed."""
    try:
        import re2  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError(f"regular expressions need google-re2: {how_to_install('patterns')}") from None
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
    """Return `text` with surrogates replaced, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
