"""The tables that a pipeline writes: their columns, and records as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import starmap
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from ..errors import Report, describe_exception
from ..model import ConversationRow, Ending, Entry, Exchange, Finding, Gap, Message
from ..protocols import PROTOCOLS
from .flows import PointOf, id_of, message_id
from .latencies import BUCKETS, REASONS, TIMES
from .typed import STRUCTS, Member, by_name, fitting

_JSON = msgspec.json.Encoder()

SCHEMA = 5
"""Rises with every change of the columns: they are only ever added, so a reader of an older table finds null in the new ones."""

SCHEMA_KEY = "streamdump.schema"
"""Where Parquet files say it."""


class Input(msgspec.Struct):
    """One of the captures."""

    file: int
    path: str
    size: int
    packets: int
    point: str | None = None
    head: str = ""
    unpacked: int | None = None


class Rows:
    """Some rows of one table, and what several of its columns are made of."""

    def __init__(self, rows: Sequence[Any], linked: bool, points: PointOf | None = None, files: Mapping[int, int] | None = None) -> None:
        """`files`: of conversations the file of the first packet."""
        self.rows = rows
        self.records: Sequence[Any] = [one[0] for one in rows] if linked else rows
        self._points: PointOf = points if points is not None else {}
        self._files = files or {}

    def points(self) -> list[str | None]:
        """Where the conversations were captured; of messages these themselves."""
        get, files = cache(self._points.get), self._files
        return [get(one.file if type(one) is Message else files.get(one.conversation, -1)) for one in self.records]

    @cached_property
    def times(self) -> Any:
        """Their times in nanoseconds."""
        return pa.array([one.time_ns for one in self.records], LONG)

    @cached_property
    def ends(self) -> Sequence[Sequence[str | None]]:
        """Clients and servers, null if the capture does not show which is which; of a finding the sides that it assumes."""
        assumed = "client" if type(self.records[0]) is Finding else None
        speakers: Sequence[Any] = self.records
        if type(self.records[0]) is Exchange:
            speakers = [request if response is None or request.sender else response for _, request, response, *_ in self.rows]
        sides = [
            (one.src, one.dst) if (one.sender or assumed) == "client" else (one.dst, one.src) if one.sender else (None, None)
            for one in speakers
        ]
        return list(zip(*sides, strict=True))

    @cached_property
    def codes(self) -> Sequence[Sequence[Any]]:
        """The result codes of responses, and their meanings."""
        return list(zip(*[_code(one[2]) for one in self.rows], strict=True))

    @cached_property
    def fields(self) -> Mapping[str, tuple[list[int], list[Any]]]:
        """The typed fields of messages of one protocol, as `by_name` has them."""
        return by_name(STRUCTS[self.records[0].protocol].members, [one.fields for one in self.records])


CODES = {one.name: [path.split(".") for path in one.loaded.code] for one in PROTOCOLS}


def _code(response: Message | None) -> tuple[int | None, str | None]:
    if response is None:
        return None, None
    for *above, name in CODES[response.protocol]:
        fields: Any = response.fields
        for part in above:
            fields = fields.get(part) if type(fields) is dict else None
        if type(fields) is dict and type(fields.get(name)) is int:
            return fields[name], fields.get(f"{name}_label")
    return None, None


def _ids(messages: Sequence[Message | None]) -> list[str | None]:
    return [None if one is None else message_id(one) for one in messages]


class Column(msgspec.Struct, frozen=True):
    """One column: its type, what it says, and how it is made: for many rows at once, since a call for each would cost more."""

    name: str
    type: Any
    info: str
    get: Callable[[Rows], Any]
    """Its values, as an Arrow array or as Arrow accepts them."""

    def array(self, rows: Rows) -> Any:
        """The Arrow array of some rows."""
        made = self.get(rows)
        return made if isinstance(made, pa.Array) else pa.array(made, self.type)


LONG, INT, TEXT, TEXTS = pa.int64(), pa.int32(), pa.string(), pa.list_(pa.string())
TIME = pa.timestamp("us", "UTC")


def _struct(*members: tuple[str, Any, str]) -> Any:
    """Return the type of structs of these members; of each its name, type and description."""
    return pa.struct([pa.field(name, kind, metadata={"comment": info}) for name, kind, info in members])


FAULT = _struct(
    ("field", TEXT, "path of the field"),
    ("offset", LONG, "byte offset of it"),
    ("reason", TEXT, "what is wrong"),
    ("buffer", TEXT, "what the offset counts in: frame, or unpacked"),
)


def _json(values: Sequence[Any]) -> list[bytes]:
    return list(map(_JSON.encode, values))


def _texts(rows: Rows, name: str) -> list[str | None]:
    values = [getattr(one, name) for one in rows.records]
    return [one if one is None or isinstance(one, str) else _JSON.encode(one).decode() for one in values]


def _body(entry: Entry) -> bytes | None:
    """The bytes of a body, which are hex there; a value as JSON."""
    if entry.body_type != "bytes":
        return _JSON.encode(entry.body)
    try:
        return bytes.fromhex(entry.body)
    except (TypeError, ValueError):
        # Hidden
        return None


def _typed(name: str, member: Member) -> Column:
    return Column(name, member.type, member.info, lambda rows: member.spread(*rows.fields[name], len(rows.records)))


def _plain(name: str, kind: Any, info: str) -> Column:
    """The column of an attribute of that name."""
    get = attrgetter(name)
    return Column(name, kind, info, lambda rows: list(map(get, rows.records)))


def _cut(times: Any) -> Any:
    return pa.array(times.to_numpy() // 1000).cast(TIME)


KEYS: tuple[Column, ...] = (
    Column("time", TIME, "capture time, cut to microseconds", lambda rows: _cut(rows.times)),
    Column("time_ns", LONG, "the same in nanoseconds since 1970", lambda rows: rows.times),
)
COMMON = (
    *KEYS,
    _plain("conversation", LONG, "the conversation, as in table conversations"),
    _plain("src", TEXT, "endpoint that sent it"),
    _plain("dst", TEXT, "endpoint that it was sent to"),
    _plain("protocol", TEXT, "protocol"),
)
NAME = _plain("name", TEXT, "the protocol's own name of the command")
ID = Column(
    "id", TEXT, "correlation id and the like, as text", lambda rows: [None if one.id is None else str(one.id) for one in rows.records]
)
SENDER = _plain("sender", TEXT, "client or server, null when the capture cannot tell")
POINT = Column(
    "point",
    TEXT,
    "where it was captured: the folder of the capture, or what --point tells",
    Rows.points,
)
OUTCOME = _plain("outcome", TEXT, "how the request ended")
CLIENT = Column("client", TEXT, "the endpoint that is the client, null when the capture cannot tell", lambda rows: rows.ends[0])
SERVER = Column("server", TEXT, "the endpoint that is the server", lambda rows: rows.ends[1])
STREAM = _plain("stream", TEXT, "the stream or topic it speaks of")
LATENCY = _plain("latency_ns", LONG, "last byte of the request to first byte of the response")

MESSAGES: tuple[Column, ...] = (
    *COMMON,
    NAME,
    ID,
    SENDER,
    _plain("kind", TEXT, "request, response or one_way"),
    _plain("file", INT, "index of the input, in table files"),
    Column(
        "first_packet", LONG, "first packet in that file, null if in an earlier one", lambda rows: [one.packets[0] for one in rows.records]
    ),
    Column("last_packet", LONG, "packet that completed it", lambda rows: [one.packets[1] for one in rows.records]),
    _plain("position", LONG, "byte position in its sender's byte stream"),
    _plain("size", LONG, "bytes of the frame"),
    Column("fields", TEXT, "every field, as JSON; null with --fields typed", lambda rows: _json([one.fields for one in rows.records])),
    Column("request_id", TEXT, "message_id of its request", lambda rows: _ids([one[1] for one in rows.rows])),
    OUTCOME,
    LATENCY,
    _plain("notes", TEXTS, "anomalies in it"),
    Column(
        "fault",
        FAULT,
        "why bytes could not be read as their layout",
        lambda rows: [one.fault and msgspec.structs.asdict(one.fault) for one in rows.records],
    ),
    POINT,
    CLIENT,
    SERVER,
    STREAM,
    Column("message_id", TEXT, "what tells it from all others", lambda rows: _ids(rows.records)),
)


TYPED_KEYS: tuple[Column, ...] = (
    Column("message_id", TEXT, "that of the message in table messages", lambda rows: _ids(rows.records)),
    *KEYS,
)

EXCHANGES: tuple[Column, ...] = (
    *COMMON,
    NAME,
    ID,
    Column(
        "request_time",
        TIME,
        "time of the request's last packet, cut to microseconds",
        lambda rows: _cut(pa.array([one[1].time_ns for one in rows.rows], LONG)),
    ),
    OUTCOME,
    _plain("reason", TEXT, "why there is no response"),
    LATENCY,
    _plain("waited_ns", LONG, "last byte of the request to time, null if answered"),
    POINT,
    CLIENT,
    SERVER,
    STREAM,
    Column("message_id", TEXT, "message_id of the request", lambda rows: _ids([one[1] for one in rows.rows])),
    Column("response_id", TEXT, "message_id of the response", lambda rows: _ids([one[2] for one in rows.rows])),
    Column("request_size", LONG, "bytes of the request", lambda rows: [one[1] and one[1].size for one in rows.rows]),
    Column("response_size", LONG, "bytes of the response", lambda rows: [one[2] and one[2].size for one in rows.rows]),
    Column("code", LONG, "what the response tells of how it went, where it has a code", lambda rows: rows.codes[0]),
    Column("code_label", TEXT, "what that code means", lambda rows: rows.codes[1]),
)

GAPS: tuple[Column, ...] = (
    *COMMON,
    SENDER,
    _plain("position", LONG, "byte position in its sender's byte stream"),
    _plain("size", LONG, "bytes"),
    _plain("reason", TEXT, "lost, cut or skipped"),
    _plain("in_frame", pa.bool_(), "whether they lie in a frame that is a message all the same"),
    Column("file", INT, "index of the input, in table files, of the packet that shows it", lambda rows: [one[3][0] for one in rows.rows]),
    Column("packet", LONG, "that packet: the first after it, or the one that was cut", lambda rows: [one[3][1] for one in rows.rows]),
    POINT,
)


ENDINGS: tuple[Column, ...] = (
    *COMMON,
    SENDER,
    _plain("how", TEXT, "FIN, RST, refused, no answer or forgotten"),
    _plain("quiet_ns", LONG, "last message of either side to time, null if there was none"),
    _plain("open", LONG, "requests without a response"),
    _plain("refused", LONG, "requests that were refused"),
    POINT,
)


def _fact(name: str, info: str) -> Column:
    return Column(name, TEXT, info, lambda rows: [one.facts.get(name) for one in rows.records])


def _of_side(role: str, name: str, kind: Any, info: str, get: Callable[[ConversationRow, str], Any]) -> Column:
    """A column of conversations about the client or the server, null where it is unknown which endpoint that is."""

    def values(rows: Rows) -> list[Any]:
        ends = [(one, getattr(one, role)) for one in rows.records]
        return [None if end is None else get(one, end) for one, end in ends]

    return Column(f"{role}_{name}", kind, info, values)


SIDES: tuple[tuple[str, Any, str, Callable[[ConversationRow, str], Any]], ...] = (
    ("host", TEXT, "address", lambda _, end: end.rpartition(":")[0].strip("[]")),
    ("port", INT, "port", lambda _, end: int(end.rpartition(":")[2])),
    ("packets", LONG, "packets", lambda one, end: one.packets[one.endpoints.index(end)]),
    ("bytes", LONG, "length of the byte stream", lambda one, end: one.bytes[one.endpoints.index(end)]),
)
"""Columns of the client, and of the server."""

PROCESS = _struct(
    ("endpoint", TEXT, "the endpoint that it is behind; null: one of both, the capture does not show which"),
    ("process", TEXT, "its name"),
    ("pid", LONG, "its number on its host"),
    ("container", TEXT, "name of its container, or the container's id"),
    ("pod", TEXT, "name of its Kubernetes pod"),
    ("namespace", TEXT, "Kubernetes namespace of the pod"),
    ("others", pa.bool_(), "whether packets of this endpoint belong to other processes, too"),
    ("other_pids", pa.list_(LONG), "the first PIDs of these"),
)


def _process(role: str, name: str, kind: Any, info: str) -> Column:
    """A column about the first process behind the client or the server."""
    return _of_side(
        role,
        name,
        kind,
        f"{info} the {role}, null if the capture does not show it",
        lambda one, end: next((getattr(known, name) for known in one.processes or () if known.endpoint == end), None),
    )


PROCESSES = (
    ("process", TEXT, "name of the first process behind"),
    ("pid", LONG, "PID of the first process behind"),
    ("container", TEXT, "container of the process behind"),
    ("pod", TEXT, "Kubernetes pod of the process behind"),
    ("namespace", TEXT, "Kubernetes namespace of the process behind"),
)
"""Columns about that process."""

LOGINS = {one.name: one.loaded.compare_rules for one in PROTOCOLS}


def _authenticated(one: ConversationRow) -> bool | None:
    rules = LOGINS.get(one.protocol or "")
    return None if rules is None else rules.authenticated(one.facts.get("handshake"))


CONVERSATIONS: tuple[Column, ...] = (
    Column("time", TIME, "time of its first packet, cut to microseconds", lambda rows: _cut(rows.times)),
    _plain("time_ns", LONG, "the same in nanoseconds since 1970"),
    _plain("duration_ns", LONG, "from its first to its last packet"),
    _plain("conversation", LONG, "its number: a digest of its first packet, so other runs give it the same"),
    _plain("endpoints", TEXTS, "both sides; pairs are in this order"),
    _plain("client", TEXT, "the endpoint that is the client, null when the capture cannot tell"),
    _plain("server", TEXT, "the endpoint that is the server"),
    _plain("protocol", TEXT, "null if streamdump does not decode it"),
    _plain("name", TEXT, "what else it speaks, where that is known"),
    _plain("confidence", pa.float64(), "0 to 1"),
    _plain("evidence", TEXTS, "what the verdict rests on"),
    _plain("layout", TEXT, "layout of the protocol, where it has several"),
    _plain("candidates", TEXTS, "layouts that could not be distinguished"),
    Column("packets", pa.list_(LONG), "packets of each side", lambda rows: [list(one.packets) for one in rows.records]),
    Column("bytes", pa.list_(LONG), "length of each side's byte stream", lambda rows: [list(one.bytes) for one in rows.records]),
    _plain("messages", LONG, "messages of both sides"),
    _plain("faults", LONG, "messages that could not be read in full"),
    _plain("gaps", LONG, "gaps of both sides"),
    _plain("gap_bytes", LONG, "bytes in them"),
    _plain("refused", LONG, "requests that were refused"),
    _plain("unanswered", LONG, "requests without a response"),
    _plain("retransmissions", LONG, "segments whose bytes had come before"),
    _plain("out_of_order", LONG, "segments that arrived after later bytes of the same side"),
    _plain("conflicts", LONG, "segments that brought other bytes where some had come before"),
    _plain("ended", TEXT, "how it ended, and who did that first"),
    _plain("limit_hits", LONG, "how often a limit was reached"),
    _plain("internal_error", TEXT, "the bug of streamdump that ended its dissection, and at which packet"),
    Column("facts", TEXT, "what the protocol's state adds, as JSON", lambda rows: _json([one.facts for one in rows.records])),
    POINT,
    *(_of_side(role, name, kind, f"{info} of the {role}", get) for role in ("client", "server") for name, kind, info, get in SIDES),
    _fact("handshake", "how far it got: the last step with its outcome, or ready; null if none was captured"),
    Column(
        "authenticated",
        pa.bool_(),
        "whether the server accepted a login; null if the capture cannot tell, or the protocol has none",
        lambda rows: [_authenticated(one) for one in rows.records],
    ),
    _fact("client_product", "product stated by the client"),
    _fact("client_version", "version stated by the client"),
    Column(
        "processes",
        pa.list_(PROCESS),
        "the processes behind both sides, as far as the capture shows them",
        lambda rows: [one.processes and list(map(msgspec.structs.asdict, one.processes)) for one in rows.records],
    ),
    *(_process(role, *one) for role in ("client", "server") for one in PROCESSES),
)

FINDINGS: tuple[Column, ...] = (
    *COMMON,
    SENDER,
    _plain("rule", TEXT, "stable name of the rule"),
    _plain("severity", TEXT, "error, warning or note"),
    _plain("cause", TEXT, "what went wrong"),
    _plain("advice", TEXT, "what to do about it"),
    _plain("messages", TEXTS, "message_id of the messages that show it"),
    _plain("packets", pa.list_(LONG), "packets that show it, of the file that has them"),
    Column(
        "message_id",
        TEXT,
        "the first of these messages: the request, where there is one",
        lambda rows: [next(iter(one.messages), None) for one in rows.records],
    ),
    CLIENT,
    SERVER,
)


ENTRIES: tuple[Column, ...] = (
    *COMMON,
    NAME,
    SENDER,
    STREAM,
    _plain("partition", LONG, "the partition, where the protocol has them and it is known"),
    Column(
        "offset",
        LONG,
        "offset in the stream or partition, null where it was published",
        lambda rows: fitting([one.offset for one in rows.records], LONG),
    ),
    Column("publishing_id", LONG, "publishing id (RabbitMQ)", lambda rows: fitting([one.publishing_id for one in rows.records], LONG)),
    Column("id", TEXT, "id that the application or its client gave it", lambda rows: _texts(rows, "id")),
    Column("key", TEXT, "the messages key of Iggy in hex, or the filter value of RabbitMQ", lambda rows: _texts(rows, "key")),
    Column("properties", TEXT, "headers and properties, as JSON", lambda rows: _json([one.properties for one in rows.records])),
    _plain("compression", TEXT, "compression of the sub-batch that holds it"),
    _plain("size", LONG, "bytes as carried, with sections or headers; of mewbase, of the frame"),
    _plain("body_type", TEXT, "bytes, or what the value is that `body` has as JSON: amqp or bson"),
    Column("body", pa.binary(), "what the application sent; null if it is hidden", lambda rows: list(map(_body, rows.records))),
    Column("notes", TEXTS, "what is missing beside it", lambda rows: [list(one.notes) for one in rows.records]),
    POINT,
    CLIENT,
    SERVER,
    Column("message_id", TEXT, "message_id of the message that carries it", lambda rows: _ids([one[1] for one in rows.rows])),
    _plain("consumer", TEXT, "whom it was delivered to: a consumer, group or subscription"),
    _plain("outcome", TEXT, "what became of it, as far as its conversation shows"),
    _plain("reason", TEXT, "the code of a refusal, or why there is no response"),
    Column(
        "response_id",
        TEXT,
        "message_id of the response that says so",
        lambda rows: [one.response and id_of(one.response) for one in rows.records],
    ),
    LATENCY,
)


LATENCIES: tuple[Column, ...] = (
    _plain("time", TIME, "beginning of the minute in which the exchanges became certain"),
    _plain("time_ns", LONG, "the same in nanoseconds since 1970"),
    _plain("protocol", TEXT, "protocol"),
    NAME,
    _plain("server", TEXT, "the endpoint that is the server, null where the capture cannot tell"),
    _plain("exchanges", LONG, "requests"),
    _plain("answered", LONG, "requests that were answered"),
    _plain("refused", LONG, "requests that were refused"),
    _plain("unanswered", LONG, "requests without a response"),
    _plain("reasons", REASONS, "why these have none, and how often"),
    *(_plain(name, LONG, f"{name.removesuffix('_ns')} of the latency") for name in TIMES),
    _plain(
        "sketch",
        BUCKETS,
        "what quantiles come from: latencies in ns, and how many are within 0.9 % of each; merged by adding up counts by bucket",
    ),
)
"""The rows of this table are made as columns (`latencies.rows`)."""

ERRORS: tuple[Column, ...] = (
    _plain("file", INT, "index of the input"),
    _plain("path", TEXT, "the file"),
    _plain("offset", LONG, "byte position in the unpacked file, where that is known"),
    _plain("packet", LONG, "the last complete packet"),
    _plain("code", TEXT, "kind of problem, which stays the same when sentences change"),
    _plain("reason", TEXT, "what is wrong"),
    _plain("lost", LONG, "bytes that were not decoded, null if unknown"),
    _plain("fatal", pa.bool_(), "false: everything was read all the same"),
)

FILES: tuple[Column, ...] = (
    _plain("file", INT, "index of the input"),
    _plain("path", TEXT, "the file"),
    _plain("size", LONG, "its bytes"),
    _plain("packets", LONG, "packets read of it"),
    _plain("point", TEXT, "where it was captured: its folder, or what --point tells"),
    _plain("head", TEXT, "digest of its first 4,096 bytes, unpacked"),
    _plain("unpacked", LONG, "its bytes, unpacked; of a packed one that is damaged, up to there"),
)


class TableSchema(msgspec.Struct, frozen=True):
    """One table: its rows, schema and page are made of these columns."""

    name: str
    columns: tuple[Column, ...]
    record: type | None = None
    """The record of the engine that its rows are, each with the messages that it names; None: rows that a run makes itself."""
    partitioned: tuple[str, ...] = ()
    """Columns by which its files are divided, where the form can do that; `DATE` is added for it."""


DATE = "date"
BY_DAY = ("protocol", DATE)


TYPED = {name: f"messages_{name.replace('-', '_')}" for name in STRUCTS}
"""By protocol the table of the typed fields of its messages."""

TABLES: dict[str, TableSchema] = {
    table.name: table
    for table in (
        TableSchema("messages", MESSAGES, Message, BY_DAY),
        *(
            TableSchema(table, (*TYPED_KEYS, *starmap(_typed, STRUCTS[protocol].members.items())), None, (DATE,))
            for protocol, table in TYPED.items()
        ),
        TableSchema("exchanges", EXCHANGES, Exchange, BY_DAY),
        TableSchema("conversations", CONVERSATIONS, None, BY_DAY),
        TableSchema("gaps", GAPS, Gap, BY_DAY),
        TableSchema("endings", ENDINGS, Ending, BY_DAY),
        TableSchema("findings", FINDINGS, Finding, BY_DAY),
        TableSchema("entries", ENTRIES, Entry, BY_DAY),
        TableSchema("latency", LATENCIES, None, BY_DAY),
        TableSchema("errors", ERRORS),
        TableSchema("files", FILES),
    )
}
"""All tables: a new kind of record is a line here, and its columns above."""

KINDS: dict[type, str] = {table.record: table.name for table in TABLES.values() if table.record is not None}


RECORDS = (*KINDS.values(), *TYPED.values(), "conversations")
"""Tables whose rows are certain where a conversation is read."""

LINKED = frozenset((*KINDS.values(), *TYPED.values()))
"""Tables whose rows come with the request and the response that they name."""


FIELDS = ("json", "typed", "both")
"""How the fields of messages are written: as JSON text in `messages`, as columns in the table of their protocol, or both."""


def tables_with(fields: str) -> list[str]:
    """The tables that a run writes; `fields`: one of `FIELDS`."""
    return [name for name in TABLES if fields != "json" or name not in TYPED.values()]


def schema(table: str) -> Any:
    """The Arrow schema of a table."""
    fields = [pa.field(one.name, one.type, metadata={"comment": one.info}) for one in TABLES[table].columns]
    return pa.schema(fields, {SCHEMA_KEY: str(SCHEMA)})


class PendingRows:
    """Rows of one table that wait to be columns."""

    def __init__(self, table: str, fields: str = "json", points: PointOf | None = None) -> None:
        """`fields`: one of `FIELDS`; `points`: where files were captured, by index."""
        self._name = table
        self._without = "fields" if fields == "typed" else None
        """The column that is null."""
        self._schema = schema(table)
        self._points = points
        self.rows: list[Any] = []
        self._files: dict[int, int] = {}

    def add(self, rows: Sequence[Any], files: Mapping[int, int] | None = None) -> None:
        """Add rows. `files`: see `Rows`."""
        if rows:
            self.rows += rows
            self._files.update(files or {})

    def batch(self, reports: list[Report]) -> Any:
        """All that wait as columns; nothing waits any more. `reports` gets the reports of values that do not fit their columns, which are
        null there."""
        found = self._schema.empty_table()
        if self.rows:
            some = self._some(self.rows)
            found = pa.Table.from_arrays([self._array(one, some, reports) for one in TABLES[self._name].columns], schema=self._schema)
        self.rows, self._files = [], {}
        return found

    def _some(self, rows: Sequence[Any]) -> Rows:
        return Rows(rows, self._name in LINKED, self._points, self._files)

    def _array(self, column: Column, some: Rows, reports: list[Report]) -> Any:
        """A column of some rows, made of each by itself where that fails."""
        if column.name == self._without:
            return pa.nulls(len(some.rows), column.type)
        try:
            return column.array(some)
        except Exception as error:
            if len(some.rows) > 1:
                return pa.chunked_array([self._array(column, self._some([row]), reports) for row in some.rows], column.type)
            record, missing = some.records[0], f"{column.name} of a row of {self._name} is missing"
            number = record.packets[1] if type(record) is Message else None
            file, conversation, protocol = (getattr(record, name, None) for name in ("file", "conversation", "protocol"))
            reports.append(Report(describe_exception(error), missing, number, file, conversation, protocol or ""))
            return pa.nulls(1, column.type)
