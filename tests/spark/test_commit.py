"""What a run that is interrupted while it makes its result leaves to the run that goes on with it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from streamdump.spark.pipeline import PipelineRun, PipelineSettings
from streamdump.spark.splits import Plan, Trouble
from streamdump.spark.tables import TABLES
from streamdump.spark.write import PartWriter

PARTS = 2


def written(folder: Path) -> PipelineRun:
    """A run whose parts are done."""
    run = PipelineRun(PipelineSettings(["a.pcap"]), str(folder / "out"))
    run.target = PipelineSettings([]).target(run.folder, run.out, "run")
    for part in range(PARTS):
        writer = PartWriter(run.target, part)
        writer.put("errors", [Trouble(part, f"{part}.pcap", None, None, "cut off", 1)])
        writer.close()
    return run


def lines(out: Path, table: str) -> list[Any]:
    return [row for path in (out / table).iterdir() for row in pq.read_table(path).to_pylist()]


def test_it_goes_on_wherever_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Plan(["a.pcap"], [], [Trouble(7, "7.pcap", None, None, "is empty", 0)], [0], [0], [""], [None])
    rename = Path.rename
    interruptions = 0
    for last in count():
        run = written(tmp_path / str(last))
        calls = count()

        def interrupted(self: Path, target: Path, calls: Any = calls, last: int = last) -> Path:
            if next(calls) == last:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", interrupted)
            try:
                run._finish(found, PARTS, {})
                break
            except KeyboardInterrupt:
                interruptions += 1
        assert not run.out.exists()
        run._finish(found, PARTS, {})
        out = tmp_path / str(last) / "out"
        assert sorted(line["path"] for line in lines(out, "errors")) == ["0.pcap", "1.pcap", "7.pcap"]
        assert run.rows["errors"] == 3
        assert [line["path"] for line in lines(out, "files")] == ["a.pcap"]
        assert {path.name for path in out.iterdir()} == set(TABLES)
        assert not run.folder.exists()
    assert interruptions > len(TABLES), "that of the receipt, those of the files, and that of the result"
