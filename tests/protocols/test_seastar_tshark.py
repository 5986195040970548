"""Seastar captures against a plain reader of the same bytes, and beside tshark's dissector for ScyllaDB."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.compare_scylla import FOLDER, invented, ours, right, theirs, truth, undamaged


@pytest.mark.parametrize("path", undamaged(), ids=lambda path: path.stem)
def test_a_plain_reader_agrees(path: Path) -> None:
    there = truth(path)
    shown = ours(path)
    assert (shown.requests, shown.responses, shown.pairs, shown.exceptions) == (
        there.requests,
        there.responses,
        there.pairs,
        there.exceptions,
    )


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("name", ["new_client_old_server.pcap", "exceptions.pcap", "lz4.pcap"])
def test_tshark_shows_no_more(name: str) -> None:
    there, shown = truth(FOLDER / name), theirs(FOLDER / name)
    assert sum(right(there, shown)) < sum(right(there, ours(FOLDER / name)))
    if name.startswith("new_client"):
        assert right(there, shown)[:3] == [23, 22, 20]
        assert invented(there, shown) == 0
