"""mewbase: each rule with a capture that raises it, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bson.decimal128 import Decimal128

from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, found, rules, worst_first
from tests.protocols.test_mewbase import CONNECT, OK, frame, rest

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "mewbase"

RAISED = {
    "a wrong password": ("java-auth-bad.pcap", "mewbase.authentication-failed", "error"),
    "a version that is refused": ("py-badversion.pcap", "mewbase.version-refused", "error"),
    "not allowed, and closed": ("java-auth-readonly.pcap", "mewbase.refused", "error"),
    "a command that fails": ("java-command.pcap", "mewbase.refused", "warning"),
    "no such channel": ("java-subfail.pcap", "mewbase.refused", "error"),
    "BSON that is none": ("bad-element.pcap", "mewbase.deaf", "error"),
    "text that is none": ("bad-utf8.pcap", "mewbase.deaf", "error"),
    "no type": ("bad-notype.pcap", "mewbase.deaf", "error"),
    "bytes between frames": ("bad-http.pcap", "mewbase.deaf", "error"),
    "transactions": ("py-tx.pcap", "mewbase.deaf", "error"),
    "a length that servers let pass": ("bad-innerlen.pcap", "mewbase.deaf", None),
    "no rID": ("bad-norid.pcap", "mewbase.closes-over", "error"),
    "an old subscription's end": ("java-nov2016.pcap", "mewbase.old-unsubscribe", "note"),
    "one of a month before": ("old-oct2016.pcap", "mewbase.old-unsubscribe", "note"),
    "the name in the document": ("bad-publish.pcap", "mewbase.unknown-type", "warning"),
    "a name without three N": ("bad-listchannels.pcap", "mewbase.unknown-type", "warning"),
    "a name of nobody": ("bad-unknown-type.pcap", "mewbase.unknown-type", "warning"),
    "a limit that stops events": ("py-flow.pcap", "mewbase.subscription-stopped", "warning"),
    "an event that never comes": ("py-types.pcap", "mewbase.subscription-stopped", "note"),
    "no PING": ("py-idle.pcap", "mewbase.idle", "warning"),
    "a transaction within one": ("old-document.pcap", "mewbase.transaction", "warning"),
}


@pytest.mark.parametrize("case", RAISED)
def test_real_servers_raise_what_a_rule_is_for(case: str) -> None:
    file, rule, severity = RAISED[case]
    assert found(GOLDEN / file, bytes_as="omit").get(rule) == severity


@pytest.mark.parametrize("file", ["java-connect.pcap", "java-sub.pcap", "java-subpos.pcap", "java-outoforder.pcap", "java-ping.pcap"])
def test_healthy_connections_have_nothing(file: str) -> None:
    assert found(GOLDEN / file, bytes_as="omit") == {}


EVENT = {"id": 1}


def ready() -> Connection:
    return Connection(dport=7451).open().ask(CONNECT).tell(OK)


def answered(one: Connection, kind: str, rid: int, /, ok: bool = True, answer: str = "RESPONSE", **fields: object) -> Connection:
    """A request with its response; what begins with an underscore belongs to the latter."""
    told = {name[1:]: value for name, value in fields.items() if name.startswith("_")}
    asked = {name: value for name, value in fields.items() if not name.startswith("_")}
    return one.ask(frame(kind, **asked, rID=rid)).tell(frame(answer, ok=ok, **told, rID=rid))


def subscribed() -> Connection:
    return answered(ready(), "SUBSCRIBE", 0, answer="SUBRESPONSE", channel="orders", _subID=0)


def received(*positions: int, acked: bool = True) -> Connection:
    one = subscribed()
    for position in positions:
        one.tell(frame("RECEV", subID=0, event=EVENT, pos=position, timestamp=1_500_000_000_000))
        if acked:
            one.ask(frame("ACKEV", subID=0, pos=position, bytes=100))
    return one


def published(count: int, delivered: int) -> Connection:
    one = subscribed()
    for at in range(count):
        answered(one, "PUB", at + 1, channel="orders", event=EVENT)
        if at < delivered:
            one.tell(frame("RECEV", subID=0, event=EVENT, pos=at, timestamp=1_500_000_000_000))
            one.ask(frame("ACKEV", subID=0, pos=at, bytes=100))
    return answered(one.wait(SECOND), "SUBCLOSE", 99, subID=0).fin(0)


def transaction(*names: str) -> Connection:
    one = ready()
    for rid, name in enumerate(names):
        answered(one, name, rid, sessID=1)
    return one.fin(0)


def query(*lasts: bool) -> Connection:
    one = ready().ask(frame("QUERY", name="all", params={}, queryID=0, rID=1))
    for last in lasts:
        one.tell(frame("QUERYRESULT", ok=True, queryID=0, result=EVENT, last=last))
    return one.fin(0)


def connecting(version: object) -> Connection:
    return Connection(dport=7451).open().ask(frame("CONNECT", version=version, authInfo=None)).wait(3 * SECOND).fin(0)


CASES: dict[str, tuple[Callable[[], Connection], str, str | None]] = {
    "something else before CONNECT": (
        lambda: Connection(dport=7451).open().ask(frame("LISTBINDERS", rID=0)).wait(3 * SECOND).fin(0),
        "mewbase.no-connect",
        "error",
    ),
    "a CONNECT that is refused for another reason": (
        lambda: Connection(dport=7451).open().ask(CONNECT).tell(frame("RESPONSE", ok=False, errCode=99, errMsg="server error")).fin(1),
        "mewbase.connect-refused",
        "error",
    ),
    "CONNECT first": (lambda: ready().fin(0), "mewbase.no-connect", None),
    "a version that is no number": (lambda: connecting("one"), "mewbase.version", "warning"),
    "a version that is no text": (lambda: connecting(3), "mewbase.version", "warning"),
    "the version 0.1": (lambda: connecting("0.1"), "mewbase.version", None),
    "no answer": (lambda: ready().ask(frame("LISTBINDERS", rID=0)).fin(0), "mewbase.open-requests", "warning"),
    "an rID used again": (
        lambda: answered(ready().ask(frame("LISTBINDERS", rID=0)), "LISTBINDERS", 0).fin(0),
        "mewbase.duplicate-id",
        "warning",
    ),
    "an rID used again by another request": (
        lambda: ready().ask(frame("LISTBINDERS", rID=0)).ask(frame("CREATEBINDER", name="a", rID=0)).fin(0),
        "mewbase.duplicate-id",
        "warning",
    ),
    "a field that is missing": (lambda: ready().ask(frame("PUB", event=EVENT, rID=0)).fin(1), "mewbase.closes-over", "error"),
    "the same, and nobody closes over it": (
        lambda: answered(ready(), "PUB", 0, event=EVENT).fin(0),
        "mewbase.missing-field",
        "warning",
    ),
    "the same from a client that leaves": (lambda: answered(ready(), "PUB", 0, event=EVENT).fin(0), "mewbase.closes-over", None),
    "lengths as the document has them": (
        lambda: Connection(dport=7451).open().ask(rest(CONNECT, True)).tell(rest(OK, True)).ask(rest(frame("PING"), True)).fin(0),
        "mewbase.length",
        "note",
    ),
    "positions that fall": (lambda: received(5, 6, 2).fin(0), "mewbase.positions", "warning"),
    "an event that comes twice": (lambda: received(5, 5, 6).fin(0), "mewbase.positions", "note"),
    "positions that rise": (lambda: received(5, 6, 9).fin(0), "mewbase.positions", None),
    "events that are not acknowledged": (
        lambda: received(1, 2, acked=False).wait(6 * SECOND).fin(0),
        "mewbase.unacknowledged",
        "warning",
    ),
    "events that are": (lambda: received(1, 2).wait(6 * SECOND).fin(0), "mewbase.unacknowledged", None),
    "events that do not come": (lambda: published(5, 3), "mewbase.subscription-stopped", "warning"),
    "events that come": (lambda: published(5, 5), "mewbase.subscription-stopped", None),
    "a transaction that is left open": (lambda: transaction("STARTTX"), "mewbase.transaction", "warning"),
    "two that overlap": (lambda: transaction("STARTTX", "STARTTX", "COMMITTX"), "mewbase.transaction", "warning"),
    "an end without a beginning": (lambda: transaction("COMMITTX"), "mewbase.transaction", "warning"),
    "one after the other": (lambda: transaction("STARTTX", "COMMITTX", "STARTTX", "ABORTTX"), "mewbase.transaction", None),
    "a query without its last result": (lambda: query(False, False), "mewbase.query-unfinished", "warning"),
    "a query with it": (lambda: query(False, True), "mewbase.query-unfinished", None),
    "silence, and the server closes": (lambda: ready().wait(30 * SECOND).fin(1), "mewbase.idle", "warning"),
    "silence, and the client closes": (lambda: ready().wait(30 * SECOND).fin(0), "mewbase.idle", None),
    "the server closes": (lambda: ready().fin(1), "mewbase.closed-by-server", "note"),
    "HTTP on the port": (lambda: Connection(dport=7451).open().ask(b"GET / HTTP/1.1\r\n\r\n").fin(1), "tcp.other-protocol", "error"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_finds_what_it_is_for(case: str) -> None:
    make, rule, severity = CASES[case]
    assert rules(make()).get(rule) == severity


def test_a_refusal_behind_a_handshake_that_was_not_captured_whole() -> None:
    one = Connection(dport=7451).open().ask(CONNECT).ask(frame("SUBSCRIBE", channel="no", rID=0))
    one.tell(frame("RESPONSE", ok=False, errCode=3, rID=0)).ask(frame("LISTBINDERS", rID=1)).tell(frame("RESPONSE", ok=True, rID=1)).fin(0)
    assert rules(one)["mewbase.refused"] == "error"


def test_an_end_behind_a_response_names_what_was_asked() -> None:
    (one,) = diagnosed(capture(answered(ready(), "LISTBINDERS", 1).wait(5 * MS).fin(1)))[0]
    assert one.cause == "the server closes the connection 5 ms after the answer to LISTBINDERS"


def test_a_refusal_says_what_for_and_why() -> None:
    (first, *_) = worst_first(diagnosed(GOLDEN / "java-auth-bad.pcap")[0])
    assert 'CONNECT for user "tim" is refused: authentication failed' in first.cause
    (first, *_) = worst_first(diagnosed(GOLDEN / "java-auth-readonly.pcap")[0])
    assert 'PUB for channel "orders" is refused: not authorised' in first.cause and "ends the connection" in first.cause


@pytest.mark.parametrize(("waited", "told"), [(0, None), (2 * SECOND, "error")])
def test_a_server_is_not_deaf_that_had_no_time_to_answer(waited: int, told: str | None) -> None:
    one = ready().ask(frame("STARTTX", sessID=1, rID=1)).wait(waited + MS).segment(0)
    assert rules(one).get("mewbase.deaf") == told


STATED = {4: "4 bytes, which no frame has", -5: "-5 bytes, which no frame has", 2**31 - 1: "2,147,483,647 bytes, which servers wait for"}


def stating(length: int) -> bytes:
    return length.to_bytes(4, "little", signed=True)


def first_cause(one: Connection) -> tuple[str, str]:
    (first, *_) = worst_first(diagnosed(capture(one))[0])
    return f"{first.severity} {first.rule}", first.cause


@pytest.mark.parametrize("length", STATED)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("side", [0, 1])
def test_a_length_that_no_frame_has_is_named(length: int, whole: bool, side: int) -> None:
    bad = stating(length) + frame("PUB", channel="orders", event=EVENT, rID=1)[4:]
    one = answered(ready(), "LISTBINDERS", 0).ask(bad if whole else bad[:4])
    rule, cause = first_cause(one.ask(frame("LISTBINDERS", rID=2)).wait(30 * SECOND).fin(side))
    assert rule == "error mewbase.deaf"
    assert f" that states a length of {STATED[length]}" in cause or f"PUB, which states a length of {STATED[length]}" in cause
    assert cause.endswith(", and closes the connection 30 s later") == (side == 1)


@pytest.mark.parametrize(("length", "rule"), [(4, "impossible-length"), (-5, "impossible-length"), (0x3E000000, "deaf")])
def test_a_first_frame_whose_length_none_has_is_named(length: int, rule: str) -> None:
    one = Connection(dport=7451).open().ask(stating(length) + CONNECT[4:]).wait(30 * SECOND).fin(1)
    told, cause = first_cause(one)
    assert told == f"error mewbase.{rule}"
    assert f"states a length of {length:,} bytes" in cause


def test_text_between_frames_is_no_length() -> None:
    causes = [one.cause for one in diagnosed(GOLDEN / "bad-http.pcap")[0]]
    assert causes and not any("states a length" in cause for cause in causes)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("side", [0, 1])
def test_a_decimal_is_what_closes_the_connection(deep: bool, side: int) -> None:
    price = Decimal128("1.5")
    event = {"id": 1, "prices": [{"price": price}]} if deep else {"price": price}
    one = answered(ready(), "LISTBINDERS", 0).ask(frame("PUB", channel="orders", event=event, rID=1)).ask(frame("LISTBINDERS", rID=2))
    rule, cause = first_cause(one.wait(30 * SECOND).fin(side))
    assert rule == "error mewbase.deaf"
    assert "after PUB, which holds a decimal128, which servers cannot read" in cause
    assert cause.endswith(", and closes the connection 30 s later") == (side == 1)


def test_a_decimal_that_is_taken_in_is_nothing() -> None:
    assert rules(answered(ready(), "PUB", 1, channel="orders", event={"price": Decimal128("1.5")}).fin(0)) == {}


def test_refusals_whose_texts_differ_in_numbers_are_one_finding() -> None:
    one = ready()
    for ident in range(12):
        answered(one, "LISTBINDERS", ident, ok=False, _errCode=99, _errMsg=f"request {ident} does not fit")
    (found,) = [each for each in diagnosed(capture(one.fin(0)))[0] if each.severity != "note"]
    assert found.cause == (
        'LISTBINDERS is refused: error 99 ("request 0 does not fit"); 12 times on this connection, with different numbers'
    )
