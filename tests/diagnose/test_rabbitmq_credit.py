"""Credit of RabbitMQ Streams, in chunks and in bytes: frames written by hand, beside what is said of them.

No released server or client sends Subscribe and Credit of version 2, so the frames follow their proposal.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from streamdump.credit import STALLS, SUBSCRIPTIONS, SubscriptionRow
from streamdump.model import Finding, Message
from streamdump.protocols.protocol import STALL_NS
from streamdump.protocols.rabbitmq import layouts as rabbit
from streamdump.stats import Stats
from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, rules
from tests.render.records import message
from tests.support.frames import Packet, pcap

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"

NAME = "rabbitmq-stream."

CHUNKS, BYTES = 1, 2
"""The versions of Subscribe and Credit."""

SAC = (("single-active-consumer", "true"), ("name", "app"))

MEBIBYTE = 1 << 20

PRECONDITION = 0x11


def frame(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, version) + body


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def chunk(first: int, size: int) -> bytes:
    """A chunk of `size` bytes with one message, its header of 48 included."""
    body = struct.pack(">I", size - 52) + bytes(size - 52)
    return struct.pack(">BBHIqQQIIIB3x", 0x50, 0, 1, 1, 1_700_000_000_000, 1, first, zlib.crc32(body), len(body), 0, 0) + body


class Consumer(Connection):
    """A connection that is ready, and consumes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ready()
        self.first = 0

    def subscribe(
        self, version: int, credit: int, ident: int = 0, stream: str = "orders", properties: Any = (), code: int | None = 1
    ) -> Consumer:
        """`code`: of the response; None: there is none yet."""
        self.ident += 1
        pairs = struct.pack(">i", len(properties)) + b"".join(text(key) + text(value) for key, value in properties)
        amount = struct.pack(">I" if version == BYTES else ">H", credit)
        self.ask(frame(0x0007, version, struct.pack(">IB", self.ident, ident) + text(stream) + struct.pack(">H", 1) + amount + pairs))
        return self if code is None else self.answer(code)

    def answer(self, code: int = 1, key: int = 0x8007) -> Consumer:
        self.tell(frame(key, 1, struct.pack(">IH", self.ident, code)))
        return self

    def unsubscribe(self, ident: int = 0, answered: bool = True) -> Consumer:
        self.ident += 1
        self.ask(frame(0x000C, 1, struct.pack(">IB", self.ident, ident)))
        return self.answer(key=0x800C) if answered else self

    def credit(self, version: int, credit: int, ident: int = 0) -> Consumer:
        self.ask(frame(0x0009, version, struct.pack(">BI" if version == BYTES else ">Bh", ident, credit)))
        return self

    def refuse(self, ident: int = 0, code: int = PRECONDITION) -> Consumer:
        self.tell(frame(0x8009, 1, struct.pack(">HB", code, ident)))
        return self

    def deliver(self, size: int, ident: int = 0, version: int = 1, committed: int = 1_000) -> Consumer:
        """A chunk of `size` bytes."""
        head = struct.pack(">B", ident) + (struct.pack(">Q", committed) if version == 2 else b"")
        self.tell(frame(0x0008, version, head + chunk(self.first, size)))
        self.first += 1
        return self

    def activate(self, active: int = 1, ident: int = 0, number: int = 0) -> Consumer:
        """The server makes a single active consumer the active one, or no longer."""
        self.tell(frame(0x001A, 1, struct.pack(">IBB", number, ident, active)))
        self.ask(frame(0x801A, 1, struct.pack(">IHH", number, 1, 1 if active else 0)))
        return self

    def deleted(self, stream: str = "orders") -> Consumer:
        """The server ends what uses a stream."""
        self.tell(frame(0x0010, 1, struct.pack(">H", 6) + text(stream)))
        return self

    def states(self, most: int) -> Consumer:
        """The server states Credit up to a version."""
        self.ident += 1
        self.ask(frame(0x001B, 1, struct.pack(">IiHHH", self.ident, 1, 8, 1, 2)))
        self.tell(frame(0x801B, 1, struct.pack(">IHiHHH", self.ident, 1, 1, 9, 1, most)))
        return self

    def many(self, count: int) -> Consumer:
        """So many Credits in chunks, all refused."""
        self.ask(frame(0x0009, CHUNKS, struct.pack(">Bh", 0, 1)) * count)
        self.tell(frame(0x8009, 1, struct.pack(">HB", PRECONDITION, 0)) * count)
        return self

    def pause(self, ns: int) -> Consumer:
        self.wait(ns).client(rabbit.HEARTBEAT)
        return self


