"""One conversation: lines with the time since the record before, a sequence diagram between both ends, or one for a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..credit import CreditAccounts, Stall, Subscription
from ..layout.values import seen
from ..model import Ending, Finding, Gap, Message, Record
from ..protocols import BY_NAME
from ..units import duration_text
from .summary import Lines, laid_out
from .terminal import cut, encoded, pad, visible, width

WIDE = 100
"""Columns of a terminal from which on there is room for words where else are marks."""

DIAGRAM = 100
"""Columns of a sequence diagram that goes to no terminal."""

SAID = 120
"""Characters of what a message says in a diagram for a report."""

DRAWN = 50_000
"""Characters of a diagram from which on Mermaid refuses it, unless it is configured otherwise."""


class CreditNotes:
    """What to say of the credit of subscriptions beside the records of a conversation."""

    def __init__(self) -> None:
        self.accounts = CreditAccounts(True, self._stalled)
        self._stalls: list[str] = []

    def note(self, record: Record) -> tuple[str, bool]:
        """Return what a record changes, and whether it ends a stall. It has to get all records of the conversation in order."""
        changed, self._stalls = None, []
        if type(record) is Message:
            traffic = BY_NAME[record.protocol].loaded.traffic
            changed = None if traffic is None else self.accounts.add(record, traffic(record))
        elif type(record) is Gap and not record.in_frame:
            self.accounts.lose(record.conversation)
        elif type(record) is Ending:
            self.accounts.end(record.conversation, record.time_ns)
        left = []
        if changed is not None and changed.row.complete:
            left = [f"credit {changed.left:,}" + (" bytes" if changed.row.unit == "bytes" else "")]
        return ", ".join([*left, *self._stalls]), bool(self._stalls)

    def finish(self, end_ns: Callable[[int], int]) -> list[str]:
        """Return what to say of subscriptions that have no credit at the end of the capture, a function of the file."""
        self._stalls = []
        self.accounts.finish(end_ns)
        return [f"{one}, at the end of the capture" for one in self._stalls]

    def _stalled(self, one: Subscription, stall: Stall) -> None:
        # As of now the client is the only side that a capture shows to be the cause
        said = f"{duration_text(stall.duration_ns)} without credit ({stall.side})"
        self._stalls.append(f"after {said}" if stall.ended else f"subscription {one.row.subscription}: {said}")


class FollowLines(Lines):
    """Lines of the records of one conversation. Its records are all given to `learn` before some of them are shown."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.credit = CreditNotes()
        self._since: dict[int, int] = {}
        """By identity, of the records that it learned of last, the time since the record before."""
        self._credit: dict[int, tuple[str, bool]] = {}
        """The same for what to say of credit."""

    _client: str | None = None
    _ends: tuple[str, str] | None = None
    _before: int | None = None
    _protocol = ""
    _conversation = 0

    def learn(self, records: Sequence[Record]) -> None:
        """Note records of the conversation, whether they are shown or not."""
        super().learn(records)
        self._since, self._credit = {}, {}
        for record in records:
            if (said := self.credit.note(record))[0]:
                self._credit[id(record)] = said
            if self._ends is None:
                self._ends = record.src, record.dst
                self._protocol, self._conversation = record.protocol or "", record.conversation or 0
                if self.longest is not None:
                    self._widen(self.longest(self._protocol))
            sender = getattr(record, "sender", None)
            if self._client is None and sender is not None:
                self._client = record.src if sender == "client" else record.dst
            passed = None if self._before is None or not record.time_ns else record.time_ns - self._before
            if type(record) is Ending and passed is not None and passed < 0:
                # What became of requests is shown before it, with the time at which that was certain
                passed = record.quiet_ns
            if passed is not None and (passed >= 0 or type(record) is not Ending):
                self._since[id(record)] = passed
            self._before = record.time_ns

    def content(self, record: Record) -> tuple[str, str, int | None, str]:
        mark, name, latency_ns, text = super().content(record)
        said, stalled = self._credit.get(id(record), ("", False))
        return "*" if stalled and mark == " " else mark, name, latency_ns, f"{said}  {text}".rstrip() if said else text

    def opening(self) -> list[str]:
        """What stands above the lines."""
        (one, two), palette = self._sides(), self.palette
        known = self._client is not None
        text = f"conversation {self._conversation}  {one} {'>' if known else '-'} {two}  {self._protocol}"
        if self._conversation in self.inside:
            text += f"  {visible(self.inside[self._conversation])}"
        if not known:
            text += "  (which side is the client is not known)"
        text = text.rstrip()
        return [f"{palette.bold}{text if self.columns is None else cut(text, self.columns)}{palette.reset}"]

    def add(self, records: Iterable[Record], lines: list[str]) -> None:
        for record in records:
            line = self._line(record)
            if self.after is not None and type(record) is Message:
                line = f"{line}\n{self.after(record)}"
            lines.append(line)

    def _sides(self) -> tuple[str, str]:
        """The client's endpoint and the server's; where it is not known which is which, first the one that sent first."""
        one, two = self._ends or ("", "")
        return (two, one) if self._client == two else (one, two)

    def _who(self, record: Record) -> int:
        return 0 if record.src == self._sides()[0] else 1

    def _roles(self) -> tuple[str, str]:
        return ("client", "server") if self._client is not None else ("first", "second")

    def _line(self, record: Record) -> str:
        mark, name, latency_ns, text = self.content(record)
        since = self._since.get(id(record))
        passed = "" if since is None else f"{'' if since < 0 else '+'}{duration_text(since)}"
        who, palette = self._who(record), self.palette
        wide = self.columns is None or self.columns >= WIDE
        side = f"{self._roles()[who]:<6} {'<' if who else '>'}" if wide else "<" if who else ">"
        elapsed = f" {'' if latency_ns is None else duration_text(latency_ns):>8} " if wide else " "
        head = f"{'' if type(record) is Finding else record.number:>{self.number_width}} {self._time(record)}{passed:>10}"
        name = self._name(name)
        text = visible(text)
        below: list[str] = []
        if self.columns is not None:
            room = self.columns - len(head) - len(side) - len(name) - len(elapsed) - 7
            complete = mark == "!" or type(record) is Ending
            if latency_ns is None and complete and width(text) > room:
                elapsed, room = " ", room + len(elapsed) - 1
            if complete and room > 0:
                text, below = laid_out(text, room, self.columns, len(head) + len(side) + 4)
            else:
                text = cut(text, max(0, room))
        loud = palette.bad if mark == "!" else palette.warn if mark == "*" else ""
        colour = palette.answer if who else palette.ask
        reset, dim = palette.reset, palette.dim
        line = f"{dim}{head}{reset}  {colour}{side}  {name}{reset}{dim}{elapsed}{reset} {loud}{mark} {text}{reset if loud else ''}".rstrip()
        return "\n".join([line, *(f"{loud}{one}{reset}" for one in below)])


