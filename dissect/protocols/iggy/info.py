"""One-line summaries of Apache Iggy messages, and facts that conversations of one server share."""

from __future__ import annotations

from collections.abc import Callable
from time import gmtime, strftime
from typing import Any

from ...model import ConversationRow, Message
from ...units import duration_text
from ..protocol import Traffic
from .bodies import YEAR_2020, YEAR_2100
from .layout_versions import RELEASES
from .replica_layouts import NAMES

TEXT = """\
No frame states its layout. streamdump keeps the layouts in which every frame of a conversation decodes with nothing left over;
`conversations` lists those that could not be distinguished. A message that they read differently waits for its layout (256 frames or
1 MiB, then it is read as the one that a stated
version speaks for, else the newest, and says so). Status codes were given out again, so they have names by layout. `-d
tcp.port==N,iggy:L9` forces a layout.

L0 to L9 have the classic framing: a request is length, code and payload, a response status, length and payload. V1 to V5 have a header of
256 bytes in front of the same bodies. No server of V5 was seen: it is read as published clients (apache-iggy 0.9.1.dev2 to dev5 on PyPI)
write and accept it, and what does not fit is not called damaged. Bodies that were never seen are bytes, with a note. The tables below show
each body once, where it changed: "from L3" holds until the next table of the same name and direction.

The classic framing has no correlation id: the n-th response answers the n-th request. Where frames were lost the pairing is
unsure, and says so, until a client that keeps one request in flight asks again; where the beginning was not captured, until it has done
so a few times, or an answer has a body that fits. In the 256-byte framing client, request number and operation are checked too; up to V4
the request number alone is not unique, from V5 on it decides the pair. A response behind a loss waits for the client's next bytes, which
tell whether a request was lost as well.

Passwords, tokens and what may be one are hidden: also small bodies and bytes left over of which nothing is known and which may hold text,
names beside a secret in a frame that does not decode, and what replicas send each other. `--show-secrets` shows them.

The layout `replica` is what two replicas of a cluster send each other, on a port of their own (tcp_replica in the settings of each node;
9090 to 9092 in the sample), from 0.9.0 on: headers of 256 bytes in both directions. It was read from the source of 0.9.0-edge.5; no real
traffic of replicas was seen. The replica that dials is the client, whichever leads. PrepareOk answers Prepare by group and op; other
answers are found by their nonce. A Prepare without an answer is not reported, as Prepares pass from replica to replica while each of
these answers the primary. The body of a Prepare has the fields of the client's command (`create_stream` and so on, as of V4), except for
the operations listed as `..._resolved` and `group_partition`, names of this project, and `send_messages`, which is the batch alone. Seals
(XXH3-64) are verified: `conversations` counts those that are right, wrong or missing, and a frame whose seal is wrong answers nothing.
A body that cannot be read, a state that is transferred, and the password hashes that Prepares carry are hidden.

Layouts by server release: """ + "; ".join(
    f"{layout} {first} to {last.replace('.999', '.x')}" for layout, (first, last) in RELEASES.items()
)

_HEADERS = frozenset(
    (
        "length",
        "code",
        "status",
        "status_label",
        "checksum",
        "checksum_body",
        "cluster",
        "size",
        "view",
        "release",
        "command",
        "command_label",
        "replica",
        "reserved",
        "reserved_end",
        "client",
        "request_checksum",
        "timestamp",
        "request",
        "operation",
        "operation_label",
        "operation_padding",
        "namespace",
        "session",
        "session_user_id",
        "incarnation",
        "owner_generation",
        "metadata_op",
        "context",
        "op",
        "commit",
        "results",
        "metadata_length",
        "padding",
        "indexes",
        "created_at",
        "groups_count",
        "members_count",
        "has_permissions",
        "has_username",
        "has_status",
        "partition_given",
    )
)

_FIRST = frozenset(("stream_id", "topic_id", "group_id", "user_id", "consumer", "id", "name", "username"))

_NEVER, _UNLIMITED = {(1 << 64) - 1: "never expires", 0: ""}, {(1 << 64) - 1: "unlimited", 0: ""}
_USUAL: dict[str, dict[Any, str]] = {
    "message_expiry": _NEVER,
    "expiry": {(1 << 64) - 1: "never expires"},
    "max_topic_size": _UNLIMITED,
    "compression_algorithm": {1: ""},
    "replication_factor": {0: "", 1: ""},
    "context": {"": ""},
    "version": {"": ""},
}
"""Values of little interest, and their text."""

