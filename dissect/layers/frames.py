"""Frames of WebSocket (RFC 6455, section 5): read as the bytes of a side arrive, and searched if it is unknown where one begins."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ..model import SideData, StreamGap

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN, COMPRESSED, RESERVED, MASKED = 0x80, 0x40, 0x30, 0x80
OPCODES = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
CONTROL, LARGEST_CONTROL = 8, 125
"""From this opcode on frames are control frames; the bytes that one carries at most."""

FIRST_BYTES = frozenset([TEXT, BINARY, *[FIN | opcode for opcode in (TEXT, BINARY, CLOSE, PING, PONG)]])
"""How a message begins that is not compressed."""

CODE = 2
"""The bytes of a code at the beginning of a Close frame."""

LEAST = 256
"""A message begins an item if the item before it has this many bytes: an item costs as much as a segment, wherever frames are searched."""

MAX_NOTES = 8
"""Notes that wait for the next bytes inside."""

MOST_HELD, PIECES, LARGEST = 65_536, 256, 1 << 26
"""While a frame is searched: bytes and segments that are held until it is certain that one begins in them. The content of a longer frame is
not read, only its end; one longer than `LARGEST` is not expected there."""

WRONG_MASK = ("WebSocket: the server masks its frames", "WebSocket: the client does not mask its frames")

CERTAIN, CERTAIN_ALONE = 2, 4
"""Frames of each side that show a WebSocket whose start was not captured; and those of the client if the server's bytes are missing."""


class FrameTrace(NamedTuple):
    """A piece of the bytes of a side, for `scrub`: its position inside (`data`) or in its payload (`control`, `close`; after missing bytes
    of this frame `CODE`), that outside, its size, and its mask; of `http` the head itself."""

    kind: Literal["data", "control", "close", "header", "http"]
    inside: int
    outside: int
    size: int
    mask: bytes


Items = list[SideData | StreamGap]
Reason = Literal["lost", "cut", "skipped"]


class WebSocketClose(NamedTuple):
    """A Close frame: its packet, the side that sent it, its code, and this with its meaning and reason."""

    order: int
    side: int
    number: int
    time_ns: int
    code: int | None
    text: str


class FrameHeader(msgspec.Struct, gc=False):
    """The header of a frame: its size, its first byte, and the length of the payload."""

    size: int
    first: int
    masked: bool
    length: int
    strict: bool
    """The shortest header for this length, as RFC 6455 demands."""

    @property
    def opcode(self) -> int:
        return self.first & 15

    @property
    def packed(self) -> bool:
        """Whether the message is compressed that begins here."""
        return bool(self.first & COMPRESSED)


def header_at(data: bytes, at: int, deflated: bool = False) -> FrameHeader | bool:
    """Return the header at `at`; True if more bytes are needed, False if none is there."""
    left = len(data) - at
    if not left:
        return True
    first = data[at]
    opcode = first & 15
    if opcode not in OPCODES or first & RESERVED or (first & COMPRESSED and not (deflated and opcode in (TEXT, BINARY))):
        return False
    if opcode >= CONTROL and not first & FIN:
        return False
    if left < 2:
        return True
    masked, length = data[at + 1] >= MASKED, data[at + 1] & 127
    if opcode >= CONTROL and length > LARGEST_CONTROL:
        return False
    size, strict = 2, True
    if length > 125:
        size = 4 if length == 126 else 10
        if left < size:
            return True
        length = int.from_bytes(data[at + 2 : at + size], "big")
        if length >> 63:
            return False
        strict = length > (0xFFFF if size == 10 else 125)
    if masked:
        size += 4
        if left < size:
            return True
    return FrameHeader(size, first, masked, length, strict)


def unmasked(data: bytes, mask: bytes) -> bytes:
    """Return these bytes with the mask applied; the same function masks them."""
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def turned(mask: bytes, size: int) -> bytes:
    """Return the mask for the bytes after the next `size` ones; empty if there is none."""
    turn = size & 3
    return mask[turn:] + mask[:turn]


