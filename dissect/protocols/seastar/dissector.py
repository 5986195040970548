"""Seastar RPC: two negotiation frames say how all others look; requests from the client, responses from the server, or a stream.

Until the framing of both sides is known, bytes are taken segment by segment in packet order, so that what one side tells reaches the
other at the same packet however the bytes came; afterwards each side is cut in bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from struct import Struct
from typing import Any, ClassVar

from dissect.allowance import Allowance
from dissect.layout import Style, walk
from dissect.layout.values import RENDER, lossy
from dissect.layout.walk import NOTES_KEPT
from dissect.model import Chunk, Fault, Hole, Span
from dissect.protocols.base import Dissector
from dissect.protocols.effort import STEP
from dissect.protocols.flow import NEVER, Mark
from dissect.protocols.framing import SEARCH, WAIT
from dissect.protocols.protocol import Context, Protocol
from dissect.protocols.records import ANSWER, ASK, ASK_MAYBE, NONE, Damage, Decoded, Emitted, straighten
from dissect.protocols.seastar import compression, layouts
from dissect.protocols.seastar.behaviour import BEHAVIOUR
from dissect.protocols.seastar.compression import Unpackable
from dissect.protocols.seastar.framing import (
    FAR,
    FORCED,
    GREETING,
    LARGE_SEGMENT,
    LEAP,
    LIKELY,
    LONGEST_HEADER,
    OPENED,
    RULED_OUT,
    SPREAD,
    UNKNOWN,
    Framing,
    Offer,
    Terms,
    agree,
    fit,
    inside,
    likely,
    needed,
    plausible,
    read_offer,
    within,
)
from dissect.protocols.seastar.layouts import (
    COMPRESS,
    CONNECTION_ID,
    END_OF_STREAM,
    FEATURES,
    HANDLER_DURATION,
    ISOLATION,
    MAGIC,
    NOT_MEASURED,
    OVER,
    STREAM_PARENT,
    TIMEOUT,
)
from dissect.protocols.seastar.private import PRIVATE
from dissect.protocols.seastar.probe import NAME, SHORTEST, probe
from dissect.protocols.seastar.telling import TEXT, Teller, connection_text, hint, paired, relate, says, unanswered, verb, worked

_u32 = Struct("<I").unpack_from
_u64 = Struct("<Q").unpack_from
_i64 = Struct("<q").unpack_from
_request = Struct("<QqI").unpack_from
_request_timeout = Struct("<QQqI").unpack_from
_response = Struct("<qI").unpack_from
_response_duration = Struct("<qII").unpack_from
_record = Struct("<II").unpack_from

# How a side's next frame is decoded
_LATE, _GREETING, _REQUEST_TIMEOUT, _REQUEST, _RESPONSE_DURATION, _RESPONSE, _STREAM, _SEALED = range(8)
_MODES = {
    ("request", True): _REQUEST_TIMEOUT,
    ("request", False): _REQUEST,
    ("response", True): _RESPONSE_DURATION,
    ("response", False): _RESPONSE,
    ("stream", False): _STREAM,
    ("sealed", False): _SEALED,
}

LATEST = 4
"""In so many segments frames are looked for that begin anywhere."""

_EXPECTED, _SEEN, _MISSED = range(3)
"""A side's negotiation frame: may still come, was there (whole or not), will not come."""


