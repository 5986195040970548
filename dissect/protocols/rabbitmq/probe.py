"""Whether a conversation speaks RabbitMQ Streams, the protocol in use or its draft.

Nothing marks a frame, so evidence is frames that follow each other, each read to its last byte without a flaw. Kafka's
requests have the same shape and partly the same keys, but not the same contents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dissect.layout import Layout, Style, decoder
from dissect.model import Verdict
from dissect.protocols.base import SideView, View
from dissect.protocols.rabbitmq.language import CURRENT_LANGUAGE, DRAFT_LANGUAGE, Language, is_sound

FRAMES = 24
"""Frames of one side that are looked at."""

_STRICT = {"PeerProperties": 0.95, "Deliver": 0.95, "SaslHandshake": 0.75, "ExchangeCommandVersions": 0.9}
"""How sure one sound frame makes, where it is not what its length says."""

_WEAK = frozenset(("Heartbeat", "Credit"))

_PLAIN = Style()


class Seen(NamedTuple):
    """What one side's bytes are as those of a client or a server; `wrong`: they cannot be."""

    doubt: float
    frames: int
    weak: int
    evidence: tuple[str, ...]
    wrong: bool


_NOTHING = Seen(1.0, 0, 0, (), False)
_WRONG = Seen(1.0, 0, 0, (), True)


def probe_current(view: View) -> Verdict | None:
    return _probe(view, CURRENT_LANGUAGE, "rabbitmq-stream")


def probe_draft(view: View) -> Verdict | None:
    return _probe(view, DRAFT_LANGUAGE, "rabbitmq-stream-draft")


def _probe(view: View, language: Language, protocol: str) -> Verdict | None:
    best: tuple[float, int, tuple[Seen, Seen]] | None = None
    equal = False
    for client in (0,) if view.syn else (0, 1):
        seen = (
            _look(view.sides[0], language, client == 0, view.final),
            _look(view.sides[1], language, client == 1, view.final),
        )
        if seen[0].wrong or seen[1].wrong:
            continue
        frames = seen[0].frames + seen[1].frames
        if not frames:
            continue
        confidence = 1.0 - seen[0].doubt * seen[1].doubt
        if language is DRAFT_LANGUAGE and frames < 2:
            # Small sizes and zeros are common: it takes another frame, or an answer.
            confidence = min(confidence, 0.85)
        if frames == seen[0].weak + seen[1].weak and frames < 2:
            confidence = min(confidence, 0.45)
        if best is None or confidence > best[0]:
            best, equal = (confidence, client, seen), False
        elif confidence == best[0]:
            equal = True
    if best is None:
        return None
    confidence, client, seen = best
    version = "version 0" if language is DRAFT_LANGUAGE else "version 1"
    evidence = [*seen[client].evidence, *seen[1 - client].evidence, version]
    if seen[0].frames and seen[1].frames:
        evidence.append("both sides agree")
    return Verdict(protocol, min(confidence, 0.99), tuple(evidence), None, None if equal else client)


def _look(side: SideView, language: Language, client: bool, final: bool) -> Seen:
    if not side.runs:
        return _NOTHING
    data = side.runs[0][1]
    at = 0
    if not side.from_start:
        found, at = language.search(client, data, 0, len(data), final)
        if not found:
            return _NOTHING
    return _follow(data, at, side.from_start, language, client)


def _follow(data: bytes, at: int, start: bool, language: Language, client: bool) -> Seen:
    """Follow the frames from `at` on."""
    tables = language.tables(client)
    end = len(data)
    doubt = 1.0
    names: list[str] = []
    weak = 0
    first = ""
    while end - at >= 8 and len(names) < FRAMES:
        length, layouts = language.header(tables, data, at, end)
        if not length:
            if not names:
                return _WRONG
            # An unknown command is possible, but more than one frame must have been right before.
            return Seen(min(1.0, doubt * 4), len(names), weak, _evidence(names, first, client, False), False)
        if length > end - at:
            if language.tells(layouts, data, at, end):
                doubt *= 0.08
                names.append("Deliver")
                first = first or "Deliver, its sizes agree with its chunk header"
                at = end
            break
        sound = [layout for layout in layouts if is_sound(layout, data, at, at + length) and _is_readable(layout, data, at, at + length)]
        if not sound:
            return _WRONG if not names else Seen(min(1.0, doubt * 2), len(names), weak, _evidence(names, first, client, False), False)
        layout = sound[0]
        if not names:
            first = _first(layout, data, at, at + length)
        names.append(layout.name)
        doubt *= 1.0 - _weight(layout, length)
        weak += layout.name in _WEAK
        at += length
    if not names:
        return _NOTHING
    return Seen(doubt, len(names), weak, _evidence(names, first, client, at == end), False)


def _weight(layout: Layout, length: int) -> float:
    """How sure one sound frame makes."""
    if layout.name in _WEAK:
        return 0.45
    if layout.name == "SaslHandshake" and layout.kind == "request":
        return 0.7
    return _STRICT.get(layout.name, 0.6 if length <= 16 else 0.75)


def _is_readable(layout: Layout, data: bytes, start: int, end: int) -> bool:
    """Names are printable in practice; bytes of other protocols that happen to fit are not."""
    if layout.name in ("Publish", "Deliver"):
        return True
    fields: Any = decoder(layout, _PLAIN)(data, start, end)
    stack = [fields]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, str) and not value.isprintable() and any(ord(char) < 32 and char not in "\t\r\n" for char in value):
            return False
    return True


def _first(layout: Layout, data: bytes, start: int, end: int) -> str:
    """The strongest thing to say of the first frame."""
    fields = decoder(layout, _PLAIN)(data, start, end)
    what = f"{layout.name} {layout.kind}" if layout.kind != "one_way" else layout.name
    if "peer_properties" in fields:
        return f"{what}, {len(fields['peer_properties'])} properties fill the frame"
    if "mechanisms" in fields:
        return f"{what}, {len(fields['mechanisms'])} mechanisms fill the frame"
    if "chunk" in fields:
        return f"{what}, the checksum of its chunk is right"
    return f"{what} of exactly {end - start} bytes"


def _evidence(names: list[str], first: str, client: bool, whole: bool) -> tuple[str, ...]:
    who = "client" if client else "server"
    evidence = [f"{who}: {first}"]
    if len(names) > 1:
        shown = ", ".join(names[1:4]) + (", ..." if len(names) > 4 else "")
        evidence.append(f"{who}: {len(names)} frames follow each other ({shown} next)")
    if whole:
        evidence.append(f"{who}: the last frame ends with the data")
    return tuple(evidence)
