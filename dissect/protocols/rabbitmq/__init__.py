"""RabbitMQ Streams: the protocol in use and its first draft."""

from __future__ import annotations

from functools import cache

from ..protocol import DetectionView, LoadedProtocol, Protocol


def _may_begin(view: DetectionView) -> bool:
    """Whether the client's first header, if it was captured, has a size up to 64 MiB, a key below 256 and a version up to 2."""
    client = view.sides[0]
    if not client.begins or len(data := client.runs[0][1]) < 8:
        return True
    return data[0] <= 4 and data[4] in (0, 0x80) and not data[6] and data[7] <= 2


@cache
def _load() -> LoadedProtocol:
    from .dissector import PROTOCOL

    return PROTOCOL


@cache
def _load_draft() -> LoadedProtocol:
    from .dissector import DRAFT

    return DRAFT


PROTOCOLS = (
    Protocol("rabbitmq-stream", "RabbitMQ Streams", (5552, 5551), _load, _may_begin, system="rabbitmq"),
    Protocol(
        "rabbitmq-stream-draft", "RabbitMQ Streams, first draft (May 2020)", (5552, 5551, 5555), _load_draft, _may_begin, system="rabbitmq"
    ),
)
