"""Complete frames of Apache Iggy: headers of both framings in front of the bodies, as field tables by layout.

A table stands for all layouts with the same bytes, so two layouts read a frame alike if their tables are the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from struct import Struct
from typing import Any

from msgspec.structs import replace

from ...layout import Array, Entry, Field, Fixed, Layout, Optional, Rest, Style, following, u8, u32le, u64le, u128le
from ...layout.generate import decoder, exact_decoder
from ...layout.spans import fast_walk
from ...layout.types import has_secret, minimum
from ...layout.values import UNREADABLE
from ...layout.walker import Walked
from . import bodies as b
from .bodies import Body
from .commands import (
    BY_CODE,
    EMPTY,
    LISTED,
    NON_REPLICATED,
    OFFSET_ROUTING,
    OLD_LOGIN,
    OLD_LOGOUT,
    OPERATION_LABELS,
    OPERATIONS,
    REGISTER,
    Command,
    Forms,
    forms,
)
from .layout_versions import CLASSIC, LAYOUTS, LONG, V5_VERSION
from .statuses import statuses

OLD_LOGIN_CODE, OLD_LOGOUT_CODE = -OLD_LOGIN.code, -OLD_LOGOUT.code
"""What distinguishes the old login (code 32) and logout (code 33) from the later commands with these codes."""

OFFSET_ROUTING_CODE = -OFFSET_ROUTING.code
"""The same for what code 123 means in V4."""

_BY_CODE = {**BY_CODE, OLD_LOGIN_CODE: OLD_LOGIN, OLD_LOGOUT_CODE: OLD_LOGOUT, OFFSET_ROUTING_CODE: OFFSET_ROUTING}

REGISTERS = (40, 45)
"""The commands of the operation that registers a client."""

MAX_CODES = 4_096
"""Size of the caches by command code: a frame may have any code."""

HEADER = 256
REQUEST, REPLY, EVICTION = 5, 8, 13
FRAME_KINDS: Mapping[int, str] = {REQUEST: "request", REPLY: "reply", EVICTION: "eviction"}

U32 = Struct("<I").unpack_from
U32_U32 = Struct("<II").unpack_from

EVICTION_REASONS: Mapping[int, str] = {
    1: "no session",
    2: "release too low",
    3: "release too high",
    4: "bad operation",
    5: "bad body",
    6: "bad body size",
    7: "session too low",
    8: "release mismatch",
    9: "bad credentials",
    10: "bad token",
    11: "inactive user",
    12: "session error",
    13: "stale client",
    14: "incompatible protocol",
    15: "malformed login",
}

OK: Mapping[int, str] = {0: "ok"}

DEFAULT_STYLE = Style()

Read = Callable[[bytes, int, int], dict[str, Any]]
"""`read(data, start, end)`: fields, or one of UNREADABLE, also where bytes are left over."""

_ASK_CODE = Field("code", u32le)
_ASK: Body = (Field("length", u32le, "of the bytes after it, including the code", default=following), _ASK_CODE)
_ANSWER: Body = (Field("status", u32le, labels=OK), Field("length", u32le, "of the bytes after it", default=following))
_COMMON: Body = (
    Field("checksum", u128le, "0 from clients"),
    Field("checksum_body", u128le, "0 from clients"),
    Field("cluster", u128le, "0 from clients"),
    Field("size", u32le, "of the complete frame", default=lambda count: count + 52),
    Field("view", u32le),
    Field("release", u32le),
    Field("command", u8, labels=FRAME_KINDS),
    Field("replica", u8),
    Field("reserved", Fixed(66), "zero"),
)
_REQUEST: Body = (
    *_COMMON,
    Field("client", u128le, "random"),
    Field("request_checksum", u128le, "XXH3-64 of the body (V2 to V4, some operations)"),
    Field("timestamp", u64le),
    Field("request", u64le, "up to V4 advanced by replicated operations only"),
    Field("operation", u8, labels=OPERATION_LABELS),
    Field("operation_padding", Fixed(7), "zero"),
)
_CONTEXT = tuple(replace(field, note="of the partition, as the server said last") for field in b.PARTITION_CONTEXT)
_NAMESPACE = Field("namespace", u64le, "top bit: metadata; else stream, topic and partition in 20, 12 and 20 bits")
_SESSION = Field("session", u64le, "0 until registered")
_USER = Field("session_user_id", u32le)
_CODE = Field("code", u32le, "of operation 2")


def _later(header: Body) -> Body:
    """A header from V5 on: its checksum has another algorithm, which is not known."""
    checksum = Field("request_checksum", Fixed(16), "its algorithm is not known")
    return tuple(checksum if isinstance(field, Field) and field.name == checksum.name else field for field in header)


LONG_REQUESTS: Mapping[str, Body] = {
    "V1a": (*_REQUEST, _NAMESPACE, _SESSION, _CODE, Field("reserved_end", Fixed(52), "zero")),
    "V1": (*_REQUEST, _NAMESPACE, _SESSION, _USER, _CODE, Field("reserved_end", Fixed(48), "zero")),
    "V2": (*_REQUEST, _SESSION, _USER, _CODE, Field("reserved_end", Fixed(56), "zero")),
    "V5": (*_later(_REQUEST), _SESSION, _USER, _CODE, *_CONTEXT, Field("reserved_end", Fixed(32), "zero")),
}
"""The header of a request; V1a is that of the first builds of V1."""

_REPLY: Body = (
    *_COMMON,
    Field("request_checksum", u128le),
    Field("context", u128le),
    Field("client", u128le, "echoed, or a small connection number"),
    Field("op", u64le),
    Field("commit", u64le),
    Field("timestamp", u64le),
    Field("request", u64le),
    Field("operation", u8, labels=OPERATION_LABELS),
    Field("operation_padding", Fixed(7), "zero"),
)


@cache
def _reply(header: str, refuses: bool = False) -> Body:
    """The header of a reply; `refuses`: its status is another than 0, which has a name, the same in all layouts of this framing."""
    status = Field("status", u32le, labels=statuses("V1") if refuses else OK)
    if header == "V1":
        return (*_REPLY, _NAMESPACE, status, Field("reserved_end", Fixed(28), "zero"))
    return (*(_later(_REPLY) if header == "V5" else _REPLY), status, Field("reserved_end", Fixed(36), "zero"))


def _results(labels: Mapping[int, str]) -> Field:
    return Field("results", Array((Field("index", u32le), Field("result", u32le, labels=labels)), u32le), "empty is success")


_RESULTS = _results(OK)


@cache
def _alone(*fields: Entry) -> Layout:
    """A header, or a body, by itself: all that have these fields share what reads them."""
    return Layout("part", *fields)


class Noted(dict[str, Any]):
    """Fields with notes."""


def _names(bodies: Sequence[Body]) -> set[str]:
    return {entry.name for body in bodies for entry in body if isinstance(entry, Field)}


class CommandTable:
    """One command in one direction: a header, and what may stand behind it, the likeliest form first. `commands`: what each form is, where
    that identifies the command (register)."""

    def __init__(
        self,
        code: int | None,
        name: str,
        head: Body,
        *bodies: Body,
        kind: Any = "request",
        note: str = "",
        commands: Sequence[Command] = (),
    ) -> None:
        self.code = code
        self.name = name
        self.head = head
        self.bodies = bodies
        self.kind = kind
        self.note = note
        self.commands = commands
        self.long = head is not _ASK and minimum(head) > minimum(_ASK)
        """Whether it is in the 256-byte framing."""
        self.mixed = len(set(commands)) > 1
        self.notes = tuple((name, note) for name, note in b.SEEN_NOTES.items() if code is not None and name in _names(bodies))
        """Fields that make a note, and the note."""
        self.secret = any(_alone(*fields).secret for fields in (head, *bodies))
        self.readers: dict[Style, Read] = {}

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout of the complete frame, by form."""
        if not self.commands:
            return tuple(
                Layout(self.name, *self.head, *body, kind=self.kind, note=self.note, parts=(self.head, body)) for body in self.bodies
            )
        return tuple(
            Layout(one.name, *self.head, *body, kind=self.kind, key=str(one.code), note=self.note, parts=(self.head, body))
            for one, body in zip(self.commands, self.bodies, strict=True)
        )

    def reader(self, style: Style) -> Read:
        """It reads the first form that leaves nothing over."""
        made = self.readers.get(style)
        if made is None:
            simple = not self.long and len(self.bodies) == 1
            made = self.readers[style] = exact_decoder(_alone(*self.head, *self.bodies[0]), style) if simple else self._reader(style)
        return made

    def _reader(self, style: Style) -> Read:
        # the header of the classic framing is so small that each form reads it
        parts = (self.head, ()) if self.long else ((), self.head)
        head, size = decoder(_alone(*parts[0]), style), minimum(parts[0])
        bodies = [exact_decoder(_alone(*parts[1], *body), style) for body in self.bodies]

        def read(data: bytes, start: int, end: int) -> dict[str, Any]:
            at = start + size
            if at > end:
                raise ValueError("no complete header")
            for body in bodies:
                try:
                    fields = body(data, at, end)
                    return head(data, start, at) | fields if size else fields
                except KeyError:
                    # An unknown label: the form may match nevertheless
                    raise
                except UNREADABLE:
                    continue
            raise ValueError("no form fits")

        return read

    def fields(self, data: bytes, start: int, end: int) -> dict[str, Any] | None:
        """Return the fields of a frame with secrets redacted; None if it does not match completely. Unknown labels are accepted."""
        try:
            return self.reader(DEFAULT_STYLE)(data, start, end)
        except UNREADABLE as error:
            # No reader accepts a frame that may exceed the value limit
            if type(error) is not KeyError and end - start <= DEFAULT_STYLE.values:
                return None
            _, walked = self.walk(data, start, end, DEFAULT_STYLE)
            return Noted(walked.fields) if walked.fault is None and "trailing" not in walked.fields else None

    def walk(self, data: bytes, start: int, end: int, style: Style, missing: str | None = None) -> tuple[Layout, Walked]:
        """The walk of the form that fits best: the one that reads furthest, as a reply that may be empty is not for that left over."""
        best: tuple[int, int, int, Layout, Walked] | None = None
        for layout in self.layouts:
            walked = fast_walk(layout, data, start, end, style, missing)
            fault, over = walked.fault, "trailing" in walked.fields
            if fault is not None and not (over and missing is not None):
                # a form that goes on where bytes are missing is as it should be, one that ended before is not
                rank = (0 if fault.reason == missing else 1, -fault.offset, 1)
            elif over:
                left = sum(span.length for span in walked.spans if span.leaf and span.name == "trailing" and not span.depth)
                rank = (1, left - (end - start), 0)
            else:
                return layout, walked
            if best is None or rank < best[:3]:
                best = (*rank, layout, walked)
        assert best is not None
        return best[3], best[4]


