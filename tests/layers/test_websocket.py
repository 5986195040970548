"""WebSocket around conversations of every protocol: what is inside is read as if it were not there."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from streamdump.layers import websocket
from streamdump.layers.frames import CERTAIN_ALONE, FrameReader
from streamdump.layers.http import LARGEST, read_head
from streamdump.layers.websocket import WebSocketLayer, accept_of
from streamdump.model import ConversationRow, Gap, Message, Options, Record, SideData
from streamdump.session import Session
from streamdump.tls.keys import KeyLog
from tests.diagnose.talks import diagnosed
from tests.layers.test_proxy import FAMILIES, PORTS, ROOT, V1, messages, read, segments_of
from tests.support.peers import said
from tests.support.websocket import ANSWER, CLIENT, KEY, SERVER, Frames, Said, frame, refusal, request, response, upgraded
from tests.tls.peers import Wire, talk
from tests.tls.reading import log_of

IGGY = said(ROOT / "golden" / FAMILIES[1])
"""A conversation of requests and responses, one by one."""


def plain(path: str, port: int) -> tuple[list[Record], ConversationRow]:
    records, (row,) = read(Wire(port=port).send(said(ROOT / "golden" / path)).end().capture())
    return records, row


def short(pieces: list[Said]) -> list[Said]:
    """The beginning of a conversation."""
    sizes = [sum(len(data) for _, data in pieces[:count]) for count in range(len(pieces) + 1)]
    return pieces[: max(count for count, size in enumerate(sizes) if size < 4_000)]


def capture_of(pieces: Iterable[Said], port: int = 8092, without: Iterable[int] = (), **more: Any) -> bytes:
    return Wire(port=port, **more).send(pieces).end().capture(tuple(without))


def accounted(records: list[Record], row: ConversationRow) -> None:
    """All bytes inside are in messages or gaps; they, and those of the layer, are all bytes of the conversation."""
    reach: dict[str, int] = defaultdict(int)
    for record in sorted((one for one in records if isinstance(one, Message | Gap)), key=lambda one: one.position):
        if not getattr(record, "in_frame", False):
            assert record.position == reach[record.src]
            reach[record.src] += record.size or 0
    assert [reach[end] for end in row.endpoints] == row.facts["websocket_plain_bytes"]
    summed(row)


def summed(row: ConversationRow) -> None:
    """The bytes of the layer and those inside are all bytes of the conversation."""
    kinds = [row.facts.get(f"websocket_{kind}_bytes", [0, 0]) for kind in ("handshake", "header", "control", "plain", "unread")]
    assert [sum(kind[side] for kind in kinds) for side in (0, 1)] == list(row.bytes)


WAYS: dict[str, dict[str, Any]] = {
    "a frame for each": {},
    "text": {"opcode": 1},
    "fragments with control frames": {"piece": 7, "between": True},
    "fragments of a byte": {"piece": 1},
}


@pytest.mark.parametrize("size", [1460, 5])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("path", "port"), [*zip(FAMILIES, PORTS, strict=True)])
def test_every_family(path: str, port: int, way: str, size: int) -> None:
    first = short(said(ROOT / "golden" / path))
    before, (row,) = read(capture_of(first, port))
    wire = Wire(port=port).send(upgraded(first, **WAYS[way]), size).end()
    found, (inside,) = read(wire.capture())
    assert messages(found) == messages(before) and messages(found)
    assert (inside.protocol, inside.layout, inside.client) == (row.protocol, row.layout, "192.0.2.1:40000")
    assert inside.evidence[-1] == "inside WebSocket"
    assert inside.facts["websocket"] == "upgraded" and inside.facts["websocket_close"] == "1000 normal closure by the client"
    accounted(found, inside)
    for rows in (1, 7):
        assert read(wire.capture(), rows) == (found, [inside])


def test_several_frames_in_a_segment() -> None:
    pieces = upgraded(IGGY[:12], piece=100)
    together: list[Said] = []
    for side, data in pieces:
        if together and together[-1][0] == side:
            together[-1] = side, together[-1][1] + data
        else:
            together.append((side, data))
    found, (row,) = read(capture_of(together))
    before, _ = read(capture_of(IGGY[:12], 8090))
    assert messages(found) == messages(before) and len(messages(found)) > 8
    accounted(found, row)


def test_inside_of_tls_and_behind_a_proxy_header() -> None:
    one = talk(upgraded(IGGY))
    (side, first), *rest = one.sent
    found, (row,) = read(capture_of([(side, V1 + first), *rest]), keys=log_of(one.keys))
    before, _ = plain(FAMILIES[1], 8090)
    assert messages(found) == messages(before)
    assert (row.facts["tls"], row.facts["proxy_client"], row.facts["websocket"]) == ("1.3", "192.0.2.10:51234", "upgraded")
    _, (sealed,) = read(capture_of(one.sent))
    assert sealed.name == "TLS" and "websocket" not in sealed.facts


def test_inside_of_tls_whose_start_shows_that_of_what_is_inside() -> None:
    one = talk(upgraded(said(ROOT / "golden" / FAMILIES[0])[:30]))
    wire = Wire(syn=False).send(one.sent).end()
    # A record of TLS 1.3 has 22 bytes more than it carries
    asked = [(side, len(data)) for side, data in one.sent].index((CLIENT, len(request()) + 22))
    _, (row,) = read(wire.capture((asked + 2,)), keys=log_of(one.keys))
    assert (row.facts["websocket"], row.facts["handshake"]) == ("upgraded, answer not captured", "ready")


@pytest.mark.parametrize("until", [3, 4, 20, 60, 61, 150, 400])
def test_a_conversation_goes_on_in_another_process(until: int) -> None:
    wire = Wire().send(upgraded(IGGY[:10], piece=11), 3).end()
    segments = segments_of(open_(wire.capture()))
    complete, split = Session(Options(), KeyLog()), Session(Options(), KeyLog())
    expected = [one for segment in segments for one in complete.feed(segment)] + complete.finish()
    found = [one for segment in segments[:until] for one in split.feed(segment)]
    split = Session.restore(split.snapshot(), Options(), KeyLog())
    found += [one for segment in segments[until:] for one in split.feed(segment)] + split.finish()
    assert [one.record for one in found] == [one.record for one in expected]
    assert list(split.table.rows(False)) == list(complete.table.rows(False))


def open_(capture: bytes) -> Any:
    from streamdump.capture.files import open_capture

    return open_capture(io.BytesIO(capture), name="test")


def test_a_head_is_read_once_however_slowly_the_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(websocket, "read_head", lambda data: read.append(data) or read_head(data))
    layer, asked = WebSocketLayer(True), request()
    layer.feed([SideData(0, 0, asked, (0, 1, 0, 0))], False)
    for at in range(1_000):
        layer.feed([SideData(1, at, b"HTTP/1.1 101 "[at : at + 1] or b"x", (at + 1, at + 2, 0, 0))], False)
    assert read.count(asked) == 1


def test_the_answer_to_the_key_of_the_rfc() -> None:
    assert accept_of(KEY) == ANSWER
    assert ANSWER.encode() in response()


@pytest.mark.parametrize(
    ("accept", "damaged"),
    [(None, None), (ANSWER[::-1], "Sec-WebSocket-Accept does not belong to the key of the request")],
)
def test_the_key_is_checked(accept: str | None, damaged: str | None) -> None:
    _, answer, *rest = upgraded(IGGY[:4])
    found, (row,) = read(capture_of([(CLIENT, request()), (SERVER, response(accept=accept)), *rest]))
    assert row.facts.get("websocket_damaged") == damaged and len(messages(found)) == len(IGGY[:4])
    assert answer[0] == SERVER


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "301 Moved Permanently", "503"])
@pytest.mark.parametrize("size", [1460, 1])
@pytest.mark.parametrize("forced", [False, True])
def test_a_refusal_is_no_damage(status: str, size: int, forced: bool) -> None:
    wire = Wire(port=8092).send([(CLIENT, request("/?token=swordfish")), (SERVER, refusal(status))], size).end()
    decode_as = {"decode_as": ((8092, "iggy", None),)} if forced else {}
    found, (row,) = read(wire.capture(), **decode_as)
    assert row.facts["websocket"] == f"refused with {status}"
    assert row.facts["websocket_target"] == "/?<redacted 15 bytes>"
    assert not messages(found) and not row.gaps and not row.faults
    if not forced:
        assert (row.name, row.evidence) == ("WebSocket, refused", (f"an upgrade to WebSocket was answered with {status}",))
    summed(row)


def test_a_second_try_on_the_same_connection() -> None:
    _, _, *rest = upgraded(IGGY[:6])
    tries = [(CLIENT, request()), (SERVER, refusal()), (CLIENT, request("/", "Authorization: Basic eA==")), (SERVER, response())]
    found, (row,) = read(capture_of([*tries, *rest]))
    before, _ = read(capture_of(IGGY[:6], 8090))
    assert messages(found) == messages(before) and row.facts["websocket"] == "upgraded"
    accounted(found, row)


# What is missing


LOCKSTEP: list[Said] = [(side, data) for side, data in IGGY if len(data) < 1000][:16]


def test_a_lost_segment_within_a_frame_costs_its_message() -> None:
    """Each fragment has its own segment; a segment in the middle of a payload is lost, and all others are read."""
    pieces = upgraded(IGGY)
    wire = Wire(port=8092).send(pieces, 400).end()
    lengths = [len(packet.data) for packet in wire.packets]
    complete, (row,) = read(wire.capture())
    inner = [number for number in range(6, len(lengths)) if lengths[number - 1] == lengths[number - 2] == lengths[number] == 454]
    assert inner
    found, (lossy,) = read(wire.capture([inner[0]]))
    assert [one.size for one in found if isinstance(one, Gap)] == [400]
    assert len(messages(found)) == len(messages(complete))
    assert sum(one.fault is not None for one in found if isinstance(one, Message)) == 1
    assert lossy.facts["websocket_plain_bytes"] == row.facts["websocket_plain_bytes"]
    accounted(found, lossy)


@pytest.mark.parametrize("lost", range(3, 22))
def test_each_lost_segment_costs_what_it_touches(lost: int) -> None:
    """One frame in each segment: without one of them, at most that message and its pair are missing."""
    wire = Wire(port=8092).send(upgraded(LOCKSTEP)).end()
    complete, _ = read(wire.capture())
    found, (row,) = read(wire.capture([lost]))
    for rows in (1, 7):
        assert read(wire.capture([lost]), rows) == (found, [row])
    if lost in (3, 4):
        # The request or the answer; the other is enough
        assert row.facts["websocket"] in ("upgraded", "upgraded, answer not captured")
    assert len(messages(found)) >= len(messages(complete)) - 2
    accounted(found, row)


def test_a_header_in_two_segments_of_which_one_is_lost() -> None:
    wire = Wire(port=8092).send(upgraded(LOCKSTEP), 3).end()
    for lost in range(110, 140):
        found, (row,) = read(wire.capture([lost]))
        accounted(found, row)


# The middle


@pytest.mark.parametrize("without", [4, 5, 7])
def test_the_upgrade_was_not_captured(without: int) -> None:
    wire = Wire(port=8092).send(upgraded(LOCKSTEP)).end()
    found, (row,) = read(wire.capture(range(1, without + 1)))
    before, _ = read(capture_of(LOCKSTEP[max(0, without - 4) :], 8090, syn=False))
    assert row.facts["websocket"] == "upgrade not captured"
    assert row.evidence[-1] == "in frames of WebSocket, whose upgrade was not captured"
    assert row.client == "192.0.2.1:40000" and len(messages(found)) == len(messages(before)) > 5
    accounted(found, row)


def test_the_middle_of_a_frame() -> None:
    """The first bytes are the rest of a frame: frames are found where segments begin with them."""
    big = [(CLIENT, Frames().message(CLIENT, bytes(range(256)) * 20)), (SERVER, Frames().message(SERVER, bytes(range(250, 0, -1)) * 20))]
    wire = Wire(port=8092, syn=False).send([*big, *upgraded(LOCKSTEP)[2:]]).end()
    found, (row,) = read(wire.capture([1, 5]))
    assert row.facts["websocket"] == "upgrade not captured" and len(messages(found)) >= len(LOCKSTEP) - 2
    accounted(found, row)


def test_the_client_alone() -> None:
    client = [one for one in upgraded(LOCKSTEP)[2:] if one[0] == CLIENT]
    _, (row,) = read(capture_of(client, syn=False))
    assert row.facts["websocket"] == "upgrade not captured"
    _, (few,) = read(capture_of(client[: CERTAIN_ALONE - 1], syn=False))
    assert few.name is None and "websocket" not in few.facts


NOTHING: dict[str, list[Said]] = {
    "no upgrade": [(CLIENT, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), (SERVER, refusal("200 OK"))],
    "h2c": [(CLIENT, request(upgrade="h2c")), (SERVER, response().replace(b"websocket", b"h2c")), (SERVER, b"\0\0\6\4\0\0\0\0\0" * 3)],
    "not answered": [(CLIENT, request())],
    "answered without HTTP": [(CLIENT, request()), (SERVER, b"\0\0\0\0\0\0\0\0")],
    "without an end": [(CLIENT, b"GET / HTTP/1.1\r\nHost: " + b"a" * 2 * LARGEST), (SERVER, refusal())],
    "cut off": [(CLIENT, request()[:-2])],
    "GET of another protocol": [(CLIENT, b"GET key\r\n"), (SERVER, b"$-1\r\n")],
    "a server that asks": [(SERVER, request()), (CLIENT, response())],
}


@pytest.mark.parametrize("case", NOTHING)
@pytest.mark.parametrize("size", [1460, 1])
def test_what_is_no_websocket_stays(case: str, size: int) -> None:
    found, (row,) = read(Wire(port=8092).send(NOTHING[case], size).end().capture())
    assert not messages(found) and not [name for name in row.facts if name.startswith("websocket")]
    if case not in ("GET of another protocol", "without an end"):
        assert row.name == "HTTP"


def test_ordinary_chat_is_named_and_nothing_is_claimed() -> None:
    talk = [(side, text.encode()) for side, text in [(0, "hello there"), (1, '{"user": "ann", "text": "hello"}'), (0, "bye")] * 9]
    for begin in (0, 4):
        found, (row,) = read(capture_of(upgraded(talk, opcode=1), 80, range(1, begin + 1)))
        assert not found and (row.protocol, row.name, row.confidence) == (None, "WebSocket", 1.0)
        summed(row)


# Frames that RFC 6455 forbids


def test_masks_in_the_wrong_direction() -> None:
    pieces: list[Said] = [(CLIENT, request()), (SERVER, response())]
    pieces += [(side, frame(data, b"abcd" if side == SERVER else None)) for side, data in IGGY]
    found, _ = read(capture_of(pieces))
    before, _ = plain(FAMILIES[1], 8090)
    wrong = ["WebSocket: the client does not mask its frames", "WebSocket: the server masks its frames"]
    assert [one.notes for one in found if isinstance(one, Message)] == [
        [*one.notes, wrong[one.sender == "server"]] for one in before if isinstance(one, Message)
    ]


BAD: dict[str, bytes] = {
    "an unknown opcode": frame(b"x" * 9, b"abcd", opcode=5),
    "reserved bits": frame(b"x" * 9, b"abcd", rsv=2),
    "compressed, not agreed on": frame(b"x" * 9, b"abcd", rsv=4),
    "a control frame in pieces": frame(b"x" * 9, b"abcd", opcode=9, fin=False),
    "a large control frame": frame(b"x" * 126, b"abcd", opcode=9),
    "a length of 64 bits": frame(b"x" * 9, b"abcd", length=(1 << 63) + 5),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("size", [1460, 1])
def test_what_is_no_frame_is_skipped(case: str, size: int) -> None:
    one, two = upgraded(LOCKSTEP[:8]), upgraded(LOCKSTEP[:8])[2:]
    wire = Wire(port=8092).send([*one[:-2], (CLIENT, BAD[case])], size).send(two).end()
    found, (row,) = read(wire.capture())
    assert len(messages(found)) >= 15
    (gap,) = [one for one in found if isinstance(one, Gap)]
    assert (gap.reason, gap.size) == ("skipped", None)
    assert row.facts["websocket_unread_bytes"] == [len(BAD[case]), 0]
    accounted(found, row)


def test_compressed_messages_are_not_read() -> None:
    extension = "Sec-WebSocket-Extensions: permessage-deflate"
    pieces: list[Said] = [(CLIENT, request("/", extension)), (SERVER, response(extension)), *upgraded(LOCKSTEP[:6])[2:-2]]
    packed = [(CLIENT, frame(b"zipped", b"abcd", rsv=4)), (SERVER, frame(b"zipped", rsv=4))]
    found, (row,) = read(capture_of([*pieces, *packed, *upgraded(LOCKSTEP[6:])[2:]]))
    assert row.facts["websocket_extensions"] == "permessage-deflate" and row.facts["websocket_compressed"] == 2
    assert [(one.reason, one.size) for one in found if isinstance(one, Gap)] == [("skipped", None)] * 2
    assert len(messages(found)) >= len(LOCKSTEP) - 1
    accounted(found, row)


def test_the_code_of_a_close() -> None:
    frames = Frames()
    for code, reason, text in ((1009, "", "1009 message too big"), (4001, "token\x1b expired", "4001: token\x1b expired")):
        pieces = [*upgraded(LOCKSTEP[:4])[:-2], (SERVER, frames.close(SERVER, code, reason)), (CLIENT, frames.close(CLIENT, code))]
        _, (row,) = read(capture_of(pieces))
        assert row.facts["websocket_close"] == f"{text} by the server"


# Any bytes


def test_any_pieces_give_the_same() -> None:
    frames = Frames(7)
    draw = frames.random
    for _ in range(300):
        data = b""
        while draw.random() < 0.9:
            side = CLIENT
            kind = draw.randrange(8)
            payload = draw.randbytes(draw.choice((0, 1, 5, 125, 126, 300)))
            if kind < 5:
                data += frames.message(side, payload, piece=draw.choice((0, 1, 50)))
            elif kind == 5:
                data += frames.ping(side, payload[:125])
            elif kind == 6:
                data += draw.randbytes(draw.randrange(6))
            else:
                data = data[: draw.randrange(len(data) + 1)]
        complete = pieces_of(data, [])
        cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(9)))
        assert pieces_of(data, cuts) == complete


def pieces_of(data: bytes, cuts: list[int]) -> bytes:
    """Return what is inside of frames of the client up to the first gap, if they arrive in these pieces; all bytes are counted."""
    reader, out, at = FrameReader(0, True), list[Any](), 0
    for cut in [*cuts, len(data)]:
        if cut > at:
            reader.feed(SideData(0, at, data[at:cut], (at, at, 0, 0)), out)
            at = cut
    assert sum(reader.sizes()) == len(data)
    until = next((place for place, one in enumerate(out) if type(one) is not SideData), len(out))
    return b"".join(one.data for one in out[:until])


def test_a_segment_without_bytes_inside_adds_nothing() -> None:
    sent, reader, out, position = frame(b"hello") + frame(b"you", opcode=9) + frame(b"world"), FrameReader(1, False), list[Any](), 0
    for piece in (sent[:2], sent[2:7], sent[7:10], sent[10:14], sent[14:]):
        reader.feed(SideData(1, position, piece, (position, position, 0, 0)), out)
        position += len(piece)
    assert [(item.position, item.data) for item in out] == [(0, b"hello"), (5, b"world")]


def test_a_layer_holds_little() -> None:
    layer = WebSocketLayer(True)
    none = False
    for at in range(0, 4 * LARGEST, 100):
        _, none = layer.feed([SideData(0, at, b"GET /" if not at else b"a" * 100, (at, at, 0, 0))], False)
        if none:
            break
    assert none and at <= LARGEST + 100


# The end


def reported(pieces: Iterable[Said], port: int = 8092) -> list[tuple[str, str, str]]:
    return [(one.severity, one.rule, one.cause) for one in diagnosed(capture_of(pieces, port))[0] if one.rule == "tcp.websocket-failed"]


def test_what_the_diagnosis_says_of_the_end() -> None:
    refused = [(CLIENT, request("/ws?a=b")), (SERVER, refusal("404 Not Found"))]
    cause = "the server answers the upgrade to WebSocket (GET /ws?<redacted 3 bytes>) with 404 Not Found"
    assert reported(refused) == [("error", "tcp.websocket-failed", cause)]
    assert reported(refused, 80) == []
    frames, (asked, answer, *rest) = Frames(), upgraded(LOCKSTEP)
    assert reported([asked, answer, *rest]) == []
    for code, text in ((1001, None), (1009, "the server closes WebSocket with 1009 message too big")):
        found = reported([asked, answer, *rest[:-2], (SERVER, frames.close(SERVER, code)), (CLIENT, frames.close(CLIENT, code))])
        assert found == ([] if text is None else [("warning", "tcp.websocket-failed", text)])
    cause = "clients do not accept the server's answer to the upgrade: Sec-WebSocket-Accept does not belong to the key of the request"
    assert reported([asked, (SERVER, response(accept="x")), *rest]) == [("error", "tcp.websocket-failed", cause)]


def test_who_closes_is_who_says_so() -> None:
    _, (row,) = read(capture_of([*upgraded(LOCKSTEP)[:-2], (SERVER, Frames().close(SERVER, 1001))]))
    assert row.ended == "WebSocket Close 1001 by server"


def test_a_message_that_is_cut_off_at_the_end() -> None:
    """Positions inside are smaller than those of the connection: the end is the same as without WebSocket."""
    cut = [*LOCKSTEP, (CLIENT, LOCKSTEP[-2][1][:3])]
    plain, inside = [diagnosed(capture_of(pieces))[0] for pieces in (cut, upgraded(cut)[:-2])]
    assert [(one.rule, one.cause) for one in inside] == [(one.rule, one.cause) for one in plain]
    assert any("in the middle of" in one.cause for one in plain)


def other(pieces: Iterable[Said], port: int = 8092, without: Iterable[int] = (), **more: Any) -> list[tuple[str, str]]:
    findings = diagnosed(capture_of(pieces, port, without, **more))[0]
    return [(one.severity, one.cause) for one in findings if one.rule == "tcp.other-protocol"]


def test_what_the_diagnosis_says_where_websocket_belongs() -> None:
    """The head of an upgrade is in HTTP, and a connection of WebSocket need not carry anything."""
    frames, asked, answer = Frames(), (CLIENT, request()), (SERVER, response())
    pings = [(CLIENT, frames.ping(CLIENT, b"hi")), (SERVER, frames.pong(SERVER, b"hi"))]
    for port in (8092, 8090, 5552):
        assert other([asked, answer], port) == other([asked, answer, *pings], port) == []
    for port, severity in ((8092, "warning"), (8090, "error")):
        assert [one for one, _ in other([asked, answer, (CLIENT, frames.message(CLIENT, b"hello there", 1))], port)] == [severity]
    assert other([asked]) == other([asked, answer, *upgraded(LOCKSTEP)[2:]]) == []
    post = (CLIENT, b"POST /streams HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    cause = "the port is that of iggy in WebSocket, but the bytes are HTTP without an upgrade to it"
    assert other([post, (SERVER, refusal("426 Upgrade Required"))]) == [("error", cause)]


@pytest.mark.parametrize("lost", range(3, 8))
def test_half_an_upgrade_is_no_other_protocol(lost: int) -> None:
    """A packet is missing, from the first that the server acknowledged to what follows the answer."""
    asked, answer = request(), response()
    halves = [(side, part) for side, data in ((CLIENT, asked), (SERVER, answer)) for part in (data[:30], data[30:])]
    found = other([*halves, (CLIENT, Frames().message(CLIENT, b"\x04\x00\x00", 2))], 8092, (lost,))
    assert [severity for severity, _ in found] == ["note"]
