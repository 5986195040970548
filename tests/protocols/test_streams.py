"""Which stream messages speak of that name a publisher or a subscription only, and what tells it no more."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

import streamdump
from streamdump.model import Exchange, Message, Options
from streamdump.protocols import BY_NAME
from streamdump.protocols.parser import Parser
from streamdump.protocols.streams import MAX_EARLY, MAX_NAME, MAX_REUSES, DeclaredStreams

CAPTURES = Path(__file__).parents[2] / "captures" / "golden"
REPORTS = CAPTURES.parent / "samples" / "reports"
CLIENT, SERVER = 0, 1
OK, REFUSED = 1, 2
PUBLISHER = "publisher_id"


def text(value: str) -> bytes:
    return pack(">h", len(value)) + value.encode()


def frame(key: int, body: bytes) -> bytes:
    return pack(">IHH", len(body) + 4, key, 1) + body


def declare(ident: int, publisher: int, stream: str) -> bytes:
    return frame(0x0001, pack(">IB", ident, publisher) + text("") + text(stream))


def publish(publisher: int) -> bytes:
    return frame(0x0002, pack(">BiQI", publisher, 1, 7, 1) + b"x")


def subscribe(ident: int, subscription: int, stream: str) -> bytes:
    return frame(0x0007, pack(">IB", ident, subscription) + text(stream) + pack(">HH", 1, 10))


def credit(subscription: int) -> bytes:
    return frame(0x0009, pack(">Bh", subscription, 1))


def answer(key: int, ident: int, code: int = OK) -> bytes:
    return frame(0x8000 | key, pack(">IH", ident, code))


def delete(ident: int, publisher: int) -> bytes:
    return frame(0x0006, pack(">IB", ident, publisher))


def unsubscribe(ident: int, subscription: int) -> bytes:
    return frame(0x000C, pack(">IB", ident, subscription))


def confirm(publisher: int) -> bytes:
    return frame(0x0003, pack(">BIQ", publisher, 1, 7))


def update(subscription: int) -> bytes:
    return frame(0x001A, pack(">IBB", 1, subscription, 1))


def streams(*said: tuple[int, bytes | None] | tuple[int, bytes, int]) -> list[str | None]:
    """The streams of these frames of an open connection, by side, with their packets where these are not in order; None: bytes are lost."""
    parser = Parser(BY_NAME["rabbitmq-stream"], Options())
    parser.dissector.on_gap(CLIENT)
    at = [0, 0]
    found: list[str | None] = []
    for index, (side, data, *packet) in enumerate(said):
        order = packet[0] if packet else index
        if data is None:
            parser.dissector.on_gap(side, order)
            continue
        (record,) = parser.feed(side, at[side], data, (order, order, 0, order))
        assert isinstance(record, Message)
        assert record.fault is None, record
        at[side] += len(data)
        found.append(record.stream)
    return found


def test_a_publisher_has_its_stream_from_its_declaration_on() -> None:
    assert streams((CLIENT, publish(1)), (CLIENT, declare(5, 1, "a")), (CLIENT, publish(1)), (CLIENT, publish(2))) == [None, "a", "a", None]


def test_one_that_was_refused_has_none_or_the_one_it_had() -> None:
    first = (CLIENT, declare(5, 1, "a")), (SERVER, answer(1, 5, REFUSED)), (CLIENT, publish(1))
    assert streams(*first) == ["a", None, None]
    again = (CLIENT, declare(5, 1, "a")), (SERVER, answer(1, 5)), (CLIENT, declare(6, 1, "b")), (SERVER, answer(1, 6, REFUSED))
    assert streams(*again, (CLIENT, publish(1)))[-1] == "a"


def test_an_id_that_is_given_again_has_the_new_stream() -> None:
    said = (CLIENT, declare(5, 1, "a")), (SERVER, answer(1, 5)), (CLIENT, declare(6, 1, "b")), (CLIENT, publish(1)), (SERVER, answer(1, 6))
    assert streams(*said, (CLIENT, publish(1)))[-3:] == ["b", None, "b"]


def test_what_is_on_the_way_is_of_the_subscription_that_was_there_before() -> None:
    said = (CLIENT, subscribe(5, 1, "a")), (CLIENT, credit(1)), (SERVER, answer(7, 5)), (CLIENT, subscribe(6, 1, "b")), (CLIENT, credit(1))
    assert streams(*said, (SERVER, answer(7, 6)), (CLIENT, credit(1))) == ["a", "a", None, "b", "a", None, "b"]


KNOWN = (CLIENT, declare(5, 1, "a")), (SERVER, answer(1, 5)), (CLIENT, subscribe(6, 1, "s"))
DELETED = (CLIENT, delete(7, 1)), (SERVER, answer(6, 7))
UPDATE = frame(0x0010, pack(">H", 6) + text("a"))


@pytest.mark.parametrize("free", [DELETED, DELETED[:1], DELETED[1:], ((SERVER, UPDATE),), ((SERVER, None),)])
def test_an_answer_to_a_declaration_that_was_lost_makes_those_unsure_that_may_be_gone(free: tuple[tuple[int, bytes | None], ...]) -> None:
    """Of ids in use the server accepts none again."""
    assert streams(*KNOWN, (SERVER, answer(1, 9)), (CLIENT, publish(1)), (CLIENT, credit(1)))[-2:] == ["a", "s"]
    assert streams(*KNOWN, *free, (SERVER, answer(1, 9)), (CLIENT, publish(1)), (CLIENT, credit(1)))[-2:] == [None, "s"]
    assert streams(*KNOWN, *free, (SERVER, answer(1, 9, REFUSED)), (CLIENT, publish(1)))[-1] == "a", "nothing was declared"
    assert streams(*KNOWN, *free, (SERVER, answer(1, 9)), (CLIENT, declare(8, 1, "b")), (CLIENT, publish(1)))[-1] == "b"


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        # (packet, side, frame), in the order in which they are read
        ([(2, SERVER, answer(1, 5)), (1, CLIENT, declare(5, 1, "a")), (3, CLIENT, publish(1))], [None, "a", "a"]),
        ([(2, SERVER, answer(7, 5)), (1, CLIENT, subscribe(5, 1, "a")), (3, CLIENT, credit(1))], [None, "a", "a"]),
        # Refused: the stream that it had
        (
            [
                (1, CLIENT, declare(5, 1, "a")),
                (2, SERVER, answer(1, 5)),
                (4, SERVER, answer(1, 6, REFUSED)),
                (3, CLIENT, declare(6, 1, "b")),
                (5, CLIENT, publish(1)),
            ],
            ["a", None, None, "b", "a"],
        ),
        # All answers are read before their requests; then what the server sent before another has the id
        (
            [
                (1, CLIENT, subscribe(5, 1, "a")),
                (2, SERVER, answer(7, 5)),
                (5, SERVER, answer(12, 6)),
                (8, SERVER, answer(7, 7)),
                (3, CLIENT, credit(1)),
                (4, CLIENT, unsubscribe(6, 1)),
                (6, CLIENT, credit(1)),
                (7, CLIENT, subscribe(7, 1, "b")),
                (9, CLIENT, credit(1)),
                (10, SERVER, update(1)),
            ],
            ["a", None, None, None, "a", "a", "a", "b", "b", "b"],
        ),
        # What the server sent earlier is read behind what the client declared later
        (
            [
                (1, CLIENT, declare(5, 1, "a")),
                (2, SERVER, answer(1, 5)),
                (6, CLIENT, delete(6, 1)),
                (8, CLIENT, declare(7, 1, "b")),
                (5, SERVER, confirm(1)),
                (7, SERVER, answer(6, 6)),
                (9, SERVER, answer(1, 7)),
                (10, SERVER, confirm(1)),
            ],
            ["a", None, "a", "b", "a", None, None, "b"],
        ),
    ],
)
def test_streams_are_those_of_the_packet_whatever_is_read_first(frames: list[tuple[int, int, bytes]], expected: list[str | None]) -> None:
    assert streams(*[(side, data, packet) for packet, side, data in frames]) == expected


def test_an_answer_that_names_what_was_declared_may_be_read_first() -> None:
    """As in mewbase, where the server gives out the number of a subscription."""
    declared = DeclaredStreams()
    declared.ask(1, None, "a", False, 1)
    declared.answer(1, None, 7, True, 2)
    declared.answer(2, None, 7, True, 6)
    declared.answer(3, None, 8, True, 8)
    assert [declared.at(number, order) for number, order in ((7, 2), (7, 5), (7, 6), (8, 9))] == ["a", "a", None, None]
    declared.ask(2, None, "b", False, 4)
    assert [declared.at(7, order) for order in (1, 2, 5, 6, 7)] == [None, "a", "a", "b", "b"]
    declared.ask(3, None, "c", False, 9)
    assert declared.at(8, 10) is None, "an older answer"


def test_nothing_is_kept_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    most, early = 96, 16
    monkeypatch.setattr("streamdump.protocols.streams.MAX_DECLARED", most)
    monkeypatch.setattr("streamdump.protocols.streams.MAX_EARLY", early)
    declared = DeclaredStreams()
    for number in range(3 * most):
        declared.ask(number, (PUBLISHER, number), "s", True, number)
    assert len(declared.asked) == len(declared.named) == most
    declared.ask(-1, (PUBLISHER, -1), "s" * (MAX_NAME + 1), True, 3 * most)
    assert declared.at((PUBLISHER, -1), 4 * most) is None
    for number in range(3 * most):
        declared.answer(-number - 2, PUBLISHER, None, True, 4 * most)
        declared.drop(4 * most)
        declared.ask(number, (PUBLISHER, 1), "s", True, 4 * most)
        declared.delete(number, (PUBLISHER, number), 4 * most)
        declared.at((PUBLISHER, number), 4 * most)
    assert len(declared.early) == len(declared.dropped) == early
    assert len(declared.named[PUBLISHER, 1]) == MAX_REUSES
    assert max(map(len, (declared.named, declared.asked, declared.freed, declared.known))) <= most


def test_what_an_answer_that_is_kept_no_longer_may_be_about_is_not_known() -> None:
    declared = DeclaredStreams()
    for number in (1, 2):
        declared.ask(number, (PUBLISHER, number), "s", True, number)
        declared.answer(number, PUBLISHER, None, True, number)
    declared.delete(3, (PUBLISHER, 1), 3)
    for number in range(MAX_EARLY + 1):
        declared.answer(number + 10, PUBLISHER, None, number == 0, number + 10)
    assert 10 not in declared.early
    assert [declared.at((PUBLISHER, number), 1_000) for number in (1, 2)] == [None, "s"]


@pytest.mark.parametrize(
    ("capture", "name", "found"),
    [
        ("rabbitmq-stream/publishers_310.pcap", "PublishConfirm", {"pubs"}),
        ("iggy/py081-admin.pcap", "create_topic", {"adm/log", "adm/plain"}),
        ("mewbase/java-sub.pcap", "RECEV", {"orders"}),
        ("mewbase/java-sub.pcap", "ACKEV", {"orders"}),
    ],
)
def test_captures(capture: str, name: str, found: set[str | None]) -> None:
    said = [one for one in streamdump.read(CAPTURES / capture) if isinstance(one, Message)]
    assert {one.stream for one in said if one.name == name} == found


def test_a_subscription_made_anew_behind_a_loss_has_the_new_stream() -> None:
    said = [one for one in streamdump.read(REPORTS / "rmq-stream-after-loss-lost.pcap") if isinstance(one, Message)]
    assert [(one.packets[1], one.name, one.stream) for one in said if one.packets[1] >= 14] == [
        (14, "Subscribe", "s3"),
        (15, "Subscribe", "s3"),
        (16, "Unsubscribe", "s3"),
        (17, "Unsubscribe", "s3"),
        (18, "Subscribe", "s4"),
        (19, "Subscribe", "s4"),
        (20, "Deliver", "s4"),
        (21, "Credit", "s4"),
        (22, "Deliver", "s4"),
        (23, "Credit", "s4"),
    ]


def test_a_confirm_has_the_stream_that_its_publisher_had_then() -> None:
    said = [one for one in streamdump.read(REPORTS / "rmq-confirm-stream-after-loss.pcap") if isinstance(one, Message)]
    found = [(one.packets[1], one.stream) for one in said if one.name == "PublishConfirm" and one.fields["publisher_id"] == 1]
    assert found[:9] == [(20, "s5"), (24, "s5"), *[(packet, "s5") for packet in (36, 46, 47, 50, 55, 61)], (81, "s0")]


def test_a_response_and_an_exchange_have_the_stream_of_their_request() -> None:
    records = list(streamdump.read(CAPTURES / "iggy/py081-admin.pcap", exchanges=True))
    by_number = {one.number: one for one in records}
    seen = 0
    for one in records:
        if isinstance(one, Message | Exchange) and one.request is not None:
            asked = by_number[one.request]
            assert isinstance(asked, Message) and one.stream == asked.stream
            seen += one.stream is not None
    assert seen
