"""The view of entries: a line for each user message, its body at the end; or all that is known of it."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..entries import rendered_value
from ..layout.types import BytesAs
from ..layout.values import RENDER
from ..model import Entry
from ..units import count, duration_text
from .clock import Clock, Times
from .jsonl import encode_value
from .terminal import PLAIN, Palette, cut, pad, visible, width

REMEMBERED = 8_192
"""Conversations whose endpoints are kept ready; when there are more, all are made again."""

STREAM_WIDTH, STREAM_LIMIT, PLACE_WIDTH, SIZE_WIDTH, OUTCOME_WIDTH = 8, 30, 10, 9, 28
"""Columns of streams, at first and at most, of offsets and ids, of sizes, and of outcomes; longer text shifts its line."""

ROOMY, NARROW_SIZE, OUTCOME_WORD = 110, 6, 12
"""Columns of a terminal from which on the outcome has its latency, reason or consumer; and those of the size, and of the outcome's word
alone, on a narrower one, where the body, which is what people look for, gets the rest."""

SHOWN = 3
"""Properties in a line."""

LINE_ENDS = str.maketrans("", "", "\t\n\r")
"""Removes the control characters that texts may have."""

OF_THE_USER = frozenset(("application-properties", "headers"))
"""Sections of properties that applications fill."""

MARKS = {"refused": "!", "unanswered": "!", "superseded": "!", "pending": "*", "redelivered": "*", "deduplicated": "*"}

_decoder = getincrementaldecoder("utf-8")


def body_text(entry: Entry, form: BytesAs = "hex", most: int | None = None) -> str:
    """Return the body on one line: printable UTF-8 as text, a value of AMQP 1.0 or BSON as compact JSON, other bytes as hex, or in another
    `form`. `most`: as many characters are enough."""
    body = entry.body
    if body is None:
        return ""
    if entry.body_type != "bytes":
        text = _json(body)
        return text if form != "omit" else f"<{count(len(text), 'byte')}>"
    if type(body) is not bytes:
        # Redacted
        return str(body)
    if form == "omit":
        return str(RENDER[form](body))
    part = body if most is None else body[: 4 * most]
    try:
        # A character may be cut
        text = _decoder().decode(part, part is body)
        if text.isprintable():
            return text
        if text.translate(LINE_ENDS).isprintable():
            return visible(text)
    except UnicodeDecodeError:
        pass
    return visible(str(RENDER[form](part)))


def _json(value: Any) -> str:
    """Return a value as compact JSON, its bytes as hex."""
    return encode_value(rendered_value(value, bytes.hex))


def _value_text(value: Any) -> str:
    """Return a key or the value of a property."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = ""
        return text if text.isprintable() and text else f"0x{value.hex()}"
    if isinstance(value, dict) and len(value) == 2 and "value" in value:
        return _value_text(value["value"])
    return value if isinstance(value, str) else _json(value)


def where(entry: Entry) -> str:
    """Return the offset of an entry, or where it has none its publishing id."""
    if entry.offset is not None:
        return f"offset {entry.offset}"
    return "" if entry.publishing_id is None else f"id {entry.publishing_id}"


