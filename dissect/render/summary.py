"""The text view: a line a record.

On a terminal a conversation is introduced once, by a line of its own, and its records carry its number; lines are cut at the
terminal's width. Elsewhere every line carries the endpoints and the protocol, and nothing is cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..model import Ending, Exchange, Finding, Gap, Message, Record, Unreadable
from ..protocols import ByProtocol
from ..tcp.signs import SentAgain
from ..units import count, duration_text
from . import processes
from .clock import LATE, Clock, ReleaseOrder, Times
from .terminal import PLAIN, Palette, cut, visible, width, wrapped_parts

Info = Callable[[Message], str]
Alarms = Mapping[str, Mapping[str, Callable[[Message], bool]]]

REMEMBERED = 8192
"""The most conversations whose endpoints, and names that, are cached; beyond it the cache is emptied."""

NAME_WIDTH, NAME_LIMIT = 18, 26
"""Columns for the names of messages, at first and at most; a longer name shifts its line."""

ROOMY = 100
"""Columns of a terminal from which on names have the room they might need from the start."""


WRAPPED = 6
"""The most lines of a failure on a terminal that is too narrow for one."""

NARROW, TOO_NARROW = 40, 20
"""Columns in which only the beginning of what went wrong stands, if there are more below, and those that are too few for even that."""

LATENCY_WIDTH = 8

SILENCE_NS = 1_000_000_000
"""A server that hangs up after so long without a message does not answer anything."""

_REASONS = {
    "lost": "not captured",
    "cut": "cut off by the snap length of the capture",
    "skipped": "skipped: no frame recognised",
}


def bytes_text(size: int | None) -> str:
    """ "1 byte", "1,448 bytes", "some bytes" where nobody knows how many."""
    return "some bytes" if size is None else count(size, "byte")


class _Origin(NamedTuple):
    """Where a conversation's lines say they come from, ready made for both directions."""

    client: str
    known: bool
    asked: str
    answered: str
    colour: str


