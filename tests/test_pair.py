"""Pairing on messages made by hand: every way in which a request can end."""

from __future__ import annotations

from typing import Any

import pytest

from streamdump.model import END, Exchange, Gap, Message
from streamdump.pair.doubt import STALE, UNSURE
from streamdump.pair.exchanges import Link, PairOutputs, PairRules, behind
from streamdump.pair.pairer import MAX_EARLY, MAX_EARLY_PER_KEY, MAX_TEXT, Pairer
from streamdump.protocols.records import (
    GAP,
    HANDED_ON,
    NONE,
    OPTIONAL_RESPONSE,
    PARTIAL_RESPONSE,
    REQUEST,
    REQUESTS,
    RESPONSE,
    RESPONSES,
    Event,
)
from tests.support.planting import Planted, plant


class Talk:
    """A conversation made packet by packet; `said` collects what the pairer hands back."""

    def __init__(self, reuse: str = "supersede", limit: int = 100, every: bool = False, whole: bool = False) -> None:
        self.links: list[Link] = []
        self.pairer = Pairer(PairRules(reuse, limit, every, whole), PairOutputs(self.links, []))
        self.said: list[Any] = []
        self.order = 0

    def put(self, role: int, key: Any, time_ns: int, outcome: str | None = None, side: int | None = None, **more: Any) -> Message:
        one = self.made(role, key, time_ns, outcome, side, **more)
        self.keep(self.pairer.process([one]))
        message: Message = one.record
        return message

    def made(
        self,
        role: int,
        key: Any,
        time_ns: int,
        outcome: str | None = None,
        side: int | None = None,
        first_ns: int | None = None,
        end_captured: bool = True,
    ) -> Event:
        """Return a message of the next packet, whose first byte came at `first_ns` and whose last one at `time_ns`."""
        self.order += 1
        side = (1 if role in (RESPONSE, RESPONSES, PARTIAL_RESPONSE) else 0) if side is None else side
        kind: Any = "response" if side else "request"
        message = Message(
            1, 0, "", time_ns, 0, "a", "b", None, "toy", "Do", kind, None, None, 0, (1, 1), 0, 1, {}, None, outcome, None, (), None
        )  # fmt: skip
        return Event(self.order, side, self.order, message, role, key, time_ns if first_ns is None else first_ns, end_captured)

    def gap(self, reason: Any, side: int, time_ns: int) -> None:
        self.order += 1
        gap = Gap(1, 0, "", time_ns, 0, "a", "b", None, "toy", 0, 1, reason, False)
        self.keep(self.pairer.process([Event(self.order, side, self.order, gap, GAP, None, time_ns)]))

    def keep(self, emitted: list[Event]) -> None:
        self.said += [one.record for one in emitted if isinstance(one.record, Exchange)]

    def close(self, reason: str = "closed") -> list[tuple[Any, ...]]:
        self.keep(self.pairer.close(reason, behind()))
        return [(one.outcome, one.reason, one.latency_ns) for one in self.said]

    def request_of(self, message: Message) -> Message | None:
        return next((asked.record for record, asked, _ in self.links if record is message), None)


def test_a_response_names_its_request_and_the_time_between() -> None:
    talk = Talk()
    request = talk.put(REQUEST, 1, 100)
    response = talk.put(RESPONSE, 1, 350, "answered")
    assert talk.request_of(response) is request
    assert (response.outcome, response.latency_ns) == ("answered", 250)
    assert talk.close() == []


def test_a_response_at_the_time_of_its_request_has_a_latency_of_0() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    response = talk.put(RESPONSE, 1, 100, "answered")
    assert (response.outcome, response.latency_ns, list(response.notes)) == ("answered", 0, [])
    talk.put(REQUEST, 2, 200)
    response = talk.put(RESPONSE, 2, 199, "answered")
    assert (response.latency_ns, list(response.notes)) == (-1, ["response begins before its request ends"])


