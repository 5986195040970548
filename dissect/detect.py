"""Detects the protocol of a conversation: evidence from its first bytes becomes a verdict."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

from .layers.proxy import SIGNATURES
from .model import Options, SideData, StreamGap, Verdict
from .protocols import BY_NAME, PORTS, PROTOCOLS, server_ports
from .protocols.protocol import DetectionView, Protocol, SideView
from .protocols.work_budget import STEP, WorkBudget

CERTAIN = 0.9
"""From this confidence on a verdict is final at once."""

ENOUGH = 0.5
"""Below this confidence no protocol is named, even if no byte follows."""

CLOSE = 0.05
"""Verdicts closer than this are decided by the port, or not at all."""

EVERY_PACKET = 32
"""Packets with data that are checked one by one; later only when the bytes have grown by a quarter.

All checks are paid for by bytes (see `work_budget`).
"""

LEAST = 8
"""Bytes needed for a check."""

WEIGHING = 32 * STEP
"""The cost of calling all heuristics."""

FIRST = 8 * WEIGHING
"""The initial budget: the first packets are often small, and show most."""

MAX_RESTARTS, LITTLE = 16, 16
"""How often detection restarts behind the bytes it may buffer, in the middle of a conversation on a known port: a frame may be larger.
A side that sent less than one in LITTLE of these bytes is not restarted."""

LOGIN_WINDOW = 4_096
"""Bytes of each side that are searched for a login of another protocol than the forced one."""

LOGIN_REACH = 160
"""Bytes of a login at most."""

BEGINNING = 4_096
"""If bytes are lost within this number of bytes of a side, those behind the loss may show more than those before."""

NO_BYTES, TOO_FEW, NOTHING_FITS = (Verdict(None, 0.0, (reason,)) for reason in ("no bytes", "not enough bytes yet", "nothing fits"))
"""Shared, as very many conversations may have them."""

CACHED_SIZE, CACHED_PACKETS, MAX_CACHED = 1_024, 8, 1_024
"""The result of a look at no more bytes and packets than these is cached for other conversations with the same bytes; entries of that
cache."""

_HTTP = re.compile(rb"(?:(?:GET|PUT|POST|HEAD|DELETE|OPTIONS|PATCH|CONNECT|TRACE) [!-~]+ HTTP/1\.|HTTP/1\.[01] \d{3}|PRI \* HTTP/2\.0)")
_BEGINNINGS = {
    "MQTT": re.compile(rb"\x10[\x80-\xff]{0,3}[\x00-\x7f]\x00(?:\x04MQTT|\x06MQIsdp)"),
    "STOMP": re.compile(rb"(?:CONNECT|STOMP)\r?\n[a-z-]+:"),
    "CQL": re.compile(rb"[\x03-\x05][\x00-\x1f]..(?:\x05\x00{4}(?:\Z|[\x03-\x05])|\x01\x00\x00..\x00[\x01-\x0f]\x00.[A-Z]{3})", re.DOTALL),
}
"""How connections of other protocols begin that run beside ours: on brokers of RabbitMQ, and on nodes of ScyllaDB (OPTIONS and STARTUP)."""
_AMQP = {b"AMQP\x00\x00\x09\x01": "AMQP 0-9-1", b"AMQP\x00\x01\x00\x00": "AMQP 1.0", b"AMQP\x03\x01\x00\x00": "AMQP 1.0 (SASL)"}


def forced(ports: tuple[int, int], from_start: bool, options: Options) -> Verdict | None:
    """Return the verdict of `-d tcp.port==N,protocol[:layout]`, None if it does not apply; `ports` as from `server_ports`."""
    for port, name, layout in options.decode_as:
        if port in ports:
            client = None if ports[0] == ports[1] else 0 if ports[1] == port else 1
            return Verdict(name, 1.0, (f"decode as {name} on port {port} was asked for",), None, 0 if from_start else client, layout)
    return None


class _Results(msgspec.Struct):
    """What the checks of a conversation found so far, which spares later ones."""

    known: dict[Any, Any] = {}
    latest: tuple[int, bool] = (-1, False)
    """The bytes of the last check, and whether from a SYN on: `verdicts` belong to these."""
    verdicts: dict[str, Verdict | None] = {}
    behind: _Results | None = None
    """The same for the bytes behind a loss in the first frames."""


class _CachedLook(NamedTuple):
    verdict: Verdict | None
    effort: int
    """Its cost."""
    results: _Results | None
    """What it left for later ones; None if there is a verdict, after which none follows."""
    protocols: tuple[Protocol, ...]
    """The protocols it asked."""


_cached_looks: dict[tuple[Any, ...], _CachedLook] = {}
"""By the checked bytes."""


class Suspicion(msgspec.Struct):
    """Searches the first bytes of a conversation with a forced protocol for a login of another one, whose password would not be
    recognised as secret."""

    protocol: str
    ports: tuple[int, int]
    from_start: bool
    first_bytes: list[bytes] = msgspec.field(default_factory=lambda: [b"", b""])
    """The bytes of each side so far."""

    def add(self, items: list[SideData | StreamGap]) -> tuple[str | None, bool]:
        """Return the protocol that these bytes log in to, and whether the search is done."""
        for item in items:
            if type(item) is not SideData or len(self.first_bytes[item.side]) >= LOGIN_WINDOW:
                continue
            side, since = item.side, max(0, len(self.first_bytes[item.side]) - LOGIN_REACH)
            first_bytes = self.first_bytes[side] = self.first_bytes[side] + item.data[: LOGIN_WINDOW - len(self.first_bytes[side])]
            if len(first_bytes) < LEAST:
                continue
            for protocol in PROTOCOLS:
                login = protocol.loaded.login
                if login is not None and protocol.name != self.protocol:
                    match = login.search(first_bytes, since)
                    if match is not None:
                        return None if self._fits(side, match.end()) else protocol.name, True
        return None, all(len(first_bytes) >= LOGIN_WINDOW for first_bytes in self.first_bytes)

    def _fits(self, side: int, end: int) -> bool:
        """Return whether the bytes up to `end` are those of the forced protocol after all."""
        seen = [SideView([(0, self.first_bytes[one][:end])] if one == side else [], self.from_start, [0]) for one in (0, 1)]
        verdict = BY_NAME[self.protocol].loaded.heuristic(DetectionView((seen[0], seen[1]), self.ports, self.from_start, True))
        return verdict is not None and verdict.confidence >= CERTAIN


class _Seen(msgspec.Struct):
    """The joined bytes of a conversation, and the results of their checks."""

    runs: tuple[list[tuple[int, bytearray]], list[tuple[int, bytearray]]] = msgspec.field(default_factory=lambda: ([], []))
    segments: tuple[list[int], list[int]] = msgspec.field(default_factory=lambda: ([], []))
    breaks: list[tuple[int, int]] = []
    """Side and position of gaps of unknown size: bytes behind them do not continue those before."""
    work_budget: WorkBudget = msgspec.field(default_factory=WorkBudget)
    results: _Results = msgspec.field(default_factory=_Results)

    def put(self, side: int, position: int, data: bytes) -> None:
        runs = self.runs[side]
        if runs and runs[-1][0] + len(runs[-1][1]) == position and (side, position) not in self.breaks:
            start, run = runs[-1]
        else:
            start, run = position, bytearray()
            runs.append((start, run))
        self.segments[side].append(position)
        run += data
        self.work_budget.pay(len(data))


class Detector:
    """Buffers the bytes of a conversation until its protocol is certain, or certainly unknown."""

    __slots__ = (
        "_results",
        "_seen",
        "cost",
        "dictionaries",
        "effort",
        "from_start",
        "items",
        "limit",
        "limited",
        "looks",
        "next_size",
        "packets",
        "passed",
        "ports",
        "restarts_left",
        "size",
    )

    SEGMENT_COST, OWN_COST, SEEN_COST = 256, 512, 2_048
    """Memory of a segment besides its bytes, which are stored twice; of a detector, and more once the bytes are joined."""

    def __init__(self, ports: tuple[int, int], from_start: bool, limit: int, dictionaries: tuple[bytes, ...] = ()) -> None:
        """`ports` as from `server_ports`."""
        self.ports = ports
        self.from_start = from_start
        self.limit = limit
        self.dictionaries = dictionaries
        self.items: list[SideData | StreamGap] = []
        self.packets = 0
        """Packets with bytes."""
        self.size = 0
        self.cost = 0
        """Approximate memory in bytes."""
        self.limited = False
        self.restarts_left = 0 if from_start or PORTS.isdisjoint(ports) else MAX_RESTARTS
        """How often it may restart."""
        self.passed: dict[int, StreamGap] = {}
        """By side: the bytes before the last restart, which are not checked."""
        self.looks = 0
        self.next_size = 0
        """The bytes at which the next check is due, once there are many packets."""
        self.effort = 0
        """The cost of cached checks, before there was a `_seen`."""
        self._results: _Results | None = None
        """The results after the last cached check, shared with the cache, before there was a `_seen`."""
        self._seen: _Seen | None = None
        """Made for the first check that is not cached."""

    def add(self, items: list[SideData | StreamGap]) -> Verdict | None:
        """Return the verdict with the bytes of one more packet, None while there is none."""
        brought = self._buffer(items)
        self.packets += brought
        seen = self._seen
        if seen is not None:
            self._put(seen, items)
        if not brought or self.size < min(LEAST, self.limit):
            return None
        self.limited = self.size >= self.limit
        paid = seen is None or seen.work_budget.left > 0
        if not self.limited and (self.passed or not paid or (self.packets > EVERY_PACKET and self.size < self.next_size)):
            # Bytes before these showed nothing: one look at as many has to do
            return None
        self.next_size = self.size + self.size // 4
        verdict = self._weigh(self.limited)
        if self.limited and self.restarts_left and _is_unknown(verdict) and (self._seen is None or self._seen.work_budget.left > 0):
            self._restart()
            return None
        return verdict

    def buffered(self) -> list[SideData | StreamGap]:
        """Return all buffered items; bytes before a restart are a gap of each side."""
        return [*self.passed.values(), *self.items]

    def _buffer(self, items: list[SideData | StreamGap]) -> bool:
        """Buffer these; return whether one of them has bytes."""
        self.items += items
        if items and not self.cost:
            self.cost = self.OWN_COST
        brought = False
        for item in items:
            if type(item) is SideData:
                brought, size = True, len(item.data)
                self.size += size
                self.cost += 2 * size + self.SEGMENT_COST
        return brought

    def _restart(self) -> None:
        """Skip the bytes of a side that sent many: they may be the middle of a large frame."""
        buffered: list[SideData | StreamGap] = []
        for side in (0, 1):
            mine = [item for item in self.items if item.side == side]
            if sum([len(item.data) for item in mine if type(item) is SideData]) * LITTLE < self.size:
                buffered += mine
                continue
            last = mine[-1]
            end = last.position + (len(last.data) if isinstance(last, SideData) else last.size or 0)
            begin = self.passed.get(side, mine[0]).position
            self.passed[side] = StreamGap(side, begin, end - begin, "skipped", *last.mark)
        self._seen, self._results, self.limited = None, None, False
        self.restarts_left, self.items, self.size, self.cost = self.restarts_left - 1, [], 0, 0
        self.looks = self.next_size = self.effort = 0
        self._buffer(buffered)
        self.packets = sum([type(item) is SideData for item in buffered])

    def finish(self) -> Verdict:
        """Return the verdict when no byte will follow."""
        verdict = self._weigh(True) if self.size or self.passed else NO_BYTES
        assert verdict is not None
        return verdict

    @staticmethod
    def _put(seen: _Seen, items: list[SideData | StreamGap]) -> None:
        """Add these bytes to the joined ones."""
        for item in items:
            if isinstance(item, SideData):
                seen.put(item.side, item.position, item.data)
            elif item.size is None:
                seen.breaks.append((item.side, item.position))

    def _weigh(self, final: bool) -> Verdict | None:
        """Return the verdict on the bytes so far: a cached one, as many clients begin with the same bytes, or that of a new check."""
        self.looks += 1
        if self.size > CACHED_SIZE or self.packets > CACHED_PACKETS or self.passed:
            return self._look_now(final)
        parts = tuple([(item.side, item.position, item.data if isinstance(item, SideData) else item.size) for item in self.items])
        one, two = self.ports
        key = (final, self.from_start, self.packets, one if one in PORTS else 0, two if two in PORTS else 0, parts, self.dictionaries)
        cached = _cached_looks.get(key)
        if cached is not None and cached.protocols is PROTOCOLS:
            if self._seen is None:
                self.effort += cached.effort
                self._results = cached.results
            else:
                self._seen.work_budget.spend(cached.effort)
                self._seen.results = deepcopy(cached.results) or _Results()
            return cached.verdict
        seen = self._begin()
        work_budget = seen.work_budget
        before = work_budget.left
        verdict = self._look_now(final)
        effort = before - work_budget.left
        # With little budget left, a check may have ended early
        if work_budget.left > effort:
            if len(_cached_looks) >= MAX_CACHED:
                _cached_looks.clear()
            _cached_looks[key] = _CachedLook(verdict, effort, deepcopy(seen.results) if verdict is None else None, PROTOCOLS)
        return verdict

    def _begin(self) -> _Seen:
        """Return the joined bytes."""
        seen = self._seen
        if seen is None:
            seen = self._seen = _Seen()
            self.cost += self.SEEN_COST
            self._put(seen, self.items)
            seen.work_budget.spend(self.effort - FIRST)
            if self._results is not None:
                seen.results, self._results = deepcopy(self._results), None
        return seen

    def _look_now(self, final: bool) -> Verdict | None:
        """Return the verdict of a check of all bytes."""
        seen = self._begin()
        runs = [[(position, bytes(run)) for position, run in side] for side in seen.runs]
        sides = [SideView(runs[side], self.from_start and (side, 0) not in seen.breaks, seen.segments[side]) for side in (0, 1)]
        return self._look(seen, sides, self.size, self.packets, final)

    def _look(self, seen: _Seen, sides: list[SideView], size: int, packets: int, final: bool) -> Verdict | None:
        """Return the verdict on `sides`; if it is open, and bytes were lost early, that on the bytes behind these."""
        results, work_budget = seen.results, seen.work_budget
        verdict = self._decide(*self._probe(results, work_budget, sides, size, packets, final), final)
        if not (_is_unknown(verdict) if final else verdict is None and self.looks <= EVERY_PACKET):
            return verdict
        behind = [_behind_loss(side) for side in sides]
        if behind == sides:
            return verdict
        results.behind = results.behind or _Results()
        later = self._decide(*self._probe(results.behind, work_budget, behind, size, packets, final), final)
        return verdict if later is None or later.protocol is None else later

    def _decide(self, found: list[tuple[float, Protocol, Verdict]], view: DetectionView, final: bool) -> Verdict | None:
        """Return the verdict on the results of the protocols, None while there is none."""
        found.sort(key=lambda one: -one[0])
        if found:
            confidence, _, verdict = found[0]
            rivals = [one for one in found if confidence - one[0] < CLOSE and one[2].protocol != verdict.protocol]
            if rivals and (final or confidence >= CERTAIN):
                by_port = [
                    one
                    for one in (found[0], *rivals)
                    if set(one[1].ports) & set(server_ports(self.ports, None if self.from_start else one[2].client))
                ]
                if len(by_port) == 1:
                    verdict = by_port[0][2]
                    verdict.evidence = (*verdict.evidence, "the port decides between equal candidates")
                    rivals = []
            if not rivals and (confidence >= CERTAIN or (final and confidence >= ENOUGH)):
                if self.from_start:
                    verdict.client = 0
                return verdict
        other = None if found and not final else _other_protocol(view)
        if other is not None:
            return Verdict(None, 1.0, (f"begins like {other}",), other)
        if not final:
            return None
        if not self.size:
            return NO_BYTES
        if found:
            tried = ", ".join(f"{one[2].protocol} {one[0]:.2f}" for one in found)
            return Verdict(None, 0.0, (f"not enough to tell: {tried}",))
        return NOTHING_FITS

    def _probe(
        self, results: _Results, work_budget: WorkBudget, sides: list[SideView], size: int, packets: int, final: bool
    ) -> tuple[list[tuple[float, Protocol, Verdict]], DetectionView]:
        """Return the results of the protocols, and their view."""
        # Without new bytes, results that do not depend on `final` are unchanged
        same = final and results.latest == (size, self.from_start)
        if not same:
            results.verdicts = {}
        work_budget.spend(WEIGHING + (size >> 6))
        view = DetectionView((sides[0], sides[1]), self.ports, self.from_start, final, work_budget, results.known)
        view.dictionaries = self.dictionaries
        found: list[tuple[float, Protocol, Verdict]] = []
        for protocol in PROTOCOLS:
            if self.passed and set(self.ports).isdisjoint(protocol.ports):
                continue
            if same and protocol.name in results.verdicts:
                verdict = results.verdicts[protocol.name]
            else:
                work_budget.begin(size, packets)
                view.hinges = False
                verdict = protocol.loaded.heuristic(view) if protocol.may_begin(view) else None
                if not view.hinges:
                    results.verdicts[protocol.name] = verdict
            if verdict is not None and verdict.protocol is not None and verdict.confidence > 0:
                found.append((verdict.confidence, protocol, verdict))
        results.latest = size, self.from_start
        return found, view


def _is_unknown(verdict: Verdict | None) -> bool:
    """Return whether a verdict is that nothing fits."""
    return verdict is not None and verdict.protocol is None and verdict.confidence < ENOUGH


def _behind_loss(side: SideView) -> SideView:
    """Return the bytes of a side behind those missing from its `BEGINNING`; the side itself if none is missing."""
    runs = side.runs
    if len(runs) > 1 and runs[0][0] == 0 and len(runs[0][1]) < BEGINNING:
        runs = runs[1:]
    begin = runs[0][0] if runs else 0
    return SideView(runs, False, [start for start in side.segments if start >= begin]) if begin else side


def _other_protocol(view: DetectionView) -> str | None:
    """Return the name of another protocol, if the first bytes of a side show it."""
    # A PROXY header precedes a protocol, which follows its lost bytes too
    sides = (side for side in view.sides if side.runs and (view.final or len(side.runs) == 1 or not side.runs[0][1].startswith(SIGNATURES)))
    names = (neighbour(side.runs[0][1], side.from_start) for side in sides)
    return next((name for name in names if name is not None), None)


def neighbour(data: bytes, from_start: bool) -> str | None:
    """Return the name of another protocol that the first bytes of one side show, or None."""
    if not data:
        return None
    if _tls(data):
        return "TLS"
    if data.startswith(SIGNATURES):
        return "PROXY (damaged)"
    if data[:4] == b"SSH-":
        return "SSH"
    if data[:8] in _AMQP:
        return _AMQP[data[:8]]
    if _HTTP.match(data):
        return "HTTP"
    if not from_start:
        return None
    return "Kafka" if _kafka(data) else next((name for name, begin in _BEGINNINGS.items() if begin.match(data)), None)


def _tls(data: bytes) -> bool:
    """Return whether a valid TLS record begins here that contains a handshake or is followed by another record."""
    if len(data) < 6 or not 20 <= data[0] <= 23 or data[1] != 3 or data[2] > 4:
        return False
    size = int.from_bytes(data[3:5], "big")
    if not 0 < size <= 16_384 + 2_048:
        return False
    if data[0] == 22 and data[5] in (1, 2, 11, 12, 14, 16, 20):
        return True
    following = data[5 + size : 5 + size + 3]
    return len(following) == 3 and 20 <= following[0] <= 23 and following[1] == 3 and following[2] <= 4


def _kafka(data: bytes) -> bool:
    """Return whether this is a Kafka ApiVersions, Metadata or SaslHandshake request: size, key, version, correlation id, client id."""
    if len(data) < 14:
        return False
    size = int.from_bytes(data[:4], "big")
    key = int.from_bytes(data[4:6], "big")
    version = int.from_bytes(data[6:8], "big")
    length = int.from_bytes(data[12:14], "big")
    if key not in (3, 17, 18) or version > 15 or not 10 <= size < 65_536:
        return False
    client = data[14 : 14 + length]
    return 0 < length <= size - 10 and len(client) == length and client.isascii() and client.decode().isprintable()