class Lines:
    """Makes lines of records; keeps the widths of columns, which only grow, and the time that relative times count from."""

    def __init__(
        self,
        info: Mapping[str, Info],
        times: Times = "r",
        palette: Palette = PLAIN,
        columns: int | None = None,
        after: Info | None = None,
        longest: Callable[[str], int] | None = None,
        inside: Mapping[int, str] | None = None,
        alarms: Alarms | None = None,
        asked: Mapping[int, tuple[Message, Ending | None]] | None = None,
        broken_off: Mapping[int, str] | None = None,
        unacknowledged: Mapping[tuple[int, str], SentAgain] | None = None,
    ) -> None:
        """`columns`: the width of the terminal, None when there is none. `after`: further complete lines for a message. `longest`: the
        length of each protocol's longest message name, so that columns need not grow on the way. `inside`: by conversation, what its
        messages were carried in (TLS 1.3), which its first line says. `alarms`: by protocol and name, which report a problem.
        `asked`: by the number of an exchange without a response, the request and what ended the conversation.
        `broken_off`: by conversation, how far the handshake had come in the middle of which the server left.
        `unacknowledged`: by conversation and sender, the data that was sent again and again and never acknowledged."""
        self.info = info
        self.learns: ByProtocol[Callable[[Message], None] | None] = ByProtocol(lambda one: getattr(info[one.name], "learn", None))
        self.clock = Clock(times)
        self.palette = palette
        self.columns = columns
        self.after = after
        self.longest = longest if columns is None or columns >= ROOMY else None
        self.inside = inside if inside is not None else {}
        self.alarms = alarms if alarms is not None else defaultdict(dict)
        self.asked = asked if asked is not None else {}
        self.broken_off = broken_off if broken_off is not None else {}
        self.unacknowledged = unacknowledged if unacknowledged is not None else {}
        self.marked = False
        """Something was shown that went wrong between client and server, not in what was captured of it."""
        self._reported: set[int] = set()
        self._order = ReleaseOrder()
        self._late: set[int] = set()
        """By identity, of the records that it learned of last."""
        self.number_width = 5
        self.name_width = NAME_WIDTH
        self.pair_width = 0
        self.protocol_width = 0
        self.time_width = {"r": 10, "d": 10, "dd": 10, "e": 20}.get(times, 26)
        self._places: dict[int | None, _Origin] = {}
        self._names: dict[str, str] = {}

    def header(self) -> str:
        """The heading over the columns of a terminal."""
        line = f"{'#':>{self.number_width}} {'time':>{self.time_width}}        {'message':<{self.name_width}} {'latency':>8}    details"
        assert self.columns is not None
        return f"{self.palette.dim}{cut(line, self.columns)}{self.palette.reset}\n"

    def learn(self, records: Sequence[Record]) -> None:
        """Note records, whether they are shown or not, before some of them are."""
        learns = self.learns
        self._late = self._order.late(records)
        for record in records:
            if type(record) is Message and (learn := learns[record.protocol]) is not None:
                learn(record)

    def text(self, records: Iterable[Record]) -> str:
        """The lines of these records."""
        lines: list[str] = []
        self.add(records, lines)
        lines.append("")
        return "\n".join(lines)

    def add(self, records: Iterable[Record], lines: list[str]) -> None:
        """Append the lines of these records. Where one raises an exception there is no line of it, and the others may follow."""
        append, places, after, palette, columns = lines.append, self._places, self.after, self.palette, self.columns
        for record in records:
            place = places.get(record.conversation)
            carried = ""
            if place is None or (not place.known and _client(record) is not None):
                place = self._place(record)
                if columns is None:
                    carried = self._carried(record.conversation)
                elif record.conversation is not None:
                    append(self._introduction(record, place))
            asked = record.src == place.client
            if columns is None:
                line = self._rendered(record, place.asked if asked else place.answered, "", "", None, carried)
            else:
                where = f"{_number(record):>2} {'>' if asked else '<'}"
                line = self._rendered(record, where, place.colour, palette.ask if asked else palette.answer, columns)
            if after is not None and type(record) is Message:
                line = f"{line}\n{after(record)}"
            append(line)

    def _rendered(self, record: Record, where: str, where_colour: str, colour: str, columns: int | None, carried: str = "") -> str:
        """One line, with marks, colour and cutting; `carried` stands before what it says."""
        time = self._time(record)
        mark, name, latency_ns, text = self.content(record)
        text = carried + text
        if not text.isprintable():
            text = visible(text)
        name = self._names.get(name) or self._name(name)
        if record.number >= 100_000:
            self.number_width = max(self.number_width, len(str(record.number)))
        elapsed = "" if latency_ns is None else duration_text(latency_ns)
        # A finding has a number of its own
        head = f"{('' if type(record) is Finding else str(record.number)).rjust(self.number_width)} {time}"
        beside = f" {elapsed.rjust(LATENCY_WIDTH)} "
        palette = self.palette
        if columns is None and palette is PLAIN:
            return f"{head} {where}  {name}{beside} {mark} {text}".rstrip()
        more: list[str] = []
        if columns is not None:
            room = columns - len(head) - len(where) - self.name_width - len(beside) - 6
            if not elapsed and (mark != " " or type(record) is Ending) and width(text) > room:
                beside, room = "", room + len(beside)
            if mark == "!" and room > 0:
                text, more = laid_out(text, room, columns, len(head) + len(where) + 3)
            else:
                text = cut(text, max(0, room))
        if palette is PLAIN:
            return "\n".join([f"{head} {where}  {name}{beside} {mark} {text}".rstrip(), *more])
        reset, dim = palette.reset, palette.dim
        loud = palette.bad if mark == "!" else palette.warn if mark == "*" else ""
        text = f"{loud}{mark} {text}{reset}" if loud else f"{mark} {text}"
        where = f"{where_colour}{where}{reset}" if where_colour else where
        line = f"{dim}{head}{reset} {where}  {colour}{name}{reset}{dim}{beside}{reset} {text}"
        return "\n".join([line, *(f"{loud}{one}{reset}" for one in more)])

    def _unanswered(self, record: Exchange) -> str:
        """What became of a request that has no response, and what it was."""
        request, ending = self.asked.get(record.number, (None, None))
        detail = [f"#{record.id}"] if record.id is not None else []
        waited = "" if record.waited_ns is None else f" after {duration_text(record.waited_ns)}"
        why = f" ({record.reason})" if record.reason else ""
        if ending is not None and ending.how in _ENDS and record.reason in ("closed", "capture ended"):
            why = f", {ending.sender or ending.src} {_ENDS[ending.how]}"
        again = self.unacknowledged.get((record.conversation, record.src))
        if request is not None and again is not None and (request.packets[0] or 0) <= again.packets[0] <= request.packets[1]:
            why += f", sent {again.times} times and never acknowledged"
        said = "" if request is None else self.info[record.protocol](request)
        if record.id is not None:
            said = said.removeprefix(f"#{record.id}").lstrip()
        asked = f"request {record.request}"
        detail.append(f"{record.outcome}{waited}{why}: {f'{said} ({asked})' if said else asked}")
        return "  ".join(detail)

    def content(self, record: Record) -> tuple[str, str, int | None, str]:
        """Mark, name, latency, and what the record says."""
        if isinstance(record, Message):
            text, notes, fault = self.info[record.protocol](record), record.notes, record.fault
            alarm = self.alarms[record.protocol].get(record.name)
            mark = "!" if record.outcome == "refused" or (alarm is not None and alarm(record)) else "*" if notes else " "
            self.marked = self.marked or (mark == "!" and fault is None)
            if notes:
                text = f"{text}  ({'; '.join(notes)})" if text else f"({'; '.join(notes)})"
            if fault is not None:
                damaged = type(fault) is not Unreadable
                mark = "!" if damaged or mark == "!" else "*"
                buffer = "" if fault.buffer == "frame" else f" of {fault.buffer}"
                detail = f"{'damaged: ' if damaged else ''}{fault.field} at byte {fault.offset}{buffer}: {fault.reason}"
                text = f"{detail}  {text}" if text else detail
            return mark, record.name, record.latency_ns, text
        content = self._said(record)
        self.marked = self.marked or (content[0] == "!" and type(record) is not Gap)
        return content

    def _said(self, record: Gap | Exchange | Ending | Finding) -> tuple[str, str, int | None, str]:
        """Return the same for a record that is not a message."""
        match record:
            case Gap():
                inside = ", inside a frame" if record.in_frame else ""
                return "!", "gap", None, f"{bytes_text(record.size)} {_REASONS[record.reason]}{inside}"
            case Ending():
                return _ending(record, self.broken_off.get(record.conversation or 0))
            case Finding():
                shown = f", messages {', '.join(map(str, record.messages))}" if record.messages else ""
                mark = {"error": "!", "warning": "*"}.get(record.severity, " ")
                return mark, "finding", None, f"{record.severity}: {record.cause} ({record.rule}{shown})"
            case Exchange(response=None):
                return "!", record.name, None, self._unanswered(record)
            case Exchange():
                mark, ident = "!" if record.outcome == "refused" else " ", "" if record.id is None else f"#{record.id}  "
                detail = f"{ident}{record.outcome}: request {record.request}, response {record.response}"
                return mark, record.name, record.latency_ns, detail

    def late(self, record: Record) -> bool:
        """Return whether a record of the last `learn` was released late."""
        return id(record) in self._late

    def _time(self, record: Record) -> str:
        """The time, with a mark or a space behind it."""
        return f"{self.clock.text(record.time_ns, record.time).rjust(10)}{LATE if self._late and id(record) in self._late else ' '}"

    def _place(self, record: Record) -> _Origin:
        """The conversation of `record`, its client first as far as that is known."""
        if len(self._places) >= REMEMBERED:
            self._places.clear()
        client = _client(record)
        first = client if client is not None else record.src
        second = record.dst if first == record.src else record.src
        protocol = record.protocol or ""
        if self.longest is not None:
            self._widen(self.longest(protocol))
        size = len(first) + len(second)
        if size > self.pair_width or len(protocol) > self.protocol_width:
            self.pair_width = max(size, self.pair_width)
            self.protocol_width = max(len(protocol), self.protocol_width)
            if self.columns is None:
                # cached ones have the former widths
                self._places.clear()
        head = f"{_number(record):>2}  {first}"
        tail = f"{second}{' ' * (self.pair_width - size)}  {protocol:<{self.protocol_width}}"
        marks = self.palette.marks
        colour = marks[(record.conversation or 0) % len(marks)]
        place = self._places[record.conversation] = _Origin(first, client is not None, f"{head} > {tail}", f"{head} < {tail}", colour)
        return place

    def _introduction(self, record: Record, place: _Origin) -> str:
        client = place.client
        server = record.dst if record.src == client else record.src
        blank = " " * (self.number_width + self.time_width + 3)
        text = f"{record.conversation:>2}  {client} {'>' if place.known else '-'} {server}  {record.protocol or ''}".rstrip()
        inside = self.inside.get(-1 if record.conversation is None else record.conversation)
        if inside is not None:
            text += f"  {visible(inside)}"
        if record.processes is not None:
            text += f"  {visible(', '.join(processes.texts(record.processes, client if place.known else None)))}"
        if not place.known:
            text += "  (which side is the client is not known)"
        assert self.columns is not None
        palette = self.palette
        return f"{blank}{place.colour}{palette.bold}{cut(text, max(0, self.columns - len(blank)))}{palette.reset}"

    def _carried(self, conversation: int | None) -> str:
        """What a conversation's messages are carried in, the first time that it is asked for."""
        found = None if conversation is None else self.inside.get(conversation)
        if found is None or conversation is None or conversation in self._reported:
            return ""
        if len(self._reported) > REMEMBERED:
            self._reported.intersection_update(self.inside)
        self._reported.add(conversation)
        return f"[{visible(found)}]  "

    def _widen(self, size: int) -> None:
        if self.name_width < min(NAME_LIMIT, size):
            self.name_width = min(NAME_LIMIT, size)
            self._names.clear()

    def _name(self, name: str) -> str:
        """`name`, harmless and as wide as its column."""
        if len(self._names) >= REMEMBERED:
            self._names.clear()
        shown = visible(name)
        if len(shown) > self.name_width:
            self._widen(len(shown))
        self._names[name] = padded = f"{shown:<{self.name_width}}"
        return padded


