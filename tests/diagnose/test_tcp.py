"""What TCP shows of the network between client and server: RSTs of others, data sent again or too late, frames with wrong lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdump.protocols.rabbitmq import layouts as rabbit
from tests.diagnose.talks import Connection, capture, diagnosed
from tests.support.frames import ACK, RST

REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"


def told(source: bytes | Path) -> dict[str, tuple[str, str]]:
    """By rule severity and cause."""
    return {one.rule: (one.severity, one.cause) for one in diagnosed(source)[0]}


def test_rst_of_a_middlebox_behind_silence() -> None:
    findings, outcomes, _ = diagnosed(REPORTS / "idle_rst_middlebox.pcap")
    assert [(one.rule, one.severity, one.cause, one.packets) for one in findings] == [
        (
            "tcp.reset-injected",
            "warning",
            "the RST that ends the connection 5.83 min after the answer to Publish did not come from the server: the TTL is 255, that of "
            "the server's other packets 64",
            [30, 32],
        )
    ]
    assert outcomes[0].ended == "a device between the two resets"


def test_burst_of_rsts() -> None:
    source = REPORTS / "ips_rst_burst_kills.pcap"
    cause = "the RST that ends the connection 400 us after the answer to Publish did not come from the server: the TTL is 120, that of the "
    assert told(source) == {"tcp.reset-injected": ("warning", f"{cause}server's other packets 64")}


def test_rst_of_the_client_that_is_not_its_own() -> None:
    one = Connection().ready().segment(0, flags=RST | ACK, ttl=63)
    cause = (
        "the RST that ends the connection 1 ms after the answer to Open did not come from the client: the TTL is 63, that of the client's "
    )
    assert told(capture(one)) == {"tcp.reset-injected": ("warning", f"{cause}other packets 64")}


def test_rst_with_one_of_several_ttls() -> None:
    """As where each packet was captured before and behind a router."""
    one = Connection().ready().segment(1, ttl=63).segment(1, flags=RST | ACK, ttl=63)
    assert "tcp.reset-injected" not in told(capture(one))


def test_rst_of_another_that_leaves_a_request_open() -> None:
    one = Connection().ready().client(rabbit.CREATE, stream="s", arguments=[]).segment(1, flags=RST | ACK, ttl=255)
    assert told(capture(one))["rabbitmq-stream.open-requests"] == (
        "error",
        "a device between the two resets the connection 1 ms after Create of the client, while Create has no answer",
    )


def test_rst_outside_of_the_window() -> None:
    findings, outcomes, records = diagnosed(REPORTS / "rst_out_of_window.pcap")
    cause = "a RST with the address of the server had no effect: the client does not expect its sequence number"
    assert [(one.rule, one.severity, one.cause, one.packets) for one in findings] == [("tcp.reset-ignored", "note", cause, [32])]
    assert outcomes[0].ended == "Close by client"
    assert not [one for one in records if type(one).__name__ == "Gap"]


@pytest.mark.parametrize("ahead", [200_000, -200_000])
def test_rsts_outside_of_the_window_with_another_ttl(ahead: int) -> None:
    one = Connection().ready()
    for _ in range(2):
        one.segment(1, flags=RST, ahead=ahead, ttl=254)
    cause = "2 RSTs with the address of the server had no effect: the client does not expect their sequence numbers, and they did not come "
    behind = "from the server: the TTL is 254, that of the server's other packets 64"
    assert told(capture(one.goodbye())) == {"tcp.reset-ignored": ("warning", cause + behind)}


def test_length_of_ip_that_is_damaged() -> None:
    findings, outcomes, _records = diagnosed(REPORTS / "ip_length_damaged.pcap")
    assert [one.rule for one in findings] == ["tcp.retransmitted"]
    assert outcomes[0].ended == "Close by client"
    assert outcomes[0].messages == 20