def command_of(code: int) -> Command | None:
    return _BY_CODE.get(code)


def meant(code: int, length: int) -> int:
    """Return the command of a request by code and length: two codes once had another meaning."""
    if code == 32 and length > 4:
        return OLD_LOGIN_CODE
    return OLD_LOGOUT_CODE if code == 33 and length == 4 else code


def meant_later(code: int | None, layouts: Sequence[str], data: bytes, start: int, end: int) -> int | None:
    """The same of a request of the 256-byte framing, in one of these layouts."""
    if code == OFFSET_ROUTING.code and (not exists(code, layouts[0]) or not is_body(code, data, start + HEADER, end)):
        return OFFSET_ROUTING_CODE
    return code


def name_of(code: int | None) -> str:
    """What a message is called in both directions."""
    if code is None:
        return "unknown"
    command = command_of(code)
    return command.name if command is not None else f"unknown {code}"


@lru_cache(MAX_CODES)
def exists(code: int, layout: str) -> bool:
    """Whether a layout has a command."""
    command = command_of(code)
    if command is None:
        return False
    if command in (OLD_LOGIN, OLD_LOGOUT):
        return layout == "L0"
    return bool(forms(command.request, layout)[1])


_BODY = Field("body", Rest())
_SECRET_BODY = Field("body", Rest(), "hidden: it may be a password or a token", secret=True)

