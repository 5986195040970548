"""Rules for `scrub`: which parts of a protocol's messages are confidential.

A protocol has a table of these in its own package (`Protocol.scrub_rules`); by default every text is a name and all bytes are payloads.
Secrets are not in these tables: the layouts mark them. Fields are given as in `compare_rules`; `*` matches anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from ..model import Message, Span

What = Literal["secret", "payload", "key", "name", "text", "address"]
"""A key is a name inside a payload: like names, equal ones get equal replacements."""


class SensitivePart(NamedTuple):
    """Bytes of a frame and their kind; `number`: overwrite with zeros instead of letters."""

    start: int
    end: int
    what: What
    number: bool = False


class ScrubRules(NamedTuple):
    """Which fields may be overwritten, by path."""

    payloads: tuple[str, ...] = ()
    """Data of users: texts, bytes and numbers are overwritten, lengths, counts and booleans are not."""
    overwritten: tuple[str, ...] = ()
    """Data of users whose structure is overwritten, too."""
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """Prose, which may contain names."""
    addresses: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    """Compressed bytes, whose contents are the spans of another buffer."""
    inside: Callable[[Message, Span, bytes], Iterable[SensitivePart] | None] | None = None
    """Returns the secret parts and the names in a secret field, from the bytes behind its length. None: all is secret."""
    parts: Callable[[Message, bytes], Iterable[SensitivePart]] | None = None
    """Returns all parts of a frame, where paths are not enough."""
    sums: Callable[[bytes, bytearray, Sequence[Span]], None] | None = None
    """Corrects checksums that were correct before, given the old and the new frame."""
