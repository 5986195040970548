"""The tables that a pipeline writes: their columns, and records as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from dissect.model import ConversationRow, Exchange, Gap, Message
from dissect.spark.flows import Linked
from dissect.spark.splits import Trouble

_JSON = msgspec.json.Encoder()


def _text(value: Any) -> str:
    return _JSON.encode(value).decode()


class Input(msgspec.Struct):
    """One of the captures."""

    file: int
    path: str
    size: int
    packets: int


class Column(msgspec.Struct, frozen=True):
    """One column: its type, what it says, and how it is made of a row's source."""

    name: str
    type: Any
    says: str
    get: Callable[[Any], Any]


LONG, INT, TEXT, TEXTS = pa.int64(), pa.int32(), pa.string(), pa.list_(pa.string())
TIME = pa.timestamp("us", "UTC")
FAULT = pa.struct([("field", TEXT), ("offset", LONG), ("reason", TEXT), ("buffer", TEXT)])


def _ident(value: Any) -> str | None:
    return None if value is None else str(value)


def _fault(fault: Any) -> dict[str, Any] | None:
    return None if fault is None else {"field": fault.field, "offset": fault.offset, "reason": fault.reason, "buffer": fault.buffer}


def _other(prefix: str, at: int, what: str) -> tuple[Column, ...]:
    """Where the request or response is that a record names."""

    def of(get: Callable[[Message], Any]) -> Callable[[Linked], Any]:
        return lambda one: None if one[at] is None else get(one[at])  # type: ignore[arg-type]

    return (
        Column(f"{prefix}_file", INT, f"index of the input that {what} is in", of(lambda one: one.file)),
        Column(f"{prefix}_first_packet", LONG, f"first packet of {what}", of(lambda one: one.packets[0])),
        Column(f"{prefix}_last_packet", LONG, f"last packet of {what}", of(lambda one: one.packets[1])),
        Column(f"{prefix}_position", LONG, f"position of {what} in its byte stream", of(lambda one: one.position)),
    )


