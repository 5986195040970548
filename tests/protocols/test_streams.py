"""Which stream messages speak of that name a publisher or a subscription only, and what tells it no more."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

import streamdump
from streamdump.detect import BY_NAME
from streamdump.model import Exchange, Message, Options
from streamdump.protocols.parser import Parser
from streamdump.protocols.streams import KEPT, LONGEST, DeclaredStreams

CAPTURES = Path(__file__).parents[2] / "captures" / "golden"
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


def streams(*said: tuple[int, bytes]) -> list[str | None]:
    """The streams of these frames of an open connection, by side."""
    parser = Parser(BY_NAME["rabbitmq-stream"], Options())
    parser.dissector.lost(CLIENT)
    at = [0, 0]
    found: list[str | None] = []
    for side, data in said:
        (record,) = parser.feed(side, at[side], data)
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


def test_an_answer_to_a_declaration_that_was_lost_makes_all_of_its_kind_unsure() -> None:
    known = (CLIENT, declare(5, 1, "a")), (SERVER, answer(1, 5)), (CLIENT, subscribe(6, 1, "s"))
    assert streams(*known, (SERVER, answer(1, 9)), (CLIENT, publish(1)), (CLIENT, credit(1)))[-2:] == [None, "s"]
    assert streams(*known, (SERVER, answer(1, 9, REFUSED)), (CLIENT, publish(1)))[-1] == "a", "nothing was declared"


def test_nothing_is_kept_without_a_limit() -> None:
    declared = DeclaredStreams()
    for number in range(3 * KEPT):
        declared.ask(number, (PUBLISHER, number), "s", True)
    assert len(declared.asked) == len(declared.named) == KEPT
    declared.ask(-1, (PUBLISHER, -1), "s" * (LONGEST + 1), True)
    assert (PUBLISHER, -1) not in declared.named


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