_ENDS = {"FIN": "closed (FIN)", "RST": "aborted (RST)"}


def laid_out(text: str, room: int, columns: int, indent: int) -> tuple[str, list[str]]:
    """What of `text` stands in the rest of a line, `room` wide, and the lines below: after `indent` if that is narrow."""
    if width(text) <= room or room >= NARROW or columns - indent < TOO_NARROW:
        first, *below = wrapped_few(text, room)
        return first, [f"{' ' * (columns - room)}{line}" for line in below]
    first = "" if room < TOO_NARROW else wrapped_few(text, room)[0]
    return first, [f"{' ' * indent}{line}" for line in wrapped_few(text[len(first) :].lstrip(" "), columns - indent)]


def wrapped_few(text: str, cells: int) -> list[str]:
    """`text` in a few lines, of which only the last may be cut."""
    if width(text) <= cells:
        return [text]
    lines = wrapped_parts(text[: 2 * WRAPPED * cells], cells)
    return lines if len(lines) <= WRAPPED else [*lines[: WRAPPED - 1], cut(" ".join(lines[WRAPPED - 1 :]), cells)]


def _ending(record: Ending, step: str | None) -> tuple[str, str, int | None, str]:
    """Return the content of an ending; `step`: the last step of the handshake that it interrupts."""
    who = record.sender or record.src
    detail = {
        "no answer": f"no answer from {record.dst}",
        "refused": f"{record.src} refused the connection (RST to a SYN)",
        "forgotten": "forgotten, as there were too many or it was silent for long",
    }.get(record.how)
    if detail is None:
        detail = f"{who} {_ENDS[record.how]}{', not a byte was sent' if record.protocol is None else ''}"
    if record.quiet_ns is not None:
        detail += f" after {duration_text(record.quiet_ns)} of silence"
    counts = [f"{number:,} {what}" for number, what in ((record.open, "unanswered"), (record.refused, "refused")) if number]
    hung_up = record.sender == "server" and (record.quiet_ns or 0) >= SILENCE_NS
    if step is not None:
        detail += f", in the handshake ({step})"
    mark = " " if record.how in ("FIN", "forgotten") and not record.open and not hung_up and step is None else "!"
    return mark, "end", None, ", ".join([detail, *counts])


def _number(record: Record) -> int | str:
    """What a conversation is called; several together have no name."""
    return "" if record.conversation is None else record.conversation


def _client(record: Record) -> str | None:
    """Return the client's endpoint if the record shows it."""
    if type(record) is Exchange or record.sender is None:  # type: ignore[union-attr]
        return None
    return record.src if record.sender == "client" else record.dst  # type: ignore[union-attr]
