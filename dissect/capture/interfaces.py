"""The network interfaces of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ..errors import InterfaceError

UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40

HARDWARE = {1: "Ethernet", 512: "PPP", 768: "IPIP tunnel", 772: "loopback", 776: "SIT tunnel", 778: "GRE tunnel", 65534: "tunnel"}
"""ARPHRD numbers; one that is not here is shown as it is."""


class Interface(msgspec.Struct, frozen=True):
    """One interface; `hardware` is the kernel's ARPHRD number."""

    name: str
    index: int
    flags: int
    hardware: int
    addresses: tuple[str, ...]

    @property
    def up(self) -> bool:
        return bool(self.flags & UP)

    @property
    def state(self) -> str:
        """ "up", "up, no carrier" or "down"."""
        if not self.up:
            return "down"
        return "up" if self.flags & RUNNING else "up, no carrier"

    @property
    def kind(self) -> str:
        return HARDWARE.get(self.hardware, f"type {self.hardware}")


def needs_linux() -> None:
    """Raises `InterfaceError` on other systems, whose packet sockets nothing here knows."""
    if sys.platform != "linux":
        elsewhere = "tcpdump -B 65536 -U -w - tcp | streamdump -"
        raise InterfaceError(f"capturing works only on Linux; elsewhere read from another program: {elsewhere}")


def interfaces() -> list[Interface]:
    """All interfaces by index, as scapy finds them; needs no permission."""
    import logging

    needs_linux()
    # What scapy fails to find at its start (routes, an address) does not matter here.
    logging.getLogger("scapy").setLevel(logging.CRITICAL)
    import scapy.arch.linux  # noqa: F401  (lets scapy know how to ask this system)
    from scapy.config import conf

    conf.ifaces.reload()
    found = [
        Interface(one.name, one.index, int(one.flags), one.type, (*one.ips.get(4, ()), *one.ips.get(6, ())))
        for one in conf.ifaces.values()
        if one.index > 0
    ]
    return sorted(found, key=lambda one: one.index)


def is_up(name: str) -> bool:
    """Return whether an interface exists and is up; cheap enough to poll."""
    try:
        flags = (Path("/sys/class/net") / name / "flags").read_text(encoding="ascii")
    except OSError:
        return False
    return bool(int(flags, 16) & UP)
