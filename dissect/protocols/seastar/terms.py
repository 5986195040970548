"""What both sides agreed on: the records of their negotiation frames, and which framings they leave possible."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from struct import Struct
from typing import Literal, NamedTuple

from ...units import lossy
from . import MAGIC
from .compression import LZ4, LZ4_FRAGMENTED, SCYLLA_V3
from .layouts import (
    COMPRESS,
    CONNECTION_ID,
    FEATURES,
    HANDLER_DURATION,
    ISOLATION,
    STREAM_PARENT,
    TIMEOUT,
)

Kind = Literal["request", "response", "stream", "sealed"]
Connection = Literal["rpc", "stream"]

_u32 = Struct("<I").unpack_from
_record = Struct("<II").unpack_from

OPENED = (LZ4, LZ4_FRAGMENTED, SCYLLA_V3)
"""Compressions that are opened; frames in any other are "sealed"."""

GREETING = len(MAGIC) + 4
"""The header of a negotiation frame."""

MAX_FEATURES, MAX_ALGORITHMS = 256, 64
"""Records of a negotiation frame, and names of compressions, that are remembered. There are six and a handful."""

REMEMBERED = 64
"""The most bytes of names of compressions for which the agreed terms are remembered."""


_LENGTH_ALONE = (4, 0, None)
PLACES: dict[tuple[Kind, bool], tuple[int, int, int | None]] = {
    ("request", True): (28, 24, 16),
    ("request", False): (20, 16, 8),
    ("response", True): (16, 8, 0),
    ("response", False): (12, 8, 0),
}


class SeastarFraming(NamedTuple):
    """How the frames of one side look; `extra`: with the timeout (requests) or the handler duration (responses)."""

    kind: Kind
    extra: bool
    codec: str | None

    @property
    def places(self) -> tuple[int, int, int | None]:
        """The size of a frame's header, of the outer one where it is compressed; where in it the length stands; and where the msg_id, None
        where there is none, or it is compressed."""
        return PLACES.get((self.kind, self.extra), _LENGTH_ALONE) if self.codec is None else _LENGTH_ALONE

    @property
    def header(self) -> int:
        return self.places[0]

    def __str__(self) -> str:
        extra = {"request": " with timeout", "response": " with handler duration"}.get(self.kind, "") if self.extra else ""
        return f"{self.kind}{extra}" + (f" in {self.codec}" if self.codec is not None else "")


class Offer(NamedTuple):
    """The records of one negotiation frame; a number that occurs twice counts once. `rest`: bytes of records that were not read."""

    features: dict[int, bytes]
    rest: int

    @property
    def algorithms(self) -> list[str]:
        offered = self.features.get(COMPRESS)
        if not offered:
            return []
        names = lossy(offered).split(",", MAX_ALGORITHMS)
        return [name for name in names[:MAX_ALGORITHMS] if name]

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
        if len(features) < MAX_FEATURES:
            features.setdefault(number, data[at + 8 : at + 8 + size])
        at += 8 + size
    return Offer(features, stop - at)


class NegotiatedTerms(NamedTuple):
    """What may be in force on a connection; one value each where it is known."""

    connections: tuple[Connection, ...]
    timeouts: tuple[bool, ...]
    durations: tuple[bool, ...]
    codecs: tuple[str | None, ...]

    def layouts(self) -> tuple[str, ...]:
        """Names of the terms that may be in force, as in `-d`."""
        return _layouts(self) if _OURS.issuperset(self.codecs) else _layouts.__wrapped__(self)

    def framings(self, client: bool | None) -> tuple[SeastarFraming, ...]:
        """The framings possible for a side that is the client, the server, or either (None); the surest to recognise first."""
        return _framings(self, client) if _OURS.issuperset(self.codecs) else _framings.__wrapped__(self, client)

    def narrowed(self, framing: SeastarFraming) -> NegotiatedTerms:
        """Return the terms that are left when one side is framed like this."""
        connections, timeouts, durations, _ = self
        match framing.kind:
            case "request":
                connections, timeouts = ("rpc",), (framing.extra,)
            case "response":
                connections, durations = ("rpc",), (framing.extra,)
            case "stream":
                connections, timeouts, durations = ("stream",), (False,), (False,)
        return NegotiatedTerms(connections, timeouts, durations, (framing.codec,))


_OURS = frozenset((None, *OPENED))
"""There are few terms with these codecs alone, and every connection asks for them; other names are anybody's, and not remembered."""


