"""The text view: columns, marks, escapes, cutting."""

from __future__ import annotations

import pytest

from streamdump.model import Message, Record
from streamdump.render.summary import Lines, laid_out, wrapped_few
from streamdump.render.terminal import COLOURED, PLAIN, cut, visible, width
from streamdump.units import duration_text
from tests.render.records import FAULT, SERVER, exchange, gap, message, response

HOSTILE = "a\x1b[31mb\rc\nd\u202ee\x7ff\x85g\u2028h\ufeffi\u200bj"


def info(one: Message) -> str:
    return f"#{one.id}  {one.fields.get('reference', '')}"


def lines(records: list[Record], columns: int | None = None, colours: bool = False, times: str = "r") -> list[str]:
    made = Lines({"rabbitmq-stream": info}, times, COLOURED if colours else PLAIN, columns)  # type: ignore[arg-type]
    return made.text(records).splitlines()


def test_a_pipe_gets_endpoints_and_protocol_on_every_line() -> None:
    assert lines([message(), response()]) == [
        "    1   0.000000   0  192.0.2.1:51054 > 192.0.2.2:5552  rabbitmq-stream  DeclarePublisher               #1  orders",
        "    2   0.001000   0  192.0.2.1:51054 < 192.0.2.2:5552  rabbitmq-stream  DeclarePublisher     734 µs    #1  orders",
    ]


def test_a_terminal_gets_each_conversation_introduced_once() -> None:
    made = lines([message(), response()], 80)
    assert made[0].strip() == "0  192.0.2.1:51054 > 192.0.2.2:5552  rabbitmq-stream"
    assert made[1] == "    1   0.000000   0 >  DeclarePublisher               #1  orders"
    assert made[2] == "    2   0.001000   0 <  DeclarePublisher     734 µs    #1  orders"


def test_a_client_that_becomes_known_later_is_introduced_again() -> None:
    made = lines([message(src=SERVER, dst="192.0.2.1:51054", sender=None), message(2)], 80)
    assert "192.0.2.2:5552 - 192.0.2.1:51054" in made[0]
    assert "192.0.2.1:51054 > 192.0.2.2:5552" in made[2]


@pytest.mark.parametrize("colours", [False, True])
def test_trouble_stands_out_without_colour(colours: bool) -> None:
    made = lines([message(fault=FAULT), response(outcome="refused"), gap(), exchange(), message(5, notes=("odd",))], None, colours)
    for line, told in zip(
        made,
        [
            "! damaged: reference at byte 6: length says 6 bytes, 3 left  #1",
            "! #1",
            "! 1,448 bytes not captured",
            "! #7  unanswered after 3 s (closed): request 1",
            "* #1  orders  (odd)",
        ],
        strict=True,
    ):
        assert told in line


def test_colour_changes_nothing_but_codes() -> None:
    import re

    records: list[Record] = [message(), response(), gap(), exchange(), message(5, notes=("odd",))]
    without = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines(records, 100, True)]
    assert without == lines(records, 100, False)


def test_lines_are_cut_at_the_width_of_a_terminal_and_never_in_a_pipe() -> None:
    long = message(fields={"reference": "x" * 500})
    assert len(lines([long], 80)[1]) == 80
    assert lines([long], 80)[1].endswith("x…")
    assert lines([long])[0].endswith("x" * 500)


@pytest.mark.parametrize("text", ["日本語" * 50, "e\u0301" * 200, "🐇" * 100], ids=["wide", "combining", "emoji"])
@pytest.mark.parametrize("columns", range(70, 84))
def test_wide_and_combining_characters_are_counted(text: str, columns: int) -> None:
    line = lines([message(fields={"reference": text})], columns)[1]
    assert columns - 1 <= width(line) <= columns


def test_no_active_character_reaches_a_terminal() -> None:
    records: list[Record] = [
        message(fields={"reference": HOSTILE}),
        message(2, name=HOSTILE, notes=[HOSTILE]),
        message(3, id=HOSTILE, fault=FAULT),
        exchange(4, id=HOSTILE),
    ]
    for columns in (None, 200):
        text = "".join(lines(records, columns))
        assert text.isprintable()
        assert r"a\x1b[31mb\rc\nd\u202ee\x7ff\x85g\u2028h\ufeffi\u200bj" in text


@pytest.mark.parametrize(
    ("times", "shown"), [("r", "  0.000000"), ("ud", "2020-09-13 12:26:40.000000"), ("e", "1600000000.000000000"), ("ad", ":26:40.000000")]
)
def test_times(times: str, shown: str) -> None:
    assert shown in lines([message()], times=times)[0]


