"""Captures from interfaces of Linux: raw packets with the kernel's times.

The socket is scapy's; its packets are read from a ring that it shares with the kernel (TPACKET_V3), which is handed over in blocks of
some tens of milliseconds. One socket serves everything: several interfaces are one socket for all whose filter looks at the interface,
so that packets come in the kernel's order. After Linux, Documentation/networking/packet_mmap.rst and include/uapi/linux/if_packet.h.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, Self

from ..errors import InterfaceError
from ..model import Packet
from . import bpf
from .blocks import explain, parts
from .duplicates import Duplicates, digest, place_of
from .host_processes import HostProcesses
from .interfaces import Interface, interfaces, is_up, needs_linux
from .link import IPV4, IPV6

SOL_PACKET = 263
ADD_MEMBERSHIP, RX_RING, STATISTICS, VERSION = 1, 5, 6, 10
PROMISCUOUS = 1
V3 = 2
EVERYTHING = 3
"""ETH_P_ALL: packets of every protocol."""

BLOCK = 256 << 10
"""Bytes of a block; the largest packet must fit in."""

FRAME = 2048
"""The kernel requires a frame size; in this version of the ring it has no other meaning."""

RETIRE_MS = 20
"""A block that is not full is handed over after so long: what waiting adds to the time until a message is seen."""

TICK_MS = 100
"""Time without packets after which an empty list is yielded, so that the reader's clock advances."""

LINGER_S = 5.0
"""Time that a stopped capture waits for packets that the kernel has counted."""

TOGETHER = 16
"""Blocks that make up a batch at most."""

SNAP = 256 << 10
BUFFER = 32 << 20
MOST_PORTS = 50
"""Jumps of a filter reach 255 instructions; with more ports than this, all TCP is captured."""

ETHERNET, LOOPBACK = 1, 772
LINK_ETHERNET, LINK_SLL2 = 1, 276
TAG = 4
VLAN_VALID, VLAN_TYPE_VALID = 0x10, 0x40

STATUS, PACKETS_IN_BLOCK = 8, 12
USER = 1

HEAD = struct.Struct("=6I2H4xIH12x2siHBB8s").unpack_from
"""struct tpacket3_hdr and the struct sockaddr_ll behind it: next, second, nanosecond, captured, wire, status, mac, net, tag, its type,
protocol, interface, hardware, packet type, length of the address, address. Then come 14 free bytes, a link header and the IP header."""

SLL2 = struct.Struct(">2HIHBB8s").pack
"""The header of LINKTYPE_LINUX_SLL2."""


