"""Reads pcapng files: several sections of either byte order, each with its own interfaces.

After the I-D draft-ietf-opsawg-pcapng, with the obsolete Packet Block; unknown blocks are skipped. A length that does not count the
bytes that fill up to a multiple of four is rounded up, as Wireshark does.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CaptureError
from ..model import Packet
from .blocks import Blocks
from .pcap import ALWAYS, size_limit

if TYPE_CHECKING:
    from .packet_processes import ProcessReader

MAGIC = bytes.fromhex("0a0d0d0a")
BYTE_ORDERS = {bytes.fromhex("4d3c2b1a"): "<", bytes.fromhex("1a2b3c4d"): ">"}

SECTION, INTERFACE, OBSOLETE, SIMPLE, ENHANCED, SECRETS = 0x0A0D0D0A, 1, 2, 3, 6, 10
LEAST = {SECTION: 28, INTERFACE: 20, OBSOLETE: 32, SIMPLE: 16, ENHANCED: 32}
"""The length of the smallest block of each kind."""

PACKETS = (ENHANCED, SIMPLE, OBSOLETE)

OPTIONS_ROOM = 1 << 20
"""Maximum bytes of a block besides its packet."""

MOST_INTERFACES = 1 << 24
"""Of one section. Dozens are many."""

LEAST_OPTIONS = 8
"""Bytes of the shortest options of packets that are read; fewer after a packet are padding."""

OPTION_RESOLUTION, OPTION_OFFSET = 9, 14

TLS_KEYS = 0x544C534B
"""The kind of secrets that is a key log of TLS."""

LEAST_SECRETS = 20

MAX_SECRETS, SECRETS_EACH = 32 << 20, 128
"""Bytes of key logs waiting for the consumer, and overhead counted for each; further ones are skipped."""

Secrets = list[tuple[int, bytes]]
"""Key logs inside a capture, each with the number of packets before it."""

LAST_NS = ((1 << 63) // 1_000_000_000 - 1) * 1_000_000_000
"""The latest time in 64 bits of nanoseconds; later times become this one, times before 1970 become 0."""


def filled(size: int) -> int:
    """Return the padded length of a block that claims `size` bytes."""
    return size + 3 & ~3


def each_option(region: bytes, order: str, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the code and value of the first options, or records of a block, up to the end mark or one that is cut off."""
    at = 0
    for _ in range(most):
        if at + 4 > len(region):
            return
        code, size = struct.unpack_from(order + "HH", region, at)
        if not code or at + 4 + size > len(region):
            return
        yield code, region[at + 4 : at + 4 + size]
        at += 4 + filled(size)


class Interfaces:
    """The interface descriptions of a section, in arrays: there may be one for each packet."""

    def __init__(self) -> None:
        self.snap = 0
        """Of the first one, which simple packets belong to."""
        self.links = array("H")
        self.units = array("q")
        """Nanoseconds per tick; 0 if only `time_ns` can convert."""
        self._resolutions = array("B")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self.links)

    def add(self, link: int, snap: int, resolution: int, offset: int) -> None:
        if not self.links:
            self.snap = snap
        self.links.append(link)
        self.units.append(0 if offset or resolution > 9 else 10 ** (9 - resolution))
        self._resolutions.append(resolution)
        self._offsets.append(offset)

    def time_ns(self, index: int, ticks: int) -> int:
        """The time of a packet of an interface."""
        resolution, offset = self._resolutions[index], self._offsets[index]
        if resolution <= 9:
            time_ns: int = ticks * 10 ** (9 - resolution)
        elif resolution < 0x80:
            time_ns = ticks // 10 ** (resolution - 9)
        else:  # parts of a second by powers of two
            time_ns = ticks * 1_000_000_000 >> (resolution & 0x7F)
        if time_ns > LAST_NS:
            time_ns = LAST_NS
        return min(max(time_ns + offset * 1_000_000_000, 0), LAST_NS) if offset else time_ns


