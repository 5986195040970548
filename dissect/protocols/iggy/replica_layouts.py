"""Apache Iggy between the replicas of a cluster (viewstamped replication): headers of 256 bytes in both directions, as field tables.

Follows the source of server 0.9.0-edge.5 (commit cc269ef70, 2026-08-21), whose names these are; those of operations 64 to 68 are this
project's. No real traffic was seen. A body of Prepare has the fields of the client's command; see `commands`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from ...layout import (
    Array,
    Choice,
    Entry,
    Field,
    Fixed,
    FixedText,
    Group,
    Layout,
    Optional,
    Repeat,
    Rest,
    Sized,
    boolean,
    u8,
    u32le,
    u64le,
    u128le,
)
from ...layout.types import minimum
from ...layout.versions import at
from . import bodies as b
from .bodies import Body
from .commands import BY_CODE, NON_REPLICATED, OPERATION_LABELS, OPERATIONS, STREAM_AND_TOPIC, forms
from .frames import HEADER, exists
from .layout_versions import RANK

LAYOUT = "replica"
"""The name of this layout beside those of clients."""

BODIES = "V4"
"""The client's layout whose commands Prepares carry."""

COMMON = 128
"""The bytes that all headers have in common."""

REQUEST, PREPARE, PREPARE_OK, COMMIT = 5, 6, 7, 9
START_VIEW_CHANGE, DO_VIEW_CHANGE, START_VIEW, REQUEST_START_VIEW = 10, 11, 12, 17
HELLO, CHALLENGE, FINISH = 14, 15, 16
REQUEST_PREPARES, REPAIR_PREPARE, REPAIR_DONE, RANGE_EVICTED = 18, 19, 20, 21
REQUEST_TRANSFER, TRANSFER_TARGET, REQUEST_CHUNK, CHUNK = 22, 23, 24, 25
FORWARD_REGISTER, REGISTER_RESULT, FORWARD_LOGOUT, LOGOUT_RESULT = 26, 27, 28, 29

NAMES: Mapping[int, str] = {
    1: "Ping",
    2: "Pong",
    3: "PingClient",
    4: "PongClient",
    REQUEST: "Request",
    PREPARE: "Prepare",
    PREPARE_OK: "PrepareOk",
    COMMIT: "Commit",
    START_VIEW_CHANGE: "StartViewChange",
    DO_VIEW_CHANGE: "DoViewChange",
    START_VIEW: "StartView",
    HELLO: "ReplicaHello",
    CHALLENGE: "ReplicaChallenge",
    FINISH: "ReplicaFinish",
    REQUEST_START_VIEW: "RequestStartView",
    REQUEST_PREPARES: "RequestPrepares",
    REPAIR_PREPARE: "RepairPrepare",
    REPAIR_DONE: "RepairDone",
    RANGE_EVICTED: "RangeEvicted",
    REQUEST_TRANSFER: "RequestStateTransfer",
    TRANSFER_TARGET: "StateTransferTarget",
    REQUEST_CHUNK: "RequestStateChunk",
    CHUNK: "StateChunk",
    FORWARD_REGISTER: "ForwardRegister",
    REGISTER_RESULT: "ForwardRegisterResult",
    FORWARD_LOGOUT: "ForwardLogout",
    LOGOUT_RESULT: "ForwardLogoutResult",
}

SENT: Mapping[int, str] = {command: name for command, name in NAMES.items() if command >= REQUEST}
"""The commands of replicas: 1 to 4 have names only."""

RESPONSES = frozenset(
    (PREPARE_OK, CHALLENGE, REPAIR_PREPARE, REPAIR_DONE, RANGE_EVICTED, TRANSFER_TARGET, CHUNK, REGISTER_RESULT, LOGOUT_RESULT)
)
ONE_WAY = frozenset((1, 2, 3, 4, REQUEST, COMMIT, FINISH))

CARRIERS = (PREPARE, REPAIR_PREPARE)
"""Frames that carry a command, whose seal leaves the view out and whose `replica` is the primary that made them."""

UNSEALED = frozenset((1, 2, 3, 4, REQUEST, HELLO, CHALLENGE, FINISH))
"""Frames without a seal."""

SIZED = frozenset((REQUEST, *CARRIERS, DO_VIEW_CHANGE, START_VIEW, TRANSFER_TARGET, CHUNK))
"""Frames that may have a body."""

METADATA = 1 << 63
"""The group of the metadata."""

