"""Seastar RPC: two negotiation frames say how all others look; requests from the client, responses from the server, or a stream.

Until the framing of both sides is known, bytes are read segment by segment in packet order, so that the negotiation of one side reaches
the other in time.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, ClassVar

from ...layout import Style
from ...quota import UnpackQuota
from ...units import lossy
from ..dissector import SEARCH, WAIT, Dissector
from ..parser import Parser
from ..protocol import Context, LoadedProtocol
from ..records import DecodedTuple, Frame
from . import MAGIC, NAME, layouts
from .compare_rules import COMPARE_RULES
from .compression import SCYLLA_V3
from .dictionaries import dictionaries
from .frame_chains import LARGEST_ID
from .frame_decoders import CompressedFrames, PlainFrames, ScyllaFrames, frames_of
from .heuristic import heuristic
from .info import TEXT, InfoWithVerb, hint, info, paired, relate, unanswered, verb, worked
from .layouts import CONNECTION_ID, END_OF_STREAM, ISOLATION, METHODS, STREAM_PARENT
from .negotiation_frames import EXPECTED, MISSED, SEEN, SideTerms, asks, greeting, more_behind
from .resync import FrameSearch
from .scrub_rules import SCRUB_RULES
from .terms import FORCED, GREETING, UNKNOWN, NegotiatedTerms, SeastarFraming, agree, read_offer
from .verbs import SCYLLA

_u32 = Struct("<I").unpack_from
_u64 = Struct("<Q").unpack_from
_i64 = Struct("<q").unpack_from

MAX_DICTIONARIES = 16
"""Dictionaries of a connection that its row names."""


class SeastarDissector(Dissector):
    """Frames whose headers depend on what both sides negotiated."""

    protocol: ClassVar[str] = NAME
    header_size: ClassVar[int] = 4
    reuse: ClassVar[str] = "supersede"
    DERIVED = ("forced", "agreed", "style")

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context, parser)
        self.prepare()
        begins = 0 if context.from_start else None
        self.sides = (SideTerms(begins), SideTerms(begins))
        self.first: int | None = None
        """The side whose negotiation frame came first."""
        self.quota = UnpackQuota(context.unpack_pool)
        self.negative: set[int] = set()
        """What requests with a negative msg_id, which the library never sends, asked."""
        self.frames_of: list[PlainFrames | CompressedFrames | None] = [None, None]
        """What decodes the frames of each side behind its negotiation frame."""
        self.names_verbs = False
        """Whether verbs are named as ScyllaDB's, unasked, which a note on the first message that shows it states."""
        if self.forced is not None:
            self._settle()

    def prepare(self) -> None:
        options = self.options
        self.style = Style(options.bytes_as, options.show_secrets, options.values_limit)
        self.forced = FORCED.get(self.context.verdict.layout or "")
        self.agreed: NegotiatedTerms | None = None
        """What both negotiation frames put in force, as far as they are known; None until it is needed."""

    # Bytes to frames

    def frame_length(self, side: int, data: bytes, at: int) -> int:
        one = self.sides[side]
        left = len(data) - at
        if one.greeting == EXPECTED:
            if MAGIC.startswith(data[at : at + len(MAGIC)]):
                return 0 if left < GREETING else self._greeting_length(side, data, at)
            self._miss(side)
        framing = one.framing or self._framing(side)
        if framing is None:
            return SEARCH if self.sides[1 - side].greeting != EXPECTED or one.greeting == MISSED else WAIT
        if left < one.header:
            return 0
        if one.id_at is not None:
            ident = _i64(data, at + one.id_at)[0]
            if one.strict and not 0 < abs(ident) <= LARGEST_ID:
                return -1
            one.last_id = ident
        length = int(_u32(data, at + one.length_at)[0])
        if length == END_OF_STREAM and framing.kind == "stream" and framing.codec is None:
            return one.header
        return one.header + length

    def split_frames(self, side: int, data: bytes, at: int) -> list[int]:
        # `frame_length` reads a negotiation frame, and must not be called twice
        return [] if self.sides[side].greeting == EXPECTED else super().split_frames(side, data, at)

    def _greeting_length(self, side: int, data: bytes, at: int) -> int:
        """The length of the negotiation frame that begins at `at`, which is read if it is complete; WAIT where its meaning depends on the
        other side."""
        one = self.sides[side]
        length = GREETING + int(_u32(data, at + len(MAGIC))[0])
        if length <= min(len(data) - at, self.options.frame_limit):
            if not self._shows_client(side, data, at, at + length):
                return WAIT
            self._learn(side)
            one.begins = self.parser.buffers[side].base + at + length
        return length

    def _framing(self, side: int) -> SeastarFraming | None:
        """The framing of `side`, if it is known by now."""
        one = self.sides[side]
        if (one.greeting == EXPECTED and self.forced is None) or (one.greeting == SEEN and self.sides[1 - side].greeting == EXPECTED):
            return None
        self._settle()
        return one.framing

    def on_truncated(self, side: int, data: bytes) -> None:
        if self.sides[side].greeting == EXPECTED and data.startswith(MAGIC) and len(data) >= GREETING:
            self.sides[side].offer, self.agreed = read_offer(data), None
            if self.client is None and not self._learns_client(side, len(data)):
                self.client = self.first
            self._learn(side)

    def on_wait_timeout(self, side: int) -> None:
        if self.sides[side].greeting == EXPECTED and self.client is None:
            # The first to speak is the client.
            self.client = side if self.first is None else self.first
        if self.client is not None:
            for one in (self.client, 1 - self.client):
                if self.sides[one].held and self.sides[one].greeting == EXPECTED:
                    self.parser.resume(one)
        if self.sides[1 - side].greeting == EXPECTED:
            self._miss(1 - side)
        self._settle()

    def resync(self, side: int, data: bytes, at: int, end: int, final: bool) -> tuple[bool, int]:
        one = self.sides[side]
        if one.greeting == EXPECTED:
            head = data[at : min(end, at + len(MAGIC))]
            if head == MAGIC:
                return True, at
            if head and MAGIC.startswith(head) and not final:
                return False, at
            self._miss(side)
            if one.framing is None:
                self._settle()
        candidates = self._candidates(side, self._terms()) if one.framing is None else (one.framing,)
        known = dictionaries(self.options.dictionaries)
        search = FrameSearch(one, self.sides[1 - side], self.parser.buffers[side], self.options.frame_limit, known)
        there, place, framing = search.find(data, at, end, final, candidates)
        if there:
            one.strict = True
        if framing is not None:
            self._adopt(side, framing)
            self._describe()
            self._settle()
        return there, place

    def on_gap(self, side: int, order: int = 0) -> None:
        self.sides[side].unbroken = False
        frames = self.frames_of[side]
        if isinstance(frames, ScyllaFrames):
            frames.on_gap()

    # The terms in force, and the side of the client

    def _terms(self) -> NegotiatedTerms:
        """What may be in force, by everything known so far."""
        if self.forced is not None:
            return self.forced
        terms = self._negotiated()
        for one in self.sides:
            if one.framing is not None:
                terms = terms.narrowed(one.framing)
        return terms

    def _negotiated(self) -> NegotiatedTerms:
        if self.client is None:
            return UNKNOWN
        if self.agreed is None:
            self.agreed = agree(self.sides[self.client].offer, self.sides[1 - self.client].offer)
        return self.agreed

    def _candidates(self, side: int, terms: NegotiatedTerms) -> tuple[SeastarFraming, ...]:
        """The framings that `side` may have."""
        return terms.framings(None if self.client is None else side == self.client)

    def _settle(self) -> None:
        """Adopt the framing of each side if only one is possible."""
        settled = False
        for side, one in enumerate(self.sides):
            if one.framing is None and (self.forced is not None or one.greeting != EXPECTED):
                found = self._candidates(side, self._terms())
                if len(found) == 1:
                    self._adopt(side, found[0])
                    settled = True
        if settled:
            self._describe()

    def _adopt(self, side: int, framing: SeastarFraming) -> None:
        one = self.sides[side]
        one.framing = framing
        one.header, one.length_at, one.id_at = framing.places
        if framing.kind in ("request", "response") and self.client is None:
            self.client = side if framing.kind == "request" else 1 - side
        one.inferred = None if self.forced is not None else self._doubt(side)

    @property
    def in_packet_order(self) -> bool:
        one, other = self.sides
        return one.framing is None or other.framing is None or EXPECTED in (one.greeting, other.greeting)

    def _doubt(self, side: int) -> str | None:
        """Why the framing of `side` is a guess, if it is one."""
        if self.client is None:
            return "no negotiation was captured"
        client, server = self.sides[self.client].offer, self.sides[1 - self.client].offer
        if server is not None and server.rest:
            return "the server's negotiation is damaged"
        terms = self._negotiated()
        if (client is not None or server is not None) and len(self._candidates(side, terms)) == 1:
            return None
        missing = [name for name, offer in (("client", client), ("server", server)) if offer is None]
        if len(missing) == 2:
            return "no negotiation was captured"
        return f"the {missing[0]}'s negotiation was not captured" if missing else "the client's negotiation is damaged"

    def _describe(self) -> None:
        """What `conversations` shows of this connection."""
        terms = self._terms()
        names = terms.layouts()
        self.facts["layout"] = names[0] if len(names) == 1 else None
        self.facts["candidates"] = tuple(names) if len(names) > 1 else ()
        reasons = [one.inferred for one in self.sides if one.inferred is not None]
        if reasons:
            self.facts["inferred"] = reasons[0]
        offer = None if self.client is None else self.sides[self.client].offer
        offered = [] if offer is None else offer.algorithms
        if offered or any(terms.codecs):
            counted = self.facts.setdefault("compression", {"offered": [], "taken": None, "frames": 0, "before": 0, "after": 0})
            counted.update(offered=offered, taken=terms.codecs[0] if len(terms.codecs) == 1 else None)

    def _learn(self, side: int) -> None:
        """Process the negotiation frame of `side`, or its captured part, whose records are known."""
        one = self.sides[side]
        assert one.offer is not None
        one.greeting = SEEN
        one.greets = True
        self.unblocks_peer = True
        features = one.offer.features
        if side == self.client:
            if len(features.get(STREAM_PARENT, b"")) == 8:
                self.facts["stream_parent"] = _u64(features[STREAM_PARENT])[0]
            if ISOLATION in features:
                self.facts["isolation"] = lossy(features[ISOLATION])
        elif len(features.get(CONNECTION_ID, b"")) == 8:
            self.facts["connection_id"] = _u64(features[CONNECTION_ID])[0]

    def _shows_client(self, side: int, data: bytes, at: int, end: int) -> bool:
        """Whether it is known which side is the client, when `side` begins with the negotiation frame data[at:end].

        An answer waits for what it answers, should that have been captured later.
        """
        one, other = self.sides[side], self.sides[1 - side]
        state = (self.client, other.greeting, other.held)
        if one.held:
            if state == one.heard and (self.client is not None or not more_behind(self.parser.buffers[side])):
                return False
        else:
            one.offer, self.agreed = read_offer(data[at:end]), None
        one.heard = state
        if self.client is None and not self._learns_client(side, end - at):
            return False
        if side != self.client and other.greeting == EXPECTED:
            one.held = True
            self.unblocks_peer = other.held
            return False
        return True

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
        elif (first := asks(ours, theirs, self.parser.buffers[side], size)) is not None:
            self.client = side if first else 1 - side
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
        self.unblocks_peer = other.held
        return True

    def _miss(self, side: int) -> None:
        """The negotiation frame of `side` is not where it should be, so it will not come."""
        self.sides[side].greeting = MISSED
        self.unblocks_peer = True

    # Frames to messages

    def decode_fast(self, side: int, data: bytes, start: int, end: int) -> DecodedTuple | None:
        frames = self.frames_of[side]
        return frames.decode_fast(data, start, end) if isinstance(frames, PlainFrames) and not self.sides[side].greets else None

    def decode(self, frame: Frame) -> DecodedTuple:
        side = frame.side
        one = self.sides[side]
        if one.greets:
            one.greets, one.unbroken = False, True
            self.frames_of[side] = None
            offer, other = one.offer, self.sides[1 - side].offer
            terms = self._negotiated() if self.options.detail else None
            found = greeting(frame, side == self.client, offer, other, terms, self.style)
            if offer is not None and SCYLLA_V3 in offer.algorithms:
                self._name_verbs(found)
            return found
        frames = self.frames_of[side]
        new = frames is None
        if frames is None:
            # a frame of no framing is never cut
            assert one.framing is not None
            is_scylla = self.names_verbs or one.framing.codec == SCYLLA_V3
            verbs = SCYLLA if self.options.verbs is None and is_scylla else self.options.verbs
            frames = frames_of(self.options, one.framing, one.inferred, self.negative, self.quota, verbs, one.unbroken)
            self.frames_of[side] = frames
        found = frames.decode(frame.data, frame.start, frame.end, frame.damage)
        self.details = frames.buffers
        if new and isinstance(frames, ScyllaFrames):
            self._name_verbs(found)
        packed, counted = found[3].get("compression"), self.facts.get("compression")
        if packed is not None and counted is not None:
            count(packed, counted, found[6] is not None)
        return found

    def _name_verbs(self, found: DecodedTuple) -> None:
        """State on a message, once, that verbs are named as ScyllaDB's, which no option asks for."""
        if self.options.verbs is None and not self.names_verbs:
            self.names_verbs = True
            self.facts["verbs"] = "scylla"
            found[5].append("SCYLLA_V3 is ScyllaDB's compression: verbs are named as by --verbs scylla")


