"""The protocols streamdump reads."""

from __future__ import annotations

from dissect.protocols.base import Protocol
from dissect.protocols.iggy import dissector as iggy
from dissect.protocols.mewbase import dissector as mewbase
from dissect.protocols.rabbitmq import dissector as rabbitmq
from dissect.protocols.seastar import dissector as seastar

PROTOCOLS: tuple[Protocol, ...] = (*rabbitmq.PROTOCOLS, *iggy.PROTOCOLS, *seastar.PROTOCOLS, *mewbase.PROTOCOLS)
"""Every protocol name, in the order in which `streamdump protocols` lists them."""