class FrameReader(msgspec.Struct, gc=False):
    """Reads the frames of one side. Its bytes are those of headers, of control frames, of data frames, or unread."""

    side: int
    masks: bool
    """Whether this side has to mask its frames: the client."""
    trace: list[FrameTrace] | None = None
    """For `scrub`: where the payload is; filled if it is a list."""
    deflated: bool = False
    """permessage-deflate was agreed on."""
    position: int = 0
    """Of the next byte inside."""
    head: bytes = b""
    """The first bytes of a header that is not complete."""
    left: int = 0
    """Bytes of the frame that are still to come."""
    mask: bytes = b""
    """For the next bytes of the frame."""
    opcode: int = BINARY
    control: bytes | None = b""
    """The payload of a control frame so far; None if bytes of it are missing."""
    packed: bool = False
    """The message is compressed."""
    searching: bool = False
    """It is unknown where the next frame begins."""
    held: Items = []
    """While `searching`: bytes from where a frame may begin."""
    size: int = 0
    """Bytes in `held`."""
    end: int = 0
    """While `searching`: where a long frame probably ends, of which nothing is held; 0 if there is none."""
    inside: bool = False
    """The capture begins here, within the conversation, and no gap was reported."""
    notes: list[str] = []
    """For the next bytes inside."""
    close: WebSocketClose | None = None
    """The first one."""
    compressed: int = 0
    """Messages that cannot be read."""
    headers: int = 0
    controls: int = 0
    unread: int = 0
    """Bytes by kind: of frame headers, of the payloads of control frames, and those without a frame or that cannot be read."""

    @staticmethod
    def begins(data: bytes, masked: bool) -> bool:
        """Return whether a frame that begins a message is here."""
        header = header_at(data, 0, True)
        return isinstance(header, FrameHeader) and header.strict and header.masked is masked and header.opcode != CONTINUATION

    def begin_inside(self) -> None:
        """Begin where a frame need not begin."""
        self.searching = self.inside = True

    def feed(self, item: SideData | StreamGap, out: Items) -> None:
        """Read the next bytes; add the payloads to `out`."""
        if self.searching:
            self._search(item, out)
        elif isinstance(item, SideData):
            self._read(item, out)
        else:
            self._gap(item, out)

    def sizes(self) -> tuple[int, int, int, int]:
        """Return the bytes of headers, of control frames, inside (captured or not), and unread."""
        return self.headers + len(self.head), self.controls, self.position, self.unread + self.size

    # In frames

    def _read(self, item: SideData, out: Items) -> None:
        data = item.data
        size, at, have = len(data), 0, 0
        pieces: list[bytes] = []
        notes = [text for _, text in item.notes]
        while at < size:
            if self.left:
                end = min(size, at + self.left)
                piece = self._payload(data[at:end], item.position + at, self.position + have)
                if piece is not None:
                    pieces.append(piece)
                    have += len(piece)
                self.left -= end - at
                at = end
                if not self.left and self.opcode >= CONTROL:
                    self._end_control(item)
                continue
            before = len(self.head)
            header = header_at(self.head + data[at : at + 14], 0, self.deflated) if before else header_at(data, at, self.deflated)
            if header is True:
                self.head += data[at:]
                break
            if header is False:
                self._emit(item, pieces, notes, out)
                self.head = b""
                self.lose("skipped", item, out)
                self.unread += before + size - at
                return
            assert isinstance(header, FrameHeader)
            if header.opcode in (TEXT, BINARY) and (have >= LEAST or header.packed):
                self._emit(item, pieces, notes, out)
                pieces, notes, have = [], [], 0
            after = at + header.size - before
            self._begin_frame(header, (self.head + data[at:after])[-4:], item, after, out)
            at = after
            if header.masked is not self.masks and self.left and (not notes or notes[-1] is not WRONG_MASK[self.masks]):
                notes.append(WRONG_MASK[self.masks])
        self._emit(item, pieces, notes, out)

    def _begin_frame(self, header: FrameHeader, mask: bytes, item: SideData, end: int, out: Items) -> None:
        """Read a complete header, which ends at `end` of an item; `mask`: its last bytes."""
        self.head = b""
        self.headers += header.size
        if self.trace is not None:
            self.trace.append(FrameTrace("header", 0, item.position + end - header.size, header.size, b""))
        self.left, self.opcode, self.mask = header.length, header.opcode, mask if header.masked else b""
        if header.opcode >= CONTROL:
            self.control = b""
            if not self.left:
                self._end_control(item)
        elif header.opcode != CONTINUATION:
            if header.packed and not self.packed:
                self._put_gap("skipped", item, out)
            self.packed = header.packed
            self.compressed += header.packed

    def _payload(self, data: bytes, outside: int, inside: int) -> bytes | None:
        """Read the next bytes of the payload of a frame; return those that belong to the byte stream inside, None if these do not.
        `outside`: their position; `inside`: the same inside, if they belong there."""
        size = len(data)
        if self.mask:
            data = unmasked(data, self.mask)
        kind: Literal["data", "control", "close"] = "data"
        if self.opcode >= CONTROL:
            kind, inside = "close" if self.opcode == CLOSE else "control", CODE if self.control is None else len(self.control)
            self.controls += size
            if self.control is not None:
                self.control += data
        elif self.packed:
            self.unread += size
        if self.trace is not None and not self.packed:
            self.trace.append(FrameTrace(kind, inside, outside, size, self.mask))
        self.mask = turned(self.mask, size)
        return data if kind == "data" and not self.packed else None

    def _emit(self, item: SideData, pieces: list[bytes], notes: list[str], out: Items) -> None:
        """Add the payloads of an item."""
        if not pieces:
            self.notes += notes[: MAX_NOTES - len(self.notes)]
            return
        data = b"".join(pieces) if len(pieces) > 1 else pieces[0]
        if self.notes:
            notes = self.notes + notes
            self.notes = []
        mine = tuple((self.position, text) for text in dict.fromkeys(notes)) if notes else ()
        out.append(SideData(item.side, self.position, data, item.mark, mine))
        self.position += len(data)

    def _end_control(self, item: SideData | StreamGap) -> None:
        """Note a control frame that ends here."""
        if self.opcode == CLOSE and self.close is None:
            self.close = close_of(item, self.control)
        self.control = b""

    # Missing bytes

    def _gap(self, gap: StreamGap, out: Items) -> None:
        """Bytes are missing: inside of a frame their number is known."""
        size, inside = gap.size, self.left
        if size is not None and size <= inside:
            self._miss(size, gap, out)
            return
        if inside:
            self._miss(inside, gap, out)
        self.unread += (size or 0) - inside
        self.headers += len(self.head)
        self.head = b""
        self.lose(gap.reason, gap, out)

    def _miss(self, size: int, gap: StreamGap, out: Items) -> None:
        """Bytes of the payload are missing."""
        self.left -= size
        self.mask = turned(self.mask, size)
        if self.opcode >= CONTROL:
            self.controls += size
            self.control = None
            if not self.left:
                self._end_control(gap)
            return
        if self.packed:
            self.unread += size
            return
        if self.trace is not None:
            self.trace.append(FrameTrace("data", self.position, gap.position, size, b""))
        out.append(StreamGap(gap.side, self.position, size, gap.reason, *gap.mark))
        self.position += size

    def lose(self, reason: Reason, item: SideData | StreamGap, out: Items) -> None:
        """The place of the next frame is unknown, and so is the number of bytes inside until then."""
        self.searching, self.left, self.packed = True, 0, False
        self._put_gap(reason, item, out)

    def _put_gap(self, reason: Reason, item: SideData | StreamGap, out: Items) -> None:
        self.inside = False
        out.append(StreamGap(item.side, self.position, None, reason, *item.mark))

    # Where a frame begins

    def _search(self, item: SideData | StreamGap, out: Items) -> None:
        """Look for a frame that begins with a segment, and that ends with one or is followed by another frame."""
        if isinstance(item, StreamGap):
            self._pass(len(self.held), out)
            self.unread += item.size or 0
            self.end = 0
            return
        if self.end:
            rest = self._behind(item, self.end)
            if rest is None:
                return
            self.end = 0
            if rest is not item:
                self.unread += len(item.data) - len(rest.data)
                self.searching = False
                if rest.data:
                    self._read(rest, out)
                return
        self.held.append(item)
        self.size += len(item.data)
        while self.held:
            end, found = self._candidate()
            if found is None:
                if self.size <= MOST_HELD and len(self.held) <= PIECES:
                    return
                if end >= item.position + len(item.data):
                    self._pass(len(self.held), out)
                    self.end = end
                    return
            elif found:
                held, self.held, self.size, self.searching = self.held, [], 0, False
                for one in held:
                    self.feed(one, out)
                return
            self._pass(1, out)

    def _behind(self, item: SideData, end: int) -> SideData | None:
        """Return the rest of an item, where a long frame ends in it; the item if none does, None if the frame goes on."""
        stop = item.position + len(item.data)
        if stop < end:
            self.unread += len(item.data)
            return None
        if stop > end and not self._continues(item.data[end - item.position :]):
            return item
        return _tail(item, end - item.position)

    def _candidate(self) -> tuple[int, bool | None]:
        """Return where the frame ends with which the held bytes may begin, and whether it is one; None if more bytes are needed to know."""
        held = self.held
        first = b"".join([one.data[:14] for one in held[:14] if isinstance(one, SideData)])
        header = header_at(first, 0, self.deflated)
        if not isinstance(header, FrameHeader):
            return 0, None if header else False
        if not header.strict or header.masked is not self.masks or header.length > LARGEST:
            return 0, False
        end = held[0].position + header.size + header.length
        rest = b""
        for item in reversed(held):
            assert isinstance(item, SideData)
            stop = item.position + len(item.data)
            if stop < end:
                return end, None
            if stop == end:
                return end, not rest or self._continues(rest)
            if item.position <= end:
                return end, self._continues(item.data[end - item.position :][:14] + rest)
            rest = item.data[:14] + rest[:14]
        return end, False

    def _continues(self, data: bytes) -> bool | None:
        """Return whether a frame begins here; None if more bytes are needed to know."""
        header = header_at(data, 0, self.deflated)
        return (header.strict and header.masked is self.masks) if isinstance(header, FrameHeader) else header or None

    def _pass(self, count: int, out: Items) -> None:
        """Skip items that are held."""
        for item in self.held[:count]:
            assert isinstance(item, SideData)
            if self.inside:
                self._put_gap("skipped", item, out)
            self.unread += len(item.data)
            self.size -= len(item.data)
        del self.held[:count]


