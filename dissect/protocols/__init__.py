"""The protocols streamdump reads."""

from __future__ import annotations

from dissect.protocols.iggy.dissector import PROTOCOLS as IGGY
from dissect.protocols.mewbase.dissector import PROTOCOLS as MEWBASE
from dissect.protocols.protocol import Protocol
from dissect.protocols.rabbitmq.dissector import PROTOCOLS as RABBITMQ
from dissect.protocols.seastar.dissector import PROTOCOLS as SEASTAR

PROTOCOLS: tuple[Protocol, ...] = (*RABBITMQ, *IGGY, *SEASTAR, *MEWBASE)
"""Every protocol name, in the order in which `streamdump protocols` lists them."""
