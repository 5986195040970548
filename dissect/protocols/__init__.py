"""The protocols streamdump reads."""

from __future__ import annotations

from functools import cache

from streamdump.options import Options
from streamdump.protocols.iggy.dissector import PROTOCOLS as IGGY
from streamdump.protocols.mewbase.dissector import PROTOCOLS as MEWBASE
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Protocol
from streamdump.protocols.rabbitmq.dissector import PROTOCOLS as RABBITMQ
from streamdump.protocols.seastar.dissector import PROTOCOLS as SEASTAR

__all__ = ["PROTOCOLS", "Parser", "Protocol", "known_ports"]

PROTOCOLS: tuple[Protocol, ...] = (*RABBITMQ, *IGGY, *SEASTAR, *MEWBASE)
"""Every protocol name, in the order in which `streamdump protocols` lists them."""

PORTS = frozenset(port for protocol in PROTOCOLS for port in protocol.ports)


def known_ports(options: Options) -> frozenset[int]:
    """The ports of all protocols, with those that `-d` names."""
    return _ports(options.decode_as)


@cache
def _ports(decode_as: tuple[tuple[int, str, str | None], ...]) -> frozenset[int]:
    return PORTS | {port for port, _, _ in decode_as}