class SeastarDissector(Dissector):
    """Frames whose headers depend on what both sides negotiated."""

    protocol: ClassVar[str] = NAME
    header_size: ClassVar[int] = 4
    reuse: ClassVar[str] = "supersede"
    DERIVED = ("tables", "names", "one_way", "style", "render", "forced", "agreed")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        options = context.options
        self.allowance = Allowance()
        self.tables = layouts.Tables(options.verbs) if options.verbs else layouts.PLAIN
        self.names = options.verbs
        self.one_way: frozenset[int] = getattr(options.verbs, "one_way", frozenset())
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.render = RENDER[options.bytes_as]
        self.forced = FORCED.get(context.verdict.layout or "")
        self.agreed: tuple[Offer | None, Offer | None, Terms] | None = None
        # What is known when bytes are cut
        self.greetings = [_EXPECTED, _EXPECTED]
        self.offers: list[Offer | None] = [None, None]
        self.framings: list[Framing | None] = [None, None]
        self.inferred: list[str | None] = [None, None]
        self.strict = [False, False]
        self.last_ids: list[int | None] = [None, None]
        self.possible: tuple[dict[int, list[Framing]], dict[int, list[Framing]]] = ({}, {})
        self.held = [False, False]
        self.heard: list[tuple[int | None, int, bool] | None] = [None, None]
        self.first: int | None = None
        self.news = False
        self.begins: list[int | None] = [0 if context.syn else None] * 2
        self.now = 0
        # What is known when frames are decoded
        self.modes = [_LATE, _LATE]
        self.codecs: list[str | None] = [None, None]
        self.side_notes: list[tuple[str, ...]] = [(), ()]
        self.negative: set[int] = set()
        self.ended = [False, False]
        if self.forced is not None:
            self._settle()

    # Which framing

    def terms(self) -> Terms:
        """What may be in force, by everything known so far."""
        if self.forced is not None:
            return self.forced
        terms = self._negotiated()
        for framing in self.framings:
            if framing is not None:
                terms = terms.narrowed(framing)
        return terms

    def _negotiated(self) -> Terms:
        if self.client is None:
            return UNKNOWN
        client, server = self.offers[self.client], self.offers[1 - self.client]
        agreed = self.agreed
        if agreed is None or agreed[0] is not client or agreed[1] is not server:
            agreed = self.agreed = (client, server, agree(client, server))
        return agreed[2]

    def candidates(self, side: int, terms: Terms) -> tuple[Framing, ...]:
        """The framings that `side` may have."""
        role = None if self.client is None else side == self.client
        return terms.framings(role)

    def _settle(self) -> None:
        """Take over every framing of which only one is possible."""
        settled = False
        for side in (0, 1):
            if self.framings[side] is None and (self.forced is not None or self.greetings[side] != _EXPECTED):
                found = self.candidates(side, self.terms())
                if len(found) == 1:
                    self._adopt(side, found[0])
                    settled = True
        if settled:
            for flow in self.flows:
                flow.raise_releases(self.now)

    def _adopt(self, side: int, framing: Framing) -> None:
        self.framings[side] = framing
        if framing.kind in ("request", "response") and self.client is None:
            self.client = side if framing.kind == "request" else 1 - side
        reason = None if self.forced is not None else self._doubt(side)
        self.inferred[side] = reason
        self._describe()

    def _doubt(self, side: int) -> str | None:
        """Why the framing of `side` is a guess, if it is one."""
        if self.client is None:
            return "no negotiation was captured"
        client, server = self.offers[self.client], self.offers[1 - self.client]
        if server is not None and server.rest:
            return "the server's negotiation is damaged"
        terms = self._negotiated()
        if (client is not None or server is not None) and len(self.candidates(side, terms)) == 1:
            return None
        missing = [name for name, offer in (("client", client), ("server", server)) if offer is None]
        if len(missing) == 2:
            return "no negotiation was captured"
        return f"the {missing[0]}'s negotiation was not captured" if missing else "the client's negotiation is damaged"

    def _describe(self) -> None:
        """What `conversations` shows of this connection."""
        terms = self.terms()
        names = terms.layouts()
        self.facts["layout"] = names[0] if len(names) == 1 else None
        self.facts["candidates"] = tuple(names) if len(names) > 1 else ()
        reasons = [reason for reason in self.inferred if reason is not None]
        if reasons:
            self.facts["inferred"] = reasons[0]

    def _learn(self, side: int, data: bytes) -> None:
        """Take in the negotiation frame of `side`, or what there is of it."""
        offer = read_offer(data)
        self.greetings[side] = _SEEN
        self.offers[side] = offer
        self.modes[side] = _GREETING
        self.news = True
        features = offer.features
        if side == self.client:
            if len(features.get(STREAM_PARENT, b"")) == 8:
                self.facts["stream_parent"] = _u64(features[STREAM_PARENT])[0]
            if ISOLATION in features:
                self.facts["isolation"] = lossy(features[ISOLATION])
        elif len(features.get(CONNECTION_ID, b"")) == 8:
            self.facts["connection_id"] = _u64(features[CONNECTION_ID])[0]

    def _tells_client(self, side: int, data: bytes, at: int, end: int) -> bool:
        """Whether it is known which side is the client, when `side` begins with the negotiation frame data[at:end].

        An answer waits for what it answers, should that have been captured later.
        """
        other = 1 - side
        told = (self.client, self.greetings[other], self.held[other])
        if self.held[side]:
            if told == self.heard[side] and not self._may_look_behind(side):
                return False
        else:
            self.offers[side] = read_offer(data[at:end])
        self.heard[side] = told
        if self.client is None and not self._learns_client(side, end - at):
            return False
        if side != self.client and self.greetings[other] == _EXPECTED:
            self.held[side] = True
            self.news = self.held[other]
            return False
        return True

    def _may_look_behind(self, side: int) -> bool:
        """Whether it is worth while to look again at what follows a negotiation frame that waits: more did, and has paid for it."""
        flow = self.flows[side]
        seen = flow.position + flow.have + flow.queued
        if seen <= flow.effort.seen or self.client is not None:
            return False
        flow.effort.pay(seen - flow.effort.seen)
        flow.effort.seen = seen
        return flow.effort.left > 0

    def _learns_client(self, side: int, size: int) -> bool:
        other = 1 - side
        offers = self.offers
        ours = offers[side]
        assert ours is not None
        features = ours.features
        if STREAM_PARENT in features:
            self.client = side
        elif CONNECTION_ID in features:
            self.client = other
        elif self.greetings[other] == _MISSED:
            # It sends what can only follow this answer to its own negotiation, which was before the capture.
            self.client = other
        elif (asks := self._asks(side, size)) is not None:
            self.client = side if asks else other
        elif self.held[other]:
            theirs = offers[other]
            assert theirs is not None
            if theirs.exceeds(ours):
                self.client = other
            elif ours.exceeds(theirs):
                self.client = side
            elif all(one.kind == "sealed" for one in agree(ours, theirs).framings(True)):
                self.client = self.first
        elif self.greetings[other] != _EXPECTED:
            self.client = side
        if self.client is None:
            if self.first is None:
                self.first = side
            self.held[side] = True
            return False
        self.news = self.held[other]
        return True

    def _asks(self, side: int, size: int) -> bool | None:
        """Whether `side` sends requests or responses behind its negotiation frame of `size` bytes, where that can be told."""
        flow = self.flows[side]
        if flow.have + flow.queued - size < SHORTEST:
            return None
        flow.effort.begin(flow.have + flow.queued, len(flow.starts) + len(flow.queue))
        flow.effort.spend(16 * STEP + 32 * len(flow.queue) + (flow.have + flow.queued >> 4))
        behind = takewhile(lambda item: isinstance(item, Chunk), flow.queue)
        data = flow.join()[flow.position - flow.base + size :] + b"".join(item.data for item in behind if isinstance(item, Chunk))
        ours, theirs = self.offers[side], self.offers[1 - side]
        asks, answers = agree(ours, theirs).framings(True), agree(theirs, ours).framings(False)
        if len(data) < max(one.header for one in (*asks, *answers)):
            return None
        fits = []
        for kind, framings in (("request", asks), ("response", answers)):
            found = [fit(one, data, 0, len(data), {len(data): 1}, flow.effort) for one in framings if one.kind == kind]
            # The first id of a connection is a small one.
            fits.append(any(one is not None and one is not RULED_OUT and abs(one.first_id) <= LEAP for one in found))
        return None if fits[0] == fits[1] else fits[0]

    # Bytes to frames

    def cut(self, items: Iterable[Chunk | Hole]) -> None:
        items = list(items)
        if all(self._decided(item.side) for item in items):
            super().cut(items)
            return
        emitted: list[Emitted] = []
        queue = _Segments(items)
        try:
            for item, release in queue:
                self.now = max(self.now, release)
                emitted += self._at_once((item,))
                while self.news:
                    # what one side tells may free the other
                    self.news = False
                    emitted += self._at_once(())
                if self.failure is not None:
                    break
                if self._decided(0) and self._decided(1):
                    emitted += self._at_once(queue.rest())
                    break
        finally:
            # even if an exception came
            self.ready = emitted
            since = (self.flows[0].jumbled, self.flows[1].jumbled)
            straighten(emitted, [int(one[4].src != self.context.endpoints[0]) for one in emitted], since)
            emitted.sort(key=lambda one: one[:4])

    def _at_once(self, items: Iterable[Chunk | Hole]) -> list[Emitted]:
        super().cut(items)
        return self.emit_before(NEVER)

    def _decided(self, side: int) -> bool:
        """Whether nothing that either side sends can change how `side` is cut."""
        return self.framings[side] is not None and self.greetings[side] != _EXPECTED

    def close(self, release: int, last: Mark) -> list[Emitted]:
        self.now = release
        return super().close(release, last)

    def boundaries(self, side: int, data: bytes, at: int) -> list[int]:
        framing = self.framings[side] or self._framing(side)
        if framing is None or self.greetings[side] == _EXPECTED:
            if self.greetings[side] == _EXPECTED and data.startswith(MAGIC, at) and len(data) - at >= GREETING:
                end = at + GREETING + _u32(data, at + len(MAGIC))[0]
                if end <= len(data) and end - at <= self.options.frame_limit and self._tells_client(side, data, at, end):
                    if self.held[side]:
                        self.flows[side].raise_releases(self.now)
                    self._learn(side, data[at:end])
                    self.begins[side] = self.flows[side].base + end
                    return [end]
            if framing is None or (len(data) - at < len(MAGIC) and MAGIC.startswith(data[at:])):
                return []
            self._miss(side)
        if self.strict[side]:
            return super().boundaries(side, data, at)
        ends: list[int] = []
        append = ends.append
        size, limit, header, length_at = len(data), self.options.frame_limit, framing.header, framing.length_at
        stream = framing.kind == "stream" and framing.codec is None
        previous = -1
        while size - at >= header:
            length = _u32(data, at + length_at)[0]
            length = header if stream and length == END_OF_STREAM else header + length
            if length > size - at or length > limit:
                break
            previous = at
            at += length
            append(at)
        if previous >= 0:
            self._remember(side, framing, data, previous)
        return ends

    def measure(self, side: int, data: bytes, at: int) -> int:
        framing = self.framings[side] or self._framing(side)
        left = len(data) - at
        if self.greetings[side] == _EXPECTED:
            head = data[at : at + len(MAGIC)]
            if MAGIC.startswith(head):
                if left < GREETING:
                    return 0
                length = GREETING + int(_u32(data, at + len(MAGIC))[0])
                known = left < length or length > self.options.frame_limit
                return length if known or self._tells_client(side, data, at, at + length) else WAIT
            self._miss(side)
            framing = framing or self._framing(side)
        if framing is None:
            return SEARCH if self.greetings[1 - side] != _EXPECTED or self.greetings[side] == _MISSED else WAIT
        header = framing.header
        if left < header:
            return 0
        if self.strict[side]:
            if not plausible(framing, data, at, len(data)):
                return -1
            self._remember(side, framing, data, at)
        length = int(_u32(data, at + framing.length_at)[0])
        if length == END_OF_STREAM and framing.kind == "stream" and framing.codec is None:
            return header
        return header + length

    def _framing(self, side: int) -> Framing | None:
        """The framing of `side`, if what is known by now settles it."""
        if self.greetings[side] == _EXPECTED and self.forced is None:
            return None
        if self.greetings[side] == _SEEN and self.greetings[1 - side] == _EXPECTED:
            return None
        self._settle()
        return self.framings[side]

    def _remember(self, side: int, framing: Framing, data: bytes, at: int) -> None:
        """Keep the msg_id of the frame at `at`, from which one goes on after a loss."""
        if framing.codec is None:
            if framing.kind == "request":
                self.last_ids[side] = _i64(data, at + (16 if framing.extra else 8))[0]
            elif framing.kind == "response":
                self.last_ids[side] = _i64(data, at)[0]

    def broken(self, side: int, data: bytes) -> None:
        if self.greetings[side] == _EXPECTED and data.startswith(MAGIC) and len(data) >= GREETING:
            self.offers[side] = read_offer(data)
            if self.client is None and not self._learns_client(side, len(data)):
                self.client = self.first
            self._learn(side, data)

    def _miss(self, side: int) -> None:
        """The negotiation frame of `side` is not where it should be, so it will not come."""
        self.greetings[side] = _MISSED
        self.news = True
        self.flows[1 - side].raise_releases(self.now)

    def give_up(self, side: int) -> None:
        if self.greetings[side] == _EXPECTED and self.client is None:
            # The first to speak is the client.
            self.client = side if self.first is None else self.first
        if self.client is not None:
            for one in (self.client, 1 - self.client):
                if self.held[one] and self.greetings[one] == _EXPECTED:
                    self.flows[one].waiting = False
                    self._cut(one)
        if self.greetings[1 - side] == _EXPECTED:
            self._miss(1 - side)
        self._settle()
        for flow in self.flows:
            flow.raise_releases(self.now)

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        flow = self.flows[side]
        base = flow.base
        if self.greetings[side] == _EXPECTED:
            head = data[at : min(end, at + len(MAGIC))]
            if MAGIC.startswith(head) and head:
                if head == MAGIC:
                    return True, at
                if not final:
                    return False, at
            self._miss(side)
            if self.framings[side] is None:
                self._settle()
        framing = self.framings[side]
        index = flow.segment(base + end - 1)
        first = max(0, index - FAR + 1)
        # (start, segments from there to the end)
        starts = [
            (start - base, index + 1 - number) for number, start in enumerate(flow.starts[first : index + 1], first) if start - base >= at
        ]
        begins = self.begins[side]
        certain = begins is not None and begins - base == at and framing is None
        if certain and starts[:1] != [(at, index + 1 - first)]:
            starts.insert(0, (at, 1))
        missing = flow.missing if final else 0
        candidates = self.candidates(side, self.terms()) if framing is None else (framing,)
        possible = self.possible[side]
        going = flow.effort.spend(8 * STEP + 8 * len(starts))
        for start, segments in starts:
            ruled = possible.get(base + start) if framing is None else candidates
            if ruled is None:
                if not (going := flow.effort.spend(LIKELY)):
                    break
                ruled = likely(candidates, data, start, end)
                if end - start >= LONGEST_HEADER:
                    # what is ruled out now is so for every later end
                    possible[base + start] = ruled
            if not ruled:
                continue
            if not going or not (going := flow.effort.spend(2 * STEP)):
                break
            if framing is not None:
                found = self._goes_on(side, framing, data, start, end, missing)
            else:
                need = 1 if certain and start == at else needed(segments, end - start)
                left = within([one for one in ruled if one in candidates], data, start, end, missing)
                spread = segments > 1 and end - start < segments * LARGE_SEGMENT
                found, gone = self._guess(side, left, data, start, end, missing, need, spread)
                if gone and base + start in possible:
                    possible[base + start] = [one for one in ruled if one not in gone]
            if found is not None:
                if framing is None:
                    self._adopt(side, found)
                    self._settle()
                self.strict[side] = True
                return True, start
        if framing is not None and going and self.inferred[side] is None:
            # Who sends one message after the other begins few of them with a segment
            begin = max(at, flow.starts[max(index - LATEST + 1, 0)] - base)
            place = inside(framing, data, begin, end, self.last_ids[side], flow.effort)
            if place is not None:
                self.strict[side] = True
                return True, place
        behind = flow.starts[index - FAR + 2] - base if index >= FAR - 1 else at
        keep = max(at, behind)
        for position in [one for one in possible if one < base + keep and not (certain and one == begins)]:
            del possible[position]
        return False, at if certain else keep

    def _goes_on(self, side: int, framing: Framing, data: bytes, start: int, end: int, missing: int) -> Framing | None:
        """The framing of `side`, if frames of it from `start` end at `end`."""
        ends = {end: 1, end + missing: 1}
        previous, limit = self.last_ids[side], self.options.frame_limit
        effort = self.flows[side].effort
        found = fit(framing, data, start, end, ends, effort, known=True, previous=previous, missing=missing, limit=limit)
        if (
            found is None
            or found is RULED_OUT
            or (previous is None and found.frames == 1 and not found.proof and abs(found.first_id) > SPREAD)
        ):
            # Without an id to compare with, one frame with a large one is chance.
            return None
        return framing

    def _guess(
        self, side: int, candidates: list[Framing], data: bytes, start: int, end: int, missing: int, need: int, spread: bool
    ) -> tuple[Framing | None, list[Framing]]:
        """The framing in which frames from `start` end at `end`, if one is sound enough, and those that are ruled out there for good.

        `need`: so many frames make a guess. `spread`: over several small segments, one of which may well end where a frame does not.
        """
        limit, effort = self.options.frame_limit, self.flows[side].effort
        other = self.framings[1 - side]
        sure = other is not None or self.offers != [None, None]
        answers = other is not None and other.kind == "request"
        doubtful: list[Framing] = []
        gone: list[Framing] = []
        guesses: list[tuple[tuple[bool, int], Framing]] = []
        alone = True
        while True:
            for candidate in candidates:
                # One frame will do where these certainly are frames and no other framing fits.
                enough = 1 if answers and candidate.kind == "response" and not spread else need
                ends = {end: enough, end + missing: enough}
                found = fit(candidate, data, start, end, ends, effort, proof_will_do=sure and alone, missing=missing, limit=limit)
                if found is RULED_OUT:
                    gone.append(candidate)
                    continue
                if found is None or (answers and candidate.kind == "response" and not self._asked(1 - side, found.last_id)):
                    continue
                if (found.proof and alone) or (found.frames > 1 and candidate.kind != "stream"):
                    guesses.append((found.doubt, candidate))
                else:
                    doubtful.append(candidate)
            if len(guesses) < 2 or not alone:
                break
            # What proves one framing may prove another too (any frame unpacks): then only more frames tell.
            candidates = [candidate for _, candidate in guesses]
            guesses = []
            alone = False
        if guesses:
            return min(guesses, key=lambda one: one[0])[1], gone
        return doubtful[0] if len(doubtful) == 1 else None, gone

    def _asked(self, side: int, ident: int) -> bool:
        """Whether a response with this msg_id may answer what `side` has asked so far."""
        last = self.last_ids[side]
        return last is None or abs(ident) <= abs(last)

    # Frames to messages

    def decode(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> Decoded | tuple[Any, ...]:
        mode = self.modes[side]
        if mode < _REQUEST_TIMEOUT:
            if mode == _GREETING:
                self.modes[side] = _LATE
                return self._greeting(side, data, start, end, damage)
            mode = self._begin(side)
        if self.codecs[side] is not None:
            return self._compressed(side, mode, data, start, end, damage)
        if damage is not None or self.options.detail:
            return self._walk(side, mode, data, start, end, None if damage is None else damage.reason)
        return self._frame(side, mode, data, start, end)

    def _begin(self, side: int) -> int:
        """How `side` is decoded from now on."""
        framing = self.framings[side]
        if framing is None:
            # a frame of no framing is never cut
            raise AssertionError("frame before its framing")
        mode = _MODES[framing.kind, framing.extra]
        self.modes[side] = mode
        self.codecs[side] = framing.codec
        inferred = self.inferred[side]
        self.side_notes[side] = () if inferred is None else (f"framing inferred: {inferred}",)
        return mode

    def _frame(self, side: int, mode: int, data: bytes, start: int, end: int) -> tuple[Any, ...]:
        """A sound plain frame, quickly; whatever is unusual goes to `_walk`."""
        fields: dict[str, Any]
        size = end - start
        if mode == _REQUEST_TIMEOUT:
            if size >= 28:
                timeout, verb, ident, length = _request_timeout(data, start)
                if ident > 0 and timeout < OVER and size == 28 + length:
                    names = self.names
                    payload = self.render(data[start + 28 : end])
                    if names is None:
                        fields = {"timeout": timeout, "verb": verb, "msg_id": ident, "len": length, "payload": payload}
                        return "Request", "request", ident, fields, None, self.side_notes[side], None, ASK, ident, None
                    if verb not in self.one_way:
                        label = names.get(verb)
                        fields = {"timeout": timeout, "verb": verb, "verb_label": label, "msg_id": ident, "len": length, "payload": payload}
                        return "Request", "request", ident, fields, None, self.side_notes[side], None, ASK, ident, None
        elif mode == _RESPONSE_DURATION:
            if size >= 16:
                ident, length, duration = _response_duration(data, start)
                if ident > 0 and size == 16 + length and not self.negative:
                    fields = {
                        "msg_id": ident,
                        "len": length,
                        "handler_duration": duration,
                        "handler_duration_label": "not measured" if duration == NOT_MEASURED else None,
                        "payload": self.render(data[start + 16 : end]),
                    }
                    return "Response", "response", ident, fields, "answered", self.side_notes[side], None, ANSWER, ident, None
        elif mode == _RESPONSE:
            if size >= 12:
                ident, length = _response(data, start)
                if ident > 0 and size == 12 + length and not self.negative:
                    fields = {"msg_id": ident, "len": length, "payload": self.render(data[start + 12 : end])}
                    return "Response", "response", ident, fields, "answered", self.side_notes[side], None, ANSWER, ident, None
        elif mode == _REQUEST:
            if size >= 20 and self.names is None:
                verb, ident, length = _request(data, start)
                if ident > 0 and size == 20 + length:
                    fields = {"verb": verb, "msg_id": ident, "len": length, "payload": self.render(data[start + 20 : end])}
                    return "Request", "request", ident, fields, None, self.side_notes[side], None, ASK, ident, None
        elif mode == _STREAM and size >= 4 and not self.ended[side]:
            length = _u32(data, start)[0]
            if size == 4 + length:
                fields = {"len": length, "payload": self.render(data[start + 4 : end])}
                return "Stream", "one_way", None, fields, None, self.side_notes[side], None, NONE, None, None
        return self._walk(side, mode, data, start, end, None)

    def _walk(self, side: int, mode: int, data: bytes, start: int, end: int, missing: str | None, buffer: str = "frame") -> tuple[Any, ...]:
        """Any frame: slow and exact."""
        notes: list[str] = list(self.side_notes[side])
        spans: list[Span] | None
        if mode == _STREAM:
            last = end - start >= 4 and _u32(data, start)[0] == END_OF_STREAM
            layout = layouts.END if last else layouts.STREAM
        elif mode in (_REQUEST, _REQUEST_TIMEOUT):
            layout = self.tables.request if mode == _REQUEST else self.tables.request_timeout
        elif end - start >= 8 and self._failed(_i64(data, start)[0]):
            layout = self.tables.exception if mode == _RESPONSE else self.tables.exception_duration
        else:
            layout = layouts.RESPONSE if mode == _RESPONSE else layouts.RESPONSE_DURATION
        fields, spans, more, fault = walk(layout, data, start, end, self.style, missing, buffer)
        spans = spans if self.options.detail else None
        notes += more
        ident = fields.get("msg_id")
        if mode == _STREAM:
            if self.ended[side]:
                notes.append("after this side's end-of-stream")
            self.ended[side] = self.ended[side] or layout is layouts.END
            return layout.name, "one_way", None, fields, None, notes, fault, NONE, None, spans
        if mode in (_REQUEST, _REQUEST_TIMEOUT):
            if fields.get("timeout", 0) >= OVER:
                notes.append("the timeout is negative as int64: over already, the server will not answer")
            if ident is None:
                return layout.name, "request", None, fields, None, notes, fault, NONE, None, spans
            if ident < 0:
                notes.append("the library sends no negative msg_id: here an answer has the same one, an exception its opposite")
                if len(self.negative) < self.options.open_limit:
                    self.negative.add(-ident)
            elif self.negative:
                self.negative.discard(ident)
            if fields.get("verb") in self.one_way:
                return layout.name, "one_way", abs(ident), fields, None, notes, fault, ASK_MAYBE, abs(ident), spans
            return layout.name, "request", abs(ident), fields, None, notes, fault, ASK, abs(ident), spans
        if ident is None:
            return layout.name, "response", None, fields, None, notes, fault, NONE, None, spans
        outcome = "refused" if layout.name == "Exception" else "answered"
        if outcome == "refused" and fault is None and fields["exception_type_label"] is None:
            notes.append(f"unknown exception type {fields['exception_type']}")
        self.negative.discard(abs(ident))
        return layout.name, "response", abs(ident), fields, outcome, notes, fault, ANSWER, abs(ident), spans

    def _failed(self, ident: int) -> bool:
        """Whether a response with this msg_id is an exception."""
        return (ident < 0) != (abs(ident) in self.negative)

    def _compressed(self, side: int, mode: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        """The frame inside a compressed one."""
        codec = self.codecs[side]
        assert codec is not None
        packed_size: int = _u32(data, start)[0]
        about: dict[str, Any] = {"algorithm": codec, "packed_size": packed_size, "unpacked_size": None}
        fields: dict[str, Any] = {"compression": about}
        notes = list(self.side_notes[side])
        fault: Fault | None = None
        spans: list[Span] | None = None
        if damage is None and codec in OPENED:
            try:
                limit = min(self.options.frame_limit, self.allowance.grow(end - start))
                blocks = compression.chunks(codec, data, start, end, limit)
                about["unpacked_size"] = compression.unpacked_size(blocks)
                if self.options.detail:
                    spans = self._outer_spans(codec, blocks, data, start, end)
                if not blocks:
                    if packed_size:
                        fields["trailing"] = self.render(data[start + 4 : end])
                    return "Empty", "one_way", None, fields, None, tuple(notes), None, NONE, None, spans
                inner = compression.unpack(blocks, data, start)
                self.allowance.left -= len(inner)
            except Unpackable as error:
                if isinstance(error, compression.Oversize):
                    about["unpacked_size"] = error.size
                fault = Fault("compression", error.offset, error.reason)
            else:
                if self.options.detail:
                    self.buffers = {"unpacked": inner}
                    found = self._walk(side, mode, inner, 0, len(inner), None, "unpacked")
                    assert spans is not None
                    spans += found[9]
                else:
                    found = self._frame(side, mode, inner, 0, len(inner))
                    found = _counted_in(found, "unpacked")
                return (*found[:3], {**fields, **found[3]}, *found[4:9], spans)
        elif codec in OPENED:
            assert damage is not None
            return self._cut_off(side, mode, codec, fields, data, start, end, damage)
        elif damage is not None:
            fault = Fault("packed", end - start, damage.reason)
        else:
            notes.append(f"compression {codec} cannot be opened")
        fields["packed"] = self.render(data[start + 4 : end])
        if self.options.detail and spans is None:
            spans = [Span("len", 0, 4, packed_size), Span("packed", 4, end - start - 4, fields["packed"])]
        return "Compressed", "one_way", None, fields, None, notes, fault, NONE, None, spans

    def _cut_off(
        self, side: int, mode: int, codec: str, fields: dict[str, Any], data: bytes, start: int, end: int, damage: Damage
    ) -> tuple[Any, ...]:
        """A compressed frame of which bytes are missing: the header inside it may still unpack."""
        inner = compression.unpack_head(data[start + 8 : end], 64) if fields["compression"]["packed_size"] >= 4 else b""
        if codec == compression.LZ4 and end - start >= 8:
            fields["compression"]["unpacked_size"] = _u32(data, start + 4)[0]
        spans: list[Span] | None = None
        if self.options.detail:
            self.buffers = {"unpacked": inner}
            spans = [Span("len", 0, 4, fields["compression"]["packed_size"])]
            if end - start > 4:
                spans.append(Span("packed", 4, end - start - 4, self.render(data[start + 4 : end])))
        least = {_REQUEST_TIMEOUT: 28, _REQUEST: 20, _RESPONSE_DURATION: 16, _RESPONSE: 12, _STREAM: 4}[mode]
        if len(inner) < least:
            self.buffers = {}
            fault = Fault("compression", end - start, damage.reason)
            fields["packed"] = self.render(data[start + 4 : end])
            return "Compressed", "one_way", None, fields, None, self.side_notes[side], fault, NONE, None, spans
        found = self._walk(side, mode, inner, 0, len(inner), damage.reason, "unpacked")
        if spans is not None:
            spans += found[9]
        return (*found[:3], {**fields, **found[3]}, *found[4:9], spans)

    def _outer_spans(self, codec: str, blocks: list[compression.Chunk], data: bytes, start: int, end: int) -> list[Span]:
        spans = [Span("len", 0, 4, _u32(data, start)[0])]
        if not blocks:
            if end - start > 4:
                spans.append(Span("trailing", 4, end - start - 4, self.render(data[start + 4 : end])))
            return spans
        name = "unpacked_size" if codec == compression.LZ4 else "chunk"
        for block in blocks:
            spans.append(Span(name, block.header, 4, _u32(data, start + block.header)[0]))
            if block.end > block.start:
                packed = data[start + block.start : start + block.end]
                spans.append(Span("block", block.start, len(packed), self.render(packed)))
        return spans

    def _greeting(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        """A negotiation frame; the server's gets what is in force by it."""
        fields, spans, notes, fault = walk(layouts.NEGOTIATION, data, start, end, self.style, None if damage is None else damage.reason)
        asks = side == self.client
        seen: set[int] = set()
        for record in fields.get("features", ()):
            number = record.get("number")
            if number in seen:
                notes.append(f"feature {number} occurs twice: the first one counts")
            elif number is not None and number not in FEATURES:
                notes.append(f"unknown feature {number}")
            seen.add(number)
            if len(notes) >= NOTES_KEPT:
                notes.append("and perhaps more")
                break
        offer, other = self.offers[side], self.offers[1 - side]
        if not asks and offer is not None and fault is None:
            fields["negotiated"] = self._in_force(offer, other)
            notes += _unexpected(offer, other)
        outcome = None if asks else "answered"
        kind = "request" if asks else "response"
        role = ASK if asks else ANSWER
        told = _told(spans, self._negotiated().layouts(), fields.get("negotiated"), end - start) if self.options.detail else None
        return "Negotiation", kind, None, fields, outcome, notes, fault, role, NAME, told

    def _in_force(self, server: Offer, client: Offer | None) -> dict[str, Any]:
        """What the two frames agree on."""
        terms = agree(client, server)
        declined: list[str] | None = None
        if client is not None and not client.rest:
            # of a frame that was not captured, or not all of it, nobody knows what else was asked for
            declined = [
                FEATURES.get(number, f"feature {number}")
                for number in client.features
                if number not in server.features and number != STREAM_PARENT
            ]
        return {
            "connection": terms.connections[0] if len(terms.connections) == 1 else None,
            "compression": terms.codecs[0] if len(terms.codecs) == 1 else server.algorithms or None,
            "timeout": TIMEOUT in server.features and terms.connections != ("stream",),
            "handler_duration": HANDLER_DURATION in server.features and terms.connections != ("stream",),
            "declined": declined,
        }


def _told(spans: list[Span], layouts: Sequence[str], negotiated: dict[str, Any] | None, size: int) -> list[Span]:
    """The spans with ids as people know them, and with what is in force behind the records that tell it."""
    ids = ("connection_id", "stream_parent")
    spans = [span._replace(label=connection_text(span.value)) if span.name in ids and type(span.value) is int else span for span in spans]
    if negotiated is not None:
        declined = negotiated["declined"]
        text = " or ".join(layouts) + (f"; declines {', '.join(declined)}" if declined else "")
        spans.append(Span("negotiated", size, 0, text))
    return spans


def _unexpected(server: Offer, client: Offer | None) -> list[str]:
    """What a server of the library would not have answered."""
    notes: list[str] = []
    if STREAM_PARENT in server.features:
        notes.append("a server never sends STREAM_PARENT")
    if client is None or client.rest:
        return notes
    notes += [
        f"grants {FEATURES[number]}, which was not offered"
        for number in (COMPRESS, TIMEOUT, ISOLATION, HANDLER_DURATION)
        if number in server.features and number not in client.features
    ]
    if ISOLATION in server.features and client.features.get(ISOLATION, server.features[ISOLATION]) != server.features[ISOLATION]:
        notes.append("the isolation cookie is not the client's")
    return notes


def _counted_in(found: tuple[Any, ...], buffer: str) -> tuple[Any, ...]:
    """A decoded frame whose fault, if any, counts in another buffer than the frame."""
    fault = found[6]
    if fault is None:
        return found
    return (*found[:6], Fault(fault.field, fault.offset, fault.reason, buffer), *found[7:])


class _Segments:
    """The segments and holes of both sides, one by one in packet order."""

    def __init__(self, items: list[Chunk | Hole]) -> None:
        self.sides: tuple[list[Chunk | Hole], list[Chunk | Hole]] = ([], [])
        for item in items:
            self.sides[item.side].append(item)
        self.at = [[0, 0], [0, 0]]

    def __iter__(self) -> Iterator[tuple[Chunk | Hole, int]]:
        while True:
            heads = [(head, side) for side in (0, 1) if (head := self._head(side)) is not None]
            if not heads:
                return
            (release, _), side = min(heads)
            yield self._take(side), release

    def _head(self, side: int) -> tuple[int, int] | None:
        """Release and order of the next segment of `side`."""
        items = self.sides[side]
        index, segment = self.at[side]
        if index == len(items):
            return None
        item = items[index]
        if isinstance(item, Hole):
            return item.release, item.order
        return item.releases[segment], item.orders[segment]

    def _take(self, side: int) -> Chunk | Hole:
        at = self.at[side]
        item = self.sides[side][at[0]]
        if isinstance(item, Chunk):
            segment = at[1]
            if segment + 1 < len(item.starts):
                at[1] += 1
                return _part(item, segment, segment + 1)
            if segment:
                item = _part(item, segment, segment + 1)
        at[0] += 1
        at[1] = 0
        return item

    def rest(self) -> list[Chunk | Hole]:
        """All that was not yet taken."""
        found: list[Chunk | Hole] = []
        for side in (0, 1):
            index, segment = self.at[side]
            items = self.sides[side][index:]
            if segment:
                item = items[0]
                assert isinstance(item, Chunk)
                items[0] = _part(item, segment, len(item.starts))
            found += items
        return found


def _part(chunk: Chunk, first: int, last: int) -> Chunk:
    """The segments [first, last) of a chunk."""
    start = chunk.starts[first]
    end = chunk.starts[last] if last < len(chunk.starts) else len(chunk.data)
    position = chunk.position + start
    orders = chunk.orders[first:last]
    return Chunk(
        chunk.side,
        position,
        chunk.data[start:end],
        [one - start for one in chunk.starts[first:last]],
        orders,
        orders if chunk.releases is chunk.orders else chunk.releases[first:last],
        chunk.numbers[first:last],
        chunk.files[first:last],
        chunk.times[first:last],
        tuple(note for note in chunk.notes if position <= note[0] < position + end - start),
    )


PROTOCOLS = (
    Protocol(
        NAME,
        "Seastar RPC",
        (7000,),
        SeastarDissector,
        probe,
        says,
        layouts.LAYOUTS,
        text=TEXT,
        added=layouts.ADDED,
        labelled=lambda options: {"verb": (options.verbs or {}).values()},
        paired=paired,
        unanswered=unanswered,
        relate=relate,
        hint=hint,
        forced=tuple(FORCED),
        behaviour=BEHAVIOUR,
        private=PRIVATE,
        teller=Teller,
        alarms={"Exception": lambda message: True},
        verb=verb,
        worked=worked,
    ),
)
