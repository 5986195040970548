"""Bodies of Apache Iggy's frames: field tables of identifiers, objects, messages and options.

Follows the public source history of apache/iggy from commit 670a8baba (2023-08-31, server 0.0.1) to server 0.9.0-edge.5; V5 follows what
published clients of version 0.12.0 of the protocol send and accept. All integers are little-endian. Fields that not all layouts have are
in `since` and `until`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import Malformed
from ...layout import (
    Array,
    Blob,
    Choice,
    Custom,
    Entry,
    Field,
    Fixed,
    Group,
    Optional,
    PartTable,
    Repeat,
    Rest,
    Since,
    Sized,
    Style,
    Text,
    Type,
    boolean,
    f32le,
    f64le,
    i8,
    i16le,
    i32le,
    i64le,
    u8,
    u16le,
    u32le,
    u64le,
    u128le,
)
from ...layout.walker import Walker
from .layout_versions import LAYOUTS, RANK

Body = tuple[Entry, ...]


def since(first: str, *fields: Entry, until: str | None = None) -> Since:
    """Return fields that exist from one layout up to another."""
    return Since(RANK[first], len(LAYOUTS) if until is None else RANK[until], *fields)


def until(first: str, *fields: Entry) -> Since:
    """Return fields that exist up to a layout."""
    return Since(0, RANK[first], *fields)


NUMERIC, STRING = 1, 2

IDENTIFIER_KINDS = {NUMERIC: "numeric", STRING: "string"}
CONSUMER_KINDS = {1: "consumer", 2: "consumer_group"}
PARTITIONING_KINDS = {1: "balanced", 2: "partition_id", 3: "messages_key"}
POLLING_KINDS = {1: "offset", 2: "timestamp", 3: "first", 4: "last", 5: "next"}
MESSAGE_STATES = {1: "available", 10: "unavailable", 20: "poisoned", 30: "marked_for_deletion"}
COMPRESSIONS = {1: "none", 2: "gzip"}
USER_STATUSES = {1: "active", 2: "inactive"}
TRANSPORTS = {1: "tcp", 2: "quic", 3: "http", 4: "websocket"}
SNAPSHOT_COMPRESSIONS = {1: "stored", 2: "deflate", 3: "bzip2", 4: "zstd", 5: "lzma", 6: "xz"}
SNAPSHOT_TYPES = {1: "file_system", 2: "processes", 3: "resources", 4: "test", 5: "logs", 6: "config", 100: "all"}
OPTION_SCOPES = {1: "topic", 2: "stream", 3: "user"}
CHANGE_GROUPS = {
    1: "streams",
    2: "topics",
    3: "partitions",
    4: "consumer_groups",
    5: "consumer_group_members",
    6: "users",
    7: "personal_access_tokens",
    8: "sessions",
}
ACKS = {0: "none", 1: "quorum"}
HEADER_KINDS = {
    1: "raw",
    2: "string",
    3: "bool",
    4: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "int128",
    9: "uint8",
    10: "uint16",
    11: "uint32",
    12: "uint64",
    13: "uint128",
    14: "float32",
    15: "float64",
}


class _Versions(dict[int, str]):
    """Labels of packed versions: major << 20 | minor << 10 | patch."""

    def get(self, key: int, default: Any = None) -> Any:
        return f"{key >> 20}.{key >> 10 & 1023}.{key & 1023}"

    def __getitem__(self, key: int) -> str:
        return str(self.get(key))


VERSIONS: Mapping[int, str] = _Versions()


# Parts written by hand


Walk = Callable[[bytes, int, int, Walker, str, int], tuple[Any, int]]


def custom(walk: Walk, name: str, minimum: int, element: int = 0, samples: tuple[bytes, ...] = ()) -> Custom:
    """A part for which there is nothing but its walk: it is too rare to be read in another way."""

    def read(buf: bytes, at: int, end: int, style: Style) -> tuple[Any, int]:
        walker = Walker(buf, at, end, style)
        value, after = walk(buf, at, end, walker, name, 0)
        if walker.notes:
            raise ValueError(walker.notes[0])
        return value, after

    return Custom(read, walk, name, minimum, element, samples=samples)


def _walk_refuse(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[Any, int]:
    raise walker.malformed(at, "its kind is unknown")


NEVER = custom(_walk_refuse, "unknown kind", 1)
"""The value of an unknown kind, whose length is unknown."""


def _number(name: str, kind: str, size: int, value: Callable[[bytes], Any], *more: bytes) -> Custom:
    """Return a number type that the table language lacks, converted from its bytes."""

    def walk(buf: bytes, at: int, end: int, walker: Walker, field: str, depth: int) -> tuple[Any, int]:
        if end - at < size:
            raise walker.short(at, end, f"{kind} takes {size} bytes, {end - at} left")
        found = value(buf[at : at + size])
        walker.span(field, at, at + size, found, depth)
        return found, at + size

    return custom(walk, name, size, samples=(bytes(size), *more))


def _signed(data: bytes) -> str:
    return str(int.from_bytes(data, "little", signed=True))


I128 = _number("int128le", "int128", 16, _signed, b"\xff" * 16)

YEAR_2020, YEAR_2100 = 1_577_836_800_000_000, 4_102_444_800_000_000


def _time(data: bytes) -> int:
    little, big = int.from_bytes(data, "little"), int.from_bytes(data, "big")
    return big if YEAR_2020 <= big < YEAR_2100 and not YEAR_2020 <= little < YEAR_2100 else little


CREATED_AT = _number("uint64, of either byte order", "uint64", 8, _time)
"""Big-endian from 0.0.8 to 0.0.49, the only such field; recognised by the order that gives a time between 2020 and 2100."""


# Shapes

S8 = Text(u8)
S32 = Text(u32le)

IDENTIFIER = Group(
    Field("kind", u8, labels=IDENTIFIER_KINDS),
    Choice("kind", {NUMERIC: (Field("value", Sized(u8, u32le)),), STRING: (Field("value", S8),)}, (Field("value", NEVER),)),
)
STREAM_ID = Field("stream_id", IDENTIFIER)
TOPIC_ID = Field("topic_id", IDENTIFIER)
GROUP_ID = Field("group_id", IDENTIFIER)
USER_ID = Field("user_id", IDENTIFIER)

CONSUMER = Field(
    "consumer",
    Group(Field("kind", u8, labels=CONSUMER_KINDS, closed=True), until("L3", Field("id", u32le)), since("L3", Field("id", IDENTIFIER))),
)

PARTITION_ID = Field("partition_id", u32le, "0 means none given up to L7; partitions count from 1 until then, from 0 later")
PARTITION: Body = (
    until("L8", PARTITION_ID),
    since("L8", Field("partition_given", boolean, "whether the partition id counts"), Field("partition_id", u32le)),
)

PARTITIONING = Field(
    "partitioning",
    Group(
        Field("kind", u8, labels=PARTITIONING_KINDS),
        Choice(
            "kind",
            {1: (Field("length", u8, "0"),), 2: (Field("value", Sized(u8, u32le)),), 3: (Field("value", Blob(u8)),)},
            (Field("value", NEVER),),
        ),
    ),
)


def typed() -> Mapping[int, Type]:
    """Values of headers and options by their kind, behind a length in bytes."""
    numbers: dict[int, Type] = {
        3: boolean,
        4: i8,
        5: i16le,
        6: i32le,
        7: i64le,
        8: I128,
        9: u8,
        10: u16le,
        11: u32le,
        12: u64le,
        13: u128le,
    }
    made: dict[int, Type] = {1: Blob(u32le), 2: S32}
    made.update({kind: Sized(u32le, number) for kind, number in numbers.items()})
    made.update({14: Sized(u32le, f32le), 15: Sized(u32le, f64le)})
    return made


HEADER: Body = (
    until(
        "L9",
        Field("key", S32),
        Field("kind", u8, labels=HEADER_KINDS, closed=True),
        Field("value", Choice("kind", typed(), Blob(u32le))),
    ),
    since(
        "L9",
        Field("key_kind", u8, labels=HEADER_KINDS, closed=True),
        Field("key", Choice("key_kind", typed(), Blob(u32le))),
        Field("value_kind", u8, labels=HEADER_KINDS, closed=True),
        Field("value", Choice("value_kind", typed(), Blob(u32le))),
    ),
)

# Messages

SENT_L0: Body = (
    Field("id", u128le, "0 asks the server to choose"),
    Field("headers", Sized(u32le, Repeat(HEADER))),
    Field("payload", Blob(u32le)),
)
POLLED_L0: Body = (
    Field("offset", u64le),
    Field("state", u8, labels=MESSAGE_STATES, closed=True),
    Field("timestamp", u64le, "microseconds"),
    Field("id", u128le),
    Field("checksum", u32le, "CRC-32 of the payload"),
    Field("headers", Sized(u32le, Repeat(HEADER))),
    Field("payload", Blob(u32le)),
)


MESSAGE: Body = (
    Field("checksum", u64le, "of the bytes from the id on: CRC-32 in L7, XXH3-64 from L8; 0 from producers"),
    Field("id", u128le),
    Field("offset", u64le),
    Field("timestamp", u64le, "microseconds"),
    Field("origin_timestamp", u64le, "microseconds, of the producer"),
    Field("headers_length", u32le),
    Field("payload_length", u32le),
    since("L9", Field("reserved", u64le, "0")),
    Field("payload", Blob("payload_length")),
    Field("headers", Sized("headers_length", Repeat(HEADER))),
)
"""A message from L7 on, sent and polled alike: the payload comes before the headers although its length comes second."""

BATCH_V4: Body = (
    Field("partition_id", u64le),
    Field("base_offset", u64le),
    Field("base_timestamp", u64le, "microseconds, of the server"),
    Field("origin_timestamp", u64le, "microseconds, of the producer"),
    Field("batch_length", u64le, "with this header"),
    Field("batch_checksum", u64le, "XXH3-64 of the 40 bytes before it, the count and the checksums of the messages"),
    Field("message_count", u32le),
    Field("reserved", Fixed(204), "zero"),
    Field(
        "messages",
        Array(
            (
                Field("checksum", u64le, "XXH3-64 of the rest of the message"),
                Field("id", u128le),
                Field("offset_delta", u32le),
                Field("timestamp_delta", u32le),
                Field("headers_length", u32le),
                Field("payload_length", u32le),
                Field("reserved", u64le, "0"),
                Field("payload", Blob("payload_length")),
                Field("headers", Sized("headers_length", Repeat(HEADER))),
            ),
            "message_count",
        ),
    ),
)

INDEXES = Field(
    "indexes",
    Array(
        (Field("offset", u32le, "0"), Field("position", u32le, "end of the message, from the first one"), Field("timestamp", u64le, "0")),
        u32le,
    ),
)
PARTITION_CONTEXT: tuple[Field, ...] = (
    Field("incarnation", u64le),
    Field("owner_generation", u64le),
    Field("metadata_op", u64le),
)
"""What distinguishes one life of a partition from another, from V5 on."""

SEND: Body = (
    since("L7", Field("metadata_length", u32le, "bytes from the stream id to the count")),
    STREAM_ID,
    TOPIC_ID,
    PARTITIONING,
    until("L7", Field("messages", Repeat(SENT_L0))),
    since("L7", INDEXES, Field("messages", Repeat(MESSAGE)), until="V4"),
    since("V4", Field("count", u32le), Field("batches", Repeat(BATCH_V4))),
)
POLLED: Body = (
    Field("partition_id", u32le),
    Field("current_offset", u64le),
    Field("count", u32le, "messages"),
    until("L7", Field("messages", Array(POLLED_L0, "count"))),
    since("L7", Field("messages", Array(MESSAGE, "count")), until="V4"),
    since("V5", *PARTITION_CONTEXT),
    # nothing polled is read as in the layouts before
    since("V4", Choice("count", {0: (Field("messages", Repeat(MESSAGE)),)}, (Field("batches", Repeat(BATCH_V4)),))),
)
POLL: Body = (
    CONSUMER,
    STREAM_ID,
    TOPIC_ID,
    *PARTITION,
    Field("strategy", u8, labels=POLLING_KINDS, closed=True),
    Field("strategy_value", u64le, "an offset, or microseconds"),
    Field("count", u32le),
    Field("auto_commit", boolean),
)
POLL_WAIT = Field("wait_timeout_us", u64le, "proposed in 2026: no release known here has it")

UNSEEN = Field("body", Rest(), "its layout was not seen")
SEEN_NOTES: Mapping[str, str] = {
    UNSEEN.name: "the layout of its body was not seen",
    POLL_WAIT.name: "wait_timeout_us was proposed only: no release known here has it",
}
"""Fields that make a note, and the note."""


# Streams and topics


_VALUE_KIND = Field("value_kind", u8, labels=HEADER_KINDS, closed=True)
_KEY = Field("value", Blob(u32le), secret=True)
_VALUE = Choice("value_kind", {1: (_KEY,)}, (Field("value", Choice("value_kind", typed(), Blob(u32le))),))
"""Options have texts and numbers: only keys are raw bytes."""
OPTION: Body = (
    Field("key_kind", u8, labels=HEADER_KINDS, closed=True),
    Choice(
        "key_kind",
        {
            2: (
                Field("key", S32),
                _VALUE_KIND,
                Choice("key", {"encryption_key": (_KEY,)}, (_VALUE,)),
            )
        },
        (Field("key", Choice("key_kind", typed(), Blob(u32le))), _VALUE_KIND, _VALUE),
    ),
)
OPTIONS: Body = (until("V5", Field("options", Repeat(HEADER))), since("V5", Field("options", Repeat(OPTION))))
"""Options at the end of a request, without a length; from V5 on one of them may be a key."""

SIZED_OPTIONS = Field("options", Sized(u32le, Repeat(HEADER)))
DERIVED_OPTIONS = Field("derived_options", Sized(u32le, Repeat(HEADER)))

STREAM: Body = (
    Field("id", u32le),
    Field("created_at", u64le, "microseconds; seconds in 0.2.x"),
    Field("topics_count", u32le),
    Field("size_bytes", u64le),
    Field("messages_count", u64le),
    Field("name", S8),
    since("V3", SIZED_OPTIONS),
    since("V5", DERIVED_OPTIONS),
)

EXPIRY: Body = (
    until("L6", Field("message_expiry", u32le, "seconds, 0 is never")),
    since("L6", Field("message_expiry", u64le, "microseconds, 0 is the server's default, 2^64 - 1 never")),
)
COMPRESSION = since("L5", Field("compression_algorithm", u8, labels=COMPRESSIONS, closed=True))
MAX_SIZE = since("L4", Field("max_topic_size", u64le, "0 is the server's default, 2^64 - 1 unlimited"))
REPLICATION = since("L4", Field("replication_factor", u8), until="V3")
SETTINGS = until("V3", COMPRESSION, *EXPIRY, MAX_SIZE, REPLICATION)
"""Of a topic in requests; in replies the compression comes behind the expiry."""

TOPIC: Body = (
    Field("id", u32le),
    Field("created_at", u64le, "microseconds"),
    Field("partitions_count", u32le),
    until("V5", *EXPIRY, COMPRESSION, MAX_SIZE, REPLICATION),
    Field("size_bytes", u64le),
    Field("messages_count", u64le),
    Field("name", S8),
    since("V3", SIZED_OPTIONS, DERIVED_OPTIONS),
)

PARTITIONS = Field(
    "partitions",
    Array(
        (
            Field("id", u32le),
            Field("created_at", u64le, "microseconds"),
            Field("segments_count", u32le),
            Field("current_offset", u64le),
            Field("size_bytes", u64le),
            Field("messages_count", u64le),
            since("V5", *PARTITION_CONTEXT),
        ),
        "partitions_count",
    ),
)
PARTITIONS_COUNT = Field("partitions_count", u32le)
NAME = Field("name", S8)

# Consumer groups


GROUP: Body = (Field("id", u32le), Field("partitions_count", u32le), Field("members_count", u32le), since("L1", NAME))
MEMBERS = Field("members", Array((Field("id", u32le), Field("partitions", Array(u32le, u32le))), "members_count"))

# Clients


def client(*user: Field) -> Body:
    return (
        Field("id", u32le),
        *user,
        Field("transport", u8, labels=TRANSPORTS, closed=True),
        Field("address", S32),
        Field("groups_count", u32le),
    )


CLIENT = client(Field("user_id", u32le, "not logged in: 0, from L8 2^32 - 1"))
ANONYMOUS = client()
"""A client without the field `user_id`, which the first releases do not send."""


def memberships(*order: str) -> Field:
    return Field("groups", Array(tuple(Field(f"{what}_id", u32le) for what in order), "groups_count"))


MEMBERSHIPS: Body = (until("L1", memberships("group", "topic", "stream")), since("L1", memberships("stream", "topic", "group")))


# Users


USER: Body = (
    Field("id", u32le),
    until("L4", Field("created_at", CREATED_AT, "microseconds")),
    since("L4", Field("created_at", u64le, "microseconds")),
    Field("user_status", u8, labels=USER_STATUSES, closed=True),
    Field("username", S8),
    since("V3", SIZED_OPTIONS),
    since("V5", DERIVED_OPTIONS),
)

GLOBAL_PERMISSIONS = (
    "manage_servers",
    "read_servers",
    "manage_users",
    "read_users",
    "manage_streams",
    "read_streams",
    "manage_topics",
    "read_topics",
    "poll_messages",
    "send_messages",
)
STREAM_PERMISSIONS = ("manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages", "send_messages")
TOPIC_PERMISSIONS = ("manage_topic", "read_topic", "poll_messages", "send_messages")

PASSWORD = Field("password", S8, secret=True)
TOKEN = Field("token", S8, secret=True)
USERNAME = Field("username", S8)

# Statistics

STATS_HEAD: Body = (Field("process_id", u32le), Field("cpu_usage", f32le))
STATS: Body = (
    Field("memory_usage", u64le),
    Field("total_memory", u64le),
    Field("available_memory", u64le),
    Field("run_time", u64le, "seconds up to 0.1.x, microseconds from 0.4"),
    Field("start_time", u64le, "seconds up to 0.1.x, microseconds from 0.4, off by a million in 0.2.x"),
    Field("read_bytes", u64le),
    Field("written_bytes", u64le),
    Field("messages_size_bytes", u64le),
    Field("streams_count", u32le),
    Field("topics_count", u32le),
    Field("partitions_count", u32le),
    Field("segments_count", u32le),
    Field("messages_count", u64le),
    Field("clients_count", u32le),
    Field("consumer_groups_count", u32le),
    Field("hostname", S32),
    Field("os_name", S32),
    Field("os_version", S32),
    Field("kernel_version", S32),
)
STATS_VERSION: Body = (Field("server_version", S32), Field("server_semver", u32le))
STATS_CACHE = Field(
    "cache_metrics",
    Array(
        (
            Field("stream_id", u32le),
            Field("topic_id", u32le),
            Field("partition_id", u32le),
            Field("hits", u64le),
            Field("misses", u64le),
            Field("hit_ratio", f32le),
        ),
        u32le,
    ),
)
STATS_THREADS: Body = (Field("threads_count", u32le), Field("free_disk_space", u64le), Field("total_disk_space", u64le))

STATS_FILES = since("V5", Optional(Field("open_files_count", u64le), Field("open_files_limit", u64le)))

CLUSTER: Body = (
    Field("name", S32),
    Field(
        "nodes",
        Array(
            (
                since("V5", Field("replica", u8)),
                Field("name", S32),
                Field("ip", S32),
                Field("tcp_port", u16le),
                Field("quic_port", u16le),
                Field("http_port", u16le),
                Field("websocket_port", u16le),
                Field("role", u8, labels={0: "leader", 1: "follower"}, closed=True),
                Field("status", u8, labels={0: "healthy", 1: "starting", 2: "stopping", 3: "unreachable", 4: "maintenance"}, closed=True),
            ),
            u32le,
        ),
    ),
)


# Permissions: lists without a count, each entry announced by a flag

_GLOBAL = Group(*(Field(name, boolean) for name in GLOBAL_PERMISSIONS))
_STREAM = Group(Field("stream_id", u32le), *(Field(name, boolean) for name in STREAM_PERMISSIONS))
_TOPIC = Group(Field("topic_id", u32le), *(Field(name, boolean) for name in TOPIC_PERMISSIONS))


_LEVELS = (_GLOBAL, _STREAM, _TOPIC)
_BELOW = (("streams", "streams_follow", "another_stream_follows"), ("topics", "topics_follow", "another_topic_follows"))
"""What stands below rights: a list, and the flag in front of its first item and of each further one."""


def _flag(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> bool:
    if at >= end or buf[at] > 1:
        what = "missing" if at >= end else str(buf[at])
        raise walker.short(at, end, f"the flag that says whether more follows is {what}", name)
    walker.span(name, at, at + 1, buf[at] == 1, depth)
    return buf[at] == 1


def _rights(buf: bytes, at: int, end: int, walker: Walker, into: dict[str, Any], depth: int, level: int) -> int:
    """Read rights, and below them lists of others; `depth` is that of the fields."""
    at = walker.fields(_LEVELS[level].fields, at, end, depth, into)
    if level == len(_BELOW):
        return at
    name, flag, another = _BELOW[level]
    items = into[name] = []
    while _flag(buf, at, end, walker, flag, depth):
        one, flag = f"{name}[{len(items)}]", another
        at += 1
        if not walker.values.spend():
            raise walker.over(at, f"{end - at} bytes left", one)
        walker.path.append(one)
        walker.open(one, at, depth)
        items.append({})
        at = _rights(buf, at, end, walker, items[-1], depth + 1, level + 1)
        walker.path.pop()
        walker.close(at)
    return at + 1


def _walk_permissions(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[Any, int]:
    value: dict[str, Any] = {}
    walker.open(name, at, depth)
    try:
        at = _rights(buf, at, end, walker, value, depth + 1, 0)
    except Malformed:
        walker.keep(value)
        raise
    walker.close(at)
    return value, at


PERMISSIONS = custom(
    _walk_permissions,
    "permissions",
    11,
    4 + len(TOPIC_PERMISSIONS),
    samples=(
        bytes(11),
        bytes.fromhex("01000100010001000100 00"),
        bytes.fromhex("00000000000000000000 01 01000000 010001000100 00 00"),
        bytes.fromhex(
            "00000000000000000000 01 01000000 010001000100 01 02000000 01010000 01 03000000 00000000 00 01 07000000 000000000000 00 00"
        ),
    ),
)
"""Global rights, then per stream and per topic; flags say whether another one follows."""

ADDED = (("body", "bytes", "of a frame whose command is not known, or not in this layout"),)

PARTS = (
    PartTable(
        "Permissions",
        "of a user; flags that say whether another stream or topic follows are not shown",
        (
            *((name, "boolean", "") for name in GLOBAL_PERMISSIONS),
            ("streams[].stream_id", "uint32", ""),
            *((f"streams[].{name}", "boolean", "") for name in STREAM_PERMISSIONS),
            ("streams[].topics[].topic_id", "uint32", ""),
            *((f"streams[].topics[].{name}", "boolean", "") for name in TOPIC_PERMISSIONS),
        ),
    ),
)

MAY_HAVE_PERMISSIONS: Body = (
    Field("has_permissions", u8),
    Choice("has_permissions", {1: (Field("permissions", Sized(u32le, PERMISSIONS)),)}),
)
"""In requests: one zero byte when there are none."""

REPLY_PERMISSIONS: Body = (
    Field("has_permissions", u8),
    Choice("has_permissions", {1: (Field("permissions", Sized(u32le, PERMISSIONS)),), 0: (Field("padding", Fixed(3), "zero"),)}),
)
"""In replies: four zero bytes when there are none."""