@lru_cache(256)
def _layouts(terms: NegotiatedTerms) -> tuple[str, ...]:
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
def _framings(terms: NegotiatedTerms, client: bool | None) -> tuple[SeastarFraming, ...]:
    found: list[SeastarFraming] = []
    for codec in sorted(terms.codecs, key=lambda name: name is None):
        if codec is not None and codec not in OPENED:
            found.append(SeastarFraming("sealed", False, codec))
            continue
        if "rpc" in terms.connections:
            if client is not False:
                found += [SeastarFraming("request", extra, codec) for extra in sorted(terms.timeouts, reverse=True)]
            if client is not True:
                found += [SeastarFraming("response", extra, codec) for extra in sorted(terms.durations, reverse=True)]
    if "stream" in terms.connections:
        found += [SeastarFraming("stream", False, codec) for codec in terms.codecs if codec is None or codec in OPENED]
    return tuple(found)


UNKNOWN = NegotiatedTerms(("rpc",), (False, True), (False, True), (*OPENED, None))
"""Without any negotiation. That it is a stream is never guessed."""

FORCED: dict[str, NegotiatedTerms] = {
    name: terms
    for codec in (None, *OPENED)
    for terms in (
        *(NegotiatedTerms(("rpc",), (timeout,), (duration,), (codec,)) for timeout, duration in product((False, True), repeat=2)),
        NegotiatedTerms(("stream",), (False,), (False,), (codec,)),
    )
    for name in terms.layouts()
}
"""Layouts that can be asked for, by name."""


def agree(client: Offer | None, server: Offer | None) -> NegotiatedTerms:
    """Return the terms that the negotiation frames allow. The server's states those in force, but only the client's shows a stream."""
    if client is None and server is None:
        return UNKNOWN
    if all(one is None or (not one.rest and len(one.features.get(COMPRESS, b"")) <= REMEMBERED) for one in (client, server)):
        return _agree_again(_gist(client), _gist(server))
    return _agree(client, server)


def _gist(offer: Offer | None) -> tuple[tuple[int, bytes], ...] | None:
    """Return the part of a complete offer that determines the terms in force: the features, and the names of compressions."""
    if offer is None:
        return None
    return tuple((number, data if number == COMPRESS else b"") for number, data in offer.features.items() if number in FEATURES)


@lru_cache(256)
def _agree_again(client: tuple[tuple[int, bytes], ...] | None, server: tuple[tuple[int, bytes], ...] | None) -> NegotiatedTerms:
    """Connections differ in their ids and cookies, hardly in their terms."""
    return _agree(None if client is None else Offer(dict(client), 0), None if server is None else Offer(dict(server), 0))


def _agree(client: Offer | None, server: Offer | None) -> NegotiatedTerms:
    connections = _connections(client, server)
    granted = list(_grants(client, server))
    timeouts = {TIMEOUT in one and connections != ("stream",) for one in granted}
    durations = {HANDLER_DURATION in one for one in granted}
    codecs = dict.fromkeys(codec for one in granted for codec in _codecs(client, one))
    return NegotiatedTerms(connections, tuple(sorted(timeouts)), tuple(sorted(durations)), tuple(codecs))


def _connections(client: Offer | None, server: Offer | None) -> tuple[Connection, ...]:
    if client is not None and STREAM_PARENT in client.features:
        return ("stream",)
    # A stream connection never offers a timeout, and needs a server that gives ids.
    rpc_only = server is not None and (TIMEOUT in server.features or (not server.rest and CONNECTION_ID not in server.features))
    return ("rpc",) if rpc_only or (client is not None and not client.rest) else ("rpc", "stream")


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
    # The size of the missing part shows which of the offered records it holds.
    yield from fitting if bounded and fitting else possible


def _codecs(client: Offer | None, granted: dict[int, bytes]) -> list[str | None]:
    names = Offer(granted, 0).algorithms
    if len(names) > 1 and client is not None:
        # Servers before September 2020 name all they support.
        names = [name for name in client.algorithms if name in names][:1] or names
    return [*names] or [None]
