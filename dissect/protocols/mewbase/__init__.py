"""mewbase: frames that are BSON documents."""

from __future__ import annotations

from functools import cache

from ..protocol import DetectionView, LoadedProtocol, Protocol


def _may_begin(view: DetectionView) -> bool:
    """Whether the first element of a side's first document is `type` or `frame`, or its beginning was not captured."""
    return any(not side.from_start or _may_be_frame(side.runs[0][1]) for side in view.sides if side.runs)


def _may_be_frame(data: bytes) -> bool:
    return b"type\0".startswith(data[5:10]) or b"frame\0".startswith(data[5:11])


@cache
def _load() -> LoadedProtocol:
    from .dissector import PROTOCOL

    return PROTOCOL


PROTOCOLS = (Protocol("mewbase", "mewbase event store, the binary protocol of 2016 and 2017", (7451,), _load, _may_begin),)
