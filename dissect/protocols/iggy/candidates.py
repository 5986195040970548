"""Apache Iggy: the layouts that a conversation may have, and the table that each has for a frame.

No frame states its layout: those are kept in which every frame so far decodes with nothing left over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ...layout.walker import Walked
from ..protocol import Context
from ..records import Damage, Frame
from . import frames
from .commands import LISTED, REGISTER
from .frame_redaction import is_known, may_be_login, may_be_token, may_hold_text, may_hold_token
from .frames import DEFAULT_STYLE, EVICTION, HEADER, REPLY, REQUEST, U32, U32_U32, CommandTable, Noted
from .layout_versions import CLASSIC, FRAMINGS, LAYOUTS, LONG, NEWEST, NEWEST_SERVER, hinted, is_newer
from .resync import long_header
from .statuses import statuses

MAX_DECIDING = 8
"""Limit of the frames listed in the conversation's row for having excluded layouts."""

MAX_TABLES = 4_096
"""Choices of tables that are kept for all conversations."""

STATING = frozenset(("login_user", "login_register", "login_register_with_pat", "session.bind", "get_stats", "eviction"))
"""Messages in which a side may state its version."""

NEW_TOKEN = 146
"""The operation that asks for a token, which its answer hands out."""

BINARY, BOUND = frozenset((15, 16, 202)), "bind_secret"
"""Commands whose secret is no text, from V5 on, and the field of logins that is none."""

TEXT_LAYOUTS = ("L4", "L5", "L6")
"""Servers of these layouts send, some of them, a text with an error."""

Tables = Mapping[CommandTable, Sequence[str]]
"""The layouts that are left by the table that each has for a frame."""

Readings = Mapping[CommandTable, dict[str, Any] | None]
"""What each table reads in a frame, None where it does not."""


class PendingRequest(NamedTuple):
    """What a request asks for, and what a response answers as far as the order of frames shows: the running number of the request (0: it is
    not known), its code, in the 256-byte framing its operation, client and number there, and the packet that completed it. Gaps keep
    frames back, so these are not in order."""

    number: int
    code: int | None
    operation: int | None = None
    client: bytes = b""
    request: int = 0
    order: int = -1
    notes: tuple[str, ...] = ()


class Placement(NamedTuple):
    """How a frame is decoded: what it asks for or answers, its table in the layout that it is read with, and whether the layouts that are
    left differ about it; and what was read in it to find that out, if nothing is to be said of that."""

    asked: PendingRequest
    table: CommandTable
    layout: str
    differ: bool
    fields: dict[str, Any] | None


make_placement = partial(tuple.__new__, Placement)
"""One of a tuple of its members, for less than the constructor costs."""


