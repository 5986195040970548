"""The user messages of captures: what they are, what became of them, and that little is kept for that."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdump
from streamdump import entries as module
from streamdump.capture.files import open_capture
from streamdump.entries import Entries, rendered
from streamdump.errors import CaptureError, FilterError
from streamdump.inspector import Inspector
from streamdump.model import Entry, Message, Options
from streamdump.protocols import BY_NAME
from streamdump.session import Session
from streamdump.tls.keys import KeyLog
from tests.bench.generate import Peer, chunk
from tests.protocols.test_iggy import ONE, POLL_L8, polled_l9, request, response
from tests.support import rewrite
from tests.support.captures import CAPTURES, GOLDEN, every_family
from tests.support.frames import Packet, pcap
from tests.support.secrets import CLIENT, SERVER, Lost, conversation

RABBITMQ = ((5552, "rabbitmq-stream", None),)


def entries_of(capture: str | Path, where: str | None = None, **options: Any) -> list[Entry]:
    path = capture if isinstance(capture, Path) else GOLDEN / capture
    try:
        return [*streamdump.read(path, where=where, entries=True, **{"bytes_as": "raw", **options})]
    except CaptureError:
        return []


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


def publish(first: int, bodies: Sequence[bytes], publisher: int = 1) -> bytes:
    data = b"".join(struct.pack(">QI", first + index, len(body)) + body for index, body in enumerate(bodies))
    return frame(2, struct.pack(">BI", publisher, len(bodies)) + data)


def confirm(ids: Iterable[int], publisher: int = 1) -> bytes:
    numbers = [*ids]
    return frame(3, struct.pack(f">BI{len(numbers)}Q", publisher, len(numbers), *numbers))


def refuse(ids: Iterable[int], code: int, publisher: int = 1) -> bytes:
    errors = [struct.pack(">QH", one, code) for one in ids]
    return frame(4, struct.pack(">BI", publisher, len(errors)) + b"".join(errors))


def made(sent: list[tuple[int, bytes]], **options: Any) -> list[Entry]:
    capture = io.BytesIO(pcap(conversation(sent, 5552)))
    return [*streamdump.read(capture, entries=True, bytes_as="raw", decode_as=RABBITMQ, **options)]


# What they are


def test_each_message_of_a_sub_batch_is_an_entry_with_the_fate_of_its_id() -> None:
    found = entries_of("rabbitmq-stream/js_subentries_436.pcap")
    published = [one for one in found if one.name == "Publish"]
    assert [one.body for one in published[:20]] == [b"sub entry number %d" % index for index in range(20)]
    assert {(one.message, one.compression, one.publishing_id, one.outcome, one.response) for one in published[:20]} == {
        (31, "gzip", 0, "confirmed", 32)
    }
    delivered = [one for one in found if one.name == "Deliver"]
    assert [one.offset for one in delivered] == [*range(25)]
    assert [one.body for one in delivered] == [one.body for one in published]
    assert {(one.consumer, one.outcome) for one in delivered} == {("subscription 0", "delivered")}


def test_the_sections_of_amqp_are_properties_and_a_body() -> None:
    first, *_ = entries_of("rabbitmq-stream/publish_amqp_sections_436.pcap")
    assert (first.body_type, first.body, first.id) == (
        "bytes",
        b'{"id": 0, "text": "echo india delta kilo foxtrot"}',
        {"type": "ulong", "value": 0},
    )
    assert {"section": "application-properties", "key": "region", "value": "eu-west-0"} in first.properties
    assert {"section": "properties", "key": "subject", "value": "subject 0"} in first.properties
    assert [one["section"] for one in first.properties].index("header") == 0


def test_values_of_amqp_are_bodies() -> None:
    value, data = b"\x00\x53\x77\xa1\x05hello", b"\x00\x53\x75\xa0\x02ab\x00\x53\x75\xa0\x01c"
    found = made([(CLIENT, publish(0, [value, data, b"\x00\x53\x77\x54\x07"])), (SERVER, confirm(range(3)))])
    assert [(one.body_type, one.body) for one in found] == [("amqp", "hello"), ("bytes", b"abc"), ("amqp", {"type": "int", "value": 7})]


def test_an_entry_of_iggy_has_a_partition_an_id_and_the_offset_that_the_response_names() -> None:
    found = entries_of("iggy/py090-basic.pcap")
    assert [(one.stream, one.partition, one.offset) for one in found[:6]] == [("orders/events", 0, n) for n in range(5)] + [
        ("orders/events", 1, 0)
    ]
    polled = [one for one in found if one.name == "poll_messages"]
    sent = {one.id: one.body for one in found if one.name == "send_messages"}
    assert polled and all(sent[one.id] == one.body for one in polled)
    assert {one.consumer for one in polled} == {"consumer 1"}


BASIC = sorted((GOLDEN / "iggy").glob("py*-basic.pcap"))
"""What one program sent and polled with each release of apache-iggy, in six layouts."""


@pytest.mark.parametrize("path", [path for path in BASIC if path.stem != "py091d5-basic"], ids=lambda path: path.stem)
def test_all_releases_of_a_client_sent_and_polled_the_same(path: Path) -> None:
    found = entries_of(path)
    sent, polled = ([one for one in found if one.name == name] for name in ("send_messages", "poll_messages"))
    orders = [f"order-{group}-{number}: total {10 * number}.99 EUR".replace(" 00.", " 0.") for group in range(4) for number in range(5)]
    assert [one.body for one in sent][:20] == [order.encode() for order in orders]
    assert [one.size for one in sent][20:] == [213, 70_000, 4]
    assert sent[20].body.startswith("żółć ✓ ".encode()) and (sent[21].body, sent[22].body) == (b"B" * 70_000, b"tail")
    stored: dict[int | None, list[bytes]] = {}
    for one in sent:
        stored.setdefault(one.partition, []).append(one.body)
    # Partitions count from 1 in old releases, for who sends and who polls alike
    assert len(polled) == 32
    assert all(stored[one.partition][one.offset or 0] == one.body for one in polled)


def test_a_client_in_javascript_got_what_it_sent() -> None:
    found = entries_of("rabbitmq-stream/js_publish_consume_405.pcap")
    assert [one.body for one in found] == [b"js %d" % number for number in range(25)] * 2
    assert [one.offset for one in found[25:]] == [*range(25)]


def test_keys_and_filter_values_are_keys() -> None:
    found = entries_of("rabbitmq-stream/filters_405.pcap", "name == Publish")
    assert {one.key for one in found} == {"apple", "banana", "cherry", "", None}
    keyed = [one.key for path in CAPTURES if path.parent.name == "iggy" for one in entries_of(path) if one.key is not None]
    assert keyed and all(isinstance(key, bytes) for key in keyed)


def test_events_of_mewbase_are_documents() -> None:
    first, second, *_ = entries_of("mewbase/java-sub.pcap")
    assert first.body == {"id": "o-0010", "sku": "milk", "qty": 10, "price": 12.5, "gift": True} == second.body
    assert (first.outcome, first.latency_ns, second.outcome, second.offset) == ("confirmed", 58_356_000, "delivered", 0)


def test_chunks_that_track_publishers_hold_no_user_messages() -> None:
    assert {one.name for one in entries_of("rabbitmq-stream/tracking_chunks_405.pcap", "not body")} == set()


@pytest.mark.sweep
@every_family(CAPTURES)
def test_there_are_as_many_as_messages_count(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(path.name):
            count = 0
            damaged = False
            with open_capture(path) as reader:
                inspector = Inspector([reader], Options(), finite=True)
                for one in inspector.records():
                    if type(one) is Message and BY_NAME[one.protocol].loaded.entries is not None:
                        chunk = one.fields.get("chunk", {})
                        counted = BY_NAME[one.protocol].loaded.traffic(one)  # type: ignore[misc]
                        if counted is not None and not chunk.get("chunk_type"):
                            count += counted.published + counted.delivered
                            damaged |= one.fault is not None or any("sub-batch" in note or "records" in note for note in one.notes)
            found = entries_of(path)
            assert (len(found) <= count) if damaged or inspector.errors else (len(found) == count)
            assert [one.number for one in found] == [*range(1, len(found) + 1)]
            assert [one.message for one in found] == sorted(one.message for one in found)


# What became of them


def test_one_response_may_confirm_several_messages_and_one_message_may_have_several_responses() -> None:
    found = made(
        [
            (CLIENT, publish(0, [b"a", b"b"])),
            (CLIENT, publish(2, [b"c", b"d"])),
            (SERVER, confirm([0, 2])),
            (SERVER, refuse([3], 0x12)),
            (SERVER, confirm([1])),
        ]
    )
    assert [(one.body, one.outcome, one.reason, one.response, one.latency_ns) for one in found] == [
        (b"a", "confirmed", None, 3, 2_000_000),
        (b"b", "confirmed", None, 5, 4_000_000),
        (b"c", "confirmed", None, 3, 1_000_000),
        (b"d", "refused", "publisher does not exist", 4, 2_000_000),
    ]


def test_what_is_not_answered_says_why() -> None:
    found = made([(CLIENT, publish(0, [b"a", b"b"])), (SERVER, confirm([1]))])
    assert [(one.body, one.outcome, one.reason) for one in found] == [(b"a", "unanswered", "capture ended"), (b"b", "confirmed", None)]


def test_a_response_captured_before_its_message_counts() -> None:
    found = made([(SERVER, confirm([0])), (CLIENT, publish(0, [b"a"]))])
    assert [(one.outcome, one.response) for one in found] == [("confirmed", 1)]


def test_the_engine_pairs_ids_that_are_used_again() -> None:
    found = made([(CLIENT, publish(0, [b"a"])), (CLIENT, publish(0, [b"b"])), (SERVER, confirm([0])), (SERVER, refuse([0], 0x12))])
    assert [(one.body, one.outcome) for one in found] == [(b"a", "confirmed"), (b"b", "refused")]


def test_the_server_drops_ids_that_it_has_of_a_reference() -> None:
    found = entries_of("rabbitmq-stream/publishers_310.pcap")
    assert [(one.publishing_id, one.body, one.outcome) for one in found] == [
        (10, b"m10", "confirmed"),
        (20, b"m20", "confirmed"),
        (30, b"m30", "confirmed"),
        (20, b"dup", "deduplicated"),
        (31, b"new", "confirmed"),
    ]


def test_without_a_reference_the_server_drops_nothing() -> None:
    found = made([(CLIENT, publish(5, [b"a"])), (SERVER, confirm([5])), (CLIENT, publish(5, [b"b"])), (SERVER, confirm([5]))])
    assert [one.outcome for one in found] == ["confirmed", "confirmed"]


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def declare(reference: str, number: int = 9) -> list[tuple[int, bytes]]:
    asked = frame(1, struct.pack(">IB", number, 1) + text(reference) + text("orders"))
    return [(CLIENT, asked), (SERVER, frame(0x8001, struct.pack(">IH", number, 1)))]


def test_what_was_refused_or_belongs_to_a_new_stream_is_not_dropped() -> None:
    again = [(CLIENT, publish(5, [b"x"])), (SERVER, confirm([5]))]
    create = [(CLIENT, frame(0x0D, struct.pack(">I", 7) + text("orders") + bytes(4))), (SERVER, frame(0x800D, struct.pack(">IH", 7, 1)))]
    refused = [(CLIENT, publish(5, [b"x"])), (SERVER, refuse([5], 0x12))]
    outcomes = [one.outcome for one in made([*declare("one"), *again, *again, *create, *again])]
    assert outcomes == ["confirmed", "deduplicated", "confirmed"]
    assert [one.outcome for one in made([*declare("one"), *refused, *again])] == ["refused", "confirmed"]
    ahead = [(CLIENT, publish(5, [b"x"])), *refused, (SERVER, confirm([5]))]
    assert [one.outcome for one in made([*declare("one"), *ahead])] == ["refused", "confirmed"]
    # The sequence of a reference is known from the response to a query, and holds for a publisher declared later
    query = [(CLIENT, frame(5, struct.pack(">I", 3) + text("one") + text("orders"))), (SERVER, frame(0x8005, struct.pack(">IHQ", 3, 1, 5)))]
    assert [one.outcome for one in made([*query, *declare("one"), *again])] == ["deduplicated"]
    assert [one.outcome for one in made([*query, *declare("two"), *again])] == ["confirmed"]


def test_what_waits_is_bounded_and_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MESSAGES", 3)
    sent = [(CLIENT, publish(index, [b"%d" % index])) for index in range(8)]
    sent += [(SERVER, confirm(range(1, 8)))]
    capture = io.BytesIO(pcap(conversation(sent, 5552)))
    inspector = Inspector([open_capture(capture)], Options(entries=True, bytes_as="raw", decode_as=RABBITMQ), finite=True)
    found = Entries(inspector.run.answers)
    shown = [one for batch in inspector.batches() for one in found.add(batch)] + [*found.finish()]
    assert [one.body for one in shown] == [b"%d" % index for index in range(8)]
    given_up = [one.body for one in shown if one.outcome == "pending"]
    assert given_up == [b"0"] == [one.body for one in shown if one.reason == "limit"]
    assert found.given_up == 1


def test_live_what_waits_too_long_is_shown_as_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    session = Session(Options(entries=True), KeyLog(()))
    found = Entries(session.run.answers, live=True)
    capture = io.BytesIO(pcap(conversation([(CLIENT, publish(0, [b"a", b"b"])), (CLIENT, publish(2, [b"c"]))], 5552)))
    messages = [*streamdump.read(capture, decode_as=RABBITMQ)][:2]
    assert [*found.add(messages[:1])] == []
    now = 101.9
    assert [*found.add(messages[1:])] == [*found.expire()] == []
    now = 102.1
    assert [(one.publishing_id, one.outcome, one.reason) for one in found.expire()] == [(0, "pending", "live"), (1, "pending", "live")]
    assert found.given_up == 1


@given(st.lists(st.integers(0, 30), max_size=80))
def test_an_offset_is_marked_if_its_consumer_got_it_before(offsets: list[int]) -> None:
    found = Entries(Session(Options(entries=True), KeyLog(())).run.answers)
    seen: set[int] = set()
    for offset in offsets:
        assert found._again("group", offset) == (offset in seen)
        seen.add(offset)
    ranges = found._offsets.get("group", [])
    assert ranges == sorted({*ranges})


def test_offsets_that_are_forgotten_are_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGES", 3)
    found = Entries(Session(Options(entries=True), KeyLog(())).run.answers)
    assert not any(found._again("group", offset) for offset in (0, 2, 4, 6, 8))
    assert [found._again("group", offset) for offset in (8, 6, 0)] == [True, True, False]


def test_a_poll_of_the_same_offsets_is_marked_for_its_consumer() -> None:
    found = entries_of("iggy/py090-basic.pcap", "outcome == redelivered")
    assert found and {one.name for one in found} == {"poll_messages"}
    first = {(one.partition, one.offset, one.consumer) for one in entries_of("iggy/py090-basic.pcap", "outcome == delivered")}
    assert {(one.partition, one.offset, one.consumer) for one in found} <= first


def subscribe(*properties: str, number: int = 4) -> bytes:
    pairs = struct.pack(">I", len(properties) // 2) + b"".join(map(text, properties))
    return frame(7, struct.pack(">IB", number, 5) + text("orders") + struct.pack(">HH", 1, 10) + pairs)


def test_consumers_of_a_name_are_one_if_one_of_them_is_active() -> None:
    deliver = (SERVER, frame(8, b"\x05" + chunk([b"a"], 7)))
    active = (CLIENT, subscribe("name", "billing", "single-active-consumer", "true"))
    named, plain = (CLIENT, subscribe("name", "billing")), (CLIENT, subscribe())
    for asks, consumer, outcomes in (
        (active, "billing", ["delivered", "redelivered"]),
        (named, "billing", ["delivered", "delivered"]),
        (plain, "subscription 5", ["delivered", "delivered"]),
    ):
        found = made([asks, deliver, asks, deliver])
        assert [(one.consumer, one.outcome) for one in found] == [(consumer, outcome) for outcome in outcomes]
    assert [one.outcome for one in made([plain, deliver, deliver])] == ["delivered", "redelivered"]


def test_offsets_of_a_stream_that_was_made_again_are_other_messages() -> None:
    consume = [(CLIENT, subscribe("name", "billing", "single-active-consumer", "true")), (SERVER, frame(8, b"\x05" + chunk([b"a"], 7)))]
    delete = [(CLIENT, frame(0x0E, struct.pack(">I", 7) + text("orders"))), (SERVER, frame(0x800E, struct.pack(">IH", 7, 1)))]
    changed = [(SERVER, frame(0x10, struct.pack(">H", 6) + text("orders")))]
    create = (CLIENT, frame(0x0D, struct.pack(">I", 8) + text("orders") + bytes(4)))
    created, exists = ([create, (SERVER, frame(0x800D, struct.pack(">IH", 8, code)))] for code in (1, 5))
    for between, outcome in ((delete, "delivered"), (changed, "delivered"), (created, "delivered"), (exists, "redelivered")):
        assert [one.outcome for one in made([*consume, *between, *consume])] == ["delivered", outcome]


def test_a_stream_of_another_virtual_host_is_another_stream() -> None:
    consume = [(CLIENT, subscribe("name", "billing", "single-active-consumer", "true")), (SERVER, frame(8, b"\x05" + chunk([b"a"], 7)))]
    for host, outcome in (("a", "redelivered"), ("b", "delivered")):
        packets = [
            one
            for port, name in ((40_000, "a"), (40_001, host))
            for one in conversation([(CLIENT, frame(0x15, struct.pack(">I", 1) + text(name))), *consume], 5552, client_port=port)
        ]
        found = streamdump.read(io.BytesIO(pcap(packets)), entries=True, decode_as=RABBITMQ)
        assert [one.outcome for one in found] == ["delivered", outcome]


def test_offsets_of_a_purged_topic_are_other_messages() -> None:
    poll = [(CLIENT, POLL_L8), (SERVER, response(struct.pack("<IQI", 1, 7, 1) + polled_l9(b"hello")))]
    for code, outcome in ((305, "delivered"), (302, "redelivered")):
        sent = [*poll, (CLIENT, request(code, ONE + ONE)), (SERVER, response()), *poll]
        found = streamdump.read(io.BytesIO(pcap(conversation(sent, 8090))), entries=True, decode_as=((8090, "iggy", None),))
        assert [one.outcome for one in found] == ["delivered", outcome]


# Damage


def test_of_a_cut_batch_the_complete_entries_are_there_and_the_last_says_what_is_missing() -> None:
    cut = publish(5, [b"first", b"second", b"third"])[:-3]
    cut = struct.pack(">I", len(cut) - 4) + cut[4:]
    # Before the login, damaged frames are hidden
    found = made([*Peer(1, 1, False).handshake(), (CLIENT, cut), (SERVER, confirm([5, 6, 7]))])
    assert [(one.publishing_id, one.body, one.outcome) for one in found] == [(5, b"first", "confirmed"), (6, b"second", "confirmed")]
    assert found[0].notes == ()
    (note,) = found[1].notes
    assert "entry 3" in note and "size says 5 bytes, 2 left" in note


def test_the_note_of_a_cut_response_is_on_the_last_complete_message() -> None:
    polled = response(struct.pack("<IQI", 1, 3, 3) + b"".join(polled_l9(b"%d" % one, offset=one) for one in (1, 2, 3)))
    for lost in (1, 30, 64):
        sent = [(CLIENT, POLL_L8), (SERVER, polled[:-lost]), Lost(SERVER, lost), (CLIENT, POLL_L8), (SERVER, polled)]
        found = [*streamdump.read(io.BytesIO(pcap(conversation(sent, 8090))), entries=True, decode_as=((8090, "iggy", None),))]
        assert [one.offset for one in found] == [1, 2, 1, 2, 3]
        assert [bool(one.notes) for one in found] == [False, True, False, False, False]
        assert "1 of 3 entries not complete" in found[1].notes[0]


def test_entries_are_not_lost_to_the_limit_of_values_in_a_message() -> None:
    value = b"\x00\x53\x77\xa1\x05hello"
    bodies = [value if index % 3 else b"%d" % index for index in range(40)]
    found = made([(CLIENT, publish(0, bodies)), (SERVER, confirm(range(40)))], values_limit=25)
    assert [one.publishing_id for one in found] == [*range(40)]
    assert [one.body for one in found] == ["hello" if index % 3 else b"%d" % index for index in range(40)]
    assert not any(one.notes for one in found)
    # Which response answers which id is known within the limit
    outcomes = [one.outcome for one in found]
    assert outcomes == sorted(outcomes, key=bool, reverse=True) and set(outcomes) == {"confirmed", None}


def test_a_chunk_with_more_values_than_are_kept_is_read_to_its_end() -> None:
    data = chunk([b"%d" % index for index in range(300)], 7)
    deliver = frame(8, b"\x05" + data)
    found = made([(SERVER, deliver)], values_limit=100)
    assert [(one.offset, one.body) for one in found] == [(7 + index, b"%d" % index) for index in range(300)]
    short = struct.pack(">I", len(deliver) - 9) + deliver[4:-5]
    found = made([*Peer(1, 1, False).handshake(), (SERVER, short)], values_limit=100)
    assert [one.offset for one in found] == [7 + index for index in range(299)]
    assert "entry 300 not" in found[-1].notes[0] and not any(one.notes for one in found[:-1])


def test_of_other_protocols_the_last_entry_says_that_there_are_more() -> None:
    *_, last = entries_of("iggy/py090-basic.pcap", "message == 50", values_limit=1) or [None]
    assert last is None or "--values-limit" in last.notes[0]
    found = [one for path in CAPTURES if path.parent.name == "iggy" for one in entries_of(path, values_limit=3) if one.notes]
    # One message of these captures is cut
    cut = [one.notes[0] for one in found if "--values-limit" not in one.notes[0]]
    assert len(found) > 1 and cut == ["1 of 2 entries not complete: messages[1].reserved 150 of 160 bytes captured"]


# Filters and values


def test_a_filter_reads_the_keys_of_entries() -> None:
    capture = "rabbitmq-stream/js_subentries_436.pcap"
    assert [one.offset for one in entries_of(capture, "stream == js-sub and offset >= 22")] == [22, 23, 24]
    assert [one.name for one in entries_of(capture, 'body contains "number 19"')] == ["Publish", "Deliver"]
    assert [one.outcome for one in entries_of(capture, "body matches 'number 1$' and latency < 600us")] == ["confirmed"]
    assert len(entries_of(capture, "record == entry and name == Publish and server == 127.0.0.3 and relative > 1ms")) == 25
    amqp = "rabbitmq-stream/publish_amqp_sections_436.pcap"
    assert entries_of(amqp, 'properties["region"] == eu-west-0')[0].number == 1
    assert [one.number for one in entries_of("mewbase/java-sub.pcap", 'fields.body.id == "o-0011"')] == [3, 4]
    for wrong, said in (
        ("offsett > 1", "did you mean offset"),
        ("outcome == confirmd", "did you mean confirmed"),
        ("publisher_id == 1", "no field"),
    ):
        with pytest.raises(FilterError, match=said):
            streamdump.read(GOLDEN / capture, where=wrong, entries=True)


def test_bytes_have_the_form_of_all_bytes() -> None:
    capture = "rabbitmq-stream/js_subentries_436.pcap"
    assert entries_of(capture, bytes_as="hex")[0].body == b"sub entry number 0".hex()
    assert entries_of(capture, bytes_as="text")[0].body == "sub entry number 0"
    amqp = entries_of("rabbitmq-stream/publish_amqp_sections_436.pcap", bytes_as="hex")[0]
    assert {"section": "properties", "key": "user_id", "value": b"guest".hex()} in amqp.properties
    raw = entries_of("rabbitmq-stream/publish_amqp_sections_436.pcap")[0]
    assert {"section": "properties", "key": "user_id", "value": b"guest"} in raw.properties
    assert rendered(raw, "hex") == amqp


def test_a_protocol_without_user_messages_says_so() -> None:
    inspector = Inspector([open_capture(GOLDEN / "seastar-rpc" / "basic.pcap")], Options(entries=True, bytes_as="raw"), finite=True)
    found = Entries(inspector.run.answers)
    assert [one for batch in inspector.batches() for one in found.add(batch)] == []
    assert found.without == {"seastar-rpc"}


def test_behind_a_loss_an_id_that_is_used_again_makes_no_second_delivery() -> None:
    """Offset 0 of one stream, and of another that the same subscription id has later: the first is read after the second was asked for."""
    packets = rewrite.packets(GOLDEN / "rabbitmq-stream" / "byte_credit_below_zero_made.pcap")
    for lost in range(len(packets)):
        kept = [Packet(one.raw, one.time_ns) for at, one in enumerate(packets) if at != lost]
        found = streamdump.read(io.BytesIO(pcap(kept)), entries=True)
        assert not [one for one in found if one.stream == "bills" and one.outcome == "redelivered"]
