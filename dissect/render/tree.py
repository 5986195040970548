"""The `-V` view: every field of a message with the bytes it came from.

    [000d+17]  00 0f 6f 72 64 65 72 73 +  reference   'orders-writer-1'
    [001e+5]   00 06 6f 72 64          !  stream at byte 30: length says 6 bytes, 3 left

Offsets are hexadecimal, lengths decimal; `+` says that there are more bytes than shown, `!` that they could not be read. On a terminal
long values go on in further lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dissect.allowance import FURTHER, UNDECODED
from dissect.model import Message, Span
from dissect.render.terminal import PLAIN, Palette, cut, folded, pad, visible, width

RAW, NARROW_RAW, NARROW = 8, 4, 80
"""Bytes shown beside a field, and on terminals of fewer columns than `NARROW`."""

FOLDED = 16
"""Columns beside a name from which on a long value goes on there; else it stands below."""

BELOW = 8
"""Columns by which it is moved in there."""

NAME_LIMIT = 40
"""Columns that names and their indentation may take before values stop lining up."""


def tree(message: Message, show_secrets: bool, palette: Palette = PLAIN, columns: int | None = None) -> Iterator[str]:
    """The fields of `message`, a line each; there may be very many."""
    yield f"{palette.dim}    {_about(message)}{palette.reset}"
    spans = message.spans
    if spans is None:
        rows = list(_plain(message.fields, 0))
        size = min(NAME_LIMIT, max((2 * depth + len(name) for depth, name, _ in rows), default=0))
        yield from (_cut(f"    {pad('  ' * depth + name, size)}  {text}", columns) for depth, name, text in rows)
        if message.fault is not None:
            yield f"    {palette.bad}!  {_fault(message)}{palette.reset}"
    else:
        yield from _rows(message, spans, show_secrets, palette, columns)
    yield from (f"    {palette.warn}*  {visible(note)}{palette.reset}" for note in message.notes)


def redacted(span: Span, show_secrets: bool) -> bool:
    """Whether the bytes and the value of `span` must not be seen."""
    return span.secret and not show_secrets


def _rows(message: Message, spans: list[Span], show_secrets: bool, palette: Palette, columns: int | None) -> Iterator[str]:
    raw = message.raw or {}
    size = min(NAME_LIMIT, max((2 * span.depth + width(visible(span.name)) for span in spans), default=0))
    broken = _broken(message, spans)
    shown = RAW if columns is None or columns >= NARROW else NARROW_RAW
    buffer = "frame"
    for index, span in enumerate(spans):
        if span.buffer != buffer:
            buffer = span.buffer
            yield f"    {palette.bold}{visible(buffer)}{palette.reset}{palette.dim}  {len(raw.get(buffer, b'')):,} bytes{palette.reset}"
        where = f"[{span.offset:04x}+{span.length}]"
        hidden = redacted(span, show_secrets)
        more = " "
        data = ""
        if span.leaf:
            taken = raw.get(buffer, b"")[span.offset : span.offset + min(span.length, shown)]
            data = " ".join(["**"] * len(taken)) if hidden else taken.hex(" ")
            more = "+" if span.length > len(taken) else " "
        name = pad("  " * span.depth + visible(span.name), size)
        bad = index == broken
        if bad:
            more = "!"
        head = f"    {where:<11} {data:<{3 * shown - 1}} {more}  {name}"
        value = _value(span, hidden, bad, raw.get(buffer, b""))
        if bad:
            value = f"{_fault(message)}  {value}" if value else _fault(message)
        room = None if columns is None else columns - width(head) - 2
        text, *rest = _folded(value, room, columns)
        loud = palette.bad if bad else ""
        if palette is PLAIN:
            yield f"{head}  {text}".rstrip()
        else:
            yield (
                f"    {palette.dim}{where:<11} {data:<{3 * shown - 1}}{palette.reset} {loud}{more}{palette.reset}  {palette.ask}{name}"
                f"{palette.reset}  {loud}{text}{palette.reset}"
            )
        indent = " " * (width(head) + 2 if text else BELOW)
        for line in rest:
            yield f"{indent}{loud}{line}{palette.reset}"
    if message.fault is not None and broken is None:
        yield f"    {palette.bad}{'':<{3 * shown + 11}} !  {_fault(message)}{palette.reset}"


def _folded(value: str, room: int | None, columns: int | None) -> list[str]:
    """A value in lines: the one beside its name, where there is so much room, and those that follow."""
    if room is None or columns is None or width(value) <= room:
        return [value]
    return folded(value, room) if room >= FOLDED else ["", *folded(value, max(1, columns - BELOW))]


def _broken(message: Message, spans: list[Span]) -> int | None:
    """The index of the span where the fault lies: the last leaf that holds its offset, or begins there."""
    fault = message.fault
    if fault is None:
        return None
    found = None
    for index, span in enumerate(spans):
        inside = span.offset <= fault.offset < span.offset + span.length or span.offset == fault.offset
        if span.leaf and span.buffer == fault.buffer and inside:
            found = index
    return found


def _value(span: Span, hidden: bool, bad: bool, data: bytes) -> str:
    if not span.leaf:
        return ""
    value = span.value
    if hidden:
        is_told = isinstance(value, str) and value.startswith("<redacted ")
        return value if is_told else f"<redacted {span.length} bytes>"
    if value is None and (bad or span.name in (FURTHER, UNDECODED)):
        return ""
    # Hex digits that repeat the bytes are bytes; text of so many characters would have taken as many bytes.
    is_hex = isinstance(value, str) and value != "" and data[span.offset : span.offset + span.length].hex().endswith(value)
    text = str(value) if is_hex else _text(value)
    return f"{text}  {visible(span.label)}" if span.label else text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f"'{visible(value)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if value is None:
        return "null"
    return visible(str(value))


def _plain(value: Any, depth: int, name: str = "") -> Iterator[tuple[int, str, str]]:
    """(depth, name, text) of nested values that carry no byte ranges."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _named(item, depth, visible(str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named(item, depth, f"[{index}]")
    else:
        yield depth, name, _text(value)


def _named(item: Any, depth: int, name: str) -> Iterator[tuple[int, str, str]]:
    if isinstance(item, dict | list | tuple):
        yield depth, name, "" if item else "empty"
        yield from _plain(item, depth + 1)
    else:
        yield depth, name, _text(item)


def _fault(message: Message) -> str:
    fault = message.fault
    assert fault is not None
    return visible(f"{fault.field} at byte {fault.offset}: {fault.reason}")


def _about(message: Message) -> str:
    first, last = message.packets
    packets = f"packet {last}" if first == last else f"packets {first if first is not None else '(an earlier file)'}-{last}"
    said = [packets, f"bytes {message.position}-{message.position + message.size - 1} from {message.src}"]
    if message.file:
        said.insert(0, f"file {message.file}")
    if message.request is not None:
        said.append(f"answers {message.request}")
    return ", ".join(said)


def _cut(line: str, columns: int | None) -> str:
    return (line if columns is None else cut(line, columns)).rstrip()
