"""Puts exceptions into the tool's own functions, to see what they cost, and captures of many conversations to see that it is only one."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from inspect import getattr_static
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.errors import Report
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Exchange, Gap, Message, Options, Record
from streamdump.protocols import Protocol
from tests.support.captures import plain_bytes
from tests.support.rewrite import capture, packets

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"

MIXED = (
    "rabbitmq-stream/js_publish_consume_405.pcap",
    "rabbitmq-stream/lost_segments_405.pcap",
    "iggy/py090-errors.pcap",
    "iggy/seed-lossy.pcap",
    "seastar-rpc/basic.pcap",
    "seastar-rpc/timeout_expiry.pcap",
    "mewbase/java-query.pcap",
    "mewbase/cut-lost.pcap",
)

OTHERS = tuple(
    f"{folder.name}/{path.name}"
    for folder in sorted(GOLDEN.iterdir())
    if folder.is_dir() and not any(name.startswith(f"{folder.name}/") for name in MIXED)
    for path in sorted(folder.glob("*.pcap"))[:2]
)
"""Some of each protocol that is not among them."""

BATCHES = (1, 7, None)
"""Packets at once; None: as they come, which is all of them."""


class Planted(Exception):
    """No exception that anybody expects."""


class Result(msgspec.Struct):
    """What a run made of a capture."""

    records: list[Record]
    rows: list[ConversationRow]
    reports: list[Report]

    def of(self, conversation: int, *kinds: type) -> list[Any]:
        """The records of these kinds of a conversation."""
        return [record for record in self.records if record.conversation == conversation and isinstance(record, kinds or object)]

    def without(self, conversation: int | None) -> tuple[list[Any], list[ConversationRow]]:
        """All of the other conversations that does not depend on what is beside them."""
        others = [meaning(record) for record in self.records if record.conversation != conversation]
        return others, [row for row in self.rows if row.conversation != conversation]


@cache
def mixed() -> bytes:
    """A capture of several others, all beginning at the same time."""
    found = []
    for name in MIXED + OTHERS:
        own = packets(GOLDEN / name)
        found += [packet._replace(time_ns=packet.time_ns - own[0].time_ns + 1_700_000_000_000_000_000) for packet in own]
    found.sort(key=lambda packet: packet.time_ns)
    return capture(found).getvalue()


def run(data: bytes | list[bytes], rows: int | None = None, **options: Any) -> Result:
    inputs = [open_capture(io.BytesIO(one)) for one in ([data] if isinstance(data, bytes) else data)]
    inspector = Inspector(inputs, Options(**{"exchanges": True, **options}), rows)
    records = list(inspector.records())
    found = inspector.rows(related=False)
    inspector.rows()
    return Result(records, found, inspector.reports)


@cache
def whole(detail: bool = False) -> Result:
    """What `mixed` says when nothing is planted."""
    return run(mixed(), detail=detail)


def meaning(record: Any) -> tuple[Any, ...]:
    """A record without the numbers of this run."""
    return type(record), *(getattr(record, name) for name in record.__struct_fields__ if name not in ("number", "request", "response"))


def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool], after: bool = False) -> None:
    """Let a function raise `Planted` when it is called with such arguments; `after` it has done its work, given the result too."""
    raw = getattr_static(owner, name)
    function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw

    def planted(*given: Any, **named: Any) -> Any:
        if after:
            result = function(*given, **named)
            if when(result, *given, **named):
                raise Planted
            return result
        if when(*given, **named):
            raise Planted
        return function(*given, **named)

    patch.setattr(owner, name, type(raw)(planted) if isinstance(raw, classmethod | staticmethod) else planted)


def sizes(records: list[Record]) -> dict[tuple[int, str], int]:
    """The bytes of messages, and of gaps in no frame, by conversation and sender."""
    found: dict[tuple[int, str], int] = {}
    for record in records:
        if isinstance(record, Message) or (isinstance(record, Gap) and not record.in_frame):
            found[record.conversation, record.src] = found.get((record.conversation, record.src), 0) + (record.size or 0)
    return found


def check(result: Result, before: Result) -> None:
    """Fails unless all is well but for the conversations that reports name."""
    adds_up(result)
    failed = {report.conversation for report in result.reports}
    own, other = ([meaning(record) for record in one.records if record.conversation not in failed] for one in (result, before))
    assert own == other
    rows, others = ([row for row in one.rows if row.conversation not in failed] for one in (result, before))
    assert rows == others
    for conversation in failed - {None}:
        assert conversation is not None
        ends(result, before, conversation)


def adds_up(result: Result) -> None:
    """Fails unless every byte is in a message or a gap once, and the counts are those of the records."""
    found = sizes(result.records)
    for row in result.rows:
        expected = tuple(plain_bytes(row)) if row.protocol is not None else (0, 0)
        # Both sides of a connection of an endpoint with itself are one sender
        senders, sums = dict.fromkeys(row.endpoints), expected if len({*row.endpoints}) == 2 else (sum(expected),)
        assert tuple(found.get((row.conversation, endpoint), 0) for endpoint in senders) == sums
        messages, gaps = result.of(row.conversation, Message), result.of(row.conversation, Gap)
        unanswered = [one for one in result.of(row.conversation, Exchange) if one.outcome == "unanswered"]
        faults = [one for one in messages if one.fault is not None]
        assert (row.messages, row.gaps, row.faults, row.unanswered) == (len(messages), len(gaps), len(faults), len(unanswered))
    assert [record.number for record in result.records] == list(range(1, len(result.records) + 1))
    numbered = {record.number: record for record in result.records}
    for record in result.records:
        for name in ("request", "response"):
            number = getattr(record, name, None)
            assert number is None or numbered[number].conversation == record.conversation


def ends(result: Result, before: Result, conversation: int) -> None:
    """Fails unless a conversation that failed says nothing that it did not say before, and all its requests have an end."""

    def place(record: Any) -> tuple[Any, ...]:
        return record.src, record.name, record.id, record.time_ns

    known = {(one.src, one.position, one.size, one.name) for one in before.of(conversation, Message)}
    messages = result.of(conversation, Message)
    assert {(one.src, one.position, one.size, one.name) for one in messages} <= known
    ended = {place(one) for one in before.of(conversation, Exchange)}
    told = {one.request for one in result.of(conversation, Exchange)}
    (row,) = [row for row in result.rows if row.conversation == conversation] or [None]
    if row is not None and row.internal_error is not None:
        assert [one for one in messages if place(one) in ended and one.number not in told and one.kind == "request"] == []


def with_members(protocol: Protocol, **members: Any) -> Protocol:
    """The protocol with other members, allowed whatever the first bytes are."""
    return Protocol(protocol.name, protocol.title, protocol.ports, lambda: msgspec.structs.replace(protocol.loaded, **members))
