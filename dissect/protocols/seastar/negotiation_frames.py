"""Negotiation frames: what they mean, who sent them, and the framing of a side as known from its own or from frames found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from ...layout import Style, read_frame
from ...layout.walk_state import MAX_NOTES
from ...model import SideData, Span
from ..buffer import ReceiveBuffer
from ..records import REQUEST, RESPONSE, DecodedTuple, Frame
from ..work_budget import STEP
from . import NAME, layouts
from .frame_chains import LEAP, RULED_OUT, fit
from .heuristic import SHORTEST
from .info import connection_text
from .layouts import (
    COMPRESS,
    FEATURES,
    HANDLER_DURATION,
    ISOLATION,
    STREAM_PARENT,
    TIMEOUT,
)
from .terms import NegotiatedTerms, Offer, SeastarFraming, agree

EXPECTED, SEEN, MISSED = range(3)
"""A side's negotiation frame: may still come, was there (complete or not), will not come."""


class SideTerms(msgspec.Struct, eq=False):
    """The terms known of one side when its bytes are divided into frames."""

    begins: int | None
    """Where a frame certainly begins."""
    greeting: int = EXPECTED
    offer: Offer | None = None
    framing: SeastarFraming | None = None
    header: int = 0
    length_at: int = 0
    id_at: int | None = None
    """Of these three, what `framing` defines."""
    inferred: str | None = None
    """Why the framing is a guess."""
    strict: bool = False
    """Whether frames were found again, so that each has to look like one."""
    last_id: int | None = None
    """The msg_id it sent last, from which one goes on after a loss."""
    possible: dict[int, list[SeastarFraming]] = {}
    """By position, the framings that frames from there may have."""
    held: bool = False
    """Whether its negotiation frame waits for the other side's."""
    heard: tuple[int | None, int, bool] | None = None
    """What was known of the other side when that began."""
    greets: bool = False
    """Whether the next frame to be decoded is its negotiation frame."""
    unbroken: bool = False
    """Whether its negotiation frame was decoded, and no frame is missing since."""


def more_behind(buffer: ReceiveBuffer) -> bool:
    """Whether it is worth while to look again at what follows a negotiation frame that waits: more did, and has paid for it."""
    seen = buffer.position + buffer.have + buffer.queued
    if seen <= buffer.work_budget.seen:
        return False
    buffer.work_budget.pay(seen - buffer.work_budget.seen)
    buffer.work_budget.seen = seen
    return buffer.work_budget.left > 0


def asks(ours: Offer, theirs: Offer | None, buffer: ReceiveBuffer, size: int) -> bool | None:
    """Whether a side sends requests or responses behind its negotiation frame of `size` bytes, where that can be decided."""
    if buffer.have + buffer.queued - size < SHORTEST:
        return None
    buffer.work_budget.begin(buffer.have + buffer.queued, len(buffer.starts) + len(buffer.queue))
    buffer.work_budget.spend(16 * STEP + 32 * len(buffer.queue) + (buffer.have + buffer.queued >> 4))
    behind = takewhile(lambda item: isinstance(item, SideData), buffer.queue)
    data = buffer.join()[buffer.position - buffer.base + size :] + b"".join(item.data for item in behind if isinstance(item, SideData))
    asked, answers = agree(ours, theirs).framings(True), agree(theirs, ours).framings(False)
    if len(data) < max(one.header for one in (*asked, *answers)):
        return None
    fits = []
    for kind, framings in (("request", asked), ("response", answers)):
        found = [fit(one, data, 0, len(data), {len(data): 1}, buffer.work_budget) for one in framings if one.kind == kind]
        # The first id of a connection is a small one.
        fits.append(any(one is not None and one is not RULED_OUT and abs(one.first_id) <= LEAP for one in found))
    return None if fits[0] == fits[1] else fits[0]


def greeting(
    frame: Frame, asks: bool, offer: Offer | None, other: Offer | None, terms: NegotiatedTerms | None, style: Style
) -> DecodedTuple:
    """A negotiation frame of the side that asks, or that does not; the server's gets the terms in force. `offer`, `other`: the contents
    of it and of the other side's; `terms`: what both may put in force, if details are requested."""
    data, start, end, damage = frame.data, frame.start, frame.end, frame.damage
    fields, walked, notes, fault = read_frame(layouts.NEGOTIATION, data, start, end, style, damage and damage.reason, terms is not None)
    seen: set[int] = set()
    for record in fields.get("features", ()):
        number = record.get("number")
        if number in seen:
            notes.append(f"feature {number} occurs twice: the first one counts")
        elif number is not None and number not in FEATURES:
            notes.append(f"unknown feature {number}")
        seen.add(number)
        if len(notes) >= MAX_NOTES:
            notes.append("and perhaps more")
            break
    if not asks and offer is not None and fault is None:
        fields["negotiated"] = _in_force(offer, other)
        notes += _unexpected(offer, other)
    spans = _with_summary(walked, terms.layouts(), fields.get("negotiated"), end - start) if walked and terms is not None else None
    if asks:
        return "Negotiation", "request", None, fields, None, notes, fault, REQUEST, NAME, spans, None
    return "Negotiation", "response", None, fields, "answered", notes, fault, RESPONSE, NAME, spans, None


def _in_force(server: Offer, client: Offer | None) -> dict[str, Any]:
    """What the two frames agree on."""
    terms = agree(client, server)
    asked = () if client is None else client.features
    declined = [FEATURES.get(number, f"feature {number}") for number in asked if number not in server.features and number != STREAM_PARENT]
    return {
        "connection": terms.connections[0] if len(terms.connections) == 1 else None,
        "compression": terms.codecs[0] if len(terms.codecs) == 1 else server.algorithms or None,
        "timeout": TIMEOUT in server.features and terms.connections != ("stream",),
        "handler_duration": HANDLER_DURATION in server.features and terms.connections != ("stream",),
        # unknown unless the complete request was captured
        "declined": None if client is None or client.rest else declined,
    }


def _with_summary(spans: list[Span], layouts: Sequence[str], negotiated: dict[str, Any] | None, size: int) -> list[Span]:
    """Return the spans with readable connection ids, followed by one for the negotiated features."""
    ids = ("connection_id", "stream_parent")
    for span in spans:
        if span.name in ids and type(span.value) is int:
            span.label = connection_text(span.value)
    if negotiated is not None:
        declined = negotiated["declined"]
        text = " or ".join(layouts) + (f"; declines {', '.join(declined)}" if declined else "")
        spans.append(Span("negotiated", size, 0, text))
    return spans


def _unexpected(server: Offer, client: Offer | None) -> list[str]:
    """What a server of the library would not have answered."""
    notes = ["a server never sends STREAM_PARENT"] if STREAM_PARENT in server.features else []
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
