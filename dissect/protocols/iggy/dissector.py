"""Apache Iggy over TCP: a request leads with its length, a response with its status; or both with a header of 256 bytes.

No frame states its layout, and no response the request it answers: `candidates` keeps the layouts that match, `request_queue` the
pending requests, and a frame is decoded here when both are known. `meaning` interprets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from ...model import END
from ..buffer import Range
from ..dissector import Dissector
from ..parser import Parser, bytes_of
from ..protocol import Context, LoadedProtocol
from ..records import DecodedTuple, Frame, FrameGap
from . import PORTS, frames, replica_layouts
from .bodies import ADDED, PARTS
from .candidates import Candidates, PendingRequest, Placement
from .compare_rules import COMPARE_RULES
from .entries import IggyEntries
from .frame_redaction import LOGIN
from .frames import HEADER
from .framing import IggyFraming
from .heuristic import heuristic
from .info import TEXT, info, relate, traffic, verb
from .layout_versions import LAYOUTS
from .meaning import FrameDecoder
from .replica import ReplicaDissector
from .request_queue import LOST, UNSURE, RequestQueue, sent
from .scrub_rules import SCRUB_RULES

HELD_FRAMES, HELD_BYTES = 256, 1 << 20
"""Limit of frames that wait for the layout; after that they are decoded with the likeliest one, with a note."""

EARLY_FRAMES = 64
"""Limit of responses that wait for a request captured later."""


class IggyDissector(Dissector):
    """One conversation of a client and a server of Apache Iggy: hands on the frames of both sides, each when it is certain what it answers
    and how it is read."""

    protocol: ClassVar[str] = "iggy"
    header_size: ClassVar[int] = 8
    reorders = True
    DERIVED = ("placed",)

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        client = self.client
        if client is None:
            client = self.client = 0 if context.ports[1] in PORTS or context.ports[0] not in PORTS else 1
        self.layouts = Candidates(context, client, self.facts)
        self.framing = IggyFraming(self.layouts, parser)
        self.waiting = RequestQueue(self.layouts, client, context.from_start)
        self.meaning = FrameDecoder(self.layouts, context)
        self.held: list[tuple[Frame, PendingRequest]] = []
        """Frames waiting until the layout is known."""
        self.held_bytes = 0
        self.assumed = False
        """Whether nothing waits for that any more."""
        self.early: list[Frame] = []
        """Responses that wait for a request that the capture shows later."""
        self.early_allowed = True
        """Whether responses still wait for such a request: not once `EARLY_FRAMES` did so in vain."""
        self.unconfirmed: deque[Frame | FrameGap] = deque()
        """What the server sent behind a gap: a request may be missing as well, which only the next bytes of the client show."""
        self.unconfirmed_bytes = 0
        self.unconfirmed_limit_hit = False
        """Whether more was unconfirmed, since the last bytes of the client, than may wait."""
        self.prepare()

    def prepare(self) -> None:
        self.placed: Placement | None = None
        """The frame being decoded."""

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        return self.framing.length(side, data, at)

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        return self.framing.search(side, data, at, end, final)

    def newer_peer(self, side: int, name: str) -> str | None:
        return self.layouts.newer

    def on_wait_timeout(self, side: int) -> None:
        self.framing.stubborn = True

    def on_gap(self, side: int, order: int = 0) -> None:
        self.waiting.trust.go(LOST)

    def decode(self, frame: Frame) -> DecodedTuple:
        assert self.placed is not None
        return self.meaning.decode(frame, self.placed, self.parser.current)

    def held_frames(self) -> Sequence[Range]:
        if not (self.held or self.early or self.unconfirmed):
            return ()
        waiting = (*self.early, *self.unconfirmed, *(frame for frame, _ in self.held))
        return [found for found in map(bytes_of, waiting) if found[1] < found[2]]

    def decode_in_order(self, frame: Frame | FrameGap) -> None:
        if frame.side == self.client:
            if isinstance(frame, FrameGap):
                self._lose_requests(frame)
            else:
                self._add_request(frame)
        elif self.unconfirmed or (not self.unconfirmed_limit_hit and self.waiting.trust.needs_client_bytes(frame.order)):
            self._hold_unconfirmed(frame)
        else:
            self._pair_answer(frame)

    def close(self) -> None:
        """Decode the held frames with the likeliest layout."""
        self.waiting.trust.on_client_bytes(END)
        self._release_unconfirmed()
        self._expire_early()
        self.assumed = True
        self._release()

    def _add_request(self, frame: Frame) -> None:
        waiting, trust, order = self.waiting, self.waiting.trust, sent(frame)
        self.unconfirmed_limit_hit = False
        if self.layouts.blind:
            self.layouts.keep_framing(frame.side)
        if self.unconfirmed:
            self._release_unconfirmed(order)
        while self.early and trust.unsure and self.early[0].order < order:
            self._place_early()
        self._place(frame, waiting.ask(frame, order))
        trust.on_client_bytes(order)
        if self.unconfirmed:
            self._release_unconfirmed()
        # after a loss they go on waiting until every request that was sent before them is here
        while self.early and waiting.open and not trust.unsure:
            self._place_early()

    def _lose_requests(self, gap: FrameGap) -> None:
        """A gap of the client's."""
        if not gap.in_frame:
            # answers that wait for their requests go on waiting: those behind the gap come now
            self.unconfirmed_limit_hit = False
            self.waiting.trust.on_requests_lost(gap.order)
            self._release_unconfirmed(gap.order)
        self.parser.add_record(gap)

    def _pair_answer(self, frame: Frame | FrameGap) -> None:
        waiting, trust = self.waiting, self.waiting.trust
        if self.unconfirmed_limit_hit:
            # one that is missing may follow any of the requests seen so far
            trust.on_requests_lost(frame.order)
        if isinstance(frame, FrameGap):
            self._lose_answers(frame)
            return
        if self.layouts.blind:
            self.layouts.keep_framing(frame.side)
        if self.early and trust.unsure:
            self._expire_early()
        if waiting.open or not self.early_allowed or trust.unsure or not waiting.expects(frame):
            self._place(frame, waiting.answer(frame))
            return
        self.early.append(frame.alone())
        if len(self.early) > EARLY_FRAMES:
            self.early_allowed = False
            self._expire_early()

    def _lose_answers(self, gap: FrameGap) -> None:
        """A gap of the server's."""
        if gap.in_frame:
            self.parser.add_record(gap)
            return
        self._expire_early()
        before = self.waiting.trust.state
        certain = self.waiting.lose_answers(gap.size, gap.order, self.layouts.long[gap.side])
        self.parser.add_record(gap)
        if certain:
            self.waiting.trust.restore(before)

    # What waits for the other side

    def _hold_unconfirmed(self, frame: Frame | FrameGap) -> None:
        """Let what the server sent wait for the next bytes of the client."""
        # One may be as large as any: the response with messages that is waited for
        self.unconfirmed_limit_hit = len(self.unconfirmed) >= EARLY_FRAMES or self.unconfirmed_bytes > HELD_BYTES
        if isinstance(frame, Frame):
            frame = frame.alone()
            self.unconfirmed_bytes += frame.end
        self.unconfirmed.append(frame)
        if self.unconfirmed_limit_hit:
            self._release_unconfirmed()

    def _release_unconfirmed(self, before: int = 0) -> None:
        """Go on with what waited for bytes of the client: with what came `before` a packet, or with what there is no doubt about."""
        while self.unconfirmed:
            order = self.unconfirmed[0].order
            if order >= before if before else not self.unconfirmed_limit_hit and self.waiting.trust.needs_client_bytes(order):
                break
            frame = self.unconfirmed.popleft()
            self.unconfirmed_bytes -= frame.end if isinstance(frame, Frame) else 0
            self._pair_answer(frame)

    def _place_early(self) -> None:
        """Place the first of the responses that came before their requests."""
        early = self.early.pop(0)
        self._place(early, self.waiting.answer(early))

    def _expire_early(self) -> None:
        """Responses whose request does not come."""
        while self.early:
            self._place_early()

    # What waits for the layout

    def _place(self, frame: Frame, asked: PendingRequest) -> None:
        """Make the record of a frame, or hold it until its layout is known; then also those of frames that waited for that."""
        layouts = self.layouts
        before = layouts.candidates
        placed = layouts.place(frame, asked, not layouts.settled and not self._misleads(frame, asked))
        if self.held and layouts.candidates is not before:
            self._release()
        self._put(frame, placed)

    def _put(self, frame: Frame, placed: Placement) -> None:
        # what answers a request that is held waits with it
        if not self.assumed and (placed.differ or (self.held and any(placed.asked.number == asked.number > 0 for _, asked in self.held))):
            self.held.append((frame.alone(), placed.asked))
            self.held_bytes += frame.end - frame.start
            if len(self.held) > HELD_FRAMES or self.held_bytes > HELD_BYTES:
                self.assumed = True
                self.facts["undecided"] = "more frames waited for the layout than are kept"
                self._release()
        else:
            self.placed = placed
            self.parser.add_record(frame)

    def _release(self) -> None:
        """Make records of what was held and need not be any more."""
        held, self.held, self.held_bytes = self.held, [], 0
        for frame, asked in held:
            self._put(frame, self.layouts.place(frame, asked, False))

    def _misleads(self, frame: Frame, asked: PendingRequest) -> bool:
        """Return whether this frame must not exclude layouts.

        The response to another request excludes the right layout, and one without a body fits nearly all.
        """
        if frame.side == self.client:
            return False
        empty = frame.end - frame.start <= (HEADER if self.layouts.long[frame.side] else 8)
        return self.layouts.mismatch or UNSURE in asked.notes or (self.waiting.trust.believes and empty)


@cache
def _tables() -> tuple[Any, ...]:
    return (*frames.documented(), *replica_layouts.documented(), *PARTS)


PROTOCOL = LoadedProtocol(
    IggyDissector,
    heuristic,
    info,
    _tables,
    TEXT,
    ADDED,
    code=("status", "reason"),
    relate=relate,
    login=LOGIN,
    dissectors={replica_layouts.LAYOUT: ReplicaDissector},
    forced=(*LAYOUTS, replica_layouts.LAYOUT),
    compare_rules=COMPARE_RULES,
    scrub_rules=SCRUB_RULES,
    traffic=traffic,
    entries=IggyEntries,
    verb=verb,
    alarms={"eviction": lambda message: True, "unknown": lambda message: bool(message.fields.get("status"))},
)
