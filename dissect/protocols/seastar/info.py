"""What a Seastar RPC message says in one line, and what messages and connections tell about each other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ...model import ConversationRow, Message, Options
from ...quota import drop_oldest
from ...units import duration_text
from .layouts import NOT_MEASURED, OVER

TEXT = """\
The client sends one negotiation frame, the server answers with one or closes. What the server's holds is in force; that a connection is a
stream is known from the client's alone. `negotiated` on the server's frame sums it up. Where the negotiation was not captured, the framing
is inferred from frames that chain over segments, and each message says so; a stream is never guessed.

A call that expects no answer looks like one whose answer is late or was dropped, and a server sends nothing when the timeout
had passed: both end as unanswered, the latter with the reason that the deadline passed.

`--verbs scylla` names ScyllaDB's verbs, `--verbs FILE` those of a file of lines `number = name`; behind the name `[no-wait]` marks verbs
that are not answered. Where a negotiation offers SCYLLA_V3, or frames are in it, both sides are ScyllaDB: its verbs have names unasked,
which a note states once.

Frames of SCYLLA_V3 are raw, LZ4 or zstd. Each direction agrees on a dictionary with control blocks; the frame with the sender's COMMIT
uses it already. `--dict FILE` gives dictionaries, each known by its SHA-256: the column `data` of ScyllaDB's table system.dicts, as bytes
or as hex digits. Where it is not known which one is in force, as in a capture that begins later or behind missing bytes, none and each of
those given are tried, and the checksum decides. A frame that needs another one stays packed, and a note names it.
"""


MAX_REQUESTS = 65_536
"""Requests whose verbs are remembered for the lines of their responses."""


class InfoWithVerb:
    """Describes messages as `info` does, and responses with what was asked for, if it got the request."""

    def __init__(self) -> None:
        self.verbs: OrderedDict[int, str] = OrderedDict()

    def learn(self, message: Message) -> None:
        """Note a message, whether it is shown or not."""
        if message.kind == "request":
            verb = _verb(message.fields)
            if verb:
                self.verbs[message.number] = verb
                drop_oldest(self.verbs, MAX_REQUESTS)

    def __call__(self, message: Message) -> str:
        return info(message, "" if message.request is None else self.verbs.get(message.request, ""))


def info(message: Message, verb: str = "") -> str:
    """The key fields of a message; `verb`: what the request asked for that this response answers."""
    fields = message.fields
    name = message.name
    if name == "Request":
        timeout = fields.get("timeout")
        parts = [f"#{message.id}", _verb(fields)]
        if timeout:
            parts.append(f"timeout {timeout:,} ms")
    elif name == "Response":
        parts = [f"#{message.id}", verb] if verb else [f"#{message.id}"]
    elif name == "Exception":
        parts = [f"#{message.id}", _exception(fields)]
        if verb and "verb" not in fields:
            parts.insert(1, verb)
    elif name == "Negotiation":
        return _negotiation(fields, message.kind)
    else:
        parts = []
    if "payload" in fields:
        length = fields["len"]
        parts.append("1 byte" if length == 1 else f"{length:,} bytes")
    if "handler_duration" in fields:
        parts += _times(fields["handler_duration"], message.latency_ns)
    packed = fields.get("compression")
    if packed is not None:
        unpacked = packed["unpacked_size"]
        size = f"{packed['packed_size']:,} bytes" if unpacked is None else f"{unpacked:,} bytes in {packed['packed_size']:,}"
        method = packed.get("header", {}).get("algorithm_label")
        parts.append(f"({packed['algorithm']}{f' {method}' if method else ''}: {size})")
        parts += _control(packed.get("control", {}))
    return "  ".join(parts)


def _control(control: dict[str, Any]) -> list[str]:
    """What a control block of SCYLLA_V3 agrees on."""
    found = []
    for half in ("sender", "receiver"):
        one = control.get(half, {})
        if one.get("action") and one.get("action_label"):
            named = one.get("dictionary") or ""
            named = named.hex() if isinstance(named, bytes) else named
            dictionary = f", dictionary {named[:8]}" if named.strip("0") else ""
            found.append(f"as {half} {one['action_label']} {one.get('epoch')}: {one.get('algorithms_label')}{dictionary}")
    return found


def _verb(fields: dict[str, Any]) -> str:
    if "verb" not in fields:
        return ""
    label = fields.get("verb_label")
    return f"verb {fields['verb']}" if label is None else f"{label}"


def verb(request: Message) -> str | None:
    """What a request asks for; nothing for a negotiation."""
    return _verb(request.fields) or None


def worked(response: Message) -> int | None:
    """How long the handler ran, in nanoseconds, where that was measured."""
    duration = response.fields.get("handler_duration")
    return None if duration is None or duration == NOT_MEASURED else int(duration) * 1_000


def _times(duration: int, latency_ns: int | None) -> list[str]:
    if duration == NOT_MEASURED:
        return ["no handler ran"]
    parts = [f"handler {duration_text(duration * 1_000)}"]
    if latency_ns is not None:
        parts.append(f"network {duration_text(latency_ns - duration * 1_000)}")
    return parts


def _exception(fields: dict[str, Any]) -> str:
    kind = fields.get("exception_type_label")
    if "text" in fields:
        return f"{kind}: {fields['text']}"
    if "verb" in fields:
        return f"{kind} {_verb(fields)}"
    return str(kind or f"type {fields['exception_type']}") if "exception_type" in fields else ""


def _negotiation(fields: dict[str, Any], kind: str) -> str:
    parts = [_feature(record) for record in fields.get("features", ()) if "number" in record]
    negotiated = fields.get("negotiated")
    text = f"{'offers' if kind == 'request' else 'grants'} {', '.join(parts) if parts else 'nothing'}"
    if negotiated is not None and negotiated["declined"]:
        text += f"; declines {', '.join(negotiated['declined'])}"
    if negotiated is not None and negotiated["connection"] == "stream":
        text += "; a stream connection"
    return text


def _feature(record: dict[str, Any]) -> str:
    label: str = record.get("number_label") or f"feature {record['number']}"
    for name in ("algorithms", "cookie", "connection_id", "stream_parent"):
        if name in record:
            said = record[name]
            return f"{label} {connection_text(said) if isinstance(said, int) else said}"
    return label


def connection_text(ident: int) -> str:
    """A connection id as serial and shard."""
    return f"{ident >> 16} on shard {ident & 0xFFFF}"


def paired(request: Message, response: Message) -> list[str]:
    """That the response came when the request's time was over."""
    timeout = request.fields.get("timeout")
    if not timeout or timeout >= OVER:
        return []
    late = response.time_ns - request.time_ns - timeout * 1_000_000
    return [f"{duration_text(late)} after the deadline of {timeout:,} ms"] if late > 0 else []


