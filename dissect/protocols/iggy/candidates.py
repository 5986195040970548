"""Apache Iggy: the layouts that a conversation may have, and the table that each has for a frame.

No frame states its layout: those are kept in which every frame so far decodes with nothing left over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from dissect.layout import Style
from dissect.layout.walk import Walked
from dissect.protocols.iggy import frames
from dissect.protocols.iggy.checks import Check, checks
from dissect.protocols.iggy.commands import LISTED, NON_REPLICATED, OPERATIONS, REGISTER
from dissect.protocols.iggy.features import CLASSIC, FRAMINGS, LAYOUTS, LONG, hinted
from dissect.protocols.iggy.frames import EVICTION, HEADER, REPLY, REQUEST, U32, U32_U32, Table
from dissect.protocols.iggy.hiding import is_known, may_be_login, may_be_token, may_hold_text, may_hold_token
from dissect.protocols.iggy.resync import clean, long_header
from dissect.protocols.protocol import Context
from dissect.protocols.records import Cut, Damage

WEIGHED, WEIGHED_SIZE = 256, 64
"""So many answers of so many bytes at most are remembered as telling nothing (idle consumers get the same one again and again)."""

DECIDING_KEPT = 8
"""So many of the frames that told layouts apart are kept for the row of the conversation."""

TABLES_KEPT = 4_096
"""Choices of tables that are kept for all conversations; when there are more, all are made anew."""

DIGESTED = 1 << 16
"""From this size on what different layouts read in a frame is compared by digests."""

STATING = frozenset(("login_user", "login_register", "login_register_with_pat", "get_stats"))
"""Messages in which a side may state its version."""

TOLD = frozenset(("login_with_personal_access_token", "get_snapshot"))
"""Messages that are looked at closely, besides: what lets a client in, and what holds any bytes."""

TEXT_LAYOUTS = ("L4", "L5", "L6")
"""Servers of these layouts send, some of them, a text with an error."""


PLAIN = Style()
_SORTED = msgspec.msgpack.Encoder(order="deterministic")

_known_tables: dict[tuple[Any, ...], dict[Table, list[str]]] = {}
"""By all that the choice of a table depends on: the layouts, by the table they have."""


class Given(NamedTuple):
    """What a frame is as far as the order of frames tells, before it is decoded."""

    number: int | None
    code: int | None
    operation: int | None = None
    notes: tuple[str, ...] = ()


class Frame(NamedTuple):
    """A frame with what is known of it before it is decoded."""

    side: int
    data: bytes
    start: int
    end: int
    given: Given
    layout: str
    damage: Damage | None


Quick = tuple[str, Callable[[bytes, int, int], dict[str, Any]], Check | None]
"""What the fast path needs of a table of the conversation's layout: name, reader and check."""


