"""The JSON Schema of the output contract: types from the record structs, and what each key says."""

from __future__ import annotations

from typing import Any

import msgspec

from ..credit import Stall, SubscriptionRow
from ..latency.records import Bucket, IntervalRow, LatencyRow, SlowRow, Times
from ..model import ConversationRow, Ending, Entry, Exchange, Fault, Finding, Gap, Message, Process
from ..stats import CommandRow, ConsumerRow, CountRow, FileRow, StreamRow, TotalRow

_COMMON = {
    "record": "What kind of record this line is.",
    "v": "Version of this contract; changes only when a reader could break.",
    "number": "1, 2, 3... over the records of this run.",
    "conversation": "0, 1, 2... by first packet.",
    "src": "Endpoint that sent it: address and port, IPv6 addresses in brackets.",
    "dst": "Endpoint that it was sent to.",
    "sender": "Which side sent it; null when the capture cannot tell.",
    "protocol": "A name that `streamdump protocols` lists.",
    "id": "Correlation id, msg_id, rID, queryID...; null where the protocol has none. Wider than 64 bits: a string.",
    "stream": "The stream or topic that it speaks of, of a publisher or subscription the one it was declared with; null where the "
    "capture does not tell or the protocol has none.",
    "processes": "The processes behind the endpoints, in the order of these. The key is only there if the capture or the host shows one by "
    "then.",
}

_PROCESS = {
    "endpoint": "The endpoint that it is behind; null: one of both, the capture does not show which.",
    "process": "Its name. This key and the following ones are only there if they are known.",
    "pid": "Its number on its host.",
    "container": "Name of its container, or the container's id.",
    "pod": "Name of its Kubernetes pod, or the pod's UID.",
    "namespace": "Kubernetes namespace of the pod.",
    "host": "Name of its address in the capture, with -N.",
    "others": "True if packets of this endpoint belong to other processes, too.",
    "other_pids": "The first PIDs of these, if they are known.",
}

_MESSAGE = {
    "time": "Time of the packet that completed the frame: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "name": "The protocol's own name of the command, for request and response alike.",
    "kind": "Whether it asks for a response, is one, or neither.",
    "file": "Index of the input, 0 for the first.",
    "packets": "First and last packet, counted from 1 in that input, that first brought bytes of the frame; first is null if it lies in an "
    "earlier file.",
    "position": "Byte position of the frame in its sender's byte stream.",
    "size": "Bytes of the complete frame on the wire, including the length prefix.",
    "fields": "Every field of the frame in wire order. Bytes are lower-case hex (see --bytes), integers wider than 64 bits and floats "
    "that are not finite are strings, secrets are '<redacted N bytes>'.",
    "request": "On a response: the number of its request, the oldest if it answers several; null if unpaired.",
    "outcome": "On a response: how it answers its request; null if unpaired.",
    "latency_ns": "On a response: from the last byte of the request to the first byte of the response; null if unpaired, or if the end "
    "of the request was not captured (a note gives an upper bound).",
    "notes": "Anomalies of a message that was still decoded.",
    "fault": "Why bytes could not be read as their layout; values before the damage are in fields.",
}

_GAP = {
    "time": "Time of the packet that brought the first byte after the gap, else of the conversation's last: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "position": "Byte position of the gap in its sender's byte stream.",
    "size": "Bytes; null if unknown, inside TLS.",
    "reason": "lost: never captured; cut: by the snap length; skipped: captured, but not recognised as frames.",
    "in_frame": "Whether the bytes lie in a frame that is nevertheless a message; the sizes of messages and of other gaps add up to the "
    "byte stream.",
}

_EXCHANGE = {
    "time": "Time of the packet that determined the outcome: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "src": "Endpoint that asked.",
    "dst": "Endpoint that was asked.",
    "name": "The request's name.",
    "request": "Number of the request.",
    "response": "Number of the response; null if there is none.",
    "outcome": "How the request ended.",
    "reason": "Why there is no response: closed, capture ended, bytes lost or skipped, limit, timeout, internal error, deadline passed.",
    "latency_ns": "From the last byte of the request to the first byte of the response; null if there is none, or if the end of the "
    "request was not captured.",
    "waited_ns": "From the last byte of the request to time; null if there is a response, or packets have no times.",
}