class WalkedBlocks(NamedTuple):
    """The packets found in a buffer. From `at` on there is no complete block: bytes are `missing`, or `wrong` says why it is invalid.

    `skip`: the missing bytes need not be kept.
    """

    packets: list[Packet]
    at: int
    missing: int
    wrong: str | None = None
    skip: bool = False


def read_packets(blocks: Blocks, secrets: Secrets | None = None, processes: ProcessReader | None = None) -> Iterator[list[Packet]]:
    """The packets of all sections; key logs of TLS go into `secrets`, and `processes` reads which processes packets belong to."""
    sections = Sections(secrets, processes, blocks.context)
    base, buffer = 0, blocks.read(12)
    while buffer:
        walked = sections.walk(buffer, blocks.packets + 1, base)
        if walked.packets:
            blocks.packets += len(walked.packets)
            blocks.place(buffer, base)
            yield walked.packets
        base += walked.at
        if walked.wrong is not None:
            raise blocks.error(walked.wrong, base)
        left, missing = buffer[walked.at :], walked.missing
        if walked.skip:
            base += len(left) + missing
            left, buffer = b"", _skip(blocks, missing, base)
            continue
        try:
            block = blocks.read(missing)
        except CaptureError as error:
            raise blocks.located(error, base) from error
        if left and not block:
            raise blocks.error(f"cut off in a block: {missing} bytes are missing", base)
        buffer, block = left + block if left else block, b""  # twice the bytes would be held else


def _skip(blocks: Blocks, size: int, end: int) -> bytes:
    """Passes over the rest of a block, which ends at `end` of the file; what has been read beyond it."""
    while True:
        try:
            block = blocks.read()
        except CaptureError as error:
            raise blocks.located(error, end - size) from error
        if not block:
            raise blocks.error(f"cut off in a block: {size} bytes are missing", end - size)
        if len(block) > size:
            return block[size:]
        size -= len(block)
        if not size:
            return blocks.read()


