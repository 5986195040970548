"""mewbase: frames over every date of the protocol, pairing, framing in trouble, detection, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bson as pymongo
import msgspec
import pytest
from bson import Int64
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import END, Exchange, Gap, Message, Options, SideData, StreamGap, Verdict
from streamdump.pair.exchanges import Link, PairOutputs, PairRules, behind
from streamdump.pair.pairer import Pairer
from streamdump.protocols.mewbase import PROTOCOLS
from streamdump.protocols.mewbase.dissector import REST_NOTE, MewbaseDissector
from streamdump.protocols.mewbase.heuristic import heuristic
from streamdump.protocols.mewbase.info import info, unanswered
from streamdump.protocols.mewbase.layouts import FRAMES
from streamdump.protocols.mewbase.request_order import AHEAD, CUT, EARLY, MIDDLE
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context, DetectionView, SideView
from streamdump.protocols.records import ORDER_KEY, Event

CAPTURES = Path(__file__).parents[2] / "captures" / "golden" / "mewbase"

EVENT = {"id": "o-0001", "qty": 1, "price": 1.25, "gift": False}

CONNECT = bytes.fromhex(
    "3e000000"  # the frame's 62 bytes
    "02747970650008000000434f4e4e45435400"  # type CONNECT
    "036672616d65002000000002"  # frame, 32 bytes
    "76657273696f6e0004000000302e3100"  # version 0.1
    "0a61757468496e666f00"  # authInfo null
    "0000"
)
OK = bytes.fromhex("290000000274797065000900000052 4553504f4e534500036672616d65000a000000086f6b00010000")


def frame(kind: str, /, **fields: Any) -> bytes:
    return pymongo.encode({"type": kind, "frame": fields})


def rest(data: bytes, inside: bool) -> bytes:
    """The frame with lengths as the document describes them."""
    out = bytearray(data)

    def lower(at: int) -> None:
        size = int.from_bytes(out[at : at + 4], "little")
        out[at : at + 4] = (size - 4).to_bytes(4, "little")

    inner = 21 + data[10]
    lower(0)
    if inside:
        lower(inner)
        for key in (b"\x03event\0", b"\x03authInfo\0"):
            if key in data:
                lower(data.index(key) + len(key))
    return bytes(out)


def parser(syn: bool = True, client: int | None = 0, **options: Any) -> Parser:
    how = Options(**options)
    verdict = Verdict("mewbase", 1.0, ())
    return Parser(PROTOCOLS[0], how, Context(0, ("10.0.0.1:1", "10.0.0.2:7451"), (1, 7451), client, syn, verdict, how))


def pieces(packets: list[tuple[int, bytes]]) -> list[SideData | StreamGap]:
    """One a packet; packet n is at n seconds."""
    position = [0, 0]
    made: list[SideData | StreamGap] = []
    for order, (side, data) in enumerate(packets):
        made.append(SideData(side, position[side], data, (order, order + 1, 0, order * 10**9)))
        position[side] += len(data)
    return made


def run(items: list[SideData | StreamGap], one: Parser | None = None, each: bool = True) -> list[Event]:
    """The records of these, `each` by itself or all with one packet, one side after the other."""
    one = one or parser()
    emitted = []
    for part in [[item] for item in items] if each else [sorted(items, key=lambda item: item.side)]:
        emitted += one.process(part)
    last = max((item.order for item in items), default=0)
    return emitted + one.close((last, last + 1, 0, last * 10**9), END)


def paired(packets: list[tuple[int, bytes]], one: Parser | None = None) -> list[Any]:
    """The records of these packets, numbered and paired."""
    links: list[Link] = []
    pairer = Pairer(PairRules("supersede", 65536, False), PairOutputs(links, []))
    out = pairer.process(run(pieces(packets), one)) + pairer.close("closed", behind())
    records = [emitted.record for emitted in out]
    for number, record in enumerate(records, 1):
        record.number = number
    for record, asked, _ in links:
        record.request = asked.record.number
    return records


def messages(packets: list[tuple[int, bytes]], one: Parser | None = None) -> list[Message]:
    return [record for record in paired(packets, one) if isinstance(record, Message)]


# Frames of every type


EVERY_TYPE: list[tuple[int, bytes, str, int | None]] = [
    (0, CONNECT, "request", None),
    (1, OK, "response", None),
    (0, frame("PUB", channel="c", sessID=-1, event=EVENT, rID=7), "request", 7),
    (0, frame("EMIT", channel="c", sessID=0, event=EVENT), "request", None),
    (0, frame("STARTTX", sessID=1, rID=2), "request", 2),
    (0, frame("COMMITTX", sessID=1, rID=3), "request", 3),
    (0, frame("ABORTTX", sessID=1, rID=4), "request", 4),
    (
        0,
        frame("SUBSCRIBE", channel="c", startPos=Int64(-1), startTimestamp=Int64(0), durableID=None, filterName=None, rID=5),
        "request",
        5,
    ),
    (1, frame("SUBRESPONSE", ok=True, subID=0, rID=5), "response", 5),
    (0, frame("UNSUBSCRIBE", subID=0, rID=6), "request", 6),
    (0, frame("SUBCLOSE", subID=0, rID=6), "request", 6),
    (1, frame("RECEV", subID=3, event=EVENT, pos=Int64(9), timestamp=Int64(1500000000000)), "one_way", 3),
    (0, frame("ACKEV", subID=3, pos=Int64(9), bytes=144), "one_way", 3),
    (0, frame("QUERY", name="all", params={}, queryID=60, rID=61), "request", 60),
    (1, frame("QUERYRESULT", ok=True, queryID=60, result=EVENT, last=False), "response", 60),
    (0, frame("QUERYACK", queryID=60, bytes=100), "one_way", 60),
    (1, frame("QUERYRESPONSE", queryID=60, numResults=0), "response", 60),
    (0, frame("FINDBYID", binder="b", dodID="x", rID=8), "request", 8),
    (0, frame("PING"), "one_way", None),
    (0, frame("LISTBINDERS", rID=9), "request", 9),
    (0, frame("CREATEBINDER", name="b", rID=9), "request", 9),
    (0, frame("LISTCHANNNELS", rID=9), "request", 9),
    (0, frame("CREATECHANNEL", name="b", rID=9), "request", 9),
    (0, frame("COMMAND", name="b", command={"x": 1}, rID=9), "request", 9),
]


def test_every_table_is_tried() -> None:
    assert {table.name for table in FRAMES} == {pymongo.decode(data)["type"] for _, data, _, _ in EVERY_TYPE}


@pytest.mark.parametrize(("side", "data", "kind", "ident"), EVERY_TYPE)
def test_every_type(side: int, data: bytes, kind: str, ident: int | None) -> None:
    one = parser(syn=False)
    before: list[tuple[int, bytes]] = [(0, frame("PING")), (1, OK)]
    message = messages([*before, (side, data)], one)[2]
    document = pymongo.decode(data)
    assert message.name == document["type"]
    assert (message.kind, message.id, message.size) == (kind, ident, len(data))
    assert message.fields == {"size": len(data), **document}
    assert list(message.fields["frame"]) == list(document["frame"])
    assert message.sender == ("client", "server")[side]
    assert message.fault is None
    assert [note for note in message.notes if "by order" not in note] == []
    assert isinstance(info(message), str)


def test_error_codes_have_labels() -> None:
    packets = [(0, frame("LISTBINDERS", rID=1)), (1, frame("RESPONSE", rID=1, ok=False, errCode=2, errMsg="User is not authorised"))]
    refused = messages(packets)[1]
    assert refused.outcome == "refused"
    assert list(refused.fields["frame"].items()) == [
        ("rID", 1),
        ("ok", False),
        ("errCode", 2),
        ("errCode_label", "not authorised"),
        ("errMsg", "User is not authorised"),
    ]
    assert info(refused) == "#1  refused 2 not authorised: User is not authorised"
    text = messages([packets[0], (1, frame("RESPONSE", rID=1, ok=False, errCode="TX_STATE", errMsg="no"))])[1]
    assert text.fields["frame"]["errCode_label"] is None
    assert text.notes == ()


# Fields against the table


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        (frame("PUB", sessID=0, rID=1), ["mandatory field channel is missing", "mandatory field event is missing"]),
        (frame("PUB", streamName="x", event={}, rID=1), []),
        (frame("PUB", channel="x", event={}, colour=1, rID=1), ["PUB has no field colour"]),
        (frame("PUB", channel=5, event="x", rID=1), ["channel is a number, not string", "event is a string, not document"]),
        (frame("PUB", channel="x", event=pymongo.ObjectId(b"x" * 12), rID=1), ["event is of a special type, not document"]),
        (frame("LISTCHANNNELS", rID=1.0), []),
        (frame("LISTCHANNNELS", rID=Int64(1)), []),
        (frame("LISTCHANNNELS"), ["mandatory field rID is missing"]),
        (frame("QUERY", binder="b", docID="x", queryID=1, rID=2), []),
        (frame("QUERY", queryID=1, rID=2), ["mandatory field name is missing", "mandatory field params is missing"]),
        (frame("SUBSCRIBE", channel="c", startTimestamp=Int64(5), rID=1), []),
        (pymongo.encode({"type": "PING"}), ["mandatory field frame is missing"]),
        (pymongo.encode({"type": "PING", "frame": 5}), ["frame is not a document"]),
        (pymongo.encode({"frame": {"rID": 1}}), ["mandatory field type is missing"]),
        (pymongo.encode({"type": 5, "frame": {}}), ["type is not a string"]),
        (frame("PUBLISH", rID=1), ["PUBLISH is the document's name for PUB; servers drop it without an answer"]),
        (frame("FROBNICATE", rID=1), ["no server knows this type; they drop it without an answer"]),
    ],
)
def test_notes_on_fields(data: bytes, notes: list[str]) -> None:
    for detail in (False, True):
        message = messages([(0, CONNECT), (0, data)], parser(detail=detail))[1]
        assert list(message.notes) == notes
        assert message.fault is None


def test_names_of_frames_without_a_known_type() -> None:
    kept = messages([(0, CONNECT), (0, frame("FROBNICATE", x=1))])[1]
    assert (kept.name, kept.kind) == ("FROBNICATE", "one_way")
    without = messages([(0, CONNECT), (0, pymongo.encode({"frame": {}}))])[1]
    assert (without.name, without.kind, without.fields) == ("unknown", "one_way", {"size": 17, "frame": {}})


def test_repeated_fields() -> None:
    twice = bytes.fromhex("10" + b"rID\0".hex() + "01000000") * 2
    inner = (len(twice) + 5).to_bytes(4, "little") + twice[:-4] + b"\x02\0\0\0\0"
    body = b"\x02type\0\x0c\0\0\0LISTBINDERS\0\x03frame\0" + inner + b"\0"
    message = messages([(0, CONNECT), (0, (len(body) + 4).to_bytes(4, "little") + body)])[1]
    assert message.fields["frame"] == [{"key": "rID", "value": 1}, {"key": "rID", "value": 2}]
    assert message.id == 2
    assert message.notes == ["frame repeats a field: servers take the last one"]
    outer = b"\x02type\0\x02\0\0\0X\0\x02type\0\x05\0\0\0PING\0\x03frame\0\x05\0\0\0\0\0"
    message = messages([(0, CONNECT), (0, (len(outer) + 4).to_bytes(4, "little") + outer)])[1]
    assert (message.name, message.notes) == ("PING", ["repeated field: servers take the last one"])
    assert [pair["key"] for pair in message.fields["document"]] == ["type", "type", "frame"]


@pytest.mark.parametrize("key", ["rID", {"a": 1}, [1], 5])
def test_an_array_in_place_of_the_frame(key: Any) -> None:
    message = messages([(0, CONNECT), (0, pymongo.encode({"type": "PING", "frame": [{"key": key, "value": 2}]}))])[1]
    assert message.fields["frame"] == [{"key": key, "value": 2}]
    assert (message.id, message.notes) == (None, ["frame is not a document"])


def test_ids_that_are_no_integers() -> None:
    told = messages([(0, CONNECT), *[(1, frame("RESPONSE", ok=True, rID=one)) for one in (6.0, 1e300, -1e300)]])[1:]
    assert [one.id for one in told] == [6, "1e+300", "-1e+300"]


def test_another_order_of_fields() -> None:
    data = pymongo.encode({"frame": {"rID": 3}, "extra": 1, "type": "LISTBINDERS"})
    message = messages([(0, data), (0, frame("PING"))])[0]
    assert (message.name, message.id) == ("LISTBINDERS", 3)
    assert message.fields == {"size": len(data), "frame": {"rID": 3}, "extra": 1, "type": "LISTBINDERS"}


def test_what_real_servers_let_pass() -> None:
    good = frame("PUB", channel="c", event={"z": 1}, rID=4)
    wrong = good.replace(b"event\0\x0c", b"event\0\x63")
    message = messages([(0, CONNECT), (0, wrong)])[1]
    assert message.fields["frame"] == {"channel": "c", "event": {"z": 1}, "rID": 4}
    assert message.fault is not None
    assert message.fault.field == "frame.event"
    odd = frame("RESPONSE", ok=True, rID=4).replace(b"ok\0\x01", b"ok\0\x05")
    message = messages([(0, good), (1, odd)])[1]
    assert (message.fields["frame"], message.outcome, message.request) == ({"ok": 5, "rID": 4}, "answered", 1)
    assert message.notes == ["frame.ok: boolean is 05"]
    longer = frame("PING")[1:] + b"\1\2\3"
    message = messages([(0, CONNECT), (0, bytes([35]) + longer)])[1]
    assert message.fields == {"size": 35, "type": "PING", "frame": {}, "trailing": "010203"}
    assert message.notes == ["3 bytes after the end of the document"]


# Pairing


def test_answers_by_rid_in_any_order() -> None:
    packets = [(0, CONNECT), (1, OK), *((0, frame("LISTBINDERS", rID=n)) for n in range(4))]
    packets += [(1, frame("RESPONSE", ok=True, rID=n)) for n in (2, 0, 3, 1)]
    found = messages(packets)
    assert [message.request for message in found] == [None, 1, None, None, None, None, 5, 3, 6, 4]
    assert found[6].latency_ns == 2 * 10**9
    assert {message.outcome for message in found if message.kind == "response"} == {"answered"}


def test_numbers_of_other_types_pair() -> None:
    for rid in (Int64(5), 5.0):
        assert messages([(0, CONNECT), (0, frame("LISTBINDERS", rID=rid)), (1, frame("RESPONSE", ok=True, rID=5))])[2].request == 2


def test_the_first_response_answers_connect_and_a_query_is_answered_by_its_results() -> None:
    packets = [(0, CONNECT), (0, frame("QUERY", name="q", params={}, queryID=1, rID=2)), (1, OK)]
    packets += [(1, frame("QUERYRESULT", ok=True, queryID=1, result={}, last=last)) for last in (False, False, True)]
    packets += [(1, frame("QUERYRESULT", ok=True, queryID=1, result={}, last=True))]
    records = paired(packets)
    assert [record.request for record in records] == [None, None, 1, 2, 2, 2, None]
    assert [record.outcome for record in records[3:]] == ["answered", "answered", "answered", None]
    failed = messages([packets[1], (1, frame("QUERYRESULT", ok=False, queryID=1, last=True, errCode=5, errMsg="no"))])[1]
    assert (failed.request, failed.outcome) == (1, "refused")


def test_old_connections_answer_in_order() -> None:
    packets = [(0, frame("CONNECT", version="0.1")), (1, OK), (0, frame("SUBSCRIBE", channel="c"))]
    packets += [(0, frame("EMIT", channel="c", event={})), (1, frame("SUBRESPONSE", ok=True, subID=0)), (1, OK)]
    packets += [(0, frame("QUERY", binder="b", matcher={}, queryID=0)), (1, frame("QUERYRESPONSE", queryID=0, numResults=2))]
    packets += [(1, frame("QUERYRESULT", queryID=0, result={}))] * 2
    found = messages(packets)
    assert [message.request for message in found] == [None, 1, None, None, 3, 4, None, 7, 7, 7]
    assert all(not message.notes for message in found)
    # the query is closed: a third result belongs to nothing
    assert messages([*packets, (1, frame("QUERYRESULT", queryID=0, result={}))])[-1].request is None


def test_what_was_asked_before_an_answered_subscription_is_not_answered_any_more() -> None:
    emit = frame("EMIT", channel="c", event={})
    packets = [(0, frame("CONNECT", version="0.1")), (1, OK), (0, emit), (0, frame("SUBSCRIBE", channel="c"))]
    packets += [(1, frame("SUBRESPONSE", ok=True, subID=0)), (0, emit), (1, OK)]
    assert [message.request for message in messages(packets)] == [None, 1, None, None, 4, None, 6]


def test_pairing_by_order_says_when_it_is_unsure() -> None:
    one = parser()
    made = pieces([(0, frame("CONNECT", version="0.1")), (1, OK), (0, frame("EMIT", channel="c", event={}))])
    position = len(frame("CONNECT", version="0.1")) + len(frame("EMIT", channel="c", event={}))
    gap = StreamGap(0, position, 100, "lost", 3, 4, 0, 3 * 10**9)
    later = frame("EMIT", channel="d", event={})
    made += [gap, SideData(0, position + 100, later, (3, 4, 0, 3 * 10**9)), SideData(1, len(OK), OK, (4, 5, 0, 4 * 10**9))]
    links: list[Link] = []
    out = Pairer(PairRules("supersede", 100, False), PairOutputs(links, [])).process(run(made, one))
    answer = out[-1].record
    assert answer.name == "RESPONSE"
    assert answer.notes == ["paired by order although bytes were lost: unsure"]


def snapped(packets: list[tuple[int, bytes, int | None]], one: Parser | None = None) -> list[Any]:
    """As `paired`, of packets of which only so many bytes were captured; messages alone are counted."""
    position = [0, 0]
    items: list[SideData | StreamGap] = []
    for order, (side, data, keep) in enumerate(packets):
        kept = data[:keep]
        at, time_ns = position[side], order * 10**9
        items.append(SideData(side, at, kept, (order, order + 1, 0, time_ns)))
        if len(kept) < len(data):
            items.append(StreamGap(side, at + len(kept), len(data) - len(kept), "cut", order, order + 1, 0, time_ns))
        position[side] += len(data)
    links: list[Link] = []
    pairer = Pairer(PairRules("supersede", 65536, True, unanswered=unanswered), PairOutputs(links, []))
    emitted = sorted(run(items, one), key=ORDER_KEY)
    records: list[Any] = [each.record for each in pairer.process(emitted) + pairer.close("closed", behind())]
    for number, record in enumerate([one for one in records if isinstance(one, Message)], 1):
        record.number = number
    for record, asked, _ in links:
        record.request = asked.record.number
    return records


def test_a_frame_whose_rid_is_cut_stays_unpaired_once_rids_were_seen() -> None:
    emit = frame("EMIT", channel="c", event={"text": "x" * 50}, rID=4)
    answer = frame("RESPONSE", ok=True, padding="x" * 50, rID=4)
    greeting = [(0, CONNECT, None), (1, OK, None)]
    greeting += [(0, frame("LISTBINDERS", rID=3), None), (1, frame("RESPONSE", ok=True, rID=3), None)]
    said = [one for one in snapped([*greeting, (0, emit, 60), (1, answer, 60)]) if isinstance(one, Message)]
    assert [(one.request, one.outcome) for one in said[3:]] == [(3, "answered"), (None, None), (None, None)]
    # also where a whole request waits, or was cut before the first rID came
    said = [one for one in snapped([*greeting, (0, frame("LISTBINDERS"), None), (1, answer, 60)]) if isinstance(one, Message)]
    assert said[-1].request is None
    emit = frame("SUBSCRIBE", channel="x" * 50, rID=4)
    records = snapped([(0, CONNECT, 45), (1, OK, None), (0, emit, 60), (1, frame("RESPONSE", ok=True, rID=4), None), (1, answer, 60)])
    said = [one for one in records if isinstance(one, Message)]
    assert [one.request for one in said] == [None, 1, None, None, None]
    assert [(one.name, one.reason) for one in records if isinstance(one, Exchange) and one.outcome == "unanswered"] == [
        ("SUBSCRIBE", "bytes lost")
    ]


def test_a_cut_answer_to_connect_is_still_the_first_one() -> None:
    answer = frame("RESPONSE", ok=True, padding="x" * 50)
    packets = [(0, CONNECT, None), (0, frame("LISTBINDERS", rID=3), None), (1, answer, 60)]
    said = [one for one in snapped(packets) if isinstance(one, Message)]
    assert (said[2].request, said[2].notes) == (1, [])
    held = [(0, CONNECT, None), (0, frame("LISTBINDERS", rID=3), None), (1, frame("RESPONSE", ok=True, rID=3), None), (1, answer, 60)]
    assert [one.request for one in snapped(held) if isinstance(one, Message)] == [None, None, 2, None]


def test_cut_frames_of_which_nobody_knows_whether_they_had_a_rid_are_paired_with_a_note() -> None:
    ask = frame("SUBSCRIBE", channel="x" * 50)
    greeting = [(0, frame("CONNECT", version="0.1"), 50), (1, OK, None)]
    said = [one for one in snapped([*greeting, (0, ask, 60), (1, OK, None)]) if isinstance(one, Message)]
    assert [(one.request, list(one.notes)) for one in said] == [(None, []), (1, []), (None, []), (3, [CUT])]
    # of programs that send none, none was cut
    old = [(0, frame("SUBSCRIBE", channel="c"), None), (1, OK, None), (0, ask, 60), (1, OK, None)]
    said = [one for one in snapped([*greeting, *old]) if isinstance(one, Message)]
    assert (said[-1].request, list(said[-1].notes)) == (5, [])


def test_pairs_by_order_after_a_start_in_the_middle_are_unsure() -> None:
    emit = frame("EMIT", channel="c", event={})
    said = messages([(0, emit), (1, OK), (0, emit), (1, OK)], parser(syn=False))
    assert [(one.request, list(one.notes)) for one in said if one.sender == "server"] == [(1, [MIDDLE]), (3, [MIDDLE])]
    assert [list(one.notes) for one in messages([(0, emit), (1, OK)])] == [[], []]
    # a SYN that was not captured, and the beginning all the same
    said = messages([(0, frame("CONNECT", version="0.1")), (1, OK), (0, emit), (1, OK)], parser(syn=False))
    assert [list(one.notes) for one in said] == [[], [], [], []]


def test_a_query_that_got_results_without_a_last_one_is_answered() -> None:
    ask = (0, frame("QUERY", name="q", params={}, queryID=1, rID=2), None)
    result = frame("QUERYRESULT", ok=True, queryID=1, result={"text": "x" * 50}, last=True)
    greeting = [(0, CONNECT, None), (1, OK, None)]
    for following in ([], [(0, frame("PING"), None)]):
        records = snapped([*greeting, ask, (1, result, 80), (1, result, 80), *following])
        (told,) = [one for one in records if isinstance(one, Exchange) and one.name == "QUERY"]
        assert (told.outcome, told.reason, told.latency_ns) == ("answered", None, 2 * 10**9)
    again = [one for one in snapped([*greeting, ask, (1, result, 80), ask]) if isinstance(one, Exchange) and one.name == "QUERY"]
    assert [(one.outcome, one.reason) for one in again] == [("answered", None), ("unanswered", "closed")]
    ended = snapped([*greeting, ask, (1, result, 80), (1, result, None), (1, result, 80)])
    assert [one.outcome for one in ended if isinstance(one, Exchange) and one.name == "QUERY"] == ["answered"]


def test_what_has_no_answer() -> None:
    records = paired([(0, CONNECT), (1, OK), (0, frame("STARTTX", sessID=1, rID=0)), (0, frame("PING")), (0, frame("PUBLISH", rID=1))])
    assert [(one.name, one.reason) for one in records if isinstance(one, Exchange)] == [("STARTTX", "closed"), ("PUBLISH", "closed")]


def test_ping_of_march_2017() -> None:
    found = messages([(0, CONNECT), (0, frame("PING", type=8, sequence=Int64(4))), (1, frame("PING", type=0, sequence=5))])
    assert [(one.kind, one.id, one.request) for one in found[1:]] == [("request", 4, None), ("response", 5, 2)]


def test_a_subscription_that_was_not_given_out() -> None:
    packets = [(0, CONNECT), (1, OK), (0, frame("SUBSCRIBE", channel="c", rID=0)), (1, frame("SUBRESPONSE", ok=True, subID=0, rID=0))]
    packets += [(0, frame("ACKEV", subID=0, pos=Int64(1), bytes=9)), (0, frame("UNSUBSCRIBE", subID=7, rID=1))]
    found = messages(packets)
    assert found[4].notes == ()
    assert found[5].notes == ["subscription 7 was not given out on this connection"]
    odd = {"a": [1]}
    packets += [(1, frame("SUBRESPONSE", ok=True, subID=odd, rID=1)), (0, frame("UNSUBSCRIBE", subID=odd, rID=2))]
    assert not [note for message in messages(packets)[6:] for note in message.notes if "given out" in note]


@pytest.mark.parametrize(
    ("packets", "dates"),
    [
        ([(0, CONNECT)], "2016-11-28.."),
        ([(0, frame("CONNECT", version="0.1")), (0, frame("EMIT", channel="c", event={}))], "..2016-11-02"),
        ([(0, frame("PUB", channel="c", event={}))], "2016-11-02..2016-12-01"),
        ([(0, frame("SUBSCRIBE", channel="c", matcher=None, rID=1))], "2016-12-01..2017-06-28"),
        ([(0, frame("SUBSCRIBE", channel="c", filterName=None, rID=1))], "2017-06-28.."),
        ([(0, frame("EMIT", channel="c", event={}, rID=1))], "of no one date"),
        ([(0, frame("CONNECT", version="0.1"))], None),
    ],
)
def test_the_dates_that_frames_allow(packets: list[tuple[int, bytes]], dates: str | None) -> None:
    one = parser()
    messages(packets, one)
    assert one.dissector.facts.get("layout") == dates


# Framing


@pytest.mark.parametrize("inside", [False, True])
def test_lengths_as_the_document_says(inside: bool) -> None:
    sent = [CONNECT, frame("PUB", channel="c", event={"z": 1}, rID=0), frame("LISTBINDERS", rID=1)]
    packets = [(0, rest(one, inside)) for one in sent]
    packets[1:1] = [(1, OK)]
    found = messages(packets)
    assert [message.name for message in found] == ["CONNECT", "RESPONSE", "PUB", "LISTBINDERS"]
    assert [message.size for message in found] == [len(CONNECT), len(OK), len(sent[1]), len(sent[2])]
    assert found[2].fields == {"size": len(sent[1]) - 4, "type": "PUB", "frame": {"channel": "c", "event": {"z": 1}, "rID": 0}}
    assert [list(message.notes) for message in found] == [[REST_NOTE], [], [REST_NOTE], [REST_NOTE]]
    assert all(message.fault is None for message in found)
    assert run(pieces([(side, data[at : at + 1]) for side, data in packets for at in range(len(data))]))[0].record.name == "CONNECT"


@pytest.mark.parametrize("junk", [b"\0" * 12, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x04\0\0\0", b"\xff" * 40])
def test_bytes_that_are_no_frame_are_skipped(junk: bytes) -> None:
    records = paired([(0, CONNECT), (1, OK), (0, junk), (0, frame("LISTBINDERS", rID=1))])
    gap = next(record for record in records if isinstance(record, Gap))
    assert (gap.position, gap.size, gap.reason) == (len(CONNECT), len(junk), "skipped")
    assert [one.name for one in records if isinstance(one, Message)] == ["CONNECT", "RESPONSE", "LISTBINDERS"]


def test_a_length_without_end_takes_everything() -> None:
    endless = b"\xff\xff\xff\x7f" + frame("LISTBINDERS", rID=1)[4:]
    found = messages([(0, CONNECT), (0, endless), (0, frame("LISTBINDERS", rID=2))])
    assert [one.name for one in found] == ["CONNECT", "LISTBINDERS"]
    assert found[1].fault is not None
    assert found[1].size == len(endless) + len(frame("LISTBINDERS", rID=2))


def test_a_frame_with_a_gap_is_read_up_to_it() -> None:
    data = frame("PUB", channel="c", rID=3, event={"text": "x" * 100})
    one = parser()
    made = pieces([(0, CONNECT), (0, data[:80])])
    made.append(StreamGap(0, len(CONNECT) + 80, 20, "lost", 2, 3, 0, 2 * 10**9))
    made.append(SideData(0, len(CONNECT) + 100, data[100:] + CONNECT, (2, 3, 0, 2 * 10**9)))
    records = [emitted.record for emitted in run(made, one)]
    damaged = next(record for record in records if isinstance(record, Message) and record.name == "PUB")
    assert damaged.size == len(data)
    assert damaged.fields == {"size": len(data), "type": "PUB", "frame": {"channel": "c", "rID": 3, "event": {}}}
    assert damaged.fault is not None
    assert damaged.fault.reason == "20 bytes lost"
    assert [type(record).__name__ for record in records] == ["Message", "Gap", "Message", "Message"] or len(records) == 4


def test_a_conversation_that_begins_inside_a_login_hides_it() -> None:
    """What authInfo holds is a document, and names its fields as it likes."""
    inside = pymongo.encode({"kind": 1, "pin": "swordfish"})
    said = messages([(0, inside), (1, OK), (0, frame("PING")), (0, inside)])
    assert [(one.name, "swordfish" in str(one.fields)) for one in said] == [
        ("unknown", False),
        ("RESPONSE", False),
        ("PING", False),
        ("unknown", True),
    ]


def test_finding_the_way_back_needs_the_next_frame() -> None:
    """An event may itself look like a frame."""
    inner = {"type": "PING", "frame": {"type": 8, "sequence": Int64(1)}}
    outer = frame("PUB", channel="c", event=inner, rID=1)
    tail = outer[50:]
    following = frame("LISTBINDERS", rID=2)
    one = parser(syn=False)
    records = [emitted.record for emitted in run(pieces([(0, tail + following + CONNECT)]), one)]
    assert [record.name for record in records if isinstance(record, Message)] == ["LISTBINDERS", "CONNECT"]
    gap = next(record for record in records if isinstance(record, Gap))
    assert (gap.position, gap.size) == (0, len(tail))


def test_who_is_the_client() -> None:
    one = parser(syn=False, client=None)
    found = messages([(0, frame("RESPONSE", ok=True, rID=1)), (1, frame("LISTBINDERS", rID=2))], one)
    assert [message.sender for message in found] == ["server", "client"]
    wrong = messages([(0, CONNECT), (0, OK)])[1]
    assert "RESPONSE is a frame of the server" in wrong.notes


CONVERSATION: list[tuple[int, bytes]] = [
    (0, CONNECT),
    (1, OK),
    (0, frame("SUBSCRIBE", channel="c", startPos=Int64(-1), rID=0)),
    (1, frame("SUBRESPONSE", ok=True, subID=0, rID=0)),
    (0, frame("PUB", channel="c", sessID=0, event=EVENT, rID=1)),
    (1, frame("RECEV", subID=0, event=EVENT, pos=Int64(0), timestamp=Int64(5)) + frame("RESPONSE", ok=True, rID=1)),
    (0, frame("ACKEV", subID=0, pos=Int64(0), bytes=100)),
    (0, frame("QUERY", name="q", params={}, queryID=2, rID=3)),
    (1, frame("QUERYRESULT", ok=True, queryID=2, result=EVENT, last=True)),
]


def told(emitted: list[Event]) -> list[bytes]:
    return [msgspec.json.encode((*ORDER_KEY(one), one.record, one.role, str(one.key))) for one in sorted(emitted, key=ORDER_KEY)]


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_pieces_do_not_matter(cuts: list[tuple[int, int]], damage: list[tuple[int, int]], variant: bool, syn: bool) -> None:
    packets: list[tuple[int, bytes]] = []
    for side, data in CONVERSATION:
        sent = rest(data, True) if variant and side == 0 else data
        raw = bytearray(sent)
        for place, value in damage:
            if place % 7 == 0:
                raw[place % len(raw)] = value
        at = 0
        for start, size in cuts:
            if at < start < len(raw):
                packets.append((side, bytes(raw[at:start])))
                at = start
            if at + size < len(raw):
                packets.append((side, bytes(raw[at : at + size])))
                at += size
        packets.append((side, bytes(raw[at:])))
    apart = told(run(pieces(packets), parser(syn)))
    assert apart == told(run(pieces(packets), parser(syn), each=False))
    # a view of the bytes changes no value
    detailed = run(pieces(packets), parser(syn, detail=True))
    for emitted in detailed:
        if isinstance(emitted.record, Message):
            message = emitted.record
            assert message.raw is not None
            assert message.spans is not None
            leaves = [span for span in message.spans if span.leaf]
            assert sum(span.length for span in leaves) == len(message.raw["frame"])
            message.raw = message.spans = None
    assert told(detailed) == apart


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(min_size=1, max_size=40)), min_size=1, max_size=12), st.booleans())
def test_any_bytes_in_any_pieces(packets: list[tuple[int, bytes]], syn: bool) -> None:
    apart = run(pieces(packets), parser(syn))
    assert told(apart) == told(run(pieces(packets), parser(syn), each=False))
    for side in (0, 1):
        size = sum(len(data) for one, data in packets if one == side)
        assert sum(one.record.size for one in apart if one.record.src == f"10.0.0.{side + 1}:{(1, 7451)[side]}") == size


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(CONVERSATION), st.integers(0, 99), st.binary(max_size=12)), max_size=8))
def test_frames_between_noise(parts: list[tuple[int, tuple[int, bytes], int, bytes]]) -> None:
    packets = [(side, sent[:-cut] + noise if cut < len(sent) and cut else sent + noise) for side, (_, sent), cut, noise in parts]
    assert told(run(pieces(packets))) == told(run(pieces(packets), each=False))


# Secrets


def test_secrets_never_show() -> None:
    secrets = (b"hunter2", b"top-secret-token")
    auth = {"username": "tim-the-user", "password": "hunter2", "more": {"token": "top-secret-token"}}
    sent = [
        frame("CONNECT", version="0.1", authInfo=auth),
        frame("CONNECT", version="1.0", username="tim-the-user", password="hunter2"),
        frame("connect", authInfo=auth),
        pymongo.encode({"frame": {"authInfo": auth}, "type": "CONNECT"}),
        pymongo.encode({"type": "CONNECT", "username": "tim-the-user", "password": "hunter2"}),
        frame("PUB", channel="c", event={}, authInfo=auth, rID=1),
    ]
    for data in sent:
        for broken in [data, *(data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :] for at in range(4, len(data)))]:
            framed = broken
            for options in ({}, {"detail": True}):
                for emitted in run(pieces([(0, CONNECT), (0, framed), (0, CONNECT)]), parser(**options)):
                    record = emitted.record
                    if not isinstance(record, Message):
                        continue
                    shown = msgspec.json.encode((record.fields, record.notes, record.fault)) + info(record).encode()
                    if record.spans is not None and record.raw is not None:
                        raw = record.raw["frame"]
                        for span in record.spans:
                            if span.leaf and not span.secret:
                                shown += repr(span.value).encode() + raw[span.offset : span.offset + span.length]
                    if data in (sent[1], sent[4]):
                        assert b"tim-the-user" not in shown
                    if data is not sent[-1] or broken is data:
                        assert not any(secret in shown for secret in secrets), (broken, shown)
    for alone, shown in (("top-secret-token", "<redacted 16 bytes>"), (["tim"], ["<redacted 3 bytes>"])):
        assert messages([(0, pymongo.encode({"type": "CONNECT", "frame": alone}))])[0].fields["frame"] == shown
    revealed = messages([(0, sent[0])], parser(show_secrets=True))[0]
    assert revealed.fields["frame"]["authInfo"] == auth


# Detection


def view(
    sides: tuple[bytes, bytes], syn: bool = True, final: bool = False, segments: tuple[list[int], list[int]] = ([0], [0])
) -> DetectionView:
    seen = [SideView([(0, data)] if data else [], syn, starts) for data, starts in zip(sides, segments, strict=True)]
    return DetectionView((seen[0], seen[1]), (1, 2), syn, final)


def confidence(client: bytes = b"", server: bytes = b"", **more: Any) -> float:
    verdict = heuristic(view((client, server), **more))
    return 0.0 if verdict is None else verdict.confidence


def test_a_first_frame_is_certain_and_a_prefix_may_be_one() -> None:
    assert confidence(CONNECT) > 0.9
    assert confidence(b"", OK) > 0.9
    seen = [confidence(CONNECT[:size]) for size in range(1, len(CONNECT) + 1)]
    assert seen == sorted(seen)
    assert 0 < seen[4] < 0.5
    assert seen[33] > 0.9
    verdict = heuristic(view((b"", OK)))
    assert verdict is not None
    assert verdict.client == 0
    assert confidence(pymongo.encode({"frame": {"version": "0.1"}, "type": "CONNECT"})) > 0.9
    assert confidence(rest(CONNECT, True)) > 0.9
    assert confidence(rest(CONNECT, False)) > 0.9


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSTARRPC" + b"\0" * 30,
        b"\0\0\0\x1e\0\x11\0\x01\0\0\0\1" + b"\0" * 30,
        b"\x05\0\0\0\0",
        pymongo.encode({"a": 1}),
        pymongo.encode({"type": "ping", "body": {}}),
        # OP_MSG with a document that looks like a frame
        b"\x35\0\0\0\1\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0" + frame("PING"),
        b"\x35\0\0\0\1\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0" + frame("PING") + frame("PING"),
        bytes(range(256)),
    ],
)
def test_what_is_something_else(data: bytes) -> None:
    for syn in (True, False):
        assert confidence(data, syn=syn, final=True) < 0.5
        assert confidence(b"", data, syn=syn, final=True) < 0.5


def test_the_middle_of_a_stream() -> None:
    cut = frame("PUB", channel="c", event=EVENT, rID=1)[40:]
    one, two = frame("LISTBINDERS", rID=1), frame("PING")
    assert confidence(cut, syn=False, final=True) == 0
    assert confidence(cut + one + two, syn=False) > 0.9
    assert confidence(cut + one, syn=False, segments=([0, len(cut)], [0])) > 0.9
    assert 0.5 < confidence(cut + one, syn=False) < 0.9
    assert confidence(cut + one[:40], syn=False, final=True) < 0.5
    assert confidence(one, syn=False) > 0.9


# Captures


CASES = {
    "java-connect.pcap": (4, 0),
    "java-auth-bad.pcap": (2, 0),
    "java-pipeline.pcap": (204, 0),
    "java-sub.pcap": (30, 0),
    "java-query.pcap": (264, 0),
    "java-big.pcap": (14, 0),
    "java-ipv6.pcap": (22, 0),
    "java-sll2.pcap": (8, 0),
    "java-nov2016.pcap": (59, 0),
    "java-dec2016.pcap": (1661, 0),
    "old-oct2016.pcap": (91, 0),
    "old-document.pcap": (50, 0),
    "py-types.pcap": (8, 0),
    "py-small-many.pcap": (124, 0),
    "bad-deep150.pcap": (8, 0),
    "bad-element.pcap": (6, 1),
    "bad-innerlen.pcap": (8, 1),
    "bad-trailing.pcap": (8, 0),
    "cut-snaplen120.pcap": (30, 22),
    "cut-mid-start.pcap": (36, 0),
    "cut-server-side-only.pcap": (15, 0),
    "cut-reordered.pcap": (30, 0),
    "cut-duplicated.pcap": (26, 0),
    "cut-overlap.pcap": (20, 0),
    "cut-tiny-segments.pcap": (10, 0),
    "cut-coalesced.pcap": (204, 0),
    "fmt-pcapng.pcapng": (264, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_captures_say_what_their_story_tells(case: str) -> None:
    inspector = Inspector([open_capture(CAPTURES / case)], Options())
    found = [record for record in inspector.records() if isinstance(record, Message)]
    assert {row.protocol for row in inspector.rows()} == {"mewbase"}
    assert (len(found), sum(message.fault is not None for message in found)) == CASES[case]
    if not case.startswith(("bad", "cut")):
        assert all(message.request is not None for message in found if message.kind == "response")


def test_the_protocol_entry() -> None:
    (protocol,) = PROTOCOLS
    assert protocol.name == MewbaseDissector.protocol
    for table in protocol.loaded.layouts:
        assert all(len(row) == 3 for row in table.rows())


# Packets of the protocol without rID that were captured in another order

SUBSCRIBED = frame("SUBRESPONSE", ok=True, subID=0)
IN_ORDER = [
    (0, frame("CONNECT", version="0.1")),
    (1, OK),
    (0, frame("SUBSCRIBE", streamName="c", eventType="t", startSequence=0)),
    (1, SUBSCRIBED),
    *[(side, data) for _ in range(3) for side, data in ((0, frame("EMIT", streamName="c", sessID=0, event=EVENT)), (1, OK))],
]


def pairs_of(packets: list[tuple[int, bytes]]) -> tuple[dict[int, int], list[list[str]]]:
    """Which request each response answers, both counted by side, and the notes of responses."""
    links: list[Link] = []
    pairer = Pairer(PairRules("supersede", 65536, False), PairOutputs(links, []))
    out = pairer.process(run(pieces(packets))) + pairer.close("closed", behind())
    places: dict[int, int] = {}
    notes = []
    counts = [0, 0]
    for emitted in out:
        if isinstance(emitted.record, Message):
            side = emitted.record.sender == "server"
            places[id(emitted.record)] = counts[side]
            counts[side] += 1
            if side:
                notes.append(list(emitted.record.notes))
    found = {}
    for record, asked, response in links:
        answer = record if isinstance(record, Message) else response
        if answer is not None:
            found[places[id(answer)]] = places[id(asked.record)]
    return found, notes


@pytest.mark.parametrize("at", range(0, len(IN_ORDER), 2))
def test_a_response_that_was_captured_before_its_request_shifts_no_other(at: int) -> None:
    packets = [*IN_ORDER]
    packets[at], packets[at + 1] = packets[at + 1], packets[at]
    found, notes = pairs_of(packets)
    assert found == {place: place for place in range(len(IN_ORDER) // 2)}
    assert notes == [[EARLY] if 0 < place == at // 2 else [] for place in range(len(IN_ORDER) // 2)]


def test_a_response_too_many_makes_what_comes_unsure() -> None:
    found, notes = pairs_of([*IN_ORDER[:4], (1, OK), *IN_ORDER[4:]])
    assert found[0] == 0 and found[1] == 1
    assert notes[2:4] == [[EARLY], []] and notes[4:] == [[AHEAD]] * 2


def test_swapped_packets_of_a_real_connection_pair_as_they_should() -> None:
    records = list(Inspector([open_capture(CAPTURES / "cut-swapped-2016.pcap")], Options(exchanges=True)).records())
    number = {record.number: record.name for record in records if isinstance(record, Message)}
    ended = [one for one in records if isinstance(one, Exchange) and one.response is not None]
    assert [(one.name, number[one.response or 0]) for one in ended] == [
        ("CONNECT", "RESPONSE"),
        ("SUBSCRIBE", "SUBRESPONSE"),
        *[("EMIT", "RESPONSE")] * 6,
    ]
    assert [(one.name, one.outcome) for one in records if isinstance(one, Exchange) and one.response is None] == [
        ("UNSUBSCRIBE", "unanswered")
    ]
