"""Reassembly: each kind of trouble with its segments written out."""

from __future__ import annotations

from dissect.model import Options
from dissect.tcp.conversations import END
from tests.tcp.segments import ACK, FIN, PSH, RST, SYN, a, b, handshake, one, tell


def test_in_order() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"world"), b(5000, b"yes", ack=1011)])
    assert story.bytes(0) == b"hello world"
    assert story.bytes(1) == b"yes"
    assert story.items[0] == [("bytes", 0, b"hello ", 3, 3, 4, 3_000_000), ("bytes", 6, b"world", 4, 4, 5, 4_000_000)]
    assert story.conversation.syn
    assert story.conversation.endpoints == ("192.0.2.1:40000", "192.0.2.2:5552")
    assert story.closed == [END]
    assert story.conversation.ended == "open at end of capture"


def test_reordered() -> None:
    story = one([*handshake(), a(1006, b"world"), a(1000, b"hello ")])
    assert story.items[0] == [("bytes", 0, b"hello ", 4, 4, 5, 4_000_000), ("bytes", 6, b"world", 3, 4, 4, 3_000_000)]
    assert story.conversation.sides[0].out_of_order == 1


def test_closed_by_both_fins() -> None:
    segments = [*handshake(), a(1000, b"bye", flags=FIN | ACK), b(5000, b"bye", ack=1004, flags=FIN | ACK), a(1004, ack=5004)]
    story = one(segments)
    assert story.closed == [4]
    assert story.conversation.ended == "FIN"
    assert story.conversation.packets == [4, 2]
    assert story.conversation.stream_bytes == [3, 3]


def test_lost_at_the_end_of_the_capture() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1011, b"again")])
    assert story.bytes(0) == b"hello .....again"
    assert story.items[0][1] == ("hole", 6, 5, "lost", END, 4)


def test_new_syn_reuses_ports() -> None:
    first, second = tell(
        [*handshake(), a(1000, b"old"), a(1999, ack=None, flags=SYN | PSH), b(7999, ack=2000, flags=SYN | ACK), a(2000, b"new")]
    )
    assert (first.bytes(0), second.bytes(0)) == (b"old", b"new")
    assert first.closed == [4]
    assert first.conversation.ended == "ports reused"
    assert (first.conversation.index, second.conversation.index) == (0, 1)


def test_reset() -> None:
    story = one([*handshake(), b(5000, b"x"), a(1000, b"half", flags=ACK), b(5001, ack=1004, flags=RST | ACK)])
    assert story.conversation.ended == "RST by 192.0.2.2:5552"
    assert story.closed == [END]


def test_limit() -> None:
    assert Options().waiting_limit
