"""The protocols streamdump reads."""

from __future__ import annotations

from dissect.protocols.base import Protocol

PROTOCOLS: tuple[Protocol, ...] = ()
"""Every protocol name, in the order in which `streamdump protocols` lists them."""
