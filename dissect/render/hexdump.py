"""The `-x` view: the bytes of a reassembled frame, and of what it unpacks to, with the names of the fields that begin in each row."""

from __future__ import annotations

from collections.abc import Iterator

from dissect.model import Message, Span
from dissect.render.terminal import PLAIN, Palette, cut, visible
from dissect.render.tree import redacted

ROW, NARROW_ROW = 16, 8
WIDE = 100
"""Columns of a terminal from which on a row has 16 bytes."""

_SHOWN = bytes(one if 0x20 <= one < 0x7F else 0x2E for one in range(256))


def hexdump(message: Message, show_secrets: bool, palette: Palette = PLAIN, columns: int | None = None) -> Iterator[str]:
    """All buffers of `message`, line by line."""
    spans = message.spans
    for name, data in (message.raw or {}).items():
        if name != "frame":
            yield f"    {palette.bold}{visible(name)}{palette.reset}  {len(data):,} bytes"
        if spans is None and not show_secrets:
            # Nobody said where this frame keeps its secrets.
            yield f"    {len(data):,} bytes without known fields; --show-secrets shows them"
            continue
        own = [span for span in spans or () if span.leaf and span.buffer == name]
        yield from _rows(data, own, _hidden(data, own, spans or [], show_secrets), palette, columns)
        missing = message.size - len(data) if name == "frame" else 0
        if missing > 0:
            told = f"! {missing:,} further bytes of this frame were not captured or not kept"
            yield f"    {len(data):04x}  {palette.bad}{told}{palette.reset}"


def _hidden(data: bytes, own: list[Span], spans: list[Span], show_secrets: bool) -> bytearray | None:
    """A flag for each byte that must not be seen; bytes of no field count as secret where the message has secrets."""
    if not any(redacted(span, show_secrets) for span in spans):
        return None
    flags = bytearray(b"\x01") * len(data)
    for span in own:
        if not redacted(span, show_secrets):
            flags[span.offset : span.offset + span.length] = bytes(len(flags[span.offset : span.offset + span.length]))
    for span in own:
        if redacted(span, show_secrets):
            flags[span.offset : span.offset + span.length] = b"\x01" * len(flags[span.offset : span.offset + span.length])
    return flags


def _rows(data: bytes, own: list[Span], hidden: bytearray | None, palette: Palette, columns: int | None) -> Iterator[str]:
    own = sorted(own, key=lambda span: span.offset)
    size = ROW if columns is None or columns >= WIDE else NARROW_ROW
    cells = 3 * size if size == ROW else 3 * size - 1
    following = 0
    for at in range(0, len(data), size):
        row = data[at : at + size]
        if hidden is None or not any(hidden[at : at + size]):
            pairs = [f"{one:02x}" for one in row]
            text = row.translate(_SHOWN).decode()
        else:
            pairs = ["**" if hidden[at + index] else f"{one:02x}" for index, one in enumerate(row)]
            text = "".join(["*" if hidden[at + index] else chr(_SHOWN[one]) for index, one in enumerate(row)])
        if size == ROW:
            pairs.insert(8, "")
        names = []
        while following < len(own) and own[following].offset < at + size:
            names.append(visible(own[following].name))
            following += 1
        head = f"{at:04x}"
        dump = f"  {' '.join(pairs):<{cells}}  {text:<{size}}  "
        beside = " ".join(names)
        if columns is not None:
            beside = cut(beside, columns - 4 - len(head) - len(dump))
        yield f"    {palette.dim}{head}{palette.reset}{dump}{palette.ask}{beside}{palette.reset}".rstrip()