class EntryLines:
    """Makes lines of entries."""

    def __init__(
        self,
        times: Times = "r",
        palette: Palette = PLAIN,
        columns: int | None = None,
        form: BytesAs = "hex",
        tree: bool = False,
        inside: Mapping[int, str] | None = None,
    ) -> None:
        """`columns`: the width of the terminal, None without one. `form`: of bytes that are not text. `tree`: with all that is known.
        `inside`: by conversation, what its messages were carried in, as in `Lines`."""
        self.clock = Clock(times)
        self.palette = palette
        self.columns = columns
        self.form = form
        self.tree = tree
        self.inside = inside if inside is not None else {}
        self._places: dict[tuple[int, str], str] = {}
        self._introduced: dict[int, None] = {}
        self._stream_width = STREAM_WIDTH
        self._streams: dict[str | None, str] = {}
        self._narrow = columns is not None and columns < ROOMY
        self._size_width, self._outcome_width = (NARROW_SIZE, OUTCOME_WORD) if self._narrow else (SIZE_WIDTH, OUTCOME_WIDTH)

    def header(self) -> str:
        """The heading over the columns of a terminal."""
        assert self.columns is not None
        names = f"{'stream':<{self._stream_width}} {'offset/id':<{PLACE_WIDTH}} {'size':>{self._size_width}}"
        line = f"{'#':>5} {'time':>10}        {names}   {'outcome':<{self._outcome_width}}  body"
        return f"{self.palette.dim}{cut(line, self.columns)}{self.palette.reset}\n"

    def text(self, entries: Iterable[Entry]) -> str:
        """The lines of these entries."""
        lines: list[str] = []
        for entry in entries:
            if self.columns is not None and entry.conversation not in self._introduced:
                lines.append(self._introduction(entry))
            lines.append(self._line(entry))
            if self.tree:
                lines += self.details(entry)
        lines.append("")
        return "\n".join(lines)

    def _line(self, entry: Entry) -> str:
        palette, columns = self.palette, self.columns
        stream = self._streams.get(entry.stream) if entry.partition is None else None
        if stream is None:
            stream = self._stream(entry)
        place = self._places.get((entry.conversation, entry.src)) or self._place(entry)
        mark, outcome = self.outcome(entry)
        head = f"{entry.number:>5} {self.clock.text(entry.time_ns, entry.time):>10}"
        middle = f"{stream} {where(entry):<{PLACE_WIDTH}} {'' if entry.size is None else f'{entry.size:,} B':>{self._size_width}}"
        said = f"{outcome:<{self._outcome_width}}" if outcome.isascii() else pad(outcome, self._outcome_width)
        detail = self.detail(entry) if entry.key is not None or entry.properties or entry.notes else ""
        body = "" if self.tree else body_text(entry, self.form, columns)
        if palette is PLAIN:
            line = f"{head}  {place}  {middle} {mark} {said}  {detail}{body}".rstrip()
            return line if columns is None else cut(line, columns)
        line = f"{head}  {place}  {middle} "
        used = width(line)
        said = cut(f"{mark} {said}", max(0, columns - used)) if columns is not None else f"{mark} {said}"
        rest = f"  {detail}{body}"
        if columns is not None:
            rest = cut(rest, max(0, columns - used - width(said)))
        loud = palette.bad if mark == "!" else palette.warn if mark == "*" else ""
        said = f"{loud}{said}{palette.reset}" if loud else said
        return f"{palette.dim}{head}{palette.reset}  {place}  {middle} {said}{rest}"

    def outcome(self, entry: Entry) -> tuple[str, str]:
        """A mark, and what became of it."""
        outcome = entry.outcome
        if outcome is None:
            return " ", ""
        mark = MARKS.get(outcome, " ")
        # Why something went wrong is worth more than the body
        if self._narrow and mark != "!":
            return mark, outcome
        if entry.consumer is not None:
            return mark, visible(f"{outcome} to {entry.consumer}")
        if entry.reason is not None:
            return mark, visible(f"{outcome}: {entry.reason}")
        return mark, outcome if entry.latency_ns is None else f"{outcome} {duration_text(entry.latency_ns)}"

    def detail(self, entry: Entry) -> str:
        """The key, a few properties of the application and the notes, each with two blanks behind it."""
        parts = [] if entry.key is None else [f"key {_value_text(entry.key)}"]
        named = [one for one in entry.properties if one["section"] in OF_THE_USER]
        pairs = [f"{_value_text(one['key'])}={_value_text(one['value'])}" for one in named[:SHOWN]]
        parts += [f"{' '.join(pairs)}{' ...' if len(named) > SHOWN else ''}"] if pairs else []
        parts += [f"({'; '.join(entry.notes)})"] if entry.notes else []
        return "".join(f"{visible(part)}  " for part in parts)

    def _stream(self, entry: Entry) -> str:
        """The stream, and the partition, as wide as their column."""
        text = visible(entry.stream or "-")
        if entry.partition is not None:
            text = f"{text}/{entry.partition}"
        if len(text) > self._stream_width:
            self._stream_width = min(STREAM_LIMIT, len(text))
            self._streams.clear()
        text = pad(text, self._stream_width)
        if entry.partition is None:
            if len(self._streams) >= REMEMBERED:
                self._streams.clear()
            self._streams[entry.stream] = text
        return text

    def _place(self, entry: Entry) -> str:
        """Conversation and direction; in a pipe, with both ends."""
        if len(self._places) >= REMEMBERED:
            self._places.clear()
        to_client = entry.sender == "server"
        arrow = "<" if to_client else ">"
        text = f"{entry.conversation:>2} {arrow}"
        if self.columns is None:
            client, server = (entry.dst, entry.src) if to_client else (entry.src, entry.dst)
            inside = self.inside.get(entry.conversation)
            text = f"{entry.conversation:>2}  {client} {arrow} {server}{'' if inside is None else f'  [{visible(inside)}]'}"
        self._places[entry.conversation, entry.src] = text
        return text

    def _introduction(self, entry: Entry) -> str:
        """The line before the first entry of a conversation, on a terminal."""
        if len(self._introduced) >= REMEMBERED:
            self._introduced.clear()
        self._introduced[entry.conversation] = None
        client, server = (entry.dst, entry.src) if entry.sender == "server" else (entry.src, entry.dst)
        inside = self.inside.get(entry.conversation)
        text = f"{'':18}{entry.conversation:>2}  {client} > {server}  {entry.protocol}{'' if inside is None else f'  {visible(inside)}'}"
        assert self.columns is not None
        return f"{self.palette.bold}{cut(text, self.columns)}{self.palette.reset}"

    def details(self, entry: Entry) -> Iterator[str]:
        """All that is known of an entry, a line each."""
        rows: list[tuple[str, Any]] = [("message", f"{entry.message} {entry.name}")]
        known = [(name, getattr(entry, name)) for name in ("publishing_id", "id", "key", "compression", "response")]
        rows += [row for row in known if row[1] is not None]
        rows += [(f"{one['section']}: {_value_text(one['key'])}", one["value"]) for one in entry.properties]
        rows.append((f"body ({entry.body_type})", body_text(entry, self.form)))
        for name, value in rows:
            text = f"{'':7}{visible(name)} = {visible(_value_text(value))}"
            yield text if self.columns is None else cut(text, self.columns)


def raw_bodies(entries: Iterable[Entry], separator: bytes) -> Iterator[bytes]:
    """Yield the bytes of each body, and the separator behind it; values as compact JSON."""
    for entry in entries:
        body = entry.body
        if type(body) is bytes:
            yield body
        elif body is not None:
            yield (body if entry.body_type == "bytes" else _json(body)).encode()
        yield separator