PAIRED = pytest.mark.parametrize(
    "ask, answer, key", [(REQUEST, RESPONSE, 1), (REQUESTS, RESPONSES, (1, 2)), (OPTIONAL_RESPONSE, RESPONSE, 1)]
)


@PAIRED
@pytest.mark.parametrize("swapped", [False, True])
def test_latency_is_from_the_last_byte_of_the_request_to_the_first_of_the_response(ask: int, answer: int, key: Any, swapped: bool) -> None:
    """`swapped`: the response is read before its request, and cannot name it any more."""
    talk = Talk(every=True, whole=True)
    talk.pairer.pairs = []
    request, response = talk.made(ask, key, 140, first_ns=100), talk.made(answer, key, 390, "answered", first_ns=350)
    talk.keep(talk.pairer.process([response, request] if swapped else [request, response]))
    talk.close()
    # Nobody waits for an answer to what is seldom answered
    paired = not (swapped and ask == OPTIONAL_RESPONSE)
    assert [(one.outcome, one.latency_ns, one.waited_ns) for one in talk.said] == [("answered", 210, None)] * paired
    assert [one.latency_ns for one in talk.pairer.pairs] == [210] * paired
    assert response.record.latency_ns == (None if swapped else 210)
    assert request.record.notes == response.record.notes == ()


def test_pairs_without_exchanges_have_the_same_latency() -> None:
    talk = Talk()
    talk.pairer.pairs = []
    talk.put(REQUEST, 1, 140, first_ns=100)
    talk.put(RESPONSE, 1, 390, "answered", first_ns=350)
    assert [(one.latency_ns, one.exchange) for one in talk.pairer.pairs] == [(210, None)]


@PAIRED
@pytest.mark.parametrize("every", [False, True])
def test_there_is_no_latency_where_the_end_of_the_request_was_not_captured(ask: int, answer: int, key: Any, every: bool) -> None:
    talk = Talk(every=every)
    talk.pairer.pairs = []
    talk.put(ask, key, 1_000_000, first_ns=0, end_captured=False)
    response = talk.put(answer, key, 24_500_000, "answered", first_ns=24_000_000)
    talk.close()
    assert response.latency_ns is None
    assert response.notes == ["the end of its request was not captured: answered after at most 23 ms"]
    assert {one.latency_ns for one in (*talk.pairer.pairs, *talk.said)} <= {None}


def test_a_response_that_begins_before_the_end_that_was_captured_has_no_longest_time() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 200, end_captured=False)
    response = talk.put(RESPONSE, 1, 400, "answered", first_ns=150)
    assert (response.latency_ns, response.notes) == (None, ["response begins before its request ends"])


def test_every_pair_is_an_exchange_when_asked_for() -> None:
    talk = Talk(every=True)
    talk.put(REQUEST, 1, 100)
    talk.put(RESPONSE, 1, 350, "refused")
    assert talk.close() == [("refused", None, 250)]


def test_a_response_without_request_stays_unpaired() -> None:
    talk = Talk()
    response = talk.put(RESPONSE, 9, 100, "answered")
    assert (response.outcome, response.latency_ns) == (None, None)
    assert talk.close() == []


def test_requests_left_at_the_end_are_unanswered() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    assert talk.close("capture ended") == [("unanswered", "capture ended", None)]


def test_lost_bytes_of_the_answering_side_are_the_reason() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    talk.gap("lost", 0, 110)
    talk.put(REQUEST, 2, 120)
    talk.gap("lost", 1, 130)
    talk.put(REQUEST, 3, 140)
    assert talk.close() == [("unanswered", "bytes lost", None), ("unanswered", "bytes lost", None), ("unanswered", "closed", None)]


def test_bytes_that_were_only_passed_over_are_not_called_lost() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    talk.gap("cut", 1, 110)
    talk.put(REQUEST, 2, 120)
    talk.gap("skipped", 1, 130)
    talk.put(REQUEST, 3, 140)
    assert [reason for _, reason, _ in talk.close()] == ["bytes lost", "bytes skipped", "closed"]


