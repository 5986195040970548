"""The summary of a message in its line of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...layout import Field, Layout
from ...model import Message
from ...units import count
from ..protocol import Traffic
from .layouts import BYTES, CHUNKS, PRECONDITION_FAILED, chunk_size, is_single_active, unit_of

RUNS = 3
"""Runs of numbers that a line shows before it gives up."""

PAIRS = 3
"""Properties that a line shows."""

NO_LEADER = 0xFFFF

_HEADER = frozenset(("size", "key", "version", "correlation_id", "response_code", "response_code_label", "trailing"))

_FINE = frozenset(("OK", "SASL challenge"))

_FINE_CODE = 1

_ID = 0xFFFF_FFFF_FFFF_FFFF
"""What of the key of a published message is its id."""

Fields = dict[str, Any]


_OF_PUBLISHERS = frozenset(("Publish", "PublishError"))
"""Messages whose lines have the stream beside the publisher."""

_COUNTED = frozenset(("Publish", "PublishConfirm", "PublishError", "Metadata", "ExchangeCommandVersions", "CreateSuperStream"))
"""Messages whose lines count the items of a list. That of Deliver has the chunk's own counts."""


def info(message: Message) -> str:
    """The key fields of a message; of a list that ends in damage, what stands before it."""
    text = _says(message)
    if message.stream is not None and message.name in _OF_PUBLISHERS:
        head = f"publisher {message.fields.get('publisher_id')}"
        if text.startswith(head):
            text = f"{head}  {message.stream}{text[len(head) :]}"
    fault = message.fault
    if fault is None or "[" not in fault.field or message.name not in _COUNTED:
        return text
    # how long the list would have been is not among the fields
    return f"{text}  before the damage"


def _says(message: Message) -> str:
    """The key fields; tolerates messages of which only the beginning is there."""
    fields = message.fields
    parts: list[str] = []
    if message.id is not None:
        parts.append(f"#{message.id}")
    if "response_code" in fields:
        parts.append(_code(fields, "response_code"))
        if message.name != "Credit" and fields.get("response_code_label") not in _FINE:
            return "  ".join(parts)
    maker = _RESPONSES.get(message.name) if message.kind == "response" else None
    maker = maker or _SAYS.get(message.name)
    try:
        parts += _others(fields) if maker is None else maker(fields)
    except (KeyError, TypeError, IndexError):
        parts += _others(fields)
    if message.name == "Credit":
        parts.append(_why_inactive(message))
    return "  ".join(filter(None, parts))


def _code(fields: Fields, name: str) -> str:
    return fields.get(f"{name}_label") or f"code 0x{fields[name]:02x}"


def _others(fields: Fields) -> list[str]:
    """Every plain value that no better words are known for."""
    return [f"{name}={value}" for name, value in fields.items() if name not in _HEADER and isinstance(value, str | int)]


def _text(value: Any) -> str:
    """Return text of a frame; a length of -1 is null."""
    return "null" if value is None else str(value)


def _ranges(numbers: Iterable[int]) -> str:
    """`1-4, 7` for what follows each other."""
    runs: list[str] = []
    first = following = -1
    for number in numbers:
        if number != following:
            if first >= 0:
                runs.append(_run(first, following - 1))
            if len(runs) == RUNS:
                return ", ".join(runs) + ", ..."
            first = number
        following = number + 1
    return ", ".join([*runs, _run(first, following - 1)] if first >= 0 else runs)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _pairs(pairs: list[dict[str, Any]], first: tuple[str, ...] = ()) -> str:
    """`key=value` of the interesting ones, or of the first few."""
    if first:
        chosen = [pair for name in first for pair in pairs if pair["key"] == name]
        pairs = chosen or pairs
    text = " ".join(f"{_text(pair['key'])}={_text(pair['value'])}" for pair in pairs[:PAIRS] if "value" in pair)
    return f"{text} ..." if len(pairs) > PAIRS else text


def _names(names: list[str]) -> str:
    text = ", ".join(map(_text, names[:PAIRS]))
    return f"{text} and {len(names) - PAIRS:,} more" if len(names) > PAIRS else text or "none"


