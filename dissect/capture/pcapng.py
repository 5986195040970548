"""Reads pcapng files: several sections of either byte order, each with its own interfaces.

After the I-D draft-ietf-opsawg-pcapng, with the obsolete Packet Block; unknown blocks are skipped.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dissect.capture.blocks import Blocks
from dissect.capture.columns import gather
from dissect.capture.pcap import ALWAYS, size_limit
from dissect.errors import CaptureError
from dissect.model import PacketBatch

Ints = NDArray[np.int64]

MAGIC = bytes.fromhex("0a0d0d0a")
BYTE_ORDERS = {bytes.fromhex("4d3c2b1a"): "<", bytes.fromhex("1a2b3c4d"): ">"}

SECTION, INTERFACE, OBSOLETE, SIMPLE, ENHANCED, SECRETS = 0x0A0D0D0A, 1, 2, 3, 6, 10
LEAST = {SECTION: 28, INTERFACE: 20, OBSOLETE: 32, SIMPLE: 16, ENHANCED: 32}
"""The whole length of the smallest block of each kind that is read."""

OPTIONS_ROOM = 1 << 20
"""How much larger than its packet a block may be."""

MOST_INTERFACES = 1 << 24
"""Of one section. Dozens are many."""

OPTION_RESOLUTION, OPTION_OFFSET = 9, 14

TLS_KEYS = 0x544C534B
"""The kind of secrets that is a key log of TLS."""

LEAST_SECRETS = 20

SECRETS_KEPT, SECRETS_EACH = 32 << 20, 128
"""Bytes of key logs that wait for somebody to take them, and what each counts besides its own; those beyond are passed over."""

Secrets = list[tuple[int, bytes]]
"""Key logs inside a capture, each with the number of packets before it."""

LAST_SECOND = (1 << 63) // 1_000_000_000 - 1
LAST_NS = LAST_SECOND * 1_000_000_000
"""Times are 64 bits of nanoseconds; what is later stops here, what is before 1970 at 0."""


class Interfaces:
    """What the interface descriptions of a section say, as columns: there may be one for each packet."""

    def __init__(self) -> None:
        self.snap = 0
        """Of the first one, which simple packets belong to."""
        self._link = array("H")
        self._resolution = array("B")
        self._offset = array("q")

    def __len__(self) -> int:
        return len(self._link)

    def add(self, link: int, snap: int, resolution: int, offset: int) -> None:
        if not self._link:
            self.snap = snap
        self._link.append(link)
        self._resolution.append(resolution)
        self._offset.append(offset)

    def links(self, index: Ints) -> Ints:
        return np.frombuffer(self._link, np.uint16)[index].astype(np.int64)

    def times(self, index: Ints, ticks: NDArray[np.uint64]) -> Ints:
        """The times (ns) of packets of these interfaces."""
        resolution, offset = np.frombuffer(self._resolution, np.uint8)[index], np.frombuffer(self._offset, np.int64)[index]
        if (resolution == resolution[0]).all() and (offset == offset[0]).all():
            return _nanoseconds(ticks, int(resolution[0]), int(offset[0]))
        alike = np.lexsort((offset, resolution))
        resolution, offset = resolution[alike], offset[alike]
        begin = np.flatnonzero(np.append(True, (resolution[1:] != resolution[:-1]) | (offset[1:] != offset[:-1])))
        time_ns = np.empty(len(ticks), np.int64)
        for first, rows in zip(begin.tolist(), np.split(alike, begin[1:]), strict=True):
            time_ns[rows] = _nanoseconds(ticks[rows], int(resolution[first]), int(offset[first]))
        return time_ns


class Packets(NamedTuple):
    """Some packets of one section as columns."""

    time_ns: Ints
    offset: Ints
    captured: Ints
    wire: Ints
    link: Ints


class Walked(NamedTuple):
    """The packets found in a buffer. From `at` on there is no whole block: bytes are `missing`, or `wrong` says why it cannot be one.

    `skip`: what is missing need not be kept.
    """

    packets: list[Packets]
    at: int
    missing: int
    wrong: str | None = None
    skip: bool = False


def read_packets(blocks: Blocks, links: dict[int, None], secrets: Secrets | None = None) -> Iterator[PacketBatch]:
    """The packets of all sections; the link types of the interfaces go into `links`, key logs of TLS into `secrets`."""
    sections = Sections(links)
    base, buffer = 0, blocks.read(12)
    while buffer:
        walked = sections.walk(buffer)
        if secrets is not None and sections.secrets:
            room = SECRETS_KEPT - sum(len(text) + SECRETS_EACH for _, text in secrets)
            for before, text in sections.secrets:
                room -= len(text) + SECRETS_EACH
                if room >= 0:
                    secrets.append((blocks.packets + before, text))
        sections.secrets.clear()
        if walked.packets:
            columns = [np.concatenate(same) for same in zip(*walked.packets, strict=True)]
            time_ns, offset, captured, wire, link = columns
            first = blocks.packets + 1
            blocks.packets += len(time_ns)
            number = np.arange(first, blocks.packets + 1, dtype=np.int64)
            yield PacketBatch(buffer, time_ns, number, np.zeros(len(number), np.int32), offset, captured, wire, link.astype(np.int32))
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
    """Where the reading is: the section's byte order and interfaces, and the time of the last packet."""

    def __init__(self, links: dict[int, None]) -> None:
        self.secrets: Secrets = []
        """Key logs in the buffer that was walked last, each with the number of packets before it in this buffer."""
        self._links = links
        self._order = "<"
        self._interfaces = Interfaces()
        self._limit = ALWAYS
        self._time_ns = 0
        self._walked = 0
        """Packets of the buffer at hand so far."""

    def walk(self, buffer: bytes) -> Walked:
        """The packets of all whole blocks."""
        parts: list[Packets] = []
        self._walked = 0
        at, end = 0, len(buffer)
        while end - at >= 12:
            found: dict[int, list[int]] = {ENHANCED: [], SIMPLE: [], OBSOLETE: [], INTERFACE: [], SECRETS: []}
            at = self._run(buffer, at, found)
            wrong = self._packets(buffer, found, parts)
            if wrong is not None:
                return Walked(parts, *wrong)
            if end - at < 12:
                break
            # The run ended at a block that begins a section, is not whole, or cannot be true.
            kind, size = struct.unpack_from(self._order + "II", buffer, at)
            if kind == SECTION:
                magic = buffer[at + 8 : at + 12]
                if magic not in BYTE_ORDERS:
                    return Walked(parts, at, 0, "a section begins without a known byte-order magic")
                self._order = BYTE_ORDERS[magic]
                (size,) = struct.unpack_from(self._order + "I", buffer, at + 4)
            if size & 3 or size < LEAST.get(kind, 12) or (kind in LEAST and size > self._limit + OPTIONS_ROOM):
                return Walked(parts, at, 0, f"a block of type {kind:#x} says it has {size} bytes")
            if at + size > end:
                return Walked(parts, at, at + size - end, skip=kind not in LEAST and size > ALWAYS)
            if buffer[at + 4 : at + 8] != buffer[at + size - 4 : at + size]:
                return Walked(parts, at, 0, "a block's length is not repeated at its end")
            if kind == SECTION:
                (major,) = struct.unpack_from(self._order + "H", buffer, at + 12)
                if major != 1:
                    return Walked(parts, at, 0, f"pcapng version {major} is not known")
                self._interfaces = Interfaces()
                self._limit = ALWAYS
            elif kind == INTERFACE:
                if len(self._interfaces) >= MOST_INTERFACES:
                    return Walked(parts, at, 0, f"a section describes more than {MOST_INTERFACES} interfaces")
                self._links[self._describe(buffer, at)] = None
            at += size
        return Walked(parts, at, 12 - (end - at))

    def _run(self, buffer: bytes, at: int, found: dict[int, list[int]]) -> int:
        """Locates packets, interface descriptions and secrets from `at` on; the position of the first block that has to be looked at.

        Only this goes block by block.
        """
        unpack = struct.Struct(self._order + "II").unpack_from
        enhanced = found[ENHANCED].append
        interface, left = found[INTERFACE], MOST_INTERFACES - len(self._interfaces)
        end, limit = len(buffer), self._limit + OPTIONS_ROOM
        while end - at >= 12:
            kind, size = unpack(buffer, at)
            follow = at + size
            if size & 3 or follow > end:
                break
            if kind == ENHANCED:
                if size < 32:
                    break
                enhanced(at)
            elif kind == INTERFACE:
                whole = 20 <= size <= limit and buffer[at + 4 : at + 8] == buffer[follow - 4 : follow]
                if not whole or len(interface) >= left:
                    break
                interface.append(at)
            elif kind == SECRETS:
                if size < LEAST_SECRETS or buffer[at + 4 : at + 8] != buffer[follow - 4 : follow]:
                    break
                found[kind].append(at)
            elif kind in found:
                if size < LEAST[kind]:
                    break
                found[kind].append(at)
            elif kind in LEAST or size < 12 or buffer[at + 4 : at + 8] != buffer[follow - 4 : follow]:
                break
            at = follow
        return at

    def _packets(self, buffer: bytes, found: dict[int, list[int]], parts: list[Packets]) -> tuple[int, int, str] | None:
        """Adds the packets of these blocks to `parts`, up to the first block that cannot be true: its position, 0 and the reason."""
        known = len(self._interfaces)
        described, secrets = found.pop(INTERFACE), found.pop(SECRETS)
        links = [self._describe(buffer, place) for place in described]
        pieces = [self._columns(buffer, kind, np.array(starts, np.int64)) for kind, starts in found.items() if starts]
        damage = None
        if pieces:
            at, size, interface, ticks, captured, wire, simple = pieces[0]
            if len(pieces) > 1:
                columns = [np.concatenate(same) for same in zip(*pieces, strict=True)]
                order = np.argsort(columns[0])
                at, size, interface, ticks, captured, wire, simple = (column[order] for column in columns)
            offset = at + np.where(simple, 12, 28)
            unequal = gather(buffer, at + size - 4, self._order + "u4") != size
            there = known + np.searchsorted(np.array(described, np.int64), at)
            nowhere = interface >= there
            beyond = captured > size - np.where(simple, 16, 32)
            wrong = np.flatnonzero(unequal | nowhere | beyond)
            count = len(at)
            if len(wrong):
                count = int(wrong[0])
                if unequal[count]:
                    reason = "a block's length is not repeated at its end"
                elif nowhere[count]:
                    reason = f"a packet names interface {interface[count]}, the section has {there[count]}"
                else:
                    reason = f"a packet says it has {captured[count]} bytes, its block {size[count]}"
                damage = int(at[count]), 0, reason
            if count:
                time_ns = self._times(ticks[:count], interface[:count], simple[:count])
                links_there = self._interfaces.links(interface[:count])
                parts.append(Packets(time_ns, offset[:count], captured[:count], np.maximum(captured, wire)[:count], links_there))
        for place, link in zip(described, links, strict=True):
            if damage is None or place < damage[0]:
                self._links[link] = None
        before = np.searchsorted(at, np.array(secrets, np.int64)).tolist() if pieces else [0] * len(secrets)
        for place, packets in zip(secrets, before, strict=True):
            if damage is None or place < damage[0]:
                self._unlock(buffer, place, self._walked + packets)
        if pieces:
            self._walked += len(at)
        return damage

    def _unlock(self, buffer: bytes, at: int, before: int) -> None:
        """Takes a block of secrets, with so many packets before it, if it is a key log."""
        size, what, length = struct.unpack_from(self._order + "III", buffer, at + 4)
        if what == TLS_KEYS and length:
            self.secrets.append((before, buffer[at + 16 : min(at + 16 + length, at + size - 4)]))

    def _columns(self, buffer: bytes, kind: int, at: Ints) -> tuple[NDArray[Any], ...]:
        """Position, size, interface, time, captured and wire length of packet blocks of one kind; the time is -1 where it has none."""
        u4 = self._order + "u4"
        size = gather(buffer, at + 4, u4).astype(np.int64)
        if kind == SIMPLE:
            wire = gather(buffer, at + 8, u4).astype(np.int64)
            captured = np.minimum(wire, size - 16)
            if self._interfaces.snap:
                captured = np.minimum(captured, self._interfaces.snap)
            return at, size, np.zeros(len(at), np.int64), np.zeros(len(at), np.uint64), captured, wire, np.ones(len(at), np.bool_)
        interface = gather(buffer, at + 8, u4 if kind == ENHANCED else self._order + "u2").astype(np.int64)
        high, low = (gather(buffer, at + place, u4).astype(np.uint64) for place in (12, 16))
        captured, wire = (gather(buffer, at + place, u4).astype(np.int64) for place in (20, 24))
        return at, size, interface, (high << np.uint64(32)) | low, captured, wire, np.zeros(len(at), np.bool_)

    def _times(self, ticks: NDArray[np.uint64], interface: Ints, simple: NDArray[np.bool_]) -> Ints:
        """Nanoseconds since 1970; a simple packet has no time and is given that of the packet before it."""
        time_ns = self._interfaces.times(interface, ticks)
        if simple.any():
            source = np.maximum.accumulate(np.where(simple, -1, np.arange(len(ticks))))
            time_ns = np.where(source >= 0, time_ns[source], self._time_ns)
        self._time_ns = int(time_ns[-1])
        return time_ns

    def _describe(self, buffer: bytes, at: int) -> int:
        """Takes an interface description with the two options that change times; its link type."""
        size, link, snap = struct.unpack_from(self._order + "IH2xI", buffer, at + 4)
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
        return int(link)


def _nanoseconds(ticks: NDArray[np.uint64], resolution: int, offset: int) -> Ints:
    exponent = resolution & 0x7F
    time_ns: Ints
    if resolution <= 9:
        factor = 10 ** (9 - exponent)
        time_ns = np.minimum(ticks, np.uint64(LAST_NS // factor)).astype(np.int64) * factor
    elif resolution < 0x80:
        time_ns = np.array([min(one // 10 ** (exponent - 9), LAST_NS) for one in ticks.tolist()], np.int64)
    else:  # parts of a second by powers of two
        time_ns = np.array([min((one * 1_000_000_000) >> exponent, LAST_NS) for one in ticks.tolist()], np.int64)
    if offset:
        offset = min(max(offset, -LAST_SECOND), LAST_SECOND) * 1_000_000_000
        time_ns = np.minimum(np.maximum(time_ns, -offset), LAST_NS - max(offset, 0)) + offset
    return time_ns
