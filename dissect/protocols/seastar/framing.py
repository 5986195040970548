"""What the frames of a connection look like: agreed on in the negotiation, or inferred from how the bytes chain.

A sound guess tiles the bytes from the start of a segment to the end of one, two frames at least, and each header must be one that
the library could have written. Streams are no part of a guess, unless the negotiation leaves open that it is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import product
from re import DOTALL, compile
from struct import Struct
from typing import Final, Literal, NamedTuple

from dissect.layout.values import lossy
from dissect.protocols.effort import STEP, Effort
from dissect.protocols.seastar.compression import LAST_CHUNK, LZ4, LZ4_FRAGMENTED, RATIO, Unpackable, chunks, unpack, unpack_head
from dissect.protocols.seastar.layouts import (
    COMPRESS,
    CONNECTION_ID,
    END_OF_STREAM,
    HANDLER_DURATION,
    ISOLATION,
    MAGIC,
    STREAM_PARENT,
    TIMEOUT,
)

Kind = Literal["request", "response", "stream", "sealed"]
Connection = Literal["rpc", "stream"]

_u32 = Struct("<I").unpack_from
_record = Struct("<II").unpack_from
_request = Struct("<QqI").unpack_from
_request_timeout = Struct("<QQqI").unpack_from
_response = Struct("<qI").unpack_from

OPENED = (LZ4, LZ4_FRAGMENTED)
"""Compressions that are opened; frames in any other are "sealed"."""

GREETING = len(MAGIC) + 4
"""The header of a negotiation frame."""

LONGEST_HEADER = 28

LARGEST_ID = 1 << 48
LARGE_ID = 1 << 32
LARGE_ID_FRAMES = 4
"""A guess whose msg_ids are large needs so many frames."""
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
SCANNED = 4
"""What a byte costs in which headers are looked for."""
NEVER = 1 << 62

FEATURES_KEPT, ALGORITHMS_KEPT = 256, 64
"""So many records of a negotiation frame are remembered, and so many names of compressions. There are six and a handful."""

LEEWAY = 1 << 20
"""How far msg_ids may be from the last one where the framing is known and frames in between were lost."""


class Framing(NamedTuple):
    """How the frames of one side look; `extra`: with the timeout (requests) or the handler duration (responses)."""

    kind: Kind
    extra: bool
    codec: str | None

    @property
    def header(self) -> int:
        """The size of a frame's header; of the outer one where it is compressed."""
        if self.codec is not None or self.kind == "stream":
            return 4
        if self.kind == "request":
            return 28 if self.extra else 20
        return 16 if self.extra else 12

    @property
    def length_at(self) -> int:
        """Where in the header the length stands."""
        if self.codec is not None or self.kind == "stream":
            return 0
        if self.kind == "request":
            return 24 if self.extra else 16
        return 8

    def __str__(self) -> str:
        extra = {"request": " with timeout", "response": " with handler duration"}.get(self.kind, "") if self.extra else ""
        return f"{self.kind}{extra}" + (f" in {self.codec}" if self.codec is not None else "")


class Offer(NamedTuple):
    """The records of one negotiation frame; a number that occurs twice counts once. `rest`: bytes of records that were not read."""

    features: dict[int, bytes]
    rest: int

    @property
    def algorithms(self) -> list[str]:
        names = lossy(self.features.get(COMPRESS, b"")).split(",", ALGORITHMS_KEPT)
        return [name for name in names[:ALGORITHMS_KEPT] if name]

    def exceeds(self, other: Offer) -> bool:
        """Whether this holds all that `other` does and more, as an offer may be to its answer."""
        mine, theirs = {*self.features, *self.algorithms}, {*other.features, *other.algorithms}
        return mine > theirs


def read_offer(data: bytes) -> Offer:
    """The records of the negotiation frame that `data` is, or that it begins."""
    stop = GREETING + _u32(data, len(MAGIC))[0]
    end = min(stop, len(data))
    at = GREETING
    features: dict[int, bytes] = {}
    while end - at >= 8:
        number, size = _record(data, at)
        if at + 8 + size > end:
            break
        if len(features) < FEATURES_KEPT:
            features.setdefault(number, data[at + 8 : at + 8 + size])
        at += 8 + size
    return Offer(features, stop - at)