_DURATIONS = frozenset(("message_expiry", "expiry"))
"""Seconds in four bytes up to L5, microseconds in eight from L6."""

FINDS = frozenset(("get_client", "get_user", "get_consumer_offset", "get_stream", "get_topic", "get_consumer_group"))
"""Commands whose empty response means "not found"."""

SHOWN = 6
"""Limit of fields in a line."""


def info(message: Message) -> str:
    """The key fields of a message."""
    fields = message.fields
    if message.name in _REPLICA_NAMES:
        return _between_replicas(message)
    if message.kind == "response":
        if message.name == "eviction":
            return _evicted(fields)
        failure = _failure(fields)
        if failure:
            return failure
        shown = _RESPONSES.get(message.name)
        if shown is not None and shown[0] in fields:
            return shown[1](fields)
    elif message.name in _REQUESTS and "stream_id" in fields:
        text = _REQUESTS[message.name](fields)
        if message.fault is not None and message.name == "send_messages" and _declared(fields) is None:
            text += " before the damage"
        return text
    parts = _fields(message, fields, _HEADERS)
    if not parts and message.outcome == "answered" and message.name in FINDS:
        return "not found"
    return "  ".join(parts)


def _fields(message: Message, fields: dict[str, Any], aside: frozenset[str]) -> list[str]:
    """The first fields that are not `aside`, SHOWN at most."""
    names = [name for name in fields if name not in aside and not name.endswith("_label")]
    # the name of a thing comes before its settings, which may be left out
    names.sort(key=lambda name: name not in _FIRST)
    parts = [part for part in (_field_text(name, fields[name], message) for name in names) if part]
    return parts if len(parts) <= SHOWN else [*parts[:SHOWN], "..."]


_REPLICA_NAMES = frozenset(NAMES.values())

_NUMBERS = ("op", "commit", "from_op", "to_op", "commit_op", "commit_max", "log_view", "artifact", "offset", "chunk_length")
"""Fields of replicas shown first, in this order."""

_ASIDE = frozenset(
    (
        *_HEADERS,
        *_NUMBERS,
        "outcome",
        "available",
        "parent",
        "prepare_checksum",
        "group",
        "nonce",
        "commit_checksum",
        "timestamp_monotonic",
        "checkpoint_op",
        "reserved_middle",
        "nack_bitset",
        "present_bitset",
        "replica_incarnation",
        "hello_nonce",
        "challenge_nonce",
        "mac",
        "magic",
        "entry_length",
        "artifacts_count",
        "manifest_checksum",
        "batches",
        "unavailable_transient",
        "data",
    )
)


def _between_replicas(message: Message) -> str:
    """The operation, the numbers and the group of a frame between replicas, and what its body names."""
    fields = message.fields
    label = fields.get("operation_label") or f"operation {fields.get('operation')}"
    parts = [str(label)] if "operation" in fields else []
    if message.name.endswith(("View", "ViewChange")):
        parts.append(f"view {fields.get('view')}")
    if message.name.startswith("Replica"):
        parts.append(f"replica {fields.get('replica')}")
    if message.name.startswith("Forward"):
        parts.append(f"client {_plain(fields.get('client'))}")
    if "status" in fields:
        parts.append(_named(fields, "status"))
    if fields.get("outcome"):
        parts.append(_named(fields, "outcome"))
    if "available" in fields:
        again = ", for now" if fields.get("unavailable_transient") else ""
        parts.append("available" if fields["available"] else f"not available{again}")
    parts += [f"{name.replace('_', ' ')} {fields[name]}" for name in _NUMBERS if name in fields]
    if "group" in fields:
        parts.append(_labelled(fields, "group"))
    if "batches" in fields:
        parts.append(_count(len(_messages(fields)), "messages"))
    inner = fields.get("create_topic") or fields.get("create_partitions") or {}
    shown = {name: value for name, value in (*fields.items(), *inner.items()) if isinstance(value, list | dict | str | int)}
    return "  ".join([*parts, *_fields(message, shown, _ASIDE)])


