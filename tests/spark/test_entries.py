"""The table of user messages: the same as the library's, whatever the captures are divided into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import streamdump
from streamdump.model import Message
from tests.bench.generate import Peer
from tests.spark.comparing import tables_of
from tests.spark.here import go
from tests.support.captures import GOLDEN
from tests.support.frames import pcap
from tests.support.secrets import CLIENT, conversation
from tests.test_entries import publish

pytestmark = pytest.mark.spark

NAMES = (
    "js_subentries_436",
    "publish_amqp_sections_436",
    "publishers_310",
    "filters_405",
    "py090-basic",
    "seed-headers",
    "java-types",
    "basic",
    "publish_error_310",
    "consumer_update_sac_436",
)
PATHS = [path for path in sorted(GOLDEN.rglob("*.pcap")) if path.stem in NAMES]
COLUMNS = (
    "time_ns",
    "src",
    "dst",
    "protocol",
    "name",
    "sender",
    "stream",
    "partition",
    "publishing_id",
    "compression",
    "size",
    "body_type",
    "consumer",
    "outcome",
    "reason",
    "latency_ns",
)


def expected(path: Path) -> list[tuple[Any, ...]]:
    found = []
    for one in streamdump.read(path, entries=True, bytes_as="raw"):
        body = one.body if type(one.body) is bytes else msgspec.json.encode(one.body)
        found.append((*(getattr(one, name) for name in COLUMNS), one.offset, body))
    return found


def reported(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in COLUMNS), row["offset"], row["body"])


@pytest.mark.parametrize("more", [{}, {"split": 3_000, "parts": 3}], ids=str)
def test_the_table_has_the_entries_of_the_library(more: dict[str, int], tmp_path: Path) -> None:
    assert len(PATHS) == len(NAMES)
    for at, path in enumerate(PATHS):
        out = tmp_path / f"tables{at}"
        go([path], out, entries=True, **more)
        tables = tables_of(out)
        assert sorted(map(reported, tables["entries"]), key=repr) == sorted(expected(path), key=repr), path.name
        messages = {row["message_id"]: row for row in tables["messages"]}
        for row in tables["entries"]:
            assert messages[row["message_id"]]["time_ns"] == row["time_ns"]
            assert (row["client"], row["server"]) in ((row["src"], row["dst"]), (row["dst"], row["src"]))
            if row["response_id"] is not None:
                answer = messages[row["response_id"]]
                assert answer["kind"] == "response" and answer["conversation"] == row["conversation"]
            assert (row["response_id"] is None) == (row["outcome"] not in ("confirmed", "refused", "deduplicated"))


def test_each_entry_has_its_own_fate(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    go([GOLDEN / "rabbitmq-stream" / "publish_error_310.pcap"], out, entries=True)
    found = [(row["body"], row["outcome"], row["reason"]) for row in tables_of(out)["entries"]]
    assert (b"after delete", "refused", "publisher does not exist") in found and len(found) == 5


def test_without_being_asked_for_it_is_empty_and_a_filter_of_messages_holds(tmp_path: Path) -> None:
    go([GOLDEN / "rabbitmq-stream" / "js_subentries_436.pcap"], tmp_path / "none")
    assert tables_of(tmp_path / "none")["entries"] == []
    go([GOLDEN / "rabbitmq-stream" / "js_subentries_436.pcap"], tmp_path / "some", entries=True, where="name == Deliver")
    assert {row["name"] for row in tables_of(tmp_path / "some")["entries"]} == {"Deliver"}


def test_a_filter_of_the_time_since_the_message_before_selects_as_the_library_does(tmp_path: Path) -> None:
    path, where = GOLDEN / "rabbitmq-stream" / "deliver_v2_405.pcap", "delta > 10ms"
    go([path], tmp_path / "tables", where=where)
    expected = [(one.time_ns, one.name) for one in streamdump.read(path, where=where) if isinstance(one, Message)]
    assert sorted((row["time_ns"], row["name"]) for row in tables_of(tmp_path / "tables")["messages"]) == sorted(expected) != []


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_bodies_are_bytes_in_all_forms(form: str, tmp_path: Path) -> None:
    bodies = [b"", b'a "quote", a comma', b"two\nlines", b"\xff\x00\xfe", "grün".encode()]
    capture = tmp_path / "made.pcap"
    capture.write_bytes(pcap(conversation([*Peer(1, 1, False).handshake(), (CLIENT, publish(0, bodies))], 5552)))
    go([capture], tmp_path / "tables", entries=True, form=form)
    found = sorted(tables_of(tmp_path / "tables", form)["entries"], key=lambda row: int(row["publishing_id"]))
    assert [row["body"] for row in found] == bodies
