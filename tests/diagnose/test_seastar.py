"""Seastar RPC: each rule with a capture that raises it, and one that does not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from struct import pack

import cramjam
import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Finding, Message, Options
from streamdump.protocols.seastar.layouts import COMPRESS, HANDLER_DURATION, ISOLATION, MAGIC, STREAM_PARENT, TIMEOUT
from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, found, rules, worst_first
from tests.support.frames import ACK, PSH
from tests.support.scylla import COMMIT, LZ4, RAW, frame, half, history

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "seastar-rpc"

RAISED = {
    "compression declined": ("compress_declined.pcap", "seastar-rpc.declined", "warning"),
    "an older server": ("new_client_old_server.pcap", "seastar-rpc.declined", "note"),
    "a verb that is not known": ("no_wait.pcap", "seastar-rpc.unknown-verb", "warning"),
    "exceptions": ("exceptions.pcap", "seastar-rpc.exception", "warning"),
    "no reply in time": ("timeout_expiry.pcap", "seastar-rpc.deadline-passed", "warning"),
    "the same error in the middle": ("timeout_midstream.pcap", "seastar-rpc.deadline-passed", "warning"),
    "the server goes": ("server_stops.pcap", "seastar-rpc.dropped-calls", "error"),
    "the client goes": ("raw_badpayload.pcap", "seastar-rpc.dropped-calls", "warning"),
    "an id below 1": ("raw_badpayload.pcap", "seastar-rpc.not-positive-id", "note"),
    "calls that expect no reply": ("no_wait.pcap", "seastar-rpc.no-reply", "note"),
    "a request that is cut": ("raw_tail.pcap", "seastar-rpc.frame-cut-off", "warning"),
    "a negotiation that is refused": ("raw_refused.pcap", "seastar-rpc.negotiation-failed", "error"),
    "a slow handler": ("handler_duration.pcap", "seastar-rpc.handler-time", "note"),
}


@pytest.mark.parametrize("case", RAISED)
def test_real_servers_raise_what_a_rule_is_for(case: str) -> None:
    file, rule, severity = RAISED[case]
    assert found(GOLDEN / file, bytes_as="omit").get(rule) == severity


@pytest.mark.parametrize("file", ["basic.pcap", "stream.pcap", "stream_lz4.pcap", "big_mtu1500.pcap", "ipv6.pcap"])
def test_healthy_connections_have_nothing(file: str) -> None:
    # Small messages grow
    told = {"seastar-rpc.compression": "note"} if file == "stream_lz4.pcap" else {}
    assert found(GOLDEN / file, bytes_as="omit") == told


def test_each_way_to_be_refused_is_told_by_its_cause() -> None:
    causes = [one.cause for one in diagnosed(GOLDEN / "raw_refused.pcap")[0] if one.rule == "seastar-rpc.negotiation-failed"]
    words = ("features[0].len", "length says 100 bytes", "after 10 bytes", 'isolation cookie "reject"', "connection 153 on shard 0")
    assert [[word for word in words if word in cause] for cause in causes] == [[word] for word in words]


def test_bytes_of_others_are_named() -> None:
    found = diagnosed(GOLDEN / "raw_refused.pcap", decode_as=((19000, "seastar-rpc", None),))[0]
    told = [(one.rule, one.cause) for one in found if one.conversation in (0, 1) and one.severity != "note"]
    assert told == [
        (
            "seastar-rpc.negotiation-failed",
            'the server ends the connection: the client begins with "SSTARRPX", and not with the magic "SSTARRPC"',
        ),
        ("tcp.other-protocol", "the client speaks HTTP, where seastar-rpc is expected"),
    ]


def test_a_passed_deadline_is_told_when_it_passes() -> None:
    (first, *_) = worst_first(diagnosed(GOLDEN / "timeout_expiry.pcap")[0])
    assert (first.rule, first.messages, first.cause.split()[:2]) == ("seastar-rpc.deadline-passed", [7], ["verb", "9"])


@pytest.mark.parametrize(("timeout", "passed"), [(100, True), (29_000, True), (31_000, False), (120_000, False)])
def test_a_passed_deadline_is_reported_live_though_the_server_is_silent(timeout: int, passed: bool) -> None:
    one = agreed((TIMEOUT, b"")).ask(call(3, 1, 100)).tell(reply(1)).wait(10 * MS).ask(call(3, 2, timeout))
    inspector = Inspector([], Options(findings=True))
    with open_capture(io.BytesIO(capture(one))) as reader:
        records = [record for batch in reader.batches() for record in inspector.process(batch)]
    assert not [one.rule for one in records if isinstance(one, Finding)]
    aged = [record for second in range(40) for record in inspector.age(one.now + second * SECOND)]
    assert [one.rule for one in aged if isinstance(one, Finding)] == ["seastar-rpc.deadline-passed"] * passed


def greeting(*features: tuple[int, bytes]) -> bytes:
    records = b"".join(pack("<II", number, len(data)) + data for number, data in features)
    return MAGIC + pack("<I", len(records)) + records


def ask(verb: int, ident: int, payload: bytes = b"") -> bytes:
    return pack("<QqI", verb, ident, len(payload)) + payload


def call(verb: int, ident: int, timeout: int) -> bytes:
    return pack("<Q", timeout) + ask(verb, ident)


def reply(ident: int, payload: bytes = b"") -> bytes:
    return pack("<qI", ident, len(payload)) + payload


def agreed(*features: tuple[int, bytes]) -> Connection:
    return Connection(dport=7000).open().ask(greeting(*features)).tell(greeting(*features))


def measured(handler_us: int) -> Connection:
    one = agreed((HANDLER_DURATION, b"")).ask(ask(9, 1)).wait(200 * MS)
    return one.tell(pack("<qII", 1, 0, handler_us)).fin(0)


def timed(*replies: tuple[int, int]) -> Connection:
    """Two calls with 100 ms each, and replies after so many milliseconds."""
    one = agreed((TIMEOUT, b"")).ask(call(3, 1, 100)).ask(call(3, 2, 100))
    for wait, ident in replies:
        one.wait(wait * MS).tell(reply(ident))
    return one.fin(0)


def unheard() -> Connection:
    """A reply in time, which the capture lacks, and a call after the deadline."""
    one = agreed((TIMEOUT, b"")).ask(call(3, 1, 100)).tell(reply(1))
    del one.packets[-1]
    return one.wait(200 * MS).ask(call(3, 2, 100)).tell(reply(2)).fin(0)


def streaming(*ends: int) -> Connection:
    parent = pack("<Q", 65536)
    one = Connection(dport=7000).open().ask(greeting((STREAM_PARENT, parent))).tell(greeting((2, parent)))
    one.ask(pack("<I", 3) + b"abc")
    for side in ends:
        one.segment(side, b"\xff\xff\xff\xff")
    return one.fin(0)


DICTIONARY = history()


def asked() -> bytes:
    return pack("<QqI", 3, 1, 400) + DICTIONARY[-600:-200]


def scylla(*frames: bytes) -> Connection:
    """What the client sends in SCYLLA_V3, and one answer."""
    one = agreed((COMPRESS, b"SCYLLA_V3"))
    for each in frames:
        one.ask(each)
    return one.tell(frame(reply(1))).fin(0)


CASES: dict[str, tuple[Callable[[], Connection], str, str | None]] = {
    "the negotiation is not answered": (
        lambda: Connection(dport=7000).open().ask(greeting((TIMEOUT, b""))).fin(1),
        "seastar-rpc.negotiation-failed",
        "error",
    ),
    "a compression that the server does not bear": (
        lambda: Connection(dport=7000).open().ask(greeting((COMPRESS, b"ZSTD"))).fin(1),
        "seastar-rpc.negotiation-failed",
        "error",
    ),
    "a cookie that is answered": (lambda: agreed((ISOLATION, b"gossip")).fin(0), "seastar-rpc.negotiation-failed", None),
    "HTTP on the port": (lambda: Connection(dport=7000).open().ask(b"GET / HTTP/1.1\r\n\r\n").fin(1), "tcp.other-protocol", "error"),
    "a compression that nobody knows": (
        lambda: agreed((COMPRESS, b"XOR-TEST")).ask(pack("<I", 20) + bytes(range(20))).fin(0),
        "seastar-rpc.compression-unread",
        "warning",
    ),
    "a dictionary that is not there": (
        lambda: scylla(frame(b"", control=half(COMMIT, 4, 2, DICTIONARY) + half()), frame(asked(), LZ4, dictionary=DICTIONARY)),
        "seastar-rpc.dictionary",
        "note",
    ),
    "a response to what is in a packed frame": (
        lambda: scylla(frame(b"", control=half(COMMIT, 4, 2, DICTIONARY) + half()), frame(asked(), LZ4, dictionary=DICTIONARY)),
        "seastar-rpc.answer-without-request",
        None,
    ),
    "a wrong checksum of a frame": (lambda: scylla(frame(asked(), checksum=7)), "seastar-rpc.compression-checksum", "error"),
    "checksums that are right": (lambda: scylla(frame(asked(), LZ4)), "seastar-rpc.compression-checksum", None),
    "the server goes with a call open": (
        lambda: agreed().ask(ask(5, 1)).tell(reply(1)).ask(ask(5, 2)).fin(1),
        "seastar-rpc.dropped-calls",
        "error",
    ),
    "the client goes with a call open": (
        lambda: agreed().ask(ask(5, 1)).tell(reply(1)).ask(ask(5, 2)).reset(0),
        "seastar-rpc.dropped-calls",
        "warning",
    ),
    "a call of a verb that is never answered": (lambda: agreed().ask(ask(5, 1)).fin(0), "seastar-rpc.no-reply", "note"),
    "all calls answered": (lambda: agreed().ask(ask(5, 1)).tell(reply(1)).fin(0), "seastar-rpc.no-reply", None),
    "an id used again": (lambda: agreed().ask(ask(5, 1)).ask(ask(5, 1)).tell(reply(1)).fin(0), "seastar-rpc.duplicate-id", "warning"),
    "a reply that comes too late": (lambda: timed((20, 1), (200, 2)), "seastar-rpc.late-reply", "warning"),
    "replies in time": (lambda: timed((20, 1), (20, 2)), "seastar-rpc.late-reply", None),
    "no reply in time": (lambda: timed((200, 1)), "seastar-rpc.deadline-passed", "warning"),
    "a reply that the capture lacks": (lambda: unheard(), "seastar-rpc.deadline-passed", None),
    "replies within the deadline": (lambda: timed((20, 1), (20, 2)), "seastar-rpc.deadline-passed", None),
    "time spent in the handler": (lambda: measured(190_000), "seastar-rpc.handler-time", "note"),
    "time spent in transit": (lambda: measured(100), "seastar-rpc.network-time", "note"),
    "a stream with one end": (lambda: streaming(0), "seastar-rpc.stream-without-end", "warning"),
    "a stream with both": (lambda: streaming(0, 1), "seastar-rpc.stream-without-end", None),
    "the server goes": (lambda: agreed().ask(ask(5, 1)).tell(reply(1)).fin(1), "seastar-rpc.closed-by-server", "note"),
    "the client goes": (lambda: agreed().ask(ask(5, 1)).tell(reply(1)).fin(0), "seastar-rpc.closed-by-server", None),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_finds_what_it_is_for(case: str) -> None:
    make, rule, severity = CASES[case]
    assert rules(make()).get(rule) == severity


@pytest.mark.parametrize("swapped", [True, False])
def test_a_verb_is_answered_though_the_reply_was_captured_before_the_call(swapped: bool) -> None:
    one = agreed().ask(ask(5, 1)).tell(reply(1))
    asks, answers = one.packets[-2:]
    if swapped:
        one.packets[-2:] = [answers._replace(time_ns=asks.time_ns), asks._replace(time_ns=answers.time_ns)]
    assert rules(one.ask(ask(6, 2)).fin(1)) == {"seastar-rpc.no-reply": "note"}


@pytest.mark.parametrize(("size", "method", "known"), [(70_000, LZ4, True), (60_000, LZ4, False), (60_000, RAW, False)])
def test_a_sound_frame_of_several_blocks_after_which_the_server_closes(size: int, method: int, known: bool) -> None:
    """Releases of ScyllaDB before 2026.2.5 unpack some of them wrongly."""

    def call_of(ident: int, payload: bytes) -> bytes:
        return pack("<QqI", 3, ident, len(payload)) + payload

    one = agreed((COMPRESS, b"SCYLLA_V3")).ask(frame(call_of(1, b"x"), LZ4)).tell(frame(reply(1)))
    one.ask(frame(call_of(2, bytes(size)), method)).fin(1)
    (finding,) = [each for each in diagnosed(capture(one))[0] if each.rule == "seastar-rpc.dropped-calls"]
    assert (finding.severity, "before 2026.2.5" in finding.advice) == ("error", known)


def test_a_server_that_resets_connections_before_any_call() -> None:
    def told(one: Connection) -> list[tuple[str, str]]:
        return [(each.severity, each.cause) for each in diagnosed(capture(one))[0] if each.rule == "seastar-rpc.closed-by-server"]

    cause = "the server resets the connection 1 ms after the answer to Negotiation"
    assert told(agreed().reset(1)) == [("warning", f"{cause}, before any call")]
    assert told(agreed().fin(1)) == [("note", cause.replace("resets", "closes"))]
    assert told(agreed().ask(ask(5, 1)).tell(reply(1)).reset(1)) == [
        ("note", "the server resets the connection 1 ms after the answer to Request")
    ]


def test_exceptions_are_told_by_verb_and_text() -> None:
    def fails(ident: int, text: bytes) -> bytes:
        body = pack("<II", 0, len(text)) + text
        return pack("<qI", -ident, len(body)) + body

    def told(*failing: tuple[int, bytes]) -> list[str]:
        one = agreed()
        for ident, (verb, text) in enumerate(failing, 1):
            one.ask(ask(verb, ident)).tell(fails(ident, text))
        found = [each.cause for each in diagnosed(capture(one.fin(0)))[0] if each.rule == "seastar-rpc.exception"]
        return [cause.partition("refused: ")[2] for cause in found]

    causes = told((1, b"a"), (1, b"a"), (1, b"b"), (2, b"a"))
    assert causes == ['verb 1 throws "a"; twice on this connection', 'verb 1 throws "b"', 'verb 2 throws "a"']
    # Texts that differ in numbers only are one finding
    long = b"x" * 110
    causes = told(*((1, b"no %d at 0x%x" % (key, key * 16)) for key in range(27)), (1, long + b" 99"), (1, long + b" 123456789012"))
    assert causes == [
        'verb 1 throws "no 0 at 0x0"; 27 times on this connection, with different numbers',
        f'verb 1 throws "{long.decode()} 99"; twice on this connection, with different numbers',
    ]
    causes = told(*((1, b"no table 1f%02xc3d4-aaaa-11ee-bbbb-0242ac1200%02x" % (at, at)) for at in range(20)))
    assert causes == ['verb 1 throws "no table 1f00c3d4-aaaa-11ee-bbbb-0242ac120000"; 20 times on this connection, with different numbers']


def test_real_exceptions_that_differ_in_a_number_are_told_once() -> None:
    told = diagnosed(GOLDEN / "inflight.pcap")[0]
    assert not any("requests are refused" in one.cause for one in told)
    causes = [one.cause for one in told if one.rule == "seastar-rpc.exception"]
    assert [cause.partition("throws ")[2] for cause in causes] == [
        '"std::runtime_error (no 2)"; 7 times on this connection, with different numbers',
        '"int"; 3 times on this connection',
        '"std::out_of_range (no 27)"; 6 times on this connection, with different numbers',
    ]


def compress(frame: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(frame, store_size=False))


def squeezed(payload: bytes, algorithm: bytes = b"LZ4") -> Connection:
    """A call and its reply with this, packed."""
    one = agreed((COMPRESS, algorithm))
    for side, inside in ((0, ask(5, 1, payload)), (1, reply(1, payload))):
        packed = compress(inside)
        one.segment(side, pack("<II", 4 + len(packed), len(inside)) + packed, ACK | PSH)
    return one.fin(0)


def test_whether_compression_pays() -> None:
    def told(one: Connection) -> list[str]:
        return [found.cause for found in diagnosed(capture(one))[0] if found.rule == "seastar-rpc.compression"]

    assert told(squeezed(bytes(2000))) == []
    (grown,) = told(squeezed(b""))
    assert "LZ4 is used (the client offers LZ4), and saves little: 2 frames of 32 bytes" in grown and grown.endswith("more than without")
    once = bytes(range(256))
    (less,) = told(squeezed(once + once[:24]))
    assert less.endswith("% less")
    assert told(squeezed(once, b"XOR-TEST")) == []
    assert told(agreed((COMPRESS, b"LZ4")).fin(0)) == []
    assert told(agreed().ask(ask(5, 1)).tell(reply(1)).fin(0)) == []


@pytest.mark.parametrize("file", ["lz4", "lz4_snap120", "stream_lz4", "xor_then_frag", "compress_declined", "basic"])
def test_what_is_compressed_is_counted(file: str) -> None:
    """As the messages say one by one."""
    reader = open_capture(str(GOLDEN / f"{file}.pcap"))
    inspector = Inspector([reader], Options())
    messages = [one for one in inspector.records() if isinstance(one, Message)]
    for row in inspector.rows():
        own = [one for one in messages if one.conversation == row.conversation]
        offered = [one["algorithms"] for one in own[0].fields["features"] if "algorithms" in one]
        packed = [one.fields["compression"] for one in own if "compression" in one.fields]
        if not offered:
            assert "compression" not in row.facts
            continue
        counted = row.facts["compression"]
        assert counted["offered"] == offered[0].split(",")
        assert counted["taken"] == own[1].fields["negotiated"]["compression"]
        assert counted["frames"] == len(packed)
        assert counted["before"] == sum(one["unpacked_size"] or 0 for one in packed)
        assert counted["after"] == sum(4 + one["packed_size"] for one in packed if one["unpacked_size"] is not None)
    reader.close()


@pytest.mark.parametrize(
    ("ends", "answered", "severity", "cause"),
    [
        (lambda one: one.reset(1), False, "error", "the server resets the connection 1 ms after its first call (verb 5), without a reply"),
        (lambda one: one.fin(1), False, "warning", "the server closes the connection 1 ms after its first call (verb 5), without a reply"),
        (lambda one: one.reset(1), True, "error", "the server resets the connection while a call (verb 5) had no reply for 1 ms"),
        (lambda one: one.fin(0), False, "note", None),
        # The call expected no reply, and the connection was idle
        (lambda one: one.wait(600 * SECOND).fin(1), False, "note", None),
    ],
)
def test_a_server_that_ends_the_connection_after_its_first_call(
    ends: Callable[[Connection], Connection], answered: bool, severity: str, cause: str | None
) -> None:
    one = agreed()
    if answered:
        one.ask(ask(5, 1)).tell(reply(1))
    (found,) = (each for each in diagnosed(capture(ends(one.ask(ask(5, 2)))))[0] if each.rule.endswith(("dropped-calls", "no-reply")))
    assert found.severity == severity
    assert cause is None or found.cause == cause
