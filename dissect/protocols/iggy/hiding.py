"""What is hidden of Apache Iggy's frames that are not as their layout says: a password or a token may be where no field is.

A wrong length moves it into a name, a wrong command code into bytes that nobody declared a secret.
"""

from __future__ import annotations

import re
from typing import Any

from dissect.layout.values import redacted
from dissect.layout.walk import Walked
from dissect.model import Span

SMALL = 1_024
"""No frame that carries a secret has more bytes behind its header."""

_TEXT = re.compile(rb"[\x20-\x7e\x80-\xff]{3}")
_TOKEN = re.compile(rb"[\x00-\xff][\x21-\x7e]{3,255}[\x00-\xff]{0,4}", re.DOTALL)

NAMES = frozenset(("username", "version", "context", "sdk_name", "sdk_version", "name", "value"))
"""Fields that a secret may have slipped into, in the commands that have one."""

_REST = frozenset(("trailing", "undecoded"))


def may_hold_text(data: bytes, start: int, end: int) -> bool:
    """Whether a secret may be among these bytes, of which nothing is known."""
    return end - start <= SMALL and _TEXT.search(data, start, end) is not None


def may_be_token(data: bytes, start: int, end: int) -> bool:
    """Whether these bytes may be the answer that hands out a token, though perhaps a damaged one."""
    return end - start <= 264 and _TOKEN.fullmatch(data, start, end) is not None


def hide(walked: Walked, data: bytes, start: int, beside: bool) -> Walked:
    """The same with what may be a secret hidden: text that no field accounts for, and names where a secret stands `beside` them."""
    fault = walked.fault
    # permissions come behind the password, and some clients send them in a form of their own
    every = fault is not None and not fault.field.startswith("permissions")

    def wanted(span: Span) -> bool:
        if not span.leaf or span.secret:
            return False
        if span.name in _REST:
            return may_hold_text(data, start + span.offset, start + span.offset + span.length)
        return beside and span.name in NAMES and isinstance(span.value, str) and (every or not span.value.isprintable())

    names = {span.name for span in walked.spans if wanted(span)}
    if not names:
        return walked
    sizes: dict[str, list[int]] = {name: [] for name in names}
    spans: list[Span] = []
    for span in walked.spans:
        if span.leaf and span.name in names and not span.secret:
            size = _size(span, data, start)
            sizes[span.name].append(size)
            span = span._replace(value=redacted(size), secret=True)
        spans.append(span)
    return walked._replace(fields=_without(walked.fields, sizes), spans=spans)


def _size(span: Span, data: bytes, start: int) -> int:
    """The bytes of a value without the length in front of it."""
    if span.name not in _REST:
        for width in (1, 4):
            length = int.from_bytes(data[start + span.offset : start + span.offset + width], "little")
            if length == span.length - width:
                return length
    return span.length


def _without(value: Any, sizes: dict[str, list[int]]) -> Any:
    if isinstance(value, dict):
        return {key: _told(one, sizes[key]) if key in sizes else _without(one, sizes) for key, one in value.items()}
    if isinstance(value, list):
        return [_without(one, sizes) for one in value]
    return value


def _told(value: Any, sizes: list[int]) -> Any:
    """A value as `hide` shows it; numbers stay, and what was hidden before."""
    if not isinstance(value, str) or value.startswith("<redacted "):
        return value
    return redacted(sizes.pop(0) if sizes else len(value))
