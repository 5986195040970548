"""What packets of ICMP and DNS say of connections: errors that quote a segment (RFC 792, RFC 4443), and answers for the addresses of a
name (RFC 1035). No more of them is read than that."""

from __future__ import annotations

from typing import NamedTuple

UDP = 17
_DNS = (53).to_bytes(2, "big")

LABELS, ANSWERS, ADDRESSES = 64, 16, 4
"""The most parts of a name, records of an answer, and addresses among these that are read."""

_TCP = 6
TOO_BIG = ("fragmentation needed", "packet too big")
"""The reasons that are followed by the size that would have fit."""
_REASONS_4 = {
    (3, 0): "network unreachable",
    (3, 1): "host unreachable",
    (3, 2): "protocol unreachable",
    (3, 3): "port unreachable",
    (3, 4): TOO_BIG[0],
    (3, 6): "network unknown",
    (3, 7): "host unknown",
    (3, 9): "network administratively prohibited",
    (3, 10): "host administratively prohibited",
    (3, 13): "communication administratively prohibited",
    (11, 0): "time to live exceeded",
}
_REASONS_6 = {
    (1, 0): "no route to the destination",
    (1, 1): "communication administratively prohibited",
    (1, 2): "beyond the scope of the source address",
    (1, 3): "address unreachable",
    (1, 4): "port unreachable",
    (1, 5): "the source address is not allowed",
    (1, 6): "the route to the destination is rejected",
    (2, 0): TOO_BIG[1],
    (3, 0): "hop limit exceeded",
}
RCODES = {0: "no address", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED"}
A, AAAA = 1, 28


class IcmpError(NamedTuple):
    """An error that quotes a segment: whose it is, by the segment's `ends` (see `Segment`), who reports it, and what."""

    ends: bytes
    source: bytes
    reason: str
    mtu: int | None
    """The largest size that fits, if a packet was too big."""


class DnsAnswer(NamedTuple):
    """An answer for the addresses of a name: these, or why there are none."""

    name: str
    addresses: tuple[bytes, ...]
    failure: str | None


def icmp_error(data: bytes) -> IcmpError | None:
    """Return the ICMP error in an IP packet; None if it has none, or none about TCP."""
    if data[0] >> 4 == 4:
        start, source, reasons = (data[0] & 15) * 4, data[12:16], _REASONS_4
        if int.from_bytes(data[6:8], "big") & 0x1FFF:
            return None
    else:
        start, source, reasons = 40, data[8:24], _REASONS_6
    if len(data) < start + 8:
        return None
    reason = reasons.get((data[start], data[start + 1]))
    ends = _quoted(data[start + 8 :])
    if reason is None or ends is None:
        return None
    at = start + 6 if data[0] >> 4 == 4 else start + 4
    mtu = int.from_bytes(data[at : start + 8], "big") if reason in TOO_BIG else 0
    return IcmpError(ends, source, reason, mtu or None)


def _quoted(data: bytes) -> bytes | None:
    """The ends of a quoted segment."""
    if len(data) >= 28 and data[0] >> 4 == 4 and data[9] == _TCP and not int.from_bytes(data[6:8], "big") & 0x1FFF:
        start = (data[0] & 15) * 4
        return data[12:20] + data[start : start + 4] if 20 <= start <= len(data) - 4 else None
    if len(data) >= 44 and data[0] >> 4 == 6 and data[6] == _TCP:
        return data[8:44]
    return None


def dns_answer(data: bytes) -> DnsAnswer | None:
    """Return the DNS answer in an IP packet that carries UDP; None if it is not for the addresses of one name, was cut, or only says
    that there is no IPv6 address, as for most names."""
    if data[0] >> 4 == 4 and int.from_bytes(data[6:8], "big") & 0x3FFF:
        return None
    start = ((data[0] & 15) * 4 if data[0] >> 4 == 4 else 40) + 8
    body = data[start:]
    if data[start - 8 : start - 6] != _DNS or len(body) < 12 or body[2] & 0x82 != 0x80 or body[4:6] != b"\0\1":
        return None
    labels, at = _name(body, 12)
    failure = RCODES.get(body[3] & 15)
    kind = int.from_bytes(body[at : at + 2], "big")
    if not labels or kind not in (A, AAAA) or len(body) < at + 4 or failure is None:
        return None
    addresses = _addresses(body, at + 4) if not body[3] & 15 else []
    if kind == AAAA and failure == RCODES[0] and not addresses:
        return None
    return DnsAnswer(".".join(labels).lower(), tuple(addresses), None if addresses else failure)


def _name(body: bytes, at: int) -> tuple[list[str], int]:
    """The parts of a name, and where it ends; a pointer ends it."""
    labels: list[str] = []
    while at < len(body) and len(labels) < LABELS:
        size = body[at]
        if size & 0xC0:
            return labels, at + 2
        at += 1 + size
        if not size:
            return labels, at
        labels.append(body[at - size : at].decode("ascii", "backslashreplace"))
    return [], at


def _addresses(body: bytes, at: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(min(int.from_bytes(body[6:8], "big"), ANSWERS)):
        _, at = _name(body, at)
        kind, size = int.from_bytes(body[at : at + 2], "big"), int.from_bytes(body[at + 8 : at + 10], "big")
        at += 10 + size
        if at > len(body):
            break
        if (kind, size) in ((A, 4), (AAAA, 16)) and len(found) < ADDRESSES:
            found.append(body[at - size : at])
    return found
