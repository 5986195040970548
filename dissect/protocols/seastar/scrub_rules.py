"""What in Seastar RPC is nobody else's business. It has no checksums."""

from __future__ import annotations

from ..scrub_rules import ScrubRules

SCRUB_RULES = ScrubRules(
    payloads=("payload", "features.data", "body", "undecoded", "trailing", "*.trailing"),
    names=("features.cookie",),
    texts=("text",),
    packed=("block", "packed"),
)
