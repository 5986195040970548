"""A failure inside costs one conversation: exceptions are planted in every room, and all that may be missing is what follows there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import streamdump.conversation.table
import streamdump.detect
from streamdump.detect import Detector
from streamdump.errors import BARRIER, CaptureError
from streamdump.inspector import Inspector
from streamdump.model import Exchange, Gap, Message
from streamdump.pair.pairer import Pairer
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.buffer import ReceiveBuffer
from streamdump.protocols.dissector import Dissector
from streamdump.protocols.mewbase.dissector import MewbaseDissector
from streamdump.protocols.parser import Parser
from streamdump.protocols.rabbitmq.dissector import StreamDissector
from streamdump.protocols.records import Frame
from streamdump.protocols.seastar.dissector import SeastarDissector
from streamdump.render.jsonl import encode
from streamdump.tcp.assembler import TcpStream
from tests.support.planting import BATCHES, Planted, Result, adds_up, check, meaning, mixed, plant, run, whole, with_members

pytestmark = pytest.mark.usefixtures("unharmed", "barrier")

FAMILIES = tuple(protocol.name for protocol in PROTOCOLS if protocol.name != "rabbitmq-stream-draft")
LOADED = [protocol.loaded.dissector for protocol in PROTOCOLS]
DISSECTORS = (StreamDissector, *(one for one in LOADED if not issubclass(one, StreamDissector)))


@pytest.fixture(scope="session")
def unharmed() -> None:
    """What all results are compared with is known before anything is planted."""
    whole()
    whole(True)


class Target(NamedTuple):
    """A message in the middle of a conversation, whose frame is like no other there."""

    message: Message
    conversation: int
    side: int
    frame: bytes


def target(family: str, kind: str = "") -> Target:
    """One of the longest conversation of a family that has nothing but whole messages; a response is the last one to its request."""
    result = whole(True)
    plain = {row.conversation: row for row in result.rows if row.protocol == family and not row.gaps and not row.faults}
    assert plain, f"the first captures of {family} have no conversation without gaps"
    conversation = max(plain, key=lambda number: plain[number].messages)
    messages = result.of(conversation, Message)
    frames = [(message.src, message.raw["frame"]) for message in messages]
    responses = {exchange.response for exchange in result.of(conversation, Exchange)}
    for message, frame in list(zip(messages, frames, strict=True))[len(messages) // 2 :]:
        if frames.count(frame) == 1 and kind in message.kind and (kind != "response" or message.number in responses):
            return Target(message, conversation, plain[conversation].endpoints.index(message.src), frame[1])
    raise AssertionError(f"no {kind or 'message'} in the second half of the longest conversation of {family} without gaps")


def in_all_batches() -> Result:
    """What is said whatever the batches are."""
    results = [run(mixed(), rows) for rows in BATCHES]
    for result in results[1:]:
        assert encode(result.records) == encode(results[0].records)
        assert encode(result.rows) == encode(results[0].rows)
        assert [(one.what.split()[0], one.cost, one.number) for one in result.reports] == [
            (one.what.split()[0], one.cost, one.number) for one in results[0].reports
        ]
    return results[-1]


def ended_before(result: Result, found: Target) -> None:
    """Fails unless the conversation ends before the packet of the frame that failed, and one report says so."""
    message, conversation = found.message, found.conversation
    check(result, whole())
    (report,) = result.reports
    assert (report.what.split()[0], report.conversation, report.number) == ("Planted", conversation, message.packets[1])
    assert message.src in report.between and message.dst in report.between
    messages = whole().of(conversation, Message)
    kept = result.of(conversation, Message)
    assert [meaning(one) for one in kept] == [meaning(one) for one in messages if one.packets[1] < message.packets[1]]
    (row,) = [row for row in result.rows if row.conversation == conversation]
    assert row.internal_error == f"Planted, packet {message.packets[1]}"
    ends = {one.src: one.position + one.size for one in kept}
    starts = [ends.get(endpoint, 0) for endpoint in row.endpoints]
    left = {one: (start, size - start) for one, start, size in zip(row.endpoints, starts, row.bytes, strict=True) if size > start}
    gaps = result.of(conversation, Gap)
    assert {gap.src: (gap.position, gap.size) for gap in gaps} == left
    assert {(gap.reason, gap.in_frame) for gap in gaps} == {("skipped", False)}
    exchanges = result.of(conversation, Exchange)
    asked = [one.request for one in exchanges]
    assert len(set(asked)) == len(asked)
    assert {one.reason for one in exchanges if one.outcome == "unanswered"} <= {"internal error"}
    paired = {one.request for one in whole().of(conversation, Exchange)}
    assert {one.number for one in kept if one.kind == "request"} & paired <= set(asked)


# Rooms in which a frame is at hand


def frame_at(found: Target, dissector: Dissector, side: int, data: Any, start: int, end: int) -> bool:
    mine = dissector.context.conversation == found.conversation and side == found.side
    return mine and data[start:end] == found.frame


def in_decode(patch: pytest.MonkeyPatch, found: Target) -> None:
    def here(self: Dissector, frame: Frame) -> bool:
        return frame_at(found, self, frame.side, frame.data, frame.start, frame.end)

    def here_too(self: Dissector, side: int, data: bytes, start: int, end: int) -> bool:
        return frame_at(found, self, side, data, start, end)

    for owner in DISSECTORS:
        plant(patch, owner, "decode", here)
        if "decode_fast" in vars(owner):
            plant(patch, owner, "decode_fast", here_too)


def in_split_frames(patch: pytest.MonkeyPatch, found: Target) -> None:
    def reaches(ends: list[int], self: Dissector, side: int, data: bytes, at: int) -> bool:
        return any(frame_at(found, self, side, data, start, end) for start, end in zip([at, *ends], ends, strict=False))

    for owner in (*DISSECTORS, Dissector):
        if "split_frames" in vars(owner):
            plant(patch, owner, "split_frames", reaches, after=True)


def in_frame_length(patch: pytest.MonkeyPatch, found: Target) -> None:
    def here(self: Dissector, side: int, data: bytes, at: int) -> bool:
        return frame_at(found, self, side, data, at, at + len(found.frame))

    def short_of(function: Any) -> Any:
        def split_frames(self: Dissector, side: int, data: bytes, at: int) -> list[int]:
            ends: list[int] = function(self, side, data, at)
            starts = [start for start in [at, *ends][:-1] if here(self, side, data, start)]
            return [end for end in ends if not starts or end <= starts[0]]

        return split_frames

    for owner in DISSECTORS:
        plant(patch, owner, "frame_length", here)
        if "split_frames" in vars(owner):
            patch.setattr(owner, "split_frames", short_of(vars(owner)["split_frames"]))


def in_pairing(patch: pytest.MonkeyPatch, found: Target, name: str = "pair") -> None:
    def here(self: Pairer, one: Any, *_: Any) -> bool:
        return isinstance(one.record, Message) and (one.record.conversation, one.record.src, one.record.position) == (
            found.conversation,
            found.message.src,
            found.message.position,
        )

    plant(patch, Pairer, name, here)


def in_answering(patch: pytest.MonkeyPatch, found: Target) -> None:
    for name in ("_answer", "_on_responses"):
        in_pairing(patch, found, name)


def in_linking(patch: pytest.MonkeyPatch, found: Target) -> None:
    in_pairing(patch, found, "_link")


def in_making_exchanges(patch: pytest.MonkeyPatch, found: Target) -> None:
    def here(self: Pairer, asked: Any, response: Any, *_: Any) -> bool:
        one = None if response is None else response.record
        return one is not None and (one.conversation, one.src, one.position) == (
            found.conversation,
            found.message.src,
            found.message.position,
        )

    plant(patch, Pairer, "_exchange", here)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("room", [in_decode, in_split_frames, in_frame_length, in_pairing], ids=lambda room: room.__name__)
def test_a_frame_ends_its_conversation(family: str, room: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    found = target(family, "request" if room is in_pairing else "")
    room(monkeypatch, found)
    ended_before(in_all_batches(), found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("room", [in_pairing, in_answering, in_linking, in_making_exchanges], ids=lambda room: room.__name__)
def test_a_response_ends_its_conversation_and_its_request_is_not_answered(
    family: str, room: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = target(family, "response")
    room(monkeypatch, found)
    result = in_all_batches()
    ended_before(result, found)
    before = next(one for one in whole().of(found.conversation, Message) if one.position == found.message.position and one.request)
    asked = whole().records[before.request - 1]
    assert isinstance(asked, Message)
    ended = [one for one in result.of(found.conversation, Exchange) if result.records[one.request - 1].position == asked.position]  # type: ignore[union-attr]
    assert [(one.outcome, one.reason, one.response) for one in ended if one.src == asked.src] == [("unanswered", "internal error", None)]


def test_the_way_back_into_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def found(result: tuple[bool, int], self: Dissector, side: int, *_: Any) -> bool:
        if result[0]:
            seen.append((self.context.conversation, side))
        return bool(result[0])

    for owner in DISSECTORS:
        plant(monkeypatch, owner, "resync", found, after=True)
    result = in_all_batches()
    assert {row.protocol for row in result.rows if row.internal_error} >= {"rabbitmq-stream", "iggy", "mewbase"}
    assert {conversation for conversation, _ in seen} == {report.conversation for report in result.reports}
    check(result, whole())


def test_frames_that_wait_come_before_the_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def waits(self: Dissector, *_: Any) -> bool:
        held.append(len(list(self.held_frames())))
        return held[-1] > 0

    for owner in DISSECTORS:
        if owner.reorders:
            plant(monkeypatch, owner, "decode_in_order", waits)
    result = in_all_batches()
    assert any(held)
    check(result, whole())
    for report in result.reports:
        assert report.conversation is not None
        kept = {(one.src, one.position) for one in result.of(report.conversation, Message)}
        before = [one for one in whole().of(report.conversation, Message) if one.packets[1] < (report.number or 0)]
        assert before
        assert kept < {(one.src, one.position) for one in before}


# Rooms in which a packet is at hand


def packets_of(conversation: int, share: float) -> int:
    """The order of a packet with bytes of a conversation, at this share of its messages."""
    messages = whole().of(conversation, Message)
    return int(messages[int(len(messages) * share)].packets[1]) - 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("share", [0, 0.5, 0.9])
def test_a_segment_ends_its_conversation(family: str, late: bool, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = target(family).conversation
    order = packets_of(conversation, share)
    if late:
        plant(monkeypatch, TcpStream, "follow", lambda result, self, segment, *_: segment.order == order, after=True)
    else:
        plant(monkeypatch, TcpStream, "follow", lambda self, segment, *_: segment.order == order)
    result = in_all_batches()
    check(result, whole())
    (report,) = result.reports
    assert (report.conversation, report.number) == (conversation, order + 1)
    (row,) = [row for row in result.rows if row.conversation == conversation]
    (before,) = [row for row in whole().rows if row.conversation == conversation]
    assert row.internal_error == f"Planted, packet {order + 1}"
    # Close is among what is not read any more
    ended = before.ended.replace("Close by client", "FIN by server")
    assert (row.packets, row.bytes, row.ended) == (before.packets, before.bytes, ended)
    kept = [meaning(one) for one in result.of(conversation, Message)]
    some = [meaning(one) for one in whole().of(conversation, Message) if one.packets[1] < order + 1]
    assert kept == (some if row.protocol else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_follows_reassembly_ends_the_conversation_of_these_bytes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = packets_of(target(family).conversation, 0.5)
    plant(monkeypatch, Parser, "process", lambda self, items, current: current == order)
    result = in_all_batches()
    check(result, whole())
    assert [report.number for report in result.reports] == [order + 1]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_a_probe_ends_the_search_for_the_protocol(protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = target("mewbase")
    ports = {int(endpoint.rpartition(":")[2]) for endpoint in (found.message.src, found.message.dst)}

    def heuristic(view: Any) -> Any:
        # Of the client it is 0
        if any(view.ports) and {0, *ports}.issuperset(view.ports):
            raise Planted
        return protocol.loaded.heuristic(view)

    planted = with_members(protocol, heuristic=heuristic)
    # The client's own port tells its conversation from others with the same server
    monkeypatch.setattr(streamdump.conversation.conversation, "server_ports", lambda ports, client: ports)
    # So that it is asked, whatever others said
    monkeypatch.setattr(streamdump.detect, "CACHED_SIZE", -1)
    monkeypatch.setattr(streamdump.detect, "PROTOCOLS", tuple(planted if one is protocol else one for one in PROTOCOLS))
    result = in_all_batches()
    check(result, whole())
    first = whole().of(found.conversation, Message)[0]
    assert [(report.conversation, report.number) for report in result.reports] == [(found.conversation, first.packets[1])]
    (row,) = [row for row in result.rows if row.conversation == found.conversation]
    (before,) = [row for row in whole().rows if row.conversation == found.conversation]
    assert (row.protocol, row.internal_error, row.bytes) == (None, f"Planted, packet {first.packets[1]}", before.bytes)
    assert result.of(found.conversation) == []


@pytest.mark.parametrize("owner", [Detector, *DISSECTORS, Pairer, Parser, ReceiveBuffer], ids=lambda owner: owner.__name__)
def test_what_a_conversation_begins_with(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    plant(monkeypatch, owner, "__init__", lambda *_: calls.append(None) is None and len(calls) == 1)
    for rows in BATCHES:
        calls.clear()
        result = run(mixed(), rows)
        check(result, whole())
        assert len(result.reports) == 1
        (row,) = [row for row in result.rows if row.internal_error]
        assert result.of(row.conversation, Message) == []
        assert sum(gap.size for gap in result.of(row.conversation, Gap)) == (sum(row.bytes) if row.protocol else 0)


# What ends a conversation


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_of_a_dissector(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = target(family).conversation
    for owner in {next(one for one in owner.__mro__ if "close" in vars(one)) for owner in DISSECTORS}:
        plant(monkeypatch, owner, "close", lambda self: self.context.conversation == conversation)
    result = in_all_batches()
    check(result, whole())
    assert [report.conversation for report in result.reports] == [conversation]
    assert [meaning(one) for one in result.of(conversation, Message)] == [meaning(one) for one in whole().of(conversation, Message)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_of_pairing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = target(family).conversation
    message = target(family, "response").message
    take = Pairer.pair

    def passed(self: Pairer, one: Any, append: Any) -> None:
        record = one.record
        if (record.conversation, record.src, record.position) != (conversation, message.src, message.position):
            take(self, one, append)

    def mine(self: Pairer, *_: Any) -> bool:
        return any(one.conversation == conversation for one in self.remembered())

    # So that there is a request without an answer
    monkeypatch.setattr(Pairer, "pair", passed)
    plant(monkeypatch, Pairer, "close", mine)
    result = in_all_batches()
    adds_up(result)
    assert [report.conversation for report in result.reports] == [conversation]
    unanswered = [one for one in result.of(conversation, Exchange) if one.reason == "internal error"]
    assert unanswered
    assert result.of(conversation, Gap) == []


def test_a_row_that_cannot_be_made_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = target("mewbase").conversation
    plant(monkeypatch, streamdump.conversation.table, "row_of", lambda one, number: one.index == conversation)
    result = in_all_batches()
    assert encode(result.records) == encode(whole().records)
    assert result.rows == [row for row in whole().rows if row.conversation != conversation]
    assert [(report.conversation, report.cost) for report in result.reports] == [(conversation, "its row is missing")]


def test_conversations_that_cannot_be_related(monkeypatch: pytest.MonkeyPatch) -> None:
    def relate(rows: Any) -> None:
        raise Planted

    planted = tuple(with_members(one, relate=relate) if one.loaded.relate else one for one in PROTOCOLS)
    assert planted != PROTOCOLS
    monkeypatch.setattr(streamdump.conversation.table, "PROTOCOLS", planted)
    result = in_all_batches()
    assert encode(result.records) == encode(whole().records)
    assert result.rows == whole().rows
    assert {report.conversation for report in result.reports} == {None}


# What passes


def test_without_the_barrier_an_exception_ends_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BARRIER, "off")
    in_decode(monkeypatch, target("mewbase"))
    with pytest.raises(Planted):
        run(mixed())


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, CaptureError("is mine")])
def test_what_is_no_bug_passes(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: Any) -> None:
        raise error

    for owner in DISSECTORS:
        monkeypatch.setattr(owner, "decode", planted)
        monkeypatch.setattr(owner, "decode_fast", planted)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        run(mixed())


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_there_is_not_enough_of_costs_one_conversation_too(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    found = target("seastar-rpc")
    plain = SeastarDissector.decode_fast

    def planted(self: Any, side: int, data: bytes, start: int, end: int) -> Any:
        if frame_at(found, self, side, data, start, end):
            raise error
        return plain(self, side, data, start, end)

    monkeypatch.setattr(SeastarDissector, "decode_fast", planted)
    result = in_all_batches()
    check(result, whole())
    assert [report.what.split()[0] for report in result.reports] == [error.__name__]


def test_no_text_of_an_exception_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = target("mewbase")

    def planted(self: Any, *_: Any) -> Any:
        raise KeyError("hunter2")

    monkeypatch.setattr(MewbaseDissector, "decode_fast", planted)
    result = run(mixed())
    assert found.conversation in {report.conversation for report in result.reports}
    assert not any("hunter2" in report.text("x") for report in result.reports)
    assert b"hunter2" not in encode(result.rows)
    assert all(" in streamdump/protocols/parser.py:" in report.what for report in result.reports)


@pytest.mark.parametrize("rows", BATCHES)
def test_reading_that_fails_ends_all_inputs_with_what_was_read(rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    from streamdump.capture.link import LinkParser

    plant(monkeypatch, LinkParser, "segment", lambda *_: calls.append(None) is None and len(calls) == 134)
    result = run(mixed(), rows)
    adds_up(result)
    assert len(result.records) > 50
    (report,) = result.reports
    assert (report.conversation, report.cost) == (None, "nothing was read after packet 133")


def test_nothing_is_kept_of_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from streamdump.capture.files import open_capture

    in_decode(monkeypatch, target("mewbase"))
    inspector = Inspector([open_capture(io.BytesIO(mixed()))])
    list(inspector.records())
    (failed,) = [one for one in inspector.table.conversations if one.failure]
    assert (failed.parser, failed.pairer, failed.detector, failed.unread_ranges) == (None, None, None, ())
