"""Where one more, one less, or one branch less of Seastar RPC would go unseen in whole conversations."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

import pytest

from streamdump.model import Gap, Message
from streamdump.protocols.dissector import SEARCH_WINDOW
from streamdump.protocols.protocol import DetectionView, SideView
from streamdump.protocols.seastar import layouts
from streamdump.protocols.seastar.compression import chunks, unpack
from streamdump.protocols.seastar.dissector import SeastarDissector
from streamdump.protocols.seastar.frame_chains import (
    CERTAIN,
    FAR,
    IN_TURN,
    LARGE_ID,
    LARGE_ID_FRAMES,
    LARGE_SEGMENT,
    LEAP,
    LONGEST,
    NEAR,
    NEVER,
    RULED_OUT,
    Fit,
    fit,
    inside,
    needed,
)
from streamdump.protocols.seastar.heuristic import ALONE, CHAIN, heuristic
from streamdump.protocols.seastar.info import paired, unanswered
from streamdump.protocols.seastar.terms import SeastarFraming, agree, read_offer
from streamdump.protocols.work_budget import WorkBudget
from streamdump.quota import UnpackQuota
from tests.protocols.test_seastar import (
    DEFAULT,
    FRAGMENTED_TERMS,
    LZ4_TERMS,
    Event,
    exception,
    items,
    lz4,
    messages,
    negotiation,
    opened,
    parser,
    read,
    request,
    response,
    stream,
    view,
)

REQUESTS, RESPONSES = SeastarFraming("request", True, None), SeastarFraming("response", True, None)


def paid() -> WorkBudget:
    work_budget = WorkBudget()
    work_budget.pay(1 << 20)
    work_budget.begin(1 << 20, 1)
    return work_budget


def fitted(framing: SeastarFraming, data: bytes, need: int = 2) -> Fit | None:
    """The frames that fill `data`; None too where they are ruled out."""
    found = fit(framing, data, 0, len(data), {len(data): need}, paid())
    return None if found is RULED_OUT else found


# What the negotiation leaves possible


def test_an_offer_that_is_not_whole_may_be_that_of_a_stream() -> None:
    whole = negotiation((0, b"LZ4"), (3, bytes(8)))
    assert agree(read_offer(whole[:-3]), None).connections == ("rpc", "stream")
    assert agree(read_offer(negotiation((0, b"LZ4"))), None).connections == ("rpc",)


def test_of_all_that_an_old_server_supports_the_client_s_first_choice_counts() -> None:
    client, server = negotiation((0, b"XOR,LZ4,LZ4_FRAGMENTED")), negotiation((0, b"LZ4_FRAGMENTED,LZ4"))
    assert agree(read_offer(client), read_offer(server)).codecs == ("LZ4",)


def test_the_size_of_what_is_missing_is_that_of_records() -> None:
    terms = agree(read_offer(negotiation((1, b""))), read_offer(negotiation((1, b""))[:12]))
    assert terms.timeouts == (True,)


def test_what_was_agreed_on_does_not_hang_on_ids() -> None:
    client = read_offer(negotiation(*DEFAULT))
    found = [agree(client, read_offer(negotiation(*DEFAULT, (2, pack("<Q", ident))))) for ident in (1, 2)]
    assert found[0] is found[1]


# Chains of frames


def test_how_many_frames_make_a_guess() -> None:
    assert needed(NEAR, NEAR) == 2
    assert needed(NEAR + 1, (NEAR + 1) * LARGE_SEGMENT) == 3
    assert needed(NEAR + 1, (NEAR + 1) * LARGE_SEGMENT - 1) == NEVER
    assert needed(FAR, FAR * LARGE_SEGMENT) == 3
    assert needed(FAR + 1, (FAR + 1) * LARGE_SEGMENT) == NEVER


def test_large_ids_need_more_frames() -> None:
    frames = [request(LARGE_ID + number) for number in range(LARGE_ID_FRAMES)]
    assert fitted(REQUESTS, b"".join(frames[:-1])) is None
    assert fitted(REQUESTS, b"".join(frames)) is not None


def test_no_id_comes_twice_in_a_chain() -> None:
    assert fitted(REQUESTS, request(7) + request(8)) is not None
    assert fitted(REQUESTS, request(7) + request(7)) is None
    assert fitted(RESPONSES, response(7) + response(6)) is not None
    assert fitted(RESPONSES, response(7) + response(7)) is None


def test_an_exception_whose_lengths_differ_is_none() -> None:
    sound = exception(7, 0, b"text")
    assert fitted(RESPONSES, sound, 1) is not None
    assert fitted(RESPONSES, sound[:20] + pack("<I", 3) + sound[24:], 1) is None


def test_a_compressed_frame_with_bytes_left_over_proves_nothing() -> None:
    packed = SeastarFraming("request", True, "LZ4")
    assert fitted(packed, lz4(request(7))) is None
    assert fitted(packed, lz4(request(7)) + lz4(request(8))) is not None
    assert fitted(packed, lz4(request(7) + b"more") + lz4(request(8))) is None


def test_how_many_frames_are_certain_in_the_middle_of_a_segment() -> None:
    frames = [b"?" + request(7), *(request(number) for number in range(8, 12))]
    for count, previous, found in ((CERTAIN - 1, 6, 1), (CERTAIN - 1, None, None), (CERTAIN, None, 1)):
        data = b"".join(frames[:count])
        assert inside(REQUESTS, data, 0, len(data), previous, paid()) == found
    for count, found in ((IN_TURN - 1, None), (IN_TURN, 1)):
        data = b"".join(frames[:count]) + request(30)[:9]
        assert inside(REQUESTS, data, 0, len(data), 6, paid()) == found


# Conversations


def test_a_frame_over_the_limit_is_a_fault_wherever_its_end_is() -> None:
    long = messages(opened((0, request(1, bytes(200)) + request(2))), frame_limit=100)[2]
    assert long.fault is not None
    assert "over the limit of 100 bytes" in long.fault.reason
    greeting = messages([(0, negotiation((4, bytes(200))))], frame_limit=100)[0]
    assert greeting.fault is not None
    assert "over the limit of 100 bytes" in greeting.fault.reason


def test_what_cannot_be_a_frame_is_passed_over_where_the_place_was_found_again() -> None:
    lost = request(2, b"lost")
    events = opened((0, request(1)), (0, lost[:9]), (0, len(lost) - 9), (0, request(3)), (0, bytes(56)), (0, request(4)))
    records = read(events)
    assert [one.id for one in records if isinstance(one, Message)][2:] == [1, 3, 4]
    assert ("skipped", 56) in [(one.reason, one.size) for one in records if isinstance(one, Gap)]


def test_one_answer_in_a_small_segment_is_enough_where_requests_are_known() -> None:
    events: list[Event] = [(0, request(number)) for number in (100, 101, 102)]
    found = messages([(0, events[0][1] + events[1][1]), (1, response(100, b"one"))], syn=False)  # type: ignore[operator]
    assert [(one.name, one.id) for one in found] == [("Request", 100), ("Request", 101), ("Response", 100)]


@pytest.mark.parametrize("first", [0, 1])
def test_who_offers_more_is_the_client(first: int) -> None:
    offers = [negotiation(*DEFAULT), negotiation((1, b""))]
    found = messages([(first, offers[first]), (1 - first, offers[1 - first])], syn=False)
    assert {one.src: one.kind for one in found} == {"10.0.0.1:1": "request", "10.0.0.2:2": "response"}


def test_an_id_of_0_is_not_negative() -> None:
    (one,) = messages(opened((0, request(0))))[2:]
    assert (one.id, list(one.notes)) == (0, [])


def test_an_answer_ends_what_a_negative_id_means() -> None:
    events = opened((0, request(-6)), (1, response(-6)), (1, response(6, b"late")))
    assert [one.name for one in messages(events)][2:] == ["Request", "Response", "Response"]


def test_negative_ids_are_remembered_up_to_the_limit_of_open_requests() -> None:
    one = parser(open_limit=2)
    one.process(items(opened(*((0, request(-number)) for number in range(1, 9)))))
    assert isinstance(one.dissector, SeastarDissector)
    assert len(one.dissector.negative) == 2


def test_what_is_unpacked_is_taken_from_the_allowance() -> None:
    one = parser()
    frame = lz4(request(1, bytes(1000)))
    packed = len(frame)
    one.process(items(opened((0, frame), client=LZ4_TERMS, server=LZ4_TERMS)))
    assert isinstance(one.dissector, SeastarDissector)
    assert one.dissector.quota.own == UnpackQuota.FREE + packed * UnpackQuota.FOR_EACH - 1028


def test_a_chunk_refers_to_all_that_a_match_can_reach() -> None:
    before = bytes(range(256)) * 128
    literals = b"\xf0" + b"\xff" * (32_753 // 255) + bytes((32_753 % 255,)) + before
    # A match of eight bytes from 65,535 before, and five literals
    last = b"\x04\xff\xff\x50hello"
    frame = stream(b"".join((*(pack("<I", len(literals)) + literals for _ in range(2)), pack("<I", 13 | 1 << 31), last)))
    found = unpack(chunks("LZ4_FRAGMENTED", frame, 0, len(frame), 1 << 20), frame, 0)
    assert found[65_536:] == before[1:9] + b"hello"


def test_a_chunk_that_leaves_no_room_for_the_last_one() -> None:
    frame = stream(pack("<I", 4) + b"abcd")
    (one,) = messages(opened((0, frame), client=FRAGMENTED_TERMS, server=FRAGMENTED_TERMS))[2:]
    assert one.fault is not None
    assert (one.fault.offset, one.fault.reason) == (12, "chunk header needs 4 bytes, 0 left")


def test_an_answer_at_its_deadline_is_not_late() -> None:
    asked, answered = messages(opened((0, request(1, timeout=1)), (1, response(1))))[2:]
    answered.time_ns = asked.time_ns + 1_000_000
    assert paired(asked, answered) == []
    answered.time_ns += 1_000
    assert paired(asked, answered) == ["1 µs after the deadline of 1 ms"]
    assert unanswered(asked, asked.time_ns + 1_000_000) is None
    assert unanswered(asked, asked.time_ns + 1_000_001) == "deadline passed"


def test_layouts_that_name_verbs_are_made_once() -> None:
    assert layouts.tables({7: "seven"}) is layouts.tables({7: "seven"})
    assert layouts.tables({}) is layouts.PLAIN


# Detection


def claimed(first: list[bytes], second: list[bytes]) -> bool:
    """Whether frames that each side sends in one segment are taken for Seastar RPC."""
    segments = [[b"".join(side)] if side else [] for side in (first, second)]
    return heuristic(view(*segments, final=False)) is not None


def test_how_many_frames_of_one_side_are_claimed() -> None:
    asked = [request(number, b"abc") for number in range(10, 10 + ALONE)]
    assert [claimed(asked[:size], []) for size in (CHAIN - 1, CHAIN)] == [False, True]
    assert [claimed(asked[:size], [b"something else"]) for size in (ALONE - 1, ALONE)] == [False, True]


def test_one_exception_is_too_little_and_two_are_enough() -> None:
    failed = [exception(number, 0, b"text") for number in (7, 8)]
    assert [claimed(failed[:size], []) for size in (1, 2)] == [False, True]


def test_two_sides_that_ask_are_no_conversation() -> None:
    asked = [request(number) for number in range(10, 10 + ALONE)]
    assert not claimed(asked, asked)


def test_answers_are_to_what_was_asked() -> None:
    asked = [request(number) for number in range(10, 13)]
    answers = [response(number) for number in range(15, 19)]
    assert [claimed(asked, answers[at:]) for at in (0, 1)] == [True, False]


@pytest.mark.parametrize("wrap", [bytes, lz4])
def test_what_is_answered_first_may_have_been_asked_last(wrap: Callable[[bytes], bytes]) -> None:
    asked = [wrap(request(number, b"abc")) + wrap(request(number + 2, b"abcd")) for number in range(10, 50, 5)]
    answers = [b"".join(wrap(response(number, b"d")) for number in (47, 10, 45))]
    assert [heuristic(view(asked[:size], answers, final=False)) is not None for size in (7, 8)] == [False, True]


def test_what_is_answered_first_may_have_been_asked_in_lost_bytes() -> None:
    asked = request(10) + request(11)
    for lost, ident, told in ((0, 20, False), (100, 20, True), (100, 11 + LEAP, True), (100, 12 + LEAP, False)):
        runs = [(0, asked)] + [(len(asked) + lost, b"rest")] * bool(lost)
        sides = SideView(runs, False, [0]), SideView([(0, response(ident) + response(10))], False, [0])
        verdict = heuristic(DetectionView(sides, (4001, 4002), False, False))
        assert (verdict is not None) == told


def test_a_frame_may_be_longer_where_the_limit_says_so() -> None:
    head = request(10, bytes(LONGEST))[:1_000]
    for longest, told in ((LONGEST, False), (LONGEST + 28, True)):
        found = fit(REQUESTS, head, 0, len(head), {}, paid(), large=1, longest=longest)
        assert (found is not None) == told


def test_a_frame_that_detection_never_sees_as_a_whole_ends_a_chain() -> None:
    asked, answered = [request(10), request(11)], [response(9), response(10)]
    for size, told in ((SEARCH_WINDOW - 28, False), (SEARCH_WINDOW, True), (LONGEST - 28, True), (LONGEST, False)):
        body = bytes(size)
        assert claimed([request(10), request(11, body)[:1_000]], answered) == told
        assert claimed(asked, [response(9), response(10, body)[:1_000]]) == told
        assert not claimed([request(10, body)[:1_000]], answered)
