"""The four places: findings, conversations, messages, and the fields of a message with its bytes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Any

import msgspec

from streamdump.layout.values import hidden, must_hide
from streamdump.model import ConversationRow, Finding, Message, Span
from streamdump.render.clock import LATE, Clock, Times
from streamdump.render.conversations import problems_of, protocol_of, sides, table
from streamdump.render.findings import finding_lines, place_of, rank
from streamdump.render.hexdump import paths
from streamdump.render.summary import LATENCY_WIDTH, NAME_LIMIT, NAME_WIDTH, ROOMY
from streamdump.render.terminal import PLAIN as COLOURLESS
from streamdump.render.terminal import cut, pad, width
from streamdump.render.tree import about, broken_span, by_interest, fault_text, nested, value_text
from streamdump.units import duration_text

from ..indexed.index import Row, Shown
from ..indexed.reading import Reader, View
from .listing import ANSWER, ASK, BAD, BOLD, CHOSEN, COLOURS, DIM, LOUD, PLAIN, WARN, Parts, Texts

TIME = re.compile(r"(?:([0-9]{1,2}):([0-9]{2}):)?([0-9]{1,18}(?:[.][0-9]{1,9})?)s?")
"""A time of day, or seconds."""

DAY_NS = 86_400_000_000_000

PROTOCOL = 20
"""Columns of a protocol; the details show its layout."""

SEVERITY = {"error": BAD, "warning": WARN, "note": PLAIN}
LOST, AGAIN = "tcp.lost-by-capture", ".again-and-again"
"""A finding that gaps show, and the end of one that counts others."""

TIMES: dict[Times, tuple[str, int]] = {"r": ("seconds", 10), "ad": ("local time", 26), "ud": ("UTC", 26), "e": ("epoch", 20)}
"""What stands over times of each form, and their columns."""


class Place:
    """One view: a list, and the details of its selected line."""

    name = ""
    keys: tuple[tuple[str, str], ...] = ()
    """The keys that work here, and what they do."""
    orders: tuple[str, ...] = ()
    """What it can be sorted by, the first from the beginning."""
    order = 0
    cursor = 0

    def __init__(self, reader: Reader, rows: Sequence[Any] = ()) -> None:
        self.reader = reader
        self.rows = rows
        """What has a line each."""
        self.view: View | None = None
        """What a filter keeps."""
        self.asked = ""
        self.sorted: list[int] = []
        """The indexes of messages in another order than theirs."""
        self.state: Any = None
        """What was there when it was put in order."""

    def title(self) -> str:
        return self.name

    def head(self, columns: int) -> str:
        """What stands over the columns."""
        return ""

    def __len__(self) -> int:
        return len(self.rows)

    def line(self, at: int, columns: int) -> Parts:
        return [(self.rows[at], PLAIN)]

    def below(self, at: int, columns: int) -> Texts:
        """More of the chosen line."""
        return Texts()

    def value(self, at: int, columns: int) -> str:
        """The text that is copied."""
        return "".join([text for text, _ in self.line(at, columns)]).strip()

    def asks(self, at: int) -> list[str]:
        """Filters that ask for it, the best first."""
        return []

    def refilter(self, view: View | None, asked: str) -> None:
        """Show what a filter keeps."""
        if self.view is not None:
            self.view.stopped = True
        self.view, self.asked = view, asked

    def sort(self, order: int) -> list[int]:
        """What `sorted` is in one of its orders."""
        return []

    def update(self) -> None:
        """Add what was read meanwhile."""

    def is_as(self, *state: Any) -> bool:
        """Whether this is what was there when it was put in order; it is from now on."""
        before, self.state = self.state, state
        return bool(before == state)


class Findings(Place):
    """What went wrong, the worst first."""

    name = "findings"
    keys = (("enter", "its messages"), ("/", "filter"), ("e", "export"), ("y", "copy"))

    def title(self) -> str:
        return f"{self.name} {len(self.reader.findings) if self.view is None else len(self):,}"

    def head(self, columns: int) -> str:
        return f"{'':9}{'rule':{self._size}}  what, and where"

    def update(self) -> None:
        found, asked = self.reader.findings, None if self.view is None else self.view.asked
        if not self.is_as(count := len(found), asked):
            self.rows = sorted([one for one in found[:count] if asked is None or asked.keeps(one)], key=rank)
            self._size = max((width(one.rule) for one in self.rows), default=0)

    def line(self, at: int, columns: int) -> Parts:
        one = self.rows[at]
        style = SEVERITY[one.severity]
        return [
            (f"{one.severity:<9}{pad(one.rule, self._size)}  ", style),
            (f"{one.cause}  ", PLAIN),
            (place_of(one, files=self.reader.files), DIM),
        ]

    def below(self, at: int, columns: int) -> Texts:
        lines = finding_lines(self.rows[at], columns, COLOURLESS, self.reader.clock, files=self.reader.files)
        return Texts([[(line, BOLD if line.startswith(self.rows[at].severity) else PLAIN)] for line in lines])


class Conversations(Place):
    """Who talked to whom."""

    name = "conversations"
    keys = (
        ("enter", "its messages"),
        ("/", "filter"),
        ("s", "sort"),
        ("f", "filter for it"),
        ("e", "export"),
        ("w", "write packets"),
        ("y", "copy"),
    )
    orders = ("number", "messages", "bytes", "problems")

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._sizes = [0] * 3
        self._mine: set[int] = set()
        self._seen = 0

    def title(self) -> str:
        return f"{self.name} {len(self) if self.view is not None else self.reader.conversations:,}"

    def head(self, columns: int) -> str:
        number, ends, protocol = self._sizes
        return f"{'#':>{number}}    {'client and server':<{ends}}  {'protocol':<{protocol}}  messages       bytes  how it went"

    def refilter(self, view: View | None, asked: str) -> None:
        super().refilter(view, asked)
        self._mine, self._seen = set(), 0

    def update(self) -> None:
        rows = self.reader.rows
        if self.is_as(id(rows), self.order, id(self.view), 0 if self.view is None else len(self.view)):
            return
        if self.view is not None:
            for at in range(self._seen, len(self.view)):
                self._mine.add(self.reader.records.row(self.view[at]).record.conversation)
                self._seen = at + 1
            rows = [row for row in rows if row.conversation in self._mine]
        keys: tuple[Callable[[ConversationRow], Any], ...] = (
            lambda row: row.conversation,
            lambda row: -row.messages,
            lambda row: -sum(row.bytes),
            lambda row: -len(problems_of(row)),
        )
        self.rows = sorted(rows, key=keys[self.order])
        texts = [self._texts(row) for row in self.rows]
        self._sizes = [max(least, *(width(text[at]) for text in texts), 0) for at, least in enumerate((2, 18, 8))]

    def _texts(self, row: ConversationRow) -> tuple[str, str, str]:
        first, arrow, second, _ = sides(row)
        return str(row.conversation), f"{first} {arrow} {second}", cut(protocol_of(row), PROTOCOL)

    def line(self, at: int, columns: int) -> Parts:
        row = self.rows[at]
        number, ends, protocol = self._texts(row)
        problems = problems_of(row)
        style = COLOURS[row.conversation % len(COLOURS)]
        return [
            (f"{number:>{self._sizes[0]}} ", style),
            ("! " if problems else "  ", BAD),
            (f"{ends:<{self._sizes[1]}}  ", style),
            (f"{pad(protocol, self._sizes[2])}  {row.messages:>8,}  {sum(row.bytes):>10,}  ", PLAIN),
            (f"{', '.join(problems)}, " if problems else "", BAD),
            (row.ended, PLAIN),
        ]

    def below(self, at: int, columns: int) -> Texts:
        return Texts([[(line, PLAIN)] for line in table([self.rows[at]], columns, COLOURLESS, True).splitlines()[1:]])

    def asks(self, at: int) -> list[str]:
        return [f"conversation == {self.rows[at].conversation}"]


class Messages(Place):
    """The messages of all conversations, or of one."""

    name = "messages"
    keys = (
        ("enter", "fields"),
        ("/", "filter"),
        (":", "go to"),
        ("n", "next !"),
        ("r", "response"),
        ("u", "user messages"),
        ("s", "sort"),
        ("l", "latency"),
        ("m", "mark"),
        ("d", "since mark"),
        ("t", "times"),
        ("f", "filter for it"),
        ("e", "export"),
        ("w", "write packets"),
        ("y", "copy"),
    )
    orders = ("number", "latency", "size")
    SORTED = 100_000
    """The most records that are sorted: those with the largest values."""

    def __init__(self, reader: Reader, conversation: int | None = None) -> None:
        super().__init__(reader)
        self.conversation = conversation
        self.every: View = View(reader, conversation)

    def title(self) -> str:
        whose = "" if self.conversation is None else f" of conversation {self.conversation}"
        order = f" by {self.orders[self.order]}" if self.order else ""
        return f"{self.name}{whose} {len(self):,}{order}"

    @property
    def clock(self) -> Clock:
        return self.reader.since or self.reader.clock

    @property
    def shown(self) -> View:
        """Return the messages shown, in their order."""
        return self.every if self.view is None else self.view

    def head(self, columns: int) -> str:
        number, name = self._sizes(columns)
        time = "since mark" if self.reader.since else TIMES[self.clock.form][0]
        return f"{'#':>{number}} {time:>{TIMES[self.clock.form][1]}}        {'message':<{name}} {'latency':>8}    details"

    def _sizes(self, columns: int) -> tuple[int, int]:
        return max(5, len(str(len(self.reader.records)))), NAME_LIMIT if columns >= ROOMY else NAME_WIDTH

    def __len__(self) -> int:
        return len(self.sorted) if self.order else len(self.shown)

    def index(self, at: int) -> int:
        """That of the record that stands there."""
        return self.sorted[at] if self.order else self.shown[at]

    def at(self, index: int) -> int:
        """Where a record stands, or the next one."""
        if self.order:
            return self.sorted.index(index) if index in self.sorted else 0
        return bisect_left(self.shown, index)

    def has(self, index: int) -> bool:
        """Return whether a record is shown."""
        at = self.at(index)
        return at < len(self) and self.index(at) == index

    def sort(self, order: int) -> list[int]:

        def size(index: int) -> int:
            record: Any = self.reader.records.row(index).record
            return int(getattr(record, "latency_ns" if order == 1 else "size", None) or 0)

        return nlargest(self.SORTED, self.shown, key=size) if order else []

    def refilter(self, view: View | None, asked: str) -> None:
        super().refilter(view, asked)
        self.order, self.sorted = 0, []

    def place_of(self, found: Finding) -> tuple[int, list[str]]:
        """Where a finding stands among them, and what to say of that place."""
        if found.messages:
            first = ["this is the first one; the others are not listed separately"]
            return self.at(found.messages[0] - 1), first if found.rule.endswith(AGAIN) else []
        if not len(self):
            return 0, [f"conversation {self.conversation} has no messages; press esc, then 2 to see how it ended"]
        records, every, packet = self.reader.records, self.every[0 : len(self.every)], min(found.packets, default=0)
        if found.rule == LOST:
            marked = (at for at, index in enumerate(every) if records.marks[index - records.first] == ord("!"))
            there = (at for at in marked if getattr(records.row(every[at]).record, "reason", "") == "lost")
        else:
            begin = bisect_left(every, packet, key=lambda index: records.row(index).until)
            there = (at for at in range(begin, len(every)) if getattr(records.row(every[at]).record, "packets", (0, 0))[1] >= packet)
        place, what = next(there, -1), "gap" if found.rule == LOST else f"message from packet {packet:,} on"
        return place % len(self), [f"no message shows this; this is the {'last message' if place < 0 else f'first {what}'}"]

    def next_marked(self, at: int, way: int) -> int | None:
        """Where the next one with ! stands."""
        marks = self.reader.records.marks
        if self.order == 0 and self.shown is self.every and self.conversation is None:
            found = marks.find(b"!", at + 1) if way > 0 else marks.rfind(b"!", 0, at)
            return found if found >= 0 else None
        places = range(at + way, len(self) if way > 0 else -1, way)
        return next((one for one in places if marks[self.index(one) - self.reader.records.first] == ord("!")), None)

    def named(self, text: str) -> int | str:
        """The index of a message by its number, or of the first one from a time on; what to say where there is none."""
        records, every = self.reader.records, self.every
        time = TIME.fullmatch(text)
        if time is None:
            return ""
        if text.isdigit():
            return int(text) - 1 if 0 < int(text) <= len(records) else f"no message {text}: the last one is {len(records):,}"
        base, (hours, minutes, seconds) = self.reader.clock.base or 0, time.groups()
        since = int(float(seconds) * 1e9)
        if hours:
            # An earlier time of day is that of the next day
            since = (since + (int(hours) * 60 + int(minutes)) * 60_000_000_000 - base) % DAY_NS
        at = bisect_left(every, base + since, key=lambda index: records.row(index).record.time_ns)
        return int(every[at]) if at < len(every) else f"no message at {text} or later"

    def row(self, at: int) -> Row:
        return self.reader.records.row(self.index(at))

    def line(self, at: int, columns: int) -> Parts:
        record, mark, name, text, _, late = self.row(at)
        number, wide = self._sizes(columns)
        sender = getattr(record, "sender", None)
        way, style = {"client": (">", ASK), "server": ("<", ANSWER)}.get(sender or "", ("-", PLAIN))
        latency = getattr(record, "latency_ns", None)
        marked = "m" if self.reader.marked == record.number - 1 else " "
        return [
            (f"{record.number:>{number}}{marked}", BOLD if marked == "m" else DIM),
            (f"{self.clock.text(record.time_ns, record.time):>{TIMES[self.clock.form][1]}}{LATE if late else ' '} ", DIM),
            (f"{record.conversation:>2} ", COLOURS[(record.conversation or 0) % len(COLOURS)]),
            (f"{way}  {name:<{wide}}", style),
            (f" {'' if latency is None else duration_text(latency):>{LATENCY_WIDTH}} ", DIM),
            (f" {mark} {text}", LOUD.get(mark, PLAIN)),
        ]

    def asks(self, at: int) -> list[str]:
        from streamdump.filter.grammar import quoted

        record = self.row(at).record
        return [f"name == {quoted(record.name)}" if isinstance(record, Message) else f"number == {record.number}"]


class Fields(Place):
    """All that is in a message, and its bytes."""

    name = "fields"
    keys = (
        ("esc", "back"),
        ("f", "filter for value"),
        ("r", "response"),
        ("u", "user messages"),
        ("n", "next message"),
        ("e", "export"),
        ("y", "copy value"),
    )

    def __init__(self, reader: Reader, record: Shown, in_order: bool = True) -> None:
        """`in_order`: as on the wire; otherwise first the damaged fields and those that differ from other messages."""
        super().__init__(reader)
        self.record = record
        self.spans: list[Span] = []
        self._head: list[Parts] = []
        """Lines before those of the fields, of which there may be very many."""
        self._dump: tuple[int, HexLines] | None = None
        self._broken: int | None = None
        if isinstance(record, Message):
            self.spans, self._broken = record.spans or [], broken_span(record, record.spans or [])
            if not in_order:
                order = by_interest(record, self.spans)
                self.spans = [self.spans[index] for index in order]
                self._broken = None if self._broken is None else order.index(self._broken)
            self._head = [[(about(record), DIM)], *([(f"*  {note}", WARN)] for note in record.notes)]
            if record.fault is not None:
                self._head.insert(1, [(f"!  {fault_text(record)}", BAD)])
        else:
            lines = nested(msgspec.to_builtins(record), 0)
            self._head = [[(f"{pad('  ' * depth + name, 14)} ", ASK), (text, PLAIN)] for depth, name, text in lines]
        self._size = min(28, max((2 * one.depth + width(one.name) for one in islice(self.spans, 1_000)), default=0))

    def title(self) -> str:
        return f"{getattr(self.record, 'name', '') or type(self.record).__name__.lower()} {self.record.number}"

    def __len__(self) -> int:
        return len(self._head) + len(self.spans)

    def span(self, at: int) -> Span | None:
        """The field of a line."""
        return self.spans[at - len(self._head)] if at >= len(self._head) else None

    def line(self, at: int, columns: int) -> Parts:
        span = self.span(at)
        if span is None:
            return self._head[at]
        bad = at - len(self._head) == self._broken
        raw = getattr(self.record, "raw", None) or {}
        text = value_text(span, must_hide(span, self.reader.options.show_secrets), bad, raw.get(span.buffer, b""))
        where = f"{'' if span.buffer == 'frame' else f'{span.buffer} '}{span.offset:04x}+{span.length}"
        return [(f"{where:<9} ", DIM), (f"{pad('  ' * span.depth + span.name, self._size)}  ", ASK), (text, BAD if bad else PLAIN)]

    def dump(self, at: int, columns: int) -> tuple[HexLines, int]:
        """The bytes with those of the chosen field marked, and the line of these."""
        if self._dump is None or self._dump[0] != columns:
            self._dump = columns, HexLines(self.record, self.reader.options.show_secrets, columns)
        return self._dump[1], self._dump[1].mark(self.span(at))

    def value(self, at: int, columns: int) -> str:
        return self.line(at, columns)[-1][0].strip()

    def asks(self, at: int) -> list[str]:
        from streamdump.filter.grammar import quoted

        span = self.span(at)
        if span is None or must_hide(span, self.reader.options.show_secrets) or not span.leaf or span.value is None:
            return []
        path = next(path for one, path in paths(self.spans) if one is span)
        value = span.value if isinstance(span.value, int | float) else quoted(str(span.value))
        return [f"fields.{path} == {value}", f"{path.rpartition('.')[2]} == {value}"]


class HexLines:
    """The bytes of a message, those of a field marked."""

    def __init__(self, record: Shown, show_secrets: bool, columns: int) -> None:
        self._row = 16 if columns >= 74 else 8
        self._span: Span | None = None
        self._lines: list[tuple[str, bytes, bytearray | None, int]] = []
        """Each buffer: name, bytes, flags of hidden ones, first line."""
        self._count = 0
        spans, buffers = getattr(record, "spans", None), getattr(record, "raw", None) or {}
        marked = hidden(buffers, spans or (), show_secrets)
        for name, data in buffers.items():
            # Nobody says where a frame without known fields keeps its secrets, or one that is packed
            packed = name == "frame" and any(one.secret and one.buffer != name for one in spans or ())
            secret = not show_secrets and (spans is None or packed)
            flags = bytearray(b"\1") * len(data) if secret else marked.get(name)
            self._lines.append((name, data, flags, self._count))
            self._count += 1 - -len(data) // self._row

    def mark(self, span: Span | None) -> int:
        """Mark the bytes of a field; the line in which they begin."""
        self._span = span
        begin = [first for name, _, _, first in self._lines if span is not None and span.buffer == name]
        return begin[0] + 1 + span.offset // self._row if begin and span is not None else 0

    def __len__(self) -> int:
        return self._count

    def line(self, at: int, columns: int) -> Parts:
        name, data, flags, first = next(one for one in reversed(self._lines) if one[3] <= at)
        if at == first:
            return [(f"{name}, {len(data):,} bytes", DIM)]
        begin, span = (at - first - 1) * self._row, self._span
        marked = range(span.offset, span.offset + span.length) if span is not None and span.buffer == name else range(0)
        octets: Parts = [(f"{begin:04x}  ", DIM)]
        text: Parts = [(" ", PLAIN)]
        for place in range(begin, min(begin + self._row, len(data))):
            one, style = data[place], CHOSEN if place in marked else PLAIN
            secret = flags is not None and bool(flags[place])
            octets += [("**" if secret else f"{one:02x}", style), (" ", style if place + 1 in marked else PLAIN)]
            text.append(("*" if secret else chr(one) if 32 <= one < 127 else ".", style))
        return [*octets, ("   " * (begin + self._row - len(data)), PLAIN), *text]


class TextPage(Place):
    """Lines of text, such as the help."""

    keys = (("esc", "back"), ("space", "more"), ("g", "first line"), ("e", "export"), ("y", "copy"))

    def __init__(self, reader: Reader, name: str, text: str) -> None:
        super().__init__(reader, text.splitlines())
        self.name = name
