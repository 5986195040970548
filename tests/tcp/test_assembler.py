"""Reassembly: each kind of trouble with its segments written out.

A's byte stream begins at sequence number 1000, B's at 5000. Packets are counted from 0, the first three are the handshake.
"""

from __future__ import annotations

import random
import time

import pytest

from streamdump.capture.link import RAW, LinkParser
from streamdump.model import CLAIMS, END, Options, Packet
from streamdump.tcp.checksum import is_right
from tests.support.segments import ACK, FIN, RST, SYN, Segment, a, b, handshake, made, one, run, tell
from tests.support.work import steps

SECOND = 1_000_000_000


def counts(story, side: int = 0):  # type: ignore[no-untyped-def]
    return story.conversation.streams[side]


def test_in_order() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"world"), b(5000, b"yes", ack=1011)])
    assert story.items[0] == [("bytes", 0, b"hello ", 3, 3, 4, 3_000_000), ("bytes", 6, b"world", 4, 4, 5, 4_000_000)]
    assert story.bytes(1) == b"yes"
    assert story.conversation.from_start
    assert story.conversation.endpoints == ("192.0.2.1:40000", "192.0.2.2:5552")
    assert story.conversation.ports == (40000, 5552)
    assert story.closed == [END]
    assert story.conversation.ended == "open at end of capture"
    assert story.conversation.packets == [4, 2]
    assert story.conversation.stream_bytes == [11, 3]


def test_sequence_numbers_wrap() -> None:
    first = 0xFFFF_FFFA
    segments = [a(first - 1, ack=None, flags=SYN), b(4999, ack=first, flags=SYN | ACK), a(first)]
    segments += [a(first, b"hello "), b(5000, ack=0), a(6, b"later"), a(0, b"world,"), b(5000, ack=11)]
    assert one(segments).bytes(0) == b"hello world,later"


# Order


def test_reordered() -> None:
    story = one([*handshake(), a(1006, b"world"), a(1000, b"hello ")])
    assert story.items[0] == [("bytes", 0, b"hello ", 4, 4, 5, 4_000_000), ("bytes", 6, b"world", 3, 4, 4, 3_000_000)]
    assert counts(story).out_of_order == 1


def test_reordered_backwards() -> None:
    story = one([*handshake(), *(a(1000 + at, b"%02d" % at) for at in range(20, -1, -2))])
    assert story.bytes(0) == b"".join(b"%02d" % at for at in range(0, 22, 2))
    assert {item[4] for item in story.items[0]} == {13}
    assert counts(story).out_of_order == 10


def test_acknowledged_before_it_was_captured() -> None:
    story = one([*handshake(), b(5000, ack=1011), a(1000, b"hello "), b(5000, ack=1011), a(1006, b"world")])
    assert story.bytes(0) == b"hello world"
    assert story.gaps(0) == []


def test_what_a_side_sent_after_bytes_that_are_missing_follows_them() -> None:
    start = [*handshake(), a(1006, b"world")]
    # After them, whether they come late or are lost
    late = one([*start, b(5000, b"yes", ack=1011), b(5003, b"no", ack=1011), a(1000, b"hello ")])
    assert [item[2:5] for item in late.items[1]] == [(b"yes", 4, 6), (b"no", 5, 6)]
    lost = one([*start, b(5000, b"yes", ack=1011), *(a(1011 + at, b"!", ack=5003) for at in range(3)), b(5003, b"no", ack=1014)])
    assert [(item[0], item[4]) for item in lost.items[0]] == [("gap", 7), ("bytes", 7), ("bytes", 7), ("bytes", 7), ("bytes", 7)]
    assert [item[2:5] for item in lost.items[1]] == [(b"yes", 4, 7), (b"no", 8, 8)]
    # At once, if it had not received them, or if what it had received is lost
    assert one([*start, b(5000, b"yes", ack=1000), a(1000, b"hello ")]).items[1][0][3:5] == (4, 4)
    part = one([*start, b(5000, b"yes", ack=1003), *(b(5003 + at, b".", ack=1003) for at in range(66))])
    assert [item[4] for item in part.items[1]][63:] == [68, 68, 69, 70]
    limited = one([*start, b(5000, b"y" * 1000, ack=1011), b(6000, b"no", ack=1011)], Options(waiting_total=1200))
    assert [item[4] for item in limited.items[1]] == [4, 5]


def test_bytes_below_what_a_segment_without_any_has_shown() -> None:
    story = one([*handshake(), a(1000, b"hello"), a(1010), a(1005, b"world"), a(1010, b"!")])
    assert story.bytes(0) == b"helloworld!"
    assert counts(story).out_of_order == 1


# Again


def test_retransmitted() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1000, b"hello "), a(1006, b"world"), a(1000, b"hello world")])
    assert [item[2:4] for item in story.items[0]] == [(b"hello ", 3), (b"world", 5)]
    assert counts(story).retransmitted == 2
    assert story.conversation.retransmissions == 2
    assert counts(story).conflicts == 0


def test_retransmitted_while_it_waits() -> None:
    story = one([*handshake(), a(1006, b"world"), a(1006, b"world"), a(1000, b"hello ")])
    assert [item[2:5] for item in story.items[0]] == [(b"hello ", 5, 5), (b"world", 3, 5)]
    assert counts(story).retransmitted == 1


def test_overlap_keeps_the_first_bytes_and_their_packet() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1003, b"lo world")])
    assert [item[1:4] for item in story.items[0]] == [(0, b"hello ", 3), (6, b"world", 4)]
    assert story.notes[0] == []


def test_overlap_with_released_bytes_fills_a_hole() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1011, b"!"), a(1003, b"lo world")])
    assert [item[1:4] for item in story.items[0]] == [(0, b"hello ", 3), (6, b"world", 5), (11, b"!", 4)]
    assert story.gaps(0) == []


