"""Names of addresses, from the name resolution blocks of a pcapng file."""

from __future__ import annotations

from .packet_processes import MAX_POD, text_of
from .pcapng import each_option

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
        for kind, value in each_option(body, order, MAX_RECORDS):
            width = SIZES.get(kind)
            if width is not None and len(self._names) < MAX_ADDRESSES:
                name = text_of(value[width:], MAX_POD)
                if name is not None:
                    self._names.setdefault(value[:width], (before, name))

    def get(self, address: bytes, packet: int) -> str | None:
        """Return the name of an address as of this packet."""
        before, name = self._names.get(address, (packet, None))
        return name if before < packet else None