def _common(name: bool = True) -> tuple[Column, ...]:
    columns = [
        Column("time", TIME, "capture time, cut to microseconds", lambda one: one[0].time_ns // 1000),
        Column("time_ns", LONG, "the same in nanoseconds since 1970", lambda one: one[0].time_ns),
        Column("conversation", LONG, "the conversation, as in table conversations", lambda one: one[0].conversation),
        Column("src", TEXT, "endpoint that sent it", lambda one: one[0].src),
        Column("dst", TEXT, "endpoint that it was sent to", lambda one: one[0].dst),
        Column("protocol", TEXT, "protocol", lambda one: one[0].protocol),
    ]
    if name:
        columns.append(Column("name", TEXT, "the protocol's own name of the command", lambda one: one[0].name))
        columns.append(Column("id", TEXT, "correlation id and the like, as text", lambda one: _ident(one[0].id)))
    return tuple(columns)


SENDER = Column("sender", TEXT, "client or server, null when the capture cannot tell", lambda one: one[0].sender)
OUTCOME = Column("outcome", TEXT, "how the request ended", lambda one: one[0].outcome)
LATENCY = Column("latency_ns", LONG, "last byte of the request to first byte of the response", lambda one: one[0].latency_ns)

MESSAGES: tuple[Column, ...] = (
    *_common(),
    SENDER,
    Column("kind", TEXT, "request, response or one_way", lambda one: one[0].kind),
    Column("file", INT, "index of the input, in table files", lambda one: one[0].file),
    Column("first_packet", LONG, "first packet in that file, null if in an earlier one", lambda one: one[0].packets[0]),
    Column("last_packet", LONG, "packet that completed it", lambda one: one[0].packets[1]),
    Column("position", LONG, "byte position in its sender's byte stream", lambda one: one[0].position),
    Column("size", LONG, "bytes of the frame", lambda one: one[0].size),
    Column("fields", TEXT, "every field, as JSON", lambda one: _text(one[0].fields)),
    *_other("request", 1, "its request"),
    OUTCOME,
    LATENCY,
    Column("notes", TEXTS, "what is odd about it", lambda one: list(one[0].notes)),
    Column("fault", FAULT, "why bytes could not be read as their layout", lambda one: _fault(one[0].fault)),
)

EXCHANGES: tuple[Column, ...] = (
    *_common(),
    *_other("request", 1, "the request"),
    *_other("response", 2, "the response"),
    OUTCOME,
    Column("reason", TEXT, "why there is no response", lambda one: one[0].reason),
    LATENCY,
)

GAPS: tuple[Column, ...] = (
    *_common(False),
    SENDER,
    Column("position", LONG, "byte position in its sender's byte stream", lambda one: one[0].position),
    Column("size", LONG, "bytes", lambda one: one[0].size),
    Column("reason", TEXT, "lost, cut or skipped", lambda one: one[0].reason),
    Column("in_frame", pa.bool_(), "whether they lie in a frame that is a message all the same", lambda one: one[0].in_frame),
)


def _plain(name: str, kind: Any, says: str) -> Column:
    return Column(name, kind, says, lambda one: getattr(one, name))


CONVERSATIONS: tuple[Column, ...] = (
    Column("time", TIME, "time of its first packet, cut to microseconds", lambda one: one.time_ns // 1000),
    _plain("time_ns", LONG, "the same in nanoseconds since 1970"),
    _plain("duration_ns", LONG, "from its first to its last packet"),
    _plain("conversation", LONG, "its number: index of the file times 2**40, plus the number of its first packet"),
    Column("endpoints", TEXTS, "both sides; pairs are in this order", lambda one: list(one.endpoints)),
    _plain("client", TEXT, "the endpoint that is the client, null when the capture cannot tell"),
    _plain("server", TEXT, "the endpoint that is the server"),
    _plain("protocol", TEXT, "null if none of those that streamdump reads"),
    _plain("name", TEXT, "what else it speaks, where that is known"),
    _plain("confidence", pa.float64(), "0 to 1"),
    Column("evidence", TEXTS, "what the verdict rests on", lambda one: list(one.evidence)),
    _plain("layout", TEXT, "layout of the protocol, where it has several"),
    Column("candidates", TEXTS, "layouts that could not be told apart", lambda one: list(one.candidates)),
    Column("packets", pa.list_(LONG), "packets of each side", lambda one: list(one.packets)),
    Column("bytes", pa.list_(LONG), "length of each side's byte stream", lambda one: list(one.bytes)),
    _plain("messages", LONG, "messages of both sides"),
    _plain("faults", LONG, "messages that could not be read in full"),
    _plain("gaps", LONG, "gaps of both sides"),
    _plain("gap_bytes", LONG, "bytes in them"),
    _plain("unanswered", LONG, "requests without a response"),
    _plain("retransmissions", LONG, "segments whose bytes had come before"),
    _plain("ended", TEXT, "how it ended"),
    _plain("limit_hits", LONG, "how often a limit was reached"),
    Column("facts", TEXT, "what the protocol's state adds, as JSON", lambda one: _text(one.facts)),
)

ERRORS: tuple[Column, ...] = (
    _plain("file", INT, "index of the input"),
    _plain("path", TEXT, "the file"),
    _plain("offset", LONG, "byte position in the unpacked file, where that is known"),
    _plain("packet", LONG, "the last whole packet"),
    _plain("reason", TEXT, "what is wrong"),
    _plain("lost", LONG, "bytes that were not read, null where nobody knows"),
    _plain("fatal", pa.bool_(), "false: everything was read all the same"),
)

FILES: tuple[Column, ...] = (
    _plain("file", INT, "index of the input"),
    _plain("path", TEXT, "the file"),
    _plain("size", LONG, "its bytes"),
    _plain("packets", LONG, "packets read of it"),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "messages": MESSAGES,
    "exchanges": EXCHANGES,
    "conversations": CONVERSATIONS,
    "gaps": GAPS,
    "errors": ERRORS,
    "files": FILES,
}

KINDS: dict[type, str] = {Message: "messages", Exchange: "exchanges", Gap: "gaps"}


def schema(table: str) -> Any:
    """The Arrow schema of a table."""
    return pa.schema([pa.field(column.name, column.type, metadata={"comment": column.says}) for column in TABLES[table]])


def batch(table: str, rows: Sequence[Linked] | Sequence[ConversationRow] | Sequence[Trouble] | Sequence[Input]) -> Any:
    """Records as columns."""
    columns = TABLES[table]
    arrays = []
    for column in columns:
        get = column.get
        arrays.append(pa.array([get(row) for row in rows], column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema(table))


def sorted_out(records: Sequence[Linked]) -> dict[str, list[Linked]]:
    """Records by the table that they belong to."""
    found: dict[str, list[Linked]] = {name: [] for name in KINDS.values()}
    for one in records:
        found[KINDS[type(one[0])]].append(one)
    return found