HELLO_STATUSES = {
    0: "ok",
    1: "unknown command",
    2: "other cluster",
    3: "wrong direction",
    4: "authentication needed",
    5: "MAC wrong",
}
REGISTER_OUTCOMES = {
    0: "ok",
    1: "not primary",
    2: "not caught up",
    3: "pipeline full",
    4: "in progress",
    5: "canceled",
    6: "client id of another user",
}
LOGOUT_OUTCOMES = {0: "ok", 1: "not primary", 2: "pipeline full", 3: "in progress", 4: "canceled"}
ARTIFACTS = {0: "metadata snapshot", 1: "client table", 2: "segment log", 3: "consumer offsets"}

INTERNAL: Mapping[int, str] = {
    64: "create_topic_resolved",
    65: "create_partitions_resolved",
    67: "group_partition",
    68: "delete_segments_resolved",
}
LABELS: Mapping[int, str] = {**OPERATION_LABELS, 0: "none", **INTERNAL}
CREATE_TOPIC, CREATE_PARTITIONS, GROUP_PARTITION, DELETE_SEGMENTS, SEND = 64, 65, 67, 68, 160


class _Groups(dict[int, str]):
    """Labels of groups: the metadata, or stream, topic and partition."""

    def get(self, key: int, default: Any = None) -> Any:
        return "metadata" if key == METADATA else f"{key >> 32}/{key >> 20 & 4095}/{key & 0xFFFFF}"

    def __getitem__(self, key: int) -> str:
        return str(self.get(key))


GROUPS: Mapping[int, str] = _Groups({METADATA: "metadata"})


# Headers


_COMMON: Body = (
    Field("checksum", u128le, "the seal: XXH3-64 of what follows in the header; of Prepares of all but it and the view; 0: none"),
    Field("checksum_body", u128le, "XXH3-64 of the body, in the low half; 0: none"),
    Field("cluster", u128le, "the beginning of BLAKE3 of the cluster's name"),
    Field("size", u32le, "of the complete frame", default=lambda count: count + 52),
    Field("view", u32le),
    Field("release", u32le, "0"),
    Field("command", u8, labels=NAMES),
    Field("replica", u8, "the sender; of Prepare and RepairPrepare the primary that made it"),
    Field("reserved", Fixed(66), "zero"),
)
_GROUP = Field("group", u64le, "2^63: the metadata; else stream, topic and partition in 20, 12 and 20 bits", labels=GROUPS)
_NONCE = Field("nonce", u128le)
_OP, _COMMIT = Field("op", u64le), Field("commit", u64le)
_OPERATION = Field("operation", u8, labels=LABELS)
_CLIENT = Field("client", u128le)
_ARTIFACT = Field("artifact", u32le)
_USER = Field("session_user_id", u32le)
_OUTCOME_NOTE = "0: accepted"


class Table(NamedTuple):
    """The fields of a header, and the byte ranges in it that are zero."""

    head: Body
    zeros: tuple[tuple[int, int], ...]


def _header(*placed: tuple[int, Field]) -> Table:
    """A header of these fields behind the common part, each at its offset; what lies between them is zero."""
    fields: list[Entry] = [*_COMMON]
    zeros = [(62, COMMON)]
    at, before = COMMON, ""
    for offset, field in (*placed, (HEADER, None)):
        if offset > at:
            name = "reserved_end" if field is None else "operation_padding" if before == "operation" else "reserved_middle"
            fields.append(Field(name, Fixed(offset - at), "zero"))
            zeros.append((at, offset))
        if field is not None:
            fields.append(field)
            at, before = offset + minimum(field), field.name
    return Table(tuple(fields), tuple(zeros))


_CARRIER = _header(
    (128, _CLIENT),
    (144, Field("parent", u128le, "checksum of the Prepare before it in its group")),
    (160, Field("request_checksum", u128le)),
    (176, _OP),
    (184, Field("commit", u64le, "what was committed when it was made")),
    (192, Field("timestamp", u64le, "microseconds")),
    (200, Field("request", u64le)),
    (208, _OPERATION),
    (216, _GROUP),
    (224, _USER),
)
_REPAIR_END = _header((128, _NONCE), (144, Field("op", u64le, "last served, or the oldest still there")), (152, _GROUP))
_TRANSFER = _header((128, _NONCE), (144, _GROUP))
_REPLICA_INCARNATION = Field("replica_incarnation", u128le, "of the replica that asks")

