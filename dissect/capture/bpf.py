"""Capture filters as classic BPF programs, which the kernel runs on every packet before it is copied.

The filters for ports are written out here, so that they need no libpcap; they read the IP header through the kernel's own offset to
it (`SKF_NET_OFF`) and so fit every link type. A filter in tcpdump's language is compiled by scapy through libpcap.
After Linux, Documentation/networking/filter.rst and include/uapi/linux/filter.h.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UsageError
from .link import IPV4, IPV6

SO_ATTACH_FILTER = 26

NET = 0xFFF0_0000
"""Loads at `NET + n` read byte n of the IP header."""

PROTOCOL, PACKET_TYPE, INTERFACE, HARDWARE = 0xFFFF_F000, 0xFFFF_F004, 0xFFFF_F008, 0xFFFF_F01C
OUTGOING, LOOPBACK = 4, 772
VLAN = (0x8100, 0x88A8)

LOAD, LOAD_HALF, LOAD_BYTE = 0x20, 0x28, 0x30
LOAD_HALF_AT_X, X_IS_HEADER_LENGTH = 0x48, 0xB1
AND, JUMP, IF_EQUAL, IF_BITS, RETURN = 0x54, 0x05, 0x15, 0x45, 0x06
READS_PACKET = {mode | size for mode in (0x20, 0x40) for size in (0x00, 0x08, 0x10)} | {X_IS_HEADER_LENGTH}

RAW_IP = 12
"""libpcap's link type for packets that begin with the IP header."""

MORE_HEADERS = (0, 43, 44, 51, 60)
"""IPv6 extension headers that TCP can follow; such rare packets pass without a check of their ports."""


class Instruction(NamedTuple):
    """One instruction; `yes` and `no` are how many to skip."""

    code: int
    yes: int
    no: int
    k: int


class Step(NamedTuple):
    """One instruction with labels; `yes` and `no` are jump targets, "" the next instruction."""

    code: int
    k: int = 0
    yes: str = ""
    no: str = ""


Program = Sequence[Step | str]
"""Instructions, with labels before jump targets."""


def _assembled(program: Program) -> list[Instruction]:
    code = [one for one in program if isinstance(one, Step)]
    labels = {one: at - number for number, (at, one) in enumerate((at, one) for at, one in enumerate(program) if isinstance(one, str))}

    def made(at: int, one: Step) -> Instruction:
        yes, no = (labels[label] - at - 1 if label else 0 for label in (one.yes, one.no))
        return Instruction(one.code, 0, 0, yes) if one.code == JUMP else Instruction(one.code, yes, no, one.k)

    return [made(at, one) for at, one in enumerate(code)]


def entry(interfaces: Sequence[int] = ()) -> list[Instruction]:
    """Return the start of each filter: drop outgoing copies on a loopback interface, where each packet is seen twice, and packets of
    interfaces without these indexes (none given: all pass)."""
    chosen = [Step(LOAD, INTERFACE), *(Step(IF_EQUAL, index, yes="chosen") for index in interfaces), Step(RETURN, 0), "chosen"]
    return _assembled(
        [
            Step(LOAD, PACKET_TYPE),
            Step(IF_EQUAL, OUTGOING, no="once"),
            Step(LOAD, HARDWARE),
            Step(IF_EQUAL, LOOPBACK, no="once"),
            Step(RETURN, 0),
            "once",
            *(chosen if interfaces else ()),
        ]
    )


def tcp(ports: Sequence[int], snap: int) -> list[Instruction]:
    """Return the filter for TCP from or to these ports (none given: all TCP) and for fragments that may belong to it; `snap` bytes each."""
    return _assembled(
        [
            Step(LOAD, PROTOCOL),
            *(Step(IF_EQUAL, kind, yes="tag") for kind in VLAN),
            Step(JUMP, yes="plain"),
            # The kernel strips one tag. A second one follows, or the sender wrote this one and the IP header follows.
            "tag",
            Step(LOAD_HALF, NET + 2),
            *(Step(IF_EQUAL, kind, yes="tagged") for kind in (IPV4, IPV6)),
            Step(JUMP, yes="plain"),
            "tagged",
            *_tcp(NET + 4, ports, snap),
            "plain",
            *_tcp(NET, ports, snap),
            Step(RETURN, 0),
        ]
    )


def _tcp(at: int, ports: Sequence[int], snap: int) -> Program:
    """Accept or drop packets with an IP header at `at`; fall through for others."""
    four, six, accept, drop, end = (f"{what} {at}" for what in ("four", "six", "accept", "drop", "end"))
    known = [Step(IF_EQUAL, port, yes=accept) for port in ports]
    first = [Step(LOAD_HALF, at + 6), Step(IF_BITS, 0x1FFF, yes=accept), Step(X_IS_HEADER_LENGTH, at)]
    of_four = [*first, Step(LOAD_HALF_AT_X, at), *known, Step(LOAD_HALF_AT_X, at + 2), *known, Step(RETURN, 0)]
    of_six = [Step(LOAD_HALF, at + 40), *known, Step(LOAD_HALF, at + 42), *known, Step(RETURN, 0)]
    return [
        Step(LOAD_BYTE, at),
        Step(AND, 0xF0),
        Step(IF_EQUAL, 0x40, yes=four),
        Step(IF_EQUAL, 0x60, yes=six),
        Step(JUMP, yes=end),
        four,
        Step(LOAD_BYTE, at + 9),
        Step(IF_EQUAL, 6, no=drop),
        *(of_four if ports else [Step(RETURN, snap)]),
        six,
        Step(LOAD_BYTE, at + 6),
        *(Step(IF_EQUAL, following, yes=accept) for following in MORE_HEADERS),
        Step(IF_EQUAL, 6, no=drop),
        *(of_six if ports else ()),
        accept,
        Step(RETURN, snap),
        drop,
        Step(RETURN, 0),
        end,
    ]


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
            "without -f, streamdump captures the known ports; with -f '', all TCP"
        ) from error
    except UnicodeEncodeError as error:
        raise UsageError(f"-f {text}: is not UTF-8") from error
    except Scapy_Exception as error:
        reason = str(error)
        _, _, error_text = reason.rpartition(" (")
        more = "" if link is not None else "; with several interfaces or any, filters see packets from the IP header on"
        raise UsageError(f"-f {text}: {error_text.rstrip(')') or reason}{more}") from error
    found = [compiled.bf_insns[at] for at in range(compiled.bf_len)]
    program = [_fitted(Instruction(one.code, one.jt, one.jf, one.k), link is None, snap) for one in found]
    free_filter(compiled)
    return program


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
