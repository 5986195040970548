"""Byte streams become frames: cutting, gaps, finding the way back.

Frames are cut per side in bulk. Nothing here depends on how the byte streams came in pieces: only positions, and the segment starts
that chunks carry, are looked at.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dissect.errors import bug
from dissect.model import Chunk, Options, StreamGap
from dissect.protocols.effort import STEP
from dissect.protocols.flow import Flow, Mark, Partial, Range
from dissect.protocols.protocol import Context
from dissect.protocols.records import UNKNOWN, Broken, Cut, Damage, Decoded, is_broken, make_cut, range_of

_MISSING = {
    "lost": "lost",
    "cut": "cut by the snap length",
    "both": "lost or cut by the snap length",
    "skipped": "skipped",
}
"""How a damaged frame says why bytes of it are missing."""

WAIT = -2
"""`measure`: how long this frame is depends on bytes of the other side that are not there yet."""

SEARCH = -3
"""`measure`: a frame may begin here or later, only `resync` can tell where."""

OVERSIZE_KEPT = 65_536
"""Bytes kept of a frame longer than `Options.frame_limit`."""

SEARCH_WINDOW = 1 << 20
"""Bytes of one side looked at for the next frame before the oldest of them are given up."""


class Hooks:
    """What a protocol fills in."""

    protocol: ClassVar[str]
    header_size: ClassVar[int]
    aligned: ClassVar[bool] = False
    """Whether `frames` can be called."""
    flows: tuple[Flow, Flow]
    options: Options

    def measure(self, side: int, data: bytes, at: int) -> int:
        """The whole length of the frame that begins at `at`; 0: not enough bytes to know; -1: none can begin here; or WAIT or SEARCH.

        Called with at least `header_size` bytes there.
        """
        raise NotImplementedError

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        """The ends of the whole frames that follow each other from `at`; stops at the first that is not whole or not plain.

        Overridden where the loop over `measure` is too slow.
        """
        ends: list[int] = []
        size = len(data)
        header_size, measure, limit = self.header_size, self.measure, self.options.frame_limit
        while size - at >= header_size:
            length = measure(side, data, at)
            if length <= 0 or length > limit or at + length > size:
                break
            at += length
            ends.append(at)
        return ends

    @classmethod
    def frames(
        cls, buffer: bytes, offset: NDArray[np.int64], end: NDArray[np.int64], limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The frames that follow each other in buffer[offset:end], for many of such pieces: the index of the piece, start and end of each,
        first those that come first in their piece; and of which pieces these are all the bytes, and all found by `boundaries` too.

        For protocols that can tell by column; they set `aligned`.
        """
        raise NotImplementedError

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        """Look for a frame in data[at:end], where `end` is the end of a segment: (True, p) frames certainly begin at p; (False, p)
        none begins before p.

        `final`: no byte will follow directly (a gap of `flows[side].missing` bytes, or the end).
        """
        raise NotImplementedError

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> Decoded | tuple[Any, ...]:
        """The meaning of the frame data[start:end]; with `damage`, of what there is of it before the first missing byte."""
        raise NotImplementedError

    def lost(self, side: int) -> None:
        """Told, in packet order, when frames of `side` may have been missed: state that counts them is unsure from here on."""

    def broken(self, side: int, data: bytes) -> None:
        """Told, when bytes are cut, that the frame which begins with `data` will not be whole."""

    def give_up(self, side: int) -> None:
        """Told when `measure` waits for the other side and it will not come: from now on it must not answer WAIT."""

    def settle(self, side: int, position: int) -> None:
        """What WAIT waited for became known with the byte before `position` of `side`: nothing is certain before that packet."""
        flow = self.flows[side]
        release = flow.releases[flow.segment(position - 1)]
        for one in self.flows:
            one.raise_releases(release)