TABLES: Mapping[int, Table] = {
    **dict.fromkeys((1, 2, 3, 4), _header()),
    REQUEST: _header(
        (128, _CLIENT),
        (144, Field("request_checksum", u128le)),
        (160, Field("timestamp", u64le)),
        (168, Field("request", u64le)),
        (176, _OPERATION),
        (184, Field("session", u64le)),
        (192, _USER),
        (196, Field("code", u32le, "of operation 2")),
        (248, _GROUP),
    ),
    **dict.fromkeys(CARRIERS, _CARRIER),
    PREPARE_OK: _header(
        (128, Field("parent", u128le)),
        (144, Field("prepare_checksum", u128le, "checksum of the Prepare that it answers")),
        (160, _OP),
        (168, _COMMIT),
        (176, Field("timestamp", u64le, "microseconds")),
        (184, Field("request", u64le)),
        (192, _OPERATION),
        (200, _GROUP),
    ),
    COMMIT: _header(
        (128, Field("commit_checksum", u128le, "0")),
        (144, Field("timestamp_monotonic", u64le)),
        (152, _COMMIT),
        (160, Field("checkpoint_op", u64le, "0")),
        (168, _GROUP),
    ),
    START_VIEW_CHANGE: _header((128, _GROUP)),
    DO_VIEW_CHANGE: _header(
        (128, _OP),
        (136, _COMMIT),
        (144, _GROUP),
        (152, Field("log_view", u32le)),
        (224, Field("nack_bitset", u128le)),
        (240, Field("present_bitset", u128le)),
    ),
    START_VIEW: _header((128, _OP), (136, _COMMIT), (144, _GROUP), (240, _REPLICA_INCARNATION)),
    HELLO: _header((128, Field("hello_nonce", Fixed(32), "zero without authentication"))),
    CHALLENGE: _header(
        (128, Field("challenge_nonce", Fixed(32))),
        (160, Field("mac", Fixed(32), "keyed BLAKE3")),
        (192, Field("status", u8, labels=HELLO_STATUSES)),
    ),
    FINISH: _header((160, Field("mac", Fixed(32), "keyed BLAKE3"))),
    REQUEST_START_VIEW: _header((128, _GROUP), (240, _REPLICA_INCARNATION)),
    REQUEST_PREPARES: _header((128, _NONCE), (144, Field("from_op", u64le)), (152, Field("to_op", u64le)), (160, _GROUP)),
    **dict.fromkeys((REPAIR_DONE, RANGE_EVICTED), _REPAIR_END),
    REQUEST_TRANSFER: _TRANSFER,
    TRANSFER_TARGET: _header(
        (128, _NONCE),
        (144, Field("commit_op", u64le)),
        (152, _GROUP),
        (160, Field("available", boolean)),
        (161, Field("unavailable_transient", boolean)),
        (168, Field("commit_max", u64le)),
    ),
    REQUEST_CHUNK: _header(
        (128, _NONCE), (144, Field("offset", u64le)), (152, _GROUP), (160, Field("chunk_length", u32le)), (164, _ARTIFACT)
    ),
    CHUNK: _header((128, _NONCE), (144, Field("offset", u64le)), (152, _GROUP), (160, _ARTIFACT)),
    FORWARD_REGISTER: _header((128, _CLIENT), (144, _NONCE), (160, _USER)),
    REGISTER_RESULT: _header(
        (128, _NONCE),
        (144, _CLIENT),
        (160, Field("epoch", u64le)),
        (168, Field("watermark", u64le)),
        (255, Field("outcome", u8, _OUTCOME_NOTE, labels=REGISTER_OUTCOMES)),
    ),
    FORWARD_LOGOUT: _header((128, _CLIENT), (144, _NONCE), (160, Field("session", u64le)), (168, Field("request", u64le))),
    LOGOUT_RESULT: _header(
        (128, _NONCE), (144, _CLIENT), (160, _COMMIT), (255, Field("outcome", u8, _OUTCOME_NOTE, labels=LOGOUT_OUTCOMES))
    ),
}
"""The header of each command."""


# Bodies


def _body_of(code: int) -> Body:
    """The fields of the client's request."""
    return forms(BY_CODE[code].request, BODIES)[1][0]


def _as_of(*fields: Entry) -> Body:
    return at(fields, RANK[BODIES], set())


