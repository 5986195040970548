"""How conversations end: endings as records, and the input of the diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..detect import TOO_FEW, neighbour
from ..model import END, Close, Ending, Message, Options
from ..pair.exchanges import Moment, behind
from ..pair.pairer import waiting
from ..protocols import PORTS, PROTOCOLS, known_ports, server_ports
from ..protocols.records import NONE, SENDERS, Event, rfc3339
from ..tcp.assembler import REUSED, never_acknowledged

if TYPE_CHECKING:
    from ..diagnose.rules import Closed
    from .conversation import Conversation

IDLE, CROWDED = "forgotten after a long time without a packet", "forgotten for newer ones"
"""Why conversations are forgotten."""

LAST_NS = 2_000_000_000
"""How long packets that crossed a RST, or a repeated SYN, may still arrive; and, after a FIN, the FIN of the other side."""

UNANSWERED = {IDLE: "timeout", CROWDED: "limit"}
"""The reason of requests that stay open in these."""


def of(conversation: Conversation) -> list[Event]:
    """Return the ending of a conversation and, for the diagnosis, a `Closed`."""
    run, tcp = conversation.run, conversation.tcp
    emitted = _ending(conversation)
    if conversation.protocol is not None:
        lost = {tcp.endpoints[side]: again for side, again in enumerate(never_acknowledged(tcp)) if again is not None}
        run.unacknowledged |= {(tcp.index, sender): again for sender, again in lost.items()}
        run.counters.unacknowledged += bool(lost)
    if is_unused(conversation):
        if tcp.end is not None and tcp.end.how == "refused":
            run.refused[tcp.ports[1]] += 1
    elif run.windows is not None:
        emitted.append(closed(conversation))
    return emitted


def patience_ns(options: Options) -> int:
    """Return how long an ending by one side may still change."""
    return min(options.closed_time_ns, LAST_NS)


def report_early(conversation: Conversation, now_ns: int, pipe: bool = False) -> list[Event]:
    """Return the ending of a conversation that only one side has ended, two seconds later; at once after a fatal TLS alert. If nothing
    can change it any more, return the `Closed` of the diagnosis, too."""
    run, tcp, facts = conversation.run, conversation.tcp, conversation.tls.facts_so_far()
    failed = facts is not None and any(alert.fatal for alert in facts.alerts)
    assert tcp.end is not None
    patience = 0 if failed else patience_ns(run.options)
    if conversation.reported_early or conversation.detector is not None or now_ns < tcp.end.time_ns + patience:
        return []
    left: list[tuple[Message, str]] = []
    if conversation.pairer is not None:
        left = waiting(conversation.pairer, tcp.last[3])
        conversation.note(len(left))
    emitted = _ending(conversation)
    for one in emitted:
        run.early_endings[tcp.index] = one.record
    conversation.reported_early = True
    # As from a file, all later packets of a pipe count
    final = failed or (not pipe and (tcp.end.how != "FIN" or tcp.end.side != (conversation.client or 0)))
    if run.windows is not None and final:
        emitted.append(closed(conversation, tuple(one for one in left if one[1] != "timeout")))
    return emitted


def end_of(conversation: Conversation) -> Moment:
    """Return when the end of a conversation is certain, and the place of its last records.

    This is the last packet of the capture if it is still open then, the current time if it was forgotten, otherwise its own last packet.
    """
    tcp = conversation.tcp
    own_ns = tcp.last[3]
    end_ns = own_ns if tcp.untimed else conversation.run.end_ns(tcp.first[2])
    if tcp.open and tcp.closed is not None:
        return behind(END, tcp.index, max(own_ns, end_ns))
    return behind(tcp.last[0], 0, max(own_ns, end_ns) if tcp.ended == IDLE else own_ns)


def is_unused(conversation: Conversation) -> bool:
    """Return whether it never carried a byte and its ports belong to no known protocol."""
    return conversation.tcp.empty and known_ports(conversation.run.options).isdisjoint(ports_of(conversation))


def ports_of(conversation: Conversation) -> tuple[int, int]:
    """Return the ports that may indicate its protocol."""
    return server_ports(conversation.tcp.ports, conversation.known_client)


def stream_bytes(conversation: Conversation) -> tuple[int, int]:
    """Return the size of each byte stream, without a PROXY header."""
    one, two = conversation.tcp.stream_bytes
    proxy = conversation.proxy_header
    stripped = 0 if proxy is None else len(proxy.raw)
    return (one, two - stripped) if proxy is not None and proxy.side else (one - stripped, two)


def inner_bytes(conversation: Conversation) -> tuple[int, int]:
    """Return the size of each byte stream inside of all layers, in which positions count."""
    websocket = conversation.websocket
    found = None if websocket is None else websocket.plain_sizes()
    return found or conversation.tls.decrypted_sizes() or stream_bytes(conversation)


def closed(conversation: Conversation, before: tuple[tuple[Message, str], ...] | None = None) -> Event:
    """Return the end of a conversation for the diagnosis; `before`: if reported early, requests that get no response, and why."""
    closed_of, failures = _modules()
    run, tcp, tls = conversation.run, conversation.tcp, conversation.tls.facts_so_far()
    assert run.windows is not None
    first_bytes, from_start, websocket = conversation.first_bytes, conversation.from_start, conversation.websocket
    end = end_of(conversation)
    conversation.first_bytes = b"", b""
    closed = closed_of(
        tcp,
        end.time_ns,
        conversation.verdict or TOO_FEW,
        conversation.client,
        _expected(ports_of(conversation), run.options),
        tls,
        failures(tls) if tls else {},
        (None, None) if tcp.untimed else run.windows.of(tcp, end.time_ns),
        conversation.failure,
        conversation.facts or {},
        first_bytes,
        (neighbour(first_bytes[0], from_start), neighbour(first_bytes[1], from_start)),
        conversation.proxy_header,
        None if websocket is None else websocket.outcome(),
        inner_bytes(conversation),
        () if run.diagnoser is None else run.diagnoser.overview.network.of(tcp, run.options.separate),
        before,
    )
    closed.processes = run.processes.of(tcp.index)
    return Event(end.order, end.rank, end.position, closed, NONE, None, end.time_ns)


@cache
def _modules() -> tuple[Callable[..., Closed], Callable[..., Any]]:
    """Return what only the diagnosis needs; importing it for each conversation would take as long as one of its rules."""
    from ..diagnose.ends import closed_of
    from ..tls.diagnostics import failures

    return closed_of, failures


def announced(conversation: Conversation) -> Close | None:
    """Return the message that announced the end: the protocol's, otherwise the Close frame of WebSocket."""
    close = conversation.close if conversation.parser is None else conversation.parser.closing
    websocket = conversation.websocket
    return close or (None if websocket is None else websocket.closing())


