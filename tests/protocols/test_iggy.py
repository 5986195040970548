"""Apache Iggy: layouts told by the bytes of a conversation, pairing by order, secrets, damage. Bytes are written as in the facts."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from struct import pack
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import END, ConversationRow, Gap, Message, Options, Record, SideData, StreamGap, Verdict
from streamdump.protocols.iggy import PROTOCOLS, frames, resync
from streamdump.protocols.iggy import candidates as choice
from streamdump.protocols.iggy import dissector as turns
from streamdump.protocols.iggy.candidates import PendingRequest
from streamdump.protocols.iggy.dissector import IggyDissector
from streamdump.protocols.iggy.frames import ask, long_ask
from streamdump.protocols.iggy.heuristic import heuristic
from streamdump.protocols.iggy.info import info, relate
from streamdump.protocols.iggy.layout_versions import CLASSIC, LAYOUTS, LONG
from streamdump.protocols.iggy.statuses import possible_names, statuses
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context, DetectionView, SideView
from streamdump.protocols.records import NONE, REQUEST, RESPONSE, Event, Frame
from tests.support.captures import capture_name, every_family
from tests.support.rewrite import Packet, capture, packets, random_ports, with_ports
from tests.support.segments import Segment, captured
from tests.support.work import steps

CLIENT, SERVER = 0, 1
GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "iggy"
CAPTURES = sorted(path for path in GOLDEN.iterdir() if path.suffix in (".pcap", ".pcapng"))

Sent = tuple[int, bytes | int]
"""A segment of a side, or so many lost bytes of it."""


# Frames of the classic framing


def request(code: int, payload: bytes = b"") -> bytes:
    return pack("<II", 4 + len(payload), code) + payload


def response(payload: bytes = b"", status: int = 0) -> bytes:
    return pack("<II", status, len(payload)) + payload


def s8(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def s32(text: str) -> bytes:
    return pack("<I", len(text)) + text.encode()


PING = request(1)
OK = response()
ONE = bytes.fromhex("01 04 01000000")
LOGIN_L0 = request(38, s8("iggy") + s8("swordfish"))
LOGIN_L6 = request(38, s8("iggy") + s8("swordfish") + s32("0.9.0") + s32(""))
LOGGED_IN = response(pack("<I", 1))
POLL_L8 = request(100, b"\x01" + ONE + ONE + ONE + b"\x01" + pack("<I", 1) + b"\x05" + pack("<QI", 0, 10) + b"\x00")
NOTHING_POLLED = response(pack("<IQI", 1, 0, 0))
DELETE = request(203, ONE)


def sent_l9(payload: bytes) -> bytes:
    return bytes(24) + bytes(24) + pack("<IIQ", 0, len(payload), 0) + payload


def polled_l9(payload: bytes, checksum: int | None = None, offset: int = 7) -> bytes:
    rest = pack("<16sQQQIIQ", bytes(16), offset, 1_700_000_000_000_000, 1_700_000_000_000_000, 0, len(payload), 0) + payload
    return pack("<Q", xxh3_64_intdigest(rest) if checksum is None else checksum) + rest


# Frames of the 256-byte framing, of V2 and later


def long_request(operation: int, code: int = 0, body: bytes = b"", number: int = 1, client: bytes = b"c" * 16) -> bytes:
    head = bytearray(256)
    head[48:52] = pack("<I", 256 + len(body))
    head[60] = 5
    head[128:144] = client
    head[168:176] = pack("<Q", number)
    head[176] = operation
    head[196:200] = pack("<I", code)
    return bytes(head) + body


def long_reply(operation: int, body: bytes = b"", number: int = 1, status: int = 0, client: bytes = b"c" * 16) -> bytes:
    head = bytearray(256)
    head[48:52] = pack("<I", 256 + len(body))
    head[60] = 8
    head[160:176] = client
    head[200:208] = pack("<Q", number)
    head[208] = operation
    head[216:220] = pack("<I", status)
    return bytes(head) + body


def eviction(reason: int) -> bytes:
    head = bytearray(256)
    head[48:52] = pack("<I", 256)
    head[60] = 13
    head[128:144] = b"c" * 16
    head[255] = reason
    return bytes(head)


# Driving a dissector


def iggy(layout: str | None = None, candidates: tuple[str, ...] = CLASSIC, syn: bool = True, **options: Any) -> IggyDissector:
    verdict = Verdict("iggy", 1.0, (), None, 0, layout, () if layout else candidates)
    ends = ("192.0.2.1:40000", "192.0.2.2:8090")
    given = Options(**options)
    dissector = Parser(PROTOCOLS[0], given, Context(0, ends, (40_000, 8090), 0 if syn else None, syn, verdict, given)).dissector
    assert isinstance(dissector, IggyDissector)
    return dissector


def items_of(events: list[Sent]) -> list[SideData | StreamGap]:
    position = [0, 0]
    items: list[SideData | StreamGap] = []
    for order, (side, what) in enumerate(events):
        at = position[side]
        if isinstance(what, int):
            items.append(StreamGap(side, at, what, "lost", order, order + 1, 0, order * 1000))
            position[side] += what
        elif what:
            items.append(SideData(side, at, what, (order, order + 1, 0, order * 1000)))
            position[side] += len(what)
    return items


Certain = tuple[int, Event]
"""A record with the packet that made it certain."""


def emitted(dissector: IggyDissector, events: list[Sent]) -> list[Certain]:
    out: list[Certain] = []
    for item in items_of(events):
        out += [(item.order, one) for one in dissector.parser.process([item], item.order)]
    count = len(events)
    return out + [(END, one) for one in dissector.parser.close((count, count + 1, 0, count * 1000), END)]


def run(dissector: IggyDissector, *events: Sent) -> list[Record]:
    return [one.record for _, one in emitted(dissector, list(events))]


def messages(records: list[Record]) -> list[Message]:
    return [record for record in records if isinstance(record, Message)]


def talk(dissector: IggyDissector, *frames: bytes) -> list[Message]:
    """Requests and responses in turn."""
    return messages(run(dissector, *((index % 2, frame) for index, frame in enumerate(frames))))


# Captures


def rows_of(readme: Path) -> list[tuple[str, str, int, int, int]]:
    found = re.findall(r"\| `(\S+)` \| (\S+) \|[^\n]*?\| (\d+) \| (\d+) \| (\d+) \|", readme.read_text())
    return [(file, layout, int(asks), int(answers), int(commands)) for file, layout, asks, answers, commands in found]


README = rows_of(GOLDEN / "README.md")

MALFORMED = {("node050-all.pcap", "create_user"), ("node080-all.pcap", "create_user")}
MALFORMED |= {("ws-lossy.pcap", "poll_messages")}
MALFORMED |= {("py091d5-basic.pcap", name) for name in ("get_cluster_metadata", "create_stream", "get_stream")}


def read(file: str, **options: Any) -> tuple[list[Record], list[ConversationRow]]:
    inspector = Inspector([open_capture(GOLDEN / file)], Options(**options))
    return list(inspector.records()), inspector.rows()


def test_the_readme_names_every_capture() -> None:
    assert sorted(row[0] for row in README) == [path.name for path in CAPTURES if not path.name.startswith("replica-")]


def test_a_capture_says_what_its_readme_tells(subtests: pytest.Subtests) -> None:
    for file, layout, asks, answers, commands in README:
        with subtests.test(file):
            records, rows = read(file)
            said = messages(records)
            requests = [one for one in said if one.kind == "request"]
            paired = [one for one in said if one.kind == "response" and one.outcome is not None]
            if file == "seed-lossy.pcap":
                assert len(paired) >= answers
            else:
                assert len(paired) == answers
            assert (len(requests), len({one.name for one in requests})) == (asks, commands)
            for one in said:
                assert one.fault is None or (file, one.name) in MALFORMED
            for row in rows:
                if row.protocol is None:
                    assert file in ("node080-tls.pcap", "ws-refused.pcap") or not any(row.bytes)
                else:
                    assert layout in ((row.layout,) if row.layout else row.candidates)
                    assert row.client is not None
                    assert row.client.split(":")[-1] != "8090"


@every_family(CAPTURES)
def test_no_secret_of_a_capture_is_shown(paths: list[Path], subtests: pytest.Subtests) -> None:
    """Passwords and tokens as they stand in the frames of a run that reveals them."""
    for path in paths:
        with subtests.test(capture_name(path)):
            shown = read(path.name, show_secrets=True)[0]
            secrets: set[str] = set()
            for one in messages(shown):
                secrets |= {one.fields[key] for key in ("password", "current_password", "new_password", "token") if key in one.fields}
            hidden = msgspec.json.encode(read(path.name)[0]).decode()
            for secret in secrets - {"iggy"}:
                assert secret not in hidden
                assert secret.encode().hex() not in hidden
            assert '"password":"iggy"' not in hidden


def test_a_login_is_hidden_in_hex_dumps_too() -> None:
    dissector = iggy("L9", detail=True)
    (login,) = talk(dissector, LOGIN_L6)
    assert dissector.facts["client_version"] == "0.9.0"
    assert login.fields["password"] == "<redacted 9 bytes>"
    assert login.spans is not None
    assert [span.name for span in login.spans if span.secret] == ["password"]


def test_the_mismatch_of_framings_is_reported() -> None:
    records, rows = read("new-client-old-server.pcap")
    said = messages(records)
    text = "the client speaks the 256-byte framing, the server the classic one"
    assert rows[0].facts["mismatch"] == text
    answers = [one for one in said if one.kind == "response"]
    assert [one.fields["status_label"] for one in answers] == ["invalid_command"] * 6
    assert all(text in one.notes[0] and one.outcome is None and one.request is None for one in answers)


def test_facts_have_an_order() -> None:
    """The mismatch shows as soon as the frames are cut, what decides the layout when they are decoded."""
    dissector = iggy(candidates=LONG)
    emitted(dissector, [(CLIENT, long_request(2, 1)), (SERVER, response(status=3))])
    assert [*dissector.facts] == ["layout", "candidates", "framing", "mismatch", "deciding_frames"]


def test_evictions_answer_the_login() -> None:
    said = messages(read("py090d5-errors.pcap")[0])
    (evicted,) = [one for one in said if one.name == "eviction"]
    assert (evicted.outcome, info(evicted)) == ("refused", "evicted: bad credentials")
    assert next(one for one in said if one.number == evicted.request).name == "login_register"


def test_errors_carry_their_text() -> None:
    refused = [one for one in messages(read("v0220-failures.pcap")[0]) if one.outcome == "refused"]
    assert any("already exists" in one.fields.get("message", "") for one in refused)
    assert all(one.fields["status_label"] for one in refused)


def test_other_conversations_of_the_server_tell_what_they_settled() -> None:
    _, rows = read("v05-cli.pcap")
    assert {tuple(row.facts["server_layouts"]) for row in rows if row.layout is None and any(row.bytes)} == {("L7",)}
    mixed = [msgspec.structs.replace(rows[0], facts={}, layout=layout) for layout in ("L4", None, "L7")]
    relate(mixed)
    assert mixed[1].facts == {"server_layouts": ["L4", "L7"]}


def test_checksums_of_real_messages_agree() -> None:
    """Both sorts of CRC-32, XXH3-64 of messages, batches and requests."""
    for file in ("seed-all", "py040-basic", "py050-basic", "py060-basic", "py080-basic", "py090d5-basic", "py090d2-basic"):
        said = messages(read(f"{file}.pcap")[0])
        assert any(one.fields.get("messages") or one.fields.get("batches") for one in said)
        assert not [note for one in said for note in one.notes if "checksum" in note or "XXH3" in note]


# Layouts


@pytest.mark.parametrize(
    ("payload", "code", "layouts"),
    [
        (s8("iggy") + s8("secret"), 38, "L0 L1 L2 L3 L4 L5"),
        (s8("iggy") + s8("secret") + s32("0.7.0") + s32(""), 38, "L6 L7 L8 L9"),
        (s8("iggy") + s8("secret"), 32, "L0"),
        (b"", 33, "L0"),
        (pack("<I", 1) + s8("orders"), 202, "L0 L1 L2 L3 L4 L5 L6 L7"),
        (s8("orders"), 202, "L8 L9"),
        (ONE + pack("<III", 1, 3, 0) + s8("events"), 302, "L0 L1 L2 L3"),
        (ONE + pack("<III", 1, 3, 0) + pack("<QB", 0, 1) + s8("events"), 302, "L4"),
        (ONE + pack("<II", 1, 3) + pack("<BIQB", 1, 0, 0, 1) + s8("events"), 302, "L5"),
        (ONE + pack("<II", 1, 3) + pack("<BQQB", 1, 0, 0, 1) + s8("events"), 302, "L6 L7"),
        (ONE + pack("<I", 3) + pack("<BQQB", 1, 0, 0, 1) + s8("events"), 302, "L8 L9"),
        (b"\x01" + pack("<I", 1) + ONE + ONE + pack("<I", 1), 120, "L0 L1 L2"),
        (b"\x01" + ONE + ONE + ONE + pack("<I", 1), 120, "L3 L4 L5 L6 L7"),
        (b"\x01" + ONE + ONE + ONE + b"\x01" + pack("<I", 1), 120, "L8 L9"),
        (ONE + ONE + b"\x01\x00" + bytes(16) + pack("<I", 0) + s32("hello"), 101, "L0 L1 L2 L3 L4 L5 L6"),
        (ONE + ONE + pack("<I", 1), 602, "L0"),
        (ONE + ONE + pack("<I", 1) + s8("group"), 602, "L1 L2 L3 L4 L5 L6 L7"),
        (ONE + ONE + s8("group"), 602, "L8 L9"),
        (ONE + ONE + pack("<I", 1), 604, "L0 L1"),
        (ONE + ONE + ONE, 604, "L2 L3 L4 L5 L6 L7 L8 L9"),
        (s8("token") + pack("<I", 60), 42, "L3 L4 L5"),
        (s8("token") + pack("<Q", 60), 42, "L6 L7 L8 L9"),
        (b"", 1, "L0 L1 L2 L3 L4 L5 L6 L7 L8 L9"),
    ],
)
def test_a_request_keeps_the_layouts_it_decodes_in(payload: bytes, code: int, layouts: str) -> None:
    dissector = iggy()
    talk(dissector, request(code, payload))
    left = (dissector.facts["layout"],) if dissector.facts["layout"] else dissector.facts["candidates"]
    assert " ".join(left) == layouts


def test_batches_tell_the_layouts_of_messages() -> None:
    index = bytes(16)
    head = ONE + ONE + b"\x01\x00" + pack("<I", 1)
    for message, layout in ((bytes(48) + pack("<II", 0, 2) + b"hi", "L7 L8"), (sent_l9(b"hi"), "L9")):
        dissector = iggy()
        talk(dissector, request(101, pack("<I", len(head)) + head + index + message))
        left = (dissector.facts["layout"],) if dissector.facts["layout"] else dissector.facts["candidates"]
        assert " ".join(left) == layout


def test_an_answer_that_may_belong_to_another_request_tells_no_layout() -> None:
    """An empty answer says "not found" from L6 on; so are those to other commands of every layout."""
    found = iggy()
    talk(found, request(200, ONE), OK)
    assert found.facts["candidates"] == CLASSIC[6:]
    middle = iggy(syn=False)
    talk(middle, request(200, ONE), OK, PING, OK)
    assert middle.facts["candidates"] == CLASSIC
    lossy = iggy()
    created = response(pack("<IQIQQ", 1, 1_700_000_000_000_000, 0, 0, 0) + s8("orders"))
    records = run(lossy, (CLIENT, request(200, ONE) + request(202, s8("orders")) + request(200, ONE)), (SERVER, 12), (SERVER, created))
    assert any("unsure" in note for one in messages(records) for note in one.notes)
    assert lossy.facts["candidates"] == ("L8", "L9")


def test_what_all_layouts_read_alike_is_released_at_once() -> None:
    out = emitted(iggy(), [(CLIENT, PING), (SERVER, OK), (CLIENT, LOGIN_L6), (SERVER, LOGGED_IN)])
    assert [certain for certain, _ in out] == [0, 1, 2, 3]


GROUPS = request(20)
MEMBER = response(pack("<IIB", 1, 1, 1) + s32("127.0.0.1:1") + pack("<IIII", 1, 5, 6, 7))


def test_what_they_read_differently_waits_for_the_layout() -> None:
    """The order of the ids in a client's groups was turned round in L1."""
    settle = request(602, ONE + ONE + pack("<I", 1))
    events: list[Sent] = [(CLIENT, GROUPS), (SERVER, MEMBER), (CLIENT, PING), (SERVER, OK), (CLIENT, settle), (SERVER, OK)]
    out = emitted(iggy(), events)
    assert [(certain, one.record.packets[1]) for certain, one in out] == [(0, 1), (2, 3), (3, 4), (4, 2), (4, 5), (5, 6)]
    waited = out[3][1].record
    assert waited.fields["groups"] == [{"group_id": 5, "topic_id": 6, "stream_id": 7}]
    assert waited.notes == []
    # the request was out before, so the answer finds it
    assert [(out[at][1].role, out[at][1].key) for at in (0, 3)] == [(REQUEST, 1), (RESPONSE, 1)]


