"""One conversation as it is known while it is read, and what is kept of it when it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dissect.detect import TOO_FEW, Detector, Suspicion
from dissect.errors import Failure, Report
from dissect.model import Chunk, ConversationRow, Gap, StreamGap, Verdict
from dissect.pair import Pairer
from dissect.protocols.base import Dissector
from dissect.protocols.flow import Range
from dissect.protocols.protocol import Tally
from dissect.protocols.records import GAP, PLACE, SENDERS, Emitted, count_gap, rfc3339
from dissect.tcp.conversations import Conversation
from dissect.tls.gate import Carried

BEGIN_KEPT = 64
"""So many bytes of each side are kept for the diagnosis."""


class Tracked(msgspec.Struct):
    """One conversation; the row of the `conversations` view is made from it."""

    tcp: Conversation
    carried: Carried = msgspec.field(default_factory=Carried)
    """Its TLS, between reassembly and detection."""
    verdict: Verdict | None = None
    detector: Detector | None = None
    suspicion: Suspicion | None = None
    """As long as a protocol that was asked for may turn out to be another."""
    dissector: Dissector | None = None
    pairer: Pairer | None = None
    tally: Tally = msgspec.field(default_factory=Tally)
    limit_hits: int = 0
    open: int = 0
    """Requests that had no response at the end."""
    facts: dict[str, Any] | None = None
    """Those of its dissector."""
    step: str | None = None
    """How far its handshake had come at the end."""
    midway: bool = False
    """In the middle of it, and nothing that was refused tells why."""
    client: int | None = None
    whole: bool = False
    """Side 0 is the client, and both byte streams begin where it began."""
    done: bool = False
    told: bool = False
    """Its ending was handed on already."""
    ahead: bool = False
    """It was, though only one side had ended."""
    begun: tuple[bytes, bytes] = (b"", b"")
    """The first bytes of each side, where a diagnosis is asked for and the protocol is known."""
    failure: str | None = None
    """An exception came: what it was. Nothing was dissected from there on."""
    missed: Sequence[Range] = ()
    """The bytes that were not, where the protocol is known: a gap at the end says so."""
    detour: str | None = None
    """An exception came in a short cut, which is not taken any more."""
    rowless: bool = False
    """An exception came as its row was made."""

    @classmethod
    def of(cls, conversation: Conversation) -> Tracked:
        """A conversation of which nothing is known but TCP."""
        return cls(conversation, client=0 if conversation.syn else None, whole=conversation.syn)

    @property
    def protocol(self) -> str | None:
        return None if self.verdict is None else self.verdict.protocol

    def learn(self) -> None:
        """Note what TLS tells, whatever is said in it."""
        carried = self.carried
        if self.client is None:
            self.client = carried.client
        if carried.unread is not None:
            self.verdict = carried.unread
        elif carried.read and self.dissector is not None:
            self.verdict = self.dissector.context.verdict
        elif carried.read and self.detector is not None:
            self.verdict = None
            self.detector.syn = self.whole = self.whole or carried.whole

    def keep_begin(self, items: list[Chunk | StreamGap]) -> None:
        """Keep the first bytes of each side, which may tell what they are where they are no frames."""
        if min(map(len, self.begun)) >= BEGIN_KEPT:
            return
        begun = list(self.begun)
        for item in items:
            have = len(begun[item.side])
            if isinstance(item, Chunk) and item.position == have < BEGIN_KEPT:
                begun[item.side] += item.data[: BEGIN_KEPT - have]
        self.begun = begun[0], begun[1]

    def settle(self) -> None:
        """No message will come: keep what its dissector and its requests tell at the end, without them."""
        dissector, pairer = self.dissector, self.pairer
        assert dissector is not None and pairer is not None
        self.note(dissector, pairer, pairer.left)
        self.limit_hits += dissector.limit_hits + pairer.limit_hits
        self.dissector = self.pairer = None

    def note(self, dissector: Dissector, pairer: Pairer, left: int) -> None:
        """Note what its ending tells, with so many requests that have no response."""
        self.open, self.step, self.midway = left, pairer.handshake.step, pairer.handshake.midway
        self.client = dissector.client

    def where(self, items: Iterable[Chunk | StreamGap] = ()) -> tuple[int, int, int]:
        """When an exception came, as order, number and file of a packet: that with which it is looked for a protocol, or, where no single
        one can be blamed, the first of these, or else the last."""
        if self.detector is not None:
            at = self.detector.at
            for item in self.detector.items:
                if isinstance(item, Chunk) and at in item.releases:
                    index = item.releases.index(at)
                    return at, item.numbers[index], item.files[index]
        first = [
            (item.release, item.number, item.file) if isinstance(item, StreamGap) else (item.releases[0], item.numbers[0], item.files[0])
            for item in items
        ]
        return min(first, default=self.tcp.last[:3])

    def report(self, failure: Failure, cost: str) -> Report:
        """What to tell of an exception."""
        one, two = self.tcp.endpoints if self.client != 1 else self.tcp.endpoints[::-1]
        between = f"{one} {'-' if self.client is None else '>'} {two}{f' {self.protocol}' if self.protocol else ''}"
        return Report(failure.what, cost, failure.number, failure.file, self.tcp.index, between)

    def gaps(self, release: int, total: Tally) -> list[Emitted]:
        """What was not dissected, where the conversation has ended and its protocol is known."""
        if not self.missed or (protocol := self.protocol) is None:
            return []
        emitted: list[Emitted] = []
        missed: list[list[tuple[int, int]]] = [[], []]
        reach = self.carried.reach() or tuple(one.stream for one in self.tcp.sides)
        for side, start, end in self.missed:
            missed[side].append((start, min(end, reach[side])))
        tallies = (self.tally, total)
        order, _, _, time_ns = self.tcp.last
        for side, ranges in enumerate(missed):
            source, target = self.tcp.endpoints[side], self.tcp.endpoints[1 - side]
            for start, end in _united(ranges):
                head = (1, 0, rfc3339(time_ns), time_ns, self.tcp.index, source, target, SENDERS[self.client][side], protocol)
                gap = Gap(*head, start, end - start, "skipped", False)
                for tally in tallies:
                    tally.records += 1
                count_gap(tallies, gap)
                emitted.append(Emitted(release, order, side ^ (self.client or 0), start, gap, GAP, None, time_ns))
        self.missed = ()
        emitted.sort(key=PLACE)
        return emitted

    def row(self, number: int) -> ConversationRow:
        """What the `conversations` view says of it."""
        tcp = self.tcp
        verdict = self.verdict or TOO_FEW
        step = self.step if self.pairer is None else self.pairer.handshake.step
        facts = {**(self.facts or {}), **({} if step is None else {"handshake": step}), **self.carried.row()}
        client, tally = self.client, self.tally
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
            verdict.evidence,
            facts.pop("layout", verdict.layout),
            tuple(facts.pop("candidates", verdict.candidates)),
            (tcp.packets[0], tcp.packets[1]),
            (tcp.stream_bytes[0], tcp.stream_bytes[1]),
            tally.messages,
            tally.faults,
            tally.gaps,
            tally.gap_bytes,
            tally.refused,
            tally.unanswered,
            tcp.retransmissions,
            tcp.out_of_order,
            tcp.conflicts,
            tcp.how(client),
            self.limit_hits + tcp.limit_hits,
            self.failure,
            facts,
        )


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in ranges that neither touch each other nor are empty."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found
