"""Redaction of Apache Iggy's frames that do not match their layout: a password or a token may be outside of its field.

A wrong length moves it into a name, a wrong command code into bytes that are not declared secret.
"""

from __future__ import annotations

import re
from typing import Any

from ...layout.values import redacted
from ...layout.walker import Walked
from ...model import Span

SMALL = 1_024
"""No frame that carries a secret has more bytes behind its header; but one whose size is wrong may hold it."""

_TEXT = re.compile(rb"[\x20-\x7e\x80-\xff]{3}")
_TEXTS = re.compile(rb"[\x20-\x7e\x80-\xff]+")
_WORD = re.compile(rb"[\x21-\x7e]{6}")
_TOKEN = re.compile(rb"[\x00-\xff][\x21-\x7e]{3,255}[\x00-\xff]{0,4}", re.DOTALL)

NAMES = frozenset(("username", "version", "context", "sdk_name", "sdk_version", "name", "value"))
"""Fields that a secret may have slipped into, in the commands that have one."""

_REST = frozenset(("trailing", "undecoded"))

_FRAME = re.compile(rb"..\x00\x00[\x20\x21\x25\x26\x28\x2a\x2c\x2d]\x00\x00\x00|[\x05\x08]\x00{67}", re.DOTALL)
"""The beginning of a request that carries a secret, or the middle of the header of 256 bytes."""


LOGIN = re.compile(
    rb"[\x08-\xff]\x00\x00\x00(?:[\x20\x26]\x00\x00\x00[\x01-\x40][!-~]{1,64}[\x01-\x7f]|\x2c\x00\x00\x00[\x10-\xff])[!-~]{3}"
    rb"|\x05\x00{67}.{48}(?:\x01\x00{7}|\x02\x00{7}.{12}[\x0f\x26\x2c]\x00{3})",
    re.DOTALL,
)
"""The beginning of a login with a password or a token, in both framings."""


def may_hold_text(data: bytes, start: int, end: int, several: bool = False) -> bool:
    """Return whether unknown bytes may contain a secret; `several`: they may be more than one frame."""
    return (_TEXT if several or end - start <= SMALL else _FRAME).search(data, start, end) is not None


def is_text(code: int) -> bool:
    """Whether a command's code is so much like text that it may be a piece of a secret."""
    return _TEXT.search(code.to_bytes(4, "little")) is not None


def may_be_token(data: bytes, start: int, end: int) -> bool:
    """Whether these bytes may be the answer that hands out a token, though perhaps a damaged one."""
    return end - start <= 264 and _TOKEN.fullmatch(data, start, end) is not None


def may_hold_token(data: bytes, start: int, end: int) -> bool:
    """Whether a token may be among these bytes, which answer nothing that is known."""
    return end - start <= SMALL and _WORD.search(data, start, end) is not None


def may_be_login(data: bytes, start: int, end: int) -> bool:
    """Whether this begins as the body of a request that carries a password: two texts, at the most a few fields in front of them."""
    skipped = [0, 4]
    if end - start > 2:
        skipped.append(2 + data[start + 1])
    return any(_text_at(data, _text_at(data, start + skip, end), end) for skip in skipped)


def _text_at(data: bytes, at: int, end: int) -> int:
    """Where the text ends that begins with its length here, 0 if none does."""
    if not 0 < at < end:
        return 0
    stop = at + 1 + data[at]
    return stop if at + 1 < stop <= end and _TEXTS.fullmatch(data, at + 1, stop) else 0


def hide(walked: Walked, data: bytes, start: int, secret: str | None, cut: bool = False) -> Walked:
    """Hides in a walked frame what may be a secret: text that no field accounts for, and names beside a secret.

    `secret`: the command, if it carries one. `cut`: bytes of the frame are missing, the others are as they should be; unless
    fewer would have done.
    """
    fault = walked.fault
    over = fault is None or fault.field == "trailing"
    cut = cut and is_known(walked.fields)
    # permissions come behind the password and a status, and some clients send them in a form of their own, or more than they announce
    behind = fault.field.startswith("permissions") if fault is not None else secret == "create_user"
    every = not (behind and walked.fields.get("user_status_label"))
    beside = secret is not None and (over or not cut)

    def wanted(span: Span) -> bool:
        if not span.leaf or span.secret:
            return False
        if span.name in _REST:
            at = start + span.offset
            search = _TEXT if over else _FRAME if cut else None
            return may_hold_text(data, at, at + span.length) if search is None else search.search(data, at, at + span.length) is not None
        if secret is None or span.name not in NAMES or not isinstance(span.value, str):
            return False
        return (beside and every) or not span.value.isprintable()

    names = {span.name for span in walked.spans if wanted(span)}
    if not names:
        return walked
    sizes: dict[str, list[int]] = {name: [] for name in names}
    for span in walked.spans:
        if span.leaf and span.name in names and not span.secret:
            size = _size(span, data, start)
            sizes[span.name].append(size)
            span.value, span.secret = redacted(size), True
    return walked._replace(fields=_without(walked.fields, sizes))


def is_known(value: Any) -> bool:
    """Whether no number in these fields lacks a label that numbers of its kind have."""
    if isinstance(value, dict):
        return all(one is not None if key.endswith("_label") else is_known(one) for key, one in value.items())
    return not isinstance(value, list) or all(map(is_known, value))


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
        return {key: _redacted_again(one, sizes[key]) if key in sizes else _without(one, sizes) for key, one in value.items()}
    if isinstance(value, list):
        return [_without(one, sizes) for one in value]
    return value


def _redacted_again(value: Any, sizes: list[int]) -> Any:
    """Return a value as `hide` shows it; numbers, and values hidden before, stay."""
    if not isinstance(value, str) or value.startswith("<redacted "):
        return value
    return redacted(sizes.pop(0) if sizes else len(value))
