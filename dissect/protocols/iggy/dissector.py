"""Apache Iggy over TCP: a request leads with its length, a response with its status; or both with a header of 256 bytes.

No frame states its layout, and no response the request it answers: `candidates` keeps the layouts that are left, `waiting` the requests
that wait for their answers, and `turns` hands frames on when both are known. Here is what a frame means.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from dissect.layout.values import UNREADABLE, redacted
from dissect.layout.walk import Walked
from dissect.model import Fault
from dissect.protocols.flow import END
from dissect.protocols.iggy import frames
from dissect.protocols.iggy.behaviour import BEHAVIOUR
from dissect.protocols.iggy.bodies import ADDED, PARTS
from dissect.protocols.iggy.candidates import STATING, Frame
from dissect.protocols.iggy.checks import CHECKED_OPERATIONS, checks, request_checksum
from dissect.protocols.iggy.commands import NON_REPLICATED, OPERATIONS
from dissect.protocols.iggy.features import LAYOUTS
from dissect.protocols.iggy.frames import HEADER, OLD_LOGIN_CODE, REPLY, U32, Table
from dissect.protocols.iggy.framing import PORTS
from dissect.protocols.iggy.hiding import LOGIN, hide
from dissect.protocols.iggy.private import PRIVATE
from dissect.protocols.iggy.probe import probe
from dissect.protocols.iggy.statuses import ambiguous
from dissect.protocols.iggy.telling import TEXT, relate, says, streams
from dissect.protocols.iggy.turns import Turns
from dissect.protocols.iggy.waiting import SHAKEN, make_asked
from dissect.protocols.protocol import Context, Protocol
from dissect.protocols.records import ANSWER, ASK, NONE, Damage, Decoded

LOGINS = frozenset((38, 40, 44, 45, OLD_LOGIN_CODE))
"""Commands that let a client in."""

_FIRST = ("V1",)
"""The layout whose requests have no checksum."""


class IggyDissector(Turns):
    """One conversation of a client and a server of Apache Iggy."""

    protocol: ClassVar[str] = "iggy"
    DERIVED = ("style", "plain")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.style = self.layouts.style
        self.plain = not self.options.detail
        self.entered = END if context.syn else 0
        """The packet that made certain that the client was let in: what began before may be a login, whatever it looks like."""

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> Decoded | tuple[Any, ...]:
        given = self.given
        asks = side == self.client
        if given is None:
            if damage is None and self.plain:
                quick = self._quick_ask(side, data, start, end) if asks else self._quick_answer(side, data, start, end)
                if quick is not None:
                    return quick
            waiting = self.waiting
            if asks:
                given = waiting.ask(data, start, end, waiting.orders[waiting.number + 1], damage)
            else:
                given = waiting.answer(data, start, end, 0, damage)
        else:
            self.given = None
        frame = Frame(side, data, start, end, given, self.layouts.layout, damage)
        table = self.layouts.table(frame.layout, side, data, start, end, given)
        # An error, or the answer to a request that was not seen, of which nothing is hidden where it is whole
        unasked = table.code is None and not asks and not self.layouts.long[side]
        if damage is None and self.plain and (unasked or (table.code is not None and not table.mixed)):
            try:
                fields = table.reader(self.style)(data, start, end)
            except UNREADABLE:
                return self._walked(frame, table)
            if "trailing" not in fields:
                return self._finish_up(frame, table, table.name, fields, [], None, None)
        return self._walked(frame, table)

    def _quick_ask(self, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        """A whole, well-formed request of the settled layout; None leaves it, untouched, to the exact way. With `_quick_answer` this saves
        15 % of a run over real traffic."""
        layouts = self.layouts
        long = layouts.long[side]
        if long:
            key = -data[start + 176]
            if key == -NON_REPLICATED:
                key = U32(data, start + 196)[0]
        else:
            key = U32(data, start + 4)[0]
        try:
            quick = layouts.asks[key]
        except KeyError:
            quick = layouts.quick_of(key, True)
        if quick is None:
            return None
        name, read, check = quick
        try:
            fields = read(data, start, end)
        except UNREADABLE:
            return None
        if "trailing" in fields:
            return None
        waiting = self.waiting
        opened = waiting.open
        waiting.number = number = waiting.number + 1
        notes: Any = ()
        if long:
            if check is not None:
                notes = check(data, start, start + HEADER, end)
            operation = data[start + 176]
            if operation in CHECKED_OPERATIONS and layouts.candidates != _FIRST:
                notes = [*notes, *request_checksum(data, start, end)]
            ident = fields["request"]
            code = OPERATIONS[operation] if key < 0 else key
            opened.append(make_asked((number, code, operation, data[start + 128 : start + 144], ident)))
            return (name, "request", ident, fields, None, notes, None, ASK, number, None)
        if check is not None:
            notes = check(data, start, start + 8, end)
        opened.append(make_asked((number, key, None, b"", 0)))
        return (name, "request", None, fields, None, notes, None, ASK, number, None)

    def _quick_answer(self, side: int, data: bytes, start: int, end: int) -> tuple[Any, ...] | None:
        """A whole, well-formed answer without an error to the oldest request; None leaves it, untouched, to the exact way."""
        opened = self.waiting.open
        if not opened or self.waiting.trust.state == SHAKEN:
            return None
        number, code, operation, client, request = opened[0]
        layouts = self.layouts
        long = layouts.long[side]
        if long is not layouts.long[1 - side]:
            return None
        if long:
            if code is None or operation is None:
                return None
            key = code if operation == NON_REPLICATED else -operation
            echoed = data[start + 160 : start + 176]
            if data[start + 60] != REPLY or data[start + 208] != operation or (echoed != client and any(echoed[4:])):
                return None
        else:
            if U32(data, start)[0] or code is None:
                return None
            key = code
        try:
            quick = layouts.answers[key]
        except KeyError:
            quick = layouts.quick_of(key, False)
        if quick is None:
            return None
        name, read, check = quick
        try:
            fields = read(data, start, end)
        except UNREADABLE:
            return None
        if "trailing" in fields:
            return None
        ident = None
        if long:
            ident = fields["request"]
            if fields["status"] or fields.get("results") or (ident != request and echoed == client):
                return None
        opened.popleft()
        notes: Any = () if check is None else check(data, start, start + (HEADER if long else 8), end)
        return (name, "response", ident, fields, "answered", notes, None, ANSWER, number, None)

    def _walked(self, frame: Frame, table: Table) -> Decoded | tuple[Any, ...]:
        _, data, start, end, _, _, damage = frame
        missing = None if damage is None else damage.reason
        form, walked = table.walk(data, start, end, self.style, missing)
        if not self.style.show_secrets:
            other = self.layouts.hiding(frame, table, walked, self.began < self.entered)
            if other is not None:
                _, hidden = other.walk(data, start, end, self.style, missing)
                if missing is None and table.code is not None:
                    body = hidden.spans[-1].offset
                    hidden = hidden._replace(fault=Fault("body", body, f"cannot be read as {form.name} to its end"))
                walked = hidden
            elif walked.fault is not None or "trailing" in walked.fields or walked.fields.get("password") == redacted(0):
                # A token reads as a name if a byte of 0 behind it, of what follows, is the length of its password
                cut = damage is not None and not table.mixed and (table.secret or self.began >= self.entered)
                walked = hide(walked, data, start, table.name if table.secret else None, cut)
        name = form.name if table.code is not None else table.name
        if damage is not None and name in STATING and walked.fault is not None and "trailing" not in walked.fields:
            # what there is of it is as it should be
            self.layouts.hear(walked.fields)
        return self._finish_up(frame, table, name, walked.fields, walked.notes, walked.fault, walked)

    def _finish_up(
        self, frame: Frame, table: Table, name: str, fields: dict[str, Any], notes: list[str], fault: Any, walked: Walked | None
    ) -> Decoded | tuple[Any, ...]:
        notes = self._noted(frame, table, fields, notes, fault, walked)
        given = frame.given
        long = self.layouts.long[frame.side]
        if name == "get_stats" or (name in STATING and fault is None and "trailing" not in fields):
            self.layouts.hear(fields)
        spans = walked.spans if walked is not None and not self.plain else None
        ident = fields.get("request") if long else None
        if not isinstance(ident, int):
            # hidden
            ident = None
        if table in frames.OTHERS:
            return (f"unknown {fields.get('command')}", "one_way", ident, fields, None, notes, fault, NONE, None, spans)
        if frame.side == self.client:
            if table.code is None:
                name = frames.name_of(given.code)
                if given.code is None and given.operation is not None:
                    name = f"unknown operation {given.operation}"
                elif given.code is not None:
                    notes = [*notes, f"command code {given.code} is not known in {frame.layout}"]
            return (name, "request", ident, fields, None, notes, fault, ASK, given.number, spans)
        if table.code is None and table is not frames.EVICTED:
            name = frames.name_of(given.code)
        status = fields.get("status", 0)
        refused = bool(status) or bool(fields.get("results")) or table is frames.EVICTED
        if status:
            meanings = ambiguous(frame.layout).get(status)
            if meanings is not None:
                notes = [*notes, f"status {status} is {meanings}, by release"]
        if not refused and given.code in LOGINS and self.entered == END:
            self.entered = self.release
        number = given.number
        # An eviction that nobody asked for is one
        asked = number is not None or table is frames.EVICTED
        outcome = None if not asked else "refused" if refused else "answered"
        return (name, "response", ident, fields, outcome, notes, fault, NONE if number is None else ANSWER, number, spans)

    def _noted(self, frame: Frame, table: Table, fields: dict[str, Any], notes: list[str], fault: Any, walked: Walked | None) -> list[str]:
        """The notes on a frame, with those on what it answers, on its checksums and on its layout."""
        side, data, start, end, given, layout, _ = frame
        asks, long = side == self.client, self.layouts.long[side]
        if given.notes:
            notes = [*notes, *given.notes]
        if fault is None:
            check = checks(table.code, layout, asks)
            if check is not None and not (walked is not None and "trailing" in fields):
                notes = [*notes, *check(data, start, start + (HEADER if long else 8), end)]
            if asks and long and layout != "V1" and end - start >= HEADER:
                notes = [*notes, *request_checksum(data, start, end)]
        if self.differ:
            self.differ = False
            notes = [*notes, f"layout undecided ({', '.join(self.layouts.candidates)}): read as {layout}"]
        return notes


@cache
def _tables() -> tuple[Any, ...]:
    return (*frames.documented(), *PARTS)


PROTOCOLS = (
    Protocol(
        "iggy",
        "Apache Iggy",
        PORTS,
        IggyDissector,
        probe,
        says,
        _tables,
        TEXT,
        ADDED,
        relate=relate,
        login=LOGIN,
        forced=LAYOUTS,
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        streams=streams,
        alarms={"eviction": lambda message: True, "unknown": lambda message: bool(message.fields.get("status"))},
    ),
)
