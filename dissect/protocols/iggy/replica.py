"""Apache Iggy between two replicas of a cluster: frames with headers of 256 bytes in both directions, on one connection for all groups.

Nothing pairs by order. What a frame answers is named by its group and op, or by a nonce; a Prepare may be answered on another connection.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from struct import Struct
from typing import Any, ClassVar, NamedTuple

from xxhash import xxh3_64_intdigest

from ...layout import Layout, Style, read_frame
from ...layout.walker import Walked
from ...model import Fault
from ...quota import keep_newest
from ..dissector import Dissector
from ..parser import Parser
from ..protocol import Context
from ..records import NONE, OPTIONAL_RESPONSE, PARTIAL_RESPONSE, REQUEST, RESPONSE, DecodedTuple, Frame, Role
from . import replica_layouts as r
from .checksums import replicated_batch
from .frames import HEADER, U32
from .info import topic_of
from .replica_framing import LEAST, find, frame_size, is_sealed, seal

OPEN = 4_096
"""Limit of requests that are remembered to recognise repeats and answers."""

UNREADABLE_BODY = "the body cannot be read as {} of server 0.9.0-edge.5"

_U64 = Struct("<Q").unpack_from
_U64_U64 = Struct("<QQ").unpack_from


class Question(NamedTuple):
    """A frame that asks: `what` for, the fields that it has in `common` with its answer, and the one that is its id."""

    what: str
    common: tuple[str, ...]
    ident: str = "nonce"
    role: Role = REQUEST
    again: tuple[str, ...] = ()
    """Fields that are the same where it is sent again."""


class Reply(NamedTuple):
    """A frame that answers a `Question`."""

    what: str
    common: tuple[str, ...]
    ident: str = "nonce"
    refuses: Callable[[dict[str, Any]], bool] = lambda fields: False


_OP, _VIEW, _INCARNATION, _NONCE = ("group", "op"), ("group", "view"), ("group", "replica_incarnation"), ("nonce",)
_CHUNK, _CLIENT = ("nonce", "artifact", "offset"), ("nonce", "client")

QUESTIONS: Mapping[int, Question] = {
    # In another view all replicas are asked again
    r.PREPARE: Question("prepare", _OP, "op", OPTIONAL_RESPONSE, ("view", "checksum")),
    r.START_VIEW_CHANGE: Question("change", _VIEW, "view", OPTIONAL_RESPONSE),
    r.DO_VIEW_CHANGE: Question("view", _VIEW, "view", OPTIONAL_RESPONSE),
    r.REQUEST_START_VIEW: Question("start", _INCARNATION, "view", OPTIONAL_RESPONSE),
    r.HELLO: Question("hello", (), ""),
    r.REQUEST_PREPARES: Question("repair", _NONCE),
    r.REQUEST_TRANSFER: Question("transfer", _NONCE),
    r.REQUEST_CHUNK: Question("chunk", _CHUNK),
    r.FORWARD_REGISTER: Question("register", _CLIENT),
    r.FORWARD_LOGOUT: Question("logout", _CLIENT),
}
"""By command. StartView answers DoViewChange or RequestStartView, RepairPrepare a range of ops: see `ReplicaDissector._pair`."""

REPLIES: Mapping[int, Reply] = {
    r.PREPARE_OK: Reply("prepare", _OP, "op"),
    r.CHALLENGE: Reply("hello", (), "", lambda fields: fields["status"] != 0),
    r.REPAIR_DONE: Reply("repair", _NONCE),
    r.RANGE_EVICTED: Reply("repair", _NONCE, refuses=lambda fields: True),
    r.TRANSFER_TARGET: Reply("transfer", _NONCE, refuses=lambda fields: not fields["available"]),
    r.CHUNK: Reply("chunk", _CHUNK),
    r.REGISTER_RESULT: Reply("register", _CLIENT, refuses=lambda fields: fields["outcome"] != 0),
    r.LOGOUT_RESULT: Reply("logout", _CLIENT, refuses=lambda fields: fields["outcome"] != 0),
}


class ReplicaDissector(Dissector):
    """One conversation of two replicas; the one that dialled is the client."""

    protocol: ClassVar[str] = "iggy"
    header_size: ClassVar[int] = LEAST
    reuse = "never"
    DERIVED = ("style",)

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        self.open: dict[Hashable, Any] = {}
        """Requests without an answer so far, by what names them."""
        self.doubtful = [-1, -1]
        """By side, the position of the last Prepare that was found by a search."""
        self.facts["layout"] = r.LAYOUT
        self.prepare()

    def prepare(self) -> None:
        self.style = Style(self.options.bytes_as, self.options.show_secrets, self.options.values_limit)

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        if len(data) - at < LEAST:
            return 0
        size, command = frame_size(data, at), data[at + 60]
        if size > HEADER and command in r.TABLES and command not in r.SIZED:
            # Without a body, if the header is not damaged
            return 0 if len(data) - at < HEADER else size if is_sealed(data, at) else -1
        return size

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        buffer = self.parser.buffers[side]
        found, place = find(data, at, end, final, buffer.work_budget)
        if found and data[place + 60] in r.CARRIERS:
            self.doubtful[side] = buffer.base + place
        return found, place

    def decode(self, frame: Frame) -> DecodedTuple:
        data, start, end = frame.data, frame.start, frame.end
        command = data[start + 60]
        sealed = is_sealed(data, start) if end - start >= HEADER else None
        layout, walked = self._read(frame, command, sealed)
        fields, notes, fault = walked.fields, [*walked.notes], walked.fault
        spans = (walked.spans or None) if self.options.detail else None
        if command not in r.TABLES:
            notes.append(f"command {command} is not known")
        elif command in r.CARRIERS and "operation" in fields and fields["operation"] not in r.PREPARED:
            notes.append(f"operation {fields['operation']} is not known")
        if end - start < HEADER or command not in r.TABLES:
            return layout.name, layout.kind, None, fields, None, notes, fault, NONE, None, spans, None
        self._check(frame, command, sealed, notes, fault is None and "batches" in fields)
        self._learn(frame, command, fields, sealed)
        if self.doubtful[frame.side] == frame.position and command in r.CARRIERS:
            notes.append("found behind bytes that are missing: it may be a part of DoViewChange, StartView or StateChunk")
        if sealed is False:
            # It is dropped, and so answers nothing
            return layout.name, layout.kind, None, fields, None, notes, fault, NONE, None, spans, None
        kind, ident, outcome, role, key = self._pair(frame, command, fields, layout.kind, notes)
        stream = _stream(fields) if command in (*r.CARRIERS, r.REQUEST, r.PREPARE_OK) else None
        return layout.name, kind, ident, fields, outcome, notes, fault, role, key, spans, stream

    # What it holds

    def _read(self, frame: Frame, command: int, sealed: bool | None) -> tuple[Layout, Walked]:
        """Return the table of a frame, and what it reads; a body that does not fit its table is hidden, as it may hold a secret."""
        data, start, end, damage = frame.data, frame.start, frame.end, frame.damage
        if end - start < HEADER:
            # The operation is missing
            layout = r.layout_of(command, hidden=True)
            return layout, self._walk(layout, frame)
        operation = code = 0
        if command in r.CARRIERS:
            operation = data[start + 208]
        elif command == r.REQUEST:
            operation, code = data[start + 176], U32(data, start + 196)[0]
        layout = r.layout_of(command, operation, code)
        walked = self._walk(layout, frame)
        fault = walked.fault
        fits = fault is None or (damage is not None and fault.reason == damage.reason and not walked.notes)
        if fits and "trailing" not in walked.fields:
            return layout, walked
        if command not in r.SIZED or (fault is not None and fault.offset < HEADER):
            return layout, walked
        hidden = r.layout_of(command, operation, code, True)
        walked = self._walk(hidden, frame)
        label = r.LABELS.get(operation, f"operation {operation}") if command in r.CARRIERS else layout.name
        reason = UNREADABLE_BODY.format(label)
        if sealed and damage is None:
            # Nothing has damaged it: it is of another build
            walked.notes.append(reason)
        elif damage is None:
            walked = walked._replace(fault=Fault("body", HEADER, reason))
        return hidden, walked

    def _walk(self, layout: Layout, frame: Frame) -> Walked:
        missing = frame.damage and frame.damage.reason
        return read_frame(layout, frame.data, frame.start, frame.end, self.style, missing, self.options.detail)

    def _check(self, frame: Frame, command: int, sealed: bool | None, notes: list[str], batch: bool) -> None:
        """Note checksums that are wrong; `batch`: it carries messages, which were read."""
        data, start, end = frame.data, frame.start, frame.end
        if sealed is False:
            low, high = _U64_U64(data, start)
            notes.append(f"checksum is {low | high << 64}, XXH3-64 of the header computed {seal(data, start)}: replicas drop such a frame")
        elif sealed is None and command not in r.UNSEALED and command not in r.CARRIERS:
            if "unsealed" not in self.facts:
                notes.append("the frame is not sealed: its checksum is 0; conversations counts those that follow")
            self.facts["unsealed"] = self.facts.get("unsealed", 0) + 1
        if frame.damage is not None:
            return
        low, high = _U64_U64(data, start + 16)
        body = start + HEADER
        if low or high:
            computed = xxh3_64_intdigest(data[body:end])
            if (low, high) != (computed, 0):
                notes.append(f"checksum_body is {low | high << 64}, XXH3-64 of the body computed {computed}")
        if batch and command in r.CARRIERS and data[start + 208] == r.SEND and end - body >= HEADER:
            notes += replicated_batch(data, body, end)
        elif command == r.TRANSFER_TARGET and end - body > 8:
            (stated,), computed = _U64(data, end - 8), xxh3_64_intdigest(data[body : end - 8])
            if stated != computed:
                notes.append(f"manifest_checksum is {stated}, XXH3-64 of the manifest computed {computed}")

    def _learn(self, frame: Frame, command: int, fields: dict[str, Any], sealed: bool | None) -> None:
        """Update what the row of the conversation says: who is who, the view, and how the handshake went."""
        facts = self.facts
        if sealed is False:
            facts["wrong_seals"] = facts.get("wrong_seals", 0) + 1
            return
        if sealed:
            facts["verified_seals"] = facts.get("verified_seals", 0) + 1
        view, replica = fields["view"], fields["replica"]
        if command in r.CARRIERS:
            if view >= facts.get("view", 0):
                facts["view"], facts["primary"] = view, f"replica {replica}"
            return
        if command == r.REQUEST:
            return
        if self.client is not None:
            facts.setdefault("dialler" if frame.side == self.client else "acceptor", f"replica {replica}")
        if command == r.HELLO:
            facts["handshake"] = "hello, asks for authentication" if _has_nonce(frame) else "hello without authentication"
        elif command == r.CHALLENGE:
            facts["handshake"] = f"refused: {fields['status_label'] or fields['status']}" if fields["status"] else "challenged"
        elif command == r.FINISH:
            facts["handshake"] = "authenticated by both, as far as the frames tell"
        elif command == r.COMMIT and view >= facts.get("view", 0):
            facts["view"], facts["primary"] = view, f"replica {replica}"

    # What it answers

    def _pair(
        self, frame: Frame, command: int, fields: dict[str, Any], kind: Any, notes: list[str]
    ) -> tuple[Any, int | str | None, str | None, Role, Hashable]:
        """Return kind, id, outcome, role and key of a frame."""
        side, other = frame.side, 1 - frame.side
        key: Hashable
        match command:
            case r.PREPARE_OK:
                stated = self.open.get(("prepare", other, fields["group"], fields["op"]), (0, "0"))[1]
                if stated not in ("0", fields["prepare_checksum"]):
                    notes.append(f"prepare_checksum is {fields['prepare_checksum']}, the Prepare here with this op has {stated}")
                    return kind, fields["op"], None, NONE, None
            case r.START_VIEW_CHANGE:
                key = ("change", other, fields["group"], fields["view"])
                if key in self.open:
                    return "response", fields["view"], *self._answer(key, False)
            case r.START_VIEW:
                key = ("view", other, fields["group"], fields["view"])
                if fields["replica_incarnation"] != "0":
                    key = ("start", other, fields["group"], fields["replica_incarnation"])
                if key in self.open:
                    return "response", fields["view"], *self._answer(key, False)
                return "one_way", fields["view"], None, NONE, None
            case r.HELLO if not _has_nonce(frame):
                return "one_way", None, None, NONE, None
            case r.REPAIR_PREPARE:
                asked = self.open.get(("range", other, fields["group"]))
                if asked is None or not asked[1] <= fields["op"] <= asked[2]:
                    return kind, fields["op"], None, NONE, None
                return kind, fields["op"], "answered", PARTIAL_RESPONSE, ("repair", other, asked[0])
            case r.REPAIR_DONE | r.RANGE_EVICTED:
                self.open.pop(("range", other, fields["group"]), None)
        question, reply = QUESTIONS.get(command), REPLIES.get(command)
        if reply is not None:
            key = (reply.what, other, *map(fields.get, reply.common))
            return kind, fields.get(reply.ident), *self._answer(key, reply.refuses(fields))
        if question is None:
            return kind, None, None, NONE, None
        key = (question.what, side, *map(fields.get, question.common))
        role, key = self._ask(key, tuple(map(fields.get, question.again)), notes, question.role)
        if command == r.REQUEST_PREPARES and role is REQUEST:
            keep_newest(self.open, ("range", side, fields["group"]), (fields["nonce"], fields["from_op"], fields["to_op"]), OPEN)
        return kind, fields.get(question.ident), None, role, key

    def _ask(self, key: Hashable, identity: tuple[Any, ...], notes: list[str], role: Role) -> tuple[Role, Hashable]:
        """Return role and key of a request; one that is open and sent again is still one request."""
        if key in self.open and self.open[key] == identity:
            notes.append("sent again: its answer is not here yet")
            return NONE, None
        keep_newest(self.open, key, identity, OPEN)
        return role, key

    def _answer(self, key: Hashable, refused: bool) -> tuple[str, Role, Hashable]:
        """Return outcome, role and key of an answer."""
        self.open.pop(key, None)
        return "refused" if refused else "answered", RESPONSE, key


def _has_nonce(hello: Frame) -> bool:
    """Return whether a ReplicaHello asks for authentication: without a nonce it is the complete handshake."""
    nonce = hello.start + r.COMMON
    return any(hello.data[nonce : nonce + 32])


def _stream(fields: dict[str, Any]) -> str | None:
    """The stream and topic that a frame is about: named by its command, or those of its group."""
    label = str(fields.get("operation_label")).removesuffix("_resolved")
    found = topic_of(label, fields.get("create_topic") or fields.get("create_partitions") or fields)
    group = fields.get("group")
    if found is None and isinstance(group, int) and group != r.METADATA:
        found = f"{group >> 32}/{group >> 20 & 4095}"
    return found
