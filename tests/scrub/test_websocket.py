"""scrub and WebSocket: what is inside is overwritten with the masks of its frames, so that the copy decodes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from streamdump.model import Message, Options
from streamdump.scrub.run import ScrubOptions, scrub
from tests.layers.test_proxy import FAMILIES, ROOT, read
from tests.layers.test_websocket import LOCKSTEP, capture_of
from tests.support.peers import said
from tests.support.websocket import CLIENT, SERVER, Frames, Said, frame, refusal, request, response, upgraded
from tests.tls.peers import Wire

HEAD = request("/private?token=swordfish1", "Authorization: Basic c3dvcmRmaXNoMg==", "Cookie: id=swordfish3", "X-Any: swordfish4")
EVERYTHING = ScrubOptions(payloads=True, names=True, addresses=True)


def scrubbed(capture: bytes, tmp_path: Path, wanted: ScrubOptions) -> bytes:
    target = tmp_path / "out.pcap"
    scrub(io.BytesIO(capture), target, wanted, Options(), "test")
    return target.read_bytes()


def shape(capture: bytes, **options: Any) -> list[tuple[Any, ...]]:
    found, rows = read(capture, **options)
    facts = {key: value for key, value in rows[0].facts.items() if key.startswith("websocket") and key != "websocket_target"}
    messages = [(one.name, one.kind, one.position, one.size, one.fault, one.notes) for one in found if isinstance(one, Message)]
    return [*messages, tuple(facts.items())]


def inside(capture: bytes) -> bytes:
    """All that the frames of the client contain, joined."""
    found, _ = read(capture, detail=True, bytes_as="raw", show_secrets=True)
    return b"".join(one.raw["frame"] for one in found if isinstance(one, Message) and one.raw is not None)


@pytest.mark.parametrize("wanted", [ScrubOptions(), EVERYTHING], ids=["secrets", "everything"])
@pytest.mark.parametrize("size", [1460, 7])
@pytest.mark.parametrize("piece", [0, 5])
@pytest.mark.parametrize("path", [FAMILIES[0], "iggy/py080-errors.pcap"])
def test_the_copy_decodes(path: str, piece: int, size: int, wanted: ScrubOptions, tmp_path: Path) -> None:
    before = said(ROOT / "golden" / path)
    plain = scrubbed(capture_of(before, 5552, client_port=40001), tmp_path, wanted)
    pieces = upgraded(before, piece=piece, between=True)
    capture = Wire(port=5552, client_port=40001).send([(CLIENT, HEAD), *pieces[1:]], size).end().capture()
    copy = scrubbed(capture, tmp_path, wanted)
    assert len(copy) == len(capture) and copy != capture
    assert shape(copy) == shape(capture) and len(shape(copy)) > 10
    assert inside(copy) == inside(plain) != inside(capture)


def test_secrets_in_heads(tmp_path: Path) -> None:
    capture = capture_of([(CLIENT, HEAD), *upgraded(LOCKSTEP)[1:]])
    copy = scrubbed(capture, tmp_path, ScrubOptions())
    for number in range(1, 5):
        secret = b"c3dvcmRmaXNoMg==" if number == 2 else b"swordfish%d" % number
        assert secret in capture and secret not in copy
    assert b"GET /private?xxxxxxxxxxxxxxxx HTTP/1.1\r\nHost: 192.0.2.2:8092\r\n" in copy
    every = scrubbed(capture, tmp_path, EVERYTHING)
    assert b"private" not in every and b"Host: 192.0.2.2:8092" not in every and b"Sec-WebSocket-Key: dGhl" in every


def test_a_refused_upgrade(tmp_path: Path) -> None:
    capture = capture_of([(CLIENT, HEAD), (SERVER, refusal())])
    copy = scrubbed(capture, tmp_path, ScrubOptions())
    assert b"swordfish" not in copy and b"401 Unauthorized" in copy
    assert shape(copy) == shape(capture)


def test_what_was_not_read_is_overwritten(tmp_path: Path) -> None:
    """Bytes without a frame, compressed messages, and the reasons of Close; the code stays."""
    extension = "Sec-WebSocket-Extensions: permessage-deflate"
    frames = Frames()
    pieces: list[Said] = [(CLIENT, request("/", extension)), (SERVER, response(extension)), *upgraded(LOCKSTEP)[2:-2]]
    pieces += [(SERVER, frame(b"compressed", rsv=4)), (CLIENT, frames.close(CLIENT, 1008, "reason of a close"))]
    pieces += [(SERVER, b"\xf3 bytes without a frame")]
    capture = capture_of(pieces)
    copy = scrubbed(capture, tmp_path, ScrubOptions())
    assert b"compressed" not in copy and b"without a frame" not in copy
    assert shape(copy) == shape(capture)
    facts = [dict(shape(one)[-1])["websocket_close"] for one in (copy, scrubbed(capture, tmp_path, EVERYTHING))]
    assert facts == ["1008 policy violation: reason of a close by the client", f"1008 policy violation: {'x' * 17} by the client"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_the_reason_of_a_close_of_which_a_segment_is_lost(lost: int, tmp_path: Path) -> None:
    wire = Wire(port=8092).send(upgraded(LOCKSTEP)[:-2])
    before = len(wire.packets)
    capture = wire.send([(SERVER, frame(b"\x03\xf0a reason of a close", opcode=8))], 6).end().capture((before + lost,))
    copy = scrubbed(capture, tmp_path, EVERYTHING)
    assert b"close" in capture and b"close" not in copy
    assert shape(copy) == shape(capture)