_ASSIGNED = Field("assigned", Array((Field("partition_id", u32le), Field("group", u64le, labels=GROUPS)), u32le))
_HIDDEN = Field("body", Rest(), "hidden: it may hold a password or a token", secret=True)
_PREPARED: Body = (Field("prepares", Repeat(Group(*_CARRIER.head)), "headers of Prepares; operation 0 stands for one that is not there"),)
_DATA = Field("data", Rest(), "hidden: a snapshot holds hashes of passwords", secret=True)
_ARTIFACTS: Body = (
    Field(
        "artifacts",
        Array(
            (
                Field("kind", u8, labels=ARTIFACTS, closed=True),
                Field("frontier", u64le),
                Field("artifact_length", u64le),
                Field("artifact_checksum", u64le, "XXH3-64"),
            ),
            "artifacts_count",
        ),
    ),
    Field("manifest_checksum", u64le, "XXH3-64 of all before it in the body"),
)
_MANIFEST: Body = (
    Optional(
        Field("magic", FixedText(4), "ISM1"),
        Field("artifacts_count", u32le),
        Field("entry_length", u8),
        Choice("entry_length", {25: _ARTIFACTS}, (_DATA,)),
    ),
)

PREPARED: Mapping[int, Body] = {
    3: (),
    CREATE_TOPIC: (
        Field("create_topic", Sized(u32le, _body_of(302))),
        *_as_of(b.SIZED_OPTIONS),
        _ASSIGNED,
    ),
    CREATE_PARTITIONS: (Field("create_partitions", Sized(u32le, _body_of(402))), _ASSIGNED),
    GROUP_PARTITION: (
        *STREAM_AND_TOPIC,
        Field("consumer_group", u64le),
        Field("member", u128le),
        Field("partition_id", u32le),
    ),
    DELETE_SEGMENTS: (*STREAM_AND_TOPIC, Field("partition_id", u32le), Field("up_to_offset", u64le)),
    SEND: _as_of(Field("batches", Repeat(b.BATCH_V4))),
    **{operation: _body_of(code) for operation, code in OPERATIONS.items() if operation not in (3, SEND) and exists(code, BODIES)},
}
"""The body of a Prepare, by its operation."""

BODY: Mapping[int, Body] = {
    DO_VIEW_CHANGE: _PREPARED,
    START_VIEW: _PREPARED,
    TRANSFER_TARGET: _MANIFEST,
    CHUNK: (_DATA,),
}
"""The body of frames of the other commands; commands that are not here have none."""

Kind = Literal["request", "response", "one_way"]


def kind_of(command: int) -> Kind:
    """The kind of a command; of a view change it depends on the conversation."""
    return "response" if command in RESPONSES else "one_way" if command in ONE_WAY or command not in NAMES else "request"


def layout_of(command: int, operation: int = 0, code: int = 0, hidden: bool = False) -> Layout:
    """The table of a frame; `operation` and `code` count for Prepares and requests, `hidden`: its body cannot be read."""
    if command == REQUEST:
        code = code if operation == NON_REPLICATED else OPERATIONS.get(operation, 0)
        # A frame may have any code: those without a body share one table
        operation, code = 0, code if exists(code, BODIES) else 0
    return _layout_of(command, operation, code, hidden)


@cache
def _layout_of(command: int, operation: int, code: int, hidden: bool) -> Layout:
    table = TABLES.get(command)
    body: Body | None = (_HIDDEN,)
    if table is None:
        return Layout(f"unknown {command}", *_COMMON, _HIDDEN, kind="one_way")
    if not hidden:
        if command in CARRIERS:
            body = PREPARED.get(operation)
        elif command == REQUEST:
            body = _body_of(code) if code else None
        else:
            body = BODY.get(command, ())
    layout = Layout(NAMES[command], *table.head, *((_HIDDEN,) if body is None else body), kind=kind_of(command), key=command)
    # What no field accounts for may be of another command, with a password
    layout.secret = layout.secret or command in (REQUEST, *CARRIERS)
    return layout


def documented() -> tuple[Layout, ...]:
    """The tables of all commands, and of the bodies that no command of a client has."""
    found = [
        Layout(
            NAMES[command],
            *table.head,
            *BODY.get(command, ()),
            kind=kind_of(command),
            key=command,
            note="between replicas",
            answers=command in (START_VIEW_CHANGE, START_VIEW),
        )
        for command, table in TABLES.items()
        if command in SENT
    ]
    bodies = [
        Layout(LABELS[operation], *PREPARED[operation], note=f"the body of a Prepare of operation {operation}")
        for operation in (*INTERNAL, SEND)
    ]
    return (*found, *bodies)
