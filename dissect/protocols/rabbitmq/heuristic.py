"""Whether a conversation speaks RabbitMQ Streams, the protocol in use or its draft.

Nothing marks a frame, so evidence is frames that follow each other, each read to its last byte without a flaw. Kafka's
requests have the same shape and partly the same keys, but not the same contents.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Any, NamedTuple

from ...layout import Layout, Style, walk
from ...model import Verdict
from ..protocol import DetectionView, SideView
from ..work_budget import STEP, WorkBudget
from .framing import CURRENT_LANGUAGE, DRAFT_LANGUAGE, READ, SCANNED, SIZE_LIMIT, UNSOUND, Language

FRAMES = 24
"""Frames of one side that are looked at."""

_STRICT = {"PeerProperties": 0.95, "Deliver": 0.95, "SaslHandshake": 0.75, "ExchangeCommandVersions": 0.9}
"""How sure one sound frame makes, where it is not what its length says."""

_WEAK = frozenset(("Heartbeat", "Credit"))

SERVER_PORTS = frozenset((5551, 5552, 5555))

_DEFAULT_STYLE = Style()

_CUT = "cut"


ONE_FRAME = 0.45
"""How sure at most what may be chance makes: nothing is claimed of it."""

LONGEST_HEARTBEAT = 86_400
FRAME_MAX = range(1_024, SIZE_LIMIT + 1)
"""Values that clients and servers agree on."""


class SideEvidence(NamedTuple):
    """What one side's bytes are if it is the client or the server; `wrong`: they cannot be.

    `frames` counts complete frames, and those whose size led to another one. `alone`: they are evidence without those of the other side,
    as they begin where the side does, are several, hold values that chance excludes, or fill segments with usual values.
    """

    doubt: float
    frames: int
    weak: int
    evidence: tuple[str, ...]
    wrong: bool
    alone: bool


_NOTHING = SideEvidence(1.0, 0, 0, (), False, False)
_WRONG = SideEvidence(1.0, 0, 0, (), True, False)


def _probe(language: Language, view: DetectionView) -> Verdict | None:
    if view.from_start and view.sides[0].begins:
        data = view.sides[0].runs[0][1]
        if len(data) >= 8 and not language.header(language.tables(True), data, 0, len(data))[1]:
            # No client begins so
            return None
    best: tuple[float, int, tuple[SideEvidence, SideEvidence]] | None = None
    equal = False
    places = (_place(view, 0, language), _place(view, 1, language))
    if places == (None, None):
        return None
    for client in (0,) if view.from_start else (0, 1):
        one, two = places
        seen = (
            _NOTHING if one is None else _look(view, 0, one, language, client == 0),
            _NOTHING if two is None else _look(view, 1, two, language, client == 1),
        )
        if seen[0].wrong or seen[1].wrong:
            continue
        frames = seen[0].frames + seen[1].frames
        if not frames:
            continue
        confidence = 1.0 - seen[0].doubt * seen[1].doubt
        if language is DRAFT_LANGUAGE and frames - seen[0].weak - seen[1].weak < 2 and not (frames > 2 and all(one.frames for one in seen)):
            # Small sizes and zeros are common: it takes another frame, or an answer, or at least a place where a frame must begin.
            confidence = min(confidence, 0.85 if any(side.begins for side in view.sides) else ONE_FRAME)
        if frames == seen[0].weak + seen[1].weak and frames < 2:
            confidence = min(confidence, ONE_FRAME)
        if not (seen[0].alone or seen[1].alone or (seen[0].frames and seen[1].frames)):
            confidence = min(confidence, ONE_FRAME)
        if best is None or confidence > best[0]:
            best, equal = (confidence, client, seen), False
        elif confidence == best[0]:
            equal = True
    if best is None:
        return None
    confidence, client, seen = best
    known = [side for side in (0, 1) if view.ports[side] in SERVER_PORTS]
    by_port = equal and len(known) == 1
    if by_port:
        # Heartbeats, Tune and Close look the same from both sides
        client, equal = 1 - known[0], False
    version = "version 0 in every frame" if language is DRAFT_LANGUAGE else "version 1 or 2 in every frame"
    whose = ("one side", "the other side") if equal else ("client", "server")
    evidence = [f"{who}: {text}" for who, one in zip(whose, (seen[client], seen[1 - client]), strict=True) for text in one.evidence]
    evidence.append(version)
    if by_port:
        evidence.append("the port tells the server")
    if seen[0].frames and seen[1].frames:
        evidence.append("both sides agree")
    return Verdict(language.protocol, min(confidence, 0.99), tuple(evidence), None, None if equal else client)


probe_current, probe_draft = partial(_probe, CURRENT_LANGUAGE), partial(_probe, DRAFT_LANGUAGE)


def _place(view: DetectionView, number: int, language: Language) -> int | None:
    """The first position at which a frame could begin, of either side, or None."""
    side = view.sides[number]
    if not side.runs:
        return None
    if side.begins:
        return 0
    key = (language.protocol, number)
    place: int = view.known.get(key, 0)
    for position, data in side.runs:
        if position + len(data) <= place:
            continue
        start = max(0, place - position)
        view.work_budget.spend(SCANNED * (len(data) - start))
        match = language.pattern.search(data, start)
        if match is not None:
            view.known[key] = place = position + match.start()
            return place
        place = position + max(start, len(data) - 7)
    view.known[key] = place
    return None


def _look(view: DetectionView, number: int, place: int, language: Language, client: bool) -> SideEvidence:
    side = view.sides[number]
    if side.begins:
        return _follow(side, 0, language, client, view.work_budget)
    # Bytes that were ruled out are not looked at again, but for the last look, to which other rules apply.
    key = (language.protocol, number, client)
    ruled_out = place if view.final else max(place, view.known.get(key, 0))
    for position, data in side.runs:
        end = position + len(data)
        if end <= ruled_out:
            continue
        found, at, hinges = language.search(client, data, max(0, ruled_out - position), len(data), view.final, view.work_budget)
        view.hinges |= hinges
        if found:
            return _follow(side, position + at, language, client, view.work_budget)
        ruled_out = position + at if end == side.end else end
    view.known[key] = ruled_out
    return _NOTHING


def _follow(side: SideView, position: int, language: Language, client: bool, work_budget: WorkBudget) -> SideEvidence:
    """Follow the frames from `position` on, over gaps too: where a frame ends the next one begins."""
    runs = side.runs
    tables = language.tables(client)
    alone = side.from_start and position == 0
    doubt = 1.0
    names: list[str] = []
    weak = 0
    first = ""
    ended = False
    usual = True
    led = ""
    """The last frame, if it has a gap: it is evidence once another one begins where it ends."""
    for start, data in runs:
        at, end = position - start, len(data)
        if at < 0:
            # The header is in a gap, and with it the place of the next one.
            break
        while end - at >= 8 and len(names) < FRAMES:
            length, layouts = language.header(tables, data, at, end)
            stop = min(at + length, end)
            if not work_budget.spend(2 * STEP):
                break
            if length <= end - at:
                read = [(layout, language.read_sound(layout, data, at, stop, work_budget)) for layout in layouts]
                if any(fields is None for _, fields in read):
                    break
                found = [
                    (layout, fields)
                    for layout, fields in read
                    if fields is not None and fields is not UNSOUND and _is_readable(language, layout, fields, stop - at, work_budget)
                ]
                layouts = [layout for layout, _ in found]
            elif not work_budget.spend(2 * READ * (stop - at)):
                break
            else:
                layouts = [layout for layout in layouts if _begins(layout, data, at, stop)]
            if not layouts:
                if not names and not led:
                    return _WRONG
                # A command may be unknown and a frame bad, but this is no evidence.
                return SideEvidence(min(1.0, doubt * 3), len(names), weak, _evidence(names, first, False), False, alone or len(names) > 1)
            layout = layouts[0]
            if led:
                first = first or f"{led}, its size leads to the next frame"
                doubt *= 0.7
                names.append(led)
                led = ""
            if length <= end - at:
                fields = found[0][1]
                first = first or _first(layout, fields, length)
                doubt *= 1.0 - _weight(layout, length)
                weak += layout.name in _WEAK
                usual = usual and _is_usual(fields)
                alone = alone or layout.name in _STRICT or (usual and _fills_segments(side, start, at, length, end))
                names.append(layout.name)
            elif language.is_identified(layouts, at, end):
                first = first or "Deliver, its size agrees with its chunk header"
                doubt *= 0.08
                alone = True
                names.append(layout.name)
            elif start + end == side.end:
                # It may go on otherwise.
                break
            else:
                led = layout.name
            at += length
        position = start + at
        ended = at == end
    alone = alone or len(names) > 1
    if not names or not (alone or usual):
        return _NOTHING
    return SideEvidence(doubt, len(names), weak, _evidence(names, first, ended), False, alone)


def _fills_segments(side: SideView, start: int, at: int, length: int, end: int) -> bool:
    """Whether a frame begins and ends where segments do; `start`: the position of its run, which has `end` bytes."""
    behind = at + length
    return _is_start(side.segments, start + at) and (behind == end or _is_start(side.segments, start + behind))


def _is_start(segments: list[int], position: int) -> bool:
    index = bisect_left(segments, position)
    return index < len(segments) and segments[index] == position


def _is_usual(fields: dict[str, Any]) -> bool:
    """Whether a frame has values that clients and servers use, as far as there are such."""
    heartbeat, frame_max, code = fields.get("heartbeat"), fields.get("frame_max"), fields.get("response_code")
    return (
        (heartbeat is None or heartbeat <= LONGEST_HEARTBEAT)
        and (frame_max is None or frame_max == 0 or frame_max in FRAME_MAX)
        and (code is None or fields.get("response_code_label") is not None)
    )


def _begins(layout: Layout, data: bytes, at: int, end: int) -> bool:
    """Whether the beginning of a frame, as far as it is there, reads as `layout`."""
    if layout.name in ("Publish", "Deliver"):
        return True
    fault = walk(layout, data, at, end, _DEFAULT_STYLE, _CUT).fault
    return fault is None or fault.reason == _CUT


def _weight(layout: Layout, length: int) -> float:
    """How sure one sound frame makes."""
    if layout.name in _WEAK:
        return 0.45
    if layout.name == "SaslHandshake" and layout.kind == "request":
        return 0.7
    return _STRICT.get(layout.name, 0.6 if length <= 16 else 0.75)


def _is_readable(language: Language, layout: Layout, fields: dict[str, Any], size: int, work_budget: WorkBudget) -> bool:
    """Names are printable in practice; bytes of other protocols that happen to fit are not.

    Properties of a peer that fill their frame do not happen, whatever an application calls itself.
    """
    if layout.name in ("Publish", "Deliver", "PeerProperties"):
        return True
    work_budget.spend(language.costs[layout] * size)
    stack: list[Any] = [fields]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, str) and not value.isprintable() and any(ord(char) < 32 and char not in "\t\r\n" for char in value):
            return False
    return True


def _first(layout: Layout, fields: dict[str, Any], size: int) -> str:
    """The strongest thing to say of the first frame."""
    what = f"{layout.name} {layout.kind}" if layout.kind != "one_way" else layout.name
    if layout.name == "Deliver":
        return f"{what}, the checksum of its chunk is right"
    if "peer_properties" in fields:
        return f"{what}, {_fills(len(fields['peer_properties']), 'property', 'properties')}"
    if "mechanisms" in fields:
        return f"{what}, {_fills(len(fields['mechanisms']), 'mechanism', 'mechanisms')}"
    return f"{what} of exactly {size} bytes"


def _fills(count: int, one: str, many: str) -> str:
    return f"{count} {one} fills the frame" if count == 1 else f"{count} {many} fill the frame"


def _evidence(names: list[str], first: str, complete: bool) -> tuple[str, ...]:
    evidence = [first]
    if len(names) > 1:
        shown = ", ".join(names[1:4]) + (", ..." if len(names) > 4 else "")
        evidence.append(f"{len(names)} frames follow each other ({shown} next)")
    if complete:
        evidence.append("the last frame ends with the data")
    return tuple(evidence)