class Candidates:
    """The layouts that are left, by what both sides said so far, and which framing each side speaks."""

    MADE_OF = ("context", "client", "facts")
    DERIVED = ("style", "options", "tables", "asks", "answers")

    def __init__(self, context: Context, client: int, facts: dict[str, Any]) -> None:
        self.context = context
        self.client = client
        self.facts = facts
        self.options = context.options
        self.style = Style(self.options.bytes_as, self.options.show_secrets, self.options.values_limit)
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
        self.told: list[bool | None] = [None, None] if self.blind else self.long
        self.settled = len(self.candidates) == 1
        self.hint: str | None = None
        self.deciding: list[str] = []
        self.weighed: set[tuple[int | None, bytes]] = set()
        """Answers, with the command, that the layouts which are left read alike although they have several tables for them."""
        self.tables: dict[tuple[Any, ...], dict[Table, list[str]]] = {}
        """By kind of frame: the layouts that are left, by the table they have for it."""
        self.asks: dict[int, Quick | None] = {}
        self.answers: dict[int, Quick | None] = {}

    @property
    def mismatch(self) -> bool:
        """Whether the two sides speak different framings."""
        one, other = self.told
        return one is not None and other is not None and one != other

    @property
    def layout(self) -> str:
        """The layout to decode with: the only one left, or else the likeliest."""
        candidates = self.candidates or CLASSIC
        return self.hint if self.hint in candidates else candidates[-1]

    def speaks(self, side: int, long: bool) -> None:
        if self.long[side] is None:
            self.long[side] = long
            self.tell()

    def hear_framing(self, side: int) -> None:
        """Take in which framing a side speaks where nothing said so before."""
        if self.blind:
            self.told[side] = self.long[side]
            if not self.candidates:
                self.candidates = LONG if self.long[side] else CLASSIC
            self.tell()

    def hear(self, fields: dict[str, Any]) -> None:
        """Keep the version that a side states of itself."""
        for key, server in (("version", False), ("sdk_version", False), ("server_version", True)):
            version = fields.get(key)
            if isinstance(version, str) and version and not version.startswith("<redacted "):
                name = fields.get("sdk_name")
                self.facts["server_version" if server else "client_version"] = version if name is None else f"{name} {version}"
                self.hint = hinted(version, server) or self.hint

    def tell(self) -> None:
        """Keep the facts for the row of this conversation."""
        self.facts["layout"] = self.candidates[0] if self.settled else None
        self.facts["candidates"] = () if self.settled else self.candidates
        client = self.client
        long, other = self.told[client], self.told[1 - client]
        if long is not None:
            self.facts["framing"] = FRAMINGS[long]
        if long is not None and other is not None and self.mismatch:
            behind = {key: self.facts.pop(key) for key in [*self.facts] if key not in ("layout", "candidates", "framing")}
            self.facts["mismatch"] = f"the client speaks the {FRAMINGS[long]} framing, the server the {FRAMINGS[other]} one"
            # frames are cut ahead of what is decoded, so its place must not depend on what the facts hold by then
            self.facts.update(behind)
        if self.deciding:
            self.facts["deciding_frames"] = self.deciding

    def by_table(self, side: int, data: bytes, start: int, end: int, given: Given) -> dict[Table, list[str]]:
        """The layouts that are left by their table for this frame."""
        kind = self._kind_of(side, data, start, end, given)
        tables = self.tables.get(kind)
        if tables is None:
            key = self.candidates, self.client, self.forced, self.mismatch, *self.long, kind
            tables = _known_tables.get(key)
            if tables is None:
                tables = {}
                for layout in self.candidates:
                    tables.setdefault(self.table(layout, side, data, start, end, given), []).append(layout)
                if len(_known_tables) >= TABLES_KEPT:
                    _known_tables.clear()
                _known_tables[key] = tables
            if len(self.tables) >= TABLES_KEPT:
                self.tables.clear()
            self.tables[kind] = tables
        return tables

    def _kind_of(self, side: int, data: bytes, start: int, end: int, given: Given) -> tuple[Any, ...]:
        """All that the choice of a table depends on besides the layout."""
        if self.long[side]:
            if side == self.client:
                hidden = self._may_hide(given.code, data, start + HEADER, end)
                return (
                    side,
                    given.code,
                    given.operation,
                    hidden,
                    data[start + 60 : start + 61],
                    frames.request_header("V1", data, start, end),
                )
            size = end - start
            return (
                side,
                given.code,
                given.operation,
                data[start + 60 : start + 61],
                data[start + 208 : start + 209],
                size >= HEADER and any(data[start + 216 : start + 220]),
                size >= HEADER and any(data[start + 224 : start + 228]),
                size >= HEADER + 4 and any(data[start + HEADER : start + HEADER + 4]),
                self.is_token(side, data, start, end),
                size >= HEADER,
            )
        if side == self.client:
            return side, given.code, self._may_hide(given.code, data, start + 8, end)
        if end - start < 8:
            return (side,)
        status, length = U32_U32(data, start)
        if status:
            return side, "error", length > 0
        return side, given.code, self._hides_answer(given.code, data, start + 8, end)

    def table(self, layout: str, side: int, data: bytes, start: int, end: int, given: Given) -> Table:
        """The table for this frame if the layout is `layout`."""
        code = given.code
        if self.long[side]:
            return self._long_table(layout, side, data, start, end, given)
        if side == self.client:
            if code is None:
                return frames.HIDDEN_CODE_ASK
            found = frames.ask(code, layout)
            return found or (frames.HIDDEN_ASK if self._may_hide(code, data, start + 8, end) else frames.UNKNOWN_ASK)
        if end - start < 8:
            return frames.UNKNOWN_ANSWER
        status, length = U32_U32(data, start)
        if status:
            if self.mismatch:
                return frames.refusal("L9")
            return frames.refusal(layout) if not length or layout in TEXT_LAYOUTS else frames.BARE_REFUSAL
        if self._hides_answer(code, data, start + 8, end):
            return frames.TOKEN_ANSWER
        return frames.answer(code, layout)

    def _long_table(self, layout: str, side: int, data: bytes, start: int, end: int, given: Given) -> Table:
        code, operation = given.code, given.operation
        kind = data[start + 60] if end - start > 60 else 0
        # a framing that was forced may be the wrong one, and what it takes for a body then holds any bytes, secrets too
        doubtful = self.forced and not long_header(data, start, end)
        if side == self.client:
            if kind != REQUEST:
                return frames.HIDDEN_OTHER if self.forced else frames.OTHER
            header = frames.request_header(layout, data, start, end)
            found = frames.long_ask(operation, code, layout, header)
            return found or frames.long_unknown_ask(header, doubtful, self._may_hide(code, data, start + HEADER, end))
        if kind == EVICTION:
            return frames.EVICTED
        if kind != REPLY:
            return frames.HIDDEN_OTHER if self.forced else frames.OTHER
        status_at = start + (224 if layout == "V1" else 216)
        named = data[start + 208] if end - start > 208 else operation
        listed = named in LISTED or named == REGISTER
        if end - start >= HEADER:
            if U32(data, status_at)[0]:
                return frames.long_refusal(layout, False)
            if listed and end - start >= HEADER + 4 and U32(data, start + HEADER)[0]:
                return frames.long_refusal(layout, True)
        if _nameless(code):
            hidden = doubtful or data[start + 208 : start + 209] == b"\x92" or may_hold_token(data, start + HEADER, end)
            return frames.long_unknown_answer(layout, hidden)
        return frames.long_answer(named, code, layout)

    def _has(self, code: int | None) -> bool:
        """Whether all layouts that are left have a command."""
        return code is not None and all(frames.exists(code, layout) for layout in self.candidates)

    def _may_hide(self, code: int | None, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a request that a layout does not have may be a password or a token."""
        if self._has(code):
            return False
        if code is not None and not _nameless(code) and not frames.hides(code) and frames.is_body(code, data, start, end):
            return False
        return (code is not None and frames.hides(code)) or may_hold_text(data, start, end)

    def _hides_answer(self, code: int | None, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a response in the classic framing, of which nothing is known, may be a secret."""
        if self._has(code):
            return False
        if _nameless(code):
            return may_hold_text(data, start, end) if self.mismatch else may_hold_token(data, start, end)
        return may_be_token(data, start, end)

    def is_token(self, side: int, data: bytes, start: int, end: int) -> bool:
        """Whether the body of a response may be a token, behind a list of results perhaps."""
        return any(may_be_token(data, start + at, end) for at in ((HEADER, HEADER + 4) if self.long[side] else (8,)))

    def hiding(self, frame: Frame, table: Table, walked: Walked, login: bool) -> Table | None:
        """The table that hides the whole body of a frame which is not as its own says, where that may be a secret altogether;
        `login`: the client may not have been let in yet."""
        side, data, start, end, _, _, damage = frame
        long = self.long[side]
        body = start + (HEADER if long else 8)
        over = "trailing" in walked.fields
        # bytes that are missing there have moved the body into it
        shifted = bool(long and (table.secret or table.code is None)) and any(
            data[start + span.offset : start + span.offset + span.length].strip(b"\0") for span in walked.spans if span.name in frames.ZEROS
        )
        whole = body <= end and (damage is None or table.code is None or over)
        if table in frames.OTHERS or not (shifted or whole):
            # It is hidden as a whole, or what there is of it is as it should be
            return None
        flawed = walked.fault is not None or over
        if side == self.client:
            unknown = table is frames.UNKNOWN_ASK or (long and table.code is None)
            if unknown:
                hidden = shifted or damage is not None
            else:
                hidden = shifted or (flawed and not table.secret and (login or may_be_login(data, body, end)))
            if hidden and (shifted or may_hold_text(data, body, end, True)):
                return (
                    frames.long_unknown_ask(frames.request_header(frame.layout, data, start, end), True, True)
                    if long
                    else frames.HIDDEN_ASK
                )
            return None
        if table.code is None:
            doubtful = flawed and not is_known(walked.fields) if table.name != "unknown" else damage is not None
            hidden = shifted or (doubtful and may_hold_text(data, body, end, True))
        else:
            hidden = shifted or ((flawed or table.name == "get_snapshot") and self.is_token(side, data, start, end))
        if hidden:
            return frames.long_unknown_answer(frame.layout, True, shifted) if long else frames.TOKEN_ANSWER
        return None

    def quick_of(self, key: int, asks: bool) -> Quick | None:
        known = self.asks if asks else self.answers
        if key not in known:
            if len(known) >= TABLES_KEPT:
                known.clear()
            known[key] = self.quick(key, asks)
        return known[key]

    def quick(self, key: int, asks: bool) -> Quick | None:
        return _quick(self.candidates, bool(self.long[self.client]), key, asks, self.style)

    def differs(self, cut: Cut, given: Given) -> bool:
        """Whether the layouts that are left read this frame differently."""
        tables = self.by_table(cut.side, cut.data, cut.start, cut.end, given)
        readings = {table: reading_of(table, cut.data, cut.start, cut.end, cut.damage) for table in tables} if len(tables) > 1 else {}
        return unlike(readings, cut.data, cut.start, cut.end, cut.damage)

    def narrow(self, cut: Cut, given: Given, tables: dict[Table, list[str]], readings: dict[Table, Reading]) -> bool:
        """Keep the layouts in which this frame decodes with nothing left over; whether that told anything."""
        fitting = [table for table, reading in readings.items() if reading.whole and (table.code is not None or table.name == "error")]
        likely = [table for table in fitting if table.name == "error" or _plausible(readings[table].fields)] or fitting
        kept = {layout for table in likely for layout in tables[table]}
        return self.keep(cut, given, tuple(layout for layout in self.candidates if layout in kept))

    def keep(self, cut: Cut, given: Given, candidates: tuple[str, ...]) -> bool:
        """Go on with these layouts; whether they are fewer than before, and not none."""
        if not candidates or len(candidates) == len(self.candidates):
            return False
        self.candidates = candidates
        self.tables.clear()
        self.asks.clear()
        self.answers.clear()
        self.settled = len(candidates) == 1
        who = "client" if cut.side == self.client else "server"
        if len(self.deciding) < DECIDING_KEPT:
            self.deciding.append(f"{frames.name_of(given.code)} ({who}, position {cut.position}): {', '.join(candidates)}")
        self.tell()
        return True

    def remember(self, code: int | None, frame: bytes) -> None:
        """Keep an answer that the layouts which are left read alike: the same answer will tell nothing new."""
        if len(self.weighed) == WEIGHED:
            self.weighed.clear()
        self.weighed.add((code, frame))


@lru_cache(4096)
def _quick(candidates: tuple[str, ...], long: bool, key: int, asks: bool, style: Style) -> Quick | None:
    """The table of a command's requests or answers in these layouts, for the fast path; None where there is more to see, or where they
    read it differently."""
    found = {_quick_in(layout, "L0" in candidates, long, key, asks) for layout in candidates}
    one = found.pop()
    if found or one is None:
        return None
    # A reader is made of the table that is read with, and of no other: that takes as long as to read thousands of frames
    table, check = one
    return table.name, table.reader(style), check


def _quick_in(layout: str, first: bool, long: bool, key: int, asks: bool) -> tuple[Table, Check | None] | None:
    """The same for one of several layouts; `first`: L0 is among these."""
    table: Table | None
    if long:
        operation = NON_REPLICATED if key > 0 else -key
        code: int | None = key if key > 0 else OPERATIONS.get(operation)
        if layout == "V1" and operation == NON_REPLICATED and asks:
            return None
        table = frames.long_ask(operation, code, layout, frames.header_of(layout)) if asks else frames.long_answer(operation, code, layout)
    else:
        code = key
        if key == 38 or (first and key in (32, 33)):
            return None
        table = frames.ask(code, layout) if asks else frames.answer(code, layout)
    if table is None or table.code is None or table.mixed or table.secret or table.name in STATING or table.name in TOLD:
        return None
    return table, checks(code, layout, asks)


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


class Reading(NamedTuple):
    """What a table makes of a frame: its fields, None where it does not read the frame plainly; and whether that is the whole frame
    without a flaw."""

    fields: dict[str, Any] | None
    whole: bool


def reading_of(table: Table, data: bytes, start: int, end: int, damage: Damage | None) -> Reading:
    fields = None if damage is not None else table.fields(data, start, end)
    return Reading(fields, fields is not None and "trailing" not in fields)


def unlike(readings: dict[Table, Reading], data: bytes, start: int, end: int, damage: Damage | None) -> bool:
    """Whether tables make different things of a frame; where one does not read it plainly, what is wrong counts too. Of a large frame
    digests are compared, as there are several."""
    first: Any = None
    for table, reading in readings.items() if len(readings) > 1 else ():
        told: Any = reading.fields
        if told is None:
            _, walked = table.walk(data, start, end, PLAIN, None if damage is None else damage.reason)
            told = (walked.fields, walked.notes, walked.fault)
        if end - start > DIGESTED:
            told = blake2b(_SORTED.encode(told)).digest()
        if first is None:
            first = told
        elif told != first:
            return True
    return False


def fits(table: Table, data: bytes, start: int, end: int, damage: Damage | None) -> bool:
    """Whether a table reads a frame with nothing left over; of one that lacks bytes, whether it reads all before these and goes on."""
    if damage is None:
        return clean(table, data, start, end)
    fault = table.walk(data, start, end, PLAIN, damage.reason)[1].fault
    return fault is not None and fault.reason == damage.reason and fault.field != "trailing"
