"""RabbitMQ Streams as servers since 3.9 speak it: the protocol document of RabbitMQ (deps/rabbitmq_stream/docs/PROTOCOL.adoc)
and, where servers differ from it, what 3.10.8, 4.0.5 and 4.3.6 were seen to send; the field's note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...layout.types import (
    Array,
    Blob,
    Choice,
    Custom,
    Entry,
    Field,
    Fixed,
    Layout,
    Optional,
    Rest,
    Style,
    Text,
    following,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from .chunk import CHUNK, PUBLISHED, PUBLISHED_FILTERED

if TYPE_CHECKING:
    from ...layout.walker import Walker

COMMANDS = {
    0x0001: "DeclarePublisher",
    0x0002: "Publish",
    0x0003: "PublishConfirm",
    0x0004: "PublishError",
    0x0005: "QueryPublisherSequence",
    0x0006: "DeletePublisher",
    0x0007: "Subscribe",
    0x0008: "Deliver",
    0x0009: "Credit",
    0x000A: "StoreOffset",
    0x000B: "QueryOffset",
    0x000C: "Unsubscribe",
    0x000D: "Create",
    0x000E: "Delete",
    0x000F: "Metadata",
    0x0010: "MetadataUpdate",
    0x0011: "PeerProperties",
    0x0012: "SaslHandshake",
    0x0013: "SaslAuthenticate",
    0x0014: "Tune",
    0x0015: "Open",
    0x0016: "Close",
    0x0017: "Heartbeat",
    0x0018: "Route",
    0x0019: "Partitions",
    0x001A: "ConsumerUpdate",
    0x001B: "ExchangeCommandVersions",
    0x001C: "StreamStats",
    0x001D: "CreateSuperStream",
    0x001E: "DeleteSuperStream",
    0x001F: "ResolveOffsetSpec",
}

RESPONSE_CODES = {
    0x01: "OK",
    0x02: "stream does not exist",
    0x03: "subscription id already exists",
    0x04: "subscription id does not exist",
    0x05: "stream already exists",
    0x06: "stream not available",
    0x07: "SASL mechanism not supported",
    0x08: "authentication failure",
    0x09: "SASL error",
    0x0A: "SASL challenge",
    0x0B: "SASL authentication failure loopback",
    0x0C: "virtual host access failure",
    0x0D: "unknown frame",
    0x0E: "frame too large",
    0x0F: "internal error",
    0x10: "access refused",
    0x11: "precondition failed",
    0x12: "publisher does not exist",
    0x13: "no offset",
    0x14: "SASL cannot change mechanism",
    0x15: "SASL cannot change username",
}

OFFSET_TYPES = {0: "none", 1: "first", 2: "last", 3: "next", 4: "offset", 5: "timestamp"}

ACTIVE = {0: "inactive", 1: "active"}

RESPONSE = 0x8000
"""The bit of a key that marks a response."""

STRING = Text(i16, null=-1)
PROPERTIES = Array((Field("key", STRING), Field("value", STRING)), i32)
STRINGS = Array(STRING, i32)

CORRELATION_ID = Field("correlation_id", u32, "chosen by who asks; client and server number their own")
CODE = Field("response_code", u16, labels=RESPONSE_CODES, closed=True)
STREAM = Field("stream", STRING)
PUBLISHER_ID = Field("publisher_id", u8, "chosen by the client")
SUBSCRIPTION_ID = Field("subscription_id", u8, "chosen by the client")
PUBLISHER_REFERENCE = Field("publisher_reference", STRING, "empty: no reference; at most 255 bytes")
REFERENCE = Field("reference", STRING, "at most 255 bytes")
OFFSET_TYPE = Field("offset_type", u16, labels=OFFSET_TYPES, closed=True)
OFFSET_VALUE = Field(
    "offset",
    Choice("offset_type", {4: u64, 5: i64}),
    "absent for none, first, last and next; a timestamp is in ms and may be negative",
)


def _read_nothing(data: bytes, at: int, end: int, style: Style) -> tuple[None, int]:
    return None, at


def _walk_nothing(data: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[None, int]:
    walker.span(name, at, at, None, depth)
    return None, at


SASL_USERNAME = Field(
    "sasl_username",
    Custom(_read_nothing, _walk_nothing, "text", 0, write=lambda _: b"", samples=(b"",)),
    "not on the wire: what the data of PLAIN or AMQPLAIN names, else null",
)
"""Has no bytes; the dissector adds the value."""


Kind = Literal["request", "response", "one_way"]


class Layouts(NamedTuple):
    """What the layouts of a protocol have in common. `note`: on their keys; `mark`: the bit of a key that marks a response."""

    commands: Mapping[int, str]
    version: int
    note: str
    code: Field
    mark: int

    def head(self, key: int, version: int) -> tuple[Entry, ...]:
        return (
            Field("size", u32, "bytes that follow", default=following),
            Field("key", u16, self.note, default=key),
            Field("version", u16, default=version),
        )

    def request(self, key: int, *fields: Entry, note: str = "") -> Layout:
        """A command that is answered under its correlation id."""
        return self.message(key, "request", CORRELATION_ID, *fields, note=note)

    def reply(self, key: int, *fields: Entry, note: str = "") -> Layout:
        """The answer, with a response code."""
        return self.message(key | self.mark, "response", CORRELATION_ID, self.code, *fields, note=note)

    def message(self, key: int, kind: Kind, *fields: Entry, version: int | None = None, note: str = "") -> Layout:
        """A command without correlation id."""
        head = self.head(key, self.version if version is None else version)
        return Layout(self.commands[key & ~self.mark], *head, *fields, kind=kind, key=key, note=note)


_CURRENT = Layouts(COMMANDS, 1, "bit 15 marks a response", CODE, RESPONSE)
_head, request, reply, message = _CURRENT.head, _CURRENT.request, _CURRENT.reply, _CURRENT.message

DECLARE_PUBLISHER = request(0x0001, PUBLISHER_ID, PUBLISHER_REFERENCE, STREAM)
DECLARE_PUBLISHER_RESPONSE = reply(0x0001)

_PROPOSED = "proposed in 2026 for servers and clients to come; no traffic of either was seen"

PUBLISH = message(
    0x0002, "request", PUBLISHER_ID, Field("published_messages", PUBLISHED), note="answered by PublishConfirm or PublishError"
)
PUBLISH_2 = message(
    0x0002,
    "request",
    PUBLISHER_ID,
    Field("published_messages", PUBLISHED_FILTERED),
    version=2,
    note="version 2, with a filter value for each message; since 3.13",
)

PUBLISH_CONFIRM = message(0x0003, "response", PUBLISHER_ID, Field("publishing_ids", Array(u64, i32)), note="may cover many Publish frames")

PUBLISH_ERROR = message(
    0x0004,
    "response",
    PUBLISHER_ID,
    Field("publishing_errors", Array((Field("publishing_id", u64), Field("code", u16, labels=RESPONSE_CODES, closed=True)), i32)),
)

QUERY_PUBLISHER_SEQUENCE = request(0x0005, PUBLISHER_REFERENCE, STREAM)
QUERY_PUBLISHER_SEQUENCE_RESPONSE = reply(0x0005, Field("sequence", u64, "0 on errors and for an unknown reference"))

DELETE_PUBLISHER = request(0x0006, PUBLISHER_ID)
DELETE_PUBLISHER_RESPONSE = reply(0x0006)

_SUBSCRIBE = (SUBSCRIPTION_ID, STREAM, OFFSET_TYPE, OFFSET_VALUE)
_SUBSCRIBE_PROPERTIES = Optional(
    Field("properties", PROPERTIES, "single-active-consumer, super-stream, name, filter.N, match-unfiltered, chunk_selector")
)
SUBSCRIBE = request(0x0007, *_SUBSCRIBE, Field("credit", u16, "chunks the server may send before more credit"), _SUBSCRIBE_PROPERTIES)
SUBSCRIBE_2 = message(
    0x0007,
    "request",
    CORRELATION_ID,
    *_SUBSCRIBE,
    Field("credit", u32, "bytes of chunks the server may send before more credit"),
    _SUBSCRIBE_PROPERTIES,
    version=2,
    note=f"version 2, with credit in bytes: {_PROPOSED}",
)
SUBSCRIBE_RESPONSE = reply(0x0007)

DELIVER = message(0x0008, "one_way", SUBSCRIPTION_ID, Field("chunk", CHUNK))
DELIVER_2 = message(
    0x0008,
    "one_way",
    SUBSCRIPTION_ID,
    Field("committed_chunk_id", u64),
    Field("chunk", CHUNK),
    version=2,
    note="version 2, after the client announced it in ExchangeCommandVersions",
)

CREDIT = message(
    0x0009,
    "one_way",
    SUBSCRIPTION_ID,
    Field("credit", i16, "chunks; a uint16 in the document, but servers read it as signed: a negative number takes credit away"),
)
CREDIT_2 = message(
    0x0009, "one_way", SUBSCRIPTION_ID, Field("credit", u32, "bytes"), version=2, note=f"version 2, with credit in bytes: {_PROPOSED}"
)
CREDIT_RESPONSE = message(
    0x0009 | RESPONSE,
    "response",
    CODE,
    SUBSCRIPTION_ID,
    note="only for an unknown subscription, and with 0x11 for a consumer that is not active, for the wrong unit and for too much; "
    "without correlation id",
)
PRECONDITION_FAILED = 0x11
"""The code of the answer to Credit for a single active consumer that is not active, where nothing is wrong and the credit counts; and for
credit that does not count, in the unit that is not the subscription's, or more than the server allows."""