def _evicted(fields: dict[str, Any]) -> str:
    reason = f"evicted: {fields.get('reason_label') or fields.get('reason')}"
    if fields.get("highest_version"):
        return f"{reason}, accepted are {fields.get('lowest_version_label')} to {fields.get('highest_version_label')}"
    return reason


def _failure(fields: dict[str, Any]) -> str:
    """The status, with its text where there is one, or the results that failed."""
    status = fields.get("status")
    if status:
        text = fields.get("message")
        return f"{_named(fields, 'status')}: {text}" if text else _named(fields, "status")
    return ", ".join(dict.fromkeys(_named(one, "result") for one in fields.get("results", ())))


def _named(fields: dict[str, Any], what: str) -> str:
    label, number = fields.get(f"{what}_label"), _plain(fields.get(what))
    return f"{label} ({number})" if label else f"{what} {number}"


def _field_text(name: str, value: Any, message: Message) -> str:
    fields = message.fields
    if isinstance(value, dict):
        if "value" in value:
            return f"{name.removesuffix('_id')} {_plain(value['value'])}"
        if "id" in value:
            return f"{value.get('kind_label') or name} {_identifier(value['id'])}"
        return ""
    if isinstance(value, list):
        if name.endswith("options") and not value:
            return ""
        cut = message.fault is not None and message.fault.field.startswith(name)
        return _count(len(value), name, fields.get(f"{name}_count"), cut)
    if name in ("body", "snapshot", "trailing"):
        return f"{len(value) // 2:,} bytes" if isinstance(value, str) and not value.startswith("<") else str(value)
    if name in _USUAL and value in _USUAL[name]:
        return _USUAL[name][value]
    if name == "partition_id":
        return _partition(fields)
    if name in _DURATIONS and value:
        return f"{name}={_duration(value, name, message)}"
    return f"{name}={_plain(fields.get(f'{name}_label', value))}"


def _plain(value: Any) -> str:
    """Return the text of a value; a question mark if a damaged frame lacks it."""
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_WIDTHS = {
    "id": 4,
    "topic_id": 4,
    "stream_id": 4,
    "partitions_count": 4,
    "compression_algorithm": 1,
    "replication_factor": 1,
    "created_at": 8,
    "max_topic_size": 8,
    "size_bytes": 8,
    "messages_count": 8,
    "partitions": 40,
    "length": 4,
    "code": 4,
    "status": 4,
}
"""Bytes of the fields that stand beside a duration, each of a list's."""


def _duration(value: Any, name: str, message: Message) -> str:
    """Return a duration with its unit, which depends on its magnitude; the raw value where that is ambiguous."""
    if not isinstance(value, int) or message.fault is not None:
        return _plain(value)
    width = 8
    if "command" not in message.fields:
        width = message.size
        for other, beside in message.fields.items():
            if other == name or other.endswith("_label"):
                continue
            if isinstance(beside, dict):
                inner = beside.get("value")
                width -= 2 + (len(inner.encode()) if isinstance(inner, str) else 4)
            elif isinstance(beside, str):
                width -= 1 + len(beside.encode())
            else:
                width -= _WIDTHS.get(other, message.size) * (len(beside) if isinstance(beside, list) else 1)
    if width == 4:
        return f"{value:,} s"
    if width != 8:
        return str(value)
    return f"{value // 1_000_000:,} s" if value % 1_000_000 == 0 else duration_text(value * 1000)


def _count(count: int, things: str, declared: int | None = None, cut: bool = False) -> str:
    """ "2 messages"; "1 of 13 messages" where the frame declares more than could be read; `cut`: it may hold more and does not say."""
    if declared is not None and declared > count:
        return f"{count:,} of {declared:,} {things if declared != 1 else things.removesuffix('s')}"
    text = f"{count:,} {things.removesuffix('s') if count == 1 else things}"
    return f"{text} before the damage" if cut and declared is None else text


def _identifier(value: Any) -> str:
    return _plain(value.get("value") if isinstance(value, dict) else value)


def _place(fields: dict[str, Any]) -> str:
    return f"{_identifier(fields.get('stream_id'))}/{_identifier(fields.get('topic_id'))}"


