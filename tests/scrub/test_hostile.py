"""Captures with random damage: whatever they hold, scrubbing and checking end, and say what they did."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from streamdump.errors import StreamdumpError
from streamdump.golden.settings import CheckSettings
from streamdump.golden.text import written
from streamdump.model import Options
from streamdump.scrub.run import ScrubOptions, scrub
from tests.golden.rebuild import GOLDEN, compared, said_bytes

CAPTURES = sorted(path for path in GOLDEN.rglob("*.pcap*") if path.stat().st_size < 30_000 and path.suffix != ".gz")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, some gone, some twice."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 5, 40))):
        at = chance.randrange(24, len(made))
        what = chance.randrange(4)
        if what == 0:
            made[at] = chance.randrange(256)
        elif what == 1:
            made[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            made[at : at + chance.choice((1, 2, 4))] = chance.choice((b"\0", b"\xff", b"\x7f")) * 4
        else:
            made[at:at] = made[at : at + chance.randrange(30)]
    return bytes(made)


@pytest.mark.sweep
@pytest.mark.parametrize("path", CAPTURES[::3], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_damage(path: Path, tmp_path: Path) -> None:
    chance = random.Random(path.name)
    for _ in range(4):
        data = damaged(path.read_bytes(), chance)
        for wanted in (ScrubOptions(), ScrubOptions(True, True, True)):
            try:
                done = scrub(io.BytesIO(data), tmp_path / "out", wanted, Options(), "damaged")
            except StreamdumpError as error:
                assert "\n" not in str(error)
            else:
                assert len((tmp_path / "out").read_bytes()) <= len(data)
                assert done.error is not None or done.packets
        try:
            text = written(said_bytes(data))
        except StreamdumpError:
            continue
        assert text.isascii() or all(one.isprintable() for one in text.splitlines())
        assert compared(data, data, CheckSettings(unordered=True)) == []
