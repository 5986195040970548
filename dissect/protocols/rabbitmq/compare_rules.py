"""Behaviour and timing in RabbitMQ Streams: chunks, confirmations and credit depend on server load."""

from __future__ import annotations

from typing import Any

from ..compare_rules import CompareRules, Fields, TotalRule
from .layouts import BYTES, unit_of


def _publisher(fields: Fields, asked: Fields) -> str:
    # the draft knows no publishers
    return f"publisher {fields['publisher_id']}" if "publisher_id" in fields else str(fields.get("stream", ""))


def _subscription(fields: Fields, asked: Fields) -> str:
    return f"subscription {fields.get('subscription_id')}"


def _in_bytes(fields: Fields) -> bool:
    return unit_of(fields) == BYTES


def _subscription_in_bytes(fields: Fields, asked: Fields) -> str:
    return f"{_subscription(fields, asked)} in bytes"


def _messages(entries: list[Fields]) -> list[Any]:
    """Messages one by one, those of a sub-batch that could be unpacked as well."""
    found: list[Any] = []
    for entry in entries:
        if "messages" in entry:
            first = entry.get("publishing_id")
            own = {"compression": entry["compression"], "compression_label": entry["compression_label"]}
            if first is not None:
                own["publishing_id"] = first
            found += [{**own, **message} for message in entry["messages"]]
        else:
            found.append(entry)
    return found


def _published(fields: Fields, asked: Fields) -> list[Any]:
    return _messages(fields.get("published_messages", []))


def _delivered(fields: Fields, asked: Fields) -> list[Any]:
    return _messages(fields.get("chunk", {}).get("entries", []))


def _confirmed(fields: Fields, asked: Fields) -> list[Any]:
    return list(fields.get("publishing_ids", []))


def _refused(fields: Fields, asked: Fields) -> list[Any]:
    return list(fields.get("publishing_errors", []))


COMPARE_RULES = CompareRules(
    dropped=(
        "size",
        "key",
        "committed_chunk_id",
        "surplus",
        "*.uncompressed_size",
        "*.num_records",
        "published_messages.size",
        "chunk.entries.size",
        'stats["last_chunk_id"]',
        'stats["committed_chunk_id"]',
    ),
    paired=("correlation_id",),
    hosts=("brokers.host", 'connection_properties["advertised_host"]'),
    ports=("brokers.port", 'connection_properties["advertised_port"]'),
    masked={
        "version": tuple(f'peer_properties["{name}"]' for name in ("version", "platform", "copyright", "information")),
        "cluster": ('peer_properties["cluster_name"]', 'peer_properties["node"]'),
    },
    heartbeats=("Heartbeat",),
    handshake=("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open"),
    ready=("Open",),
    login=("SaslAuthenticate",),
    apart=("MetadataUpdate", "ConsumerUpdate", "StoreOffset"),
    flows={
        "Publish": (TotalRule("request", _publisher, _published, ("published_messages",)),),
        "PublishConfirm": (TotalRule("response", _publisher, _confirmed, ("publishing_ids",), "set"),),
        "PublishError": (TotalRule("response", _publisher, _refused, ("publishing_errors",)),),
        "Deliver": (TotalRule("one_way", _subscription, _delivered, ("chunk.entries", "chunk")),),
        # How many bytes each grants follows from how the server divides messages into chunks
        "Credit": (
            TotalRule("one_way", _subscription_in_bytes, content=("credit",), of=_in_bytes),
            TotalRule("one_way", _subscription),
        ),
    },
)
