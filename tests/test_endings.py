"""How conversations end: who, how, how long after the last message, and what was open then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Ending, Exchange, Finding, Message, Options, Record
from streamdump.render.summary import Lines
from tests.support.segments import ACK, FIN, RST, SYN, Segment, a, b, captured, handshake

GOLDEN = Path(__file__).parents[1] / "captures" / "golden"

MS = 1_000_000
HEARTBEAT = bytes.fromhex("00000004 0017 0001")
OPEN = bytes.fromhex("0000000b 0015 0001 00000007 0001 2f")
REFUSAL = bytes.fromhex("0000000a 8015 0001 00000007 000c")
READ = Options(decode_as=((5552, "rabbitmq-stream", None),))

REFUSED = [a(999, ack=None, flags=SYN), b(0, ack=1000, flags=RST | ACK)]
UNUSED = [*handshake(), a(1000, flags=FIN | ACK), b(5000, ack=1001, flags=FIN | ACK), a(1001, ack=5001)]
TALK = [*handshake(), a(1000, OPEN), b(5000, REFUSAL, ack=1015)]
GONE = [b(5014, ack=1015, flags=FIN | ACK, time_ns=3_004 * MS), a(1015, HEARTBEAT, ack=5015, time_ns=3_005 * MS)]
ENDED = [*TALK, *GONE, a(1023, ack=5015, flags=FIN | ACK, time_ns=3_006 * MS), b(5015, ack=1024, time_ns=3_007 * MS)]

CASES: dict[str, tuple[list[Segment], tuple[Any, ...] | None]] = {
    "refused": (REFUSED, ("refused", "server", "192.0.2.2:5552", None, 1 * MS, None, 0, 0)),
    "refused twice": (REFUSED * 2, ("refused", "server", "192.0.2.2:5552", None, 1 * MS, None, 0, 0)),
    "no answer": ([REFUSED[0]] * 3, ("no answer", "client", "192.0.2.1:40000", None, 2 * MS, None, 0, 0)),
    "not a byte": (UNUSED, ("FIN", "client", "192.0.2.1:40000", None, 3 * MS, None, 0, 0)),
    "not a byte, reset": ([*handshake(), b(5000, flags=RST)], ("RST", "server", "192.0.2.2:5552", None, 3 * MS, None, 0, 0)),
    "not a byte, open": (handshake(), None),
    "still open": (TALK, None),
    "a message behind the first FIN": (ENDED, ("FIN", "server", "192.0.2.2:5552", "rabbitmq-stream", 3_004 * MS, 3_000 * MS, 0, 1)),
    "one side": ([*TALK, GONE[0]], ("FIN", "server", "192.0.2.2:5552", "rabbitmq-stream", 3_004 * MS, 3_000 * MS, 0, 1)),
    "a request is open": (
        [*TALK[:4], b(5000, ack=1015, flags=RST | ACK, time_ns=9 * MS), a(1015, HEARTBEAT, time_ns=10 * MS)],
        ("RST", "server", "192.0.2.2:5552", "rabbitmq-stream", 9 * MS, 6 * MS, 1, 0),
    ),
    "ports reused": ([*TALK, a(77_000, ack=None, flags=SYN)], ("no answer", "client", "192.0.2.1:40000", None, 5 * MS, None, 0, 0)),
}


def told(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [
        (one.how, one.sender, one.src, one.protocol, one.time_ns, one.quiet_ns, one.open, one.refused)
        for one in records
        if isinstance(one, Ending)
    ]


def read(segments: Sequence[Segment], size: int, options: Options = READ, finite: bool = False) -> list[Record]:
    inspector = Inspector([], options, finite=finite)
    found: list[Record] = []
    for at in range(0, len(segments), size):
        some = segments[at : at + size]
        found += inspector.process(captured(some, at))
    return found + inspector.finish()


@pytest.mark.parametrize("case", CASES)
def test_how_it_ended(case: str) -> None:
    segments, expected = CASES[case]
    whole = read(segments, len(segments))
    assert told(whole) == ([] if expected is None else [expected])
    for size in (1, 2, 7):
        for finite in (False, True):
            assert read(segments, size, finite=finite) == whole


@pytest.mark.parametrize("case", ["refused", "refused twice", "not a byte, reset", "a request is open"])
def test_a_live_capture_tells_of_a_reset_two_seconds_later(case: str) -> None:
    segments, expected = CASES[case]
    inspector = Inspector([], READ)
    some = captured(segments)
    inspector.process(some)
    last = some[-1].time_ns
    assert inspector.age(last + 1_400 * MS) == []
    assert told(inspector.age(last + 2_000 * MS)) == [expected]
    assert inspector.age(last + 29_999 * MS) == []
    assert len(inspector.rows()) == 1
    inspector.age(last + 30_500 * MS)
    assert inspector.rows() == []
    assert inspector.forgotten.conversations == 1


FIRST = [*TALK[:4], a(1015, flags=FIN | ACK, ack=5000, time_ns=500 * MS)]
LATER = [
    b(5000, REFUSAL, ack=1016, time_ns=4_000 * MS),
    b(5014, ack=1016, flags=FIN | ACK, time_ns=4_001 * MS),
    a(1016, ack=5015, time_ns=4_002 * MS),
]
GOES_ON = [
    a(1015, HEARTBEAT, ack=5015, time_ns=7_000 * MS),
    a(1023, ack=5015, flags=FIN | ACK, time_ns=7_001 * MS),
    b(5015, ack=1024, time_ns=7_002 * MS),
]
HALF: dict[str, tuple[list[Segment], list[Segment], int, int]] = {
    "the server": ([*TALK, GONE[0]], GOES_ON, 0, 1),
    "the client, with an open request": (FIRST, LATER, 1, 0),
    "the server, with an open request": (
        [*TALK[:4], b(5000, ack=1015, flags=FIN | ACK, time_ns=500 * MS)],
        [one._replace(ack=5001) for one in GOES_ON],
        1,
        0,
    ),
    "nobody said anything": (UNUSED[:4], [one._replace(time_ns=4_000 * MS) for one in UNUSED[4:]], 0, 0),
}


@pytest.mark.parametrize("case", HALF)
def test_a_live_capture_tells_of_a_side_that_ended_two_seconds_later(case: str) -> None:
    """Whatever the other one does; all else is as in a file."""
    before, behind, waiting, refusals = HALF[case]
    every = [*before, *behind]
    inspector = Inspector([], READ)
    records: list[Record] = []
    records += inspector.process(captured(before))
    ended = captured(before)[-1].time_ns
    records += inspector.age(ended + 1_400 * MS)
    assert told(records) == []
    records += inspector.age(ended + 2_000 * MS)
    ((*same, _, open_, refused),) = told(records)
    assert (open_, refused) == (waiting, refusals)
    records += inspector.age(ended + 2_600 * MS)
    records += inspector.process(captured(behind, len(before)))
    records += inspector.age(ended + 60_000 * MS) + inspector.finish()
    assert len(told(records)) == 1
    assert inspector.run.early_endings == {}
    whole = read(every, len(every))
    ((*in_file, _, _, _),) = told(whole)
    assert same == in_file
    for kind in (Message, Exchange):
        assert [(one.time_ns, one.name, one.outcome) for one in records if isinstance(one, kind)] == [
            (one.time_ns, one.name, one.outcome) for one in whole if isinstance(one, kind)
        ]


def test_a_live_capture_tells_of_failed_tls_at_once() -> None:
    """Nobody goes on behind a fatal alert."""
    properties = bytes.fromhex("0000000c 0011 0001 00000001 00000000")
    alert = bytes.fromhex("15 0303 0002 02 0a")
    before = [*handshake(), a(1000, properties), b(5000, alert, ack=1016), b(5007, ack=1016, flags=FIN | ACK, time_ns=600 * MS)]
    behind = [a(1016, ack=5008, flags=FIN | ACK, time_ns=9_000 * MS), b(5008, ack=1017, time_ns=9_001 * MS)]
    inspector = Inspector([], Options(findings=True))
    inspector.process(captured(before))
    records = inspector.age(601 * MS)
    assert [type(one).__name__ for one in records] == ["Ending", "Finding"]
    assert [one.rule for one in records if isinstance(one, Finding)] == ["tls.plain-peer"]
    records += inspector.process(captured(behind, len(before)))
    records += inspector.finish()
    assert [type(one).__name__ for one in records] == ["Ending", "Finding", "Gap", "Exchange"]


@pytest.mark.parametrize("case", ["the server", "the server, with an open request"])
def test_a_live_diagnosis_knows_what_a_server_left_open(case: str) -> None:
    before, behind, _, _ = HALF[case]
    options = Options(decode_as=READ.decode_as, findings=True)
    inspector = Inspector([], options)
    found: list[Record] = []
    found += inspector.process(captured(before))
    found += inspector.age(captured(before)[-1].time_ns + 2_000 * MS)
    early = [(one.rule, one.severity, one.cause) for one in found if isinstance(one, Finding)]
    found += inspector.process(captured(behind, len(before)))
    found += inspector.finish()
    assert [(one.rule, one.severity, one.cause) for one in found if isinstance(one, Finding)] == early
    every = [*before, *behind]
    assert early == [(one.rule, one.severity, one.cause) for one in read(every, len(every), options) if isinstance(one, Finding)]
    assert early


def test_a_connection_without_a_byte_is_none_of_which_nothing_was_read() -> None:
    inspector = Inspector([], Options())
    inspector.process(captured(REFUSED))
    inspector.age(60_000 * MS)
    assert (inspector.forgotten.conversations, inspector.forgotten.unread) == (1, {})


def at(port: int, segments: Sequence[Segment], sport: int = 40000) -> list[Segment]:
    """These segments with a server on another port."""

    def moved(end: tuple[str, int]) -> tuple[str, int]:
        return (end[0], port if end[1] == 5552 else sport)

    return [one._replace(src=moved(one.src), dst=moved(one.dst)) for one in segments]


def test_refused_connections_are_counted_by_port_where_nothing_is_expected() -> None:
    again = [one._replace(seq=one.seq + 77_000, ack=one.ack and one.ack + 77_000) for one in REFUSED]
    segments = [*at(8091, REFUSED), *at(8091, REFUSED, 40001), *at(81, [*REFUSED * 2, *again]), *at(82, UNUSED), *at(5552, REFUSED)]
    for finite in (False, True):
        for size in (1, len(segments)):
            inspector = Inspector([], Options(), finite=finite)
            for begin in range(0, len(segments), size):
                some = segments[begin : begin + size]
                inspector.process(captured(some, begin))
            inspector.finish()
            assert inspector.run.refused == {8091: 2, 81: 2}
    inspector = Inspector([], Options())
    inspector.process(captured(segments))
    inspector.age(60_000 * MS)
    assert not inspector.rows()
    assert inspector.run.refused == {8091: 2, 81: 2}


def test_connections_without_a_byte_are_told_of_known_ports_alone() -> None:
    for finite in (False, True):
        assert len(told(read(at(8090, UNUSED), 2, Options(), finite))) == 1
        assert not told(read(at(8091, UNUSED), 2, Options(), finite))
        assert len(told(read(at(8091, REFUSED), 2, Options(decode_as=((8091, "iggy", None),)), finite))) == 1


def test_a_connection_that_was_told_and_goes_on_is_not_told_again() -> None:
    """What carried nothing is kept as its packets, until one comes that says otherwise."""
    for more in ([a(77_000, ack=None, flags=SYN)], [a(1001, ack=5001)] * 9):
        segments = [*UNUSED, *more]
        whole = read(segments, len(segments))
        assert [one[0] for one in told(whole)] == ["FIN", "no answer"][: 1 + (len(more) == 1)]
        for size in (1, 5, 6, 7):
            assert read(segments, size, finite=True) == whole


def test_what_was_never_connected_is_counted_once() -> None:
    """However often the rows are asked for."""
    for size in (1, 2):
        inspector = Inspector([], READ, finite=True)
        for at in range(0, 2, size):
            inspector.process(captured(REFUSED[at : at + size], at))
        inspector.finish()
        for _ in range(2):
            assert len(inspector.rows()) == 1
            assert inspector.counters.unconnected == 1


@pytest.mark.parametrize(
    ("capture", "steps"),
    [
        ("rabbitmq-stream/two_connections_310", ["ready", "ready"]),
        ("rabbitmq-stream/vhost_failure_405", ["Open, refused", "Open, refused"]),
        ("rabbitmq-stream/sasl_before_peerprops_310", ["SaslAuthenticate, without an answer"]),
        ("mewbase/java-connect", ["ready"]),
        ("mewbase/java-auth-bad", ["CONNECT, refused"]),
        ("mewbase/cut-mid-start", [None]),
        ("iggy/py081-midstream", [None]),
    ],
)
def test_how_far_the_handshake_got(capture: str, steps: list[str | None]) -> None:
    """As far as the beginning was captured."""
    with open_capture(GOLDEN / f"{capture}.pcap") as source:
        inspector = Inspector([source])
        for _ in inspector.records():
            pass
    assert [row.facts.get("handshake") for row in inspector.rows()] == steps


GREETING = bytes.fromhex("0000000c 0011 0001 00000001 00000000")
GREETED = bytes.fromhex("0000000e 8011 0001 00000001 0001 00000000")
MET = [*handshake(), a(1000, GREETING), b(5000, GREETED, ack=1016)]


@pytest.mark.parametrize(
    ("more", "bad"),
    [
        ([b(5018, ack=1016, flags=FIN | ACK)], True),
        ([b(5018, ack=1016, flags=RST | ACK)], True),
        ([a(1016, ack=5018, flags=FIN | ACK)], False),
        ([a(1016, OPEN, ack=5018), b(5018, REFUSAL, ack=1031), b(5032, ack=1031, flags=FIN | ACK)], False),
        ([], False),
    ],
)
def test_a_server_that_leaves_in_the_handshake(more: list[Segment], bad: bool) -> None:
    """Unless something that was refused tells why."""
    segments = [*MET, *more]
    for size in (1, len(segments)):
        inspector, shown = Inspector([], READ), list[str]()
        view = Lines({"rabbitmq-stream": lambda _: ""}, broken_off=inspector.run.broken_off)
        for at in range(0, len(segments), size):
            inspector.run.broken_off.clear()
            some = segments[at : at + size]
            view.add(inspector.process(captured(some, at)), shown)
        view.add(inspector.finish(), shown)
        assert ("! server " in shown[-1] and "in the handshake (PeerProperties, answered)" in shown[-1]) == bad
        assert inspector.counters.broken_off == bad


def test_a_request_ends_when_that_is_certain() -> None:
    """Its record has the time of that packet, says how long was waited, and stands behind what came before."""
    segments = [*TALK[:4], b(5000, HEARTBEAT, ack=1015, time_ns=5_000 * MS), a(1015, flags=RST, time_ns=9_000 * MS)]
    asked, beat, ended, ending = read(segments, 1)
    assert isinstance(asked, Message)
    assert isinstance(beat, Message)
    assert isinstance(ended, Exchange)
    assert isinstance(ending, Ending)
    assert (ended.time, ended.time_ns, ended.waited_ns, ended.reason) == (ending.time, 9_000 * MS, 8_997 * MS, "closed")
    assert (ending.sender, ending.quiet_ns, ending.open) == ("client", 4_000 * MS, 1)


def test_where_times_go_back_nobody_was_silent_for_less_than_nothing() -> None:
    *_, ending = read([*TALK[:4], a(1015, flags=RST, time_ns=1 * MS)], 1)
    assert isinstance(ending, Ending)
    assert ending.quiet_ns == 0


def test_every_capture_agrees_with_its_records() -> None:
    """The counts and the silence of endings are those of the records before them."""
    hows = set()
    for path in (*GOLDEN.glob("mewbase/java-[a-p]*.pcap"), *GOLDEN.glob("rabbitmq-stream/h*.pcap")):
        records = [*streamdump.read(path, exchanges=True)]
        for ending in [one for one in records if isinstance(one, Ending)]:
            mine = [one for one in records if one.conversation == ending.conversation]
            outcomes = [one.outcome for one in mine if isinstance(one, Exchange)]
            times = [one.time_ns for one in mine if isinstance(one, Message) and one.time_ns <= ending.time_ns]
            assert (ending.open, ending.refused) == (outcomes.count("unanswered"), outcomes.count("refused"))
            assert ending.quiet_ns == (ending.time_ns - max(times) if times else None)
            assert mine[-1] is ending
            hows.add((ending.how, ending.sender))
    assert {("FIN", "client"), ("FIN", "server")} <= hows


@pytest.mark.parametrize(("options", "told"), [(READ, "decode as rabbitmq-stream on port 5552 was asked for"), (Options(), "no bytes")])
def test_a_connection_that_carried_nothing_has_the_row_that_was_asked_for(options: Options, told: str) -> None:
    inspector = Inspector([], options, finite=True)
    assert [one for one in inspector.process(captured(UNUSED)) if isinstance(one, Message)] == []
    (row,) = inspector.rows()
    assert (row.evidence, row.ended, row.packets) == ((told,), "FIN by client", (4, 2))


CLOSING = b"\0\0\0\x12" + bytes.fromhex("0016 0001 00000009 0001 0006") + b"enough"
CLOSED = bytes.fromhex("0000000a 8016 0001 00000009 0001")
SERVER_FINS = [b(5028, ack=1037, flags=FIN | ACK), a(1037, ack=5029, flags=FIN | ACK), b(5029, ack=1038)]
WHO_CLOSES: dict[str, tuple[list[Segment], str, int, str | None]] = {
    "client, and the server is faster to end the connection": (
        [*TALK, a(1015, CLOSING, ack=5014), b(5014, CLOSED, ack=1037), *SERVER_FINS],
        "Close by client",
        0,
        "server",
    ),
    "client, and the server resets": (
        [*TALK, a(1015, CLOSING, ack=5014), b(5014, CLOSED, ack=1037), b(5028, ack=1037, flags=RST | ACK)],
        "Close by client",
        0,
        "server",
    ),
    "client, and only the answer was captured": (
        [*TALK, b(5014, CLOSED, ack=1037), *SERVER_FINS],
        "Close by client",
        0,
        "server",
    ),
    "server, and the client ends the connection": (
        [
            *TALK,
            b(5014, CLOSING, ack=1015),
            a(1015, CLOSED, ack=5036),
            a(1029, ack=5036, flags=FIN | ACK),
            b(5036, flags=FIN | ACK, ack=1030),
        ],
        "Close by server",
        1,
        "client",
    ),
    "both at once, the client first": (
        [
            *TALK,
            a(1015, CLOSING, ack=5014),
            b(5014, CLOSING, ack=1015),
            b(5036, ack=1037, flags=FIN | ACK),
            a(1037, ack=5037, flags=FIN | ACK),
        ],
        "Close by client",
        0,
        "server",
    ),
    "client, and one side of the connection is open": (
        [*TALK, a(1015, CLOSING, ack=5014), b(5014, CLOSED, ack=1037), SERVER_FINS[0]],
        "Close by client, open at end of capture",
        0,
        "server",
    ),
    "client, and the connection is open": (
        [*TALK, a(1015, CLOSING, ack=5014), b(5014, CLOSED, ack=1037)],
        "Close by client, open at end of capture",
        0,
        None,
    ),
    "server, and the client says Close 30 s later": (
        [*TALK, b(5014, ack=1015, flags=FIN | ACK), a(1015, CLOSING, ack=5015, time_ns=30_000 * MS), b(5015, ack=None, flags=RST)],
        "FIN by server",
        1,
        "server",
    ),
    "client, whose Close was captured behind its FIN": (
        [*TALK, a(1037, ack=5014, flags=FIN | ACK), a(1015, CLOSING, ack=5014), b(5014, ack=1038, flags=FIN | ACK)],
        "Close by client",
        0,
        "client",
    ),
    "nobody": ([*TALK, b(5014, ack=1015, flags=FIN | ACK), a(1015, ack=5015, flags=FIN | ACK)], "FIN by server", 1, "server"),
}


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("case", WHO_CLOSES)
def test_the_close_of_the_protocol_decides_who_ended_a_conversation(case: str, size: int) -> None:
    segments, ended, by_server, sender = WHO_CLOSES[case]
    inspector = Inspector([], READ, finite=True)
    records = [one for at in range(0, len(segments), size) for one in inspector.process(captured(segments[at : at + size], at))]
    endings = [one for one in [*records, *inspector.finish()] if isinstance(one, Ending)]
    (row,) = inspector.rows()
    assert (row.ended, inspector.counters.by_server) == (ended, by_server)
    assert [one.sender for one in endings] == ([] if sender is None else [sender]), "the first FIN or RST"


def test_a_handshake_that_the_client_closes_is_not_broken_off_by_the_server() -> None:
    path = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"
    inspector = Inspector([open_capture(str(path))], Options(findings=True), None, finite=True)
    assert [one.sender for one in inspector.records() if isinstance(one, Ending)] == ["server"]
    assert inspector.counters.by_server == inspector.counters.broken_off == 0
    assert inspector.diagnoser is not None
    assert [one.ended for one in inspector.diagnoser.so_far()] == ["Close by client"]
    assert [row.ended for row in inspector.rows()] == ["Close by client"]


def test_a_direction_that_was_not_captured_shows_that_there_was_an_answer() -> None:
    segments = [handshake()[0], handshake()[2], a(1000, OPEN), a(1015, HEARTBEAT, ack=5014)]
    inspector = Inspector([], READ, finite=True)
    records = [*inspector.process(captured(segments)), *inspector.finish()]
    assert told(records) == []
    assert [row.ended for row in inspector.rows()] == ["open at end of capture"]


def test_an_answer_that_waits_for_lost_bytes_comes_before_anything_is_late() -> None:
    """The first response also acknowledges the second request, of which half is lost; then nothing comes."""
    answered = bytes.fromhex("0000000a 8015 0001 00000007 0001")
    start = [*handshake(), a(1000, OPEN), a(1022, OPEN[7:]), b(5000, answered, ack=1030)]
    inspector = Inspector([], READ)
    assert [one.name for one in inspector.process(captured(start)) if isinstance(one, Message)] == ["Open"]
    records = inspector.age(31_000 * MS) + inspector.finish()
    assert [(one.name, one.outcome) for one in records if isinstance(one, Message)] == [("Open", "answered")]
    assert not [one for one in records if isinstance(one, Exchange)]
    # The server ends the connection, the client leaves it half open
    inspector = Inspector([], READ)
    inspector.process(captured([*start, b(5014, ack=1030, flags=FIN | ACK), a(1030, ack=5015)]))
    (ending,) = [one for one in inspector.age(2_100 * MS) if isinstance(one, Ending)]
    assert (ending.sender, ending.open) == ("server", 0)