def test_relative_times_are_never_negative() -> None:
    assert "  0.000000 " in lines([message(2), message(1)])[1]


def test_times_since_the_line_before_may_be_negative() -> None:
    assert [line.split()[1] for line in lines([message(2), message(1), message(3)], times="dd")] == ["0.000000", "-0.001000", "0.002000"]


def test_many_conversations_are_forgotten_but_not_mixed_up() -> None:
    records: list[Record] = [message(n + 1, conversation=n, src=f"192.0.2.1:{n}") for n in range(9000)]
    made = lines([*records, *records])
    assert all(f" 192.0.2.1:{n} " in line for n, line in zip([*range(9000)] * 2, made, strict=True))


@pytest.mark.parametrize("latency", [0, 734_200, 9_999_000, 12_340_000, 123_400_000, 1_234_000_000, 59_990_000_000])
def test_latencies_leave_what_is_said_in_its_column(latency: int) -> None:
    line = lines([message(), response(latency_ns=latency)])[1]
    assert line.index("#1") == lines([message(), response()])[1].index("#1")
    assert duration_text(latency) in line


def test_cut_to_nothing() -> None:
    assert cut("abc", 0) == ""
    assert cut("日本", 1) == "…"
    assert visible("ordinary – text") == "ordinary – text"


def late(records: list[Record]) -> list[bool]:
    made = Lines({"rabbitmq-stream": info})
    made.learn(records)
    return [line.split()[1].endswith("^") for line in made.text(records).splitlines()]


def test_a_record_that_was_released_late_is_marked() -> None:
    """The second message, a gap and the end of a request stood behind what they waited for; the last one is in order again."""
    records = [
        message(1, time_ns=5_000_000, packets=(5, 5)),
        message(2, time_ns=3_000_000, packets=(2, 3)),
        gap(3, time_ns=4_000_000),
        exchange(4, time_ns=4_500_000),
        message(5, time_ns=6_000_000, packets=(6, 6)),
    ]
    assert late(records) == [False, True, True, True, False]


def test_a_capture_whose_own_times_go_back_has_no_late_record() -> None:
    records: list[Record] = [message(1, time_ns=5_000_000, packets=(5, 5)), message(2, time_ns=3_000_000, packets=(6, 6))]
    assert late(records) == [False, False]


def test_the_mark_takes_no_room() -> None:
    records: list[Record] = [message(1, time_ns=5_000_000, packets=(5, 5)), message(2, time_ns=3_000_000, packets=(2, 3))]
    for columns in (None, 60):
        made = Lines({"rabbitmq-stream": info}, "e", PLAIN, columns)
        made.learn(records)
        first, second = made.text(records).splitlines()[-2:]
        assert first.index("Declare") == second.index("Declare")
        assert "^" in second and "^" not in first


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("credit 1  without credit  closed after 400 µs of silence", ["credit 1  without credit", "closed after 400 µs of silence"]),
        ("#3  the server closed after 400 µs of silence", ["#3  the server closed after", "400 µs of silence"]),
        ("max-age=1h  max-length-bytes=abc", ["max-age=1h", "max-length-bytes=abc"]),
        ("handler 233 ms  network 12 s", ["handler 233 ms  network 12 s"]),
        ("waited for a response for 1,250 s longer", ["waited for a response for", "1,250 s longer"]),
    ],
)
def test_lines_end_between_parts_or_words_but_not_in_them(text: str, lines: list[str]) -> None:
    assert wrapped_few(text, 31) == lines


def test_a_failure_goes_on_below_the_name_where_its_column_is_narrow() -> None:
    text = "#1  verb 12  USER: std::runtime_error (disk is full)  handler 0 s  network 245 µs"
    assert laid_out(text, 90, 140, 24) == (text, [])
    beside, *below = wrapped_few(text, 40)
    assert laid_out(text, 40, 95, 24) == (beside, [" " * 55 + line for line in below])
    assert laid_out(text, 25, 80, 24) == (
        "#1  verb 12  USER:",
        [" " * 24 + "std::runtime_error (disk is full)  handler 0 s", " " * 24 + "network 245 µs"],
    )
    assert laid_out(text, 5, 60, 24)[0] == ""
    for room, columns in ((90, 140), (40, 95), (25, 80), (5, 60), (5, 40)):
        first, below = laid_out(text, room, columns, 24)
        assert len(first) <= room
        assert all(len(line) <= columns for line in below)
        shown = "".join([first, *below]).replace(" ", "")
        assert shown == text.replace(" ", "") or below[-1].endswith("…")