def test_a_key_used_again_supersedes_the_older_request() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    newer = talk.put(REQUEST, 1, 200)
    assert talk.request_of(talk.put(RESPONSE, 1, 300, "answered")) is newer
    assert talk.close() == [("superseded", None, None)]


@pytest.mark.parametrize("role", [RESPONSE, PARTIAL_RESPONSE])
def test_a_response_held_back_is_not_that_of_a_request_made_since(role: int) -> None:
    talk = Talk(whole=True)
    talk.put(REQUEST, 1, 100)
    old = talk.made(role, 1, 200, "answered")
    second = talk.put(REQUEST, 1, 300)
    talk.keep(talk.pairer.process([old]))
    assert old.record.outcome is None
    assert talk.request_of(old.record) is None
    response = talk.put(RESPONSE, 1, 400, "answered")
    assert talk.request_of(response) is second
    assert response.notes == ()
    assert talk.close() == [("superseded", None, None)]


@pytest.mark.parametrize("lacking", [False, True])
def test_a_response_held_back_is_that_of_a_request_captured_late_where_none_is_missing(lacking: bool) -> None:
    """The requests of one side were captured behind the responses of the other."""
    for reuse in ("supersede", "queue"):
        talk = Talk(reuse, whole=True)
        if lacking:
            talk.gap("lost", 0, 50)
        response = talk.made(RESPONSE, 1, 100, "answered")
        request = talk.put(REQUEST, 1, 130)
        talk.keep(talk.pairer.process([response]))
        paired = reuse == "supersede" or not lacking
        assert talk.request_of(response.record) is (request if paired else None)
        assert talk.close() == ([] if paired else [("unanswered", "closed", None)])


def test_responses_before_requests_of_ids_that_are_seen_to_repeat() -> None:
    talk = Talk(whole=True)
    talk.put(REQUEST, 1, 10)
    talk.put(REQUEST, 1, 20)
    talk.put(RESPONSE, 1, 30, "answered")
    for time in (90, 150, 250):
        talk.put(RESPONSE, 1, time, "answered")
    talk.put(REQUEST, 1, 100)
    talk.put(REQUEST, 1, 200)
    assert talk.close() == [("superseded", None, None), ("answered", None, 50), ("answered", None, 50)]


def test_a_key_used_again_queues_where_ids_repeat() -> None:
    talk = Talk("queue")
    older, newer = talk.put(REQUEST, 1, 100), talk.put(REQUEST, 1, 200)
    assert talk.request_of(talk.put(RESPONSE, 1, 300, "answered")) is older
    assert talk.request_of(talk.put(RESPONSE, 1, 400, "answered")) is newer
    assert talk.close() == []


@pytest.mark.parametrize(("ask", "answer", "key"), [(REQUEST, RESPONSE, 1), (REQUESTS, RESPONSES, [1])])
@pytest.mark.parametrize("lost", [None, 0, 1])
def test_which_request_is_answered_is_unsure_where_ids_repeat_and_bytes_were_lost(
    ask: int, answer: int, key: Any, lost: int | None
) -> None:
    talk = Talk("queue")
    first = talk.put(ask, key, 100)
    talk.put(ask, key, 200)
    if lost is not None:
        talk.gap("lost", lost, 250)
    response = talk.put(answer, key, 300, "answered")
    assert talk.request_of(response) is first
    assert (UNSURE in response.notes) == (lost is not None)
    third = talk.put(ask, key, 400)
    talk.put(answer, key, 450, "answered")
    last = talk.put(answer, key, 500, "answered")
    assert talk.request_of(last) is third
    talk.put(ask, key, 600)
    talk.put(ask, key, 700)
    assert UNSURE not in talk.put(answer, key, 800, "answered").notes


