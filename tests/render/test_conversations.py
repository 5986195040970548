"""The `conversations` view on terminals of several widths, and in pipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dissect.capture.files import open_capture
from dissect.inspector import Inspector
from dissect.model import ConversationRow
from dissect.render.conversations import plain, table
from dissect.render.terminal import COLOURED, PLAIN, width, wrapped

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CASES = ("rabbitmq-stream/lost_segments_405.pcap", "iggy/seed-lossy.pcap", "iggy/node080-tls.pcap", "seastar-rpc/ipv6.pcap")


def rows() -> list[ConversationRow]:
    inspector = Inspector([open_capture(GOLDEN / case) for case in CASES])
    for _ in inspector.batches():
        pass
    return inspector.rows()


@pytest.mark.parametrize("columns", [30, 80, 120, 200])
def test_nothing_is_wider_than_the_terminal_or_left_out(columns: int) -> None:
    made = table(rows(), columns, PLAIN)
    assert max(width(line) for line in made.splitlines()) <= columns
    words = " ".join(made.split())
    for row in rows():
        assert all(evidence in words for evidence in row.evidence)
        assert row.ended in words
    assert "! 2 gaps (67 bytes), 2 unanswered" in words


def test_sides_stand_below_each_other_where_there_is_little_room() -> None:
    assert table(rows()[:1], 80, PLAIN).splitlines()[:4] == [
        "#  conversation      protocol         messages  packets    bytes  ended",
        "0  127.0.0.1:35540   rabbitmq-stream        82     > 55  > 1,304  FIN",
        "   > 127.0.0.2:5552                                < 46  < 4,248",
        "   ! 2 gaps (67 bytes), 2 unanswered",
    ]
    assert table(rows()[:1], 120, PLAIN).splitlines()[1] == (
        "0  127.0.0.1:35540  > 127.0.0.2:5552  rabbitmq-stream        82  > 55  < 46  > 1,304  < 4,248  FIN"
    )


def test_colour_changes_no_letter() -> None:
    coloured = table(rows(), 80, COLOURED)
    for code in {COLOURED.bold, COLOURED.dim, COLOURED.bad, COLOURED.reset}:
        assert code in coloured
        coloured = coloured.replace(code, "")
    assert coloured == table(rows(), 80, PLAIN)


def test_a_pipe_has_a_line_for_each_conversation() -> None:
    assert len(plain(rows()).splitlines()) == 1 + len(rows())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a bc def", ["a bc", "def"]),
        ("abcdefg hi", ["abcd", "efg", "hi"]),
        ("語語語 a", ["語語", "語 a"]),
    ],
)
def test_wrapped(text: str, lines: list[str]) -> None:
    assert wrapped(text, 4) == lines
