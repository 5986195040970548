"""What in mewbase is nobody else's business: in events, queries and commands all values and the names of fields. It has no checksums."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from ...model import Message, Span
from ..scrub_rules import ScrubRules, SensitivePart, What

_INT32 = Struct("<i").unpack_from

_NAMES = ("channel", "streamName", "eventType", "name", "binder", "durableID", "filterName", "docID", "dodID", "binders", "channels")

_OWN: dict[str, What] = {
    **dict.fromkeys(("event", "params", "result", "matcher", "command"), "payload"),
    **dict.fromkeys((*_NAMES, "authInfo"), "name"),
    "errMsg": "text",
}
"""What the fields of frames hold; of authInfo only the user's name is not a secret."""

_NULL = 0x0A

_FIXED = frozenset((0x01, 0x07, 0x09, 0x10, 0x11, 0x12, 0x13))
"""Values that are numbers, times and ids."""

_AROUND = {**dict.fromkeys(_FIXED, (0, 0)), 0x02: (4, 1), 0x05: (5, 0), 0x0D: (4, 1), 0x0E: (4, 1), 0x0F: (8, 1)}
"""Bytes of a value, by its kind, in front of what it says, and behind."""


def _parts(message: Message, frame: bytes) -> Iterator[SensitivePart]:
    """The frame's fields by name; in those that users fill, the names below as well."""
    within: list[tuple[int, What]] = []
    for span in message.spans or ():
        while within and span.depth <= within[-1][0]:
            within.pop()
        inside: What | None = within[-1][1] if within else None
        if span.name in ("undecoded", "trailing"):
            yield SensitivePart(span.offset, span.offset + span.length, "secret" if span.secret else "payload")
            continue
        if span.secret and span.name.startswith("<redacted "):
            # damage may have made it of a password
            yield SensitivePart(span.offset + 1, frame.find(0, span.offset + 1, span.offset + span.length), "secret")
        what: What | None = "secret" if span.secret else inside or _OWN.get(span.name)
        if not span.leaf:
            if what is not None and span.depth:
                within.append((span.depth, what))
                if inside is not None:
                    yield from _key(frame, span, inside)
            continue
        if what is None or span.name in ("length", "end"):
            continue
        if inside is not None:
            yield from _key(frame, span, inside)
        if frame[span.offset] != _NULL:
            yield from _value(frame, span, what)


def _key(frame: bytes, span: Span, what: What) -> Iterator[SensitivePart]:
    """The name of an element; those of arrays are numbers."""
    stop = frame.find(0, span.offset + 1, span.offset + span.length)
    raw = frame[span.offset + 1 : stop]
    if stop > 0 and what == "payload" and (raw == span.name.encode() or not raw.isascii()):
        yield SensitivePart(span.offset + 1, stop, "key")


def _value(frame: bytes, span: Span, what: What) -> Iterator[SensitivePart]:
    start, end = span.offset, span.offset + span.length
    at = frame.find(0, start + 1, end) + 1
    kind = frame[start]
    if not at:
        yield SensitivePart(start, end, what)
        return
    if kind in _AROUND:
        before, behind = _AROUND[kind]
        yield SensitivePart(at + before, end - behind, what, kind in _FIXED)
    elif kind == 0x0B:
        middle = frame.find(0, at, end)
        yield SensitivePart(at, middle if middle >= 0 else end, what)
    elif kind == 0x0C and end - at > 17:
        size = _INT32(frame, at)[0]
        yield SensitivePart(at + 4, min(at + 3 + size, end), what)
        yield SensitivePart(end - 12, end, what, True)


SCRUB_RULES = ScrubRules(parts=_parts)