def test_after_a_lost_answer_all_answers_to_an_id_are_unsure() -> None:
    talk = Talk("queue")
    talk.put(REQUESTS, [1], 100)
    talk.gap("lost", 1, 150)
    for time in range(200, 900, 100):
        talk.put(REQUESTS, [1], time)
        assert UNSURE in talk.put(RESPONSES, [1], time + 50, "answered").notes


@pytest.mark.parametrize(("ask", "answer", "key"), [(REQUEST, RESPONSE, 1), (REQUESTS, RESPONSES, [1])])
def test_after_a_lost_answer_the_last_request_of_an_id_is_not_unanswered(ask: int, answer: int, key: Any) -> None:
    talk = Talk("queue")
    talk.put(ask, key, 100)
    for time in (200, 300, 400):
        talk.put(ask, key, time)
        if time == 200:
            talk.gap("lost", 1, 210)
        talk.put(answer, key, time + 50, "answered")
    assert talk.close() == [("unanswered", "bytes lost", None)]


def test_a_request_that_follows_the_answer_leaves_no_doubt() -> None:
    talk = Talk("queue")
    first = talk.put(REQUEST, 1, 100)
    talk.gap("lost", 1, 150)
    talk.order += 10
    talk.put(REQUEST, 1, 400)
    talk.order -= 10
    response = talk.put(RESPONSE, 1, 200, "answered")
    assert talk.request_of(response) is first
    assert UNSURE not in response.notes


@pytest.mark.parametrize(("ask", "answer", "key"), [(REQUEST, RESPONSE, 1), (REQUESTS, RESPONSES, [1])])
@pytest.mark.parametrize("lost", [(), (0,), (1,), (1, 0), (0, 1)])
def test_an_answer_and_a_later_request_of_its_id_may_both_be_lost(ask: int, answer: int, key: Any, lost: tuple[int, ...]) -> None:
    talk = Talk("queue")
    request = talk.put(ask, key, 100)
    for side in lost:
        talk.gap("lost", side, 150)
    later = talk.put(ask, [2] if answer == RESPONSES else 2, 200)
    response = talk.put(answer, key, 300, "answered")
    assert talk.request_of(response) is request
    assert (STALE in response.notes) == (len(lost) == 2)
    sure = talk.put(answer, [2] if answer == RESPONSES else 2, 400, "answered")
    assert talk.request_of(sure) is later
    assert not sure.notes
    assert not talk.pairer.open and (talk.pairer.doubt is None or not talk.pairer.doubt.stale)


def test_ids_that_never_repeat_leave_no_doubt() -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    talk.gap("lost", 0, 150)
    talk.gap("lost", 1, 150)
    assert not talk.put(RESPONSE, 1, 300, "answered").notes


def test_requests_under_suspicion_go_at_the_limit_like_others() -> None:
    talk = Talk("queue", limit=2)
    talk.put(REQUESTS, [1, 2, 3], 100)
    talk.gap("lost", 0, 150)
    talk.gap("lost", 1, 150)
    for key in range(4, 7):
        talk.put(REQUESTS, [key], 200)
    assert [(one.outcome, one.reason) for one in talk.said] == [("unanswered", "limit"), ("unanswered", "limit")]
    assert sorted(talk.pairer.open) == [5, 6]  # type: ignore[type-var]
    assert talk.pairer.doubt is None or not talk.pairer.doubt.stale


@pytest.mark.parametrize("again", [False, True])
def test_an_id_that_replaces_one_may_be_lost_with_the_answer_before_where_ids_are_used_again(again: bool) -> None:
    talk = Talk()
    talk.put(REQUEST, 1, 100)
    if again:
        talk.put(REQUEST, 1, 200)
    talk.put(REQUEST, 2, 300)
    talk.gap("lost", 0, 400)
    talk.gap("lost", 1, 400)
    response = talk.put(RESPONSE, 2, 500, "answered")
    assert (STALE in response.notes) == again
    asked = talk.put(REQUEST, 1, 600)
    response = talk.put(RESPONSE, 1, 700, "answered")
    assert talk.request_of(response) is asked
    assert not response.notes
    assert talk.close() == [("superseded", None, None)] * (2 if again else 1)
    assert not talk.pairer.open


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_what_may_be_answered_is_unsure_where_bytes_were_lost(lost: int | None) -> None:
    talk = Talk("queue")
    talk.gap("lost", 0, 50)
    talk.put(OPTIONAL_RESPONSE, 1, 100)
    if lost is not None:
        talk.gap("lost", lost, 150)
    response = talk.put(RESPONSE, 1, 300, "refused")
    assert (UNSURE in response.notes) == (lost is not None)


