"""Apache Iggy: what 0.9.0 and later releases added. Frames are written from the facts, not with the tables."""

from __future__ import annotations

from itertools import permutations
from struct import pack
from typing import Any

import pytest

from streamdump.model import Message
from streamdump.protocols.iggy.info import info
from streamdump.protocols.iggy.layout_versions import CLASSIC, LONG
from tests.protocols.test_iggy import (
    NOTHING_POLLED,
    ONE,
    POLL_L8,
    batch,
    iggy,
    long_reply,
    long_request,
    messages,
    request,
    run,
    s8,
    s32,
    talk,
)

NOT_SEEN = "the layout of its body was not seen"
WAIT_NOTE = "wait_timeout_us was proposed only: no release known here has it"

POLL = POLL_L8[8:]
STORED = b"\x01" + ONE * 3 + b"\x01" + pack("<I", 3) + pack("<Q", 77) + b"\x01"

CODES = {14: "consumer_session.attach", 103: "message.poll_routing", 104: "message.poll_primary", 123: "consumer_offset.routing"}


@pytest.mark.parametrize("code", CODES)
def test_codes_of_0_9_0_have_names_and_tell_the_layout(code: int) -> None:
    """A body that was never seen is bytes and a note."""
    dissector = iggy(candidates=LONG)
    asked, answer = talk(dissector, long_request(2, code, b"\1\2\3"), long_reply(2, b"\4"))
    assert (asked.name, answer.name, answer.outcome) == (CODES[code], CODES[code], "answered")
    assert (asked.fields["body"], answer.fields["body"]) == ("010203", "04")
    assert asked.notes == answer.notes == [NOT_SEEN]
    assert asked.fault is None and answer.fault is None
    assert dissector.facts["layout"] == "V4"


def test_what_is_known_of_their_bodies_is_read() -> None:
    body = bytes(range(16)) + pack("<QQ", 7, 9)
    attached, _, _, routed = talk(
        iggy("V4"), long_request(2, 14, body), long_reply(2), long_request(2, 103, POLL), long_reply(2, pack("<4Q", 1, 2, 3, 4) + b"\xaa")
    )
    assert attached.fields["attached_client"] == str(int.from_bytes(range(16), "little"))
    assert (attached.fields["unknown_1"], attached.fields["unknown_2"], attached.notes) == (7, 9, [])
    assert [routed.fields[f"unknown_{n}"] for n in range(1, 5)] == [1, 2, 3, 4]
    assert (routed.fields["body"], routed.notes) == ("aa", [NOT_SEEN])


@pytest.mark.parametrize("layout", ["V1", "V2", "V3"])
def test_code_123_stored_an_offset_before(layout: str) -> None:
    frame = bytearray(long_request(2, 123, STORED))
    if layout == "V1":
        frame[196:200], frame[204:208] = bytes(4), pack("<I", 123)
    (stored,) = talk(iggy(layout), bytes(frame))
    assert (stored.name, stored.fields["offset"], stored.fields["ack_label"]) == ("store_consumer_offset_2", 77, "quorum")
    (routed,) = talk(iggy("V4"), long_request(2, 123, STORED))
    assert (routed.name, routed.notes) == ("consumer_offset.routing", [NOT_SEEN])


def test_code_123_without_a_layout_is_what_its_body_is() -> None:
    dissector = iggy(candidates=LONG)
    (stored,) = talk(dissector, long_request(2, 123, STORED))
    assert stored.name == "store_consumer_offset_2"
    assert dissector.facts["candidates"] == ("V2", "V3")


@pytest.mark.parametrize("layout", [None, "L9", "V4"])
def test_a_poll_that_waits(layout: str | None) -> None:
    long = layout == "V4"
    body = POLL + pack("<Q", 250_000)
    dissector = iggy(layout, candidates=CLASSIC)
    answer = long_reply(2, NOTHING_POLLED[8:]) if long else NOTHING_POLLED
    asked = [long_request(2, 100, one) if long else request(100, one) for one in (body, POLL)]
    polled, first, plain, second = talk(dissector, asked[0], answer, asked[1], answer)
    assert (polled.fields["wait_timeout_us"], polled.notes, polled.fault) == (250_000, [WAIT_NOTE], None)
    assert info(polled).endswith("wait 250000 µs")
    assert "wait_timeout_us" not in plain.fields and plain.notes == []
    assert first.outcome == second.outcome == "answered"
    assert dissector.facts["layout"] == (layout or "L9")


