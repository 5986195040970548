"""Connections that were captured on both sides of NAT."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdump.diagnose.copies import CONNECTIONS_KEPT, COPIES_KEPT, Copies, Opened
from streamdump.protocols.rabbitmq import layouts
from tests.diagnose.talks import SECOND, Connection, capture, diagnosed

CAPTURE = Path(__file__).parents[2] / "captures" / "samples" / "reports" / "dnat_both_sides.pcap"

RULE = "note tcp.captured-twice"
ADVICE = "Capture on one interface only, or leave one of the two out with -Y (by src, dst or conversation), where numbers or times count."

CLIENT, SERVER = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
NAT, CONTAINER = bytes([10, 0, 0, 9]), bytes([172, 17, 0, 2])


class Talk(Connection):
    """A connection whose endpoints and TTL the other side of a NAT changed; `numbers`: the first sequence numbers."""

    def __init__(
        self,
        client: bytes = CLIENT,
        server: bytes = SERVER,
        ports: tuple[int, int] = (40000, 5552),
        numbers: tuple[int, int] = (1000, 5000),
    ) -> None:
        super().__init__(client=client)
        self.addresses, self.ports, self.next, self.hops = (client, server), ports, [*numbers], 0

    def behind(self, hops: int, later: int = 20_000) -> Talk:
        """So many routers are before the point where it is captured, so much later."""
        self.hops, self.now = hops, self.now + later
        return self

    def segment(self, side: int, data: bytes = b"", *more: object, **options: object) -> Talk:
        return super().segment(side, data, *more, ttl=64 - self.hops, **options)  # type: ignore[arg-type,return-value]

    def said(self, stream: str = "s1") -> Talk:
        self.ready().client(layouts.CREATE, stream=stream, arguments=[]).server(layouts.CREATE_RESPONSE).goodbye()
        return self


def found(*talks: Connection, rows: int | None = None) -> list[str]:
    return [f"{one.severity} {one.rule}: {one.cause}" for one in diagnosed(capture(*talks), rows)[0]]


BOTH = "are one connection, captured on both sides of NAT: its messages are counted twice"


def test_connection_before_and_behind_nat() -> None:
    (finding,), _, _ = diagnosed(CAPTURE)
    assert f"{finding.severity} {finding.rule}" == RULE
    assert finding.cause == f"10.0.0.1:40000 > 10.0.0.2:5552 and 10.0.0.1:40000 > 172.17.0.2:5552 {BOTH}"
    assert finding.advice == ADVICE
    assert (finding.conversation, finding.packets, finding.time) == (None, [1, 2], "2026-11-25T09:46:40.000020000Z")


DRAWN = (3_141_592_653, 271_828_182)

PAIRS: dict[str, tuple[Talk, Talk, str]] = {
    "another server": (Talk(), Talk(server=CONTAINER).behind(1), "10.0.0.1:40000 > 172.17.0.2:5552"),
    "another port": (Talk(ports=(40000, 15552)), Talk(ports=(40000, 5552)).behind(1), "10.0.0.1:40000 > 10.0.0.2:5552"),
    "another client": (Talk(), Talk(client=NAT, ports=(61001, 5552)).behind(1), "10.0.0.9:61001 > 10.0.0.2:5552"),
    "both": (Talk(), Talk(client=NAT, server=CONTAINER).behind(1), "10.0.0.9:40000 > 172.17.0.2:5552"),
    "the same TTL": (Talk(numbers=DRAWN), Talk(server=CONTAINER, numbers=DRAWN).behind(0), "10.0.0.1:40000 > 172.17.0.2:5552"),
    "clocks of two hosts": (
        Talk(numbers=DRAWN),
        Talk(server=CONTAINER, numbers=DRAWN).behind(1, 90 * SECOND),
        "10.0.0.1:40000 > 172.17.0.2:5552",
    ),
}


@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("rows", [1, None])
def test_what_nat_changes(case: str, rows: int | None) -> None:
    one, other, place = PAIRS[case]
    port = one.ports[1]
    if not one.packets:
        one.said()
        other.said()
    assert found(one, other, rows=rows) == [f"{RULE}: 10.0.0.1:40000 > 10.0.0.2:{port} and {place} {BOTH}"]


def test_several_connections_and_points() -> None:
    """A host, its bridge, and a container: each of two connections is there three times."""
    talks = [
        Talk(client, server, (port, 5552), (port << 16, 7 << 20)).behind(hops).said(f"s{port}")
        for port in (40000, 40001)
        for hops, (client, server) in enumerate(((CLIENT, SERVER), (CLIENT, NAT), (NAT, CONTAINER)))
    ]
    assert found(*talks) == [
        f"{RULE}: 2 connections were captured on both sides of NAT, as 10.0.0.1:40000 > 10.0.0.2:5552 and "
        "10.0.0.9:40000 > 172.17.0.2:5552: their messages are counted 3 times",
    ]


NO_COPIES: dict[str, list[Talk]] = {
    "a proxy opens a connection of its own": [Talk().said(), Talk(NAT, CONTAINER, numbers=(7000, 9000)).behind(1).said()],
    "the other side has another number": [Talk().said(), Talk(server=CONTAINER, numbers=(1000, 9000)).behind(1).said()],
    "they say something else": [Talk().said("s1"), Talk(server=CONTAINER).behind(1).said("s2")],
    "another connection of the client": [Talk().said(), Talk(ports=(40001, 5552)).behind(1).said()],
    "a number that anybody may choose": [Talk().said(), Talk(server=CONTAINER).behind(0).said()],
    "such a number, at another time": [Talk().said(), Talk(server=CONTAINER).behind(1, 60 * SECOND).said()],
    "a number that others have, too": [Talk().said(), Talk(server=CONTAINER).behind(1).said(), Talk(client=NAT).behind(2).said("s2")],
}


@pytest.mark.parametrize("case", NO_COPIES)
def test_connections_that_are_no_copies(case: str) -> None:
    assert found(*NO_COPIES[case]) == []


def test_beginning_that_was_not_captured() -> None:
    one, other = Talk(numbers=DRAWN).said(), Talk(server=CONTAINER, numbers=DRAWN).behind(1).said()
    del other.packets[0]
    assert not [text for text in found(one, other) if text.startswith(RULE)]


def test_memory_for_connections_is_bounded() -> None:
    copies = Copies()
    opened = Opened("10.0.0.1:1", "10.0.0.2:5552", "tcp", 0, 1, ((64,), (64,)), (1, 1))
    for number in range(CONNECTIONS_KEPT + 10):
        for _ in range(COPIES_KEPT + 10):
            copies.add((number, number), opened)
    assert len(copies.seen()) == CONNECTIONS_KEPT * (COPIES_KEPT + 1)


def test_what_another_task_has_seen() -> None:
    """Tasks on Spark see conversations of their own, and what they saw is put together at the end."""
    one, other = Copies(), Copies()
    ttls, numbers = ((64,), (64,)), (1 << 20, 1 << 21)
    one.add(numbers, Opened("10.0.0.1:1", "10.0.0.2:5552", "iggy", 5, 1, ttls, (1, 1)))
    other.add(numbers, Opened("10.0.0.1:1", "10.0.0.3:5552", "iggy", 4, 2, ttls, (1, 1)))
    one.merge(other.seen())
    assert [[opened.server for opened in group] for group in one.found()] == [["10.0.0.3:5552", "10.0.0.2:5552"]]
