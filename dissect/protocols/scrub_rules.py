"""What in a protocol's messages is nobody else's business: the words of the tables that `scrub` overwrites by.

A protocol says so in a table of its own folder (`Protocol.scrub_rules`); without one every text is taken for a name and all bytes for
what users sent. Secrets are not in these tables: the layouts mark them. Fields are named as in `compare_rules`, `*` stands for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from ..model import Message, Span

What = Literal["secret", "payload", "key", "name", "text", "address"]
"""A key is a name inside of a payload: like names, equal ones get equal replacements."""


class SensitivePart(NamedTuple):
    """Some bytes of a frame, and what they are; `number`: zeros do less harm there than letters."""

    start: int
    end: int
    what: What
    number: bool = False


class ScrubRules(NamedTuple):
    """What may be overwritten in a protocol's messages, by paths of fields."""

    payloads: tuple[str, ...] = ()
    """What users sent: texts, bytes and numbers, but no lengths, counts and booleans."""
    overwritten: tuple[str, ...] = ()
    """What users sent and what structures it: all of the field is overwritten."""
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """Prose for people, which may hold names."""
    addresses: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    """Bytes that unpack to what the spans of another buffer say."""
    inside: Callable[[Message, Span, bytes], Iterable[SensitivePart] | None] | None = None
    """What in a secret is one and what is a name, given the bytes behind its length; offsets count in these. None: all is secret."""
    parts: Callable[[Message, bytes], Iterable[SensitivePart]] | None = None
    """All parts of a frame, where paths cannot say it."""
    sums: Callable[[bytes, bytearray, Sequence[Span]], None] | None = None
    """Makes checksums of a frame right again that were right before, given the frame as it was and as it is now."""
