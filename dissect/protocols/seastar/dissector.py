"""Seastar RPC: two negotiation frames say how all others look; requests from the client, responses from the server, or a stream.

Until the framing of both sides is known, bytes are taken segment by segment in packet order, so that what one side tells reaches the
other at the same packet however the bytes came; afterwards each side is cut in bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from struct import Struct
from typing import Any, ClassVar

from dissect.allowance import Allowance
from dissect.model import Chunk, StreamGap
from dissect.protocols.flow import NEVER, Mark
from dissect.protocols.framing import SEARCH, WAIT
from dissect.protocols.protocol import Context, Protocol
from dissect.protocols.records import Damage, Decoded, Emitted, straighten
from dissect.protocols.seastar import layouts
from dissect.protocols.seastar.behaviour import BEHAVIOUR
from dissect.protocols.seastar.frames import Packed, Plain, frames_of
from dissect.protocols.seastar.framing import plausible
from dissect.protocols.seastar.layouts import END_OF_STREAM, MAGIC
from dissect.protocols.seastar.negotiation import EXPECTED, MISSED, SEEN
from dissect.protocols.seastar.private import PRIVATE
from dissect.protocols.seastar.probe import NAME, probe
from dissect.protocols.seastar.resync import Resuming
from dissect.protocols.seastar.telling import TEXT, Teller, hint, paired, relate, says, unanswered, verb, worked
from dissect.protocols.seastar.terms import FORCED, GREETING, Framing, read_offer

_u32 = Struct("<I").unpack_from
_i64 = Struct("<q").unpack_from


class SeastarDissector(Resuming):
    """Frames whose headers depend on what both sides negotiated."""

    protocol: ClassVar[str] = NAME
    header_size: ClassVar[int] = 4
    reuse: ClassVar[str] = "supersede"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.allowance = Allowance()
        self.negative: set[int] = set()
        """What requests with a negative msg_id, which the library never sends, asked."""
        self.frames_of: list[Plain | Packed | None] = [None, None]
        """What decodes the frames of each side behind its negotiation frame."""

    # Bytes to frames

    def cut(self, items: Iterable[Chunk | StreamGap]) -> None:
        items = list(items)
        if all(self._decided(item.side) for item in items):
            super().cut(items)
            return
        emitted: list[Emitted] = []
        queue = _Segments(items)
        try:
            for item, release in queue:
                self.now = max(self.now, release)
                emitted += self._at_once((item,))
                while self.news:
                    # what one side tells may free the other
                    self.news = False
                    emitted += self._at_once(())
                if self.failure is not None:
                    break
                if self._decided(0) and self._decided(1):
                    emitted += self._at_once(queue.rest())
                    break
        finally:
            # even if an exception came
            self.ready = emitted
            if len(emitted) > 1:
                since = (self.flows[0].jumbled, self.flows[1].jumbled)
                straighten(emitted, [int(one.record.src != self.context.endpoints[0]) for one in emitted], since)
                emitted.sort(key=itemgetter(0, 1, 2, 3))

    def _at_once(self, items: Iterable[Chunk | StreamGap]) -> list[Emitted]:
        super().cut(items)
        return self.emit_before(NEVER)

    def _decided(self, side: int) -> bool:
        """Whether nothing that either side sends can change how `side` is cut."""
        one = self.sides[side]
        return one.framing is not None and one.greeting != EXPECTED

    def close(self, release: int, last: Mark) -> list[Emitted]:
        self.now = release
        return super().close(release, last)

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        one = self.sides[side]
        framing = one.framing or self._framing(side)
        if framing is None or one.greeting == EXPECTED:
            end = self._greeting_end(side, data, at)
            if end:
                return [end]
            if framing is None or (len(data) - at < len(MAGIC) and MAGIC.startswith(data[at:])):
                return []
            self._miss(side)
        if one.strict:
            return super().boundaries(side, data, at)
        ends: list[int] = []
        append = ends.append
        size, limit, header, length_at = len(data), self.options.frame_limit, framing.header, framing.length_at
        stream = framing.kind == "stream" and framing.codec is None
        previous = -1
        while size - at >= header:
            length = _u32(data, at + length_at)[0]
            length = header if stream and length == END_OF_STREAM else header + length
            if length > size - at or length > limit:
                break
            previous = at
            at += length
            append(at)
        if previous >= 0:
            self._remember(side, framing, data, previous)
        return ends

    def _greeting_end(self, side: int, data: bytes, at: int) -> int:
        """Where the negotiation frame at `at` ends, which is then known; 0 where there is none, or what it says depends on others."""
        one, flow = self.sides[side], self.flows[side]
        if one.greeting != EXPECTED or not data.startswith(MAGIC, at) or len(data) - at < GREETING:
            return 0
        end = at + GREETING + int(_u32(data, at + len(MAGIC))[0])
        if end > len(data) or end - at > self.options.frame_limit or not self._tells_client(side, data, at, end):
            return 0
        if one.held:
            flow.raise_releases(self.now)
        self._learn(side)
        one.begins = flow.base + end
        return end

    def measure(self, side: int, data: bytes, at: int) -> int:
        one = self.sides[side]
        framing = one.framing or self._framing(side)
        left = len(data) - at
        if one.greeting == EXPECTED:
            head = data[at : at + len(MAGIC)]
            if MAGIC.startswith(head):
                if left < GREETING:
                    return 0
                length = GREETING + int(_u32(data, at + len(MAGIC))[0])
                known = left < length or length > self.options.frame_limit
                return length if known or self._tells_client(side, data, at, at + length) else WAIT
            self._miss(side)
            framing = framing or self._framing(side)
        if framing is None:
            return SEARCH if self.sides[1 - side].greeting != EXPECTED or one.greeting == MISSED else WAIT
        header = framing.header
        if left < header:
            return 0
        if one.strict:
            if not plausible(framing, data, at, len(data)):
                return -1
            self._remember(side, framing, data, at)
        length = int(_u32(data, at + framing.length_at)[0])
        if length == END_OF_STREAM and framing.kind == "stream" and framing.codec is None:
            return header
        return header + length

    def _framing(self, side: int) -> Framing | None:
        """The framing of `side`, if what is known by now settles it."""
        one = self.sides[side]
        if one.greeting == EXPECTED and self.forced is None:
            return None
        if one.greeting == SEEN and self.sides[1 - side].greeting == EXPECTED:
            return None
        self._settle()
        return one.framing

    def _remember(self, side: int, framing: Framing, data: bytes, at: int) -> None:
        """Keep the msg_id of the frame at `at`, from which one goes on after a loss."""
        if framing.codec is None:
            if framing.kind == "request":
                self.sides[side].last_id = _i64(data, at + (16 if framing.extra else 8))[0]
            elif framing.kind == "response":
                self.sides[side].last_id = _i64(data, at)[0]

    def broken(self, side: int, data: bytes) -> None:
        if self.sides[side].greeting == EXPECTED and data.startswith(MAGIC) and len(data) >= GREETING:
            self.sides[side].offer = read_offer(data)
            if self.client is None and not self._learns_client(side, len(data)):
                self.client = self.first
            self._learn(side)

    def give_up(self, side: int) -> None:
        if self.sides[side].greeting == EXPECTED and self.client is None:
            # The first to speak is the client.
            self.client = side if self.first is None else self.first
        if self.client is not None:
            for one in (self.client, 1 - self.client):
                if self.sides[one].held and self.sides[one].greeting == EXPECTED:
                    self.flows[one].waiting = False
                    self._cut(one)
        if self.sides[1 - side].greeting == EXPECTED:
            self._miss(1 - side)
        self._settle()
        for flow in self.flows:
            flow.raise_releases(self.now)

    # Frames to messages

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> Decoded | tuple[Any, ...]:
        one = self.sides[side]
        if one.greets:
            one.greets = False
            self.frames_of[side] = None
            return self.greeting(side, data, start, end, damage)
        frames = self.frames_of[side]
        if frames is None:
            # a frame of no framing is never cut
            assert one.framing is not None
            frames = self.frames_of[side] = frames_of(self.options, one.framing, one.inferred, self.negative, self.allowance)
        found = frames.decode(data, start, end, damage)
        self.buffers = frames.buffers
        return found


class _Segments:
    """The segments and gaps of both sides, one by one in packet order."""

    def __init__(self, items: list[Chunk | StreamGap]) -> None:
        self.sides: tuple[list[Chunk | StreamGap], list[Chunk | StreamGap]] = ([], [])
        for item in items:
            self.sides[item.side].append(item)
        self.at = [[0, 0], [0, 0]]

    def __iter__(self) -> Iterator[tuple[Chunk | StreamGap, int]]:
        heads = [self._head(0), self._head(1)]
        while True:
            one, other = heads
            side = int(one is None or (other is not None and other < one))
            head = heads[side]
            if head is None:
                return
            yield self._take(side), head[0]
            heads[side] = self._head(side)

    def _head(self, side: int) -> tuple[int, int] | None:
        """Release and order of the next segment of `side`."""
        items = self.sides[side]
        index, segment = self.at[side]
        if index == len(items):
            return None
        item = items[index]
        if isinstance(item, StreamGap):
            return item.release, item.order
        return item.releases[segment], item.orders[segment]

    def _take(self, side: int) -> Chunk | StreamGap:
        at = self.at[side]
        item = self.sides[side][at[0]]
        if isinstance(item, Chunk):
            segment = at[1]
            if segment + 1 < len(item.starts):
                at[1] += 1
                return _part(item, segment, segment + 1)
            if segment:
                item = _part(item, segment, segment + 1)
        at[0] += 1
        at[1] = 0
        return item

    def rest(self) -> list[Chunk | StreamGap]:
        """All that was not yet taken."""
        found: list[Chunk | StreamGap] = []
        for side in (0, 1):
            index, segment = self.at[side]
            items = self.sides[side][index:]
            if segment:
                item = items[0]
                assert isinstance(item, Chunk)
                items[0] = _part(item, segment, len(item.starts))
            found += items
        return found


def _part(chunk: Chunk, first: int, last: int) -> Chunk:
    """The segments [first, last) of a chunk."""
    start = chunk.starts[first]
    end = chunk.starts[last] if last < len(chunk.starts) else len(chunk.data)
    position = chunk.position + start
    orders = chunk.orders[first:last]
    return Chunk(
        chunk.side,
        position,
        chunk.data[start:end],
        [one - start for one in chunk.starts[first:last]],
        orders,
        orders if chunk.releases is chunk.orders else chunk.releases[first:last],
        chunk.numbers[first:last],
        chunk.files[first:last],
        chunk.times[first:last],
        tuple(note for note in chunk.notes if position <= note[0] < position + end - start),
    )


PROTOCOLS = (
    Protocol(
        NAME,
        "Seastar RPC",
        (7000,),
        SeastarDissector,
        probe,
        says,
        layouts.LAYOUTS,
        text=TEXT,
        added=layouts.ADDED,
        labelled=lambda options: {"verb": (options.verbs or {}).values()},
        paired=paired,
        unanswered=unanswered,
        relate=relate,
        hint=hint,
        forced=tuple(FORCED),
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        teller=Teller,
        alarms={"Exception": lambda message: True},
        verb=verb,
        worked=worked,
    ),
)
