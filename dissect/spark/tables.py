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
    """One column: its type, what it says, and how it is made: for many rows at once, since a call for each would cost more."""

    name: str
    type: Any
    says: str
    get: Callable[[Sequence[Any]], list[Any]]


LONG, INT, TEXT, TEXTS = pa.int64(), pa.int32(), pa.string(), pa.list_(pa.string())
TIME = pa.timestamp("us", "UTC")
FAULT = pa.struct([("field", TEXT), ("offset", LONG), ("reason", TEXT), ("buffer", TEXT)])


def _ident(value: Any) -> str | None:
    return None if value is None else str(value)


def _fault(fault: Any) -> dict[str, Any] | None:
    return None if fault is None else {"field": fault.field, "offset": fault.offset, "reason": fault.reason, "buffer": fault.buffer}


def _other(prefix: str, at: int, what: str) -> tuple[Column, ...]:
    """Where the request or response is that a record names."""

    def there(rows: Sequence[Any]) -> list[Any]:
        return [row[at] for row in rows]

    return (
        Column(f"{prefix}_file", INT, f"index of the input that {what} is in", lambda rows: [one and one.file for one in there(rows)]),
        Column(f"{prefix}_first_packet", LONG, f"first packet of {what}", lambda rows: [one and one.packets[0] for one in there(rows)]),
        Column(f"{prefix}_last_packet", LONG, f"last packet of {what}", lambda rows: [one and one.packets[1] for one in there(rows)]),
        Column(
            f"{prefix}_position", LONG, f"position of {what} in its byte stream", lambda rows: [one and one.position for one in there(rows)]
        ),
    )