def test_what_tells_something_is_never_passed_over() -> None:
    dissector = iggy()
    talk(dissector, *[PING, OK] * 2, LOGIN_L6, LOGGED_IN, *[PING, OK] * 2)
    assert dissector.facts["candidates"] == CLASSIC[6:]


def answer_of(data: bytes) -> Frame:
    return Frame(SERVER, 0, data, 0, len(data), None, 0, 0, 1, 1, 0, 0, 0)


def test_an_error_is_not_taken_for_an_answer_of_which_nothing_is_known() -> None:
    layouts = iggy().layouts
    layouts.speaks(0, False)
    layouts.speaks(1, False)
    (unknown,) = layouts.tables(answer_of(OK), PendingRequest(0, None))
    assert unknown.name == "unknown"
    refused = response(status=1011)
    assert {table.name for table in layouts.tables(answer_of(refused), PendingRequest(0, 1))} == {"error"}


@pytest.mark.parametrize("forced", [None, "L9"])
def test_a_server_states_its_version_whether_the_layout_is_settled_or_not(forced: str | None) -> None:
    dissector = iggy(forced)
    talk(dissector, request(10), response(stats("0.8.0")))
    assert dissector.facts["server_version"] == "0.8.0"


def test_a_layout_that_stays_open_is_assumed_at_the_end() -> None:
    dissector = iggy()
    said = talk(dissector, GROUPS, MEMBER)
    assert said[1].fields["groups"] == [{"stream_id": 5, "topic_id": 6, "group_id": 7}]
    assert said[1].notes == [f"layout undecided ({', '.join(CLASSIC)}): read as L9"]
    assert dissector.facts["candidates"] == CLASSIC


def test_what_waited_until_the_end_is_handed_on_once() -> None:
    dissector = iggy()
    first = [one for item in items_of([(CLIENT, GROUPS), (SERVER, MEMBER)]) for one in dissector.parser.process([item], item.order)]
    last = dissector.parser.close((2, 3, 0, 2000), END)
    assert [(one.record.name, one.record.kind) for one in first + last] == [("get_me", "request"), ("get_me", "response")]


def test_a_stated_version_says_what_to_assume() -> None:
    dissector = iggy(candidates=("L0", "L1", "L6"))
    said = talk(dissector, request(10), response(stats("0.4.300")), GROUPS, MEMBER)
    assert dissector.facts["server_version"] == "0.4.300"
    assert said[3].fields["groups"][0]["stream_id"] == 5


def stats(version: str) -> bytes:
    body = (
        pack("<Iff", 1, 0.5, 0.5) + pack("<8Q", *range(8)) + pack("<4IQII", *range(7)) + s32("host") + s32("Linux") + s32("12") + s32("6")
    )
    return body + s32(version) + pack("<I", 4300)


def test_waiting_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "HELD_FRAMES", 3)
    events: list[Sent] = []
    for _ in range(5):
        events += [(CLIENT, GROUPS), (SERVER, MEMBER)]
    dissector = iggy()
    out = emitted(dissector, events)
    # the fourth answer is one too many
    assert [certain for certain, _ in out] == [0, 2, 4, 6, 7, 7, 7, 7, 8, 9]
    assert sum(bool(one.record.notes) for _, one in out) == 5
    assert "undecided" in dissector.facts


def test_a_wrong_layout_often_shows_control_characters() -> None:
    """Eight bytes of text for L8, an id and a name for the layouts before."""
    dissector = iggy()
    talk(dissector, request(202, pack("<I", 7) + s8("abc")))
    assert dissector.facts["candidates"] == CLASSIC[:8]


def test_bytes_left_over_decide_nothing() -> None:
    dissector = iggy()
    (deleted,) = talk(dissector, request(303, ONE + ONE + b"\0\0\0\0"))
    assert deleted.fields["trailing"] == "00000000"
    assert deleted.notes == ["4 bytes left over"]
    assert dissector.facts["candidates"] == CLASSIC


def test_a_layout_can_be_forced() -> None:
    dissector = iggy("L9")
    said = talk(dissector, GROUPS, MEMBER)
    assert said[1].fields["groups"][0]["stream_id"] == 5
    assert not said[1].notes
    assert dissector.facts["layout"] == "L9"
    assert PROTOCOLS[0].loaded.forced == (*LAYOUTS, "replica")


def test_without_candidates_the_first_bytes_tell_the_framing() -> None:
    assert talk(iggy(candidates=()), PING, OK)[1].name == "ping"
    said = talk(iggy(candidates=()), long_request(2, 1), long_reply(2))
    assert [one.name for one in said] == ["ping", "ping"]
    assert said[0].fields["operation_label"] == "non_replicated"


def test_big_endian_times_of_old_users() -> None:
    body = pack("<I", 1) + pack(">Q", 1_694_000_000_000_000) + b"\x01" + s8("iggy")
    (_, users) = talk(iggy("L0"), request(32), response(body))
    assert users.fields["users"][0]["created_at"] == 1_694_000_000_000_000
    little = pack("<I", 1) + pack("<Q", 1_694_000_000_000_000) + b"\x01" + s8("iggy")
    assert talk(iggy("L3"), request(32), response(little))[1].fields == {**users.fields}


def test_status_names_go_with_the_layout() -> None:
    assert statuses("L9")[51] == "personal_access_token_already_exists"
    assert statuses("L0")[51] == "not_connected"
    assert 51 not in statuses("L3")
    assert possible_names("L3", 51) == ["not_connected", "personal_access_token_already_exists"]
    assert (statuses("L7")[1011], statuses("L8")[1011]) == ("stream_id_already_exists", "stream_directory_not_found")
    assert statuses("V4")[14003] == "incompatible_protocol_version"
    assert all(statuses(layout)[3] == "invalid_command" for layout in LAYOUTS)
    (_, refused) = talk(iggy("L3"), request(43, s8("t")), response(status=51))
    assert refused.fields["status_label"] is None
    assert refused.notes == ["status 51 is not_connected or personal_access_token_already_exists, by release"]