UNKNOWN_ASK = CommandTable(None, "unknown", _ASK, (_BODY,), note="a code that no layout has")
HIDDEN_ASK = CommandTable(None, "unknown", _ASK, (_SECRET_BODY,), note="a code that the layout does not have")
HIDDEN_CODE_ASK = CommandTable(
    None, "unknown", (_ASK[0], replace(_ASK_CODE, secret=True)), (_SECRET_BODY,), note="a code that is a piece of text"
)
UNKNOWN_ANSWER = CommandTable(None, "unknown", _ANSWER, (_BODY,), kind="response", note="its request is not known")
TOKEN_ANSWER = CommandTable(None, "unknown", _ANSWER, (_SECRET_BODY,), kind="response")


@cache
def _short(code: int, first: str, asks: bool) -> CommandTable:
    command = command_of(code)
    assert command is not None
    found = forms(command.request if asks else command.response, first)[1]
    return _table(code, _ASK if asks else _ANSWER, found, "request" if asks else "response", first)


def _table(code: int, head: Body, found: Forms, kind: str, first: str) -> CommandTable:
    command = command_of(code)
    assert command is not None
    return CommandTable(code, command.name, head, *found, kind=kind, note=f"from {first}", commands=[command] * len(found))


@cache
def hidden_body(table: CommandTable) -> CommandTable:
    """The table of a command that hides a body whose layout was not seen."""
    bodies = [tuple(_SECRET_BODY if entry is b.UNSEEN else entry for entry in body) for body in table.bodies]
    return CommandTable(table.code, table.name, table.head, *bodies, kind=table.kind, note=table.note, commands=table.commands)


