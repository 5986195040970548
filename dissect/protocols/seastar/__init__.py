"""Seastar RPC."""

from __future__ import annotations

from functools import cache

from ..protocol import DetectionView, LoadedProtocol, Protocol

NAME = "seastar-rpc"

MAGIC = b"SSTARRPC"
"""The first bytes of both sides."""


def _may_begin(view: DetectionView) -> bool:
    """Whether a side begins with the magic, or neither beginning was captured."""
    runs = [side.runs[0] for side in view.sides if side.runs]
    return any(not position and data.startswith(MAGIC) for position, data in runs) or not any(side.begins for side in view.sides)


@cache
def _load() -> LoadedProtocol:
    from .dissector import PROTOCOL

    return PROTOCOL


PROTOCOLS = (Protocol(NAME, "Seastar RPC", (7000,), _load, _may_begin),)