class Framing(Hooks):
    """Cuts the two byte streams of one conversation into frames and gaps."""

    context: Context
    _cuts: list[Cut]
    _emitted: int
    _empty_gaps: bool
    unsent: list[Range]
    over: int

    def rank(self, side: int) -> int:
        return side ^ (self.context.client or 0)

    def _drain(self) -> None:
        """Cut both sides until neither gets further: what one side tells may free the other."""
        progress = True
        while progress:
            progress = False
            for side in (0, 1):
                flow = self.flows[side]
                if flow.queue or flow.waiting:
                    before = flow.position
                    self._absorb(side)
                    progress = progress or flow.position != before
            if progress and not (self.flows[0].waiting or self.flows[1].waiting):
                break

    def _absorb(self, side: int) -> None:
        flow = self.flows[side]
        if flow.waiting:
            flow.waiting = False
            try:
                self._cut(side)
            except Exception as error:
                self._cut_again(side, bug(error))
        queue = flow.queue
        index = 0
        while index < len(queue) and not flow.broken:
            if flow.waiting:
                if flow.have + flow.queued <= self.options.undecided_limit:
                    break
                try:
                    self._give_up(side, flow.releases[-1])
                except Exception as error:
                    self._cut_again(side, bug(error))
                continue
            item = queue[index]
            index += 1
            if isinstance(item, StreamGap):
                try:
                    self._gap(side, item)
                except Exception as error:
                    self._break(side, bug(error), item.release, (item.order, item.number, item.file, item.time_ns))
            else:
                flow.queued -= len(item.data)
                try:
                    self._chunk(side, item)
                except Exception as error:
                    last = (item.orders[0], item.releases[0], item.numbers[0], item.files[0], item.times[0])
                    self._cut_again(side, bug(error), last)
        if flow.broken:
            queue.clear()
            return
        del queue[:index]
        flow.trim()
        flow.forget()

    def _give_up(self, side: int, release: int) -> None:
        self.give_up(side)
        flow = self.flows[side]
        flow.raise_releases(release)
        flow.waiting = False
        self._cut(side)

    def _chunk(self, side: int, chunk: Chunk) -> None:
        self.flows[side].add(chunk)
        self._bytes(side, chunk.data)

    def _bytes(self, side: int, data: bytes) -> None:
        """Take these bytes in, whose segments are known."""
        flow = self.flows[side]
        partial = flow.partial
        if partial is not None:
            data = self._pass_by(side, partial, data)
            if not data:
                return
        if flow.have:
            flow.pieces.append(data)
            flow.have += len(data)
            if flow.have < flow.need:
                return
        else:
            flow.take(data)
        self._cut(side)

    def _cut_again(self, side: int, what: str, last: tuple[int, ...] = ()) -> None:
        """An exception came where the bytes of many segments were cut at once: take them one by one, up to the frame that raises it.

        Where none does, it is the bytes at hand. `last`: order, release, number, file and time of a segment, in case none is known.
        """
        flow = self.flows[side]
        columns = (flow.starts, flow.orders, flow.releases, flow.numbers, flow.files, flow.times)
        rows = list(zip(*columns, strict=False))
        row = rows[-1] if rows else (0, *last)
        try:
            data = self._left(side)
            at = flow.position
            if flow.partial is None and (flow.searching or at == flow.told):
                rows = rows[flow.segment(at) :]
                self._restart(flow, b"")
                for column in columns:
                    del column[-len(rows) :]
                for index, row in enumerate(rows):
                    for column, value in zip(columns, row, strict=True):
                        column.append(max(value, flow.floor) if column is flow.releases else value)
                    end = rows[index + 1][0] - at if index + 1 < len(rows) else len(data)
                    self._bytes_again(side, data[max(0, row[0] - at) : end], row[0])
        except Exception as error:
            what = bug(error)
        # Of the segment that raised it
        _, order, release, number, file, time_ns = row
        self._break(side, what, max(release, flow.floor), (order, number, file, time_ns))

    def _bytes_again(self, side: int, piece: bytes, start: int) -> None:
        """Take in the bytes of one segment, which begins at `start`; where that raises an exception, byte by byte."""
        flow = self.flows[side]
        if flow.waiting:
            flow.pieces.append(piece)
            flow.have += len(piece)
            return
        try:
            self._bytes(side, piece)
        except Exception:
            data = self._left(side)
            if flow.partial is None and flow.position == flow.told:
                before = max(0, start - flow.position)
                self._restart(flow, data[:before])
                for at in range(before, len(data)):
                    self._bytes(side, data[at : at + 1])
                    if flow.searching or flow.waiting or flow.partial is not None:
                        break
            raise

    def _left(self, side: int) -> bytes:
        """The bytes at hand that are not cut, when an exception came as they were."""
        self._uncut()
        flow = self.flows[side]
        flow.effort.again()
        if flow.position < flow.told:
            flow.consume(flow.told - flow.position)
        return flow.rest()

    def _uncut(self) -> None:
        """Forget frames that were about to be handed on when an exception came."""
        told = [flow.told for flow in self.flows]
        begun = self._cuts[self._emitted :]
        self._cuts[self._emitted :] = [cut for cut in begun if cut.position < told[cut.side] or range_of(cut) is None or is_broken(cut)]

    def _restart(self, flow: Flow, data: bytes) -> None:
        """Let these be the bytes at hand."""
        flow.pieces.clear()
        flow.take(data)
        flow.need = 0

    def _break(self, side: int, what: str, release: int, mark: Mark) -> None:
        """Cut no more of this side: what was cut counts, and then comes the exception."""
        self._uncut()
        flow = self.flows[side]
        flow.broken = True
        flow.waiting = False
        self._put_broken(side, what, release, mark)

    def _put_broken(self, side: int, what: str, release: int, mark: Mark) -> None:
        self._put_gap(side, self.flows[side].told, 0, Broken(what), False, release, mark)

    def _pass_by(self, side: int, partial: Partial, data: bytes) -> bytes:
        """Let bytes go by that belong to a frame which is not kept whole; returns those behind it."""
        flow = self.flows[side]
        mine = data[: partial.position + partial.length - flow.position]
        if len(partial.prefix) < partial.want:
            partial.prefix += mine[: partial.want - len(partial.prefix)]
        first, last = flow.marks(flow.position, flow.position + len(mine))
        partial.first, partial.last = min(partial.first, first), max(partial.last, last)
        flow.position += len(mine)
        if flow.position == partial.position + partial.length:
            self._put_partial(side, flow.releases[flow.segment(flow.position - 1)], partial.length)
        return data[len(mine) :]

    def _put_partial(self, side: int, release: int, size: int) -> None:
        """Hand on the frame that went by, of which `size` bytes are in the byte stream."""
        flow = self.flows[side]
        partial = flow.partial
        assert partial is not None
        order, number, file, time_ns = partial.last
        reason = f"{partial.lost} bytes {_MISSING[partial.why]}" if partial.lost else partial.reason
        if size < partial.length:
            missing = f"{size} of {partial.length} bytes {'sent' if self.over >> side & 1 else 'captured'}"
            reason = f"{reason}, {missing}" if partial.lost else missing
        self._cuts.append(
            make_cut(
                (
                    max(release, order),
                    order,
                    self.rank(side),
                    partial.position,
                    side,
                    partial.first[1] if partial.first[2] == file else None,
                    number,
                    file,
                    partial.first[3],
                    time_ns,
                    partial.prefix,
                    0,
                    len(partial.prefix),
                    Damage(size, reason),
                    self,
                    partial.first[0],
                )
            )
        )
        flow.told = partial.position + size
        flow.partial = None

    def _put_gap(self, side: int, position: int, size: int, reason: str | Broken, in_frame: bool, release: int, mark: Mark) -> None:
        order, number, file, time_ns = mark
        rank = self.rank(side)
        self._cuts.append(
            make_cut(
                (release, order, rank, position, side, None, number, file, time_ns, time_ns, None, size, 0, (reason, in_frame), self, order)
            )
        )
        if not in_frame:
            self.flows[side].told = position + max(size, 0)

    def _end_skip(self, side: int, release: int, mark: Mark) -> None:
        """Bytes passed over without finding a frame, up to here, are one gap."""
        flow = self.flows[side]
        if flow.skip_from is not None and flow.skip_from < flow.position:
            self._put_gap(side, flow.skip_from, flow.position - flow.skip_from, "skipped", False, release, mark)
        flow.skip_from = None

    def _gap(self, side: int, gap: StreamGap) -> None:
        flow = self.flows[side]
        if flow.waiting:
            self._give_up(side, gap.release)
        gap.release = max(gap.release, flow.floor)
        mark = (gap.order, gap.number, gap.file, gap.time_ns)
        if gap.size is None:
            self._unknown_gap(side, gap, mark)
            return
        size = gap.size
        flow.missing = size
        self._stop(side, gap.release, mark, f"{size} bytes {_MISSING[gap.reason]}")
        flow.missing = 0
        partial = flow.partial
        position = gap.position
        if partial is not None:
            inside = min(size, partial.position + partial.length - position)
            partial.why = gap.reason if not partial.lost or partial.why == gap.reason else "both"
            partial.lost += inside
            partial.want = min(partial.want, len(partial.prefix))
            self._put_gap(side, position, inside, gap.reason, True, gap.release, mark)
            position += inside
            size -= inside
            flow.position = position
            if position == partial.position + partial.length:
                self._put_partial(side, gap.release, partial.length)
        if size:
            self._put_gap(side, position, size, gap.reason, False, gap.release, mark)
            flow.position = flow.base = position + size
            flow.searching = True
            flow.scan = flow.position

    def _unknown_gap(self, side: int, gap: StreamGap, mark: Mark) -> None:
        """A gap of which nobody knows how many bytes it has: what was begun ends here, and frames are looked for behind it."""
        flow = self.flows[side]
        self._stop(side, gap.release, mark, f"bytes {_MISSING[gap.reason]}")
        if flow.partial is not None:
            self._put_partial(side, gap.release, gap.position - flow.partial.position)
        self._put_gap(side, gap.position, UNKNOWN, gap.reason, False, gap.release, mark)
        self._empty_gaps = True
        flow.position = flow.scan = gap.position
        flow.searching = True

    def _stop(self, side: int, release: int, mark: Mark, reason: str) -> None:
        """The bytes at hand are not continued: an unfinished frame becomes `flow.partial` or, without a whole header, skipped bytes."""
        flow = self.flows[side]
        if flow.partial is not None:
            return
        if flow.searching:
            self._search(side, True, release)
            if not flow.searching:
                self._cut(side)
            if flow.partial is not None:
                return
        data = flow.rest()
        if not flow.searching and len(data) >= self.header_size:
            length = self.measure(side, data, 0)
            if length > 0:
                self.broken(side, data)
                first, last = flow.marks(flow.position, flow.position + len(data))
                flow.partial = Partial(flow.position, length, data, len(data), reason, first, last)
                flow.position += len(data)
                flow.drop()
                return
        if data:
            if flow.skip_from is None:
                flow.skip_from = flow.position
            flow.position += len(data)
            flow.drop()
        self._end_skip(side, release, mark)

    def _finish(self, side: int, release: int, mark: Mark) -> None:
        """No byte of this side will follow."""
        flow = self.flows[side]
        if not flow.starts or flow.broken:
            return
        self._stop(side, release, mark, "0 bytes captured")
        if flow.partial is not None:
            self._put_partial(side, release, flow.position - flow.partial.position)

    def _search(self, side: int, final: bool, release: int) -> None:
        """Look for the next frame at the end of each segment in turn, so that it does not matter how many came at once.

        Where looking costs more than bytes pay, not at the end of every segment.
        """
        flow = self.flows[side]
        effort, starts = flow.effort, flow.starts
        stop = flow.position + flow.have
        place = max(flow.position, flow.scan)
        tried = flow.tried
        count = len(starts)
        for index in range(flow.segment(max(flow.position, tried)), count):
            end = min(starts[index + 1], stop) if index + 1 < count else stop
            last = final and end == stop
            if end <= tried and not last:
                continue
            if end > effort.seen:
                effort.pay(end - max(effort.seen, starts[index]))
                effort.seen = end
            if effort.left <= 0 and not last:
                flow.tried = end
                continue
            data, base = flow.join(), flow.base
            effort.begin(end - place, index + 1 - flow.segment(place))
            found, at = self.resync(side, data, place - base, end - base, last)
            flow.tried = end
            effort.spend(STEP + (end - place >> 6))
            place = base + at
            if found:
                floor = max(flow.releases[index], release if last else 0)
                flow.raise_releases(floor)
                if place > flow.position and flow.skip_from is None:
                    flow.skip_from = flow.position
                flow.searching = False
                flow.consume(place - flow.position)
                self._end_skip(side, floor, flow.mark(flow.segment(flow.position)))
                return
            if last:
                place = end
            elif end - place > SEARCH_WINDOW:
                place = end - SEARCH_WINDOW
        if place > flow.position:
            if flow.skip_from is None:
                flow.skip_from = flow.position
            flow.consume(place - flow.position)
        flow.scan = flow.position

    def _cut(self, side: int) -> None:
        """Cut whole frames off the bytes at hand."""
        flow = self.flows[side]
        while True:
            if flow.searching:
                self._search(side, False, 0)
                if flow.searching:
                    flow.need = 0
                    return
            data = flow.join()
            at = flow.position - flow.base
            ends = self.boundaries(side, data, at)
            if ends:
                self._put_frames(side, flow, data, ends, at)
                flow.consume(ends[-1] - at)
                at = ends[-1]
            left = flow.have
            if left < self.header_size:
                flow.need = self.header_size
                return
            length = self.measure(side, data, at)
            if length == WAIT:
                flow.waiting = True
                flow.need = 0
                return
            if length < 0:
                # This is no frame: what follows is passed over until frames certainly begin again.
                flow.searching = True
                flow.scan = flow.position + (length != SEARCH)
                flow.tried = flow.position
                flow.skip_from = flow.position
                continue
            if length > self.options.frame_limit:
                rest = flow.rest()
                self.broken(side, rest)
                first, last = flow.marks(flow.position, flow.position + 1)
                reason = f"frame of {length} bytes is over the limit of {self.options.frame_limit} bytes"
                flow.partial = Partial(flow.position, length, b"", OVERSIZE_KEPT, reason, first, last)
                flow.drop()
                flow.take(self._pass_by(side, flow.partial, rest))
                if flow.have:
                    continue
                return
            if length and length <= left:
                # `boundaries` stopped before a whole frame that is not plain
                self._put_frames(side, flow, data, [at + length], at)
                flow.consume(length)
                continue
            flow.need = length or left + 1
            return

    def _put_frames(self, side: int, flow: Flow, data: bytes, ends: list[int], at: int) -> None:
        """Attribute the frames data[at:ends[0]], data[ends[0]:ends[1]], ... to the packets that brought them."""
        # Long, as it is done for each frame, and a call costs as much as what it would hold
        starts, orders, releases = flow.starts, flow.orders, flow.releases
        numbers, files, times = flow.numbers, flow.files, flow.times
        rank = self.rank(side)
        base = flow.base
        append = self._cuts.append
        last = len(starts) - 1
        index = flow.segment(base + at)
        for end in ends:
            position = base + at
            while index < last and starts[index + 1] <= position:
                index += 1
            first = index
            final = base + end
            while index < last and starts[index + 1] < final:
                index += 1
            if index == first:
                number = numbers[index]
                time_ns = times[index]
                append(
                    make_cut(
                        (
                            releases[index],
                            orders[index],
                            rank,
                            position,
                            side,
                            number,
                            number,
                            files[index],
                            time_ns,
                            time_ns,
                            data,
                            at,
                            end,
                            None,
                            self,
                            orders[index],
                        )
                    )
                )
            else:
                run = orders[first : index + 1]
                newest = first + run.index(max(run))
                oldest = first + run.index(min(run))
                file = files[newest]
                append(
                    make_cut(
                        (
                            releases[index],
                            orders[newest],
                            rank,
                            position,
                            side,
                            numbers[oldest] if files[oldest] == file else None,
                            numbers[newest],
                            file,
                            times[oldest],
                            times[newest],
                            data,
                            at,
                            end,
                            None,
                            self,
                            orders[oldest],
                        )
                    )
                )
            at = end
        flow.told = base + at
