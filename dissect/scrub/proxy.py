"""What of a PROXY header is overwritten: addresses, paths and names, with as many bytes, and the checksum with them."""

from __future__ import annotations

import re

from ..layers.proxy import BEGIN_1, CRC32C, FAMILIES, FIXED, ProxyHeader, fields_at, sum_of
from .packets import Edit
from .replace import FILL, AddressReplacements, Replacements

KEPT = (1, CRC32C, 4)
"""Fields of version 2 that stay: the protocol inside, the checksum, and what only fills up."""

NUMBERS = {1: (0, 9), 2: (10, 99), 3: (100, 255)}
"""By digits, the numbers that an address of version 4 is made of."""

_ADDRESS = re.compile(rb"(?<= )[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*(?= )")
_HEX = re.compile(rb"[0-9A-Fa-f]+")


class ProxyReplacements:
    """Replacements of the addresses in headers; those of version 1 have as many digits."""

    def __init__(self, addresses: AddressReplacements) -> None:
        self._addresses = addresses
        self._texts = Replacements()

    def edits(self, header: ProxyHeader) -> list[Edit]:
        """What comes where in a header."""
        before = header.raw
        after = bytearray(before)
        if before.startswith(BEGIN_1):
            if header.kind == "UNKNOWN" or header.damaged is not None:
                # Receivers ignore everything after the word
                keep = len(BEGIN_1) + len(header.kind) * (header.kind == "UNKNOWN")
                after[keep:-2] = bytes(32 if byte == 32 else FILL[0] for byte in before[keep:-2])
            for match in _ADDRESS.finditer(bytes(after)):
                after[match.start() : match.end()] = self._texts.instead(match[0], _like)
        else:
            self._binary(header, after)
        return [] if after == before else [(0, len(after), bytes(after))]

    def _binary(self, header: ProxyHeader, after: bytearray) -> None:
        raw = header.raw
        size, fields = FAMILIES.get(raw[13] >> 4, ("", 0))[1], fields_at(raw)
        if fields is None or not size or header.kind == "LOCAL":
            after[FIXED:] = FILL * (len(raw) - FIXED)
            return
        for start in (FIXED, FIXED + size):
            address = raw[start : start + size]
            after[start : start + size] = (
                self._addresses.network(address) if size < 108 else bytes(FILL[0] if byte else 0 for byte in address)
            )
        for kind, start, end in fields:
            if kind not in KEPT:
                after[start:end] = FILL * (end - start)
        for kind, start, end in fields:
            if kind == CRC32C and end - start == 4 and raw[start:end] == sum_of(raw, start):
                after[start:end] = sum_of(bytes(after), start)


def _like(address: bytes, number: int) -> bytes:
    """An address whose groups have as many digits."""
    made = bytearray(address)
    for group in reversed([*_HEX.finditer(address)]):
        size = len(group[0])
        least, most = (0, 16**size - 1) if b":" in address else NUMBERS.get(size, (100, 255))
        number, rest = divmod(number, most - least + 1)
        made[group.start() : group.end()] = b"%0*x" % (size, rest) if b":" in address else b"%d" % (least + rest)
    return bytes(made)