def findings(one: Connection) -> list[Finding]:
    return [each for each in diagnosed(capture(one))[0] if each.rule.startswith(NAME) and not each.rule.endswith("no-goodbye")]


def messages(one: Connection) -> list[Message]:
    return [each for each in diagnosed(capture(one))[2] if type(each) is Message]


def causes(one: Connection, rule: str) -> list[tuple[str, str]]:
    return [(each.severity, each.cause) for each in findings(one) if each.rule == NAME + rule]


STARVED = 'subscription 0 ("orders") has had no credit for 5 s when the capture ends: '

LATER = STARVED.replace("5 s", "5.002 s")

REFUSES = "RabbitMQ 4.0.5 refuses a Credit of "
WHOSE = ' for subscription 0 ("orders")'
TOO_MUCH = ": that is more than the 67,108,864 bytes that servers allow by default"
LOWER = " (precondition failed): the unit is right, so its limit for one Credit is probably lower than that"
THREE = (
    " (precondition failed): the consumer is not active, the Credit is not in the unit of the subscription, or it is more than the server "
    "allows"
)
OTHER_UNIT = ": the credit of this subscription is in "

STORIES: dict[str, tuple[Connection, str, list[tuple[str, str]]]] = {
    "bytes are left": (Consumer().subscribe(BYTES, 300).deliver(100).deliver(100).pause(5 * SECOND), "out-of-credit", []),
    "bytes are used up": (
        Consumer().subscribe(BYTES, 200).deliver(100).deliver(100).pause(5 * SECOND),
        "out-of-credit",
        [("warning", STARVED + "200 bytes were granted and 200 delivered")],
    ),
    "the last chunk is larger than what is left": (
        Consumer().subscribe(BYTES, 101).deliver(100).deliver(100).pause(5 * SECOND),
        "out-of-credit",
        [("warning", STARVED + "101 bytes were granted and 200 delivered")],
    ),
    "only the chunk counts in Deliver 2": (
        Consumer().subscribe(BYTES, 201).deliver(100, version=2).deliver(100, version=2).pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "as many chunks as bytes were granted are no reason": (
        Consumer().subscribe(BYTES, 1_000).deliver(60).deliver(60).credit(BYTES, 60).deliver(60).pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "chunks are used up, however small": (
        Consumer().subscribe(CHUNKS, 2).deliver(60).deliver(60).pause(5 * SECOND),
        "out-of-credit",
        [("warning", STARVED + "2 chunks were granted and 2 delivered")],
    ),
    "each chunk is granted again": (
        Consumer().subscribe(BYTES, 100).deliver(100).credit(BYTES, 100).deliver(100).credit(BYTES, 100).pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "Credit in chunks does not count for bytes": (
        Consumer().subscribe(BYTES, 100).deliver(100).credit(CHUNKS, 9).refuse().pause(5 * SECOND),
        "out-of-credit",
        [("warning", LATER + "100 bytes were granted and 100 delivered, and the server ignores Credit that is not in bytes")],
    ),
    "Credit in bytes does not count for chunks": (
        Consumer().subscribe(CHUNKS, 1).deliver(100).credit(BYTES, 9).refuse().pause(5 * SECOND),
        "out-of-credit",
        [("warning", LATER + "1 chunk was granted and 1 delivered, and the server ignores Credit that is not in chunks")],
    ),
    "a refused Credit does not count": (
        Consumer().subscribe(BYTES, 100).deliver(100).credit(BYTES, 65 * MEBIBYTE).refuse().pause(5 * SECOND),
        "out-of-credit",
        [("warning", LATER.replace("5.002", "5.001") + "100 bytes were granted and 100 delivered")],
    ),
    "a negative Credit": (
        Consumer().subscribe(CHUNKS, 9).deliver(100).credit(CHUNKS, -32768).pause(5 * SECOND),
        "out-of-credit",
        [
            (
                "warning",
                STARVED + "a Credit of -32,768 (32,768 without a sign) took it away, because servers read it as a signed number",
            )
        ],
    ),
    "a negative Credit that leaves some": (
        Consumer().subscribe(CHUNKS, 9).deliver(100).credit(CHUNKS, -7).pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "the wrong unit, chunks": (
        Consumer().subscribe(BYTES, 500).credit(CHUNKS, 1).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}1 chunk{WHOSE}{OTHER_UNIT}bytes")],
    ),
    "the wrong unit, bytes": (
        Consumer().subscribe(CHUNKS, 5).credit(BYTES, 70).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}70 bytes{WHOSE}{OTHER_UNIT}chunks")],
    ),
    "too many bytes": (
        Consumer().subscribe(BYTES, 500).credit(BYTES, 64 * MEBIBYTE + 1).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}67,108,865 bytes{WHOSE}{TOO_MUCH}")],
    ),
    "as many bytes as are allowed": (
        Consumer().subscribe(BYTES, 500).credit(BYTES, 64 * MEBIBYTE).refuse(),
        "credit-refused",
        [
            (
                "warning",
                f"{REFUSES}67,108,864 bytes{WHOSE}{LOWER}",
            )
        ],
    ),
    "too many chunks": (
        Consumer().subscribe(CHUNKS, 5).credit(CHUNKS, 201).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}201 chunks{WHOSE}: that is more than the 200 chunks that servers allow by default")],
    ),
    "many chunks are nothing wrong": (Consumer().subscribe(CHUNKS, 5).credit(CHUNKS, 32_767).deliver(100), "credit-refused", []),
    "the largest number": (
        Consumer().subscribe(BYTES, 500).credit(BYTES, 0xFFFF_FFFF).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}4,294,967,295 bytes{WHOSE}{TOO_MUCH}")],
    ),
    "not active": (Consumer().subscribe(BYTES, 500, properties=SAC).credit(BYTES, 70).refuse(), "credit-refused", []),
    "not active, with many chunks for an older server": (
        Consumer().subscribe(CHUNKS, 500, properties=SAC).credit(CHUNKS, 1_000).refuse(),
        "credit-refused",
        [],
    ),
    "no longer active": (
        Consumer().subscribe(BYTES, 500, properties=SAC).activate().deliver(99).activate(0, number=1).credit(BYTES, 99).refuse(),
        "credit-refused",
        [],
    ),
    "active, and too many bytes": (
        Consumer().subscribe(BYTES, 500, properties=SAC).activate().credit(BYTES, 65 * MEBIBYTE).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}68,157,440 bytes{WHOSE}{TOO_MUCH}")],
    ),
    "a Credit sent before its answer to ConsumerUpdate": (
        Consumer().subscribe(BYTES, 500, properties=SAC).credit(BYTES, 65 * MEBIBYTE).activate().refuse(),
        "credit-refused",
        [],
    ),
    "the wrong unit while not active": (
        Consumer().subscribe(BYTES, 500, properties=SAC).credit(CHUNKS, 1).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}1 chunk{WHOSE}{OTHER_UNIT}bytes")],
    ),
    "Credits in flight behind a refused one": (
        Consumer().subscribe(BYTES, 500).credit(CHUNKS, 1).credit(BYTES, 70).credit(BYTES, 80).refuse(),
        "credit-refused",
        [("warning", f"{REFUSES}1 chunk{WHOSE}{OTHER_UNIT}bytes")],
    ),
    "a subscription that was not captured": (
        Consumer().credit(CHUNKS, 1, 7).refuse(7),
        "credit-refused",
        [
            (
                "note",
                f"{REFUSES}1 chunk for subscription 7{THREE}",
            )
        ],
    ),
    "a subscription that was not captured, and too many bytes": (
        Consumer().credit(BYTES, 65 * MEBIBYTE, 7).refuse(7),
        "credit-refused",
        [("warning", f"{REFUSES}68,157,440 bytes for subscription 7{TOO_MUCH}")],
    ),
    "Subscribe with too many bytes": (
        Consumer().subscribe(BYTES, 65 * MEBIBYTE, code=PRECONDITION),
        "refused",
        [
            (
                "error",
                'Subscribe for the stream "orders" is refused: precondition failed, as its credit of 68,157,440 bytes is more than the '
                "67,108,864 that newer servers allow by default, so the client cannot consume from it",
            )
        ],
    ),
    "Subscribe without a name": (
        Consumer().subscribe(CHUNKS, 5, properties=SAC[:1], code=PRECONDITION),
        "refused",
        [
            (
                "error",
                'Subscribe for the stream "orders" is refused: precondition failed, as a single active consumer needs a name, '
                "so the client cannot consume from it",
            )
        ],
    ),
    "an id in use, with the other unit": (
        Consumer().subscribe(CHUNKS, 9).subscribe(BYTES, 50, code=3).deliver(60).pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "an id used again, with the other unit": (
        Consumer().subscribe(CHUNKS, 9).unsubscribe().subscribe(BYTES, 50).deliver(60).credit(BYTES, 60).deliver(60).pause(5 * SECOND),
        "credit-refused",
        [],
    ),
    "an id used again at once, with the other unit": (
        Consumer().subscribe(CHUNKS, 9).unsubscribe(answered=False).subscribe(BYTES, 50, code=None).credit(BYTES, 60),
        "credit-refused",
        [],
    ),
    "of two subscriptions the one without credit": (
        Consumer()
        .subscribe(CHUNKS, 9, 1, "bills")
        .subscribe(BYTES, 50)
        .deliver(100, 1)
        .deliver(100)
        .credit(BYTES, 900, 1)
        .refuse(1)
        .pause(5 * SECOND),
        "out-of-credit",
        [("warning", LATER + "50 bytes were granted and 100 delivered")],
    ),
    "chunks that were on their way when the id was used again": (
        Consumer()
        .subscribe(CHUNKS, 9)
        .unsubscribe(answered=False)
        .subscribe(BYTES, 150, code=None)
        .deliver(100)
        .deliver(100)
        .answer()
        .deliver(100)
        .pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "credit taken away, given back and used": (
        Consumer().subscribe(CHUNKS, 1).credit(CHUNKS, -3).credit(CHUNKS, 3).deliver(100).pause(5 * SECOND),
        "out-of-credit",
        [("warning", STARVED + "1 chunk was granted and 1 delivered")],
    ),
    "a stream that is deleted, and the id used again": (
        Consumer().subscribe(CHUNKS, 9).deleted().subscribe(BYTES, 150).credit(BYTES, 50).deliver(100).pause(5 * SECOND),
        "credit-refused",
        [],
    ),
    "refused, and asked for again in the other unit": (
        Consumer().subscribe(BYTES, 100, code=6).subscribe(CHUNKS, 2).credit(CHUNKS, 1).deliver(100).deliver(100).pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
    "a subscription that was not captured, and is not active": (
        Consumer().activate(0, 7).credit(BYTES, 1, 7).refuse(7),
        "credit-refused",
        [],
    ),
    "a subscription that was not captured, of a server without credit in bytes": (
        Consumer().states(1).credit(CHUNKS, 1, 7).refuse(7),
        "credit-refused",
        [],
    ),
    "a subscription that was not captured, of a server with credit in bytes": (
        Consumer().states(2).credit(CHUNKS, 1, 7).refuse(7),
        "credit-refused",
        [("note", f"{REFUSES}1 chunk for subscription 7{THREE}")],
    ),
    "many refused at once": (
        Consumer().subscribe(BYTES, 500).many(300),
        "credit-refused",
        [
            ("warning", f"{REFUSES}1 chunk{WHOSE}{OTHER_UNIT}bytes"),
            ("note", f"RabbitMQ 4.0.5 refuses a Credit{WHOSE}{THREE}"),
        ],
    ),
    "a slow consumer": (
        Consumer().subscribe(BYTES, 100).deliver(100).pause(3 * SECOND).credit(BYTES, 100).deliver(100).credit(BYTES, 100),
        "out-of-credit",
        [
            (
                "warning",
                'subscription 0 ("orders") was without credit for 3.001 s; the server delivers within 1 ms of each Credit, so the consumer '
                "is slow",
            )
        ],
    ),
    "two subscriptions, each with its unit": (
        Consumer()
        .subscribe(CHUNKS, 2)
        .subscribe(BYTES, 200, 1, "bills")
        .deliver(100)
        .deliver(100, 1)
        .credit(CHUNKS, 1)
        .credit(BYTES, 100, 1)
        .deliver(100, 1)
        .deliver(100)
        .pause(5 * SECOND),
        "out-of-credit",
        [],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_is_said_of_credit(name: str) -> None:
    one, rule, reported = STORIES[name]
    assert causes(one, rule) == reported


@pytest.mark.parametrize("name", STORIES)
def test_it_is_the_same_however_packets_come_in_batches(name: str) -> None:
    rules(STORIES[name][0])


def test_each_version_says_its_unit() -> None:
    one = Consumer().subscribe(BYTES, MEBIBYTE).credit(BYTES, 0x8000_0000).unsubscribe().subscribe(CHUNKS, 0xFFFF).credit(CHUNKS, -2)
    credits = [(each.name, each.fields["version"], each.fields["credit"]) for each in messages(one) if "credit" in each.fields]
    assert credits == [
        ("Subscribe", 2, 1_048_576),
        ("Credit", 2, 2_147_483_648),
        ("Subscribe", 1, 65_535),
        ("Credit", 1, -2),
    ]
    assert all(not each.notes and each.fault is None for each in messages(one))


def test_a_response_is_paired_with_the_credit_that_servers_refuse() -> None:
    """Not with the newest: the server refuses them in their order, and takes the others silently."""
    one = Consumer().subscribe(BYTES, 500).credit(CHUNKS, 1).credit(BYTES, 65 * MEBIBYTE).credit(BYTES, 70).refuse().refuse()
    credits = [each for each in messages(one) if each.name == "Credit"]
    assert [(each.fields["version"], bool(each.notes)) for each in credits[:3]] == [(1, True), (2, False), (2, False)]
    assert [(each.request, each.outcome) for each in credits[3:]] == [(each.number, "refused") for each in credits[:2]]


def test_a_subscription_that_is_gone_is_paired_with_the_newest_credit() -> None:
    one = Consumer().subscribe(BYTES, 500).credit(CHUNKS, 1).credit(BYTES, 70).refuse(code=4)
    *_, newest, response = messages(one)
    assert (response.request, response.outcome) == (newest.number, "refused")


@pytest.mark.parametrize("side", [0, 1])
def test_after_a_loss_nobody_knows_the_unit(side: int) -> None:
    """The lost bytes of the client may hold another Subscribe with this id."""
    one = Consumer().subscribe(CHUNKS, 500)
    one.next[side] += 40
    one.ask(frame(0x0017, 1, b"")).tell(frame(0x0017, 1, b""))
    one.credit(BYTES, 70).refuse().pause(5 * SECOND)
    if side == 0:
        assert not any("credit in bytes" in note for each in messages(one) for note in each.notes)
    assert [severity for severity, _ in causes(one, "credit-refused")] == ["note"]
    assert not causes(one, "out-of-credit")


def test_many_credits_that_older_servers_take_are_not_all_kept() -> None:
    one = Consumer().subscribe(CHUNKS, 500)
    for _ in range(100):
        one.credit(CHUNKS, 300)
    one.credit(CHUNKS, 1).refuse(code=4)
    *_, newest, response = messages(one)
    assert response.request == newest.number


def test_what_the_reports_say() -> None:
    reported = [each for each in diagnosed(REPORTS / "rmq_byte_credit.pcap")[0] if each.severity != "note"]
    assert [each.cause.partition(" refuses ")[2] for each in reported] == [
        'a Credit of 1 chunk for subscription 0 ("invoices"): the credit of this subscription is in bytes',
        f'a Credit of 70,000,000 bytes for subscription 0 ("invoices"){TOO_MUCH}',
    ]
    assert [each.messages for each in reported] == [[21, 22], [23, 24]]
    (starved,) = [each for each in diagnosed(REPORTS / "rmq_credit_negative.pcap")[0] if each.severity != "note"]
    assert starved.messages == [13, 14]
    assert "has had no credit for 3 min" in starved.cause
    assert "a Credit of -32,768 (32,768 without a sign) took it away" in starved.cause


def test_tune_answered_with_the_response_bit() -> None:
    findings, _, records = diagnosed(REPORTS / "rmq_tune_response_bit.pcap")
    asked, answer = [one for one in records if type(one) is Message and one.name == "Tune"]
    assert (answer.sender, answer.kind, answer.fields["key"], answer.request, answer.notes) == (
        "client",
        "response",
        0x8014,
        asked.number,
        [],
    )
    assert {one.severity for one in findings} == {"note"}


def outstanding(one: Connection) -> tuple[int, int]:
    """The credit in chunks and in bytes at the end."""
    stats = Stats(MS)
    stats.add(each for each in diagnosed(capture(one))[2] if type(each) is Message)
    last = stats.series()[-1]
    return last.credit, last.credit_bytes


@pytest.mark.parametrize(
    ("one", "chunks", "in_bytes"),
    [
        (Consumer().subscribe(CHUNKS, 9).subscribe(BYTES, 500, 1).deliver(100).deliver(100, 1), 8, 400),
        (Consumer().subscribe(CHUNKS, 9).subscribe(BYTES, 500, 1).credit(CHUNKS, 4, 1).credit(BYTES, 70, 0).pause(MS), 9, 500),
        (Consumer().subscribe(BYTES, 500, code=None).credit(BYTES, 70).answer(), 0, 570),
        (Consumer().subscribe(BYTES, 500).credit(BYTES, 65 * MEBIBYTE).refuse(), 0, 500),
        (Consumer().subscribe(BYTES, 500, code=PRECONDITION), 0, 0),
        (Consumer().subscribe(CHUNKS, 9).subscribe(BYTES, 500, code=3).pause(MS), 9, 0),
        (Consumer().subscribe(CHUNKS, 9).subscribe(BYTES, 500).pause(MS), 0, 500),
        (Consumer().subscribe(CHUNKS, 9).unsubscribe().subscribe(BYTES, 50).deliver(60), 0, 0),
        (Consumer().subscribe(CHUNKS, 9).subscribe(CHUNKS, 2, 1).credit(CHUNKS, -32768, 1), 9, 0),
        (Consumer().subscribe(BYTES, 0xFFFF_FFFF).credit(BYTES, 0xFFFF_FFFF), 0, 2 * 0xFFFF_FFFF),
    ],
)
def test_outstanding_credit_has_the_unit_of_the_subscription(one: Connection, chunks: int, in_bytes: int) -> None:
    assert outstanding(one) == (chunks, in_bytes)


def subscriptions(source: bytes) -> list[SubscriptionRow]:
    """The rows of statistics, where the capture ends with its last record."""
    stats, records = Stats(), diagnosed(source)[2]
    stats.add(one for one in records if type(one) is not Finding)
    return stats.subscriptions()


def stalls(row: SubscriptionRow) -> list[tuple[int, bool | None, bool]]:
    """In milliseconds; whether more waited, and whether a grant ended it."""
    assert row.stalls == len(row.listed)
    assert row.stalled_ns == sum(one.duration_ns for one in row.listed)
    assert row.longest_ns == max((one.duration_ns for one in row.listed), default=0)
    return [(one.duration_ns // MS, one.waiting, one.ended) for one in row.listed]


@pytest.mark.parametrize(
    ("one", "granted", "used", "outstanding", "expected"),
    [
        (Consumer().subscribe(CHUNKS, 9).deliver(100).pause(SECOND), 9, 1, 8, []),
        (Consumer().subscribe(CHUNKS, 1).deliver(100).wait(SECOND).credit(CHUNKS, 4), 5, 1, 4, [(1_000, None, True)]),
        (Consumer().subscribe(CHUNKS, 1).deliver(100).wait(99 * MS).credit(CHUNKS, 4), 5, 1, 4, []),
        (Consumer().subscribe(CHUNKS, 1).deliver(100, 0, 2).wait(SECOND).credit(CHUNKS, 1), 2, 1, 1, [(1_000, True, True)]),
        (Consumer().subscribe(CHUNKS, 1).deliver(100, 0, 2, 0).wait(SECOND).credit(CHUNKS, 1), 2, 1, 1, [(1_000, False, True)]),
        (Consumer().subscribe(CHUNKS, 0).wait(SECOND).credit(CHUNKS, 1), 1, 0, 1, [(1_000, None, True)]),
        (Consumer().subscribe(CHUNKS, 1).deliver(100).wait(SECOND).unsubscribe(), 1, 1, 0, [(1_000, None, False)]),
        (Consumer().subscribe(CHUNKS, 1).deliver(100).wait(SECOND).deleted().wait(SECOND).unsubscribe(), 1, 1, 0, [(1_000, None, False)]),
        (Consumer().subscribe(BYTES, 150).deliver(100).deliver(100).wait(SECOND).credit(BYTES, 100), 250, 200, 50, [(1_000, None, True)]),
        # Refused credit does not end a stall, whether in the other unit or as too much
        (Consumer().subscribe(BYTES, 90).deliver(100).wait(SECOND).credit(CHUNKS, 9).refuse().wait(SECOND).credit(BYTES, 60), 150, 100, 50,
         [(2_001, None, True)]),
        (Consumer().subscribe(BYTES, 90).deliver(100).wait(SECOND).credit(BYTES, 65 * MEBIBYTE).refuse().wait(SECOND).credit(BYTES, 60),
         150, 100, 50, [(2_001, None, True)]),
    ],
)  # fmt: skip
def test_statistics_have_the_credit_and_stalls_of_a_subscription(
    one: Consumer, granted: int, used: int, outstanding: int, expected: list[tuple[int, bool | None, bool]]
) -> None:
    (row,) = subscriptions(capture(one.goodbye()))
    assert (row.granted, row.used, row.outstanding, row.stream, row.complete) == (granted, used, outstanding, "orders", True)
    assert stalls(row) == expected


def test_a_single_active_consumer_that_is_not_the_active_one_has_no_stalls() -> None:
    one = Consumer().subscribe(CHUNKS, 0, properties=SAC).wait(SECOND).activate().wait(SECOND).credit(CHUNKS, 1).deliver(100)
    (row,) = subscriptions(capture(one.wait(SECOND).activate(0).wait(SECOND).goodbye()))
    assert [time for time, _, _ in stalls(row)] == [1_001, 1_000]
    # A server that does not know them delivers at once
    one = Consumer().subscribe(CHUNKS, 1, properties=SAC).deliver(100).wait(SECOND).credit(CHUNKS, 1).goodbye()
    assert len(stalls(subscriptions(capture(one))[0])) == 1


def test_a_refused_subscription_has_no_row() -> None:
    assert not subscriptions(capture(Consumer().subscribe(CHUNKS, 1, code=PRECONDITION).goodbye()))
    one = Consumer().subscribe(CHUNKS, 9).subscribe(CHUNKS, 2, stream="bills", code=3).goodbye()
    assert [row.stream for row in subscriptions(capture(one))] == ["orders"]


def test_a_loss_leaves_no_stall_that_a_lost_credit_may_have_ended() -> None:
    one = Consumer().subscribe(CHUNKS, 2).deliver(100).credit(CHUNKS, 1).deliver(100).deliver(100).wait(SECOND).credit(CHUNKS, 1).goodbye()
    (row,) = subscriptions(capture(one))
    assert stalls(row) == [(1_000, None, True)]
    lost = next(at for at, each in enumerate(one.packets) if frame(0x0009, 1, struct.pack(">Bh", 0, 1)) in each.data)
    (row,) = subscriptions(pcap([each for at, each in enumerate(one.packets) if at != lost]))
    assert (stalls(row), row.complete, row.outstanding) == ([], False, None)


def test_subscriptions_beyond_the_limits_are_counted() -> None:
    one = Consumer()
    for at in range(STALLS + 2):
        one = (one.subscribe(CHUNKS, 0) if not at else one).wait(STALL_NS).credit(CHUNKS, 1).deliver(100)
    (row,) = subscriptions(capture(one.goodbye()))
    assert (row.stalls, len(row.listed), row.stalled_ns) == (STALLS + 2, STALLS, (STALLS + 2) * STALL_NS)
    stats = Stats()
    fields = {"subscription_id": 0, "version": 1, "credit": 1}
    for at in range(SUBSCRIPTIONS + 3):
        stats.add([message(at + 1, conversation=at, name="Subscribe", fields=fields)])
    assert (len(stats.subscriptions()), stats.total([]).subscriptions_left_out) == (SUBSCRIPTIONS, 3)


def test_a_subscription_whose_properties_are_cut_may_be_a_single_active_consumer() -> None:
    """Nothing shows that the server refuses its Credit for a reason of its own."""
    one = Consumer().subscribe(BYTES, 300, properties=SAC).credit(BYTES, 112).refuse().goodbye()
    short = [Packet(each.data[:90], each.time_ns, len(each.data)) for each in one.packets]
    assert not [each for each in diagnosed(pcap(short))[0] if each.severity != "note"]


def test_what_is_read_late_behind_a_loss_belongs_to_the_subscription_before() -> None:
    """Its id is used again, and the client's bytes are complete before those of the server."""
    one = Consumer().subscribe(BYTES, 300).deliver(100).deliver(100).unsubscribe()
    one.first = 0
    one.subscribe(CHUNKS, 2, stream="bills").deliver(100).goodbye()
    for lost in range(len(one.packets)):
        packets = [each for at, each in enumerate(one.packets) if at != lost]
        found = diagnosed(pcap(packets))[0]
        assert not [each for each in found if each.rule == f"{NAME}offsets" and each.severity != "note"]
