"""Turns byte streams into frames and records: splitting, gaps and resynchronisation, the same for every protocol.

A parser knows bytes and positions, and of packets only which of them brought a byte. The result does not depend on the pieces in which
the byte streams arrive, only on positions and the starts of segments. It does no input or output:

    parser = Parser(protocol, Options())
    for record in parser.feed(0, 0, request): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..model import END, Close, Fault, Gap, Limited, Mark, Message, Options, SideData, StreamGap, Unreadable, Verdict
from .buffer import PartialFrame, Range, ReceiveBuffer
from .dissector import SEARCH, SEARCH_WINDOW, WAIT
from .protocol import Context, Protocol, Tally
from .records import (
    GAP,
    HANDED_ON,
    ORDER_KEY,
    SENDERS,
    Damage,
    Event,
    Frame,
    FrameGap,
    count_fault,
    count_gap,
    in_order,
    rfc3339,
    straighten,
)
from .work_budget import STEP

if TYPE_CHECKING:
    from .dissector import Dissector

_MISSING = {
    "lost": "lost",
    "cut": "cut by the snap length",
    "both": "lost or cut by the snap length",
    "skipped": "skipped",
}
"""Why bytes of a damaged frame are missing, by the reason of the gap."""

UNKNOWN_LAYOUT = "not readable with the layouts known here"
"""Why bytes do not fit where a side states a newer version of the protocol."""

MAX_OVERSIZE_PREFIX = 65_536
"""Bytes kept of a frame longer than `Options.frame_limit`."""


class Parser:
    """Splits the two byte streams of one conversation into frames and gaps, and makes records of them."""

    __slots__ = (
        "buffers",
        "closes",
        "closing",
        "context",
        "current",
        "decoded",
        "dissector",
        "ended_sides",
        "ends",
        "frames",
        "held",
        "last",
        "latest_ns",
        "limit_hits",
        "made",
        "options",
        "protocol",
        "quiet",
        "reorders",
        "tallies",
    )
    DERIVED = ("ends", "frames", "made", "decoded", "protocol", "closes", "reorders")

    def __init__(self, protocol: Protocol, options: Options, context: Context | None = None, tallies: tuple[Tally, ...] = ()) -> None:
        """`tallies` count records, gaps and faults."""
        if context is None:
            context = Context(0, ("client", "server"), (0, 0), 0, True, Verdict(protocol.name, 1.0, ()), options)
        self.context = context
        self.options = options
        self.buffers = (ReceiveBuffer(not context.from_start), ReceiveBuffer(not context.from_start))
        loaded = protocol.loaded
        self.dissector: Dissector = loaded.dissectors.get(context.verdict.layout or "", loaded.dissector)(context, self)
        self.quiet = context.from_start and not self.dissector.in_packet_order
        """Whether the next bytes of either side begin a frame, and nothing is buffered."""
        self.prepare()
        self.held: Sequence[Range] = ()
        """Frames of earlier packets of which no record was made yet."""
        self.tallies = tallies
        self.latest_ns: int | None = None
        """Time of the last message completed before either side sent FIN or RST."""
        self.closing: Close | None = None
        """The message that announced the end, and the side that sent it first; if only its response was captured, the other side than
        that of the response."""
        self.limit_hits = 0
        """Messages that a limit cut short."""
        self.current = 0
        """The order of the current packet."""
        self.last = END
        """Messages completed after this packet do not count for `latest_ns`."""
        self.ended_sides = 0
        """Bit mask of the sides that sent FIN; set when the conversation ends."""

    def prepare(self) -> None:
        (one, two), client, index = self.context.endpoints, self.context.client or 0, self.context.conversation
        self.ends = ((index, one, two, client), (index, two, one, 1 - client))
        """By side: conversation, sender, receiver, and rank (client first), which its records share."""
        # Python 3.11 reads an attribute of an object's class slowly
        self.protocol, self.closes, self.reorders = self.dissector.protocol, self.dissector.closing, self.dissector.reorders
        self.frames: list[Frame | FrameGap] = []
        """Frames and gaps of the current packet."""
        self.decoded = 0
        """The number of these that were passed to the dissector."""
        self.made = HANDED_ON
        """Events of the current packet."""

    def feed(self, side: int, position: int, data: bytes, mark: Mark = (0, 1, 0, 0)) -> list[Message | Gap]:
        """Return the records that these bytes complete; `position` counts from the start of the byte stream of side 0 or 1."""
        return [one.record for one in self.process([SideData(side, position, data, mark)])]

    def process(self, items: list[SideData | StreamGap], current: int = 0) -> list[Event]:
        """Return the events that these bytes and gaps complete with the packet `current`, in order."""
        self.current = current
        made = self.made = []
        dissector = self.dissector
        if self.frames:
            self.frames, self.decoded = [], 0
        if self.quiet and len(items) == 1 and type(item := items[0]) is SideData:
            side, position, data, mark = item.side, item.position, item.data, item.mark
            ends = dissector.split_frames(side, data, 0)
            if ends and ends[-1] == len(data):
                # Most segments are complete frames and nothing else: bypass the buffer
                buffer = self.buffers[side]
                buffer.starts, buffer.marks = [position], [mark]
                if item.notes:
                    buffer.note(item.notes)
                if self.reorders:
                    order, number, file, time_ns = mark
                    at = 0
                    for end in ends:
                        frame = Frame(side, position + at, data, at, end, None, order, order, number, number, file, time_ns, time_ns)
                        dissector.decode_in_order(frame)
                        at = end
                else:
                    self.add_records(side, position, data, ends, mark)
                buffer.position = buffer.base = buffer.split_to = position + len(data)
                if not dissector.unblocks_peer:
                    return made
                items = []
        if len(items) < 2 or not dissector.in_packet_order:
            self._process(items)
        else:
            for item in in_order(items):
                self._process([item])
            straighten(made, [one.rank for one in made])
        if len(made) > 1 and not self.reorders:
            made.sort(key=ORDER_KEY)
        return made

    def close(self, last: Mark, current: int) -> list[Event]:
        """Return the last events, as no byte follows. `last`: the conversation's last packet; `current`: the one that shows the end."""
        self.current = current
        if self.made is HANDED_ON:
            self.made, self.frames, self.decoded = [], [], 0
        before = len(self.made)
        for side, buffer in enumerate(self.buffers):
            if buffer.waiting:
                self.dissector.on_wait_timeout(side)
                self.resume(side)
        one, two = self.buffers
        if one.queue or two.queue or one.waiting or two.waiting:
            self._drain()
        for side, buffer in enumerate(self.buffers):
            if buffer.starts and (buffer.have or buffer.partial is not None or buffer.skip_from is not None):
                self._finish(side, last)
        self._make()
        self.dissector.close()
        made = self.made[before:]
        if len(made) > 1 and not self.reorders:
            made.sort(key=ORDER_KEY)
        return made

    def resume(self, side: int) -> None:
        """Split the bytes of a side that waited."""
        buffer = self.buffers[side]
        buffer.waiting = False
        if buffer.have:
            self._split(side, buffer)

    def hand_on(self) -> None:
        """Count the events of the current packet, which are released now."""
        count, self.made = len(self.made), HANDED_ON
        if count:
            for tally in self.tallies:
                tally.records += count
        if self.reorders:
            self.held = self.dissector.held_frames()

    # Records

    def _process(self, items: Sequence[SideData | StreamGap]) -> None:
        one, two = self.buffers
        waited, before = one.waiting or two.waiting or one.queue or two.queue, one.position + two.position
        for item in items:
            side, buffer = (1, two) if item.side else (0, one)
            if waited or buffer.waiting:
                buffer.queue.append(item)
                if type(item) is SideData:
                    buffer.queued += len(item.data)
            else:
                self._read(side, buffer, item)
                buffer.trim()
        if waited or one.queue or two.queue or ((one.waiting or two.waiting) and one.position + two.position != before):
            self._drain()
        self._make()
        dissector = self.dissector
        while dissector.unblocks_peer:
            # A message of one side may unblock the other
            dissector.unblocks_peer = False
            self._drain()
            self._make()
        self.quiet = two.is_at_rest() and one.is_at_rest() and not dissector.in_packet_order

    def _make(self) -> None:
        """Pass the new frames to the dissector, in the packet order of both sides."""
        frames, begin = self.frames, self.decoded
        if begin == len(frames):
            return
        self.decoded = len(frames)
        if self.decoded - begin > 1:
            frames = frames[begin:]
            straighten(frames, [frame.side for frame in frames])
            frames.sort(key=lambda frame: (frame.order, self.ends[frame.side][3], frame.position))
            begin = 0
        for frame in frames[begin:]:
            self.dissector.decode_in_order(frame)

    def add_record(self, frame: Frame | FrameGap) -> None:
        """Add the record of a frame or gap."""
        if isinstance(frame, Frame):
            mark = frame.order, frame.number, frame.file, frame.time_ns
            self.add_records(frame.side, frame.position - frame.start, frame.data, (frame.end,), mark, frame)
            return
        side, position, order, time_ns = frame.side, frame.position, frame.order, frame.time_ns
        dissector = self.dissector
        conversation, source, target, rank = self.ends[side]
        time = rfc3339(time_ns) if self.options.times else ""
        head = (1, 0, time, time_ns, conversation, source, target, SENDERS[dissector.client][side], self.protocol)
        gap = Gap(*head, position, frame.size, frame.reason, frame.in_frame)
        if not frame.in_frame:
            dissector.on_gap(side, order)
        for tally in self.tallies:
            count_gap(tally, gap)
        self.made.append(Event(order, rank, position, gap, GAP, None, time_ns, packet=(frame.file, frame.number)))

    def add_records(self, side: int, base: int, data: bytes, ends: Iterable[int], mark: Mark, frame: Frame | None = None) -> None:
        """Add the records of consecutive frames in `data`, at position `base`, up to each of `ends`, completed by the packet `mark`.
        `frame`: the only one, if it does not begin `data`, has bytes of other packets, or is damaged."""
        order, number, file, time_ns = mark
        conversation, source, target, rank = self.ends[side]
        dissector, buffer, made, protocol = self.dissector, self.buffers[side], self.made, self.protocol
        dissector.completed = order
        time = rfc3339(time_ns) if self.options.times else ""
        damage = None if frame is None else frame.damage
        at, first, first_time = (0, number, time_ns) if frame is None else (frame.start, frame.first, frame.first_time)
        packets = first, number
        for end in ends:
            position, size = base + at, end - at
            found = dissector.decode_fast(side, data, at, end) if damage is None else None
            if found is None:
                one = frame or Frame(side, position, data, at, end, None, order, order, number, number, file, time_ns, time_ns)
                found, size = dissector.decode(one), one.size
            name, kind, ident, fields, outcome, notes, fault, role, key, spans, stream = found
            if fault is not None and damage is None:
                fault = _without_blame(fault, dissector, dissector.newer_peer(side, name))
            if buffer.notes:
                notes = _segment_notes(buffer, position, size, notes)
            message = Message(
                1,
                0,
                time,
                time_ns,
                conversation,
                source,
                target,
                SENDERS[dissector.client][side],
                protocol,
                name,
                kind,
                ident,
                stream,
                file,
                packets,
                position,
                size,
                fields,
                None,
                outcome,
                None,
                notes,
                fault,
            )
            if spans is not None:
                message.raw = {"frame": data[at:end], **dissector.details}
                message.spans = spans
                dissector.details = {}
            elif dissector.details:
                message.raw, dissector.details = dissector.details, {}
            if name == self.closes and self.closing is None:
                self.closing = name, 1 - side if kind == "response" else side, order
            if fault is not None:
                self.limit_hits += type(fault) is Limited
                for tally in self.tallies:
                    count_fault(tally, fault)
            made.append(Event(order, rank, position, message, role, key, first_time, damage is None or damage.end_captured))
            at = end
        if order <= self.last and (self.latest_ns is None or time_ns > self.latest_ns):
            self.latest_ns = time_ns

    # Frames

    def _drain(self) -> None:
        """Split both sides until neither makes progress: one side may unblock the other."""
        buffers = self.buffers
        progress = True
        while progress:
            progress = False
            for side, buffer in enumerate(buffers):
                if buffer.queue or buffer.waiting:
                    before = buffer.position
                    self._split_queued(side, buffer)
                    progress = progress or buffer.position != before
            if progress and not (buffers[0].waiting or buffers[1].waiting):
                break

    def _split_queued(self, side: int, buffer: ReceiveBuffer) -> None:
        if buffer.waiting:
            buffer.waiting = False
            self._split(side, buffer)
        queue = buffer.queue
        index = 0
        while index < len(queue):
            if buffer.waiting:
                if buffer.have + buffer.queued <= self.options.undecided_limit:
                    break
                self.dissector.on_wait_timeout(side)
                self.resume(side)
                continue
            item = queue[index]
            index += 1
            if type(item) is SideData:
                buffer.queued -= len(item.data)
            self._read(side, buffer, item)
        del queue[:index]
        buffer.trim()

    def _read(self, side: int, buffer: ReceiveBuffer, item: SideData | StreamGap) -> None:
        """Add the bytes of a segment and split them; or handle a gap."""
        if isinstance(item, StreamGap):
            self._gap(side, item)
            return
        buffer.add(item)
        data = item.data
        if buffer.partial is not None:
            data = self._skip_partial(side, buffer, buffer.partial, data)
            if not data:
                return
        if buffer.have:
            buffer.pieces.append(data)
            buffer.have += len(data)
            if buffer.have < buffer.need:
                return
        else:
            buffer.begin(data)
        self._split(side, buffer)

    def _skip_partial(self, side: int, buffer: ReceiveBuffer, partial: PartialFrame, data: bytes) -> bytes:
        """Skip bytes of a frame that is not kept completely; return those behind it."""
        mine = data[: partial.position + partial.length - buffer.position]
        if len(partial.prefix) < partial.prefix_limit:
            partial.prefix += mine[: partial.prefix_limit - len(partial.prefix)]
        first, last = buffer.span(buffer.position, buffer.position + len(mine))
        partial.first, partial.last = min(partial.first, first), max(partial.last, last)
        buffer.position += len(mine)
        if buffer.position == partial.position + partial.length:
            self._put_partial(side, partial.length, True)
        return data[len(mine) :]

    def _put_partial(self, side: int, size: int, end_captured: bool) -> None:
        """Add the partial frame, of which `size` bytes are in the byte stream."""
        buffer = self.buffers[side]
        partial = buffer.partial
        assert partial is not None
        order, number, file, time_ns = partial.last
        began, first, first_file, first_time = partial.first
        reason = f"{partial.lost} bytes {_MISSING[partial.why]}" if partial.lost else partial.reason
        if size < partial.length:
            missing = f"{size} of {partial.length} bytes {'sent' if self.ended_sides >> side & 1 else 'captured'}"
            reason = f"{reason}, {missing}" if partial.lost else missing
        damage = Damage(size, reason, end_captured)
        number_first = first if first_file == file else None
        prefix = partial.prefix
        place = (order, began, number_first, number, file, first_time, time_ns)
        self.frames.append(Frame(side, partial.position, prefix, 0, len(prefix), damage, *place))
        buffer.split_to = partial.position + size
        buffer.partial = None

    def _put_gap(self, side: int, position: int, size: int | None, reason: Any, in_frame: bool, mark: Mark) -> None:
        self.frames.append(FrameGap(side, position, size, reason, in_frame, *mark))
        if not in_frame:
            self.buffers[side].split_to = position + (size or 0)

    def _end_skip(self, side: int, mark: Mark) -> None:
        """Add the skipped bytes up to here as one gap."""
        buffer = self.buffers[side]
        if buffer.skip_from is not None and buffer.skip_from < buffer.position:
            self._put_gap(side, buffer.skip_from, buffer.position - buffer.skip_from, "skipped", False, mark)
        buffer.skip_from = None

    def _gap(self, side: int, gap: StreamGap) -> None:
        buffer = self.buffers[side]
        if buffer.waiting:
            self.dissector.on_wait_timeout(side)
            self.resume(side)
        mark = gap.mark
        if gap.size is None:
            self._unknown_gap(side, gap, mark)
            return
        size = gap.size
        buffer.missing = size
        self._stop(side, mark, f"{size} bytes {_MISSING[gap.reason]}")
        buffer.missing = 0
        partial = buffer.partial
        position = gap.position
        if partial is not None:
            inside = min(size, partial.position + partial.length - position)
            partial.why = gap.reason if not partial.lost or partial.why == gap.reason else "both"
            partial.lost += inside
            partial.prefix_limit = min(partial.prefix_limit, len(partial.prefix))
            self._put_gap(side, position, inside, gap.reason, True, mark)
            position += inside
            size -= inside
            buffer.position = position
            if position == partial.position + partial.length:
                # The packet with the bytes before the gap was cut by the snap length
                self._put_partial(side, partial.length, gap.reason == "cut" and mark == buffer.marks[-1])
        if size:
            self._put_gap(side, position, size, gap.reason, False, mark)
            buffer.position = buffer.base = position + size
            buffer.searching = True
            buffer.scan = buffer.position

    def _unknown_gap(self, side: int, gap: StreamGap, mark: Mark) -> None:
        """Handle a gap of unknown size: a partial frame ends here, and frames are searched behind it."""
        buffer = self.buffers[side]
        self._stop(side, mark, f"bytes {_MISSING[gap.reason]}")
        if buffer.partial is not None:
            self._put_partial(side, gap.position - buffer.partial.position, False)
        self._put_gap(side, gap.position, None, gap.reason, False, mark)
        buffer.position = buffer.scan = gap.position
        buffer.searching = True

    def _stop(self, side: int, mark: Mark, reason: str) -> None:
        """Handle the end of contiguous bytes: an incomplete frame becomes `partial`, or skipped bytes if its header is incomplete."""
        buffer = self.buffers[side]
        if buffer.partial is not None:
            return
        if buffer.searching:
            self._search(side, buffer, True)
            if not buffer.searching:
                self._split(side, buffer)
            if buffer.partial is not None:
                return
        data = buffer.rest()
        if not buffer.searching and len(data) >= self.dissector.header_size:
            length = self.dissector.frame_length(side, data, 0)
            if length > 0:
                self.dissector.on_truncated(side, data)
                first, last = buffer.span(buffer.position, buffer.position + len(data))
                buffer.partial = PartialFrame(buffer.position, length, data, len(data), reason, first, last)
                buffer.position += len(data)
                buffer.drop()
                return
        if data:
            if buffer.skip_from is None:
                buffer.skip_from = buffer.position
            buffer.position += len(data)
            buffer.drop()
        self._end_skip(side, mark)

    def _finish(self, side: int, mark: Mark) -> None:
        """Handle the end of a side."""
        buffer = self.buffers[side]
        self._stop(side, mark, "0 bytes captured")
        if buffer.partial is not None:
            self._put_partial(side, buffer.position - buffer.partial.position, False)

    def _search(self, side: int, buffer: ReceiveBuffer, final: bool) -> None:
        """Search the next frame at the end of each segment in turn, so that the result does not depend on how many arrive at once.

        Segments are left out while the work budget is used up.
        """
        stop = buffer.position + buffer.have
        if buffer.have < self.dissector.header_size:
            # Too few bytes to recognise a frame
            if final and buffer.have:
                if buffer.skip_from is None:
                    buffer.skip_from = buffer.position
                buffer.join()
                buffer.consume(buffer.have)
            return
        work_budget, starts = buffer.work_budget, buffer.starts
        place = max(buffer.position, buffer.scan)
        tried = buffer.tried
        count = len(starts)
        for index in range(buffer.segment(max(buffer.position, tried)) if count > 1 else 0, count):
            end = min(starts[index + 1], stop) if index + 1 < count else stop
            last = final and end == stop
            if end <= tried and not last:
                continue
            if end > work_budget.seen:
                work_budget.pay(end - max(work_budget.seen, starts[index]))
                work_budget.seen = end
            if work_budget.left <= 0 and not last:
                buffer.tried = end
                continue
            data, base = buffer.join() if buffer.pieces else buffer.data, buffer.base
            work_budget.begin(end - place, index + 1 - buffer.segment(place))
            found, at = self.dissector.resync(side, data, place - base, end - base, last)
            buffer.tried = end
            work_budget.spend(STEP + (end - place >> 6))
            place = base + at
            if found:
                if place > buffer.position and buffer.skip_from is None:
                    buffer.skip_from = buffer.position
                buffer.searching = False
                buffer.consume(place - buffer.position)
                if buffer.skip_from is not None:
                    self._end_skip(side, buffer.marks[buffer.segment(buffer.position)])
                return
            if last:
                place = end
            elif end - place > SEARCH_WINDOW:
                place = end - SEARCH_WINDOW
        if place > buffer.position:
            if buffer.skip_from is None:
                buffer.skip_from = buffer.position
            buffer.consume(place - buffer.position)
        buffer.scan = buffer.position

    def _split(self, side: int, buffer: ReceiveBuffer) -> None:
        """Split complete frames off the available bytes."""
        dissector = self.dissector
        while True:
            if buffer.searching:
                self._search(side, buffer, False)
                if buffer.searching:
                    buffer.need = 0
                    return
            data = buffer.join() if buffer.pieces else buffer.data
            at = buffer.position - buffer.base
            ends = dissector.split_frames(side, data, at)
            if ends:
                self._put_frames(side, buffer, data, ends, at)
                buffer.consume(ends[-1] - at)
                at = ends[-1]
            left = buffer.have
            if left < dissector.header_size:
                buffer.need = dissector.header_size
                return
            length = dissector.frame_length(side, data, at)
            if length == WAIT:
                buffer.waiting = True
                buffer.need = 0
                return
            if length < 0:
                # Not a frame: skip bytes until frames certainly begin again
                buffer.searching = True
                buffer.scan = buffer.position + (length != SEARCH)
                buffer.tried = buffer.position
                buffer.skip_from = buffer.position
                continue
            if length > self.options.frame_limit:
                rest = buffer.rest()
                dissector.on_truncated(side, rest)
                first, last = buffer.span(buffer.position, buffer.position + 1)
                reason = f"frame of {length} bytes is over the limit of {self.options.frame_limit} bytes"
                buffer.partial = PartialFrame(buffer.position, length, b"", MAX_OVERSIZE_PREFIX, reason, first, last)
                buffer.drop()
                buffer.begin(self._skip_partial(side, buffer, buffer.partial, rest))
                if buffer.have:
                    continue
                return
            if length and length <= left:
                # `split_frames` stopped before a complete frame
                self._put_frames(side, buffer, data, [at + length], at)
                buffer.consume(length)
                continue
            buffer.need = length or left + 1
            return

    def _put_frames(self, side: int, buffer: ReceiveBuffer, data: bytes, ends: list[int], at: int) -> None:
        """Add the frames data[at:ends[0]], data[ends[0]:ends[1]], ... with the packets that brought them."""
        starts, marks, base, append = buffer.starts, buffer.marks, buffer.base, self.frames.append
        last = len(starts) - 1
        index = buffer.segment(base + at) if last else 0
        for end in ends:
            position = base + at
            while index < last and starts[index + 1] <= position:
                index += 1
            first = index
            while index < last and starts[index + 1] < base + end:
                index += 1
            order, number, file, time_ns = marks[index]
            if index == first:
                append(Frame(side, position, data, at, end, None, order, order, number, number, file, time_ns, time_ns))
            else:
                run = marks[first : index + 1]
                (began, first_number, first_file, first_time), (order, number, file, time_ns) = min(run), max(run)
                in_file = first_number if first_file == file else None
                append(Frame(side, position, data, at, end, None, order, began, in_file, number, file, first_time, time_ns))
            at = end
        buffer.split_to = base + at


