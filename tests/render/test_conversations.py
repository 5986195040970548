"""The `conversations` view on terminals of several widths, and in pipes."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow
from streamdump.options import Options
from streamdump.render.conversations import plain, table
from streamdump.render.live import Watch, waiting_line
from streamdump.render.terminal import COLOURED, PLAIN, width, wrapped
from tests.support.segments import ACK, FIN, RST, SYN, Segment, a, b, captured, handshake

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CASES = ("rabbitmq-stream/lost_segments_405.pcap", "iggy/seed-lossy.pcap", "iggy/node080-tls.pcap", "seastar-rpc/ipv6.pcap")


def rows() -> list[ConversationRow]:
    inspector = Inspector([open_capture(GOLDEN / case) for case in CASES])
    for _ in inspector.batches():
        pass
    return inspector.rows()


@pytest.mark.parametrize("columns", [30, 80, 120, 200])
def test_nothing_is_wider_than_the_terminal_or_left_out(columns: int) -> None:
    made = table(rows(), columns, PLAIN, True)
    assert max(width(line) for line in made.splitlines()) <= columns
    words = " ".join(made.split())
    for row in rows():
        assert all(evidence in words for evidence in row.evidence)
        assert row.ended in words
        assert not row.confidence or f" confidence {row.confidence:.0%}: {row.evidence[0]}" in words
    assert "! 2 gaps (67 bytes), 2 refused, 2 unanswered" in words
    without = table(rows(), columns, PLAIN)
    # What is known of TLS stands behind the evidence, if that is shown, and lines end elsewhere then
    assert set(without.split()) <= set(made.split())
    assert "confidence" not in without


def test_sides_stand_below_each_other_where_there_is_little_room() -> None:
    assert table(rows()[:1], 80, PLAIN).splitlines()[:5] == [
        "#  conversation      protocol         messages  packets    bytes  ended",
        "0  127.0.0.1:35540   rabbitmq-stream        82     > 55  > 1,304",
        "   > 127.0.0.2:5552                                < 46  < 4,248",
        "   ! 2 gaps (67 bytes), 2 refused, 2 unanswered",
        "   Close by client",
    ]
    assert table(rows()[:1], 120, PLAIN).splitlines()[1] == (
        "0  127.0.0.1:35540  > 127.0.0.2:5552  rabbitmq-stream        82  > 55  < 46  > 1,304  < 4,248  Close by client"
    )

    one = rows()[1:2]
    beside = [columns for columns in range(60, 120) if "> [::1]:19000" in table(one, columns, PLAIN).splitlines()[1]]
    assert beside == [*range(109, 120)]


def test_no_side_is_cut_off_where_the_names_of_columns_are_wider_than_what_stands_in_them() -> None:
    one = rows()[3:4]
    most = [f"{number:,}" for number in one[0].bytes]
    for columns in range(70, 120):
        made = table(one, columns, PLAIN)
        assert made.splitlines()[0].endswith("bytes  ended")
        assert "…" not in made
        assert all(text in made for text in most)


def test_columns_are_as_wide_as_what_is_widest_in_them() -> None:
    for columns in (88, 140):
        heading, *lines = table(rows(), columns, PLAIN).splitlines()
        some = [line for line in lines if line[0].isdigit()]
        assert {min(line.find(how) for how in ("FIN", "Close") if how in line) for line in some} == {heading.index("ended")}
        assert len({line.index("  > ") for line in some}) == 1


def test_colour_changes_no_letter() -> None:
    coloured = table(rows(), 80, COLOURED)
    for code in {COLOURED.bold, COLOURED.dim, COLOURED.bad, COLOURED.reset}:
        assert code in coloured
        coloured = coloured.replace(code, "")
    assert coloured == table(rows(), 80, PLAIN)


def test_a_pipe_has_a_line_for_each_conversation() -> None:
    assert len(plain(rows()).splitlines()) == 1 + len(rows())
    for evidence in (False, True):
        heading, *lines = [line.split() for line in plain(rows(), evidence).splitlines()]
        places = [heading.index(name) + 1 for name in ("refused", "unanswered", "retransmitted", "out_of_order", "conflicts")]
        assert [[int(line[place]) for place in places] for line in lines] == [
            [one.refused, one.unanswered, one.retransmissions, one.out_of_order, one.conflicts] for one in rows()
        ]
        assert all(("; ".join(one.evidence) in " ".join(line)) == evidence for one, line in zip(rows(), lines, strict=True))
    assert sum(one.refused for one in rows()) > 2


def test_bytes_that_were_sent_again_and_differ_are_told() -> None:
    row = msgspec.structs.replace(rows()[0], conflicts=3)
    assert "3 sent again with other bytes" in table([row], 120, PLAIN)


def test_how_each_ended_and_by_whom() -> None:
    def ended(segments: list[Segment], known: bool = True) -> str:
        inspector = Inspector([], Options(decode_as=((5552, "rabbitmq-stream", None),) if known else ()))
        inspector.process(captured(segments))
        found = [row.ended for row in inspector.rows()]
        inspector.finish()
        found += [row.ended for row in inspector.rows()]
        return ", then ".join(dict.fromkeys(found))

    beat = bytes.fromhex("00000004 0017 0001")
    talk = [*handshake(), a(1000, beat), b(5000, flags=FIN | ACK)]
    assert ended(talk[:4]) == "open, then open at end of capture"
    assert ended(talk) == "FIN by server, half open, then FIN by server, open at end of capture"
    assert ended([*talk, a(1008, ack=5001, flags=FIN | ACK)]) == "FIN by server"
    assert ended([*talk[1:], a(1008, ack=5001, flags=FIN | ACK)], False) == "FIN by server"
    assert ended([a(1000, b"x" * 9), a(1009, flags=RST)], False) == "RST by 192.0.2.1:40000"
    assert ended([a(999, ack=None, flags=SYN), b(0, ack=1000, flags=RST | ACK)]) == "refused by server"
    assert ended([a(999, ack=None, flags=SYN)] * 2) == "open, then no answer"


@pytest.mark.parametrize("width", [80, 110])
def test_the_live_table_cuts_no_unit_and_says_which_have_ended(width: int) -> None:
    inspector = Inspector([open_capture(GOLDEN / "rabbitmq-stream" / "ipv6_436.pcap"), open_capture(GOLDEN / CASES[0])])
    watch = Watch()
    for records in inspector.batches():
        watch.add(records)
    console = Console(width=width, file=io.StringIO(), color_system=None)
    watch.table(inspector, 1.0, 40, None, width)
    console.print(watch.table(inspector, 20.0, 40, None, width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    (heading,) = [line for line in lines if "latest" in line]
    rows = [line for line in lines if "rabbitmq-stream" in line]
    assert len(rows) == 2
    units = re.compile(r"[0-9] [mµ]s\b")
    assert all("Close client" in row and len(units.findall(row)) == ("latest" in heading) + ("median" in heading) for row in rows)
    assert ("median" in heading) == (width == 110)
    assert "…" not in heading
    assert lines[0].rstrip().endswith("2 conversations")


@pytest.mark.parametrize("width", [80, 110])
def test_the_live_table_marks_trouble_as_long_as_it_lasts(width: int) -> None:
    inspector = Inspector([open_capture(GOLDEN / "rabbitmq-stream" / "wrong_password_405.pcap")])
    watch, shown = Watch(), list[str]()

    def table(now: float, height: int = 40) -> str:
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(watch.table(inspector, now, height, None, width))
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= width
        assert len(text.splitlines()) < height
        return text

    for records in inspector.batches():
        watch.add(records)
        shown.append(table(1.0))
    assert " ! " in shown[-1] and ("1 refused" in shown[-1] or width == 80)
    assert " ! " in table(10.0)
    assert " ! " not in table(12.0), "nothing was refused of late"


def test_the_live_table_marks_a_request_that_waits() -> None:
    packets = next(iter(open_capture(GOLDEN / "rabbitmq-stream" / "wrong_password_405.pcap").batches()))
    inspector, watch = Inspector([]), Watch()
    asked = next(at for at in range(len(packets)) if inspector.process(packets[at : at + 1]))
    assert asked < len(packets)

    def marked(now: float) -> bool:
        console = Console(width=110, file=io.StringIO(), color_system=None)
        console.print(watch.table(inspector, now, 40, None, 110))
        return " ! " in console.file.getvalue()  # type: ignore[attr-defined]

    latest = packets[asked].time_ns
    assert not waiting_line(inspector, latest + 10**9 // 2, 80, PLAIN)
    assert waiting_line(inspector, latest + 2 * 10**9, 80, PLAIN) == ["! 1 conversation without a response, the longest for 2 s"]
    assert not marked(1.0)
    assert not marked(1.5)
    assert marked(2.5)
    inspector.process(packets[asked + 1 : asked + 3])
    assert not marked(3.0)
    assert not waiting_line(inspector, latest + 2 * 10**9, 80, PLAIN)


@pytest.mark.parametrize("height", [5, 6, 8])
def test_the_live_table_is_never_taller_than_the_screen(height: int) -> None:
    inspector = Inspector([open_capture(GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"), open_capture(GOLDEN / CASES[0])])
    for _ in inspector.batches():
        pass
    for columns in (20, 40, 80):
        console = Console(width=columns, file=io.StringIO(), color_system=None)
        console.print(Watch().table(inspector, 1.0, height, None, columns))
        assert len(console.file.getvalue().splitlines()) < height  # type: ignore[attr-defined]


def test_the_live_table_counts_one_conversation_as_one() -> None:
    inspector = Inspector([open_capture(GOLDEN / CASES[0])])
    for _ in inspector.batches():
        pass
    assert str(Watch().table(inspector, 1.0, 40).title).endswith(" 1 conversation")


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