_ENDING = {
    "time": "Time of the first FIN or RST in capture order, else of the last packet: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "src": "Endpoint that ended it; the client if there was no answer.",
    "dst": "The other endpoint.",
    "sender": "Which side ended it; null if unknown.",
    "protocol": "As in messages; null for a connection to a known port, or one of -d, that never carried a byte.",
    "how": "FIN; RST; refused: RST to a SYN; no answer: neither SYN-ACK nor RST by the end of the capture; forgotten: a limit "
    "of live capture.",
    "quiet_ns": "From the last message of either side until then; null if there was none, or packets have no times.",
    "open": "Requests without a response when both sides had ended, or the capture.",
    "refused": "Requests that were refused.",
}

_FINDING = {
    "number": "1, 2, 3... over the findings of this run; all other records are numbered as without findings.",
    "time": "Time of the message that shows it, or of the end of the connection if only that does: RFC 3339, UTC, "
    "9 decimals. The messages named as evidence may be earlier.",
    "time_ns": "The same in nanoseconds since 1970.",
    "conversation": "0, 1, 2... by first packet; null if the evidence is from several conversations.",
    "src": "Sender of the message that shows it; the client if there is no single message.",
    "dst": "Receiver of that message; the server if there is no single message.",
    "sender": "Which side sent that message; null if there is no single message.",
    "protocol": "A protocol that streamdump decodes; null if the finding concerns only TCP or TLS.",
    "rule": "Stable name of the rule: a protocol, tcp or tls, a dot, and a name.",
    "severity": "error: it does not work; warning: something is wrong; note: for information.",
    "cause": "What is wrong: one sentence.",
    "advice": "What to do: one sentence.",
    "messages": "Numbers of the messages that show it, as in a run without findings.",
    "packets": "Numbers of the packets that show it, counted from 1 in their input.",
}

_ENTRY = {
    "number": "1, 2, 3... over the entries of this run.",
    "time": "Time of the packet that completed the message which carries it: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "name": "The command of that message, in the protocol's own spelling.",
    "message": "Number of that message in the view of messages.",
    "stream": "Stream, channel, or stream/topic, as in messages.",
    "partition": "The partition, where the protocol has them and it is known.",
    "offset": "The offset in the stream or partition; of a published entry only if the response names it.",
    "publishing_id": "The publishing id (RabbitMQ); the messages of a sub-batch share one.",
    "id": "The id that the application or its client gave the message: Iggy's id, message_id of AMQP 1.0.",
    "key": "What chooses its partition or its subscribers: Iggy's messages key, RabbitMQ's filter value.",
    "properties": "Headers and properties: objects with section, key and value, in wire order.",
    "compression": "Compression of the sub-batch that holds it, none without compression; null if it is in no sub-batch.",
    "size": "Bytes of the user message as carried, with its sections or headers; of mewbase, of the frame.",
    "body_type": "bytes: the body is bytes, as lower-case hex (see --bytes); amqp: a value of AMQP 1.0; bson: a document.",
    "body": "What the application sent.",
    "consumer": "Who got it: the name of a consumer or group if there is one, else the subscription; null for a published entry.",
    "outcome": "Published: confirmed, refused, deduplicated (confirmed, but not stored again), superseded or unanswered; pending: written "
    "before a response came. Delivered: delivered, or redelivered if this consumer had got this offset before. Null if the response cannot "
    "be assigned.",
    "reason": "Why it was refused, has no response, or is pending (limit, live or stopped).",
    "response": "Number of the message that answers it.",
    "latency_ns": "From the last byte of the message to the first byte of that response.",
    "notes": "What is missing: further entries of a damaged message, or a sub-batch that could not be opened.",
}

