"""Sorting segments into conversations."""

from __future__ import annotations

from unittest.mock import patch

from streamdump.capture.ends import network_key
from streamdump.conversation import table
from streamdump.model import END, Options
from streamdump.tcp.assembler import LengthOnly
from tests.support.segments import ACK, FIN, SYN, A, B, Recorded, Segment, a, b, handshake, made, new_table, run, tell

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


def test_segments_in_order_are_handed_on_one_by_one() -> None:
    with patch.object(table, "Conversation", Recorded):
        conversations = new_table()
        for segment in made([*handshake(), *talk(50)]):
            conversations.feed((segment,))
    (conversation,) = conversations.conversations
    assert isinstance(conversation, Recorded)
    assert [len(items) for items in conversation.story.items] == [50, 50]
    assert all(item[3] == item[4] for items in conversation.story.items for item in items)
    assert not conversation.story.closed
    conversations.finish()
    assert conversation.story.closed == [END]


def test_trouble_in_the_middle() -> None:
    segments = [*handshake(), *talk(60)]
    segments[40], segments[42] = segments[42], segments[40]
    segments.insert(80, segments[78])
    del segments[100]
    (story,) = tell([*segments, a(1600, flags=FIN | ACK, ack=5300), b(5300, flags=FIN | ACK, ack=1601)])
    sides = story.conversation.streams
    assert (sides[0].out_of_order + sides[1].out_of_order, story.conversation.retransmissions) == (1, 1)
    assert len(story.gaps(0)) + len(story.gaps(1)) == 1
    assert story.conversation.stream_bytes == [600, 300]


def test_conversations_are_numbered_by_first_packet() -> None:
    mixed = [segment for pair in zip([*handshake(), *talk(20)], map(other, [*handshake(), *talk(20)]), strict=True) for segment in pair]
    stories = tell([other(a(7, flags=SYN))._replace(src=("192.0.2.0", 9)), *mixed])
    assert [story.conversation.endpoints[0] for story in stories] == ["192.0.2.0:9", "192.0.2.1:40000", "192.0.2.1:40001"]
    assert stories[1].bytes(0) == stories[2].bytes(0)


def test_ports_reused() -> None:
    ended = [a(1200, flags=FIN | ACK, ack=5100), b(5100, flags=FIN | ACK, ack=1201), a(1201, ack=5101)]
    once = [*handshake(), *talk(20), *ended]
    stories = tell([*once, *once, *once])
    assert [story.closed for story in stories] == [[44], [90], [136]]
    assert [story.conversation.stream_bytes for story in stories] == [[200, 100]] * 3


def test_endpoints_of_ipv6() -> None:
    low, high = bytes.fromhex("20010db8000000000000000000000001"), bytes.fromhex("20010db8000000000000000000000002")
    one, two = made([a(1000, b"x"), b(5000, b"y")])
    one.ends = low + high + (5552).to_bytes(2, "big") + (40000).to_bytes(2, "big")
    two.ends = high + low + (40000).to_bytes(2, "big") + (5552).to_bytes(2, "big")
    (story,) = run([one, two])
    assert story.conversation.endpoints == ("[2001:db8::1]:5552", "[2001:db8::2]:40000")
    assert story.conversation.ports == (5552, 40000)


def test_the_same_endpoints_in_another_network_are_others() -> None:
    here, there = made(talk(3)), made(talk(3), 6, file=1)
    for segment in there:
        segment.ends += network_key(1)
    assert [story.bytes(0) for story in run([*here, *there])] == [b"question00question01question02"] * 2


def test_what_waits_is_bounded() -> None:
    options = Options(waiting_total=100_000)
    conversations = new_table(options)
    pool = conversations.run.pool
    order = 0
    for round_ in range(12):
        segments = []
        for port in range(50):
            client = ("192.0.2.1", 50_000 + port)
            segments += [Segment(client, B, 1000 + 100 * at + 10_000 * round_, b"z" * 50, 5000) for at in range(20)]
        for segment in made(segments, order):
            conversations.feed((segment,))
        order += len(segments)
        waiting = [s.waiting for one in conversations.conversations for s in one.tcp.streams if s.waiting is not None]
        assert pool.total == sum(one.cost for one in waiting) <= options.waiting_total
        assert pool.count == len(waiting)
        assert len(pool.queue) < 2 * pool.count + 2000


def test_what_waited_where_an_exception_came_counts_no_more() -> None:
    conversations = new_table()
    for segment in made([*handshake(), a(1006, b"world")]):
        conversations.feed((segment,))
    (conversation,) = conversations.conversations
    assert conversations.run.pool.total > 0
    LengthOnly(conversation.tcp)
    assert (conversations.run.pool.total, conversations.run.pool.count) == (0, 0)
