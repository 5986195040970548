"""Seastar RPC: the two dissector properties, every capture as its README tells, and the traps one by one."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from struct import pack
from typing import Any

import cramjam
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError, UsageError
from streamdump.inspector import Inspector
from streamdump.model import END, ConversationRow, Exchange, Gap, Message, Options, Record, SideData, StreamGap, Verdict
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context, DetectionView, SideView
from streamdump.protocols.records import Event
from streamdump.protocols.seastar import PROTOCOLS
from streamdump.protocols.seastar.compression import CHUNK, Unpackable, chunks, unpack, unpack_head
from streamdump.protocols.seastar.dictionaries import load_dictionaries
from streamdump.protocols.seastar.dissector import SeastarDissector
from streamdump.protocols.seastar.heuristic import heuristic
from streamdump.protocols.seastar.info import InfoWithVerb, info, paired, relate, unanswered
from streamdump.protocols.seastar.terms import FORCED, MAX_ALGORITHMS, MAX_FEATURES, read_offer
from streamdump.protocols.seastar.verbs import load_verbs, parse_verbs
from streamdump.quota import UnpackPool, UnpackQuota
from tests.support.work import peak

CAPTURES = Path(__file__).parents[2] / "captures" / "golden" / "seastar-rpc"

# Frames


def negotiation(*features: tuple[int, bytes]) -> bytes:
    records = b"".join(pack("<II", number, len(data)) + data for number, data in features)
    return b"SSTARRPC" + pack("<I", len(records)) + records


def request(ident: int, payload: bytes = b"", verb: int = 9, timeout: int | None = 0) -> bytes:
    return (b"" if timeout is None else pack("<Q", timeout)) + pack("<QqI", verb, ident, len(payload)) + payload


def response(ident: int, payload: bytes = b"", duration: int | None = 7) -> bytes:
    return pack("<qI", ident, len(payload)) + (b"" if duration is None else pack("<I", duration)) + payload


def exception(ident: int, kind: int, body: bytes, duration: int | None = 7) -> bytes:
    return response(-ident, pack("<II", kind, len(body)) + body, duration)


def stream(payload: bytes) -> bytes:
    return pack("<I", len(payload)) + payload


def lz4(frame: bytes) -> bytes:
    return stream(pack("<I", len(frame)) + bytes(cramjam.lz4.compress_block(frame, store_size=False)))


def lz4_fragmented(frame: bytes) -> bytes:
    """As the library packs a frame, except that no chunk refers to the one before."""
    packed = b""
    for at in range(0, len(frame), CHUNK):
        block = bytes(cramjam.lz4.compress_block(frame[at : at + CHUNK], store_size=False))
        rest = len(frame) - at
        packed += pack("<I", rest | 1 << 31 if rest <= CHUNK else len(block)) + block
    return stream(packed)


DEFAULT = ((1, b""), (5, b""))
END_OF_STREAM = b"\xff\xff\xff\xff"

# Conversations

Sent = tuple[int, bytes | int]
"""A segment: its side and its bytes, or the size of a gap."""


def items(events: Iterable[Sent]) -> list[SideData | StreamGap]:
    """One a segment, in packet order."""
    made: list[SideData | StreamGap] = []
    positions = [0, 0]
    for order, (side, data) in enumerate(events):
        at = positions[side]
        if isinstance(data, int):
            made.append(StreamGap(side, at, data, "lost", order, order + 1, 0, order * 1000))
            positions[side] += data
        elif data:
            made.append(SideData(side, at, data, (order, order + 1, 0, order * 1000)))
            positions[side] += len(data)
    return made


def parser(syn: bool = True, layout: str | None = None, client: int | None = None, **options: Any) -> Parser:
    known = 0 if syn else client
    how = Options(**options)
    verdict = Verdict("seastar-rpc", 1.0, (), None, known, layout)
    return Parser(PROTOCOLS[0], how, Context(0, ("10.0.0.1:1", "10.0.0.2:2"), (1, 2), known, syn, verdict, how))


def read(events: Sequence[Sent], bulk: bool = False, **how: Any) -> list[Record]:
    """The records of these, which came one by one or, `bulk`, all with one packet, one side after the other."""
    one = parser(**how)
    emitted: list[Event] = []
    made = items(events)
    for part in [sorted(made, key=lambda item: item.side)] if bulk else [[item] for item in made]:
        emitted += one.process(part)
    order = len(events)
    emitted += one.close((order, order + 1, 0, order * 1000), END)
    return [each.record for each in emitted]


def messages(events: Sequence[Sent], **how: Any) -> list[Message]:
    return [record for record in read(events, **how) if isinstance(record, Message)]


def opened(*more: Sent, client: Any = DEFAULT, server: Any = DEFAULT) -> list[Sent]:
    return [(0, negotiation(*client)), (1, negotiation(*server)), *more]


def encoded(records: list[Record]) -> list[bytes]:
    return sorted(map(msgspec.json.encode, records))


# The two properties of dissectors, and the accounting

FRAMES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            negotiation(*DEFAULT),
            negotiation(),
            negotiation((0, b"LZ4"), (1, b"")),
            negotiation((0, b"LZ4_FRAGMENTED"), (5, b"")),
            negotiation((3, bytes(8))),
            negotiation((2, bytes(8)), (0, b"XOR")),
            negotiation((77, b"abc"), (1, b""), (1, b"")),
            negotiation(*DEFAULT)[:-3],
            b"SSTARR",
            request(1, b"one"),
            request(2, b"two") + request(3, b"three"),
            request(4, b"", timeout=None),
            request(5, b"x" * 50, timeout=1 << 63),
            request(-6, b"negative"),
            response(1, b"eins"),
            response(2, b"zwei") + response(3, b"drei"),
            response(4, b"vier", None),
            exception(5, 0, b"std::runtime_error (no)"),
            exception(5, 1, pack("<Q", 39)),
            exception(5, 7, b"?"),
            stream(b"stream"),
            stream(b""),
            END_OF_STREAM,
            lz4(request(7, b"packed" * 30)),
            lz4(response(7, b"packed" * 30)),
            lz4_fragmented(request(8, bytes(70_000))),
            lz4(stream(b"packed" * 9)),
            lz4(END_OF_STREAM),
            stream(pack("<I", 0)),
            stream(b"\x00\x00\x00\x80"),
            b"\xff\xff\xff\xff\xff\xff\xff\xff",
        ]
    ),
)
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.lists(FRAMES, min_size=1, max_size=3).map(b"".join),
            st.integers(1, 60),
            st.tuples(FRAMES, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]]),
        ),
    ),
    max_size=14,
)
START = st.sampled_from(
    [
        [],
        opened(),
        opened(client=(), server=()),
        opened(client=((0, b"LZ4"),), server=((0, b"LZ4"),)),
        opened(client=((0, b"LZ4_FRAGMENTED"), *DEFAULT), server=((0, b"LZ4_FRAGMENTED"), *DEFAULT)),
        opened(client=((3, bytes(8)),), server=((2, bytes(8)),)),
        opened(client=((0, b"NEW"),), server=((0, b"NEW"),)),
        [(0, negotiation((0, b"LZ4"), *DEFAULT))],
        [(1, negotiation((2, bytes(8))))],
        [(0, negotiation(*DEFAULT)), (1, negotiation((1, b""), (2, bytes(8)), (5, b""))[:25]), (1, 19)],
    ]
)
HOW = st.fixed_dictionaries(
    {
        "syn": st.booleans(),
        "layout": st.sampled_from([None, None, None, *FORCED]),
        "detail": st.booleans(),
        "undecided_limit": st.sampled_from([1 << 20, 100]),
        "frame_limit": st.sampled_from([1 << 26, 60]),
    }
)


@given(START, EVENTS, HOW)
def test_any_bytes_in_any_pieces_make_messages(start: list[Sent], more: list[Sent], how: dict[str, Any]) -> None:
    events = [*start, *more]
    single = read(events, **how)
    assert encoded(read(events, bulk=True, **how)) == encoded(single)
    reach = [0, 0]
    for record in sorted((one for one in single if isinstance(one, Message | Gap)), key=lambda one: one.position):
        if isinstance(record, Gap) and record.in_frame:
            continue
        side = int(record.src.startswith("10.0.0.2"))
        assert record.position == reach[side]
        reach[side] += record.size
    for side in (0, 1):
        assert reach[side] == sum(data if isinstance(data, int) else len(data) for one, data in events if one == side)


@given(START, EVENTS)
def test_details_change_nothing_and_spans_tile(start: list[Sent], more: list[Sent]) -> None:
    events = [*start, *more]
    plain = messages(events)
    for message, detailed in zip(plain, messages(events, detail=True), strict=True):
        for name in ("name", "kind", "id", "fields", "outcome", "fault"):
            assert getattr(message, name) == getattr(detailed, name)
        assert list(message.notes) == list(detailed.notes)
        assert list(message.fields) == list(detailed.fields)
        assert detailed.raw is not None
        assert detailed.spans is not None
        for buffer, data in detailed.raw.items():
            at = 0
            for span in detailed.spans:
                if span.buffer == buffer and span.leaf:
                    assert span.offset == at
                    at += span.length
            assert at == len(data)


# Captures


def capture(name: str, rows: int | None = None, **options: Any) -> tuple[list[Record], Inspector]:
    inspector = Inspector([open_capture(CAPTURES / name)], Options(**options), rows)
    return list(inspector.records()), inspector


def counts(records: Iterable[Record]) -> Counter[str]:
    return Counter(record.name for record in records if isinstance(record, Message))


def told(contents: str) -> Counter[str]:
    """The counts of a README row: "2 conn, 3 req, 3 rsp (1 exc), 28 stream (2 EOS), 4 empty"."""
    found: Counter[str] = Counter()
    for number, word, inside in re.findall(r"(\d+) (req|rsp|stream|empty)\b(?: \((\d+) (?:exc|EOS)\))?", contents):
        part = int(inside or 0)
        match word:
            case "req":
                found["Request"] = int(number)
            case "rsp":
                found["Response"], found["Exception"] = int(number) - part, part
            case "stream":
                found["Stream"], found["EndOfStream"] = int(number) - part, part
            case "empty":
                found["Empty"] = int(number)
    return +found


def rows() -> list[tuple[str, str, bool]]:
    """(file, contents, whether it is a recorded and undamaged one) of the README's tables."""
    recorded, derived = (CAPTURES / "README.md").read_text().split("## Derived")
    found = []
    for text, whole in ((recorded, True), (derived, False)):
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if cells and ".pcap" in cells[0]:
                contents = next(cell for cell in cells if re.match(r"\d+ conn", cell))
                found.append((cells[0], contents, whole and "undecoded" not in contents))
    return found