_CONVERSATION = {
    "number": "1, 2, 3... over the conversations of this run.",
    "time": "Time of its first packet: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "duration_ns": "From its first to its last packet.",
    "endpoints": "Both sides; pairs below are in this order.",
    "client": "The client's endpoint; null if unknown.",
    "server": "The server's endpoint; null if unknown.",
    "protocol": "A protocol that streamdump decodes; null if none.",
    "name": "Name of another protocol, if recognised.",
    "confidence": "From 0 to 1.",
    "evidence": "Evidence for the protocol.",
    "layout": "Layout of the protocol, if it has several.",
    "candidates": "Layouts that could not be distinguished.",
    "packets": "Packets from each side.",
    "bytes": "Length of each side's byte stream, seen or only acknowledged.",
    "messages": "Messages of both sides.",
    "faults": "Messages that could not be read in full.",
    "gaps": "Gaps of both sides.",
    "gap_bytes": "Bytes in them.",
    "refused": "Requests that were refused.",
    "unanswered": "Requests without a response.",
    "retransmissions": "Segments whose bytes had already arrived.",
    "out_of_order": "Segments that arrived after later bytes of the same side.",
    "conflicts": "Segments whose bytes differ from those that had already arrived.",
    "ended": "How it ended, and which side ended it first.",
    "limit_hits": "How often a limit on buffered data was reached.",
    "internal_error": "A bug in streamdump ended its dissection: where in the code, and at which packet; null if there was none.",
    "facts": "Further facts from the state of the protocol.",
}

_BY_PROCESS = {
    "process": "Process behind the client; where only another one is known, that with `(server)` or `(side unknown)`. This key and the "
    "following ones are only there if it is grouped by them; null: unknown.",
    "pid": "Number of the process, in the same way.",
    "container": "Its container.",
    "pod": "Its pod.",
    "namespace": "The namespace of its pod.",
    "host": "The name of its address.",
}

_GROUP = {
    "command": "Name of the requests; null unless grouped by it; the same applies to the following keys.",
    "conversation": "Its number.",
    "server": "Endpoint of the server; also null if unknown.",
    "client": "Endpoint of the client.",
    "stream": "Stream, channel, or stream and topic that the requests name; null if none.",
    "verb": "The verb that they call (Seastar RPC).",
    **_BY_PROCESS,
    "others": "Whether this is the total of all groups beyond the limit.",
    "count": "Requests.",
    "answered": "Those that were answered.",
    "refused": "Those that were refused.",
    "unanswered": "Those without a response.",
    "reasons": "Why these have none, with counts; superseded: the same id was used again.",
    "latency": "From the last byte of each request to the first byte of its response; null if there was none.",
    "handler": "How long the server worked on them, as reported in its responses (Seastar RPC); null if not reported.",
    "network": "The rest of their latency.",
    "network_at_most": "From the last byte of each request to its acknowledgement by the other side's TCP, at most the latency: an upper "
    "bound of the network's part, as far as the capture shows.",
}

_LATENCY = {**_GROUP, "histogram": "How many latencies lie between bounds of 1, 2, 5, 10... nanoseconds, within 1 %."}

_INTERVAL = {
    **_GROUP,
    "time": "Beginning of the interval: RFC 3339, UTC, 9 decimals. An exchange belongs to the interval of its response.",
    "time_ns": "The same in nanoseconds since 1970.",
    "interval_ns": "Its length: that of --interval, doubled until there are not too many intervals.",
}

_SLOW = {
    "time": "Time of the packet that completed the response: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "src": "Endpoint that asked.",
    "dst": "Endpoint that was asked.",
    "name": "The request's name.",
    "verb": "The verb that it calls (Seastar RPC), else null.",
    "request": "Number of the request in the view of messages.",
    "response": "Number of the response in that view.",
    "outcome": "answered or refused.",
    "file": "Index of the input, 0 for the first.",
    "request_packets": "First and last packet of the request.",
    "response_packets": "First and last packet of the response.",
    "latency_ns": "From the last byte of the request to the first byte of the response.",
}

