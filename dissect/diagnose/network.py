"""What packets beside the connections say: errors of ICMP about their segments, and answers of DNS for names."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..capture.ends import ends_between
from ..capture.icmp_dns import DnsAnswer, IcmpError
from ..model import END, Mark
from ..tcp.assembler import TcpStream

ERRORS_KEPT = 64
"""Errors counted about the segments of one side, at most."""

CONVERSATIONS_KEPT = NAMES_KEPT = 4_096
"""Sides of conversations with errors, and names with answers, at most; then the oldest are dropped."""

HOSTS_ASKED = 256
"""Hosts looked up among the names, at most."""

PACKETS_KEPT = 8


class Reported(NamedTuple):
    """An error that ICMP reports of the segments of one side, how often and with which packets."""

    side: int
    source: str
    reason: str
    mtu: int | None
    times: int
    packets: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return who reports what, for use within a sentence."""
        return f"{self.source} reports by ICMP: {self.reason}{f' (MTU {self.mtu:,})' if self.mtu is not None else ''}"


class Resolved(msgspec.Struct):
    """The answers for a name: why there are no addresses and how often, and whether there were some."""

    failure: str | None = None
    times: int = 0
    packets: tuple[int, ...] = ()
    found: bool = False

    def note(self, answer: DnsAnswer, number: int) -> None:
        """It was answered once more."""
        if answer.failure is None:
            self.found = True
            return
        self.failure = self.failure or answer.failure
        self.times += 1
        if len(self.packets) < PACKETS_KEPT:
            self.packets += (number,)


class NetworkEvidence:
    """Remembers what ICMP and DNS say."""

    def __init__(self) -> None:
        self._errors: dict[bytes, list[tuple[Mark, IcmpError]]] = {}
        """By the ends of the segments that are quoted."""
        self._names: dict[str, Resolved] = {}
        self._asked: dict[str, Resolved | None] = {}

    def error(self, error: IcmpError, network: bytes, mark: Mark) -> None:
        """Note an error; `network`: what the ends of segments are followed by."""
        ends = error.ends + network
        kept = _renewed(self._errors, ends, CONVERSATIONS_KEPT) or self._errors.setdefault(ends, [])
        if len(kept) < ERRORS_KEPT:
            kept.append((mark, error))

    def answer(self, answer: DnsAnswer, number: int) -> None:
        """Note an answer for a name."""
        kept = _renewed(self._names, answer.name, NAMES_KEPT) or self._names.setdefault(answer.name, Resolved())
        kept.note(answer, number)

    def of(self, tcp: TcpStream, separate: bool) -> tuple[Reported, ...]:
        """What was reported of a conversation that has ended, from its first packet to the one that ended it."""
        if not self._errors:
            return ()
        from ipaddress import ip_address

        until = END if tcp.closed is None else tcp.closed
        found: dict[tuple[int, bytes, str], list[tuple[Mark, IcmpError]]] = {}
        for side, ends in enumerate(ends_between(tcp.endpoints, tcp.first[2] if separate else 0)):
            for mark, error in self._errors.get(ends, ()):
                if tcp.first[0] <= mark[0] <= until:
                    found.setdefault((side, error.source, error.reason), []).append((mark, error))
        return tuple(
            Reported(side, str(ip_address(source)), reason, some[0][1].mtu, len(some), tuple(mark[1] for mark, _ in some[:PACKETS_KEPT]))
            for (side, source, reason), some in found.items()
        )

    def unresolved(self, host: str) -> Resolved | None:
        """The answers for a name that has no address, with the domains that resolvers put behind it; at the end of the capture."""
        host = host.lower().rstrip(".")
        if host not in self._asked and len(self._asked) < HOSTS_ASKED:
            found = [one for name, one in self._names.items() if name == host or name.startswith(f"{host}.")]
            failed = max(found, key=lambda one: one.times, default=None)
            self._asked[host] = None if any(one.found for one in found) else failed
        return self._asked.get(host)


def _renewed(kept: dict[Any, Any], key: Any, most: int) -> Any:
    """What is kept of `key`, which is the newest now; the oldest goes where there are too many."""
    found = kept.pop(key, None)
    if found is not None:
        kept[key] = found
    elif len(kept) >= most:
        del kept[next(iter(kept))]
    return found