REACHED = {
    "inflight_midstream.pcap": {"Request": 28, "Response": 110, "Exception": 29},
    "timeout_midstream.pcap": {"Request": 14, "Response": 7, "Exception": 1},
    "big_midstream.pcap": {"Request": 7, "Response": 8},
    "requests_only.pcap": {"Negotiation": 1, "Request": 30},
    "big_lost.pcap": {"Negotiation": 2, "Request": 8, "Response": 8},
    "inflight_lost.pcap": {"Negotiation": 2, "Request": 180, "Response": 109, "Exception": 27},
    "exceptions_snap96.pcap": {"Negotiation": 2, "Request": 19, "Response": 2, "Exception": 17},
    "exceptions_snap150.pcap": {"Negotiation": 2, "Request": 19, "Response": 2, "Exception": 17},
    "lz4_snap120.pcap": {"Negotiation": 2, "Request": 23, "Response": 22, "Exception": 2, "Compressed": 1},
    "raw_refused.pcap": {"Negotiation": 4},
    "raw_tail.pcap": {"Negotiation": 4, "Request": 3, "Response": 2},
    "scylla_v3_midstream.pcap": {"Request": 8, "Response": 8},
    "scylla_v3_dictionary_midstream.pcap": {"Request": 12, "Response": 11, "Empty": 9},
    "scylla_v3_lost.pcap": {"Negotiation": 2, "Request": 16, "Response": 11, "Empty": 12},
    "stream_cut_file.pcap": {"Negotiation": 4, "Request": 2, "Response": 2, "Stream": 19},
}
"""What is read of the captures that lack something: every frame whose header is whole and can be told."""


def test_captures_read_as_their_readme_tells(subtests: pytest.Subtests) -> None:
    known = load_dictionaries(map(str, sorted(CAPTURES.glob("*.dict"))))
    for name, contents, whole in rows():
        with subtests.test(name):
            inspector = Inspector([open_capture(CAPTURES / name)], Options(dictionaries=known))
            records = list(inspector.records())
            found = counts(records)
            if name in REACHED:
                assert found == REACHED[name]
                for word, count in told(contents).items():
                    assert found[word] >= count or word == "Exception"
                continue
            connections = int(contents.split()[0])
            assert found == told(contents) + Counter(Negotiation=2 * connections)
            assert len(inspector.rows()) == connections
            assert not [record for record in records if isinstance(record, Gap)]
            assert not [record.fault for record in records if isinstance(record, Message) and record.fault is not None]
            assert "framing inferred" not in str([record.notes for record in records if isinstance(record, Message)])
            assert not whole or not inspector.errors


def test_readme_names_every_capture() -> None:
    assert sorted(name for name, _, _ in rows()) == sorted(path.name for path in CAPTURES.glob("*.pcap*"))


def contents(name: str) -> list[tuple[Any, ...]]:
    """Frames as such, whatever packets brought them."""
    return sorted(
        (one.conversation, one.src.rpartition(":")[2], one.position, one.name, msgspec.json.encode(one.fields).decode())
        for one in capture(name)[0]
        if isinstance(one, Message)
    )


@pytest.mark.parametrize(
    ("derived", "original"),
    [
        ("big_reordered.pcap", "big_mtu1500.pcap"),
        ("inflight_duplicates.pcap", "inflight.pcap"),
        ("out_of_order_overlap.pcap", "out_of_order.pcap"),
        ("stream_ng.pcapng", "stream.pcap"),
        ("exceptions_ns_be.pcap", "exceptions.pcap"),
        ("isolation_raw_ip.pcap", "isolation.pcap"),
        ("basic_seqwrap.pcap", "basic.pcap"),
    ],
)
def test_what_only_changes_packets_changes_no_message(derived: str, original: str) -> None:
    assert contents(derived) == contents(original)


def test_both_compressions_hold_the_same_calls() -> None:
    calls = [
        [
            (one.id, one.fields["verb"], one.fields["len"], one.fields["compression"]["unpacked_size"])
            for one in capture(name)[0]
            if isinstance(one, Message) and one.name == "Request"
        ]
        for name in ("lz4.pcap", "lz4_fragmented.pcap")
    ]
    assert calls[0] == calls[1]
    sizes = [
        (one.fields["compression"]["packed_size"], one.fields["compression"]["unpacked_size"])
        for one in capture("lz4_fragmented.pcap")[0]
        if isinstance(one, Message) and "compression" in one.fields
    ]
    assert (0x78DE, 32_768 + 32_768 + 4_496) in sizes


