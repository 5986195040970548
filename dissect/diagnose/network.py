"""What packets beside the connections say: errors of ICMP about their segments, and answers of DNS for names."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..capture.ends import ends_between
from ..capture.icmp_dns import UDP, DnsAnswer, IcmpError, dns_answer, icmp_error
from ..model import END, Mark, Packet
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
    """The answers for a name: whether there were addresses, how often there were none, and the first of these packets, with the reasons."""

    found: bool = False
    times: int = 0
    shown: list[tuple[int, int, int, str]] = []

    @property
    def failure(self) -> str:
        """Why there are no addresses."""
        return self.shown[0][3]

    @property
    def packets(self) -> tuple[int, ...]:
        return tuple(number for _, _, number, _ in self.shown)

    def merge(self, other: Resolved) -> None:
        """Add other answers."""
        self.found = self.found or other.found
        self.times += other.times
        self.shown = sorted([*self.shown, *other.shown])[:PACKETS_KEPT]


class NetworkEvidence(msgspec.Struct):
    """Remembers what ICMP and DNS say."""

    errors: dict[bytes, list[tuple[Mark, IcmpError]]] = {}
    """By the ends of the segments that are quoted."""
    names: dict[str, Resolved] = {}
    asked: dict[str, Resolved | None] = {}

    def read(self, packet: Packet, order: int, ip: int, protocol: int, network: bytes) -> None:
        """Note the error or the answer in a packet of ICMP or UDP, if there is one (`LinkParser.aside`)."""
        data = packet.buffer[ip : packet.offset + packet.captured]
        if protocol == UDP:
            answer = dns_answer(data)
            if answer is not None:
                self.answer(answer, (order, packet.number, packet.file, packet.time_ns))
        elif (error := icmp_error(data)) is not None:
            self.error(error, network, (order, packet.number, packet.file, packet.time_ns))

    def error(self, error: IcmpError, network: bytes, mark: Mark) -> None:
        """Note an error; `network`: what the ends of segments are followed by."""
        ends = error.ends + network
        kept = _renewed(self.errors, ends, CONVERSATIONS_KEPT) or self.errors.setdefault(ends, [])
        if len(kept) < ERRORS_KEPT:
            kept.append((mark, error))

    def answer(self, answer: DnsAnswer, mark: Mark) -> None:
        """Note an answer for a name."""
        _, number, file, time_ns = mark
        failure = answer.failure
        self._name(answer.name, Resolved(True) if failure is None else Resolved(False, 1, [(time_ns, file, number, failure)]))

    def _name(self, name: str, answers: Resolved) -> None:
        kept = _renewed(self.names, name, NAMES_KEPT) or self.names.setdefault(name, Resolved())
        kept.merge(answers)

    def merge(self, other: NetworkEvidence, file: int = 0, before: int = 0) -> None:
        """Add the evidence of a range of a file, which begins after `before` packets of it."""
        for ends, errors in other.errors.items():
            for (order, number, _, time_ns), error in errors:
                self.error(error, ends[len(error.ends) :], (order, number + before, file, time_ns))
        for name, answers in other.names.items():
            shown = [(time_ns, file, number + before, why) for time_ns, _, number, why in answers.shown]
            self._name(name, Resolved(answers.found, answers.times, shown))

    def of(self, tcp: TcpStream, separate: bool) -> tuple[Reported, ...]:
        """What was reported of a conversation that has ended, from its first packet to the one that ended it."""
        if not self.errors:
            return ()
        from ipaddress import ip_address

        until = END if tcp.closed is None else tcp.closed
        found: dict[tuple[int, bytes, str], list[tuple[Mark, IcmpError]]] = {}
        for side, ends in enumerate(ends_between(tcp.endpoints, tcp.first[2] if separate else 0)):
            for mark, error in self.errors.get(ends, ()):
                if tcp.first[0] <= mark[0] <= until:
                    found.setdefault((side, error.source, error.reason), []).append((mark, error))
        return tuple(
            Reported(side, str(ip_address(source)), reason, some[0][1].mtu, len(some), tuple(mark[1] for mark, _ in some[:PACKETS_KEPT]))
            for (side, source, reason), some in found.items()
        )

    def unresolved(self, host: str) -> Resolved | None:
        """The answers for a name that has no address, with the domains that resolvers put behind it; at the end of the capture."""
        host = host.lower().rstrip(".")
        if host not in self.asked and len(self.asked) < HOSTS_ASKED:
            found = [one for name, one in self.names.items() if name == host or name.startswith(f"{host}.")]
            failed = max(found, key=lambda one: one.times, default=None)
            self.asked[host] = None if any(one.found for one in found) else failed
        return self.asked.get(host)


def _renewed(kept: dict[Any, Any], key: Any, most: int) -> Any:
    """Return the state of `key`, which is the newest now; drop the oldest if there are too many."""
    found = kept.pop(key, None)
    if found is not None:
        kept[key] = found
    elif len(kept) >= most:
        del kept[next(iter(kept))]
    return found
