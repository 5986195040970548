"""The `-V` view: every field of a message with the bytes it came from.

    [000d+17]  00 0f 6f 72 64 65 72 73 +  reference   'orders-writer-1'
    [001e+5]   00 06 6f 72 64          !  stream at byte 30: length says 6 bytes, 3 left

Offsets are hexadecimal, lengths decimal; `+` says that there are more bytes than shown, `!` that they could not be read. On a terminal
long values go on in further lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import Any

from ..layout import Field, Layout
from ..layout.values import must_hide
from ..model import Message, Span
from ..protocols import BY_NAME
from ..quota import FURTHER, UNDECODED, bytes_shown
from ..units import count
from .terminal import PLAIN, Palette, cut, folded, pad, visible, width

RAW, NARROW_RAW, NARROW = 8, 4, 80
"""Bytes shown beside a field, and on terminals of fewer columns than `NARROW`."""

FOLDED = 16
"""Columns beside a name from which on a long value goes on there; else it stands below."""

BELOW = 8
"""Columns by which it is moved in there."""

NAME_LIMIT = 40
"""The widest names, with their indentation, for which values line up."""

PRINTABLE = bytes(one if 0x20 <= one < 0x7F else 0x2E for one in range(256))
_PRINTED = bytes(range(0x20, 0x7F))
LEGIBLE = 2
"""Bytes from which on what can be printed is shown beside their digits: one may look like text by chance."""

REMEMBERED = 4096
"""Names of fields, and texts, that are kept ready."""

SHORT = 64
"""Bytes of a field up to which its text is kept."""

_NO_FIELDS = (FURTHER, UNDECODED)
_NO_OCTETS = " " * 27
_LAST_DIGIT = "0123456789abcdef" * 16
"""By byte, the second of its hex digits."""


def tree(message: Message, show_secrets: bool, palette: Palette = PLAIN, columns: int | None = None) -> Iterator[str]:
    """The fields of `message`, a line each; there may be very many."""
    spans, more = _shown(message)
    rows: Iterable[str]
    if spans is None:
        rows = _without_bytes(message, palette, columns)
    elif palette is PLAIN and columns is None and message.fault is None:
        rows = _piped(message, spans, show_secrets)
    else:
        rows = _rows(message, spans, show_secrets, palette, columns)
    notes = [f"    {palette.warn}*  {visible(note)}{palette.reset}" for note in message.notes]
    rest = [f"    {palette.bad}{left_out(more)}{palette.reset}"] if more else ()
    return chain((f"{palette.dim}    {about(message)}{palette.reset}",), rows, rest, notes)


def left_out(size: int) -> str:
    """The line on unpacked bytes that are not shown."""
    return f"! {size:,} further unpacked bytes are not shown"


def _shown(message: Message) -> tuple[list[Span] | None, int]:
    """The spans shown, and the bytes of the others."""
    spans, buffers = message.spans, message.raw
    if spans is None or buffers is None or len(buffers) < 2:
        return spans, 0
    shown = bytes_shown(buffers, message.size)
    # A field of no bytes may stand at the end of a buffer
    kept = [span for span in spans if (end := shown.get(span.buffer)) is None or span.offset < end or span.offset + span.length <= end]
    if len(kept) == len(spans):
        return spans, 0
    return kept, sum([span.length for span in spans if span.leaf]) - sum([span.length for span in kept if span.leaf])


def _without_bytes(message: Message, palette: Palette, columns: int | None) -> Iterator[str]:
    rows = list(nested(message.fields, 0))
    size = min(NAME_LIMIT, max((2 * depth + len(name) for depth, name, _ in rows), default=0))
    for depth, name, text in rows:
        yield _cut(f"    {pad('  ' * depth + name, size)}  {text}", columns)
    if message.fault is not None:
        yield f"    {palette.bad}!  {fault_text(message)}{palette.reset}"


def _rows(message: Message, spans: list[Span], show_secrets: bool, palette: Palette, columns: int | None) -> Iterator[str]:
    raw = message.raw or {}
    size = min(NAME_LIMIT, max((2 * span.depth + width(visible(span.name)) for span in spans), default=0))
    broken = broken_span(message, spans)
    shown = RAW if columns is None or columns >= NARROW else NARROW_RAW
    buffer = "frame"
    for index, span in enumerate(spans):
        if span.buffer != buffer:
            buffer = span.buffer
            held = count(len(raw.get(buffer, b"")), "byte")
            yield f"    {palette.bold}{visible(buffer)}{palette.reset}{palette.dim}  {held}{palette.reset}"
        where = f"[{span.offset:04x}+{span.length}]"
        hidden = must_hide(span, show_secrets)
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
        value = value_text(span, hidden, bad, raw.get(buffer, b""))
        if bad:
            value = f"{fault_text(message)}  {value}" if value else fault_text(message)
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
        yield f"    {palette.bad}{'':<{3 * shown + 11}} !  {fault_text(message)}{palette.reset}"


_WHERE = [f"    [{offset:04x}+" for offset in range(4_096)]
_LENGTH = [f"{length}]".ljust(6) for length in range(1_000)]
_BEHIND = [" " * (len(_NO_OCTETS) - 3 * length) for length in range(RAW + 1)]
"""What follows the hex digits of these bytes, none of which are left out."""


@lru_cache(1_024)
def _column(names: tuple[str, ...], depths: tuple[int, ...]) -> list[str]:
    """The names of fields moved in and filled up to one size, with what follows them."""
    joined = "".join(names)
    # Most names take a cell for each character
    simple = joined.isascii() and joined.isprintable()
    shown = ["  " * depth + name for name, depth in zip(names if simple else map(visible, names), depths, strict=True)]
    size = min(NAME_LIMIT, max(map(len if simple else width, shown), default=0))
    return [f"{name:<{size}}  " if simple else f"{pad(name, size)}  " for name in shown]


def _piped(message: Message, spans: list[Span], show_secrets: bool) -> list[str]:
    """Return the lines of `_rows` without colours, width and damage, five times as fast: most of the time of this view in a pipe."""
    raw = message.raw or {}
    lines: list[str] = []
    add, where_of, length_of, behind_of = lines.append, _WHERE, _LENGTH, _BEHIND
    make_column = _column if len(spans) <= REMEMBERED else _column.__wrapped__
    column = make_column(tuple([span.name for span in spans]), tuple([span.depth for span in spans]))
    shown, data, digits, end = "", b"", "", 0
    text: Any
    for span, called in zip(spans, column, strict=True):
        offset, length = span.offset, span.length
        if span.buffer != shown:
            if shown or span.buffer != "frame":
                add(f"    {visible(span.buffer)}  {count(len(raw.get(span.buffer, b'')), 'byte')}")
            shown, data = span.buffer, raw.get(span.buffer, b"")
            end = len(data)
            # Of a last long field the first bytes do
            digits = data[: spans[-1].offset + RAW if spans[-1].buffer == shown else end].hex(" ") + " "
        known = offset < 4_096 and length < 1_000
        where = where_of[offset] + length_of[length] if known else f"{f'    [{offset:04x}+{length}]':<15} "
        if not span.leaf:
            add(f"{where}{_NO_OCTETS}{called}".rstrip())
            continue
        octets = digits[3 * offset : 3 * (offset + length)] if length <= RAW else digits[3 * offset : 3 * (offset + RAW)]
        behind = behind_of[length] if length <= RAW and offset + length <= end else "+  ".rjust(len(_NO_OCTETS) - len(octets))
        value, label = span.value, span.label
        kind = type(value)
        if span.secret and not show_secrets:
            octets = "** " * (len(octets) // 3)
            text = value if kind is str and value.startswith("<redacted ") else f"<redacted {length} bytes>"
        else:
            if kind is int:
                if not label:
                    add(f"{where}{octets}{behind}{called}{value}")
                    continue
                text = value
            elif kind is str:
                text = (_quoted_again if length <= SHORT else _quoted_or_digits)(value, data[offset : offset + length])
            else:
                text = "" if value is None and span.name in _NO_FIELDS else _text(value)
            if label:
                text = f"{text}  {visible(label)}"
        add(f"{where}{octets}{behind}{called}{text}".rstrip())
    return lines


def _quoted_or_digits(value: str, data: bytes) -> str:
    """A text; if it is the hex digits that its bytes end with, with the text that they are where most of it can be printed."""
    # Most texts need not be compared with the digits
    if value and data and _LAST_DIGIT[data[-1]] == value[-1]:
        data = data[-((len(value) + 1) // 2) :]
        if data.hex().endswith(value):
            if len(value) > 2 * RAW and not value.strip("0"):
                # Zeros of more bytes than stand beside them are counted
                return f"{len(value) // 2:,} zero bytes"
            if len(value) % 2 or len(data) < LEGIBLE or 4 * len(data.translate(None, _PRINTED)) > len(data):
                return value
            return f'{value}  "{data.translate(PRINTABLE).decode()}"'
    return f"'{visible(value)}'"


_quoted_again = lru_cache(REMEMBERED)(_quoted_or_digits)
"""The same for short texts, most of which are in many messages."""


def _folded(value: str, room: int | None, columns: int | None) -> list[str]:
    """Return a value in lines: the one beside its name, if there is room, and the following ones."""
    if room is None or columns is None or width(value) <= room:
        return [value]
    return folded(value, room) if room >= FOLDED else ["", *folded(value, max(1, columns - BELOW))]


def broken_span(message: Message, spans: Sequence[Span]) -> int | None:
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


def by_interest(message: Message, spans: Sequence[Span]) -> list[int]:
    """Return the indexes of `spans` in another order: errors, then fields that differ between messages of this name, then the id, which
    summaries contain, and the fields with a default value, such as sizes and command numbers. What a field contains stays behind it."""
    broken, implied = broken_span(message, spans), _implied(message.protocol, message.name)
    results = {path.partition(".")[0] for path in BY_NAME[message.protocol].loaded.code} if message.outcome == "refused" else ()
    top = [index for index, span in enumerate(spans) if span.depth == 0]
    groups = []
    for begin, end in pairwise([*top, len(spans)]):
        span = spans[begin]
        is_wrong = span.name in results or (broken is not None and begin <= broken < end)
        is_id = span.leaf and message.id is not None and span.value == message.id
        groups.append((0 if is_wrong else 3 if span.name in implied else 2 if is_id else 1, begin, end))
    return [*range(top[0] if top else len(spans)), *(index for _, begin, end in sorted(groups) for index in range(begin, end))]


@cache
def _implied(protocol: str, name: str) -> frozenset[str]:
    """The fields of a message that have a default value."""
    layouts = [one for one in BY_NAME[protocol].loaded.layouts if isinstance(one, Layout) and one.name == name]
    return frozenset([field.name for one in layouts for field in one.fields if isinstance(field, Field) and field.default is not None])


def value_text(span: Span, hidden: bool, bad: bool, data: bytes) -> str:
    if not span.leaf:
        return ""
    value = span.value
    if hidden:
        has_size = isinstance(value, str) and value.startswith("<redacted ")
        return value if has_size else f"<redacted {span.length} bytes>"
    if value is None and (bad or span.name in _NO_FIELDS):
        return ""
    # Hex digits that repeat the bytes are bytes; a text of as many characters would have as many bytes.
    text = _quoted_or_digits(value, data[span.offset : span.offset + span.length]) if isinstance(value, str) else _text(value)
    return f"{text}  {visible(span.label)}" if span.label else text


def _text(value: Any) -> str:
    match value:
        case str():
            return f"'{visible(value)}'"
        case bool():
            return "true" if value else "false"
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case None:
            return "null"
        case dict():
            # A number cut into parts, or a value of BSON that JSON has no type for
            return ", ".join([f"{visible(str(key))} {_text(item)}" for key, item in value.items()])
    return visible(str(value))


def nested(value: Any, depth: int, name: str = "") -> Iterator[tuple[int, str, str]]:
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
        yield from nested(item, depth + 1)
    else:
        yield depth, name, _text(item)


def fault_text(message: Message) -> str:
    fault = message.fault
    assert fault is not None
    return visible(f"{fault.field} at byte {fault.offset}: {fault.reason}")


def about(message: Message) -> str:
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