def unanswered(request: Message, time_ns: int) -> str | None:
    """That the request's time was over: the server then sends nothing."""
    timeout = request.fields.get("timeout")
    if not timeout or (timeout < OVER and time_ns - request.time_ns <= timeout * 1_000_000):
        return None
    return "deadline passed"


def relate(rows: list[ConversationRow]) -> None:
    """Tie streams to their parents: the connection of the same server whose id they name, the latest if there were several."""
    parents: dict[tuple[str | None, int], list[ConversationRow]] = {}
    for row in rows:
        ident = row.facts.get("connection_id")
        if ident is not None and row.server is not None and "stream_parent" not in row.facts:
            parents.setdefault((row.server, ident), []).append(row)
    for row in rows:
        named = row.facts.get("stream_parent")
        if named is None:
            continue
        before = [one for one in parents.get((row.server, named), ()) if one.time_ns <= row.time_ns]
        if before:
            parent = before[-1]
            row.facts["parent_conversation"] = parent.conversation
            parent.facts.setdefault("stream_conversations", []).append(row.conversation)


def hint(row: ConversationRow, options: Options) -> str | None:
    """That a dictionary is missing; or how to name ScyllaDB's verbs, for which its port alone is too little."""
    if row.facts.get("compression", {}).get("unread"):
        return "--dict FILE reads frames that were packed with a dictionary"
    if options.verbs is None and "verbs" not in row.facts and any(one.rpartition(":")[2] in ("7000", "7001") for one in row.endpoints):
        return "if that is ScyllaDB, --verbs scylla names its verbs"
    return None
