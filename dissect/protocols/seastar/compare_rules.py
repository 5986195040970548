"""Behaviour and chance in Seastar RPC."""

from __future__ import annotations

from typing import Any

from ..compare_rules import CompareRules
from .layouts import OVER


def _timeout(value: Any) -> str | None:
    """What was left of a timeout when the frame was written; whether there is one is the caller's choice."""
    return None if not value else "over" if value >= OVER else "set"


COMPARE_RULES = CompareRules(
    dropped=(
        "magic",
        "*.len",
        "len",
        "exception_len",
        "handler_duration",
        # ScyllaDB packs with what its budget of CPU time allows, and agrees on dictionaries when it has trained new ones
        *(f"compression.{name}" for name in ("packed_size", "unpacked_size", "header", "checksum", "dictionary", "control")),
    ),
    paired=("msg_id",),
    aliases={"connection": ("features.connection_id", "features.stream_parent")},
    reduced={"timeout": _timeout},
    handshake=("Negotiation",),
)
