"""The protocols streamdump reads."""

from __future__ import annotations

from functools import cache

from dissect.options import Options
from dissect.protocols.iggy.dissector import PROTOCOLS as IGGY
from dissect.protocols.mewbase.dissector import PROTOCOLS as MEWBASE
from dissect.protocols.protocol import Protocol
from dissect.protocols.rabbitmq.dissector import PROTOCOLS as RABBITMQ
from dissect.protocols.seastar.dissector import PROTOCOLS as SEASTAR

PROTOCOLS: tuple[Protocol, ...] = (*RABBITMQ, *IGGY, *SEASTAR, *MEWBASE)
"""Every protocol name, in the order in which `streamdump protocols` lists them."""

PORTS = frozenset(port for protocol in PROTOCOLS for port in protocol.ports)


def known_ports(options: Options) -> frozenset[int]:
    """The ports of all protocols, with those that `-d` names."""
    return _ports(options.decode_as)


@cache
def _ports(decode_as: tuple[tuple[int, str, str | None], ...]) -> frozenset[int]:
    return PORTS | {port for port, _, _ in decode_as}