class Live:
    """Captures packets of interfaces; a reader like that of a file.

    `granted`: bytes of the ring; `packets`: packets returned so far; `dropped`: packets lost because the ring was full; `duplicates`:
    packets removed because another interface had them; `now_ns`: all packets captured until about then have been returned; `link`: the
    link type of all packets.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        expression: str | None = None,
        ports: Sequence[int] = (),
        buffer: int = BUFFER,
        snap: int = SNAP,
        promiscuous: bool = False,
    ) -> None:
        """Open the interfaces (`any`: all). `expression`: None for TCP of `ports`, "" for all TCP, else a filter in tcpdump's language."""
        needs_linux()
        self.name = " and ".join(names)
        self.packets = self.dropped = self.duplicates = 0
        self.now_ns = time_ns()
        self._chosen = [] if "any" in names else _found(names)
        alone = self._chosen[0] if len(self._chosen) == 1 else None
        self._cooked = alone is None or alone.hardware not in (ETHERNET, LOOPBACK)
        self.link = LINK_SLL2 if self._cooked else LINK_ETHERNET
        program = bpf.entry([one.index for one in self._chosen] if alone is None else ())
        if expression:
            program += bpf.expression(expression, None if self._cooked else LINK_ETHERNET, snap)
        else:
            program += bpf.tcp(sorted(set(ports)) if expression is None and len(ports) <= MOST_PORTS else (), snap)
        self.host = HostProcesses()
        self._duplicates = Duplicates()
        self._received = 0
        """Packets received by the kernel since the ring exists, including dropped ones."""
        self._stopped_ns: int | None = None
        self._closed = False
        self._block = 0
        # scapy closes its socket when the object around it is released.
        self._holder = _opened(alone)
        self._socket: socket.socket = getattr(self._holder, "ins", self._holder)
        try:
            bpf.attach(self._socket, program)
            self._blocks = _ring(self._socket, max(2, buffer // BLOCK))
            if promiscuous:
                for one in self._chosen:
                    self._socket.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, struct.pack("=iHH8s", one.index, PROMISCUOUS, 0, b""))
            self.granted = self._blocks * BLOCK
            self._ring = mmap.mmap(self._socket.fileno(), self.granted, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            self._holder.close()
            raise
        # Packets received before the ring existed do not count
        self._statistics()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLERR)
        self._checked_s = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the capture immediately."""
        if not self._closed:
            self._closed = True
            self._count_drops()
            self._ring.close()
            self._holder.close()

    def stop(self) -> None:
        """Let `batches` end once everything captured so far has been returned."""
        self._stopped_ns = time_ns()

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]:
        """Yield new packets, at most every `RETIRE_MS`, or an empty list after `TICK_MS`; raise `InterfaceError` if the interface
        disappears. `size` is ignored: blocks are those of the ring."""
        gone: InterfaceError | None = None
        until: float | None = None
        while not self._closed:
            ending = self._stopped_ns is not None or gone is not None
            if ending and until is None:
                until = monotonic() + LINGER_S
            now = time_ns()
            if not self._ready():
                events = self._poll.poll(2 * RETIRE_MS if ending else TICK_MS)
                if events and events[0][1] & select.POLLERR:
                    gone = gone or self._failed()
            packets = self._read_blocks()
            self.now_ns = now
            self._count_drops()
            yield from parts(packets, rows)
            if not packets:
                # A busy machine may deliver the last block late
                returned = self.packets + self.duplicates + self.dropped
                if until is not None and (gone is not None or returned >= self._received or monotonic() > until):
                    break
                yield packets
            elif self._stopped_ns is not None and packets[-1].time_ns > self._stopped_ns:
                break
            gone = gone or self._missing()
        if gone is not None:
            raise gone

    def _ready(self) -> bool:
        return bool(struct.unpack_from("=I", self._ring, self._block * BLOCK + STATUS)[0] & USER)

    def _failed(self) -> InterfaceError | None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return InterfaceError(f"disappeared while capturing: {os.strerror(code).lower()}", self.name) if code else None

    def _missing(self) -> InterfaceError | None:
        """Return the error if all of several interfaces disappeared, which the socket does not report."""
        if len(self._chosen) < 2 or monotonic() < self._checked_s + 1:
            return None
        self._checked_s = monotonic()
        if any(is_up(one.name) for one in self._chosen):
            return None
        return InterfaceError("disappeared while capturing", self.name)

    def _count_drops(self) -> None:
        received, dropped = self._statistics()
        self._received += received
        self.dropped += dropped

    def _statistics(self) -> tuple[int, int]:
        """Return packets received and dropped since the last call, which resets the kernel's counters."""
        received, dropped, _ = struct.unpack("=III", self._socket.getsockopt(SOL_PACKET, STATISTICS, 12))
        return received, dropped

    def _read_blocks(self) -> list[Packet]:
        """Return the packets of the available blocks."""
        ring = self._ring
        packets: list[Packet] = []
        blocks = 0
        while blocks < TOGETHER and self._ready():
            start = self._block * BLOCK
            count, place, length = struct.unpack_from("=III", ring, start + PACKETS_IN_BLOCK)
            piece = ring[start : start + max(length, place)]
            struct.pack_into("=I", ring, start + STATUS, 0)
            self._block = (self._block + 1) % self._blocks
            for _ in range(count):
                place += self._packet(packets, piece, place)
            blocks += 1
        return packets

    def _packet(self, packets: list[Packet], piece: bytes, at: int) -> int:
        """Add the packet with its header at `at`, unless it is a duplicate; return the distance to the next one."""
        following, second, fraction, captured, wire, status, mac, net, tag, tag_type, kind, interface, hardware, how, size, address = HEAD(
            piece, at
        )
        time_ns = second * 1_000_000_000 + fraction
        vlan = b""
        if status & VLAN_VALID:
            vlan = struct.pack(">HH", tag_type if status & VLAN_TYPE_VALID else bpf.VLAN[0], tag)
        buffer, offset = piece, at + mac
        if self._cooked:
            # A Linux cooked header (version 2) replaces the packet's own
            captured = max(captured - (net - mac), 0)
            wire = max(wire - (net - mac), captured)
            data = piece[at + net : at + net + captured]
            inner = _inner_type(data, int.from_bytes(kind, "big"))
            if data and inner in (IPV4, IPV6) and self._duplicates.again(digest(data, 0, captured), time_ns, place_of(how, interface)):
                self.duplicates += 1
                return int(following)
            types = vlan + inner.to_bytes(2, "big")
            head = SLL2(int.from_bytes(types[:2], "big"), 0, interface, hardware, how, size, address) + types[2:]
            buffer, offset, captured, wire = head + data, 0, captured + len(head), wire + len(head)
        elif vlan:
            # The kernel delivers the tag separately; insert it again
            frame = piece[offset : offset + captured]
            buffer, offset, captured, wire = frame[:12] + vlan + frame[12:], 0, captured + len(vlan), wire + len(vlan)
        self.packets += 1
        packets.append(Packet(buffer, time_ns, self.packets, 0, offset, captured, wire, self.link))
        return int(following)


def _found(names: Sequence[str]) -> list[Interface]:
    """Return the interfaces of these names, which must be up."""
    known = {one.name: one for one in interfaces()}
    chosen = []
    for name in dict.fromkeys(names):
        if name not in known:
            listed = ", ".join([*known, "any"])
            raise InterfaceError(f"no such interface; available: {listed}", name)
        if not known[name].up:
            raise InterfaceError(f"the interface is down; bring it up with `ip link set {name} up`", name)
        chosen.append(known[name])
    return chosen


def _opened(interface: Interface | None) -> Any:
    """Return a socket for packets of this interface (scapy's), or of all. Creating the ring discards packets received without a filter."""
    name = "any" if interface is None else interface.name
    try:
        if interface is None:
            return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
        from scapy.arch.linux import L2ListenSocket

        return L2ListenSocket(iface=interface.name, promisc=False, nofilter=1)
    except PermissionError as error:
        raise InterfaceError("capturing needs the capability CAP_NET_RAW", name) from error
    except OSError as error:
        raise InterfaceError(f"cannot be opened: {explain(error)}", name) from error


def _ring(opened: socket.socket, blocks: int) -> int:
    """Create the ring; return its number of blocks, fewer than requested if memory is short."""
    try:
        opened.setsockopt(SOL_PACKET, VERSION, V3)
    except OSError as error:
        raise InterfaceError(f"this system does not support the packet ring TPACKET_V3: {explain(error)}") from error
    while True:
        try:
            opened.setsockopt(SOL_PACKET, RX_RING, struct.pack("=7I", BLOCK, blocks, FRAME, BLOCK // FRAME * blocks, RETIRE_MS, 0, 0))
        except OSError as error:
            if blocks <= 2:
                raise InterfaceError(f"the kernel refused a capture buffer: {explain(error)}") from error
            blocks = max(2, blocks // 2)
        else:
            return blocks


def _inner_type(data: bytes, kind: int) -> int:
    """Return the EtherType of `data`: a VLAN tag reported by the kernel may have been removed with the link header."""
    if kind not in bpf.VLAN or len(data) <= TAG:
        return kind
    following = int.from_bytes(data[2:TAG], "big")
    version, after = data[0] >> 4, data[TAG] >> 4
    if (following, after) in ((IPV4, 4), (IPV6, 6)):
        return kind
    return IPV4 if version == 4 else IPV6 if version == 6 else kind