class Candidates:
    """The layouts that match all frames so far, and the framing of each side."""

    DERIVED = ("settled", "usual")

    def __init__(self, context: Context, client: int, facts: dict[str, Any]) -> None:
        self.context = context
        self.client = client
        self.facts = facts
        self.options = context.options
        verdict = context.verdict
        self.forced = verdict.layout in LAYOUTS
        self.candidates: tuple[str, ...] = (verdict.layout,) if verdict.layout in LAYOUTS else verdict.candidates
        self.long: list[bool | None] = [None, None]
        """By side, whether it speaks the 256-byte framing."""
        if self.candidates:
            self.long[client] = self.candidates[0] in LONG
            if self.forced:
                self.long = [self.long[client]] * 2
        # nothing said which framing it is: what frames tell counts from the packet on that brought them
        self.blind = not self.candidates
        self.framing_known: list[bool | None] = [None, None] if self.blind else self.long
        self.hint: str | None = None
        self.newer: str | None = None
        """Which side states a version newer than the known ones, and the version."""
        self.deciding: list[str] = []
        self.mismatch = False
        """Whether the two sides speak different framings."""
        self.layout = ""
        """The layout to decode with: the only one left, or else the likeliest."""
        self.update_facts()

    def prepare(self) -> None:
        self.settled = len(self.candidates) == 1
        self.usual = _usual(self.candidates)
        """What `place` knows of classic frames of these candidates."""

    def speaks(self, side: int, long: bool) -> None:
        if self.long[side] is None:
            self.long[side] = long
            self.update_facts()

    def keep_framing(self, side: int) -> None:
        """Record the framing of a side when it becomes known."""
        if self.framing_known[side] != self.long[side]:
            self.framing_known[side] = self.long[side]
            if not self.candidates:
                self.candidates = LONG if self.long[side] else CLASSIC
            self.update_facts()

    def keep_version(self, fields: dict[str, Any], asks: bool = False) -> None:
        """Keep the version that a side states of itself, and whether it is newer than the known ones."""
        who = "client" if asks else "server"
        for key, newest in (("server_version", NEWEST_SERVER), ("highest_version_label", NEWEST), ("protocol_version_label", NEWEST)):
            if is_newer(fields.get(key), newest):
                self.newer = f"the {who} says {fields[key]}"
        for key, server in (("version", False), ("sdk_version", False), ("server_version", True)):
            version = fields.get(key)
            if isinstance(version, str) and version and not version.startswith("<redacted "):
                name = fields.get("sdk_name")
                self.facts["server_version" if server else "client_version"] = version if name is None else f"{name} {version}"
                self.hint = hinted(version, server) or self.hint
                self.update_facts()

    def update_facts(self) -> None:
        """Choose the layout, and update the facts in the row of this conversation."""
        self.prepare()
        candidates = self.candidates or CLASSIC
        self.layout = self.hint if self.hint in candidates else candidates[-1]
        self.facts["layout"] = self.candidates[0] if self.settled else None
        self.facts["candidates"] = () if self.settled else self.candidates
        client = self.client
        long, other = self.framing_known[client], self.framing_known[1 - client]
        if long is not None:
            self.facts["framing"] = FRAMINGS[long]
        self.mismatch = False
        if long is not None and other is not None and long != other:
            self.mismatch = True
            behind = {key: self.facts.pop(key) for key in [*self.facts] if key not in ("layout", "candidates", "framing")}
            self.facts["mismatch"] = f"the client speaks the {FRAMINGS[long]} framing, the server the {FRAMINGS[other]} one"
            # frames are cut before others are decoded, so its place must not depend on the facts known by then
            self.facts.update(behind)
        if self.deciding:
            self.facts["deciding_frames"] = self.deciding

    def tables(self, frame: Frame, asked: PendingRequest) -> Tables:
        """The table that each of the layouts that are left has for this frame."""
        side, data, start, end = frame.side, frame.data, frame.start, frame.end
        code, candidates, asks = asked.code, self.candidates, side == self.client
        if self.long[side]:
            return self._long_tables(asks, data, start, end, asked)
        if not asks:
            if end - start < 8:
                return {frames.UNKNOWN_ANSWER: candidates}
            status, length = U32_U32(data, start)
            if status:
                return _tables(candidates, _refusal, status, self.mismatch, length > 0)
        choose = _ask if asks else _answer
        hidden = (code is None or not _in_all(code, candidates)) and (self._may_hide if asks else self._hides_answer)(
            code, data, start + 8, end
        )
        return _tables(candidates, choose, code, hidden)

    def _long_tables(self, asks: bool, data: bytes, start: int, end: int, asked: PendingRequest) -> Tables:
        code, operation, candidates, size = asked.code, asked.operation, self.candidates, end - start
        kind = data[start + 60] if size > 60 else 0
        # a framing that was forced may be the wrong one, and the bytes that it reads as a body may then be any, secrets too
        doubtful = self.forced and not long_header(data, start, end)
        if asks and kind == REQUEST:
            first = frames.request_header("V1", data, start, end)
            certain = len(candidates) == 1
            hidden = (code is None or not _in_all(code, candidates)) and self._may_hide(code, data, start + HEADER, end)
            return _tables(candidates, _long_ask, code, operation, first, doubtful, hidden, certain)
        if kind == EVICTION and not asks:
            return {frames.EVICTED: candidates}
        if kind != REPLY or asks:
            return {frames.HIDDEN_OTHER if self.forced else frames.OTHER: candidates}
        named = data[start + 208] if size > 208 else operation
        refused = size >= HEADER and (U32(data, start + 224)[0] > 0, U32(data, start + 216)[0] > 0)
        failed = size >= HEADER + 4 and U32(data, start + HEADER)[0] > 0
        hidden = _nameless(code) and (doubtful or named == NEW_TOKEN or may_hold_token(data, start + HEADER, end))
        return _tables(candidates, _long_answer, code, named, refused, failed, hidden, len(candidates) == 1)

    def _may_hide(self, code: int | None, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a request that a layout does not have may be a password or a token."""
        if code is not None and not _nameless(code) and not frames.hides(code) and frames.is_body(code, data, start, end):
            return False
        return (code is not None and frames.hides(code)) or may_hold_text(data, start, end)

    def _hides_answer(self, code: int | None, data: bytes, start: int, end: int) -> bool:
        """Return whether the body of an unknown response in the classic framing may be a secret."""
        if _nameless(code):
            return may_hold_text(data, start, end) if self.mismatch else may_hold_token(data, start, end)
        return may_be_token(data, start, end)

    def is_token(self, side: int, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a response may be a token, behind a list of results perhaps."""
        return any(may_be_token(data, start + at, end) for at in ((HEADER, HEADER + 4) if self.long[side] else (8,)))

    def hiding(self, frame: Frame, table: CommandTable, walked: Walked, login: bool) -> CommandTable | None:
        """The table that hides the complete body of a frame which is not as its own says, where that may be a secret altogether;
        `login`: the client may not have been let in yet."""
        side, data, start, end, damage = frame.side, frame.data, frame.start, frame.end, frame.damage
        long, layout = self.long[side], self.layout
        body = start + (HEADER if long else 8)
        over = "trailing" in walked.fields
        # bytes that are missing there have moved the body into it
        shifted = bool(long and (table.secret or table.code is None)) and any(
            data[start + span.offset : start + span.offset + span.length].strip(b"\0") for span in walked.spans if span.name in frames.ZEROS
        )
        complete = body <= end and (damage is None or table.code is None or over)
        if table in frames.OTHERS or not (shifted or complete):
            # It is hidden completely, or what there is of it is as it should be
            return None
        flawed = walked.fault is not None or over
        if side == self.client:
            unknown = table is frames.UNKNOWN_ASK or (long and table.code is None)
            # any number may hold bytes of a secret that is no text
            spilt = flawed and damage is None and table.secret and (table.code in BINARY or any(one.name == BOUND for one in walked.spans))
            if unknown:
                hidden = shifted or damage is not None
            else:
                hidden = shifted or (flawed and not table.secret and (login or may_be_login(data, body, end)))
            if spilt or (hidden and (shifted or may_hold_text(data, body, end, True))):
                header = frames.request_header(layout, data, start, end, self.settled)
                return frames.long_unknown_ask(header, True, True) if long else frames.HIDDEN_ASK
            return None
        if table.code is None:
            doubtful = flawed and not is_known(walked.fields) if table.name != "unknown" else damage is not None
            hidden = shifted or (doubtful and may_hold_text(data, body, end, True))
        else:
            hidden = shifted or ((flawed or table.name == "get_snapshot") and self.is_token(side, data, start, end))
        if hidden:
            return frames.long_unknown_answer(frames.header_of(layout, self.settled), True, shifted) if long else frames.TOKEN_ANSWER
        return None

    def place(self, frame: Frame, asked: PendingRequest, distinguishes: bool) -> Placement:
        """Return the table that this frame is read with; `distinguishes`: it may show which of several layouts is right."""
        complete, asks, long = frame.damage is None, frame.side == self.client, self.long[frame.side]
        known = asks, asked.code
        if complete and not long and known in self.usual and (asks or not U32(frame.data, frame.start)[0]):
            return make_placement((asked, self.usual[known], self.layout, False, None))
        if long and complete and not self.settled:
            possible = frames.header_layouts(frame.data, frame.start, frame.end, asks)
            if possible is not LONG:
                self._keep(frame, asked, possible)
        tables = self.tables(frame, asked)
        if len(tables) == 1:
            table = next(iter(tables))
            if not long and table.code == asked.code is not None:
                self.usual[known] = table
            return make_placement((asked, table, self.layout, False, None))
        readings = {table: table.fields(frame.data, frame.start, frame.end) if complete else None for table in tables}
        if distinguishes and complete:
            fitting = _fitting(readings)
            self._keep(frame, asked, {layout for table in fitting for layout in tables[table]})
            if long and self.settled:
                # the header has the names of this layout
                return make_placement((asked, next(iter(self.tables(frame, asked))), self.layout, False, None))
            readings = {table: fields for table, fields in readings.items() if tables[table][0] in self.candidates}
        layout = self.layout
        table = next(table for table, layouts in tables.items() if layout in layouts)
        fields = readings[table]
        return Placement(asked, table, layout, len(readings) > 1 and _unlike(readings, frame), None if type(fields) is Noted else fields)

    def _keep(self, frame: Frame, asked: PendingRequest, kept: Collection[str]) -> None:
        """Go on with these of the layouts, unless none is left."""
        candidates = tuple(layout for layout in self.candidates if layout in kept)
        if not candidates or len(candidates) == len(self.candidates):
            return
        self.candidates = candidates
        who = "client" if frame.side == self.client else "server"
        if len(self.deciding) < MAX_DECIDING:
            self.deciding.append(f"{frames.name_of(asked.code)} ({who}, position {frame.position}): {', '.join(candidates)}")
        self.update_facts()


@lru_cache(MAX_TABLES)
def _tables(candidates: tuple[str, ...], choose: Callable[..., CommandTable], *framing_known: Any) -> Tables:
    found: dict[CommandTable, list[str]] = {}
    for layout in candidates:
        found.setdefault(choose(layout, *framing_known), []).append(layout)
    return found


@lru_cache
def _usual(candidates: tuple[str, ...]) -> dict[tuple[bool, int | None], CommandTable]:
    """By whether it is a request, and its code: the table of a command that all these layouts have, and read alike; filled by `place`."""
    return {}


@lru_cache(MAX_TABLES)
def _in_all(code: int, candidates: tuple[str, ...]) -> bool:
    return all(frames.exists(code, layout) for layout in candidates)


def _ask(layout: str, code: int | None, hidden: bool) -> CommandTable:
    if code is None:
        return frames.HIDDEN_CODE_ASK
    return frames.ask(code, layout) or (frames.HIDDEN_ASK if hidden else frames.UNKNOWN_ASK)


def _refusal(layout: str, status: int, mismatch: bool, text: bool) -> CommandTable:
    """That of the first layout which names this status alike."""
    if text and layout not in TEXT_LAYOUTS and not mismatch:
        return frames.EMPTY_REFUSAL
    name = statuses("L9" if mismatch else layout).get(status)
    return frames.refusal(next(one for one in CLASSIC if statuses(one).get(status) == name))


def _answer(layout: str, code: int | None, hidden: bool) -> CommandTable:
    return frames.TOKEN_ANSWER if hidden else frames.answer(code, layout)


def _long_ask(
    layout: str, code: int | None, operation: int | None, first: str, doubtful: bool, hidden: bool, certain: bool
) -> CommandTable:
    """`first`: the header if the layout is V1; `certain`: no other layout is left."""
    header = first if layout == "V1" else frames.header_of(layout, certain)
    return frames.long_ask(operation, code, layout, header) or frames.long_unknown_ask(header, doubtful, hidden)


def _long_answer(layout: str, code: int | None, named: int | None, refused: Any, failed: bool, hidden: bool, certain: bool) -> CommandTable:
    """`named`: the operation, as the header names it; `refused`: whether it has another status than 0 where V1 has it, and where others
    have it; `failed`: whether a list of results would not be empty."""
    if refused and refused[layout != "V1"]:
        return frames.long_refusal(frames.header_of(layout, certain), False)
    if failed and (named in LISTED or named == REGISTER):
        return frames.long_refusal(frames.header_of(layout, certain), True)
    if _nameless(code):
        return frames.long_unknown_answer(frames.header_of(layout, certain), hidden)
    return frames.long_answer(named, code, layout, certain)


def _nameless(code: int | None) -> bool:
    """Whether nothing is known of a command."""
    return code is None or frames.command_of(code) is None


def _plausible(value: Any) -> bool:
    """Whether no text in these fields has control characters and no kind is unknown: a wrong layout often shows by that."""
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, dict):
        return all(
            one is not None if key.endswith("_label") else _plausible(one)
            for key, one in value.items()
            if key not in ("payload", "headers", "operation_label")
        )
    if isinstance(value, list):
        return all(map(_plausible, value))
    return True


