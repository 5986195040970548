"""RabbitMQ Streams: each rule with a capture that raises it, beside one that differs as little as possible and does not."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.diagnose.engine import Diagnoser
from streamdump.filter import compile_filter
from streamdump.inspector import Inspector
from streamdump.model import Finding, Message, Options
from streamdump.protocols.rabbitmq import layouts as rabbit
from tests.diagnose.talks import MS, SECOND, Connection, capture, diagnosed, found, rules, worst_first
from tests.support.frames import ACK, FIN, SYN, A

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream"

NAME = "rabbitmq-stream."


def unheard(to_the_end: bool) -> Connection:
    """Both send heartbeats, of which the capture lacks four of the client and four of the server; the last is acknowledged."""
    one = Connection().ready((1 << 20, 2))
    kept = len(one.packets)
    for _ in range(4):
        one.wait(2 * SECOND).client(rabbit.HEARTBEAT).server(rabbit.HEARTBEAT)
    del one.packets[kept:]
    for side in (0, 1):
        one.segment(side)
    return one if to_the_end else one.goodbye()


def left_at_once() -> Connection:
    """The client sends Close and ends the connection, and the server resets it then."""
    return Connection().ready().client(rabbit.CLOSE, closing_code=1, closing_reason="OK").segment(0, flags=FIN | ACK).reset(1)


def left_late() -> Connection:
    """The client waits for the answer to Close, and then ends the connection."""
    return Connection().ready().client(rabbit.CLOSE, closing_code=1, closing_reason="OK").wait(60 * SECOND).fin(0)


def ended_by_the_server(code: int) -> Connection:
    """A Publish, the end of its publisher, and an error of the Publish."""
    one = published_by(Connection().ready()).client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 1, 1))
    one.server(rabbit.METADATA_UPDATE, code=6, stream="s")
    return one.server(rabbit.PUBLISH_ERROR, publisher_id=1, publishing_errors=[{"publishing_id": 1, "code": code}]).goodbye()


@pytest.mark.parametrize(("code", "said"), [(17, "precondition failed"), (18, "the server ended this publisher when")])
def test_an_error_of_an_earlier_publish_keeps_its_reason(code: int, said: str) -> None:
    (cause,) = [one.cause for one in diagnosed(capture(ended_by_the_server(code)))[0] if one.rule == NAME + "publish-error"]
    assert said in cause


def test_a_publish_that_was_under_way_is_not_what_the_server_does_not_know() -> None:
    one = published_by(Connection().ready()).ask(bytes.fromhex("00000008 0777 0001 00000063"))
    one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 1, 1))
    assert NAME + "confirms-missing" in rules(
        one.server(rabbit.CLOSE, correlation_id=1, closing_code=13, closing_reason="unknown frame").fin(1)
    )


def test_what_is_read_late_behind_a_loss_was_not_published_late() -> None:
    first = numbered([1], [2], [3], (4,)).reset(1)
    del first.packets[16:19]
    then = numbered([4], [5], [6], [7], one=Connection(SECOND, sport=40001).ready()).goodbye()
    assert NAME + "confirmed-and-lost" not in rules(first, then)


@pytest.mark.parametrize("swapped", [True, False])
def test_the_ids_of_a_publisher_whose_declaration_was_captured_late_are_not_those_of_the_one_before(swapped: bool) -> None:
    one = numbered(0, [1], [2], reference="first")
    one.client(rabbit.DELETE_PUBLISHER, publisher_id=7).server(rabbit.DELETE_PUBLISHER_RESPONSE)
    numbered(reference="second", one=one)
    for at in (-4, -2) if swapped else ():
        asks, answers = one.packets[at : at + 2 or None]
        one.packets[at : at + 2 or None] = [answers._replace(time_ns=asks.time_ns), asks._replace(time_ns=answers.time_ns)]
    assert rules(numbered(0, [1], [2], one=one, declared=True, reference="second").goodbye()) == {}


def test_a_client_that_refreshes_what_it_knows_before_it_closes_was_not_sent_away() -> None:
    one = metadata("broker.example", 5552)
    assert NAME + "advertised-not-dialled" in rules(one)
    del one.packets[:12]
    assert NAME + "advertised-not-dialled" not in rules(one)


def test_a_late_confirm_is_of_a_publish() -> None:
    one = published_by(Connection().ready()).client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1)).wait(6 * SECOND)
    (told,) = diagnosed(capture(one.server(rabbit.PUBLISH_CONFIRM, publisher_id=1, publishing_ids=[0]).goodbye()))[0]
    assert told.cause == "Publish was answered after 6 s"


def test_offsets_that_the_capture_lacks_are_not_missing() -> None:
    one = subscribed(9, chunk(0, 5), chunk(5), chunk(6), chunk(7)).goodbye()
    del one.packets[-7]
    assert "rabbitmq-stream.offsets" not in rules(one)


def test_a_publisher_that_the_server_ended_is_named() -> None:
    (told,) = [one for one in diagnosed(capture(ended_by_server()))[0] if one.rule.endswith("publish-error")]
    assert told.cause.startswith('messages of publisher 1 for the stream "s" are not stored: the server ended this publisher')
    assert told.messages == [13, 14, 15]


def test_what_the_capture_lacks_may_be_the_confirm() -> None:
    path = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "lost_segments_405.pcap"
    every = Inspector([open_capture(path)], Options(findings=True)).records()
    (told,) = [one for one in every if isinstance(one, Finding) and "confirms" in one.rule]
    assert "the capture lacks bytes from the server" in told.cause
    assert "Publish these again" not in told.advice


@pytest.mark.parametrize("closes", [True, False])
def test_the_side_that_fell_silent_first_is_named(closes: bool) -> None:
    """A server is paused; after some heartbeats the client gives up, and only waits for the answer to Close, if it sends one."""
    one = Connection().ready((1 << 20, 5))
    for _ in range(4):
        one.wait(5 * SECOND).client(rabbit.HEARTBEAT).segment(1)
    if closes:
        one.client(rabbit.CLOSE, closing_code=1, closing_reason="OK")
    silent = [each for each in diagnosed(capture(one.wait(20 * SECOND).segment(0)))[0] if each.rule == NAME + "silence"]
    assert [each.cause.partition(" had sent nothing for ")[0] for each in silent] == ["the server"]


def refused(layout: Any, code: int, answer: Any, **values: Any) -> Connection:
    return Connection().ready().client(layout, **values).server(answer, response_code=code).goodbye()


@pytest.mark.parametrize("reached", ["login", "Open"])
def test_what_was_refused_did_not_succeed_though_the_refusal_was_captured_before_it(reached: str) -> None:
    one = Connection().greeted() if reached == "login" else Connection().tuned().client(rabbit.OPEN, virtual_host="prod")
    asks = one.packets.pop()
    one.server(rabbit.SASL_AUTHENTICATE_RESPONSE if reached == "login" else rabbit.OPEN_RESPONSE, response_code=12)
    one.packets[-1:] = [one.packets[-1]._replace(time_ns=asks.time_ns), asks._replace(time_ns=one.packets[-1].time_ns)]
    (row,) = diagnosed(capture(one.fin(1)))[1]
    assert row.reached == reached


def login(code: int) -> Connection:
    return Connection().greeted().server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=code).fin(1)


def renewed(code: int) -> Connection:
    """The login of an open connection."""
    one = Connection().ready().client(rabbit.SASL_AUTHENTICATE, mechanism="AMQPLAIN", sasl_opaque_data=b"\0", sasl_username=None)
    return one.server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=code).fin(1)


def opened(code: int) -> Connection:
    return Connection().tuned().client(rabbit.OPEN, virtual_host="prod").server(rabbit.OPEN_RESPONSE, response_code=code).fin(1)


def published(frames: int, confirmed: int, frame_max: int = 1 << 20, size: int = 10) -> Connection:
    one = Connection().ready((frame_max, 60)).client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
    one.server(rabbit.DECLARE_PUBLISHER_RESPONSE)
    for ident in range(frames):
        one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, size, ident))
    if confirmed:
        one.server(rabbit.PUBLISH_CONFIRM, publisher_id=1, publishing_ids=list(range(confirmed)))
    return one.goodbye()


def batch(ident: int, count: int) -> bytes:
    """A Publish with a sub-batch only."""
    return struct.pack(">iQBHii", 1, ident, 0x80, count, 5 * count, 5 * count) + b"\0\0\0\1x" * count


def numbered(
    *frames: Any, reference: str = "ref", stream: str = "s", one: Connection | None = None, code: int = 1, declared: bool = False
) -> Connection:
    """A publisher that asks for the last id, where there is a number, and publishes these ids, which are confirmed; as tuples they are
    not."""
    one = one or Connection().ready()
    if not declared:
        one.client(rabbit.DECLARE_PUBLISHER, publisher_id=7, publisher_reference=reference, stream=stream)
        one.server(rabbit.DECLARE_PUBLISHER_RESPONSE)
    for frame in frames:
        if isinstance(frame, int):
            one.client(rabbit.QUERY_PUBLISHER_SEQUENCE, publisher_reference=reference, stream=stream)
            one.server(rabbit.QUERY_PUBLISHER_SEQUENCE_RESPONSE, sequence=frame, response_code=code)
            continue
        one.client(rabbit.PUBLISH, publisher_id=7, published_messages=published_ids(*frame))
        if isinstance(frame, list):
            one.server(rabbit.PUBLISH_CONFIRM, publisher_id=7, publishing_ids=frame)
    return one


def published_ids(*idents: int) -> bytes:
    return struct.pack(">i", len(idents)) + b"".join(struct.pack(">Qi", ident, 1) + b"x" for ident in idents)


def then(layout: Any, answer: Any, *before: Any, code: int = 1, **values: Any) -> Connection:
    """These ids, then this is asked, then comes id 1."""
    one = numbered(*before).client(layout, **values).server(answer, response_code=code)
    return numbered([1], one=one, declared=True).goodbye()


def entries(count: int, size: int = 10, first: int = 0) -> bytes:
    """The messages of a Publish."""
    return struct.pack(">i", count) + b"".join(struct.pack(">Qi", ident, size) + bytes(size) for ident in range(first, first + count))


def chunk(first: int, records: int = 1, spoiled: bool = False) -> bytes:
    body = b"\0\0\0\1x" * records
    head = struct.pack(
        ">BBHIqQQIIIB3x", 0x50, 0, records, records, 1_700_000_000_000, 1, first, zlib.crc32(body) ^ spoiled, len(body), 0, 0
    )
    return head + body


def subscribed(credit: int, *chunks: bytes, properties: Any = ()) -> Connection:
    one = (
        Connection()
        .ready()
        .client(rabbit.SUBSCRIBE, subscription_id=3, stream="orders", offset_type=1, credit=credit, properties=list(properties))
    )
    one.server(rabbit.SUBSCRIBE_RESPONSE)
    for each in chunks:
        one.server(rabbit.DELIVER, subscription_id=3, chunk=each)
    return one


def turned_away(frames: int, again: int = 16) -> Connection:
    """A publisher is refused and deleted, and publishes all the same; `again`: the code of a second DeclarePublisher."""
    one = Connection().ready()
    for code in (16, again):
        one.client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
        one.server(rabbit.DECLARE_PUBLISHER_RESPONSE, response_code=code)
    if again != 1:
        one.client(rabbit.DELETE_PUBLISHER, publisher_id=1).server(rabbit.DELETE_PUBLISHER_RESPONSE, response_code=18)
    for ident in range(2 * frames):
        one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 1, ident))
        one.server(rabbit.PUBLISH_ERROR, publisher_id=1, publishing_errors=[{"publishing_id": ident, "code": 18}])
    return one.goodbye()


def ended_by_server() -> Connection:
    """The server ends a publisher as its stream changed; the client publishes twice all the same, and deletes it."""
    one = published_by(Connection().ready()).server(rabbit.METADATA_UPDATE, code=6, stream="s")
    for ident in (1, 2):
        one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 1, ident))
        one.server(rabbit.PUBLISH_ERROR, publisher_id=1, publishing_errors=[{"publishing_id": ident, "code": 18}])
    return one.client(rabbit.DELETE_PUBLISHER, publisher_id=1).server(rabbit.DELETE_PUBLISHER_RESPONSE, response_code=18).goodbye()


def too_large() -> Connection:
    """The server closes over a Publish."""
    one = published_by(Connection().ready((8192, 60)))
    one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 9000))
    one.server(rabbit.CLOSE, correlation_id=1, closing_code=14, closing_reason="frame too large")
    return one.client(rabbit.CLOSE_RESPONSE, correlation_id=1).fin(1)


def published_by(one: Connection) -> Connection:
    one.client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
    return one.server(rabbit.DECLARE_PUBLISHER_RESPONSE)


def credited(code: int) -> Connection:
    one = subscribed(9, properties=[{"key": "single-active-consumer", "value": "true"}, {"key": "name", "value": "app"}]).client(
        rabbit.CREDIT, subscription_id=3, credit=1
    )
    return one.server(rabbit.CREDIT_RESPONSE, subscription_id=3, response_code=code).goodbye()


def tuned(answered: tuple[int, int]) -> Connection:
    one = Connection().tuned((4096, 60), answered).client(rabbit.OPEN, virtual_host="/")
    return one.server(rabbit.OPEN_RESPONSE, connection_properties=[]).goodbye()


def created(size: str) -> Connection:
    return Connection().ready().client(rabbit.CREATE, stream="s", arguments=[{"key": "max-length-bytes", "value": size}]).fin(1)


def closed_twice(answered: bool) -> Connection:
    one = Connection().ready().client(rabbit.CLOSE, closing_code=0, closing_reason="")
    if answered:
        one.server(rabbit.CLOSE_RESPONSE)
    return one.client(rabbit.CLOSE, closing_code=0, closing_reason="").fin(1)


def versions(version: int, ends: bool = True, newest: int = 1) -> Connection:
    one = Connection().ready().client(rabbit.EXCHANGE_COMMAND_VERSIONS, commands=[{"key": 2, "min_version": 1, "max_version": 2}])
    one.server(rabbit.EXCHANGE_COMMAND_VERSIONS_RESPONSE, commands=[{"key": 2, "min_version": 1, "max_version": newest}])
    layout = rabbit.PUBLISH if version == 1 else rabbit.PUBLISH_2
    one.client(layout, publisher_id=1, published_messages=entries(0))
    return one.goodbye() if ends else one


def silent(seconds: int, heartbeat: int = 2) -> Connection:
    one = Connection().ready((1 << 20, heartbeat))
    for _ in range(seconds):
        one.wait(SECOND).server(rabbit.HEARTBEAT)
    return one.client(rabbit.HEARTBEAT).goodbye()


def stopped(seconds: int = 6) -> Connection:
    """A client that goes on when the server has long had enough."""
    one = Connection().ready((1 << 20, 2))
    for _ in range(seconds):
        one.wait(SECOND).server(rabbit.HEARTBEAT)
    one.segment(1, flags=FIN | ACK).wait(20 * SECOND).client(rabbit.HEARTBEAT)
    return one.segment(0, flags=FIN | ACK)


def metadata(host: str, port: int, leader: int = 0, code: int = 1) -> Connection:
    one = Connection().ready().client(rabbit.METADATA, streams=["orders"])
    one.server(
        rabbit.METADATA_RESPONSE,
        brokers=[{"reference": 0, "host": host, "port": port}],
        stream_metadata=[{"stream_name": "orders", "response_code": code, "leader_reference": leader, "replicas_references": []}],
    )
    return one.goodbye()


def missed(more: int, goodbye: bool = False) -> Connection:
    one = Connection().ready().client(rabbit.METADATA, streams=["x"])
    missing = {"stream_name": "x", "response_code": 2, "leader_reference": 0, "replicas_references": []}
    one.server(rabbit.METADATA_RESPONSE, brokers=[], stream_metadata=[missing])
    for _ in range(more):
        one.client(rabbit.CREATE, stream="x", arguments=[]).server(rabbit.CREATE_RESPONSE)
    return one.goodbye() if goodbye else one.fin(0)


def subscribed_to_nothing(closes: bool) -> Connection:
    one = Connection().ready().client(rabbit.SUBSCRIBE, subscription_id=1, stream="x", offset_type=1, credit=1)
    one.server(rabbit.SUBSCRIBE_RESPONSE, response_code=2)
    return one.goodbye() if closes else one.fin(0)


def subscribed_later(wait: int) -> Connection:
    one = Connection().ready().client(rabbit.SUBSCRIBE, subscription_id=1, stream="x", offset_type=1, credit=1)
    one.server(rabbit.SUBSCRIBE_RESPONSE, response_code=2).client(rabbit.CREATE, stream="x", arguments=[]).server(rabbit.CREATE_RESPONSE)
    one.wait(wait).client(rabbit.HEARTBEAT).client(rabbit.SUBSCRIBE, subscription_id=1, stream="x", offset_type=1, credit=1)
    return one.server(rabbit.SUBSCRIBE_RESPONSE).goodbye()


def changed(wait: int, answered: bool = False) -> Connection:
    one = subscribed(9).server(rabbit.METADATA_UPDATE, code=6, stream="orders")
    if answered:
        one.client(rabbit.METADATA, streams=["orders"]).server(rabbit.METADATA_RESPONSE, brokers=[], stream_metadata=[])
    return one.wait(wait * SECOND).reset(0)


def asked(answered: bool, wait: int = MS, active: int = 1) -> Connection:
    """ConsumerUpdate is answered after a time, or never before the server ends the connection."""
    one = subscribed(9).server(rabbit.CONSUMER_UPDATE, correlation_id=0, subscription_id=3, active=active).wait(wait)
    if answered:
        return one.client(rabbit.CONSUMER_UPDATE_RESPONSE, correlation_id=0, offset_type=1).goodbye()
    return one.reset(1)


def later(first: Connection, *frames: Any, **values: Any) -> list[Connection]:
    """Another connection goes on."""
    one = Connection(SECOND, sport=40001, dport=values.pop("dport", 5552)).tuned().client(rabbit.OPEN, virtual_host=values.pop("host", "/"))
    one.server(rabbit.OPEN_RESPONSE, connection_properties=[])
    return [first.goodbye(), numbered(*frames, one=one, **values).goodbye()]


HUNGRY = chunk(0), chunk(1)


def committed(last: int) -> Connection:
    """The last chunk for which there is credit says what the server has."""
    return subscribed(2, HUNGRY[0]).server(rabbit.DELIVER_2, subscription_id=3, chunk=HUNGRY[1], committed_chunk_id=last)


CASES: dict[str, tuple[Callable[[], Connection], str, str | None]] = {
    "wrong password": (lambda: login(8), "authentication-refused", "error"),
    "right password": (lambda: Connection().ready().goodbye(), "authentication-refused", None),
    "mechanism": (lambda: login(7), "mechanism-refused", "error"),
    "SASL error": (lambda: login(9), "sasl-error", "error"),
    "another mechanism later": (lambda: renewed(20), "renewal-refused", "error"),
    "another user later": (lambda: renewed(21), "renewal-refused", "error"),
    "another mechanism later, not its fault": (lambda: renewed(20), "mechanism-refused", None),
    "another user later, not its data": (lambda: renewed(21), "sasl-error", None),
    "loopback": (lambda: login(11), "loopback-only-user", "error"),
    "login cut off": (lambda: Connection().greeted().fin(1), "login-cut-off", "error"),
    "virtual host": (lambda: opened(12), "virtual-host-refused", "error"),
    "no Open behind Tune": (lambda: Connection().tuned().wait(9 * SECOND).fin(1), "handshake-incomplete", "error"),
    "no Open behind Tune, by the client": (lambda: Connection().tuned().fin(0), "handshake-incomplete", "note"),
    "Open is there": (lambda: Connection().ready().fin(1), "handshake-incomplete", None),
    "no PeerProperties": (lambda: Connection().open().client(rabbit.SASL_HANDSHAKE).reset(1), "handshake-order", "error"),
    "frame size raised": (lambda: tuned((8192, 60)), "frame-max-raised", "warning"),
    "frame size without end": (lambda: tuned((0, 60)), "frame-max-raised", "warning"),
    "frame size taken": (lambda: tuned((4096, 60)), "frame-max-raised", None),
    "frame too large": (lambda: published(1, 1, 4096, 5000), "frame-too-large", "warning"),
    "frame as large as may be": (lambda: published(1, 1, 4096, 4000), "frame-too-large", None),
    "frame too large before Tune": (
        lambda: (
            Connection()
            .open()
            .client(rabbit.PEER_PROPERTIES, peer_properties=[{"key": "x", "value": "y" * 9000}])
            .server(rabbit.PEER_PROPERTIES_RESPONSE, peer_properties=[])
            .reset(0)
        ),
        "frame-too-large",
        "warning",
    ),
    "closed over a frame too large": (
        lambda: Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[{"key": "x", "value": "y" * 9000}]).fin(1),
        "frame-too-large",
        "error",
    ),
    "closed over an argument": (lambda: created("lots"), "argument-not-valid", "error"),
    "closed over a number": (lambda: created("5000"), "argument-not-valid", None),
    "Close without trouble": (lambda: Connection().ready().goodbye(), "closed-with-code", None),
    "the server closes with a code": (
        lambda: (
            Connection()
            .ready()
            .client(rabbit.CREATE, stream="s", arguments=[])
            .server(rabbit.CLOSE, correlation_id=1, closing_code=15, closing_reason="oops")
            .fin(1)
        ),
        "closed-with-code",
        "error",
    ),
    "Close again behind its answer": (lambda: closed_twice(True), "open-requests", None),
    "Close, and no wait for the answer": (lambda: left_at_once(), "open-requests", "note"),
    "Close, and a long wait for the answer": (left_late, "open-requests", "warning"),
    "Close again without an answer": (lambda: closed_twice(False), "open-requests", "error"),
    "version not stated": (lambda: versions(2), "unknown-command", "warning"),
    "versions that are known": (lambda: versions(1), "newer-version", None),
    "a newer version": (lambda: versions(1, newest=3), "newer-version", "note"),
    "version stated": (lambda: versions(1), "unknown-command", None),
    "silence": (lambda: silent(5), "silence", "warning"),
    "a silence that ends it": (lambda: Connection().ready((1 << 20, 2)).wait(5 * SECOND).fin(1), "silence", "error"),
    "a silence that goes on behind the end": (stopped, "silence", "error"),
    "a silence that goes on behind the end, and the end": (stopped, "closed-by-server", None),
    "a silence that is too long behind the end only": (lambda: stopped(3), "silence", None),
    "a silence of the server that ends it": (lambda: Connection().ready((1 << 20, 2)).wait(5 * SECOND).fin(0), "silence", "error"),
    "a short silence": (lambda: silent(3), "silence", None),
    "heartbeats that the capture lacks": (lambda: unheard(False), "silence", None),
    "heartbeats that the capture lacks, up to its end": (lambda: unheard(True), "silence", None),
    "no heartbeats agreed": (lambda: silent(5, 0), "silence", None),
    "confirms missing": (lambda: published(3, 1), "confirms-missing", "warning"),
    "all confirmed": (lambda: published(3, 3), "confirms-missing", None),
    "publisher id in use": (
        lambda: (
            published(0, 0)
            and Connection()
            .ready()
            .client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
            .server(rabbit.DECLARE_PUBLISHER_RESPONSE)
            .client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
            .server(rabbit.DECLARE_PUBLISHER_RESPONSE, response_code=17)
            .goodbye()
        ),
        "id-in-use",
        "warning",
    ),
    "publisher ids of their own": (
        lambda: (
            Connection()
            .ready()
            .client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
            .server(rabbit.DECLARE_PUBLISHER_RESPONSE)
            .client(rabbit.DELETE_PUBLISHER, publisher_id=1)
            .server(rabbit.DELETE_PUBLISHER_RESPONSE)
            .client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
            .server(rabbit.DECLARE_PUBLISHER_RESPONSE)
            .goodbye()
        ),
        "id-in-use",
        None,
    ),
    "subscription id in use": (
        lambda: refused(rabbit.SUBSCRIBE, 3, rabbit.SUBSCRIBE_RESPONSE, subscription_id=1, stream="s", offset_type=1, credit=1),
        "id-in-use",
        "warning",
    ),
    "publisher refused, and used": (lambda: turned_away(1), "refused", "error"),
    "publisher refused, and used: no other finding": (lambda: turned_away(1), "publish-error", None),
    "publisher refused, and not used": (lambda: turned_away(0), "refused", "error"),
    "publisher refused, then taken": (lambda: turned_away(1, 1), "publish-error", "warning"),
    "publisher refused, then taken, which is told": (lambda: turned_away(1, 1), "refused", "warning"),
    "publish error": (
        lambda: published(1, 1) and _with_error(),
        "publish-error",
        "warning",
    ),
    "publishing after the server ended the publisher": (lambda: ended_by_server(), "publish-error", "warning"),
    "the same is one finding": (lambda: ended_by_server(), "refused", None),
    "a Publish over which the server closes": (lambda: too_large(), "confirms-missing", None),
    "out of credit at the end": (lambda: subscribed(2, *HUNGRY).wait(5 * SECOND).goodbye(), "out-of-credit", "warning"),
    "out of credit for a moment": (lambda: subscribed(2, *HUNGRY).goodbye(), "out-of-credit", "note"),
    "credit left": (lambda: subscribed(3, *HUNGRY).wait(5 * SECOND).goodbye(), "out-of-credit", None),
    "credit granted late": (
        lambda: subscribed(2, *HUNGRY).wait(5 * SECOND).client(rabbit.CREDIT, subscription_id=3, credit=9).goodbye(),
        "out-of-credit",
        "warning",
    ),
    "credit of an unknown subscription": (lambda: credited(4), "refused", "note"),
    "credit of a consumer that is not active": (lambda: credited(17), "refused", None),
    "credit granted at once": (
        lambda: subscribed(2, *HUNGRY).client(rabbit.CREDIT, subscription_id=3, credit=9).wait(5 * SECOND).goodbye(),
        "out-of-credit",
        None,
    ),
    "unsubscribed long after the credit was used": (
        lambda: subscribed(2, *HUNGRY).wait(5 * SECOND).client(rabbit.UNSUBSCRIBE, subscription_id=3).goodbye(),
        "out-of-credit",
        "warning",
    ),
    "more chunks than were granted": (
        lambda: subscribed(1, HUNGRY[0]).wait(5 * SECOND).server(rabbit.DELIVER, subscription_id=3, chunk=HUNGRY[1]).goodbye(),
        "out-of-credit",
        "warning",
    ),
    "out of credit at the end, and more chunks wait": (lambda: committed(9).wait(5 * SECOND).goodbye(), "out-of-credit", "warning"),
    "out of credit at the end, and no chunk waits": (lambda: committed(1).wait(5 * SECOND).goodbye(), "out-of-credit", "note"),
    "credit granted and used again": (
        lambda: (
            subscribed(2, *HUNGRY)
            .client(rabbit.CREDIT, subscription_id=3, credit=1)
            .wait(5 * SECOND)
            .server(rabbit.DELIVER, subscription_id=3, chunk=chunk(2))
            .goodbye()
        ),
        "out-of-credit",
        "note",
    ),
    "unsubscribed when the credit was used": (
        lambda: (
            subscribed(2, *HUNGRY)
            .client(rabbit.UNSUBSCRIBE, subscription_id=3)
            .server(rabbit.UNSUBSCRIBE_RESPONSE)
            .wait(5 * SECOND)
            .goodbye()
        ),
        "out-of-credit",
        None,
    ),
    "checksum": (lambda: subscribed(9, chunk(0, spoiled=True)).goodbye(), "chunk-checksum", "error"),
    "right checksum": (lambda: subscribed(9, chunk(0)).goodbye(), "chunk-checksum", None),
    "offsets again": (lambda: subscribed(9, chunk(0, 5), chunk(3)).goodbye(), "offsets", "warning"),
    "offsets missing": (lambda: subscribed(9, chunk(0, 5), chunk(7)).goodbye(), "offsets", "note"),
    "offsets behind a chunk of no records": (lambda: subscribed(9, chunk(0, 0), chunk(0, 5), chunk(5)).goodbye(), "offsets", None),
    "offsets in order": (lambda: subscribed(9, chunk(0, 5), chunk(5)).goodbye(), "offsets", None),
    "offsets that a filter leaves out": (
        lambda: subscribed(9, chunk(0, 5), chunk(7), properties=[{"key": "filter.0", "value": "a"}]).goodbye(),
        "offsets",
        None,
    ),
    "stream not available": (
        lambda: refused(rabbit.CREATE, 6, rabbit.CREATE_RESPONSE, stream="s", arguments=[]),
        "stream-not-available",
        "warning",
    ),
    "no leader": (lambda: metadata("192.0.2.2", 5552, 0xFFFF), "no-leader", "warning"),
    "a leader": (lambda: metadata("192.0.2.2", 5552), "no-leader", None),
    "Metadata refused": (lambda: metadata("192.0.2.2", 5552, code=16), "refused", "warning"),
    "Metadata of what is not there": (lambda: metadata("192.0.2.2", 5552, code=2), "refused", "note"),
    "sent to another host": (lambda: metadata("10.1.1.1", 5552), "advertised-elsewhere", "note"),
    "sent to another port": (lambda: metadata("192.0.2.2", 15552), "advertised-elsewhere", "note"),
    "sent here": (lambda: metadata("192.0.2.2", 5552), "advertised-elsewhere", None),
    "left as the stream is not there": (lambda: missed(0), "gave-up", "error"),
    "closed as the stream is not there": (lambda: missed(0, goodbye=True), "gave-up", "error"),
    "gone on though the stream is not there": (lambda: missed(1), "gave-up", None),
    "refused, and left": (lambda: subscribed_to_nothing(False), "refused", "error"),
    "refused, and closed": (lambda: subscribed_to_nothing(True), "refused", "error"),
    "refused, and taken later": (lambda: subscribed_later(SECOND), "refused", "warning"),
    "refused, and taken much later": (lambda: subscribed_later(20 * SECOND), "refused", "error"),
    "a change ignored": (lambda: changed(20), "stream-change-ignored", "warning"),
    "a change heard": (lambda: changed(20, True), "stream-change-ignored", None),
    "a change": (lambda: changed(1), "stream-changed", "note"),
    "ConsumerUpdate without an answer": (lambda: asked(False, 2 * SECOND), "server-request-unanswered", "warning"),
    "ConsumerUpdate of a client that leaves": (lambda: asked(False), "server-request-unanswered", None),
    "ConsumerUpdate with an answer": (lambda: asked(True, 9 * SECOND), "server-request-unanswered", None),
    "ConsumerUpdate with a late answer": (lambda: asked(True, 11 * SECOND), "server-request-unanswered", "warning"),
    "null": (
        lambda: Connection().ready().client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference=None, stream="s").reset(1),
        "null-reference",
        "warning",
    ),
}


def _with_error() -> Connection:
    one = Connection().ready().client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="s")
    one.server(rabbit.DECLARE_PUBLISHER_RESPONSE)
    one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 1, 7))
    return one.server(rabbit.PUBLISH_ERROR, publisher_id=1, publishing_errors=[{"publishing_id": 7, "code": 18}]).goodbye()


@pytest.mark.parametrize("case", CASES)
def test_each_rule_finds_what_it_is_for_and_nothing_else(case: str) -> None:
    make, rule, severity = CASES[case]
    assert rules(make()).get(NAME + rule) == severity


CREATE = {"stream": "s", "arguments": []}
SUPER = {"name": "s", "partitions": ["s"], "binding_keys": ["k"], "arguments": []}

LOST: dict[str, tuple[Callable[[], Connection | list[Connection]], bool]] = {
    "below the sequence": (lambda: numbered(100, [1, 2]).goodbye(), True),
    "as high as the sequence": (lambda: numbered(100, [100]).goodbye(), True),
    "above the sequence": (lambda: numbered(100, [101, 102]).goodbye(), False),
    "the sequence of nothing": (lambda: numbered(0, [0]).goodbye(), False),
    "a sequence that is refused": (lambda: numbered(100, [1, 2], code=2).goodbye(), False),
    "no reference": (lambda: numbered([1, 2], [1, 2], reference="").goodbye(), False),
    "again": (lambda: numbered([1, 2], [2]).goodbye(), True),
    "ids that jump": (lambda: numbered([1, 2], [9]).goodbye(), False),
    "lower in one frame": (lambda: numbered([5, 4]).goodbye(), True),
    "again, and not confirmed": (lambda: numbered([1, 2], (2,)).goodbye(), False),
    "another publisher is confirmed": (
        lambda: numbered([1, 2], (2,)).server(rabbit.PUBLISH_CONFIRM, publisher_id=8, publishing_ids=[2]).goodbye(),
        False,
    ),
    "in a sub-batch": (lambda: sub_batch(5), True),
    "in a sub-batch with an id of its own": (lambda: sub_batch(6), False),
    "again after an error": (
        lambda: numbered(
            [3],
            one=numbered((1, 2, 3)).server(rabbit.PUBLISH_ERROR, publisher_id=7, publishing_errors=[{"publishing_id": 3, "code": 18}]),
            declared=True,
        ).goodbye(),
        False,
    ),
    "another one is confirmed": (lambda: numbered([1, 2], (2,), [3]).goodbye(), False),
    "the stream is deleted": (lambda: then(rabbit.DELETE, rabbit.DELETE_RESPONSE, [1, 2], stream="s"), False),
    "another stream is deleted": (lambda: then(rabbit.DELETE, rabbit.DELETE_RESPONSE, [1, 2], stream="t"), True),
    "another stream is deleted, and nothing is confirmed": (lambda: then(rabbit.DELETE, rabbit.DELETE_RESPONSE, (1, 2), stream="t"), True),
    "the stream is not deleted": (lambda: then(rabbit.DELETE, rabbit.DELETE_RESPONSE, [1, 2], stream="s", code=16), True),
    "the stream is created": (lambda: then(rabbit.CREATE, rabbit.CREATE_RESPONSE, [1, 2], **CREATE), False),
    "the stream is there": (lambda: then(rabbit.CREATE, rabbit.CREATE_RESPONSE, [1, 2], code=5, **CREATE), True),
    "the partition is created": (lambda: then(rabbit.CREATE_SUPER_STREAM, rabbit.CREATE_SUPER_STREAM_RESPONSE, [1, 2], **SUPER), False),
    "the stream goes": (
        lambda: numbered([1], one=numbered([1, 2]).server(rabbit.METADATA_UPDATE, code=6, stream="s")).goodbye(),
        False,
    ),
    "on the next connection": (lambda: later(numbered([1, 2, 3]), [1, 2]), True),
    "on the next connection, and higher": (lambda: later(numbered([1, 2, 3]), [4]), False),
    "what was not confirmed before": (lambda: later(numbered([1], (2, 3)), [2, 3]), False),
    "on the next connection, behind others": (lambda: later(numbered([1, 2, 3]), [2]), True),
    "on the next connection, confirmed in another order": (lambda: later(confirmed_backwards(), [2]), True),
    "another virtual host": (lambda: later(numbered([1, 2, 3]), [1], host="other"), False),
    "the sequence of another connection": (lambda: later(numbered(9), [1]), True),
    "the sequence says that the stream is new": (lambda: later(numbered([1, 2, 3]), 0, [1]), False),
    "another reference": (lambda: later(numbered([1, 2, 3]), [1], reference="other"), False),
    "another stream": (lambda: later(numbered([1, 2, 3]), [1], stream="t"), False),
    "another server": (lambda: later(numbered([1, 2, 3]), [1], dport=5553), False),
    "a reference that is forgotten": (lambda: numbered([1], one=many_references(255)).goodbye(), False),
    "a reference that is not forgotten": (lambda: numbered([1], one=many_references(254)).goodbye(), True),
    "a reference that wrote again": (lambda: numbered([1], one=many_references(1, numbered(9, one=many_references(254)))).goodbye(), True),
}


def sub_batch(ident: int) -> Connection:
    one = numbered([1, 2, 3, 4, 5]).client(rabbit.PUBLISH, publisher_id=7, published_messages=batch(ident, 2))
    return one.server(rabbit.PUBLISH_CONFIRM, publisher_id=7, publishing_ids=[ident]).goodbye()


def confirmed_backwards() -> Connection:
    one = numbered((1, 2, 3))
    for ident in (3, 1):
        one.server(rabbit.PUBLISH_CONFIRM, publisher_id=7, publishing_ids=[ident])
    return one


def many_references(count: int, one: Connection | None = None) -> Connection:
    one = one or numbered(9)
    for at in range(count):
        one.client(rabbit.QUERY_PUBLISHER_SEQUENCE, publisher_reference=f"r{count}.{at}", stream="s")
        one.server(rabbit.QUERY_PUBLISHER_SEQUENCE_RESPONSE, sequence=9)
    return one


@pytest.mark.parametrize("case", LOST)
def test_messages_that_are_confirmed_and_not_stored(case: str) -> None:
    make, told = LOST[case]
    made = make()
    assert (NAME + "confirmed-and-lost" in rules(*(made if isinstance(made, list) else [made]))) == told


def test_what_is_confirmed_and_lost_is_counted() -> None:
    (found,) = (one for one in diagnosed(GOLDEN / "js_reused_id_405.pcap")[0] if one.severity != "note")
    assert (found.rule, found.severity) == (NAME + "confirmed-and-lost", "warning")
    assert found.cause == (
        '2 of 7 messages of publisher 0 (reference "pub-1", stream "dup1") are confirmed but not stored, from id 5 on: '
        "the server has ids up to 5 of this reference"
    )
    assert (found.messages, found.packets) == ([37, 38], [55, 56])
    (found,) = diagnosed(capture(numbered(100, [1], [2], [1]).goodbye()))[0]
    assert "3 of 3 messages" in found.cause and "from id 1 on: the server has ids up to 100" in found.cause
    assert found.messages == [15, 16]


@pytest.mark.parametrize(
    ("end", "told"), [("ready", {}), ("refused", {"advertised-unreachable": "error"}), ("none", {"advertised-not-dialled": "warning"})]
)
def test_places_that_clients_are_sent_to(end: str, told: dict[str, str]) -> None:
    there = Connection(5 * SECOND, sport=40001, dport=5551)
    if end == "ready":
        there.ready().goodbye()
    elif end == "refused":
        there.segment(0, flags=SYN).reset(1)
    others = [there] if there.packets else []
    found = rules(metadata("192.0.2.2", 5551), *others)
    assert found[NAME + "advertised-elsewhere"] == "note"
    assert {rule: severity for rule, severity in found.items() if rule.startswith(NAME + "advertised-") and "else" not in rule} == {
        NAME + rule: severity for rule, severity in told.items()
    }


NAMED = "rabbit-0.ns"


def sent(
    *asks: str,
    host: str = NAMED,
    goes: Any = "goodbye",
    port: int = 5552,
    begin: int = 0,
    opened: Any = (),
    to: Any = None,
    wait: int = MS,
) -> Connection:
    """A client that asks for these streams, and leaves; `to` another place than the first, too."""
    one = Connection(begin, sport=40000 + begin // SECOND).ready(properties=opened)
    for stream in asks:
        one.wait(wait).client(rabbit.METADATA, streams=[stream])
        one.server(
            rabbit.METADATA_RESPONSE,
            brokers=[{"reference": at, "host": each, "port": port} for at, each in enumerate((host, to)) if each is not None],
            stream_metadata=[{"stream_name": stream, "response_code": 1, "leader_reference": 0, "replicas_references": []}],
        )
    return one.goodbye() if goes == "goodbye" else one


def other(port: int = 5552, server: bytes = b"\x0a\x01\x01\x01") -> Connection:
    """Somebody connects to another server."""
    one = Connection(5 * SECOND, sport=41000, dport=port)
    one.addresses = (one.addresses[0], server)
    return one.ready().goodbye()


def uses(layout: Any, client: bytes | None = None, **values: Any) -> Connection:
    """Somebody publishes or subscribes on another connection."""
    one = Connection(5 * SECOND, sport=41000)
    one.addresses = (client or one.addresses[0], one.addresses[1])
    return one.ready().client(layout, **values).goodbye()


HERE = "192.0.2.2"
SUBSCRIBE = {"subscription_id": 1, "stream": "s", "offset_type": 1, "credit": 1}
DECLARE = {"publisher_id": 1, "publisher_reference": "", "stream": "s"}
ADVERTISED = (("advertised_host", NAMED), ("advertised_port", "5552"))

SENT: dict[str, tuple[Callable[[], list[Connection]], bool]] = {
    "a name": (lambda: [sent("s")], True),
    "this address": (lambda: [sent("s", host=HERE)], False),
    "this address or a name": (lambda: [sent("s", to=HERE)], False),
    "this address on another port": (lambda: [sent("s", host=HERE, port=5553)], True),
    "localhost, which is not here": (lambda: [sent("s", host="localhost")], True),
    "an address": (lambda: [sent("s", host="10.1.1.1")], True),
    "an address that is dialled": (lambda: [sent("s", host="10.1.1.1"), other()], False),
    "an address, and another one is dialled": (lambda: [sent("s", host="10.1.1.2"), other()], True),
    "a name, and an address is dialled": (lambda: [sent("s"), other()], False),
    "a name, and a port of something else is dialled": (lambda: [sent("s"), other(5559)], True),
    "a name, and the same server is dialled": (lambda: [sent("s"), uses(rabbit.HEARTBEAT)], True),
    "a name, and the client subscribes": (lambda: [sent("s"), uses(rabbit.SUBSCRIBE, **SUBSCRIBE)], False),
    "a name, and the client publishes": (lambda: [sent("s"), uses(rabbit.DECLARE_PUBLISHER, **DECLARE)], False),
    "a name, and the client publishes as before": (
        lambda: [sent("s"), uses(rabbit.PUBLISH, publisher_id=1, published_messages=b"\0\0\0\0")],
        False,
    ),
    "a name, and another client subscribes": (lambda: [sent("s"), uses(rabbit.SUBSCRIBE, b"\xc0\0\2\7", **SUBSCRIBE)], True),
    "a name, and the client does something else": (
        lambda: [sent("s", goes="on").client(rabbit.DELETE, stream="s").server(rabbit.DELETE_RESPONSE).goodbye()],
        False,
    ),
    "a name, and the client stays": (lambda: [sent("s", goes="on").wait(70 * SECOND).goodbye()], False),
    "a name, and the server goes": (lambda: [sent("s", goes="on").fin(1)], False),
    "a name, and the capture ends": (lambda: [sent("s", goes="on")], False),
    "a name, again and again": (lambda: [sent("s", "s", "s", goes="on")], True),
    "a name, every five minutes": (lambda: [sent("s", "s", "s", "s", goes="on", wait=300 * SECOND)], False),
    "a name, and only twice": (lambda: [sent("s", "s", goes="on")], False),
    "a name of Open": (lambda: [sent(opened=ADVERTISED)], False),
    "a name of Open, again and again": (lambda: [sent(opened=ADVERTISED, begin=at * SECOND) for at in range(3)], True),
    "a name of Open, from time to time": (lambda: [sent(opened=ADVERTISED, begin=at * 20 * SECOND) for at in range(3)], False),
    "a name of Open, then this address": (lambda: [sent("s", host=HERE, opened=ADVERTISED, begin=at * SECOND) for at in range(3)], False),
}


@pytest.mark.parametrize("case", SENT)
def test_clients_that_do_not_get_where_they_are_sent(case: str) -> None:
    make, told = SENT[case]
    assert rules(*make()).get(NAME + "advertised-not-dialled") == ("warning" if told else None)


def test_a_client_that_cannot_resolve_a_name_is_told_with_it() -> None:
    (found,) = (one for one in diagnosed(GOLDEN / "rstream_name_not_resolved_405.pcap")[0] if one.severity != "note")
    assert (found.rule, found.severity, found.messages) == (NAME + "advertised-not-dialled", "warning", [37])
    assert found.cause == (
        "127.0.0.1 neither publishes nor subscribes: Metadata sends it to rabbit-0.internal.example:5552, "
        "and the capture has no connection to it"
    )
    # A server on the loopback interface may well call itself so, and the client goes on
    assert NAME + "advertised-not-dialled" not in {one.rule for one in diagnosed(GOLDEN / "rstream_twice_1_310.pcap")[0]}


def from_offset(begin: int, *chunks: bytes, answer: dict[str, Any] | None = None, kind: int = 4, **values: Any) -> Connection:
    """A subscription from there; `answer`: of ConsumerUpdate, which asks it again."""
    one = Connection().ready()
    one.client(rabbit.SUBSCRIBE, subscription_id=3, stream="orders", offset_type=kind, offset=begin, credit=9, **values)
    one.server(rabbit.SUBSCRIBE_RESPONSE)
    if answer is not None:
        one.server(rabbit.CONSUMER_UPDATE, correlation_id=0, subscription_id=3, active=1)
        one.client(rabbit.CONSUMER_UPDATE_RESPONSE, correlation_id=0, **answer)
    for each in chunks:
        one.server(rabbit.DELIVER, subscription_id=3, chunk=each)
    return one.goodbye()


FILTER = [{"key": "filter.0", "value": "x"}, {"key": "name", "value": "n"}]
EARLIER, OTHERS = "asked from offset 45, the chunk begins at 32", 'asked for "x", and gets a chunk of 16 entries: others may be included'

MORE: dict[str, tuple[Callable[[], Connection], list[str]]] = {
    "before the offset": (lambda: from_offset(45, chunk(32, 16), chunk(48, 16)), [EARLIER]),
    "at the offset": (lambda: from_offset(45, chunk(45, 16)), []),
    "behind the offset": (lambda: from_offset(45, chunk(46, 16)), []),
    "before it later": (lambda: from_offset(45, chunk(45, 16), chunk(32)), []),
    "a timestamp": (lambda: from_offset(45, chunk(32, 16), kind=5), []),
    "damaged": (lambda: from_offset(45, b"\x50\0"), []),
    "asked again for the offset": (lambda: from_offset(0, chunk(32, 16), answer={"offset_type": 4, "offset": 45}), [EARLIER]),
    "asked again for all": (lambda: from_offset(45, chunk(32, 16), answer={"offset_type": 1}), []),
    "asked again for the same": (lambda: from_offset(45, chunk(32, 16), answer={"offset_type": 0}), [EARLIER]),
    "a filter": (lambda: from_offset(32, chunk(32, 16), properties=FILTER), [OTHERS]),
    "a filter, and one message": (lambda: from_offset(32, chunk(32), properties=FILTER), []),
    "no filter": (lambda: from_offset(32, chunk(32, 16), properties=FILTER[1:]), []),
    "both": (lambda: from_offset(45, chunk(32, 16), properties=FILTER), [EARLIER, OTHERS]),
}


@pytest.mark.parametrize("case", MORE)
def test_a_subscription_that_gets_more_than_it_asked_for(case: str) -> None:
    make, causes = MORE[case]
    told = [one for one in diagnosed(capture(make()))[0] if one.rule == NAME + "more-than-asked"]
    assert [one.cause for one in told] == [f'subscription 3 ("orders") {cause}' for cause in causes]
    assert {one.severity for one in told} <= {"note"}


def test_more_than_asked_in_captures() -> None:
    told = {path.name: found(path).get(NAME + "more-than-asked") for path in (GOLDEN / "js_sac_436.pcapng", GOLDEN / "sll2_any_436.pcap")}
    assert told == {"js_sac_436.pcapng": "note", "sll2_any_436.pcap": None}


IGNORED: dict[str, tuple[dict[str, str], str | None]] = {
    "none": ({}, None),
    "all that are known": (
        {
            "name": "g",
            "single-active-consumer": "true",
            "super-stream": "s",
            "filter.0": "a",
            "match-unfiltered": "true",
            "chunk_selector": "all",
        },
        None,
    ),
    "what is not wanted": ({"single-active-consumer": "false", "match-unfiltered": "false", "chunk_selector": "user_data"}, None),
    "values that would be wrong elsewhere": ({"name": "true"}, None),
    "another name": ({"x-single-active-consumer": "true"}, '"x-single-active-consumer=true"'),
    "nearly a filter": ({"filters.0": "a"}, '"filters.0=a"'),
    "capitals": ({"single-active-consumer": "True"}, '"single-active-consumer=True"'),
    "another selector": ({"chunk_selector": "none"}, '"chunk_selector=none"'),
    "unfiltered without a filter": ({"match-unfiltered": "true"}, '"match-unfiltered=true"'),
    "several": ({"a": "b", "name": "x", "c": "d"}, '"a=b", "c=d"'),
}


@pytest.mark.parametrize("case", IGNORED)
def test_properties_that_servers_ignore(case: str) -> None:
    properties, named = IGNORED[case]
    one = subscribed(9, properties=[{"key": key, "value": value} for key, value in properties.items()]).goodbye()
    found = [(each.rule, each.severity, each.cause) for each in diagnosed(capture(one))[0]]
    cause = (
        f"the server ignores {named} of Subscribe silently: it knows chunk_selector=all or user_data, filter.NAME, "
        "match-unfiltered=true or false, name, single-active-consumer=true or false, super-stream"
    )
    assert found == ([] if named is None else [(NAME + "property-ignored", "note", cause)])


def test_properties_of_a_client_that_sends_what_it_is_given() -> None:
    assert NAME + "property-ignored" in found(GOLDEN / "rstream_properties_ignored.pcap")
    assert NAME + "property-ignored" not in found(GOLDEN / "rstream_properties_known.pcap")


def test_the_ledger_is_told() -> None:
    (found,) = diagnosed(capture(subscribed(2, *HUNGRY).wait(5 * SECOND).goodbye()))[0]
    assert "2 chunks were granted and 2 delivered" in found.cause and '"orders"' in found.cause
    assert found.messages == [14]


def test_each_starved_subscription_is_told() -> None:
    one = subscribed(2, *HUNGRY)
    one.client(rabbit.SUBSCRIBE, subscription_id=4, stream="bills", offset_type=1, credit=1).server(rabbit.SUBSCRIBE_RESPONSE)
    one.server(rabbit.DELIVER, subscription_id=4, chunk=chunk(0)).wait(5 * SECOND)
    told = [each.cause[:25] for each in diagnosed(capture(one.goodbye()))[0] if each.rule == NAME + "out-of-credit"]
    assert told == ['subscription 3 ("orders")', 'subscription 4 ("bills") ']


def test_starved_when_the_consumer_gives_up() -> None:
    (found,) = (one for one in diagnosed(GOLDEN / "rstream_slow_consumer.pcap")[0] if one.severity != "note")
    assert (found.rule, found.severity, found.messages) == (NAME + "out-of-credit", "warning", [32, 33])
    assert found.cause == 'subscription 0 ("orders") has had no credit for 3.003 s when it ends: 3 chunks were granted and 3 delivered'


@pytest.mark.parametrize(("one", "told"), [(subscribed(2, *HUNGRY), 1), (subscribed(3, *HUNGRY), 0), (committed(9), 1), (committed(1), 0)])
def test_starved_while_it_lasts(one: Connection, told: int) -> None:
    last_ns = one.packets[-1].time_ns
    one.wait(5 * SECOND).client(rabbit.CREDIT, subscription_id=3, credit=1).goodbye()
    reader = open_capture(io.BytesIO(capture(one)))
    inspector = Inspector([reader], Options(findings=True))
    every = [packet for batch in reader.batches() for packet in batch]
    before = [packet for packet in every if packet.time_ns <= last_ns]
    inspector.process(before)
    assert inspector.age(last_ns + SECOND - 1) == []
    found = inspector.age(last_ns + 2 * SECOND)
    assert [one.cause for one in found if type(one) is Finding] == told * [
        'subscription 3 ("orders") has had no credit for 2 s so far: 2 chunks were granted and 2 delivered'
    ]
    assert [inspector.age(last_ns + at * SECOND) for at in range(3, 15)] == [[]] * 12
    behind = inspector.process(every[len(before) :]) + inspector.finish()
    warned = [one for one in behind if type(one) is Finding and one.severity != "note"]
    assert not warned, "it is told once"


def turned_down(one: Connection) -> Connection:
    return one.server(rabbit.CLOSE, correlation_id=1, closing_code=13, closing_reason="unknown frame").fin(1)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (
            Connection().ready().client(rabbit.STREAM_STATS, stream="s"),
            "every server from RabbitMQ 3.11 on knows StreamStats (key 0x001c, version 1), so its content is wrong",
        ),
        (
            Connection().ready().client(rabbit.RESOLVE_OFFSET_SPEC, stream="s", offset_type=1),
            "RabbitMQ 4.0.5 does not know ResolveOffsetSpec (key 0x001f, version 1), which came with RabbitMQ 4.3",
        ),
        (
            Connection().ready().client(rabbit.ROUTE, routing_key="k", super_stream="s"),
            "every server knows Route (key 0x0018, version 1), so its content is wrong",
        ),
        (
            versions(2, ends=False),
            "RabbitMQ 4.0.5 does not know Publish (key 0x0002, version 2), and states versions 1 to 1",
        ),
        (
            versions(1, ends=False),
            "RabbitMQ 4.0.5 states that it knows Publish (key 0x0002, version 1), so its content is wrong",
        ),
        (
            Connection().ready().client(rabbit.DELETE_PUBLISHER_RESPONSE),
            "DeletePublisher (key 0x8006, version 1) is a response without a request",
        ),
        (
            Connection().ready().client(rabbit.DELETE, correlation_id=7, stream="s").server(rabbit.DELETE_RESPONSE, correlation_id=7),
            "Delete (key 0x000e, version 1) was answered, so the server means a later frame, or one that was not captured",
        ),
    ],
)
def test_the_command_before_a_close_is_named(one: Connection, why: str) -> None:
    (found,) = (each for each in diagnosed(capture(turned_down(one)))[0] if each.rule == NAME + "closed-with-code")
    assert found.severity == "error"
    assert found.cause.endswith(f"; {why}")


def test_a_null_over_which_the_server_closes_is_one_finding() -> None:
    one = Connection().ready().client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference=None, stream="s")
    (found,) = diagnosed(capture(turned_down(one)))[0]
    assert (found.rule, found.severity) == (NAME + "null-reference", "error")
    assert found.cause == (
        "the server closes with unknown frame: the publisher reference of DeclarePublisher is null, which servers treat as a damaged frame"
    )
    assert found.messages == [11, 12]


def test_a_renewal_that_is_refused_is_told_with_what_the_connection_began_with() -> None:
    found = [one.cause for one in diagnosed(GOLDEN / "reauthenticate_436.pcap")[0]]
    began = 'the connection began with PLAIN of the user "guest"'
    assert found == [
        f'RabbitMQ 4.3.6 refuses to renew the login by PLAIN of the user "limited": {began} (SASL cannot change username)',
        f"RabbitMQ 4.3.6 refuses to renew the login by AMQPLAIN: {began} (SASL cannot change mechanism)",
    ]


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
@pytest.mark.parametrize(("password", "why"), [("", "is empty"), ("s", "is wrong, or there is no such user")])
def test_a_password_that_is_not_set_is_told(mechanism: str, password: str, why: str) -> None:
    one = Connection().greeted("ghöst-user", password, mechanism).server(rabbit.SASL_AUTHENTICATE_RESPONSE, response_code=8).fin(1)
    assert diagnosed(capture(one))[0][0].cause == (
        f'RabbitMQ 4.0.5 does not authenticate the user "ghöst-user" ({mechanism}): the password {why}'
    )


def test_a_frame_size_that_is_raised_is_not_said_to_end_the_connection() -> None:
    (found,) = diagnosed(capture(tuned((0, 60))))[0]
    assert found.advice == "Have the client use the smaller of both sizes: RabbitMQ 3.10 and 4.0 follow its answer, other servers may not."


def test_what_is_not_permitted_names_who_needs_what_permission_for_what() -> None:
    one = Connection().ready().client(rabbit.SUBSCRIBE, subscription_id=1, stream="x", offset_type=1, credit=1)
    (found,) = diagnosed(capture(one.server(rabbit.SUBSCRIBE_RESPONSE, response_code=16).goodbye()))[0]
    assert found.cause == 'Subscribe for the stream "x" is refused: access refused, so the client cannot consume from it'
    assert found.advice == (
        'Give the user "alice" the permission read for the stream "x" in the virtual host "/": '
        "rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ."
    )
    named = [one.advice for one in diagnosed(GOLDEN / "access_refused_436.pcap")[0] if one.rule == NAME + "refused"]
    assert len(named) == 7 and all(each.startswith('Give the user "limited" the permission ') for each in named)


def test_several_refusals_that_are_one_finding_are_counted() -> None:
    causes = [one.cause for one in diagnosed(GOLDEN / "credit_flow_405.pcap")[0]]
    assert "3 requests are refused on this connection: 3 of Credit (subscription id does not exist)" in causes
    causes = [one.cause for one in diagnosed(GOLDEN / "pipelined_requests_405.pcap")[0]]
    every = "75 of Metadata (stream does not exist), 75 of QueryOffset (no offset)"
    assert f"150 requests are refused on this connection: {every}" in causes
    told, _, records = diagnosed(GOLDEN / "pipelined_requests_405.pcap")
    (advice,) = (one.advice for one in told if one.cause.startswith("150 requests"))
    assert len(compile_filter(advice.split("'")[1]).select(records)) == 150
    one = Connection().ready()
    for ident, code in ((0, 18), (1, 18), (2, 2)):
        one.client(rabbit.PUBLISH, publisher_id=1, published_messages=entries(1, 1, ident)).server(
            rabbit.PUBLISH_ERROR, publisher_id=1, publishing_errors=[{"publishing_id": ident, "code": code}]
        )
    causes = [one.cause for one in diagnosed(capture(one.goodbye()))[0]]
    every = "2 of Publish (publisher does not exist), 1 of Publish (stream does not exist)"
    assert f"3 requests are refused on this connection: {every}" in causes


def test_a_publisher_that_is_refused_and_used_is_one_finding() -> None:
    (found,) = (one for one in diagnosed(GOLDEN / "publisher_refused_310.pcap")[0] if one.severity != "note")
    assert (found.rule, found.severity, found.messages) == (NAME + "refused", "error", [14, 15, 18, 19])
    assert found.cause == (
        'DeclarePublisher for the stream "s1" is refused: access refused; the client publishes anyway, and nothing is stored'
    )
    assert [one.rule for one in diagnosed(capture(turned_away(1)))[0]] == [NAME + "refused"]


def test_a_login_that_is_only_challenged_is_no_login_yet() -> None:
    _, (summary,), _ = diagnosed(GOLDEN / "sasl_challenge_405.pcap")
    assert summary.reached == "login"
    _, (summary,), _ = diagnosed(GOLDEN / "handshake_close_310.pcap")
    assert summary.reached == "ready"


def slow(*stalls_ms: int, took_ms: int = 1) -> Connection:
    """A consumer that grants its only credit again after these times, and gets another chunk each time."""
    one = subscribed(1, chunk(0))
    for offset, stall in enumerate(stalls_ms, 1):
        one.wait(stall * MS).client(rabbit.CREDIT, subscription_id=3, credit=1).wait(took_ms * MS)
        one.server(rabbit.DELIVER, subscription_id=3, chunk=chunk(2 * offset))
    return one.client(rabbit.UNSUBSCRIBE, subscription_id=3).server(rabbit.UNSUBSCRIBE_RESPONSE)


FAST = "; the server delivers within 1 ms of each Credit, so the consumer is slow"


@pytest.mark.parametrize(
    ("one", "causes"),
    [
        (slow(2000, 1500, 1000), [f"was without credit 3 times, for 4.5 s in total and 2 s at most{FAST}"]),
        (slow(2000), [f"was without credit for 2 s{FAST}"]),
        (slow(*[300] * 9), [f"was without credit 9 times, for 2.7 s in total and 300 ms at most{FAST}"]),
        (slow(*[30] * 99), []),
        (slow(2000, took_ms=3000), []),
        # No chunk waits for these: the publisher is slow, too
        (slow(*[2000] * 5, took_ms=1500), []),
        (slow(*[2000] * 5, took_ms=300), []),
        (slow(2000).wait(SECOND), [f"was without credit for 2 s{FAST}"]),
        (
            subscribed(1, chunk(0)).wait(2 * SECOND).client(rabbit.CREDIT, subscription_id=3, credit=1),
            ["was without credit for 2 s"],
        ),
    ],
)
def test_times_without_credit_are_added_up(one: Connection, causes: list[str]) -> None:
    found = [each for each in diagnosed(capture(one.goodbye()))[0] if each.rule == NAME + "out-of-credit" and each.severity != "note"]
    assert [each.cause for each in found] == [f'subscription 3 ("orders") {cause}' for cause in causes]


def credit_of(first: int, *more: int) -> Connection:
    one = subscribed(first, *(chunk(0) for _ in range(first)))
    for credit in more:
        one.client(rabbit.CREDIT, subscription_id=3, credit=credit)
    return one.wait(30 * SECOND).client(rabbit.HEARTBEAT)


@pytest.mark.parametrize(
    ("one", "why", "advice"),
    [
        (credit_of(1), "1 chunk was granted and 1 delivered", "Have the consumer send Credit for each chunk"),
        (credit_of(0), "none was granted", "Have the consumer send Credit for each chunk"),
        (
            credit_of(1, -32768),
            "a Credit of -32,768 (32,768 without a sign) took it away, because servers read it as a signed number",
            "Have the consumer grant at most 32,767 chunks at once.",
        ),
        (credit_of(0, 5), None, ""),
    ],
)
def test_why_a_subscription_has_no_credit(one: Connection, why: str | None, advice: str) -> None:
    found = [each for each in diagnosed(capture(one))[0] if each.rule == NAME + "out-of-credit"]
    cause = f'subscription 3 ("orders") has had no credit for 30 s when the capture ends: {why}'
    assert [(each.severity, each.cause) for each in found] == ([] if why is None else [("warning", cause)])
    assert all(each.advice.startswith(advice) for each in found)


def test_a_single_active_consumer_that_waits_needs_no_credit() -> None:
    waiting = subscribed(0, properties=[{"key": "single-active-consumer", "value": "true"}, {"key": "name", "value": "app"}])
    assert NAME + "out-of-credit" not in rules(waiting.wait(30 * SECOND).client(rabbit.HEARTBEAT))


def test_lost_messages_may_have_been_credit() -> None:
    one = subscribed(1, chunk(0)).wait(5 * SECOND)
    one.next[0] += 13
    one.client(rabbit.UNSUBSCRIBE, subscription_id=9).server(rabbit.UNSUBSCRIBE_RESPONSE).wait(5 * SECOND).goodbye()
    assert NAME + "out-of-credit" not in rules(one)


OTHER = bytes([192, 0, 2, 7])


def deleting(begin: int = SECOND, client: bytes = OTHER, code: int = 1) -> Connection:
    one = Connection(begin, 50000, client=client).ready().client(rabbit.DELETE, stream="orders")
    return one.server(rabbit.DELETE_RESPONSE, response_code=code).goodbye()


def losing(publishes: bool = False, again: int = 0, leaves: bool = True) -> Connection:
    """A client whose stream is gone after a second, and that comes back to it after `again`, if it does."""
    one = Connection().ready()
    for wait in (0, again) if again else (0,):
        one.wait(wait or MS)
        if publishes:
            one.client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="orders")
            one.server(rabbit.DECLARE_PUBLISHER_RESPONSE)
        else:
            one.client(rabbit.SUBSCRIBE, subscription_id=3, stream="orders", offset_type=1, credit=9).server(rabbit.SUBSCRIBE_RESPONSE)
        if not wait:
            one.wait(SECOND).server(rabbit.METADATA_UPDATE, code=6, stream="orders")
    return one.goodbye() if leaves else one


def staying(seconds: int) -> Connection:
    return Connection(0, 50001).ready().wait(seconds * SECOND).client(rabbit.HEARTBEAT)


CONSUMED = (
    '192.0.2.7:50000 deleted the stream "orders" while 192.0.2.1:40000 consumed from it; that client did not subscribe again in the 29 s '
    "until the capture ends"
)
GONE = CONSUMED.replace(
    '192.0.2.7:50000 deleted the stream "orders"', 'the stream "orders" was deleted or moved (no Delete is in the capture)'
)
PUBLISHED = CONSUMED.replace("consumed from", "published to").replace("did not subscribe", "did not declare a publisher")
USED = CONSUMED.replace("consumed from", "used").replace("did not subscribe again in the 29 s", "did not use it again in the 29.01 s")
REFUSED = CONSUMED.partition("; ")[0] + "; that client wanted to consume from it again and was refused"
UNSURE = CONSUMED.partition("; ")[0] + "; the capture lacks packets that would show whether that client came back"


def coming_back(code: int, wait: int = SECOND, port: int = 40001) -> Connection:
    """The client that lost its stream subscribes again, on another connection, five times."""
    one = Connection(2 * SECOND, port).ready().wait(wait)
    for _ in range(5):
        one.client(rabbit.SUBSCRIBE, subscription_id=3, stream="orders", offset_type=1, credit=9).wait(wait)
        one.server(rabbit.SUBSCRIBE_RESPONSE, response_code=code)
    return one.goodbye()


def lossy_since() -> Connection:
    """The client may have subscribed again behind the loss of its stream."""
    one = losing(leaves=False)
    one.next = [one.next[0] + 40, one.next[1] + 12]
    return one.server(rabbit.DELIVER, subscription_id=3, chunk=chunk(0)).wait(SECOND).client(rabbit.HEARTBEAT)


def in_the_middle() -> Connection:
    """A consumer of which no Subscribe was captured."""
    one = Connection().server(rabbit.DELIVER, subscription_id=3, chunk=chunk(0)).client(rabbit.CREDIT, subscription_id=3, credit=1)
    return one.wait(SECOND).server(rabbit.METADATA_UPDATE, code=6, stream="orders").client(rabbit.HEARTBEAT)


def moved_on() -> Connection:
    """A consumer that looks up its stream, which is elsewhere."""
    one = losing(leaves=False)
    asked = {"stream_name": "orders", "response_code": 1, "leader_reference": 0, "replicas_references": []}
    one.client(rabbit.METADATA, streams=["orders"])
    brokers = [{"reference": 0, "host": "192.0.2.9", "port": 5552}]
    return one.server(rabbit.METADATA_RESPONSE, brokers=brokers, stream_metadata=[asked]).goodbye()


def deleting_super(client: bytes = OTHER, itself: bool = False) -> Connection:
    """The super stream of "orders-0" and "orders-1" is deleted, both of which somebody consumes from."""
    one = Connection(0 if itself else SECOND, 50000, client=client).ready()
    for ident in (0, 1) if itself else ():
        one.client(rabbit.SUBSCRIBE, subscription_id=ident, stream=f"orders-{ident}", offset_type=1, credit=9)
        one.server(rabbit.SUBSCRIBE_RESPONSE)
    one.client(rabbit.DELETE_SUPER_STREAM, name="orders").server(rabbit.DELETE_SUPER_STREAM_RESPONSE)
    for ident in (0, 1) if itself else ():
        one.server(rabbit.METADATA_UPDATE, code=6, stream=f"orders-{ident}")
    return one.goodbye()


def losing_both() -> Connection:
    one = Connection().ready()
    for ident in (0, 1):
        one.client(rabbit.SUBSCRIBE, subscription_id=ident, stream=f"orders-{ident}", offset_type=1, credit=9)
        one.server(rabbit.SUBSCRIBE_RESPONSE)
    one.wait(SECOND)
    for ident in (0, 1):
        one.server(rabbit.METADATA_UPDATE, code=6, stream=f"orders-{ident}")
    return one.goodbye()


@pytest.mark.parametrize(
    ("talks", "cause"),
    [
        ((losing(), deleting(), staying(30)), CONSUMED),
        ((losing(publishes=True), deleting(), staying(30)), PUBLISHED),
        ((losing(again=9 * SECOND), deleting(), staying(30)), None),
        ((losing(), deleting(), staying(5)), None),
        ((losing(), deleting(begin=20 * SECOND), staying(30)), GONE),
        ((losing(), deleting(code=16), staying(30)), GONE),
        ((losing(), staying(30)), GONE),
        ((losing(), deleting(), coming_back(2), staying(30)), REFUSED),
        ((losing(), deleting(), coming_back(1), staying(30)), None),
        ((lossy_since(), deleting(), staying(30)), UNSURE),
        ((lossy_since(), staying(30)), None),
        ((in_the_middle(), deleting(), staying(30)), USED),
        ((moved_on(), staying(30)), None),
        ((losing_both(), deleting_super(), staying(30)), CONSUMED.replace("the stream", "the super stream")),
        ((deleting_super(itself=True), staying(30)), None),
        ((losing(), Connection(SECOND, 50000, client=OTHER).ready().client(rabbit.DELETE, stream="orders"), staying(30)), CONSUMED),
        (
            (
                deleting(0),
                Connection(9 * SECOND)
                .ready()
                .client(rabbit.SUBSCRIBE, subscription_id=1, stream="orders", offset_type=1, credit=1)
                .server(rabbit.SUBSCRIBE_RESPONSE, response_code=2)
                .goodbye(),
            ),
            '192.0.2.7:50000 deleted the stream "orders" 9 s before 192.0.2.1:40000 wanted to consume from it',
        ),
    ],
)
def test_who_deleted_a_stream_that_others_use(talks: tuple[Connection, ...], cause: str | None) -> None:
    def told(findings: list[Any]) -> list[tuple[str, str, str]]:
        every = [one for one in findings if one.rule == NAME + "stream-deleted"]
        return [(one.severity, one.cause, one.src) for one in every if one.conversation is None]

    found = diagnosed(capture(*talks))[0]
    severity = "warning" if cause in (GONE, UNSURE) else "error"
    assert told(found) == ([] if cause is None else [(severity, cause, "192.0.2.1:40000")])
    assert cause is None or worst_first(found)[0].cause == cause
    # The same of parts, in any order
    for parts in (talks, talks[::-1]):
        together = Diagnoser()
        for one in parts:
            inspector = Inspector([open_capture(io.BytesIO(capture(one)))], Options(findings=True), finite=True)
            list(inspector.records())
            assert inspector.diagnoser is not None
            together.overview.merge(inspector.diagnoser.overview.seen())
        assert told(together.finish()) == told(found)


def test_a_client_that_asks_for_a_deleted_stream_on_many_connections_is_reported_once() -> None:
    talks = [coming_back(2, MS, 40001 + at) for at in range(5)]
    found = [one.cause for one in diagnosed(capture(deleting(0), *talks))[0] if one.rule == NAME + "stream-deleted"]
    assert found == ['192.0.2.7:50000 deleted the stream "orders" 2 s before 192.0.2.1:40001 wanted to consume from it']


@pytest.mark.parametrize("lost", [0, 30])
def test_a_client_that_asked_for_something_among_lost_bytes_has_not_given_up(lost: int) -> None:
    asked = {"stream_name": "s", "response_code": 2, "leader_reference": 0, "replicas_references": []}
    one = Connection().ready().client(rabbit.METADATA, streams=["s"])
    one.server(rabbit.METADATA_RESPONSE, brokers=[], stream_metadata=[asked])
    one.next[0] += lost
    assert (NAME + "gave-up" in rules(one.goodbye())) == (not lost)


@pytest.mark.parametrize(
    ("ends", "when"),
    [
        (lambda one: one.reset(1), "the server resets the connection, 1 ms later"),
        (lambda one: one.fin(0), "the client closes the connection, 1 ms later"),
        # The client said so, and the server is merely the first to end the connection
        (
            lambda one: one.client(rabbit.CLOSE, closing_code=1, closing_reason="OK").server(rabbit.CLOSE_RESPONSE).fin(1),
            "the connection ends, 3 ms later",
        ),
        (lambda one: one.segment(0), "the capture ends, 1 ms later"),
    ],
)
def test_when_a_publish_had_no_confirm(ends: Callable[[Connection], Connection], when: str) -> None:
    one = published(1, 0)
    del one.packets[-5:]
    one.next, one.now = [one.next[0] - 19, one.next[1] - 15], one.now - 5 * MS
    (found,) = (each for each in diagnosed(capture(ends(one)))[0] if each.rule == NAME + "confirms-missing")
    assert found.cause == f"a Publish frame is not confirmed when {when}"


def test_nobody_ignores_what_it_did_itself_or_what_may_be_among_lost_messages() -> None:
    for one in (deleting_super(itself=True), lossy_since()):
        assert not {NAME + "stream-change-ignored"} & rules(one, staying(30)).keys()
    assert NAME + "stream-changed" not in rules(deleting_super(itself=True))


def grouped(
    begin: int, client: bytes, asked: int | None, offsets: tuple[int, ...], stored: int | None = None, leaves: bool = True
) -> Connection:
    """A single active consumer that becomes the active one, asks from there (-1: from nowhere), or from the first, and gets these."""
    one = Connection(begin, client=client).ready()
    properties = [{"key": "single-active-consumer", "value": "true"}, {"key": "name", "value": "app"}]
    one.client(rabbit.SUBSCRIBE, subscription_id=3, stream="orders", offset_type=5, offset=0, credit=9, properties=properties)
    one.server(rabbit.SUBSCRIBE_RESPONSE).server(rabbit.CONSUMER_UPDATE, correlation_id=0, subscription_id=3, active=1)
    answer = {"offset_type": 1} if asked is None else {"offset_type": 4, "offset": asked} if asked >= 0 else {"offset_type": 0}
    one.client(rabbit.CONSUMER_UPDATE_RESPONSE, correlation_id=0, **answer)
    for offset in offsets:
        one.server(rabbit.DELIVER, subscription_id=3, chunk=chunk(offset))
    if stored is not None:
        one.client(rabbit.STORE_OFFSET, reference="app", stream="orders", offset=stored)
    return one.goodbye() if leaves else one


CHANGED = 'the single active consumer "app" of "orders" changed from 192.0.2.1:40000 to 192.0.2.7:40000, which gets '


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (grouped(0, A, None, (0, 2, 4), 5), grouped(SECOND, OTHER, 6, (6, 8)), []),
        (
            grouped(0, A, None, (0, 2, 4), 5),
            grouped(SECOND, OTHER, 2, (2, 4, 6)),
            [("warning", f"{CHANGED}offsets 2 to 4 again, although offset 5 had been stored")],
        ),
        (grouped(0, A, None, (0, 2, 4), 3), grouped(SECOND, OTHER, 4, (4, 6)), [("note", f"{CHANGED}offset 4 again")]),
        (grouped(0, A, None, (0, 2, 4)), grouped(SECOND, OTHER, 4, (4, 6)), [("note", f"{CHANGED}offset 4 again")]),
        (grouped(0, A, None, (0, 2, 4)), grouped(SECOND, OTHER, None, (0, 2)), [("warning", f"{CHANGED}offsets 0 to 2 again")]),
        # Nothing is asked for, so that the server begins where Subscribe said
        (
            grouped(0, A, None, (0, 2, 4), 5),
            grouped(SECOND, OTHER, -1, (0, 2)),
            [("warning", f"{CHANGED}offsets 0 to 2 again, although offset 5 had been stored")],
        ),
        (grouped(0, A, None, (0, 2, 4), 5), grouped(MS, OTHER, None, (0, 2)), []),
        (grouped(0, A, None, (0, 2, 4), 5), grouped(SECOND, OTHER, None, ()), []),
    ],
)
def test_what_a_single_active_consumer_gets_again(before: Connection, after: Connection, told: list[tuple[str, str]]) -> None:
    found = [one for one in diagnosed(capture(before, after))[0] if one.rule == NAME + "redelivered"]
    assert [(one.severity, one.cause) for one in found] == told


def balanced(*brokers: str, used: bool = False, begin: int = 0, every: int = SECOND, creates: bool = False) -> list[Connection]:
    """A client asks for the leader, which is rabbit-0, and opens connections that lead to these brokers."""
    places = [{"reference": at, "host": f"rabbit-{at}", "port": 5552} for at in range(3)]
    asked = {"stream_name": "orders", "response_code": 1, "leader_reference": 0, "replicas_references": [1, 2]}
    first = (
        Connection(begin, 41000 + begin // (100 * MS))
        .ready(properties=[("advertised_host", "rabbit-1"), ("advertised_port", "5552")])
        .client(rabbit.METADATA, streams=["orders"])
    )
    first.server(rabbit.METADATA_RESPONSE, brokers=places, stream_metadata=[asked])
    if creates:
        first.client(rabbit.CREATE, stream="other", arguments=[]).server(rabbit.CREATE_RESPONSE)
    talks = [first.goodbye()]
    for at, broker in enumerate(brokers, 1):
        one = Connection(at * every, 40000 + at).ready(properties=[("advertised_host", broker), ("advertised_port", "5552")])
        if used:
            one.client(rabbit.DECLARE_PUBLISHER, publisher_id=1, publisher_reference="", stream="orders").server(
                rabbit.DECLARE_PUBLISHER_RESPONSE
            )
        talks.append(one.goodbye())
    return talks


@pytest.mark.parametrize(
    ("talks", "told"),
    [
        (balanced("rabbit-1", "rabbit-2", "rabbit-1"), "they led to rabbit-1:5552 (2), rabbit-2:5552 (1), never to rabbit-0:5552"),
        (balanced("rabbit-1", "rabbit-2", "rabbit-0"), None),
        (balanced("rabbit-1", "rabbit-2"), None),
        (
            [one for at in range(3) for one in balanced(begin=at * 100 * MS)],
            "they led to rabbit-1:5552 (3), never to rabbit-0:5552",
        ),
        (balanced("rabbit-1", "rabbit-2", "rabbit-1", used=True), None),
        # Somebody looks from time to time
        (balanced("rabbit-1", "rabbit-2", "rabbit-1", every=20 * SECOND), None),
        ([one for at in range(3) for one in balanced(begin=at * 60 * SECOND)], None),
        # The connections are for something else
        ([each for at in range(3) for each in balanced(begin=at * 100 * MS, creates=True)], None),
    ],
)
def test_connections_that_never_lead_to_the_leader(talks: list[Connection], told: str | None) -> None:
    found = [one for one in diagnosed(capture(*talks))[0] if one.rule == NAME + "never-at-the-leader"]
    cause = f'192.0.2.1 opened 3 connections to 192.0.2.2:5552 and used none: {told}, the leader of "orders"'
    assert [(one.severity, one.cause) for one in found] == ([] if told is None else [("warning", cause)])


def stalling(answered: int, connections: int = 4, quiet: int = 9) -> list[Connection]:
    """Clients that ask every second, each once more after the server answered `answered` of them."""
    every = []
    for at in range(connections):
        one = Connection(at * 100 * MS, 40000 + at, client=bytes([192, 0, 2, 10 + at])).ready()
        for turn in range(answered + 1):
            one.client(rabbit.CREATE, stream=f"{at}-{turn}", arguments=[])
            if turn < answered:
                one.server(rabbit.CREATE_RESPONSE).wait(SECOND)
        every.append(one.wait(quiet * SECOND).segment(0))
    return every


def test_a_server_that_answers_nobody_any_more() -> None:
    def told(talks: list[Connection]) -> list[tuple[str, str, list[int]]]:
        found = worst_first(diagnosed(capture(*talks))[0])
        return [(one.severity, one.cause, one.messages) for one in found if one.rule == NAME + "server-stalled"]

    cause = (
        "192.0.2.2:5552 no longer answers any client: requests of 4 connections of 4 clients have no answer, "
        "the first was sent 9.3 s before the capture ends"
    )
    ((severity, said, messages),) = told(stalling(2))
    assert (severity, said, len(messages)) == ("error", cause, 4)
    assert worst_first(diagnosed(capture(*stalling(2)))[0])[0].cause == cause
    answered = Connection(7 * SECOND, 50000).ready().client(rabbit.CREATE, stream="s", arguments=[]).server(rabbit.CREATE_RESPONSE)
    # A server that delivers to consumers is not stuck, one that sends heartbeats may be
    consumer = subscribed(9)
    for offset in range(9):
        consumer.wait(SECOND).server(rabbit.DELIVER, subscription_id=3, chunk=chunk(offset))
    assert told([*stalling(2), consumer]) == []
    idle = Connection(sport=50000).ready().wait(8 * SECOND).server(rabbit.HEARTBEAT)
    assert [each[:2] for each in told([*stalling(2), idle])] == [("error", cause)]
    assert told(stalling(2, connections=2)) == told(stalling(2, quiet=0)) == told([*stalling(2), answered]) == []


def test_what_a_consumer_update_without_an_answer_holds_up() -> None:
    def told(one: Connection) -> list[tuple[str, str]]:
        found = diagnosed(capture(one))[0]
        return [(each.severity, each.cause) for each in found if each.rule == NAME + "server-request-unanswered"]

    open_, nothing = "the client has not answered ConsumerUpdate for 20 s when the", "the server delivers nothing before"
    for active, held_up in ((1, nothing), (0, "no other consumer becomes active before")):
        one = asked(False, active=active)
        del one.packets[-1]
        assert told(one) == []
        assert told(one.wait(20 * SECOND - MS).client(rabbit.HEARTBEAT)) == [("warning", f"{open_} capture ends: {held_up}")]
        late = ("warning", f"the client answers ConsumerUpdate after 20 s: {held_up}")
        assert told(asked(True, 20 * SECOND, active)) == [late]
    assert told(asked(False, 20 * SECOND)) == [("warning", f"{open_} connection ends: {nothing}")]


def test_an_offset_stored_by_a_consumer_of_which_only_the_end_was_captured() -> None:
    before = Connection().server(rabbit.DELIVER, subscription_id=3, chunk=chunk(4))
    before.client(rabbit.STORE_OFFSET, reference="app", stream="orders", offset=5).goodbye()

    def told(*talks: Connection) -> list[tuple[str, str]]:
        return [(each.severity, each.cause) for each in diagnosed(capture(*talks))[0] if each.rule == NAME + "redelivered"]

    cause = f"{CHANGED}offsets 2 to 5 again, although offset 5 had been stored"
    assert told(before, grouped(SECOND, OTHER, 2, (2, 4, 6))) == [("warning", cause)]
    assert told(before, grouped(SECOND, OTHER, 6, (6, 8))) == []
    assert told(before) == []


def test_what_a_consumer_gets_when_it_becomes_active_again_is_no_disorder() -> None:
    one = grouped(0, A, None, (0, 2), 1, leaves=False)
    for active, offset in ((0, None), (1, 2)):
        one.server(rabbit.CONSUMER_UPDATE, correlation_id=7, subscription_id=3, active=active)
        answer = {"offset_type": 0} if offset is None else {"offset_type": 4, "offset": offset}
        one.client(rabbit.CONSUMER_UPDATE_RESPONSE, correlation_id=7, **answer)
    one.server(rabbit.DELIVER, subscription_id=3, chunk=chunk(2)).goodbye()
    assert "warning" not in rules(one).values()
    assert [each.cause for each in diagnosed(capture(one))[0] if each.rule == NAME + "redelivered"] == [
        'the single active consumer "app" of "orders" became active again at 192.0.2.1:40000, and gets offset 2 again'
    ]


def test_a_frame_cut_off_before_the_login_states_no_size() -> None:
    one = Connection().open().client(rabbit.PEER_PROPERTIES, peer_properties=[]).server(rabbit.PEER_PROPERTIES_RESPONSE, peer_properties=[])
    one.ask(struct.pack(">IHHI", 52_078, 0x7777, 1, 2) + bytes(167)).fin(1)
    _, _, records = diagnosed(capture(one))
    assert [each.fields for each in records if isinstance(each, Message) and each.fault is not None] == [{}]
    assert rules(one)[NAME + "frame-cut-off"] == "error"


def test_a_frame_that_is_too_large_has_the_size_that_it_states() -> None:
    one = Connection().ready((65536, 60)).ask(struct.pack(">IHHBI", 20_000_000, 2, 1, 1, 1) + bytes(1000))
    one.server(rabbit.CLOSE, correlation_id=1, closing_code=14, closing_reason="frame too large").fin(1)
    found = [each.cause for each in worst_first(diagnosed(capture(one))[0]) if each.severity != "note"]
    assert found == [
        'the server closes with frame too large: "frame too large"; the agreed maximum is 65,536 bytes, and the frame that exceeds it was '
        "not complete by then",
        "the server closes the connection in the middle of Publish from the client: 1,013 of 20,000,004 bytes sent",
        "Publish from the client has 20,000,000 bytes, more than the agreed 65,536",
    ]