class Terms(NamedTuple):
    """What may be in force on a connection; one value each where it is known."""

    connections: tuple[Connection, ...]
    timeouts: tuple[bool, ...]
    durations: tuple[bool, ...]
    codecs: tuple[str | None, ...]

    def layouts(self) -> tuple[str, ...]:
        """Names of what may be in force, as `-d` takes them."""
        return _layouts(self) if _OURS.issuperset(self.codecs) else _layouts.__wrapped__(self)

    def framings(self, client: bool | None) -> tuple[Framing, ...]:
        """The framings possible for a side that is the client, the server, or either (None); the surest to recognise first."""
        return _framings(self, client) if _OURS.issuperset(self.codecs) else _framings.__wrapped__(self, client)

    def narrowed(self, framing: Framing) -> Terms:
        """What is left when one side is framed like this."""
        codecs: tuple[str | None, ...] = (framing.codec,)
        match framing.kind:
            case "request":
                return Terms(("rpc",), (framing.extra,), self.durations, codecs)
            case "response":
                return Terms(("rpc",), self.timeouts, (framing.extra,), codecs)
            case "stream":
                return Terms(("stream",), (False,), (False,), codecs)
            case "sealed":
                return self._replace(codecs=codecs)


_OURS = frozenset((None, *OPENED))
"""There are few terms with these codecs alone, and every connection asks for them; other names are anybody's, and not remembered."""


@lru_cache(256)
def _layouts(terms: Terms) -> tuple[str, ...]:
    found = []
    for connection, timeout, duration, codec in product(*terms):
        parts: list[str] = [connection]
        if connection == "rpc":
            parts += ["timeout"] * timeout + ["duration"] * duration
        if codec is not None:
            parts.append(codec.lower())
        found.append("+".join(parts))
    return tuple(dict.fromkeys(found))


@lru_cache(256)
def _framings(terms: Terms, client: bool | None) -> tuple[Framing, ...]:
    found: list[Framing] = []
    for codec in sorted(terms.codecs, key=lambda name: name is None):
        if codec is not None and codec not in OPENED:
            found.append(Framing("sealed", False, codec))
            continue
        if "rpc" in terms.connections:
            if client is not False:
                found += [Framing("request", extra, codec) for extra in sorted(terms.timeouts, reverse=True)]
            if client is not True:
                found += [Framing("response", extra, codec) for extra in sorted(terms.durations, reverse=True)]
    if "stream" in terms.connections:
        found += [Framing("stream", False, codec) for codec in terms.codecs if codec is None or codec in OPENED]
    return tuple(found)


UNKNOWN = Terms(("rpc",), (False, True), (False, True), (LZ4, LZ4_FRAGMENTED, None))
"""Without any negotiation. That it is a stream is never guessed."""

FORCED: dict[str, Terms] = {
    name: terms
    for codec in (None, *OPENED)
    for terms in (
        *(Terms(("rpc",), (timeout,), (duration,), (codec,)) for timeout, duration in product((False, True), repeat=2)),
        Terms(("stream",), (False,), (False,), (codec,)),
    )
    for name in terms.layouts()
}
"""Layouts that can be asked for, by name."""


_HEADS = {
    Framing("request", True, None): compile(rb"(?=.{5}\0{3}.{4}\0{4}.{4}\0{4}.{3}\0)", DOTALL),
    Framing("request", False, None): compile(rb"(?=.{4}\0{4}.{4}\0{4}.{3}\0)", DOTALL),
    Framing("response", True, None): compile(rb"(?=.{4}(?:\0{4}|\xff{4}).{3}\0)", DOTALL),
    Framing("response", False, None): compile(rb"(?=.{4}(?:\0{4}|\xff{4}).{3}\0)", DOTALL),
}
"""What finds the headers of plain frames, of sizes below 16 MiB: timeout, verb and msg_id are small numbers of 64 bits."""


