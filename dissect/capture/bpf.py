"""Capture filters as classic BPF programs, which the kernel runs on every packet before it is copied.

The filters for ports are written out here, so that they need no libpcap; they read the IP header through the kernel's own offset to
it (`SKF_NET_OFF`) and so fit every link type. A filter in tcpdump's language is compiled by scapy, which asks libpcap.
After Linux, Documentation/networking/filter.rst and include/uapi/linux/filter.h.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from streamdump.errors import UsageError

SO_ATTACH_FILTER = 26

NET = 0xFFF0_0000
"""Loads at `NET + n` read byte n of the IP header."""

PROTOCOL, PACKET_TYPE, INTERFACE, HARDWARE = 0xFFFF_F000, 0xFFFF_F004, 0xFFFF_F008, 0xFFFF_F01C
OUTGOING, LOOPBACK = 4, 772
IPV4, IPV6 = 0x0800, 0x86DD
VLAN = (0x8100, 0x88A8)

LOAD, LOAD_HALF, LOAD_BYTE = 0x20, 0x28, 0x30
LOAD_HALF_AT_X, X_IS_HEADER_LENGTH = 0x48, 0xB1
AND, JUMP, IF_EQUAL, IF_BITS, RETURN = 0x54, 0x05, 0x15, 0x45, 0x06
READS_PACKET = {mode | size for mode in (0x20, 0x40) for size in (0x00, 0x08, 0x10)} | {X_IS_HEADER_LENGTH}

RAW_IP = 12
"""libpcap's link type for packets that begin with the IP header."""

MORE_HEADERS = (0, 43, 44, 51, 60)
"""IPv6 next headers behind which TCP can still come; such packets, which are rare, pass without a look at their ports."""


class Instruction(NamedTuple):
    """One instruction; `yes` and `no` are how many to skip."""

    code: int
    yes: int
    no: int
    k: int


class _Program:
    """Instructions whose jumps name labels; a jump without one goes on with the next instruction."""

    def __init__(self) -> None:
        self._code: list[tuple[int, str, str, int]] = []
        self._labels: dict[str, int] = {}

    def add(self, code: int, k: int, yes: str = "", no: str = "") -> None:
        self._code.append((code, yes, no, k))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def made(self) -> list[Instruction]:
        return [self._instruction(at, *one) for at, one in enumerate(self._code)]

    def _instruction(self, at: int, code: int, yes: str, no: str, k: int) -> Instruction:
        if code == JUMP:
            return Instruction(code, 0, 0, self._skip(at, yes))
        return Instruction(code, self._skip(at, yes), self._skip(at, no), k)

    def _skip(self, at: int, label: str) -> int:
        return self._labels[label] - at - 1 if label else 0


def entry(interfaces: Sequence[int] = ()) -> list[Instruction]:
    """What comes before any filter: no packet twice on a loopback interface, where each is seen going out and coming in, and of
    all interfaces only those with these indexes (none given: all)."""
    program = _Program()
    program.add(LOAD, PACKET_TYPE)
    program.add(IF_EQUAL, OUTGOING, no="once")
    program.add(LOAD, HARDWARE)
    program.add(IF_EQUAL, LOOPBACK, no="once")
    program.add(RETURN, 0)
    program.label("once")
    if interfaces:
        program.add(LOAD, INTERFACE)
        for index in interfaces:
            program.add(IF_EQUAL, index, yes="chosen")
        program.add(RETURN, 0)
        program.label("chosen")
    return program.made()