def _fitting(readings: Readings) -> list[CommandTable]:
    """The tables that read a frame with nothing left over."""
    fitting = [table for table, fields in readings.items() if fields is not None and (table.code is not None or table.name == "error")]
    if any(readings[table] != readings[fitting[0]] for table in fitting):
        fitting = [table for table in fitting if table.name == "error" or _plausible(readings[table])] or fitting
    return fitting


def _unlike(readings: Readings, frame: Frame) -> bool:
    """Whether tables make different things of a frame; where one reads it with a fault or notes, these count too."""
    framing_known: list[Any] = []
    for table, fields in readings.items():
        if fields is None:
            damage = frame.damage
            walked = table.walk(frame.data, frame.start, frame.end, DEFAULT_STYLE, None if damage is None else damage.reason)[1]
            framing_known.append((walked.fields, walked.notes, walked.fault))
        else:
            framing_known.append(fields)
    return any(one != framing_known[0] for one in framing_known)


def fits(table: CommandTable, data: bytes, start: int, end: int, damage: Damage | None) -> bool:
    """Whether a table reads a frame with nothing left over; of one that lacks bytes, whether it reads all before these and goes on."""
    if damage is None:
        return table.fields(data, start, end) is not None
    fault = table.walk(data, start, end, DEFAULT_STYLE, damage.reason)[1].fault
    return fault is not None and fault.reason == damage.reason and fault.field != "trailing"
