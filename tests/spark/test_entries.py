"""The table of user messages: the same as the library's, whatever the captures are divided into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import streamdump
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
)


def expected(path: Path) -> list[tuple[Any, ...]]:
    found = []
    for one in streamdump.read(path, entries=True, bytes_as="raw"):
        body = one.body if type(one.body) is bytes else msgspec.json.encode(one.body)
        # Where a published entry was stored is known from the response
        offset = None if one.consumer is None else one.offset
        partition = one.partition if one.consumer is not None or one.name != "send_messages" else None
        found.append((*(getattr(one, name) for name in COLUMNS if name != "partition"), partition, offset, body))
    return found


def reported(row: dict[str, Any]) -> tuple[Any, ...]:
    partition = None if row["name"] == "send_messages" else row["partition"]
    return (*(row[name] for name in COLUMNS if name != "partition"), partition, row["offset"], row["body"])


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


def test_what_became_of_an_entry_is_in_the_exchange_of_its_message(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    go([GOLDEN / "rabbitmq-stream" / "publish_error_310.pcap"], out, entries=True)
    tables = tables_of(out)
    outcomes = {row["message_id"]: (row["outcome"], row["code_label"]) for row in tables["exchanges"]}
    found = [(row["body"], *outcomes[row["message_id"]]) for row in tables["entries"]]
    assert (b"after delete", "refused", None) in found and len(found) == 5


def test_without_being_asked_for_it_is_empty_and_a_filter_of_messages_holds(tmp_path: Path) -> None:
    go([GOLDEN / "rabbitmq-stream" / "js_subentries_436.pcap"], tmp_path / "none")
    assert tables_of(tmp_path / "none")["entries"] == []
    go([GOLDEN / "rabbitmq-stream" / "js_subentries_436.pcap"], tmp_path / "some", entries=True, where="name == Deliver")
    assert {row["name"] for row in tables_of(tmp_path / "some")["entries"]} == {"Deliver"}


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_bodies_are_bytes_in_all_forms(form: str, tmp_path: Path) -> None:
    bodies = [b"", b'a "quote", a comma', b"two\nlines", b"\xff\x00\xfe", "grün".encode()]
    capture = tmp_path / "made.pcap"
    capture.write_bytes(pcap(conversation([*Peer(1, 1, False).handshake(), (CLIENT, publish(0, bodies))], 5552)))
    go([capture], tmp_path / "tables", entries=True, form=form)
    found = sorted(tables_of(tmp_path / "tables", form)["entries"], key=lambda row: int(row["publishing_id"]))
    assert [row["body"] for row in found] == bodies
