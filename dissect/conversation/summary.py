"""A conversation as a whole: its row, what was not dissected of it, and what to tell of an exception that came in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamdump.detect import TOO_FEW
from streamdump.errors import Report
from streamdump.model import ConversationRow, Gap
from streamdump.protocols.records import GAP, PLACE, SENDERS, Event, count_gap, rfc3339

if TYPE_CHECKING:
    from streamdump.conversation.conversation import Conversation


def report(conversation: Conversation, what: str, cost: str, number: int | None = None, file: int | None = None) -> Report:
    """What to tell of an exception."""
    one, two = conversation.tcp.endpoints if conversation.client != 1 else conversation.tcp.endpoints[::-1]
    between = f"{one} {'-' if conversation.client is None else '>'} {two}{f' {conversation.protocol}' if conversation.protocol else ''}"
    return Report(what, cost, number, file, conversation.index, between)


def unread_gaps(conversation: Conversation) -> list[Event]:
    """What was not dissected, where its protocol is known."""
    if not conversation.missed or (protocol := conversation.protocol) is None:
        return []
    tcp, emitted = conversation.tcp, list[Event]()
    missed: list[list[tuple[int, int]]] = [[], []]
    reach = conversation.tls.reach() or stream_bytes(conversation)
    for side, start, end in conversation.missed:
        missed[side].append((start, min(end, reach[side])))
    order, _, _, time_ns = tcp.last
    for side, ranges in enumerate(missed):
        source, target = tcp.endpoints[side], tcp.endpoints[1 - side]
        for start, end in united(ranges):
            head = (1, 0, rfc3339(time_ns), time_ns, tcp.index, source, target, SENDERS[conversation.client][side], protocol)
            gap = Gap(*head, start, end - start, "skipped", False)
            emitted.append(Event(order, side ^ (conversation.client or 0), start, gap, GAP, None, time_ns))
    conversation.missed = ()
    emitted.sort(key=PLACE)
    for tally in (conversation.tally, conversation.run.counters):
        tally.records += len(emitted)
        for one in emitted:
            count_gap(tally, one.record)
    return emitted


def stream_bytes(conversation: Conversation) -> tuple[int, int]:
    """The bytes of each byte stream, without a PROXY header."""
    one, two = conversation.tcp.stream_bytes
    proxy = conversation.proxy_header
    stripped = 0 if proxy is None else len(proxy.raw)
    return (one, two - stripped) if proxy is not None and proxy.side else (one - stripped, two)


def how(conversation: Conversation) -> str:
    """How it ended and who did that first, as `TcpStream.how` says it."""
    close = conversation.close if conversation.parser is None else conversation.parser.closing
    return conversation.tcp.how(conversation.known_client, close)


def row_of(conversation: Conversation, number: int) -> ConversationRow:
    """What the `conversations` view says of it."""
    tcp, tally = conversation.tcp, conversation.tally
    verdict = conversation.verdict or TOO_FEW
    step = conversation.step if conversation.pairer is None else conversation.pairer.handshake.step
    proxy = conversation.proxy_header
    layers = {} if proxy is None else proxy.row()
    facts = {**(conversation.facts or {}), **({} if step is None else {"handshake": step}), **layers, **conversation.tls.row()}
    client = conversation.known_client
    return ConversationRow(
        1,
        number,
        rfc3339(tcp.first[3]),
        tcp.first[3],
        tcp.latest[3] - tcp.first[3],
        tcp.index,
        tcp.endpoints,
        None if client is None else tcp.endpoints[client],
        None if client is None else tcp.endpoints[1 - client],
        verdict.protocol,
        verdict.name,
        verdict.confidence,
        verdict.evidence if proxy is None else (*verdict.evidence, f"behind a {proxy.name}"),
        facts.pop("layout", verdict.layout),
        tuple(facts.pop("candidates", verdict.candidates)),
        (tcp.packets[0], tcp.packets[1]),
        stream_bytes(conversation),
        tally.messages,
        tally.faults,
        tally.gaps,
        tally.gap_bytes,
        tally.refused,
        tally.unanswered,
        tcp.retransmissions,
        tcp.out_of_order,
        tcp.conflicts,
        how(conversation),
        conversation.limit_hits + tcp.limit_hits,
        conversation.failure,
        facts,
    )


def united(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merges ranges of bytes until none touches another and none is empty."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found
