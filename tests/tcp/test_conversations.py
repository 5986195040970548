"""Sorting segments into conversations, and that the fast way is the exact one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from dissect.model import Chunk, Options
from dissect.tcp import conversations
from dissect.tcp.conversations import Conversations
from tests.tcp.segments import ACK, FIN, RST, SYN, A, B, Segment, a, b, batch, feed, handshake, tell

OTHER = ("192.0.2.1", 40001)


def other(segment: Segment) -> Segment:
    """The same segment between other ports."""
    return segment._replace(src=OTHER if segment.src == A else B, dst=OTHER if segment.dst == A else B)


def talk(count: int) -> list[Segment]:
    """Questions and answers of ten and five bytes."""
    segments = []
    for at in range(count):
        segments.append(a(1000 + 10 * at, b"question%02d" % (at % 100), ack=5000 + 5 * at))
        segments.append(b(5000 + 5 * at, b"yes%02d" % (at % 100), ack=1010 + 10 * at))
    return segments


def test_segments_in_order_become_one_chunk_a_side() -> None:
    tcp = Conversations(Options())
    (delivery,) = tcp.feed(batch([*handshake(), *talk(50)]))
    assert delivery.closed is None
    one, two = (item for item in delivery.items if isinstance(item, Chunk))
    assert (one.side, one.position, len(one.data), len(one.starts)) == (0, 0, 500, 50)
    assert (two.side, two.position, len(two.data), len(two.starts)) == (1, 0, 250, 50)
    assert one.releases is one.orders
    (delivery,) = tcp.feed(batch([a(1500, b"more", ack=5250)], 103))
    (chunk,) = delivery.items
    assert isinstance(chunk, Chunk)
    assert (chunk.position, chunk.orders, chunk.numbers) == (500, [103], [104])


def test_only_conversations_with_something_new_are_delivered() -> None:
    tcp = Conversations(Options())
    assert tcp.feed(batch(handshake())) == []
    assert tcp.feed(batch([])) == []
    (delivery,) = tcp.finish()
    assert delivery.items == []
    assert delivery.closed == conversations.END


def test_trouble_in_the_middle_of_a_batch() -> None:
    segments = [*handshake(), *talk(60)]
    segments[40], segments[42] = segments[42], segments[40]
    segments.insert(80, segments[78])
    del segments[100]
    (story,) = tell([*segments, a(1600, flags=FIN | ACK, ack=5300), b(5300, flags=FIN | ACK, ack=1601)])
    sides = story.conversation.sides
    assert (sides[0].out_of_order + sides[1].out_of_order, story.conversation.retransmissions) == (1, 1)
    assert len(story.gaps(0)) + len(story.gaps(1)) == 1
    assert story.conversation.stream_bytes == [600, 300]


def test_conversations_are_numbered_by_first_packet() -> None:
    mixed = [segment for pair in zip([*handshake(), *talk(20)], map(other, [*handshake(), *talk(20)]), strict=True) for segment in pair]
    stories = tell([other(a(7, flags=SYN))._replace(src=("192.0.2.0", 9)), *mixed])
    assert [story.conversation.endpoints[0] for story in stories] == ["192.0.2.0:9", "192.0.2.1:40000", "192.0.2.1:40001"]
    assert stories[1].bytes(0) == stories[2].bytes(0)


def test_flows_with_the_same_mixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_FACTORS", np.zeros(5, np.uint64))
    mixed = [segment for pair in zip(talk(20), map(other, talk(20)), strict=True) for segment in pair]
    assert [len(story.bytes(0)) for story in tell(mixed)] == [200, 200]


def test_ports_reused_within_a_batch() -> None:
    ended = [a(1200, flags=FIN | ACK, ack=5100), b(5100, flags=FIN | ACK, ack=1201), a(1201, ack=5101)]
    once = [*handshake(), *talk(20), *ended]
    stories = tell([*once, *once, *once])
    assert [story.closed for story in stories] == [[44], [90], [136]]
    assert [story.conversation.stream_bytes for story in stories] == [[200, 100]] * 3


def test_endpoints_of_ipv6() -> None:
    one = batch([a(1000, b"x"), b(5000, b"y")])
    low, high = bytes.fromhex("20010db8000000000000000000000001"), bytes.fromhex("20010db8000000000000000000000002")
    one.flow[:] = np.frombuffer(low + (5552).to_bytes(2, "big") + high + (40000).to_bytes(2, "big") + b"\6\0\0\0", np.uint8)
    (delivery,) = Conversations(Options()).feed(one)
    assert delivery.conversation.endpoints == ("[2001:db8::1]:5552", "[2001:db8::2]:40000")
    assert delivery.conversation.ports == (5552, 40000)


def test_what_waits_is_bounded() -> None:
    options = Options(waiting_total=100_000)
    tcp = Conversations(options)
    order = 0
    for round_ in range(40):
        segments = []
        for port in range(50):
            client = ("192.0.2.1", 50_000 + port)
            segments += [Segment(client, B, 1000 + 100 * at + 10_000 * round_, b"z" * 50, 5000) for at in range(20)]
        tcp.feed(batch(segments, order))
        order += len(segments)
        pool = tcp._pool
        waiting = [s.waiting for one in tcp._table.values() for s in one.streams if s.waiting is not None]
        assert pool.total == sum(one.cost for one in waiting) <= options.waiting_total
        assert pool.count == len(waiting)
        assert len(pool._queue) < 2 * pool.count + 2000


def test_what_waited_where_an_exception_came_counts_no_more() -> None:
    tcp = Conversations(Options())
    tcp.feed(batch([*handshake(), a(1006, b"world")]))
    (assembler,) = tcp._table.values()
    assert tcp._pool.total > 0
    assembler.fail("planted", 3, assembler.conversation.last)
    assert (tcp._pool.total, tcp._pool.count) == (0, 0)


def test_a_conversation_that_carried_nothing_takes_a_few_hundred_bytes() -> None:
    """Connections that were never answered, refused, and closed unused."""
    many = 3000
    tcp = Conversations(Options(), bare=True)

    def between(port: int, segments: list[Segment]) -> list[Segment]:
        client = ("192.0.2.1", 1000 + port)
        return [one._replace(src=client if one.src == A else B, dst=client if one.dst == A else B) for one in segments]

    syn, refused = a(999, ack=None, flags=SYN), b(0, ack=1000, flags=RST | ACK)
    unused = [*handshake(), a(1000, flags=FIN | ACK), b(5000, ack=1001, flags=FIN | ACK), a(1001, ack=5001)]
    kinds = ([syn], [syn, syn], [syn, refused], unused)
    segments = [one for port in range(many) for one in between(port, kinds[port % 4])]
    batches = [batch(segments[at : at + 1000], at) for at in range(0, len(segments), 1000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert all(tcp.feed(one) == [] for one in batches)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(tcp.bare()) == many
    assert held < 400 * many
    assert tcp.finish() == []
    ends = [tcp.bare_delivery(key).conversation.ended for _, key in tcp.bare()[:4]]
    assert ends == [story.conversation.ended for story in feed(segments[:10])[:4]]


def test_what_carried_nothing_becomes_a_conversation_with_its_first_byte() -> None:
    tcp = Conversations(Options(), bare=True)
    assert tcp.feed(batch(handshake())) == []
    assert tcp.feed(batch([other(one) for one in handshake()], 3)) == []
    (delivery,) = tcp.feed(batch([a(1000, b"late")], 6))
    assert (delivery.conversation.index, delivery.conversation.packets, delivery.conversation.syn) == (0, [3, 1], True)
    assert [index for index, _ in tcp.bare()] == [1]
