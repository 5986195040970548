"""Apache Iggy where a capture lacks something: no pair is wrong without a note, nothing is said that the whole capture does not say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Exchange, Message
from tests.support.rewrite import Packet, capture, packets, tcp_offset

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "iggy"
REPORTS = GOLDEN.parents[1] / "samples" / "reports"

Place = tuple[int, str, int, int]
"""A frame, in whatever is left of a capture: the packet of the whole one that ended it, its sender, its size, and how many of the same
size followed in that packet."""

Numbered = list[tuple[int, Packet]]
"""Packets with their numbers in the whole capture."""

Damage = Callable[[Numbered], Iterator[Numbered]]

CLASSIC = ("py080-errors", "node080-hb")
LONG = ("py090d5-errors", "node0100e1-nosession", "node0100e1-errs", "py090-rejected")
"""By framing; all of the latter have evictions."""

PIPELINED = "seed-pipelined"
"""It has several frames in a packet, which cannot be told in what is left of that."""


class Answer(NamedTuple):
    request: Place | None
    name: str
    doubted: bool


class Said(NamedTuple):
    """What is said of a capture: its answers, the requests, and of these the ones that are reported as unanswered."""

    answers: dict[Place, Answer]
    requests: set[Place]
    unanswered: set[Place]


def said_of(found: Numbered) -> Said:
    records = list(Inspector([open_capture(capture([packet for _, packet in found]))]).records())
    groups: dict[tuple[int, str, int], list[Message]] = {}
    for one in records:
        if isinstance(one, Message):
            groups.setdefault((found[one.packets[1] - 1][0], one.src, one.size), []).append(one)
    places = {one.number: (*group, back) for group, ones in groups.items() for back, one in enumerate(reversed(ones))}
    said = [one for ones in groups.values() for one in ones]
    return Said(
        {
            places[one.number]: Answer(
                None if one.request is None else places[one.request],
                one.name,
                any(word in note for note in one.notes for word in ("unsure", "answers request", "evicts another")),
            )
            for one in said
            if one.kind == "response"
        },
        {places[one.number] for one in said if one.kind == "request"},
        {places[one.request] for one in records if isinstance(one, Exchange) and one.response is None and one.request is not None},
    )


@cache
def whole(name: str) -> tuple[tuple[tuple[int, Packet], ...], Said]:
    found = list(enumerate(packets(GOLDEN / f"{name}.pcap")))
    return tuple(found), said_of(found)


def lost(found: Numbered) -> Iterator[Numbered]:
    for at in range(len(found)):
        yield found[:at] + found[at + 1 :]


def swapped(found: Numbered) -> Iterator[Numbered]:
    for at in range(len(found) - 1):
        (number, one), (after, other) = found[at : at + 2]
        both = [(after, other._replace(time_ns=one.time_ns)), (number, one._replace(time_ns=other.time_ns))]
        yield found[:at] + both + found[at + 2 :]


def cut(found: Numbered, *sizes: int) -> Iterator[Numbered]:
    for size in sizes or (90, 120, 180, 320):
        yield [(number, one._replace(raw=one.raw[:size])) for number, one in found]


def middle(found: Numbered) -> Iterator[Numbered]:
    for at in range(3, len(found), 4):
        yield found[at:]


def middle_and_lost(found: Numbered) -> Iterator[Numbered]:
    for at in range(3, len(found), 8):
        for gone in range(at, min(at + 4, len(found))):
            yield found[at:gone] + found[gone + 1 :]


def middle_and_cut(found: Numbered) -> Iterator[Numbered]:
    for left in middle(found):
        yield from cut(left, 120)


def many_lost(found: Numbered) -> Iterator[Numbered]:
    rng = random.Random(12)
    for _ in range(8):
        yield [one for one in found if rng.random() >= 0.08]


def wrong(name: str, left: Numbered) -> list[tuple[Place, Answer]]:
    """Answers that name another request than in the whole capture, or another command, and do not say that this is unsure."""
    known = whole(name)[1].answers
    found = [(place, answer, known[place]) for place, answer in said_of(left).answers.items() if place in known and not answer.doubted]
    return [
        (place, answer)
        for place, answer, truth in found
        if answer.request not in (None, truth.request) or answer.name not in ("unknown", truth.name)
    ]


def without_answer(name: str, left: Numbered) -> list[Place]:
    """Requests that are reported as unanswered although their answers were captured."""
    known, said = whole(name)[1], said_of(left)
    return [truth.request for place, truth in known.answers.items() if place in said.answers and truth.request in said.unanswered]


DAMAGES: tuple[Damage, ...] = (lost, swapped, many_lost, cut, middle, middle_and_lost, middle_and_cut)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in (*CLASSIC, *LONG) for damage in DAMAGES),
        *((PIPELINED, damage) for damage in (lost, swapped, many_lost, middle)),
    ],
)
def test_no_pair_is_wrong_that_does_not_say_so(name: str, damage: Damage) -> None:
    for left in damage(list(whole(name)[0])):
        assert wrong(name, left) == [], [number for number, _ in left]


@pytest.mark.parametrize("damage", [lost, swapped, cut, middle])
@pytest.mark.parametrize("name", LONG)
def test_behind_a_header_that_echoes_every_request_finds_its_answer(name: str, damage: Damage) -> None:
    """Evictions echo no more than the client, and some of them not even that."""
    for left in damage(list(whole(name)[0])):
        assert without_answer(name, left) == [], [number for number, _ in left]


@pytest.mark.parametrize("damage", [cut, middle_and_cut])
@pytest.mark.parametrize("name", [*CLASSIC, "py080-basic"])
def test_an_answer_that_was_cut_is_one(name: str, damage: Damage) -> None:
    for left in damage(list(whole(name)[0])):
        assert without_answer(name, left) == [], [number for number, _ in left]


@pytest.mark.parametrize("name", ["py090d5-errors", "node0100e4-hb", "py080-basic"])
def test_without_its_beginning_and_the_first_request_a_conversation_loses_one_pair(name: str) -> None:
    found = list(whole(name)[0])
    left = [one for one in found if not flags_of(one[1]) & 2]
    first = next(at for at, one in enumerate(left) if flags_of(one[1]) & 8)
    said = said_of(left[:first] + left[first + 1 :])
    assert [answer.request is None for answer in said.answers.values()].count(True) == 1
    assert said.unanswered == set()


def flags_of(packet: Packet) -> int:
    at = tcp_offset(packet)
    assert at is not None
    return packet.raw[at + 13]


def test_behind_a_loss_the_latest_request_is_answered_where_the_client_keeps_one_in_flight() -> None:
    """The answers to nine requests are lost, and the end of a tenth, which is answered first; the next answer is to one that is lost."""
    said = list(Inspector([open_capture(REPORTS / "iggy-lockstep-half-lost.pcap")]).records())
    asked = {one.number: one for one in said if isinstance(one, Message) and one.kind == "request"}
    answers = [one for one in said if isinstance(one, Message) and one.kind == "response" and one.position >= 1_188]
    first, *others = answers
    assert (first.position, first.name, asked[first.request or 0].position, first.latency_ns) == (1_188, "send_messages", 6_028, None)
    assert first.notes == [
        "the pairing is unsure: frames were missed before",
        "the end of its request was not captured: answered after at most 1 ms",
    ]
    assert [(one.name, one.request) for one in others] == [("unknown", None)] * 20