def test_unknown_commands_and_statuses() -> None:
    said = talk(iggy("L9"), request(777, b"\x01\x02"), response(status=9999), PING, OK)
    assert [one.name for one in said] == ["unknown 777", "unknown 777", "ping", "ping"]
    assert said[0].fields["body"] == "0102"
    assert said[0].notes == ["command code 777 is not known in L9"]
    assert (said[1].outcome, said[1].fields["status_label"]) == ("refused", None)


# Pairing


def keys(events: list[Sent], dissector: IggyDissector | None = None) -> list[tuple[str, int, Any]]:
    out = emitted(dissector or iggy(), events)
    return [(one.record.name, one.role, one.key) for _, one in out if isinstance(one.record, Message)]


def test_responses_answer_in_order() -> None:
    said = keys([(CLIENT, PING + request(201) + PING), (SERVER, OK + OK), (SERVER, OK)])
    assert said == [
        ("ping", REQUEST, 1),
        ("get_streams", REQUEST, 2),
        ("ping", REQUEST, 3),
        ("ping", RESPONSE, 1),
        ("get_streams", RESPONSE, 2),
        ("ping", RESPONSE, 3),
    ]


def test_an_answer_captured_before_its_request_waits_for_it() -> None:
    out = emitted(iggy(), [(SERVER, OK), (CLIENT, PING), (CLIENT, request(201)), (SERVER, OK)])
    assert [(one.record.name, certain, one.role, one.key) for certain, one in out] == [
        ("ping", 1, REQUEST, 1),
        ("ping", 1, RESPONSE, 1),
        ("get_streams", 2, REQUEST, 2),
        ("get_streams", 3, RESPONSE, 2),
    ]


def test_answers_that_a_loss_stops_from_waiting_are_certain_with_it() -> None:
    out = emitted(iggy(), [(CLIENT, PING), (SERVER, OK), (SERVER, OK), (SERVER, 100)])
    assert [(certain, one.order) for certain, one in out] == [(0, 0), (1, 1), (3, 2), (3, 3)]


def test_nobody_waits_for_ever_for_a_request() -> None:
    out = emitted(iggy(), [(SERVER, OK)] * 70)
    assert [certain for certain, _ in out[:66]] == [64] * 65 + [65]
    assert all(one.record.notes == ["no request for this response was seen"] and one.role == NONE for _, one in out)


def test_after_a_loss_a_client_with_one_request_in_flight_is_sure_again() -> None:
    events: list[Sent] = [(CLIENT, PING), (SERVER, 8), (CLIENT, request(201)), (SERVER, OK)]
    assert keys(events) == [("ping", REQUEST, 1), ("get_streams", REQUEST, 2), ("get_streams", RESPONSE, 2)]
    assert not any(one.notes for one in messages(run(iggy(), *events)))


def test_after_a_loss_of_requests_the_answers_to_those_are_not_paired() -> None:
    said = messages(run(iggy(), (CLIENT, PING), (SERVER, OK), (CLIENT, 8), (SERVER, OK), (CLIENT, PING), (SERVER, OK)))
    assert [(one.name, list(one.notes)) for one in said] == [
        ("ping", []),
        ("ping", []),
        ("unknown", ["no request for this response was seen"]),
        ("ping", []),
        ("ping", []),
    ]


def test_a_loss_of_exactly_the_next_answers_leaves_no_doubt() -> None:
    many = PING * 4 + request(201)
    said = keys([(CLIENT, many), (SERVER, OK), (SERVER, 16), (SERVER, OK)], iggy("L9"))
    assert said[5:] == [("ping", RESPONSE, 1), ("ping", RESPONSE, 4)]


def test_a_loss_of_some_answers_makes_pairing_unsure_until_one_fits_a_single_request() -> None:
    many = request(201) + PING * 3 + request(120, b"\x01" + ONE + ONE + ONE + b"\x01" + bytes(4)) + PING
    offset = response(pack("<IQQ", 1, 2, 3))
    said = messages(run(iggy("L9"), (CLIENT, many), (SERVER, 20), (SERVER, OK), (SERVER, offset), (SERVER, OK)))[6:]
    assert [(one.name, list(one.notes)) for one in said] == [
        ("get_streams", ["the pairing is unsure: frames were missed before"]),
        ("get_consumer_offset", []),
        ("ping", []),
    ]


def test_a_request_in_the_packet_that_shows_a_loss_is_behind_it() -> None:
    asked = request(120, b"\x01" + ONE + ONE + ONE + b"\x01" + bytes(4))
    answer = response(pack("<IQQ", 1, 2, 3))
    items = items_of([(CLIENT, PING), (SERVER, OK), (CLIENT, 12), (CLIENT, asked), (SERVER, answer), (CLIENT, PING), (SERVER, OK)])
    gap = items[2]
    assert isinstance(gap, StreamGap)
    gap.order, gap.number, gap.time_ns = 3, 4, 3000
    parser = iggy("L9").parser
    out = [one for at in (items[:1], items[1:2], items[2:4], items[4:5], items[5:6], items[6:]) for one in parser.process(at, at[-1].order)]
    said = [(one.record.name, list(one.record.notes)) for one in out if isinstance(one.record, Message) and one.rank == SERVER]
    assert said == [("ping", []), ("get_consumer_offset", []), ("ping", [])]


def pairs_of(found: list[Packet]) -> dict[tuple[int, str, int], tuple[int | None, bool]]:
    """By response: the position of its request, and whether it says that the pairing is unsure."""
    inspector = Inspector([open_capture(capture(found))])
    said = {one.number: one for one in inspector.records() if isinstance(one, Message)}
    return {
        (one.conversation, one.src, one.position): (
            None if one.request is None else said[one.request].position,
            any("unsure" in note for note in one.notes),
        )
        for one in said.values()
        if one.kind == "response"
    }


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["py080-basic", "py081-admin", "py090d5-basic", "node0100e4-all", "seed-pipelined"])
def test_whichever_packet_is_lost_no_pair_is_wrong_that_does_not_say_so(name: str) -> None:
    """Gaps keep one side's frames back while the other's are handed on: the packets tell what was sent before what."""
    found = packets(GOLDEN / f"{name}.pcap")
    whole = pairs_of(found)
    assert not any(unsure for _, unsure in whole.values())
    for lost in range(len(found)):
        for response, (asked, unsure) in pairs_of(found[:lost] + found[lost + 1 :]).items():
            if asked is not None and response in whole and not unsure:
                assert whole[response][0] == asked, f"without packet {lost + 1}"


def test_losses_on_both_sides_leave_no_wrong_pair_that_does_not_say_so() -> None:
    found = packets(GOLDEN / "py090d5-admin.pcap")
    whole = pairs_of(found)
    for lost in ({3, 8, 10, 54, 65, 78}, {7, 13, 28, 40, 63, 65}, {10, 83, 87, 102, 108, 113}):
        for response, (asked, unsure) in pairs_of([one for number, one in enumerate(found) if number not in lost]).items():
            if asked is not None and response in whole and not unsure:
                assert whole[response][0] == asked


@pytest.mark.parametrize("seed", [2, 16, 20, 26, 27])
@pytest.mark.parametrize("name", ["py081-admin", "py050-group", "node080-all", "seed-all", "seed-pipelined"])
def test_a_request_and_an_answer_that_are_lost_close_together_make_no_wrong_pair_that_does_not_say_so(name: str, seed: int) -> None:
    found = packets(GOLDEN / f"{name}.pcap")
    whole = pairs_of(found)
    rng = random.Random(seed)
    kept = [one for one in found if rng.random() >= 0.08]
    for response, (asked, unsure) in pairs_of(kept).items():
        if asked is not None and response in whole and not unsure:
            assert whole[response][0] == asked


def test_an_answer_that_is_cut_keeps_what_there_is_of_it() -> None:
    """Also where it may have no body at all."""
    found = packets(GOLDEN / "py080-basic.pcap")
    said = {snap: answers_of([one._replace(raw=one.raw[:snap]) for one in found]) for snap in (180, 1 << 20)}
    assert said[180].keys() == said[1 << 20].keys()
    cut = [(one, said[1 << 20][key]) for key, one in said[180].items() if one.fault is not None]
    assert {one.name for one, _ in cut} >= {"get_topic", "poll_messages"}
    for one, whole in cut:
        assert one.name == whole.name
        assert [*one.fields] == [*whole.fields][: len(one.fields)]


def answers_of(found: list[Packet]) -> dict[tuple[int, str, int], Message]:
    said = Inspector([open_capture(capture(found))]).records()
    return {(one.conversation, one.src, one.position): one for one in said if isinstance(one, Message) and one.kind == "response"}


def test_after_a_loss_an_answer_waits_for_what_the_client_sends_next() -> None:
    """Bytes of both sides are missing: the answer is that to the request that is not here."""
    before: list[Sent] = [(CLIENT, request(201)), (SERVER, 30), (SERVER, OK)]
    both = [*before, (CLIENT, 8), (CLIENT, PING), (SERVER, OK)]
    out = [one for one in emitted(iggy("L9"), both) if isinstance(one[1].record, Message)]
    assert [(one.record.name, certain, len(one.record.notes)) for certain, one in out] == [
        ("get_streams", 0, 0),
        ("get_streams", 3, 1),
        ("ping", 4, 0),
        ("ping", 5, 0),
    ]
    one_side = [*before, (CLIENT, PING), (SERVER, OK)]
    out = [one for one in emitted(iggy("L9"), one_side) if isinstance(one[1].record, Message)]
    assert [(one.record.name, certain, len(one.record.notes)) for certain, one in out] == [
        ("get_streams", 0, 0),
        ("get_streams", 3, 0),
        ("ping", 3, 0),
        ("ping", 4, 0),
    ]


@pytest.mark.parametrize("left", [90, 358])
def test_an_answer_behind_a_loss_is_to_the_latest_request_before_it(left: int) -> None:
    """The end of it may be lost, and what the client sent then; older requests were answered in what is lost of the server."""
    sent = request(101, pack("<I", 18) + ONE + ONE + b"\x01\x00" + pack("<I", 1) + bytes(16) + sent_l9(bytes(248)))
    assert len(sent) == 358
    before: list[Sent] = [
        (CLIENT, 50),
        (CLIENT, POLL_L8),
        (CLIENT, DELETE),
        (CLIENT, sent[:left]),
        (SERVER, 40),
        (SERVER, OK),
        (SERVER, OK),
    ]
    said = messages(run(iggy("L9"), *before, (CLIENT, 358 - left + 30), (CLIENT, PING), (SERVER, OK)))
    answers = [(one.name, len(one.notes)) for one in said if one.kind == "response"]
    assert answers == [("send_messages", 1), ("unknown", 1), ("ping", 0)]


def test_answers_after_a_loss_do_not_wait_without_a_limit() -> None:
    events: list[Sent] = [(CLIENT, request(201) * 90), (SERVER, 30), *[(SERVER, OK)] * 80, (CLIENT, PING), (SERVER, OK)]
    out = [(certain, one.record) for certain, one in emitted(iggy("L9"), events)]
    answers = [(certain, one) for certain, one in out if isinstance(one, Message) and one.kind == "response"]
    assert [certain for certain, _ in answers] == [66] * 65 + [*range(67, 82), 83]
    assert all("unsure" in one.notes[0] for _, one in answers)


