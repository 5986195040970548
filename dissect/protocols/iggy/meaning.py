"""Apache Iggy: the meaning of a frame whose request and layout are known."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...layout import Style
from ...layout.values import UNREADABLE, redacted
from ...layout.walker import Walked
from ...model import END, Fault
from ..protocol import Context
from ..records import NONE, REQUEST, RESPONSE, DecodedTuple, Frame
from . import frames
from .bodies import UNSEEN
from .candidates import STATING, Candidates, Placement
from .checksums import Check, checks, request_checksum
from .frame_redaction import hide, may_hold_text, may_hold_token
from .frames import DEFAULT_STYLE, HEADER, OLD_LOGIN_CODE, CommandTable, Read
from .info import topic_of
from .statuses import possible_names

LOGINS = frozenset((38, 40, 44, 45, OLD_LOGIN_CODE))
"""Commands that let a client in."""

NOTHING = redacted(0)
"""A secret of no bytes."""


class DecodePlan(NamedTuple):
    """How the frames of a table are decoded in a layout: the reader of those without notes, None if they have to be walked; the
    check, and whether it covers a checksum in the header, too; and whether the content of a frame decides its name, id or outcome, or
    lets the client in."""

    read: Read | None
    check: Check | None
    summed: bool
    varies: bool


@cache
def _plans(style: Style, detail: bool) -> dict[tuple[CommandTable, str, bool], DecodePlan]:
    """By table, layout and whether the client sends it; filled by those who need one."""
    return {}


class FrameDecoder:
    """Decodes frames, redacts possible secrets, and records versions that they state."""

    DERIVED = ("style", "default_style", "detail", "plans")

    def __init__(self, layouts: Candidates, context: Context) -> None:
        self.layouts = layouts
        self.context = context
        self.prepare()
        self.entered = END if context.from_start else 0
        """The packet that made certain that the client was let in: what began before may be a login, whatever it looks like."""

    def prepare(self) -> None:
        options = self.context.options
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.default_style = self.style == DEFAULT_STYLE
        self.detail = options.detail
        self.plans = _plans(self.style, self.detail)

    def _plan(self, table: CommandTable, layout: str, asks: bool) -> DecodePlan:
        """Made once for all conversations."""
        # of an error, or the answer to a request that was not seen, nothing is hidden where it is complete
        walked = self.detail or (table.code is None and (asks or table.long))
        return self.plans.setdefault(
            (table, layout, asks),
            DecodePlan(
                None if walked else table.reader(self.style),
                checks(table.code, layout, asks),
                asks and table.long and layout not in ("V1", "V5"),
                table.long or table.code is None or table.mixed or table.name in STATING or (not asks and table.code in LOGINS),
            ),
        )

    def decode(self, frame: Frame, placed: Placement, current: int) -> DecodedTuple:
        asked, table, layout, differ, fields = placed
        data, start, end, damage = frame.data, frame.start, frame.end, frame.damage
        asks, name = frame.side == self.layouts.client, table.name
        plan = self.plans.get((table, layout, asks)) or self._plan(table, layout, asks)
        if plan.read is None or damage is not None:
            fields = None
        elif fields is None or not self.default_style:
            try:
                fields = plan.read(data, start, end)
            except UNREADABLE:
                fields = None
        if table.mixed:
            name = frames.name_of(asked.code)
            if fields is not None and fields.get("password") == NOTHING:
                # A token reads as a name if a byte of 0 behind it, of what follows, is the length of its password
                fields = None
        fault, notes, spans = None, [*asked.notes], None
        complete = fields is not None
        if fields is None:
            name, walked = self._walk(frame, table)
            fields, fault, notes = walked.fields, walked.fault, [*walked.notes, *notes]
            spans = walked.spans if self.detail else None
            complete = fault is None and "trailing" not in fields
        if table.notes and UNSEEN.name in fields and not self.style.show_secrets:
            at = start + (HEADER if table.long else 8)
            if (may_hold_text if asks else may_hold_token)(data, at, end):
                walked = frames.hidden_body(table).walk(data, start, end, self.style)[1]
                fields, spans = walked.fields, walked.spans if self.detail else None
        notes += [note for name, note in table.notes if name in fields] if table.notes else ()
        if plan.check is not None and complete:
            notes += plan.check(data, start, start + (HEADER if table.long else 8), end)
        if plan.summed and fault is None and end - start >= HEADER:
            notes += request_checksum(data, start, end)
        if differ:
            notes.append(f"layout undecided ({', '.join(self.layouts.candidates)}): read as {layout}")
        number, ident, refused = asked.number or None, None, False
        if plan.varies:
            name, ident, refused = self._vary(placed, name, fields, complete, notes, current)
            if table in frames.OTHERS:
                return name, "one_way", ident, fields, None, notes, fault, NONE, None, spans, None
        if asks:
            return name, "request", ident, fields, None, notes, fault, REQUEST, number, spans, topic_of(name, fields)
        # An eviction without a request is one
        outcome = None if number is None and table is not frames.EVICTED else "refused" if refused else "answered"
        return name, "response", ident, fields, outcome, notes, fault, NONE if number is None else RESPONSE, number, spans, None

    def _vary(
        self, placed: Placement, name: str, fields: dict[str, Any], complete: bool, notes: list[str], current: int
    ) -> tuple[str, int | None, bool]:
        """Return name, id, and whether it is refused, of a message whose content decides one of these; keep what it says of its side."""
        asked, table, layout = placed.asked, placed.table, placed.layout
        if name == "get_stats" or (complete and name in STATING):
            self.layouts.keep_version(fields, table.kind == "request")
        # text where it is hidden
        ident = fields.get("request") if table.long and type(fields.get("request")) is int else None
        if table in frames.OTHERS:
            return f"unknown {fields.get('command')}", ident, False
        if table.code is None and table is not frames.EVICTED:
            name = frames.name_of(asked.code)
        if table.kind == "request":
            if table.code is None and asked.code is not None:
                notes.append(f"command code {asked.code} is not known in {layout}")
            elif table.code is None and asked.operation is not None:
                name = f"unknown operation {asked.operation}"
            return name, ident, False
        status = fields.get("status", 0)
        refused = bool(status or fields.get("results")) or table is frames.EVICTED
        if status and len(names := possible_names(layout, status)) > 1:
            notes.append(f"status {status} is {' or '.join(names)}, by release")
        if not refused and self.entered == END and asked.code in LOGINS:
            self.entered = current
        return name, ident, refused

    def _walk(self, frame: Frame, table: CommandTable) -> tuple[str, Walked]:
        """Return the redacted reading of a frame that is not valid, and its name."""
        data, start, end, damage = frame.data, frame.start, frame.end, frame.damage
        missing = None if damage is None else damage.reason
        form, walked = table.walk(data, start, end, self.style, missing)
        if not self.style.show_secrets:
            other = self.layouts.hiding(frame, table, walked, frame.began < self.entered)
            if other is not None:
                _, hidden = other.walk(data, start, end, self.style, missing)
                if missing is None and table.code is not None:
                    body = hidden.spans[-1].offset
                    hidden = hidden._replace(fault=Fault("body", body, f"cannot be read as {form.name} to its end"))
                walked = hidden
            elif walked.fault is not None or "trailing" in walked.fields or walked.fields.get("password") == NOTHING:
                cut = damage is not None and not table.mixed and (table.secret or frame.began >= self.entered)
                walked = hide(walked, data, start, table.name if table.secret else None, cut)
        name = form.name if table.code is not None else table.name
        if damage is not None and name in STATING and walked.fault is not None and "trailing" not in walked.fields:
            # what there is of it is as it should be
            self.layouts.keep_version(walked.fields, table.kind == "request")
        return name, walked
