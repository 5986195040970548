"""Apache Iggy: each rule with a capture that raises it, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from streamdump.diagnose import iggy
from streamdump.diagnose.iggy import IN_VAIN, STORM
from streamdump.protocols.iggy.layout_versions import LAYOUTS, in_words
from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, found, rules, worst_first
from tests.protocols.test_iggy import (
    LOGGED_IN,
    LOGIN_L6,
    NOTHING_POLLED,
    OK,
    ONE,
    PING,
    POLL_L8,
    eviction,
    long_reply,
    long_request,
    polled_l9,
    request,
    response,
    s32,
)
from tests.support.frames import Packet, pcap

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "iggy"

RAISED = {
    "bad-credentials, and no other login": ("node0100e1-errs.pcap", "iggy.bad-credentials", "error"),
    "bad-credentials, then better ones": ("py080-errors.pcap", "iggy.bad-credentials", "warning"),
    "no session, again and again": ("node0100e1-nosession.pcap", "iggy.unauthenticated", "error"),
    "a login of another version": ("py090-rejected.pcap", "iggy.version-mismatch", "error"),
    "an option that the server does not know": ("py090-mismatch.pcap", "iggy.version-mismatch", "error"),
    "the other framing, answered": ("new-client-old-server.pcap", "iggy.version-mismatch", "error"),
    "the other framing, never answered": ("old-client-new-server.pcap", "iggy.version-mismatch", "warning"),
    "the same is one finding": ("old-client-new-server.pcap", "iggy.open-requests", None),
    "a version newer than any known": ("py091d5-basic.pcap", "iggy.newer-version", "note"),
    "a body that the server cannot read": ("node050-all.pcap", "iggy.malformed-request", "error"),
    "a command that the server does not know": ("py081-midstream.pcap", "iggy.unknown-command", "warning"),
    "no such partition": ("py080-errors.pcap", "iggy.no-partition", "error"),
    "no such topic": ("py080-errors.pcap", "iggy.not-found", "error"),
    "such a stream exists": ("py080-errors.pcap", "iggy.exists", "note"),
    "nothing found, without a refusal": ("py080-group.pcap", "iggy.not-found", "note"),
}


@pytest.mark.parametrize("case", RAISED)
def test_real_servers_and_clients_raise_what_a_rule_is_for(case: str) -> None:
    file, rule, severity = RAISED[case]
    assert found(GOLDEN / file, bytes_as="omit").get(rule) == severity


@pytest.mark.parametrize("file", ["node080-hb.pcap", "py080-idle.pcap", "py090d5-idle.pcap", "py040-basic.pcap"])
def test_healthy_connections_have_nothing(file: str) -> None:
    assert found(GOLDEN / file, bytes_as="omit") == {}


def let_in() -> Connection:
    return Connection(dport=8090).open().ask(LOGIN_L6).tell(LOGGED_IN)


def refused(status: int) -> Connection:
    return let_in().ask(POLL_L8).tell(response(status=status)).ask(PING).tell(OK).fin(0)


def polling(times: int, answer: bytes, wait: int = MS) -> Connection:
    one = let_in()
    for _ in range(times):
        one.ask(POLL_L8).tell(answer).wait(wait)
    return one.fin(0)


FULL = response(pack("<IQI", 1, 0, 1) + polled_l9(b"x"))
DAMAGED = response(pack("<IQI", 1, 0, 1) + polled_l9(b"x", checksum=5))
LONG_PING = long_request(2, 1)


def evicted(why: int) -> Connection:
    """After an answer and silence an eviction that nobody asked for."""
    one = Connection(dport=8090).open().ask(LONG_PING).tell(long_reply(2, client=b"c" * 16))
    return one.wait(40 * SECOND).tell(eviction(why)).fin(1)


CASES: dict[str, tuple[Callable[[], Connection], str, str | None]] = {
    "a login that fails for a reason of no group": (
        lambda: Connection(dport=8090).open().ask(LOGIN_L6).tell(response(status=1)).fin(0),
        "iggy.login-refused",
        "error",
    ),
    "a classic client, and the server just closes": (
        lambda: Connection(dport=8090).open().ask(PING).fin(1),
        "iggy.version-mismatch",
        "error",
    ),
    "a client of the long framing, and the server just resets": (
        lambda: Connection(dport=8090).open().ask(LONG_PING).reset(1),
        "iggy.version-mismatch",
        "error",
    ),
    "a classic client, and the server stays silent": (
        lambda: Connection(dport=8090).open().ask(PING).wait(12 * SECOND).fin(0),
        "iggy.version-mismatch",
        "warning",
    ),
    "the same, and the capture ends": (
        lambda: Connection(dport=8090).open().ask(PING).wait(12 * SECOND).segment(1),
        "iggy.version-mismatch",
        "warning",
    ),
    "too short a silence": (lambda: Connection(dport=8090).open().ask(PING).wait(2 * SECOND).fin(0), "iggy.version-mismatch", None),
    "so many bytes that any server answers": (
        lambda: Connection(dport=8090).open().ask(PING * 32).wait(12 * SECOND).fin(0),
        "iggy.version-mismatch",
        None,
    ),
    "a client that is answered": (lambda: Connection(dport=8090).open().ask(PING).tell(OK).fin(0), "iggy.version-mismatch", None),
    "HTTP on the port": (
        lambda: Connection(dport=8090).open().ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").fin(1),
        "tcp.other-protocol",
        "error",
    ),
    "evicted without a session": (
        lambda: Connection(dport=8090).open().ask(LONG_PING).tell(eviction(1)).fin(0),
        "iggy.unauthenticated",
        "error",
    ),
    "evicted for a version that nobody stated": (lambda: evicted(14), "iggy.version-mismatch", "error"),
    "the same is no silence": (lambda: evicted(14), "iggy.stale-client", None),
    "evicted for its silence": (lambda: evicted(13), "iggy.stale-client", "warning"),
    "evicted for what nobody knows": (lambda: evicted(77), "iggy.evicted", "error"),
    "unauthenticated, and it leaves": (
        lambda: Connection(dport=8090).open().ask(PING).tell(OK).ask(POLL_L8).tell(response(status=40)).fin(0),
        "iggy.unauthenticated",
        "error",
    ),
    "unauthenticated, then a login": (
        lambda: Connection(dport=8090).open().ask(PING).tell(response(status=40)).ask(LOGIN_L6).tell(LOGGED_IN).ask(PING).tell(OK).fin(0),
        "iggy.unauthenticated",
        "warning",
    ),
    "not permitted": (lambda: refused(41), "iggy.not-permitted", "error"),
    "an invalid offset": (lambda: refused(4100), "iggy.invalid-offset", "warning"),
    "too many messages": (lambda: refused(4023), "iggy.limit", "warning"),
    "a wrong checksum, says the server": (lambda: refused(4027), "iggy.checksum", "warning"),
    "a wrong checksum": (lambda: polling(1, DAMAGED), "iggy.checksum", "error"),
    "a right checksum": (lambda: polling(1, FULL), "iggy.checksum", None),
    "no answers but empty ones": (lambda: polling(IN_VAIN, NOTHING_POLLED, SECOND), "iggy.empty-polls", "note"),
    "too few to tell": (lambda: polling(IN_VAIN - 1, NOTHING_POLLED, SECOND), "iggy.empty-polls", None),
    "answers that are not empty": (lambda: polling(IN_VAIN, FULL, SECOND), "iggy.empty-polls", None),
    "a storm of empty polls": (lambda: polling(STORM, NOTHING_POLLED), "iggy.poll-storm", "warning"),
    "which is one finding": (lambda: polling(2 * STORM, NOTHING_POLLED), "iggy.again-and-again", None),
    "polls with time between": (lambda: polling(STORM, NOTHING_POLLED, 20 * MS), "iggy.poll-storm", None),
    "polls that bring something": (lambda: polling(STORM, FULL), "iggy.poll-storm", None),
    "a client that is silent": (lambda: let_in().wait(40 * SECOND).fin(1), "iggy.stale-client", "warning"),
    "a server that closes before pings are due": (lambda: let_in().wait(20 * SECOND).fin(1), "iggy.stale-client", None),
    "a server that closes": (lambda: let_in().fin(1), "iggy.closed-by-server", "note"),
    "a client that closes": (lambda: let_in().wait(40 * SECOND).fin(0), "iggy.stale-client", None),
    "a client that logged out": (lambda: let_in().ask(request(39)).tell(OK).fin(1), "iggy.closed-by-server", None),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_finds_what_it_is_for(case: str) -> None:
    make, rule, severity = CASES[case]
    assert rules(make()).get(rule) == severity


def test_a_request_of_which_a_part_was_sent_is_not_malformed() -> None:
    for ends in (lambda one: one.fin(1), lambda one: one.reset(1)):
        told = rules(ends(let_in().ask(pack("<II", 20_000_004, 101) + ONE + bytes(60))))
        assert (told.get("iggy.frame-cut-off"), told.get("iggy.malformed-request")) == ("error", None)


def test_reads_that_have_the_number_of_the_write_before_them() -> None:
    ping = long_request(2, 1, number=3)
    both = Connection(dport=8090).open().ask(ping).ask(ping).tell(long_reply(2, number=3)).tell(long_reply(2, number=3)).fin(0)
    assert "iggy.duplicate-id" not in rules(both)


def test_polls_of_a_place_to_which_the_client_itself_sends() -> None:
    send = request(101, ONE + ONE + bytes.fromhex("01 00 00000000") + bytes(8))
    one = let_in()
    for _ in range(IN_VAIN):
        one.ask(POLL_L8).tell(NOTHING_POLLED).wait(SECOND)
    sent = diagnosed(capture(one.ask(send).tell(OK).fin(0)))[0]
    assert [each.rule for each in sent if each.rule == "iggy.empty-polls"]


def test_the_evidence_of_a_login_that_fails_twice_is_both() -> None:
    (first, *_) = worst_first(diagnosed(GOLDEN / "py090-rejected.pcap")[0])
    assert (first.messages, first.packets) == ([3, 4, 5, 6], [8, 9, 10, 11])
    assert "0.12.0 to 0.12.3" in first.cause and "0.11.0" in first.cause


def test_how_far_a_connection_got_names_the_release() -> None:
    reached = {one.reached for one in diagnosed(GOLDEN / "py050-basic.pcap")[1] if one.messages}
    assert reached == {"logged in (L7: server 0.5.x)"}
    assert diagnosed(capture(let_in().fin(0)))[1][0].reached.startswith("logged in (")


def test_a_client_that_logs_out_was_logged_in() -> None:
    out = let_in().ask(request(39)).tell(OK)
    assert diagnosed(capture(out.fin(0)))[1][0].reached.startswith("logged out (")
    late = let_in().ask(request(39)).tell(OK).ask(POLL_L8).tell(response(status=40)).fin(0)
    (told,) = diagnosed(capture(late))[0]
    assert told.cause == "poll_messages is refused: unauthenticated, as the client has logged out"


def test_releases_in_the_words_of_people() -> None:
    assert {layout: in_words((layout,)) for layout in LAYOUTS if layout in ("L0", "L1", "L6", "L7", "L9", "V3", "V4", "V5")} == {
        "L0": "server 0.0.1 to 0.0.29",
        "L1": "server 0.0.30",
        "L6": "server 0.3.0 to 0.4.x",
        "L7": "server 0.5.x",
        "L9": "server 0.7.0 to 0.8.x",
        "V3": "server 0.9.0-edge.4",
        "V4": "server 0.9.0-edge.5 to 0.9.x",
        "V5": "protocol 0.12.0",
    }


def test_a_login_that_was_not_captured_succeeded_if_the_session_goes_on() -> None:
    denied = Connection(dport=8090).open().ask(LOGIN_L6).tell(response(status=42))
    assert rules(denied)["iggy.bad-credentials"] == "error"
    denied.ask(LOGIN_L6).tell(LOGGED_IN).ask(POLL_L8).tell(NOTHING_POLLED)
    del denied.packets[5]
    assert rules(denied)["iggy.bad-credentials"] == "warning"


@pytest.mark.parametrize(
    ("why", "said"), [(14, "incompatible protocol"), (13, "stale client"), (1, "no session"), (9, "bad credentials"), (77, "reason 77")]
)
def test_an_eviction_that_nobody_asked_for_is_one_finding_with_its_reason(why: int, said: str) -> None:
    (one,) = diagnosed(capture(evicted(why)))[0]
    assert one.cause == f"the server evicts the client after 40 s of silence: {said}"


def test_both_framings_are_named_where_the_client_gives_up() -> None:
    (one,) = [one for one in diagnosed(GOLDEN / "old-client-new-server.pcap")[0] if one.severity != "note"]
    assert "the server has not answered ping for 12.04 s" in one.cause
    assert "classic framing of the client (server 0.0.1 to 0.8.x)" in one.cause and "(server 0.9.0-edge.1 to 0.9.x)" in one.cause


def poll(strategy: int = 5, commit: int = 0, kind: int = 1, consumer: int = 1, topic: int = 1) -> bytes:
    who = bytes([kind, 1, 4]) + pack("<I", consumer) + ONE + bytes([1, 4]) + pack("<I", topic)
    return request(100, who + b"\1" + pack("<IBQIB", 1, strategy, 0, 10, commit))


def polled(*offsets: int, partition: int = 1) -> bytes:
    return response(pack("<IQI", partition, 99, len(offsets)) + b"".join(polled_l9(b"x", offset=offset) for offset in offsets))


def offset_of(code: int, partition: bytes = b"\1\1\0\0\0", offset: bytes = b"") -> bytes:
    """What is stored, deleted... of the offset of consumer 1."""
    return request(code, b"\1" + ONE + ONE + ONE + partition + offset)


def took(*offsets: int, one: Connection | None = None, partition: int = 1, **asked: int) -> Connection:
    """Polls that get these, one each."""
    one = one or let_in()
    for offset in offsets:
        one.ask(poll(**asked)).tell(polled(offset, partition=partition))
    return one


def between(*frames: bytes) -> Connection:
    """Messages 0 to 2, something else, and message 0 again."""
    one = took(0, 1, 2)
    for frame in frames:
        one.ask(frame).tell(OK)
    return took(0, one=one).fin(0)


def lossy() -> Connection:
    one = took(0, 1, 2, 3, 9).fin(0)
    del one.packets[9:11]
    return one


OFFSETS: dict[str, tuple[Callable[[], list[Connection]], bool]] = {
    "in order": (lambda: [took(0, 1, 2).fin(0)], False),
    "several at once": (lambda: [let_in().ask(poll()).tell(polled(3, 4, 5)).ask(poll()).tell(polled(6)).fin(0)], False),
    "passed over": (lambda: [took(0, 1, 5).fin(0)], True),
    "again": (lambda: [took(5, 6, 5).fin(0)], True),
    "as asked for": (lambda: [took(0, one=took(5, 6), strategy=3).fin(0)], False),
    "as asked for, and then what is next": (lambda: [took(7, one=took(0, one=took(5, 6), strategy=3)).fin(0)], False),
    "as asked for, and stored": (lambda: [took(7, one=took(0, one=took(5, 6), strategy=3, commit=1)).fin(0)], True),
    "a group passes over": (lambda: [took(0, 1, 5, kind=2).fin(0)], False),
    "a group gets it again": (lambda: [took(5, 6, 5, kind=2).fin(0)], True),
    "another consumer": (lambda: [took(0, one=took(5, 6), consumer=2).fin(0)], False),
    "a group of that name": (lambda: [took(0, one=took(5, 6), kind=2).fin(0)], False),
    "another topic": (lambda: [took(0, one=took(5, 6), topic=2).fin(0)], False),
    "another partition": (lambda: [took(0, one=took(5, 6), partition=2).fin(0)], False),
    "another connection goes on": (lambda: [took(0, 1, 2).fin(0), took(3, one=reconnected()).fin(0)], False),
    "another connection begins anew": (lambda: [took(0, 1, 2).fin(0), took(0, one=reconnected()).fin(0)], True),
    "another server": (lambda: [took(0, 1, 2).fin(0), took(0, one=reconnected(8091)).fin(0)], False),
    "a ping between": (lambda: [between(PING)], True),
    "an offset is stored": (lambda: [took(2, one=stored(1)).fin(0)], False),
    "another offset is stored": (lambda: [took(2, one=stored(7)).fin(0)], True),
    "an offset is stored somewhere": (lambda: [between(offset_of(121, bytes(5), bytes(8)))], False),
    "the offset is deleted": (lambda: [between(offset_of(122))], False),
    "the topic is purged": (lambda: [between(request(305, ONE + ONE))], False),
    "damaged": (lambda: [took(0, 1).ask(poll()).tell(response(polled(9)[8:-1])).fin(0)], False),
    "bytes were lost": (lambda: [lossy()], False),
}


def reconnected(port: int = 8090) -> Connection:
    return Connection(SECOND, sport=40001, dport=port).open().ask(LOGIN_L6).tell(LOGGED_IN)


def stored(offset: int) -> Connection:
    return took(0, 1, 2, 3).ask(offset_of(121, offset=pack("<Q", offset))).tell(OK)


@pytest.mark.parametrize("case", OFFSETS)
def test_polls_that_jump_or_repeat(case: str) -> None:
    make, told = OFFSETS[case]
    assert rules(*make()).get("iggy.offsets") == ("warning" if told else None)


def test_consumers_that_are_followed_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Connection:
        one = took(1, one=took(1, consumer=2), consumer=3)
        return took(9, one=took(9, one=one, consumer=3), consumer=2).fin(0)

    assert len([one for one in diagnosed(capture(made()))[0] if one.rule == "iggy.offsets"]) == 2
    monkeypatch.setattr(iggy, "FOLLOWED", 1)
    assert len([one for one in diagnosed(capture(made()))[0] if one.rule == "iggy.offsets"]) == 1


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("polls-jump.pcap", "consumer 1 of 1/1, partition 1, gets offset 5,000,000: 3 was the next, 4,999,997 are skipped"),
        ("polls-repeat.pcap", "consumer 1 of 1/1, partition 1, gets offset 5 again: 8 was the next"),
    ],
)
def test_what_was_the_next_offset_is_told(file: str, cause: str) -> None:
    (one,) = diagnosed(GOLDEN / file)[0]
    assert (one.rule, one.cause, one.messages) == ("iggy.offsets", cause, [9, 10])


def roster(*nodes: tuple[str, int, int]) -> bytes:
    each = [s32("n") + s32(ip) + pack("<HHHHBB", port, 0, 0, 0, role, 0) for ip, port, role in nodes]
    return response(s32("c") + pack("<I", len(nodes)) + b"".join(each))


def led(*nodes: tuple[str, int, int], wait: int = MS, then: tuple[bytes, bytes] | None = None, by: int = 0) -> Connection:
    one = let_in().ask(request(12)).tell(roster(*nodes)).ask(PING).tell(OK)
    if then is not None:
        one.ask(then[0]).tell(then[1])
    return one.wait(wait).fin(by)


THERE, HERE, FOLLOWER = ("10.1.1.1", 8090, 0), ("192.0.2.2", 8090, 0), ("10.1.1.3", 8090, 1)


def moved(client: bytes | None = None) -> Connection:
    """A connection to the leader."""
    one = Connection(5 * SECOND, sport=40001, dport=8090)
    one.addresses = (client or one.addresses[0], b"\x0a\1\1\1")
    return one.open().ask(LOGIN_L6).tell(LOGGED_IN).fin(0)


LED: dict[str, tuple[Callable[[], list[Connection]], bool]] = {
    "elsewhere": (lambda: [led(FOLLOWER, THERE)], True),
    "here": (lambda: [led(FOLLOWER, HERE)], False),
    "nobody leads": (lambda: [led(FOLLOWER)], False),
    "elsewhere, and dialled": (lambda: [led(THERE), moved()], False),
    "elsewhere, and used here": (lambda: [led(THERE, then=(poll(), polled(1)))], False),
    "elsewhere, and something else is asked": (lambda: [led(THERE, then=(request(300, ONE + ONE), OK))], False),
    "elsewhere, and used on another connection": (lambda: [led(THERE), took(1, one=reconnected()).fin(0)], False),
    "elsewhere, and the client stays": (lambda: [led(THERE, wait=70 * SECOND)], False),
    "elsewhere, and the server goes": (lambda: [led(THERE, by=1)], False),
}


@pytest.mark.parametrize("case", LED)
def test_a_leader_that_nobody_dials(case: str) -> None:
    make, told = LED[case]
    assert rules(*make()).get("iggy.advertised-not-dialled") == ("warning" if told else None)


def test_a_leader_that_nobody_dials_is_named() -> None:
    (one,) = diagnosed(capture(led(THERE)))[0]
    assert one.cause == (
        "192.0.2.1 neither publishes nor polls: get_cluster_metadata names 10.1.1.1:8090 as the leader, "
        "and the capture has no connection to it"
    )
    assert one.messages == [4]


def test_for_how_long_a_client_was_silent_against_what_heartbeat() -> None:
    def told(one: Connection) -> tuple[str, str, str]:
        (found,) = (each for each in diagnosed(capture(one))[0] if each.severity != "note")
        return found.rule, found.severity, found.cause

    def twice(one: Connection, ask: bytes, answer: bytes) -> Connection:
        return one.ask(ask).tell(answer).wait(5 * SECOND - MS).ask(ask).tell(answer).wait(40 * SECOND - MS)

    long = lambda: Connection(dport=8090).open()  # noqa: E731
    pinged = twice(long(), LONG_PING, long_reply(2, client=b"c" * 16))
    assert told(pinged.tell(eviction(13)).fin(1)) == (
        "iggy.stale-client",
        "warning",
        "the server evicts the client after 40 s of silence, though it had pinged every 5 s: stale client",
    )
    late = twice(long(), LONG_PING, long_reply(2, client=b"c" * 16)).ask(LONG_PING).tell(eviction(13)).fin(1)
    assert told(late)[2].startswith(
        "ping is refused: the server evicts the client: stale client after 40 s of silence, though it had pinged"
    )
    classic = twice(let_in(), PING, OK).ask(poll()).tell(response(status=30)).fin(1)
    assert told(classic)[0] == "iggy.stale-client"
    assert "stale client after 40 s of silence, though it had pinged every 5 s" in told(classic)[2]
    assert told(let_in().wait(40 * SECOND).fin(1))[2].endswith("silent for 40 s, and never pinged: it probably considers the client dead")


def test_who_deleted_a_topic_that_others_poll() -> None:
    one = (
        Connection(sport=50000, dport=8090, client=bytes([192, 0, 2, 7]))
        .open()
        .ask(LOGIN_L6)
        .tell(LOGGED_IN)
        .ask(request(303, ONE + ONE))
        .tell(OK)
        .fin(0)
    )
    two = Connection(9 * SECOND, dport=8090).open().ask(LOGIN_L6).tell(LOGGED_IN).ask(POLL_L8).tell(response(status=2010)).fin(0)
    found = [each for each in diagnosed(capture(one, two))[0] if each.rule == "iggy.stream-deleted"]
    assert [(each.severity, each.cause) for each in found] == [
        ("error", "192.0.2.7:50000 deleted the topic 1/1 9 s before 192.0.2.1:40000 wanted to consume from it")
    ]
    assert "iggy.stream-deleted" not in rules(two)


def test_where_a_response_was_lost_another_request_stays_open() -> None:
    """Responses have no id: that of the first is paired with the second, and nobody left a request unanswered."""
    one = Connection(dport=8090).open().ask(LOGIN_L6).tell(LOGGED_IN)
    for _ in range(8):
        one.ask(PING).ask(PING).tell(OK).tell(OK)
    one.fin(0)
    for lost in range(3, len(one.packets) - 3):
        short = Connection(dport=8090)
        short.packets = [each for at, each in enumerate(one.packets) if at != lost]
        findings, *_ = diagnosed(capture(short))
        assert not [each for each in findings if each.severity != "note" and each.rule != "tcp.lost-by-capture"]


@pytest.mark.parametrize("captured", [290, 320, 400, 560, 600])
def test_a_header_cut_by_the_snap_length_is_no_other_data(captured: int) -> None:
    """Of several frames in a segment, the capture has one and the beginning of the next."""
    one = Connection(dport=8090).open().ask(LONG_PING).tell(long_reply(2))
    for _ in range(3):
        one.ask(LONG_PING * 3).tell(long_reply(2) * 3)
    one.fin(0)
    short = [Packet(each.data[:captured], each.time_ns, len(each.data)) for each in one.packets]
    assert not [each for each in diagnosed(pcap(short))[0] if each.severity != "note"]