def _offset(fields: Fields) -> str:
    kind = fields["offset_type_label"] or f"type {fields['offset_type']}"
    return f"{kind} {fields['offset']}" if "offset" in fields and fields["offset_type"] in (4, 5) else str(kind)


def _published(fields: Fields) -> list[str]:
    if "published_messages" not in fields and "keys" in fields:
        # The part of a large one that is kept until its response
        kept = [key & _ID for key in fields["keys"]]
        return [
            *([f"publisher {fields['publisher_id']}"] if "publisher_id" in fields else []),
            f"{'id' if len(kept) == 1 else 'ids'} {_ranges(kept)}",
        ]
    messages = fields["published_messages"]
    whose = [f"publisher {fields['publisher_id']}"] if "publisher_id" in fields else [_text(fields["stream"])]
    size = sum([one.get("size", 0) for one in messages])
    ids = _ranges(one["publishing_id"] for one in messages)
    what = [f"{'id' if len(messages) == 1 else 'ids'} {ids}"] if messages else []
    batches = [one.get("num_records", 1) for one in messages if "compression" in one]
    packed = [f"in {len(batches)} sub-batch{'es' if len(batches) > 1 else ''}"] if batches else []
    return [*whose, *what, count(len(messages) - len(batches) + sum(batches), "message"), *packed, count(size, "byte")]


def _confirmed(fields: Fields) -> list[str]:
    ids = fields["publishing_ids"]
    whose = [f"publisher {fields['publisher_id']}"] if "publisher_id" in fields else []
    return [*whose, f"{'id' if len(ids) == 1 else 'ids'} {_ranges(ids) or 'none'}"]


def _not_published(fields: Fields) -> list[str]:
    errors = fields["publishing_errors"]
    whose = [f"publisher {fields['publisher_id']}"] if "publisher_id" in fields else []
    reasons = dict.fromkeys(_code(one, "code") for one in errors)
    return [*whose, f"{'id' if len(errors) == 1 else 'ids'} {_ranges(one['publishing_id'] for one in errors)}", ", ".join(reasons)]


def _delivered(fields: Fields) -> list[str]:
    """Tolerates a chunk of which only the beginning is there: the snap length cuts many."""
    chunk = fields.get("chunk", {})
    first, records, entries = (chunk.get(name) for name in ("chunk_first_offset", "num_records", "num_entries"))
    parts = [f"subscription {fields['subscription_id']}"]
    if first is not None:
        parts.append(f"offset {first}" if records == 1 else f"offsets {first}-{first + max(records, 1) - 1}")
    if entries is not None:
        parts.append(count(entries, "entry"))
    if records is not None and records != entries:
        parts.append(count(records, "record"))
    if chunk.get("chunk_type"):
        parts.append(str(chunk["chunk_type_label"] or f"chunk type {chunk['chunk_type']}"))
    if first is not None and fields.get("committed_chunk_id", -1) > first:
        parts.append(f"committed {fields['committed_chunk_id']}")
    return parts


def _subscribe(fields: Fields) -> list[str]:
    start = f"from {_offset(fields)}" if "offset_type" in fields else f"from offset {fields['offset']}"
    properties = [_pairs(fields["properties"])] if fields.get("properties") else []
    return [
        f"subscription {fields['subscription_id']}",
        _text(fields["stream"]),
        start,
        f"credit {fields['credit']:,}{_unit(fields)}",
        *properties,
    ]


def _metadata(fields: Fields) -> list[str]:
    brokers = {one["reference"]: f"{_text(one['host'])}:{one['port']}" for one in fields["brokers"]}
    good: list[str] = []
    bad: list[str] = []
    for one in fields["stream_metadata"]:
        name, leader = one["stream_name"], one["leader_reference"]
        if one["response_code_label"] != "OK":
            bad.append(f"{name}: {_code(one, 'response_code')}")
        elif leader == NO_LEADER:
            bad.append(f"{name}: no leader")
        else:
            good.append(f"{name} on {brokers.get(leader, f'broker {leader}')}")
    return [count(len(brokers), "broker"), *([_names(good)] if good else []), *bad[:PAIRS]]


def _closes_with_error(message: Message) -> bool:
    # JavaScript's client gives none
    return message.kind == "request" and (message.fields.get("closing_code") or _FINE_CODE) != _FINE_CODE


