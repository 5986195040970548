"""The `protocols` view: the protocols, and the field tables of one."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from ..layout import rows
from ..protocols.protocol import Protocol
from .terminal import PLAIN, Palette, cut, pad, width

TEXT_WIDTH = 100


def overview(protocols: Sequence[Protocol], palette: Palette = PLAIN, columns: int | None = None) -> str:
    """A line a protocol: name, usual ports, title; more on a narrow terminal."""
    table = [(protocol.name, ", ".join(map(str, protocol.ports)), protocol.title) for protocol in protocols]
    first = max((len(name) for name, _, _ in table), default=0)
    second = max((len(ports) for _, ports, _ in table), default=0)
    lines: list[str] = []
    for name, ports, title in table:
        before, *more = [title] if columns is None else wrap(title, max(20, columns - first - second - 4))
        lines.append(f"{palette.bold}{name:<{first}}{palette.reset}  {ports:<{second}}  {before}\n")
        lines += [f"{' ' * (first + second + 4)}{line}\n" for line in more]
    return "".join(lines)


def tables(protocol: Protocol, palette: Palette = PLAIN, columns: int | None = None) -> str:
    """Everything there is to say of one protocol: its text, and a table for each message."""
    size = min(columns or TEXT_WIDTH, TEXT_WIDTH)
    ports = ", ".join(map(str, protocol.ports))
    lines = [f"{palette.bold}{protocol.title}{palette.reset}", f"{protocol.name}, usual ports {ports}" if ports else protocol.name]
    if protocol.loaded.forced:
        lines += wrap(f"Layouts for -d tcp.port==N,{protocol.name}:LAYOUT: {', '.join(protocol.loaded.forced)}.", size)
    for paragraph in protocol.loaded.text.strip().split("\n\n"):
        if paragraph:
            lines += ["", *wrap(" ".join(paragraph.split()), size)]
    for layout in protocol.loaded.layouts:
        lines.append("")
        lines.append(f"{palette.bold}{layout.name}{palette.reset}  {palette.dim}{_kind(layout)}{palette.reset}")
        if layout.note:
            lines += [f"  {line}" for line in wrap(layout.note, size - 2)]
        lines += _table(rows(layout), size, palette)
    if protocol.loaded.added:
        lines += ["", f"{palette.bold}Beside these{palette.reset}", *_table(protocol.loaded.added, size, palette)]
    return "\n".join(lines) + "\n"


def listing(names: Sequence[tuple[str, str, str]], palette: Palette = PLAIN, columns: int | None = None) -> str:
    """A line for each name: what it is called, who has it, its type and values, cut at the width of a terminal."""
    first = max((width(name) for name, _, _ in names), default=0)
    second = max((width(who) for _, _, who in names), default=0)
    if columns is not None:
        first, second = min(first, columns // 2), min(second, columns // 4)
    lines = []
    for name, kind, who in names:
        line = f"{pad(name, first)}  {pad(who, second)}  {kind}"
        line = line if columns is None else cut(line, columns)
        lines.append(f"{palette.ask}{line[: len(name)]}{palette.reset}{line[len(name) :]}\n")
    return "".join(lines)


def _table(table: Sequence[tuple[str, str, str]], size: int, palette: Palette) -> list[str]:
    lines = []
    first = max((width(path) for path, _, _ in table), default=0)
    second = min(40, max((width(kind) for _, kind, _ in table), default=0))
    for path, kind, note in table:
        room = max(20, size - first - second - 6)
        notes = wrap(note, room) or [""]
        lines.append(f"  {palette.ask}{pad(path, first)}{palette.reset}  {pad(kind, second)}  {notes[0]}".rstrip())
        lines += [" " * (first + max(second, width(kind)) + 6) + more for more in notes[1:]]
    return lines


def _kind(layout: object) -> str:
    key = getattr(layout, "key", None)
    kind = str(getattr(layout, "kind", "")).replace("_", "-")
    return f"{kind}, key {key:#06x}" if isinstance(key, int) else f"{kind}, key {key}" if key is not None else kind
