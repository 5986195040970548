"""WebSocket of another implementation: client and server of `websockets`, with what each of them heard."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tests.layers.test_websocket import FAMILIES, ROOT, accounted, capture_of, messages, read
from tests.support.peers import said
from tests.support.websocket import CLIENT, Said
from tests.tls.peers import Recorder

websockets = pytest.importorskip("websockets")
pytestmark = pytest.mark.live


async def carried(inside: list[Said], piece: int, code: int) -> list[Said]:
    """What two peers send that say these bytes to each other; `piece`: in fragments of this size."""
    from websockets.asyncio.client import connect
    from websockets.asyncio.server import serve

    async def say(peer: Any, data: bytes) -> None:
        parts: Any = [data[at : at + piece] for at in range(0, len(data), piece)] if piece else data
        await peer.send(parts)

    async def play(peer: Any, own: int) -> None:
        for side, data in inside:
            if side == own:
                await say(peer, data)
            else:
                assert await peer.recv() == data
                with contextlib.suppress(websockets.ConnectionClosed):
                    await peer.ping()

    async def answer(peer: Any) -> None:
        await play(peer, 1)
        await peer.close(code, "done")

    async with serve(answer, "127.0.0.1", 0, compression=None) as server:
        recorder = Recorder(server.sockets[0].getsockname()[1])
        async with connect(f"ws://127.0.0.1:{recorder.port}/", compression=None) as client:
            await play(client, CLIENT)
            with contextlib.suppress(websockets.ConnectionClosed):
                await client.recv()
        return await asyncio.to_thread(recorder.wait)


@pytest.mark.parametrize("piece", [0, 3])
@pytest.mark.parametrize("path", [FAMILIES[0], "iggy/py080-errors.pcap", "iggy/py090d5-errors.pcap"])
def test_peers_of_another_implementation(path: str, piece: int) -> None:
    inside = said(ROOT / "golden" / path)
    sent = asyncio.run(carried(inside, piece, 1011))
    found, (row,) = read(capture_of(sent))
    before, _ = read(capture_of(inside, 8090))
    assert [one[1:5] for one in messages(found)] == [one[1:5] for one in messages(before)] and len(messages(found)) > 8
    assert row.facts["websocket_close"] == "1011 internal error: done by the server"
    accounted(found, row)
