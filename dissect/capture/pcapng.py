"""Reads pcapng files."""

from __future__ import annotations

from collections.abc import Iterator

from dissect.capture.blocks import Blocks
from dissect.model import PacketBatch

MAGIC = bytes.fromhex("0a0d0d0a")


def read_packets(blocks: Blocks, links: dict[int, None]) -> Iterator[PacketBatch]:
    """The packets of all sections."""
    raise NotImplementedError
