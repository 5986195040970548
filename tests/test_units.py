"""Numbers, durations and lists as text."""

from __future__ import annotations

import pytest

from streamdump.filter import compile_filter
from streamdump.render.terminal import encoded
from streamdump.units import count, duration_text, lossy, not_finite, some

SECOND = 1_000_000_000

TEXTS = {
    0: "0 s",
    5: "5 ns",
    -412: "-412 ns",
    999: "999 ns",
    1_000: "1 µs",
    -120_000: "-120 µs",
    734_250: "734.2 µs",
    999_949: "999.9 µs",
    999_950: "1 ms",
    1_006_000: "1.006 ms",
    99_994_999: "99.99 ms",
    99_995_001: "100 ms",
    999_949_999: "999.9 ms",
    999_950_000: "1 s",
    1_234_500_000: "1.234 s",
    59_994_999_999: "59.99 s",
    59_995_000_000: "1 min",
    125 * SECOND: "2 min 5 s",
    -125 * SECOND: "-2 min 5 s",
    3_600 * SECOND: "1 h",
    3_661 * SECOND: "1 h 1 min",
    3_600_000 * SECOND: "1,000 h",
}


@pytest.mark.parametrize(("time_ns", "text"), TEXTS.items())
def test_durations_have_at_most_four_digits(time_ns: int, text: str) -> None:
    assert duration_text(time_ns) == text


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "3 µs, µs: é"), ("latin-1", "3 µs, µs: é"), ("ascii", r"3 us, \xb5s: \xe9")])
def test_microseconds_where_the_encoding_lacks_the_sign(encoding: str, shown: str) -> None:
    """Only in durations: captured text is escaped."""
    assert encoded("3 µs, µs: é", encoding).decode(encoding) == shown


@pytest.mark.parametrize("unit", ["us", "µs"])
def test_filters_accept_both_spellings(unit: str) -> None:
    compile_filter(f"latency > 20{unit}")


def test_a_noun_agrees_with_its_number() -> None:
    assert [count(number, "entry") for number in (0, 1, 1_448)] == ["0 entries", "1 entry", "1,448 entries"]
    assert count(2, "chunk") == "2 chunks"


def test_a_long_list_is_shortened() -> None:
    assert some("abc") == "a, b, c"
    assert some("abcd", 2) == "a, b and 2 more"


def test_numbers_that_are_not_finite_and_bytes_that_are_not_utf_8_have_a_text() -> None:
    assert [not_finite(float(one)) for one in ("nan", "inf", "-inf")] == ["NaN", "Infinity", "-Infinity"]
    assert lossy(b"\xc3\xa4\\\xff") == "ä\\\\\\xff"
