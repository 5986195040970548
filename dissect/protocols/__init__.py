"""All protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from ..errors import UsageError
from ..options import DEFAULTS, SETTINGS, Options
from .iggy import PROTOCOLS as IGGY
from .mewbase import PROTOCOLS as MEWBASE
from .parser import Parser
from .protocol import Protocol
from .rabbitmq import PROTOCOLS as RABBITMQ
from .seastar import PROTOCOLS as SEASTAR

__all__ = ["BY_NAME", "PORTS", "PROTOCOLS", "ByProtocol", "Parser", "Protocol", "known_ports", "server_ports"]

PROTOCOLS: tuple[Protocol, ...] = (*RABBITMQ, *IGGY, *SEASTAR, *MEWBASE)
"""Every protocol, in the order of `streamdump protocols`."""

BY_NAME: dict[str, Protocol] = {protocol.name: protocol for protocol in PROTOCOLS}

PORTS = frozenset(port for protocol in PROTOCOLS for port in protocol.ports)


T = TypeVar("T")


class ByProtocol(dict[str, T]):
    """A value for each protocol name, made when it is first asked for: it may import the protocol's package."""

    def __init__(self, make: Callable[[Protocol], T]) -> None:
        self.make = make

    def __missing__(self, name: str) -> T:
        value = self[name] = self.make(BY_NAME[name])
        return value


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for the first of these that is not a member of `Options`, or has an invalid value."""
    for name, value in options.items():
        if name not in DEFAULTS:
            raise UsageError(f"there is no option {name}; streamdump.options.Options has them all")
        if name == "bytes_as" and value not in (*SETTINGS[name].choices, "raw"):
            raise UsageError(f"{name} is one of {', '.join(SETTINGS[name].choices)} or raw, not {value!r}")
        if name == "keylog" and isinstance(value, str):
            raise UsageError(f"{name} is a tuple of files: ({value!r},)")
        if name == "dictionaries" and not (isinstance(value, tuple) and all(isinstance(one, bytes) for one in value)):
            raise UsageError(f"{name} is a tuple of bytes, the contents of files")
        if isinstance(DEFAULTS[name], bool) and not isinstance(value, bool):
            raise UsageError(f"{name} is True or False, not {value!r}")
        if isinstance(DEFAULTS[name], int) and (not isinstance(value, int) or value < 0):
            raise UsageError(f"{name} is a number, 0 or more, not {value!r}")
    for _, protocol, _ in options.get("decode_as", ()):
        if protocol not in BY_NAME:
            raise UsageError(f"decode_as: there is no protocol {protocol}; there are {', '.join(sorted(BY_NAME))}")


def server_ports(ports: tuple[int, int], client: int | None) -> tuple[int, int]:
    """Return the ports that may indicate a protocol, by side: 0 for the client, whose port is random; both if the client is unknown."""
    return ports if client is None else (0, ports[1]) if client == 0 else (ports[0], 0)


def known_ports(options: Options) -> frozenset[int]:
    """Return the ports of all protocols and of `-d`."""
    return _ports(options.decode_as)


@cache
def _ports(decode_as: tuple[tuple[int, str, str | None], ...]) -> frozenset[int]:
    return PORTS | {port for port, _, _ in decode_as}
