"""A bug of ours in a capture without an end: its conversation is counted on, forgotten as others are, and nobody else notices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdump.errors import BARRIER
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Ending, Exchange, Gap, Message, Options, Record
from streamdump.pair.pairer import Pairer
from streamdump.tcp.assembler import TcpStream
from tests.bench.live import PING, PONG, batch_of, conversation
from tests.capture.test_live import pings
from tests.support.peers import Pair, capturing, free_port, needs_capture, records
from tests.support.planting import plant

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
IGGY = ((8090, "iggy", None),)

PLANTED = """
import streamdump.pair.pairer
take = streamdump.pair.pairer.Pairer.pair
def planted(self, one, append):
    if one.record.conversation == 0 and one.record.position >= 16:
        raise ZeroDivisionError
    take(self, one, append)
streamdump.pair.pairer.Pairer.pair = planted
"""
"""The third request of the first conversation is too much."""


class Endless:
    """A capture that goes on, packet by packet."""

    def __init__(self, options: Options) -> None:
        self.inspector = Inspector([], options)
        self.now_ns = START
        self.gone: list[ConversationRow] = []

    def process(self, packets: list[bytes], after_ns: int = 0) -> list[Record]:
        self.now_ns += after_ns
        inspector = self.inspector
        found = inspector.process(batch_of(packets, inspector.counters.packets, self.now_ns, 1_000_000)) if packets else []
        self.now_ns += 1_000_000 * len(packets)
        return found + inspector.age(self.now_ns, self.gone.extend)


def in_pairing(patch: pytest.MonkeyPatch) -> None:
    plant(patch, Pairer, "pair", lambda self, one, append: one.record.conversation % 3 == 0 and one.record.position >= 16)


def in_reassembly(patch: pytest.MonkeyPatch) -> None:
    plant(patch, TcpStream, "feed", lambda self, segment, _: segment.order % 42 == 7)


@pytest.mark.usefixtures("barrier")
@pytest.mark.parametrize("room", [in_pairing, in_reassembly], ids=lambda room: room.__name__)
@pytest.mark.parametrize(
    "options",
    [Options(closed_time_ns=SECOND, decode_as=IGGY), Options(tracked_limit=100, closed_time_ns=1 << 60, decode_as=IGGY)],
    ids=["time", "count"],
)
def test_those_that_failed_are_forgotten_as_others_are(
    options: Options, room: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    room(monkeypatch)
    endless = Endless(options)
    found: list[Record] = []
    for number in range(1000):
        found += endless.process(conversation(number, 4))
    inspector = endless.inspector
    failed = inspector.counters.failures
    assert 300 < failed == len(inspector.reports)
    assert len(inspector.table.conversations) < 150
    assert len(inspector.table._by_ends) < 2 * 150
    assert inspector.run.pool.total == inspector.run.pool.count == 0
    rows = [*endless.gone, *inspector.rows()]
    assert len(rows) == 1000
    assert sum(row.internal_error is not None for row in rows) == failed
    past = inspector.forgotten
    assert (past.conversations, past.limit_hits) == (len(endless.gone), sum(row.limit_hits for row in endless.gone))
    sizes: dict[tuple[int, str], int] = {}
    for record in found:
        if isinstance(record, Message | Gap):
            sizes[record.conversation, record.src] = sizes.get((record.conversation, record.src), 0) + record.size
    for row in rows:
        assert tuple(sizes[row.conversation, endpoint] for endpoint in row.endpoints) == row.bytes == (32, 32)
        assert row.ended == "FIN by client"
        assert row.internal_error is not None or row.messages == 8


@pytest.mark.usefixtures("barrier")
@pytest.mark.parametrize("room", [in_pairing, in_reassembly], ids=lambda room: room.__name__)
def test_later_packets_are_counted_in_the_gap(room: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch)
    endless = Endless(Options(idle_time_ns=60 * SECOND, answer_time_ns=5 * SECOND, decode_as=IGGY))
    packets = conversation(0, 500)
    found = endless.process(packets[:20])
    (report,) = endless.inspector.reports
    said = [one for one in found if isinstance(one, Message)]
    ended = [one for one in found if isinstance(one, Exchange)]
    assert (len(said), ended) == (4, [])
    for at in range(20, 1000, 20):
        assert endless.process(packets[at : at + 20], 6 * SECOND) == []
    (row,) = endless.inspector.rows()
    assert row.internal_error == f"{report.what.split()[0]}, packet {report.number}"
    assert (sum(row.packets), row.bytes, row.ended) == (1000, (499 * 8, 498 * 8), "open")
    gaps = endless.process([], 61 * SECOND)
    kept = {one.src: one.position + one.size for one in said}
    assert [(one.position, one.position + one.size) for one in gaps if isinstance(one, Gap)] == [
        (kept[endpoint], size) for endpoint, size in zip(row.endpoints, row.bytes, strict=True)
    ]
    assert [type(one) for one in gaps] == [Gap, Gap, Ending]
    assert endless.inspector.rows() == []
    assert [one.ended for one in endless.gone] == ["forgotten after a long time without a packet"]
    # Who uses the ports again is not mistaken for it
    assert [type(one) for one in endless.process(packets[:5])] == [Message] * 2
    assert [one.conversation for one in endless.inspector.rows()] == [1]


@pytest.mark.usefixtures("barrier")
def test_requests_that_cannot_be_looked_at_for_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Pairer, "expire", lambda *_: True)
    endless = Endless(Options(decode_as=IGGY))
    found = endless.process(conversation(0, 4)[:4]) + endless.process([], 31 * SECOND)
    assert [type(one) for one in found] == [Message, Exchange]
    assert [one.reason for one in found if isinstance(one, Exchange)] == ["internal error"]
    assert len(endless.inspector.reports) == 1


@needs_capture
def test_peers_on_the_loopback_interface(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), BARRIER: "on"}
    port = free_port()
    with capturing(*pings(port), "--json", env=environment) as capture:
        with Pair(port) as first, Pair(port) as second:
            lines = []
            for pair in (first, second):
                pair.replay([(0, PING), (1, PONG)] * 2)
                lines += [capture.line() for _ in range(4)]
            first.say(0, PING)
            capture.tells("what follows in it is skipped")
            # It is over for the first, and the second goes on.
            first.replay([(1, PONG), (0, PING), (1, PONG)])
            second.replay([(0, PING), (1, PONG)])
            lines += [capture.line() for _ in range(2)]
        lines += [capture.line() for _ in range(2)]
        code, out, err = capture.finish()
    assert code == 5
    made = [one for one in records("\n".join([*lines, out])) if one["record"] != "ending"]
    assert [one["conversation"] for one in made] == [0] * 4 + [1] * 6 + [0] * 2
    gaps = [one for one in made if one["record"] == "gap"]
    assert {(one["sender"], one["position"], one["size"], one["reason"]) for one in gaps} == {
        ("client", 16, 16, "skipped"),
        ("server", 16, 16, "skipped"),
    }
    told = [line for line in err.splitlines() if "internal error: " in line]
    assert len(told) == 1
    assert "ZeroDivisionError in streamdump/pair/pairer.py:" in told[0]
    assert f" of lo, conversation 0 {made[0]['src']} > {made[0]['dst']} iggy: " in told[0]
    assert "1 internal error" in err.splitlines()[-1]


@needs_capture
def test_the_table_goes_on(tmp_path: Path) -> None:
    from tests.support.terminal import process_on_terminal

    (tmp_path / "sitecustomize.py").write_text(
        "import streamdump.render.live\ndef planted(*_):\n    raise ZeroDivisionError\nstreamdump.render.live.Watch.table = planted\n"
    )
    port = free_port()
    argv = ["conversations", "-i", "lo", "-f", f"tcp port {port}", "-a", "duration:1"]
    code, text = process_on_terminal(["-m", "streamdump", *argv], environment={"PYTHONPATH": str(tmp_path), BARRIER: "on"})
    assert code == 5
    assert text.count("internal error: ZeroDivisionError") == 1
    assert "Traceback" not in text


def test_the_end_of_one_side_is_told_as_soon_as_such_are_forgotten() -> None:
    endless = Endless(Options(closed_time_ns=SECOND, decode_as=IGGY))
    endless.process(conversation(0, 1)[:6])
    assert endless.process([], SECOND // 2) == []
    assert [type(one) for one in endless.process([], SECOND)] == [Ending]