def count(packed: dict[str, Any], counted: dict[str, Any], damaged: bool) -> None:
    """Count a compressed frame in the facts of a conversation; `unread`: frames that lack a dictionary."""
    counted["frames"] += 1
    method = packed.get("header", {}).get("algorithm_label")
    unpacked = packed["unpacked_size"]
    # Control blocks are not messages that compression made larger
    if unpacked or (unpacked == 0 and method is None):
        counted["before"] += unpacked
        counted["after"] += 4 + packed["packed_size"]
    if method is not None:
        counted.setdefault("methods", dict.fromkeys(METHODS.values(), 0))[method] += 1
        if unpacked is None and not damaged:
            counted["unread"] = counted.get("unread", 0) + 1
    named = packed.get("dictionary")
    if named is not None:
        known = counted.setdefault("dictionaries", [])
        if named not in known and len(known) < MAX_DICTIONARIES:
            known.append(named)


PROTOCOL = LoadedProtocol(
    SeastarDissector,
    heuristic,
    info,
    layouts.LAYOUTS,
    names=("Empty",),
    text=TEXT,
    added=layouts.ADDED,
    labelled=lambda options: {"verb": (SCYLLA if options.verbs is None else options.verbs).values()},
    code=("exception_type",),
    paired=paired,
    unanswered=unanswered,
    relate=relate,
    hint=hint,
    forced=tuple(FORCED),
    compare_rules=COMPARE_RULES,
    scrub_rules=SCRUB_RULES,
    info_with_context=InfoWithVerb,
    alarms={"Exception": lambda message: True},
    verb=verb,
    server_time_ns=worked,
)