def agree(client: Offer | None, server: Offer | None) -> Terms:
    """What the negotiation frames leave possible. The server's says what is in force, except that only the client's tells a stream."""
    if client is None and server is None:
        return UNKNOWN
    connections = _connections(client, server)
    if connections == ("stream",):
        timeouts: set[bool] = {False}
    else:
        timeouts = set()
    durations: set[bool] = set()
    codecs: dict[str | None, None] = {}
    for granted in _grants(client, server):
        timeouts.add(TIMEOUT in granted and connections != ("stream",))
        durations.add(HANDLER_DURATION in granted)
        for codec in _codecs(client, granted):
            codecs[codec] = None
    return Terms(connections, tuple(sorted(timeouts)), tuple(sorted(durations)), tuple(codecs))


def _connections(client: Offer | None, server: Offer | None) -> tuple[Connection, ...]:
    if client is not None and STREAM_PARENT in client.features:
        return ("stream",)
    if client is not None and not client.rest:
        return ("rpc",)
    if server is not None and (TIMEOUT in server.features or (not server.rest and CONNECTION_ID not in server.features)):
        # A stream connection never offers a timeout, and takes a server that has ids to give.
        return ("rpc",)
    return ("rpc", "stream")


def _grants(client: Offer | None, server: Offer | None) -> Iterator[dict[int, bytes]]:
    """The records that the server's frame may hold."""
    if server is not None and not server.rest:
        yield server.features
        return
    known = server.features if server is not None else {}
    bounded = client is not None and not client.rest
    offered = client.features if client is not None else {}
    choices: list[list[tuple[int, bytes] | None]] = []
    for number in (TIMEOUT, HANDLER_DURATION, ISOLATION, CONNECTION_ID):
        if number in known:
            continue
        one = (number, bytes(8) if number == CONNECTION_ID else offered.get(number, b""))
        choices.append([None, one] if number in offered or number == CONNECTION_ID or not bounded else [None])
    if COMPRESS not in known:
        names = client.algorithms if client is not None and client.algorithms else [] if bounded else list(OPENED)
        choices.append([None, *((COMPRESS, name.encode()) for name in names)])
    fitting: list[dict[int, bytes]] = []
    possible: list[dict[int, bytes]] = []
    for combination in product(*choices):
        granted = dict(one for one in combination if one is not None)
        possible.append({**known, **granted})
        if server is not None and sum(8 + len(data) for data in granted.values()) == server.rest:
            fitting.append({**known, **granted})
    # The size of what is missing tells which records it holds, as far as they were offered.
    yield from fitting if bounded and fitting else possible


def _codecs(client: Offer | None, granted: dict[int, bytes]) -> list[str | None]:
    names = Offer(granted, 0).algorithms
    if not names:
        return [None]
    if len(names) > 1 and client is not None:
        # Servers before September 2020 name all they support.
        chosen = [name for name in client.algorithms if name in names][:1]
        names = chosen or names
    return list(names)


def needed(segments: int, size: int) -> int:
    """How many frames make a guess whose chain spans so many segments of so many bytes in all."""
    if segments <= NEAR:
        return 2
    # Small segments begin and end anywhere, so that ending with one means little.
    return 3 if segments <= FAR and size >= segments * LARGE_SEGMENT else NEVER


class Ends(NamedTuple):
    """Where the segments from one on end, `FAR` of them at most, and how many frames have to end there; as a mapping, but nothing is made
    for those that no frame ends with."""

    starts: list[int]
    segment: int
    end: int

    @property
    def last(self) -> int:
        following = self.segment + FAR
        return self.starts[following] if following < len(self.starts) else self.end

    def get(self, position: int, otherwise: int) -> int:
        starts = self.starts
        index = bisect_left(starts, position, self.segment + 1)
        if position != (starts[index] if index < len(starts) else self.end) or position > self.last:
            return otherwise
        return needed(index - self.segment, position - starts[self.segment])