@pytest.mark.parametrize("over", [1, 7])
@pytest.mark.parametrize("layout", ["L8", "L9", "V3", "V4"])
def test_other_bytes_behind_a_poll_are_left_over(layout: str, over: int) -> None:
    body = POLL + bytes(over)
    (polled,) = talk(iggy(layout), long_request(2, 100, body) if layout[0] == "V" else request(100, body))
    assert (polled.fault, polled.fields["trailing"]) == (None, "00" * over)
    assert polled.notes == [f"{over} byte{'s' if over > 1 else ''} left over"]


# V5


VERSION = 12 << 10
SECRET = bytes((7 * n + 131) % 256 for n in range(32))
ROUTED = pack("<QQQ", 11, 4096, 22)


def option(key: str, value: bytes | str, kind: int = 2) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return b"\x02" + s32(key) + bytes([kind]) + pack("<I", len(raw)) + raw


def sized(*options: bytes) -> bytes:
    joined = b"".join(options)
    return pack("<I", len(joined)) + joined


def asked_v5(operation: int, code: int = 0, body: bytes = b"", number: int = 1, context: bytes = bytes(24), checksum: bytes = b"") -> bytes:
    """A request of V5: its header has what the server said of the partition, and a checksum that fills 16 bytes."""
    head = bytearray(long_request(operation, code, body, number)[:256])
    head[144:160] = checksum or (b"\x5a" * 16 if operation in (1, 3, *range(128, 151)) else bytes(16))
    head[200:224] = context
    return bytes(head) + body


def login_v5(version: int = VERSION) -> bytes:
    body = pack("<I", version) + s8("rust-sdk") + s8("0.11.1-edge.5") + SECRET + s8("iggy") + s8("swordfish") + pack("<I", 0)
    return asked_v5(1, 0, body, 0)


def logged_in_v5(version: int = VERSION) -> bytes:
    return long_reply(1, pack("<IIQI", 0, 0, 7, version) + s8("0.9.0"), 0)


BIND = pack("<I", VERSION) + s8("rust-sdk") + s8("0.11.1-edge.5") + bytes(range(16)) + pack("<QQ", 7, 1) + SECRET
OPTIONS = sized(option("message_expiry", "never")) + sized(option("segment_size", pack("<Q", 1 << 20), 12))
CREATED = 1_700_000_000_000_000
STREAM = pack("<IQIQQ", 7, CREATED, 1, 4096, 12) + s8("orders") + OPTIONS
TOPIC = pack("<IQIQQ", 3, CREATED, 1, 4096, 12) + s8("events") + OPTIONS
USER = pack("<IQB", 1, CREATED, 1) + s8("bob") + OPTIONS
NODE = b"\x02" + s32("iggy-node") + s32("127.0.0.1") + pack("<HHHH", 8090, 8080, 3000, 8092) + b"\x00\x00"
UPDATE = b"\x01" + b"\x02\x06orders" + b"\x02\x06events" + b"\x02" + s8("max_topic_size") + s8("message_expiry") + option("name", "e2")
CHANGES = b"\x02" + bytes(range(16)) + pack("<Q", 5) + bytes(range(16, 32)) + pack("<I", 6)
CHANGES += b"\x01" + pack("<Q", 7) + b"\x00" + pack("<I", 100) + b"\x02\x01\x08" + pack("<H", 3) + b"abc"
DEFERRED = POLL + pack("<QIIQ", 1, 2, 3, 4)
WAIT = b"\x01" + ONE * 3 + pack("<QQI", 8, 9, 2) + pack("<IBQ", 1, 0, 5) + pack("<IBQ", 2, 1, 6)

KEY = {"key_kind": 2, "key_kind_label": "string", "value_kind": 2, "value_kind_label": "string"}

