"""All TLS of a run: which conversations begin like it, which wait for keys, and how much they may hold.

The inspector gives every conversation's bytes to `Gate.take` until it is known that they are no TLS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dissect.errors import Failure, bug
from dissect.model import Chunk, Options, PacketBatch, SegmentBatch, StreamGap, Verdict
from dissect.tcp.assembler import PIECE_COST
from dissect.tcp.conversations import END, Conversation, Delivery
from dissect.tls.keys import KeyLog
from dissect.tls.records import alert, begins, sealed

if TYPE_CHECKING:
    from dissect.tls.facts import Facts
    from dissect.tls.stage import Stage

BOTH = 3
"""Both sides, a bit for each."""


class Carried(msgspec.Struct, gc=False):
    """What is known of one conversation's TLS. `heard`: the sides whose first bytes were looked at, a bit for each. `ending`: the packet
    that ended a conversation which still waits for keys."""

    heard: int = 0
    stage: Stage | None = None
    facts: Facts | None = None
    """When it has ended; `told` has them before."""
    unread: Verdict | None = None
    """What the conversation is as long as nothing can be read of it."""
    read: bool = False
    client: int | None = None
    whole: bool = False
    """Its beginning was captured."""
    limit_hits: int = 0
    ending: int | None = None

    def told(self) -> Facts | None:
        """What is known of TLS besides what was said in it; None where there is none."""
        return self.facts if self.stage is None else self.stage.told()

    def reach(self) -> tuple[int, int] | None:
        """How many bytes each side said inside of TLS, as far as that was read; None where nothing was."""
        told = self.told() if self.read else None
        return None if told is None else told.plain

    def row(self) -> dict[str, Any]:
        """What a row of `conversations` says of TLS."""
        told = self.told()
        if told is None:
            return {}
        from dissect.tls.troubles import troubles

        found = troubles(told)
        return told.row() | ({"tls_troubles": found} if found else {})

    @property
    def plain(self) -> bool:
        """Whether there is nothing to look at."""
        return self.heard == BOTH and self.stage is None


class Gate:
    """Turns what was delivered of conversations into what was said in them."""

    def __init__(self, options: Options, keys: KeyLog) -> None:
        self.options = options
        self.keys = keys
        self.inside: dict[int, str] = {}
        """By conversation, what those are carried in of which something could be read: TLS 1.3."""
        self._waiting: dict[int, tuple[Conversation, Carried]] = {}
        """By conversation, those that wait for keys, the oldest first."""
        self._known = 0

    def take(
        self, carried: Carried, delivery: Delivery, items: list[Chunk | StreamGap], end: int, final: bool
    ) -> tuple[list[Chunk | StreamGap], Failure | None]:
        """What goes on to detection, and where an exception came; packets below `end` have been seen. The end of a conversation that waits
        for keys is put off, unless this is `final`."""
        try:
            return self._take(carried, delivery, items, end, final), None
        except Exception as error:
            what = bug(error)
            if carried.stage is None:
                raise
        return self._torn(carried, carried.stage, delivery, what)

    def _take(self, carried: Carried, delivery: Delivery, items: list[Chunk | StreamGap], end: int, final: bool) -> list[Chunk | StreamGap]:
        if carried.heard != BOTH and items:
            self._hear(carried, items, delivery.conversation.syn)
        stage = carried.stage
        if stage is None:
            return items
        conversation, closed = delivery.conversation, delivery.closed
        self.keys.asking = conversation.index
        items = stage.feed(items, end)
        if closed is None and not stage.waiting:
            # Keys came after the end
            closed = carried.ending
        if closed is not None:
            if stage.waiting and not final:
                carried.ending, delivery.closed = closed, None
            else:
                closed = delivery.closed = max(closed, stage.floor)
                items += stage.close(closed, conversation.last)
        if stage.plain:
            carried.stage = None
            return items
        if stage.waiting and not final:
            self._waiting.setdefault(conversation.index, (conversation, carried))
        else:
            self._waiting.pop(conversation.index, None)
        self._learn(carried, stage, conversation)
        if delivery.closed is not None:
            carried.facts, carried.limit_hits = stage.told(), stage.limit_hits
            carried.stage = None
        return items

    def _learn(self, carried: Carried, stage: Stage, conversation: Conversation) -> None:
        carried.client = stage.client
        carried.unread = None if stage.emitted else stage.verdict()
        if stage.emitted and not carried.read:
            carried.read = True
            carried.whole = carried.client == 0 and not stage.middle
            self.inside[conversation.index] = stage.name

    def _torn(self, carried: Carried, stage: Stage, delivery: Delivery, what: str) -> tuple[list[Chunk | StreamGap], Failure | None]:
        """What was said before an exception came, which ends the reading of TLS in this conversation."""
        conversation = delivery.conversation
        items, failure = stage.rescue(what, conversation.last)
        self._waiting.pop(conversation.index, None)
        if delivery.closed is None:
            delivery.closed = carried.ending
        carried.heard, carried.stage = BOTH, None
        self._learn(carried, stage, conversation)
        carried.facts, carried.limit_hits = stage.told(), stage.limit_hits
        return items, failure

    def woken(self, deliveries: list[Delivery], closed: int | None = None) -> list[Delivery]:
        """What was delivered, and the conversations that new keys may be for; `closed`: no more will come."""
        if not self._waiting or (self._known == self.keys.changes and closed is None):
            return deliveries
        self._known = self.keys.changes
        here = {delivery.conversation.index for delivery in deliveries}
        more = [Delivery(conversation, [], closed) for index, (conversation, _) in self._waiting.items() if index not in here]
        return sorted(deliveries + more, key=lambda delivery: delivery.conversation.index)

    def crowded(self, segments: SegmentBatch) -> bool:
        """Whether these segments may make all that waits for keys too much, so that their order counts over all conversations."""
        if not self.keys.expecting:
            return False
        return self._held() + int(segments.length.sum()) + PIECE_COST * len(segments) > self.options.keys_total

    def surplus(self, order: int) -> Iterator[Delivery]:
        """The conversations that must not wait any longer since all hold too much, the oldest first, until there is some room."""
        held = self._held()
        if held <= self.options.keys_total:
            return
        for conversation, carried in list(self._waiting.values()):
            assert carried.stage is not None
            held -= carried.stage.held
            carried.stage.give_up(order)
            yield Delivery(conversation, [], None)
            if held <= self.options.keys_total * 3 // 4:
                return

    def stale(self, before_ns: int, order: int) -> Iterator[Delivery]:
        """The conversations that wait still, though they ended before this time."""
        for conversation, carried in list(self._waiting.values()):
            if carried.ending is not None and conversation.last[3] <= before_ns:
                assert carried.stage is not None
                carried.stage.give_up(order)
                yield Delivery(conversation, [], None)

    def take_secrets(self, inputs: Sequence[Any], batch: PacketBatch | None, packets: int) -> None:
        """Take the keys that captures hold: each is known from the packet behind it on, as in one that is written while it is read.

        `batch`: the packets that come next, after so many others; None at the end.
        """
        for index, source in enumerate(inputs):
            secrets = getattr(source, "secrets", None)
            while secrets:
                before, text = secrets[0]
                order = END
                if batch is not None:
                    behind = np.flatnonzero((batch.file == index) & (batch.number > before))
                    if not len(behind):
                        break
                    order = packets + int(behind[0])
                self.keys.add(text, order)
                del secrets[0]

    def _held(self) -> int:
        return sum([carried.stage.held for _, carried in self._waiting.values() if carried.stage is not None])

    def _hear(self, carried: Carried, items: list[Chunk | StreamGap], syn: bool) -> None:
        """Look at the first bytes of each side: TLS, or what a server of TLS says to others?"""
        chunks = [item for item in items if isinstance(item, Chunk)]
        if len(chunks) > 1:
            chunks.sort(key=lambda one: (one.releases[0], one.side))
        for chunk in chunks:
            side = 1 << chunk.side
            if carried.heard & side:
                continue
            first = chunk.data[: chunk.starts[1]] if len(chunk.starts) > 1 else chunk.data
            if not carried.heard:
                found, middle = begins(first), self.keys.named and sealed(first)
                if found is not False or middle:
                    from dissect.tls.stage import Stage

                    carried.stage = Stage(self.options, self.keys, syn, middle)
            elif carried.stage is None and not chunk.position and alert(first):
                from dissect.tls.facts import refused

                carried.facts = refused(chunk.side, first, (chunk.orders[0], chunk.numbers[0], chunk.files[0], chunk.times[0]))
            carried.heard |= side
