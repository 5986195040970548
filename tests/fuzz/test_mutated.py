"""The same cases in each run: bytes damaged at random, on the way that `python -m tests.fuzz` goes for longer."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

CASES = 150
"""Of each target; one in `DEEP` of them with its work counted and its records held against the schema."""

DEEP = 3


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_damaged_bytes(target: str) -> None:
    begin = seeds(target)
    for number in range(CASES):
        data = mutated(begin, Random(f"{target} {number}"))
        try:
            TARGETS[target](data, number % DEEP == 0)
        except BaseException as error:
            error.add_note(f"case {number} of {target}: {data.hex()}")
            raise