@lru_cache(MAX_CODES)
def hides(code: int) -> bool:
    """Whether a command's request or response holds a secret in any layout."""
    command = command_of(code)
    return command is not None and any(
        has_secret(body) for since in (command.request, command.response) for found in since.values() for body in found
    )


@lru_cache(MAX_CODES)
def _readers(code: int) -> list[Read]:
    command = command_of(code)
    every = [] if command is None else [body for since in command.request.values() for body in since]
    # any bytes are a body whose layout was not seen
    return [exact_decoder(_alone(*body), DEFAULT_STYLE) for body in every if b.UNSEEN not in body]


def is_body(code: int, data: bytes, start: int, end: int) -> bool:
    """Whether these bytes are the body of a command's request in some layout, to their end."""
    for body in _readers(code):
        try:
            body(data, start, end)
        except UNREADABLE:
            continue
        return True
    return False


def ask(code: int, layout: str) -> CommandTable | None:
    """The table of a request in the classic framing; None where the layout has no such command."""
    return None if command_of(code) is None else asks(code).get(layout)


@cache
def asks(code: int) -> dict[str, CommandTable]:
    """The tables of the requests of a known command in the classic framing, by layout."""
    command = command_of(code)
    assert command is not None
    return {layout: _short(code, forms(command.request, layout)[0], True) for layout in LAYOUTS if exists(code, layout)}


@lru_cache(MAX_CODES)
def answer(code: int | None, layout: str) -> CommandTable:
    """The table of a response with status 0 in the classic framing."""
    command = None if code is None else command_of(code)
    if code is None or command is None:
        return UNKNOWN_ANSWER
    if not exists(code, layout):
        return TOKEN_ANSWER if hides(code) else UNKNOWN_ANSWER
    return _short(code, forms(command.response, layout)[0], False)


@lru_cache(MAX_CODES)
def always_empty(code: int, layout: str) -> bool:
    """Whether all answers to this command, in the classic framing, are a status only."""
    command = command_of(code)
    return command is not None and exists(code, layout) and forms(command.response, layout)[1] == EMPTY


_MESSAGE = Optional(Field("message", b.S32, "from 0.2.2 to 0.4.86"))


@cache
def refusal(layout: str) -> CommandTable:
    """The table of a response with another status in the classic framing."""
    status = Field("status", u32le, labels=statuses(layout))
    return CommandTable(None, "error", (status, *_ANSWER[1:]), (_MESSAGE,), kind="response")