def test_the_oldest_request_goes_at_the_limit() -> None:
    talk = Talk(limit=2)
    for key in range(3):
        talk.put(REQUEST, key, 100 + key)
    assert [(one.outcome, one.reason) for one in talk.said] == [("unanswered", "limit")]
    assert talk.put(RESPONSE, 0, 200, "answered").latency_ns is None
    assert talk.put(RESPONSE, 1, 200, "answered").latency_ns == 99


def test_the_limit_counts_requests_and_not_their_keys() -> None:
    talk = Talk("queue", limit=2)
    talk.put(REQUESTS, list(range(20)), 100)
    talk.put(REQUESTS, list(range(20, 40)), 110)
    assert not talk.said
    talk.put(RESPONSES, list(range(5)), 120, "answered")
    talk.put(REQUESTS, [40, 41], 130)
    assert [(one.outcome, one.reason) for one in talk.said] == [("unanswered", "limit")]
    assert talk.pairer.limit_hits == 1
    assert sorted(talk.pairer.open) == list(range(20, 42))  # type: ignore[type-var]
    assert talk.put(RESPONSES, list(range(20, 42)), 140, "answered").latency_ns == 30
    assert talk.close() == [("unanswered", "limit", None)]
    assert talk.pairer._spare == 0


def test_one_response_answers_many_and_names_the_oldest() -> None:
    talk = Talk("queue", every=True)
    first = talk.put(REQUESTS, [1, 2], 100)
    talk.put(REQUESTS, [3], 150)
    response = talk.put(RESPONSES, [3, 1], 200, "answered")
    assert talk.request_of(response) is first
    assert response.latency_ns == 100
    talk.put(RESPONSES, [2], 260, "refused")
    assert talk.close() == [("answered", None, 50), ("refused", None, 160)]


def test_a_request_answered_in_part_is_unanswered() -> None:
    talk = Talk("queue")
    talk.put(REQUESTS, [1, 2], 100)
    talk.put(RESPONSES, [1], 200, "answered")
    assert talk.close() == [("unanswered", "closed", None)]


def test_parts_of_an_answer_leave_the_request_open() -> None:
    talk = Talk(every=True)
    request = talk.put(REQUEST, 1, 100)
    assert talk.request_of(talk.put(PARTIAL_RESPONSE, 1, 150, "answered")) is request
    assert talk.request_of(talk.put(RESPONSE, 1, 250, "answered")) is request
    assert talk.close() == [("answered", None, 150)]


@pytest.mark.parametrize("every", [False, True])
def test_a_request_of_which_parts_were_answered_is_not_unanswered(every: bool) -> None:
    talk = Talk(every=every)
    for key in (1, 2, 3):
        talk.put(REQUEST, key, 100)
    talk.put(PARTIAL_RESPONSE, 1, 150, "answered")
    talk.put(PARTIAL_RESPONSE, 1, 180, "answered")
    talk.put(PARTIAL_RESPONSE, 2, 190, "answered")
    assert talk.pairer.weight() == 5
    assert talk.pairer.expire(10_000, 9)[0].record.request == 0  # type: ignore[union-attr]
    # the same id again: the older one has its answer
    talk.put(REQUEST, 2, 200)
    answered = [("answered", None, 90), ("answered", None, 80)]
    assert talk.close() == [*(answered if every else []), ("unanswered", "closed", None)]
    assert not talk.pairer.partial