def test_pipelining_that_shows_late_takes_back_what_was_believed() -> None:
    """A capture from the middle of requests in flight looks in order first."""
    asked = b"".join(request(200, ONE) for _ in range(2))
    events: list[Sent] = [(CLIENT, PING), (SERVER, OK), (CLIENT, asked), (SERVER, OK), (SERVER, OK)]
    said = messages(run(iggy("L9", syn=False), *events))
    assert [(one.name, len(one.notes)) for one in said if one.kind == "response"] == [("ping", 1), ("get_stream", 1), ("get_stream", 1)]
    events = [(CLIENT, PING), (SERVER, OK), (CLIENT, PING), (SERVER, LOGGED_IN), (CLIENT, PING), (SERVER, OK)]
    said = messages(run(iggy("L9", syn=False), *events))
    assert [(one.name, len(one.notes)) for one in said if one.kind == "response"] == [("ping", 1), ("unknown", 1), ("ping", 1)]


def test_the_middle_of_a_conversation() -> None:
    """The tail of an answer, an answer to a request not seen, then the usual."""
    events: list[Sent] = [
        (SERVER, b"tail"),
        (SERVER, LOGGED_IN),
        (CLIENT, POLL_L8),
        (SERVER, NOTHING_POLLED),
        (CLIENT, PING),
        (SERVER, OK),
    ]
    records = run(iggy(syn=False), *events)
    gaps = [one for one in records if isinstance(one, Gap)]
    assert [(gap.position, gap.size, gap.reason) for gap in gaps] == [(0, 4, "skipped")]
    said = messages(records)
    assert [one.name for one in said] == ["unknown", "poll_messages", "poll_messages", "ping", "ping"]
    assert said[0].notes == ["no request for this response was seen"]


def test_an_answer_that_may_be_a_token_is_hidden() -> None:
    (unknown,) = messages(run(iggy(syn=False), (SERVER, response(s8("verysecrettoken")))))
    assert unknown.fields["body"] == "<redacted 16 bytes>"
    (_, behind) = talk(iggy("L9"), request(777), response(bytes(4) + s8("verysecrettoken")))
    assert behind.fields["body"] == "<redacted 20 bytes>"


# The 256-byte framing


def test_operations_and_codes_name_commands_alike() -> None:
    said = talk(
        iggy(candidates=LONG),
        long_request(2, 100, POLL_L8[8:]),
        long_reply(2, NOTHING_POLLED[8:]),
        long_request(130, body=ONE, number=2),
        long_reply(130, pack("<III", 1, 0, 1009), number=2),
        long_request(200),
        long_reply(200, status=3),
        long_request(2, 777, b"\xff"),
        long_reply(2, status=3),
    )
    assert [one.name for one in said[::2]] == ["poll_messages", "delete_stream", "unknown operation 200", "unknown 777"]
    assert said[3].fields["results"] == [{"index": 0, "result": 1009, "result_label": "stream_id_not_found"}]
    assert [one.outcome for one in said[1::2]] == ["answered", "refused", "refused", "refused"]
    assert info(said[3]) == "stream_id_not_found (1009)"
    assert said[0].id == 1


def test_register_tells_password_and_token_by_what_decodes() -> None:
    start = pack("<I", 11264) + s8("rust-sdk") + s8("0.11.0-edge.5")
    with_password = start + s8("iggy") + s8("swordfish") + s32("")
    with_token = start + s8("sesame-token") + s32("")
    with_secret = pack("<I", 12288) + s8("rust-sdk") + s8("0.11.1") + bytes(range(200, 232)) + s8("iggy") + s8("swordfish") + s32("")
    reply = bytes(4) + pack("<IQI", 1, 9, 11264) + s8("0.9.0-edge.5")
    for body, name in (
        (with_password, "login_register"),
        (with_token, "login_register_with_pat"),
        (with_secret, "login_register"),
    ):
        dissector = iggy(candidates=LONG)
        said = talk(dissector, long_request(1, body=body), long_reply(1, reply))
        assert [one.name for one in said] == [name, name]
        text = str(said[0].fields)
        assert "swordfish" not in text
        assert "sesame" not in text
        assert bytes(range(200, 232)).hex() not in text
        assert said[0].fields["protocol_version_label"] in ("0.11.0", "0.12.0")
        facts = dissector.facts
        stated = "rust-sdk 0.11.1" if body is with_secret else "rust-sdk 0.11.0-edge.5"
        assert (facts["client_version"], facts["server_version"]) == (stated, "0.9.0-edge.5")


@pytest.mark.parametrize("reason", [1, 13, 14, 77])
def test_an_eviction_that_nobody_asked_for_refuses(reason: int) -> None:
    said = messages(run(iggy(candidates=LONG), (0, long_request(2, 1)), (1, long_reply(2)), (1, eviction(reason))))
    assert (said[2].name, said[2].request, said[2].outcome) == ("eviction", None, "refused")


WRONG_TEXT = "Resource with key: users_id:nobody was not found."


def refusing(stated: int, text: bytes = WRONG_TEXT.encode(), status: int = 20) -> bytes:
    return response(pack("<I", stated) + text, status)


@pytest.mark.parametrize("layout", ["L0", "L5", "L9", None])
@pytest.mark.parametrize("size", [48, 50, 0, 1 << 31])
def test_a_refusal_with_a_wrong_length_of_its_text_is_one(layout: str | None, size: int) -> None:
    frame = refusing(size)
    events: list[Sent] = [(0, request(31, ONE)), (1, frame), (0, PING), (1, OK)]

    def answers(events: list[Sent]) -> list[Message]:
        records = run(iggy(layout, () if layout else CLASSIC), *events)
        return sorted((one for one in messages(records) if one.kind == "response"), key=lambda one: one.position)

    said = answers(events)
    assert [(one.name, one.outcome) for one in said] == [("get_user", "refused"), ("ping", "answered")]
    assert (said[0].fields["status"], said[0].size) == (20, len(frame))
    assert said[0].fault is not None or not {"trailing", "body"}.isdisjoint(said[0].fields)
    for cut in (3, 9, 12, 40, len(frame) - 1):
        pieces: list[Sent] = [events[0], (1, frame[:cut]), (1, frame[cut:]), *events[2:]]
        assert [(one.name, one.outcome, one.fields) for one in answers(pieces)] == [(one.name, one.outcome, one.fields) for one in said]


def test_refusals_with_other_texts_follow_each_other_and_answers() -> None:
    texts = [b"no", b"", b"x" * 100]
    said = messages(run(iggy("L9"), (0, PING * 4), (1, b"".join(response(text, 3) for text in texts) + OK)))
    answers = [one for one in said if one.kind == "response"]
    assert [one.outcome for one in answers] == ["refused"] * 3 + ["answered"]
    assert [one.size for one in answers] == [10, 8, 108, 8]


@pytest.mark.parametrize("what", [refusing(48, status=999_999), refusing(48) + b"\xff" * 9, refusing(48) + b"\xff"])
def test_what_only_looks_like_a_refusal_is_none(what: bytes) -> None:
    records = run(iggy("L9"), (0, request(31, ONE)), (1, what), (0, PING), (1, OK))
    assert any(isinstance(one, Gap) and one.reason == "skipped" for one in records)


def test_labels_that_nobody_knows_are_noted() -> None:
    strategy, consumer = bytearray(POLL_L8), bytearray(POLL_L8)
    strategy[POLL_L8.index(b"\x05" + bytes(8))] = 65
    consumer[8] = 9
    topic = request(302, ONE + pack("<IB", 1, 7) + pack("<QQB", 0, 0, 1) + s8("work"))
    for layout in ("L9", None):
        said = talk(
            iggy(layout, () if layout else CLASSIC), bytes(strategy), NOTHING_POLLED, bytes(consumer), NOTHING_POLLED, topic, response()
        )
        assert [(one.notes, one.fault) for one in said if one.kind == "request"] == [
            ([note], None) for note in ("strategy 65 is not known", "kind 9 is not known", "compression_algorithm 7 is not known")
        ]
        assert (said[0].fields["strategy"], said[0].fields["strategy_label"], said[0].fields["count"]) == (65, None, 10)
        assert [one.outcome for one in said if one.kind == "response"] == ["answered"] * 3


def test_a_label_that_nobody_knows_hides_no_layout_and_no_pair() -> None:
    strategy = bytearray(POLL_L8)
    strategy[POLL_L8.index(b"\x05" + bytes(8))] = 65
    dissector = iggy()
    talk(dissector, bytes(strategy), NOTHING_POLLED)
    plain = iggy()
    talk(plain, POLL_L8, NOTHING_POLLED)
    assert dissector.facts == plain.facts
    assert resync.fits(bytes(strategy), 0, len(strategy)) == resync.fits(POLL_L8, 0, len(POLL_L8)) != []
    # A client that has the transport 9, from a server that may find nothing, too
    me = pack("<IIB", 1, 1, 9) + s32("192.0.2.1:1") + pack("<I", 0)
    for detail in (False, True):
        (_, found) = talk(iggy("L9", detail=detail), request(21, pack("<I", 1)), response(me))
        assert (found.notes, found.fault, found.fields["address"]) == (["transport 9 is not known"], None, "192.0.2.1:1")


GROUP = pack("<III", 7, 2, 1) + s8("g1") + pack("<IIII", 3, 2, 0, 1)
USER = pack("<IQB", 1, 1_700_000_000_000_000, 1) + s8("iggy") + bytes(4)


@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("wrap", ["L9", "V2"])
def test_a_reply_that_may_be_empty_keeps_its_fields_up_to_the_fault(wrap: str, detail: bool) -> None:
    def told(code: int, body: bytes) -> Message:
        long = wrap == "V2"
        ask, answer = (long_request(2, code), long_reply(2, body)) if long else (request(code, ONE * 3), response(body))
        return talk(iggy(wrap, detail=detail), ask, answer)[1]

    head = 256 if wrap == "V2" else 8
    group = told(600, pack("<III", 7, 2, 2) + GROUP[12:])
    assert (group.fields["id"], group.fields["partitions_count"], group.fields["name"]) == (7, 2, "g1")
    assert (group.fields["members"], "trailing" in group.fields) == ([{"id": 3, "partitions": [0, 1]}], False)
    assert group.fault is not None and (group.fault.field, group.fault.offset) == ("members[1].id", head + len(GROUP))
    user = told(31, USER[:13] + b"\x09" + USER[14:])
    assert (user.fields["id"], user.fields["created_at"], user.fields["user_status_label"]) == (1, 1_700_000_000_000_000, "active")
    assert user.fault is not None and (user.fault.field, user.fault.offset) == ("username", head + 13)
    assert told(600, b"").fault is None and told(600, GROUP).fault is None and told(31, USER).fault is None


def test_evictions_and_echoes() -> None:
    said = talk(
        iggy(candidates=LONG),
        long_request(2, 1),
        eviction(13),
        long_request(160, body=b"", number=3),
        long_reply(160, number=0, client=b"\x07" + bytes(15)),
        long_request(2, 1, number=5),
        long_reply(128, number=4),
    )
    assert (said[1].name, said[1].outcome, said[1].fields["reason_label"]) == ("eviction", "refused", "stale client")
    assert said[3].notes == []
    assert "answers request 4, operation 128; request 5, operation 2 waits" in said[5].notes


def test_a_reply_to_a_request_that_may_be_missing_takes_no_other() -> None:
    ping, other = (CLIENT, long_request(2, 1)), (SERVER, long_reply(130, bytes(4), number=7))
    said = messages(run(iggy("V4", syn=False), ping, (SERVER, long_reply(2)), ping, other))
    assert (said[1].name, said[1].notes) == ("ping", [])
    assert (said[3].name, said[3].notes) == ("delete_stream", [turns.UNSURE])