EMPTY_REFUSAL = CommandTable(None, "error without text", _ANSWER, (), kind="response", note="in the layouts whose errors have no text")


# The 256-byte framing


def header_of(layout: str, certain: bool = True) -> str:
    """Which header a reply of this layout has. Until it is `certain`, one of V5 is read like others: it differs by name only."""
    return layout if layout == "V1" or (layout == "V5" and certain) else "V2"


def operation_and_code(data: bytes, start: int, end: int) -> tuple[int | None, int | None]:
    """What a request asks for; the code of operation 2 stands elsewhere in V1 and in its first builds."""
    if end - start < 177:
        return None, None
    operation = data[start + 176]
    if operation == REGISTER:
        return operation, 40
    if operation != NON_REPLICATED:
        return operation, OPERATIONS.get(operation)
    for offset in (196, 204, 200):
        if end - start >= offset + 4:
            (code,) = U32(data, start + offset)
            if code:
                return operation, code
    return operation, None


def registered_by(data: bytes, start: int, end: int, missing: str | None) -> int:
    """The command of a request of operation 1: only its form shows it. All layouts have the same ones behind headers of the same size."""
    for code in REGISTERS:
        if missing is None and is_body(code, data, start + HEADER, end):
            return code
    layout, _ = _long_ask(REGISTERS[0], REGISTER, "V2", "V1").walk(data, start, end, DEFAULT_STYLE, missing)
    return int(layout.key)  # type: ignore[arg-type]


def request_header(layout: str, data: bytes, start: int, end: int, certain: bool = True) -> str:
    """Which of LONG_REQUESTS a request of this layout has; `certain`: as for `header_of`."""
    if layout != "V1":
        return header_of(layout, certain)
    early = end - start >= 208 and data[start + 176] == NON_REPLICATED and not U32(data, start + 204)[0] and U32(data, start + 200)[0]
    return "V1a" if early else "V1"


@cache
def _long_ask(code: int, operation: int, header: str, first: str) -> CommandTable:
    head = LONG_REQUESTS[header]
    if operation != REGISTER:
        return _table(code, head, forms(_BY_CODE[code].request, first)[1], "request", first)
    found = [(BY_CODE[one], body) for one in REGISTERS for body in forms(BY_CODE[one].request, first)[1]]
    commands, bodies = zip(*found, strict=True)
    return CommandTable(code, commands[0].name, head, *bodies, note=f"from {first}", commands=commands)


def _hidden(header: Body) -> Body:
    """A header that may be none: its checksums and padding would show other bytes."""
    shown = ("size", "command", "operation", "status")
    return tuple(replace(field, secret=True) if isinstance(field, Field) and field.name not in shown else field for field in header)


@cache
def long_unknown_ask(header: str, doubtful: bool, hidden: bool) -> CommandTable:
    """The table of a request in the 256-byte framing that the layout does not have; `doubtful`: it may be none."""
    fields = LONG_REQUESTS[header]
    return CommandTable(None, "unknown", _hidden(fields) if doubtful else fields, (_SECRET_BODY if doubtful or hidden else _BODY,))


def long_ask(operation: int | None, code: int | None, layout: str, header: str) -> CommandTable | None:
    """The table of a request in the 256-byte framing; None where the layout has no such command."""
    if code is None or operation is None or not exists(code, layout):
        return None
    return _long_ask(code, operation, header, forms(_BY_CODE[code].request, layout)[0])


@cache
def _long_answer(code: int, listed: bool, register: bool, header: str, first: str) -> CommandTable:
    found = forms(_BY_CODE[code].response, first)[1]
    if register or listed:
        found = tuple((_RESULTS, *body) if body or listed else body for body in found)
    return _table(code, _reply(header), found, "response", first)


def long_answer(operation: int | None, code: int | None, layout: str, certain: bool = True) -> CommandTable:
    """The table of a reply with status 0 and no failed result."""
    header = header_of(layout, certain)
    if code is None or operation is None or not exists(code, layout):
        return long_unknown_answer(header, False)
    first = forms(_BY_CODE[code].response, layout)[0]
    return _long_answer(code, operation in LISTED, operation == REGISTER, header, first)


