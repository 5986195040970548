"""What every dissector shares: making records of the frames that are cut, in packet order of both sides.

A protocol's own `Dissector` says how long a frame is, where frames begin again after a loss, and what a frame means.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from dissect.errors import Failure, bug
from dissect.model import Chunk, Fault, Gap, Limited, Message, Span, StreamGap
from dissect.protocols.failing import Failing
from dissect.protocols.flow import NEVER, Flow, Mark, Range
from dissect.protocols.protocol import Context, Tally
from dissect.protocols.records import (
    GAP,
    PLACE,
    SENDERS,
    UNKNOWN,
    Broken,
    Cut,
    Emitted,
    Handlers,
    Postponed,
    count_gap,
    records_of,
    straighten,
)

if TYPE_CHECKING:
    from dissect.tcp.conversations import Stretch


NO_HANDLERS: tuple[Handlers, Handlers] = ({}, {})
"""One object for very many conversations."""


class Dissector(Failing):
    """Turns the two byte streams of one conversation into records."""

    # With the members that a protocol adds there would be more than the thirty that objects of a class keep without a dictionary each
    __slots__ = (
        "_cuts",
        "_emitted",
        "_empty_gaps",
        "began",
        "buffers",
        "client",
        "context",
        "facts",
        "failure",
        "flows",
        "handlers",
        "lanes",
        "limit_hits",
        "options",
        "over",
        "pairer",
        "ready",
        "release",
        "spread",
        "tally",
        "unsent",
        "untold",
    )
    reuse: ClassVar[str] = "supersede"
    """What a request with a key that is still open does: "supersede" the older, or "queue" behind it."""
    key: ClassVar[tuple[int, int]] = (0, 0)
    """Where in a frame the bytes are that choose its handler: from and to."""
    MADE_OF: ClassVar[tuple[str, ...]] = ("context",)
    DERIVED: ClassVar[tuple[str, ...]] = ("options", "handlers", "lanes", "release", "began", "spread")
    """Members that are no state, but made of `context` or for speed only: another process makes them again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.options = context.options
        self.client = context.client
        self.pairer: Any = None
        """Takes records as they are made, with the list they go to; None where they are paired later."""
        self.facts: dict[str, Any] = {}
        """What the protocol's state adds to the row of `conversations`: layout, candidates, ids."""
        self.buffers: dict[str, bytes] = {}
        """What the spans of the message just decoded count in besides its frame; filled by `decode` where details are asked for."""
        self.handlers = NO_HANDLERS
        """By side, the short way for frames without flaw."""
        self.flows = (Flow(not context.syn), Flow(not context.syn))
        self.ready: list[Emitted] = []
        """What `cut` has decoded already."""
        self._cuts: list[Cut] = []
        self._emitted = 0
        self._empty_gaps = False
        self.tally = Tally()
        self.limit_hits = 0
        """Messages of which not all was made."""
        self.over = 0
        """The sides that said themselves that they send no more, a bit for each; known when the conversation ends."""
        self.failure: Failure | None = None
        """An exception came, and nothing is handed on any more."""
        self.unsent: list[Range] = []
        """What was cut, or even made, and is not handed on because of it."""
        self.untold: list[Message | Gap] = []
        """Records that were made, and perhaps paired, but are not handed on because of it."""
        self.release = self.began = 0
        """Of the frame that `decode` is given: the packet that made it certain, and the first that brought bytes of it."""
        self.spread = False
        """Whether several packets brought bytes of it."""
        self.set_lanes()

    def set_lanes(self) -> None:
        """Put together what all records of a side share: again when `client` or `handlers` change."""
        index, (one, two), (sender, other) = self.context.conversation, self.context.endpoints, SENDERS[self.client]
        self.lanes = (
            (index, one, two, sender, self.protocol, self.flows[0], self.handlers[0], *self.key),
            (index, two, one, other, self.protocol, self.flows[1], self.handlers[1], *self.key),
        )

    def resume(self) -> None:
        """Told when the client, among other things, is known from before."""
        self.set_lanes()

    def feed(self, items: Iterable[Chunk | StreamGap]) -> list[Emitted]:
        """The records that these bytes complete, in release order."""
        self.cut(items)
        return self.emit_before(NEVER)

    def cut(self, items: Iterable[Chunk | StreamGap]) -> None:
        """Cut these bytes into frames, which `emit_before` decodes; overridden where one cannot be done without the other."""
        flows = self.flows
        for item in items:
            flow = flows[item.side]
            flow.queue.append(item)
            if isinstance(item, Chunk):
                flow.queued += len(item.data)
        self._drain()
        self._arrange()

    def emit_before(self, order: int) -> list[Emitted]:
        """The records of the frames that were certain before this packet."""
        # A list of its own: the caller goes on with it
        emitted: list[Emitted] = []
        if self.ready:
            stop = bisect_left(self.ready, (order,))
            emitted, self.ready = self.ready[:stop], self.ready[stop:]
        cuts, begin = self._cuts, self._emitted
        if begin == len(cuts) or self.failure is not None:
            return emitted
        stop = bisect_left(cuts, (order,), begin)
        if begin < stop:
            emitted += self.emit(cuts[begin:stop])
        self._emitted = stop
        if stop == len(cuts):
            self._cuts, self._emitted = [], 0
        return emitted

    def close(self, release: int, last: Mark) -> list[Emitted]:
        """What is left when no byte will follow; `release` is the packet that ended the conversation, or END, `last` its last one."""
        for side in (0, 1):
            if self.flows[side].waiting:
                try:
                    self._give_up(side, release)
                except Exception as error:
                    self._break(side, bug(error), release, last)
        self._drain()
        for side in (0, 1):
            try:
                self._finish(side, release, last)
            except Exception as error:
                self._break(side, bug(error), release, last)
        self._arrange()
        return self.emit_before(NEVER)

    def emit(self, cuts: list[Cut]) -> list[Emitted]:
        """Decode frames in packet order; overridden by a protocol that must wait for more frames before it can decode."""
        self.count(len(cuts))
        return records_of(cuts)

    @classmethod
    def pairs_at_once(cls) -> bool:
        """Whether records are made in the order in which they are handed on, so that they can be paired as they are made."""
        return cls.cut is Dissector.cut

    @classmethod
    def is_plain(cls) -> bool:
        """Whether the frames of one conversation after the other may be cut, and then decoded in the packet order of all."""
        return cls.emit is Dissector.emit and cls.cut is Dissector.cut

    def take_cuts(self) -> list[Cut]:
        """The frames that `cut` has found, for `records_of`."""
        cuts, self._cuts = self._cuts, []
        self.count(len(cuts))
        return cuts

    def pass_over(self, stretches: Iterable[Stretch], records: int) -> None:
        """These bytes were cut into frames elsewhere."""
        for stretch in stretches:
            flow = self.flows[stretch.side]
            flow.position = flow.told = flow.position + stretch.size
        self.count(records)

    def at_rest(self, order: int) -> bool:
        """Whether no byte is at hand and nothing is looked for, so that the next bytes begin with a frame that was certain when the
        packet `order` came, or a later one."""
        return all(flow.at_rest(order) for flow in self.flows)

    def _arrange(self) -> None:
        """Put the frames in the order in which they were certain."""
        cuts = self._cuts
        if len(cuts) > 1:
            since = (self.flows[0].jumbled, self.flows[1].jumbled)
            if since != (NEVER, NEVER):
                straighten(cuts, [cut.side for cut in cuts], since)
            # A gap that has no bytes stands before the frame at its place; the other members cannot all be compared
            cuts.sort(key=PLACE if self._empty_gaps else None)

    def gap(
        self, release: int, order: int, rank: int, position: int, side: int, time: str, time_ns: int, size: int, told: tuple[Any, bool]
    ) -> Emitted:
        """The record of a gap."""
        reason, in_frame = told
        if type(reason) is Broken:
            raise Postponed(reason.what)
        conversation, source, target = self.lanes[side][:3]
        sender = SENDERS[self.client][side]
        known = size if size != UNKNOWN else None
        gap = Gap(1, 0, time, time_ns, conversation, source, target, sender, self.protocol, position, known, reason, in_frame)
        if not in_frame:
            self.lost(side)
        count_gap((self.tally, self.context.total), gap)
        return Emitted(release, order, rank, position, gap, GAP, None, time_ns)

    def fault(self, fault: Fault) -> None:
        """Count a message with a fault."""
        self.limit_hits += type(fault) is Limited
        self.tally.faults += 1
        self.context.total.faults += 1

    def details(self, message: Message, frame: bytes, spans: list[Span] | None) -> None:
        """Keep with a message what the views of its bytes need."""
        message.raw = {"frame": frame, **self.buffers}
        message.spans = spans
        self.buffers = {}

    def segment_notes(self, side: int, position: int, size: int, notes: Any) -> list[str]:
        """`notes` with those that the reassembler left on bytes of this frame, which are then forgotten."""
        flow = self.flows[side]
        merged = list(notes)
        merged.extend(text for at, text in flow.notes if at < position + size and text not in merged)
        flow.notes = [note for note in flow.notes if note[0] >= position + size]
        return merged