class Fit(NamedTuple):
    """Frames that tile the bytes up to `end`; `proof`: something in them that chance does not make."""

    end: int
    frames: int
    proof: bool
    first_id: int
    last_id: int

    @property
    def doubt(self) -> tuple[bool, int]:
        """Lower is better: a wrong framing takes two small numbers for one large msg_id."""
        return not self.proof, max(abs(self.first_id), abs(self.last_id))


RULED_OUT: Final = Fit(-1, 0, False, 0, 0)
"""Says that no further byte will make these frames."""


def fit(
    framing: Framing,
    data: bytes,
    at: int,
    bound: int,
    ends: Mapping[int, int] | Ends,
    effort: Effort,
    *,
    proof_will_do: bool = False,
    previous: int | None = None,
    known: bool = False,
    missing: int = 0,
    limit: int = 1 << 20,
) -> Fit | None:
    """Follow frames from `at` in data[:bound] to the first of `ends` that enough of them (its value) reach, or that a proof reaches.

    `known`: the framing is certain and only the place is not; `previous` is the msg_id that this side sent last.
    A hole of `missing` bytes follows `bound`: a frame may also end right behind it.
    `limit` bounds what is unpacked, `effort` all of it: where none is left, no frames are found. RULED_OUT where bytes that are there
    are no frames, whatever follows.
    """
    frames = 0
    proof = False
    first = 0
    last = previous
    seen: set[int] = set()
    kind, extra, codec = framing
    while at < bound:
        if not effort.spend(STEP):
            return None
        inner, begin, stop = data, at, bound
        if codec is not None:
            if bound - at < 4:
                return None
            after = at + 4 + _u32(data, at)[0]
            if after > bound and after != bound + missing:
                return None
            if kind == "sealed" or after - at < 8:
                frames += after - at >= 8
                at = after
                if frames >= ends.get(at, NEVER):
                    return Fit(at, frames, proof, first, first)
                continue
            inner = _opened(codec, data, at, min(after, bound), after, limit)
            if not inner:
                return RULED_OUT if after <= bound else None
            begin, stop = 0, len(inner)
            effort.spend(min(after, bound) - at + (stop >> 2))
        head = _head(kind, extra, inner, begin, stop, last, seen, known)
        if head is None:
            whole = stop - begin >= LONGEST_HEADER if codec is None else after <= bound
            return RULED_OUT if whole else None
        size, ident, proved = head
        if codec is None:
            after = at + size
            if after > bound and after != bound + missing:
                return None
        elif after <= bound:
            if size != stop:
                return RULED_OUT
            proved = True
        proof = proof or proved
        if ident:
            last = ident
            first = first or ident
            seen.add(abs(ident))
        frames += kind != "stream" or size > 4
        need = ends.get(after, NEVER)
        if not known and abs(ident) >= LARGE_ID and not proof:
            need = max(need, LARGE_ID_FRAMES)
        if frames >= need or (proof and proof_will_do and need < NEVER):
            return Fit(after, frames, proof, first, last or 0)
        at = after
    return None


def inside(framing: Framing, data: bytes, at: int, end: int, previous: int | None, effort: Effort) -> int | None:
    """The first place in data[at:end], be it in the middle of a segment, from which plain frames of a framing that is certain follow each
    other to `end`, or so many requests in turn that it can be no chance. `previous`: the msg_id that this side sent last."""
    heads = _HEADS.get(framing)
    if heads is None or not effort.spend(SCANNED * (end - at)):
        return None
    kind, extra, _ = framing
    for match in heads.finditer(data, at, end):
        start = place = match.start()
        last, seen = previous, set[int]()
        while place < end:
            if not effort.spend(STEP):
                return None
            head = _head(kind, extra, data, place, end, last, seen, False)
            if head is None or place + head[0] > end:
                break
            place, last = place + head[0], head[1] or last
            seen.add(abs(head[1]))
        # Behind the last one there is nothing, or the beginning of another
        ends = place == end or (kind == "request" and (head is not None or end - place < framing.header))
        if ends and len(seen) >= (IN_TURN if place < end else CERTAIN if previous is None else CERTAIN - 1):
            return start
    return None