def test_overlap_with_bytes_that_wait() -> None:
    story = one([*handshake(), a(1004, b"EF"), a(1010, b"KL"), a(1002, b"cdefghijklmn"), a(1000, b"ab")])
    pieces = [(0, b"ab", 6), (2, b"cd", 5), (4, b"EF", 3), (6, b"ghij", 5), (10, b"KL", 4), (12, b"mn", 5)]
    assert [item[1:4] for item in story.items[0]] == pieces
    assert counts(story).conflicts == 1
    assert story.notes[0] == [
        (4, "2 bytes sent again differ, the first at position 4; those that came first were kept"),
        (10, "2 bytes sent again differ, the first at position 10; those that came first were kept"),
    ]


def test_segment_inside_another_that_waits() -> None:
    story = one([*handshake(), a(1002, b"cdefgh"), a(1004, b"ef"), a(1000, b"ab")])
    assert story.bytes(0) == b"abcdefgh"
    assert counts(story).retransmitted == 1


def test_conflict_with_released_bytes_is_noted_on_the_next_one() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1000, b"hullo world"), a(1011, b"!")])
    assert story.bytes(0) == b"hello world!"
    assert story.notes[0] == [(6, "1 byte sent again differs, at position 1; the one that came first was kept")]
    assert counts(story).conflicts == 1


def test_conflict_is_found_while_bytes_are_not_acknowledged() -> None:
    blocks = [bytes([at]) * 1000 for at in range(10)]
    segments = [*handshake(), *(a(1000 + 1000 * at, block) for at, block in enumerate(blocks))]
    assert counts(one([*segments, a(1000, b"\x55" * 1000)])).conflicts == 1
    # Those are no longer held.
    assert counts(one([*segments, b(5000, ack=11000), a(1000, b"\x55" * 1000)])).conflicts == 0
    assert counts(one([*segments, b(5000, ack=11000), a(9500, b"\x55" * 1000)])).conflicts == 1


def test_many_conflicts_leave_few_notes() -> None:
    segments = [*handshake(), a(1000, b"first")]
    segments += [a(1000, b"F" + bytes([at % 250]) * 4) for at in range(600)]
    segments += [a(1005, b"last")]
    story = one(segments)
    assert counts(story).conflicts == 600
    assert len(story.notes[0]) == 256


# Probes


def test_keep_alives_bring_nothing() -> None:
    segments = [*handshake(), a(1000, b"hello "), b(5000, ack=1006), a(1005), b(5000, ack=1006), a(1005, b"\0"), b(5000, ack=1006)]
    story = one([*segments, a(1006, b"world")])
    assert story.bytes(0) == b"hello world"
    assert (counts(story).conflicts, counts(story).retransmitted) == (0, 0)


def test_keep_alive_before_the_first_byte() -> None:
    story = one([*handshake(), a(999), b(5000, ack=1000), a(999, b"\0"), b(5000, ack=1000), a(1000, b"hello")])
    assert story.bytes(0) == b"hello"
    assert story.notes[0] == []


def test_keep_alive_does_not_stand_in_for_a_byte_never_captured() -> None:
    segments = [*handshake(), a(1000, b"hello ", time_ns=0), b(5000, ack=1011, time_ns=0), a(1010, b"\0", time_ns=9 * SECOND)]
    story = one([*segments, a(1011, b"!", time_ns=9 * SECOND)])
    assert story.bytes(0) == b"hello .....!"


def test_probe_far_behind_is_no_conflict() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"world"), a(1005, b"\0"), a(1011, b"!")])
    assert story.bytes(0) == b"hello world!"
    assert (counts(story).conflicts, counts(story).retransmitted) == (0, 0)


def test_single_byte_right_after_its_acknowledgement() -> None:
    story = one([*handshake(), b(5000, ack=1001), a(1000, b"h"), a(1001, b"ello")])
    assert [item[1:4] for item in story.items[0]] == [(0, b"h", 4), (1, b"ello", 5)]


def test_zero_window_probe_is_sent_again() -> None:
    story = one([*handshake(), a(1000, b"hello"), b(5000, ack=1005), a(1005, b" "), b(5000, ack=1005), a(1005, b" world")])
    assert [item[1:4] for item in story.items[0]] == [(0, b"hello", 3), (5, b" ", 5), (6, b"world", 7)]
    assert counts(story).conflicts == 0


# The end


def test_closed_by_both_fins() -> None:
    segments = [*handshake(), a(1000, b"bye", flags=FIN | ACK), b(5000, b"bye", ack=1004, flags=FIN | ACK), a(1004, ack=5004)]
    story = one(segments)
    assert story.closed == [4]
    assert story.conversation.ended == "FIN"
    assert not story.conversation.open
    assert story.conversation.packets == [4, 2]
    assert story.conversation.stream_bytes == [3, 3]


def test_fin_with_data_still_out_of_order() -> None:
    segments = [*handshake(), b(5000, flags=FIN | ACK), a(1006, b"world", flags=FIN | ACK), a(1000, b"hello ")]
    story = one(segments)
    assert story.bytes(0) == b"hello world"
    assert story.closed == [5]


def test_fin_before_the_data() -> None:
    story = one([*handshake(), b(5000, flags=FIN | ACK), a(1011, flags=FIN | ACK), a(1006, b"world"), a(1000, b"hello ")])
    assert story.bytes(0) == b"hello world"
    assert story.closed == [6]


def test_rst_with_data_still_out_of_order() -> None:
    story = one([*handshake(), a(1006, b"world"), b(5000, ack=1000, flags=RST | ACK), a(1000, b"hello ")])
    assert story.bytes(0) == b"hello world"
    assert story.conversation.ended == "RST by 192.0.2.2:5552"
    assert not story.conversation.open
    assert story.closed == [END]


