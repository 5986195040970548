"""How conversations end: the records of that, and what the diagnosis is told."""

from __future__ import annotations

from dissect.conversation.run import Counters
from dissect.conversation.tracked import Tracked
from dissect.detect import TOO_FEW, neighbour
from dissect.diagnose.windows import Windows
from dissect.model import Ending, Message, Options
from dissect.pair import BEHIND, waiting
from dissect.protocols import PROTOCOLS, known_ports
from dissect.protocols.records import NONE, SENDERS, Emitted, rfc3339
from dissect.tcp.conversations import CROWDED, IDLE, LAST_NS, REUSED

UNANSWERED = {IDLE: "timeout", CROWDED: "limit"}
"""Why requests stay open in conversations that are forgotten."""


class Endings:
    """Makes them; `windows`: where a diagnosis is asked for, what is known of sides that had no room."""

    def __init__(self, options: Options, counters: Counters, windows: Windows | None) -> None:
        self._options = options
        self._counters = counters
        self._windows = windows
        self.ports = known_ports(options)
        """Those of our protocols, at which connections that carried nothing have endings too."""
        self.broken_off: dict[int, str] = {}
        """By conversation, of those that ended last: how far the handshake had come in the middle of which the server left."""

    def of(self, tracked: Tracked, release: int) -> list[Emitted]:
        """How a conversation ended, and where findings are asked for, all else that is known at the end."""
        emitted = self._ending(tracked, release)
        if self._windows is not None and not tracked.told:
            emitted.append(self.closed(tracked, release))
        return emitted

    def ahead(self, tracked: Tracked, now_ns: int, release: int) -> list[Emitted]:
        """How one side has ended a conversation that the other one goes on with, two seconds later; at once where it cannot go on, as TLS
        has failed. Where nothing that comes will change it, the diagnosis is told as well."""
        tls, end = tracked.carried.told(), tracked.tcp.end
        failed = tls is not None and any(alert.fatal for alert in tls.alerts)
        assert end is not None
        patience = 0 if failed else min(self._options.closed_time_ns, LAST_NS)
        if tracked.told or tracked.ahead or tracked.detector is not None or now_ns < end.time_ns + patience:
            return []
        left: list[tuple[Message, str]] = []
        if tracked.dissector is not None and tracked.pairer is not None:
            left = waiting(tracked.pairer, tracked.tcp.last[3])
            tracked.note(tracked.dissector, tracked.pairer, len(left))
        emitted = self._ending(tracked, release)
        tracked.ahead = True
        if self._windows is not None and (failed or end.how != "FIN" or end.side != (tracked.client or 0)):
            emitted.append(self.closed(tracked, release, tuple(one for one in left if one[1] != "timeout")))
        return emitted

    def closed(self, tracked: Tracked, release: int, ahead: tuple[tuple[Message, str], ...] | None = None) -> Emitted:
        """The end of a conversation, for the diagnosis; `ahead`: see there."""
        from dissect.diagnose.ends import closed_of
        from dissect.tls.troubles import troubles

        assert self._windows is not None
        tcp, told = tracked.tcp, tracked.carried.told()
        closed = closed_of(
            tcp,
            tracked.verdict or TOO_FEW,
            tracked.client,
            self._expected(tcp.ports),
            told,
            troubles(told) if told else {},
            self._windows.of(tcp),
            tracked.failure,
            tracked.facts or {},
            tracked.begun,
            (neighbour(tracked.begun[0], tracked.whole), neighbour(tracked.begun[1], tracked.whole)),
            ahead,
        )
        return Emitted(release, tcp.last[0], BEHIND + 2, 0, closed, NONE, None, tcp.last[3])

    def _ending(self, tracked: Tracked, release: int) -> list[Emitted]:
        """How a conversation ended, or a connection to a known port that never carried a byte, if it did."""
        tcp, end, client, protocol = tracked.tcp, tracked.tcp.end, tracked.client, tracked.protocol
        empty = not any(tcp.stream_bytes)
        if tracked.told or tracked.ahead or (not (tcp.syn and tcp.ports[1] in self.ports) if empty else protocol is None):
            return []
        side, how, time_ns = client or 0, "forgotten", tcp.last[3]
        if end is not None:
            side, how, time_ns = end.side, end.how if empty or end.how != "refused" else "RST", end.time_ns
        elif empty and not tcp.packets[1] and tcp.ended != REUSED:
            how = "no answer"
        elif tcp.ended not in UNANSWERED:
            return []
        source, target = tcp.endpoints[side], tcp.endpoints[1 - side]
        head = (1, 0, rfc3339(time_ns), time_ns, tcp.index, source, target, SENDERS[client][side], None if empty else protocol)
        if tracked.midway and tracked.step is not None and how in ("FIN", "RST") and SENDERS[client][side] == "server":
            self._counters.broken_off += 1
            self.broken_off[tcp.index] = tracked.step
        ending = Ending(*head, how, None, tracked.open, tracked.tally.refused)  # type: ignore[arg-type]
        return [Emitted(release, tcp.last[0], BEHIND + 1, 0, ending, NONE, None, time_ns)]

    def _expected(self, ports: tuple[int, int]) -> str | None:
        """The protocol that these ports are asked or known to be for."""
        for port, name, _ in self._options.decode_as:
            if port in ports:
                return name
        return next((protocol.name for protocol in PROTOCOLS if set(protocol.ports) & set(ports)), None)
