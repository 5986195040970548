"""The interface of a protocol: the length of a frame, where frames begin again after a gap, and what a frame means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .buffer import Range
from .protocol import Context
from .records import DecodedTuple, Frame, FrameGap

if TYPE_CHECKING:
    from .parser import Parser

WAIT = -2
"""Returned by `frame_length`: the length depends on bytes of the other side that have not arrived yet."""

SEARCH = -3
"""Returned by `frame_length`: a frame begins here or later; `resync` finds where."""

SEARCH_WINDOW = 1 << 20
"""Bytes of one side that are searched for the next frame before the oldest are dropped."""


class Dissector:
    """The protocol's part of a parser, with the state of one conversation."""

    protocol: ClassVar[str]
    header_size: ClassVar[int]
    reuse: ClassVar[str] = "supersede"
    """How a request whose key is still open is handled: it supersedes the older request, or queues behind it ("queue"); "never": no other
    request has its key."""
    DERIVED: ClassVar[tuple[str, ...]] = ()
    """Attributes derived from others: `prepare` makes them, and makes them again in another process."""

    closing: ClassVar[str | None] = None
    """The message that announces the end of a connection, if the protocol has one."""
    reorders: ClassVar[bool] = False
    """Whether `decode_in_order` may hold frames back, and thus decides the order of the records."""

    def __init__(self, context: Context, parser: Parser) -> None:
        self.context = context
        self.options = context.options
        self.parser = parser
        self.client = context.client
        self.facts: dict[str, Any] = {}
        """What the protocol adds to the row of `conversations`: layout, candidates, ids."""
        self.details: dict[str, bytes] = {}
        """The buffers, besides the frame, that spans of the message just decoded refer to; filled if details are requested."""
        self.unblocks_peer = False
        """Set by `decode` when the other side need not wait any longer."""
        self.completed = 0
        """The order of the packet that completed the current frame."""

    @property
    def in_packet_order(self) -> bool:
        """Whether a message of one side may change how the bytes of the other are split, so that segments are read one by one."""
        return False

    def prepare(self) -> None:
        """Set the attributes named in `DERIVED`."""

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        """Return the length in bytes of the frame at `at`, header included; 0 if more bytes are needed to know it, -1 if no frame can
        begin here; or WAIT or SEARCH. At least `header_size` bytes are available.
        """
        raise NotImplementedError

    def split_frames(self, side: int, data: bytes, at: int) -> list[int]:
        """Return the ends of the consecutive complete frames from `at` on, up to the first incomplete, oversized or undecided one.

        Override it where the loop over `frame_length` is too slow.
        """
        ends: list[int] = []
        size = len(data)
        header_size, length_of, limit = self.header_size, self.frame_length, self.options.frame_limit
        while size - at >= header_size:
            length = length_of(side, data, at)
            if length <= 0 or length > limit or at + length > size:
                break
            at += length
            ends.append(at)
        return ends

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        """Search data[at:end], where `end` is the end of a segment, for a frame. Return (True, p) if frames certainly begin at p,
        (False, p) if none begins before p.

        `final`: no byte follows directly (a gap of `parser.buffers[side].missing` bytes, or the end).
        """
        raise NotImplementedError

    def decode_fast(self, side: int, data: bytes, start: int, end: int) -> DecodedTuple | None:
        """Return the meaning of the complete frame data[start:end] if it has no fault; None, with no state changed, if `decode` has to
        read it."""
        return None

    def decode(self, frame: Frame) -> DecodedTuple:
        """Return the meaning of a frame; of a damaged one, of its bytes before the first missing one."""
        raise NotImplementedError

    def decode_in_order(self, frame: Frame | FrameGap) -> None:
        """Decode a frame or a gap; called in the packet order of both sides. Override it if frames have to wait for others."""
        self.parser.add_record(frame)

    def held_frames(self) -> Sequence[Range]:
        """Return the byte ranges of the frames that `decode_in_order` holds back."""
        return ()

    def on_gap(self, side: int, order: int = 0) -> None:
        """Called in packet order when frames of `side` may be missing: state that counts frames is uncertain from here on."""

    def on_truncated(self, side: int, data: bytes) -> None:
        """Called while bytes are split, when the frame that begins with `data` will not be completed."""

    def on_wait_timeout(self, side: int) -> None:
        """Called when `frame_length` returned WAIT in vain: it must not return WAIT again for this side."""

    def newer_peer(self, side: int, name: str) -> str | None:
        """Return which side states a version of the protocol that is newer than the known ones, and the version ("the server says 0.12.0"),
        if that may be why a message does not fit its layout."""
        return None

    def close(self) -> None:
        """Decode the frames that `decode_in_order` holds back: no other follows."""
