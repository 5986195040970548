"""Two recordings of one behaviour are equal, and one change gives one difference that names it: in every family, on real bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from streamdump.errors import CaptureError
from streamdump.golden import normalise
from streamdump.golden.compare import Difference, differences
from streamdump.golden.normalise import COMPARE_RULES
from streamdump.golden.settings import CheckSettings
from streamdump.golden.text import parsed, written
from streamdump.protocols.rabbitmq import layouts
from tests.bench.hostile import SENT, USUAL, sending
from tests.diagnose.talks import MS, Connection, capture
from tests.golden.rebuild import GOLDEN, Frame, compared, disguised, frames, frames_of, rebuilt, said
from tests.support import captures
from tests.support.captures import capture_name, every_family

# The keys of TLS are in no packet, so they do not stay when packets are written anew
CAPTURES = [path for path in captures.CAPTURES if not path.name.startswith("tls_keys")]
RABBIT = "rabbitmq-stream"


@pytest.mark.sweep
@every_family(CAPTURES)
def test_other_endpoints_numbers_and_times_make_no_difference(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            try:
                first = said(io.BytesIO(path.read_bytes()))
            except CaptureError:
                continue
            text = written(first)
            golden = parsed(text, "golden")
            assert written(golden) == text
            assert [one.text for one in differences(golden, said(disguised(path)), CheckSettings())] == []


def test_servers_that_are_named_in_texts_of_any_conversation_are_called_by_their_role() -> None:
    for named, told in (("192.0.2.2:5552", ["<server 1>"] * 2), ("at 192.0.2.2:5553.", ['"at <server 2>."', '"at <server>."'])):
        both = [Connection(), Connection(5 * MS, sport=40001, dport=5553)]
        for one in both:
            one.open().client(layouts.PEER_PROPERTIES, peer_properties=[{"key": "via", "value": named}])
        lines = written(said(io.BytesIO(capture(*both)))).splitlines()
        assert [line.partition('["via"]=')[2] for line in lines if "via" in line] == told


def test_lines_of_equal_messages_share_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = sending(SENT["compressed streams of seastar"], 20_000, USUAL[0]).file
    recorded = [flood, *(path.read_bytes() for path in {path.parent: path for path in CAPTURES}.values())]
    shared = [said(io.BytesIO(one)) for one in recorded]
    lines = [line for one in shared[0].conversations for line in one.lines]
    assert len({id(line.fields) for line in lines}) < 20 < len(lines) // 100
    monkeypatch.setattr(normalise, "SHARED_BYTES", -1)
    alone = [said(io.BytesIO(one)) for one in recorded]
    assert len({id(line.fields) for one in alone[0].conversations for line in one.lines}) == len(lines)
    assert [*map(written, shared)] == [*map(written, alone)]


def test_a_scenario_recorded_twice_with_a_real_broker_is_equal() -> None:
    """A publisher that waits now and then, a consumer, an offset stored: other frames, other chunks, other connections first."""
    paths = [GOLDEN / RABBIT / f"rstream_twice_{number}_310.pcap" for number in (1, 2)]
    one, two = (path.read_bytes() for path in paths)
    divided = [[len(frame.data) for frame in frames(path) if frame.name in ("Publish", "Deliver")] for path in paths]
    assert divided[0] != divided[1]
    assert compared(one, two) == []
    assert compared(two, one) == []


class Case(NamedTuple):
    """A capture of a family, and what is done to it."""

    family: str
    capture: str
    port: int
    field: tuple[str, str, Callable[[bytes], bytes], str]
    """Name and kind of the first message that is changed, how, and what the difference says."""
    refused: tuple[str, str, Callable[[bytes], bytes], str]
    gone: str
    """Name of the request that, with its response, is left out, sent once more, or swapped with the one behind it."""


def _put(at: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + new + data[at + len(new) :]


def _replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)

    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return change


def _exception(data: bytes) -> bytes:
    """A response with handler duration as an exception of the user's."""
    ident = int.from_bytes(data[:8], "little", signed=True)
    body = (0).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"boom"
    return (-ident).to_bytes(8, "little", signed=True) + len(body).to_bytes(4, "little") + data[12:16] + body