def tcp(ports: Sequence[int], snap: int) -> list[Instruction]:
    """TCP from or to one of these ports (none given: all TCP), with the fragments that may belong to it; `snap` bytes of each."""
    program = _Program()
    program.add(LOAD, PROTOCOL)
    for kind in VLAN:
        program.add(IF_EQUAL, kind, yes="tag")
    program.add(JUMP, 0, yes="plain")
    # The kernel takes one tag off. Behind it is another one, or it is one that the sender put there, and the IP header is found.
    program.label("tag")
    program.add(LOAD_HALF, NET + 2)
    for kind in (IPV4, IPV6):
        program.add(IF_EQUAL, kind, yes="tagged")
    program.add(JUMP, 0, yes="plain")
    program.label("tagged")
    _tcp(program, NET + 4, ports, snap)
    program.label("plain")
    _tcp(program, NET, ports, snap)
    program.add(RETURN, 0)
    return program.made()


def _tcp(program: _Program, at: int, ports: Sequence[int], snap: int) -> None:
    """Takes or drops what has an IP header at `at`; goes on behind for anything else."""
    four, six, take, drop, end = (f"{what} {at}" for what in ("four", "six", "take", "drop", "end"))
    program.add(LOAD_BYTE, at)
    program.add(AND, 0xF0)
    program.add(IF_EQUAL, 0x40, yes=four)
    program.add(IF_EQUAL, 0x60, yes=six)
    program.add(JUMP, 0, yes=end)
    program.label(four)
    program.add(LOAD_BYTE, at + 9)
    program.add(IF_EQUAL, 6, no=drop)
    if ports:
        program.add(LOAD_HALF, at + 6)
        program.add(IF_BITS, 0x1FFF, yes=take)
        program.add(X_IS_HEADER_LENGTH, at)
        for place in (0, 2):
            program.add(LOAD_HALF_AT_X, at + place)
            for port in ports:
                program.add(IF_EQUAL, port, yes=take)
        program.add(RETURN, 0)
    else:
        program.add(RETURN, snap)
    program.label(six)
    program.add(LOAD_BYTE, at + 6)
    for following in MORE_HEADERS:
        program.add(IF_EQUAL, following, yes=take)
    program.add(IF_EQUAL, 6, no=drop)
    if ports:
        for place in (40, 42):
            program.add(LOAD_HALF, at + place)
            for port in ports:
                program.add(IF_EQUAL, port, yes=take)
        program.add(RETURN, 0)
    program.label(take)
    program.add(RETURN, snap)
    program.label(drop)
    program.add(RETURN, 0)
    program.label(end)


def expression(text: str, link: int | None, snap: int) -> list[Instruction]:
    """A filter in tcpdump's language for packets of this libpcap link type; None: of any, to be read from the IP header on."""
    import logging

    logging.getLogger("scapy").setLevel(logging.CRITICAL)
    from scapy.arch.common import compile_filter, free_filter
    from scapy.error import Scapy_Exception

    try:
        compiled = compile_filter(text, linktype=RAW_IP if link is None else link)
    except ImportError as error:
        raise UsageError(
            f"-f {text}: compiling a filter needs libpcap, on Debian and Ubuntu the package libpcap0.8; "
            "without -f the known ports are captured, with -f '' all TCP"
        ) from error
    except Scapy_Exception as error:
        reason = str(error)
        _, _, told = reason.rpartition(" (")
        more = "" if link is not None else "; with several interfaces or any, filters see packets from the IP header on"
        raise UsageError(f"-f {text}: {told.rstrip(')') or reason}{more}") from error
    found = [compiled.bf_insns[at] for at in range(compiled.bf_len)]
    program = [Instruction(one.code, one.jt, one.jf, one.k) for one in found]
    free_filter(compiled)
    return [_fitted(one, link is None, snap) for one in program]


def _fitted(one: Instruction, from_ip: bool, snap: int) -> Instruction:
    if one.code == RETURN and one.k:
        return one._replace(k=snap)
    if from_ip and one.code in READS_PACKET:
        return one._replace(k=(one.k + NET) & 0xFFFF_FFFF)
    return one


def attach(to: socket.socket, program: Sequence[Instruction]) -> None:
    """Let the kernel run `program` for every packet of a socket."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    held = ctypes.create_string_buffer(code, len(code))
    to.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(held)))