CHUNKS, BYTES = "chunks", "bytes"
UNITS = {1: CHUNKS, 2: BYTES}
"""What the credit of a subscription counts, by the version of Subscribe and Credit."""


def unit_of(fields: Mapping[str, Any]) -> str:
    """Return what credit counts in a Subscribe or Credit."""
    return UNITS.get(fields.get("version", 1), CHUNKS)


def is_single_active(properties: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether these properties of a Subscribe are those of a single active consumer."""
    return any(one.get("key") == "single-active-consumer" and one.get("value") == "true" for one in properties)


def chunk_size(fields: Mapping[str, Any]) -> int:
    """Return the bytes of credit that a Deliver uses: what follows its fixed fields."""
    return max(0, int(fields.get("size", 0)) - (13 if fields.get("version") == 2 else 5))


CREDIT_LIMITS = {CHUNKS: 200, BYTES: 64 << 20}
"""The most that servers with credit in bytes accept in one Subscribe or Credit by default (stream.max_credit_chunks,
stream.max_credit_bytes)."""

STORE_OFFSET = message(0x000A, "one_way", REFERENCE, STREAM, Field("offset", u64))

QUERY_OFFSET = request(0x000B, REFERENCE, STREAM)
QUERY_OFFSET_RESPONSE = reply(0x000B, Field("offset", u64, "0 on errors"))

UNSUBSCRIBE = request(0x000C, SUBSCRIPTION_ID)
UNSUBSCRIBE_RESPONSE = reply(0x000C)

CREATE = request(0x000D, STREAM, Field("arguments", PROPERTIES, "max-length-bytes, max-age, stream-max-segment-size-bytes, ..."))
CREATE_RESPONSE = reply(0x000D)

DELETE = request(0x000E, STREAM)
DELETE_RESPONSE = reply(0x000E)

METADATA = request(0x000F, Field("streams", STRINGS))
METADATA_RESPONSE = message(
    0x000F | RESPONSE,
    "response",
    CORRELATION_ID,
    Field("brokers", Array((Field("reference", u16), Field("host", STRING), Field("port", u32)), i32)),
    Field(
        "stream_metadata",
        Array(
            (
                Field("stream_name", STRING),
                CODE,
                Field("leader_reference", u16, "65535: none"),
                Field("replicas_references", Array(u16, i32)),
            ),
            i32,
        ),
    ),
    note="without a response code of its own",
)

METADATA_UPDATE = message(0x0010, "one_way", Field("code", u16, labels=RESPONSE_CODES, closed=True), STREAM)

PEER_PROPERTIES = request(0x0011, Field("peer_properties", PROPERTIES))
PEER_PROPERTIES_RESPONSE = reply(0x0011, Field("peer_properties", PROPERTIES))

SASL_HANDSHAKE = request(0x0012)
SASL_HANDSHAKE_RESPONSE = reply(0x0012, Field("mechanisms", STRINGS))

SASL_AUTHENTICATE = request(
    0x0013,
    Field("mechanism", STRING),
    Field("sasl_opaque_data", Blob(i32, null=-1), "PLAIN: user name and password", secret=True),
    SASL_USERNAME,
)
SASL_AUTHENTICATE_RESPONSE = reply(
    0x0013,
    Optional(Field("sasl_opaque_data", Blob(u16), "only with SASL challenge; servers send a 16-bit length", secret=True)),
)
SASL_AUTHENTICATE_RESPONSE_32 = reply(
    0x0013,
    Optional(Field("sasl_opaque_data", Blob(i32, null=-1), "with the 32-bit length of the document", secret=True)),
)

_TUNE = (Field("frame_max", u32, "bytes; 0: no limit"), Field("heartbeat", u32, "seconds; 0: none"))
TUNE = message(0x0014, "request", *_TUNE, note="what the server offers")
TUNE_RESPONSE = message(0x0014, "response", *_TUNE, note="the client's answer, under the same key: its values hold")
TUNE_RESPONSE_MARKED = message(0x0014 | RESPONSE, "response", *_TUNE, note="with the response bit, which servers take as well")

OPEN = request(0x0015, Field("virtual_host", STRING))
OPEN_RESPONSE = reply(0x0015, Optional(Field("connection_properties", PROPERTIES, "on success; advertised_host, advertised_port")))

CLOSE = request(0x0016, Field("closing_code", u16, labels=RESPONSE_CODES), Field("closing_reason", STRING))
CLOSE_RESPONSE = reply(0x0016)

HEARTBEAT = message(0x0017, "one_way")

ROUTE = request(0x0018, Field("routing_key", STRING), Field("super_stream", STRING))
ROUTE_RESPONSE = reply(0x0018, Field("streams", STRINGS))
ROUTE_RESPONSE_UNMARKED = message(
    0x0018, "response", CORRELATION_ID, CODE, Field("streams", STRINGS), note="from servers up to 3.11.0, without the response bit"
)

PARTITIONS = request(0x0019, Field("super_stream", STRING))
PARTITIONS_RESPONSE = reply(0x0019, Field("streams", STRINGS))
PARTITIONS_RESPONSE_UNMARKED = message(
    0x0019, "response", CORRELATION_ID, CODE, Field("streams", STRINGS), note="from servers up to 3.11.0, without the response bit"
)

CONSUMER_UPDATE = request(0x001A, SUBSCRIPTION_ID, Field("active", u8, labels=ACTIVE, closed=True), note="asked by the server")
CONSUMER_UPDATE_RESPONSE = reply(
    0x001A,
    OFFSET_TYPE,
    OFFSET_VALUE,
    Optional(Field("surplus", Fixed(8), "some clients always write an offset; servers ignore it")),
)

_VERSIONS = Field(
    "commands", Array((Field("key", u16, labels=COMMANDS, closed=True), Field("min_version", u16), Field("max_version", u16)), i32)
)
EXCHANGE_COMMAND_VERSIONS = request(0x001B, _VERSIONS)
EXCHANGE_COMMAND_VERSIONS_RESPONSE = reply(0x001B, _VERSIONS)

STREAM_STATS = request(0x001C, STREAM)
STREAM_STATS_RESPONSE = reply(0x001C, Field("stats", Array((Field("key", STRING), Field("value", i64)), i32), "-1 on an empty stream"))

CREATE_SUPER_STREAM = request(
    0x001D,
    Field("name", STRING),
    Field("partitions", STRINGS),
    Field("binding_keys", STRINGS, "as many as partitions"),
    Field("arguments", PROPERTIES),
)
CREATE_SUPER_STREAM_RESPONSE = reply(0x001D)

DELETE_SUPER_STREAM = request(0x001E, Field("name", STRING))
DELETE_SUPER_STREAM_RESPONSE = reply(0x001E)

RESOLVE_OFFSET_SPEC = request(0x001F, STREAM, OFFSET_TYPE, OFFSET_VALUE, Optional(Field("properties", PROPERTIES)))
RESOLVE_OFFSET_SPEC_RESPONSE = reply(0x001F, OFFSET_TYPE, Field("offset", u64, "always there, 0 on errors"))

UNKNOWN = Layout("unknown", *_head(0, 1), Field("body", Rest()), kind="one_way", note="a key or version that is not known")
_BODY = Optional(Field("body", Rest(), "hidden: there may be a password in it", secret=True))
HIDDEN = Layout("hidden", *_head(0, 1), CORRELATION_ID, _BODY, kind="one_way", note="what comes where a password is expected")
HIDDEN_LOGIN = Layout("hidden", *_head(0, 1), CORRELATION_ID, Field("mechanism", STRING), _BODY, kind="one_way")
HIDDEN_SHORT = Layout("hidden", *_head(0, 1), _BODY, kind="one_way", note="too short for a correlation id")
HIDDEN_FRAME = Layout("hidden", _BODY, kind="one_way", note="perhaps no frame at all")

CLIENT_LAYOUTS = (
    DECLARE_PUBLISHER,
    PUBLISH,
    PUBLISH_2,
    QUERY_PUBLISHER_SEQUENCE,
    DELETE_PUBLISHER,
    SUBSCRIBE,
    SUBSCRIBE_2,
    CREDIT,
    CREDIT_2,
    STORE_OFFSET,
    QUERY_OFFSET,
    UNSUBSCRIBE,
    CREATE,
    DELETE,
    METADATA,
    PEER_PROPERTIES,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
    TUNE_RESPONSE,
    TUNE_RESPONSE_MARKED,
    OPEN,
    ROUTE,
    PARTITIONS,
    CONSUMER_UPDATE_RESPONSE,
    EXCHANGE_COMMAND_VERSIONS,
    STREAM_STATS,
    CREATE_SUPER_STREAM,
    DELETE_SUPER_STREAM,
    RESOLVE_OFFSET_SPEC,
)
"""What clients send."""

SERVER_LAYOUTS = (
    DECLARE_PUBLISHER_RESPONSE,
    PUBLISH_CONFIRM,
    PUBLISH_ERROR,
    QUERY_PUBLISHER_SEQUENCE_RESPONSE,
    DELETE_PUBLISHER_RESPONSE,
    SUBSCRIBE_RESPONSE,
    DELIVER,
    DELIVER_2,
    CREDIT_RESPONSE,
    QUERY_OFFSET_RESPONSE,
    UNSUBSCRIBE_RESPONSE,
    CREATE_RESPONSE,
    DELETE_RESPONSE,
    METADATA_RESPONSE,
    METADATA_UPDATE,
    PEER_PROPERTIES_RESPONSE,
    SASL_HANDSHAKE_RESPONSE,
    SASL_AUTHENTICATE_RESPONSE,
    SASL_AUTHENTICATE_RESPONSE_32,
    TUNE,
    OPEN_RESPONSE,
    ROUTE_RESPONSE,
    ROUTE_RESPONSE_UNMARKED,
    PARTITIONS_RESPONSE,
    PARTITIONS_RESPONSE_UNMARKED,
    CONSUMER_UPDATE,
    EXCHANGE_COMMAND_VERSIONS_RESPONSE,
    STREAM_STATS_RESPONSE,
    CREATE_SUPER_STREAM_RESPONSE,
    DELETE_SUPER_STREAM_RESPONSE,
    RESOLVE_OFFSET_SPEC_RESPONSE,
)
"""What servers send."""

BOTH_LAYOUTS = (CLOSE, CLOSE_RESPONSE, HEARTBEAT)
"""What either side sends."""

LAYOUTS = (*CLIENT_LAYOUTS, *SERVER_LAYOUTS, *BOTH_LAYOUTS)

NEWEST: dict[int, int] = {}
"""By command the newest version that has a layout."""
for _layout in LAYOUTS:
    assert isinstance(_layout.key, int)
    (_version,) = (int(entry.default) for entry in _layout.fields if isinstance(entry, Field) and entry.name == "version")
    NEWEST[_layout.key & ~RESPONSE] = max(_version, NEWEST.get(_layout.key & ~RESPONSE, 0))

ANSWERED_BY_ID = frozenset(layout.name for layout in LAYOUTS if CORRELATION_ID in layout.fields)
"""Commands with a correlation id."""


def command_name(key: int) -> str:
    """Return the name of a command, the same for request and response."""
    return COMMANDS.get(key & ~RESPONSE) or f"unknown 0x{key & ~RESPONSE:04x}"


def newer_versions(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return what an ExchangeCommandVersions states that is newer than the layouts, by the name of the command: "Publish up to 3".
    Of commands that are not known, as many as are known at most."""
    found: dict[str, str] = {}
    for one in fields.get("commands") or ():
        newest = NEWEST.get(one.get("key", 0))
        if newest is None and "key" in one:
            if len(found) < len(NEWEST):
                found[command_name(one["key"])] = f"command 0x{one['key']:04x}"
        elif one.get("max_version", 0) > (newest or 0):
            found[COMMANDS[one["key"]]] = f"{COMMANDS[one['key']]} up to {one['max_version']}"
    return found
