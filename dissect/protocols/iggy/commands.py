"""The commands of Apache Iggy: codes, names and, for each layout, the field tables of request and response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dissect.layout import Array, Blob, Choice, Entry, Field, Fixed, Optional, Repeat, Rest, boolean, u8, u32le, u64le
from dissect.protocols.iggy import bodies as b
from dissect.protocols.iggy.bodies import Body
from dissect.protocols.iggy.features import RANK

Forms = tuple[Body, ...]
"""The forms a body has within the releases of one layout, the likeliest first."""

Since = Mapping[str, Forms]
"""From this layout on, up to the next key, the body has these forms; no form at all: no such command (any more)."""


class Command(NamedTuple):
    code: int
    name: str
    request: Since
    response: Since


def forms(since: Since, layout: str) -> tuple[str, Forms]:
    """The first layout with the same forms as `layout`, and these; no forms where there is no such command."""
    found: tuple[str, Forms] = ("", ())
    rank = RANK[layout]
    for first, body in since.items():
        if RANK[first] <= rank:
            found = (first, body)
    return found


def one(*fields: Entry) -> Forms:
    """A body of a single form."""
    return (fields,)


EMPTY: Forms = ((),)


def maybe(*fields: Entry) -> Forms:
    """A body that is there or not: "not found" is an empty answer, as is that of releases which did not answer with the object yet."""
    return (fields, ())


def command(code: int, name: str, request: Since | Forms, response: Since | Forms = EMPTY, since: str = "L0") -> Command:
    asked = request if isinstance(request, Mapping) else {since: request}
    answered = response if isinstance(response, Mapping) else {next(iter(asked)): response}
    return Command(code, name, asked, answered)


STREAM_AND_TOPIC: Body = (b.STREAM_ID, b.TOPIC_ID)
GROUP_U32 = Field("group_id", u32le)

_STATS_CACHED: Body = (*b.STATS_L4, *b.STATS_VERSION, b.STATS_CACHE)
_CONSUMED: Body = (Field("partition_id", u32le), Field("current_offset", u64le), Field("stored_offset", u64le))
_LOGGED_IN: Body = (Field("user_id", u32le),)
_LOGIN: Body = (b.USERNAME, b.PASSWORD)
_LOGIN_L6: Body = (*_LOGIN, Field("version", b.S32, "of the client's library"), Field("context", b.S32))
_OFFSET = Field("offset", u64le)
_ACK = Field("ack", u8, labels=b.ACKS)
_NEW_TOPIC: Body = (b.STREAM_ID, Field("topic_id", u32le, "0 from L4 on: choose one"), b.PARTITIONS_COUNT)
_USER_L0 = b.user(b.CREATED_AT)
_USER_L4 = b.user(u64le)
_USER_V3 = b.user(u64le, b.sized_options())
_TOPIC_OPTIONS = (b.sized_options("options"), b.sized_options("derived_options"))
_TOPICS = {layout: b.topic(layout) for layout in ("L0", "L4", "L5", "L6")} | {"V3": b.topic("V3", *_TOPIC_OPTIONS)}
_STREAM_L0 = b.stream()
_STREAM_V3 = b.stream(b.sized_options())
_GROUP_L0: Body = (*b.group(), b.MEMBERS)
_GROUP_L1: Body = (*b.group(b.NAME), b.MEMBERS)
_CLIENTS_L0 = b.memberships("group", "topic", "stream")
_CLIENTS_L1 = b.memberships("stream", "topic", "group")
_SENT: Body = (
    Field(
        "written",
        Array(
            (
                Field("stream_id", u32le),
                Field("topic_id", u32le),
                Field("partition_id", u32le),
                Field("base_offset", u64le),
            ),
            u32le,
        ),
    ),
)


def _clients(*more: Field) -> Since:
    return {
        "L0": ((*b.client(True), *more[:1]), (*b.client(False), *more[:1])),
        "L1": ((*b.client(True), *more[1:]),),
    }


def _found(since: Since) -> Since:
    """Replies to a request for one object: from L6 on (0.4.10) it may be empty."""
    made: dict[str, Forms] = {first: body for first, body in since.items() if RANK[first] < RANK["L6"]}
    for first in dict.fromkeys(("L6", *since)):
        if RANK[first] >= RANK["L6"]:
            made[first] = (*forms(since, first)[1], ())
    return made


def _created(since: Since, first: str = "L6", certain: str = "L7") -> Since:
    """Replies to creating an object: the object from some release of layout `first` on, surely from `certain` on."""
    made: dict[str, Forms] = {"L0": EMPTY}
    for layout in dict.fromkeys((first, certain, *(one for one in since if RANK[one] > RANK[first]))):
        body = forms(since, layout)[1]
        made[layout] = body if RANK[layout] >= RANK[certain] else (*body, ())
    return made


_GET_USER: Since = {
    "L0": one(*_USER_L0, *b.REPLY_PERMISSIONS),
    "L4": one(*_USER_L4, *b.REPLY_PERMISSIONS),
    "V3": one(*_USER_V3, *b.REPLY_PERMISSIONS),
}
_GET_STREAM: Since = {
    first: one(*(_STREAM_V3 if first == "V3" else _STREAM_L0), Field("topics", Array(topic, "topics_count")))
    for first, topic in _TOPICS.items()
}
_GET_TOPIC: Since = {first: one(*topic, b.PARTITIONS) for first, topic in _TOPICS.items()}
_GET_GROUP: Since = {"L0": one(*_GROUP_L0), "L1": one(*_GROUP_L1)}
_CREATE_USER: Body = (b.USERNAME, b.PASSWORD, Field("user_status", u8, labels=b.USER_STATUSES), *b.MAY_HAVE_PERMISSIONS)
_UPDATE_USER: Body = (
    b.USER_ID,
    Field("has_username", u8),
    Choice("has_username", {1: (Field("username", b.S8),)}),
    Field("has_status", u8),
    Choice("has_status", {1: (Field("user_status", u8, labels=b.USER_STATUSES),)}),
)
_REGISTERED: Body = (
    Field("user_id", u32le),
    Field("session", u64le),
    Field("protocol_version", u32le, labels=b.VERSIONS),
    Field("server_version", b.S8),
)
_REGISTER: Body = (Field("protocol_version", u32le, labels=b.VERSIONS), Field("sdk_name", b.S8), Field("sdk_version", b.S8))
_REGISTER_CONTEXT = Field("context", b.S32)
_BIND_SECRET = Field("bind_secret", Fixed(32), "seen with version 0.12.0 only", secret=True)

_GROUP: Since = {"L0": one(*STREAM_AND_TOPIC, GROUP_U32), "L2": one(*STREAM_AND_TOPIC, b.GROUP_ID)}
_GET_GROUP_REQUEST = _GROUP
_PARTITIONS: Forms = one(*STREAM_AND_TOPIC, b.PARTITIONS_COUNT)


def _offset(tail: Body, tail_v4: Body | None = None) -> Since:
    made: dict[str, Forms] = {
        "L0": one(b.CONSUMER_L0, *STREAM_AND_TOPIC, b.PARTITION_ID, *tail),
        "L3": one(b.CONSUMER, *STREAM_AND_TOPIC, b.PARTITION_ID, *tail),
        "L8": one(b.CONSUMER, *STREAM_AND_TOPIC, *b.PARTITION_L8, *tail),
    }
    if tail_v4 is not None:
        made["V4"] = one(b.CONSUMER, *STREAM_AND_TOPIC, *b.PARTITION_L8, *tail_v4)
    return made


def _from(first: str, since: Since) -> Since:
    """`since` for a command that exists from `first` on."""
    made: dict[str, Forms] = {first: forms(since, first)[1]}
    made.update({layout: body for layout, body in since.items() if RANK[layout] > RANK[first]})
    return made


COMMANDS: tuple[Command, ...] = (
    command(1, "ping", EMPTY),
    command(
        10,
        "get_stats",
        EMPTY,
        {
            "L0": one(*b.STATS_HEAD, *b.STATS),
            "L4": (b.STATS_L4, (*b.STATS_HEAD, *b.STATS)),
            "L5": one(*b.STATS_L4),
            "L6": one(*b.STATS_L4, Optional(*b.STATS_VERSION, Optional(b.STATS_CACHE))),
            "L7": one(*_STATS_CACHED),
            "L9": one(*_STATS_CACHED, Optional(*b.STATS_THREADS)),
            "V1": one(*_STATS_CACHED, *b.STATS_THREADS),
        },
    ),
    command(
        11,
        "get_snapshot",
        {"L6": one(Field("compression", u8, labels=b.SNAPSHOT_COMPRESSIONS), Field("types", Array(u8, u8), labels=b.SNAPSHOT_TYPES))},
        one(Field("snapshot", Rest(), "a zip file")),
    ),
    command(12, "get_cluster_metadata", {"L8": EMPTY}, one(*b.CLUSTER)),
    command(
        13,
        "describe_options",
        {"V3": one(Field("scope", u8, labels=b.OPTION_SCOPES))},
        one(
            Field(
                "options",
                Array(
                    (
                        Field("key", b.S8),
                        Field("kind", u8, labels=b.HEADER_KINDS),
                        Field("default", Blob(u32le)),
                        Field("description", b.S32),
                    ),
                    u32le,
                ),
            )
        ),
    ),
    command(20, "get_me", EMPTY, _clients(_CLIENTS_L0, _CLIENTS_L1)),
    command(21, "get_client", one(Field("client_id", u32le)), _found(_clients(_CLIENTS_L0, _CLIENTS_L1))),
    command(
        22,
        "get_clients",
        EMPTY,
        {
            "L0": (one(Field("clients", Repeat(b.client(True))))[0], one(Field("clients", Repeat(b.client(False))))[0]),
            "L1": one(Field("clients", Repeat(b.client(True)))),
        },
    ),
    command(31, "get_user", one(b.USER_ID), _found(_GET_USER)),
    command(
        32,
        "get_users",
        EMPTY,
        {
            "L0": one(Field("users", Repeat(_USER_L0))),
            "L4": one(Field("users", Repeat(_USER_L4))),
            "V3": one(Field("users", Repeat(_USER_V3))),
        },
    ),
    command(33, "create_user", {"L0": one(*_CREATE_USER), "V3": one(*_CREATE_USER, b.OPTIONS)}, _created(_GET_USER)),
    command(34, "delete_user", one(b.USER_ID)),
    command(35, "update_user", {"L0": one(*_UPDATE_USER), "V3": one(*_UPDATE_USER, b.OPTIONS)}),
    command(36, "update_permissions", one(b.USER_ID, *b.MAY_HAVE_PERMISSIONS)),
    command(
        37,
        "change_password",
        one(b.USER_ID, Field("current_password", b.S8, secret=True), Field("new_password", b.S8, secret=True)),
    ),
    command(38, "login_user", {"L0": one(*_LOGIN), "L6": one(*_LOGIN_L6)}, {"L0": maybe(*_LOGGED_IN), "L1": one(*_LOGGED_IN)}),
    command(39, "logout_user", EMPTY),
    command(
        40,
        "login_register",
        {
            "V1": (
                (*_REGISTER, b.USERNAME, b.PASSWORD, _REGISTER_CONTEXT),
                (*_REGISTER, _BIND_SECRET, b.USERNAME, b.PASSWORD, _REGISTER_CONTEXT),
            )
        },
        maybe(*_REGISTERED),
    ),
    command(
        41,
        "get_personal_access_tokens",
        {"L3": EMPTY},
        one(Field("tokens", Repeat((b.NAME, Field("expiry_at", u64le, "microseconds"))))),
    ),
    command(
        42,
        "create_personal_access_token",
        {"L3": one(b.NAME, Field("expiry", u32le, "seconds")), "L6": one(b.NAME, Field("expiry", u64le, "microseconds"))},
        one(b.TOKEN),
    ),
    command(43, "delete_personal_access_token", {"L3": one(b.NAME)}),
    command(44, "login_with_personal_access_token", {"L3": one(b.TOKEN)}, one(*_LOGGED_IN)),
    command(
        45,
        "login_register_with_pat",
        {"V1": ((*_REGISTER, b.TOKEN, _REGISTER_CONTEXT), (*_REGISTER, _BIND_SECRET, b.TOKEN, _REGISTER_CONTEXT))},
        maybe(*_REGISTERED),
    ),
    command(
        100,
        "poll_messages",
        {
            "L0": one(*b.poll(b.CONSUMER_L0, (b.PARTITION_ID,))),
            "L3": one(*b.poll(b.CONSUMER, (b.PARTITION_ID,))),
            "L8": one(*b.poll(b.CONSUMER, b.PARTITION_L8)),
        },
        {
            "L0": one(*b.polled(b.POLLED_L0)),
            "L7": one(*b.polled(b.MESSAGE_L7)),
            "L9": one(*b.polled(b.MESSAGE_L9)),
            "V4": one(*b.POLLED_V4),
        },
    ),
    command(
        101,
        "send_messages",
        {"L0": one(*b.SEND_L0), "L7": one(*b.SEND_L7), "L9": one(*b.SEND_L9), "V4": one(*b.SEND_V4)},
        {"L0": EMPTY, "V1": maybe(*_SENT)},
    ),
    command(
        102,
        "flush_unsaved_buffer",
        {"L6": one(*STREAM_AND_TOPIC, b.PARTITION_ID, Field("fsync", boolean))},
    ),
    command(120, "get_consumer_offset", _offset(()), {"L0": one(*_CONSUMED), "L6": maybe(*_CONSUMED)}),
    command(121, "store_consumer_offset", _offset((_OFFSET,), (_OFFSET, _ACK))),
    command(122, "delete_consumer_offset", _from("L6", _offset((), (_ACK,)))),
    command(123, "store_consumer_offset_2", {"V1": one(b.CONSUMER, *STREAM_AND_TOPIC, *b.PARTITION_L8, _OFFSET, _ACK)}),
    command(124, "delete_consumer_offset_2", {"V1": one(b.CONSUMER, *STREAM_AND_TOPIC, *b.PARTITION_L8, _ACK)}),
    command(200, "get_stream", one(b.STREAM_ID), _found(_GET_STREAM)),
    command(
        201,
        "get_streams",
        EMPTY,
        {"L0": one(Field("streams", Repeat(_STREAM_L0))), "V3": one(Field("streams", Repeat(_STREAM_V3)))},
    ),
    command(
        202,
        "create_stream",
        {"L0": one(Field("stream_id", u32le, "0 from L4 on: choose one"), b.NAME), "L8": one(b.NAME), "V3": one(b.NAME, b.OPTIONS)},
        _created(_GET_STREAM),
    ),
    command(203, "delete_stream", one(b.STREAM_ID)),
    command(204, "update_stream", {"L0": one(b.STREAM_ID, b.NAME), "V3": one(b.STREAM_ID, b.NAME, b.OPTIONS)}),
    command(205, "purge_stream", {"L3": one(b.STREAM_ID)}),
    command(300, "get_topic", one(*STREAM_AND_TOPIC), _found(_GET_TOPIC)),
    command(
        301,
        "get_topics",
        one(b.STREAM_ID),
        {first: one(Field("topics", Array(topic, u32le) if first == "V3" else Repeat(topic))) for first, topic in _TOPICS.items()},
    ),
    command(
        302,
        "create_topic",
        {
            **{first: one(*_NEW_TOPIC, *settings, b.NAME) for first, settings in b.SETTINGS.items()},
            "L8": one(b.STREAM_ID, b.PARTITIONS_COUNT, *b.SETTINGS["L6"], b.NAME),
            "V3": one(b.STREAM_ID, b.PARTITIONS_COUNT, b.NAME, b.OPTIONS),
        },
        _created(_GET_TOPIC),
    ),
    command(303, "delete_topic", one(*STREAM_AND_TOPIC)),
    command(
        304,
        "update_topic",
        {
            **{first: one(*STREAM_AND_TOPIC, *settings, b.NAME) for first, settings in b.SETTINGS.items()},
            "V3": one(*STREAM_AND_TOPIC, b.NAME, b.OPTIONS),
        },
    ),
    command(305, "purge_topic", {"L3": one(*STREAM_AND_TOPIC)}),
    command(402, "create_partitions", _PARTITIONS),
    command(403, "delete_partitions", _PARTITIONS),
    command(503, "delete_segments", {"L6": one(*STREAM_AND_TOPIC, b.PARTITION_ID, Field("segments_count", u32le))}),
    command(600, "get_consumer_group", _GROUP, _found(_GET_GROUP)),
    command(
        601,
        "get_consumer_groups",
        one(*STREAM_AND_TOPIC),
        {"L0": one(Field("groups", Repeat(b.group()))), "L1": one(Field("groups", Repeat(b.group(b.NAME))))},
    ),
    command(
        602,
        "create_consumer_group",
        {
            "L0": one(*STREAM_AND_TOPIC, GROUP_U32),
            "L1": one(*STREAM_AND_TOPIC, GROUP_U32, b.NAME),
            "L8": one(*STREAM_AND_TOPIC, b.NAME),
        },
        _created(_GET_GROUP, "L5", "L6"),
    ),
    command(603, "delete_consumer_group", _GROUP),
    command(604, "join_consumer_group", _GROUP),
    command(605, "leave_consumer_group", _GROUP),
    command(
        606,
        "sync_consumer_group",
        {"V1": one(*STREAM_AND_TOPIC, b.GROUP_ID)},
        maybe(Field("generation", u64le), Field("partitions", Array(u32le, u32le))),
    ),
)

BY_CODE: Mapping[int, Command] = {one.code: one for one in COMMANDS}

OLD_LOGIN = Command(32, "login_user", {"L0": one(*_LOGIN)}, {"L0": maybe(*_LOGGED_IN)})
OLD_LOGOUT = Command(33, "logout_user", {"L0": EMPTY}, {"L0": EMPTY})
"""In 0.0.4 to 0.0.7 a request of code 32 with a payload, and one of code 33 without."""

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

LISTED = frozenset((*range(64, 138), *range(139, 150), 161, 162, 164, 165))
"""Operations, as the reply names them, whose answer begins with a list of results; so does a register answer that is not empty."""