def _partition(fields: dict[str, Any]) -> str:
    """Return the partition, if given: up to L7 0 means none, later there is a flag."""
    number = fields.get("partition_id")
    given = fields.get("partition_given", number != 0 or "consumer" not in fields)
    return f"partition {number}" if given and number is not None else ""


def _consumed(fields: dict[str, Any]) -> list[str]:
    """Where who reads: how requests of consumers begin."""
    return [part for part in (_place(fields), _partition(fields), _consumer(fields)) if part]


def _consumer(fields: dict[str, Any]) -> str:
    consumer = fields.get("consumer", {})
    return f"{consumer.get('kind_label') or 'consumer'} {_identifier(consumer.get('id'))}"


def _poll(fields: dict[str, Any]) -> str:
    parts = _consumed(fields)
    strategy = fields.get("strategy_label") or fields.get("strategy")
    value = fields.get("strategy_value")
    if strategy == "timestamp" and isinstance(value, int) and YEAR_2020 <= value < YEAR_2100:
        parts.append(f"timestamp {strftime('%Y-%m-%dT%H:%M:%S', gmtime(value // 1_000_000))}.{value % 1_000_000:06}Z")
    elif strategy is not None:
        parts.append(f"{strategy} {value}" if strategy in ("offset", "timestamp") else str(strategy))
    if "count" in fields:
        parts.append(f"up to {fields['count']}")
    if fields.get("auto_commit"):
        parts.append("auto commit")
    if "wait_timeout_us" in fields:
        parts.append(f"wait {_plain(fields['wait_timeout_us'])} µs")
    return "  ".join(parts)


def _offset_of(fields: dict[str, Any]) -> str:
    return "  ".join(_consumed(fields) + [f"{name} {_labelled(fields, name)}" for name in ("offset", "ack") if name in fields])


def _send(fields: dict[str, Any]) -> str:
    parts = [_place(fields)]
    target = fields.get("partitioning", {})
    label = target.get("kind_label")
    if label is not None:
        value = target.get("value")
        targets = {"balanced": "balanced", "partition_id": f"partition {_plain(value)}"}
        parts.append(targets.get(label) or f"key {_key(value)}")
    parts.append(_count(len(_messages(fields)), "messages", _declared(fields)))
    return "  ".join(parts)


def _declared(fields: dict[str, Any]) -> int | None:
    """Return the declared number of messages; the oldest layouts declare none for sending."""
    if "count" in fields:
        return int(fields["count"])
    return len(fields["indexes"]) if "indexes" in fields else None


def _key(value: Any) -> str:
    """The key of messages: its text where it is one, else its bytes."""
    if not isinstance(value, str):
        return _plain(value)
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        # not rendered as hex
        return value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text and text.isprintable() else f"0x{value}"


_REQUESTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "poll_messages": _poll,
    "send_messages": _send,
    "message.poll_deferred": _poll,
    **dict.fromkeys(
        (
            "get_consumer_offset",
            "store_consumer_offset",
            "delete_consumer_offset",
            "store_consumer_offset_2",
            "delete_consumer_offset_2",
        ),
        _offset_of,
    ),
}


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    if "messages" in fields:
        return fields["messages"]  # type: ignore[no-any-return]
    return [one for batch in fields.get("batches", ()) for one in batch.get("messages", ())]


def _polled(fields: dict[str, Any]) -> str:
    parts = [f"partition {fields['partition_id']}", _count(len(_messages(fields)), "messages", _declared(fields))]
    first, last = _offsets(fields)
    if first is not None and last is not None:
        parts.append(f"offset {first}" if first == last else f"offsets {first}-{last}")
    if "current_offset" in fields:
        parts.append(f"current {fields['current_offset']}")
    return "  ".join(parts)


def _stored(fields: dict[str, Any]) -> str:
    parts = [f"partition {fields['partition_id']}"]
    stored, current = fields.get("stored_offset"), fields.get("current_offset")
    if stored is not None and current is not None:
        parts += [f"stored {stored}", f"current {current}", f"behind by {current - stored}"]
    return "  ".join(parts)


def _written(fields: dict[str, Any]) -> str:
    written = fields["written"]
    places = [f"{_place(one)}  partition {_plain(one.get('partition_id'))}  offset {_plain(one.get('base_offset'))}" for one in written]
    return ", ".join([*places[:SHOWN], "..."] if len(places) > SHOWN else places)