def _ending(conversation: Conversation) -> list[Event]:
    """Return the ending of a conversation, or of a connection to a known port that never carried a byte; empty if there is none."""
    run, tcp, protocol = conversation.run, conversation.tcp, conversation.protocol
    client = conversation.known_client
    end = tcp.end
    empty = tcp.empty
    if conversation.reported_early or (not (tcp.from_start and tcp.ports[1] in known_ports(run.options)) if empty else protocol is None):
        return []
    side, how = client or 0, "forgotten"
    if end is not None:
        side, how = end.side, end.how if empty or end.how != "refused" else "RST"
    elif empty and not tcp.packets[1] and tcp.ended != REUSED:
        how = "no answer"
    elif tcp.ended not in UNANSWERED:
        return []
    moment = end_of(conversation)
    time_ns = moment.time_ns if end is None else end.time_ns
    source, target = tcp.endpoints[side], tcp.endpoints[1 - side]
    sender = SENDERS[client][side]
    close = tcp.announced(announced(conversation))
    injected = close is None and end is not None and end.injected
    by_server = not injected and SENDERS[client][side if close is None else close[1]] == "server"
    if conversation.midway and conversation.step is not None and how in ("FIN", "RST") and by_server:
        run.counters.broken_off += 1
        run.broken_off[tcp.index] = conversation.step
    last = conversation.latest_ns
    quiet_ns = None if last is None or tcp.untimed else time_ns - last
    head = (1, 0, rfc3339(time_ns), time_ns, tcp.index, source, target, sender, None if empty else protocol)
    ending = Ending(*head, how, quiet_ns, conversation.left, conversation.tally.refused)  # type: ignore[arg-type]
    run.counters.by_server += ending.protocol is not None and by_server
    run.counters.unconnected += how in ("refused", "no answer")
    return [Event(moment.order, moment.rank, moment.position, ending, NONE, None, time_ns)]


def _expected(ports: tuple[int, int], options: Options) -> str | None:
    """Return the protocol that `-d` or a protocol's default port assigns to these ports."""
    for port, name, _ in options.decode_as:
        if port in ports:
            return name
    if PORTS.isdisjoint(ports):
        return None
    return next(protocol.name for protocol in PROTOCOLS if set(protocol.ports) & set(ports))