class Sections:
    """State of reading: the section's byte order and interfaces, and the time of the last packet."""

    def __init__(self, secrets: Secrets | None, processes: ProcessReader | None, context: dict[int, int]) -> None:
        """`context`: see `Blocks`."""
        self._secrets = secrets
        self._processes = processes
        self._context = context
        self._secrets_left = 0
        self._interfaces = Interfaces()
        self._limit = ALWAYS
        self._time_ns = 0
        self._begin("<")

    def _begin(self, order: str) -> None:
        """Reads numbers in this byte order from now on."""
        self._order = order
        self._head = struct.Struct(order + "II").unpack_from
        self._packet = struct.Struct(order + "5I").unpack_from

    def walk(self, buffer: bytes, number: int, base: int) -> WalkedBlocks:
        """Return the packets of all complete blocks; the first has number `number`, and `base` is the position of the buffer."""
        packets: list[Packet] = []
        self._secrets_left = MAX_SECRETS - sum(len(text) + SECRETS_EACH for _, text in self._secrets or ())
        at, end = 0, len(buffer)
        # No condition: see `pcap.py`
        while True:
            if end - at < 12:
                return WalkedBlocks(packets, at, 12 - (end - at))
            kind, size = self._head(buffer, at)
            least = LEAST.get(kind)
            if kind == SECTION:
                magic = buffer[at + 8 : at + 12]
                if magic not in BYTE_ORDERS:
                    return WalkedBlocks(packets, at, 0, "a section begins without a known byte-order magic")
                self._begin(BYTE_ORDERS[magic])
                _, size = self._head(buffer, at)
            if size < (least or 12) or (least and size > self._limit + OPTIONS_ROOM):
                return WalkedBlocks(packets, at, 0, f"a block of type {kind:#x} claims {size} bytes")
            size = filled(size)
            if at + size > end:
                return WalkedBlocks(packets, at, at + size - end, skip=not least and size > ALWAYS)
            if buffer[at + 4 : at + 8] != buffer[at + size - 4 : at + size]:
                return WalkedBlocks(packets, at, 0, "a block's length is not repeated at its end")
            wrong = None
            if kind in PACKETS:
                offset, room = at + 28, size - 32
                if kind == SIMPLE:
                    offset, room = at + 12, size - 16
                    (wire,) = struct.unpack_from(self._order + "I", buffer, at + 8)
                    interface, captured = 0, min(wire, room, self._interfaces.snap or wire)
                    self._context[kind] = base + at + size
                else:
                    interface, high, low, captured, wire = self._packet(buffer, at + 8)
                    if kind == OBSOLETE:
                        (interface,) = struct.unpack_from(self._order + "H", buffer, at + 8)
                interfaces = self._interfaces
                if interface >= len(interfaces.links):
                    wrong = f"a packet names interface {interface}, the section has {len(interfaces)}"
                elif captured > room:
                    wrong = f"a packet claims {captured} bytes, its block {size}"
                else:
                    if kind != SIMPLE:  # which has no time and is given that of the packet before it
                        ticks = high << 32 | low
                        time_ns = ticks * interfaces.units[interface]
                        self._time_ns = time_ns if 0 < time_ns <= LAST_NS else interfaces.time_ns(interface, ticks)
                    link = interfaces.links[interface]
                    wire = wire if wire > captured else captured
                    packets.append(Packet(buffer, self._time_ns, number + len(packets), 0, offset, captured, wire, link, kind == SIMPLE))
                    if room - captured >= LEAST_OPTIONS and kind == ENHANCED and self._processes is not None:
                        options = offset + (captured + 3 & ~3)
                        self._processes.packet(buffer, options, at + size - 4, number + len(packets) - 1, self._time_ns)
            elif kind == SECTION:
                (major,) = struct.unpack_from(self._order + "H", buffer, at + 12)
                if major != 1:
                    wrong = f"pcapng version {major} is not known"
                self._interfaces = Interfaces()
                self._limit = ALWAYS
                self._context[kind] = base + at + size
                if self._processes is not None:
                    self._processes.begin(self._order)
            elif kind == INTERFACE:
                if len(self._interfaces) >= MOST_INTERFACES:
                    wrong = f"a section describes more than {MOST_INTERFACES} interfaces"
                else:
                    self._describe(buffer, at, size)
                    self._context[kind] = base + at + size
            elif kind == SECRETS and size >= LEAST_SECRETS:
                self._unlock(buffer, at, size, number + len(packets) - 1)
            elif self._processes is not None and size <= OPTIONS_ROOM:
                described = self._processes.block(kind, buffer[at + 8 : at + size - 4], number + len(packets) - 1)
                if described:
                    self._context[kind] = base + at + size
            if wrong is not None:
                return WalkedBlocks(packets, at, 0, wrong)
            at += size

    def _unlock(self, buffer: bytes, at: int, size: int, before: int) -> None:
        """Add a block of secrets, with the number of packets before it, if it is a key log."""
        what, length = struct.unpack_from(self._order + "II", buffer, at + 8)
        if what == TLS_KEYS and length and self._secrets is not None:
            text = buffer[at + 16 : min(at + 16 + length, at + size - 4)]
            self._secrets_left -= len(text) + SECRETS_EACH
            if self._secrets_left >= 0:
                self._secrets.append((before, text))

    def _describe(self, buffer: bytes, at: int, size: int) -> None:
        """Adds an interface description with the two options that change times."""
        link, snap = struct.unpack_from(self._order + "H2xI", buffer, at + 8)
        resolution, offset = 6, 0
        option, end = at + 16, at + size - 4
        while option + 4 <= end:
            code, length = struct.unpack_from(self._order + "HH", buffer, option)
            value = buffer[option + 4 : min(option + 4 + length, end)]
            if code == OPTION_RESOLUTION and len(value) == 1:
                resolution = value[0]
            elif code == OPTION_OFFSET and len(value) == 8:
                (offset,) = struct.unpack(self._order + "q", value)
            elif code == 0:
                break
            option += 4 + (length + 3 & ~3)
        self._interfaces.add(link, snap, resolution, offset)
        self._limit = max(self._limit, size_limit(snap))
