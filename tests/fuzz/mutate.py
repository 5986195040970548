"""Damages bytes as fuzzers do, the same way for the same number."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

NUMBERS = [bytes([one]) * size for size in (1, 2, 4, 8) for one in (0, 0xFF)] + [
    one.to_bytes(size, order)  # type: ignore[arg-type]
    for order in ("little", "big")
    for size in (2, 4, 8)
    for one in (1, 2, 127, 128, 255, 256, (1 << size * 8 - 1) - 1, 1 << size * 8 - 1)
    if one < 1 << size * 8
]
"""What lengths and counts break at."""


def mutated(seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the seeds with a few changes."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 2, 3, 5, 8))):
        at = random.randrange(len(data) + 1)
        size = min(random.choice((1, 2, 4, 8, 30, 200)), len(data) - at)
        match random.randrange(9):
            case 0 if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case 1 if at < len(data):
                data[at] = random.randrange(256)
            case 2 | 3:
                number = random.choice(NUMBERS)
                data[at : at + len(number)] = number
            case 4:
                del data[at : at + size]
            case 5:
                data[at:at] = random.randbytes(size)
            case 6:
                data[at:at] = data[at : at + size] * random.choice((1, 2, 20))
            case 7:
                other = random.choice(seeds)
                start = random.randrange(len(other) + 1)
                data[at : at + size] = other[start : start + random.choice((4, 40, 400))]
            case _:
                del data[at + random.choice((0, 40, 400, 4000)) :]
    return bytes(data)
