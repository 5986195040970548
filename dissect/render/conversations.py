"""The `conversations` view: who talked to whom, in which protocol, how sure that is, and how it went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model import ConversationRow
from ..units import count
from . import processes
from .summary import bytes_text
from .terminal import SPACE, Palette, cut, pad, those, visible, width, widths, wrapped

_HEADINGS = (
    "# from to protocol sure packets bytes messages gaps damaged refused unanswered retransmitted out_of_order conflicts limits ended"
)

_COLUMNS = ("#", "conversation", "protocol", "messages", "packets", "bytes")
_ENDED = "ended"


def plain(rows: Sequence[ConversationRow], evidence: bool = False) -> str:
    """Aligned columns, a line a conversation, nothing cut. `evidence`: with what the verdict rests on."""
    lines = [[*_HEADINGS.split(), *(["evidence"] if evidence else [])]]
    lines[0].insert(2, "")
    for row in rows:
        first, arrow, second, way = sides(row)
        lines.append(
            [
                str(row.conversation),
                first,
                arrow,
                second,
                protocol_of(row).replace(" ", "_"),
                f"{row.confidence:.0%}",
                f"{row.packets[way]}+{row.packets[1 - way]}",
                f"{row.bytes[way]}+{row.bytes[1 - way]}",
                str(row.messages),
                f"{row.gaps}" if not row.gap_bytes else f"{row.gaps}:{row.gap_bytes}B",
                str(row.damaged),
                str(row.refused),
                str(row.unanswered),
                str(row.retransmissions),
                str(row.out_of_order),
                str(row.conflicts),
                str(row.limit_hits),
                visible("; ".join([row.ended, *_error(row), *([] if evidence else _known(row, LAYERS))])),
                *([visible("; ".join([*row.evidence, *_known(row)]))] if evidence else []),
            ]
        )
    sizes = widths(lines)
    return "".join([SPACE.join([pad(cell, size) for cell, size in zip(line, sizes, strict=True)]).rstrip() + "\n" for line in lines])


PAGE_HEAD = (
    "#",
    "from",
    "",
    "to",
    "protocol",
    "ended",
    *["messages", "packets", "bytes", "gaps", "damaged", "refused", "unanswered", "retransmitted"],
)
LAYERS = ("tls", "proxy", "websocket")
"""What the names of facts begin with that are of a layer."""

PAGE_NAMES = 6
"""The head of `page_rows`, and how many of these columns are text."""


def page_rows(rows: Iterable[ConversationRow]) -> list[list[str | int]]:
    """The cells of a page, a line a conversation."""
    lines: list[list[str | int]] = []
    for row in rows:
        first, arrow, second, _ = sides(row)
        ended = "; ".join([row.ended, *_error(row), *processes.of_row(row)])
        amounts = (row.messages, sum(row.packets), sum(row.bytes), row.gaps, row.damaged, row.refused, row.unanswered, row.retransmissions)
        lines.append([str(row.conversation), first, arrow, second, protocol_of(row), ended, *amounts])
    return lines


def table(rows: Sequence[ConversationRow], columns: int, palette: Palette, evidence: bool = False) -> str:
    """Return a table for a terminal of N columns: some columns for each conversation, and lines below that say how it went;
    `evidence`: and what the verdict rests on.

    Where there is room, what belongs to both sides stands side by side, otherwise one below the other.
    """
    cells = [_cells(row) for row in rows]
    sizes = [(max(width(one[column][0]) for one in cells), max(width(one[column][1]) for one in cells)) for column in range(len(_COLUMNS))]
    abreast = [max(len(name), top + (bottom and bottom + len(SPACE))) for name, (top, bottom) in zip(_COLUMNS, sizes, strict=True)]
    beside = sum(abreast) + len(SPACE) * len(abreast) + len(_ENDED) <= columns
    spans = abreast if beside else [max(len(name), *both) for name, both in zip(_COLUMNS, sizes, strict=True)]
    indent = " " * (spans[0] + len(SPACE))
    heading = SPACE.join([*(_aligned(name, span, column) for column, (name, span) in enumerate(zip(_COLUMNS, spans, strict=True))), _ENDED])
    lines = [f"{palette.dim}{cut(heading, columns)}{palette.reset}"]
    for row, mine in zip(rows, cells, strict=True):
        if beside:
            mine = [
                (_aligned(top, one, column) + (f"{SPACE}{_aligned(bottom, two, column)}" if two else ""), "")
                for column, ((top, bottom), (one, two)) in enumerate(zip(mine, sizes, strict=True))
            ]
        head, below = [
            SPACE.join([_aligned(cell[level], span, column) for column, (cell, span) in enumerate(zip(mine, spans, strict=True))])
            for level in (0, 1)
        ]
        segments = (
            (row.retransmissions, "retransmitted"),
            (row.out_of_order, "out of order"),
            (row.conflicts, "sent again with other bytes"),
        )
        went = visible(", ".join([row.ended, *(f"{number:,} {what}" for number, what in segments if number)]))
        if width(head) + len(SPACE) + width(went) <= columns:
            head, went = f"{head}{SPACE}{went}", ""
        lines.append(f"{palette.bold}{cut(head, columns)}{palette.reset}")
        if not beside:
            lines.append(cut(below.rstrip(), columns))
        problems = ", ".join(problems_of(row))
        rests = "; ".join([*row.evidence, *_known(row)] if evidence else _known(row, LAYERS))
        if evidence and rests and row.confidence:
            rests = f"confidence {row.confidence:.0%}: {rests}"
        for text, colour in ((problems and f"! {problems}", palette.bad), (went, ""), (rests, palette.dim)):
            lines += [f"{indent}{colour}{line}{palette.reset if colour else ''}" for line in wrapped(visible(text), columns - len(indent))]
    return "\n".join([*lines, ""])


def _cells(row: ConversationRow) -> list[tuple[str, str]]:
    """What stands in the columns, each in two parts."""
    first, arrow, second, way = sides(row)
    return [
        (str(row.conversation), ""),
        (first, f"{arrow} {second}"),
        (visible(row.protocol or row.name or "unknown"), row.layout or "/".join(row.candidates)),
        (f"{row.messages:,}", ""),
        (f"> {row.packets[way]:,}", f"< {row.packets[1 - way]:,}"),
        (f"> {row.bytes[way]:,}", f"< {row.bytes[1 - way]:,}"),
    ]


def _aligned(text: str, cells: int, column: int) -> str:
    return pad(text, cells) if _COLUMNS[column] in ("conversation", "protocol") else text.rjust(cells)


def sides(row: ConversationRow) -> tuple[str, str, str, int]:
    """The client's endpoint, an arrow, the server's, and which side the client is; side 0 first where the client is not known."""
    way = 1 if row.client is not None and row.client == row.endpoints[1] else 0
    return row.endpoints[way], ">" if row.client is not None else "-", row.endpoints[1 - way], way


def protocol_of(row: ConversationRow) -> str:
    if row.protocol is None:
        return visible(row.name or "unknown")
    layout = row.layout or "/".join(row.candidates)
    return f"{row.protocol}:{layout}" if layout else row.protocol


def _known(row: ConversationRow, about: str | tuple[str, ...] = "") -> list[str]:
    """The processes behind a conversation, and these facts."""
    return [*processes.of_row(row), *_facts(row, about)]


def _facts(row: ConversationRow, about: str | tuple[str, ...] = "") -> list[str]:
    """Return the facts known of a conversation; `about`: what the names of the facts begin with."""
    return [f"{key.replace('_', ' ')}: {_fact(value)}" for key, value in row.facts.items() if key.startswith(about)]


def _fact(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join([f"{key} {_fact(item)}" for key, item in value.items()])
    return "-" if value is None else str(value)


def _error(row: ConversationRow) -> list[str]:
    return [] if row.internal_error is None else [f"internal error: {row.internal_error}"]


def problems_of(row: ConversationRow) -> list[str]:
    notes = those(
        (row.gaps, f"{count(row.gaps, 'gap')} ({bytes_text(row.gap_bytes)})"),
        (row.damaged, f"{row.damaged:,} damaged"),
        (row.faults - row.damaged, f"{row.faults - row.damaged:,} not readable"),
        (row.refused, f"{row.refused:,} refused"),
        (row.unanswered, f"{row.unanswered:,} unanswered"),
        (row.limit_hits, f"{count(row.limit_hits, 'limit')} reached"),
    )
    return [*_error(row), *notes]
