"""The commands of Apache Iggy: codes, names and, for each layout, the field tables of request and response."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...layout import (
    Array,
    Blob,
    Choice,
    Entry,
    Field,
    Fixed,
    Optional,
    Repeat,
    Rest,
    Since,
    boolean,
    f32le,
    u8,
    u16le,
    u32le,
    u64le,
    u128le,
)
from ...layout.versions import at
from . import bodies as b
from .bodies import Body, since, until
from .layout_versions import LAYOUTS, RANK

Forms = tuple[Body, ...]
"""The forms a body has within the releases of one layout, the likeliest first."""

Rows = tuple[Body | Since, ...]
"""The forms of a body in all layouts; some hold from a layout on, or up to one."""


class Command:
    """A code, the name and the bodies of request and response from a layout on."""

    def __init__(self, code: int, name: str, request: Rows, response: Rows = ((),), first: str = "L0") -> None:
        self.code = code
        self.name = name
        self.rows = request, response
        self.first = first

    @cached_property
    def request(self) -> Mapping[str, Forms]:
        """By layout, the forms of a request from there on, up to the next key."""
        return _by_layout(self.rows[0], self.first)

    @cached_property
    def response(self) -> Mapping[str, Forms]:
        return _by_layout(self.rows[1], self.first)


def _by_layout(rows: Rows, first: str) -> Mapping[str, Forms]:
    found: dict[str, Forms] = {}
    rank, marks = RANK[first], {len(LAYOUTS)}
    while rank < len(LAYOUTS):
        marks |= {mark for row in rows if isinstance(row, Since) for mark in (row.first, row.until)}
        present = [row for row in rows if not isinstance(row, Since) or row.first <= rank < row.until]
        found[LAYOUTS[rank]] = tuple(at(row.fields if isinstance(row, Since) else row, rank, marks) for row in present)
        rank = min(mark for mark in marks if mark > rank)
    return found


def forms(by_layout: Mapping[str, Forms], layout: str) -> tuple[str, Forms]:
    """The first layout with the same forms as `layout`, and these; no forms where there is no such command."""
    found: tuple[str, Forms] = ("", ())
    rank = RANK[layout]
    for first, body in by_layout.items():
        if RANK[first] <= rank:
            found = (first, body)
    return found


def one(*fields: Entry) -> Rows:
    """A body of a single form."""
    return (fields,)


EMPTY: Forms = ((),)


def maybe(*fields: Entry) -> Rows:
    """A body that is there or not: "not found" is an empty answer, as is that of releases which did not answer with the object yet."""
    return (fields, ())


def found(*rows: Body | Since) -> Rows:
    """Replies to a request for one object: from L6 on (0.4.10) it may be empty."""
    return (*rows, since("L6"))


def created(*fields: Entry, first: str = "L6", certain: str = "L7") -> Rows:
    """Replies to creating an object: the object from some release of layout `first` on, surely from `certain` on."""
    return (since(first, *fields), until(certain))


NOT_SEEN: Forms = ((b.UNSEEN,),)
"""A body that is known to exist: nothing else is known of it."""


def _before_v5(*fields: Entry) -> Rows:
    return (until("V5", *fields),)


def _in_v4(*bodies: Body) -> Rows:
    """Requests of commands that only V4 has."""
    return tuple(since("V4", *body, until="V5") for body in bodies)


STREAM_AND_TOPIC: Body = (b.STREAM_ID, b.TOPIC_ID)
GROUP_U32 = Field("group_id", u32le)

_CONSUMED: Body = (Field("partition_id", u32le), Field("current_offset", u64le), Field("stored_offset", u64le))
_CONSUMER: Body = (b.CONSUMER, *STREAM_AND_TOPIC, *b.PARTITION)
_LOGGED_IN: Body = (Field("user_id", u32le),)
_LOGIN: Body = (b.USERNAME, b.PASSWORD, since("L6", Field("version", b.S32, "of the client's library"), Field("context", b.S32)))
_OFFSET = Field("offset", u64le)
_ACK = Field("ack", u8, labels=b.ACKS, closed=True)
_GET_CLIENT: Rows = ((*b.CLIENT, *b.MEMBERSHIPS), until("L1", *b.ANONYMOUS, *b.MEMBERSHIPS))
_GET_USER: Body = (*b.USER, *b.REPLY_PERMISSIONS)
_GET_STREAM: Body = (*b.STREAM, Field("topics", Array(b.TOPIC, "topics_count")))
_GET_TOPIC: Body = (*b.TOPIC, b.PARTITIONS)
_GET_GROUP: Body = (*b.GROUP, b.MEMBERS)
_CREATE_USER: Body = (b.USERNAME, b.PASSWORD, Field("user_status", u8, labels=b.USER_STATUSES, closed=True), *b.MAY_HAVE_PERMISSIONS)
_UPDATE_USER: Body = (
    b.USER_ID,
    Field("has_username", u8),
    Choice("has_username", {1: (Field("username", b.S8),)}),
    Field("has_status", u8),
    Choice("has_status", {1: (Field("user_status", u8, labels=b.USER_STATUSES, closed=True),)}),
)
_OPTIONS = since("V3", *b.OPTIONS)
_REGISTERED: Body = (
    Field("user_id", u32le),
    Field("session", u64le),
    Field("protocol_version", u32le, labels=b.VERSIONS),
    Field("server_version", b.S8),
)
_REGISTER: Body = (Field("protocol_version", u32le, labels=b.VERSIONS), Field("sdk_name", b.S8), Field("sdk_version", b.S8))
_REGISTER_CONTEXT = Field("context", b.S32)
_BIND_SECRET = Field("bind_secret", Fixed(32), "from version 0.12.0", secret=True)
_GROUP: Body = (*STREAM_AND_TOPIC, until("L2", GROUP_U32), since("L2", b.GROUP_ID))
_PARTITIONS: Body = (*STREAM_AND_TOPIC, b.PARTITIONS_COUNT)
_SENT = Field(
    "written",
    Array((Field("stream_id", u32le), Field("topic_id", u32le), Field("partition_id", u32le), Field("base_offset", u64le)), u32le),
)


COMMANDS: tuple[Command, ...] = (
    Command(1, "ping", EMPTY),
    Command(
        10,
        "get_stats",
        EMPTY,
        (
            (
                *b.STATS_HEAD,
                since("L4", Field("total_cpu_usage", f32le)),
                *b.STATS,
                since("L6", Optional(*b.STATS_VERSION, Optional(b.STATS_CACHE)), until="L7"),
                since("L7", *b.STATS_VERSION, b.STATS_CACHE),
                since("L9", Optional(*b.STATS_THREADS), until="V1"),
                since("V1", *b.STATS_THREADS),
                b.STATS_FILES,
            ),
            since("L4", *b.STATS_HEAD, *b.STATS, until="L5"),
        ),
    ),
    Command(
        11,
        "get_snapshot",
        one(
            Field("compression", u8, labels=b.SNAPSHOT_COMPRESSIONS, closed=True),
            Field("types", Array(u8, u8), labels=b.SNAPSHOT_TYPES, closed=True),
        ),
        one(Field("snapshot", Rest(), "a zip file")),
        "L6",
    ),
    Command(12, "get_cluster_metadata", EMPTY, one(*b.CLUSTER), "L8"),
    Command(
        13,
        "describe_options",
        one(Field("scope", u8, labels=b.OPTION_SCOPES, closed=True)),
        one(
            Field(
                "options",
                Array(
                    (
                        Field("key", b.S8),
                        Field("kind", u8, labels=b.HEADER_KINDS, closed=True),
                        since("V5", Field("flags", u8, "1 updatable, 2 resettable, 4 secret, 8 read only, 16 critical")),
                        Field("default", Blob(u32le)),
                        Field("description", b.S32),
                    ),
                    u32le,
                ),
            )
        ),
        "V3",
    ),
    Command(
        14,
        "consumer_session.attach",
        _in_v4((Field("attached_client", u128le), Field("unknown_1", u64le), Field("unknown_2", u64le)), *NOT_SEEN),
        NOT_SEEN,
        "V4",
    ),
    Command(
        15,
        "session.bind",
        one(*_REGISTER, Field("bound_client", u128le), Field("unknown_1", u64le), Field("unknown_2", u64le), _BIND_SECRET),
        one(Field(b.UNSEEN.name, Rest(), b.UNSEEN.note, secret=True)),
        "V5",
    ),
    Command(
        16,
        "resource.update",
        one(
            Field("resource", u8, labels=b.OPTION_SCOPES, closed=True),
            Choice("resource", {1: STREAM_AND_TOPIC, 2: (b.STREAM_ID,), 3: (b.USER_ID,)}),
            Field("reset", Array(b.S8, u8), "options that get their default"),
            *b.OPTIONS,
        ),
        EMPTY,
        "V5",
    ),
    Command(
        17,
        "metadata.changes",
        one(
            Field("start", u8, labels={0: "earliest", 1: "latest", 2: "after", 3: "current"}, closed=True),
            Field("log_id", u128le, "of the cursor, which follows"),
            Field("cursor_op", u64le),
            Field("cursor_checksum", u128le),
            Field("ordinal", u32le),
            Field("has_since", u8),
            Choice("has_since", {1: (Field("since", u64le, "microseconds"),)}),
            Field("has_until", u8),
            Choice("has_until", {1: (Field("until", u64le, "microseconds"),)}),
            Field("limit", u32le),
            Field("groups", Array(u8, u8), labels=b.CHANGE_GROUPS, closed=True),
            Field("page_token", Blob(u16le)),
        ),
        NOT_SEEN,
        "V5",
    ),
    Command(20, "get_me", EMPTY, _GET_CLIENT),
    Command(21, "get_client", one(Field("client_id", u32le)), found(*_GET_CLIENT)),
    Command(22, "get_clients", EMPTY, ((Field("clients", Repeat(b.CLIENT)),), until("L1", Field("clients", Repeat(b.ANONYMOUS))))),
    Command(31, "get_user", one(b.USER_ID), found(_GET_USER)),
    Command(32, "get_users", EMPTY, one(Field("users", Repeat(b.USER)))),
    Command(33, "create_user", one(*_CREATE_USER, _OPTIONS), created(*_GET_USER)),
    Command(34, "delete_user", one(b.USER_ID)),
    Command(35, "update_user", _before_v5(*_UPDATE_USER, _OPTIONS)),
    Command(36, "update_permissions", one(b.USER_ID, *b.MAY_HAVE_PERMISSIONS)),
    Command(
        37,
        "change_password",
        one(b.USER_ID, Field("current_password", b.S8, secret=True), Field("new_password", b.S8, secret=True)),
    ),
    Command(38, "login_user", one(*_LOGIN), (_LOGGED_IN, until("L1"))),
    Command(39, "logout_user", EMPTY),
    Command(
        40,
        "login_register",
        (
            (*_REGISTER, b.USERNAME, b.PASSWORD, _REGISTER_CONTEXT),
            (*_REGISTER, _BIND_SECRET, b.USERNAME, b.PASSWORD, _REGISTER_CONTEXT),
        ),
        maybe(*_REGISTERED),
        "V1",
    ),
    Command(
        41,
        "get_personal_access_tokens",
        EMPTY,
        one(Field("tokens", Repeat((b.NAME, Field("expiry_at", u64le, "microseconds"))))),
        "L3",
    ),
    Command(
        42,
        "create_personal_access_token",
        one(b.NAME, until("L6", Field("expiry", u32le, "seconds")), since("L6", Field("expiry", u64le, "microseconds"))),
        one(b.TOKEN),
        "L3",
    ),
    Command(43, "delete_personal_access_token", one(b.NAME), EMPTY, "L3"),
    Command(44, "login_with_personal_access_token", one(b.TOKEN), one(*_LOGGED_IN), "L3"),
    Command(
        45,
        "login_register_with_pat",
        ((*_REGISTER, b.TOKEN, _REGISTER_CONTEXT), (*_REGISTER, _BIND_SECRET, b.TOKEN, _REGISTER_CONTEXT)),
        maybe(*_REGISTERED),
        "V1",
    ),
    Command(
        100, "poll_messages", (b.POLL, since("L9", *b.POLL, b.POLL_WAIT, until="V1"), since("V4", *b.POLL, b.POLL_WAIT)), one(*b.POLLED)
    ),
    Command(101, "send_messages", one(*b.SEND), (since("V1", _SENT), ())),
    Command(102, "flush_unsaved_buffer", _before_v5(*STREAM_AND_TOPIC, b.PARTITION_ID, Field("fsync", boolean)), EMPTY, "L6"),
    Command(
        103,
        "message.poll_routing",
        _in_v4(*NOT_SEEN),
        ((*(Field(f"unknown_{n}", u64le) for n in range(1, 5)), b.UNSEEN), *NOT_SEEN),
        "V4",
    ),
    Command(104, "message.poll_primary", _in_v4(*NOT_SEEN), NOT_SEEN, "V4"),
    Command(
        105,
        "partition.route",
        one(*STREAM_AND_TOPIC, b.PARTITION_ID),
        one(
            Field("incarnation", u64le),
            Field("metadata_op", u64le),
            Field("unknown_1", u32le),
            Field("unknown_2", u32le),
            Field("node_replica", u8, "of the node to ask"),
        ),
        "V5",
    ),
    Command(
        106,
        "message.poll_deferred",
        (
            (
                *b.POLL,
                Field("wait", u64le),
                Field("minimum_count", u32le),
                Field("byte_limit", u32le),
                Field("request_timeout", u64le),
            ),
            *NOT_SEEN,
        ),
        NOT_SEEN,
        "V5",
    ),
    Command(
        107,
        "message.wait",
        (
            (
                b.CONSUMER,
                *STREAM_AND_TOPIC,
                Field("unknown_1", u64le),
                Field("unknown_2", u64le),
                Field("waits", Array((Field("partition_id", u32le), Field("unknown_1", u8), Field("unknown_2", u64le)), u32le)),
            ),
            *NOT_SEEN,
        ),
        ((Field("partitions", Array(u32le, u32le)),), *NOT_SEEN),
        "V5",
    ),
    Command(108, "message.cancel_deferred", NOT_SEEN, NOT_SEEN, "V5"),
    Command(120, "get_consumer_offset", one(*_CONSUMER), found(_CONSUMED)),
    Command(121, "store_consumer_offset", one(*_CONSUMER, _OFFSET, since("V4", _ACK))),
    Command(122, "delete_consumer_offset", one(*_CONSUMER, since("V4", _ACK)), EMPTY, "L6"),
    Command(123, "store_consumer_offset_2", (until("V4", *_CONSUMER, _OFFSET, _ACK),), EMPTY, "V1"),
    Command(124, "delete_consumer_offset_2", (until("V4", *_CONSUMER, _ACK),), EMPTY, "V1"),
    Command(200, "get_stream", one(b.STREAM_ID), found(_GET_STREAM)),
    Command(201, "get_streams", EMPTY, one(Field("streams", Repeat(b.STREAM)))),
    Command(
        202,
        "create_stream",
        one(until("L8", Field("stream_id", u32le, "0 from L4 on: choose one")), b.NAME, _OPTIONS),
        created(*_GET_STREAM),
    ),
    Command(203, "delete_stream", one(b.STREAM_ID)),
    Command(204, "update_stream", _before_v5(b.STREAM_ID, b.NAME, _OPTIONS)),
    Command(205, "purge_stream", _before_v5(b.STREAM_ID), EMPTY, "L3"),
    Command(300, "get_topic", one(*STREAM_AND_TOPIC), found(_GET_TOPIC)),
    Command(
        301,
        "get_topics",
        one(b.STREAM_ID),
        one(until("V3", Field("topics", Repeat(b.TOPIC))), since("V3", Field("topics", Array(b.TOPIC, u32le)))),
    ),
    Command(
        302,
        "create_topic",
        one(
            b.STREAM_ID,
            until("L8", Field("topic_id", u32le, "0 from L4 on: choose one")),
            b.PARTITIONS_COUNT,
            b.SETTINGS,
            b.NAME,
            _OPTIONS,
        ),
        created(*_GET_TOPIC),
    ),
    Command(303, "delete_topic", one(*STREAM_AND_TOPIC)),
    Command(304, "update_topic", _before_v5(*STREAM_AND_TOPIC, b.SETTINGS, b.NAME, _OPTIONS)),
    Command(305, "purge_topic", _before_v5(*STREAM_AND_TOPIC), EMPTY, "L3"),
    Command(402, "create_partitions", one(*_PARTITIONS)),
    Command(403, "delete_partitions", one(*_PARTITIONS)),
    Command(503, "delete_segments", one(*STREAM_AND_TOPIC, b.PARTITION_ID, Field("segments_count", u32le)), EMPTY, "L6"),
    Command(600, "get_consumer_group", one(*_GROUP), found(_GET_GROUP)),
    Command(601, "get_consumer_groups", one(*STREAM_AND_TOPIC), one(Field("groups", Repeat(b.GROUP)))),
    Command(
        602,
        "create_consumer_group",
        one(*STREAM_AND_TOPIC, until("L8", GROUP_U32), since("L1", b.NAME)),
        created(*_GET_GROUP, first="L5", certain="L6"),
    ),
    Command(603, "delete_consumer_group", one(*_GROUP)),
    Command(604, "join_consumer_group", one(*_GROUP)),
    Command(605, "leave_consumer_group", one(*_GROUP)),
    Command(
        606,
        "sync_consumer_group",
        one(*STREAM_AND_TOPIC, b.GROUP_ID),
        (
            until("V5", Field("generation", u64le), Field("partitions", Array(u32le, u32le))),
            since("V5", Field("generation", u64le), b.UNSEEN),
            (),
        ),
        "V1",
    ),
)

BY_CODE: Mapping[int, Command] = {one.code: one for one in COMMANDS}

OLD_LOGIN = Command(32, "login_user", one(b.USERNAME, b.PASSWORD), maybe(*_LOGGED_IN))
OLD_LOGOUT = Command(33, "logout_user", EMPTY)
"""In 0.0.4 to 0.0.7 a request of code 32 with a payload, and one of code 33 without."""

OFFSET_ROUTING = Command(123, "consumer_offset.routing", _in_v4(*NOT_SEEN), NOT_SEEN, "V4")
"""In V4 a request of code 123."""

OPERATIONS: Mapping[int, int] = {
    3: 39,
    128: 202,
    129: 204,
    130: 203,
    131: 205,
    132: 302,
    133: 304,
    134: 303,
    135: 305,
    136: 402,
    137: 403,
    138: 503,
    139: 602,
    140: 603,
    141: 33,
    142: 35,
    143: 34,
    144: 37,
    145: 36,
    146: 42,
    147: 43,
    148: 604,
    149: 605,
    150: 16,
    160: 101,
    161: 121,
    162: 122,
    164: 123,
    165: 124,
}
"""The operations of the 256-byte framing that are a command."""

REGISTER, NON_REPLICATED = 1, 2

OPERATION_LABELS: Mapping[int, str] = {
    REGISTER: "register",
    NON_REPLICATED: "non_replicated",
    **dict.fromkeys(range(64, 69), "internal"),
    **{operation: "logout" if operation == 3 else BY_CODE[code].name for operation, code in OPERATIONS.items()},
}

ADVANCING = range(128, 151)
"""Operations with each of which a client counts its requests on: up to V4 all others repeat the number."""

LISTED = frozenset((*range(64, 138), *range(139, 151), 161, 162, 164, 165))
"""Operations, as the reply names them, whose answer begins with a list of results; so does a register answer that is not empty."""
