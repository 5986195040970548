"""Frames that may contain a password, and their redaction."""

from __future__ import annotations

from struct import Struct
from typing import Any

import msgspec

from ...layout import Layout, Style, walk
from ...layout.values import redacted
from ...model import Fault, Span
from . import layouts, sasl_redaction
from .framing import Language
from .sasl_redaction import MECHANISM_AT, is_mechanism, username

HIDDEN = "hidden: a password may be in it"

_U32 = Struct(">I").unpack_from
_U16 = Struct(">H").unpack_from


class GuardedFrame(msgspec.Struct):
    """A frame read by `decode`, with fields, notes and fault."""

    side: int
    data: bytes
    start: int
    end: int
    word: int
    """Key and version."""
    missing: str | None
    """Why bytes are missing."""
    layout: Layout | None = None
    wrong_side: str | None = None
    """A note if only the other side sends it."""
    well_formed: bool = False
    """It matches its layout."""
    sound: bool = False
    """It is well formed, and its side sends it."""
    by_number: bool = False
    """It has no layout, and the number after its version may pair it."""
    name: str = ""
    kind: str = ""
    fields: dict[str, Any] = {}
    spans: list[Span] = []
    notes: list[str] = []
    fault: Fault | None = None


def read_login(frame: GuardedFrame, style: Style, of_client: bool) -> None:
    """Redact all but the name of a mechanism in a SaslAuthenticate, and add the user name if the client sent it completely."""
    fields, start = frame.fields, frame.start
    mechanism = fields["mechanism"]
    known = is_mechanism(mechanism)
    if mechanism is not None and not known and not style.show_secrets:
        (size,) = _U16(frame.data, start + MECHANISM_AT)
        fields["mechanism"] = redacted(size)
        for span in frame.spans:
            if span.name == "mechanism":
                span.value, span.secret = fields["mechanism"], True
    if frame.fault is not None and not known and not style.show_secrets:
        # Its numbers may come from the secret
        frame.fault.reason = frame.missing or "cannot be read"
    if known and "sasl_username" in fields and "trailing" not in fields and of_client:
        name = fields["sasl_username"] = username(mechanism, frame.data[start + MECHANISM_AT + 6 + len(mechanism) : frame.end])
        for span in frame.spans:
            if span.name == "sasl_username":
                span.value = name


def is_chunk(frame: GuardedFrame, language: Language) -> bool:
    """Return whether the captured part of a Deliver identifies it."""
    assert frame.layout is not None
    length = _U32(frame.data, frame.start)[0] + 4
    return language.is_identified([frame.layout], frame.start, frame.end) and language.fits(
        frame.layout, frame.data, frame.start, frame.end, length
    )


def has_challenge(frame: GuardedFrame) -> bool:
    """Whether an answer to SaslHandshake or SaslAuthenticate has bytes of a challenge where it names mechanisms or has its code."""
    fields = frame.fields
    wrong_code = frame.name == "SaslAuthenticate" and not frame.well_formed and fields.get("response_code_label", "") is None
    return wrong_code or not all(map(is_mechanism, fields.get("mechanisms", ())))


def hide(frame: GuardedFrame, style: Style, trusted: bool, spread: bool) -> None:
    """Redact a frame except its header and mechanism. Redact these too where a frame may not begin: after a frame with a fault, or at an
    unknown key whose size spans other packets, like a secret whose header was lost."""
    layout, start, end, fault = frame.layout, frame.start, frame.end, frame.fault
    login = sasl_redaction.mechanism_size(frame.data, start, end) > 0
    if layout is None and not (trusted and (login or not (spread or frame.missing))):
        frame.name, frame.kind, frame.notes = "unknown", "one_way", []
        shape = layouts.HIDDEN_FRAME
    elif end - start < MECHANISM_AT or (frame.sound and layout is not None and layouts.CORRELATION_ID not in layout.fields):
        shape = layouts.HIDDEN_SHORT
    else:
        shape = layouts.HIDDEN_LOGIN if login else layouts.HIDDEN
    frame.fields, frame.spans, _, frame.fault = walk(shape, frame.data, start, end, style, frame.missing)
    if frame.fault is None and fault is not None:
        body = frame.spans[-1].offset if frame.spans[-1].secret else end - start
        frame.fault = Fault("body", body, f"cannot be read as {frame.name}")
    if layout is not None:
        frame.notes = [] if frame.wrong_side is None else [frame.wrong_side]
    frame.notes.append(HIDDEN)


def hide_rest(frame: GuardedFrame) -> None:
    """Redact unread bytes where a password is expected; but not a field cut by the snap length."""
    fault = frame.fault
    cut = frame.missing is not None and fault is not None and fault.field != "trailing"
    for span in frame.spans:
        if span.leaf and (span.name == "trailing" or (span.name == "undecoded" and not cut)):
            span.value, span.secret = redacted(span.length), True
            if span.name in frame.fields:
                frame.fields[span.name] = redacted(span.length)
