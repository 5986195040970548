"""Frames of Seastar RPC, after the library as of August 2026 (and August 2023 where older); all integers little endian.

Which header a request or response has was agreed on in the two negotiation frames, so both have two layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from uuid import UUID

from ...layout import (
    Bits,
    Blob,
    Choice,
    Custom,
    Field,
    Fixed,
    FixedText,
    Group,
    Layout,
    Repeat,
    Rest,
    Sized,
    Style,
    Text,
    Walker,
    following,
    i64le,
    u8,
    u32le,
    u64le,
)
from . import MAGIC

COMPRESS, TIMEOUT, CONNECTION_ID, STREAM_PARENT, ISOLATION, HANDLER_DURATION = range(6)

FEATURES: Mapping[int, str] = {
    COMPRESS: "COMPRESS",
    TIMEOUT: "TIMEOUT",
    CONNECTION_ID: "CONNECTION_ID",
    STREAM_PARENT: "STREAM_PARENT",
    ISOLATION: "ISOLATION",
    HANDLER_DURATION: "HANDLER_DURATION",
}

OVER = 1 << 63
"""A timeout from here on is negative as int64: over already when the request was written."""

NOT_MEASURED = 0xFFFF_FFFF
DURATIONS: Mapping[int, str] = {NOT_MEASURED: "not measured"}

USER, UNKNOWN_VERB = 0, 1
EXCEPTIONS: Mapping[int, str] = {USER: "USER", UNKNOWN_VERB: "UNKNOWN_VERB"}

END_OF_STREAM = 0xFFFF_FFFF

RECORD = (
    Field("number", u32le, labels=FEATURES),
    Field("len", u32le),
    Choice(
        "number",
        {
            COMPRESS: (
                Field("algorithms", Text("len"), "the client's: offered, comma separated, best first; the server's: the one chosen"),
            ),
            CONNECTION_ID: (
                Field("connection_id", Sized("len", u64le), "(serial << 16) | shard; from servers with streaming configured, unasked"),
            ),
            STREAM_PARENT: (
                Field("stream_parent", Sized("len", u64le), "connection id of the parent; makes this a stream connection, never echoed"),
            ),
            ISOLATION: (Field("cookie", Text("len"), "echoed by the server"),),
        },
        otherwise=(Field("data", Blob("len"), "empty for TIMEOUT and HANDLER_DURATION; unknown features are ignored by the other side"),),
    ),
)

NEGOTIATION = Layout(
    "Negotiation",
    Field("magic", FixedText(len(MAGIC)), "SSTARRPC"),
    Field("len", u32le, "bytes of the records that follow", default=following),
    Field("features", Sized("len", Repeat(RECORD)), "a number that occurs twice: the first one counts"),
    answers=True,
    note="First frame of each side. The server's states what is in force; a server that refuses closes without an answer.",
)

_TIMEOUT = Field("timeout", u64le, "milliseconds left when the frame was written, 0 none; negative as int64: over already")
_MSG_ID = Field("msg_id", i64le, "rises, with gaps")
_REPLY_ID = Field("msg_id", i64le, "the request's; its opposite for an exception")
_LEN = Field("len", u32le, "bytes of the payload")
_DURATION = Field("handler_duration", u32le, "microseconds by a coarse clock", labels=DURATIONS)
_PAYLOAD = Field("payload", Blob("len"), "the application's own serialization")
_EXCEPTION = (
    Field("exception_type", u32le, labels=EXCEPTIONS),
    Field("exception_len", u32le, "bytes of what follows"),
)

RESPONSE = Layout("Response", _REPLY_ID, _LEN, _PAYLOAD, kind="response", note="Without HANDLER_DURATION.")
RESPONSE_DURATION = Layout("Response", _REPLY_ID, _LEN, _DURATION, _PAYLOAD, kind="response", note="With HANDLER_DURATION.")
STREAM = Layout("Stream", _LEN, _PAYLOAD, kind="one_way", note="A message of a stream connection, from either side; may be empty.")
END = Layout("EndOfStream", Field("len", u32le, "ff ff ff ff"), kind="one_way", note="This side sends no more; each side has its own.")
SEALED = Layout(
    "Compressed",
    Field("len", u32le, "bytes that follow"),
    Field("packed", Blob("len"), "a frame in a compression that cannot be opened here"),
    kind="one_way",
)
LZ4_FRAME = Layout(
    "LZ4 frame",
    Field("len", u32le, "bytes that follow; below 4 an empty frame"),
    Field("unpacked_size", u32le),
    Field("block", Rest(), "one LZ4 block, which unpacks to one request, response or stream frame"),
    kind="one_way",
    note="Shown as the frame inside it, with `compression`: algorithm, packed_size, unpacked_size.",
)
LZ4_CHUNK = Layout(
    "LZ4_FRAGMENTED chunk",
    Field("header", u32le, "bit 31: last chunk, and the unpacked size; else the packed size of a chunk that unpacks to 32768"),
    Field("block", Rest(), "an LZ4 block that may refer to the 64 KiB unpacked before it"),
    kind="one_way",
    note="A frame is its length and one or more of these.",
)

RAW, LZ4_METHOD, ZSTD = range(3)
METHODS: Mapping[int, str] = {RAW: "raw", LZ4_METHOD: "lz4", ZSTD: "zstd"}
"""The algorithms of SCYLLA_V3."""
CHECKSUM, CONTROL, ALGORITHM = 0x40, 0x80, 0x3F
"""The bits of a header of SCYLLA_V3: what follows, and the algorithm."""

NOTHING, UPDATE, COMMIT = range(3)
ACTIONS: Mapping[int, str] = {NOTHING: "nothing", UPDATE: "UPDATE", COMMIT: "COMMIT"}
ALLOWED: Mapping[int, str] = {
    allowed: "+".join(name for method, name in METHODS.items() if allowed >> method & 1) or "none" for allowed in range(8)
}

HALF = 66
CONTROL_SIZE = 2 * HALF
SHA256_AT = 34
"""Bytes of a half of a control block, and of both; where in a half the dictionary stands."""


def _read_origin(buf: bytes, at: int, end: int, style: Style) -> tuple[str, int]:
    # fewer than 16 bytes are a ValueError
    return str(UUID(bytes=buf[at : min(at + 16, end)][::-1])), at + 16


def _walk_origin(buf: bytes, at: int, end: int, walker: Walker, name: str, depth: int) -> tuple[str, int]:
    value, after = _read_origin(buf, at, end, walker.style)
    walker.span(name, at, after, value, depth)
    return value, after


def _write_origin(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else UUID(value).bytes[::-1]


_ORIGIN = Custom(_read_origin, _walk_origin, "text", 16, write=_write_origin, samples=(bytes(range(16)),))

HALF_FIELDS = (
    Field("action", u8, "nothing: the rest of this half does not count", labels=ACTIONS, closed=True),
    Field("epoch", u64le),
    Field("algorithms", u8, "a bit each: as sender the one to use, as receiver all that are allowed", labels=ALLOWED),
    Field("origin", _ORIGIN, "UUID of the node that made the dictionary, its bytes in reverse order"),
    Field("timestamp", u64le, "of the dictionary, milliseconds since 1970"),
    Field("dictionary", Fixed(32), "its SHA-256; zeros: none"),
)
_SIZE = Field("len", u32le, "bytes that follow")
_HEADER = Field(
    "header", Bits(u8, ("control_block", 1), ("checksum", 1), ("algorithm", 6, METHODS)), "what follows, and how the rest is packed"
)
_CHECKSUM = Field("checksum", u32le, "if its bit is set: CRC-32C of the message, from 0 and not inverted")
_CONTROL = Field(
    "control",
    Group(Field("sender", Group(*HALF_FIELDS), "of this direction"), Field("receiver", Group(*HALF_FIELDS), "of the other direction")),
    "if its bit is set",
)
SCYLLA_HEADS = {
    flags: Layout(
        "SCYLLA_V3 head",
        _SIZE,
        _HEADER,
        *([_CHECKSUM] if flags & CHECKSUM else []),
        *([_CONTROL] if flags & CONTROL else []),
        kind="one_way",
    )
    for flags in (0, CHECKSUM, CONTROL, CHECKSUM | CONTROL)
}
"""The bytes before packed ones, by the bits of the header."""
SCYLLA_FRAME = Layout(
    "SCYLLA_V3 frame",
    _SIZE,
    Field("compression", Group(_HEADER, _CHECKSUM, _CONTROL)),
    Field("packed", Rest(), "raw, or LZ4 blocks, each behind its size, or a zstd frame without its magic; of an empty message nothing"),
    kind="one_way",
    note="ScyllaDB's. Shown as the frame inside it, with `compression`. Control blocks agree on algorithm and dictionary.",
)


class VerbLayouts:
    """The layouts that name verbs, with the names of one run."""

    def __init__(self, verbs: Mapping[int, str] | None) -> None:
        verb = Field("verb", u64le, "the application's number of a remote function", labels=verbs)
        unknown = Field("verb", u64le, "the verb that the server does not know", labels=verbs)
        self.request = Layout("Request", verb, _MSG_ID, _LEN, _PAYLOAD, note="Without TIMEOUT.")
        self.request_timeout = Layout("Request", _TIMEOUT, verb, _MSG_ID, _LEN, _PAYLOAD, note="With TIMEOUT.")
        what = Choice(
            "exception_type",
            {USER: (Field("text", Text("exception_len")),), UNKNOWN_VERB: (unknown,)},
            otherwise=(Field("body", Blob("exception_len"), "the client takes it for an unknown exception"),),
        )
        note = "A response whose msg_id is the opposite of the request's. The payload length is always 8 + exception_len."
        self.exception = Layout("Exception", _REPLY_ID, _LEN, *_EXCEPTION, what, kind="response", note=note)
        self.exception_duration = Layout("Exception", _REPLY_ID, _LEN, _DURATION, *_EXCEPTION, what, kind="response", note=note)


PLAIN = VerbLayouts(None)


def tables(verbs: Mapping[int, str] | None) -> VerbLayouts:
    """Those for these names, made once: so are their decoders."""
    return _named(tuple(verbs.items())) if verbs else PLAIN


@lru_cache(16)
def _named(verbs: tuple[tuple[int, str], ...]) -> VerbLayouts:
    return VerbLayouts(dict(verbs))


LAYOUTS = (
    NEGOTIATION,
    PLAIN.request_timeout,
    PLAIN.request,
    RESPONSE_DURATION,
    RESPONSE,
    PLAIN.exception_duration,
    PLAIN.exception,
    STREAM,
    END,
    LZ4_FRAME,
    LZ4_CHUNK,
    SCYLLA_FRAME,
    SEALED,
)

ADDED = (
    ("negotiated", "object", "on the server's Negotiation: what is in force"),
    ("negotiated.connection", "text", "rpc or stream; null where that is not known"),
    ("negotiated.compression", "text", "the algorithm"),
    ("negotiated.timeout", "boolean", "requests have one"),
    ("negotiated.handler_duration", "boolean", "responses have one"),
    ("negotiated.declined", "array of text", "features that the client offered and the server left out"),
    ("compression", "object", "where the frame was compressed"),
    ("compression.algorithm", "text", ""),
    ("compression.packed_size", "uint32", ""),
    ("compression.unpacked_size", "uint32", ""),
    ("compression.dictionary", "text", "SCYLLA_V3: SHA-256 of the dictionary in force, or found to fit; null: none, or unknown"),
    ("verb_label", "text", "with --verbs, and where SCYLLA_V3 shows that it is ScyllaDB"),
)
