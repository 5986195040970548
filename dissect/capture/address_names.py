"""Names of addresses, from the name resolution blocks of a pcapng file."""

from __future__ import annotations

import struct

from .packet_processes import MAX_POD, clipped

IPV4, IPV6 = 1, 2
"""Types of records; others are names of network cards."""

SIZES = {IPV4: 4, IPV6: 16}

MAX_ADDRESSES = 65_536
"""Addresses with a name; further ones have none."""

MAX_RECORDS = 100_000
"""Records of a block that are read."""


class AddressNames:
    """The first name of each address. A name counts for the packets after its block, and for conversations at the end of the file."""

    def __init__(self) -> None:
        self._names: dict[bytes, tuple[int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def read(self, body: bytes, order: str, before: int) -> None:
        """Read the body of a block, which follows this number of packets."""
        at = 0
        for _ in range(MAX_RECORDS):
            if at + 4 > len(body):
                return
            kind, size = struct.unpack_from(order + "HH", body, at)
            value = body[at + 4 : at + 4 + size]
            if not kind or len(value) < size:
                return
            width = SIZES.get(kind)
            if width is not None and size > width and len(self._names) < MAX_ADDRESSES:
                name = clipped(value[width:].split(b"\0")[0][: 4 * MAX_POD].decode("utf-8", "backslashreplace"), MAX_POD)
                if name:
                    self._names.setdefault(value[:width], (before, name))
            at += 4 + (size + 3 & ~3)

    def get(self, address: bytes, packet: int) -> str | None:
        """Return the name of an address as of this packet."""
        before, name = self._names.get(address, (packet, None))
        return name if before < packet else None
