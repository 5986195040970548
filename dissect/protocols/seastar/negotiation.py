"""What is known of the framing of both sides: from their negotiation frames, in whatever order they come, or from frames found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from struct import Struct
from typing import Any

from dissect.layout import Style, read, walk
from dissect.layout.account import NOTES_KEPT
from dissect.layout.values import lossy
from dissect.model import Chunk, Span
from dissect.protocols.base import Dissector
from dissect.protocols.effort import STEP
from dissect.protocols.protocol import Context
from dissect.protocols.records import ANSWER, ASK, Damage
from dissect.protocols.seastar import layouts
from dissect.protocols.seastar.framing import LEAP, RULED_OUT, fit
from dissect.protocols.seastar.layouts import (
    COMPRESS,
    CONNECTION_ID,
    FEATURES,
    HANDLER_DURATION,
    ISOLATION,
    STREAM_PARENT,
    TIMEOUT,
)
from dissect.protocols.seastar.probe import NAME, SHORTEST
from dissect.protocols.seastar.telling import connection_text
from dissect.protocols.seastar.terms import FORCED, UNKNOWN, Framing, Offer, Terms, agree, read_offer

_u64 = Struct("<Q").unpack_from

EXPECTED, SEEN, MISSED = range(3)
"""A side's negotiation frame: may still come, was there (whole or not), will not come."""


class Side:
    """What is known of one side when its bytes are cut."""

    __slots__ = ("begins", "framing", "greeting", "greets", "heard", "held", "inferred", "last_id", "offer", "possible", "strict")

    def __init__(self, syn: bool) -> None:
        self.greeting = EXPECTED
        self.offer: Offer | None = None
        self.framing: Framing | None = None
        self.inferred: str | None = None
        """Why the framing is a guess."""
        self.strict = False
        """Whether frames were found again, so that each has to look like one."""
        self.last_id: int | None = None
        self.possible: dict[int, list[Framing]] = {}
        """By position, the framings that frames from there may have."""
        self.held = False
        """Whether its negotiation frame waits for the other side's."""
        self.heard: tuple[int | None, int, bool] | None = None
        """What was known of the other side when that began."""
        self.begins: int | None = 0 if syn else None
        """Where a frame certainly begins."""
        self.greets = False
        """Whether the next frame to be decoded is its negotiation frame."""