def _lacks_a_stream(message: Message) -> bool:
    streams = message.fields.get("stream_metadata", ())
    return any(one.get("response_code", _FINE_CODE) != _FINE_CODE or one.get("leader_reference") == NO_LEADER for one in streams)


def _refuses_alone(message: Message) -> bool:
    """A response without its request has no outcome, and says all the same that something was refused."""
    fields = message.fields
    return message.kind == "response" and "response_code" in fields and fields.get("response_code_label") not in _FINE


def alarms(layouts: Iterable[Layout]) -> dict[str, Callable[[Message], bool]]:
    """Of a protocol with these layouts."""
    coded = [one.name for one in layouts if any(isinstance(field, Field) and field.name == "response_code" for field in one.fields)]
    return {**dict.fromkeys(coded, _refuses_alone), **ALARMS}


ALARMS: dict[str, Callable[[Message], bool]] = {
    "Close": _closes_with_error,
    "MetadataUpdate": lambda message: True,
    "Metadata": _lacks_a_stream,
    "PublishError": lambda message: True,
    "Credit": lambda message: message.kind == "response" and not _may_be_inactive(message),
}
"""Causes of further errors: a side that hangs up with an error, streams and messages that are gone."""


def _unit(fields: Fields) -> str:
    """The unit of credit, where it is not chunks."""
    return f" {BYTES}" if unit_of(fields) == BYTES else ""


def _credited(fields: Fields) -> list[str]:
    more = [f"{fields['credit']:+,}{_unit(fields)}"] if "credit" in fields else []
    taken = ["takes credit away"] if fields.get("credit", 0) < 0 else []
    return [f"subscription {fields['subscription_id']}", *more, *taken]


def _may_be_inactive(message: Message) -> bool:
    """Whether this may be the response to a Credit whose consumer is just not active."""
    return message.outcome != "refused" and message.fields.get("response_code") == PRECONDITION_FAILED


def _why_inactive(message: Message) -> str:
    """What the code of a response to Credit means that has several causes."""
    if not _may_be_inactive(message):
        return ""
    if message.stream is not None:
        return "the consumer is not active"
    return "the consumer is not active, or the Credit is in the wrong unit or too large"


def _versions(fields: Fields) -> list[str]:
    newer = [f"{one['key_label'] or one['key']} {one['max_version']}" for one in fields["commands"] if one.get("max_version", 1) > 1]
    return [count(len(fields["commands"]), "command"), *([f"up to {', '.join(newer)}"] if newer else [])]


_SAYS: dict[str, Callable[[Fields], list[str]]] = {
    "PeerProperties": lambda fields: [_pairs(fields["peer_properties"], ("product", "version", "connection_name"))],
    "SaslHandshake": lambda fields: [],
    "SaslAuthenticate": lambda fields: [
        fields["mechanism"] or "no mechanism",
        f"user {fields['sasl_username']}" if fields.get("sasl_username") is not None else "",
    ],
    "Tune": lambda fields: [
        f"frame_max {fields['frame_max']:,}" if fields["frame_max"] else "no frame_max",
        f"heartbeat {fields['heartbeat']} s" if fields["heartbeat"] else "no heartbeat",
    ],
    "Open": lambda fields: [f"virtual host {_text(fields['virtual_host'])}"],
    "Close": lambda fields: list(dict.fromkeys((_code(fields, "closing_code"), _text(fields["closing_reason"])))),
    "Heartbeat": lambda fields: [],
    "DeclarePublisher": lambda fields: [
        f"publisher {fields['publisher_id']}",
        _text(fields["stream"]),
        "" if fields["publisher_reference"] == "" else f"reference {_text(fields['publisher_reference'])}",
    ],
    "Publish": _published,
    "PublishConfirm": _confirmed,
    "PublishError": _not_published,
    "QueryPublisherSequence": lambda fields: [f"reference {_text(fields['publisher_reference'])}", _text(fields["stream"])],
    "DeletePublisher": lambda fields: [f"publisher {fields['publisher_id']}"],
    "Subscribe": _subscribe,
    "Deliver": _delivered,
    "Credit": _credited,
    "StoreOffset": lambda fields: [f"reference {_text(fields['reference'])}", _text(fields["stream"]), f"offset {fields['offset']}"],
    "QueryOffset": lambda fields: [f"reference {_text(fields['reference'])}", _text(fields["stream"])],
    "Unsubscribe": lambda fields: [f"subscription {fields['subscription_id']}"],
    "Create": lambda fields: [_text(fields["stream"]), _pairs(fields["arguments"])],
    "Delete": lambda fields: [_text(fields["stream"])],
    "Metadata": lambda fields: [_names(fields["streams"])],
    "MetadataUpdate": lambda fields: [_text(fields["stream"]), _code(fields, "code")],
    "Route": lambda fields: [_text(fields["super_stream"]), f"routing key {_text(fields['routing_key'])}"],
    "Partitions": lambda fields: [_text(fields["super_stream"])],
    "ConsumerUpdate": lambda fields: [f"subscription {fields['subscription_id']}", fields["active_label"] or f"active {fields['active']}"],
    "ExchangeCommandVersions": _versions,
    "StreamStats": lambda fields: [_text(fields["stream"])],
    "CreateSuperStream": lambda fields: [
        _text(fields["name"]),
        count(len(fields["partitions"]), "partition"),
        _pairs(fields["arguments"]),
    ],
    "DeleteSuperStream": lambda fields: [_text(fields["name"])],
    "ResolveOffsetSpec": lambda fields: [_text(fields["stream"]), _offset(fields)],
}


