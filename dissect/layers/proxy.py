"""PROXY headers, versions 1 and 2: a load balancer sends one before the first byte of a client, with the addresses of the client.

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import msgspec

from ..model import SideData, StreamGap
from .http import fits

BEGIN_1, BEGIN_2 = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
SIGNATURES = BEGIN_1, BEGIN_2
FIRST_BYTES = BEGIN_1[:1], BEGIN_2[:1]
LARGEST_1, LARGEST_2 = 107, 1_024
"""Limits of a header in bytes. The length field of version 2 allows more, but receivers accept far fewer."""

PIECES = 256
"""Segments that may contain a header at most."""

FIXED = 16
"""Bytes before the addresses in version 2."""

FAMILIES = {1: ("TCP4", 4), 2: ("TCP6", 16), 3: ("UNIX", 108)}
"""By address family of version 2: name and bytes of one address."""

CRC32C = 3
"""The type of the field of version 2 with a checksum of the header."""

_LINE = re.compile(rb"PROXY (?:UNKNOWN(?: [ -~]*)?|(TCP[46]) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (\d{1,5}) (\d{1,5}))\r\n")

WAIT = 0

Items = list[SideData | StreamGap]


class ProxyHeader(msgspec.Struct, gc=False):
    """A header, its side and contents; `client` and `server` are None if it contains no addresses. `damaged`: why it cannot be read."""

    side: int
    raw: bytes
    version: int
    kind: str
    client: str | None = None
    server: str | None = None
    damaged: str | None = None

    @property
    def name(self) -> str:
        return f"PROXY header (version {self.version})"

    def row(self) -> dict[str, str]:
        """Return the facts for the row of `conversations`."""
        facts = {
            "proxy_header": f"version {self.version}, {self.kind}, {len(self.raw)} bytes",
            "proxy_client": self.client,
            "proxy_server": self.server,
            "proxy_damaged": self.damaged,
        }
        return {name: text for name, text in facts.items() if text is not None}


class ProxyLayer(msgspec.Struct, gc=False):
    """Strips the header at the start of one side."""

    side: int | None
    """The side that may have one; None: the side that sends first."""
    header: ProxyHeader | None = None
    held: Items = []

    def feed(self, items: Items, last: bool) -> tuple[Items, bool]:
        """Return these bytes without a header, and whether it is certain that there is none; `last`: nothing follows."""
        header = self.header
        if header is None and not self.held and items:
            first = items[0]
            if self.side in (None, first.side) and type(first) is SideData and not first.data.startswith(FIRST_BYTES):
                return items, True
        if header is not None:
            return [self._behind(item, header) for item in items], False
        out: Items = []
        for at, item in enumerate(items):
            if self.side is None and type(item) is SideData:
                self.side = item.side
            if item.side != self.side:
                out.append(item)
                continue
            self.held.append(item)
            found = self._read()
            if found is WAIT:
                continue
            held, self.held = self.held, []
            if isinstance(found, ProxyHeader):
                self.header = found
                return out + self._rest(held, found) + [self._behind(one, found) for one in items[at + 1 :]], False
            return out + held + items[at + 1 :], True
        if last and self.held:
            held, self.held = self.held, []
            return held + out, True
        return out, False

    def _read(self) -> ProxyHeader | int | None:
        """Return the header at the start of the held bytes; None if there is none; WAIT if more bytes are needed."""
        data, held = b"", self.held
        for item in held:
            if type(item) is not SideData or item.position != len(data):
                return None
            data += item.data
        begin = next((one for one in SIGNATURES if fits(data, one)), None)
        if begin is None or len(held) > PIECES:
            return None
        size = _size_1(data) if begin is BEGIN_1 else _size_2(data)
        if not size or len(data) < size:
            return None if size is None else WAIT
        assert self.side is not None
        return _read_1(self.side, data[:size]) if begin is BEGIN_1 else _read_2(self.side, data[:size])

    @staticmethod
    def _rest(held: Items, header: ProxyHeader) -> Items:
        """Return the bytes behind the header in its last segment."""
        last = held[-1]
        assert type(last) is SideData
        cut = len(header.raw) - last.position
        if cut == len(last.data):
            return []
        notes = tuple((position - len(header.raw), text) for position, text in last.notes if position >= len(header.raw))
        return [SideData(last.side, 0, last.data[cut:], last.mark, notes)]

    @staticmethod
    def _behind(item: SideData | StreamGap, header: ProxyHeader) -> SideData | StreamGap:
        """Return bytes behind a header with positions that do not count it."""
        if item.side != header.side:
            return item
        size = len(header.raw)
        if type(item) is SideData and item.notes:
            notes = tuple((position - size, text) for position, text in item.notes)
            return msgspec.structs.replace(item, position=item.position - size, notes=notes)
        return msgspec.structs.replace(item, position=item.position - size)


def _size_1(data: bytes) -> int | None:
    """Return the length of a header of version 1; WAIT if more bytes are needed, None if it is not one."""
    end = data.find(b"\r\n", 0, LARGEST_1)
    if end < 0:
        return WAIT if len(data) < LARGEST_1 else None
    return end + 2 if data[:end].isascii() and data[:end].decode().isprintable() else None


def _size_2(data: bytes) -> int | None:
    """Return the same for a header of version 2."""
    if len(data) < FIXED:
        return WAIT
    size = FIXED + int.from_bytes(data[14:16], "big")
    return size if data[12] >> 4 == 2 and size <= LARGEST_2 else None


def _read_1(side: int, raw: bytes) -> ProxyHeader:
    match = _LINE.fullmatch(raw)
    if match is None:
        return ProxyHeader(side, raw, 1, "unreadable", damaged="the line does not have its fields")
    if match[1] is None:
        return ProxyHeader(side, raw, 1, "UNKNOWN")
    kind = match[1].decode()
    client, server = [_end(match[at].decode(), int(match[at + 2]), 4 if kind == "TCP4" else 6) for at in (2, 3)]
    if client is None or server is None:
        return ProxyHeader(side, raw, 1, kind, damaged="an address or a port is not valid")
    return ProxyHeader(side, raw, 1, kind, client, server)


def _end(address: str, port: int, version: int) -> str | None:
    from ipaddress import ip_address

    try:
        known = ip_address(address)
    except ValueError:
        return None
    if known.version != version or port > 0xFFFF:
        return None
    return f"{known}:{port}" if version == 4 else f"[{known}]:{port}"


def _read_2(side: int, raw: bytes) -> ProxyHeader:
    command, family = raw[12] & 15, raw[13] >> 4
    name, size = FAMILIES.get(family, ("no address", 0))
    if command > 1:
        return ProxyHeader(side, raw, 2, f"command {command}", damaged=f"command {command} is not known")
    kind = name if command else "LOCAL"
    fields = fields_at(raw)
    if fields is None:
        return ProxyHeader(side, raw, 2, kind, damaged=f"{len(raw) - FIXED} bytes are too few")
    damaged = next((_checksum(raw, start, end) for what, start, end in fields if what == CRC32C), None)
    if not command or not size:
        return ProxyHeader(side, raw, 2, kind, damaged=damaged)
    one, two = raw[FIXED : FIXED + size], raw[FIXED + size : FIXED + 2 * size]
    if family == 3:
        client, server = [path.split(b"\0")[0].decode("utf-8", "backslashreplace") or None for path in (one, two)]
        return ProxyHeader(side, raw, 2, kind, client, server, damaged)
    from ipaddress import ip_address

    ports = [int.from_bytes(raw[FIXED + 2 * size + at : FIXED + 2 * size + at + 2], "big") for at in (0, 2)]
    version = 4 if family == 1 else 6
    client, server = [_end(str(ip_address(address)), port, version) for address, port in zip((one, two), ports, strict=True)]
    return ProxyHeader(side, raw, 2, kind, client, server, damaged)


def fields_at(raw: bytes) -> list[tuple[int, int, int]] | None:
    """Return type, start and end of value of the fields behind the addresses of a header of version 2; None if it is truncated."""
    family = raw[13] >> 4
    size = FAMILIES.get(family, ("", 0))[1]
    at = FIXED + 2 * size + 4 * (family in (1, 2))
    if raw[12] & 15 == 0 and at > len(raw):
        # A LOCAL header, of the balancer itself, is not read
        return []
    return None if at > len(raw) else _fields(raw, at, len(raw)) if size else []


def _fields(raw: bytes, at: int, end: int) -> list[tuple[int, int, int]] | None:
    found: list[tuple[int, int, int]] = []
    while at < end:
        stop = at + 3 + int.from_bytes(raw[at + 1 : at + 3], "big")
        if at + 3 > end or stop > end:
            return None
        found.append((raw[at], at + 3, stop))
        at = stop
    return found


def _checksum(raw: bytes, start: int, end: int) -> str | None:
    if end - start == 4 and raw[start:end] == sum_of(raw, start):
        return None
    return "the checksum is wrong"


def sum_of(raw: bytes, at: int) -> bytes:
    """CRC-32C of a header whose checksum is at `at`, and counts as zero."""
    value = 0xFFFF_FFFF
    for byte in raw[:at] + bytes(4) + raw[at + 4 :]:
        value = _table()[(value ^ byte) & 255] ^ value >> 8
    return (value ^ 0xFFFF_FFFF).to_bytes(4, "big")


@cache
def _table() -> tuple[int, ...]:
    return tuple(_entries())


def _entries() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F6_3B78 if value & 1 else 0)
        yield value
