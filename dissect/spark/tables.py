"""The tables that a pipeline writes: their columns, and records as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dissect.errors import Report, bug
from dissect.model import ConversationRow, Ending, Exchange, Gap, Message
from dissect.spark.flows import FILE_BITS, Linked
from dissect.spark.splits import Trouble
from dissect.spark.typed import STRUCTS, WHOLE_CLASSES, WIDE, Member, spread, struct_name, structs

_JSON = msgspec.json.Encoder()

MOST = (1 << 31) - 1
"""Bytes that a column of text holds."""


SCHEMA = 2
"""Rises with every change of the columns: they are only ever added, so whoever reads an older table finds null in the new ones."""

SCHEMA_KEY = "streamdump.schema"
"""Where Parquet files and Delta tables say it."""


class Input(msgspec.Struct):
    """One of the captures."""

    file: int
    path: str
    size: int
    packets: int
    point: str | None = None
    head: str = ""
    unpacked: int | None = None


class PointOf(Protocol):
    """Where files were captured, by index."""

    def get(self, file: int, /) -> str | None:
        """Of a file."""


NOWHERE = np.array([], np.int64)


class Rows:
    """Rows of one table, and what several of its columns are made of."""

    def __init__(self, rows: Sequence[Any], linked: bool, points: PointOf | None = None) -> None:
        self.rows = rows
        self.records: Sequence[Any] = [one[0] for one in rows] if linked else rows
        self._points: PointOf = points if points is not None else {}

    def __len__(self) -> int:
        return len(self.rows)

    def points(self, files: Sequence[int]) -> Any:
        """Where these files were captured."""
        one, *others = set(files) or {0}
        if not others:
            return pa.repeat(pa.scalar(self._points.get(one), TEXT), len(self))
        return pa.array([self._points.get(file) for file in files], TEXT)

    @cached_property
    def time_ns(self) -> NDArray[np.int64]:
        return np.array([one.time_ns for one in self.records], np.int64)

    @cached_property
    def packets(self) -> Columns:
        """The first and the last packet of each message."""
        return list(zip(*[one.packets for one in self.records], strict=True)) or [(), ()]

    @cached_property
    def fields(self) -> list[dict[str, Any]]:
        return [one.fields for one in self.records]

    @cached_property
    def protocols(self) -> list[str]:
        return [one.protocol for one in self.records]

    @cached_property
    def _places(self) -> dict[str, NDArray[np.int64] | None]:
        distinct = set(self.protocols)
        if len(distinct) == 1:
            return dict.fromkeys(distinct)
        return {name: np.array([place for place, one in enumerate(self.protocols) if one == name], np.int64) for name in distinct}

    def of(self, protocol: str) -> tuple[list[dict[str, Any]], NDArray[np.int64] | None]:
        """The fields of messages of a protocol, and their rows (None: all)."""
        places = self._places.get(protocol, NOWHERE)
        return self.fields if places is None else [self.fields[place] for place in places.tolist()], places

    def others(self, at: int) -> tuple[Columns, NDArray[np.int64]]:
        """Where the requests (1) or responses (2) are that records name (`WHERE`), and the rows that name them."""
        return self._requests if at == 1 else self._responses

    @cached_property
    def _requests(self) -> tuple[Columns, NDArray[np.int64]]:
        return _present([one[1] for one in self.rows])

    @cached_property
    def _responses(self) -> tuple[Columns, NDArray[np.int64]]:
        return _present([one[2] for one in self.rows])


Columns = Sequence[Sequence[int | None]]

WHERE = ("file", "first_packet", "last_packet", "position")
"""What is told of another message."""

_where = attrgetter("file", "packets", "position")


def _present(found: list[Message | None]) -> tuple[Columns, NDArray[np.int64]]:
    places = np.array([place for place, one in enumerate(found) if one is not None], np.int64)
    if not len(places):
        return [()] * len(WHERE), places
    # Once through: these messages may be long out of the processor's cache
    files, packets, positions = zip(*[_where(one) for one in found if one is not None], strict=True)
    return [files, *zip(*packets, strict=True), positions], places


class Column(msgspec.Struct, frozen=True):
    """One column: its type, what it says, and how it is made: for many rows at once, since a call for each would cost more."""

    name: str
    type: Any
    says: str
    get: Callable[[Rows], Any]
    """Its values, or the Arrow array of them."""


LONG, INT, TEXT, TEXTS = pa.int64(), pa.int32(), pa.string(), pa.list_(pa.string())
TIME = pa.timestamp("us", "UTC")
FAULT = pa.struct(
    [
        pa.field(name, kind, metadata={"comment": says})
        for name, kind, says in (
            ("field", TEXT, "path of the field"),
            ("offset", LONG, "byte offset of it"),
            ("reason", TEXT, "what is wrong"),
            ("buffer", TEXT, "what the offset counts in: frame, or unpacked"),
        )
    ]
)


def _texts(values: Sequence[Sequence[str]]) -> Any:
    if not any(values):
        return pa.ListArray.from_arrays(pa.array(np.zeros(len(values) + 1, np.int32)), pa.array([], TEXT), type=TEXTS)
    return pa.array([list(one) for one in values], TEXTS)


def _idents(values: list[int | str | None]) -> Any:
    if WHOLE_CLASSES.issuperset(map(type, values)):
        try:
            return pa.array(values, LONG).cast(TEXT)
        except OverflowError:
            pass
    return [None if one is None else str(one) for one in values]


def _fault(fault: Any) -> dict[str, Any] | None:
    return None if fault is None else {"field": fault.field, "offset": fault.offset, "reason": fault.reason, "buffer": fault.buffer}


def _faults(values: list[Any]) -> Any:
    return [_fault(one) for one in values] if any(values) else pa.nulls(len(values), FAULT)


def _json(values: Sequence[Any]) -> Any:
    """Each as JSON text, one behind the other in one buffer."""
    text, ends = bytearray(), [0]
    encode = _JSON.encode_into
    for one in values:
        encode(one, text, -1)
        ends.append(len(text))
    if len(text) > MOST:
        raise TooMuch
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(text))


class TooMuch(Exception):
    """So many rows do not fit into one batch."""


def _other(prefix: str, at: int, what: str) -> tuple[Column, ...]:
    """Where the request or response is that a record names."""

    def column(name: str, kind: Any, says: str) -> Column:
        def made(rows: Rows) -> Any:
            present, places = rows.others(at)
            return spread(pa.array(present[WHERE.index(name)], kind), places, len(rows))

        return Column(f"{prefix}_{name}", kind, f"{says} {what}", made)

    return (
        column("file", INT, "index of the input, of"),
        column("first_packet", LONG, "first packet of"),
        column("last_packet", LONG, "last packet of"),
        column("position", LONG, "position in its byte stream of"),
    )


def _common(name: bool = True) -> tuple[Column, ...]:
    columns = [
        Column("time", TIME, "capture time, cut to microseconds", _time),
        Column("time_ns", LONG, "the same in nanoseconds since 1970", lambda rows: pa.array(rows.time_ns)),
        Column(
            "conversation", LONG, "the conversation, as in table conversations", lambda rows: [one.conversation for one in rows.records]
        ),
        Column("src", TEXT, "endpoint that sent it", lambda rows: [one.src for one in rows.records]),
        Column("dst", TEXT, "endpoint that it was sent to", lambda rows: [one.dst for one in rows.records]),
        Column("protocol", TEXT, "protocol", lambda rows: rows.protocols),
    ]
    if name:
        columns.append(Column("name", TEXT, "the protocol's own name of the command", lambda rows: [one.name for one in rows.records]))
        columns.append(Column("id", TEXT, "correlation id and the like, as text", lambda rows: _idents([one.id for one in rows.records])))
    return tuple(columns)


def _time(rows: Rows) -> Any:
    return pa.array(rows.time_ns // 1000).cast(TIME)


SENDER = Column("sender", TEXT, "client or server, null when the capture cannot tell", lambda rows: [one.sender for one in rows.records])
POINT = Column(
    "point",
    TEXT,
    "where it was captured: the folder of the capture, or what --point tells",
    lambda rows: rows.points([one.conversation >> FILE_BITS for one in rows.records]),
)
OUTCOME = Column("outcome", TEXT, "how the request ended", lambda rows: [one.outcome for one in rows.records])
LATENCY = Column(
    "latency_ns", LONG, "last byte of the request to first byte of the response", lambda rows: [one.latency_ns for one in rows.records]
)

MESSAGES: tuple[Column, ...] = (
    *_common(),
    SENDER,
    Column("kind", TEXT, "request, response or one_way", lambda rows: [one.kind for one in rows.records]),
    Column("file", INT, "index of the input, in table files", lambda rows: [one.file for one in rows.records]),
    Column("first_packet", LONG, "first packet in that file, null if in an earlier one", lambda rows: rows.packets[0]),
    Column("last_packet", LONG, "packet that completed it", lambda rows: rows.packets[1]),
    Column("position", LONG, "byte position in its sender's byte stream", lambda rows: [one.position for one in rows.records]),
    Column("size", LONG, "bytes of the frame", lambda rows: [one.size for one in rows.records]),
    Column("fields", TEXT, "every field, as JSON", lambda rows: _json(rows.fields)),
    *_other("request", 1, "its request"),
    OUTCOME,
    LATENCY,
    Column("notes", TEXTS, "what is odd about it", lambda rows: _texts([one.notes for one in rows.records])),
    Column("fault", FAULT, "why bytes could not be read as their layout", lambda rows: _faults([one.fault for one in rows.records])),
    msgspec.structs.replace(POINT, get=lambda rows: rows.points([one.file for one in rows.records])),
)


def _typed(protocol: str, struct: Member) -> Column:
    return Column(struct_name(protocol), struct.type, struct.says, lambda rows: structs(struct, *rows.of(protocol), len(rows)))


TYPED: tuple[Column, ...] = tuple(_typed(protocol, struct) for protocol, struct in STRUCTS.items())

EXCHANGES: tuple[Column, ...] = (
    *_common(),
    *_other("request", 1, "the request"),
    *_other("response", 2, "the response"),
    OUTCOME,
    Column("reason", TEXT, "why there is no response", lambda rows: [one.reason for one in rows.records]),
    LATENCY,
    Column("waited_ns", LONG, "last byte of the request to time, null if answered", lambda rows: [one.waited_ns for one in rows.records]),
    POINT,
)

GAPS: tuple[Column, ...] = (
    *_common(False),
    SENDER,
    Column("position", LONG, "byte position in its sender's byte stream", lambda rows: [one.position for one in rows.records]),
    Column("size", LONG, "bytes", lambda rows: [one.size for one in rows.records]),
    Column("reason", TEXT, "lost, cut or skipped", lambda rows: [one.reason for one in rows.records]),
    Column(
        "in_frame",
        pa.bool_(),
        "whether they lie in a frame that is a message all the same",
        lambda rows: [one.in_frame for one in rows.records],
    ),
    POINT,
)


def _plain(name: str, kind: Any, says: str) -> Column:
    return Column(name, kind, says, lambda rows: [getattr(one, name) for one in rows.records])


ENDINGS: tuple[Column, ...] = (
    *_common(False),
    SENDER,
    _plain("how", TEXT, "FIN, RST, refused, no answer or forgotten"),
    _plain("quiet_ns", LONG, "last message of either side to time, null if there was none"),
    _plain("open", LONG, "requests without a response"),
    _plain("refused", LONG, "requests that were refused"),
    POINT,
)

CONVERSATIONS: tuple[Column, ...] = (
    Column("time", TIME, "time of its first packet, cut to microseconds", _time),
    _plain("time_ns", LONG, "the same in nanoseconds since 1970"),
    _plain("duration_ns", LONG, "from its first to its last packet"),
    _plain("conversation", LONG, "its number: index of the file times 2**40, plus the number of its first packet"),
    Column("endpoints", TEXTS, "both sides; pairs are in this order", lambda rows: _texts([one.endpoints for one in rows.records])),
    _plain("client", TEXT, "the endpoint that is the client, null when the capture cannot tell"),
    _plain("server", TEXT, "the endpoint that is the server"),
    _plain("protocol", TEXT, "null if none of those that streamdump reads"),
    _plain("name", TEXT, "what else it speaks, where that is known"),
    _plain("confidence", pa.float64(), "0 to 1"),
    Column("evidence", TEXTS, "what the verdict rests on", lambda rows: _texts([one.evidence for one in rows.records])),
    _plain("layout", TEXT, "layout of the protocol, where it has several"),
    Column("candidates", TEXTS, "layouts that could not be told apart", lambda rows: _texts([one.candidates for one in rows.records])),
    Column("packets", pa.list_(LONG), "packets of each side", lambda rows: [list(one.packets) for one in rows.records]),
    Column("bytes", pa.list_(LONG), "length of each side's byte stream", lambda rows: [list(one.bytes) for one in rows.records]),
    _plain("messages", LONG, "messages of both sides"),
    _plain("faults", LONG, "messages that could not be read in full"),
    _plain("gaps", LONG, "gaps of both sides"),
    _plain("gap_bytes", LONG, "bytes in them"),
    _plain("refused", LONG, "requests that were refused"),
    _plain("unanswered", LONG, "requests without a response"),
    _plain("retransmissions", LONG, "segments whose bytes had come before"),
    _plain("out_of_order", LONG, "segments that came later than bytes behind theirs"),
    _plain("conflicts", LONG, "segments that brought other bytes where some had come before"),
    _plain("ended", TEXT, "how it ended, and who did that first"),
    _plain("limit_hits", LONG, "how often a limit was reached"),
    _plain("internal_error", TEXT, "the bug of streamdump that ended its dissection, and at which packet"),
    Column("facts", TEXT, "what the protocol's state adds, as JSON", lambda rows: _json([one.facts for one in rows.records])),
    POINT,
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
    _plain("point", TEXT, "where it was captured: its folder, or what --point tells"),
    _plain("head", TEXT, "digest of its first 4,096 bytes, unpacked"),
    _plain("unpacked", LONG, "its bytes, unpacked"),
)


class Table(msgspec.Struct, frozen=True):
    """One table."""

    name: str
    columns: tuple[Column, ...]
    record: type | None = None
    """The record of the engine that its rows are, each with the messages that it names; None: rows that a run makes itself."""
    typed: tuple[Column, ...] = ()
    """More columns, for forms that have structs which may be null."""
    partitioned: tuple[str, ...] = ()
    """Columns by which its files are divided, where the form can do that; `DATE` is added for it."""


DATE = "date"
BY_DAY = ("protocol", DATE)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("messages", MESSAGES, Message, TYPED, BY_DAY),
        Table("exchanges", EXCHANGES, Exchange, (), BY_DAY),
        Table("conversations", CONVERSATIONS, None, (), BY_DAY),
        Table("gaps", GAPS, Gap, (), BY_DAY),
        Table("endings", ENDINGS, Ending, (), BY_DAY),
        Table("errors", ERRORS),
        Table("files", FILES),
    )
}
"""All tables: a new kind of record is a line here, and its columns above."""

KINDS: dict[type, str] = {table.record: table.name for table in TABLES.values() if table.record is not None}


LINKED = frozenset(KINDS.values())
"""Tables whose rows come with the request and the response that they name."""


def columns_of(table: str, typed: bool = True) -> tuple[Column, ...]:
    """The columns of a table; `typed`: with the structs of protocols."""
    found = TABLES[table]
    return (*found.columns, *found.typed) if typed else found.columns


def columns(table: str) -> list[tuple[str, str, str]]:
    """The columns of a table as rows of documentation: name, type, what it says; `a.b` is a member of a struct."""
    found: list[tuple[str, str, str]] = []
    for column in columns_of(table):
        _describe(pa.field(column.name, column.type, metadata={"comment": column.says}), "", found)
    return found


def _describe(field: Any, above: str, found: list[tuple[str, str, str]]) -> None:
    name = above + field.name
    kind = field.type
    members = list(kind) if pa.types.is_struct(kind) else []
    found.append((name, "struct" if members else _type_name(kind), (field.metadata or {}).get(b"comment", b"").decode()))
    for member in members:
        _describe(member, f"{name}.", found)


def _type_name(kind: Any) -> str:
    """As Spark calls it."""
    if pa.types.is_list(kind):
        return f"array<{_type_name(kind.value_type)}>"
    return NAMES[kind]


NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    INT: "int",
    LONG: "bigint",
    WIDE: "decimal(20,0)",
    pa.float64(): "double",
    TEXT: "string",
    TIME: "timestamp",
}


def schema(table: str, typed: bool = True) -> Any:
    """The Arrow schema of a table; `typed`: with the structs of protocols."""
    fields = [pa.field(one.name, one.type, metadata={"comment": one.says}) for one in columns_of(table, typed)]
    return pa.schema(fields, {SCHEMA_KEY: str(SCHEMA)})


AnyRows = Sequence[Linked] | Sequence[ConversationRow] | Sequence[Trouble] | Sequence[Input]


def batch(table: str, rows: AnyRows, typed: bool = True, points: PointOf | None = None) -> Any:
    """Records as columns; `points`: where files were captured, by index."""
    made = Rows(rows, table in LINKED, points)
    arrays = []
    for column in columns_of(table, typed):
        values = column.get(made)
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema(table, typed))


def batches(
    table: str, rows: Sequence[Any], typed: bool = True, reports: list[Report] | None = None, points: PointOf | None = None
) -> Iterator[Any]:
    """Records as columns, in so few batches as can hold them; `reports` gets what is to be told of those that cannot be."""
    try:
        made = batch(table, rows, typed, points)
    except Exception as error:
        half = len(rows) // 2
        if reports is None and not (half and isinstance(error, TooMuch)):
            raise
        what = "" if isinstance(error, TooMuch) else bug(error)
        if half:
            yield from batches(table, rows[:half], typed, reports, points)
            yield from batches(table, rows[half:], typed, reports, points)
        else:
            assert reports is not None
            reports.append(_about(table, rows[0], what or "too much for one row"))
    else:
        yield made


def _about(table: str, row: Any, what: str) -> Report:
    """What to report of a row that is in no table."""
    record = row[0] if table in LINKED else row
    number = record.packets[1] if type(record) is Message else None
    file, conversation = getattr(record, "file", None), getattr(record, "conversation", None)
    return Report(what, f"a row of {table} is missing", number, file, conversation, getattr(record, "protocol", None) or "")


def sorted_out(records: Sequence[Linked]) -> dict[str, list[Linked]]:
    """Records by the table that they belong to."""
    found: dict[str, list[Linked]] = {name: [] for name in KINDS.values()}
    for one in records:
        found[KINDS[type(one[0])]].append(one)
    return found