def test_payload_of_rst_is_no_part_of_the_byte_stream() -> None:
    story = one([*handshake(), a(1000, b"hello"), a(1005, b"went wrong", flags=RST)])
    assert story.conversation.stream_bytes == [5, 0]


def test_number_of_rst_belongs_to_no_byte() -> None:
    story = one([*handshake(), a(1000, b"hello"), a(1010, flags=RST)])
    assert (story.gaps(0), story.conversation.stream_bytes, story.conversation.ended) == ([], [5, 0], "RST by 192.0.2.1:40000")


@pytest.mark.parametrize("off", [10_000_000, 70_000, -70_000, 1 << 31])
def test_rst_outside_of_the_window_is_ignored(off: int) -> None:
    story = one([*handshake(), b(5000, b"x" * 80_000), b(85_000 + off, flags=RST), a(1000, b"hello"), b(85_000, b"!", ack=1005)])
    row = story.conversation
    assert (story.gaps(1), row.stream_bytes, row.open, row.ended_sides, row.end) == ([], [5, 80_001], True, 0, None)
    assert [(one.side, one.number, one.injected) for one in row.ignored] == [(1, 5, False)]


def test_rst_whose_receiver_goes_on_is_ignored() -> None:
    begin = [*handshake(), b(5000, b"hello"), b(5005, flags=RST)]
    behind = [b(5005, b" world"), a(1000, b"yes", ack=5011)]
    row = one([*begin, *behind]).conversation
    assert (row.open, row.ended_sides, row.end, [one.number for one in row.ignored]) == (True, 0, None, [5])
    # What crossed it shows nothing
    row = one([*begin, a(1000, b"yes", ack=5005), b(5005, b" world")]).conversation
    assert (row.open, row.ended, row.ignored) == (False, "RST by 192.0.2.2:5552", ())
    row = one([*begin, *behind, a(1003, ack=5011, flags=FIN | ACK), b(5011, ack=1004, flags=FIN | ACK)]).conversation
    assert (row.ended, row.end is not None and (row.end.side, row.end.how)) == ("FIN", (0, "FIN"))


# Checksums


def test_damaged_segment_that_is_sent_again() -> None:
    begin = [*handshake(), a(1000, b"hello "), a(1006, b"wXrld", damaged=True)]
    story = one([*begin, a(1011, b"!"), b(5000, ack=1006), a(1006, b"world"), b(5000, ack=1012)])
    assert story.bytes(0) == b"hello world!"
    assert (counts(story).damaged, counts(story).conflicts, counts(story).retransmitted) == (1, 0, 0)
    assert story.notes == ([], [])


def test_segment_with_a_wrong_checksum_that_is_acknowledged() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"world", damaged=True), b(5000, ack=1011), a(1011, b"!")])
    assert [item[2:5] for item in story.items[0]] == [(b"hello ", 3, 3), (b"world", 4, 5), (b"!", 6, 6)]
    assert counts(story).damaged == 0


@pytest.mark.parametrize("behind", [[], [a(1011, b"!")], [a(1011, flags=FIN | ACK)]])
def test_segment_with_a_wrong_checksum_that_is_the_last(behind: list[Segment]) -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"world", damaged=True), *behind])
    assert story.bytes(0)[:11] == b"hello world"
    assert story.gaps(0) == []


def test_keep_alive_while_a_segment_with_a_wrong_checksum_waits() -> None:
    begin = [*handshake(), a(1000, b"hello "), a(1006, b"world", damaged=True)]
    story = one([*begin, a(1010, b"\0"), b(5000, ack=1011), a(1011, b"!")])
    assert (story.bytes(0), story.notes[0]) == (b"hello world!", [])
    # A segment of one byte that is sent again is none
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"X", damaged=True), a(1006, b"w"), b(5000, ack=1007)])
    assert (story.bytes(0), story.notes[0]) == (b"hello w", [])


def test_sender_whose_checksums_are_computed_later() -> None:
    begin = handshake()
    begin[0] = begin[0]._replace(damaged=True)
    story = one([*begin, *(a(1000 + at, b"x", damaged=True) for at in range(9)), a(1009, b"y"), a(1010, b"x", damaged=True)])
    assert [item[3] for item in story.items[0]] == [item[4] for item in story.items[0]] == [*range(3, 14)]
    story = one([*handshake(), *(a(1000 + at, b"x", damaged=at % 5 != 0) for at in range(40)), b(5000, ack=1040)])
    assert (story.bytes(0), story.gaps(0)) == (b"x" * 40, [])
    assert story.items[0][-1][3:5] == (42, 42)


def test_checksum_of_a_segment_that_was_cut_shows_nothing() -> None:
    begin = handshake()
    begin[0] = begin[0]._replace(damaged=True)
    cut = [a(1000 + 9 * at, b"x" * 4, wire=9) for at in range(4)]
    story = one([*begin, *cut, a(1036, b"y", damaged=True), a(1036, b"z")])
    assert (story.items[0][-1][2:5], story.conversation.stream_bytes) == ((b"y", 7, 7), [37, 0])


def test_second_copy_that_is_damaged() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1006, b"world"), a(1006, b"wXrld", damaged=True), a(1011, b"!")])
    assert (story.bytes(0), story.notes[0]) == (b"hello world!", [])


def test_copies_that_differ_with_right_checksums() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1000, b"Hello "), a(1006, b"world")])
    assert story.bytes(0) == b"hello world"
    assert story.notes[0] == [(6, "1 byte sent again differs, at position 0; the one that came first was kept")]


def test_direction_without_the_other_is_not_held_back() -> None:
    story = one([a(999, ack=None, flags=SYN), a(1000, b"hello "), a(1006, b"world", damaged=True), a(1011, b"!")])
    assert [item[4] for item in story.items[0]] == [1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, 2, 511, 512, 513, 514, 515, 1459, 1460, 8960])