def test_pairs_of_a_capture() -> None:
    records, _ = capture("raw_badpayload.pcap", exchanges=True)
    found = {one.id: (one.outcome, one.reason) for one in records if isinstance(one, Exchange)}
    assert found[6] == ("answered", None)
    assert found[7] == ("refused", None)
    assert found[1] == ("unanswered", "closed")


def test_streams_are_tied_to_their_parents() -> None:
    _, inspector = capture("stream_lz4.pcap")
    parent, *streams = inspector.rows()
    assert parent.layout == "rpc+timeout+duration+lz4"
    assert parent.facts["stream_conversations"] == [1, 2, 3]
    assert [(row.layout, row.facts["parent_conversation"]) for row in streams] == [("stream+lz4", 0)] * 3
    assert [row.facts["stream_parent"] for row in streams] == [parent.facts["connection_id"]] * 3


def test_the_cut_file_says_so() -> None:
    _, inspector = capture("stream_cut_file.pcap")
    assert [type(error) for error in inspector.errors] == [CaptureError]


# Negotiation


def test_negotiation_record_by_record() -> None:
    client = negotiation((0, b"LZ4,LZ4_FRAGMENTED"), (1, b""), (4, b"statement:oltp"), (5, b""), (77, b"\x01\x02"))
    server = negotiation((1, b""), (2, pack("<Q", 1 << 16 | 3)), (4, b"statement:oltp"))
    asked, answered = messages([(0, client), (1, server)])
    assert (asked.name, asked.kind, asked.sender, asked.id) == ("Negotiation", "request", "client", None)
    assert asked.fields == {
        "magic": "SSTARRPC",
        "len": len(client) - 12,
        "features": [
            {"number": 0, "number_label": "COMPRESS", "len": 18, "algorithms": "LZ4,LZ4_FRAGMENTED"},
            {"number": 1, "number_label": "TIMEOUT", "len": 0, "data": ""},
            {"number": 4, "number_label": "ISOLATION", "len": 14, "cookie": "statement:oltp"},
            {"number": 5, "number_label": "HANDLER_DURATION", "len": 0, "data": ""},
            {"number": 77, "number_label": None, "len": 2, "data": "0102"},
        ],
    }
    assert list(asked.notes) == ["unknown feature 77"]
    assert (answered.kind, answered.outcome, answered.sender) == ("response", "answered", "server")
    assert answered.fields["features"][1] == {"number": 2, "number_label": "CONNECTION_ID", "len": 8, "connection_id": 65539}
    assert answered.fields["negotiated"] == {
        "connection": "rpc",
        "compression": None,
        "timeout": True,
        "handler_duration": False,
        "declined": ["COMPRESS", "HANDLER_DURATION", "feature 77"],
    }
    assert "COMPRESS LZ4,LZ4_FRAGMENTED, TIMEOUT, ISOLATION statement:oltp" in info(asked)
    assert info(answered) == (
        "grants TIMEOUT, CONNECTION_ID 1 on shard 3, ISOLATION statement:oltp; declines COMPRESS, HANDLER_DURATION, feature 77"
    )


def test_details_of_a_negotiation_say_what_is_in_force() -> None:
    offered, granted = ((0, b"LZ4"), (1, b"")), ((1, b""), (2, pack("<Q", 3 << 16 | 1)))
    asked, answered = messages(opened(client=offered, server=granted), detail=True)
    assert asked.spans is not None
    assert answered.spans is not None
    assert [span.name for span in asked.spans].count("negotiated") == 0
    ids = [(span.value, span.label) for span in answered.spans if span.name == "connection_id" and span.leaf]
    assert ids == [(196609, "3 on shard 1")]
    assert (answered.spans[-1].name, answered.spans[-1].value) == ("negotiated", "rpc+timeout; declines COMPRESS")
    [alone] = messages([(1, negotiation((2, bytes(8))))], detail=True)
    assert alone.spans is not None
    assert alone.spans[-1].value == "rpc or stream"


def test_a_feature_twice_and_grants_that_were_not_asked_for() -> None:
    asked, answered = messages([(0, negotiation((4, b"a"), (4, b"b"))), (1, negotiation((1, b""), (3, bytes(8)), (4, b"b")))])
    assert list(asked.notes) == ["feature 4 occurs twice: the first one counts"]
    assert list(answered.notes) == [
        "a server never sends STREAM_PARENT",
        "grants TIMEOUT, which was not offered",
        "the isolation cookie is not the client's",
    ]


@pytest.mark.parametrize("timeout", [False, True])
@pytest.mark.parametrize("duration", [False, True])
def test_what_the_server_grants_is_in_force(timeout: bool, duration: bool) -> None:
    granted = [(1, b"")] * timeout + [(5, b"")] * duration
    events = opened(
        (0, request(1, b"ab", timeout=1996 if timeout else None)), (1, response(1, b"c", 250 if duration else None)), server=granted
    )
    asked, answered = messages(events)[2:]
    expected = {"verb": 9, "msg_id": 1, "len": 2, "payload": "6162"}
    assert asked.fields == ({"timeout": 1996} if timeout else {}) | expected
    measured = {"handler_duration": 250, "handler_duration_label": None} if duration else {}
    assert answered.fields == {"msg_id": 1, "len": 1, **measured, "payload": "63"}
    assert (answered.id, answered.outcome) == (1, "answered")
    assert not answered.notes


def test_an_early_request_waits_for_the_answer() -> None:
    events = [(0, negotiation(*DEFAULT) + request(1, b"early")), (0, request(2)), (1, negotiation(*DEFAULT))]
    made = items(events)
    one = parser()
    assert [each.record.name for item in made[:2] for each in one.process([item])] == ["Negotiation"]
    assert [(each.record.name, each.order) for each in one.process(made[2:])] == [("Request", 0), ("Request", 1), ("Negotiation", 2)]


def test_the_answer_need_not_come_for_what_was_not_offered() -> None:
    found = messages([(0, negotiation((4, b"x"))), (0, request(1, b"ab", timeout=None))])
    assert [one.name for one in found] == ["Negotiation", "Request"]
    assert not found[1].notes


@pytest.mark.parametrize("syn", [False, True])
def test_what_was_declined_does_not_depend_on_which_side_was_captured_first(syn: bool) -> None:
    client, server = negotiation((0, b"LZ4"), (1, b"")), negotiation((1, b""), (2, bytes(8)))
    answers = [
        next(one for one in messages(events, syn=syn) if one.sender == "server")
        for events in ([(0, client), (1, server)], [(1, server), (0, client)], [(1, server + response(1, b"", None)), (0, client)])
    ]
    assert [one.fields["negotiated"]["declined"] for one in answers] == [["COMPRESS"]] * 3
    assert [one.fields["negotiated"]["connection"] for one in answers] == ["rpc"] * 3