def test_after_a_loss_the_header_finds_the_request() -> None:
    asked = b"".join(long_request(130, body=ONE, number=number) for number in (1, 2, 3))
    said = keys(
        [(CLIENT, asked), (SERVER, 260), (SERVER, long_reply(130, bytes(4), number=2)), (SERVER, long_reply(130, bytes(4), number=3))],
        iggy("V4"),
    )
    assert said[3:] == [("delete_stream", RESPONSE, 2), ("delete_stream", RESPONSE, 3)]


def test_frames_begin_again_behind_a_loss() -> None:
    body = b"\x05" + bytes(200) + b"\x08" + bytes(90)
    dissector = iggy("V4", syn=False)
    records = run(dissector, (CLIENT, body), (CLIENT, b"x" + long_request(2, 1)), (SERVER, bytes(70)), (SERVER, b"y" + long_reply(2)))
    assert [one.name for one in messages(records)] == ["ping", "ping"]
    assert sum(one.size for one in records if isinstance(one, Gap)) == len(body) + 1 + 71


def batch(*payloads: bytes) -> bytes:
    frames = [pack("<16sIIIIQ", bytes(16), place, 0, 0, len(one), 0) + one for place, one in enumerate(payloads)]
    frames = [pack("<Q", xxh3_64_intdigest(frame)) + frame for frame in frames]
    size = 256 + sum(map(len, frames))
    head = pack("<QQQQQ", 0, 40, 1_700_000_000_000_000, 1_700_000_000_000_000, size)
    count = pack("<I", len(payloads))
    digest = xxh3_64_intdigest(head + count + b"".join(frame[:8] for frame in frames))
    return head + pack("<Q", digest) + count + bytes(204) + b"".join(frames)


def test_checksums_of_batches() -> None:
    good = pack("<IQI", 0, 41, 2) + batch(b"one", b"two")
    (_, polled) = talk(iggy("V4"), long_request(2, 100, POLL_L8[8:]), long_reply(2, good))
    assert (polled.notes, info(polled)) == ([], "partition 0  2 messages  offsets 40-41  current 41")
    bad = good[:-1] + b"!"
    (_, polled) = talk(iggy("V4"), long_request(2, 100, POLL_L8[8:]), long_reply(2, bad))
    assert [note.split(":")[0] for note in polled.notes] == ["batches[0].messages[1]"]
    bad = good[:16] + b"\x01" + good[17:]
    (_, polled) = talk(iggy("V4"), long_request(2, 100, POLL_L8[8:]), long_reply(2, bad))
    assert [note.split(" is")[0] for note in polled.notes] == ["batches[0]: batch_checksum"]


def test_checksums_of_messages_and_requests() -> None:
    good = response(pack("<IQI", 1, 7, 1) + polled_l9(b"hello"))
    assert talk(iggy("L9"), POLL_L8, good)[1].notes == []
    bad = response(pack("<IQI", 1, 7, 1) + polled_l9(b"hello", 5))
    assert "messages[0]: checksum is 5" in talk(iggy("L9"), POLL_L8, bad)[1].notes[0]
    for checksum, wrong in ((xxh3_64_intdigest(s8("new")), False), (1, True)):
        frame = bytearray(long_request(128, body=s8("new")))
        frame[144:152] = pack("<Q", checksum)
        (created,) = talk(iggy("V4"), bytes(frame))
        assert any("request_checksum" in note for note in created.notes) is wrong


def test_a_send_request_whose_counts_disagree() -> None:
    head = ONE + ONE + b"\x01\x00" + pack("<I", 2)
    body = pack("<I", 99) + head + pack("<IIQ", 0, 70, 0) * 2 + sent_l9(b"hello")
    (sent,) = talk(iggy("L9"), request(101, body))
    assert sent.notes == [
        "metadata_length is 99, its fields take 18 bytes",
        "indexes[0]: position is 70, the message ends at 69",
        "2 indexes, 1 messages",
    ]


# Damage


def test_a_frame_with_a_gap_hides_what_may_be_a_password() -> None:
    records = run(iggy("L9"), (CLIENT, LOGIN_L6[:12]), (CLIENT, 4), (CLIENT, LOGIN_L6[16:] + PING))
    said = messages(records)
    assert said[0].fault is not None
    assert said[0].fault.reason == "4 bytes lost"
    assert b"swordfish".hex() not in str(said[0].fields)
    assert said[1].name == "ping"


def test_a_password_behind_a_wrong_length_is_hidden() -> None:
    broken = request(38, b"\xff" + b"iggy" + s8("swordfish"))
    (login,) = talk(iggy("L9"), broken)
    assert login.fault is not None
    assert b"swordfish".hex() not in str(login.fields)


SECRET = b"Zq7xKvw2J"
REGISTER = pack("<I", 11264) + s8("rust-sdk") + s8("0.11.0")
CARRIERS: dict[str, tuple[str, list[bytes], int]] = {
    "login": ("L9", [request(38, s8("iggy") + s8(SECRET.decode()) + s32("0.9.0") + s32("")), LOGGED_IN], 0),
    "old login": ("L3", [request(38, s8("iggy") + s8(SECRET.decode())), LOGGED_IN], 0),
    "token login": ("L9", [request(44, s8(SECRET.decode())), LOGGED_IN], 0),
    "user": ("L9", [request(33, s8("alice") + s8(SECRET.decode()) + b"\x01\x00"), OK], 0),
    "password": ("L9", [request(37, ONE + s8("abc") + s8(SECRET.decode())), OK], 0),
    "token": ("L9", [request(42, s8("t") + bytes(8)), response(s8(SECRET.decode()))], 1),
    "token of an altered request": ("L9", [request(42, s8("t") + bytes(8)), response(s8(SECRET.decode()))], 0),
    "register": ("V4", [long_request(1, 0, REGISTER + s8("iggy") + s8(SECRET.decode()) + s32("")), long_reply(1)], 0),
    "register by token": ("V4", [long_request(1, 0, REGISTER + s8(SECRET.decode()) + s32("")), long_reply(1)], 0),
    "long token": ("V4", [long_request(146, 0, s8("t") + bytes(8)), long_reply(146, bytes(4) + s8(SECRET.decode()))], 1),
}
"""Conversations that carry a secret, and the frame of theirs that is altered."""


def shows_secret(message: Message) -> bool:
    """Whether five bytes of the secret in a row can be read off a message, its hex dump or its tree."""
    told = msgspec.json.encode([message.fields, message.notes, message.fault, message.name, info(message)]).decode()
    for span in message.spans or ():
        if span.leaf and not span.secret:
            told += f" {span.value} {message.raw['frame'][span.offset : span.offset + span.length].hex()}"
    pieces = [SECRET[at : at + 5] for at in range(len(SECRET) - 4)]
    return any(piece.decode() in told or piece.hex() in told for piece in pieces)


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("name", CARRIERS)
def test_no_altered_byte_shows_a_secret(name: str, forced: bool) -> None:
    """The byte may be a length, so that the secret is taken for a name, or the command itself."""
    layout, frames, which = CARRIERS[name]
    frame = frames[which]
    for at in [*range(min(len(frame), 20)), *range(48, min(len(frame), 64)), 176, 196, 208, 216, *range(256, len(frame))]:
        if at >= len(frame):
            continue
        for value in (frame[at] ^ 1, frame[at] ^ 8, 255):
            altered = frame[:at] + bytes([value]) + frame[at + 1 :]
            dissector = iggy(layout if forced else None, LONG if layout in LONG else CLASSIC, detail=True)
            said = talk(dissector, *frames[:which], altered, *frames[which + 1 :])
            assert not any(map(shows_secret, said)), (at, value)
            assert SECRET.decode() not in str(dissector.facts)


@pytest.mark.parametrize("name", CARRIERS)
def test_no_cut_shows_a_secret(name: str) -> None:
    layout, frames, which = CARRIERS[name]
    for size in range(8, len(frames[which])):
        events: list[Sent] = [(index % 2, frame) for index, frame in enumerate(frames[:which])]
        events += [(which % 2, frames[which][:size]), (which % 2, len(frames[which]) - size)]
        for dissector in (iggy(layout, detail=True), iggy(None, LONG if layout in LONG else CLASSIC, detail=True)):
            assert not any(map(shows_secret, messages(run(dissector, *events))))


TOKEN_LOGIN = long_request(2, 44, s8(SECRET.decode()))
USUAL = long_request(2, 1)


@pytest.mark.parametrize(
    "sent",
    [
        # bytes lost in front of its code, unnoticed: its end moves into the header, and the next frame seems to be its body
        TOKEN_LOGIN[:170] + TOKEN_LOGIN[178:] + USUAL,
        TOKEN_LOGIN[:186] + TOKEN_LOGIN[194:] + USUAL,
        # a gap in it, and bytes lost at the beginning of the frame behind it: its end seems to be a checksum
        [TOKEN_LOGIN[:40], TOKEN_LOGIN[80:] + USUAL[8:]],
    ],
)
def test_a_secret_that_moved_into_a_header_is_hidden(sent: bytes | list[bytes]) -> None:
    first, *rest = [sent] if isinstance(sent, bytes) else sent
    events: list[Sent] = [(CLIENT, USUAL), (SERVER, long_reply(2)), (CLIENT, first)]
    for piece in rest:
        events += [(CLIENT, 40), (CLIENT, piece)]
    events += [(CLIENT, USUAL), (SERVER, long_reply(2))]
    for layout in (None, "V4"):
        said = messages(run(iggy(layout, LONG, detail=True), *events))
        assert len(said) >= 3
        assert not any(map(shows_secret, said))


def test_a_token_that_moved_into_a_list_of_results_is_hidden() -> None:
    """Bytes of its header were lost unnoticed, others are missing behind it."""
    reply = long_reply(146, bytes(4) + s8(SECRET.decode() * 2))
    moved = reply[:222] + reply[229:]
    events: list[Sent] = [(CLIENT, long_request(146, 0, s8("t") + bytes(8))), (SERVER, moved), (SERVER, len(reply) - len(moved))]
    _, shown = messages(run(iggy("V4"), *events))
    assert shown.name == "create_personal_access_token"
    assert (shown.fields["reserved_end"], "results" in shown.fields) == ("<redacted 36 bytes>", False)


def test_a_secret_that_moved_into_a_command_code_is_hidden() -> None:
    """Behind bytes that were lost in a login."""
    (first, *_) = talk(iggy(detail=True), pack("<I", 11) + SECRET[:4] + b"\0" + SECRET[4:7] + bytes(3), OK)
    assert (first.name, first.fields["code"], first.fields["body"]) == ("unknown", "<redacted 4 bytes>", "<redacted 7 bytes>")


def test_a_name_that_took_in_a_password_is_hidden_in_a_cut_login_too() -> None:
    broken = pack("<II", 126, 38) + b"\x1b" + b"iggy" + s8(SECRET.decode()) + s32("0.9.0") + s32("rust")
    assert not any(map(shows_secret, messages(run(iggy("L9", detail=True), (CLIENT, broken), (CLIENT, 130 - len(broken))))))
    (login,) = messages(run(iggy("L9"), (CLIENT, LOGIN_L6[:16]), (CLIENT, len(LOGIN_L6) - 16)))
    assert login.fields["username"] == "iggy"


