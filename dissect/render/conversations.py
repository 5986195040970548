"""The `conversations` view: who talked to whom, in which protocol, how sure that is, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Literal

from dissect.model import ConversationRow
from dissect.render.summary import bytes_text
from dissect.render.terminal import pad, visible, width

_HEADINGS = "# from to protocol sure packets bytes messages gaps damaged unanswered retransmitted limits ended evidence"


def plain(rows: Sequence[ConversationRow]) -> str:
    """Aligned columns, a line a conversation, nothing cut."""
    lines = [_HEADINGS.split()]
    lines[0].insert(2, "")
    for row in rows:
        first, arrow, second, way = _sides(row)
        lines.append(
            [
                str(row.conversation),
                first,
                arrow,
                second,
                _protocol(row).replace(" ", "_"),
                f"{row.confidence:.0%}",
                f"{row.packets[way]}+{row.packets[1 - way]}",
                f"{row.bytes[way]}+{row.bytes[1 - way]}",
                str(row.messages),
                f"{row.gaps}" if not row.gap_bytes else f"{row.gaps}:{row.gap_bytes}B",
                str(row.faults),
                str(row.unanswered),
                str(row.retransmissions),
                str(row.limit_hits),
                visible(row.ended),
                visible("; ".join([*row.evidence, *_facts(row)])),
            ]
        )
    sizes = [max(width(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join(["  ".join([pad(cell, size) for cell, size in zip(line, sizes, strict=True)]).rstrip() + "\n" for line in lines])


def table(rows: Sequence[ConversationRow], columns: int, colour: bool) -> str:
    """A table for people, on a terminal of so many columns."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold" if colour else "")
    made.add_column("#", justify="right", no_wrap=True)
    made.add_column("conversation", no_wrap=True)
    made.add_column("protocol", min_width=14)
    made.add_column("packets", justify="right", no_wrap=True)
    made.add_column("bytes", justify="right", no_wrap=True)
    made.add_column("how it went", min_width=14)
    for row in rows:
        first, arrow, second, way = _sides(row)
        protocol = Text(_protocol(row), "bold cyan" if row.protocol else "")
        protocol.append(f"\n{row.confidence:.0%} sure: " if row.confidence else "\n", "dim")
        protocol.append(visible("; ".join([*row.evidence, *_facts(row)])), "dim")
        went = Text(f"{row.messages:,} {'message' if row.messages == 1 else 'messages'}\n")
        for text in _trouble(row):
            went.append(f"! {text}\n", "bold red")
        if row.retransmissions:
            went.append(f"{row.retransmissions:,} retransmitted\n")
        went.append(visible(row.ended))
        made.add_row(
            str(row.conversation),
            f"{first}\n{arrow} {second}",
            protocol,
            f"> {row.packets[way]:,}\n< {row.packets[1 - way]:,}",
            f"> {row.bytes[way]:,}\n< {row.bytes[1 - way]:,}",
            went,
        )
    out = StringIO()
    kind: Literal["standard"] | None = "standard" if colour else None
    Console(file=out, width=columns, color_system=kind, force_terminal=colour, highlight=False, markup=False, emoji=False).print(made)
    return "".join([line.rstrip() + "\n" for line in out.getvalue().splitlines()])


def _sides(row: ConversationRow) -> tuple[str, str, str, int]:
    """The client's endpoint, an arrow, the server's, and which side the client is; side 0 first where the client is not known."""
    way = 1 if row.client is not None and row.client == row.endpoints[1] else 0
    return row.endpoints[way], ">" if row.client is not None else "-", row.endpoints[1 - way], way


def _protocol(row: ConversationRow) -> str:
    if row.protocol is None:
        return visible(row.name or "unknown")
    layout = row.layout or "/".join(row.candidates)
    return f"{row.protocol}:{layout}" if layout else row.protocol


def _facts(row: ConversationRow) -> list[str]:
    return [f"{key.replace('_', ' ')}: {_fact(value)}" for key, value in row.facts.items()]


def _fact(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join([f"{key} {item}" for key, item in value.items()])
    return str(value)


def _trouble(row: ConversationRow) -> list[str]:
    told = []
    if row.gaps:
        told.append(f"{row.gaps:,} {'gap' if row.gaps == 1 else 'gaps'} ({bytes_text(row.gap_bytes)})")
    for count, text in ((row.faults, "damaged"), (row.unanswered, "unanswered"), (row.limit_hits, "limits reached")):
        if count:
            told.append(f"{count:,} {text}")
    return told