class Negotiating(Dissector):
    """What may be in force, and who is the client."""

    DERIVED = ("forced", "agreed", "style")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        options = context.options
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.forced = FORCED.get(context.verdict.layout or "")
        self.agreed: tuple[Offer | None, Offer | None, Terms] | None = None
        self.sides = (Side(context.syn), Side(context.syn))
        self.first: int | None = None
        """The side whose negotiation frame came first."""
        self.news = False
        """Whether one side told something that may free the other."""
        self.now = 0
        if self.forced is not None:
            self._settle()

    def terms(self) -> Terms:
        """What may be in force, by everything known so far."""
        if self.forced is not None:
            return self.forced
        terms = self._negotiated()
        for one in self.sides:
            if one.framing is not None:
                terms = terms.narrowed(one.framing)
        return terms

    def _negotiated(self) -> Terms:
        if self.client is None:
            return UNKNOWN
        client, server = self.sides[self.client].offer, self.sides[1 - self.client].offer
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
        for side, one in enumerate(self.sides):
            if one.framing is None and (self.forced is not None or one.greeting != EXPECTED):
                found = self.candidates(side, self.terms())
                if len(found) == 1:
                    self._adopt(side, found[0])
                    settled = True
        if settled:
            self._describe()
            for flow in self.flows:
                flow.raise_releases(self.now)

    def _adopt(self, side: int, framing: Framing) -> None:
        one = self.sides[side]
        one.framing = framing
        if framing.kind in ("request", "response") and self.client is None:
            self.client = side if framing.kind == "request" else 1 - side
        one.inferred = None if self.forced is not None else self._doubt(side)

    def _doubt(self, side: int) -> str | None:
        """Why the framing of `side` is a guess, if it is one."""
        if self.client is None:
            return "no negotiation was captured"
        client, server = self.sides[self.client].offer, self.sides[1 - self.client].offer
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
        reasons = [one.inferred for one in self.sides if one.inferred is not None]
        if reasons:
            self.facts["inferred"] = reasons[0]

    def _learn(self, side: int) -> None:
        """Take in the negotiation frame of `side`, or what there is of it, whose records are known."""
        one = self.sides[side]
        assert one.offer is not None
        one.greeting = SEEN
        one.greets = True
        self.news = True
        features = one.offer.features
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
        one, other = self.sides[side], self.sides[1 - side]
        told = (self.client, other.greeting, other.held)
        if one.held:
            if told == one.heard and not self._may_look_behind(side):
                return False
        else:
            one.offer = read_offer(data[at:end])
        one.heard = told
        if self.client is None and not self._learns_client(side, end - at):
            return False
        if side != self.client and other.greeting == EXPECTED:
            one.held = True
            self.news = other.held
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
        one, other = self.sides[side], self.sides[1 - side]
        ours, theirs = one.offer, other.offer
        assert ours is not None
        if STREAM_PARENT in ours.features:
            self.client = side
        elif CONNECTION_ID in ours.features:
            self.client = 1 - side
        elif other.greeting == MISSED:
            # It sends what can only follow this answer to its own negotiation, which was before the capture.
            self.client = 1 - side
        elif (asks := self._asks(side, size)) is not None:
            self.client = side if asks else 1 - side
        elif other.held:
            assert theirs is not None
            if theirs.exceeds(ours):
                self.client = 1 - side
            elif ours.exceeds(theirs):
                self.client = side
            elif all(framing.kind == "sealed" for framing in agree(ours, theirs).framings(True)):
                self.client = self.first
        elif other.greeting != EXPECTED:
            self.client = side
        if self.client is None:
            if self.first is None:
                self.first = side
            one.held = True
            return False
        self.news = other.held
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
        ours, theirs = self.sides[side].offer, self.sides[1 - side].offer
        asks, answers = agree(ours, theirs).framings(True), agree(theirs, ours).framings(False)
        if len(data) < max(one.header for one in (*asks, *answers)):
            return None
        fits = []
        for kind, framings in (("request", asks), ("response", answers)):
            found = [fit(one, data, 0, len(data), {len(data): 1}, flow.effort) for one in framings if one.kind == kind]
            # The first id of a connection is a small one.
            fits.append(any(one is not None and one is not RULED_OUT and abs(one.first_id) <= LEAP for one in found))
        return None if fits[0] == fits[1] else fits[0]

    def _miss(self, side: int) -> None:
        """The negotiation frame of `side` is not where it should be, so it will not come."""
        self.sides[side].greeting = MISSED
        self.news = True
        self.flows[1 - side].raise_releases(self.now)

    def greeting(self, side: int, data: bytes, start: int, end: int, damage: Damage | None) -> tuple[Any, ...]:
        """A negotiation frame; the server's gets what is in force by it."""
        told: list[Span] | None = None
        if damage is None and not self.options.detail:
            fields, notes, fault = read(layouts.NEGOTIATION, data, start, end, self.style)
        else:
            fields, told, notes, fault = walk(layouts.NEGOTIATION, data, start, end, self.style, damage and damage.reason)
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
        offer, other = self.sides[side].offer, self.sides[1 - side].offer
        if not asks and offer is not None and fault is None:
            fields["negotiated"] = _in_force(offer, other)
            notes += _unexpected(offer, other)
        spans = _told(told, self._negotiated().layouts(), fields.get("negotiated"), end - start) if told and self.options.detail else None
        if asks:
            return "Negotiation", "request", None, fields, None, notes, fault, ASK, NAME, spans
        return "Negotiation", "response", None, fields, "answered", notes, fault, ANSWER, NAME, spans


def _in_force(server: Offer, client: Offer | None) -> dict[str, Any]:
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