def _opened(codec: str, data: bytes, at: int, there: int, after: int, limit: int) -> bytes:
    """The unpacked frame, or its beginning where it is not all there; nothing if it does not unpack."""
    try:
        if there == after:
            blocks = chunks(codec, data, at, after, limit)
            return unpack(blocks, data, at) if blocks else b""
        return unpack_head(data[at + 8 : there], 64)
    except Unpackable:
        return b""


def _head(
    kind: Kind, extra: bool, data: bytes, at: int, bound: int, last: int | None, seen: Set[int], known: bool
) -> tuple[int, int, bool] | None:
    """Size, msg_id and proof of the plain frame whose header stands at `at`; None if that is no header."""
    if kind == "stream":
        if bound - at < 4:
            return None
        size = _u32(data, at)[0]
        return (4 if size == END_OF_STREAM else 4 + size), 0, False
    if kind == "request":
        if bound - at < (28 if extra else 20):
            return None
        timeout = 0
        if extra:
            timeout, verb, ident, size = _request_timeout(data, at)
        else:
            verb, ident, size = _request(data, at)
        if not 0 < ident <= LARGEST_ID or (last is not None and not 0 < ident - last <= (LEEWAY if known else LEAP)):
            return None
        if not known and (timeout >= LARGEST_TIMEOUT or verb >= LARGEST_VERB):
            return None
        return (28 if extra else 20) + size, ident, False
    header = 16 if extra else 12
    if bound - at < header:
        return None
    ident, size = _response(data, at)
    absolute = abs(ident)
    if not 0 < absolute <= LARGEST_ID or absolute in seen:
        return None
    if last is not None and abs(absolute - abs(last)) > (LEEWAY if known else SPREAD):
        return None
    if ident > 0:
        return header + size, ident, False
    body = at + header
    if size < 8:
        return None
    if bound - body < 8:
        return header + size, ident, False
    what, inside = _record(data, body)
    if inside != size - 8 or (what >= EXCEPTION_KINDS and not known):
        return None
    return header + size, ident, True


def likely(framings: Iterable[Framing], data: bytes, at: int, bound: int) -> list[Framing]:
    """Those of `framings` that the first header at `at` does not rule out; a cheap test before `fit`."""
    found: list[Framing] = []
    packed: dict[str | None, bool] = {}
    for framing in framings:
        kind, extra, codec = framing
        if codec is None:
            possible = _head(kind, extra, data, at, bound, None, _NONE_SEEN, False) is not None
        elif kind == "sealed":
            possible = bound - at >= 4
        else:
            if codec not in packed:
                packed[codec] = bound - at < 8 or _packed(codec, *_record(data, at))
            possible = packed[codec]
        if possible:
            found.append(framing)
    return found


def within(framings: Iterable[Framing], data: bytes, at: int, bound: int, missing: int = 0) -> list[Framing]:
    """Those of `framings` whose first frame may be in data[at:bound], as far as its first length tells: another cheap test."""
    after = at + 4 + _u32(data, at)[0] if bound - at >= 4 else bound + 1
    if after <= bound or after == bound + missing:
        return list(framings)
    return [framing for framing in framings if framing.codec is None]


LIKELY: Final = 3 * STEP
"""What `likely` costs."""

_NONE_SEEN: Final[frozenset[int]] = frozenset()


def _packed(codec: str, size: int, head: int) -> bool:
    """Whether a compressed frame of this size may begin with this header."""
    if size < 8:
        return size < 4
    if codec == LZ4:
        return 4 <= head <= RATIO * size
    return 4 <= head - LAST_CHUNK <= RATIO * size if head >= LAST_CHUNK else head < size


def plausible(framing: Framing, data: bytes, at: int, bound: int) -> bool:
    """Whether a frame of this framing may begin at `at`, for one side whose place was inferred."""
    if framing.codec is not None or framing.kind == "stream":
        return True
    ident: int = _response(data, at)[0] if framing.kind == "response" else _request(data, at + 8 * framing.extra)[1]
    return 0 < abs(ident) <= LARGEST_ID