@cache
def long_unknown_answer(header: str, hidden: bool, doubtful: bool = False) -> CommandTable:
    """The table of a reply to an unknown request; `doubtful`: its header may hold something else."""
    head = _reply(header)
    return CommandTable(None, "unknown", _hidden(head) if doubtful else head, (_SECRET_BODY if hidden else _BODY,), kind="response")


@cache
def long_refusal(header: str, listed: bool) -> CommandTable:
    """The table of a reply with another status, or with failed results."""
    more: Body = (_results(statuses("V1")),) if listed else ()
    return CommandTable(None, "error", _reply(header, True), more, kind="response")


EVICTED = CommandTable(
    None,
    "eviction",
    _COMMON,
    (
        Field("client", u128le),
        Field("highest_version", u32le, "accepted, with reason 14 only", labels=b.VERSIONS),
        Field("lowest_version", u32le, labels=b.VERSIONS),
        Field("reserved_end", Fixed(103), "zero"),
        Field("reason", u8, labels=EVICTION_REASONS),
    ),
    kind="response",
    note="in place of a reply; the connection stays open",
)
OTHER = CommandTable(None, "unknown", _COMMON, (_SECRET_BODY,), kind="one_way", note="a frame between replicas")
"""Replicas hand on what clients send them, logins and new passwords too."""
HIDDEN_OTHER = CommandTable(None, "unknown", _hidden(_COMMON), (_SECRET_BODY,), kind="one_way", note="perhaps no frame at all")


OTHERS = (OTHER, HIDDEN_OTHER)
"""Frames that are neither requests nor answers."""

ZEROS = frozenset(("reserved", "reserved_end", "operation_padding"))
"""Fields of the header that hold nothing."""


def header_layouts(data: bytes, start: int, end: int, asks: bool) -> tuple[str, ...]:
    """The layouts of the 256-byte framing that this header can have."""
    every, newest = LONG, LONG[-1:]
    if end - start < HEADER:
        return every
    if asks:
        operation = data[start + 176]
        if operation == REGISTER and end - start >= HEADER + 4:
            # the only frame that states the version of its layout
            return newest if U32(data, start + HEADER)[0] >= V5_VERSION else every[1:-1]
        if any(data[start + 152 : start + 160]) or any(data[start + 208 : start + 224]):
            return newest
        session_or_namespace = int.from_bytes(data[start + 184 : start + 192], "little")
        if operation == NON_REPLICATED:
            if U32(data, start + 196)[0]:
                return newest if any(data[start + 200 : start + 208]) else every[1:]
            return every[:1]
        if session_or_namespace >> 63:
            return every[:1]
        if operation == REGISTER:
            return every[1:]
        if not session_or_namespace and U32(data, start + 192)[0]:
            return every[:1]
        return every
    if data[start + 60] == REPLY:
        if any(data[start + 220 : start + 224]):
            return every[:1]
        # the answer has the checksum of its request
        return newest if any(data[start + 136 : start + 144]) else every
    return every


def documented() -> tuple[Layout, ...]:
    """Each command's tables where they begin to hold; those of the 256-byte framing without the header, which stands at the end."""
    found: list[Layout] = []
    for code, command in _BY_CODE.items():
        for asks, since in ((True, command.request), (False, command.response)):
            kind: Any = "request" if asks else "response"
            for first, bodies in since.items():
                if first in CLASSIC:
                    found += _short(code, first, asks).layouts
                    continue
                note = f"from {first}, after the header of 256 bytes"
                found += [Layout(command.name, *body, kind=kind, key=str(command.code), note=note) for body in bodies if body]
    found += refusal("L6").layouts
    for header, fields in LONG_REQUESTS.items():
        found.append(
            Layout("request header", *fields, note=f"the header of 256 bytes, from {header.replace('V1a', 'the first builds of V1')}")
        )
    for header in ("V1", "V2", "V5"):
        found.append(Layout("reply header", *_reply(header), kind="response", note=f"the header of 256 bytes, from {header}"))
    results = Layout("results", _RESULTS, kind="response", note="between the header and the body of a reply that can fail")
    return (*found, results, *EVICTED.layouts)