def test_what_is_not_known_is_shown_where_it_cannot_be_a_secret() -> None:
    left_over = request(303, ONE + ONE + b"text")
    asked = (request(777, b"\x01\x02\x03"), request(777, b"\x04" + b"text"), left_over, LOGIN_L6, left_over)
    said = talk(iggy("L9"), *(one for asks in asked for one in (asks, LOGGED_IN if asks is LOGIN_L6 else OK)))
    # before the client is let in, a frame that is not as it should be may be a login with a wrong code
    assert [one.fields.get("body") for one in said[::2]] == ["010203", "<redacted 5 bytes>", "<redacted 16 bytes>", None, None]
    assert said[8].fields["trailing"] == "<redacted 4 bytes>"
    shown = talk(iggy("L9", show_secrets=True), request(777, b"\x04" + b"text"), OK, request(303, ONE + ONE + b"text"))
    assert [shown[0].fields["body"], shown[2].fields["trailing"]] == ["0474657874", "74657874"]
    # a client that adds bytes of its own to a request is not altered
    (user,) = talk(iggy("L9"), request(33, s8("dave") + s8("swordfish") + b"\x02\x00" + bytes(5)))
    assert user.fields["username"] == "dave"


def test_frames_between_replicas_may_hand_on_a_login() -> None:
    prepare = bytearray(long_request(1, body=REGISTER + s8("iggy") + s8(SECRET.decode())))
    prepare[60] = 6
    (shown,) = talk(iggy(candidates=LONG, detail=True), bytes(prepare))
    assert (shown.kind, shown.fields["command"], shown.fields["size"]) == ("one_way", 6, len(prepare))
    assert not shows_secret(shown)


def test_frames_between_replicas_neither_ask_nor_answer() -> None:
    other = bytearray(long_request(2, 1))
    other[60] = 6
    events: list[Sent] = [(CLIENT, bytes(other)), (CLIENT, long_request(2, 1)), (SERVER, bytes(other)), (SERVER, long_reply(2))]
    events += [(SERVER, bytes(other)), (CLIENT, long_request(2, 201)), (SERVER, long_reply(2))]
    out = [(certain, one.record.name, one.role) for certain, one in emitted(iggy("V4"), events)]
    assert out == [
        (0, "unknown 6", NONE),
        (1, "ping", REQUEST),
        (2, "unknown 6", NONE),
        (3, "ping", RESPONSE),
        (4, "unknown 6", NONE),
        (5, "get_streams", REQUEST),
        (6, "get_streams", RESPONSE),
    ]


@pytest.mark.parametrize("layout", ["L1", "L9"])
def test_commands_that_a_layout_lacks_hide_what_may_be_secret(layout: str) -> None:
    old_login = request(32, s8("iggy") + s8("swordfish"))
    said = talk(iggy(layout), old_login, OK, request(40, s8("swordfish")), OK, request(44, s8("swordfish")), LOGGED_IN)
    assert [one.name for one in said[::2]] == ["login_user", "login_register", "login_with_personal_access_token"]
    assert b"swordfish".hex() not in str(said)
    assert "swordfish" not in str(said)


@pytest.mark.parametrize("kind", [1, 5, 9, 29])
@pytest.mark.parametrize("at", [16, 70, 90, 300])
def test_a_framing_that_was_forced_in_vain_shows_no_bytes_of_unknown_frames(kind: int, at: int) -> None:
    """Classic frames may have, where a header of 256 bytes would have them, a size and a command."""
    taken = bytearray(b"\1" * 400)
    taken[48:52] = pack("<I", len(taken))
    taken[60], taken[176] = kind, 77
    taken[at : at + 9] = b"swordfish"
    secret = (b"swordfish".hex(), str(int.from_bytes(taken[16:32], "little")))
    for options in ({}, {"detail": True}):
        (shown,) = talk(iggy("V4", **options), bytes(taken))
        assert shown.name.startswith("unknown")
        assert (shown.fields["size"], shown.fields["command"], shown.id) == (400, kind, None)
        assert shown.fields["body"] == f"<redacted {144 if kind == 5 else 272} bytes>"
        assert not any(text in str(shown.fields) for text in secret)
        assert all(span.secret for span in shown.spans or () if span.leaf and span.offset <= at < span.offset + span.length)
    (known,) = talk(iggy("V4"), long_request(2, 777, b"\1\2"))
    assert known.fields["body"] == "0102"


def test_a_length_that_cannot_be_is_passed_over() -> None:
    records = run(iggy("L9"), (CLIENT, PING), (CLIENT, b"\0\0\0\0garbage"), (CLIENT, POLL_L8))
    assert [(type(one).__name__, one.size) for one in records] == [("Message", 8), ("Gap", 11), ("Message", len(POLL_L8))]  # type: ignore[union-attr]


def test_a_malformed_permission_block_stays_in_its_frame() -> None:
    block = bytes(10) + b"\x01" + pack("<I", 1) + bytes(6) + b"\x09"
    user = s8("u") + s8("swordfish") + b"\x01\x01" + pack("<I", len(block)) + block
    said = talk(iggy("L9"), request(33, user), OK, PING, OK)
    assert said[0].fault is not None
    assert said[0].fault.field.startswith("permissions")
    assert "swordfish" not in str(said[0].fields)
    assert said[2].fault is None


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        # two requests, and not one of them whole
        ("v04-cli", 96, ["login_user", "login_user", "update_topic", "update_topic"]),
        # one request of a client whose framing the server does not know
        ("new-client-old-server", 128, ["unknown"] * 7),
        # one request, and one answer
        ("node0100e1-nosession", 128, ["unknown", "eviction"]),
    ],
)
def test_a_snap_length_that_leaves_no_request_whole_leaves_what_tells_it(name: str, size: int, said: list[str]) -> None:
    inspector = Inspector([open_capture(capture([packet._replace(raw=packet.raw[:size]) for packet in packets(GOLDEN / f"{name}.pcap")]))])
    records = list(inspector.records())
    names = [[one.name for one in records if isinstance(one, Message) and one.conversation == row.conversation] for row in inspector.rows()]
    assert said in names, names


# Detection


def view(sides: tuple[bytes, bytes], ports: tuple[int, int] = (40_000, 40_001), syn: bool = True, final: bool = True) -> DetectionView:
    one, other = (SideView([(0, data)] if data else [], syn, [0]) for data in sides)
    return DetectionView((one, other), ports, syn, final)


def test_two_pings_are_enough_and_one_is_not() -> None:
    verdict = heuristic(view((PING * 2, OK * 2)))
    assert verdict is not None
    assert verdict.confidence >= 0.9
    verdict = heuristic(view((PING, OK)))
    assert verdict is not None
    assert verdict.confidence < 0.9
    verdict = heuristic(view((PING, OK), (40_000, 8090)))
    assert verdict is not None
    assert verdict.confidence >= 0.9


@pytest.mark.parametrize("ports", [(40_000, 8090), (40_000, 40_001)])
def test_a_capture_may_begin_far_inside_a_large_frame(ports: tuple[int, int]) -> None:
    segments = [bytes([97 + number % 26]) * 1_000 for number in range(200)]
    starts = [*range(0, 200_000, 1_000), 200_000, 200_000 + len(POLL_L8)]
    large, small = b"".join(segments), POLL_L8 + PING
    for sides in ((large + small, NOTHING_POLLED + OK), (small, large + NOTHING_POLLED + OK)):
        one, other = (SideView([(0, data)], False, starts if len(data) > 200_000 else [0]) for data in sides)
        verdict = heuristic(DetectionView((one, other), ports, False, True))
        assert verdict is not None
        assert (verdict.confidence >= 0.9, verdict.client) == (True, 0)


def test_requests_and_responses_are_found_behind_a_loss_in_a_frame_that_the_capture_begins_in() -> None:
    rest, behind, asked = bytes([97]) * 900, POLL_L8 + PING, NOTHING_POLLED + OK
    for least in (2, 900):
        client = SideView([(0, rest[:least]), (1_000, rest + behind)], False, [0, 1_000, 1_900])
        server = SideView([(0, rest[:least]), (2_000, rest + asked)], False, [0, 2_000, 2_900])
        verdict = heuristic(DetectionView((client, server), (40_000, 40_001), False, True))
        assert verdict is not None
        assert (verdict.confidence >= 0.9, verdict.client) == (True, 0)


Endpoint = tuple[str, int]

HERE, THERE = ("192.0.2.1", 40_000), ("192.0.2.2", 8090)


def large_frames(asks: bool, size: int) -> list[Segment]:
    """Three batches of so many bytes that are sent, or polled, each in a few segments, on the port of servers."""
    said: list[tuple[Endpoint, Endpoint, bytes]] = []
    for letter in b"abc":
        client, server = POLL_L8, response(pack("<IQI", 1, 7, 1) + polled_l9(bytes([letter]) * size))
        if asks:
            client = pack("<I", 18) + ONE + ONE + b"\x01\x00" + pack("<I", 1) + bytes(16) + sent_l9(bytes([letter]) * size)
            client, server = pack("<II", len(client) + 4, 101) + client, OK
        said += [(HERE, THERE, client[at : at + 60_000]) for at in range(0, len(client), 60_000)]
        said += [(THERE, HERE, server[at : at + 60_000]) for at in range(0, len(server), 60_000)]
    found, at = [], {HERE: 1_000, THERE: 5_000}
    for source, target, data in said:
        found.append(Segment(source, target, at[source], data, at[target]))
        at[source] += len(data)
    return found


def behind_login(segments: list[Segment]) -> list[Segment]:
    """A capture of these that begins with a login."""
    login = request(38, s8("iggy") + s8("swordfish") + s32("") + s32(""))
    asked = Segment(HERE, THERE, 1_000 - len(login), login, 5_000 - len(LOGGED_IN))
    return [asked, Segment(THERE, HERE, 5_000 - len(LOGGED_IN), LOGGED_IN, 1_000), *segments]


def messages_of(segments: list[Segment]) -> list[Message]:
    inspector = Inspector([], Options())
    return [one for one in inspector.process(captured(segments)) + inspector.finish() if type(one) is Message]


def told_of(segments: list[Segment], options: Options) -> tuple[list[Message], list[Gap]]:
    """What is said of a capture of these; every byte of it is in a message or in a gap."""
    inspector = Inspector([], options)
    records = inspector.process(captured(segments)) + inspector.finish()
    messages, gaps = [one for one in records if type(one) is Message], [one for one in records if type(one) is Gap]
    assert sum(one.size for one in messages) + sum(one.size or 0 for one in gaps) == sum(len(one.data) for one in segments)
    return messages, gaps


def any_exchange(rng: random.Random, long: bool, number: int) -> tuple[bytes, bytes, int]:
    """A request, its answer, and the number of the next request of the 256-byte framing: only some operations count on."""
    if not long:
        return *rng.choice(((PING, OK), (POLL_L8, NOTHING_POLLED), (DELETE, OK))), number
    operation, code, asked, answered = rng.choice(((2, 1, b"", b""), (2, 100, POLL_L8[8:], NOTHING_POLLED[8:]), (130, 0, ONE, bytes(4))))
    ask, answer = long_request(operation, code, asked, number), long_reply(operation, answered, number)
    return ask, answer, number + (operation == 130)


