"""How values are rendered, the same in the generated decoders, in the walk and in parts written by hand."""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Malformed
from ..model import Span
from .types import BytesAs

UNREADABLE = (struct.error, ValueError, LookupError, Malformed)
"""What reading a frame raises when its bytes do not fit; text that is not UTF-8 is a ValueError."""


def lossy(data: bytes) -> str:
    """What is valid UTF-8, `\\xNN` for the rest, a doubled backslash."""
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def omitted(data: bytes) -> str:
    return f"<{sized(len(data))}>"


def redacted(count: int) -> str:
    """What stands for a secret of `count` bytes."""
    return f"<redacted {count} bytes>"


def not_finite(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def sized(count: int) -> str:
    return f"{count} byte" if count == 1 else f"{count} bytes"


RENDER: dict[BytesAs, Callable[[bytes], Any]] = {"hex": bytes.hex, "base64": base64, "text": lossy, "omit": omitted, "raw": bytes}
"""By `Style.bytes_as`: what bytes become."""


def must_hide(span: Span, show_secrets: bool) -> bool:
    """Whether the bytes and the value of `span` must not be seen."""
    return span.secret and not show_secrets


def hidden(data: bytes, buffer: str, spans: list[Span], show_secrets: bool) -> bytearray | None:
    """A flag for each byte that must not be seen; bytes of no field count as secret where the message has secrets."""
    if not any(must_hide(span, show_secrets) for span in spans):
        return None
    flags = bytearray(b"\x01") * len(data)
    own = [span for span in spans if span.leaf and span.buffer == buffer]
    # What is secret comes last, so that nothing shows it
    for span in sorted(own, key=lambda one: one.secret):
        flags[span.offset : span.offset + span.length] = bytes((span.secret,)) * len(flags[span.offset : span.offset + span.length])
    return flags


def seen(buffers: Mapping[str, bytes] | None, spans: list[Span] | None, show_secrets: bool) -> dict[str, bytes]:
    """The bytes of a message, those of secrets overwritten; all of a frame that is packed and holds some, or of which nobody knows."""
    found = dict(buffers or {})
    for name, data in found.items() if not show_secrets else ():
        if spans is None or (name == "frame" and any(span.secret and span.buffer != name for span in spans)):
            found[name] = b"*" * len(data)
        elif (flags := hidden(data, name, spans, False)) is not None:
            found[name] = bytes([0x2A if flag else one for one, flag in zip(data, flags, strict=True)])
    return found
