"""Apache Iggy: what 0.9.0 and later releases added. Frames are written from the facts, not with the tables."""

from __future__ import annotations

from struct import pack

import pytest

from streamdump.protocols.iggy.info import info
from streamdump.protocols.iggy.layout_versions import CLASSIC, LONG
from tests.protocols.test_iggy import NOTHING_POLLED, ONE, POLL_L8, iggy, long_reply, long_request, request, talk

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
    assert info(polled).endswith("wait 250000 us")
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
