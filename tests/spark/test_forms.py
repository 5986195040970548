"""What `--fields` and `--partition-by` change: which columns there are and how files are divided, never what the rows say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow
import pyarrow.parquet
import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.spark.storage import Folder
from streamdump.spark.tables import DATE, FIELDS, TABLES, TYPED, schema, tables_with
from tests.spark.comparing import plain, same, tables_of
from tests.spark.here import go

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
FILES = [
    GOLDEN / "iggy" / "py060-basic.pcap",
    GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap",
    GOLDEN / "mewbase" / "java-query.pcap",
]


def rows(out: Path) -> list[dict[str, Any]]:
    found = tables_of(out)["messages"]
    return sorted(found, key=lambda row: (row["time_ns"], row["conversation"], row["src"], row["position"]))


def test_each_way_to_write_fields_has_its_columns(tmp_path: Path) -> None:
    for fields in FIELDS:
        go(FILES, tmp_path / fields, fields=fields)
        assert {path.name for path in (tmp_path / fields).iterdir()} == {*tables_with(fields)}
        for table in tables_with(fields):
            assert pyarrow.parquet.read_table(tmp_path / fields / table).schema.equals(schema(table))
    json, typed, both = (tables_of(tmp_path / fields) for fields in FIELDS)
    assert rows(tmp_path / "json") == rows(tmp_path / "both")
    assert [{**row, "fields": None} for row in rows(tmp_path / "json")] == rows(tmp_path / "typed")
    assert all(row["fields"] for row in json["messages"])
    for protocol, table in TYPED.items():
        ids = sorted(row["message_id"] for row in json["messages"] if row["protocol"] == protocol)
        assert sorted(row["message_id"] for row in typed[table]) == sorted(row["message_id"] for row in both[table]) == ids
        assert not json[table]
    assert {len(typed[TYPED[protocol]]) > 0 for protocol in ("iggy", "rabbitmq-stream", "mewbase")} == {True}


@pytest.mark.parametrize("by", [("protocol",), ("date", "protocol"), ("date",)])
def test_files_are_divided_by_columns(by: tuple[str, ...], tmp_path: Path) -> None:
    go(FILES, tmp_path / "whole", fields="both")
    go(FILES, tmp_path / "out", by=by, split=20_000, parts=3, fields="both")
    same(tmp_path / "out", plain(FILES))
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")
    for table, described in TABLES.items():
        places = [path.relative_to(tmp_path / "out" / table) for path in (tmp_path / "out" / table).rglob("*.parquet")]
        divided = tuple(one for one in by if one in described.partitioned)
        assert {tuple(part.partition("=")[0] for part in path.parts[:-1]) for path in places} == {divided}
        wanted = pyarrow.schema([one for one in schema(table) if one.name not in divided])
        assert all(pyarrow.parquet.read_schema(tmp_path / "out" / table / path).equals(wanted) for path in places)


def test_divided_tables_are_read_without_options(session: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    go(FILES, out, by=("date", "protocol"), split=20_000, parts=3, fields="typed")
    found = tables_of(out)
    for table, described in TABLES.items():
        names = {*schema(table).names, *([DATE] if described.partitioned else [])}
        duck = duckdb.sql(f"from '{out}/{table}/**/*.parquet'")
        frame = polars.scan_parquet(out / table)
        spark = session.spark.read.parquet(str(out / table))
        assert {*duck.columns} == {*frame.collect_schema().names()} == {*spark.columns} == names
        counted = (duck.aggregate("count(*)").fetchall()[0][0], frame.select(polars.len()).collect().item(), spark.count())
        assert counted == (len(found[table]),) * 3, table
    query = "select protocol, date, count(*) as many, sum(size) as bytes from {} group by protocol, date order by protocol, date"
    expected = duckdb.sql(query.format(f"'{out}/messages/**/*.parquet'")).fetchall()
    assert [row[0] for row in expected] == ["iggy", "mewbase", "rabbitmq-stream"]
    assert polars.SQLContext(it=polars.scan_parquet(out / "messages")).execute(query.format("it"), eager=True).rows() == expected
    session.spark.read.parquet(str(out / "messages")).createOrReplaceTempView("it")
    assert [tuple(row) for row in session.spark.sql(query.format("it")).collect()] == expected


def test_messages_exchanges_and_conversations_are_joined_by_what_they_name(tmp_path: Path) -> None:
    sources = [*FILES, GOLDEN / "seastar-rpc" / "timeout_expiry.pcap", GOLDEN / "mewbase" / "java-subfail.pcap"]
    go(sources, tmp_path / "out", split=20_000, parts=3)
    found = tables_of(tmp_path / "out")
    messages = {row["message_id"]: row for row in found["messages"]}
    assert len(messages) == len(found["messages"])
    conversations = {row["conversation"]: row for row in found["conversations"]}
    codes = set()
    for row in found["exchanges"]:
        request, response = messages[row["message_id"]], messages.get(row["response_id"])
        assert [request[name] for name in ("time", "size", "name")] == [row["request_time"], row["request_size"], row["name"]]
        assert (response is None) == (row["outcome"] in ("unanswered", "superseded"))
        assert row["response_size"] == (response and response["size"])
        assert response is None or response["request_id"] == row["message_id"]
        assert row["client"] == request["client"] == conversations[row["conversation"]]["client"]
        assert row["server"] == request["server"] == conversations[row["conversation"]]["server"]
        codes.add((row["protocol"], row["outcome"], row["code"], row["code_label"]))
    assert ("mewbase", "refused", 3, "no such channel") in codes
    assert ("rabbitmq-stream", "answered", 1, "OK") in codes
    assert ("iggy", "answered", 0, "ok") in codes
    products = {(row["protocol"], row["client_product"]) for row in found["conversations"]}
    assert {product for protocol, product in products if protocol == "rabbitmq-stream"} - {None}
    messages_with = [row for row in found["messages"] if row["sender"] is not None]
    assert all({row["client"], row["server"]} == {row["src"], row["dst"]} for row in messages_with)


def test_tables_without_a_protocol_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "empty.pcap").write_bytes(b"")
    go([*FILES, tmp_path / "empty.pcap"], tmp_path / "out", by=("protocol", "date"))
    for table in tables_with("json"):
        place = tmp_path / "out" / table
        assert any(path.suffix == ".parquet" for path in place.iterdir()) == (not TABLES[table].partitioned)


def test_a_commit_of_divided_files_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, count = Folder.move, 0

    def interrupted(self: Folder, to: Folder) -> None:
        nonlocal count
        if to.name.endswith(".parquet") and "result" in to.name:
            count += 1
            if count == 4:
                raise KeyboardInterrupt
        rename(self, to)

    monkeypatch.setattr(Folder, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go(FILES, tmp_path / "out", by=("protocol",))
    go(FILES, tmp_path / "out", by=("protocol",), resume=True)
    same(tmp_path / "out", plain(FILES))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fields", "none"], "--fields"),
        (["--partition-by", "server"], "--partition-by"),
        (["--partition-by", "date", "--format", "delta"], "--partition-by needs --format parquet"),
    ],
)
def test_what_cannot_be_is_refused(more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", str(FILES[0]), "--out", str(tmp_path / "out"), *more]) == ExitCode.USAGE
    assert said in capsys.readouterr().err


def test_only_messages_and_exchanges_that_fit_are_written(tmp_path: Path) -> None:
    go(FILES, tmp_path / "all")
    go(FILES, tmp_path / "some", where="name in {Open, login_user} and outcome")
    every, some = tables_of(tmp_path / "all"), tables_of(tmp_path / "some")
    for table in ("messages", "exchanges"):
        wanted = [row for row in every[table] if row["name"] in ("Open", "login_user") and row["outcome"]]
        assert sorted(map(str, some[table])) == sorted(map(str, wanted))
        assert wanted
    assert [len(some[table]) for table in ("conversations", "latency")] == [len(every[table]) for table in ("conversations", "latency")]


def test_a_filter_that_cannot_be_read_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", str(FILES[0]), "--out", str(tmp_path / "out"), "-Y", "name = Open"]) == ExitCode.USAGE
    assert "name = Open" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
