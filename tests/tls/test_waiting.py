"""Connections that wait for keys: how long, and what that costs."""

from __future__ import annotations

import gc
import gzip
import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Options
from streamdump.tls.decryptor import TlsDecryptor
from streamdump.tls.manager import TlsManager
from tests.bench.hostile import tls_connections
from tests.support.frames import enhanced, interface, section
from tests.tls.peers import CLIENT, SERVER, START_NS, Wire, secrets_block, talk
from tests.tls.reading import BATCHES, once

HTTP = [(CLIENT, b"GET / HTTP/1.1\r\n\r\n"), (SERVER, b"HTTP/1.1 204 No Content\r\n\r\n")]
READ = [18, 27]


class Crowd:
    """TLS connections one after the other in pcapng blocks."""

    def __init__(self, count: int, apart_ns: int = 1_000_000) -> None:
        talks = [talk(HTTP) for _ in range(count)]
        wires = [Wire(client_port=40_000 + at, start_ns=START_NS + at * apart_ns).send(one.sent).end() for at, one in enumerate(talks)]
        self.keys = [secrets_block(one.keys) for one in talks]
        self.packets = [enhanced(packet, ticks=packet.time_ns) for wire in wires for packet in wire.packets]
        self.ends = [sum(len(one.packets) for one in wires[: at + 1]) for at in range(count)]

    def capture(self, *, keys_at: int | None = None, keys: int | None = None) -> bytes:
        """With the keys of so many connections before a packet; without a place at the end."""
        at = len(self.packets) if keys_at is None else keys_at
        given = self.keys[:keys]
        return b"".join([section(), interface(resolution=9), *self.packets[:at], *given, *self.packets[at:]])


def counting(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*values: Any) -> Any:
        calls.append(1)
        return function(*values)

    return counted


def waiting(inspector: Inspector) -> tuple[list[list[int] | None], dict[int, int]]:
    """How many bytes each connection sent inside TLS, and by packet how many connections wait behind it."""
    counts: dict[int, int] = {}
    feed = inspector.table.feed

    def counted(segments: Any) -> Any:
        found = []
        for segment in segments:
            found += feed((segment,))
            counts[segment.number] = len(inspector.run.tls_manager.waiting)
        return found

    inspector.table.feed = counted  # type: ignore[method-assign]
    list(inspector.records())
    return [row.facts.get("tls_plain_bytes") for row in inspector.rows()], counts


def test_a_key_wakes_the_connections_of_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(20)
    fed: list[int] = []
    monkeypatch.setattr(TlsManager, "feed", counting(TlsManager.feed, fed))
    # The keys of each before one of the packets of the last
    blocks = list(crowd.packets)
    for at, key in enumerate(crowd.keys[:10]):
        blocks.insert(crowd.ends[18] + 1 + 2 * at, key)
    found = once(b"".join([section(), interface(resolution=9), *blocks]))
    assert [row.facts.get("tls_plain_bytes") for row in found.rows] == [*[READ] * 10, *[None] * 10]
    # Each is fed its packets with bytes, once for its key, and once at the end
    assert len(fed) <= len(crowd.packets) + 2 * 20


def test_what_waits_is_not_counted_again_with_every_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(20)
    read: list[int] = []
    monkeypatch.setattr(TlsDecryptor, "held", property(counting(TlsDecryptor.held.fget, read)))  # type: ignore[attr-defined]
    once(crowd.capture())
    assert 20 < len(read) < len(crowd.packets)


@pytest.mark.parametrize("keys", [0, 1, 3])
def test_the_total_is_empty_when_no_connection_waits(keys: int) -> None:
    tls_manager = once(Crowd(3).capture(keys_at=40, keys=keys)).inspector.run.tls_manager
    assert (tls_manager.held, tls_manager.waiting, tls_manager._waiting_for) == (0, {}, {})


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_without_secrets_waits_for_none(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    data = Crowd(2).capture(keys=0)
    path.write_bytes(gzip.compress(data) if packed else data)
    for rows in BATCHES:
        shown, counts = waiting(Inspector([open_capture(path)], rows=rows))
        assert shown == [None, None]
        assert set(counts.values()) == {0}


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_waits_up_to_its_last_secrets(packed: bool, tmp_path: Path) -> None:
    """Those of the second of four connections stand in the third: the first waits until then, the third and the fourth no longer."""
    crowd = Crowd(4)
    place = crowd.ends[1] + 12
    crowd.keys = crowd.keys[1:2]
    path = tmp_path / "capture"
    data = crowd.capture(keys_at=place)
    path.write_bytes(gzip.compress(data) if packed else data)
    for rows in BATCHES:
        shown, counts = waiting(Inspector([open_capture(path)], rows=rows))
        assert shown == [None, READ, None, None]
        assert counts[place] == 3
        assert {count for number, count in counts.items() if number > place} == {0}


def test_secrets_behind_the_last_packet_of_a_file(tmp_path: Path) -> None:
    crowd = Crowd(2)
    path = tmp_path / "capture"
    path.write_bytes(crowd.capture())
    for rows in BATCHES:
        shown, counts = waiting(Inspector([open_capture(path)], rows=rows))
        assert shown == [READ, READ]
        assert counts[len(crowd.packets)] == 2


def test_a_file_that_was_replaced_counts_as_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(Crowd(1).capture())
    reader = open_capture(path)
    path.rename(tmp_path / "old")
    path.write_bytes(Crowd(1).capture(keys=0))
    assert reader.last_secrets is None
    assert open_capture(path).last_secrets == -1
    assert open_capture(io.BytesIO(path.read_bytes())).last_secrets is None


def test_a_pipe_does_not_wait_for_keys_of_connections_that_ended_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a pipe is unknown: a connection that has ended waits as long as it is remembered."""
    from streamdump.conversation import table

    monkeypatch.setattr(table, "EPOCH", 1 << 10)
    second = 1_000_000_000
    crowd = Crowd(40, apart_ns=second)
    for limit, most in ((10, 11), (100, 40)):
        inspector = Inspector([open_capture(io.BytesIO(crowd.capture(keys=0)))], Options(closed_time_ns=limit * second))
        shown, counts = waiting(inspector)
        assert shown == [None] * 40
        assert max(counts.values()) == most
        assert {row.name for row in inspector.rows()} == {"TLS"}


def test_an_open_connection_takes_little_memory() -> None:
    """`tracked_limit` bounds their number, and so this bounds what all of them take."""
    made = tls_connections(60_000, "none")
    sizes = []
    for _ in range(2):
        inspector = Inspector([open_capture(io.BytesIO(made.file), name="capture")], Options(), finite=True)
        batches = inspector.batches(len(made.file))
        tracemalloc.start()
        next(batches)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    # The second run does not count what is loaded once
    assert made.conversations > 200
    assert sizes[1] < 13_000 * made.conversations
