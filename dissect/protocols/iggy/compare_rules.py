"""Behaviour and timing in Apache Iggy: how often a consumer polls, and how much each poll returns."""

from __future__ import annotations

from typing import Any

from ..compare_rules import CompareRules, Fields, TotalRule
from .layout_versions import LAYOUTS, in_words


def _place(fields: Fields) -> str:
    return " ".join(_identifier(fields.get(name)) for name in ("stream_id", "topic_id"))


def _identifier(value: Any) -> str:
    return str(value.get("value") if isinstance(value, dict) else value)


def _consumer(fields: Fields) -> str:
    consumer = fields.get("consumer", {})
    return f"{consumer.get('kind_label') or 'consumer'} {_identifier(consumer.get('id'))} {_place(fields)}"


def _asking(fields: Fields, asked: Fields) -> str:
    return _consumer(fields)


def _consumed_partition(fields: Fields, asked: Fields) -> str:
    return f"{_consumer(asked)} partition {fields.get('partition_id')}"


def _polled(fields: Fields, asked: Fields) -> list[Any]:
    found: list[Any] = list(fields.get("messages", []))
    for batch in fields.get("batches", []):
        base = batch.get("base_offset", 0)
        found += [{"offset": base + one.get("offset_delta", 0), **one} for one in batch.get("messages", [])]
    return found


def _id(value: Any) -> str | None:
    """Message ids are random unless the producer chose them; 0 asks the server to."""
    return None if value in ("0", 0) else "id"


_HEADER = (
    "checksum",
    "checksum_body",
    "cluster",
    "size",
    "view",
    "release",
    "command",
    "replica",
    "reserved",
    "request_checksum",
    "request",
    "operation",
    "operation_padding",
    "namespace",
    "code",
    "incarnation",
    "owner_generation",
    "metadata_op",
    "reserved_end",
    "context",
    "op",
    "commit",
    "timestamp",
    "length",
    # between replicas
    "parent",
    "prepare_checksum",
    "commit_checksum",
    "timestamp_monotonic",
    "checkpoint_op",
    "reserved_middle",
    "hello_nonce",
    "challenge_nonce",
    "mac",
    "prepares",
    "manifest_checksum",
)

LOGINS = ("login_user", "login_with_personal_access_token", "login_register", "login_register_with_pat")

COMPARE_RULES = CompareRules(
    dropped=(
        *_HEADER,
        "metadata_length",
        "indexes",
        "*.checksum",
        "*.timestamp",
        "*.origin_timestamp",
        "*.base_timestamp",
        "*.timestamp_delta",
        "*.headers_length",
        "*.payload_length",
        "*.batch_length",
        "*.batch_checksum",
        "*.reserved",
        "*.created_at",
        "*.expiry_at",
        "*.size_bytes",
        "send_messages:messages.offset",
        "poll_messages:messages.offset_delta",
        "poll_messages:messages.state",
        *(
            f"get_stats:{name}"
            for name in (
                "process_id",
                "cpu_usage",
                "total_cpu_usage",
                "memory_usage",
                "total_memory",
                "available_memory",
                "run_time",
                "start_time",
                "read_bytes",
                "written_bytes",
                "messages_size_bytes",
                "cache_metrics",
                "threads_count",
                "free_disk_space",
                "total_disk_space",
            )
        ),
        "get_snapshot:snapshot",
    ),
    aliases={
        "connection": ("client", "get_me:id", "get_client:id", "client_id", "clients.id", "members.id"),
        "session": ("session",),
        "nonce": ("nonce", "replica_incarnation"),
    },
    hosts=("hostname", "nodes.ip"),
    ports=("nodes.tcp_port",),
    masked={
        "version": (
            "login_user:version",
            "sdk_version",
            "server_version",
            "server_semver",
            "os_name",
            "os_version",
            "kernel_version",
        )
    },
    reduced={"messages.id": _id, "batches.messages.id": _id},
    releases={layout: f"{layout} ({in_words((layout,))})" for layout in LAYOUTS},
    heartbeats=("ping",),
    handshake=LOGINS,
    login=LOGINS,
    flows={
        "poll_messages": (
            TotalRule("request", _asking, content=("strategy_value",)),
            TotalRule("response", _consumed_partition, _polled, ("messages", "batches", "count", "current_offset")),
        ),
    },
)
