"""What `diagnose` concludes from captures of reported failures: every error and warning, the first as `diagnose` shows it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.talks import diagnosed, worst_first

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"

FOUND: dict[str, list[str]] = {
    "false_frame_too_large.pcap": [
        "warning tcp.lost-by-capture: 165 bytes reached the receiver but are not in the capture: the capture lost packets, not the network",
    ],
    "i01b_847_eof_in_frame.pcap": [
        "error iggy.frame-cut-off: the server closes the connection in the middle of send_messages from the client: 60,000 of "
        "20,000,008 bytes sent",
    ],
    "iggy_not_member.pcap": [
        'error iggy.not-a-member: poll_messages for stream "grp", topic "work", consumer group "workers" is refused: consumer '
        "group member not found after 40 s of silence, so the client cannot consume from it",
    ],
    "iggy_partition_not_named.pcap": [
        'error iggy.no-partition: send_messages for stream "grp", topic "work", partition 0 is refused: partition not found, so'
        " the client cannot publish to it",
    ],
    "js_client_needs_newer_broker.pcap": [
        'error rabbitmq-stream.closed-with-code: the server closes with unknown frame: "unknown frame" after '
        "ExchangeCommandVersions from the client; RabbitMQ 3.10.8 does not know ExchangeCommandVersions (key 0x001b, version 1), "
        "which came with RabbitMQ 3.11",
    ],
    "lb_never_leader.pcap": [
        "warning rabbitmq-stream.never-at-the-leader: 10.0.0.1 opened 20 connections to 10.0.0.100:5552 and used none: they led"
        ' to rabbit-1:5552 (10), rabbit-2:5552 (10), never to rabbit-0:5552, the leader of "orders"',
    ],
    "r02_go312_starting.pcap": [
        "error tcp.accepted-only: 10.0.0.2:5552 accepts the connection and sends nothing in the 10 s after PeerProperties "
        "from the client, until the client closes it",
        "error tcp.refused: 10.0.0.2:5552 refuses the connection: it answers the SYN with RST",
    ],
    "r02b_proxy_rst.pcap": [
        "error rabbitmq-stream.retry-loop: 10.0.0.1 retries repeatedly: 3 connections to 10.0.0.2:5552, one every 3 s, "
        "each with the same error: 10.0.0.2:5552 accepts the connection and resets it 1.4 ms after PeerProperties from the client, "
        "without sending a byte",
        "error tcp.accepted-only: 10.0.0.2:5552 accepts the connection and resets it 1.4 ms after PeerProperties from the client,"
        " without sending a byte",
    ],
    "sac_stale_offset.pcap": [
        'warning rabbitmq-stream.redelivered: the single active consumer "app" of "s1" changed from 10.0.0.1:40000 to '
        "10.0.0.3:40000, which gets offsets 1 to 6 again, although offset 6 had been stored",
    ],
    "seastar-27-exceptions.pcap": [
        'warning seastar-rpc.exception: Request is refused: verb 21 throws "std::runtime_error (request 6001 does not fit)"; 27'
        " times on this connection, with different numbers",
    ],
    "seastar_reset_after_first_call.pcap": [
        "error seastar-rpc.retry-loop: 10.0.0.1 retries repeatedly: 6 connections to 10.0.0.2:7000, one every 1 s, "
        "each with the same error: the server resets the connection 2.4 ms after its first call (verb 0), without a reply",
        "error seastar-rpc.dropped-calls: the server resets the connection 2.4 ms after its first call (verb 0), without a reply",
    ],
    "slow_consumer_understated.pcap": [
        'warning rabbitmq-stream.out-of-credit: subscription 0 ("slow2") was without credit 9 times, for 13.51 s in total and '
        "1.503 s at most; the server delivers within 1.566 ms of each Credit, so the consumer is slow",
    ],
    "stream_deleted_consumer_idle.pcap": [
        'error rabbitmq-stream.stream-deleted: 127.0.0.1:39626 deleted the stream "doomed2" while 127.0.0.1:39618 consumed from'
        " it; that client did not subscribe again in the 26.61 s until the capture ends",
    ],
    "t2_consumer_update_unanswered.pcap": [
        "warning rabbitmq-stream.server-request-unanswered: the client has not answered ConsumerUpdate for 2 min when the "
        "capture ends: the server delivers nothing before",
    ],
}
"""By capture "severity rule: cause"."""


@pytest.mark.parametrize("name", FOUND)
def test_the_cause_of_a_reported_failure(name: str) -> None:
    found = worst_first(diagnosed(REPORTS / name)[0])
    assert [*dict.fromkeys(f"{one.severity} {one.rule}: {one.cause}" for one in found if one.severity != "note")] == FOUND[name]


def test_a_handshake_among_lost_bytes_has_no_limits_and_is_over() -> None:
    found, rows, _ = diagnosed(REPORTS / "false_frame_too_large.pcap")
    assert [(one.reached, one.ended) for one in rows] == [("ready", "server closes")]
    assert not [one.cause for one in found if "Tune" in one.cause]


ADVICE = {
    "i01b_847_eof_in_frame.pcap": "Send smaller batches, or raise the limit on the size of a request at the server",
    "iggy_not_member.pcap": "Have the client join the consumer group before it polls, and again after each reconnect",
    "js_client_needs_newer_broker.pcap": "Use RabbitMQ 3.11 or newer, or an older release of the client.",
    "r02_go312_starting.pcap": "Check that the server has started and is not stuck",
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_fits_the_cause(name: str) -> None:
    assert worst_first(diagnosed(REPORTS / name)[0])[0].advice.startswith(ADVICE[name])


def test_a_message_of_which_the_end_is_missing_states_nothing_that_was_not_captured() -> None:
    found = [one.cause for one in diagnosed(REPORTS / "metadata_update_cut.pcap")[0]]
    assert found == [
        "the server reports that a stream changed (code unknown): publishers and subscriptions of it have ended",
        "MetadataUpdate from the server is only partly captured: 9 of 25 bytes captured",
    ]
