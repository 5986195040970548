"""Sensitive fields of Apache Iggy, and the checksums of its messages, batches and requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from xxhash import xxh3_64_intdigest

from ...model import Span
from ..scrub_rules import ScrubRules
from .frames import FRAME_KINDS, HEADER
from .replica_framing import is_sealed, seal
from .replica_layouts import CARRIERS

_REQUEST_SUM = 144
"""Where a request of the 256-byte framing has the checksum of its body."""


def _sums(before: bytes, after: bytearray, spans: Sequence[Span]) -> None:
    """From the inside out: the sum of a batch covers those of its messages, that of a request its complete body."""
    batches: list[tuple[Span, list[Span]]] = []
    for index, span in enumerate(spans):
        if not span.leaf and span.name.startswith("messages["):
            _message_sum(before, after, span, _below(spans, index))
        elif not span.leaf and span.name.startswith("batches["):
            batches.append((span, _below(spans, index)))
    for batch, inside in batches:
        _batch_sum(before, after, batch, inside)
    if len(before) >= HEADER and before[60] not in FRAME_KINDS and any(one.name == "checksum_body" for one in spans[:2]):
        _seals(before, after)
    elif len(before) > HEADER and any(span.name == "request_checksum" and span.offset == _REQUEST_SUM for span in spans[:16]):
        _renew(before, after, _REQUEST_SUM, 8, lambda data: xxh3_64_intdigest(bytes(data[HEADER:])))


def _below(spans: Sequence[Span], index: int) -> list[Span]:
    """The fields inside of a group."""
    depth = spans[index].depth
    inside: list[Span] = []
    for place in range(index + 1, len(spans)):
        if spans[place].depth <= depth:
            break
        if spans[place].leaf:
            inside.append(spans[place])
    return inside


def _message_sum(before: bytes, after: bytearray, group: Span, inside: Sequence[Span]) -> None:
    checksum = next((span for span in inside if span.name == "checksum"), None)
    if checksum is None:
        return
    start, stop = checksum.offset + checksum.length, group.offset + group.length
    if checksum.length == 8:
        for digest in (xxh3_64_intdigest, crc32):
            if _renew(before, after, checksum.offset, 8, lambda data, digest=digest: digest(bytes(data[start:stop]))):  # type: ignore[misc]
                return
        return
    payload = next((span for span in inside if span.name == "payload"), None)
    if payload is not None:
        # behind its length
        first, last = payload.offset + 4, payload.offset + payload.length
        _renew(before, after, checksum.offset, 4, lambda data: crc32(data[first:last]))


def _batch_sum(before: bytes, after: bytearray, group: Span, inside: Sequence[Span]) -> None:
    checksum = next((span for span in inside if span.name == "batch_checksum"), None)
    if checksum is None:
        return
    start = group.offset
    places = [span.offset for span in inside if span.name == "checksum"]

    def digest(data: bytes | bytearray) -> int:
        parts = [bytes(data[start : start + 40]), bytes(data[start + 48 : start + 52]), *(bytes(data[at : at + 8]) for at in places)]
        return xxh3_64_intdigest(b"".join(parts))

    _renew(before, after, checksum.offset, 8, digest)


def _seals(before: bytes, after: bytearray) -> None:
    """Those of a frame between replicas. A Prepare has none then, which is valid: others name it by its checksum."""
    sealed = is_sealed(before, 0)
    _renew(before, after, 16, 8, lambda data: xxh3_64_intdigest(bytes(data[HEADER:])))
    if sealed and after != before:
        after[:8] = bytes(8) if before[60] in CARRIERS else seal(bytes(after), 0).to_bytes(8, "little")


def _renew(before: bytes, after: bytearray, at: int, size: int, digest: Callable[[bytes | bytearray], int]) -> bool:
    """Recompute a checksum if it was right; return whether it was."""
    if len(before) < at + size or digest(before) != int.from_bytes(before[at : at + size], "little"):
        return False
    after[at : at + size] = digest(after).to_bytes(size, "little")
    return True


SCRUB_RULES = ScrubRules(
    payloads=(
        "*messages.payload",
        "*.headers.key",
        "*.headers.value",
        "snapshot",
        "body",
        "trailing",
        "undecoded",
        "*.trailing",
    ),
    names=(
        "username",
        "*users.username",
        "stream_id.value",
        "topic_id.value",
        "group_id.value",
        "user_id.value",
        "consumer.id.value",
        "partitioning.value",
        "name",
        "create_topic.name",
        "create_topic.stream_id.value",
        "create_partitions.*_id.value",
        "*streams.name",
        "*topics.name",
        "*groups.name",
        "tokens.name",
        "nodes.name",
    ),
    texts=("message", "context"),
    addresses=("address", "*clients.address", "nodes.ip", "hostname"),
    sums=_sums,
)
