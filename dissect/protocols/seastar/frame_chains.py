"""What the frames of a connection look like, inferred from how the bytes chain, and where they are.

A sound guess tiles the bytes from the start of a segment to the end of one, two frames at least, and each header must be one that
the library could have written. Streams are no part of a guess, unless the negotiation leaves open that it is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from re import DOTALL, compile
from struct import Struct
from typing import Final, NamedTuple

from ...model import Options
from ...quota import UnpackPool, UnpackQuota
from ..dissector import SEARCH_WINDOW
from ..work_budget import STEP, WorkBudget
from .compression import LAST_CHUNK, LZ4, RATIO, SCYLLA_V3, Unpackable, chunks, unpack, unpack_head
from .dictionaries import Dictionary
from .layouts import ALGORITHM, END_OF_STREAM, METHODS, RAW
from .scylla import beginning, head_of, head_size, messages
from .terms import PLACES, SeastarFraming

_u32 = Struct("<I").unpack_from
_i64 = Struct("<q").unpack_from
_record = Struct("<II").unpack_from
_request = Struct("<QqI").unpack_from
_request_timeout = Struct("<QQqI").unpack_from
_response = Struct("<qI").unpack_from

LONGEST_HEADER = 28

LARGEST_ID = 1 << 48
LARGE_ID = 1 << 32
LARGE_ID_FRAMES = 4
"""Frames that a guess with large msg_ids needs."""
LARGEST_VERB = 1 << 32
LARGEST_TIMEOUT = 1 << 40
LEAP = 1 << 10
"""Requests of one chain: how far one msg_id may be above the one before."""
SPREAD = 1 << 16
"""Responses of one chain: how far apart their msg_ids may be."""
EXCEPTION_KINDS = 2
NEAR, FAR = 4, 64
"""Segments that a chain of two frames spans at most where the framing is a guess, and one of three."""
LARGE_SEGMENT = 256
CERTAIN, IN_TURN = 3, 4
"""Frames that are certain wherever they begin, where the last ends with a segment, and where it does not."""
MOST_EMPTY = 8
"""Control blocks of SCYLLA_V3 in front of the first message of a guess: they are not a sign of one."""
SCANNED = 4
"""What a byte costs in which headers are looked for."""
NEVER = 1 << 62

LONGEST: Final = Options().frame_limit
"""Bytes of the longest frame that is believed without its end, where nobody says otherwise."""

LEEWAY = 1 << 20
"""How far msg_ids may be from the last one where the framing is known and frames in between were lost."""


_HEADS = {
    SeastarFraming("request", True, None): compile(rb"(?=.{5}\0{3}.{4}\0{4}.{4}\0{4}.{3}\0)", DOTALL),
    SeastarFraming("request", False, None): compile(rb"(?=.{4}\0{4}.{4}\0{4}.{3}\0)", DOTALL),
    SeastarFraming("response", True, None): compile(rb"(?=.{4}(?:\0{4}|\xff{4}).{3}\0)", DOTALL),
    SeastarFraming("response", False, None): compile(rb"(?=.{4}(?:\0{4}|\xff{4}).{3}\0)", DOTALL),
}
"""What finds the headers of plain frames, of sizes below 16 MiB: timeout, verb and msg_id are small numbers of 64 bits."""


def needed(segments: int, size: int) -> int:
    """Return how many frames make a guess whose chain spans `segments` of `size` bytes in all."""
    if segments <= NEAR:
        return 2
    # Small segments begin and end anywhere, so that ending with one means little.
    return 3 if segments <= FAR and size >= segments * LARGE_SEGMENT else NEVER


class Ends(NamedTuple):
    """Where the segments from one on end, `FAR` of them at most, and how many frames have to end there; as a mapping, but nothing is made
    for segments that no frame ends with. `frames`: if not 0, this number, over any number of segments: there is other evidence, or it is
    large."""

    starts: list[int]
    segment: int
    end: int
    frames: int = 0

    @property
    def last(self) -> int:
        following = self.segment + FAR
        return self.starts[following] if following < len(self.starts) and not self.frames else self.end

    def get(self, position: int, otherwise: int) -> int:
        starts = self.starts
        index = bisect_left(starts, position, self.segment + 1)
        if position != (starts[index] if index < len(starts) else self.end) or position > self.last:
            return otherwise
        return self.frames or needed(index - self.segment, position - starts[self.segment])


class Fit(NamedTuple):
    """Frames that tile the bytes up to `end`; `proof`: something in them that chance does not make."""

    end: int
    frames: int
    proof: bool
    first_id: int
    last_id: int

    @property
    def doubt(self) -> tuple[bool, int]:
        """Lower is better: a wrong framing reads two small numbers as one large msg_id."""
        return not self.proof, max(abs(self.first_id), abs(self.last_id))


RULED_OUT: Final = Fit(-1, 0, False, 0, 0)
"""Says that no further byte will make these frames."""


class MsgIds:
    """The msg_ids of frames that follow each other: the first of them, the last, which may be of a frame before them, and all that were
    seen, without sign. `known`: the framing is certain and only the place is not."""

    __slots__ = ("first", "known", "last", "seen")

    def __init__(self, last: int | None, known: bool = False) -> None:
        self.first = 0
        self.last = last
        self.known = known
        self.seen: set[int] = set()

    def add(self, ident: int) -> None:
        """Add the id of the next frame; 0 if it has none."""
        if ident:
            self.first = self.first or ident
            self.last = ident
            self.seen.add(abs(ident))


def fit(
    framing: SeastarFraming,
    data: bytes,
    at: int,
    bound: int,
    ends: Mapping[int, int] | Ends,
    work_budget: WorkBudget,
    *,
    proof_will_do: bool = False,
    previous: int | None = None,
    known: bool = False,
    missing: int = 0,
    limit: int = 1 << 20,
    large: int = 0,
    longest: int = LONGEST,
    dictionaries: Sequence[Dictionary] = (),
) -> Fit | None:
    """Follow frames from `at` in data[:bound] to the first of `ends` that enough of them (its value) reach, or that a proof reaches.

    `known`: the framing is certain and only the place is not; `previous`: the msg_id that this side sent last. A gap of `missing` bytes
    follows `bound`: a frame may also end right after it. `limit` bounds unpacked bytes, `work_budget` all of it: with none left
    nothing is found. `large`: this many frames suffice (0: none) if the last is too long to be ever examined completely, but not longer
    than `longest`. RULED_OUT if captured bytes are not frames, whatever follows.
    """
    frames, empty, proof, ids = 0, 0, False, MsgIds(previous, known)
    kind, _, codec = framing
    packed = None if codec is None else PackedFrames(framing, codec, data, bound, ids, limit, work_budget, dictionaries)
    while at < bound and work_budget.spend(STEP):
        head: tuple[int, int, bool] | Fit | None
        if packed is None:
            head = _head(framing, data, at, bound, ids)
            if head is None:
                return RULED_OUT if bound - at >= LONGEST_HEADER else None
            after = at + head[0]
        elif bound - at < 4:
            return None
        else:
            after = at + 4 + _u32(data, at)[0]
        far = bool(large) and after > bound and SEARCH_WINDOW < after - at <= longest
        if after > bound and after != bound + missing and not far:
            return None
        if kind == "sealed" or (packed is not None and (after - at < 8 or (codec == SCYLLA_V3 and packed.only_controls(at, after)))):
            frames += after - at >= 8 and (known or kind == "sealed")
            empty += 1
            if empty > MOST_EMPTY and not frames and codec == SCYLLA_V3:
                return RULED_OUT
            at = after
            if frames >= ends.get(at, NEVER):
                return Fit(at, frames, proof, ids.first, ids.first)
            continue
        if packed is not None:
            head = packed.head(at, after)
        if head is None or isinstance(head, Fit):
            return head
        size, ident, proved = head
        proof = proof or proved
        ids.add(ident)
        # Bytes of other framings may equal the four bytes of an empty message of a stream, but hardly ever unpack to it
        frames += kind != "stream" or size > 4 or proved
        need = large if far and ident else ends.get(after, NEVER)
        if not known and abs(ident) >= LARGE_ID and not proof:
            need = max(need, LARGE_ID_FRAMES)
        if frames >= need or (proof and proof_will_do and need < NEVER):
            return Fit(after, frames, proof, ids.first, ids.last or 0)
        at = after
    return None


class PackedFrames(NamedTuple):
    """The compressed frames of one `fit`, in data[:bound], and what their messages are unpacked with. `ids`: the msg_ids of those before;
    `limit` bounds what one unpacks to."""

    framing: SeastarFraming
    codec: str
    data: bytes
    bound: int
    ids: MsgIds
    limit: int
    work_budget: WorkBudget
    dictionaries: Sequence[Dictionary]

    def only_controls(self, at: int, after: int) -> bool:
        """Return whether the frame data[at:after] of SCYLLA_V3 holds control blocks and no message."""
        head = head_of(self.data, at, min(after, self.bound))
        return head is not None and at + head.packed == after

    def head(self, at: int, after: int) -> tuple[int, int, bool] | Fit | None:
        """Return the head of the message in the frame data[at:after] as `_head` does, RULED_OUT if it has none, None if it may have one."""
        if self.codec == SCYLLA_V3:
            return self._scylla(at, after) if after <= self.bound else self._beginning(at)
        data, bound, complete = self.data, self.bound, after <= self.bound
        try:
            inner = unpack(chunks(self.codec, data, at, after, self.limit), data, at) if complete else unpack_head(data[at + 8 : bound])
        except Unpackable:
            inner = b""
        if inner:
            self.work_budget.spend(min(after, bound) - at + (len(inner) >> 2))
            head = _head(self.framing, inner, 0, len(inner), self.ids)
            if head is not None and (not complete or head[0] == len(inner)):
                return head[0], head[1], complete or head[2]
        return RULED_OUT if complete else None

    def _beginning(self, at: int) -> tuple[int, int, bool] | None:
        """The same for a frame of SCYLLA_V3 whose end is not there."""
        packed = head_of(self.data, at, self.bound)
        inner = b"" if packed is None else beginning(packed, self.data, at, self.bound, None)
        head = _head(self.framing, inner, 0, len(inner), self.ids) if inner else None
        return None if head is None else (head[0], head[1], False)

    def _scylla(self, at: int, after: int) -> tuple[int, int, bool] | Fit:
        """The same for a complete frame of SCYLLA_V3. One that is sound, but packed with an unknown dictionary, is one where the framing is
        certain."""
        packed = head_of(self.data, at, after)
        if packed is None:
            return RULED_OUT
        # Bombs are not unpacked to find out where frames begin
        quota = UnpackQuota(UnpackPool(0))
        before = quota.grow(after - at)
        head = None
        try:
            for inner in messages(packed, self.data, at, after, self.dictionaries, min(self.limit, before), quota):
                head = _head(self.framing, inner, 0, len(inner), self.ids)
                if head is not None and head[0] == len(inner):
                    return head[0], head[1], packed.checksum is not None or head[2]
        except Unpackable:
            return RULED_OUT
        finally:
            self.work_budget.spend((1 + len(self.dictionaries)) * (after - at) + (before - quota.left >> 2))
        return (LONGEST_HEADER, 0, False) if self.ids.known and head is None and packed.method != RAW else RULED_OUT


def inside(framing: SeastarFraming, data: bytes, at: int, end: int, previous: int | None, work_budget: WorkBudget) -> int | None:
    """The first place in data[at:end], be it in the middle of a segment, from which plain frames of a framing that is certain follow each
    other to `end`, or enough requests in turn to exclude chance. `previous`: the msg_id that this side sent last."""
    heads = _HEADS.get(framing)
    if heads is None or not work_budget.spend(SCANNED * (end - at)):
        return None
    for match in heads.finditer(data, at, end):
        start = place = match.start()
        ids = MsgIds(previous)
        while place < end:
            if not work_budget.spend(STEP):
                return None
            head = _head(framing, data, place, end, ids)
            if head is None or place + head[0] > end:
                break
            place += head[0]
            ids.add(head[1])
        # Behind the last one there is nothing, or the beginning of another
        ends = place == end or (framing.kind == "request" and (head is not None or end - place < framing.header))
        if ends and len(ids.seen) >= (IN_TURN if place < end else CERTAIN if previous is None else CERTAIN - 1):
            return start
    return None


def _head(framing: SeastarFraming, data: bytes, at: int, bound: int, ids: MsgIds) -> tuple[int, int, bool] | None:
    """Size, msg_id and proof of the frame, in plain bytes, whose header stands at `at`; None if that is no header that can follow `ids`."""
    kind, extra, _ = framing
    last, known = ids.last, ids.known
    if kind == "stream":
        if bound - at < 4:
            return None
        size = _u32(data, at)[0]
        return (4 if size == END_OF_STREAM else 4 + size), 0, False
    header = PLACES[kind, extra][0]
    if bound - at < header:
        return None
    if kind == "request":
        timeout, verb, ident, size = _request_timeout(data, at) if extra else (0, *_request(data, at))
        if not 0 < ident <= LARGEST_ID or (last is not None and not 0 < ident - last <= (LEEWAY if known else LEAP)):
            return None
        return (header + size, ident, False) if known or (timeout < LARGEST_TIMEOUT and verb < LARGEST_VERB) else None
    ident, size = _response(data, at)
    absolute = abs(ident)
    if not 0 < absolute <= LARGEST_ID or absolute in ids.seen or (ident < 0 and size < 8):
        return None
    if last is not None and abs(absolute - abs(last)) > (LEEWAY if known else SPREAD):
        return None
    if ident > 0 or bound - at < header + 8:
        return header + size, ident, False
    what, inside = _record(data, at + header)
    return (header + size, ident, True) if inside == size - 8 and (known or what < EXCEPTION_KINDS) else None


def plausible(framing: SeastarFraming, message: bytes) -> bool:
    """Whether these unpacked bytes are one frame with a header that the library could have written."""
    head = _head(framing, message, 0, len(message), _NO_IDS)
    return head is not None and head[0] == len(message)


def possible(
    known: dict[int, list[SeastarFraming]],
    position: int,
    framings: Iterable[SeastarFraming],
    data: bytes,
    at: int,
    bound: int,
    work_budget: WorkBudget,
) -> list[SeastarFraming] | None:
    """Return those of `framings` that the first header at `at` leaves possible, whatever follows; None if no work budget is left.

    `known` keeps them by `position`, that of `at`, once the complete header is there: look there first.
    """
    if not work_budget.spend(LIKELY):
        return None
    found = likely(framings, data, at, bound)
    if bound - at >= LONGEST_HEADER:
        known[position] = found
    return found


def rule_out(known: dict[int, list[SeastarFraming]], position: int, gone: Collection[SeastarFraming]) -> None:
    """Remove the framings that no further byte will make fit at `position`."""
    if position in known:
        known[position] = [framing for framing in known[position] if framing not in gone]


def likely(framings: Iterable[SeastarFraming], data: bytes, at: int, bound: int) -> list[SeastarFraming]:
    """Those of `framings` that the first header at `at` does not rule out; a cheap test before `fit`."""
    return [framing for framing in framings if _may_begin(framing, data, at, bound)]


def _may_begin(framing: SeastarFraming, data: bytes, at: int, bound: int) -> bool:
    codec = framing.codec
    if codec is None:
        return _head(framing, data, at, bound, _NO_IDS) is not None
    if framing.kind == "sealed":
        return bound - at >= 4
    return bound - at < 8 or _packed(codec, *_record(data, at))


def may_follow(framing: SeastarFraming, data: bytes, at: int, bound: int, last_id: int) -> bool:
    """Whether the msg_id of a frame that begins at `at` may follow this one, as far as its header is there; a bad frame may."""
    if framing.codec is not None or framing.kind == "stream" or bound - at < LONGEST_HEADER:
        return True
    ident: int = _i64(data, at + (PLACES[framing.kind, framing.extra][2] or 0))[0]
    if framing.kind == "request":
        return 0 < abs(ident) - last_id <= LEEWAY
    return ident != 0 and abs(abs(ident) - abs(last_id)) <= LEEWAY


def within(framings: Iterable[SeastarFraming], data: bytes, at: int, bound: int, missing: int = 0) -> list[SeastarFraming]:
    """Those of `framings` whose first frame may be in data[at:bound], judged by its first length: another cheap test."""
    after = at + 4 + _u32(data, at)[0] if bound - at >= 4 else bound + 1
    if after <= bound or after == bound + missing:
        return list(framings)
    return [framing for framing in framings if framing.codec is None]


LIKELY: Final = 3 * STEP
"""What `likely` costs."""

_NO_IDS: Final = MsgIds(None)


def _packed(codec: str, size: int, head: int) -> bool:
    """Whether a compressed frame of this size may begin with this header."""
    if codec == SCYLLA_V3:
        header = head & 0xFF
        return header & ALGORITHM in METHODS and 4 + size >= head_size(header)
    if size < 8:
        return size < 4
    if codec == LZ4:
        return 4 <= head <= RATIO * size
    return 4 <= head - LAST_CHUNK <= RATIO * size if head >= LAST_CHUNK else head < size
