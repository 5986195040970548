"""The `ends` of a segment, in bytes: addresses of sender and receiver, their ports in the same order, and the number of the network."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address


def split(ends: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The parts: addresses of 4 or 16 bytes, ports of 2, and the 3 or 0 bytes of `network_key`."""
    size = 4 if len(ends) < 36 else 16
    ports = 2 * size
    return ends[:size], ends[size:ports], ends[ports : ports + 2], ends[ports + 2 : ports + 4], ends[ports + 4 :]


@lru_cache(1_024)
def back(ends: bytes) -> bytes:
    """The `ends` of the other direction."""
    source, target, sport, dport, network = split(ends)
    return target + source + dport + sport + network


def endpoints(ends: bytes) -> tuple[tuple[str, int], tuple[str, int]]:
    """Who sends and who receives, as text, each with its port."""
    source, target, sport, dport, _ = split(ends)
    return _endpoint(source, sport), _endpoint(target, dport)


@lru_cache(1_024)
def _endpoint(address: bytes, port: bytes) -> tuple[str, int]:
    """An endpoint as text, and its port; a server's is one text for all of its conversations."""
    number = int.from_bytes(port, "big")
    return f"{_host(address)}:{number}", number


@lru_cache(1_024)
def _host(address: bytes) -> str:
    """An address as text."""
    if len(address) == 4:
        return ".".join(map(str, address))
    # slow to import, and most captures do not need it
    from socket import AF_INET6, inet_ntop

    return f"[{inet_ntop(AF_INET6, address)}]"


def ends_between(endpoints: tuple[str, str], network: int) -> tuple[bytes, bytes]:
    """The `ends` of segments from the first endpoint to the second, and of those back."""
    hosts, ports = [], []
    for text in endpoints:
        host, _, port = text.rpartition(":")
        hosts.append(ip_address(host.strip("[]")).packed)
        ports.append(int(port).to_bytes(2, "big"))
    ends = b"".join((*hosts, *ports, network_key(network)))
    return ends, back(ends)


def network_key(number: int) -> bytes:
    """What follows the `ends` in a network that others do not know of; of 0, that of all captures that are not kept separate, nothing."""
    return number.to_bytes(3, "big") if number else b""
