"""The circle of sequence numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamdump.tcp.sequence import distance


def test_distance_over_the_wrap() -> None:
    assert distance(0xFFFF_FFFF, 0) == 1
    assert distance(0, 0xFFFF_FFFF) == -1
    assert distance(0, 0x7FFF_FFFF) == 0x7FFF_FFFF
    assert distance(0, 0x8000_0000) == -0x8000_0000
    assert distance(5, 5) == 0


@given(st.integers(0, 0xFFFF_FFFF), st.integers(-0x7FFF_FFFF, 0x7FFF_FFFF))
def test_distance_is_the_way_gone(start: int, steps: int) -> None:
    assert distance(start, (start + steps) & 0xFFFF_FFFF) == steps