class TextDiagram(FollowLines):
    """A sequence diagram in text: what the client sends goes to the right, what the server sends to the left."""

    plain = False
    """Of ASCII alone."""

    @property
    def _room(self) -> int:
        """Columns between the two lines that stand for the ends."""
        return max(20, (self.columns or DIAGRAM) - self.time_width - 3)

    def opening(self) -> list[str]:
        blank = " " * (self.time_width + 2)
        lines = super().opening()
        for left, right in (self._roles(), self._sides()):
            room = self._room
            right = cut(right, room)
            lines.append(f"{blank}{self.palette.bold}{pad(cut(left, room - width(right)), room - width(right))}{right}{self.palette.reset}")
        return lines

    def _line(self, record: Record) -> str:
        mark, name, latency_ns, text = self.content(record)
        who, palette, room = self._who(record), self.palette, self._room
        dash, right, left, edge = ("-", ">", "<", "|") if self.plain else ("─", "▶", "◀", "│")
        elapsed = "" if latency_ns is None else f" {duration_text(latency_ns)} "
        label = f" {'' if mark == ' ' else f'{mark} '}{visible(f'{name}  {text}'.rstrip())} "
        if self.plain:
            label = encoded(label, "ascii").decode()
        if isinstance(record, Message):
            label = cut(label, room - 4 - len(elapsed)) + elapsed
            line = dash * (room - width(label) - 2)
            arrow = f"{left}{line}{label}{dash}" if who else f"{dash}{label}{line}{right}"
        else:
            label = cut(label, room)
            arrow = " " * (room - width(label)) + label if who else pad(label, room)
        loud = palette.bad if mark == "!" else palette.warn if mark == "*" else palette.answer if who else palette.ask
        return f"{palette.dim}{self._time(record)}{palette.reset}{edge}{loud}{arrow}{palette.reset}{edge}"


class MermaidDiagram(FollowLines):
    """A sequence diagram as Mermaid draws it."""

    def opening(self) -> list[str]:
        roles, sides = self._roles(), self._sides()
        actors = [f"    participant {actor} as {_drawn(f'{role} {side}')}" for actor, role, side in zip("cs", roles, sides, strict=True)]
        return ["sequenceDiagram", *actors]

    def _line(self, record: Record) -> str:
        mark, name, latency_ns, text = self.content(record)
        who = self._who(record)
        said = " ".join(f"{name} {text}".split())
        said = said if len(said) <= SAID else f"{said[: SAID - 1]}…"
        if not isinstance(record, Message):
            return f"    Note over c,s: {_drawn(f'{self._roles()[who]}: {said}')}"
        arrow = "--x" if mark == "!" else {"request": "->>", "response": "-->>"}.get(record.kind, "-)")
        one, two = ("s", "c") if who else ("c", "s")
        elapsed = "" if latency_ns is None else f" ({duration_text(latency_ns)})"
        return f"    {one}{arrow}{two}: {_drawn(said + elapsed)}"


_ACTIVE = re.compile(r"[^\w .,:=/()'+-]|_(?=_)|\bend\b", re.I)


def _drawn(text: str) -> str:
    """Text that means nothing to Mermaid, nor to the page it is shown on."""
    return _ACTIVE.sub(lambda found: f"#{ord(found[0][0])};{found[0][1:]}", visible(text))


def raw(message: Message, show_secrets: bool) -> bytes:
    """The bytes of a frame, those of secrets overwritten."""
    return seen(message.raw, message.spans, show_secrets).get("frame", b"")
