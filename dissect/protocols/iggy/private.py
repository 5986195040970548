"""What in Apache Iggy is nobody else's business, and the checksums of its messages, batches and requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from xxhash import xxh3_64_intdigest

from dissect.model import Span
from dissect.protocols.iggy.frames import HEADER
from dissect.protocols.private import Private

_REQUEST_SUM = 144
"""Where a request of the 256-byte framing has the checksum of its body."""


def _sums(before: bytes, after: bytearray, spans: Sequence[Span]) -> None:
    """From the inside out: the sum of a batch covers those of its messages, that of a request its whole body."""
    groups = [span for span in spans if not span.leaf and span.buffer == "frame" and span.length]
    for group in groups:
        own = [span for span in spans if span.leaf and span.buffer == "frame" and span.name == "checksum" and span.offset >= group.offset]
        checksum = next((span for span in own if span.offset < group.offset + group.length), None)
        if checksum is not None and group.name.startswith("messages["):
            _message_sum(before, after, spans, group, checksum)
    for group in groups:
        if group.name.startswith("batches["):
            _batch_sum(before, after, spans, group)
    if len(before) > HEADER and any(span.name == "request_checksum" and span.offset == _REQUEST_SUM for span in spans):
        _renew(before, after, _REQUEST_SUM, 8, lambda data: xxh3_64_intdigest(bytes(data[HEADER:])))


def _message_sum(before: bytes, after: bytearray, spans: Sequence[Span], group: Span, checksum: Span) -> None:
    start, stop = checksum.offset + checksum.length, group.offset + group.length
    if checksum.length == 8:
        for digest in (xxh3_64_intdigest, crc32):
            if _renew(before, after, checksum.offset, 8, lambda data, digest=digest: digest(bytes(data[start:stop]))):  # type: ignore[misc]
                return
        return
    payload = next((span for span in spans if span.leaf and span.name == "payload" and start <= span.offset < stop), None)
    if payload is not None:
        # behind its length
        first, last = payload.offset + 4, payload.offset + payload.length
        _renew(before, after, checksum.offset, 4, lambda data: crc32(data[first:last]))


def _batch_sum(before: bytes, after: bytearray, spans: Sequence[Span], group: Span) -> None:
    start, stop = group.offset, group.offset + group.length
    own = [span for span in spans if span.leaf and span.buffer == "frame" and start <= span.offset < stop]
    checksum = next((span for span in own if span.name == "batch_checksum"), None)
    if checksum is None:
        return
    places = [span.offset for span in own if span.name == "checksum"]

    def digest(data: bytes | bytearray) -> int:
        parts = [bytes(data[start : start + 40]), bytes(data[start + 48 : start + 52]), *(bytes(data[at : at + 8]) for at in places)]
        return xxh3_64_intdigest(b"".join(parts))

    _renew(before, after, checksum.offset, 8, digest)


def _renew(before: bytes, after: bytearray, at: int, size: int, digest: Callable[[bytes | bytearray], int]) -> bool:
    """Compute a sum anew where it was right; whether it was."""
    if len(before) < at + size or digest(before) != int.from_bytes(before[at : at + size], "little"):
        return False
    after[at : at + size] = digest(after).to_bytes(size, "little")
    return True


PRIVATE = Private(
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
        "*streams.name",
        "*topics.name",
        "*groups.name",
        "tokens.name",
        "nodes.name",
    ),
    texts=("message", "context"),
    addresses=("address", "*clients.address", "nodes.ip", "hostname"),
)
PRIVATE = PRIVATE._replace(sums=_sums)