@pytest.mark.parametrize("version", [4, 6])
def test_checksum_of_tcp(size: int, version: int) -> None:
    from scapy.layers.inet import IP, TCP
    from scapy.layers.inet6 import IPv6

    ip = IP(src="192.0.2.1", dst="192.0.2.2") if version == 4 else IPv6(src="2001:db8::1", dst="2001:db8::2")
    options = [("MSS", 1460), ("NOP", None), ("NOP", None), ("Timestamp", (7, 8))]
    data = bytearray(bytes(ip / TCP(sport=40000, dport=5552, flags="PA", options=options) / random.Random(size).randbytes(size)))
    parsed = LinkParser().segment(Packet(bytes(data), 0, 1, 0, 0, len(data), len(data), RAW[0]), 0)
    assert parsed is not None
    assert is_right(parsed)
    data[-1] ^= 0x10
    parsed = LinkParser().segment(Packet(bytes(data), 0, 1, 0, 0, len(data), len(data), RAW[0]), 0)
    assert parsed is not None
    assert not is_right(parsed)


# Lengths beyond the frame


def test_bytes_that_a_length_claims_and_no_frame_has() -> None:
    damaged = a(1000, b"hello ", flags=ACK | CLAIMS, wire=30_000)
    story = one([*handshake(), damaged, a(1006, b"world"), a(1000, b"hello "), b(5000, ack=1011), a(1011, b"!")])
    assert (story.bytes(0), story.gaps(0), counts(story).cut, counts(story).bytes) == (b"hello world!", [], 0, 18)


def test_claim_of_the_last_segment() -> None:
    story = one([*handshake(), a(1000, b"hello ", flags=ACK | CLAIMS, wire=30_000)])
    assert (story.bytes(0), story.conversation.stream_bytes) == (b"hello ", [6, 0])


@pytest.mark.parametrize("behind", [b(5000, ack=1100), a(1100, b"there", ack=5000)])
def test_capture_whose_lengths_were_both_cut(behind: Segment) -> None:
    cut = [a(1000, b"hello", flags=ACK | CLAIMS, wire=100), behind]
    cut += [b(5000, b"yes", flags=ACK | CLAIMS, wire=50), a(1105, b"all", flags=ACK | CLAIMS, wire=200)]
    story = one([*handshake(), *cut])
    assert story.gaps(0)[0] == (5, 95, "cut")
    assert story.gaps(0)[-1] == (108, 197, "cut")
    assert story.gaps(1) == [(3, 47, "cut")]
    assert counts(story).lost == (0 if behind.data else 5)


def test_one_fin_only() -> None:
    story = one([*handshake(), a(1000, b"hello", flags=FIN | ACK)])
    assert story.conversation.ended == "FIN by 192.0.2.1:40000, open at end of capture"


def test_bytes_behind_a_fin_are_dropped() -> None:
    story = one([*handshake(), a(1000, b"hello", flags=FIN | ACK), a(1005, b" world"), a(1003, b"lo!")])
    assert story.bytes(0) == b"hello"


def test_fin_below_what_was_sent_is_none() -> None:
    story = one([*handshake(), a(1000, b"hello"), a(1002, flags=FIN | ACK), a(1005, b" world")])
    assert story.bytes(0) == b"hello world"


def test_packets_after_the_end_bring_nothing() -> None:
    segments = [*handshake(), a(1000, b"bye", flags=FIN | ACK), b(5000, b"bye", ack=1004, flags=FIN | ACK)]
    story = one([*segments, a(1000, b"bye", flags=FIN | ACK), a(1004, ack=5004), a(1003, b"\0"), b(5004, flags=RST)])
    assert story.bytes(0) == b"bye"
    assert story.conversation.packets == [6, 3]
    assert story.conversation.ended == "FIN"
    assert (story.conversation.last[0], story.conversation.latest[0]) == (4, 8)


# The beginning


def test_syn_with_data() -> None:
    segments = [a(999, b"early ", ack=None, flags=SYN), b(4999, ack=1000, flags=SYN | ACK), a(1000, b"early bird"), b(5000, ack=1010)]
    story = one(segments)
    assert [item[1:4] for item in story.items[0]] == [(0, b"early ", 0), (6, b"bird", 2)]


def test_answer_to_a_syn_with_data_says_where_its_side_begins() -> None:
    segments = [a(999, b"early", ack=None, flags=SYN), b(4999, b"first ", ack=1005, flags=SYN | ACK), a(1005, ack=5006), b(5006, b"last")]
    story = one(segments)
    assert [story.bytes(0), story.bytes(1)] == [b"early", b"first last"]
    late = [a(999, b"early", ack=None, flags=SYN), b(4999, ack=1005, flags=SYN | ACK), b(5006, b"last"), b(5000, b"first ")]
    assert one(late).bytes(1) == b"first last"


def test_syn_repeated() -> None:
    story = one([a(999, ack=None, flags=SYN), a(999, ack=None, flags=SYN), *handshake()[1:], a(999, ack=None, flags=SYN), a(1000, b"x")])
    assert story.bytes(0) == b"x"


def test_syn_captured_after_its_answer() -> None:
    syn, answer, last = handshake()
    story = one([answer, syn, last, a(1000, b"x"), b(5000, b"y")])
    assert story.conversation.endpoints == ("192.0.2.1:40000", "192.0.2.2:5552")
    assert story.conversation.from_start
    assert story.conversation.stream_bytes == [1, 1]


def test_syn_captured_after_an_acknowledgement_of_it() -> None:
    late = [b(5000, ack=1000), a(999, ack=None, flags=SYN), a(1000, b"x")]
    assert [story.conversation.stream_bytes for story in tell(late)] == [[0, 1]]
    other = [b(5000, ack=1000), a(77_000_000, ack=None, flags=SYN), a(77_000_001, b"x", ack=None)]
    assert len(tell(other)) == 2