def traffic(message: Message) -> Traffic | None:
    """What of the users' messages a message carries, and of the credit for them."""
    fields, name = message.fields, message.name
    subscription = fields.get("subscription_id")
    if name == "Publish":
        return Traffic(sum(one.get("num_records", 1) for one in fields.get("published_messages", ())))
    if name == "Deliver":
        chunk = fields.get("chunk", {})
        records, first = chunk.get("num_records", 0), chunk.get("chunk_first_offset")
        last = first + records - 1 if first is not None and records else None
        used = {CHUNKS: -1, BYTES: -chunk_size(fields)}
        return Traffic(0, records, None, last, fields.get("committed_chunk_id"), subscription, used)
    if name in ("Subscribe", "Credit") and "credit" in fields:
        # A single active consumer gets nothing until the server asks it to go on
        active = False if is_single_active(fields.get("properties") or ()) else None
        return Traffic(subscription=subscription, credit={unit_of(fields): fields["credit"]}, begins=name == "Subscribe", active=active)
    if name == "ConsumerUpdate" and message.kind == "request" and "active" in fields:
        return Traffic(subscription=subscription, active=fields["active"] == 1)
    if name == "Unsubscribe":
        return Traffic(subscription=subscription, credit=None)
    if name == "MetadataUpdate":
        return Traffic(ends=fields.get("stream"))
    if name == "StreamStats" and message.kind == "response":
        committed = [one.get("value") for one in fields.get("stats", ()) if one.get("key") in ("committed_chunk_id", "committed_offset")]
        return Traffic(committed=max((one for one in committed if one is not None and one >= 0), default=None))
    return None


def _nothing(fields: Fields) -> list[str]:
    return []


_RESPONSES: dict[str, Callable[[Fields], list[str]]] = {
    **dict.fromkeys(
        (
            "DeclarePublisher",
            "DeletePublisher",
            "Subscribe",
            "Unsubscribe",
            "Create",
            "Delete",
            "SaslAuthenticate",
            "Close",
            "CreateSuperStream",
            "DeleteSuperStream",
        ),
        _nothing,
    ),
    "QueryPublisherSequence": lambda fields: [f"sequence {fields['sequence']}"],
    "QueryOffset": lambda fields: [f"offset {fields['offset']}"],
    "Metadata": _metadata,
    "SaslHandshake": lambda fields: [_names(fields["mechanisms"])],
    "Open": lambda fields: [_pairs(fields["connection_properties"])] if "connection_properties" in fields else [],
    "Route": lambda fields: [_names(fields["streams"])],
    "Partitions": lambda fields: [_names(fields["streams"])],
    "ConsumerUpdate": lambda fields: [_offset(fields)],
    "StreamStats": lambda fields: [_pairs(fields["stats"])],
    "ResolveOffsetSpec": lambda fields: [_offset(fields)],
}