class _Chain(msgspec.Struct, gc=False):
    """Frames of one side that follow each other: how many, and where the next one begins; -1 if that is unknown."""

    count: int = 0
    masked: bool = False
    end: int = -1
    seen: bool = False


class FrameSearch(msgspec.Struct, gc=False):
    """Looks for WebSocket in the middle of a conversation: frames of both sides that follow each other, and begin and end with segments.

    Those of the client are masked, those of the server are not.
    """

    chains: tuple[_Chain, _Chain] = msgspec.field(default_factory=lambda: (_Chain(), _Chain()))
    client: int = 0

    def add(self, items: Items) -> bool:
        """Return whether it is certain that these are frames."""
        followed = False
        for item in items:
            chain = self.chains[item.side]
            if isinstance(item, StreamGap):
                chain.count, chain.end = 0, -1
                continue
            chain.seen = True
            if chain.end >= 0 or item.data[0] in FIRST_BYTES:
                self._follow(chain, item)
                followed = True
        for side in (0, 1) if followed else ():
            one = self.chains[side]
            if one.masked and one.count >= CERTAIN:
                other = self.chains[1 - side]
                if one.count >= CERTAIN_ALONE if not other.seen else other.count >= CERTAIN and not other.masked:
                    self.client = side
                    return True
        return False

    def _follow(self, chain: _Chain, item: SideData) -> None:
        data, base = item.data, item.position
        stop = base + len(data)
        at = base if chain.end < 0 else chain.end
        # A frame counts once its end is a place where a frame or a segment begins
        chain.count += base < at <= stop
        while at < stop:
            if at < base:
                chain.count, chain.end = 0, -1
                return
            header = header_at(data, at - base)
            if (
                not isinstance(header, FrameHeader)
                or not header.strict
                or (chain.count and header.masked is not chain.masked)
                or (header.opcode == CONTINUATION and not chain.count)
            ):
                chain.count, chain.end = 0, -1
                return
            chain.masked = header.masked
            at += header.size + header.length
            chain.count += at <= stop
            chain.end = at


def close_of(item: SideData | StreamGap, payload: bytes | None) -> WebSocketClose:
    """Return the Close frame that ends here; `payload` is None if bytes of it are missing."""
    code, text = None, "no code" if payload is not None else "a code that was not captured"
    if payload is not None and len(payload) >= CODE:
        code, reason = int.from_bytes(payload[:CODE], "big"), payload[CODE:].decode("utf-8", "backslashreplace")
        text = f"{code}{f' {CODES[code]}' if code in CODES else ''}{f': {reason}' if reason else ''}"
    return WebSocketClose(item.order, item.side, item.mark[1], item.mark[3], code, text)


CODES = {
    1000: "normal closure",
    1001: "going away",
    1002: "protocol error",
    1003: "unsupported data",
    1007: "invalid payload",
    1008: "policy violation",
    1009: "message too big",
    1010: "extension required",
    1011: "internal error",
    1012: "service restart",
    1013: "try again later",
    1014: "bad gateway",
}


def _tail(item: SideData, at: int) -> SideData:
    return msgspec.structs.replace(item, position=item.position + at, data=item.data[at:])
