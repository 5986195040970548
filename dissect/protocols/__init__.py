"""The protocols streamdump reads."""

from __future__ import annotations

from dissect.protocols.base import Protocol
from dissect.protocols.mewbase import dissector as mewbase

PROTOCOLS: tuple[Protocol, ...] = (*mewbase.PROTOCOLS,)
"""Every protocol name, in the order in which `streamdump protocols` lists them."""