@pytest.mark.parametrize("long", [False, True], ids=["classic", "long"])
@pytest.mark.parametrize("seed", range(12))
def test_no_pair_of_a_pipelining_client_is_wrong_behind_a_loss_that_does_not_say_so(seed: int, long: bool) -> None:
    """Answers that fit requests by chance for a while prove no order, nor do lost ones without a body where it was not certain before, nor
    a number that several requests share. That the client keeps several requests in flight shows with the first messages only."""
    rng = random.Random(seed)
    number = 1
    found, truth, waiting = list[Segment](), dict[int, int](), list[tuple[int, bytes]]()
    at = {HERE: 1_000, THERE: 5_000}
    while len(found) < 120:
        asks = len(waiting) < 8 and (not waiting or rng.random() < 0.5)
        source, target, data = (HERE, THERE, b"") if asks else (THERE, HERE, b"")
        for _ in range(rng.choice((1, 1, 2, 3)) if asks else min(len(waiting), rng.choice((1, 1, 2)))):
            place = at[source] + len(data)
            if asks:
                ask, answer, number = any_exchange(rng, long, number)
                waiting.append((place, answer))
                data += ask
            else:
                truth[place], answer = waiting.pop(0)
                data += answer
        found.append(Segment(source, target, at[source], data, at[target]))
        at[source] += len(data)
    for start, losses in ((40, 0), (0, 2), (0, 5), (40, 2), (20, 3)):
        lost = rng.sample(found[start:], losses)
        left = [one for one in (behind_login(found) if start == 0 and not long else found[start:]) if one not in lost]
        first = {f"{host}:{port}": next(one.seq for one in left if one.src == (host, port)) for host, port in at}
        said = messages_of(left)
        places = {one.number: first[one.src] + one.position for one in said}
        sure = [one for one in said[8:] if one.kind == "response" and not any("unsure" in note for note in one.notes)]
        assert [(one.number, one.request) for one in sure if one.request and places[one.request] != truth[places[one.number]]] == []


@pytest.mark.parametrize("size", [200_000, 1_100_000])
@pytest.mark.parametrize("asks", [True, False], ids=["sent", "polled"])
def test_frames_larger_than_what_detection_keeps_cost_themselves_alone(asks: bool, size: int) -> None:
    limit = Options(undecided_limit=90_000) if size < 1 << 20 else Options()
    segments = large_frames(asks, size)
    messages, gaps = told_of(segments[3:], limit)
    assert [one.name for one in messages if one.size > size] == ["send_messages" if asks else "poll_messages"] * 2
    assert gaps[0].position == 0
    assert {(one.sender, one.reason) for one in gaps} == {("client" if asks else "server", "skipped")}
    assert sum(one.size or 0 for one in gaps) < size


@pytest.mark.parametrize("asks", [True, False], ids=["sent", "polled"])
def test_no_large_frame_is_lost_behind_one_whose_head_is(asks: bool) -> None:
    segments = large_frames(asks, 1_100_000)
    heads = [at for at, one in enumerate(segments) if len(one.data) == 60_000 and len(segments[at - 1].data) < 60_000]
    del segments[heads[1]]
    assert sum(one.size > 1_100_000 for one in messages_of(segments)) == 2


@pytest.mark.parametrize("asks", [True, False], ids=["sent", "polled"])
def test_frames_of_more_bytes_than_a_reader_takes_tell_the_layout_all_the_same(asks: bool) -> None:
    messages, _ = told_of(behind_login(large_frames(asks, 2_100_000)), Options())
    large = [one for one in messages if one.size > 2_100_000]
    assert [(one.name, one.fault) for one in large] == [("send_messages" if asks else "poll_messages", None)] * 3


def test_a_large_response_behind_a_loss_waits_for_what_the_client_sends_next() -> None:
    segments = behind_login(large_frames(False, 1_100_000))
    del segments[3]
    messages = messages_of(segments)
    asked = [one.number for one in messages if one.kind == "request"]
    assert [(one.request, one.notes) for one in messages if one.size > 1_100_000] == [(number, []) for number in asked[2:]]


def test_a_pairing_told_by_what_a_response_holds_ends_with_one_that_does_not_fit() -> None:
    """The client polls ahead, and the first response answers what was asked before the capture."""
    polled = response(pack("<IQI", 1, 7, 1) + polled_l9(b"a"))
    asked, answers = [POLL_L8 + PING, PING, POLL_L8, PING], [polled, polled, OK, OK, polled, OK]
    segments, at = [], [1_000, 5_000]
    for side, data in [
        (0, asked[0]),
        (0, asked[1]),
        *((1, one) for one in answers[:2]),
        (0, asked[2] + asked[3]),
        *((1, one) for one in answers[2:]),
    ]:
        segments.append(Segment((HERE, THERE)[side], (THERE, HERE)[side], at[side], data, at[1 - side]))
        at[side] += len(data)
    messages, _ = told_of(segments, Options())
    names = {one.number: one.name for one in messages}
    paired = [(names[one.request], one.size) for one in messages if one.request is not None and not one.notes]
    assert ("ping", len(polled)) not in paired
    assert all(size == (8 if name == "ping" else len(polled)) for name, size in paired)