_TIMES = {
    "count": "How many.",
    "mean_ns": "Their mean, exactly.",
    "min_ns": "The least, exactly.",
    "p50_ns": "The median (nearest rank); this and the following quantiles are exact to 1 %.",
    "p90_ns": "The same for 90 %.",
    "p95_ns": "For 95 %.",
    "p99_ns": "For 99 %.",
    "p99_9_ns": "For 99.9 %.",
    "max_ns": "The greatest, exactly.",
}

_BUCKET = {
    "low": "From this many nanoseconds on; null: from the least.",
    "high": "Up to this many; null: to the greatest.",
    "count": "How many.",
}

_FAULT = {
    "field": "Path of the field.",
    "offset": "Byte in the buffer, from 0.",
    "reason": "Why.",
    "buffer": "frame, or unpacked for the content of a compressed frame.",
}

_EXACT: dict[str, dict[str, Any]] = {
    "v": {"const": 1},
    "notes": {"type": "array", "items": {"type": "string"}},
    "outcome": {"enum": ["answered", "refused", "superseded", "unanswered", None]},
    "fault": {"anyOf": [{"$ref": "#/$defs/Fault"}, {"type": "null"}]},
    **{name: {"anyOf": [{"$ref": "#/$defs/Times"}, {"type": "null"}]} for name in ("latency", "handler", "network", "network_at_most")},
    "listed": {"type": "array", "items": {"$ref": "#/$defs/Stall"}},
    "histogram": {"type": "array", "items": {"$ref": "#/$defs/Bucket"}},
    "processes": {"type": "array", "items": {"$ref": "#/$defs/Process"}, "minItems": 1},
}
"""Where the struct's annotation is wider than the contract, or names a definition."""

_OWN = ("outcome",)
"""Keys of entries that have other values than those of the same name elsewhere."""

_SPAN = {
    "time": "Time of the first packet: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "duration_ns": "From the first packet to the last.",
    "packets": "Packets of any kind.",
    "bytes": "Their bytes as sent.",
}

_FILE = {**_SPAN, "file": "Index of the input, 0 for the first.", "name": "Its name."}

_TOTAL = {
    **_SPAN,
    "conversations": "Conversations.",
    "messages": "Messages; with -Y, only matching ones, also in the following keys.",
    "message_bytes": "Their bytes.",
    "refused": "Responses that refuse.",
    "faults": "Messages that could not be read in full.",
    "gaps": "Gaps.",
    "gap_bytes": "Bytes in them.",
    "subscriptions_left_out": "Subscriptions beyond the 1,000 that have a record.",
    "polls_left_out": "Responses to polls of consumers beyond the 1,000 that have a record.",
    "unread": "Bytes of conversations that are not decoded, by kind.",
}

_COMMAND = {
    **_BY_PROCESS,
    "name": "The protocol's own name of the command; (others): all groups beyond the limit.",
    "kind": "Whether it asks for a response, is one, or neither.",
    "count": "Messages.",
    "bytes": "Their bytes.",
    "per_second": "Messages per second of captured time; null if that is 0.",
}

_STREAM = {
    "stream": "The stream or topic; -: unknown; (others): all groups beyond the limit.",
    "partition": "The partition; null if the protocol has none.",
    "published": "User messages that were published.",
    "published_bytes": "Bytes of the frames that publish them.",
    "delivered": "User messages that were delivered or polled.",
    "delivered_bytes": "Bytes of the frames that contain them.",
    "offset": "The highest offset that was delivered.",
    "committed": "The highest committed offset that the server reports: in RabbitMQ Streams, the start of the last committed chunk.",
    "behind": "Difference between committed and offset.",
}

_SUBSCRIPTION = {
    "time": "When the client subscribed: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "stream": "The stream.",
    "subscription": "Its id, which another one of the connection may have later.",
    "unit": "What its credit counts.",
    "granted": "Credit that the client granted, except what the server refused.",
    "used": "Credit that chunks used.",
    "chunks": "Chunks that were delivered.",
    "outstanding": "Credit that was left at its end, or at that of the capture: below 0 if the last chunk used more bytes than were left; "
    "null if unknown.",
    "complete": "Whether nothing of it is missing; otherwise all figures are what was seen, and stalls are those before the loss.",
    "stalls": "Times without credit, of 0.1 s or longer: the server may not send before the client grants more.",
    "stalled_ns": "How long they were in total.",
    "longest_ns": "How long the longest was.",
    "listed": "The first 100 of them.",
}

