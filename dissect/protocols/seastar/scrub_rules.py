"""What in Seastar RPC is nobody else's business, and the checksum of ScyllaDB's raw frames."""

from __future__ import annotations

from collections.abc import Sequence

from ...crc32c import crc32c
from ...model import Span
from ..scrub_rules import ScrubRules
from .layouts import RAW
from .scylla import head_of


def _sums(before: bytes, after: bytearray, spans: Sequence[Span]) -> None:
    """Correct the checksum of a raw frame of SCYLLA_V3; packed ones are overwritten completely."""
    if not any(span.name == "checksum" for span in spans):
        return
    head = head_of(before, 0, len(before))
    if head is not None and head.method == RAW and head.fits(before[head.packed :]):
        after[5:9] = crc32c(bytes(after[head.packed :])).to_bytes(4, "little")


SCRUB_RULES = ScrubRules(
    payloads=("payload", "features.data", "body", "undecoded", "trailing", "*.trailing"),
    names=("features.cookie",),
    texts=("text",),
    packed=("block", "packed"),
    sums=_sums,
)
