"""Rendering of values, shared by generated decoders, the walk and hand-written parts."""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Malformed
from ..model import Span
from ..units import lossy
from .types import BytesAs

UNREADABLE = (struct.error, ValueError, LookupError, Malformed)
"""Exceptions of reading a frame whose bytes do not fit; text that is not UTF-8 is a ValueError."""


def base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def omitted(data: bytes) -> str:
    return f"<{sized(len(data))}>"


def redacted(count: int) -> str:
    """Return the replacement of a secret of `count` bytes."""
    return f"<redacted {count} bytes>"


def sized(count: int) -> str:
    return f"{count} byte" if count == 1 else f"{count} bytes"


RENDER: dict[BytesAs, Callable[[bytes], Any]] = {"hex": bytes.hex, "base64": base64, "text": lossy, "omit": omitted, "raw": bytes}
"""Renderings of bytes by `Style.bytes_as`."""


def must_hide(span: Span, show_secrets: bool) -> bool:
    """Return whether the bytes and the value of `span` must be hidden."""
    return span.secret and not show_secrets


def hidden(data: bytes, buffer: str, spans: list[Span], show_secrets: bool) -> bytearray | None:
    """Return a flag for each byte to hide, None if there is none; bytes of no field are hidden if the message has secrets."""
    if not any(must_hide(span, show_secrets) for span in spans):
        return None
    flags = bytearray(b"\x01") * len(data)
    own = [span for span in spans if span.leaf and span.buffer == buffer]
    # Secret spans come last, so that no other span reveals them
    for span in sorted(own, key=lambda one: one.secret):
        flags[span.offset : span.offset + span.length] = bytes((span.secret,)) * len(flags[span.offset : span.offset + span.length])
    return flags


def seen(buffers: Mapping[str, bytes] | None, spans: list[Span] | None, show_secrets: bool) -> dict[str, bytes]:
    """Return the bytes of a message with secrets overwritten; all bytes of a compressed frame with secrets, or of one without spans."""
    found = dict(buffers or {})
    for name, data in found.items() if not show_secrets else ():
        if spans is None or (name == "frame" and any(span.secret and span.buffer != name for span in spans)):
            found[name] = b"*" * len(data)
        elif (flags := hidden(data, name, spans, False)) is not None:
            found[name] = bytes([0x2A if flag else one for one, flag in zip(data, flags, strict=True)])
    return found