def test_a_limit_ends_a_request_of_which_parts_were_answered_without_a_word() -> None:
    talk = Talk(limit=2)
    talk.put(REQUEST, 1, 100)
    talk.put(PARTIAL_RESPONSE, 1, 150, "answered")
    talk.put(REQUEST, 2, 100)
    talk.put(REQUEST, 3, 100)
    assert talk.said == []
    assert not talk.pairer.partial
    talk.put(REQUEST, 4, 100)
    assert talk.close() == [("unanswered", "limit", None), *[("unanswered", "closed", None)] * 2]


def test_what_may_be_answered_is_never_missed() -> None:
    talk = Talk()
    talk.put(OPTIONAL_RESPONSE, 1, 100)
    newer = talk.put(OPTIONAL_RESPONSE, 1, 200)
    assert talk.request_of(talk.put(RESPONSE, 1, 300, "refused")) is newer
    talk.put(OPTIONAL_RESPONSE, 1, 400)
    assert talk.close() == []


def test_a_response_handed_on_before_its_request_was_certain() -> None:
    talk = Talk("queue")
    response = talk.put(RESPONSE, 1, 300, "refused")
    talk.put(REQUEST, 1, 100)
    assert response.outcome is None
    assert talk.close() == [("refused", None, 200)]
    assert talk.links[-1][2] is response


def test_an_older_response_is_not_that_of_a_request_that_uses_its_id_again() -> None:
    talk = Talk("queue")
    talk.put(RESPONSE, 1, 100, "answered")
    talk.put(REQUEST, 1, 200)
    assert talk.close() == [("unanswered", "closed", None)]


def test_a_response_captured_at_the_very_time_of_its_request_is_no_older_one() -> None:
    talk = Talk("queue")
    talk.put(RESPONSE, 1, 100, "answered")
    talk.put(REQUEST, 1, 100)
    assert talk.close() == [("answered", None, 0)]


def test_a_swapped_pair_is_a_pair_where_ids_never_repeat() -> None:
    talk = Talk()
    talk.put(RESPONSE, 1, 100, "answered")
    talk.put(REQUEST, 1, 130)
    assert talk.close() == [("answered", None, -30)]


def test_a_swapped_pair_is_a_pair_where_nothing_is_missing() -> None:
    talk = Talk("queue", whole=True)
    talk.put(RESPONSE, 1, 100, "answered")
    talk.put(REQUEST, 1, 130)
    talk.gap("lost", 0, 140)
    talk.put(RESPONSE, 1, 150, "answered")
    talk.put(REQUEST, 1, 160)
    assert talk.close() == [("answered", None, -30), ("unanswered", "closed", None)]


def test_several_responses_to_one_id_that_come_before_their_requests() -> None:
    talk = Talk("queue", whole=True)
    for time in (150, 250):
        talk.put(RESPONSE, 1, time, "answered")
    talk.put(REQUEST, 1, 100)
    talk.put(REQUEST, 1, 200)
    third = talk.put(REQUEST, 1, 300)
    assert talk.request_of(talk.put(RESPONSE, 1, 350, "answered")) is third
    assert talk.close() == [("answered", None, 50), ("answered", None, 50)]


def test_behind_several_of_them_and_lost_requests_the_next_pairs_are_unsure() -> None:
    talk = Talk("queue", whole=True)
    for time in (150, 250, 350):
        talk.put(RESPONSE, 1, time, "answered")
    talk.gap("lost", 0, 160)
    talk.put(REQUEST, 1, 200)
    talk.put(REQUEST, 1, 300)
    fourth, fifth = talk.put(REQUEST, 1, 400), talk.put(REQUEST, 1, 500)
    response = talk.put(RESPONSE, 1, 450, "answered")
    assert talk.request_of(response) is fourth
    assert UNSURE in response.notes
    assert talk.request_of(talk.put(RESPONSE, 1, 550, "answered")) is fifth
    assert talk.close() == [("answered", None, 50), ("answered", None, 50)]