_STALL = {
    "time": "When the credit was used up: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "duration_ns": "Until the client granted more, or the end of the subscription or capture.",
    "side": "Which side caused it; client: it granted nothing.",
    "waiting": "Whether the server had reported more to deliver when it began; null if it reported nothing.",
    "ended": "Whether a grant ended it.",
}

_CONSUMER = {
    "time": "When it last got messages: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "partition": "The partition.",
    "consumer": "Its kind and id, or name, in its polls.",
    "offset": "The last offset that it got.",
    "current_offset": "The last offset of the partition, as the same response states.",
    "lag": "Difference between them.",
    "largest_lag": "The largest such difference.",
    "largest_lag_time": "When that was: RFC 3339, UTC, 9 decimals.",
    "largest_lag_time_ns": "The same in nanoseconds since 1970.",
}

_COUNT = {
    "time": "Beginning of the interval: RFC 3339, UTC, 9 decimals.",
    "time_ns": "The same in nanoseconds since 1970.",
    "interval_ns": "Its length: that of --interval, doubled until there are not too many intervals.",
    "messages": "Messages.",
    "bytes": "Their bytes.",
    "published": "User messages that were published.",
    "delivered": "User messages that were delivered or polled.",
    "credit": "Chunks that servers may still send, at its end, to subscriptions whose credit counts chunks.",
    "credit_bytes": "Bytes of chunks that they may still send to those whose credit counts bytes.",
    "commands": "Messages by name.",
}

_RECORDS: tuple[tuple[type[msgspec.Struct], dict[str, str]], ...] = (
    (Message, _MESSAGE),
    (Gap, _GAP),
    (Exchange, _EXCHANGE),
    (Ending, _ENDING),
    (Finding, _FINDING),
    (Entry, _ENTRY),
    (ConversationRow, _CONVERSATION),
    (LatencyRow, _LATENCY),
    (IntervalRow, _INTERVAL),
    (SlowRow, _SLOW),
    (FileRow, _FILE),
    (TotalRow, _TOTAL),
    (CommandRow, _COMMAND),
    (StreamRow, _STREAM),
    (SubscriptionRow, _SUBSCRIPTION),
    (ConsumerRow, _CONSUMER),
    (CountRow, _COUNT),
)


_PARTS: tuple[tuple[type[msgspec.Struct], dict[str, str]], ...] = (
    *((Fault, _FAULT), (Stall, _STALL), (Times, _TIMES), (Bucket, _BUCKET)),
    (Process, _PROCESS),
)


def schema() -> dict[str, Any]:
    """The schema of one line: draft 2020-12."""
    records = {_tag(record): _object(record, {**_COMMON, **said}) for record, said in _RECORDS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of streamdump --json",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in records],
        "$defs": {**records, **{struct.__name__: _object(struct, said) for struct, said in _PARTS}},
    }


def _tag(record: type[msgspec.Struct]) -> str:
    return str(record.__struct_config__.tag)


def _object(struct: type[msgspec.Struct], said: dict[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    if struct.__struct_config__.tag is not None:
        properties["record"] = {"const": _tag(struct), "description": said["record"]}
        required.append("record")
    for field in msgspec.structs.fields(struct):
        if struct is Message and field.name in ("raw", "spans"):
            # made for the views of details, never part of the JSON
            continue
        # The encoder leaves out values that are such a default
        if field.required or not (struct.__struct_config__.omit_defaults or field.default is msgspec.UNSET):
            required.append(field.name)
        exact = _EXACT.get(field.name) if struct is not Entry or field.name not in _OWN else None
        kind = exact if exact is not None else msgspec.json.schema(field.type)
        properties[field.name] = {**kind, "description": said[field.name]}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
