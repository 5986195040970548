"""Which bytes of a message are what: secrets, bodies, names, prose, addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ..model import Message, Span
from ..protocols.scrub_rules import ScrubRules, SensitivePart, What

ANY = ScrubRules()
_REDACTED = re.compile(r"<redacted ([0-9]+) bytes>")
_STRUCTURE = frozenset(("length", "count"))

LONGEST = 500
"""Characters of a path that identify a field; the fields below it are of the same kind. Names in documents of users may be long."""

UNREAD = frozenset(("undecoded", "trailing"))


def parts(message: Message, scrub_rules: ScrubRules | None) -> Iterator[SensitivePart]:
    """What of the frame may be overwritten; offsets count in it. `message` was made with details, bytes raw, secrets hidden."""
    assert message.raw is not None
    frame = message.raw["frame"]
    scrub_rules, known = (scrub_rules, True) if scrub_rules is not None else (ANY, False)
    if scrub_rules.parts is not None:
        yield from scrub_rules.parts(message, frame)
        return
    packed: list[Span] = []
    hidden: dict[str, set[What]] = {}
    for span, path in paths(message.spans or ()):
        if not span.leaf or not span.length:
            continue
        if span.buffer != "frame":
            what = "secret" if span.secret else _what(path, span, scrub_rules, known)
            hidden.setdefault(span.buffer, set()).update(() if what is None else (what,))
            continue
        if span.name in scrub_rules.packed or (span.label or "").startswith("unpacked"):
            packed.append(span)
        elif span.secret:
            yield from _secret(message, span, frame, scrub_rules)
        else:
            what = _what(path, span, scrub_rules, known)
            if what is not None:
                yield from _part(span, path, frame, what, scrub_rules)
    for span in packed:
        # compressed bytes are overwritten completely, whichever of them were to be
        buffer = span.label if span.label is not None and span.label.startswith("unpacked") else "unpacked"
        for what in sorted(hidden.get(buffer, ("payload",))):
            yield SensitivePart(span.offset, span.offset + span.length, what)


def paths(spans: Iterable[Span]) -> Iterator[tuple[Span, str]]:
    """Each span with the first characters of the path of its field, without the numbers of lists; values of keys by their key."""
    stack: list[tuple[int, str]] = []
    keys: dict[int, str] = {}
    for span in spans:
        while stack and span.depth <= stack[-1][0]:
            stack.pop()
        name = span.name.partition("[")[0]
        around = stack[-1][1] if stack else ""
        if span.name.endswith("]") and around.rpartition(".")[2] == name:
            path = around
        elif span.name == "value" and span.depth in keys:
            path = f'{around}["{keys.pop(span.depth)}"]'
        else:
            path = f"{around}.{name}" if around else name
        if span.leaf and span.name == "key" and isinstance(span.value, str):
            keys[span.depth] = span.value
        path = path[:LONGEST]
        if not span.leaf:
            stack.append((span.depth, path))
        yield span, path


def _what(path: str, span: Span, scrub_rules: ScrubRules, known: bool) -> What | None:
    if not known:
        if span.name in UNREAD or isinstance(span.value, bytes):
            return "payload"
        return "name" if isinstance(span.value, str) else None
    return _looked_up(path, scrub_rules)


@lru_cache(16_384)
def _looked_up(path: str, scrub_rules: ScrubRules) -> What | None:
    for patterns, what in (
        (scrub_rules.overwritten, "payload"),
        (scrub_rules.payloads, "payload"),
        (scrub_rules.addresses, "address"),
        (scrub_rules.names, "name"),
        (scrub_rules.texts, "text"),
    ):
        if patterns and _pattern(patterns).match(path):
            return what  # type: ignore[return-value]
    return None


@lru_cache
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Matches the fields that the patterns name, and all below them."""
    each = "|".join(re.escape(one).replace(r"\*", ".*") for one in patterns)
    return re.compile(rf"(?:{each})(?:[.\[]|$)", re.DOTALL)


def _part(span: Span, path: str, frame: bytes, what: What, scrub_rules: ScrubRules) -> Iterator[SensitivePart]:
    start, end = span.offset, span.offset + span.length
    if scrub_rules.overwritten and _pattern(scrub_rules.overwritten).match(path):
        yield SensitivePart(start, end, what)
    elif isinstance(span.value, str | bytes):
        yield SensitivePart(content(span, frame), end, what)
    elif span.name in UNREAD:
        yield SensitivePart(start, end, what)
    elif what == "payload" and span.name not in _STRUCTURE and not isinstance(span.value, bool) and span.value is not None:
        yield SensitivePart(start, end, what, True)


def content(span: Span, frame: bytes) -> int:
    """Where the text or the bytes of a value begin, behind its length."""
    start, end = span.offset, span.offset + span.length
    value = span.value
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if len(raw) <= span.length and frame[end - len(raw) : end] == raw:
        return end - len(raw)
    for size in (1, 2, 4):
        for order in ("big", "little"):
            if int.from_bytes(frame[start : start + size], order) == span.length - size:
                return start + size
    return start


def _secret(message: Message, span: Span, frame: bytes, scrub_rules: ScrubRules) -> Iterator[SensitivePart]:
    if span.value is None and span.name not in UNREAD:
        # a length that says that there is none
        return
    start, end = span.offset, span.offset + span.length
    found = _REDACTED.fullmatch(span.value) if isinstance(span.value, str) else None
    if found is not None:
        start = max(start, end - int(found[1]))
    inside = scrub_rules.inside(message, span, frame[start:end]) if scrub_rules.inside is not None else None
    if inside is None:
        yield SensitivePart(start, end, "secret")
    else:
        yield from (part._replace(start=start + part.start, end=start + part.end) for part in inside)
