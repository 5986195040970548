"""What a run that is interrupted while it commits leaves to the run that goes on with it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from streamdump.spark.storage import Folder
from streamdump.spark.tables import tables_with
from tests.spark.comparing import plain, same, tables_of
from tests.spark.here import go

CAPTURE = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "handshake_close_405.pcap"


def test_it_goes_on_wherever_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Folder.move
    expected = plain([CAPTURE])
    (tmp_path / "empty.pcap").write_bytes(b"")
    sources = [CAPTURE, tmp_path / "empty.pcap"]
    interruptions = 0
    for last in count():
        calls = count()
        out = tmp_path / str(last) / "out"

        def interrupted(self: Folder, target: Folder, calls: Any = calls, last: int = last) -> None:
            if next(calls) == last:
                raise KeyboardInterrupt
            rename(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Folder, "move", interrupted)
            try:
                go(sources, out)
                break
            except KeyboardInterrupt:
                interruptions += 1
        assert not out.exists()
        run = go(sources, out, resume=True)
        assert run.resumed == (last > 1), "one of the first two is that of the state"
        same(out, expected)
        found = tables_of(out)
        assert [line["path"] for line in found["errors"]] == [str(sources[1])]
        assert run.rows == {table: len(found[table]) for table in tables_with("json")}
        assert {path.name for path in out.iterdir()} == set(tables_with("json"))
        assert not run.folder.exists()
    assert interruptions > len(tables_with("json")), "that of the state, those of the files, and that of the result"