REQUESTS: dict[str, tuple[int, int, bytes, str, dict[str, Any], list[str]]] = {
    "a session bound again": (
        2,
        15,
        BIND,
        "session.bind",
        {"protocol_version_label": "0.12.0", "unknown_1": 7, "unknown_2": 1, "bind_secret": "<redacted 32 bytes>"},
        [],
    ),
    "an update": (
        150,
        0,
        UPDATE,
        "resource.update",
        {
            "resource_label": "topic",
            "reset": ["max_topic_size", "message_expiry"],
            "options": [KEY | {"key": "name", "value": "e2"}],
        },
        [],
    ),
    "an update of a user": (150, 0, b"\x03\x02\x03bob\x00" + option("username", "bo"), "resource.update", {"resource_label": "user"}, []),
    "changes": (
        2,
        17,
        CHANGES,
        "metadata.changes",
        {"start_label": "after", "cursor_op": 5, "ordinal": 6, "since": 7, "limit": 100, "page_token": "616263"},
        [],
    ),
    "a route": (2, 105, ONE * 2 + pack("<I", 4), "partition.route", {"partition_id": 4}, []),
    "a deferred poll": (
        2,
        106,
        DEFERRED,
        "message.poll_deferred",
        {"wait": 1, "minimum_count": 2, "byte_limit": 3, "request_timeout": 4},
        [],
    ),
    "a deferred poll of another form": (2, 106, b"\1", "message.poll_deferred", {"body": "01"}, [NOT_SEEN]),
    "a wait": (2, 107, WAIT, "message.wait", {"unknown_1": 8, "unknown_2": 9}, []),
    "the end of a wait": (2, 108, b"\1\2", "message.cancel_deferred", {"body": "0102"}, [NOT_SEEN]),
    "a stream with a key": (
        128,
        0,
        s8("s1") + option("encryption_key", SECRET, 1) + option("a", "b"),
        "create_stream",
        {
            "options": [
                KEY | {"key": "encryption_key", "value_kind": 1, "value_kind_label": "raw", "value": "<redacted 32 bytes>"},
                KEY | {"key": "a", "value": "b"},
            ]
        },
        [],
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_of_v5(case: str) -> None:
    operation, code, body, name, fields, notes = REQUESTS[case]
    dissector = iggy(candidates=LONG)
    (asked,) = talk(dissector, asked_v5(operation, code, body, context=ROUTED))
    assert (asked.name, asked.fault, asked.notes, asked.id) == (name, None, notes, 1)
    assert asked.fields | fields == asked.fields
    assert dissector.facts["layout"] == "V5"
    assert (asked.fields["incarnation"], asked.fields["owner_generation"], asked.fields["metadata_op"]) == (11, 4096, 22)


LISTED = pack("<I", 0)
CONTEXT = {"incarnation": 11, "owner_generation": 4096, "metadata_op": 22}

REPLIES: dict[str, tuple[int, int, bytes, bytes, dict[str, Any]]] = {
    "a node": (2, 12, b"", s32("c") + pack("<I", 1) + NODE, {"name": "c"}),
    "a route": (2, 105, ONE * 2 + bytes(4), pack("<QQIIB", 11, 22, 1, 2, 0), {"incarnation": 11, "metadata_op": 22, "node_replica": 0}),
    "nothing polled": (2, 100, POLL, pack("<IQI", 1, 9, 0) + ROUTED, {"current_offset": 9, "messages": []}),
    "a stream": (2, 200, ONE, STREAM + TOPIC, {"id": 7, "topics_count": 1}),
    "a stream made": (128, 0, s8("orders"), LISTED + STREAM + TOPIC, {"id": 7, "results": []}),
    "a topic": (
        2,
        300,
        ONE * 2,
        TOPIC + pack("<IQIQQQ", 0, CREATED, 1, 11, 4096, 12) + ROUTED,
        {"id": 3, "size_bytes": 4096, "messages_count": 12},
    ),
    "a user": (2, 31, ONE, USER + bytes(4), {"username": "bob"}),
    "files": (
        2,
        10,
        b"",
        pack("<Iff", 11, 1.5, 2.5)
        + pack("<8Q", *range(101, 109))
        + pack("<4IQII", 1, 2, 3, 4, 500, 6, 7)
        + s32("host")
        + s32("os")
        + s32("1")
        + s32("k")
        + s32("0.9.1")
        + pack("<II", 901, 0)
        + pack("<IQQ", 9, 1000, 2000)
        + pack("<QQ", 33, 44),
        {"open_files_count": 33, "open_files_limit": 44, "threads_count": 9},
    ),
    "an option": (
        2,
        13,
        b"\x01",
        pack("<I", 1) + s8("durability") + b"\x02\x11" + s32("replicated") + s32("what"),
        {
            "options": [
                {
                    "key": "durability",
                    "kind": 2,
                    "kind_label": "string",
                    "flags": 17,
                    "default": b"replicated".hex(),
                    "description": "what",
                }
            ]
        },
    ),
    "an update": (150, 0, UPDATE, LISTED, {"results": []}),
    "waits": (2, 107, WAIT, pack("<III", 2, 4, 5), {"partitions": [4, 5]}),
}


@pytest.mark.parametrize("case", REPLIES)
def test_replies_of_v5(case: str) -> None:
    operation, code, body, answer, fields = REPLIES[case]
    _, replied = talk(iggy("V5"), asked_v5(operation, code, body), long_reply(operation, answer))
    assert (replied.fault, replied.notes, replied.outcome) == (None, [], "answered")
    assert replied.fields | fields == replied.fields
    if case == "a topic":
        assert replied.fields["partitions"][0] | CONTEXT == replied.fields["partitions"][0]
    if case == "nothing polled":
        assert replied.fields | CONTEXT == replied.fields
    if case == "a node":
        assert (replied.fields["nodes"][0]["replica"], replied.fields["nodes"][0]["tcp_port"]) == (2, 8090)
    if "options" in fields:
        return
    for one in (replied.fields, *replied.fields.get("topics", ())):
        if "derived_options" in one:
            assert one["options"] == [KEY | {"key": "message_expiry", "value": "never"}]
            assert (one["derived_options"][0]["key"], one["derived_options"][0]["value"]) == ("segment_size", 1 << 20)


@pytest.mark.parametrize("wrong", [False, True])
def test_batches_behind_the_context_of_a_partition(wrong: bool) -> None:
    polled = pack("<IQI", 1, 9, 2) + ROUTED + batch(b"one", b"two")
    if wrong:
        polled = polled[:-1] + b"!"
    _, answer = talk(iggy("V5"), asked_v5(2, 100, POLL), long_reply(2, polled))
    assert [bytes.fromhex(one["payload"]) for one in answer.fields["batches"][0]["messages"]] == [b"one", b"tw!" if wrong else b"two"]
    assert bool(answer.notes) is wrong


@pytest.mark.parametrize("code", [35, 102, 204, 205, 304, 305, 14, 103, 104, 123])
def test_v5_has_no_longer_these_codes(code: int) -> None:
    (asked,) = talk(iggy("V5"), asked_v5(2, code, b"\1"))
    assert asked.notes[0].startswith("command code ") and asked.notes[0].endswith("is not known in V5")


MARKS = {
    "the version of a login": (lambda: [login_v5()], "V5"),
    "a later version": (lambda: [login_v5(13 << 10)], "V5"),
    "an earlier version": (lambda: [login_v5(11 << 10)], None),
    "the checksum of a request": (lambda: [asked_v5(130, 0, ONE)], "V5"),
    "the context of a partition": (lambda: [asked_v5(160, 0, b"", context=ROUTED)], "V5"),
    "the same of a poll": (lambda: [asked_v5(2, 100, POLL, context=pack("<QQQ", 1 << 40, 0, 0))], "V5"),
    "a ping": (lambda: [asked_v5(2, 1)], None),
}


@pytest.mark.parametrize("case", MARKS)
def test_what_tells_v5(case: str) -> None:
    make, layout = MARKS[case]
    dissector = iggy(candidates=LONG, syn=False)
    talk(dissector, *make())
    assert dissector.facts["layout"] == layout
    if layout is None:
        assert ("V5" in dissector.facts["candidates"]) is (case == "a ping")


def test_an_answer_with_the_checksum_of_its_request_is_of_v5() -> None:
    reply = bytearray(long_reply(130, LISTED))
    reply[128:144] = b"\x5a" * 16
    dissector = iggy(candidates=LONG, syn=False)
    run(dissector, (1, bytes(reply)), (0, asked_v5(2, 1, number=2)), (1, long_reply(2, number=2)))
    assert dissector.facts["layout"] == "V5"


def test_pairs_of_v5_go_by_the_number_of_the_request() -> None:
    """Replies come in another order, and some are lost."""
    asked = [asked_v5(2, code, body, number) for number, (code, body) in enumerate([(1, b""), (200, ONE), (31, ONE), (1, b"")], 1)]
    replies = [long_reply(2, body, number) for number, body in enumerate([b"", STREAM + TOPIC, USER + bytes(4), b""], 1)]
    for order in permutations(range(4)):
        for missing in (None, *order):
            events = [(0, login_v5()), (1, logged_in_v5()), *((0, one) for one in asked)]
            said = messages(run(iggy(candidates=LONG), *events, *((1, replies[one]) for one in order if one != missing)))
            pairs = [(one.name, one.id) for one in said[6:]]
            names = ["ping", "get_stream", "get_user", "ping"]
            assert sorted(pairs) == sorted((names[one], one + 1) for one in order if one != missing)
            assert all(one.outcome == "answered" and one.fault is None and not one.notes for one in said[6:])


def test_the_pairs_of_v5_stand_a_loss() -> None:
    events: list[tuple[int, bytes | int]] = [(0, login_v5()), (1, logged_in_v5())]
    events += [(0, asked_v5(2, 1, number=number)) for number in range(1, 9)]
    events += [(1, 512), *((1, long_reply(2, number=number)) for number in (8, 3, 5))]
    said = messages(run(iggy(candidates=LONG), *events))
    assert [(one.id, one.outcome, one.notes) for one in said[-3:]] == [(number, "answered", []) for number in (8, 3, 5)]


def test_a_reply_of_v5_to_nothing_answers_nothing() -> None:
    said = messages(run(iggy("V5"), (0, asked_v5(2, 1, number=4)), (1, long_reply(2, number=9)), (1, long_reply(2, number=4))))
    assert sorted((one.id or 0, one.outcome or "") for one in said[1:]) == [(4, "answered"), (9, "")]


STATUSES = {
    85: "request_too_old",
    2023: "partition_resize_disabled",
    4107: "unsupported_critical_option",
    14004: "session_mismatch",
    14008: "operation_not_retained",
}


@pytest.mark.parametrize("status", STATUSES)
def test_statuses_of_v5_have_names(status: int) -> None:
    _, refused = talk(iggy("V5"), asked_v5(2, 200, ONE), long_reply(2, status=status))
    assert (refused.outcome, refused.fields["status_label"]) == ("refused", STATUSES[status])


# The secret that binds a session


FRAMES: dict[str, bytes] = {
    "session.bind": asked_v5(2, 15, BIND),
    "login_register": login_v5(),
    "create_stream": asked_v5(128, 0, s8("s1") + option("encryption_key", SECRET, 1)),
}


def shows(message: Message) -> bool:
    text = (
        f"{message.fields} {[(span.name, span.value) for span in message.spans or () if not span.secret]} {message.notes} {message.fault}"
    )
    pieces = [SECRET[at : at + 6].hex() for at in range(27)]
    numbers = [str(int.from_bytes(SECRET[at : at + 8], "little")) for at in range(25)]
    return any(one in text for one in (*pieces, *numbers))


@pytest.mark.parametrize(
    ("case", "layout"), [(case, layout) for case in FRAMES for layout in (None, "V4", "V5") if (case, layout) != ("create_stream", "V4")]
)
def test_no_altered_byte_shows_the_secret(case: str, layout: str | None) -> None:
    """Nor does a frame that ends early, or one that is lost in part."""
    frame = FRAMES[case]
    places = [*range(48, 52), 60, 176, 196, 200, *range(256, len(frame))]
    for at in places:
        for bit in (1, 2, 16, 64, 128):
            altered = bytearray(frame)
            altered[at] ^= bit
            dissector = iggy(layout, candidates=LONG, detail=True)
            assert not any(map(shows, messages(run(dissector, (0, bytes(altered)), (0, asked_v5(2, 1, number=2)))))), (at, bit)
    for end in range(257, len(frame)):
        dissector = iggy(layout, candidates=LONG, detail=True)
        said = messages(run(dissector, (0, frame[:end]), (0, len(frame) - end), (0, asked_v5(2, 1, number=2))))
        assert not any(map(shows, said)), end