def test_confirms_handed_on_before_their_publish() -> None:
    talk = Talk("queue")
    talk.put(RESPONSES, [1, 2], 300, "answered")
    talk.put(REQUESTS, [1, 2, 3], 100)
    talk.put(RESPONSES, [3], 400, "answered")
    talk.put(REQUESTS, [4], 500)
    assert talk.close() == [("unanswered", "closed", None)]


def test_responses_without_requests_are_not_kept_without_end() -> None:
    talk = Talk()
    for key in range(MAX_EARLY + 10):
        talk.put(RESPONSE, key, 100, "answered")
    assert len(talk.pairer.early) == MAX_EARLY
    for reuse, kept in (("queue", MAX_EARLY_PER_KEY), ("supersede", 1)):
        talk = Talk(reuse)
        for _ in range(MAX_EARLY_PER_KEY + 10):
            talk.put(RESPONSE, 1, 100, "answered")
        assert talk.pairer.weight() == kept
        assert len(talk.pairer.orders()) == kept
        talk.pairer.drop(END, 0)
        assert not talk.pairer.early


def test_messages_that_need_no_answer_leave_nothing() -> None:
    talk = Talk()
    talk.put(NONE, None, 100)
    assert talk.close() == []
    assert not talk.pairer.open


def test_requests_end_with_the_packet_that_failed_but_for_its_own() -> None:
    talk = Talk(every=True)
    first, second = talk.put(REQUEST, 1, 100), talk.put(REQUEST, 2, 200)
    talk.pairer.out = HANDED_ON
    made = [talk.made(RESPONSE, 1, 300, "refused"), talk.made(REQUEST, 3, 300)]
    talk.pairer.process(made)
    ended = talk.pairer.fail(made)
    assert [(talk.request_of(one.record), one.record.outcome, one.record.reason) for one in ended] == [
        (first, "unanswered", "internal error"),
        (second, "unanswered", "internal error"),
    ]
    assert [record for record, _, _ in talk.links] == [one.record for one in ended]
    assert not talk.pairer.open


def test_requests_that_the_failed_packet_answered_end_in_the_order_in_which_they_were_made() -> None:
    talk = Talk()
    asked = [talk.put(REQUEST, 1, 100), talk.put(REQUEST, 2, 200), talk.put(REQUEST, 3, 300)]
    # Of several files each counts its own packets
    for request, number in zip(asked, (7, 2, 5), strict=True):
        request.packets = number, number
    made = [talk.made(RESPONSE, 2, 400, "answered"), talk.made(RESPONSE, 1, 400, "answered")]
    talk.pairer.process(made)
    assert [talk.request_of(one.record) for one in talk.pairer.fail(made)] == asked


def test_an_answer_that_cannot_be_taken_leaves_its_request_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for reuse in ("queue", "supersede"):
        talk = Talk(reuse)
        asked = [talk.put(REQUEST, 1, 100), talk.put(REQUEST, 1, 200)][0 if reuse == "queue" else 1 :]
        talk.pairer.out = HANDED_ON
        made = [talk.made(RESPONSE, 1, 300, "answered")]
        with monkeypatch.context() as patch:
            plant(patch, Pairer, "_link", lambda *_: True)
            with pytest.raises(Planted):
                talk.pairer.process(made)
        assert [talk.request_of(one.record) for one in talk.pairer.fail(made)] == asked


def test_a_large_request_that_waits_keeps_its_numbers_and_short_texts() -> None:
    talk = Talk()
    request = talk.put(REQUEST, 1, 100)
    request.fields = {"count": 3, "share": 0.5, "none": None, "name": "orders", "text": "x" * (MAX_TEXT + 1), "items": [1, 2]}
    talk.pairer.compact(talk.pairer.open[1])
    (kept,) = talk.pairer.remembered()
    assert kept.fields == {"count": 3, "share": 0.5, "none": None, "name": "orders"}
