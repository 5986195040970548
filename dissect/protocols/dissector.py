"""What a protocol fills in: how long a frame is, where frames begin again after a loss, and what a frame means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from .buffer import Range
from .protocol import Context
from .records import Frame, FrameGap, Meant

if TYPE_CHECKING:
    from .parser import Parser

WAIT = -2
"""`frame_length`: how long this frame is depends on bytes of the other side that are not there yet."""

SEARCH = -3
"""`frame_length`: a frame may begin here or later, only `resync` can tell where."""

SEARCH_WINDOW = 1 << 20
"""Bytes of one side looked at for the next frame before the oldest of them are given up."""


class Dissector:
    """One protocol's part in reading a conversation, and its state."""

    protocol: ClassVar[str]
    header_size: ClassVar[int]
    reuse: ClassVar[str] = "supersede"
    """What a request with a key that is still open does: "supersede" the older, or "queue" behind it."""
    DERIVED: ClassVar[tuple[str, ...]] = ()
    """Members that are no state, but follow from others: `prepare` makes them, in another process again."""

    stepwise = False
    """Whether what one side says may change how the next bytes of the other are cut, so that they are taken one by one."""
    news = False
    """Whether what was decoded frees bytes that wait."""
    closing: ClassVar[str | None] = None
    """The message that announces the end of a connection, where the protocol has one."""
    holds: ClassVar[bool] = False
    """Whether `in_turn` may keep frames for later: then it says in which order records are made."""

    def __init__(self, context: Context, parser: Parser) -> None:
        self.context = context
        self.options = context.options
        self.parser = parser
        self.client = context.client
        self.facts: dict[str, Any] = {}
        """What the protocol's state adds to the row of `conversations`: layout, candidates, ids."""
        self.details: dict[str, bytes] = {}
        """What the spans of the message just decoded count in besides its frame; filled where details are asked for."""
        self.completed = 0
        """The packet that completed the frame that is decoded."""

    def prepare(self) -> None:
        """Make what is `DERIVED`."""

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        """The whole length of the frame that begins at `at`; 0: not enough bytes to know; -1: none can begin here; or WAIT or SEARCH.

        Called with at least `header_size` bytes there.
        """
        raise NotImplementedError

    def split_frames(self, side: int, data: bytes, at: int) -> list[int]:
        """The ends of the whole frames that follow each other from `at`; stops at the first that is not whole or not plain.

        Overridden where the loop over `frame_length` is too slow.
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
        """Look for a frame in data[at:end], where `end` is the end of a segment: (True, p) frames certainly begin at p; (False, p)
        none begins before p.

        `final`: no byte will follow directly (a gap of `parser.buffers[side].missing` bytes, or the end).
        """
        raise NotImplementedError

    def plain(self, side: int, data: bytes, start: int, end: int) -> Meant | None:
        """Return the meaning of the complete frame data[start:end] if it has no flaw; None, and nothing has changed, where `decode` has to
        look closer."""
        return None

    def decode(self, frame: Frame) -> Meant:
        """The meaning of a frame; of a damaged one, of what there is of it before the first missing byte."""
        raise NotImplementedError

    def in_turn(self, frame: Frame | FrameGap) -> None:
        """A frame, or a gap, has its turn in the packet order of both sides; overridden where some wait for others."""
        self.parser.put(frame)

    def held_frames(self) -> Iterable[Range]:
        """The frames that `in_turn` keeps, where it `holds` some."""
        return ()

    def lost(self, side: int, order: int = 0) -> None:
        """Told, in packet order, when frames of `side` may have been missed: state that counts them is unsure from here on."""

    def broken(self, side: int, data: bytes) -> None:
        """Told, when bytes are cut, that the frame which begins with `data` will not be whole."""

    def give_up(self, side: int) -> None:
        """Told when `frame_length` waits for the other side and it will not come: from now on it must not answer WAIT."""

    def close(self) -> None:
        """No frame follows; those that `in_turn` kept have their turn now."""
