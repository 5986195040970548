"""Runs on a local session: the tables say what a plain run says, and damaged files cost only themselves."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import streamdump.spark
from streamdump.capture.files import open_capture
from streamdump.errors import UsageError
from streamdump.inspector import Inspector
from streamdump.latency.groups import Latencies
from streamdump.latency.sketch import Sketch
from streamdump.model import Options
from streamdump.spark import pipeline, sink
from streamdump.spark.pipeline import partial_folder
from streamdump.spark.storage import folder
from streamdump.spark.tables import schema, tables_with
from streamdump.spark.views import views
from tests.spark.captures import generated, records, rotated
from tests.spark.comparing import plain, same, tables_of, told
from tests.spark.here import brings_pandas, go, takes_memory_from
from tests.support.pages import page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = tmp_path_factory.mktemp("pipeline")
    return rotated(made / "rotated", records(generated(made)))


@pytest.fixture(scope="module")
def expected(files: list[Path]) -> dict[str, list[str]]:
    return plain(files)


def parquet(out: Path, table: str) -> Any:
    return pa.parquet.read_table(out / table)


@pytest.mark.parametrize(("parts", "split"), [(5, 30_000), (2, 100_000)])
def test_tables_equal_a_plain_run(
    session: Any, files: list[Path], expected: dict[str, list[str]], tmp_path: Path, parts: int, split: int
) -> None:
    out = tmp_path / "out"
    run = go(files, out, session, parts=parts, split=split)
    same(out, expected)
    assert run.rows["messages"] == len(expected["messages"])
    for table in tables_with("json"):
        assert parquet(out, table).schema.equals(schema(table))
    inspector = Inspector([open_capture(path) for path in files])
    for _ in inspector.records():
        pass
    found = {tuple(row["endpoints"]): row for row in parquet(out, "conversations").to_pylist()}
    for row in inspector.rows():
        one = found[row.endpoints]
        assert [one["messages"], one["packets"], one["bytes"], one["ended"]] == [row.messages, [*row.packets], [*row.bytes], row.ended]
    assert not partial_folder(folder(out)).exists()


def test_latencies_are_those_of_the_command(files: list[Path], tmp_path: Path) -> None:
    go(files[:1], tmp_path / "out")
    made = tables_of(tmp_path / "out")["latency"]
    found = Latencies()
    inspector = Inspector([open_capture(files[0])], Options(pairs=True))
    for _ in inspector.batches():
        found.add(inspector.run.released_pairs())
    merged: dict[tuple[str, str], Sketch] = {}
    for row in made:
        sketch = Sketch.unpack(row["sketch"], row["min_ns"], row["max_ns"])
        assert row["p99_ns"] == (sketch.quantile(0.99) if len(sketch) else None)
        merged.setdefault((row["protocol"], row["name"]), Sketch()).merge(sketch)
    assert {key: sketch.pack() for key, sketch in merged.items()} == {key: group.latency.pack() for key, group in found.groups.items()}
    assert sum(row["exchanges"] for row in made) == sum(group.count for group in found.groups.values()) > 100


def test_the_data_source_takes_several_paths_and_is_never_quiet(session: Any, files: list[Path], tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    streamdump.spark.register(session.spark)
    reader = session.spark.read.format("streamdump")
    first = len(plain([files[0]])["messages"])
    assert reader.load(str(files[0])).count() == first
    assert reader.load([str(files[0]), f"file://{files[1]}"]).count() == len(plain(files[:2])["messages"]) > first
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(files[0].read_bytes()[:-5])
    for source, said in ((str(Path(__file__)), "is not a capture"), (str(cut), "cut off in packet")):
        with pytest.raises(AnalysisException, match=f"{said}.*option\\('damaged', 'skip'\\)"):
            reader.load(source).count()
    with pytest.raises(AnalysisException, match="no such file"):
        reader.option("damaged", "skip").load("missing.pcap").count()
    reader = session.spark.read.format("streamdump")
    with pytest.raises(AnalysisException, match="no capture given"):
        reader.load().count()
    assert reader.option("damaged", "skip").load(str(cut)).count() in (first - 1, first)


@pytest.mark.parametrize("table", ["messages", "exchanges", "gaps", "endings"])
def test_the_data_source_gives_the_tables_themselves(session: Any, files: list[Path], expected: dict[str, list[str]], table: str) -> None:
    streamdump.spark.register(session.spark)
    reader = session.spark.read.format("streamdump").option("split", "65536").option("table", table)
    rows = reader.load(str(files[0].parent))
    assert rows.rdd.getNumPartitions() > 3
    assert told(table, [row.asDict(recursive=True) for row in rows.collect()]) == expected[table]


def test_a_notebook_writes_all_tables(session: Any, files: list[Path], expected: dict[str, list[str]], tmp_path: Path) -> None:
    rows = streamdump.spark.write_tables(session.spark, [str(files[0].parent)], str(tmp_path / "out"), split=65_536, parts=3, findings=True)
    same(tmp_path / "out", expected)
    assert rows["messages"] == len(expected["messages"])
    with pytest.raises(UsageError, match="already exists"):
        streamdump.spark.write_tables(session.spark, [str(files[0])], str(tmp_path / "out"))


def test_the_data_source_has_no_table_that_needs_all_parts(session: Any, files: list[Path]) -> None:
    from pyspark.errors import AnalysisException

    streamdump.spark.register(session.spark)
    with pytest.raises(AnalysisException, match="option table: latency must be one of messages"):
        session.spark.read.format("streamdump").option("table", "latency").load(str(files[0])).count()


def test_bad_files_are_rows_and_cost_only_themselves(files: list[Path], tmp_path: Path) -> None:
    some = tmp_path / "some"
    some.mkdir()
    data = files[0].read_bytes()
    (some / "a-empty.pcap").write_bytes(b"")
    (some / "b-foreign.pcap").write_bytes(b"PK\x03\x04 something else")
    (some / "c-cut.pcap").write_bytes(data[: len(data) // 2 + 7])
    (some / "d-noise.pcap").write_bytes(data[:90_000] + b"\xff" * 300 + data[90_300:])
    packed = gzip.compress(data)
    (some / "e-cut.pcap.gz").write_bytes(packed[: len(packed) // 2])
    (some / "f-good.pcapng").write_bytes(files[1].read_bytes())
    names = sorted(some.iterdir())
    run = go([some], tmp_path / "out", split=20_000, parts=3)
    same(tmp_path / "out", plain(names))
    rows = parquet(tmp_path / "out", "errors").to_pylist()
    assert [Path(row["path"]).name for row in rows] == ["a-empty.pcap", "b-foreign.pcap", "c-cut.pcap", "d-noise.pcap", "e-cut.pcap.gz"]
    assert all(row["fatal"] for row in rows)
    assert rows[3]["offset"] + rows[3]["lost"] == len(data)
    assert run.rows["errors"] == 5


def test_a_run_without_packets_writes_empty_tables(session: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.pcap").write_bytes(b"")
    run = go([tmp_path / "empty.pcap"], tmp_path / "out", session, fields="both")
    assert run.rows == {
        "messages": 0,
        "messages_rabbitmq_stream": 0,
        "messages_rabbitmq_stream_draft": 0,
        "messages_iggy": 0,
        "messages_seastar_rpc": 0,
        "messages_mewbase": 0,
        "exchanges": 0,
        "conversations": 0,
        "gaps": 0,
        "endings": 0,
        "findings": 0,
        "entries": 0,
        "latency": 0,
        "errors": 1,
        "files": 1,
    }
    assert parquet(tmp_path / "out", "messages").num_rows == 0
    views(session.spark, folder(tmp_path / "out"))
    queries = re.findall(r'--sql "(.*)"', page("dissect/spark/README.md"))
    assert len(queries) == 3
    for query in queries:
        assert session.spark.sql(query).collect() == []


COUNTS = "select count(*), count(variant:key::int), max(time_ns), count(fault), count(point) from messages"
JOINED = "select count(*) from messages join conversations using (conversation) join files on messages.file = files.file"


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_all_forms_hold_the_same_on_a_disk_and_in_a_store(
    session: Any, files: list[Path], expected: dict[str, list[str]], tmp_path: Path, bucket: str, form: str
) -> None:
    wanted = len(expected["messages"])
    latest = max(json.loads(line)["time_ns"] for line in expected["messages"])
    for out in (str(tmp_path / "no pattern [1]{a,b}"), f"{bucket}/out"):
        run = go(files, out, form=form, parts=2, fields="both")
        views(session.spark, folder(out))
        assert tuple(session.spark.sql(COUNTS).collect()[0]) == (wanted, wanted, latest, 0, wanted)
        assert session.spark.sql(JOINED).collect()[0][0] == wanted == run.rows["messages"]
        typed = session.spark.sql(
            "select sum(t.size) - sum(m.size) from messages as m join messages_rabbitmq_stream as t on m.message_id = t.message_id"
        ).collect()
        assert typed[0][0] == -4 * wanted


def test_what_the_page_has_for_notebooks_runs_as_written(
    session: Any, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page("dissect/spark/README.md")
    blocks = re.findall(r"```python\n(.*?)```", text[text.index("## In a notebook") : text.index("## On a cluster")], re.DOTALL)
    assert len(blocks) == 1
    shutil.copytree(files[0].parent, tmp_path / "captures")
    names: dict[str, Any] = {"spark": session.spark}
    for block in blocks:
        # Relative to where Java was started.
        exec(re.sub(r'"(captures/)"', lambda found: repr(str(tmp_path / found[1])), block), names)
    assert "latency_ns" in capsys.readouterr().out


def test_a_wrong_query_says_nothing_by_itself(session: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException):
        session.spark.sql("select nothing from range(3)")
    assert capfd.readouterr() == ("", "")


def test_a_run_goes_on_where_it_was_interrupted(
    files: list[Path], expected: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = sink.Sink.commit

    def interrupted(self: Any, state: Any) -> Any:
        if state.batch == 3:
            raise KeyboardInterrupt
        return commit(self, state)

    out = tmp_path / "out"
    settings: dict[str, Any] = {"parts": 4, "split": 100_000}
    monkeypatch.setattr(pipeline, "UNIT_BYTES", 1)
    with monkeypatch.context() as patched:
        patched.setattr(sink.Sink, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(files, out, **settings)
    assert not out.exists()
    kept = [path.name for path in partial_folder(folder(out)).path.glob("result/messages/*")]  # type: ignore[union-attr]
    assert {name[:13] for name in kept} == {"batch-0000001", "batch-0000002"}
    run = go(files, out, resume=True, **settings)
    assert (run.resumed, run.state.batch) == (2, 4), "the last two overlap"
    assert all((out / "messages" / name).is_file() for name in kept)
    same(out, expected)
    shutil.rmtree(out)
    # Other options are another run.
    assert go(files, out, resume=True, **{**settings, "parts": 3}).resumed == 0


def test_a_protocol_that_hides_a_login_of_another_is_found(tmp_path: Path) -> None:
    capture = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "handshake_close_405.pcap"
    for protocol, found in (("iggy", "a login of rabbitmq-stream"), ("rabbitmq-stream", None)):
        row = go([capture], tmp_path / protocol, options=Options(decode_as=((5552, protocol, None),))).suspected
        assert (row and row.facts["looks_like"]) == found


def killed_once(marks: str) -> int:
    """A task whose Python the kernel kills, once for each of two."""
    for name in ("first", "second"):
        mark = Path(marks, name)
        if not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
    return len(list(Path(marks).iterdir()))


def test_a_python_that_the_kernel_kills_is_not_the_end(session: Any, tmp_path: Path) -> None:
    assert session.each(killed_once, [str(tmp_path)], lambda *_: None) == [2]


def test_tasks_do_without_pandas(session: Any) -> None:
    assert session.each(brings_pandas, [1, 2], lambda *_: None) == [False, False]
    assert brings_pandas(1)


def test_arrow_takes_its_memory_from_where_python_does(session: Any) -> None:
    assert session.each(takes_memory_from, [1], lambda *_: None) == ["system"]


def test_a_run_that_finds_another_leaves_its_folder(tmp_path: Path) -> None:
    source = str(generated(tmp_path))
    runs = [pipeline.PipelineRun(pipeline.PipelineSettings([source]), str(tmp_path / "out")) for _ in range(3)]
    assert runs[0].prepare()
    for other in runs[1:]:
        with pytest.raises(UsageError, match="another streamdump writes"):
            other.prepare()
        other.close()
    runs[0].close()
    assert not partial_folder(folder(tmp_path / "out")).exists()
    assert runs[1].prepare()
    runs[0].close()
    assert partial_folder(folder(tmp_path / "out")).exists()
    runs[1].close()