def unread(parser: Parser) -> list[Range]:
    """Return all bytes without a released record, unsorted; the last range of each side ends with `END`."""
    frames = () if parser.made is HANDED_ON else parser.frames
    found = [*map(bytes_of, frames), *parser.held, *parser.dissector.held_frames()]
    for one in parser.made:
        record, side = one.record, int(one.record.src != parser.context.endpoints[0])
        if type(record) is Message or not record.in_frame:
            found.append((side, one.position, one.position + (record.size or 0)))
    return found + [(side, parser.buffers[side].split_to, END) for side in (0, 1)]


def bytes_of(frame: Frame | FrameGap) -> Range:
    """Return the bytes of a frame or gap; an empty range for a gap in a frame."""
    size = 0 if isinstance(frame, FrameGap) and frame.in_frame else frame.size or 0
    return frame.side, frame.position, frame.position + size


def _without_blame(fault: Fault, dissector: Dissector, newer: str | None) -> Fault:
    """Return the fault of a message; `newer`: who states a newer version of the protocol. The first of a conversation says so."""
    if newer is None or type(fault) is Limited:
        return fault
    before = dissector.facts.setdefault("not_readable", 0)
    dissector.facts["not_readable"] = before + 1
    why = f"{UNKNOWN_LAYOUT} ({newer})" if not before else "not readable here either"
    return Unreadable(fault.field, fault.offset, f"{why}: {fault.reason}", fault.buffer)


def _segment_notes(buffer: ReceiveBuffer, position: int, size: int, notes: Any) -> list[str]:
    """Return `notes` with those of the reassembler on bytes of this frame, which are removed from the buffer."""
    merged = list(notes)
    merged.extend(text for at, text in buffer.notes if at < position + size and text not in merged)
    buffer.notes = [note for note in buffer.notes if note[0] >= position + size]
    return merged