@pytest.mark.parametrize(
    "events",
    [
        [(1, negotiation(*DEFAULT)), (0, negotiation(*DEFAULT)), (0, request(1, b"abc")), (1, response(1, b"d"))],
        [(1, negotiation(*DEFAULT)), (0, negotiation(*DEFAULT)), (0, request(1, b"abc")[:30]), (0, b"c"), (1, response(1, b"d"))],
        [(1, negotiation((0, b"LZ4"))), (0, negotiation((0, b"LZ4,XOR"))), (1, lz4(response(1, b"d", None)))],
        [(1, negotiation((0, b"XOR"))), (0, negotiation((0, b"LZ4,XOR"))), (0, stream(b"sealed"))],
        [(1, negotiation((4, b"x"))), (1, exception(1, 1, pack("<Q", 9), None)), (1, response(2, b"abc", None))],
        [(0, negotiation(*DEFAULT)), (0, request(1, b"abc")), (0, request(2, b"abc"))],
        [(0, negotiation((5, b""))), (0, request(1, b"abcde", 76, None)[:17]), (0, request(1, b"abcde", 76, None)[17:])],
        [(0, negotiation((1, b""))), (1, negotiation((1, b""))), (1, response(1, b"d", None))],
    ],
)
def test_what_follows_tells_who_is_the_client(events: list[Sent]) -> None:
    for bulk in (False, True):
        told = [record for record in read(events, bulk, syn=False) if isinstance(record, Message)]
        assert len(told) >= len(events) - 1
        assert all(one.sender == ("client" if one.src == "10.0.0.1:1" else "server") for one in told)
        assert not any(one.fault for one in told)


def test_a_gap_ends_the_wait_for_what_tells_the_client() -> None:
    events: list[Sent] = [(0, negotiation(*DEFAULT)), (1, negotiation(*DEFAULT)), (0, request(1, b"a" * 40)[:50]), (0, 18)]
    told = messages([*events, (1, response(1, b"d"))], syn=False)
    assert [(one.name, one.sender) for one in told] == [
        ("Negotiation", "client"),
        ("Negotiation", "server"),
        ("Request", "client"),
        ("Response", "server"),
    ]


def test_an_answer_that_is_cut_makes_no_client() -> None:
    client, server = negotiation((1, b"")), negotiation((1, b""), (2, bytes(8)))
    told = messages([(0, client), (1, server[:26]), (1, 10), (0, request(1)), (1, response(1, b"", None))], syn=False)
    assert [(one.name, one.sender) for one in told] == [
        ("Negotiation", "client"),
        ("Negotiation", "server"),
        ("Request", "client"),
        ("Response", "server"),
    ]


def test_old_servers_answer_with_all_they_support() -> None:
    events = opened((0, lz4(request(1))), client=((0, b"LZ4,LZ4_FRAGMENTED"), *DEFAULT), server=((0, b"LZ4_FRAGMENTED,LZ4"), *DEFAULT))
    assert messages(events)[2].fields["compression"]["algorithm"] == "LZ4"


# Requests, responses, exceptions


def test_exceptions_of_every_kind() -> None:
    events = opened(
        *((0, request(number)) for number in (1, 2, 3, 4)),
        (1, exception(1, 0, b"std::runtime_error (no)")),
        (1, exception(2, 1, pack("<Q", 39), 0xFFFF_FFFF)),
        (1, exception(3, 7, b"??")),
        (1, exception(4, 0, b"\xff!")),
    )
    user, unknown_verb, other, garbled = messages(events)[6:]
    assert user.fields == {
        "msg_id": -1,
        "len": 31,
        "handler_duration": 7,
        "handler_duration_label": None,
        "exception_type": 0,
        "exception_type_label": "USER",
        "exception_len": 23,
        "text": "std::runtime_error (no)",
    }
    assert (user.name, user.id, user.outcome) == ("Exception", 1, "refused")
    assert unknown_verb.fields["verb"] == 39
    assert unknown_verb.fields["handler_duration_label"] == "not measured"
    assert other.fields["body"] == "3f3f"
    assert list(other.notes) == ["unknown exception type 7"]
    assert garbled.fields["text"] == "\\xff!"
    assert list(garbled.notes) == ["text is not UTF-8"]
    assert info(user) == "#1  USER: std::runtime_error (no)  handler 7 µs"
    assert info(unknown_verb) == "#2  UNKNOWN_VERB verb 39  no handler ran"
    assert info(user, "PING") == "#1  PING  USER: std::runtime_error (no)  handler 7 µs"
    assert info(unknown_verb, "PING") == "#2  UNKNOWN_VERB verb 39  no handler ran"


def test_lines_of_responses_name_the_verb_of_their_request() -> None:
    *_, asked = messages(opened((0, request(1, b"ab"))))
    told = []
    teller = InfoWithVerb()
    for number, ident in ((1, 7), (2, None), (3, 8)):
        message = copy(asked)
        message.number = number
        message.fields = {**message.fields, "verb": ident} if ident is not None else {"msg_id": 1}
        teller.learn(message)
    for named in (1, 2, 3, None, 99):
        answer = copy(asked)
        answer.name, answer.kind, answer.request, answer.fields = "Response", "response", named, {"msg_id": 1, "len": 3, "payload": "x"}
        told.append(teller(answer))
    assert told == ["#1  verb 7  3 bytes", "#1  3 bytes", "#1  verb 8  3 bytes", "#1  3 bytes", "#1  3 bytes"]
    assert len(teller.verbs) == 2


def test_as_many_verbs_are_remembered_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdump.protocols.seastar.info.MAX_REQUESTS", 3)
    *_, asked = messages(opened((0, request(1, b"ab"))))
    teller = InfoWithVerb()
    for number in range(10):
        message = copy(asked)
        message.number = number
        teller.learn(message)
    assert list(teller.verbs) == [7, 8, 9]


def test_what_was_declined_is_not_known_without_all_of_the_clients_negotiation() -> None:
    server = negotiation((1, b""), (2, bytes(8)))
    damaged = negotiation((0, b"LZ4"), (1, b""))
    damaged = damaged[:-2] + b"\xff\xff"
    for events in ([(1, server)], [(0, damaged), (1, server)]):
        (answer,) = [one for one in messages(events, syn=False) if one.sender == "server"]
        assert answer.fields["negotiated"]["declined"] is None
        assert "declines" not in info(answer)


def test_negative_request_ids_turn_the_meaning_round() -> None:
    failed = response(7, pack("<II", 0, 2) + b"no")
    asked: list[Sent] = [(0, request(-6)), (0, request(-7)), (0, request(8))]
    answered, failure, plain = messages(opened(*asked, (1, response(-6)), (1, failed), (1, response(8))))[5:]
    assert (answered.name, answered.id, answered.fields["msg_id"], answered.outcome) == ("Response", 6, -6, "answered")
    assert (failure.name, failure.id, failure.fields["text"], failure.outcome) == ("Exception", 7, "no", "refused")
    assert plain.name == "Response"


@pytest.mark.parametrize("detail", [False, True])
def test_a_later_request_with_the_opposite_id_turns_it_back(detail: bool) -> None:
    events = opened((0, request(-5)), (0, request(5)), (1, response(5, b"plain")))
    assert [one.name for one in messages(events, detail=detail)][2:] == ["Request", "Request", "Response"]


def test_a_timeout_that_was_over_already() -> None:
    (one,) = messages(opened((0, request(1, timeout=(1 << 64) - 1))))[2:]
    assert list(one.notes) == ["the timeout is negative as int64: over already, the server will not answer"]