def test_answer_to_a_syn_of_an_earlier_connection_is_none() -> None:
    old = [a(999, ack=None, flags=SYN), b(4999, ack=555, flags=SYN | ACK), b(4999, ack=1000, flags=SYN | ACK), a(1000, b"x")]
    assert one(old).conversation.stream_bytes == [1, 0]


def test_syn_captured_after_the_first_byte() -> None:
    story = one([a(1000, b"x", ack=5000), a(999, ack=None, flags=SYN), b(4999, ack=1000, flags=SYN | ACK), b(5000, b"y", ack=1001)])
    assert story.conversation.stream_bytes == [1, 1]
    # It was released as if from the middle, so nobody may think otherwise later.
    assert not story.conversation.from_start


def test_server_side_is_the_one_that_answers_the_syn() -> None:
    story = one([b(4999, ack=1000, flags=SYN | ACK), a(1000, b"x")])
    assert story.conversation.endpoints[0] == "192.0.2.1:40000"
    assert story.conversation.from_start
    story = one([b(4999, ack=None, flags=SYN), a(999, ack=5000, flags=SYN | ACK), b(5000, b"x")])
    assert story.conversation.endpoints[0] == "192.0.2.2:5552"
    assert story.conversation.from_start


def test_middle_of_a_byte_stream() -> None:
    story = one([b(7000, b"middle", ack=3000), a(3000, b"answer", ack=7006)])
    assert story.conversation.endpoints[0] == "192.0.2.2:5552"
    assert not story.conversation.from_start
    assert (story.bytes(0), story.bytes(1)) == (b"middle", b"answer")


def test_one_byte_from_before_the_first_one_released() -> None:
    story = one([a(1010, b"middle"), a(1009, b"bmid"), a(1016, b"end")])
    assert story.notes[0] == [(6, "1 byte from before the first byte released came late and was dropped")]


def test_bytes_from_before_the_first_one_released() -> None:
    story = one([a(1010, b"middle"), a(1000, b"before the"), a(1005, b"e the middle"), a(1017, b"end")])
    assert story.bytes(0) == b"middle" + b"e" + b"end"
    assert story.notes[0] == [
        (6, "10 bytes from before the first byte released came late and were dropped"),
        (6, "5 bytes sent again differ, the first at position 0; those that came first were kept"),
        (6, "5 bytes from before the first byte released came late and were dropped"),
    ]


def test_segment_without_bytes_tells_the_start() -> None:
    story = one([a(1000), b(5000), a(1006, b"world"), a(1000, b"hello ")])
    assert story.bytes(0) == b"hello world"


def test_start_moves_down_while_nothing_is_released() -> None:
    story = one([a(1003), a(1006, b"world"), a(1000, b"hello ")])
    assert story.bytes(0) == b"hello world"
    assert story.notes[0] == []


def test_start_after_a_keep_alive() -> None:
    assert one([a(999), b(5000, ack=1000), a(1000, b"hello")]).bytes(0) == b"hello"
    assert one([a(999), a(1000), a(1000, b"hello")]).bytes(0) == b"hello"
    assert one([a(999), b(5000, ack=1000)]).conversation.stream_bytes == [0, 0]
    assert one([a(999), a(1000, flags=FIN | ACK)]).conversation.stream_bytes == [0, 0]


def test_acknowledgement_before_the_first_segment_shows_the_start() -> None:
    story = one([a(1000, b"question", ack=5000), b(5010, b"next", ack=1008)])
    assert story.gaps(1) == [(0, 10, "lost")]
    assert (counts(story, 1).lost, counts(story, 1).earlier) == (10, 10)
    # They come late
    story = one([a(1000, b"question", ack=5000), b(5006, b"world", ack=1008), b(5000, b"hello ", ack=1008)])
    assert (story.bytes(1), story.notes[1]) == (b"hello world", [])
    assert (counts(story, 1).lost, counts(story, 1).earlier) == (0, 0)
    # Some of them come late
    story = one([a(1000, b"question", ack=5000), b(5006, b"world", ack=1008), b(5002, b"llo ", ack=1008), b(5020, b"last", ack=1008)])
    assert (story.gaps(1), counts(story, 1).lost, counts(story, 1).earlier) == ([(0, 2, "lost"), (11, 9, "lost")], 11, 2)
    # One byte before the first segment is that of a keep-alive
    story = one([a(1000, b"question", ack=5000), b(5001, b"next", ack=1008), b(5015, b"last", ack=1008)])
    assert (counts(story, 1).lost, counts(story, 1).earlier) == (10, 0)
    # Between bytes of the same side the capture lost them
    story = one([a(1000, b"question", ack=5000), b(5010, b"next", ack=1008), b(5020, b"last", ack=1008)])
    assert (counts(story, 1).lost, counts(story, 1).earlier) == (16, 10)


def test_acknowledgement_far_from_the_first_segment_shows_nothing() -> None:
    story = one([a(1000, b"question", ack=5000), b(5001 + (16 << 20), b"answer", ack=1008)])
    assert (story.bytes(1), story.gaps(1)) == (b"answer", [])


def test_answer_to_the_syn_is_missing() -> None:
    syn, _, last = handshake()
    story = one([syn, last, b(5004, b"world"), b(5000, b"hell")])
    assert story.bytes(1) == b"hellworld"


def test_only_one_direction_captured() -> None:
    story = one([a(1000, b"question", ack=5000), a(1008, b"next", ack=5010), a(1012, b"last", ack=5020)])
    assert story.bytes(0) == b"questionnextlast"
    assert story.conversation.stream_bytes == [16, 0]
    # With the SYN the other side's beginning is known, and what it sent too.
    syn, _, last = handshake()
    assert one([syn, last, a(1000, b"question", ack=5010)]).gaps(1) == [(0, 10, "lost")]


