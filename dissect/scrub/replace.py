"""What comes instead: always as many bytes, for equal names the same, and nothing that tells of what was there."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

FILL = b"x"
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_LETTERS = bytes(FILL[0] if chr(one).isalnum() or one >= 0x80 else one for one in range(256))
"""Prose keeps its blanks and marks."""


class NameReplacements:
    """Replacements of names: the first of each length is number 1."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._count: Counter[int] = Counter()

    def of(self, name: bytes) -> bytes:
        """The replacement; names without a letter or digit (`/`) stay."""
        if name not in self._known:
            self._known[name] = self._new(len(name)) if any(chr(one).isalnum() or one >= 0x80 for one in name) else name
        return self._known[name]

    def _new(self, size: int) -> bytes:
        self._count[size] += 1
        number = self._count[size] % len(_DIGITS) ** size
        text = bytearray()
        while number or not text:
            number, digit = divmod(number, len(_DIGITS))
            text.append(_DIGITS[digit])
        text.reverse()
        # capitals, which no number has
        return (b"NAME-" + b"-" * size)[: size - len(text)] + bytes(text)


def prose(text: bytes) -> bytes:
    """Text in which every letter and digit was overwritten."""
    return text.translate(_LETTERS)


class AddressReplacements:
    """Replacements of network and hardware addresses; those that name no machine stay."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._count: Counter[int] = Counter()
        """How many there are of each size."""

    def network(self, address: bytes) -> bytes:
        """An IPv4 or IPv6 address; loopback, multicast and unspecified ones stay."""
        if address not in self._known:
            what = ip_address(address)
            kept = what.is_loopback or what.is_multicast or what.is_unspecified or address == b"\xff" * 4
            self._known[address] = address if kept else self._new(address)
        return self._known[address]

    def hardware(self, address: bytes) -> bytes:
        """An Ethernet address; that of nobody and that of all stay, and groups stay groups."""
        if address not in self._known:
            kept = not any(address) or address == b"\xff" * 6
            self._known[address] = address if kept else self._new(address)
        return self._known[address]

    def _new(self, address: bytes) -> bytes:
        size = len(address)
        self._count[size] += 1
        number = self._count[size]
        if size == 4:
            return bytes((10, *(number % (1 << 24)).to_bytes(3, "big")))
        if size == 6:
            return bytes((2 | address[0] & 1, 0, *number.to_bytes(4, "big")))
        return bytes.fromhex("20010db8") + number.to_bytes(12, "big")
