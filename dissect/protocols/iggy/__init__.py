"""Apache Iggy: fifteen layouts in two framings."""

from __future__ import annotations

from functools import cache

from ..protocol import DetectionView, LoadedProtocol, Protocol

PORTS, WEBSOCKET = (8090, 8092), (8092,)
"""The second is that of WebSocket, which 0.6.0 and later serve."""


def _may_begin(view: DetectionView) -> bool:
    """Whether the client's first bytes, if all of them were captured in one run, can be a request of either framing."""
    client = view.sides[0]
    if not client.begins or len(client.runs) != 1 or len(data := client.runs[0][1]) < 8:
        return True
    if data[3] <= 4 and not any(data[6:8]):
        # A length of up to 64 MiB, and a code below 65,536
        return True
    # A header of 256 bytes: its size is at 48, its command at 60, and zeros follow
    return 61 <= len(data) < 64 or (len(data) >= 64 and data[51] <= 4 and data[60] > 0 and not any(data[62:128]))


@cache
def _load() -> LoadedProtocol:
    from .dissector import PROTOCOL

    return PROTOCOL


PROTOCOLS = (Protocol("iggy", "Apache Iggy", PORTS, _load, _may_begin, WEBSOCKET),)