# Lost


def test_lost_at_the_end_of_the_capture() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1011, b"again")])
    assert story.bytes(0) == b"hello .....again"
    assert story.items[0][1] == ("gap", 6, 5, "lost", END, 4)
    assert counts(story).lost == 5


def test_hole_the_other_side_has_is_given_up_after_64_packets() -> None:
    segments = [*handshake(), a(1006, b"world"), b(5000, ack=1011), *(b(5000, ack=1011) for _ in range(62))]
    story = one([*segments, a(1011, b"!"), a(1012, b"!")])
    assert story.items[0][0] == ("gap", 0, 6, "lost", 68, 3)
    assert story.items[0][1][4] == 68
    # The 64th further packet may still bring it.
    story = one([*segments, a(1011, b"!"), a(1000, b"hello "), a(1012, b"!")])
    assert story.bytes(0) == b"hello world!!"
    assert story.gaps(0) == []


def test_hole_the_other_side_has_is_given_up_after_one_second() -> None:
    def segments(later: int) -> list:  # type: ignore[type-arg]
        head = [segment._replace(time_ns=0) for segment in handshake()]
        head += [a(1006, b"world", time_ns=SECOND), b(5000, ack=1011, time_ns=2 * SECOND), b(5000, b"x", ack=1011, time_ns=later)]
        return [*head, a(1000, b"hello ", ack=5001, time_ns=later)]

    assert one(segments(3 * SECOND - 1)).bytes(0) == b"hello world"
    story = one(segments(3 * SECOND))
    assert story.bytes(0) == b"......world"
    assert story.items[0][0] == ("gap", 0, 6, "lost", 5, 3)


def later(count: int, since: int = 1011) -> list[Segment]:
    return [a(since + number, b"!") for number in range(count)]


def test_three_segments_behind_a_gap_that_the_other_side_has_are_enough() -> None:
    head = [*handshake(), a(1006, b"world"), b(5000, ack=1011)]
    story = one([*head, *later(3), a(1014, b"?")])
    assert story.items[0][0] == ("gap", 0, 6, "lost", 7, 3)
    assert one([*head, *later(2), a(1000, b"hello ")]).bytes(0) == b"hello world!!"
    # Acknowledgements of less, and other packets, do not shorten the wait
    assert one([*handshake(), a(1006, b"world"), b(5000, ack=1000), *later(9), a(1000, b"hello ")]).bytes(0) == b"hello world" + b"!" * 9
    assert one([*head, *(b(5000 + number, b"x", ack=1011) for number in range(9)), a(1000, b"hello ")]).bytes(0) == b"hello world"
    # Each gap has its own three
    two = one([*head[:-1], a(1012, b"!"), b(5000, ack=1013), *later(3, 1013), a(1011, b"?"), a(1016, b"!")])
    assert (two.gaps(0), two.bytes(0)) == ([(0, 6, "lost")], b"......world?!!!!!")


def test_who_was_captured_late_is_waited_for_as_before() -> None:
    swapped = [*handshake(), *(a(at, b"x") for at in (1001, 1002, 1003, 1000)), b(5000, ack=1004)]
    story = one([*swapped, a(1010, b"world"), b(5000, ack=1015), *later(9, 1015), a(1004, b"hello ")])
    assert story.bytes(0) == b"xxxxhello world" + b"!" * 9
    # What comes after it was given up shows that as well, and what comes twice after its acknowledgement
    twice = [*handshake(), a(1000, b"xxxx"), b(5000, ack=1004), a(1000, b"xxxx")]
    story = one([*twice, a(1010, b"world"), b(5000, ack=1015), *later(9, 1015), a(1004, b"hello ")])
    assert story.bytes(0) == b"xxxxhello world" + b"!" * 9
    head = [*handshake(), a(1006, b"world"), b(5000, ack=1011), *later(3), a(1000, b"hello ")]
    story = one([*head, a(1020, b"?"), b(5000, ack=1021), *later(5, 1021), a(1014, b"and on")])
    assert story.gaps(0) == [(0, 6, "lost")]
    assert story.bytes(0) == b"......world!!!and on?!!!!!"


def test_hole_nobody_acknowledged_is_waited_for() -> None:
    story = one([*handshake(), a(1006, b"world"), *(b(5000, ack=1000) for _ in range(200)), a(1000, b"hello ")])
    assert story.bytes(0) == b"hello world"


def test_packet_out_of_order_in_time_does_not_make_waiting_shorter() -> None:
    segments = [*handshake(), a(1006, b"world", time_ns=9 * SECOND), b(5000, ack=1011, time_ns=9 * SECOND)]
    story = one([*segments, b(5000, ack=1011, time_ns=2 * SECOND), a(1000, b"hello ", time_ns=9 * SECOND)])
    assert story.bytes(0) == b"hello world"


def test_acknowledged_without_a_byte_behind_it() -> None:
    story = one([*handshake(), a(1000, b"hello "), b(5000, ack=1011)])
    assert story.items[0][1] == ("gap", 6, 5, "lost", END, 4)
    assert story.conversation.stream_bytes == [11, 0]


def test_position_of_a_later_segment_without_bytes() -> None:
    assert one([*handshake(), a(1000, b"hello "), a(1011)]).bytes(0) == b"hello ....."


def test_last_bytes_before_a_fin_are_lost() -> None:
    story = one([*handshake(), a(1000, b"hello "), a(1011, flags=FIN | ACK), b(5000, ack=1012, flags=FIN | ACK), a(1012, ack=5001)])
    assert story.bytes(0) == b"hello ....."
    assert story.conversation.stream_bytes == [11, 0]
    assert story.conversation.ended == "FIN"