CASES = {
    "rabbitmq-stream": Case(
        RABBIT,
        "create_delete_310",
        5552,
        ("Open", "request", lambda data: b"\0\0\0\x0d" + data[4:12] + b"\0\x03dev", 'Open request: virtual_host is "dev", golden "/"'),
        ("Delete", "response", _put(12, b"\0\x02"), "Delete answered `stream does not exist`, golden `OK`"),
        "Create",
    ),
    "rabbitmq-stream-draft": Case(
        RABBIT,
        "draft_exchange",
        5552,
        ("Create", "request", _replace(b"stream-1", b"stream-9"), 'Create request: stream is "stream-9", golden "stream-1"'),
        ("Open", "response", _put(12, b"\0\x0b"), "Open answered `virtual host access failure`, golden `OK`"),
        "Create",
    ),
    "iggy": Case(
        "iggy",
        "py080-basic",
        8090,
        ("create_topic", "request", lambda data: data[:-1] + bytes((data[-1] ^ 1,)), "create_topic request: name is "),
        (
            "create_topic",
            "response",
            lambda data: (2013).to_bytes(4, "little") + bytes(4),
            "create_topic answered `topic_name_already_exists`, golden `ok`",
        ),
        "get_topic",
    ),
    "iggy of the 256-byte framing": Case(
        "iggy",
        "py090d5-basic",
        8090,
        ("get_stream", "request", lambda data: data[:-1] + b"!", "get_stream request: stream_id.value is "),
        (
            "create_topic",
            "response",
            lambda data: data[:48] + (256).to_bytes(4, "little") + data[52:216] + (2013).to_bytes(4, "little") + data[220:256],
            "create_topic answered `topic_name_already_exists`, golden `ok`",
        ),
        "get_stream",
    ),
    "seastar-rpc": Case(
        "seastar-rpc",
        "basic",
        19000,
        ("Request", "request", lambda data: data[:-1] + bytes((data[-1] ^ 1,)), "Request request: payload is "),
        ("Response", "response", _exception, "Request refused by Exception, golden answered by Response"),
        "Request",
    ),
    "mewbase": Case(
        "mewbase",
        "java-publish",
        7451,
        ("PUB", "request", _replace(b"milk", b"silk"), 'PUB request: frame.event.sku is "silk", golden "milk"'),
        ("RESPONSE", "response", _replace(b"\x08ok\0\x01", b"\x08ok\0\0"), "PUB refused, golden answered"),
        "PUB",
    ),
}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def _frames(case: Case) -> list[Frame]:
    return frames_of(rebuilt(frames(GOLDEN / case.family / f"{case.capture}.pcap"), 1, case.port))


def _differences(case: Case, changed: list[Frame]) -> list[Difference]:
    return compared(rebuilt(_frames(case), 2, case.port), rebuilt(changed, 3, case.port))


def _only(found: list[Difference]) -> str:
    assert [one.text for one in found][1:] == []
    assert found[0].context
    return found[0].text


def _first(found: list[Frame], name: str, kind: str, after: int = 0) -> int:
    """The index of the first message of this name, behind the handshake where it has a request that is not of it."""
    names = {frame.number: frame.name for frame in found}
    for index, frame in enumerate(found):
        if frame.name == name and frame.kind == kind and index >= after:
            asked = names.get(frame.request or 0)
            if kind != "response" or asked not in ("CONNECT", "Negotiation", "LISTBINDERS"):
                return index
    raise AssertionError(f"no {name} {kind}")


def test_the_same_frames_in_other_segments_are_equal(case: Case) -> None:
    assert _differences(case, _frames(case)) == []


def test_one_field_changed(case: Case) -> None:
    found = _frames(case)
    name, kind, change, expected = case.field
    index = _first(found, name, kind)
    found[index] = found[index]._replace(data=change(found[index].data))
    text = _only(_differences(case, found))
    assert text.startswith(f"conversation client1: {expected}")
    assert text.endswith(")")
    assert "(packet " in text


def test_one_answer_refused(case: Case) -> None:
    found = _frames(case)
    name, kind, change, expected = case.refused
    index = _first(found, name, kind)
    while change(found[index].data) == found[index].data:
        index = _first(found, name, kind, index + 1)
    found[index] = found[index]._replace(data=change(found[index].data))
    assert _only(_differences(case, found)).startswith(f"conversation client1: {expected} (packet ")


def _pair(found: list[Frame], name: str, after: int = 0) -> list[int]:
    """A request and its response, by their indexes."""
    asked = _first(found, name, "request", after)
    answers = [index for index, frame in enumerate(found) if frame.request == found[asked].number]
    return [asked, *answers]


def test_a_message_missing(case: Case) -> None:
    found = _frames(case)
    gone = set(_pair(found, case.gone))
    left = [frame for index, frame in enumerate(found) if index not in gone]
    assert _only(_differences(case, left)) == f"conversation client1: {case.gone} request is missing"


def test_a_message_more(case: Case) -> None:
    found = _frames(case)
    pair = _pair(found, case.gone)
    gone = [frame for index, frame in enumerate(found) if index not in pair]
    text = _only(compared(rebuilt(gone, 2, case.port), rebuilt(found, 3, case.port)))
    assert text.startswith(f"conversation client1: {case.gone} request is not in the golden file (packet ")


