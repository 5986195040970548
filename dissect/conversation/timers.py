"""When to look at which conversation though no packet of it came, for a capture without an end."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from streamdump.conversation.endings import patience_ns
from streamdump.options import Options
from streamdump.pair import asked_since
from streamdump.tcp.assembler import TcpStream

if TYPE_CHECKING:
    from streamdump.conversation.conversation import Conversation


def leaves(tcp: TcpStream, options: Options) -> int:
    """When a conversation is forgotten if no packet comes. Who waits for a connection should not wait to be told that it was reset."""
    if tcp.open and tcp.closed is None:
        return tcp.last[3] + options.idle_time_ns
    return tcp.last[3] + (patience_ns(options) if tcp.reset else options.closed_time_ns)


class Timers:
    """A time for each conversation. With very many of them, looking at all again and again would take longer than their packets do."""

    def __init__(self, options: Options, ends_only: bool = False) -> None:
        """`ends_only`: of a pipe, which has an end, so that nothing but the first FIN or RST of a conversation becomes certain."""
        self.options = options
        self.ends_only = ends_only
        self._times: list[tuple[int, int]] = []
        """The next one first; one that was put before another of its conversation leaves that behind, which counts no more."""
        self._set: dict[int, int] = {}

    def set(self, conversation: Conversation, time_ns: int) -> None:
        """Look at this time, or earlier where that was said before."""
        index = conversation.index
        if time_ns < self._set.get(index, time_ns + 1):
            self._set[index] = time_ns
            heappush(self._times, (time_ns, index))

    def set_next(self, conversation: Conversation, now_ns: int) -> None:
        """Look when something may have become certain by the mere passing of time; who learns that it ends sets that."""
        tcp, pairer, answer_ns = conversation.tcp, conversation.pairer, self.options.answer_time_ns
        times = [] if self.ends_only else [leaves(tcp, self.options), now_ns + answer_ns]
        if pairer is not None and not self.ends_only:
            times += [asked_ns + answer_ns for asked_ns in asked_since(pairer, now_ns - answer_ns)]
        if tcp.end is not None and not (conversation.ahead or conversation.ended):
            times.append(tcp.end.time_ns + patience_ns(self.options))
        if times:
            self.set(conversation, max(min(times), now_ns + 1))

    def due(self, now_ns: int) -> list[int]:
        """The numbers of the conversations to look at by now, which have no time any more."""
        found: list[int] = []
        while self._times and self._times[0][0] <= now_ns:
            time_ns, index = heappop(self._times)
            if self._set.get(index) == time_ns:
                del self._set[index]
                found.append(index)
        return sorted(found)
