"""What an Apache Iggy message says in one line, and what conversations of one server tell about each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dissect.model import ConversationRow, Message
from dissect.protocols.iggy.features import RELEASES

TEXT = """\
No frame states its layout. streamdump keeps the layouts in which every frame of a conversation decodes with nothing left over;
`conversations` lists those that could not be told apart. A message that they read differently waits for its layout (256 frames or
1 MiB, then it is read as the one that a stated
version speaks for, else the newest, and says so). Status codes were given out again, so they have names by layout. `-d
tcp.port==N,iggy:L9` forces a layout.

L0 to L9 have the classic framing: a request is length, code and payload, a response status, length and payload. V1 to V4 have a header of
256 bytes in front of the same bodies. The tables below show each body once, where it changed: "from L3" holds until the next table of
the same name and direction.

The classic framing has no correlation id: the n-th response answers the n-th request. Where frames were lost the pairing is
unsure, and says so, until a client that keeps one request in flight asks again. In the 256-byte framing client, request number and
operation are checked too; the request number alone is not unique.

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
        "context",
        "op",
        "commit",
        "results",
        "metadata_length",
        "padding",
        "indexes",
    )
)

_FINDS = frozenset(("get_client", "get_user", "get_consumer_offset", "get_stream", "get_topic", "get_consumer_group"))
"""Commands whose empty answer says that there is no such thing."""

SHOWN = 6
"""So many fields of a message are told in a line."""


def says(message: Message) -> str:
    """The key fields of a message."""
    fields = message.fields
    if message.kind == "response":
        if message.name == "eviction":
            return f"evicted: {fields.get('reason_label') or fields.get('reason')}"
        failure = _failure(fields)
        if failure:
            return failure
        if message.name == "poll_messages" and "partition_id" in fields:
            return _polled(fields)
    elif message.name in _REQUESTS and "stream_id" in fields:
        return _REQUESTS[message.name](fields)
    parts = [_told(name, value, fields) for name, value in fields.items() if name not in _HEADERS and not name.endswith("_label")]
    parts = [part for part in parts if part]
    if not parts and message.outcome == "answered" and message.name in _FINDS:
        return "not found"
    if len(parts) > SHOWN:
        parts[SHOWN:] = ["..."]
    return "  ".join(parts)


def _failure(fields: dict[str, Any]) -> str:
    """The status, with its text where there is one, or the results that failed."""
    status = fields.get("status")
    if status:
        label = fields.get("status_label") or f"status {status}"
        text = fields.get("message")
        return f"{label}: {text}" if text else str(label)
    results = fields.get("results")
    if results:
        return ", ".join(dict.fromkeys(str(one.get("result_label") or f"result {one.get('result')}") for one in results))
    return ""


def _told(name: str, value: Any, fields: dict[str, Any]) -> str:
    if isinstance(value, dict):
        if "value" in value:
            return f"{name.removesuffix('_id')} {value['value']}"
        if "id" in value:
            inner = value["id"]
            return f"{value.get('kind_label') or name} {inner['value'] if isinstance(inner, dict) and 'value' in inner else inner}"
        return ""
    if isinstance(value, list):
        return f"{len(value)} {name}"
    if name in ("body", "snapshot", "trailing"):
        return f"{len(value) // 2:,} bytes" if isinstance(value, str) and not value.startswith("<") else str(value)
    label = fields.get(f"{name}_label")
    return f"{name}={value if label is None else label}"


def _identifier(value: Any) -> Any:
    return value.get("value") if isinstance(value, dict) else value


def _place(fields: dict[str, Any]) -> str:
    return f"{_identifier(fields.get('stream_id'))}/{_identifier(fields.get('topic_id'))}"


def _poll(fields: dict[str, Any]) -> str:
    consumer = fields.get("consumer", {})
    parts = [_place(fields)]
    if fields.get("partition_given", True) and "partition_id" in fields:
        parts.append(f"partition {fields['partition_id']}")
    parts.append(f"{consumer.get('kind_label') or 'consumer'} {_identifier(consumer.get('id'))}")
    strategy = fields.get("strategy_label") or fields.get("strategy")
    if strategy is not None:
        parts.append(f"{strategy} {fields.get('strategy_value')}" if strategy in ("offset", "timestamp") else str(strategy))
    if "count" in fields:
        parts.append(f"up to {fields['count']}")
    return "  ".join(parts)


def _send(fields: dict[str, Any]) -> str:
    parts = [_place(fields)]
    target = fields.get("partitioning", {})
    label = target.get("kind_label")
    if label is not None:
        parts.append({"balanced": "balanced", "partition_id": f"partition {target.get('value')}"}.get(label, f"key {target.get('value')}"))
    count = len(_messages(fields))
    parts.append(f"{count} message" if count == 1 else f"{count:,} messages")
    return "  ".join(parts)


_REQUESTS: dict[str, Callable[[dict[str, Any]], str]] = {"poll_messages": _poll, "send_messages": _send}


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    messages = fields.get("messages")
    if messages is None:
        messages = [one for batch in fields.get("batches", ()) for one in batch.get("messages", ())]
    return messages


def _polled(fields: dict[str, Any]) -> str:
    messages = _messages(fields)
    parts = [f"partition {fields['partition_id']}", f"{len(messages)} message" if len(messages) == 1 else f"{len(messages):,} messages"]
    if messages:
        if "batches" in fields:
            batches = [batch for batch in fields["batches"] if batch.get("messages")]
            first, last = _offset(batches[0], 0), _offset(batches[-1], -1)
        else:
            first, last = messages[0].get("offset"), messages[-1].get("offset")
        if first is not None and last is not None:
            parts.append(f"offset {first}" if first == last else f"offsets {first}-{last}")
    if "current_offset" in fields:
        parts.append(f"current {fields['current_offset']}")
    return "  ".join(parts)


def _offset(batch: dict[str, Any], place: int) -> int | None:
    """The offset of a message of a batch; a damaged one may not say."""
    delta = batch["messages"][place].get("offset_delta")
    return None if delta is None else batch["base_offset"] + delta


def relate(rows: list[ConversationRow]) -> None:
    """Tell each conversation whose layout is open what others of the same server settled."""
    settled: dict[str, set[str]] = {}
    for row in rows:
        if row.layout is not None and row.server is not None and "mismatch" not in row.facts:
            settled.setdefault(row.server, set()).add(row.layout)
    for row in rows:
        if row.layout is None and row.server is not None and row.server in settled:
            row.facts["server_layouts"] = sorted(settled[row.server])