def test_number_of_a_lost_fin_is_no_byte() -> None:
    story = one([*handshake(), a(1000, b"hello"), b(5000, ack=1006, flags=FIN | ACK), a(1006, ack=5001)])
    assert story.conversation.stream_bytes == [5, 0]
    story = one([*handshake(), a(1000, b"hello"), b(5000, ack=1006), b(5000, ack=1006, flags=RST | ACK)])
    assert story.conversation.stream_bytes == [5, 0]


def test_absurd_acknowledgement_is_not_believed() -> None:
    far = a(1000, b"hello"), b(5000, ack=1005 + (600 << 20)), b(5000, ack=0x9000_0000)
    story = one([*handshake(), *far, a(1005, b" world")])
    assert story.bytes(0) == b"hello world"
    # Two that agree are.
    story = one([*handshake(), *far[:2], b(5000, ack=2005 + (600 << 20))])
    assert story.gaps(0) == [(5, (600 << 20) + 1000, "lost")]


# Cut by the snap length


def test_cut() -> None:
    segments = [*handshake(), a(1000, b"hello", wire=11), a(1011, b"again", wire=5), b(5000, b"", ack=1016, wire=7), b(5007, b"x")]
    story = one(segments)
    assert story.bytes(0) == b"hello......again"
    assert story.items[0][1] == ("gap", 5, 6, "cut", 3, 3)
    assert story.gaps(1) == [(0, 7, "cut")]
    assert (counts(story).cut, counts(story).lost) == (6, 0)


def test_cut_and_out_of_order() -> None:
    story = one([*handshake(), a(1011, b"again"), a(1004, b"o ", wire=7), a(1000, b"hell")])
    assert story.bytes(0) == b"hello .....again"
    assert story.gaps(0) == [(6, 5, "cut")]
    assert story.items[0][2][4:6] == (5, 4)


def test_bytes_fill_what_was_cut_while_it_waits() -> None:
    story = one([*handshake(), a(1004, b"o ", wire=7), a(1007, b"orl"), a(1000, b"hell")])
    assert story.bytes(0) == b"hello .orl."
    assert story.gaps(0) == [(6, 1, "cut"), (10, 1, "cut")]


def test_nothing_is_left_of_a_segment() -> None:
    story = one([*handshake(), a(1000, b"", wire=11), a(1011, b"", wire=5)])
    assert story.gaps(0) == [(0, 11, "cut"), (11, 5, "cut")]


# Limits


def test_bytes_that_wait_are_limited() -> None:
    options = Options(waiting_limit=3000)
    segments = [*handshake(), a(2000, b"b" * 1000), a(4000, b"d" * 1000), a(5000, b"e" * 1000)]
    assert len(one([*segments, a(1000, b"a" * 1000), a(3000, b"c" * 1000)], options).gaps(0)) == 0
    story = one([*segments, a(7000, b"g" * 1000), a(8000, b"h" * 1000), a(1000, b"a" * 1000)], options)
    assert story.gaps(0) == [(0, 1000, "lost"), (2000, 1000, "lost"), (5000, 1000, "lost")]
    assert [item[4] for item in story.items[0] if item[0] == "gap"] == [6, 7, END]
    assert story.conversation.limit_hits == 2


def test_time_that_bytes_wait_is_limited() -> None:
    options = Options(waiting_time_ns=5 * SECOND)
    segments = [segment._replace(time_ns=0) for segment in handshake()]
    segments += [a(1006, b"world", time_ns=SECOND), a(1020, b"!", time_ns=3 * SECOND)]
    assert one([*segments, a(1000, b"hello ", time_ns=6 * SECOND - 1)], options).bytes(0) == b"hello world.........!"
    story = one([*segments, b(5000, time_ns=6 * SECOND), b(5000, time_ns=8 * SECOND), b(5000, time_ns=9 * SECOND)], options)
    assert [item[4] for item in story.items[0]] == [5, 5, 6, 6]
    assert story.conversation.limit_hits == 2


def test_bytes_that_wait_in_all_conversations_are_limited() -> None:
    options = Options(waiting_total=2500)

    def conversation(port: int) -> list:  # type: ignore[type-arg]
        return [
            segment._replace(src=("192.0.2.9", port) if segment.src[1] != 5552 else segment.src)._replace(
                dst=("192.0.2.9", port) if segment.dst[1] != 5552 else segment.dst
            )
            for segment in [*handshake(), a(2000, b"b" * 1000)]
        ]

    stories = tell([*conversation(1), *conversation(2), *conversation(3), *conversation(4)], options)
    # The one that waits longest gives way.
    assert [story.items[0][0][4] for story in stories] == [11, 15, END, END]
    assert [story.conversation.limit_hits for story in stories] == [1, 1, 0, 0]
    # One of which nothing else is missing ends with that.
    ended = [
        *conversation(1),
        *[a(3000, flags=FIN | ACK)._replace(src=("192.0.2.9", 1)), b(5000, flags=FIN | ACK)._replace(dst=("192.0.2.9", 1))],
    ]
    assert tell([*ended, *conversation(2), *conversation(3)], options)[0].closed == [13]


@pytest.mark.parametrize(
    ("segment", "differs"),
    [(a(1000, b"hello"), False), (a(1005, b" world"), False), (a(1000, b"hullo"), True), (a(3_000_000_000, b"stray"), True)],
)
def test_bytes_of_another_file_that_do_not_fit_are_told(segment: Segment, differs: bool) -> None:
    (story,) = run([*made([*handshake(), a(1000, b"hello")]), *made([segment], 4, file=1)])
    assert story.conversation.other_file == (1 if differs else None)


# Several conversations between the same ports


def test_new_syn_reuses_ports() -> None:
    again = [a(1999, ack=None, flags=SYN), b(7999, ack=2000, flags=SYN | ACK), a(2000, b"new", ack=8000)]
    first, second = tell([*handshake(), a(1000, b"old"), a(1005, b"waits"), *again])
    assert (first.bytes(0), second.bytes(0)) == (b"old..waits", b"new")
    assert first.closed == [5]
    assert first.conversation.ended == "ports reused"
    assert not first.conversation.open
    assert (first.conversation.index, second.conversation.index) == (0, 1)
    assert second.conversation.first[0] == 5