def _common(name: bool = True) -> tuple[Column, ...]:
    columns = [
        Column("time", TIME, "capture time, cut to microseconds", lambda rows: [one[0].time_ns // 1000 for one in rows]),
        Column("time_ns", LONG, "the same in nanoseconds since 1970", lambda rows: [one[0].time_ns for one in rows]),
        Column("conversation", LONG, "the conversation, as in table conversations", lambda rows: [one[0].conversation for one in rows]),
        Column("src", TEXT, "endpoint that sent it", lambda rows: [one[0].src for one in rows]),
        Column("dst", TEXT, "endpoint that it was sent to", lambda rows: [one[0].dst for one in rows]),
        Column("protocol", TEXT, "protocol", lambda rows: [one[0].protocol for one in rows]),
    ]
    if name:
        columns.append(Column("name", TEXT, "the protocol's own name of the command", lambda rows: [one[0].name for one in rows]))
        columns.append(Column("id", TEXT, "correlation id and the like, as text", lambda rows: [_ident(one[0].id) for one in rows]))
    return tuple(columns)


SENDER = Column("sender", TEXT, "client or server, null when the capture cannot tell", lambda rows: [one[0].sender for one in rows])
OUTCOME = Column("outcome", TEXT, "how the request ended", lambda rows: [one[0].outcome for one in rows])
LATENCY = Column(
    "latency_ns", LONG, "last byte of the request to first byte of the response", lambda rows: [one[0].latency_ns for one in rows]
)

MESSAGES: tuple[Column, ...] = (
    *_common(),
    SENDER,
    Column("kind", TEXT, "request, response or one_way", lambda rows: [one[0].kind for one in rows]),
    Column("file", INT, "index of the input, in table files", lambda rows: [one[0].file for one in rows]),
    Column("first_packet", LONG, "first packet in that file, null if in an earlier one", lambda rows: [one[0].packets[0] for one in rows]),
    Column("last_packet", LONG, "packet that completed it", lambda rows: [one[0].packets[1] for one in rows]),
    Column("position", LONG, "byte position in its sender's byte stream", lambda rows: [one[0].position for one in rows]),
    Column("size", LONG, "bytes of the frame", lambda rows: [one[0].size for one in rows]),
    Column("fields", TEXT, "every field, as JSON", lambda rows: [_text(one[0].fields) for one in rows]),
    *_other("request", 1, "its request"),
    OUTCOME,
    LATENCY,
    Column("notes", TEXTS, "what is odd about it", lambda rows: [list(one[0].notes) for one in rows]),
    Column("fault", FAULT, "why bytes could not be read as their layout", lambda rows: [_fault(one[0].fault) for one in rows]),
)

EXCHANGES: tuple[Column, ...] = (
    *_common(),
    *_other("request", 1, "the request"),
    *_other("response", 2, "the response"),
    OUTCOME,
    Column("reason", TEXT, "why there is no response", lambda rows: [one[0].reason for one in rows]),
    LATENCY,
)

GAPS: tuple[Column, ...] = (
    *_common(False),
    SENDER,
    Column("position", LONG, "byte position in its sender's byte stream", lambda rows: [one[0].position for one in rows]),
    Column("size", LONG, "bytes", lambda rows: [one[0].size for one in rows]),
    Column("reason", TEXT, "lost, cut or skipped", lambda rows: [one[0].reason for one in rows]),
    Column(
        "in_frame", pa.bool_(), "whether they lie in a frame that is a message all the same", lambda rows: [one[0].in_frame for one in rows]
    ),
)


def _plain(name: str, kind: Any, says: str) -> Column:
    return Column(name, kind, says, lambda rows: [getattr(one, name) for one in rows])


CONVERSATIONS: tuple[Column, ...] = (
    Column("time", TIME, "time of its first packet, cut to microseconds", lambda rows: [one.time_ns // 1000 for one in rows]),
    _plain("time_ns", LONG, "the same in nanoseconds since 1970"),
    _plain("duration_ns", LONG, "from its first to its last packet"),
    _plain("conversation", LONG, "its number: index of the file times 2**40, plus the number of its first packet"),
    Column("endpoints", TEXTS, "both sides; pairs are in this order", lambda rows: [list(one.endpoints) for one in rows]),
    _plain("client", TEXT, "the endpoint that is the client, null when the capture cannot tell"),
    _plain("server", TEXT, "the endpoint that is the server"),
    _plain("protocol", TEXT, "null if none of those that streamdump reads"),
    _plain("name", TEXT, "what else it speaks, where that is known"),
    _plain("confidence", pa.float64(), "0 to 1"),
    Column("evidence", TEXTS, "what the verdict rests on", lambda rows: [list(one.evidence) for one in rows]),
    _plain("layout", TEXT, "layout of the protocol, where it has several"),
    Column("candidates", TEXTS, "layouts that could not be told apart", lambda rows: [list(one.candidates) for one in rows]),
    Column("packets", pa.list_(LONG), "packets of each side", lambda rows: [list(one.packets) for one in rows]),
    Column("bytes", pa.list_(LONG), "length of each side's byte stream", lambda rows: [list(one.bytes) for one in rows]),
    _plain("messages", LONG, "messages of both sides"),
    _plain("faults", LONG, "messages that could not be read in full"),
    _plain("gaps", LONG, "gaps of both sides"),
    _plain("gap_bytes", LONG, "bytes in them"),
    _plain("unanswered", LONG, "requests without a response"),
    _plain("retransmissions", LONG, "segments whose bytes had come before"),
    _plain("ended", TEXT, "how it ended"),
    _plain("limit_hits", LONG, "how often a limit was reached"),
    Column("facts", TEXT, "what the protocol's state adds, as JSON", lambda rows: [_text(one.facts) for one in rows]),
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
    arrays = [pa.array(column.get(rows), column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(table))


def sorted_out(records: Sequence[Linked]) -> dict[str, list[Linked]]:
    """Records by the table that they belong to."""
    found: dict[str, list[Linked]] = {name: [] for name in KINDS.values()}
    for one in records:
        found[KINDS[type(one[0])]].append(one)
    return found
