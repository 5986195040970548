"""How long a response took where the end of its request is missing: no latency if that was lost, the same if the snap length cut it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Exchange, Message, Options, SideData, StreamGap
from streamdump.protocols import BY_NAME
from streamdump.protocols.parser import Parser
from streamdump.units import duration_text
from tests.support.rewrite import Packet, capture, packets, tcp_offset

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
MISSING, LEFT = 10, 25
"""Bytes that are taken off a request, and that remain of it at least."""

Place = tuple[str, int]
"""A frame: its sender and its position."""


class Answered(NamedTuple):
    """A request that was answered, its exchange, and its response."""

    request: Message
    exchange: Exchange
    response: Message


def read(found: list[Packet]) -> dict[Place, Answered]:
    """Return the answered requests of a capture by their places."""
    records = list(Inspector([open_capture(capture(found))], Options(exchanges=True)).records())
    messages = {one.number: one for one in records if isinstance(one, Message)}
    exchanges = [one for one in records if isinstance(one, Exchange) and one.response is not None]
    answered = [Answered(messages[one.request], one, messages[one.response or 0]) for one in exchanges]
    return {(one.request.src, one.request.position): one for one in answered}


def without_end(packet: Packet, cut: bool) -> Packet:
    """Return the packet without its last bytes: cut by the snap length, or as if another packet had brought them."""
    raw, at = packet.raw, tcp_offset(packet)
    assert at is not None
    if cut:
        return packet._replace(raw=raw[:-MISSING])
    size = at - 18
    assert raw[at - 20] == 0x45, "IPv4 without options"
    length = int.from_bytes(raw[size : size + 2], "big") - MISSING
    return packet._replace(raw=raw[:size] + length.to_bytes(2, "big") + raw[size + 2 : -MISSING], wire=packet.wire - MISSING)


def fills(request: Message, packet: Packet) -> bool:
    """Whether a request is all that its packet brought."""
    at = tcp_offset(packet)
    return at is not None and len(packet.raw) - at - (packet.raw[at + 12] >> 4) * 4 == request.size


@pytest.mark.parametrize(
    "case, least",
    [
        ("rabbitmq-stream/create_bad_436", 9),
        ("iggy/py080-errors", 7),
        ("iggy/py090d5-errors", 15),
        ("seastar-rpc/exceptions", 13),
        ("mewbase/java-admin", 1),
    ],
)
def test_latency_where_the_end_of_a_request_is_missing(case: str, least: int) -> None:
    found = packets(GOLDEN / f"{case}.pcap")
    seen = 0
    for place, (request, exchange, response) in read(found).items():
        at = request.packets[1] - 1
        if request.packets[0] != request.packets[1] or request.size < LEFT + MISSING or not fills(request, found[at]):
            continue
        variants = [[without_end(packet, cut) if number == at else packet for number, packet in enumerate(found)] for cut in (False, True)]
        lost, cut = [read(variant).get(place) for variant in variants]
        if lost is None or cut is None:
            # What is left of it does not say what it asks
            continue
        seen += 1
        assert (cut.exchange.latency_ns, cut.response.latency_ns) == (exchange.latency_ns, response.latency_ns)
        assert (lost.exchange.latency_ns, lost.response.latency_ns) == (None, None)
        assert lost.exchange.outcome == exchange.outcome
        if lost.response.request is not None:
            at_most = f"the end of its request was not captured: answered after at most {duration_text(exchange.latency_ns or 0)}"
            assert lost.response.notes == [*cut.response.notes, at_most]
    assert seen >= least


@pytest.mark.parametrize(
    "reason, packet, captured",
    [
        # The snap length cut the packet of the bytes before
        ("cut", 1, True),
        # It cut a record of TLS: the gap has the packet behind it
        ("cut", 2, False),
        ("lost", 2, False),
        # Nothing follows the gap, so it has the last packet
        ("lost", 1, False),
    ],
)
def test_the_end_is_known_of_a_packet_that_was_cut(reason: Any, packet: int, captured: bool) -> None:
    create = bytes.fromhex("0000001a 000d0001 00000007 0006") + b"orders" + bytes(10)
    parser = Parser(BY_NAME["rabbitmq-stream"], Options())
    parser.dissector.on_gap(0)
    found = parser.process([SideData(0, 0, create[:20], (1, 1, 0, 5))])
    found += parser.process([StreamGap(0, 20, 10, reason, packet, packet, 0, 5 * packet)])
    assert [(one.record.name, one.end_captured) for one in found if isinstance(one.record, Message)] == [("Create", captured)]


def test_a_percentile_has_no_request_of_which_the_end_was_lost() -> None:
    report = GOLDEN.parent / "samples" / "reports" / "lat-iggy-request-end-lost.pcap"
    records = list(Inspector([open_capture(report)], Options(exchanges=True)).records())
    (response,) = [one for one in records if isinstance(one, Message) and one.name == "send_messages" and one.kind == "response"]
    assert (response.outcome, response.latency_ns) == ("answered", None)
    assert response.notes == ["the end of its request was not captured: answered after at most 1 ms"]
    assert {one.latency_ns for one in records if isinstance(one, Exchange) and one.name != "send_messages"} == {1_000_000}
    assert [one.latency_ns for one in records if isinstance(one, Exchange) and one.name == "send_messages"] == [None]