def test_what_begins_a_large_frame() -> None:
    head = large_frames(False, 1_100_000)[1].data[:24]
    assert resync.polled(head, 0, 24)
    for at, value in ((0, 1), (4, 1 << 20), (4, resync.LIMIT + 1), (8, resync.PARTITIONS), (20, 0), (20, 1_100_000 // 39)):
        assert not resync.polled(head[:at] + pack("<I", value) + head[at + 4 :], 0, 24)
    assert not resync.polled(head, 0, 23)


def test_a_request_that_goes_on_counts_where_none_is_whole() -> None:
    rest, first = bytes([97]) * 5_000, pack("<II", 900_000, 101)
    oldest = first + ONE + ONE + b"\x01\x00" + bytes(16) + pack("<I", 800_000) + bytes([98]) * 9_000
    sent = first + pack("<I", 18) + ONE + ONE + b"\x01\x00" + pack("<I", 1) + bytes(16) + sent_l9(bytes([98]) * 800_000)[:9_000]
    other = first + pack("<I", 18) + ONE + bytes(9_000)

    def judged(frame: bytes, answers: bytes, port: int = 40_001, final: bool = True) -> tuple[float, int | None]:
        client = SideView([(0, rest + frame)], False, [0, 1_000, 5_000, 6_000])
        verdict = heuristic(DetectionView((client, SideView([(0, answers)], False, [0])), (40_000, port), False, final))
        return (verdict.confidence, verdict.client) if verdict is not None else (0, None)

    for frame in (oldest, sent):
        assert judged(frame, OK) == (0.6, 0)
        assert judged(frame, OK, 8090) == (0.9, 0)
        assert judged(frame, OK, 8090, final=False) == (0, None)
        assert judged(POLL_L8 + frame, OK)[0] > 0.9
        assert judged(frame, b"")[0] < 0.5
        assert judged(frame[:21], OK) == (0, None)
    for frame in (other, first + bytes(9_000), oldest.replace(first, pack("<II", 900_000, 777))):
        assert judged(frame, OK, 8090) == (0, None)


@pytest.mark.parametrize("lost", [(28, 0), (0, 12), (28, 12)])
def test_the_first_packets_may_be_lost_although_the_beginning_was_captured(lost: tuple[int, int]) -> None:
    def seen(*sides: bytes) -> DetectionView:
        one, other = (SideView([(at, data)], True, [at]) for at, data in zip(lost, sides, strict=True))
        return DetectionView((one, other), (40_000, 40_001), True, True)

    verdict = heuristic(
        seen(POLL_L8 + PING if lost[0] else LOGIN_L6 + POLL_L8, NOTHING_POLLED + OK if lost[1] else LOGGED_IN + NOTHING_POLLED)
    )
    assert verdict is not None
    assert (verdict.confidence >= 0.9, verdict.client) == (True, 0)
    verdict = heuristic(seen(long_request(2, 1), long_reply(2)))
    assert verdict is not None
    assert (verdict.confidence >= 0.9, verdict.client, verdict.candidates) == (True, 0, LONG)


def test_the_direction_without_syn() -> None:
    for client, sides in ((0, (LOGIN_L6 + POLL_L8, LOGGED_IN)), (1, (LOGGED_IN, LOGIN_L6 + POLL_L8))):
        verdict = heuristic(view(sides, syn=False))
        assert verdict is not None
        assert (verdict.client, verdict.confidence >= 0.9) == (client, True)
    for client, sides in ((0, (long_request(2, 1), b"")), (1, (long_reply(2), b""))):
        verdict = heuristic(view(sides, syn=False))
        assert verdict is not None
        assert (verdict.client, verdict.candidates) == (client, LONG)


def test_the_beginning_of_a_long_header_speaks_for_it_at_the_end() -> None:
    verdict = heuristic(view((long_request(2, 1)[:96], b"")))
    assert verdict is not None
    assert verdict.confidence == 0.6
    assert heuristic(view((long_request(2, 1)[:96], b""), final=False)) is None


@pytest.mark.parametrize(
    "sides",
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        (bytes.fromhex("160301020001000200"), b""),
        (b"", OK * 3),
        (bytes(300), bytes(300)),
        (bytes(90), b""),
        (request(777, b"abc"), OK),
        (pack("<IIII", 58, 1, 0, 2013) + bytes(42), b""),
        (request(202, b"\xff"), OK),
    ],
)
def test_what_is_not_iggy(sides: tuple[bytes, bytes]) -> None:
    for ports in ((40_000, 40_001), (40_000, 8090)):
        for syn in (True, False):
            assert heuristic(view(sides, ports, syn)) is None


# Lines


def test_lines_say_the_key_fields() -> None:
    said = talk(iggy("L9"), POLL_L8, NOTHING_POLLED, LOGIN_L6, LOGGED_IN, request(200, ONE), OK)
    assert [info(one) for one in said] == [
        "1/1  partition 1  consumer 1  next  up to 10",
        "partition 1  0 messages  current 0",
        "username=iggy  password=<redacted 9 bytes>  version=0.9.0",
        "user_id=1",
        "stream 1",
        "not found",
    ]


def test_lines_say_what_one_looks_for_first() -> None:
    """Names before settings, none of the usual settings, and how far a consumer is behind."""
    at = 1_700_000_000_123_456
    by_time = request(100, b"\x02" + ONE + ONE + ONE + bytes(5) + b"\x02" + pack("<QI", at, 10) + b"\x01")
    store = request(121, b"\x01" + ONE + ONE + ONE + b"\x01" + pack("<IQ", 3, 9))
    topic = pack("<IQI", 4, at, 2) + pack("<QBQB", (1 << 64) - 1, 1, (1 << 64) - 1, 1) + pack("<QQ", 0, 0) + s8("events")
    settings = ONE + pack("<I", 2) + pack("<BQQB", 2, 60, 0, 3) + s8("events")
    partition = pack("<IQIQQQ", 0, at, 1, 0, 0, 0)
    said = talk(
        iggy("L9"),
        by_time,
        response(status=2010),
        store,
        OK,
        request(120, b"\x01" + ONE + ONE + ONE + b"\x01" + pack("<I", 3)),
        response(pack("<IQQ", 3, 40, 9)),
        request(302, settings),
        response(topic + partition * 2),
        request(10),
        response(stats("0.8.0") + pack("<I", 0)),
        request(777),
        response(status=9999),
        request(201),
        response(pack("<IQIQQ", 1, at, 0, 0, 0) + s8("orders")),
    )
    assert [info(one) for one in said] == [
        "1/1  consumer_group 1  timestamp 2023-11-14T22:13:20.123456Z  up to 10  auto commit",
        "topic_id_not_found (2010)",
        "1/1  partition 3  consumer 1  offset 9",
        "",
        "1/1  partition 3  consumer 1",
        "partition 3  stored 9  current 40  behind by 31",
        "stream 1  name=events  partitions_count=2  compression_algorithm=gzip  message_expiry=60 µs  replication_factor=3",
        "id=4  name=events  partitions_count=2  never expires  unlimited  size_bytes=0  ...",
        "",
        "server 0.8.0  0 streams  1 topic  2 partitions  4 messages  5 clients  6 consumer groups",
        "0 bytes",
        "status 9999",
        "",
        "1 stream",
    ]
    old = request(100, b"\x01" + ONE + ONE + ONE + pack("<I", 0) + b"\x03" + pack("<QI", 0, 1) + b"\x00")
    assert info(talk(iggy("L5"), old)[0]) == "1/1  consumer 1  first  up to 1"
    synced = talk(iggy("V4"), long_request(2, 606, ONE * 3), long_reply(2, pack("<QIII", 5, 2, 0, 3)))
    assert info(synced[1]) == "generation 5  2 partitions: 0, 3"
    sent = talk(
        iggy("V4"),
        long_request(160, 0, pack("<I", 18) + ONE + ONE + b"\x01\x00" + pack("<I", 1) + batch(b"a")),
        long_reply(160, pack("<IIIIQ", 1, 1, 2, 3, 40)),
    )
    assert [info(one) for one in sent] == ["1/1  balanced  1 message", "1/2  partition 3  offset 40"]
    refused = bytearray(eviction(14))
    refused[144:152] = pack("<II", 11 << 10, 10 << 10)
    assert info(talk(iggy("V4"), long_request(2, 1), bytes(refused))[1]) == "evicted: incompatible protocol, accepted are 0.10.0 to 0.11.0"


def test_what_a_damaged_message_says_of_its_count() -> None:
    polled = response(pack("<IQI", 1, 12, 13) + polled_l9(b"x" * 40) + polled_l9(b"y" * 40))
    head = len(polled)
    polled = polled[:4] + pack("<I", head + 992) + polled[8:]
    (reply,) = messages(run(iggy("L9"), (CLIENT, POLL_L8), (SERVER, polled), (SERVER, 1000)))[1:]
    assert reply.fault is not None
    assert info(reply) == "partition 1  2 of 13 messages  offset 7  current 12"

    indexes = pack("<I", 5) + bytes(16 * 5)
    sent = pack("<I", 0) + ONE + ONE + b"\x01\x00" + indexes + sent_l9(b"x" * 40)
    (asked,) = messages(run(iggy("L9"), (CLIENT, pack("<II", len(sent) + 504, 101) + sent), (CLIENT, 500)))
    assert asked.fault is not None
    assert info(asked) == "1/1  balanced  1 of 5 messages"

    oldest = ONE + ONE + b"\x01\x00" + bytes(20) + pack("<I", 3) + b"abc" + bytes(10)
    (asked,) = messages(run(iggy("L1"), (CLIENT, pack("<II", len(oldest) + 504, 101) + oldest), (CLIENT, 500)))
    assert asked.fault is not None
    assert info(asked) == "1/1  balanced  1 message before the damage"


def test_what_is_not_there_is_a_question_mark() -> None:
    (asked,) = messages(run(iggy("L9"), (CLIENT, pack("<II", 200, 100) + b"\x01" + ONE + ONE), (CLIENT, 183)))
    assert asked.fault is not None
    assert info(asked) == "1/?  consumer 1"
    long = long_request(2, 1)[:130]
    assert talk(iggy("V4"), long)[0].notes == []


def test_flags_and_durations_and_keys_are_for_people() -> None:
    flush = talk(iggy("L9"), request(102, ONE + ONE + pack("<I", 2) + b"\x01"))[0]
    assert info(flush) == "stream 1  topic 1  partition 2  fsync=true"
    for layout, expiry, text in (
        ("L3", pack("<I", 3600), "3,600 s"),
        ("L6", pack("<Q", 3_600_000_000), "3,600 s"),
        ("L6", pack("<Q", 3600), "3.6 ms"),
        ("L6", pack("<Q", (1 << 64) - 1), ""),
    ):
        asked = talk(iggy(layout), request(42, s8("ci") + expiry))[0]
        assert asked.fault is None
        assert info(asked) == (f"name=ci  expiry={text}" if text else "name=ci  never expires")
    for layout, settings, text in (
        ("L5", b"\x01" + pack("<IQB", 60, 0, 1), "60 s"),
        ("L6", b"\x01" + pack("<QQB", 60_000_000, 0, 1), "60 s"),
        ("L4", pack("<IQB", 60, 0, 1), "60 s"),
    ):
        asked = talk(iggy(layout), request(304, ONE + b"\x02\x01t" + settings + b"\x02" + "é".encode()))[0]
        assert asked.fault is None
        assert info(asked) == f"stream 1  topic t  name=é  message_expiry={text}"
    for key, text in ((b"user-42", "user-42"), (b"\x00\x01", "0x0001"), (b"caf\xc3\xa9", "café"), (b"\xff", "0xff")):
        sent = ONE + ONE + b"\x03" + bytes([len(key)]) + key + bytes(20) + pack("<I", 1) + b"x"
        assert info(talk(iggy("L1"), request(101, sent))[0]) == f"1/1  key {text}  1 message"


# Any bytes, in any pieces

POOL = [
    PING,
    LOGIN_L0,
    LOGIN_L6,
    POLL_L8,
    GROUPS,
    request(201),
    request(777, b"zz"),
    request(101, pack("<I", 18) + ONE + ONE + b"\x01\x00" + pack("<I", 1) + bytes(16) + sent_l9(b"hello")),
]
ANSWERS = [
    OK,
    LOGGED_IN,
    MEMBER,
    NOTHING_POLLED,
    response(status=3),
    response(s32("no"), 1010),
    response(pack("<IQI", 1, 7, 1) + polled_l9(b"x")),
]
LONGS = [
    long_request(2, 1),
    long_request(128, body=s8("a")),
    long_request(2, 100, POLL_L8[8:]),
    long_request(2, 606, ONE * 3),
    long_request(77),
]
LONG_ANSWERS = [long_reply(2), long_reply(128, bytes(4)), long_reply(2, NOTHING_POLLED[8:]), eviction(9), long_reply(2, status=40)]


def events_of(seed: int, long: bool) -> list[Sent]:
    """A conversation with damage: bytes changed, lost, doubled, cut, and segments cut anew."""
    rng = random.Random(seed)
    asks, answers = (LONGS, LONG_ANSWERS) if long else (POOL, ANSWERS)
    events: list[Sent] = []
    for _ in range(rng.randrange(1, 12)):
        events.append((CLIENT, rng.choice(asks)))
        if rng.random() < 0.9:
            events.append((SERVER, rng.choice(answers)))
    for _ in range(rng.choice((0, 0, 1, 3))):
        place = rng.randrange(len(events))
        side, data = events[place]
        if isinstance(data, int) or not data:
            continue
        at = rng.randrange(len(data))
        how = rng.randrange(6)
        changed: list[Sent] = [
            (side, data[:at] + bytes([rng.choice((0, 1, 255))]) + data[at + 1 :]),
            (side, len(data)),
            (side, data[:at] + data[at + 1 :]),
            (side, rng.randbytes(rng.randrange(1, 90))),
            (1 - side, data),
        ]
        events[place : place + 1] = [changed[how]] if how < 5 else [(side, data[:at]), (side, data[at:])]
    return [event for event in events if event[1]]


@given(seed=st.integers(0, 1 << 32), long=st.booleans(), syn=st.booleans(), layout=st.sampled_from((None, None, None, *LAYOUTS)))
def test_any_bytes_are_read_once(seed: int, long: bool, syn: bool, layout: str | None) -> None:
    events = events_of(seed, long)
    out = [one for _, one in emitted(iggy(layout, LONG if long else CLASSIC, syn), events)]
    for one in out:
        assert isinstance(one.record, Gap) or isinstance(info(one.record), str)
    for side, end in enumerate(("192.0.2.1:40000", "192.0.2.2:8090")):
        size = sum(one.record.size for one in out if one.record.src == end and not getattr(one.record, "in_frame", False))
        assert size == sum(what if isinstance(what, int) else len(what) for at, what in events if at == side)
    roles = Counter(one.role for one in out)
    assert roles[RESPONSE] <= roles[REQUEST]


@given(data=st.binary(max_size=400), other=st.binary(max_size=400), syn=st.booleans())
def test_noise_is_read_and_never_claimed(data: bytes, other: bytes, syn: bool) -> None:
    run(iggy(candidates=(), syn=syn), (CLIENT, data), (SERVER, other))
    run(iggy("V4", syn=syn), (CLIENT, data), (SERVER, other))
    verdict = heuristic(view((data, other), syn=syn))
    assert verdict is None or verdict.confidence < 0.9


def test_tables_are_shared_by_layouts_with_the_same_bytes() -> None:
    assert ask(100, "L3") is ask(100, "L7")
    assert ask(100, "L7") is not ask(100, "L8")
    assert ask(503, "L5") is None
    assert long_ask(2, 120, "V2", "V2") is long_ask(2, 120, "V4", "V2")
    assert long_ask(164, 123, "V4", "V2") is None


@pytest.mark.parametrize("snap", range(90, 290, 8))
def test_long_headers_that_the_snap_length_cut(snap: int) -> None:
    found = [packet._replace(raw=packet.raw[:snap]) for packet in packets(GOLDEN / "py090d5-errors.pcap")]
    inspector = Inspector([open_capture(capture(found))])
    assert all(record.fault is not None for record in inspector.records() if isinstance(record, Message) and record.size > snap)


@pytest.mark.parametrize(
    ("name", "size", "layouts"),
    [("py090-basic", 128, LONG), ("py090d5-basic", 160, LONG), ("node0100e4-hb", 160, LONG), ("v05-cli", 96, CLASSIC)],
)
def test_a_snap_length_that_cuts_what_tells_it_leaves_what_is_whole(name: str, size: int, layouts: tuple[str, ...]) -> None:
    """Of a header of 256 bytes the first 61 do; of a login its length leads to the requests behind it."""
    found = packets(GOLDEN / f"{name}.pcap")

    def said(some: list[Packet]) -> tuple[list[Any], set[str | None]]:
        inspector = Inspector([open_capture(capture(some))])
        records = [record for batch in inspector.batches() for record in batch]
        places = [(one.src, one.position, one.size) for one in records if isinstance(one, Message)]
        return places, {candidate for row in inspector.rows() if row.protocol for candidate in (row.layout, *row.candidates)}

    for some in (found, with_ports(found, random_ports(3))):
        whole, _ = said(some)
        cut, told = said([packet._replace(raw=packet.raw[:size]) for packet in some])
        assert set(cut) <= set(whole)
        assert len(cut) > 0.95 * len(whole)
        assert told <= {*layouts, None}


def test_codes_that_no_layout_has_are_not_remembered_without_end() -> None:
    dissector = iggy("L7")
    asked = b"".join(request(code) for code in range(100_000, 100_000 + frames.MAX_CODES + 500))
    said = messages(run(dissector, (0, asked)))
    assert len(said) == frames.MAX_CODES + 500
    kept = (frames.exists, frames.hides, frames.always_empty, frames.answer, frames._readers)
    assert all(one.cache_info().currsize <= frames.MAX_CODES for one in kept)
    assert all(one.cache_info().currsize <= choice.MAX_TABLES for one in (choice._tables, choice._in_all))


def test_requests_that_come_at_once_are_not_gone_through_for_each() -> None:
    def cost(count: int) -> int:
        return steps(lambda: run(iggy("L9", detail=True), (0, request(1) * count)))

    assert cost(6000) < 2.3 * cost(3000)