def test_two_messages_swapped(case: Case) -> None:
    found = _frames(case)
    first = _pair(found, case.gone)
    second = next(
        _pair(found, frame.name, index)
        for index, frame in enumerate(found)
        if index > max(first) and frame.kind == "request" and frame.side == 0 and frame.data != found[first[0]].data
    )
    assert len(first) == len(second) == 2
    order = [*range(first[0]), *second, *first]
    order += [index for index in range(len(found)) if index not in order]
    swapped = [found[index] for index in order]
    text = _only(_differences(case, swapped))
    assert "request comes " in text
    assert ", golden " in text


def test_two_neighbours_swapped_where_that_is_noted(case: Case) -> None:
    """In the handshake a message notes that it comes too early: that is part of the one difference."""
    found = _frames(case)
    compare_rules = COMPARE_RULES[case.family]
    # without its Negotiation in front nobody knows what it is
    free = {*compare_rules.flows, *compare_rules.heartbeats, "Negotiation"}
    asked = [frame for frame in found if frame.kind == "request" and frame.side == 0 and frame.conversation == found[0].conversation]
    pairs = [[index for index, frame in enumerate(found) if one.number in (frame.number, frame.request)] for one in asked[:8]]
    swaps = 0
    for first, second in pairwise(pairs):
        names = {found[first[0]].name, found[second[0]].name}
        if len(first) != 2 or len(second) != 2 or first[1] > second[0] or names & free or found[first[0]].data == found[second[0]].data:
            continue
        order = [*range(first[0]), *second, *first]
        order += [index for index in range(len(found)) if index not in order]
        (difference,) = _differences(case, [found[index] for index in order])
        assert difference.kind == "moved"
        assert difference.message in names
        swaps += 1
    assert swaps


@pytest.mark.parametrize("name", ["rabbitmq-stream", "seastar-rpc", "mewbase"])
def test_a_response_missing_where_ids_tell_whose_it_is(name: str) -> None:
    case = CASES[name]
    found = _frames(case)
    asked, answer = _pair(found, case.gone)
    text = _only(_differences(case, [frame for index, frame in enumerate(found) if index != answer]))
    assert text.startswith(f"conversation client1: {case.gone} unanswered, golden answered")
    text = _only(_differences(case, [frame for index, frame in enumerate(found) if index != asked]))
    assert text == f"conversation client1: {case.gone} request is missing"


def test_a_conversation_missing_and_one_more() -> None:
    found = frames(GOLDEN / "seastar-rpc" / "five_connections.pcap")
    one = rebuilt(found, 1, 19000)
    other = rebuilt([frame for frame in found if frame.conversation != 2], 2, 19000)
    assert _only(compared(one, other)).startswith("conversation client3: is missing (seastar-rpc, ")
    assert _only(compared(other, one)).startswith("conversation client3 of the capture: is not in the golden file (seastar-rpc, ")


def test_conversations_are_known_by_what_they_do() -> None:
    found = frames(GOLDEN / "seastar-rpc" / "five_connections.pcap")
    turned = [frame._replace(conversation=4 - frame.conversation) for frame in found]
    order = sorted(range(len(found)), key=lambda index: (turned[index].conversation, index))
    assert compared(rebuilt(found, 1, 19000), rebuilt([turned[index] for index in order], 2, 19000)) == []


def test_an_entry_of_a_chunk_changed_and_missing() -> None:
    """Whatever the chunk it comes in."""
    found = frames(GOLDEN / RABBIT / "rstream_twice_1_310.pcap")
    index = next(index for index, frame in enumerate(found) if frame.name == "Publish" and b"order 17" in frame.data)
    changed = list(found)
    changed[index] = found[index]._replace(data=found[index].data.replace(b"order 17", b"ordre 17"))
    text = _only(compared(rebuilt(found, 1), rebuilt(changed, 2)))
    assert text.startswith("conversation client3: Publish publisher 0: item 17 sections[0].value is ")
    assert 'b"ordre 17", golden b"order 17"' in text


def test_pipelined_replies_in_another_order() -> None:
    case = CASES["seastar-rpc"]._replace(capture="out_of_order")
    found = frames(GOLDEN / "seastar-rpc" / "out_of_order.pcap")
    answers = [index for index, frame in enumerate(found) if frame.name == "Response"]
    swapped = list(found)
    one, two = answers[3], answers[7]
    swapped[one], swapped[two] = found[two], found[one]
    told = compared(rebuilt(found, 1, case.port), rebuilt(swapped, 2, case.port))
    assert {difference.kind for difference in told} == {"moved"}
    assert compared(rebuilt(found, 1, case.port), rebuilt(swapped, 2, case.port), CheckSettings(unordered=True)) == []
