"""Apache Iggy V5: what the objects of published clients show of a reply is what is decoded of it.

`tests/broker/iggy_scripted.py` made the captures, and the values in `iggy_clients.json`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.test_iggy import messages, read

VALUES: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("iggy_clients.json").read_text())

RENAMED = {"size": "size_bytes", "iggy_server_version": "server_version", "iggy_server_semver": "server_semver"}
COMMANDS = {"update_stream": "resource.update", "update_topic": "resource.update", "update_user": "resource.update"}
FLAGS = ("updatable", "resettable", "secret", "read_only", "critical")
CONTEXT = ("incarnation", "owner_generation", "metadata_op")


def compare(shown: Any, fields: Any) -> int:
    """Compare what an object shows with decoded fields; return how many values are equal."""
    if isinstance(shown, list):
        assert len(shown) == len(fields)
        return sum(compare(*both) for both in zip(shown, fields, strict=True))
    if not isinstance(shown, dict):
        assert shown == fields
        return 1
    count = 0
    for name, value in shown.items():
        match name:
            case "options" | "derived_options":
                assert value == {one["key"]: one["value"] for one in fields[name]}
                count += 1 + len(value)
            case "status":
                assert value == f"UserStatus.{fields['user_status_label'].title()}"
                count += 1
            case "permissions":
                rights = fields.get("permissions")
                assert bool(value) is bool(fields["has_permissions"]) is bool(rights)
                if value:
                    assert value["streams"] is None and rights["streams"] == []
                    count += compare(value["global_permissions"], rights)
            case "context":
                count += compare(value, {one: fields[one] for one in CONTEXT})
            case "partitions_count" if "partitions_count" not in fields:
                assert value == len(fields["partitions"])
                count += 1
            case "cache_metrics":
                for (key, one), metrics in zip(value.items(), fields[name], strict=True):
                    place = [metrics["stream_id"], metrics["topic_id"], metrics["partition_id"]]
                    assert [int(number) for number in re.findall("[0-9]+", key)] == place
                    count += 3 + compare(one, metrics)
            case _:
                count += compare(value, fields[RENAMED.get(name, name)])
    return count


def polled(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a reply as the client has them."""
    found = []
    for batch in fields["batches"]:
        for one in batch["messages"]:
            offset = batch["base_offset"] + one["offset_delta"]
            place = {"offset": offset, "partition_id": fields["partition_id"], **{name: fields[name] for name in CONTEXT}}
            found.append(
                {
                    **place,
                    "position": place,
                    "checksum": one["checksum"],
                    "id": int(one["id"]),
                    "length": one["payload_length"],
                    "payload": one["payload"],
                    "timestamp": batch["base_timestamp"],
                    "origin_timestamp": batch["origin_timestamp"] + one["timestamp_delta"],
                    "user_headers": one["headers"] or None,
                }
            )
    return found


def options(fields: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for one in fields["options"]:
        flags = {name: bool(one["flags"] & 1 << bit) for bit, name in enumerate(FLAGS)}
        default = bytes.fromhex(one["default"])
        value = default.decode() if one["kind_label"] == "string" else int.from_bytes(default, "little")
        found.append(
            {"key": one["key"], "description": one["description"], "kind": one["kind_label"], "default_value": {"value": value}} | flags
        )
    return found


LISTS = {"get_streams": "streams", "get_topics": "topics", "get_users": "users", "get_consumer_groups": "groups"}


@pytest.mark.parametrize("name", VALUES)
def test_a_client_shows_what_is_decoded(name: str) -> None:
    replies: dict[str, list[Any]] = defaultdict(list)
    for one in messages(read(f"{name}.pcap")[0]):
        assert one.fault is None
        if one.kind == "response":
            assert one.outcome is not None
            replies[one.name].append(one)
    count = 0
    for said in VALUES[name]:
        call = said["call"]
        reply = replies[COMMANDS.get(call, call)].pop(0)
        if "error" in said:
            assert (reply.outcome, reply.fields["status"]) == ("refused", said["code"])
            # the texts of the client have the words of the name, mostly
            assert reply.fields["status_label"]
            count += 1
            continue
        assert reply.outcome == "answered"
        value, fields = said["value"], reply.fields
        if value == []:
            # the client shows nothing
            continue
        match call:
            case "poll_messages":
                fields = polled(fields)
            case "describe_options":
                fields = options(fields)
            case "send_messages":
                value, fields = value["confirmations"], fields["written"]
            case _:
                fields = fields[LISTS[call]] if call in LISTS else fields
        count += compare(value, fields)
    assert count >= {"errors": 7, "messages": 80, "admin": 150}[name.partition("-")[2]]


def test_requests_carry_what_the_client_was_told() -> None:
    """The keys of streams, and passwords, are hidden."""
    said = {one.name: one.fields for one in messages(read("py091d5-admin.pcap")[0]) if one.kind == "request"}
    (key,) = said["create_stream"]["options"]
    assert (key["key"], key["value"]) == ("encryption_key", "<redacted 32 bytes>")
    options = {one["key"]: one["value"] for one in said["create_topic"]["options"]}
    assert options == {"durability": "persisted", "consumer_offset_durability": "replicated"} | options
    assert said["create_topic"]["partitions_count"] == 2
    assert said["create_user"]["password"] == "<redacted 12 bytes>"
    changed = {one["key"]: one["value"] for one in said["resource.update"]["options"]}
    assert changed == {"status": "inactive", "username": "bobby"}
