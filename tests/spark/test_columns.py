"""Columns that tables add to the records: the sides of conversations, logins, the packets of gaps, and the codes of problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.model import ConversationRow, Ending, Exchange, Finding, Gap, Message
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.compare_rules import HandshakeProgress
from streamdump.spark.splits import CODES, FileError
from streamdump.spark.tables import KINDS, schema
from tests.spark.comparing import tables_of
from tests.spark.here import go

CAPTURES = Path(__file__).parents[2] / "captures"
FAMILIES = [CAPTURES / "golden" / name for name in ("iggy", "rabbitmq-stream", "mewbase", "seastar-rpc")]

Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    out = tmp_path_factory.mktemp("columns") / "tables"
    go(FAMILIES, out, separate=True)
    return tables_of(out)


@pytest.mark.parametrize("record", [Message, Exchange, Gap, Ending, Finding, ConversationRow])
def test_tables_have_the_keys_of_the_json(record: type[msgspec.Struct]) -> None:
    table = "conversations" if record is ConversationRow else KINDS[record]
    # Requests and responses are named by message_id, and the processes of each connection are not read
    others = {"v", "number", "processes", "raw", "spans", "request", "response"} | ({"packets"} if record is Message else set())
    assert {*record.__struct_fields__} - others <= {*schema(table).names}


def test_conversations_have_the_sides_by_role(found: Found) -> None:
    known = [row for row in found["conversations"] if row["client"] is not None]
    assert len(known) > 100
    for row in known:
        for role in ("client", "server"):
            side = row["endpoints"].index(row[role])
            host = f"[{row[f'{role}_host']}]" if ":" in row[f"{role}_host"] else row[f"{role}_host"]
            assert f"{host}:{row[f'{role}_port']}" == row[role]
            assert [row[f"{role}_packets"], row[f"{role}_bytes"]] == [row["packets"][side], row["bytes"][side]]
    unknown = [row for row in found["conversations"] if row["client"] is None]
    assert unknown
    assert {row[f"{role}_{name}"] for row in unknown for role in ("client", "server") for name in ("host", "port", "bytes")} == {None}


def test_conversations_say_how_far_the_handshake_got(found: Found) -> None:
    for row in found["conversations"]:
        assert row["handshake"] == json.loads(row["facts"]).get("handshake")
    said = {(row["protocol"], row["handshake"], row["authenticated"]) for row in found["conversations"]}
    assert {
        ("rabbitmq-stream", "ready", True),
        ("rabbitmq-stream", "Open, refused", True),
        ("rabbitmq-stream", "SaslAuthenticate, refused", False),
        ("rabbitmq-stream", "SaslAuthenticate, without an answer", None),
        ("rabbitmq-stream", "SaslHandshake, answered", False),
        ("rabbitmq-stream", None, None),
        ("iggy", "login_user, refused", False),
        ("iggy", "ready", True),
        ("seastar-rpc", "ready", None),
        ("mewbase", "ready", None),
    } <= said


def test_every_step_of_a_handshake_is_known_to_its_protocol() -> None:
    for protocol in PROTOCOLS:
        rules = protocol.loaded.compare_rules
        if rules is not None and rules.login:
            assert set(rules.login) <= set(rules.handshake)
            progress = HandshakeProgress(rules)
            for name in rules.handshake:
                progress.unanswered(name)
                assert rules.authenticated(progress.step) in ((None,) if name in rules.login else (True, False))
            assert rules.authenticated("something else") is None


def test_exchanges_say_when_the_request_was_sent(found: Found) -> None:
    messages = {row["message_id"]: row for row in found["messages"]}
    assert found["exchanges"]
    assert all(row["request_time"] == messages[row["message_id"]]["time"] for row in found["exchanges"])


def test_gaps_name_a_packet_of_that_time(found: Found) -> None:
    paths = {row["file"]: row["path"] for row in found["files"]}
    times = {
        path: {packet.number: packet.time_ns for packets in open_capture(path).batches() for packet in packets}
        for path in {paths[row["file"]] for row in found["gaps"]}
    }
    assert len(found["gaps"]) > 10
    assert all(times[paths[row["file"]]][row["packet"]] == row["time_ns"] for row in found["gaps"])


def test_problems_have_codes(tmp_path: Path) -> None:
    capture = (CAPTURES / "golden" / "iggy" / "py060-basic.pcap").read_bytes()
    contents = {
        "a-empty": b"",
        "b-not-a-capture": b"something else",
        "c-truncated": capture[:-7],
        "d-truncated": capture[:11],
        "e-unsupported": capture[:4] + b"\7" + capture[5:],
        "f-damaged": capture + b"\xff" * 32,
        "g-truncated": capture[:3],
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    go([str(tmp_path / name) for name in contents], tmp_path / "out")
    errors = [row for row in tables_of(tmp_path / "out")["errors"] if row["fatal"]]
    assert [row["code"] for row in errors] == [Path(row["path"]).name[2:] for row in errors]
    assert len(errors) == len(contents)
    assert all(FileError(0, "", None, None, f"it {words} here", None).code == code for code, words in CODES.items())
    assert FileError(0, "", None, None, "permission denied", None).code == "unreadable"