def _stats(fields: dict[str, Any]) -> str:
    parts = [f"server {fields['server_version']}"] if fields.get("server_version") else []
    counts = {what: fields.get(f"{what}_count") for what in ("streams", "topics", "partitions", "messages", "clients", "consumer_groups")}
    return "  ".join(parts + [_count(count, what.replace("_", " ")) for what, count in counts.items() if count is not None])


def _nodes(fields: dict[str, Any]) -> str:
    nodes = fields["nodes"]
    roles = [
        f"{_labelled(one, 'role')} {_plain(one.get('ip'))}:{_plain(one.get('tcp_port'))} {_labelled(one, 'status')}"
        for one in nodes[:SHOWN]
    ]
    return "  ".join([f"cluster {fields.get('name')}", _count(len(nodes), "nodes"), *roles])


def _labelled(fields: dict[str, Any], name: str) -> str:
    label = fields.get(f"{name}_label")
    return _plain(fields.get(name)) if label is None else str(label)


def _assigned(fields: dict[str, Any]) -> str:
    numbers = fields["partitions"]
    shown = ", ".join(map(str, numbers[:20])) + (", ..." if len(numbers) > 20 else "")
    return f"generation {fields['generation']}  {_count(len(numbers), 'partitions')}" + (f": {shown}" if numbers else "")


def _offsets(fields: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the offsets of the first and last polled message; a damaged frame may lack them."""
    batches = [batch for batch in fields.get("batches", ()) if batch.get("messages")]
    if batches:
        return _offset(batches[0], 0), _offset(batches[-1], -1)
    messages = _messages(fields)
    return (messages[0].get("offset"), messages[-1].get("offset")) if messages else (None, None)


def _offset(batch: dict[str, Any], place: int) -> int | None:
    delta = batch["messages"][place].get("offset_delta")
    return None if delta is None else batch["base_offset"] + delta


_RESPONSES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "poll_messages": ("partition_id", _polled),
    "get_consumer_offset": ("partition_id", _stored),
    "send_messages": ("written", _written),
    "get_stats": ("process_id", _stats),
    "get_cluster_metadata": ("nodes", _nodes),
    "sync_consumer_group": ("partitions", _assigned),
    "partition.route": (
        "incarnation",
        lambda fields: f"incarnation {fields['incarnation']}  metadata_op {_plain(fields.get('metadata_op'))}",
    ),
}
"""By command: a field that its response must have, and its text."""


def relate(rows: list[ConversationRow]) -> None:
    """Share the layout found in other conversations of a server with those where it is unknown."""
    settled: dict[str, set[str]] = {}
    for row in rows:
        if row.layout is not None and row.server is not None and "mismatch" not in row.facts:
            settled.setdefault(row.server, set()).add(row.layout)
    for row in rows:
        if row.layout is None and row.server is not None and row.server in settled:
            row.facts["server_layouts"] = sorted(settled[row.server])


def traffic(message: Message) -> Traffic | None:
    """What of the users' messages a message carries."""
    fields = message.fields
    if message.name == "send_messages" and message.kind == "request":
        return Traffic(len(_messages(fields)))
    if message.name == "poll_messages" and message.kind == "request" and "consumer" in fields:
        return Traffic(consumer=_consumer(fields))
    if message.name != "poll_messages" or message.kind != "response" or "partition_id" not in fields:
        return None
    return Traffic(0, len(_messages(fields)), fields["partition_id"], _offsets(fields)[1], fields.get("current_offset"))


def verb(message: Message) -> str | None:
    """The operation that a Prepare asks for."""
    return message.fields.get("operation_label") if message.name == "Prepare" else None


def topic_of(name: str, fields: dict[str, Any]) -> str | None:
    """The stream and topic of a request, as it names them."""
    stream, topic = fields.get("stream_id"), fields.get("topic_id")
    if topic is None and name in ("create_stream", "create_topic"):
        topic = {"value": fields.get("name")}
    if stream is None and topic is None:
        return None
    parts = [str(one["value"]) for one in (stream, topic) if type(one) is dict and one.get("value") is not None]
    return "/".join(parts) or None