def test_a_deadline_that_passed_is_said() -> None:
    asked, answered = messages(opened((0, request(1, timeout=50)), (1, response(1))))[2:]
    answered.time_ns = asked.time_ns + 49_000_000
    assert paired(asked, answered) == []
    answered.time_ns = asked.time_ns + 51_500_000
    assert paired(asked, answered) == ["1.5 ms after the deadline of 50 ms"]
    assert unanswered(asked, asked.time_ns + 50_000_000) is None
    assert unanswered(asked, asked.time_ns + 50_000_001) == "deadline passed"


def test_requests_whose_deadline_passed_say_so() -> None:
    records, _ = capture("timeout_expiry.pcap")
    assert Counter(one.reason for one in records if isinstance(one, Exchange)) == {"deadline passed": 7}
    records, _ = capture("no_wait.pcap")
    assert Counter(one.reason for one in records if isinstance(one, Exchange)) == {"closed": 9}


def test_the_share_of_the_server_is_said() -> None:
    answered = messages(opened((0, request(1)), (1, response(1, b"abc", 10_318))))[3]
    assert info(answered) == "#1  3 bytes  handler 10.32 ms"
    answered.latency_ns = 10_418_000
    assert info(answered) == "#1  3 bytes  handler 10.32 ms  network 100 µs"


# Streams


def test_a_stream_in_both_directions() -> None:
    parent = pack("<Q", 1 << 16)
    events = opened(
        (0, stream(b"abc") + stream(b"")),
        (1, stream(b"d") + END_OF_STREAM),
        (0, END_OF_STREAM),
        (0, stream(b"late")),
        client=((3, parent), (5, b"")),
        server=((2, pack("<Q", 2 << 16)), (5, b"")),
    )
    found = messages(events)
    assert found[1].fields["negotiated"]["connection"] == "stream"
    assert [(one.sender, one.name, one.kind, one.fields["len"]) for one in found[2:]] == [
        ("client", "Stream", "one_way", 3),
        ("client", "Stream", "one_way", 0),
        ("server", "Stream", "one_way", 1),
        ("server", "EndOfStream", "one_way", 0xFFFF_FFFF),
        ("client", "EndOfStream", "one_way", 0xFFFF_FFFF),
        ("client", "Stream", "one_way", 4),
    ]
    assert list(found[-1].notes) == ["after this side's end-of-stream"]


def test_of_a_stream_only_the_servers_answer_is_there() -> None:
    answer = negotiation((2, pack("<Q", 2 << 16)))
    events = [(1, answer), (0, stream(b"a" * 30)), (0, stream(b"b" * 20)), (1, stream(b"c" * 9)), (1, stream(b"d" * 8))]
    found = messages(events, syn=False)
    assert [one.name for one in found] == ["Negotiation", "Stream", "Stream", "Stream", "Stream"]
    assert [one.sender for one in found] == ["server", "client", "client", "server", "server"]
    assert list(found[-1].notes) == ["framing inferred: the client's negotiation was not captured"]
    calls = [
        (1, answer),
        (0, request(4, timeout=None)),
        (0, request(5, timeout=None)),
        (1, response(4, b"", None)),
        (1, response(5, b"", None)),
    ]
    assert [one.name for one in messages(calls, syn=False)] == ["Negotiation", "Request", "Request", "Response", "Response"]


def test_rows_are_related_by_server_and_id() -> None:
    blank = capture("raw_tail.pcap")[1].rows()[0]

    def row(number: int, server: str, **facts: Any) -> ConversationRow:
        return msgspec.structs.replace(blank, conversation=number, server=server, time_ns=number, facts=facts)

    rows = [
        row(0, "a:1", connection_id=5),
        row(1, "b:1", connection_id=5),
        row(2, "a:1", connection_id=5),
        row(3, "a:1", stream_parent=5, connection_id=6),
        row(4, "c:1", stream_parent=5),
    ]
    relate(rows)
    assert rows[3].facts["parent_conversation"] == 2
    assert rows[2].facts["stream_conversations"] == [3]
    assert "parent_conversation" not in rows[4].facts


# Compression

LZ4_TERMS = ((0, b"LZ4"), *DEFAULT)
FRAGMENTED_TERMS = ((0, b"LZ4_FRAGMENTED"), *DEFAULT)


def test_frames_in_lz4() -> None:
    plain = request(1, b"payload " * 20)
    events = opened((0, lz4(plain)), (1, lz4(exception(1, 0, b"no"))), client=LZ4_TERMS, server=LZ4_TERMS)
    asked, failed = messages(events)[2:]
    packed = len(lz4(plain))
    assert asked.size == packed
    assert asked.fields["compression"] == {"algorithm": "LZ4", "packed_size": packed - 4, "unpacked_size": len(plain)}
    assert list(asked.fields) == ["compression", "timeout", "verb", "msg_id", "len", "payload"]
    assert asked.fields["payload"] == (b"payload " * 20).hex()
    assert (failed.name, failed.id, failed.fields["text"]) == ("Exception", 1, "no")
    assert info(asked) == f"#1  verb 9  160 bytes  (LZ4: {len(plain)} bytes in {packed - 4})"