CLOSED = [*handshake(), a(1000, b"bye", flags=FIN | ACK), b(5000, b"bye", ack=1004, flags=FIN | ACK), a(1004, ack=5004)]


def test_syn_after_the_end() -> None:
    first, second = tell([*CLOSED, a(1999, ack=None, flags=SYN), b(7999, ack=2000, flags=SYN | ACK), a(2000, b"new", ack=8000)])
    assert first.closed == [4]
    assert first.conversation.ended == "FIN"
    assert second.bytes(0) == b"new"
    # With numbers as before too, as programs that make up packets do.
    first, second = tell([*CLOSED, *CLOSED])
    assert first.bytes(0) == second.bytes(0) == b"bye"
    assert first.closed == [4]
    assert second.closed == [10]


def test_syn_from_the_other_side() -> None:
    first, second = tell([*CLOSED, b(7999, ack=None, flags=SYN), a(1999, ack=8000, flags=SYN | ACK), b(8000, b"new", ack=2000)])
    assert first.conversation.endpoints == second.conversation.endpoints[::-1]
    assert second.bytes(0) == b"new"


def test_refused_and_tried_again() -> None:
    refused = [a(999, ack=None, flags=SYN), b(0, ack=1000, flags=RST | ACK)]
    story = one([*refused, *refused])
    assert story.conversation.ended == "RST by 192.0.2.2:5552"
    first, second = tell([*refused, a(77_000, ack=None, flags=SYN), b(0, ack=77_001, flags=RST | ACK)])
    assert first.conversation.ended == second.conversation.ended == "RST by 192.0.2.2:5552"


def test_syn_of_the_next_conversation_is_lost() -> None:
    first, second = tell([*CLOSED, b(7999, ack=2000, flags=SYN | ACK), a(2000, b"new", ack=8000), b(8000, b"yes", ack=2003)])
    assert (second.bytes(0), second.bytes(1)) == (b"new", b"yes")
    assert second.conversation.from_start
    first, second = tell([*CLOSED, a(2000, b"new", ack=8000), b(8000, b"yes", ack=2003)])
    assert (second.bytes(0), second.bytes(1)) == (b"new", b"yes")
    assert not second.conversation.from_start
    assert first.conversation.packets == [4, 2]


def test_next_conversation_after_a_reset_without_its_syn() -> None:
    reset = [*handshake(), a(1000, b"old"), b(5000, ack=1003, flags=RST | ACK)]
    first, second = tell([*reset, a(900_000_000, b"new", ack=8000)])
    assert (first.bytes(0), second.bytes(0)) == (b"old", b"new")


def test_stray_segment() -> None:
    segments = [*handshake(), a(1000, b"hello "), a(3_000_000_000, b"stray"), a(1006, b"world")]
    story = one(segments)
    assert story.bytes(0) == b"hello world"
    # A second one that continues it shows that it belongs to another conversation.
    first, second = tell([*segments, a(3_000_000_005, b"stays"), a(3_000_000_010, b" on")])
    assert first.bytes(0) == b"hello world"
    assert second.bytes(0) == b"stays on"


@pytest.mark.parametrize("crossed", [False, True])
def test_late_segments_of_the_conversation_before_are_no_third_one(crossed: bool) -> None:
    late = [a(1000, b"one"), a(1003, b"two"), a(1006, b"six")]
    opened = [a(2_999_999_999, ack=None, flags=SYN), b(6999, ack=3_000_000_000, flags=SYN | ACK)]
    if crossed:
        opened = [b(6999, ack=None, flags=SYN), a(2_999_999_999, ack=7000, flags=SYN | ACK)]
    first, second = tell([*handshake(), *late, *opened, a(3_000_000_000, b"new"), *late, a(3_000_000_003, b"er")])
    assert (first.bytes(0), second.bytes(int(crossed))) == (b"onetwosix", b"newer")


# What it must not cost


@pytest.mark.parametrize("step", [2, -2])
def test_single_bytes_out_of_order_do_not_cost_their_square(step: int) -> None:
    def cost(count: int) -> float:
        places = range(1001, 1001 + 2 * count, 2)
        segments = [*handshake(), *(a(at, b"x") for at in places[:: step // 2]), *(a(at - 1, b"y") for at in places)]
        found = made(segment._replace(time_ns=0) for segment in segments)
        begin = time.process_time()
        (story,) = run(found, Options(waiting_limit=1 << 30))
        spent = time.process_time() - begin
        assert story.bytes(0) == b"yx" * count
        return spent

    # Four times as many; their square would be sixteen times as much.
    assert min(cost(8_000) for _ in range(2)) < 10 * max(cost(2_000) for _ in range(2))


def test_what_is_sent_again_is_compared_with_its_own_place_alone() -> None:
    """Not with all that is kept, which may be thousands of pieces."""

    def work(count: int) -> int:
        sent = [a(at, b"x" * 8) for at in range(1000, 1000 + 8 * count, 8)]
        found = made([*handshake(), *sent, *sent])
        return steps(lambda: run(found))

    assert work(800) < 5 * work(200)


def test_who_said_that_no_more_will_follow() -> None:
    for ending, over in (
        ([], 0),
        ([a(1005, flags=RST)], 1),
        ([b(5000, ack=1005, flags=RST | ACK)], 2),
        ([a(1005, flags=FIN | ACK)], 1),
        ([a(1005, flags=FIN | ACK), b(5000, ack=1006, flags=RST | ACK)], 3),
    ):
        assert one([*handshake(), a(1000, b"hello"), *ending]).conversation.ended_sides == over
