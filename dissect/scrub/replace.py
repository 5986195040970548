"""Replacements: of the same size, equal for equal names, and independent of the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

FILL = b"x"
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_LETTERS = bytes(FILL[0] if chr(one).isalnum() or one >= 0x80 else one for one in range(256))
"""Prose keeps its blanks and marks."""


class Replacements:
    """Remembers what comes instead: for equal bytes the same; the first of each size is number 1."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._count: Counter[int] = Counter()

    def instead(self, data: bytes, make: Callable[[bytes, int], bytes], stays: Callable[[bytes], bool] = lambda data: False) -> bytes:
        """Return the replacement that `make` returns for the bytes and their number, or `data` itself where it `stays`."""
        if data not in self._known:
            kept = stays(data)
            self._count[len(data)] += not kept
            self._known[data] = data if kept else make(data, self._count[len(data)])
        return self._known[data]


class NameReplacements(Replacements):
    """Replacements of names."""

    def of(self, name: bytes) -> bytes:
        """Return the replacement; names without a letter or digit (`/`) stay."""
        return self.instead(name, _name, lambda name: not any(chr(one).isalnum() or one >= 0x80 for one in name))


class AddressReplacements(Replacements):
    """Replacements of network and hardware addresses; addresses that name no machine stay."""

    def network(self, address: bytes) -> bytes:
        """Return an IPv4 or IPv6 address; loopback, multicast and unspecified ones stay."""
        return self.instead(address, _address, _is_general)

    def hardware(self, address: bytes) -> bytes:
        """Return an Ethernet address; zeros and the broadcast address stay, and groups stay groups."""
        return self.instead(address, _address, lambda address: not any(address) or address == b"\xff" * 6)


def prose(text: bytes) -> bytes:
    """Return text in which every letter and digit was overwritten."""
    return text.translate(_LETTERS)


def _name(name: bytes, number: int) -> bytes:
    size = len(name)
    number %= len(_DIGITS) ** size
    text = bytearray()
    while number or not text:
        number, digit = divmod(number, len(_DIGITS))
        text.insert(0, _DIGITS[digit])
    # capitals, which no number has
    return (b"NAME-" + b"-" * size)[: size - len(text)] + bytes(text)


def _is_general(address: bytes) -> bool:
    what = ip_address(address)
    return what.is_loopback or what.is_multicast or what.is_unspecified or address == b"\xff" * 4


def _address(address: bytes, number: int) -> bytes:
    if len(address) == 4:
        return bytes((10, *(number % (1 << 24)).to_bytes(3, "big")))
    if len(address) == 6:
        return bytes((2 | address[0] & 1, 0, *number.to_bytes(4, "big")))
    return bytes.fromhex("20010db8") + number.to_bytes(12, "big")
