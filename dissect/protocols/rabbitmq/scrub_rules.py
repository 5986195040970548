"""Sensitive fields of RabbitMQ Streams, and the checksum of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from ...model import Message, Span
from ..scrub_rules import ScrubRules, SensitivePart
from .sasl_redaction import long_strings

_U32 = Struct(">I")


def _credentials(message: Message, span: Span, data: bytes) -> list[SensitivePart] | None:
    """Return the password and, where it is shown, the user name of PLAIN and AMQPLAIN; None for other mechanisms."""
    if span.name != "sasl_opaque_data" or message.fields.get("sasl_username") is None:
        return None
    if message.fields["mechanism"] == "AMQPLAIN":
        strings = long_strings(data)
        if strings is None:
            return None
        return [SensitivePart(begin, end, "name" if name == b"LOGIN" else "secret") for name, begin, end in strings]
    first = data.index(0)
    second = data.index(0, first + 1)
    every = (SensitivePart(0, first, "secret"), SensitivePart(first + 1, second, "name"), SensitivePart(second + 1, len(data), "secret"))
    return [part for part in every if part.end > part.start]


def _chunk_sum(before: bytes, after: bytearray, spans: Sequence[Span]) -> None:
    """The CRC-32 of a chunk's data."""
    found = {span.name: span for span in spans if span.buffer == "frame" and span.name in ("chunk_crc", "data_length", "entries")}
    if len(found) < 3:
        return
    start = found["entries"].offset
    stop = start + found["data_length"].value
    if stop <= len(before) and crc32(before[start:stop]) == found["chunk_crc"].value:
        _U32.pack_into(after, found["chunk_crc"].offset, crc32(after[start:stop]))


SCRUB_RULES = ScrubRules(
    payloads=("*.body", "body", "trailing", "undecoded", "*.trailing", "*.trailer_data", "surplus"),
    overwritten=("*.sections",),
    names=(
        "stream",
        "streams",
        "name",
        "partitions",
        "binding_keys",
        "routing_key",
        "super_stream",
        "publisher_reference",
        "reference",
        "virtual_host",
        "sasl_username",
        "stream_metadata.stream_name",
        "published_messages.filter_value",
        "*.tracking.id",
        "*.trailer.id",
        'peer_properties["connection_name"]',
        'peer_properties["cluster_name"]',
        'peer_properties["node"]',
        'properties["name"]',
        'properties["super-stream"]',
        'properties["filter*"]',
    ),
    texts=("closing_reason",),
    addresses=("brokers.host", 'connection_properties["advertised_host"]'),
    inside=_credentials,
    sums=_chunk_sum,
)
