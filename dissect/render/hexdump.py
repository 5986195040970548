"""The `-x` view: the bytes of a reassembled frame, and of what it unpacks to, with the names of the fields that begin in each row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..layout.values import hidden
from ..model import Message, Span
from ..quota import bytes_shown
from ..units import count
from .terminal import PLAIN, Palette, cut, visible, width
from .tree import PRINTABLE, left_out

ROW, NARROW_ROW = 16, 8
MAX_PATH = 200
"""Characters of the path to a field: names may be long and deep in each other."""

_INDEX = re.compile(r"\[[0-9]+\]")

WIDE = 100
"""Columns of a terminal from which on a row has 16 bytes."""


def hexdump(message: Message, show_secrets: bool, palette: Palette = PLAIN, columns: int | None = None) -> Iterator[str]:
    """All buffers of `message`, line by line."""
    spans, buffers = message.spans, message.raw or {}
    shown, flags = bytes_shown(buffers, message.size), hidden(buffers, spans or (), show_secrets)
    placed = defaultdict[str, list[tuple[Span, str]]](list)
    for span, above in _placed(spans or ()):
        if span.leaf:
            placed[span.buffer].append((span, above))
    for name, data in buffers.items():
        if name != "frame":
            yield f"    {palette.bold}{visible(name)}{palette.reset}  {count(len(data), 'byte')}"
        if spans is None and not show_secrets:
            # Nobody said where this frame keeps its secrets.
            yield f"    {count(len(data), 'byte')} without known fields; --show-secrets shows all"
            continue
        end = shown.get(name, len(data))
        yield from _rows(data[:end], placed[name], flags.get(name), palette, columns)
        if end < len(data):
            yield f"    {end:04x}  {palette.bad}{left_out(len(data) - end)}{palette.reset}"
        missing = message.size - len(data) if name == "frame" else 0
        if missing > 0:
            text = f"! {count(missing, 'further byte')} of this frame not captured or not kept"
            yield f"    {len(data):04x}  {palette.bad}{text}{palette.reset}"


def _beside(names: list[tuple[str, str]], room: int | None) -> str:
    """The fields of a row, each as the path to what it is in and its name: the path is shown where it differs from the previous one.

    Where the width is short, the beginning of the path is dropped first, since names say more. Fields without bytes may be without end
    in a row, and get none.
    """
    shown: list[str] = []
    before = ""
    for above, name in names:
        shown.append(f".{name}" if above and (above == before or len(shown) >= ROW) else _joined(above, name))
        before = above
    text = visible(" ".join(shown))
    if room is None:
        return text
    while width(text[: room + 1]) > room and "." in text.partition(" ")[0].removeprefix("…."):
        text = f"….{text.removeprefix('….').partition('.')[2]}"
    return cut(text, room)


def paths(spans: list[Span]) -> Iterator[tuple[Span, str]]:
    """Each span with its path as a filter has it."""
    for span, above in _placed(spans):
        yield span, _INDEX.sub("", _joined(above, span.name)).strip(".")


def _placed(spans: Sequence[Span]) -> Iterator[tuple[Span, str]]:
    """Return each span with the path of its parents, at most `MAX_PATH` characters of it."""
    above: list[tuple[str, str]] = []
    for span in spans:
        del above[span.depth :]
        name, path = above[-1] if above else ("", "")
        if name and span.name.startswith(f"{name}["):
            # An item is named for its list: `entries[0]` below `entries`
            path = path.removesuffix(name).removesuffix(".")
        yield span, path
        if not span.leaf:
            above.append((span.name, _joined(path, span.name)[-MAX_PATH:]))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and not name.startswith("[") else f"{path}{name}"


def _rows(data: bytes, own: list[tuple[Span, str]], hidden: bytearray | None, palette: Palette, columns: int | None) -> Iterator[str]:
    own = sorted(own, key=lambda one: one[0].offset)
    size = ROW if columns is None or columns >= WIDE else NARROW_ROW
    cells = 3 * size if size == ROW else 3 * size - 1
    following = 0
    for at in range(0, len(data), size):
        row = data[at : at + size]
        if hidden is None or not any(hidden[at : at + size]):
            # Without a loop over the bytes, as a frame may unpack to hundreds of times its size
            pairs = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}" if size == ROW else row.hex(" ")
            text = row.translate(PRINTABLE).decode()
        else:
            stars = ["**" if hidden[at + index] else f"{one:02x}" for index, one in enumerate(row)]
            pairs = f"{' '.join(stars[:8])}  {' '.join(stars[8:])}" if size == ROW else " ".join(stars)
            text = "".join(["*" if hidden[at + index] else chr(PRINTABLE[one]) for index, one in enumerate(row)])
        names = []
        while following < len(own) and own[following][0].offset < at + size:
            span, above = own[following]
            names.append((above, span.name))
            following += 1
        head = f"{at:04x}"
        dump = f"  {pairs:<{cells}}  {text:<{size}}  "
        beside = _beside(names, None if columns is None else columns - 4 - len(head) - len(dump)) if names else ""
        yield f"    {palette.dim}{head}{palette.reset}{dump}{palette.ask}{beside}{palette.reset}".rstrip()
