"""The edits of WebSocket: those inside, with the masks of its frames, and of secrets and names in heads of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..layers.frames import CODE, FrameTrace, turned, unmasked
from .packets import Edit, Edits
from .replace import FILL

KEPT = frozenset(("upgrade", "connection", "content-length", "content-type", "date", "cache-control", "pragma", "accept-encoding"))
KEPT |= {f"sec-websocket-{one}" for one in ("key", "version", "accept", "extensions")}
NAMES = frozenset(("host", "origin", "user-agent", "server", "x-forwarded-for", "x-real-ip", "forwarded", "via"))
"""Header fields whose values stay, and those whose values are names. All others may contain a secret."""

SEARCHED = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie"))
"""The ones that certainly contain one."""

END = 1 << 62

Instead = Callable[[str, bytes], bytes | int | None]
"""What comes instead of a secret, a name or a payload; None if it stays."""


def outside(inside: Edits, trace: Iterable[FrameTrace], instead: Instead, known: bool) -> Edits:
    """Return the edits of a side, by position outside of WebSocket; `inside`: by position inside. `known`: bytes outside of frames are
    overwritten, as they were not read."""
    found, reached = Edits(), 0
    edits = iter(inside.apart())
    edit = next(edits, None)
    for kind, place, at, size, mask in trace:
        if known:
            found.add(reached, at, FILL[0])
        reached = at + size
        if kind == "http":
            for start, end, data in _head(mask, instead):
                found.add(at + start, at + end, data)
        elif kind in ("control", "close") and instead("payload", b"") is not None:
            # The code of a Close stays
            kept = max(0, CODE - place) * (kind == "close")
            found.add(at + kept, at + size, unmasked(FILL * size, mask)[kept:] if mask else FILL * (size - kept))
        while kind == "data" and edit is not None and edit[0] < place + size:
            start, end, data = edit
            low, high = max(start, place), min(end, place + size)
            if low < high:
                new = bytes((data,)) * (high - low) if isinstance(data, int) else data[low - start : high - start]
                found.add(at + low - place, at + high - place, unmasked(new, turned(mask, low - place)) if mask else new)
            if end > place + size:
                break
            edit = next(edits, None)
    if known:
        found.add(reached, END, FILL[0])
    return found


def _head(head: bytes, instead: Instead) -> Iterator[Edit]:
    """Yield the edits of a head of HTTP."""
    at = 0
    for number, line in enumerate(head.split(b"\r\n")):
        if not number:
            yield from _first(line, instead)
        elif b":" in line:
            name, value = line.split(b":", 1)
            field, start = name.strip().lower().decode("latin-1"), at + len(name) + 1
            start += len(value) - len(value.lstrip())
            value = value.strip()
            what = None if field in KEPT else "name" if field in NAMES else "secret" if field in SEARCHED else "other"
            data = None if what is None or not value else instead(what, value)
            if data is not None:
                yield start, start + len(value), data
        at += len(line) + 2


def _first(line: bytes, instead: Instead) -> Iterator[Edit]:
    """Yield the edits of the target of a request."""
    parts = line.split(b" ")
    if len(parts) == 3 and parts[0] == b"GET":
        start, (path, mark, query) = len(parts[0]) + 1, parts[1].partition(b"?")
        data = instead("name", path[1:])
        if data is not None and len(path) > 1:
            yield start + 1, start + len(path), data
        if mark and query:
            yield start + len(path) + 1, start + len(parts[1]), instead("secret", query) or FILL[0]
