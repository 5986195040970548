"""Regular expressions of users: of RE2, so that none takes a time that explodes."""

from __future__ import annotations

from typing import Any

from streamdump.errors import UsageError


def linear(text: str) -> Any:
    """A regular expression that takes a time which grows with the text and no faster; raises `ValueError`, or `UsageError`
    where the engine is missing. It takes `encodable` text."""
    try:
        import re2  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError("regular expressions take google-re2, which is not installed here: pip install google-re2") from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeError) as error:
        said = error.args[0] if error.args else error
        raise ValueError(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)) from None


def encodable(text: str) -> str:
    """`text` with something else for halves of characters, which UTF-8 does not have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