@pytest.mark.parametrize("size", [0, 1, 32_740, 32_741, 65_536, 70_000, 200_000])
def test_frames_in_many_chunks(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    events = opened((0, lz4_fragmented(request(1, payload))), client=FRAGMENTED_TERMS, server=FRAGMENTED_TERMS)
    (one,) = messages(events)[2:]
    assert one.fields["payload"] == payload.hex()
    assert one.fields["compression"]["unpacked_size"] == 28 + size


def test_chunks_refer_to_the_ones_before() -> None:
    # 32,768 literals, then a chunk that is one match over all of them, then one of 5 literals
    first = bytes(range(256)) * 128
    block = b"\xf0" + b"\xff" * (32_753 // 255) + bytes((32_753 % 255,)) + first
    rest = 32_768 - 5 - 4 - 15
    second = b"\x0f\x00\x01" + b"\xff" * (rest // 255) + bytes((rest % 255,)) + b"\x50" + bytes(range(251, 256))
    third = b"\x50hello"
    packed = b"".join(
        (pack("<I", len(block)), block, pack("<I", len(second)), second, pack("<I", 5 | 1 << 31), third),
    )
    frame = stream(packed)
    found = unpack(chunks("LZ4_FRAGMENTED", frame, 0, len(frame), 1 << 20), frame, 0)
    assert found == first + first + b"hello"


def test_empty_frames_are_said() -> None:
    events = opened((0, stream(b"") + stream(b"abc") + lz4(request(1))), (1, stream(b"")), client=LZ4_TERMS, server=LZ4_TERMS)
    empty, short, asked, back = messages(events)[2:]
    assert (empty.name, empty.kind, empty.size, empty.fields) == (
        "Empty",
        "one_way",
        4,
        {"compression": {"algorithm": "LZ4", "packed_size": 0, "unpacked_size": 0}},
    )
    assert short.fields["trailing"] == "616263"
    assert asked.name == "Request"
    assert back.sender == "server"


@pytest.mark.parametrize(
    ("frame", "offset", "reason"),
    [
        (stream(pack("<I", 0) + b"abcd"), 4, "an unpacked size of 0 is an error that closes the connection"),
        (
            stream(pack("<I", 1 << 31) + b"\x10a"),
            4,
            f"{1 << 31} unpacked bytes are over the limit of {UnpackPool().left + UnpackQuota.FREE + 10 * UnpackQuota.FOR_EACH} bytes",
        ),
        (stream(pack("<I", 1 << 20) + b"\x10a"), 4, f"2 bytes cannot unpack to {1 << 20}"),
        (stream(pack("<I", 50) + b"\xf0\xff"), 8, "not an LZ4 block of this size"),
        (stream(pack("<I", 9) + b"\x50hello"), 8, "unpacks to 5 bytes, not 9"),
    ],
)
def test_what_does_not_unpack_stays_packed(frame: bytes, offset: int, reason: str) -> None:
    events = opened((0, frame), (0, lz4(request(2))), client=LZ4_TERMS, server=LZ4_TERMS)
    damaged, following = messages(events)[2:]
    assert (damaged.name, damaged.kind, damaged.id) == ("Compressed", "one_way", None)
    assert damaged.fault is not None
    assert (damaged.fault.field, damaged.fault.offset, damaged.fault.reason) == ("compression", offset, reason)
    assert damaged.fields["packed"] == frame[4:].hex()
    assert following.name == "Request"


def test_faults_inside_a_compressed_frame_count_in_the_unpacked_bytes() -> None:
    whole = request(1, b"payload")
    events = opened((0, lz4(whole[:-3])), (0, lz4(whole + b"more")), client=LZ4_TERMS, server=LZ4_TERMS)
    short, surplus = messages(events)[2:]
    assert short.fault is not None
    assert (short.fault.buffer, short.fault.offset, short.fault.field) == ("unpacked", 28, "payload")
    assert surplus.fields["trailing"] == b"more".hex()
    assert surplus.fault is None


def test_of_a_compressed_frame_with_a_gap_the_header_is_read() -> None:
    frame = lz4(request(3, bytes(range(200))))
    events = opened((0, frame[:60]), (0, len(frame) - 60), (0, lz4(request(4))), client=LZ4_TERMS, server=LZ4_TERMS)
    damaged, following = messages(events)[2:]
    assert (damaged.name, damaged.id, damaged.fields["len"]) == ("Request", 3, 200)
    assert damaged.fault is not None
    assert damaged.fault.reason == f"{len(frame) - 60} bytes lost"
    assert following.id == 4


def test_other_algorithms_stay_packed() -> None:
    terms = ((0, b"XOR-TEST"), *DEFAULT)
    (one,) = messages(opened((0, stream(b"\x02secret")), client=terms, server=terms))[2:]
    assert (one.name, one.kind, one.fields["packed"]) == ("Compressed", "one_way", b"\x02secret".hex())
    assert list(one.notes) == ["compression XOR-TEST cannot be opened"]


def test_headers_of_chunks_alone_take_no_memory() -> None:
    def many(count: int) -> None:
        frame = stream(bytes(4) * count + pack("<I", 1 << 31))
        (one,) = messages(opened((0, frame), client=FRAGMENTED_TERMS, server=FRAGMENTED_TERMS), bytes_as="omit")[2:]
        assert one.fault is not None
        assert one.fault.reason == f"{32_768 * count} unpacked bytes are over the limit of {1 << 26} bytes"
        assert one.fields["compression"]["unpacked_size"] == 32_768 * count

    assert peak(lambda: many(100_000)) < 12 * 400_000


def test_records_of_a_negotiation_are_remembered_up_to_a_limit() -> None:
    names = b",".join(b"%d" % n for n in range(10_000))
    offer = read_offer(negotiation((0, names), *((n + 100, b"") for n in range(10_000))))
    assert len(offer.features) == MAX_FEATURES
    assert len(offer.algorithms) == MAX_ALGORITHMS
    assert offer.rest == 0


@given(st.binary(max_size=300), st.integers(0, 310))
def test_the_beginning_of_a_block_unpacks_to_the_beginning(data: bytes, cut: int) -> None:
    packed = bytes(cramjam.lz4.compress_block(data, store_size=False))
    assert data.startswith(unpack_head(packed[:cut]))
    assert unpack_head(packed) == data[:64]


@given(st.binary(max_size=200), st.sampled_from(["LZ4", "LZ4_FRAGMENTED"]))
def test_no_packed_bytes_are_trusted(data: bytes, algorithm: str) -> None:
    frame = stream(data)
    try:
        blocks = chunks(algorithm, frame, 0, len(frame), 1 << 16)
        assert len(unpack(blocks, frame, 0)) == sum(block.unpacked for block in blocks)
    except Unpackable as error:
        assert 4 <= error.offset <= len(frame)
    unpack_head(data)


# Without the whole negotiation


def test_a_damaged_answer_is_completed_by_the_size_of_what_is_missing() -> None:
    answer = negotiation((1, b""), (2, bytes(8)), (5, b""))
    events: list[Sent] = [(0, negotiation(*DEFAULT)), (1, answer[:30]), (1, len(answer) - 30), (0, request(1)), (1, response(1, b"x"))]
    found = messages(events)
    damaged, asked, answered = found[1:]
    assert damaged.name == "Negotiation"
    assert damaged.fault is not None
    assert "negotiated" not in damaged.fields
    assert answered.fields["handler_duration"] == 7
    assert list(asked.notes) == ["framing inferred: the server's negotiation is damaged"]


def test_a_lost_answer_is_inferred_from_the_offer() -> None:
    lost: list[Sent] = [(0, negotiation(*DEFAULT)), (1, 28)]
    calls: list[Sent] = [(0, request(1)), (1, response(1, b"x", None)), (0, request(2)), (1, response(2, b"y", None))]
    found = messages([*lost, *calls])
    # the responses are certain once the requests are, which only the first response lets one infer
    assert [(one.name, one.id) for one in found] == [
        ("Negotiation", None),
        ("Request", 1),
        ("Request", 2),
        ("Response", 1),
        ("Response", 2),
    ]
    assert "handler_duration" not in found[3].fields
    assert list(found[3].notes) == ["framing inferred: the server's negotiation was not captured"]


def test_of_small_segments_one_that_ends_with_a_frame_tells_no_framing() -> None:
    first, second = response(1, b"answered"), response(2, b"again")
    # The second segment ends where the frame would without its handler duration
    answers: list[Sent] = [(1, first[:9]), (1, first[9:20]), (1, first[20:]), (1, second)]
    found = messages([(0, negotiation(*DEFAULT)), (1, len(negotiation(*DEFAULT))), (0, request(1) + request(2)), *answers])
    assert [(one.id, one.size) for one in found if one.sender == "server"] == [(1, len(first)), (2, len(second))]


def test_midstream_both_sides() -> None:
    events: list[Sent] = [(0, request(number, b"abc") + request(number + 1)) for number in (100, 102)]
    events += [(1, response(101, b"answer")), (1, response(100))]
    found = messages(events, syn=False)
    assert [(one.name, one.id, one.sender) for one in found] == [
        *(("Request", number, "client") for number in (100, 101, 102, 103)),
        ("Response", 101, "server"),
        ("Response", 100, "server"),
    ]
    assert {tuple(one.notes) for one in found} == {("framing inferred: no negotiation was captured",)}


def test_one_frame_midstream_is_no_guess() -> None:
    records = read([(0, request(5, b"abc")), (1, response(5, b"d"))], syn=False)
    assert [(type(one), one.size) for one in records] == [(Gap, 31), (Gap, 17)]  # type: ignore[union-attr]


def test_a_frame_that_unpacks_in_two_framings_waits_for_the_next() -> None:
    # Without the timeout's 8 bytes verb 3 would be the msg_id, and the msg_id 24 the length of what follows.
    first = lz4(request(24, b"x" * 16, verb=3))
    answers: list[Sent] = [(1, lz4(response(1, b"a" * 20)) + lz4(response(2, b"b" * 20)))]
    told = messages([*answers, (0, first), (0, lz4(request(25, b"y", verb=3)))], syn=False)
    assert [(one.name, one.id, one.fields.get("verb")) for one in told[2:]] == [("Request", 24, 3), ("Request", 25, 3)]
    assert [one.name for one in messages([*answers, (0, first)], syn=False)] == ["Response", "Response"]


def test_after_a_gap_over_a_header_reading_goes_on_at_a_segment() -> None:
    lost = request(2, b"lost")
    events = opened((0, request(1)), (0, lost[:9]), (0, len(lost) - 9), (0, request(3, b"abc")), (0, request(4)))
    records = read(events)
    assert [record.id for record in records if isinstance(record, Message)][2:] == [1, 3, 4]
    assert [(gap.reason, gap.size, gap.in_frame) for gap in records if isinstance(gap, Gap)] == [
        ("skipped", 9, False),
        ("lost", len(lost) - 9, False),
    ]


def test_after_a_gap_the_end_of_a_compressed_stream_is_read() -> None:
    terms = {"client": ((0, b"LZ4"), (3, bytes(8))), "server": ((0, b"LZ4"), (2, bytes(8)))}
    for frame, told in ((lz4(END_OF_STREAM), ["Stream", "EndOfStream"]), (END_OF_STREAM, ["Stream"])):
        records = read(opened((0, lz4(stream(b"abc"))), (0, 30), (0, frame), **terms))
        assert [record.name for record in records if isinstance(record, Message)][2:] == told


def test_after_a_gap_a_request_that_may_wait_for_millions_of_years_is_chance() -> None:
    text = request(12, b"\0\0", 7_000, int.from_bytes(b" segment", "little"))
    for piece, told in ((text, []), (request(12, b"\0\0", 7_000, 5), [12])):
        records = read(opened((0, request(3)[:9]), (0, 30), (0, piece), (0, 30)))
        assert [record.id for record in records if isinstance(record, Message)][2:] == told


def test_after_a_gap_reading_goes_on_in_the_middle_of_a_segment() -> None:
    lost = request(2, b"lost")
    frames = [request(number, b"x" * number) for number in range(3, 10)]
    rest = b"".join(frames)
    for cut, wanted in (
        (len(rest), range(3, 10)),
        (len(b"".join(frames[:5])) + 30, range(3, 10)),
        (len(b"".join(frames[:5])) + 9, range(3, 10)),
    ):
        # what is behind the gap is whole at the end of a segment, or enough of it to be no chance
        pieces: list[Sent] = [(0, lost[-3:] + rest[:cut]), *([(0, rest[cut:])] if rest[cut:] else [])]
        events = opened((0, request(1)), (0, lost[:9]), (0, len(lost) - 12), *pieces)
        records = read(events)
        assert [record.id for record in records if isinstance(record, Message)][2:] == [1, *wanted]
        assert [(gap.reason, gap.size) for gap in records if isinstance(gap, Gap)] == [
            ("skipped", 9),
            ("lost", len(lost) - 12),
            ("skipped", 3),
        ]
        assert encoded(records) == encoded(read(events, bulk=True))
    answers = [response(number, b"y") for number in (4, 2, 3)]
    events = opened((0, request(1) + lost + rest), (1, response(1)[:5]), (1, 11), (1, b"".join([b"tail", *answers])))
    found = [record for record in read(events) if isinstance(record, Message) and record.sender == "server"]
    assert [one.id for one in found][1:] == [4, 2, 3]


def test_what_happens_to_look_like_a_frame_behind_a_gap_is_none() -> None:
    lost = request(2, b"lost")
    inner = request(5, b"inner") + request(6, b"and another")
    for body in (request(5, b"once"), inner + b"more", bytes(400), pack("<Q", 3) * 50, inner + bytes(31)):
        events = opened((0, request(1)), (0, lost[:9]), (0, len(lost) - 9), (0, b"any" + body))
        assert [record.id for record in read(events) if isinstance(record, Message)][2:] == [1]


def test_one_frame_with_a_large_id_is_not_enough_where_no_id_is_known() -> None:
    events = opened((0, request(1)[:9]), (0, 19), (0, request(3 << 24, b"by chance")), (0, request(7, b"true")), (0, request(8)))
    records = read(events)
    assert [record.id for record in records if isinstance(record, Message)][2:] == [7, 8]
    assert [gap.reason for gap in records if isinstance(gap, Gap)] == ["skipped", "lost", "skipped"]


def test_a_negotiation_alone_does_not_say_who_is_the_client() -> None:
    plain = negotiation((1, b""))
    both = messages([(1, plain), (0, plain), (1, request(1)), (0, response(1, b"", None))], syn=False)
    assert [(one.sender, one.kind) for one in both] == [("client", "request"), ("server", "response")] * 2
    answer = messages([(1, plain), (0, request(7)), (0, request(8)), (1, response(7, b"", None))], syn=False)
    assert [(one.name, one.sender) for one in answer] == [
        ("Negotiation", "server"),
        ("Request", "client"),
        ("Request", "client"),
        ("Response", "server"),
    ]
    refused = messages([(1, plain)], syn=False)
    assert [(one.name, one.sender, one.kind) for one in refused] == [("Negotiation", "client", "request")]


@pytest.mark.parametrize("layout", ["stream", "rpc+timeout", "rpc+duration+lz4"])
def test_a_layout_can_be_forced(layout: str) -> None:
    frames: dict[str, list[Sent]] = {
        "stream": [(0, stream(b"abc")), (1, stream(b"d"))],
        "rpc+timeout": [(0, request(5)), (1, response(5, b"x", None))],
        "rpc+duration+lz4": [(0, lz4(request(5, timeout=None))), (1, lz4(response(5)))],
    }
    found = messages(frames[layout], syn=False, client=0, layout=layout)
    assert [one.position for one in found] == [0, 0]
    assert [one.name for one in found] == (["Stream"] * 2 if layout == "stream" else ["Request", "Response"])
    assert not found[0].notes


@pytest.mark.parametrize("packed", [bytes, lz4, lz4_fragmented])
@pytest.mark.parametrize("size", [100_000, 1_300_000])
def test_no_large_frame_is_lost_behind_one_whose_head_is(size: int, packed: Callable[[bytes], bytes]) -> None:
    chance = random.Random(size)
    names = () if packed is bytes else ((0, b"LZ4" if packed is lz4 else b"LZ4_FRAGMENTED"),)
    sent: list[Sent] = []
    for number in range(1, 5):
        for side, made in enumerate((request, response)):
            data = packed(made(number, chance.randbytes(size)))
            # The head of the second one of each side is lost
            sent.append((side, 60_000 if number == 2 else data[:60_000]))
            sent += [(side, data[at : at + 60_000]) for at in range(60_000, len(data), 60_000)]
    found = messages(opened(*sent, client=(*names, *DEFAULT), server=(*names, *DEFAULT)))
    assert [(one.name, one.id) for one in found[2:]] == [(name, number) for number in (1, 3, 4) for name in ("Request", "Response")]
    assert all(one.fault is None for one in found)


@pytest.mark.parametrize(("frame_limit", "told"), [(1_200_000, [1, 4, 5]), (1_400_000, [1, 3, 4, 5])])
def test_behind_a_loss_a_large_frame_is_believed_up_to_the_limit_of_frames(frame_limit: int, told: list[int]) -> None:
    large = request(3, bytes(1_300_000))
    parts = [(0, large[at : at + 60_000]) for at in range(0, len(large), 60_000)]
    found = messages(opened((0, request(1)), (0, 60), *parts, (0, request(4)), (0, request(5))), frame_limit=frame_limit)
    assert [one.id for one in found[2:]] == told


# Detection


def view(first: list[bytes], second: list[bytes], syn: bool = False, final: bool = True) -> DetectionView:
    sides = []
    for segments in (first, second):
        starts = [sum(map(len, segments[:index])) for index in range(len(segments))]
        sides.append(SideView([(0, b"".join(segments))] if segments else [], syn, starts))
    return DetectionView((sides[0], sides[1]), (4001, 4002), syn, final)


def test_the_magic_is_certain() -> None:
    verdict = heuristic(view([negotiation(*DEFAULT)], [], syn=True, final=False))
    assert verdict is not None
    assert (verdict.confidence, verdict.client) == (1.0, 0)
    verdict = heuristic(view([], [negotiation((3, bytes(8)))]))
    assert verdict is not None
    assert verdict.client == 1
    verdict = heuristic(view([negotiation((2, bytes(8)))], []))
    assert verdict is not None
    assert verdict.client == 1


def test_what_begins_otherwise_is_not_claimed() -> None:
    assert heuristic(view([b"GET / HTTP/1.1\r\n\r\n"], [], syn=True)) is None
    assert heuristic(view([b"SSTAR"], [], syn=True, final=False)) is None
    assert heuristic(view([request(1) + request(2)] * 3, [response(1) + response(2)], syn=True)) is None


def test_midstream_is_claimed_by_chains_of_both_sides() -> None:
    asked = [request(number, b"abc") for number in range(10, 14)]
    answered = [response(number, b"d") for number in range(10, 13)]
    verdict = heuristic(view(asked, answered, final=False))
    assert verdict is not None
    assert verdict.client == 0
    assert verdict.confidence >= 0.9
    assert "chain as request with timeout" in verdict.evidence[0]


def test_midstream_large_frames_of_one_side_are_followed_where_the_other_side_fits() -> None:
    def cut(*frames: bytes) -> list[bytes]:
        sent = bytes([97]) * 5_000 + b"".join(frames)
        return [sent[at : at + 1_000] for at in range(0, 5_000, 1_000)] + [
            frame[at : at + 1_000] for frame in frames for at in range(0, len(frame), 1_000)
        ]

    large = cut(*(request(number, bytes([98]) * 150_000) for number in (11, 12)))
    small = [response(number, b"d") for number in (10, 11)]
    for sides in ((large, small), (small, large)):
        verdict = heuristic(view(*sides))
        assert verdict is not None
        assert (verdict.client, verdict.confidence >= 0.9) == (int(sides[1] is large), True)
        assert heuristic(view(*sides, final=False)) is None
    answered = cut(*(response(number, bytes([98]) * 150_000) for number in (10, 11)))
    verdict = heuristic(view([request(number, b"d") for number in (11, 12)], answered))
    assert verdict is not None
    assert verdict.client == 0
    for other in (
        cut(request(11, bytes([98]) * 150_000)),
        cut(request(11, bytes([98]) * 150_000), request(11, bytes([98]) * 150_000)),
        cut(request(1, bytes([98]) * 150_000), request(2, bytes([98]) * 150_000)),
        answered,
    ):
        assert heuristic(view(other, small)) is None


def test_midstream_many_frames_of_one_side_are_followed_over_any_number_of_segments() -> None:
    rest = [bytes([97]) * 1_000] * 20
    answers = [response(number, b"d") for number in range(11, 19)]
    verdict = heuristic(view(rest, answers))
    assert verdict is not None
    assert (verdict.client, verdict.confidence >= 0.9) == (0, True)
    assert heuristic(view(rest, answers, final=False)) is None
    assert heuristic(view(rest, answers[:7])) is None


def test_streams_and_lone_frames_are_never_guessed() -> None:
    assert heuristic(view([stream(b"abc"), stream(b"defg")] * 9, [stream(b"h")] * 9)) is None
    assert heuristic(view([request(5)], [response(5)])) is None
    assert heuristic(view([bytes(4000)], [bytes(4000)])) is None


# Names of verbs


def test_names_of_verbs() -> None:
    scylla = load_verbs("scylla")
    assert (scylla[0], scylla[77], scylla[93], len(scylla)) == ("CLIENT_ID", "TABLE_LOAD_STATS", "BACKUP_SNAPSHOT_SSTABLES", 94)
    calls: list[Sent] = [(0, request(ident, verb=verb)) for ident, verb in ((1, 3), (2, 6), (3, 1000))]
    asked, gossip, unknown = messages(opened(*calls), verbs=scylla)[2:]
    assert list(asked.fields) == ["timeout", "verb", "verb_label", "msg_id", "len", "payload"]
    assert (asked.fields["verb_label"], asked.kind) == ("READ_DATA", "request")
    assert info(asked) == "#1  READ_DATA  0 bytes"
    assert (gossip.fields["verb_label"], gossip.kind) == ("GOSSIP_DIGEST_SYN", "one_way")
    assert unknown.fields["verb_label"] is None
    assert info(unknown) == "#3  verb 1000  0 bytes"
    failed = messages(opened((1, exception(1, 1, pack("<Q", 4)))), verbs=scylla)[2]
    assert failed.fields["verb_label"] == "READ_MUTATION_DATA"


def test_scyllas_calls_without_a_reply() -> None:
    records, _ = capture("scylla_raft.pcap", verbs=load_verbs("scylla"))
    assert not any(isinstance(record, Exchange) for record in records)
    kinds = {record.fields["verb_label"]: record.kind for record in records if isinstance(record, Message) and record.name == "Request"}
    answered = ("DIRECT_FD_PING", "TABLE_LOAD_STATS", "FETCH_COLUMN_MAPPINGS")
    silent = ("CLIENT_ID", "GOSSIP_DIGEST_SYN", "RAFT_APPEND_ENTRIES", "RAFT_APPEND_ENTRIES_REPLY", "RAFT_VOTE_REQUEST", "NOTIFY_BANNED")
    assert kinds == dict.fromkeys(answered, "request") | dict.fromkeys(silent, "one_way")


def test_verbs_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "verbs.txt"
    path.write_text("# calls of the bank\n5 = echo\n0x100000007 = wide  # big\n\n6 = notify [no-wait]\n")
    verbs = load_verbs(str(path))
    assert verbs == {5: "echo", 0x1_0000_0007: "wide", 6: "notify"}
    assert verbs.one_way == {6}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("5 echo", "x line 1: '5 echo' is not `number = name`"),
        ("\n5 =", "x line 2: '5 =' is not `number = name`"),
        ("five = echo", "x line 1: 'five' is not a number"),
        ("-1 = echo", "x line 1: -1 is not a 64-bit verb"),
        ("5 = a\n5 = b", "x line 2: verb 5 is named twice"),
        ("5 = [no-wait]", "x line 1: verb 5 has no name"),
    ],
)
def test_a_bad_file_of_verbs(text: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_verbs(text, "x")
    assert str(raised.value) == error


def test_no_such_verbs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--verbs takes scylla or a file"):
        load_verbs(str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="must be UTF-8"):
        load_verbs(str(tmp_path / "bytes"))


def test_the_entry_in_the_list_of_protocols() -> None:
    (entry,) = PROTOCOLS
    assert (entry.name, entry.loaded.dissector) == ("seastar-rpc", SeastarDissector)
    assert "stream" in entry.loaded.forced
