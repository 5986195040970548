"""Frames that the snap length cuts: no sentence states a value that was not captured."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdump.model import Exchange, Message
from tests.diagnose.talks import by_rule, diagnosed, found
from tests.support import rewrite
from tests.support.frames import Packet, pcap

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
LARGEST = 12_000
"""Larger captures take longer than they add messages of other kinds."""

CUTS = 12
"""So many fields of one message, from its beginning and its end."""

NOT_CAPTURED = re.compile(r"\bNone\b")
MISSPELT = re.compile(
    r"\bNone\b|(?<![\d.,])0 s\b"
    r"|(?<![\d,.])1 (bytes|calls|chunks|connections|conversations|frames|messages|packets|polls|requests|segments|times)\b"
    r"|\b(a|after|at|ends|for|has|in|is|it|of|that|the|to|when) \2\b| ,|,,|  "
)
"""Where a sentence has no value, one that is nothing, a wrong plural, or a word twice."""


def cut_captures(family: str) -> Iterator[tuple[str, bytes]]:
    """Captures in which one message of each kind is cut behind one of its fields."""
    seen = set()
    paths = [path for path in (GOLDEN / family).iterdir() if path.name.endswith((".pcap", ".pcapng")) and path.stat().st_size < LARGEST]
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        packets = rewrite.packets(path)
        messages = [one for one in diagnosed(path, detail=True)[2] if isinstance(one, Message) and one.fault is None]
        last = {(one.src, one.packets[1]): one for one in messages}
        for one in messages:
            kind = (one.protocol, one.name, one.kind, one.outcome, tuple(one.fields))
            if kind in seen or last[one.src, one.packets[1]] is not one or one.packets[0] != one.packets[1] or not one.spans:
                continue
            seen.add(kind)
            ends = sorted(
                {span.offset + span.length for span in one.spans if span.leaf and span.length is not None and span.buffer == "frame"}
            )
            at = one.packets[1] - 1
            for end in dict.fromkeys((*ends[: CUTS // 2], *ends[-CUTS // 2 : -1])):
                raw = packets[at].raw[: len(packets[at].raw) - one.size + end]
                rows = [Packet(raw if number == at else each.raw, each.time_ns, each.wire) for number, each in enumerate(packets)]
                yield f"{path.name}: {one.name} cut at {end}", pcap(rows, packets[0].link, nano=True)


@pytest.mark.sweep
@pytest.mark.parametrize("family", ["rabbitmq-stream", "iggy", "seastar-rpc", "mewbase"])
def test_what_was_not_captured_is_in_no_sentence(family: str) -> None:
    bad = {}
    for what, data in cut_captures(family):
        for one in diagnosed(data)[0]:
            if NOT_CAPTURED.search(f"{one.cause} {one.advice}"):
                bad[one.rule, one.cause] = what
    assert bad == {}


@pytest.mark.parametrize(
    ("name", "taken", "rule"),
    [
        ("iggy/ws-py080-basic.pcap", slice(8), "tcp.other-protocol"),
        ("rabbitmq-stream/websocket.pcap", slice(8), "tcp.other-protocol"),
        ("rabbitmq-stream/tls_405.pcap", slice(5, None), "tls.incomplete"),
        ("rabbitmq-stream/js_subentries_436.pcap", slice(91, None), "rabbitmq-stream.gave-up"),
    ],
)
def test_what_goes_well_goes_well_where_the_capture_has_a_part_of_it(name: str, taken: slice, rule: str) -> None:
    assert rule not in found(rewrite.capture(rewrite.packets(GOLDEN / name)[taken]).getvalue())


def test_the_answer_lost_before_the_first_byte_of_a_side_is_not_missing() -> None:
    chance = random.Random(1)
    packets = [one for one in rewrite.packets(GOLDEN / "rabbitmq-stream" / "midstream_310.pcap") if chance.random() > 0.1]
    findings, _, records = diagnosed(rewrite.capture(packets).getvalue())
    assert by_rule(findings) == {"rabbitmq-stream.refused": "note", "tcp.lost-by-capture": "warning", "tcp.mid-stream": "note"}
    # Those of the other connection were lost after its first bytes; before the first ones the capture may have begun after them
    assert [one.conversation for one in findings if one.rule == "tcp.lost-by-capture"] == [0]
    assert {one.name: one.reason for one in records if isinstance(one, Exchange)} == {"Metadata": "bytes lost", "Delete": "bytes lost"}


@pytest.mark.parametrize("at", range(15, 36, 2))
def test_no_answer_is_that_of_an_earlier_request_whose_own_was_lost(at: int) -> None:
    packets = rewrite.packets(GOLDEN / "iggy" / "py080-basic.pcap")
    answered = [
        {one.time_ns: messages[one.request].time_ns for one in messages.values() if one.request is not None}
        for messages in (
            {one.number: one for one in diagnosed(rewrite.capture(some).getvalue())[2] if isinstance(one, Message)}
            for some in (packets, packets[at : at + 1] + packets[at + 2 :])
        )
    ]
    assert answered[1]
    assert answered[1].items() <= answered[0].items()


def test_requests_behind_a_loss_have_their_answers() -> None:
    chance = random.Random(3)
    packets = [one for one in rewrite.packets(GOLDEN / "iggy" / "py091d2-admin.pcap") if chance.random() > 0.1]
    assert "iggy.open-requests" not in found(rewrite.capture(packets).getvalue())


def test_the_beginning_of_a_header_before_lost_bytes_is_no_other_data() -> None:
    packets = rewrite.packets(GOLDEN / "rabbitmq-stream" / "tiny_segments_405.pcap")
    assert "rabbitmq-stream.skipped" not in found(rewrite.capture(packets[:58] + packets[60:]).getvalue())


@pytest.mark.parametrize("family", ["rabbitmq-stream", "iggy", "seastar-rpc", "mewbase"])
def test_sentences_read_well_wherever_the_capture_ends(family: str) -> None:
    bad = {}
    for path in sorted((GOLDEN / family).glob("*.pcap")):
        packets = rewrite.packets(path) if path.stat().st_size < LARGEST else []
        for some in filter(None, (packets, packets[: len(packets) // 2], packets[len(packets) // 3 :])):
            for one in diagnosed(rewrite.capture(some).getvalue())[0]:
                if MISSPELT.search(f"{one.cause}. {one.advice}"):
                    bad[one.rule, one.cause] = path.name
    assert bad == {}
