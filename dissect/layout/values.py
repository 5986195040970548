"""Rendering of values, shared by generated decoders, the walk and hand-written parts."""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
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


def hidden(buffers: Mapping[str, bytes], spans: Sequence[Span], show_secrets: bool) -> dict[str, bytearray]:
    """Return by buffer a flag for each byte to hide, or an empty dict; bytes of no field are hidden if the message has secrets."""
    if not any(must_hide(span, show_secrets) for span in spans):
        return {}
    flags = {name: bytearray(b"\x01") * len(data) for name, data in buffers.items()}
    # Secret spans come last, so that no other span reveals them
    for span in sorted([one for one in spans if one.leaf and one.buffer in flags], key=lambda one: one.secret):
        own, end = flags[span.buffer], span.offset + span.length
        own[span.offset : end] = bytes((span.secret,)) * len(own[span.offset : end])
    return flags


def seen(buffers: Mapping[str, bytes] | None, spans: list[Span] | None, show_secrets: bool) -> dict[str, bytes]:
    """Return the bytes of a message with secrets overwritten; all bytes of a compressed frame with secrets, or of one without spans."""
    found = dict(buffers or {})
    flags = hidden(found, spans or (), show_secrets)
    for name, data in found.items() if not show_secrets else ():
        if spans is None or (name == "frame" and any(span.secret and span.buffer != name for span in spans)):
            found[name] = b"*" * len(data)
        elif name in flags:
            found[name] = bytes([0x2A if flag else one for one, flag in zip(data, flags[name], strict=True)])
    return found
